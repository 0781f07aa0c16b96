"""On a device that is not the CPU: nothing mixes the two, results are equal, no update and no step waits for it."""

import importlib
import json
import re
import sys

import pytest
import simulated_gpu

from anyorder.tokens.prepared import prepare

SMALL = [
    '--n_layer=1',
    '--n_head=2',
    '--n_embd=16',
    '--block_size=16',
    '--batch_size=4',
    '--eval_iters=1',
    '--compile=False',
    '--n_threads=1',
    '--eval_interval=100',
    '--log_interval=100',
    '--gate_init=1',
]


def waits(said):
    """{line that waits: how often, 'replayed': how many graphs}."""
    return {
        line: int(n)
        for line, n in re.findall(r'^(waited in .*|replayed): (\d+)$', said, re.MULTILINE)
    }


def test_what_runs_on_a_gpu_runs_on_the_simulated_one(
    forked, process, script, tmp_path, monkeypatch
):
    (tmp_path / 'words.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 40)
    prepare(
        'text',
        tmp_path / 'data',
        name='words',
        source=str(tmp_path / 'words.txt'),
        tokenizer='bytes',
    )
    importlib.import_module('torch._dynamo')  # two seconds, here once and not in every fork
    monkeypatch.chdir(tmp_path)

    def gpu(*command):
        """Runs in a fork; training does not, since autograd does not know a device that comes after its first use."""
        monkeypatch.setattr(sys, 'argv', ['simulated_gpu.py', *command])
        (finished,) = forked(simulated_gpu.main)
        assert finished.code == 0, finished.said
        return waits(finished.said)

    def same(gpu_rows, cpu_rows, *keys):
        for here, there in zip(cpu_rows, gpu_rows, strict=True):
            assert [here[key] for key in keys] == pytest.approx(
                [there[key] for key in keys], rel=1e-4
            )

    train = ['train.py', '--dataset=words', '--data_dir=data', *SMALL, '--max_iters=9']
    waited = waits(process('tests/simulated_gpu.py', *train, '--out_dir=gpu').stdout)
    assert (
        any('means.tolist()' in line for line in waited) and max(waited.values()) < 9
    )  # none in an update
    script(*train, '--out_dir=cpu', '--device=cpu', '--dtype=float32')
    logs = (
        [json.loads((tmp_path / name / 'log.jsonl').read_text().splitlines()[-1])]
        for name in ('gpu', 'cpu')
    )
    same(*logs, 'loss', 'grad_norm', 'val_any', 'val_l2r')

    for order, graphs, n_replays in ('margin', False, 0), ('random', True, 13):
        sample = ['sample.py', '--ckpt=cpu/ckpt.pt', '--top_k=50', '--prompt=a', f'--order={order}']
        waited = gpu(*sample, '--out=gpu.json', f'--cuda_graphs={graphs}')
        assert (
            waited.pop('replayed', 0) == n_replays and max(waited.values()) == 4
        )  # at the end: none in a step
        script(*sample, '--out=cpu.json', '--device=cpu')
        found = [
            json.loads((tmp_path / name).read_text())['samples']
            for name in ('gpu.json', 'cpu.json')
        ]
        assert [(s['tokens'], s['order']) for s in found[0]] == [
            (s['tokens'], s['order']) for s in found[1]
        ]
        same(*found, 'nats')

    estimate = [
        'eval_ppl.py',
        '--ckpt=cpu/ckpt.pt',
        '--estimates=l2r,any,ensemble',
        '--n_contexts=3',
        '--n_blocks=3',
    ]
    gpu(*estimate, '--out=gpu.json')
    script(*estimate, '--out=cpu.json', '--device=cpu')
    same(
        *(
            json.loads((tmp_path / name).read_text())['results']
            for name in ('gpu.json', 'cpu.json')
        ),
        'nats_per_token',
    )
