"""What the plan counts is what autograd keeps."""

import pytest
import torch

from anyorder.checkpoint import Unset
from anyorder.fast import lean
from anyorder.machine.devices import autocast
from anyorder.training.memory import memory, slot_bytes
from model import AOGPT, AOGPTConfig

NETWORKS = {
    'adaln': {},
    'input': {'target_position': 'input'},
    'no bias': {'bias': False},
    'sigma-GPT': {'target_position': 'input', 'gpt2_blocks': True},
    'encoder': {'attention': 'bidirectional'},
    'mixed': {'attention': 'mixed'},
    'two streams': {'target_position': 'two_stream'},
}


def network(n_layer, **options):
    sizes = {'block_size': 256, 'vocab_size': 64, 'n_head': 2, 'n_embd': 64, 'n_cond': 8}
    return AOGPTConfig(**sizes | {'n_layer': n_layer} | options)


def kept_bytes(config, batch_size, dtype):
    """Bytes of all that a forward pass keeps for the backward pass, the weights left out."""
    model, storages = lean(AOGPT(config).train()), {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage  # held, so that no address comes twice
        return x

    idx = torch.zeros(batch_size, config.block_size, dtype=torch.long)
    order = torch.rand(idx.shape).argsort(1)
    known = torch.zeros(batch_size, dtype=torch.long) if config.slots.masked_loss else None
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x),
        autocast(torch.device('cpu'), dtype),
    ):
        model(idx, order, known).sum()
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize(
    'name, dtype',
    [
        *((name, 'bfloat16') for name in NETWORKS),
        *((name, 'float32') for name in ('adaln', 'sigma-GPT', 'mixed')),
    ],
)
def test_a_block_keeps_what_the_plan_counts(name, dtype):
    """What a third layer adds to a third row: no weight, and nothing that does not grow with both."""
    config, b = network(2, **NETWORKS[name]), 2 if dtype == 'bfloat16' else 4
    (two, three), (two_more, three_more) = (
        [kept_bytes(network(n_layer, **NETWORKS[name]), batch_size, dtype) for batch_size in (2, 3)]
        for n_layer in (2, 3)
    )
    found = three_more - two_more - (three - two)
    mask = b * 256**2 if name == 'mixed' else 0
    n_streams = 2 if name == 'two streams' else 1
    expected = 256 * n_streams * slot_bytes(config, b, compiled=False, cuda=False) + mask
    assert found == pytest.approx(expected, rel=0.005)


def meta_model(**options):
    with torch.device('meta'):
        return Unset(network(2, **options))


HOW = {'dtype': 'bfloat16', 'optimizer': 'adamw', 'compiled': True}


def test_the_parts_by_hand():
    """C = 64, L = 2, H = 2, V = 64, n_cond = 8, 3 x 256 tokens, compiled: 8 + 2 * 25 bytes times C a slot and layer, 8
    statistics of norms and attention; the last norm 8 + 2 * 5; the gradient of the logits 2 bytes."""
    model = meta_model()
    P, hidden = model.n_parameters(), 2 * 12 * 64 * 64
    parts = memory(model, 3, **HOW)
    copies = 2 * (hidden + (2 * 6 + 2) * 64 * 8 + 64 * 64)
    of_block = 768 * (64 * 58 + 4 * 8)
    assert [*parts.values()] == [
        4 * P,
        4 * P,
        8 * P,
        4 * P,
        copies,
        2 * of_block + 768 * 64 * 18,
        768 * 64 * 2,
        of_block // 4,
    ]
    assert memory(model, 3, **HOW | {'optimizer': 'muon'})['optimizer'] == 8 * P - 4 * hidden
    float32 = memory(model, 3, **HOW | {'dtype': 'float32'})
    assert float32['bfloat16 copies of the weights'] == 0 and float32['loss'] == 768 * 64 * 4
    again = memory(model, 3, **HOW, recompute=True)
    assert again['bfloat16 copies of the weights'] == hidden + 2 * (
        6 * 64 * 8 + 2 * 64 * 8 + 64 * 64
    )
    assert again['activations'] == 2 * 768 * 4 * 64 + of_block + 768 * 64 * 18
    assert memory(meta_model(**NETWORKS['two streams']), 3, **HOW)['activations'] == (
        3 * 768 * (64 * (8 + 2 * 15) + 4 * 8) + 768 * 64 * 18
    )


def test_every_layer_keeps_a_mask_unless_they_are_compiled_together():
    mixed, encoder = (meta_model(attention=attention) for attention in ('mixed', 'bidirectional'))
    for compiled, masks in (True, 1), (False, 2):
        ours, plain = (
            memory(model, 3, **HOW | {'compiled': compiled})['activations']
            for model in (mixed, encoder)
        )
        assert ours - plain == masks * 2 * 3 * 256 * 256


def test_sharding_divides_what_stays_and_gathers_two_blocks():
    model = meta_model()
    whole, split = (memory(model, 3, **HOW, world_size=4, shard=shard) for shard in (False, True))
    for part in ('weights', 'gradients', 'optimizer', 'EMA'):
        assert split[part] == whole[part] // 4
    assert whole['weights'] == memory(model, 3, **HOW)['weights']
    assert split['activations'] == whole['activations'] and split['loss'] == whole['loss']
    blocks = sum(p.numel() for name, p in model.named_parameters() if '.h.' in name)
    eager = HOW | {'compiled': False}
    rest, gathered = (
        memory(model, 3, **eager, world_size=4, shard=shard)['the rest, for a moment']
        for shard in (False, True)
    )
    assert (
        gathered - rest == 4 * (model.n_parameters() - blocks) + 4 * 3 * blocks // 2
    )  # and the gradients of one


def test_sequences_that_are_shorter_than_a_block_take_the_memory_of_their_length():
    for name, options in NETWORKS.items():
        whole, short = (
            memory(meta_model(**options | {'block_size': N}), 3, **HOW, N=64) for N in (256, 64)
        )
        assert all(whole[part] == short[part] for part in ('activations', 'loss')), name
