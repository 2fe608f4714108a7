"""Rows of weights that missed steps of an optimizer, for no batch named them, caught up all at once."""

from functools import cache

import numpy as np
from numba import prange

from sparsenet.bfloat16 import key_for, random_bits, row_key, shortened, widened
from sparsenet.device import Array, device_of, launch, scalar
from sparsenet.kernels.update import ROOM, RUN, fetch_rows, later
from sparsenet.shapes import check

_HALF = np.uint32(16)
_ZERO, _ONE = np.float32(0), np.int32(1)
_CHUNKS = 64  # independent parts


def catch_up(idle, features: Array | None, touched: Array, made: Array, table: Array, w: Array, slots: Array,
             seen: Array, numbers: int, *, key: Array | None = None) -> None:
    """w[f], slots[f] = idle(w[f], slots[f], table[seen[f]]) for listed rows f: steps seen[f] + 1 to made[0] without g.

    Then the listed rows are about to see the next step: seen[f] = made[0] + 1. Where no features are given, every row
    is caught up, and steps are counted anew: seen = 0.

    idle      scalar function (w, m, v, numbers) -> (w, m, v); m and v are 0 where there is no such slot
    features  (>= touched) int32           in     distinct rows; None: every row
    touched   (1) int64                    in     how many are listed
    made      (1) int32                    in     number of the last step
    table     (steps, 8) float32           in     numbers of idle for rows that last saw step 0, 1, …, made
    w         (features, units) float32    inout  on a CPU w, slots or both may be uint16: bfloat16, rounded at random
    slots     (count, features, units)     inout  the optimizer's state, count = 0, 1 or 2
    seen      (features) int32             inout  the last step that a row has seen
    numbers   int                                 how many of its numbers idle gets, as a tuple
    key       (1) uint64                   in     stream of the step's rounding of uint16 arrays; here its complement,
                                                  as the step itself rounds the listed rows once more
    """
    size = check(w=(w, "features units"), slots=(slots, "count features units"), seen=(seen, "features"),
                 room=(ROOM, "most"), table=(table, "steps most"))
    listed = features is not None
    if 0 in (size.features, size.units):
        return
    named = seen if features is None else features
    launch(_catch_up(idle, size.count, numbers, listed), (named.shape[0], size.units), named, touched, made, table, w,
           slots.reshape(size.count * size.features, size.units), seen, key_for(key, seen, w, slots),
           on_cpu=_catch_up_on_cpu(idle, size.count, numbers, listed))
    if device_of(w, seen).name != "cpu":  # blocks of threads share a row
        launch(_mark(listed), (named.shape[0],), named, touched, made, seen)


@cache
def _catch_up(idle, count, numbers, listed):
    def catch_up(r, u, features, touched, made, table, w, slots, seen, keys):
        if not listed or r < touched[0]:
            f = features[r] if listed else r
            t = seen[f]
            if t < made[0]:
                c = (table[t, 0], table[t, 1], table[t, 2], table[t, 3], table[t, 4], table[t, 5], table[t, 6],
                     table[t, 7])[:numbers]
                m = slots[f, u] if count > 0 else _ZERO
                v = slots[w.shape[0] + f, u] if count > 1 else _ZERO
                w[f, u], m, v = idle(w[f, u], m, v, c)
                if count > 0:
                    slots[f, u] = m
                if count > 1:
                    slots[w.shape[0] + f, u] = v
    return catch_up


@cache
def _catch_up_on_cpu(idle, count, numbers, listed):
    fetch = fetch_rows(count)

    @scalar
    def rest(w, m, v, c, key, f):
        low, high = row_key(key, f)
        for u in range(w.shape[0]):
            bits, more = random_bits(low, high, u), random_bits(high, low, u)
            first = widened(m[u]) if count > 0 else _ZERO
            second = widened(v[u]) if count > 1 else _ZERO
            weight, first, second = idle(widened(w[u]), first, second, c)
            w[u] = shortened(weight, w[u], bits)
            if count > 0:
                m[u] = shortened(first, m[u], more)
            if count > 1:
                v[u] = shortened(second, v[u], more >> _HALF)

    def catch_up(features, touched, made, table, w, slots, seen, keys):
        key = ~np.uint64(keys[0])
        total = touched[0] if listed else w.shape[0]
        flat_w, flat_slots = w.reshape(w.size), slots.reshape(slots.size)
        for chunk in prange(_CHUNKS):
            for run in range(chunk * RUN, total, _CHUNKS * RUN):
                for r in range(run, min(run + RUN, total)):
                    f, coming = np.int64(r), np.int64(later(r, _CHUNKS, total))
                    if listed:
                        f, coming = np.int64(features[f]), np.int64(features[coming])
                    if seen[coming] < made[0]:
                        fetch(flat_w, flat_slots, coming, w.shape)
                    if seen[f] < made[0]:
                        t = table[seen[f]]
                        c = (t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7])[:numbers]
                        rest(w[f], slots[f] if count > 0 else w[f], slots[w.shape[0] + f] if count > 1 else w[f], c,
                             key, f)
                    seen[f] = made[0] + _ONE if listed else 0
    return catch_up


@cache
def _mark(listed):
    def mark(r, features, touched, made, seen):
        if not listed:
            seen[r] = 0
        elif r < touched[0]:
            seen[features[r]] = made[0] + _ONE
    return mark
