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

# what prepared.benchmark makes of a row: `config` and `field` are the hub's, splits the ones that
# are measured
BENCHMARKS = {
    'lambada': {
        'repository': 'EleutherAI/lambada_openai',
        'config': 'default',
        'field': 'text',
        'rules': LAMBADA,
        'splits': ('test',),
        'about': "LAMBADA in OpenAI's form, 5,153 passages",
    },
    'wikitext2': {
        'repository': 'Salesforce/wikitext',
        'config': 'wikitext-2-raw-v1',
        'field': 'text',
        'rules': WIKITEXT,
        'splits': ('train', 'test'),
        'about': 'WikiText-2 raw, one row a line',
    },
    'wikitext103': {
        'repository': 'Salesforce/wikitext',
        'config': 'wikitext-103-raw-v1',
        'field': 'text',
        'rules': WIKITEXT,
        'splits': ('test',),
        'about': 'WikiText-103 raw; WikiText-2 has the same test split',
    },
    'ptb': {
        'repository': 'ptb-text-only/ptb_text_only',
        'config': None,
        'field': 'sentence',
        'rules': PTB,
        'splits': ('test',),
        'about': "Penn Treebank in Mikolov's form",
    },
    'lm1b': {
        'repository': 'dvruette/lm1b',
        'config': None,
        'field': 'text',
        'rules': LM1B,
        'splits': ('test',),
        'about': 'One Billion Word',
    },
}
