"""Every network has a name, which the option `network` reads."""

import itertools

import pytest
from conftest import one_line

from anyorder.networks import network_fields, network_name
from model import ATTENTION, TARGET_POSITIONS, AOGPTConfig


def test_the_name_of_a_network_names_all_of_it():
    kinds = itertools.product(ATTENTION, TARGET_POSITIONS, *3 * [(False, True)])
    n = 0
    for attention, position, rotary, gpt2_blocks, gelu_tanh in kinds:
        if position == 'two_stream' and attention != 'causal':
            continue
        for gate_init, n_cond in ((0.0, 128), (1.0, 4), (1e-7, 128)):
            config = AOGPTConfig(
                attention=attention,
                target_position=position,
                rotary=rotary,
                gpt2_blocks=gpt2_blocks,
                gelu_tanh=gelu_tanh,
                gate_init=gate_init,
                n_cond=n_cond,
            )
            assert AOGPTConfig(**network_fields(network_name(config))) == config
            n += 1
    assert n == 3 * 8 * 13


@pytest.mark.parametrize(
    'text, name',
    [
        ('', 'decoder'),
        ('adaln,decoder', 'decoder'),
        ('gate_init=1,rotary,encoder', 'encoder,rotary,gate_init=1'),
        ('gpt2_blocks, input', 'sigma_gpt'),
        ('sigma_gpt,gelu_tanh', 'sigma_gpt,gelu_tanh'),
    ],
)
def test_the_words_of_a_network_may_stand_in_any_order(text, name):
    assert network_name(AOGPTConfig(**network_fields(text))) == name


@pytest.mark.parametrize(
    'text, said',
    [
        ('encode', "got 'encode'; the nearest is 'encoder'"),
        ('encoder,mixed', 'gives attention two values, bidirectional and mixed'),
        ('sigma_gpt,layer', 'gives target_position two values, input and layer'),
        ('gate_init=open', "wants a number behind gate_init=, got 'open'"),
        ('gate_init=nan', "wants a number behind gate_init=, got 'nan'"),
        ('gate_init=inf', "wants a number behind gate_init=, got 'inf'"),
        ('n_embd=64', "got 'n_embd=64'"),
    ],
)
def test_what_is_no_network_is_refused_in_one_line(text, said):
    with one_line(said):
        network_fields(text)
