"""Prepared sets: their border, where they are missing, and their blocks."""
import json
import os

import numpy as np
import pytest
import torch

from anyorder.datasets import open_split
from anyorder.likelihood.tables import token_counts
from anyorder.puzzles.prepared import prepare_puzzles
from anyorder.puzzles.rules import TASKS, make_task, row_length
from anyorder.tokens import sets
from anyorder.tokens.blocks import all_blocks, check_length, random_blocks
from anyorder.tokens.prepared import prepare
from anyorder.tokens.sets import GIVEN, largest_id, read_meta


@pytest.fixture(scope='session')
def prepared(tmp_path_factory):
    """A folder with a set of text, `text`, and one of puzzles, `nae_sat`; to be read only."""
    folder = tmp_path_factory.mktemp('sets')
    (folder / 'a.txt').write_text('some words of text, ' * 60)
    prepare('text', folder, source=str(folder / 'a.txt'), tokenizer='bytes')
    prepare_puzzles('nae_sat', folder, n_rows={'train': 50, 'val': 5, 'test': 5}, n_latents=4, n_observations=4)
    return folder


@pytest.fixture
def sets_of_mine(prepared, tmp_path):
    """A copy of `prepared` to write to."""
    for name in ('text', 'nae_sat'):
        (tmp_path / name).mkdir()
        for file in os.listdir(prepared / name):
            (tmp_path / name / file).write_bytes((prepared / name / file).read_bytes())
    return tmp_path


# ---------------------------------------------------------------------------------------------------------------------
# meta.json and .bin

def put(folder, name, where, value):
    """Set or delete a field of meta.json, of which `where` is the path with dots between."""
    path = folder / name / 'meta.json'
    meta = json.loads(path.read_text())
    *outer, last = where.split('.')
    inner = meta
    for key in outer:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    path.write_text(json.dumps(meta))


WRONG = [0, -1, 1.5, True, 'x', [], {}, {'a': 1}, 10 ** 30]


@pytest.mark.parametrize('name, where, fine', [
    ('text', 'name', ['x']), ('text', 'tokenizer', ['x']), ('text', 'n_tokens', []), ('text', 'eos', [0]),
    ('text', 'splits', []),
    ('text', 'splits.val', []), ('text', 'splits.val.rows', []), ('text', 'splits.val.tokens', []),
    ('text', 'splits.val.text_bytes', [0, 10 ** 30]), ('text', 'splits.val.sha256', ['x']),
    ('text', 'splits.val.source', ['x']),
    ('text', 'row_length', []), ('text', 'puzzle', []), ('nae_sat', 'row_length', []), ('nae_sat', 'puzzle', []),
    ('nae_sat', 'puzzle.task', []), ('nae_sat', 'puzzle.n_latents', []), ('nae_sat', 'puzzle.n_observations', []),
    ('nae_sat', 'puzzle.seed', [0, 10 ** 30]), ('nae_sat', 'splits.val.tokens', [])])
def test_a_field_of_another_type_or_size_is_one_line(sets_of_mine, name, where, fine):
    path = sets_of_mine / name / 'meta.json'
    before = path.read_text()
    optional = ['row_length', 'puzzle', 'eos'] if name == 'text' else []
    for value in [*WRONG, *([] if where in optional or where == 'splits.val' else [None])]:
        put(sets_of_mine, name, where, value)
        if value in fine and type(value) in map(type, fine):
            assert read_meta(sets_of_mine / name)
        elif not (where == 'splits.val.rows' and value == 10 ** 30):   # any number of documents may be
            with pytest.raises(ValueError, match='is not what data/prepare.py wrote|0 expected') as e:
                open_split(sets_of_mine, name, 'val')
            assert '\n' not in str(e.value)
        path.write_text(before)


@pytest.mark.parametrize('name, where, value', [
    ('text', 'eos', 257), ('text', 'n_tokens', 65537), ('nae_sat', 'n_tokens', GIVEN + 1), ('nae_sat', 'row_length', 9),
    ('nae_sat', 'splits.val.rows', 4), ('nae_sat', 'puzzle.more', 1)])
def test_fields_that_do_not_fit_each_other_are_one_line(sets_of_mine, name, where, value):
    put(sets_of_mine, name, where, value)
    with pytest.raises(ValueError, match='is not what data/prepare.py wrote'):
        read_meta(sets_of_mine / name)


@pytest.mark.parametrize('content',
                         [b'', b'[]', b'null', b'3', b'{"tokenizer": "bytes"', b'\xff\xfe', b'[' * 100000, b'{}'])
def test_a_meta_that_is_no_json_object_is_one_line(sets_of_mine, content):
    (sets_of_mine / 'text' / 'meta.json').write_bytes(content)
    with pytest.raises(ValueError, match='is not what data/prepare.py wrote'):
        open_split(sets_of_mine, 'text', 'val')


def test_a_set_of_puzzles_has_the_length_of_its_task(prepared):
    assert read_meta(prepared / 'nae_sat')['row_length'] == 8
    for task in TASKS:
        puzzle = {'task': task} | ({'n_latents': 5, 'n_observations': 7, 'seed': 0} if task == 'nae_sat' else {})
        rng, sets_all = np.random.default_rng(0), lambda tokens: np.ones(len(tokens), bool)
        n_rows = {'sudoku': 2, 'zebra': 16}.get(task, 4)
        assert make_task(puzzle | {'largest': 3}).make(n_rows, rng, sets_all)[0].shape[1] == row_length(puzzle)
    for other in (None, [], {'task': 'x'}, {'task': 'sudoku', 'seed': 1}, {'task': ['sudoku']}, {}):
        assert row_length(other) is None


@pytest.mark.parametrize('name, token, ok', [
    ('text', 256, True), ('text', 257, False), ('text', 65535, False), ('nae_sat', 1, True),
    ('nae_sat', GIVEN + 1, True),
    ('nae_sat', 2, False), ('nae_sat', GIVEN + 2, False)])
def test_tokens_that_the_tokenizer_does_not_have_are_one_line(sets_of_mine, name, token, ok):
    path = sets_of_mine / name / 'val.bin'
    tokens = np.fromfile(path, '<u2')
    for i in (0, len(tokens) // 2, -1):
        changed = tokens.copy()
        changed[i] = token
        changed.tofile(path)
        if ok:
            assert open_split(sets_of_mine, name, 'val')[0].flat[i] == token
        else:
            seen = token % GIVEN if name == 'nae_sat' else token
            with pytest.raises(ValueError, match=f'val.bin has the token {seen}, .*--force'):
                open_split(sets_of_mine, name, 'val')


def test_of_many_tokens_pieces_of_all_parts_are_looked_at(monkeypatch):
    monkeypatch.setattr(sets, 'CHECKED', 640)
    for i in (0, 99_999, 9, 99_990):
        tokens = np.zeros(100_000, '<u2')
        tokens[i] = 7
        assert largest_id(tokens, False) == 7
    tokens = np.zeros(100_000, '<u2')
    tokens[30_000:32_000] = 5
    assert largest_id(tokens, False) == 5 and largest_id(tokens | GIVEN, True) == 5
    assert largest_id(np.array([3, 9], '<u2'), False) == 9


def test_a_file_that_is_not_what_meta_says(sets_of_mine):
    with open(sets_of_mine / 'text' / 'val.bin', 'ab') as f:
        f.write(b'x')
    with pytest.raises(ValueError, match='--force'):
        open_split(sets_of_mine, 'text', 'val')
    tokens, meta = open_split(sets_of_mine, 'text', 'train')
    assert len(tokens) == meta['splits']['train']['tokens']
    with pytest.raises(ValueError, match='block_size=100000 is beyond the data'):
        check_length(tokens, 100000, 'text')
    check_length(tokens, len(tokens), 'text')                                     # one block
    put(sets_of_mine, 'text', 'n_tokens', 256)   # as if the tokenizer had been another one
    put(sets_of_mine, 'text', 'eos', 255)
    with pytest.raises(ValueError, match='256 bytes tokens, there are 257 now'):
        open_split(sets_of_mine, 'text', 'train')


# ---------------------------------------------------------------------------------------------------------------------
# missing ones, and blocks

def test_missing_sets_name_the_command(tmp_path):
    for name, said in (('books', 'python data/prepare.py text --name=books --source=FILE'),
                       ('openwebtext', 'python data/prepare.py openwebtext --data_dir='),
                       ('ptb', r'python data/prepare.py ptb \[--source=FILE\] --split=train'),
                       ('sudoku', 'python data/puzzles.py sudoku --data_dir=')):
        with pytest.raises(ValueError, match=said):
            open_split(tmp_path, name, 'train')
    (tmp_path / 'a.txt').write_text('a text ' * 100)
    prepare('text', tmp_path, 'mine', str(tmp_path / 'a.txt'), tokenizer='bytes')
    os.remove(tmp_path / 'mine' / 'val.bin')   # it was divided: both again, as they were
    with pytest.raises(ValueError, match='text --name=mine --source=FILE --tokenizer=bytes --force'):
        open_split(tmp_path, 'mine', 'val')
    with pytest.raises(ValueError, match='text --name=mine --source=FILE --split=test'):
        open_split(tmp_path, 'mine', 'test')
    with pytest.raises(ValueError, match='has the splits train and val'):
        open_split(tmp_path, 'pydocs', 'test')
    with pytest.raises(ValueError, match='leave --split=test out'):
        prepare('pydocs', tmp_path, split='test')


def test_blocks():
    tokens = np.arange(1003, dtype='<u2')
    blocks = all_blocks(tokens, 10)
    assert torch.equal(blocks.flatten(), torch.arange(1000)) and blocks.shape == (100, 10)
    assert all_blocks(tokens, 10, 4)[:, 0].tolist() == [0, 250, 500, 750] and len(all_blocks(tokens, 10, 999)) == 100
    torch.manual_seed(0)
    random = random_blocks(tokens, 5000, 10)
    assert (random.diff(dim=1) == 1).all() and random.min() == 0 and random.max() == 1002
    assert token_counts(tokens % 5, 7).tolist() == [201, 201, 201, 200, 200, 0, 0]


def test_a_set_of_puzzles_names_its_own_command(sets_of_mine):
    os.rename(sets_of_mine / 'nae_sat', sets_of_mine / 'mine')
    os.remove(sets_of_mine / 'mine' / 'val.bin')
    with pytest.raises(ValueError, match='python data/puzzles.py nae_sat --name=mine --split=val'):
        open_split(sets_of_mine, 'mine', 'val')
    os.rename(sets_of_mine / 'text', sets_of_mine / 'sudoku')                     # of text, under the name of a puzzle
    with pytest.raises(ValueError, match='python data/puzzles.py sudoku --name=sudoku --split=test'):
        open_split(sets_of_mine, 'sudoku', 'test')


def test_blocks_of_puzzles_are_rows(prepared):
    tokens, _ = open_split(prepared, 'nae_sat', 'train')
    assert {tuple(row) for row in random_blocks(tokens, 20, 8).tolist()} <= {tuple(row) for row in tokens.tolist()}
    assert all_blocks(tokens, 8).tolist() == tokens.tolist()
    with pytest.raises(ValueError, match='are 8 tokens: block_size must be 8, got 16'):
        check_length(tokens, 16, 'nae_sat')
