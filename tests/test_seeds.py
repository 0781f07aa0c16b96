"""Where random numbers come from: seeds of names, and numbers of a row, a function of its key."""

import itertools
import math

import pytest
import torch

from anyorder.seeds import (
    derive_seed,
    hashed,
    keys_of,
    permuted,
    random_bits,
    seeds_of,
    stream,
    uniform,
)


def chi_square(counts):
    """How many standard deviations the chi-square of counts, expected to be alike, is away from its
    mean."""
    counts = counts.double()
    mean = counts.mean()
    chi = ((counts - mean) ** 2 / mean).sum()
    n_free = len(counts) - 1
    return float((chi - n_free) / math.sqrt(2 * n_free))


def check_alike(values, n):
    """Each of n values is about as often as the others."""
    assert abs(chi_square(values.flatten().bincount(minlength=n))) < 5


def test_seeds_are_a_function_of_their_names():
    names = itertools.product(range(5), range(20), (0, 1, 'order', 'tokens'))
    seeds = {derive_seed(*of_one) for of_one in names}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, 2) == derive_seed(1, 2)
    one, same = (torch.rand(9, generator=stream(3, 'x')) for _ in range(2))
    assert torch.equal(one, same)


@pytest.mark.slow
@pytest.mark.parametrize('n_updates, n_micros', [(250_000, 1), (4096, 64), (3, 70_000)])
def test_no_two_micro_batches_of_a_run_share_what_a_generator_on_the_cpu_reads(n_updates, n_micros):
    numbers = itertools.product(range(n_updates), range(n_micros))
    states = {state_of(1337, it, micro) for it, micro in numbers}
    assert len(states) == n_updates * n_micros


def state_of(*names):
    """What a generator on the CPU reads of a seed."""
    return derive_seed(*names) % 2**32


def test_runs_of_other_seeds_take_their_states_in_other_orders():
    """As far as 32 bits reach: two runs of 20,000 updates have 0.1 states in common, at random."""
    runs = itertools.product((1, 2, 'dropout'), range(20_000))
    states = {state_of(seed, it, 0) for seed, it in runs}
    assert len(states) > 60_000 - 6
    of_one = torch.tensor([state_of(1, it, 0) for it in range(20_000)])
    check_alike(of_one >> 24, 256)
    check_alike(of_one & 255, 256)


@pytest.mark.parametrize('key', [0, 1, 2**62 + 5])
def test_a_permutation_can_be_undone(key):
    """Every step is a permutation of 32 bits: the oracle undoes them one by one."""
    keys = [key]
    for _ in range(3):
        keys.append(hashed(keys[-1]))
    for x in (0, 1, 2**31, 2**32 - 1, 123456789):
        y = permuted(x, key)
        for key_of_step in reversed(keys):
            y ^= y >> 15 ^ y >> 30
            y = y * pow(0x9E3779B1, -1, 2**32) % 2**32 ^ key_of_step % 2**32
        assert y == x


def test_bits_are_those_of_splitmix64():
    """Its published numbers for the seed 1234567, together and one by one."""
    known = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    seed = torch.tensor(1234567)
    together = random_bits(seed, torch.arange(1, 6))
    one_by_one = [random_bits(seed, n) for n in range(1, 6)]
    for bits in (together, one_by_one):
        assert [int(one) % 2**64 for one in bits] == known


def test_numbers_of_a_row_are_those_that_it_has_alone():
    keys = keys_of([5, 6, 10**30])
    rows = keys.unsqueeze(1)
    columns = torch.arange(7)
    together = uniform(rows, 'tokens', 3, columns)
    for r in range(3):
        row = uniform(keys[r : r + 1], 'tokens', 3, columns[:4])
        last = uniform(keys[r], 'tokens', torch.tensor(3), columns[6])
        assert torch.equal(row, together[r, :4])
        assert torch.equal(last, together[r, 6])
    assert len({*together.flatten().tolist()}) == 21
    assert not torch.equal(together, uniform(rows, 'tokens', 4, columns))
    assert not torch.equal(together, uniform(rows, 'noise', 3, columns))


def test_every_bit_of_a_seed_counts():
    seeds = [0, *(2**i for i in range(80))]
    assert len({*uniform(keys_of(seeds), 'tokens', 0).tolist()}) == 81


def test_numbers_are_uniform_and_independent_of_their_neighbours():
    rows = keys_of(range(2000)).unsqueeze(1)
    columns = torch.arange(200)
    u = uniform(rows, 'tokens', columns)
    assert u.dtype == torch.float64
    assert 0 <= u.min() <= u.max() < 1
    cell = (16 * u).long()
    by_position = cell[:, 1:] * 16 + cell[:, :-1]
    by_seed = cell[1:] * 16 + cell[:-1]
    check_alike(by_position, 256)
    check_alike(by_seed, 256)
    check_alike(random_bits(rows, columns) & 1023, 1024)


def test_seeds_of_rows():
    assert seeds_of(5, 3) == [5, 6, 7]
    assert seeds_of([4, 4], 2) == [4, 4]
    with pytest.raises(ValueError, match='one for each of 3 texts'):
        seeds_of([4, 4], 3)
