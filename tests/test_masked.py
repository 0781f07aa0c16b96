"""anyorder/others/masked.py: a masked model of others under our policies, each step by hand."""

import functools

import pytest
import torch
from conftest import make_model
from masked_kinds import KINDS

pytest.importorskip('transformers')

from types import SimpleNamespace

from anyorder.checkpoint import digest, open_checkpoint
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import fill, generate
from anyorder.generation.options import unmasking_of
from anyorder.generation.unmasking import SCORES
from anyorder.likelihood.nll import block_nll, conditional_logprob
from anyorder.others.masked import MaskedConfig, MaskedModel
from model import KVCache


@pytest.fixture(scope='session')
def kinds(folders):
    """kinds(name): (oracle, the opened folder, its model), opened once."""

    @functools.cache
    def opened(name):
        oracle, folder = folders(name)
        checkpoint = open_checkpoint(f'masked:{folder}')
        return oracle, checkpoint, checkpoint.model().requires_grad_(False)

    return opened


def by_hand(oracle, c, tokens, known):
    """Log-probabilities (N, V) of a text whose `known` tokens are read: what stands around it, masks in the blanks,
    the shift, and no probability for tokens that are never written."""
    inside = [token if there else c.mask_id for token, there in zip(tokens, known)]
    logits = oracle(torch.tensor([*c.prefix, *inside, *c.suffix]))
    first = len(c.prefix) - (1 if c.shift else 0)
    logits = logits[first : first + len(tokens), : c.n_tokens].clone()
    logits[:, [token for token in (*c.banned, c.mask_id) if token < c.n_tokens]] = -torch.inf
    return logits.log_softmax(-1)


def rows_of(checkpoint, lengths=(11, 7, 9)):
    """[(tokens, known)] of rows of these lengths. Every third token is known, in the second row none."""
    g, low, high = (
        torch.Generator().manual_seed(5),
        len(checkpoint.config.banned) + 2,
        checkpoint.config.n_tokens - 4,
    )
    return [
        (
            torch.randint(low, high, (n,), generator=g).tolist(),
            [r != 1 and p % 3 == 0 for p in range(n)],
        )
        for r, n in enumerate(lengths)
    ]


def write(model, texts, seed=3, **unmasking):
    canvas = Canvas.of_texts(texts, {'kind': 'random'}, seed)
    fill(model, canvas, unmasking_of(**unmasking), Drawing())
    return canvas.lists()


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(
    'how',
    [
        {'n_steps': 99},
        {'n_steps': 3, 'schedule': 'cosine'},
        {'n_steps': 4, 'unmask': 'binomial'},
        {'n_steps': 4, 'policy': 'margin'},
        {'n_steps': 5, 'policy': 'entropy', 'unmask': 'binomial'},
        {'policy': 'top_prob', 'threshold': 0.3},
    ],
    ids=lambda how: '-'.join(map(str, how.values())),
)
def test_each_step_is_a_call_of_the_network_by_hand(kinds, kind, how):
    oracle, checkpoint, model = kinds(kind)
    texts, c = rows_of(checkpoint), checkpoint.config
    for (given, known), (tokens, _, step, logprob) in zip(
        texts, write(model, texts, **how), strict=True
    ):
        assert [token for token, there in zip(tokens, known) if there] == [
            token for token, there in zip(given, known) if there
        ]
        for s in {*step} - {-1}:
            before = [there or -1 < when < s for there, when in zip(known, step)]
            logp = by_hand(oracle, c, tokens, before)
            now = [p for p, when in enumerate(step) if when == s]
            assert [logprob[p] for p in now] == pytest.approx(
                [float(logp[p, tokens[p]]) for p in now], abs=1e-4
            )
            if how.get('policy'):  # the best are revealed
                score = SCORES[how['policy']](logp)
                left = [
                    float(score[p]) for p, there in enumerate(before) if not there and p not in now
                ]
                assert min(float(score[p]) for p in now) >= max(left, default=-9e9) - 1e-5
                if 'threshold' in how:
                    assert len(now) == 1 or min(float(score[p]) for p in now) > 0.3 - 1e-5


@pytest.mark.parametrize('kind', KINDS)
def test_rows_of_unequal_length_are_written_as_alone(kinds, kind):
    _, checkpoint, model = kinds(kind)
    texts = rows_of(checkpoint)
    texts[1][1][2] = (
        True  # where nothing is known all blanks of a network without learned positions are equally sure
    )
    together = write(model, texts, n_steps=4, policy='margin')
    for r, text in enumerate(texts):
        ((tokens, order, step, logprob),) = write(model, [text], 3 + r, n_steps=4, policy='margin')
        assert (tokens, order, step) == tuple(together[r][:3]) and logprob == pytest.approx(
            together[r][3], abs=1e-5
        )


@pytest.mark.parametrize('kind', KINDS)
def test_blanks_change_nothing_and_banned_tokens_are_never_drawn(kinds, kind):
    _, checkpoint, model = kinds(kind)
    c, B = checkpoint.config, 400 if checkpoint.config.n_tokens < 1000 else 20
    order, idx = (
        torch.rand(B, 6, generator=torch.Generator().manual_seed(2)).argsort(1),
        torch.full((B, 6), 20),
    )
    other = idx.scatter(1, order[:, 2:], c.banned[0] if c.banned else 1)
    logits = model.predict(idx[:4], order[:4], 2)
    assert torch.equal(logits, model.predict(other[:4], order[:4], 2)) and logits.shape == (
        4,
        4,
        c.n_tokens,
    )
    written = generate(model, idx, order, 2, 1, temperature=9.0, seeds=range(B))
    never = {*c.banned, c.mask_id}
    assert not never & {*written.flatten().tolist()} and len(written.unique()) > 30
    assert (logits[..., [token for token in never if token < c.n_tokens]] == -torch.inf).all()


@pytest.mark.parametrize('kind', KINDS)
def test_losses_and_likelihoods_are_sums_of_the_hand_made(kinds, kind):
    oracle, checkpoint, model = kinds(kind)
    (tokens, _), *_ = rows_of(checkpoint, (6,))
    idx, order, c = (
        torch.tensor([tokens] * 3),
        torch.tensor([[3, 0, 5, 1, 4, 2]] * 3),
        checkpoint.config,
    )

    def nats(d, n_known):
        known = [p in [3, 0, 5, 1, 4, 2][:n_known] for p in range(6)]
        p = [3, 0, 5, 1, 4, 2][d]
        return -float(by_hand(oracle, c, tokens, known)[p, tokens[p]])

    loss = model(idx, order, torch.tensor([0, 2, 5]))
    assert loss[1].tolist() == pytest.approx(
        [0, 0] + [6 / 4 * nats(d, 2) for d in range(2, 6)], abs=1e-4
    )
    assert loss[0].tolist() == pytest.approx([nats(d, 0) for d in range(6)], abs=1e-4)
    want = sum(nats(d, d) for d in range(6))
    assert float(block_nll(model, idx[:1], order[:1], 1)) == pytest.approx(want, abs=1e-4)
    given = conditional_logprob(model, idx[:1], [3], [0, 1, 2, 4, 5])
    last = by_hand(oracle, c, tokens, [p != 3 for p in range(6)])[3, tokens[3]]
    assert float(given) == pytest.approx(float(last), abs=1e-4)


# ---- any callable


def count_calls(n_tokens=6, width=None):
    """A callable network of logits that say what it was given, and the calls."""
    calls = []

    def network(tokens):
        calls.append(tokens)
        return SimpleNamespace(
            logits=3 * torch.nn.functional.one_hot(tokens, n_tokens).double()[..., :width]
        )

    return network, calls


def test_a_callable_sees_prefix_masks_and_suffix_and_rows_of_one_length_at_a_time():
    network, calls = count_calls()
    model = MaskedModel(
        network, MaskedConfig(4, 6, mask_id=5, banned=(0,), prefix=(0, 1), suffix=(2,))
    )
    idx, order = (
        torch.tensor([[3, 4, 3, 4], [4, 4, 3, 3]]),
        torch.tensor([[2, 0, 1, 3], [1, 0, 2, 3]]),
    )
    logits, inf = model.predict(idx, order, 2), torch.inf
    assert logits.tolist() == [[[-inf, 0, 0, 0, 0, -inf]] * 2] * 2
    model.predict(idx, order, torch.tensor([1, 2]), 2, n_visits=torch.tensor([4, 3]))
    model.predict(idx, order, 1, 1, n_visits=3)  # all rows end early
    assert [call.tolist() for call in calls] == [
        [[0, 1, 3, 5, 3, 5, 2], [0, 1, 4, 4, 5, 5, 2]],
        [[0, 1, 4, 4, 5, 2]],
        [[0, 1, 5, 5, 3, 5, 2]],
        [[0, 1, 5, 5, 3, 2], [0, 1, 5, 4, 5, 2]],
    ]
    with pytest.raises(ValueError, match='must be the positions from 0 on'):
        model.predict(idx, order, 1, n_visits=1)


@pytest.mark.parametrize(
    'kind', ['Bert', 'ConvBert', 'FNet', 'MBart', 'MobileBert', 'Nystromformer', 'Yoso']
)
def test_a_network_that_reads_padding_has_the_same_logits_beside_longer_rows(kind):
    import transformers

    torch.manual_seed(0)
    widths = dict.fromkeys(
        ('hidden_size', 'embedding_size', 'intra_bottleneck_size', 'true_hidden_size'), 16
    )
    config = getattr(transformers, f'{kind}Config')(
        vocab_size=45, num_hidden_layers=2, num_attention_heads=2, **widths
    )
    network = transformers.AutoModelForMaskedLM.from_config(config).double().eval()
    model = MaskedModel(network, MaskedConfig(11, 45, 3, prefix=(1,), suffix=(2,))).requires_grad_(
        False
    )
    idx, order, n = (
        torch.randint(5, 45, (3, 11)),
        torch.arange(11).expand(3, -1),
        torch.tensor([11, 7, 9]),
    )
    together = model.predict(idx, order, 5, 2, n_visits=n)
    for r in range(3):
        alone = model.predict(idx[r : r + 1, : n[r]], order[r : r + 1, : n[r]], 5, 2)
        torch.testing.assert_close(together[r], alone[0], rtol=0, atol=1e-12)


def test_the_shift_reads_the_logits_before_a_token():
    network, _ = count_calls()
    model = MaskedModel(network, MaskedConfig(3, 6, mask_id=5, shift=True, prefix=(4,)))
    idx, order = torch.tensor([[2, 3, 0]]), torch.tensor([[0, 1, 2]])
    assert (
        model.predict(idx, order, 2)[0, 0].argmax() == 3
        and model.predict(idx, order, 0)[0, 0].argmax() == 4
    )


def test_what_cannot_be_is_said():
    config = MaskedConfig(4, 6, mask_id=5)
    model, order = MaskedModel(count_calls()[0], config), torch.arange(4)[None]
    idx = torch.zeros(1, 4, dtype=torch.long)
    for call, said in (
        (lambda: generate(model, idx, order, 0, unmask='lossless'), 'wants a decoder'),
        (
            lambda: model.predict(idx, order, 1, cache=KVCache(make_model().config, 1)),
            'has no cache',
        ),
        (lambda: model.predict(idx, order[:, :2], 1), 'whole orders'),
        (
            lambda: MaskedModel(count_calls(width=5)[0], config).predict(idx, order, 1),
            r'got \(1, 4, 5\)',
        ),
        (lambda: MaskedConfig(4, 6, 5, shift=True), 'wants a prefix'),
        (lambda: MaskedConfig(4, 6, 5, banned=(6,)), 'from 0 to 5'),
        (lambda: MaskedConfig(0, 6, 5), 'at least 1'),
    ):
        with pytest.raises(ValueError, match=said):
            call()


def test_the_network_sets_the_mode():
    layer = torch.nn.Linear(2, 2)
    assert MaskedModel(layer, MaskedConfig(4, 6, 5)).training
    assert not MaskedModel(layer.eval(), MaskedConfig(4, 6, 5)).training
    assert not MaskedModel(count_calls()[0], MaskedConfig(4, 6, 5)).training


def test_a_network_of_another_config_json_is_another_one():
    """Its weights do not say how positions are scaled."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(2, 2)
    digests = {
        digest(MaskedModel(layer, MaskedConfig(4, 6, 5, file=file))) for file in ('', 'a', 'b', 'a')
    }
    assert len(digests) == 3 and MaskedConfig(4, 6, 5, file='a') == MaskedConfig(4, 6, 5)
