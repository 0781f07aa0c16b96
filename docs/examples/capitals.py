"""Train on text of bytes in which a capital counts four times.

    python docs/examples/capitals.py config/quickstart.py --out_dir=out/capitals

The options are those of train.py."""

import sys
from functools import partial

sys.path.append('.')  # the project's folder, from which it is run

import torch

import train
from anyorder.likelihood.nll import blank_nll
from anyorder.machine.terminal import one_line_errors
from anyorder.training.update import draw_batch, update
from configurator import configure

WEIGHT = torch.ones(257)  # of the 256 bytes and the end of a text
WEIGHT[ord('A') : ord('Z') + 1] = 4


def weights_of(batch):
    """Return what each token of a Batch counts, (B, N) by visit."""
    return WEIGHT.to(batch.idx.device)[batch.idx.gather(1, batch.order)]


def draw(state, sets, config):
    """Draw a Batch that counts its blanks by their weights."""
    batch = draw_batch(state, sets, config)
    return batch._replace(n_blanks=(weights_of(batch) * batch.is_blank).sum(1))


def loss(model, batch):
    """Return nats (B, N) by visit, times the weights."""
    return weights_of(batch) * blank_nll(model, batch)


def main(config):
    train.train(config, partial(update, draw=draw, loss=loss))


if __name__ == '__main__':
    with one_line_errors():
        main(configure(vars(train) | {'__doc__': __doc__}))
