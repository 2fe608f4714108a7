"""The best items of each row on a CPU: a walk over tiles of outputs as in walk.py, which keeps the best so far.

The logits of an output lie side by side for the whole batch: 64 at a time are compared with bounds, one for each row.
The few above are listed for their rows; a full list is cut to its k best, and what was cut off is the new bound. Each
core has a part of the outputs and lists of its own. The order (topk.place) knows no equals: how many cores there are
decides nothing.

Of an activation that never decreases, logits are compared and listed, and only lists go through it. Lists are cut by
scores: where those are equal, the item number decides, whatever the logits are.
"""

from collections.abc import Callable
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numba import prange

from sparsenet.bfloat16 import pack_along
from sparsenet.compiling import plain
from sparsenet.device import Array, run_on_host, scalar
from sparsenet.kernels.loss import first_from
from sparsenet.kernels.panels import Plan, Room, products
from sparsenet.kernels.topk import place, placed_item, placed_score
from sparsenet.kernels.walk import walk_plan
from sparsenet.shapes import check_memory
from sparsenet.threads import most_threads, threads_now
from sparsenet.vector_loops import above_sum, trailing_zeros
from sparsenet.vectors import Vectors

_TIMES, _LEAST = 3, 64  # a list has room for so many times k, and for no fewer
_ZERO, _ONE, _WORST, _BEST = np.float32(0), np.float32(1), np.float32(-np.inf), np.float32(np.inf)
_NO_ITEM, _NO_MORE, _BIT, _NO_BITS = np.int32(-1), np.int32(2**31 - 1), np.uint64(1), np.uint64(0)
_NOTHING = np.uint64(plain(place)(_WORST, 0))  # what is worth choosing comes before it in the order
_SLACK = np.float32(2.0**-20)  # rounding may put scores in another order than logits that are nearer than this
_first_from = scalar(first_from.function)


class Lists(NamedTuple):
    """Where the lists lie in the room, in places of float32 numbers. They replace the sums of a panels.Plan."""

    start: int
    """Of the first part's lists, which begin with the rows' bounds, in whole 64s"""
    part: int
    """From one part's to the next; what follows is counted from its beginning"""
    counts: int
    """Of what is in the rows' lists, int32"""
    cursors: int
    """In the rows' unwanted items, int32"""
    unwanted: int
    """The item there, int32"""
    scores: int
    """Lists of logits, or scores"""
    items: int
    """Lists of their items, int32"""
    places: int
    """Of one list in the order, uint64"""
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
    sizes = -(-batch // 64) * 64, batch, batch, batch, batch * capacity, batch * capacity, 2 * capacity
    counts, cursors, unwanted, scores, items, places, part = accumulate(-(-size // 16) * 16 for size in sizes)
    size = where.sums + most_threads() * part
    return path, precision, where, Lists(where.sums, part, counts, cursors, unwanted, scores, items, places, capacity,
                                         k, size)


def walk_top_k(activation: Callable, hidden: Array, w: Array, bias: Array, indptr: Array | None, indices: Array | None,
               items: Array, values: Array, room: Array, *, monotonic: bool = False,
               precision: str = "float32") -> None:
    """head.head_top_k on a CPU: arguments as there, but for the room, (size) float32 as `top_k_plan` says."""
    path, precision, where, lists = top_k_plan(*hidden.shape, w.shape[0], items.shape[1], precision)
    check_memory(hidden=hidden, bias=bias, room=room)
    check_memory(w=w)
    walk = _walk(activation, monotonic, indptr is not None, path, precision)
    unused = np.zeros(1, np.int64), np.zeros(1, np.int32)
    run_on_host(walk, hidden, w, bias, *(unused if indptr is None else (indptr, indices)), threads_now(),
                Room.of(room, lists.size), where, lists, items, values)


@cache
def _walk(activation, monotonic, excludes, path, precision):
    tiles = products(path, precision)
    pack_hidden, logits = tiles.pack_hidden, tiles.logits
    load_tile = _load_pairs if precision == "bfloat16" else tiles.load
    cut = _cut(activation, monotonic)
    take, write = _take(activation, monotonic, cut), _write(cut)

    def walk_top_k(hidden, w, bias, indptr, indices, parts, room, plan, lists, items, values):
        batch, inputs = hidden.shape
        outputs = w.shape[0]
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
                    _exclude(indptr, indices, first, n, batch, plan, own, lists, mine, room)
                take(bias, first, n, batch, plan, own, lists, mine, room)
        for part in prange(parts):
            for b in range(batch * part // parts, batch * (part + 1) // parts):
                write(b, parts, lists, lists.start + part * lists.part, items, values, room)
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
        if excludes:
            k = _first_from(indices, indptr[b], indptr[b + 1], first)
            room.places[mine + lists.cursors + b] = k
            room.places[mine + lists.unwanted + b] = indices[k] if k < indptr[b + 1] else _NO_MORE


@scalar
def _exclude(indptr, indices, first, n, batch, plan, own, lists, mine, room):
    for b in range(batch):
        item = room.places[mine + lists.unwanted + b]
        while item < first + n:
            room.numbers[own + (item - first) * plan.long + b] = _WORST
            k = room.places[mine + lists.cursors + b] + 1
            room.places[mine + lists.cursors + b] = k
            item = indices[k] if k < indptr[b + 1] else _NO_MORE
            room.places[mine + lists.unwanted + b] = item


@cache
def _take(activation, monotonic, cut):
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
                marks = above_sum(room.numbers, start + part, of_unit, room.numbers, mine + part)
                while marks != _NO_BITS:
                    row = part + np.int64(trailing_zeros(marks))
                    marks &= marks - _BIT
                    if _list(row, room.numbers[start + row] + of_unit, first + c, lists, mine, room):
                        cut(row, lists, mine, mine, room)
    return take


@scalar
def _list(b, score, item, lists, mine, room):
    """Append to row b's list; whether it is full."""
    count = room.places[mine + lists.counts + b]
    end = mine + b * lists.capacity + count
    room.numbers[lists.scores + end], room.places[lists.items + end] = score, item
    room.places[mine + lists.counts + b] = count + 1
    return count + 1 == lists.capacity


@cache
def _cut(activation, monotonic):
    """The function that cuts row b's list to the k best, and leaves their places, for which `other` part has room."""
    @scalar
    def cut(b, lists, mine, other, room):
        count, start = room.places[mine + lists.counts + b], mine + b * lists.capacity
        scores = room.numbers[start + lists.scores:start + lists.scores + count]
        items = room.places[start + lists.items:start + lists.items + count]
        places = room.bits[(other + lists.places) // 2:(other + lists.places) // 2 + count]
        for i in range(count):
            places[i] = np.uint64(place(activation(scores[i]) if monotonic else scores[i], items[i]))
        if count <= lists.k:
            return
        least, kept, most = _least_of_best(places, lists.k), 0, _WORST
        for i in range(count):
            z = scores[i]
            scores[kept], items[kept], places[kept] = z, items[i], places[i]
            if places[i] >= least:
                kept += 1
            else:
                most = max(most, z)
        room.places[mine + lists.counts + b] = kept
        room.numbers[mine + b] = max(room.numbers[mine + b], most - _SLACK * (_ONE + abs(most)) if monotonic else most)
    return cut


@scalar
def _least_of_best(places, k):
    """A number that is not above exactly k of more than k places, no two of which are equal."""
    low, high = places.min(), places.max()
    while low < high:
        middle = high - (high - low) // np.uint64(2)
        count = 0
        for one in places:
            count += one >= middle
        if count == k:
            return middle
        low, high = (middle, high) if count > k else (low, middle - _BIT)
    return low


@cache
def _write(cut):
    @scalar
    def write(b, parts, lists, other, items, values, room):
        """Row b's best of all parts, best first."""
        first = lists.start
        for part in range(1, parts):
            mine = first + part * lists.part
            start = mine + b * lists.capacity
            for i in range(start, start + room.places[mine + lists.counts + b]):
                if _list(b, room.numbers[lists.scores + i], room.places[lists.items + i], lists, first, room):
                    cut(b, lists, first, other, room)
        cut(b, lists, first, other, room)
        start, count = (other + lists.places) // 2, room.places[first + lists.counts + b]
        best = room.bits[start:start + count]
        best.sort()
        for j in range(items.shape[1]):
            if j < count and best[count - 1 - j] > _NOTHING:
                one = np.int64(best[count - 1 - j])
                items[b, j], values[b, j] = placed_item(one), placed_score(one)
            else:
                items[b, j], values[b, j] = _NO_ITEM, _WORST
    return write
