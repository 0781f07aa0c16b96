"""The weights of attention are those by which the network reads, and stand where slots are."""

import pytest
import torch
import torch.nn.functional as F
from conftest import N_KNOWN, close, make_model
from oracle import ENCODER, FINAL, TWO_STREAM, VARIANTS

from anyorder.extras.attention import attention

NETWORKS = [*VARIANTS, *FINAL, ENCODER]


@pytest.mark.parametrize('variant', NETWORKS)
def test_weights_times_values_are_what_the_network_reads(idx, order, variant, monkeypatch):
    model = make_model(**variant)
    before = model.predict(idx, order, N_KNOWN)
    plain = F.scaled_dot_product_attention
    calls = []

    def spy(q, k, v, *how, **named):
        y = plain(q, k, v, *how, **named)
        calls.append((v, y))
        return y

    monkeypatch.setattr(F, 'scaled_dot_product_attention', spy)
    weights, reads = attention(model, idx, order, N_KNOWN)
    monkeypatch.undo()
    assert weights.shape == (2, 5, 2, 9, 9)
    close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    for of_layer, (v, y) in zip(weights, calls, strict=True):
        close(of_layer @ v, y[:, :, -9:])
    assert torch.equal(model.predict(idx, order, N_KNOWN), before)

    visited = F.pad(order, (1, 0), value=-1)  # [None] first
    last = torch.arange(9).clamp(max=N_KNOWN.unsqueeze(1))
    assert torch.equal(reads, order if model.slots_class.masked_loss else visited.gather(1, last))


@pytest.mark.parametrize('variant', [{}, TWO_STREAM[0]])
def test_without_a_number_all_visits_but_the_last_are_known(batch, variant):
    model = make_model(**variant)
    for found, expected in zip(attention(model, *batch), attention(model, *batch, 8)):
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    'variant, n_known', [({}, 10), ({}, -1), (ENCODER, None), (FINAL[0], None)]
)
def test_wrong_numbers_are_refused(batch, variant, n_known):
    with pytest.raises(ValueError, match='n_known must be'):
        attention(make_model(**variant), *batch, n_known)
