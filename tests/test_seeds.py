"""Where random numbers come from: seeds of names, and the numbers of a row, which are a function of its key."""

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
    """How many standard deviations the chi-square of counts, expected to be alike, is away from its mean."""
    counts = counts.double()
    chi = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    return float((chi - (len(counts) - 1)) / math.sqrt(2 * (len(counts) - 1)))


def test_seeds_are_a_function_of_their_names():
    seeds = {
        derive_seed(s, it, micro)
        for s in range(5)
        for it in range(20)
        for micro in (0, 1, 'order', 'tokens')
    }
    assert (
        len(seeds) == 400
        and derive_seed(1, 2) == derive_seed(1, 2)
        and all(0 <= s < 2**63 for s in seeds)
    )
    assert torch.equal(
        torch.rand(9, generator=stream(3, 'x')), torch.rand(9, generator=stream(3, 'x'))
    )


@pytest.mark.parametrize('n_updates, n_micros', [(250_000, 1), (4096, 64), (3, 70_000)])
def test_no_two_micro_batches_of_a_run_share_what_a_generator_on_the_cpu_reads(n_updates, n_micros):
    seeds = {
        derive_seed(1337, it, micro) % 2**32 for it in range(n_updates) for micro in range(n_micros)
    }
    assert len(seeds) == n_updates * n_micros


def test_runs_of_other_seeds_take_their_states_in_other_orders():
    """As far as 32 bits reach: two runs of 20,000 updates have 0.1 states in common, at random."""
    runs = [
        {derive_seed(seed, it, 0) % 2**32 for it in range(20_000)} for seed in (1, 2, 'dropout')
    ]
    assert len(runs[0] | runs[1] | runs[2]) > 60_000 - 6
    low = torch.tensor([derive_seed(1, it, 0) % 2**32 for it in range(20_000)])
    assert abs(chi_square((low >> 24).bincount(minlength=256))) < 5
    assert abs(chi_square((low & 255).bincount(minlength=256))) < 5


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
    """Its published numbers for the seed 1234567, and a plain implementation of numbers without a sign."""
    known = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    bits = random_bits(torch.tensor(1234567), torch.arange(1, 6))
    assert [b % 2**64 for b in bits.tolist()] == known
    assert [int(random_bits(torch.tensor(1234567), n)) % 2**64 for n in range(1, 6)] == known


def test_numbers_of_a_row_are_those_that_it_has_alone():
    keys = keys_of([5, 6, 10**30])
    together = uniform(keys.unsqueeze(1), 'tokens', 3, torch.arange(7))
    for r in range(3):
        assert torch.equal(uniform(keys[r : r + 1], 'tokens', 3, torch.arange(4)), together[r, :4])
        assert torch.equal(
            uniform(keys[r], 'tokens', torch.tensor(3), torch.tensor(6)), together[r, 6]
        )
    assert len({*together.flatten().tolist()}) == 21
    assert not torch.equal(together, uniform(keys.unsqueeze(1), 'tokens', 4, torch.arange(7)))
    assert not torch.equal(together, uniform(keys.unsqueeze(1), 'noise', 3, torch.arange(7)))


def test_every_bit_of_a_seed_counts():
    seeds = [0, *(2**i for i in range(80))]
    assert len({*uniform(keys_of(seeds), 'tokens', 0).tolist()}) == 81


def test_numbers_are_uniform_and_independent_of_their_neighbours():
    u = uniform(keys_of(range(2000)).unsqueeze(1), 'tokens', torch.arange(200))
    assert u.dtype == torch.float64 and 0 <= u.min() and u.max() < 1
    cell = (16 * u).long()
    for pairs in (
        cell[:, 1:] * 16 + cell[:, :-1],
        cell[1:] * 16 + cell[:-1],
    ):  # by position, and by seed
        assert abs(chi_square(pairs.flatten().bincount(minlength=256))) < 5
    low = random_bits(keys_of(range(2000)).unsqueeze(1), torch.arange(200)) & 1023
    assert abs(chi_square(low.flatten().bincount(minlength=1024))) < 5


def test_seeds_of_rows():
    assert seeds_of(5, 3) == [5, 6, 7] and seeds_of([4, 4], 2) == [4, 4]
    with pytest.raises(ValueError, match='one for each of 3 texts'):
        seeds_of([4, 4], 3)
