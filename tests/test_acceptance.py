"""How often drafts are right, and what lossless unmasking costs, against counts by hand."""
import pytest
import torch
from conftest import make_model

from anyorder.checkpoint import save_checkpoint
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing, TokenNoise
from anyorder.generation.fill import fill
from anyorder.generation.unmasking import Unmasking
from anyorder.orders import sample_order
from anyorder.speed.acceptance import FixedAcceptance, n_right, write


def canvas_of(n_rows, n=9, seed=0):
    order = sample_order(n_rows, n, generator=torch.Generator().manual_seed(seed))
    return Canvas(torch.zeros_like(order), order, 0, range(n_rows))


def test_a_draft_is_right_with_the_probability_that_is_fixed():
    torch.manual_seed(0)
    drawing, logits = FixedAcceptance(acceptance=0.64), torch.zeros(20_000, 11)
    draft, check = (drawing.tokens_by_noise(logits, lambda: torch.zeros(20_000, 11)) for _ in range(2))
    assert (draft == check).float().mean() == pytest.approx(0.64 + 0.04 / 10, abs=0.02)   # wrong ones may agree
    sure = FixedAcceptance(acceptance=1.0).tokens_by_noise(logits, lambda: torch.zeros(20_000, 11))
    assert (sure == 0).all()
    with pytest.raises(ValueError, match='acceptance must be a probability, got 2'):
        FixedAcceptance(acceptance=2)


def test_passes_and_slots_are_counted():
    """If every draft is right, 9 tokens are written by 1, 4, 1, 3: a pass that checks all of its window drafts none."""
    model = make_model()
    passes, n_slots = write(model, canvas_of(3), 4, FixedAcceptance(acceptance=1.0))
    assert passes == [4] * 3 and n_slots == 3 * (4 + 4 + 4 + 3)
    passes, n_slots = write(model, canvas_of(3), 1, Drawing())
    assert passes == [9] * 3 and n_slots == 27


def test_right_drafts_are_those_of_one_more_pass():
    model, canvas = make_model(), canvas_of(200)
    fill(model, canvas, Unmasking(unmask='lossless', window=5), Drawing(), with_logprob=False)
    for n_missed in (0, 3, 8):
        generator, noise, right = torch.Generator().manual_seed(4), TokenNoise(11, 'cpu'), 0
        for r, d in enumerate(torch.randint(n_missed, 9, (200,), generator=torch.Generator().manual_seed(4)).tolist()):
            before, p = canvas.order[r, :d - n_missed], canvas.order[r, d]
            logits = model.predict(canvas.idx[r:r + 1], torch.cat([before, p[None]])[None], len(before), 1)[0]
            right += bool((logits + noise.draw([(r, int(p))])).argmax() == canvas.idx[r, p])
        assert n_right(model, canvas, Drawing(), n_missed, generator) == right
        assert right == 200 if n_missed == 0 else right < 200


def test_the_command_counts_by_order_and_window(script, tmp_path):
    save_checkpoint(tmp_path / 'ckpt.pt', make_model(block_size=32, vocab_size=320, n_tokens=257), tokenizer='bytes')
    run = ('bench.py', 'lossless', '--ckpt=ckpt.pt', '--n_samples=6', '--device=cpu', '--dtype=float32')
    rows = [line.split() for line in script(*run, '--windows=1,8', '--orders=random,l2r').stdout.splitlines()]
    assert [row[1] for row in rows if row[:1] == ['order']] == ['random', 'l2r']
    one, eight = rows[rows.index(['order', 'random']) + 2:][:2]
    assert one == ['1', '32.0', '1.0', '1.00', '6', 'of', '6'] and eight[-3:] == one[-3:]
    assert eight[0] == '8' and 4 < float(eight[1]) < 32
    assert float(eight[-5]) == pytest.approx(32 / float(eight[1]), abs=0.1)
    missed = rows[rows.index(['missed', 'right']) + 1:][:5]
    assert [row[0] for row in missed] == ['1', '2', '4', '8', '16'] and all(0 <= float(row[1]) <= 1 for row in missed)
    for wrong, said in (('--orders=up', 'an order must be'), ('--windows=', 'windows must be'),
                        ('--ckpt=', 'wants a trained model'), ('--n_samples=1', 'n_samples')):
        assert said in script(*run, wrong, code=1).stderr
