"""Which tokens may stand where? All others have probability zero."""

import torch


class Constraint:
    """p_allowed(v) = p(v) 1[v allowed] / sum_w p(w) 1[w allowed]

    allowed       bool (positions, V), or a function that gives bool (m, V) of rows and positions,
                  int tensors (m,)
    rows, starts  [B] row r of the canvas is row rows[r] of these, from position starts[r] on"""

    def __init__(self, allowed, device, rows, starts):
        self.rows, self.starts = torch.tensor([[*rows], [*starts]]).to(device)
        self.allowed = allowed
        if not callable(allowed):
            self.allowed = torch.as_tensor(allowed).to(device)

    def mask(self, logits, part, cells, n_tokens, scores):
        """Put -inf into the logits (m, V) of Cells for the tokens that are not allowed there.

        V is at least n_tokens. Raises ValueError where nothing is allowed, and, if the text that
        stands there is scored (`scores`), where its token is not."""
        rows, positions = self.places(part, cells)
        may = self.tokens_at(rows, positions).to(logits.device)
        logits[:, :n_tokens].masked_fill_(~may, -torch.inf)

        # What is to be revealed must be possible
        best = logits.amax(1)
        what = 'no token is'
        if scores:
            best = logits.gather(1, cells.read(part.idx).unsqueeze(1))[:, 0]
            what = 'the token that is scored is not'
        if best.isneginf().any():
            i = int(best.argmin())
            raise ValueError(
                f'{what} allowed at position {positions[i]} of row {rows[i]}: '
                'its probability would be 0'
            )

    def places(self, part, cells):
        """Return the rows and positions (m,) of Cells of the rows `part` of the canvas."""
        row = part.rows.to(self.rows.device)[cells.row]
        return self.rows[row], self.starts[row] + cells.position

    def tokens_at(self, rows, positions):
        """Return which tokens are allowed, bool (m, V), at the positions (m,) of rows (m,)."""
        if callable(self.allowed):
            return torch.as_tensor(self.allowed(rows, positions))
        return self.allowed[positions]


def check_allowed(allowed, n_positions, n_tokens):
    """Raise ValueError unless an array `allowed` is bool (positions, n_tokens), of at least
    n_positions. Functions, and None, are not looked at."""
    if allowed is None or callable(allowed):
        return
    dtype = getattr(allowed, 'dtype', type(allowed).__name__)
    shape = tuple(getattr(allowed, 'shape', ()))
    if dtype not in (bool, torch.bool) or shape[1:] != (n_tokens,) or shape[0] < n_positions:
        raise ValueError(
            f'allowed must be bool (positions, {n_tokens}), of {n_positions} positions or more, '
            f'got {dtype} {shape}'
        )
