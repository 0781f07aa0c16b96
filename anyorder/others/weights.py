"""How are weights read, in a folder or from the hub, without running code from a file? Whole, or in parts."""
import json
import os

import torch
from torch.overrides import TorchFunctionMode

from anyorder.machine.files import GPT2_NAMES, need_extra, quiet_hub, reading


def local_path(name, files=('config.json',)):
    """The local file or folder that the name of a checkpoint means: a path, `hf:OWNER/REPO/path.pt` for a file on the
    hub, `hf:OWNER/REPO` for weights and these `files` there, or gpt2, gpt2-medium, gpt2-large or gpt2-xl."""
    if name in GPT2_NAMES and not os.path.exists(name):
        name = f'hf:openai-community/{name}'
    if not name.startswith('hf:'):
        return name
    parts = name[3:].split('/')
    if len(parts) < 2:
        raise ValueError(f'a file on the hub is hf:OWNER/REPO/path.pt, a folder there hf:OWNER/REPO, got {name}')
    from huggingface_hub import hf_hub_download, snapshot_download
    quiet_hub()
    repo = '/'.join(parts[:2])
    try:
        if len(parts) > 2:
            return hf_hub_download(repo, '/'.join(parts[2:]))
        for weights in ('model*.safetensors*', 'pytorch_model*.bin*'):
            folder = snapshot_download(repo, allow_patterns=[*files, weights])
            if weight_files(folder):
                break
        return folder
    except Exception as e:   # many classes: no network, no such repository, no such file
        raise ValueError(f'cannot get {name} from the hub ({type(e).__name__}): check name and network, '
                         'or download it and give its path') from None


def read_weights(folder):
    """{name: tensor} of a folder, {} if it holds no file of weights. The library safetensors refuses a header that is
    not the JSON of the format, an unknown dtype, a shape that does not fit its numbers, and bytes behind it that belong
    to no tensor or to several: offsets outside of the file, overlaps, gaps, bytes left over."""
    weights = {}
    for path in weight_files(folder):
        is_safe = path.endswith('.safetensors')
        if is_safe:
            need_extra('safetensors')
            from safetensors.torch import load_file
        with reading(path, 'weights', 'fetch it again'):
            part = load_file(path) if is_safe else torch.load(path, map_location='cpu', weights_only=True)
            # load_file gives pages of the file, which change when somebody overwrites the file
            weights |= {name: p.clone() if is_safe else p for name, p in part.items() if isinstance(p, torch.Tensor)}
    return weights


def read_json(path):
    """The dict of a JSON file. Raises ValueError for others."""
    with reading(path, 'names and values in JSON', 'fetch it again'), open(path, encoding='utf-8') as f:
        return {**json.load(f)}


def weight_files(folder):
    """The files of weights in a folder, safetensors first, [] for none. A part that is missing is a ValueError."""
    for name in ('model.safetensors', 'pytorch_model.bin'):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return [path]
        if os.path.isfile(f'{path}.index.json'):
            parts = read_json(f'{path}.index.json').get('weight_map')
            if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
                raise ValueError(f'{path}.index.json must say by weight_map in which file each weight is')
            paths = sorted({os.path.join(folder, os.path.basename(part)) for part in parts.values()})
            missing = [part for part in paths if not os.path.isfile(part)]
            if missing:
                raise ValueError(f'{folder} lacks {len(missing)} of its {len(paths)} files of weights, the first is '
                                 f'{os.path.basename(missing[0])}: was its download cut off?')
            return paths
    return []


class WithoutDraws(TorchFunctionMode):
    """Leaves out the random initialisation of PyTorch's layers."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in ('normal_', 'uniform_', 'kaiming_uniform_'):   # tensors and torch.nn.init have them
            return args[0] if args else kwargs['tensor']
        return func(*args, **(kwargs or {}))
