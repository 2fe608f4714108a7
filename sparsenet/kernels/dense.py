"""Dense matrix products and the sums over a batch."""

from contextlib import nullcontext
from functools import cache

import numpy as np
from numba import prange

from sparsenet.device import Array, cuda, device_of, launch, launch_pair
from sparsenet.shapes import check
from sparsenet.threads import exclusive, gemm

_ZERO = np.float32(0)
_NORMAL, _TRANSPOSED, _SINGLE, _DOUBLE = ord("n"), ord("t"), ord("s"), ord("d")
_STRIP = 256  # columns, a task of one core
_TILE_ROWS, _TILE_COLUMNS = 128, 512  # of c, a task of one core


def matmul(a: Array, b: Array, c: Array, *, transpose_a: bool = False, transpose_b: bool = False,
           accumulate: bool = False) -> None:
    """c = op(a) @ op(b), op the transpose where asked for; += where accumulate.

    a  (rows, inner) or its transpose (inner, rows) float32          in
    b  (inner, columns) or its transpose (columns, inner) float32    in
    c  (rows, columns) float32                                       out or inout

    On a CPU each tile of c is a product by one BLAS thread. The tiles' size is fixed: the same bits whatever the number
    of cores. Beside NumPy's product on two threads that costs 12 to 16 % for 256 x 128 x 26,744 and nothing for the
    tall product of a wide output's backward pass.
    """
    size = check(a=(a, "inner rows" if transpose_a else "rows inner"),
                 b=(b, "columns inner" if transpose_b else "inner columns"), c=(c, "rows columns"))
    if 0 in (size.rows, size.columns):
        return
    device = device_of(a, b, c)
    if device.name == "cpu":
        _check_for_blas(a=a, b=b, c=c)
    tile = device.tile
    blocks = (-(-size.columns // tile), min(65_535, -(-size.rows // tile)))
    with exclusive if device.name == "cpu" else nullcontext():
        launch_pair(_matmul_on_cpu(transpose_a, transpose_b, accumulate),
                    _matmul_on_cuda(transpose_a, transpose_b, accumulate, tile), blocks, (tile, tile), a, b, c)


def _check_for_blas(**arrays: Array) -> None:
    """BLAS is told an address and a width: it would read, and write, past the end of any other array."""
    dtype = arrays["a"].dtype
    for name, array in arrays.items():
        if not array.flags.c_contiguous:
            raise ValueError(f"{name}: expected a C-contiguous array, got shape {array.shape}, strides {array.strides}")
        if array.dtype != dtype:
            raise ValueError(f"{name}: dtype is {array.dtype}, but a says {dtype}")


@cache
def _matmul_on_cpu(transpose_a, transpose_b, accumulate):
    def matmul(a, b, c):
        rows, columns = c.shape
        inner = a.shape[0] if transpose_a else a.shape[1]
        across = (columns + _TILE_COLUMNS - 1) // _TILE_COLUMNS
        tiles = across * ((rows + _TILE_ROWS - 1) // _TILE_ROWS)
        factors = np.ones(2, a.dtype)
        factors[1] = accumulate
        kind = _SINGLE if a.itemsize == 4 else _DOUBLE
        for tile in prange(tiles):
            row, column = tile // across * _TILE_ROWS, tile % across * _TILE_COLUMNS
            a_start = row if transpose_a else row * a.shape[1]
            b_start = column * b.shape[1] if transpose_b else column
            # BLAS counts along columns: to it, our arrays are their transposes, and c' = b' a'.
            gemm(kind, _TRANSPOSED if transpose_b else _NORMAL, _TRANSPOSED if transpose_a else _NORMAL,
                 min(_TILE_COLUMNS, columns - column), min(_TILE_ROWS, rows - row), inner, factors.ctypes.data,
                 b.ctypes.data + b_start * b.itemsize, max(1, b.shape[1]),
                 a.ctypes.data + a_start * a.itemsize, max(1, a.shape[1]), factors.ctypes.data + factors.itemsize,
                 c.ctypes.data + (row * columns + column) * c.itemsize, columns)
    return matmul


@cache
def _matmul_on_cuda(transpose_a, transpose_b, accumulate, tile):
    area = tile * tile

    def matmul(a, b, c):
        # Shared arrays are flat: their size must be one number known to the compiler.
        a_tile = cuda.shared.array(area, np.float32)
        b_tile = cuda.shared.array(area, np.float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        inner = a.shape[0] if transpose_a else a.shape[1]
        left_column = cuda.blockIdx.x * tile
        for top_row in range(cuda.blockIdx.y * tile, c.shape[0], cuda.gridDim.y * tile):
            row, column = top_row + y, left_column + x
            inside = row < c.shape[0] and column < c.shape[1]
            total = c[row, column] if accumulate and inside else _ZERO
            for start in range(0, inner, tile):
                # Neighbouring threads read neighbouring elements, whichever way the operand lies.
                i, j = (start + y, top_row + x) if transpose_a else (row, start + x)
                a_tile[y * tile + x] = a[i, j] if i < a.shape[0] and j < a.shape[1] else _ZERO
                i, j = (left_column + y, start + x) if transpose_b else (start + y, column)
                b_tile[y * tile + x] = b[i, j] if i < b.shape[0] and j < b.shape[1] else _ZERO
                cuda.syncthreads()
                for k in range(tile):
                    left = a_tile[k * tile + y] if transpose_a else a_tile[y * tile + k]
                    right = b_tile[x * tile + k] if transpose_b else b_tile[k * tile + x]
                    total += left * right
                cuda.syncthreads()
            if inside:
                c[row, column] = total
    return matmul


def column_sum(delta: Array, gradient: Array) -> None:
    """gradient[u] += sum_b delta[b, u]: the gradient of a bias.

    delta     (batch, units) float32  in
    gradient  (units) float32         inout
    """
    size = check(delta=(delta, "batch units"), gradient=(gradient, "units"))
    launch(_column_sum, (size.units,), delta, gradient, on_cpu=_column_sum_on_cpu)


def _column_sum(u, delta, gradient):
    total = gradient[u]
    for b in range(delta.shape[0]):
        total += delta[b, u]
    gradient[u] = total


def _column_sum_on_cpu(delta, gradient):
    # Strips of columns, rows inside: delta is read along its rows (2 to 3 times the speed).
    for strip in prange((delta.shape[1] + _STRIP - 1) // _STRIP):
        total = gradient[strip * _STRIP:(strip + 1) * _STRIP]
        for b in range(delta.shape[0]):
            row = delta[b, strip * _STRIP:(strip + 1) * _STRIP]
            for u in range(total.shape[0]):
                total[u] += row[u]
