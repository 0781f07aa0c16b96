"""The replay of a generation: what it says of an order, and the page."""

import itertools
import json
import math
import re

import pytest

from anyorder.extras.pictures.replay import kendall_tau, write_replay, written_in_words
from anyorder.tokens.shown import lay_out, token_texts
from anyorder.tokens.tokenizers import Bytes

# --------------------------------------------------------------------------------------------------
# texts and orders


def test_a_letter_of_several_tokens_stands_at_its_last():
    tokens = [*'a\u0439\u20ac'.encode(), 0x80, *b'b']
    texts = ['a', '', '\u0439', '', '', '\u20ac', '\ufffd', 'b']
    assert token_texts(tokens, Bytes()) == texts
    tokens[4] = None
    texts = ['a', '', '\u0439', '\ufffd', '·', '', '\ufffd\ufffd', 'b']
    assert token_texts(tokens, Bytes()) == texts


@pytest.mark.parametrize(
    'texts, width, places',
    [
        (['ab', ' c'], 4, [[(0, 0, 'ab')], [(0, 2, ' c')]]),
        (['d\ne', ''], 4, [[(0, 0, 'd'), (0, 1, '↵'), (1, 0, 'e')], []]),
        (['abc', 'fgh'], 4, [[(0, 0, 'abc')], [(0, 3, 'f'), (1, 0, 'gh')]]),
        # no empty line between
        (['abcd\n', 'e'], 4, [[(0, 0, 'abcd'), (0, 4, '↵')], [(1, 0, 'e')]]),
        (['漢字か'], 5, [[(0, 0, '漢字'), (1, 0, 'か')]]),  # two columns each
        (['a\n', '\n'], 4, [[(0, 0, 'a'), (0, 1, '↵')], [(1, 0, '↵')]]),
        # an accent has no column
        (['e\u0301' * 3, 'x'], 3, [[(0, 0, 'e\u0301' * 3)], [(1, 0, 'x')]]),
        (['a\tb\u3000c\xa0\x07d'], 9, [[(0, 0, 'a b c d')]]),
    ],
)
def test_texts_stand_on_lines_of_a_width(texts, width, places):
    assert lay_out(texts, width) == places


@pytest.mark.parametrize(
    'steps', [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [0, 0, 1, 2, 1], [5, 2, 2, 9, 0, 1]]
)
def test_kendall_tau_by_counting_pairs(steps):
    pairs = list(itertools.combinations(steps, 2))
    up = sum(a < b for a, b in pairs)
    down = sum(a > b for a, b in pairs)
    tau = (up - down) / ((up + down) * len(pairs)) ** 0.5  # no two positions tie
    assert kendall_tau(steps) == pytest.approx(tau)


def test_kendall_tau_of_a_direction_and_of_a_single_step():
    assert kendall_tau([0, 1, 2]) == 1
    assert kendall_tau([2, 1, 0]) == -1
    assert kendall_tau([0, 0]) is None
    assert kendall_tau([]) is None


def test_an_order_is_named_in_words():
    assert written_in_words('l2r') == 'Written from left to right'
    assert written_in_words('blocks') == 'Written in the order blocks'


# --------------------------------------------------------------------------------------------------
# the page

BYTES = Bytes()
DATA = '<script id="data" type="application/json">'


def sample_of(text, steps, **more):
    """Token i has probability 1 / (i + 1); steps of -1 are known."""
    logprob = []
    for i, step in enumerate(steps):
        logprob.append(0.0 if step < 0 else -math.log(i + 1))
    return {'tokens': [*text.encode()], 'step': steps, 'logprob': logprob} | more


@pytest.fixture
def page(tmp_path):
    """page(samples) writes a page and returns (its text, what it holds)."""

    def write(samples, tokenizer=BYTES, title='x', *grid):
        path = tmp_path / 'p.html'
        write_replay(path, samples, tokenizer, title, *grid)
        text = path.read_text(encoding='utf-8')
        return text, json.loads(re.search(f'{DATA}(.*)</script>', text)[1])

    return write


def test_the_page_is_whole_and_needs_no_network(page):
    sample = sample_of('a</script><b>"é', [-1, *range(15)])
    title = 'a </script> title\nin 15 steps\nof one'
    text, data = page([sample, sample], Bytes(), title)
    assert not re.search(r'(https?:)?//\w', text)
    assert 'src=' not in text
    assert text.count('</script>') == 2
    assert data['title'] == 'a </script> title'
    assert data['details'] == ['in 15 steps', 'of one']
    assert data['columns'] == 0
    first, _ = data['samples']
    assert ''.join(first['text']) == 'a</script><b>"é'
    assert first['rank'] == [*range(16)]
    assert first['p'][:4] == [1, 0.5, 0.333, 0.25]


def test_ranks_count_the_steps_in_which_something_was_written(page):
    _, data = page([sample_of('abcde', [7, -1, 3, 7, 9])])
    (row,) = data['samples']
    assert row['rank'] == [2, 0, 1, 2, 3]
    assert row['n_steps'] == 3
    nats = math.log(1 * 3 * 4 * 5) / 4  # over the four that were drawn
    tau = (4 - 1) / (5 * 6) ** 0.5  # four of six pairs rise, one ties
    said = ['4 tokens in 3 steps', f'{nats:.2f} nats a token', f"Kendall's tau {tau:.2f}"]
    assert row['facts'] == said


def test_beside_a_sample_is_the_next_with_the_same_known_tokens(page):
    samples = [
        sample_of('abc', [-1, 0, 1]),
        sample_of('xbc', [-1, 0, 1]),
        sample_of('ayz', [-1, 1, 0]),
        sample_of('abc', [0, -1, 1]),
        sample_of('aaa', [-1, 0, 0]),
    ]
    _, data = page(samples)
    assert [row['beside'] for row in data['samples']] == [2, None, 4, None, None]


PLAIN = sample_of('abcdef', [3, 0, -1, 1, 2, 0])


def test_a_step_that_wrote_only_what_a_stop_cut_does_not_count(page):
    _, whole = page([PLAIN])
    _, cut = page([PLAIN | {'step': [4, 0, -1, 2, 3, 0]}])  # step 1 wrote behind a stop
    assert cut == whole
