"""How do commands and programs name an Unmasking and a Drawing? By texts and numbers, which become
these here alone."""

import pkgutil
from collections import ChainMap

from anyorder.functions import load, loaded
from anyorder.generation.drawing import RANGES, Drawing
from anyorder.generation.rules import RULES
from anyorder.generation.scores import SCORES
from anyorder.generation.unmasking import Adaptive, Given, Lossless
from anyorder.names import is_own, parsed
from configurator import check_choice

POLICIES = ChainMap(RULES, SCORES)  # by which the model chooses; listed with the scores first
CHOICE = {'/': 'block_length', ':': 'threshold', '+': 'noise'}  # fields of Adaptive


def choice_in(text):
    """Return (a name of POLICIES or a kept FILE.py:NAME@DIGEST, {field of Adaptive: number}) of a
    choice of the model, as margin/32:0.9+0.5; ('', {}) of another text.

    The file of FILE.py:NAME/32 is run, since its function may be a score or an order."""
    kind, numbers = parsed(text, CHOICE)
    is_choice = kind in POLICIES
    if is_own(kind):
        kind = load(kind)
        is_choice = loaded(kind).is_score
    return (kind, numbers) if is_choice else ('', {})


def unmasking_of(policy='given', n_steps=1, schedule='linear', unmask='fixed', revise=0):
    """Return the Unmasking that these options name.

    unmasking_of('margin/32', n_steps=8) is Adaptive(8, score='margin', block_length=32).

    n_steps, schedule  as in Given, where a schedule may be a list of ends
    policy             'given': the next blanks of the order are revealed, see Given; a name of
                       SCORES: the best of all, see Adaptive; a name of RULES; with numbers of its
                       own, see choice_in
    unmask             'fixed': the schedule says how many; 'binomial': every row draws its own
                       numbers; 'lossless' or 'lossless:WINDOW': as many as one token a step would
                       draw, in place of n_steps and schedule, see Lossless
    revise             how many rounds of revision"""
    how_many, window = parsed(unmask, {':': 'window'})
    kind, numbers = choice_in(policy)
    if not kind:
        check_choice('policy', policy, 'given', *POLICIES)
    if how_many == 'lossless':
        if kind or revise:
            raise ValueError(
                'lossless unmasking wants no revision, and no order that the model chooses, as it '
                'would have to score all blanks after each draft: leave out '
                f'{f"order={policy}" if kind else f"revise={revise}"}, or take unmask=fixed'
            )
        return Lossless(**window)
    check_choice('unmask', unmask, 'fixed', 'binomial', 'lossless')
    binomial = unmask == 'binomial' and isinstance(schedule, str)  # listed ends leave none to draw
    how = {'n_steps': n_steps, 'schedule': schedule, 'binomial': binomial, 'revise': revise}
    if not kind:
        return Given(**how)
    if kind not in RULES:
        return Adaptive(score=kind, **how, **numbers)
    rule = pkgutil.resolve_name(RULES[kind])
    if any(field in numbers and mark not in rule.form for mark, field in CHOICE.items()):
        raise ValueError(f'{policy} is not of the form {rule.form}: leave out the other numbers')
    return rule(**how, **numbers)


def drawing_in(options, forced=False):
    """Take the options that name a Drawing out of the dict `options`. Return the Drawing."""
    given = {name: options.pop(name) for name in RANGES if name in options}
    return Drawing(**given, forced=forced)
