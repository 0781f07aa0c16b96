"""The replay of a generation: what it says of an order, in the terminal and on the page."""
import io
import itertools
import json
import re

import pytest

from anyorder.replay import Watch, kendall_tau, token_texts, visible, write_page
from data.tokenizers import Bytes


def test_kendall_tau_by_counting_pairs():
    for steps in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [0, 0, 1, 2, 1], [5, 2, 2, 9, 0, 1]):
        pairs = list(itertools.combinations(steps, 2))
        up, down = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
        assert kendall_tau(steps) == pytest.approx((up - down) / ((up + down) * len(pairs)) ** 0.5)   # no two positions tie
    assert kendall_tau([0, 1, 2]) == 1 and kendall_tau([2, 1, 0]) == -1 and kendall_tau([0, 0]) is None and kendall_tau([]) is None


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


def test_a_letter_of_several_tokens_stands_at_its_last():
    tokens = list('a\u0439\u20ac'.encode()) + [0x80, *b'b']
    assert token_texts(tokens, Bytes()) == ['a', '', '\u0439', '', '', '\u20ac', '\ufffd', 'b']
    there = [i != 4 for i in range(8)]
    assert token_texts(tokens, Bytes(), there) == ['a', '', '\u0439', '\ufffd', '\ufffd', '', '\ufffd\ufffd', 'b']


def test_nothing_written_controls_a_terminal():
    assert visible('a\x1b[2J\tb\n\0\r\x9b\u0439') == 'a\\x1b[2J\tb\n\\x00\\x0d\\x9b\u0439'


def test_the_page_is_whole_and_needs_no_network(tmp_path):
    tokens = list('a</script><b>"é'.encode())
    sample = {'tokens': tokens, 'step': [-1] + list(range(len(tokens) - 1)), 'logprob': [0.0] + [-1.0] * (len(tokens) - 1)}
    write_page(tmp_path / 'page.html', [sample, sample], Bytes(), 'a title')
    page = (tmp_path / 'page.html').read_text()
    assert not re.search(r'(https?:)?//\w', page) and 'src=' not in page and page.count('</script>') == 2
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*)</script>', page)[1])
    row = data['samples'][0]
    assert data['title'] == 'a title' and len(data['samples']) == 2 and ''.join(row['text'][:14]) == 'a</script><b>"'
    assert row['step'] == sample['step'] and row['p'][1] == 0.368 and row['tau'] == 1 and row['drawn'] == len(tokens) - 1
