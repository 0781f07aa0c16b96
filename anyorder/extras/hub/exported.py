"""What is the folder of a model that transformers loads? It is written, and read without its code.

config.json         sizes, tokenizer, which weights, and the options of the training, see OPTIONS
model.safetensors   the weights in float32 by their published names; a tied head is in it once
modeling_aogpt.py   the classes for transformers; model.py as it is; LICENSE-CODE, their licence
counts.json         how often each token stands in the training set, which patterns ask for
tokenizer.json, tokenizer_config.json, generation_config.json"""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import torch

from anyorder.extras.hub.folders import read_weights
from anyorder.machine.files import read_json, reading
from anyorder.orders import Order
from anyorder.weights import TIED, unwrapped

COPIED = {
    'model.py': 'model.py',
    'modeling_aogpt.py': 'anyorder/extras/hub/modeling_aogpt.py',
    'LICENSE-CODE': 'LICENSE',
}
VIEWS = {
    'AutoConfig': 'AOGPTHubConfig',
    'AutoModel': 'AOGPTModel',
    'AutoModelForCausalLM': 'AOGPTForCausalLM',
    'AutoModelForMaskedLM': 'AOGPTForMaskedLM',
}
# entries of a checkpoint that are kept; see training/data.py
ENTRIES = ('iter_num', 'tokenizer', 'set', 'sets')
# options that say how the weights were trained; none is a path on a machine
OPTIONS = """
dataset documents block_size shape order l2r_ratio
batch_size gradient_accumulation_steps max_iters
optimizer learning_rate min_lr warmup_iters lr_decay_iters weight_decay beta1 beta2 grad_clip
ema_decay dropout seed dtype source started_from
"""
# how sample.py draws; transformers would cut all but the 50 likeliest tokens, its pipelines sharpen
LAW = {'do_sample': True, 'temperature': 1.0, 'top_k': 0, 'top_p': 1.0}
AGAIN = 'export the checkpoint again'


def write_exported(folder, model, entries, tokenizer, weights):
    """Write an AOGPT to `folder`, which is there and empty.

    entries    the checkpoint that holds its weights, see checkpoint.load_checkpoint
    tokenizer  as tokens/tokenizer.py has it, or None where it is not known
    weights    'ema' or 'raw': which weights they are"""
    from safetensors.torch import save

    special = {}
    files = {}
    if tokenizer is not None:
        from anyorder.extras.hub.tokenizer_files import special_ids, tokenizer_files

        # left to right the last position is predicted alone
        n_read = model.config.block_size - int(not model.slots_class.masked_loss)
        special = special_ids(tokenizer)
        files = tokenizer_files(tokenizer, n_read)
    files['config.json'] = hub_config(model, entries, special, weights)
    if entries.get('counts') is not None:
        files['counts.json'] = {'counts': entries['counts'].tolist()}
    if not model.slots_class.masked_loss:
        files['generation_config.json'] = {'max_length': model.config.block_size, **LAW, **special}
    for name, value in files.items():
        text = json.dumps(value, indent=2, ensure_ascii=False) + '\n'
        Path(folder, name).write_text(text, encoding='utf-8')
    for name, path in COPIED.items():
        shutil.copyfile(Path(__file__).parents[3] / path, Path(folder, name))
    data = save(dict(model.named_parameters()), {'format': 'pt'})
    Path(folder, 'model.safetensors').write_bytes(data)  # save_file has no OSError for a full disk


def hub_config(model, entries, special, weights):
    """Return config.json of a model, whose checkpoint has these entries. See write_exported.

    special  ids of special tokens, see special_ids"""
    run = entries.get('config', {})
    if 'order' in run:
        run = run | {'order': Order.of('own', run).kept}  # with its number
    view = 'AutoModelForMaskedLM' if model.slots_class.masked_loss else 'AutoModelForCausalLM'
    return {
        'model_type': 'aogpt',
        'architectures': [VIEWS[view]],
        'dtype': 'float32',
        'auto_map': {auto: f'modeling_aogpt.{name}' for auto, name in VIEWS.items()},
        'tie_word_embeddings': model.config.gpt2_blocks,
        'model_args': asdict(model.config),
        'weights': weights,
        **special,
        **part_of(entries, ENTRIES),
        'training': part_of(run, OPTIONS.split()),
    }


def part_of(values, names):
    """Return those of the values that have one of the names, in the order of the names."""
    return {name: values[name] for name in names if name in values}


def read_exported(folder):
    """Return the entries of a checkpoint from a folder that hub or transformers wrote.

    Raw weights have no average. Where the weights are the average, they are also the raw ones."""
    path = os.path.join(folder, 'config.json')
    config = read_json(path)
    with reading(path, 'the file of an AO-GPT, with model_args', AGAIN):
        model_args = config['model_args'] | {}
    weights = {name.removeprefix('network.'): p for name, p in read_weights(folder).items()}
    if not weights:
        raise ValueError(f'{folder} holds no weights of an AO-GPT: model.safetensors is missing')
    if model_args.get('gpt2_blocks'):
        weights = unwrapped(weights, *TIED)
    entries = {
        'model': weights,
        'model_args': model_args,
        'config': config.get('training', {}),
        **part_of(config, ENTRIES),
    }
    counts = os.path.join(folder, 'counts.json')
    if os.path.isfile(counts):
        with reading(counts, 'counts of tokens', AGAIN):
            entries['counts'] = torch.tensor(read_json(counts)['counts'])
    if config.get('weights') != 'raw':
        entries['ema_model'] = {'shadow_params': weights}
    return entries
