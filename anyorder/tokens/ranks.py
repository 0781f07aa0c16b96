"""How does an encoding of tiktoken become a tokenizer.json? With the same ids."""

import re

from anyorder.tokens.libraries import BYTE_OF

LETTERS = {b: letter for letter, b in BYTE_OF.items()}


def file_of_ranks(encoding):
    """Return the text of a tokenizer.json for an Encoding of tiktoken.

    tiktoken joins the two tokens that touch whose bytes are the token of the lowest rank. So each
    way to cut a token in two is a pair, and pairs stand in the order of their tokens. A number
    without a token, which a model may draw, is shown."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

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

    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    words = pre_tokenizers.Split(Regex(in_oniguruma(encoding._pat_str)), 'isolated')
    letters = pre_tokenizers.ByteLevel(False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([special[i] for i in sorted(special)])
    return backend.to_str()


# a class of letters with its number, as \p{N}{1,3}+
COUNTED = re.compile(r'(\\[pP]\{\w+\}|\\\w|\[(?:\\.|[^]\\])*\])(\{\d+(?:,\d*)?\})\+')


def in_oniguruma(pattern):
    """Return an expression of tiktoken in the syntax of the package tokenizers.

    There a + behind {1,3} repeats it, and $ is the end of a line, too."""
    pattern = COUNTED.sub(r'(?>\1\2)', pattern)
    return re.sub(r'(?<!\\)\$', r'\\z', pattern)
