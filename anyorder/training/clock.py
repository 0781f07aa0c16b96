"""How fast is a run? In tokens a second, and in MFU, a share of what its device could do."""

import time

from anyorder.flops import training_flops
from anyorder.machine.processes import n_processes


class Clock:
    """A clock of updates.

    `tokens_per_iter` and `flops_per_iter` count all processes together, `peak` one. Both count the
    padding of documents, which is computed as tokens are; the tokens of the log do not, nor does
    its MFU."""

    def __init__(self, model, config, peak, N):
        """Take N tokens of a sequence, and the device's peak in FLOP/s."""
        steps = config.gradient_accumulation_steps
        self.tokens_per_iter = config.batch_size * steps * N
        self.flops_per_iter = training_flops(model, config.batch_size, N) * steps
        self.peak = peak
        self.max_iters = config.max_iters

    def start(self, state):
        """Begin to measure at this TrainState."""
        self.began = time.perf_counter()
        self.began_iter = state.iter_num
        self.began_seen = state.n_seen

    def read(self, state):
        """Return what the log says of the iterations since the last start."""
        seconds = time.perf_counter() - self.began
        tokens_per_sec = (state.n_seen - self.began_seen) / seconds
        flops_per_token = self.flops_per_iter / self.tokens_per_iter
        left = (self.max_iters - state.iter_num) / (state.iter_num - self.began_iter)
        return {
            'tokens_per_sec': round(tokens_per_sec, 1),
            'mfu': round(flops_per_token * tokens_per_sec / n_processes() / self.peak, 4),
            'seconds_left': round(left * seconds, 1),
        }
