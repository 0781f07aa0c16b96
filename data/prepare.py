"""Texts and arrays of integers to token files: DIR/NAME/<split>.bin (little-endian uint16; uint32
of more than 65,536 tokens, or 32,768 where some are given) and DIR/NAME/meta.json.

    # what the quickstart reads; no network
    python data/prepare.py pydocs
    # also .txt, .csv, .parquet, a folder of .txt
    python data/prepare.py text --source=books.jsonl.xz --name=books
    python data/prepare.py text --source=test.txt --name=books --split=test
    python data/prepare.py text --source=hf:OWNER/NAME --name=qa --prompt_key=question
    # a tokenizer of 4,096 tokens that is trained on the books
    python data/prepare.py text --source=books.jsonl.xz --name=books_bpe --tokenizer=bpe:4096
    # 8 million documents through `datasets`
    python data/prepare.py openwebtext
    # also wikitext103, ptb, lm1b, lambada
    python data/prepare.py wikitext2 [--source=wiki.test.raw]
    # integers that are no text
    python data/prepare.py tokens --source=digits.npz --name=digits --shape=8x8

Every document is followed by the end-of-text token. <|endoftext|> in a text ends a document too.
Without --split the documents are divided into train and val by a fixed seed; a text of one document
is cut instead. A data set on the hub, hf:OWNER/NAME or hf:OWNER/NAME/CONFIG, and a folder that
`datasets` saved have splits of their own: --split takes the one of this name, and val also a
validation. Without --split their train and their validation are taken; without a validation the
train is divided. The sets for zero-shot perplexity come with their own splits: a source is their
test split unless --split says otherwise. Their documents are rows, detokenized. A second run does
nothing unless --force. While another command writes the same set, this one waits, a minute at most.
Without a network, GPT-2's vocabulary is read from the folder that TIKTOKEN_CACHE_DIR names, and a
data set on the hub from the cache of `datasets`. A file of a set replaces a link of its name, and
what the link leads to stays.

Tokens of another kind are integers from 0: an .npy, or an .npz with the arrays train, val and test.
A two-dimensional array has rows of one length, a one-dimensional array is a stream. An .npz may
also hold which positions are given, from the start and at no cost: bool arrays given_train, ... or
one for all rows, given."""

import os
import signal
import sys

if __name__ == '__main__':  # the project's folder in place of this one
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
from anyorder.machine.terminal import one_line_errors
from configurator import configure

with one_line_errors():  # of a package that is missing
    from anyorder.tokens.arrays import prepare_tokens
    from anyorder.tokens.folder import print_meta
    from anyorder.tokens.prepared import DATA_SETS, prepare

WORDS = {name: f'{row.about}; {row.tokenizer} tokens' for name, row in DATA_SETS.items()}
WORDS['tokens'] = 'arrays of integers of your own (--source)'

TEXTS = ('text_key', 'prompt_key')
FORM = ('end', 'vocabulary', 'shape')

source = ''  # a file, a folder, or hf:OWNER/NAME on the hub; docs/data.md has all kinds
text_key = 'text'  # field of a row that holds its text
prompt_key = 'auto'  # field that holds a prompt, which is given; 'auto' is "prompt", '' is none
split = ''  # the source is this split; '' divides it, or is test for a zero-shot set
name = ''  # folder to write under `data_dir`; '' is the name of the data set
tokenizer = ''  # bytes, gpt2, tiktoken:NAME, FILE.json, FOLDER, hf:OWNER/NAME, bpe:4096; '' its own
end = None  # tokens: the integer that ends each document of a stream
vocabulary = ''  # tokens: a file with the name of each token, a name a line; '' shows numbers
shape = ''  # tokens: HxW, as 8x8, says that a row is a grid of H rows and W columns
data_dir = os.path.dirname(os.path.abspath(__file__))  # where sets go, by default this folder
force = False  # replace what is there


def main(config):
    (data_set,) = config.words
    check_options(config, data_set)
    where = config.data_dir, config.name, config.source, config.split
    if data_set == 'tokens':
        meta = prepare_tokens(
            *where, config.force, end=config.end, vocabulary=config.vocabulary, shape=config.shape
        )
    else:
        meta = prepare(
            data_set,
            *where,
            config.tokenizer,
            config.force,
            text_key=config.text_key,
            prompt_key=config.prompt_key,
        )
    print_meta(config.data_dir, meta)


def check_options(config, data_set):
    """Raise ValueError for an option that is for data sets of another kind."""
    others = {'text': FORM, 'tokens': (*TEXTS, 'tokenizer')}
    idle = config.given & {*others.get(data_set, (*TEXTS, *FORM))}
    if idle:
        named = ', '.join(sorted(idle))
        raise ValueError(f'{named} is for other data sets than {data_set}: leave it out')
    if type(config.end) not in (int, type(None)):
        raise ValueError(f'end must be an integer, got {config.end!r}')


if __name__ == '__main__':
    with one_line_errors(signal.SIGTERM):
        main(configure(globals()))
