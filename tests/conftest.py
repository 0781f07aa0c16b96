import ast
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from types import SimpleNamespace
from unittest import mock

# read when huggingface_hub is imported: no test reaches for the network
os.environ['HF_HUB_OFFLINE'] = '1'
# it hides how Python stumbles at its exit over a disk that is full
os.environ.pop('PYTHONUNBUFFERED', None)
# tensors of a few numbers: a second thread only waits, also in processes
os.environ['OMP_NUM_THREADS'] = '1'

gc.disable()  # until all tests are collected

import pytest
import torch
import torch.distributed as dist

from anyorder.checkpoint import save_checkpoint
from anyorder.machine.files import read_json
from anyorder.seeds import keys_of, uniform
from anyorder.tokens.tokenizer import get_tokenizer
from model import AOGPT, AOGPTConfig

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REFERENCE = os.path.join(ROOT, 'tests', 'reference')
HANGS = 600  # seconds after which a process has hung, however busy the machine is


def pytest_addoption(parser):
    parser.addoption(
        '--device',
        default='cpu',
        help='where the tests of test_on_device.py run: cpu, cuda, cuda:1, mps',
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Two processes share the tests where xdist is there, unless the command line says otherwise:
    a debugger and a device are for one, and pytest-cov has looked for processes before."""
    option = config.option
    if hasattr(config, 'workerinput') or not hasattr(option, 'numprocesses'):  # a worker; or none
        return
    if option.numprocesses is None:
        for_one = option.device != 'cpu' or option.usepdb or getattr(option, 'cov_source', None)
        option.numprocesses = 0 if for_one else 2
    if option.dist == 'no':
        option.dist = 'worksteal'


def pytest_make_parametrize_id(val):
    """Options and networks have their own names in those of tests. What is told by an address has
    another one in each process, and coverage.py ends the name of a test at |."""
    if isinstance(val, str) and '|' in val:
        return ascii(val)[1:-1].replace('|', '!')
    text = str(val)
    return text if isinstance(val, dict | torch.dtype) and ' at 0x' not in text else None


def pytest_collection_finish(session):
    """Modules and tests stay: to look through them for garbage takes long."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


def make_model(seed=0, **config):
    """A small float64 model whose weights are large and random, so that every part of it
    matters."""
    torch.manual_seed(seed)
    sizes = dict(block_size=9, vocab_size=11, n_layer=2, n_head=2, n_embd=16, n_cond=8)
    model = AOGPT(AOGPTConfig(**sizes | config)).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.requires_grad_(False)


def rows_of(n, length=9, n_tokens=11):
    """(idx, order) of n random rows, the same ones each time."""
    g = torch.Generator().manual_seed(1)
    idx = torch.randint(n_tokens, (n, length), generator=g)
    return idx, torch.rand(n, length, generator=g).argsort(-1)


def options_in(text):
    """{name: value} of options as they are typed, 'order=margin/4 n_steps=3'."""
    found = {}
    for word in text.split():
        name, _, value = word.partition('=')
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


def options_of_lines(text):
    """The options in each line of a table."""
    return [*map(options_in, text.strip().splitlines())]


def numbers(seed, *names, n=9):
    """(n,) uniform numbers of a row with this seed, by position."""
    return uniform(keys_of([seed]), *names, torch.arange(n))


def library(kind):
    """A tiny tokenizer of the package tokenizers: that of its kind in reference/tokenizers.json,
    which may be like another one but for the parts that it has."""
    tokenizers = pytest.importorskip('tokenizers')
    with open(os.path.join(REFERENCE, 'tokenizers.json'), encoding='utf-8') as f:
        kinds = json.load(f)
    own = kinds[kind]
    parts = {'added_tokens': [], **kinds[own.pop('like', kind)]}
    model = parts['model'] | own.get('model', {})
    return tokenizers.Tokenizer.from_str(json.dumps(parts | own | {'model': model}))


def tokenizer_like(kind):
    """A `library`, as one of ours: that of somebody else's model."""
    found = library(kind)
    from anyorder.extras.masked.tokenizer import HuggingFace

    return HuggingFace(kind, found)


def gpt2():
    """GPT-2's tokenizer, if its vocabulary is cached."""
    tokenizer = get_tokenizer('gpt2')
    try:
        tokenizer.encode('')
    except (ImportError, ValueError):
        pytest.skip('the GPT-2 vocabulary is not cached')
    return tokenizer


@pytest.fixture(scope='session')
def hub_modules(tmp_path_factory):
    """The code of exported folders is copied to a place of the tests, one for each process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            'transformers.dynamic_module_utils.HF_MODULES_CACHE',
            str(tmp_path_factory.mktemp('modules')),
        )
        yield


def put(path, text):
    """Write a text in place of a file, {..} in place of these entries of JSON; '' removes it."""
    if text.startswith('{"') and path.exists():
        text = json.dumps(read_json(path) | json.loads(text))
    path.write_text(text)
    if not text:
        path.unlink()


def close(found, want, atol=1e-10):
    """Tensors, or trees of them, are equal up to rounding of float64, of shape and dtype, too."""
    torch.testing.assert_close(found, want, rtol=0, atol=atol)


@contextlib.contextmanager
def one_line(said):
    """The body raises the error of a wrong input: a ValueError of one line, in which `said` is
    found."""
    with pytest.raises(ValueError, match=said) as e:
        yield
    assert '\n' not in str(e.value)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Every test runs in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder of a test is the home folder, too."""
    monkeypatch.setenv('HOME', str(tmp_path))


@pytest.fixture
def model():
    return make_model()


# how many visits of each row of `batch` are known
N_KNOWN = torch.tensor([0, 3, 8, 5, 1])


@pytest.fixture
def batch():
    """(idx, order) of five rows over all positions of make_model()."""
    return rows_of(5)


@pytest.fixture
def idx(batch):
    return batch[0]


@pytest.fixture
def order(batch):
    return batch[1]


@pytest.fixture
def ckpt():
    """The path of a checkpoint of random weights that reads and writes 32 bytes."""
    model = make_model(block_size=32, vocab_size=320, n_tokens=257).float()
    save_checkpoint('ckpt.pt', model, tokenizer='bytes', iter_num=7)
    return os.path.abspath('ckpt.pt')


@pytest.fixture
def data():
    """The working folder has data/pydocs already: a little of the real text."""
    from anyorder.tokens import prepared as p

    texts = ['The quick brown fox jumps over the lazy dog. ' * 30] * 20
    quick = p.DataSet(lambda: texts, 'bytes', 0.1, '', offline=True)
    # in the table itself, which a module has that is imported meanwhile
    with mock.patch.dict(p.DATA_SETS, pydocs=quick):
        p.prepare('pydocs', 'data')
        yield


def program_of(words):
    """(what the words behind `python` run, the other words): a file, or a module with its first
    word."""
    if words[0] != '-m':
        return words[0], words[1:]
    n = 3 if words[1] in ('anyorder.extras.puzzles', 'anyorder.extras.speed') else 2
    return ' '.join(words[1:n]), words[n:]


@pytest.fixture
def script(monkeypatch):
    """script('train.py', '--x=1', ..., code=0) runs a command in this process, which has the
    libraries loaded; what it returns has stdout and stderr. What fails says one line.

    'anyorder.extras.NAME', maybe with its first word, is run as by `python -m`."""

    def run(name, *args, code=0):
        name, *first = name.split()
        words = [*first, *args]
        out, err, status = io.StringIO(), io.StringIO(), 0
        at_end, n_threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
        monkeypatch.setattr(sys, 'argv', [name, *words])
        monkeypatch.setattr(sys, 'path', [*sys.path])  # whose first folder prepare.py replaces
        for module in ('__main__', *words[:1]):  # else it warns
            monkeypatch.delitem(sys.modules, f'{name}.{module}', raising=False)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                if name.endswith('.py'):
                    runpy.run_path(os.path.join(ROOT, name), run_name='__main__')
                else:
                    runpy.run_module(name, run_name='__main__', alter_sys=True)
        except SystemExit as e:  # a line for stderr, or a number
            status = e.code or 0
            if isinstance(status, str):
                err.write(f'{status}\n')
                status = 1
        finally:
            signal.signal(signal.SIGTERM, at_end)
            torch.set_num_threads(n_threads)
        assert status == code, out.getvalue() + err.getvalue()
        assert status == 0 or err.getvalue().count('\n') == 1, err.getvalue()
        return SimpleNamespace(stdout=out.getvalue(), stderr=err.getvalue())

    return run


@pytest.fixture
def forked(tmp_path):
    """forked(body, ..., code=0) calls every body at once, each in a fork of this process, which has
    the libraries loaded.

    Several are the processes of one torchrun. All must end with this exit code; None: with any.
    Returns of each its `code` and what it `said`; a body that hangs is ended."""

    def run(*bodies, code=0):
        with socket.create_server(('127.0.0.1', 0)) as s:
            port = s.getsockname()[1]
        children = [
            os.fork() or fork_of(body, rank, len(bodies), port, tmp_path / f'said-{rank}')
            for rank, body in enumerate(bodies)
        ]
        finished = []
        for rank, child in enumerate(children):
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said = (tmp_path / f'said-{rank}').read_text()
            finished.append(SimpleNamespace(code=ended, said=said))
        assert code is None or {one.code for one in finished} == {code}, finished
        return finished

    return run


@pytest.fixture
def simulated(forked):
    """simulated(body) calls body(device) of the simulated GPU, in a fork of this process."""
    simulated_gpu = importlib.import_module('simulated_gpu')  # a second, for who asks for it

    return lambda body: forked(lambda: simulated_gpu.run(body))


def fork_of(body, rank, world_size, port, said):
    """The life of a child of `forked`; does not return."""
    code = 1
    gc.freeze()  # what is there already is none of its garbage, and slow to look through
    with open(said, 'w', buffering=1) as sys.stdout:
        sys.stderr = sys.stdout
        signal.alarm(HANGS)
        if world_size > 1:
            os.environ |= {
                'RANK': str(rank),
                'LOCAL_RANK': str(rank),
                'WORLD_SIZE': str(world_size),
                'MASTER_ADDR': '127.0.0.1',
                'MASTER_PORT': str(port),
            }
        try:
            body()
            if dist.is_initialized():  # who ended first would cut off what others still read
                dist.barrier()
            code = 0
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 1
            print(e.code)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
