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
from anyorder.likelihood.conditional import conditional_logprob
from anyorder.orders import Order
from anyorder.tokens.prepared import prepare
from configurator import Config, configure
from model import EMA
from results.chorales import bach
from results.gpu import gpt2, machine
from results.infilling import infilling
from results.repeated import repeat
from results.stargraphs import stargraphs
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
# lengths, infilling


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


CONFIG = Config(batch_size=2, seed=1)
PLAIN = Config(run={}, order=Order('random'))
MARKED = Config(run={'fim_ratio': 0.5}, order=Order('l2r'))


@pytest.fixture
def middles():
    """texts (4, 6), and a gap in each, blank (4, 6)."""
    texts = torch.randint(8, (4, 6), generator=torch.Generator().manual_seed(0))
    blank = torch.zeros(4, 6, dtype=torch.bool)
    for row, (start, end) in zip(blank, ((2, 5), (0, 3), (3, 6), (1, 4))):
        row[start:end] = True
    return texts, blank


def test_a_middle_in_any_order_is_conditional(middles):
    model = make_model()
    nats = infilling.nats_of(PLAIN, model, *middles, 'sides', CONFIG)
    for r, (text, row) in enumerate(zip(*middles)):
        inside = row.nonzero()[:, 0]
        outside = (~row).nonzero()[:, 0]
        logprob = conditional_logprob(model, text[None], inside, outside)
        assert float(nats[r]) == pytest.approx(-float(logprob), abs=1e-6)
    half = torch.tensor([[True, False] * 3] * 4)
    sides, random = (
        infilling.nats_of(PLAIN, model, middles[0], half, way, CONFIG)
        for way in ('sides', 'random')
    )
    assert random.shape == (4,)
    assert not torch.equal(random, sides)


def test_a_middle_behind_its_marks_is_a_naive_loop(middles):
    model = make_model(vocab_size=11, n_tokens=8)
    behind = infilling.nats_of(MARKED, model, *middles, 'sides', CONFIG)
    before = infilling.nats_of(MARKED, model, *middles, 'before', CONFIG)
    for r, (text, row) in enumerate(zip(*middles)):
        first, last = row.nonzero()[[0, -1], 0].tolist()
        left, middle, right = (
            text[:first].tolist(),
            text[first : last + 1].tolist(),
            text[last + 1 :].tolist(),
        )
        marked = nats_behind(model, [8, *left, 9, *right, 10], middle)
        assert float(behind[r]) == pytest.approx(marked, abs=1e-6)
        assert float(before[r]) == pytest.approx(nats_behind(model, left, middle), abs=1e-6)
    half = torch.tensor([[True, False] * 3] * 4)  # a middle is one gap
    assert infilling.nats_of(MARKED, model, middles[0], half, 'sides', CONFIG) is None


def nats_behind(model, start, tokens):
    """Nats of tokens behind `start`, from left to right, one at a time."""
    idx = torch.tensor([[*start, *tokens]])
    order = torch.arange(idx.size(1))[None]
    nats = 0.0
    for d in range(len(start), idx.size(1)):
        law = model.predict(idx, order, d, 1).log_softmax(-1)[0, 0]
        nats -= float(law[idx[0, d]])
    return nats


# --------------------------------------------------------------------------------------------------
# star graphs, facts, repeated text


@pytest.mark.parametrize('degree, n_edges', [(3, 0), (2, 12)])
def test_a_path_of_a_star_follows_from_its_end_by_the_parents(
    tmp_path, monkeypatch, degree, n_edges
):
    monkeypatch.chdir(tmp_path)
    sizes = ['--n_train=60', '--n_val=20', f'--degree={degree}', f'--n_edges={n_edges}']
    run(stargraphs, 'rows', *sizes, '--out=star.npz')
    star = np.load('star.npz')
    assert star['train'].shape == (60, 30)
    assert star['given'].tolist() == [True] * 26 + [False] * 4
    places = set()
    for row in [*star['train'].tolist(), *star['val'].tolist()]:
        edges = list(zip(row[:24:2], row[1:24:2]))
        goal, start, *path = row[24:]
        parent = {b: a for a, b in edges}
        walked = [goal]
        while walked[-1] != start:
            walked.append(parent[walked[-1]])
        assert walked[::-1] == [start, *path]
        assert len({*edges}) == len(parent) == 4 * degree
        neighbours = [b for a, b in dict.fromkeys(edges) if a == start]
        assert len(neighbours) == degree
        places.add(neighbours.index(path[0]))
    assert places == {*range(degree)}

    run(stargraphs, 'rows', *sizes, '--read=True', '--out=read.npz')
    read = np.load('read.npz')
    assert (read['train'] == star['train']).all()
    assert not read['given'].any()


def test_a_fact_is_trained_backward_or_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = ['--n_facts=40', '--n_names=12', '--n_relations=3']
    run(stargraphs, 'facts', *sizes, '--out=facts.npz')
    facts = np.load('facts.npz')
    forward = {tuple(row) for row in facts['train'][:40].tolist()}
    trained = facts['train'][40:].tolist()
    asked = facts['val'].tolist()
    assert len(trained) == len(asked) == 20
    assert {(c, d, r - 3, a, b) for a, b, r, c, d in trained + asked} == forward


def test_a_star_that_is_solved_is_one_line_a_policy(script, capsys):
    script(
        'results/stargraphs/stargraphs.py', 'rows', '--n_train=60', '--n_val=9', '--out=star.npz'
    )
    script('data/prepare.py', 'tokens', '--name=star', '--source=star.npz', '--data_dir=data')
    model = make_model(block_size=22, vocab_size=320, n_tokens=257).float()
    config = {'dataset': 'star', 'data_dir': 'data'}
    save_checkpoint('ckpt.pt', model, ema=EMA(model, 0.9), tokenizer='bytes', config=config)
    capsys.readouterr()
    run(stargraphs, 'solve', '--ckpt=ckpt.pt')
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ['given', 'margin', 'entropy']
    steps = torch.tensor([[3, 2, 1, 0], [0, 1, 2, 3], [2, 1, 0, 3]])
    assert stargraphs.backward_tau(steps).tolist() == [1, -1, 1]


def test_the_best_of_repeated_text(tmp_path, monkeypatch, capsys):
    """The lowest validation of each seed, its mean and standard error, and the epochs of both."""
    monkeypatch.chdir(tmp_path)
    for seed, nats in ((1, [3.0, 1.0, 2.0]), (2, [1.5, 2.5, 3.0])):
        lines = []
        for n in range(5):
            entry = {'iter': n, 'tokens': 10000 * n, 'loss': 1.0}
            if n % 2 == 0:
                entry['val_l2r'] = nats[n // 2]
            lines.append(json.dumps(entry))
        (tmp_path / f'repeat_few_2_seed{seed}.jsonl').write_text('\n'.join([*lines, '']))
    run(repeat, 'table', '--runs=repeat_*', '--kb=10')
    assert capsys.readouterr().out.splitlines()[2:] == [
        '| few_2 | left to right | 2 | 1.250 ± 0.250 | 2, 0 | 2.500 ± 0.500 | 4 |'
    ]
    with pytest.raises(ValueError, match='no runs repeat_ARM_seedN in nowhere'):
        run(repeat, 'table', '--runs=nowhere')


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
