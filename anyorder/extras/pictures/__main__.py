"""Draw numbers of runs as curves, and print where they end.

    python -m anyorder.extras.pictures out/a out/b --out=loss.png
    python -m anyorder.extras.pictures out/a_seed1 out/a_seed2 out/b_seed1 --labels=AdamW,Muon
    # rows of the JSON file that another command wrote by --out
    python -m anyorder.extras.pictures frontier.json --x=passes --y=nats,entropy --by=way
    python -m anyorder.extras.pictures decoder.json encoder.json --x=order --y=solved

A run is a folder of train.py, its log.jsonl, or a JSON file with rows. Runs NAME_seed1, NAME_seed2,
... are one line: their mean where all of them have a number, and a band from the least to the
greatest. The table has the last value of a line, of names on the axis all, with the standard error
over the runs. val_own is the loss in the order in which a run was trained, val_any or val_l2r for
most."""

import io
import json
import os
import re
import statistics
from pathlib import Path

from anyorder.machine.files import check_out, read_text, reading, replace_file
from anyorder.machine.terminal import one_line_errors
from configurator import configure, names_in

INPUTS = 'runs: folders of train.py, log.jsonl files, or JSON files that commands write by --out'
TEXTS = ('labels',)
STYLE = Path(__file__).with_name('curves.mplstyle')
LOSSES = ('val_any', 'val_l2r')
# the label of an axis that says how far a run is
HOW_FAR = {'tokens': 'tokens', 'iter': 'updates', 'flops': 'training FLOPs'}

out = 'loss.png'  # picture to write: .png, .svg or .pdf
x = 'tokens'  # what the axis is: tokens, iter or flops of a log, or a name in rows of a JSON file
y = ''  # names with commas between, a panel each; '' is the losses of a log
by = ''  # names in the rows of a JSON file, with commas between: a line for each of their values
labels = ''  # what to call the runs, with commas between; '' is names of folders and files


def main(config):
    check_out('out', config.out, '.png, .svg, .pdf', *config.words)
    by = names_in(config.by)
    lines = lines_of(config.words, by, config.labels)
    there = {name for points in lines.values() for _, entry in points for name in entry}
    losses = ['loss', *(name for name in LOSSES if name in there)]
    panels = {}
    for y in names_in(config.y) or losses:
        panel = {label: curve_of(points, config.x, y) for label, points in lines.items()}
        if not any(panel.values()) or not there.issuperset(by):
            named = ', '.join(sorted(there))
            raise ValueError(
                f'no run has --y={y} by --x={config.x} --by={config.by}; they have: {named}'
            )
        print(f'{y:<34}{"mean":>12}{"error":>10}{"runs":>6}  {config.x}')
        for label, curve in panel.items():
            print_ends(label, curve)
        panels[y] = panel
    replace_file(config.out, picture(config.x, panels, Path(config.out).suffix[1:]))
    print(f'\n{config.out} written')


def print_ends(label, curve):
    """Print the last value of a curve {x: values}, or all where x are names."""
    places = list(curve)
    if not has_names(places):
        places = places[-1:]
    for place in places:
        values = curve[place]
        error = f'{statistics.stdev(values) / len(values) ** 0.5:.4f}' if values[1:] else ''
        mean = statistics.fmean(values)
        print(f'{label:<34}{mean:>12.4f}{error:>10}{len(values):>6}  {place}')


# --------------------------------------------------------------------------------------------------
# the runs


def lines_of(words, by, labels):
    """Return {label: [(file of a run, an entry of it), ...]}, in the order of the words.

    by      names of what tells the lines of a run apart
    labels  what to call the runs, with commas between; '' is their own names"""
    names = {}  # by file
    for word in words:
        path = Path(word)
        if path.is_dir():
            path = path / 'log.jsonl'
        names[path] = re.sub(r'(_seed\d+)?([/\\]log\.jsonl|\.jsonl?)?$', '', os.path.abspath(path))
    own = list(dict.fromkeys(names.values()))
    called = labels.split(',') if labels else list(dict.fromkeys(map(os.path.basename, own)))
    if len(called) != len(own):
        raise ValueError(f'--labels must name {len(own)}: {", ".join(own)}; got {labels}')
    lines = {}
    for path, name in names.items():
        for entry in entries_of(path):
            texts = [str(entry[key]) for key in by if key in entry]
            if len(own) > 1 or not texts:
                texts.insert(0, called[own.index(name)])
            lines.setdefault(', '.join(texts), []).append((path, entry))
    return lines


def entries_of(path):
    """Return the entries of a log, or the rows of a JSON file."""
    with reading(path, 'a log, or rows', 'name what train.py or a command with --out wrote'):
        text = read_text(path)
        if path.suffix == '.json':
            return json.loads(text)['results']
        # a run that goes on may be in the middle of its last line
        entries = [json.loads(line) for line in text.splitlines() if line.endswith('}')]
    for entry in entries:
        for name in LOSSES:
            if name in entry:
                entry.setdefault('val_own', entry[name])
    return entries


def curve_of(points, x, y):
    """Return {x: [y of each run, ...]} where all runs have both; numbers rise.

    Raises ValueError where a run has several y at one x."""
    curve = {}
    for path, entry in points:
        place = entry.get(x)
        value = entry.get(y)
        if not isinstance(place, str | int | float) or not isinstance(value, int | float):
            continue
        if curve.setdefault(place, {}).setdefault(path, value) != value:
            named = ', '.join(entry)
            raise ValueError(f'{path} has several {y} at {x} {place}: --by= one or more of {named}')
    n_runs = len({path for path, _ in points})
    places = [place for place, values in curve.items() if len(values) == n_runs]
    if not has_names(places):
        places.sort()
    return {place: [*curve[place].values()] for place in places}


def has_names(places):
    return all(isinstance(place, str) for place in places)


# --------------------------------------------------------------------------------------------------
# the picture


def picture(x, panels, form):
    """Return a picture in a format, with a panel for each y of {y: {label: {x: values}}}."""
    import matplotlib

    matplotlib.use('agg')
    import matplotlib.pyplot as plt

    with plt.style.context(STYLE):
        n = len(panels)
        figure, axes = plt.subplots(1, n, figsize=(1 + 4.4 * n, 5), squeeze=False)
        handles = {}
        for axis, (y, panel) in zip(axes[0], panels.items()):
            axis.set(title=y, xlabel=HOW_FAR.get(x, x))
            for number, (label, curve) in enumerate(panel.items()):
                if curve:
                    handles[label] = draw(axis, curve, number)
            set_scale(axis, x, panel)
        # by position, since matplotlib hides a label that begins with _
        figure.legend(handles.values(), handles, loc='outside lower center', ncols=2 * n)
        file = io.BytesIO()
        figure.savefig(file, format=form)
        plt.close(figure)
    return file.getvalue()


def draw(axis, curve, number):
    """Draw {x: values}, the number-th line of a panel, and return it for the legend."""
    places = list(curve)
    marker = 'o' if len(places) <= 20 else ''
    dashes = '-' if number < 10 else '--'
    low, mean, high = (list(map(f, curve.values())) for f in (min, statistics.fmean, max))
    (line,) = axis.plot(places, mean, dashes, color=f'C{number}', marker=marker)
    axis.fill_between(places, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    return line


def set_scale(axis, x, panel):
    """Count what is in HOW_FAR by thousands; other numbers have powers of two as their ticks."""
    from matplotlib.ticker import EngFormatter

    places = set().union(*panel.values())
    if x in HOW_FAR:
        axis.xaxis.set_major_formatter(EngFormatter(sep=''))
    elif has_names(places):
        axis.tick_params('x', rotation=20)
    elif min(places) > 0:
        axis.set_xscale('log', base=2)
        axis.xaxis.set_major_formatter('{x:g}')


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
