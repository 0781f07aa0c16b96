"""Prompts that are not trained on: documents are rows whose prompts come first and cost nothing."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from conftest import make_model, one_line
from test_estimates import SEED, estimate
from test_written import made
from toy_runs import assert_alike, assert_same_runs, resume, run

import anyorder.extras.puzzles.solve as eval_puzzle
from anyorder.checkpoint import model_from_checkpoint
from anyorder.datasets import open_split
from anyorder.extras.puzzles.solve import solve
from anyorder.generation import Drawing, generate, unmasking_of
from anyorder.generation.way import Way
from anyorder.likelihood.ensemble import group_contexts
from anyorder.likelihood.measured import Cut, open_corpus
from anyorder.likelihood.nll import block_nll, draw_known, nll_of_blanks
from anyorder.likelihood.written import Written, written_nats
from anyorder.orders import Order, draw_orders, given_first
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import Batch, all_blocks, random_blocks, visits_of
from anyorder.tokens.folder import Folder
from anyorder.tokens.meta import Meta
from anyorder.tokens.prepared import prepare
from anyorder.tokens.sets import GIVEN, PADDING, Split, check_length, read_split
from anyorder.tokens.tokenizers import encode_documents, get_tokenizer
from anyorder.training.update import TrainState, draw_batch, make_optimizers, update
from anyorder.training.validation import validate
from configurator import Config, configure
from model import EMA

PAIRS = [('2+2=', '4'), ('', 'one'), ('10-9=', '1.'), ('x=', 'longer than a block')]
KINDS = [
    {},
    {'rotary': True},
    {'attention': 'mixed'},
    {'attention': 'bidirectional'},
    {'target_position': 'two_stream'},
]
OPTIONS = {
    'batch_size': 5,
    'block_size': 9,
    'l2r_ratio': 0.0,
    'order': 'random',
    'dtype': 'float32',
    'seed': 3,
    'gradient_accumulation_steps': 2,
    'grad_clip': 0.0,
}


def network(**kind):
    return make_model(vocab_size=320, n_tokens=257, **kind)


MASKED = [kind for kind in KINDS if network(**kind).slots.masked_loss]


def write(folder, pairs, tokenizer='bytes', splits=('train', 'val')):
    """A prepared set of these pairs in `folder`; returns its Meta."""
    tok = get_tokenizer(tokenizer)
    meta = Meta(folder.name, tok.name, tok.n_tokens, tok.eos, {}, given=True, prompts=True)
    parts = {split: (len(pairs), encode_documents(pairs, tok)) for split in splits}
    return Folder(folder, folder.name, None).write(meta, 'by hand', parts)


@pytest.fixture
def split(tmp_path):
    return read_split(tmp_path / 'qa', write(tmp_path / 'qa', PAIRS), 'train')


def row_of(pair, block_size=9):
    """(tokens, n_given) of a document, by hand."""
    prompt, text = pair
    tokens = [*(prompt + text).encode(), 256]
    return tokens[:block_size], len(prompt)


ROWS = [row_of(pair) for pair in PAIRS]


def without_padding(order, n, n_given):
    """The positions below n of an order, the given ones first."""
    positions = [int(p) for p in order if p < n]
    return torch.tensor(sorted(positions, key=lambda p: p >= n_given))


def nats_by_hand(model, tokens, n_given, order, known=None):
    """-log p of the answer in the order of its positions, by a row without padding.

    known  visits that are known, for an unbiased draw by one pass; else each visit has a pass"""
    N = len(tokens)
    idx = torch.tensor([tokens])
    order = without_padding(order, N, n_given)
    if known is not None:
        logp = model.predict(idx, order[None], known)[0].log_softmax(-1)
        found = logp.gather(1, idx[0, order[known:], None])
        return -found.sum() * (N - n_given) / (N - known)
    nats = 0
    for d in range(n_given, N):
        logp = model.predict(idx, order[None], d, 1)[0, 0].log_softmax(-1)
        nats = nats - logp[tokens[order[d]]]
    return nats


def assert_close(found, want, atol=1e-9):
    torch.testing.assert_close(found, want, rtol=0, atol=atol)


def test_a_split_has_the_lengths_of_its_documents(split):
    assert split.marked
    assert split.lengths.tolist() == [6, 4, 8, 22]
    assert (split.width(9), split.width(99)) == (9, 22)


def test_a_document_is_a_row_whose_prompt_is_given(split):
    tokens, given = all_blocks(split, 9)
    n_visits = visits_of(tokens)
    for r, (row, n_given) in enumerate(ROWS):
        n = len(row)
        padding = 9 - n
        assert tokens[r].tolist() == row + [PADDING] * padding
        assert given[r].tolist() == [True] * n_given + [False] * (n - n_given) + [True] * padding
        assert n_visits[r] == n


def test_blocks_are_spread_over_documents(split):
    assert all_blocks(split, 9, 2)[0][:, 0].tolist() == [ord('2'), ord('1')]


def test_a_block_that_all_documents_fill_has_no_padding(split):
    assert visits_of(all_blocks(split, 4)[0]) is None


def test_every_document_is_drawn(split):
    torch.manual_seed(0)
    drawn, _ = split.unpack(random_blocks(split, 50, 9))
    tokens, _ = all_blocks(split, 9)
    assert drawn.unique(dim=0).tolist() == tokens.unique(dim=0).tolist()


@pytest.mark.parametrize('tokenizer, dtype', [('bytes', '<u2'), ('gpt2', '<u4')])
def test_a_large_vocabulary_has_room_for_the_mark(tmp_path, tokenizer, dtype):
    pairs = [('How many beehives?', ' Zwölf.'), ('', 'x'), (' flourish', '')]
    try:
        meta = write(tmp_path / 'qa', pairs, tokenizer)
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')
    split = read_split(tmp_path / 'qa', meta, 'val')
    assert split.packed.dtype == dtype
    assert split.mark >= GIVEN
    assert meta.splits['val'].text_bytes == 8 + 1
    tok = get_tokenizer(tokenizer)
    tokens, given = all_blocks(split, 50)
    for row, mask, (prompt, text) in zip(tokens, given, pairs, strict=True):
        there = row != PADDING
        known = tok.encode(prompt)
        answer = [*tok.encode(text), tok.eos]
        assert row[there].tolist() == known + answer
        assert mask[there].tolist() == [True] * len(known) + [False] * len(answer)
    if tokenizer == 'gpt2':
        assert tokens.max() > GIVEN


@pytest.mark.parametrize('kind', KINDS, ids=str)
def test_validation_is_of_the_answers_alone(split, kind):
    """By hand: three documents and a cut one, a row each without padding, a pass for each token."""
    model = network(**kind)
    tokens, given = all_blocks(split, 9)
    found = validate(model, tokens, given, Config(OPTIONS | {'batch_size': 3}))['any']

    known = [None] * len(ROWS)
    if model.slots.masked_loss:
        before = torch.tensor([n for _, n in ROWS]).unsqueeze(1)
        blanks = torch.tensor([len(row) - n for row, n in ROWS]).unsqueeze(1)
        known = draw_known(range(4), blanks, n_given=before)[:, 0].tolist()
    orders = draw_orders(range(4), 9)[:, 0]
    want = [nats_by_hand(model, *row, *how) for row, *how in zip(ROWS, orders, known)]
    assert_close(found, torch.stack(want))


@pytest.mark.parametrize('kind', MASKED, ids=str)
def test_a_masked_loss_is_measured_exactly_by_a_pass_for_each_visit(split, kind):
    model = network(**kind)
    tokens, given = all_blocks(split, 9)
    orders = draw_orders(range(4), 9)[:, 0]
    order, n_given, _ = given_first(orders, given, visits_of(tokens))
    found = block_nll(model, tokens, order, 3, n_given=n_given)
    want = [nats_by_hand(model, *row, order) for row, order in zip(ROWS, orders)]
    assert_close(found, torch.stack(want))


@pytest.mark.parametrize('kind', KINDS, ids=str)
def test_the_loss_of_an_update_is_of_the_answers_alone(split, kind):
    model = network(**kind).requires_grad_(True)
    optimizers = make_optimizers(model, 'adamw', 1e-3, 0.02, 0.0, (0.9, 0.95))
    state = TrainState(model, optimizers, EMA(model, 0.9))
    seen = []

    def draw(*args):
        seen.append(draw_batch(*args))
        return seen[-1]

    update(state, split, 1e-12, Config(OPTIONS), draw)
    total = sum(nats_of_batch(model, batch) for batch in seen)
    n_blanks = sum(batch.n_blanks.sum() for batch in seen)
    want = (total / n_blanks).detach()
    torch.testing.assert_close(state.totals[0], want, rtol=1e-6, atol=0)


def nats_of_batch(model, batch):
    """The nats of the answers of a Batch by hand, whose rows must be of ROWS."""
    total = 0
    for r, n in enumerate(batch.n_visits.tolist()):
        tokens = batch.idx[r, :n].tolist()
        n_given = int(batch.n_given[r])
        assert (tokens, n_given) in ROWS
        assert n == n_given + batch.n_blanks[r]
        known = None
        if batch.n_known is not None:
            known = int(batch.n_known[r])
            assert n_given <= known < n
        total = total + nats_by_hand(model, tokens, n_given, batch.order[r], known)
    return total


@pytest.mark.parametrize('kind', KINDS, ids=str)
def test_padding_changes_nothing(split, kind):
    """Other tokens in its place, and more of it: the nll of the answers stays, its own is 0."""
    model = network(**kind)
    known = torch.tensor([5, 2, 5, 3]) if model.slots.masked_loss else None
    answers = [nll_of_answers(model, split, known, *how) for how in ((7, 0), (7, 99), (9, 5))]
    for answer in answers[1:]:
        assert_close(answer, answers[0], atol=1e-10)
    assert (answers[0].sum(1) > 0.5).all()


def nll_of_answers(model, split, known, width, token):
    """nll (4, 7) of blocks of 7 tokens in `width` columns, where padding is read as this token."""
    blocks, given = all_blocks(split, 7)
    n_visits = visits_of(blocks)
    more = (0, width - 7)
    idx = torch.nn.functional.pad(blocks, more, value=PADDING)
    is_given = torch.nn.functional.pad(given, more, value=True)
    orders = draw_orders(range(4), 9)[:, 0]
    orders = orders[orders < width].view(4, width)
    order, n_given, _ = given_first(orders, is_given, n_visits)
    nll = model(idx.masked_fill(idx == PADDING, token), order, known, n_visits=n_visits)
    is_padding = torch.arange(width) >= n_visits.unsqueeze(1)
    assert (nll[is_padding] == 0).all()
    return nll_of_blanks(nll, n_given, known is not None, n_visits)[:, :7]


SHUFFLED = [3, 0, 2, 1]  # numbers of documents
N_ORDERS = 3


@pytest.mark.parametrize('kind', KINDS, ids=str)
def test_every_estimate_of_an_order_is_of_the_answers_alone(split, kind):
    """As by hand, or as the same law of a row without padding."""
    model = network(**kind)
    tokens, given = all_blocks(split, 9)
    options = ['--orders=l2r,random,margin,entropy', '--n_steps=0,2', f'--n_orders={N_ORDERS}']
    estimates = made(*options, attention=kind.get('attention', 'causal'))
    assert len(estimates) == 8
    for one in estimates:
        nats = one.nats(model, tokens, SHUFFLED, given).view(4, one.n_orders, -1)
        orders = draw_orders(range(4), 9, one.n_orders, one.c.seed, one.order)
        for b, found in zip(SHUFFLED, nats):
            for k, order in enumerate(orders[b]):
                if isinstance(one, Written):
                    seeds = [derive_seed(one.c.seed, 'written', b, k)]
                    want = nats_as_written(one, model, *ROWS[b], order, seeds)
                else:
                    want = nats_by_hand(model, *ROWS[b], order)[None]
                assert_close(found[k], want)


def nats_as_written(estimate, model, row, n, order, seeds):
    """Nats of an answer by the law of a Written estimate, of a row without padding."""
    order = without_padding(order, len(row), n)
    if estimate.unmasking.adaptive:
        order[:n] = torch.arange(n)
    batch = Batch(torch.tensor([row]), order[None], n_given=torch.tensor([n]))
    return written_nats(model, batch, seeds, estimate.unmasking, estimate.drawing, 1)[0]


@pytest.mark.parametrize('b', [2, 0, 1, 3])
def test_contexts_of_an_ensemble_hold_the_prompt(split, b):
    model = network()
    tokens, given = all_blocks(split, 9)
    found = estimate('ensemble', '--estimates=ensemble:3').nats(model, tokens, [b], given)[0, -1]

    row, n = ROWS[b]
    idx = torch.tensor([row, row, row])
    order = without_padding(draw_orders([b], 9, 1, SEED)[0, 0], len(row), n)
    seed = derive_seed(SEED, 'contexts', b)
    want = 0.0
    for d in range(n, len(row)):
        shuffled = group_contexts(order, d - n, 1, 2, seed, n)
        contexts = torch.cat([order[None, : d + 1], shuffled])
        assert (contexts.sort(1).values == order[: d + 1].sort().values).all()
        p = model.predict(idx, contexts, d, 1)[:, 0].softmax(-1)
        want -= math.log(p[:, row[order[d]]].mean())
    assert float(found) == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize('policy', ['given', 'margin'])
def test_answers_are_written_as_without_padding(split, policy):
    model = network()
    tokens, given = all_blocks(split, 9)
    way = Way(Order('l2r'), unmasking_of(n_steps=9, policy=policy), Drawing(0.0))
    idx, step, _ = solve(model, tokens, given, way, 5, 3)
    for b, (row, n) in enumerate(ROWS):
        N = len(row)
        order = torch.arange(N)[None]
        how = {'policy': policy, 'temperature': 0, 'seeds': [0], 'return_trace': True}
        alone, trace = generate(model, torch.tensor([row]), order, n, **how)
        assert alone[0, :n].tolist() == row[:n]
        assert idx[b, :N].tolist() == alone[0].tolist()
        assert step[b, :N].tolist() == trace['step'][0].tolist()


def test_a_prompt_that_fills_the_block_is_one_line(split):
    check_length(split, 6, 'qa/val')
    with one_line('the prompt of document 3 of qa/val fills its block: .* block_size, got 5'):
        check_length(split, 5, 'qa/val')


def test_a_block_of_a_stream_is_as_wide_as_it_is_asked_to_be():
    assert Split(np.zeros(4, '<u2')).width(3) == 3


TOY = ['--dataset=qa', '--gradient_accumulation_steps=2', '--dtype=float32', '--lr_decay_iters=9']


@pytest.fixture
def sums(tmp_path, monkeypatch):
    """The working folder, where data/qa is a set of sums."""
    monkeypatch.chdir(tmp_path)
    numbers = range(5, 12)
    pairs = [(f'{a}+{b}=', str(a + b)) for a, b in itertools.product(numbers, numbers)]
    write(tmp_path / 'data' / 'qa', pairs)
    return tmp_path


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one_and_two_processes_are_one(sums, forked):
    run('--max_iters=9', *TOY, '--out_dir=whole')
    run('--max_iters=6', *TOY)
    resume('--max_iters=9')
    assert_same_runs('whole', 'out', entries_of_one=[6])
    first, second = forked(*2 * [lambda: run('--max_iters=9', *TOY, '--out_dir=two')])
    assert (first.code, second.code) == (0, 0), (first.said, second.said)
    assert_alike('whole', 'two')
    assert model_from_checkpoint('two/ckpt.pt').config.block_size == 16


def test_bits_are_a_byte_of_the_answers_alone(sums, capsys):
    run('--max_iters=0', *TOY)
    said = capsys.readouterr().out
    row = said.rpartition('left to right')[2].splitlines()[0]
    nats, *_, bits, n_rows, n_tokens = row.replace('±', '').split()
    n_bytes = int(n_tokens) - int(n_rows)  # without the ends of the answers
    want = float(nats) * int(n_tokens) / math.log(2) / n_bytes
    assert float(bits) == pytest.approx(want, rel=1e-3)


def test_an_order_of_positions_is_the_one_of_the_model(sums, capsys):
    """The model has longer rows than the set."""
    run('--max_iters=0', *TOY)
    assert open_split('data', 'qa', 'val')[0].width(16) == 9
    (sums / 'back.json').write_text(json.dumps([*range(15, -1, -1)]))
    capsys.readouterr()
    options = ['--ckpt=out/ckpt.pt', '--split=val', '--orders=r2l,back.json']
    eval_puzzle.main(configure(vars(eval_puzzle), options))
    *_, back, listed = capsys.readouterr().out.splitlines()
    assert back.split()[1:6] == listed.split()[1:6]


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """The working folder, where qa.jsonl has five rows of each pair."""
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({'prompt': prompt, 'text': text}) for prompt, text in PAIRS]
    (tmp_path / 'qa.jsonl').write_text('\n'.join(lines * 5))
    return tmp_path


def test_rows_with_prompts_become_a_set(rows):
    meta = prepare('text', 'data', 'qa', 'qa.jsonl', tokenizer='bytes')
    assert meta.given
    assert meta.prompts
    assert [split.rows for split in meta.splits.values()] == [18, 2]
    for name in ('train', 'val'):
        split, _ = open_split('data', 'qa', name)
        tokens, given = all_blocks(split, 9)
        assert len(tokens) == len(split.lengths)
        for row, is_given in zip(tokens, given):
            there = row != PADDING
            assert (row[there].tolist(), int(is_given[there].sum())) in ROWS


def test_a_file_with_prompts_is_measured_on_its_answers(rows, split):
    corpus = open_corpus('qa.jsonl', Cut(9), get_tokenizer('bytes'), 'data', split='train')
    assert torch.equal(corpus.blocks, all_blocks(split, 9)[0].repeat(5, 1))
    assert corpus.n_bytes == 5 * (1 + 3 + 2 + 7)
    assert corpus.label == 'qa.jsonl, 5 of 20 documents cut at 9'
    assert split.cut(99) == ''


def test_a_set_with_prompts_is_measured_on_its_answers(rows):
    prepare('text', 'data', 'qa', 'qa.jsonl', tokenizer='bytes')
    corpus = open_corpus('qa', Cut(9), get_tokenizer('bytes'), 'data', split='train')
    is_byte = corpus.blocks < 256
    assert corpus.n_bytes == int((is_byte & ~corpus.given).sum())


def test_prompts_may_be_left_out(rows):
    meta = prepare('text', 'data', 'plain', 'qa.jsonl', tokenizer='bytes', prompt_key='')
    assert not meta.prompts


def test_a_set_has_prompts_in_all_splits_or_in_none(rows):
    prepare('text', 'data', 'qa', 'qa.jsonl', tokenizer='bytes')
    (rows / 'more.jsonl').write_text('{"text": "no prompt"}')
    before = sorted(rows.rglob('*'))
    with one_line('all splits of qa must have prompts, or none'):
        prepare('text', 'data', 'qa', 'more.jsonl', 'test')
    assert sorted(rows.rglob('*')) == before


def test_a_document_with_a_prompt_is_not_cut(rows):
    (rows / 'one.jsonl').write_text('{"prompt": "2+2=", "text": "4"}')
    with one_line('one document with a prompt cannot be divided'):
        prepare('text', 'data', 'one', 'one.jsonl', tokenizer='bytes')
    assert not (rows / 'data' / 'one').exists()
