"""Who imports whom: no command is imported, and no room imports one that imports it, at once or through others."""
import ast
import glob
import os

from conftest import ROOT

MODULES = {name.removesuffix('.py').removesuffix('/__init__').replace('/', '.'): name
           for name in glob.glob('**/*.py', root_dir=ROOT, recursive=True) if not name.startswith(('tests', 'out'))}
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
        left = {(a, b) for a, b in arrows if a in {to for _, to in arrows} and b in {start for start, _ in arrows}}
        if left == arrows:
            return left
        arrows = left


def test_no_room_and_no_file_imports_one_that_imports_it():
    files = {(module, other) for module, name in MODULES.items() for other in imported(name)}
    assert not [(module, other) for module, other in files if other in COMMANDS]
    assert not circles(files)
    assert not circles({(room(a), room(b)) for a, b in files if room(a) != room(b)})
    assert not [*imported('model.py')]
