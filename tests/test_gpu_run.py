"""results/gpu/run.py: what is run and when, what is kept, and that its commands are understood."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, one_line, program_of
from torch.utils.flop_counter import FlopCounterMode

from configurator import configure


def loaded(name):
    """A program of results/gpu as a module."""
    path = os.path.join(ROOT, 'results', 'gpu', f'{name}.py')
    spec = importlib.util.spec_from_file_location(f'gpu_{name}', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run = loaded('run')
gpt2 = loaded('gpt2')

MACHINE_PROGRAM = os.path.join(ROOT, 'results', 'gpu', 'machine.py')
WRITTEN = {'passes': 64, 'first': 2.0, 'later': 0.5, 'peak_bytes': 2**30, 'of_limit': 0.125}
TRAINED = {'name': 'ours', 'compiled': True, 'first': 36.0, 'seconds': 0.1, 'mfu': 0.313}
TRAINED |= {'tokens_per_sec': 80000.0, 'peak_bytes': 2**31}
PAIR = {'name': 'residual', 'ratio': 1.04, 'ratios': [1.03, 1.04, 1.05], 'off_before': 0.003}
PAIR |= {'off_after': 0.004, 'before': {'seconds': 0.104}, 'after': TRAINED}
MACHINE = {'device': 'NVIDIA A GPU', 'torch': '2.11', 'commit': '1', 'GiB': 79.1}
MACHINE |= {'driver': '580', 'CUDA': '13.0', 'python': '3.12', 'numpy': '2', 'dtype': 'bfloat16'}
MACHINE |= {'device type': 'cuda'}


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """gpu(*options) records the commands of the parts, and returns them and the page.

    gpu.fails are words of commands that fail, gpu.needs has the seconds that those with a word
    need, gpu.machine is what machine.py says."""
    ran = []
    fails = []
    machine = dict(MACHINE)

    def record(words, stdout, timeout, **_):
        ran.append(words[1:])
        print('said\n  1%\r100%', file=stdout)
        for word, needed in run_parts.needs.items():
            if word in words and timeout < needed:
                raise subprocess.TimeoutExpired(words, timeout)
        if any(word in words for word in fails):
            raise subprocess.CalledProcessError(3, words)
        options = dict(word[2:].split('=', 1) for word in words if word.startswith('--'))
        if options.get('out', '').endswith('.json'):
            config = {'batch_size': '32', 'compile': 'auto'}
            row = TRAINED
            if 'sample' in words:
                config['network'] = 'decoder'
                row = WRITTEN
            elif 'generation' in words:
                row = {'name': 'static cache'} | WRITTEN
            elif 'results/gpu/call.py' in words:
                row = {'name': 'generate(model), given', 'network': 'decoder', 'weights': 0.003}
                row |= {key: WRITTEN[key] for key in ('passes', 'first', 'later', 'peak_bytes')}
            elif 'results/gpu/candidates.py' in words:
                row = PAIR
            figures = {'config': config | options, 'rows': [row]}
            with open(options['out'], 'w') as f:
                json.dump(figures, f)

    def run_parts(*options):
        ran.clear()
        config = configure(vars(run), [f'--out={tmp_path}/out', *options])
        try:
            run.main(config)
        except SystemExit as e:
            assert str(e).startswith('failed')
        path = tmp_path / 'out' / 'a_gpu.md'
        page = path.read_text(encoding='utf-8') if path.exists() else ''
        return list(ran), page

    monkeypatch.setattr(subprocess, 'run', record)
    monkeypatch.setattr(run, 'machine_of', lambda device: dict(machine))
    monkeypatch.chdir(tmp_path)
    run_parts.fails = fails
    run_parts.needs = {}
    run_parts.machine = machine
    return run_parts


def section(page, part):
    return page.partition(f'## {part}\n')[2].partition('\n## ')[0]


def test_all_that_is_said_is_kept(gpu, tmp_path):
    ran, page = gpu()
    assert page.startswith('# NVIDIA A GPU\n')
    assert '| NVIDIA A GPU, 79.1 GiB | 580 | 13.0 | 2.11 |' in page
    assert page.count('Not measured') == len(run.PARTS) - len(run.parts.split(','))
    assert 'FAILED' not in page
    assert '$ python -m anyorder.extras.speed ensemble' in section(page, 'ensemble')
    assert '\nsaid\n100%\n' in section(page, 'ensemble')
    kept = json.loads((tmp_path / 'out' / 'results.json').read_text())
    assert len(kept['steps']) == len(ran)


def test_a_network_learns_as_long_as_its_rate_allows(gpu):
    ran, _ = gpu('--parts=sudoku')
    n = 25 * 80000 // (256 * 81)
    trained = [words for words in ran if words[:2] == ['train.py', 'config/sudoku.py']]
    assert len(trained) == 3
    for words in trained:
        assert f'--max_iters={n}' in words  # as many updates as fit


def test_figures_stand_in_tables(gpu):
    _, page = gpu('--parts=generation,training,candidates', '--minutes=30')
    generation = section(page, 'generation')
    assert '| GPT-2 | 32 | static cache | 64 | 2.00 | 0.500 | 7.81 | 12.5% |' in generation
    assert '| encoder | 32 | compile=True | 64 | 2.00 | 0.500 | 7.81 | 12.5% |' in generation
    looked = 'generate(model), given, of which to look at the weights 3.0 ms'
    assert f'| decoder | 32 | {looked} | 64 | 2.00 | 0.500 | 7.81 |  |' in generation
    assert '\nsaid\n' not in generation
    training = section(page, 'training')
    assert '| ours | 64 | True | 36.0 | 100.0 | 80,000 | 31.3% | 2.00 |' in training
    pair = '| residual | 32 | 104.0 | 100.0 | 1.040 | 1.030 1.040 1.050 | 3.0e-03 | 4.0e-03 |'
    assert pair in section(page, 'candidates')
    wide = [line for line in page.splitlines() if len(line) > 100]
    assert [line for line in wide if not line.startswith(('|', '$'))] == []


def test_what_is_finished_is_not_run_again_and_what_failed_is(gpu):
    gpu.fails.append('ensemble')
    ran, page = gpu('--parts=ensemble,small')
    assert len(ran) == 2
    assert 'FAILED: ended with code 3' in section(page, 'ensemble')
    assert 'FAILED' not in section(page, 'small')  # a failure does not end the run
    gpu.fails.clear()
    ran, page = gpu('--parts=ensemble,small')
    assert [words[2] for words in ran] == ['ensemble']
    assert 'FAILED' not in page
    assert gpu('--parts=ensemble,small')[0] == []


def test_what_does_not_fit_into_the_minutes_is_left_and_the_command_that_goes_on_is_said(
    gpu, capsys, tmp_path
):
    options = ('--parts=equalities,training,ensemble', '--minutes=0.85')  # 51 s
    ran, page = gpu(*options)
    assert [words[0] for words in ran] == ['-m', 'results/gpu/gpt2.py', '-m', '-m']
    said = capsys.readouterr().out
    assert 'left for later: equalities, training_64, training_64_gpt2; this goes on:\n' in said
    go_on = shlex.split(said.splitlines()[-1])
    assert go_on[:2] == ['python', 'results/gpu/run.py']
    assert {*go_on[2:]} == {f'--out={tmp_path}/out', *options}
    assert page.count('Not measured.') == len(run.PARTS) - 2
    gpu('--parts=equalities,training,ensemble')
    assert 'left for later' not in capsys.readouterr().out


def test_a_command_is_ended_with_the_minutes_and_is_then_left_for_later(gpu, capsys):
    gpu.needs['ensemble'] = 60  # of 90 that it may take; 20 are expected
    _, page = gpu('--parts=ensemble', '--minutes=0.5')
    assert 'FAILED: was ended with the minutes' in section(page, 'ensemble')
    said = capsys.readouterr().out
    assert 'left for later: ensemble; this goes on:\n' in said
    assert '0 commands finished' in said
    ran, page = gpu('--parts=ensemble')
    assert len(ran) == 1
    assert 'FAILED' not in page
    gpu.needs['config/quickstart.py'] = 1000  # its limit ends it, not the minutes
    _, page = gpu('--parts=small')
    assert 'FAILED: took more than 120 s' in section(page, 'small')
    assert 'left for later' not in capsys.readouterr().out


def test_what_is_run_unasked_takes_twelve_minutes_on_an_h100_as_expected():
    seconds = {}
    for line in re.sub(r'\\\n *', '', run.COMMANDS).splitlines():
        if line:
            name, expected, limit, _, _ = line.split(maxsplit=4)
            assert int(expected) <= int(limit), name
            seconds.setdefault(run.part_of(name), []).append(int(expected))
    assert seconds.keys() == run.PARTS.keys()
    unasked = [n for part in run.parts.split(',') for n in seconds[part]]
    assert 600 <= sum(unasked) <= 60 * run.minutes
    with open(os.path.join(ROOT, 'results', 'gpu', 'README.md'), encoding='utf-8') as f:
        said = re.findall(r'\| `(\w+)` \| (\d+) s \|', f.read())
    assert {part: int(n) for part, n in said} == {part: sum(n) for part, n in seconds.items()}


def test_a_small_device_runs_what_it_has_memory_for(gpu, capsys, tmp_path):
    gpu.machine['GiB'] = 23.6
    ran, page = gpu('--parts=generation,training')
    assert 'left' not in capsys.readouterr().out
    words = {word for words in ran for word in words}
    assert '--batch_size=256' in words
    assert '--batch_size=512' not in words
    assert '--batch_size=64' not in words
    left_out = 'Left out: training_64 wants about 43 GiB, the device has 23.6.'
    assert left_out in section(page, 'training')
    gpu.machine['GiB'] = 79.1
    assert {'--batch_size=512', '--batch_size=64'} < {
        word
        for words in gpu('--parts=generation,training', f'--out={tmp_path}/other')[0]
        for word in words
    }


@pytest.mark.slow
def test_a_command_is_ended_at_its_limit(tmp_path):
    slow = 'import time; print("began", flush=True); time.sleep(999)'
    command = shlex.join(['-c', slow])
    for limit, left, why in [(1, 9, 'took more than 1 s'), (9, 1, run.MINUTES_ENDED)]:
        kept = run.run(run.Job('slow', 1, limit, command), tmp_path, left)
        assert kept['seconds'] < 999
        assert 'began\n'.startswith(kept['text'])  # which a busy machine has not said yet
        assert kept['failed'] == why


@pytest.mark.parametrize('toy', [False, True])
def test_every_command_is_understood(gpu, script, tmp_path, monkeypatch, toy):
    ran, _ = gpu(f'--toy={toy}', f'--parts={",".join(run.PARTS)}')
    os.symlink(os.path.join(ROOT, 'config'), tmp_path / 'config')
    monkeypatch.undo()  # commands run now
    assert len(ran) > 24
    one_of_a_kind = {}
    for program, args in map(program_of, ran):
        one_of_a_kind[program, args[0]] = args
    for (program, _), args in one_of_a_kind.items():
        if program == 'anyorder.extras.puzzles make':
            script(program, *args, '--n_train=-1', code=1)
        elif program.startswith('results/gpu/'):
            said = script(os.path.join(ROOT, program), *args, '--device=nowhere', code=1).stderr
            assert 'nowhere' in said
        elif program != 'pytest':
            said = script(program, *args, '--device=nowhere', code=1).stderr
            assert 'nowhere' in said or 'no checkpoint file' in said, said


def test_the_losses_that_a_small_run_is_compared_with_are_the_readmes():
    with open(os.path.join(ROOT, 'README.md'), encoding='utf-8') as f:
        quick_start = f.read().partition('## Quick start')[2].partition('\n## ')[0]
    for nats in re.findall(r'[\d.]+\d', run.PARTS['small']):
        assert nats in quick_start


@pytest.mark.parametrize(
    'option, said',
    [('--parts=ensemble,spped', 'parts must be of .*, got spped'), ('--out=', 'out must name')],
)
def test_wrong_options_are_one_line(gpu, option, said):
    with pytest.raises(ValueError, match=said):
        gpu(option)


def test_another_machine_wants_another_folder(gpu):
    gpu('--parts=ensemble')
    gpu.machine['torch'] = '2.13'
    with pytest.raises(ValueError, match='choose another --out'):
        gpu('--parts=ensemble')


@pytest.mark.slow
def test_a_machine_says_what_it_is():
    assert run.machine_of('cpu')['torch'] == torch.__version__


def test_what_a_machine_says(script):
    found = json.loads(script(MACHINE_PROGRAM, '--device=cpu').stdout)
    assert found['device type'] == 'cpu'
    assert found['torch'] == torch.__version__
    assert found.keys() == MACHINE.keys() | {'processes'}


def test_a_machine_without_the_device_is_one_line(script, monkeypatch):
    said = script(MACHINE_PROGRAM, '--device=nowhere', code=1).stderr
    asked = subprocess.CompletedProcess([], 1, stderr=said)
    monkeypatch.setattr(subprocess, 'run', lambda *_, **__: asked)
    with one_line('^(?!error: ).*nowhere'):
        run.machine_of('nowhere')


def test_the_driver_is_what_nvidia_smi_says(monkeypatch):
    machine = loaded('machine')
    asked = subprocess.CompletedProcess([], 0, stdout='580.65.06\n')
    monkeypatch.setattr(subprocess, 'run', lambda *_, **__: asked)
    assert machine.driver(0) == '580.65.06'
    monkeypatch.undo()
    monkeypatch.setenv('PATH', '')
    assert machine.driver(0) == 'unknown'


# --------------------------------------------------------------------------------------------------
# GPT-2

TINY = ['--n_layer=2', '--n_head=2', '--n_embd=16', '--block_size=9', '--vocab_size=11']


def test_gpt2_is_that_of_transformers():
    """The same logits, hence loss, from the same weights."""
    transformers = pytest.importorskip('transformers')
    config = configure(vars(gpt2), ['training', *TINY, '--n_tokens=11'])
    theirs = gpt2.transformers_model(transformers, config).double()
    ours = gpt2.GPT2(config).double()
    with torch.no_grad():
        for name, p in ours.named_parameters():
            of_theirs = name.replace('.c_attn', '.attn.c_attn').replace('.c_proj', '.attn.c_proj')
            of_theirs = of_theirs.replace('mlp.0', 'mlp.c_fc').replace('mlp.2', 'mlp.c_proj')
            weight = theirs.transformer.get_parameter(of_theirs)
            p.copy_(weight.T if '.c_' in of_theirs else weight)
    theirs.config.activation_function = 'gelu'
    for block in theirs.transformer.h:
        block.mlp.act = torch.nn.GELU()
    idx = torch.randint(11, (3, 10), generator=torch.Generator().manual_seed(0))
    want = theirs(idx[:, :-1]).logits.log_softmax(-1).gather(2, idx[:, 1:, None])
    torch.testing.assert_close(ours(idx[:, :-1], idx[:, 1:]), -want.mean())


def test_flops_of_gpt2_count_the_matrix_products():
    config = configure(vars(gpt2), ['training', *TINY])
    model = gpt2.GPT2(config)
    idx = torch.zeros(5, 9, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(idx, idx).backward()
    attention = 6 * 5 * 9 * 9 * 16 * 2  # 6 N C a token and layer
    counts = counter.get_flop_counts()['Global']
    assert model.flops(5, config) == counts[torch.ops.aten.mm] + attention


@pytest.mark.parametrize('word', ['training', 'generation'])
def test_gpt2_is_timed(script, tmp_path, word):
    if word == 'generation':
        pytest.importorskip('transformers')
    how = ['--batch_size=2', '--n_updates=1', '--repeats=1', '--compile=False', '--device=cpu']
    program = os.path.join(ROOT, 'results', 'gpu', 'gpt2.py')
    sizes = ['--n_tokens=11']
    said = script(program, word, *TINY, *sizes, *how, '--out=kept.json').stdout
    (row,) = json.loads((tmp_path / 'kept.json').read_text())['rows']
    assert row['first'] > 0
    assert row['name'] in said


def test_without_transformers_texts_are_left_out(script, monkeypatch):
    monkeypatch.setitem(sys.modules, 'transformers', None)
    program = os.path.join(ROOT, 'results', 'gpu', 'gpt2.py')
    assert 'left out' in script(program, 'generation', *TINY, '--device=cpu').stdout


# --------------------------------------------------------------------------------------------------
# a user's calls


@pytest.mark.parametrize('policy', ['given', 'margin'])
def test_a_users_calls_are_timed(script, tmp_path, policy):
    program = os.path.join(ROOT, 'results', 'gpu', 'call.py')
    how = ['--batch_size=2', '--n_steps=3,9', f'--policy={policy}', '--device=cpu']
    said = script(program, *TINY, '--n_tokens=11', *how, '--out=kept.json').stdout
    rows = json.loads((tmp_path / 'kept.json').read_text())['rows']
    assert [row['passes'] for row in rows] == [3, 9, 3, 9]
    assert ['weights' in row for row in rows] == [True, True, False, False]
    for row in rows:
        assert row['name'] in said
        assert min(row['first'], row['later']) > 0
