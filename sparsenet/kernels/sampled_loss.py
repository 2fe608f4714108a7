"""Losses and deltas of sampled outputs: targets as they are, negatives with their weights.

The dense part of a step is y (batch, dense), the products of the examples with the first candidates; targets are a list
of their own, entry by entry as in the batch's CSR matrix. See sampling.py for candidates.
"""

import math
from functools import cache

import numpy as np
from numba import prange

from sparsenet.device import Array, cuda, device_of, launch_pair, part, scalar
from sparsenet.kernels.head import Output
from sparsenet.kernels.rows import add
from sparsenet.shapes import check, values_or

_FLOAT64_SUMS = ("sampled_delta",)
_ZERO, _ONE, _NOTHING, _LOWEST = np.float32(0), np.float32(1), np.float64(0), np.float32(-np.inf)
_LANES = 16  # sums that a CPU's core makes side by side


def sampled_delta(output: Output, softmax: bool, scale: float, indptr: Array, data: Array | None, places: Array,
                  weights: Array, own: Array | None, bias: Array, y: Array, targets: Array, losses: Array) -> None:
    """Losses and deltas of an example's targets t, all of them, and of its negatives, weighted.

    losses[b] = sum over targets of value(y, t) + sum over negatives r of weights[r] value(y, 0), the deltas are
    scale weights[r] slope(y, 0) and scale slope(y, t). An example's targets are not among its negatives.

    A softmax is that of logits to which the logarithms of weights are added: y = weights[r] exp(z) / Z, or
    own[r] exp(z) / Z of a target, with Z = sum over targets of own[r] exp(z) + sum over negatives of weights[r] exp(z).
    Losses are sums over targets alone, deltas scale (slope(y, t) - y p) with p = sum over targets of slope(y, t).

    indptr   (batch + 1) int64          in
    data     (>= nonzeros) float32      in     targets; None: all ones
    places   (>= nonzeros) int32        in     candidate of each target
    weights  (candidates) float32       in     of negatives, from `weigh`
    own      (candidates) float32       in     of a softmax's targets; None: all are 1
    bias     (candidates) float32       in
    y        (batch, dense) float32     inout  products of the first candidates, to which bias is added; then deltas
    targets  (>= nonzeros) float32      inout  logits from `target_logits`; then deltas
    losses   (batch) float64            out
    """
    size = check(weights=(weights, "candidates"), bias=(bias, "candidates"), y=(y, "batch dense"),
                 losses=(losses, "batch"))
    if size.batch == 0:
        return
    threads, valued, row = device_of(y, weights).threads, data is not None, _softmax_row if softmax else _plain_row
    block, corrected = _softmax_on_cuda if softmax else _plain_on_cuda, own is not None
    launch_pair(row(output, valued, corrected), block(output, valued, corrected, threads), size.batch, threads,
                y.dtype.type(scale), indptr, values_or(y, data), places, weights, own if corrected else weights, bias,
                y, targets, losses)


@cache
def _weighted(output):
    """Scalar function: (weighted loss, delta) of a zero."""
    activation, value, slope = output.activation, output.value, output.slope

    @scalar
    def weighted(z, weight, scale):
        y = activation(z)
        drawn = weight > _ZERO  # what was not may be infinite
        return weight * value(y, _ZERO) if drawn else _ZERO, scale * weight * slope(y, _ZERO) if drawn else _ZERO
    return weighted


@cache
def _plain_row(output, valued, corrected):
    activation, value, slope = output.activation, output.value, output.slope
    weighted = _weighted(output)

    def sampled_delta(scale, indptr, data, places, weights, own, bias, y, targets, losses):
        for b in prange(y.shape[0]):
            row, sums = y[b], np.zeros(_LANES, np.float64)
            dense = row.shape[0]
            for k in range(indptr[b], indptr[b + 1]):
                r, t = places[k], data[k] if valued else _ONE
                if r < dense:
                    loss, _ = weighted(row[r] + bias[r], weights[r], scale)
                    sums[0] -= np.float64(loss)
                a = activation(targets[k])
                sums[0] += np.float64(value(a, t))
                targets[k] = scale * slope(a, t)
            whole = dense // _LANES * _LANES
            for r in range(0, whole, _LANES):
                for lane in range(_LANES):
                    loss, row[r + lane] = weighted(row[r + lane] + bias[r + lane], weights[r + lane], scale)
                    sums[lane] += np.float64(loss)
            for r in range(whole, dense):
                loss, row[r] = weighted(row[r] + bias[r], weights[r], scale)
                sums[r - whole] += np.float64(loss)
            for k in range(indptr[b], indptr[b + 1]):
                if places[k] < dense:
                    row[places[k]] = _ZERO
            losses[b] = sums.sum()
    return sampled_delta


@scalar
def _share(z, weight, most):
    """weight exp(z - most), and 0 for what was not drawn."""
    return weight * math.exp(z - most) if weight > _ZERO else _ZERO


@cache
def _softmax_row(output, valued, corrected):
    value, slope = output.value, output.slope

    def sampled_delta(scale, indptr, data, places, weights, own, bias, y, targets, losses):
        for b in prange(y.shape[0]):
            row, sums = y[b], np.zeros(_LANES, np.float64)
            largest = np.full(_LANES, _LOWEST, y.dtype)
            dense = row.shape[0]
            whole = dense // _LANES * _LANES
            for k in range(indptr[b], indptr[b + 1]):
                largest[0] = max(largest[0], targets[k])
                if places[k] < dense:
                    row[places[k]] = _LOWEST
            for r in range(0, whole, _LANES):
                for lane in range(_LANES):
                    z = row[r + lane] + bias[r + lane] if weights[r + lane] > _ZERO else _LOWEST
                    largest[lane] = z if z > largest[lane] else largest[lane]
            for r in range(whole, dense):
                if weights[r] > _ZERO:
                    largest[0] = max(largest[0], row[r] + bias[r])
            most = largest.max()
            for r in range(0, whole, _LANES):
                for lane in range(_LANES):
                    row[r + lane] = _share(row[r + lane] + bias[r + lane], weights[r + lane], most)
                    sums[lane] += np.float64(row[r + lane])
            for r in range(whole, dense):
                row[r] = _share(row[r] + bias[r], weights[r], most)
                sums[0] += np.float64(row[r])
            for k in range(indptr[b], indptr[b + 1]):
                targets[k] = _share(targets[k], own[places[k]] if corrected else _ONE, most)
                sums[0] += np.float64(targets[k])
            total, loss, pull = sums.sum(), _NOTHING, _NOTHING
            share = y.dtype.type(1 / total if total != 0 else 0)
            for k in range(indptr[b], indptr[b + 1]):
                targets[k] *= share
                loss += np.float64(value(targets[k], data[k] if valued else _ONE))
                pull += np.float64(slope(targets[k], data[k] if valued else _ONE))
            pulled = y.dtype.type(pull)
            for k in range(indptr[b], indptr[b + 1]):
                targets[k] = scale * (slope(targets[k], data[k] if valued else _ONE) - targets[k] * pulled)
            factor = -scale * pulled * share
            for r in range(dense):
                row[r] *= factor
            losses[b] = loss
    return sampled_delta


@scalar
def _larger(x, y):
    return max(x, y)


@cache
def _together(combine, threads):
    @part
    def together(value, partial):
        """The values of a block's threads, combined."""
        thread = cuda.threadIdx.x
        cuda.syncthreads()  # others may still read what is there
        partial[thread] = value
        cuda.syncthreads()
        half = threads // 2
        while half > 0:
            if thread < half:
                partial[thread] = combine(partial[thread], partial[thread + half])
            cuda.syncthreads()
            half //= 2
        return partial[0]
    return together


@cache
def _plain_on_cuda(output, valued, corrected, threads):
    activation, value, slope = output.activation, output.value, output.slope
    weighted, together = _weighted(output), _together(add, threads)

    def sampled_delta(scale, indptr, data, places, weights, own, bias, y, targets, losses):
        partial = cuda.shared.array(threads, np.float64)
        b, thread, dense = cuda.blockIdx.x, cuda.threadIdx.x, y.shape[1]
        sum_ = _NOTHING
        for k in range(indptr[b] + thread, indptr[b + 1], threads):
            r, t = places[k], data[k] if valued else _ONE
            if r < dense:
                loss, _ = weighted(y[b, r] + bias[r], weights[r], scale)
                sum_ -= np.float64(loss)
            a = activation(targets[k])
            sum_ += np.float64(value(a, t))
            targets[k] = scale * slope(a, t)
        cuda.syncthreads()
        for r in range(thread, dense, threads):
            loss, y[b, r] = weighted(y[b, r] + bias[r], weights[r], scale)
            sum_ += np.float64(loss)
        sum_ = together(sum_, partial)
        for k in range(indptr[b] + thread, indptr[b + 1], threads):
            if places[k] < dense:
                y[b, places[k]] = _ZERO
        if thread == 0:
            losses[b] = sum_
    return sampled_delta


@cache
def _softmax_on_cuda(output, valued, corrected, threads):
    value, slope = output.value, output.slope
    most_of, together = _together(_larger, threads), _together(add, threads)

    def sampled_delta(scale, indptr, data, places, weights, own, bias, y, targets, losses):
        partial = cuda.shared.array(threads, np.float64)
        b, thread, dense = cuda.blockIdx.x, cuda.threadIdx.x, y.shape[1]
        largest = _LOWEST
        for k in range(indptr[b] + thread, indptr[b + 1], threads):
            largest = max(largest, targets[k])
            if places[k] < dense:
                y[b, places[k]] = _LOWEST
        cuda.syncthreads()
        for r in range(thread, dense, threads):
            if weights[r] > _ZERO:
                largest = max(largest, y[b, r] + bias[r])
        most, sum_ = np.float32(most_of(np.float64(largest), partial)), _NOTHING
        for r in range(thread, dense, threads):
            y[b, r] = _share(y[b, r] + bias[r], weights[r], most)
            sum_ += np.float64(y[b, r])
        for k in range(indptr[b] + thread, indptr[b + 1], threads):
            targets[k] = _share(targets[k], own[places[k]] if corrected else _ONE, most)
            sum_ += np.float64(targets[k])
        sum_, loss, pull = together(sum_, partial), _NOTHING, _NOTHING
        share = np.float32(1 / sum_ if sum_ != 0 else 0)
        for k in range(indptr[b] + thread, indptr[b + 1], threads):
            targets[k] *= share
            loss += np.float64(value(targets[k], data[k] if valued else _ONE))
            pull += np.float64(slope(targets[k], data[k] if valued else _ONE))
        loss = together(loss, partial)
        pulled = np.float32(together(pull, partial))
        for k in range(indptr[b] + thread, indptr[b + 1], threads):
            targets[k] = scale * (slope(targets[k], data[k] if valued else _ONE) - targets[k] * pulled)
        factor = -scale * pulled * share
        for r in range(thread, dense, threads):
            y[b, r] *= factor
        if thread == 0:
            losses[b] = loss
    return sampled_delta
