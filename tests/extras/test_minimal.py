"""The paper in one file says what model.py says: in float64, on small networks, up to rounding."""

import copy
import re

import pytest
import torch
from conftest import N_KNOWN, close, make_model, options_in
from oracle import chi2_of, limit

from anyorder.extras import minimal
from anyorder.generation import generate
from anyorder.likelihood import ensemble_nll
from model import EMA


def same_network(model):
    """The network of the file with the weights of `model`."""
    c = model.config
    network = minimal.AOGPT(c.block_size, c.vocab_size, c.n_layer, c.n_head, c.n_embd, c.n_cond)
    network.to(model.dtype).load_state_dict(model.state_dict())
    return network.requires_grad_(False)


SIZES = ['', 'n_layer=1 n_head=1 n_embd=3', 'n_layer=3 n_head=3 n_embd=24 n_cond=3']


@pytest.mark.parametrize('sizes', SIZES)
def test_predictions_texts_and_ensembles_are_the_same(idx, order, sizes):
    model = make_model(**options_in(sizes))
    same = same_network(model)
    logits = same(idx, order, N_KNOWN)
    predicted = model.predict(idx, order, N_KNOWN)
    for row, n_known in enumerate(N_KNOWN.tolist()):
        close(logits[row, n_known:], predicted[row, : 9 - n_known])

    for how, policy in (('fixed', 'given'), ('adaptive', 'margin')):
        for n_steps in (1, 3, 7):
            text = minimal.generate(same, idx, order, 2, n_steps, how, 0)
            expected = generate(model, idx, order, 2, n_steps, policy=policy, temperature=0)
            assert torch.equal(text, expected)

    torch.manual_seed(0)
    mean = minimal.ensemble_nll(same, idx, order, 8, n_contexts=4)
    torch.manual_seed(0)
    logp = [-model(idx, order)[:, 8]]
    for _ in range(3):
        logp.append(-model(idx, order[:, [*torch.randperm(8), 8]])[:, 8])
    close(mean, ensemble_nll(torch.stack(logp, 1)))


def test_five_updates_are_the_same(model, batch):
    """Of the weights and of their average, by the loss of model.py and its EMA."""
    idx, _ = batch
    same = same_network(model).requires_grad_(True)
    model.requires_grad_(True)
    ema = EMA(model, 0.3)
    average = copy.deepcopy(same)
    optimizer, own = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, same))
    for n in range(1, 6):
        torch.manual_seed(n)
        loss = minimal.update(same, average, [own], idx, n, decay=0.3)
        torch.manual_seed(n)
        order = minimal.sample_order(*idx.shape, l2r_ratio=0.1)
        expected = model(idx, order).mean()
        optimizer.zero_grad()
        expected.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ema.update(model)
    assert loss == pytest.approx(expected.item(), rel=1e-10)
    close(same.state_dict(), model.state_dict())
    close(average.state_dict(), ema.model.state_dict())


def test_tokens_steps_and_orders_are_drawn_by_their_probabilities():
    """Of 16 blanks a quarter by each binomial step, and the last reveals all that are left."""
    seen = []
    logits = torch.tensor([1.0, 0.5, 0.0])

    def model(idx, order, n_known):
        seen.append(n_known)
        return logits.expand(*order.shape, 3)

    order = torch.arange(20).expand(1, -1)
    how = 4, 4, 'binomial', 0.5
    torch.manual_seed(0)
    texts = torch.cat([minimal.generate(model, order, order, *how) for _ in range(500)])
    assert chi2_of(texts[:, 4:].flatten().bincount(), (logits / 0.5).softmax(0)) < limit(2)
    mean = torch.tensor(seen, dtype=torch.float64).view(500, 4).mean(0)
    assert (mean - torch.tensor([4, 8, 12, 16])).abs().max() < 5 * (16 / 4 / 500) ** 0.5
    orders = minimal.sample_order(6_000, 3, l2r_ratio=0.5)
    assert torch.equal(orders.sort(1).values, torch.arange(3).expand(6_000, 3))
    counts = (orders[:, 0] * 3 + orders[:, 1]).bincount(minlength=8)[[1, 2, 3, 5, 6, 7]]
    assert chi2_of(counts, torch.tensor([7, 1, 1, 1, 1, 1]) / 12) < limit(5)


@pytest.mark.slow
def test_the_demo_learns_more_than_frequencies(script):
    said = script('anyorder.extras.minimal', '--n_updates=150').stdout
    numbers = re.search(r'single bytes ([\d.]+), in random order ([\d.]+)', said)
    assert float(numbers[2]) < float(numbers[1]) - 0.3
