"""The replay of a generation: what it says of an order, and the page."""
import itertools
import json
import re

import pytest

from anyorder.replay import kendall_tau, token_texts, write_page
from data.tokenizers import Bytes


def test_kendall_tau_by_counting_pairs():
    for steps in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [0, 0, 1, 2, 1], [5, 2, 2, 9, 0, 1]):
        pairs = list(itertools.combinations(steps, 2))
        up, down = sum(a < b for a, b in pairs), sum(a > b for a, b in pairs)
        assert kendall_tau(steps) == pytest.approx((up - down) / ((up + down) * len(pairs)) ** 0.5)   # no two positions tie
    assert kendall_tau([0, 1, 2]) == 1 and kendall_tau([2, 1, 0]) == -1 and kendall_tau([0, 0]) is None and kendall_tau([]) is None


def test_a_letter_of_several_tokens_stands_at_its_last():
    tokens = list('a\u0439\u20ac'.encode()) + [0x80, *b'b']
    assert token_texts(tokens, Bytes()) == ['a', '', '\u0439', '', '', '\u20ac', '\ufffd', 'b']
    there = [i != 4 for i in range(8)]
    assert token_texts(tokens, Bytes(), there) == ['a', '', '\u0439', '\ufffd', '\ufffd', '', '\ufffd\ufffd', 'b']


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
