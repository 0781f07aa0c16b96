"""Which device, in which precision; and what writes on one that is not the CPU: the same text, in
graphs that are launched as one, without a wait, in memory that is kept and given back.

Most run on the simulated GPU, which stands in simulated_gpu.py and is tested first."""

import gc
import itertools
import re
import subprocess
import sys
import weakref
from contextlib import nullcontext
from functools import partial

import pytest
import simulated_gpu
import torch
from conftest import make_model, one_line, options_in, rows_of
from oracle import NETWORKS
from simulated_gpu import counted
from toy_runs import log

from anyorder import fast, flops
from anyorder.fast import freeze
from anyorder.generation import Canvas, Given, fill, generate, plan, unmasking_of, workspace
from anyorder.generation.options import drawing_in
from anyorder.generation.way import Way
from anyorder.machine import devices
from anyorder.machine.devices import resolve_device, widest
from anyorder.machine.files import read_json
from anyorder.machine.graphs import Graphs, has_graphs
from anyorder.training import start
from anyorder.training.start import resolve_compile
from model import KVCache

close = torch.testing.assert_close
slow = partial(pytest.param, marks=pytest.mark.slow)
CPU = torch.device('cpu')

# ---- which device


@pytest.fixture
def machine(monkeypatch):
    """machine('cuda triton avx2 g++') has these devices, compilers and features of its CPU."""

    def describe(there):
        patch = monkeypatch.setattr
        patch(torch.cuda, 'is_available', lambda: 'cuda' in there)
        patch(torch.cuda, 'device', lambda device: nullcontext())
        patch(torch.cuda, 'is_bf16_supported', lambda emulated: 'bfloat16' in there)
        patch(torch.version, 'hip', '7.0' if 'hip' in there else None)
        patch(torch.backends.mps, 'is_available', lambda: 'mps' in there)
        patch(devices, 'cpuinfo', lambda: there)
        patch(devices, 'open_device', torch.device)
        patch(start, 'find_spec', lambda name: name if name in there else None)
        patch('shutil.which', lambda name: name if name in there else None)

    return describe


AUTO = {  # what there is, and what 'auto' takes
    'cuda mps bfloat16': 'cuda bfloat16',
    'cuda mps amx_bf16': 'cuda float32',  # which emulates it
    'mps amx_bf16': 'mps float32',
    'AuthenticAMD avx512f avx512_bf16': 'cpu bfloat16',
    'GenuineIntel avx512f avx512_bf16': 'cpu float32',  # slower, as measured
    'GenuineIntel avx512f avx512_bf16 amx_bf16': 'cpu bfloat16',
    'AuthenticAMD avx2': 'cpu float32',
    'asimd bf16': 'cpu bfloat16',
    '': 'cpu float32',
}


@pytest.mark.parametrize('there, taken', AUTO.items())
def test_auto_takes_cuda_then_mps_then_the_cpu_and_bfloat16_where_it_is_fast(machine, there, taken):
    machine(there)
    device, dtype = resolve_device('auto', 'auto')
    assert f'{device} {dtype}' == taken
    assert resolve_device(str(device), 'bfloat16') == (device, 'bfloat16')


@pytest.mark.parametrize(
    'device, dtype, word',
    [
        ('mps', 'auto', 'mps'),
        ('cuda:9', 'auto', 'cuda:9'),
        (0, 'auto', 'device'),
        ('cpu', 'float64', 'dtype'),
    ],
)
def test_what_is_not_there_is_one_line(device, dtype, word):
    with one_line(word):
        resolve_device(device, dtype)


def test_each_process_takes_a_gpu_of_its_own(machine, monkeypatch):
    machine('cuda')
    monkeypatch.setenv('WORLD_SIZE', '2')
    monkeypatch.setenv('LOCAL_RANK', '1')
    taken = []
    monkeypatch.setattr(torch.cuda, 'set_device', taken.append)
    assert resolve_device('auto', 'float32') == (torch.device('cuda:1'), 'float32')
    assert taken == [torch.device('cuda:1')]
    with one_line('--device=cuda'):
        resolve_device('cuda:0', 'float32')


@pytest.mark.parametrize(
    'there, flops, max_iters, compiles',
    [
        ('cuda triton', 1, 2000, True),
        ('cuda triton', 1e20, 1999, False),
        ('cuda g++', 1e20, 2000, False),
        ('cuda triton hip', 1e20, 2000, False),
        ('mps g++ triton', 1e20, 10**6, False),
        ('g++', 1e20, 10**5, True),
        ('g++', 1e10, 10**5, False),
        ('triton', 1e20, 10**5, False),
    ],
)
def test_long_runs_are_compiled_where_there_is_a_compiler(
    machine, there, flops, max_iters, compiles
):
    machine(there)
    device, _ = resolve_device('auto', 'float32')
    for asked, found in (('auto', compiles), (True, True), (False, False)):
        assert resolve_compile(asked, device, flops, max_iters)[0] is found


PEAKS = {  # what a driver reports; None is measured
    'NVIDIA H200 MIG 1g.18gb': None,
    'NVIDIA A100-SXM4-80GB': 312e12,
    'NVIDIA H200 NVL': 836e12,
    'NVIDIA H200': 989e12,
}


@pytest.mark.parametrize('name', PEAKS)
def test_what_a_gpu_could_do_is_that_of_its_data_sheet(monkeypatch, name):
    gpu = torch.device('cuda')
    monkeypatch.setattr(flops, 'matmul_flops', lambda device, dtype: None)
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda device: name)
    assert flops.peak_flops(gpu, 'bfloat16') == PEAKS[name]
    assert flops.peak_flops(gpu, 'float32') is flops.peak_flops(CPU, 'bfloat16') is None
    assert (widest(torch.device('mps')), widest(CPU)) == (torch.float32, torch.float64)
    assert 0 <= flops.seconds(lambda: None, CPU, 2) < 10


# ---- the simulated GPU: what a card would say of waits

# {what is done to x (4, 5), i (2,) and m (4, 5) bool of the device and h (2,) of the host: how
# often it waits}
COSTS = {
    'x[0, 1] = 3': 1,
    'x[m] = 3': 0,
    'x[m]': 1,
    'x[h]': 1,
    'x.masked_fill(m, x[0, 0])': 1,
    'x + 3 + torch.tensor(3)': 0,
    'torch.where(m, x, torch.tensor(0.0))': 1,
    'i.repeat_interleave(i)': 1,
    'x[0, 0].item()': 1,
    'x.to("cpu", non_blocking=True)': 1,
    'h.to(device, non_blocking=True)': 0,
    'torch.tensor([1, 2], device=device)': 1,
}


def test_the_simulated_gpu_waits_as_cuda_does(simulated):
    def body(device):
        x = torch.zeros(4, 5, device=device)
        i = torch.arange(2, device=device)
        names = dict(torch=torch, device=device, x=x, m=x > 0, i=i, h=torch.arange(2))
        for done, want in COSTS.items():
            with counted() as waits:
                exec(done, names)
            assert waits.total() == want, done
        with pytest.raises(RuntimeError, match='aten::'):
            x + torch.zeros(4, 5)

    simulated(body)


# ---- steps


def small(device, block_size=12, **variant):
    model = make_model(block_size=block_size, n_layer=1, **variant).float()
    model.register_buffer('counts', torch.arange(11), persistent=False)
    model.register_buffer('exempt', torch.tensor([10]), persistent=False)
    return model.to(device)


def rows_on(device, n, length=12):
    """(idx, order) of n rows."""
    return [x.to(device) for x in rows_of(n, length)]


def begun(network, device, how, known, k=0):
    """(the canvas of rows with prompts of these lengths, the generator of its steps)."""
    canvas = Canvas(*rows_on(device, len(known)), torch.tensor(known), range(len(known)))
    canvas.likeliest = canvas.u.new_zeros(*canvas.idx.shape, 1 + 2 * k)
    how = dict(n_steps=5) | how
    drawing = drawing_in(how)
    return canvas, fill.steps(network, canvas, Way(unmasking_of(**how), drawing))


def waits_of(steps):
    """{how often a next(steps) waits}, until they end."""
    found = set()
    while True:
        with counted() as waits:
            if next(steps, None) is None:
                return found
        found.add(waits.total())


STEPS = [  # which network, a way of writing, how often each of its steps waits
    ('decoder', 'schedule=cosine top_k=3 temperature=0.7', 0),
    ('decoder', 'policy=margin:0.4', 1),
    ('decoder', 'unmask=lossless:3 presence_penalty=1.0 cfg_scale=0.5', 1),
    slow('decoder', 'policy=entropy+0.5 unmask=binomial temperature=0.0', 0),
    slow('decoder', 'policy=dilated:8 top_p=0.7', 0),
    slow('decoder', 'policy=klass/4:0.1', 1),
    slow('two streams', 'unmask=lossless:3', 1),
    slow('mixed', 'policy=margin min_p=0.1 presence_penalty=1.0 cfg_scale=0.5', 0),
    slow('encoder', 'policy=margin:0.4', 1),
]


@pytest.mark.parametrize('name, how, n_waits', STEPS)
def test_a_device_writes_the_same_in_steps_that_do_not_wait(simulated, name, how, n_waits):
    """Launched, recorded and replayed; with other rows and other numbers of likeliest tokens by
    turns. A place is wider than the text."""
    make = partial(small, block_size=80, **NETWORKS[name])
    how = options_in(how)
    asked = [([3, 3], 2), ([3, 3], 2), ([8, 6, 9], 3), ([3, 3], 2)]
    want = []
    for known, k in asked:
        canvas, several = begun(freeze(make(CPU)), CPU, how, known, k)
        assert len([*several]) > 1
        want.append(canvas)

    def body(device):
        network = freeze(make(device))
        for (known, k), wanted in zip(asked, want):
            canvas, several = begun(network, device, how, known, k)
            waits = waits_of(several)
            for table in ('idx', 'order', 'step', 'logprob', 'likeliest'):
                there = getattr(canvas, table).cpu().float()
                close(there, getattr(wanted, table).float(), rtol=0, atol=1e-3)
            assert len(known) > 2 or waits == {n_waits}
        assert simulated_gpu.Graph.n_replays

    simulated(body)


# ---- the plan of steps, as devices run it, here on the CPU


def test_steps_have_few_sizes():
    """As each is recorded anew."""
    sizes = [plan.padded(n) for n in range(1, 1025)]
    assert all(n <= size < n + max(n, 64) for n, size in enumerate(sizes, 1))
    assert len({*sizes}) == 22


# ---- what is kept for the next text

FIXED = dict(n_steps=5)
WAYS = [FIXED, dict(policy='margin:0.4'), dict(unmask='lossless:3')]


def text(network, device, n=2, length=12, **how):
    """The tokens of n rows, of which one each is known."""
    tables = rows_on(device, n, length)
    return generate(network, *tables, 1, seeds=range(n), **FIXED | how).tolist()


@pytest.mark.parametrize('is_frozen', [False, True])
def test_it_goes_with_its_network(simulated, is_frozen):
    """Nothing of cache and graphs is left."""

    def body(device):
        gc.collect()
        n_tensors = [len(simulated_gpu.memories)]
        model = small(device)
        n_tensors.append(len(simulated_gpu.memories))
        network = freeze(model) if is_frozen else model
        for how in WAYS * 2:
            text(network, device, **how)
        assert simulated_gpu.Graph.n_replays
        gc.collect()
        assert len(simulated_gpu.memories) > n_tensors[1]
        network = None
        gc.collect()
        assert is_frozen == (len(simulated_gpu.memories) == n_tensors[1])
        model = None
        gc.collect()
        assert len(simulated_gpu.memories) == n_tensors[0]

    simulated(body)


# rows and positions, how, the shape of what is kept then, its dtype, how many caches; what uses no
# cache has no graphs
HISTORY = """
2 12 |  | 2 12 | float32 | 1
1 3 |  | 2 12 | float32 | 1
3 6 |  | 3 12 | float32 | 1
2 12 | use_cache=False | 3 12 | float32 | 1
2 12 | cfg_scale=1.5 | 2 12 | float32 | 2
4 6 | cfg_scale=1.5 | 4 12 | float32 | 2
2 12 |  | 2 12 | bfloat16 | 1
2 12 |  | 2 12 | float32 | 1
2 12 | policy=margin | 2 12 | float32 | 1
2 12 | policy=entropy | 2 12 | float32 | 1
2 12 | policy=entropy top_k=2 | 2 12 | float32 | 1
"""


def test_each_kind_of_text_has_its_own_of_the_most_rows_and_positions_of_all_texts(simulated):
    """By dtype, cache and passes. A larger text replaces it, and a smaller one uses it. A model
    whose weights were moved is frozen anew."""

    def body(device):
        model = small(device)
        network = freeze(model)
        kept = []
        for row in HISTORY.strip().splitlines():
            asked, how, shape, dtype, n_caches = row.split(' | ')
            asked, shape = (tuple(map(int, sizes.split())) for sizes in (asked, shape))
            how = options_in(how)
            with torch.autocast(device.type, torch.bfloat16, enabled=dtype == 'bfloat16'):
                found = text(network, device, *asked, **how)
            if dtype == 'float32':
                assert found == text(freeze(small(device)), device, *asked, **how)
            caches = network.workspace.caches
            assert (network.workspace.shape, str(caches[0].k.dtype)) == (shape, f'torch.{dtype}')
            assert len(caches) == int(n_caches)
            kept.append(weakref.ref(network.workspace))
        assert kept[2]() is None
        want = text(model, device)
        for p in model.parameters():
            p.data = p.clone()
        assert text(model, device) == want

    simulated(body)


def test_texts_of_near_lengths_and_rows_that_are_left_share_graphs(simulated):
    """20 positions are as 17 in a model of 64; of 6 rows 3 are left, which a fourth makes 4."""

    def body(device):
        network = freeze(small(device, block_size=64))
        n_graphs = []
        for length in (20, 20, 17, 19):
            text(network, device, 2, length, n_steps=length)
            n_graphs.append(len(network.workspace.graphs.recorded))
        assert n_graphs[2] == n_graphs[3]

        canvas = Canvas(*rows_on(device, 6), torch.tensor([9, 3] * 3), range(6))
        several = fill.steps(network, canvas, Way(Given(12)))
        assert {len(part) for _, part in several} == {6, 4}
        assert canvas.n_steps.tolist() == [3, 9] * 3

    simulated(body)


def test_texts_by_turns_are_those_that_are_written_alone(simulated):
    """Whichever has the kept workspace; of two the one stays that ends last."""

    def body(device):
        network = freeze(small(device))
        want = {n: text(network, device, n) for n in (2, 3)}
        for turns in ((2, 3), (3, 2)):
            network.workspace = None
            several = {n: begun(network, device, FIXED, [1] * n) for n in turns}
            for _ in zip(*(steps for _, steps in several.values())):
                assert network.workspace is None
            for n, (canvas, rest) in several.items():
                assert not [*rest]
                assert canvas.idx.tolist() == want[n]
            assert network.workspace.shape[0] == turns[-1]

    simulated(body)


@pytest.mark.parametrize('end', [lambda several: several.close(), lambda several: None])
def test_a_text_that_ends_early_gives_it_back(simulated, end):
    def body(device):
        network = freeze(small(device))
        want = text(network, device)
        for n_done in (1, 2):
            kept = network.workspace
            _, several = begun(network, device, FIXED, [3, 3])
            for _ in range(n_done):
                next(several)
            assert network.workspace is None
            end(several)
            del several
            assert network.workspace is kept
            assert text(network, device) == want

    simulated(body)


def test_a_step_that_fails_leaves_it_usable_or_nothing(simulated, monkeypatch):
    """Where a step runs, and where it is recorded: first of all, and when others are. Where memory
    was short, its own is not there any more, even before the traceback is gone."""
    caches = []

    class Noted(KVCache):
        def __init__(self, *args):
            super().__init__(*args)
            caches.append(weakref.ref(self.k.memory))

    monkeypatch.setattr(workspace, 'KVCache', Noted)
    short = torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB')

    def body(device):
        want = text(freeze(small(device)), device)
        for error, is_second in itertools.product((KeyboardInterrupt(), short), (False, True)):
            network = freeze(small(device))
            calls = iter([True] if is_second else [False, True])
            if is_second:
                text(network, device, 3)
            gc.collect()
            caches.clear()

            def look(*_, calls=calls, error=error):
                if next(calls, False):
                    raise error

            network.lm_head.register_forward_pre_hook(look)
            with pytest.raises(type(error)) as e:
                text(network, device, 3)
            assert e.tb
            if error is short:
                assert network.workspace is None
                assert not any(one() for one in caches)
            else:
                assert network.workspace.shape[0] == 3
            for _ in range(3):
                assert text(network, device) == want

    simulated(body)


def test_inference_mode_makes_nothing_that_another_text_may_not_write(monkeypatch):
    """On the CPU, as no simulated tensor is of inference mode; and its graphs are others."""
    keys = []

    class Eager:
        def __init__(self, device):
            pass

        def run(self, key, function):
            keys.append(key)
            return function()

    monkeypatch.setattr(fast, 'has_graphs', lambda device: True)
    monkeypatch.setattr(workspace, 'Graphs', Eager)
    network = freeze(small(CPU))
    with torch.inference_mode():
        want = text(network, CPU)
    inside = {*keys}
    assert text(network, CPU) == want
    assert len({*keys}) == 2 * len(inside)
    with torch.inference_mode():
        assert text(network, CPU) == want


def test_graphs_are_of_one_maker(monkeypatch):
    for hip, wanted, has in ((None, '1', True), ('7.0', '1', False), (None, '0', False)):
        monkeypatch.setattr(torch.version, 'hip', hip)
        monkeypatch.setenv('ANYORDER_GRAPHS', wanted)
        assert has_graphs(torch.device('cuda')) is has
        assert not has_graphs(CPU)


def test_graphs_are_launched_under_keys(simulated):
    """One that fails does not end all recordings, the one used least lately goes, and a stream has
    another owner when its owner goes: cuBLAS keeps memory for each stream in which it ever ran."""

    def body(device):
        x = torch.zeros(3, device=device)
        graphs = Graphs(device, most=2)

        def fails():
            raise KeyError

        for first in (3, 15):
            graphs.recorded['wrong'] = None
            with pytest.raises(KeyError):
                graphs.run('wrong', fails)
            found = [graphs.run('right', lambda: x.add_(1).sum()).item() for _ in range(4)]
            assert found == [*range(first, first + 12, 3)]
        for n in (1, 1, 2, 2, 1, 3, 3):
            assert graphs.run(n, lambda n=n: (x * n).sum()).item() == 24 * n
        assert [*graphs.recorded] == [1, 3]

        one = Graphs(device)
        assert Graphs(device).stream is not one.stream
        assert len({id(Graphs(device).stream) for _ in range(5)}) == 1

    simulated(body)


# ---- the commands

SMALL = '--n_layer=1 --n_head=2 --n_embd=16 --block_size=16 --batch_size=4 --eval_iters=1'
SMALL += ' --compile=False --eval_interval=100 --log_interval=100 --network=gate_init=1'


@pytest.mark.slow
@pytest.mark.parametrize('documents', ['apart', 'together'])
def test_commands_do_the_same_on_the_simulated_gpu(data, script, documents):
    """No line waits in an update or a step: weights wait where they are put and checked."""

    def both(*command, of_cpu, of_gpu):
        script(*command, *of_cpu, '--device=cpu', '--dtype=float32')
        words = [sys.executable, simulated_gpu.__file__, *command, *of_gpu]
        said = subprocess.check_output(words, text=True)
        waited = {line: int(n) for line, n in re.findall(r'(?m)^(\w.*): (\d+)$', said)}
        often = [line for line, n in waited.items() if n > 2 and line != 'replayed']
        assert all(re.search(r'model.to\(|own_part\(|isfinite\(\)', line) for line in often)
        return str(waited)

    train = ['train.py', *SMALL.split(), '--max_iters=9', f'--documents={documents}']
    waited = both(*train, of_cpu=['--out_dir=cpu'], of_gpu=['--out_dir=gpu'])
    assert 'means.tolist()' in waited
    assert 'replayed' in waited
    sample = ['sample.py', '--ckpt=cpu/ckpt.pt', '--top_k=50', '--prompt=a', '--order=margin']
    waited = both(*sample, of_cpu=['--out=cpu/a.json'], of_gpu=['--out=gpu/a.json'])
    assert 'replayed' in waited
    found = []
    for name in ('gpu', 'cpu'):
        last = log(name)[-1]
        samples = read_json(f'{name}/a.json')['samples']
        written = [[*s['tokens'], *s['order'], s['nats']] for s in samples]
        found.append([*written, [last[key] for key in ('loss', 'grad_norm', 'val_any')]])
    close(*found, rtol=1e-4, atol=0)
