"""Draw the results of runs and print their last values: training curves, nats by order, the ensemble by its members,
puzzles solved by what they cost, generation time by the number of steps, what fewer passes cost, how a text is written.

    python plot.py out/a out/b -o loss.png
    python plot.py out/a_seed1 out/a_seed2 out/b_seed1 -o time.png --x=time --y=val_any,loss --labels='AdamW,Muon'
    python plot.py decoder.json encoder.json -o ensemble.png        # by eval_ppl.py --out
    python plot.py decoder.json encoder.json -o puzzles.png         # by eval_puzzle.py --out
    python plot.py grid.json -o generation.png                      # by bench.py grid --out
    python plot.py frontier.json -o frontier.png                    # by bench.py frontier --out
    python plot.py replay.html -o replay.svg                        # by sample.py or eval_puzzle.py --html

Each panel is one number, each line one run: a folder of train.py, its log.jsonl, or a JSON file of an evaluation or
bench.py. Runs called NAME_seed1, NAME_seed2, ... share a colour and a label, and the table has their mean and its
standard error. val_own is the loss in the order in which a run was trained: val_any after random orders, val_l2r after
left to right. The page of a replay becomes a picture that plays by itself: its first sample, and beside it the next one
that has the same known tokens, without drafts."""

import statistics

from anyorder.machine.files import check_out, replace_file
from anyorder.machine.terminal import one_line_errors
from anyorder.pictures.animation import picture_of_page
from anyorder.pictures.curves import read_all
from anyorder.pictures.figures import PICTURES, draw, place
from configurator import check_choice, configure

INPUTS = (
    'runs: folders of train.py, log.jsonl files, JSON files of eval_ppl.py, eval_puzzle.py or bench.py; '
    'or the page of a replay'
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

# fmt: off

out = 'loss.png'   # picture to write: .png, .svg or .pdf, of a replay .svg; `-o FILE` is the same
x = ''             # axis: tokens, time or iter for training curves ('' is tokens), passes, slots or seconds for a
                   # frontier, slots or puzzle_seconds for puzzles, order or members for likelihoods
y = ''             # keys with commas between, one panel each; '' is loss and validations, or what a JSON file holds
labels = ''        # what to call the runs, or all lines, with commas between; '' is the names of folders and files
# fmt: on


def choose_panels(runs):
    """The panels [(x, y), ...] that are drawn unless the command line says otherwise."""
    kinds = {
        next((kind for key, kind in KINDS.items() if key in entry), 'logs')
        for _, entries in runs
        for entry in entries[:1]
    }
    if len(kinds) > 1:
        raise ValueError(
            f'{" and ".join(sorted(kinds))} are pictures of their own: name files of one kind'
        )
    if kinds == {'generation'}:
        return [('steps', 'seconds')]
    every = [entry for _, entries in runs for entry in entries]
    if kinds == {'frontiers'} and all('nats' in entry for entry in every):
        return [(x, 'nats') for x in ('passes', 'slots', 'seconds')]
    if kinds == {'frontiers'}:  # at temperature 0, or in older files
        return [('passes', 'judge_nats'), ('seconds', 'judge_nats'), ('passes', 'entropy')]
    if kinds == {'puzzles'}:
        return [('slots', 'solved'), ('puzzle_seconds', 'solved')]
    if kinds == {'likelihoods'}:
        if all(entry.get('members', 1) == 1 for entry in every):
            return [('order', 'nats')]
        return [('members', y) for y in ('nats', 'gain') if any(y in entry for entry in every)]
    there = [set().union(*entries) for _, entries in runs]
    own = 'val_any' if all('val_any' in keys for keys in there) else 'val_own'
    ys = [name for name in ('loss', own, 'val_l2r') if any(name in keys for keys in there)] or [
        'loss'
    ]
    return [('tokens', y) for y in ys]


def format_ends(runs, panels):
    """A table of the last value of each panel, each order, and each cost of puzzles. A cell is the mean over the runs
    of a label, its standard error, their number, and whether they end unevenly."""
    groups, columns = {}, {}  # {label: [entries, ...]}, {heading: (x, y, order or None)}
    for x, y in panels:  # what two panels show stands once
        if x == 'order':
            columns |= {
                entry[x]: (x, y, entry[x]) for _, entries in runs for entry in entries if x in entry
            }
        else:
            for name in (y, 'right', 'slots', 'puzzle_seconds') if y == 'solved' else (y,):
                columns.setdefault(name, (x, name, None))
    for label, entries in runs:
        groups.setdefault(label, []).append(entries)
    table = [['', *columns]]
    for label, group in groups.items():
        table.append([label])
        for x, y, order in columns.values():
            last = [
                entry
                for entries in group
                for entry in [e for e in entries if x in e and y in e and e.get('order') == order][
                    -1:
                ]
            ]
            table[-1].append(
                format_mean([entry[y] for entry in last], {place(entry, x) for entry in last})
            )
    first, *widths = (max(map(len, column)) for column in zip(*table))
    return '\n'.join(
        label.ljust(first) + ''.join(cell.rjust(width + 3) for cell, width in zip(cells, widths))
        for label, *cells in table
    )


def format_mean(values, ends):
    """Mean of `values` ± its standard error (number of values), 'uneven' if there is more than one of `ends`."""
    if not values:
        return ''
    least = min(map(abs, values))
    digits = '.3g' if least < 0.1 else '.3f' if least < 1000 else '.0f'
    mean = f'{statistics.mean(values):{digits}}'
    if len(values) == 1:
        return mean
    uneven = ', uneven' if len(ends) > 1 else ''
    return (
        f'{mean} ± {statistics.stdev(values) / len(values) ** 0.5:{digits}} ({len(values)}{uneven})'
    )


def animate(config):
    """Write the animated picture of the page of a replay."""
    idle = config.given & {'x', 'y', 'labels'}
    if len(config.words) > 1 or idle:
        raise ValueError(
            'a replay is a picture of its own: name one page and nothing else, leave out x, y and labels'
        )
    (page,) = config.words
    check_out('out', config.out, '.svg', page)
    replace_file(config.out, picture_of_page(page).encode())
    print(f'{config.out} written')


def main(config):
    if any(path.endswith('.html') for path in config.words):
        return animate(config)
    check_out('out', config.out, PICTURES, *config.words)
    check_choice('x', config.x or 'tokens', *AXES)
    runs = read_all(config.words, config.labels.split(',') if config.labels else ())
    panels = choose_panels(runs)
    ys = config.y.split(',') if config.y else dict.fromkeys(y for _, y in panels)
    if config.x or config.y:
        panels = [(config.x or panels[0][0], y) for y in ys]
    draw(runs, panels, config.out)
    print(f'{format_ends(runs, panels)}\n\n{config.out} written')


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
