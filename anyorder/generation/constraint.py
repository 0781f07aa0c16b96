"""Which tokens may stand where? The others have probability zero, and the law of these is renormalised."""

import torch


class Constraint:
    """p_allowed(v) = p(v) 1[v allowed] / sum_w p(w) 1[w allowed]

    allowed        bool (positions, V), or a function that gives bool (m, V) of rows and positions, int tensors (m,)
    rows, starts   [B] row r of the canvas is row rows[r] of these, from position starts[r] on"""

    def __init__(self, allowed, canvas, rows, starts):
        (row, _, visit), device = canvas.cells(canvas.n_blanks), canvas.idx.device
        self.rows, self.starts = torch.tensor([[*rows], [*starts]]).to(device)
        check_allowed(allowed, (self.starts[row] + canvas.order[row, visit]).tolist())
        self.allowed = allowed if callable(allowed) else torch.as_tensor(allowed).to(device)

    def mask(self, logits, part, row, visit, n_tokens, scores):
        """Put -inf into logits (m, at least n_tokens) of the cells (row, visit) of a canvas for what is not allowed.
        Raises ValueError where nothing is allowed, and, if it `scores`, where the token that stands there is not."""
        text, place = (
            part.rows.to(row.device)[row],
            part.order[row, visit],
        )  # (m,) each, as all here
        rows, positions, token = self.rows[text], self.starts[text] + place, part.idx[row, place]
        may = torch.as_tensor(
            self.allowed(rows, positions) if callable(self.allowed) else self.allowed[positions]
        )
        if may.dtype != torch.bool or may.shape != (len(logits), n_tokens):
            raise ValueError(
                f'allowed must be bool {(len(logits), n_tokens)}, got {may.dtype} {tuple(may.shape)}'
            )
        logits[:, :n_tokens].masked_fill_(~may.to(logits.device), -torch.inf)
        wrong = (
            logits.gather(1, token.unsqueeze(1))[:, 0] if scores else logits.amax(1)
        ) == -torch.inf
        if wrong.any():
            i, what = (
                int(wrong.long().argmax()),
                'the token that is scored is not' if scores else 'no token is',
            )
            raise ValueError(
                f'{what} allowed at position {positions[i]} of row {rows[i]}: its probability would be 0'
            )


def check_allowed(allowed, blanks, n_tokens=None):
    """Raise ValueError unless an array `allowed` is bool (positions, n_tokens) and has a token for each of `blanks`."""
    if allowed is None or callable(allowed):
        return
    kind, shape = getattr(allowed, 'dtype', type(allowed)), tuple(getattr(allowed, 'shape', ()))
    if kind not in (bool, torch.bool) or len(shape) != 2 or n_tokens not in (None, shape[1]):
        raise ValueError(
            f'allowed must be bool (positions, {n_tokens or "tokens"}), got {kind} {shape}'
        )
    if shut := [p for p in sorted({*blanks}) if p >= shape[0] or not allowed[p].any()]:
        raise ValueError(
            f'no token is allowed at position {shut[0]}, a blank; allowed has {shape[0]} positions'
        )
