"""
Draw the results of runs and print their last values: training curves, the ensemble by its members, generation time by steps.

    python plot.py out/a out/b -o loss.png
    python plot.py out/a_seed1 out/a_seed2 out/b_seed1 -o time.png --x=time --y=val_any,val_l2r,loss --labels='AdamW,Muon'
    python plot.py decoder.json encoder.json -o ensemble.png        # of eval_ppl.py --out
    python plot.py grid.json -o generation.png                      # of bench.py grid --out

Each panel is one number, each line one run: a folder of train.py, its log.jsonl, or a JSON file of eval_ppl.py or bench.py. Runs that are
called NAME_seed1, NAME_seed2, ... share a colour and a label, and the table has their mean and its standard error. val_own is the loss in
the order that a run was trained in: val_any for a random one, val_l2r for left to right.
"""
import json
import os
import re
import statistics

from anyorder.figures import PICTURES, draw
from anyorder.files import Parser, check_out
from anyorder.run_folder import read_log
from configurator import one_line_errors


def log_of(path):
    """The log of a run that is named by its folder or its log."""
    return os.path.join(path, 'log.jsonl') if os.path.isdir(path) else path


def read_run(path):
    """The entries of a run's log, to which val_own and the training time in minutes are added; validation and checkpoints do not count
    as time."""
    path = log_of(path)
    if not os.path.isfile(path):
        raise ValueError(f'no log {path}; name folders that train.py wrote, or JSON files of eval_ppl.py and bench.py')
    entries, time, tokens = read_log(path), 0.0, 0
    for entry in entries:
        if 'tokens' in entry and entry.get('tokens_per_sec', 0) > 0:
            time += (entry['tokens'] - tokens) / entry['tokens_per_sec'] / 60
            entry['time'], tokens = time, entry['tokens']
        own = [entry[name] for name in ('val_own', 'val_any', 'val_l2r') if name in entry]
        entry |= {'val_own': own[0]} if own else {}
    return entries


def read_results(path):
    """{data set or network: entries} of a JSON file: of eval_ppl.py the nats of the ensemble by its members, of an encoder its any-order
    bound, which has one, for each data set; of bench.py the seconds of generation of each network by the steps."""
    try:
        with open(path, encoding='utf-8') as f:
            result = json.load(f)
        if 'generation' in result:
            return {network: [{'steps': float(r['steps']), 'seconds': float(r[network])} for r in result['generation']]
                    for network in ('decoder', 'encoder')}
        sets = list(dict.fromkeys(r['dataset'] for r in result['results']))
        nats = {(r['dataset'], *r['estimate'].split(' x ')): float(r['nats_per_token']) for r in result['results'] if 'nats_per_token' in r}
        found = {}
        for data in sets:
            members = [{'members': int(key[2]), 'nats': value} for key, value in nats.items() if key[:2] == (data, 'ensemble')]
            members = members or [{'members': 1, 'nats': value} for key, value in nats.items() if key[:2] == (data, 'any order')]
            if members:
                found[data] = members
    except FileNotFoundError:
        raise ValueError(f'no file {path}') from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f'{path} is not what eval_ppl.py --out or bench.py grid --out writes') from None
    if not found:
        raise ValueError(f'{path} has neither an ensemble nor an any-order bound: run eval_ppl.py with --estimates=ensemble or any')
    return found


def shortest(names):
    """{name: it without its folder}, if these tell all of them apart."""
    short = [os.path.basename(name) for name in names]
    return dict(zip(names, short if len(set(short)) == len(short) else names))


def label_of(path):
    """The name of a run: its path without the number of the seed."""
    path = os.path.normpath(path)
    path = os.path.dirname(os.path.abspath(path)) if os.path.basename(path) == 'log.jsonl' else path
    return re.sub(r'_seed\d+$', '', re.sub(r'\.jsonl?$', '', path))


def format_ends(runs, x, ys):
    """A table of the last value of every panel: the mean over the runs of a label, its standard error, their number, and whether
    they end at different updates."""
    groups = {}
    for label, entries in runs:
        groups.setdefault(label, []).append(entries)
    width = max(map(len, groups))
    lines = [' ' * width + ''.join(f'{y:>28}' for y in ys)]
    for label, group in groups.items():
        line = label.ljust(width)
        for y in ys:
            last = [entry for entries in group for entry in [e for e in entries if x in e and y in e][-1:]]
            ends, uneven = [entry[y] for entry in last], ', uneven' * (len({entry.get('iter', entry[x]) for entry in last}) > 1)
            digits = '.3f' if all(abs(end) >= 0.1 for end in ends) else '.3g'
            error = f' ± {statistics.stdev(ends) / len(ends) ** 0.5:{digits}} ({len(ends)}{uneven})' if len(ends) > 1 else ''
            line += f'{statistics.mean(ends):{digits}}{error}'.rjust(28) if ends else ' ' * 28
        lines.append(line)
    return '\n'.join(lines)


def main(argv=None):
    parser = Parser(description=__doc__)
    parser.add_argument('runs', nargs='+', help='folders of train.py, log.jsonl files, JSON files of eval_ppl.py or bench.py')
    parser.add_argument('-o', '--out', default='loss.png', help='picture to write: .png, .svg or .pdf (default loss.png)')
    parser.add_argument('--x', choices=('tokens', 'time', 'iter'), help='axis of training curves (default tokens)')
    parser.add_argument('--y', help='keys of the logs, one panel each (default loss, the validations)')
    parser.add_argument('--labels', default='', help='what to call them, with commas between (default: names of folders and files)')
    args = parser.parse_args(argv)
    check_out('out', args.out, PICTURES, *args.runs)
    runs = [((label_of(path), what), entries) for path in {os.path.realpath(log_of(path)): path for path in args.runs}.values()
            for what, entries in (read_results(path) if path.endswith('.json') else {'': read_run(path)}).items()]
    names = list(dict.fromkeys(name for name, _ in runs))                      # (run without its seed, its data set or network)
    run_names, whats = (shortest(list(dict.fromkeys(column))) for column in zip(*names))
    labels = [': '.join([run_names[run], whats[what]][:len(whats)]) for run, what in names]
    if args.labels:
        labels, found = args.labels.split(','), labels
        if len(labels) != len(found):
            raise ValueError(f'--labels must name {len(found)}: {", ".join(found)}; got {len(labels)}: {args.labels}')
    runs = [(labels[names.index(name)], entries) for name, entries in runs]
    kinds = {'steps' if 'steps' in e else 'members' if 'members' in e else 'logs' for _, entries in runs for e in entries[:1]}
    if len(kinds) > 1:
        raise ValueError('logs of training, ensembles and generation are pictures of their own: name files of one kind')
    kind, there = next(iter(kinds), 'logs'), [set().union(*entries) for _, entries in runs]
    own = 'val_any' if all('val_any' in keys for keys in there) else 'val_own'
    logged = [y for y in ('loss', own, 'val_l2r') if any(y in keys for keys in there)]
    x, ys = {'steps': ('steps', ['seconds']), 'members': ('members', ['nats']), 'logs': ('tokens', logged or ['loss'])}[kind]
    x, ys = args.x or x, args.y.split(',') if args.y else ys
    draw(runs, x, ys, args.out)
    print(f'{format_ends(runs, x, ys)}\n\n{args.out} written')


if __name__ == '__main__':
    with one_line_errors():
        main()
