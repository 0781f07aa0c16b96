"""Is the house in order? Small rooms and functions, no circle of imports, a wall before extras."""

import ast
import collections
import functools
import graphlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import anyorder

MOST_DECISIONS = 15
MOST_ARGUMENTS = 7
COMPREHENSIONS = ['ListComp', 'SetComp', 'DictComp', 'GeneratorExp']
BRANCHES = ['If', 'IfExp', 'For', 'While', 'With', 'Assert', 'ExceptHandler', 'comprehension']
BRANCHES += ['match_case']

# What takes more than that: three contracts, and what transformers finds by name. A list that may
# only shrink.
TAKE_MORE = {
    'anyorder/generation/fill.py generate': 15,
    'anyorder/extras/hub/modeling_aogpt.py forward': 9,
    'model.py predict': 10,
}

# The most nodes of the syntax trees of a room. It may only fall, unless a commit says what it adds
# and for whom.
BUDGET = {
    '': 14_800,
    'anyorder': 15_800,
    'anyorder/extras': 3_300,
    'anyorder/extras/hub': 5_500,
    'anyorder/extras/lm_eval': 5_000,
    'anyorder/extras/masked': 4_900,
    'anyorder/extras/patterns': 8_600,
    'anyorder/extras/pictures': 2_300,
    'anyorder/extras/puzzles': 10_700,
    'anyorder/extras/rules': 3_100,
    'anyorder/extras/speed': 7_000,
    'anyorder/generation': 21_500,
    'anyorder/likelihood': 12_300,
    'anyorder/machine': 5_500,
    'anyorder/tokens': 23_900,
    'anyorder/training': 11_100,
    'config': 900,
    'data': 500,
    'docs': 200,
    'results': 4_700,
    'tests': 164_000,
}

# The test files of a room, tests/test_NAME.py or tests/extras/test_NAME.py, which have at most its
# budget. Laws, equalities, devices and what libraries of others do are of no room.
TESTS = {
    '': 'model|configurator|drills',
    'anyorder': 'anyorder|grids',
    'anyorder/extras': 'minimal',
    'anyorder/extras/hub': 'hub',
    'anyorder/extras/lm_eval': 'lm_eval',
    'anyorder/extras/masked': 'masked',
    'anyorder/extras/patterns': 'patterns|language',
    'anyorder/extras/pictures': 'pictures',
    'anyorder/extras/puzzles': 'puzzles',
    'anyorder/extras/rules': 'rules',
    'anyorder/extras/speed': 'speed',
    'anyorder/generation': 'generation|writer',
    'anyorder/likelihood': 'likelihood',
    'anyorder/machine': 'machine',
    'anyorder/tokens': 'tokens|sets|given',
    'anyorder/training': 'training',
    'results': 'results',
    'tests': 'laws|equalities|devices|on_device|house|readme',
}

# where the core names a room of extras, which it imports when it is asked for
DOORS = [
    'anyorder/__init__.py',
    'anyorder/checkpoint.py',
    'anyorder/generation/rules.py',
    'anyorder/likelihood/estimates.py',
    'anyorder/orders.py',
    'anyorder/report.py',
    'anyorder/tokens/tokenizers.py',
    'train.py',
]


PRODUCT = '(?!tests/|build/|out/)'
CORE = '(?!tests/|build/|out/|anyorder/extras/|config/|docs/|results/)'


@functools.cache
def trees():
    """{file: its syntax tree}"""
    found = {}
    for path in sorted(Path(ROOT).glob('[!.]*/**/*.py')) + sorted(Path(ROOT).glob('*.py')):
        found[path.relative_to(ROOT).as_posix()] = ast.parse(path.read_text(encoding='utf-8'))
    return found


def files(pattern):
    """[(file, tree)] of those whose path fits the pattern."""
    return [(path, tree) for path, tree in trees().items() if re.match(pattern, path)]


def is_kind(node, kinds):
    return type(node).__name__ in kinds


# --------------------------------------------------------------------------------------------------
# how much there is, and how much at once


def room_of(path):
    """The folder of a file, as far as it is a room: tests, results and the like are one."""
    folders = os.path.dirname(path).split('/')
    return '/'.join(folders[: 3 if folders[0] == 'anyorder' else 1])


def test_no_room_grows():
    sizes = collections.Counter()
    for path, tree in files('(?!build/|out/)'):
        sizes[room_of(path)] += len([*ast.walk(tree)])
    assert {room: n for room, n in sizes.items() if n > BUDGET.get(room, 0)} == {}
    for room, names in TESTS.items():
        tested_by = files(rf'tests/(extras/)?test_({names})\.py')
        assert sum(len([*ast.walk(tree)]) for _, tree in tested_by) <= BUDGET[room], room
    named = rf'tests/(?!(extras/)?test_({"|".join(TESTS.values())})\.py).*test_.*'
    assert files(named) == []


def functions(tree):
    return [node for node in ast.walk(tree) if is_kind(node, ['FunctionDef', 'AsyncFunctionDef'])]


def inside(function):
    """The nodes of a function. A function inside it is counted by itself."""
    for node in ast.iter_child_nodes(function):
        if not is_kind(node, ['FunctionDef', 'AsyncFunctionDef']):
            yield node
            yield from inside(node)


def n_decisions(function):
    n = 1
    for node in inside(function):
        if is_kind(node, ['BoolOp']):
            n += len(node.values) - 1
        elif is_kind(node, BRANCHES):
            n += 1
    return n


def n_arguments(function):
    named = function.args
    return len([*named.posonlyargs, *named.args, *named.kwonlyargs])


@pytest.mark.parametrize(
    'measure, most, more',
    [(n_decisions, MOST_DECISIONS, {}), (n_arguments, MOST_ARGUMENTS, TAKE_MORE)],
)
def test_no_function_does_more(measure, most, more):
    found = {}
    for path, tree in files(PRODUCT):
        for function in functions(tree):
            if measure(function) > most:
                found[f'{path} {function.name}'] = measure(function)
    assert found == more


def says_several(node):
    """Whether a statement is a, b = 1, 2: two thoughts. A swap, which names the same things again,
    is one."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            return {*map(ast.unparse, names)} != {*map(ast.unparse, values)}
    return False


def multiplies_truth(node):
    """Whether a node is 'text' * flag, [x] * flag or (a < b) * c: an if in disguise."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return is_truth_or_text(left) or is_truth_or_text(right)
    return False


def is_truth_or_text(node):
    match node:
        case ast.UnaryOp(op=ast.Not()) | ast.Constant(value=str()):
            return True
    return is_kind(node, ['Compare', 'BoolOp', 'List', 'JoinedStr'])


def is_nested(node):
    """Whether a comprehension holds another."""
    if not is_kind(node, COMPREHENSIONS):
        return False
    return len([one for one in ast.walk(node) if is_kind(one, COMPREHENSIONS)]) > 1


@pytest.mark.parametrize('holds', [says_several, multiplies_truth, is_nested])
def test_no_statement_says_several_things(holds):
    found = []
    for path, tree in files(PRODUCT):
        found += [f'{path}:{node.lineno}' for node in ast.walk(tree) if holds(node)]
    assert found == []


def test_the_measures_count():
    (f,) = functions(ast.parse('def f(a, /, *, c): return [x if x or c else 0 for x in a]'))
    assert (n_decisions(f), n_arguments(f)) == (4, 2)
    for holds, text, n in (
        (says_several, 'a, b = 1, 2; a, b = b, a; a, b = f(); a = 1, 2', 1),
        (multiplies_truth, "'a' * b; [0] * n; f(a) * (b < c); a * b; -a * 2", 3),
        (is_nested, '[[y for y in x] for x in z]; [z for z in x]', 1),
    ):
        assert sum(map(holds, ast.walk(ast.parse(text)))) == n


# --------------------------------------------------------------------------------------------------
# who imports whom


def module_of(path):
    return path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')


def imported(tree):
    """The project's modules that a file imports, at its top or late."""
    ours = {module_of(path) for path, _ in files(PRODUCT)}
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names} & ours
            case ast.ImportFrom(module=module, names=names):
                found |= {f'{module}.{alias.name}' for alias in names} & ours or {module} & ours
    return found


def test_no_room_and_no_file_imports_one_that_imports_it():
    of_files = {module_of(path): imported(tree) for path, tree in files(PRODUCT)}
    of_rooms = collections.defaultdict(set)
    for module, others in of_files.items():
        # a file at the door of anyorder/ or of its extras is a room of its own
        room, *rooms = [
            re.match(r'anyorder\.(extras\.)?\w+|.*', name)[0] for name in (module, *others)
        ]
        of_rooms[room] |= {*rooms} - {room}
        if not module.startswith('docs'):
            assert not [name for name in others if not re.match('anyorder|model|conf.*tor', name)]
    for graph in (of_files, of_rooms):
        graphlib.TopologicalSorter(graph).prepare()  # raises for a circle
    assert not of_files['model']


def test_the_core_imports_no_extras_and_names_them_at_eight_places():
    doors = []
    for path, tree in files(CORE):
        assert 'anyorder.extras' not in str(imported(tree)), path
        assert '\nfrom .' not in ast.unparse(tree), path
        texts = [str(getattr(node, 'value', '')) for node in ast.walk(tree)]
        if any(re.fullmatch(r'anyorder\.extras[\w.]*(:\w+)?', text) for text in texts):
            doors.append(path)
    assert doors == DOORS
    assert imported(ast.parse('def late(): from anyorder import extras')) == {'anyorder.extras'}


def test_anyorder_imports_torch_when_a_writer_is_asked_for():
    program = "import sys, anyorder; assert not {'torch', 'numpy'} & {*sys.modules}; "
    command = [sys.executable, '-c', program + 'from anyorder import Reader']
    finished = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert "cannot import name 'Reader' from 'anyorder'" in finished.stderr
    assert anyorder.Writer is anyorder.writer.Writer


def test_a_file_in_place_of_ours_is_named_and_not_run(tmp_path, monkeypatch):
    (tmp_path / 'model.py').write_text('raise RuntimeError')
    monkeypatch.delitem(sys.modules, 'model')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match='/model.py stands in place of'):
        runpy.run_path(f'{ROOT}/anyorder/__init__.py')


def test_an_installation_has_every_file_that_the_package_reads():
    tomllib = pytest.importorskip('tomllib')  # from Python 3.11 on
    with open(f'{ROOT}/pyproject.toml', 'rb') as f:
        about = tomllib.load(f)['tool']['setuptools']
    others = set()
    for _, tree in files('anyorder/'):
        others |= {name for name in imported(tree) if not name.startswith('anyorder')}
    assert others == {*about['py-modules']}
    assert about['package-data'] == {'*': ['*']}


@pytest.mark.slow
def test_importing_all_of_the_core_imports_no_room_of_extras(process, tmp_path):
    modules = ', '.join(module_of(path) for path, _ in files(CORE))
    program = f"import sys, {modules}\nassert 'anyorder.extras' not in sys.modules"
    (tmp_path / 'all.py').write_text(program)
    process(f'{tmp_path}/all.py')


@pytest.mark.slow
def test_every_room_has_a_command_that_says_what_it_is_for_before_torch_is_imported(script):
    rooms = script('anyorder.extras', '--help').stdout
    for path, _ in files(r'anyorder/extras/(\w+/__main__|minimal)\.py'):
        name = module_of(path).removesuffix('.__main__')
        assert f'\n    {name.split(".")[-1]} ' in rooms
        command = [sys.executable, *f'-X importtime -m {name} --help'.split()]
        said = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
        assert f'python -m {name}' in said.stdout
        assert '| torch\n' not in said.stderr or 'minimal' in path  # which is one file
