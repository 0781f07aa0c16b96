"""Say what a masked model of others is here, before other commands read it.

    python -m anyorder.extras.masked out/bert
    python -m anyorder.extras.masked GSAI-ML/LLaDA-8B-Base
    python sample.py --ckpt=masked:out/bert

A model is a folder as Hugging Face writes it, or OWNER/REPO on the hub. Its weights are read, and
must be those that its config.json asks for; no code of the folder is run. The table has the family,
the size, the longest text, the token of a blank, and what stands around every text."""

from anyorder.machine.terminal import one_line_errors
from configurator import configure

INPUTS = 'folders of masked models, or OWNER/REPO on the hub'

if __name__ == '__main__':  # the words are read before the imports below, which take seconds
    with one_line_errors():
        options = configure(globals())

from anyorder.checkpoint import open_checkpoint
from anyorder.machine.files import MASKED


def main(config):
    for name in config.words:
        for what, said in rows_of(MASKED + name.removeprefix(MASKED)):
            print(f'{what:<18}{said}')


def rows_of(name):
    """Yield (what, said) of the masked model of this name."""
    checkpoint = open_checkpoint(name)
    config = checkpoint.config
    yield 'model', name
    yield 'family', checkpoint.kind
    yield 'parameters', f'{checkpoint.model().n_parameters():,}'
    yield 'longest text', f'{config.block_size:,} tokens'
    yield 'vocabulary', f'{config.n_tokens:,} tokens'
    yield 'a blank', shown(checkpoint, [config.mask_id])
    yield 'before a text', shown(checkpoint, config.prefix)
    yield 'behind a text', shown(checkpoint, config.suffix)
    if config.shift:
        yield 'logits', 'those of a token stand one token before it'


def shown(checkpoint, tokens):
    """Return tokens as text and number."""
    said = [f'{checkpoint.tokenizer.decode([token])} ({token})' for token in tokens]
    return ' '.join(said) or 'nothing'


if __name__ == '__main__':
    with one_line_errors():
        main(options)
