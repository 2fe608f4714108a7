"""Where examples enter: declaring an input, batches of rows on a device, noise."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import strategies as st

from sparsenet.data import canonical
from sparsenet.device import device as find_device
from sparsenet.layers import Input
from sparsenet.layers.base import Signal
from sparsenet.layers.batch import SparseBatch
from sparsenet.layers.feed import Feed
from sparsenet.layers.input import InputLayer
from sparsenet.testing import assert_close, strategies
from tests import reference


@st.composite
def matrices(draw, largest=12, sparse=None):
    """A canonical matrix with at least one row and one column: dense, CSR of numbers, or CSR of flags."""
    batch, features = draw(strategies.sizes(1, largest)), draw(strategies.sizes(1, largest))
    if not (draw(st.booleans()) if sparse is None else sparse):
        return canonical(draw(strategies.dense(batch, features)))
    csr = draw(strategies.csr(batch, features))
    data = np.ones(len(csr.indices), bool) if csr.data is None else csr.data
    return canonical(sp.csr_array((data, csr.indices, csr.indptr), shape=(batch, features)))


def as_dense(matrix):
    return (matrix.toarray() if sp.issparse(matrix) else matrix).astype(np.float64)


def on_host(device, loaded, features):
    """What a feed has loaded, as a dense array."""
    if not isinstance(loaded, SparseBatch):
        return device.fetch(loaded)
    indptr = device.fetch(loaded.indptr)
    indices = device.fetch(loaded.indices)[:indptr[-1]]  # a GPU's arrays have room for more
    values = np.ones(len(indices)) if loaded.values is None else device.fetch(loaded.values)[:indptr[-1]]
    dense = np.zeros((len(indptr) - 1, features))
    np.add.at(dense, (np.repeat(np.arange(len(dense)), np.diff(indptr)), indices), values)
    return dense


# ---- declaring


@pytest.mark.parametrize(("arguments", "message"), [
    ({"features": 0}, "features must be an integer of at least 1, got 0"),
    ({"features": -3}, "features must be an integer of at least 1, got -3"),
    ({"features": 2.5}, "features must be an integer of at least 1, got 2.5"),
    ({"features": True}, "features must be an integer of at least 1, got True"),
    ({"features": "12"}, "features must be an integer of at least 1, got '12'"),
    ({"features": 3, "sparse": True, "denoising": 1.0}, r"denoising must be in \[0, 1\), got 1.0"),
    ({"features": 3, "sparse": True, "denoising": -0.1}, r"denoising must be in \[0, 1\), got -0.1"),
    ({"features": 3, "sparse": True, "denoising": float("nan")}, r"denoising must be in \[0, 1\), got nan"),
    ({"features": 3, "denoising": 0.5}, "denoising is for sparse inputs"),
])
def test_refused_settings(arguments, message):
    with pytest.raises(ValueError, match=f"Input: {message}"):
        Input(**arguments)


def test_an_input_knows_its_width_and_makes_itself_again():
    node = Input(np.int64(7), sparse=True, normalize=True, denoising=0.25, name="basket")
    assert (node.units, node.sparse, node.inputs) == (7, True, ())
    again = InputLayer(**node.layer.settings())
    assert again.settings() == node.layer.settings()
    assert node.layer.parameters == {}
    with pytest.raises(TypeError, match="takes no inputs"):
        node.layer.connect((node,))


# ---- batches of rows


def test_feed_loads_rows(device, prove):
    """Any rows, in any order, as often as one likes where there is room."""
    def rows_arrive(data):
        matrix = data.draw(matrices())
        examples, features = matrix.shape
        batch = data.draw(strategies.sizes(1, examples))
        feed = Feed(matrix, device, np.float32, batch)
        for _ in range(2):  # the second batch finds what the first left
            rows = np.array(data.draw(st.permutations(range(examples))))[:data.draw(strategies.sizes(1, batch))]
            found = on_host(device, feed.load(rows), features)
            np.testing.assert_array_equal(found, as_dense(matrix)[rows])
    prove(rows_arrive)


def test_feed_scales_rows(device, prove):
    def rows_are_scaled(data):
        matrix, length_one = data.draw(matrices()), data.draw(st.booleans())
        feed = Feed(matrix, device, np.float32, matrix.shape[0], length_one=length_one, sum_one=not length_one)
        rows = np.arange(matrix.shape[0])
        dense = as_dense(matrix)
        size = np.sqrt((dense**2).sum(1)) if length_one else (dense != 0).sum(1)
        expected = np.divide(dense, size[:, None], out=np.zeros_like(dense), where=size[:, None] > 0)
        assert_close(on_host(device, feed.load(rows), matrix.shape[1]), expected, name="scaled")
    prove(rows_are_scaled)


def test_matrix_of_ones_takes_no_room_for_values():
    ones, others = sp.csr_array(np.eye(3, dtype=np.float32)), sp.csr_array(2 * np.eye(3, dtype=np.float32))
    cpu = find_device("cpu")
    for matrix, valued in ((ones, False), (ones.astype(bool), False), (others, True)):
        loaded = Feed(canonical(matrix), cpu, np.float32, 2).load(np.array([0, 2]))
        assert loaded.boolean is not valued
        assert (loaded.data is not None) is valued
        np.testing.assert_array_equal(on_host(cpu, loaded, 3), matrix.toarray()[[0, 2]])


def test_feed_of_float64():
    cpu = find_device("cpu")
    for matrix in (np.ones((2, 3)), sp.csr_array(2 * np.ones((2, 3)))):
        loaded = Feed(canonical(matrix), cpu, np.float64, 2, length_one=True).load(np.arange(2))
        values = loaded.values if isinstance(loaded, SparseBatch) else loaded
        assert values.dtype == np.float64
        assert_close(values, np.full(values.shape, 1 / np.sqrt(3)), dtype=np.float64)


@pytest.mark.parametrize("rows", [[0, 0, 0], [1, 1]])
def test_batch_without_room_is_refused(rows):
    matrix = canonical(sp.csr_array(np.array([[1.0, 2, 3], [0, 4, 5]])))
    batch = SparseBatch(find_device("cpu"), 2, 3, 3, False, np.float32)
    with pytest.raises(ValueError, match=rf"{len(rows)} examples with \d nonzeros does not fit into room for 2 and 3"):
        batch.load(matrix, np.array(rows))
    batch.load(matrix, np.array([0]))
    assert batch.indices.tolist() == [0, 1, 2]


# ---- the batch by feature


def test_batch_by_feature(device, prove):
    """Its entries, listed by feature: SciPy's CSC. `every` lists all features in order, else those in the batch."""
    def columns_agree(data):
        matrix, every = data.draw(matrices(sparse=True)), data.draw(st.booleans())
        batch = SparseBatch(device, matrix.shape[0], matrix.nnz, matrix.shape[1], matrix.dtype == bool, np.float32)
        for rows in (np.arange(matrix.shape[0])[::-1], np.arange(0, matrix.shape[0], 2)):
            batch.load(matrix, rows)
            if data.draw(st.booleans()):
                batch.by_feature(not every)  # what was asked for before does not matter
            *lists, touched = (device.fetch(part) for part in batch.by_feature(every))
            features, indptr = lists[0][:touched[0]], lists[1][:touched[0] + 1]
            examples, positions = (part[:indptr[-1]] for part in lists[2:])
            dense, values = as_dense(matrix)[rows], batch.values if batch.boolean else device.fetch(batch.values)
            named = np.flatnonzero((dense != 0).any(axis=0))
            assert sorted(features) == list(range(matrix.shape[1])) if every else sorted(features) == named.tolist()
            found = np.zeros_like(dense)
            for r, feature in enumerate(features):
                entries = slice(indptr[r], indptr[r + 1])
                found[examples[entries], feature] = 1 if values is None else values[positions[entries]]
            np.testing.assert_array_equal(found, dense)
            assert indptr[0] == 0
            assert indptr[-1] == np.count_nonzero(dense)
    prove(columns_agree)


# ---- noise


def test_denoising(device, prove):
    """Out of training the values are the data; in training they are the reference's noisy ones; the data stay."""
    def noise_is_the_references(data):
        matrix, key = data.draw(matrices(sparse=True)), data.draw(strategies.keys())
        drop = data.draw(st.sampled_from([0.0, 0.25, 0.5]))
        layer = InputLayer(matrix.shape[1], sparse=True, denoising=drop)
        feed = Feed(matrix, device, np.float32, matrix.shape[0])
        loaded = feed.load(np.arange(matrix.shape[0]))
        indptr, indices = device.fetch(loaded.indptr), device.fetch(loaded.indices)
        values = None if loaded.data is None else device.fetch(loaded.data).astype(np.float64)
        for noise in (np.array([key]), None):
            layer.forward((), Signal(loaded, key=None if noise is None else device.put(noise)))
            if noise is None or not drop:
                assert loaded.values is loaded.data
                continue
            expected = np.zeros(len(indices))
            reference.denoise([int(key)], drop, matrix.shape[1], indptr, indices, values, expected)
            assert_close(loaded.values, expected, name="noisy values")
            if values is not None:
                np.testing.assert_array_equal(device.fetch(loaded.data), values)
    prove(noise_is_the_references)


def test_an_input_takes_no_part_in_the_backward_pass():
    layer, signal = InputLayer(3), Signal(np.ones((2, 3), np.float32))
    layer.forward((), signal)
    layer.backward((), signal)
    np.testing.assert_array_equal(signal.y, np.ones((2, 3)))
    with pytest.raises(TypeError, match="an input has no delta"):
        layer.delta(signal)
