"""What is a checkpoint?

A file, ours or published, or a folder of an export or of GPT-2; here or on the hub."""

import hashlib
import os
import pkgutil
from dataclasses import asdict, fields

import torch

from anyorder.machine.files import MASKED, check_checkpoint, whole_files
from anyorder.machine.processes import is_split, local, map_tensors, own_part, processes, whole
from anyorder.orders import Order
from anyorder.tokens.meta import Meta
from anyorder.tokens.tokenizers import KNOWN, tokenizer_of_set
from anyorder.weights import (
    GPT2_N_TOKENS,
    GPT2_PADDED,
    TIED,
    WithoutDraws,
    load_pickle,
    local_path,
    read_json,
    unwrapped,
)
from configurator import home
from model import AOGPT, AOGPTConfig

# what rooms of extras read, by the function that reads it, which is imported when it is called.
# The first two are a model_type in a folder's config.json: folder -> the dict of a checkpoint; the
# last is what a name begins with: name -> an opened checkpoint
FORMATS = {
    'gpt2': 'anyorder.extras.hub.gpt2:read_gpt2',
    'aogpt': 'anyorder.extras.hub.exported:read_exported',
    MASKED: 'anyorder.extras.masked.families:MaskedCheckpoint',
}
MASKED_FAMILY = 'anyorder.extras.masked.families:masked_family'


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


def of_all(x):
    """Return a tensor without its gradient; of a split one the first process gets all, on the CPU,
    one after the other."""
    if not is_split(x):
        return x.detach()
    gathered = whole(x.detach())
    rank, _ = processes()
    return gathered.cpu() if rank == 0 else x


def save_checkpoint(path, model, ema=None, **entries):
    """Write a checkpoint of the model, its average and these entries, see entries_of."""
    write_checkpoint(path, entries_of(model, ema, **entries))


def write_checkpoint(path, checkpoint):
    """Write the dict of a checkpoint.

    Atomic, by temporary file, flush to disk and rename: `path` is never half. A link is replaced,
    and what it leads to stays."""
    with whole_files(home(path)) as (temporary,), open(temporary, 'wb') as f:
        torch.save(checkpoint, f)


def load_checkpoint(name, lazily=False):
    """Return the dict of a checkpoint, ours, published, exported or a GPT-2, on the CPU.

    name    as for local_path
    lazily  whether what the file of a run holds is read only as far as it is used, and as long as
            it is: tensors are mapped from the file

    No code of the file is run (weights_only). Raises ValueError when the file is missing, not
    whole, or not a checkpoint."""
    name = home(name)
    check_checkpoint(name)
    if name.startswith(MASKED):
        raise ValueError(
            f'{name} is a masked model of others, for sample.py and eval_*.py: '
            'name a checkpoint of ours'
        )
    path = local_path(name)
    if os.path.isdir(path):
        return load_folder(path)
    return load_file(path, lazily)


def load_folder(path):
    """Return the dict of a checkpoint in a folder as Hugging Face writes it."""
    config = os.path.join(path, 'config.json')
    kind = read_json(config).get('model_type', 'gpt2')
    if kind not in list(FORMATS):  # a list: it may be any value of JSON
        pkgutil.resolve_name(MASKED_FAMILY)(kind, config)  # raises for what is no masked model
        raise ValueError(
            f'{config} has model_type={kind!r}: its name as a masked model is {MASKED}{path}'
        )
    return pkgutil.resolve_name(FORMATS[kind])(path)


def load_file(path, lazily):
    """Return the dict of a checkpoint in a .pt file, see load_checkpoint."""
    shown = f'{path} ({os.path.getsize(path):,} bytes)'
    checkpoint = load_pickle(path, shown, 'a checkpoint', 'name another, or copy it again', lazily)
    if not isinstance(checkpoint, dict) or not {'model', 'model_args'} <= checkpoint.keys():
        raise ValueError(
            f"{path} is not a checkpoint: it must be a dict of 'model', tensors by name, "
            "and 'model_args'"
        )
    return checkpoint


def raw_weights(checkpoint):
    """Return {name: weight} of a checkpoint dict, see weights.unwrapped: torch.compile gave the
    names of published ones a prefix."""
    return unwrapped(checkpoint['model'])


def ema_weights(checkpoint, names):
    """Return {name: weight} of the EMA of a checkpoint dict.

    Published ones hold a list in the order of `names`, or of all names of the raw weights, which
    have a tied matrix twice."""
    weights = checkpoint.get('ema_model', {}).get('shadow_params')
    if isinstance(weights, list | tuple):
        by_length = {len(own): own for own in (list(raw_weights(checkpoint)), names)}
        weights = dict(zip(by_length.get(len(weights), ()), weights))
    if not weights:
        raise ValueError(
            f"the checkpoint holds no EMA of its {len(names)} weights: ask for weights='raw'"
        )
    return unwrapped(weights)


def config_from_checkpoint(checkpoint):
    """Return the AOGPTConfig of a checkpoint dict.

    Published model_args leave out n_cond, which weights say, and n_tokens."""
    known = {field.name for field in fields(AOGPTConfig)}
    args = {name: value for name, value in checkpoint['model_args'].items() if name in known}
    if args.get('vocab_size') == GPT2_PADDED:
        args.setdefault('n_tokens', GPT2_N_TOKENS)
    weights = raw_weights(checkpoint)
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
    if isinstance(path_or_dict, str | os.PathLike):
        checkpoint = load_checkpoint(path_or_dict)
    if weights not in ('ema', 'raw'):
        raise ValueError(f"weights must be 'ema' or 'raw', got {weights!r}")
    with torch.device(device), WithoutDraws():  # nor do its layers
        model = Unset(config_from_checkpoint(checkpoint))
    load_weights(model, checkpoint, weights)
    return model.eval()


def load_weights(model, checkpoint, weights):
    """Give a model the 'ema' or 'raw' weights of a checkpoint dict; each process its part of them.

    Raises ValueError when they do not fit the model, or the run diverged."""
    own = dict(model.named_parameters())
    state = raw_weights(checkpoint) if weights == 'raw' else ema_weights(checkpoint, list(own))
    if model.config.gpt2_blocks:
        state = unwrapped(state, *TIED)
    check_weights(state, {name: p.shape for name, p in own.items()})
    with torch.no_grad():
        for name, p in own.items():
            p.copy_(own_part(state[name], p))
    check_finite(own)


def check_weights(state, shapes):
    """Raise ValueError unless the weights {name: tensor} have these names and shapes."""
    there = {name: p.shape for name, p in state.items()}
    wrong = [name for name in {**there, **shapes} if there.get(name) != shapes.get(name)]
    if wrong:
        raise ValueError(
            f'the checkpoint is not an AO-GPT of its model_args: {len(wrong)} weights differ in '
            f'name or shape, as {wrong[0]}'
        )


def check_finite(weights):
    """Raise ValueError unless weights {name: tensor}, or what this process has of them, are finite,
    without which no run is saved."""
    broken = [name for name, p in weights.items() if not local(p).float().norm().isfinite()]
    if broken:
        raise ValueError(
            f'the run of the checkpoint diverged: {len(broken)} weights are not finite, '
            f'as {broken[0]}'
        )


def set_of(name, checkpoint):
    """Return what kind_of says of the set of a checkpoint dict, as far as the dict knows.

    Published ones have GPT-2's tokens. `name` is for errors."""
    said = checkpoint.get('set', {'tokenizer': checkpoint.get('tokenizer', 'gpt2')})
    try:
        return Meta(**said)
    except TypeError as e:
        raise ValueError(
            f'{name} says of its set what this version cannot read ({e}): use the version that '
            'saved it, or another checkpoint'
        ) from None


def tokenizer_of(name, checkpoint):
    """Return the tokenizer of a checkpoint dict, which must fit the vocabulary of its model.

    `name` is for errors."""
    kind = set_of(name, checkpoint)
    tokenizer = kind.tokenizer
    if tokenizer not in KNOWN and kind.tokenizer_file is None:
        raise ValueError(f'{name} has the tokenizer {tokenizer!r}, known are {", ".join(KNOWN)}')
    have = config_from_checkpoint(checkpoint).n_real
    found = tokenizer_of_set(kind)
    if have != found.n_tokens:
        raise ValueError(
            f'{name} has another tokenizer: a vocabulary of {have} tokens, {tokenizer} has '
            f'{found.n_tokens}'
        )
    return found


def open_checkpoint(name):
    """Return a Checkpoint, or the MaskedCheckpoint of a masked model of others.

    The name of the latter is masked:FOLDER or masked:OWNER/REPO."""
    name = home(name)
    if not name.startswith(MASKED):
        return Checkpoint(name)
    check_checkpoint(name)
    return pkgutil.resolve_name(FORMATS[MASKED])(name)


class Checkpoint:
    """An opened checkpoint, as commands use it; see also families.MaskedCheckpoint.

    name       as it was asked for
    entries    the dict, see entries_of
    config     the AOGPTConfig of its model
    run        the options of its training
    order      the Order of its training
    iter_num   updates of its weights, or '?'
    weights    'ema' or 'raw', which to use unless told otherwise
    set        the Meta of its data, see set_of
    tokenizer  of its data
    counts     (n_tokens,) int64: how often each token stands in its training set, or in the part of
               it that was counted; None: the checkpoint does not say it"""

    def __init__(self, name, lazily=False):
        """Open a path or hf:OWNER/REPO[/path.pt], `lazily` as load_checkpoint does.

        Raises ValueError when it is none, or of another tokenizer."""
        self.name = name
        self.entries = load_checkpoint(name, lazily)
        self.config = config_from_checkpoint(self.entries)
        self.run = self.entries.get('config', {})
        self.order = Order.of('own', self.run)
        self.iter_num = self.entries.get('iter_num', '?')
        self.weights = 'ema' if 'ema_model' in self.entries else 'raw'
        self.set = set_of(name, self.entries)
        self.tokenizer = tokenizer_of(name, self.entries)
        self.counts = self.entries.get('counts')

    def model(self, weights='ema', device='cpu'):
        """Return model_from_checkpoint of it, which has its counts on the device, and `exempt`."""
        model = model_from_checkpoint(self.entries, weights, device)
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
    special = {*getattr(tokenizer, 'special', {}).values(), tokenizer.eos} - {None}
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
