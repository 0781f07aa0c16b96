"""What is a checkpoint?

A file, ours or published, or a folder of an export or of GPT-2; here or on the hub."""

import hashlib
import os
import pkgutil
from dataclasses import asdict, fields
from functools import cache, cached_property

import torch

from anyorder.machine.files import read_json, reading, whole_files
from anyorder.machine.processes import is_first, is_split, own_part, whole
from anyorder.orders import Order
from anyorder.tokens.meta import Meta
from anyorder.tokens.tokenizer import KNOWN, tokenizer_of_set
from anyorder.weights import (
    GPT2_N_TOKENS,
    GPT2_PADDED,
    TIED,
    WithoutDraws,
    load_pickle,
    local_path,
    unwrapped,
)
from configurator import check_choice, home
from model import AOGPT, AOGPTConfig

# what stands before the folder of somebody else's masked model, or before its name on the hub
MASKED = 'masked:'
# what rooms of extras read, imported when it is read: such a name -> an opened checkpoint; by the
# model_type in a folder's config.json: folder -> the dict of a checkpoint
MASKED_CHECKPOINT = 'anyorder.extras.masked.families:MaskedCheckpoint'
FORMATS = {
    'gpt2': 'anyorder.extras.hub.gpt2:read_gpt2',
    'aogpt': 'anyorder.extras.hub.exported:read_exported',
}

# what entries of a file must be that a Checkpoint does not open; each may be left out, or None
ENTRIES = {'sets': dict, 'counts': torch.Tensor}


def entries_of(model, ema=None, **entries):
    """Return the dict of a checkpoint in the published format.

    It holds model, model_args, ema_model with shadow_params by name, and `entries`: iter_num,
    config, optimizer, ..."""
    checkpoint = {
        'model': model.state_dict(keep_vars=True),
        'model_args': asdict(model.config),
        **entries,
    }
    if ema is not None:
        checkpoint['ema_model'] = {
            'decay': ema.decay,
            'num_updates': ema.n_updates,
            'shadow_params': dict(ema.model.named_parameters()),
        }
    return map_tensors(checkpoint, of_all)


def map_tensors(tree, function):
    """Return nested dicts and lists with function(tensor) in place of each tensor.

    A tensor that is there twice, as a tied head, is one tensor afterwards, too."""
    once = cache(function)

    def mapped(x):
        if isinstance(x, dict):
            return {key: mapped(value) for key, value in x.items()}
        if isinstance(x, list):
            return [mapped(value) for value in x]
        return once(x) if isinstance(x, torch.Tensor) else x

    return mapped(tree)


def of_all(x):
    """Return a tensor without its gradient; of a split one the first process gets all, on the CPU,
    one after the other."""
    if not is_split(x):
        return x.detach()
    gathered = whole(x.detach())
    return gathered.cpu() if is_first() else x


def save_checkpoint(path, model, ema=None, **entries):
    """Write a checkpoint of the model, its average and these entries, see entries_of.

    Atomic, by temporary file, flush to disk and rename: `path` is never half. A link is replaced,
    and what it leads to stays. All processes of a run call it, and the first one writes."""
    checkpoint = entries_of(model, ema, **entries)
    if is_first():
        with whole_files(home(path)) as (temporary,), open(temporary, 'wb') as f:
            torch.save(checkpoint, f)


def load_checkpoint(name, lazily=False):
    """Return the dict of a checkpoint, ours, published, exported or a GPT-2, on the CPU.

    name    as for local_path
    lazily  whether what the file of a run holds is read only as far as it is used, and as long as
            it is: tensors are mapped from the file

    No code of the file is run (weights_only), and what it says to be None is left out. Raises
    ValueError when the file is missing, not whole, or not a checkpoint."""
    path = local_path(home(name))
    if os.path.isdir(path):
        return load_folder(path)
    checkpoint = load_pickle(path, 'a checkpoint', 'name another, or copy it again', lazily)
    held = checkpoint.items() if isinstance(checkpoint, dict) else ()
    found = {name: value for name, value in held if value is not None}
    if not {'model', 'model_args'} <= found.keys():
        raise ValueError(
            f"{path} is not a checkpoint: it must be a dict of 'model', tensors by name, "
            "and 'model_args'"
        )
    for name, kind in ENTRIES.items():
        if not isinstance(found.get(name, kind()), kind):
            raise ValueError(
                f'{path} is not a checkpoint: {name} must be a {kind.__name__}, got '
                f'{type(found[name]).__name__}: name another, or copy it again'
            )
    return found


def load_folder(path):
    """Return the dict of a checkpoint in a folder as Hugging Face writes it."""
    kind = read_json(os.path.join(path, 'config.json')).get('model_type', 'gpt2')
    if kind not in list(FORMATS):  # a list: it may be any value of JSON
        raise ValueError(
            f'{path}/config.json has model_type={kind!r}, which is no gpt2 and no aogpt: the name '
            f'of a masked model is {MASKED}{path}'
        )
    return pkgutil.resolve_name(FORMATS[kind])(path)


def ema_weights(checkpoint, names):
    """Return {name: weight} of the EMA of a checkpoint dict, see weights.unwrapped.

    Published ones hold a list in the order of `names`, or of all names of the raw weights, which
    have a tied matrix twice."""
    weights = checkpoint.get('ema_model', {}).get('shadow_params')
    if isinstance(weights, list | tuple):
        by_length = {len(own): own for own in (list(unwrapped(checkpoint['model'])), names)}
        weights = dict(zip(by_length.get(len(weights), ()), weights))
    if not weights or not isinstance(weights, dict):
        raise ValueError(
            f'the checkpoint holds no EMA of its {len(names)} weights: take --weights=raw'
        )
    return unwrapped(weights)


def config_from_checkpoint(checkpoint):
    """Return the AOGPTConfig of a checkpoint dict.

    Published model_args leave out n_cond, which weights say, and n_tokens."""
    known = {field.name for field in fields(AOGPTConfig)}
    args = {name: value for name, value in checkpoint['model_args'].items() if name in known}
    if args.get('vocab_size') == GPT2_PADDED:
        args.setdefault('n_tokens', GPT2_N_TOKENS)
    weights = unwrapped(checkpoint['model'])
    if 'target_position' not in args and 'transformer.ln_f.weight' in weights:
        args |= {'target_position': 'input', 'gpt2_blocks': True}  # sigma-GPT
    elif 'transformer.wtpe.weight' in weights:
        args.setdefault('n_cond', weights['transformer.wtpe.weight'].size(1))
    return AOGPTConfig(**args)


class Unset(AOGPT):
    """A model whose weights are still to be read: it draws none."""

    def reset_parameters(self):
        self.__class__ = AOGPT


def model_from_checkpoint(path_or_dict, weights='ema', device='cpu'):
    """Return an AOGPT, in evaluation mode, with the 'ema' or 'raw' weights of a checkpoint.

    `path_or_dict` is a path or what load_checkpoint gave. Raises ValueError when the weights do not
    fit their model_args, or the run diverged."""
    checkpoint = path_or_dict
    if not isinstance(path_or_dict, dict):
        checkpoint = load_checkpoint(path_or_dict)
    check_choice('weights', weights, 'ema', 'raw')
    with torch.device(device), WithoutDraws():  # nor do its layers
        model = Unset(config_from_checkpoint(checkpoint))
    load_weights(model, checkpoint, weights)
    return model.eval()


def load_weights(model, checkpoint, weights):
    """Give a model the 'ema' or 'raw' weights of a checkpoint dict; each process its part of them.

    Raises ValueError when they do not fit the model, or the run diverged."""
    own = dict(model.named_parameters())
    if weights == 'raw':
        state = unwrapped(checkpoint['model'])
    else:
        state = ema_weights(checkpoint, list(own))
    if model.config.gpt2_blocks:
        state = unwrapped(state, *TIED)
    wrong = {name for name, _ in shapes_of(state) ^ shapes_of(own)}
    if wrong:
        raise ValueError(
            f'the checkpoint is not an AO-GPT of its model_args: {len(wrong)} weights differ in '
            f'name or shape, as {min(wrong)}'
        )
    with torch.no_grad():
        for name, p in own.items():
            p.copy_(own_part(state[name], p))
    broken = [name for name in own if not state[name].float().norm().isfinite()]
    if broken:  # no run saves such
        raise ValueError(
            f'the run of the checkpoint diverged: {len(broken)} weights are not finite, '
            f'as {broken[0]}'
        )


def shapes_of(weights):
    return {(name, p.shape) for name, p in weights.items()}


def open_checkpoint(name):
    """Return a Checkpoint, or the MaskedCheckpoint of a masked model of others.

    The name of the latter is masked:FOLDER or masked:OWNER/REPO."""
    name = home(name)
    if not name.startswith(MASKED):
        return Checkpoint(name)
    return pkgutil.resolve_name(MASKED_CHECKPOINT)(name)


class Checkpoint:
    """An opened checkpoint, as commands use it; see also families.MaskedCheckpoint.

    name       as it was asked for
    entries    the dict, see entries_of
    config     the AOGPTConfig of its model
    run        the options of its training
    order      the Order of its training
    iter_num   updates of its weights, or '?'
    weights    'ema' or 'raw', which to use unless told otherwise
    set        the Meta of its data, as far as it is known
    counts     (n_tokens,) int64: how often each token stands in its training set, or in the part of
               it that was counted; None: the checkpoint does not say it"""

    def __init__(self, name, lazily=False):
        """Open a path or hf:OWNER/REPO[/path.pt], `lazily` as load_checkpoint does.

        Raises ValueError when it is none."""
        self.name = name
        self.entries = load_checkpoint(name, lazily)
        self.iter_num = self.entries.get('iter_num', '?')
        self.counts = self.entries.get('counts')
        self.run = self.entries.get('config', {})
        # published ones have GPT-2's tokens
        said = {'tokenizer': self.entries.get('tokenizer', 'gpt2')}
        what = 'a checkpoint whose sizes, weights, config and set are of this version'
        with reading(name, what, 'use the version that saved it', n_letters=200):
            self.config = config_from_checkpoint(self.entries)
            average = self.entries.get('ema_model', {}).get('shadow_params')
            self.weights = 'ema' if average else 'raw'
            self.order = Order.of('own', self.run)
            self.set = Meta(**self.entries.get('set', said))

    @cached_property
    def tokenizer(self):
        """The tokenizer of its data. Raises ValueError unless it fits the model."""
        called = self.set.tokenizer
        if called not in KNOWN and self.set.tokenizer_file is None:
            known = ', '.join(KNOWN)
            raise ValueError(f'{self.name} has the tokenizer {called!r}, and known are {known}')
        found = tokenizer_of_set(self.set)
        if found.n_tokens != self.config.n_real:
            raise ValueError(
                f'{self.name} has another tokenizer: a vocabulary of {self.config.n_real} tokens, '
                f'{called} has {found.n_tokens}'
            )
        return found

    def model(self, weights=None, device='cpu'):
        """Return model_from_checkpoint of it, which has its counts on the device, and `exempt`.

        weights  'ema' or 'raw'; None: those of the Checkpoint"""
        model = model_from_checkpoint(self.entries, weights or self.weights, device)
        set_exempt(model, self.tokenizer)
        if self.counts is not None:
            model.register_buffer('counts', self.counts.to(device), persistent=False)
        return model

    def about(self, weights):
        """Return what a table says of it: its name, which weights, and how long it was trained."""
        return f'{self.name}: {weights} weights, iteration {self.iter_num}'


def set_exempt(model, tokenizer):
    """Have the model know as `exempt` (k,) the tokens that no presence_penalty is for: the end of
    a document, and special tokens. They are no words that a text repeats, and may have to stand in
    it often."""
    special = {*tokenizer.special.values(), tokenizer.eos} - {None}
    tokens = torch.tensor(sorted(special), dtype=torch.long, device=model.device)
    model.register_buffer('exempt', tokens, persistent=False)


def digest(model):
    """Return a hash of the model's sizes and of all of its weights."""
    fingerprint = hashlib.blake2b(repr(model.config).encode(), digest_size=16)
    for p in model.parameters():
        flat = p.detach().cpu().reshape(-1)
        fingerprint.update(flat.view(torch.uint8).numpy())  # numpy has no bfloat16
    return fingerprint.hexdigest()


def stand_in_of(checkpoint):
    """Return the weights (n_tokens,) of tokens in blanks that no step has answered yet: how often
    each stands in the training set, plus one. None: all alike, the checkpoint does not say it."""
    if checkpoint.counts is None:
        return None
    return checkpoint.counts + 1
