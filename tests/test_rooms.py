"""Who imports whom: no command is imported, and no room imports one that imports it, at once or
through others."""

import ast
import glob
import os
import runpy
import subprocess
import sys

import pytest
from conftest import ROOT

import anyorder

MODULES = {
    name.removesuffix('.py').removesuffix('/__init__').replace('/', '.'): name
    for name in glob.glob('**/*.py', root_dir=ROOT, recursive=True)
    if not name.startswith(('tests', 'out'))
}
COMMANDS = {name for name in MODULES if not name.startswith('anyorder')} - {'model', 'configurator'}


def imported(name):
    """The project's modules that a file imports, at its top or late."""
    with open(os.path.join(ROOT, name), encoding='utf-8') as f:
        tree = ast.parse(f.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
            yield from names & MODULES.keys()
        elif isinstance(node, ast.ImportFrom):
            names = {f'{node.module}.{alias.name}' for alias in node.names}
            yield from names & MODULES.keys() or {node.module} & MODULES.keys()


def room(module):
    """The room of a module; a file at the door of anyorder/ or of its extras is a room of its
    own."""
    if not module.startswith('anyorder.'):
        return module
    depth = 3 if module.startswith('anyorder.extras.') else 2
    return '.'.join(module.split('.')[:depth])


def circles(arrows):
    """The arrows {(from, to)} without those that are part of no circle and lead from none to
    none."""
    while True:
        starts = {start for start, _ in arrows}
        ends = {end for _, end in arrows}
        left = {(start, end) for start, end in arrows if start in ends and end in starts}
        if left == arrows:
            return left
        arrows = left


def test_no_room_and_no_file_imports_one_that_imports_it():
    files = {(module, other) for module, name in MODULES.items() for other in imported(name)}
    rooms = {(room(module), room(other)) for module, other in files}
    for module, other in files:
        assert other not in COMMANDS or module.startswith('docs.')
    assert not circles(files)
    assert not circles({(one, other) for one, other in rooms if one != other})
    assert not [*imported('model.py')]


def test_anyorder_imports_torch_when_a_writer_is_asked_for():
    program = (
        "import sys, anyorder; assert not {'torch', 'numpy'} & {*sys.modules}; "
        'from anyorder import Reader'
    )
    command = [sys.executable, '-c', program]
    finished = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    assert "ImportError: cannot import name 'Reader' from 'anyorder'" in finished.stderr
    assert anyorder.Writer is anyorder.writer.Writer


@pytest.mark.parametrize('name', ['model', 'configurator'])
def test_a_file_in_place_of_ours_is_named_and_not_run(tmp_path, monkeypatch, name):
    path = tmp_path / f'{name}.py'
    path.write_text('raise RuntimeError')
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as e:
        runpy.run_path(os.path.join(ROOT, 'anyorder', '__init__.py'))
    ours = os.path.join(ROOT, f'{name}.py')
    assert str(e.value).startswith(f'{path} stands in place of {ours}: ')


def test_an_installation_has_every_file_that_the_package_reads():
    tomllib = pytest.importorskip('tomllib')  # from Python 3.11 on
    with open(os.path.join(ROOT, 'pyproject.toml'), 'rb') as f:
        about = tomllib.load(f)['tool']['setuptools']
    outside = set()
    for name in MODULES.values():
        if name.startswith('anyorder'):
            outside |= {module for module in imported(name) if not module.startswith('anyorder')}
    assert outside == {*about['py-modules']}

    # The files of each package, which is a folder with an __init__
    assert about['package-data'] == {'*': ['*']}
    paths = glob.glob('anyorder/**/*.*', root_dir=ROOT, recursive=True)
    folders = {os.path.dirname(path) for path in paths if '__pycache__' not in path}
    for folder in folders:
        assert os.path.join(folder, '__init__.py') in paths
