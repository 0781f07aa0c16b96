"""Tiny masked models of others: a folder as its authors write it, and beside each a slow oracle.

An oracle is a function of tokens (S,), a text with all that stands around it, that gives logits
(S, V)."""

import json
import os

import torch
import torch.nn.functional as F

TEXT = (
    'If value is true, the value is returned. '
    'The quick brown fox returns the value of the lazy dog.'
)
SPECIAL = {'pad': '[PAD]', 'cls': '[CLS]', 'sep': '[SEP]', 'mask': '[MASK]', 'unk': '[UNK]'}
C = 16  # width
H = 2  # heads
L = 2  # layers


def write_tokenizer(folder, words=None, **special):
    """Write a tokenizer.json of byte pairs, or of `words`, a letter each, between [CLS] and [SEP].

    Returns ({what: id} of the special tokens, size)."""
    from transformers import PreTrainedTokenizerFast

    if words:
        special = SPECIAL
        tokenizer = letters_between_cls_and_sep(words)
    else:
        tokenizer = byte_pairs(special)
    named = {f'{what}_token': text for what, text in special.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    ids = {what: tokenizer.token_to_id(text) for what, text in special.items()}
    return ids, tokenizer.get_vocab_size()


def letters_between_cls_and_sep(words):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    ids = numbered([*SPECIAL.values(), *words])
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token='[UNK]'))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex('.'), 'isolated')
    tokenizer.decoder = decoders.Fuse()
    sep = ('[SEP]', ids['[SEP]'])
    cls = ('[CLS]', ids['[CLS]'])
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    return tokenizer


def byte_pairs(special):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_special_tokens(list(special.values()))
    return tokenizer


def numbered(words):
    return {word: i for i, word in enumerate(words)}


# ---- tokenizers as ours: each is a function of the name of its kind

LETTERS = 'abcdefghijklmnopqrstuvwxyz.()'


def tokenizer_like(kind):
    """A tiny tokenizer of this kind, as one of ours."""
    from anyorder.extras.masked.tokenizer import HuggingFace

    for beginning, make in TOKENIZERS.items():
        if kind.startswith(beginning):
            return HuggingFace(kind, make(kind))
    raise ValueError(kind)


def of_bytes(kind):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = numbered([*letters, 'Ġa', 'ef'])
    found = Tokenizer(models.BPE(ids, [('Ġ', 'a'), ('e', 'f')]))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(kind == 'bytes behind a space')
    found.decoder = decoders.ByteLevel()
    if kind in ('bytes NFC', 'bytes NFKC', 'bytes NFD', 'bytes Lowercase'):
        found.normalizer = getattr(normalizers, kind.split()[1])()
    return found


def of_metaspace(kind):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = ['<unk>', '▁', *LETTERS, *(f'▁{letter}' for letter in 'abcdef'), 'cd']
    scores = [-2.0 if len(word) == 1 else -1.0 for word in words]
    found = Tokenizer(models.Unigram(list(zip(words, scores)), unk_id=0))
    scheme = kind.split()[1]
    found.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    if kind.endswith('of words'):
        both = [pre_tokenizers.WhitespaceSplit(), found.pre_tokenizer]
        found.pre_tokenizer = pre_tokenizers.Sequence(both)
    found.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return found


def of_sentences(kind):
    from tokenizers import Tokenizer, decoders, models, normalizers

    of_bytes = [f'<0x{byte:02X}>' for byte in range(256)]
    words = ['<unk>', '▁', *LETTERS, '▁a', '▁b', '▁d', *of_bytes]
    pairs = [('▁', 'a'), ('▁', 'b'), ('▁', 'd')]
    by_bytes = kind == 'sentences and bytes'
    model = models.BPE(
        numbered(words), pairs, unk_token='<unk>', byte_fallback=by_bytes, fuse_unk=True
    )
    found = Tokenizer(model)
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
    return found


def of_wordpieces(kind):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    words = ['[UNK]', *LETTERS, *(f'##{letter}' for letter in LETTERS), 'ef', '##ef']
    found = Tokenizer(models.WordPiece(numbered(words), unk_token='[UNK]'))
    found.normalizer = normalizers.BertNormalizer()
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.decoder = decoders.WordPiece()
    return found


def of_ends_of_words(kind):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = ['<unk>', *LETTERS, *(f'{letter}</w>' for letter in LETTERS)]
    model = models.BPE(numbered(words), [], unk_token='<unk>', end_of_word_suffix='</w>')
    found = Tokenizer(model)
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    found.decoder = decoders.BPEDecoder('</w>')
    return found


def of_words(kind):
    from tokenizers import Tokenizer, models, pre_tokenizers

    ids = numbered(['[UNK]', 'a', 'b', 'ab', '[', 'x'])
    found = Tokenizer(models.WordLevel(ids, unk_token='[UNK]'))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return found


def of_letters(kind):
    from tokenizers import Tokenizer, models

    return Tokenizer(models.BPE(numbered('ab'), []))


def of_nothing_else(kind):
    from tokenizers import Tokenizer, models

    return Tokenizer(models.WordLevel(numbered('ab'), unk_token='[UNK]'))


# by the beginning of their name
TOKENIZERS = {
    'bytes': of_bytes,
    'metaspace': of_metaspace,
    'sentences': of_sentences,
    'wordpiece': of_wordpieces,
    'ends of words': of_ends_of_words,
    'words': of_words,
    'letters': of_letters,
    'nothing else': of_nothing_else,
}


# ---- folders


def write_folder(folder, config, weights):
    """Write config.json, with code that must not run, and model.safetensors."""
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
    weights = {}
    for name, shape in shapes.items():
        noise = 0.3 * torch.randn(shape, generator=g, dtype=torch.float64)
        is_norm = len(shape) == 1 and 'norm' in name or name.endswith('ln_f.weight')
        weights[name] = 1 + noise if is_norm else noise
    return weights


def rotate(x, theta):
    """Turn the pairs (i, i + D / 2) of x (S, H, D) at position s by s theta^(-2 i / D)."""
    half = x.size(-1) // 2
    position = torch.arange(len(x)).double()[:, None, None]
    angle = position * theta ** (-torch.arange(half).double() / half)
    a = x[..., :half]
    b = x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def attend(q, k, v):
    """Full attention of one row, head by head: q, k, v (S, heads, D)."""
    n_shared = q.size(1) // k.size(1)
    k = k.repeat_interleave(n_shared, 1)
    v = v.repeat_interleave(n_shared, 1)
    heads = []
    for h in range(q.size(1)):
        weights = (q[:, h] @ k[:, h].T / q.size(-1) ** 0.5).softmax(-1)
        heads.append(weights @ v[:, h])
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
    """names(part, layer) of a family: `parts` of layers, and the `rest`, whose layer is None."""

    def names(part, layer=None):
        if layer is None:
            return rest[part]
        return f'{prefix}.{layer}.{parts[part]}'

    return names


def llama_shapes(names, parts, V, **sizes):
    """{name: shape} of the weights of a Llama of V tokens."""
    sizes |= {'norm1': (C,), 'norm2': (C,), 'gate': (24, C), 'up': (24, C), 'down': (C, 24)}
    shapes = {}
    for layer in range(L):
        for part in parts:
            shapes[f'{names(part, layer)}.weight'] = sizes.get(part, (C, C))
    return shapes | {names('embedding'): (V, C), names('norm'): (C,), names('head'): (V, C)}


LLADA = {
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
LLADA_REST = {
    'embedding': 'model.transformer.wte.weight',
    'norm': 'model.transformer.ln_f.weight',
    'head': 'model.transformer.ff_out.weight',
}


def write_llada(folder):
    special, n = write_tokenizer(folder, eos='<|endoftext|>', mask='<|mdm_mask|>')
    V = n + 5  # padding of the vocabulary
    names = by_table('model.transformer.blocks', LLADA, LLADA_REST)
    w = random_weights(llama_shapes(names, LLADA, V))
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


DREAM = {'eos': '<|endoftext|>', 'bos': '<|beginoftext|>', 'mask': '<|mask|>'}


def as_older_files(folder, special):
    """Put the files of Dream's own tokenizer in place of tokenizer.json."""
    file = json.loads((folder / 'tokenizer.json').read_text())['model']
    (folder / 'vocab.json').write_text(json.dumps(file['vocab']))
    (folder / 'merges.txt').write_text('\n'.join(map(' '.join, file['merges'])))
    flags = ('lstrip', 'rstrip', 'single_word', 'normalized')
    added = {}
    for what, text in DREAM.items():
        entry = {'content': text, 'special': True, **dict.fromkeys(flags, False)}
        added[str(special[what])] = entry
    config = {
        'tokenizer_class': 'DreamTokenizer',
        'auto_map': {'AutoTokenizer': ['evil.Tokenizer', None]},
        'added_tokens_decoder': added,
        'bos_token': '<|beginoftext|>',
        'eos_token': '<|endoftext|>',
        'mask_token': '<|mask|>',
        'pad_token': '<|endoftext|>',
    }
    (folder / 'tokenizer_config.json').write_text(json.dumps(config))
    os.remove(folder / 'tokenizer.json')


def write_dream(folder):
    special, n = write_tokenizer(folder, **DREAM)
    as_older_files(folder, special)
    names = by_table('model.layers', LLAMA, LLAMA_REST)
    one_head = (C // H, C)  # of keys and values
    shapes = llama_shapes(names, LLAMA, n + 3, k=one_head, v=one_head)
    for layer in range(L):
        shapes[f'{names("q", layer)}.bias'] = (C,)
        shapes[f'{names("k", layer)}.bias'] = (C // H,)
        shapes[f'{names("v", layer)}.bias'] = (C // H,)
    w = random_weights(shapes)
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
    b = 'backbone'
    shapes = {}
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
    shapes |= {
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
    w = random_weights(shapes)
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
        for layer in range(L):
            at = f'blocks.{layer}'
            six = linear(time, f'{at}.adaLN_modulation').split(C)
            move_a, scale_a, gate_a, move_m, scale_m, gate_m = six
            read = norm(x, f'{at}.norm1') * (1 + scale_a) + move_a
            qkv = linear(read, f'{at}.attn_qkv').split(C, -1)
            q, k, v = (part.unflatten(-1, (H, -1)) for part in qkv)
            taken = attend(rotate(q, 10000.0), rotate(k, 10000.0), v)
            x = x + gate_a * linear(taken, f'{at}.attn_out')
            read = norm(x, f'{at}.norm2') * (1 + scale_m) + move_m
            hidden = F.gelu(linear(read, f'{at}.mlp.0'), approximate='tanh')
            x = x + gate_m * linear(hidden, f'{at}.mlp.2')
        move, scale = linear(time, 'output_layer.adaLN_modulation').split(C)
        read = norm(x, 'output_layer.norm_final') * (1 + scale) + move
        return linear(read, 'output_layer.linear')

    return oracle


def write_transformers(kind, **sizes):
    """The writer of a folder of a masked model that transformers has; it is its own oracle."""

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
        network.requires_grad_(False)
        file = json.loads((folder / 'config.json').read_text())
        file['attn_implementation'] = 'somebody/kernel'
        (folder / 'config.json').write_text(json.dumps(file))
        return lambda tokens: network(tokens[None]).logits[0]

    return write


KINDS = {
    'llada': write_llada,
    'dream': write_dream,
    'mdlm': write_mdlm,
    'bert': write_transformers('Bert'),
    'modernbert': write_transformers(
        'ModernBert', cls_token_id=1, bos_token_id=1, sep_token_id=2, eos_token_id=2
    ),
}
