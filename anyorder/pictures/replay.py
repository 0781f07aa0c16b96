"""What did a generation look like? --html=FILE of the commands writes a page that replays it, without the network.

FILE.html plays, stops and steps; FILE.html#1,12,step shows sample 1 after step 12, coloured by step. plot.py makes a
picture of the page, see anyorder/pictures/animation.py."""

import json
import math
from bisect import bisect_left
from pathlib import Path

import numpy as np

from anyorder.likelihood.lengths import said
from anyorder.machine.files import check_out, replace_file
from anyorder.pictures.texts import token_texts

TEMPLATE = Path(__file__).with_name('replay.html')  # the look and the script of the page

# how a text was written, by the name of its order
ORDERS = {
    'random': 'in a random order',
    'l2r': 'from left to right',
    'r2l': 'from right to left',
    'fixed': 'in one fixed order',
    'block': 'block by block',
    'rows': 'row by row',
    'columns': 'column by column',
    'spiral': 'in a spiral from the edge inward',
    'blocks2d': 'block by block in a random order',
    'top_prob': "in the model's own order, the most probable token first",
    'margin': "in the model's own order, the clearest choice first",
    'entropy': "in the model's own order, the surest position first",
}


def written_in_words(order):
    """A title: in which order a text was written. Names that have no words here stand as they are."""
    return 'Written ' + ORDERS.get(order.partition(':')[0], f'in the order {order}')


def check_page(path, *others):
    """Raise ValueError unless --html names a page that can be written, see check_out."""
    if path.endswith('.svg'):
        page = path.removesuffix('.svg') + '.html'
        raise ValueError(
            f'--html={path} must end in .html; the picture comes from the page: --html={page}, then '
            f'python plot.py {page} -o {path}'
        )
    check_out('html', path, '.html', *others)


def write_replay(path, samples, tokenizer, title, columns=0, box=0):
    """Write the page that replays `samples` to `path`.

    samples   dicts of tokens, step (-1: known from the start) and logprob (nats), each a list in natural order; there
              may be a `name` too, a list `wrong` of bools, and `drafts` as in scroll.Row
    title     its first line is the heading, further lines are small print
    columns   cells in a row of the grid; 0 is running text
    box       the side of the boxes of a Sudoku, in cells; 0: there are none
    If a second sample has the same known tokens, the page opens with both side by side."""
    heading, *details = title.split('\n')
    between = (
        '' if columns else tokenizer.separator and '\u2002'
    )  # a blank that the page does not mark
    rows = replay_rows(samples, tokenizer, between)
    replay = {'title': heading, 'details': details, 'columns': columns, 'box': box, 'samples': rows}
    data = json.dumps(replay).replace('<', '\\u003c')  # nothing in it can end the script element
    replace_file(path, TEMPLATE.read_text(encoding='utf-8').replace('DATA', data).encode())


def replay_rows(samples, tokenizer, between=''):
    """What a replay says of each sample: a dict with lists that have an entry for each token.

    rank      the step at which a token is written, counted from 1; 0 if it is known from the start
    beside    the number of the next sample that has the same known tokens, or None
    drafts    only if the sample has any: the drafts of a token, [rank, text], or [rank] if the draft was right"""
    known = [
        [token if step < 0 else None for token, step in zip(s['tokens'], s['step'])]
        for s in samples
    ]
    rows = []
    for i, sample in enumerate(samples):
        drawn = [step for step in sample['step'] if step >= 0]
        steps = sorted(set(drawn))  # without the passes that wrote nothing but what a stop cut
        rows.append(
            {
                'name': sample.get('name', f'sample {i}'),
                'text': [text + between for text in token_texts(sample['tokens'], tokenizer)],
                'rank': [
                    0 if step < 0 else 1 + bisect_left(steps, step) for step in sample['step']
                ],
                'n_steps': len(steps),
                'p': [float(f'{math.exp(x):.3g}') for x in sample['logprob']],
                'wrong': sample.get('wrong', []),
                'facts': facts(drawn, sum(sample['logprob']), 'drafts' in sample)
                + [said(length) for length in sample.get('lengths', ())],
                'beside': next(
                    (j for j in range(i + 1, len(samples)) if known[j] == known[i]), None
                ),
            }
        )
        if 'drafts' in sample:
            rows[-1]['drafts'] = [
                [
                    [1 + bisect_left(steps, step), tokenizer.decode([token])][
                        : 1 + (token != written)
                    ]
                    for step, token in drafts
                ]
                for drafts, written in zip(sample['drafts'], sample['tokens'])
            ]
    return rows


def facts(drawn, nats, drafted=False):
    """The lines below a sample: how much in how many steps, how likely, how left to right.

    drawn     the step of each drawn token, in order of position
    nats      the log-probability of all drawn tokens
    drafted   whether the steps were passes that check drafts"""
    n, n_steps = len(drawn), len(set(drawn))
    steps = f'passes, {n / max(1, n_steps):.1f} a pass' if drafted else 'steps'
    said = [f'{n} tokens in {n_steps} {steps}', f'{abs(nats) / max(1, n):.2f} nats a token']
    tau = kendall_tau(drawn)
    return said if tau is None else [*said, f"Kendall's tau {tau:.2f}"]


def kendall_tau(steps):
    """How left to right an order was: Kendall's tau-b of position and step, given the step of each drawn token in order
    of position. 1 is left to right, -1 right to left; None if all were drawn in one step."""
    steps = np.asarray(steps)
    above = np.sign(steps[None, :] - steps[:, None])[
        np.triu_indices(len(steps), 1)
    ]  # position rises along a row
    untied = np.count_nonzero(above)
    return float(above.sum() / math.sqrt(untied * len(above))) if untied else None
