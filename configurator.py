"""How the flat globals of a script are overridden: nanoGPT's command line, made strict.

    python train.py config/quickstart.py --batch_size=32 --compile=False

An option is a lower-case global of the script that holds a number, string, bool or None. Config files hold
`name = value` lines and nothing else: they are read, not run. Later files override earlier ones, and the command line
overrides files. A name that is not an option is an error that names the nearest one. `--help` lists every option with
its default and its comment. FILE.py:TABLE in a comment stands for the keys of this table. -o FILE is --out=FILE.
true, True and 1 are one bool, in a file too. ~ at the beginning of a path is the home folder, see `home`. A path with a
comma is one path where its file is there, see `names_in`.

The words beside the options are config files, unless the script has one of these globals:

    WORDS = {'pydocs': 'English of the Python documentation'}   # exactly one of its keys: python data/prepare.py pydocs
    INPUTS = 'runs'                                             # one or more of any kind: python plot.py out/a out/b
    TEXTS = ('prompt', 'stop')                                  # options that stay as typed: no path, no number"""

import ast
import difflib
import math
import operator
import os
import re
import sys
from pathlib import Path


class Config(dict):
    """The resolved options, config.name or config['name']. `given` holds what a file or the command line set, `typed`
    what the command line set, `words` what is no option."""

    __getattr__ = dict.__getitem__
    given, typed, words = frozenset(), frozenset(), ()


def configure(namespace, argv=None):
    """Options of `namespace` (a script's globals()) overridden by `argv` (default sys.argv[1:]); returns a Config.
    Raises ValueError in one line for an unknown name, a value of another type, or a config file that cannot be read."""
    defaults = {
        k: v
        for k, v in namespace.items()
        if k == k.lower()
        and not k.startswith('_')
        and isinstance(v, bool | int | float | str | None)
    }
    argv, texts = [*(sys.argv[1:] if argv is None else argv)], namespace.get('TEXTS', ())
    if '--help' in argv or '-h' in argv:
        print(help_text(namespace, defaults))
        raise SystemExit(0)
    if '-o' in argv and 'out' in defaults:
        at = argv.index('-o')
        argv[at : at + 2] = [f'--out={path}' for path in argv[at + 1 : at + 2]] or ['--out']
    words = [home(arg) for arg in argv if not arg.startswith('--')]
    options = [(arg, *arg[2:].partition('=')) for arg in argv if arg.startswith('--')]
    for arg, key, equals, _ in options:  # else its value, after a blank, would be a word
        if key in defaults and not equals and not isinstance(defaults[key], bool):
            raise ValueError(f'{arg} needs a value: --{key}={defaults[key]}')
    given = {}
    if short := [word for word in words if word.startswith('-')]:
        raise ValueError(f'there is no option {short[0]} (--help lists all)')
    if 'WORDS' in namespace:
        table = namespace['WORDS']
        if len(words) != 1:
            raise ValueError(
                f'name one of {", ".join(table)}; got {" ".join(words) or "none"} (--help says more)'
            )
        if words[0] not in table:
            raise ValueError(
                f'{words[0]!r} is none of {", ".join(table)}{nearest(words[0], table)}'
            )
    elif 'INPUTS' in namespace:
        if not words:
            raise ValueError(f'name the {namespace["INPUTS"]} (--help says more)')
    else:
        for path in words:
            for line, key, value in read_config_file(path):
                given[key] = check(defaults, key, value, f'{path} line {line}')
    for _, key, equals, text in options:
        value = text if key in texts else parse(defaults.get(key), text) if equals else True
        given[key] = check(defaults, key, value, f'--{key}')
    config = Config(defaults | given)
    config.update(
        {
            key: home(value)
            for key, value in config.items()
            if isinstance(value, str) and key not in texts
        }
    )
    config.given, config.typed = frozenset(given), frozenset(key for _, key, _, _ in options)
    config.words = tuple(words)
    return config


def nearest(word, known):
    near = difflib.get_close_matches(word, known, n=1, cutoff=0)
    return f'; the nearest is {near[0]!r}' if near else ''


def home(path):
    """An option with ~/ or ~NAME/ in front of a path, or behind a comma or colon as in auto:~/ckpt.pt, as a shell would
    expand it: no shell does behind --NAME=."""
    return re.sub(
        r'(?<![^,:])~([\w.-]*(?=[/\\])|$)',
        lambda found: os.path.expanduser(found[0]),
        os.fspath(path),
    )


def names_in(text):
    """The parts of an option between its commas. No comma in the name of a file that is there parts it, also where the
    file is a FILE.py:NAME."""
    parts, found = text.split(','), []
    while parts:
        longer = (','.join(parts[:n]) for n in range(len(parts), 1, -1))
        part = next(
            (
                name
                for name in longer
                if os.path.isfile(re.sub(r'\.py:[^,]*$', '.py', name.strip()))
            ),
            parts[0],
        )
        found.append(part)
        del parts[: part.count(',') + 1]
    return found


BOOLS = {'true': True, 'false': False}


def parse(default, text):
    """The value that `text` of the command line stands for: a string where the default is one, else a literal."""
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
    """`value` as the option `key` wants it: an int serves as a float, 0 and 1 as a bool. None and 'auto' defaults take
    any plain value."""
    if key not in defaults:
        raise ValueError(
            f'{where}: there is no option {key!r}{nearest(key, defaults)} (--help lists all)'
        )
    default = defaults[key]
    if isinstance(default, bool) and type(value) is int and value in (0, 1):
        value = bool(value)
    if isinstance(default, float) and type(value) is int:
        value = float(value) if abs(value) < 2**1000 else math.inf
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f'{where}: {key} must be finite, got {value}')
    if type(value) is not type(default) and default is not None and default != 'auto':
        raise ValueError(
            f'{where}: {key} wants {type(default).__name__} (default {default!r}), got {value!r:.80}'
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

    def value(node):
        match node:
            case ast.Constant(value=int() | float() | str() | None as constant):
                return constant
            case ast.Name(id=name) if name.lower() in BOOLS:
                return BOOLS[name.lower()]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return value(ast.BinOp(ast.Constant(0), ast.Sub(), operand, lineno=node.lineno))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                try:
                    return OPERATORS[type(op)](value(left), value(right))
                except (ArithmeticError, TypeError) as e:
                    raise ValueError(
                        f'{path} line {node.lineno}: {ast.unparse(node)}: {e}'
                    ) from None
        raise ValueError(
            f'{path} line {node.lineno}: only plain values and arithmetic of them are allowed, got '
            f'{ast.unparse(node).splitlines()[0][:60]}'
        )

    try:
        text = (
            Path(path).read_text(encoding='utf-8').replace('\ufeff', '')
        )  # a mark, as in files.reading_text
        statements = ast.parse(text).body
    except (
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
    ) as e:  # ValueError: a zero byte, or no UTF-8
        raise ValueError(f'{path} is not a config file of `name = value` lines: {e}') from None
    for node in statements:
        match node:
            case ast.Expr(value=ast.Constant(value=str())):  # docstring
                pass
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield node.lineno, name, value(node.value)
            case _:
                raise ValueError(
                    f'{path} line {node.lineno}: a config file holds `name = value` lines only, '
                    f'got {ast.unparse(node).splitlines()[0][:60]}'
                )


def help_text(namespace, defaults):
    """The script's docstring, its table of words, then every option as its source has it: heading, default, comment."""
    lines = [(namespace.get('__doc__') or '').strip()]
    if 'WORDS' in namespace:
        table = namespace['WORDS']
        width = max(map(len, table)) + 2
        lines += [
            '',
            'the word is one of:',
            *(f'    {word:<{width}}{about}' for word, about in table.items()),
        ]
    if 'INPUTS' in namespace:
        lines += ['', f'the words are {namespace["INPUTS"]}']
    lines += ['', 'options (--name=value), with their defaults:']
    script = Path(namespace.get('__file__') or '')
    source = script.read_text(encoding='utf-8') if script.is_file() else ''
    for (
        key,
        default,
    ) in defaults.items():  # the heading above it, its comment, the comment's further lines
        said = re.search(
            rf'^(?:# (.+)\n)?{key} = .*?(?:  # (.*))?((?:\n +# .*)*)$', source, re.MULTILINE
        )
        heading, comment, more = said.groups('') if said else ('', '', '')
        lines += ['', f'  {heading}'] if heading else []
        lines.append(f'    --{key}={default}'.ljust(39) + f' {comment}')
        lines += [' ' * 40 + line.lstrip()[2:] for line in more.splitlines()[1:]]
    return re.sub(r'([a-z_/]+\.py):([A-Z]+)', keys_of, '\n'.join(lines))


def keys_of(found):
    """The keys of the table FILE.py:TABLE that was found, by the source of the file, whose imports take seconds."""
    path, table = found.groups()
    for node in ast.parse((Path(__file__).parent / path).read_text(encoding='utf-8')).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys)) if (
                name == table
            ):
                return ', '.join(repr(key.value) for key in keys)
    raise ValueError(f'{path} has no table {table}')


def at_least(config, bound, *names):
    for name in names:
        if config[name] < bound:
            raise ValueError(f'{name} must be at least {bound}, got {config[name]}')


def check_choice(option, value, *choices):
    if value not in choices:
        raise ValueError(
            f'{option} must be {", ".join(map(str, choices[:-1]))} or {choices[-1]}, got {value!r}'
        )


def numbers(config, name, kind=int, least=0, most=math.inf):
    """[n, ...] of the option `name`, which has commas between them: finite numbers from `least` to `most`."""
    try:
        found = [kind(part) for part in config[name].split(',')]
    except ValueError:
        found = [math.nan]
    if not all(least <= n <= most and math.isfinite(n) for n in found):
        bounds = f'from {least}' if most == math.inf else f'from {least} to {most}'
        raise ValueError(
            f'{name} must be numbers {bounds} with commas between, got {config[name]!r}'
        )
    return found
