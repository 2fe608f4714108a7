"""Random masks on hidden activations (dropout) and on sparse input (denoising).

A mask is never stored: the counter-based generator draws it again in the backward pass.
"""

from functools import cache

import numpy as np

from sparsenet.device import Array, launch
from sparsenet.kernels.random import keeps
from sparsenet.shapes import check

_ZERO, _ONE = np.float32(0), np.float32(1)


def dropout(keys: Array, drop: float, y: Array, first: int = 0, total: int | None = None) -> None:
    """y *= mask / (1 - drop), mask = 1 with probability 1 - drop (Srivastava et al. 2014, scaled in training).

    keys   (1) uint64              in        stream of this node and step, in an array so that no launch of a step
                                             differs from those of the step before
    drop   float                             in [0, 1)
    y      (batch, units) float32  inout     activations
    first  int                               global number of the first unit, where y is a slice of units
    total  int                               global number of units; default: those of y
    """
    size = check(y=(y, "batch units"))
    launch(_dropout, (size.batch, size.units), keys, y.dtype.type(drop), first,
           size.units if total is None else total, y)


def _dropout(b, u, keys, drop, first, total, y):
    kept = keeps(keys[0], np.uint64(b) * np.uint64(total) + np.uint64(first + u), drop)
    y[b, u] = y[b, u] / (_ONE - drop) if kept else _ZERO


def dropped_delta(slope, keys: Array, drop: float, y: Array, delta: Array, first: int = 0,
                  total: int | None = None) -> None:
    """delta *= slope(a) * mask / (1 - drop), where y = a * mask / (1 - drop) is what `dropout` left.

    slope  scalar function a -> f'(z)
    y      (batch, units) float32  in        activations after dropout
    delta  (batch, units) float32  inout     dL/dy on entry, dL/dz on return
    Other arguments as for `dropout`.
    """
    size = check(y=(y, "batch units"), delta=(delta, "batch units"))
    launch(_dropped_delta(slope), (size.batch, size.units), keys, y.dtype.type(drop), first,
           size.units if total is None else total, y, delta)


@cache
def _dropped_delta(slope):
    def dropped_delta(b, u, keys, drop, first, total, y, delta):
        if keeps(keys[0], np.uint64(b) * np.uint64(total) + np.uint64(first + u), drop):
            delta[b, u] *= slope(y[b, u] * (_ONE - drop)) / (_ONE - drop)
        else:
            delta[b, u] = _ZERO
    return dropped_delta


def denoise(keys: Array, drop: float, features: int, indptr: Array, indices: Array, data: Array | None,
            noisy: Array) -> None:
    """noisy[k] = data[k] * mask / (1 - drop) for the nonzeros of a CSR batch (Vincent et al. 2008; DSSTNE Denoising).

    keys      (1) uint64           in        stream of this input and step
    drop      float                          in [0, 1)
    features  int                            global width of the input
    indptr    (batch + 1) int64    in
    indices   (nonzeros) int32     in        global feature numbers
    data      (nonzeros) float32   in        values; None: all ones
    noisy     (nonzeros) float32   out
    """
    check(indices=(indices, "nonzeros"), noisy=(noisy, "nonzeros"))
    launch(_denoise(data is not None), (indptr.shape[0] - 1,), keys, noisy.dtype.type(drop), features, indptr, indices,
           noisy if data is None else data, noisy)


@cache
def _denoise(valued):
    def denoise(b, keys, drop, features, indptr, indices, data, noisy):
        for k in range(indptr[b], indptr[b + 1]):
            kept = keeps(keys[0], np.uint64(b) * np.uint64(features) + np.uint64(indices[k]), drop)
            value = data[k] if valued else _ONE
            noisy[k] = value / (_ONE - drop) if kept else _ZERO
    return denoise
