"""Blanks of unknown length: probabilities by summing over all texts, the text that is then written,
wrong input."""

import itertools
import json
import math
from collections import Counter

import pytest
import torch
from conftest import make_model, one_line
from test_own_law import NETWORKS

from anyorder.fast import freeze
from anyorder.likelihood.lengths import NEAR, Lengths
from anyorder.tokens.prompts import Template, parse_prompt
from anyorder.tokens.tokenizers import Bytes
from anyorder.writer import Writer

ONE = Template(
    [([0, 2], 'known'), ((1, 3), 'unknown'), ([1], 'known'), (1, 'blank'), ([2], 'known')], 9
)
TWO = Template(
    [
        ([2], 'known'),
        ((1, 2), 'unknown'),
        ([1, 0], 'known'),
        ((1, 3), 'unknown'),
        ([1], 'known'),
        (0, 'rest'),
        ([2], 'known'),
    ],
    11,
)


def shares(p):
    """Probabilities that are in proportion to p, as a test compares them."""
    return pytest.approx([x / sum(p) for x in p], rel=1e-8, abs=1e-10)


def by_all_texts(model, left, n, right):
    """p(right | left, gap of n): the sum over all texts of the blanks. None is a blank too."""
    row = [*left, *[None] * n, *right]
    blanks = [p for p, token in enumerate(row) if token is None]
    start = len(left)
    given = [p for p, token in enumerate(left) if token is not None]
    order = given + [p for p in range(start + n, len(row)) if row[p] is not None]
    order += sorted(blanks, key=lambda p: not start <= p < start + n)
    texts = torch.tensor(list(itertools.product(range(3), repeat=len(blanks))))
    idx = torch.tensor([token or 0 for token in row]).repeat(len(texts), 1)
    idx[:, blanks] = texts
    order = torch.tensor(order).expand(len(idx), -1)
    logp = 0.0
    for d in range(len(given), len(row)):  # a pass for each visit, as slow and as plain as can be
        logits = model.predict(idx, order, d, 1)[:, 0, :3]
        token = idx.gather(1, order[:, d : d + 1])
        logp += logits.log_softmax(-1).gather(1, token)[:, 0]
    return math.exp(logp.logsumexp(0))


@pytest.mark.parametrize('network', NETWORKS)
def test_the_probabilities_of_lengths_are_sums_over_all_texts(network):
    """A blank between others, and two blanks, the second given the length of the first; and with a
    cache."""
    model = make_model(5, vocab_size=3, **NETWORKS[network])
    asked = [
        (ONE, (), [0, 2], [1, None, 2], [1, 2, 3]),
        (TWO, (), [2], [1, 0], [1, 2]),
        *((TWO, (m,), [2, *[None] * m, 1, 0], [1], [1, 2, 3]) for m in (1, 2)),
    ]
    for template, chosen, left, right, lengths in asked:
        p = [by_all_texts(model, left, n, right) for n in lengths]
        for one in (model, freeze(model)):
            n, found = Lengths().probabilities(one, template, chosen)
            assert n == lengths
            assert found.tolist() == shares(p)


@pytest.mark.parametrize('network', NETWORKS)
def test_the_likeliest_length_is_chosen_one_blank_after_the_other(network):
    model = make_model(5, vocab_size=3, **NETWORKS[network])
    law = Lengths()
    ((chosen, said),) = law.choose(model, [TWO], [0])
    for k, of_blank in enumerate(said):
        n, p = law.probabilities(model, TWO, chosen[:k])
        best = p.sort(descending=True)
        assert of_blank['length'] == chosen[k] == n[best.indices[0]]
        assert of_blank['p'] == best.values[0]
        if len(n) > 1:
            assert of_blank['runner_up'] == n[best.indices[1]]
            assert of_blank['p_runner_up'] == best.values[1]


@pytest.mark.slow
def test_lengths_are_drawn_by_their_probabilities_and_by_the_seed_of_the_row():
    model = make_model(5, vocab_size=3)
    law = Lengths('draw')
    found = list(law.choose(model, 2000 * [TWO], range(2000)))
    counts = Counter(lengths for lengths, _ in found)
    (_, first) = law.probabilities(model, TWO, ())
    for a, b in itertools.product((1, 2), (1, 2, 3)):
        p = float(first[a - 1] * law.probabilities(model, TWO, (a,))[1][b - 1])
        assert abs(counts[a, b] - 2000 * p) < 4 * math.sqrt(2000 * p) + 1
    assert len(counts) > 3
    assert list(law.choose(model, [TWO], [7])) == found[7:8]
    for _, said in found[:50]:
        assert all(of_blank['runner_up'] != of_blank['length'] for of_blank in said)


@pytest.mark.parametrize('network', ['decoder', 'encoder'])
def test_a_model_that_is_shorter_than_the_text_reads_around_the_blank(network):
    """7 positions: what is behind the longest gap, as far as there is room, and as much before it
    as is left."""
    model = make_model(5, block_size=7, vocab_size=3, **NETWORKS[network])
    for left, right, near, behind, lengths in (
        ([0, 1, 2, 2, 1], [2, 0, 1, 1, 2], [], [2, 0, 1, 1], [1, 2, 3]),
        ([0, 1, 2, 2, 1], [2, 0], [2, 1], [2, 0], [1, 2, 3]),
        ([0, 1], [2, 0], [], [2], [5, 6]),
    ):
        blank = (lengths[0], lengths[-1]), 'unknown'
        template = Template([(left, 'known'), blank, (right, 'known')], 20)
        _, p = Lengths().probabilities(model, template, ())
        want = [by_all_texts(model, near, n, behind) for n in lengths]
        assert p.tolist() == shares(want)


def test_the_nearest_tokens_behind_the_blank_are_read():
    model = make_model(5, block_size=40, vocab_size=3)
    right = [p * p % 3 for p in range(30)]

    def with_text_behind(n):
        pieces = [([0], 'known'), ((1, 3), 'unknown'), (right[:n], 'known')]
        return Lengths().probabilities(model, Template(pieces, 40), ())[1]

    fewer, p, *more = map(with_text_behind, (NEAR - 1, NEAR, NEAR + 1, 30))
    assert all(torch.allclose(p, other, atol=1e-12) for other in more)
    assert not torch.allclose(p, fewer, atol=1e-6)


@pytest.mark.parametrize(
    'how',
    [
        {'order': 'l2r'},
        {'order': 'margin', 'n_steps': 3},
        {'unmask': 'lossless'},
        {'length': 60, 'order': 'random', 'context': 8},
        {'length': 40, 'stop': 'e'},
    ],
)
def test_a_text_is_written_as_with_the_lengths_that_were_chosen(ckpt, how):
    writer = Writer(ckpt)
    prompt = 'a[[?]]bc[[2-5]] d[[3]]e'
    if 'length' in how:
        prompt += '[[..]]'
    texts = writer.infill(prompt, n=4, blank_length='draw', seed=4, **how)
    assert len({text.sample['lengths'][0]['length'] for text in texts}) > 1
    for r, text in enumerate(texts):
        first, second = (said['length'] for said in text.sample['lengths'])
        known = prompt.replace('[[?]]', f'[[{first}]]').replace('[[2-5]]', f'[[{second}]]')
        known = writer.infill(known, seed=4 + r, **how)
        assert known == text
        assert math.isclose(known.logprob, text.logprob, abs_tol=1e-3)
        assert 2 <= second <= 5
    slow = Writer(ckpt, use_cache=False).infill(prompt, n=4, blank_length='draw', seed=4, **how)
    assert slow == texts
    for one, other in zip(slow, texts):
        p = other.sample['lengths'][0]['p']
        assert one.sample['lengths'][0]['p'] == pytest.approx(p, rel=1e-4)
    assert list(writer.stream(prompt, blank_length='draw', seed=4, **how))[-1] == texts[0]


def test_the_command_says_lengths_and_runners_up(ckpt, script, tmp_path):
    said_all = script(
        'sample.py',
        f'--ckpt={ckpt}',
        '--weights=raw',
        '--prompt=a[[2-3]]bc',
        '--out=o.json',
        '--html=o.html',
    ).stdout
    for sample in json.loads((tmp_path / 'o.json').read_text())['samples']:
        (said,) = sample['lengths']
        assert {said['length'], said['runner_up']} == {2, 3}
        assert math.isclose(said['p'] + said['p_runner_up'], 1)
        assert len(sample['tokens']) == 3 + said['length']
    words = f'blank of {said["length"]} tokens (p {said["p"]:.2f}, runner-up {said["runner_up"]}: '
    assert words in said_all
    assert words in (tmp_path / 'o.html').read_text()


@pytest.mark.parametrize(
    'prompt, options, said',
    [
        ('a[[3-2]]b', {}, r'from its least to its most tokens, as \[\[2-12\]\], got \[\[3-2\]\]'),
        ('a[[0-2]]b', {}, 'a blank is'),
        ('a[[2-32]]b', {'length': 60}, 'at most 31 tokens, one less than the model'),
        ('a[[2-31]]b', {}, 'a blank of 2 to 31 tokens has room for 30 at most in length=32'),
        ('a[[?]]', {}, 'nothing tells the length'),
        ('a[[?]][[2]][[..]]b', {}, 'nothing tells the length'),
        ('a[[?]][[1-2]]b', {}, 'nothing tells the length'),
        ('a[[..]][[2]][[?]]b', {}, r'right behind a \[\[\.\.'),
        (
            'a[[?]][[30]]b',
            {'length': 60},
            'no text on the 16 positions that its 16 tokens leave of 32: give it fewer',
        ),
        ('a[[?]]b', {'blank_length': 'long'}, 'blank_length must be'),
        ('a[[?]]b', {'score': True}, 'wants the text of every blank'),
    ],
)
def test_wrong_lengths_are_one_line(ckpt, prompt, options, said):
    with one_line(said):
        Writer(ckpt).infill(prompt, **options)


def test_a_score_wants_known_lengths(ckpt):
    with one_line('write .*n.* in place of'):
        Writer(ckpt).logprob('a[[?]]b[[=c]]')
    with one_line('prompt has 3 tokens'):
        parse_prompt('a[[?]]b', Bytes(), 2)
