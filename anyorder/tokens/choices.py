"""Which tokenizer does --tokenizer= of data/prepare.py name? It is opened, or trained."""

import json
import os
import re
from dataclasses import dataclass

from anyorder.machine.files import asking_hub, read_text, reading
from anyorder.machine.terminal import progress
from anyorder.tokens.libraries import Library, encoding, last_cut_of_words, need_library, train_bpe
from anyorder.tokens.meta import kind_of, read_meta
from anyorder.tokens.ranks import file_of_ranks
from anyorder.tokens.tokenizer import Tokenizer
from anyorder.tokens.tokenizers import KNOWN, TEXT, cut_anew, get_tokenizer, tokenizer_of_set
from configurator import home

WAYS = 'bytes, gpt2, tiktoken:NAME, FILE.json, FOLDER, hf:OWNER/NAME or bpe:4096'
ON_HUB = r'\w[\w.-]*/[\w.-]+'  # OWNER/NAME
MOST = 1 << 20  # tokens of a tokenizer that is trained
GPT2_FILES = ('vocab.json', 'merges.txt')
HUB_FILES = ('config.json', 'tokenizer.json', 'tokenizer_config.json', *GPT2_FILES)


@dataclass(frozen=True)
class Named:
    """A tokenizer that its name makes, one of TEXT."""

    name: str

    def is_of(self, meta):
        """Whether it is the tokenizer of a set."""
        return meta.tokenizer == self.name

    def check(self):
        """Raise ValueError where its library or its vocabulary is not there."""
        get_tokenizer(self.name)

    def open(self, divided):
        """Return the tokenizer, for what prepared.divide gives."""
        return get_tokenizer(self.name)


@dataclass(frozen=True)
class ToTrain(Named):
    """A tokenizer that is still to be trained, bpe:N."""

    n_tokens: int

    def check(self):
        need_library('tokenizers')

    def open(self, divided):
        if 'train' not in divided:
            raise ValueError(
                f'{self.name} is trained on a train split, not on {", ".join(divided)}: name the '
                'folder of a set that was prepared with it, as --tokenizer=data/NAME'
            )
        _, documents = divided['train']
        bar = progress(texts_of(documents), desc=self.name, unit='text')
        return train_bpe(self.name, self.n_tokens, bar)


@dataclass(frozen=True)
class There:
    """A tokenizer that is there."""

    tokenizer: Tokenizer

    def is_of(self, meta):
        return tokenizer_of_set(kind_of(meta)).identity == self.tokenizer.identity

    def check(self):
        """It is open."""

    def open(self, divided):
        return self.tokenizer


class CutInWords:
    """Cuts texts where no word that is learned goes on."""

    def cut(self, text):
        return last_cut_of_words(text)


def texts_of(documents):
    """Yield the texts of documents, prompts too, in pieces between which no word is cut."""
    for document in cut_anew(documents, CutInWords()):
        if isinstance(document, tuple):
            yield from document
        else:
            yield str(document)


def choose(name):
    """Return what a name of a tokenizer means, Named, ToTrain or There. None: '' names none.

    Raises ValueError where there is no such tokenizer, or the library that it needs."""
    if not name:
        return None
    name = home(name)
    if name in TEXT:
        return Named(name)
    kind, colon, rest = name.partition(':')
    if colon and kind in OPENED:
        return OPENED[kind](rest)
    if os.path.isdir(name):
        return There(of_folder(name, shown(name) + '/'))
    if os.path.isfile(name):
        text = read_plain(name)
        return There(Library.of_file(shown(name), text))
    raise ValueError(f'tokenizer must be {WAYS}, got {name!r}')


def shown(path):
    """Return the last part of a path as the name of a tokenizer, which is none of KNOWN."""
    name = os.path.basename(os.path.abspath(path)).replace(':', '-')
    return f'{name}.json' if name in KNOWN else name


def read_plain(path):
    with reading(path, 'a tokenizer.json', 'name another'):
        return read_text(path)


# --------------------------------------------------------------------------------------------------
# tiktoken:NAME


def of_tiktoken(name):
    """Return the choice of an encoding of tiktoken."""
    need_library('tiktoken')
    import tiktoken

    names = tiktoken.list_encoding_names()
    if name not in names:
        raise ValueError(f'tiktoken has the encodings {", ".join(names)}, got {name!r}')
    if name == 'gpt2':
        return Named('gpt2')
    return There(Library.of_file(f'tiktoken:{name}', file_of_ranks(encoding(name))))


# --------------------------------------------------------------------------------------------------
# A folder, here or on the hub


def of_folder(folder, name):
    """Return the tokenizer in a folder in the hub's format, or in that of a prepared set."""
    meta = read_meta(folder)
    if meta:
        if meta.tokenizer not in TEXT and meta.tokenizer_file is None:
            raise ValueError(f'{folder} is a set of {meta.tokenizer} tokens, which are no text')
        return tokenizer_of_set(kind_of(meta))
    kind = kind_in(folder)
    if kind:
        return tokenizer_of_set(kind)
    end = end_in(folder)
    path = os.path.join(folder, 'tokenizer.json')
    if os.path.isfile(path):
        return Library.of_file(name, read_plain(path), end=end)
    paths = [os.path.join(folder, file) for file in GPT2_FILES]
    if all(map(os.path.isfile, paths)):
        return of_gpt2_files(name, paths, end)
    raise ValueError(
        f'{folder} holds no tokenizer.json: AutoTokenizer.from_pretrained(FOLDER)'
        '.save_pretrained(OTHER) of transformers writes one where it can'
    )


def kind_in(folder):
    """Return what an exported model keeps of the set of its training, None for other folders."""
    path = os.path.join(folder, 'config.json')
    if not os.path.isfile(path):
        return None
    with reading(path, 'the config.json of a model', 'name another folder'):
        found = json.loads(read_text(path))
        if found.get('model_type') != 'aogpt':
            return None
        name = found['tokenizer']
        kind = found.get('set', {'tokenizer': name})
    if name not in TEXT and 'tokenizer_file' not in kind:
        raise ValueError(f'{folder} is a model of {name} tokens, which are no text')
    return kind


def end_in(folder):
    """Return the text of the token that ends a text, by tokenizer_config.json; '' is none."""
    path = os.path.join(folder, 'tokenizer_config.json')
    if not os.path.isfile(path):
        return ''
    with reading(path, 'a tokenizer_config.json', 'name another folder'):
        found = json.loads(read_text(path)).get('eos_token') or ''
        if isinstance(found, dict):
            found = found['content']
        return str(found)


def of_gpt2_files(name, paths, end):
    """Return the tokenizer of a vocab.json and a merges.txt, as GPT-2's folder has them."""
    need_library('tokenizers')
    from tokenizers import ByteLevelBPETokenizer

    with reading(paths[0], 'the vocabulary of a GPT-2', 'name another folder'):
        backend = ByteLevelBPETokenizer(*paths)._tokenizer
        if end:
            backend.add_special_tokens([end])
        return Library.of_file(name, backend.to_str(), end=end)


def of_hub(name):
    """Return the choice of hf:OWNER/NAME. Only files that say a tokenizer are fetched."""
    need_library('tokenizers')
    if not re.fullmatch(ON_HUB, name):
        raise ValueError(f"a tokenizer on the hub is hf:OWNER/NAME, got 'hf:{name}'")
    from huggingface_hub import snapshot_download

    with asking_hub(f'hf:{name}'):
        folder = snapshot_download(name, allow_patterns=HUB_FILES)
    return There(of_folder(folder, f'hf:{name}'))


def to_train(size):
    """Return the choice of bpe:N."""
    need_library('tokenizers')
    if not re.fullmatch(r'\d+', size) or not 257 <= int(size) <= MOST:
        raise ValueError(
            f'bpe:N is trained for N tokens, from 257, the bytes and an end, to {MOST}, got '
            f'bpe:{size}'
        )
    return ToTrain(f'bpe:{int(size)}', int(size))


OPENED = {'tiktoken': of_tiktoken, 'hf': of_hub, 'bpe': to_train}
