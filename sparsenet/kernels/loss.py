"""Losses of output activations against dense or sparse targets, and their deltas.

A sparse target is zero wherever it has no entry: the kernels first treat every target as 0, then correct the nonzeros,
so that no dense copy of the targets is made.
"""

from functools import cache

import numpy as np

from sparsenet.device import Array, launch, scalar
from sparsenet.kernels.rows import add, reduce_rows
from sparsenet.shapes import check, values_or

_FLOAT64_SUMS = ("correct_loss",)  # all other kernels here compute in their arrays' type
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
