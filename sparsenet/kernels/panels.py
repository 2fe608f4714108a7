"""The three products of an output layer on a CPU, tile by tile: a tile of weights stays in a core's cache.

A tile is some rows of item-major weights w (outputs, inputs), float32 or bfloat16. Its logits for the whole batch lie
output by output, z[c, b], and so do the deltas that take their place. All working memory is one array, the room; a Plan
says what lies where in it. Rows in it are padded to whole panels of the vector path, and by 16 numbers more: see
vectors.product.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from sparsenet.bfloat16 import pack_across, pack_along, widened
from sparsenet.device import scalar
from sparsenet.threads import most_threads
from sparsenet.vectors import Vectors, pack, product

CHUNKS = 32
"""Parts of the outputs, each with sums of its own: a fixed number, so that the number of cores changes no bit"""

_TALL, _LOW, _MANY_INPUTS = 126, 56, 512  # outputs of a tile: multiples of 14, the rows of a register tile
_ZERO = np.float32(0)


class Plan(NamedTuple):
    """Sizes, and places in the room. One place holds a float32, or two bfloat16 numbers."""

    tile: int
    """Outputs of a tile"""
    chunks: int
    wide: int
    """From one row of inputs to the next"""
    long: int
    """From one row of the batch to the next"""
    packed_wide: int
    """As wide, in pairs of numbers"""
    packed_long: int
    zeros: int
    """A row of them"""
    hidden_by_input: int
    """Of hidden, by inputs in panels of examples"""
    hidden_by_example: int
    threads: int
    """Of the first thread's part"""
    thread: int
    """Size of a thread's part, which begins with the logits; the places that follow count from its beginning"""
    weights: int
    weight_pairs: int
    delta_pairs: int
    delta_pairs_by_example: int
    gradient: int
    row: int
    """Weights of one output, in float32"""
    rows: int
    """4 rows of the batch"""
    saved: int
    """Logits of the tile's nonzero targets"""
    active: int
    """A bit for each logit"""
    wanted: int
    """A bit for each logit"""
    sums: int
    """Of the first chunk's dL/dhidden"""
    losses: int
    """Of the first chunk's losses, in float64"""
    size: int
    """Of the room"""


@cache
def plan(batch: int, inputs: int, outputs: int, path: Vectors, precision: str) -> Plan:
    """Where everything lies."""
    pairs = precision == "bfloat16"
    tile = _TALL if inputs <= _MANY_INPUTS else _LOW
    wide, long = (-(-size // path.columns) * path.columns + 16 for size in (inputs, batch))
    packed_wide, packed_long = (-(-size // 32) * 16 + 16 for size in (inputs, batch))
    chunks = min(CHUNKS, -(-outputs // tile))
    ends = [0]

    def room(size: int) -> int:
        ends.append(ends[-1] + -(-size // 16) * 16)
        return ends[-2]

    zeros = room(max(wide, long))
    by_input = room((-(-inputs // 2) if pairs else inputs) * (long - 16))
    by_example = room((-(-batch // 2) if pairs else batch) * wide)
    threads = ends[-1]
    ends = [0]
    room(tile * long)  # logits
    weights = room(tile * (packed_wide if pairs else wide))
    weight_pairs = room(tile // 2 * wide if pairs else 0)
    delta_pairs = room(tile * packed_long if pairs else 0)
    by_example_pairs = room(tile // 2 * long if pairs else 0)
    gradient, row, rows, saved = room(tile * wide), room(wide), room(4 * long), room(tile * batch)
    active, wanted = (room(2 * tile * -(-batch // 64)) for _ in range(2))
    thread = ends[-1]
    sums = threads + thread * most_threads()
    losses = sums + chunks * batch * wide
    return Plan(tile, chunks, wide, long, packed_wide, packed_long, zeros, by_input, by_example, threads, thread,
                weights, weight_pairs, delta_pairs, by_example_pairs, gradient, row, rows, saved, active, wanted, sums,
                losses, losses + 2 * chunks * batch)


class Room(NamedTuple):
    """Working memory, seen as numbers of several kinds."""

    numbers: np.ndarray
    words: np.ndarray
    """uint32: pairs of bfloat16 numbers"""
    places: np.ndarray
    """int32"""
    bits: np.ndarray
    """uint64"""
    doubles: np.ndarray

    @staticmethod
    def of(array: np.ndarray, size: int) -> "Room":
        """A flat float32 array as a room. Raises ValueError where it has less than `size` elements."""
        if array.ndim != 1 or array.size < size or array.dtype != np.float32:
            raise ValueError(f"room: expected at least {size} float32 numbers on one axis, got {array.dtype} of shape "
                             f"{array.shape}")
        whole = array[:array.size // 2 * 2]
        return Room(array, *(whole.view(kind) for kind in (np.uint32, np.int32, np.uint64, np.float64)))


class Products(NamedTuple):
    """Compiled functions; `own` is where the thread's part of the room begins."""

    pack_hidden: Callable
    """(hidden, plan, room): before all others"""
    load: Callable
    """(w, first, count, plan, own, room): take rows first, first + 1, … of w"""
    weights_of: Callable
    """(w, first, c, plan, own, room): the place of row first + c of w, after `load`, as float32; until the next call"""
    logits: Callable
    """(batch, inputs, count, plan, own, room): z = w hidden'"""
    prepare: Callable
    """(batch, count, plan, own, room): after the logits became deltas, before the two that follow"""
    to_hidden: Callable
    """(batch, inputs, count, plan, own, sums, room): dhidden, at the place `sums`, += z' w"""
    to_weights: Callable
    """(batch, inputs, count, plan, own, room): gradient = z hidden"""


@cache
def products(path: Vectors, precision: str) -> Products:
    """The functions for a path of vectors.py; "bfloat16" rounds the operands, where the path has it."""
    return _in_pairs(path) if precision == "bfloat16" else _in_float32(path)


def _in_float32(path: Vectors) -> Products:
    multiply, columns = product(path, "float32"), path.columns

    @scalar
    def pack_hidden(hidden, plan, room):
        batch, inputs = hidden.shape
        for panel in range((batch + columns - 1) // columns):
            for k in range(inputs):
                place = plan.hidden_by_input + (panel * inputs + k) * columns
                count = min(columns, batch - panel * columns)
                for j in range(count):
                    room.numbers[place + j] = hidden[panel * columns + j, k]
                for j in range(count, columns):
                    room.numbers[place + j] = _ZERO
        for b in range(batch):
            _copy_row(hidden[b], room.numbers, plan.hidden_by_example + b * plan.wide, plan.wide)

    @scalar
    def load(w, first, count, plan, own, room):
        for c in range(count):
            _copy_row(w[first + c], room.numbers, own + plan.weights + c * plan.wide, plan.wide)

    @scalar
    def weights_of(w, first, c, plan, own, room):
        return own + plan.weights + c * plan.wide

    @scalar
    def logits(batch, inputs, count, plan, own, room):
        multiply(room.numbers, own + plan.weights, plan.wide, 1, room.numbers, plan.hidden_by_input, inputs * columns,
                 columns, room.numbers, own, plan.long, count, plan.long - 16, inputs, False)

    @scalar
    def prepare(batch, count, plan, own, room):
        pass

    @scalar
    def to_hidden(batch, inputs, count, plan, own, sums, room):
        multiply(room.numbers, own, 1, plan.long, room.numbers, own + plan.weights, columns, plan.wide,
                 room.numbers, sums, plan.wide, batch, plan.wide - 16, count, True)

    @scalar
    def to_weights(batch, inputs, count, plan, own, room):
        multiply(room.numbers, own, plan.long, 1, room.numbers, plan.hidden_by_example, columns, plan.wide,
                 room.numbers, own + plan.gradient, plan.wide, count, plan.wide - 16, batch, False)
    return Products(pack_hidden, load, weights_of, logits, prepare, to_hidden, to_weights)


@scalar
def _copy_row(row, to, place, wide):
    target = to[place:place + wide]  # places that may be negative would keep LLVM from making vectors of the loop
    for k in range(row.shape[0]):
        target[k] = widened(row[k])
    for k in range(row.shape[0], wide):
        target[k] = _ZERO


def _in_pairs(path: Vectors) -> Products:
    multiply, columns = product(path, "bfloat16"), path.columns

    @scalar
    def pack_hidden(hidden, plan, room):
        batch, inputs = hidden.shape
        half = (inputs + 1) // 2
        room.numbers[plan.zeros:plan.zeros + max(plan.wide, plan.long)] = _ZERO
        for panel in range((batch + columns - 1) // columns):
            count = min(columns, batch - panel * columns)
            for k in range(half):
                place = plan.hidden_by_input + (panel * half + k) * columns
                for j in range(count):
                    row = hidden[panel * columns + j]
                    room.words[place + j] = pack(row[2 * k], row[2 * k + 1] if 2 * k + 1 < inputs else _ZERO)
                for j in range(count, columns):
                    room.words[place + j] = 0
        for b in range((batch + 1) // 2):
            lower = hidden[2 * b + 1] if 2 * b + 1 < batch else room.numbers[plan.zeros:plan.zeros + inputs]
            pack_across(hidden[2 * b], 0, lower, 0, inputs, room.words, plan.hidden_by_example + b * plan.wide,
                        plan.wide)

    @scalar
    def load(w, first, count, plan, own, room):
        inputs = w.shape[1]
        for c in range(count):
            pack_along(w[first + c], 0, inputs, room.words, own + plan.weights + c * plan.packed_wide, plan.packed_wide)
        for c in range((count + 1) // 2):
            lower = w[first + min(2 * c + 1, count - 1)]  # beside the last of an odd number any will do: its delta is 0
            pack_across(w[first + 2 * c], 0, lower, 0, inputs, room.words, own + plan.weight_pairs + c * plan.wide,
                        plan.wide)

    @scalar
    def weights_of(w, first, c, plan, own, room):
        _copy_row(w[first + c], room.numbers, own + plan.row, plan.wide)
        return own + plan.row

    @scalar
    def logits(batch, inputs, count, plan, own, room):
        half = (inputs + 1) // 2
        multiply(room.words, own + plan.weights, plan.packed_wide, 1, room.words, plan.hidden_by_input, half * columns,
                 columns, room.numbers, own, plan.long, count, plan.long - 16, half, False)

    @scalar
    def prepare(batch, count, plan, own, room):
        for c in range(count):
            pack_along(room.numbers, own + c * plan.long, batch, room.words,
                       own + plan.delta_pairs + c * plan.packed_long, (batch + 1) // 2)
        for c in range((count + 1) // 2):
            lower = own + (2 * c + 1) * plan.long if 2 * c + 1 < count else plan.zeros
            pack_across(room.numbers, own + 2 * c * plan.long, room.numbers, lower, batch, room.words,
                        own + plan.delta_pairs_by_example + c * plan.long, batch)

    @scalar
    def to_hidden(batch, inputs, count, plan, own, sums, room):
        multiply(room.words, own + plan.delta_pairs_by_example, 1, plan.long, room.words, own + plan.weight_pairs,
                 columns, plan.wide, room.numbers, sums, plan.wide, batch, plan.wide - 16, (count + 1) // 2, True)

    @scalar
    def to_weights(batch, inputs, count, plan, own, room):
        multiply(room.words, own + plan.delta_pairs, plan.packed_long, 1, room.words, plan.hidden_by_example, columns,
                 plan.wide, room.numbers, own + plan.gradient, plan.wide, count, plan.wide - 16, (batch + 1) // 2,
                 False)
    return Products(pack_hidden, load, weights_of, logits, prepare, to_hidden, to_weights)
