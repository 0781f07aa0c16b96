"""The same work by others and by us, in one process, in turns: the median of the seconds.

    python results/peers/peers.py write --dtype=float32
    python results/peers/peers.py blanks --dllm=dllm --fast_dllm=Fast-dLLM --steps=64

All models have random weights, 6 layers of width 384 and 50,257 tokens. A peer whose checkout is
not named is left out. A first turn, which compiles, does not count."""

import functools
import importlib.util
import os
import statistics
import sys
import time
import types

sys.path.append('.')  # the project's folder, from which it is run

import torch

from anyorder.fast import freeze
from anyorder.generation import generate
from anyorder.machine.devices import autocast, resolve_device
from anyorder.machine.files import write_json
from anyorder.machine.terminal import one_line_errors
from anyorder.orders import sample_order
from configurator import configure, numbers
from model import AOGPT, AOGPTConfig

WORDS = {
    'write': 'left to right, beside GPT-2 of transformers',
    'blanks': 'in any order, beside dLLM and Fast-dLLM',
}
dllm = ''  # blanks: a checkout of https://github.com/ZHZisZZ/dllm
fast_dllm = ''  # blanks: a checkout of https://github.com/NVlabs/Fast-dLLM
repeats = 5  # turns
rows = '1,8'  # write: rows at a time
lengths = '256'  # blanks: tokens
steps = '64,256'  # blanks: passes
dtype = 'auto'  # 'float32', 'bfloat16'
out = ''  # a JSON file

CPU = torch.device('cpu')
N = 1024  # positions
V = 50257  # tokens
N_LAYER = 6
N_HEAD = 6
WIDTH = 384
N_WRITTEN = 256  # tokens by `write`


def main(config):
    _, dtype = resolve_device('cpu', config.dtype)
    (word,) = config.words
    print(f'torch {torch.__version__}, {torch.get_num_threads()} threads, {dtype}')
    tables = {}
    comparisons = left_to_right(config, dtype) if word == 'write' else in_any_order(config, dtype)
    for title, arms in comparisons:
        tables[title] = in_turns(title, arms, config.repeats)
    if config.out:
        write_json(config.out, tables)


def in_turns(title, arms, repeats):
    """Return {name: seconds of each turn} of arms {name: function}, and print them.

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
    return times


# --------------------------------------------------------------------------------------------------
# left to right


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


def random_model(**network):
    torch.manual_seed(1337)
    return AOGPT(AOGPTConfig(N, 50304, N_LAYER, N_HEAD, WIDTH, n_tokens=V, **network)).eval()


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


# --------------------------------------------------------------------------------------------------
# in any order


def in_any_order(config, dtype):
    """Yield (title, arms): tokens from nothing at temperature 0, one row."""
    with autocast(CPU, dtype), torch.no_grad():
        encoder = freeze(random_model(attention='bidirectional'))
        decoder = freeze(random_model())
    peers = peer_samplers(config)
    for n in numbers(config, 'lengths'):
        order = sample_order(1, n)
        for n_steps in numbers(config, 'steps'):
            ours = functools.partial(fill, order, n_steps, dtype)
            arms = {}
            for name, sampler in peers.items():
                arms[name] = functools.partial(fill_by, sampler, encoder, n, n_steps, dtype)
            arms |= {
                'ours, encoder, top_prob': functools.partial(ours, encoder, policy='top_prob'),
                'ours, decoder, top_prob': functools.partial(ours, decoder, policy='top_prob'),
                'ours, decoder, top_prob in blocks': functools.partial(
                    ours, decoder, policy='top_prob', block_length=32
                ),
                'ours, decoder, random order': functools.partial(ours, decoder),
            }
            yield f'{n} tokens in {n_steps} passes, 1 row, {dtype}', arms


def fill(order, n_steps, dtype, model, **how):
    with autocast(CPU, dtype):
        idx = torch.zeros_like(order)
        generate(model, idx, order, 0, n_steps, temperature=0, seeds=[0], **how)


@torch.no_grad()
def fill_by(sampler, encoder, n, n_steps, dtype):
    with autocast(CPU, dtype):
        sampler(AsMasked(encoder), n, n_steps)


def peer_samplers(config):
    """Return {name: function of a network, n tokens, n steps} of the checkouts that are there."""
    # their packages, without what an __init__ imports: trainers, evaluations
    for name in ('dllm', 'dllm.core', 'dllm.core.samplers'):
        package = types.ModuleType(name)
        package.__path__ = [os.path.join(config.dllm, *name.split('.'))]
        sys.modules[name] = package
    sys.modules['model.modeling_llada'] = types.SimpleNamespace(LLaDAModelLM=None)

    found = {}
    if config.dllm:
        mdlm = load(os.path.join(config.dllm, 'dllm/core/samplers/mdlm.py'))
        found['dllm, MDLMSampler'] = functools.partial(by_mdlm, mdlm)
    if config.fast_dllm:
        fast = load(os.path.join(config.fast_dllm, 'llada/generate.py'))
        for name in ('generate_with_prefix_cache', 'generate_with_dual_cache'):
            function = getattr(fast, name)
            found[f'Fast-dLLM, {name}'] = functools.partial(by_fast_dllm, function)
    return found


def load(path):
    spec = importlib.util.spec_from_file_location(f'peer_{len(sys.modules)}', path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass asks for it
    spec.loader.exec_module(module)
    return module


def by_mdlm(module, network, n, n_steps):
    names = types.SimpleNamespace(mask_token_id=V, bos_token_id=V - 1, eos_token_id=V - 1)
    sampler = module.MDLMSampler(network, names)
    sampler.sample([[]], max_new_tokens=n, block_size=n, steps=n_steps)


def by_fast_dllm(function, network, n, n_steps):
    nothing = torch.zeros(1, 0, dtype=torch.long)
    function(network, nothing, n_steps, n, max(32, n // n_steps), mask_id=V)


class AsMasked:
    """Our encoder as the samplers of LLaDA's family call it. The token V is [MASK]."""

    device = CPU

    def __init__(self, model):
        self.model = model
        self.mask = model.config.n_real
        self.passes = 0

    def __call__(
        self, x, attention_mask=None, past_key_values=None, use_cache=False, replace_position=None
    ):
        self.passes += 1
        model = self.model
        parts = model.transformer
        target = positions(x, past_key_values, replace_position).expand(x.shape)
        slots = types.SimpleNamespace(
            number=target, target=target, causal=False, mask_of=lambda answering: None
        )
        kept = []

        def store(layer, *new):
            if past_key_values is not None:
                new = join(past_key_values[layer], new, target[0], replace_position)
            kept.append(tuple(part.transpose(1, 2) for part in new))
            return new

        is_blank = (x == self.mask).unsqueeze(-1)
        known = parts.wte(x.clamp(max=self.mask - 1))
        h = torch.where(is_blank, parts.wnonee.weight, known) + parts.wpe(target + 1)
        rotary = None
        if model.config.rotary:
            angles = model._cos_sin(target)
            rotary = [angles, angles]
        for layer, block in enumerate(parts.h):
            keep = functools.partial(store, layer)
            h = block(h, model._wtpe(layer), slots, None, rotary, keep)
        logits = model.lm_head(parts.final_layer(h, target, parts.wtpe))
        return types.SimpleNamespace(logits=logits, past_key_values=kept)


def positions(x, past_key_values, replace_position):
    """Return (n,) positions of x (B, n): from 0 on, behind what is kept, or what is replaced."""
    if past_key_values is None:
        return torch.arange(x.size(1))
    if replace_position is None:
        n_kept = past_key_values[0][0].size(2)
        return torch.arange(n_kept, n_kept + x.size(1))
    return replace_position[0].nonzero()[:, 0]


def join(kept, new, at, replace_position):
    """Return keys and values (B, n, ...): `new` behind what is kept, or in its place."""
    joined = []
    for old, part in zip(kept, new):
        old = old.transpose(1, 2)
        if replace_position is None:
            joined.append(torch.cat([old, part], 1))
        else:
            old[:, at] = part.to(old.dtype)
            joined.append(old)
    return joined


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
