"""Which sets is zero-shot perplexity measured on, and how do their rows become texts again?

The detokenizers are those of the SEDD papers, as ordered rules: (a, b) puts b where a stands,
('regex', a, b) where the regular expression a fits. The hub gives blank lines as empty strings, and
so do the rules of WikiText."""

from itertools import repeat

WIKITEXT = [
    ('regex', r'^\s+$', ''),
    ("s '", "s'"),
    ('regex', "/' [0-9]/", "/'[0-9]/"),
    (' @-@ ', '-'),
    (' @,@ ', ','),
    (' @.@ ', '.'),
    (' : ', ': '),
    (' ; ', '; '),
    (' . ', '. '),
    (' ! ', '! '),
    (' ? ', '? '),
    (' , ', ', '),
    ('regex', r'\(\s*([^\)]*?)\s*\)', r'(\1)'),
    ('regex', r'\[\s*([^\]]*?)\s*\]', r'[\1]'),
    ('regex', r'{\s*([^}]*?)\s*}', r'{\1}'),
    ('regex', r'\"\s*([^\"]*?)\s*\"', r'"\1"'),
    ('regex', r"'\s*([^']*?)\s*'", r"'\1'"),
    ('= = = =', '===='),
    ('= = =', '==='),
    ('= =', '=='),
    (' ° ', '°'),
    (' \n', '\n'),
    ('\n ', '\n'),
    (' N ', ' 1 '),
    (" 's", "'s"),
]
PTB = [
    ('regex', r'^\s+|\s+$', ''),
    (" 's", "'s"),
    ("s ' ", "s' "),
    (" n't", "n't"),
    (' \n ', '\n'),
    ('\\/', '/'),
    *repeat((' N ', ' 1 '), 10),  # numbers that follow one another share a blank
    ('$ 1', '$1'),
    ('# 1', '#1'),
    ('<unk>', '?'),
]
LM1B = [
    ('regex', r'^\s+|\s+$', ''),
    ('http : / / ', 'http://'),
    ('https : / / ', 'https://'),
    ('regex', r' \'(\w+)', r"'\1"),
    ('regex', r' (\w+) \. ', r' \1. '),
    ('regex', r' (\w+) \.$', r' \1.'),
    (' ? ', '? '),
    ('regex', r' \?$', '?'),
    (' ! ', '! '),
    ('regex', r' \!$', '!'),
    (' , ', ', '),
    (' : ', ': '),
    (' ; ', '; '),
    (' / ', '/'),
    ('regex', r'\" ([^\"]+) \"', r'"\1"'),
    ('regex', r'\' ([^\']+) \'', r"'\1'"),
    ('regex', r'\( ([^\(\)]+) \)', r'(\1)'),
    ('regex', r'\[ ([^\[\]]+) \]', r'[\1]'),
    ('$ ', '$'),
    ('£ ', '£'),
]
LAMBADA = [('regex', r'^\s+|\s+$', ''), ('“', '"'), ('”', '"'), ('regex', '^', '\n')]

# what prepared.benchmark makes a data set of: its repository on the hub, the configuration and the
# field there, the rules, the splits that are measured, and what it is
BENCHMARKS = {
    'lambada': (
        'EleutherAI/lambada_openai',
        'default',
        'text',
        LAMBADA,
        ('test',),
        "LAMBADA in OpenAI's form, 5,153 passages",
    ),
    'wikitext2': (
        'Salesforce/wikitext',
        'wikitext-2-raw-v1',
        'text',
        WIKITEXT,
        ('test', 'train'),
        'WikiText-2 raw, one row a line',
    ),
    'wikitext103': (
        'Salesforce/wikitext',
        'wikitext-103-raw-v1',
        'text',
        WIKITEXT,
        ('test',),
        'WikiText-103 raw; WikiText-2 has the same test split',
    ),
    'ptb': (
        'ptb-text-only/ptb_text_only',
        None,
        'sentence',
        PTB,
        ('test',),
        "Penn Treebank in Mikolov's form",
    ),
    'lm1b': ('dvruette/lm1b', None, 'text', LM1B, ('test',), 'One Billion Word'),
}
