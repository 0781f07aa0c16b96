"""Where do random numbers come from?

Batches, dropout, and the one order of a whole run: a PyTorch generator, `stream`, whose seed
`derive_seed` makes of names.

What belongs to a row that is written, its tokens, order, noise and schedule, or to a block that is
measured, its orders and contexts: `random_bits` of the key of the row or block, which are the same
on every device and for any part of a batch. A seed (int) -> `keys_of` -> a key (int64) ->
`random_bits` -> `uniform`."""

import hashlib
import math
import operator

import torch

from anyorder.machine.devices import widest

GAMMA = 0x9E3779B97F4A7C15  # the odd number nearest to 2^64 / golden ratio


def seeds_of(seed, n):
    """Return the seeds of n rows: seed + r, or the list `seed` itself."""
    try:  # ints of NumPy have another repr, which is hashed
        each = seed if isinstance(seed, list) else [operator.index(seed) + r for r in range(n)]
        seeds = [*map(operator.index, each)]
    except TypeError:
        raise ValueError(
            f'seed must be a whole number, or a list of some, got {seed!r:.60}'
        ) from None
    if len(seeds) != n:
        raise ValueError(f'a list of seeds must have one for each of {n} texts, got {len(seeds)}')
    return seeds


def drawn_seeds(n, generator=None):
    """Return n seeds that a generator draws, or PyTorch's own."""
    device = generator.device if generator else 'cpu'
    return torch.randint(2**62, (n,), generator=generator, device=device).tolist()


def stream(*names):
    """Return a generator on the host, by derive_seed of these names.

    It reads 32 bits of the seed: two of many thousands are alike, so that many draws want keys."""
    return torch.Generator().manual_seed(derive_seed(*names))


def keys_of(seeds, device='cpu'):
    """Return keys (n,) int64 of n seeds, ints of any size."""
    return torch.tensor([hashed(seed) for seed in seeds], dtype=torch.long).to(device)


def numbered_keys(seed, numbers):
    """Return keys (n,) of what n different int64 numbers count, no two of them alike."""
    return random_bits(keys_of([seed]), torch.tensor([*numbers], dtype=torch.long))


def random_bits(keys, *names):
    """Return 64 random bits, int64, for each key, a function of key and names alone.

        bits(key, a, b, ...) = bits(mix(key + GAMMA a), b, ...),   bits(key) = key

    keys   int64 of any shape
    names  strings, ints from 0 on, or int64 tensors, which broadcast with the keys
    Source: SplitMix64, of Steele, Lea and Flood 2014, whose n-th number is mix(key + GAMMA n)"""
    for name in names:
        if isinstance(name, str):
            name = hashed(name)
        if isinstance(name, torch.Tensor):
            step = name * as_int64(GAMMA)
        else:  # nothing is copied to the device
            step = as_int64(GAMMA * name)
        keys = mix(keys + step)
    return keys


def mix(x):
    """Map int64 numbers one to one, so that every bit touches all others."""
    x = x ^ unsigned_shift(x, 30)
    x *= as_int64(0xBF58476D1CE4E5B9)
    x ^= unsigned_shift(x, 27)
    x *= as_int64(0x94D049BB133111EB)
    x ^= unsigned_shift(x, 31)
    return x


def unsigned_shift(x, n):
    """Return x >> n of 64 bits without a sign."""
    return (x >> n).bitwise_and_(2 ** (64 - n) - 1)


def as_int64(n):
    """Return the int64 that has the lower 64 bits of an int."""
    return (n + 2**63) % 2**64 - 2**63


def uniform(keys, *names):
    """Return numbers in [0, 1) by random_bits: float64, or float32 on a device without it."""
    dtype = widest(keys.device)
    n_bits = 53 if dtype == torch.float64 else 24
    bits = unsigned_shift(random_bits(keys, *names), 64 - n_bits)
    return bits.to(dtype) * 2.0**-n_bits


def uniform_by(seed, *shape):
    """Return numbers of this shape in [0, 1), a function of a seed and their places."""
    return uniform(keys_of([seed]), torch.arange(math.prod(shape))).view(shape)


def derive_seed(*names):
    """Return a 63-bit seed, hashed from numbers and strings.

    A generator on the CPU reads only the lower 32 bits, too few for micro-batches to differ by
    chance. Names that end with (i, j), as (seed, update, micro-batch), never share them: for i
    below 2^a, j below 2^(32 - a), i xor the reversed bits of j is another number for each pair, of
    which the lower bits are a permutation."""
    seed = hashed(*names)
    are_uint32 = [type(name) is int and 0 <= name < 2**32 for name in names[-2:]]
    if len(names) < 3 or not all(are_uint32):
        return seed
    *beginning, i, j = names
    reversed_j = int(f'{j:032b}'[::-1], 2)
    lower = permuted(i ^ reversed_j, hashed(*beginning))
    return (seed >> 32 << 32) | lower  # the lower half is replaced


def hashed(*names):
    """Return 63 bits of numbers and strings."""
    digest = hashlib.blake2b(repr(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, 'little') >> 1


def permuted(x, key):
    """Return the image of x under a permutation of 0 to 2^32 - 1 that a key chooses."""
    for _ in range(4):  # each step can be undone
        x = (x ^ key) * 0x9E3779B1 % 2**32
        x ^= x >> 15
        key = hashed(key)
    return x
