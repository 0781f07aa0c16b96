"""
Which drafts stood in a text before it was written? A record of lossless unmasking, see generation.Unmasking.accept.
"""
import torch


class Drafts:
    """Records the drafts of a canvas, as they change: `drafts(step, part)` is for on_step of fill.

    rows      [B] of lists in natural order: of each position its drafts, [[step, token], ...]. Such a token was the
              draft after that step, until the next one of the list or until a token was written. A last draft that is
              not the token that was written was wrong."""

    def __init__(self, canvas):
        self.rows = [[[] for _ in range(n)] for n in canvas.n_visits.tolist()]

    def __call__(self, step, part):
        """Add what has changed; one copy to the host."""
        row, _, visit = part.cells(part.n_drafts)
        position, rows = part.order[row, visit], part.rows.tolist()
        for r, i, token in torch.stack([row, position, part.idx[row, position]], 1).tolist():
            drafts = self.rows[rows[r]][i]
            if not drafts or drafts[-1][1] != token:
                drafts.append([step, token])


def draft_at(drafts, step):
    """The token that was the draft of a position after `step`, or None; `drafts` as in Drafts.rows."""
    return next((token for since, token in reversed(drafts) if since <= step), None)
