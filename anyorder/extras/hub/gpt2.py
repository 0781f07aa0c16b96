"""How is GPT-2 an any-order model? Its weights take the shape of sigma-GPT.

Hugging Face writes GPT-2 as a folder. Left to right the model is GPT-2 after an end-of-text token.
[None] has the embedding of this token and stands at row 0 of GPT-2's positions, token p of the text
stands at row p + 1. The embeddings of target positions are zero, to be learned. A block has 1024
tokens, as many as GPT-2 has rows. Nobody reads its last token left to right, so the row of this
token is a copy of the row before. (Radford et al. 2019; Pannatier et al. 2024 for the shape)

The tokens are those of OpenAI's GPT-2. A folder with a vocabulary of its own is refused."""

import hashlib
import os

import torch

from anyorder.extras.hub.folders import check_form, read_weights
from anyorder.machine.files import read_json, reading
from anyorder.weights import GPT2_N_TOKENS, embedding_rows, unwrapped

# entries of config.json that change the network, and values that are understood
UNDERSTOOD = {
    'layer_norm_epsilon': 1e-5,
    'activation_function': ('gelu_new', 'gelu_pytorch_tanh', 'gelu'),
    'scale_attn_weights': True,
    'scale_attn_by_inverse_layer_idx': False,
    'add_cross_attention': False,
    'tie_word_embeddings': True,
}
SIZES = {'n_layer': 12, 'n_head': 12, 'n_embd': 768}  # if config.json does not say them
# sha256 of its tokens in the order of their ids, a line each
GPT2_TOKENS = 'e35a33a0b2250c932ffdafc4c3a3552aef0cc7af7a11e9ebfddf1d2a6517371f'
END = GPT2_N_TOKENS - 1  # the token that ends a text
BUFFERS = ('.attn.bias', '.attn.masked_bias')  # causal masks, no weights
TRANSPOSED = ('c_attn.weight', 'c_proj.weight', 'c_fc.weight')  # GPT-2 keeps them (in, out)


def read_gpt2(folder):
    """Return the entries of a checkpoint, in float32, from the folder of a GPT-2.

    It may differ from OpenAI's in sizes alone."""
    config = read_json(os.path.join(folder, 'config.json'))
    check_form(config, UNDERSTOOD)
    state = gpt2_weights(folder)
    wte = state['transformer.wte.weight']
    if len(wte) != GPT2_N_TOKENS or not has_gpt2_tokens(folder):
        raise ValueError(
            f'{folder} has other tokens than the {GPT2_N_TOKENS:,} of GPT-2 (its embedding has '
            f'{len(wte):,} rows), and no others are read: train a model of your tokens'
        )
    wpe = state['transformer.wpe.weight']
    padding = wte.new_zeros(embedding_rows(GPT2_N_TOKENS) - GPT2_N_TOKENS, *wte.shape[1:])
    state |= {
        'transformer.wte.weight': torch.cat([wte, padding]),
        'transformer.wnonee.weight': wte[END:].clone(),
        'transformer.wpe.weight': torch.cat([wpe, wpe[-1:]]),
        'transformer.wtpe.weight': torch.zeros_like(wpe),
    }
    return {
        'model': state,
        'ema_model': {'shadow_params': state},  # 'ema', the default of commands, is 'raw' here
        'model_args': our_sizes(config),
        'tokenizer': 'gpt2',
        'set': {'tokenizer': 'gpt2', 'n_tokens': GPT2_N_TOKENS, 'eos': END},
    }


def has_gpt2_tokens(folder):
    """Whether the tokens in a folder, which need not hold any, are OpenAI's. No code is run."""
    for name in ('tokenizer.json', 'vocab.json'):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            ids = read_json(path)
            if name == 'tokenizer.json':
                with reading(path, 'a tokenizer.json', 'fetch it again'):
                    added = {token['content']: token['id'] for token in ids['added_tokens']}
                    ids = ids['model']['vocab'] | added
            tokens = '\n'.join(sorted(ids, key=ids.get))
            return hashlib.sha256(tokens.encode()).hexdigest() == GPT2_TOKENS
    return True


def our_sizes(config):
    """Return the fields of AOGPTConfig, by the config.json of a GPT-2."""
    sizes = {name: config.get(name, size) for name, size in SIZES.items()}
    return {
        **sizes,
        'block_size': config.get('n_positions', 1024),
        'vocab_size': embedding_rows(GPT2_N_TOKENS),
        'n_tokens': GPT2_N_TOKENS,
        'target_position': 'input',
        'gpt2_blocks': True,
        'gelu_tanh': config.get('activation_function') != 'gelu',
    }


def gpt2_weights(folder):
    """Return {name of ours: weight in float32} of a GPT-2."""
    weights = {}
    for name, p in read_weights(folder).items():
        if name.endswith(BUFFERS):
            continue
        if name.endswith(TRANSPOSED) and p.dim() == 2:
            p = p.t().contiguous()
        weights[f'transformer.{name.removeprefix("transformer.")}'] = p.float()
    weights = unwrapped(weights, 'transformer.lm_head.weight', 'transformer.wte.weight')
    if not {'transformer.wte.weight', 'transformer.wpe.weight'} <= weights.keys():
        raise ValueError(
            f'{folder} holds no weights of a GPT-2 in model.safetensors or pytorch_model.bin'
        )
    return weights
