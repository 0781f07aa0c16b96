"""README, docs and results: commands are understood, the README's run, links lead somewhere."""

import ast
import contextlib
import glob
import importlib
import io
import itertools
import os
import pkgutil
import re
import runpy
import shlex

import pytest
import torch
from conftest import ROOT, make_model, program_of
from test_findings import run as findings

import train
from anyorder.checkpoint import Unset
from anyorder.extras.puzzles.rules import TASKS
from anyorder.extras.speed.__main__ import COMMANDS as SPEED
from anyorder.likelihood.nll import blank_nll
from anyorder.tokens.blocks import Batch
from anyorder.tokens.prepared import DATA_SETS
from anyorder.tokens.tokenizers import GPT2
from anyorder.training.start import check_options, model_config
from anyorder.weights import WithoutDraws
from configurator import configure
from model import AOGPT, AOGPTConfig


def read(page):
    with open(os.path.join(ROOT, page), encoding='utf-8') as f:
        return f.read()


def pages_of(folder):
    return sorted(glob.glob(f'{folder}/**/*.md', root_dir=ROOT, recursive=True))


PAGES = ['README.md', *pages_of('docs'), *pages_of('results')]
README = read('README.md')
FENCE = re.compile(r'^```(\w*)\n(.*?)^```$', flags=re.MULTILINE | re.DOTALL)
PARTS = (
    'Quick start',
    'Play with the model that you have just trained',
    'Train on your own text or tokens',
    'Reproduce the paper',
    'Weights of others',
    'The rule',
    'What was found',
    'Beside other code',
    'From Python and other tools',
    'Read the code',
    'When something goes wrong',
    'Credits',
)


def fences(text, language):
    return [body for name, body in FENCE.findall(text) if name == language]


def prose(text):
    return FENCE.sub('', text)


def part(title):
    """The text of a part of the README."""
    return README.partition(f'\n## {title}\n')[2].partition('\n## ')[0]


# --------------------------------------------------------------------------------------------------
# the commands of a page


def commands(page):
    return commands_in(read(page))


def commands_in(text):
    """The words of every command in the sh fences of a text, in order.

    $NAME is what bash makes of it; comments and VAR=value are left out."""
    found = []
    variables = {}
    lines = '\n'.join(fences(text, 'sh')).replace('\\\n', ' ').splitlines()
    for line in lines:
        for name, value in variables.items():
            line = line.replace(f'${name}', value)
        words = shlex.split(line, comments=True)
        settings = list(itertools.takewhile(is_setting, words))
        if len(settings) == len(words):
            variables |= dict(word.split('=', 1) for word in words)
        if len(settings) < len(words):
            found.append(words[len(settings) :])
    return found


def is_plan(args):
    """Whether a command only says what a run would cost."""
    return any(arg.startswith('--plan=') for arg in args)


def is_setting(word):
    return re.match('[A-Z]+=', word)


def inline_commands(page):
    """The words of every command in the running text and the tables of a page."""
    text = prose(read(page))
    outside = re.findall(r'^    (?:python|torchrun|bash|pip) ', text, flags=re.MULTILINE)
    assert outside == [], 'a command outside of a fence'
    found = re.findall(r'`((?:python|torchrun|bash|pip) [^`]+)`', text)
    return [shlex.split(command) for command in found]


def made_on(page):
    """{name: text} of the files that a page has the reader save."""
    found = re.findall(r'Save this as `([^`]+)`:\n\n```python\n(.*?)^```$', read(page), FENCE.flags)
    return dict(found)


# --------------------------------------------------------------------------------------------------
# they are understood

# what a command that was understood lacks here: its weights or logs, or the device that it is given
LACKING = (
    r'no checkpoint file|with a config.json|requirements-extra|no file .*ckpt|cannot get hf:|'
    r'nowhere|no log out/|No such file or directory: .*\.html'
)
# what is called with the options, of commands that take no --device
READERS = {
    'data/prepare.py': 'configurator.configure',
    'anyorder.extras.puzzles make': 'configurator.configure',
    'anyorder.extras.hub': 'configurator.configure',
    'anyorder.extras.pictures': 'configurator.configure',
    'tests/torture.py': 'argparse.ArgumentParser.parse_args',
}
FIRST_WORDS = {'data/prepare.py': [*DATA_SETS, 'tokens'], 'anyorder.extras.puzzles make': [*TASKS]}
# options of a launcher: how many machines, how many processes on each (8 without it), and others
LAUNCHERS = {
    'torchrun': ('nnodes', 'nproc_per_node', 'standalone node_rank master_addr master_port'),
    'sbatch': ('nodes', 'ntasks-per-node', 'gpus-per-node'),
}
# what other commands are on the pages: they fetch, install and show, or are tested elsewhere
OTHERS = ('pip', 'curl', 'unzip', 'echo', 'head', 'tail', 'chromium')
ROOM = 'anyorder.extras.'
NOT_RUN = ('pytest', 'this', 'anyorder.extras', f'{ROOM}NAME', f'{ROOM}lm_eval', f'{ROOM}minimal')


class Understood(Exception):
    """Raised in place of the work of a command whose options have been read."""


@pytest.fixture
def understand(script, tmp_path, monkeypatch):
    """understand(words) runs a command until its options have been read and checked.

    It fails if the command rejects one."""

    def run(words):
        match words:
            case [('torchrun' | 'sbatch') as launcher, *args]:
                understand_launched(launcher, args)
            case ['python', *rest]:
                understand_program(*program_of(rest))
            case [name, *_]:
                assert name in OTHERS

    def understand_launched(launcher, args):
        at = next(n for n, arg in enumerate(args) if not arg.startswith('--'))
        options = dict(arg.removeprefix('--').partition('=')[::2] for arg in args[:at])
        nodes, processes, others = LAUNCHERS[launcher]
        assert options.keys() <= {nodes, processes, *others.split()}
        n_processes = int(options.get(nodes, 1)) * int(options.get(processes, 8))
        name, rest = program_of(args[at:])
        if name == 'config/train.sbatch':
            name = 'train.py'
        understand_program(name, rest)
        if name == 'train.py':
            check_options(configure(vars(train), rest), n_processes)

    def understand_program(name, args):
        if name in NOT_RUN or name == 'results/run.py' and args == ['--help']:
            return
        if name == 'results/run.py':  # its commands: test_findings.py
            own = itertools.takewhile(lambda arg: arg != '--', args)
            configure(vars(findings), list(own))
        elif name.startswith(('docs/', 'results/')):
            understand_of_page(read(name), name, args)
        elif os.path.exists(tmp_path / name):  # which the page had the reader save
            understand_of_page((tmp_path / name).read_text(), str(tmp_path / name), args)
        else:
            understand_ours(name, args)

    def understand_of_page(text, name, args):
        """A program beside its page or on it: it has options, or those of train.py, or none."""
        if 'configure(globals())' in text:
            configure(runpy.run_path(os.path.join(ROOT, name)), args)
        elif 'train.train(' in text:
            understand_ours(name, args)
        else:
            compile(text, name, 'exec')

    def understand_ours(name, args):
        if is_plan(args):  # which wants nothing
            script(name, *args)
            return
        assert args[:1] == [] or args[0] in FIRST_WORDS.get(name, args)
        if name not in READERS:
            finished = script(name, *args, '--device=nowhere', code=1)
            assert re.search(LACKING, finished.stderr), finished.stderr
            return
        with monkeypatch.context() as patch, contextlib.suppress(Understood):
            stop_behind(patch, READERS[name])
            finished = script(name, *args, code=1)
            assert re.search(LACKING, finished.stderr), finished.stderr

    for folder in ('config', 'docs', 'results'):
        os.symlink(os.path.join(ROOT, folder), tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    return run


def stop_behind(patch, name):
    """End a command behind its call of this function."""
    function = pkgutil.resolve_name(name)

    def call_and_stop(*args, **kwargs):
        function(*args, **kwargs)
        raise Understood

    patch.setattr(name, call_and_stop)


@pytest.mark.parametrize('page', PAGES)
def test_every_command_is_understood(understand, page, tmp_path):
    for name, text in made_on(page).items():
        (tmp_path / name).write_text(text)
    for words in commands(page) + inline_commands(page):
        try:
            understand(words)
        except (AssertionError, SystemExit) as e:
            raise AssertionError(f'{page}: {shlex.join(words)}') from e


@pytest.mark.parametrize('page', [page for page in PAGES if '.lm_eval --' in read(page)])
def test_lm_eval_understands_its_commands(page, monkeypatch):
    """It knows its options, and we know the options of the model."""
    pytest.importorskip('lm_eval')
    from lm_eval._cli import HarnessCLI

    from anyorder.extras.lm_eval.__main__ import arguments
    from anyorder.extras.lm_eval.harness import AnyOrderLM

    for words in commands(page) + inline_commands(page):
        if 'anyorder.extras.lm_eval' not in words:
            continue
        args = words[words.index('anyorder.extras.lm_eval') + 1 :]
        monkeypatch.setattr('sys.argv', ['lm_eval', *arguments(args)])
        found = HarnessCLI().parse_args()
        if found.model == 'aogpt':
            AnyOrderLM.options(found.model_args)


PROGRAMS = ['train.py', 'sample.py', 'eval_ppl.py', 'data/prepare.py']
ROOMS = ['hub', 'lm_eval', 'pictures', 'puzzles make', 'puzzles solve']
ROOMS += [f'speed {word}' for word in SPEED]
PROGRAMS += [ROOM + room for room in ROOMS]


def test_every_command_has_a_manual_and_every_option_of_the_pages_is_in_one(script):
    known = {'help', 'name', 'nnodes', 'node_rank', 'signals_to_handle', 'use_cache'}
    for name in PROGRAMS:
        manual = script(name, '--help').stdout
        assert f'python {name}' in manual or f'python -m {name}' in manual
        known |= set(re.findall(r'--(\w+)', manual))
    for page in PAGES:
        said = re.findall(r'`((?!python |pip )[^`]+)`', prose(read(page)))
        used = set(re.findall(r'--(\w+)', ' '.join(said)))
        assert used <= known, f'{page}: {used - known}'


# --------------------------------------------------------------------------------------------------
# what they name is there


def links(page):
    """The links and pictures of a page, as they are written, but those to other sites."""
    text = prose(read(page))
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
        if name not in made_on(page):
            there = (os.path.join(ROOT, folder, name) for folder in ('', here))
            assert any(map(os.path.exists, there)), name
    for name, path in re.findall(r'`([A-Z_]+)`, `([\w/]+\.py)`', text):
        assert re.search(rf'^{name} = ', read(path), flags=re.MULTILINE), f'no {name} in {path}'


@pytest.mark.parametrize('page', PAGES)
def test_what_a_page_imports_is_there(page):
    for text in fences(read(page), 'python'):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module.split('.')[0] == 'anyorder':
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), node.module


def test_the_order_of_a_guide_visits_even_positions_first():
    (text,) = (text for text in fences(read('docs/data.md'), 'python') if 'even_first' in text)
    names = {}
    exec(text, names)
    order = names['even_first'](torch.rand(5, 7), 7, None)
    assert (order[:, :4] % 2 == 0).all()
    assert (order.sort(1).values == torch.arange(7)).all()


def test_the_loss_of_a_guide_is_an_update_by_weights():
    """Where each weight is 1 it is train.py's; else the mean over all weights that are blanks."""
    names = {'__name__': 'capitals'}
    exec(read('docs/examples/capitals.py'), names)
    g = torch.Generator().manual_seed(0)
    idx = torch.randint(60, 100, (3, 8), generator=g)
    order = torch.rand(3, 8, generator=g).argsort(1)
    counts = {'n_visits': [8, 7, 6], 'n_given': [0, 2, 3], 'n_blanks': [8, 5, 3]}
    counts = {name: torch.tensor(numbers) for name, numbers in counts.items()}
    drawn = Batch(idx, order, **counts)
    model = make_model(vocab_size=257)

    names['draw_batch'] = lambda *args: drawn
    batch = names['draw'](None, None, model)
    loss = names['loss'](model, batch)
    plain = blank_nll(model, drawn)
    assert (loss != plain).any()
    for row in range(3):
        visits = order[row, drawn.n_given[row] : drawn.n_visits[row]].tolist()
        weights = [4 if 65 <= idx[row, place] <= 90 else 1 for place in visits]
        assert batch.n_blanks[row] == sum(weights)
    names['WEIGHT'][:] = 1
    assert torch.equal(names['loss'](model, batch), plain)
    assert torch.equal(names['draw'](None, None, model).n_blanks, drawn.n_blanks.float())


def test_every_picture_is_shown():
    shown = {target_of(page, link)[0] for page in PAGES for link in links(page)}
    pictures = set()
    for pattern in ('docs/**/*.png', 'docs/**/*.svg', 'results/**/*.png', 'results/**/*.svg'):
        pictures.update(glob.glob(pattern, root_dir=ROOT, recursive=True))
    assert pictures <= shown
    assert 'docs/replay.png' in {target_of('README.md', link)[0] for link in links('README.md')}


@pytest.mark.parametrize(
    'folder, pages', [('docs', 'docs/*.md'), ('results', 'results/*/README.md')]
)
def test_every_page_stands_in_the_table_of_its_folder(folder, pages):
    table = f'{folder}/README.md'
    named = {target_of(table, link)[0] for link in links(table)}
    assert {*glob.glob(pages, root_dir=ROOT)} - {table} <= named


def test_the_readme_leads():
    """Its parts stand in order, a sentence stands before each block, and no command is wide."""
    assert re.findall('^## (.*)$', README, flags=re.MULTILINE) == [*PARTS]
    before = re.findall(r'^((?!```)[^\n]+)\n\n```sh$', README, flags=re.MULTILINE)
    blocks = fences(README, 'sh')
    assert len(before) == len(blocks)
    assert [line for line in before if line[-1] not in '.:'] == []
    assert [line for block in blocks for line in block.splitlines() if len(line) > 100] == []


def files_of_the_hour():
    before = part('Read the code').partition('They use these names')[0]
    return re.findall(r'^\| `([\w/]+\.py)` \|', before, flags=re.MULTILINE)


@pytest.mark.parametrize('page', PAGES)
def test_prose_has_lines_of_100_characters(page):
    """Tables, pictures, titles, quoted lines and what is indented may be wider."""
    wide = [line for line in prose(read(page)).splitlines() if len(line) > 100]
    assert [line for line in wide if not line.startswith(('|', '[', '!', '#', '>', '  '))] == []


def test_the_readme_names_every_room_and_twelve_files_for_an_hour():
    named = files_of_the_hour()
    assert len(named) == 12
    assert all(os.path.isfile(os.path.join(ROOT, name)) for name in named)
    for path in glob.glob('anyorder/extras/*/__main__.py', root_dir=ROOT):
        room = os.path.basename(os.path.dirname(path))
        assert f'`{room}`' in part('Read the code')


def test_what_they_import_from_other_files_stands_in_the_glossary():
    own = {name.removesuffix('.py').replace('/', '.') for name in files_of_the_hour()}
    own.add('anyorder.generation')  # which has the names of its files
    asked = set()
    for name in files_of_the_hour():
        for module, names in imports(name):
            if module not in own:
                asked |= names
    assert sorted(name for name in asked if f'`{name}`' not in part('Read the code')) == []


def imports(path):
    """Yield (module, names) that the top of a file imports of ours."""
    for node in ast.parse(read(path)).body:
        if isinstance(node, ast.ImportFrom) and node.module.startswith(('anyorder', 'config')):
            yield node.module, {alias.name for alias in node.names}


def test_what_the_papers_table_costs():
    """The tables of the guide are its formulas, and the README says hours of them."""
    page = read('docs/likelihood.md')
    N = 1024
    members = 63  # beside the order itself
    every = {}
    for line in re.findall(r'^\| (?:LAMBADA|WikiText|PTB|LM1B).*$', page, flags=re.MULTILINE):
        name, tokens, blocks, *said = (cell.strip() for cell in line.strip('|').split('|'))
        n_blocks = int(tokens.removeprefix('about ').replace(',', '')) // N
        assert int(blocks.replace(',', '')) == n_blocks
        slots = [n_blocks * N / 1e6]
        slots += [n_blocks * (N + P * members * (N + 1) / 2) / 1e9 for P in (64, N)]
        assert said == [f'{slots[0]:.2f} million'] + [f'{n:.1f} billion' for n in slots[1:]]
        every[name] = n_blocks
    assert len(every) == 5
    n_blocks = sum(every.values())
    assert f'| together | | {n_blocks:,} |' in page

    rate = 0.4 * 989e12
    for size in ('small', 'medium'):
        config = configure(vars(train), [f'config/ao_gpt_{size}.py'])
        with torch.device('meta'), WithoutDraws():
            model = Unset(model_config(config, 50257))
        weights = sum(
            layer.weight.numel()
            for name, layer in model.named_modules()
            if isinstance(layer, torch.nn.Linear) and '.h.' in name and 'adaLN' not in name
        )
        pairs = config.n_layer * config.n_embd
        of_visit = members * sum(2 * n * weights + 2 * n * n * pairs for n in range(1, N + 1)) / N
        own = 2 * N * (weights + model.lm_head.weight.numel()) + 2 * N * N * pairs
        for n_gpus in (1, 8):
            seconds = n_blocks * own / rate / n_gpus
            hours = [n_blocks * (own + P * of_visit) / rate / n_gpus / 3600 for P in (64, N)]
            row = f'| {size}, {n_gpus} H100 | {seconds:.0f} second'
            assert row in page, row
            row = ' | '.join(f'{number:.1f} hours' for number in hours)
            assert row in page, row
            if size == 'small' and n_gpus == 1:
                assert f'[{hours[0]:.0f} hours](docs/likelihood.md' in README
            if size == 'small' and n_gpus == 8:
                assert f'for {hours[1]:.0f} hours' in README
            if size == 'medium' and n_gpus == 1:
                assert f'medium takes {hours[0]:.0f} hours' in README
            if size == 'medium' and n_gpus == 8:
                assert f'and {hours[1]:.1f} by the second' in README


# --------------------------------------------------------------------------------------------------
# the commands of the README run

# options with which they take seconds: of a program, and of a program with its first word
SIZES = '--n_layer=1 --n_head=2 --n_embd=16'
TOY = {
    'train.py': '--max_iters=2 --warmup_iters=0 --eval_iters=1 --device=cpu --compile=False',
    'train.py config/quickstart.py': SIZES,
    'train.py config/sudoku4.py': SIZES,
    'train.py config/ao_gpt_small.py': f'{SIZES} --block_size=64 --batch_size=2',
    'train.py config/adapt_gpt2.py': '--block_size=64 --batch_size=2',
    'sample.py': '--device=cpu',
    'eval_ppl.py': '--n_blocks=1 --device=cpu',
    'data/prepare.py': '--data_dir=data',
    'anyorder.extras.puzzles solve': '--n_puzzles=3 --device=cpu',
}
FETCHING = ('pip', 'curl', 'unzip', 'torchrun', 'sbatch')
QUICK_START = 'python train.py config/quickstart.py'


@pytest.fixture
def run_part(script, tmp_path):
    """run_part(title) runs the commands of a part of the README in one folder, as toys.

    Returns {command: what it said}. What fetches, installs or starts processes is left out."""

    def run(title):
        said = {}
        for words in commands_in(part(title)):
            said[shlex.join(words)] = run_one(words)
        return said

    def run_one(words):
        if '>' in words:
            *words, _, file = words
            said = run_one(words)
            (tmp_path / file).write_text(said)
            return said
        if words[0] in FETCHING:
            return ''
        if words[0] == 'echo':
            return words[1]
        name, args = program_of(words[1:])
        if name == 'anyorder.extras.lm_eval':  # which looks for its tasks for ten seconds
            return ''
        return script(name, *args, *toy_options(name, args)).stdout

    os.symlink(os.path.join(ROOT, 'config'), tmp_path / 'config')
    return run


def toy_options(name, args):
    if is_plan(args):
        return []
    kinds = (name, ' '.join([name, *args[:1]]))
    return [option for kind in kinds for option in TOY.get(kind, '').split()]


@pytest.mark.slow
def test_the_quickstart_says_how_to_go_on(run_part, script, tmp_path):
    """Its last lines are commands that run, and so does the shortest experiment."""
    (tmp_path / 'YOUR.txt').write_text(README[:5000])
    bytes_of = ['text', '--source=YOUR.txt', '--tokenizer=bytes', '--data_dir=data']
    script('data/prepare.py', *bytes_of, '--name=pydocs')
    few = ['--n_train=40', '--n_val=4', '--n_test=4', '--data_dir=data']
    script('anyorder.extras.puzzles make', 'sudoku4', *few)
    said = run_part('Quick start')[QUICK_START]
    assert 'written in random order' in said
    offered = re.findall('^  python (.*)$', said, flags=re.MULTILINE)
    samples, nats = (script(*command.split(), '--device=cpu').stdout for command in offered)
    assert 'sample 1' in samples
    assert 'unigram, whole set' in nats
    assert 'margin' in ''.join(run_part('What was found').values())


@pytest.mark.slow
def test_the_programs_of_two_guides_run(run_part, script, tmp_path):
    run_part('Quick start')
    found = run_text('docs/writing.md')
    assert found['text'].startswith('If ')
    assert found['text'].endswith(' is returned.')
    assert found['text'].logprob < 0
    assert len(found['texts']) == 4
    assert found['a'] < 0
    assert found['b'] < 0
    with contextlib.redirect_stdout(io.StringIO()) as out:
        found = run_text('docs/python.md')
    assert found['text'].startswith('If ')
    assert out.getvalue().count('is returned.') >= 5
    assert '\nThe ·····' not in out.getvalue()


def run_text(page):
    """Run the Python fences of a page one after another; return their names."""
    names = {}
    exec('\n'.join(fences(read(page), 'python')), names)
    return names


@pytest.mark.slow
def test_the_first_parts_of_the_readme_run_in_their_order(run_part, script, tmp_path):
    """On what commands before them have made, and a text in place of the one that is fetched."""
    pytest.importorskip('outlines_core')
    (tmp_path / 'input.txt').write_text(README[:5000])
    assert 'unigram, whole set' in run_part('Quick start')[QUICK_START]

    said = ''.join(run_part('Play with the model that you have just trained').values())
    assert 'blank of ' in said
    assert re.search(r'New in version [23]\.\d\.', said)
    assert 'lossless with window' in said
    assert 'zen.txt, from zen.txt' in said
    assert os.path.getsize(tmp_path / 'replay.html')
    assert os.path.getsize(tmp_path / 'loss.png')

    run_part('Train on your own text or tokens')
    assert os.path.isfile(tmp_path / 'out/finetune/ckpt.pt')

    for name, text in made_on('README.md').items():
        (tmp_path / name).write_text(text)
    run_part('Read the code')
    assert os.path.isfile(tmp_path / 'out/ends/ckpt.pt')
    again = script('train.py', '--init_from=resume', '--out_dir=out/quickstart', code=0).stdout
    assert 'finished' in again


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """What a network would give: rows of data sets, published weights, a GPT-2, a masked model."""
    try:
        GPT2()
    except ValueError:
        pytest.skip('the GPT-2 vocabulary is not cached')
    datasets = pytest.importorskip('datasets')
    pytest.importorskip('transformers')
    monkeypatch.chdir(tmp_path)
    rows = [README[start : start + 1000] for start in range(0, 20000, 1000)]
    found = datasets.Dataset.from_dict({'text': rows, 'sentence': rows})
    monkeypatch.setattr('datasets.load_dataset', lambda *_, **__: found)
    write_published('published.pt')
    monkeypatch.setattr('huggingface_hub.hf_hub_download', lambda repo, file: 'published.pt')
    write_gpt2('gpt2')
    write_antibody_bert('antiberty')


def write_published(path):
    """Random weights in the format of the paper's checkpoints."""
    torch.manual_seed(0)
    sizes = dict(n_layer=1, n_head=2, n_embd=16, block_size=256, vocab_size=50304, bias=True)
    model = AOGPT(AOGPTConfig(**sizes))
    average = {'decay': 0.9999, 'num_updates': 1, 'shadow_params': list(model.parameters())}
    args = sizes | {'dropout': 0.0}
    entries = {'model': model.state_dict(), 'ema_model': average, 'model_args': args}
    torch.save(entries | {'iter_num': 1, 'config': {}}, path)


def write_gpt2(folder):
    """A random GPT-2 as Hugging Face writes it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_positions=64, n_embd=16, n_head=2, n_layer=1)
    GPT2LMHeadModel(config).save_pretrained(folder)


def write_antibody_bert(folder):
    """A random BERT in the files that the README takes out of a package."""
    from transformers import BertConfig, BertForMaskedLM

    words = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *'ACDEFGHIKLMNPQRSTVWY']
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    config = BertConfig(vocab_size=len(words), max_position_embeddings=128, **sizes)
    BertForMaskedLM(config).save_pretrained(folder)
    with open(f'{folder}/vocab.txt', 'w') as f:
        f.write('\n'.join(words))


BENCHMARKS = ('lambada', 'wikitext2', 'wikitext103', 'ptb', 'lm1b')


@pytest.mark.slow
def test_the_paper_the_weights_of_others_and_python_run_on_stand_ins(run_part, stand_ins):
    said = ''.join(run_part('Reproduce the paper').values())
    assert [name for name in BENCHMARKS if f'\n{name} (' not in said] == []
    assert 'ensemble x 64' in said

    said = ''.join(run_part('Weights of others').values())
    assert said.count('\nlambada (') == 3
    assert '\nS C A A S ' in said

    run_part('Quick start')
    run_part('From Python and other tools')
    assert os.path.isfile('out/quickstart/hf/model.safetensors')
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(fences(part('From Python and other tools'), 'python')[0], {})
    text, nats = said.getvalue().splitlines()
    assert text.startswith('The func')
    assert nats.startswith('[-')
