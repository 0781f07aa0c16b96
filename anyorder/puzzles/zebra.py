"""The rules of Zebra: n houses in a row and k attributes, of n values, one in each house; n and k are 3 or more."""

import numpy as np

from anyorder.puzzles.solver import blanks_right, count_solutions


def zebra_names(n):
    """Letters of a Zebra puzzle's n houses and of the n values of each of its n attributes, n at most 6."""
    attributes = ('123456', 'ABCDEF', 'abcdef', 'GHIJKL', 'ghijkl', 'MNOPQR', 'mnopqr')
    return ''.join(names[:n] for names in attributes[: n + 1])


def zebra_texts(n):
    """The texts of all tokens: nothing, the houses, and all clues. A=3 and A=b say the same house, A<b right before,
    A~b next to, A-b somewhere before."""
    houses, items = zebra_names(n)[:n], list(enumerate(zebra_names(n)[n:]))
    return [
        '.',
        *houses,
        *(f'{a}={house}' for _, a in items for house in houses),
        *(
            f'{a}{relation}{b}'
            for relation in '=<~-'
            for i, a in items
            for j, b in items
            if i // n < j // n or relation in '<-' and i // n > j // n
        ),
    ]


class Zebra:
    """Clues `relation item item`, each one token, then the house of every item, attribute by attribute. An item is a
    value of an attribute; attribute 0 is the house's number, so that `= item house` says where something is. Relations:
    1 in the same house, 2 right before, 3 next to, 4 somewhere before. Tokens: 0 is padding, which is given; 1 to
    `most` are the houses; then come all clues there are. Puzzles have up to `largest` houses and attributes, by default
    `most`."""

    def __init__(self, most, largest=None):
        self.most = self.columns = most  # houses and attributes
        self.n_clues = most * (most - 1)  # in a row of tokens
        self.largest = most if largest is None else largest
        if not 3 <= self.largest <= most:
            raise ValueError(f'largest must be 3 to {most} houses, got {self.largest}')
        names, ids = zebra_names(most), {text: i for i, text in enumerate(zebra_texts(most))}

        def token(a, sign, b):  # 0 is none
            return ids.get(a + sign + b, ids.get(b + sign + a, 0) if sign in '=~' else 0)

        # (relations, names, names)
        self.clue = np.array(
            [[[token(a, sign, b) for b in names] for a in names] for sign in ' =<~-']
        )

    def solve(self, clues, n, k):
        """(number of solutions, counted up to 2; (B, (k + 1) n) house of every item) of clues (B, M, 3). A clue is a
        relation and two items a n + v, of attribute a and value v; relation 0 is no clue."""
        can = np.ones((len(clues), (k + 1) * n, n), bool)
        can[:, :n] = np.eye(n, dtype=bool)
        i, j = np.arange(n)[:, None], np.arange(n)
        holds = np.stack(
            [i < n + j, i == j, i + 1 == j, abs(i - j) == 1, i < j]
        )  # relation 0 always holds
        holds = holds.astype(np.float32)[clues[:, :, 0]]  # (B, M, n, n)
        at = np.arange(can.shape[1])[:, None]
        of_a, of_b = (
            (clues[:, None, :, i] == at).astype(np.float32) for i in (1, 2)
        )  # (B, items, M)

        def narrow(can, who):
            here, there = (
                np.take_along_axis(can, clues[who, :, i, None], 1).astype(np.float32)
                for i in (1, 2)
            )
            # houses that an item of a clue cannot have, as no house of the other item goes with them
            lone_a = (holds[who] @ there[..., None])[..., 0] == 0
            lone_b = (here[:, :, None] @ holds[who])[:, :, 0] == 0
            return can & (
                of_a[who] @ lone_a.astype(np.float32) + of_b[who] @ lone_b.astype(np.float32) == 0
            )

        return count_solutions(can, np.kron(np.eye(k + 1), np.ones(n)).astype(np.float32), narrow)

    def clues(self, house, n, k, n_clues, rng):
        """(B, n_clues, 3) true clues about house (B, (k + 1) n), of random pairs; the rarer relations are preferred."""
        B, items = house.shape
        a, b = rng.integers(items, size=(2, B, 4 * n_clues))
        here, there = (np.take_along_axis(house, x, 1) for x in (a, b))
        a, b, here, there = (
            np.where(here <= there, x, y) for x, y in ((a, b), (b, a), (here, there), (there, here))
        )
        choice, step = rng.random(a.shape), there - here
        relation = np.where(choice < 0.4, 2, np.where(choice < 0.8, 3, 4))  # for neighbours
        relation = np.where(step == 0, 1, np.where(step > 1, 4, relation))
        turned = (relation == 3) & (rng.random(a.shape) < 0.5)  # next to says nothing of the side
        a, b = np.where(turned, b, a), np.where(turned, a, b)
        good = (a // n != b // n) & ((step < 2) | (choice < 0.3)) & ((a >= n) | (b >= n))
        good &= ((a >= n) & (b >= n)) | (step == 0) & (choice < 0.3)  # house numbers only in `=`
        first = (~good).argsort(1, kind='stable')[:, :n_clues]
        return np.stack(
            [
                np.where(
                    np.take_along_axis(good, first, 1), np.take_along_axis(relation, first, 1), 0
                ),
                *(np.take_along_axis(x, first, 1) for x in (a, b)),
            ],
            2,
        )

    def dig(self, clues, n, k):
        """(which puzzles of clues (B, M, 3) have one solution; the clues that such a puzzle cannot do without)."""
        good = self.solve(clues, n, k)[0] == 1
        clues = clues[good]
        low, high, m = (
            np.zeros(len(clues), int),
            np.full(len(clues), clues.shape[1]),
            np.arange(clues.shape[1]),
        )
        while (high - low > 1).any():  # the fewest first clues that are enough
            middle = (low + high) // 2
            enough = self.solve(np.where((m < middle[:, None])[:, :, None], clues, 0), n, k)[0] == 1
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        clues = np.where((m < high[:, None])[:, :, None], clues, 0)[:, : high.max()]
        for m in range(clues.shape[1]):  # then clue by clue
            rows = np.flatnonzero(clues[:, m, 0])
            trial = clues[rows]
            trial[:, m, 0] = 0
            fine = self.solve(trial, n, k)[0] == 1
            clues[rows[fine]] = trial[fine]
        last = np.argsort(clues[:, :, 0] == 0, axis=1, kind='stable')
        clues = np.take_along_axis(clues, last[:, :, None], 1)
        fits = (clues[:, :, 0] > 0).sum(1) <= self.n_clues
        good[good] = fits
        return good, np.pad(
            clues[fits], ((0, 0), (0, max(0, self.n_clues - clues.shape[1])), (0, 0))
        )[:, : self.n_clues]

    def make(self, n_rows, rng, wanted, n_variants=1):
        """(tokens, given), each (n, n_clues + most^2): the puzzles, among about n_rows, whose solutions `wanted` lets
        pass. All sizes from 3 to `largest` houses and attributes are equally frequent."""
        sizes = [(n, k) for n in range(3, self.largest + 1) for k in range(3, self.largest + 1)]
        n_each = -(-n_rows // len(sizes))
        tokens = np.concatenate(
            [self.make_size(n_each, n, k, rng, wanted, n_variants) for n, k in sizes]
        )
        given = (np.arange(tokens.shape[1]) < self.n_clues) | (tokens == 0)
        shuffled = rng.permutation(len(tokens))
        return tokens[shuffled], given[shuffled]

    def make_size(self, n_rows, n, k, rng, wanted, n_variants=1):
        """(n, N) tokens of n houses and k attributes. Attributes and values have other names in each variant."""
        n_puzzles = -(-n_rows // n_variants)
        base = np.arange(n_puzzles).repeat(n_variants)  # (rows,) the puzzle's number
        numbers = np.broadcast_to(np.arange(n), (n_puzzles, 1, n))
        house = np.concatenate(
            [numbers, rng.random((n_puzzles, k, n)).argsort(2)], 1
        )  # (puzzles, k + 1, n)
        attribute = np.pad(
            rng.random((len(base), k)).argsort(1) + 1, ((0, 0), (1, 0))
        )  # 0, the houses, stays
        value = rng.random((len(base), k + 1, n)).argsort(2)
        value[:, 0] = np.arange(n)
        name = (self.most * attribute[:, :, None] + value).reshape(
            len(base), -1
        )  # (rows, (k + 1) n)
        tokens = np.zeros((len(base), self.n_clues + self.most * (self.most + 1)), int)
        np.put_along_axis(tokens, self.n_clues + name, house[base].reshape(name.shape) + 1, 1)
        numbers = np.arange(self.n_clues, self.n_clues + self.most)
        tokens = np.delete(tokens, numbers, 1)  # houses are where they are
        keep = wanted(tokens)
        needed = np.unique(base[keep])
        good, clues = self.dig(
            self.clues(house[needed].reshape(len(needed), -1), n, k, 3 * n * k, rng), n, k
        )
        number = np.full(n_puzzles, -1)
        number[needed[good]] = np.arange(good.sum())
        keep &= number[base] >= 0
        tokens, name, clues = tokens[keep], name[keep], clues[number[base[keep]]]
        operands = np.take_along_axis(name, clues[:, :, 1:].reshape(len(name), -1), 1).reshape(
            len(name), -1, 2
        )
        tokens[:, : self.n_clues] = self.clue[clues[:, :, 0], operands[:, :, 0], operands[:, :, 1]]
        return tokens

    def key(self, tokens):
        """What two splits may not share: the houses of all items."""
        return tokens[:, self.n_clues :]

    check_answer = staticmethod(blanks_right)
