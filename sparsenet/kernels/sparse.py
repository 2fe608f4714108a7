"""Sparse input: the batch is CSR, the weights are dense, and only the rows of features in the batch are touched.

The gradient needs the batch by feature: `transpose` in batches.py lists, for each feature in `features`, the examples
that contain it. They are entries indptr[r] to indptr[r + 1] of `examples`, and of `positions`, which say where the
value stands in the batch's `data`.

On a CPU the loop over units goes inside, so that each row of weights is read once, front to back.
"""

from functools import cache

import numpy as np
from numba import prange

from sparsenet.device import Array, launch, scalar
from sparsenet.kernels.update import regularized
from sparsenet.shapes import check, values_or

_ZERO = np.float32(0)


def sparse_forward(indptr: Array, indices: Array, data: Array | None, weight: Array, y: Array,
                   accumulate: bool = False) -> None:
    """y[b, u] = sum over the nonzeros k of example b of data[k] * weight[indices[k], u]; += where accumulate.

    indptr   (batch + 1) int64           in
    indices  (nonzeros) int32            in   feature numbers; repeated and unsorted ones allowed
    data     (nonzeros) float32          in   values; None: all ones
    weight   (features, units) float32   in
    y        (batch, units) float32      out or inout
    """
    size = check(weight=(weight, "features units"), y=(y, "batch units"))
    valued = data is not None
    launch(_forward(valued, accumulate), (size.batch, size.units), indptr, indices, values_or(weight, data), weight, y,
           on_cpu=_forward_on_cpu(valued, accumulate))


@cache
def _forward(valued, accumulate):
    def sparse_forward(b, u, indptr, indices, data, weight, y):
        total = y[b, u] if accumulate else _ZERO
        for k in range(indptr[b], indptr[b + 1]):
            total += data[k] * weight[indices[k], u] if valued else weight[indices[k], u]
        y[b, u] = total
    return sparse_forward


@cache
def _forward_on_cpu(valued, accumulate):
    def sparse_forward(indptr, indices, data, weight, y):
        for b in prange(y.shape[0]):
            if not accumulate:
                y[b] = _ZERO
            for k in range(indptr[b], indptr[b + 1]):
                row = weight[indices[k]]
                for u in range(y.shape[1]):
                    y[b, u] += data[k] * row[u] if valued else row[u]
    return sparse_forward


def sparse_weight_gradient(features: Array, indptr: Array, examples: Array, positions: Array, data: Array | None,
                           delta: Array, gradient: Array) -> None:
    """gradient[features[r], u] += sum over the entries k of feature r of data[positions[k]] * delta[examples[k], u].

    features   (touched) int32             in     distinct feature numbers
    indptr     (touched + 1) int64         in
    examples   (nonzeros) int32            in
    positions  (nonzeros) int32            in
    data       (nonzeros) float32          in     values in the batch's own order; None: all ones
    delta      (batch, units) float32      in     dL/dz
    gradient   (features, units) float32   inout
    """
    size = check(delta=(delta, "batch units"), gradient=(gradient, "features units"), listed=(features, "touched"))
    valued = data is not None
    launch(_weight_gradient(valued), (size.touched, size.units), features, indptr, examples, positions,
           values_or(delta, data), delta, gradient, on_cpu=_weight_gradient_on_cpu(valued))


@cache
def _weight_gradient(valued):
    def sparse_weight_gradient(r, u, features, indptr, examples, positions, data, delta, gradient):
        total = gradient[features[r], u]
        for k in range(indptr[r], indptr[r + 1]):
            total += data[positions[k]] * delta[examples[k], u] if valued else delta[examples[k], u]
        gradient[features[r], u] = total
    return sparse_weight_gradient


@cache
def _weight_gradient_on_cpu(valued):
    add_feature = _add_feature(valued)

    def sparse_weight_gradient(features, indptr, examples, positions, data, delta, gradient):
        for r in prange(features.shape[0]):
            add_feature(indptr[r], indptr[r + 1], examples, positions, data, delta, gradient[features[r]])
    return sparse_weight_gradient


@cache
def _add_feature(valued):
    @scalar
    def add_feature(start, end, examples, positions, data, delta, row):
        for k in range(start, end):
            source = delta[examples[k]]
            for u in range(row.shape[0]):
                row[u] += data[positions[k]] * source[u] if valued else source[u]
    return add_feature


def sparse_update(rule, features: Array, indptr: Array, examples: Array, positions: Array, data: Array | None,
                  delta: Array, w: Array, slots: Array, l2: float, l1: float, scalars: tuple[float, ...],
                  scratch: Array) -> None:
    """One optimizer step on the listed rows of w, their gradients summed on the way and never stored.

    g = sum over the entries k of feature r of data[positions[k]] * delta[examples[k], u]; then as in update.update
    for w[features[r], u]. A listed feature without entries is updated with g = 0.

    features ... delta                             as for `sparse_weight_gradient`
    rule, l2, l1, scalars                          as for update.update
    w        (features, units) float32      inout
    slots    (count, features, units)       inout  the optimizer's state
    scratch  (chunks, units) float32        -      working memory of the CPU's threads
    """
    size = check(delta=(delta, "batch units"), w=(w, "features units"), slots=(slots, "count features units"),
                 listed=(features, "touched"), scratch=(scratch, "chunks units"))
    valued, number = data is not None, w.dtype.type
    launch(_sparse_update(rule, size.count, valued), (size.touched, size.units), features, indptr, examples, positions,
           values_or(delta, data), delta, w, slots, number(l2), number(l1), tuple(number(s) for s in scalars), scratch,
           on_cpu=_sparse_update_on_cpu(rule, size.count, valued))


@cache
def _sparse_update(rule, count, valued):
    def sparse_update(r, u, features, indptr, examples, positions, data, delta, w, slots, l2, l1, scalars, scratch):
        gradient = _ZERO
        for k in range(indptr[r], indptr[r + 1]):
            gradient += data[positions[k]] * delta[examples[k], u] if valued else delta[examples[k], u]
        f = features[r]
        m = slots[0, f, u] if count > 0 else _ZERO
        v = slots[1, f, u] if count > 1 else _ZERO
        w[f, u], m, v = rule(w[f, u], regularized(gradient, w[f, u], l2, l1), m, v, scalars)
        if count > 0:
            slots[0, f, u] = m
        if count > 1:
            slots[1, f, u] = v
    return sparse_update


@cache
def _sparse_update_on_cpu(rule, count, valued):
    add_feature = _add_feature(valued)

    def sparse_update(features, indptr, examples, positions, data, delta, w, slots, l2, l1, scalars, scratch):
        chunks = scratch.shape[0]
        for chunk in prange(chunks):
            gradient = scratch[chunk]
            for r in range(chunk, features.shape[0], chunks):  # strided: neighbours are alike in popularity
                gradient[:] = _ZERO
                add_feature(indptr[r], indptr[r + 1], examples, positions, data, delta, gradient)
                f = features[r]
                for u in range(w.shape[1]):
                    m = slots[0, f, u] if count > 0 else _ZERO
                    v = slots[1, f, u] if count > 1 else _ZERO
                    w[f, u], m, v = rule(w[f, u], regularized(gradient[u], w[f, u], l2, l1), m, v, scalars)
                    if count > 0:
                        slots[0, f, u] = m
                    if count > 1:
                        slots[1, f, u] = v
    return sparse_update
