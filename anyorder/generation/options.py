"""How do commands and programs name an Unmasking? By options, which become one here alone."""

import re
from collections import ChainMap
from dataclasses import dataclass
from inspect import signature

from anyorder.generation.drawing import Drawing
from anyorder.generation.revise import Revised, check_rounds
from anyorder.generation.rules import RULES, Dilated
from anyorder.generation.scores import SCORES, is_own, load_score
from anyorder.generation.unmasking import (
    Adaptive,
    Given,
    Lossless,
    check_block_length,
    check_noise,
    check_threshold,
    refuse_blocks,
)
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
# margin/32:0.9+0.5: a policy, and maybe the block_length, threshold and order_noise of its choice
NAMES = '|'.join([*POLICIES, r'.+\.py:\w+'])
CHOICE = re.compile(rf'({NAMES})(?:/(\d+))?(?::([\d.]+))?(?:\+([\d.]+))?')
LOSSLESS = re.compile(r'lossless(?::(\d+))?')  # lossless:64 has a window of 64


def choice_in(text):
    """Return the options of unmasking_of that a text as margin/32 names; {} of another text.

    The file of FILE.py:NAME/32 is run, since its function may be a score or an order."""
    found = CHOICE.fullmatch(text)
    if not found:
        return {}
    policy, length, threshold, noise = found.groups()
    if is_own(policy):
        policy = load_score(*home(policy).rsplit(':', 1))
    if policy is None:
        return {}
    options = {'policy': policy}
    if policy == 'dilated':
        if length or noise or threshold and not threshold.isdecimal():
            return {}
        length = threshold
        threshold = None
    try:
        if length:
            options['block_length'] = int(length)
        if threshold:
            options['threshold'] = float(threshold)
        if noise:
            options['order_noise'] = float(noise)
    except ValueError:  # two points in a number
        return {}
    return options


def unmasking_of(**options):
    """Return the Unmasking that these options name.

    unmasking_of(policy='margin', n_steps=8) is Adaptive('margin', 8).

    options  as in Options, which has their defaults. Raises ValueError for those that do not go
    together"""
    return Options(**options).unmasking()


@dataclass(frozen=True)
class Options:
    """The options of commands, and keywords of generate and Writer, that name an Unmasking.

    n_steps, schedule        as in Given
    policy                   'given': the next blanks of the order are revealed, see Given; a name
                             of SCORES: the best of all, see Adaptive; a name of RULES
    unmask                   'fixed': the schedule says how many; 'binomial': every row draws its
                             own numbers; 'lossless' or 'lossless:WINDOW': as many as one token a
                             step would draw, in place of n_steps and schedule, see Lossless
    order_noise              the noise of Adaptive
    threshold, block_length  as in Adaptive; of a rule the number that it wants
    window                   as in Lossless
    revise                   the rounds of Revised"""

    n_steps: int = 1
    schedule: str | list = 'linear'
    policy: str = 'given'
    unmask: str = 'fixed'
    order_noise: float = 0.0
    threshold: float | None = None
    window: int = 32
    block_length: int | None = None
    revise: int = 0

    def unmasking(self):
        """Return what the options name. Those that are not used are checked as well."""
        given = Given(self.n_steps, self.schedule, self.is_binomial())
        check_choice('policy', self.policy, 'given', *POLICIES)
        lossless = self.lossless()
        if lossless and self.policy in POLICIES:
            raise ValueError(
                f'lossless unmasking wants an order that is given: {self.policy} would have to '
                'score all blanks after each draft; choose another order, or unmask=fixed'
            )
        check_rounds(self.revise, not lossless and isinstance(self.schedule, str))

        if self.policy in RULES:
            unmasking = self.rule()
        elif self.policy in SCORES:
            unmasking = self.adaptive()
        else:
            self.check_for_given()
            unmasking = lossless or given
        return Revised(unmasking, self.revise) if self.revise else unmasking

    def lossless(self):
        """Return the Lossless that the options name, or None."""
        found = LOSSLESS.fullmatch(self.unmask)
        if not found:
            check_choice('unmask', self.unmask, 'fixed', 'binomial', 'lossless')
        window = self.window
        if found and found[1]:
            window = int(found[1])
        lossless = Lossless(window)
        return lossless if found else None

    def is_binomial(self):
        """Whether rows draw their numbers. Listed ends leave nothing to draw."""
        return self.unmask == 'binomial' and isinstance(self.schedule, str)

    def adaptive(self):
        """Return the Adaptive that the options name."""
        if self.threshold is not None:
            check_noise(self.order_noise)
            check_threshold(self.threshold, self.policy, self.unmask)
        return Adaptive(
            self.policy,
            self.n_steps,
            self.schedule,
            self.is_binomial(),
            self.order_noise,
            self.threshold,
            self.block_length,
        )

    def rule(self):
        """Return the Rule that the options name. What they leave open is its own."""
        if self.policy == 'dilated':
            return self.dilated()
        options = {
            'n_steps': self.n_steps,
            'schedule': self.schedule,
            'binomial': self.is_binomial(),
            'noise': self.order_noise,
            'threshold': self.threshold,
            'block_length': self.block_length,
        }
        given = {name: value for name, value in options.items() if value is not None}
        return RULES[self.policy](**given)

    def dilated(self):
        """Return the Dilated that the options name."""
        if self.is_binomial() or self.order_noise or self.threshold is not None:
            raise ValueError(
                f'{Dilated.form} says itself how many blanks a step reveals, and needs no score: '
                'leave out unmask=binomial, order_noise and threshold'
            )
        if self.block_length is None:
            return Dilated()
        return Dilated(self.block_length)

    def check_for_given(self):
        """Raise ValueError for options of Adaptive, which an order that is given does not have."""
        check_noise(self.order_noise)
        if self.order_noise:
            raise ValueError(
                f'order_noise is for the policies {", ".join(SCORES)}, which have scores'
            )
        if self.threshold is not None:
            check_threshold(self.threshold, self.policy, self.unmask)
        if self.block_length is not None:
            check_block_length(self.block_length)
            refuse_blocks('an order that is given')


def drawing_in(options, scores=False):
    """Take the options that name a Drawing out of the dict `options`. Return the Drawing."""
    given = {name: options.pop(name) for name in DRAWN if name in options}
    return Drawing(**given, scores=scores)


def check_keywords(options, *functions):
    """Raise TypeError, as Python does, unless one of the functions, Options or Drawing has each
    option."""
    known = {*Options.__dataclass_fields__, *DRAWN} - {'policy'}
    for function in functions:
        known |= {*signature(function).parameters}
    for name in {*options} - known:
        raise TypeError(
            f'{functions[0].__name__}() has no option {name!r}{nearest(name, sorted(known))}; '
            f'help({functions[0].__qualname__}) says more'
        )
