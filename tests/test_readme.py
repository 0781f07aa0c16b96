"""The README, docs and results: their commands are understood, cheap ones run, links lead
somewhere."""

import ast
import contextlib
import functools
import glob
import importlib
import io
import itertools
import json
import os
import pkgutil
import re
import runpy
import shlex

import pytest
import torch
from conftest import ROOT, program_of
from test_findings import run as findings

import anyorder.extras.lm_eval.__main__ as eval_lm
import train
from anyorder.extras.puzzles.rules import TASKS
from anyorder.tokens.prepared import DATA_SETS
from anyorder.training.start import check_options
from anyorder.writer import Writer
from configurator import configure

PAGES = [
    'README.md',
    *sorted(glob.glob('docs/*.md', root_dir=ROOT)),
    *sorted(glob.glob('results/**/*.md', root_dir=ROOT, recursive=True)),
]
# what a command that was understood lacks here: its weights or logs, or the device that it is given
LACKING = (
    r'no checkpoint file|requirements-extra|no file .*ckpt|cannot get hf:|nowhere|no log out/|'
    r"a list of positions, got .\w+.json|No such file or directory: '.*\.html'"
)


def lacks(finished):
    assert re.search(LACKING, finished.stderr), finished.stderr


class Understood(Exception):
    """Raised in place of the work of a command whose options have been read."""


def read(page):
    with open(os.path.join(ROOT, page), encoding='utf-8') as f:
        return f.read()


COMMANDS = [
    name
    for name in sorted(glob.glob('*.py', root_dir=ROOT) + glob.glob('data/*.py', root_dir=ROOT))
    if re.search(r"^if __name__ == '__main__':\n", read(name), flags=re.MULTILINE)
]
COMMANDS += [
    f'anyorder.extras.{room}' for room in ('hub', 'lm_eval', 'masked', 'pictures', 'speed')
]
COMMANDS += ['anyorder.extras.puzzles make', 'anyorder.extras.puzzles solve']


@functools.cache
def program(name):
    """The names of a program of the pages, by its path, which is run without its main."""
    return runpy.run_path(os.path.join(ROOT, name))


def fences(page, language):
    return re.findall(rf'^```{language}\n(.*?)^```$', read(page), flags=re.MULTILINE | re.DOTALL)


def expand(word):
    """The words that bash makes of a word with {a,b} or * in it."""
    choices = [
        part.split(',') if n % 2 else [part] for n, part in enumerate(re.split(r'\{(.*?)\}', word))
    ]
    words = [''.join(parts) for parts in itertools.product(*choices)]
    return (
        [path for w in words for path in sorted(glob.glob(w, root_dir=ROOT)) or [w]]
        if '*' in word
        else words
    )


def commands(page):
    """The words of every command in the sh fences of a page, in order.

    $NAME, {a,b} and * are what bash makes of them; comments and VAR=value are left out."""
    variables, found = {}, []
    for line in '\n'.join(fences(page, 'sh')).replace('\\\n', ' ').splitlines():
        for name, value in variables.items():
            line = line.replace(f'${name}', value)
        words = shlex.split(line, comments=True)
        pairs = (word.partition('=')[::2] for word in words)
        settings = dict(itertools.takewhile(lambda pair: re.fullmatch('[A-Z]+', pair[0]), pairs))
        if len(settings) == len(words):
            variables |= settings
        parts = itertools.groupby(words[len(settings) :], lambda word: word == '&&')
        found += [
            [w for word in part for w in expand(word)] for between, part in parts if not between
        ]
    return found


def inline_commands(page):
    """The words of every command in the running text and the tables of a page."""
    text = re.sub(r'^```.*?^```$', '', read(page), flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r'^    (python|torchrun|bash|pip) ', text, flags=re.MULTILINE), (
        'a command outside of a fence'
    )
    return [
        shlex.split(command)
        for command in re.findall(r'`((?:python|torchrun|bash|pip) [^`]+)`', text)
    ]


# options of a launcher: how many machines, how many processes on each (8 without it), and others
LAUNCHERS = {
    'torchrun': ('nnodes', 'nproc_per_node', 'standalone node_rank master_addr master_port'),
    'sbatch': ('nodes', 'ntasks-per-node', 'gpus-per-node'),
}


@pytest.fixture
def understand(script, tmp_path, monkeypatch):
    """understand(words) runs the command until its options have been read and checked.

    It fails if the command rejects one."""

    def python(name, *args):
        if any(arg.startswith('--plan=') for arg in args):  # wants nothing
            return script(name, *args)
        if name == 'anyorder.extras.lm_eval':  # test_lm_eval_understands_its_commands
            return None
        reader = {
            'data/prepare.py': 'configurator.configure',
            'anyorder.extras.puzzles make': 'configurator.configure',
            'anyorder.extras.hub': 'configurator.configure',
            'tests/torture.py': 'argparse.ArgumentParser.parse_args',
            'anyorder.extras.pictures': 'anyorder.extras.pictures.figures.draw',
        }.get(name)
        if not reader:
            return lacks(script(name, *args, '--device=nowhere', code=1))
        read_options = pkgutil.resolve_name(reader)

        def read_and_stop(*args, **kwargs):
            if name != 'anyorder.extras.pictures':  # which has read them when it draws
                read_options(*args, **kwargs)
            raise Understood

        with monkeypatch.context() as patch, contextlib.suppress(Understood):
            patch.setattr(reader, read_and_stop)
            lacks(script(name, *args, code=1))
        assert args[0] in {
            'data/prepare.py': [*DATA_SETS, 'tokens'],
            'anyorder.extras.puzzles make': TASKS,
        }.get(name, args)

    def understand_program(name, args):
        """A program beside its page: it has options, or those of train.py, or none."""
        text = read(name)
        if 'configure(globals())' in text:
            configure(program(name), args)
        elif 'train.train(' in text:
            python(name, *args)
        else:
            compile(text, name, 'exec')

    def run(words):
        match words:
            case (
                ['python', '-m', 'pytest', *_]
                | ['pip', 'install', *_]
                | ['git', 'clone', *_]
                | ['python', 'results/run.py', '--help']
            ):
                pass
            case ['python', 'results/run.py', *args]:  # its commands: test_findings.py
                configure(vars(findings), list(itertools.takewhile(lambda arg: arg != '--', args)))
            case ['python', name, *args] if name.startswith(('docs/', 'results/')):
                understand_program(name, args)
            case ['python', *rest]:
                name, args = program_of(rest)
                python(name, *args)
            case ['torchrun' | 'sbatch' as launcher, *args]:
                at = next(n for n, arg in enumerate(args) if not arg.startswith('--'))
                options = dict(arg.removeprefix('--').partition('=')[::2] for arg in args[:at])
                nodes, processes, others = LAUNCHERS[launcher]
                assert options.keys() <= {nodes, processes, *others.split()}
                name, rest = program_of(args[at:])
                name = {'config/train.sbatch': 'train.py'}.get(name, name)
                python(name, *rest)
                n_processes = int(options.get(nodes, 1)) * int(options.get(processes, 8))
                if name == 'train.py':
                    check_options(configure(vars(train), rest), n_processes)
            case _:
                pytest.fail('no program that is known here')

    for folder in ('config', 'docs', 'results'):
        os.symlink(os.path.join(ROOT, folder), tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.parametrize('page', PAGES)
def test_every_command_is_understood(understand, page):
    for words in commands(page) + inline_commands(page):
        try:
            understand(words)
        except (AssertionError, SystemExit) as e:
            raise AssertionError(f'{page}: {shlex.join(words)}') from e


@pytest.mark.parametrize('page', [page for page in PAGES if '.lm_eval --' in read(page)])
def test_lm_eval_understands_its_commands(page, monkeypatch):
    """It knows its options, we know the options of the model, and a folder has the tasks."""
    pytest.importorskip('lm_eval')
    from lm_eval._cli import HarnessCLI

    from anyorder.extras.lm_eval.harness import AnyOrderLM

    for words in commands(page) + inline_commands(page):
        if 'anyorder.extras.lm_eval' not in words or 'ls' in words:
            continue
        args = words[words.index('anyorder.extras.lm_eval') + 1 :]
        monkeypatch.setattr('sys.argv', ['lm_eval', *eval_lm.arguments(args)])
        found = HarnessCLI().parse_args()
        if found.model == 'aogpt':
            AnyOrderLM.options(found.model_args)
        if found.include_path:
            assert all(
                os.path.isfile(os.path.join(ROOT, found.include_path, f'{task}.yaml'))
                for task in found.tasks
            )


def links(page):
    """The links and pictures of a page, as they are written, but those to other sites."""
    text = re.sub(r'^```.*?^```$', '', read(page), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r'\]\(([^)\s]+)\)', text)
    found += re.findall(r'(?:src|srcset|href)="([^"]+)"', text)
    return [link for link in found if ':' not in link]


def target_of(page, link):
    """(path from the root of the project, heading or '') of a link of a page."""
    path, _, heading = link.partition('#')
    if not path:
        return page, heading
    return os.path.normpath(os.path.join(os.path.dirname(page), path)), heading


def headings(page):
    """The names of the headings of a page, as GitHub makes them."""
    found = re.findall(r'^#+ (.*)$', read(page), flags=re.MULTILINE)
    return [re.sub(r'[^\w -]', '', heading.lower()).replace(' ', '-') for heading in found]


@pytest.mark.parametrize('page', PAGES)
def test_links_lead_somewhere(page):
    for link in links(page):
        path, heading = target_of(page, link)
        assert os.path.exists(os.path.join(ROOT, path)), link
        assert not heading or heading in headings(path), link


@pytest.mark.parametrize('page', PAGES)
def test_files_and_names_that_are_said_are_there(page):
    text = read(page)
    here = os.path.dirname(page)
    for path in re.findall(r'`((?:anyorder|config|data|docs|results|tests)/[\w/]+\.\w+)`', text):
        assert os.path.exists(os.path.join(ROOT, path)), path
    for name in re.findall(r'`(\w+\.py)`', text):
        there = (os.path.join(ROOT, folder, name) for folder in ('', here))
        assert any(map(os.path.exists, there)), name
    for name, path in re.findall(r'`([A-Z_]+)`, `([\w/]+\.py)`', text):
        assert re.search(rf'^{name} = ', read(path), flags=re.MULTILINE), f'no {name} in {path}'


@pytest.mark.parametrize('page', PAGES)
def test_what_a_page_imports_is_there(page):
    for text in fences(page, 'python'):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module.split('.')[0] == 'anyorder':
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), node.module


def test_the_order_of_a_guide_visits_even_positions_first():
    (text,) = (text for text in fences('docs/data.md', 'python') if 'even_first' in text)
    names = {}
    exec(text, names)  # noqa: S102
    order = names['even_first'](torch.rand(5, 7), 7, None)
    assert (order[:, :4] % 2 == 0).all()
    assert (order.sort(1).values == torch.arange(7)).all()


def test_every_picture_is_shown():
    shown = {target_of(page, link)[0] for page in PAGES for link in links(page)}
    pictures = set()
    for pattern in ('docs/**/*.png', 'docs/**/*.svg', 'results/**/*.png', 'results/**/*.svg'):
        pictures.update(glob.glob(pattern, root_dir=ROOT, recursive=True))
    assert pictures <= shown
    assert 'docs/replay.svg' in {target_of('README.md', link)[0] for link in links('README.md')}


@pytest.mark.parametrize(
    'folder, pages', [('docs', 'docs/*.md'), ('results', 'results/*/README.md')]
)
def test_every_page_stands_in_the_table_of_its_folder(folder, pages):
    table = f'{folder}/README.md'
    named = {target_of(table, link)[0] for link in links(table)}
    assert {*glob.glob(pages, root_dir=ROOT)} - {table} <= named


def test_the_front_page_is_short_and_names_every_room_and_twelve_files():
    page = read('README.md')
    names = re.search(r'these twelve files(.*?)\n\n', page, re.DOTALL).group(1)
    files = re.findall(r'`([\w/]+\.py)`', names)
    assert len(files) == 12
    assert len(page.encode()) <= 12_000
    rooms = {path.split(os.sep)[1] for path in glob.glob('anyorder/*/__init__.py', root_dir=ROOT)}
    assert rooms == set(re.findall(r'^\| `(\w+)/` \|', page, re.MULTILINE)) - {'anyorder'}
    assert all(os.path.isfile(os.path.join(ROOT, name)) for name in files)


def test_the_cheap_commands_run(script, tmp_path):
    """Toys of the README's quickstart, small Sudoku and own text, and what two guides type."""
    toy = {
        'train.py': [
            '--n_layer=1',
            '--n_head=2',
            '--n_embd=16',
            '--network=gate_init=1,n_cond=8',
            '--max_iters=2',
            '--eval_iters=1',
            '--compile=False',
            '--device=cpu',
        ],
        'eval_ppl.py': ['--n_blocks=2', '--device=cpu'],
        'anyorder.extras.puzzles solve': ['--n_puzzles=3', '--device=cpu'],
        'sample.py': ['--device=cpu'],
        'data/prepare.py': ['--data_dir=data'],
    }
    (tmp_path / 'YOUR.txt').write_text(read('README.md')[:5000])
    os.symlink(os.path.join(ROOT, 'config'), tmp_path / 'config')
    script(
        'data/prepare.py',
        'text',
        '--source=YOUR.txt',
        '--tokenizer=bytes',
        '--name=pydocs',
        '--data_dir=data',
    )
    script(
        'anyorder.extras.puzzles make',
        'sudoku4',
        '--n_train=40',
        '--n_val=4',
        '--n_test=4',
        '--data_dir=data',
    )
    ran = []
    for _, *words in commands('README.md') + inline_commands('README.md'):
        name, args = program_of(words)
        if not re.search('quickstart|sudoku4|mine', shlex.join(args)):
            continue
        said = script(name, *args, *toy[name]).stdout
        ran.append(name)
        if shlex.join(args) == 'config/quickstart.py':
            offered = [
                line.split()[1:] for line in said.splitlines() if line.startswith('  python ')
            ]
            assert [c[0] for c in offered] == [
                'sample.py',
                'eval_ppl.py',
            ] and 'written in random order' in said
            assert 'sample 1' in script(*offered[0]).stdout
            assert 'unigram, whole set' in script(*offered[1], '--n_blocks=2').stdout
    assert set(ran) == set(toy)
    (tmp_path / 'program.py').write_text('\n'.join(fences('docs/writing.md', 'python')))
    found = runpy.run_path('program.py')
    assert (
        found['text'].startswith('If ')
        and found['text'].endswith(' is returned.')
        and found['text'].logprob < 0
    )
    assert len(found['texts']) == 4 and found['a'] < 0 > found['b']
    blocks = fences('docs/python.md', 'python')
    (tmp_path / 'program.py').write_text('\n'.join(blocks))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        found = runpy.run_path('program.py')
    assert max(block.count('\n') for block in blocks) <= 5 and found['text'].startswith('If ')
    assert out.getvalue().count('is returned.') >= 5 and '\nThe ·····' not in out.getvalue()


# options with which the commands of the front page take seconds, by script, and by script and
# first word
SHORT = {
    'train.py': '--n_layer=1 --n_head=2 --n_embd=16 --max_iters=2 --warmup_iters=0 --eval_iters=1 '
    '--device=cpu',
    'train.py config/bytes256.py': '--block_size=32',
    'sample.py': '--device=cpu',
    'eval_ppl.py': '--n_blocks=2 --device=cpu',
    'anyorder.extras.puzzles solve': '--n_puzzles=3 --device=cpu',
    'data/prepare.py': '--data_dir=data',
    'anyorder.extras.speed': '--device=cpu',
    'anyorder.extras.speed frontier': '--n_blocks=2 --n_samples=2 --steps=8 --windows=8 --thresholds= '
    '--block_lengths=',
    'anyorder.extras.speed grid': '--block_size=16 --vocab_size=64 --n_tokens=64 --n_layer=1 --n_embd=12 '
    '--batch_size=2 --steps=2,4 --n_updates=1',
}


@pytest.mark.slow
def test_all_commands_of_the_front_page_run_in_their_order(script, tmp_path):
    """On what the commands before them have made. A finding, which takes hours, is read alone."""
    (tmp_path / 'YOUR.txt').write_text(read('README.md')[:5000])
    os.symlink(os.path.join(ROOT, 'config'), tmp_path / 'config')
    ran = []
    for launcher, *words in commands('README.md') + inline_commands('README.md'):
        name, args = program_of(words)
        if launcher == 'pip' or name == 'pytest':
            continue
        if name == 'results/run.py':
            configure(vars(findings), args)
            continue
        kinds = name, f'{name} {args[0]}'
        ran += kinds
        script(name, *args, *(option for kind in kinds for option in SHORT.get(kind, '').split()))
    assert {*ran} >= {*SHORT} and ran[1] == 'train.py config/quickstart.py'
    measured = json.loads((tmp_path / 'ppl.json').read_text())['results']
    assert {row['dataset'] for row in measured} == {'pydocs', 'YOUR.txt'}
    assert os.path.getsize('replay.html') and os.path.isfile('out/finetune/ckpt.pt')
    (notebook,) = re.findall('`(from anyorder import Writer; [^`]+)`', read('README.md'))
    text = eval(notebook.partition('; ')[2], {'Writer': Writer})
    assert text.startswith('The ') and text.endswith('.')


def test_every_command_has_a_manual_and_every_option_of_the_pages_is_in_one(script):
    manuals = {name: script(name, '--help').stdout for name in COMMANDS}
    assert [
        name
        for name, said in manuals.items()
        if f'python {name}' not in said and f'python -m {name}' not in said
    ] == []
    known = {'help', 'name', 'nnodes', 'node_rank', 'signals_to_handle'}
    known |= set(re.findall(r'--(\w+)', ' '.join(manuals.values())))
    for page in PAGES:
        text = re.sub(r'```.*?```', '', read(page), flags=re.DOTALL)
        used = set(re.findall(r'--(\w+)', ' '.join(re.findall(r'`((?!python |pip )[^`]+)`', text))))
        assert used <= known, f'{page}: {used - known}'
