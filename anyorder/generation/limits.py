"""What may a text on a canvas be? All other tokens have probability zero."""

import torch


class Limits:
    """The limits of the texts on a canvas: which tokens may stand where, each blank by itself.

        p_allowed(v) = p(v) 1[v allowed] / sum_w p(w) 1[w allowed]

    allowed       bool (positions, V), or a function that gives bool (m, V) of rows and positions,
                  int tensors (m,); None: all
    joint         whether blanks decide each other, as those of a pattern do, see Language in
                  extras/patterns, which goes on with the limits that a canvas has
    log_weight    (B,) of each row of the whole canvas: what its weight is by a Language
    text_row      (B,) of each: which row it is for a function `allowed`
    text_start    (B,) and from which of the positions of `allowed` on it stands"""

    joint = False

    def __init__(self, allowed, canvas):
        self.log_weight = canvas.u.new_zeros(len(canvas))
        self.text_row = canvas.rows.to(canvas.idx.device)
        self.text_start = torch.zeros_like(self.text_row)
        self.allowed = allowed
        if allowed is not None and not callable(allowed):
            self.allowed = torch.as_tensor(allowed).to(canvas.idx.device)

    @property
    def asks_host(self):
        """Whether a step asks the host what a blank may be."""
        return self.allowed is not None

    def begin_step(self, part, n_known):
        """Begin a step of the rows `part` of the canvas, whose first n_known (B,) visits are
        known."""

    def alone(self, logits, part, cells, n_tokens, forced):
        """Return the logits (m, V) of the laws of Cells within the limits of each by itself, in
        place: -inf for the tokens that are not allowed there.

        V is at least n_tokens. Raises ValueError where nothing is allowed, and, if the text that
        stands there is scored (`forced`), where its token is not."""
        if self.allowed is None:
            return logits
        rows = part.rows.to(logits.device)[cells.row]
        positions = self.text_start[rows] + cells.position
        rows = self.text_row[rows]
        if callable(self.allowed):
            may = torch.as_tensor(self.allowed(rows, positions)).to(logits.device)
        else:
            may = self.allowed[positions]
        logits[:, :n_tokens].masked_fill_(~may, -torch.inf)

        # What is to be revealed must be possible
        best = logits.amax(1)
        what = 'no token is'
        if forced:
            best = logits.gather(1, cells.read(part.idx).unsqueeze(1))[:, 0]
            what = 'the token that is scored is not'
        if best.isneginf().any():
            i = int(best.argmin())
            raise ValueError(
                f'{what} allowed at position {positions[i]} of row {rows[i]}: '
                'its probability would be 0'
            )
        return logits

    def law(self, cells, logits):
        """Return logits (m, V) of the laws of Cells within all limits, by those of each alone."""
        return logits

    def compared(self, score, cells):
        """Return the scores (m,) of Cells by which a step chooses: equal where they differ by
        rounding alone."""
        return score

    def reveal(self, part, cells, token, nats):
        """Take note that the tokens (m,) of Cells of the rows `part` of the canvas are known now,
        with log p - log q (m,) of each in nats: the law of each by itself before the temperature,
        and the law that drew it."""

    def take(self, rows):
        """Return the limits of these rows of the canvas, numbers on the host, which may repeat."""
        return self


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
