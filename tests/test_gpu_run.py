"""results/gpu/run.sh: what is run and when, what is kept, and that its commands are understood."""

import os
import shutil
import subprocess

import pytest
from conftest import ROOT, program_of

pytestmark = pytest.mark.skipif(not shutil.which('timeout'), reason='a shell of Linux')

RATE = """               dtype  compiled  ms/update   tokens/s     MFU  peak MiB
ours        bfloat16     False       50.0     80,000   51.5%     9,000"""
# stands for Python: it writes its words, says a rate, and fails at the word that $FAILS has
PYTHON = f"""#!/bin/bash
[[ $1 == -c ]] && {{ echo '# A GPU'; exit; }}
printf '%s\\t' "$@" >> "$RAN"
echo >> "$RAN"
echo '{RATE}'
[[ " $* " != *" $FAILS "* ]]
"""


@pytest.fixture
def gpu(tmp_path):
    """gpu(word, ..., fails=) runs the program in a copy of its folder, and returns what ended, the
    commands and the page."""
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'bin' / 'python').write_text(PYTHON)
    os.chmod(tmp_path / 'bin' / 'python', 0o755)
    (tmp_path / 'results' / 'gpu').mkdir(parents=True)
    program = shutil.copy(os.path.join(ROOT, 'results', 'gpu', 'run.sh'), tmp_path / 'results/gpu')
    ran = tmp_path / 'ran'
    path = f'{tmp_path}/bin:{os.environ["PATH"]}'

    def run(*words, fails='nothing'):
        ran.write_text('')
        environ = os.environ | {'PATH': path, 'RAN': str(ran), 'FAILS': fails}
        ended = subprocess.run(
            ['bash', program, *words], env=environ, capture_output=True, text=True, timeout=60
        )
        commands = [line.split('\t')[:-1] for line in ran.read_text().splitlines()]
        return ended, commands, (tmp_path / 'out' / 'gpu' / 'page.md').read_text()

    return run


def test_all_that_is_said_is_kept(gpu):
    ended, ran, page = gpu()
    assert (ended.returncode, ended.stderr) == (0, '')
    assert page.startswith('# A GPU\n')
    assert page.count('\nours  ') == page.count('(code 0, ') == len(ran) == 28
    assert '$ python -m anyorder.extras.speed ensemble' in page
    (trained,) = (words for words in ran if words[:2] == ['train.py', 'config/books.py'])
    assert f'--max_iters={300 * 80000 // (256 * 64)}' in trained  # as many updates as fit


def test_what_is_finished_is_not_run_again_and_what_failed_is(gpu):
    ended, ran, page = gpu('25', 'grid', 'ensemble', fails='grid')
    assert ended.returncode == 1
    assert ended.stdout.endswith('failed: grid\n')
    assert len(ran) == 2  # a failure does not end the run
    assert '(code 1, ' in page
    assert [words[2] for words in gpu('25', 'grid', 'ensemble')[1]] == ['grid']
    assert gpu('25', 'grid', 'ensemble')[1] == []


def test_what_does_not_fit_into_the_minutes_is_left_and_said(gpu):
    ended, ran, _ = gpu('1', 'sample', 'train')
    assert [words[2] for words in ran] == ['train']
    assert '--compile=False' in ran[0]
    assert 'left for later: sample_1_True, which may take 90 s' in ended.stdout


def test_what_wants_a_rate_waits_for_it(gpu):
    ended, ran, _ = gpu('25', 'text', fails='train')
    assert ended.stdout.endswith('failed: text_rate\n')
    assert len(ran) == 1


def test_every_command_is_understood(gpu, script, tmp_path):
    _, ran, _ = gpu()
    os.symlink(os.path.join(ROOT, 'config'), tmp_path / 'config')
    one_of_a_kind = {}
    for program, args in map(program_of, ran):
        one_of_a_kind[program, args[0]] = args
    assert len(one_of_a_kind) > 10
    for (program, _), args in one_of_a_kind.items():
        if program == 'anyorder.extras.puzzles make':
            script(program, *args, '--n_train=-1', code=1)
        elif program == 'anyorder.extras.pictures':
            assert 'no log' in script(program, *args, code=1).stderr
        elif program != 'pytest':
            said = script(program, *args, '--device=nowhere', code=1).stderr
            assert 'nowhere' in said or 'no checkpoint file' in said, said
