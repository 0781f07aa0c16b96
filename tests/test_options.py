"""Which Unmasking do options name, and what do the nouns themselves refuse?"""

import pytest
from conftest import one_line

from anyorder.generation.options import check_keywords, unmasking_of
from anyorder.generation.revise import Revised
from anyorder.generation.rules import RULES
from anyorder.generation.unmasking import SCORES, Adaptive, Given, Lossless
from anyorder.generation.way import order_and_unmasking

# 'a, b or c': another score or rule needs no change here
POLICIES_SAID = ' or '.join(', '.join([*SCORES, *RULES]).rsplit(', ', 1))


@pytest.mark.parametrize(
    'options, noun',
    [
        ({}, Given()),
        (dict(n_steps=4, schedule='cosine'), Given(4, 'cosine')),
        (dict(n_steps=4, unmask='binomial'), Given(4, binomial=True)),
        (dict(schedule=[2, 9]), Given(schedule=[2, 9])),
        (dict(policy='margin+0.5', n_steps=4), Adaptive('margin', 4, noise=0.5)),
        (dict(policy='entropy/3'), Adaptive('entropy', block_length=3)),
        (dict(policy='top_prob:0.5'), Adaptive('top_prob', threshold=0.5)),
        (dict(policy='margin', unmask='binomial'), Adaptive('margin', binomial=True)),
        (dict(unmask='lossless:4'), Lossless(4)),
        (dict(revise=2), Revised(Given(), 2)),
        (dict(policy='margin', revise=1), Revised(Adaptive('margin'), 1)),
    ],
)
def test_options_name_an_unmasking(options, noun):
    assert unmasking_of(**options) == noun


def test_lossless_has_no_schedule():
    assert unmasking_of(unmask='lossless', n_steps=9, schedule='cosine') == Lossless()


def test_listed_ends_leave_nothing_to_draw():
    assert unmasking_of(schedule=[2, 9], unmask='binomial') == Given(schedule=[2, 9])


@pytest.mark.parametrize(
    'options, said',
    [
        (dict(policy='best'), f"policy must be given, {POLICIES_SAID}, got 'best'"),
        (dict(unmask='all'), "unmask must be fixed, binomial or lossless, got 'all'"),
        (dict(unmask='lossless:0'), 'window must be an integer'),
        (
            dict(policy='margin', unmask='lossless'),
            'lossless unmasking wants an order that is given',
        ),
        (dict(policy='given/2'), 'policy must be given'),
    ],
)
def test_options_that_do_not_go_together(options, said):
    with one_line(said):
        unmasking_of(**options)


@pytest.mark.parametrize(
    'make, said',
    [
        (lambda: Given(0), 'n_steps must be at least 1, got 0'),
        (lambda: Given(4, 'square'), "schedule must be linear or cosine, got 'square'"),
        (lambda: Given(schedule=[2, 9], binomial=True), 'listed ends'),
        (lambda: Adaptive('best'), 'score must be'),
        (lambda: Adaptive('margin', 0), 'n_steps must be at least 1, got 0'),
        (lambda: Adaptive('margin', noise=-1), 'noise must be at least 0'),
        (lambda: Adaptive('entropy', threshold=0.5), 'threshold must be a probability'),
        (lambda: Adaptive('margin', binomial=True, threshold=0.5), 'with binomial unmasking'),
        (lambda: Adaptive('margin', schedule=[2], block_length=2), 'not for a schedule of ends'),
        (lambda: Lossless(0), 'window must be an integer'),
        (lambda: Revised(Lossless(), 1), 'revise is how many rounds'),
    ],
)
def test_a_noun_checks_its_fields(make, said):
    with one_line(said):
        make()


def test_a_keyword_that_nobody_has_is_named_with_the_nearest():
    def write(text):
        return text

    check_keywords({'text': 'a', 'n_steps': 4}, write)
    with pytest.raises(
        TypeError, match=r"write\(\) has no option 'n_step'; the nearest is 'n_steps'"
    ):
        check_keywords({'n_step': 4}, write)


CHOICES = {
    'margin': Adaptive('margin'),
    'margin/32': Adaptive('margin', block_length=32),
    'top_prob:.9': Adaptive('top_prob', threshold=0.9),
    'entropy+0.5': Adaptive('entropy', noise=0.5),
    'margin/8:0.9+2': Adaptive('margin', block_length=8, threshold=0.9, noise=2.0),
    'own': Given(),
}


@pytest.mark.parametrize('text', CHOICES)
def test_a_choice_of_the_model_is_one_text(text):
    order, found = order_and_unmasking(text)
    assert found == CHOICES[text]
    assert order == ('own' if text == 'own' else 'l2r' if '/' in text else 'random')


def test_a_choice_and_lossless_have_their_numbers_in_one_text():
    assert unmasking_of(unmask='lossless:64') == Lossless(64)
    for wrong in ('margin/x', 'margin:1..2', 'l2r/8'):
        with pytest.raises(ValueError, match=wrong):
            order_and_unmasking(wrong)
    with pytest.raises(ValueError, match='margin/32:0.9'):
        order_and_unmasking('margin+x')
