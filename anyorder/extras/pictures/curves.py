"""What numbers has a run to draw? The entries of its log, or of the JSON file of a result.

An entry is a dict of numbers, in a log {'iter': 150, 'tokens': 307200, 'val_any': 3.19}."""

import json
import math
import os
import re

from anyorder.machine.files import moved_aside, read_text, reading

# {key of an entry: key in the JSON file of eval_ppl.py}, whose value may be null
EXTRAS = {'nats_error': 'stderr', 'gain': 'gain', 'gain_error': 'gain_stderr'}
NO_NUMBERS = ('order', 'setting')  # keys of an entry


def read_all(paths, labels=()):
    """Return [(label, entries)] of the runs at these paths.

    A path that is given twice counts once. Runs called NAME_seed1, NAME_seed2, ... share a label.
    `labels` replace all labels, or the names of the runs within the labels."""
    parts = []  # (run, data set or network, its entries)
    for path in {os.path.realpath(log_of(path)): path for path in paths}.values():
        for what, entries in read_parts(path).items():
            parts.append((run_name(path), what, entries))
    run_names = shortest(run for run, _, _ in parts)
    whats = shortest(what for _, what, _ in parts)
    if len(labels) == len(run_names):
        run_names = dict(zip(run_names, labels))
        labels = ()
    found = [label_of(run, what, run_names, whats) for run, what, _ in parts]
    names = list(dict.fromkeys(found))
    if labels and len(labels) != len(names):
        wanted = f'--labels must name {len(names)}: {", ".join(names)}'
        raise ValueError(f'{wanted}; got {len(labels)}: {",".join(labels)}')
    renamed = dict(zip(names, labels or names))
    return [(renamed[name], entries) for name, (_, _, entries) in zip(found, parts)]


def read_parts(path):
    """Return {data set or network: entries} of a run; a log is one part without a name."""
    if path.endswith('.json'):
        return read_results(path)
    return {'': read_run(path)}


def run_name(path):
    """Return the name of a run: its folder or file, without its seed."""
    run = os.path.normpath(path)
    if os.path.basename(run) == 'log.jsonl':
        run = os.path.dirname(os.path.abspath(run))
    run = re.sub(r'\.jsonl?$', '', run)
    return re.sub(r'_seed\d+$', '', run)


def shortest(names):
    """Return {name: the name without its folder}, if all of these differ; else {name: name}."""
    names = list(dict.fromkeys(names))
    short = [os.path.basename(name) for name in names]
    if len(set(short)) < len(names):
        short = names
    return dict(zip(names, short))


def label_of(run, what, run_names, whats):
    """Return the label of a part of a run: what tells it from the others."""
    if len(whats) == 1:
        return run_names[run]
    if len(run_names) == 1:
        return whats[what]
    return f'{run_names[run]}: {whats[what]}'


# --------------------------------------------------------------------------------------------------
# a log


def log_of(path):
    """Return the log of a run, which is named by its folder or its log."""
    return os.path.join(path, 'log.jsonl') if os.path.isdir(path) else path


def read_run(path):
    """Return the entries of a run's log.

    Each gets val_own, and the training time in minutes, without validation and saving."""
    path = log_of(path)
    if not os.path.isfile(path):
        way_out = 'name folders that train.py wrote, or JSON files of evaluations and timings'
        if older := moved_aside(path):
            way_out = f'an earlier run left {older}'
        raise ValueError(f'no log {path}; {way_out}')
    # imports torch, for which --help and a missing file need not wait
    from anyorder.training.run_folder import read_log

    entries = read_log(path)
    if {} in entries:
        number = entries.index({}) + 1
        raise ValueError(f'line {number} of {path} is no entry of a training log: remove it')
    time = 0.0
    tokens = 0
    for entry in entries:
        entry.pop('environment', None)
        if 'tokens' in entry and entry.get('tokens_per_sec', 0) > 0:
            seconds = (entry['tokens'] - tokens) / entry['tokens_per_sec']
            time += seconds / 60
            tokens = entry['tokens']
            entry['time'] = time
        own = [entry[name] for name in ('val_own', 'val_any', 'val_l2r') if name in entry]
        if own:
            entry['val_own'] = own[0]
    return entries


# --------------------------------------------------------------------------------------------------
# a JSON file


def read_results(path):
    """Return {name: entries} of a JSON file of eval_ppl.py, puzzles solve or speed."""
    wrote = 'name what eval_ppl.py, puzzles solve or speed wrote by --out'
    with reading(path, 'the JSON file of a result', wrote):
        found = entries_of(json.loads(read_text(path)))
        for entries in found.values():
            check_finite(entries)
    if not any(found.values()):
        raise ValueError(f'{path} has no numbers that can be drawn: {wrote}')
    return found


def entries_of(result):
    """Return {name: entries} of a result of any kind."""
    if 'generation' in result:
        return generation_times(result)
    if 'frontier' in result:
        return frontier(result)
    if 'set' in result:
        return puzzles(result)
    return likelihoods(result)


def check_finite(entries):
    for entry in entries:
        for key, x in entry.items():
            if key not in NO_NUMBERS and not math.isfinite(x):
                raise ValueError('a number is not finite')


def generation_times(result):
    """Return {network: entries}, the seconds of generation by the number of steps."""
    rows = sorted(result['generation'], key=lambda row: row['steps'])
    if not rows:
        return {}
    found = {}
    for network in rows[0]:
        if network != 'steps':
            found[network] = [{'steps': row['steps'], 'seconds': row[network]} for row in rows]
    return found


def frontier(result):
    """Return {way of unmasking: its points}, by the number of passes.

    The way to which all are compared has a `level`."""
    reference = result['reference']
    found = {point['way']: [] for point in result['frontier']}
    for point in sorted(result['frontier'], key=lambda point: point['passes']):
        way = point['way']
        entry = {name: x for name, x in point.items() if name != 'way' and x is not None}
        if way == reference:
            entry['level'] = 1
        found[way].append(entry)
    return found


def puzzles(result):
    """Return {order: entries}: what it solved and what that cost, by the steps."""
    found = {}
    for row in sorted(result['results'], key=n_steps_of):
        entry = {name: row[name] for name in ('n_steps', 'solved', 'right', 'slots')}
        for name in ('solved', 'right'):
            entry[f'{name}_error'] = row[f'{name}_stderr']
        entry['puzzle_seconds'] = row['seconds']
        found.setdefault(row['order'], []).append(entry)
    return found


def n_steps_of(row):
    return row['n_steps'] or math.inf  # 0 is a step for each blank


def likelihoods(result):
    """Return {data set: entries}, first by members, then by orders.

    Without an ensemble the any-order bound stands as one member."""
    found = {}
    for row in result['results']:
        if 'nats_per_token' not in row or 'cut' in row or row['estimate'].startswith('iw '):
            continue  # an accuracy, infinite nats, or another bound
        kind, _, members = row['estimate'].partition(' x ')
        entry = {'nats': row['nats_per_token']}
        for name, key in EXTRAS.items():
            if row.get(key) is not None:
                entry[name] = row[key]
        parts = found.setdefault(row['dataset'], {'ensemble': [], 'bound': [], 'order': []})
        if kind == 'ensemble':
            parts['ensemble'].append({'members': int(members), **entry})
            continue
        parts['order'].append({'order': kind, **entry})
        if kind == 'any order' and not parts['bound']:
            parts['bound'].append({'members': 1, **entry})
    entries = {}
    for dataset, parts in found.items():
        entries[dataset] = (parts['ensemble'] or parts['bound']) + parts['order']
    return entries
