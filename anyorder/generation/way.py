"""How is a text written, and on what? A Way and a Page, which commands and programs hand on."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np

from anyorder.generation.drawing import Drawing
from anyorder.generation.options import POLICIES, choice_in, drawing_in, unmasking_of
from anyorder.generation.unmasking import Unmasking
from anyorder.orders import Order, read_order
from configurator import check_choice

# of what a program may ask for: what it must be; a Drawing asks for its other numbers itself
WHOLE = 'n n_orders batch_size n_steps top_k length context top_logprobs'
TYPES = {'unmask': (str, 'a text'), 'stop': (Collection, 'a text or a list of texts')}
TYPES |= dict.fromkeys(WHOLE.split(), (Integral, 'a whole number'))


def check_types(options):
    """Raise ValueError for a value that is not of its type in TYPES."""
    for name, value in options.items():
        wanted, what = TYPES.get(name, (object, ''))
        if not isinstance(value, wanted):
            raise ValueError(f'{name} must be {what}, got {value!r:.60}')


@dataclass(frozen=True)
class Way:
    """How a text is written.

    unmasking   which blanks a step reveals
    drawing     how a token is drawn from its logits; if it is `forced`, the text that stands in the
                blanks is scored
    order       in which order blanks are visited. Where the model chooses, it says which of equal
                scores comes first, and which blanks make a block. A canvas has its order"""

    unmasking: Unmasking
    drawing: Drawing = Drawing()
    order: Order = Order('l2r')

    @classmethod
    def of(cls, run, order='own', score=False, **options):
        """Return the way that options of sample.py name, for a model of the options `run`.

        order    a text, or a list of positions. A choice of the model may have numbers in its text:
                 margin/32 chooses in blocks of 32, margin:0.9 by a threshold, margin+0.5 with noise
                 of this scale, margin/32:0.9 both
        score    whether the text in the blanks is scored
        options  fields of Drawing, as temperature, and arguments of unmasking_of, as n_steps"""
        check_types(options)
        drawing = drawing_in(options, score)
        schedule = options.get('schedule', '')
        if not isinstance(schedule, str):
            options['schedule'] = whole_numbers('schedule', schedule)
        if not isinstance(order, str):
            order = whole_numbers('order', order)
        elif choice_in(order)[0]:
            unmasking = unmasking_of(order, **options)
            # blocks of neighbours, from left to right; else a random order decides among equals
            return cls(unmasking, drawing, Order('l2r' if unmasking.block_length else 'random'))
        else:
            order = read_order(order, 'own', *POLICIES)
        return cls(unmasking_of(**options), drawing, Order.of(order, run))

    def check(self, config, matches=False, exact=False):
        """Raise ValueError unless a network of this config can write so, if it `matches` keeping to
        a pattern, and can say how likely a text is, if this is to be `exact`."""
        unmasking = self.unmasking
        if config.slots_class.masked_loss and unmasking.by_noise:
            raise ValueError(
                'lossless unmasking wants a decoder (attention=causal), which checks many drafts '
                'in one pass: others would need a pass for each; choose unmask=fixed or binomial'
            )
        if matches and not unmasking.draws_in_turn:
            raise ValueError(
                'lossless unmasking and order=drawn draw blanks before they choose, which a '
                'pattern forbids: choose another, or leave out the pattern'
            )
        if exact and unmasking.has_bound:
            raise ValueError(
                'order=drawn has no probability of a text but a bound, by eval_ppl.py '
                '--orders=drawn: choose another order to score, as top_prob'
            )
        if exact and unmasking.noise:
            raise ValueError(
                'a text is scored in the order that follows from what is known, and noise draws '
                f'another: score without it, got noise={unmasking.noise}'
            )
        if unmasking.revise and (exact or self.drawing.cfg_scale):
            raise ValueError(
                'revise writes again what fits least by the law without guidance: leave out one of '
                'revise and cfg_scale; and a text that is scored stays as it is: score with '
                f'revise=0, got revise={unmasking.revise}'
            )

    @property
    def to_score(self):
        """The same way, by which the text that stands in the blanks is scored."""
        return replace(self, drawing=replace(self.drawing, forced=True))


def whole_numbers(name, value):
    """Return the list of the whole numbers in a sequence, an array or a tensor."""
    if hasattr(value, 'tolist'):  # a tensor on a GPU is no array
        value = value.tolist()
    found = np.asarray(value)
    listed = found.tolist()
    if found.dtype.kind not in 'iu' or found.ndim != 1:
        raise ValueError(f'{name} must be a name, or a list of whole numbers, got {listed!r:.60}')
    return listed


@dataclass(frozen=True)
class Page:
    """What is written on.

    length        tokens of a text, prompt included; 0 is block_size
    context       tokens that a stretch of a longer text reads before its first blank; 0 is half of
                  block_size
    stop          texts that end a text, or its [[..]], see scroll.Text
    blank_length  how [[?]] finds its length: 'likely' or 'draw', see extras/lengths.py
    allowed       which tokens may stand where, see Limits; None: all
    pattern       what the whole text matches, see prompts.read_pattern; None: any text
    top_logprobs  how many of the likeliest tokens of each place are kept, see Drawing.likeliest"""

    length: int = 0
    context: int = 0
    stop: str | list | tuple = ''
    blank_length: str = 'likely'
    allowed: Any = None
    pattern: Any = None
    top_logprobs: int = 0

    @property
    def n_likeliest(self):
        """How many numbers a place keeps of its likeliest tokens, see Drawing.likeliest."""
        return self.top_logprobs and 1 + 2 * self.top_logprobs

    def check(self, checkpoint):
        """Raise ValueError for what does not fit to a model, or to the rows that it reads."""
        check_types(vars(self))
        check_choice('blank_length', self.blank_length, 'likely', 'draw')
        for name, most in (
            ('length', checkpoint.set.row_length or 2**31 - 1),
            ('context', checkpoint.config.block_size - 1),
            ('top_logprobs', checkpoint.config.n_real),
        ):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f'{name} must be from 0 to {most}, got {getattr(self, name)}')
