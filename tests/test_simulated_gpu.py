"""On a device that is not the CPU: nothing mixes the two, results are equal, no update and no step
waits for it."""

import importlib
import json
import re
import sys

import pytest
import simulated_gpu
import torch
from conftest import make_model
from simulated_gpu import counted

from anyorder import Writer
from anyorder.fast import freeze
from anyorder.generation import Canvas, generate, unmasking_of
from anyorder.generation.fill import steps
from anyorder.generation.options import drawing_in
from anyorder.tokens.prepared import prepare

SMALL = [
    '--n_layer=1',
    '--n_head=2',
    '--n_embd=16',
    '--block_size=16',
    '--batch_size=4',
    '--eval_iters=1',
    '--compile=False',
    '--eval_interval=100',
    '--log_interval=100',
    '--network=gate_init=1',
]


WEIGHTS = 'p.copy_(own_part('  # waits once for each


def waits(said):
    """{line that waits: how often, 'replayed': how many graphs}."""
    return {
        line: int(n)
        for line, n in re.findall(r'^(waited in .*|replayed): (\d+)$', said, re.MULTILINE)
    }


@pytest.fixture
def gpu(forked, tmp_path, monkeypatch):
    """Run a command on the simulated device, in a fork. Return its waits."""
    importlib.import_module('torch._dynamo')  # two seconds, here once and not in every fork
    monkeypatch.chdir(tmp_path)

    def run(*command):
        monkeypatch.setattr(sys, 'argv', ['simulated_gpu.py', *command])
        (finished,) = forked(simulated_gpu.main)
        assert finished.code == 0, finished.said
        return waits(finished.said)

    return run


def same(gpu_rows, cpu_rows, *keys):
    for there, here in zip(gpu_rows, cpu_rows, strict=True):
        for key in keys:
            assert there[key] == pytest.approx(here[key], rel=1e-4)


@pytest.mark.slow
def test_what_runs_on_a_gpu_runs_on_the_simulated_one(gpu, process, script, tmp_path, monkeypatch):
    text = tmp_path / 'words.txt'
    text.write_text('The quick brown fox jumps over the lazy dog. <|endoftext|>' * 40)
    prepare('text', tmp_path / 'data', name='words', source=str(text), tokenizer='bytes')

    # Not in a fork: autograd does not know a device that comes after its first use
    train = ['train.py', '--dataset=words', '--data_dir=data', *SMALL, '--max_iters=9']
    for documents in ('apart', 'together'):
        train_so = [*train, f'--documents={documents}']
        waited = waits(process('tests/simulated_gpu.py', *train_so, '--out_dir=gpu').stdout)
        assert any('means.tolist()' in line for line in waited)
        often = [line for line, n in waited.items() if n >= 9 and line != 'replayed']
        assert all('.to(place)' in line for line in often)  # the weights: none in an update
        script(*train_so, '--out_dir=cpu', '--device=cpu', '--dtype=float32')
        logs = []
        for name in ('gpu', 'cpu'):
            lines = (tmp_path / name / 'log.jsonl').read_text().splitlines()
            logs.append([json.loads(lines[-1])])
        same(*logs, 'loss', 'grad_norm', 'val_any', 'val_l2r')

    def results(key):
        """What the file of each device has under this key."""
        files = (tmp_path / name for name in ('gpu.json', 'cpu.json'))
        return [json.loads(path.read_text())[key] for path in files]

    for order in ('margin', 'random'):
        sample = ['sample.py', '--ckpt=cpu/ckpt.pt', '--top_k=50', '--prompt=a', f'--order={order}']
        script(*sample, '--out=cpu.json', '--device=cpu')
        for recorded in '10':
            monkeypatch.setenv('ANYORDER_GRAPHS', recorded)
            waited = gpu(*sample, '--out=gpu.json')
            assert ('replayed' in waited) is (recorded == '1')
            waits_of_line = [
                n for line, n in waited.items() if line.startswith('waited') and WEIGHTS not in line
            ]
            assert max(waits_of_line) <= 2  # before the first step and at the end
            there, here = results('samples')
            for key in ('tokens', 'order'):
                assert [s[key] for s in there] == [s[key] for s in here]
            same(there, here, 'nats')

    estimates = '--estimates=l2r,any,ensemble:3'
    estimate = ['eval_ppl.py', '--ckpt=cpu/ckpt.pt', estimates, '--n_blocks=3']
    gpu(*estimate, '--out=gpu.json')
    script(*estimate, '--out=cpu.json', '--device=cpu')
    same(*results('results'), 'nats_per_token')


# ---- steps in a fork of this process

NEVER = [
    dict(schedule='linear'),
    dict(schedule='cosine'),
    dict(schedule=[1, 2, 4, 7, 9]),
    dict(unmask='binomial'),
    dict(policy='top_prob'),
    dict(policy='margin'),
    dict(policy='entropy'),
    dict(policy='margin', presence_penalty=1.0, min_p=0.1),
    dict(policy='margin', cfg_scale=1.5),
]
PLANNED = [dict(policy='pc_sampler'), dict(policy='dilated:8'), dict(policy='drawn')]
THRESHOLD = dict(policy='margin:0.4')
BY_RULES = [dict(policy='klass'), dict(policy='factor'), dict(policy='eb:1.0')]
BY_RULES += [dict(policy='klass/4:0.1')]
LOSSLESS = dict(unmask='lossless:3')
PENALIZED = LOSSLESS | dict(presence_penalty=1.0, cfg_scale=0.5)
TWO_STREAM = dict(target_position='two_stream')
MASKED = [dict(attention='mixed'), dict(attention='bidirectional')]


def cases(*ways, slow=(), alone=()):
    """Parameters (variant, how): of the plain network, and slow ones of others that can; `alone`
    are of the plain network, and slow but for the first."""
    found = [({}, how) for how in [*ways, *alone[:1]]]
    found += [pytest.param({}, how, marks=pytest.mark.slow) for how in alone[1:]]
    found += [pytest.param({}, how, marks=pytest.mark.slow) for how in slow]
    ways += slow
    others = [(variant, how) for variant in (TWO_STREAM, *MASKED) for how in ways]
    found += [
        pytest.param(variant, how, marks=pytest.mark.slow)
        for variant, how in others
        if variant is TWO_STREAM or how not in (LOSSLESS, PENALIZED)
    ]
    return pytest.mark.parametrize('variant, how', found, ids=str)


def small(device, seed=0, **variant):
    model = make_model(seed, block_size=12, n_layer=1, **variant).float()
    model.register_buffer('counts', torch.arange(11), persistent=False)
    model.register_buffer('exempt', torch.tensor([10]), persistent=False)
    return model.to(device)


def texts(device, n, seed=1):
    """(idx, order) of n rows of 12 positions."""
    g = torch.Generator().manual_seed(seed)
    idx = torch.randint(11, (n, 12), generator=g)
    return idx.to(device), torch.rand(n, 12, generator=g).argsort(-1).to(device)


def running(network, device, n_known, how):
    """(the canvas of two rows, the generator of its steps)."""
    canvas = Canvas(*texts(device, 2, n_known), torch.tensor([n_known] * 2), range(2))
    how = dict(n_steps=5, schedule='linear', policy='given') | how
    drawing = drawing_in(how)
    chosen = unmasking_of(**how)
    return canvas, steps(network, canvas, chosen, drawing)


def counts_of(steps):
    """[Counts] of what each next(steps) does, until they end."""
    found = []
    while True:
        with counted() as counts:
            if next(steps, None) is None:
                return found
        found.append(counts)


@cases(*NEVER, alone=PLANNED)
def test_no_step_waits(simulated, variant, how):
    """Not in the first call, nor where steps are recorded, nor in a later call; and the plan of all
    steps is one copy to the device."""

    def body(device):
        network = freeze(small(device, **variant))
        for _ in range(3):
            _, several = running(network, device, 3, how)
            first, *others = counts_of(several)
            assert not first.waits
            most = 3 if how in PLANNED else 2  # the plan, which rows run, and a dilated order
            assert first.copies.total() <= most
            assert len(others) > 2
            for counts in others:
                assert (counts.waits, counts.copies) == ({}, {})
        assert simulated_gpu.Graph.n_replays

    simulated(body)


@cases(THRESHOLD, PENALIZED, alone=BY_RULES, slow=(LOSSLESS,))
def test_a_step_that_depends_on_logits_waits_once(simulated, variant, how):
    def body(device):
        network = freeze(small(device, **variant))
        for _ in range(3):
            _, several = running(network, device, 3, how)
            for counts in counts_of(several):
                assert counts.waits.total() == 1, counts.waits
        assert simulated_gpu.Graph.n_replays

    simulated(body)


def test_a_stop_is_looked_for_with_one_wait(simulated, ckpt):
    def body(device):
        writer = Writer(ckpt)
        way, page = writer.asked(None, None, dict(order='l2r', stop='never', length=12))
        (scroll,) = writer.scrolls(writer.read('a', way, page, 2, 1), 1, 2, page)
        first, *others = counts_of(writer.write(scroll, way))
        assert len(others) > 5
        for counts in others:
            assert counts.waits.total() == 1, counts.waits

    simulated(body)


@cases(NEVER[0], THRESHOLD, slow=(NEVER[5], LOSSLESS))
def test_two_models_by_turns(simulated, variant, how):
    """Each is recorded, with another number of rows recorded again, and writes what it writes
    without graphs."""

    def body(device):
        models = [small(device, seed, **variant) for seed in (0, 1)]

        def write(network, n):
            known = torch.tensor([8, 6, 9][:n])
            text = dict(n_steps=5, seeds=range(n), return_trace=True) | how
            return generate(network, *texts(device, n), known, **text)

        plain = []
        for model in models:
            network = freeze(model)
            network.graphs = False
            plain.append({n: write(network, n) for n in (2, 3)})
        recorded = [freeze(model) for model in models]
        for n in (2, 2, 3, 3, 2):
            for network, wanted in zip(recorded, plain):
                got, trace = write(network, n)
                want, traced = wanted[n]
                assert torch.equal(got, want)
                for name in ('order', 'step'):
                    assert torch.equal(trace[name], traced[name])
                assert torch.allclose(trace['logprob'], traced['logprob'], atol=1e-4)
        assert simulated_gpu.Graph.n_replays

    simulated(body)


@pytest.mark.slow
@pytest.mark.parametrize('variant', MASKED, ids=str)
def test_guidance_does_not_see_what_stands_behind_a_text(simulated, variant):
    """A place on the device is wider than the text."""

    def body(device):
        g = torch.Generator().manual_seed(1)
        idx = torch.randint(11, (3, 20), generator=g)
        order = torch.rand(3, 20, generator=g).argsort(-1)
        how = dict(n_steps=5, seeds=range(3), return_trace=True, cfg_scale=1.5)
        model = make_model(block_size=80, n_layer=1, **variant).float()
        text, trace = generate(model, idx, order, torch.tensor([12, 5, 18]), **how)
        network = freeze(model.to(device))
        rows = idx.to(device), order.to(device)
        got, there = generate(network, *rows, torch.tensor([12, 5, 18]), **how)
        assert torch.equal(got.cpu(), text)
        assert torch.allclose(there['logprob'].cpu(), trace['logprob'], atol=1e-3)
        assert simulated_gpu.Graph.n_replays

    simulated(body)


def test_two_texts_of_a_model_by_turns(simulated):
    def body(device):
        network = freeze(small(device))
        alone = []
        for n_known in (3, 2):
            canvas, several = running(network, device, n_known, NEVER[0])
            assert len(counts_of(several)) == 5
            alone.append(canvas.idx)
        (one, steps_of_one), (other, steps_of_other) = [
            running(network, device, n_known, NEVER[0]) for n_known in (3, 2)
        ]
        for _ in zip(steps_of_one, steps_of_other, strict=True):
            pass
        assert torch.equal(one.idx, alone[0])
        assert torch.equal(other.idx, alone[1])
        assert simulated_gpu.Graph.n_replays

    simulated(body)
