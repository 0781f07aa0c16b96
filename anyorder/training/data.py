"""What does a run read? Its sets: what is trained on, what is validated, and what is kept of
them."""

from dataclasses import asdict, dataclass
from functools import cached_property

import torch

from anyorder.datasets import TRAIN_AND_VAL, open_splits
from anyorder.machine.processes import first_process_first, processes
from anyorder.tokens.apart import begins_in, check_documents
from anyorder.tokens.blocks import all_blocks
from anyorder.tokens.mixture import counts_of, mixed, set_shares, weights_in
from anyorder.tokens.sets import Split, check_length
from anyorder.tokens.tokenizers import tokenizer_of_set
from anyorder.training.validation import validate


@dataclass
class Measured:
    """The blocks of a set that validations measure.

    split   they are of
    blocks  (n, N) tokens
    given   (n, N) which of them are given
    begins  (n, P) where their documents begin; None: documents are not apart"""

    split: Split
    blocks: torch.Tensor
    given: torch.Tensor
    begins: torch.Tensor | None

    @cached_property
    def n_blanks(self):
        return int((~self.given).sum())


class Data:
    """The sets of a run.

    train      [Split], one of each set, with its share
    val        [Measured], one of each set
    kind       what kind_of says of the sets
    tokenizer  of all of them
    source     of the training
    counts     (n_tokens,) how often each token is trained on, in the process that saves it"""

    def __init__(self, config):
        weights = weights_in(config.dataset)
        with first_process_first():  # which makes a set, if that needs no source
            pairs = [open_splits(config.data_dir, name, *TRAIN_AND_VAL) for name in weights]
        self.train = [train for train, _ in pairs]
        self.kind = mixed([split.meta for split in self.train])
        self.tokenizer = tokenizer_of_set(self.kind)
        for split in sum(pairs, []):
            check_documents(split.meta, config.documents)
            check_length(split, config.block_size)
        set_shares(self.train, [*weights.values()], config.block_size)
        self.source = ', '.join(split.said['source'] for split in self.train)
        rank, _ = processes()
        self.counts = None
        if rank == 0:
            self.counts = torch.from_numpy(counts_of(self.train, self.tokenizer.n_tokens))
        self.val = [measured(val, config) for _, val in pairs]

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
            for name, nats in val[split.meta.name].items():
                loss = float(nats.sum()) / part.n_blanks
                means[f'val_{name}'] = means.get(f'val_{name}', 0) + split.share * loss
                each[f'val_{split.meta.name}_{name}'] = loss
        if len(self.train) == 1:
            return means
        return means | each


def measured(val, config):
    """Return what validations measure of a Split."""
    n_blocks = config.eval_iters * config.batch_size
    blocks, given = all_blocks(val, config.block_size, n_blocks)
    return Measured(val, blocks, given, begins_in(blocks, val.meta, config.documents))


def validate_sets(state, data, config):
    """Return {name of a set: what `validate` gives of it}, each as if it were alone."""
    found = {}
    for val in data.val:
        how = (val.given, state.order, config, val.begins)
        found[val.split.meta.name] = validate(state.ema.model, val.blocks, *how)
    return found
