"""The rules of Countdown: reach a target by arithmetic from 3 or 4 numbers, each of which is used
once.

A row of countdown3 is a question and two steps, five tokens a line, each number one token:

    15 44 79  . 20
    79 - 15 = 64
    64 - 44 = 20

After a step its result stands in place of its two numbers."""

import numpy as np

from anyorder.extras.puzzles.puzzle import Puzzle

MOST = 100  # the largest of the numbers and of the targets
MOST_RESULT = 999  # the largest result of a step, and the largest number that has a token
SIGNS = '+-*/'
OTHERS = ['.', *SIGNS, '=']  # the tokens before the numbers; 0 is padding
EQUALS = OTHERS.index('=')  # number n has the n-th token after it
COLUMNS = 5  # tokens of a line: of the question, the numbers, padding and the target, or of a step


class Countdown(Puzzle):
    """Rules, generator and judge, for many puzzles at once.

    A puzzle is n numbers from 1 to `largest`, by default 100, and a target from 10 to `largest`. A
    step is + - * or / of whole numbers, and its result is from 1 to 999. Many derivations can be
    right: a row has the one that the puzzle was made with, and the judge lets all of them pass.

    Source: the sets CD3 and CD4 of Ye et al. 2024, "Beyond Autoregression: Discrete Diffusion for
    Complex Reasoning and Planning", arXiv 2410.14157, after Gandhi et al. 2024, "Stream of Search",
    arXiv 2404.03683. Their rows are characters, and results may be larger."""

    symbols = [*OTHERS, *map(str, range(1, MOST_RESULT + 1))]
    made = {'largest': 'numbers up to {}'}
    n_train = 500000

    def __init__(self, n, largest=MOST):
        self.n = n
        self.about = f'{n} numbers and a target'
        self.largest = largest
        if not 20 <= largest <= MOST:
            raise ValueError(f'largest must be a number from 20 to {MOST}, got {largest}')

    def key(self, tokens):
        """Return what two splits may not share: the numbers, in any order, and the target."""
        numbers = np.sort(tokens[:, : self.n], 1)
        target = tokens[:, COLUMNS - 1]
        return np.column_stack([numbers, target])

    def make(self, n_rows, rng, wanted, n_variants=1):
        """Return (tokens, given), each (n, N).

        A step takes two random numbers of those that are left, the larger one first, and one of the
        signs that lead to a result from 1 to 999. The last result is the target."""
        numbers = rng.integers(1, self.largest + 1, (n_rows, self.n))
        padding = np.zeros((n_rows, COLUMNS - self.n - 1), int)
        equals = np.full(n_rows, EQUALS)
        left = numbers
        steps = []
        while left.shape[1] > 1:
            left = rng.permuted(left, axis=1)
            b, a = np.sort(left[:, :2], 1).T
            results = results_of(a, b)
            sign = np.where(results > 0, rng.random(results.shape), 0).argmax(1)
            result = results[np.arange(n_rows), sign]
            steps += [token_of(a), sign + 1, token_of(b), equals, token_of(result)]
            left = np.column_stack([left[:, 2:], result])
        tokens = np.column_stack([token_of(numbers), padding, token_of(result), *steps])
        tokens = tokens[(result >= 10) & (result <= self.largest)]
        given = tokens == EQUALS
        given[:, :COLUMNS] = True  # the question
        return tokens, given

    def right(self, tokens, answer):
        """Return which tokens of `answer` are right, all (B, N).

        Those of a step are, if it and the steps before it hold: both numbers are left, the sum is
        right, and the last result is the target. Nothing of it is taken from the derivation in
        `tokens`."""
        lines = answer.reshape(-1, self.n, COLUMNS)
        right = (answer == tokens).reshape(lines.shape)
        rows = np.arange(len(tokens))
        n_left = np.zeros((len(tokens), MOST_RESULT + 1), np.int8)  # how often each number is left
        np.add.at(n_left, (rows[:, None], number_of(tokens[:, : self.n])), 1)
        target = number_of(tokens[:, COLUMNS - 1])
        sound = True
        for step in range(1, self.n):
            a, sign, b, equals, result = lines[:, step].T
            a, b, result = map(number_of, (a, b, result))
            is_sign = sign[:, None] - 1 == range(len(SIGNS))
            holds = (is_sign & (results_of(a, b) == result[:, None])).any(1)
            n_left[rows, a] -= 1
            n_left[rows, b] -= 1
            are_left = (n_left[rows, a] >= 0) & (n_left[rows, b] >= 0)
            n_left[rows, result] += 1
            sound = sound & holds & (equals == EQUALS) & are_left
            right[:, step] = sound[:, None]
        right[:, -1] &= (result == target)[:, None]
        return right.reshape(tokens.shape)


def token_of(numbers):
    """Return the tokens of numbers."""
    return numbers + EQUALS


def number_of(tokens):
    """Return the numbers of tokens; 0 where a token is none."""
    return np.maximum(tokens - EQUALS, 0)


def results_of(a, b):
    """Return the results (B, 4) of numbers a and b (B,) by SIGNS; -1 for none from 1 to 999."""
    quotient = a // np.maximum(b, 1)
    results = np.column_stack([a + b, a - b, a * b, np.where(quotient * b == a, quotient, 0)])
    return np.where((results >= 1) & (results <= MOST_RESULT), results, -1)
