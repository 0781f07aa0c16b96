"""How do arrays of integers become a set? Rows of one length, or a stream, checked."""

import math
import os
import re
from functools import partial

import numpy as np

from anyorder.machine.files import read_text, reading
from anyorder.tokens.documents import SPLITS, TRAIN_AND_VAL, VAL_RATIO, Source, draw_val
from anyorder.tokens.folder import folder_to_write, place_of
from anyorder.tokens.meta import Meta, kind_of
from anyorder.tokens.sources import name_source, state_of, unchanged
from anyorder.tokens.tokenizer import N_IDS, OWN
from configurator import differing, home


def prepare_tokens(data_dir, name='', source='', split='', force=False, **form):
    """Write data_dir/name/<split>.bin and meta.json from a file of integers; return the Meta.

    source  path of the file
    split   what all of it is; '' divides it, or leaves it to an .npz
    force   replace what is there
    form    end, vocabulary and shape, see describe"""
    source = home(source)
    path = place_of(data_dir, name or 'tokens', split)
    if not os.path.isfile(source):
        raise ValueError(f'no file {source!r}: name one of yours with --source=FILE, .npy or .npz')
    state = state_of(source)
    arrays = read_arrays(source, split)
    found = Source(name_source(source), arrays)
    with folder_to_write(path, found.splits, found.origin, force) as folder:
        meta = describe(arrays, source, folder.meta if folder.kept else None, **form)
        differs = [*differing(vars(meta), vars(kind_of(folder.meta)))] if folder.meta else []
        if folder.is_done(differs):
            return folder.meta
        encoded = partial(encode_arrays, arrays, meta)
        return folder.write(meta, unchanged(source, state, encoded))


def encode_arrays(arrays, meta):
    """Yield what Folder.write wants of the arrays of read_arrays. They are divided as documents
    are, of which a stream is one."""
    for split, array in arrays.items():
        packed = meta.pack(*array)
        n_rows = len(packed) if meta.row_length else 1
        if split:
            yield split, packed, 0, n_rows
        elif meta.row_length:
            in_val = draw_val(n_rows, VAL_RATIO)
            for number, row in enumerate(packed):
                yield TRAIN_AND_VAL[number in in_val], row, 0, 1
        else:
            cut = int(len(packed) * (1 - VAL_RATIO))
            yield 'train', packed[:cut], 0, 1
            yield 'val', packed[cut:], 0, 1


# --------------------------------------------------------------------------------------------------
# Reading


def read_arrays(path, split):
    """Return {split: (tokens, given)} of a file, as a Source has them, `given` () where
    nothing is."""
    nothing = np.array(False)
    way_out = 'save an .npy by numpy.save, an .npz by numpy.savez, without pickled objects'
    with reading(path, 'integers', way_out):
        found = np.load(path, mmap_mode='r', allow_pickle=False)
        if isinstance(found, np.ndarray):
            return {split: (found, nothing)}
        with found:
            arrays = dict(found)
    given = arrays.pop('given', nothing)
    named = [s for s in SPLITS if s in arrays]
    parts = {s: (arrays.pop(s), arrays.pop(f'given_{s}', given)) for s in named}
    if split or not parts or arrays:
        raise ValueError(
            f'an .npz names its splits itself, without --split, as arrays {", ".join(SPLITS)}, and '
            f'what is given in all of them as given, or given_train, ...; {path} has '
            f'{", ".join(found.files)}'
        )
    return parts


def read_names(path):
    """Return the names of tokens: a name a line, without blanks."""
    names = read_text(path).splitlines()
    wrong = [name for name in names if '[[' in name or not re.fullmatch(r'\S+', name)]
    if wrong or not names or len({*names}) < len(names):
        raise ValueError(
            f'{path} must hold a name a line, each once and without blanks or [[, got {wrong[:1]}'
        )
    return names


# --------------------------------------------------------------------------------------------------
# What they are


def describe(arrays, source, before, end=None, vocabulary='', shape=''):
    """Return the Meta of the arrays of read_arrays.

    before      the Meta of splits that stay, which has what is not said anew, or None
    end         the token that ends each document of a stream, or None
    vocabulary  path of a file with a name for each token, or ''
    shape       'HxW' where a row is a grid, or ''"""
    first, _ = next(iter(arrays.values()))
    for tokens, given in arrays.values():
        check_array(tokens, given, first.shape[1:], source)
    n_row = first.shape[1] if first.ndim > 1 else None
    n_tokens = 1 + max(int(tokens.max()) for tokens, _ in arrays.values())
    sides = grid_of(shape, end, n_row)
    if end is not None:
        n_tokens = max(n_tokens, end + 1)
    before = before or Meta('', OWN, n_tokens)
    names = read_names(home(vocabulary)) if vocabulary else before.vocabulary
    known = before.n_tokens
    if names:
        known = len(names)
    if n_tokens > known:
        raise ValueError(
            f'{source} has the token {n_tokens - 1}, and there are only {known} tokens in the '
            'vocabulary: each token wants a name'
        )
    return Meta(
        '',
        OWN,
        known,
        before.eos if end is None else end,
        given=any(given.ndim for _, given in arrays.values()),
        row_length=n_row,
        shape=sides or before.shape,
        vocabulary=names,
    )


def check_array(tokens, given, of_row, source):
    """Raise ValueError unless tokens are rows of a shape or a stream of integers, and `given` bools
    for these which leave something to learn of each row."""
    shape = tokens.shape
    is_stack = tokens.ndim in (1, 2) and shape[1:] == of_row
    is_whole = tokens.dtype.kind in 'iu' and is_stack and tokens.size
    if not is_whole or tokens.min() < 0 or tokens.max() >= N_IDS:
        raise ValueError(
            f'{source} must hold integers from 0 to {N_IDS - 1:,}, as rows of one length (rows, N) '
            f'or a stream (n,), got {tokens.dtype} of shape {shape}'
        )
    fits = given.dtype == bool and given.shape in ((), shape, shape[-1:])
    if not fits or np.broadcast_to(given, shape).all(-1).any():
        raise ValueError(
            f'given of {source} must be bools of shape {shape} or {shape[-1:]} that leave '
            f'something of each row to learn, got {given.dtype} of shape {given.shape}'
        )


def grid_of(shape, end, n_row):
    """Return [H, W] of the option `shape`, None of ''.

    Raises ValueError unless it fits rows of n_row tokens, and `end` may be the token that ends each
    document of a stream, where n_row is None."""
    is_typed = re.fullmatch('[0-9]+x[0-9]+', shape)
    sides = [int(side) for side in shape.split('x')] if is_typed else [0]
    is_grid = not shape or math.prod(sides) == n_row
    is_end = end is None or (n_row is None and 0 <= end < N_IDS)
    if not (is_grid and is_end):
        said = f'rows of {n_row}' if n_row else 'a stream'
        raise ValueError(
            'shape is HxW, as 8x8, for rows of H * W tokens, and end a token from 0 to '
            f'{N_IDS - 1:,}, which ends each document of a stream: got {shape=} and {end=} for '
            f'{said}'
        )
    return sides if shape else None
