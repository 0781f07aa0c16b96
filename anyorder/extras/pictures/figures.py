"""How is a figure drawn? Panels of curves.

A panel is one number, a colour one label, a band the runs of a label."""

import itertools
import os
import re
import statistics
from collections import Counter
from pathlib import Path

from anyorder.machine.files import behind_link, whole_files

STYLE = Path(__file__).with_suffix('.mplstyle')
PICTURES = '.png, .svg, .pdf'

# Okabe and Ito's colours, which colour-blind eyes tell apart, without the yellow; markers for print
# without colours
COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000')
MARKERS = ('o', 's', '^', 'D', 'v', 'P', 'X')
LEVEL = '#777777'

# The titles of panels and the names of axes: of a number that an entry has, or of such a number by
# the one on the other axis
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
OF_SET = re.compile(r'val_(.+)_(any|l2r|own)')  # the validation of one set of several
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


def having(entries, x, y):
    """Return the entries that have both numbers."""
    return [entry for entry in entries if x in entry and y in entry]


def curve(entries, x, y):
    """Return ([x], [y]) of the entries that have both."""
    points = having(entries, x, y)
    return [entry[x] for entry in points], [entry[y] for entry in points]


def place(entry, x):
    """Return what the same point of several runs shares: its update, steps or setting, or x.

    Times and passes may differ."""
    return next(str(entry[key]) for key in ('iter', 'n_steps', 'setting', x) if key in entry)


def mean_curve(group, x, y):
    """Return (mean xs, means, least, greatest) over the runs of `group`, lists of entries.

    None, unless there are several runs and all have points at the same places."""
    runs = [having(entries, x, y) for entries in group]
    where = []
    for entries in runs:
        where.append([place(entry, x) for entry in entries])
    if len(runs) < 2 or any(places != where[0] for places in where):
        return None
    points = []
    for entries in zip(*runs):  # of all runs the entries at one place
        values = [entry[y] for entry in entries]
        mean = statistics.fmean(values)
        points.append((mean_place(entries, x), mean, min(values), max(values)))
    return tuple(map(list, zip(*points))) or None


def mean_place(entries, x):
    """Return where on the axis the mean of entries stands, which share the name of an order."""
    if x == 'order':
        return entries[0][x]
    return statistics.fmean(entry[x] for entry in entries)


# --------------------------------------------------------------------------------------------------
# the styles of labels


def style(color, marker, line=0):
    """Return the style of the color-th colour, the marker-th marker and the line-th kind of line.

    A second round of colours is dashed."""
    n_rounds = color // len(COLORS) + line
    return {
        'color': COLORS[color % len(COLORS)],
        'marker': MARKERS[marker % len(MARKERS)],
        'linestyle': ('-', '--', ':')[n_rounds % 3],
    }


def styles(groups):
    """Return {label: style} of groups, {label: [entries, ...]}."""
    keys = {label: set().union(*itertools.chain(*group)) for label, group in groups.items()}
    levels = {label for label in groups if 'level' in keys[label]}
    if levels:
        return styles_of_ways(groups, levels)
    if any('solved' in keys[label] for label in groups):
        return styles_of_policies(groups)
    return {label: style(number, number) for number, label in enumerate(groups)}


def styles_of_ways(labels, levels):
    """Return {label: style} of frontiers, whose labels are WAY or RUN: WAY.

    A way has one colour and a run one kind of line. Unmasking by a threshold looks like its policy,
    but hollow, in blocks dashed. The labels of `levels` are grey."""
    found = {}
    colors = {}
    markers = {}
    rounds = Counter()
    for label in labels:
        _, _, way = label.rpartition(': ')
        policy = way.split()[0]
        solid = way.removesuffix(' threshold')
        if label in levels:
            grey = {'color': LEVEL, 'marker': '*', 'markersize': 8, 'zorder': 3}
            found[label] = style(0, 0, rounds[way]) | grey
        else:
            color = colors.setdefault(policy, len(colors))
            marker = markers.setdefault(solid, len(markers))
            line = rounds[way]
            if solid != policy:
                line += 1
            found[label] = style(color, marker, line)
            if way != solid:
                found[label]['markerfacecolor'] = 'white'
        rounds[way] += 1
    return found


def styles_of_policies(labels):
    """Return {label: style} of puzzles.

    Of labels RUN: POLICY a run has a colour and a policy a marker."""
    found = {}
    colors = {}
    markers = {}
    for label in labels:
        run, _, policy = label.rpartition(': ')
        color = colors.setdefault(run or label, len(colors))
        found[label] = style(color, markers.setdefault(policy, len(markers)))
    return found


# --------------------------------------------------------------------------------------------------
# the picture


def draw(runs, panels, path):
    """Draw panels [(x, y), ...] of runs [(label, entries)] into `path`, and return the figure.

    Raises ValueError if a panel is empty."""
    check_panels(runs, panels)
    import matplotlib

    matplotlib.use('agg')
    import matplotlib.pyplot as plt

    groups = {}
    for label, entries in runs:
        groups.setdefault(label, []).append(entries)
    style_of = styles(groups)
    width, height = panel_size(len(panels))

    with plt.style.context(STYLE), whole_files(behind_link(path)) as (temporary,):
        size = width * len(panels), height
        figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False)
        axes = axes[0]
        notes = set()
        unit = None
        for axis, (x, y) in zip(axes, panels):
            notes |= draw_panel(axis, groups, x, y, style_of)
            if unit_of(y) != unit:  # the panels of one unit say it once
                unit = unit_of(y)
                axis.set_ylabel(unit)
        add_legend(figure, axes, list(groups), notes)
        figure.savefig(temporary, format=os.path.splitext(path)[1][1:])
    plt.close(figure)
    return figure


def check_panels(runs, panels):
    """Raise ValueError unless every panel has a point."""
    for x, y in panels:
        if any(having(entries, x, y) for _, entries in runs):
            continue
        there = set().union(*itertools.chain(*(entries for _, entries in runs)))
        named = ', '.join(sorted(there - {'setting'})) or 'no entries'
        raise ValueError(f'no run has {y} by {x}; they have: {named}')


def panel_size(n_panels):
    """Return inches of a panel; a page shows three panels as small as two."""
    if n_panels < 3:
        return 5.2, 4.2
    return 4.2, 4.6


def unit_of(y):
    """Return the unit of a number; one of no panel is named by itself."""
    if y in UNITS:
        return UNITS[y]
    return 'nats per token' if y in PANELS or OF_SET.fullmatch(y) else y


def draw_panel(axis, groups, x, y, style_of):
    """Draw the curves of all groups, {label: [entries, ...]}, and return the notes on bands."""
    xs = set()
    longest = 0
    for entries in itertools.chain(*groups.values()):
        of_run, _ = curve(entries, x, y)
        xs.update(of_run)
        longest = max(longest, len(of_run))
    lines = {}
    if longest > 40:
        lines['marker'] = None
    if longest > 100:
        lines['linewidth'] = 1.0
    notes = set()
    for number, (label, group) in enumerate(groups.items()):
        # numbers stand for labels: matplotlib hides a label that begins with _
        notes |= draw_group(axis, group, x, y, str(number), style_of[label] | lines)
    set_scales(axis, x, y, xs)
    set_names(axis, x, y, xs)
    return notes


def draw_group(axis, group, x, y, label, style):
    """Draw the curves of one label; return what their bands and bars are, lines of the legend.

    Several runs with the same places are their mean and a band from the least to the greatest.
    Others are a curve each, with bars of their errors, `y`_error."""
    notes = set()
    mean = mean_curve(group, x, y)
    if mean is not None:
        notes.add(draw_spread(axis, mean, x, style))
        xs, means, _, _ = mean
        group = [[{x: a, y: b} for a, b in zip(xs, means)]]
    for entries in group:
        if not having(entries, x, y):
            continue
        if any(errors_of(entries, x, y)):
            notes.add('bars and bands: standard error')
        draw_curve(axis, entries, x, y, label, style)
        label = None  # one entry in the legend
    return notes


def draw_spread(axis, mean, x, style):
    """Draw a band around a mean_curve, a bar at a single point; return what it says."""
    xs, means, least, greatest = mean
    color = style['color']
    if len(xs) == 1 and x != 'members':
        reach = [means[0] - least[0]], [greatest[0] - means[0]]
        axis.errorbar(xs, means, reach, fmt='none', ecolor=color, elinewidth=1)
        return 'points: mean of the seeds; bars: from the least to the greatest'
    if len(xs) == 1:
        axis.axhspan(least[0], greatest[0], color=color, alpha=0.15, linewidth=0)
    else:
        axis.fill_between(xs, least, greatest, color=color, alpha=0.2, linewidth=0)
    return 'lines: mean of the seeds; bands: from the least to the greatest'


def errors_of(entries, x, y):
    return [entry.get(f'{y}_error', 0) for entry in having(entries, x, y)]


def draw_curve(axis, entries, x, y, label, style):
    """Draw one curve and the bars of its errors.

    What does not depend on the members of an ensemble is a level line. So is the measure of the
    others, an entry with a `level`, beside its point."""
    xs, values = curve(entries, x, y)
    errors = errors_of(entries, x, y)
    if x == 'members' and len(xs) == 1:
        draw_level(axis, values[0], errors[0], style | {'linestyle': '--'}, label)
        return
    if any('level' in entry for entry in entries):
        draw_level(axis, values[0], errors[0], style)
    if not any(errors):
        errors = None
    axis.errorbar(xs, values, errors, label=label, elinewidth=1, **style)


def draw_level(axis, value, error, style, label=None):
    axis.axhline(value, label=label, **style | {'marker': None})
    if error:
        axis.axhspan(value - error, value + error, color=style['color'], alpha=0.1, linewidth=0)


def set_scales(axis, x, y, xs):
    """Set scales and ticks that can be read; `xs` holds every x that is drawn."""
    from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, NullLocator

    if x in ('members', 'steps', 'passes', 'seconds', 'slots', 'puzzle_seconds'):
        base = 2 if x in ('members', 'steps', 'passes') else 10
        axis.set_xscale('log', base=base)
        if len(xs) <= 8 and x in ('members', 'steps', 'seconds'):
            axis.xaxis.set_major_locator(FixedLocator(sorted(xs)))
        elif x != 'passes':  # means of the others are no round numbers
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


def title_of(y):
    """Return the title of the panel of a number; of one of several sets with the set's name."""
    found = OF_SET.fullmatch(y)
    if y in PANELS or not found:
        return PANELS.get(y, y)
    name, kind = found.groups()
    return f'{name}: {PANELS[f"val_{kind}"]}'


def set_names(axis, x, y, xs):
    """Set the title of a panel and the name of its x; the names in `xs` must have room."""
    both = f'{y} by {x}'
    axis.set_title(PANELS.get(both, title_of(y)))
    axis.set_xlabel(AXES.get(both, AXES.get(x, x)))
    if x == 'order':
        axis.margins(x=0.12)  # names are wide
        rotation = 20 if sum(map(len, xs)) > 40 else 0
        axis.tick_params('x', rotation=rotation)


def add_legend(figure, axes, labels, notes):
    """Add one legend for all panels under the notes."""
    handles = {}
    for axis in axes:
        for line, number in zip(*axis.get_legend_handles_labels()):
            handles[int(number)] = line
    drawn = sorted(handles)
    names = [labels[number] for number in drawn]
    widest = 0.7 + 0.09 * max(map(len, names))  # inches of an entry, its line and margins included
    n_fit = max(1, int(figure.get_figwidth() / widest))
    legend = figure.legend(
        [handles[number] for number in drawn],
        names,
        loc='outside lower center',
        ncols=min(len(names), n_fit),
    )
    for text, name in zip(legend.get_texts(), names):
        text.set_text(name)  # matplotlib would hide one that begins with _
    legend.set_title('\n'.join(sorted(notes)))
