"""How is a tokenizer written for transformers? With the same ids. Behind the last one stand the blank, which is written
<|mask|>, and padding, written <|pad|>. It is no token of a text: trainers take what is padding out of the loss."""

from anyorder.tokens.tokenizers import END_OF_TEXT, Symbols, one_of

MASK, PAD = '<|mask|>', '<|pad|>'
BYTE_LEVEL = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True}


def special_ids(tokenizer):
    """{name in config.json: id} of a tokenizer of anyorder/tokens/tokenizers.py. The blank is its n_tokens, always."""
    ends = (
        {}
        if tokenizer.eos is None
        else {'bos_token_id': tokenizer.eos, 'eos_token_id': tokenizer.eos}
    )
    return ends | {'pad_token_id': tokenizer.n_tokens + 1}


def tokenizer_files(tokenizer, n_read):
    """{file name: its value in JSON} for a tokenizer of anyorder/tokens/tokenizers.py; a model reads `n_read`."""
    of_symbols = isinstance(tokenizer, Symbols)
    eos = [] if tokenizer.eos is None or of_symbols else [END_OF_TEXT]
    mask, pad = (unlike(text, getattr(tokenizer, 'texts', ())) for text in (MASK, PAD))
    special = [
        {
            'id': i,
            'content': text,
            'special': True,
            'normalized': False,
            'single_word': False,
            'lstrip': False,
            'rstrip': False,
        }
        for i, text in enumerate([*eos, mask, pad], tokenizer.n_tokens - len(eos))
    ]
    parts = word_level(tokenizer) if of_symbols else byte_level(tokenizer.name)
    ends = [tokenizer.texts[tokenizer.eos]] if of_symbols and tokenizer.eos is not None else eos
    ends = [
        end for end in ends if sum(end in text for text in getattr(tokenizer, 'texts', ends)) == 1
    ]  # in no other
    names = {'mask_token': mask, 'pad_token': pad} | {
        name: end for end in ends for name in ('bos_token', 'eos_token')
    }
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


def unlike(text, others):
    """The text, in as many more brackets as it takes to stand in none of the others."""
    while any(text in other for other in others):
        text = f'<{text}>'
    return text


def byte_level(name):
    """GPT-2's pairs of bytes; or no pairs, where the ids are the bytes."""
    letters, pairs = byte_letters(), []
    if name == 'gpt2':  # the file from which tiktoken makes its tokenizer
        from tiktoken.load import read_file_cached

        path = 'https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe'
        pairs = [line.split() for line in read_file_cached(path).decode().split('\n')[1:-1]]
    texts = [*(letters.values() if pairs else map(letters.get, range(256))), *map(''.join, pairs)]
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


def byte_letters():
    """{byte: the letter that a byte-level tokenizer.json writes for it}, in the order of GPT-2's first 256 ids. Bytes
    that print are their own letters, the others are the letters from U+0100 on."""
    prints = [
        *range(ord('!'), ord('~') + 1),
        *range(ord('¡'), ord('¬') + 1),
        *range(ord('®'), ord('ÿ') + 1),
    ]
    others = [byte for byte in range(256) if byte not in prints]
    return {byte: chr(byte) for byte in prints} | {
        byte: chr(256 + i) for i, byte in enumerate(others)
    }


def word_level(symbols):
    """A token for each text, with blanks between them; or without, where the longest that fits is taken. No others."""
    split = {
        'type': 'Split',
        'pattern': {'Regex': one_of(symbols.texts)},
        'behavior': 'Isolated',
        'invert': False,
    }
    return {
        'pre_tokenizer': {'type': 'WhitespaceSplit'} if symbols.separator else split,
        'decoder': None if symbols.separator else {'type': 'Fuse'},
        'model': {'type': 'WordLevel', 'vocab': symbols.ids, 'unk_token': ''},
    }
