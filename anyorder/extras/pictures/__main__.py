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

out = 'loss.png'  # picture to write: .png, .svg or .pdf
x = 'tokens'  # what the axis is: tokens or iter of a log, or a name in the rows of a JSON file
y = ''  # names with commas between, a panel each; '' is the losses of a log
by = ''  # names in the rows of a JSON file, with commas between: a line for each of their values
labels = ''  # what to call the runs, with commas between; '' is names of folders and files


def main(config):
    check_out('out', config.out, '.png, .svg, .pdf', *config.words)
    paths = list(dict.fromkeys(map(log_of, config.words)))
    groups = groups_of(paths, names_in(config.by), config.labels)
    there = {name for runs in groups.values() for entries in runs for e in entries for name in e}
    losses = ['loss', *(name for name in LOSSES if name in there)]
    panels = {}
    for y in names_in(config.y) or losses:
        panels[y] = {label: mean_of(runs, config.x, y) for label, runs in groups.items()}
        if not any(panels[y].values()):
            named = ', '.join(sorted(there))
            raise ValueError(f'no run has {y} by {config.x}; they have: {named}')
        print(f'{y:<34}{"mean":>12}{"error":>10}{"runs":>6}  {config.x}')
        for label, curve in panels[y].items():
            print_ends(label, curve)
    replace_file(config.out, picture(config.x, panels, config.out))
    print(f'\n{config.out} written')


def print_ends(label, curve):
    """Print the last value of a curve {x: values}, or all where x are names."""
    places = list(curve)
    if not has_names(places):
        places = places[-1:]
    for place in places:
        n = len(curve[place])
        error = f'{statistics.stdev(curve[place]) / n**0.5:.4f}' if n > 1 else ''
        print(f'{label:<34}{statistics.fmean(curve[place]):>12.4f}{error:>10}{n:>6}  {place}')


# --------------------------------------------------------------------------------------------------
# the runs


def groups_of(paths, by, labels):
    """Return {label: [the entries of a run, ...]}, in the order of the paths.

    by      names of what tells the lines of a run apart
    labels  what to call the runs, with commas between; '' is their own names"""
    names = list(dict.fromkeys(map(name_of, paths)))
    called = labels.split(',') if labels else names
    if len(called) != len(names):
        raise ValueError(f'--labels must name {len(names)}: {", ".join(names)}; got {labels}')
    groups = {}
    for path in paths:
        name = called[names.index(name_of(path))]
        of_path = {}
        for entry in entries_of(path):
            texts = [str(entry[key]) for key in by if key in entry]
            if len(names) > 1 or not texts:
                texts.insert(0, name)
            of_path.setdefault(', '.join(texts), []).append(entry)
        for label, entries in of_path.items():
            groups.setdefault(label, []).append(entries)
    return groups


def log_of(path):
    """Return the file of a run, which is named by its folder or its file."""
    path = Path(path)
    return path / 'log.jsonl' if path.is_dir() else path


def name_of(path):
    """Return the name of a run: of its folder or file, without its seed."""
    path = path.absolute()
    if path.name == 'log.jsonl':
        path = path.parent
    return re.sub(r'(_seed\d+)?(\.jsonl?)?$', '', path.name)


def entries_of(path):
    """Return the entries of a log, or the rows of a JSON file."""
    if path.suffix == '.json':
        with reading(path, 'rows', 'name what a command wrote by --out'):
            return json.loads(read_text(path))['results']
    with reading(path, 'a log', 'name a folder that train.py wrote'):
        # a run that goes on may be in the middle of its last line
        lines = [line for line in read_text(path).splitlines() if line.endswith('}')]
        entries = list(map(json.loads, lines))
    for entry in entries:
        for name in LOSSES:
            if name in entry:
                entry.setdefault('val_own', entry[name])
    return entries


def mean_of(runs, x, y):
    """Return {x: [y of each run, ...]} where all runs have both; numbers rise."""
    curves = []
    for entries in runs:
        curves.append({e[x]: e[y] for e in entries if x in e and e.get(y) is not None})
    shared = set(curves[0]).intersection(*curves)
    places = [place for place in curves[0] if place in shared]
    if not has_names(places):
        places.sort()
    found = {}
    for place in places:
        found[place] = [curve[place] for curve in curves]
    return found


def has_names(places):
    return all(isinstance(place, str) for place in places)


# --------------------------------------------------------------------------------------------------
# the picture


def picture(x, panels, name):
    """Return the bytes of a picture with a panel for each y of {y: {label: {x: values}}}."""
    import matplotlib

    matplotlib.use('agg')
    import matplotlib.pyplot as plt

    with plt.style.context(STYLE):
        n = len(panels)
        figure, axes = plt.subplots(1, n, figsize=(1 + 4.4 * n, 5), squeeze=False)
        handles = {}
        for axis, (y, panel) in zip(axes[0], panels.items()):
            axis.set(title=y, xlabel=x)
            for number, (label, curve) in enumerate(panel.items()):
                if curve:
                    handles[label] = draw(axis, curve, number)
            set_scale(axis, x, panel)
        # by position, since matplotlib hides a label that begins with _
        figure.legend(handles.values(), handles, loc='outside lower center', ncols=2 * n)
        file = io.BytesIO()
        figure.savefig(file, format=Path(name).suffix[1:])
        plt.close(figure)
    return file.getvalue()


def draw(axis, curve, number):
    """Draw {x: values}, the number-th line of a panel, and return it for the legend."""
    color = f'C{number}'
    marker = 'o' if len(curve) <= 20 else ''
    dashes = '-' if number < 10 else '--'
    means = [statistics.fmean(values) for values in curve.values()]
    (line,) = axis.plot(list(curve), means, dashes, color=color, marker=marker)
    low, high = zip(*((min(values), max(values)) for values in curve.values()))
    axis.fill_between(list(curve), low, high, color=color, alpha=0.2, linewidth=0)
    return line


def set_scale(axis, x, panel):
    """Count tokens and updates by thousands; other numbers have powers of two as their ticks."""
    from matplotlib.ticker import EngFormatter

    if x in ('tokens', 'iter'):
        axis.xaxis.set_major_formatter(EngFormatter(sep=''))
        return
    places = set().union(*panel.values())
    if has_names(places):
        axis.tick_params('x', rotation=20)
    elif min(places) > 0:
        axis.set_xscale('log', base=2)
        axis.xaxis.set_major_formatter('{x:g}')


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
