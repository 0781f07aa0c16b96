"""A terminal that is not there, has gone or is full ends no command."""

import codecs
import contextlib
import io
import os
import subprocess
import sys
from unittest.mock import Mock

import pytest
from conftest import ROOT

from anyorder.generation.watch import Watch
from anyorder.machine.processes import end_processes
from anyorder.machine.terminal import one_line_errors, progress, say, surviving
from anyorder.tokens.tokenizers import Bytes
from anyorder.training.report import BAR, Report


class Bare:
    """A stream that can write and nothing else."""

    said = ''

    def write(self, text):
        self.said += text


def lost_reader():
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, 'w', buffering=1)


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


def full():
    return open('/dev/full', 'w', buffering=1)


def ascii_only():
    return codecs.getwriter('ascii')(io.BytesIO())  # which cannot be told to replace letters


STREAMS = {
    'none': lambda: None,
    'bare': Bare,
    'closed': closed,
    'ascii': ascii_only,
    'lost reader': lost_reader,
    'full': full,
}
if not os.path.exists('/dev/full'):
    del STREAMS['full']


@pytest.fixture(params=STREAMS)
def stream(request):
    stream = STREAMS[request.param]()
    yield stream
    surviving(stream).end()  # what it could not write does not trouble its end


@contextlib.contextmanager
def terminal(stream):
    """In the body, stdout and stderr are this stream."""
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        yield


def test_what_is_said_beside_the_work_does_not_end_it(stream):
    with terminal(stream):
        assert list(progress(range(3))) == [0, 1, 2]
        say('a line')
        Watch(Bytes())([97], [0], 0, [-1.0])
        with one_line_errors():
            print('a line', flush=True)
            print('ø', file=sys.stderr)
            print('a line', file=sys.stderr, flush=True)
            assert list(progress(range(3))) == [0, 1, 2]
            assert not sys.stdout.isatty()
            say('a line')
            if stream is None:
                assert sys.stderr.fileno() > 2  # which libraries ask for
        assert sys.stdout is stream
    if isinstance(stream, Bare):
        assert stream.said.count('a line\n') == 4


@pytest.fixture
def clock(monkeypatch):
    """[seconds], by which bars go."""
    now = [100.0]
    monkeypatch.setattr('tqdm.std.time', lambda: now[0])
    return now


@pytest.mark.parametrize('seconds', [0.9, 1.0, 40.0])
def test_a_bar_is_of_a_second_or_more_and_within_its_total(clock, seconds):
    stream = Bare()
    with terminal(stream):
        bar = progress(total=3)
        bar.update()
        say('a line')  # which shows bars anew
        clock[0] += seconds
        bar.update(5)
        bar.close()
    assert bar.n == 3
    assert ('3/3' in stream.said) == (seconds >= 1)


class Screen(io.StringIO):
    def isatty(self):
        return True

    def fileno(self):
        return 2


@pytest.fixture(params=[0, 40, 60, 80, 120])
def columns(request, monkeypatch):
    """How many columns a terminal has; 0 says none, and is taken for 80."""
    monkeypatch.setattr('os.get_terminal_size', lambda fd: (request.param, 24))
    return request.param or 80


def test_a_run_on_a_narrow_terminal_shows_whole_words_the_losses_first(columns, monkeypatch):
    with terminal(Screen()):
        bar = progress(total=100_000, initial=12_345, bar_format=BAR)
    speed = {'tokens_per_sec': 54321, 'mfu': 0.4, 'lr': 3e-4, 'grad_norm': 1.25}
    losses = {'loss': 2.5, 'val_any': 2.625, 'val_l2r': 2.375, 'val_books_any': 2.75, 'best': 2.0}
    Report(Mock(), Mock(), bar)({'iter': 12_345} | speed | losses, with_samples=False)
    shown = str(bar)
    monkeypatch.setattr('os.get_terminal_size', lambda fd: (1000, 24))
    assert len(shown) <= columns
    assert f'{bar} '.startswith(f'{shown} ')
    said = ['loss 2.500', 'any 2.625', 'l2r 2.375', 'best 2.000', '54,321 tok/s', 'norm 1.25']
    least = {40: 1, 60: 4, 80: 4, 120: 6}[columns]
    assert [words for words in said[:least] if words not in shown] == []
    assert '2.750' not in str(bar)


def test_a_line_is_broken_at_words(columns):
    line = 'the run-of-the-mill line says what is about to run, in many more words than one'
    screen = Screen()
    with terminal(screen):
        say(line)
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    assert ' '.join(lines) == line


@pytest.mark.parametrize('prints_results', [False, True])
def test_results_that_a_full_disk_lost_are_an_error_after_the_work(stream, prints_results):
    done = []
    code = 0
    try:
        with terminal(stream), one_line_errors(prints_results=prints_results):
            print('a result')
            done.append(True)
    except SystemExit as e:
        code = e.code
    is_full = getattr(stream, 'name', '') == '/dev/full'
    assert done
    assert bool(code) == (is_full and prints_results)


def test_so_they_are_where_processes_end_together(stream, monkeypatch):
    of_others = {'is_initialized': True, 'barrier': None, 'destroy_process_group': None}
    for name, value in of_others.items():
        monkeypatch.setattr(f'torch.distributed.{name}', lambda value=value: value)
    monkeypatch.setattr('os._exit', sys.exit)
    with pytest.raises(SystemExit) as e, terminal(stream), one_line_errors(prints_results=True):
        print('a result')
        end_processes()
    assert e.value.code == int(getattr(stream, 'name', '') == '/dev/full')


def test_an_error_is_said_although_nobody_reads(stream):
    with pytest.raises(SystemExit) as e, terminal(stream), one_line_errors(prints_results=True):
        print('a line')
        raise ValueError('x must be 3')
    assert e.value.code == 'error: x must be 3'


def test_no_file_gets_the_number_of_a_closed_terminal(forked, tmp_path):
    def body():
        for number in (0, 2):
            os.close(number)
        with one_line_errors(), open(tmp_path / 'ckpt', 'w') as f:
            assert f.fileno() > 2
            assert all(os.get_inheritable(number) for number in (0, 2))

    (finished,) = forked(body)
    assert finished.code == 0, finished.said


TOY = (
    '--n_layer=1 --n_head=2 --n_embd=16 --block_size=4 --batch_size=2 --max_iters=1 '
    '--warmup_iters=0 --device=cpu --dtype=float32 --compile=False --eval_iters=1 --dataset=x '
    '--data_dir=.'
)


@pytest.mark.slow
@pytest.mark.parametrize('streams', ['>&- 2>&- <&-', '>/dev/full 2>/dev/full'])
def test_programs_do_their_work_without_a_terminal(tmp_path, streams):
    """Each leaves its file and ends with 0, but for a sample that a full disk has lost."""
    (tmp_path / 'x.txt').write_text('The quick brown fox jumps over the lazy dog. ' * 3)
    program = f'PATH={os.path.dirname(sys.executable)}:$PATH; cd {tmp_path}; at={ROOT}\n'
    commands = {
        'x/meta.json': 'data/prepare.py text --source=x.txt --tokenizer=bytes --name=x '
        '--data_dir=.',
        'out/ckpt.pt': f'train.py {TOY}',
        's.json': 'sample.py --ckpt=out/ckpt.pt --device=cpu --prompt=a[[2]] --watch=True '
        '--out=s.json',
    }
    for made, command in commands.items():
        line = f'{program} python $at/{command} {streams}'
        finished = subprocess.run(['bash', '-c', line], check=False)
        lost = 'full' in streams and command.startswith('sample')
        assert finished.returncode == lost, command
        assert (tmp_path / made).exists(), command
