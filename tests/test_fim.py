"""A left-to-right model that learns to fill in a middle, a program of results/infilling."""

from collections import Counter

import numpy as np
import pytest
import torch
from conftest import make_model, one_line
from test_training import OPTIONS, TOKENS, learner, start
from toy_runs import TOY, assert_same_runs

import train
from anyorder.checkpoint import load_checkpoint
from anyorder.likelihood.continuations import scores_of_pieces
from anyorder.seeds import derive_seed
from anyorder.tokens.sets import Split
from anyorder.training.update import draw_batch
from configurator import Config, configure
from results.infilling.fim import check, main, middle_last, update_with_middles

OPTIONS = Config(
    OPTIONS | {'order': 'l2r', 'attention': 'causal', 'l2r_ratio': 0.0, 'fim_ratio': 0.6}
)
MARKED = {'n_tokens': 11, 'vocab_size': 14}


def test_the_middle_comes_last_behind_three_marks():
    """Pairs of cuts are as likely as of two uniform places; a share of the blocks stays as it
    is."""
    text = [5, 3, 8]
    block = [*text, 1, 2, 4]
    rows = middle_last(torch.tensor([block]).expand(32000, -1), 0.5, 90).tolist()
    moved = Counter(tuple(row) for row in rows if row[0] == 90)
    n_moved = sum(moved.values())
    assert n_moved == 32000 - rows.count(block)
    assert abs(n_moved - 16000) < 5 * 90

    law = {}
    for a in range(4):
        for b in range(a, 4):
            row = (90, *text[:a], 91, *text[b:], 92, *text[a:b])
            law[row] = n_moved / 16 * (1 if a == b else 2)
    assert len(law) == 10
    assert moved.keys() == law.keys()
    for row, expected in law.items():
        assert abs(moved[row] - expected) < 5 * expected**0.5


def test_marks_cost_nothing():
    """The loss of a batch by a naive loop over its real tokens."""
    config = Config(OPTIONS | {'gradient_accumulation_steps': 1, 'batch_size': 8})
    model = make_model(**MARKED)
    state = start(learner(**MARKED))
    torch.manual_seed(derive_seed(5, 0, 0))
    batch = draw_batch(Split(TOKENS), config, model)
    idx = middle_last(batch.idx, 0.6, 11)
    assert 0 < (idx[:, 0] == 11).sum() < 8
    nats = []
    for row in idx:
        for d, token in enumerate(row.tolist()):
            if token < 11:
                logits = model.predict(row[None], batch.order[:1], d, 1)
                nats.append(-float(logits.log_softmax(-1)[0, 0, token]))
    assert len(nats) < 72
    update_with_middles(state, Split(TOKENS), 1e-2, config)
    assert float(state.totals[0]) == pytest.approx(sum(nats) / len(nats))


def test_a_middle_is_scored_behind_its_marks():
    """Its nats, given prefix and suffix, by a naive loop."""
    model = make_model(**MARKED)
    context = [11, 1, 4, 12, 7, 13]
    middle = [3, 3, 0]
    naive = 0
    for d, token in enumerate(middle):
        known = torch.tensor([context + middle[:d] + [0]])
        order = torch.arange(known.size(1))[None]
        naive -= model.predict(known, order, known.size(1) - 1).log_softmax(-1)[0, 0, token]
    ((_, found, _),) = scores_of_pieces(model, [(context, middle)], 1, 99)
    assert found == pytest.approx(float(naive), abs=1e-6)


ROWS = np.zeros((2, 9), '<u2')


@pytest.mark.parametrize(
    'options, split, vocabulary, said',
    [
        ({'fim_ratio': 2}, Split(TOKENS), MARKED, 'from 0 to 1.* got 2,'),
        ({'block_size': 3}, Split(TOKENS), MARKED, 'more than 3 tokens .* l2r, 3 tokens'),
        ({}, Split(TOKENS), MARKED | {'attention': 'mixed'}, 'a causal network'),
        ({'order': 'random'}, Split(TOKENS), MARKED, 'order l2r, .* random,'),
        ({}, Split(ROWS), MARKED, 'wants a text'),
        ({}, Split(TOKENS, True), MARKED, 'wants a text'),
        ({}, Split(TOKENS), {}, 'and 0 rows'),
    ],
)
def test_what_cannot_learn_a_middle_is_one_line(options, split, vocabulary, said):
    config = Config(OPTIONS | {'dataset': 'toy'} | options)
    check(make_model(**MARKED), Split(TOKENS), Config(OPTIONS))
    with one_line(said):
        check(make_model(**vocabulary), split, config)


def test_a_resumed_run_is_the_uninterrupted_one(data, capsys):
    """By train.py it goes on from left to right, and says that this is another program."""
    toy = [*TOY, '--order=l2r']
    for args in (
        [*toy, '--max_iters=6', '--out_dir=whole'],
        [*toy, '--max_iters=4', '--lr_decay_iters=6'],
        ['--init_from=resume', '--max_iters=6'],
    ):
        main(configure(vars(train) | {'fim_ratio': 0.5}, args))
    assert_same_runs('whole', 'out')
    assert load_checkpoint('out/ckpt.pt')['config']['fim_ratio'] == 0.5
    capsys.readouterr()
    train.main(configure(vars(train), ['--init_from=resume', '--max_iters=7']))
    _, _, changed = capsys.readouterr().out.partition('changed since iteration 6: ')
    assert ' -> train.py\n' in changed
