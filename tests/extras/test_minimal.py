"""The paper in one file says what model.py says: in float64, on small networks, up to rounding."""

import copy
import re
from pydoc_data.topics import topics

import pytest
import torch
from conftest import REFERENCE, make_model
from oracle import chi2_of, limit

from anyorder.checkpoint import model_from_checkpoint
from anyorder.extras import minimal
from anyorder.generation import generate
from anyorder.likelihood import ensemble_nll
from model import EMA


def assert_equal(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def same_network(model):
    """The network of the file with the weights of `model`."""
    c = model.config
    network = minimal.AOGPT(c.block_size, c.vocab_size, c.n_layer, c.n_head, c.n_embd, c.n_cond)
    network.to(model.dtype).load_state_dict(model.state_dict())
    return network.requires_grad_(False)


def case(seed):
    """(model, idx, order, n_known) of random sizes."""
    g = torch.Generator().manual_seed(seed)

    def draw(low, high, *shape):
        return torch.randint(low, high + 1, shape, generator=g)

    N, rows, heads, V = (int(draw(low, high)) for low, high in ((2, 12), (1, 5), (1, 3), (2, 20)))
    sizes = dict(n_head=heads, n_embd=heads * int(draw(1, 8)), n_cond=int(draw(1, 9)))
    model = make_model(seed, block_size=N, vocab_size=V, n_layer=int(draw(1, 3)), **sizes)
    order = torch.rand(rows, N, generator=g).argsort(1)
    return model, draw(0, V - 1, rows, N), order, draw(0, N - 1, rows)


@pytest.mark.parametrize('seed', range(12))
def test_losses_predictions_texts_and_ensembles_are_the_same(seed):
    model, idx, order, known = case(seed)
    same = same_network(model)
    N = idx.size(1)
    for T in range(1, N + 1):
        assert_equal(minimal.visit_nll(same, idx, order[:, :T]), model(idx, order[:, :T]))
    logits = same(idx, order, known)
    predicted = model.predict(idx, order, known)
    for row, n_known in enumerate(known.tolist()):
        assert_equal(logits[row, n_known:], predicted[row, : N - n_known])

    n_known = int(known.min())
    for how, policy in (('fixed', 'given'), ('adaptive', 'margin')):
        for n_steps in {1, (N - n_known + 1) // 2, N - n_known}:
            text = minimal.generate(same, idx, order, n_known, n_steps, how, 0)
            options = {'policy': policy, 'temperature': 0}
            expected = generate(model, idx, order, n_known, n_steps, **options)
            assert torch.equal(text, expected)

    torch.manual_seed(0)
    mean = minimal.ensemble_nll(same, idx, order, N - 1, n_contexts=4)
    torch.manual_seed(0)
    logp = []
    for shuffle in [torch.arange(N - 1), *[torch.randperm(N - 1) for _ in range(3)]]:
        context = torch.cat([order[:, shuffle], order[:, N - 1 :]], 1)
        logp.append(-model(idx, context)[:, N - 1])
    assert_equal(mean, ensemble_nll(torch.stack(logp, 1)))


@pytest.mark.parametrize('seed', range(3))
def test_five_updates_are_the_same(seed):
    """Of the weights and of their average, by the loss of model.py and its EMA."""
    model, idx, _, _ = case(seed)
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
        assert abs(loss - expected.item()) < 1e-10
    assert_equal(same.state_dict(), model.state_dict())
    assert_equal(average.state_dict(), ema.model.state_dict())


def test_tokens_and_orders_are_drawn_by_their_probabilities():
    model = make_model(block_size=1, vocab_size=3)
    order = torch.zeros(6_000, 1, dtype=torch.long)
    torch.manual_seed(0)
    text = minimal.generate(same_network(model), order, order, 0, 1, temperature=0.5)
    p = (model.predict(order[:1], order[:1], 0)[0, 0] / 0.5).softmax(-1)
    assert chi2_of(text.flatten().bincount(minlength=3), p) < limit(2)
    orders = minimal.sample_order(6_000, 3, l2r_ratio=0.5)
    assert torch.equal(orders.sort(1).values, torch.arange(3).expand(6_000, 3))
    counts = (orders[:, 0] * 3 + orders[:, 1]).bincount(minlength=8)[[1, 2, 3, 5, 6, 7]]
    assert chi2_of(counts, torch.tensor([7, 1, 1, 1, 1, 1]) / 12) < limit(5)


def test_a_binomial_step_reveals_each_blank_by_its_share():
    seen = []

    def model(idx, order, n_known):  # the token that it is sure of is 1
        seen.append(n_known)
        return torch.tensor([-9.0, 9.0]).expand(*order.shape, 2)

    order = torch.arange(20).expand(1, -1)
    torch.manual_seed(0)
    for _ in range(500):
        text = minimal.generate(model, 0 * order, order, 4, 4, 'binomial', temperature=0)
        assert text.tolist() == [[0] * 4 + [1] * 16]
    # of 16 blanks a quarter by each step, and the last reveals all that are left
    mean = torch.tensor(seen, dtype=torch.float64).view(500, 4).mean(0)
    assert (mean - torch.tensor([4, 8, 12, 16])).abs().max() < 5 * (16 / 4 / 500) ** 0.5


def test_the_file_is_short_and_weights_of_the_published_format_give_its_logits():
    with open(minimal.__file__, encoding='utf-8') as f:
        assert len(f.readlines()) <= 230
    expected = torch.load(f'{REFERENCE}/adaln_small.expected.pt', weights_only=True)
    same = same_network(model_from_checkpoint(f'{REFERENCE}/adaln_small.ckpt.pt', 'raw'))
    idx = expected['idx']
    logits = same(idx, expected['orders'], idx.size(1) - 1)[:, :: expected['logits_stride']]
    torch.testing.assert_close(logits, expected['raw']['logits'], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_the_demo_learns_more_than_frequencies_and_fills_its_blank(script):
    said = script('anyorder.extras.minimal').stdout
    numbers = re.search(r'single bytes ([\d.]+), in random order ([\d.]+)', said)
    assert float(numbers[2]) < float(numbers[1]) - 1
    # It has learned the sentences by heart: some of them are whole again, a byte a pass
    manual = ' '.join(' '.join(topics.values()).split())
    filled = re.findall(r'^(.*?) *passes: (?!1$)\d+$', said, flags=re.MULTILINE)
    assert sum(sentence in manual for sentence in filled) >= len(filled) / 2
