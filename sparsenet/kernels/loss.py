"""Losses of output activations against dense or sparse targets, and their deltas.

A sparse target is zero wherever it has no entry: the kernels first treat every target as 0, then correct the nonzeros,
so that no dense copy of the targets is made.
"""

import math
from functools import cache

import numpy as np
from numba import prange

from sparsenet.device import Array, cuda, device_of, launch, launch_pair, part, scalar
from sparsenet.instructions import load4, store4
from sparsenet.kernels.rows import add, reduce_rows
from sparsenet.shapes import check, in_fours, values_or

_FLOAT64_SUMS = ("correct_loss", "panel_delta")  # all other kernels here compute in their arrays' type
_ZERO, _ONE, _NOTHING = np.float32(0), np.float32(1), np.float64(0)


def loss_sum(value, y: Array, target: Array, out: Array) -> None:
    """out[b] = sum_u value(y[b, u], target[b, u]), accumulated in float64.

    value   scalar function (y, t) -> loss of one output unit
    y       (batch, units) float32  in   output activations
    target  (batch, units) float32  in
    out     (batch) float64         out  loss of each example
    """
    reduce_rows(value, add, _NOTHING, y, target, out)


def sparse_loss_sum(value, y: Array, indptr: Array, indices: Array, data: Array | None, out: Array) -> None:
    """out[b] = sum_u value(y[b, u], t[b, u]) for targets in CSR, accumulated in float64.

    value    scalar function (y, t) -> loss of one output unit
    y        (batch, units) float32  in   output activations
    indptr   (batch + 1) int64       in
    indices  (nonzeros) int32        in   output units
    data     (nonzeros) float32      in   targets; None: all ones
    out      (batch) float64         out  loss of each example
    """
    size = check(y=(y, "batch units"), out=(out, "batch"))
    reduce_rows(_of_zero(value), add, _NOTHING, y, y, out)
    launch(_correct_loss(value, data is not None), (size.batch,), y, indptr, indices, values_or(y, data), out)


@cache
def _of_zero(value):
    @scalar
    def value_of_zero(y, t):
        return value(y, _ZERO)
    return value_of_zero


@cache
def _correct_loss(value, valued):
    def correct_loss(b, y, indptr, indices, data, out):
        for k in range(indptr[b], indptr[b + 1]):
            a = y[b, indices[k]]
            target = data[k] if valued else _ONE
            out[b] += np.float64(value(a, target)) - np.float64(value(a, _ZERO))
    return correct_loss


def output_delta(slope, scale: float, y: Array, target: Array, delta: Array, accumulate: bool = False) -> None:
    """delta = scale * slope(y, target); += where accumulate.

    slope   scalar function (y, t) -> dL/dz of one output unit (for softmax: y dL/dy)
    scale   float                            1 / batch size for a mean over examples
    y       (batch, units) float32  in       output activations
    target  (batch, units) float32  in
    delta   (batch, units) float32  out or inout
    """
    size = check(y=(y, "batch units"), target=(target, "batch units"), delta=(delta, "batch units"))
    launch(_output_delta(slope, accumulate), (size.batch, size.units), y.dtype.type(scale), y, target, delta)


@cache
def _output_delta(slope, accumulate):
    def output_delta(b, u, scale, y, target, delta):
        before = delta[b, u] if accumulate else _ZERO
        delta[b, u] = before + scale * slope(y[b, u], target[b, u])
    return output_delta


def sparse_output_delta(slope, scale: float, y: Array, indptr: Array, indices: Array, data: Array | None,
                        delta: Array, accumulate: bool = False) -> None:
    """delta = scale * slope(y, t) for targets t in CSR; += where accumulate. Arrays as for `sparse_loss_sum`, but the
    units of an example must be distinct, and for accumulate in order.

    delta  (batch, units) float32  out or inout
    """
    size = check(y=(y, "batch units"), delta=(delta, "batch units"))
    scale, data, valued = y.dtype.type(scale), values_or(y, data), data is not None
    if accumulate:
        launch(_added_delta(slope, valued), (size.batch,), scale, y, indptr, indices, data, delta)
    else:
        launch(_zero_delta(slope), (size.batch, size.units), scale, y, delta)
        launch(_correct_delta(slope, valued), (size.batch,), scale, y, indptr, indices, data, delta)


@cache
def _zero_delta(slope):
    def zero_delta(b, u, scale, y, delta):
        delta[b, u] = scale * slope(y[b, u], _ZERO)
    return zero_delta


@cache
def _correct_delta(slope, valued):
    def correct_delta(b, scale, y, indptr, indices, data, delta):
        for k in range(indptr[b], indptr[b + 1]):
            u = indices[k]
            delta[b, u] = scale * slope(y[b, u], data[k] if valued else _ONE)
    return correct_delta


@cache
def _added_delta(slope, valued):
    # What is added cannot be corrected afterwards without loss: walk the units and the row's entries side by side.
    def added_delta(b, scale, y, indptr, indices, data, delta):
        k = indptr[b]
        for u in range(y.shape[1]):
            target = _ZERO
            if k < indptr[b + 1] and indices[k] == u:
                target = data[k] if valued else _ONE
                k += 1
            delta[b, u] += scale * slope(y[b, u], target)
    return added_delta


def panel_delta(value, slope, scale: float, first: int, indptr: Array, indices: Array, data: Array | None,
                largest: Array | None, total: Array | None, pull: Array | None, y: Array, out: Array,
                keep: bool = False) -> None:
    """out[b] = sum_u value(y[b, u], t[b, first + u]), += where first > 0; then y = scale slope(y, t), in place.

    For a softmax, y holds logits z: the same with exp(z - largest[b]) / total[b] for y, and the delta
    scale (slope(y, t) - y pull[b]). For wide outputs panel by panel; `first` is the panel's first unit.

    value    scalar function (y, t) -> loss of one output unit
    slope    scalar function (y, t) -> dL/dz of one output unit; for a softmax y dL/dy
    scale    float                               1 / batch size for a mean over examples
    indptr   (batch + 1) int64            in
    indices  (nonzeros) int32             in     units of an example's targets, in increasing order
    data     (nonzeros) float32           in     targets; None: all ones
    largest  (batch) float32              in     of whole rows of logits; None where there is no softmax
    total    (batch) float32 or float64   in     sums of exp(z - largest) over whole rows; None as well
    pull     (batch) float64              in     sums of slope(y, t) over whole rows; None as well
    y        (batch, units) float32       inout  activations or logits of units first, first + 1, …
    out      (batch) float64              out or inout
    keep: leave y as it is; then pull may be None

    Raises ValueError where a softmax lacks one of its numbers.
    """
    size = check(y=(y, "batch units"), out=(out, "batch"))
    rows = {"largest": largest, "total": total, "pull": out if keep else pull}
    for name, row in rows.items() if largest is not None else ():
        if row is None:
            raise ValueError(f"{name}: expected an array of {size.batch}, as a softmax needs it, got None")
        check(y=(y, "batch units"), **{name: (row, "batch")})
    if size.batch == 0:
        return
    threads, kind = device_of(y).threads, (value, slope, largest is not None, keep, data is not None)
    launch_pair(_panel_on_cpu(*kind), _panel_on_cuda(*kind, threads, in_fours(y)), size.batch, threads,
                y.dtype.type(scale), first, indptr, indices, values_or(y, data),
                *(out if row is None else row for row in rows.values()), y, out)


@cache
def _unit(value, slope, softmax, keep):
    """Scalar function: (loss, delta) of one unit."""
    @scalar
    def unit(y, t, scale, largest, share, pull):
        if softmax:
            y = share * math.exp(y - largest)
        if keep:
            delta = y
        elif softmax:
            delta = scale * (slope(y, t) - y * pull)
        else:
            delta = scale * slope(y, t)
        return np.float64(value(y, t)), delta
    return unit


@cache
def _panel_on_cpu(value, slope, softmax, keep, valued):
    unit = _unit(value, slope, softmax, keep)

    def panel_delta(scale, first, indptr, indices, data, largest, total, pull, y, out):
        for b in prange(y.shape[0]):
            row = y[b]
            most = largest[b] if softmax else scale
            share = y.dtype.type(1 / total[b]) if softmax else scale
            pulled = y.dtype.type(pull[b]) if softmax else scale
            sum_ = out[b] if first > 0 else _NOTHING
            entries = indices[indptr[b]:indptr[b + 1]]
            end = indptr[b] + np.searchsorted(entries, first + len(row))
            u = 0
            for k in range(indptr[b] + np.searchsorted(entries, first), end + 1):  # the zeros before an entry, then it
                stop = indices[k] - first if k < end else len(row)
                for v in range(u, stop):
                    loss, delta = unit(row[v], _ZERO, scale, most, share, pulled)
                    sum_ += loss
                    if not keep:
                        row[v] = delta
                if k < end:
                    loss, delta = unit(row[stop], data[k] if valued else _ONE, scale, most, share, pulled)
                    sum_ += loss
                    if not keep:
                        row[stop] = delta
                u = stop + 1
            out[b] = sum_
    return panel_delta


@cache
def _panel_on_cuda(value, slope, softmax, keep, valued, threads, wide):
    # A block has a row, and lays out the targets of a segment of it in shared memory.
    unit, segment = _unit(value, slope, softmax, keep), 4 * threads

    def panel_delta(scale, first, indptr, indices, data, largest, total, pull, y, out):
        targets = cuda.shared.array(segment, y.dtype, 16)
        partial = cuda.shared.array(threads, np.float64)
        b, thread, units = cuda.blockIdx.x, cuda.threadIdx.x, y.shape[1]
        most = largest[b] if softmax else scale
        share = y.dtype.type(1 / total[b]) if softmax else scale
        pulled = y.dtype.type(pull[b]) if softmax else scale
        sum_ = _NOTHING
        begin = first_from(indices, indptr[b], indptr[b + 1], first)
        for start in range(0, units, segment):
            count = min(segment, units - start)
            end = first_from(indices, begin, indptr[b + 1], first + start + count)
            for j in range(thread, count, threads):
                targets[j] = _ZERO
            cuda.syncthreads()
            for k in range(begin + thread, end, threads):
                targets[indices[k] - first - start] = data[k] if valued else _ONE
            cuda.syncthreads()
            begin = end
            if wide:
                j, i = 4 * thread, b * units + start + 4 * thread
                if j < count:
                    y0, y1, y2, y3 = load4(y, i)
                    t0, t1, t2, t3 = load4(targets, j)
                    loss0, y0 = unit(y0, t0, scale, most, share, pulled)
                    loss1, y1 = unit(y1, t1, scale, most, share, pulled)
                    loss2, y2 = unit(y2, t2, scale, most, share, pulled)
                    loss3, y3 = unit(y3, t3, scale, most, share, pulled)
                    sum_ += (loss0 + loss1) + (loss2 + loss3)
                    if not keep:
                        store4(y, i, y0, y1, y2, y3)
            else:
                for j in range(thread, count, threads):
                    loss, delta = unit(y[b, start + j], targets[j], scale, most, share, pulled)
                    sum_ += loss
                    if not keep:
                        y[b, start + j] = delta
            cuda.syncthreads()
        partial[thread] = sum_
        cuda.syncthreads()
        half = threads // 2
        while half > 0:
            if thread < half:
                partial[thread] += partial[thread + half]
            cuda.syncthreads()
            half //= 2
        if thread == 0:
            out[b] = partial[0] + (out[b] if first > 0 else _NOTHING)
    return panel_delta


@part
def first_from(indices, begin, end, unit):
    """The first of the places begin … end - 1 of sorted indices that names the unit or a later one; end if none."""
    while begin < end:
        middle = (begin + end) // 2
        if indices[middle] < unit:
            begin = middle + 1
        else:
            end = middle
    return begin
