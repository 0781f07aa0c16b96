"""results/gpu/run.py and choices.py: what is run and when, what a page says, and that it says nothing unmeasured."""
import importlib.util
import json
import os
import shlex
import subprocess
import time
from types import SimpleNamespace

import pytest
from conftest import ROOT

from configurator import configure

spec = importlib.util.spec_from_file_location('gpu_run', os.path.join(ROOT, 'results', 'gpu', 'run.py'))
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)

SAID = {
    'train': '2,000 parameters, batch 8\n'
             '               dtype  compiled  ms/update   tokens/s     MFU  peak MiB\n'
             'ours        bfloat16      True       50.0    {rate}   51.5%     9,000\n',
    'sample': ' steps   seconds   ms/step   tokens/s  of limit  peak MiB   plain s  plain / ours\n'
              '    16      {seconds}       2.0      1,000     10.0%       300\n'
              '    64      0.50       2.0      1,000     10.0%       300\n'
              '    12      0.10       8.3     10,000                 300  lossless, window 32\n',
    'loss': 'all logits in float32                   0.20     4,000    0.0000\n'
            'F.linear_cross_entropy, in parts              not in this torch\n'
            'TokenLoss                               0.10     1,000    0.0003\n',
    'ensemble': 'ours               1,000           500      0.10\n'
                'plain             90,000        90,000      2.50   (64 of 9,000 passes timed)\n'
                'ours is 25.0 times as fast\n',
    'rows': 'Rows               2.000              1.00\nF.embedding        1.500              0.75\n',
    'buckets': 'multiples of 64      3.00      9.00      20\nmultiples of 128     2.00      8.00      12\n',
    'pytest': '....\n============ 120 passed, 25 skipped in 12.30s ============\n',
}


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """gpu(*options) runs the parts with commands that are recorded; those it ran. `fails` are words of others."""
    ran, fails = [], []

    def record(words, stdout=None, timeout=None, **_):
        ran.append(words[1:])
        name = next((name for name in SAID if name in words), '')
        text = SAID.get(name, 'said\n').replace('{rate}', '90,000' if '--batch_size=16' in words else '80,000')
        print(text.replace('{seconds}', '0.20' if '--cuda_graphs=True' in words else '0.50'), end='', file=stdout)
        return SimpleNamespace(returncode=int(any(word in words for word in fails)))

    def run_parts(*options):
        ran.clear()
        config = configure(vars(run), [f'--out={tmp_path}/out', f'--pages={tmp_path}/pages', *options])
        try:
            run.main(config)
        except SystemExit as e:
            assert e.code == 1
        with open(tmp_path / 'pages' / 'a_gpu.md', encoding='utf-8') as f:
            return list(ran), f.read()
    monkeypatch.setattr(subprocess, 'run', record)
    monkeypatch.setattr(run, 'resolve_device', lambda device, dtype: ('cuda', 'bfloat16'))
    monkeypatch.setattr(run, 'machine', lambda c: {'device': 'NVIDIA A GPU', 'torch': '2.11', 'driver': None})
    monkeypatch.chdir(tmp_path)
    run_parts.fails = fails
    return run_parts


def section(page, part):
    return page.partition(f'## {part}\n')[2].partition('\n## ')[0]


def test_every_part_says_what_it_decides(gpu, tmp_path):
    ran, page = gpu()
    assert page.startswith('# NVIDIA A GPU\n\ntorch 2.11.\n') and 'Not measured' not in page and 'Failed' not in page
    plan = run.planned('small', 16, True, 'bfloat16')
    for part, sentence in (
            ('equalities', 'None fails: 120 passed, 25 skipped in 12.30s.'),
            ('train', 'small: of batch_size 8, 16, 32 the fastest is 16, 90,000 tokens/s, MFU 51.5 %, at least the'),
            ('train', f'small, batch_size 16: peak 9,000 MiB, {9000 / plan:.0%} of the plan.'),
            ('train', 'torch.compile: 1.00 times eager: leave it off.'),
            ('choices', "AdaLN's table: F.embedding is the fastest, 1.5 ms."),
            ('choices', 'multiples of 128 are the fastest, 2 s with 12 graphs.'),
            ('sample', 'CUDA graphs, 32 rows: 2.50 times at 16 steps, 1.00 times at 64 steps: keep them.'),
            ('ensemble', 'Ours is 25.0 times as fast as the plain way.'),
            ('loss', 'The fastest is TokenLoss, 0.1 s.'), ('text', 'a_gpu_text.png')):
        assert sentence in section(page, part), section(page, part)
    saved = json.loads((tmp_path / 'pages' / 'a_gpu.json').read_text())
    assert len(saved['steps']) == len(ran) and all(step['seconds'] >= 0 for step in saved['steps'].values())
    assert saved['steps']['loss']['rows'][1] == {'label': 'TokenLoss', 'seconds': 0.1, 'peak MiB': 1000, 'off by': 3e-4}
    assert len(saved['steps']['sample_1_eager']['rows']) == 2


def test_the_text_takes_as_many_updates_as_fit(gpu):
    ran, _ = gpu('--parts=text')
    trained, = (words for words in ran if words[0] == 'train.py')
    assert f'--max_iters={300 * 80000 // (256 * 64)}' in trained


def test_what_is_finished_is_not_made_again_and_what_failed_is(gpu):
    gpu.fails.append('loss')
    ran, page = gpu('--parts=loss,ensemble')
    assert len(ran) == 2 and 'Failed: ' in section(page, 'loss') and 'fastest' not in section(page, 'loss')
    assert 'Ours is 25.0' in section(page, 'ensemble')   # a failure does not end the run
    gpu.fails.clear()
    ran, page = gpu('--parts=loss,ensemble')
    assert [words[1] for words in ran] == ['loss'] and 'Failed' not in page
    assert gpu('--parts=loss,ensemble')[0] == []


def test_what_does_not_fit_into_the_minutes_is_left_and_said(gpu, capsys):
    ran, page = gpu('--parts=loss,ensemble,text', '--minutes=1.2')   # 72 s
    assert [words[1] for words in ran] == ['loss'] and 'Not measured.' in section(page, 'ensemble')
    assert 'left for later: ensemble, which may take 90 s' in capsys.readouterr().out
    assert page.count('Not measured.') == len(run.PARTS) - 1   # and no number stands under them
    assert not any(sentence in page for sentence in ('fastest is 16', 'times as fast', 'CUDA graphs, '))


def test_a_command_is_ended_at_its_limit(tmp_path):
    path, began = str(tmp_path / 'slow'), time.monotonic()
    with pytest.raises(ValueError, match='took more than 1 s'):
        run.make(path, ['python', '-c', 'import time; time.sleep(60)'], 1)
    assert time.monotonic() - began < 30 and not os.path.exists(f'{path}.txt')


def test_figures_of_another_machine_want_another_folder(gpu, monkeypatch):
    gpu('--parts=loss')
    monkeypatch.setattr(run, 'machine', lambda c: {'device': 'NVIDIA A GPU', 'torch': '2.13', 'driver': None})
    with pytest.raises(ValueError, match='choose another --out'):
        gpu('--parts=loss')


def test_a_missing_package_leaves_out_its_part(gpu, monkeypatch, capsys):
    monkeypatch.setattr(run, 'find_spec', lambda name: None if name == 'pytest' else True)
    assert gpu('--parts=equalities')[0] == []
    assert 'left out: equalities, which wants the package pytest' in capsys.readouterr().out


@pytest.mark.parametrize('toy', [False, True])
def test_every_command_is_understood(gpu, script, tmp_path, monkeypatch, toy):
    ran, _ = gpu(f'--toy={toy}', f'--data_dir={tmp_path}/data')
    os.symlink(os.path.join(ROOT, 'config'), tmp_path / 'config')
    monkeypatch.undo()   # commands run now
    assert len(ran) > (20 if toy else 30)
    for words in {tuple(words[:2]): words for words in ran}.values():   # one of a kind
        if words[0] == 'data/puzzles.py':
            script(*words, '--n_train=-1', code=1)
        elif words[0] == 'plot.py':
            assert 'no log' in script(*words, code=1).stderr
        elif words[0] != '-m':
            said = script(*words, '--device=nowhere', code=1).stderr
            assert 'nowhere' in said or 'no checkpoint file' in said, shlex.join(words) + said


@pytest.mark.parametrize('options, said', [
    (['--parts=loss,spped'], 'parts must be of .*, got spped'), (['--minutes=0'], 'minutes must be above 0'),
    (['--out='], 'out must name a folder')])
def test_wrong_options_are_one_line(gpu, options, said):
    with pytest.raises(ValueError, match=said):
        gpu(*options)


@pytest.mark.parametrize('choice', ['rows', 'buckets'])
def test_choices_are_timed(script, choice):
    said = script('results/gpu/choices.py', choice, '--toy=True', '--device=cpu', '--repeats=1').stdout
    columns = next(step.columns for step in run.steps('choices', SimpleNamespace(device='cpu', toy=True))
                   if choice in step.name)
    rows = run.rows_of(said, columns)
    if choice == 'rows':
        assert [row['label'] for row in rows] == ['Rows', 'F.embedding', 'an index']
    else:   # 64 keys in all: by 16 there are more sizes than by 64
        assert rows[0]['graphs'] > rows[1]['graphs'] > 0
