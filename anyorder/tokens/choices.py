"""Which tokenizer does --tokenizer= of data/prepare.py name?"""

import json
import os
from functools import partial

from anyorder.machine.files import asking_hub, read_text, reading
from anyorder.machine.terminal import progress
from anyorder.tokens.libraries import (
    Library,
    cut_of_words,
    encoding,
    end_of,
    split_in_words,
    train_bpe,
)
from anyorder.tokens.meta import Meta, read_meta
from anyorder.tokens.ranks import file_of_ranks
from anyorder.tokens.tokenizer import Tokenizer
from anyorder.tokens.tokenizers import TEXT, cut_anew, get_tokenizer, tokenizer_of_set
from configurator import home, number_in

WAYS = 'bytes, gpt2, tiktoken:NAME, FILE.json, FOLDER, hf:OWNER/NAME or bpe:4096'
MOST = 1 << 20  # tokens of a tokenizer that is trained
WAY_OUT = 'name another folder'
GPT2_FILES = ('vocab.json', 'merges.txt')
HUB_FILES = ('config.json', 'tokenizer.json', 'tokenizer_config.json', *GPT2_FILES)


class Untrained(Tokenizer):
    """A tokenizer that is still to be trained, bpe:N."""

    def __init__(self, name, n_tokens):
        self.name = name
        self.n_tokens = n_tokens

    def trained(self, source):
        if 'train' not in source.splits:
            raise ValueError(
                f'{self.name} is trained on a train split: name the folder of a set that was '
                'prepared with it, as --tokenizer=data/NAME'
            )
        bar = progress(texts_of(source.of_train()), desc=self.name, unit=' pieces')
        return train_bpe(self.name, self.n_tokens, bar)


def texts_of(documents):
    """Yield the texts of documents, prompts too, in pieces between which no word is cut."""
    for document in cut_anew(documents, partial(cut_of_words, split_in_words())):
        if isinstance(document, tuple):
            yield from document
        else:
            yield str(document)


def choose(name):
    """Return the tokenizer of this name, which may be Untrained. None: '' names none.

    Raises ValueError where there is no such tokenizer."""
    if not name:
        return None
    name = home(name)
    if name in TEXT:
        return get_tokenizer(name)
    kind, colon, rest = name.partition(':')
    if colon and kind in OPENED:
        return OPENED[kind](rest)
    base = os.path.basename(os.path.abspath(name))
    if os.path.isdir(name):
        return of_folder(name, f'{base}/')
    if name.endswith('.json'):
        return Library.of_file(base, read_text(name))
    raise ValueError(f'tokenizer must be {WAYS}, got {name!r}')


def of_tiktoken(name):
    """Return the tokenizer of tiktoken:NAME."""
    if name == 'gpt2':
        return get_tokenizer(name)
    return Library.of_file(f'tiktoken:{name}', file_of_ranks(encoding(name)))


def of_folder(folder, name):
    """Return the tokenizer in a folder in the hub's format, or in that of a prepared set."""
    found = of_training(folder)
    if found:
        return found
    end = said_in(folder, 'tokenizer_config.json').get('eos_token')
    if isinstance(end, dict):
        end = end.get('content')
    end = str(end or '')
    path = os.path.join(folder, 'tokenizer.json')
    if os.path.isfile(path):
        return Library.of_file(name, read_text(path), end=end)
    paths = [os.path.join(folder, file) for file in GPT2_FILES]
    if all(map(os.path.isfile, paths)):
        return of_gpt2_files(name, paths, end)
    raise ValueError(
        f'{folder} holds no tokenizer.json: AutoTokenizer.from_pretrained(FOLDER)'
        '.save_pretrained(OTHER) of transformers writes one where it can'
    )


def of_training(folder):
    """Return the tokenizer of a prepared set, or of the set on which an exported model was trained;
    None of another folder."""
    meta = read_meta(folder)
    config = said_in(folder, 'config.json')
    if not meta and config.get('model_type') != 'aogpt':
        return None
    with reading(folder, 'a set or a model of ours', WAY_OUT):
        if not meta:
            meta = Meta(**config.get('set', {'tokenizer': config['tokenizer']}))
        found = tokenizer_of_set(meta)
    if found.texts:
        raise ValueError(f'{folder} has {found.name} tokens, which are no text')
    return found


def said_in(folder, file):
    """Return the dict in a file of a folder in the hub's format, {} without the file."""
    path = os.path.join(folder, file)
    if not os.path.isfile(path):
        return {}
    with reading(path, f'the {file} of a model', WAY_OUT):
        return {**json.loads(read_text(path))}


def of_gpt2_files(name, paths, end):
    """Return the tokenizer of a vocab.json and a merges.txt, as GPT-2's folder has them."""
    from tokenizers import ByteLevelBPETokenizer

    with reading(paths[0], 'the vocabulary of a GPT-2', WAY_OUT):
        backend = ByteLevelBPETokenizer(*paths)._tokenizer
        if end:
            backend.add_special_tokens([end])
    return Library(name, backend, end_of(backend, end))


def of_hub(name):
    """Return the tokenizer of hf:OWNER/NAME. Only files that say a tokenizer are fetched."""
    from huggingface_hub import snapshot_download

    with asking_hub(f'hf:{name}'):
        folder = snapshot_download(name, allow_patterns=HUB_FILES)
    return of_folder(folder, f'hf:{name}')


def to_train(size):
    """Return the tokenizer of bpe:N."""
    import tokenizers  # noqa: F401, which is missing before a download

    if not 257 <= (number_in(size, int) or 0) <= MOST:
        raise ValueError(
            f'bpe:N is trained for N tokens, from 257, the bytes and an end, to {MOST}, got '
            f'bpe:{size}'
        )
    return Untrained(f'bpe:{size}', int(size))


OPENED = {'tiktoken': of_tiktoken, 'hf': of_hub, 'bpe': to_train}
