"""How is a text written? What programs call is named here."""

from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing, sample_tokens
from anyorder.generation.fill import generate
from anyorder.generation.options import unmasking_of
from anyorder.generation.schedules import binomial_schedule, unmask_schedule
from anyorder.generation.scores import PROBABILITIES, SCORES
from anyorder.generation.unmasking import Adaptive, Given, Lossless, Unmasking

__all__ = [
    'PROBABILITIES',
    'SCORES',
    'Adaptive',
    'Canvas',
    'Drawing',
    'Given',
    'Lossless',
    'Unmasking',
    'binomial_schedule',
    'generate',
    'sample_tokens',
    'unmask_schedule',
    'unmasking_of',
]
