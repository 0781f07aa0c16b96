"""How does the text of a benchmark become plain text again? By the detokenizers of the SEDD papers, as ordered rules.

A rule (a, b) puts b where a stands; a is plain text or a compiled regular expression."""
import re


def detokenize(text, rules):
    """The text after these rules, one after the other."""
    for old, new in rules:
        text = text.replace(old, new) if isinstance(old, str) else old.sub(new, text)
    return text


STRIPPED = re.compile(r'^\s+|\s+$'), ''
WIKITEXT = (
    (re.compile(r'^\s+$'), ''),   # the hub gives blank lines as empty strings
    ("s '", "s'"), (re.compile(r"/' [0-9]/"), r"/'[0-9]/"), (' @-@ ', '-'), (' @,@ ', ','), (' @.@ ', '.'),
    (' : ', ': '), (' ; ', '; '), (' . ', '. '), (' ! ', '! '), (' ? ', '? '), (' , ', ', '),
    (re.compile(r'\(\s*([^\)]*?)\s*\)'), r'(\1)'),
    (re.compile(r'\[\s*([^\]]*?)\s*\]'), r'[\1]'), (re.compile(r'{\s*([^}]*?)\s*}'), r'{\1}'),
    (re.compile(r'\"\s*([^\"]*?)\s*\"'), r'"\1"'), (re.compile(r"'\s*([^']*?)\s*'"), r"'\1'"),
    ('= = = =', '===='), ('= = =', '==='), ('= =', '=='),
    (' ° ', '°'), (' \n', '\n'), ('\n ', '\n'), (' N ', ' 1 '), (" 's", "'s"))
PTB = (
    STRIPPED, (" 's", "'s"), ("s ' ", "s' "), (" n't", "n't"), (' \n ', '\n'), ('\\/', '/'), *[(' N ', ' 1 ')] * 10,
    ('$ 1', '$1'), ('# 1', '#1'), ('<unk>', '?'))
LM1B = (
    STRIPPED, ('http : / / ', 'http://'), ('https : / / ', 'https://'),
    (re.compile(r" \'(\w+)"), r"'\1"), (re.compile(r' (\w+) \. '), r' \1. '), (re.compile(r' (\w+) \.$'), r' \1.'),
    (' ? ', '? '), (re.compile(r' \?$'), '?'), (' ! ', '! '), (re.compile(r' \!$'), '!'),
    (' , ', ', '), (' : ', ': '), (' ; ', '; '), (' / ', '/'),
    (re.compile(r'\" ([^\"]+) \"'), r'"\1"'), (re.compile(r"\' ([^\']+) \'"), r"'\1'"),
    (re.compile(r'\( ([^\(\)]+) \)'), r'(\1)'), (re.compile(r'\[ ([^\[\]]+) \]'), r'[\1]'), ('$ ', '$'), ('£ ', '£'))
LAMBADA = (STRIPPED, ('“', '"'), ('”', '"'), (re.compile('^'), '\n'))
