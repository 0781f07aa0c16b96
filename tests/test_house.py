"""Is the house in order? Small rooms and functions, no circle of imports, a wall before extras."""

import ast
import collections
import functools
import glob
import graphlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import anyorder

COMPREHENSIONS = ['ListComp', 'SetComp', 'DictComp', 'GeneratorExp']
BRANCHES = [
    'If',
    'IfExp',
    'For',
    'While',
    'With',
    'Assert',
    'ExceptHandler',
    'comprehension',
    'match_case',
]

# What takes more than seven arguments: contracts, and what transformers finds by name. A list that
# may only shrink.
TAKE_MORE = {
    'anyorder/generation/fill.py generate': 15,
    'anyorder/extras/hub/modeling_aogpt.py forward': 9,
    'model.py predict': 9,
}

# The most nodes of the syntax trees of a room. It may only fall, unless a commit says what it adds
# and for whom.
BUDGET = {
    '': 13_137,
    'anyorder': 15_125,
    'anyorder/extras': 5_666,
    'anyorder/extras/hub': 4_563,
    'anyorder/extras/lm_eval': 3_251,
    'anyorder/extras/masked': 3_571,
    'anyorder/extras/patterns': 6_703,
    'anyorder/extras/pictures': 3_169,
    'anyorder/extras/puzzles': 10_238,
    'anyorder/extras/rules': 3_583,
    'anyorder/extras/speed': 5_738,
    'anyorder/extras/tokenizers': 3_695,
    'anyorder/generation': 17_195,
    'anyorder/likelihood': 7_611,
    'anyorder/machine': 3_776,
    'anyorder/tokens': 13_331,
    'anyorder/training': 8_864,
    'config': 933,
    'data': 422,
    'docs': 1_326,
    'results': 2_746,
    'tests': 104_998,
}

# The test files of a room, tests/test_NAME.py or tests/extras/test_NAME.py, which have at most its
# budget. Laws, equalities, devices and what libraries of others do are of no room.
TESTS = {
    '': 'model|configurator|drills',
    'anyorder': 'anyorder|policy',
    'anyorder/extras': 'minimal|attention|judge|lengths',
    'anyorder/extras/hub': 'hub',
    'anyorder/extras/lm_eval': 'lm_eval',
    'anyorder/extras/masked': 'masked',
    'anyorder/extras/patterns': 'patterns|language',
    'anyorder/extras/pictures': 'pictures',
    'anyorder/extras/puzzles': 'puzzles',
    'anyorder/extras/rules': 'rules',
    'anyorder/extras/speed': 'speed',
    'anyorder/extras/tokenizers': 'tokenizers',
    'anyorder/generation': 'generation|writer|prompts',
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
    'anyorder/tokens/tokenizer.py',
    'anyorder/writer.py',
    'train.py',
]


PRODUCT = '(?!tests/|build/|out/)'
CORE = '(?!tests/|build/|out/|anyorder/extras/|config/|docs/|results/)'


@functools.cache
def trees():
    """{file: its syntax tree}"""
    found = {}
    for path in sorted(glob.glob('**/*.py', root_dir=ROOT, recursive=True)):
        found[Path(path).as_posix()] = ast.parse(Path(ROOT, path).read_text(encoding='utf-8'))
    return found


def files(pattern):
    """[(file, tree)] of those whose path fits the pattern."""
    return [found for found in trees().items() if re.match(pattern, found[0])]


def is_kind(node, kinds):
    return type(node).__name__ in kinds


# --------------------------------------------------------------------------------------------------
# how much there is, and how much at once


def room_of(path):
    """The folder of a file, as far as it is a room: tests, results and the like are one."""
    return re.match(r'anyorder(/extras)?(/\w+)?(?=/)|\w*(?=/)|', path)[0]


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


def inside(function):
    """The nodes of a function. A function inside it is counted by itself."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef):
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
    return len(named.posonlyargs + named.args + named.kwonlyargs)


@pytest.mark.parametrize(
    'measure, most, more', [(n_decisions, 15, {}), (n_arguments, 7, TAKE_MORE)]
)
def test_no_function_does_more(measure, most, more):
    found = {}
    for path, tree in files(PRODUCT):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and measure(node) > most:
                found[f'{path} {node.name}'] = measure(node)
    assert found == more


def says_several(node):
    """Whether a statement is a, b = 1, 2: two thoughts."""
    match node:
        case ast.Assign(targets=[ast.Tuple()], value=ast.Tuple()):
            return True
    return False


def multiplies_truth(node):
    """Whether a node is [x] * flag or (a < b) * c: an if in disguise."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            truth = ['Compare', 'BoolOp', 'List', 'JoinedStr']
            return is_kind(left, truth) or is_kind(right, truth)
    return False


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


# --------------------------------------------------------------------------------------------------
# who imports whom


def module_of(path):
    return path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')


def imported(tree):
    """The project's modules that a file imports, at its top or late."""
    ours = {module_of(path) for path, _ in files(PRODUCT)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, 'module', '')
            for alias in node.names:
                name = f'{module}.{alias.name}'.removeprefix('.')
                found |= {name} & ours or {module} & ours
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
            assert not {'train', 'sample', 'eval_ppl', 'data.prepare'} & others
    for graph in (of_files, of_rooms):
        graphlib.TopologicalSorter(graph).prepare()  # raises for a circle
    assert not of_files['model']


def test_the_core_imports_no_extras_and_names_them_at_its_doors():
    doors = []
    for path, tree in files(CORE):
        assert 'anyorder.extras' not in str(imported(tree)), path
        assert not any(getattr(node, 'level', 0) for node in ast.walk(tree)), path
        if re.search(r"'anyorder\.extras[\w.]*(:\w+)?'", ast.unparse(tree)):
            doors.append(path)
    assert doors == DOORS


def test_anyorder_imports_torch_when_a_writer_is_asked_for():
    program = "import sys, anyorder; assert not {'torch', 'numpy'} & {*sys.modules}"
    subprocess.run([sys.executable, '-c', program], cwd=ROOT, check=True)
    assert not hasattr(anyorder, 'Reader')
    assert anyorder.Writer is anyorder.writer.Writer


def test_a_file_in_place_of_ours_is_named_and_not_run(tmp_path, monkeypatch):
    Path('model.py').write_text('raise RuntimeError')
    monkeypatch.delitem(sys.modules, 'model')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match='/model.py stands in place of'):
        runpy.run_path(f'{ROOT}/anyorder/__init__.py')


def test_an_installation_has_every_file_that_the_package_reads():
    tomllib = pytest.importorskip('tomllib')  # from Python 3.11 on
    with open(f'{ROOT}/pyproject.toml', 'rb') as f:
        about = tomllib.load(f)['tool']['setuptools']
    used = set().union(*(imported(tree) for _, tree in files('anyorder/')))
    assert {name for name in used if 'anyorder' not in name} == {*about['py-modules']}
    assert about['package-data'] == {'*': ['*']}


@pytest.mark.slow
def test_every_room_has_a_command_that_says_what_it_is_for_before_torch_is_imported(script):
    rooms = script('anyorder.extras', '--help').stdout
    for path, _ in files(r'anyorder/extras/\w+/__main__\.py'):
        name = module_of(path).removesuffix('.__main__')
        assert f'\n    {name.split(".")[-1]} ' in rooms
        words = f'-X importtime -m {name} --help'.split()
        said = subprocess.run([sys.executable, *words], cwd=ROOT, text=True, capture_output=True)
        assert f'python -m {name}' in said.stdout
        assert '| torch\n' not in said.stderr
