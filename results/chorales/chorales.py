"""Bach's chorales as rows of 4 voices x 32 sixteenths.

    python results/chorales/chorales.py Jsb16thSeparated.json

writes here
    chorales.npz, chorales.txt   rows, and the names of their ids: 0 is a rest, 1 the lowest pitch
    pieces.npz                   rows of whole pieces, half a row apart; what a row before has
                                 scored is given, so that each frame is scored once
    pieces_test.npy              the piece of each row of its test split
    melody.npy                   two sopranos of the test set, with blanks below
    allowed.npy                  of each position the ids that its voice sings in training
    chronological.json           the order of time, the voices of a frame from above"""

import json
import sys
from pathlib import Path

import numpy as np

T = 32  # frames of a row
LOW = 36  # the pitches of the data
HIGH = 81
KEYS = range(-5, 7)  # semitones by which what is trained on is transposed
SPLITS = {'train': 'train', 'valid': 'val', 'test': 'test'}


def main(path):
    source = json.loads(Path(path).read_text())
    pieces = {}  # {split: [(4, frames) ids]}
    for name, split in SPLITS.items():
        pieces[split] = [ids_of(np.array(piece).T) for piece in source[name]]

    transposed = [transpose(piece, key) for piece in pieces['train'] for key in KEYS]
    train = rows_of([piece for piece in transposed if piece is not None], hop=8)
    test = rows_of(pieces['test'], hop=T)
    np.savez_compressed('chorales.npz', train=train, val=rows_of(pieces['val'], hop=T), test=test)
    write_names()
    write_whole(pieces)

    melody = test[[48, 361]].astype(int)
    melody[:, T:] = -1
    np.save('melody.npy', melody)
    np.save('allowed.npy', sung(np.concatenate(pieces['train'], axis=1)))
    order = [T * voice + frame for frame in range(T) for voice in range(4)]
    Path('chronological.json').write_text(json.dumps(order))


def ids_of(pitches):
    return np.maximum(pitches - LOW + 1, 0)


def transpose(piece, key):
    """Return the ids of a piece so many semitones higher, None where a pitch leaves the range."""
    moved = np.where(piece > 0, piece + key, 0)
    is_inside = piece[piece > 0].min() + key >= 1 and moved.max() <= HIGH - LOW + 1
    return moved if is_inside else None


def rows_of(pieces, hop):
    """Return (n, 4 T) uint16: windows of T frames, `hop` frames apart."""
    rows = []
    for piece in pieces:
        for start in range(0, piece.shape[1] - T + 1, hop):
            rows.append(piece[:, start : start + T].reshape(-1))
    return np.array(rows, np.uint16)


def write_names():
    letters = ['C', 'C#', 'D', 'D#', 'E', 'F', 'F#', 'G', 'G#', 'A', 'A#', 'B']
    names = ['rest']
    for pitch in range(LOW, HIGH + 1):
        names.append(f'{letters[pitch % 12]}{pitch // 12 - 1}')
    Path('chorales.txt').write_text('\n'.join(names))


def write_whole(pieces):
    arrays = {}
    for split, of_split in pieces.items():
        rows = []
        given = []
        numbers = []
        for number, piece in enumerate(of_split):
            n_frames = piece.shape[1]
            end = 0  # frames scored so far
            for start in [*range(0, n_frames - T, T // 2), n_frames - T]:
                rows.append(piece[:, start : start + T].reshape(-1))
                given.append(np.tile(np.arange(start, start + T) < end, 4))
                numbers.append(number)
                end = start + T
        arrays[split] = np.array(rows, np.uint16)
        arrays[f'given_{split}'] = np.array(given)
    np.savez_compressed('pieces.npz', **arrays)
    np.save('pieces_test.npy', numbers)  # test is the last split


def sung(heard):
    """Return (4 T, ids) bool: a rest, or what the voice sings in heard (4, frames)."""
    ids = np.arange(HIGH - LOW + 2)
    allowed = []
    for voice in heard:
        lowest = voice[voice > 0].min()
        allowed.append((ids == 0) | ((ids >= lowest) & (ids <= voice.max())))
    return np.repeat(allowed, T, axis=0)


if __name__ == '__main__':
    main(sys.argv[1])
