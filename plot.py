"""
Draw the results of runs and print their last values: training curves, the ensemble by its members, generation time by
the number of steps, quality by the number of passes.

    python plot.py out/a out/b -o loss.png
    python plot.py out/a_seed1 out/a_seed2 out/b_seed1 -o time.png --x=time --y=val_any,loss --labels='AdamW,Muon'
    python plot.py decoder.json encoder.json -o ensemble.png        # of eval_ppl.py --out
    python plot.py grid.json -o generation.png                      # of bench.py grid --out
    python plot.py frontier.json -o frontier.png                    # of bench.py frontier --out

Each panel is one number, each line one run: a folder of train.py, its log.jsonl, or a JSON file of eval_ppl.py or
bench.py. Runs that are called NAME_seed1, NAME_seed2, ... share a colour and a label, and the table has their mean and
its standard error. val_own is the loss in the order that a run was trained in: val_any for a random one, val_l2r for
left to right.
"""
import statistics

from anyorder.curves import read_all
from anyorder.figures import PICTURES, draw
from anyorder.files import check_out
from configurator import configure, one_line_errors

INPUTS = 'runs: folders of train.py, log.jsonl files, JSON files of eval_ppl.py or bench.py'
SHORT = {'o': 'out'}
AXES = ('', 'tokens', 'time', 'iter', 'passes', 'seconds')

out = 'loss.png'   # picture to write: .png, .svg or .pdf; `-o FILE` is the same
x = ''             # axis of training curves: tokens, time or iter; '' is tokens. Of a frontier: passes or seconds
y = ''             # keys with commas between, one panel each; '' is loss and validations, or what a JSON file holds
labels = ''        # what to call the runs, with commas between; '' is the names of folders and files


def choose_panels(runs):
    """[(x, y), ...] that are drawn of runs unless the command line says otherwise."""
    kinds = {next((kind for kind in ('steps', 'members', 'passes') if kind in entry), 'logs')
             for _, entries in runs for entry in entries[:1]}
    if len(kinds) > 1:
        raise ValueError('logs of training, ensembles, generation and frontiers are pictures of their own: name files '
                         'of one kind')
    if kinds == {'steps'}:
        return [('steps', 'seconds')]
    if kinds == {'passes'}:
        return [('passes', 'judge_nats'), ('seconds', 'judge_nats'), ('passes', 'entropy')]
    if kinds == {'members'}:
        gains = any('gain' in entry for _, entries in runs for entry in entries)
        return [('members', y) for y in (['nats', 'gain'] if gains else ['nats'])]
    there = [set().union(*entries) for _, entries in runs]
    own = 'val_any' if all('val_any' in keys for keys in there) else 'val_own'
    ys = [name for name in ('loss', own, 'val_l2r') if any(name in keys for keys in there)] or ['loss']
    return [('tokens', y) for y in ys]


def format_ends(runs, panels):
    """A table of the last value of every panel: the mean over the runs of a label, its standard error, their number,
    and whether they end at different updates."""
    groups, x_of = {}, {}
    for x, y in panels:
        x_of.setdefault(y, x)   # what two panels show stands once
    for label, entries in runs:
        groups.setdefault(label, []).append(entries)
    width = max(map(len, groups))
    lines = [' ' * width + ''.join(f'{y:>28}' for y in x_of)]
    for label, group in groups.items():
        line = label.ljust(width)
        for y, x in x_of.items():
            last = [entry for entries in group for entry in [e for e in entries if x in e and y in e][-1:]]
            line += format_mean([entry[y] for entry in last], {entry.get('iter', entry[x]) for entry in last}).rjust(28)
        lines.append(line)
    return '\n'.join(lines)


def format_mean(values, ends):
    """Mean of `values` ± its standard error (number of values), 'uneven' if they are of more than one of `ends`."""
    if not values:
        return ''
    digits = '.3f' if all(abs(value) >= 0.1 for value in values) else '.3g'
    mean = f'{statistics.mean(values):{digits}}'
    if len(values) == 1:
        return mean
    uneven = ', uneven' if len(ends) > 1 else ''
    return f'{mean} ± {statistics.stdev(values) / len(values) ** 0.5:{digits}} ({len(values)}{uneven})'


def main(config):
    check_out('out', config.out, PICTURES, *config.words)
    if config.x not in AXES:
        raise ValueError(f'x must be {", ".join(AXES[1:])}, got {config.x!r}')
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
