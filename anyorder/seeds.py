"""Where do random numbers come from? From seeds with names, and for rows from one function of a key and of counters.

Two things draw. Batches, dropout and orders that hold for a whole run take PyTorch's generators, whose seeds
`derive_seed` makes of names. Whatever belongs to a row that is written, its tokens, order, noise and schedule, is
`random_bits` of the row's key: tensor operations, which give the same bits on every device, for any part of a batch."""

import hashlib

import torch

from anyorder.machine.devices import widest

DRAWS = 2  # which way seeds become batches: a checkpoint keeps it, and a resumed run says if it was another one

GAMMA = 0x9E3779B97F4A7C15  # the odd number nearest to 2^64 / golden ratio


def hashed(*names):
    """63 bits, hashed from numbers and strings."""
    return (
        int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=8).digest(), 'little') >> 1
    )


def derive_seed(*names):
    """A 63-bit seed, hashed from numbers and strings: streams of other names are independent, up to chance.

    A generator on the CPU reads its lower 32 bits alone. If the names are three or more and end with two numbers (i, j)
    from 0 on, as (seed, update, micro-batch) do, these bits are a permutation of i xor the reversed bits of j, one for
    each beginning of the names: no two of 2^a x 2^b pairs with a + b = 32 share a state, by construction."""
    seed = hashed(*names)
    *beginning, i, j = names if len(names) > 2 else (*names, '', '')
    if not all(type(n) is int and 0 <= n < 2**32 for n in (i, j)):
        return seed
    reversed_j = int(f'{j:032b}'[::-1], 2)
    return seed >> 32 << 32 | permuted(i ^ reversed_j, hashed(*beginning))


def permuted(x, key):
    """A permutation of the numbers x below 2^32, which a key of 63 bits chooses."""
    for _ in range(4):  # each step can be undone: xor, an odd factor, a shifted xor
        x = (x ^ key) * 0x9E3779B1 % 2**32
        x ^= x >> 15
        key = hashed(key)
    return x


def seeds_of(seed, n):
    """The seeds of n rows: seed + r, or the list `seed` itself."""
    if isinstance(seed, list) and len(seed) != n:
        raise ValueError(f'a list of seeds must have one for each of {n} texts, got {len(seed)}')
    return [
        int(s) for s in (seed if isinstance(seed, list) else range(seed, seed + n))
    ]  # a stream is named by ints


def stream(*names):
    """A generator on the host, seeded by these names, see derive_seed: its state is one of 2^32."""
    return torch.Generator().manual_seed(derive_seed(*names))


def keys_of(seeds, device='cpu'):
    """Keys (n,) int64 of n seeds, ints of any size: all bits of a seed count."""
    return torch.tensor([hashed(seed) for seed in seeds], dtype=torch.long).to(device)


def random_bits(keys, *names):
    """64 random bits, int64, for each key and what names tell apart: a function of these alone, on every device.

        bits(key, a, b, ...) = bits(mix(key + GAMMA a), b, ...),   bits(key) = key

    keys   int64 of any shape, as keys_of gives them
    names  strings, ints from 0 on, or int64 tensors, which broadcast with the keys
    Source: SplitMix64, of Steele, Lea and Flood 2014, whose n-th number is mix(key + GAMMA n)"""
    for name in names:
        if isinstance(name, torch.Tensor):
            keys = mix(keys + name * as_int64(GAMMA))
        else:  # a number of the host goes with the operation: nothing is copied
            keys = mix(keys + as_int64(GAMMA * (hashed(name) if isinstance(name, str) else name)))
    return keys


def mix(x):
    """A permutation of int64 in which every bit of x (...) touches all others; products are modulo 2^64."""
    x = x ^ shifted(x, 30)
    x *= as_int64(0xBF58476D1CE4E5B9)
    x ^= shifted(x, 27)
    x *= as_int64(0x94D049BB133111EB)
    x ^= shifted(x, 31)
    return x


def shifted(x, n):
    """x >> n of 64 bits without a sign."""
    return (x >> n).bitwise_and_(2 ** (64 - n) - 1)


def as_int64(n):
    """The int64 that has the lower 64 bits of an int."""
    return (n + 2**63) % 2**64 - 2**63


def uniform(keys, *names):
    """Numbers in [0, 1) by random_bits, of 53 bits in float64, or of 24 where a device has float32 alone."""
    dtype = widest(keys.device)
    n_bits = 53 if dtype == torch.float64 else 24
    return shifted(random_bits(keys, *names), 64 - n_bits).to(dtype) * 2.0**-n_bits
