"""The record of drafts, against the canvas after every pass."""

import torch

from anyorder.generation.canvas import Canvas
from anyorder.generation.scroll import Scroll, draft_at
from anyorder.generation.unmasking import Lossless
from anyorder.generation.way import Way
from anyorder.orders import Order
from anyorder.tokens.tokenizers import Bytes

EIGHT_BLANK = [([0] * 9, [False] * 9)] * 8


def drafts_of(part):
    """{(row, position): token} of the drafts that stand on a canvas."""
    found = {}
    for r in range(len(part)):
        first = int(part.known[r])
        end = first + int(part.n_drafts[r])
        for p in part.order[r, first:end].tolist():
            found[int(part.rows[r]), p] = int(part.idx[r, p])
    return found


def drafts_after(scroll, step):
    """{(row, position): token} of the drafts that stood there after a step, by the record."""
    found = {}
    for r, row in enumerate(scroll.rows):
        for p, history in enumerate(row.drafts):
            token = draft_at(history, step)
            if row.step[p] > step and token is not None:  # a blank then
                found[r, p] = token
    return found


def test_the_record_gives_the_drafts_of_every_pass(model):
    texts = [
        ([1, 0, 0, 2, 0, 0, 0], [True, False, False, True, False, False, False]),
        ([3, 0], [True, False]),
        *EIGHT_BLANK,
    ]
    model.lm_head.weight.mul_(3)  # wrong drafts, whatever the weights that a version of torch draws
    scroll = Scroll(texts, 0, Bytes(), model.config.block_size)
    way = Way(Order('l2r'), Lossless(4))
    passes = []
    for _ in scroll.steps(model, way, with_drafts=True):
        passes.append(drafts_of(scroll.part))
    lengths = [len(row.drafts) for row in scroll.rows]
    assert lengths == [7, 2] + [9] * 8
    for step, expected in enumerate(passes):
        assert drafts_after(scroll, step) == expected
    changes = [len(history) for row in scroll.rows for history in row.drafts]
    assert sum(changes) < sum(map(len, passes))  # changes alone
    assert max(changes) > 1


def test_only_changes_are_kept_and_found_again():
    order = torch.tensor([[0, 1, 2], [2, 0, 1]])
    canvas = Canvas(torch.zeros_like(order), order, 0, [0, 1])
    blank = [0] * 7, [False] * 7
    scroll = Scroll([blank, blank], 0, Bytes(), 3)
    first, second = scroll.rows
    second.spans = [[0, 3], [2, 5]]
    second.n_steps = 10  # a later stretch
    passes = [(0, 2, [5, 6, 7]), (0, 3, [5, 8, 7]), (1, 2, [9, 8, 9])]
    for step, (known, n_drafts, tokens) in enumerate(passes):
        scroll.step = torch.tensor([step])
        part = canvas.take(torch.tensor([False, True]))
        scroll.part = part
        part.known = torch.tensor([known])
        part.n_drafts = torch.tensor([n_drafts])
        part.idx = torch.tensor([tokens])
        scroll.note_drafts()
    assert not any(first.drafts)
    assert second.drafts == [[], [], [[10, 5], [12, 9]], [[11, 8]], [[10, 7]], [], []]
    found = [draft_at(second.drafts[2], step) for step in (9, 10, 11, 12, 13)]
    assert found == [None, 5, 5, 9, 9]
