"""Little text, read many times: the texts, and where each arm is best.

    python results/repeated/repeat.py texts
    python results/repeated/repeat.py table --runs='out/findings/repeat_*'

`texts` writes the first KB of pydocs's training text, and its validation. Of `table` a run is a
folder repeat_ARM_seedN of train.py, or its log repeat_ARM_seedN.jsonl; ± is the standard error
over seeds."""

import glob
import os
import statistics
import sys

sys.path.append('.')  # the project's folder, from which it is run

from anyorder.datasets import open_split
from anyorder.extras.pictures.curves import log_of, run_name
from anyorder.likelihood.tables import standard_error
from anyorder.machine.terminal import one_line_errors
from anyorder.training.run_folder import read_log
from configurator import configure, numbers

WORDS = {'texts': 'the first KB of pydocs', 'table': 'the best validation of each arm'}
sizes = '150,250,1000'  # texts: KB
data_dir = 'data'
runs = ''  # table: folders or logs, * allowed
kb = 150  # table: KB of text, for the epochs
out = 'texts'  # texts: their folder

KEYS = {'val_l2r': 'left to right', 'val_own': 'its own order', 'val_any': 'any order (bound)'}


def main(config):
    (word,) = config.words
    if word == 'texts':
        write_texts(config)
    else:
        show_table(config)


def write_texts(config):
    os.makedirs(config.out, exist_ok=True)
    write_text(config, 'val', 'pydocs_val.txt', None)
    for n in numbers(config, 'sizes'):
        write_text(config, 'train', f'pydocs{n}.txt', 1000 * n)


def write_text(config, split, name, n_bytes):
    """Write the first bytes of a split, all if n_bytes is None."""
    tokens = open_split(config.data_dir, 'pydocs', split)[0].packed
    text = bytes(tokens[tokens < 256][:n_bytes].astype('uint8'))
    path = os.path.join(config.out, name)
    with open(path, 'wb') as f:
        f.write(text.decode(errors='ignore').encode())  # no part of a letter at the end
    print(path)


def show_table(config):
    print('| arm | read | seeds | best, nats a byte | at epoch | at the end | epoch |')
    print('|---|---|---|---|---|---|---|')
    for arm, logs in read_runs(config.runs).items():
        for key, read in KEYS.items():
            values = [with_key(log, key) for log in logs]
            if all(values):
                show_line(f'{arm} | {read}', key, values, config.kb)


def with_key(log, key):
    return [entry for entry in log if key in entry]


def read_runs(patterns):
    """Return {arm: [its log of each seed]}, a log as a list of entries."""
    arms = {}
    for pattern in patterns.split(','):
        for path in sorted(glob.glob(pattern)):
            kind, _, arm = os.path.basename(run_name(path)).partition('_')
            if kind == 'repeat':
                arms.setdefault(arm, []).append(read_log(log_of(path)))
    if not arms:
        raise ValueError(f'no runs repeat_ARM_seedN in {patterns}')
    return arms


def show_line(name, key, logs, kb):
    best = [min(log, key=lambda entry: entry[key]) for log in logs]
    last = [log[-1] for log in logs]
    at = ', '.join(f'{epoch(entry, kb):.0f}' for entry in best)
    end = f'{epoch(last[0], kb):.0f}'
    print(f'| {name} | {len(logs)} | {mean(key, best)} | {at} | {mean(key, last)} | {end} |')


def epoch(entry, kb):
    return entry['tokens'] / kb / 1000


def mean(key, entries):
    values = [entry[key] for entry in entries]
    text = f'{statistics.mean(values):.3f}'
    if len(values) > 1:
        text += f' ± {standard_error(values):.3f}'
    return text


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
