"""Reductions over the units of each example, and the softmax built from them.

A softmax reads its logits twice: once for two numbers of each example, which ranks that hold slices of a row exchange,
and once to replace them.
"""

import math
from functools import cache

import numpy as np
from numba import prange

from sparsenet.device import Array, cuda, device_of, launch, launch_pair, scalar
from sparsenet.instructions import load4, store4
from sparsenet.shapes import check, in_fours

_FLOAT64_SUMS = ("reduce_rows", "softmax_sums")  # all other kernels here compute in their arrays' type
_NOTHING, _LOWEST = np.float64(0), np.float64(-np.inf)
_ONE = np.float32(1)
_LONG = 4096  # units
_FINITE = np.finfo(np.float32).min  # below every logit, and its difference from itself is 0


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
    threads = _threads(y)
    if size.batch:
        launch_pair(_reduce_on_cpu(term, combine), _reduce_on_cuda(term, combine, threads, in_fours(y, t)), size.batch,
                    threads, start, y, t, out)


def _threads(y):
    """In the block of a row; more where rows are long, for then a batch may be less than a GPU's worth of blocks."""
    return device_of(y).threads * (4 if y.shape[1] >= _LONG else 1)


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
def _reduce_on_cuda(term, combine, threads, wide):
    def reduce_rows(start, y, t, out):
        partial = cuda.shared.array(threads, np.float64)
        b, thread, units = cuda.blockIdx.x, cuda.threadIdx.x, y.shape[1]
        total = start
        if wide:
            for u in range(4 * thread, units, 4 * threads):
                y0, y1, y2, y3 = load4(y, b * units + u)
                t0, t1, t2, t3 = load4(t, b * units + u)
                total = combine(total, np.float64(term(y0, t0)))
                total = combine(total, np.float64(term(y1, t1)))
                total = combine(total, np.float64(term(y2, t2)))
                total = combine(total, np.float64(term(y3, t3)))
        else:
            for u in range(thread, units, threads):
                total = combine(total, np.float64(term(y[b, u], t[b, u])))
        partial[thread] = total
        cuda.syncthreads()
        half = threads // 2
        while half > 0:
            if thread < half:
                partial[thread] = combine(partial[thread], partial[thread + half])
            cuda.syncthreads()
            half //= 2
        if thread == 0:
            out[b] = partial[0]
    vars(reduce_rows)["launch_bounds"] = threads, 1  # or a user's term may take more registers than such a block has
    return reduce_rows


def softmax_sums(y: Array, largest: Array, total: Array, accumulate: bool = False) -> None:
    """largest[b] = max_u y[b, u]; total[b] = sum_u exp(y[b, u] - largest[b]), accumulated in float64.

    y        (batch, units) float32          in            logits
    largest  (batch) float32                 out or inout
    total    (batch) float32 or float64      out or inout
    accumulate: y continues rows whose beginnings gave the numbers on entry

    Source: Milakov and Gimelshein 2018, Online normalizer calculation for softmax.
    """
    size = check(y=(y, "batch units"), largest=(largest, "batch"), total=(total, "batch"))
    threads = _threads(y)
    if size.batch:
        launch_pair(_softmax_sums_on_cpu(accumulate), _softmax_sums_on_cuda(accumulate, threads, in_fours(y)),
                    size.batch, threads, y.dtype.type(_FINITE), y, largest, total)


@cache
def _softmax_sums_on_cpu(accumulate):
    def softmax_sums(lowest, y, largest, total):
        for b in prange(y.shape[0]):
            most = before = largest[b] if accumulate else lowest
            for u in range(y.shape[1]):
                most = max(most, y[b, u])
            sum_ = np.float64(total[b]) * math.exp(before - most) if accumulate else _NOTHING
            for u in range(y.shape[1]):
                sum_ += math.exp(y[b, u] - most)
            largest[b], total[b] = most, sum_
    return softmax_sums


@cache
def _softmax_sums_on_cuda(accumulate, threads, wide):
    def softmax_sums(lowest, y, largest, total):
        mosts = cuda.shared.array(threads, y.dtype)
        sums = cuda.shared.array(threads, np.float64)
        b, thread, units = cuda.blockIdx.x, cuda.threadIdx.x, y.shape[1]
        most, sum_ = lowest, _NOTHING
        if accumulate and thread == 0:
            most, sum_ = largest[b], np.float64(total[b])
        if wide:
            for u in range(4 * thread, units, 4 * threads):
                y0, y1, y2, y3 = load4(y, b * units + u)
                before, most = most, max(most, max(max(y0, y1), max(y2, y3)))
                four = (math.exp(y0 - most) + math.exp(y1 - most)) + (math.exp(y2 - most) + math.exp(y3 - most))
                sum_ = sum_ * math.exp(before - most) + four
        else:
            for u in range(thread, units, threads):
                before, most = most, max(most, y[b, u])
                sum_ = sum_ * math.exp(before - most) + math.exp(y[b, u] - most)
        mosts[thread], sums[thread] = most, sum_
        cuda.syncthreads()
        half = threads // 2
        while half > 0:
            if thread < half:
                left, right = mosts[thread], mosts[thread + half]
                most = max(left, right)
                mosts[thread] = most
                sums[thread] = sums[thread] * math.exp(left - most) + sums[thread + half] * math.exp(right - most)
            cuda.syncthreads()
            half //= 2
        if thread == 0:
            largest[b], total[b] = mosts[0], sums[0]
    vars(softmax_sums)["launch_bounds"] = threads, 1
    return softmax_sums


def softmax_rescale(local: Array, largest: Array, total: Array) -> None:
    """total *= exp(local - largest): sums of a slice of each row, made ready to be added to those of other slices.

    local    (batch) float32               in     the slice's own largest logits, from `softmax_sums`
    largest  (batch) float32               in     the whole row's
    total    (batch) float32 or float64    inout
    """
    size = check(local=(local, "batch"), largest=(largest, "batch"), total=(total, "batch"))
    launch(_softmax_rescale, (size.batch,), local, largest, total)


def _softmax_rescale(b, local, largest, total):
    total[b] *= math.exp(local[b] - largest[b])


def softmax(largest: Array, total: Array, y: Array) -> None:
    """y = exp(y - largest[b]) / total[b], in place.

    largest  (batch) float32               in     of each row: the argument of exp is never positive
    total    (batch) float32 or float64    in
    y        (batch, units) float32        inout  logits on entry, activations on return
    """
    size = check(largest=(largest, "batch"), total=(total, "batch"), y=(y, "batch units"))
    if device_of(y).name != "cpu" and in_fours(y):
        launch(_softmax_fours, (size.batch, size.units // 4), largest, total, y)
    else:
        launch(_softmax, (size.batch, size.units), largest, total, y)


def _softmax(b, u, largest, total, y):
    y[b, u] = math.exp(y[b, u] - largest[b]) / y.dtype.type(total[b])


def _softmax_fours(b, four, largest, total, y):
    i = b * y.shape[1] + 4 * four
    y0, y1, y2, y3 = load4(y, i)
    most, share = largest[b], _ONE / np.float32(total[b])
    store4(y, i, share * math.exp(y0 - most), share * math.exp(y1 - most), share * math.exp(y2 - most),
           share * math.exp(y3 - most))


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
