"""The record of drafts, against the canvas after every pass."""
import torch

from anyorder.generation.canvas import Canvas, Drafts, draft_at
from anyorder.generation.drawing import Drawing
from anyorder.generation.fill import steps
from anyorder.generation.unmasking import Unmasking


def test_the_record_gives_the_drafts_of_every_pass(model):
    texts = [([1, 0, 0, 2, 0, 0, 0], [True, False, False, True, False, False, False]), ([3, 0], [True, False]),
             *[([0] * 9, [False] * 9)] * 8]
    model.lm_head.weight.mul_(3)   # wrong drafts, whatever the weights that a version of torch draws
    canvas = Canvas.of_texts(texts, {'kind': 'l2r'}, 0)
    drafts, passes = Drafts(canvas), []
    for step, _, part in steps(model, canvas, Unmasking(unmask='lossless', window=4), Drawing()):
        drafts(step, part)
        passes.append({(int(part.rows[r]), p): int(part.idx[r, p]) for r in range(len(part))
                       for p in part.order[r, part.known[r]:part.known[r] + part.n_drafts[r]].tolist()})
    assert [len(row) for row in drafts.rows] == [7, 2] + [9] * 8
    for step, expected in enumerate(passes):
        stood = {(r, p): draft_at(row[p], step) for r, row in enumerate(drafts.rows) for p in range(len(row))
                 if canvas.step[r, p] > step}                                              # blank after the pass
        assert {cell: token for cell, token in stood.items() if token is not None} == expected
    changed = [pair for row in drafts.rows for history in row for pair in history]
    assert len(changed) < sum(map(len, passes))                                            # changes alone
    assert any(len(history) > 1 for row in drafts.rows for history in row)


def test_only_changes_are_kept_and_found_again():
    canvas = Canvas(torch.zeros(2, 3).long(), torch.tensor([[0, 1, 2], [2, 0, 1]]), 0, [0, 1])
    drafts = Drafts(canvas)
    for step, (known, n_drafts, tokens) in enumerate([(0, 2, [5, 6, 7]), (0, 3, [5, 8, 7]), (1, 2, [9, 8, 9])]):
        part = canvas.take(torch.tensor([False, True]))
        part.known, part.n_drafts, part.idx = torch.tensor([known]), torch.tensor([n_drafts]), torch.tensor([tokens])
        drafts(step, part)
    assert drafts.rows == [[[], [], []], [[[0, 5], [2, 9]], [[1, 8]], [[0, 7]]]]
    assert [draft_at(drafts.rows[1][0], step) for step in (-1, 0, 1, 2, 3)] == [None, 5, 5, 9, 9]
