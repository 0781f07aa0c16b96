"""Measure where the heads of a decoder look, in random orders and from left to right.

    python docs/examples/attention.py --ckpt=out/quickstart/ckpt.pt --out=attention.json
    python -m anyorder.extras.pictures attention.json --x=distance --y=random,l2r --by=head

A row of the file is the mean weight that a head gives to a token that the slot sees: by its
distance from the position that the slot predicts, or by its age, the visits since it was visited.
The table has what a slot gives to each kind of token together."""

import sys

sys.path.append('.')  # the project's folder, from which it is run

import torch

from anyorder.checkpoint import Checkpoint
from anyorder.datasets import open_split
from anyorder.extras.attention import attention
from anyorder.machine.files import check_out, write_json
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import Order, draw_orders
from anyorder.tokens.blocks import Blocks, all_blocks
from configurator import configure

ckpt = 'out/ckpt.pt'  # checkpoint of a decoder
dataset = 'pydocs'  # whose validation blocks are read
data_dir = 'data'  # where prepared sets are
n_blocks = 64  # each in one order
reach = 8  # how many distances to either side, and ages
out = 'attention.json'  # file to write


def profile(model, idx, order, reach):
    """Return mean weights {(axis, place): (L H,)}, and {kind of token: (share (L H,), share of a
    head that gives all slots that it sees the same)}."""
    weights, reads = attention(model, idx, order)  # (L, B, H, T, T)
    weights = weights.transpose(1, 2).flatten(0, 1)  # (L H, B, T, T)
    visit = torch.arange(order.size(1))
    age = (visit.unsqueeze(1) - visit).expand(weights.shape[1:])  # slot j reads visit j - 1
    distance = reads.unsqueeze(1) - order.unsqueeze(2)
    is_seen = (age >= 0) & (reads.unsqueeze(1) >= 0)

    means = {}
    for axis, of_slots in (('distance', distance), ('age', age)):
        for k in range(-reach, reach + 1):
            holds = is_seen & (of_slots == k)
            if holds.any():
                means[axis, k] = weights[:, holds].mean(1)

    kinds = {
        'last visited': is_seen & (age == 0),
        'neighbours': is_seen & (distance.abs() == 1),
        f'within {reach}': is_seen & (distance.abs() <= reach),
    }
    n_slots = is_seen.any(2).sum()  # all but the first, which sees [None] alone
    alike = 1 / (visit + 1).unsqueeze(1)
    shares = {}
    for kind, holds in kinds.items():
        share = (weights * holds).sum((1, 2, 3)) / n_slots
        shares[kind] = share, (alike * holds).sum() / n_slots
    return means, shares


def main(config):
    check_out('out', config.out, '.json')
    model = Checkpoint(config.ckpt).model()
    block_size = model.config.block_size
    split = open_split(config.data_dir, config.dataset, 'val')
    idx, _ = all_blocks(Blocks(split, block_size), config.n_blocks)
    heads = [
        f'{layer + 1}.{head + 1}'
        for layer in range(model.config.n_layer)
        for head in range(model.config.n_head)
    ]

    rows = {}
    for kind in ('random', 'l2r'):
        order = draw_orders(range(len(idx)), block_size, order=Order(kind))
        means, shares = profile(model, idx, order, config.reach)
        for (axis, place), of_heads in means.items():
            for head, weight in zip(heads, of_heads.tolist()):
                row = rows.setdefault((axis, place, head), {axis: place, 'head': head})
                row[kind] = weight
        print(f'{kind:<18}{"all alike":>10}' + ''.join(f'{head:>8}' for head in heads))
        for name, (share, alike) in shares.items():
            print(f'{name:<18}{alike:>10.3f}' + ''.join(f'{x:>8.3f}' for x in share.tolist()))
    write_json(config.out, {'results': [*rows.values()]})
    print(f'\n{config.out} written')


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
