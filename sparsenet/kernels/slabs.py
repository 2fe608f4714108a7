"""The tile of a product that a block of threads makes on CUDA, from slabs of both operands in shared memory.

A slab is `depth` rows, one for each step along the inner axis, of the elements along the tile's edge: whichever way the
operand itself lies, its slabs lie the same way, and one piece of code multiplies them.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sparsenet.device import cuda, part
from sparsenet.instructions import (
    commit_copies,
    copy4_async,
    copy_async,
    load4,
    mma_bf16,
    mma_tf32,
    pack_bf16,
    store4,
    to_tf32,
    wait_copies,
)

_ZERO = np.float32(0)
_NOTHING = _ZERO, _ZERO, _ZERO, _ZERO
_ALL = 0xFFFFFFFF  # lanes of a warp
_INT32, _UINT32, _UINT64 = np.int32, np.uint32, np.uint64  # untold, Numba counts in 64 bits, and minds negative indices


class Tile(NamedTuple):
    """How a block of threads makes a tile."""

    side: int
    """Threads along an edge"""
    each: int
    """Elements along an edge that a thread makes: 4 or 8"""
    precision: str
    asynchronous: bool
    """Whether the GPU copies to shared memory without detours through registers"""
    dtype: type

    @property
    def threads(self) -> int:
        """Of a block"""
        return self.side * self.side

    @property
    def edge(self) -> int:
        """Elements along an edge of the tile"""
        return self.side * self.each

    @property
    def depth(self) -> int:
        """Of a slab, along the inner axis: four elements of each operand for each thread, or a multiple."""
        return 16 if self.precision == "bfloat16" else 64 // self.each

    @property
    def row(self) -> int:
        """From one row of a slab to the next: the lanes of a warp must meet different banks."""
        return self.edge + (8 if self.precision == "tf32" else 4)

    @property
    def stages(self) -> int:
        """Slabs in shared memory, of which a block has 48 KiB: one is multiplied, the others come in."""
        fitting = 49_152 // (2 * self.depth * self.row * np.dtype(self.dtype).itemsize)
        return min(4, fitting) if self.asynchronous else 2

    def product(self, transpose_a: bool, transpose_b: bool, wide_a: bool, wide_b: bool, wide_x: bool, chosen: Any,
                settle: Any, settle_four: Any) -> Callable:
        """The kernel of tiles.multiply. Places count in flat arrays: x, y and z begin at start; a row is a_width,
        b_width, width after the one before.

        wide_a, wide_b, wide_x  whether they can be accessed in fours
        chosen, settle, settle_four  see tiles.py
        """
        return _product(self, transpose_a, transpose_b, wide_a, wide_b, wide_x, chosen, settle, settle_four)

    def pull(self, flowing: bool, wide: bool) -> tuple[Any, Any]:
        """(begin, finish): parts that bring slab after slab of an operand to shared memory.

        flowing  whether neighbours along the tile's edge, not along the inner axis, are neighbours in memory
        wide     in accesses of four elements. Asynchronous ones cannot turn what does not flow to where it does, in a
                 slab: that goes through registers, which `begin` fills and `finish` empties
        """
        return _pull(self, flowing, wide)

    def arithmetic(self) -> tuple[Any, Any, Any]:
        """(add, arrange, place): parts that add the product of two slabs to a thread's totals; arrange its totals such
        that each four are neighbours in a row; and say the row and column of the n-th four.
        """
        return (_in_registers if self.precision == "float32" else _on_tensor_cores)(self)


@cache
def _pull(tile, flowing, wide):
    edge, depth, row, threads = tile.edge, tile.depth, tile.row, tile.threads
    at_once = 4 if wide else 1
    accesses = edge * depth // (threads * at_once)
    asynchronous = tile.asynchronous and (flowing or not wide)

    @part
    def where(t, q):
        """(inner, unit) of a thread's q-th access: neighbouring threads read neighbouring elements."""
        n = (t + q * threads) * at_once
        return (n // edge, n % edge) if flowing else (n % depth, n // depth)

    @part
    def begin(source, start, width, inner, units, slabs, slab, held, t):
        for q in range(accesses):
            k, u = where(t, q)
            inside = k < inner and u < units
            place = start + _INT32(k * width + u if flowing else u * width + k)
            if asynchronous:
                if wide:
                    copy4_async(slabs, slab + k * row + u, source, place, 4 if inside else 0)
                else:
                    copy_async(slabs, slab + k * row + u, source, place, 1 if inside else 0)
            elif wide:
                held[4 * q], held[4 * q + 1], held[4 * q + 2], held[4 * q + 3] = (
                    load4(source, place) if inside else _NOTHING)
            else:
                held[q] = source[_UINT64(place)] if inside else _ZERO

    @part
    def finish(slabs, slab, held, t):
        for q in range(0 if asynchronous else accesses):
            k, u = where(t, q)
            n = at_once * q
            if not wide:
                slabs[_UINT32(slab + k * row + u)] = held[n]
            elif flowing:
                store4(slabs, slab + k * row + u, held[n], held[n + 1], held[n + 2], held[n + 3])
            else:
                for j in range(4):
                    slabs[_UINT32(slab + (k + j) * row + u)] = held[n + j]
    return begin, finish


@cache
def _in_registers(tile):
    """Each thread makes four rows and columns of each half of the tile, or of all of it."""
    side, each, depth, row, half, dtype = tile.side, tile.each, tile.depth, tile.row, tile.edge // 2, tile.dtype

    @part
    def one_by_one(slabs, place):
        return slabs[place], slabs[place + 1], slabs[place + 2], slabs[place + 3]

    four = load4 if dtype is np.float32 else one_by_one

    @part
    def add(a_slabs, b_slabs, slab, totals, t):
        a = cuda.local.array(each, dtype)
        b = cuda.local.array(each, dtype)
        for k in range(depth):
            for h in range(0, each, 4):
                place = slab + k * row + h // 4 * half
                a[h], a[h + 1], a[h + 2], a[h + 3] = four(a_slabs, place + t // side * 4)
                b[h], b[h + 1], b[h + 2], b[h + 3] = four(b_slabs, place + t % side * 4)
            for i in range(each):
                for j in range(each):
                    totals[i * each + j] += a[i] * b[j]

    @part
    def arrange(totals, t):
        pass

    @part
    def place(n, t):
        i, h = n // (each // 4), n % (each // 4)
        return t // side * 4 + i % 4 + i // 4 * half, t % side * 4 + h * half
    return add, arrange, place


@cache
def _on_tensor_cores(tile):
    """Warps, two down and four across, add products of the tensor cores' size: 16 rows by 8 columns."""
    depth, row, pieces, words, edge = tile.depth, tile.row, tile.each // 2, tile.each, tile.edge
    half = tile.precision == "bfloat16"
    mma = mma_bf16 if half else mma_tf32

    @part
    def word(slabs, place):
        return (pack_bf16(slabs[_UINT32(place)], slabs[_UINT32(place + row)]) if half
                else to_tf32(slabs[_UINT32(place)]))

    @part
    def add(a_slabs, b_slabs, slab, totals, t):
        b = cuda.local.array(words, np.uint32)
        warp, lane = t // 32, t % 32
        ahead = (8 if half else 4) * row
        for k in range(0, depth, 16 if half else 8):
            line = slab + (k + (lane % 4 * 2 if half else lane % 4)) * row + lane // 4
            down, across = line + warp // 4 * (edge // 2), line + warp % 4 * (edge // 4)
            for j in range(pieces):
                b[2 * j] = word(b_slabs, across + 8 * j)
                b[2 * j + 1] = word(b_slabs, across + 8 * j + ahead)
            for i in range(pieces):
                place = down + 16 * i
                a0, a1 = word(a_slabs, place), word(a_slabs, place + 8)
                a2, a3 = word(a_slabs, place + ahead), word(a_slabs, place + ahead + 8)
                for j in range(pieces):
                    n = 4 * (i * pieces + j)
                    totals[n], totals[n + 1], totals[n + 2], totals[n + 3] = mma(
                        a0, a1, a2, a3, b[2 * j], b[2 * j + 1], totals[n], totals[n + 1], totals[n + 2], totals[n + 3])

    @part
    def arrange(totals, t):
        """Neighbouring lanes trade pairs of columns of two rows: each then has four columns of one row."""
        odd = t % 2 == 1
        for m in range(pieces * pieces):
            n = 4 * m
            upper = totals[n], totals[n + 1]
            lower = totals[n + 2], totals[n + 3]
            given = upper if odd else lower
            taken = cuda.shfl_xor_sync(_ALL, given[0], 1), cuda.shfl_xor_sync(_ALL, given[1], 1)
            totals[n], totals[n + 1] = taken if odd else upper
            totals[n + 2], totals[n + 3] = lower if odd else taken

    @part
    def place(n, t):
        warp, lane = t // 32, t % 32
        i, j = n // pieces, n % pieces
        return (warp // 4 * (edge // 2) + 16 * i + lane // 4 + lane % 2 * 8,
                warp % 4 * (edge // 4) + 8 * j + lane % 4 // 2 * 4)
    return add, arrange, place


@cache
def _product(tile, transpose_a, transpose_b, wide_a, wide_b, wide_x, chosen, settle, settle_four):
    if wide_a and wide_b and transpose_b and not transpose_a:
        tile = tile._replace(asynchronous=False)  # both operands go through registers: one slab ahead is enough
    begin_a, finish_a = tile.pull(transpose_a, wide_a)
    begin_b, finish_b = tile.pull(not transpose_b, wide_b)
    add, arrange, place_of = tile.arithmetic()
    edge, each, depth, stages, asynchronous, dtype = (tile.edge, tile.each, tile.depth, tile.stages, tile.asynchronous,
                                                      tile.dtype)
    slab_size, held_size = depth * tile.row, edge * depth // tile.threads
    size, count = stages * slab_size, each * each
    arrive = wait_copies(stages - 2)

    def product(a, a_width, b, b_width, rows, columns, inner, chunk, rows_first, x, y, z, start, width, bias, numbers):
        a_slabs = cuda.shared.array(size, dtype, 16)
        b_slabs = cuda.shared.array(size, dtype, 16)
        a_held = cuda.local.array(held_size, dtype)
        b_held = cuda.local.array(held_size, dtype)
        totals = cuda.local.array(count, dtype)
        t = cuda.threadIdx.x
        if rows_first:
            top, left = cuda.blockIdx.x * edge, cuda.blockIdx.y * edge
        else:
            top, left = cuda.blockIdx.y * edge, cuda.blockIdx.x * edge
        first = cuda.blockIdx.z * chunk
        length = min(chunk, inner - first)
        a_step = depth * a_width if transpose_a else depth
        b_step = depth if transpose_b else depth * b_width
        a_start = first * a_width + top if transpose_a else top * a_width + first
        b_start = left * b_width + first if transpose_b else first * b_width + left
        a_units, b_units = _INT32(rows - top), _INT32(columns - left)
        for i in range(count):
            totals[i] = _ZERO
        for step in range(stages - 1):
            to_come = _INT32(length - step * depth)
            begin_a(a, a_start, a_width, to_come, a_units, a_slabs, step * slab_size, a_held, t)
            begin_b(b, b_start, b_width, to_come, b_units, b_slabs, step * slab_size, b_held, t)
            a_start += a_step
            b_start += b_step
            if asynchronous:
                commit_copies()
            finish_a(a_slabs, step * slab_size, a_held, t)
            finish_b(b_slabs, step * slab_size, b_held, t)
        for step in range((length + depth - 1) // depth):
            if asynchronous:
                arrive()
            cuda.syncthreads()  # this step's slabs are there, and the last step's may be overwritten
            ahead = step + stages - 1
            slab = ahead % stages * slab_size
            to_come = _INT32(length - ahead * depth)
            begin_a(a, a_start, a_width, to_come, a_units, a_slabs, slab, a_held, t)
            begin_b(b, b_start, b_width, to_come, b_units, b_slabs, slab, b_held, t)
            a_start += a_step
            b_start += b_step
            if asynchronous:
                commit_copies()
            add(a_slabs, b_slabs, step % stages * slab_size, totals, t)
            finish_a(a_slabs, slab, a_held, t)
            finish_b(b_slabs, slab, b_held, t)
        arrange(totals, t)
        s = chosen(numbers)
        for n in range(count // 4):
            down, across = place_of(n, t)
            row, column = top + down, left + across
            place = start + (cuda.blockIdx.z * rows + row) * width + column
            if row < rows:
                if wide_x:
                    if column < columns:
                        settle_four(totals, 4 * n, place, column, x, y, z, bias, s)
                else:
                    for j in range(4):
                        if column + j < columns:
                            settle(totals[4 * n + j], place + j, column + j, x, y, z, bias, s)
    if each == 8:
        vars(product)["launch_bounds"] = tile.threads, 2  # registers for two blocks on a multiprocessor
    return product
