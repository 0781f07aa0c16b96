"""Tiny masked models of others: a folder as its authors write it, beside each a slow oracle.

An oracle is a function of tokens (S,), a text with all that stands around it, that gives logits
(S, V)."""

import json
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from conftest import library, put
from oracle import defined

from model import AOGPTConfig

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
# the weights of MDLM's network, with GPT-2's tokens and the mask, and those of one of its blocks:
# what an AO-GPT calls them, and their shapes
MDLM = """
vocab_embed.embedding transformer.wte.weight 50258 16
sigma_map.mlp.0.weight - 6 256
sigma_map.mlp.0.bias - 6
sigma_map.mlp.2.weight - 6 6
sigma_map.mlp.2.bias - 6
output_layer.norm_final.weight transformer.final_layer.ln_f.weight 16
output_layer.linear.weight lm_head.weight 50258 16
output_layer.linear.bias lm_head.bias 50258
output_layer.adaLN_modulation.weight transformer.final_layer.adaLN_final.1.weight 32 6
output_layer.adaLN_modulation.bias transformer.final_layer.adaLN_final.1.bias 32
"""
MDLM_BLOCK = """
norm1.weight ln_1.weight 16
attn_qkv.weight attn.c_attn.weight 48 16
attn_out.weight attn.c_proj.weight 16 16
norm2.weight ln_2.weight 16
mlp.0.weight mlp.c_fc.weight 64 16
mlp.0.bias mlp.c_fc.bias 64
mlp.2.weight mlp.c_proj.weight 16 64
mlp.2.bias mlp.c_proj.bias 16
adaLN_modulation.weight adaLN.1.weight 96 6
adaLN_modulation.bias adaLN.1.bias 96
"""


def write_mdlm(folder):
    """The oracle is the definition of an encoder whose conditions are all the time 0, which has
    rotary positions alone."""
    torch.manual_seed(3)
    theirs = {'backbone.rotary_emb.inv_freq': torch.ones(4)}
    ours = {}
    for their_block, our_block, table in (
        ('', '', MDLM),
        ('blocks.0.', 'transformer.h.0.', MDLM_BLOCK),
        ('blocks.1.', 'transformer.h.1.', MDLM_BLOCK),
    ):
        for line in table.split('\n')[1:-1]:
            name, our_name, *shape = line.split()
            p = drawn(name, torch.empty([*map(int, shape)], dtype=torch.float64))
            theirs[f'backbone.{their_block}{name}'] = p
            ours[our_block + our_name] = p
    write_folder(folder, json.loads(MDLM_CONFIG), theirs)

    time = torch.tensor([1.0, 0.0]).double().repeat_interleave(128)
    for layer in (0, 2):
        weight, bias = (theirs[f'backbone.sigma_map.mlp.{layer}.{x}'] for x in ('weight', 'bias'))
        time = F.linear(F.silu(time) if layer else time, weight, bias)
    ours['transformer.wtpe.weight'] = time.expand(40, -1)
    ours['transformer.wpe.weight'] = torch.zeros(41, C).double()
    sizes = dict(block_size=40, vocab_size=50258, n_layer=2, n_head=H, n_embd=C)
    kind = dict(attention='bidirectional', rotary=True, gpt2_blocks=True, gelu_tanh=True)
    network = SimpleNamespace(config=AOGPTConfig(**sizes, **kind), state_dict=lambda: ours)

    def oracle(tokens):
        order = torch.arange(len(tokens))
        return torch.stack([defined(network, tokens, order, len(order), d) for d in order])

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
