"""Which text is measured? A prepared set or a text file of one's own, cut once into blocks."""

import hashlib
import os
from dataclasses import dataclass, replace

import numpy as np
import torch

from anyorder.datasets import open_split
from anyorder.tokens.apart import rows_of_parts
from anyorder.tokens.blocks import Blocks, all_blocks
from anyorder.tokens.meta import Meta
from anyorder.tokens.mixture import form_of
from anyorder.tokens.prepared import DATA_SETS
from anyorder.tokens.sets import Split
from anyorder.tokens.sources import open_texts
from anyorder.tokens.tokenizers import (
    OWN,
    TEXT,
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
    if os.path.isfile(name) or name.lower().endswith(ENDINGS):
        label = os.path.basename(name)
        tokens, origin, sizes = read_file(name, tokenizer)
    else:
        published = PUBLISHED.get(name, 'test') if is_zero_shot(name) else 'val'
        split = split or published
        label = f'{name} ({split})'
        tokens, origin, sizes = read_set(name, split, data_dir, tokenizer)

    # Cut them into blocks
    tokens = Blocks(tokens, cut.block_size, cut.documents)
    blocks, given = all_blocks(tokens, cut.n_blocks)
    n_bytes = None
    if sizes is not None:
        in_blocks, _ = tokens.take(sizes, tokens.numbers(cut.n_blocks))
        n_bytes = int(in_blocks[~given.numpy()].sum())
    elif tokenizer.n_bytes is not None:
        n_bytes = int(tokenizer.n_bytes[blocks[~given]].sum())
    corpus = Corpus(
        name,
        label + tokens.about_cut,
        origin,
        tokens.packed,
        blocks,
        n_bytes,
        given,
        tokens.meta.given,
        sizes,
        form=form_of(tokens.meta),
    )
    begins = tokens.begins(blocks)
    return corpus if begins is None else corpus.apart(begins)


def is_zero_shot(name):
    """Return whether it is one of the zero-shot sets, which come with their own splits."""
    return name in DATA_SETS and bool(DATA_SETS[name].splits)


def read_file(path, tokenizer):
    """Return (Split, origin, sizes) of a Corpus from a text file, see encoded."""
    if tokenizer.texts:
        raise ValueError(
            f'{path} is text, the checkpoint was trained on {tokenizer.name} tokens: name its set'
        )
    return encoded(open_texts(path, prompt_key='auto'), tokenizer, path)


def read_set(name, split, data_dir, tokenizer):
    """Return (Split, origin, sizes) of a split of a prepared set.

    The text of a zero-shot set, whose tokens say it to the letter, is read anew by another
    tokenizer."""
    tokens = open_split(data_dir, name, split)
    meta = tokens.meta
    of_set = tokenizer_of_set(meta)
    is_same = of_set.identity == tokenizer.identity
    if not is_same and not tokenizer.texts and is_zero_shot(name) and meta.tokenizer in TEXT:
        texts = [*map(of_set.decode, split_documents(tokens.packed, meta.eos))]
        return encoded(texts, tokenizer, f'{tokens.entry["source"]}, in {tokenizer.name} tokens')
    has_own = tokenizer.name == OWN or of_set.file is not None
    if not is_same and (has_own or meta.tokenizer != tokenizer.name):
        raise ValueError(
            f'{data_dir}/{name} holds {meta.tokenizer} tokens of another vocabulary than the '
            f'{tokenizer.name} tokens that the model reads: prepare it with '
            f'--tokenizer={tokenizer.name}, or with the FOLDER of its set, or name a file of text'
        )
    return tokens, {field: tokens.entry[field] for field in ('source', 'sha256')}, None


def encoded(texts, tokenizer, source):
    """Return (Split, origin, sizes) of texts in the tokens of a tokenizer.

    Every document is followed by end-of-text. Documents with prompts are its rows."""
    has_prompts = isinstance(next(iter(texts), None), tuple)
    kind = {'given': has_prompts, 'prompts': has_prompts}
    meta = Meta(source, tokenizer.name, tokenizer.n_tokens, tokenizer.eos, **kind)
    documents = []
    n_bytes = 0
    for document, size, _ in encode_documents(texts, tokenizer, meta):
        documents.append(document)
        n_bytes += size
    if not n_bytes:
        raise ValueError(f'{source} holds no text')
    starts = np.cumsum([0, *map(len, documents)]) if has_prompts else None
    found = Split(np.concatenate(documents), meta, starts=starts)
    digest = hashlib.sha256(found.packed.tobytes()).hexdigest()
    origin = {'source': source, 'sha256': digest}
    return found, origin, tokenizer.sizes_of(texts, documents)
