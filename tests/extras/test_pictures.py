"""Pictures of runs: what a line is, where it ends, a picture that is one; the page that replays how
a text was written, and the terminal meanwhile."""

import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import one_line

import anyorder.extras.pictures.__main__ as pictures
from anyorder.extras.pictures.replay import kendall_tau, write_replay
from anyorder.extras.pictures.watch import Watch, has_colours, lay_out
from anyorder.tokens.tokenizer import Bytes, Symbols
from configurator import configure

LOG = """{"iter": 10, "tokens": 600, "flops": 3e15, "loss": %s}
{"iter": 30, "tokens": 1800, "flops": 9e15, "loss": %s, "val_any": 2.5}
"""
FILES = {
    'a_seed1/log.jsonl': LOG % (3.0, 2.0) + '{"tokens": 2400, "loss": 9.0}\n{"iter": 40, "lo',
    'a_seed22/log.jsonl': '{"iter": 10, "tokens": 50}\n' + LOG % (4.0, 3.0),
    'b/log.jsonl': LOG % (5.0, 4.0),
    'old/b/log.jsonl': LOG % (7.0, 6.0),
    'l2r.jsonl': '{"tokens": 2, "val_l2r": 1.0}\n{"tokens": 1, "val_l2r": 3.0}\n',
    'ways.json': """{"config": {}, "results": [
        {"way": "fixed", "passes": 8, "nats": 2.0},
        {"way": "fixed", "passes": 2, "nats": 3.0},
        {"way": "margin", "passes": 8, "nats": 1.0},
        {"way": "margin", "passes": 4, "nats": null},
        {"way": "lossless", "passes": null, "nats": 4.0},
        {"way": "lossless", "passes": [4, 4], "nats": 4.0}]}""",
    'solved.json': """{"results": [
        {"order": "random", "solved": 0.5},
        {"order": "margin", "solved": 1.0}]}""",
    'cut.json': '{"results": [',
}


def plot(words):
    """Run the command in a folder with FILES."""
    for name, text in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    pictures.main(configure(vars(pictures), words.split()))


ENDS = {  # a line by its name, mean, error, number of runs and place
    'b b/log.jsonl ./b/ --y=loss': ['b 4.0000 1 1800'],
    'b --x=iter --y=val_any': ['b 2.5000 1 30'],
    'b old/b --y=loss --labels=new,old': ['new 4.0000 1 1800', 'old 6.0000 1 1800'],
    'b --x=flops --y=loss': ['b 4.0000 1 9000000000000000.0'],
    'a_seed1 a_seed22 b --y=loss --labels=_1,$x^$': [
        '_1 2.5000 0.5000 2 1800',
        '$x^$ 4.0000 1 1800',
    ],
    'b l2r.jsonl --y=val_own': ['b 2.5000 1 1800', 'l2r 1.0000 1 2'],
    'ways.json --x=passes --y=nats --by=way': ['fixed 2.0000 1 8', 'margin 1.0000 1 8'],
    'solved.json --x=order --y=solved': ['solved 0.5000 1 random', 'solved 1.0000 1 margin'],
}


@pytest.mark.parametrize('words, ends', ENDS.items())
def test_a_line_is_a_run_and_ends_in_the_table(capsys, words, ends):
    """The mean is of what all runs have. A picture names its lines, and is written through a
    link."""
    Path('b').mkdir()
    Path('loss.svg').symlink_to('b/x.svg')
    plot(f'{words} --out=loss.svg')
    lines = capsys.readouterr().out.splitlines()
    assert [' '.join(line.split()) for line in lines[1:-2]] == ends
    names = [*{end.split()[0]: None for end in ends}]
    texts = re.findall('<!-- (.*) -->', Path('b/x.svg').read_text())
    assert texts[-len(names) :] == names
    assert ('training FLOPs' in texts) == ('flops' in words)


BAD = {
    'cut.json': 'cut.json cannot be read',
    'b --y=val_l2r': 'they have: flops, iter, loss',
    'ways.json': 'they have: nats, passes, way',
    'ways.json --x=passes --y=way': 'no run has',
    'b --x=iter --y=loss --by=size': '--by=size; they have: flops',
    'ways.json --x=passes --y=nats': 'several nats at passes 8: --by= one or more of way',
    '': 'name the runs',
    'b --labels=x,y': 'must name 1: .*b; got x,y',
    'b old/b': 'must name 2: .*b, .*old/b; got',
    'b --out=x.jpg': 'x.jpg',
    'b --out=none/x.png': 'none/x.png',
}


@pytest.mark.parametrize('words', BAD)
def test_wrong_input_is_one_line(words):
    with one_line(BAD[words]):
        plot(words)


# ---- the replay


TAUS = {(0, 1, 2): 1, (2, 1, 0): -1, (1, 0, 3, 2): 1 / 3, (0, 0): None, (): None}
TAUS[0, 0, 1, 2, 1] = (7 - 1) / (8 * 10) ** 0.5  # of ten pairs seven rise, one falls


@pytest.mark.parametrize('steps', TAUS)
def test_kendall_tau_by_hand(steps):
    assert kendall_tau(steps) == (TAUS[steps] and pytest.approx(TAUS[steps]))


def sample_of(text, *steps):
    """Token i has probability 1 / (i + 1); steps of -1 are known."""
    logprob = [0.0 if step < 0 else -math.log(i + 1) for i, step in enumerate(steps)]
    return {'tokens': [*text.encode()], 'step': [*steps], 'logprob': logprob}


def page(samples, title='x'):
    """Write a page. Return (its text, what it holds)."""
    write_replay('p.html', samples, Bytes(), title)
    text = Path('p.html').read_text(encoding='utf-8')
    data = '<script id="data" type="application/json">(.*)</script>'
    return text, json.loads(re.search(data, text)[1])


def test_the_page_is_whole_and_needs_no_network():
    sample = sample_of('a</script><b>"é', -1, *range(15))
    text, data = page([sample, sample], 'a </script> title\nin 15 steps\nof one')
    assert not re.search(r'(https?:)?//\w|src=', text)
    assert text.count('</script>') == 2
    assert [data['title'], *data['details']] == ['a </script> title', 'in 15 steps', 'of one']
    first, _ = data['samples']
    assert ''.join(first['text']) == 'a</script><b>"é'
    assert first['rank'] == [*range(16)]
    assert first['p'][:4] == [1, 0.5, 0.333, 0.25]


def test_ranks_count_the_steps_in_which_something_was_written():
    """As the steps that wrote only what a stop has cut do not count."""
    (row,) = page([sample_of('abcde', 7, -1, 3, 7, 9)])[1]['samples']
    assert row['rank'] == [2, 0, 1, 2, 3]
    nats = math.log(1 * 3 * 4 * 5) / 4  # over the four that were drawn
    tau = (4 - 1) / (5 * 6) ** 0.5  # four of six pairs rise, one ties
    said = ['4 tokens in 3 steps', f'{nats:.2f} nats a token', f"Kendall's tau {tau:.2f}"]
    assert row['facts'] == said


def test_beside_a_sample_is_the_next_with_the_same_known_tokens():
    samples = [sample_of('abc', -1, 0, 1), sample_of('xbc', -1, 0, 1), sample_of('ayz', -1, 1, 0)]
    samples += [sample_of('abc', 0, -1, 1), sample_of('aaa', -1, 0, 0)]
    rows = page(samples)[1]['samples']
    assert [row['beside'] for row in rows] == [2, None, 4, None, None]


# ---- the terminal


def plain(text):
    return re.sub(r'\x1b\[[0-9;]*[mFJ]', '', text).splitlines()


# of the tokens of a frame: blank, known, or the step that wrote it
MARKS = '.-0123456789abcdefghijklmnopqrstuvwxyz'


@pytest.fixture
def watched(monkeypatch):
    """watched(tokenizer, tokens, frames, columns=..., TERM=...) shows a text by frames, each of
    which has MARKS of its tokens, some seconds apart. Returns what was written of each, with its
    escapes."""

    def show(tokenizer, tokens, frames, seconds=1.0, columns=0, logprob=200 * [0.0], **environ):
        for name in ('TERM', 'COLORTERM', 'NO_COLOR', 'COLUMNS', 'LINES'):
            monkeypatch.setenv(name, str(environ.get(name, '')))
        watch = Watch(tokenizer, columns)
        found = []
        for n, marks in enumerate(frames):
            monkeypatch.setattr('time.perf_counter', lambda now=100 + n * seconds: now)
            watch.out = io.StringIO()
            watch.out.isatty = lambda: True
            there = [-1 if mark == '.' else token for mark, token in zip(marks, tokens)]
            watch(there, [MARKS.index(mark) - 2 for mark in marks], logprob)
            found.append(watch.out.getvalue())
        return found

    return show


TEXT = [*b'ab\ncd' + b'x' * 120]


def test_a_frame_stands_in_place_of_the_last_one(watched):
    """In 80 columns; and what has nothing new, or is another text, is shown as new."""
    frames = '-0-.1' + 120 * '.', '-0-21' + 120 * '2', '-0-0'
    first, second, third = watched(Bytes(), TEXT, frames)
    assert plain(first) == ['ab↵', '·d' + '·' * 77, '·' * 43, 'step 2 · 2 of 123 tokens']
    assert first.startswith('\x1b[J')
    assert second.startswith('\x1b[4F\x1b[J')  # back over the four lines
    assert 'step 3 · 123 of 123 tokens' in second
    new = [re.findall(r'\x1b\[7m(.*?)\x1b\[0m', frame)[:2] for frame in (first, second, third)]
    assert new == [['b', 'd'], ['c', 'x' * 77], ['b', 'c']]


def test_tokens_are_shaded_by_confidence_where_the_terminal_has_colours(watched):
    logprob = [0.0, -9.0, *map(math.log, (0.3, 0.5, 0.7)), 0.0, 0.0]
    frames = '-01234.', '-012345'
    _, last = watched(Bytes(), b'abcdefg', frames, logprob=logprob, TERM='xterm-256color')
    colours = re.findall(r'48;5;(\d+)m(\w+)\x1b\[0m', last)
    assert colours == [*zip(['189', '153', '117', '75', '33', '214'], 'bcdefg')]
    assert has_colours({'TERM': 'x', 'COLORTERM': '24bit'})
    assert not has_colours({'TERM': 'xterm-256color', 'NO_COLOR': '1'})


def test_a_fast_model_shows_20_frames_a_second_and_the_end(watched):
    frames = [MARKS[2 : n + 2].ljust(35, '.') for n in range(1, 36)]
    shown = watched(Bytes(), TEXT[5:], frames, seconds=0.02)
    assert [n for n, frame in enumerate(shown) if frame] == [*range(0, 34, 3), 34]


def test_a_text_that_is_too_high_is_shown_from_what_is_new(watched):
    text = np.repeat([*b'abcdefghij'], 20)  # ten lines; three fit
    places = enumerate((0, 199, 100, 90, 0, 99))
    frames = [n * '-' + str(step) + (199 - n) * '-' for step, n in places]
    shown = [*map(plain, watched(Bytes(), text, frames, COLUMNS=21, LINES=6))]
    assert [lines[0] for lines in shown] == [letter * 20 for letter in 'ahfeac']
    assert shown[4][1:] == ['b' * 20, 'c' * 20, 'step 5 · 1 of 1 toke']


def test_a_grid_has_a_line_for_each_row_and_cells_of_equal_width(watched):
    cells = Symbols('cells', ['C4', 'F#3', 'a', ''], ' ')
    (frame,) = watched(cells, [0, 1, 2, 3, 1, 0], ['----0.'], columns=3, COLUMNS=40)
    assert plain(frame)[:-1] == ['  C4 F#3   a', '     F#3   ·']
    assert '\x1b[7m F#3\x1b[0m' in frame


LINES = {  # texts, and the lines that they take
    'ab|cd': 'ab|c;d',
    'a\nb|c': 'a↵;b|c',
    '\n\n|a': '↵;↵|;a',
    '中中|a': '中;中|a',
    'e\u0301\t\x07b|': 'e\u0301 b|',
}


@pytest.mark.parametrize('texts, lines', LINES.items())
def test_texts_stand_on_lines_of_three_columns(texts, lines):
    """A letter may take two columns or none, and what cannot be printed is left out."""
    found = ''
    for line, number, letter in lay_out(texts.split('|'), 3):
        found += '|' * (number - found.count('|')) + ';' * (line - found.count(';')) + letter
    assert found == lines.rstrip('|')
