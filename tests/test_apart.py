"""Documents apart: a packed block is its parts alone, for every network, in float64."""

import os

import numpy as np
import pytest
import torch
from conftest import make_model, one_line
from oracle import FINAL, TWO_STREAM, VARIANTS, name_of
from test_estimates import SEED, estimate, opened
from toy_runs import TWO, assert_alike, assert_same_runs, resume, run

from anyorder.likelihood.ensemble import Groups, ensemble_block_nll, ensemble_totals
from anyorder.likelihood.journal import Journal
from anyorder.likelihood.measured import Cut, open_corpus
from anyorder.likelihood.nll import blank_nll, block_nll, draw_known
from anyorder.likelihood.tables import ratio_error
from anyorder.orders import Order, draw_orders
from anyorder.seeds import derive_seed, stream
from anyorder.tokens import prepared
from anyorder.tokens.apart import apart, begins_in, begins_of, check_documents
from anyorder.tokens.blocks import Batch, all_blocks
from anyorder.tokens.sets import PADDING, Split
from anyorder.tokens.tokenizers import Symbols
from anyorder.training.update import draw_batch
from anyorder.training.validation import validate
from configurator import Config

close = dict(rtol=0, atol=1e-10)

NETWORKS = [*VARIANTS, *TWO_STREAM, *FINAL[:2], dict(attention='bidirectional')]
BEGINS = torch.tensor([[0, 4, 5, 9], [0, 9, 9, 9], [0, 1, 2, 7]])  # nine visits a row


def lengths_of(begins, T=9):
    """(B, P) visits of each part."""
    return torch.nn.functional.pad(begins, (0, 1), value=T).diff(dim=1)


def packed(seed=0):
    """(idx, order, n_known (B, P)): three rows of parts, each in a random order of its own."""
    g = torch.Generator().manual_seed(seed)
    idx = torch.randint(11, (3, 9), generator=g)
    lengths = lengths_of(BEGINS)
    rows = []
    for begins, sizes in zip(BEGINS.tolist(), lengths.tolist()):
        rows.append(torch.cat([b + torch.randperm(n, generator=g) for b, n in zip(begins, sizes)]))
    n_known = (torch.rand(3, 4, generator=g) * lengths).long()
    return idx, torch.stack(rows), n_known


def alone(model, idx, order, n_known):
    """[[nll (n,) of each part of a row, run as a text of its own]]."""
    rows = []
    for r, (begins, sizes) in enumerate(zip(BEGINS.tolist(), lengths_of(BEGINS).tolist())):
        parts = []
        for p, (b, n) in enumerate(zip(begins, sizes)):
            if n:
                known = None if n_known is None else n_known[r, p : p + 1]
                part = slice(b, b + n)
                parts.append(model(idx[r : r + 1, part], order[r : r + 1, part] - b, known)[0])
        rows.append(parts)
    return rows


@pytest.mark.parametrize('variant', NETWORKS, ids=name_of)
def test_a_packed_block_is_its_parts_alone(variant):
    """Nats of every visit, the loss, and the gradient of every weight."""
    model = make_model(**variant).requires_grad_(True)
    idx, order, n_known = packed()
    if not model.slots.masked_loss:
        n_known = None
    nll = model(idx, order, n_known, begins=BEGINS)
    nll.sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    rows = alone(model, idx, order, n_known)
    want = torch.stack([torch.cat(parts) for parts in rows])
    torch.testing.assert_close(nll, want, **close)
    want.sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], p.grad, **close)


def test_some_visits_of_a_packed_block():
    """The columns of a decoder are those of the whole, of two streams, too."""
    idx, order, _ = packed()
    columns = torch.tensor([[8, 0, 5], [3, 3, 8], [2, 7, 1]])
    for variant in ({}, TWO_STREAM[1]):
        model = make_model(**variant)
        whole = model(idx, order, begins=BEGINS)
        some = model(idx, order, columns=columns, begins=BEGINS)
        torch.testing.assert_close(some, whole.gather(1, columns), **close)


EOS = 10


def split_of(*lengths):
    """A Split, a stream of documents of these lengths, each with its end."""
    tokens = np.random.default_rng(3).integers(EOS, size=sum(lengths)).astype('<u2')
    tokens[np.cumsum(lengths) - 1] = EOS
    return Split(tokens, eos=EOS)


def test_documents_begin_behind_an_end():
    tokens = torch.tensor([[1, EOS, 2, 3], [EOS, EOS, EOS, EOS], [1, 2, 3, EOS], [1, 2, 3, 4]])
    found = begins_of(tokens, EOS).tolist()
    assert found == [[0, 2, 4, 4], [0, 1, 2, 3], [0, 4, 4, 4], [0, 4, 4, 4]]
    assert begins_of(tokens[2:], EOS).tolist() == [[0], [0]]
    assert begins_of(torch.zeros(2, 320, dtype=torch.long), EOS).shape == (2, 10)


@pytest.mark.parametrize('kind', ['random', 'l2r', 'r2l', 'fixed', 'block'])
def test_the_order_of_a_part_is_that_of_its_document_alone(kind):
    """Part after part; where orders are not uniform, as the document alone would be read."""
    law = Order(kind)
    idx, _, _ = packed()
    order = law.draw(3, 9, stream(1))
    given = torch.zeros_like(idx, dtype=torch.bool)
    given[0, 6] = True
    found = apart(Batch(idx, order), given, BEGINS, law.law)
    sizes = lengths_of(BEGINS)
    assert found.n_given.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert torch.equal(found.n_blanks, sizes - found.n_given)
    for r, (begins, own) in enumerate(zip(BEGINS.tolist(), sizes.tolist())):
        for b, n in zip(begins, own):
            shift = 0 if kind == 'random' else b
            in_part = [p for p in order[r].tolist() if b <= p + shift < b + n]
            want = sorted([p + shift for p in in_part], key=lambda p: not given[r, p])
            assert found.order[r, b : b + n].tolist() == want


@pytest.mark.parametrize('variant', [{}, TWO_STREAM[1], FINAL[0], NETWORKS[-1]], ids=name_of)
def test_a_batch_and_a_validation_keep_documents_apart(variant):
    """The loss of an update and the nats of each block are those of the parts alone."""
    model = make_model(**variant)
    split = split_of(3, 4, 2, 1, 9, 12, 5, 6, 30)
    config = Config(
        batch_size=3, block_size=9, l2r_ratio=0.0, order='random', documents='apart',
        dtype='float32',
    )  # fmt: skip
    torch.manual_seed(1)
    batch = draw_batch(split, config, model)
    assert int(batch.n_blanks.sum()) == 27
    nats = blank_nll(model, batch)
    for r, begins in enumerate(batch.begins.tolist()):
        for p, (b, n) in enumerate(zip(begins, lengths_of(batch.begins)[r].tolist())):
            if n == 0:
                continue
            part = slice(b, b + n)
            known = None if batch.n_known is None else batch.n_known[r, p : p + 1]
            want = model(batch.idx[r : r + 1, part], batch.order[r : r + 1, part] - b, known)
            torch.testing.assert_close(nats[r : r + 1, part], want, **close)

    blocks, given = all_blocks(split, 9)
    begins = begins_in(blocks, split, 'apart')
    found = validate(model, blocks, given, config, begins)
    assert list(found) == ['any'] if model.slots.masked_loss else ['any', 'l2r']
    orders = draw_orders(range(len(blocks)), 9, order=Order('random'))[:, 0]
    sizes = lengths_of(begins)
    known = draw_known(range(len(blocks)), sizes.unsqueeze(-1))[..., 0]
    for r in range(len(blocks)):
        want = {'any': 0.0, 'l2r': 0.0}
        for p, (b, n) in enumerate(zip(begins[r].tolist(), sizes[r].tolist())):
            if not n:
                continue
            part = blocks[r : r + 1, b : b + n]
            order = torch.tensor([[d - b for d in orders[r].tolist() if b <= d < b + n]])
            own = known[r, p : p + 1] if model.slots.masked_loss else None
            want['any'] += model(part, order, own).sum()
            if own is None:
                want['l2r'] += model(part, torch.arange(n)[None]).sum()
        for name in found:
            torch.testing.assert_close(found[name][r], want[name], **close)


@pytest.mark.parametrize('variant', [{}, TWO_STREAM[1], FINAL[0], NETWORKS[-1]], ids=name_of)
@pytest.mark.parametrize('order', ['random', 'few:3'])
def test_what_is_given_is_given_in_its_part(variant, order):
    """Also where all of a part is, which costs nothing."""
    model = make_model(**variant)
    split = split_of(3, 4, 2, 1, 9, 12, 5, 6, 30)
    split.packed[[0, 1, 2, 4, 9, 15, 20, 21, 29, 50]] |= split.mark
    split.marked = True
    l2r_ratio = 0.0 if model.slots.masked_loss else 0.3
    config = Config(
        batch_size=6, block_size=9, l2r_ratio=l2r_ratio, order=order, documents='apart'
    )  # fmt: skip
    torch.manual_seed(2)
    batch = draw_batch(split, config, model)
    nats = blank_nll(model, batch)
    assert nats.isfinite().all()
    assert torch.equal(batch.is_blank.sum(1), batch.n_blanks.sum(1))
    if batch.n_known is None:
        assert torch.equal(batch.is_blank, nats != 0)
    n_whole = 0
    for r, (begins, sizes) in enumerate(zip(batch.begins.tolist(), lengths_of(batch.begins))):
        for p, (b, n) in enumerate(zip(begins, sizes.tolist())):
            n_given = batch.n_given[r, p : p + 1]
            part = slice(b, b + n)
            if n_given == n:
                n_whole += n > 0
                assert (nats[r, part] == 0).all()
                continue
            known = None if batch.n_known is None else batch.n_known[r, p : p + 1]
            own = batch.order[r : r + 1, part] - b
            one = Batch(batch.idx[r : r + 1, part], own, known, None, n_given)
            torch.testing.assert_close(nats[r : r + 1, part], blank_nll(model, one), **close)
    assert n_whole


# --------------------------------------------------------------------------------------------------
# in eval_ppl.py


def corpus_of(monkeypatch, split, **cut):
    """A Corpus of a split, apart in blocks of nine tokens."""
    monkeypatch.setattr(
        'anyorder.likelihood.measured.read_set', lambda *_: (split, {'source': 's', 'sha256': '0'})
    )
    tokens = Symbols('letters', [*'abcdefghijk'], eos=EOS)
    return open_corpus('words', Cut(9, documents='apart', **cut), tokens, 'nowhere')


def test_a_part_is_measured_as_a_row_of_its_own(monkeypatch):
    """The longest first, as few passes are then padded; bytes and tokens stay those of blocks."""
    split = split_of(3, 4, 2, 1, 9, 12, 5, 6, 30)
    text = corpus_of(monkeypatch, split)
    assert text.label == 'words (val), documents apart'
    lengths = (text.blocks != PADDING).sum(1)
    assert lengths.tolist() == sorted(lengths.tolist(), reverse=True)
    assert torch.equal(text.n_blanks, lengths)
    parts = [row[row != PADDING].tolist() for row in text.blocks]
    whole = split.packed[:72].reshape(8, 9)
    for b, block in enumerate(whole.tolist()):
        found = [part for part, of in zip(parts, text.block.tolist()) if of == b]
        want = []
        for begin, size in zip(begins_of(torch.tensor([block]), EOS)[0].tolist(), [*range(9)]):
            if begin < 9:
                end = block.index(EOS, begin) + 1 if EOS in block[begin:] else 9
                want.append(block[begin:end])
        assert sorted(found) == sorted(want)
    assert text.by_block(text.n_blanks).tolist() == [9] * 8
    assert not text.has_given


@pytest.mark.parametrize('attention', ['causal', 'bidirectional', 'mixed'])
@pytest.mark.parametrize('name', ['l2r', 'any', 'iw', 'ensemble'])
def test_the_nats_of_a_packed_text_are_those_of_its_parts_alone(monkeypatch, name, attention):
    """The error is over blocks: the parts of one are added up before."""
    if attention != 'causal' and name in ('l2r', 'ensemble'):
        return
    K = 2
    model = make_model(attention=attention)
    text = corpus_of(monkeypatch, split_of(3, 4, 2, 1, 9, 12, 5, 6, 30))
    it = estimate(name, '--n_orders=2', '--batch_size=4', checkpoint=opened(attention=attention))
    found = it.measure(model, text, Journal('', {}))
    rows = []
    for number, row in enumerate(text.blocks):
        tokens = row[row != PADDING][None]
        n = tokens.size(1)
        drawn = draw_orders([number], 9, it.n_orders, SEED, it.order)[0]  # (K, 9)
        orders = torch.stack([order[order < n] for order in drawn])
        if name == 'ensemble':
            groups, weights = it.groups(number, n)
            seed = derive_seed(SEED, 'contexts', number)
            own = ensemble_block_nll(model, tokens[0], orders[0], 16, Groups(groups), seed)
            rows.append(ensemble_totals(*own, weights))
            continue
        known = None
        if it.is_drawn:
            known = draw_known([number], torch.tensor([[n]]), K, SEED).flatten()
        rows.append(block_nll(model, tokens.expand(len(orders), -1), orders, 9, n_known=known))
    torch.testing.assert_close(found, torch.stack(rows), **close)

    last = it.rows(found, text)[-1]
    assert (last['blocks'], last['tokens'], last['bytes']) == (8, 72, None)
    nats = found[:, -1]
    if name == 'any':
        nats = found.mean(1)
    if name != 'iw':
        sums = torch.stack([nats[text.block == b].sum() for b in range(8)])
        assert last['nats_per_token'] == pytest.approx(float(sums.sum() / 72), abs=1e-12)
        assert last['stderr'] == pytest.approx(ratio_error(sums, torch.full((8,), 9)), abs=1e-12)


# --------------------------------------------------------------------------------------------------
# runs


def prepare_set(name, *texts, tokenizer='bytes'):
    prepared.DATA_SETS['text'] = prepared.DataSet(lambda: [*texts] * 30, tokenizer, 0.1, '')
    prepared.prepare('text', 'data', name=name)


@pytest.fixture
def short(data):
    """A folder with pydocs, whose documents are long, and `short`, a block of which has many."""
    prepare_set('short', 'a', 'fox', '', 'over it', 'the quick brown fox jumps over it all')
    return data


@pytest.mark.slow
@pytest.mark.parametrize('network', ['', 'mixed'])
def test_a_run_is_resumed_and_is_that_of_two_processes(short, forked, network):
    """Two sets, two micro-batches."""
    options = [*TWO, '--dataset=pydocs:0.5,short:0.5', '--documents=apart', '--max_iters=5']
    if network:
        options += [f'--network={network}', '--l2r_ratio=0']

    def whole():
        run(*options, '--out_dir=whole')

    def stopped_and_resumed():
        run(*options, '--max_iters=3', '--lr_decay_iters=5')
        resume('--max_iters=5')

    assert [p.code for p in forked(whole, whole)] == [0, 0]
    stopped_and_resumed()
    assert_alike('whole', 'out', but=[3])
    run(*options, '--out_dir=one')
    assert_same_runs('one', 'out', entries_of_one=[3])


def test_what_cannot_be_apart_is_said_before_a_run(short, script):
    np.save('stream.npy', np.arange(300) % 7)
    script('data/prepare.py', 'tokens', '--source=stream.npy', '--name=bare', '--data_dir=data')
    with one_line('bare is a stream without'):
        run('--dataset=bare', '--documents=apart')
    with one_line('documents must be together or apart'):
        run('--dataset=short', '--documents=')
    assert not os.path.exists('out')


def test_what_cannot_be_apart():
    stream_of = split_of(3, 4)
    with one_line('documents must be together or apart'):
        check_documents(stream_of, '', 'mine')
    stream_of.eos = None
    check_documents(stream_of, 'together', 'mine')
    with one_line('mine is a stream without .* take --documents=together'):
        check_documents(stream_of, 'apart', 'mine')
    rows = Split(stream_of.packed[None])
    check_documents(rows, 'apart', 'mine')
    assert begins_in(torch.zeros(2, 7), rows, 'apart') is None
