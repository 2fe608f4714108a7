"""The k best items of each row, for any k."""

from functools import cache

import numpy as np
from numba import prange

from sparsenet.device import Array, cuda, device_of, launch, launch_pair, scalar
from sparsenet.shapes import check

_WORST, _ZERO = np.float32(-np.inf), np.float32(0)
_NO_ITEM = np.int32(-1)
_ZERO_KEY = np.int32(0)
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


def top_k(scores: Array, items: Array, values: Array, scratch: Array) -> None:
    """items[b], values[b] = the k largest scores of row b, best first; equal scores in order of their item numbers.

    scores   (batch, items) float32  in   -inf and NaN are never chosen
    items    (batch, k) int32        out  -1 where a row has fewer than k scores to choose from
    values   (batch, k) float32      out  -inf there
    scratch  (batch, k) int32        -    working memory on CUDA
    """
    size = check(scores=(scores, "batch all"), items=(items, "batch k"), values=(values, "batch k"),
                 scratch=(scratch, "batch k"))
    if 0 in (size.batch, size.k):
        return
    threads = device_of(scores).threads
    launch_pair(_top_k_on_cpu, _top_k_on_cuda(threads), size.batch, threads, scores, scores.view(np.int32), items,
                values, scratch)


def _top_k_on_cpu(scores, bits, items, values, scratch):
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
def _key(score, bits):
    """An int32 that sorts as the score does; NaN as -inf, -0 as 0."""
    if score != score:
        return _WORST_KEY
    if score == _ZERO:
        return _ZERO_KEY
    return np.int32(bits ^ 0x7FFFFFFF) if bits < 0 else np.int32(bits)


@cache
def _top_k_on_cuda(threads):
    # A radix selection: four passes of 8 bits find the key of the k-th best; then its betters and the first of its
    # equals are collected in order, and each finds its rank by counting.
    counters = 256

    def top_k(scores, bits, items, values, scratch):
        histogram = cuda.shared.array(counters, np.int32)
        betters = cuda.shared.array(threads, np.int32)
        equals = cuda.shared.array(threads, np.int32)
        found = cuda.shared.array(2, np.int64)  # the high bits of the k-th key, how many of its equals are wanted
        b, thread = cuda.blockIdx.x, cuda.threadIdx.x
        total, k = scores.shape[1], min(items.shape[1], scores.shape[1])
        if thread == 0:
            found[0], found[1] = 0, k
        for shift in range(24, -8, -8):
            for bin in range(thread, counters, threads):
                histogram[bin] = 0
            cuda.syncthreads()
            for i in range(thread, total, threads):
                key = np.int64(_key(scores[b, i], bits[b, i])) + 2147483648
                if key >> (shift + 8) == found[0]:
                    cuda.atomic.add(histogram, (key >> shift) & 255, 1)
            cuda.syncthreads()
            if thread == 0:
                bin, wanted = 255, found[1]
                while histogram[bin] < wanted:
                    wanted -= histogram[bin]
                    bin -= 1
                found[0], found[1] = (found[0] << 8) + bin, wanted
            cuda.syncthreads()
        threshold, ties = found[0], found[1]

        start, end = thread * total // threads, (thread + 1) * total // threads
        better, equal = 0, 0
        for i in range(start, end):
            key = np.int64(_key(scores[b, i], bits[b, i])) + 2147483648
            better += key > threshold
            equal += key == threshold
        betters[thread], equals[thread] = better, equal
        cuda.syncthreads()
        better, equal = 0, 0
        for other in range(thread):
            better += betters[other]
            equal += equals[other]
        for i in range(start, end):
            key = np.int64(_key(scores[b, i], bits[b, i])) + 2147483648
            if key > threshold:
                scratch[b, better] = i
                better += 1
            elif key == threshold:
                if equal < ties:
                    scratch[b, k - ties + equal] = i
                equal += 1
        cuda.syncthreads()

        for j in range(thread, items.shape[1], threads):
            if j >= k:
                items[b, j], values[b, j] = _NO_ITEM, _WORST
                continue
            i = scratch[b, j]
            key = _key(scores[b, i], bits[b, i])
            rank = 0
            for other in range(k):
                rival = scratch[b, other]
                rival_key = _key(scores[b, rival], bits[b, rival])
                rank += rival_key > key or (rival_key == key and rival < i)
            chosen = key > _WORST_KEY
            items[b, rank] = i if chosen else _NO_ITEM
            values[b, rank] = scores[b, i] if chosen else _WORST
    return top_k
