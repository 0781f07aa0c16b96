"""How is a figure drawn? Panels of curves: one number a panel, one colour a label, a band over the runs of a label."""

import itertools
import os
import statistics
from collections import Counter
from pathlib import Path

from anyorder.machine.files import behind_link, whole_files

STYLE = Path(__file__).with_suffix('.mplstyle')
PICTURES = '.png, .svg, .pdf'

# Okabe and Ito's colours, which colour-blind eyes tell apart, without the yellow; markers for print without colours
COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')
LEVEL = '#777777'

# The titles of panels and the names of axes: of a number that an entry has, or of such a number by the one on the
# other axis
PANELS = {
    'loss': 'training loss',
    'val_any': 'validation, any order (bound)',
    'val_l2r': 'validation, left to right',
    'val_own': "validation, the run's own order",
    'nats': 'held-out text',
    'nats by members': 'context-order ensemble',
    'nats by order': 'likelihood',
    'cost': 'cost of fewer passes',
    'gain': 'gain over one context',
    'seconds': 'time of generation',
    'loss_of_masked': 'loss of what is masked',
    'judge_nats': 'samples under the judge',
    'entropy': 'entropy of a sample',
    'distinct_2': 'distinct bigrams',
    'solved': 'puzzles solved',
    'right': 'blanks right',
}
UNITS = {  # a number without one is in nats per token
    'seconds': 'seconds',
    'distinct_2': 'share of all',
    'solved': 'share',
    'right': 'share',
}
AXES = {
    'tokens': 'tokens seen',
    'time': 'training time in minutes',
    'iter': 'updates',
    'members': 'members of the ensemble',
    'steps': 'steps of generation',
    'masked': 'share that is masked',
    'passes': 'passes of a sample',
    'seconds': 'seconds of generation',
    'order': 'scored in the order',
    'slots': 'slots a token',
    'solved by slots': 'slots a puzzle',
    'right by slots': 'slots a puzzle',
    'puzzle_seconds': 'seconds a puzzle',
}


def curve(entries, x, y):
    """([x], [y]) of the entries that have both."""
    points = [(entry[x], entry[y]) for entry in entries if x in entry and y in entry]
    return [a for a, _ in points], [b for _, b in points]


def place(entry, x):
    """What the same point of several runs shares: its update, steps or setting, or x. Times and passes may differ."""
    return next(str(entry[key]) for key in ('iter', 'n_steps', 'setting', x) if key in entry)


def mean_curve(group, x, y):
    """(mean xs, means, least, greatest) over the runs of `group`, lists of entries; None unless their places agree."""
    runs = [[entry for entry in entries if x in entry and y in entry] for entries in group]
    where = [[place(entry, x) for entry in entries] for entries in runs]
    if len(runs) < 2 or any(at != where[0] for at in where):
        return None
    points = list(zip(*runs))  # for every update the entries of all runs
    values = [[entry[y] for entry in entries] for entries in points]
    return (
        [
            entries[0][x] if x == 'order' else statistics.fmean(entry[x] for entry in entries)
            for entries in points
        ],
        [statistics.fmean(row) for row in values],
        [min(row) for row in values],
        [max(row) for row in values],
    )


def draw_group(axis, group, x, y, label, style):
    """The curves of one label; returns what their bands and bars are, {line of the legend's title}. Several runs with
    the same places are their mean and a band from the least to the greatest, at a single point a bar. Others are a
    curve each, with bars of their errors, `y`_error. What does not depend on the members of an ensemble is a level
    line, and so is the measure of the others, an entry with a `level`."""
    mean, notes = mean_curve(group, x, y), set()
    if mean is not None and mean[0]:
        xs, means, least, greatest = mean
        is_point = len(xs) == 1 and x != 'members'
        notes.add(
            'points: mean of the seeds; bars: from the least to the greatest'
            if is_point
            else 'lines: mean of the seeds; bands: from the least to the greatest'
        )
        if is_point:
            reach = [means[0] - least[0]], [greatest[0] - means[0]]
            axis.errorbar(xs, means, reach, fmt='none', ecolor=style['color'], elinewidth=1)
        elif len(xs) == 1:
            axis.axhspan(least[0], greatest[0], color=style['color'], alpha=0.15, linewidth=0)
        else:
            axis.fill_between(xs, least, greatest, color=style['color'], alpha=0.2, linewidth=0)
        group = [[{x: a, y: b} for a, b in zip(xs, means)]]
    for entries in group:
        xs, values = curve(entries, x, y)
        errors = [entry.get(f'{y}_error', 0) for entry in entries if x in entry and y in entry]
        if any(errors):
            notes.add('bars and bands: standard error')
        bound = x == 'members' and len(xs) == 1
        if bound or xs and any('level' in entry for entry in entries):
            dashed = {'linestyle': '--'} if bound else {}
            axis.axhline(
                values[0], label=label if bound else None, **style | {'marker': None} | dashed
            )
            if any(errors):
                axis.axhspan(
                    values[0] - errors[0],
                    values[0] + errors[0],
                    color=style['color'],
                    alpha=0.1,
                    linewidth=0,
                )
        if xs and not bound:
            axis.errorbar(
                xs, values, errors if any(errors) else None, label=label, elinewidth=1, **style
            )
        label = None if xs else label  # one entry in the legend
    return notes


def set_axes(axis, x, y, xs):
    """Scales, ticks that can be read, and names; `xs` holds every x that is drawn."""
    from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, NullLocator

    if x in ('members', 'steps', 'passes', 'seconds', 'slots', 'puzzle_seconds'):
        axis.set_xscale('log', base=2 if x in ('members', 'steps', 'passes') else 10)
        if len(xs) <= 8 and x in (
            'members',
            'steps',
            'seconds',
        ):  # the others' means are no round numbers
            axis.xaxis.set_major_locator(FixedLocator(sorted(xs)))
        elif x != 'passes':
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    if x in ('tokens', 'iter'):
        axis.xaxis.set_major_formatter(EngFormatter(sep=''))  # 2M
    if y == 'seconds':
        axis.set_yscale('log')
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for ruler in (axis.xaxis, axis.yaxis):
        if ruler.get_scale() == 'log':
            ruler.set_major_formatter('{x:g}')
            ruler.set_minor_locator(NullLocator())
    if y in ('solved', 'right'):
        axis.set_ylim(-0.03, 1.03)
    axis.set_title(PANELS.get(f'{y} by {x}', PANELS.get(y, y)))
    axis.set_xlabel(AXES.get(f'{y} by {x}', AXES.get(x, x)))
    if x == 'order':
        axis.margins(x=0.12)  # names are wide
        axis.tick_params('x', rotation=20 if sum(map(len, xs)) > 40 else 0)


def style(color, marker, line=0):
    """The style with the color-th colour, the marker-th marker and the line-th line; a second round is dashed."""
    return {
        'color': COLORS[color % len(COLORS)],
        'marker': MARKERS[marker % len(MARKERS)],
        'linestyle': ('-', '--', ':')[(color // len(COLORS) + line) % 3],
    }


def styles(groups):
    """{label: style} of groups, {label: [entries, ...]}. In frontiers, labels RUN: WAY, a way has one colour and a run
    one kind of line. Unmasking by a threshold looks like its policy, but hollow, in blocks dashed; a `level` is grey.
    In puzzles, labels RUN: POLICY, a run has a colour, a policy a marker."""
    keys = {label: set().union(*itertools.chain(*group)) for label, group in groups.items()}
    levels, puzzles = (
        {label for label in groups if key in keys[label]} for key in ('level', 'solved')
    )
    found, colors, markers, rounds = {}, {}, {}, Counter()
    for label in groups:
        run, _, way = label.rpartition(': ')
        if label in levels:
            found[label] = style(0, 0, rounds[way]) | {
                'color': LEVEL,
                'marker': '*',
                'markersize': 8,
                'zorder': 3,
            }
        elif levels:
            (policy, *_), solid = way.split(), way.removesuffix(' threshold')
            color, marker = (
                colors.setdefault(policy, len(colors)),
                markers.setdefault(solid, len(markers)),
            )
            hollow = {'markerfacecolor': 'white'} if way != solid else {}
            found[label] = style(color, marker, rounds[way] + (solid != policy)) | hollow
        elif puzzles and run:
            found[label] = style(
                colors.setdefault(run, len(colors)), markers.setdefault(way, len(markers))
            )
        else:
            found[label] = style(len(found), len(found))
        rounds[way] += 1
    return found


def draw(runs, panels, path):
    """Panels [(x, y), ...] of runs [(label, entries)] into `path`; returns the figure. ValueError if one is empty."""
    for x, y in panels:
        if not any(curve(entries, x, y)[0] for _, entries in runs):
            there = sorted(
                set().union(*itertools.chain(*(entries for _, entries in runs))) - {'setting'}
            )
            raise ValueError(
                f'no run has {y} by {x}; they have: {", ".join(there) or "no entries"}'
            )
    import matplotlib

    matplotlib.use('agg')
    import matplotlib.pyplot as plt

    groups = {}
    for label, entries in runs:
        groups.setdefault(label, []).append(entries)
    width, height = (
        (5.2, 4.2) if len(panels) < 3 else (4.2, 4.6)
    )  # inches; a page shows three panels as small as two
    with plt.style.context(STYLE), whole_files(behind_link(path)) as (temporary,):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(width * len(panels), height), squeeze=False
        )
        units = [UNITS.get(y, 'nats per token' if y in PANELS else y) for _, y in panels]
        style_of, notes = styles(groups), set()
        for axis, (x, y), unit, left in zip(axes[0], panels, units, [None, *units]):
            if unit != left:  # the panels of one unit say it once
                axis.set_ylabel(unit)
            longest = max(len(curve(entries, x, y)[0]) for _, entries in runs)
            lines = (
                {'linewidth': 1.0, 'marker': None}
                if longest > 100
                else {'marker': None}
                if longest > 40
                else {}
            )
            for number, (label, group) in enumerate(
                groups.items()
            ):  # matplotlib hides a label that begins with _
                notes |= draw_group(axis, group, x, y, str(number), style_of[label] | lines)
            set_axes(axis, x, y, set().union(*(curve(entries, x, y)[0] for _, entries in runs)))
        handles = {
            text: line for axis in axes[0] for line, text in zip(*axis.get_legend_handles_labels())
        }
        names = {
            str(number): label for number, label in enumerate(groups) if str(number) in handles
        }
        longest = max(map(len, names.values()), default=0)
        widest = 0.7 + 0.09 * longest  # inches of an entry, its line and margins included
        legend = figure.legend(
            [handles[number] for number in names],
            list(names),
            loc='outside lower center',
            ncols=max(1, min(len(names), int(figure.get_figwidth() / widest))),
        )
        for text, name in zip(legend.get_texts(), names.values()):
            text.set_text(name)
        legend.set_title('\n'.join(sorted(notes)))
        figure.savefig(temporary, format=os.path.splitext(path)[1][1:])
    plt.close(figure)
    return figure
