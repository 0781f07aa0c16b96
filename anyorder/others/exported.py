"""
What is the folder of a model that transformers loads? It is written here, and read as a checkpoint without running code
from it.

    config.json         sizes, tokenizer, which weights, and the options of the training, see OPTIONS
    model.safetensors   the weights in float32 by their published names; a tied head is in it once
    modeling_aogpt.py   the classes of transformers, and beside it model.py as it is; LICENSE-CODE is of these two
    tokenizer.json, tokenizer_config.json, generation_config.json, README.md
"""
import json
import math
import os
import shutil
from dataclasses import asdict

from anyorder.machine.files import need_extra
from anyorder.others.tokenizer_files import tokenizer_files
from anyorder.others.weights import read_json, read_weights

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COPIED = {'model.py': 'model.py', 'modeling_aogpt.py': 'anyorder/others/modeling_aogpt.py',
          'LICENSE-CODE': 'LICENSE'}
VIEWS = {'AutoConfig': 'AOGPTHubConfig', 'AutoModel': 'AOGPTModel', 'AutoModelForCausalLM': 'AOGPTForCausalLM',
         'AutoModelForMaskedLM': 'AOGPTForMaskedLM'}
ENTRIES = 'iter_num', 'tokenizer', 'puzzle'   # of a checkpoint
# the options of a run that say what the weights are; none is a path of a machine
OPTIONS = ('dataset', 'block_size', 'order', 'order_seed', 'order_block', 'order_swaps', 'l2r_ratio',
           'batch_size', 'gradient_accumulation_steps', 'max_iters', 'optimizer', 'learning_rate',
           'muon_learning_rate', 'min_lr', 'warmup_iters', 'lr_decay_iters', 'weight_decay', 'beta1', 'beta2',
           'grad_clip', 'ema_decay', 'dropout', 'seed', 'dtype')


def write_exported(folder, model, entries, tokenizer, weights, measured=()):
    """Write the folder, which is there and empty, of an AOGPT.

    entries    of the checkpoint that holds its weights, see checkpoint.load_checkpoint
    tokenizer  of anyorder/tokens/tokenizers.py, or None where it is not known
    weights    'ema' or 'raw': which they are
    measured   rows (name, nats a token) for the model card"""
    need_extra('safetensors')
    from safetensors.torch import save
    masked = model.slots.masked_loss
    run, architecture = entries.get('config', {}), VIEWS['AutoModelForMaskedLM' if masked else 'AutoModelForCausalLM']
    config = {'model_type': 'aogpt', 'architectures': [architecture], 'dtype': 'float32',
              'auto_map': {auto: f'modeling_aogpt.{name}' for auto, name in VIEWS.items()},
              'tie_word_embeddings': model.config.gpt2_blocks, 'model_args': asdict(model.config), 'weights': weights,
              **{name: entries[name] for name in ENTRIES if name in entries},
              'training': {name: run[name] for name in OPTIONS if name in run}}
    files = {'config.json': config} | (tokenizer_files(tokenizer, model.config.block_size) if tokenizer else {})
    if not masked:
        end = {} if tokenizer is None or tokenizer.eos is None else dict.fromkeys(
            ('bos_token_id', 'eos_token_id', 'pad_token_id'), tokenizer.eos)
        files['generation_config.json'] = {'do_sample': True, 'max_length': model.config.block_size, **end}
    for name, value in files.items():
        with open(os.path.join(folder, name), 'w', encoding='utf-8') as f:
            f.write(json.dumps(value, indent=2, ensure_ascii=False) + '\n')
    for name, path in COPIED.items():
        shutil.copyfile(os.path.join(ROOT, path), os.path.join(folder, name))
    with open(os.path.join(folder, 'model.safetensors'), 'wb') as f:   # save_file has no OSError for a full disk
        f.write(save(dict(model.named_parameters()), {'format': 'pt'}))
    with open(os.path.join(folder, 'README.md'), 'w', encoding='utf-8') as f:
        f.write(card(model, config, tokenizer, measured))


def read_exported(folder):
    """The entries of a checkpoint, see anyorder/checkpoint.py, of such a folder, also of one that transformers saved
    after more training. Raw weights have no average; of an average weights='raw' is the average.

    Raises ValueError in one line when config.json or the weights are not those of an AO-GPT."""
    path = os.path.join(folder, 'config.json')
    config = read_json(path)
    kinds = {'model_args': dict, 'training': dict, 'iter_num': int, 'tokenizer': str, 'puzzle': dict}
    wrong = [name for name, kind in kinds.items() if not isinstance(config.get(name, kind()), kind)]
    if not wrong and not isinstance(config.get('training', {}).get('order', ''), str | list):
        wrong = ['training.order']
    if wrong or 'model_args' not in config:
        raise ValueError(f'{path} is not that of an AO-GPT: {(wrong or ["model_args"])[0]} is missing or of another '
                         'type; export the checkpoint again')
    weights = {name.removeprefix('network.'): p for name, p in read_weights(folder).items()}
    if not weights:
        raise ValueError(f'{folder} holds no weights of an AO-GPT: model.safetensors is missing')
    entries = {'model': weights, 'model_args': config['model_args'], 'config': config.get('training', {}),
               **{name: config[name] for name in ENTRIES if name in config}}
    return entries if config.get('weights') == 'raw' else entries | {'ema_model': {'shadow_params': weights}}


CARD = """---
library_name: transformers
pipeline_tag: {pipeline}
tags: [any-order, masked-diffusion, ao-gpt]
# license: yours to choose
---

# An any-order language model

{what}
Source: *Any-Order GPT as Masked Diffusion Model*, Xue et al. 2025, arXiv 2506.19935.

{sizes}

## Use

```python
{use}
```

`trust_remote_code=True` runs `modeling_aogpt.py` and `model.py` of this folder: read them first. They need torch and
transformers 5, and are under the licence in `LICENSE-CODE`.

{views}

AO-GPT's own commands read this folder without running code from it, and write text in any order:

```sh
python sample.py --ckpt=DIR
```
"""

CAUSAL = """import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained('DIR', trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained('DIR', trust_remote_code=True)   # left to right
text = model.generate(**tokenizer('{prompt}', return_tensors='pt'), max_length={N})
print(tokenizer.decode(text[0]))

model = AutoModel.from_pretrained('DIR', trust_remote_code=True)              # any order
idx = torch.randint({V}, (1, {N}))                    # (B, N) tokens
order = torch.randperm({N}).unsqueeze(0)            # (B, N) positions
nll = model(idx, order)                            # (B, N) nats: column d is of position order[:, d]
logits = model.predict(idx, order, n_known={half})      # of positions order[:, {half}:], given those before them"""

MASKED = """import torch
from transformers import AutoModel, AutoModelForMaskedLM

idx = torch.randint({V}, (1, {N}))                    # (B, N) tokens
blanks = torch.rand(1, {N}) < 0.5
model = AutoModelForMaskedLM.from_pretrained('DIR', trust_remote_code=True)
logits = model(idx.masked_fill(blanks, {V})).logits  # {V} is the id of a blank

model = AutoModel.from_pretrained('DIR', trust_remote_code=True)
order, n_known = torch.randperm({N}).unsqueeze(0), torch.randint({N}, (1,))
nll = model(idx, order, n_known)                   # (B, N) nats; their sum is a bound on -log p in the mean
logits = model.predict(idx, order, n_known)        # of positions order[:, n_known:], given those before"""


def card(model, config, tokenizer, measured):
    """README.md: what the model is, how it is loaded, its sizes, and its validation if that is known."""
    c, run, masked = model.config, config['training'], model.slots.masked_loss
    kinds = {'causal': 'It is a causal decoder that reads and predicts the tokens of a text in any order.',
             'bidirectional': 'It is an encoder that fills any blanks of a text: masked diffusion.',
             'mixed': 'It fills any blanks of a text: known tokens see those before them, blanks see all.'}
    order = run.get('order')
    rows = [('parameters', f'{model.n_parameters():,}'), ('positions', c.block_size),
            ('layers, heads, width', f'{c.n_layer}, {c.n_head}, {c.n_embd}'),
            ('tokens', f"{c.n_real:,}, {tokenizer.name if tokenizer else 'of a tokenizer that is not known'}"),
            ('weights', f"{'moving average' if config['weights'] == 'ema' else 'raw'}, float32"),
            ('target position', c.target_position), ('updates', config.get('iter_num')),
            ('trained on', run.get('dataset')), ('order', 'a list of positions' if isinstance(order, list) else order),
            ('of it left to right', run.get('l2r_ratio'))]
    sizes = '\n'.join(['| | |', '|---|---|', *(f'| {name} | {value} |' for name, value in rows if value is not None)])
    if measured:
        sizes += '\n\n'.join(['', '## Validation', '\n'.join([
            f"| {run.get('dataset', '')} | nats a token | perplexity |", '|---|---|---|',
            *(f'| {name} | {nats:.4f} | {math.exp(nats):.2f} |' for name, nats in measured)])])
    prompt = tokenizer.texts[0] if tokenizer and tokenizer.eos is None else 'The '
    views = ('It has no left-to-right view, and `generate` of transformers is not for it.' if masked else
             f'`AutoModelForCausalLM` reads at most {c.block_size - 1} tokens, and before the first [None], no token.\n'
             '`generate` keeps keys and values. `attention_mask` may hide the ends of a row.\n'
             f'`AutoModelForMaskedLM` predicts all blanks at once, which are the id {c.n_real}.')
    use = (MASKED if masked else CAUSAL).format(N=c.block_size, V=c.n_real, half=c.block_size // 2, prompt=prompt)
    return CARD.format(pipeline='fill-mask' if masked else 'text-generation', what=kinds[c.attention], sizes=sizes,
                       use=use, views=views)
