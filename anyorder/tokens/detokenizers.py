"""How does the text of a benchmark become plain text again? By the detokenizers of the SEDD papers, as ordered rules.

A rule (a, b) puts b where a stands; a is plain text or a compiled regular expression."""
import re


def replacing(*pairs):
    """The function that applies these rules to a text, one after the other."""
    def detokenize(text):
        for old, new in pairs:
            text = text.replace(old, new) if isinstance(old, str) else old.sub(new, text)
        return text
    return detokenize


STRIPPED = re.compile(r'^\s+|\s+$'), ''
WIKITEXT = replacing(
    (re.compile(r'^\s+$'), ''),   # the hub gives blank lines as empty strings
    ("s '", "s'"), (re.compile(r"/' [0-9]/"), r"/'[0-9]/"), (' @-@ ', '-'), (' @,@ ', ','), (' @.@ ', '.'),
    (' : ', ': '), (' ; ', '; '), (' . ', '. '), (' ! ', '! '), (' ? ', '? '), (' , ', ', '),
    (re.compile(r'\(\s*([^\)]*?)\s*\)'), r'(\1)'),
    (re.compile(r'\[\s*([^\]]*?)\s*\]'), r'[\1]'), (re.compile(r'{\s*([^}]*?)\s*}'), r'{\1}'),
    (re.compile(r'\"\s*([^\"]*?)\s*\"'), r'"\1"'), (re.compile(r"'\s*([^']*?)\s*'"), r"'\1'"),
    ('= = = =', '===='), ('= = =', '==='), ('= =', '=='),
    (' ° ', '°'), (' \n', '\n'), ('\n ', '\n'), (' N ', ' 1 '), (" 's", "'s"))
PTB = replacing(
    STRIPPED, (" 's", "'s"), ("s ' ", "s' "), (" n't", "n't"), (' \n ', '\n'), ('\\/', '/'), *[(' N ', ' 1 ')] * 10,
    ('$ 1', '$1'), ('# 1', '#1'), ('<unk>', '?'))
LM1B = replacing(
    STRIPPED, ('http : / / ', 'http://'), ('https : / / ', 'https://'),
    (re.compile(r" \'(\w+)"), r"'\1"), (re.compile(r' (\w+) \. '), r' \1. '), (re.compile(r' (\w+) \.$'), r' \1.'),
    (' ? ', '? '), (re.compile(r' \?$'), '?'), (' ! ', '! '), (re.compile(r' \!$'), '!'),
    (' , ', ', '), (' : ', ': '), (' ; ', '; '), (' / ', '/'),
    (re.compile(r'\" ([^\"]+) \"'), r'"\1"'), (re.compile(r"\' ([^\']+) \'"), r"'\1'"),
    (re.compile(r'\( ([^\(\)]+) \)'), r'(\1)'), (re.compile(r'\[ ([^\[\]]+) \]'), r'[\1]'), ('$ ', '$'), ('£ ', '£'))
LAMBADA = replacing(STRIPPED, ('“', '"'), ('”', '"'), (re.compile('^'), '\n'))
