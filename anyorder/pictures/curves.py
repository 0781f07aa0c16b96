"""What numbers has a run to draw? Its entries, from a log of train.py or a JSON file of an evaluation or bench.py.

An entry is a dict of numbers, in a log {'iter': 150, 'tokens': 307200, 'val_any': 3.19}."""

import json
import math
import os
import re

from anyorder.machine.files import moved_aside, read_text, reading

# {key of an entry: key in the JSON file of eval_ppl.py}, whose value may be null
EXTRAS = {'nats_error': 'stderr', 'gain': 'gain', 'gain_error': 'gain_stderr'}


def log_of(path):
    """The log of a run, which is named by its folder or its log."""
    return os.path.join(path, 'log.jsonl') if os.path.isdir(path) else path


def read_run(path):
    """The entries of a run's log. Each gets val_own and the training time in minutes, without validation and saving."""
    path = log_of(path)
    if not os.path.isfile(path):
        older = moved_aside(path)
        raise ValueError(
            f'no log {path}; '
            + (
                f'an earlier run left {older}'
                if older
                else 'name folders that train.py wrote, or JSON files of evaluations and bench.py'
            )
        )
    # imports torch, for which --help and a missing file need not wait
    from anyorder.training.run_folder import read_log

    entries, time, tokens = read_log(path), 0.0, 0
    if {} in entries:
        raise ValueError(
            f'line {entries.index({}) + 1} of {path} is no entry of a training log: remove it'
        )
    for entry in entries:
        entry.pop('environment', None)
        if 'tokens' in entry and entry.get('tokens_per_sec', 0) > 0:
            time += (entry['tokens'] - tokens) / entry['tokens_per_sec'] / 60
            entry['time'], tokens = time, entry['tokens']
        own = [entry[name] for name in ('val_own', 'val_any', 'val_l2r') if name in entry]
        if own:
            entry['val_own'] = own[0]
    return entries


def read_results(path):
    """{name: entries} of a JSON file of eval_ppl.py, eval_puzzle.py, bench.py grid or bench.py frontier."""
    with reading(
        path,
        'the JSON file of a result',
        'name what eval_ppl.py, eval_puzzle.py or bench.py wrote by --out',
    ):
        result = json.loads(read_text(path))
        found = (
            generation_times(result)
            if 'generation' in result
            else frontier(result)
            if 'frontier' in result
            else puzzles(result)
            if 'set' in result
            else likelihoods(result)
        )
        numbers = [
            x
            for entries in found.values()
            for entry in entries
            for key, x in entry.items()
            if key not in ('order', 'setting')
        ]
        if not all(map(math.isfinite, numbers)):
            raise ValueError('a number is not finite')
    if not any(found.values()):
        raise ValueError(
            f'{path} has neither likelihoods nor solved puzzles nor times of generation: run eval_ppl.py '
            'or eval_puzzle.py, or bench.py grid or frontier'
        )
    return found


def generation_times(result):
    """{network: entries}, the seconds of generation by the number of steps."""
    rows = sorted(result['generation'], key=lambda row: row['steps'])
    return {
        network: [{'steps': row['steps'], 'seconds': row[network]} for row in rows]
        for network in (rows or [{}])[0]
        if network != 'steps'
    }


def frontier(result):
    """{way of unmasking: its points}, by the number of passes. The way to which all are compared has a `level`."""
    found, level = {}, result['reference']
    for point in sorted(result['frontier'], key=lambda point: point['passes']):
        entry = {name: x for name, x in point.items() if name != 'way' and x is not None}
        found.setdefault(point['way'], []).append(
            entry | ({'level': 1} if point['way'] == level else {})
        )
    return {way: found[way] for way in dict.fromkeys(point['way'] for point in result['frontier'])}


def puzzles(result):
    """{policy and its noise: entries}, what it solved and what that cost, by the number of steps."""
    found = {}
    rows = [row for row in result['results'] if 'policy' in row]  # others are of an error map
    for row in sorted(
        rows, key=lambda row: row['n_steps'] or math.inf
    ):  # 0 is a step for each blank
        policy = row['policy'] + (f', noise {row["noise"]:g}' if row['noise'] else '')
        entry = {name: row[name] for name in ('n_steps', 'solved', 'right', 'slots')}
        entry |= {f'{name}_error': row[f'{name}_stderr'] for name in ('solved', 'right')}
        found.setdefault(policy, []).append(entry | {'puzzle_seconds': row['seconds']})
    return found


def likelihoods(result):
    """{data set: entries} by members and by orders. Without an ensemble the any-order bound stands as one member."""
    found, bounds, orders = {}, {}, {}
    for row in result['results']:
        if 'nats_per_token' not in row or 'cut' in row or row['estimate'].startswith('iw '):
            continue  # an accuracy, infinite nats, or another bound
        kind, _, members = row['estimate'].partition(' x ')
        entry = {'nats': row['nats_per_token']}
        entry |= {name: row[key] for name, key in EXTRAS.items() if row.get(key) is not None}
        if kind == 'ensemble':
            found.setdefault(row['dataset'], []).append({'members': int(members), **entry})
            continue
        orders.setdefault(row['dataset'], []).append({'order': kind, **entry})
        if kind == 'any order':
            bounds.setdefault(row['dataset'], [{'members': 1, **entry}])
    return {
        dataset: (bounds | found).get(dataset, []) + orders.get(dataset, [])
        for dataset in found | orders
    }


def read_all(paths, labels=()):
    """[(label, entries)] of the runs at these paths. A path that is given twice counts once. Runs called NAME_seed1,
    NAME_seed2, ... share a label. `labels` replace all labels, or the names of the runs within the labels."""
    runs = []
    for path in {os.path.realpath(log_of(path)): path for path in paths}.values():
        parts = read_results(path) if path.endswith('.json') else {'': read_run(path)}
        run = os.path.normpath(path)
        run = os.path.dirname(os.path.abspath(run)) if os.path.basename(run) == 'log.jsonl' else run
        run = re.sub(r'_seed\d+$', '', re.sub(r'\.jsonl?$', '', run))
        runs += [((run, what), entries) for what, entries in parts.items()]
    names = list(
        dict.fromkeys(name for name, _ in runs)
    )  # (run without its seed, data set or network)
    run_names, whats = (shortest(list(dict.fromkeys(column))) for column in zip(*names))
    if len(labels) == len(run_names):
        run_names, labels = dict(zip(run_names, labels)), ()
    found = [
        run_names[run]
        if len(whats) == 1
        else whats[what]
        if len(run_names) == 1
        else f'{run_names[run]}: {whats[what]}'
        for run, what in names
    ]
    if labels and len(labels) != len(found):
        raise ValueError(
            f'--labels must name {len(found)}: {", ".join(found)}; got {len(labels)}: {",".join(labels)}'
        )
    label = dict(zip(names, labels or found))
    return [(label[name], entries) for name, entries in runs]


def shortest(names):
    """{name: the name without its folder}, if all of these differ; else {name: name}."""
    short = [os.path.basename(name) for name in names]
    return dict(zip(names, short if len(set(short)) == len(short) else names))
