"""Who imports whom: no command is imported, and no room imports one that imports it, at once or through others."""

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
        for node in ast.walk(ast.parse(f.read())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in MODULES)
            elif isinstance(node, ast.ImportFrom):
                names = {f'{node.module}.{alias.name}' for alias in node.names} & MODULES.keys()
                yield from names or {node.module} & MODULES.keys()


def room(module):
    """The room of a module; a file at the door of anyorder/ is a room of its own."""
    return '.'.join(module.split('.')[:2]) if module.startswith('anyorder.') else module


def circles(arrows):
    """The arrows {(from, to)} without those that are part of no circle and lead from none to none."""
    while True:
        left = {
            (a, b)
            for a, b in arrows
            if a in {to for _, to in arrows} and b in {start for start, _ in arrows}
        }
        if left == arrows:
            return left
        arrows = left


def test_no_room_and_no_file_imports_one_that_imports_it():
    files = {(module, other) for module, name in MODULES.items() for other in imported(name)}
    own = {(module, other) for module, other in files if not module.startswith('results.')}
    assert not [(module, other) for module, other in own if other in COMMANDS]
    assert not circles(files)
    assert not circles({(room(a), room(b)) for a, b in files if room(a) != room(b)})
    assert not [*imported('model.py')]


def test_anyorder_imports_torch_when_a_writer_is_asked_for():
    program = "import sys, anyorder; assert not {'torch', 'numpy'} & {*sys.modules}; from anyorder import Reader"
    finished = subprocess.run(
        [sys.executable, '-c', program], cwd=ROOT, text=True, capture_output=True, check=False
    )
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
    assert (
        str(e.value)
        == f'{path} stands in place of {ours}: rename it, or start Python in another folder'
    )


def test_an_installation_has_every_file_that_the_package_reads():
    tomllib = pytest.importorskip('tomllib')  # from Python 3.11 on
    with open(os.path.join(ROOT, 'pyproject.toml'), 'rb') as f:
        about = tomllib.load(f)['tool']['setuptools']
    assert {*about['py-modules']} == {
        module
        for name in MODULES.values()
        if name.startswith('anyorder')
        for module in imported(name)
        if not module.startswith('anyorder')
    }
    files = [
        path
        for path in glob.glob('anyorder/**/*.*', root_dir=ROOT, recursive=True)
        if '__pycache__' not in path
    ]
    assert about['package-data'] == {
        '*': ['*']
    }  # the files of each package, which is a folder with an __init__
    assert {os.path.dirname(path) for path in files} == {
        os.path.dirname(path) for path in files if '__init__' in path
    }
