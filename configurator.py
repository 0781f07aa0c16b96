"""How the flat globals of a script are overridden: nanoGPT's command line, made strict.

    python train.py config/quickstart.py --batch_size=32 --compile=False

An option is a lower-case global of the script that holds a number, string, bool or None. Config
files hold `name = value` lines and nothing else: they are read, not run. A value may be typed as it
stands there. Later files override earlier ones, and the command line overrides files. A name that
is not an option is an error that names the nearest one. `--help` lists every option with its
default and its comment. FILE.py:TABLE in a comment stands for the keys of this table. true, True
and 1 are one bool, in a file too. ~ at the beginning of a path is the home folder, see `home`.

The words beside the options are config files, unless the script has one of these globals:

    # exactly one of its keys: python data/prepare.py pydocs
    WORDS = {'pydocs': 'English of the Python documentation'}
    # one or more of any kind: python -m anyorder.extras.pictures out/a out/b
    INPUTS = 'runs'
    # options that stay as typed: no path, no number
    TEXTS = ('prompt', 'stop')"""

import ast
import difflib
import math
import operator
import os
import re
import sys
from pathlib import Path

PLAIN = bool | int | float | str | None  # what an option holds


class Config(dict):
    """The resolved options, config.name or config['name'].

    given   names that a file or the command line set
    typed   names that the command line set
    words   what is no option"""

    __getattr__ = dict.__getitem__
    given = frozenset()
    typed = frozenset()
    words = ()


def configure(namespace, argv=None):
    """Return the Config of the options of a script, overridden by its command line.

    namespace   the script's globals()
    argv        by default sys.argv[1:]

    Raises ValueError in one line for an unknown name, a value of another type, or a config file
    that cannot be read."""
    defaults = options_of(namespace)
    argv = sys.argv[1:] if argv is None else argv
    if '--help' in argv or '-h' in argv:
        print(help_text(namespace, defaults))
        raise SystemExit(0)
    texts = namespace.get('TEXTS', ())
    typed = [typed_option(arg, defaults, texts) for arg in argv if arg.startswith('--')]

    config = Config(defaults)
    config.words = tuple(home(arg) for arg in argv if not arg.startswith('--'))
    given = in_words(config.words, namespace) + typed  # the command line has the last word
    for where, name, value in given:
        value = check(defaults, name, value, where)
        is_path = isinstance(value, str) and name not in texts
        config[name] = home(value) if is_path else value
    config.given = frozenset(name for _, name, _ in given)
    config.typed = frozenset(name for _, name, _ in typed)
    return config


def options_of(namespace):
    """Return {name: default} of the globals that are options."""
    return {
        name: default
        for name, default in namespace.items()
        if name == name.lower() and not name.startswith('_') and isinstance(default, PLAIN)
    }


def typed_option(arg, defaults, texts):
    """Return (where it stands, name, value) of an argument --name=text or --name."""
    name, equals, text = arg[2:].partition('=')
    where = f'--{name}'
    if not equals:
        if name in defaults and not isinstance(defaults[name], bool):
            # else its value, which stands behind a blank, would be a word
            raise ValueError(f'{arg} needs a value: {where}={defaults[name]}')
        return where, name, True
    return where, name, text if name in texts else parse(defaults.get(name), text)


def in_words(words, namespace):
    """Return [(where it stands, name, value)] of the config files that the words name, [] of a
    script with WORDS or INPUTS. Raises ValueError unless the words are what these want."""
    if 'INPUTS' in namespace:
        if not words:
            raise ValueError(f'name the {namespace["INPUTS"]} (--help says more)')
        return []
    if 'WORDS' not in namespace:
        return [line for path in words for line in read_config_file(path)]
    got = ' '.join(words)
    if got not in namespace['WORDS']:
        near = nearest(got, namespace['WORDS'])
        known = ', '.join(namespace['WORDS'])
        raise ValueError(f'name one of {known}, got {got!r}{near} (--help says more)')
    return []


def nearest(word, known):
    """Say which known word is the nearest, whatever its case; '' where none is near."""
    lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(word.lower(), lower, n=1)
    return f'; the nearest is {lower[near[0]]!r}' if near else ''


def home(path):
    """Return an option with ~/ or ~NAME/ expanded as a shell would: no shell does behind --NAME=.

    ~ stands in front of a path, or behind a comma or colon, as in auto:~/ckpt.pt."""
    pattern = r'(?<![^,:])~([\w.-]*(?=[/\\])|$)'
    return re.sub(pattern, lambda found: os.path.expanduser(found[0]), os.fspath(path))


def names_in(text):
    """Return the parts of an option between its commas, but for empty ones."""
    return [part.strip() for part in text.split(',') if part.strip()]


def parse(default, text):
    """Return the value of `text` on the command line: a string where the default is one, else as a
    config file has it, if it is such a value."""
    if isinstance(default, str) and default != 'auto':
        return text
    try:
        return value_of(ast.parse(text.strip(), mode='eval').body)
    except NO_VALUE:
        return text


def check(defaults, key, value, where):
    """Return `value` as the option `key` wants it: an int serves as a float, 0 and 1 as a bool.
    Defaults None and 'auto' take any plain value."""
    if key not in defaults:
        near = nearest(key, defaults)
        raise ValueError(f'{where}: there is no option {key!r}{near} (--help lists all)')
    default = defaults[key]
    if isinstance(default, bool) and value in (0, 1):
        value = bool(value)
    if isinstance(default, float) and type(value) is int:
        value = float(str(value))  # which is inf where an int is too large for a float
    fits = type(value) is type(default) or default is None or default == 'auto'
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        kind = type(default).__name__
        raise ValueError(f'{where}: {key} wants {kind}, as {default!r}, got {value!r:.80}')
    return value


BOOLS = {'true': True, 'false': False}
# what Python and value_of raise for a text that is no value
NO_VALUE = (ArithmeticError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError)
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def read_config_file(path):
    """Return [(where it stands, name, value)] of a file of assignments: literals, and arithmetic of
    them."""
    where = path
    found = []
    try:
        text = Path(path).read_text(encoding='utf-8').replace('\ufeff', '')  # see files.Unmarked
        for node in ast.parse(text).body:
            where = f'{path} line {node.lineno}'
            match node:
                case ast.Expr(value=ast.Constant(value=str())):  # docstring
                    pass
                case ast.Assign(targets=[ast.Name(id=name)]):
                    found.append((where, name, value_of(node.value)))
                case _:
                    raise ValueError(ast.unparse(node))
    except NO_VALUE as e:
        said = ' '.join(str(e).split())[:80]
        raise ValueError(
            f'{where}: a config file holds `name = value` lines only, of plain values and '
            f'arithmetic of them, in UTF-8, got {said}'
        ) from None
    return found


def value_of(node):
    """Return the value of an expression in a config file."""
    match node:
        case ast.Constant(value=int() | float() | str() | None as constant):
            return constant
        case ast.Name(id=name) if name.lower() in BOOLS:
            return BOOLS[name.lower()]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](value_of(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](value_of(left), value_of(right))
    raise ValueError(ast.unparse(node))


def help_text(namespace, defaults):
    """Return the script's docstring, its table of words, then every option as its source has it."""
    lines = [(namespace.get('__doc__') or '').strip()]
    if 'WORDS' in namespace:
        width = max(map(len, namespace['WORDS'])) + 2
        lines += ['', 'the word is one of:']
        lines += [f'    {word:<{width}}{about}' for word, about in namespace['WORDS'].items()]
    if 'INPUTS' in namespace:
        lines += ['', f'the words are {namespace["INPUTS"]}']
    if defaults:
        lines += ['', 'options (--name=value), with their defaults:']
        lines += option_lines(Path(namespace['__file__']).read_text(encoding='utf-8'), defaults)
    return re.sub(r'([a-z_/]+\.py):([A-Z]+)', keys_of, '\n'.join(lines))


def option_lines(source, defaults):
    """Yield a line for each option of a source, with the comment behind it, below the heading that
    stands above it."""
    pattern = r'^(?:# (.+)\n)?(\w+) = .*?(?:  # (.*))?$'
    for found in re.finditer(pattern, source, re.MULTILINE):
        heading, key, comment = found.groups('')
        if key not in defaults:
            continue
        if heading:
            yield f'\n  {heading}'
        yield f'    --{key}={defaults[key]}'.ljust(39) + f' {comment}'


def keys_of(found):
    """Return the keys of the table FILE.py:TABLE that was found, by the source of the file, whose
    imports take seconds."""
    path, table = found.groups()
    source = (Path(__file__).parent / path).read_text(encoding='utf-8')
    body = ast.parse(source).body
    tables = {ast.unparse(node.targets[0]): node for node in body if isinstance(node, ast.Assign)}
    return ', '.join(repr(key.value) for key in tables[table].value.keys)


def at_least(config, bound, *names):
    for name in names:
        if config[name] < bound:
            raise ValueError(f'{name} must be at least {bound}, got {config[name]}')


def check_choice(option, value, *choices):
    if value not in choices:
        known = ', '.join(str(one) or "''" for one in choices)
        raise ValueError(f'{option} must be one of {known}, got {value!r}')


def differing(before, now):
    """Return {name: 'NAME BEFORE -> NOW'} of what two dicts both have, and not the same."""
    found = {}
    for name, value in before.items():
        if name in now and now[name] != value:
            values = [f'{x!s:.80}' or "''" for x in (value, now[name])]
            found[name] = f'{name} {" -> ".join(values)}'
    return found


def numbers(config, name, least=0):
    """Return [n, ...] of the option `name`: ints from `least` on, with commas between them."""
    found = [number_in(part, int) for part in names_in(config[name])]
    if not found or None in found or min(found) < least:
        raise ValueError(
            f'{name} must be numbers from {least} with commas between, got {config[name]!r}'
        )
    return found


def number_in(text, kind=float):
    """Return the finite number that a text is, None for any other text.

    Python reads 1_0 as 10. Within an option, as in books:1_0, it is none: it may be a slip."""
    try:
        number = kind(text)
    except ValueError:
        return None
    if '_' in text or not math.isfinite(number):
        return None
    return number
