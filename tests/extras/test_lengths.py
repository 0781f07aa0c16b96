"""How long a blank is: by the text behind it, the likeliest length or a drawn one."""

import pytest
import torch
from conftest import close, make_model, one_line, options_in
from oracle import NETWORKS, chi2_of, limit

from anyorder.extras.lengths import choose_lengths, length_probabilities
from anyorder.fast import freeze
from anyorder.generation.prompts import parse_prompts
from anyorder.likelihood import conditional_logprob
from anyorder.tokens.tokenizer import Symbols
from anyorder.writer import Writer


def template(prompt, length=40):
    """The Template of a prompt of three letters."""
    return parse_prompts([prompt], Symbols('own', [*'abc'], eos=None), length)[0]


TWO = template('c[[1-2]]b[[1]]a[[1-2]]b[[..]]c', 12)
GAPS = [
    (9, TWO, (2,), 'c..b.a', 'b', [1, 2]),
    # what is behind the longest gap, and as much before it as is left
    (7, template('abccb[[1-3]]cabbc'), (), '', 'cabb', [1, 2, 3]),
    (7, template('ab[[5-6]]ca'), (), '', 'c', [5, 6]),
    (9, template('a[[2-8]]b', 6), (), 'a', 'b', [2, 3, 4]),  # as many as there is room for
    # the nearest tokens alone
    (40, template('a[[1-3]]' + 10 * 'bac'), (), 'a', 5 * 'bac' + 'b', [1, 2, 3]),
]


@pytest.mark.parametrize('network', NETWORKS)
def test_the_probability_of_a_length_is_that_of_the_text_behind_it(network):
    """Given the text before it, whatever stands in blanks."""
    for size, template, chosen, left, right, lengths in GAPS:
        model = make_model(5, block_size=size, vocab_size=3, **NETWORKS[network])
        want = []
        for n in lengths:
            row = left + n * '.' + right
            known = [p for p, token in enumerate(row) if token != '.']
            n_left = len(left.replace('.', ''))
            idx = torch.tensor([[max(0, 'abc'.find(token)) for token in row]])
            want.append(conditional_logprob(model, idx, known[n_left:], known[:n_left]))
        n, p = length_probabilities(freeze(model), template, chosen)
        assert n == lengths
        close(p, torch.cat(want).softmax(0))


def test_a_length_is_the_likeliest_or_drawn_by_the_seed_of_the_row():
    """One blank after the other; a sample says its probability and the runner-up."""
    model = make_model(5, vocab_size=3)
    found = [*choose_lengths(model, 400 * [TWO], range(400), 'draw')]
    (alone,) = choose_lengths(model, [TWO], [7], 'draw')
    assert found[7].chosen == alone.chosen
    counts = torch.tensor([text.chosen[0]['length'] for text in found]).bincount()[1:]
    assert chi2_of(counts, length_probabilities(model, TWO, ())[1]) < limit(1)
    (text,) = choose_lengths(model, [TWO], [0])
    chosen = []
    for length in text.chosen:
        p = length_probabilities(model, TWO, chosen)[1].tolist()
        want = [*sorted(zip(p, (1, 2)), reverse=True)]
        assert [*length.values()] == [want[0][1], want[0][0], want[1][1], want[1][0]]
        chosen.append(want[0][1])
    assert (text.kinds == TWO.with_lengths(chosen).kinds).all()


def test_a_text_is_written_as_with_the_lengths_that_were_chosen(ckpt):
    prompt = 'a[[?]]bc[[2-5]] d[[3]]e[[..]]'
    how = {'seed': 4, 'length': 40, 'order': 'random', 'context': 8}
    writer = Writer(ckpt)
    *_, text = writer.stream(prompt, blank_length='draw', **how)
    first, second = (said['length'] for said in text.sample['lengths'])
    known = prompt.replace('?', str(first)).replace('2-5', str(second))
    assert writer.infill(known, **how) == text


BAD_PROMPTS = [
    ('a[[2-32]]b', 'length=60', 'the 0 positions'),
    ('a[[?]][[1-2]]b', '', 'nothing tells'),
    ('a[[?]][[30]]b', 'length=60', 'the 16 positions'),
    ('a[[?]]b', 'blank_length=long', 'blank_length'),
    ('a[[?]]b', 'score=True', 'text of every blank'),
]


@pytest.mark.parametrize('prompt, options, word', BAD_PROMPTS)
def test_a_prompt_whose_lengths_are_wrong_is_one_line(ckpt, prompt, options, word):
    with one_line(word):
        Writer(ckpt).infill(prompt, **options_in(options))
