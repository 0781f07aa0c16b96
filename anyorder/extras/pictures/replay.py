"""What did a generation look like? --html=FILE of the commands writes a page that replays it.

FILE.html plays, stops and steps, without the network; FILE.html#1,12,step shows sample 1 after step
12, coloured by step."""

import math
import re
from pathlib import Path

import numpy as np

from anyorder.machine.files import plain_json, replace_file
from anyorder.report import length_in_words
from anyorder.tokens.shown import token_texts

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
    """Return a title: in which order a text was written. Names without words stand as they are."""
    name = re.split('[:/+@]', order)[0]  # without numbers of its own
    return 'Written ' + ORDERS.get(name, f'in the order {order}')


def write_replay(path, samples, tokenizer, title, columns=0):
    """Write the page that replays `samples` to `path`.

    samples   dicts of tokens, step (-1: known from the start) and logprob (nats), each a list in
              natural order
    title     its first line is the heading, further lines are small print
    columns   cells in a row of the grid; 0 is running text

    If a second sample has the same known tokens, the page opens with both side by side."""
    between = ''
    if not columns and tokenizer.separator:
        between = '\u2002'  # a blank that the page does not mark
    heading, *details = title.split('\n')
    replay = {
        'title': heading,
        'details': details,
        'columns': columns,
        'samples': replay_rows(samples, tokenizer, between),
    }
    data = plain_json(replay).replace('<', '\\u003c')  # nothing in it can end the script element
    page = TEMPLATE.read_text(encoding='utf-8').replace('DATA', data)
    replace_file(path, page.encode())


def replay_rows(samples, tokenizer, between=''):
    """Return what a replay says of each sample: a dict with lists that have an entry a token.

    rank      the step at which a token is written, counted from 1; 0 if it is known from the start
    beside    the number of the next sample that has the same known tokens, or None
    top       only if the sample has top_logprobs: of each token what Text.said says"""
    known = []
    for sample in samples:
        is_known = np.less(sample['step'], 0)
        known.append(np.where(is_known, sample['tokens'], -1).tolist())
    rows = []
    for i, sample in enumerate(samples):
        # without the passes that wrote nothing but what a stop cut
        written, rank = np.unique([-1, *sample['step']], return_inverse=True)
        n_steps = len(written) - 1
        about = facts(rank[rank > 0], n_steps, sum(sample['logprob']))
        about += [length_in_words(length) for length in sample.get('lengths', ())]
        after = range(i + 1, len(samples))
        row = {
            'name': f'sample {i}',
            'text': [text + between for text in token_texts(sample['tokens'], tokenizer)],
            'rank': rank[1:].tolist(),
            'n_steps': n_steps,
            'p': [float(f'{math.exp(x):.3g}') for x in sample['logprob']],
            'facts': about,
            'beside': next((j for j in after if known[j] == known[i]), None),
        }
        if 'top_logprobs' in sample:
            row['top'] = sample['top_logprobs']
        rows.append(row)
    return rows


def facts(drawn, n_steps, nats):
    """Return the lines below a sample: how much in how many steps, how likely, how left to right.

    drawn     the rank of each drawn token, in order of position
    nats      the log-probability of all drawn tokens"""
    n = len(drawn)
    lines = [f'{n} tokens in {n_steps} steps', f'{abs(nats) / max(1, n):.2f} nats a token']
    tau = kendall_tau(drawn)
    if tau is not None:
        lines.append(f"Kendall's tau {tau:.2f}")
    return lines


def kendall_tau(steps):
    """Return how left to right an order was: Kendall's tau-b of position and step.

    1 is left to right, -1 right to left; None if all were drawn in one step. `steps` holds the step
    of each drawn token in order of position."""
    rises = np.sign(np.subtract.outer(steps, steps))  # of the row's position over the column's
    pairs = rises[np.tril_indices(len(steps), -1)]
    untied = np.count_nonzero(pairs)
    if not untied:
        return None
    return float(pairs.sum() / math.sqrt(untied * len(pairs)))
