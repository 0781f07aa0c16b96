"""What is a prepared set? A folder with a file <split>.bin of tokens a split, see Meta.pack, and
meta.json, which says what they are. It is read once, and known to be whole by its hash; of a .bin
the size is checked.

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
tokenizers writes it.

The last field, `check`, is a hash of all others and of this tokenizer: who writes a set has checked
it, and a file that was changed since is refused."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import numpy as np

from anyorder.machine.files import plain_json, read_text, reading, whole_files
from anyorder.tokens.tokenizer import KNOWN

WAY_OUT = 'choose another name for the set, or another --data_dir'


@dataclass(frozen=True)
class Meta:
    """What is said of a set, and `tokenizer_file`, the text that makes its tokenizer where the name
    alone does not.

    A checkpoint keeps it without the name, the splits and the command: see kind_of."""

    name: str = ''
    tokenizer: str = ''
    n_tokens: int = 0  # 0 is not known
    eos: int | None = None
    splits: dict = field(default_factory=dict)
    given: bool = False
    prompts: bool = False
    row_length: int | None = None
    shape: list | None = None
    vocabulary: list | None = None
    puzzle: dict | None = None
    made_by: str | None = None
    tokenizer_file: str | None = None

    def __post_init__(self):
        """Raise TypeError for a field of another type: a file may be damaged."""
        for one in fields(self):
            if not isinstance(getattr(self, one.name), one.type):
                raise TypeError(one.name)
        ''.join(self.vocabulary or ())  # of texts alone

    @property
    def dtype(self):
        """The type of a token on disk: 16 bits if they are enough, of which a mark takes one."""
        n_bits = 15 if self.given else 16
        return np.dtype('<u2' if self.n_tokens <= 2**n_bits else '<u4')

    @property
    def is_stream(self):
        """Whether a block may start at any token; else it is a row."""
        return not self.row_length and not self.prompts

    @property
    def mark(self):
        """The highest bit of a token on disk, which says of a set with given tokens whether it is
        one."""
        return 1 << 8 * self.dtype.itemsize - 1

    def pack(self, tokens, given):
        """Return tokens (...) as on disk; of a set without given tokens `given` is not read."""
        packed = np.asarray(tokens, self.dtype)
        if not self.given:
            return packed
        return packed | np.multiply(given, self.mark, dtype=self.dtype)

    def unpack(self, packed):
        """Return (tokens, given), int64 and bool, of tokens as on disk."""
        tokens = packed.astype(np.int64)
        if not self.given:
            return tokens, np.zeros_like(tokens, bool)
        return tokens & (self.mark - 1), tokens >= self.mark


def kind_of(meta):
    """Return a Meta without what is only said of this set: which kind of set it is."""
    return replace(meta, name='', splits={}, made_by=None)


def meta_path(directory):
    return os.path.join(directory, 'meta.json')


def tokenizer_path(directory):
    """Return the file in which a set keeps a tokenizer that its name does not make."""
    return os.path.join(directory, 'tokenizer.json')


def bin_path(directory, split):
    return os.path.join(directory, f'{split}.bin')


def read_meta(directory, force=False):
    """Return the Meta of a prepared set, None where there is none.

    Raises ValueError for a file of another kind, and for one that was changed, which by `force` is
    none."""
    path = meta_path(directory)
    if not os.path.exists(path):
        return None
    file = None
    with reading(path, 'the meta.json of a prepared set', WAY_OUT):
        entries = {**json.loads(read_text(path))}
        check = entries.pop('check', None)
        beside = Path(tokenizer_path(directory))
        if entries['tokenizer'] not in KNOWN and beside.exists():
            file = beside.read_bytes().decode()
    if check_of(entries, file) != check:
        if force:
            return None
        raise ValueError(
            f'{path} or the tokenizer beside it is damaged: copy the folder again, or prepare the '
            'set again with --force'
        )
    entries['name'] = os.path.basename(directory)  # the folder may be a copy, or have a new name
    return Meta(**entries, tokenizer_file=file)


def check_of(entries, file):
    """Return a hash of the other fields of meta.json, and of a tokenizer's file or None."""
    return hashlib.sha256((plain_json(entries) + (file or '')).encode()).hexdigest()


def write_meta(directory, meta):
    """Write meta.json, and the tokenizer beside it, in one step. A link is replaced."""
    entries = asdict(meta)
    texts = {}
    file = entries.pop('tokenizer_file')
    if file is not None:
        texts[tokenizer_path(directory)] = file
    entries['check'] = check_of(entries, file)
    texts[meta_path(directory)] = plain_json(entries, 2) + '\n'
    with whole_files(*texts) as temporary:
        for path, text in zip(temporary, texts.values()):
            Path(path).write_bytes(text.encode())


def whole_splits(directory, meta):
    """Return {split: its entry in meta.json} for the splits whose files have the size that it says.

    Of no Meta there are none."""
    whole = {}
    for split, entry in meta.splits.items() if meta else ():
        path = bin_path(directory, split)
        n_bytes = meta.dtype.itemsize * entry['tokens']
        if os.path.exists(path) and os.path.getsize(path) == n_bytes:
            whole[split] = entry
    return whole
