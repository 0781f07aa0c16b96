"""Which noise has a cell of a pass? By it lossless unmasking draws tokens."""

import torch

from anyorder.generation.drawing import token_noise
from anyorder.generation.plan import is_exact


class TokenNoise:
    """Gives the cells of each pass their noise. A CPU keeps it: it costs more than a copy.

    numbers  (m,) increasing: row and visit of each cell of the last pass, as one number
    noise    (m, V) their noise"""

    def __init__(self, vocab_size):
        self.numbers = torch.tensor([-1])  # no cell has this number
        self.noise = torch.empty(1, vocab_size)

    def __call__(self, part, cells):
        """Return the noise (m, V) of the Cells."""
        keys = part.keys[cells.row]
        vocab_size = self.noise.size(1)
        if not is_exact(keys.device):
            return token_noise(keys, cells.position, vocab_size)

        # Copy the noise of known cells, draw that of others
        numbers = part.rows[cells.row] * part.order.size(1) + cells.visit
        place = torch.searchsorted(self.numbers, numbers).clamp(max=len(self.numbers) - 1)
        new = self.numbers[place] != numbers
        noise = self.noise[place]
        noise[new] = token_noise(keys[new], cells.position[new], vocab_size)
        self.numbers = numbers
        self.noise = noise
        return noise
