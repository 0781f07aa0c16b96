"""How is GPT-2 an any-order model? Its weights, as Hugging Face writes them in a folder, take the shape of sigma-GPT.

Left to right the model is GPT-2 after an end-of-text token. [None] has the embedding of this token and stands at row 0
of GPT-2's positions, token p of the text stands at row p + 1. The embeddings of target positions are zero, to be
learned. A block has 1024 tokens, as many as GPT-2 has rows. Nobody reads its last token left to right, so the row of
this token is a copy of the row before. (Radford et al. 2019; Pannatier et al. 2024 for the shape)"""

import os

import torch

from anyorder.others.weights import read_json, read_weights, tie

GPT2_N_TOKENS, GPT2_PADDED = (
    50257,
    50304,
)  # the real vocabulary; its padded size in our weights and in published ones

# entries of config.json that change the network, and the values that are understood, the default first
UNDERSTOOD = {
    'vocab_size': (GPT2_N_TOKENS,),
    'layer_norm_epsilon': (1e-5,),
    'activation_function': ('gelu_new', 'gelu_pytorch_tanh', 'gelu'),
    'scale_attn_weights': (True,),
    'scale_attn_by_inverse_layer_idx': (False,),
    'add_cross_attention': (False,),
    'tie_word_embeddings': (True,),
}
BUFFERS = ('.attn.bias', '.attn.masked_bias')  # causal masks, no weights
TRANSPOSED = ('c_attn.weight', 'c_proj.weight', 'c_fc.weight')  # GPT-2 keeps them (in, out)


def read_gpt2(folder):
    """The entries of a checkpoint, in float32, from the folder of a GPT-2 that differs from OpenAI's in sizes alone."""
    path = os.path.join(folder, 'config.json')
    config = read_json(path)
    for name, values in UNDERSTOOD.items():
        if config.get(name, values[0]) not in values:
            raise ValueError(
                f'{path} has {name}={config[name]!r}: it must be {" or ".join(map(str, values))}'
            )
    sizes = {
        name: config.get(name, size)
        for name, size in (('n_layer', 12), ('n_head', 12), ('n_embd', 768))
    }
    sizes |= {
        'block_size': config.get('n_positions', 1024),
        'vocab_size': GPT2_PADDED,
        'n_tokens': GPT2_N_TOKENS,
    }
    kind = {
        'target_position': 'input',
        'gpt2_blocks': True,
        'gelu_tanh': config.get('activation_function') != 'gelu',
    }
    weights = {
        name.removeprefix('transformer.'): p.float()
        for name, p in read_weights(folder).items()
        if not name.endswith(BUFFERS)
    }
    weights = tie(weights, 'lm_head.weight', 'wte.weight', folder)
    if not {'wte.weight', 'wpe.weight'} <= weights.keys():
        raise ValueError(
            f'{folder} holds no weights of a GPT-2 in model.safetensors or pytorch_model.bin'
        )
    state = {
        f'transformer.{name}': p.t().contiguous()
        if name.endswith(TRANSPOSED) and p.dim() == 2
        else p
        for name, p in weights.items()
    }
    wte, wpe = weights['wte.weight'], weights['wpe.weight']
    state |= {
        'transformer.wte.weight': torch.cat(
            [wte, wte.new_zeros(GPT2_PADDED - GPT2_N_TOKENS, *wte.shape[1:])]
        ),
        'transformer.wnonee.weight': wte[
            GPT2_N_TOKENS - 1 : GPT2_N_TOKENS
        ].clone(),  # of end-of-text
        'transformer.wpe.weight': torch.cat([wpe, wpe[-1:]]),
        'transformer.wtpe.weight': torch.zeros_like(wpe),
    }
    # weights='ema', which is the default of commands, and 'raw' are the same
    return {
        'model': state,
        'ema_model': {'shadow_params': state},
        'model_args': sizes | kind,
        'tokenizer': 'gpt2',
    }
