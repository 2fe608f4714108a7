"""Dense matrix products and the sums over a batch."""

from functools import cache

import numpy as np
from numba import prange

from sparsenet import cublas
from sparsenet.blocks import block, edge
from sparsenet.device import Array, cuda, device_of, launch_pair, run_on_host
from sparsenet.driver import note
from sparsenet.kernels.activation import activate
from sparsenet.kernels.tiles import PRECISIONS, Epilogue, multiply
from sparsenet.shapes import check, check_memory
from sparsenet.threads import exclusive

_ZERO = np.float32(0)
_STRIP = 256  # columns, a task of one core
_ACROSS = 32  # columns that a block of CUDA threads sums: a warp reads 128 bytes side by side


def matmul(a: Array, b: Array, c: Array, *, transpose_a: bool = False, transpose_b: bool = False,
           accumulate: bool = False, precision: str = "float32", scratch: Array | None = None) -> None:
    """c = op(a) @ op(b), op the transpose where asked for; += where accumulate.

    a  (rows, inner) or its transpose (inner, rows) float32          in
    b  (inner, columns) or its transpose (columns, inner) float32    in
    c  (rows, columns) float32                                       out or inout

    precision, scratch: as for tiles.multiply, but a CPU needs no scratch. With precision "cublas" NVIDIA's library
    does it, in float32, to compare with; that needs CUDA and `pip install 'sparsenet[cublas]'`.

    On a CPU a core makes a block of c at a time. The blocks' size is fixed: the same bits whatever the number of cores.

    Raises ValueError where shapes disagree, ImportError where cuBLAS is asked for and missing.
    """
    size = check(a=(a, "inner rows" if transpose_a else "rows inner"),
                 b=(b, "columns inner" if transpose_b else "inner columns"), c=(c, "rows columns"))
    device = device_of(a, b, c)
    if precision == "cublas":
        kinds = {str(array.dtype) for array in (a, b, c)}
        if device.name != "cuda" or kinds != {"float32"}:
            raise ValueError(f"precision: 'cublas' is for float32 arrays on CUDA, got {', '.join(sorted(kinds))} on "
                             f"{device.name}")
        if 0 in (size.rows, size.columns):
            return
        note(cublas.gemm, a, b, c, transpose_a, transpose_b, accumulate)
    elif device.name != "cpu" or precision not in PRECISIONS:
        multiply(Epilogue.store(accumulate), a, b, None, None, c, None, None, scratch, transpose_a=transpose_a,
                 transpose_b=transpose_b, precision=precision)
    elif 0 not in (size.rows, size.columns):
        check_memory(a=a, b=b, c=c)
        with exclusive:
            make = block(c.dtype, precision, transpose_a, transpose_b, size.rows, size.columns)
            run_on_host(_matmul_on_cpu(make, transpose_a, transpose_b, accumulate), a.reshape(-1), a.shape[1],
                        b.reshape(-1), b.shape[1], size.inner, c)


@cache
def _matmul_on_cpu(block, transpose_a, transpose_b, accumulate):
    def matmul(a, a_width, b, b_width, inner, c):
        rows, columns = c.shape
        side = edge(rows, columns)
        across = (columns + side - 1) // side
        flat = c.reshape(c.size)
        for tile in prange(across * ((rows + side - 1) // side)):
            row, column = tile // across * side, tile % across * side
            block(a, row if transpose_a else row * a_width, a_width,
                  b, column * b_width if transpose_b else column, b_width,
                  min(side, rows - row), inner, min(side, columns - column), flat, row * columns + column, columns,
                  accumulate)
    return matmul


def matmul_activate(value, a: Array, b: Array, bias: Array, c: Array, *, transpose_b: bool = False,
                    accumulate: bool = False, precision: str = "float32", scratch: Array | None = None) -> None:
    """c = value(a @ op(b) + bias), or value(c + a @ op(b) + bias) where accumulate; op the transpose where asked for.

    value  scalar function z -> y
    a      (rows, inner) float32                              in
    b      (inner, columns) or its transpose float32          in
    bias   (columns) float32                                  in
    c      (rows, columns) float32                            out or inout

    precision, scratch, errors: as for `matmul`.
    """
    check(a=(a, "rows inner"), b=(b, "columns inner" if transpose_b else "inner columns"), c=(c, "rows columns"),
          bias=(bias, "columns"))
    if device_of(a, b, bias, c).name == "cpu" or precision == "cublas":
        matmul(a, b, c, transpose_b=transpose_b, accumulate=accumulate, precision=precision)
        activate(value, bias, c)
    else:
        multiply(Epilogue.activate(value, accumulate), a, b, bias, None, c, None, None, scratch,
                 transpose_b=transpose_b, precision=precision)


def column_sum(delta: Array, gradient: Array) -> None:
    """gradient[u] += sum_b delta[b, u]: the gradient of a bias.

    delta     (batch, units) float32  in
    gradient  (units) float32         inout
    """
    size = check(delta=(delta, "batch units"), gradient=(gradient, "units"))
    down = max(1, 4 * device_of(delta, gradient).threads // _ACROSS)
    if size.units:
        launch_pair(_column_sum_on_cpu, _column_sum_on_cuda(down), -(-size.units // _ACROSS), (_ACROSS, down), delta,
                    gradient)


def _column_sum_on_cpu(delta, gradient):
    # Strips of columns, rows inside: delta is read along its rows (2 to 3 times the speed).
    for strip in prange((delta.shape[1] + _STRIP - 1) // _STRIP):
        total = gradient[strip * _STRIP:(strip + 1) * _STRIP]
        for b in range(delta.shape[0]):
            row = delta[b, strip * _STRIP:(strip + 1) * _STRIP]
            for u in range(total.shape[0]):
                total[u] += row[u]


@cache
def _column_sum_on_cuda(down):
    area = _ACROSS * down

    def column_sum(delta, gradient):
        partial = cuda.shared.array(area, delta.dtype)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        u, place = cuda.blockIdx.x * _ACROSS + x, y * _ACROSS + x
        inside, total = u < gradient.shape[0], _ZERO
        for b in range(y, delta.shape[0] if inside else 0, down):
            total += delta[b, u]
        partial[place] = total
        cuda.syncthreads()
        half = down // 2
        while half > 0:
            if y < half:
                partial[place] += partial[place + half * _ACROSS]
            cuda.syncthreads()
            half //= 2
        if y == 0 and inside:
            gradient[u] += partial[x]
    return column_sum
