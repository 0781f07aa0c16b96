"""How is a text written? What programs call is named here."""

from anyorder.generation.canvas import Canvas
from anyorder.generation.drawing import Drawing, sample_tokens
from anyorder.generation.fill import generate
from anyorder.generation.unmasking import (
    PROBABILITIES,
    SCORES,
    Unmasking,
    binomial_schedule,
    unmask_schedule,
)

__all__ = [
    'PROBABILITIES',
    'SCORES',
    'Canvas',
    'Drawing',
    'Unmasking',
    'binomial_schedule',
    'generate',
    'sample_tokens',
    'unmask_schedule',
]
