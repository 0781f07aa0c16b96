"""What is a network called? The option `network` of train.py, in words, and the fields that they
set.

    encoder,rotary,gate_init=1

Another network is one entry of NETWORKS, beside its field of model.AOGPTConfig."""

from dataclasses import asdict

from configurator import names_in, nearest, number_in
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


def named_network(text):
    """Return the AOGPTConfig of the words of a text, with commas between them, in default sizes.

    Raises ValueError for a word that is none, and for two that contradict each other."""
    found = {}
    for word in names_in(text):
        name, _, number = word.partition('=')
        of_word = NETWORKS.get(word)
        if name in NUMBERS:
            of_word = {name: number_in(number, NUMBERS[name])}
        if of_word is None or None in of_word.values():
            words = (*NETWORKS, *(f'{name}=NUMBER' for name in NUMBERS))
            raise ValueError(
                f'network must be words of {", ".join(words)}, with commas between them, got '
                f'{word!r}{nearest(word, words)}'
            )
        for field, value in of_word.items():
            if found.setdefault(field, value) != value:
                raise ValueError(
                    f'network={text} gives {field} two values, {found[field]} and {value}: '
                    'leave one of them out'
                )
    return AOGPTConfig(**found)


def network_name(config):
    """Return the words of an AOGPTConfig, which named_network reads; 'decoder' is the default."""
    others = asdict(config).items() - asdict(AOGPTConfig()).items()  # (field, value)
    words = []
    for word, of_word in NETWORKS.items():
        if of_word.items() <= others:
            words.append(word)
            others = others - of_word.items()
    left = dict(others)
    words += [f'{name}={left[name]}'.removesuffix('.0') for name in NUMBERS if name in left]
    return ','.join(words) or 'decoder'
