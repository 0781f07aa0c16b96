"""Tiny masked models of others: a folder as its authors write it, and beside each folder a slow oracle.

An oracle is a function of tokens (S,), a text with all that stands around it, that gives logits (S, V)."""

import json
import os

import torch
import torch.nn.functional as F

TEXT = 'If value is true, the value is returned. The quick brown fox returns the value of the lazy dog.'
SPECIAL = {'pad': '[PAD]', 'cls': '[CLS]', 'sep': '[SEP]', 'mask': '[MASK]', 'unk': '[UNK]'}
C, H, L = 16, 2, 2  # width, heads, layers


def write_tokenizer(folder, words=None, **special):
    """A tokenizer.json of a word a letter between [CLS] and [SEP], or, without `words`, of byte pairs. Returns
    ({what: id} of the special tokens, size)."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    if words:
        special, ids = SPECIAL, {text: i for i, text in enumerate([*SPECIAL.values(), *words])}
        tokenizer = Tokenizer(models.WordLevel(ids, unk_token='[UNK]'))
        tokenizer.pre_tokenizer, tokenizer.decoder = (
            pre_tokenizers.Split(Regex('.'), 'isolated'),
            decoders.Fuse(),
        )
        tokenizer.post_processor = processors.BertProcessing(
            ('[SEP]', ids['[SEP]']), ('[CLS]', ids['[CLS]'])
        )
    else:
        tokenizer, alphabet = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel.alphabet()
        tokenizer.pre_tokenizer, tokenizer.decoder = (
            pre_tokenizers.ByteLevel(False),
            decoders.ByteLevel(),
        )
        trainer = trainers.BpeTrainer(
            vocab_size=270, initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator([TEXT], trainer)
        tokenizer.add_special_tokens(list(special.values()))
    named = {f'{what}_token': text for what, text in special.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    return {
        what: tokenizer.token_to_id(text) for what, text in special.items()
    }, tokenizer.get_vocab_size()


LETTERS = 'abcdefghijklmnopqrstuvwxyz.()'


def tokenizer_like(kind):
    """A tiny tokenizer of this kind, as one of ours."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    from anyorder.tokens.tokenizers import HuggingFace

    if kind.startswith('bytes'):
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        ids = {text: i for i, text in enumerate([*letters, 'Ġa', 'ef'])}
        found = Tokenizer(models.BPE(ids, [('Ġ', 'a'), ('e', 'f')]))
        found.pre_tokenizer = pre_tokenizers.ByteLevel(kind == 'bytes behind a space')
        found.decoder = decoders.ByteLevel()
        if kind in ('bytes NFC', 'bytes NFKC', 'bytes NFD', 'bytes Lowercase'):
            found.normalizer = getattr(normalizers, kind.split()[1])()
    elif kind.startswith('metaspace'):
        words = ['<unk>', '▁', *LETTERS, *(f'▁{letter}' for letter in 'abcdef'), 'cd']
        found = Tokenizer(
            models.Unigram([(word, -1.0 - (len(word) == 1)) for word in words], unk_id=0)
        )
        scheme = kind.split()[1]
        found.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        if kind.endswith('of words'):
            found.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.WhitespaceSplit(), found.pre_tokenizer]
            )
        found.decoder = decoders.Metaspace(prepend_scheme=scheme)
    elif kind.startswith('sentences'):
        words = [
            '<unk>',
            '▁',
            *LETTERS,
            '▁a',
            '▁b',
            '▁d',
            *(f'<0x{byte:02X}>' for byte in range(256)),
        ]
        found = Tokenizer(
            models.BPE(
                {word: i for i, word in enumerate(words)},
                [('▁', 'a'), ('▁', 'b'), ('▁', 'd')],
                unk_token='<unk>',
                byte_fallback=kind == 'sentences and bytes',
                fuse_unk=True,
            )
        )
        found.normalizer = normalizers.Sequence(
            [normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')]
        )
        found.decoder = decoders.Sequence(
            [
                decoders.Replace('▁', ' '),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(' ', 1, 0),
            ]
        )
    elif kind == 'wordpiece':
        words = ['[UNK]', *LETTERS, *(f'##{letter}' for letter in LETTERS), 'ef', '##ef']
        found = Tokenizer(
            models.WordPiece({word: i for i, word in enumerate(words)}, unk_token='[UNK]')
        )
        found.normalizer, found.pre_tokenizer = (
            normalizers.BertNormalizer(),
            pre_tokenizers.BertPreTokenizer(),
        )
        found.decoder = decoders.WordPiece()
    elif kind == 'ends of words':
        words = ['<unk>', *LETTERS, *(f'{letter}</w>' for letter in LETTERS)]
        found = Tokenizer(
            models.BPE(
                {word: i for i, word in enumerate(words)},
                [],
                unk_token='<unk>',
                end_of_word_suffix='</w>',
            )
        )
        found.pre_tokenizer, found.decoder = (
            pre_tokenizers.Whitespace(),
            decoders.BPEDecoder('</w>'),
        )
    else:
        words = {
            'words': ['[UNK]', 'a', 'b', 'ab', '[', 'x'],
            'letters': ['a', 'b'],
            'nothing else': ['a', 'b'],
        }[kind]
        ids = {word: i for i, word in enumerate(words)}
        found = Tokenizer(
            models.BPE(ids, []) if kind == 'letters' else models.WordLevel(ids, unk_token='[UNK]')
        )
        if kind == 'words':
            found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return HuggingFace(kind, found)


def write_folder(folder, config, weights):
    """config.json, with code that must not run, and model.safetensors."""
    from safetensors.torch import save_file

    code = {
        'AutoConfig': 'evil.Config',
        'AutoModel': 'evil.Model',
        'AutoModelForMaskedLM': 'evil.Model',
        'AutoModelForCausalLM': 'evil.Model',
    }
    kernel = {'attn_implementation': 'somebody/kernel', '_attn_implementation': 'somebody/kernel'}
    (folder / 'config.json').write_text(json.dumps({**config, **kernel, 'auto_map': code}))
    (folder / 'evil.py').write_text('raise SystemExit("code of the folder has run")')
    save_file(weights, folder / 'model.safetensors', metadata={'format': 'pt'})


def random_weights(shapes):
    """Large enough that every part matters; norms about 1."""
    g = torch.Generator().manual_seed(7)
    return {
        name: (len(shape) == 1 and 'norm' in name or name.endswith('ln_f.weight'))
        + 0.3 * torch.randn(shape, generator=g, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def rotate(x, theta):
    """Turn the pairs (i, i + D / 2) of x (S, H, D) at position s by s theta^(-2 i / D)."""
    half = x.size(-1) // 2
    angle = torch.arange(len(x)).double()[:, None, None] * theta ** (
        -torch.arange(half).double() / half
    )
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def attend(q, k, v):
    """Full attention of one row, head by head: q, k, v (S, heads, D)."""
    k, v = (x.repeat_interleave(q.size(1) // k.size(1), 1) for x in (k, v))
    heads = [
        (q[:, h] @ k[:, h].T / q.size(-1) ** 0.5).softmax(-1) @ v[:, h] for h in range(q.size(1))
    ]
    return torch.stack(heads, 1).flatten(1)


def rms(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def llama(w, names, tokens, theta, eps):
    """Llama's logits with full attention; `names` gives w's name of a part of layer l."""
    x = w[names('embedding')][tokens]
    for layer in range(L):

        def project(x, part, layer=layer):
            name = names(part, layer)
            return x @ w[f'{name}.weight'].T + w.get(f'{name}.bias', 0)

        y = rms(x, w[names('norm1', layer) + '.weight'], eps)
        q, k, v = (project(y, part).unflatten(-1, (-1, C // H)) for part in 'qkv')
        x = x + project(attend(rotate(q, theta), rotate(k, theta), v), 'o')
        y = rms(x, w[names('norm2', layer) + '.weight'], eps)
        x = x + project(F.silu(project(y, 'gate')) * project(y, 'up'), 'down')
    return rms(x, w[names('norm')], eps) @ w[names('head')].T


def by_table(prefix, parts, rest):
    return lambda part, layer=None: (
        rest[part] if layer is None else f'{prefix}.{layer}.{parts[part]}'
    )


def llama_shapes(names, parts, V, **sizes):
    """{name: shape} of the weights of a Llama of V tokens."""
    sizes |= {'norm1': (C,), 'norm2': (C,), 'gate': (24, C), 'up': (24, C), 'down': (C, 24)}
    shapes = {
        f'{names(part, layer)}.weight': sizes.get(part, (C, C))
        for layer in range(L)
        for part in parts
    }
    return shapes | {names('embedding'): (V, C), names('norm'): (C,), names('head'): (V, C)}


def write_llada(folder):
    special, n = write_tokenizer(folder, eos='<|endoftext|>', mask='<|mdm_mask|>')
    parts = {
        'norm1': 'attn_norm',
        'q': 'q_proj',
        'k': 'k_proj',
        'v': 'v_proj',
        'o': 'attn_out',
        'norm2': 'ff_norm',
        'gate': 'ff_proj',
        'up': 'up_proj',
        'down': 'ff_out',
    }
    m, V = 'model.transformer', n + 5  # padding of the vocabulary
    names = by_table(
        f'{m}.blocks',
        parts,
        {'embedding': f'{m}.wte.weight', 'norm': f'{m}.ln_f.weight', 'head': f'{m}.ff_out.weight'},
    )
    w = random_weights(llama_shapes(names, parts, V))
    write_folder(
        folder,
        {
            'model_type': 'llada',
            'd_model': C,
            'n_layers': L,
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
        },
        w,
    )
    return lambda tokens: llama(w, names, tokens, 500000.0, 1e-5)


# transformers' names of the parts
LLAMA = {
    'norm1': 'input_layernorm',
    'q': 'self_attn.q_proj',
    'k': 'self_attn.k_proj',
    'v': 'self_attn.v_proj',
    'o': 'self_attn.o_proj',
    'norm2': 'post_attention_layernorm',
    'gate': 'mlp.gate_proj',
    'up': 'mlp.up_proj',
    'down': 'mlp.down_proj',
}
LLAMA_REST = {
    'embedding': 'model.embed_tokens.weight',
    'norm': 'model.norm.weight',
    'head': 'lm_head.weight',
}


def write_dream(folder):
    special, n = write_tokenizer(
        folder, eos='<|endoftext|>', bos='<|beginoftext|>', mask='<|mask|>'
    )
    file = json.loads((folder / 'tokenizer.json').read_text())['model']  # Dream has the older files
    (folder / 'vocab.json').write_text(json.dumps(file['vocab']))
    (folder / 'merges.txt').write_text('\n'.join(map(' '.join, file['merges'])))
    added = {
        str(special[what]): {
            'content': text,
            'special': True,
            'lstrip': False,
            'rstrip': False,
            'single_word': False,
            'normalized': False,
        }
        for what, text in (
            ('eos', '<|endoftext|>'),
            ('bos', '<|beginoftext|>'),
            ('mask', '<|mask|>'),
        )
    }
    (folder / 'tokenizer_config.json').write_text(
        json.dumps(
            {
                'tokenizer_class': 'DreamTokenizer',
                'auto_map': {'AutoTokenizer': ['evil.Tokenizer', None]},
                'added_tokens_decoder': added,
                'bos_token': '<|beginoftext|>',
                'eos_token': '<|endoftext|>',
                'mask_token': '<|mask|>',
                'pad_token': '<|endoftext|>',
            }
        )
    )
    os.remove(folder / 'tokenizer.json')
    names = by_table('model.layers', LLAMA, LLAMA_REST)
    biases = {
        f'{names(part, layer)}.bias': (C if part == 'q' else C // H,)
        for layer in range(L)
        for part in 'qkv'
    }
    w = random_weights(
        llama_shapes(names, LLAMA, n + 3, k=(C // H, C), v=(C // H, C)) | biases
    )  # one head of keys
    write_folder(
        folder,
        {
            'model_type': 'Dream',
            'hidden_size': C,
            'num_hidden_layers': L,
            'num_attention_heads': H,
            'num_key_value_heads': 1,
            'intermediate_size': 24,
            'vocab_size': n + 3,
            'max_position_embeddings': 131072,
            'rope_theta': 1e6,
            'rms_norm_eps': 1e-6,
            'tie_word_embeddings': False,
            'mask_token_id': special['mask'],
            'pad_token_id': special['eos'],
            'bos_token_id': special['eos'],
        },
        w,
    )
    return lambda tokens: llama(w, names, tokens, 1e6, 1e-6)


def write_mdlm(folder, n=50257, n_cond=6):
    b, shapes = 'backbone', {}
    for layer in range(L):
        at = f'{b}.blocks.{layer}'
        shapes |= {
            f'{at}.norm1.weight': (C,),
            f'{at}.attn_qkv.weight': (3 * C, C),
            f'{at}.attn_out.weight': (C, C),
            f'{at}.norm2.weight': (C,),
            f'{at}.mlp.0.weight': (4 * C, C),
            f'{at}.mlp.0.bias': (4 * C,),
            f'{at}.mlp.2.weight': (C, 4 * C),
            f'{at}.mlp.2.bias': (C,),
            f'{at}.adaLN_modulation.weight': (6 * C, n_cond),
            f'{at}.adaLN_modulation.bias': (6 * C,),
        }
    w = random_weights(
        shapes
        | {
            f'{b}.vocab_embed.embedding': (n + 1, C),
            f'{b}.sigma_map.mlp.0.weight': (n_cond, 256),
            f'{b}.sigma_map.mlp.0.bias': (n_cond,),
            f'{b}.sigma_map.mlp.2.weight': (n_cond, n_cond),
            f'{b}.sigma_map.mlp.2.bias': (n_cond,),
            f'{b}.output_layer.norm_final.weight': (C,),
            f'{b}.output_layer.linear.weight': (n + 1, C),
            f'{b}.output_layer.linear.bias': (n + 1,),
            f'{b}.output_layer.adaLN_modulation.weight': (2 * C, n_cond),
            f'{b}.output_layer.adaLN_modulation.bias': (2 * C,),
        }
    )
    buffers = {f'{b}.rotary_emb.inv_freq': torch.ones(C // H // 2)}
    write_folder(
        folder,
        {
            'model_type': 'mdlm',
            'vocab_size': n + 1,
            'model_length': 40,
            'hidden_dim': C,
            'cond_dim': n_cond,
            'n_blocks': L,
            'n_heads': H,
            'dropout': 0.1,
            'time_conditioning': False,
        },
        w | buffers,
    )

    def linear(x, name):
        return x @ w[f'{b}.{name}.weight'].T + w.get(f'{b}.{name}.bias', 0)

    def norm(x, name):
        x = x - x.mean(-1, keepdim=True)
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f'{b}.{name}.weight']

    def oracle(tokens):
        of_time = torch.cat([torch.ones(128), torch.zeros(128)]).double()
        time = F.silu(linear(F.silu(linear(of_time, 'sigma_map.mlp.0')), 'sigma_map.mlp.2'))
        x = w[f'{b}.vocab_embed.embedding'][tokens]
        for at in (f'blocks.{layer}' for layer in range(L)):
            move_a, scale_a, gate_a, move_m, scale_m, gate_m = linear(
                time, f'{at}.adaLN_modulation'
            ).split(C)
            qkv = linear(norm(x, f'{at}.norm1') * (1 + scale_a) + move_a, f'{at}.attn_qkv')
            q, k, v = (part.unflatten(-1, (H, -1)) for part in qkv.split(C, -1))
            x = x + gate_a * linear(
                attend(rotate(q, 10000.0), rotate(k, 10000.0), v), f'{at}.attn_out'
            )
            hidden = linear(norm(x, f'{at}.norm2') * (1 + scale_m) + move_m, f'{at}.mlp.0')
            x = x + gate_m * linear(F.gelu(hidden, approximate='tanh'), f'{at}.mlp.2')
        move, scale = linear(time, 'output_layer.adaLN_modulation').split(C)
        return linear(
            norm(x, 'output_layer.norm_final') * (1 + scale) + move, 'output_layer.linear'
        )

    return oracle


def write_transformers(kind, **sizes):
    """Writer of a folder of a masked model that transformers has; the oracle is transformers' own, row by row."""

    def write(folder):
        import transformers

        special, n = write_tokenizer(folder, words='0123456789abcdefghijklmnopqrstuvwxyz ,.T')
        torch.manual_seed(3)
        config = getattr(transformers, f'{kind}Config')(
            vocab_size=n,
            hidden_size=C,
            num_hidden_layers=L,
            num_attention_heads=H,
            intermediate_size=24,
            max_position_embeddings=42,
            pad_token_id=special['pad'],
            **sizes,
        )
        network = getattr(transformers, f'{kind}ForMaskedLM')(config).double().eval()
        with torch.no_grad():
            for p in network.parameters():
                p.add_(0.3 * torch.randn_like(p))
        network.save_pretrained(folder)
        file = json.loads((folder / 'config.json').read_text())
        (folder / 'config.json').write_text(
            json.dumps(file | {'attn_implementation': 'somebody/kernel'})
        )
        return lambda tokens: network.requires_grad_(False)(tokens[None]).logits[0]

    return write


KINDS = {
    'llada': write_llada,
    'dream': write_dream,
    'mdlm': write_mdlm,
    'bert': write_transformers('Bert'),
    'roberta': write_transformers('Roberta'),
    'modernbert': write_transformers(
        'ModernBert', cls_token_id=1, bos_token_id=1, sep_token_id=2, eos_token_id=2
    ),
}
