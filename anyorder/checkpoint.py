"""What is a checkpoint? A file, ours or published, or a folder of export_hf.py or GPT-2; here or on the hub."""

import hashlib
import os
from dataclasses import asdict, fields

import torch

from anyorder.machine.files import MASKED, check_checkpoint, whole_files
from anyorder.machine.processes import whole
from anyorder.orders import Order
from anyorder.others.exported import read_exported
from anyorder.others.families import MaskedCheckpoint, masked_family
from anyorder.others.gpt2 import GPT2_N_TOKENS, GPT2_PADDED, read_gpt2
from anyorder.others.weights import (
    TIED,
    WithoutDraws,
    load_pickle,
    local_path,
    read_json,
    tie,
    unwrapped,
)
from anyorder.tokens.tokenizers import OWN, TOKENIZERS, tokenizer_of_set
from configurator import home
from model import AOGPT, AOGPTConfig

# the entries of a folder as Hugging Face writes it, by the model_type of its config.json
FOLDERS = {'gpt2': read_gpt2, 'aogpt': read_exported}


def entries_of(model, ema=None, keep=True, **entries):
    """The dict of a checkpoint in the published format: model, model_args, ema_model with shadow_params by name, and
    `entries`: iter_num, config, optimizer, ... Its tensors are whole, or None without `keep`, see processes.whole."""
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
    return whole(checkpoint, keep)


def save_checkpoint(path, model, ema=None, **entries):
    """Write a checkpoint of them, see entries_of."""
    write_checkpoint(path, entries_of(model, ema, **entries))


def write_checkpoint(path, checkpoint):
    """Write the dict of a checkpoint. Atomic, by temporary file, flush to disk and rename: `path` is never half. A link
    is replaced, and what it leads to stays."""
    with whole_files(home(path)) as (temporary,), open(temporary, 'wb') as f:
        torch.save(checkpoint, f)


def load_checkpoint(name):
    """The dict of a checkpoint, ours, published, exported or a GPT-2, on the CPU; `name` as for local_path. Never runs
    code from the file (weights_only). Raises ValueError when the file is missing, not whole, or not a checkpoint."""
    name = home(name)
    check_checkpoint(name)
    if name.startswith(MASKED):
        raise ValueError(
            f'{name} is a masked model of others, for sample.py and eval_*.py: name a checkpoint of ours'
        )
    path = local_path(name)
    if os.path.isdir(path):
        config = os.path.join(path, 'config.json')
        kind = read_json(config).get('model_type', 'gpt2')
        if kind not in list(FOLDERS):  # a list: it may be any value of JSON
            masked_family(kind, config)  # raises for what is no masked model
            raise ValueError(
                f'{config} has model_type={kind!r}: its name as a masked model is {MASKED}{path}'
            )
        return FOLDERS[kind](path)
    shown = f'{path} ({os.path.getsize(path):,} bytes)'
    checkpoint = load_pickle(path, shown, 'a checkpoint', 'name another, or copy it again')
    kinds = {'model': dict, 'model_args': dict, 'config': dict, 'tokenizer': str}
    if not (
        isinstance(checkpoint, dict)
        and {'model', 'model_args'} <= checkpoint.keys()
        and all(isinstance(checkpoint[key], kinds[key]) for key in kinds if key in checkpoint)
        and all(isinstance(p, torch.Tensor) for p in checkpoint['model'].values())
    ):
        raise ValueError(
            f"{path} is not a checkpoint: it must be a dict of 'model', tensors by name, and 'model_args'"
        )
    return checkpoint


def raw_weights(checkpoint):
    """{name: weight} of a checkpoint dict, see weights.unwrapped: torch.compile gave published ones a prefix."""
    return unwrapped(checkpoint['model'])


def ema_weights(checkpoint, names):
    """{name: weight} of the EMA of a checkpoint dict. Published ones hold a list in the order of `names`, or of all
    names of the raw weights, which have a tied matrix twice."""
    ema = checkpoint.get('ema_model')
    weights = ema.get('shadow_params') if isinstance(ema, dict) else None
    if isinstance(weights, list | tuple):
        orders = [
            order for order in (names, list(raw_weights(checkpoint))) if len(order) == len(weights)
        ]
        weights = dict(zip(orders[0], weights)) if orders else None
    if isinstance(weights, dict):
        return unwrapped(weights)
    raise ValueError(
        f"the checkpoint holds no EMA of its {len(names)} weights: ask for weights='raw'"
    )


def config_from_checkpoint(checkpoint):
    """AOGPTConfig of a checkpoint dict. Published model_args leave out n_cond, which weights say, and n_tokens."""
    known, args = {f.name for f in fields(AOGPTConfig)}, dict(checkpoint['model_args'])
    args = {k: v for k, v in args.items() if k in known}
    if args.get('vocab_size') == GPT2_PADDED:
        args.setdefault('n_tokens', GPT2_N_TOKENS)
    names = raw_weights(checkpoint)
    if 'target_position' not in args and 'transformer.ln_f.weight' in names:
        args |= {'target_position': 'input', 'gpt2_blocks': True}  # sigma-GPT
    elif 'transformer.wtpe.weight' in names:
        args.setdefault('n_cond', names['transformer.wtpe.weight'].size(1))
    return AOGPTConfig(**args)


class Unset(AOGPT):
    """A model whose weights are still to be read: it draws none."""

    def reset_parameters(self):
        self.__class__ = AOGPT


def model_from_checkpoint(path_or_dict, weights='ema', device='cpu'):
    """AOGPT, in evaluation mode, with the 'ema' or 'raw' weights of a checkpoint: a path or what load_checkpoint gave.
    Raises ValueError when its weights do not fit its model_args, or its run diverged."""
    checkpoint = (
        load_checkpoint(path_or_dict)
        if isinstance(path_or_dict, str | os.PathLike)
        else path_or_dict
    )
    if weights not in ('ema', 'raw'):
        raise ValueError(f"weights must be 'ema' or 'raw', got {weights!r}")
    with torch.device(device), WithoutDraws():  # nor do its layers
        model = Unset(config_from_checkpoint(checkpoint))
    shapes = {name: p.shape for name, p in model.named_parameters()}
    state = raw_weights(checkpoint) if weights == 'raw' else ema_weights(checkpoint, list(shapes))
    if model.config.gpt2_blocks:
        state = tie(state, *TIED, 'the checkpoint')
    there = {name: p.shape for name, p in state.items()}
    wrong = [name for name in shapes.keys() | there.keys() if shapes.get(name) != there.get(name)]
    if wrong:
        wrong.sort(key=lambda name: (name in shapes, name))  # first what is there and has no place
        raise ValueError(
            f'the checkpoint is not an AO-GPT of its model_args: {len(wrong)} weights differ in name or '
            f'shape, the first is {wrong[0]}'
        )
    broken = [
        name for name, p in state.items() if not p.float().norm().isfinite()
    ]  # which training does not save
    if broken:
        raise ValueError(
            f'the run of the checkpoint diverged: {len(broken)} weights are not finite, as {broken[0]}'
        )
    model.load_state_dict(state, strict=False)  # names and shapes were compared above
    return model.eval()


def set_of(checkpoint):
    """What kind_of says of the set of a checkpoint dict, as far as it knows. Published ones have GPT-2's tokens."""
    return checkpoint.get('set', {'tokenizer': checkpoint.get('tokenizer', 'gpt2')})


def tokenizer_of(name, checkpoint):
    """The tokenizer of a checkpoint dict, which must fit the vocabulary of its model; `name` is for errors."""
    kind = set_of(checkpoint)
    tokenizer = kind['tokenizer']
    if tokenizer not in (*TOKENIZERS, OWN):
        raise ValueError(
            f'{name} has the tokenizer {tokenizer!r}, known are {", ".join(TOKENIZERS)}'
        )
    have, want = (
        config_from_checkpoint(checkpoint).n_real,
        kind.get('n_tokens') or TOKENIZERS[tokenizer].n_tokens,
    )
    if have != want:
        raise ValueError(
            f'{name} has another tokenizer: a vocabulary of {have} tokens, {tokenizer} has {want}'
        )
    return tokenizer_of_set(kind)


def open_checkpoint(name):
    """A Checkpoint, or the MaskedCheckpoint of masked:FOLDER or masked:OWNER/REPO, a masked model of others."""
    name = home(name)
    if not name.startswith(MASKED):
        return Checkpoint(name)
    check_checkpoint(name)
    return MaskedCheckpoint(name)


class Checkpoint:
    """An opened checkpoint. Commands use what stands here, model and about; see also families.MaskedCheckpoint."""

    def __init__(self, name):
        """Open a path or hf:OWNER/REPO[/path.pt]. Raises ValueError when it is none, or of another tokenizer."""
        self.name, self.entries = name, load_checkpoint(name)
        self.config, self.run = (
            config_from_checkpoint(self.entries),
            self.entries.get('config', {}),
        )  # of its training
        self.order = Order.of('own', self.run)
        self.iter_num = self.entries.get('iter_num', '?')  # updates of its weights
        self.weights = (
            'ema' if 'ema_model' in self.entries else 'raw'
        )  # to use unless told otherwise
        self.set, self.tokenizer = (
            set_of(self.entries),
            tokenizer_of(name, self.entries),
        )  # of its data

    def model(self, weights='ema', device='cpu'):
        """model_from_checkpoint of it."""
        return model_from_checkpoint(self.entries, weights, device)

    def about(self, weights):
        """What a table says of it: its name, which weights, and how long it was trained."""
        return f'{self.name}: {weights} weights, iteration {self.iter_num}'


def digest(model, config=None):
    """A hash of the model's sizes, or of those in `config`, and of all of its weights."""
    fingerprint = hashlib.blake2b(repr(config or model.config).encode(), digest_size=16)
    for p in model.parameters():
        fingerprint.update(
            p.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        )  # numpy has no bfloat16
    return fingerprint.hexdigest()
