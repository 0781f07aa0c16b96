"""The README and the pages of results: their commands are understood, cheap ones run, and what they name is there."""

import ast
import contextlib
import glob
import importlib
import importlib.util
import io
import itertools
import json
import math
import os
import pkgutil
import re
import runpy
import shlex
import xml.etree.ElementTree
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, make_model
from test_findings import run as findings

import eval_lm
import train
from anyorder.checkpoint import save_checkpoint
from anyorder.datasets import open_split
from anyorder.likelihood.measured import Cut, open_corpus
from anyorder.likelihood.nll import conditional_logprob, nll_of_blanks
from anyorder.orders import Order
from anyorder.puzzles.rules import TASKS
from anyorder.tokens.prepared import DATA_SETS, prepare
from anyorder.tokens.puzzles import prepare_puzzles
from anyorder.tokens.tokenizers import Bytes
from anyorder.training.start import check_options
from anyorder.training.update import TrainState, make_optimizers
from anyorder.writer import Writer
from configurator import Config, configure
from model import EMA

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


def programs(page):
    """{name: text} of the programs of a page that a reader saves: the first line of each says its name."""
    found = {re.match(r'""".*?(\w+\.py)', text): text for text in fences(page, 'python')}
    return {match[1]: text for match, text in found.items() if match}


def all_programs():
    found = {}
    for page in PAGES:
        found |= programs(page)
    return found


@pytest.fixture
def understand(script, tmp_path, monkeypatch):
    """understand(words) runs the command until its options have been read and checked, and fails if it rejects one."""

    def python(name, *args):
        if any(arg.startswith('--plan=') for arg in args):  # wants nothing
            return script(name, *args)
        if name == 'eval_lm.py':  # test_lm_eval_understands_its_commands
            return None
        reader = {
            'data/prepare.py': 'configurator.configure',
            'data/puzzles.py': 'configurator.configure',
            'export_hf.py': 'configurator.configure',
            'tests/torture.py': 'argparse.ArgumentParser.parse_args',
            'plot.py': 'anyorder.pictures.figures.draw',
        }.get(name)
        if not reader:
            return lacks(script(name, *args, '--device=nowhere', code=1))
        read_options = pkgutil.resolve_name(reader)

        def read_and_stop(*args, **kwargs):
            if name != 'plot.py':  # which has read them when it draws
                read_options(*args, **kwargs)
            raise Understood

        with monkeypatch.context() as patch, contextlib.suppress(Understood):
            patch.setattr(reader, read_and_stop)
            lacks(script(name, *args, code=1))
        assert args[0] in {'data/prepare.py': [*DATA_SETS, 'tokens'], 'data/puzzles.py': TASKS}.get(
            name, args
        )

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
            case [
                'python',
                (
                    'bert.py'
                    | 'rows.py'
                    | 'peers.py'
                    | 'infilling.py'
                    | 'stargraphs.py'
                    | 'repeat.py'
                ) as name,
                *args,
            ]:
                (tmp_path / name).write_text(all_programs()[name])
                configure(runpy.run_path(name), args)
            case ['python', name, *_] if os.path.isfile(name):  # the reader's own
                compile(read(os.path.abspath(name)), name, 'exec')
            case ['python', name, *args]:
                python(name, *args)
            case ['torchrun' | 'sbatch' as launcher, *args]:
                at = next(n for n, arg in enumerate(args) if not arg.startswith('-'))
                options = dict(arg.removeprefix('--').partition('=')[::2] for arg in args[:at])
                nodes, processes, others = LAUNCHERS[launcher]
                assert options.keys() <= {nodes, processes, *others.split()}
                name = {'config/train.sbatch': 'train.py'}.get(args[at], args[at])
                python(name, *args[at + 1 :])
                n_processes = int(options.get(nodes, 1)) * int(options.get(processes, 8))
                if name == 'train.py':
                    check_options(configure(vars(train), args[at + 1 :]), n_processes)
            case _:
                pytest.fail('no program that is known here')

    for folder in ('config', 'docs', 'results'):
        os.symlink(os.path.join(ROOT, folder), tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.parametrize('page', PAGES)
def test_every_command_is_understood(understand, page):
    for name, text in all_programs().items():
        with open(name, 'w') as f:
            f.write(text)
    for words in commands(page) + inline_commands(page):
        try:
            understand(words)
        except (AssertionError, SystemExit) as e:
            raise AssertionError(f'{page}: {shlex.join(words)}') from e


@pytest.mark.parametrize('page', [page for page in PAGES if ' eval_lm.py --' in read(page)])
def test_lm_eval_understands_its_commands(page, monkeypatch):
    """It knows its options, we know the options of the model, and a folder has the tasks."""
    pytest.importorskip('lm_eval')
    from lm_eval._cli import HarnessCLI

    from anyorder.harness import AnyOrderLM

    for words in commands(page) + inline_commands(page):
        if 'eval_lm.py' not in words or 'ls' in words:
            continue
        args = words[words.index('eval_lm.py') + 1 :]
        monkeypatch.setattr('sys.argv', ['eval_lm.py', *eval_lm.arguments(args)])
        found = HarnessCLI().parse_args()
        if found.model == 'aogpt':
            AnyOrderLM.options(found.model_args)
        if found.include_path:
            assert all(
                os.path.isfile(os.path.join(ROOT, found.include_path, f'{task}.yaml'))
                for task in found.tasks
            )


@pytest.mark.parametrize('page', PAGES)
def test_links_lead_somewhere(page):
    text = read(page)
    paths = re.findall(r'\]\(([^)#:]+)[^):]*\)', text) + re.findall(
        r'(?:src|srcset)="([^":]+)"', text
    )
    assert [
        path
        for path in paths
        if not os.path.exists(os.path.join(ROOT, os.path.dirname(page), path))
    ] == []
    for path, heading in re.findall(r'\]\(([^)#:]+)#([^)]*)\)', text):
        headings = re.findall(
            r'^#+ (.*)$', read(os.path.join(os.path.dirname(page), path)), flags=re.MULTILINE
        )
        # as GitHub names them
        assert heading in [re.sub(r'[^\w -]', '', h.lower()).replace(' ', '-') for h in headings]
    files = set(re.findall(r'`((?:anyorder|config|tests)/[\w/]+\.\w+|data/\w+\.py|\w+\.py)`', text))
    assert [
        path for path in files - {*all_programs()} if not os.path.exists(os.path.join(ROOT, path))
    ] == []
    for name, path in re.findall(r'`([A-Z_]+)`, `([\w/]+\.py)`', text):
        assert re.search(rf'^{name} = ', read(path), flags=re.MULTILINE), f'no {name} in {path}'


def test_every_picture_is_shown():
    shown = set()
    for page in PAGES:
        text = re.sub(r'^```.*?^```$', '', read(page), flags=re.MULTILINE | re.DOTALL)
        for path in re.findall(r'\]\(([^)#:]+)\)', text) + re.findall(r'="([^":]+)"', text):
            shown.add(os.path.normpath(os.path.join(os.path.dirname(page), path)))
    pictures = {
        path
        for kind in ('png', 'svg')
        for folder in ('docs', 'results')
        for path in glob.glob(f'{folder}/**/*.{kind}', root_dir=ROOT, recursive=True)
    }
    assert pictures <= shown
    assert 'docs/replay.svg' in pictures


def test_the_front_page_is_short_and_names_every_room_and_eleven_files():
    page = read('README.md')
    names = re.search(r'these eleven files(.*?)\n\n', page, re.DOTALL).group(1)
    files = re.findall(r'`([\w/]+\.py)`', names)
    assert len(files) == 11
    assert len(page.encode()) <= 12_000
    rooms = {path.split(os.sep)[1] for path in glob.glob('anyorder/*/__init__.py', root_dir=ROOT)}
    assert rooms == set(re.findall(r'^\| `(\w+)/` \|', page, re.MULTILINE)) - {'anyorder'}
    assert all(os.path.isfile(os.path.join(ROOT, name)) for name in files)


def test_the_cheap_commands_run(script, tmp_path):
    """Toys of the README's quickstart, small Sudoku and text of one's own, and the programs of two pages."""
    toy = {
        'train.py': [
            '--n_layer=1',
            '--n_head=2',
            '--n_embd=16',
            '--n_cond=8',
            '--max_iters=2',
            '--eval_iters=1',
            '--compile=False',
            '--device=cpu',
        ],
        'eval_ppl.py': ['--n_blocks=2', '--device=cpu'],
        'eval_puzzle.py': ['--n_puzzles=3', '--device=cpu'],
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
        'data/puzzles.py', 'sudoku4', '--n_train=40', '--n_val=4', '--n_test=4', '--data_dir=data'
    )
    ran = []
    for _, name, *args in commands('README.md') + inline_commands('README.md'):
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


# options with which the commands of the front page take seconds, by script, and by script and first word
SHORT = {
    'train.py': '--n_layer=1 --n_head=2 --n_embd=16 --max_iters=2 --warmup_iters=0 --eval_iters=1 --device=cpu',
    'train.py config/bytes256.py': '--block_size=32',
    'sample.py': '--device=cpu',
    'eval_ppl.py': '--n_blocks=2 --device=cpu',
    'eval_puzzle.py': '--n_puzzles=3 --device=cpu',
    'data/prepare.py': '--data_dir=data',
    'bench.py': '--device=cpu',
    'bench.py frontier': '--n_blocks=2 --n_samples=2 --steps=8 --windows=8 --thresholds= --block_lengths=',
    'bench.py grid': '--block_size=16 --vocab_size=64 --n_tokens=64 --n_layer=1 --n_embd=12 --batch_size=2 '
    '--steps=2,4 --n_updates=1',
}


@pytest.mark.slow
def test_all_commands_of_the_front_page_run_in_their_order(script, tmp_path):
    """On what the commands before them have made. A finding, which takes hours, is read alone."""
    (tmp_path / 'YOUR.txt').write_text(read('README.md')[:5000])
    os.symlink(os.path.join(ROOT, 'config'), tmp_path / 'config')
    ran = []
    for launcher, name, *args in commands('README.md') + inline_commands('README.md'):
        if launcher == 'pip' or name == '-m':  # pytest
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
    assert [name for name, said in manuals.items() if f'python {name}' not in said] == []
    known = {'help', 'name', 'nnodes', 'node_rank', 'signals_to_handle'}
    known |= set(re.findall(r'--(\w+)', ' '.join(manuals.values())))
    for page in PAGES:
        text = re.sub(r'```.*?```', '', read(page), flags=re.DOTALL)
        used = set(re.findall(r'--(\w+)', ' '.join(re.findall(r'`((?!python |pip )[^`]+)`', text))))
        assert used <= known, f'{page}: {used - known}'


@pytest.mark.slow
def test_the_chorales_of_their_page(script, tmp_path, monkeypatch):
    """Its programs on short pieces: the rows are the pieces, and whole pieces are scored once a frame."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    pieces = {
        split: [rng.integers(60, 73, (n, 4)).tolist() for n in (33, 50)]
        for split in ('train', 'valid', 'test')
    }
    pieces['test'][0][3][2] = -1
    (tmp_path / 'chorales.json').write_text(json.dumps(pieces | {'test': pieces['test'] * 181}))
    for name, text in all_programs().items():
        (tmp_path / name).write_text(text)
    for name in ('chorales', 'pieces'):
        monkeypatch.setattr('sys.argv', [f'{name}.py', 'chorales.json'])
        runpy.run_path(f'{name}.py', run_name='__main__')
    with open('chorales.txt') as f:
        names = f.read().split()
    rows = np.load('chorales.npz')
    assert (
        len(names) == 47
        and names[:2] == ['rest', 'C2']
        and (
            rows['val'].reshape(-1, 4, 32).transpose(0, 2, 1) + 35
            == [piece[:32] for piece in pieces['valid']]
        ).all()
    )
    assert rows['test'][0].reshape(4, 32)[2, 3] == 0 and len(rows['train']) == 12 * (1 + 3)
    assert (np.load('melody.npy').reshape(2, 4, 32) < 0).any((0, 2)).tolist() == [
        False,
        True,
        True,
        True,
    ]
    assert (
        np.take_along_axis(
            np.load('allowed.npy')[None], rows['val'][..., None].astype(int), 2
        ).mean()
        > 0.9
    )
    whole, piece = np.load('pieces.npz'), np.load('pieces_test.npy')
    scored = np.bincount(piece, (~whole['given_test']).sum(1))
    assert scored[:2].tolist() == [4 * 33, 4 * 50]
    for name in ('chorales', 'pieces'):
        script(
            'data/prepare.py',
            'tokens',
            f'--name={name}',
            f'--source={name}.npz',
            '--vocabulary=chorales.txt',
            '--shape=4x32',
            '--data_dir=data',
        )
    os.symlink(os.path.join(ROOT, 'config'), 'config')
    (training,) = (
        words[2:]
        for words in commands('results/chorales/README.md')
        if '--order=bach.py:mixed' in words
    )
    script(
        'train.py',
        *training,
        '--n_layer=1',
        '--n_embd=16',
        '--max_iters=2',
        '--batch_size=2',
        '--eval_iters=1',
    )
    said = script(
        'eval_ppl.py',
        '--ckpt=out/chorales/ckpt.pt',
        '--datasets=pieces',
        '--split=test',
        '--n_orders=2',
        '--orders=columns,bach.py:random_frames',
        '--out=p.json',
    ).stdout
    monkeypatch.setattr(
        'sys.argv', ['by_piece.py', 'p.json.blocks.jsonl', 'pieces.npz', 'pieces_test.npy']
    )
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path('by_piece.py', run_name='__main__')
    nats = float(re.search(r'columns x 2 +([\d.]+)', said)[1])
    assert float(re.search(r'columns +([\d.]+)', out.getvalue())[1]) == pytest.approx(
        4 * nats, abs=3e-4
    )
    frames = runpy.run_path('bach.py')['random_frames'](torch.rand(50, 128), (4, 32), None) % 32
    assert (frames.view(50, 32, 4) == frames.view(50, 32, 4)[..., :1]).all() and len(
        {*frames[:, 0].tolist()}
    ) > 10


def test_the_digits_of_their_page(script, tmp_path, monkeypatch):
    pytest.importorskip('sklearn')
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'digits.py').write_text(all_programs()['digits.py'])
    runpy.run_path('digits.py')
    rows, half = np.load('labelled.npz'), np.load('half.npy')
    assert [rows[split].shape for split in ('train', 'val', 'test')] == [
        (1397, 65),
        (200, 65),
        (200, 65),
    ]
    assert (
        (half[:, :32] == rows['test'][:16, :32]).all()
        and (half[:, 32:] == -1).all()
        and rows['train'].max() == 26
    )


@pytest.mark.slow
def test_the_programs_of_likelihood_and_lengths(tmp_path, monkeypatch, capsys):
    """What they import is there. Two measure a tiny model as eval_ppl.py would, one draws the lengths of a blank."""
    monkeypatch.chdir(tmp_path)
    found = all_programs()
    for name, text in found.items():
        for node in ast.walk(ast.parse(text, name)):
            if isinstance(node, ast.ImportFrom) and node.module.split('.')[0] in (
                'anyorder',
                'config',
                'model',
            ):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), (name, node.module)
    with open('words.txt', 'w') as f:
        f.write('The quick brown fox jumps over the lazy dog. ' * 40)
    prepare('text', 'data', source='words.txt', tokenizer='bytes', name='words')
    model = make_model(block_size=16, vocab_size=320, n_tokens=257).float()
    save_checkpoint(
        'ckpt.pt', model, ema=EMA(model, 0.9), tokenizer='bytes', config={'dataset': 'words'}
    )
    for name, n in (('law_entropy.py', 3), ('pseudo.py', 2)):
        (tmp_path / name).write_text(found[name])
        monkeypatch.setattr('sys.argv', [name, 'ckpt.pt', str(n)])
        runpy.run_path(name, run_name='__main__')
        said = capsys.readouterr().out
        blocks = open_corpus('words', Cut(16, n_blocks=n), Bytes(), 'data').blocks
        nats = float(model(blocks, torch.arange(16).expand(n, 16)).mean())
        line = next(line for line in said.splitlines() if line.startswith(('given 1.0', 'tensor')))
        assert float(re.search(r'\d+\.\d{4}', line)[0]) == pytest.approx(nats, abs=2e-4), said
    (tmp_path / 'gap.py').write_text(found['gap.py'])
    monkeypatch.setattr('sys.argv', ['gap.py', 'ckpt.pt', 'The[[2-4]] & <b>', 'gap.svg'])
    runpy.run_path('gap.py', run_name='__main__')
    marks = xml.etree.ElementTree.parse('gap.svg').iter('{http://www.w3.org/2000/svg}text')
    left, right, _, *bars = (mark.text for mark in marks)
    assert (left, right) == ('The', ' & <b>') and bars[::2] == ['2', '3', '4']
    assert sum(map(float, bars[1::2])) == pytest.approx(1, abs=0.02)


def test_the_peers_of_their_page(tmp_path, monkeypatch, capsys):
    """Our encoder as the samplers of others call it: its own logits, with fresh keys and values and with kept ones."""
    (tmp_path / 'peers.py').write_text(all_programs()['peers.py'])
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path('peers.py')
    assert found['peer'](Config(nanogpt='nowhere'), 'nanogpt') is None
    said = (
        'left out: no model.py in --nanogpt=nowhere; git clone https://github.com/karpathy/nanoGPT'
    )
    assert capsys.readouterr().out.strip() == said
    model, g = make_model(attention='bidirectional', rotary=True), torch.Generator().manual_seed(0)
    N, V = model.config.block_size, model.config.n_real
    order = torch.randperm(N, generator=g)[None]
    idx = torch.randint(V, (1, N), generator=g)
    masked, encoder = idx.index_fill(1, order[0, 4:], V), found['AsMasked'](model)
    out, kept = encoder(masked), torch.zeros(1, N).bool().index_fill(1, torch.arange(3, 6), True)
    torch.testing.assert_close(
        out.logits[0, order[0, 4:]], model.predict(idx, order, 4)[0], rtol=0, atol=1e-12
    )
    prefix = [tuple(x[:, :, :3] for x in pair) for pair in out.past_key_values]
    rest = encoder(masked[:, 3:], past_key_values=prefix).logits
    block = encoder(
        masked[:, 3:6], past_key_values=out.past_key_values, replace_position=kept
    ).logits
    torch.testing.assert_close(rest, out.logits[:, 3:], rtol=0, atol=1e-12)
    torch.testing.assert_close(block, out.logits[:, 3:6], rtol=0, atol=1e-12)
    assert encoder.passes == 3


def test_the_middles_of_their_page(tmp_path, monkeypatch):
    """A middle given both sides: behind its marks by a naive loop, in any order by conditional_logprob."""
    (tmp_path / 'infilling.py').write_text(all_programs()['infilling.py'])
    monkeypatch.chdir(tmp_path)
    found, g = runpy.run_path('infilling.py'), torch.Generator().manual_seed(0)
    nats_of = found['nats_of']
    nats_of.__globals__['config'] = Config(batch_size=2, seed=1)
    texts = torch.randint(8, (4, 6), generator=g)
    blank = torch.zeros(4, 6, dtype=torch.bool)
    for row, (a, b) in zip(blank, ((2, 5), (0, 3), (3, 6), (1, 4))):
        row[a:b] = True
    plain = SimpleNamespace(run={}, order=Order('random'))
    marked = SimpleNamespace(run={'fim_ratio': 0.5}, order=Order('l2r'))
    model, after_marks = make_model(), make_model(vocab_size=11, n_tokens=8)
    sides, behind, before = (
        nats_of(*of_model, texts, blank, way)
        for of_model, way in (
            ((plain, model), 'sides'),
            ((marked, after_marks), 'sides'),
            ((marked, after_marks), 'before'),
        )
    )
    for r, (text, row) in enumerate(zip(texts, blank)):
        a, b = row.nonzero()[:, 0], (~row).nonzero()[:, 0]
        assert float(sides[r]) == pytest.approx(
            -float(conditional_logprob(model, text[None], a, b)), abs=1e-6
        )
        first, end = int(a[0]), int(a[-1]) + 1
        for start, nats in (
            ([8, *text[:first], 9, *text[end:], 10], behind[r]),
            ([*text[:first]], before[r]),
        ):
            idx = torch.tensor([[*map(int, start), *text[first:end].tolist()]])
            order = torch.arange(idx.size(1))[None]
            naive = [
                after_marks.predict(idx, order, d, 1).log_softmax(-1)[0, 0, idx[0, d]]
                for d in range(len(start), idx.size(1))
            ]
            assert float(nats) == pytest.approx(-float(sum(naive)), abs=1e-6)
    half = torch.tensor([[True, False] * 3] * 4)
    assert nats_of(marked, after_marks, texts, half, 'sides') is None  # a middle is one gap
    random = nats_of(plain, model, texts, half, 'random')
    assert random.shape == (4,) and not torch.equal(
        random, nats_of(plain, model, texts, half, 'sides')
    )


def test_the_stars_of_their_page(tmp_path, monkeypatch, capsys):
    """A path is what follows from its end by the parents; a fact is trained backward or asked, never both."""
    (tmp_path / 'stargraphs.py').write_text(all_programs()['stargraphs.py'])
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path('stargraphs.py')
    for word, *options in (
        ('rows', '--degree=3', '--n_train=60', '--n_val=20', '--out=star.npz'),
        ('facts', '--n_facts=40', '--n_names=12', '--n_relations=3', '--out=facts.npz'),
    ):
        found['main'](configure(found, [word, *options]))
    star, facts = np.load('star.npz'), np.load('facts.npz')
    assert star['train'].shape == (60, 30) and star['given'].tolist() == [True] * 26 + [False] * 4
    again = ['rows', '--n_edges=12', '--n_train=60', '--n_val=20', '--out=repeated.npz']
    found['main'](configure(found, again))
    asked = dict(np.load('repeated.npz'))
    found['main'](configure(found, [*again, '--read=True']))
    repeated, first, counts, heads = np.load('repeated.npz'), [], set(), set()
    assert repeated['train'].shape == (60, 30) and not repeated['given'].any()
    assert (asked['train'] == repeated['train']).all() and asked['given'].tolist() == star[
        'given'
    ].tolist()
    for rows, d in ((star, 3), (repeated, 2)):
        for row in [*rows['train'].tolist(), *rows['val'].tolist()]:
            edges, (goal, start), path = list(zip(row[:24:2], row[1:24:2])), row[24:26], row[26:]
            parent = {b: a for a, b in edges}
            walked = [goal]
            while walked[-1] != start:
                walked.append(parent[walked[-1]])
            assert walked[::-1] == [start, *path] and len({*edges}) == len(parent) == 4 * d
            neighbours = [b for a, b in dict.fromkeys(edges) if a == start]
            assert len(neighbours) == d
            if d == 3:
                first.append(neighbours.index(path[0]))
            else:
                counts |= {edges.count(edge) for edge in edges}
                heads.add(len({*edges[:8]}))
    assert (
        {*first} == {0, 1, 2} and {1, 2, 3} <= counts and len(heads) > 1
    )  # some again, at any place
    forward, backward, asked = (
        facts['train'][:40].tolist(),
        facts['train'][40:].tolist(),
        facts['val'].tolist(),
    )
    turned = {(c, d, r - 3, a, b) for a, b, r, c, d in backward + asked}
    assert len(backward) == len(asked) == 20 and turned == {
        (a, b, r, c, d) for a, b, r, c, d in forward
    }
    steps = torch.tensor([[3, 2, 1, 0], [0, 1, 2, 3], [2, 1, 0, 3]])
    assert found['backward_tau'](steps).tolist()[:2] == [1, -1]

    def entry(seed, path, way='l2r', degree=2, network='GPT', tau=-1.0):
        return {
            'degree': degree,
            'network': network,
            'updates': 3000,
            'way': way,
            'seed': seed,
            'tau': tau,
            'tau_stderr': 0.1,
            'path': path,
            'path_stderr': 0.011,
            'neighbour': 1.0,
            'neighbour_stderr': 0.0007,
        }

    def table(*rows):
        (tmp_path / 'solved.json').write_text(json.dumps({'table': rows}))
        capsys.readouterr()
        found['main'](configure(found, ['picture', '--tables=solved.json', '--out=stars.png']))
        return capsys.readouterr().out.splitlines()[2:-1]

    assert table(entry(1, 0.48)) == [
        '| 2 | GPT | 3,000 | 1 | 48.0 ± 1.1 |  |  |  | 100.0 ± 0.1 |  |'
    ]
    decoder = entry(1, 0.9, 'margin', network='decoder', tau=0.25)
    assert table(entry(1, 0.2, 'r2l', 5), entry(1, 0.48), entry(2, 0.5), decoder) == [
        '| 2 | GPT | 3,000 | 2 | 49.0 ± 1.0 |  |  |  | 100.00 ± 0.00 |  |',
        '| 2 | decoder | 3,000 | 1 |  |  | 90.0 ± 1.1 |  |  | 0.25 |',
        '| 5 | GPT | 3,000 | 1 | 20.0 ± 1.1, right to left |  |  |  | 100.0 ± 0.1, right to left |  |',
    ]
    with pytest.raises(
        ValueError, match='solved.json has GPT, 3,000 updates, seed 1, which an earlier table has'
    ):
        table(entry(1, 0.48), entry(1, 0.5))


def test_the_best_of_repeated_text(tmp_path, monkeypatch, capsys):
    """The lowest validation of each seed, its mean and standard error, and the epochs of both."""
    (tmp_path / 'repeat.py').write_text(all_programs()['repeat.py'])
    monkeypatch.chdir(tmp_path)
    for seed, nats in ((1, [3.0, 1.0, 2.0]), (2, [1.5, 2.5, 3.0])):
        entries = [
            {'iter': n, 'tokens': 10000 * n, 'loss': 1.0}
            | ({'val_l2r': nats[n // 2]} if n % 2 == 0 else {})
            for n in range(5)
        ]
        (tmp_path / f'repeat_few_2_seed{seed}.jsonl').write_text(
            '\n'.join(map(json.dumps, entries))
        )
    found = runpy.run_path('repeat.py')
    found['main'](configure(found, ['table', '--runs=repeat_*', '--kb=10']))
    assert capsys.readouterr().out.splitlines()[2:] == [
        '| 2 orders | left to right | 2 | 1.250 ± 0.250 | 2, 0 | 2.500 ± 0.500 | 4 |'
    ]
    with pytest.raises(ValueError, match='no runs repeat_ARM_seedN in nowhere'):
        found['main'](configure(found, ['table', '--runs=nowhere']))


@pytest.mark.parametrize(
    'attention, options',
    [
        ('mixed', {'SURE': '0.4'}),
        ('mixed', {}),
        ('bidirectional', {'POOLS': '2'}),
        ('mixed', {'PHASES': '1'}),
        ('mixed', {'BY': 'chance', 'SURE': '0.4'}),
    ],
)
def test_the_masks_that_writing_meets_of_their_page(tmp_path, monkeypatch, attention, options):
    """Its loss is that of train.py for its masks; the most confident blanks and all sure ones are known next, in the
    share of the phase."""
    (tmp_path / 'puma.py').write_text(all_programs()['puma.py'])
    monkeypatch.chdir(tmp_path)
    prepare_puzzles('sudoku4', 'data', n_rows={'train': 200, 'val': 5, 'test': 5})
    split = open_split('data', 'sudoku4', 'train')[0]
    config = configure(
        vars(train), ['--dataset=sudoku4', '--block_size=16', '--batch_size=8', '--dtype=float32']
    )
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    K, by_chance = int(options.get('PHASES', 8)), 'BY' in options
    with_sure = 'SURE' in options and not by_chance
    found = runpy.run_path('puma.py')
    model = make_model(block_size=16, vocab_size=64, n_tokens=4, attention=attention).float()
    model.requires_grad_(True)
    state = TrainState(
        model, make_optimizers(model, 'adamw', 1e-3, 0.02, 0.0, (0.9, 0.95)), EMA(model, 0.9)
    )
    torch.manual_seed(0)
    for _ in range(int(options.get('POOLS', 1))):
        found['pools'].append(found['Rows'](split, config, model))
    assert all(
        sorted(rows.phase.tolist()) == sorted(r % K for r in range(8)) for rows in found['pools']
    )
    n_new = n_sure = n_by_confidence = n_kept = 0
    for iteration in range(20):
        rows = found['pools'][iteration % len(found['pools'])]
        idx, order, known, n_given, phase = (
            x.clone() for x in (rows.idx, rows.order, rows.n_known, rows.n_given, rows.phase)
        )
        with torch.no_grad():
            loss = (
                nll_of_blanks(model(idx, order, known), n_given, True).sum() / (16 - n_given).sum()
            )
            confidence = [
                model.predict(idx[r : r + 1], order[r : r + 1], k, 16 - k)[0].softmax(-1).amax(-1)
                for r, k in enumerate(known.tolist())
            ]
        before = state.totals[0].clone()
        found['streamed'](state, split, 1e-9, config)
        assert float(state.totals[0] - before) == pytest.approx(float(loss), rel=1e-5)
        for r, k in enumerate(known.tolist()):
            n, n_blanks, sure = (
                int(rows.n_known[r]),
                16 - int(rows.n_given[r]),
                int((confidence[r] > 0.4).sum()),
            )
            share, j = (n - int(rows.n_given[r])) / n_blanks, int(rows.phase[r])
            if phase[r] == K - 1:  # a new row
                assert j == 0 and 0 <= n - rows.n_given[r] <= min(round(n_blanks / K), n_blanks - 1)
                assert rows.order[r, rows.n_given[r] :].tolist() != order[r, n_given[r] :].tolist()
                n_new += 1
                continue
            if (
                with_sure and sure == 16 - k
            ):  # all blanks were sure: a new row, which may be the same grid
                assert j == 0 and n < 16
                continue
            if with_sure:
                assert n - k >= sure and j == max(0, math.ceil(K * share) - 1)
                n_sure += sure
            else:
                assert j == phase[r] + 1 and k <= n < 16
                assert n == k or j / K - 0.5 / n_blanks <= share <= (j + 1) / K + 0.5 / n_blanks
            assert rows.order[r, :k].tolist() == order[r, :k].tolist()
            best = confidence[r].sort(descending=True, stable=True).indices
            n_by_confidence += rows.order[r, k:].tolist() == order[r, k:][best].tolist()
            n_kept += 1
    assert n_new and bool(n_sure) == with_sure and bool(n_kept) == (K > 1)
    assert n_by_confidence < n_kept / 2 if by_chance else n_by_confidence == n_kept
