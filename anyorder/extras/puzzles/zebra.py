"""The rules of Zebra: n houses in a row and k attributes, of n values, one in each house.

n and k are 3 or more."""

import itertools

import numpy as np

from anyorder.extras.puzzles.solver import blanks_right, count_solutions

# relations between two items, and how a clue shows them
SAME = 1
BEFORE = 2
NEXT = 3
SOMEWHERE = 4
SIGNS = ' =<~-'
BOTH_WAYS = '=~'  # a=b is b=a


def zebra_names(n):
    """Return the letters of n houses and of the n values of each of n attributes, n at most 6."""
    attributes = ('123456', 'ABCDEF', 'abcdef', 'GHIJKL', 'ghijkl', 'MNOPQR', 'mnopqr')
    return ''.join(names[:n] for names in attributes[: n + 1])


def zebra_texts(n):
    """Return the texts of all tokens: nothing, the houses, and all clues.

    A=3 and A=b say the same house, A<b right before, A~b next to, A-b somewhere before."""
    names = zebra_names(n)
    houses = names[:n]
    items = list(enumerate(names[n:]))
    texts = ['.', *houses]
    for _, a in items:
        texts += [f'{a}={house}' for house in houses]
    for relation, (i, a), (j, b) in itertools.product(SIGNS[1:], items, items):
        is_turned = i // n > j // n and relation not in BOTH_WAYS
        if i // n < j // n or is_turned:
            texts.append(a + relation + b)
    return texts


class Zebra:
    """Rules, generator and solver, for many puzzles at once.

    A puzzle is clues `relation item item`, each one token, then the house of every item, attribute
    by attribute. An item is a value of an attribute; attribute 0 is the house's number, so that
    `= item house` says where something is. Relations: 1 in the same house, 2 right before, 3 next
    to, 4 somewhere before. Tokens: 0 is padding, which is given; 1 to `most` are the houses; then
    come all clues there are. Puzzles have up to `largest` houses and attributes, by default `most`.
    """

    def __init__(self, most, largest=None):
        self.most = most  # houses and attributes
        self.n_clues = most * (most - 1)  # in a row of tokens
        self.largest = most if largest is None else largest
        if not 3 <= self.largest <= most:
            raise ValueError(f'largest must be 3 to {most} houses, got {self.largest}')
        self.clue = clue_tokens(most)

    check_answer = staticmethod(blanks_right)

    def key(self, tokens):
        """Return what two splits may not share: the houses of all items."""
        return tokens[:, self.n_clues :]

    def make(self, n_rows, rng, wanted, n_variants=1):
        """Return (tokens, given), each (n, n_clues + most^2), of puzzles that `wanted` lets pass.

        It is asked of the solutions of about n_rows. All sizes from 3 to `largest` houses and
        attributes are equally frequent."""
        numbers = range(3, self.largest + 1)
        sizes = [(n, k) for n in numbers for k in numbers]
        n_each = -(-n_rows // len(sizes))
        parts = [self.make_size(n_each, n, k, rng, wanted, n_variants) for n, k in sizes]
        tokens = np.concatenate(parts)
        is_clue = np.arange(tokens.shape[1]) < self.n_clues
        given = is_clue | (tokens == 0)
        shuffled = rng.permutation(len(tokens))
        return tokens[shuffled], given[shuffled]

    def make_size(self, n_rows, n, k, rng, wanted, n_variants=1):
        """Return tokens (rows, N) of n houses and k attributes.

        Attributes and values have other names in each variant."""
        n_puzzles = -(-n_rows // n_variants)
        base = np.arange(n_puzzles).repeat(n_variants)  # (rows,) the puzzle's number
        house = random_houses(n_puzzles, n, k, rng)  # (puzzles, (k + 1) n)
        name = self.random_names(len(base), n, k, rng)  # (rows, (k + 1) n)
        tokens = self.solution_tokens(house[base], name)
        keep = wanted(tokens)

        # Clues of the puzzles of which a variant is wanted
        needed = np.unique(base[keep])
        true = true_clues(house[needed], n, 3 * n * k, rng)
        good, clues = self.dig(true, n, k)
        number = np.full(n_puzzles, -1)  # of a puzzle among those with clues
        number[needed[good]] = np.arange(good.sum())
        keep &= number[base] >= 0

        tokens = tokens[keep]
        clues = clues[number[base[keep]]]
        tokens[:, : self.n_clues] = self.named_clues(clues, name[keep])
        return tokens

    def random_names(self, n_rows, n, k, rng):
        """Return random names (rows, (k + 1) n) of items: their numbers among all items."""
        attribute = rng.random((n_rows, k)).argsort(1) + 1
        attribute = np.pad(attribute, ((0, 0), (1, 0)))  # 0, the houses, stays
        value = rng.random((n_rows, k + 1, n)).argsort(2)
        value[:, 0] = np.arange(n)
        return (self.most * attribute[:, :, None] + value).reshape(n_rows, -1)

    def solution_tokens(self, house, name):
        """Return tokens (rows, N) without clues of the house and the name of every item."""
        n_columns = self.n_clues + self.most * (self.most + 1)
        tokens = np.zeros((len(house), n_columns), int)
        np.put_along_axis(tokens, self.n_clues + name, house + 1, 1)
        numbers = np.arange(self.n_clues, self.n_clues + self.most)
        return np.delete(tokens, numbers, 1)  # houses are where they are

    def named_clues(self, clues, name):
        """Return the tokens (rows, n_clues) of clues (rows, n_clues, 3) about named items."""
        operands = clues[:, :, 1:].reshape(len(name), -1)
        operands = np.take_along_axis(name, operands, 1).reshape(len(name), -1, 2)
        return self.clue[clues[:, :, 0], operands[:, :, 0], operands[:, :, 1]]

    def dig(self, clues, n, k):
        """Return (which puzzles of clues (B, M, 3) have one solution, the clues that they need)."""
        good = self.is_solved(clues, n, k)
        clues = clues[good]

        # The fewest first clues that are enough
        low = np.zeros(len(clues), int)
        high = np.full(len(clues), clues.shape[1])
        while (high - low > 1).any():
            middle = (low + high) // 2
            enough = self.is_solved(first_clues(clues, middle), n, k)
            low = np.where(enough, low, middle)
            high = np.where(enough, middle, high)
        clues = first_clues(clues, high)[:, : high.max()]

        # Then clue by clue
        for m in range(clues.shape[1]):
            rows = np.flatnonzero(clues[:, m, 0])
            trial = clues[rows]
            trial[:, m, 0] = 0
            fine = self.is_solved(trial, n, k)
            clues[rows[fine]] = trial[fine]

        # What is left stands in front, in n_clues columns
        is_none = clues[:, :, 0] == 0
        order = np.argsort(is_none, axis=1, kind='stable')
        clues = np.take_along_axis(clues, order[:, :, None], 1)
        fits = (clues[:, :, 0] > 0).sum(1) <= self.n_clues
        good[good] = fits
        n_missing = max(0, self.n_clues - clues.shape[1])
        padded = np.pad(clues[fits], ((0, 0), (0, n_missing), (0, 0)))
        return good, padded[:, : self.n_clues]

    def is_solved(self, clues, n, k):
        """Return which puzzles have one solution (B,)."""
        count, _ = self.solve(clues, n, k)
        return count == 1

    def solve(self, clues, n, k):
        """Return (number of solutions, counted up to 2, house of every item (B, (k + 1) n)).

        clues is (B, M, 3): a relation and two items a n + v, of attribute a and value v; relation 0
        is no clue."""
        can = np.ones((len(clues), (k + 1) * n, n), bool)
        can[:, :n] = np.eye(n, dtype=bool)
        relation = clues[:, :, 0]
        a = clues[:, :, 1]
        b = clues[:, :, 2]
        holds = relations(n)[relation]  # (B, M, n, n)
        item = np.arange(can.shape[1])[:, None]
        of_a = (a[:, None, :] == item).astype(np.float32)  # (B, items, M)
        of_b = (b[:, None, :] == item).astype(np.float32)

        def narrow(can, who):
            here = np.take_along_axis(can, a[who, :, None], 1).astype(np.float32)
            there = np.take_along_axis(can, b[who, :, None], 1).astype(np.float32)
            # houses that an item of a clue cannot have: no house of the other item goes with them
            lone_a = (holds[who] @ there[..., None])[..., 0] == 0
            lone_b = (here[:, :, None] @ holds[who])[:, :, 0] == 0
            n_against = of_a[who] @ lone_a.astype(np.float32)
            n_against = n_against + of_b[who] @ lone_b.astype(np.float32)
            return can & (n_against == 0)

        units = np.kron(np.eye(k + 1), np.ones(n)).astype(np.float32)
        return count_solutions(can, units, narrow)


def clue_tokens(most):
    """Return the token of every clue (relations, names, names); 0 is none."""
    names = zebra_names(most)
    found = np.zeros((len(SIGNS), len(names), len(names)), int)
    for token, text in enumerate(zebra_texts(most)):
        if len(text) == 3:
            a, sign, b = text
            i = names.index(a)
            j = names.index(b)
            of_sign = found[SIGNS.index(sign)]
            of_sign[i, j] = token
            if sign in BOTH_WAYS:
                of_sign[j, i] = token
    return found


def relations(n):
    """Return which relation holds between two houses (relations, n, n) float32; 0 always does."""
    i = np.arange(n)[:, None]
    j = np.arange(n)
    always = i < n + j
    holds = np.stack([always, i == j, i + 1 == j, abs(i - j) == 1, i < j])
    return holds.astype(np.float32)


def first_clues(clues, n):
    """Return clues (B, M, 3) of which only the first n (B,) are left."""
    is_first = np.arange(clues.shape[1]) < n[:, None]
    return np.where(is_first[:, :, None], clues, 0)


def random_houses(n_puzzles, n, k, rng):
    """Return the house of every item of random solutions (puzzles, (k + 1) n)."""
    numbers = np.broadcast_to(np.arange(n), (n_puzzles, 1, n))
    values = rng.random((n_puzzles, k, n)).argsort(2)
    house = np.concatenate([numbers, values], 1)  # (puzzles, k + 1, n)
    return house.reshape(n_puzzles, -1)


def true_clues(house, n, n_clues, rng):
    """Return true clues (B, n_clues, 3) about houses (B, items), of random pairs.

    The rarer relations are preferred."""
    B, items = house.shape
    a, b = rng.integers(items, size=(2, B, 4 * n_clues))
    here = np.take_along_axis(house, a, 1)
    there = np.take_along_axis(house, b, 1)
    a, b = swapped(here > there, a, b)
    step = abs(there - here)

    # What the clue says of two items
    choice = rng.random(a.shape)
    first_that_holds = [step == 0, step > 1, choice < 0.4, choice < 0.8]
    relation = np.select(first_that_holds, [SAME, SOMEWHERE, BEFORE, NEXT], SOMEWHERE)
    turned = (relation == NEXT) & (rng.random(a.shape) < 0.5)  # says nothing of the side
    a, b = swapped(turned, a, b)

    # Which clues are good
    is_rare = choice < 0.3
    differ = a // n != b // n  # in their attributes
    n_numbers = (a < n).astype(int) + (b < n)  # of houses, which stand in `=` alone, one at most
    only_same = (n_numbers == 1) & (step == 0) & is_rare
    good = differ & ((step < 2) | is_rare) & ((n_numbers == 0) | only_same)
    first = (~good).argsort(1, kind='stable')[:, :n_clues]
    relation = np.where(good, relation, 0)
    return np.stack([np.take_along_axis(x, first, 1) for x in (relation, a, b)], 2)


def swapped(where, a, b):
    """Return the two with their values exchanged where it is said."""
    return np.where(where, b, a), np.where(where, a, b)
