"""Products of dense matrices on a CPU, of which a core makes a block at a time: in vector code, or by BLAS."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from sparsenet.compiling import scalar
from sparsenet.threads import gemm
from sparsenet.vectors import PATHS, Vectors, chosen, pack, product, turn

EDGE = 256
"""Most rows, and columns, of a block: what it needs of a and b, and itself, stay in a core's second cache"""
BLOCK = EDGE * EDGE
"""Elements of a block"""

_PITCH = EDGE + 16  # from one row of a copied operand to the next, see vectors.product
_FEW = 4  # blocks
_THIN = 16  # rows or columns
_ZERO = np.float32(0)
_NORMAL, _TRANSPOSED, _SINGLE, _DOUBLE = ord("n"), ord("t"), ord("s"), ord("d")


@scalar
def edge(rows, columns):
    """The edge of a product's blocks. Not the number of cores settles it, so that BLAS gives the same bits."""
    blocks = ((rows + EDGE - 1) // EDGE) * ((columns + EDGE - 1) // EDGE)
    return EDGE if blocks >= _FEW else EDGE // 2


def block(dtype: Any, precision: str, transpose_a: bool, transpose_b: bool, rows: int, columns: int) -> Callable:
    """The compiled function that makes a block of a product (rows, columns) of arrays of that dtype, all of them flat:

    block(a, a_place, a_width, b, b_place, b_width, rows, inner, columns, c, c_place, c_width, accumulate)

    c = op(a) op(b), or += where accumulate, op the transpose where asked for. Rows and columns are EDGE at most; a
    place is that of a panel's first element, a width is from one row to the next as they lie in memory. "bfloat16"
    rounds a and b where the CPU has such products, else it is "float32". Vector code copies operands into two rooms of
    272 KiB, its own while it runs. That does not pay for few rows or columns: those are BLAS's, and float64 arrays.
    """
    path = chosen() if dtype == np.float32 else PATHS["blas"]
    pairs = precision == "bfloat16" and path.bfloat16
    if path.name == "blas" or (min(rows, columns) < _THIN and not pairs):
        return _by_blas(transpose_a, transpose_b)
    return _by_vectors(path, pairs, transpose_a, transpose_b)


@cache
def _by_blas(transpose_a: bool, transpose_b: bool) -> Callable:
    @scalar
    def block(a, a_place, a_width, b, b_place, b_width, rows, inner, columns, c, c_place, c_width, accumulate):
        # BLAS counts along columns: to it, our arrays are their transposes, and c' = b' a'.
        factors = np.ones(2, c.dtype)
        factors[1] = accumulate
        size = c.itemsize
        gemm(_SINGLE if size == 4 else _DOUBLE, _TRANSPOSED if transpose_b else _NORMAL,
             _TRANSPOSED if transpose_a else _NORMAL, columns, rows, inner, factors.ctypes.data,
             b.ctypes.data + b_place * size, max(1, b_width), a.ctypes.data + a_place * size, max(1, a_width),
             factors.ctypes.data + size, c.ctypes.data + c_place * size, c_width)
    return block


@cache
def _by_vectors(path: Vectors, pairs: bool, transpose_a: bool, transpose_b: bool) -> Callable:
    multiply, width = product(path, "bfloat16" if pairs else "float32"), path.columns
    lay_a = _lay_across(pairs) if transpose_a else _lay_along(pairs)
    lay_b = _lay_turned(pairs, path.lanes) if transpose_b else _lay_across(pairs)
    a_row, a_step = (1, _PITCH) if transpose_a else (_PITCH, 1)
    each, dtype = (2, np.uint32) if pairs else (1, np.float32)
    slab = EDGE * each  # of the inner axis

    @scalar
    def block(a, a_place, a_width, b, b_place, b_width, rows, inner, columns, c, c_place, c_width, accumulate):
        left, right = np.empty(_PITCH * EDGE, dtype), np.empty(_PITCH * EDGE, dtype)
        last = np.empty(EDGE * width, np.float32)  # the last panel, where c has not all its columns
        whole = columns // width * width
        rest = columns - whole
        if accumulate:
            for i in range(rows):
                there, here = c[c_place + i * c_width + whole:], last[i * width:]
                for j in range(rest):
                    here[j] = there[j]
        for first in range(0, max(1, inner), slab):
            deep = min(slab, inner - first)
            lay_a(a, a_place + first * (a_width if transpose_a else 1), a_width, rows, deep, left)
            lay_b(b, b_place + first * (1 if transpose_b else b_width), b_width, columns, deep, right)
            steps, add = (deep + each - 1) // each, accumulate or first > 0
            multiply(left, 0, a_row, a_step, right, 0, width, _PITCH, c, c_place, c_width, rows, whole, steps, add)
            if rest > 0:
                multiply(left, 0, a_row, a_step, right, whole, width, _PITCH, last, 0, width, rows, width, steps, add)
        for i in range(rows):
            there, here = c[c_place + i * c_width + whole:], last[i * width:]
            for j in range(rest):
                there[j] = here[j]
    return block


# ---- operands, copied: slices, for loops over them are vector code


@cache
def _lay_along(pairs: bool) -> Callable:
    """Rows go to rows; pairs are neighbours in a row."""
    @scalar
    def lay(source, place, width, rows, inner, room):
        for i in range(rows):
            numbers, target = source[place + i * width:][:inner], room[i * _PITCH:]
            if pairs:
                for k in range(inner // 2):
                    target[k] = pack(numbers[2 * k], numbers[2 * k + 1])
                if inner % 2:
                    target[inner // 2] = pack(numbers[inner - 1], _ZERO)
            else:
                for k in range(inner):
                    target[k] = numbers[k]
    return lay


@cache
def _lay_turned(pairs: bool, lanes: int) -> Callable:
    """Rows go to columns; pairs are neighbours in a row."""
    along, turn_square = _lay_along(pairs), turn(lanes)
    each, dtype = (2, np.uint32) if pairs else (1, np.float32)

    @scalar
    def lay(source, place, width, rows, inner, room):
        some = np.empty(_PITCH * lanes, dtype)
        for i in range(0, rows, lanes):
            along(source, place + i * width, width, min(lanes, rows - i), inner, some)
            for k in range(0, (inner + each - 1) // each, lanes):  # squares that stick out end where nobody looks
                turn_square(some, k, _PITCH, room, k * _PITCH + i, _PITCH)
    return lay


@cache
def _lay_across(pairs: bool) -> Callable:
    """Rows go to rows; pairs are neighbours in a column."""
    @scalar
    def lay(source, place, width, columns, inner, room):
        for k in range(0, inner, 2 if pairs else 1):
            numbers, target = source[place + k * width:][:columns], room[(k // 2 if pairs else k) * _PITCH:]
            if not pairs:
                for j in range(columns):
                    target[j] = numbers[j]
            elif k + 1 < inner:
                below = source[place + (k + 1) * width:][:columns]
                for j in range(columns):
                    target[j] = pack(numbers[j], below[j])
            else:
                for j in range(columns):
                    target[j] = pack(numbers[j], _ZERO)
    return lay
