"""How often does a model find the length of a blank of 1 to 12 tokens?

    python results/lengths/lengths.py letters
    python results/lengths/lengths.py blanks --ckpt=out/letters/ckpt.pt --size=32

`letters` writes letters.txt, a text whose law is known: to each letter follows the next one, or in
20 % of all places the one after it. `blanks` prints for each rule the percent right and within 1,
the mean error, p and -log p of the true length, p of the chosen one, and the percent right of each
length."""

import sys

sys.path.append('.')  # the project's folder, from which it is run

import numpy as np

from anyorder.datasets import open_split
from anyorder.likelihood.lengths import gap_scores
from anyorder.likelihood.tables import standard_error
from anyorder.machine.terminal import one_line_errors
from anyorder.writer import Writer
from configurator import at_least, configure

WORDS = {'letters': 'write a text of a known law', 'blanks': 'find the lengths of held-out blanks'}
ckpt = 'out/letters/ckpt.pt'
n_blanks = 600
size = 32  # tokens of a text whose blank has 12
near = 16  # tokens behind the blank that are read

LENGTHS = np.arange(1, 13)
SKIP_SHARE = 0.2  # of letters that follow the next but one


def main(config):
    at_least(config, 2, 'n_blanks')  # whose spread gives the errors
    (word,) = config.words
    if word == 'letters':
        write_letters()
    else:
        measure(config)


def write_letters():
    steps = 1 + (np.random.default_rng(1).random(1_000_000) < SKIP_SHARE)
    with open('letters.txt', 'w') as f:
        f.write(''.join(chr(97 + i % 26) for i in steps.cumsum()))


def measure(config):
    writer = Writer(config.ckpt)
    held = blanks(writer, config.n_blanks, config.size)
    show('exact', scores(writer, held, config.near), held)
    show('CAL', scores(writer, held, config.near, by_confidence=True), held)
    if writer.checkpoint.run['dataset'] == 'letters':
        show('best possible', known_law(held), held)


def blanks(writer, count, size):
    """Return [(L, gap, R)] of tokens, L and R of size - 12 together, gaps of 1 to 12."""
    run = writer.checkpoint.run
    tokens = open_split(run['data_dir'], run['dataset'], 'val')[0].packed
    rng = np.random.default_rng(0)
    found = []
    while len(found) < count:
        before = rng.integers(4, size - 15)
        length = rng.integers(1, 13)
        start = rng.integers(0, len(tokens) - size)
        text = tokens[start : start + size - 12 + length].astype(int)
        if writer.tokenizer.eos not in text:
            found.append(np.split(text, [before, before + length]))
    return found


def scores(writer, found, near, by_confidence=False):
    """Return (blanks, 12): log p(R | L, gap of n), or log of the confidence, of each length n."""
    result = []
    for left, _, right in found:
        rows = []
        for n in LENGTHS:
            text = np.concatenate([left, np.zeros(n, int), right[:near]]).tolist()
            is_known = np.ones(len(text), bool)
            is_known[len(left) : len(left) + n] = False
            rows.append((text, is_known.tolist(), len(left)))
        of_rows = gap_scores(writer.network, rows, list(LENGTHS), by_confidence)
        result.append(of_rows.numpy())
    return np.array(result)


def known_law(found):
    """Return (blanks, 12) log p of the letter behind a gap of n, given the letter before it."""
    step = (1 - SKIP_SHARE) * np.roll(np.eye(26), 1, 1) + SKIP_SHARE * np.roll(np.eye(26), 2, 1)
    powers = np.stack([np.linalg.matrix_power(step, n + 1) for n in LENGTHS], -1)
    law = np.array([powers[left[-1] - 97, right[0] - 97] for left, _, right in found])
    return np.log(law + 1e-99)


def show(name, score, found):
    """Print a line for a rule that gives score (blanks, 12), logs, to the lengths."""
    true = np.array([len(gap) for _, gap, _ in found])
    chosen = LENGTHS[score.argmax(1)]
    logp = score - np.logaddexp.reduce(score, 1, keepdims=True)
    logp_of_true = logp[np.arange(len(true)), true - 1]
    error = abs(chosen - true)
    is_right = error == 0
    is_near = error < 2
    columns = [
        100.0 * is_right,
        100.0 * is_near,
        error,
        np.exp(logp_of_true),
        -logp_of_true,
        np.exp(logp.max(1)),
    ]
    by_length = [f'{n}:{100 * is_right[true == n].mean():.0f}' for n in np.unique(true)]
    print(f'{name:14}', *map(figure, columns), *by_length, flush=True)


def figure(x):
    return f'{x.mean():7.3f} ± {standard_error(x.tolist()):.3f}'


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
