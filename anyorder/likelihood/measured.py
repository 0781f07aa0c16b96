"""Which text is measured? A prepared set or a text file of one's own, cut once into blocks."""

import hashlib
import os
from dataclasses import dataclass, replace

import numpy as np
import torch

from anyorder.datasets import open_split
from anyorder.tokens.apart import begins_in, check_documents, rows_of_parts
from anyorder.tokens.blocks import all_blocks
from anyorder.tokens.meta import kind_of
from anyorder.tokens.mixture import form_of
from anyorder.tokens.prepared import DATA_SETS
from anyorder.tokens.sets import Split, check_length
from anyorder.tokens.sources import open_texts
from anyorder.tokens.tokenizers import (
    OWN,
    TEXT,
    Symbols,
    encode_documents,
    split_documents,
    tokenizer_of_set,
)

# zero-shot sets whose published numbers are of another split than test, as SEDD's
PUBLISHED = {'wikitext2': 'train'}


# of text files, compressed ones included
ENDINGS = ('.txt', '.jsonl', '.csv', '.parquet', '.xz', '.gz', '.bz2')


@dataclass
class Corpus:
    """A data set or text file, cut into blocks.

    name     in --datasets
    label    with its split
    origin   source and sha256
    tokens   (n_tokens,), all of them
    blocks   (n, N), those that are measured
    n_bytes  bytes of text in the blocks, where that can be said
    given    (n, N) which of their tokens are given, or padding, and cost nothing
    marked   whether its documents have prompts
    sizes    (n_tokens,) bytes of text of each of `tokens`; None: as the tokenizer says
    block    (n,) whose part a row is, where documents are apart; None: rows are blocks
    form     of form_of"""

    name: str
    label: str
    origin: dict
    tokens: np.ndarray
    blocks: torch.Tensor
    n_bytes: int | None
    given: torch.Tensor
    marked: bool = False
    sizes: np.ndarray | None = None
    block: torch.Tensor | None = None
    form: str = ''

    @property
    def digest(self):
        """A hash of the blocks, and of what is given."""
        data = self.blocks.numpy().tobytes() + self.given.numpy().tobytes()
        return hashlib.blake2b(data, digest_size=8).hexdigest()

    @property
    def n_blanks(self):
        """(n,) tokens of a block that are measured."""
        return (~self.given).sum(1)

    def by_block(self, x):
        """Return the sums (blocks, ...) over the rows of each block of x (n, ...).

        Documents go on from block to block, and a row is no more independent of the next one of
        its block than blocks are of each other: standard errors are over blocks, apart or not."""
        if self.block is None:
            return x
        n_blocks = int(self.block.max()) + 1
        return x.new_zeros(n_blocks, *x.shape[1:]).index_add(0, self.block, x)

    def apart(self, begins):
        """Return the Corpus whose rows are the parts of documents that begin there, (n, P)."""
        rows, given, block = rows_of_parts(self.blocks, self.given, begins)
        label = f'{self.label}, documents apart'
        return replace(self, label=label, blocks=rows, given=given, block=block)


@dataclass(frozen=True)
class Cut:
    """How a text is cut into blocks.

    block_size  tokens of a block
    n_blocks    spread evenly over the text, 0 is all
    documents   'apart': the parts of documents in a block do not see each other"""

    block_size: int
    n_blocks: int = 0
    documents: str = 'together'


def open_corpus(name, cut, tokenizer, data_dir, split=''):
    """Return the Corpus of a text file, by its path, or of a prepared set, by its name.

    cut    a Cut
    split  of a prepared set; '' is val, and of a zero-shot set the one of published numbers"""
    tokens, label, origin, sizes = open_tokens(name, tokenizer, data_dir, split)
    check_documents(tokens, cut.documents, name)
    check_length(tokens, cut.block_size, name)
    label += tokens.cut(cut.block_size)

    # Cut them into blocks
    blocks, given = all_blocks(tokens, cut.block_size, cut.n_blocks)
    n_bytes = None
    if sizes is not None:
        in_blocks, _ = all_blocks(
            Split(sizes, lengths=tokens.lengths), cut.block_size, cut.n_blocks
        )
        n_bytes = int(in_blocks[~given].sum())
    elif tokenizer.n_bytes is not None:
        n_bytes = int(tokenizer.n_bytes[blocks[~given]].sum())
    packed = tokens.packed.reshape(-1)
    how = {'marked': tokens.marked, 'sizes': sizes, 'form': form_of_split(tokens)}
    corpus = Corpus(name, label, origin, packed, blocks, n_bytes, given, **how)
    begins = begins_in(blocks, tokens, cut.documents)
    if begins is None:
        return corpus
    return corpus.apart(begins)


def form_of_split(tokens):
    """Return form_of a Split."""
    row_length = tokens.packed.shape[1] if tokens.packed.ndim == 2 else None
    return form_of({'row_length': row_length, 'prompts': tokens.lengths is not None})


def open_tokens(name, tokenizer, data_dir, split):
    """Return (Split, label, origin, sizes) of a Corpus. See open_corpus."""
    if os.path.isfile(name) or name.lower().endswith(ENDINGS):
        tokens, origin, sizes = read_file(name, tokenizer)
        return tokens, os.path.basename(name), origin, sizes
    if not split and is_zero_shot(name):
        split = PUBLISHED.get(name, 'test')
    split = split or 'val'
    tokens, origin = read_set(name, split, data_dir, tokenizer)
    return tokens, f'{name} ({split})', origin, None


def is_zero_shot(name):
    """Return whether it is one of the zero-shot sets, which come with their own splits."""
    return name in DATA_SETS and bool(DATA_SETS[name].splits)


def read_file(path, tokenizer):
    """Return (Split, origin, sizes) of a Corpus from a text file.

    Every document is followed by end-of-text. Documents with prompts are its rows."""
    if isinstance(tokenizer, Symbols):
        raise ValueError(
            f'{path} is text, the checkpoint was trained on {tokenizer.name} tokens: name its set'
        )
    texts = open_texts(path, prompt_key='auto')
    encoded = list(encode_documents(texts, tokenizer))
    if not any(n_bytes for _, n_bytes in encoded):
        raise ValueError(f'{path} holds no text')
    documents = [tokens for tokens, _ in encoded]
    has_prompts = isinstance(next(iter(texts)), tuple)
    lengths = None
    if has_prompts:
        lengths = np.array([len(document) for document in documents])
    found = Split(np.concatenate(documents), has_prompts, lengths, tokenizer.eos)
    sizes = tokenizer.sizes_of(texts, documents)
    digest = hashlib.sha256(found.packed.tobytes()).hexdigest()
    return found, {'source': path, 'sha256': digest}, sizes


def read_set(name, split, data_dir, tokenizer):
    """Return (Split, origin) of a split of a prepared set."""
    tokens, meta = open_split(data_dir, name, split)
    of_set = tokenizer_of_set(kind_of(meta))
    is_same = of_set.identity == tokenizer.identity
    is_text = not isinstance(tokenizer, Symbols)
    if not is_same and is_text and is_zero_shot(name) and meta.tokenizer in TEXT:
        return read_anew(tokens, meta, split, tokenizer)
    if meta.tokenizer != tokenizer.name and not is_same:
        raise ValueError(
            f'the model reads {tokenizer.name} tokens, {data_dir}/{name} holds '
            f'{meta.tokenizer} tokens: prepare it with --tokenizer={tokenizer.name}, or name a '
            'file of text'
        )
    is_own = tokenizer.name == OWN or of_set.file is not None
    if is_own and not is_same:
        raise ValueError(
            f'{name} has another vocabulary than the set of the training: prepare it with '
            '--tokenizer=FOLDER of that set, or name another set'
        )
    of_split = meta.splits[split]
    return tokens, {'source': of_split.source, 'sha256': of_split.sha256}


def read_anew(tokens, meta, split, tokenizer):
    """Return (Split, origin) of the texts of a prepared split in the tokens of a tokenizer.

    Bytes and GPT-2's tokens say each text to the letter."""
    decode = tokenizer_of_set(kind_of(meta)).decode
    texts = map(decode, split_documents(tokens.packed, meta.eos))
    documents = [found for found, _ in encode_documents(texts, tokenizer)]
    found = Split(np.concatenate(documents), eos=tokenizer.eos)
    source = f'{meta.splits[split].source}, in {tokenizer.name} tokens'
    digest = hashlib.sha256(found.packed.tobytes()).hexdigest()
    return found, {'source': source, 'sha256': digest}
