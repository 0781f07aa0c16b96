"""Which text is measured? A prepared set or a text file of one's own, cut once into blocks."""

import hashlib
import os
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from anyorder.datasets import open_split
from anyorder.tokens.apart import rows_of_parts
from anyorder.tokens.blocks import Blocks, all_blocks
from anyorder.tokens.documents import Source, encode_source, split_documents
from anyorder.tokens.meta import Meta
from anyorder.tokens.prepared import DATA_SETS
from anyorder.tokens.sets import Split
from anyorder.tokens.sources import ENDING, open_texts
from anyorder.tokens.tokenizer import TEXT, tokenizer_of_set

# zero-shot sets whose published numbers are of another split than test, as SEDD's
PUBLISHED = {'wikitext2': 'train'}


@dataclass
class Corpus:
    """A data set or text file, of which blocks are measured.

    split    the Blocks of all of it
    blocks   (n, N) tokens of those that are measured
    given    (n, N) which of these are given, or padding, and cost nothing
    n_bytes  bytes of text in the blocks, where that can be said
    sizes    (n_tokens,) bytes of text of each token of the split; None: as the tokenizer says
    name     in --datasets
    label    with its split
    block    (n,) whose part a row is, where documents are apart; None: rows are blocks"""

    split: Blocks
    blocks: torch.Tensor
    given: torch.Tensor
    n_bytes: int | None = None
    sizes: np.ndarray | None = None
    name: str = ''
    label: str = ''
    block: torch.Tensor | None = None

    @classmethod
    def of(cls, split, n_blocks, tokenizer, sizes=None, **names):
        """Return the Corpus of n_blocks of Blocks, spread evenly; 0 is all."""
        blocks, given = all_blocks(split, n_blocks)
        n_bytes = None
        if sizes is not None:
            in_blocks, _ = split.take(sizes, split.numbers(n_blocks))
            n_bytes = int(in_blocks[~given.numpy()].sum())
        elif tokenizer.n_bytes is not None:
            n_bytes = int(tokenizer.n_bytes[blocks[~given]].sum())
        return cls(split, blocks, given, n_bytes, sizes, **names)

    def __len__(self):
        return len(self.blocks)

    def rows(self, numbers):
        """Return the blocks of these numbers [M], for nll.measured_batch."""
        return numbers, self.blocks[numbers], self.given[numbers]

    @cached_property
    def digest(self):
        """A hash of the blocks, and of what is given."""
        data = self.blocks.numpy().tobytes() + self.given.numpy().tobytes()
        return hashlib.blake2b(data, digest_size=8).hexdigest()

    @property
    def origin(self):
        """Its source, and the sha256 of its tokens."""
        return {field: self.split.entry[field] for field in ('source', 'sha256')}

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


def open_corpus(name, block_size, tokenizer, data_dir, split='', n_blocks=0, documents='together'):
    """Return the Corpus of a text file, by its path, or of a prepared set, by its name.

    split      of a prepared set; '' is val, and of a zero-shot set the one of published numbers
    n_blocks   spread evenly over the text; 0 is all
    documents  'apart': the parts of documents in a block do not see each other"""
    if os.path.isfile(name) or ENDING.search(name):
        if tokenizer.texts:
            raise ValueError(
                f'{name} is text, the checkpoint was trained on {tokenizer.name} tokens: name its '
                'set'
            )
        label = os.path.basename(name)
        tokens, sizes = encoded(open_texts(name), tokenizer, name)
    else:
        published = PUBLISHED.get(name, 'test') if is_zero_shot(name) else 'val'
        split = split or published
        label = f'{name} ({split})'
        tokens, sizes = read_set(name, split, data_dir, tokenizer)

    # Cut them into blocks
    blocks = Blocks(tokens, block_size, documents)
    label += blocks.about_cut
    corpus = Corpus.of(blocks, n_blocks, tokenizer, sizes, name=name, label=label)
    begins = blocks.begins(corpus.blocks)
    return corpus if begins is None else corpus.apart(begins)


def is_zero_shot(name):
    """Return whether it is one of the zero-shot sets, which come with their own splits."""
    return name in DATA_SETS and bool(DATA_SETS[name].splits)


def read_set(name, split, data_dir, tokenizer):
    """Return a Split of a prepared set, and the `sizes` of a Corpus.

    The text of a zero-shot set, whose tokens say it to the letter, is read anew by another
    tokenizer."""
    tokens = open_split(data_dir, name, split)
    meta = tokens.meta
    of_set = tokenizer_of_set(meta)
    if of_set.identity == tokenizer.identity:
        return tokens, None
    if not tokenizer.texts and is_zero_shot(name) and meta.tokenizer in TEXT:
        texts = [*map(of_set.decode, split_documents(tokens.packed, meta.eos))]
        return encoded(texts, tokenizer, f'{tokens.entry["source"]}, in {tokenizer.name} tokens')
    raise ValueError(
        f'{data_dir}/{name} holds {meta.tokenizer} tokens of another vocabulary than the '
        f'{tokenizer.name} tokens that the model reads: prepare it with '
        f'--tokenizer={tokenizer.name}, or with the FOLDER of its set, or name a file of text'
    )


def encoded(texts, tokenizer, source):
    """Return a Split of texts in the tokens of a tokenizer, and the `sizes` of a Corpus.

    Every document is followed by end-of-text. Documents with prompts are its rows."""
    has_prompts = isinstance(next(iter(texts), None), tuple)
    meta = Meta(
        source,
        tokenizer.name,
        tokenizer.n_tokens,
        tokenizer.eos,
        given=has_prompts,
        prompts=has_prompts,
    )
    documents = []
    n_bytes = 0
    whole = Source(source, {'val': texts})
    for _, document, size, _ in encode_source(whole, tokenizer, meta):
        documents.append(document)
        n_bytes += size
    if not n_bytes:
        raise ValueError(f'{source} holds no text: name one that does')
    starts = np.cumsum([0, *map(len, documents)]) if has_prompts else None
    tokens = np.concatenate(documents)
    entry = {'source': source, 'sha256': hashlib.sha256(tokens.tobytes()).hexdigest()}
    meta = replace(meta, splits={'': entry})
    return Split(tokens, meta, starts=starts), tokenizer.sizes_of(texts, documents)
