"""How is a tokenizer written for transformers? With the same ids. Two stand behind the last one.

The blank is written <|mask|>, and padding <|pad|>. Padding is no token of a text: trainers take
what is padding out of the loss."""

from anyorder.tokens.tokenizers import END_OF_TEXT, Symbols, one_of

MASK = '<|mask|>'
PAD = '<|pad|>'
BYTE_LEVEL = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True}


def special_ids(tokenizer):
    """Return {name in config.json: id} of a tokenizer of tokens/tokenizers.py.

    The blank is its n_tokens, always."""
    ids = {}
    if tokenizer.eos is not None:
        ids['bos_token_id'] = tokenizer.eos
        ids['eos_token_id'] = tokenizer.eos
    ids['pad_token_id'] = tokenizer.n_tokens + 1
    return ids


def tokenizer_files(tokenizer, n_read):
    """Return {file name: its value in JSON} of a tokenizer of tokens/tokenizers.py.

    n_read  how many tokens the model reads at most"""
    texts = tokenizer.texts or ()
    mask = unlike(MASK, texts)
    pad = unlike(PAD, texts)
    if isinstance(tokenizer, Symbols):
        parts = word_level(tokenizer)
        end = end_of_symbols(tokenizer)
        added = [mask, pad]
    else:
        parts = byte_level(tokenizer.name)
        end = None if tokenizer.eos is None else END_OF_TEXT
        added = [mask, pad] if end is None else [end, mask, pad]

    first = tokenizer.n_tokens + 2 - len(added)  # the end of a text is among the tokens
    special = [special_token(first + i, text) for i, text in enumerate(added)]
    names = {'mask_token': mask, 'pad_token': pad}
    if end is not None:
        names |= {'bos_token': end, 'eos_token': end}
    return {
        'tokenizer.json': {
            'version': '1.0',
            'truncation': None,
            'padding': None,
            'added_tokens': special,
            'normalizer': None,
            'post_processor': None,
            **parts,
        },
        'tokenizer_config.json': {
            'tokenizer_class': 'PreTrainedTokenizerFast',
            'padding_side': 'left',
            'model_input_names': ['input_ids', 'attention_mask'],
            'model_max_length': n_read,
            'clean_up_tokenization_spaces': False,
            **names,
        },
    }


def end_of_symbols(symbols):
    """Return the text of the token that ends a row, if there is one that no other text holds."""
    if symbols.eos is None:
        return None
    end = symbols.texts[symbols.eos]
    holding = [text for text in symbols.texts if end in text]
    return end if len(holding) == 1 else None


def special_token(number, text):
    """Return an entry of added_tokens, of this id and text."""
    return {
        'id': number,
        'content': text,
        'special': True,
        'normalized': False,
        'single_word': False,
        'lstrip': False,
        'rstrip': False,
    }


def unlike(text, others):
    """The text, in as many more brackets as it takes to stand in none of the others."""
    while any(text in other for other in others):
        text = f'<{text}>'
    return text


def byte_level(name):
    """Return the parts of tokenizer.json for GPT-2's pairs of bytes, or for ids that are bytes."""
    letters = byte_letters()
    if name == 'gpt2':
        pairs = gpt2_pairs()
        texts = [*letters.values(), *map(''.join, pairs)]
    else:
        pairs = []
        texts = [letters[byte] for byte in range(256)]
    model = {
        'type': 'BPE',
        'dropout': None,
        'unk_token': None,
        'continuing_subword_prefix': None,
        'end_of_word_suffix': None,
        'fuse_unk': False,
        'byte_fallback': False,
        'ignore_merges': False,
        'vocab': {text: i for i, text in enumerate(texts)},
        'merges': pairs,
    }
    return {
        'pre_tokenizer': BYTE_LEVEL | {'use_regex': bool(pairs)},
        'decoder': BYTE_LEVEL | {'use_regex': True},
        'model': model,
    }


def gpt2_pairs():
    """Return [[left, right]] of the file from which tiktoken makes its tokenizer."""
    from tiktoken.load import read_file_cached

    path = 'https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe'
    lines = read_file_cached(path).decode().split('\n')
    return [line.split() for line in lines[1:-1]]


def byte_letters():
    """Return {byte: the letter that a byte-level tokenizer.json writes for it}, by GPT-2's ids.

    Bytes that print are their own letters, the others are the letters from U+0100 on."""
    prints = [
        *range(ord('!'), ord('~') + 1),
        *range(ord('¡'), ord('¬') + 1),
        *range(ord('®'), ord('ÿ') + 1),
    ]
    letters = {byte: chr(byte) for byte in prints}
    others = [byte for byte in range(256) if byte not in prints]
    for i, byte in enumerate(others):
        letters[byte] = chr(256 + i)
    return letters


def word_level(symbols):
    """Return the parts of tokenizer.json for a token a text, and no others.

    Blanks stand between texts that have a separator; else the longest text that fits is taken."""
    model = {'type': 'WordLevel', 'vocab': symbols.ids, 'unk_token': ''}
    if symbols.separator:
        return {'pre_tokenizer': {'type': 'WhitespaceSplit'}, 'decoder': None, 'model': model}
    split = {
        'type': 'Split',
        'pattern': {'Regex': one_of(symbols.texts)},
        'behavior': 'Isolated',
        'invert': False,
    }
    return {'pre_tokenizer': split, 'decoder': {'type': 'Fuse'}, 'model': model}
