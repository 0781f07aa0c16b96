"""What does a command say once of texts that its tokenizer does not spell as it seems?"""

import sys

from anyorder.tokens.tokenizer import around


class Spelling:
    """How a tokenizer spells the texts of a command: what is said once, if it is not as it
    seems."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.n_tokens = 0
        self.n_unknown = 0
        self.first = ''  # what no token spells, and where it stands
        self.behind_space = []  # texts with a blank behind a space

    def add(self, text, found):
        """Count a text and its spans, of which the tokenizer of others may lack a part; what ours
        lacks is refused.

        A token that is unknown is no likelihood of what stands in the text. Where a vocabulary has
        none for what it lacks, each letter that is left out counts as one."""
        unknown = self.tokenizer.unspelt(text, found)
        self.n_tokens += len(found)
        if self.tokenizer.unknown is None:
            self.n_tokens += len(unknown)
        if unknown and not self.n_unknown:
            self.first = f'{unknown[0][:40]!r} in {around(text, unknown[0])!r}'
        self.n_unknown += len(unknown)

    def say(self):
        """Print a line on what is unknown, and one on a blank behind a space."""
        if self.n_unknown:
            print(
                f'{self.n_unknown:,} of {self.n_tokens:,} tokens are unknown to '
                f'{self.tokenizer.name}, the first is {self.first}: the model does not read what '
                'stands there, and its numbers are not of these texts',
                file=sys.stderr,
            )
        if self.behind_space:
            text = self.behind_space[0][-30:]
            better = text[:-1] + '[[2]]'
            print(
                f'a blank behind {text!r}: its last space is a token by itself, which texts hardly '
                f'have there; write {better!r}, and the first token of the blank begins with the '
                'space',
                file=sys.stderr,
            )
