"""Which text is measured? A prepared set or a text file of one's own, cut once into blocks."""

import hashlib
import os
import shlex
from dataclasses import dataclass

import numpy as np
import torch

from anyorder.datasets import open_split
from anyorder.machine.processes import processes
from anyorder.tokens.blocks import all_blocks, check_length, only_blank
from anyorder.tokens.meta import kind_of
from anyorder.tokens.prepared import DATA_SETS
from anyorder.tokens.prompts import Spelling
from anyorder.tokens.sets import Split
from anyorder.tokens.sources import open_texts
from anyorder.tokens.tokenizers import (
    OWN,
    TOKENIZERS,
    HuggingFace,
    Symbols,
    cut_anew,
    encode_documents,
    tokenizer_of_set,
)

# which zero-shot sets are read from another split than test: 'paper' does as SEDD and its successors
PROTOCOLS = {'paper': {'wikitext2': 'train'}, 'clean': {}}


@dataclass
class Corpus:
    """A data set or text file, cut into blocks."""

    name: str  # in --datasets
    label: str  # with its split and protocol
    origin: dict  # source and sha256
    tokens: np.ndarray  # (n_tokens,), all of them
    blocks: torch.Tensor  # (n, N), those that are measured
    n_bytes: int | None  # bytes of text in the blocks, where that can be said
    given: torch.Tensor | None = (
        None  # (n, N) which of their tokens are given and cost nothing; None: none can be
    )
    sizes: np.ndarray | None = (
        None  # (n_tokens,) bytes of text of each of `tokens`; None: as the tokenizer says
    )

    @property
    def digest(self):
        """A hash of the blocks, and of what is given."""
        given = b'' if self.given is None else self.given.numpy().tobytes()
        return hashlib.blake2b(self.blocks.numpy().tobytes() + given, digest_size=8).hexdigest()

    @property
    def n_blanks(self):
        """(n,) or int: tokens of a block that are measured."""
        return self.blocks.size(1) if self.given is None else (~self.given).sum(1)


def open_corpus(
    name,
    block_size,
    tokenizer,
    data_dir,
    protocol='paper',
    split='val',
    n_blocks=0,
    ckpt='',
    blanks='',
):
    """The Corpus of a text file, by its path, or of a prepared set, by its name.

    protocol  of PROTOCOLS, which says the split of a zero-shot set
    split     of all other prepared sets
    n_blocks  spread evenly over the set, 0 is all
    ckpt      the name of the checkpoint, for the command that an error names
    blanks    positions that are measured given all others, see only_blank"""
    if os.path.isfile(name) or name.lower().endswith(
        ('.txt', '.jsonl', '.csv', '.parquet', '.xz', '.gz', '.bz2')
    ):
        label, (tokens, origin, sizes) = os.path.basename(name), read_file(name, tokenizer, ckpt)
    else:
        label = f'{name} ({split})'
        if has_protocol(name):
            split = PROTOCOLS[protocol].get(name, 'test')
            label = f'{name} ({split}, protocol {protocol})'
        (tokens, origin), sizes = read_set(name, split, data_dir, tokenizer), None
    check_length(tokens, block_size, name)
    blocks, given = all_blocks(tokens, block_size, n_blocks)
    given = only_blank(blanks, blocks, given)
    n_bytes = None
    if sizes is not None:
        in_blocks, _ = all_blocks(Split(sizes, ends=tokens.ends), block_size, n_blocks)
        n_bytes = int(in_blocks[~given].sum())
    elif tokenizer.n_bytes is not None:
        n_bytes = int(tokenizer.n_bytes[blocks[~given]].sum())
    label += tokens.cut(block_size) + f', blanks {blanks}' * bool(blanks)
    return Corpus(
        name,
        label,
        origin,
        tokens.packed.reshape(-1),
        blocks,
        n_bytes,
        given if tokens.marked or given.any() else None,
        sizes,
    )


def has_protocol(name):
    """Whether it is one of the zero-shot sets, which come with their own splits."""
    return name in DATA_SETS and bool(DATA_SETS[name].splits)


def read_file(path, tokenizer, ckpt):
    """(Split, origin, sizes of a Corpus) of a text file, every document followed by end-of-text. Documents with prompts
    are its rows."""
    is_text = not isinstance(tokenizer, Symbols)
    if not is_text:
        raise ValueError(
            f'{path} is text, the checkpoint was trained on {tokenizer.name} tokens: python '
            f'eval_puzzle.py --ckpt={shlex.quote(ckpt)} says how many rows it fills right'
        )
    texts = open_texts(path, prompt_key='auto')
    documents = list(encode_documents(texts, tokenizer))
    if not any(n_bytes for _, n_bytes in documents):
        raise ValueError(f'{path} holds no text')
    documents, prompts = [tokens for tokens, _ in documents], isinstance(next(iter(texts)), tuple)
    found = Split(
        np.concatenate(documents), prompts, np.cumsum([*map(len, documents)]) if prompts else None
    )
    sizes = sizes_of(texts, documents, tokenizer) if isinstance(tokenizer, HuggingFace) else None
    return (
        found,
        {'source': path, 'sha256': hashlib.sha256(found.packed.tobytes()).hexdigest()},
        sizes,
    )


def sizes_of(texts, documents, tokenizer):
    """(n,) bytes of the texts, as they were given, of each token of the `documents`, by a tokenizer of others, which
    may write a text otherwise before it reads it. None where its texts do not come back. Unknown tokens are said."""
    spelling = Spelling(tokenizer)
    sizes = []
    n_end = 0 if tokenizer.eos is None else 1
    for text, tokens in zip(cut_anew(texts, tokenizer), documents, strict=True):
        *prompts, text = text if isinstance(text, tuple) else (text,)
        for prompt in prompts:
            spelling.add(prompt, tokenizer.spans(prompt))
        found = tokenizer.spans(text)
        spelling.add(text, found)
        if tokenizer.n_bytes is not None:
            n_before = len(tokens) - len(found) - n_end
            sizes.append(np.pad(tokenizer.sizes(text, found), (n_before, n_end)))
    if processes()[0] == 0:
        spelling.say()
    return np.concatenate(sizes) if sizes else None


def read_set(name, split, data_dir, tokenizer):
    """(Split, origin) of a split of a prepared set."""
    tokens, meta = open_split(data_dir, name, split, {'tokenizer': tokenizer.name})
    if meta.tokenizer != tokenizer.name:
        prepare = f'prepare it with --tokenizer={tokenizer.name}, under another --name if that one is still wanted'
        way_out = (
            prepare
            if tokenizer.name in TOKENIZERS
            else 'name a file of text, as --datasets=YOUR.txt'
        )
        raise ValueError(
            f'the model reads {tokenizer.name} tokens, {data_dir}/{name} holds '
            f'{meta.tokenizer} tokens: {way_out}'
        )
    if tokenizer.name == OWN and tokenizer_of_set(kind_of(meta)).texts != tokenizer.texts:
        raise ValueError(
            f'{name} has another vocabulary than the set of the training: name another set'
        )
    return tokens, {key: getattr(meta.splits[split], key) for key in ('source', 'sha256')}
