"""What does a run read? Its sets: what is trained on, what is validated, and what is kept of
them."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from anyorder.datasets import TRAIN_AND_VAL, open_split
from anyorder.machine.processes import first_process_first, processes
from anyorder.tokens.apart import begins_in, check_documents
from anyorder.tokens.blocks import all_blocks
from anyorder.tokens.meta import Meta, kind_of
from anyorder.tokens.mixture import Mixture, kind_of_all, n_read, shares_of, weights_in
from anyorder.tokens.sets import Split, check_length
from anyorder.tokens.tokenizers import tokenizer_of_set
from anyorder.training.validation import validate


@dataclass
class Part:
    """A set of a run.

    share       of the tokens that are trained on
    train, val  its splits
    blocks      (n, N) tokens that validations measure
    given       (n, N) which of them are given
    begins      (n, P) where their documents begin, if these are apart"""

    name: str
    meta: Meta
    train: Split
    val: Split
    share: float = 1.0
    blocks: torch.Tensor | None = None
    given: torch.Tensor | None = None
    begins: torch.Tensor | None = None

    @property
    def hashes(self):
        return {split: self.meta.splits[split].sha256 for split in TRAIN_AND_VAL}

    @cached_property
    def n_blanks(self):
        return int((~self.given).sum())

    def check(self, block_size, documents):
        """Raise ValueError unless both splits have such blocks, and documents as asked."""
        check_documents(self.train, documents, self.name)
        check_length(self.train, block_size, f'{self.name}/train')
        check_length(self.val, block_size, f'{self.name}/val')


class Data:
    """The sets of a run.

    parts      [Part]
    train      what is trained on: the Split of one set, the Mixture of several
    kind       of kind_of, or of kind_of_all
    tokenizer  of all of them
    source     of the training
    counts     (n_tokens,) how often each token is trained on, in the process that saves it"""

    def __init__(self, config):
        weights = weights_in(config.dataset)
        with first_process_first():  # which makes a set, if that needs no source
            self.parts = [open_part(name, config) for name in weights]
        kinds = {part.name: kind_of(part.meta) for part in self.parts}
        self.kind = kind_of_all(kinds)
        self.tokenizer = tokenizer_of_set(self.kind)
        for part in self.parts:
            part.check(config.block_size, config.documents)
        set_shares(self.parts, weights, config.block_size)
        self.train = read_as_one(self.parts, config.block_size)
        self.source = ', '.join(part.meta.splits['train'].source for part in self.parts)
        self.counts = counts_of(self.train, self.tokenizer.n_tokens)

        # What validations measure
        n_blocks = config.eval_iters * config.batch_size
        for part in self.parts:
            part.blocks, part.given = all_blocks(part.val, config.block_size, n_blocks)
            part.begins = begins_in(part.blocks, part.val, config.documents)

    @property
    def hashes(self):
        """{'train': sha256, 'val': sha256}; of several sets, of the hashes of all."""
        if len(self.parts) == 1:
            return self.parts[0].hashes
        found = {}
        for split in TRAIN_AND_VAL:
            found[split] = hash_of({part.name: part.hashes[split] for part in self.parts})
        return found

    @property
    def entries(self):
        """What a checkpoint says of the data. Of several sets `sets` says what each is."""
        entries = {
            'tokenizer': self.tokenizer.name,
            'set': self.kind,
            'data': self.hashes['train'],
            'val_data': self.hashes['val'],
            'counts': self.counts,
        }
        if len(self.parts) > 1:
            entries['sets'] = {part.name: entry_of(part) for part in self.parts}
        return entries

    def losses(self, val):
        """Return what the log says of validate_parts: {'val_any': nats a blank, ...}, the means
        over the sets by their shares. Of several sets each follows, {'val_books_any': ...}."""
        means = {}
        of_parts = {}
        for part in self.parts:
            for name, nats in val[part.name].items():
                loss = float(nats.sum()) / part.n_blanks
                means[f'val_{name}'] = means.get(f'val_{name}', 0) + part.share * loss
                of_parts[f'val_{part.name}_{name}'] = loss
        if len(self.parts) == 1:
            return means
        return means | of_parts


def open_part(name, config):
    train, meta = open_split(config.data_dir, name, 'train')
    val, _ = open_split(config.data_dir, name, 'val')
    return Part(name, meta, train, val)


def set_shares(parts, weights, block_size):
    """Set the shares of the parts: of their weights {name: weight}, or without weights of the
    tokens that they have, as if all were one set."""
    own = []
    for part in parts:
        rows, tokens_of_row = n_read(part.train, block_size)
        own.append(weights[part.name] or rows * tokens_of_row)
    for part, share in zip(parts, shares_of(own)):
        part.share = float(share)


def read_as_one(parts, block_size):
    """Return what is trained on: a Split, or a Mixture of several."""
    if len(parts) == 1:
        return parts[0].train
    shares = np.array([part.share for part in parts])
    return Mixture([part.train for part in parts], shares, block_size)


def hash_of(hashes):
    """Return the sha256 of the sha256 of each set, {name: its hash}, in any order."""
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


def counts_of(split, n_tokens):
    """Return how often tokens are trained on, in the process that saves it; None in the others."""
    rank, _ = processes()
    if rank > 0:
        return None
    return torch.from_numpy(split.counts(n_tokens))


def entry_of(part):
    kind = kind_of(part.meta)
    kind.pop('tokenizer_file', None)  # the entry `set` has it, once for all
    return {
        'share': part.share,
        'set': kind,
        'data': part.hashes['train'],
        'val_data': part.hashes['val'],
    }


# --------------------------------------------------------------------------------------------------
# what is measured


def validate_parts(state, data, config):
    """Return {name of a set: what `validate` gives of it}, each as if it were alone."""
    found = {}
    for part in data.parts:
        how = (part.given, state.order, config, part.begins)
        found[part.name] = validate(state.ema.model, part.blocks, *how)
    return found
