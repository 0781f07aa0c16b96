"""What is a prepared set? A folder with meta.json and a file <split>.bin for each split: tokens as little-endian
uint16, or as uint32 where more than 2^15 tokens may be marked as given.

    {"name": "books", "tokenizer": "bytes", "n_tokens": 257, "eos": 256,
     "splits": {"train": {"rows": 692, "tokens": 2139339, "text_bytes": 2138647, "sha256": "3a4...", "source": "a.txt"},
                "val": ...}}

rows counts documents, and tokens their tokens, the ends of text included. A set that is no text has more fields:

    row_length   tokens of a row, where all rows have one length; none: the tokens are a stream
    shape        [H, W] where a row is a grid, row by row, or none
    given        whether the highest bit of a token says that it is given
    prompts      whether each document is a row, and begins with a prompt, which is given
    vocabulary   the names of the tokens, where they have any, or none
    puzzle       the options of a task that generates and judges the rows"""
import contextlib
import glob
import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anyorder.machine.files import check_folder, check_names, flush, plain_json, read_text, reading, whole_files
from anyorder.machine.locks import locked, tidy
from anyorder.machine.terminal import progress
from anyorder.tokens.tokenizers import TOKENIZERS

FIELDS = {'name', 'tokenizer', 'n_tokens', 'eos', 'splits'}
SPLIT_FIELDS = {'rows', 'tokens', 'text_bytes', 'sha256', 'source'}
GIVEN = 1 << 15      # in a token of 16 bits of a set with given positions
PADDING = -1         # in a block, behind a document that is shorter
CHECKED = 1 << 25    # tokens of a split that are compared with n_tokens; to read all of a large one takes minutes


def read_meta(directory):
    """meta.json of a prepared set, {} where there is none. Raises ValueError for a file of another kind."""
    path = os.path.join(directory, 'meta.json')
    if not os.path.exists(path):
        return {}
    with reading(path, 'the meta.json of a prepared set', 'choose another name for the set, or another --data_dir'):
        meta = json.loads(read_text(path))
        if not FIELDS <= meta.keys() or not all(SPLIT_FIELDS <= info.keys() for info in meta['splits'].values()):
            raise ValueError('a field is missing')
    return meta | {'given': meta.get('given', 'puzzle' in meta)}   # sets from before the field


@contextlib.contextmanager
def set_to_write(data_dir, name, split=''):
    """(path, meta.json) of the folder that a set is written to, for the body alone: another command that writes the set
    waits, and finds what the body has made. Raises ValueError where a name or the path is none."""
    check_names(name=name, split=split or 'train')
    directory = os.path.join(data_dir, name)
    check_folder('--data_dir', data_dir and directory)
    with locked(directory):
        tidy(os.path.join(glob.escape(directory), '*'))
        yield directory, read_meta(directory)


def kind_of(meta):
    """What a checkpoint keeps of the meta.json of its set: all but its name and its splits."""
    return {field: value for field, value in meta.items() if field not in ('name', 'splits')}


def print_meta(out, meta, before, force):
    """Print what is in the folder now, and whether it was there before."""
    done = 'there already (--force replaces it)' if meta == before and not force else 'written'
    print(f"{os.path.join(out, meta['name'])}: {done}, tokenizer {meta['tokenizer']}")
    width = max(len(s['source']) for s in meta['splits'].values()) + 2
    print(f"{'split':<8}{'rows':>10}{'tokens':>16}{'bytes of text':>16}  {'source':<{width}}sha256")
    for split, s in meta['splits'].items():
        n_bytes = f"{s['text_bytes']:,}" if s['text_bytes'] else '-'
        print(f"{split:<8}{s['rows']:>10,}{s['tokens']:>16,}{n_bytes:>16}  {s['source']:<{width}}{s['sha256'][:16]}...")


@dataclass
class Split:
    """The tokens of a split."""
    packed: np.ndarray     # as on disk: a stream (n,), in which a block may start anywhere, or rows (rows, N)
    marked: bool = False   # whether the highest bit of a token says that it is given
    ends: np.ndarray | None = None   # of a stream whose documents are rows: where each of them ends, (rows,)

    @property
    def mark(self):
        return 1 << 8 * self.packed.itemsize - 1

    @cached_property
    def lengths(self):
        """(rows,) tokens of each document."""
        return np.diff(self.ends, prepend=0)

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
    return np.dtype('<u4' if meta['given'] and meta['n_tokens'] > GIVEN else '<u2')


def bin_path(directory, split):
    return os.path.join(directory, f'{split}.bin')


def whole_splits(directory, meta):
    """{split: its entry in meta.json}, for the splits whose files have the size that the entry says."""
    return {split: info for split, info in meta.get('splits', {}).items()
            if os.path.exists(bin_path(directory, split))
            and os.path.getsize(bin_path(directory, split)) == dtype_of(meta).itemsize * info['tokens']}


def is_there(directory, meta, wanted, source, same, force):
    """Whether nothing is left to do: all splits of the list `wanted` are whole, from `source`, made in the `same` way.
    Raises ValueError if some splits are there, but made otherwise, unless `force` replaces them."""
    have = whole_splits(directory, meta)
    there = [split for split in wanted if split in have]
    if force or not there:
        return False
    if there == wanted and same and all(have[split]['source'] == source for split in there):
        return True
    raise ValueError(f"{directory} holds {', '.join(there)} already, from {have[there[0]]['source']} with the "
                     f"tokenizer {meta['tokenizer']}: --force replaces it, --name=OTHER writes elsewhere, "
                     '--split=NAME adds a split')


def write_splits(directory, meta, kept, source, splits, unit='row'):
    """Write {split: (number of rows, rows)} beside the splits that are `kept`; returns the new meta.json. A row, which
    the bar calls `unit`, is (tokens as on disk, number of bytes of its text), or several of these, its pieces."""
    os.makedirs(directory, exist_ok=True)
    meta_path = os.path.join(directory, 'meta.json')
    try:
        with whole_files(*(bin_path(directory, split) for split in splits)) as paths:
            bars = (progress(rows, total=n, desc=f'{split}.bin', unit=unit) for split, (n, rows) in splits.items())
            new = {split: write_rows(path, bar) | {'rows': splits[split][0], 'source': source}
                   for split, path, bar in zip(splits, paths, bars)}
            if empty := [split for split, info in new.items() if not info['tokens']]:
                raise ValueError(f'{empty[0]} of {source} would be empty: name its --split, or a longer source')
            flush(*paths)
            if os.path.exists(meta_path):   # whoever is killed from here on leaves no entry of another file
                write_meta(meta_path, meta | {'splits': kept})
    finally:
        if not os.listdir(directory):
            os.rmdir(directory)
    meta = meta | {'splits': kept | new}
    write_meta(meta_path, meta)
    return meta


def write_meta(path, meta):
    """Write meta.json, in one step. A link is replaced."""
    with whole_files(path) as (temporary,), open(temporary, 'w', encoding='utf-8') as f:
        f.write(plain_json(meta, 2) + '\n')


def write_rows(path, rows):
    """Write rows into `path`; returns what meta.json says of them."""
    info, sha = {'tokens': 0, 'text_bytes': 0}, hashlib.sha256()
    with open(path, 'wb') as f:
        for tokens, n_bytes in rows:
            written = tokens.tobytes()
            f.write(written)
            sha.update(written)
            info['tokens'] += len(tokens)
            info['text_bytes'] += n_bytes
    return info | {'sha256': sha.hexdigest()}


def read_split(directory, meta, split):
    """The Split of this name, whose file must have the size that meta.json says, and ids that the tokenizer has."""
    path, dtype = bin_path(directory, split), dtype_of(meta)
    n, again = dtype.itemsize * meta['splits'][split]['tokens'], f'prepare {meta["name"]} again with --force'
    if os.path.getsize(path) != n:
        raise ValueError(f'{path} has {os.path.getsize(path)} bytes, {n} expected: {again}')
    tokenizer = TOKENIZERS.get(meta['tokenizer'])
    if tokenizer and tokenizer.n_tokens != meta['n_tokens']:
        raise ValueError(f"{directory} has {meta['n_tokens']} {meta['tokenizer']} tokens, there are "
                         f'{tokenizer.n_tokens} now: {again}')
    tokens = np.memmap(path, dtype=dtype, mode='r')
    found = Split(tokens, meta['given'], np.flatnonzero(tokens == meta['eos']) + 1 if meta.get('prompts') else None)
    largest = largest_id(tokens, found.mark - 1 if found.marked else 0xffff)
    if largest >= meta['n_tokens']:
        raise ValueError(f"{path} has the token {largest}, {meta['tokenizer']} tokens are below {meta['n_tokens']}: "
                         f'{again}')
    if meta.get('row_length'):
        found.packed = tokens.reshape(-1, meta['row_length'])
    return found


def largest_id(tokens, mask):
    """The largest id (tokens & mask) of (n,) tokens; where there are more than CHECKED, of 64 pieces spread evenly."""
    n_pieces = 64 if len(tokens) > CHECKED else 1
    size = min(len(tokens), CHECKED) // n_pieces
    starts = [i * (len(tokens) - size) // max(1, n_pieces - 1) for i in range(n_pieces)]
    return max(int((tokens[start:start + size] & mask).max()) for start in starts)
