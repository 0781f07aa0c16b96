"""The rules of Zebra: n houses in a row and k attributes, of n values, one in each house.

n and k are 3 or more."""

import itertools

import numpy as np

from anyorder.extras.puzzles.puzzle import Puzzle
from anyorder.extras.puzzles.solver import count_solutions, dig

# relations between two items, and how a clue shows them
SAME = 1
BEFORE = 2
NEXT = 3
SOMEWHERE = 4
SIGNS = ' =<~-'


def zebra_names(n):
    """Return the letters of n houses and of the n values of each of n attributes, n at most 6."""
    attributes = ('123456', 'ABCDEF', 'abcdef', 'GHIJKL', 'ghijkl', 'MNOPQR', 'mnopqr')
    return ''.join(names[:n] for names in attributes[: n + 1])


def zebra_clues(n):
    """Return all clues (relation, item, item) in the order of their tokens, see Zebra."""
    b = np.arange(n * (n + 1)) // n  # attributes
    a = b[:, None]
    in_house = (a > 0) & (b == 0)
    rises = (a > 0) & (a < b)
    differ = rises | rises.T
    clues = np.argwhere([in_house, rises, differ, rises, differ])
    clues[:, 0] = clues[:, 0].clip(SAME)  # the house of an item is the first relation, too
    return clues


class Zebra(Puzzle):
    """Rules, generator and solver, for many puzzles at once.

    A puzzle is clues `relation item item`, each one token, then the house of every item, attribute
    by attribute. An item is a value of an attribute; attribute 0 is the house's number, so that
    `= item house` says where something is. Relations: 1 in the same house, 2 right before, 3 next
    to, 4 somewhere before. Tokens: 0 is padding, which is given; 1 to `most` are the houses; then
    come all clues there are. Puzzles have up to `largest` houses and attributes, by default `most`.

    symbols  A=3 and A=b say the same house, A<b right before, A~b next to, A-b somewhere before
    clue     (relations, items, items) the token of every clue; 0 is none
    said     (tokens, 3) relation, item, item of every token; relation 0 is no clue"""

    options = ('steps',)
    made = {'largest': 'up to {} houses'}

    def __init__(self, most, largest=0):
        self.most = most  # houses and attributes
        self.about = f'3 to {most} houses and attributes'
        self.n_clues = most * (most - 1)  # in a row of tokens
        self.largest = largest or most
        if not 3 <= self.largest <= most:
            raise ValueError(f'largest must be 3 to {most} houses, got {self.largest}')
        names = zebra_names(most)
        self.cells = names[most:]  # the items
        self.symbols = ['.', *names[:most]]
        clues = zebra_clues(most)
        token = len(self.symbols) + np.arange(len(clues))
        self.said = np.pad(clues, ((len(self.symbols), 0), (0, 0)))
        self.symbols += [names[a] + SIGNS[relation] + names[b] for relation, a, b in clues]
        relation, a, b = clues.T
        self.clue = np.zeros((len(SIGNS), len(names), len(names)), int)
        self.clue[relation, b, a] = token  # a~b is b~a; a<b goes first below
        self.clue[relation, a, b] = token

    def key(self, tokens):
        """Return what two splits may not share: the houses of all items."""
        return tokens[:, self.n_clues :]

    def make(self, n_rows, rng, wanted, n_variants=1):
        """Return (tokens, given), each (n, n_clues + most^2).

        All sizes from 3 to `largest` houses and attributes are equally frequent."""
        sizes = [*itertools.product(range(3, self.largest + 1), repeat=2)]
        n_each = -(-n_rows // len(sizes))
        parts = [self.make_size(n_each, n, k, rng, wanted, n_variants) for n, k in sizes]
        tokens = np.concatenate(parts)
        given = tokens == 0
        given[:, : self.n_clues] = True
        shuffled = rng.permutation(len(tokens))
        return tokens[shuffled], given[shuffled]

    def make_size(self, n_rows, n, k, rng, wanted, n_variants=1):
        """Return tokens (rows, N) of n houses and k attributes.

        Attributes and values have other names in each variant."""
        n_puzzles = -(-n_rows // n_variants)
        base = np.arange(n_puzzles).repeat(n_variants)  # (rows,) the puzzle's number
        house = random_houses(n_puzzles, n, k, rng)  # (puzzles, (k + 1) n)
        name = self.random_names(len(base), n, k, rng)  # (rows, (k + 1) n)
        tokens = np.zeros((len(base), self.n_clues + self.most**2), int)
        place = self.n_clues - self.most + name[:, n:]
        np.put_along_axis(tokens, place, house[base, n:] + 1, 1)
        keep = wanted(self.key(tokens))

        # Clues of the puzzles of which a variant is wanted; a puzzle without is not good
        needed, puzzle = np.unique(base[keep], return_inverse=True)
        clues = self.dig(true_clues(house[needed], n, 3 * n * k, rng), n, k)
        tokens = tokens[keep]
        relation, a, b = clues[puzzle].transpose(2, 0, 1)
        a, b = (np.take_along_axis(name[keep], item, 1) for item in (a, b))
        tokens[:, : clues.shape[1]] = self.clue[relation, a, b]
        return tokens[tokens[:, 0] > 0]

    def random_names(self, n_rows, n, k, rng):
        """Return random names (rows, (k + 1) n) of items: their numbers among all items."""
        attribute = rng.random((n_rows, k)).argsort(1) + 1
        attribute = np.insert(attribute, 0, 0, axis=1)  # 0, the houses, stays
        value = rng.random((n_rows, k + 1, n)).argsort(2)
        value[:, 0] = np.arange(n)
        return (self.most * attribute[:, :, None] + value).reshape(n_rows, -1)

    def dig(self, clues, n, k):
        """Return the clues (B, at most n_clues, 3) that a puzzle needs of clues (B, M, 3). A puzzle
        that has several solutions, or needs more, has none."""

        def is_enough(rows, kept):
            return self.count(clues[rows] * kept[:, :, None], n, k) == 1

        # The most first clues that are not enough, bit by bit; M or more if all are not
        B, M, _ = clues.shape
        n_short = np.zeros(B, int)
        for bit in reversed(range(M.bit_length())):
            tried = n_short + 2**bit
            enough = is_enough(slice(None), np.arange(M) < tried[:, None])
            n_short = np.where(enough, n_short, tried)
        clues = clues[:, : n_short.max(initial=0) + 1]
        order = np.broadcast_to(np.arange(clues.shape[1]), clues.shape[:2])
        kept = order <= n_short[:, None]

        # Then clue by clue
        dig(kept, order, is_enough)
        kept[(n_short >= M) | (kept.sum(1) > self.n_clues)] = False
        return first_of(clues, kept, self.n_clues)

    def count(self, clues, n, k):
        """Return the number of solutions, counted up to 2.

        clues is (B, M, 3): a relation and two items a n + v, of attribute a and value v; relation 0
        is no clue."""
        can = np.ones((len(clues), (k + 1) * n, n), bool)
        can[:, :n] = np.eye(n, dtype=bool)
        return count_solutions(can, *constraints(clues, n, k))

    def state(self, tokens, given):
        """Return which houses each item can have (B, items, most), and constraints, as the solver
        takes them.

        Houses and items that a puzzle does not use are where their numbers say."""
        house = tokens[:, self.n_clues :]
        exists = np.arange(self.most) < house.max(1)[:, None]  # (B, most)
        number = np.eye(self.most, dtype=bool)
        can = np.tile(number, (len(tokens), self.most + 1, 1))
        row, blank = (~given[:, self.n_clues :]).nonzero()
        can[row, self.most + blank] = exists[row]
        clues = self.said[tokens[:, : self.n_clues]]
        return can, *constraints(clues, self.most, self.most)


def constraints(clues, n, k):
    """Return the units of n houses and k attributes, and what narrows by clues (B, M, 3), see
    propagate."""
    relation, a, b = clues.transpose(2, 0, 1)
    holds = relations(n)[relation]  # (B, M, n, n)
    # A clue is two: each item has no house with which no house of the other item goes
    holds = np.concatenate([holds, holds.swapaxes(2, 3)], 1)
    one = np.concatenate([a, b], 1)
    other = np.concatenate([b, a], 1)
    is_one = one[:, None] == np.arange((k + 1) * n)[:, None]
    is_one = is_one.astype(np.float32)  # (B, items, 2 M)

    def narrow(can, who):
        there = np.take_along_axis(can, other[who, :, None], 1).astype(np.float32)
        is_alone = holds[who] @ there[..., None] == 0  # (B, 2 M, n, 1)
        n_against = is_one[who] @ is_alone[..., 0].astype(np.float32)
        return can & (n_against == 0)

    units = np.kron(np.eye(k + 1), np.ones(n)).astype(np.float32)
    return units, narrow


def relations(n):
    """Return which relation holds between two houses (relations, n, n) float32; 0 always does."""
    step = np.arange(n) - np.arange(n)[:, None]
    holds = np.stack([step > -n, step == 0, step == 1, abs(step) == 1, step > 0])
    return holds.astype(np.float32)


def random_houses(n_puzzles, n, k, rng):
    """Return the house of every item of random solutions (puzzles, (k + 1) n)."""
    values = rng.random((n_puzzles, k, n)).argsort(2)
    return np.insert(values, 0, range(n), axis=1).reshape(n_puzzles, -1)


def true_clues(house, n, n_clues, rng):
    """Return true clues (B, n_clues, 3) about houses (B, items), of random pairs.

    The rarer relations are preferred."""
    B, items = house.shape
    pair = rng.integers(items, size=(2, B, 4 * n_clues))
    here, there = np.take_along_axis(house[None], pair, 2)
    pair = np.where(here > there, pair[::-1], pair)
    step = abs(there - here)

    # What the clue says of two items
    choice = rng.random(step.shape)
    first_that_holds = [step == 0, step > 1, choice < 0.4, choice < 0.8]
    relation = np.select(first_that_holds, [SAME, SOMEWHERE, BEFORE, NEXT], SOMEWHERE)
    turned = (relation == NEXT) & (rng.random(step.shape) < 0.5)  # says nothing of the side
    pair = np.where(turned, pair[::-1], pair)

    # Which clues are good: a house stands in `=` alone
    is_rare = choice < 0.3
    attribute = pair // n
    fits = np.where(attribute.min(0) > 0, is_rare | (step < 2), is_rare & (step == 0))
    good = fits & (attribute[0] != attribute[1])
    return first_of(np.stack([relation, *pair], 2), good, n_clues)


def first_of(clues, kept, n_clues):
    """Return the first n_clues of clues (B, M, 3) that are kept; if there are fewer, 0 behind
    them."""
    front = (~kept).argsort(1, kind='stable')[:, :n_clues, None]
    return np.take_along_axis(clues * kept[:, :, None], front, 1)
