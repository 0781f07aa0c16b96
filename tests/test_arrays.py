"""Sets of tokens: the same as text and puzzles where these hold, their kinds and splits, and wrong sources."""

import gzip
import json
import os
import re

import numpy as np
import pytest
import torch
from conftest import one_line

import train
from anyorder.datasets import open_split
from anyorder.tokens.arrays import prepare_tokens
from anyorder.tokens.blocks import all_blocks, check_length, only_blank
from anyorder.tokens.meta import kind_of, read_meta
from anyorder.tokens.prepared import prepare
from anyorder.tokens.puzzles import prepare_puzzles
from anyorder.tokens.sets import Split
from anyorder.tokens.tokenizers import tokenizer_of_set
from configurator import configure
from data import prepare as command

ROWS = np.arange(24).reshape(4, 6) % 7


def trained(name, n, *options):
    """The log of a short run on data/NAME, without what depends on time, and its weights."""
    train.main(
        configure(
            vars(train),
            [
                f'--dataset={name}',
                f'--block_size={n}',
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
                f'--out_dir=out_{name}',
                *options,
            ],
        )
    )
    with open(f'out_{name}/log.jsonl') as f:
        log = [json.loads(line) for line in f]
    state = torch.load(f'out_{name}/ckpt.pt', weights_only=True)
    return [
        {k: v for k, v in line.items() if 'loss' in k or 'val' in k or 'norm' in k} for line in log
    ], state


@pytest.mark.parametrize('options', [[], ['--attention=bidirectional', '--l2r_ratio=0']])
def test_puzzles_through_tokens_are_the_same_run(tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    prepare_puzzles('sudoku4', 'data', n_rows={'train': 60, 'val': 20, 'test': 5})
    arrays = {}
    for split in ('train', 'val', 'test'):
        tokens, given = all_blocks(open_split('data', 'sudoku4', split)[0], 16)
        arrays |= {split: tokens.numpy(), f'given_{split}': given.numpy()}
    np.savez('mine.npz', **arrays)
    prepare_tokens('data', 'mine', 'mine.npz', shape='4x4')
    for split in ('train', 'val', 'test'):
        with (
            open(f'data/sudoku4/{split}.bin', 'rb') as a,
            open(f'data/mine/{split}.bin', 'rb') as b,
        ):
            assert a.read() == b.read()
    (log, state), (log_of_mine, mine) = (
        trained('sudoku4', 16, *options),
        trained('mine', 16, *options),
    )
    assert log == log_of_mine and all(
        torch.equal(p, mine['model'][name]) for name, p in state['model'].items()
    )
    assert mine['set']['shape'] == [4, 4] and mine['set']['given'] and 'puzzle' not in mine['set']


def test_a_text_through_tokens_is_the_same_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f'{{"text": "the quick brown fox {i} jumps over the lazy dog"}}' for i in range(30)]
    (tmp_path / 'a.jsonl').write_text('\n'.join(lines))
    prepare('text', 'data', 'words', 'a.jsonl', tokenizer='bytes')
    documents = [list(json.loads(line)['text'].encode()) for line in lines]
    (tmp_path / 'b.jsonl').write_text('\n'.join(map(json.dumps, documents)))
    meta = prepare_tokens('data', 'mine', 'b.jsonl', end=256)
    for split in ('train', 'val'):
        with open(f'data/words/{split}.bin', 'rb') as a, open(f'data/mine/{split}.bin', 'rb') as b:
            assert a.read() == b.read()
    assert (meta.n_tokens, meta.eos, meta.splits['val'].rows) == (257, 256, 3)
    (log, state), (log_of_mine, mine) = trained('words', 8), trained('mine', 8)
    assert log == log_of_mine and all(
        torch.equal(p, mine['model'][name]) for name, p in state['model'].items()
    )


def test_every_kind_of_file_holds_the_same_rows(tmp_path, monkeypatch):
    from pyarrow import parquet, table

    monkeypatch.chdir(tmp_path)
    np.save('a.npy', ROWS.astype(float))
    np.savez('a.npz', test=ROWS)
    (tmp_path / 'a.jsonl').write_text('\n'.join(map(json.dumps, ROWS.tolist())))
    parquet.write_table(table({'ids': ROWS.tolist()}), 'a.parquet')
    (tmp_path / 'names.txt').write_text('\n'.join('abcdefg'))
    for ending in ('npy', 'npz', 'jsonl', 'parquet'):
        meta = prepare_tokens(
            'data',
            ending,
            f'a.{ending}',
            split='' if ending == 'npz' else 'test',
            shape='2x3',
            vocabulary='names.txt',
        )
        split, _ = open_split('data', ending, 'test')
        assert split.packed.tolist() == ROWS.tolist() and not split.marked
        tokenizer = tokenizer_of_set(kind_of(meta))
        assert tokenizer.decode([0, 6, 2]) == 'a g c' and tokenizer.encode(' a  g c') == [0, 6, 2]
    for name, source in (
        ('stream', ROWS[0]),
        ('rows', ROWS),
    ):  # without a shape lists are documents
        np.save(f'{name}.npy', source)
        meta = prepare_tokens('data', name, f'{name}.npy', force=True)
        assert meta.row_length == {'stream': None, 'rows': 6}[name]
        assert (
            sum(open_split('data', name, s)[0].packed.size for s in ('train', 'val')) == source.size
        )
    assert (
        prepare_tokens('data', 'lists', 'a.jsonl', split='test', end=9).splits['test'].tokens == 28
    )


@pytest.mark.parametrize(
    'name',
    ['a.NPY', 'a.Npz', 'a.PARQUET', 'a.JSONL', 'a.Jsonl.GZ', 'caf\udce9.npy', '\udce9.parquet'],
)
def test_names_and_endings_of_files_are_free(tmp_path, monkeypatch, name):
    from pyarrow import parquet, table

    monkeypatch.chdir(tmp_path)
    with open(name, 'wb') as f:
        match name.lower().split('.')[1:]:
            case ['npy']:
                np.save(f, ROWS)
            case ['npz']:
                np.savez(f, test=ROWS)
            case ['parquet']:
                parquet.write_table(table({'tokens': ROWS.tolist()}), f)
            case ['jsonl', *packed]:
                lines = '\n'.join(map(json.dumps, ROWS.tolist())).encode()
                f.write(gzip.compress(lines) if packed else lines)
    prepare_tokens('data', 'mine', name, split='' if name.endswith('.Npz') else 'test', shape='2x3')
    assert np.array_equal(open_split('data', 'mine', 'test')[0].packed, ROWS)


def test_given_positions_of_all_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = np.arange(6) < 2
    np.savez('a.npz', train=ROWS, val=ROWS[:1], given=given, given_val=~given[None])
    prepare_tokens('data', 'mine', 'a.npz')
    for name, want in (('train', np.broadcast_to(given, ROWS.shape)), ('val', ~given[None])):
        tokens, there = all_blocks(open_split('data', 'mine', name)[0], 6)
        assert (tokens.numpy() == ROWS[: len(want)]).all() and (there.numpy() == want).all()
    assert only_blank('1,3:5', tokens, there)[0].tolist() == [True, False, True, False, False, True]
    for positions in ('6', '3:3', 'x', '1:', ':2', '-1', '1,,2'):
        with one_line('blanks must be positions from 0 to 5'):
            only_blank(positions, tokens, there)
    stream = Split(np.array([1, 2**15, 2**15, 3, 2**15], '<u2'), True)
    check_length(stream, 3, 'mine')
    with one_line('has 2 given tokens in a row: block_size must be larger'):
        check_length(stream, 2, 'mine')


def test_a_split_that_is_added_must_be_of_the_same_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, rows in (
        ('a', ROWS),
        ('b', ROWS[:, ::-1]),
        ('wide', ROWS[:, :4]),
        ('large', ROWS + 1),
    ):
        np.save(f'{name}.npy', rows)
    meta = prepare_tokens('data', 'mine', 'a.npy', shape='2x3')
    assert prepare_tokens('data', 'mine', 'a.npy', shape='2x3') == read_meta('data/mine') == meta
    for source, shape, said in (
        ('wide', '2x2', 'another kind .row_length, shape.'),
        ('b', '3x2', r'another kind \(shape\)'),
        ('large', '2x3', 'token 7, and there are only 7 in data/mine'),
        ('a', '2x3', 'is the source of train already'),
    ):
        with one_line(said):
            prepare_tokens('data', 'mine', f'{source}.npy', split='test', shape=shape)
    for source, shape in (('b', '2x3'), ('a', '3x2')):
        with one_line('--force replaces it'):
            prepare_tokens('data', 'mine', f'{source}.npy', shape=shape)
    assert [*prepare_tokens('data', 'mine', 'b.npy', split='test', shape='2x3').splits] == [
        'train',
        'val',
        'test',
    ]
    os.remove('data/mine/test.bin')
    with one_line(
        'python data/prepare.py tokens --name=mine --source=FILE --shape=2x3 --split=test'
    ):
        open_split('data', 'mine', 'test')


def npz(**arrays):
    return lambda: np.savez('a.npz', **arrays)


def npy(array, **how):
    return lambda: np.save('a.npy', array, **how)


def text(content):
    return lambda: open('a.jsonl', 'w').write(content)


GIVEN = np.zeros((4, 6), bool)


@pytest.mark.parametrize(
    'write, options, said',
    [
        (
            npy(ROWS - 1),
            [],
            r'array of a.npy must hold integers from 0 to 65,535, got -1 at \[0, 0\]',
        ),
        (npy(ROWS + 65530), [], r'from 0 to 65,535, got 65536 at \[1, 0\]'),
        (npy(ROWS / 2), [], r'got 0.5 at \[0, 1\]'),
        (npy(np.where(ROWS == 3, np.nan, ROWS)), [], r'got nan at \[0, 3\]'),
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
        (npy(ROWS), ['--end=9'], 'behind the documents of a stream, got 9 for rows of 6'),
        (npy(ROWS), ['--end=x'], 'tokens have an integer --end'),
        (npy(ROWS), ['--tokenizer=bytes'], 'no --tokenizer'),
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
        (
            npz(train=ROWS + 32767, given=GIVEN),
            [],
            'from 0 to 32,767, got 32768 .*bit 15 says what is given',
        ),
        (npy(ROWS[0, :1]), [], 'train of a.npy, sha256 .* would be empty'),
        (text('[1, 2, 3]\n[]'), [], 'val of .* would be empty'),
        (text('[1, 2]\n[1, "x"]'), [], 'list 1 of the array of a.jsonl must hold integers'),
        (text('[1, [2]]'), [], 'a.jsonl cannot be read as integers'),
        (text('[1, 2]\n[1]'), ['--shape=1x2'], 'list 1 of .* has 1 tokens, --shape says 2'),
        (text('[1, 2]\n[1, 3]'), ['--end=3'], 'end must be a token that no document holds'),
        (text(''), [], 'is empty'),
        (text('[]'), [], 'is empty'),
        (text('3'), [], 'a.jsonl cannot be read as integers'),
    ],
)
def test_wrong_tokens_are_one_line_and_write_nothing(tmp_path, monkeypatch, write, options, said):
    monkeypatch.chdir(tmp_path)
    write()
    (source,) = os.listdir()
    for name, names in (('few', 'abc'), ('twice', 'abca'), ('blank', ['a b', *'bcdefg'])):
        (tmp_path / f'{name}.txt').write_text('\n'.join(names))
    with one_line(said):
        command.main(
            configure(vars(command), ['tokens', f'--source={source}', '--data_dir=data', *options])
        )
    assert not os.path.exists('data') or not os.listdir('data')


def test_options_of_tokens_are_for_tokens_alone():
    for option in ('--end=3', '--shape=8x8', '--vocabulary=a.txt'):
        with one_line('are for tokens, not for pydocs'):
            command.main(configure(vars(command), ['pydocs', option]))


@pytest.mark.parametrize('options', [['--order=columns'], ['--attention=mixed', '--l2r_ratio=0']])
def test_every_command_works_on_a_set_of_tokens(tmp_path, monkeypatch, script, options):
    pytest.importorskip('safetensors')
    monkeypatch.chdir(tmp_path)
    np.savez('a.npz', train=ROWS, val=ROWS[:2], test=ROWS[1:])
    (tmp_path / 'names.txt').write_text('\n'.join(f'n{i}' for i in range(7)))
    prepare_tokens('data', 'mine', 'a.npz', shape='2x3', vocabulary='names.txt')
    _, whole = trained('mine', 6, '--max_iters=4', *options)
    trained('mine', 6, '--max_iters=2', '--out_dir=parts', *options)
    train.main(configure(vars(train), ['--init_from=resume', '--out_dir=parts', '--max_iters=4']))
    resumed = torch.load('parts/ckpt.pt', weights_only=True)['model']
    assert resumed.keys() == whole['model'].keys() and whole['config']['shape'] == [2, 3]
    assert (
        'own, as mine was prepared'
        in script('train.py', '--plan=H100', '--dataset=mine', '--block_size=6').stdout
    )
    script('export_hf.py', '--ckpt=out_mine/ckpt.pt', '--out=hf')
    np.save('rows.npy', [[1, -1, 3, 4, -1, 6]])
    for ckpt in ('out_mine/ckpt.pt', 'hf'):
        said = script(
            'sample.py',
            f'--ckpt={ckpt}',
            '--prompt_file=rows.npy',
            '--order=spiral',
            '--html=p.html',
        ).stdout
        assert re.search(r'n1 n\d n3\nn4 n\d n6\n', said) and 'spiral' in said
        of_mine = f'--ckpt={ckpt}', '--data_dir=data', '--split=test'
        said = script(
            'eval_ppl.py', *of_mine, '--datasets=mine', '--blanks=3:6', '--orders=rows,spiral'
        ).stdout
        assert 'mine (test), blanks 3:6' in said and 'nats/block' in said and 'rows x 1' in said
        said = script(
            'eval_puzzle.py', *of_mine, '--dataset=mine', '--blanks=5', '--policies=columns,margin'
        ).stdout
        assert '3 rows of 6 tokens, 83% given' in said
    with one_line('rows of mine/train are 6 tokens: block_size must be 6, got 8'):
        trained('mine', 8)
