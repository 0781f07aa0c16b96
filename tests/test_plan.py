"""The plan: what it counts is what autograd keeps, and its numbers are those of hand."""
import os

import pytest
import torch
from conftest import ROOT

from anyorder.checkpoint import Unset
from anyorder.devices import GPUS, autocast
from anyorder.fast import lean
from anyorder.plan import largest_batch, memory, parameters_by_part, parse_machine, same_update, slot_bytes
from configurator import Config
from model import AOGPT, AOGPTConfig

NETWORKS = {'adaln': {}, 'input': {'target_position': 'input'}, 'no bias': {'bias': False},
            'sigma-GPT': {'target_position': 'input', 'gpt2_blocks': True}, 'encoder': {'attention': 'bidirectional'},
            'mixed': {'attention': 'mixed'}, 'two streams': {'target_position': 'two_stream'}}


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
            storages[storage.data_ptr()] = storage   # held, so that no address comes twice
        return x
    idx = torch.zeros(batch_size, config.block_size, dtype=torch.long)
    order = torch.rand(idx.shape).argsort(1)
    known = torch.zeros(batch_size, dtype=torch.long) if config.slots.masked_loss else None
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), autocast(torch.device('cpu'), dtype):
        model(idx, order, known).sum()
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize('name, dtype', [*((name, 'bfloat16') for name in NETWORKS),
                                         *((name, 'float32') for name in ('adaln', 'sigma-GPT', 'mixed'))])
def test_a_block_keeps_what_the_plan_counts(name, dtype):
    """What a third layer adds to a third row: no weight, and nothing that does not grow with both."""
    config, b = network(2, **NETWORKS[name]), 2 if dtype == 'bfloat16' else 4
    (two, three), (two_more, three_more) = ([kept_bytes(network(n_layer, **NETWORKS[name]), batch_size, dtype)
                                             for batch_size in (2, 3)] for n_layer in (2, 3))
    found = three_more - two_more - (three - two)
    mask = b * 256 ** 2 if name == 'mixed' else 0
    expected = 256 * config.slots.n_streams * slot_bytes(config, b, compiled=False, cuda=False) + mask
    assert found == pytest.approx(expected, rel=0.005)


def meta_model(**options):
    with torch.device('meta'):
        return Unset(network(2, **options))


HOW = {'dtype': 'bfloat16', 'optimizer': 'adamw', 'compiled': True}


def test_the_parts_are_those_of_hand():
    """C = 64, L = 2, H = 2, V = 64, n_cond = 8, 3 x 256 tokens, compiled: 8 + 2 * 25 bytes times C a slot and layer, 8
    statistics of norms and attention; the last norm 8 + 2 * 5; logits and their gradient 2 * 2 bytes."""
    model = meta_model()
    P, hidden = model.n_parameters(), 2 * 12 * 64 * 64
    parts = memory(model, 3, **HOW)
    copies = 2 * (hidden + (2 * 6 + 2) * 64 * 8 + 64 * 64)
    of_block = 768 * (64 * 58 + 4 * 8)
    assert [*parts.values()] == [4 * P, 4 * P, 8 * P, 4 * P, copies, 2 * of_block + 768 * 64 * 18, 768 * 64 * 4,
                                 of_block // 4]
    assert memory(model, 3, **HOW | {'optimizer': 'muon'})['optimizer'] == 8 * P - 4 * hidden
    float32 = memory(model, 3, **HOW | {'dtype': 'float32'})
    assert float32['bfloat16 copies of the weights'] == 0 and float32['loss'] == 768 * 64 * 8
    assert memory(model, 3, **HOW | {'compiled': False})['loss'] == 768 * 64 * 2
    again = memory(model, 3, **HOW, recompute=True)
    assert again['activations'] == 2 * 768 * 4 * 64 + of_block + 768 * 64 * 18
    assert memory(meta_model(**NETWORKS['two streams']), 3, **HOW)['activations'] == (
        3 * 768 * (64 * (8 + 2 * 15) + 4 * 8) + 768 * 64 * 18)


def test_sharding_divides_what_stays_and_gathers_two_blocks():
    model = meta_model()
    whole, split = (memory(model, 3, **HOW, world_size=4, shard=shard) for shard in (False, True))
    for part in ('weights', 'gradients', 'optimizer', 'EMA'):
        assert split[part] == whole[part] // 4
    assert whole['weights'] == memory(model, 3, **HOW)['weights']
    assert split['activations'] == whole['activations'] and split['loss'] == whole['loss'] // 2   # its head is eager
    blocks = sum(p.numel() for name, p in model.named_parameters() if '.h.' in name)
    eager = HOW | {'compiled': False}
    rest, gathered = (memory(model, 3, **eager, world_size=4, shard=shard)['the rest, for a moment']
                      for shard in (False, True))
    assert gathered - rest == 4 * (model.n_parameters() - blocks) + 4 * 3 * blocks // 2   # and the gradients of one


def test_every_parameter_has_one_part():
    for options in NETWORKS.values():
        model = meta_model(**options)
        parts = parameters_by_part(model)
        assert sum(parts.values()) == model.n_parameters()
    parts = parameters_by_part(meta_model())
    assert parts['attention'] == 2 * (4 * 64 * 64 + 4 * 64 + 2 * 32) and parts['head'] == 64 * 64 + 64
    assert parts['AdaLN'] == (2 * 6 + 2) * 64 * 9 and parts['norms'] == (2 * 2 + 1) * 64
    assert parts['embeddings'] == 64 * 64 + 257 * 64 + 256 * 8 + 64


def test_machines():
    assert parse_machine('8xH100') == (8, 'H100', GPUS['H100']) and parse_machine('h200')[::2] == (1, GPUS['H200'])
    n, _, machine = parse_machine('2x0.2:24')
    assert n == 2 and machine.flops == 0.2e12 and machine.memory == 24
    for wrong in ('H1000', '0xH100', '8x', '1:', '0:24', 'x', '3'):
        with pytest.raises(ValueError, match=r'plan must be one of A100, .* as in 8xH100'):
            parse_machine(wrong)


def test_the_largest_batch_and_the_same_update():
    assert [largest_batch(lambda n: 10 + 3 * n, limit) for limit in (12, 13, 40, 3010)] == [0, 1, 10, 1000]
    config = Config(batch_size=16, gradient_accumulation_steps=32, eval_iters=20)
    assert same_update(config, 8, 100) == '--batch_size=64 --gradient_accumulation_steps=8 --eval_iters=5'
    assert same_update(config, 8, 63) == '--batch_size=32 --gradient_accumulation_steps=16 --eval_iters=10'
    assert same_update(config, 1, 7) == '--batch_size=4 --gradient_accumulation_steps=128 --eval_iters=80'
    assert same_update(config, 8, 0) == ''


def test_a_plan_wants_nothing_and_writes_nothing(script, tmp_path):
    os.symlink(os.path.join(ROOT, 'config'), tmp_path / 'config')
    said = script('train.py', 'config/ao_gpt_small.py', '--plan=8xH100', '--gradient_accumulation_steps=64').stdout
    rows = {line[:34].strip(): line[34:].split() for line in said.splitlines()}
    assert rows['parameters'] == ['170,605,952'] and rows['tokens an update'] == ['1,048,576']
    assert 'openwebtext is not prepared here' in said and '\n8 x A100 ' in said
    flops = 1e9 * float(rows['GFLOP a token'][0]) * 1024 * 16 * 64 * 250000
    peak, *hours = (float(word.replace(',', '')) for word in said.split('\n8 x H100')[1].split()[:4])
    expected = [flops / 8 / 989e12 / mfu / 3600 for mfu in (0.3, 0.4, 0.5)]
    assert peak == 8 * 989 and hours == pytest.approx(expected, rel=1e-3)
    assert os.listdir(tmp_path) == ['config']
    assert script('train.py', '--plan=3xH100', code=1).stderr.startswith('error: gradient_accumulation_steps')
