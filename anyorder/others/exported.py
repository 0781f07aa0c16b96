"""What is the folder of a model that transformers loads? Here it is written, and read as a checkpoint without its code.

config.json         sizes, tokenizer, which weights, and the options of the training, see OPTIONS
model.safetensors   the weights in float32 by their published names; a tied head is in it once
modeling_aogpt.py   the classes for transformers; model.py as it is; LICENSE-CODE, the licence for both
tokenizer.json, tokenizer_config.json, generation_config.json, README.md"""

import json
import math
import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path

from anyorder.machine.files import GPT2_NAMES, need_extra
from anyorder.orders import kept_order, order_of
from anyorder.others.tokenizer_files import special_ids, tokenizer_files
from anyorder.others.weights import TIED, read_json, read_weights, tie
from anyorder.tokens.tokenizers import Symbols

COPIED = {
    'model.py': 'model.py',
    'modeling_aogpt.py': 'anyorder/others/modeling_aogpt.py',
    'LICENSE-CODE': 'LICENSE',
}
VIEWS = {
    'AutoConfig': 'AOGPTHubConfig',
    'AutoModel': 'AOGPTModel',
    'AutoModelForCausalLM': 'AOGPTForCausalLM',
    'AutoModelForMaskedLM': 'AOGPTForMaskedLM',
}
# in a checkpoint; puzzle in older ones; data and val_data are hashes
ENTRIES = 'iter_num', 'tokenizer', 'set', 'puzzle', 'data', 'val_data'
# options that say how the weights were trained; none is a path on a machine
OPTIONS = (
    'dataset',
    'block_size',
    'shape',
    'order',
    'order_seed',
    'l2r_ratio',
    'fim_ratio',
    'batch_size',
    'gradient_accumulation_steps',
    'max_iters',
    'optimizer',
    'learning_rate',
    'muon_learning_rate',
    'min_lr',
    'warmup_iters',
    'lr_decay_iters',
    'weight_decay',
    'beta1',
    'beta2',
    'grad_clip',
    'ema_decay',
    'dropout',
    'seed',
    'dtype',
    'source',
    'started_from',
)
# how sample.py draws, where transformers would cut all but the 50 likeliest tokens, and its pipelines sharpen
LAW = {'do_sample': True, 'temperature': 1.0, 'top_k': 0, 'top_p': 1.0}
ON_HUB = {'openwebtext': 'Skylion007/openwebtext'} | {
    name: f'openai-community/{name}' for name in GPT2_NAMES
}


def write_exported(folder, model, entries, tokenizer, weights, measured=()):
    """Write an AOGPT to `folder`, which is there and empty.

    entries    the checkpoint that holds its weights, see checkpoint.load_checkpoint
    tokenizer  one of anyorder/tokens/tokenizers.py, or None where it is not known
    weights    'ema' or 'raw': which weights they are
    measured   rows (name, nats a token) for the model card"""
    need_extra('safetensors')
    from safetensors.torch import save

    masked = model.slots.masked_loss
    run, architecture = (
        entries.get('config', {}),
        VIEWS['AutoModelForMaskedLM' if masked else 'AutoModelForCausalLM'],
    )
    if 'order' in run:
        run = run | {'order': kept_order(order_of(run))}  # with its number
    special = special_ids(tokenizer) if tokenizer else {}
    config = {
        'model_type': 'aogpt',
        'architectures': [architecture],
        'dtype': 'float32',
        'auto_map': {auto: f'modeling_aogpt.{name}' for auto, name in VIEWS.items()},
        'tie_word_embeddings': model.config.gpt2_blocks,
        'model_args': asdict(model.config),
        'weights': weights,
        **special,
        **{name: entries[name] for name in ENTRIES if name in entries},
        'training': {name: run[name] for name in OPTIONS if name in run},
    }
    n_read = model.config.block_size - (
        not masked
    )  # left to right the last position is predicted alone
    files = {'config.json': config} | (tokenizer_files(tokenizer, n_read) if tokenizer else {})
    if not masked:
        files['generation_config.json'] = {'max_length': model.config.block_size, **LAW, **special}
    texts = {
        name: json.dumps(value, indent=2, ensure_ascii=False) + '\n'
        for name, value in files.items()
    }
    for name, text in (
        texts | {'README.md': model_card(model, config, tokenizer, measured)}
    ).items():
        Path(folder, name).write_text(text, encoding='utf-8')
    for name, path in COPIED.items():
        shutil.copyfile(Path(__file__).parents[2] / path, Path(folder, name))
    # save_file has no OSError for a full disk
    Path(folder, 'model.safetensors').write_bytes(
        save(dict(model.named_parameters()), {'format': 'pt'})
    )


def read_exported(folder):
    """The entries of a checkpoint, see anyorder/checkpoint.py, from a folder that export_hf.py wrote, or transformers
    after more training. Raw weights have no average. Where the weights are the average, they are also the raw ones."""
    path = os.path.join(folder, 'config.json')
    config = read_json(path)
    if not config.get('model_args'):
        raise ValueError(
            f'{path} is not the file of an AO-GPT: it has no model_args; export the checkpoint again'
        )
    weights = {name.removeprefix('network.'): p for name, p in read_weights(folder).items()}
    if not weights:
        raise ValueError(f'{folder} holds no weights of an AO-GPT: model.safetensors is missing')
    if config['model_args'].get('gpt2_blocks'):
        weights = tie(weights, *TIED, folder)
    entries = {
        'model': weights,
        'model_args': config['model_args'],
        'config': config.get('training', {}),
        **{name: config[name] for name in ENTRIES if name in config},
    }
    return (
        entries
        if config.get('weights') == 'raw'
        else entries | {'ema_model': {'shadow_params': weights}}
    )


def on_hub(names):
    """[OWNER/REPO] of the last of the names that is on the hub, as the metadata of a card has it, or None."""
    names = [f'hf:{ON_HUB[name]}' if name in ON_HUB else name for name in names]
    found = re.findall(r'(?m)^hf:([\w.-]+/[\w.-]+)', '\n'.join(names))
    return f'[{found[-1]}]' if found else None


def model_card(model, config, tokenizer, measured):
    """README.md: card.md, with the comments that are about this model, and without rows whose value is not known."""
    c, run, masked = (
        model.config,
        dict.fromkeys(OPTIONS) | config['training'],
        model.slots.masked_loss,
    )
    starts = run['started_from'] or ()
    about = {c.attention, 'masked' if masked else 'left_to_right', 'measured' if measured else ''}
    card = Path(__file__).with_name('card.md').read_text(encoding='utf-8')
    card = re.sub(
        r'(?s)<!-- (\w+)\s(.*?)\s-->\n', lambda m: m[2] + '\n' if m[1] in about else '', card
    ).format(
        c=c,
        run=run,
        pipeline='fill-mask' if masked else 'text-generation',
        n_parameters=model.n_parameters(),
        tokenizer=tokenizer.name if tokenizer else 'of a tokenizer that is not known',
        n_read=c.block_size - 1,
        weights='moving average' if config['weights'] == 'ema' else 'raw',
        updates=config.get('iter_num'),
        order='a list of positions' if isinstance(run['order'], list) else run['order'],
        half=c.block_size // 2,
        started_from='; '.join('{name}, digest {digest}'.format(**one) for one in starts) or None,
        hub_data=on_hub([run['source'] or '']),
        hub_model=on_hub([one['name'] for one in starts]),
        prompt=tokenizer.texts[0] if isinstance(tokenizer, Symbols) else 'The ',
        config=config,
        measured='\n'.join(
            f'| {name} | {nats:.4f} | {math.exp(nats):.2f} |' for name, nats in measured
        ),
    )
    return re.sub(r'(?m)^(\|.*\| None \||\w+: None)\n', '', card)
