"""Counter-based random numbers: element i of stream `key` is a pure function, the same bits on every device.

Generator: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
"""

import math
from functools import cache

import numpy as np

from sparsenet.device import Array, launch, scalar
from sparsenet.shapes import check

_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _ZERO = np.uint64(0xFFFFFFFF), np.uint64(0)
_BITS_8, _BITS_30, _BITS_32 = np.uint64(8), np.uint64(30), np.uint64(32)
_UNIFORM_SCALE, _FIXED_SCALE = np.float32(2**-24), np.float32(2**-30)

# Chebyshev interpolants in fixed point, 30 fractional bits; errors 2e-10 and 1e-12.
_MINUS_LOG_1_MINUS_T = (0, 1073741873, 536866311, 358083102, 265248781, 249817737, -62592980, 1229466635,
                        -2980718864, 5821799263, -5980337035, 3100824576)  # t in [0, 1/2]
_COS_QUARTER_TURN = (1073741824, -1324675879, 272375559, -22401984, 987026, -27028, 482)  # of the squared turn
_LOG_2 = 744261118


@scalar
def philox(key_0, key_1, counter_0, counter_1, counter_2, counter_3):
    """Four 32-bit words, each held in a uint64, from a 64-bit key and a 128-bit counter given as such words."""
    for _ in range(10):
        product_0, product_1 = _MULTIPLIER_0 * counter_0, _MULTIPLIER_1 * counter_2
        counter_0 = (product_1 >> _BITS_32) ^ counter_1 ^ key_0
        counter_1 = product_1 & _LOW
        counter_2 = (product_0 >> _BITS_32) ^ counter_3 ^ key_1
        counter_3 = product_0 & _LOW
        key_0, key_1 = (key_0 + _WEYL_0) & _LOW, (key_1 + _WEYL_1) & _LOW
    return counter_0, counter_1, counter_2, counter_3


@scalar
def _words(key, index):
    return philox(key & _LOW, key >> _BITS_32, index & _LOW, index >> _BITS_32, _ZERO, _ZERO)


@scalar
def uniform_at(key, index):
    """Number `index` of a stream: a float32 multiple of 2^-24 in [0, 1)."""
    return np.float32(_words(key, index)[0] >> _BITS_8) * _UNIFORM_SCALE


@scalar
def normal_at(key, index):
    """Number `index` of a stream: a standard normal float32, |value| < 6.8.

    Box and Muller (1958): sqrt(-2 ln u) cos(2 pi v). Logarithm and cosine are integer polynomials and the two
    roundings that are left are IEEE's, so that no device's mathematics library or fused multiply-add changes a bit.
    """
    word_0, word_1, _, _ = _words(key, index)
    mantissa = np.int64(2 * np.int64(word_0) + 1)   # u = mantissa / 2^33, never 0
    minus_log = np.int64(0)
    while mantissa < 1 << 32:
        mantissa <<= 1
        minus_log += _LOG_2
    minus_log += _polynomial(_MINUS_LOG_1_MINUS_T, ((1 << 33) - mantissa) >> 3)
    quadrant, turn = np.int64(word_1 >> _BITS_30), np.int64(word_1) & ((1 << 30) - 1)
    if quadrant % 2 == 1:
        turn = (1 << 30) - turn
    cosine = _polynomial(_COS_QUARTER_TURN, (turn * turn) >> 30)
    if quadrant == 1 or quadrant == 2:
        cosine = -cosine
    radius = math.sqrt(np.float32(max(minus_log, 0)) * _FIXED_SCALE * np.float32(2))
    return radius * (np.float32(cosine) * _FIXED_SCALE)


@scalar
def _polynomial(coefficients, x):
    total = np.int64(0)
    for i in range(len(coefficients) - 1, -1, -1):
        total = coefficients[i] + ((total * x) >> 30)
    return total


@scalar
def keeps(key, index, drop):
    """Whether element `index` of a mask survives: true with probability 1 - drop."""
    return uniform_at(key, index) >= drop


def uniform(key: np.uint64, out: Array, first: int = 0, total: int | None = None) -> None:
    """out[b, u] = U[0, 1) of index b*total + first + u.

    key    uint64                          stream, see seeds.stream_key
    out    (batch, units) float32  out
    first  int                             global number of the first unit, where `out` is a slice of units
    total  int                             global number of units; default: those of `out`
    """
    _fill(uniform_at, key, out, first, total)


def normal(key: np.uint64, out: Array, first: int = 0, total: int | None = None) -> None:
    """out[b, u] = N(0, 1) of index b*total + first + u; arguments as for `uniform`."""
    _fill(normal_at, key, out, first, total)


def _fill(number_at, key, out, first, total) -> None:
    size = check(out=(out, "batch units"))
    launch(_number(number_at), (size.batch, size.units), key, first, size.units if total is None else total, out)


@cache
def _number(number_at):
    def number(b, u, key, first, total, out):
        out[b, u] = number_at(key, np.uint64(b) * np.uint64(total) + np.uint64(first + u))
    return number
