"""The library's random numbers in integers: Philox4x32-10 (Salmon et al. 2011) and what is made of its words."""

import math

import torch

MASK = 2**32 - 1


def block(key, low, high):
    """Four words of a counter of 128 bits under a key of 64."""
    c = [low & MASK, low >> 32, high & MASK, high >> 32]
    k = [key & MASK, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


# Known answers of Random123's kat_vectors.
assert block(0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
assert block(2**64 - 1, 2**64 - 1, 2**64 - 1) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def one_uniform(seed, step, i):
    """53 bits in [0, 1)."""
    c = block(seed, i, step)
    return ((c[1] << 32 | c[0]) >> 11) * 2.0**-53


def one_normal(seed, step, i):
    """Box and Muller 1958."""
    c = block(seed, i, step)
    return math.sqrt(-2 * math.log((c[0] + 0.5) * 2.0**-32)) * math.cos(2 * math.pi * (c[1] * 2.0**-32))


def draw(one, seed, step, *shape):
    """A tensor whose elements, in row-major order, are the numbers of the stream."""
    return torch.tensor([one(seed, step, i) for i in range(math.prod(shape))]).reshape(shape)


def mix64(z):
    """splitmix64 (Steele et al. 2014): one step from state z."""
    m = 2**64 - 1
    z = (z + 0x9E3779B97F4A7C15) & m
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & m
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & m
    return z ^ (z >> 31)


assert mix64(0) == 0xE220A8397B1DCDAF  # the known first number from state 0
