"""Tiny masked models of others: a folder as its authors write it, beside each a slow oracle.

An oracle is a function of tokens (S,), a text with all that stands around it, that gives logits
(S, V)."""

import json

import torch
import torch.nn.functional as F
from conftest import library, put

C = 16  # width
H = 2  # heads
SPECIAL = ['<|mdm_mask|>', '<|begin|>', '<|endoftext|>', '<|user|>', '<|eot|>', '<|ai|>']


def write_tokenizer(folder, tokenizer, **special):
    """Write a tokenizer of the package tokenizers, and which of its tokens are special."""
    from transformers import PreTrainedTokenizerFast

    named = {f'{what}_token': text for what, text in special.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)


def write_llada_tokenizer(folder):
    """Write one that begins each text, and has tokens for 'th', 'the', '10', '100' and turns."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = library('texts')
    tokenizer.add_special_tokens(SPECIAL)
    begin = SPECIAL[1]
    tokenizer.post_processor = TemplateProcessing(f'{begin} $A', special_tokens=[(begin, 261)])
    write_tokenizer(folder, tokenizer, **dict(zip(('mask', 'bos', 'eos'), SPECIAL)))


DREAM_TOKENIZER = """
{
    "eos_token": "<|endoftext|>",
    "bos_token": "<|beginoftext|>",
    "mask_token": "<|mask|>",
    "added_tokens_decoder": {
        "260": {"content": "<|endoftext|>", "special": true},
        "261": {"content": "<|beginoftext|>", "special": true},
        "262": {"content": "<|mask|>", "special": true}
    },
    "tokenizer_class": "DreamTokenizer",
    "auto_map": {"AutoTokenizer": ["evil.Tokenizer", null]}
}
"""


def write_dream_tokenizer(folder):
    """Write vocab.json and merges.txt, and a class that is code of the folder."""
    model = json.loads(library('texts').to_str())['model']
    (folder / 'vocab.json').write_text(json.dumps(model['vocab']))
    (folder / 'merges.txt').write_text('\n'.join(map(' '.join, model['merges'])))
    (folder / 'tokenizer_config.json').write_text(DREAM_TOKENIZER)


# ---- folders


CODE = """
{
    "attn_implementation": "somebody/kernel",
    "_attn_implementation": "somebody/kernel",
    "auto_map": {
        "AutoConfig": "evil.Model",
        "AutoModel": "evil.Model",
        "AutoModelForMaskedLM": "evil.Model"
    }
}
"""


def write_folder(folder, config, weights):
    """Write config.json, with code that must not run, and model.safetensors."""
    from safetensors.torch import save_file

    (folder / 'config.json').write_text(json.dumps(config | json.loads(CODE)))
    (folder / 'evil.py').write_text('raise SystemExit("code of the folder has run")')
    save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})


def drawn(name, p):
    """A weight of this name and shape, so large and random that every part matters."""
    is_scale = 'norm' in name and p.dim() == 1 and 'bias' not in name
    return 0.3 * torch.randn_like(p) + is_scale


def of_transformers(kind, **sizes):
    """A network of transformers of this kind, in float64."""
    import transformers

    sizes = dict(
        hidden_size=C,
        num_hidden_layers=2,
        num_attention_heads=H,
        intermediate_size=24,
        attn_implementation='eager',
        **sizes,
    )
    config = getattr(transformers, kind.partition('For')[0] + 'Config')(**sizes)
    network = getattr(transformers, kind)(config).double().eval().requires_grad_(False)
    torch.manual_seed(3)
    for name, p in network.named_parameters():
        p.copy_(drawn(name, p))
    return network


def shown_all(network):
    """The oracle of a decoder of transformers in which every token is shown all tokens."""

    def oracle(tokens):
        n = len(tokens)
        shown = torch.zeros(1, 1, n, n, dtype=torch.float64)  # is added to the scores
        return network(tokens[None], attention_mask=shown).logits[0]

    return oracle


# LLaDA's names, by Llama's
LLADA = {
    'model.layers': 'model.transformer.blocks',
    'model.embed_tokens': 'model.transformer.wte',
    'model.norm': 'model.transformer.ln_f',
    'lm_head': 'model.transformer.ff_out',
    'input_layernorm': 'attn_norm',
    'self_attn.o_proj': 'attn_out',
    'self_attn.': '',
    'post_attention_layernorm': 'ff_norm',
    'mlp.gate_proj': 'ff_proj',
    'mlp.up_proj': 'up_proj',
    'mlp.down_proj': 'ff_out',
}


LLADA_CONFIG = """
{
    "model_type": "llada",
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 2,
    "n_kv_heads": 1,
    "mlp_hidden_size": 24,
    "embedding_size": 270,
    "max_sequence_length": 41,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "block_type": "llama",
    "mask_token_id": 260
}
"""


def write_llada(folder):
    write_llada_tokenizer(folder)
    V = 270  # some are padding of the vocabulary
    rope = {'rope_theta': 500000.0, 'rope_type': 'default'}
    sizes = dict(vocab_size=V, num_key_value_heads=1, rms_norm_eps=1e-5, rope_parameters=rope)
    network = of_transformers('LlamaForCausalLM', **sizes)
    weights = {}
    for name, p in network.state_dict().items():
        for theirs, its in LLADA.items():
            name = name.replace(theirs, its)
        weights[name] = p
    write_folder(folder, json.loads(LLADA_CONFIG), weights)
    return shown_all(network)


DREAM_CONFIG = """
{
    "model_type": "Dream",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 24,
    "vocab_size": 266,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": false
}
"""


def write_dream(folder):
    write_dream_tokenizer(folder)
    sizes = dict(vocab_size=266, num_key_value_heads=1, rms_norm_eps=1e-6)
    rope = {'rope_theta': 1e6, 'rope_type': 'default'}
    more = dict(tie_word_embeddings=False, rope_parameters=rope)
    network = of_transformers('Qwen2ForCausalLM', **sizes, **more)
    write_folder(folder, json.loads(DREAM_CONFIG), network.state_dict())
    return shown_all(network)


MDLM_CONFIG = """
{
    "model_type": "mdlm",
    "vocab_size": 50258,
    "model_length": 40,
    "hidden_dim": 16,
    "n_blocks": 2,
    "n_heads": 2,
    "dropout": 0.1,
    "time_conditioning": false
}
"""
# the weights of MDLM's network, with GPT-2's tokens and the mask, and those of one of its blocks
MDLM = """
vocab_embed.embedding 50258 16
sigma_map.mlp.0.weight 6 256
sigma_map.mlp.0.bias 6
sigma_map.mlp.2.weight 6 6
sigma_map.mlp.2.bias 6
output_layer.norm_final.weight 16
output_layer.linear.weight 50258 16
output_layer.linear.bias 50258
output_layer.adaLN_modulation.weight 32 6
output_layer.adaLN_modulation.bias 32
"""
MDLM_BLOCK = """
norm1.weight 16
attn_qkv.weight 48 16
attn_out.weight 16 16
norm2.weight 16
mlp.0.weight 64 16
mlp.0.bias 64
mlp.2.weight 16 64
mlp.2.bias 16
adaLN_modulation.weight 96 6
adaLN_modulation.bias 96
"""


def write_mdlm(folder):
    torch.manual_seed(3)
    w = {}
    for prefix, table in (('', MDLM), ('blocks.0.', MDLM_BLOCK), ('blocks.1.', MDLM_BLOCK)):
        for line in table.split('\n')[1:-1]:
            name, *shape = line.split()
            p = torch.empty([*map(int, shape)], dtype=torch.float64)
            w[f'backbone.{prefix}{name}'] = drawn(name, p)
    write_folder(
        folder, json.loads(MDLM_CONFIG), w | {'backbone.rotary_emb.inv_freq': torch.ones(4)}
    )

    def linear(x, name):
        return F.linear(x, w[f'backbone.{name}.weight'], w.get(f'backbone.{name}.bias'))

    def moved(x, name, shift, scale):
        return F.layer_norm(x, (C,), w[f'backbone.{name}.weight']) * (1 + scale) + shift

    def attended(qkv):
        """Full attention (S, C) with rotary positions, as complex numbers."""
        angle = torch.arange(len(qkv))[:, None] / 1e4 ** (torch.arange(4).double() / 4)
        qkv = qkv.view(len(qkv), 3, H, 2, 4).transpose(0, 2)  # (H, 3, S, 2, 4)
        turned = torch.complex(*qkv.unbind(3)) * torch.polar(torch.ones_like(angle), angle)
        score = (turned[:, 0] @ turned[:, 1].mH).real / 8**0.5
        return (score.softmax(-1) @ qkv[:, 2].flatten(2)).transpose(0, 1).flatten(1)

    def oracle(tokens):
        of_time = torch.tensor([1.0, 0.0]).double().repeat_interleave(128)
        time = F.silu(linear(F.silu(linear(of_time, 'sigma_map.mlp.0')), 'sigma_map.mlp.2'))
        x = w['backbone.vocab_embed.embedding'][tokens]
        for at in ('blocks.0', 'blocks.1'):
            six = linear(time, f'{at}.adaLN_modulation').split(C)
            y = linear(moved(x, f'{at}.norm1', *six[:2]), f'{at}.attn_qkv')
            x = x + six[2] * linear(attended(y), f'{at}.attn_out')
            y = linear(moved(x, f'{at}.norm2', *six[3:5]), f'{at}.mlp.0')
            x = x + six[5] * linear(F.gelu(y, approximate='tanh'), f'{at}.mlp.2')
        two = linear(time, 'output_layer.adaLN_modulation').split(C)
        return linear(moved(x, 'output_layer.norm_final', *two), 'output_layer.linear')

    return oracle


def write_encoder(kind, **sizes):
    """The writer of a folder of a masked model that transformers has; it is its own oracle."""

    def write(folder):
        names = ('pad', 'cls', 'sep', 'mask', 'unk')
        write_tokenizer(folder, library('bert'), **{name: f'[{name.upper()}]' for name in names})
        more = dict(vocab_size=45, max_position_embeddings=42, pad_token_id=0)
        network = of_transformers(f'{kind}ForMaskedLM', **more, **sizes)
        network.save_pretrained(folder)
        put(folder / 'config.json', '{"attn_implementation": "somebody/kernel"}')
        return lambda tokens: network(tokens[None]).logits[0]

    return write


KINDS = {
    'llada': write_llada,
    'dream': write_dream,
    'mdlm': write_mdlm,
    'bert': write_encoder('Bert'),
    'modernbert': write_encoder(
        'ModernBert', cls_token_id=1, bos_token_id=1, sep_token_id=2, eos_token_id=2
    ),
}
