"""What does a block learn and see? Documents apart, and prompts whose answers alone count, each as
a text by itself, through training, validation, eval_ppl.py and sampling."""

import itertools

import numpy as np
import pytest
import torch
from conftest import close, make_model
from oracle import ENCODER, FINAL, TWO_STREAM, VARIANTS

from anyorder.extras.puzzles.solve import solve
from anyorder.generation import Drawing, unmasking_of
from anyorder.generation.way import Way
from anyorder.likelihood.measured import Corpus
from anyorder.likelihood.nll import blank_nll, known_shares
from anyorder.orders import RANDOM, Order, draw_orders
from anyorder.tokens.apart import begins_of
from anyorder.tokens.blocks import Blocks, all_blocks, random_blocks
from anyorder.tokens.meta import Meta
from anyorder.tokens.sets import PADDING, Split
from anyorder.tokens.tokenizer import get_tokenizer
from anyorder.training.update import TrainState, draw_batch
from anyorder.training.validation import nats_in_orders
from configurator import Config
from model import EMA, Parts

EOS = 10
LENGTHS = [3, 4, 2, 1, 9, 12, 5, 6, 30]
SETS = ['documents', 'given', 'prompts']
NETWORKS = [{}, *VARIANTS[5:], TWO_STREAM[1], FINAL[0], ENCODER]


def split_of(kind):
    """A stream of documents, some of whose tokens are given, or which are rows with prompts."""
    tokens = np.random.default_rng(3).integers(EOS, size=sum(LENGTHS))
    ends = np.cumsum(LENGTHS)
    tokens[ends - 1] = EOS
    has_prompts = kind == 'prompts'
    meta = Meta('x', '', 11, EOS, given=kind != 'documents', prompts=has_prompts)
    given = np.zeros_like(tokens, bool)
    if kind == 'given':
        given[[0, 1, 2, 4, 9, 15, 20, 21, 29, 50]] = True
    if has_prompts:
        for end, n in zip(ends, LENGTHS):
            given[end - n : end - n + min(n // 2, 4)] = True
    return Split(meta.pack(tokens, given), meta)


def blocks_of(kind, documents='apart'):
    return Blocks(split_of(kind), 9, documents)


def options(model, order):
    """The options of a training."""
    l2r_ratio = 0.0 if model.slots_class.masked_loss else 0.3
    sizes = {'batch_size': 6, 'block_size': 9, 'dtype': 'float32', 'seed': 3}
    return Config(sizes, l2r_ratio=l2r_ratio, order=order)


def begins_in(blocks, kind):
    """Where each text of blocks begins, (n, P): of a stream of documents, or of rows of one."""
    return 0 * blocks[:, :1] if kind == 'prompts' else begins_of(blocks, EOS)


def texts_of(row, begins):
    """[(p, b, e)]: text p stands in a block (N,) from b to e; PADDING is in none."""
    edges = [*begins.tolist(), int((row != PADDING).sum())]
    return [(p, b, e) for p, (b, e) in enumerate(itertools.pairwise(edges)) if b < e]


def by_themselves(model, blocks, given, begins, orders, law, known):
    """Nats (n, N) of the visits of blocks, each text by itself, 0 for what is given or padding.

    A text is read as its block reads its places, or of another law than 'random' as a document of
    its length, what is given first. Of a masked loss so many visits are known, (n,) or (n, P)."""
    nats = torch.zeros(blocks.shape, dtype=torch.float64)
    for r, row in enumerate(blocks):
        for p, b, e in texts_of(row, begins[r]):
            shift = b if law == 'random' else 0
            own = [d - shift for d in orders[r].tolist() if 0 <= d - shift < e - b]
            own.sort(key=lambda d: not given[r, b + d])
            n, first = e - b, int(given[r, b:e].sum())
            if first < n:
                at = None if known is None else known[r].view(-1)[p : p + 1]
                nll = model(row[None, b:e], torch.tensor([own]), at)[0, first:]
                nats[r, b + first : e] = nll if at is None else nll * (n - first) / n
    return nats


# --------------------------------------------------------------------------------------------------
# a block


def test_documents_begin_behind_an_end():
    tokens = torch.tensor([[1, EOS, 2, 3], [EOS, EOS, EOS, EOS], [1, 2, 3, EOS]])
    assert begins_of(tokens, EOS).tolist() == [[0, 2, 4, 4], [0, 1, 2, 3], [0, 4, 4, 4]]
    assert begins_of(tokens[2:], EOS).tolist() == [[0]]
    assert blocks_of('documents', 'together').begins(tokens) is None


@pytest.mark.parametrize('order', ['random', 'few:3', 'block:4@2'])
@pytest.mark.parametrize('kind', SETS)
@pytest.mark.parametrize('variant', NETWORKS)
def test_a_text_is_learned_and_validated_as_by_itself(variant, kind, order):
    """What is given comes first and costs nothing, also where all of a part is given."""
    model = make_model(**variant)
    sets = [blocks_of(kind)]
    config = options(model, order)
    law = Order.of('own', config)
    torch.manual_seed(2)
    batch = draw_batch(TrainState(model, [], EMA(model, 0.9), law), sets, config)
    torch.manual_seed(2)
    blocks, given = random_blocks(sets, 6)
    orders = law.draw(6, 9, l2r_ratio=config.l2r_ratio)
    how = begins_in(blocks, kind), orders, law.law, batch.n_known
    nats = blank_nll(model, batch)
    close(nats, by_themselves(model, blocks, given, *how))
    assert batch.is_blank.sum() == batch.n_blanks.sum()
    assert not nats[~batch.is_blank].any()

    blocks, given = all_blocks(sets[0])
    begins = begins_in(blocks, kind)
    laws = {'any': RANDOM} if model.slots_class.masked_loss else {'own': law, 'l2r': Order('l2r')}
    found = nats_in_orders(model, Corpus.of(sets[0], 0, get_tokenizer('bytes')), laws, config)
    number = Parts.of(blocks, None, begins).number

    def count(flags):
        return torch.zeros_like(begins).scatter_add(1, number, flags.long())

    for name, own in laws.items():
        known = None
        if model.slots_class.masked_loss:
            n_blanks = count(~given)
            share = known_shares(range(len(blocks)), begins.size(1)).view_as(n_blanks)
            known = count(given & (blocks != PADDING)) + (share * n_blanks).long()
        orders = draw_orders(range(len(blocks)), 9, order=own)
        want = by_themselves(model, blocks, given, begins, orders, own.law, known)
        close(found[name], want.sum(1))


# --------------------------------------------------------------------------------------------------
# a text that is measured


def test_a_part_is_measured_as_a_row_of_its_own():
    """The longest first, as few passes are then padded; tokens and errors stay those of blocks."""
    tokens = torch.tensor([[1, EOS, 2, 3], [EOS, 4, 5, 6]])
    given = torch.tensor([[0, 0, 1, 1], [1, 0, 0, 1]]).bool()
    text = Corpus(None, tokens, given).apart(begins_of(tokens, EOS))
    assert text.blocks.tolist() == [[4, 5, 6, PADDING], [1, EOS, PADDING, PADDING]]
    assert text.given.tolist() == 2 * [[False, False, True, True]]
    assert text.by_block(torch.tensor([7, 5])).tolist() == [5, 7]


def test_answers_are_written_as_without_padding():
    model = make_model()
    tokens, given = all_blocks(blocks_of('prompts'))
    how = Way(unmasking_of(n_steps=9, policy='margin'), Drawing(0.0)), 5
    found = solve(model, tokens, given, *how, 3)
    for b, n in enumerate((tokens != PADDING).sum(1)):
        row = slice(b, b + 1), slice(n)
        assert torch.equal(found[row], solve(model, tokens[row], given[row], *how))
