"""The terminal's view of a generation."""

import io
import math
import re
from types import SimpleNamespace

import pytest

from anyorder.pictures.watch import Watch, has_colours, visible
from anyorder.tokens.tokenizers import Bytes


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


@pytest.fixture
def clock(monkeypatch):
    """The time, which passes when somebody sleeps and when `seconds` is changed; `slept` lists the naps."""
    clock = SimpleNamespace(seconds=100.0, slept=[])

    def sleep(seconds):
        clock.slept.append(seconds)
        clock.seconds += seconds

    watch_time = SimpleNamespace(perf_counter=lambda: clock.seconds, sleep=sleep)
    monkeypatch.setattr('anyorder.pictures.watch.time', watch_time)
    return clock


@pytest.fixture
def terminal(monkeypatch, clock):
    """terminal(columns, lines, TERM=...) is a terminal of that size; by default without colours."""

    def make(columns=80, lines=24, **environ):
        for name in ('TERM', 'COLORTERM', 'NO_COLOR'):
            monkeypatch.delenv(name, raising=False)
        for name, value in {'COLUMNS': columns, 'LINES': lines, **environ}.items():
            monkeypatch.setenv(name, str(value))
        return Terminal()

    return make


def test_nothing_written_controls_a_terminal():
    assert visible('a\x1b[2J\tb\n\0\r\x9b\u0439') == 'a\\x1b[2J\tb\n\\x00\\x0d\\x9b\u0439'


def test_watch_redraws_in_80_columns_and_counts(terminal):
    out, tokens = terminal(), list(b'ab\ncd' + b'x' * 120)
    watch = Watch(Bytes(), out)
    watch(tokens, [-1, 0, -1, None, 1] + [None] * 120, 1, [0.0] * 125)
    first = out.frame()
    assert plain(first) == ['ab↵', '·d' + '·' * 77, '·' * 43, 'step 2 · 2 of 123 tokens']
    assert '\x1b[7mb\x1b[0m' in first and '\x1b[7md\x1b[0m' in first and first.count('\x1b[7m') == 2
    watch(tokens, [-1, 0, -1, 2, 1] + [2] * 120, 2, [0.0] * 125)
    second = out.frame()
    assert second.startswith('\x1b[4F\x1b[J')  # back over the four lines
    assert (
        '\x1b[7mb' not in second
        and '\x1b[7mc\x1b[0md\x1b[7mx' in second
        and 'step 3 · 123 of 123 tokens' in second
    )
    silent = io.StringIO()
    Watch(Bytes(), silent)(tokens, [0] * 125, 0, [0.0] * 125)
    assert silent.getvalue() == ''


def test_watch_shades_by_confidence_where_the_terminal_has_colours(terminal):
    steps, logprob = [-1, 0, 1, 2, 3], [0.0, -9.0, math.log(0.5), 0.0, 0.0]
    for environ in ({'TERM': 'xterm-256color'}, {'TERM': 'xterm', 'COLORTERM': 'truecolor'}):
        out = terminal(**environ)
        watch = Watch(Bytes(), out)
        watch(list(b'abcde'), [-1, 0, 1, 2, None], 2, logprob)
        out.frame()
        watch(list(b'abcde'), steps, 3, logprob)
        colours = re.findall(r'48;5;(\d+)m(\w+)\x1b\[0m', out.frame())
        assert colours == [('189', 'b'), ('117', 'c'), ('33', 'd'), ('214', 'e')]
    for environ in ({'TERM': 'xterm-256color', 'NO_COLOR': '1'}, {'TERM': 'dumb'}, {}):
        assert not has_colours(environ)


def test_watch_lets_an_eye_follow_a_fast_model(terminal, clock):
    for n, n_steps, seconds in ((16, 16, 1.6), (400, 400, 4.0), (400, 20, 4.0)):
        out = terminal()
        watch = Watch(Bytes(), out)
        began, at_once, written, frames = clock.seconds, n // n_steps, set(), 0
        for step in range(n_steps):
            steps = [i // at_once if i // at_once <= step else None for i in range(n)]
            watch([ord('a')] * n, steps, step, [0.0] * n)
            frame = out.frame()
            frames += bool(frame)
            written |= {int(i) for i in re.findall(r'step (\d+) ·', frame)}
        assert clock.seconds - began == pytest.approx(seconds) == pytest.approx(watch.waited)
        assert (
            n_steps in written and min(n_steps, 20) <= frames <= seconds * 20 + 2
        )  # 20 a second, and the end


def test_watch_does_not_slow_a_slow_model_and_begins_anew_with_every_text(terminal, clock):
    watch = Watch(Bytes(), terminal())
    for _ in range(2):
        for step in range(10):
            clock.seconds += 0.5
            watch(
                list(b'abcdefghij'), [i if i <= step else None for i in range(10)], step, [0.0] * 10
            )
    assert sum(clock.slept) == pytest.approx(0.2) and watch.waited == pytest.approx(
        0.2
    )  # the first token of each
    assert watch.shown == 9


def test_watch_shows_what_is_new_of_a_text_that_is_higher_than_the_terminal(terminal, clock):
    out, tokens = terminal(21, 6), [ord('a') + i // 20 for i in range(200)]  # ten lines; three fit
    watch = Watch(Bytes(), out)
    for step, place in enumerate((0, 199, 100, 90, 0)):
        clock.seconds += 1
        watch(tokens, [step if i == place else -1 for i in range(200)], step, [0.0] * 200)
        shown = out.frame()
        assert '\x1b[7m' in shown and len(plain(shown)) == 4
    assert plain(shown) == ['a' * 20, 'b' * 20, 'c' * 20, 'step 5 · 1 of 1 toke']
    watch(tokens, [5 if i == 199 else -1 for i in range(200)], 5, [0.0] * 200)
    out.frame()
    watch(
        [ord('a')] * 80, [-1] * 80, 9, [0.0] * 80
    )  # another text of four lines, nothing new: its end
    assert [len(line) for line in plain(out.frame())[:-1]] == [20, 20, 20]


@pytest.mark.parametrize(
    'environ, new, old',
    [({}, '7', ''), ({'TERM': 'xterm-256color'}, '38;5;16;48;5;214', '38;5;16;48;5;33')],
)
def test_drafts_are_faint_and_struck_through_for_one_frame(terminal, clock, environ, new, old):
    def painted(style, letters):
        return f'\x1b[{style}m{letters}\x1b[0m' if style else letters

    drafts = [
        [],
        [[0, 'x'], [1, 'b']],
        [[0, 'c'], [2, 'y']],
        [[0, 'q']],
        [[1, '\n']],
        [[1, 'z'], [2, 'f']],
    ]
    frames = [
        (
            [-1, None, None, None, None, None],
            'a' + painted('2', 'xcq') + '··',
            '0 of 5 tokens · 0.0 a pass',
        ),
        (
            [-1, None, None, 1, None, None],
            'a'
            + painted('2;9', 'x')
            + painted('2', 'c')
            + painted(f'{new};9', 'q')
            + painted('2', '↵z'),
            '1 of 5 tokens · 0.5 a pass',
        ),
        (
            [-1, 2, None, 1, None, None],
            'a'
            + painted(new, 'b')
            + painted('2;9', 'c')
            + painted(old, 'd')
            + painted('2', '↵')
            + painted('2;9', 'z'),
            '2 of 5 tokens · 0.7 a pass',
        ),
        (
            [-1, 2, 3, 1, 3, 3],
            'a'
            + painted(old, 'b')
            + painted(new, 'e')
            + painted(old, 'd')  # the last one
            + painted(new, '!f'),
            '5 of 5 tokens · 1.2 a pass',
        ),
    ]
    out = terminal(**environ)
    watch = Watch(Bytes(), out)
    for step, (steps, text, count) in enumerate(frames):
        clock.seconds += 1
        until_now = [
            [(since, ord(x)) for since, x in history if since <= step] for history in drafts
        ]
        watch(list(b'abed!f'), steps, step, [0.0] * 6, until_now)
        assert out.frame().split('\x1b[J')[1].splitlines() == [text, f'pass {step + 1} · {count}']


@pytest.mark.parametrize(
    'width, per_line', [(40, 6), (25, 6), (24, 3), (13, 3), (12, 2), (9, 2), (8, 1), (4, 1)]
)
def test_a_grid_has_cells_of_equal_width_and_rows_of_equal_lines(terminal, clock, width, per_line):
    names = ['C4', 'F#3', 'a', '']
    tokenizer = SimpleNamespace(n_tokens=4, decode=lambda ids: ' '.join(names[i] for i in ids))
    out = terminal(width)
    watch = Watch(tokenizer, out, 6)
    tokens, steps = [0, 1, 2, 3, 1, 0] * 2, [-1] * 5 + [0, None] + [1] * 5
    watch(tokens, steps, 0, [0.0] * 12, [[]] * 6 + [[[0, 1]]] + [[]] * 5)
    cells = [
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
    shown = out.frame()
    assert plain(shown)[:-1] == [''.join(cells[i : i + per_line]) for i in range(0, 12, per_line)]
    assert '\x1b[7m  C4\x1b[0m' in shown and '\x1b[2m F#3\x1b[0m' in shown
