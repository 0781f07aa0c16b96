"""Prompts that are not trained on: documents are rows, whose prompts come first and cost nothing."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import make_model, one_line
from test_estimates import SEED, estimate
from test_written import made
from toy_runs import assert_alike, assert_same_runs, resume, run

import eval_puzzle
from anyorder.batch import Batch
from anyorder.checkpoint import model_from_checkpoint
from anyorder.datasets import open_split
from anyorder.generation import Drawing, generate, unmasking_of
from anyorder.generation.way import Way
from anyorder.likelihood.ensemble import group_contexts
from anyorder.likelihood.measured import open_corpus
from anyorder.likelihood.nll import block_nll, draw_known, nll_of_blanks
from anyorder.likelihood.written import Written, written_nats
from anyorder.orders import Order, draw_orders, given_first
from anyorder.seeds import derive_seed
from anyorder.tokens.blocks import all_blocks, check_length, random_blocks, visits_of
from anyorder.tokens.folder import Folder
from anyorder.tokens.meta import Meta
from anyorder.tokens.prepared import prepare
from anyorder.tokens.sets import GIVEN, PADDING, Split, read_split
from anyorder.tokens.tokenizers import encode_documents, get_tokenizer
from anyorder.training.update import TrainState, draw_batch, make_optimizers, update, validate
from configurator import Config, configure
from eval_puzzle import solve
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
    return [*(prompt + text).encode(), 256][:block_size], len(prompt)


def nats_by_hand(model, tokens, n_given, order, known=None):
    """-log p of the answer in the order of its positions, by a row without padding."""
    idx, order = torch.tensor([tokens]), [p for p in order if p < len(tokens)]
    order = torch.tensor([sorted(order, key=lambda p: p >= n_given)])
    if known is None:
        logits = [model.predict(idx, order, d, 1)[0, 0] for d in range(n_given, len(tokens))]
        return sum(-x.log_softmax(-1)[tokens[order[0, d]]] for d, x in enumerate(logits, n_given))
    logp = model.predict(idx, order, known)[0].log_softmax(-1)
    nats = -logp.gather(1, idx[0, order[0, known:]].unsqueeze(1)).sum()
    return nats * (len(tokens) - n_given) / (len(tokens) - known)


def test_a_document_is_a_row_whose_prompt_is_given(split):
    assert (
        split.marked
        and split.lengths.tolist() == [6, 4, 8, 22]
        and split.width(9) == 9
        and split.width(99) == 22
    )
    tokens, given = all_blocks(split, 9)
    for row, mask, n, pair in zip(
        tokens.tolist(), given.tolist(), visits_of(tokens).tolist(), PAIRS, strict=True
    ):
        want, n_given = row_of(pair)
        assert row == want + [PADDING] * (9 - len(want)) and n == len(want)
        assert mask == [p < n_given or p >= n for p in range(9)]
    assert visits_of(all_blocks(split, 4)[0]) is None  # a block that all documents fill
    assert all_blocks(split, 9, 2)[0][:, 0].tolist() == [ord('2'), ord('1')]
    torch.manual_seed(0)
    drawn = {tuple(row) for row in split.unpack(random_blocks(split, 50, 9))[0].tolist()}
    assert drawn == {tuple(row) for row in tokens.tolist()}


@pytest.mark.parametrize('tokenizer, dtype', [('bytes', '<u2'), ('gpt2', '<u4')])
def test_a_large_vocabulary_has_room_for_the_mark(tmp_path, tokenizer, dtype):
    pairs = [('How many beehives?', ' Zwölf.'), ('', 'x'), (' flourish', '')]
    try:
        meta = write(tmp_path / 'qa', pairs, tokenizer)
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')
    split, tok = read_split(tmp_path / 'qa', meta, 'val'), get_tokenizer(tokenizer)
    assert (
        split.packed.dtype == dtype
        and meta.splits['val'].text_bytes == 8 + 1
        and split.mark >= GIVEN
    )
    tokens, given = all_blocks(split, 50)
    for row, mask, (prompt, text) in zip(tokens, given, pairs, strict=True):
        row, mask = row[row != PADDING], mask[row != PADDING]
        assert row.tolist() == [*tok.encode(prompt), *tok.encode(text), tok.eos]
        assert mask.tolist() == [True] * len(tok.encode(prompt)) + [False] * (
            len(tok.encode(text)) + 1
        )
    if tokenizer == 'gpt2':
        assert tokens.max() > GIVEN


@pytest.mark.parametrize('kind', KINDS, ids=str)
def test_loss_and_validation_are_of_the_answers_alone(split, kind, monkeypatch):
    """By hand: three documents and a cut one, a row each without padding, a pass for each token."""
    model, (tokens, given) = network(**kind), all_blocks(split, 9)
    rows, orders = [row_of(pair) for pair in PAIRS], draw_orders(range(4), 9)[:, 0]
    blanks, before = (
        torch.tensor(x).unsqueeze(1) for x in zip(*((len(row) - n, n) for row, n in rows))
    )
    known = (
        draw_known(range(4), blanks, n_given=before)[:, 0].tolist()
        if model.slots.masked_loss
        else [None] * 4
    )
    want = [
        nats_by_hand(model, *row, order, n) for row, order, n in zip(rows, orders.tolist(), known)
    ]
    found = validate(model, tokens, given, Config(OPTIONS | {'batch_size': 3}))['any']
    torch.testing.assert_close(found, torch.stack(want), rtol=0, atol=1e-9)
    if model.slots.masked_loss:  # exactly, by a pass for each visit
        order, n_given, _ = given_first(orders, given, visits_of(tokens))
        want = [nats_by_hand(model, *row, order) for row, order in zip(rows, orders.tolist())]
        found = block_nll(model, tokens, order, 3, n_given=n_given)
        torch.testing.assert_close(found, torch.stack(want), rtol=0, atol=1e-9)

    seen, total = [], 0

    def draw(*args):
        seen.append(draw_batch(*args))
        return seen[-1]

    model = model.requires_grad_(True)
    state = TrainState(
        model, make_optimizers(model, 'adamw', 1e-3, 0.02, 0.0, (0.9, 0.95)), EMA(model, 0.9)
    )
    update(state, split, 1e-12, Config(OPTIONS), draw)
    for batch in seen:
        for r, n in enumerate(batch.n_visits.tolist()):
            tokens = batch.idx[r, :n].tolist()
            n_given = int(batch.n_given[r])
            known = None if batch.n_known is None else int(batch.n_known[r])
            assert (tokens, n_given) in rows
            assert n == n_given + batch.n_blanks[r]
            assert known is None or n_given <= known < n
            total = total + nats_by_hand(model, tokens, n_given, batch.order[r].tolist(), known)
    total = total / sum(batch.n_blanks.sum() for batch in seen)
    torch.testing.assert_close(state.totals[0], total.detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize('kind', KINDS, ids=str)
def test_padding_changes_nothing(split, kind):
    """Other tokens in its place, and more of it: the nll of the answers stays, its own is 0."""
    model, (blocks, given) = network(**kind), all_blocks(split, 7)
    n_visits, orders = visits_of(blocks), draw_orders(range(4), 9)[:, 0]
    known = torch.tensor([5, 2, 5, 3]) if model.slots.masked_loss else None
    answers = []
    for width, token in (7, 0), (7, 99), (9, 5):
        idx = torch.nn.functional.pad(blocks, (0, width - 7), value=PADDING)
        order = torch.stack(
            [torch.tensor([p for p in row if p < width]) for row in orders.tolist()]
        )
        order, n_given, _ = given_first(
            order, torch.nn.functional.pad(given, (0, width - 7), value=True), n_visits
        )
        nll = model(idx.masked_fill(idx == PADDING, token), order, known, n_visits=n_visits)
        assert (nll[torch.arange(width) >= n_visits.unsqueeze(1)] == 0).all()
        answers.append(nll_of_blanks(nll, n_given, known is not None, n_visits)[:, :7])
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0], rtol=0, atol=1e-10)
    assert (answers[0].sum(1) > 0.5).all()


@pytest.mark.parametrize('kind', KINDS, ids=str)
def test_every_estimate_of_an_order_is_of_the_answers_alone(split, kind):
    """As by hand, or as the same law of a row without padding."""
    model, (tokens, given), K = network(**kind), all_blocks(split, 9), 3
    ways = made(
        '--orders=l2r,random,margin,entropy',
        '--n_steps=0,2',
        f'--n_orders={K}',
        attention=kind.get('attention', 'causal'),
    )
    for found in ways:
        nats = found.nats(model, tokens, [3, 0, 2, 1], given)
        orders = draw_orders(range(4), 9, found.n_orders, found.c.seed, found.order)
        for b, column in zip([3, 0, 2, 1], nats.view(4, found.n_orders, -1)):
            row, n = row_of(PAIRS[b])
            for k, order in enumerate(orders[b].tolist()):
                if isinstance(found, Written):
                    known = [*range(n)] if found.unmasking.adaptive else [p for p in order if p < n]
                    order = torch.tensor([known + [p for p in order if n <= p < len(row)]])
                    seeds = [derive_seed(found.c.seed, 'written', b, k)]
                    batch = Batch(torch.tensor([row]), order, n_given=torch.tensor([n]))
                    want = written_nats(model, batch, seeds, found.unmasking, found.drawing, 1)[0]
                else:
                    want = nats_by_hand(model, row, n, order)[None]
                torch.testing.assert_close(column[k], want, rtol=0, atol=1e-9)
    assert len(ways) == 8


def test_contexts_of_an_ensemble_hold_the_prompt(split):
    model, (tokens, given) = network(), all_blocks(split, 9)
    ensemble = estimate('ensemble', '--n_contexts=3')
    nats = torch.cat([ensemble.nats(model, tokens, [b], given) for b in (2, 0, 1, 3)])[:, -1]
    for b, total in zip([2, 0, 1, 3], nats):
        row, n = row_of(PAIRS[b])
        idx, seed, want = torch.tensor([row]), derive_seed(SEED, 'contexts', b), 0.0
        order = torch.tensor(
            sorted(
                (p for p in draw_orders([b], 9, 1, SEED)[0, 0].tolist() if p < len(row)),
                key=lambda p: p >= n,
            )
        )
        for d in range(n, len(row)):
            contexts = torch.cat(
                [order[None, : d + 1], group_contexts(order, d - n, 1, 2, seed, n)]
            )
            assert (contexts.sort(1).values == order[: d + 1].sort().values).all()
            logits = model.predict(idx.expand(3, -1), contexts, d, 1)[:, 0]
            want -= math.log(logits.softmax(-1)[:, row[order[d]]].mean())
        assert float(total) == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize('policy', ['given', 'margin'])
def test_answers_are_written_as_without_padding(split, policy):
    model, (tokens, given) = network(), all_blocks(split, 9)
    unmasking = unmasking_of(n_steps=9, policy=policy)
    way = Way(Order('l2r'), unmasking, Drawing(0.0))
    idx, step, _ = solve(model, tokens, given, way, 5, 3)
    for b, (row, n) in enumerate(map(row_of, PAIRS)):
        alone, trace = generate(
            model,
            torch.tensor([row]),
            torch.arange(len(row))[None],
            n,
            policy=policy,
            temperature=0,
            seeds=[0],
            return_trace=True,
        )
        assert idx[b, : len(row)].tolist() == alone[0].tolist() and row[:n] == alone[0, :n].tolist()
        assert step[b, : len(row)].tolist() == trace['step'][0].tolist()


def test_a_prompt_that_fills_the_block_is_one_line(split):
    with one_line(
        r'the prompt of document 3 of qa/val fills its block: leave it out, or .* larger block_size, got 5'
    ):
        check_length(split, 5, 'qa/val')
    check_length(split, 6, 'qa/val')
    assert Split(np.zeros(4, '<u2')).width(3) == 3


def test_a_resumed_run_is_the_uninterrupted_one_and_two_processes_are_one(
    tmp_path, monkeypatch, forked, capsys
):
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / 'data' / 'qa',
        [(f'{a}+{b}=', str(a + b)) for a in range(5, 12) for b in range(5, 12)],
    )
    options = [
        '--dataset=qa',
        '--gradient_accumulation_steps=2',
        '--dtype=float32',
        '--lr_decay_iters=9',
    ]
    run('--max_iters=9', *options, '--out_dir=whole')
    run('--max_iters=6', *options)
    resume('--max_iters=9')
    assert_same_runs('whole', 'out', entries_of_one=[6])
    said = capsys.readouterr().out
    row = said.rpartition('left to right')[2].split('\n')[0]
    nats, *_, bits, rows, tokens = row.replace(
        '±', ''
    ).split()  # bytes of the answers alone: tokens but their ends
    assert float(bits) == pytest.approx(
        float(nats) * int(tokens) / math.log(2) / (int(tokens) - int(rows)), rel=1e-3
    )
    run('--max_iters=0', *options, '--out_dir=masked', '--attention=bidirectional', '--l2r_ratio=0')
    first_row = all_blocks(open_split('data', 'qa', 'val')[0], 16)[1][0]
    for out, blanks in (
        (said, '..'),
        (capsys.readouterr().out, (~first_row).sum()),
    ):  # which sees how many there are
        assert out.endswith(f"=[[{blanks}]]'\n")
    first, second = forked(*2 * [lambda: run('--max_iters=9', *options, '--out_dir=two')])
    assert (first.code, second.code) == (0, 0), (first.said, second.said)
    assert_alike('whole', 'two')
    assert open_split('data', 'qa', 'val')[0].width(16) == 9
    assert model_from_checkpoint('two/ckpt.pt').config.block_size == 16
    (tmp_path / 'back.json').write_text(
        json.dumps([*range(16)][::-1])
    )  # of the model, whose rows here are shorter
    eval_puzzle.main(
        configure(
            vars(eval_puzzle), ['--ckpt=out/ckpt.pt', '--split=val', '--policies=r2l,back.json']
        )
    )
    back, listed = [line.split()[1:6] for line in capsys.readouterr().out.strip().split('\n')[-2:]]
    assert back == listed


def test_rows_with_prompts_become_a_set(split, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{'prompt': prompt, 'text': text} for prompt, text in PAIRS * 5]
    (tmp_path / 'qa.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    meta = prepare('text', 'data', 'qa', 'qa.jsonl', tokenizer='bytes')
    assert meta.given and meta.prompts and [s.rows for s in meta.splits.values()] == [18, 2]
    wanted = {(*row, n) for row, n in map(row_of, PAIRS)}
    for part in (open_split('data', 'qa', name)[0] for name in ('train', 'val')):
        tokens, given = all_blocks(part, 9)
        found = {
            (*row[row >= 0].tolist(), int((mask & (row >= 0)).sum()))
            for row, mask in zip(tokens, given)
        }
        assert found <= wanted and len(tokens) == len(part.ends)
    corpora = [
        open_corpus(name, 9, get_tokenizer('bytes'), 'data', split='train')
        for name in ('qa.jsonl', 'qa')
    ]
    assert torch.equal(corpora[0].blocks, all_blocks(split, 9)[0].repeat(5, 1))
    assert corpora[0].n_bytes == 5 * (1 + 3 + 2 + 7)
    assert corpora[0].label == 'qa.jsonl, 5 of 20 documents cut at 9' and split.cut(99) == ''
    assert corpora[1].n_bytes == int(((corpora[1].blocks < 256) & ~corpora[1].given).sum())
    assert not prepare(
        'text', 'data', 'plain', 'qa.jsonl', tokenizer='bytes', prompt_key=''
    ).prompts
    (tmp_path / 'more.jsonl').write_text('{"text": "no prompt"}')
    before = sorted(tmp_path.rglob('*'))
    with one_line('all splits of qa must have prompts, or none'):
        prepare('text', 'data', 'qa', 'more.jsonl', 'test')
    with one_line('one document with a prompt cannot be divided'):
        (tmp_path / 'more.jsonl').write_text(json.dumps(rows[0]))
        prepare('text', 'data', 'one', 'more.jsonl', tokenizer='bytes')
    assert sorted(tmp_path.rglob('*')) == before
