"""Optimizer steps on whole parameters."""

from functools import cache

import numpy as np

from sparsenet.device import Array, cuda, device_of, launch, part, scalar
from sparsenet.instructions import load4, store4
from sparsenet.row_sums import fetch_row
from sparsenet.shapes import check, in_fours

ROOM = np.zeros(8, np.float32)
"""How many numbers a rule may have for each step: as many as there is room for"""

RUN, NEXT = 16, 8
"""Neighbouring rows that a core updates before it takes another run, and how many rows ahead it asks for them"""

_ZERO, _ONE = np.float32(0), np.float32(1)


@scalar
def regularized(gradient, w, l2, l1):
    """gradient + l2 w + l1 sign(w)."""
    sign = _ONE if w > _ZERO else (-_ONE if w < _ZERO else _ZERO)
    return gradient + l2 * w + l1 * sign


def update(rule, w: Array, gradient: Array, slots: Array, l2: float, l1: float, scalars: Array, numbers: int) -> None:
    """w, slots = rule(w, g, slots, scalars) with g = gradient + l2 w + l1 sign(w); gradient = 0 afterwards.

    The gradient is cleared while it is in cache, so that the next backward pass can add to it.

    rule      scalar function (w, g, m, v, scalars) -> (w, m, v); m and v are 0 where there is no such slot
    w         (size) float32         inout
    gradient  (size) float32         inout
    slots     (count, size) float32  inout  the optimizer's state, count = 0, 1 or 2
    scalars   (8) float32            in     numbers of the rule for this step, in an array so that no launch of a step
                                            differs from those of the step before
    numbers   int                           how many of them the rule gets, as a tuple
    """
    size = check(w=(w, "size"), gradient=(gradient, "size"), slots=(slots, "count size"),
                 room=(ROOM, "most"), scalars=(scalars, "most"))
    number = w.dtype.type
    if device_of(w, gradient, slots).name != "cpu" and in_fours(w, gradient, slots):
        launch(_update_in_fours(rule, size.count, numbers), (size.size // 4,), w.reshape(1, size.size), gradient, slots,
               number(l2), number(l1), scalars)
    else:
        launch(_update(rule, size.count, numbers), (size.size,), w, gradient, slots, number(l2), number(l1), scalars)


@cache
def _update(rule, count, numbers):
    def update(i, w, gradient, slots, l2, l1, scalars):
        s = (scalars[0], scalars[1], scalars[2], scalars[3], scalars[4], scalars[5], scalars[6], scalars[7])[:numbers]
        m = slots[0, i] if count > 0 else _ZERO
        v = slots[1, i] if count > 1 else _ZERO
        w[i], m, v = rule(w[i], regularized(gradient[i], w[i], l2, l1), m, v, s)
        if count > 0:
            slots[0, i] = m
        if count > 1:
            slots[1, i] = v
        gradient[i] = _ZERO
    return update


@cache
def _update_in_fours(rule, count, numbers):
    step = step_of(rule, count, numbers, 4)

    def update(i, w, gradient, slots, l2, l1, scalars):
        four = cuda.local.array(4, np.float32)
        four[0], four[1], four[2], four[3] = load4(gradient, 4 * i)
        step(0, 4 * i, four, w, slots, l2, l1, scalars)
        store4(gradient, 4 * i, _ZERO, _ZERO, _ZERO, _ZERO)
    return update


@cache
def step_of(rule, count, numbers, width):
    """Part of CUDA kernels: step(f, u, gradient, w, slots, l2, l1, scalars), on w[f, u] and width - 1 neighbours.

    gradient  `width` numbers of a thread's own
    slots     (count * features, units), w being (features, units)
    """
    load, store = accesses(width)

    @part
    def step(f, u, gradient, w, slots, l2, l1, scalars):
        weight = cuda.local.array(width, np.float32)
        m = cuda.local.array(width, np.float32)
        v = cuda.local.array(width, np.float32)
        s = (scalars[0], scalars[1], scalars[2], scalars[3], scalars[4], scalars[5], scalars[6], scalars[7])[:numbers]
        for i in range(width):
            m[i], v[i] = _ZERO, _ZERO
        load(w, f, u, weight)
        if count > 0:
            load(slots, f, u, m)
        if count > 1:
            load(slots, w.shape[0] + f, u, v)
        for i in range(width):
            g = regularized(gradient[i], weight[i], l2, l1)
            weight[i], m[i], v[i] = rule(weight[i], g, m[i], v[i], s)
        store(w, f, u, weight)
        if count > 0:
            store(slots, f, u, m)
        if count > 1:
            store(slots, w.shape[0] + f, u, v)
    return step


@scalar
def later(r, chunks, total):
    """The row that a core updates NEXT rows after row r; a chunk is every so manieth run."""
    n = r + NEXT
    return min(n if n // RUN == r // RUN else n + (chunks - 1) * RUN, total - 1)


@cache
def fetch_rows(count):
    """Compiled function: ask for row f of w and of the state beside it, all of them flat, w being of a shape."""
    @scalar
    def fetch_rows(w, slots, f, shape):
        rows, units = shape
        fetch_row(w, f * units, units)
        for slot in range(count):
            fetch_row(slots, (slot * rows + f) * units, units)
    return fetch_rows


@cache
def accesses(width):
    """Parts of CUDA kernels: load(array, row, u, values) and store, of `width` = 1 or 4 neighbours in one access.

    values  `width` numbers of a thread's own
    """
    @part
    def load(array, row, u, values):
        if width == 4:
            values[0], values[1], values[2], values[3] = load4(array, row * array.shape[1] + u)
        else:
            values[0] = array[row, u]

    @part
    def store(array, row, u, values):
        if width == 4:
            store4(array, row * array.shape[1] + u, values[0], values[1], values[2], values[3])
        else:
            array[row, u] = values[0]
    return load, store


def clear(x: Array) -> None:
    """x = 0.

    x  (batch, units) float32  out
    """
    size = check(x=(x, "batch units"))
    launch(_clear, (size.batch, size.units), x)


def _clear(b, u, x):
    x[b, u] = _ZERO
