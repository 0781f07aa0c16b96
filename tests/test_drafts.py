"""The record of drafts, against the canvas after every pass."""

import torch

from anyorder.generation.canvas import Canvas, draft_at
from anyorder.generation.scroll import Scroll
from anyorder.generation.unmasking import Lossless
from anyorder.generation.way import Way
from anyorder.orders import Order
from anyorder.tokens.tokenizers import Bytes


def test_the_record_gives_the_drafts_of_every_pass(model):
    texts = [
        ([1, 0, 0, 2, 0, 0, 0], [True, False, False, True, False, False, False]),
        ([3, 0], [True, False]),
        *[([0] * 9, [False] * 9)] * 8,
    ]
    model.lm_head.weight.mul_(3)  # wrong drafts, whatever the weights that a version of torch draws
    scroll = Scroll(texts, 0, Bytes(), model.config.block_size)
    way = Way(Order('l2r'), Lossless(4))
    passes = []
    for _ in scroll.steps(model, way, with_drafts=True):
        part = scroll.part
        passes.append(
            {
                (int(part.rows[r]), p): int(part.idx[r, p])
                for r in range(len(part))
                for p in part.order[r, part.known[r] : part.known[r] + part.n_drafts[r]].tolist()
            }
        )
    rows = [row.drafts for row in scroll.rows]
    assert [len(row) for row in rows] == [7, 2] + [9] * 8
    for step, expected in enumerate(passes):
        stood = {
            (r, p): draft_at(row[p], step)
            for r, row in enumerate(rows)
            for p in range(len(row))
            if scroll.rows[r].step[p] > step
        }  # blank after the pass
        assert {cell: token for cell, token in stood.items() if token is not None} == expected
    changed = [pair for row in rows for history in row for pair in history]
    assert len(changed) < sum(map(len, passes))  # changes alone
    assert any(len(history) > 1 for row in rows for history in row)


def test_only_changes_are_kept_and_found_again():
    canvas = Canvas(torch.zeros(2, 3).long(), torch.tensor([[0, 1, 2], [2, 0, 1]]), 0, [0, 1])
    scroll = Scroll([([0] * 7, [False] * 7)] * 2, 0, Bytes(), 3)
    scroll.written, row = scroll.rows, scroll.rows[1]
    row.spans, row.n_steps = [[0, 3], [2, 5]], 10  # a later stretch
    for step, (known, n_drafts, tokens) in enumerate(
        [(0, 2, [5, 6, 7]), (0, 3, [5, 8, 7]), (1, 2, [9, 8, 9])]
    ):
        scroll.step, part = torch.tensor([step]), canvas.take(torch.tensor([False, True]))
        scroll.part = part
        part.known, part.n_drafts, part.idx = (
            torch.tensor([known]),
            torch.tensor([n_drafts]),
            torch.tensor([tokens]),
        )
        scroll.note_drafts()
    assert [row.drafts for row in scroll.rows] == [
        [[]] * 7,
        [[], [], [[10, 5], [12, 9]], [[11, 8]], [[10, 7]], [], []],
    ]
    assert [draft_at(row.drafts[2], 10 + step) for step in (-1, 0, 1, 2, 3)] == [None, 5, 5, 9, 9]
