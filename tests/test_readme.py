"""The README and the pages of results: their commands are understood, cheap ones run, and what they name is there."""
import contextlib
import glob
import importlib.util
import itertools
import os
import pkgutil
import re
import runpy
import shlex

import pytest
from conftest import ROOT
from test_findings import run as findings

import eval_lm
import train
from anyorder.puzzles.rules import TASKS
from anyorder.tokens.prepared import DATA_SETS
from anyorder.training.start import check_options
from configurator import configure

PAGES = ['README.md', *sorted(glob.glob('results/**/*.md', root_dir=ROOT, recursive=True))]
# what a command that was understood lacks here: its weights or logs, or the device that it is given
LACKING = r'no checkpoint file|requirements-extra|no file .*ckpt|cannot get hf:|nowhere|no log out/'


def lacks(finished):
    assert re.search(LACKING, finished.stderr), finished.stderr


class Understood(Exception):
    """Raised in place of the work of a command whose options have been read."""


def read(page):
    with open(os.path.join(ROOT, page), encoding='utf-8') as f:
        return f.read()


def lm_eval_understands(args, monkeypatch):
    """Where lm-eval is there, it knows its options, we know the options of the model, and a folder has the tasks."""
    if importlib.util.find_spec('lm_eval') is None or args[0] == 'ls':
        return
    from lm_eval._cli import HarnessCLI

    from anyorder.harness import AnyOrderLM
    with monkeypatch.context() as patch:
        patch.setattr('sys.argv', ['eval_lm.py', *eval_lm.arguments(list(args))])
        found = HarnessCLI().parse_args()
    if found.model == 'aogpt':
        AnyOrderLM.options(found.model_args)
    if found.include_path:
        assert all(os.path.isfile(os.path.join(ROOT, found.include_path, f'{task}.yaml')) for task in found.tasks)


COMMANDS = [name for name in sorted(glob.glob('*.py', root_dir=ROOT) + glob.glob('data/*.py', root_dir=ROOT))
            if re.search(r"^if __name__ == '__main__':\n", read(name), flags=re.MULTILINE)]


def fences(page, language):
    return re.findall(rf'^```{language}\n(.*?)^```$', read(page), flags=re.MULTILINE | re.DOTALL)


def expand(word):
    """The words that bash makes of a word with {a,b} or * in it."""
    choices = [part.split(',') if n % 2 else [part] for n, part in enumerate(re.split(r'\{(.*?)\}', word))]
    words = [''.join(parts) for parts in itertools.product(*choices)]
    return [path for w in words for path in sorted(glob.glob(w, root_dir=ROOT)) or [w]] if '*' in word else words


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
        parts = itertools.groupby(words[len(settings):], lambda word: word == '&&')
        found += [[w for word in part for w in expand(word)] for between, part in parts if not between]
    return found


def inline_commands(page):
    """The words of every command in the running text and the tables of a page."""
    text = re.sub(r'^```.*?^```$', '', read(page), flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r'^    (python|torchrun|bash|pip) ', text, flags=re.MULTILINE), 'a command outside of a fence'
    return [shlex.split(command) for command in re.findall(r'`((?:python|torchrun|bash|pip) [^`]+)`', text)]


# options of a launcher: how many machines, how many processes on each (8 without it), and others
LAUNCHERS = {'torchrun': ('nnodes', 'nproc_per_node', 'standalone node_rank master_addr master_port'),
             'sbatch': ('nodes', 'ntasks-per-node', 'gpus-per-node')}


@pytest.fixture
def understand(script, tmp_path, monkeypatch):
    """understand(words) runs the command until its options have been read and checked, and fails if it rejects one."""
    def python(name, *args):
        if any(arg.startswith('--plan=') for arg in args):   # wants nothing
            return script(name, *args)
        if name == 'eval_lm.py':
            return lm_eval_understands(args, monkeypatch)
        reader = {'data/prepare.py': 'configurator.configure', 'data/puzzles.py': 'configurator.configure',
                  'config/lm_eval/rows.py': 'configurator.configure', 'export_hf.py': 'configurator.configure',
                  'tests/torture.py': 'argparse.ArgumentParser.parse_args',
                  'plot.py': 'anyorder.pictures.figures.draw'}.get(name)
        if not reader:
            return lacks(script(name, *args, '--device=nowhere', code=1))
        read_options = pkgutil.resolve_name(reader)

        def read_and_stop(*args, **kwargs):
            if name != 'plot.py':   # which has read them when it draws
                read_options(*args, **kwargs)
            raise Understood
        with monkeypatch.context() as patch, contextlib.suppress(Understood):
            patch.setattr(reader, read_and_stop)
            lacks(script(name, *args, code=1))
        assert args[0] in {'data/prepare.py': DATA_SETS, 'data/puzzles.py': TASKS}.get(name, args)

    def run(words):
        match words:
            case (['python', '-m', 'pytest', *_] | ['pip', 'install', *_]
                  | ['python', 'config/findings/run.py', '--help']):
                pass
            case ['python', 'config/findings/run.py', *args]:   # its commands: test_findings.py
                configure(vars(findings), list(itertools.takewhile(lambda arg: arg != '--', args)))
            case ['python', 'config/findings/bert.py' as name, *args]:
                configure(runpy.run_path(os.path.join(ROOT, name)), args)
            case ['python', name, *args]:
                python(name, *args)
            case ['torchrun' | 'sbatch' as launcher, *args]:
                at = next(n for n, arg in enumerate(args) if not arg.startswith('-'))
                options = dict(arg.removeprefix('--').partition('=')[::2] for arg in args[:at])
                nodes, processes, others = LAUNCHERS[launcher]
                assert options.keys() <= {nodes, processes, *others.split()}
                name = {'config/train.sbatch': 'train.py'}.get(args[at], args[at])
                python(name, *args[at + 1:])
                n_processes = int(options.get(nodes, 1)) * int(options.get(processes, 8))
                if name == 'train.py':
                    check_options(configure(vars(train), args[at + 1:]), n_processes)
            case _:
                pytest.fail('no program that is known here')
    for folder in ('config', 'results'):
        os.symlink(os.path.join(ROOT, folder), tmp_path / folder)
    return run


@pytest.mark.parametrize('page', PAGES)
def test_every_command_is_understood(understand, page):
    for words in commands(page) + inline_commands(page):
        try:
            understand(words)
        except (AssertionError, SystemExit) as e:
            raise AssertionError(f'{page}: {shlex.join(words)}') from e


@pytest.mark.parametrize('page', PAGES)
def test_links_lead_somewhere(page):
    text = read(page)
    paths = re.findall(r'\]\(([^)#:]+)[^):]*\)', text) + re.findall(r'(?:src|srcset)="([^":]+)"', text)
    assert [path for path in paths if not os.path.exists(os.path.join(ROOT, os.path.dirname(page), path))] == []
    for path, heading in re.findall(r'\]\(([^)#:]+)#([^)]*)\)', text):
        headings = re.findall(r'^#+ (.*)$', read(os.path.join(os.path.dirname(page), path)), flags=re.MULTILINE)
        # as GitHub names them
        assert heading in [re.sub(r'[^\w -]', '', h.lower()).replace(' ', '-') for h in headings]
    files = set(re.findall(r'`((?:anyorder|config|tests)/[\w/]+\.\w+|data/\w+\.py|\w+\.py)`', text))
    assert [path for path in files if not os.path.exists(os.path.join(ROOT, path))] == []
    for name, path in re.findall(r'`([A-Z_]+)`, `([\w/]+\.py)`', text):
        assert re.search(rf'^{name} = ', read(path), flags=re.MULTILINE), f'no {name} in {path}'


def test_every_picture_is_shown():
    shown = ' '.join(re.sub(r'^```.*?^```$', '', read(page), flags=re.MULTILINE | re.DOTALL) for page in PAGES)
    pictures = [name for name in os.listdir(os.path.join(ROOT, 'results')) if name.endswith(('.png', '.svg'))]
    assert [name for name in pictures if name not in shown] == [] and 'replay.svg' in read('README.md')


def test_the_front_page_is_short_names_every_room_and_counts_the_lines_of_its_nine_files():
    page = read('README.md')
    said, names = re.search(r'these nine files.*?about ([\d,]+) lines(.*?)\n\n', page, re.DOTALL).groups()
    files = re.findall(r'`([\w/]+\.py)`', names)
    assert len(files) == 9 and len(page.encode()) <= 11_500
    rooms = {path.split(os.sep)[1] for path in glob.glob('anyorder/*/__init__.py', root_dir=ROOT)}
    assert rooms == set(re.findall(r'^\| `(\w+)/` \|', page, re.MULTILINE)) - {'anyorder'}
    assert abs(sum(read(name).count('\n') for name in files) - int(said.replace(',', ''))) <= 100


def test_the_cheap_commands_run(script, tmp_path):
    """The README's quickstart, small Sudoku and text of one's own, and the program of writing.md: toys of them."""
    toy = {'train.py': ['--n_layer=1', '--n_head=2', '--n_embd=16', '--n_cond=8', '--max_iters=2', '--eval_iters=1',
                        '--compile=False', '--device=cpu'],
           'eval_ppl.py': ['--n_blocks=2', '--device=cpu'], 'eval_puzzle.py': ['--n_puzzles=3', '--device=cpu'],
           'sample.py': ['--device=cpu'], 'data/prepare.py': ['--data_dir=data']}
    (tmp_path / 'YOUR.txt').write_text(read('README.md')[:5000])
    os.symlink(os.path.join(ROOT, 'config'), tmp_path / 'config')
    script('data/prepare.py', 'text', '--source=YOUR.txt', '--tokenizer=bytes', '--name=pydocs', '--data_dir=data')
    script('data/puzzles.py', 'sudoku4', '--n_train=40', '--n_val=4', '--n_test=4', '--data_dir=data')
    ran = []
    for _, name, *args in commands('README.md') + inline_commands('README.md'):
        if not re.search('quickstart|sudoku4|mine', shlex.join(args)):
            continue
        said = script(name, *args, *toy[name]).stdout
        ran.append(name)
        if shlex.join(args) == 'config/quickstart.py':
            offered = [line.split()[1:] for line in said.splitlines() if line.startswith('  python ')]
            assert [c[0] for c in offered] == ['sample.py', 'eval_ppl.py'] and 'written in random order' in said
            assert 'sample 1' in script(*offered[0]).stdout
            assert 'unigram, whole set' in script(*offered[1], '--n_blocks=2').stdout
    assert set(ran) == set(toy)
    (tmp_path / 'program.py').write_text('\n'.join(fences('results/writing.md', 'python')))
    found = runpy.run_path('program.py')
    assert found['text'].startswith('If ') and found['text'].endswith(' is returned.') and found['text'].logprob < 0
    assert len(found['texts']) == 4 and found['a'] < 0 > found['b']
    assert found['nll'].shape == found['idx'].shape == found['trace']['logprob'].shape


def test_every_command_has_a_manual_and_every_option_of_the_pages_is_in_one(script):
    manuals = {name: script(name, '--help').stdout for name in COMMANDS}
    assert [name for name, said in manuals.items() if f'python {name}' not in said] == []
    known = {'help', 'name', 'nnodes', 'node_rank', 'signals_to_handle'}
    known |= set(re.findall(r'--(\w+)', ' '.join(manuals.values())))
    for page in PAGES:
        text = re.sub(r'```.*?```', '', read(page), flags=re.DOTALL)
        used = set(re.findall(r'--(\w+)', ' '.join(re.findall(r'`((?!python |pip )[^`]+)`', text))))
        assert used <= known, f'{page}: {used - known}'
