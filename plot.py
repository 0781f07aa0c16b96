"""
Draw the curves of training runs.

    python plot.py out/a out/b -o loss.png
    python plot.py out/a out/b -o time.png --x=time --y=val_any,val_l2r,loss --labels='AdamW,Muon'

Each panel is one number of the logs, each line one run (a folder with a log.jsonl, or such a file), in nats per token. Runs with the same
label, seeds for example, share a colour.
"""
import argparse
import itertools
import os

from configurator import check_out, one_line_errors
from run_folder import read_log

X_LABELS = {'tokens': 'tokens seen', 'time': 'training time in minutes', 'iter': 'updates'}
Y_LABELS = {'loss': 'training loss', 'val_any': 'validation, any order (bound)', 'val_l2r': 'validation, left to right'}


def read_run(path):
    """The entries of a run's log, to which the training time in minutes is added; validation and checkpoints do not count as time."""
    path = os.path.join(path, 'log.jsonl') if os.path.isdir(path) else path
    if not os.path.isfile(path):
        raise ValueError(f'no log {path}; name folders that train.py wrote')
    entries, time, tokens = read_log(path), 0.0, 0
    for entry in entries:
        if 'tokens' in entry and 'tokens_per_sec' in entry:
            time += (entry['tokens'] - tokens) / entry['tokens_per_sec'] / 60
            entry['time'], tokens = time, entry['tokens']
    return entries


def curve(entries, x, y):
    """([x], [y]) of the entries that have both."""
    points = [(entry[x], entry[y]) for entry in entries if x in entry and y in entry]
    return [a for a, _ in points], [b for _, b in points]


def draw(runs, labels, x, ys, path):
    for y in ys:
        if not any(curve(entries, x, y)[0] for entries in runs):
            raise ValueError(f'no run has {y} by {x}; they have: {", ".join(sorted(set().union(*itertools.chain(*runs))))}')
    import matplotlib
    matplotlib.use('agg')
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(1, len(ys), figsize=(5.2 * len(ys), 4), squeeze=False, layout='constrained')
    for axis, y in zip(axes[0], ys):
        for entries, label in zip(runs, labels):
            xs, values = curve(entries, x, y)
            if not xs:
                continue
            n = list(dict.fromkeys(labels)).index(label)
            known = label in axis.get_legend_handles_labels()[1]
            axis.plot(xs, values, label=None if known else label, color=f'C{n}', linewidth=0.8 if y == 'loss' else 1.4)
        axis.set(xlabel=X_LABELS.get(x, x), ylabel='nats per token' if y in Y_LABELS else y, title=Y_LABELS.get(y, y))
        axis.grid(alpha=0.3)
        axis.spines[['top', 'right']].set_visible(False)
    max(reversed(axes[0]), key=lambda axis: len(axis.lines)).legend(frameon=False)   # one where no run is missing
    figure.savefig(path, dpi=150)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('runs', nargs='+', help='folders of train.py, or log.jsonl files')
    parser.add_argument('-o', '--out', default='loss.png', help='picture to write: .png, .svg or .pdf (default loss.png)')
    parser.add_argument('--x', default='tokens', choices=X_LABELS)
    parser.add_argument('--y', default='loss,val_any,val_l2r', help='keys of the logs, one panel each (default loss,val_any,val_l2r)')
    parser.add_argument('--labels', default='', help='names of the runs, with commas between them (default: their folders)')
    args = parser.parse_args(argv)
    labels = args.labels.split(',') if args.labels else args.runs
    if len(labels) != len(args.runs):
        raise ValueError(f'--labels must name {len(args.runs)} runs, got {len(labels)}: {args.labels}')
    if os.path.splitext(args.out)[1] not in ('.png', '.svg', '.pdf'):
        raise ValueError(f'--out must end in .png, .svg or .pdf, got {args.out}')
    check_out('out', args.out)
    draw([read_run(path) for path in args.runs], labels, args.x, args.y.split(','), args.out)
    print(f'{args.out} written')


if __name__ == '__main__':
    with one_line_errors():
        main()
