"""Would this change make training faster? Two updates in turns: as it is, and with the change.

    python results/gpu/candidates.py by_row
    python results/gpu/candidates.py linear_cross_entropy --batch_size=16
    python results/gpu/candidates.py graph --n_layer=2 --n_head=3 --n_embd=96 --block_size=64 \\
        --vocab_size=320 --n_tokens=257 --optimizer=muon:0.04 --compile=False

A change is put in from outside, and none of them is used elsewhere: one is kept only where such a
pair shows that it pays. Tests prove in float64 that each leaves loss and gradients as they are, or
the weights after updates. Both updates have the same weights and batches. `off by` is the distance
of their gradients from those of float32, as a share of the latter. Of `graph` it is the distance of
the weights after all updates, as a share of their way: rounding with AdamW, up to some percent with
Muon, which rounds its steps to bfloat16."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
if __name__ == '__main__':  # the project's folder in place of this one
    sys.path[0] = ROOT

from anyorder.machine.terminal import one_line_errors, read_options

WORDS = {
    'one_hot': "AdaLN's gradient by position as a product with the one-hot of the positions",
    'index_add': "AdaLN's gradient added up at the positions, atomically, in float32",
    'by_row': "AdaLN's gradient put into the order of the text, row by row, and summed over rows",
    'token_loss': 'the loss in parts and outside the compiled graph, as without torch.compile',
    'linear_cross_entropy': "PyTorch's fused head and loss, of torch 2.13 and newer",
    'residual': 'the residual stream in the dtype of the products, which halves what norms read',
    'graph': 'the whole update as one CUDA graph, for networks whose updates are all launches',
}
# model (random weights)
block_size = 1024  # positions
vocab_size = 50304  # rows of embedding and head
n_tokens = 50257  # real vocabulary; the rest is padding
n_layer = 12  # blocks
n_head = 12  # heads of attention
n_embd = 768  # width
# what is timed
batch_size = 32  # rows
n_updates = 10  # updates of a turn
optimizer = 'adamw'  # or 'muon', as in train.py
compile = True  # torch.compile of both, where there is a compiler
turns = 3  # of both; the median of their ratios counts
out = ''  # a JSON file for the figures
# system
seed = 1337  # of weights, orders and draws
device = 'auto'  # 'cpu', 'cuda', 'cuda:1', 'mps' (a Mac's, untried), ...
dtype = 'auto'  # 'float32', 'bfloat16' or 'auto'

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

import itertools
import statistics
from contextlib import nullcontext
from functools import partial
from unittest import mock

import torch
import torch.nn.functional as F

from anyorder import fast
from anyorder.extras.speed.models import MIB, start_training, wants_compile
from anyorder.extras.speed.peak import peak_memory
from anyorder.likelihood.nll import blank_nll
from anyorder.machine.devices import autocast, peak_flops, resolve_device, seconds
from anyorder.machine.files import check_out, write_json
from anyorder.seeds import derive_seed
from anyorder.training.clock import training_flops
from anyorder.training.muon import Muon
from anyorder.training.update import clip_gradients, draw_batch, step, update
from configurator import at_least
from model import Block, float32_or_better

LEARNING_RATE = 2**-10  # exact in float32


def main(config):
    at_least(config, 1, 'batch_size', 'n_updates', 'turns')
    check_out('out', config.out, '.json')
    (name,) = config.words
    device, dtype = resolve_device(config.device, config.dtype)
    if name == 'linear_cross_entropy' and not hasattr(F, name):
        print(f'left out: torch {torch.__version__} has no {name}, torch 2.13 has')
        return
    print(f'{name}: {WORDS[name]}')
    before = Arm(config, device, dtype)
    after = Arm(config, device, dtype, name)
    row = {'name': name} | in_turns(before, after, config, device)
    print(f'{"":<8}{"first s":>10}{"ms/update":>11}{"tokens/s":>11}{"MFU":>8}{"peak MiB":>10}')
    for arm in (before, after):
        print(arm.line(), flush=True)
    spread = ', '.join(f'{ratio:.3f}' for ratio in row['ratios'])
    print(f'before / after {row["ratio"]:.3f} ({spread})')
    print(f'off by {row["off_before"]:.2e} before, {row["off_after"]:.2e} after')
    if config.out:
        write_json(config.out, {'config': config, 'rows': [row]})


def in_turns(before, after, config, device):
    """Return the figures of both: how far they are off, then their times in turns."""
    row = {}
    if after.name != 'graph':
        row = {'off_before': before.off(), 'off_after': after.off()}
    for arm in (before, after):
        arm.first = seconds(arm.update, device, 1)
        arm.update()  # a graph is recorded in the second call
    for _ in range(config.turns):
        for arm in (before, after):
            arm.take_turn(config.n_updates)
    if after.name == 'graph':
        off = distance(after.weights(), before.weights(), before.began)
        row = {'off_before': 0.0, 'off_after': off}
    ratios = [a / b for a, b in zip(before.times, after.times)]
    row |= {'ratio': statistics.median(ratios), 'ratios': ratios}
    for name, arm in (('before', before), ('after', after)):
        row[name] = {'first': arm.first, 'seconds': arm.seconds, 'peak_bytes': arm.peak}
        row[name] |= {'tokens_per_sec': arm.tokens_per_sec, 'mfu': arm.mfu}
    return row


class Arm:
    """One of the two updates: as it is, or with the change of this name."""

    def __init__(self, config, device, dtype, name=''):
        self.name = name
        self.device = device
        self.change = CHANGES.get(name, nullcontext)
        self.times = []
        self.peak = 0
        self.first = None
        self.state, split, self.run = start_training(config, device, dtype)
        self.n_tokens = config.batch_size * config.block_size
        self.mfu_of_second = training_flops(self.state.model, config.batch_size)
        self.mfu_of_second /= peak_flops(device, dtype)
        if wants_compile(config, device):
            self.state.run_model = compiled_apart(self.state.model)
        self.make_update = partial(update, self.state, split, LEARNING_RATE, self.run)
        if name == 'graph':
            self.make_update = WholeUpdate(self.state, split, self.run)
        self.began = self.weights()
        torch.manual_seed(config.seed)
        self.batch = draw_batch(split, self.run, self.state.model)

    def update(self):
        with self.change():
            self.make_update()

    def take_turn(self, n_updates):
        """Time updates, and keep the seconds of one."""
        peak_memory(self.device, reset=True)

        def updates():
            for _ in range(n_updates):
                self.update()

        self.times.append(seconds(updates, self.device, 1) / n_updates)
        self.peak = max(self.peak, peak_memory(self.device))

    def off(self):
        """Return the distance of the gradients of a batch from those of float32."""
        with self.change():
            mine = gradients(self.state, self.state.run_model, [self.batch], self.run.dtype)
        rows = [self.batch.rows(slice(r, r + 1)) for r in range(len(self.batch.idx))]
        exact = gradients(self.state, self.state.model, rows, 'float32')
        return distance(mine, exact)

    def weights(self):
        """Return the weights and their average, one vector."""
        models = (self.state.model, self.state.ema.model)
        return torch.cat([p.detach().flatten() for model in models for p in model.parameters()])

    @property
    def seconds(self):
        return statistics.median(self.times)

    @property
    def tokens_per_sec(self):
        return self.n_tokens / self.seconds

    @property
    def mfu(self):
        return self.mfu_of_second / self.seconds

    def line(self):
        title = 'after' if self.name else 'before'
        speed = f'{1000 * self.seconds:>11,.1f}{self.tokens_per_sec:>11,.0f}{self.mfu:>8.1%}'
        return f'{title:<8}{self.first:>10.1f}{speed}{self.peak / MIB:>10,.0f}'


number = itertools.count()


def compiled_apart(model):
    """Return the compiled model, which shares no graph with another: code of its own."""

    def run(*args, **options):
        return model(*args, **options)

    run.__code__ = run.__code__.replace(co_name=f'run_{next(number)}')
    return torch.compile(run)


def gradients(state, model, batches, dtype):
    """Return the gradients of the sum of nats of the batches, one vector."""
    for batch in batches:
        with autocast(state.device, dtype, cache=False):
            nll = blank_nll(model, batch)
        nll.sum().backward()
    grads = [p.grad.flatten() for p in state.model.parameters()]
    state.model.zero_grad(set_to_none=True)
    return torch.cat(grads)


def distance(x, y, origin=0.0):
    """Return |x - y| / |y - origin|."""
    return float((x - y).norm() / (y - origin).norm())


# --------------------------------------------------------------------------------------------------
# the changes


# what they change, as it is
ROWS = fast.Rows
HEAD_NLL = fast.LeanHead.nll
AFTER_ATTENTION = Block.after_attention
MUON_STEP = Muon.step_of


class OneHotRows(fast.Rows):
    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        positions = torch.arange(ctx.n_rows, device=index.device).unsqueeze(1)
        one_hot = (index.flatten() == positions).to(grad.dtype)  # (N, B S)
        return one_hot @ grad.flatten(0, 1), None


class AddedRows(fast.Rows):
    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        copies = float32_or_better(grad.flatten(0, 1))
        total = copies.new_zeros(ctx.n_rows, grad.size(-1))
        return total.index_add(0, index.flatten(), copies).to(grad.dtype), None


class SummedRows(fast.Rows):
    """Each row of the index has every position once, as whole orders have."""

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        B, S = index.shape
        if S != ctx.n_rows:
            return ROWS.backward(ctx, grad)
        slot = index.argsort(1)  # (B, N), of each position
        rows = torch.arange(B, device=index.device).unsqueeze(1)
        dtype = torch.promote_types(grad.dtype, torch.float32)
        return grad[rows, slot].sum(0, dtype=dtype).to(grad.dtype), None


def token_loss(head, x, tokens):
    return HEAD_NLL(head, x, tokens)


def with_token_loss():
    outside = torch.compiler.disable(token_loss)  # which imports the compiler
    return mock.patch.object(fast.LeanHead, 'nll', outside)


def fused_loss(head, x, tokens):
    """Return nll (R,) whose sum and gradients are right where all rows weigh the same.

    Each row has the mean."""
    dtype = fast.product_dtype(x)
    bias = head.real_bias()
    if bias is not None:
        bias = bias.to(dtype)
    how = torch.nn.LinearCrossEntropyOptions()
    weight = head.weight.to(dtype)
    mean = F.linear_cross_entropy(x.to(dtype), weight, tokens, linear_bias=bias, options=how)
    return float32_or_better(mean).expand(len(tokens))


def rounded_after_attention(block, x, modulation, y):
    """Block.after_attention, which leaves x in the dtype of the products."""
    return AFTER_ATTENTION(block, x, modulation, y).to(y.dtype)


class WholeUpdate:
    """An update as one CUDA graph: the first call runs eagerly, the second is recorded.

    On a CPU each call runs eagerly. The rate and the weight of the average are tensors, since a
    graph keeps numbers as they were when it was recorded."""

    def __init__(self, state, split, run):
        self.state = state
        self.split = split
        self.run = run
        self.graph = None
        self.batch = None
        self.rate = torch.tensor(LEARNING_RATE, device=state.device)
        self.share = torch.zeros(
            (), device=state.device, dtype=state.totals.dtype
        )  # of the weights in the average
        for optimizer in state.optimizers:
            for group in optimizer.param_groups:
                if 'capturable' in group:
                    group['capturable'] = state.device.type == 'cuda'

    def __call__(self):
        state = self.state
        torch.manual_seed(derive_seed(self.run.seed, state.iter_num, 0))
        batch = draw_batch(self.split, self.run, state.model)
        ema = state.ema
        ema.n_updates += 1
        self.share.fill_(1 - min(ema.decay, (1 + ema.n_updates) / (10 + ema.n_updates)))
        if self.batch is None:
            self.batch = batch
            self.warm_up()
        else:
            for own, x in zip(self.batch, batch):
                if x is not None:
                    own.copy_(x)
            self.replay()
        state.iter_num += 1
        state.n_since += batch.count_tokens()

    def warm_up(self):
        """Run on a stream of its own, as recording does: gradients remember their stream."""
        if self.state.device.type != 'cuda':
            return self.compute()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.compute()
        torch.cuda.current_stream().wait_stream(stream)

    def replay(self):
        if self.state.device.type != 'cuda':
            return self.compute()
        if self.graph is None:  # recording computes nothing
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.compute()
        self.graph.replay()

    def compute(self):
        """Do what `update` does behind the drawing of a batch."""
        state = self.state
        n_blanks = self.batch.n_blanks.sum().to(state.totals.dtype)
        with autocast(state.device, self.run.dtype, cache=False):
            nll = blank_nll(state.run_model, self.batch)
            loss = nll.sum() / n_blanks.to(nll.dtype)
        loss.backward()
        norm = clip_gradients(state.model, self.run.grad_clip)
        step(state.optimizers, self.rate)
        with torch.no_grad():
            average = list(state.ema.model.parameters())
            way = torch._foreach_sub(list(state.model.parameters()), average)
            torch._foreach_mul_(way, self.share)
            torch._foreach_add_(average, way)
        mean = nll.detach().sum(dtype=n_blanks.dtype) / n_blanks
        state.totals += torch.stack([mean, norm, (mean + norm).isfinite()])


def muon_step_at_tensor(optimizer, p, state, group):
    """Muon.step_of, whose rate may be a tensor: the way of a step at rate 1, times the rate."""
    began = p.clone()
    MUON_STEP(optimizer, p, state, group | {'lr': 1.0, 'weight_decay': 0.0})
    way = p - began
    p.copy_(began * (1 - group['lr'] * group['weight_decay']) + way * group['lr'])


# {name: a context in which an update is made with the change}
CHANGES = {
    'one_hot': partial(mock.patch.object, fast, 'Rows', OneHotRows),
    'index_add': partial(mock.patch.object, fast, 'Rows', AddedRows),
    'by_row': partial(mock.patch.object, fast, 'Rows', SummedRows),
    'token_loss': with_token_loss,
    'linear_cross_entropy': partial(mock.patch.object, fast.LeanHead, 'nll', fused_loss),
    'residual': partial(mock.patch.object, Block, 'after_attention', rounded_after_attention),
    'graph': partial(mock.patch.object, Muon, 'step_of', muon_step_at_tensor),
}


if __name__ == '__main__':
    with one_line_errors(prints_results=True):
        main(options)
