"""
Text to token files: DIR/NAME/<split>.bin (little-endian uint16) and DIR/NAME/meta.json.

    python data/prepare.py pydocs                                        # what the quickstart reads; no network
    python data/prepare.py text --source=books.jsonl.xz --name=books     # any .txt or .jsonl, also .xz and .gz
    python data/prepare.py text --source=test.txt --name=books --split=test
    python data/prepare.py shakespeare [--source=input.txt]
    python data/prepare.py openwebtext                                   # 8 million documents through `datasets`
    python data/prepare.py wikitext2 [--source=wiki.test.raw]            # also wikitext103, ptb, lm1b, lambada

Every document is followed by the end-of-text token. Without --split the documents are divided into train and val by a
fixed seed; a text of one document is cut instead. The sets for zero-shot perplexity come with their own splits: a
source is their test split unless --split says otherwise. Their documents are rows, detokenized. A second run does
nothing unless --force. Without a network, GPT-2's vocabulary is read from the folder that TIKTOKEN_CACHE_DIR names.
"""
import functools
import hashlib
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

if __name__ == '__main__':   # the project's folder in place of this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
from anyorder.files import check_folder, check_names, progress
from configurator import configure, one_line_errors
from data.detokenizers import clean_lambada, clean_lm1b, clean_ptb, clean_wikitext
from data.sets import is_there, print_meta, read_meta, whole_splits, write_splits
from data.sources import TextFile, name_source, openwebtext, pydocs, shakespeare, zero_shot
from data.tokenizers import encode_documents, get_tokenizer

SPLIT_SEED = 2357


@dataclass
class DataSet:
    documents: Callable   # source -> documents; with splits of its own (source, split) -> documents
    tokenizer: str        # default
    val_ratio: float      # share of the documents that are for validation
    about: str
    offline: bool = False        # can be made from nothing but this Python
    splits: tuple = ()           # those it comes with and that a protocol wants


def benchmark(name, repository, config, field, clean, about, splits=('test',)):
    return DataSet(zero_shot(name, repository, config, field, clean), 'gpt2', 0, about, splits=splits)


DATA_SETS = {
    'pydocs': DataSet(pydocs, 'bytes', 0.05, 'English of the Python documentation, about 2 MB; no network',
                      offline=True),
    'text': DataSet(TextFile, 'gpt2', 0.1, 'a .txt or .jsonl file of your own (--source)'),
    'shakespeare': DataSet(shakespeare, 'gpt2', 0.1, '1.1 MB of plays, downloaded'),
    'openwebtext': DataSet(openwebtext, 'gpt2', 0.0005, '9 billion tokens of web text, through the hub'),
    'lambada': benchmark('lambada', 'EleutherAI/lambada_openai', 'default', 'text', clean_lambada,
                         "LAMBADA in OpenAI's form, 5,153 passages"),
    'wikitext2': benchmark('wikitext2', 'Salesforce/wikitext', 'wikitext-2-raw-v1', 'text', clean_wikitext,
                           'WikiText-2 raw, one row a line', splits=('train', 'test')),
    'wikitext103': benchmark('wikitext103', 'Salesforce/wikitext', 'wikitext-103-raw-v1', 'text', clean_wikitext,
                             'WikiText-103 raw; its test split is that of WikiText-2'),
    'ptb': benchmark('ptb', 'ptb-text-only/ptb_text_only', None, 'sentence', clean_ptb,
                     "Penn Treebank in Mikolov's form"),
    'lm1b': benchmark('lm1b', 'dvruette/lm1b', None, 'text', clean_lm1b, 'One Billion Word'),
}
WORDS = {name: f'{row.about}; {row.tokenizer} tokens' for name, row in DATA_SETS.items()}

source = ''      # local file to read, also .gz and .xz: a .jsonl has a document a line under the key "text";
                 # a .txt is one document, of a zero-shot set one row a line, as a .raw
split = ''       # the whole source is this split (train, val, test); '' divides it into train and val,
                 # or is test for a zero-shot set
name = ''        # folder to write under `data_dir`; '' is the name of the data set
tokenizer = ''   # bytes or gpt2; '' is that of the data set
data_dir = os.path.dirname(os.path.abspath(__file__))   # default: the folder of this script
force = False    # replace what is there


def split_documents(documents, val_ratio):
    """{split: (number of documents, iterable)}: whole documents drawn by SPLIT_SEED. A document alone is cut at
    1 - val_ratio."""
    n = len(documents)
    if n == 1:
        text, = documents
        cut = int(len(text) * (1 - val_ratio))
        return {'train': (1, [text[:cut]]), 'val': (1, [text[cut:]])}
    val = set(random.Random(SPLIT_SEED).sample(range(n), max(1, round(n * val_ratio))))
    return {'train': (n - len(val), (text for i, text in enumerate(documents) if i not in val)),
            'val': (len(val), (text for i, text in enumerate(documents) if i in val))}


def write_tokens(path, documents, tokenizer, n_documents):
    """Encode every document into `path`; returns what meta.json says of it."""
    info, sha, called = {'rows': 0, 'tokens': 0, 'text_bytes': 0}, hashlib.sha256(), os.path.basename(path)
    with open(path, 'wb') as f, progress(total=n_documents, desc=called.removesuffix('.tmp'), unit='doc') as bar:
        for tokens, n_bytes in encode_documents(documents, tokenizer):
            written = tokens.tobytes()
            f.write(written)
            sha.update(written)
            info['rows'] += 1
            info['tokens'] += len(tokens)
            info['text_bytes'] += n_bytes
            bar.update()
    return {**info, 'sha256': sha.hexdigest()}


def check_source_is_new(origin, kept):
    """No two splits may share text: a file of the same content may not be the source of a split that is `kept`."""
    sha = origin.rpartition(', sha256 ')[2]
    twice = [split for split, info in kept.items() if info['source'].rpartition(', sha256 ')[2] == sha]
    if twice:
        raise ValueError(f'{origin} is the source of {twice[0]} already, and no two splits may share text: name '
                         'another file, or divide this one by --force without --split')


def prepare(data_set, data_dir, name=None, source=None, split=None, tokenizer=None, force=False):
    """Prepare one row of DATA_SETS into data_dir/name; returns its meta. Splits that are there stay unless `force`."""
    if data_set not in DATA_SETS:
        raise ValueError(f'data set must be one of {", ".join(DATA_SETS)}, got {data_set!r}')
    check_names(name=name, split=split)
    row, directory = DATA_SETS[data_set], os.path.join(data_dir, name or data_set)
    check_folder('--data_dir', directory)
    if split and not source and not row.splits:
        raise ValueError(f'{data_set} is divided into train and val: leave --split={split} out, or name the text of '
                         'that split by --source')
    if row.splits and source and not split:
        split = 'test'
    wanted = [split] if split else sorted(row.splits or ('train', 'val'))
    origin, meta = name_source(source) if source else data_set, read_meta(directory)
    if is_there(directory, meta, wanted, origin, tokenizer in (None, meta.get('tokenizer')), force):
        return meta
    kept = {s: info for s, info in whole_splits(directory, meta).items() if s not in wanted}
    if source:
        check_source_is_new(origin, kept)
    if row.splits:
        documents = {s: row.documents(source, s) for s in wanted}
    else:
        documents = {split: row.documents(source)}   # of split None: to be divided
    tok = get_tokenizer(tokenizer or (meta['tokenizer'] if kept else row.tokenizer))
    if kept and tok.name != meta['tokenizer']:
        raise ValueError(f"{directory} holds {', '.join(kept)} in the tokenizer {meta['tokenizer']}, not {tok.name}: "
                         'one folder has one tokenizer; use another --name')
    if not all(map(any, documents.values())):
        raise ValueError(f'{origin} holds no text')
    if None in documents:
        parts = split_documents(documents[None], row.val_ratio)
    else:
        parts = {s: (len(texts), texts) for s, texts in documents.items()}
    meta = {'name': name or data_set, 'tokenizer': tok.name, 'n_tokens': tok.n_tokens, 'eos': tok.eos}
    writers = {s: functools.partial(write_tokens, documents=texts, tokenizer=tok, n_documents=n)
               for s, (n, texts) in parts.items()}
    return write_splits(directory, meta, kept, origin, writers)


def main(config):
    if config.tokenizer not in ('', 'bytes', 'gpt2'):
        raise ValueError(f'tokenizer must be bytes or gpt2, got {config.tokenizer!r}')
    data_set, = config.words
    before = read_meta(os.path.join(config.data_dir, config.name or data_set))
    meta = prepare(data_set, config.data_dir, config.name or None, config.source or None, config.split or None,
                   config.tokenizer or None, config.force)
    print_meta(config.data_dir, meta, before, config.force)


if __name__ == '__main__':
    with one_line_errors(signal.SIGTERM):
        main(configure(globals()))
