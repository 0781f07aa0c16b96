"""Sets of tokens: the same as text and puzzles where these hold, kinds, splits, wrong sources."""

import glob
import json
import os
import re

import numpy as np
import pytest
import torch
from conftest import one_line

import train
from anyorder.datasets import open_split
from anyorder.extras.puzzles.sets import prepare_puzzles
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.blocks import all_blocks
from anyorder.tokens.meta import kind_of, read_meta
from anyorder.tokens.prepared import prepare
from anyorder.tokens.sets import Split, check_length, read_split
from anyorder.tokens.tokenizers import tokenizer_of_set
from configurator import configure
from data import prepare as command

ROWS = np.arange(24).reshape(4, 6) % 7
SHORT_RUN = [
    '--n_layer=1',
    '--n_head=2',
    '--n_embd=16',
    '--batch_size=4',
    '--warmup_iters=2',
    '--max_iters=3',
    '--eval_interval=3',
    '--eval_iters=2',
    '--log_interval=1',
    '--device=cpu',
    '--compile=False',
    '--dtype=float32',
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The empty working folder of each test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(name, n, *options):
    """(log, checkpoint) of a short run on data/NAME; the log without what depends on time."""
    of_set = [f'--dataset={name}', f'--block_size={n}', f'--out_dir=out_{name}']
    train.main(configure(vars(train), [*SHORT_RUN, *of_set, *options]))
    with open(f'out_{name}/log.jsonl') as f:
        log = [numbers_of(json.loads(line)) for line in f]
    return log, torch.load(f'out_{name}/ckpt.pt', weights_only=True)


def numbers_of(entry):
    """The numbers of a line of a log that do not depend on time."""
    return {key: entry[key] for key in entry if re.search('loss|val|norm', key)}


def assert_same_files(one, other, *splits):
    for split in splits:
        with open(f'data/{one}/{split}.bin', 'rb') as f:
            wanted = f.read()
        with open(f'data/{other}/{split}.bin', 'rb') as f:
            assert f.read() == wanted


def assert_same_run(one, other, n, *options):
    """Train on two sets; returns the checkpoint of the second."""
    log, state = trained(one, n, *options)
    other_log, other_state = trained(other, n, *options)
    assert log == other_log
    for name, p in state['model'].items():
        assert torch.equal(p, other_state['model'][name])
    return other_state


@pytest.mark.parametrize('options', [[], ['--network=encoder', '--l2r_ratio=0']])
def test_puzzles_through_tokens_are_the_same_run(options):
    prepare_puzzles('sudoku4', 'data', n_rows={'train': 60, 'val': 20, 'test': 5})
    arrays = {}
    for split in ('train', 'val', 'test'):
        tokens, given = all_blocks(open_split('data', 'sudoku4', split)[0], 16)
        arrays |= {split: tokens.numpy(), f'given_{split}': given.numpy()}
    np.savez('mine.npz', **arrays)
    prepare_tokens('data', 'mine', 'mine.npz', shape='4x4')
    assert_same_files('sudoku4', 'mine', 'train', 'val', 'test')
    mine = assert_same_run('sudoku4', 'mine', 16, *options)
    assert mine['set']['shape'] == [4, 4]
    assert mine['set']['given']
    assert 'puzzle' not in mine['set']


def test_a_text_through_tokens_is_the_same_run(folder):
    texts = [f'the quick brown fox {i} jumps over the lazy dog' for i in range(30)]
    lines = [json.dumps({'text': text}) for text in texts]
    (folder / 'a.jsonl').write_text('\n'.join(lines))
    prepare('text', 'data', 'words', 'a.jsonl', tokenizer='bytes')
    streams = {split: np.fromfile(f'data/words/{split}.bin', '<u2') for split in ('train', 'val')}
    np.savez('b.npz', **streams)
    meta = prepare_tokens('data', 'mine', 'b.npz', end=256)
    assert (meta.n_tokens, meta.eos) == (257, 256)
    assert_same_files('words', 'mine', 'train', 'val')
    assert_same_run('words', 'mine', 8)


@pytest.mark.parametrize('name', ['a.npy', 'a.Npz', 'caf\udce9.NPY'])
def test_both_kinds_of_file_hold_the_same_rows(folder, name):
    is_npz = name.lower().endswith('z')
    with open(name, 'wb') as f:
        np.savez(f, test=ROWS) if is_npz else np.save(f, ROWS)
    (folder / 'names.txt').write_text('\n'.join('abcdefg'))
    form = {'shape': '2x3', 'vocabulary': 'names.txt'}
    meta = prepare_tokens('data', 'mine', name, '' if is_npz else 'test', **form)
    split, _ = open_split('data', 'mine', 'test')
    assert split.packed.tolist() == ROWS.tolist()
    assert not split.marked
    tokenizer = tokenizer_of_set(kind_of(meta))
    assert tokenizer.decode([0, 6, 2]) == 'a g c'
    assert tokenizer.encode(' a  g c') == [0, 6, 2]


@pytest.mark.parametrize('source, row_length', [(ROWS[0], None), (ROWS, 6)])
def test_an_array_of_one_dimension_is_a_stream(source, row_length):
    np.save('a.npy', source)
    meta = prepare_tokens('data', 'mine', 'a.npy')
    assert meta.row_length == row_length
    parts = [open_split('data', 'mine', split)[0] for split in ('train', 'val')]
    assert sum(part.packed.size for part in parts) == source.size


def test_given_positions_of_all_rows():
    given = np.arange(6) < 2
    np.savez('a.npz', train=ROWS, val=ROWS[:1], given=given, given_val=~given[None])
    prepare_tokens('data', 'mine', 'a.npz')
    for name, want in (('train', np.broadcast_to(given, ROWS.shape)), ('val', ~given[None])):
        tokens, there = all_blocks(open_split('data', 'mine', name)[0], 6)
        assert (tokens.numpy() == ROWS[: len(want)]).all()
        assert (there.numpy() == want).all()


@pytest.mark.parametrize('is_given', [[0, 1, 1, 0, 1], [0, 1, 0, 1, 1], [1, 1, 0]])
def test_a_block_of_a_stream_is_longer_than_what_is_given(is_given):
    stream = Split(2**15 * np.array(is_given, '<u2'), True)
    check_length(stream, 3, 'mine')
    with one_line('has 2 given tokens in a row: block_size must be larger'):
        check_length(stream, 2, 'mine')


@pytest.fixture
def mine():
    """The Meta of data/mine, train and val of a.npy; b, wide and large are other files."""
    np.save('a.npy', ROWS)
    np.save('b.npy', ROWS[:, ::-1])
    np.save('wide.npy', ROWS[:, :4])
    np.save('large.npy', ROWS + 1)
    return prepare_tokens('data', 'mine', 'a.npy', shape='2x3')


def test_the_same_set_is_not_written_again(mine):
    again = prepare_tokens('data', 'mine', 'a.npy', shape='2x3')
    assert again == read_meta('data/mine') == mine
    for source, shape in (('b', '2x3'), ('a', '3x2')):
        with one_line('--force replaces it'):
            prepare_tokens('data', 'mine', f'{source}.npy', shape=shape)


@pytest.mark.parametrize(
    'source, shape, said',
    [
        ('wide', '2x2', 'another kind .row_length, shape.'),
        ('b', '3x2', r'another kind \(shape\)'),
        ('large', '2x3', 'token 7, and there are only 7 in data/mine'),
        ('a', '2x3', 'is the source of train already'),
    ],
)
def test_a_split_that_is_added_must_be_of_the_same_kind(mine, source, shape, said):
    with one_line(said):
        prepare_tokens('data', 'mine', f'{source}.npy', split='test', shape=shape)


def test_a_split_that_is_missing_names_its_command(mine):
    meta = prepare_tokens('data', 'mine', 'b.npy', split='test', shape='2x3')
    assert [*meta.splits] == ['train', 'val', 'test']
    os.remove('data/mine/test.bin')
    with one_line('prepare.py tokens --name=mine --source=FILE .* --split=test'):
        open_split('data', 'mine', 'test')


@pytest.mark.parametrize('most, is_wide', [(2**15 - 1, False), (2**15, True), (2**24 - 1, True)])
def test_ids_and_what_is_given_stand_in_as_many_bits_as_they_need(folder, most, is_wide):
    train = np.array([[0, most, 3], [most, 1, 2]])
    test = np.array([[1, 2, 3]])
    given = np.array([True, False, False])
    np.savez('train.npz', train=train, val=train[::-1], given=given)
    np.savez('test.npz', test=test, given=given)
    prepare_tokens('data', 'a', 'train.npz')
    meta = prepare_tokens('data', 'a', 'test.npz')
    assert meta.n_tokens == most + 1
    for name, wanted in (('train', train), ('val', train[::-1]), ('test', test)):
        split = read_split('data/a', meta, name)
        assert split.packed.dtype == np.dtype('<u4' if is_wide else '<u2')
        tokens, is_given = split.unpack(split.packed.astype(np.int64))
        assert (tokens == wanted).all()
        assert (is_given == given).all()


def npz(**arrays):
    return lambda: np.savez('a.npz', **arrays)


def npy(array, **how):
    return lambda: np.save('a.npy', array, **how)


GIVEN = np.zeros((4, 6), bool)


@pytest.mark.parametrize(
    'write, options, said',
    [
        (npy(ROWS - 1), [], 'array of a.npy must hold integers from 0 to 16,777,215, got -1'),
        (npy(ROWS + 2**24 - 6), [], 'from 0 to 16,777,215, got 16777216'),
        (npy(ROWS / 2), [], 'must hold integers, got float64'),
        (npy(ROWS * 1j), [], 'must hold integers, got complex128'),
        (npy(ROWS > 2), [], 'must hold integers, got bool'),
        (npy(ROWS[None]), [], r'rows \(rows, N\) or a stream \(n,\), got an array \(1, 4, 6\)'),
        (npy(ROWS[:0]), [], 'is empty'),
        (
            npy(np.array([{}, 1], object), allow_pickle=True),
            [],
            'a.npy cannot be read as integers: .*without pickled',
        ),
        (
            npy(ROWS),
            ['--shape=2x4'],
            r'must be rows of 8 tokens, by --shape, got an array \(4, 6\)',
        ),
        (npy(ROWS), ['--shape=2'], 'shape must be HxW, as 8x8'),
        (
            npy(ROWS[0]),
            ['--shape=2x3'],
            r'must be rows of 6 tokens, by --shape, got an array \(6,\)',
        ),
        (npy(ROWS), ['--end=9'], 'of a stream, got 9 for rows of 6'),
        (npy(ROWS), ['--end=x'], 'end must be an integer'),
        (npy(ROWS), ['--tokenizer=bytes'], 'tokenizer is for other data sets'),
        (npy(ROWS[:1]), [], 'holds one row, which cannot be divided'),
        (npy(ROWS), ['--vocabulary=few.txt'], 'has the token 6, and there are only 3 names'),
        (npy(ROWS), ['--vocabulary=twice.txt'], "each once and without blanks or .*got 'a'"),
        (npy(ROWS), ['--vocabulary=blank.txt'], "without blanks or .*got 'a b'"),
        (
            npz(train=ROWS, val=ROWS[:, :5]),
            [],
            "rows of one length, or all streams, got {'train': 6, 'val': 5}",
        ),
        (npz(train=ROWS, val=ROWS[0]), [], "got {'train': 6, 'val': None}"),
        (npz(train=ROWS, val=ROWS[:0]), [], 'val of a.npz is empty'),
        (npz(train=ROWS), ['--split=train'], 'names its splits itself'),
        (npz(x=ROWS), [], 'must hold the arrays train, val, test'),
        (
            npz(train=ROWS, given_train=GIVEN[:2]),
            [],
            r'given of train of a.npz must be bools of shape \(4, 6\)',
        ),
        (npz(train=ROWS, given=GIVEN.astype(int)), [], 'must be bools'),
        (npz(train=ROWS, given=~GIVEN[0]), [], 'row 0 .* is given as a whole'),
        (npz(train=ROWS, val=ROWS, given_train=GIVEN), [], 'not in val: add given_val'),
        (npy(ROWS[0, :1]), [], 'train of a.npy, sha256 .* would be empty'),
    ],
)
def test_wrong_tokens_are_one_line_and_write_nothing(folder, write, options, said):
    write()
    (source,) = os.listdir()
    for name, names in (('few', 'abc'), ('twice', 'abca'), ('blank', ['a b', *'bcdefg'])):
        (folder / f'{name}.txt').write_text('\n'.join(names))
    with one_line(said):
        run_command('tokens', f'--source={source}', '--data_dir=data', *options)
    assert not glob.glob('data/*')


def run_command(*words):
    command.main(configure(vars(command), [*words]))


@pytest.mark.parametrize('option', ['--end=3', '--shape=8x8', '--vocabulary=a.txt'])
def test_options_of_tokens_are_for_tokens_alone(option):
    with one_line('is for other data sets than pydocs: leave it out'):
        run_command('pydocs', option)


@pytest.fixture
def of_mine(folder):
    """data/mine, three splits of grids 2 x 3 with names for their tokens."""
    np.savez('a.npz', train=ROWS, val=ROWS[:2], test=ROWS[1:])
    names = [f'n{i}' for i in range(7)]
    (folder / 'names.txt').write_text('\n'.join(names))
    prepare_tokens('data', 'mine', 'a.npz', shape='2x3', vocabulary='names.txt')


@pytest.mark.parametrize('options', [['--order=columns'], ['--network=mixed', '--l2r_ratio=0']])
def test_every_command_works_on_a_set_of_tokens(of_mine, script, options):
    pytest.importorskip('safetensors')
    _, whole = trained('mine', 6, '--max_iters=4', *options)
    assert whole['config']['shape'] == [2, 3]

    trained('mine', 6, '--max_iters=2', '--out_dir=parts', *options)
    train.main(configure(vars(train), ['--init_from=resume', '--out_dir=parts', '--max_iters=4']))
    resumed = torch.load('parts/ckpt.pt', weights_only=True)
    assert resumed['model'].keys() == whole['model'].keys()

    script('anyorder.extras.hub', '--ckpt=out_mine/ckpt.pt', '--out=hf')
    np.save('rows.npy', [[1, -1, 3, 4, -1, 6]])
    for ckpt in ('out_mine/ckpt.pt', 'hf'):
        of_ckpt = [f'--ckpt={ckpt}']
        of_test = [*of_ckpt, '--data_dir=data', '--split=test']
        written = ['--prompt=FILE:rows.npy', '--order=spiral', '--html=p.html']
        said = script('sample.py', *of_ckpt, *written).stdout
        assert re.search(r'n1 n\d n3\nn4 n\d n6\n', said)
        assert 'spiral' in said

        measured = ['--datasets=mine', '--orders=rows,spiral']
        said = script('eval_ppl.py', *of_test, *measured).stdout
        assert 'mine (test)' in said
        assert 'nats/block' in said
        assert 'rows x 1' in said

        solved = ['--dataset=mine', '--blanks=5', '--orders=columns,margin']
        said = script('anyorder.extras.puzzles', 'solve', *of_test, *solved).stdout
        assert '3 rows of 6 tokens, 83% given' in said


def test_a_plan_names_the_tokens_of_a_set(of_mine, script):
    said = script('train.py', '--plan=H100', '--dataset=mine', '--block_size=6').stdout
    assert 'own, as mine was prepared' in said


def test_a_block_of_another_length_than_a_row_is_one_line(of_mine):
    with one_line('rows of mine/train are 6 tokens: block_size must be 6, got 8'):
        trained('mine', 8)
