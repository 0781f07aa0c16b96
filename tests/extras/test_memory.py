"""What the plan counts is what autograd keeps."""

from dataclasses import replace

import pytest
import torch

from anyorder.checkpoint import Unset
from anyorder.extras.speed.memory import Setup, memory, slot_bytes
from anyorder.fast import lean
from anyorder.machine.devices import autocast
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
SIZES = {'block_size': 256, 'vocab_size': 64, 'n_head': 2, 'n_embd': 64, 'n_cond': 8}
SETUP = Setup(3, 256, 'bfloat16', 'adamw', compiled=True)


def network(n_layer, **options):
    return AOGPTConfig(**SIZES | {'n_layer': n_layer} | options)


def meta_model(**options):
    with torch.device('meta'):
        return Unset(network(2, **options))


def kept_bytes(config, batch_size, dtype, apart=False):
    """Bytes of all that a forward pass keeps for the backward pass, the weights left out."""
    model = lean(AOGPT(config).train())
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages = {}

    def pack(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage  # held, so that no address comes twice
        return x

    idx = torch.zeros(batch_size, config.block_size, dtype=torch.long)
    order = torch.rand(idx.shape).argsort(1)
    n_known = None
    begins = None
    if apart:  # 256 positions are two texts
        begins = torch.tensor([0, 128]).repeat(batch_size, 1)
        order = torch.arange(256).expand(batch_size, -1)
    if config.slots.masked_loss:
        n_known = torch.zeros(batch_size, dtype=torch.long)
        if apart:
            n_known = torch.zeros_like(begins)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
    with hooks, autocast(torch.device('cpu'), dtype):
        model(idx, order, n_known, begins=begins).sum()
    return sum(storage.nbytes() for storage in storages.values())


CASES = [(name, 'bfloat16', False) for name in NETWORKS]
CASES += [(name, 'float32', False) for name in ('adaln', 'sigma-GPT', 'mixed')]
CASES += [(name, 'float32', True) for name in ('adaln', 'encoder', 'mixed')]


@pytest.mark.parametrize('name, dtype, apart', CASES)
def test_a_block_keeps_what_the_plan_counts(name, dtype, apart):
    """What a third layer adds to a third row: no weight, nothing that does not grow with both."""
    options = NETWORKS[name]
    two = network(2, **options)
    three = network(3, **options)
    of_two = kept_bytes(two, 3, dtype, apart) - kept_bytes(two, 2, dtype, apart)
    of_three = kept_bytes(three, 3, dtype, apart) - kept_bytes(three, 2, dtype, apart)

    b = 2 if dtype == 'bfloat16' else 4
    n_streams = 2 if name == 'two streams' else 1
    expected = 256 * n_streams * slot_bytes(two, b, compiled=False, cuda=False)
    if name == 'mixed' or apart:
        expected += b * 256**2
    assert of_three - of_two == pytest.approx(expected, rel=0.005)


def test_the_parts_by_hand():
    """C = 64, L = 2, H = 2, V = 64, n_cond = 8, 3 x 256 tokens, compiled.

    8 + 2 * 25 bytes times C a slot and layer, 8 statistics of norms and attention; the last norm
    8 + 2 * 5; the gradient of the logits 2 bytes."""
    model = meta_model()
    P = model.n_parameters()
    hidden = 2 * 12 * 64 * 64
    copies = 2 * (hidden + (2 * 6 + 2) * 64 * 8 + 64 * 64)
    of_block = 768 * (64 * 58 + 4 * 8)
    last = 768 * 64 * 18
    loss = 768 * 64 * 2
    found = [*memory(model, SETUP).values()]
    assert found == [4 * P, 4 * P, 8 * P, 4 * P, copies, 2 * of_block + last, loss, of_block // 4]

    muon = memory(model, replace(SETUP, optimizer='muon'))
    assert muon['optimizer'] == 8 * P - 4 * hidden
    float32 = memory(model, replace(SETUP, dtype='float32'))
    assert float32['bfloat16 copies of the weights'] == 0
    assert float32['loss'] == 2 * loss
    again = memory(model, replace(SETUP, recompute=True))
    of_one_block = 2 * (6 * 64 * 8 + 2 * 64 * 8 + 64 * 64)
    assert again['bfloat16 copies of the weights'] == hidden + of_one_block
    assert again['activations'] == 2 * 768 * 4 * 64 + of_block + last
    two_streams = memory(meta_model(**NETWORKS['two streams']), SETUP)
    of_stream = 768 * (64 * (8 + 2 * 15) + 4 * 8)
    assert two_streams['activations'] == 3 * of_stream + last


@pytest.mark.parametrize('compiled, n_masks', [(True, 1), (False, 2)])
def test_every_layer_keeps_a_mask_unless_they_are_compiled_together(compiled, n_masks):
    setup = replace(SETUP, compiled=compiled)
    mixed = memory(meta_model(**NETWORKS['mixed']), setup)
    encoder = memory(meta_model(**NETWORKS['encoder']), setup)
    assert mixed['activations'] - encoder['activations'] == n_masks * 2 * 3 * 256 * 256


def test_sharding_divides_what_stays_and_gathers_two_blocks():
    model = meta_model()
    whole = memory(model, SETUP)
    split = memory(model, replace(SETUP, n_parts=4))
    for part in ('weights', 'gradients', 'optimizer', 'EMA'):
        assert split[part] == whole[part] // 4
    assert split['activations'] == whole['activations']
    assert split['loss'] == whole['loss']

    inside = sum(p.numel() for name, p in model.named_parameters() if '.h.' in name)
    outside = model.n_parameters() - inside
    eager = replace(SETUP, compiled=False)
    rest = 'the rest, for a moment'
    gathered = memory(model, replace(eager, n_parts=4))[rest] - memory(model, eager)[rest]
    assert gathered == 4 * outside + 4 * 3 * inside // 2  # and the gradients of one


@pytest.mark.parametrize('options', NETWORKS.values(), ids=NETWORKS)
def test_sequences_that_are_shorter_than_a_block_take_the_memory_of_their_length(options):
    setup = replace(SETUP, length=64)
    whole = memory(meta_model(**options), setup)
    short = memory(meta_model(**options, block_size=64), setup)
    for part in ('activations', 'loss'):
        assert whole[part] == short[part]
