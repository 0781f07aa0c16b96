"""How fast is a run? In tokens a second, and in MFU, a share of what its device could do."""

import time

import torch

from anyorder.machine.processes import n_processes


class Clock:
    """A clock of updates.

    `tokens_per_iter` and `flops_per_iter` count all processes together, `peak` one. Both count the
    padding of documents, which is computed as tokens are; the tokens of the log do not."""

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


# the part of all pairs of slots that training needs; other networks need all
PAIRS = {'causal': 1 / 2, 'mixed': 2 / 3}


def training_flops(model, batch_size, N=None):
    """Return the model's FLOPs of a training step on batch_size sequences, forward and backward.

    A sequence has N tokens, by default block_size. Every weight of a matrix product takes 6 a slot
    (AdaLN: 6 a position; embeddings: none). Attention takes 12 N C a slot and layer, times the
    share of the pairs that see each other. The content of two streams has no last layer but its
    keys."""
    c = model.config
    N = N or c.block_size
    tokens = batch_size * N
    n_layers = c.n_layer
    is_double = c.target_position == 'two_stream'
    if is_double:
        n_layers = 2 * c.n_layer - 1
    products = 0
    for name, n in weights_of_products(model).items():
        n_slots = N if 'adaLN' in name else tokens
        if is_double and serves_content(name, c.n_layer):
            n_slots = 2 * tokens
        products += n_slots * n
    pairs = n_layers * N * c.n_embd * PAIRS.get(c.attention, 1)
    return 6 * (products + 2 * tokens * pairs)


def weights_of_products(model):
    """Return {name of a matrix that is multiplied by: how many weights it has}."""
    linear = torch.nn.Linear
    return {name: m.weight.numel() for name, m in model.named_modules() if isinstance(m, linear)}


def serves_content(name, n_layer):
    """Whether the stream of content runs this matrix: in the last layer it gives keys alone."""
    is_last = f'.h.{n_layer - 1}.' in name
    return '.h.' in name and (not is_last or 'c_attn' in name)
