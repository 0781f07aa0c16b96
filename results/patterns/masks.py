"""What would a mask for each token do in place of the joint law? How many texts still match?

    python results/patterns/masks.py --ckpt=out/chorales/ckpt.pt --prompt=FILE:scale.jsonl

A mask lets a token stand in a blank where some text that matches has it there, given what was known
before the step. The tokens of a step are drawn without knowledge of each other. Printed are the
share of texts that match, and their effective share, (sum w)^2 / (n sum w^2) with the weights
w = p / q, which are 0 where a text does not match."""

import sys

sys.path.append('.')  # the project's folder, from which it is run

import math

import torch

from anyorder.extras.patterns import parts
from anyorder.extras.patterns.language import Language
from anyorder.likelihood.weighed import probability_of_match
from anyorder.machine.terminal import one_line_errors
from anyorder.tokens.prompts import read_prompts
from anyorder.writer import Writer
from configurator import configure, numbers
from results.patterns.matches import matches

ckpt = 'out/ckpt.pt'
TEXTS = ('prompt',)
prompt = ''  # with blanks that match patterns; or FILE:prompts.jsonl
order = 'random'
steps = '1,4,16,64'  # forward passes of a text
n = 64  # texts of each kind
seed = 1337


class Uniform(Language):
    """The joint law with all tokens alike in blanks that no step has answered yet."""

    def __init__(self, spans, canvas, stand_in, allowed):
        super().__init__(spans, canvas, None, allowed)


class Masks(Language):
    """A mask for each token, with the states that known tokens leave open."""

    def law(self, cells, position, logits):
        can_stand = super().law(cells, position, logits) > -torch.inf
        is_lost = ~can_stand.any(1, keepdim=True)  # no text matches any more
        return logits.masked_fill(~(can_stand | is_lost), -torch.inf)

    def reveal(self, cells, position, token):
        """Know nothing of the token before the next step."""


def main(config):
    (prompt,) = read_prompts(config.prompt)
    writer = Writer(config.ckpt)
    print(f'{"passes":<8}{"law":<12}{"match":>8}{"effective share":>18}')
    for n_steps in numbers(config, 'steps', least=1):
        for kind in (Language, Uniform, Masks):
            parts.Language = kind
            texts = writer.infill(
                prompt, n=config.n, order=config.order, n_steps=n_steps, seed=config.seed
            )
            log_weights = [log_weight(text.sample, writer.tokenizer) for text in texts]
            share = sum(w > -math.inf for w in log_weights) / len(texts)
            effective = 0.0
            if share:
                effective = probability_of_match(log_weights)['effective_share']
            print(f'{n_steps:<8}{kind.__name__:<12}{share:>8.1%}{effective:>18.2f}', flush=True)


def log_weight(sample, tokenizer):
    return sample['log_weight'] if all(matches(sample, tokenizer)) else -math.inf


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
