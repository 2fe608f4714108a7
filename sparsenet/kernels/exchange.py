"""Between arrays whose units are split over ranks and the buffers that ranks exchange.

In a buffer the slice of each rank is one contiguous piece (batch, its units), one rank after the other: units bounds[r]
to bounds[r + 1] of every example begin at batch * bounds[r]. These are MPI's counts and displacements, times the batch.
A gather is an Allgatherv of slices, then `unpack`. A reduce-scatter is `pack`, then an Alltoallv, whose result is every
rank's piece for this one, then `unpack_add`.
"""

from numba import prange

from sparsenet.device import Array, launch, part
from sparsenet.instructions import load4, store4
from sparsenet.shapes import check, in_fours


def pack(y: Array, bounds: Array, buffer: Array) -> None:
    """buffer[batch bounds[r] + b n + u] = y[b, bounds[r] + u] for each rank r, with its n = bounds[r + 1] - bounds[r].

    y       (batch, units) float32  in
    bounds  (ranks + 1) int64       in   0, where each rank's units end; the last is units
    buffer  (size) float32          out  size = batch units
    """
    _check(y, bounds, buffer)
    if in_fours(y, buffer):
        launch(_pack_fours, (y.shape[0], y.shape[1] // 4), y, bounds, buffer, on_cpu=_pack_on_cpu)
    else:
        launch(_pack, y.shape, y, bounds, buffer, on_cpu=_pack_on_cpu)


def unpack(buffer: Array, bounds: Array, y: Array) -> None:
    """y[b, bounds[r] + u] = buffer[batch bounds[r] + b n + u]: undoes `pack`; arguments as there.

    buffer  (size) float32          in
    bounds  (ranks + 1) int64       in
    y       (batch, units) float32  out
    """
    _check(y, bounds, buffer)
    if in_fours(y, buffer):
        launch(_unpack_fours, (y.shape[0], y.shape[1] // 4), buffer, bounds, y, on_cpu=_unpack_on_cpu)
    else:
        launch(_unpack, y.shape, buffer, bounds, y, on_cpu=_unpack_on_cpu)


def _check(y, bounds, buffer):
    size = check(y=(y, "batch units"), bounds=(bounds, "ends"), buffer=(buffer, "size"))
    if size.size != size.batch * size.units:
        raise ValueError(f"buffer: expected batch x units = {size.batch * size.units} elements, got {size.size}")


@part
def _place(b, u, batch, bounds):
    """(where the buffer holds unit u of example b, how many more units of that rank follow there)."""
    first, last = 0, bounds.shape[0] - 2
    while first < last:  # bisect: which rank's?
        rank = (first + last) // 2
        if bounds[rank + 1] > u:
            last = rank
        else:
            first = rank + 1
    begin, end = bounds[first], bounds[first + 1]
    return batch * begin + b * (end - begin) + u - begin, end - u


def _pack(b, u, y, bounds, buffer):
    place, _ = _place(b, u, y.shape[0], bounds)
    buffer[place] = y[b, u]


def _pack_fours(b, four, y, bounds, buffer):
    u = 4 * four
    y0, y1, y2, y3 = load4(y, b * y.shape[1] + u)
    place, left = _place(b, u, y.shape[0], bounds)
    if left >= 4 and place % 4 == 0:
        store4(buffer, place, y0, y1, y2, y3)
    else:
        buffer[place] = y0
        buffer[_place(b, u + 1, y.shape[0], bounds)[0]] = y1
        buffer[_place(b, u + 2, y.shape[0], bounds)[0]] = y2
        buffer[_place(b, u + 3, y.shape[0], bounds)[0]] = y3


def _pack_on_cpu(y, bounds, buffer):
    batch = y.shape[0]
    for b in prange(batch):
        for rank in range(bounds.shape[0] - 1):
            begin, end = bounds[rank], bounds[rank + 1]
            start = batch * begin + b * (end - begin)
            buffer[start:start + end - begin] = y[b, begin:end]


def _unpack(b, u, buffer, bounds, y):
    place, _ = _place(b, u, y.shape[0], bounds)
    y[b, u] = buffer[place]


def _unpack_fours(b, four, buffer, bounds, y):
    u = 4 * four
    place, left = _place(b, u, y.shape[0], bounds)
    if left >= 4 and place % 4 == 0:
        y0, y1, y2, y3 = load4(buffer, place)
    else:
        y0 = buffer[place]
        y1 = buffer[_place(b, u + 1, y.shape[0], bounds)[0]]
        y2 = buffer[_place(b, u + 2, y.shape[0], bounds)[0]]
        y3 = buffer[_place(b, u + 3, y.shape[0], bounds)[0]]
    store4(y, b * y.shape[1] + u, y0, y1, y2, y3)


def _unpack_on_cpu(buffer, bounds, y):
    batch = y.shape[0]
    for b in prange(batch):
        for rank in range(bounds.shape[0] - 1):
            begin, end = bounds[rank], bounds[rank + 1]
            start = batch * begin + b * (end - begin)
            y[b, begin:end] = buffer[start:start + end - begin]


def unpack_add(pieces: Array, y: Array) -> None:
    """y += sum_r pieces[r], added in the order of the ranks, whatever arrived first.

    pieces  (ranks, batch, units) float32  in     every rank's partial sums of this rank's units
    y       (batch, units) float32         inout
    """
    size = check(pieces=(pieces, "ranks batch units"), y=(y, "batch units"))
    if in_fours(y, pieces):
        launch(_add_fours, (size.batch, size.units // 4), pieces, y, on_cpu=_add_on_cpu)
    else:
        launch(_add, (size.batch, size.units), pieces, y, on_cpu=_add_on_cpu)


def _add(b, u, pieces, y):
    total = y[b, u]
    for rank in range(pieces.shape[0]):
        total += pieces[rank, b, u]
    y[b, u] = total


def _add_fours(b, four, pieces, y):
    i = b * y.shape[1] + 4 * four
    y0, y1, y2, y3 = load4(y, i)
    for rank in range(pieces.shape[0]):
        x0, x1, x2, x3 = load4(pieces, rank * y.shape[0] * y.shape[1] + i)
        y0, y1, y2, y3 = y0 + x0, y1 + x1, y2 + x2, y3 + x3
    store4(y, i, y0, y1, y2, y3)


def _add_on_cpu(pieces, y):
    for b in prange(y.shape[0]):
        for rank in range(pieces.shape[0]):
            for u in range(y.shape[1]):
                y[b, u] += pieces[rank, b, u]
