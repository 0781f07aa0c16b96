"""Is each function read once? What it decides, several values in one assignment, and its arguments."""

import ast

N_DECISIONS = 15
N_ARGUMENTS = 7
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (
    ast.If
    | ast.For
    | ast.While
    | ast.With
    | ast.IfExp
    | ast.Assert
    | ast.ExceptHandler
    | ast.comprehension
    | ast.match_case
)

# what still says more than that; this list may only shrink
EXCEPTIONS = {}


def inside(function):
    """Yield the nodes of a function; a function inside it is counted by itself."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, FUNCTIONS):
            yield node
            yield from inside(node)


def n_decisions(function):
    nodes = [*inside(function)]
    branches = sum(isinstance(node, BRANCHES) for node in nodes)
    words = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + branches + words


def n_arguments(function):
    a = function.args
    return len(a.posonlyargs) + len(a.args) + len(a.kwonlyargs)


def is_parallel(node):
    """Whether this assignment says several things: a, b = 1, 2. A swap is one thought."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
        return False
    if not isinstance(node.value, ast.Tuple):
        return False
    return {*map(ast.unparse, node.targets[0].elts)} != {*map(ast.unparse, node.value.elts)}
