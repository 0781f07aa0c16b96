"""Draw the results of runs and print their last values.

Training curves, nats by order, the ensemble by its members, puzzles solved by what they cost,
generation time by the number of steps, what fewer passes cost; and how a text is written.

    python -m anyorder.extras.pictures out/a out/b -o loss.png
    python -m anyorder.extras.pictures out/a_seed1 out/a_seed2 out/b_seed1 -o time.png --x=time
    python -m anyorder.extras.pictures out/a_seed1 out/b_seed1 -o loss.png --labels='AdamW,Muon'
    # by --out of eval_ppl.py, puzzles solve, speed grid and speed frontier
    python -m anyorder.extras.pictures decoder.json encoder.json -o ensemble.png
    python -m anyorder.extras.pictures decoder.json encoder.json -o puzzles.png
    python -m anyorder.extras.pictures grid.json -o generation.png
    python -m anyorder.extras.pictures frontier.json -o frontier.png
    # by --html of sample.py
    python -m anyorder.extras.pictures replay.html -o replay.svg

Each panel is one number, each line one run: a folder of train.py, its log.jsonl, or a JSON file of
an evaluation or speed. Runs called NAME_seed1, NAME_seed2, ... share a colour and a label, and
the table has their mean and its standard error. val_own is the loss in the order in which a run
was trained: val_any after random orders, val_l2r after left to right. The page of a replay becomes
a picture that plays by itself: its first sample, and beside it the next one that has the same
known tokens, without drafts.

The axis x is tokens, time or iter for training curves, passes, slots or seconds for a frontier,
slots or puzzle_seconds for puzzles, order or members for likelihoods."""

import itertools
import statistics

from anyorder.extras.pictures.animation import picture_of_page
from anyorder.extras.pictures.curves import read_all
from anyorder.extras.pictures.figures import PICTURES, draw, place
from anyorder.machine.files import check_out, replace_file
from anyorder.machine.terminal import one_line_errors
from configurator import check_choice, configure

INPUTS = (
    'runs: folders of train.py, log.jsonl files, JSON files of eval_ppl.py, puzzles solve or '
    'speed; or the page of a replay'
)
TEXTS = ('labels',)
AXES = (
    'tokens',
    'time',
    'iter',
    'passes',
    'seconds',
    'slots',
    'puzzle_seconds',
    'order',
    'members',
)
# {key of an entry: what its run is}
KINDS = {'steps': 'generation', 'passes': 'frontiers', 'nats': 'likelihoods', 'solved': 'puzzles'}

out = 'loss.png'  # picture to write: .png, .svg or .pdf, of a replay .svg; `-o FILE` is the same
x = ''  # axis, see above; '' is tokens for training curves
y = ''  # keys with commas between, one panel each; '' is loss and validations, or the file's
labels = ''  # what to call the runs, or all lines, with commas; '' is names of folders and files


def main(config):
    if any(path.endswith('.html') for path in config.words):
        animate(config)
        return
    check_out('out', config.out, PICTURES, *config.words)
    check_choice('x', config.x or 'tokens', *AXES)
    names = config.labels.split(',') if config.labels else ()
    runs = read_all(config.words, names)
    panels = choose_panels(runs)
    if config.x or config.y:
        x, _ = panels[0]
        ys = config.y.split(',') if config.y else dict.fromkeys(y for _, y in panels)
        panels = [(config.x or x, y) for y in ys]
    draw(runs, panels, config.out)
    print(f'{format_ends(runs, panels)}\n\n{config.out} written')


def animate(config):
    """Write the animated picture of the page of a replay."""
    if len(config.words) > 1 or config.given & {'x', 'y', 'labels'}:
        raise ValueError(
            'a replay is a picture of its own: name one page and nothing else, leave out x, y and '
            'labels'
        )
    (page,) = config.words
    check_out('out', config.out, '.svg', page)
    replace_file(config.out, picture_of_page(page).encode())
    print(f'{config.out} written')


# --------------------------------------------------------------------------------------------------
# what is drawn


def choose_panels(runs):
    """Return the panels [(x, y), ...] that are drawn unless the command line says otherwise."""
    kind = kind_of(runs)
    every = [entry for _, entries in runs for entry in entries]
    if kind == 'generation':
        return [('steps', 'seconds')]
    if kind == 'frontiers':
        return frontier_panels(every)
    if kind == 'puzzles':
        return [('slots', 'solved'), ('puzzle_seconds', 'solved')]
    if kind == 'likelihoods':
        return likelihood_panels(every)
    return log_panels(runs)


def kind_of(runs):
    """Return the kind that all runs are of. Raises ValueError if there are several."""
    kinds = set()
    for _, entries in runs:
        for entry in entries[:1]:
            kinds.add(next((kind for key, kind in KINDS.items() if key in entry), 'logs'))
    if len(kinds) > 1:
        named = ' and '.join(sorted(kinds))
        raise ValueError(f'{named} are pictures of their own: name files of one kind')
    return kinds.pop() if kinds else 'logs'


def frontier_panels(entries):
    if all('nats' in entry for entry in entries):
        return [('passes', 'nats'), ('slots', 'nats'), ('seconds', 'nats')]
    # at temperature 0, or in older files
    return [('passes', 'judge_nats'), ('seconds', 'judge_nats'), ('passes', 'entropy')]


def likelihood_panels(entries):
    if all(entry.get('members', 1) == 1 for entry in entries):
        return [('order', 'nats')]
    there = set().union(*entries)
    return [('members', y) for y in ('nats', 'gain') if y in there]


def log_panels(runs):
    """Return the loss and the validations that some run has; val_any if all have it."""
    keys = [set().union(*entries) for _, entries in runs]
    some = set().union(*keys)
    own = 'val_any' if all('val_any' in of_run for of_run in keys) else 'val_own'
    ys = [name for name in ('loss', own, 'val_l2r') if name in some]
    return [('tokens', y) for y in ys or ['loss']]


# --------------------------------------------------------------------------------------------------
# what is printed


def format_ends(runs, panels):
    """Return a table of the last value of each panel, each order, and each cost of puzzles.

    A cell is the mean over the runs of a label, its standard error, their number, and whether they
    end unevenly."""
    groups = {}
    for label, entries in runs:
        groups.setdefault(label, []).append(entries)
    columns = columns_of(runs, panels)
    table = [['', *columns]]
    for label, group in groups.items():
        table.append([label, *(format_end(group, *column) for column in columns.values())])

    first, *widths = (max(map(len, column)) for column in zip(*table))
    lines = []
    for label, *cells in table:
        aligned = [cell.rjust(width + 3) for cell, width in zip(cells, widths)]
        lines.append(label.ljust(first) + ''.join(aligned))
    return '\n'.join(lines)


def columns_of(runs, panels):
    """Return {heading: (x, y, order or None)}. What two panels show stands once."""
    columns = {}
    for x, y in panels:
        if x == 'order':
            for entry in itertools.chain(*(entries for _, entries in runs)):
                if x in entry:
                    columns[entry[x]] = (x, y, entry[x])
            continue
        names = (y, 'right', 'slots', 'puzzle_seconds') if y == 'solved' else (y,)
        for name in names:
            columns.setdefault(name, (x, name, None))
    return columns


def format_end(group, x, y, order):
    """Return the cell of the last values of runs, lists of entries, that are of this order."""
    last = []
    for entries in group:
        there = [e for e in entries if x in e and y in e and e.get('order') == order]
        last += there[-1:]
    return format_mean([entry[y] for entry in last], {place(entry, x) for entry in last})


def format_mean(values, ends):
    """Return the mean of `values` ± its standard error (number of values).

    'uneven' if there is more than one of `ends`."""
    if not values:
        return ''
    n = len(values)
    least = min(map(abs, values))
    digits = '.0f'
    if least < 0.1:
        digits = '.3g'
    elif least < 1000:
        digits = '.3f'
    mean = f'{statistics.mean(values):{digits}}'
    if n == 1:
        return mean
    error = statistics.stdev(values) / n**0.5
    uneven = ', uneven' if len(ends) > 1 else ''
    return f'{mean} ± {error:{digits}} ({n}{uneven})'


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
