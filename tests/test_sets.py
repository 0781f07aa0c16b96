"""Prepared sets: their border, where they are missing, and their blocks."""

import os
import re
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import one_line

from anyorder.datasets import open_split, prepared_anew
from anyorder.extras.puzzles.sets import prepare_puzzles
from anyorder.likelihood.tables import token_counts
from anyorder.tokens import sets
from anyorder.tokens.blocks import all_blocks, random_blocks, uniform_below
from anyorder.tokens.meta import Meta, SplitMeta, read_meta
from anyorder.tokens.prepared import prepare
from anyorder.tokens.sets import (
    GIVEN,
    Split,
    check_length,
    document_lengths,
    first_full,
    largest_id,
    longest_given,
    read_split,
)


@pytest.fixture(scope='session')
def prepared(tmp_path_factory):
    """A folder with a set of text, `text`, and one of puzzles, `nae_sat`; to be read only."""
    folder = tmp_path_factory.mktemp('sets')
    (folder / 'a.txt').write_text('some words of text, ' * 60)
    prepare('text', folder, source=str(folder / 'a.txt'), tokenizer='bytes')
    prepare_puzzles(
        'nae_sat', folder, n_rows={'train': 50, 'val': 5, 'test': 5}, n_latents=4, n_observations=4
    )
    return folder


@pytest.fixture
def sets_of_mine(prepared, tmp_path):
    """A copy of `prepared` to write to."""
    for name in ('text', 'nae_sat'):
        (tmp_path / name).mkdir()
        for file in os.listdir(prepared / name):
            (tmp_path / name / file).write_bytes((prepared / name / file).read_bytes())
    return tmp_path


# --------------------------------------------------------------------------------------------------
# meta.json and .bin


@pytest.mark.parametrize('name, token', [('text', 256), ('nae_sat', 1), ('nae_sat', GIVEN + 1)])
def test_every_token_of_the_tokenizer_may_stand_anywhere(sets_of_mine, name, token):
    for i in changed_tokens(sets_of_mine / name / 'val.bin', token):
        assert open_split(sets_of_mine, name, 'val')[0].packed.flat[i] == token


@pytest.mark.parametrize(
    'name, token, id',
    [('text', 257, 257), ('text', 65535, 65535), ('nae_sat', 2, 2), ('nae_sat', GIVEN + 2, 2)],
)
def test_tokens_that_the_tokenizer_does_not_have_are_one_line(sets_of_mine, name, token, id):
    for _ in changed_tokens(sets_of_mine / name / 'val.bin', token):
        with one_line(f'val.bin has the token {id}, .*--force'):
            open_split(sets_of_mine, name, 'val')


def changed_tokens(path, token):
    """Yield the places at which the file of a split has this token, one place at a time."""
    tokens = np.fromfile(path, '<u2')
    for i in (0, len(tokens) // 2, len(tokens) - 1):
        changed = tokens.copy()
        changed[i] = token
        changed.tofile(path)
        yield i


@pytest.mark.parametrize('n', [5, 3 * 2**30, 250_000_000, 9_035_582_198])
def test_offsets_are_uniform_at_every_size(n):
    """By chi-square. 32 bits modulo 3 * 2^30 would fall twice as often into the first third."""
    torch.manual_seed(0)
    found = torch.from_numpy(uniform_below(n, 300_000))
    assert 0 <= found.min() and found.max() < n
    n_cells = min(n, 60)
    expected = 300_000 / n_cells
    counts = torch.bincount(found * n_cells // n, minlength=n_cells)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - n_cells + 1) < 5 * (2 * n_cells) ** 0.5


def test_a_file_of_another_size_is_one_line(sets_of_mine):
    with open(sets_of_mine / 'text' / 'val.bin', 'ab') as file:
        file.write(b'x')
    with one_line('--force'):
        open_split(sets_of_mine, 'text', 'val')
    split, meta = open_split(sets_of_mine, 'text', 'train')
    assert len(split.packed) == meta.splits['train'].tokens


def test_a_block_is_no_longer_than_its_stream(prepared):
    split, _ = open_split(prepared, 'text', 'train')
    check_length(split, len(split.packed), 'text')  # one block
    with one_line('block_size=100000 is beyond the data'):
        check_length(split, 100000, 'text')


# --------------------------------------------------------------------------------------------------
# missing ones, and blocks


@pytest.mark.parametrize(
    'name, said',
    [
        ('books', 'python data/prepare.py text --name=books --source=FILE'),
        ('openwebtext', 'python data/prepare.py openwebtext --data_dir='),
        ('ptb', 'python data/prepare.py ptb .* --split=train'),
        ('sudoku', 'python -m anyorder.extras.puzzles make sudoku --data_dir='),
    ],
)
def test_missing_sets_name_the_command(tmp_path, name, said):
    with one_line(said):
        open_split(tmp_path, name, 'train')


def test_missing_splits_name_the_command(sets_of_mine, tmp_path):
    os.remove(sets_of_mine / 'text' / 'val.bin')
    os.rename(sets_of_mine / 'text', sets_of_mine / 'mine')
    with one_line('val.bin; .* text --name=mine --source=FILE .* --split=val'):
        open_split(sets_of_mine, 'mine', 'val')
    with one_line('text --name=mine --source=FILE .* --split=test'):
        open_split(sets_of_mine, 'mine', 'test')


def test_a_split_that_is_missing_is_not_all_of_a_source_that_was_divided(tmp_path):
    source = str(tmp_path / 'a.txt')
    (tmp_path / 'a.txt').write_text('a text ' * 100)
    prepare('text', tmp_path, 'mine', source, tokenizer='bytes')
    os.remove(tmp_path / 'mine' / 'val.bin')
    with one_line('divide this one by --force without --split'):
        prepare('text', tmp_path, 'mine', source, 'val')


def test_the_documentation_of_python_has_no_test(tmp_path):
    with one_line('prepare.py pydocs .* --split=test'):
        open_split(tmp_path, 'pydocs', 'test')
    with one_line('leave out --split=test'):
        prepare('pydocs', tmp_path, split='test')


@pytest.mark.parametrize(
    'data, val_data, dataset, said',
    [
        ('', '', 'text', ''),
        ('other', '', 'text', ': train of text;'),
        ('', 'other', 'text', ': val of text;'),
        ('other', 'other', 'text', ': train and val of text;'),
        (None, None, 'text', ''),
        ('other', None, 'text', 'train'),
        ('other', 'other', 'another set', ''),
        ('other', 'other', None, ''),
        ('other', 'other', 'gone', ''),
    ],
)
def test_a_set_that_was_prepared_anew_since_the_training_is_noticed(
    prepared, data, val_data, dataset, said
):
    """'' stands for the hash of the set as it is, None for none, as in older checkpoints."""
    splits = read_meta(prepared / 'text').splits
    entries = {}
    for key, split, value in (('data', 'train', data), ('val_data', 'val', val_data)):
        if value is not None:
            entries[key] = value or splits[split].sha256
    checkpoint = SimpleNamespace(run={'dataset': dataset} if dataset else {}, entries=entries)
    found = prepared_anew(checkpoint, prepared, 'gone' if dataset == 'gone' else 'text')
    assert said in found
    assert bool(said) == bool(found)


def test_blocks():
    split = Split(np.arange(1003, dtype='<u2'))
    blocks, given = all_blocks(split, 10)
    assert blocks.tolist() == torch.arange(1000).view(100, 10).tolist()
    assert not given.any()
    assert all_blocks(split, 10, 4)[0][:, 0].tolist() == [0, 250, 500, 750]
    assert len(all_blocks(split, 10, 999)[0]) == 100


def test_random_blocks_start_everywhere():
    split = Split(np.arange(1003, dtype='<u2'))
    torch.manual_seed(0)
    random = random_blocks(split, 5000, 10)
    assert (random.diff(dim=1) == 1).all()
    assert (random.min(), random.max()) == (0, 1002)


def test_tokens_are_counted():
    tokens = np.arange(1003, dtype='<u2') % 5
    assert token_counts(tokens, 7).tolist() == [201, 201, 201, 200, 200, 0, 0]


def test_a_set_of_puzzles_names_its_own_command(sets_of_mine):
    os.rename(sets_of_mine / 'nae_sat', sets_of_mine / 'mine')
    os.remove(sets_of_mine / 'mine' / 'val.bin')
    with one_line('nae_sat --seed=0 --n_latents=4 --n_observations=4 --name=mine .* --split=val'):
        open_split(sets_of_mine, 'mine', 'val')


def some_documents(n_tokens, seed):
    """(tokens (n,), which are given, ends) of documents of random lengths; 9 is their end."""
    rng = np.random.default_rng(seed)
    ends = np.unique(rng.integers(1, n_tokens + 1, n_tokens // 5))
    ends[-1] = n_tokens
    tokens = rng.integers(0, 9, n_tokens)
    tokens[ends - 1] = 9
    given = np.zeros(n_tokens, bool)
    for start, end in zip([0, *ends], ends):
        given[start : start + rng.integers(0, end - start)] = True
    return (tokens | GIVEN * given).astype('<u2'), given, ends


@pytest.fixture(params=[(1, 1), (4, 6), (64, 7), (1000, 1000)])
def in_pieces(request, monkeypatch):
    """Documents are in groups of so many, and sets are read in parts of so many tokens."""
    group, part = request.param
    monkeypatch.setattr(sets, 'GROUP', group)
    monkeypatch.setattr(sets, 'PART', part)
    monkeypatch.setattr('anyorder.tokens.sets.DOCUMENTS', 3)


@pytest.mark.parametrize('seed', range(20))
def test_documents_are_found_piece_by_piece(in_pieces, seed):
    tokens, given, ends = some_documents(200, seed)
    split = Split(tokens, True, document_lengths(tokens, 9))
    assert split.lengths.tolist() == np.diff(ends, prepend=0).tolist()
    numbers = np.random.default_rng(seed).integers(0, len(ends), 30)
    starts, found = split.spans(numbers)
    assert found.tolist() == ends[numbers].tolist()
    assert starts.tolist() == np.append(0, ends)[numbers].tolist()


@pytest.mark.parametrize('seed', range(20))
def test_given_blocks_are_found_piece_by_piece(in_pieces, seed):
    tokens, given, ends = some_documents(200, seed)
    split = Split(tokens, True, document_lengths(tokens, 9))
    for N in (2, 5, 40):
        blocks = [given[start : min(end, start + N)] for start, end in zip([0, *ends], ends)]
        full = [i for i, block in enumerate(blocks) if block.all()]
        assert first_full(split, N) == min(full, default=None)


@pytest.mark.parametrize('seed', range(20))
def test_the_longest_given_run_of_a_stream_is_found_piece_by_piece(in_pieces, seed):
    tokens, given, _ = some_documents(200, seed)
    runs = re.findall('1+', ''.join(map(str, given.astype(int))))
    assert longest_given(Split(tokens, True)) == max(map(len, runs), default=0)


@pytest.mark.parametrize('longest, n_bytes', [(255, 1), (256, 2), (65_535, 2), (65_536, 4)])
def test_lengths_take_as_few_bytes_as_the_longest_document_needs(longest, n_bytes):
    tokens = np.append(np.zeros(longest - 1, '<u2'), [9, 0, 9]).astype('<u2')
    lengths = document_lengths(tokens, 9)
    assert lengths.tolist() == [longest, 2]
    assert lengths.itemsize == n_bytes


@pytest.mark.parametrize('kind', [{'prompts': True, 'eos': 9}, {'row_length': 50}, {}])
def test_to_open_and_check_a_set_takes_no_memory_of_its_size(tmp_path, monkeypatch, kind):
    """What is kept of a set with prompts are two bytes a document, and some a piece."""
    monkeypatch.setattr(sets, 'PART', 1 << 12)
    monkeypatch.setattr('anyorder.tokens.sets.DOCUMENTS', 1 << 8)
    row = np.repeat([1 + GIVEN, 2, 9], [20, 29, 1]).astype('<u2')
    np.tile(row, 10_000).tofile(tmp_path / 'train.bin')
    there = {'train': SplitMeta(10_000, 500_000, 0, '0', 'x')}
    meta = Meta('x', 'own', 10, splits=there, given=True, **{'eos': None} | kind)
    tracemalloc.start()
    split = read_split(tmp_path, meta, 'train')
    check_length(split, 50, 'x')
    random_blocks(split, 2, 50)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 0.2 * os.path.getsize(tmp_path / 'train.bin')


def test_a_document_that_does_not_end_is_one_line(tmp_path):
    np.array([1 + GIVEN, 2, 9, 1], '<u2').tofile(tmp_path / 'train.bin')
    there = {'train': SplitMeta(1, 4, 0, '0', 'x')}
    meta = Meta('x', 'own', 10, 9, there, given=True, prompts=True)
    with one_line('train.bin does not end with the end of a document'):
        read_split(tmp_path, meta, 'train')


def test_of_many_tokens_pieces_of_all_parts_are_looked_at(monkeypatch):
    monkeypatch.setattr(sets, 'CHECKED', 640)
    for part in (0, 15, 49):
        tokens = np.arange(100_000) // 2000 == part
        assert largest_id(tokens, 0xFFFF) == 1


def test_tokens_are_counted_without_their_marks_and_of_many_some(monkeypatch):
    tokens = np.array([[0, 2, 2 + GIVEN], [2, 3 + GIVEN, 0]], '<u2')
    assert Split(tokens, marked=True).counts(5).tolist() == [2, 0, 3, 1, 0]
    monkeypatch.setattr(sets, 'COUNTED', 640)
    parts = np.arange(64_000) // 1000  # one tenth of the places in each
    assert Split(parts.astype('<u2')).counts(64).tolist() == [10 for _ in range(64)]


def test_blocks_of_puzzles_are_rows(prepared):
    split, _ = open_split(prepared, 'nae_sat', 'train')
    rows = split.packed.tolist()
    assert {tuple(row) for row in random_blocks(split, 20, 8).tolist()} <= {*map(tuple, rows)}
    assert all_blocks(split, 8)[0].tolist() == rows
    with one_line('are 8 tokens: block_size must be 8, got 16'):
        check_length(split, 16, 'nae_sat')
