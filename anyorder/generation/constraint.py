"""Which tokens may stand where? All others have probability zero."""

import torch


class Constraint:
    """p_allowed(v) = p(v) 1[v allowed] / sum_w p(w) 1[w allowed]

    allowed       bool (positions, V), or a function that gives bool (m, V) of rows and positions,
                  int tensors (m,)
    rows, starts  [B] row r of the canvas is row rows[r] of these, from position starts[r] on; by
                  default row r, from position 0 on"""

    def __init__(self, allowed, canvas, rows=None, starts=None):
        device = canvas.idx.device
        if rows is None:
            at = torch.stack([canvas.rows, torch.zeros_like(canvas.rows)])
        else:
            at = torch.tensor([rows, starts])
        self.rows, self.starts = at.to(device)
        cells = canvas.blanks()
        blanks = self.starts[cells.row] + cells.position
        check_allowed(allowed, blanks.tolist())
        self.allowed = allowed
        if not callable(allowed):
            self.allowed = torch.as_tensor(allowed).to(device)

    def mask(self, logits, part, cells, n_tokens, scores):
        """Put -inf into the logits (m, V) of Cells for the tokens that are not allowed there.

        V is at least n_tokens. Raises ValueError where nothing is allowed, and, if the text that
        stands there is scored (`scores`), where its token is not."""
        text = part.rows.to(logits.device)[cells.row]  # (m,), as are the next ones
        rows = self.rows[text]
        positions = self.starts[text] + cells.position
        may = self.tokens_at(rows, positions)
        if may.dtype != torch.bool or may.shape != (len(logits), n_tokens):
            raise ValueError(
                f'allowed must be bool {(len(logits), n_tokens)}, '
                f'got {may.dtype} {tuple(may.shape)}'
            )
        logits[:, :n_tokens].masked_fill_(~may.to(logits.device), -torch.inf)

        # What is to be revealed must be possible
        if scores:
            token = part.idx[cells.row, cells.position]
            best = logits.gather(1, token.unsqueeze(1))[:, 0]
            what = 'the token that is scored is not'
        else:
            best = logits.amax(1)
            what = 'no token is'
        wrong = best == -torch.inf
        if wrong.any():
            i = int(wrong.long().argmax())
            raise ValueError(
                f'{what} allowed at position {positions[i]} of row {rows[i]}: '
                'its probability would be 0'
            )

    def tokens_at(self, rows, positions):
        """Return which tokens are allowed, bool (m, V), at the positions (m,) of rows (m,)."""
        if callable(self.allowed):
            return torch.as_tensor(self.allowed(rows, positions))
        return self.allowed[positions]


def check_allowed(allowed, blanks, n_tokens=None):
    """Raise ValueError unless an array `allowed` has a token for each of the blanks.

    allowed  bool (positions, n_tokens); None and functions are not looked at
    blanks   positions"""
    if allowed is None or callable(allowed):
        return
    kind = getattr(allowed, 'dtype', type(allowed))
    shape = tuple(getattr(allowed, 'shape', ()))
    if kind not in (bool, torch.bool) or len(shape) != 2 or n_tokens not in (None, shape[1]):
        wanted = n_tokens or 'tokens'
        raise ValueError(f'allowed must be bool (positions, {wanted}), got {kind} {shape}')
    for p in sorted({*blanks}):
        if p >= shape[0] or not allowed[p].any():
            raise ValueError(
                f'no token is allowed at position {p}, a blank; allowed has {shape[0]} positions'
            )
