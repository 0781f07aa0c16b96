"""How do arrays of integers become a set? Rows of one length, or a stream, checked."""

import re

import numpy as np

from anyorder.machine.files import reading, reading_text
from anyorder.tokens.folder import folder_to_write
from anyorder.tokens.meta import Meta, kind_of
from anyorder.tokens.prepared import DATA_SETS, TRAIN_AND_VAL, draw_val, splits_of
from anyorder.tokens.sources import name_source
from anyorder.tokens.tokenizer import N_IDS
from anyorder.tokens.tokenizers import OWN
from configurator import differing, home

SPLITS = ('train', 'val', 'test')


def prepare_tokens(data_dir, name='', source='', split='', force=False, **form):
    """Write data_dir/name/<split>.bin and meta.json from a file of integers; return the Meta.

    source  path of the file
    split   what all of it is; '' divides it, or leaves it to an .npz
    force   replace what is there
    form    end, vocabulary and shape, see describe"""
    if not source:
        raise ValueError('tokens are a file of yours: name it with --source=FILE, .npy or .npz')
    source = home(source)
    arrays = read_arrays(source, split)
    made = data_dir, name or 'tokens', splits_of(arrays), name_source(source), force
    with folder_to_write(*made) as folder:
        kept = folder.meta if folder.kept else None
        meta = describe(arrays, source, kept, **form)
        others = [*differing(vars(meta), vars(kind_of(folder.meta)))] if folder.meta else []
        if folder.is_done(others):
            return folder.meta
        rows = {s: packed(*array, meta, source) for s, array in arrays.items()}
        return folder.write(meta, divided(rows, DATA_SETS['text'].val_ratio))


def divided(arrays, val_ratio):
    """Yield the pieces of {split: array} for Folder.write, arrays of rows (rows, N) or of streams
    (n,). What '' names is divided as documents are, of which a stream is one."""
    for split, array in arrays.items():
        is_stream = array.ndim == 1
        if split:
            yield split, array, 0, 1 if is_stream else len(array)
        elif is_stream:
            cut = int(len(array) * (1 - val_ratio))
            yield 'train', array[:cut], 0, 1
            yield 'val', array[cut:], 0, 1
        else:
            for is_val, row in zip(draw_val(len(array), val_ratio), array):
                yield TRAIN_AND_VAL[is_val], row, 0, 1


# --------------------------------------------------------------------------------------------------
# Reading


def read_arrays(path, split):
    """Return {split: (tokens, given or None)} of a file; '' is still to be divided."""
    if not path.lower().endswith(('.npy', '.npz')):
        raise ValueError(f'{path} must end in .npy or .npz; numpy.save writes the first')
    way_out = 'save an .npy by numpy.save, an .npz by numpy.savez, without pickled objects'
    with reading(path, 'integers', way_out):
        if path.lower().endswith('.npy'):
            array = np.load(path, mmap_mode='r', allow_pickle=False)
            if not isinstance(array, np.ndarray):  # an .npz by this name
                raise ValueError
            return {split: (array, None)}
        with np.load(path, allow_pickle=False) as found:
            arrays = dict(found)
    there = [s for s in SPLITS if s in arrays]
    given = {s: arrays.get(f'given_{s}', arrays.get('given')) for s in there}
    known = {*there, 'given', *(f'given_{s}' for s in there)}
    is_given = [x is not None for x in given.values()]
    if split or not there or arrays.keys() - known or len({*is_given}) > 1:
        raise ValueError(
            f'an .npz names its splits itself, without --split, as arrays {", ".join(SPLITS)}, and '
            'what is given in all of them as given, or given_train, ...; '
            f'{path} has {", ".join(arrays)}'
        )
    return {s: (arrays[s], given[s]) for s in there}


def read_names(path):
    """Return the names of tokens: a name a line, without blanks."""
    with reading_text(path, None) as f:
        names = f.read().splitlines()
    wrong = [name for name in names if '[[' in name or not re.fullmatch(r'\S+', name)]
    if wrong or not names or len({*names}) < len(names):
        raise ValueError(
            f'{path} must hold a name a line, each once and without blanks or [[, got {wrong[:1]}'
        )
    return names


# --------------------------------------------------------------------------------------------------
# What they are


def describe(arrays, source, kept, end=None, vocabulary='', shape=''):
    """Return the Meta of the arrays of read_arrays.

    kept        the Meta of splits that stay, which have settled the names and the number of tokens
    end         the token that ends each document of a stream, or None
    vocabulary  path of a file with a name for each token, or ''
    shape       'HxW' where a row is a grid, or ''"""
    n_tokens = 1 + max(largest_id(tokens, source) for tokens, _ in arrays.values())
    n_row = row_length(arrays, source)
    if end is not None:
        check_end(end, n_row)
        n_tokens = max(n_tokens, end + 1)
    names = read_names(home(vocabulary)) if vocabulary else kept and kept.vocabulary
    known = kept.n_tokens if kept else n_tokens
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
        end,
        given=any(given is not None for _, given in arrays.values()),
        row_length=n_row,
        shape=grid_of(shape, n_row),
        vocabulary=names,
    )


def largest_id(tokens, source):
    """Return the largest id of an array of a source."""
    got = f'{tokens.dtype} of shape {tokens.shape}'
    if tokens.dtype.kind in 'iu' and tokens.size:
        if 0 <= tokens.min() and tokens.max() < N_IDS:
            return int(tokens.max())
        got = f'{tokens.dtype}: {tokens.min()} to {tokens.max()}'
    raise ValueError(f'{source} must hold integers from 0 to {N_IDS - 1:,}, got {got}')


def row_length(arrays, source):
    """Return the length of the rows of arrays; None: they are streams."""
    shapes = [tokens.shape for tokens, _ in arrays.values()]
    if len({shape[1:] for shape in shapes}) > 1 or len(shapes[0]) not in (1, 2):
        raise ValueError(
            f'{source} must hold rows of one length (rows, N), or a stream (n,), got {shapes}: '
            'reshape it'
        )
    return shapes[0][1] if len(shapes[0]) == 2 else None


def check_end(end, n_row):
    """Raise ValueError unless `end` may be the token that ends each document of a stream."""
    if n_row or not 0 <= end < N_IDS:
        raise ValueError(
            f'end must be a token from 0 to {N_IDS - 1:,}, which ends each document of a stream, '
            f'got {end} for {f"rows of {n_row}" if n_row else "a stream"}'
        )


def grid_of(shape, n_row):
    """Return [H, W] of the option `shape`, None of ''."""
    if not shape:
        return None
    sides = [int(side) for side in shape.split('x') if re.fullmatch(r'[1-9]\d{0,4}', side)]
    if len(sides) != 2 or sides[0] * sides[1] != n_row:
        raise ValueError(f'shape must be HxW, as 8x8, for rows of {n_row} tokens, got {shape!r}')
    return sides


def packed(tokens, given, meta, source):
    """Return an array as it stands on disk.

    given  bools (..., N) or (N,), whether a token is given; or None"""
    if given is not None:
        shape = tokens.shape
        if given.dtype != bool or given.shape not in (shape, shape[-1:]):
            raise ValueError(
                f'given of {source} must be bools of shape {shape} or {shape[-1:]}, '
                f'got {given.dtype} of shape {given.shape}'
            )
        whole = np.broadcast_to(given, shape).all(-1)
        if whole.any():
            raise ValueError(
                f'row {whole.argmax()} of {source} is given as a whole, nothing is left to learn: '
                'leave it out'
            )
    return meta.pack(tokens, given)
