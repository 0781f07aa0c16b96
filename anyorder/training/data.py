"""What does a run read? Its sets: what is trained on, what is validated, and what is kept of
them."""

from dataclasses import asdict

import torch

from anyorder.datasets import TRAIN_AND_VAL, open_splits
from anyorder.likelihood.measured import Corpus
from anyorder.machine.processes import first_process_first
from anyorder.tokens.blocks import Blocks
from anyorder.tokens.mixture import counts_of, mixed, set_shares, weights_in
from anyorder.tokens.tokenizer import tokenizer_of_set
from anyorder.training.validation import Validation, in_log, nats_in_orders
from configurator import Config


class Data:
    """The sets of a run.

    train       [Blocks], one of each set, with its share
    val         [Corpus], what is validated of each set
    kind        what kind_of says of the sets
    splits      {name of a set: what meta.json says of its splits}
    tokenizer   of all of them
    config      the options of the run, with the source of the training and the shape of a grid
    validation  the Validation of the run
    entries     what a checkpoint says of the data; `counts` (n_tokens,) is how often each token is
                trained on"""

    def __init__(self, config):
        weights = weights_in(config.dataset)
        with first_process_first():  # which makes a set, if that needs no source
            pairs = [open_splits(config.data_dir, name, *TRAIN_AND_VAL) for name in weights]
        metas = [train.meta for train, _ in pairs]
        self.kind = mixed(metas)
        self.splits = {meta.name: meta.splits for meta in metas}
        self.tokenizer = tokenizer_of_set(self.kind)
        how = config.block_size, config.documents
        self.train = [Blocks(train, *how) for train, _ in pairs]
        set_shares(self.train, weights.values())
        source = ', '.join(split.entry['source'] for split in self.train)
        self.config = Config(config, source=source, shape=self.kind.shape)
        self.validation = Validation(self.config)
        self.validation.check(self.config)
        self.val = [
            Corpus.of(Blocks(val, *how), self.validation.n_blocks, self.tokenizer)
            for _, val in pairs
        ]
        for text in self.val:
            text.split.count()  # raises for a token that the set lacks, in what it counts
        self.entries = {
            'tokenizer': self.tokenizer.name,
            'set': asdict(self.kind),
            'sets': self.splits,
            'counts': torch.from_numpy(counts_of(self.train)),
        }

    def validate(self, state, config):
        """Return ([what `nats_in_orders` gives of a set], each as if it were alone, {one of
        Validation.order_of: nats a blank}), means over the sets by their shares."""
        val = []
        losses = dict.fromkeys(self.validation.order_of, 0.0)
        for split, text in zip(self.train, self.val):
            orders = self.validation.orders
            of_set = nats_in_orders(state.ema.model, text, orders, config, state.iter_num)
            val.append(of_set)
            n_blanks = int(text.n_blanks.sum())
            for order, nats in of_set.items():
                loss = float(nats.sum()) / n_blanks
                losses[in_log(order)] += split.share * loss
                if len(self.train) > 1:
                    losses[in_log(order, split.meta.name)] = loss
        return val, losses
