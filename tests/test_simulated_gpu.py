"""On a device that is not the CPU: nothing mixes the two, results are the same, no update and no step waits for it."""
import json
import math
import re

import pytest
from conftest import make_model

from anyorder.checkpoint import save_checkpoint
from data.prepare import prepare
from data.puzzles import prepare_puzzles

SMALL = ['--n_layer=1', '--n_head=2', '--n_embd=16', '--block_size=16', '--batch_size=4', '--eval_iters=1', '--compile=False',
         '--n_threads=1', '--eval_interval=100', '--log_interval=100', '--gate_init=1']


@pytest.fixture
def gpu(process):
    """gpu('train.py', '--x=1', ...) runs a script on the simulated device; {line that waits: how often, 'replayed': graphs}."""
    def run(*command):
        p = process('tests/simulated_gpu.py', *command)
        return {line: int(n) for line, n in re.findall(r'^(waited in .*|replayed): (\d+)$', p.stdout, re.MULTILINE)}
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


def test_tensors_of_both_devices_do_not_mix(process, tmp_path):
    for size, code in ('2', 1), ('()', 0):   # a number may come from the host, a vector may not
        (tmp_path / 'mixed.py').write_text(f"import torch\nprint((torch.ones(2, device='sim') + torch.ones({size})).tolist())\n")
        p = process('tests/simulated_gpu.py', str(tmp_path / 'mixed.py'), code=code)
        assert "aten::add of ['sim', 'cpu']" in p.stderr if code else p.stdout.startswith('[2.0, 2.0]\nwaited in ')


@pytest.mark.parametrize('order, graphs', [('margin', False), ('random', True)])
def test_prompts_of_unequal_length(gpu, script, tmp_path, order, graphs):
    save_checkpoint(tmp_path / 'ckpt.pt', make_model(block_size=64, vocab_size=320, n_tokens=257).float(), tokenizer='bytes')
    prompts = '[[2]]', 'a' * 40 + '[[9]]', 'b[[5]]c', 'begin[[3]]'
    (tmp_path / 'p.jsonl').write_text('\n'.join(json.dumps({'prompt': prompt}) for prompt in prompts))
    options = ['--ckpt=ckpt.pt', '--weights=raw', '--prompt=FILE:p.jsonl', '--n_samples=1', f'--order={order}']
    waits = gpu('sample.py', *options, '--out=gpu.json', f'--cuda_graphs={graphs}')
    assert (waits.pop('replayed', 0) > 0) == graphs and max(waits.values()) == 4                # at the end: none in a step
    script('sample.py', *options, '--out=cpu.json', '--device=cpu')
    cpu, gpu = (json.loads((tmp_path / name).read_text())['samples'] for name in ('cpu.json', 'gpu.json'))
    assert [(s['tokens'], s['order']) for s in cpu] == [(s['tokens'], s['order']) for s in gpu] and len(cpu) == 4


def test_text(gpu, script, words, tmp_path):
    waits = {n: gpu('train.py', *words, f'--max_iters={n}', f'--out_dir=gpu{n}') for n in (3, 6)}
    assert waits[3] == waits[6] and any('totals.tolist()' in line for line in waits[3])         # none in an update
    script('train.py', *words, '--max_iters=6', '--out_dir=cpu', '--device=cpu', '--dtype=float32')
    same(last_of(tmp_path / 'cpu/log.jsonl'), last_of(tmp_path / 'gpu6/log.jsonl'), ('loss', 'grad_norm', 'val_any', 'val_l2r'))

    for order, prompt, graphs, n_replays in ('margin', 'a[[..]]z', False, 0), ('random', 'a', True, 13), ('entropy', 'a[[..]]z', True, 7):
        options = ['--ckpt=cpu/ckpt.pt', f'--order={order}', f'--prompt={prompt}', '--top_k=50']
        waits = gpu('sample.py', *options, '--out=gpu.json', f'--cuda_graphs={graphs}')
        assert waits.pop('replayed', 0) == n_replays and max(waits.values()) == 4               # at the end: none in a step
        script('sample.py', *options, '--out=cpu.json', '--device=cpu')
        for here, there in zip(*(json.loads((tmp_path / name).read_text())['samples'] for name in ('cpu.json', 'gpu.json'))):
            assert here['tokens'] == there['tokens'] and here['order'] == there['order']
            same(here, there, ['nats'])

    options = ['--ckpt=cpu/ckpt.pt', '--estimates=l2r,any,ensemble', '--n_contexts=3', '--n_blocks=3']
    gpu('eval_ppl.py', *options, '--out=gpu.json')
    script('eval_ppl.py', *options, '--out=cpu.json', '--device=cpu')
    tables = [json.loads((tmp_path / name).read_text())['results'] for name in ('cpu.json', 'gpu.json')]
    assert len(tables[0]) == len(tables[1]) > 4
    for here, there in zip(*tables):
        same(here, there, ['nats_per_token'])


def test_puzzles(gpu, script, tmp_path):
    prepare_puzzles('sudoku4', tmp_path / 'data', n_rows={'train': 200, 'val': 20, 'test': 20})
    options = ['--dataset=sudoku4', '--data_dir=data', *SMALL, '--causal=False', '--l2r_ratio=0', '--optimizer=muon', '--max_iters=3']
    gpu('train.py', *options, '--out_dir=gpu')
    script('train.py', *options, '--out_dir=cpu', '--device=cpu', '--dtype=float32')
    same(last_of(tmp_path / 'cpu/log.jsonl'), last_of(tmp_path / 'gpu/log.jsonl'), ('loss', 'grad_norm', 'val_any'))
    options = ['--ckpt=cpu/ckpt.pt', '--policies=random,top_prob', '--n_puzzles=10', '--out=puzzles.json']
    tables = []
    for run, device in (gpu, []), (script, ['--device=cpu']):
        run('eval_puzzle.py', *options, *device)
        tables.append(json.loads((tmp_path / 'puzzles.json').read_text())['results'])
    assert tables[0] == tables[1] and len(tables[0]) == 2
