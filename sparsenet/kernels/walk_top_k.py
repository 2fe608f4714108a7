"""The best items of each row on a CPU: a walk over tiles of outputs as in walk.py, which keeps the best so far.

The logits of an output lie side by side for the whole batch: 64 at a time are compared with bounds, one for each row.
The few above are listed for their rows, as places in the order (topk.place); a full list is cut to its k best. Each
core has a part of the outputs and lists of its own. Of places no two are equal: how many cores there are decides
nothing.

Where an activation never decreases, logits can be compared with the logit of what was too bad. Its score alone counts:
where scores are equal, the item number decides, whatever the logits are.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import config, get_num_threads, prange, types
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic

from sparsenet.bfloat16 import pack_along
from sparsenet.compiling import plain
from sparsenet.device import Array, run_on_host, scalar
from sparsenet.kernels.loss import first_from
from sparsenet.kernels.panels import Plan, products, room_of
from sparsenet.kernels.topk import place, placed_item, placed_score
from sparsenet.kernels.walk import walk_plan
from sparsenet.shapes import check_memory
from sparsenet.vector_code import address, check_flat, load, spread
from sparsenet.vectors import Vectors

_TIMES, _LEAST = 3, 64  # a list has room for so many times k, and for no fewer
_ZERO, _WORST, _BEST = np.float32(0), np.float32(-np.inf), np.float32(np.inf)
_NO_ITEM, _BIT, _NO_BITS = np.int32(-1), np.uint64(1), np.uint64(0)
_NOTHING = np.uint64(plain(place)(_WORST, 0))  # what is worth listing comes before it in the order
_SLACK = np.float32(2.0**-20)  # rounding may put scores in another order than logits that are nearer than this
_first_from = scalar(first_from.function)


class Lists(NamedTuple):
    """Where the lists lie in the room, in places of float32 numbers. See panels.Plan, whose sums they replace."""

    start: int
    """Of the first part's lists, which begin with bounds of rows, in whole 64s"""
    part: int
    """From one part's to the next"""
    counts: int
    """Of the rows' lists, from the part's beginning, int32"""
    cursors: int
    """Of the rows' unwanted items, int32"""
    last: int
    """The worst of the rows' k best so far, uint64"""
    places: int
    """The lists themselves, uint64"""
    capacity: int
    k: int
    size: int
    """Of the room"""


@cache
def top_k_plan(batch: int, inputs: int, outputs: int, k: int, precision: str) -> tuple[Vectors, str, Plan, Lists]:
    """(path of vectors, precision that it has, plan, lists) of a walk on this CPU; its room has lists.size numbers."""
    path, precision, where = walk_plan(batch, inputs, outputs, precision)
    k = min(k, outputs)
    capacity = min(max(_TIMES * k, _LEAST), outputs)
    ends = [0]
    for size in (-(-batch // 64) * 64, batch, batch, 2 * batch, 2 * batch * capacity):
        ends.append(ends[-1] + -(-size // 16) * 16)
    lists = Lists(where.sums, ends[-1], *ends[1:-1], capacity, k, where.sums + config.NUMBA_NUM_THREADS * ends[-1])
    return path, precision, where, lists


def walk_top_k(activation: Callable, hidden: Array, w: Array, bias: Array, indptr: Array | None, indices: Array | None,
               items: Array, values: Array, room: Array, *, monotonic: bool = False,
               precision: str = "float32") -> None:
    """head.head_top_k on a CPU: arguments as there, but for the room, (size) float32 as `top_k_plan` says."""
    path, precision, where, lists = top_k_plan(*hidden.shape, w.shape[0], items.shape[1], precision)
    check_memory(hidden=hidden, bias=bias, room=room)
    check_memory(w=w)
    walk = _walk(activation, monotonic, indptr is not None, path, precision)
    no_bounds, no_items = np.zeros(1, np.int64), np.zeros(1, np.int32)
    run_on_host(walk, hidden, w, bias, no_bounds if indptr is None else indptr, no_items if indices is None else indices,
                room_of(room, lists.size), where, lists, items, values)


@cache
def _walk(activation, monotonic, excludes, path, precision):
    tiles = products(path, precision)
    pack_hidden, logits = tiles.pack_hidden, tiles.logits
    load_tile = _load_pairs if precision == "bfloat16" else tiles.load
    take = _take(activation, monotonic)

    def walk_top_k(hidden, w, bias, indptr, indices, room, plan, lists, items, values):
        batch, inputs = hidden.shape
        outputs, parts = w.shape[0], get_num_threads()
        count = (outputs + plan.tile - 1) // plan.tile
        pack_hidden(hidden, plan, room)
        for part in prange(parts):
            own, mine = plan.threads + part * plan.thread, lists.start + part * lists.part
            start, end = count * part // parts, count * (part + 1) // parts
            _begin(start * plan.tile, excludes, indptr, indices, batch, lists, mine, room)
            for tile in range(start, end):
                first = tile * plan.tile
                n = min(plan.tile, outputs - first)
                load_tile(w, first, n, plan, own, room)
                logits(batch, inputs, n, plan, own, room)
                if excludes:
                    _exclude(indptr, indices, first, n, plan, own, lists, mine, room)
                take(bias, first, n, batch, plan, own, lists, mine, room)
        for b in prange(batch):
            _write(b, parts, lists, items, values, room)
    return walk_top_k


@scalar
def _load_pairs(w, first, count, plan, own, room):
    """As panels.Products.load, but for logits only."""
    for c in range(count):
        pack_along(w[first + c], 0, w.shape[1], room.words, own + plan.weights + c * plan.packed_wide, plan.packed_wide)


@scalar
def _begin(first, excludes, indptr, indices, batch, lists, mine, room):
    room.numbers[mine:mine + lists.counts] = _BEST  # above which nothing is, where there is no row
    for b in range(batch):
        room.numbers[mine + b] = _WORST
        room.places[mine + lists.counts + b] = 0
        room.bits[(mine + lists.last) // 2 + b] = _NOTHING
        if excludes:
            room.places[mine + lists.cursors + b] = _first_from(indices, indptr[b], indptr[b + 1], first)


@scalar
def _exclude(indptr, indices, first, n, plan, own, lists, mine, room):
    for b in range(indptr.shape[0] - 1):
        k = room.places[mine + lists.cursors + b]
        while k < indptr[b + 1] and indices[k] < first + n:
            room.numbers[own + (indices[k] - first) * plan.long + b] = _WORST
            k += 1
        room.places[mine + lists.cursors + b] = k


@cache
def _take(activation, monotonic):
    """The function that lists what may be among the best of a tile's logits."""
    @scalar
    def take(bias, first, n, batch, plan, own, lists, mine, room):
        for c in range(n):
            start, of_unit = own + c * plan.long, bias[first + c]
            if not monotonic:  # unwanted ones stay so, whatever the activation makes of them
                z = room.numbers[start:start + batch]
                for b in range(batch):
                    z[b] = activation(z[b] + of_unit) if z[b] > _WORST else _WORST
                of_unit = _ZERO
            for part in range(0, batch, 64):
                marks = _above(room.numbers, start + part, of_unit, room.numbers, mine + part)
                while marks != _NO_BITS:
                    b = part + np.int64(trailing_zeros(marks))
                    marks &= marks - _BIT
                    z = room.numbers[start + b] + of_unit
                    score = activation(z) if monotonic else z
                    if not _listed(b, np.uint64(place(score, first + c)), lists, mine, room) and score == score:
                        below = z - _SLACK * (1 + abs(z)) if monotonic else z
                        if below > room.numbers[mine + b]:
                            room.numbers[mine + b] = below
    return take


@intrinsic
def _above(typing_context, z, start, number, bounds, b_start):
    """As vectors.above, of z[start + i] + number."""
    check_flat(z, types.float32)
    check_flat(bounds, types.float32)

    def generate(context, builder, signature, values):
        numbers = ir.VectorType(ir.FloatType(), 64)
        left, right = (load(builder, address(context, builder, signature, values, place), numbers) for place in (0, 3))
        total = builder.fadd(left, spread(builder, values[2], 64))
        return builder.bitcast(builder.fcmp_ordered(">", total, right), ir.IntType(64))
    return types.uint64(z, types.intp, types.float32, bounds, types.intp), generate


@scalar
def _listed(b, new, lists, mine, room):
    """Whether a place is before the k best so far, or among them; then it is in row b's list."""
    last = (mine + lists.last) // 2 + b
    if new <= room.bits[last]:
        return False
    start, counted = (mine + lists.places) // 2 + b * lists.capacity, mine + lists.counts + b
    room.bits[start + room.places[counted]] = new
    room.places[counted] += 1
    if room.places[counted] == lists.capacity and lists.capacity > lists.k:
        room.bits[last] = _select(room.bits, start, lists.capacity, lists.k)
        room.places[counted] = lists.k
    return True


@scalar
def _select(places, start, count, k):
    """Put the k largest of some places first; returns the least of these. Source: Hoare 1961, "Find"."""
    low, high, wanted = start, start + count - 1, start + k - 1
    while low < high:
        pivot, i, j = places[(low + high) // 2], low, high
        while i <= j:
            while places[i] > pivot:
                i += 1
            while places[j] < pivot:
                j -= 1
            if i <= j:
                places[i], places[j] = places[j], places[i]
                i, j = i + 1, j - 1
        low, high = i if wanted > j else low, j if wanted < i else high
    return places[wanted]


@scalar
def _write(b, parts, lists, items, values, room):
    """Row b's best of all parts, best first."""
    first = lists.start
    for part in range(1, parts):
        mine = first + part * lists.part
        start = (mine + lists.places) // 2 + b * lists.capacity
        for i in range(start, start + room.places[mine + lists.counts + b]):
            _listed(b, room.bits[i], lists, first, room)
    start, count = (first + lists.places) // 2 + b * lists.capacity, room.places[first + lists.counts + b]
    if count > lists.k:
        _select(room.bits, start, count, lists.k)
        count = lists.k
    best = room.bits[start:start + count]
    best.sort()
    for j in range(items.shape[1]):
        if j < count:
            one = np.int64(best[count - 1 - j])
            items[b, j], values[b, j] = placed_item(one), placed_score(one)
        else:
            items[b, j], values[b, j] = _NO_ITEM, _WORST
