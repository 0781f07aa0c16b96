"""Options: what overrides what, and that nothing wrong passes in silence."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, one_line

from anyorder.generation.scores import SCORES
from anyorder.likelihood.estimates import ESTIMATES
from anyorder.networks import NETWORKS
from anyorder.orders import ORDERS
from configurator import configure, help_text, home, names_in, number_in, numbers, options_of

OPTIONS = dict(
    learning_rate=6e-4,
    batch_size=16,
    bias=True,
    out_dir='out',
    compile='auto',
    seed=None,
    _private=1,
    SHAPE=(1,),
    print=print,
)


def test_order_of_overriding():
    """A byte-order mark is no part of a file."""
    base = '\ufeff"""A run."""\n\ufeffbatch_size = 4 * 8  # a comment\nout_dir = "a"\n'
    Path('base.py').write_text(base, encoding='utf-8')
    Path('more.py').write_text('out_dir = "b"\nlearning_rate = -32 / 2\n')
    config = configure(OPTIONS, ['--bias=False', 'base.py', 'more.py', '--out_dir=c=d'])
    now = dict(learning_rate=-16.0, batch_size=32, bias=False, out_dir='c=d')
    assert config == now | dict(compile='auto', seed=None)
    assert config.given == now.keys()
    assert config.typed == {'bias', 'out_dir'}
    assert config.batch_size == 32


VALUES = {  # what is typed behind the names of options, and their values
    'learning_rate': {'1': 1.0, '1e-3': 1e-3, ' +2 ': 2.0},
    'batch_size': {'-2': -2, '4 * 8': 32},
    'bias': {'false': False, 'True': True, '1': True, '0': False, '': True},
    'compile': {'false': False, '1': 1},
    'out_dir': {'true': 'true', '3': '3', '': ''},
    'seed': {'true': True, '5': 5, 'a b': 'a b', 'None': None},
}


@pytest.mark.parametrize('name', VALUES)
def test_values(name):
    for text, value in VALUES[name].items():
        arg = '--bias' if value is True and not text else f'--{name}={text}'
        got = configure(OPTIONS, [arg])[name]
        assert got == value and type(got) is type(value)


HOME = {  # what is typed, and the path
    '~': 'HOME',
    '~/a b': 'HOME/a b',
    'auto:~/c.pt': 'auto:HOME/c.pt',
    'masked:~/m': 'masked:HOME/m',
    'l2r,~/o.json,~/f.py:g': 'l2r,HOME/o.json,HOME/f.py:g',
    'a/~/b': 'a/~/b',
    '~root': '~root',
    'a ~/b': 'a ~/b',
}


@pytest.mark.parametrize('typed', HOME)
def test_the_home_folder(monkeypatch, typed):
    monkeypatch.setenv('HOME', '/home/me')
    path = HOME[typed].replace('HOME', '/home/me')
    assert home(typed) == path
    Path('c.py').write_text(f'out_dir = {typed!r}\n')
    options = {'out_dir': '', 'compile': 'auto', 'prompt': '', 'TEXTS': ('prompt',)}
    config = configure(options, [f'--compile={typed}', f'--prompt={typed}', 'c.py'])
    assert (config.compile, config.prompt, config.out_dir) == (path, typed, path)
    assert configure({'INPUTS': 'runs'}, [typed]).words == (path,)
    assert configure({'key': 'auto', 'TEXTS': ('key',)}, ['--key=3']).key == '3'


BAD = {  # what is typed, or, where it is no option, a config file holds, and what is said
    '--learnin_rate=1': "nearest is 'learning_rate'",
    '--threshold=1': r"option 'threshold' \(",  # and none is near
    '--batch_size=4.5': 'wants int',
    '--batch_size=True': 'wants int',
    '--learning_rate=fast': 'wants float',
    '--bias=2': 'wants bool',
    '--batch_size=1/0': "wants int, as 16, got '1/0'",
    '--batch_size': 'needs a value',
    '--_private=2': 'no option',
    f'--learning_rate={"1" * 400}': 'wants float, as .*, got inf',
    f'--batch_size={"(" * 5000}': r"got '\({79}$",
    '--batch_size 4': 'batch_size needs a value',
    'batchsize = 4': "line 1: there is no option 'batchsize'; the nearest is 'batch_size'",
    '\nbatch_size = "4"': 'line 2: .* wants int',
    'import os': 'line 1: .*only',
    'batch_size = 4 // 0': 'line 1: .*zero',
    'batch_size = = 4': 'a config file',
    'batch_size = 4\0': 'a config file',
    f'batch_size = {"-" * 20_000}4': 'a config file',
    'def f():\n    pass\n': 'line 1.*got def f',
    'batch_size += 4': 'line 1: .*only',
    'out_dir = "a" - 1': 'line 1',
    'learning_rate = [1]': 'line 1: .*only',
}


@pytest.mark.parametrize('typed, said', BAD.items())
def test_what_is_wrong_is_one_line(typed, said):
    Path('c.py').write_text(typed)
    argv = typed.split(' ') if typed[0] == '-' else ['c.py']
    with one_line(said):
        configure(OPTIONS, argv)


WORDS = {'big': 'a large one', 'small': 'a little one'}
OF_TABLE = OPTIONS | {'WORDS': WORDS, '__doc__': 'Sizes.'}
OF_INPUTS = OPTIONS | {'INPUTS': 'runs: folders', 'out': 'a.png'}


def test_words_are_one_of_a_table_or_inputs():
    config = configure(OF_TABLE, ['--batch_size=3', 'small'])
    assert (config.words, config.batch_size) == (('small',), 3)
    assert not {'words', 'WORDS'} & {*config}
    config = configure(OF_INPUTS, ['a', '--out=d=e', '--bias', 'missing.py'])
    assert (config.words, config.out) == (('a', 'missing.py'), 'd=e')
    assert config.given == {'out', 'bias'}
    for typed, said in (
        ('', "name one of big, small, got ''"),
        ('big small', "got 'big small'"),
        ('smal', "got 'smal'; the nearest is 'small'"),
    ):
        with one_line(said):
            configure(OF_TABLE, typed.split())
    with one_line('name the runs: folders'):
        configure(OF_INPUTS, [])
    said = help_text(OF_TABLE, {}) + help_text(OF_INPUTS, {})
    for line in ('    big    a large one\n', '    small  a little one', '\nthe words are runs'):
        assert line in said


# the most options of a command, and tables whose keys its help names
COMMANDS = {
    'train': (41, [ORDERS, NETWORKS]),
    'sample': (34, [ORDERS, SCORES]),
    'eval_ppl': (22, [ORDERS, ESTIMATES]),
    'data.prepare': (20, []),
    'anyorder.extras.puzzles.make': (20, []),
    'anyorder.extras.puzzles.solve': (17, [ORDERS, SCORES]),
    'anyorder.extras.speed.bench': (20, []),
    'anyorder.extras.speed.frontier': (20, []),
    'anyorder.extras.pictures.__main__': (20, []),
    'anyorder.extras.hub.__main__': (20, []),
}


@pytest.mark.parametrize('command', COMMANDS)
def test_options_of_a_command(command, capsys):
    """They are few, each has a line of its own with a comment, and help names it with its default;
    those that stay as typed are texts."""
    namespace = vars(importlib.import_module(command))
    options = options_of(namespace)
    most, tables = COMMANDS[command]
    assert len(options) <= most
    with pytest.raises(SystemExit, match='0'):
        configure(namespace, ['a', '-h'])
    said = capsys.readouterr().out
    assert namespace['__doc__'].strip().splitlines()[0] in said
    for name, default in options.items():
        assert re.search(rf'^    --{name}={re.escape(str(default))} +\S', said, re.MULTILINE), name
    assert all(', '.join(map(repr, table)) in said for table in tables)

    strings = {name for name, value in options.items() if isinstance(value, str)}
    assert {*namespace.get('TEXTS', ())} <= strings


def test_help_and_a_typo_answer_before_torch_is_imported():
    names = [command.replace('.', '/') + '.py' for command in COMMANDS]
    wrong = ['--ckp=x', 'config/nowhere.py']
    code = f"""import contextlib, io, runpy, sys
for name in {names}:
    for arg in ['--help', *{wrong!r}]:
        sys.argv = ['x', arg]
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(name, run_name='__main__')
    assert 'torch' not in sys.modules, name"""
    subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=True)


WITHOUT_PACKAGES = {  # what a command says
    'train.py --help': '--plan=',
    'sample.py --help': '--ckpt=',
    'eval_ppl.py --help': '--estimates=',
    'train.py': "error: No module named 'numpy': pip install -r requirements.txt",
    'data/prepare.py': "error: No module named 'numpy': pip install -r requirements.txt",
}


@pytest.mark.parametrize('typed', WITHOUT_PACKAGES)
def test_a_command_without_its_packages_has_help_and_says_how_to_install_them(typed):
    python = [sys.executable, '-S', *typed.split(' ')]
    p = subprocess.run(python, cwd=ROOT, capture_output=True, text=True)
    assert WITHOUT_PACKAGES[typed] in p.stdout + p.stderr
    assert (p.returncode == 0) == ('--help' in typed) == (p.stderr == '')
    assert p.stderr.count('\n') <= 1


def test_a_number_within_an_option_has_digits_alone():
    assert names_in('ptb,, lm1b ,') == ['ptb', 'lm1b']
    assert [number_in(text) for text in ('10', '1e1', '-.5')] == [10, 10, -0.5]
    assert not any(map(number_in, ['1_0', '1_0.5', 'nan', 'inf', '1.0.0', '']))
    assert (number_in('10', int), number_in('1_0', int)) == (10, None)
    assert numbers({'steps': '4, 8'}, 'steps', least=4) == [4, 8]
    for text, least in (('4,1_0', 1), ('3', 4), ('', 0)):
        with one_line(f'numbers from {least} with'):
            numbers({'steps': text}, 'steps', least)
