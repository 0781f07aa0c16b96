"""On a device that is not the CPU: nothing mixes the two, results are equal, no update and no step waits for it."""
import importlib
import json
import math
import re
import sys

import pytest
import simulated_gpu
from conftest import make_model
from masked_kinds import KINDS

from anyorder.checkpoint import save_checkpoint
from anyorder.tokens.prepared import prepare
from anyorder.tokens.puzzles import prepare_puzzles

SMALL = ['--n_layer=1', '--n_head=2', '--n_embd=16', '--block_size=16', '--batch_size=4', '--eval_iters=1',
         '--compile=False', '--n_threads=1', '--eval_interval=100', '--log_interval=100', '--gate_init=1']


@pytest.fixture
def simulated(forked, tmp_path, monkeypatch):
    """simulated('train.py', '--x=1', ...) runs a script on the simulated device, in a fork; what it said."""
    importlib.import_module('torch._dynamo')   # two seconds, here once and not in every fork

    def run(*command, code=0):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, 'argv', ['simulated_gpu.py', *command])
        finished, = forked(simulated_gpu.main)
        assert finished.code == code, finished.said
        return finished.said
    return run


@pytest.fixture
def gpu(simulated, process):
    """As `simulated`; {line that waits: how often, 'replayed': how many graphs}.

    Training has a process of its own: in a fork autograd does not know a device that came after its first use."""
    def run(*command):
        train = 'train.py' in command
        said = process('tests/simulated_gpu.py', *command).stdout if train else simulated(*command)
        return {line: int(n) for line, n in re.findall(r'^(waited in .*|replayed): (\d+)$', said, re.MULTILINE)}
    return run


@pytest.fixture
def words(tmp_path):
    (tmp_path / 'words.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 40)
    prepare('text', tmp_path / 'data', name='words', source=str(tmp_path / 'words.txt'), tokenizer='bytes')
    return ['--dataset=words', '--data_dir=data', *SMALL]


def last_of(path):
    return json.loads(path.read_text().splitlines()[-1])


def same(here, there, keys):
    for key in keys:
        assert math.isclose(here[key], there[key], rel_tol=1e-4), key


def same_estimates(there, script, tmp_path):
    """The rows of eval_ppl.py on a simulated device, `gpu` or `mac`, are those of the CPU."""
    options = ['--ckpt=cpu/ckpt.pt', '--estimates=l2r,any,ensemble', '--n_contexts=3', '--n_blocks=3']
    there('eval_ppl.py', *options, '--out=there.json')
    script('eval_ppl.py', *options, '--out=cpu.json', '--device=cpu')
    tables = [json.loads((tmp_path / name).read_text())['results'] for name in ('cpu.json', 'there.json')]
    assert len(tables[0]) == len(tables[1]) > 4
    for row, other in zip(*tables):
        same(row, other, ['nats_per_token'])


@pytest.fixture
def mac(gpu):
    """As `gpu`, on a device without float64."""
    return lambda *command: gpu('--mac', *command)


def test_float64_is_an_error_on_a_mac(simulated, tmp_path):
    (tmp_path / 'wide.py').write_text("import torch\nx = torch.ones(2, device='sim')\nprint(x.double().tolist())\n")
    assert simulated(str(tmp_path / 'wide.py')).startswith('[1.0, 1.0]')
    assert 'the device has no float64' in simulated('--mac', str(tmp_path / 'wide.py'), code=1)


def test_tensors_of_both_devices_do_not_mix(simulated, tmp_path):
    for size, code in ('2', 1), ('()', 0):   # a number may come from the host, a vector may not
        (tmp_path / 'mixed.py').write_text('import torch\n'
                                           f"print((torch.ones(2, device='sim') + torch.ones({size})).tolist())\n")
        said = simulated(str(tmp_path / 'mixed.py'), code=code)
        assert "aten::add of ['sim', 'cpu']" in said if code else said.startswith('[2.0, 2.0]\nwaited in ')


@pytest.mark.parametrize('order, graphs', [('margin', False), ('random', True)])
def test_prompts_of_unequal_length(gpu, script, tmp_path, order, graphs):
    model = make_model(block_size=64, vocab_size=320, n_tokens=257).float()
    save_checkpoint(tmp_path / 'ckpt.pt', model, tokenizer='bytes')
    prompts = '[[2]]', 'a' * 40 + '[[9]]', 'b[[5]]c', 'begin[[3]]'
    (tmp_path / 'p.jsonl').write_text('\n'.join(json.dumps({'prompt': prompt}) for prompt in prompts))
    options = ['--ckpt=ckpt.pt', '--weights=raw', '--prompt=FILE:p.jsonl', '--n_samples=1', f'--order={order}']
    waits = gpu('sample.py', *options, '--out=gpu.json', f'--cuda_graphs={graphs}')
    assert (waits.pop('replayed', 0) > 0) == graphs and max(waits.values()) == 4   # at the end: none in a step
    script('sample.py', *options, '--out=cpu.json', '--device=cpu')
    cpu, gpu = (json.loads((tmp_path / name).read_text())['samples'] for name in ('cpu.json', 'gpu.json'))
    assert [(s['tokens'], s['order']) for s in cpu] == [(s['tokens'], s['order']) for s in gpu] and len(cpu) == 4


@pytest.mark.parametrize('graphs', [False, True])
def test_lossless_text(gpu, tmp_path, graphs):
    model = make_model(block_size=64, vocab_size=320, n_tokens=257).float()
    save_checkpoint(tmp_path / 'ckpt.pt', model, tokenizer='bytes')
    (tmp_path / 'p.jsonl').write_text('{"prompt": "ab"}\n{"prompt": "%s[[9]]"}\n{"prompt": "c[[20]]"}\n' % ('a' * 40))
    texts = []
    for window in (1, 16):
        waits = gpu('sample.py', '--ckpt=ckpt.pt', '--weights=raw', '--prompt=FILE:p.jsonl', '--unmask=lossless',
                    f'--window={window}', '--out=o.json', f'--cuda_graphs={graphs}')
        samples = json.loads((tmp_path / 'o.json').read_text())['samples']
        texts.append([s['tokens'] for s in samples])
        passes = max(s['passes'] for s in samples)
        assert (waits.pop('replayed', 0) > 0) == graphs
        # for the cells of the noise, for how many drafts are right, and for the drafts that --out keeps
        assert [n for n in waits.values() if n > 4] == [passes] * 3
    assert texts[0] == texts[1]


def test_text(gpu, script, words, tmp_path):
    waits = gpu('train.py', *words, '--max_iters=9', '--out_dir=gpu')
    assert any('totals.tolist()' in line for line in waits) and max(waits.values()) < 9   # none in an update
    script('train.py', *words, '--max_iters=9', '--out_dir=cpu', '--device=cpu', '--dtype=float32')
    same(last_of(tmp_path / 'cpu/log.jsonl'), last_of(tmp_path / 'gpu/log.jsonl'),
         ('loss', 'grad_norm', 'val_any', 'val_l2r'))

    # entropies of a model that knows little are as near to each other as rounding
    for order, prompt, graphs, n_replays in (('margin', 'a[[..]]z', False, 0), ('random', 'a', True, 13),
                                             ('top_prob', 'a[[..]]z', True, 7)):
        options = ['--ckpt=cpu/ckpt.pt', f'--order={order}', f'--prompt={prompt}', '--top_k=50']
        waits = gpu('sample.py', *options, '--out=gpu.json', f'--cuda_graphs={graphs}')
        assert waits.pop('replayed', 0) == n_replays and max(waits.values()) == 4   # at the end: none in a step
        script('sample.py', *options, '--out=cpu.json', '--device=cpu')
        samples = [json.loads((tmp_path / name).read_text())['samples'] for name in ('cpu.json', 'gpu.json')]
        for here, there in zip(*samples, strict=True):
            assert here['tokens'] == there['tokens'] and here['order'] == there['order']
            same(here, there, ['nats'])

    same_estimates(gpu, script, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['llada', 'bert'])
def test_text_by_a_masked_model_of_others(gpu, script, kind, tmp_path):
    pytest.importorskip('transformers')
    KINDS[kind](tmp_path)
    options = [f'--ckpt=masked:{tmp_path}', '--order=margin', '--prompt=the[[..]]', '--length=9', '--n_steps=6']
    waits = gpu('sample.py', *options, '--out=gpu.json')
    script('sample.py', *options, '--out=cpu.json', '--device=cpu')
    samples = [json.loads((tmp_path / name).read_text())['samples'] for name in ('cpu.json', 'gpu.json')]
    for here, there in zip(*samples, strict=True):
        assert here['tokens'] == there['tokens'] and here['order'] == there['order']
        same(here, there, ['nats'])
    assert max(waits.values()) == 4   # at the end: none in a step


@pytest.mark.slow
def test_text_on_a_mac(mac, script, words, tmp_path):
    """Random numbers are of float32, so orders and draws are others. Losses and probabilities are the same."""
    mac('train.py', *words, '--max_iters=3', '--out_dir=mac', '--order=l2r', '--l2r_ratio=0')
    script('train.py', *words, '--max_iters=3', '--out_dir=cpu', '--device=cpu', '--dtype=float32', '--order=l2r',
           '--l2r_ratio=0')
    same(last_of(tmp_path / 'cpu/log.jsonl'), last_of(tmp_path / 'mac/log.jsonl'), ('loss', 'grad_norm', 'val_l2r'))
    for options in (['--top_p=.9', '--order=margin'], ['--top_k=5', '--unmask=lossless']):
        options = ['--ckpt=cpu/ckpt.pt', '--prompt=a[[..]]z', *options]
        mac('sample.py', *options, '--out=mac.json')
        script('sample.py', *options, '--out=cpu.json', '--device=cpu')
        samples = [json.loads((tmp_path / name).read_text())['samples'] for name in ('cpu.json', 'mac.json')]
        for here, there in zip(*samples, strict=True):   # draws, of float64 rounded to float32, are the same but rarely
            assert here['tokens'] == there['tokens'] and here['order'] == there['order']
            same(here, there, ['nats'])
    same_estimates(mac, script, tmp_path)


@pytest.mark.slow
def test_puzzles_on_a_mac(mac, tmp_path):
    prepare_puzzles('sudoku4', tmp_path / 'data', n_rows={'train': 200, 'val': 20, 'test': 20})
    mac('train.py', '--dataset=sudoku4', '--data_dir=data', *SMALL, '--attention=bidirectional', '--l2r_ratio=0',
        '--max_iters=3', '--out_dir=mac')
    mac('eval_puzzle.py', '--ckpt=mac/ckpt.pt', '--policies=random,top_prob', '--n_puzzles=10', '--out=puzzles.json')


@pytest.mark.slow
def test_puzzles(gpu, script, tmp_path):
    prepare_puzzles('sudoku4', tmp_path / 'data', n_rows={'train': 200, 'val': 20, 'test': 20})
    options = ['--dataset=sudoku4', '--data_dir=data', *SMALL, '--attention=bidirectional', '--l2r_ratio=0',
               '--optimizer=muon', '--max_iters=3']
    gpu('train.py', *options, '--out_dir=gpu')
    script('train.py', *options, '--out_dir=cpu', '--device=cpu', '--dtype=float32')
    same(last_of(tmp_path / 'cpu/log.jsonl'), last_of(tmp_path / 'gpu/log.jsonl'), ('loss', 'grad_norm', 'val_any'))
    options = ['--ckpt=cpu/ckpt.pt', '--policies=random,top_prob', '--n_puzzles=10', '--out=puzzles.json']
    tables = []
    for run, device in (gpu, []), (script, ['--device=cpu']):
        run('eval_puzzle.py', *options, *device)
        rows = json.loads((tmp_path / 'puzzles.json').read_text())['results']
        tables.append([{name: value for name, value in row.items() if name != 'seconds'} for row in rows])
    assert tables[0] == tables[1] and len(tables[0]) == 2
