"""The wall: what surrounds the core imports it, and never the other way round."""

import ast
import glob
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

EXTRAS = 'anyorder.extras'
CORE = [
    name
    for pattern in ('*.py', 'data/*.py', 'anyorder/**/*.py')
    for name in sorted(glob.glob(pattern, root_dir=ROOT, recursive=True))
    if not name.startswith('anyorder/extras/')
]
ROOMS = sorted(
    name.split('/')[2].removesuffix('.py')
    for pattern in ('anyorder/extras/*/__main__.py', 'anyorder/extras/minimal.py')
    for name in glob.glob(pattern, root_dir=ROOT)
)


def source(name):
    with open(os.path.join(ROOT, name), encoding='utf-8') as f:
        return f.read()


def statements_through_the_wall(text):
    """The lines of a file in which a statement imports a room of extras."""
    lines = []
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f'{"." * node.level}{node.module or ""}.{alias.name}' for alias in node.names]
        if any(EXTRAS in f'anyorder{name}' or name.startswith('.extras') for name in names):
            lines.append(node.lineno)
    return lines


def names_of_rooms(text):
    """The names of rooms, and of what is in them, that a file holds as strings."""
    pattern = re.escape(EXTRAS) + r'[\w.]*(:\w+)?'
    for node in ast.walk(ast.parse(text)):
        value = getattr(node, 'value', None)
        if isinstance(node, ast.Constant) and re.fullmatch(pattern, str(value)):
            yield value


def run(*words, cwd=ROOT, **environment):
    """What Python says, run with these words."""
    finished = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=os.environ | environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished


def test_the_help_of_extras_names_all_rooms():
    said = run('-m', EXTRAS, '--help').stdout
    assert all(f'\n    {room} ' in said for room in ROOMS)


def test_no_statement_of_the_core_imports_extras():
    found = {name: statements_through_the_wall(source(name)) for name in CORE}
    assert len(found) > 50
    assert not any(found.values()), found


@pytest.mark.parametrize('name', ['model.py', 'anyorder/checkpoint.py', 'data/prepare.py'])
@pytest.mark.parametrize(
    'line',
    [
        'from anyorder.extras import speed',
        'from anyorder import extras',
        'import anyorder.extras.puzzles.rules as rules',
        'def late():\n    from anyorder.extras.hub.gpt2 import read_gpt2',
        'from .extras import speed',
    ],
)
def test_a_statement_that_does_is_found(name, line):
    assert len(statements_through_the_wall(f'{source(name)}\n{line}\n')) == 1


def test_the_core_opens_rooms_at_eight_places():
    """FORMATS of checkpoints, MAKERS of sets, RULES, ORDERS, ESTIMATES, a page for --html, the cost
    of a run for --plan, and anyorder.Pattern."""
    opened = {name for name in CORE if any(names_of_rooms(source(name)))}
    assert opened == {
        'anyorder/__init__.py',
        'anyorder/checkpoint.py',
        'anyorder/likelihood/estimates.py',
        'anyorder/tokens/tokenizers.py',
        'anyorder/generation/rules.py',
        'anyorder/orders.py',
        'anyorder/report.py',
        'train.py',
    }


@pytest.mark.slow
def test_importing_all_of_the_core_imports_no_room_of_extras():
    modules = [name.removesuffix('.py').replace('/', '.') for name in CORE]
    program = (
        f'import importlib, sys\nfor name in {modules}:\n    importlib.import_module(name)\n'
        f'print([name for name in sys.modules if name.startswith({EXTRAS!r})])'
    )
    assert run('-c', program).stdout == '[]\n'


@pytest.mark.slow
@pytest.mark.parametrize('name', ROOMS)
def test_every_room_has_a_command_that_says_what_it_is_for(name):
    finished = run('-X', 'importtime', '-m', f'{EXTRAS}.{name}', '--help')
    assert f'python -m {EXTRAS}.{name}' in finished.stdout
    imported = {line.rpartition('|')[2].strip() for line in finished.stderr.splitlines()}
    assert f'{EXTRAS}.{name}' in imported or name == 'minimal'
    assert 'torch' not in imported or name == 'minimal'  # one file, which has torch at its top
