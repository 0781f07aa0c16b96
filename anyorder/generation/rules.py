"""By which other rules of the literature does a step choose its blanks?

A rule says which scores the blanks have, which of them a step reveals, or both: it is an Adaptive.
Dilated looks at no score: it is a Given. A text then has an exact probability, of Drawn a bound:
what is known says which blanks each step chooses."""

from anyorder.generation.unmasking import Adaptive

# another rule is one class, named here, and imported where an order names it. It has the fields of
# Given, and those of block_length and threshold that its `form` has
RULES = {
    'factor': 'anyorder.extras.rules.bounded:Factor',
    'eb': 'anyorder.extras.rules.bounded:EntropyBounded',
    'klass': 'anyorder.extras.rules.klass:Klass',
    'pc_sampler': 'anyorder.extras.rules.pc_sampler:PcSampler',
    'dilated': 'anyorder.extras.rules.dilated:Dilated',
    'drawn': 'anyorder.extras.rules.drawn:Drawn',
}
# writes again what fits least, imported where a text is to be revised
REVISED = 'anyorder.extras.rules.revise:rounds_of'


class Rule(Adaptive):
    """An Adaptive that is named as a whole, by a text of its `form`.

    threshold  the number behind the colon of its name; without one n_steps says how many"""

    has_threshold = True
