"""How likely is each class of tokens at a blank, and which class has each token?"""

import numpy as np
import torch
from torch.nn.functional import pad

from anyorder.fast import split_rows
from anyorder.machine.devices import widest
from model import float32_or_better


class Classes:
    """The classes of the tokens of a table.

    of_token  (n_tokens,) the class of each token
    read      (n,) the tokens that some state reads, of_read (n,) theirs
    is_read   (C,) bool: the classes of these"""

    def __init__(self, table, device):
        self.is_read = (table.next >= 0).any(0)
        self.of_token = torch.tensor(table.classes).to(device)
        read = np.flatnonzero(self.is_read[table.classes])
        self.read = torch.from_numpy(read).to(device)
        self.of_read = self.of_token[self.read]

    def log_masses(self, logits):
        """Return log sum_{v in c} exp(logit_v) (m, C) of logits (m, V), up to a number of each row,
        on the host. Only what has logit -inf has no mass."""
        some = split_rows(len(self.of_token), logits)[0]
        masses = torch.cat([self.masses(part) for part in some]).cpu().double().numpy()
        with np.errstate(divide='ignore'):
            return np.log(masses)

    def masses(self, logits):
        """Return sum_{v in c} exp(logit_v) (m, C), up to a factor of each row."""
        own = float32_or_better(logits.index_select(1, self.read))
        shares = own.softmax(1).to(widest(own.device))
        masses = shares.new_zeros(len(own), len(self.is_read)).index_add_(1, self.of_read, shares)
        if not (masses[:, self.is_read] > 0).all():  # rounded, or forbidden: NaN if all are
            n_possible = torch.zeros_like(masses)
            n_possible.index_add_(1, self.of_read, (own > -torch.inf).to(masses))
            tiny = torch.finfo(own.dtype).tiny
            masses = torch.where(n_possible > 0, masses.clamp(min=tiny), 0.0)
        return masses

    def added(self, logits, log_weights):
        """Return logits (m, V) + log_weights (m, C), on the host, of the class of each token, in
        float32 or better."""
        dtype = torch.promote_types(logits.dtype, torch.float32)
        weights = torch.from_numpy(log_weights).to(dtype).to(logits.device)
        n_padding = logits.size(1) - len(self.of_token)  # of logits -inf
        of_token = pad(self.of_token, (0, n_padding))
        return weights.index_select(1, of_token).add_(logits)
