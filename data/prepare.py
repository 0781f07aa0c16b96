"""
Text to token files: DIR/NAME/<split>.bin (little-endian uint16) and DIR/NAME/meta.json.

    python data/prepare.py pydocs                                        # what the quickstart reads; no network
    python data/prepare.py text --source=books.jsonl.xz --name=books     # any .txt or .jsonl, also .xz and .gz
    python data/prepare.py text --source=test.txt --name=books --split=test
    python data/prepare.py shakespeare [--source=input.txt]
    python data/prepare.py openwebtext                                   # 8 million documents through `datasets`
    python data/prepare.py wikitext2 [--source=wiki.test.raw]            # also wikitext103, ptb, lm1b, lambada

Every document is followed by the end-of-text token. Without --split the documents are divided into train and val by a fixed
seed; a text of one document is cut instead. The sets for zero-shot perplexity come with their own splits (a --source is their
test split unless --split says otherwise); their documents are rows, detokenized. A second run does nothing unless --force.
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
from anyorder.files import Parser, check_folder, check_names, progress
from data.detokenizers import LAMBADA, LM1B, PTB
from data.sets import print_meta, read_meta, splits_there, write_splits
from data.sources import TextFile, name_source, openwebtext, pydocs, shakespeare, wikitext, zero_shot
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


DATA_SETS = {
    'pydocs':      DataSet(pydocs,      'bytes', 0.05,   'English of the Python documentation, about 2 MB; no network', offline=True),
    'text':        DataSet(TextFile,    'gpt2',  0.1,    'a .txt or .jsonl file of your own (--source)'),
    'shakespeare': DataSet(shakespeare, 'gpt2',  0.1,    '1.1 MB of plays, downloaded'),
    'openwebtext': DataSet(openwebtext, 'gpt2',  0.0005, '9 billion tokens of web text, through the hub'),
    'lambada':     DataSet(zero_shot('lambada', 'EleutherAI/lambada_openai', 'default', 'text', lambda row: '\n' + LAMBADA(row).strip()),
                           'gpt2', 0, 'LAMBADA in OpenAI\'s form, 5,153 passages', splits=('test',)),
    'wikitext2':   DataSet(wikitext('wikitext2'), 'gpt2', 0, 'WikiText-2 raw, one row a line', splits=('train', 'test')),
    'wikitext103': DataSet(wikitext('wikitext103'), 'gpt2', 0, 'WikiText-103 raw; its test split is that of WikiText-2', splits=('test',)),
    'ptb':         DataSet(zero_shot('ptb', 'ptb-text-only/ptb_text_only', None, 'sentence', lambda row: PTB(row.strip())),
                           'gpt2', 0, 'Penn Treebank in Mikolov\'s form', splits=('test',)),
    'lm1b':        DataSet(zero_shot('lm1b', 'dvruette/lm1b', None, 'text', lambda row: LM1B(row.strip())),
                           'gpt2', 0, 'One Billion Word', splits=('test',)),
}


# ---------------------------------------------------------------------------------------------------------------------
# documents -> files

def split_documents(documents, val_ratio):
    """{split: (number of documents, iterable)}: whole documents drawn by SPLIT_SEED; a document alone is cut at 1 - val_ratio."""
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
    info, sha = {'rows': 0, 'tokens': 0, 'text_bytes': 0}, hashlib.sha256()
    with open(path, 'wb') as f, progress(total=n_documents, desc=os.path.basename(path).removesuffix('.tmp'), unit='doc') as bar:
        for tokens, n_bytes in encode_documents(documents, tokenizer):
            written = tokens.tobytes()
            f.write(written)
            sha.update(written)
            for name, n in (('rows', 1), ('tokens', len(tokens)), ('text_bytes', n_bytes)):
                info[name] += n
            bar.update()
    return {**info, 'sha256': sha.hexdigest()}


def prepare(data_set, out, name=None, source=None, split=None, tokenizer=None, force=False):
    """Prepare one row of DATA_SETS into out/name; returns its meta. Splits that are there stay unless `force`."""
    if data_set not in DATA_SETS:
        raise ValueError(f'data set must be one of {", ".join(DATA_SETS)}, got {data_set!r}')
    check_names(name=name, split=split)
    row, directory = DATA_SETS[data_set], os.path.join(out, name or data_set)
    check_folder('--out', directory)
    if split and not source and not row.splits:
        raise ValueError(f'{data_set} is divided into train and val: leave --split={split} out, or name the text of that split by --source')
    if row.splits and source and not split:
        split = 'test'
    meta, wanted = read_meta(directory), {split} if split else set(row.splits or ('train', 'val'))
    have = splits_there(directory, meta)
    origin = name_source(source) if source else data_set
    there, others = have.keys() & wanted, {s: info for s, info in have.items() if s not in wanted}
    if there and not force:
        if there == wanted and all(have[s]['source'] == origin for s in there) and tokenizer in (None, meta['tokenizer']):
            return meta
        raise ValueError(f"{directory} holds {', '.join(sorted(there))} already, from {have[min(there)]['source']} with the tokenizer "
                         f"{meta['tokenizer']}: --force replaces it, --name=OTHER writes elsewhere, --split=NAME adds a split")
    sha = origin.rpartition(', sha256 ')[2]
    twice = [s for s, info in others.items() if source and info['source'].rpartition(', sha256 ')[2] == sha]
    if twice:
        raise ValueError(f'{origin} is the source of {twice[0]} already, and no two splits may share text: name another file, or divide '
                         'this one by --force without --split')
    given = {s: row.documents(source, s) for s in sorted(wanted)} if row.splits else {split: row.documents(source)}   # None: to divide
    tok = get_tokenizer(tokenizer or (meta['tokenizer'] if others else row.tokenizer))
    if others and tok.name != meta['tokenizer']:
        raise ValueError(f"{directory} holds {', '.join(others)} in the tokenizer {meta['tokenizer']}, not {tok.name}: "
                         'one folder has one tokenizer; use another --name')
    if not all(map(any, given.values())):
        raise ValueError(f'{origin} holds no text')
    parts = split_documents(given[None], row.val_ratio) if None in given else {s: (len(texts), texts) for s, texts in given.items()}
    meta = {'name': name or data_set, 'tokenizer': tok.name, 'n_tokens': tok.n_tokens, 'eos': tok.eos}
    writers = {s: functools.partial(write_tokens, documents=texts, tokenizer=tok, n_documents=n) for s, (n, texts) in parts.items()}
    return write_splits(directory, meta, others, origin, writers)


def run(main):
    """Run a script: an error ends it with one line, and SIGTERM lets it clean up."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit('terminated'))
    try:
        main()
    except (ValueError, OSError) as e:
        sys.exit(f'error: {e}')
    except KeyboardInterrupt:
        sys.exit('interrupted')


def main():
    rows = '\n'.join(f'  {name:<12} {row.about}; {row.tokenizer} tokens' for name, row in DATA_SETS.items())
    parser = Parser(description=__doc__, epilog=f'data sets:\n{rows}')
    parser.add_argument('data_set', metavar='NAME', help='a data set of the table below')
    parser.add_argument('--source', help='local file to read: .txt (one document; of a zero-shot set, one row a line, as .raw) or .jsonl '
                        '(one a line, key "text"), also .gz and .xz')
    parser.add_argument('--split', help='the whole source is this split (train, val, test); default: divide it into train and val, '
                        'or test for a zero-shot set')
    parser.add_argument('--name', help='folder to write under --out; default: NAME')
    parser.add_argument('--tokenizer', choices=('bytes', 'gpt2'), help='default: that of the data set')
    parser.add_argument('--out', default=os.path.dirname(os.path.abspath(__file__)), help='default: the folder of this script')
    parser.add_argument('--force', action='store_true', help='replace what is there')
    args = parser.parse_args()
    before = read_meta(os.path.join(args.out, args.name or args.data_set))
    meta = prepare(args.data_set, args.out, args.name, args.source, args.split, args.tokenizer, args.force)
    print_meta(args.out, meta, before, args.force)


if __name__ == '__main__':
    run(main)
