"""Documents apart: a packed block is its parts alone, for every network, in float64."""

import numpy as np
import pytest
import torch
from conftest import make_model, one_line
from test_model import FINAL, TWO_STREAM, VARIANTS, name_of

from anyorder.likelihood.nll import blank_nll
from anyorder.orders import Order
from anyorder.seeds import stream
from anyorder.tokens.apart import apart, begins_in, begins_of, check_documents
from anyorder.tokens.blocks import Batch, all_blocks
from anyorder.tokens.sets import Split
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
    begins = begins_in(blocks, split, config)
    found = validate(model, blocks, given, config, begins)
    if model.slots.masked_loss:
        assert list(found) == ['any']
        return
    for r in range(len(blocks)):
        want = 0.0
        for b, n in zip(begins[r].tolist(), lengths_of(begins)[r].tolist()):
            if n:
                want += model(blocks[r : r + 1, b : b + n], torch.arange(n)[None]).sum()
        torch.testing.assert_close(found['l2r'][r], want, **close)


def test_what_cannot_be_apart():
    stream_of = split_of(3, 4)
    with one_line('documents must be apart'):
        check_documents(stream_of, 'together', 'mine')
    stream_of.eos = None
    check_documents(stream_of, '', 'mine')
    with one_line('mine is a stream without'):
        check_documents(stream_of, 'apart', 'mine')
    rows = Split(stream_of.packed[None])
    check_documents(rows, 'apart', 'mine')
    assert begins_in(torch.zeros(2, 7), rows, Config(documents='apart')) is None
