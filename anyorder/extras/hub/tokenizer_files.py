"""How is a tokenizer written for transformers? With the same ids. Two stand behind the last one.

The blank is written <|mask|>, and padding <|pad|>. Padding is no token of a text: trainers take
what is padding out of the loss."""

import json

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from anyorder.extras.tokenizers.library import BYTE_OF, byte_level
from anyorder.extras.tokenizers.ranks import file_of_ranks
from anyorder.tokens.tokenizer import END_OF_TEXT, one_of

MASK = '<|mask|>'
PAD = '<|pad|>'


def special_ids(tokenizer):
    """Return {name in config.json: id} of a tokenizer, see tokens/tokenizer.py.

    The blank is its n_tokens, always."""
    ids = {}
    if tokenizer.eos is not None:
        ids['bos_token_id'] = tokenizer.eos
        ids['eos_token_id'] = tokenizer.eos
    ids['pad_token_id'] = tokenizer.n_tokens + 1
    return ids


def tokenizer_files(tokenizer, n_read):
    """Return {file name: its value in JSON} of a tokenizer, see tokens/tokenizer.py.

    {} where the package tokenizers has none with these ids: for a file that leaves out ids.

    n_read  how many tokens the model reads at most"""
    if tokenizer.texts:
        backend = word_level(tokenizer)
        end = end_of_symbols(tokenizer)
    elif tokenizer.name == 'bytes':
        backend = byte_level(models.BPE(BYTE_OF, []))
        end = END_OF_TEXT
        backend.add_special_tokens([end])
    else:
        backend = Tokenizer.from_str(tokenizer.file or file_of_ranks(tokenizer.bpe))
        end = backend.id_to_token(tokenizer.eos)
    texts = backend.get_vocab()
    mask = unlike(MASK, texts)
    pad = unlike(PAD, texts)
    backend.add_special_tokens([mask, pad])  # in the next ids
    if backend.token_to_id(mask) != tokenizer.n_tokens:
        return {}

    names = {'mask_token': mask, 'pad_token': pad}
    if end is not None:
        names |= {'bos_token': end, 'eos_token': end}
    return {
        'tokenizer.json': json.loads(backend.to_str()),
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


def end_of_symbols(symbols):
    """Return the text of the token that ends a row, if there is one that no other text holds."""
    if symbols.eos is None:
        return None
    end = symbols.texts[symbols.eos]
    holding = [text for text in symbols.texts if end in text]
    return end if len(holding) == 1 else None


def word_level(symbols):
    """Return the tokenizer of the package tokenizers for a token a text, and no others.

    Blanks stand between texts that have a separator; else the longest text that fits is taken."""
    backend = Tokenizer(models.WordLevel(symbols.ids, unk_token=''))
    if symbols.separator:
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(one_of(symbols.texts)), 'isolated')
        backend.decoder = decoders.Fuse()
    return backend
