"""The same work by others and by us, in one process, in turns: the median of the seconds.

    python results/peers/peers.py --dtype=float32

Written are 256 tokens after one, by GPT-2 of transformers and by us. The models have random
weights, 6 layers of width 384 and 50,257 tokens. A first turn, which compiles, does not count."""

import functools
import statistics
import sys
import time

sys.path.append('.')  # the project's folder, from which it is run

import torch

from anyorder.fast import freeze
from anyorder.generation import generate
from anyorder.machine.devices import autocast, resolve_device
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import sample_order
from configurator import configure, numbers
from model import AOGPT, AOGPTConfig

repeats = 5  # turns
rows = '1,8'  # rows at a time
dtype = 'auto'  # 'float32', 'bfloat16'

CPU = torch.device('cpu')
N = 1024  # positions
V = 50257  # tokens
N_LAYER = 6
N_HEAD = 6
WIDTH = 384
N_WRITTEN = 256  # tokens


def main(config):
    _, dtype = resolve_device('cpu', config.dtype)
    print(f'torch {torch.__version__}, {torch.get_num_threads()} threads, {dtype}')
    for title, arms in left_to_right(config, dtype):
        in_turns(title, arms, config.repeats)


def in_turns(title, arms, repeats):
    """Print the seconds of arms {name: function}.

    The last column has the median of the ratios to the last arm, turn by turn."""
    times = {name: [] for name in arms}
    for turn in range(repeats + 1):
        for name, arm in arms.items():
            start = time.perf_counter()
            arm()
            if turn > 0:
                times[name].append(time.perf_counter() - start)
    print(f'\n{title}\n{"":<42}{"seconds":>24}{"of last":>9}')
    last = list(times.values())[-1]
    for name, seconds in times.items():
        ratio = statistics.median(a / b for a, b in zip(seconds, last))
        spread = f'{statistics.median(seconds):.3f} ({min(seconds):.3f}-{max(seconds):.3f})'
        print(f'{name:<42}{spread:>24}{ratio:>9.2f}', flush=True)


def left_to_right(config, dtype):
    """Yield (title, arms): N_WRITTEN tokens after one."""
    with autocast(CPU, dtype):
        ours = freeze(random_model())
    theirs = gpt2().to(getattr(torch, dtype))
    for n_rows in numbers(config, 'rows'):
        torch.compiler.reset()  # each number of rows has a graph of its own
        by_gpt2 = functools.partial(write_by_gpt2, theirs, n_rows)
        compiled = {'cache_implementation': 'static', 'compile_config': compile_config()}
        arms = {
            'GPT-2, sampled': functools.partial(by_gpt2, do_sample=True, top_k=0),
            'GPT-2, greedy': functools.partial(by_gpt2, do_sample=False),
            'GPT-2, greedy, static cache, compiled': functools.partial(
                by_gpt2, do_sample=False, **compiled
            ),
            'ours, one token a step': functools.partial(write_by_us, ours, n_rows, dtype),
        }
        yield f'{N_WRITTEN} tokens, rows at a time: {n_rows}, {dtype}', arms


def random_model():
    torch.manual_seed(1337)
    return AOGPT(AOGPTConfig(N, 50304, N_LAYER, N_HEAD, WIDTH, n_tokens=V)).eval()


def gpt2():
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(1337)
    network = transformers.GPT2Config(
        vocab_size=V,
        n_positions=N,
        n_layer=N_LAYER,
        n_head=N_HEAD,
        n_embd=WIDTH,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    return transformers.GPT2LMHeadModel(network).eval()


def compile_config():
    from transformers import CompileConfig

    config = CompileConfig(fullgraph=False)
    config._compile_all_devices = True  # a CPU too
    return config


@torch.no_grad()
def write_by_gpt2(model, n_rows, **how):
    start = torch.full((n_rows, 1), V - 1)
    model.generate(
        start,
        attention_mask=torch.ones_like(start),
        pad_token_id=V - 1,
        eos_token_id=None,
        max_new_tokens=N_WRITTEN,
        **how,
    )


def write_by_us(model, n_rows, dtype):
    order = sample_order(n_rows, N_WRITTEN + 1, 'l2r')
    idx = torch.zeros_like(order)
    idx[:, 0] = V - 1
    with autocast(CPU, dtype):
        generate(model, idx, order, 1, N_WRITTEN, seeds=range(n_rows))


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
