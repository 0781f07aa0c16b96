"""
How are weights read and written, in a folder or from the hub? The folder holds config.json and model.safetensors or
pytorch_model.bin, whole or in parts. Nothing runs code from a file.
"""
import json
import os

import torch
from torch.overrides import TorchFunctionMode

from anyorder.machine.files import GPT2_NAMES, is_out_of_memory, quiet_hub

DTYPES = {'F64': torch.float64, 'F32': torch.float32, 'F16': torch.float16, 'BF16': torch.bfloat16,
          'I64': torch.int64, 'I32': torch.int32, 'I16': torch.int16, 'I8': torch.int8, 'U8': torch.uint8,
          'BOOL': torch.bool}


def local_path(name, files=('config.json',)):
    """The local file or folder of a checkpoint name: a path as it is, `hf:OWNER/REPO/path/in/repo.pt` through
    huggingface_hub. A folder there is `hf:OWNER/REPO`, of which the weights and these `files` are fetched; GPT-2's are
    just gpt2, gpt2-medium, gpt2-large or gpt2-xl.

    Raises ValueError in one line when the hub or the file cannot be reached."""
    if name in GPT2_NAMES and not os.path.exists(name):
        name = f'hf:openai-community/{name}'
    if not name.startswith('hf:'):
        return name
    parts = name[3:].split('/')
    if len(parts) < 2:
        raise ValueError('a checkpoint on the hub is written hf:OWNER/REPO/path.pt, a folder there hf:OWNER/REPO, '
                         f'got {name}')
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
        raise ValueError(f'cannot get {name} from the hub ({type(e).__name__}): check the name and the network, '
                         'or download the file and give its path') from None


def read_weights(folder):
    """{name: tensor} of a folder, {} if it holds no file of weights. Safetensors are preferred.

    Raises ValueError in one line for a file that is not whole."""
    weights = {}
    for path in weight_files(folder):
        try:
            part = read_safetensors(path) if path.endswith('.safetensors') else torch.load(
                path, map_location='cpu', weights_only=True)
            weights |= {name: p for name, p in part.items() if isinstance(p, torch.Tensor)}
        except Exception as e:   # bytes of another kind fail in a dozen ways
            if isinstance(e, OSError) or is_out_of_memory(e):
                raise
            raise ValueError(f'{path} is not a whole file of weights ({type(e).__name__})') from None
    return weights


def read_json(path):
    """The dict of a JSON file. Raises ValueError for others."""
    try:
        with open(path, encoding='utf-8') as f:
            value = json.load(f)
        if isinstance(value, dict):
            return value
    except (ValueError, RecursionError):
        pass
    raise ValueError(f'{path} is not a JSON file of names and values')


def weight_files(folder):
    """The paths of the files that hold the weights, [] for none; safetensors are preferred. No part is taken from
    another folder. Raises ValueError in one line when a part is missing."""
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


def read_safetensors(path):
    """{name: tensor} of a file: the length of the header in 8 bytes, the header in JSON, little-endian numbers."""
    raw, tensors = torch.from_file(path, size=os.path.getsize(path), dtype=torch.uint8), {}   # mapped, not read
    data = 8 + int.from_bytes(raw[:8].numpy().tobytes(), 'little')
    for name, entry in json.loads(raw[8:data].numpy().tobytes()).items():
        if name != '__metadata__':
            start, end = entry['data_offsets']
            numbers = raw[data + start:data + end].clone()   # from a file's odd byte to one that any dtype may begin at
            tensors[name] = numbers.view(DTYPES[entry['dtype']]).view(entry['shape'])
    return tensors


def write_safetensors(path, tensors):
    """Write {name: tensor}, each in its own dtype. Raises OSError when the disk is full."""
    kinds, header, end = {dtype: kind for kind, dtype in DTYPES.items()}, {}, 0
    for name, p in tensors.items():
        start, end = end, end + p.numel() * p.element_size()
        header[name] = {'dtype': kinds[p.dtype], 'shape': list(p.shape), 'data_offsets': [start, end]}
    head = json.dumps({'__metadata__': {'format': 'pt'}} | header).encode()
    head += b' ' * (-len(head) % 8)
    with open(path, 'wb') as f:
        f.write(len(head).to_bytes(8, 'little') + head)
        for p in tensors.values():
            f.write(p.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())


class WithoutDraws(TorchFunctionMode):
    """Leaves out the random initialisation of PyTorch's layers."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in ('normal_', 'uniform_', 'kaiming_uniform_'):   # of tensors, and of torch.nn.init
            return args[0] if args else kwargs['tensor']
        return func(*args, **(kwargs or {}))
