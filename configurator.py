"""How the flat globals of a script are overridden: nanoGPT's command line, made strict.

    python train.py config/quickstart.py --batch_size=32 --compile=False

An option is a lower-case global of the script that holds a number, string, bool or None. Config
files hold `name = value` lines and nothing else: they are read, not run. Later files override
earlier ones, and the command line overrides files. A name that is not an option is an error that
names the nearest one. `--help` lists every option with its default and its comment. FILE.py:TABLE
in a comment stands for the keys of this table. true, True and 1 are one
bool, in a file too. ~ at the beginning of a path is the home folder, see `home`.

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
    argv = list(sys.argv[1:] if argv is None else argv)
    if '--help' in argv or '-h' in argv:
        print(help_text(namespace, defaults))
        raise SystemExit(0)
    texts = namespace.get('TEXTS', ())
    words = [home(arg) for arg in argv if not arg.startswith('--')]
    typed = split_options(argv, defaults)
    check_words(words, namespace)

    # Files first, so that the command line has the last word
    given = {}
    if 'WORDS' not in namespace and 'INPUTS' not in namespace:
        given = values_of_files(words, defaults)
    given |= values_of_options(typed, defaults, texts)

    config = Config(defaults | given)
    for key, value in config.items():
        if isinstance(value, str) and key not in texts:
            config[key] = home(value)
    config.given = frozenset(given)
    config.typed = frozenset(key for key, _, _ in typed)
    config.words = tuple(words)
    return config


def options_of(namespace):
    """Return {name: default} of the globals that are options."""
    return {
        name: default
        for name, default in namespace.items()
        if name == name.lower()
        and not name.startswith('_')
        and isinstance(default, bool | int | float | str | None)
    }


def split_options(argv, defaults):
    """Return [(name, '=' or '', text)] of the arguments --name=text and --name."""
    found = []
    for arg in argv:
        if not arg.startswith('--'):
            continue
        key, equals, text = arg[2:].partition('=')
        # else its value, which stands behind a blank, would be a word
        if key in defaults and not equals and not isinstance(defaults[key], bool):
            raise ValueError(f'{arg} needs a value: --{key}={defaults[key]}')
        found.append((key, equals, text))
    return found


def check_words(words, namespace):
    """Raise ValueError unless the words are what WORDS or INPUTS of the script want."""
    for word in words:
        if word.startswith('-'):
            raise ValueError(f'there is no option {word} (--help lists all)')
    if 'WORDS' in namespace:
        table = namespace['WORDS']
        if len(words) != 1:
            got = ' '.join(words) or 'none'
            raise ValueError(f'name one of {", ".join(table)}; got {got} (--help says more)')
        if words[0] not in table:
            near = nearest(words[0], table)
            raise ValueError(f'{words[0]!r} is none of {", ".join(table)}{near}')
    elif 'INPUTS' in namespace and not words:
        raise ValueError(f'name the {namespace["INPUTS"]} (--help says more)')


# what other codes have as options, and we behind the name of an order in which a model writes
BEHIND_ORDERS = {'threshold': 'margin:0.9', 'block_length': 'margin/32'}


def nearest(word, known, cutoff=0.6):
    """Say which known word is the nearest, whatever its case; '' where none is near."""
    if word in BEHIND_ORDERS and 'n_steps' in known:
        return f'; it follows the name of an order, as {BEHIND_ORDERS[word]}'
    lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=cutoff)
    return f'; the nearest is {lower[near[0]]!r}' if near else ''


def home(path):
    """Return an option with ~/ or ~NAME/ expanded as a shell would: no shell does behind --NAME=.

    ~ stands in front of a path, or behind a comma or colon, as in auto:~/ckpt.pt."""
    pattern = r'(?<![^,:])~([\w.-]*(?=[/\\])|$)'
    return re.sub(pattern, lambda found: os.path.expanduser(found[0]), os.fspath(path))


def names_in(text):
    """Return the parts of an option between its commas, but for empty ones."""
    return [part.strip() for part in text.split(',') if part.strip()]


BOOLS = {'true': True, 'false': False}


def values_of_files(paths, defaults):
    """Return {name: value} of config files, of which later ones override earlier ones."""
    given = {}
    for path in paths:
        for line, key, value in read_config_file(path):
            given[key] = check(defaults, key, value, f'{path} line {line}')
    return given


def values_of_options(typed, defaults, texts):
    """Return {name: value} of what split_options found."""
    given = {}
    for key, equals, text in typed:
        if not equals:
            value = True
        elif key in texts:
            value = text
        else:
            value = parse(defaults.get(key), text)
        given[key] = check(defaults, key, value, f'--{key}')
    return given


def parse(default, text):
    """Return the value of `text` on the command line: a string where the default is one, else a
    literal."""
    if isinstance(default, str) and default != 'auto':
        return text
    if text.lower() in BOOLS:
        return BOOLS[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
    return value if isinstance(value, bool | int | float | str | None) else text


def check(defaults, key, value, where):
    """Return `value` as the option `key` wants it: an int serves as a float, 0 and 1 as a bool.
    Defaults None and 'auto' take any plain value."""
    if key not in defaults:
        near = nearest(key, defaults)
        raise ValueError(f'{where}: there is no option {key!r}{near} (--help lists all)')
    default = defaults[key]
    if isinstance(default, bool) and type(value) is int and value in (0, 1):
        value = bool(value)
    if isinstance(default, float) and type(value) is int:
        value = float(value) if abs(value) < 2**1000 else math.inf
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f'{where}: {key} must be finite, got {value}')
    if type(value) is not type(default) and default is not None and default != 'auto':
        raise ValueError(
            f'{where}: {key} wants {type(default).__name__} (default {default!r}), '
            f'got {value!r:.80}'
        )
    return value


OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def read_config_file(path):
    """Yield (line, name, value) of a file of assignments: literals, and arithmetic of them."""
    if not os.path.isfile(path):
        raise ValueError(f'no config file {path}; options are written --name=value')
    try:
        text = Path(path).read_text(encoding='utf-8')
        text = text.replace('\ufeff', '')  # a mark, as in files.reading_text
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:  # a zero byte, no UTF-8
        raise ValueError(f'{path} is not a config file of `name = value` lines: {e}') from None
    for node in statements:
        match node:
            case ast.Expr(value=ast.Constant(value=str())):  # docstring
                pass
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield node.lineno, name, value_of(node.value, path)
            case _:
                raise ValueError(
                    f'{path} line {node.lineno}: a config file holds `name = value` lines only, '
                    f'got {beginning(node)}'
                )


def value_of(node, path):
    """Return the value of an expression in a config file."""
    match node:
        case ast.Constant(value=int() | float() | str() | None as constant):
            return constant
        case ast.Name(id=name) if name.lower() in BOOLS:
            return BOOLS[name.lower()]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            difference = ast.BinOp(ast.Constant(0), ast.Sub(), operand, lineno=node.lineno)
            return value_of(difference, path)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            operate = OPERATORS[type(op)]
            try:
                return operate(value_of(left, path), value_of(right, path))
            except (ArithmeticError, TypeError) as e:
                what = ast.unparse(node)
                raise ValueError(f'{path} line {node.lineno}: {what}: {e}') from None
    raise ValueError(
        f'{path} line {node.lineno}: only plain values and arithmetic of them are allowed, got '
        f'{beginning(node)}'
    )


def beginning(node):
    return ast.unparse(node).splitlines()[0][:60]


def help_text(namespace, defaults):
    """Return the script's docstring, its table of words, then every option as its source has it."""
    lines = [(namespace.get('__doc__') or '').strip()]
    if 'WORDS' in namespace:
        table = namespace['WORDS']
        width = max(map(len, table)) + 2
        lines += ['', 'the word is one of:']
        lines += [f'    {word:<{width}}{about}' for word, about in table.items()]
    if 'INPUTS' in namespace:
        lines += ['', f'the words are {namespace["INPUTS"]}']
    if defaults:
        lines += ['', 'options (--name=value), with their defaults:']
    script = Path(namespace.get('__file__') or '')
    source = script.read_text(encoding='utf-8') if script.is_file() else ''
    for key, default in defaults.items():
        heading, comment = comments_of(key, source)
        if heading:
            lines += ['', f'  {heading}']
        lines.append(f'    --{key}={default}'.ljust(39) + f' {comment}')
    return re.sub(r'([a-z_/]+\.py):([A-Z]+)', keys_of, '\n'.join(lines))


def comments_of(key, source):
    """Return the heading above an option, and the comment behind it."""
    pattern = rf'^(?:# (.+)\n)?{key} = .*?(?:  # (.*))?$'
    found = re.search(pattern, source, re.MULTILINE)
    return found.groups('') if found else ('', '')


def keys_of(found):
    """Return the keys of the table FILE.py:TABLE that was found, by the source of the file, whose
    imports take seconds."""
    path, table = found.groups()
    source = (Path(__file__).parent / path).read_text(encoding='utf-8')
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys)):
                if name == table:
                    return ', '.join(repr(key.value) for key in keys)
    raise ValueError(f'{path} has no table {table}')


def at_least(config, bound, *names):
    for name in names:
        if config[name] < bound:
            raise ValueError(f'{name} must be at least {bound}, got {config[name]}')


def check_choice(option, value, *choices):
    if value not in choices:
        *others, last = choices
        raise ValueError(f'{option} must be {", ".join(map(str, others))} or {last}, got {value!r}')


def numbers(config, name, kind=int, least=0, most=math.inf):
    """Return [n, ...] of the option `name`: finite numbers from `least` to `most`, with commas
    between them."""
    found = [number_in(part, kind) for part in names_in(config[name])]
    if not found or not all(n is not None and least <= n <= most for n in found):
        bounds = f'from {least}' if most == math.inf else f'from {least} to {most}'
        raise ValueError(
            f'{name} must be numbers {bounds} with commas between, got {config[name]!r}'
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
