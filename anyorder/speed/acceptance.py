"""
How often is a draft of lossless unmasking right, and how many passes does a text take?
"""
import statistics
from dataclasses import dataclass
from functools import partial

import torch

from anyorder.checkpoint import Checkpoint
from anyorder.fast import freeze
from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing, TokenNoise
from anyorder.generation.fill import fill
from anyorder.generation.unmasking import Unmasking
from anyorder.likelihood.tables import figure, share_error
from anyorder.machine.devices import autocast
from anyorder.machine.files import progress
from anyorder.orders import order_of, read_order

MISSED = (1, 2, 4, 8, 16, 32, 64)
VISITS = 8   # of each text, whose drafts are checked


@dataclass(frozen=True)
class FixedAcceptance(Drawing):
    """Drawing whose lossless drafts are right with probability `acceptance`, each by itself. The work is the same.

    To time models of random weights, whose drafts are nearly all right: whatever they read, they say nearly the same.
    """
    acceptance: float = 0.9

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.acceptance <= 1:
            raise ValueError(f'acceptance must be a probability, got {self.acceptance}')

    def tokens_by_noise(self, logits, noise):
        token = super().tokens_by_noise(logits, noise)
        other = torch.randint_like(token, 1, logits.size(-1))
        agrees = torch.rand(token.shape, device=token.device) < self.acceptance ** 0.5       # a draft and its check
        return torch.where(agrees, 0, other)


def write(network, canvas, window, drawing):
    """Fill the canvas by lossless unmasking: (passes of each row [B], slots that were run in all rows together)."""
    n_slots = 0

    def on_step(step, n_new, part):
        nonlocal n_slots
        n_slots += int((n_new + part.n_drafts).sum())
    fill(network, canvas, Unmasking(unmask='lossless', window=window), drawing, with_logprob=False, on_step=on_step)
    return (canvas.step.max(1).values + 1).tolist(), n_slots


def n_right(network, canvas, drawing, n_missed, generator):
    """How many drafts are right, one at a random visit of each row of a text that lossless unmasking has written.

    The draft has read all tokens before it but the last n_missed. It is right if it is the token of the text, since
    both are drawn by the same noise."""
    B, N = canvas.order.shape
    visit, row = torch.randint(n_missed, N, (B,), generator=generator), torch.arange(B)
    logits = network.predict(canvas.idx, canvas.order, visit - n_missed, n_missed + 1,
                             picked=(row, torch.full_like(row, n_missed)))                  # (B, V)
    row = row.to(logits.device)
    position, noise = canvas.order[row, visit.to(logits.device)], TokenNoise(logits.size(-1), logits.device)
    token = drawing.tokens_by_noise(logits, partial(noise, canvas.seeds, row, position))
    return int((token == canvas.idx[row, position]).sum())


@torch.no_grad()
def measure_passes(ckpt, orders, windows, temperature, n_samples, batch_size, seed, device, dtype):
    """Prints, for each of the named `orders`, passes and slots of a text of the checkpoint by window, and how often a
    draft is right by the number of tokens that it missed. All windows write the same texts, up to rounding."""
    read = {name: read_order(name) for name in orders}
    checkpoint, drawing = Checkpoint(ckpt), Drawing(temperature)
    N = checkpoint.config.block_size
    Unmasking(unmask='lossless').check_network(checkpoint.config.slots)
    print(f'{checkpoint.about(checkpoint.weights)}, {device}, {dtype}, torch {torch.__version__}\n{n_samples} samples '
          f'of {N} {checkpoint.tokenizer.name} tokens, temperature {temperature:g}, seed {seed}', flush=True)
    with autocast(device, dtype):
        network = freeze(checkpoint.model(checkpoint.weights, device))
        for name, order in read.items():
            order = order_of(checkpoint.run, order)
            measure_order(network, name, order, windows, drawing, n_samples, batch_size, seed)


def measure_order(network, name, order, windows, drawing, n_samples, batch_size, seed):
    """The lines of measure_passes of one order, the arguments `order` of sample_order."""
    N, device = network.config.block_size, network.device
    print(f"\norder {name}\n{'window':>8}{'passes':>16}{'tokens/pass':>13}{'slots/token':>13}{'same text':>15}")
    first_texts = None
    for window in windows:
        passes, n_slots, canvases = [], 0, []
        for first in progress(range(0, n_samples, batch_size), desc=f'{name}, window {window}', leave=False):
            blank = [([0] * N, [False] * N)] * min(batch_size, n_samples - first)
            canvases.append(Canvas.of_texts(blank, order, seed + first, device))
            of_rows, slots = write(network, canvases[-1], window, drawing)
            passes, n_slots = passes + of_rows, n_slots + slots
        mean = figure(statistics.fmean(passes), statistics.stdev(passes) / n_samples ** 0.5, 1)
        texts = torch.cat([canvas.idx for canvas in canvases])
        first_texts = texts if first_texts is None else first_texts
        same = f'{int((texts == first_texts).all(1).sum())} of {n_samples}'
        print(f'{window:>8}{mean:>16}{n_samples * N / sum(passes):>13.1f}{n_slots / n_samples / N:>13.2f}{same:>15}',
              flush=True)
    print(f"{'missed':>8}{'right':>16}")
    for n_missed in (n for n in MISSED if n < N):
        generator = torch.Generator().manual_seed(seed)
        right = sum(n_right(network, canvas, drawing, n_missed, generator) for canvas in canvases * VISITS)
        n = n_samples * VISITS
        print(f'{n_missed:>8}{figure(right / n, share_error(right, n), 3):>16}', flush=True)
