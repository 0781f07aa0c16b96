"""
How is GPT-2 an any-order model? Its weights, read from a folder as Hugging Face writes them, in the shape of sigma-GPT.

Left to right it is GPT-2 after an end-of-text token. [None] is the embedding of that token and stands at GPT-2's row 0
of positions, token p of the text at row p + 1; the embeddings of target positions are zero, to be learned. All of
GPT-2's 1024 rows serve a block of 1024 tokens, whose last one nobody reads left to right: its row is a copy of the row
before it. (Radford et al. 2019; Pannatier et al. 2024 for the shape)
"""
import json
import os

import torch

from anyorder.files import is_out_of_memory

GPT2_N_TOKENS, GPT2_PADDED = 50257, 50304   # the real vocabulary; its padded size in our weights and the published ones
END_OF_TEXT = 50256

# what config.json may say of the things that change the network, the default first
UNDERSTOOD = {'model_type': ('gpt2',), 'vocab_size': (GPT2_N_TOKENS,), 'layer_norm_epsilon': (1e-5,),
              'activation_function': ('gelu_new', 'gelu_pytorch_tanh', 'gelu'), 'scale_attn_weights': (True,),
              'scale_attn_by_inverse_layer_idx': (False,), 'add_cross_attention': (False,),
              'tie_word_embeddings': (True,)}
DTYPES = {'F64': torch.float64, 'F32': torch.float32, 'F16': torch.float16, 'BF16': torch.bfloat16}
BUFFERS = ('.attn.bias', '.attn.masked_bias')                           # causal masks, no weights
TRANSPOSED = ('c_attn.weight', 'c_proj.weight', 'c_fc.weight')          # GPT-2 keeps them (in, out)


def read_gpt2(folder):
    """The entries of a checkpoint, see anyorder/checkpoint.py, of a folder that holds config.json and model.safetensors
    or pytorch_model.bin, whole or in parts. Weights become float32. Never runs code from a file.

    Raises ValueError in one line when it holds no GPT-2, or one that differs from OpenAI's in more than its sizes."""
    config, weights = read_config(folder), {}
    for path in weight_files(folder):
        try:
            weights |= read_safetensors(path) if path.endswith('.safetensors') else torch.load(
                path, map_location='cpu', weights_only=True)
        except Exception as e:   # bytes of another kind fail in a dozen ways
            if isinstance(e, OSError) or is_out_of_memory(e):
                raise
            raise ValueError(f'{path} is not a whole file of weights ({type(e).__name__})') from None
    weights = {name.removeprefix('transformer.'): p.float() for name, p in weights.items()
               if isinstance(p, torch.Tensor) and not name.endswith(BUFFERS)}
    if not {'wte.weight', 'wpe.weight'} <= weights.keys():
        raise ValueError(f'{folder} holds no weights of a GPT-2 in model.safetensors or pytorch_model.bin')
    if not torch.equal(weights.pop('lm_head.weight', weights['wte.weight']), weights['wte.weight']):
        raise ValueError(f'{folder} has a head of its own: only one that is tied to the embedding is understood')
    state = any_order(weights)
    # weights='ema', which is the default of commands, and 'raw' are the same
    return {'model': state, 'ema_model': {'shadow_params': state}, 'model_args': config, 'tokenizer': 'gpt2'}


def any_order(weights):
    """The weights of AOGPT of those of GPT-2, {name: tensor} each."""
    state = {f'transformer.{name}': p.t().contiguous() if name.endswith(TRANSPOSED) and p.dim() == 2 else p
             for name, p in weights.items()}
    wte, wpe = weights['wte.weight'], weights['wpe.weight']
    padding = wte.new_zeros(GPT2_PADDED - GPT2_N_TOKENS, *wte.shape[1:])
    return state | {'transformer.wte.weight': torch.cat([wte, padding]),
                    'transformer.wnonee.weight': wte[END_OF_TEXT:END_OF_TEXT + 1].clone(),
                    'transformer.wpe.weight': torch.cat([wpe, wpe[-1:]]),
                    'transformer.wtpe.weight': torch.zeros_like(wpe)}


def read_config(folder):
    """The model_args of AOGPT of a config.json."""
    path = os.path.join(folder, 'config.json')
    config = read_json(path)
    for name, values in UNDERSTOOD.items():
        if config.get(name, values[0]) not in values:
            raise ValueError(f'{path} has {name}={config[name]!r}: only a GPT-2 with '
                             f'{" or ".join(map(str, values))} is understood')
    sizes = {name: config.get(name, size) for name, size in (('n_layer', 12), ('n_head', 12), ('n_embd', 768))}
    return sizes | {'block_size': config.get('n_positions', 1024), 'vocab_size': GPT2_PADDED, 'n_tokens': GPT2_N_TOKENS,
                    'target_position': 'input', 'gpt2_blocks': True,
                    'gelu_tanh': config.get('activation_function') != 'gelu'}


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
    """The paths of the files that hold the weights, [] for none; safetensors are preferred."""
    for name in ('model.safetensors', 'pytorch_model.bin'):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return [path]
        if os.path.isfile(f'{path}.index.json'):
            parts = read_json(f'{path}.index.json').get('weight_map', {})
            return sorted({os.path.join(folder, os.path.basename(part)) for part in parts.values()})
    return []


def read_safetensors(path):
    """{name: tensor} of a file: the length of the header in 8 bytes, the header in JSON, little-endian numbers."""
    raw, tensors = torch.from_file(path, size=os.path.getsize(path), dtype=torch.uint8), {}   # mapped, not read
    data = 8 + int.from_bytes(raw[:8].numpy().tobytes(), 'little')
    for name, entry in json.loads(raw[8:data].numpy().tobytes()).items():
        if name != '__metadata__' and not name.endswith(BUFFERS):
            start, end = entry['data_offsets']
            numbers = raw[data + start:data + end].clone()   # from a file's odd byte to one that any dtype may begin at
            tensors[name] = numbers.view(DTYPES[entry['dtype']]).view(entry['shape'])
    return tensors
