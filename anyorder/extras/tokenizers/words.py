"""At which words is a text cut from which pairs of bytes are learned?"""

import json

from tokenizers import Regex, pre_tokenizers

from anyorder.tokens.tokenizer import last_cut

# GPT-2's expression, by which a word has at most so many letters. The time that learning takes, and
# the number of letters that are read at once, grow with the longest word: a genome would be one.
LONG_WORD = 64
UP_TO = f'{{1,{LONG_WORD}}}'
WORDS = (
    rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}{UP_TO}| ?\p{{N}}{UP_TO}| ?[^\s\p{{L}}\p{{N}}]{UP_TO}"
    rf'|\s{UP_TO}(?!\S)|\s{UP_TO}'
)
AHEAD = 4  # letters from the end of a word on that may change where it ends
SPLIT_IN_WORDS = pre_tokenizers.Split(Regex(WORDS), 'isolated')


def cut_of_words(words, text):
    """Return last_cut, or else the last end of a word that stays one whatever follows.

    words  cuts a text by GPT-2's expression or by WORDS"""
    if n := last_cut(text):
        return n
    ends = (end for _, (_, end) in words.pre_tokenize_str(text))
    return max((end for end in ends if end + AHEAD <= len(text)), default=0)


def is_cut_in_words(parts):
    """Whether a tokenizer.json cuts a text by GPT-2's expression or by WORDS, and by nothing
    else."""
    cuts = parts['pre_tokenizer']
    is_cut = cuts.get('use_regex') or json.dumps(WORDS) in json.dumps(cuts)
    return is_cut and all(token['special'] for token in parts['added_tokens'])
