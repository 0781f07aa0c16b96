"""Nats a frame of whole pieces, with errors over pieces, by what eval_ppl.py --out=FILE.json wrote.

    python results/chorales/by_piece.py FILE.json.blocks.jsonl

Reads pieces.npz and pieces_test.npy, which chorales.py wrote, from the folder in which it runs."""

import json
import sys

import numpy as np


def main(path):
    of_order = read_nats(path)
    piece = np.load('pieces_test.npy')
    n_scored = (~np.load('pieces.npz')['given_test']).sum(1)
    frames = np.bincount(piece, n_scored / 4)  # of each piece
    first = None
    for order, rows in of_order.items():
        nats = np.stack([np.bincount(piece, column) for column in rows.T])  # (draws, pieces)
        mean = nats.mean(0)
        if first is None:
            first = mean
        n_draws = len(nats)
        mixture = np.log(n_draws) - np.logaddexp.reduce(-nats)
        show(order, mean, frames)
        show(f'{order}, mixture of {n_draws}', mixture, frames)
        show(f'{order}, more than the first', mean - first, frames)


def read_nats(path):
    """Return {order: nats (rows, draws)} of the set `pieces`."""
    with open(path) as f:
        lines = [json.loads(line) for line in f][1:]  # the first says which evaluation it is
    lines = [line for line in lines if line[0].startswith('pieces ')]
    lines.sort(key=lambda line: line[3])  # the row
    found = {}
    for _, _, order, _, nats in lines:
        found.setdefault(order.rsplit(' ', 1)[0], []).append(nats)
    return {order: np.array(rows) for order, rows in found.items()}


def show(name, nats, frames):
    mean = nats.sum() / frames.sum()
    error = np.std(nats - mean * frames, ddof=1) * len(nats) ** 0.5 / frames.sum()
    print(f'{name:<40}{mean:>8.4f} ± {error:.4f}')


if __name__ == '__main__':
    main(sys.argv[1])
