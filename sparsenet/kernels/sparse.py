"""Sparse input: the batch is CSR, the weights are dense, and only the rows of features in the batch are touched.

The gradient needs the batch by feature: `transpose` in batches.py lists, for each feature in `features`, the examples
that contain it. They are entries indptr[r] to indptr[r + 1] of `examples`, and of `positions`, which say where the
value stands in the batch's `data`; r < touched[0].

Both directions sum listed rows of a matrix, weights or deltas, in a fixed order. On a CPU a sum stays in registers, and
rows are fetched from memory while others are added (row_sums.py). On CUDA a block of threads is `across` times `down`;
the threads across hold neighbouring units, 1 or 4 each (`width`), and the groups down share the rows.
"""

from functools import cache

import numpy as np
from numba import prange

from sparsenet.bfloat16 import key_for, random_bits, row_key, shortened, widened
from sparsenet.device import Array, cuda, device_of, launch_pair, part, scalar
from sparsenet.kernels.update import NEXT, ROOM, RUN, accesses, fetch_rows, later, regularized, step_of
from sparsenet.row_sums import add_rows
from sparsenet.shapes import check, in_fours, values_or

_ZERO = np.float32(0)
_WARP = 32  # threads that a GPU runs in step
_LONG_FLIGHT, _FLIGHT = 8, 4  # rows that a thread asks for before it adds the first, of an example or of a feature
_HALF = np.uint32(16)
_AHEAD = 16  # rows that a core asks for before it adds them


def sparse_forward(indptr: Array, indices: Array, data: Array | None, weight: Array, y: Array,
                   accumulate: bool = False) -> None:
    """y[b, u] = sum over the nonzeros k of example b of data[k] * weight[indices[k], u]; += where accumulate.

    indptr   (batch + 1) int64           in
    indices  (nonzeros) int32            in   feature numbers; repeated and unsorted ones allowed
    data     (nonzeros) float32          in   values; None: all ones
    weight   (features, units) float32   in   on a CPU also uint16: bfloat16
    y        (batch, units) float32      out or inout
    """
    size = check(weight=(weight, "features units"), y=(y, "batch units"))
    if 0 in (size.batch, size.units):
        return
    valued = data is not None
    tiles, block = _blocks(weight, y)
    launch_pair(_forward_on_cpu(valued, accumulate), _forward_on_cuda(valued, accumulate, *block),
                (size.batch, tiles), block[:2], indptr, indices, values_or(weight, data), weight, y)


def _blocks(*arrays):
    """(number of blocks side by side, (across, down, width)) for arrays (…, units)."""
    units, threads = arrays[0].shape[1], device_of(*arrays).threads
    width = 4 if in_fours(*arrays) else 1
    across = min(_WARP, threads // 2)
    return -(-units // (across * width)), (across, threads // across, width)


@cache
def _forward_on_cpu(valued, accumulate):
    add = add_rows(valued, False, _AHEAD)

    def sparse_forward(indptr, indices, data, weight, y):
        for b in prange(y.shape[0]):
            row = y[b]
            if not accumulate:
                row[:] = _ZERO
            add(row, weight, indices, indptr[b], indptr[b + 1], indptr[y.shape[0]], data, indices)
    return sparse_forward


@cache
def _forward_on_cuda(valued, accumulate, across, down, width):
    threads, span = across * down, across * width
    load, store = accesses(width)
    add = _add_rows_on_cuda(valued, False, down, width, _LONG_FLIGHT)

    def sparse_forward(indptr, indices, data, weight, y):
        listed = cuda.shared.array(threads, np.int32)  # a piece of the example's list of features …
        values = cuda.shared.array(threads, np.float32)  # … and of their values
        sums = cuda.shared.array((down, span), np.float32, alignment=16)
        total = cuda.local.array(width, np.float32)
        more = cuda.local.array(width, np.float32)
        x, group = cuda.threadIdx.x, cuda.threadIdx.y
        thread = group * across + x
        b, u = cuda.blockIdx.x, (cuda.blockIdx.y * across + x) * width
        inside = u < y.shape[1]
        for i in range(width):
            total[i] = _ZERO
        if accumulate and inside and group == 0:
            load(y, b, u, total)
        end = indptr[b + 1]
        for start in range(indptr[b], end, threads):
            count = min(threads, end - start)
            if thread < count:
                listed[thread] = indices[start + thread]
                if valued:
                    values[thread] = data[start + thread]
            cuda.syncthreads()
            if inside:
                add(group, count, listed, listed, values, weight, u, total)
            cuda.syncthreads()
        store(sums, group, x * width, total)
        cuda.syncthreads()
        if inside and group == 0:
            for other in range(1, down):
                load(sums, other, x * width, more)
                for i in range(width):
                    total[i] += more[i]
            store(y, b, u, total)
    return sparse_forward


@cache
def _add_rows_on_cuda(valued, turned, step, width, ahead):
    """total += data[k] * matrix[rows[k], u] for k = first, first + step, … < end; data[positions[k]] where turned.

    `ahead` rows are on their way at a time.
    """
    load, _ = accesses(width)

    @part
    def add_rows(first, end, rows, positions, data, matrix, u, total):
        flight = cuda.local.array((ahead, width), np.float32)
        for start in range(first, end, ahead * step):
            for j in range(ahead):
                if start + j * step < end:
                    load(matrix, rows[start + j * step], u, flight[j])
            for j in range(ahead):
                k = start + j * step
                if k < end:
                    for i in range(width):
                        if valued:
                            total[i] += (data[positions[k]] if turned else data[k]) * flight[j, i]
                        else:
                            total[i] += flight[j, i]
    return add_rows


def sparse_weight_gradient(features: Array, indptr: Array, examples: Array, positions: Array, touched: Array,
                           data: Array | None, delta: Array, gradient: Array) -> None:
    """gradient[features[r], u] += sum over the entries k of feature r of data[positions[k]] * delta[examples[k], u].

    features   (>= touched) int32          in     distinct feature numbers
    indptr     (>= touched + 1) int64      in
    examples   (>= nonzeros) int32         in
    positions  (>= nonzeros) int32         in
    touched    (1) int64                   in     number of features that are listed
    data       (nonzeros) float32          in     values in the batch's own order; None: all ones
    delta      (batch, units) float32      in     dL/dz
    gradient   (features, units) float32   inout
    """
    size = check(delta=(delta, "batch units"), gradient=(gradient, "features units"), listed=(features, "capacity"))
    if 0 in (size.capacity, size.units):
        return
    valued = data is not None
    grid, block = _blocks_by_feature(size.capacity, delta, gradient)
    launch_pair(_weight_gradient_on_cpu(valued), _weight_gradient_on_cuda(valued, *block), grid, block[:2],
                features, indptr, examples, positions, touched, values_or(delta, data), delta, gradient)


def _blocks_by_feature(capacity, *arrays):
    """(grid, (across, down, width)) to walk over features: the same however many there are in a batch."""
    tiles, block = _blocks(*arrays)
    return (min(device_of(*arrays).max_blocks, -(-capacity // block[1])), tiles), block


@cache
def _weight_gradient_on_cpu(valued):
    add, fetch = add_rows(valued, True, 0), fetch_rows(0)

    def sparse_weight_gradient(features, indptr, examples, positions, touched, data, delta, gradient):
        flat, last = gradient.reshape(gradient.size), touched[0] - 1
        for r in prange(touched[0]):
            fetch(flat, flat, np.int64(features[min(r + NEXT, last)]), gradient.shape)
            end = indptr[r + 1]
            add(gradient[features[r]], delta, examples, indptr[r], end, end, data, positions)
    return sparse_weight_gradient


@cache
def _weight_gradient_on_cuda(valued, across, down, width):
    load, store = accesses(width)
    sum_features = _sum_features(valued, across, down, width)

    def sparse_weight_gradient(features, indptr, examples, positions, touched, data, delta, gradient):
        total = cuda.local.array(width, np.float32)
        before = cuda.local.array(width, np.float32)
        u = (cuda.blockIdx.y * across + cuda.threadIdx.x) * width
        for first in range(cuda.blockIdx.x * down, touched[0], cuda.gridDim.x * down):
            sum_features(first, indptr, examples, positions, touched, data, delta, u, total)
            r = first + cuda.threadIdx.y
            if r < touched[0] and u < gradient.shape[1]:
                load(gradient, features[r], u, before)
                for i in range(width):
                    total[i] += before[i]
                store(gradient, features[r], u, total)
    return sparse_weight_gradient


@cache
def _sum_features(valued, across, down, width):
    """gradient = that of feature first + group, of which each group has its own.

    Each group sums its feature's list. Where one is longer than a warp, of a popular feature, they share all lists.
    """
    span = across * width
    load, store = accesses(width)
    add = _add_rows_on_cuda(valued, True, 1, width, _FLIGHT)

    @part
    def sum_features(first, indptr, examples, positions, touched, data, delta, u, gradient):
        sums = cuda.shared.array((down, span), np.float32, alignment=16)
        partial = cuda.local.array(width, np.float32)
        x, group = cuda.threadIdx.x, cuda.threadIdx.y
        begin, stop = min(first + group, touched[0]), min(first + group + 1, touched[0])
        together = cuda.syncthreads_or(np.int32(indptr[stop] - indptr[begin] > across))
        if together:
            begin, stop = first, min(first + down, touched[0])
        for i in range(width):
            gradient[i] = _ZERO
        for r in range(begin, stop):
            for i in range(width):
                partial[i] = _ZERO
            start, end = indptr[r], indptr[r + 1]
            if together:
                length = (end - start + down - 1) // down
                start = min(end, start + group * length)
                end = min(end, start + length)
            if u < delta.shape[1]:
                add(start, end, examples, positions, data, delta, u, partial)
            if together:
                store(sums, group, x * width, partial)
                cuda.syncthreads()
                if r == first + group:
                    for other in range(down):
                        load(sums, other, x * width, partial)
                        for i in range(width):
                            gradient[i] += partial[i]
                cuda.syncthreads()
            else:
                for i in range(width):
                    gradient[i] = partial[i]
    return sum_features


def sparse_update(rule, features: Array, indptr: Array, examples: Array, positions: Array, touched: Array,
                  data: Array | None, delta: Array, w: Array, slots: Array, l2: float, l1: float, scalars: Array,
                  numbers: int, scratch: Array, *, key: Array | None = None) -> None:
    """One optimizer step on the listed rows of w, their gradients summed on the way and never stored.

    g = sum over the entries k of feature r of data[positions[k]] * delta[examples[k], u]; then as in update.update
    for w[features[r], u]. A listed feature without entries is updated with g = 0.

    features ... delta                             as for `sparse_weight_gradient`
    rule, l2, l1, scalars, numbers                 as for update.update
    w        (features, units) float32      inout  on a CPU, w or slots or both may be uint16: bfloat16, rounded at
    slots    (count, features, units)       inout  random. slots are the optimizer's state
    scratch  (chunks, units) float32        -      working memory of the CPU's threads
    key      (1) uint64                     in     stream of this step's rounding of uint16 arrays
    """
    size = check(delta=(delta, "batch units"), w=(w, "features units"), slots=(slots, "count features units"),
                 listed=(features, "capacity"), scratch=(scratch, "chunks units"), room=(ROOM, "most"),
                 scalars=(scalars, "most"))
    if 0 in (size.capacity, size.units):
        return
    valued, number = data is not None, delta.dtype.type
    grid, block = _blocks_by_feature(size.capacity, delta, w, slots)
    launch_pair(_update_on_cpu(rule, size.count, numbers, valued),
                _update_on_cuda(rule, size.count, numbers, valued, *block), grid, block[:2],
                features, indptr, examples, positions, touched, values_or(delta, data), delta, w,
                slots.reshape(size.count * size.features, size.units), number(l2), number(l1), scalars, scratch,
                key_for(key, indptr, w, slots))


@cache
def _update_on_cpu(rule, count, numbers, valued):
    add, fetch = add_rows(valued, True, 0), fetch_rows(count)

    @scalar
    def learn(w, m, v, gradient, l2, l1, s, key, f):
        low, high = row_key(key, f)
        for u in range(w.shape[0]):
            weight, bits, more = widened(w[u]), random_bits(low, high, u), random_bits(high, low, u)
            first = widened(m[u]) if count > 0 else _ZERO
            second = widened(v[u]) if count > 1 else _ZERO
            weight, first, second = rule(weight, regularized(gradient[u], weight, l2, l1), first, second, s)
            w[u] = shortened(weight, w[u], bits)
            if count > 0:
                m[u] = shortened(first, m[u], more)
            if count > 1:
                v[u] = shortened(second, v[u], more >> _HALF)

    def sparse_update(features, indptr, examples, positions, touched, data, delta, w, slots, l2, l1, scalars, scratch,
                      keys):
        key = np.uint64(keys[0])
        chunks, total = scratch.shape[0], touched[0]
        s = (scalars[0], scalars[1], scalars[2], scalars[3], scalars[4], scalars[5], scalars[6], scalars[7])[:numbers]
        flat_w, flat_slots = w.reshape(w.size), slots.reshape(slots.size)
        for chunk in prange(chunks):
            gradient = scratch[chunk]
            for run in range(chunk * RUN, total, chunks * RUN):  # apart: neighbours are alike in popularity
                for r in range(run, min(run + RUN, total)):
                    f, coming = features[r], np.int64(features[later(r, chunks, total)])
                    fetch(flat_w, flat_slots, coming, w.shape)
                    gradient[:] = _ZERO
                    add(gradient, delta, examples, indptr[r], indptr[r + 1], indptr[r + 1], data, positions)
                    learn(w[f], slots[f] if count > 0 else gradient, slots[w.shape[0] + f] if count > 1 else gradient,
                          gradient, l2, l1, s, key, f)
    return sparse_update


@cache
def _update_on_cuda(rule, count, numbers, valued, across, down, width):
    sum_features = _sum_features(valued, across, down, width)
    step = step_of(rule, count, numbers, width)

    def sparse_update(features, indptr, examples, positions, touched, data, delta, w, slots, l2, l1, scalars, scratch,
                      keys):
        gradient = cuda.local.array(width, np.float32)
        u = (cuda.blockIdx.y * across + cuda.threadIdx.x) * width
        for first in range(cuda.blockIdx.x * down, touched[0], cuda.gridDim.x * down):
            sum_features(first, indptr, examples, positions, touched, data, delta, u, gradient)
            r = first + cuda.threadIdx.y
            if r < touched[0] and u < w.shape[1]:
                step(features[r], u, gradient, w, slots, l2, l1, scalars)
    return sparse_update
