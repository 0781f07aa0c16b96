"""How are weights read, in a folder or from the hub, without running code from a file?"""

import glob
import os
import pickle
import re
import zipfile

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from anyorder.machine.files import asking_hub, reading

# what a folder holds beside its weights: sizes and tokens
FILES = (
    'config.json',
    'counts.json',
    'tokenizer*.json',
    'special_tokens_map.json',
    'added_tokens.json',
    'vocab.*',
    'merges.txt',
    'chat_template.jinja',
)


GPT2_NAMES = ('gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl')  # on the hub


def on_hub(name):
    """Return whether a checkpoint of this name is on the Hugging Face hub."""
    return name in GPT2_NAMES or name.startswith('hf:')


def local_path(name):
    """Return the local file or folder that the name of a checkpoint means.

    name  a path; hf:OWNER/REPO/path.pt for a file on the hub, hf:OWNER/REPO for a folder there; or
          one of GPT2_NAMES"""
    if name in GPT2_NAMES and not os.path.exists(name):
        name = f'hf:openai-community/{name}'
    if not name.startswith('hf:'):
        if not any(map(os.path.isfile, (name, os.path.join(name, 'config.json')))):
            raise ValueError(
                f'no checkpoint {name} of ours: name a file, as python train.py '
                'config/quickstart.py makes, a folder with a config.json, or hf:OWNER/REPO'
            )
        return name
    with asking_hub(name):
        owner, repo, *path = name.removeprefix('hf:').split('/', 2)
        return download(f'{owner}/{repo}', path)


def download(repo, path):
    """Return the local place of the file [path] on the hub; of weights and FILES if it is []."""
    from huggingface_hub import hf_hub_download, snapshot_download

    if path:
        return hf_hub_download(repo, *path)
    for weights in ('model*.safetensors*', 'pytorch_model*.bin*'):
        folder = snapshot_download(repo, allow_patterns=[*FILES, weights])
        if glob.glob(os.path.join(glob.escape(folder), weights)):
            break
    return folder


class NumberKind:
    """What a pickle gets where it asks for a dtype of numpy: a kind of numbers or letters alone."""

    def __init__(self, code, *how):
        if not re.fullmatch(r'[biufcSU]\d+', code):
            raise pickle.UnpicklingError(f'GLOBAL numpy.dtype({code})')
        self.dtype = np.dtype(code)

    def __setstate__(self, state):
        self.dtype = self.dtype.newbyteorder(state[1])


class NumberList(list):
    """What a pickle gets where it asks for an array of numpy: its numbers."""

    def __setstate__(self, state):
        _, shape, kind, is_fortran, data = state
        order = 'F' if is_fortran else 'C'
        numbers = np.frombuffer(data, kind.dtype).reshape(shape, order=order)
        self[:] = np.atleast_1d(numbers).tolist()


def plain_number(kind, data):
    """Return what a pickle gets where it asks for a number of numpy: the number of Python."""
    return np.ndarray((), kind.dtype, data).item()


def plain_array(*how):
    """Return what a pickle gets where it asks for an empty array of numpy."""
    return NumberList()


# numpy's own functions, given what a malicious file says, would read any memory as an object
NUMPY = [
    (NumberKind, 'numpy.dtype'),
    (NumberList, 'numpy.ndarray'),
    (bytes, 'builtins.bytes'),  # of an empty array
]
for core in ('core', '_core'):  # before numpy 2, and since
    NUMPY += [
        (plain_number, f'numpy.{core}.multiarray.scalar'),
        (plain_array, f'numpy.{core}.multiarray._reconstruct'),
    ]


def load_pickle(path, what, way_out, mapped=False):
    """Return what torch.save wrote: tensors and plain values. Never runs code from the file.

    Numbers and arrays of numpy become Python's. `what` and `way_out` are as for files.reading. The
    system reads tensors that are `mapped` as far as they are used."""
    shown = f'{path} ({os.path.getsize(path):,} bytes)'
    with reading(shown, what, way_out), torch.serialization.safe_globals(NUMPY):
        check_sums(path)
        try:
            return torch.load(path, map_location='cpu', weights_only=True, mmap=mapped)
        except pickle.UnpicklingError as e:
            found = re.search(r'GLOBAL (\S+)', str(e))  # PyTorch says what it does not take
            if found is None:
                raise
    raise ValueError(
        f'{shown} cannot be read as {what}: it holds {found[1]}, and only tensors and plain '
        'values are read, since no code of a file is run; save it again without'
    )


def check_sums(path):
    """Raise BadZipFile unless what is in a file has the CRC-32 that the file says, for which
    torch.load does not look. It takes half a second a GB.

    A file of before PyTorch 1.6, which is no zip, says none, and all are 0 where a program has
    switched them off."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as file:
        says_sums = any(part.CRC for part in file.infolist())
        damaged = file.testzip() if says_sums else None
    if damaged:
        raise zipfile.BadZipFile(damaged)


GPT2_N_TOKENS = 50257  # the real vocabulary
GPT2_PADDED = 50304  # its padded size in our weights and in published ones
# one matrix where gpt2_blocks ties the head to the embedding
TIED = ('lm_head.weight', 'transformer.wte.weight')
WRAPPERS = {'module', '_orig_mod', '_fsdp_wrapped_module', '_checkpoint_wrapped_module'}


def embedding_rows(n_tokens):
    """Return the rows of the embedding and the head of a new network: a multiple of 64."""
    return -(-n_tokens // 64) * 64


def unwrapped(weights, head=None, embedding=None):
    """Return {name: weight} without what DistributedDataParallel, torch.compile and FSDP put there.

    A head that is tied to the embedding, of these two names, is under the second one alone.
    Raises ValueError for what is no weight, and for two different ones of one name: such a head was
    trained apart, and none may be lost."""
    found = {}
    for name, p in weights.items():
        check_weight(name, p)
        own = '.'.join(part for part in str(name).split('.') if part not in WRAPPERS)
        if own == head:
            own = embedding
        if not is_same(found.setdefault(own, p), p):
            raise ValueError(
                f'there are two different weights {own}, one of them named {name}: a head that is '
                'tied to the embedding is trained with it as one, in peft by '
                'ensure_weight_tying=True'
            )
    return found


def check_weight(name, p):
    """Raise ValueError unless this is a tensor of real numbers, all of which it holds."""
    is_tensor = isinstance(p, torch.Tensor)
    if not is_tensor or p.layout != torch.strided or p.is_meta or p.is_complex():
        raise ValueError(
            f'the weight {name} must be a tensor that holds all its real numbers, got '
            f'{type(p).__name__} {getattr(p, "dtype", "")}'
        )


def is_same(a, b):
    """Whether two weights have the same numbers, whatever their dtype. A NaN is as a NaN."""
    if a.shape != b.shape:
        return False
    wide = a.dtype if a.dtype == b.dtype else torch.float64
    return a is b or torch.allclose(a.to(wide), b.to(wide), rtol=0, atol=0, equal_nan=True)


class WithoutDraws(TorchFunctionMode):
    """Leaves out the random initialisation of PyTorch's layers."""

    DRAWS = ('normal_', 'uniform_', 'kaiming_uniform_')  # tensors and torch.nn.init have them

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ in self.DRAWS:
            return args[0] if args else kwargs['tensor']
        return func(*args, **(kwargs or {}))
