"""How do commands and programs name an Unmasking? By texts and numbers, which become one here
alone."""

import pkgutil
import re
from collections import ChainMap
from inspect import signature

from anyorder.generation.drawing import Drawing
from anyorder.generation.revise import Revised, check_rounds
from anyorder.generation.rules import RULES
from anyorder.generation.scores import SCORES, is_own, load_score
from anyorder.generation.unmasking import Adaptive, Given, Lossless
from configurator import check_choice, home, nearest

DRAWN = (  # fields of Drawing
    'temperature',
    'top_k',
    'top_p',
    'min_p',
    'presence_penalty',
    'cfg_scale',
)
POLICIES = ChainMap(RULES, SCORES)  # by which the model chooses, the scores first
NUMBER = r'\d+\.?\d*|\.\d+'
# margin/32:0.9+0.5: a policy, and maybe the block_length, threshold and noise of its choice
CHOICE = re.compile(rf'(\w+|.+\.py:\w+)(?:/(\d+))?(?::({NUMBER}))?(?:\+({NUMBER}))?')
LOSSLESS = re.compile(r'lossless(?::(\d+))?')  # lossless:64 has a window of 64


def choice_in(text):
    """Return {'policy': a name of POLICIES, and fields of Adaptive} of a text as margin/32; {} of
    another text.

    The file of FILE.py:NAME/32 is run, since its function may be a score or an order."""
    found = CHOICE.fullmatch(text)
    if not found:
        return {}
    policy, length, threshold, noise = found.groups()
    if is_own(policy):
        policy = load_score(*home(policy).rsplit(':', 1))
    if policy not in POLICIES:
        return {}
    choice = {'policy': policy}
    if length:
        choice['block_length'] = int(length)
    if threshold:
        choice['threshold'] = float(threshold)
    if noise:
        choice['noise'] = float(noise)
    return choice


def unmasking_of(policy='given', n_steps=1, schedule='linear', unmask='fixed', revise=0):
    """Return the Unmasking that these options name.

    unmasking_of('margin/32', n_steps=8) is Adaptive('margin', 8, block_length=32).

    n_steps, schedule  as in Given
    policy             'given': the next blanks of the order are revealed, see Given; a name of
                       SCORES: the best of all, see Adaptive; a name of RULES; with numbers of its
                       own, see choice_in
    unmask             'fixed': the schedule says how many; 'binomial': every row draws its own
                       numbers; 'lossless' or 'lossless:WINDOW': as many as one token a step would
                       draw, in place of n_steps and schedule, see Lossless
    revise             the rounds of Revised"""
    drafts = LOSSLESS.fullmatch(unmask)
    if not drafts:
        check_choice('unmask', unmask, 'fixed', 'binomial', 'lossless')
    has_name = isinstance(schedule, str)
    check_rounds(revise, has_name and not drafts)
    is_binomial = unmask == 'binomial' and has_name  # listed ends leave nothing to draw
    if policy == 'given':
        chosen = Given(n_steps, schedule, is_binomial)
        if drafts:
            chosen = Lossless(int(drafts[1])) if drafts[1] else Lossless()
    elif drafts:
        raise ValueError(
            f'lossless unmasking wants an order that is given: {policy} would have to score all '
            'blanks after each draft; choose another order, or unmask=fixed'
        )
    else:
        chosen = chosen_by(policy, n_steps, schedule, is_binomial)
    return Revised(chosen, revise) if revise else chosen


def chosen_by(policy, n_steps, schedule, binomial):
    """Return the Adaptive, or what a rule makes, of a policy with its numbers."""
    choice = choice_in(policy)
    if not choice:
        check_choice('policy', policy, 'given', *POLICIES)
    name = choice.pop('policy')
    if name in RULES:
        rule = pkgutil.resolve_name(RULES[name])
        return rule(n_steps=n_steps, schedule=schedule, binomial=binomial, **choice)
    return Adaptive(name, n_steps, schedule, binomial, **choice)


def drawing_in(options, scores=False):
    """Take the options that name a Drawing out of the dict `options`. Return the Drawing."""
    given = {name: options.pop(name) for name in DRAWN if name in options}
    return Drawing(**given, scores=scores)


def check_keywords(options, *functions):
    """Raise TypeError, as Python does, unless one of the functions, unmasking_of or Drawing has
    each option."""
    known = {*signature(unmasking_of).parameters, *DRAWN} - {'policy'}
    for function in functions:
        known |= {*signature(function).parameters}
    for name in {*options} - known:
        raise TypeError(
            f'{functions[0].__name__}() has no option {name!r}{nearest(name, sorted(known))}; '
            f'help({functions[0].__qualname__}) says more'
        )
