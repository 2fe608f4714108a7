"""Optimizer steps on whole parameters."""

from functools import cache

import numpy as np

from sparsenet.device import Array, launch, scalar
from sparsenet.shapes import check

_ZERO, _ONE = np.float32(0), np.float32(1)


@scalar
def regularized(gradient, w, l2, l1):
    """gradient + l2 w + l1 sign(w)."""
    sign = _ONE if w > _ZERO else (-_ONE if w < _ZERO else _ZERO)
    return gradient + l2 * w + l1 * sign


def update(rule, w: Array, gradient: Array, slots: Array, l2: float, l1: float, scalars: tuple[float, ...]) -> None:
    """w, slots = rule(w, g, slots, scalars) with g = gradient + l2 w + l1 sign(w); gradient = 0 afterwards.

    The gradient is cleared while it is in cache, so that the next backward pass can add to it.

    rule      scalar function (w, g, m, v, scalars) -> (w, m, v); m and v are 0 where there is no such slot
    w         (size) float32         inout
    gradient  (size) float32         inout
    slots     (count, size) float32  inout  the optimizer's state, count = 0, 1 or 2
    scalars   floats of the rule for this step
    """
    size = check(w=(w, "size"), gradient=(gradient, "size"), slots=(slots, "count size"))
    number = w.dtype.type
    launch(_update(rule, size.count), (size.size,), w, gradient, slots, number(l2), number(l1),
           tuple(number(s) for s in scalars))


@cache
def _update(rule, count):
    def update(i, w, gradient, slots, l2, l1, scalars):
        m = slots[0, i] if count > 0 else _ZERO
        v = slots[1, i] if count > 1 else _ZERO
        w[i], m, v = rule(w[i], regularized(gradient[i], w[i], l2, l1), m, v, scalars)
        if count > 0:
            slots[0, i] = m
        if count > 1:
            slots[1, i] = v
        gradient[i] = _ZERO
    return update


def clear(x: Array) -> None:
    """x = 0.

    x  (batch, units) float32  out
    """
    size = check(x=(x, "batch units"))
    launch(_clear, (size.batch, size.units), x)


def _clear(b, u, x):
    x[b, u] = _ZERO
