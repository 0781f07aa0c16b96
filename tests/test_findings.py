"""config/findings/run.sh with a stand-in for python: which commands it runs, and when it runs none."""
import os
import re
import shlex
import subprocess

import pytest
from conftest import ROOT

RUN = os.path.join(ROOT, 'config', 'findings', 'run.sh')


@pytest.fixture
def findings(tmp_path):
    """findings(*arguments, code=0) runs the script in a folder with a blank in its name.

    Returns (its output, the commands it ran)."""
    (tmp_path / 'bin').mkdir()
    fake, log, out = tmp_path / 'bin' / 'python', tmp_path / 'commands', tmp_path / 'my out'
    fake.write_text('#!/bin/bash\n'
                    f'line=$(printf "%q " "$@"); echo "$line" >> {shlex.quote(str(log))}\n'   # one write: two at a time
                    'echo said; case "$*" in *seed=13*) exit 3;; esac\n')
    fake.chmod(0o755)

    def run(*arguments, code=0, seeds='1 2'):
        log.write_text('')
        environment = os.environ | {'PATH': f'{tmp_path}/bin:{os.environ["PATH"]}', 'OUT': str(out), 'SEEDS': seeds,
                                    'JOBS': '2'}
        done = subprocess.run(['bash', RUN, *arguments], text=True, capture_output=True, env=environment, timeout=60,
                              check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr, [shlex.split(line) for line in log.read_text().splitlines()]
    return run


@pytest.mark.parametrize('name, n_train, n_measure', [
    ('orders', 8, 0), ('l2r_data', 4, 0), ('positions', 22, 0), ('gates', 8, 0), ('ema', 6, 0), ('ensemble', 8, 8),
    ('generation', 0, 0)])
def test_every_command_of_a_finding_is_understood_and_run_once(findings, script, tmp_path, name, n_train, n_measure):
    os.symlink(os.path.join(ROOT, 'config'), tmp_path / 'config')
    _, commands = findings(name, '--dtype=float32')
    trained, measured = ([c for c in commands if c[0] == script] for script in ('train.py', 'eval_ppl.py'))
    assert len(trained) == len({c[-1] for c in trained}) == n_train and len(measured) == n_measure
    timed = [c for c in commands if c[0] == 'bench.py']
    assert len(timed) == (name == 'generation')
    for c in trained + measured + timed:   # what a command lacks stops it once its options are checked
        assert re.search('nowhere|no checkpoint file', script(*c, '--device=nowhere', code=1).stderr)
    drawn = [c for c in commands if c[0] == 'plot.py']
    assert drawn and {os.path.basename(path) for c in drawn for path in c[3:] if not path.startswith('-')} <= (
        {os.path.basename(c[-1].partition('=')[2]) for c in trained + measured} | {'generation.json'})
    _, again = findings(name, '--dtype=float32')
    assert again == drawn


def test_other_options_want_another_folder_and_a_failure_stops(findings):
    findings('l2r_data', '--wandb_run_name=it is "mine"', seeds='1')
    said, commands = findings('l2r_data', code=1)
    assert 'other options' in said and 'choose another OUT' in said and not commands
    said, commands = findings('ema', code=1, seeds='1')
    assert 'base_seed1' in said and not commands
    said, commands = findings('gates', seeds='13', code=124)
    assert 'said' in said and {c[0] for c in commands} - {'data/prepare.py'} == {'train.py'}   # pydocs may be missing
    assert findings('gates', seeds='13', code=124)[1]             # what failed is run again
    said, commands = findings('oders', code=1)
    assert 'no finding oders; they are orders' in said and not commands
    assert 'SEEDS=' in findings('--help')[0] == findings()[0]
