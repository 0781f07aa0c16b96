"""Which tokens may follow which, so that a text matches a pattern?

outlines-core makes an automaton over bytes of a regular expression, in a process of its own. Every
token leads from a state to another by its bytes, and tokens that lead from each state to the same
one are a class."""

import functools
import subprocess
import sys
from dataclasses import dataclass

import numpy as np

from anyorder.extras.patterns import build
from anyorder.extras.patterns.spelled import spelled
from anyorder.extras.patterns.syntax import why

MOST_CELLS = 1 << 24  # states times classes of a table, 128 MB


@dataclass(frozen=True, eq=False)
class Table:
    """A deterministic automaton over the tokens of a tokenizer: it accepts the texts, as tokens in
    any division, that match a pattern.

    next     (S, C) int64: the state behind each state and class of tokens, -1 where no text matches
    final    (S,) bool: whether a text may end in a state
    classes  (n_tokens,) int64: the class of each token. Tokens that are no text, as the end of one,
             lead to -1 from everywhere
    start    the first state
    pattern  the Pattern that it is of

    No two states accept the same, and from each of them a text can be completed."""

    next: np.ndarray
    final: np.ndarray
    classes: np.ndarray
    start: int
    pattern: object

    @functools.cached_property
    def edges(self):
        """(2, n): the pairs of states that some token leads from and to."""
        sources, classes = np.nonzero(self.next >= 0)
        return np.unique(np.stack([sources, self.next[sources, classes]]), axis=1)

    def ends(self, tokens):
        """Return (n + 1,) bool: whether some text that matches has the first 0, 1, ... n of these
        tokens, -1 in blanks."""
        sources, targets = self.edges
        reached = np.zeros(len(self.next), bool)
        reached[self.start] = True
        found = [(reached & self.final).any()]
        for token in tokens:
            if token < 0:
                behind = targets[reached[sources]]
            else:
                behind = self.next[reached, self.classes[token]]
            reached = np.zeros(len(self.next), bool)
            reached[behind[behind >= 0]] = True
            found.append((reached & self.final).any())
        return np.array(found)


@functools.lru_cache(64)
def table_of(pattern, tokenizer):
    """Return the Table of a Pattern over the tokens of a tokenizer.

    Raises ValueError where the tokens spell no text that matches, and where the table is too
    large."""
    numbers = np.frombuffer(built(pattern), np.int32).reshape(-1, 257).astype(np.int64)
    by_bytes, end = np.split(numbers, [256], 1)
    of_bytes, byte_classes = merged_columns(by_bytes)
    final = end[:, 0] >= 0

    # A state more, in which nothing has been read: a token may be spelled otherwise there
    tokens, first = spelled(tokenizer, pattern.within)
    found, classes = walk(of_bytes, byte_classes, [*tokens, *first], pattern)
    classes, of_first = np.split(classes, 2)
    states = found[0, of_first]
    kept, number = distinct(np.column_stack([classes, states]))
    found = np.vstack([found[:, classes[kept]], states[kept]])
    found, start, final = minimal(found, len(of_bytes), np.append(final, final[0]))
    if start < 0:
        raise ValueError(
            f'the tokens of {tokenizer.name} spell no text that matches {pattern}: write a pattern '
            'that some text fits, in the letters of the vocabulary'
        )
    found, merged = merged_columns(found)
    return Table(found, final, merged[number], start, pattern)


def built(pattern):
    """Return the bytes that build.py answers to a Pattern."""
    too_large = ValueError(
        f'{pattern} is too large: its automaton takes more than {build.MOST_SECONDS} s, '
        f'{build.MOST_BYTES // 10**9} GB or {build.MOST_STATES:,} states; write shorter counts, '
        'or fewer alternatives behind what repeats'
    )
    try:
        done = subprocess.run(
            [sys.executable, build.__file__],
            input=pattern.text.encode(),
            capture_output=True,
            timeout=build.MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise too_large from None
    if not done.returncode:
        return done.stdout
    said = done.stderr.decode(errors='replace')
    _, is_refused, reason = said.partition('\nValueError: ')
    if is_refused:
        raise ValueError(f'{pattern} cannot be read: {why(pattern.text, reason)}')
    last = said.strip().rpartition('\n')[2]
    if done.returncode < 0 or 'MemoryError' in last or 'PanicException' in last:
        raise too_large
    raise ValueError(f'patterns need outlines-core ({last}): pip install outlines-core')


def minimal(behind, start, final):
    """Return (next, start, final) of the smallest automaton that accepts the same.

    States that accept the same texts are one, found by Moore's rounds: two states differ if one of
    them is final, or if a class leads them to states that differ. States that accept nothing are
    -1, the start too, and those that nothing reaches are left out."""
    to = np.pad(behind, ((0, 1), (0, 0)), constant_values=-1)  # the dead state is the last one
    final = np.append(final, False)

    # groups of states that differ in nothing yet
    group = final.astype(np.int64)
    n_groups = 0
    while n_groups <= group.max():
        n_groups = group.max() + 1
        first, group = distinct(np.column_stack([group, group[to]]))

    kept = np.setdiff1d(group[reached(to, start)], group[-1])
    number = np.full(n_groups, -1)
    number[kept] = np.arange(len(kept))
    first = first[kept]
    return number[group[to[first]]], int(number[group[start]]), final[first]


def distinct(rows):
    """Return (numbers of rows that differ from each other, which of these each row (n,) is), of
    whole numbers (n, k), compared by 64 bits of their sums."""
    weights = np.random.default_rng(0).integers(-(2**62), 2**62, rows.shape[1])
    _, first, number = np.unique(rows @ weights, return_index=True, return_inverse=True)
    return first, number


def reached(to, start):
    """Return the states that some text leads to from the start."""
    found = np.zeros(len(to), bool)
    newest = np.array([start])
    while newest.size:
        found[newest] = True
        behind = np.unique(to[newest])
        newest = behind[~found[behind]]
    return np.flatnonzero(found)


def merged_columns(behind):
    """Return (next (S, C), class of each column): equal columns become one."""
    first, classes = distinct(behind.T)
    return behind[:, first], classes


def walk(of_bytes, byte_classes, tokens, pattern):
    """Return (next (S, C), the class of each token): where the bytes of a token lead from each
    state.

    of_bytes      (S, B): the state behind a state and a class of bytes
    byte_classes  (256,): the class of each byte
    tokens        [bytes] of each token, None of those that are no text

    All tokens are read side by side, a byte at a time. Those that have led each state to the same
    one so far are together in a column (S,), of which there are few."""
    n_states, n_letters = of_bytes.shape
    step = np.pad(of_bytes, ((0, 1), (0, 0)), constant_values=-1).T.astype(np.int32)
    columns = {0: np.arange(n_states, dtype=np.int32), 1: np.full(n_states, -1, np.int32)}
    number = {column.tobytes(): i for i, column in columns.items()}

    @functools.cache
    def behind(column, letter):
        found = step[letter][columns[column]]
        if len(columns) * n_states > MOST_CELLS:
            raise ValueError(
                f'{pattern} is too large for these tokens: {n_states:,} states, and more than '
                f'{len(columns):,} classes of tokens; write a simpler pattern'
            )
        i = number.setdefault(found.tobytes(), len(number))
        columns[i] = found
        return i

    at = np.array([int(text is None) for text in tokens])  # what is no text leads nowhere
    texts = [text or b'' for text in tokens]
    letters = byte_classes[np.frombuffer(b''.join(texts), np.uint8)]
    sizes = np.array([*map(len, texts)])
    starts = np.cumsum(sizes) - sizes
    for n in range(sizes.max()):
        left = np.flatnonzero(sizes > n)
        steps = at[left] * n_letters + letters[starts[left] + n]
        steps, inverse = np.unique(steps, return_inverse=True)
        found = [behind(*divmod(one, n_letters)) for one in steps.tolist()]
        at[left] = np.array(found)[inverse]
    used, classes = np.unique(at, return_inverse=True)
    return np.stack([*columns.values()])[used].T, classes
