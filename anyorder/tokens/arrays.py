"""How do arrays of integers become a set? Rows of one length, or a stream, checked."""

import os
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from anyorder.machine.files import reading, reading_text
from anyorder.tokens.folder import check_source_is_new, folder_to_write
from anyorder.tokens.meta import Meta, differing, kind_of
from anyorder.tokens.prepared import DATA_SETS, divide
from anyorder.tokens.sources import name_source
from anyorder.tokens.tokenizer import N_IDS
from anyorder.tokens.tokenizers import OWN
from configurator import home

SPLITS = ('train', 'val', 'test')


@dataclass(frozen=True)
class Form:
    """What a file of integers does not say of its tokens.

    end         the token that ends each document of a stream, or None
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
        raise ValueError('tokens are a file of yours: name it with --source=FILE, .npy or .npz')
    origin = name_source(source)
    arrays = splits_of(source, split)
    wanted = ['train', 'val'] if '' in arrays else sorted(arrays)

    # Compare with what is there
    kept = folder.kept(wanted)
    meta = describe(arrays, form, source, folder, kept)
    kind = kind_of(meta)
    old_kind = kind_of(folder.meta) if folder.meta else kind
    if folder.is_done(wanted, origin, old_kind == kind, force):
        return folder.meta
    if kept and old_kind != kind:
        differs = ', '.join(differing(kind, old_kind))
        raise ValueError(
            f'{folder.path} holds {", ".join(kept)} of another kind ({differs}): name another'
        )
    check_source_is_new(origin, kept)

    # Divide and write
    rows = {}
    for s, (tokens, given) in arrays.items():
        rows[s] = pack(tokens, given, meta.dtype, named(s, source))
    if meta.row_length and len(rows.get('', ())) == 1:
        raise ValueError(
            f'{source} holds one row, which cannot be divided into train and val: name its --split'
        )
    splits = {}
    for s, (n, packed) in divide(rows, DATA_SETS['text'].val_ratio).items():
        splits[s] = n, ((row, 0) for row in packed)
    return folder.write(meta, origin, splits)


def named(split, source):
    """Return what an array of a source is called in errors."""
    return f'{split or "the array"} of {source}'


# --------------------------------------------------------------------------------------------------
# Reading


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
    """Return {name: array} of an .npz, {'': array} of an .npy."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in ('.npy', '.npz'):
        raise ValueError(f'{path} must end in .npy or .npz; numpy.save writes the first')
    with reading(path, 'integers', 'save arrays by numpy, without pickled objects'):
        if ending == '.npy':
            return {'': np.load(path, mmap_mode='r', allow_pickle=False)}
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)


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


# --------------------------------------------------------------------------------------------------
# What they are


def describe(arrays, form, source, folder, kept):
    """Return the Meta of the arrays of splits_of. Splits that are `kept` have settled the names and
    the number of tokens."""
    grid = form.grid()
    largest = max(largest_id(tokens, named(s, source)) for s, (tokens, _) in arrays.items())
    lengths = {s: length_of(tokens, grid, named(s, source)) for s, (tokens, _) in arrays.items()}
    row_length, *others = {*lengths.values()}
    if others:
        raise ValueError(
            f'all splits must be rows of one length, or all streams, got {lengths} '
            '(None is a stream)'
        )
    if form.end is not None:
        check_end(form.end, row_length)
        largest = max(largest, form.end)

    names = form.names()
    if kept and not names:
        names = folder.meta.vocabulary
    n_tokens = largest + 1
    if names:
        n_tokens = len(names)
    elif kept:
        n_tokens = folder.meta.n_tokens
    if largest >= n_tokens:
        counted = 'names' if names else f'in {folder.path}'
        raise ValueError(
            f'{source} has the token {largest}, and there are only {n_tokens} {counted}: '
            'each token wants one'
        )
    return Meta(
        folder.name,
        OWN,
        n_tokens,
        form.end,
        kept,
        given=any(given is not None for _, given in arrays.values()),
        row_length=row_length,
        shape=grid,
        vocabulary=names,
    )


def largest_id(tokens, what):
    """Return the largest id of an array. `what` it is stands in errors."""
    if not tokens.size:
        raise ValueError(f'{what} is empty')
    if tokens.dtype.kind not in 'iu':
        raise ValueError(f'{what} must hold integers, got {tokens.dtype}')
    least = int(tokens.min())
    largest = int(tokens.max())
    if least < 0 or largest >= N_IDS:
        wrong = least if least < 0 else largest
        raise ValueError(f'{what} must hold integers from 0 to {N_IDS - 1:,}, got {wrong}')
    return largest


def length_of(tokens, grid, what):
    """Return the length of the rows of an array, each of them a `grid` if there is one; None: the
    array is a stream."""
    if tokens.ndim == 1 and not grid:
        return None
    n = grid and grid[0] * grid[1]
    if tokens.ndim != 2 or n not in (None, tokens.shape[1]):
        wanted = f'rows of {n} tokens, by --shape' if n else 'rows (rows, N) or a stream (n,)'
        raise ValueError(f'{what} must be {wanted}, got an array {tokens.shape}: reshape it')
    return tokens.shape[1]


def check_end(end, row_length):
    """Raise ValueError unless `end` may be the token that ends each document."""
    if row_length or not 0 <= end < N_IDS:
        found = f'rows of {row_length}' if row_length else 'a stream'
        raise ValueError(
            f'end must be a token from 0 to {N_IDS - 1:,}, which ends each document of a stream, '
            f'got {end} for {found}'
        )


def pack(tokens, given, dtype, what):
    """Return an array as it stands on disk: rows (rows, N), or a stream [(n,)].

    given  bools, or None
    dtype  of a token on disk"""
    packed = tokens.astype(dtype, copy=False)
    if given is not None:
        packed = packed | mark_of(given, packed, what)
    return [packed] if packed.ndim == 1 else packed


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
