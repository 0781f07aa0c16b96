"""A prompt for a model of chorales: a soprano, and a pattern for each voice below it.

    python results/patterns/scale.py chorales.txt melody.npy > scale.jsonl

The files are those of results/chorales/chorales.py. Each voice keeps to D major and to a range, and
holds each note for an eighth at least, which is two of the 32 frames; the bass ends with a fourth
of D."""

import json
import sys
from pathlib import Path

import numpy as np

SCALE = ['D', 'E', 'F#', 'G', 'A', 'B', 'C#']
RANGES = {'alto': ('A3', 'B4'), 'tenor': ('E3', 'F#4'), 'bass': ('D2', 'B3')}
N_EIGHTHS = 16


def main(names_path, melody_path):
    names = Path(names_path).read_text().split()
    soprano = np.load(melody_path)[0, : 2 * N_EIGHTHS]
    parts = [names[note] for note in soprano]
    for voice, (lowest, highest) in RANGES.items():
        notes = names[names.index(lowest) : names.index(highest) + 1]
        eighth = '|'.join(f'{note} {note}' for note in notes if note[:-1] in SCALE)
        pattern = f'(({eighth}) ){{{N_EIGHTHS - 1}}}({eighth})'
        if voice == 'bass':
            pattern = f'(({eighth}) ){{{N_EIGHTHS - 2}}}(D2 D2 D2 D2|D3 D3 D3 D3)'
        parts.append(f'[[{2 * N_EIGHTHS}/{pattern}/]]')
    print(json.dumps({'prompt': ' '.join(parts)}))


if __name__ == '__main__':
    main(*sys.argv[1:])
