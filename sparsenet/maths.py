"""The functions of `math`, of which exp, expm1, log, log1p and tanh are fast for float32 numbers on a CPU.

What Numba makes of math.exp is a call of the C library for one number at a time. These are a few multiplications and
choices without branches, which LLVM turns into loops of vectors: 10 times as fast, to 2 units in the last place.
`compiling.scalar` puts this module in place of `math`: activations, losses and rules get it without asking. For
float64, in plain Python and on CUDA they are math's own.
"""

import math
from collections.abc import Callable
from math import *  # noqa: F403  all of math, to stand in its place
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload

_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_INFINITY, _NAN = np.float32(np.inf), np.float32(np.nan)
_FLAGS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}}  # products and sums may fuse, no more

_LEAST, _MOST = np.float32(-104), np.float32(89)  # beyond them exp is 0, or infinite
_LOG2_E = np.float32(1.44269504)
_LN2, _LN2_REST = np.float32(0.693359375), np.float32(-2.12194440e-4)  # few bits: a multiple is exact; and the rest
_ROUNDER = np.float32(1.5 * 2**23)  # added to a small number, it leaves the nearest integer in the last bits
_ROUNDER_BITS, _BIAS, _FRACTION = np.int32(0x4B400000), np.int32(127), np.int32(23)
# (exp(r) - 1 - r) / r^2 for |r| < 0.35. Source of the coefficients here and below: S. L. Moshier, Cephes library 2.2.
_E5, _E4, _E3 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_E2, _E1, _E0 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
# (ln(1 + r) - r + r^2 / 2) / r^3 for sqrt(1/2) < 1 + r < sqrt(2)
_L8, _L7, _L6 = np.float32(7.0376836292e-2), np.float32(-1.1514610310e-1), np.float32(1.1676998740e-1)
_L5, _L4, _L3 = np.float32(-1.2420140846e-1), np.float32(1.4249322787e-1), np.float32(-1.6668057665e-1)
_L2, _L1, _L0 = np.float32(2.0000714765e-1), np.float32(-2.4999993993e-1), np.float32(3.3333331174e-1)
_NORMAL, _TO_NORMAL = np.float32(2.0**-126), np.float32(2.0**23)
_ROOT_BITS, _MANTISSA = np.int32(0x3F3504F3), np.int32(0x007FFFFF)
# (tanh(x) - x) / x^3 for |x| < 0.625
_T4, _T3, _T2 = np.float32(-5.70498872745e-3), np.float32(2.06390887954e-2), np.float32(-5.37397155531e-2)
_T1, _T0, _NEAR = np.float32(1.33314422036e-1), np.float32(-3.33332819422e-1), np.float32(0.625)
_LARGE = np.float32(10)  # tanh is 1 from here on


@njit(**_FLAGS)
def _power(n):
    """2^n for integers -126 to 127."""
    return np.int32((n + _BIAS) << _FRACTION).view(np.float32)


@njit(**_FLAGS)
def _split(x):
    """n, r, q: x = n ln 2 + r with the nearest integer n, and exp(r) - 1 = r + q."""
    x = _LEAST if x < _LEAST else x
    x = _MOST if x > _MOST else x
    rounded = x * _LOG2_E + _ROUNDER
    n = rounded - _ROUNDER
    r = x - n * _LN2 - n * _LN2_REST
    q = ((((_E5 * r + _E4) * r + _E3) * r + _E2) * r + _E1) * r + _E0
    return np.int32(np.float32(rounded).view(np.int32) - _ROUNDER_BITS), r, q * (r * r)


@njit(**_FLAGS)
def _exp(x):
    n, r, q = _split(x)
    half = n >> np.int32(1)  # in two steps: 2^n itself may be too large or too small
    return (q + r + _ONE) * _power(half) * _power(np.int32(n - half))


@njit(**_FLAGS)
def _expm1(x):
    n, r, q = _split(x)
    half = n >> np.int32(1)
    first, second = _power(half), _power(np.int32(n - half))
    power = first * second
    return (q + r) * first * second + (power - _ONE) if power < _INFINITY else (q + r + _ONE) * first * second


@njit(**_FLAGS)
def _log(x):
    small = x < _NORMAL
    bits = np.int32(np.float32(x * _TO_NORMAL if small else x).view(np.int32) - _ROOT_BITS)
    n = np.float32((bits >> _FRACTION) - (_FRACTION if small else np.int32(0)))
    r = np.int32((bits & _MANTISSA) + _ROOT_BITS).view(np.float32) - _ONE
    q = ((((((((_L8 * r + _L7) * r + _L6) * r + _L5) * r + _L4) * r + _L3) * r + _L2) * r + _L1) * r + _L0) * r
    value = r + (q * (r * r) - _HALF * (r * r) + n * _LN2_REST) + n * _LN2
    value = value if x < _INFINITY else x
    value = value if x > _ZERO else -_INFINITY
    return value if x >= _ZERO else _NAN


@njit(**_FLAGS)
def _log1p(x):
    one_more = _ONE + x
    lost = (x - (one_more - _ONE)) / one_more  # what rounding took from 1 + x
    value = _log(one_more)
    return value + lost if _ZERO < one_more < _INFINITY else value


@njit(**_FLAGS)
def _tanh(x):
    size = abs(x)
    square = x * x
    near = x + x * square * ((((_T4 * square + _T3) * square + _T2) * square + _T1) * square + _T0)
    far = _ONE - _TWO / (_exp(_TWO * (_LARGE if size > _LARGE else size)) + _ONE)
    return near if size < _NEAR else (far if x > _ZERO else -far)


def _fast(name: str, function: Callable) -> Callable:
    """math's function of that name, for which compiled code on a CPU calls another where it is given a float32."""
    def meant(x):
        return original(x)

    original = getattr(math, name)
    meant.__name__ = meant.__qualname__ = name
    meant.__doc__ = original.__doc__
    meant.content = name, function  # type: ignore[attr-defined]  # for kernel_cache

    @overload(meant, jit_options=_FLAGS)
    def chosen(x):
        return (lambda x: function(x)) if x == types.float32 else (lambda x: original(x))
    return meant


exp, expm1, log, log1p, tanh = (_fast(name, function) for name, function in (
    ("exp", _exp), ("expm1", _expm1), ("log", _log), ("log1p", _log1p), ("tanh", _tanh)))

FAST = exp, expm1, log, log1p, tanh
"""Those that differ from math's; on CUDA `compiling` gives them back"""
