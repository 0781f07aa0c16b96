"""The terminal's view of a generation."""
import io
import re

from anyorder.watch import Watch, visible
from data.tokenizers import Bytes


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_watch_redraws_in_80_columns(monkeypatch):
    monkeypatch.setenv('COLUMNS', '80')
    monkeypatch.setenv('LINES', '24')
    out, tokens = Terminal(), list(b'ab\ncd' + b'x' * 120)
    watch = Watch(Bytes(), out)
    watch(tokens, [-1, 0, -1, None, 1] + [None] * 120, 1)
    first = out.getvalue()
    lines = re.sub(r'\x1b\[[0-9]*[mFJ]', '', first).splitlines()
    assert lines == ['ab', '·d' + '·' * 77, '·' * 43] and '\x1b[7md\x1b[0m' in first and first.count('\x1b[7m') == 1
    watch(tokens, [-1, 0, -1, 2, 1] + [2] * 120, 2)
    assert out.getvalue()[len(first):].startswith('\x1b[3F\x1b[J')   # back over the three lines
    silent = io.StringIO()
    Watch(Bytes(), silent)(tokens, [0] * 125, 0)
    assert silent.getvalue() == ''


def test_watch_counts_wide_letters_twice_and_spaces_of_all_kinds_once():
    watch = Watch(Bytes())

    def lines(text, width):
        tokens = list(text.encode())
        return watch.lines(tokens, [-1] * len(tokens), 1, width)
    assert lines('漢字かなab', 5) == ['漢字', 'かなa', 'b'] and lines('e\u0301' * 3, 3) == ['e\u0301' * 3]
    assert lines('a\tb\u3000c\xa0\x07d', 9) == ['a b c d']


def test_watch_shows_what_is_new_of_a_text_that_is_higher_than_the_terminal(monkeypatch):
    monkeypatch.setenv('COLUMNS', '21')
    monkeypatch.setenv('LINES', '5')
    out, tokens = Terminal(), [ord('a') + i // 20 for i in range(200)]   # ten lines, of which three fit
    watch = Watch(Bytes(), out)
    for step, place in enumerate((0, 199, 100, 90, 0)):
        before = len(out.getvalue())
        watch(tokens, [step if i == place else -1 for i in range(200)], step)
        shown = out.getvalue()[before:]
        assert '\x1b[7m' in shown and len(shown.splitlines()) == 3
    watch.top = 7
    before = len(out.getvalue())
    watch([ord('a')] * 80, [-1] * 80, 9)   # another text, of four lines, with nothing new
    assert watch.top == 1 and out.getvalue()[before:].count('a') == 60
    assert [chr(c) for c in b'abc'] == [line[-1] for line in re.sub(r'\x1b\[[0-9]*[mFJ]', '', shown).splitlines()]


def test_nothing_written_controls_a_terminal():
    assert visible('a\x1b[2J\tb\n\0\r\x9b\u0439') == 'a\\x1b[2J\tb\n\\x00\\x0d\\x9b\u0439'
