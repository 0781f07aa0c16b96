"""What does the meta.json of a prepared set say? Read once, field by field, and checked.

    {"name": "books", "tokenizer": "bytes", "n_tokens": 257, "eos": 256, "given": false,
     "splits": {"train": {"rows": 692, "tokens": 2139339, "text_bytes": 2138647,
                          "sha256": "3a4...", "source": "a.txt"},
                "val": ...}}

rows counts documents, and tokens their tokens, the ends of text included. A set that is no text has
more fields:

    row_length   tokens of a row, where all rows have one length; none: the tokens are a stream
    shape        [H, W] where a row is a grid, row by row, or none
    given        whether the highest bit of a token says that it is given
    prompts      whether each document is a row, and begins with a prompt, which is given
    vocabulary   the names of the tokens, where they have any, or none
    puzzle       the options of a task that generates and judges the rows
    made_by      the command that makes the set, without --name and --data_dir, where it is a
                 command of extras

A tokenizer that its name does not make lies beside meta.json, in tokenizer.json as the package
tokenizers writes it, or in tiktoken.json. Then there is one more field:

    tokenizer_sha256  of this file"""

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, fields, replace

from anyorder.machine.files import plain_json, read_text, reading, whole_files
from anyorder.tokens.tokenizers import KNOWN, MAKERS, OWN, TEXT, TIKTOKEN, is_of_text, maker_of

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
    """What is said of a set, and `tokenizer_file`, the text that makes its tokenizer where the name
    alone does not."""

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
    made_by: str | None = None
    tokenizer_file: str | None = None

    def with_splits(self, splits):
        return replace(self, splits=splits)


IN_META = [field.name for field in fields(Meta)]
DEFAULTS = {field.name: field.default for field in fields(Meta)[5:]}
# the other fields that sets of a tokenizer must have; TEXT comes without
NEEDED = {OWN: ('given', 'row_length', 'shape', 'vocabulary')}
NEEDED |= {task: ('row_length', 'puzzle') for task in MAKERS}


# --------------------------------------------------------------------------------------------------
# Fields, each by itself


def is_number(value, least=0, most=2**63 - 1):
    return type(value) is int and least <= value <= most


def is_count(value):
    return is_number(value, 1)


def is_n_tokens(value):
    return is_number(value, 1, 2**31)  # of 32 bits one may mark a token as given


def is_row_length(value):
    return is_number(value, 1, 2**31)


def is_flag(value):
    return isinstance(value, bool)


def is_text(value):
    return isinstance(value, str) and value != ''


def is_list(value, holds):
    return isinstance(value, list) and value != [] and all(map(holds, value))


def is_pair(value):
    return is_list(value, is_number) and len(value) == 2


def are_names(value):
    return is_list(value, is_text) and len({*value}) == len(value)


def are_splits(value):
    return isinstance(value, dict) and all(re.fullmatch(r'\w[\w.-]*', name) for name in value)


def is_task(value):
    """Whether a value may be the field `puzzle`."""
    if not isinstance(value, dict) or value.get('task') not in list(MAKERS):
        return False
    return all(is_number(number) for option, number in value.items() if option != 'task')


def or_null(holds):
    return lambda value: value is None or holds(value)


# {field: (what it must be, whether a value is that)}
FIELDS = {
    'name': ('a text', is_text),
    'tokenizer': ('a text', is_text),
    'n_tokens': ('a whole number from 1 to 2^31', is_n_tokens),
    'eos': ('a token, or null', or_null(is_number)),
    'splits': ('an object of splits by their names', are_splits),
    'given': ('true or false', is_flag),
    'prompts': ('true or false', is_flag),
    'row_length': ('a whole number from 1 to 2^31, or null', or_null(is_row_length)),
    'shape': ('[H, W], or null', or_null(is_pair)),
    'vocabulary': ('a list of texts, each once, or null', or_null(are_names)),
    'puzzle': ('an object of a task and its options, or null', or_null(is_task)),
    'made_by': ('a command, or null', or_null(is_text)),
    'tokenizer_sha256': ('the hash of the file of a tokenizer', is_text),
}
SPLIT_FIELDS = {
    'rows': ('a whole number from 1 to 2^63 - 1', is_count),
    'tokens': ('a whole number from 1 to 2^63 - 1', is_count),
    'text_bytes': ('a whole number from 0 to 2^63 - 1', is_number),
    'sha256': ('a text', is_text),
    'source': ('a text', is_text),
}


# --------------------------------------------------------------------------------------------------
# Fields that are right each by itself, together


def has_eos_among_tokens(meta):
    return meta.eos is None or meta.eos < meta.n_tokens


def has_given_where_prompts(meta):
    if is_of_text(meta.tokenizer):
        return meta.given == meta.prompts
    return not meta.prompts


def has_eos_of_text(meta):
    return meta.tokenizer not in TEXT or meta.eos == TEXT[meta.tokenizer].eos


def has_puzzle_of_task(meta):
    named = meta.tokenizer if meta.tokenizer in MAKERS else None
    task = meta.puzzle['task'] if meta.puzzle else None
    return task == named


def has_rows_of_puzzle(meta):
    return meta.puzzle is None or meta.row_length is not None


def has_rows_of_shape(meta):
    if meta.shape is None:
        return True
    if meta.row_length is None and is_of_text(meta.tokenizer):
        return True  # its blocks may be grids
    height, width = meta.shape
    return height * width == meta.row_length


def has_all_names(meta):
    return meta.vocabulary is None or len(meta.vocabulary) == meta.n_tokens


def has_rows_of_length(meta):
    if meta.row_length is None:
        return True
    splits = meta.splits.values()
    return all(split.rows * meta.row_length == split.tokens for split in splits)


# (field, what it must be, whether a Meta is that)
TOGETHER = (
    ('eos', 'a token below n_tokens', has_eos_among_tokens),
    (
        'given',
        'true in a set with prompts, and false in a text without prompts',
        has_given_where_prompts,
    ),
    ('eos', 'the end of text of its tokenizer, where the set is text', has_eos_of_text),
    (
        'puzzle',
        'an object of the task that the tokenizer names, or null where it names none',
        has_puzzle_of_task,
    ),
    ('row_length', 'a number in a set of puzzles', has_rows_of_puzzle),
    ('shape', 'null, or [H, W] with a row_length of H x W', has_rows_of_shape),
    ('vocabulary', 'a text for each of n_tokens', has_all_names),
    ('row_length', 'the length of the rows of every split', has_rows_of_length),
)


# --------------------------------------------------------------------------------------------------
# The file


def meta_path(directory):
    return os.path.join(directory, 'meta.json')


def read_meta(directory):
    """Return the Meta of a prepared set, None where there is none.

    Raises ValueError for a file of another kind, and for a field that is damaged or missing."""
    path = meta_path(directory)
    if not os.path.exists(path):
        return None
    with reading(path, 'the meta.json of a prepared set', WAY_OUT):
        found = dict(json.loads(read_text(path)).items())

    # Each field by itself
    needed = [field.name for field in fields(Meta)[:5]]
    check_fields(found, FIELDS, needed, path)
    found['splits'] = {name: split_of(split, name, path) for name, split in found['splits'].items()}
    check_fields(found, FIELDS, NEEDED.get(found['tokenizer'], ()), path)
    # Sets from before a field
    found.setdefault('given', 'puzzle' in found)
    if found['tokenizer'] in MAKERS and 'vocabulary' not in found:
        found |= maker_of(found['tokenizer']).about(found['puzzle'] or {'task': found['tokenizer']})

    found['tokenizer_file'] = kept_file(directory, found)

    # All together
    meta = Meta(**{field: found[field] for field in IN_META if field in found})
    for field, rule, holds in TOGETHER:
        if not holds(meta):
            raise damaged(path, field, rule, getattr(meta, field))
    return meta


def tokenizer_path(directory, tokenizer):
    """Return the file in which a set keeps its tokenizer of this name."""
    file = 'tiktoken.json' if tokenizer.startswith(TIKTOKEN) else 'tokenizer.json'
    return os.path.join(directory, file)


def kept_file(directory, found):
    """Return the text that makes the tokenizer of a set, None where its name does.

    found  {field: value} of its meta.json"""
    name = found['tokenizer']
    said = found.get('tokenizer_sha256')
    if name in KNOWN:
        return None
    if said is None:
        rule = f'one of {", ".join(KNOWN)}, or have a tokenizer_sha256'
        raise damaged(meta_path(directory), 'tokenizer', rule, name)
    path = tokenizer_path(directory, name)
    what = 'the tokenizer of a prepared set'
    with reading(path, what, WAY_OUT), open(path, encoding='utf-8', newline='') as f:
        text = f.read()
    if sha256_of(text) != said:
        raise ValueError(
            f'{path} is not the tokenizer with which the set was prepared: copy the folder again, '
            'or prepare the set again with --force'
        )
    return text


def sha256_of(text):
    return hashlib.sha256(text.encode()).hexdigest()


def split_of(found, name, path):
    """Return the SplitMeta of what the file says of a split. See read_meta."""
    if not isinstance(found, dict):
        raise damaged(path, f'splits.{name}', 'an object', found)
    check_fields(found, SPLIT_FIELDS, SPLIT_FIELDS, path, f'splits.{name}.')
    return SplitMeta(**{field: found[field] for field in SPLIT_FIELDS})


def check_fields(found, rules, needed, path, of=''):
    """Raise ValueError unless all fields that are found or `needed` are as the rules say."""
    for field, (rule, holds) in rules.items():
        if field in found and not holds(found[field]):
            raise damaged(path, of + field, rule, found[field])
        if field in needed and field not in found:
            raise damaged(path, of + field, rule)


def damaged(path, field, rule, *value):
    """Return the error of a field, whose value may be missing."""
    got = f'got {value[0]!r:.60}' if value else 'it is missing'
    return ValueError(
        f'{path} is damaged: {field} must be {rule}, {got}; copy it again, or remove its folder '
        'and prepare the set again'
    )


def kind_of(meta):
    """Return what a checkpoint keeps of a Meta, as a dict.

    This is all but its name, its splits and its command, and but what a set of this tokenizer has
    no need to say."""
    needed = ('given', *NEEDED.get(meta.tokenizer, ()))
    kind = {}
    for field in IN_META:
        value = getattr(meta, field)
        is_said = field not in DEFAULTS or field in needed or value != DEFAULTS[field]
        if is_said and field not in ('name', 'splits', 'made_by'):
            kind[field] = value
    return kind


def write_meta(directory, meta):
    """Write meta.json, and the tokenizer beside it, in one step. A link is replaced."""
    splits = {name: asdict(split) for name, split in meta.splits.items()}
    entries = {'name': meta.name} | kind_of(meta)
    file = entries.pop('tokenizer_file', None)
    if file is not None:
        entries['tokenizer_sha256'] = sha256_of(file)
    if meta.made_by:
        entries['made_by'] = meta.made_by
    entries['splits'] = splits
    texts = {meta_path(directory): plain_json(entries, 2) + '\n'}
    if file is not None:
        texts = {tokenizer_path(directory, meta.tokenizer): file} | texts
    with whole_files(*texts) as temporary:
        for path, text in zip(temporary, texts.values()):
            with open(path, 'w', encoding='utf-8', newline='') as f:
                f.write(text)
