"""What a softmax needs of whole rows of logits, on a CPU: a walk over tiles as in walk.py."""

import math
from functools import cache

import numpy as np
from numba import get_thread_id, prange

from sparsenet.device import Array, run_on_host, scalar
from sparsenet.kernels.panels import Room, products
from sparsenet.kernels.walk import walk_plan
from sparsenet.shapes import check_memory

_FLOAT64_SUMS = ("walk_sums",)
_ZERO, _NOTHING, _LEAST = np.float32(0), np.float64(0), np.float32(-np.inf)


def walk_sums(hidden: Array, w: Array, bias: Array, largest: Array, total: Array, room: Array, *,
              precision: str = "float32") -> None:
    """head.head_sums on a CPU: arguments as there, but for the room, as for walk.walk_step."""
    path, precision, where = walk_plan(hidden.shape[0], hidden.shape[1], w.shape[0], precision)
    check_memory(hidden=hidden, bias=bias, room=room)
    check_memory(w=w)
    run_on_host(_sums(path, precision), hidden, w, bias, Room.of(room, where.size), where, largest, total)


@cache
def _sums(path, precision):
    pack_hidden, load, _, logits, *_ = products(path, precision)

    def walk_sums(hidden, w, bias, room, plan, largest, total):
        batch, inputs = hidden.shape
        outputs = w.shape[0]
        tiles = (outputs + plan.tile - 1) // plan.tile
        pack_hidden(hidden, plan, room)
        for chunk in prange(plan.chunks):
            own, most = plan.threads + get_thread_id() * plan.thread, plan.sums + chunk * batch * plan.wide
            sums = plan.losses // 2 + chunk * batch
            _begin(batch, most, sums, room)
            for tile in range(tiles * chunk // plan.chunks, tiles * (chunk + 1) // plan.chunks):
                first = tile * plan.tile
                n = min(plan.tile, outputs - first)
                load(w, first, n, plan, own, room)
                logits(batch, inputs, n, plan, own, room)
                _add(bias, first, n, batch, plan, own, most, sums, room)
        for b in prange(batch):
            largest[b], total[b] = _merge(b, batch, plan, room)
    return walk_sums


@scalar
def _begin(batch, most, sums, room):
    room.numbers[most:most + batch] = _LEAST
    room.doubles[sums:sums + batch] = _NOTHING


@scalar
def _add(bias, first, n, batch, plan, own, most, sums, room):
    """The largest logit so far, and the sum of exponentials: old ones are made relative to the new largest."""
    rows = own + plan.rows
    largest, before = room.numbers[most:most + batch], room.numbers[rows:rows + batch]
    part, total = room.numbers[rows + plan.long:rows + plan.long + batch], room.doubles[sums:sums + batch]
    before[:] = largest
    for c in range(n):
        start = own + c * plan.long
        z, of_unit = room.numbers[start:start + batch], bias[first + c]
        for b in range(batch):
            z[b] += of_unit
            largest[b] = z[b] if z[b] > largest[b] or z[b] != z[b] else largest[b]
    part[:] = _ZERO
    for c in range(n):
        start = own + c * plan.long
        z = room.numbers[start:start + batch]
        for b in range(batch):
            part[b] += math.exp(z[b] - largest[b])
    for b in range(batch):
        total[b] = total[b] * math.exp(before[b] - largest[b]) + part[b]


@scalar
def _merge(b, batch, plan, room):
    """(largest, sum of exponentials relative to it) of a row, from those of all chunks in their order."""
    most = _LEAST
    for chunk in range(plan.chunks):
        one = room.numbers[plan.sums + chunk * batch * plan.wide + b]
        most = one if one > most or one != one else most
    total = _NOTHING
    for chunk in range(plan.chunks):
        one = room.numbers[plan.sums + chunk * batch * plan.wide + b]
        total += room.doubles[plan.losses // 2 + chunk * batch + b] * math.exp(np.float64(one) - np.float64(most))
    return most, total
