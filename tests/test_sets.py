"""Prepared sets: their border, where they are missing, and their blocks."""

import json
import os
import re
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import one_line

from anyorder.datasets import changed_since, open_split
from anyorder.likelihood.tables import token_counts
from anyorder.tokens import sets
from anyorder.tokens.blocks import (
    all_blocks,
    check_length,
    first_full,
    longest_given,
    random_blocks,
    uniform_below,
)
from anyorder.tokens.meta import Meta, SplitMeta, read_meta
from anyorder.tokens.prepared import prepare
from anyorder.tokens.puzzles import prepare_puzzles
from anyorder.tokens.sets import GIVEN, Ends, Split, largest_id, read_split


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


# ---------------------------------------------------------------------------------------------------------------------
# meta.json and .bin


@pytest.mark.parametrize(
    'name, token, ok',
    [
        ('text', 256, True),
        ('text', 257, False),
        ('text', 65535, False),
        ('nae_sat', 1, True),
        ('nae_sat', GIVEN + 1, True),
        ('nae_sat', 2, False),
        ('nae_sat', GIVEN + 2, False),
    ],
)
def test_tokens_that_the_tokenizer_does_not_have_are_one_line(sets_of_mine, name, token, ok):
    path = sets_of_mine / name / 'val.bin'
    tokens = np.fromfile(path, '<u2')
    for i in (0, len(tokens) // 2, -1):
        changed = tokens.copy()
        changed[i] = token
        changed.tofile(path)
        if ok:
            assert open_split(sets_of_mine, name, 'val')[0].packed.flat[i] == token
        else:
            seen = token % GIVEN if name == 'nae_sat' else token
            with pytest.raises(ValueError, match=f'val.bin has the token {seen}, .*--force'):
                open_split(sets_of_mine, name, 'val')


@pytest.mark.parametrize('n', [5, 3 * 2**30, 250_000_000, 9_035_582_198])
def test_offsets_are_uniform_at_every_size(n):
    """By chi-square. 32 bits modulo 3 * 2^30 would fall twice as often into the first third."""
    torch.manual_seed(0)
    found = torch.from_numpy(uniform_below(n, 300_000))
    assert 0 <= found.min() and found.max() < n
    n_cells = min(n, 60)
    expected = 300_000 / n_cells
    chi_square = (
        (torch.bincount(found * n_cells // n, minlength=n_cells) - expected) ** 2 / expected
    ).sum()
    assert abs(chi_square - n_cells + 1) < 5 * (2 * n_cells) ** 0.5


def test_a_file_that_is_not_what_meta_says(sets_of_mine):
    with open(sets_of_mine / 'text' / 'val.bin', 'ab') as f:
        f.write(b'x')
    with pytest.raises(ValueError, match='--force'):
        open_split(sets_of_mine, 'text', 'val')
    split, meta = open_split(sets_of_mine, 'text', 'train')
    assert len(split.packed) == meta.splits['train'].tokens
    with pytest.raises(ValueError, match='block_size=100000 is beyond the data'):
        check_length(split, 100000, 'text')
    check_length(split, len(split.packed), 'text')  # one block
    # as if the tokenizer had been another one
    meta_path = sets_of_mine / 'text' / 'meta.json'
    meta_path.write_text(json.dumps(json.loads(meta_path.read_text()) | {'n_tokens': 300}))
    with pytest.raises(ValueError, match='300 bytes tokens, there are 257 now'):
        open_split(sets_of_mine, 'text', 'train')


# ---------------------------------------------------------------------------------------------------------------------
# missing ones, and blocks


def test_missing_sets_name_the_command(tmp_path):
    for name, said in (
        ('books', 'python data/prepare.py text --name=books --source=FILE'),
        ('openwebtext', 'python data/prepare.py openwebtext --data_dir='),
        ('ptb', r'python data/prepare.py ptb \[--source=FILE\] --split=train'),
        ('sudoku', 'python data/puzzles.py sudoku --name=sudoku --data_dir='),
    ):
        with pytest.raises(ValueError, match=said):
            open_split(tmp_path, name, 'train')
    (tmp_path / 'a.txt').write_text('a text ' * 100)
    prepare('text', tmp_path, 'mine', str(tmp_path / 'a.txt'), tokenizer='bytes')
    os.remove(tmp_path / 'mine' / 'val.bin')
    with pytest.raises(
        ValueError, match='val.bin, only train; .* text --name=mine --source=FILE --split=val'
    ):
        open_split(tmp_path, 'mine', 'val')
    with pytest.raises(
        ValueError, match='divide this one by --force without --split'
    ):  # as it was divided
        prepare('text', tmp_path, 'mine', str(tmp_path / 'a.txt'), 'val')
    with pytest.raises(ValueError, match='text --name=mine --source=FILE --split=test'):
        open_split(tmp_path, 'mine', 'test')
    with pytest.raises(
        ValueError,
        match='prepare.py text --name=pydocs --source=FILE --tokenizer=bytes --split=test',
    ):
        open_split(tmp_path, 'pydocs', 'test', {'tokenizer': 'bytes'})  # it has none of its own
    with pytest.raises(ValueError, match='leave out --split=test'):
        prepare('pydocs', tmp_path, split='test')


@pytest.mark.parametrize(
    'data, val_data, dataset, said',
    [
        ('', '', 'text', ''),
        ('other', '', 'text', 'its train changed'),
        ('', 'other', 'text', 'its val changed'),
        ('other', 'other', 'text', 'its train and val changed'),
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
    kept = {'data': ('train', data), 'val_data': ('val', val_data)}
    entries = {
        key: value or splits[split].sha256
        for key, (split, value) in kept.items()
        if value is not None
    }
    checkpoint = SimpleNamespace(run={'dataset': dataset} if dataset else {}, entries=entries)
    found = changed_since(checkpoint, prepared, 'gone' if dataset == 'gone' else 'text')
    assert said in found and bool(said) == bool(found)


def test_blocks():
    tokens = np.arange(1003, dtype='<u2')
    split = Split(tokens)
    blocks, given = all_blocks(split, 10)
    assert (
        torch.equal(blocks.flatten(), torch.arange(1000))
        and blocks.shape == (100, 10)
        and not given.any()
    )
    assert all_blocks(split, 10, 4)[0][:, 0].tolist() == [0, 250, 500, 750]
    assert len(all_blocks(split, 10, 999)[0]) == 100
    torch.manual_seed(0)
    random = random_blocks(split, 5000, 10)
    assert (random.diff(dim=1) == 1).all() and random.min() == 0 and random.max() == 1002
    assert token_counts(tokens % 5, 7).tolist() == [201, 201, 201, 200, 200, 0, 0]


def test_a_known_set_is_named_whatever_the_model_reads(tmp_path):
    for kind in {'tokenizer': 'sudoku'}, {'tokenizer': 'own'}, {'tokenizer': 'bytes'}:
        with pytest.raises(ValueError, match=r'python data/prepare.py ptb \[--source=FILE\] '):
            open_split(tmp_path, 'ptb', 'test', kind)


def test_a_set_of_puzzles_names_its_own_command(sets_of_mine):
    os.rename(sets_of_mine / 'nae_sat', sets_of_mine / 'mine')
    os.remove(sets_of_mine / 'mine' / 'val.bin')
    with pytest.raises(
        ValueError,
        match='nae_sat --name=mine --seed=0 --n_latents=4 --n_observations=4 --split=val',
    ):
        open_split(sets_of_mine, 'mine', 'val')
    for kind, said in (
        ({'tokenizer': 'TASK'}, 'puzzles.py TASK'),
        ({'tokenizer': 'bytes'}, 'prepare.py text'),
        ({'tokenizer': 'own', 'eos': 3}, 'prepare.py tokens'),
        ({'tokenizer': 'zebra4'}, 'puzzles.py zebra4'),
    ):
        with pytest.raises(ValueError, match=f'python data/{said} --name=none '):
            open_split(sets_of_mine, 'none', 'train', kind)
    os.rename(sets_of_mine / 'text', sets_of_mine / 'sudoku')  # text under the name of a puzzle
    with pytest.raises(
        ValueError, match='python data/puzzles.py sudoku --name=sudoku --split=test'
    ):
        open_split(sets_of_mine, 'sudoku', 'test')


def some_documents(n_tokens, seed):
    """(tokens (n,), which of them are given, ends) of documents of random lengths; 9 is their end."""
    rng = np.random.default_rng(seed)
    ends = np.unique(rng.integers(1, n_tokens + 1, n_tokens // 5))
    tokens, given = rng.integers(0, 9, n_tokens), np.zeros(n_tokens, bool)
    ends[-1] = n_tokens
    tokens[ends - 1] = 9
    for start, end in zip([0, *ends], ends):
        given[start : start + rng.integers(0, end - start)] = True
    return (tokens | GIVEN * given).astype('<u2'), given, ends


@pytest.mark.parametrize('piece, part', [(1, 1), (4, 6), (64, 7), (1000, 1000)])
def test_documents_are_found_piece_by_piece(monkeypatch, piece, part):
    monkeypatch.setattr(sets, 'PIECE', piece)
    monkeypatch.setattr(sets, 'PART', part)
    monkeypatch.setattr('anyorder.tokens.blocks.DOCUMENTS', 3)
    for seed in range(20):
        tokens, given, ends = some_documents(200, seed)
        split, whole = Split(tokens, True, Ends(tokens, 9)), Split(tokens, True, ends)
        numbers = np.random.default_rng(seed).integers(0, len(ends), 30)
        assert len(split.ends) == len(ends) and (split.ends[numbers] == ends[numbers]).all()
        assert split.lengths.tolist() == np.diff(ends, prepend=0).tolist()
        for N in (2, 5, 40):
            for ours, theirs in zip(all_blocks(split, N), all_blocks(whole, N), strict=True):
                assert torch.equal(ours, theirs)
            blocks = [given[start : min(end, start + N)] for start, end in zip([0, *ends], ends)]
            full = [i for i, block in enumerate(blocks) if block.all()]
            assert first_full(split, N) == first_full(whole, N) == min(full, default=None)
        runs = re.findall('1+', ''.join(map(str, given.astype(int))))
        assert longest_given(Split(tokens, True)) == max(map(len, runs), default=0)


@pytest.mark.parametrize('longest, n_bytes', [(255, 1), (256, 2), (65_535, 2), (65_536, 4)])
def test_lengths_take_as_few_bytes_as_the_longest_document_needs(longest, n_bytes):
    tokens = np.append(np.zeros(longest - 1, '<u2'), [9, 0, 9]).astype('<u2')
    lengths = Ends(tokens, 9).lengths()
    assert lengths.tolist() == [longest, 2] and lengths.itemsize == n_bytes


@pytest.mark.parametrize('kind', [{'prompts': True, 'eos': 9}, {'row_length': 50}, {}])
def test_to_open_and_check_a_set_takes_no_memory_of_its_size(tmp_path, monkeypatch, kind):
    """What is kept of a set with prompts are two bytes a document, and some a piece."""
    monkeypatch.setattr(sets, 'PART', 1 << 12)
    monkeypatch.setattr('anyorder.tokens.blocks.DOCUMENTS', 1 << 8)
    row = [1 + GIVEN] * 20 + [2] * 29 + [9]
    np.tile(np.array(row, '<u2'), 10_000).tofile(tmp_path / 'train.bin')
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
    meta = Meta(
        'x', 'own', 10, 9, {'train': SplitMeta(1, 4, 0, '0', 'x')}, given=True, prompts=True
    )
    with one_line('train.bin does not end with the end of a document'):
        read_split(tmp_path, meta, 'train')


def test_of_many_tokens_pieces_of_all_parts_are_looked_at(monkeypatch):
    monkeypatch.setattr('anyorder.tokens.sets.CHECKED', 640)
    assert all(largest_id(np.arange(100_000) // 2000 == part, 0xFFFF) == 1 for part in (0, 15, 49))


def test_blocks_of_puzzles_are_rows(prepared):
    split, _ = open_split(prepared, 'nae_sat', 'train')
    rows = split.packed.tolist()
    assert {tuple(row) for row in random_blocks(split, 20, 8).tolist()} <= {*map(tuple, rows)}
    assert all_blocks(split, 8)[0].tolist() == rows
    with pytest.raises(ValueError, match='are 8 tokens: block_size must be 8, got 16'):
        check_length(split, 16, 'nae_sat')
