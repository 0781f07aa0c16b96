"""How does an encoding of tiktoken become a tokenizer.json? With the same ids."""

import re

from tokenizers import Regex, models, pre_tokenizers

from anyorder.extras.tokenizers.library import BYTE_OF, byte_level

LETTERS = {b: letter for letter, b in BYTE_OF.items()}


def file_of_ranks(encoding):
    """Return the text of a tokenizer.json for an Encoding of tiktoken.

    tiktoken joins the two tokens that touch whose bytes are the token of the lowest rank. So each
    way to cut a token in two is a pair, and pairs stand in the order of their tokens. A number
    without a token, which a model may draw, is shown."""
    ranks = encoding._mergeable_ranks
    texts = {token: token.decode('latin-1').translate(LETTERS) for token in ranks}
    merges = []
    for token in sorted(ranks, key=ranks.get):
        cuts = ((token[:n], token[n:]) for n in range(1, len(token)))
        merges += [(texts[a], texts[b]) for a, b in cuts if a in ranks and b in ranks]
    special = {i: f'<|{i}|>' for i in {*range(encoding.n_vocab)} - {*ranks.values()}}
    special |= {i: text for text, i in encoding._special_tokens.items()}
    vocabulary = {texts[token]: i for token, i in ranks.items()}
    vocabulary |= {text: i for i, text in special.items()}

    words = pre_tokenizers.Split(Regex(in_oniguruma(encoding._pat_str)), 'isolated')
    backend = byte_level(models.BPE(vocabulary, merges, ignore_merges=True), words)
    backend.add_special_tokens([special[i] for i in sorted(special)])
    return backend.to_str()


# a class of letters with its number, as \p{N}{1,3}+
COUNTED = re.compile(r'(\\[pP]\{\w+\}|\\\w|\[(?:\\.|[^]\\])*\])(\{\d+(?:,\d*)?\})\+')


def in_oniguruma(pattern):
    """Return an expression of tiktoken in the syntax of the package tokenizers.

    There a + behind {1,3} repeats it, and $ is the end of a line, too."""
    pattern = COUNTED.sub(r'(?>\1\2)', pattern)
    return re.sub(r'(?<!\\)\$', r'\\z', pattern)
