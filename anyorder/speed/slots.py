"""What does a pass cost, whatever the machine? Its slots."""


class CountedTrunk:
    """The trunk of a network, and a count of the slots that it has run, without the padding of short rows."""

    def __init__(self, trunk):
        self.trunk, self.n_slots = trunk, 0

    def __call__(self, idx, order, slots, cache=None):
        streams = slots.visit.tensor_split([slots.number.size(1)], 1)   # queries stand behind the content
        # on the device, without a wait for it
        self.n_slots = self.n_slots + sum(len(x) + x.diff(dim=1).count_nonzero() for x in streams if x.size(1))
        return self.trunk(idx, order, slots, cache)
