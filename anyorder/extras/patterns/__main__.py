"""Say what a pattern is over the tokens of a tokenizer, before a text is written by it.

    python -m anyorder.extras.patterns --pattern='(19|20)[0-9][0-9]' --tokenizer=gpt2
    python -m anyorder.extras.patterns --pattern=schema.json --ckpt=out/ckpt.pt --text='{"a": 1}'

The states and the classes of its table say what a step costs: tokens of a class are alike to the
pattern. The numbers of tokens are those of texts that match, in any division of the text."""

from anyorder.machine.terminal import one_line_errors, read_options

# options that stay as typed, see configurator.py
TEXTS = ('pattern', 'text')

pattern = ''  # a regular expression that the whole text matches, or FILE.json, a JSON schema
tokenizer = 'bytes'  # 'bytes', 'gpt2', or that of a set of puzzles
ckpt = ''  # in place of the tokenizer: a checkpoint, whose tokenizer it is
most = 256  # the largest number of tokens that is looked at
text = ''  # a text: does it match?

if __name__ == '__main__':  # the options are read before the imports below, which take seconds
    options = read_options(globals())

from anyorder.extras.patterns.pattern import Pattern
from anyorder.tokens.prompts import read_pattern
from anyorder.tokens.tokenizers import get_tokenizer
from configurator import at_least


def main(config):
    at_least(config, 0, 'most')
    asked = read_pattern(config.pattern) or Pattern('')
    known = tokenizer_of(config)
    for what, said in rows_of(asked, known, config.most):
        print(f'{what:<10}{said}')
    if config.text:
        is_match = asked.matches(config.text, known)
        print(f'{"matches" if is_match else "no match":<10}{config.text!r}')


def tokenizer_of(config):
    """Return the tokenizer of the options."""
    if not config.ckpt:
        return get_tokenizer(config.tokenizer)
    from anyorder.checkpoint import open_checkpoint  # torch takes seconds

    return open_checkpoint(config.ckpt).tokenizer


def rows_of(asked, known, most):
    """Yield (what, said) of a Pattern over the tokens of a tokenizer."""
    table = asked.table(known)
    yield 'pattern', asked.text
    yield 'tokens', f'{known.n_tokens:,} of {known.name}'
    yield 'states', f'{table.n_states:,}'
    yield 'classes', f'{table.n_classes:,}'
    yield 'lengths', runs(asked.lengths(known, most))


def runs(is_in):
    """Return the numbers n of which is_in[n] holds, as '3-7, 9'."""
    found = []
    for n, holds in enumerate(is_in):
        if holds and n and is_in[n - 1]:
            found[-1][1] = n
        elif holds:
            found.append([n, n])
    said = [f'{first}' if first == last else f'{first}-{last}' for first, last in found]
    return ', '.join(said) or 'none'


if __name__ == '__main__':
    with one_line_errors():
        main(options)
