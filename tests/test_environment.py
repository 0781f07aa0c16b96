"""What a number was made with."""
import platform
import subprocess

import numpy
import pytest
import torch

from anyorder.machine.environment import commit, environment


def test_the_environment_is_of_this_program():
    found = environment(torch.device('cpu'))
    assert found.keys() == {'commit', 'python', 'torch', 'numpy', 'device', 'processes'}
    assert (found['python'], found['torch'], found['numpy']) == (platform.python_version(), torch.__version__,
                                                                 numpy.__version__)
    assert found['device'] and found['processes'] == 1
    assert all(type(value) in (str, int) for value in found.values())   # a checkpoint holds nothing else


def test_the_commit_says_whether_files_were_changed(tmp_path):
    """Of this repository alone, not of one around it."""
    def git(*args):
        return subprocess.run(['git', '-C', tmp_path, '-c', 'user.name=a', '-c', 'user.email=a@b', *args], check=True,
                              capture_output=True, text=True).stdout.strip()
    try:
        git('init', '-q')
    except OSError:
        pytest.skip('there is no git')
    assert commit(tmp_path) == 'unknown'   # nothing is committed
    (tmp_path / 'model.py').write_text('x = 1')
    git('add', 'model.py')
    git('commit', '-q', '-m', 'Begin')
    git('tag', '-a', 'v1', '-m', 'one')
    (tmp_path / 'notes').write_text('not of the repository')
    clean = git('rev-parse', '--short=12', 'HEAD')
    assert commit(tmp_path) == clean
    (tmp_path / 'model.py').write_text('x = 2')
    assert commit(tmp_path) == f'{clean}-dirty'
    (tmp_path / 'inner').mkdir()
    assert commit(tmp_path / 'inner') == 'unknown'
