"""The weights of attention are those by which the network reads, and stand where slots are."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from conftest import close, make_model
from oracle import ENCODER, FINAL, TWO_STREAM, VARIANTS

from anyorder.extras.attention import attention

NETWORKS = [*VARIANTS, *FINAL, ENCODER]
KNOWN = torch.tensor([0, 3, 8, 5, 1])  # of the five rows of `batch`


def sees(model, known, d, j):
    """Whether slot d has slot j among its keys, by the definition of each network."""
    if model.config.target_position == 'two_stream':
        return j <= min(d, known)
    if model.config.attention == 'bidirectional':
        return True
    if model.config.attention == 'mixed':
        return d >= known or j <= d
    return j == d or j < min(d, known)


def read_by(model, order, known, j):
    if model.slots.masked_loss:
        return order[j]
    return [-1, *order][min(j, known)]


@pytest.mark.parametrize('variant', NETWORKS)
def test_weights_times_values_are_what_the_network_reads(idx, order, variant, monkeypatch):
    model = make_model(**variant)
    before = model.predict(idx, order, KNOWN)
    plain = F.scaled_dot_product_attention
    calls = []

    def spy(q, k, v, *how, **named):
        y = plain(q, k, v, *how, **named)
        calls.append((v, y))
        return y

    monkeypatch.setattr(F, 'scaled_dot_product_attention', spy)
    weights, reads = attention(model, idx, order, KNOWN)
    monkeypatch.undo()
    assert weights.shape == (2, 5, 2, 9, 9)
    for of_layer, (v, y) in zip(weights, calls, strict=True):
        close(of_layer @ v, y[:, :, -9:])
    assert torch.equal(model.predict(idx, order, KNOWN), before)

    for row, known in enumerate(KNOWN.tolist()):
        for d, j in itertools.product(range(9), range(9)):
            assert ((weights[:, row, :, d, j] > 0) == sees(model, known, d, j)).all()
        stands = [read_by(model, order[row].tolist(), known, j) for j in range(9)]
        assert reads[row].tolist() == stands


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
