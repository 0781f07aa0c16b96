"""How do arrays of integers become a set? Rows of one length, or documents of a stream, checked."""

import json
import os
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from anyorder.machine.files import reading, reading_text
from anyorder.tokens.folder import check_source_is_new, folder_to_write
from anyorder.tokens.meta import Meta, kind_of
from anyorder.tokens.prepared import DATA_SETS, divide
from anyorder.tokens.sets import N_IDS, dtype_of, parts_of, type_of
from anyorder.tokens.sources import name_source
from anyorder.tokens.tokenizers import OWN
from configurator import home

KINDS = '.npy, .npz, .parquet, .jsonl, .jsonl.gz, .jsonl.xz'
SPLITS = ('train', 'val', 'test')


@dataclass(frozen=True)
class Form:
    """What a file of integers does not say of its tokens.

    end         the token behind each document of a stream, or None
    vocabulary  path of a file with a name for each token, or ''
    shape       'HxW' where a row is a grid, or ''"""

    end: int | None = None
    vocabulary: str = ''
    shape: str = ''

    def grid(self):
        """Return [H, W], or None where rows are no grids."""
        if not self.shape:
            return None
        found = re.fullmatch(r'([1-9]\d{0,4})x([1-9]\d{0,4})', self.shape)
        if not found:
            raise ValueError(f'shape must be HxW, as 8x8, got {self.shape!r}')
        return [int(side) for side in found.groups()]

    def names(self):
        """Return the names of the tokens, or None."""
        if not self.vocabulary:
            return None
        return read_names(home(self.vocabulary))


def prepare_tokens(data_dir, name='', source='', split='', force=False, **form):
    """Write data_dir/name/<split>.bin and meta.json from a file of integers; return the Meta.

    source  path of the file
    split   what all of it is; '' divides it, or leaves it to an .npz
    force   replace what is there
    form    the fields of a Form"""
    with folder_to_write(data_dir, name or 'tokens', split) as folder:
        return prepare_into(folder, home(source), split, Form(**form), force)


def prepare_into(folder, source, split, form, force):
    """Prepare the tokens of a file in a Folder; return the Meta. See prepare_tokens."""
    if not source:
        raise ValueError(f'tokens are a file of yours: name it with --source=FILE ({KINDS})')
    grid = form.grid()
    origin = name_source(source)

    # Read
    tokens = read_tokens(source, split, grid)
    if form.end is not None:
        check_end(form.end, tokens)

    # Compare with what is there
    wanted = tokens.wanted()
    kept = folder.kept(wanted)
    meta = describe(tokens, form, folder, kept)
    kind = kind_of(meta)
    old_kind = kind_of(folder.meta) if folder.meta else kind
    if folder.is_done(wanted, origin, old_kind == kind, force):
        return folder.meta
    if kept and old_kind != kind:
        differs = ', '.join(field for field in kind if kind[field] != old_kind.get(field))
        raise ValueError(
            f'{folder.path} holds {", ".join(kept)} of another kind ({differs}): name another'
        )
    check_source_is_new(origin, kept)

    # Divide and write
    splits = divide_tokens(tokens, form.end, dtype_of(meta))
    return folder.write(meta, origin, splits)


@dataclass(frozen=True)
class Tokens:
    """The tokens of a source, as on disk, in as many bits as the source needs.

    source      path of the file
    rows        {split: an array (rows, N), or a list of documents (n,)}; '' is still to be divided
    marked      whether the highest bit says what is given
    largest     the largest id
    row_length  N of all rows; None of documents, which are a stream
    grid        [H, W] where a row is a grid, or None"""

    source: str
    rows: dict
    marked: bool
    largest: int
    row_length: int | None
    grid: list | None

    def wanted(self):
        """Return the names of the splits that they become."""
        if '' in self.rows:
            return ['train', 'val']
        return sorted(self.rows)


def read_tokens(source, split, grid):
    """Return the Tokens of a file, the whole of which is this split. Each row is a grid [H, W]."""
    arrays = splits_of(source, split)
    marked = any(given is not None for _, given in arrays.values())
    n = grid and grid[0] * grid[1]

    named = {s: f'{s or "the array"} of {source}' for s in arrays}
    largest = max(largest_id(tokens, named[s]) for s, (tokens, _) in arrays.items())
    dtype = type_of(largest + 1, 15 if marked else 16)

    rows = {}
    lengths = {}
    for s, (tokens, given) in arrays.items():
        packed = pack(tokens, given, n, dtype, named[s])
        if not sum(map(len, packed)):
            raise ValueError(f'{named[s]} is empty')
        rows[s] = packed
        lengths[s] = packed.shape[1] if isinstance(packed, np.ndarray) else None

    row_length, *others = {*lengths.values()}
    if others:
        raise ValueError(
            f'all splits must be rows of one length, or all streams, got {lengths} '
            '(None is a stream)'
        )
    return Tokens(source, rows, marked, largest, row_length, grid)


def splits_of(path, split):
    """Return {split: (tokens, given or None)} of a file; '' is still to be divided."""
    arrays = read_arrays(path)
    if '' in arrays:
        return {split: (arrays[''], None)}
    there = [s for s in SPLITS if s in arrays]
    known = {*there, 'given', *(f'given_{s}' for s in there)}
    if not there or arrays.keys() - known:
        got = ', '.join(arrays) or 'nothing'
        raise ValueError(
            f'an .npz must hold the arrays {", ".join(SPLITS)}, and given_train, ... or given, '
            f'got {got}'
        )
    if split:
        raise ValueError(f'{path} names its splits itself: leave --split={split} out')

    found = {}
    for s in there:
        given = arrays.get(f'given_{s}', arrays.get('given'))
        if given is None and len(arrays) > len(there):
            raise ValueError(
                f'{path} says what is given in some splits, but not in {s}: add given_{s}'
            )
        found[s] = arrays[s], given
    return found


def read_arrays(path):
    """Return {name: array} of an .npz, else {'': tokens}: an array, or a list of documents."""
    ending = os.path.splitext(path)[1].lower()
    if not path.lower().endswith(tuple(KINDS.split(', '))):
        raise ValueError(f'{path} must end in {KINDS}')
    way_out = 'save arrays by numpy, without pickled objects, or lists of integers'
    with reading(path, 'integers', way_out):
        if ending == '.npz':
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        if ending == '.npy':
            return {'': np.load(path, mmap_mode='r', allow_pickle=False)}
        lists = read_column(path) if ending == '.parquet' else read_lines(path)
        return {'': [document_of(tokens) for tokens in lists]}


def read_column(path):
    """Return the lists in the only column of a .parquet."""
    from pyarrow.parquet import read_table

    with open(path, 'rb') as f:
        (column,) = read_table(f).columns
    return column.to_pylist()


def read_lines(path):
    """Yield the list in each line of a .jsonl."""
    with reading_text(path, '\n') as f:
        for line in f:
            if line.strip():
                yield json.loads(line)


def document_of(tokens):
    """Return the array (n,) of a list, in 16 or 32 bits where its numbers fit.

    Numbers that do not are refused later."""
    dtype = None if len(tokens) else int  # no number is a float to numpy
    found = np.array(tokens, dtype)
    if found.ndim != 1:
        raise ValueError('lists in lists')
    if found.dtype.kind not in 'iu':
        return found
    largest = found.max(initial=0)
    if found.min(initial=0) < 0 or largest >= N_IDS:
        return found
    return found.astype(type_of(int(largest) + 1, 16))


def largest_id(tokens, what):
    """Return the largest id of an array, or of a list of documents. `what` is as for pack.

    Raises ValueError unless all are whole numbers from 0 to below N_IDS."""
    if not isinstance(tokens, list):
        return largest_of(tokens, what)
    sizes = (largest_of(part, f'list {i} of {what}') for i, part in enumerate(tokens))
    return max(sizes, default=0)


def largest_of(tokens, what):
    """Return the largest id of an array. See largest_id."""
    if tokens.dtype.kind not in 'iuf':
        raise ValueError(f'{what} must hold integers, got {tokens.dtype}')
    largest = 0
    for start, part in parts_of(tokens.reshape(-1)):
        fits = (part >= 0) & (part < N_IDS)
        if tokens.dtype.kind == 'f':
            fits &= part == np.floor(part, where=fits, out=np.zeros(part.shape))
        if not fits.all():
            first = np.unravel_index(start + fits.argmin(), tokens.shape)
            place = tuple(map(int, first))
            raise ValueError(
                f'{what} must hold integers from 0 to {N_IDS - 1:,}, got {tokens[place]} '
                f'at {list(place)}'
            )
        largest = max(largest, int(part.max()))
    return largest


def pack(tokens, given, n, dtype, what):
    """Return tokens as they stand on disk: rows (rows, N), or a list of documents (n,).

    tokens  an array, or a list of documents
    given   bools for an array, or None
    n       the length of rows; None takes the array as it is
    dtype   of a token on disk
    what    what they are, for errors"""
    if isinstance(tokens, list):
        return pack_documents(tokens, n, dtype, what)
    packed = tokens.astype(dtype, copy=False)
    if given is not None and packed.size:
        packed = packed | mark_of(given, packed, what)
    if packed.ndim == 1 and not n:
        return [packed]  # a stream
    if packed.ndim != 2 or n not in (None, packed.shape[1]):
        wanted = f'rows of {n} tokens, by --shape' if n else 'rows (rows, N) or a stream (n,)'
        raise ValueError(f'{what} must be {wanted}, got an array {packed.shape}: reshape it')
    return packed


def pack_documents(documents, n, dtype, what):
    """Pack documents; with `n` as rows (rows, n). See pack."""
    packed = [part.astype(dtype, copy=False) for part in documents]
    if not n or not packed:
        return packed
    for i, part in enumerate(packed):
        if len(part) != n:
            raise ValueError(f'list {i} of {what} has {len(part)} tokens, --shape says {n}')
    return np.stack(packed)


def mark_of(given, tokens, what):
    """Return the bit of each token on disk that says what is given: tokens (..., N), given or (N,).

    Raises ValueError for another shape or type of `given`, and for a row that is given as a whole.
    """
    if given.dtype != bool or given.shape not in (tokens.shape, tokens.shape[-1:]):
        raise ValueError(
            f'given of {what} must be bools of shape {tokens.shape} or {tokens.shape[-1:]}, got '
            f'{given.dtype} of shape {given.shape}'
        )
    whole = np.broadcast_to(given, tokens.shape).all(-1)
    if whole.any():
        raise ValueError(
            f'row {whole.argmax()} of {what} is given as a whole, nothing is left to learn: '
            'leave it out'
        )
    mark = 1 << 8 * tokens.itemsize - 1
    return given.astype(tokens.dtype) * tokens.dtype.type(mark)


def check_end(end, tokens):
    """Raise ValueError unless `end` may be written behind each document of Tokens."""
    if tokens.row_length or not 0 <= end < N_IDS:
        found = f'rows of {tokens.row_length}' if tokens.row_length else 'a stream'
        raise ValueError(
            f'end must be a token from 0 to {N_IDS - 1:,}, behind the documents of a stream, '
            f'got {end} for {found}'
        )
    for documents in tokens.rows.values():
        if len(documents) == 1:  # which may have had its ends already
            continue
        if any((document == end).any() for document in documents):
            raise ValueError(f'end must be a token that no document holds, got {end}')


def describe(tokens, form, folder, kept):
    """Return the Meta of Tokens. Splits that are `kept` have settled the names and their number."""
    names = form.names()
    if kept and not names:
        names = folder.meta.vocabulary
    largest = max(tokens.largest, form.end or 0)
    n_tokens = largest + 1
    if names:
        n_tokens = len(names)
    elif kept:
        n_tokens = folder.meta.n_tokens
    if largest >= n_tokens:
        counted = 'names' if names else f'in {folder.path}'
        raise ValueError(
            f'{tokens.source} has the token {largest}, and there are only {n_tokens} {counted}: '
            'each token wants one'
        )
    return Meta(
        folder.name,
        OWN,
        n_tokens,
        form.end,
        kept,
        given=tokens.marked,
        row_length=tokens.row_length,
        shape=tokens.grid,
        vocabulary=names,
    )


def read_names(path):
    """Return the names of tokens: a name a line, without blanks."""
    with reading_text(path, None) as f:
        names = f.read().splitlines()
    counts = Counter(names)
    wrong = [name for name in names if counts[name] > 1 or not is_name(name)]
    if wrong or not names:
        got = wrong[0] if wrong else 'nothing'
        raise ValueError(
            f'{path} must hold a name a line, each once and without blanks or [[, got {got!r}'
        )
    return names


def is_name(text):
    return re.fullmatch(r'\S+', text) and '[[' not in text


def divide_tokens(tokens, end, dtype):
    """Return {split: (number of rows, rows)} for Folder.write, of this type of a token, with `end`
    behind each document."""
    if tokens.row_length and len(tokens.rows.get('', ())) == 1:
        raise ValueError(
            f'{tokens.source} holds one row, which cannot be divided into train and val: '
            'name its --split'
        )
    splits = {}
    for split, (n, rows) in divide(tokens.rows, DATA_SETS['text'].val_ratio).items():
        splits[split] = n, ((as_on_disk(row, tokens.marked, end, dtype), 0) for row in rows)
    return splits


def as_on_disk(row, marked, end, dtype):
    """Return a row in this type of a token, with `end` behind it unless it is None.

    The set may have more tokens than its source: names for more, or a split with larger ones."""
    wide = row.astype(dtype, copy=False)
    if marked and dtype != row.dtype:
        mark = 1 << 8 * row.itemsize - 1
        wide = np.where(row >= mark, wide - mark + (1 << 8 * dtype.itemsize - 1), wide)
    if end is None:
        return wide
    return np.append(wide, np.array([end], dtype))
