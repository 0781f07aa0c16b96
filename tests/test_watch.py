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
    """The time, which passes when `seconds` is changed."""
    clock = SimpleNamespace(seconds=100.0)
    watch_time = SimpleNamespace(perf_counter=lambda: clock.seconds)
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


def test_a_fast_model_shows_20_frames_a_second_and_the_end(terminal, clock):
    out = terminal()
    watch = Watch(Bytes(), out)
    text = [ord('a')] * 40
    shown = []
    for step in range(40):
        clock.seconds += 0.02
        watch(text, [*range(step + 1)] + [None] * (39 - step), step, certain(text))
        if out.frame():
            shown.append(step)
    assert shown == [*range(0, 39, 3), 39]


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
# grids

NAMES = ['C4', 'F#3', 'a', '']


def test_a_grid_has_a_line_for_each_row_and_cells_of_equal_width(terminal):
    out = terminal(40)
    tokens = [0, 1, 2, 3, 1, 0]
    Watch(Symbols('cells', NAMES, ' '), out, columns=3)(
        tokens, [-1, -1, -1, -1, 0, None], 0, certain(tokens)
    )
    frame = out.frame()
    assert plain(frame)[:-1] == ['  C4 F#3   a', '     F#3   ·']
    assert painted(7, ' F#3') in frame
