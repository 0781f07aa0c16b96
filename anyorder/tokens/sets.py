"""What is a prepared set? A folder with meta.json, see meta.py, and a file <split>.bin for each split: tokens as
little-endian uint16, or as uint32 where more than 2^15 tokens may be marked as given."""

import contextlib
import glob
import hashlib
import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anyorder.machine.files import check_folder, check_names, flush, whole_files
from anyorder.machine.locks import locked, tidy
from anyorder.machine.terminal import progress
from anyorder.tokens.meta import SplitMeta, meta_path, read_meta, write_meta
from anyorder.tokens.tokenizers import TOKENIZERS

GIVEN = 1 << 15  # in a token of 16 bits of a set with given positions
PADDING = -1  # in a block, behind a document that is shorter
PIECE = 1 << 11  # tokens that are looked at together to find where a document ends
PART = (
    1 << 18
)  # tokens that are looked at together where all are: what is made of them is small beside a set
CHECKED = (
    1 << 25
)  # tokens of a split that are compared with n_tokens; to read all of a large one takes minutes


@contextlib.contextmanager
def set_to_write(data_dir, name, split=''):
    """(path, Meta or None) of the folder that a set is written to, for the body alone: another command that writes the
    set waits, and finds what the body has made. Raises ValueError where a name or the path is none."""
    check_names(name=name, split=split or 'train')
    directory = os.path.join(data_dir, name)
    check_folder('--data_dir', data_dir and directory)
    with locked(directory):
        tidy(os.path.join(glob.escape(directory), '*'))
        yield directory, read_meta(directory)


def print_meta(out, meta, before, force):
    """Print what is in the folder now, and whether it was there before."""
    done = 'there already (--force replaces it)' if meta == before and not force else 'written'
    print(f'{os.path.join(out, meta.name)}: {done}, tokenizer {meta.tokenizer}')
    width = max(len(split.source) for split in meta.splits.values()) + 2
    print(f'{"split":<8}{"rows":>10}{"tokens":>16}{"bytes of text":>16}  {"source":<{width}}sha256')
    for name, split in meta.splits.items():
        n_bytes = f'{split.text_bytes:,}' if split.text_bytes else '-'
        print(
            f'{name:<8}{split.rows:>10,}{split.tokens:>16,}{n_bytes:>16}  {split.source:<{width}}'
            f'{split.sha256[:16]}...'
        )


def parts_of(tokens, size=None):
    """Yields (place of the first token, tokens) of pieces of a stream, PART tokens each."""
    size = size or PART
    for start in range(0, len(tokens), size):
        yield start, tokens[start : start + size]


class Ends:
    """Where the documents of a stream end: behind each token `eos`. As an array (rows,), but what is kept is only how
    many end before each piece of the stream; the pieces that hold the asked ones are read again."""

    def __init__(self, tokens, eos):
        self.tokens, self.eos = tokens, eos
        counts = [np.count_nonzero(part == eos) for _, part in parts_of(tokens, PIECE)]
        self.before = np.append(0, np.cumsum(counts, dtype=np.int64))  # (pieces + 1,)

    def __len__(self):
        return int(self.before[-1])

    def __getitem__(self, numbers):
        """(B,) ends of the documents of these numbers (B,)."""
        pieces, ends = (
            np.searchsorted(self.before, numbers, 'right') - 1,
            np.empty(len(numbers), np.int64),
        )
        for piece in np.unique(pieces):
            start, asked = piece * PIECE, pieces == piece
            found = np.flatnonzero(self.tokens[start : start + PIECE] == self.eos)
            ends[asked] = start + found[numbers[asked] - self.before[piece]] + 1
        return ends

    def lengths(self):
        """(rows,) tokens of each document, in as few bytes as the longest one needs."""
        lengths, last, row = np.empty(len(self), np.uint8), 0, 0
        for start, part in parts_of(self.tokens):
            ends = np.flatnonzero(part == self.eos) + start + 1
            new = np.diff(ends, prepend=last)
            if len(new) and new.max() > np.iinfo(lengths.dtype).max:
                lengths = lengths.astype(np.min_scalar_type(new.max()))
            lengths[row : row + len(new)] = new
            row += len(new)
            last = ends[-1] if len(ends) else last
        return lengths


@dataclass
class Split:
    """The tokens of a split."""

    packed: (
        np.ndarray
    )  # as on disk: a stream (n,), in which a block may start anywhere, or rows (rows, N)
    marked: bool = False  # whether the highest bit of a token says that it is given
    ends: np.ndarray | Ends | None = (
        None  # of a stream whose documents are rows: where each of them ends, (rows,)
    )

    @property
    def mark(self):
        return 1 << 8 * self.packed.itemsize - 1

    @cached_property
    def lengths(self):
        """(rows,) tokens of each document."""
        return self.ends.lengths() if isinstance(self.ends, Ends) else np.diff(self.ends, prepend=0)

    def spans(self, numbers):
        """(starts, ends), (B,) each, of the documents of these numbers (B,)."""
        ends = self.ends[numbers]
        return ends - self.lengths[numbers], ends

    def width(self, block_size):
        """Tokens of a block, which is no longer than the longest document."""
        return block_size if self.ends is None else min(block_size, int(self.lengths.max()))

    def cut(self, block_size):
        """How many documents are longer than a block, for the name of a set that is measured; '' is none."""
        n = 0 if self.ends is None else (self.lengths > block_size).sum()
        return f', {n:,} of {len(self.lengths):,} documents cut at {block_size}' if n else ''

    def unpack(self, blocks):
        """(tokens, given) of blocks of `packed`, (B, N) integers and bool. PADDING stays, and is no blank."""
        if not self.marked:
            return blocks, blocks < 0
        padding = blocks == PADDING
        return (blocks & (self.mark - 1)) - padding * self.mark, (blocks >= self.mark) | padding


def dtype_of(meta):
    """The type of a token on disk."""
    return np.dtype('<u4' if meta.given and meta.n_tokens > GIVEN else '<u2')


def bin_path(directory, split):
    return os.path.join(directory, f'{split}.bin')


def whole_splits(directory, meta):
    """{split: its SplitMeta}, for the splits whose files have the size that it says; of no Meta there are none."""
    return {
        name: split
        for name, split in (meta.splits if meta else {}).items()
        if os.path.exists(bin_path(directory, name))
        and os.path.getsize(bin_path(directory, name)) == dtype_of(meta).itemsize * split.tokens
    }


def is_there(directory, meta, wanted, source, same, force):
    """Whether nothing is left to do: all splits of the list `wanted` are whole, from `source`, made in the `same` way.
    Raises ValueError if some splits are there, but made otherwise, unless `force` replaces them."""
    have = whole_splits(directory, meta)
    there = [split for split in wanted if split in have]
    if force or not there:
        return False
    if there == wanted and same and all(have[split].source == source for split in there):
        return True
    raise ValueError(
        f'{directory} holds {", ".join(there)} already, from {have[there[0]].source} with the '
        f'tokenizer {meta.tokenizer}: --force replaces it, --name=OTHER writes elsewhere, '
        '--split=NAME adds a split'
    )


def write_splits(directory, meta, kept, source, splits, unit='row', digests=None):
    """Write {split: (number of rows, rows)} beside the splits that are `kept`; returns the new Meta. A row, which the
    bar calls `unit`, is (tokens as on disk, number of bytes of its text), or several of these, its pieces. A split's
    object in `digests` is given all its bytes, by an `update` as hashlib has it."""
    os.makedirs(directory, exist_ok=True)
    try:
        with whole_files(*(bin_path(directory, split) for split in splits)) as paths:
            bars = (
                progress(rows, total=n, desc=f'{split}.bin', unit=unit)
                for split, (n, rows) in splits.items()
            )
            new = {}
            for split, path, bar in zip(splits, paths, bars):
                more = [digests[split]] if digests else []
                new[split] = write_rows(path, bar, splits[split][0], source, more)
            if empty := [name for name, split in new.items() if not split.tokens]:
                raise ValueError(
                    f'{empty[0]} of {source} would be empty: name its --split, or a longer source'
                )
            flush(*paths)
            if os.path.exists(
                meta_path(directory)
            ):  # who is killed from here on leaves no entry of another file
                write_meta(directory, meta.with_splits(kept))
    finally:
        if not os.listdir(directory):
            os.rmdir(directory)
    meta = meta.with_splits(kept | new)
    write_meta(directory, meta)
    return meta


def write_rows(path, rows, n_rows, source, digests):
    """Write `n_rows` rows from this source into `path`, their bytes also into `digests`; returns their SplitMeta."""
    n_tokens, text_bytes, sha = 0, 0, hashlib.sha256()
    with open(path, 'wb') as f:
        for tokens, n_bytes in rows:
            written = np.ascontiguousarray(tokens)  # a stream may be as large as its file: no copy
            f.write(written)
            sha.update(written)
            for digest in digests:
                digest.update(written.tobytes())
            n_tokens += len(tokens)
            text_bytes += n_bytes
    return SplitMeta(n_rows, n_tokens, text_bytes, sha.hexdigest(), source)


def read_split(directory, meta, split):
    """The Split of this name, whose file must have the size that meta.json says, and ids that the tokenizer has."""
    path, dtype = bin_path(directory, split), dtype_of(meta)
    n, again = dtype.itemsize * meta.splits[split].tokens, f'prepare {meta.name} again with --force'
    if os.path.getsize(path) != n:
        raise ValueError(f'{path} has {os.path.getsize(path)} bytes, {n} expected: {again}')
    tokenizer = TOKENIZERS.get(meta.tokenizer)
    if tokenizer and tokenizer.n_tokens != meta.n_tokens:
        raise ValueError(
            f'{directory} has {meta.n_tokens} {meta.tokenizer} tokens, there are '
            f'{tokenizer.n_tokens} now: {again}'
        )
    tokens = np.memmap(path, dtype=dtype, mode='r')
    found = Split(tokens, meta.given, Ends(tokens, meta.eos) if meta.prompts else None)
    if meta.prompts and tokens[-1] != meta.eos:
        raise ValueError(f'{path} does not end with the end of a document: {again}')
    largest = largest_id(tokens, found.mark - 1 if found.marked else 0xFFFF)
    if largest >= meta.n_tokens:
        raise ValueError(
            f'{path} has the token {largest}, {meta.tokenizer} tokens are below {meta.n_tokens}: {again}'
        )
    if meta.row_length:
        found.packed = tokens.reshape(-1, meta.row_length)
    return found


def largest_id(tokens, mask):
    """The largest id (tokens & mask) of (n,) tokens; where there are more than CHECKED, of 64 pieces spread evenly."""
    n_pieces = 64 if len(tokens) > CHECKED else 1
    size = min(len(tokens), CHECKED) // n_pieces
    starts = [i * (len(tokens) - size) // max(1, n_pieces - 1) for i in range(n_pieces)]
    return max(
        int((part & mask).max())
        for start in starts
        for _, part in parts_of(tokens[start : start + size])
    )
