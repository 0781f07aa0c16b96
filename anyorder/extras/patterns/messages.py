"""What do the blanks of a span say of one of them? Messages between the states of a pattern.

A pattern is an automaton whose letters are classes of tokens. Let P_i(c) be the mass of class c at
place i of a span: the probability that the law of this place gives to its tokens, and for a known
token 1 for its class alone. Then

    M_i(s, t) = sum of P_i(c) over the classes c that lead from state s to t
    F_i = start M_0 ... M_{i-1}        B_i = M_i ... M_{N-1} final        Z = F_N final

and the law of place i given that the span matches is p_i(v) W_i(class of v) / Z with the weights

    W_i(c) = sum_s F_i(s) B_{i+1}(s after c)

which say nothing of P_i itself. These are the messages of hidden Markov models. Dang and Ermon
2026, arXiv 2607.07026, draw the tokens of a step exactly by the products of such matrices.

All numbers are kept as logarithms, so that thousands of places neither overflow nor underflow. A
message goes from place to place, which is many small steps: they are made on the host."""

import copy

import numpy as np

BLOCK = 2**17  # numbers that are worked on at a time, so that the cache of a CPU holds them
LOWEST = np.finfo(np.float64).min


class Messages:
    """The messages of n spans of at most L places that have one table of states.

    They go as far as somebody asks, and are kept where nothing before them has changed: in any
    order of places a span is swept from the last place that changed to the one that is asked.

    logs      (n, L, C) log P, up to a number of each place
    forward   (n, L + 1, S + 1) log F, of which those up to place `known_to` (n,) are known
    backward  (n, L + 1, S + 1) log B, of which those from place `known_from` (n,) on are known

    The last state is none: nothing leads there, and from there nothing matches."""

    def __init__(self, table, lengths, logs):
        """Prepare the messages of spans that have so many places (n,)."""
        S, n_classes = table.next.shape
        source, of_class = np.nonzero(table.next >= 0)
        target = table.next[source, of_class]
        self.onward = Sums(target, S + 1, source, of_class, S)
        self.back = Sums(source, S + 1, target, of_class, S)
        self.between = Sums(of_class, n_classes, source, target, S)
        n, n_places, _ = logs.shape
        self.start = table.start
        self.logs = logs
        self.forward = np.full((n, n_places + 1, S + 1), -np.inf)
        self.backward = self.forward.copy()
        self.forward[:, 0, table.start] = 0
        self.backward[np.arange(n), lengths, :S] = np.where(table.final, 0, -np.inf)
        self.known_to = np.zeros(n, int)
        self.known_from = lengths.copy()

    def put(self, span, place, logs):
        """Put log P (m, C) at the places (m,) of the spans (m,)."""
        self.logs[span, place] = logs
        np.minimum.at(self.known_to, span, place)
        np.maximum.at(self.known_from, span, place + 1)

    def log_weights(self, span, place):
        """Return log W (m, C) of the places (m,) of the spans (m,); -inf for classes with which
        nothing matches."""
        last = self.known_to.copy()
        np.maximum.at(last, span, place)
        first = self.known_from.copy()
        np.minimum.at(first, span, place + 1)
        self.sweep(self.onward, self.forward, self.known_to, last, 1)
        self.sweep(self.back, self.backward, self.known_from, first, -1)
        n_blocks = 1 + len(span) * len(self.between.ends) // BLOCK
        found = []
        for one, at in np.array_split(np.stack([span, place]), n_blocks, 1):
            before = self.forward[one, at]
            behind = self.backward[one, at + 1]
            with np.errstate(divide='ignore'):
                found.append(self.between(before, behind))
        return np.concatenate(found)

    def log_z(self):
        """Return log Z (n,), -inf where nothing matches."""
        self.sweep(self.back, self.backward, self.known_from, 0, -1)
        return self.backward[:, 0, self.start]

    def sweep(self, sums, messages, known, to, step):
        """Find the messages from the places `known` (n,) on up to or down to places, by steps of 1
        or -1, those that are left side by side. They are known then."""
        passed = min(step, 0)  # the place between two messages has the number of the first one
        with np.errstate(divide='ignore'):
            while (left := np.flatnonzero(known != to)).size:
                here = known[left]
                found = messages[left, here]
                for _ in range(np.abs(to - known)[left].min()):  # as far as all of them go
                    found = sums(found, self.logs[left, here + passed])
                    here = here + step
                    messages[left, here] = found
                known[left] = here

    def take(self, spans):
        """Return the same of these spans (n',), which may repeat."""
        names = ('logs', 'forward', 'backward', 'known_to', 'known_from')
        return taken(self, names, spans)


def taken(some, names, numbers):
    """Return a copy that has these tables for these numbers alone."""
    found = copy.copy(some)
    for name in names:
        setattr(found, name, getattr(some, name)[numbers])
    return found


class Sums:
    """log sum exp(x(e) + y(e)) of all edges e that have an end in common.

    ends    (E,) which of the n_ends sums an edge belongs to, in order
    x, y    (E,) which numbers it has

    Each sum has an edge more, which has the number `none` of x: log 0."""

    def __init__(self, ends, n_ends, x, y, none):
        every = np.arange(n_ends)
        more = every, np.full(n_ends, none), np.zeros(n_ends, int)
        edges = np.hstack([[ends, x, y], more])
        self.ends, self.x, self.y = edges[:, edges[0].argsort(kind='stable')]
        self.first = np.searchsorted(self.ends, every)

    def __call__(self, x, y):
        """Return (m, n_ends) of numbers x and y (m, ...)."""
        found = x.take(self.x, 1)
        found += y.take(self.y, 1)
        top = np.maximum.reduceat(found, self.first, 1)
        np.maximum(top, LOWEST, out=top)
        found -= top.take(self.ends, 1)
        np.exp(found, out=found)
        sums = np.add.reduceat(found, self.first, 1)
        np.log(sums, out=sums)
        sums += top
        return sums
