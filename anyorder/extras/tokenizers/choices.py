"""How is a tokenizer of others opened, which --tokenizer of data/prepare.py names?

anyorder/tokens/tokenizer.py says by which name each of these is asked for."""

import os

from tokenizers import ByteLevelBPETokenizer

from anyorder.extras.tokenizers.learned import Untrained
from anyorder.extras.tokenizers.library import Library
from anyorder.extras.tokenizers.ranks import file_of_ranks
from anyorder.machine.files import asking_hub, read_json, read_text, reading
from anyorder.tokens.meta import Meta, read_meta
from anyorder.tokens.tokenizer import encoding, get_tokenizer, tokenizer_of_set
from configurator import number_in

MOST = 1 << 20  # tokens of a tokenizer that is trained
WAY_OUT = 'name another folder'
GPT2_FILES = ('vocab.json', 'merges.txt')
HUB_FILES = ('config.json', 'tokenizer.json', 'tokenizer_config.json', *GPT2_FILES)


def of_file(path):
    """Return the tokenizer of a tokenizer.json by any name."""
    return Library.of_file(os.path.basename(path), read_text(path))


def of_tiktoken(name):
    """Return the tokenizer of tiktoken:NAME."""
    if name == 'gpt2':
        return get_tokenizer(name)
    return Library.of_file(f'tiktoken:{name}', file_of_ranks(encoding(name)))


def of_folder(folder, name=''):
    """Return the tokenizer in a folder in the hub's format, or in that of a prepared set.

    name  in place of the folder's"""
    if found := of_training(folder):
        return found
    name = name or f'{os.path.basename(os.path.abspath(folder))}/'
    end = said_in(folder, 'tokenizer_config.json').get('eos_token')
    if isinstance(end, dict):
        end = end.get('content')
    end = str(end or '')
    path = os.path.join(folder, 'tokenizer.json')
    if os.path.isfile(path):
        return Library.of_file(name, read_text(path), end=end)
    paths = [os.path.join(folder, file) for file in GPT2_FILES]
    if all(map(os.path.isfile, paths)):
        with reading(paths[0], 'the vocabulary of a GPT-2', WAY_OUT):
            backend = ByteLevelBPETokenizer(*paths)._tokenizer
            backend.add_special_tokens([end] if end else [])
        return Library.of_file(name, backend.to_str(), end=end)
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
    return read_json(path) if os.path.isfile(path) else {}


def of_hub(name):
    """Return the tokenizer of hf:OWNER/NAME. Only files that say a tokenizer are fetched."""
    from huggingface_hub import snapshot_download

    with asking_hub(f'hf:{name}'):
        folder = snapshot_download(name, allow_patterns=HUB_FILES)
    return of_folder(folder, f'hf:{name}')


def to_train(size):
    """Return the tokenizer of bpe:N."""
    if not 257 <= (number_in(size, int) or 0) <= MOST:
        raise ValueError(
            f'bpe:N is trained for N tokens, from 257, the bytes and an end, to {MOST}, got '
            f'bpe:{size}'
        )
    return Untrained(f'bpe:{size}', int(size))
