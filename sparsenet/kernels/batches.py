"""Cutting batches out of a CSR matrix, and turning them by feature.

`gather_rows`, `transpose` and `transpose_all` run on the host, serially. `sorted_transpose` and `sorted_transpose_all`
run on a GPU: a stable radix sort of the entries by feature, after which each feature's list is a run of equal keys.
Every block of threads has a tile, a part of the entries, and as many threads as there are digits, values of some bits
of the key. A pass counts the digits of each tile, which tells where a tile's entries of each digit belong; then a
thread takes an entry, and counts those before it in the tile. That needs no memory and no work for features that the
batch does not name.
"""

from functools import cache

import numpy as np

from sparsenet.device import Array, cuda, device_of, launch, launch_pair, part, run_on_host
from sparsenet.kernels.loss import first_from
from sparsenet.shapes import check

_FLIGHT = 16  # numbers that a thread asks for before it adds the first


def gather_rows(rows: Array, indptr: Array, indices: Array, data: Array, out_indptr: Array, out_indices: Array,
                out_data: Array) -> None:
    """Rows `rows` of a CSR matrix, in that order, as a CSR matrix.

    rows                       (batch) int64                        in
    indptr, indices, data      CSR; data of length 0: all ones      in
    out_indptr                 (batch + 1) int64                    out
    out_indices, out_data      at least as long as the rows need    out
    """
    check(rows=(rows, "batch"))
    run_on_host(_gather_rows, rows, indptr, indices, data, out_indptr, out_indices, out_data)


def _gather_rows(rows, indptr, indices, data, out_indptr, out_indices, out_data):
    end = 0
    out_indptr[0] = 0
    for b in range(rows.shape[0]):
        for k in range(indptr[rows[b]], indptr[rows[b] + 1]):
            out_indices[end] = indices[k]
            if data.shape[0] > 0:
                out_data[end] = data[k]
            end += 1
        out_indptr[b + 1] = end


def transpose(indptr: Array, indices: Array, count: Array, features: Array, out_indptr: Array, examples: Array,
              positions: Array, touched: Array) -> None:
    """The batch by feature: entries of features[r] are out_indptr[r] to out_indptr[r + 1] of examples and positions.

    Features stand in the order in which the batch first names them, entries in the order of the batch.

    indptr, indices      CSR of the batch                                      in
    count                (all features) int64, zeros on entry and on return    -
    features             (>= distinct features) int32                          out
    out_indptr           (>= distinct features + 1) int64                      out
    examples, positions  (>= nonzeros) int32                                   out  row, and place in `indices`
    touched              (1) int64                                             out  number of distinct features
    """
    run_on_host(_transpose, indptr, indices, count, features, out_indptr, examples, positions, touched)


def _transpose(indptr, indices, count, features, out_indptr, examples, positions, touched):
    rows = indptr.shape[0] - 1
    distinct = 0
    for k in range(indptr[rows]):
        f = indices[k]
        if count[f] == 0:
            features[distinct] = f
            distinct += 1
        count[f] += 1
    out_indptr[0] = 0
    for r in range(distinct):  # from here on, count says where a feature's next entry goes
        f = features[r]
        out_indptr[r + 1] = out_indptr[r] + count[f]
        count[f] = out_indptr[r]
    for b in range(rows):
        for k in range(indptr[b], indptr[b + 1]):
            place = count[indices[k]]
            examples[place], positions[place] = b, k
            count[indices[k]] += 1
    for r in range(distinct):
        count[features[r]] = 0
    touched[0] = distinct


def transpose_all(indptr: Array, indices: Array, out_indptr: Array, examples: Array, positions: Array) -> None:
    """As `transpose`, for every feature in order, those without entries included.

    out_indptr  (all features + 1) int64  out
    """
    run_on_host(_transpose_all, indptr, indices, out_indptr, examples, positions)


def _transpose_all(indptr, indices, out_indptr, examples, positions):
    rows = indptr.shape[0] - 1
    out_indptr[:] = 0
    for k in range(indptr[rows]):
        out_indptr[indices[k] + 1] += 1
    for f in range(out_indptr.shape[0] - 1):
        out_indptr[f + 1] += out_indptr[f]
    for b in range(rows):
        for k in range(indptr[b], indptr[b + 1]):
            place = out_indptr[indices[k]]
            examples[place], positions[place] = b, k
            out_indptr[indices[k]] += 1
    for f in range(out_indptr.shape[0] - 1, 0, -1):
        out_indptr[f] = out_indptr[f - 1]
    out_indptr[0] = 0


def sorted_transpose(total: int, indptr: Array, indices: Array, scratch_counts: Array, scratch_keys: Array,
                     features: Array, out_indptr: Array, examples: Array, positions: Array, touched: Array) -> None:
    """As `transpose`, on a GPU; features stand in increasing order.

    total                int                                                   number of all features
    indptr, indices      CSR of the batch; indptr says how many are valid      in
    scratch_counts       (tiles, digits) int32, digits a power of 2            -    1 block a tile, 1 thread a digit
    scratch_keys         (2, room) int32, room >= nonzeros                     -
    features             (>= distinct features) int32                          out
    out_indptr           (>= distinct features + 1) int64                      out
    examples, positions  (room) int32                                          out  row, and place in `indices`
    touched              (1) int64                                             out  number of distinct features

    Source of the passes: Satish et al. 2009, Designing efficient sorting algorithms for manycore GPUs. Raises TypeError
    on a CPU, ValueError for digits that are no power of 2.
    """
    in_order = _sort(total, indptr, indices, scratch_counts, scratch_keys, examples, positions)
    tiles, digits = scratch_counts.shape
    _on_gpu(_count_features(digits), tiles, digits, indptr, in_order, scratch_counts)
    _on_gpu(_list_features(digits), tiles, digits, indptr, in_order, positions, scratch_counts, features, out_indptr,
            examples, touched)


def sorted_transpose_all(indptr: Array, indices: Array, scratch_counts: Array, scratch_keys: Array, out_indptr: Array,
                         examples: Array, positions: Array) -> None:
    """As `transpose_all`, on a GPU; arguments and errors as for `sorted_transpose`.

    out_indptr  (all features + 1) int64  out
    """
    total = out_indptr.shape[0] - 1
    in_order = _sort(total, indptr, indices, scratch_counts, scratch_keys, examples, positions)
    launch(_list_every_feature, (max(total + 1, examples.shape[0]),), indptr, in_order, positions, out_indptr, examples)


def _on_gpu(kernel, blocks, threads, *args):
    launch_pair(kernel, kernel, blocks, threads, *args)


def _sort(total, indptr, indices, counts, keys, examples, positions):
    """Stable sort of the entries by feature: positions, and the sorted features, one of the two rows of keys."""
    check(scratch_counts=(counts, "tiles digits"), scratch_keys=(keys, "two room"), examples=(examples, "room"),
          positions=(positions, "room"))
    tiles, digits = counts.shape
    if device_of(indptr, counts).name == "cpu":
        raise TypeError("sorted_transpose: expected arrays on a GPU; transpose is for the host")
    if digits < 2 or digits & (digits - 1):
        raise ValueError(f"scratch_counts: expected a power of 2 digits, got shape {tuple(counts.shape)}")
    bits = digits.bit_length() - 1
    passes = max(1, -(-(total - 1).bit_length() // bits))
    source, places = indices, positions
    for n in range(passes):
        last = (passes - n) % 2 == 1
        to_keys, to_places = keys[n % 2], positions if last else examples
        _on_gpu(_count_digits(digits), tiles, digits, n * bits, indptr, source, counts)
        _on_gpu(_place(digits, n == 0), tiles, digits, n * bits, indptr, source, places, counts, to_keys, to_places)
        source, places = to_keys, to_places
    return source


@part
def _tile(indptr):
    """Where the entries of this block's tile begin and end."""
    nonzeros = indptr[indptr.shape[0] - 1]
    tiles, least = cuda.gridDim.x, cuda.blockDim.x
    length = max(least, (nonzeros + tiles - 1) // tiles)
    return min(nonzeros, cuda.blockIdx.x * length), min(nonzeros, (cuda.blockIdx.x + 1) * length)


@cache
def _sums_before(threads):
    @part
    def sums_before(value, sums):
        """Sum of the values of the threads before this one; sums[threads - 1] becomes the sum of all."""
        thread = cuda.threadIdx.x
        cuda.syncthreads()  # others may still read what is there
        sums[thread] = value
        cuda.syncthreads()
        step = 1
        while step < threads:
            before = sums[thread - step] if thread >= step else np.int32(0)
            cuda.syncthreads()
            sums[thread] += before
            cuda.syncthreads()
            step *= 2
        return sums[thread] - value
    return sums_before


@cache
def _count_digits(digits):
    def count_digits(shift, indptr, keys, counts):
        here = cuda.shared.array(digits, np.int32)
        digit = cuda.threadIdx.x
        here[digit] = 0
        cuda.syncthreads()
        start, end = _tile(indptr)
        for k in range(start + digit, end, digits):
            cuda.atomic.add(here, (keys[k] >> shift) & (digits - 1), 1)
        cuda.syncthreads()
        counts[cuda.blockIdx.x, digit] = here[digit]
    return count_digits


@cache
def _place(digits, first):
    sums_before = _sums_before(digits)

    def place(shift, indptr, keys, places, counts, out_keys, out_places):
        sums = cuda.shared.array(digits, np.int32)
        wanted = cuda.shared.array(digits, np.int32)  # digits of a piece of the tile
        following = cuda.shared.array(digits, np.int32)  # place of each digit's next entry
        flight = cuda.local.array(_FLIGHT, np.int32)
        tile, digit = cuda.blockIdx.x, cuda.threadIdx.x
        here = all_tiles = np.int32(0)
        for other in range(0, counts.shape[0], _FLIGHT):
            for j in range(_FLIGHT):
                flight[j] = counts[other + j, digit] if other + j < counts.shape[0] else np.int32(0)
            for j in range(_FLIGHT):
                all_tiles += flight[j]
                if other + j < tile:
                    here += flight[j]
        following[digit] = here + sums_before(all_tiles, sums)
        start, end = _tile(indptr)
        for piece in range(start, end, digits):
            k = piece + digit
            wanted[digit] = (keys[k] >> shift) & (digits - 1) if k < end else -1
            cuda.syncthreads()
            mine, earlier = wanted[digit], np.int32(0)
            for other in range(digit):
                if wanted[other] == mine:
                    earlier += 1
            if k < end:
                place = following[mine] + earlier
                out_keys[place] = keys[k]
                out_places[place] = k if first else places[k]
            cuda.syncthreads()
            if k < end:
                cuda.atomic.add(following, mine, 1)
    return place


@cache
def _count_features(threads):
    sums_before = _sums_before(threads)

    def count_features(indptr, keys, counts):
        sums = cuda.shared.array(threads, np.int32)
        start, end = _tile(indptr)
        found = np.int32(0)
        for k in range(start + cuda.threadIdx.x, end, threads):
            if k == 0 or keys[k] != keys[k - 1]:
                found += 1
        sums_before(found, sums)
        if cuda.threadIdx.x == threads - 1:
            counts[cuda.blockIdx.x, 0] = sums[threads - 1]
    return count_features


@cache
def _list_features(threads):
    sums_before = _sums_before(threads)

    def list_features(indptr, keys, positions, counts, features, out_indptr, examples, touched):
        sums = cuda.shared.array(threads, np.int32)
        tile, thread = cuda.blockIdx.x, cuda.threadIdx.x
        before = np.int32(0)
        for other in range(thread, tile, threads):
            before += counts[other, 0]
        sums_before(before, sums)
        r = sums[threads - 1]
        start, end = _tile(indptr)
        for piece in range(start, end, threads):
            k = piece + thread
            new = k < end and (k == 0 or keys[k] != keys[k - 1])
            mine = r + sums_before(np.int32(new), sums)
            if new:
                features[mine], out_indptr[mine] = keys[k], k
            if k < end:
                examples[k] = first_from(indptr, 0, indptr.shape[0], positions[k] + 1) - 1
            r += sums[threads - 1]
        if tile == counts.shape[0] - 1 and thread == 0:
            touched[0], out_indptr[r] = r, end
    return list_features


def _list_every_feature(i, indptr, keys, positions, out_indptr, examples):
    nonzeros = indptr[indptr.shape[0] - 1]
    if i < out_indptr.shape[0]:
        out_indptr[i] = first_from(keys, 0, nonzeros, i)
    if i < nonzeros:
        examples[i] = first_from(indptr, 0, indptr.shape[0], positions[i] + 1) - 1
