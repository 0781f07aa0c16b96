"""What does a run read? Its sets: what is trained on, what is validated, and what is kept of
them."""

from dataclasses import asdict

import torch

from anyorder.datasets import TRAIN_AND_VAL, open_splits
from anyorder.machine.processes import first_process_first
from anyorder.tokens.blocks import Blocks, all_blocks
from anyorder.tokens.mixture import counts_of, mixed, set_shares, weights_in
from anyorder.tokens.tokenizers import tokenizer_of_set
from anyorder.training.validation import laws_of, n_blocks_of, validate


class Measured:
    """The blocks of a set that validations measure.

    blocks  the Blocks of its split
    tokens  (n, N) of some of them
    given   (n, N) which of these are given
    begins  (n, P) where their documents begin; None: documents are not apart"""

    def __init__(self, blocks, n_blocks):
        self.blocks = blocks
        self.tokens, self.given = all_blocks(blocks, n_blocks)
        self.begins = blocks.begins(self.tokens)


class Data:
    """The sets of a run.

    train      [Blocks], one of each set, with its share
    val        [Measured], one of each set
    kind       what kind_of says of the sets
    tokenizer  of all of them
    source     of the training
    counts     (n_tokens,) how often each token is trained on"""

    def __init__(self, config):
        weights = weights_in(config.dataset)
        with first_process_first():  # which makes a set, if that needs no source
            pairs = [open_splits(config.data_dir, name, *TRAIN_AND_VAL) for name in weights]
        self.kind = mixed([train.meta for train, _ in pairs])
        self.tokenizer = tokenizer_of_set(self.kind)
        how = config.block_size, config.documents
        self.train = [Blocks(train, *how) for train, _ in pairs]
        self.val = [Measured(Blocks(val, *how), n_blocks_of(config)) for _, val in pairs]
        set_shares(self.train, [*weights.values()])
        self.source = ', '.join(split.entry['source'] for split in self.train)
        self.counts = torch.from_numpy(counts_of(self.train))

    @property
    def hashes(self):
        """{split: {name of a set: the sha256 of its tokens}}"""
        found = {}
        for name in TRAIN_AND_VAL:
            metas = [split.meta for split in self.train]
            found[name] = {meta.name: meta.splits[name]['sha256'] for meta in metas}
        return found

    @property
    def entries(self):
        """What a checkpoint says of the data; `sets` is what meta.json says of the splits."""
        return {
            'tokenizer': self.tokenizer.name,
            'set': asdict(self.kind),
            'sets': {split.meta.name: split.meta.splits for split in self.train},
            'counts': self.counts,
        }

    def losses(self, val):
        """Return what the log says of validate_sets: {'val_any': nats a blank, ...}, the means
        over the sets by their shares. Of several sets each follows, {'val_books_any': ...}."""
        means = {}
        each = {}
        for split, part in zip(self.train, self.val):
            n_blanks = int((~part.given).sum())
            for name, nats in val[split.meta.name].items():
                loss = float(nats.sum()) / n_blanks
                means[f'val_{name}'] = means.get(f'val_{name}', 0) + split.share * loss
                each[f'val_{split.meta.name}_{name}'] = loss
        if len(self.train) == 1:
            return means
        return means | each


def validate_sets(state, data, config, laws=None, n_blocks=None):
    """Return {name of a set: what `validate` gives of it}, each as if it were alone.

    laws      by default those of the options
    n_blocks  of each set, by default all"""
    orders = laws or laws_of(config)
    found = {}
    for val in data.val:
        how = val.given, orders, config, val.begins, state.iter_num
        found[val.blocks.meta.name] = validate(state.ema.model, val.tokens[:n_blocks], *how)
    return found
