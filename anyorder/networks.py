"""What is a network called? The option `network` of train.py, in words, and the fields that they
set.

    encoder,rotary,gate_init=1

Another network is one entry of NETWORKS, beside its field of model.AOGPTConfig."""

from dataclasses import fields

from configurator import nearest, number_in
from model import AOGPTConfig

# fields of an AOGPTConfig that a word sets; of two words for one field the wider comes first
NETWORKS = {
    # which slots see which: the first is the default
    'decoder': {'attention': 'causal'},
    'encoder': {'attention': 'bidirectional'},
    'mixed': {'attention': 'mixed'},
    # how a slot is told its target: the first is the default
    'adaln': {'target_position': 'adaln'},
    'sigma_gpt': {'target_position': 'input', 'gpt2_blocks': True},
    'input': {'target_position': 'input'},
    'layer_shared': {'target_position': 'layer_shared'},
    'layer': {'target_position': 'layer'},
    'two_stream': {'target_position': 'two_stream'},
    'rotary': {'rotary': True},
    # how a block computes
    'gpt2_blocks': {'gpt2_blocks': True},
    'gelu_tanh': {'gelu_tanh': True},
}
NUMBERS = {'gate_init': float, 'n_cond': int}  # fields that are named with a value


def network_fields(text):
    """Return {field of AOGPTConfig: value} of the words of a text, with commas between them.

    Raises ValueError for a word that is none, and for two that contradict each other."""
    found = {}
    for word in filter(None, text.split(',')):
        for field, value in fields_of_word(word.strip()).items():
            if found.setdefault(field, value) != value:
                raise ValueError(
                    f'network={text} gives {field} two values, {found[field]} and {value}: '
                    'leave one of them out'
                )
    return found


def fields_of_word(word):
    """Return {field: value} of one word."""
    name, _, number = word.partition('=')
    if word in NETWORKS:
        return NETWORKS[word]
    if name in NUMBERS:
        return {name: number_of(name, number)}
    words = (*NETWORKS, *(f'{name}=NUMBER' for name in NUMBERS))
    raise ValueError(
        f'network must be words of {", ".join(words)}, with commas between them, got {word!r}'
        f'{nearest(word, words)}'
    )


def number_of(name, text):
    """Return the number behind `name`=. Raises ValueError unless it is finite."""
    number = number_in(text, NUMBERS[name])
    if number is None:
        raise ValueError(f'network wants a number behind {name}=, got {text!r}: as {name}=1')
    return number


def network_name(config):
    """Return the words of an AOGPTConfig, which network_fields reads; 'decoder' is the default."""
    others = {}  # fields that have another value than by default
    for field in fields(AOGPTConfig):
        value = getattr(config, field.name)
        if value != field.default:
            others[field.name] = value
    words = []
    for word, of_word in NETWORKS.items():
        if of_word.items() <= others.items():
            words.append(word)
            others = {name: value for name, value in others.items() if name not in of_word}
    for name in NUMBERS:
        if name in others:
            words.append(f'{name}={others[name]}'.removesuffix('.0'))
    return ','.join(words) or 'decoder'
