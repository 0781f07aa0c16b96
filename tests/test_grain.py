"""Is each room small, and each function read once? How many nodes a room has, how much a function
decides, how many arguments it has, several values in one assignment."""

import ast
import collections
import functools
import glob
import os

from conftest import ROOT

MOST_DECISIONS = 15
MOST_ARGUMENTS = 7
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.While,
    ast.With,
    ast.Assert,
    ast.ExceptHandler,
    ast.comprehension,
    ast.match_case,
)

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
}


@functools.cache
def trees():
    """[(file, syntax tree)] of the files of the product."""
    found = []
    for path in sorted(glob.glob('**/*.py', root_dir=ROOT, recursive=True)):
        if not path.startswith(('tests', 'build', 'out')):
            with open(os.path.join(ROOT, path), encoding='utf-8') as f:
                found.append((path.replace(os.sep, '/'), ast.parse(f.read())))
    return found


def room_of(path):
    """Return the folder of a file, as far as it is a room: results, docs and the like are one."""
    *folders, _ = path.split('/')
    if folders[:1] != ['anyorder']:
        return ''.join(folders[:1])
    return '/'.join(folders[:3])


def functions():
    """Yield ('file function', its node) of each function of the product."""
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                yield f'{path} {node.name}', node


def inside(function):
    """Yield the nodes of a function. A function inside it is counted by itself."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, FUNCTIONS):
            yield node
            yield from inside(node)


def n_decisions(function):
    nodes = [*inside(function)]
    n_branches = sum(isinstance(node, BRANCHES) for node in nodes)
    n_words = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + n_branches + n_words


def n_arguments(function):
    named = function.args
    return len(named.posonlyargs) + len(named.args) + len(named.kwonlyargs)


def says_several(node):
    """Whether a statement is a, b = 1, 2: two thoughts. A swap, which names the same things again,
    is one."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Tuple):
        return False
    return {*map(ast.unparse, target.elts)} != {*map(ast.unparse, node.value.elts)}


def multiplies_truth(node):
    """Whether a node is 'text' * flag, [x] * flag or (a < b) * c: an if in disguise."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    sides = (node.left, node.right)
    return any(is_truth(side) or is_text(side) for side in sides)


def is_nested(node):
    """Whether a comprehension holds another."""
    if not isinstance(node, COMPREHENSIONS):
        return False
    return any(isinstance(inner, COMPREHENSIONS) for inner in ast.walk(node) if inner is not node)


def is_truth(node):
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return is_not or isinstance(node, (ast.Compare, ast.BoolOp, ast.List))


def is_text(node):
    is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_string or isinstance(node, ast.JoinedStr)


def above(measure, most):
    """Return {'file function': number} of the functions whose number is above `most`."""
    found = {}
    for name, function in functions():
        number = measure(function)
        if number > most:
            found[name] = max(number, found.get(name, 0))
    return found


def places(holds):
    """['file:line'] of the nodes of the product of which a measure holds."""
    found = []
    for path, tree in trees():
        found += [f'{path}:{node.lineno}' for node in ast.walk(tree) if holds(node)]
    return found


def test_no_room_grows():
    sizes = collections.Counter()
    for path, tree in trees():
        sizes[room_of(path)] += sum(1 for _ in ast.walk(tree))
    rooms = {room: n for room, n in sizes.items() if room in BUDGET or 'anyorder' in room}
    assert {room: n for room, n in rooms.items() if n > BUDGET.get(room, 0)} == {}


def test_no_function_decides_more():
    assert above(n_decisions, MOST_DECISIONS) == {}


def test_no_function_takes_more():
    assert above(n_arguments, MOST_ARGUMENTS) == TAKE_MORE


def test_no_assignment_says_several_things():
    assert places(says_several) == []


def test_no_string_list_or_truth_value_is_multiplied():
    assert places(multiplies_truth) == []


def test_no_comprehension_stands_in_a_comprehension():
    assert places(is_nested) == []


def test_the_measures_count():
    source = (
        'def f(a, /, b, *, c):\n if a and b or c:\n  return [x if x else 0 for x in a]\n'
        ' def g(): assert a'
    )
    f, g = [node for node in ast.walk(ast.parse(source)) if isinstance(node, FUNCTIONS)]
    assert n_decisions(f) == 6
    assert n_decisions(g) == 2
    assert n_arguments(f) == 3
    statements = ast.parse('a, b = 1, 2\na, b = b, a\na, b = f()\na = 1, 2').body
    assert [says_several(node) for node in statements] == [True, False, False, False]
    products = ["'a' * b", '[0] * n', 'f(a) * (b < c)', 'a * b', '-a * 2']
    trees = [ast.parse(product, mode='eval').body for product in products]
    assert [multiplies_truth(tree) for tree in trees] == [True, True, True, False, False]
    nested = [
        ast.parse(text, mode='eval').body
        for text in ('[[y for y in x] for x in z]', '[z for z in x]')
    ]
    assert [is_nested(tree) for tree in nested] == [True, False]
