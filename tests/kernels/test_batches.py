import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import strategies as st

from sparsenet.kernels.batches import gather_rows, sorted_transpose, sorted_transpose_all, transpose, transpose_all
from sparsenet.testing.strategies import csr

on_the_host = pytest.mark.parametrize("device", ["cpu"], indirect=True)
on_gpus = pytest.mark.parametrize("device", [
    pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("emulator", "simulator", "cuda")], indirect=True)


@on_the_host
def test_gather_rows(prove, agree, sizes):
    @prove
    def example(data):
        matrix = data.draw(csr(data.draw(sizes(1)), data.draw(sizes())))
        rows = np.array(data.draw(st.lists(st.integers(0, matrix.batch - 1), max_size=40)), np.int64)
        needed = int(np.diff(matrix.indptr)[rows].sum()) + data.draw(st.integers(0, 3))
        values = np.zeros(0, np.float32) if matrix.data is None else matrix.data
        agree(gather_rows, rows, matrix.indptr, matrix.indices, values, np.full(len(rows) + 1, -7),
              np.full(needed, -7, np.int32), np.full(needed, np.nan, np.float32),
              outputs="out_indptr out_indices out_data")


def _garbage(length, dtype=np.int32):
    return np.full(length, -7, dtype)


@on_the_host
def test_transpose(prove, agree, sizes):
    @prove
    def example(data):
        matrix = data.draw(csr(data.draw(sizes()), data.draw(sizes())))
        nonzeros, distinct = len(matrix.indices), len(set(matrix.indices.tolist()))
        agree(transpose, matrix.indptr, matrix.indices, np.zeros(matrix.features, np.int64), _garbage(distinct),
              _garbage(distinct + 1, np.int64), _garbage(nonzeros), _garbage(nonzeros), _garbage(1, np.int64),
              outputs="count features out_indptr examples positions touched")


@on_the_host
def test_transpose_all(prove, agree, sizes):
    @prove
    def example(data):
        matrix = data.draw(csr(data.draw(sizes()), data.draw(sizes())))
        nonzeros = len(matrix.indices)
        agree(transpose_all, matrix.indptr, matrix.indices, _garbage(matrix.features + 1, np.int64),
              _garbage(nonzeros), _garbage(nonzeros), outputs="out_indptr examples positions")


@on_the_host
def test_transpose_is_scipys(prove, sizes):
    @prove
    def example(data):
        matrix = data.draw(csr(data.draw(sizes(1)), data.draw(sizes(1)), valued=True, exact=True))
        nonzeros, shape = len(matrix.indices), (matrix.batch, matrix.features)
        indptr, examples = np.zeros(matrix.features + 1, np.int64), np.zeros(nonzeros, np.int32)
        positions = np.zeros(nonzeros, np.int32)
        transpose_all(matrix.indptr, matrix.indices, indptr, examples, positions)
        by_feature = sp.csc_matrix((matrix.data[positions], examples, indptr), shape=shape)
        by_example = sp.csr_matrix((matrix.data, matrix.indices, matrix.indptr), shape=shape)
        assert np.array_equal(by_feature.toarray(), by_example.toarray())


@st.composite
def sorting(draw, device, matrix):
    """scratch_counts and scratch_keys for a batch: few tiles or more than entries, 2 bits or 8 in a pass."""
    tiles, digits = draw(st.integers(1, 4 if device.name == "simulator" else 20)), draw(st.sampled_from([4, 256]))
    return (np.full((tiles, 4 if device.name == "simulator" else digits), -7, np.int32),
            np.full((2, len(matrix.indices) + 3), -7, np.int32))


@on_gpus
def test_sorted_transpose(device, prove, agree, sizes):
    """Arrays are longer than what they list, and have more entries than the last batch needed."""
    @prove
    def example(data):
        matrix = data.draw(csr(data.draw(sizes(simulator=8)), data.draw(sizes(1, simulator=12))))
        scratch = data.draw(sorting(device, matrix))
        room, distinct = scratch[1].shape[1], len(set(matrix.indices.tolist()))
        agree(sorted_transpose, matrix.features, matrix.indptr, np.append(matrix.indices, _garbage(3)), *scratch,
              _garbage(distinct + 3), _garbage(distinct + 3, np.int64), _garbage(room), _garbage(room),
              _garbage(1, np.int64), outputs="features out_indptr examples positions touched")


@on_gpus
def test_sorted_transpose_all(device, prove, agree, sizes):
    @prove
    def example(data):
        matrix = data.draw(csr(data.draw(sizes(simulator=8)), data.draw(sizes(1, simulator=12))))
        scratch = data.draw(sorting(device, matrix))
        room = scratch[1].shape[1]
        agree(sorted_transpose_all, matrix.indptr, np.append(matrix.indices, _garbage(3)), *scratch,
              _garbage(matrix.features + 1, np.int64), _garbage(room), _garbage(room),
              outputs="out_indptr examples positions")


@on_the_host
def test_sorting_is_for_gpus(device):
    with pytest.raises(TypeError, match="expected arrays on a GPU"):
        sorted_transpose_all(*arguments_of_a_sort(device, digits=4))


@pytest.mark.simulator
@pytest.mark.parametrize("device", ["simulator"], indirect=True)
@pytest.mark.parametrize("digits", [1, 6])
def test_digits_are_a_power_of_2(device, digits):
    with pytest.raises(ValueError, match=rf"scratch_counts: expected a power of 2 digits, got shape \(2, {digits}\)"):
        sorted_transpose_all(*arguments_of_a_sort(device, digits))


def arguments_of_a_sort(device, digits):
    entries = [device.zeros(3, np.int32) for _ in range(3)]
    return (device.put(np.arange(4)), entries[0], device.zeros((2, digits), np.int32), device.zeros((2, 3), np.int32),
            device.zeros(5, np.int64), *entries[1:])
