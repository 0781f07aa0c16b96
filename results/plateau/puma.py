"""Train a network with a masked loss on the masks that it meets when it writes (arXiv 2602.10314).

    python results/plateau/puma.py config/sudoku.py --network=mixed,gate_init=1 --out_dir=out/puma

is train.py with its options and another draw, for one process on a CPU, without padding, dropout,
compilation and accumulation of gradients.

Rows stream through `phases`, as in PUMA's code. In phase j of K a share of a row's blanks is known
that is uniform in [j/K, (j+1)/K). An update scores all blanks, and its loss is that of train.py.
Then each row goes on to its next phase: by the scores of this update its most confident blanks get
their true tokens. So does each blank whose likeliest token has a probability above `sure`, and
then the phase is that of the share which is known by now. Behind its last phase, or at once
without a blank, a row is replaced by a new one, of which random tokens are known."""

import sys
from functools import partial

sys.path.append('.')  # the project's folder, from which it is run

import torch

import train
from anyorder.machine.terminal import one_line_errors
from anyorder.tokens.blocks import Batch
from anyorder.training.update import draw_batch, update
from configurator import configure

OPTIONS = {
    'phases': 8,
    'sure': 1.0,  # 1: no blank is sure; for text the authors have 0.9
}


class Stream:
    """Rows on their way, by visit, of which the first n_known (B,) are known; phase (B,)."""

    def __init__(self, draw, phases, sure):
        self.draw = draw
        self.phases = phases
        self.sure = sure
        batch = draw()
        self.idx = batch.idx
        self.order = batch.order
        self.n_given = batch.n_given
        self.n_blanks = batch.n_blanks
        self.phase = torch.randperm(len(self.idx)) % phases
        self.n_known = self.known_in_phase()

    def batch(self):
        return Batch(self.idx, self.order, self.n_known, None, self.n_given, self.n_blanks)

    def known_in_phase(self):
        """Return (B,) visits, a random number of them in each phase; at least one is left."""
        share = (self.phase + torch.rand(len(self.phase))) / self.phases
        n = (share * self.n_blanks).round().long()
        return self.n_given + torch.minimum(n, self.n_blanks - 1)

    def go_on(self, confidence):
        """Go to the next phase, by the `confidence` (B, N) of the visits that are not known."""
        N = self.order.size(1)
        is_known = torch.arange(N) < self.n_known.unsqueeze(1)
        self.phase += 1
        is_done = self.phase == self.phases
        n_known = torch.maximum(self.n_known, self.known_in_phase())
        if self.sure < 1:
            n_sure = ((confidence > self.sure) & ~is_known).sum(1)
            n_known = torch.maximum(n_known, self.n_known + n_sure)
            share = (n_known - self.n_given) / self.n_blanks
            phase = (self.phases * share).ceil().long() - 1
            self.phase = phase.clamp(0, self.phases - 1)
        known_first = confidence.masked_fill(is_known, 2)
        best = known_first.argsort(dim=1, descending=True, stable=True)
        self.order = self.order.gather(1, best)
        self.n_known = n_known
        self.replace(is_done | (n_known == N))

    def replace(self, rows):
        """Put new rows in phase 0 in place of `rows` (B,) bool."""
        new = self.draw().rows(rows)
        self.idx[rows] = new.idx
        self.order[rows] = new.order
        self.n_given[rows] = new.n_given
        self.n_blanks[rows] = new.n_blanks
        self.phase[rows] = 0
        self.n_known[rows] = self.known_in_phase()[rows]


class Update:
    """The `update` of train.train. Its rows begin anew after a resume."""

    def __init__(self, phases, sure):
        self.phases = phases
        self.sure = sure
        self.stream = None

    def __call__(self, state, split, lr, config):
        if self.stream is None:
            torch.manual_seed(config.seed)
            draw = partial(draw_batch, split, config, state.model)
            self.stream = Stream(draw, self.phases, self.sure)
        found = []

        @torch.no_grad()
        def score(module, inputs, x):
            found.append(state.model.lm_head(x).float().softmax(-1).amax(-1))  # (B, N)

        parts = state.model.transformer
        last = parts['ln_f' if 'ln_f' in parts else 'final_layer']
        hook = last.register_forward_hook(score)
        update(state, split, lr, config, draw=lambda *of_train: self.stream.batch())
        hook.remove()
        self.stream.go_on(found[0])


def main(config):
    train.train(config, Update(config.phases, config.sure))


if __name__ == '__main__':
    with one_line_errors():
        main(configure(vars(train) | OPTIONS))
