import itertools

import numpy as np
import pytest
from hypothesis import strategies as st

from sparsenet.kernels.exchange import pack, unpack, unpack_add
from sparsenet.testing.strategies import dense


@st.composite
def bounds(draw, units):
    """Where the ranks' units end: uneven slices, some empty, or multiples of four."""
    ends = st.integers(0, units)
    if units % 4 == 0:
        ends = draw(st.sampled_from([ends, st.integers(0, units // 4).map(lambda four: 4 * four)]))
    return np.array([0, *sorted(draw(st.lists(ends, max_size=4))), units], np.int64)


def widths(data, sizes):
    """Multiples of four, which are moved four at a time, as often as others."""
    units = data.draw(sizes())
    return units // 4 * 4 if data.draw(st.booleans()) else units


def draw(data, sizes):
    y = data.draw(dense(data.draw(sizes(simulator=5)), widths(data, sizes)))
    return y, data.draw(bounds(y.shape[1]))


def test_pack(prove, agree, sizes):
    @prove
    def example(data):
        y, ends = draw(data, sizes)
        agree(pack, y, ends, np.full(y.size, np.nan, np.float32), scale=0)


def test_unpack(prove, agree, sizes):
    @prove
    def example(data):
        y, ends = draw(data, sizes)
        agree(unpack, y.reshape(-1), ends, np.full_like(y, np.nan), scale=0)


def test_unpack_add(prove, agree, sizes):
    @prove
    def example(data):
        ranks, batch, units = data.draw(st.integers(1, 5)), data.draw(sizes(simulator=5)), widths(data, sizes)
        pieces = data.draw(dense(ranks, batch, units))
        y = data.draw(dense(batch, units))
        agree(unpack_add, pieces, y, terms=ranks + 1, scale=abs(pieces).sum(axis=0) + abs(y))


def test_ranks_are_added_in_order(device):
    """1 + 2^24 + 1 - 2^24 in float32: 0 from left to right, and other sums in other orders."""
    y = device.put(np.ones((2, 4), np.float32))
    unpack_add(device.put(np.ones((3, 2, 4), np.float32) * np.array([2**24, 1, -2**24], np.float32)[:, None, None]), y)
    assert device.fetch(y).tolist() == [[0.0] * 4] * 2


def test_a_reduce_scatter(device):
    """Of three ranks' partial sums: packed, exchanged piece by piece as MPI's Alltoallv does, added."""
    ends, batch = [0, 3, 3, 8], 5
    partial = np.random.default_rng(0).integers(-9, 9, (3, batch, 8)).astype(np.float32)
    buffers = []
    for own in partial:
        buffer = device.zeros(batch * 8)
        pack(device.put(own), device.put(np.array(ends)), buffer)
        buffers.append(device.fetch(buffer))
    for first, end in itertools.pairwise(ends):
        received = np.concatenate([buffer[batch * first:batch * end] for buffer in buffers])
        y = device.zeros((batch, end - first))
        unpack_add(device.put(received.reshape(3, batch, end - first)), y)
        assert device.fetch(y).tolist() == partial.sum(axis=0)[:, first:end].tolist()


def test_sizes_are_checked(device):
    ends = device.put(np.array([0, 3]))
    for kernel, *arguments in ((pack, device.zeros((2, 3)), ends, device.zeros(5)),
                               (unpack, device.zeros(5), ends, device.zeros((2, 3)))):
        with pytest.raises(ValueError, match="buffer: expected batch x units = 6 elements, got 5"):
            kernel(*arguments)
    with pytest.raises(ValueError, match="y: axis 'units' is 3, but pieces says 4"):
        unpack_add(device.zeros((2, 2, 4)), device.zeros((2, 3)))
