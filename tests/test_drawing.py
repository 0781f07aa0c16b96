"""Drawing one token: its law, the numbers that it takes, and what is cut."""

import pytest
import torch
from conftest import make_model

from anyorder.generation.drawing import (
    Drawing,
    invert_cdf,
    keep_largest,
    sample_tokens,
    token_logprob,
)
from anyorder.generation.fill import generate


def one_row():
    return torch.zeros(1, 9, dtype=torch.long), torch.arange(9)[None]


def kept(logits, top_k=0, top_p=1.0, min_p=0.0):
    """The set of tokens that may be drawn, the slow way, from one row of logits."""
    p = logits.softmax(-1).tolist()
    ranked = sorted(range(len(p)), key=lambda i: -p[i])
    ranked = ranked[: top_k or None]
    total = 0.0
    keep = []
    whole = sum(p[i] for i in ranked)
    for i in ranked:
        keep.append(i)
        total += p[i] / whole
        if top_p < 1 and total >= top_p:
            break
    return [i for i in keep if p[i] >= min_p * max(p)]


@pytest.mark.parametrize(
    'how',
    [
        dict(),
        dict(top_k=3),
        dict(top_p=0.6),
        dict(top_p=0.6, top_k=4),
        dict(temperature=0.5),
        dict(top_k=1),
        dict(temperature=2.0, top_k=5, top_p=0.9),
        dict(top_p=1e-9),
        dict(min_p=0.3),
        dict(min_p=0.3, temperature=3.0),
        dict(min_p=0.05, top_p=0.8, top_k=4, temperature=2.0),
        dict(min_p=1.0),
    ],
)
def test_drawn_frequencies_are_the_law(how):
    logits = torch.tensor([0.3, 2.0, -1.0, 1.2, 0.0, 1.9, -torch.inf], dtype=torch.float64)
    scaled = logits / how.get('temperature', 1.0)
    keep = kept(scaled, **{name: how[name] for name in how if name != 'temperature'})
    law = torch.zeros(7, dtype=torch.float64)
    law[keep] = scaled[keep].softmax(-1)
    n = 30_000
    g = torch.Generator().manual_seed(0)
    drawn = sample_tokens(logits.expand(n, 7), **how, generator=g)
    counts = torch.bincount(drawn, minlength=7).double()
    assert (counts[law == 0] == 0).all()
    deviation = (n * law * (1 - law)).sqrt()
    assert ((counts - n * law).abs() <= 5 * deviation + 1e-9).all()


@pytest.mark.parametrize(
    'how',
    [dict(top_p=0.9), dict(top_p=0.9, top_k=40), dict(top_k=3000), dict(top_p=0.99, top_k=3000)],
)
def test_a_nucleus_is_cut_from_all_tokens_however_wide(how):
    g = torch.Generator().manual_seed(0)
    spread = torch.tensor([[0.1], [1.0], [3.0], [9.0]])  # some reach beyond 1024
    logits = torch.randn(4, 2000, dtype=torch.float64, generator=g) * spread
    cut = keep_largest(logits, how.get('top_k', 0), how.get('top_p', 1.0))
    for row, cut_row in zip(logits, cut):
        keep = torch.tensor(kept(row, **how))
        assert torch.equal(cut_row[keep], row[keep])
        assert (cut_row > -torch.inf).sum() == len(keep)


def test_uniform_numbers_map_to_tokens_by_the_cumulative_sum():
    logits = torch.tensor([0.5, 0.0, 0.25, 0.25, 0.0]).log()
    u = torch.tensor([0.0, 0.499, 0.501, 0.749, 0.751, 1 - 2**-53], dtype=torch.float64)
    assert sample_tokens(logits.expand(6, 5), u=u).tolist() == [0, 0, 2, 2, 3, 3]
    assert sample_tokens(logits.expand(2, 3, 5), temperature=0).tolist() == [[0] * 3] * 2


def test_chunked_inversion_is_the_cumulative_sum():
    g = torch.Generator().manual_seed(0)
    for V in (1, 2, 255, 256, 257, 700, 1024):
        p = torch.rand(300, V, dtype=torch.float64, generator=g)
        p *= torch.rand(300, V, generator=g) < 0.3
        p[:, V // 2] += 1e-3
        u = torch.rand(300, dtype=torch.float64, generator=g)
        u[:3] = torch.tensor([0.0, 0.5, 1 - 2**-53])
        j = invert_cdf(p, u)
        cdf = p.cumsum(1)
        own = p.gather(1, j[:, None])[:, 0]
        assert (own > 0).all()
        target = u * cdf[:, -1]
        above = cdf.gather(1, j[:, None])[:, 0]
        below = above - own
        assert (below - 1e-12 <= target).all()
        assert (target <= above + 1e-12).all()


@pytest.mark.parametrize('n_small, token', [(-1, 0), (0.5, 300), (1.5, 600), (2.5, 900)])
def test_cumulative_sums_hold_what_float32_cannot(n_small, token):
    """2^-25 more is lost to a float32 sum of 1."""
    small = 2.0**-25
    p = torch.zeros(1, 1024)
    p[0, 0] = 1.0
    p[0, [300, 600, 900]] = small
    share = (1 + n_small * small) / (1 + 3 * small)
    u = torch.tensor([share], dtype=torch.float64)
    assert invert_cdf(p, u).item() == token


def test_the_last_uniform_number_never_draws_what_has_no_probability():
    logits = torch.randn(200, 50003)
    logits[:, 50000:] = -torch.inf
    u = torch.full((200,), 1 - 2**-53, dtype=torch.float64)
    assert (sample_tokens(logits, u=u) < 50000).all()


@pytest.mark.parametrize(
    'wrong',
    [
        dict(temperature=-0.1),
        dict(temperature=float('nan')),
        dict(temperature=float('inf')),
        dict(top_p=0.0),
        dict(top_p=1.1),
        dict(top_k=-1),
        dict(min_p=-0.1),
        dict(min_p=1.1),
        dict(min_p=float('nan')),
        dict(presence_penalty=float('nan')),
        dict(presence_penalty=101.0),
        dict(presence_penalty=-101.0),
    ],
)
def test_drawing_out_of_range(wrong):
    for draw in (Drawing, lambda **how: generate(make_model(), *one_row(), 0, **how)):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            draw(**wrong)


def test_tokens_are_never_drawn_in_16_bits():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 300, generator=g).bfloat16()
    u = torch.rand(400, dtype=torch.float64, generator=g)
    for how in (dict(), dict(temperature=0.7), dict(top_p=0.8)):
        low = sample_tokens(logits, **how, u=u)
        high = sample_tokens(logits.float(), **how, u=u)
        assert torch.equal(low, high)


def test_a_generator_gives_the_uniform_numbers():
    logits = torch.randn(3, 4, 7)
    g = torch.Generator().manual_seed(3)
    drawn = sample_tokens(logits, generator=g)
    u = torch.rand(3, 4, dtype=torch.float64, generator=g.manual_seed(3))
    assert torch.equal(drawn, sample_tokens(logits, u=u))


def test_log_probabilities_come_from_the_softmax_in_float32_or_better():
    logits = torch.randn(5, 7, dtype=torch.float64)
    token = torch.tensor([0, 6, 3, 3, 1])
    logp = logits.log_softmax(-1)
    by_hand = torch.stack([row[t] for row, t in zip(logp, token)])
    torch.testing.assert_close(token_logprob(logits, token), by_hand, rtol=0, atol=1e-14)
    low = logits.bfloat16()
    assert token_logprob(low, token).dtype == torch.float32
    assert torch.equal(token_logprob(low, token), token_logprob(low.float(), token))


@pytest.mark.parametrize('temperature', [1e-320, 1e-50, 1e-3])
def test_temperature_near_zero_is_argmax(temperature):
    logits = torch.tensor([[1.0, -3.0, 9.0, 2.0], [40.0, 2.0, -torch.inf, 3.0]])
    assert sample_tokens(logits, temperature=temperature).tolist() == [2, 0]
    assert sample_tokens(logits[0], temperature=temperature) == 2
    hot = sample_tokens(logits[1].expand(99, 4), temperature=1e60)
    assert {*hot.tolist()} == {0, 1, 3}
