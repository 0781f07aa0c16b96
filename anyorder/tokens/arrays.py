"""How do arrays of integers become a set? Rows of one length, or the documents of a stream, checked and written."""

import json
import os
import re
from collections import Counter

import numpy as np

from anyorder.machine.files import reading, reading_text
from anyorder.tokens.meta import Meta, kind_of
from anyorder.tokens.prepared import DATA_SETS, check_source_is_new, divide
from anyorder.tokens.sets import GIVEN, is_there, parts_of, set_to_write, whole_splits, write_splits
from anyorder.tokens.sources import name_source
from anyorder.tokens.tokenizers import OWN
from configurator import home

KINDS = '.npy, .npz, .parquet, .jsonl, .jsonl.gz, .jsonl.xz'
SPLITS = ('train', 'val', 'test')


def read_arrays(path):
    """{name: array} of an .npz, else {'': tokens}: an array, or a list of documents."""
    ending = os.path.splitext(path)[1].lower()
    if not path.lower().endswith(tuple(KINDS.split(', '))):
        raise ValueError(f'{path} must end in {KINDS}')
    with reading(
        path, 'integers', 'save arrays by numpy, without pickled objects, or lists of integers'
    ):
        if ending == '.npz':
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        if ending == '.npy':
            return {'': np.load(path, mmap_mode='r', allow_pickle=False)}
        if ending == '.parquet':
            from pyarrow.parquet import read_table

            with open(path, 'rb') as f:
                (column,) = read_table(f).columns
            return {'': [document_of(tokens) for tokens in column.to_pylist()]}
        with reading_text(path, '\n') as f:
            return {'': [document_of(json.loads(line)) for line in f if line.strip()]}


def document_of(tokens):
    """The array (n,) of a list, in 16 bits where its numbers fit; others are refused later, as they are."""
    found = np.array(tokens) if len(tokens) else np.array(tokens, int)
    if found.ndim != 1:
        raise ValueError('lists in lists')
    fits = (
        found.dtype.kind in 'iu'
        and (found.min(initial=0) >= 0)
        and (found.max(initial=0) <= 0xFFFF)
    )
    return found.astype('<u2') if fits else found


def splits_of(path, split):
    """{split: (tokens, given or None)} of a source; '' is still to be divided."""
    arrays = read_arrays(path)
    if '' in arrays:
        return {split: (arrays[''], None)}
    there = [s for s in SPLITS if s in arrays]
    if not there or arrays.keys() - {*there, 'given', *(f'given_{s}' for s in there)}:
        raise ValueError(
            f'an .npz must hold the arrays {", ".join(SPLITS)}, and given_train, ... or given, got '
            f'{", ".join(arrays) or "nothing"}'
        )
    if split:
        raise ValueError(f'{path} names its splits itself: leave --split={split} out')
    found = {s: (arrays[s], arrays.get(f'given_{s}', arrays.get('given'))) for s in there}
    if lacking := [
        s for s, (_, given) in found.items() if given is None and len(arrays) > len(there)
    ]:
        raise ValueError(
            f'{path} says what is given in some splits, but not in {lacking[0]}: add given_{lacking[0]}'
        )
    return found


def check_ids(tokens, most, what):
    """The tokens as uint16. Raises ValueError unless all are whole numbers from 0 to `most`."""
    if tokens.dtype.kind not in 'iuf':
        raise ValueError(f'{what} must hold integers, got {tokens.dtype}')
    for start, part in parts_of(tokens.reshape(-1)):
        fits = (part >= 0) & (part <= most)
        if tokens.dtype.kind == 'f':
            fits &= part == np.floor(part, where=fits, out=np.zeros(part.shape))
        if not fits.all():
            place = tuple(map(int, np.unravel_index(start + fits.argmin(), tokens.shape)))
            raise ValueError(
                f'{what} must hold integers from 0 to {most:,}, got {tokens[place]} at {list(place)}'
                + (', and bit 15 says what is given' if most < 0xFFFF else '')
            )
    return tokens.astype('<u2', copy=False)


def largest_in(tokens, most):
    """The largest of the ids (tokens & most) of a row."""
    return max(int((part & most).max()) for _, part in parts_of(tokens))


def with_end(row, end):
    return row if end is None else np.append(row, np.array([end], '<u2'))


def check_given(given, tokens, what):
    """`given` as the mark of tokens on disk."""
    if given.dtype != bool or given.shape not in (tokens.shape, tokens.shape[-1:]):
        raise ValueError(
            f'given of {what} must be bools of shape {tokens.shape} or {tokens.shape[-1:]}, got '
            f'{given.dtype} of shape {given.shape}'
        )
    whole = np.broadcast_to(given, tokens.shape).all(-1)
    if whole.any():
        raise ValueError(
            f'row {whole.argmax()} of {what} is given as a whole, nothing is left to learn: leave it out'
        )
    return GIVEN * given.astype('<u2')


def pack(tokens, given, n, most, what):
    """Tokens as on disk, with the mark of given ones: rows (rows, N), rows of a length `n`, or a list of documents."""
    if isinstance(tokens, list):
        packed = [check_ids(part, most, f'list {i} of {what}') for i, part in enumerate(tokens)]
        if wrong := [i for i, part in enumerate(packed) if n and len(part) != n]:
            raise ValueError(
                f'list {wrong[0]} of {what} has {len(packed[wrong[0]])} tokens, --shape says {n}'
            )
        packed = np.stack(packed) if n and packed else packed
    else:
        packed = check_ids(tokens, most, what)
        packed = (
            packed
            if given is None or not packed.size
            else packed | check_given(given, packed, what)
        )
        packed = [packed] if packed.ndim == 1 and not n else packed
    if not isinstance(packed, list) and (packed.ndim != 2 or n not in (None, packed.shape[1])):
        wanted = f'rows of {n} tokens, by --shape' if n else 'rows (rows, N) or a stream (n,)'
        raise ValueError(f'{what} must be {wanted}, got an array {packed.shape}: reshape it')
    if not sum(map(len, packed)):
        raise ValueError(f'{what} is empty')
    return packed


def read_names(path):
    """The names of the tokens: a name a line, without blanks."""
    with reading_text(path, None) as f:
        names = f.read().splitlines()
    counts = Counter(names)
    wrong = [
        name for name in names if not re.fullmatch(r'\S+', name) or '[[' in name or counts[name] > 1
    ]
    if wrong or not names:
        raise ValueError(
            f'{path} must hold a name a line, each once and without blanks or [[, got '
            f'{wrong[0] if wrong else "nothing"!r}'
        )
    return names


def prepare_tokens(
    data_dir, name='', source='', split='', end=None, vocabulary='', shape='', force=False
):
    """Write data_dir/name/<split>.bin and meta.json from a file of integers; returns the meta. `vocabulary` is the path
    of the names, `end` the token behind each document of a stream, `shape` 'HxW' says that a row is a grid."""
    name, data_dir, source, vocabulary = (
        name or 'tokens',
        home(data_dir),
        home(source),
        home(vocabulary),
    )
    with set_to_write(data_dir, name, split) as (directory, meta):
        return prepare_into(directory, meta, name, source, split, end, vocabulary, shape, force)


def prepare_into(directory, meta, name, source, split, end, vocabulary, shape, force):
    """As `prepare_tokens`, into a folder with this Meta, which no other process writes meanwhile."""
    if not source:
        raise ValueError(f'tokens are a file of yours: name it with --source=FILE ({KINDS})')
    grid = re.fullmatch(r'([1-9]\d{0,4})x([1-9]\d{0,4})', shape)
    if shape and not grid:
        raise ValueError(f'shape must be HxW, as 8x8, got {shape!r}')
    origin, shape = name_source(source), [int(side) for side in grid.groups()] if grid else None

    # the tokens
    arrays = splits_of(source, split)
    marked = any(given is not None for _, given in arrays.values())
    most = GIVEN - 1 if marked else 0xFFFF
    n = shape and shape[0] * shape[1]
    rows = {s: pack(*arrays[s], n, most, f'{s or "the array"} of {source}') for s in arrays}
    lengths = {
        s: part.shape[1] if isinstance(part, np.ndarray) else None for s, part in rows.items()
    }
    row_length, *others = {*lengths.values()}
    if others:
        raise ValueError(
            f'all splits must be rows of one length, or all streams, got {lengths} (None is a stream)'
        )
    if end is not None and (row_length or not 0 <= end <= most):
        raise ValueError(
            f'end must be a token from 0 to {most:,}, behind the documents of a stream, got {end} for '
            f'{f"rows of {row_length}" if row_length else "a stream"}'
        )
    if end is not None and any(
        (part == end).any() for parts in rows.values() if len(parts) > 1 for part in parts
    ):
        raise ValueError(f'end must be a token that no document holds, got {end}')

    # the kind of the set
    wanted = sorted(rows) if '' not in rows else ['train', 'val']
    kept = {s: info for s, info in whole_splits(directory, meta).items() if s not in wanted}
    names = read_names(vocabulary) if vocabulary else meta.vocabulary if kept else None
    found = (largest_in(part, most) for parts in rows.values() for part in parts if len(part))
    largest = max(max(found), end or 0)
    n_tokens = len(names) if names else meta.n_tokens if kept else largest + 1
    if largest >= n_tokens:
        raise ValueError(
            f'{source} has the token {largest}, and there are only {n_tokens} '
            f'{"names" if names else f"in {directory}"}: each token wants one'
        )
    new = Meta(
        name,
        OWN,
        n_tokens,
        end,
        kept,
        given=marked,
        row_length=row_length,
        shape=shape,
        vocabulary=names,
    )
    kind, old_kind = kind_of(new), kind_of(meta or new)
    if is_there(directory, meta, wanted, origin, old_kind == kind, force):
        return meta
    if kept and old_kind != kind:
        differs = [field for field in kind if kind[field] != old_kind.get(field)]
        raise ValueError(
            f'{directory} holds {", ".join(kept)} of another kind ({", ".join(differs)}): name another'
        )
    check_source_is_new(origin, kept)
    if row_length and '' in rows and len(rows['']) < 2:
        raise ValueError(
            f'{source} holds one row, which cannot be divided into train and val: name its --split'
        )
    parts = divide(rows, DATA_SETS['text'].val_ratio).items()
    splits = {s: (n, ((with_end(row, end), 0) for row in part)) for s, (n, part) in parts}
    return write_splits(directory, new, kept, origin, splits)
