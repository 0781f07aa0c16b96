"""How many blanks does each step reveal? Schedules, and those of the rows of a canvas."""

import math

import torch
from torch.nn.utils.rnn import pad_sequence

from configurator import check_choice


def unmask_schedule(n_tokens, n_steps, kind='linear'):
    """Return how many of n_tokens blanks are revealed after each step. The last number is n_tokens.

        ends_k = max(floor(n (1 - m_k)), ends_{k-1} + 1)

    n is n_tokens: the blanks, no other tokens. m_k is the share that is masked after step k, see
    mask_share. n_steps is at least 1; more steps than blanks are one token a step.
    Source: the deterministic schedule of AO's release."""
    check_schedule(n_steps, kind)
    n_steps = min(n_steps, n_tokens)
    ends = []
    last = 0
    for k in range(1, n_steps):
        if kind == 'linear':
            end = n_tokens * k // n_steps  # in integers: nothing is rounded
        else:
            end = int(n_tokens * (1 - mask_share(k, n_steps, kind)))
        last = max(end, last + 1)
        ends.append(last)
    if n_steps > 0:
        ends.append(n_tokens)
    return ends


def binomial_schedule(u, n_steps, kind='linear'):
    """Return how many blanks are revealed after each step of masked-diffusion ancestral sampling.

    In a uniform order, revealing Binomial(blanks, 1 - s / t) visits, each given the known ones
    alone, is the step of masked diffusion from level t to s (AO Lemma 1). Equal in law: blank i is
    revealed when the level falls to a uniform number u_i of its own,

        ends_k = #{i: u_i >= m_k}

    A step may reveal nothing.

    u  (n,) float64, on the host: a number for each blank"""
    check_schedule(n_steps, kind)
    shares = [mask_share(k, n_steps, kind) for k in range(1, n_steps)]
    levels = torch.tensor([*shares, 0.0], dtype=torch.float64)
    n_masked = torch.searchsorted(u.sort().values, levels)
    return (len(u) - n_masked).tolist()


def mask_share(k, n_steps, kind):
    """Return the share that is masked after step k of n_steps.

    linear: 1 - k / n_steps;   cosine: cos(pi k / (2 n_steps))"""
    if kind == 'linear':
        return 1 - k / n_steps
    if 3 * k == 2 * n_steps:
        # cos(pi / 3), the only rational cosine between 0 and 1 (Niven). math.cos rounds it to more
        # than a half: the floor in a schedule would be one too small
        return 0.5
    return math.cos(k / n_steps * math.pi / 2)


def check_schedule(n_steps, kind):
    """Raise ValueError unless there is a step, and a schedule of this name."""
    if n_steps < 1:
        raise ValueError(f'n_steps must be at least 1, got {n_steps}')
    check_choice('schedule', kind, 'linear', 'cosine')


def padded_ends(ends, n_blanks):
    """Return lists of ends as (B, steps), one for each row or one for all. A row that is finished
    repeats its last end, its n_blanks (B,)."""
    rows = [torch.tensor(row, dtype=torch.long) for row in ends]
    ends = pad_sequence(rows, batch_first=True, padding_value=2**31)
    return torch.minimum(ends, n_blanks.unsqueeze(1))
