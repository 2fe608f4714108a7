"""The k best items of each row, for any k."""

from functools import cache

import numpy as np
from numba import prange

from sparsenet.bfloat16 import widened
from sparsenet.compiling import summing
from sparsenet.device import Array, cuda, device_of, launch, launch_pair, part, scalar
from sparsenet.instructions import load4
from sparsenet.shapes import check, in_fours

_WORST, _ZERO = np.float32(-np.inf), np.float32(0)
_NO_ITEM = np.int32(-1)
_ZERO_KEY = np.int32(0)
_SORTED_AT_ONCE = (256, 4096)  # pairs of (item, value) that a block of CUDA threads sorts in its shared memory
_WORST_KEY = np.int32(np.array(_WORST).view(np.int32) ^ 0x7FFFFFFF)


def exclude(indptr: Array, indices: Array, scores: Array) -> None:
    """scores[b, indices[k]] = -inf for the nonzeros k of row b: these items will not be recommended.

    indptr   (batch + 1) int64       in
    indices  (nonzeros) int32        in
    scores   (batch, items) float32  inout
    """
    size = check(scores=(scores, "batch items"))
    launch(_exclude, (size.batch,), indptr, indices, scores)


def _exclude(b, indptr, indices, scores):
    for k in range(indptr[b], indptr[b + 1]):
        scores[b, indices[k]] = _WORST


def top_k(scores: Array, items: Array, values: Array) -> None:
    """items[b], values[b] = the k largest scores of row b, best first; equal scores in order of their item numbers.

    scores   (batch, items) float32  in   -inf and NaN are never chosen
    items    (batch, k) int32        out  -1 where a row has fewer than k scores to choose from
    values   (batch, k) float32      out  -inf there
    """
    size = check(scores=(scores, "batch all"), items=(items, "batch k"), values=(values, "batch k"))
    if 0 in (size.batch, size.k):
        return
    threads = device_of(scores).threads
    capacity = next((room for room in _SORTED_AT_ONCE if size.k <= room), _SORTED_AT_ONCE[-1])
    launch_pair(_top_k_on_cpu, _top_k_on_cuda(threads, capacity, in_fours(scores)), size.batch, threads, scores, items,
                values)


def score_items(activation, hidden: Array, w: Array, bias: Array, items: Array, values: Array) -> None:
    """values[b, j] = activation(hidden[b] w[i]' + bias[i]) for item i = items[b, j]: its score in float32.

    activation  scalar function z -> y
    hidden      (batch, inputs) float32    in
    w           (outputs, inputs) float32  in
    bias        (outputs) float32          in
    items       (batch, k) int32           in    -1: no item
    values      (batch, k) float32         out   -inf there
    """
    size = check(hidden=(hidden, "batch inputs"), w=(w, "outputs inputs"), bias=(bias, "outputs"),
                 items=(items, "batch k"), values=(values, "batch k"))
    launch(_score_items(activation), (size.batch, size.k), hidden, w, bias, items, values,
           on_cpu=_score_items_on_cpu(activation))


@cache
def _score_items(activation):
    def score_items(b, j, hidden, w, bias, items, values):
        item = items[b, j]
        if item < 0:
            values[b, j] = _WORST
        else:
            z = bias[item]
            for k in range(hidden.shape[1]):
                z += hidden[b, k] * w[item, k]
            values[b, j] = activation(z)
    return score_items


@cache
def _score_items_on_cpu(activation):
    def score_items(hidden, w, bias, items, values):
        for b in prange(items.shape[0]):
            for j in range(items.shape[1]):
                item = items[b, j]
                values[b, j] = activation(_dot(hidden[b], w[item]) + bias[item]) if item >= 0 else _WORST
    return score_items


@summing
def _dot(x, y):
    total = _ZERO
    for k in range(x.shape[0]):
        total += x[k] * widened(y[k])
    return total


def _top_k_on_cpu(scores, items, values):
    for b in prange(scores.shape[0]):
        heap_items, heap_values = items[b], values[b]
        heap_items[:], heap_values[:] = _NO_ITEM, _WORST
        for i in range(scores.shape[1]):
            if scores[b, i] > heap_values[0]:  # an equal one comes later in the order
                _sift_down(heap_items, heap_values, heap_items.shape[0], np.int32(i), scores[b, i])
        for end in range(heap_items.shape[0] - 1, 0, -1):
            item, value = heap_items[end], heap_values[end]
            heap_items[end], heap_values[end] = heap_items[0], heap_values[0]
            _sift_down(heap_items, heap_values, end, item, value)


@scalar
def _worse(value, item, than_value, than_item):
    """Whether the first stands later in the order; places without an item stand last."""
    return value < than_value or (value == than_value and np.uint32(item) > np.uint32(than_item))


@scalar
def _sift_down(items, values, length, item, value):
    """Replace the root of a heap, whose root is the worst, by (item, value)."""
    hole = 0
    while 2 * hole + 1 < length:
        child = 2 * hole + 1
        if child + 1 < length and _worse(values[child + 1], items[child + 1], values[child], items[child]):
            child += 1
        if not _worse(values[child], items[child], value, item):
            break
        items[hole], values[hole] = items[child], values[child]
        hole = child
    items[hole], values[hole] = item, value


@scalar
def place(score, item):
    """A number of 63 bits, different for every item, larger for what comes earlier in the order."""
    if score != score:
        key = _WORST_KEY
    elif score == _ZERO:
        key = _ZERO_KEY
    else:
        bits = np.float32(score).view(np.int32)
        key = np.int32(bits ^ 0x7FFFFFFF) if bits < 0 else bits
    return ((np.int64(key) + 0x80000000) << 31) + (0x7FFFFFFF - np.int64(item))


@scalar
def placed_item(place):
    """The item whose place it is."""
    return np.int32(0x7FFFFFFF - (place & 0x7FFFFFFF))


@scalar
def placed_score(place):
    """Its score; of zeros the positive one."""
    key = np.int32((place >> 31) - 0x80000000)
    return np.int32(key ^ 0x7FFFFFFF if key < 0 else key).view(np.float32)


@cache
def _top_k_on_cuda(threads, capacity, wide):
    # A radix selection finds what the places of the k best begin with, 8 bits at a time; then they are collected in any
    # order, and sorted.
    sort = _sort(capacity)

    def top_k(scores, items, values):
        counts = cuda.shared.array(512, np.int32)
        found = cuda.shared.array(2, np.int64)
        near_items = cuda.shared.array(capacity, np.int32)
        near_values = cuda.shared.array(capacity, np.float32)
        b, thread = cuda.blockIdx.x, cuda.threadIdx.x
        total, k = scores.shape[1], min(items.shape[1], scores.shape[1])
        prefix, above, wanted, matching = 0, 63, k, total  # places whose bits from `above` on are the prefix
        while wanted < matching:
            shift = max(above - 8, 0)
            for bin in range(thread, 256, threads):
                counts[bin] = 0
            cuda.syncthreads()
            if wide:
                for i in range(4 * thread, total, 4 * threads):
                    s0, s1, s2, s3 = load4(scores, b * total + i)
                    _count(place(s0, i), prefix, above, shift, counts)
                    _count(place(s1, i + 1), prefix, above, shift, counts)
                    _count(place(s2, i + 2), prefix, above, shift, counts)
                    _count(place(s3, i + 3), prefix, above, shift, counts)
            else:
                for i in range(thread, total, threads):
                    _count(place(scores[b, i], i), prefix, above, shift, counts)
            _sum_upwards(counts, thread, threads)
            for bin in range(thread, 256, threads):
                better = counts[bin + 1] if bin < 255 else 0
                if better < wanted <= counts[bin]:
                    found[0], found[1] = bin, better
            cuda.syncthreads()
            bin, better = found[0], found[1]
            matching, wanted = counts[bin] - better, wanted - better
            prefix, above = (prefix << (above - shift)) + bin, shift
            cuda.syncthreads()

        if thread == 0:
            found[0] = 0
        cuda.syncthreads()
        if wide:
            for i in range(4 * thread, total, 4 * threads):
                s0, s1, s2, s3 = load4(scores, b * total + i)
                _collect(s0, i, prefix, above, b, found, items, values)
                _collect(s1, i + 1, prefix, above, b, found, items, values)
                _collect(s2, i + 2, prefix, above, b, found, items, values)
                _collect(s3, i + 3, prefix, above, b, found, items, values)
        else:
            for i in range(thread, total, threads):
                _collect(scores[b, i], i, prefix, above, b, found, items, values)
        for j in range(k + thread, items.shape[1], threads):
            items[b, j], values[b, j] = _NO_ITEM, _WORST
        cuda.syncthreads()
        sort(items[b], values[b], k, near_items, near_values, thread, threads)
    return top_k


@part
def _count(place, prefix, above, shift, counts):
    if place >> above == prefix:
        cuda.atomic.add(counts, (place >> shift) & ((1 << (above - shift)) - 1), 1)


@part
def _sum_upwards(counts, thread, threads):
    """counts[bin] = the sum of counts[bin] … counts[255], by way of the array's second half."""
    reach, source = 1, 0
    while reach < 256:
        cuda.syncthreads()
        for bin in range(thread, 256, threads):
            more = counts[source + bin + reach] if bin + reach < 256 else 0
            counts[256 - source + bin] = counts[source + bin] + more
        reach, source = 2 * reach, 256 - source
    cuda.syncthreads()


@part
def _collect(score, item, prefix, above, b, found, items, values):
    if place(score, item) >> above >= prefix:
        slot = cuda.atomic.add(found, 0, 1)
        chosen = score > _WORST
        items[b, slot] = item if chosen else _NO_ITEM
        values[b, slot] = score if chosen else _WORST


@cache
def _sort(capacity):
    """Batcher's bitonic sort by a block: near each other in shared memory, farther apart where they are.

    Every comparison leaves the better one in front, so that lengths need not be powers of two.
    """
    @part
    def sort(items, values, length, near_items, near_values, thread, threads):
        size = capacity  # what will be in order: aligned groups of so many
        while size < 2 * max(length, capacity):
            stride = size // 2
            while stride >= capacity:
                _exchange(items, values, length, stride, 2 * stride == size, thread, threads)
                stride //= 2
            for first in range(0, length, capacity):
                count = min(capacity, length - first)
                for j in range(thread, count, threads):
                    near_items[j], near_values[j] = items[first + j], values[first + j]
                cuda.syncthreads()
                if size == capacity:
                    group = 2
                    while group < 2 * count:
                        _merge(near_items, near_values, count, group, True, thread, threads)
                        group *= 2
                else:
                    _merge(near_items, near_values, count, capacity, False, thread, threads)
                for j in range(thread, count, threads):
                    items[first + j], values[first + j] = near_items[j], near_values[j]
                cuda.syncthreads()
            size *= 2
    return sort


@part
def _merge(items, values, length, group, flip, thread, threads):
    """Put groups in order whose halves are (flip), or that need comparisons no farther than half a group."""
    stride = group // 2
    while stride > 0:
        _exchange(items, values, length, stride, flip and 2 * stride == group, thread, threads)
        stride //= 2


@part
def _exchange(items, values, length, stride, flip, thread, threads):
    """In groups of two strides: compare each of the first stride with its image (flip), or with its like."""
    for pair in range(thread, ((length - 1) | (2 * stride - 1)) + 1 >> 1, threads):
        low = 2 * pair - (pair & (stride - 1))
        high = low ^ (2 * stride - 1) if flip else low + stride
        if high < length and _worse(values[low], items[low], values[high], items[high]):
            items[low], items[high] = items[high], items[low]
            values[low], values[high] = values[high], values[low]
    cuda.syncthreads()
