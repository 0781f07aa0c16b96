"""Files that are whole or not there, locks, terminals that fail, and processes."""

import codecs
import contextlib
import gzip
import hashlib
import importlib
import io
import math
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import ROOT, one_line

from anyorder import datasets, provenance
from anyorder.likelihood.journal import Journal
from anyorder.machine import files, locks, processes
from anyorder.machine.terminal import Surviving, one_line_errors, progress, say
from anyorder.tokens import prepared
from anyorder.training.report import BAR, show

# ---- files


def raise_all(first, *others):
    """Raise an error, and amid it the others."""
    try:
        raise first
    finally:
        if others:
            raise_all(*others)


NO_ROOM = OSError(28, 'No space left on device')
OF_ARCHIVE = RuntimeError('one that could not be written fails again when it is closed')
SAID = ValueError('said in place of the first one')
SAID.__suppress_context__ = True
FAILURES = [  # what is raised when two files are written, and what comes out of it
    ([ZeroDivisionError()], ZeroDivisionError),
    ([NO_ROOM, OF_ARCHIVE], OSError),
    ([KeyboardInterrupt(), OF_ARCHIVE], KeyboardInterrupt),
    ([NO_ROOM, SAID], ValueError),
]


@pytest.mark.parametrize('errors, kind', FAILURES)
def test_files_become_new_together_or_stay_old(errors, kind):
    for name in 'ab':
        Path(name).touch()
    with pytest.raises(kind) as e, files.whole_files('a', 'b') as temporary:
        for path in temporary:
            Path(path).write_text('new')
        raise_all(*errors)
    assert {name: os.path.getsize(name) for name in os.listdir()} == {'a': 0, 'b': 0}
    if e.value is NO_ROOM:
        assert NO_ROOM.filename == 'a'


def test_bytes_are_on_the_disk_before_the_name_is_theirs(monkeypatch):
    seen = []
    monkeypatch.setattr(
        os, 'fsync', lambda f: seen.append((os.fstat(f).st_size, os.path.exists('f')))
    )
    files.replace_file('f', b'three')
    assert seen == [(5, False)]


OF_FILE = [ValueError(), RecursionError(), KeyError('a'), EOFError(), RuntimeError('shape')]
OF_FILE += [gzip.BadGzipFile('no gzip'), OSError(22, 'Invalid argument')]
OF_SYSTEM = [MemoryError(), ImportError(), PermissionError(13, 'not yours'), NO_ROOM]
OF_SYSTEM += [KeyboardInterrupt()]
OF_SYSTEM += [RuntimeError(f'CUDA: {said}') for said in ('out of memory', "can't allocate memory")]
OF_SYSTEM += [RuntimeError('not enough memory'), RuntimeError('CUBLAS_STATUS_ALLOC_FAILED')]


@pytest.mark.parametrize('error', [*OF_FILE, *OF_SYSTEM])
def test_a_file_of_another_kind_is_one_line_and_a_failure_of_the_system_passes(error):
    with pytest.raises(BaseException) as e, files.reading('a.json', 'a log', 'name another'):
        raise error
    assert (e.value is error) == (error in OF_SYSTEM)
    if error in OF_FILE:
        kind = type(error).__name__
        assert str(e.value) == f'a.json cannot be read as a log: name another ({kind})'


@pytest.mark.parametrize('begin', ['', '.', '..', '...'])
def test_a_mark_of_byte_order_is_no_letter_wherever_a_text_is_cut(begin):
    """Letter and mark lie across the ends of what is read at once; files were joined."""
    text = 'ä€\n' * 5000
    Path('a.GZ').write_bytes(gzip.compress(f'{begin}\ufeff{text}\ufeff\ufeff{text}'.encode()))
    assert files.read_text('a.GZ') == begin + text + text


@pytest.fixture
def links():
    """Links to a file, to a checkpoint, and to where no result may go."""
    for folder in ('shared', 'c', 'folder.json'):
        os.mkdir(folder)
    Path('c.pt').touch()
    for name, place in zip('abcd', ('shared/x.json', 'c.pt', 'shared/meta.json', 'none/x.json')):
        os.symlink(place, f'{name}.json')


def test_a_result_goes_through_a_link_and_a_checkpoint_takes_its_place(links):
    """JSON has null in place of what is not finite."""
    for value in ({'ü': [1, -math.inf, math.nan]}, 2):
        files.write_json('a.json', value)
        text = Path('shared/x.json').read_text()
        assert text.split() in (['{', '"\\u00fc":', '[', '1,', 'null,', 'null', ']', '}'], ['2'])
        assert os.listdir('shared') == ['x.json']
    with files.whole_files('a.json') as (name,):
        Path(name).touch()
    assert Path('shared/x.json').read_text() == text
    assert not os.path.islink('a.json')


def check_out(name):
    files.check_out('out', name, '.svg, .json', '', 'c.pt')


CHECKS = [  # what checks, what is fine, what is not, with commas between, and a word of the message
    (lambda name: files.check_names(name=name), 'a-b.1,ä,7', '../a,a/b,,-a,.a,a\n', 'name'),
    (partial(files.check_folder, 'data_dir'), 'a/b,.', ',c.pt,c.pt/b', 'data_dir'),
    (check_out, 'new.json,new.svg,a.json,', 'b.json,c.json,d.json,meta.json,c.pt', '--out'),
    (check_out, '', '.,a.bin,none/x.json,c.pt/x.json,/dev/null,folder.json', '--out'),
]


@pytest.mark.parametrize('check, fine, bad, word', CHECKS)
def test_what_is_checked_before_the_work(links, check, fine, bad, word):
    before = os.listdir()
    for given in fine.split(','):
        check(given)
    for given in bad.split(','):
        with one_line(word):
            check(given)
    assert os.listdir() == before


# ---- a terminal


class Bare:
    """A stream that can write and nothing else."""

    said = ''

    def write(self, text):
        self.said += text


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


def lost_reader():
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, 'w', buffering=1)


def full():
    if not os.path.exists('/dev/full'):
        pytest.skip('no device here is always full')
    return open('/dev/full', 'w')


def ascii_only():
    return codecs.getwriter('ascii')(io.BytesIO())  # which cannot be told to replace letters


@pytest.fixture(params=[lambda: None, Bare, closed, ascii_only, lost_reader, full])
def stream(request):
    stream = request.param()
    yield stream
    Surviving(stream).end()  # what it could not write does not trouble its end


@contextlib.contextmanager
def terminal(stream):
    """In the body, stdout and stderr are this stream."""
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        yield


def beside_the_work():
    print('ø', file=sys.stderr)
    print('a line', file=sys.stderr, flush=True)
    assert [*progress(range(3))] == [0, 1, 2]
    assert not sys.stdout.isatty()
    say('a line')
    assert sys.stderr.stream is not None and sys.stdout.stream is not None


def test_no_file_gets_the_number_of_a_closed_stream(forked):
    def body():
        os.closerange(0, 3)
        with one_line_errors(), open('a', 'w') as f:
            assert f.fileno() > 2

    forked(body)


def end_together():
    print('a result')
    processes.end_processes()


LOST = 'error: [Errno 28] No space left on device'
NO_FILE = "error: [Errno 2] No such file or directory: 'none/none': name"
MEMORY = 'error: out of memory: '
PACKAGE = "error: No module named 'none': pip install"
ENDS = [  # what a command does, whether it prints results, the exit code, and that on a full disk
    (beside_the_work, False, 0, 0),
    (lambda: print('a result'), False, 0, 0),
    (lambda: print('a result'), True, 0, LOST),
    (end_together, True, 0, 1),
    (lambda: raise_all(ValueError('x')), True, 'error: x', 'error: x'),
    (lambda: open('none/none'), True, NO_FILE, NO_FILE),
    (lambda: raise_all(KeyboardInterrupt()), True, 'interrupted', 'interrupted'),
    (lambda: os.kill(os.getpid(), signal.SIGTERM), True, 'terminated', 'terminated'),
    (lambda: raise_all(MemoryError('a\nb')), True, MEMORY, MEMORY),
    (lambda: torch.empty(2**60), True, MEMORY, MEMORY),
    (lambda: importlib.import_module('none'), True, PACKAGE, PACKAGE),
]


@pytest.mark.parametrize('body, prints_results, code, code_if_full', ENDS)
def test_a_command_ends_with_one_line_or_none(
    stream, monkeypatch, body, prints_results, code, code_if_full
):
    """Results that a full disk lost are an error after the work."""
    if body is end_together:
        monkeypatch.setattr(processes, 'dist', Mock())
        monkeypatch.setattr(os, '_exit', sys.exit)
    with pytest.raises(SystemExit) as e, terminal(stream):
        with one_line_errors(signal.SIGTERM, prints_results=prints_results):
            body()
        sys.exit(0)
    if getattr(stream, 'name', '') == '/dev/full':
        stream.flush()  # at the end of a process it stumbles over nothing
        code = code_if_full
    assert str(e.value.code).startswith(str(code))
    assert '\n' not in str(e.value.code)
    if isinstance(stream, Bare) and body is beside_the_work:
        assert stream.said.count('a line\n') == 2


@pytest.mark.parametrize('seconds', [0.9, 1.0])
def test_a_bar_is_of_a_second_or_more_and_within_its_total(monkeypatch, seconds):
    now = [100.0]
    monkeypatch.setattr('tqdm.std.time', lambda: now[0])
    stream = Bare()
    with terminal(Surviving(stream)):
        bar = progress(total=3)
        bar.update()
        say('a line')  # which shows bars anew
        now[0] += seconds
        say('a line')
        bar.update(5)
        bar.close()
    assert [word in stream.said for word in ('1/3', '3/3', '/3')] == 3 * [seconds >= 1]


LINE = 'the run-of-the-mill line says what is about to run, in many more words than one'
WORDS = ['loss 2.500', 'any 2.625', 'l2r 2.375', 'best 2.000', '54,321 tok/s', 'norm 1.25']
ENTRY = {'tokens_per_sec': 54321, 'mfu': 0.4, 'lr': 3e-4, 'grad_norm': 1.25}
ENTRY |= {'loss': 2.5, 'val_any': 2.625, 'val_l2r': 2.375, 'val_books_any': 2.75, 'best': 2.0}


@pytest.mark.parametrize('columns, n_words', [(40, 1), (60, 4), (120, 6)])
def test_a_terminal_shows_whole_words_the_losses_first(monkeypatch, columns, n_words):
    monkeypatch.setenv('COLUMNS', str(columns))
    screen = Mock(isatty=lambda: True, closed=False)
    with terminal(screen):
        say(LINE)
        plain = progress(total=3)
        bar = progress(total=100_000, initial=12_345, bar_format=BAR)
    said = ''.join(call.args[0] for call in screen.write.call_args_list).splitlines()
    assert ' '.join(said) == LINE
    show(bar, ENTRY)
    assert max(map(len, (*said, str(plain), str(bar)))) == columns - 1
    assert [word in str(bar) for word in WORDS[:n_words]] == n_words * [True]


# ---- locks, and commands that write one file at once


def source_of(text):
    """Return the name of a file that has a text."""
    path = f'{text}.txt'
    if not os.path.exists(path):
        Path(path).write_text(text * 50)
    return path


def prepare(text, name='x', split='', force=False):
    return prepared.prepare('text', '.', name, source_of(text), split, 'bytes', force)


def test_one_folder_has_one_lock_by_every_name(monkeypatch):
    """What a killed process left in it goes when another one takes it in turn, and not before."""
    monkeypatch.setattr(locks, 'PATIENCE', 0.1)
    os.makedirs('data/x')
    os.symlink('data/x', 'x')
    Path('x/val.bin.12.tmp').touch()
    for name in 'data/x/', 'x':
        with locks.locked('data/x'), one_line('in use'), locks.locked(name):
            pass
        with locks.locked(name):  # and it is free
            assert os.listdir('x') == ['val.bin.12.tmp']
    os.mkdir('x/theirs.12.tmp')
    prepare('text')
    assert sorted(os.listdir('x')) == ['meta.json', 'theirs.12.tmp', 'train.bin', 'val.bin']


def is_whole(split='val'):
    """The file of a split is as its entry in meta.json says."""
    found = datasets.open_split('.', 'x', split)
    assert hashlib.sha256(found.packed.tobytes()).hexdigest() == found.entry['sha256']


@pytest.mark.parametrize('text', ['a longer text', 'other'])  # of another size, and of the same
def test_a_split_that_is_replaced_while_it_is_opened_is_opened_again(monkeypatch, text):
    """A replacement that is killed leaves no entry of another file."""
    prepare('texts')
    read = datasets.read_meta

    def read_early(*args):
        monkeypatch.setattr(datasets, 'read_meta', read)
        before = read(*args)
        prepare(text, force=True)
        return before

    monkeypatch.setattr(datasets, 'read_meta', read_early)
    is_whole()
    writes = Mock(side_effect=[None, KeyboardInterrupt])
    monkeypatch.setattr('anyorder.tokens.folder.write_meta', writes)
    with pytest.raises(KeyboardInterrupt):
        prepare('again', force=True)  # of which the files are there
    assert writes.call_args_list[0].args[1].splits == {}


def add_blocks(k):
    journal = Journal('j.jsonl', {})
    for block in range(10):
        journal.add({('a set', k, block): [1.0 / 3, k]})


def are_there(k):
    done = Journal('j.jsonl', {}).done
    assert [done['a set', k, block] for block in range(10)] == 10 * [[1.0 / 3, k]]


WRITERS = [  # what command k of four writes, and how what it must leave is read
    (lambda k: prepare(f'text {k}', split=f's{k}'), lambda k: is_whole(f's{k}')),
    (add_blocks, are_there),
    (lambda k: prepare(f'text {k}', force=True), lambda k: is_whole()),
]


@pytest.mark.parametrize('write, read', WRITERS)
def test_commands_at_once_lose_nothing_and_leave_nothing(forked, write, read):
    for k in range(4):
        source_of(f'text {k}')

    def command(k):
        os.environ['WORLD_SIZE'] = '1'
        write(k)

    forked(*(partial(command, k) for k in range(4)))
    for k in range(4):
        read(k)
    assert [*Path().rglob('*.tmp')] == []


# ---- processes


ALL_HERE = 'torchrun --standalone --nproc_per_node=4'
PLACES = [  # names of the environment, (rank, number), what starts a script so
    ({'RANK': '1', 'LOCAL_WORLD_SIZE': '1'}, (0, 1), 'python'),  # as a scheduler may set it
    ({'WORLD_SIZE': '4'}, (0, 4), 'torchrun ...'),
    ({'RANK': '3', 'WORLD_SIZE': '4', 'LOCAL_WORLD_SIZE': '8'}, (3, 4), 'torchrun ...'),
    ({'WORLD_SIZE': '4', 'LOCAL_WORLD_SIZE': '4'}, (0, 4), ALL_HERE),
]


@pytest.mark.parametrize('there, place, launcher', PLACES)
def test_a_process_is_alone_or_one_of_torchrun(monkeypatch, there, place, launcher):
    for name in ('RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE'):
        monkeypatch.delenv(name, raising=False)
    for name, value in there.items():
        monkeypatch.setenv(name, value)
    assert (processes.processes(), processes.launcher()) == (place, launcher)


def test_two_processes_share_what_they_have(forked):
    """And they are asked to end together; a second Ctrl-C ends a lone one alone."""

    def body():
        processes.start_processes()
        rank, _ = processes.processes()
        with processes.first_process_first():
            assert os.path.exists('made') == (rank > 0)
            time.sleep(0.2)
            Path('made').touch()
        with pytest.raises(ValueError), processes.first_process_first():
            raise ValueError
        with processes.stop_requests() as asked:
            assert not asked()
            for _ in range(2 * rank):
                os.kill(os.getpid(), signal.SIGINT)
            assert asked()
        print('a result')
        if rank > 0:
            time.sleep(0.2)
            os.remove('made')
        leave = os._exit
        os._exit = lambda code: leave(0 if os.path.exists('made') else code)  # no other is at work
        with contextlib.suppress(SystemExit):  # gloo's threads would abort an interpreter's end
            processes.end_processes(3)

    assert [p.said for p in forked(body, body, code=3)] == 2 * ['a result\n']


ASKS = [(number, True) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
ASKS += [(signal.SIGHUP, False), (signal.SIGHUP, True)]  # not where nohup ignores it


@pytest.mark.parametrize('number, asks', ASKS)
def test_signals_ask_a_lone_process_to_end(number, asks):
    """A second Ctrl-C ends it at once."""
    own = signal.getsignal(number)
    signal.signal(number, signal.default_int_handler if asks else signal.SIG_IGN)
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), processes.stop_requests() as asked:
        os.kill(os.getpid(), number)
        assert asked() == asks
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(number) == before
    signal.signal(number, own)


def test_the_commit_says_whether_files_were_changed(tmp_path):
    """Of this repository, not of one around it. Its tags, and files beside it, say nothing."""
    begin = 'echo x > a; git init -q; git add a; git config user.name a; git config user.email b'
    if os.system(f'{begin}; git commit -qm Begin; git tag -am one v1; touch notes'):
        pytest.skip('there is no git')
    clean = provenance.commit(tmp_path)
    assert len(clean) == 12
    Path('a').write_text('y')
    assert provenance.commit(tmp_path) == f'{clean}-dirty'
    assert provenance.commit(tmp_path / 'inner') == 'unknown'


PROGRAMS = {  # the file, the name, and where it is from the folder `tests`
    f'{ROOT}/mine/own.py': ('mine/own.py', '../mine/own.py'),
    '/a b/own.py': ('/a b/own.py', f"'{os.path.relpath('/a b', f'{ROOT}/tests')}/own.py'"),
    '<stdin>': ('(no file)', "'../(no file)'"),
}


@pytest.mark.parametrize('file', PROGRAMS)
def test_a_program_has_a_name_and_is_typed_where_one_stands(monkeypatch, file):
    monkeypatch.setitem(sys.modules, '__main__', SimpleNamespace(__file__=file))
    monkeypatch.chdir(f'{ROOT}/tests')
    name, place = PROGRAMS[file]
    assert (provenance.program(), processes.command(name)) == (name, f'python {place}')
