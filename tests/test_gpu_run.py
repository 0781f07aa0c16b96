"""results/gpu/run.py: what is run and when, what is kept, and that its commands are understood."""

import importlib.util
import json
import os
import shlex
import subprocess

import pytest
from conftest import ROOT, program_of

from configurator import configure

spec = importlib.util.spec_from_file_location(
    'gpu_run', os.path.join(ROOT, 'results', 'gpu', 'run.py')
)
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)

RATE = """    dtype  ms/update  tokens/s    MFU  peak MiB
ours  bfloat16  50.0    80,000  51.5%     9,000
"""
MACHINE = {'device': 'NVIDIA A GPU', 'torch': '2.11', 'commit': '1'}


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """gpu(*options) records the commands of the parts, and returns them and the page.

    gpu.fails are words of commands that fail."""
    ran = []
    fails = []

    def record(words, stdout, **_):
        ran.append(words[1:])
        print(RATE, end='', file=stdout)
        if any(word in words for word in fails):
            raise subprocess.CalledProcessError(3, words)

    def run_parts(*options):
        ran.clear()
        config = configure(vars(run), [f'--out={tmp_path}/out', *options])
        try:
            run.main(config)
        except SystemExit as e:
            assert str(e).startswith('failed: ')
        path = tmp_path / 'out' / 'a_gpu.md'
        page = path.read_text(encoding='utf-8') if path.exists() else ''
        return list(ran), page

    monkeypatch.setattr(subprocess, 'run', record)
    monkeypatch.setattr(run, 'resolve_device', lambda device, dtype: ('cuda', 'bfloat16'))
    monkeypatch.setattr(run, 'environment', lambda device: dict(MACHINE))
    monkeypatch.chdir(tmp_path)
    run_parts.fails = fails
    return run_parts


def section(page, part):
    return page.partition(f'## {part}\n')[2].partition('\n## ')[0]


def test_all_that_is_said_is_kept(gpu, tmp_path):
    ran, page = gpu()
    assert page.startswith('# NVIDIA A GPU\n')
    assert 'Not measured' not in page
    assert 'FAILED' not in page
    assert '(text.png)' in page
    assert '$ python -m anyorder.extras.speed ensemble' in section(page, 'ensemble')
    kept = json.loads((tmp_path / 'out' / 'results.json').read_text())
    assert len(kept['steps']) == len(ran)
    assert kept['steps']['grid']['text'] == RATE
    (trained,) = (words for words in ran if words[:2] == ['train.py', 'config/books.py'])
    n = 300 * 80000 // (256 * 64)
    assert f'--max_iters={n}' in trained  # as many updates as fit


def test_what_is_finished_is_not_run_again_and_what_failed_is(gpu):
    gpu.fails.append('grid')
    ran, page = gpu('--parts=grid,ensemble')
    assert len(ran) == 2
    assert 'FAILED: ended with code 3' in section(page, 'grid')
    assert 'FAILED' not in section(page, 'ensemble')  # a failure does not end the run
    gpu.fails.clear()
    ran, page = gpu('--parts=grid,ensemble')
    assert [words[2] for words in ran] == ['grid']
    assert 'FAILED' not in page
    assert gpu('--parts=grid,ensemble')[0] == []


def test_what_does_not_fit_into_the_minutes_is_left_and_said(gpu, capsys):
    ran, page = gpu('--parts=train,ensemble', '--minutes=1.2')  # 72 s
    assert [words[2] for words in ran] == ['train']
    assert '--compile=False' in ran[0]
    assert 'left for later: ensemble, which may take 90 s' in capsys.readouterr().out
    assert page.count('Not measured.') == len(run.PARTS) - 1


@pytest.mark.slow
def test_a_command_is_ended_at_its_limit(tmp_path):
    slow = 'import time; print("began", flush=True); time.sleep(60)'
    kept = run.run(shlex.join(['-c', slow]), tmp_path / 'slow.txt', 1)
    assert kept['seconds'] < 30
    assert kept['text'] == 'began\n'
    assert kept['failed'] == 'took more than 1 s'


@pytest.mark.parametrize('toy', [False, True])
def test_every_command_is_understood(gpu, script, tmp_path, monkeypatch, toy):
    ran, _ = gpu(f'--toy={toy}')
    os.symlink(os.path.join(ROOT, 'config'), tmp_path / 'config')
    monkeypatch.undo()  # commands run now
    assert len(ran) > 24
    one_of_a_kind = {}
    for program, args in map(program_of, ran):
        one_of_a_kind[program, args[0]] = args
    for (program, _), args in one_of_a_kind.items():
        if program == 'anyorder.extras.puzzles make':
            script(program, *args, '--n_train=-1', code=1)
        elif program == 'anyorder.extras.pictures':
            assert 'no log' in script(program, *args, code=1).stderr
        elif program != 'pytest':
            said = script(program, *args, '--device=nowhere', code=1).stderr
            assert 'nowhere' in said or 'no checkpoint file' in said, said


@pytest.mark.parametrize(
    'option, said',
    [('--parts=grid,spped', 'parts must be of .*, got spped'), ('--out=', 'out must name')],
)
def test_wrong_options_are_one_line(gpu, option, said):
    with pytest.raises(ValueError, match=said):
        gpu(option)


def test_another_machine_wants_another_folder(gpu, monkeypatch):
    gpu('--parts=ensemble')
    monkeypatch.setattr(run, 'environment', lambda device: MACHINE | {'torch': '2.13'})
    with pytest.raises(ValueError, match='choose another --out'):
        gpu('--parts=ensemble')
