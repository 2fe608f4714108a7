"""Reductions over the units of each example, and the softmax built from them.

A softmax is three kernels (largest, exponential, divide) so that ranks that hold slices of a row can exchange one
number per example between them.
"""

import math
from functools import cache

import numpy as np
from numba import prange

from sparsenet.device import Array, cuda, device_of, launch, launch_pair, scalar
from sparsenet.shapes import check

_FLOAT64_SUMS = ("reduce_rows",)  # all other kernels here compute in their arrays' type
_NOTHING, _LOWEST = np.float64(0), np.float64(-np.inf)


@scalar
def _first(y, t):
    return y


@scalar
def add(x, y):
    """x + y, for `reduce_rows`."""
    return x + y


@scalar
def _larger(x, y):
    return max(x, y)


def row_sum(y: Array, out: Array) -> None:
    """out[b] = sum_u y[b, u], accumulated in float64.

    y    (batch, units) float32        in
    out  (batch) float32 or float64    out
    """
    reduce_rows(_first, add, _NOTHING, y, y, out)


def row_max(y: Array, out: Array) -> None:
    """out[b] = max_u y[b, u]; arguments as for `row_sum`."""
    reduce_rows(_first, _larger, _LOWEST, y, y, out)


def reduce_rows(term, combine, start: np.float64, y: Array, t: Array, out: Array) -> None:
    """out[b] = combine over u of term(y[b, u], t[b, u]), beginning with start, in float64.

    term     scalar function (y, t) -> float
    combine  scalar function, associative and commutative up to rounding
    y, t     (batch, units) float32        in
    out      (batch) float32 or float64    out
    """
    size = check(y=(y, "batch units"), t=(t, "batch units"), out=(out, "batch"))
    threads = device_of(y).threads
    if size.batch:
        launch_pair(_reduce_on_cpu(term, combine), _reduce_on_cuda(term, combine, threads), size.batch, threads,
                    start, y, t, out)


@cache
def _reduce_on_cpu(term, combine):
    def reduce_rows(start, y, t, out):
        for b in prange(y.shape[0]):
            total = start
            for u in range(y.shape[1]):
                total = combine(total, np.float64(term(y[b, u], t[b, u])))
            out[b] = total
    return reduce_rows


@cache
def _reduce_on_cuda(term, combine, threads):
    def reduce_rows(start, y, t, out):
        part = cuda.shared.array(threads, np.float64)
        b, thread = cuda.blockIdx.x, cuda.threadIdx.x
        total = start
        for u in range(thread, y.shape[1], threads):
            total = combine(total, np.float64(term(y[b, u], t[b, u])))
        part[thread] = total
        cuda.syncthreads()
        half = threads // 2
        while half > 0:
            if thread < half:
                part[thread] = combine(part[thread], part[thread + half])
            cuda.syncthreads()
            half //= 2
        if thread == 0:
            out[b] = part[0]
    return reduce_rows


def row_exp(largest: Array, y: Array) -> None:
    """y = exp(y - largest[b]), in place.

    largest  (batch) float32         in     of each row: the argument of exp is never positive
    y        (batch, units) float32  inout  logits on entry
    """
    size = check(largest=(largest, "batch"), y=(y, "batch units"))
    launch(_row_exp, (size.batch, size.units), largest, y)


def _row_exp(b, u, largest, y):
    y[b, u] = math.exp(y[b, u] - largest[b])


def row_divide(divisor: Array, y: Array) -> None:
    """y /= divisor[b], in place.

    divisor  (batch) float32         in
    y        (batch, units) float32  inout
    """
    size = check(divisor=(divisor, "batch"), y=(y, "batch units"))
    launch(_row_divide, (size.batch, size.units), divisor, y)


def _row_divide(b, u, divisor, y):
    y[b, u] /= divisor[b]


def softmax_pull(y: Array, delta: Array) -> None:
    """delta *= y: the first half of the softmax's backward pass, q[b, u] = y[b, u] dL/dy[b, u].

    y      (batch, units) float32  in     softmax activations
    delta  (batch, units) float32  inout  dL/dy on entry, q on return
    """
    size = check(y=(y, "batch units"), delta=(delta, "batch units"))
    launch(_softmax_pull, (size.batch, size.units), y, delta)


def _softmax_pull(b, u, y, delta):
    delta[b, u] *= y[b, u]


def softmax_delta(total: Array, y: Array, delta: Array) -> None:
    """delta -= y * total[b]: the second half, dL/dz = q - y sum_u q.

    total  (batch) float32         in     sums of q over the units
    y      (batch, units) float32  in     softmax activations
    delta  (batch, units) float32  inout  q on entry, dL/dz on return
    """
    size = check(total=(total, "batch"), y=(y, "batch units"), delta=(delta, "batch units"))
    launch(_softmax_delta, (size.batch, size.units), total, y, delta)


def _softmax_delta(b, u, total, y, delta):
    delta[b, u] -= y[b, u] * total[b]
