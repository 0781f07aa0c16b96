"""Path-star graphs and invented facts: their rows, and who solves the graphs.

    python results/stargraphs/stargraphs.py rows --degree=2 --out=star_2.npz
    python results/stargraphs/stargraphs.py facts --out=facts.npz
    python results/stargraphs/stargraphs.py solve --ckpt=out/star/ckpt.pt

A path-star graph has a start and arms, paths of `length` nodes that have the start in common; no
two nodes share a label (Bachmann and Nagarajan 2024, arXiv 2403.06963). A row is

    a b  a b  ...  a b   goal start   node node ... goal

All edges come in a random order, each from the start outward, then the end of one arm, then the
start. These are given, and the nodes of that arm behind the start are to be written. The first
one is hard: any neighbour of the start may be it, and only the far end of its arm tells which.

A fact is "A's r is C". Every A has one fact, and every C belongs to one. A and C are names of two
tokens. Rows to train on are

    A A r C C    of every fact
    C C r' A A   of the first half of the facts, where r' asks for what r tells

The validation set has the second half of the latter kind."""

import sys

sys.path.append('.')  # the project's folder, from which it is run

import numpy as np
import torch

from anyorder.checkpoint import open_checkpoint
from anyorder.datasets import open_split
from anyorder.fast import freeze
from anyorder.generation import generate
from anyorder.likelihood.tables import share_error
from anyorder.machine.files import check_out
from anyorder.machine.terminal import one_line_errors
from anyorder.seeds import stream
from anyorder.tokens.blocks import all_blocks
from configurator import configure

WORDS = {
    'rows': 'path-star graphs',
    'facts': 'invented facts',
    'solve': 'the whole paths that a network writes which reads the question first',
}
degree = 2  # rows: arms
length = 5  # rows: nodes of an arm with the start
nodes = 50  # rows: labels
n_edges = 0  # rows: so many edges, repeated by chance; 0: each once
read = False  # rows: no token is given, so that all are learned
n_train = 200000  # rows: graphs
n_val = 2000  # rows: graphs
n_facts = 2000  # facts: half of them are trained in both directions
n_names = 100  # facts: tokens that names are made of
n_relations = 8  # facts: relations
seed = 1337
out = 'rows.npz'  # rows, facts: the file to write
ckpt = ''  # solve: a checkpoint


def question_first(u, n, n_path):
    """An order for --order=results/stargraphs/stargraphs.py:question_first.

    The question is read from left to right, then the path in any order. The path has the last
    n_path positions, 4 if None."""
    at = n - (n_path or 4)
    question = torch.arange(at, device=u.device).expand(len(u), -1)
    return torch.cat([question, at + u[:, at:].argsort(-1)], 1)


def main(config):
    (word,) = config.words
    if word == 'solve':
        solve(config)
        return
    check_out('out', config.out, '.npz')
    if word == 'rows':
        make_graphs(config)
    else:
        make_facts(config)
    print(f'{config.out} written')


def make_graphs(config):
    rng = np.random.default_rng(config.seed)
    n = config.n_train + config.n_val
    edges, arms, start = draw_graphs(rng, n, config)
    path = arms[:, 0]  # labels are random, so that any arm will do
    shown = shuffle_edges(rng, edges, config.n_edges)
    question = np.concatenate([shown.reshape(n, -1), path[:, -1:], start], 1)
    tokens = np.concatenate([question, path], 1)

    keys = [key.tobytes() for key in keys_of(edges, question, config)]
    trained = set(keys[: config.n_train])
    is_new = [key not in trained for key in keys[config.n_train :]]
    val = tokens[config.n_train :][is_new]
    given = np.zeros(tokens.shape[1], bool)
    if not config.read:
        given[: question.shape[1]] = True
    np.savez_compressed(config.out, train=tokens[: config.n_train], val=val, given=given)
    print(f'{len(trained):,} different graphs to train on, {len(val):,} others for validation')


def draw_graphs(rng, n, config):
    """Return edges (n, arms * m, 2), arms (n, arms, m) without the start, start (n, 1)."""
    d = config.degree
    m = config.length - 1  # edges of an arm
    if config.nodes < 1 + d * m:
        raise ValueError(f'nodes must be at least the {1 + d * m} of a graph, got {config.nodes}')
    labels = rng.random((n, config.nodes)).argsort(1)[:, : 1 + d * m].astype(np.uint16)
    start = labels[:, :1]
    arms = labels[:, 1:].reshape(n, d, m)
    starts = start.repeat(d, 1)[:, :, None]
    before = np.concatenate([starts, arms[:, :, :-1]], 2)
    return np.stack([before, arms], 3).reshape(n, d * m, 2), arms, start


def shuffle_edges(rng, edges, n_edges):
    """Return edges (n, m, 2) in random orders, with repeated ones if n_edges is above m."""
    n, m, _ = edges.shape
    shown = rng.random((n, m)).argsort(1)
    if n_edges:
        again = rng.integers(0, m, (n, n_edges - m))
        shown = np.concatenate([shown, again], 1)
        shown = np.take_along_axis(shown, rng.random(shown.shape).argsort(1), 1)
    return np.take_along_axis(edges, shown[:, :, None], 1)


def keys_of(edges, question, config):
    """Return a row of integers for each graph and its question, the same in any order of edges."""
    numbers = np.sort(edges[:, :, 0].astype(np.int32) * config.nodes + edges[:, :, 1], 1)
    return np.concatenate([numbers, question[:, -2:]], 1)


def make_facts(config):
    n = config.n_facts
    n_tokens = config.n_names
    n_known = config.n_relations
    rng = np.random.default_rng(config.seed)
    drawn = rng.choice(n_tokens**2, 2 * n, replace=False)
    names = np.stack(divmod(drawn, n_tokens), 1) + 2 * n_known  # ids: r, then r', then names
    relation = rng.integers(0, n_known, (n, 1))
    a = names[:n]
    c = names[n:]
    forward = np.concatenate([a, relation, c], 1).astype(np.uint16)
    backward = np.concatenate([c, relation + n_known, a], 1).astype(np.uint16)
    train = np.concatenate([forward, backward[: n // 2]])
    val = backward[n // 2 :]
    np.savez_compressed(
        config.out,
        train=train,
        val=val,
        given_train=np.zeros(train.shape, bool),
        given_val=np.arange(5) < 3,
    )
    print(f'{n:,} facts forward, {n // 2:,} of them backward too; {len(val):,} for validation')


def solve(config):
    """Print the share of whole paths, one node a step, and tau of the steps, see backward_tau."""
    checkpoint = open_checkpoint(config.ckpt)
    model = freeze(checkpoint.model('ema'))
    split, _ = open_split(checkpoint.run['data_dir'], checkpoint.run['dataset'], 'val')
    tokens, given = all_blocks(split, checkpoint.config.block_size)
    n, N = tokens.shape
    n_path = int((~given[0]).sum())
    u = torch.rand(n, N, generator=stream(config.seed))
    order = question_first(u, N, n_path)
    for policy in ('given', 'margin', 'entropy'):
        idx, trace = generate(
            model,
            tokens.masked_fill(~given, 0),
            order,
            N - n_path,
            n_path,
            policy,
            temperature=0,
            seeds=range(n),
            return_trace=True,
        )
        n_right = int((idx == tokens).all(1).sum())
        error = share_error(n_right, n)
        tau = backward_tau(trace['step'][:, -n_path:]).mean()
        print(f'{policy:<10}{n_right / n:>8.2%} ± {error:.2%}   tau {tau:.3f}', flush=True)


def backward_tau(step):
    """Return (n,) Kendall's tau of the steps (n, m) that wrote a path: 1 is backward, -1 forward.

    The goal, its last node, is only copied and does not count."""
    i, j = torch.triu_indices(step.size(1) - 1, step.size(1) - 1, 1)
    return (step[:, i] - step[:, j]).sign().double().mean(1)


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
