"""The paper in one file says what model.py says: in float64, on small networks, up to rounding."""

import copy
import re
import subprocess
import sys
from pydoc_data.topics import topics

import pytest
import torch
from conftest import REFERENCE, ROOT, make_model

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


class Case:
    """A network of random sizes and a batch for it, by both files."""

    def __init__(self, seed):
        g = torch.Generator().manual_seed(seed)

        def draw(low, high, *shape):
            return torch.randint(low, high + 1, shape, generator=g)

        self.N = int(draw(2, 12))
        self.n_rows = int(draw(1, 5))
        n_head = int(draw(1, 3))
        V = int(draw(2, 20))
        sizes = {'n_head': n_head, 'n_embd': n_head * int(draw(1, 8)), 'n_cond': int(draw(1, 9))}
        self.model = make_model(
            seed, block_size=self.N, vocab_size=V, n_layer=int(draw(1, 3)), **sizes
        )
        self.same = same_network(self.model)
        self.idx = draw(0, V - 1, self.n_rows, self.N)
        self.order = torch.rand(self.idx.shape, generator=g).argsort(1)
        self.known = draw(0, self.N - 1, self.n_rows)


@pytest.fixture(scope='module', params=range(20))
def case(request):
    return Case(request.param)


def test_the_loss_is_the_same_for_whole_orders_and_their_beginnings(case):
    for T in range(1, case.N + 1):
        order = case.order[:, :T]
        assert_equal(minimal.visit_nll(case.same, case.idx, order), case.model(case.idx, order))


def test_predictions_are_the_same_in_rows_of_unequal_n_known(case):
    logits = case.same(case.idx, case.order, case.known)
    predicted = case.model.predict(case.idx, case.order, case.known)
    for row, n_known in enumerate(case.known.tolist()):
        assert_equal(logits[row, n_known:], predicted[row, : case.N - n_known])


@pytest.mark.parametrize('how, policy', [('fixed', 'given'), ('adaptive', 'margin')])
def test_greedy_texts_are_the_same(case, how, policy):
    n_known = int(case.known.min())
    for n_steps in {1, (case.N - n_known + 1) // 2, case.N - n_known}:
        text = minimal.generate(case.same, case.idx, case.order, n_known, n_steps, how, 0)
        options = {'policy': policy, 'temperature': 0}
        expected = generate(case.model, case.idx, case.order, n_known, n_steps, **options)
        assert torch.equal(text, expected)


def test_a_binomial_step_reveals_each_blank_by_its_share():
    seen = []

    def model(idx, order, n_known):  # the token that it is sure of is 1
        seen[-1].append(n_known)
        return torch.tensor([-9.0, 9.0]).expand(*order.shape, 2)

    n_texts = 500
    order = torch.arange(20).expand(2, -1)
    torch.manual_seed(0)
    for _ in range(n_texts):
        seen.append([])
        text = minimal.generate(
            model, torch.zeros_like(order), order, 4, 4, 'binomial', temperature=0
        )
        assert text.tolist() == [[0] * 4 + [1] * 16] * 2
    mean = torch.tensor(seen, dtype=torch.float64).mean(0)
    # of 16 blanks a quarter by each step, and the last reveals all that are left
    expected = torch.tensor([4, 8, 12, 16], dtype=torch.float64)
    assert (mean - expected).abs().max() < 5 * (16 / 4 / n_texts) ** 0.5  # five standard deviations


def test_the_file_is_read_in_ten_minutes():
    with open(minimal.__file__, encoding='utf-8') as f:
        assert len(f.readlines()) <= 230


@pytest.mark.parametrize('seed', range(5))
def test_five_updates_are_the_same(seed):
    """Of the weights and of their average, by the loss of model.py and its EMA."""
    case = Case(seed)
    model = case.model.requires_grad_(True)
    ema = EMA(model, 0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    same = case.same.requires_grad_(True)
    average = copy.deepcopy(same)
    own = torch.optim.SGD(same.parameters(), lr=0.1)
    for n in range(1, 6):
        torch.manual_seed(n)
        loss = minimal.update(same, average, [own], case.idx, n, decay=0.3)
        torch.manual_seed(n)
        order = minimal.sample_order(case.n_rows, case.N, l2r_ratio=0.1)
        expected = model(case.idx, order).mean()
        optimizer.zero_grad()
        expected.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ema.update(model)
        assert abs(loss - expected.item()) < 1e-10
    assert_equal(same.state_dict(), model.state_dict())
    assert_equal(average.state_dict(), ema.model.state_dict())


def test_the_ensemble_is_the_mean_over_the_same_shuffles(case):
    i = case.N - 1
    torch.manual_seed(0)
    mean = minimal.ensemble_nll(case.same, case.idx, case.order, i, n_contexts=4)
    torch.manual_seed(0)
    logp = []
    for shuffle in [torch.arange(i), *[torch.randperm(i) for _ in range(3)]]:
        context = torch.cat([case.order[:, shuffle], case.order[:, i:]], 1)
        logp.append(-case.model(case.idx, context)[:, i])
    assert_equal(mean, ensemble_nll(torch.stack(logp, 1)))


def test_tokens_are_drawn_by_their_probabilities():
    model = make_model(block_size=1, vocab_size=3)
    n = 6_000
    order = torch.zeros(n, 1, dtype=torch.long)
    torch.manual_seed(0)
    text = minimal.generate(same_network(model), order, order, 0, 1, temperature=0.5)
    p = (model.predict(order[:1], order[:1], 0)[0, 0] / 0.5).softmax(-1)
    chi2 = ((text.flatten().bincount(minlength=3) - n * p) ** 2 / (n * p)).sum()
    assert chi2 < 2 + 5 * 2  # 2 degrees of freedom, five standard deviations


def test_orders_are_left_to_right_or_uniform():
    n = 6_000
    torch.manual_seed(0)
    orders = minimal.sample_order(n, 3, l2r_ratio=0.5)
    assert torch.equal(orders.sort(1).values, torch.arange(3).expand(n, 3))
    first_two = (orders[:, 0] * 3 + orders[:, 1]).bincount(minlength=8)
    share = first_two[[1, 2, 3, 5, 6, 7]] / n
    expected = torch.tensor([7, 1, 1, 1, 1, 1]) / 12
    assert (share - expected).abs().max() < 5 * 0.5 / n**0.5  # five standard deviations at most


def test_weights_of_the_published_format_give_its_logits():
    expected = torch.load(f'{REFERENCE}/adaln_small.expected.pt', weights_only=True)
    same = same_network(model_from_checkpoint(f'{REFERENCE}/adaln_small.ckpt.pt', 'raw'))
    idx = expected['idx']
    order = expected['orders']
    logits = same(idx, order, idx.size(1) - 1)[:, :: expected['logits_stride']]
    torch.testing.assert_close(logits, expected['raw']['logits'], rtol=0, atol=1e-4)


@pytest.mark.slow
def test_the_demo_learns_more_than_frequencies_and_fills_its_blank():
    command = [sys.executable, '-m', 'anyorder.extras.minimal']
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    entropy, any_order = re.search(
        r'single bytes ([\d.]+), in random order ([\d.]+)', said
    ).groups()
    assert float(any_order) < float(entropy) - 1
    # It has learned the sentences by heart: some of them are whole again, a byte a pass
    manual = ' '.join(' '.join(topics.values()).split())
    filled = re.findall(r'^(.*?) *passes: (?!1$)\d+$', said, flags=re.MULTILINE)
    right = [sentence for sentence in filled if sentence in manual]
    assert len(right) >= len(filled) / 2
