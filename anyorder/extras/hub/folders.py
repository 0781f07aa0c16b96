"""What is a folder as Hugging Face writes it? How are its files of weights read?"""

import os

import torch

from anyorder.machine.files import reading
from anyorder.weights import load_pickle, read_json, unwrapped


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


def read_safetensors(path):
    """Return {name: tensor} of a file.

    The library safetensors refuses a header that is not the JSON of the format, an unknown dtype, a
    shape that does not fit its numbers, and bytes behind it that belong to no tensor or to several:
    offsets outside of the file, overlaps, gaps, bytes left over."""
    from safetensors.torch import load_file

    with reading(path, 'weights', 'fetch it again'):
        # load_file gives pages of the file, which change when somebody overwrites the file
        return {name: p.clone() for name, p in load_file(path).items()}


def weight_files(folder):
    """Return the paths of the weights in a folder, safetensors first, [] for none.

    Raises ValueError for a part that is missing."""
    for name in ('model.safetensors', 'pytorch_model.bin'):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return [path]
        if os.path.isfile(f'{path}.index.json'):
            return parts_of(f'{path}.index.json', folder)
    return []


def parts_of(index, folder):
    """Return the paths of the files that the index of their weights names, all in its folder."""
    parts = read_json(index).get('weight_map')
    if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
        raise ValueError(f'{index} must say by weight_map in which file each weight is')
    paths = sorted({os.path.join(folder, os.path.basename(part)) for part in parts.values()})
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise ValueError(
            f'{folder} lacks {len(missing)} of its {len(paths)} files of weights, the first is '
            f'{os.path.basename(missing[0])}: was its download cut off?'
        )
    return paths
