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

All numbers are kept as logarithms, so that thousands of places neither overflow nor underflow."""

import math

import torch

from anyorder.generation.plan import is_exact

# What a Tree has at most. On one thread of a CPU 8 spans of 256 places and 100 states took 17 ms
# for a step of one token and 1.1 s for new masses everywhere, and a Chain 92 ms and 0.3 s; with
# 150 states a Tree took 48 ms and 4.2 s, and a Chain 147 ms and 0.5 s
MOST_STATES = 100
MOST_BYTES = 2**29  # revision has eight times as many rows
BLOCK = 2**17  # numbers that a CPU works on at a time, so that its cache holds them
DEVICE_BLOCK = 2**26  # and a device, so that it has the memory
MOST_WRONG = math.exp(-300)  # shares of a row from here on say nothing, see log_product


def messages_of(to, start, final, inside):
    """Return the Messages of spans, a Tree unless they have too many states, see Messages."""
    n_places = 2 * inside.numel()
    if len(to) > MOST_STATES or n_places * len(to) ** 2 * to.itemsize > MOST_BYTES:
        return Chain(to, start, final, inside)
    return Tree(to, start, final, inside)


def at_a_time(matrix):
    """Return how many matrices like this one are worked on at a time."""
    block = DEVICE_BLOCK
    if is_exact(matrix.device):
        block = BLOCK
    return max(1, block // matrix.numel())


class Messages:
    """The messages of spans that have one table of states: of Tree or Chain, see `messages_of`.

    to      (S, C) the state after a state and a class, -1 is none
    start   (n, S) log weights of the states in which the spans start
    final   (n, S) log weights of the states in which they may end
    inside  (n, L) bool: the places of each span, which come first; what is behind them is empty

    All masses are 0 until they are put."""

    def __init__(self, to, start, final, inside):
        self.to = to
        self.start = start
        self.final = final
        self.inside = inside
        n_classes = to.size(1)
        self.masses = start.new_zeros(*inside.shape, n_classes)

    def put(self, span, place, masses):
        """Put masses (m, C) >= 0 at the places (m,) of the spans (m,), up to a factor of each."""
        self.masses[span, place] = masses
        self.forget(span, place)

    def forget(self, span, place):
        """Take note that the masses of these places are others now."""
        raise NotImplementedError

    def log_weights(self, span, place):
        """Return log W (m, C) of the places (m,) of the spans (m,), up to a number of each; -inf
        for classes with which nothing matches."""
        forward, backward = self.sides(span, place)
        size = at_a_time(self.to)
        parts = zip(forward.split(size), backward.split(size))
        return torch.cat([self.weights_between(*part) for part in parts])

    def weights_between(self, forward, backward):
        """Return log W (m, C) of log F and log B (m, S)."""
        nothing = backward.new_full((len(backward), 1), -torch.inf)
        after = torch.cat([backward, nothing], 1)[:, self.to]  # (m, S, C); -1 reads the last one
        return after.add_(forward.unsqueeze(2)).logsumexp(1)

    def sides(self, span, place):
        """Return log F and log B, (m, S) each, of the states before the places and after them."""
        raise NotImplementedError

    def log_z(self):
        """Return log Z (n,), -inf where nothing matches."""
        raise NotImplementedError

    def take(self, spans):
        """Return the same of these spans (n',), which may repeat."""
        taken = object.__new__(type(self))
        vars(taken).update(vars(self))
        for name in ('start', 'final', 'inside', 'masses'):
            setattr(taken, name, getattr(self, name)[spans])
        return taken


class Tree(Messages):
    """Products of matrices over halves, quarters and so on of the spans, in log_2 L levels.

    A place that changes renews one product a level; a place is asked by one vector a level. It
    keeps 16 L S^2 bytes a span.

    levels   [(n, L, S, S), (n, L / 2, S, S), ... (n, 2, S, S)] log products, of single places first
    changed  [(m,)] numbers n L + place of those whose masses are newer than their matrices

    A number shifted to the right by k bits is that of its product in level k."""

    def __init__(self, to, start, final, inside):
        n, n_places = inside.shape
        n_leaves = 1 << max(n_places - 1, 1).bit_length()  # two at least
        empty = inside.new_zeros(n, n_leaves - n_places)
        super().__init__(to, start, final, torch.cat([inside, empty], 1))
        S = len(to)
        self.edges = edges_of(to, start.dtype)
        self.identity = torch.eye(S, dtype=start.dtype, device=to.device).log()
        sizes = [n_leaves >> k for k in range(n_leaves.bit_length() - 1)]
        self.levels = [start.new_empty(n, size, S, S) for size in sizes]
        self.changed = [self.numbers()]
        self.all_sides = None

    def numbers(self):
        """Return the numbers of all places."""
        return torch.arange(self.inside.numel(), device=self.inside.device)

    def forget(self, span, place):
        self.changed.append(span * self.inside.size(1) + place)
        self.all_sides = None

    def take(self, spans):
        self.renew()
        taken = super().take(spans)
        taken.levels = [level[spans] for level in self.levels]
        taken.all_sides = None
        return taken

    def log_z(self):
        self.renew()
        forward = self.start
        for half in self.levels[-1].unbind(1):
            forward = (half + forward.unsqueeze(2)).logsumexp(1)
        return (forward + self.final).logsumexp(1)

    def renew(self):
        """Renew the products of all that changed."""
        if self.changed:
            at = torch.cat(self.changed)
            self.changed = []
            self.renew_paths(at)

    def renew_besides(self, at):
        """Renew the products of what changed, but for the places with the numbers `at`. A CPU asks
        which."""
        changed = torch.cat([at[:0], *self.changed]).unique()
        waits = torch.isin(changed, at)
        self.changed = [changed[waits]]
        self.renew_paths(changed[~waits])

    def renew_paths(self, at):
        """Renew the products of the places with the numbers `at`; of a level as a whole where that
        is no more."""
        if len(at) >= self.inside.numel():
            at = self.numbers()
        leaves = self.levels[0].flatten(0, 1)
        for some in at.split(at_a_time(self.identity)):
            leaves[some] = self.leaves(some)
        for lower, upper in zip(self.levels, self.levels[1:]):
            at = at >> 1
            self.renew_level(lower.flatten(0, 1), upper.flatten(0, 1), at)

    def renew_level(self, lower, upper, at):
        """Write the products of pairs of `lower` into `upper` (n, S, S), in place, at the numbers
        `at`."""
        size = at_a_time(self.identity)
        pairs = lower.unflatten(0, (-1, 2))
        if len(at) < len(upper):
            for some in at.split(size):
                pair = pairs[some]
                upper[some] = log_product(pair[:, 0], pair[:, 1])
            return
        for pair, whole in zip(pairs.split(size), upper.split(size)):
            whole.copy_(log_product(pair[:, 0], pair[:, 1]))

    def leaves(self, at):
        """Return the log matrices (m, S, S) of the places with these numbers."""
        masses = self.masses.flatten(0, 1)[at]
        matrices = (masses @ self.edges).log_().view(-1, *self.identity.shape)
        inside = self.inside.flatten()[at]
        return torch.where(inside.view(-1, 1, 1), matrices, self.identity)

    def sides(self, span, place):
        at = span * self.inside.size(1) + place
        if is_exact(at.device) and len(span.unique()) == len(span):
            self.renew_besides(at)  # what stands at a place says nothing of its own sides
            return self.sides_of(span, at)
        n_changed = sum(map(len, self.changed))
        self.renew()
        n_levels = len(self.levels)
        n_asked = max(len(at), n_changed)  # who changes many places asks for many, part by part
        if self.all_sides is None and n_asked * n_levels > 2 * self.inside.numel():
            self.all_sides = self.sides_of_all()
        if self.all_sides is None:
            return self.sides_of(span, at)
        forward, backward = self.all_sides
        return forward[at], backward[at]

    def sides_of(self, span, at):
        """Return the sides of the places (m,) with numbers `at`: from the top down, each level
        passes through the one half in which the place is not."""
        forward = self.start[span]
        backward = self.final[span]
        for k in reversed(range(len(self.levels))):
            node = at >> k
            other = self.levels[k].flatten(0, 1)[node ^ 1]
            is_right = (node & 1 > 0).unsqueeze(1)
            through = torch.where(is_right.unsqueeze(2), other.mT, other)
            side = torch.where(is_right, forward, backward)
            side = (through + side.unsqueeze(1)).logsumexp(2)
            forward = torch.where(is_right, side, forward)
            backward = torch.where(is_right, backward, side)
        return forward, backward

    def sides_of_all(self):
        """Return the sides of all places, (n L, S) each: both halves of each level at once."""
        forward = self.start
        backward = self.final
        size = at_a_time(self.identity)
        for level in reversed(self.levels):
            pairs = level.unflatten(1, (-1, 2)).flatten(0, 1)  # (n pairs, 2, S, S)
            after_left = []
            before_right = []
            parts = zip(pairs.split(size), forward.split(size), backward.split(size))
            for pair, before, after in parts:
                after_left.append((pair[:, 0] + before.unsqueeze(2)).logsumexp(1))
                before_right.append((pair[:, 1] + after.unsqueeze(1)).logsumexp(2))
            forward = torch.stack([forward, torch.cat(after_left)], 1).flatten(0, 1)
            backward = torch.stack([torch.cat(before_right), backward], 1).flatten(0, 1)
        return forward, backward


def edges_of(to, dtype):
    """Return (C, S S) with 1 where a class leads from a state to another one."""
    S, n_classes = to.shape
    found = torch.zeros(n_classes, S, S + 1, dtype=dtype, device=to.device)
    found.scatter_(2, to.T.remainder(S + 1).unsqueeze(2), 1.0)  # -1 is S, which is cut
    return found[:, :, :S].flatten(1)


def log_product(left, right):
    """Return log(e^left e^right) of log matrices (m, S, S).

    Each row is divided by its largest number before the product, and no number becomes 0 that was
    above it: those below e^-340 are raised to that. So far below the largest one of its row a sum
    is wrong, and a CPU finds it anew. A device cannot ask whether there is one, and keeps it: what
    is possible stays so."""
    largest = right.amax(2, keepdim=True)  # (m, S, 1)
    weight = left + largest.mT
    top = finite(weight.amax(2, keepdim=True))
    shares = possible_exp(torch.stack([weight - top, right - finite(largest)]))
    sums = torch.bmm(shares[0], shares[1])
    found = sums.log().add_(top)
    if is_exact(left.device):
        at, row, column = ((sums < MOST_WRONG) & (sums > 0)).nonzero(as_tuple=True)
        if len(at):
            found[at, row, column] = (left[at, row] + right[at, :, column]).logsumexp(1)
    return found


def finite(x):
    """Return x with the lowest number in place of -inf."""
    return x.clamp(min=torch.finfo(x.dtype).min)


def possible_exp(x):
    """Return e^x, in place, of x from -inf to 0: 0 for -inf alone, so that two of them multiply."""
    lowest = math.log(torch.finfo(x.dtype).tiny) * 0.48
    possible = x > -torch.inf
    return x.clamp_(min=lowest).exp_().mul_(possible)


class Chain(Messages):
    """Vectors that are swept from place to place, for patterns of many states: 16 L S bytes a span.

    A sweep goes as far as somebody asks, from the first place that changed.

    source, target  (E,) the pairs of states that some class joins
    of_class        (edges,) classes that join pairs, and which pair each, `of_pair` (edges,)
    forward         [(n, S)] log F of the places 0 to L, as far as they are known
    backward        [(n, S)] log B of the places L to 0, as far as they are known
    kept_logs       {place: log_masses} of places whose masses have not changed since, if there is
                    room for all"""

    def __init__(self, to, start, final, inside):
        super().__init__(to, start, final, inside)
        S = len(to)
        state, of_class = (to >= 0).nonzero(as_tuple=True)
        pair, self.of_pair = (state * S + to[state, of_class]).unique(return_inverse=True)
        self.of_class = of_class
        self.source = pair // S
        self.target = pair % S
        self.forward = [start]
        self.backward = [final]
        self.kept_logs = {}

    def forget(self, span, place):
        n_places = self.inside.size(1)
        if not len(place):
            return
        first = 0
        last = n_places - 1
        if is_exact(place.device):
            first = int(place.min())
            last = int(place.max())
            for i in place.unique().tolist():
                self.kept_logs.pop(i, None)
        else:
            self.kept_logs.clear()
        del self.forward[first + 1 :]
        del self.backward[n_places - last :]

    def take(self, spans):
        taken = super().take(spans)
        taken.forward = [x[spans] for x in self.forward]
        taken.backward = [x[spans] for x in self.backward]
        taken.kept_logs = {}
        return taken

    def log_z(self):
        self.sweep_back(0)
        return (self.start + self.backward[-1]).logsumexp(1)

    def sides(self, span, place):
        n_places = self.inside.size(1)
        first = 0
        last = n_places - 1
        if is_exact(place.device):
            first = int(place.min())
            last = int(place.max())
        self.sweep_on(last)
        self.sweep_back(first + 1)
        number = place - first
        forward = torch.stack(self.forward[first : last + 1])
        after = n_places - 1 - last  # the backward messages begin with the last one
        backward = torch.stack(self.backward[after : n_places - first]).flip(0)
        return forward[number, span], backward[number, span]

    def sweep_on(self, last):
        """Find the forward messages up to place `last`."""
        for i in range(len(self.forward) - 1, last):
            before = self.forward[-1]
            x = self.log_masses(i) + before[:, self.source]
            self.forward.append(self.kept(i, self.log_sums(x, self.target), before))

    def sweep_back(self, first):
        """Find the backward messages down to place `first`."""
        n_places = self.inside.size(1)
        for i in reversed(range(first, n_places - len(self.backward) + 1)):
            after = self.backward[-1]
            x = self.log_masses(i) + after[:, self.target]
            self.backward.append(self.kept(i, self.log_sums(x, self.source), after))

    def kept(self, i, found, old):
        """Return `found` for the spans that have a place i, and `old` for the shorter ones."""
        return torch.where(self.inside[:, i].unsqueeze(1), found, old)

    def log_masses(self, i):
        """Return log M_i (n, E) of the pairs of states."""
        if i in self.kept_logs:
            return self.kept_logs[i]
        masses = self.masses[:, i]
        found = masses.new_zeros(len(masses), len(self.source))
        found.index_add_(1, self.of_pair, masses[:, self.of_class]).log_()
        if self.inside.size(1) * found.nbytes <= MOST_BYTES:
            self.kept_logs[i] = found
        return found

    def log_sums(self, x, state):
        """Return the log sums (n, S) of x (n, E) over the pairs of each state."""
        state = state.expand_as(x)
        top = x.new_full((len(x), len(self.to)), -torch.inf)
        top = finite(top.scatter_reduce(1, state, x, 'amax'))
        shares = (x - top.gather(1, state)).exp_()
        return torch.zeros_like(top).scatter_add_(1, state, shares).log_().add_(top)
