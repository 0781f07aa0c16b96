"""
What numbers has a run to draw? Its entries: a folder or log of train.py, a JSON file of eval_ppl.py or bench.py.

An entry is a dict of numbers, e.g. {'iter': 150, 'tokens': 307200, 'val_any': 3.19} of a log.
"""
import json
import math
import os
import re

# of an entry: its key in the JSON file of eval_ppl.py, whose value may be null
EXTRAS = {'nats_error': 'stderr', 'gain': 'gain', 'gain_error': 'gain_stderr'}


def log_of(path):
    """The log of a run that is named by its folder or its log."""
    return os.path.join(path, 'log.jsonl') if os.path.isdir(path) else path


def read_run(path):
    """The entries of a run's log, to which val_own and the training time in minutes are added.

    Validation and checkpoints do not count as time."""
    path = log_of(path)
    if not os.path.isfile(path):
        raise ValueError(f'no log {path}; name folders that train.py wrote, or JSON files of eval_ppl.py and bench.py')
    from anyorder.run_folder import read_log  # imports torch, for which --help and a missing file need not wait
    entries, time, tokens = read_log(path), 0.0, 0
    for entry in entries:
        if 'tokens' in entry and entry.get('tokens_per_sec', 0) > 0:
            time += (entry['tokens'] - tokens) / entry['tokens_per_sec'] / 60
            entry['time'], tokens = time, entry['tokens']
        own = [entry[name] for name in ('val_own', 'val_any', 'val_l2r') if name in entry]
        if own:
            entry['val_own'] = own[0]
    return entries


def read_results(path):
    """{data set or network: entries} of a JSON file.

    Of eval_ppl.py, for each data set: the nats of the ensemble by its members; of an encoder its any-order bound, which
    has one member. Of bench.py grid, for each network: the seconds of generation by the steps. Of bench.py frontier,
    for each way of unmasking: its points, see frontier."""
    try:
        with open(path, encoding='utf-8') as f:
            result = json.load(f)
        found = (generation_times(result) if 'generation' in result else
                 frontier(result) if 'frontier' in result else ensembles(result))
    except FileNotFoundError:
        raise ValueError(f'no file {path}') from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ValueError(f'{path} is not what eval_ppl.py --out or bench.py --out writes') from None
    if not any(found.values()):
        raise ValueError(f'{path} has neither an ensemble nor an any-order bound nor times of generation: run '
                         'eval_ppl.py with --estimates=ensemble or any, or bench.py grid or frontier')
    return found


def finite(value):
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError
    return value


def above_0(value):
    if finite(value) <= 0:
        raise ValueError
    return value


def generation_times(result):
    return {network: [{'steps': above_0(row['steps']), 'seconds': above_0(row[network])}
                      for row in result['generation']] for network in ('decoder', 'encoder')}


def frontier(result):
    """{way of unmasking: entries}, by the number of passes. The way that is the measure of all has a `level`."""
    found, level = {}, result['reference']
    for point in sorted(result['frontier'], key=lambda point: above_0(point['passes'])):
        entry = {'level': 1} if point['way'] == level else {}
        entry |= {name: finite(value) for name, value in point.items() if name not in ('way', 'setting')}
        found.setdefault(point['way'], []).append(entry | {'seconds': above_0(point['seconds'])})
    return {way: found[way] for way in dict.fromkeys(point['way'] for point in result['frontier'])}


def ensembles(result):
    """{data set: entries} of its ensembles, or of its any-order bound where there is none."""
    found, bounds = {}, {}
    for row in result['results']:
        if 'nats_per_token' not in row:   # an accuracy
            continue
        if not isinstance(row['dataset'], str):
            raise TypeError
        kind, _, members = row['estimate'].partition(' x ')
        entry = {'nats': finite(row['nats_per_token'])}
        entry |= {name: finite(row[key]) for name, key in EXTRAS.items() if row.get(key) is not None}
        if kind == 'ensemble':
            found.setdefault(row['dataset'], []).append({'members': above_0(int(members)), **entry})
        elif kind == 'any order':
            bounds.setdefault(row['dataset'], [{'members': 1, **entry}])
    return bounds | found


def read_all(paths, labels=()):
    """[(label, entries)] of runs that are named by their paths; a path that is given twice counts once.

    Runs called NAME_seed1, NAME_seed2, ... share a label. `labels` replace the names of folders and files."""
    runs = []
    for path in {os.path.realpath(log_of(path)): path for path in paths}.values():
        parts = read_results(path) if path.endswith('.json') else {'': read_run(path)}
        runs += [((label_of(path), what), entries) for what, entries in parts.items()]
    names = list(dict.fromkeys(name for name, _ in runs))   # (run without its seed, data set or network)
    run_names, whats = (shortest(list(dict.fromkeys(column))) for column in zip(*names))
    found = [run_names[run] if len(whats) == 1 else whats[what] if len(run_names) == 1 else
             f'{run_names[run]}: {whats[what]}' for run, what in names]
    if labels and len(labels) != len(found):
        raise ValueError(f'--labels must name {len(found)}: {", ".join(found)}; got {len(labels)}: {",".join(labels)}')
    label = dict(zip(names, labels or found))
    return [(label[name], entries) for name, entries in runs]


def shortest(names):
    """{name: it without its folder}, if these tell all of them apart."""
    short = [os.path.basename(name) for name in names]
    return dict(zip(names, short if len(set(short)) == len(short) else names))


def label_of(path):
    """The name of a run: its path without the number of the seed."""
    path = os.path.normpath(path)
    path = os.path.dirname(os.path.abspath(path)) if os.path.basename(path) == 'log.jsonl' else path
    return re.sub(r'_seed\d+$', '', re.sub(r'\.jsonl?$', '', path))
