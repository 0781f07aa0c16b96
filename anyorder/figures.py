"""
How is a figure drawn? Panels of curves: one number a panel, one line a run.
"""
import itertools

PICTURES = '.png, .svg, .pdf'

NAMES = {'tokens': 'tokens seen', 'time': 'training time in minutes', 'iter': 'updates', 'members': 'members of the ensemble',
         'steps': 'steps of generation', 'loss': 'training loss', 'val_any': 'validation, any order (bound)',
         'val_l2r': 'validation, left to right', 'val_own': "validation, the run's own order", 'nats': 'context-order ensemble',
         'seconds': 'seconds of generation', 'masked': 'share that is masked', 'masked_loss': 'loss of what is masked'}


def curve(entries, x, y):
    """([x], [y]) of the entries that have both."""
    points = [(entry[x], entry[y]) for entry in entries if x in entry and y in entry]
    return [a for a, _ in points], [b for _, b in points]


def draw(runs, x, ys, path):
    """A panel for each of ys, a line for each of runs, [(label, entries)], in the colour of its label; returns the figure. What does not
    depend on the members is a level line."""
    for y in ys:
        if not any(curve(entries, x, y)[0] for _, entries in runs):
            there = sorted(set().union(*itertools.chain(*(entries for _, entries in runs))))
            raise ValueError(f'no run has {y} by {x}; they have: {", ".join(there) or "no entries"}')
    import matplotlib
    matplotlib.use('agg')
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(1, len(ys), figsize=(5.2 * len(ys), 4), squeeze=False, layout='constrained')
    labels = list(dict.fromkeys(label for label, _ in runs))
    for axis, y in zip(axes[0], ys):
        for label, entries in runs:
            xs, values = curve(entries, x, y)
            if not xs:
                continue
            known = label in axis.get_legend_handles_labels()[1]
            style = dict(label=None if known else label, color=f'C{labels.index(label)}', linewidth=0.8 if y == 'loss' else 1.4)
            if x == 'members' and len(xs) == 1:
                axis.axhline(values[0], linestyle='--', **style)
            else:
                axis.plot(xs, values, marker='o' if x in ('members', 'steps', 'masked') else None, **style)
        if x in ('members', 'steps'):
            axis.set_xscale('log', base=2)
            axis.xaxis.set_major_formatter('{x:g}')
        if y == 'seconds':
            axis.set_yscale('log')
            axis.yaxis.set_major_formatter('{x:g}')
        nats = y in ('loss', 'nats', 'masked_loss') or y.startswith('val_')
        axis.set(xlabel=NAMES.get(x, x), ylabel='nats per token' if nats else y, title=NAMES.get(y, y))
        axis.grid(alpha=0.3)
        axis.spines[['top', 'right']].set_visible(False)
    handles = {text: line for axis in axes[0] for line, text in zip(*axis.get_legend_handles_labels())}
    legend = figure.legend([handles[label] for label in labels if label in handles], [label for label in labels if label in handles],
                           frameon=False, loc='outside lower center', ncols=2 * len(ys))
    for text in legend.get_texts():
        text.set_parse_math(False)   # a $ in a name is a $
    figure.savefig(path, dpi=150)
    return figure
