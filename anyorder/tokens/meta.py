"""What does the meta.json of a prepared set say? Read once, field by field, so that nothing behind it meets a surprise.

    {"name": "books", "tokenizer": "bytes", "n_tokens": 257, "eos": 256, "given": false,
     "splits": {"train": {"rows": 692, "tokens": 2139339, "text_bytes": 2138647, "sha256": "3a4...", "source": "a.txt"},
                "val": ...}}

rows counts documents, and tokens their tokens, the ends of text included. A set that is no text has more fields:

    row_length   tokens of a row, where all rows have one length; none: the tokens are a stream
    shape        [H, W] where a row is a grid, row by row, or none
    given        whether the highest bit of a token says that it is given
    prompts      whether each document is a row, and begins with a prompt, which is given
    vocabulary   the names of the tokens, where they have any, or none
    puzzle       the options of a task that generates and judges the rows"""

import json
import os
import re
from dataclasses import asdict, dataclass, fields, replace

from anyorder.machine.files import plain_json, read_text, reading, whole_files
from anyorder.puzzles.rules import TASKS
from anyorder.tokens.tokenizers import OWN, TEXT, TOKENIZERS

WAY_OUT = 'choose another name for the set, or another --data_dir'


@dataclass(frozen=True)
class SplitMeta:
    """What is said of a split."""

    rows: int
    tokens: int
    text_bytes: int
    sha256: str
    source: str


@dataclass(frozen=True)
class Meta:
    """What is said of a set."""

    name: str
    tokenizer: str
    n_tokens: int
    eos: int | None
    splits: dict  # {name: SplitMeta}
    given: bool = False
    prompts: bool = False
    row_length: int | None = None
    shape: list | None = None
    vocabulary: list | None = None
    puzzle: dict | None = None

    def with_splits(self, splits):
        return replace(self, splits=splits)


DEFAULTS = {field.name: field.default for field in fields(Meta)[5:]}
# the other fields that sets of a tokenizer must have; TEXT comes without
NEEDED = {OWN: ('given', 'row_length', 'shape', 'vocabulary')} | {
    task: ('row_length', 'puzzle') for task in TASKS
}


def is_number(value, least=0, most=2**63 - 1):
    return type(value) is int and least <= value <= most


def is_text(value):
    return isinstance(value, str) and value != ''


def is_list(value, holds):
    return isinstance(value, list) and value != [] and all(map(holds, value))


def is_task(value):
    """Whether a value may be the field `puzzle`."""
    if not isinstance(value, dict) or not is_text(value.get('task')) or value['task'] not in TASKS:
        return False
    return all(is_number(value.get(option)) for option in TASKS[value['task']].options)


# {field: (what it must be, whether a value is that)}
COUNT = 'a whole number from 1 to 2^63 - 1', lambda value: is_number(value, 1)
FLAG = 'true or false', lambda value: isinstance(value, bool)
FIELDS = {
    'name': ('a text', is_text),
    'tokenizer': (
        f'one of {", ".join([*TOKENIZERS, OWN])}',
        lambda value: value in [*TOKENIZERS, OWN],
    ),
    'n_tokens': (
        'a whole number from 1 to 2^16',
        lambda value: is_number(value, 1, 2**16),
    ),  # in 16 bits
    'eos': ('a token, or null', lambda value: value is None or is_number(value)),
    'splits': (
        'an object of splits by their names',
        lambda value: (
            isinstance(value, dict) and all(re.fullmatch(r'\w[\w.-]*', name) for name in value)
        ),
    ),
    'given': FLAG,
    'prompts': FLAG,
    'row_length': (
        'a whole number from 1 to 2^31, or null',
        lambda value: value is None or is_number(value, 1, 2**31),
    ),
    'shape': (
        '[H, W], or null',
        lambda value: value is None or is_list(value, is_number) and len(value) == 2,
    ),
    'vocabulary': (
        'a list of texts, each once, or null',
        lambda value: value is None or is_list(value, is_text) and len({*value}) == len(value),
    ),
    'puzzle': (
        'an object of a task and its options, or null',
        lambda value: value is None or is_task(value),
    ),
}
SPLIT_FIELDS = {
    'rows': COUNT,
    'tokens': COUNT,
    'text_bytes': ('a whole number from 0 to 2^63 - 1', is_number),
    'sha256': ('a text', is_text),
    'source': ('a text', is_text),
}
# of fields that are right each by itself: (field, what it must be, whether a Meta is that)
TOGETHER = (
    ('eos', 'a token below n_tokens', lambda meta: meta.eos is None or meta.eos < meta.n_tokens),
    (
        'given',
        'true in a set with prompts, and false in a text without prompts',
        lambda meta: meta.given == meta.prompts if meta.tokenizer in TEXT else not meta.prompts,
    ),
    (
        'eos',
        'the end of text of its tokenizer, where the set is text',
        lambda meta: meta.tokenizer not in TEXT or meta.eos == TEXT[meta.tokenizer].eos,
    ),
    (
        'puzzle',
        'an object of the task that the tokenizer names, or null where it names none',
        lambda meta: (
            (meta.puzzle or {}).get('task') == (meta.tokenizer if meta.tokenizer in TASKS else None)
        ),
    ),
    (
        'row_length',
        'a number in a set of puzzles',
        lambda meta: meta.puzzle is None or meta.row_length is not None,
    ),
    (
        'shape',
        'null, or [H, W] with a row_length of H x W',
        lambda meta: (
            meta.shape is None
            or meta.shape[0] * meta.shape[1] == meta.row_length
            or meta.row_length is None
            and meta.tokenizer in TEXT
        ),
    ),  # its blocks may be grids
    (
        'vocabulary',
        'a text for each of n_tokens',
        lambda meta: meta.vocabulary is None or len(meta.vocabulary) == meta.n_tokens,
    ),
    (
        'row_length',
        'the length of the rows of every split',
        lambda meta: (
            meta.row_length is None
            or all(split.rows * meta.row_length == split.tokens for split in meta.splits.values())
        ),
    ),
)


def meta_path(directory):
    return os.path.join(directory, 'meta.json')


def read_meta(directory):
    """The Meta of a prepared set, None where there is none. Raises ValueError for a file of another kind, and for a
    field that is damaged or missing."""
    path = meta_path(directory)
    if not os.path.exists(path):
        return None
    with reading(path, 'the meta.json of a prepared set', WAY_OUT):
        found = dict(json.loads(read_text(path)).items())
    needed = [field.name for field in fields(Meta)[:5]]
    check_fields(found, FIELDS, needed, path)
    for name, split in found['splits'].items():
        if not isinstance(split, dict):
            raise damaged(path, f'splits.{name}', 'an object', split)
        check_fields(split, SPLIT_FIELDS, SPLIT_FIELDS, path, f'splits.{name}.')
    check_fields(found, FIELDS, NEEDED.get(found['tokenizer'], ()), path)
    found.setdefault('given', 'puzzle' in found)  # sets from before the field
    splits = {
        name: SplitMeta(**{field: split[field] for field in SPLIT_FIELDS})
        for name, split in found['splits'].items()
    }
    meta = Meta(**{field: found[field] for field in FIELDS if field in found} | {'splits': splits})
    for field, rule, holds in TOGETHER:
        if not holds(meta):
            raise damaged(path, field, rule, getattr(meta, field))
    return meta


def check_fields(found, rules, needed, path, of=''):
    """Raise ValueError unless all fields that are found or `needed` are as the rules say."""
    for field, (rule, holds) in rules.items():
        if field in found and not holds(found[field]):
            raise damaged(path, of + field, rule, found[field])
        if field in needed and field not in found:
            raise damaged(path, of + field, rule)


def damaged(path, field, rule, *value):
    """The error of a field, whose value may be missing."""
    got = f'got {value[0]!r:.60}' if value else 'it is missing'
    return ValueError(
        f'{path} is damaged: {field} must be {rule}, {got}; copy it again, or remove its folder and '
        'prepare the set again'
    )


def kind_of(meta):
    """What a checkpoint keeps of a Meta, as a dict: all but its name and its splits, and what a set of this tokenizer
    has no need to say."""
    needed = 'given', *NEEDED.get(meta.tokenizer, ())
    said = {field: getattr(meta, field) for field in FIELDS if field not in ('name', 'splits')}
    return {
        field: value
        for field, value in said.items()
        if field not in DEFAULTS or field in needed or value != DEFAULTS[field]
    }


def write_meta(directory, meta):
    """Write meta.json, in one step. A link is replaced."""
    splits = {name: asdict(split) for name, split in meta.splits.items()}
    with (
        whole_files(meta_path(directory)) as (temporary,),
        open(temporary, 'w', encoding='utf-8') as f,
    ):
        f.write(plain_json({'name': meta.name} | kind_of(meta) | {'splits': splits}, 2) + '\n')
