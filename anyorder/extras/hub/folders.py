"""What is a folder as Hugging Face writes it? How are its files of weights read?"""

import os

import torch

from anyorder.machine.files import read_json, reading
from anyorder.weights import load_pickle, unwrapped


def read_weights(folder):
    """Return {name: tensor} of a folder, {} if it holds no file of weights."""
    weights = {}
    for path in weight_files(folder):
        if path.endswith('.safetensors'):
            part = read_safetensors(path)
        else:
            part = load_pickle(path, 'weights', 'fetch it again')
        with reading(path, 'weights by name', 'fetch it again'):
            weights |= {name: p for name, p in part.items() if isinstance(p, torch.Tensor)}
    return unwrapped(weights)


def weight_files(folder):
    """Return the paths of the weights in a folder, safetensors first, [] for none."""
    for name in ('model.safetensors', 'pytorch_model.bin'):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return [path]
        index = f'{path}.index.json'
        if os.path.isfile(index):
            with reading(index, 'an index of weights, with a weight_map', 'fetch it again'):
                parts = {os.path.basename(part) for part in read_json(index)['weight_map'].values()}
            return [os.path.join(folder, part) for part in sorted(parts)]
    return []


def read_safetensors(path):
    """Return {name: tensor} of a file.

    The library safetensors refuses a header that is not the JSON of the format, an unknown dtype, a
    shape that does not fit its numbers, and bytes behind it that belong to no tensor or to several:
    offsets outside of the file, overlaps, gaps, bytes left over."""
    from safetensors.torch import load_file

    with reading(path, 'weights', 'fetch it again'):
        # load_file gives pages of the file, which change when somebody overwrites the file
        return {name: p.clone() for name, p in load_file(path).items()}


def check_form(config, form):
    """Raise ValueError if an entry of config.json, where it is said, differs from this form.

    form  {name: the value that is understood, or a tuple of several}"""
    for name, values in form.items():
        if not isinstance(values, tuple):
            values = (values,)
        if config.get(name) not in (None, *values):
            understood = ' or '.join(map(str, values))
            raise ValueError(f'config.json has {name}={config[name]!r}: it must be {understood}')
