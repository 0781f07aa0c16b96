"""The terminal's view of a generation."""

import io
import math
import re
from types import SimpleNamespace

import pytest

from anyorder.generation.watch import Watch, has_colours, visible
from anyorder.tokens.tokenizers import Bytes, Symbols


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def frame(self):
        """What was written since the last call, with its escapes."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


def plain(text):
    return re.sub(r'\x1b\[[0-9;]*[mFJ]', '', text).splitlines()


def painted(style, letters):
    return f'\x1b[{style}m{letters}\x1b[0m' if style else letters


def certain(tokens):
    """The log-probabilities of tokens that are sure."""
    return [0.0] * len(tokens)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The time, which passes when somebody sleeps and when `seconds` is changed.

    `slept` lists the naps."""
    clock = SimpleNamespace(seconds=100.0, slept=[])

    def sleep(seconds):
        clock.slept.append(seconds)
        clock.seconds += seconds

    watch_time = SimpleNamespace(perf_counter=lambda: clock.seconds, sleep=sleep)
    monkeypatch.setattr('anyorder.generation.watch.time', watch_time)
    return clock


@pytest.fixture
def terminal(monkeypatch):
    """terminal(columns, lines, TERM=...) is a terminal of that size; by default without colours."""

    def make(columns=80, lines=24, **environ):
        for name in ('TERM', 'COLORTERM', 'NO_COLOR'):
            monkeypatch.delenv(name, raising=False)
        for name, value in {'COLUMNS': columns, 'LINES': lines, **environ}.items():
            monkeypatch.setenv(name, str(value))
        return Terminal()

    return make


def test_nothing_written_controls_a_terminal():
    text = 'a\x1b[2J\tb\n\0\r\x9b\u0439'
    assert visible(text) == 'a\\x1b[2J\tb\n\\x00\\x0d\\x9b\u0439'


# --------------------------------------------------------------------------------------------------
# frames

TEXT = list(b'ab\ncd' + b'x' * 120)


def test_a_frame_shows_the_text_in_80_columns_and_counts(terminal):
    out = terminal()
    steps = [-1, 0, -1, None, 1] + [None] * 120
    Watch(Bytes(), out)(TEXT, steps, 1, certain(TEXT))
    frame = out.frame()
    assert plain(frame) == ['ab↵', '·d' + '·' * 77, '·' * 43, 'step 2 · 2 of 123 tokens']
    assert painted(7, 'b') in frame
    assert painted(7, 'd') in frame
    assert frame.count('\x1b[7m') == 2


def test_a_frame_stands_in_place_of_the_last_one(terminal):
    out = terminal()
    watch = Watch(Bytes(), out)
    watch(TEXT, [-1, 0, -1, None, 1] + [None] * 120, 1, certain(TEXT))
    out.frame()
    watch(TEXT, [-1, 0, -1, 2, 1] + [2] * 120, 2, certain(TEXT))
    frame = out.frame()
    assert frame.startswith('\x1b[4F\x1b[J')  # back over the four lines
    assert '\x1b[7mb' not in frame
    assert painted(7, 'c') + 'd\x1b[7mx' in frame
    assert 'step 3 · 123 of 123 tokens' in frame


def test_what_is_no_terminal_stays_silent():
    silent = io.StringIO()
    Watch(Bytes(), silent)(TEXT, [0] * 125, 0, certain(TEXT))
    assert silent.getvalue() == ''


@pytest.mark.parametrize(
    'environ', [{'TERM': 'xterm-256color'}, {'TERM': 'xterm', 'COLORTERM': 'truecolor'}]
)
def test_tokens_are_shaded_by_confidence_where_the_terminal_has_colours(terminal, environ):
    out = terminal(**environ)
    watch = Watch(Bytes(), out)
    logprob = [0.0, -9.0, math.log(0.5), 0.0, 0.0]
    watch(list(b'abcde'), [-1, 0, 1, 2, None], 2, logprob)
    out.frame()
    watch(list(b'abcde'), [-1, 0, 1, 2, 3], 3, logprob)
    colours = re.findall(r'48;5;(\d+)m(\w+)\x1b\[0m', out.frame())
    assert colours == [('189', 'b'), ('117', 'c'), ('33', 'd'), ('214', 'e')]


@pytest.mark.parametrize(
    'environ', [{'TERM': 'xterm-256color', 'NO_COLOR': '1'}, {'TERM': 'dumb'}, {}]
)
def test_a_user_or_a_terminal_may_have_no_colours(environ):
    assert not has_colours(environ)


# --------------------------------------------------------------------------------------------------
# time


@pytest.mark.parametrize('n, n_steps, seconds', [(16, 16, 1.6), (400, 400, 4.0), (400, 20, 4.0)])
def test_an_eye_follows_a_fast_model(terminal, clock, n, n_steps, seconds):
    out = terminal()
    watch = Watch(Bytes(), out)
    began = clock.seconds
    at_once = n // n_steps
    written = set()
    n_frames = 0
    for step in range(n_steps):
        n_written = at_once * (step + 1)
        steps = [i // at_once for i in range(n_written)] + [None] * (n - n_written)
        watch([ord('a')] * n, steps, step, [0.0] * n)
        frame = out.frame()
        n_frames += bool(frame)
        written.update(map(int, re.findall(r'step (\d+) ·', frame)))
    assert clock.seconds - began == pytest.approx(seconds)
    assert watch.waited == pytest.approx(seconds)
    assert n_steps in written
    assert min(n_steps, 20) <= n_frames <= seconds * 20 + 2  # 20 a second, and the end


def test_a_slow_model_is_not_slowed_and_every_text_begins_anew(terminal, clock):
    watch = Watch(Bytes(), terminal())
    text = list(b'abcdefghij')
    for _ in range(2):
        for step in range(10):
            clock.seconds += 0.5
            steps = [*range(step + 1)] + [None] * (9 - step)
            watch(text, steps, step, certain(text))
    assert sum(clock.slept) == pytest.approx(0.2)  # the first token of each
    assert watch.waited == pytest.approx(0.2)
    assert watch.shown == 9


# --------------------------------------------------------------------------------------------------
# a text that is higher than the terminal


def test_what_is_new_is_shown(terminal, clock):
    out = terminal(columns=21, lines=6)
    text = [ord('a') + i // 20 for i in range(200)]  # ten lines; three fit
    watch = Watch(Bytes(), out)
    for step, place in enumerate((0, 199, 100, 90, 0)):
        clock.seconds += 1
        steps = [-1] * 200
        steps[place] = step
        watch(text, steps, step, certain(text))
        frame = out.frame()
        assert '\x1b[7m' in frame
        assert len(plain(frame)) == 4
    assert plain(frame) == ['a' * 20, 'b' * 20, 'c' * 20, 'step 5 · 1 of 1 toke']


def test_the_end_is_shown_where_nothing_is_new(terminal):
    out = terminal(columns=21, lines=6)
    watch = Watch(Bytes(), out)
    watch([ord('a')] * 200, [-1] * 199 + [5], 5, [0.0] * 200)
    out.frame()
    watch([ord('a')] * 80, [-1] * 80, 9, [0.0] * 80)  # another text, of four lines
    assert [len(line) for line in plain(out.frame())[:-1]] == [20, 20, 20]


# --------------------------------------------------------------------------------------------------
# drafts and grids

LETTERS = 'abed!f'
# of each letter, from which step on a draft stood there
DRAFTS = [
    [],
    [(0, 'x'), (1, 'b')],
    [(0, 'c'), (2, 'y')],
    [(0, 'q')],
    [(1, '\n')],
    [(1, 'z'), (2, 'f')],
]


def drafts_until(step):
    found = []
    for history in DRAFTS:
        found.append([[since, ord(letter)] for since, letter in history if since <= step])
    return found


COLOURS = {'TERM': 'xterm-256color'}


@pytest.mark.parametrize(
    'environ, new, old', [({}, '7', ''), (COLOURS, '38;5;16;48;5;214', '38;5;16;48;5;33')]
)
def test_drafts_are_faint_and_struck_through_for_one_frame(terminal, clock, environ, new, old):
    faint = '2'
    struck = '2;9'
    frames = [
        ([-1, None, None, None, None, None], ['a', (faint, 'xcq'), '··']),
        (
            [-1, None, None, 1, None, None],
            ['a', (struck, 'x'), (faint, 'c'), (f'{new};9', 'q'), (faint, '↵z')],
        ),
        (
            [-1, 2, None, 1, None, None],
            ['a', (new, 'b'), (struck, 'c'), (old, 'd'), (faint, '↵'), (struck, 'z')],
        ),
        # the last one
        ([-1, 2, 3, 1, 3, 3], ['a', (old, 'b'), (new, 'e'), (old, 'd'), (new, '!f')]),
    ]
    counts = [
        'pass 1 · 0 of 5 tokens · 0.0 a pass',
        'pass 2 · 1 of 5 tokens · 0.5 a pass',
        'pass 3 · 2 of 5 tokens · 0.7 a pass',
        'pass 4 · 5 of 5 tokens · 1.2 a pass',
    ]
    out = terminal(**environ)
    watch = Watch(Bytes(), out)
    for step, (steps, parts) in enumerate(frames):
        clock.seconds += 1
        watch([*LETTERS.encode()], steps, step, certain(LETTERS), drafts_until(step))
        line = ''
        for part in parts:
            line += part if isinstance(part, str) else painted(*part)
        _, shown = out.frame().split('\x1b[J')
        assert shown.splitlines() == [line, counts[step]]


NAMES = ['C4', 'F#3', 'a', '']
CELLS = [
    '  C4',
    ' F#3',
    '   a',
    '    ',
    ' F#3',
    '  C4',
    ' F#3',
    ' F#3',
    '   a',
    '    ',
    ' F#3',
    '  C4',
]


@pytest.mark.parametrize(
    'width, per_line', [(40, 6), (25, 6), (24, 3), (13, 3), (12, 2), (9, 2), (8, 1), (4, 1)]
)
def test_a_grid_has_cells_of_equal_width_and_rows_of_equal_lines(terminal, width, per_line):
    tokenizer = Symbols('cells', NAMES, ' ')
    out = terminal(width)
    tokens = [0, 1, 2, 3, 1, 0, 0, 1, 2, 3, 1, 0]
    steps = [-1, -1, -1, -1, -1, 0, None, 1, 1, 1, 1, 1]
    drafts = [[] for _ in tokens]
    drafts[6] = [[0, 1]]
    Watch(tokenizer, out, columns=6)(tokens, steps, 0, certain(tokens), drafts)
    frame = out.frame()
    lines = [''.join(CELLS[i : i + per_line]) for i in range(0, 12, per_line)]
    assert plain(frame)[:-1] == lines
    assert painted(7, '  C4') in frame
    assert painted(2, ' F#3') in frame
