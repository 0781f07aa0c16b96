"""Tiny masked models of others: a folder as its authors write it, beside each a slow oracle; and
their tokenizers.

An oracle is a function of tokens (S,), a text with all that stands around it, that gives logits
(S, V)."""

import json
import os

import torch
import torch.nn.functional as F
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXT = (
    'If value is true, the value is returned. '
    'The quick brown fox returns the value of the lazy dog.'
)
SPECIAL = {'pad': '[PAD]', 'cls': '[CLS]', 'sep': '[SEP]', 'mask': '[MASK]', 'unk': '[UNK]'}
LETTERS = 'abcdefghijklmnopqrstuvwxyz.()'
C = 16  # width
H = 2  # heads


def numbered(words):
    return {word: i for i, word in enumerate(words)}


def made(model, **parts):
    """A Tokenizer with these parts, of which None are left out."""
    found = Tokenizer(model)
    for name, part in parts.items():
        if part is not None:
            setattr(found, name, part)
    return found


# ---- tokenizers as ours: each is a function of what stands behind the first word of its kind


def of_bytes(how):
    ids = numbered([*sorted(pre_tokenizers.ByteLevel.alphabet()), 'Ġa', 'ef'])
    return made(
        models.BPE(ids, [('Ġ', 'a'), ('e', 'f')]),
        normalizer=getattr(normalizers, how)()
        if how in ('NFC', 'NFKC', 'NFD', 'Lowercase')
        else None,
        pre_tokenizer=pre_tokenizers.ByteLevel(how == 'behind a space'),
        decoder=decoders.ByteLevel(),
    )


def of_metaspace(scheme):
    words = ['<unk>', '▁', *LETTERS, *(f'▁{letter}' for letter in 'abcdef'), 'cd']
    scores = [-2.0 if len(word) == 1 else -1.0 for word in words]
    return made(
        models.Unigram([*zip(words, scores)], unk_id=0),
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme=scheme),
        decoder=decoders.Metaspace(prepend_scheme=scheme),
    )


def of_sentences(how):
    words = ['<unk>', '▁', *LETTERS, '▁a', '▁b', '▁d', *(f'<0x{byte:02X}>' for byte in range(256))]
    spaces = decoders.Replace('▁', ' ')
    return made(
        models.BPE(
            numbered(words),
            [('▁', 'a'), ('▁', 'b'), ('▁', 'd')],
            unk_token='<unk>',
            byte_fallback=how == 'and bytes',
            fuse_unk=True,
        ),
        normalizer=normalizers.Sequence([normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')]),
        decoder=decoders.Sequence(
            [spaces, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1, 0)]
        ),
    )


def tokenizer_like(kind):
    """A tiny tokenizer of this kind, as one of ours."""
    from anyorder.extras.masked.tokenizer import HuggingFace

    name, _, how = kind.partition(' ')
    if name == 'bytes':
        backend = of_bytes(how)
    elif name == 'metaspace':
        backend = of_metaspace(how.split()[0])
    elif name == 'sentences':
        backend = of_sentences(how)
    elif name == 'wordpiece':
        words = ['[UNK]', *LETTERS, *(f'##{letter}' for letter in LETTERS), 'ef', '##ef']
        backend = made(
            models.WordPiece(numbered(words), unk_token='[UNK]'),
            normalizer=normalizers.BertNormalizer(),
            pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
            decoder=decoders.WordPiece(),
        )
    elif name == 'ends':
        ids = numbered(['<unk>', *LETTERS, *(f'{letter}</w>' for letter in LETTERS)])
        backend = made(
            models.BPE(ids, [], unk_token='<unk>', end_of_word_suffix='</w>'),
            pre_tokenizer=pre_tokenizers.Whitespace(),
            decoder=decoders.BPEDecoder('</w>'),
        )
    elif name == 'words':
        ids = numbered(['[UNK]', 'a', 'b', 'ab', '[', 'x'])
        model = models.WordLevel(ids, unk_token='[UNK]')
        backend = made(model, pre_tokenizer=pre_tokenizers.WhitespaceSplit())
    elif name == 'letters':
        backend = made(models.BPE(numbered('ab'), []))
    else:
        assert name == 'nothing'
        backend = made(models.WordLevel(numbered('ab'), unk_token='[UNK]'))
    if how.endswith('of words'):
        both = [pre_tokenizers.WhitespaceSplit(), backend.pre_tokenizer]
        backend.pre_tokenizer = pre_tokenizers.Sequence(both)
    return HuggingFace(kind, backend)


# ---- tokenizers in a folder


def write_tokenizer(folder, words=None, **special):
    """Write a tokenizer.json of byte pairs, or of `words`, a letter each, between [CLS] and [SEP].

    Returns ({what: id} of the special tokens, size)."""
    from transformers import PreTrainedTokenizerFast

    if words:
        special = SPECIAL
        ids = numbered([*SPECIAL.values(), *words])
        tokenizer = made(
            models.WordLevel(ids, unk_token='[UNK]'),
            pre_tokenizer=pre_tokenizers.Split(Regex('.'), 'isolated'),
            decoder=decoders.Fuse(),
            post_processor=processors.BertProcessing(('[SEP]', 2), ('[CLS]', 1)),
        )
    else:
        split = pre_tokenizers.ByteLevel(False)
        tokenizer = made(models.BPE(), pre_tokenizer=split, decoder=decoders.ByteLevel())
        how = dict(initial_alphabet=split.alphabet(), show_progress=False)
        tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=270, **how))
        tokenizer.add_special_tokens([*special.values()])
    named = {f'{what}_token': text for what, text in special.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    ids = {what: tokenizer.token_to_id(text) for what, text in special.items()}
    return ids, tokenizer.get_vocab_size()


def as_older_files(folder):
    """Put vocab.json and merges.txt, as Dream has them, in place of tokenizer.json."""
    file = json.loads((folder / 'tokenizer.json').read_text())
    config = json.loads((folder / 'tokenizer_config.json').read_text())
    (folder / 'vocab.json').write_text(json.dumps(file['model']['vocab']))
    (folder / 'merges.txt').write_text('\n'.join(map(' '.join, file['model']['merges'])))
    config['added_tokens_decoder'] = {str(token.pop('id')): token for token in file['added_tokens']}
    config['tokenizer_class'] = 'DreamTokenizer'
    config['auto_map'] = {'AutoTokenizer': ['evil.Tokenizer', None]}
    (folder / 'tokenizer_config.json').write_text(json.dumps(config))
    os.remove(folder / 'tokenizer.json')


# ---- folders


def write_folder(folder, config, weights):
    """Write config.json, with code that must not run, and model.safetensors."""
    from safetensors.torch import save_file

    code = dict.fromkeys(('AutoConfig', 'AutoModel', 'AutoModelForMaskedLM'), 'evil.Model')
    kernel = {'attn_implementation': 'somebody/kernel', '_attn_implementation': 'somebody/kernel'}
    (folder / 'config.json').write_text(json.dumps(config | kernel | {'auto_map': code}))
    (folder / 'evil.py').write_text('raise SystemExit("code of the folder has run")')
    save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})


def large(network):
    """The network in float64, its weights so large and random that every part matters."""
    torch.manual_seed(3)
    network = network.double().eval().requires_grad_(False)
    for name, p in network.named_parameters():
        p.copy_(
            0.3 * torch.randn_like(p) + ('norm' in name and p.dim() == 1 and 'bias' not in name)
        )
    return network


def of_transformers(kind, **sizes):
    """A network of transformers of this kind."""
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
    return large(getattr(transformers, kind)(config))


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


def write_llada(folder):
    special, n = write_tokenizer(folder, eos='<|endoftext|>', mask='<|mdm_mask|>')
    V = n + 5  # padding of the vocabulary
    rope = dict(rope_parameters={'rope_theta': 500000.0, 'rope_type': 'default'})
    network = of_transformers('LlamaForCausalLM', vocab_size=V, rms_norm_eps=1e-5, **rope)
    weights = {}
    for name, p in network.state_dict().items():
        for theirs, its in LLADA.items():
            name = name.replace(theirs, its)
        weights[name] = p
    config = {
        'model_type': 'llada',
        'd_model': C,
        'n_layers': 2,
        'n_heads': H,
        'n_kv_heads': H,
        'mlp_hidden_size': 24,
        'embedding_size': V,
        'vocab_size': V,
        'max_sequence_length': 40,
        'rope_theta': 500000.0,
        'rms_norm_eps': 1e-5,
        'weight_tying': False,
        'block_type': 'llama',
        'mask_token_id': special['mask'],
        'eos_token_id': special['eos'],
    }
    write_folder(folder, config, weights)
    return shown_all(network)


def write_dream(folder):
    tokens = {'eos': '<|endoftext|>', 'bos': '<|beginoftext|>', 'mask': '<|mask|>'}
    special, n = write_tokenizer(folder, **tokens)
    as_older_files(folder)
    rope = dict(rope_parameters={'rope_theta': 1e6, 'rope_type': 'default'})
    sizes = dict(vocab_size=n + 3, num_key_value_heads=1, rms_norm_eps=1e-6)
    network = of_transformers('Qwen2ForCausalLM', tie_word_embeddings=False, **sizes, **rope)
    config = {
        'model_type': 'Dream',
        'hidden_size': C,
        'num_hidden_layers': 2,
        'num_attention_heads': H,
        'intermediate_size': 24,
        'max_position_embeddings': 131072,
        'rope_theta': 1e6,
        'tie_word_embeddings': False,
        'mask_token_id': special['mask'],
        'pad_token_id': special['eos'],
        'bos_token_id': special['eos'],
    }
    write_folder(folder, config | sizes, network.state_dict())
    return shown_all(network)


def write_mdlm(folder):
    from anyorder.extras.masked.mdlm import MDLM

    V = 50258  # GPT-2's tokens and the mask
    sizes = dict(vocab_size=V, hidden_dim=C, cond_dim=6, n_blocks=2, n_heads=H)
    network = large(MDLM(**sizes))
    more = {'model_type': 'mdlm', 'model_length': 40, 'dropout': 0.1, 'time_conditioning': False}
    w = network.state_dict()
    write_folder(folder, sizes | more, w | {'backbone.rotary_emb.inv_freq': torch.ones(4)})
    assert sum(p.numel() for p in w.values()) == 2 * C * V + V + 9536

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
        special, n = write_tokenizer(folder, words='0123456789abcdefghijklmnopqrstuvwxyz ,.T')
        more = dict(vocab_size=n, max_position_embeddings=42, pad_token_id=special['pad'])
        network = of_transformers(f'{kind}ForMaskedLM', **more, **sizes)
        network.save_pretrained(folder)
        path = folder / 'config.json'
        config = json.loads(path.read_text()) | {'attn_implementation': 'somebody/kernel'}
        path.write_text(json.dumps(config))
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
