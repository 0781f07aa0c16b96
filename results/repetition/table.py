"""How much do samples repeat? A row for each file of sample.py --metrics=CHECKPOINT.

    python results/repetition/table.py --files=out/l2r.json,out/margin.json

± is the standard error over the texts."""

import json
import os
import statistics
import sys

sys.path.append('.')  # the project's folder, from which it is run

from anyorder.likelihood.judge import is_written, text_metrics
from anyorder.likelihood.tables import standard_error
from anyorder.machine.terminal import one_line_errors
from configurator import configure, names_in

files = ''  # of sample.py --metrics=CHECKPOINT --out=FILE.json, with commas

COLUMNS = ('entropy', 'distinct_1', 'repetition')


def main(config):
    print('| file | judge, perplexity | entropy, nats | distinct tokens | 4-grams that repeat |')
    print('|---|---|---|---|---|')
    for path in names_in(config.files):
        with open(path, encoding='utf-8') as f:
            result = json.load(f)
        judge = result['metrics']['judge']
        cells = [f'{judge["perplexity"]:.0f} ± {judge["perplexity_stderr"]:.0f}']
        texts = [metrics_of(sample) for sample in result['samples']]
        for name in COLUMNS:
            cells.append(mean_and_error([text[name] for text in texts]))
        name, _ = os.path.splitext(os.path.basename(path))
        print(f'| {name} | {" | ".join(cells)} |')


def metrics_of(sample):
    """Return text_metrics of one sample."""
    return text_metrics([sample['tokens']], [is_written(sample)])


def mean_and_error(values):
    return f'{statistics.mean(values):.3f} ± {standard_error(values):.3f}'


if __name__ == '__main__':
    with one_line_errors():
        main(configure(globals()))
