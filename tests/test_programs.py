"""The programs beside the pages: what they write and measure, on toys."""

import json
import os
import re
import subprocess

import numpy as np
import pytest
import torch
from conftest import ROOT, make_model
from test_readme import commands
from torch.utils.flop_counter import FlopCounterMode

from anyorder.checkpoint import save_checkpoint
from anyorder.tokens.prepared import prepare
from configurator import configure
from model import EMA
from results.chorales import bach
from results.gpu import gpt2, machine
from results.tokenizers import books


def run(program, *args):
    program.main(configure(vars(program), list(args)))


# --------------------------------------------------------------------------------------------------
# chorales and digits

N_FRAMES = (33, 50)  # of two pieces


@pytest.fixture
def chorales(script, tmp_path):
    """The files that chorales.py writes of two short pieces a split, in the folder of the test."""
    rng = np.random.default_rng(0)
    pieces = {}
    for split in ('train', 'valid', 'test'):
        pieces[split] = [rng.integers(60, 73, (n, 4)).tolist() for n in N_FRAMES]
    pieces['test'][0][3][2] = -1
    source = pieces | {'test': pieces['test'] * 181}
    (tmp_path / 'chorales.json').write_text(json.dumps(source))
    script('results/chorales/chorales.py', 'chorales.json')
    return pieces


def test_the_rows_of_chorales_are_their_pieces(chorales):
    with open('chorales.txt') as f:
        names = f.read().split()
    assert len(names) == 47
    assert names[:2] == ['rest', 'C2']
    rows = np.load('chorales.npz')
    pitches = rows['val'].reshape(-1, 4, 32).transpose(0, 2, 1) + 35
    assert (pitches == [piece[:32] for piece in chorales['valid']]).all()
    assert rows['test'][0].reshape(4, 32)[2, 3] == 0
    assert len(rows['train']) == 12 * (1 + 3)
    has_blanks = (np.load('melody.npy').reshape(2, 4, 32) < 0).any((0, 2))
    assert has_blanks.tolist() == [False, True, True, True]
    allowed = np.load('allowed.npy')[None]
    assert np.take_along_axis(allowed, rows['val'][..., None].astype(int), 2).mean() > 0.9


def test_a_whole_chorale_is_scored_once_a_frame(chorales):
    piece = np.load('pieces_test.npy')
    scored = np.bincount(piece, (~np.load('pieces.npz')['given_test']).sum(1))
    assert scored[:2].tolist() == [4 * n for n in N_FRAMES]


def test_frames_of_chorales_are_drawn_whole():
    order = bach.random_frames(torch.rand(50, 128), (4, 32), None)
    frames = (order % 32).view(50, 32, 4)
    assert (frames == frames[..., :1]).all()
    assert len(frames[:, 0, 0].unique()) > 10


@pytest.mark.slow
def test_the_nats_of_pieces_are_those_of_eval_ppl(chorales, script):
    for name in ('chorales', 'pieces'):
        source = [f'--name={name}', f'--source={name}.npz', '--vocabulary=chorales.txt']
        script('data/prepare.py', 'tokens', *source, '--shape=4x32', '--data_dir=data')
    for folder in ('config', 'results'):
        os.symlink(os.path.join(ROOT, folder), folder)
    page = commands('results/chorales/README.md')
    (training,) = (words[2:] for words in page if any('bach.py:mixed' in word for word in words))
    tiny = ['--n_layer=1', '--n_embd=16', '--max_iters=2', '--batch_size=2', '--eval_iters=1']
    script('train.py', *training, *tiny)
    orders = '--orders=columns,results/chorales/bach.py:random_frames'
    asked = ['--datasets=pieces', '--split=test', '--n_orders=2', orders, '--out=p.json']
    said = script('eval_ppl.py', '--ckpt=out/chorales/ckpt.pt', *asked).stdout
    by_piece = script('results/chorales/by_piece.py', 'p.json.blocks.jsonl').stdout
    nats = float(re.search(r'columns x 2 +([\d.]+)', said)[1])
    found = float(re.search(r'columns +([\d.]+)', by_piece)[1])
    assert found == pytest.approx(4 * nats, abs=3e-4)


def test_digits_are_split_and_halved(script):
    pytest.importorskip('sklearn')
    script('results/digits/digits.py')
    rows = np.load('labelled.npz')
    shapes = [rows[split].shape for split in ('train', 'val', 'test')]
    assert shapes == [(1397, 65), (200, 65), (200, 65)]
    assert rows['train'].max() == 26
    half = np.load('half.npy')
    assert (half[:, :32] == rows['test'][:16, :32]).all()
    assert (half[:, 32:] == -1).all()


def test_sums_are_right_and_each_stands_once(script):
    script('results/answers/sums.py')
    with open('sums.jsonl') as f:
        rows = [json.loads(line) for line in f]
    asked = set()
    for row in rows:
        a, b = map(int, re.findall(r'\d+', row['prompt']))
        assert int(row['text']) == a + b
        asked.add(frozenset([a, b]))
    assert len(rows) == len(asked) == 5050


# --------------------------------------------------------------------------------------------------
# lengths


def test_the_lengths_of_a_model_are_measured(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'words.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 60)
    prepare('text', 'data', source='words.txt', tokenizer='bytes', name='words')
    model = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    config = {'dataset': 'words', 'data_dir': 'data'}
    save_checkpoint('ckpt.pt', model, ema=EMA(model, 0.9), tokenizer='bytes', config=config)
    said = script('results/lengths/lengths.py', 'blanks', '--ckpt=ckpt.pt', '--n_blanks=20').stdout
    lines = said.splitlines()
    assert [line[:14].strip() for line in lines] == ['exact', 'CAL']
    for line in lines:
        right, within_1, *_ = map(float, re.findall(r' ([\d.]+) ±', line))
        assert right <= within_1 <= 100


# --------------------------------------------------------------------------------------------------
# books in three tokenizers


def test_books_count_the_same_bytes_in_each_tokenizer(tmp_path, monkeypatch):
    pytest.importorskip('tokenizers')
    monkeypatch.chdir(tmp_path)
    source = [json.dumps({'text': text, 'year': 1900}) for text in ('rain, né wind ' * 9, 'x' * 50)]
    (tmp_path / 'books.jsonl').write_text('\n'.join(source))
    run(books, 'texts', '--source=books.jsonl', '--n_letters=40', '--out=val.jsonl')
    kept = [json.loads(line)['text'] for line in (tmp_path / 'val.jsonl').read_text().splitlines()]
    assert kept == [('rain, né wind ' * 9)[:40], 'x' * 40]
    n_bytes = sum(len(text.encode()) for text in kept)
    prepare('text', str(tmp_path), 'learned', 'books.jsonl', 'train', 'bpe:280')
    prepare('text', str(tmp_path), 'learned', 'val.jsonl', 'val')
    prepare('text', str(tmp_path), 'bytes', 'val.jsonl', 'val', 'bytes')
    found = {name: books.measure_text(str(tmp_path), name) for name in ('learned', 'bytes')}
    assert [n for _, n, _ in found.values()] == [n_bytes, n_bytes]
    assert found['bytes'][0] == n_bytes + 2  # the ends
    assert found['learned'][0] < found['bytes'][0]
    row = {'bits_per_byte': 2.0, 'stderr': 0.03, 'nats_per_token': 1.5}
    assert books.bits_of(row) == '2.0000 ± 0.0400'


# --------------------------------------------------------------------------------------------------
# what stands beside ours on a GPU

TINY = ['--n_layer=2', '--n_head=2', '--n_embd=16', '--block_size=9', '--vocab_size=11']
TINY += ['--n_tokens=11']


def test_a_machine_says_what_it_is(script, monkeypatch):
    found = json.loads(script('results/gpu/machine.py', '--device=cpu').stdout)
    assert found['device type'] == 'cpu'
    assert found['torch'] == torch.__version__
    asked = subprocess.CompletedProcess([], 0, stdout='580.65.06\n')
    monkeypatch.setattr(subprocess, 'run', lambda *_, **__: asked)
    assert machine.driver(0) == '580.65.06'
    monkeypatch.undo()
    monkeypatch.setenv('PATH', '')
    assert machine.driver(0) == 'unknown'


def test_gpt2_is_that_of_transformers():
    """The same logits, hence loss, from the same weights."""
    transformers = pytest.importorskip('transformers')
    config = configure(vars(gpt2), TINY)
    ours = gpt2.GPT2(config).double()
    sizes = dict(vocab_size=11, n_positions=9, n_layer=2, n_head=2, n_embd=16)
    dropout = dict(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    network = transformers.GPT2Config(**sizes, **dropout, activation_function='gelu')
    theirs = transformers.GPT2LMHeadModel(network).double()
    with torch.no_grad():
        for name, p in ours.named_parameters():
            of_theirs = name.replace('.c_attn', '.attn.c_attn').replace('.c_proj', '.attn.c_proj')
            of_theirs = of_theirs.replace('mlp.0', 'mlp.c_fc').replace('mlp.2', 'mlp.c_proj')
            weight = theirs.transformer.get_parameter(of_theirs)
            p.copy_(weight.T if '.c_' in of_theirs else weight)
    idx = torch.randint(11, (3, 10), generator=torch.Generator().manual_seed(0))
    want = theirs(idx[:, :-1]).logits.log_softmax(-1).gather(2, idx[:, 1:, None])
    torch.testing.assert_close(ours(idx[:, :-1], idx[:, 1:]), -want.mean())


def test_flops_of_gpt2_count_the_matrix_products():
    config = configure(vars(gpt2), TINY)
    model = gpt2.GPT2(config)
    idx = torch.zeros(5, 9, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(idx, idx).backward()
    attention = 6 * 5 * 9 * 9 * 16 * 2  # 6 N C a token and layer
    counts = counter.get_flop_counts()['Global']
    assert model.flops(5, config) == counts[torch.ops.aten.mm] + attention


def test_an_update_of_gpt2_is_timed(script):
    how = ['--batch_size=2', '--n_updates=1', '--repeats=1', '--compile=False', '--device=cpu']
    assert '\nGPT-2 ' in script('results/gpu/gpt2.py', *TINY, *how).stdout


# --------------------------------------------------------------------------------------------------
# an example of docs/lm_eval.md


def test_rows_for_lm_eval_are_of_the_documents(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [f'{name} said that word. ' * 20 for name in ('Anna', 'Bert', 'Carl', 'Dora')]
    with open('texts.jsonl', 'w') as f:
        f.writelines(json.dumps({'text': text}) + '\n' for text in texts)
    options = ['--source=texts.jsonl', '--name=said', '--tokenizer=bytes', '--split=val']
    script('data/prepare.py', 'text', *options, '--data_dir=data')
    script('docs/examples/rows.py', '--dataset=said', '--n_rows=5', '--out_dir=rows')
    rows = {}
    for name in ('text', 'choice'):
        with open(f'rows/{name}.jsonl') as f:
            rows[name] = [json.loads(line) for line in f]
    assert [row['text'] for row in rows['text']] == texts
    for row in rows['choice']:
        right = row['context'] + row['choices'][row['label']]
        assert any(right in text for text in texts)
    assert len(rows['choice']) == 5
