import numpy as np
import pytest
from hypothesis import strategies as st

from sparsenet.kernels.factored import factored_loss, keep_rows, take_rows
from sparsenet.testing.strategies import csr, dense

pytestmark = pytest.mark.parametrize("device", ["cpu"], indirect=True)


def weights(data, sizes):
    """(w, bias, epochs, distinct units)"""
    outputs = data.draw(sizes(1))
    units = np.array(data.draw(st.permutations(range(outputs))), np.int32)[:data.draw(st.integers(0, outputs))]
    epochs = np.array(data.draw(st.lists(st.integers(0, 2), min_size=outputs, max_size=outputs)), np.int32)
    return data.draw(dense(outputs, data.draw(sizes()))), data.draw(dense(outputs)), epochs, units


def test_take_rows(prove, agree, sizes):
    @prove
    def example(data):
        w, bias, epochs, units = weights(data, sizes)
        width = w.shape[1] + 1
        products = data.draw(dense(3, width, width)).astype(np.float64)
        agree(take_rows, units, epochs, products, w, bias, np.full((len(units), width), np.nan), terms=width,
              scale=16 * width, dtype=np.float64)


def test_keep_rows(prove, agree, sizes):
    @prove
    def example(data):
        w, bias, epochs, units = weights(data, sizes)
        rows = data.draw(dense(len(units), w.shape[1] + 1)).astype(np.float64)
        agree(keep_rows, units, data.draw(st.integers(0, 5)), epochs, w, bias, rows, outputs="epochs w bias", scale=0)


def test_kept_rows_are_what_the_weights_hold(device):
    w, bias, rows = np.zeros((2, 1), np.float32), np.zeros(2, np.float32), np.array([[0.1, 0.2]])
    keep_rows(np.array([1], np.int32), 3, np.zeros(2, np.int32), w, bias, rows)
    assert rows.tolist() == [[float(np.float32(0.1)), float(np.float32(0.2))]] == [[w[1, 0], bias[1]]]


def test_factored_loss(prove, agree, sizes):
    @prove
    def example(data):
        batch, width = data.draw(sizes()), data.draw(sizes(1))
        indptr, _, values, _ = data.draw(csr(batch, 5))
        hidden, images, aims = (data.draw(dense(batch, width)).astype(np.float64) for _ in range(3))
        agree(factored_loss, indptr, values, hidden, images, aims, np.full(batch, np.nan), terms=width + 10,
              scale=48 * width + 160, dtype=np.float64)


def test_widths_must_fit(device):
    w, rows = np.zeros((2, 3), np.float32), np.zeros((1, 3))
    with pytest.raises(ValueError, match=r"rows: expected 4 columns, one more than w has, got 3"):
        take_rows(np.zeros(1, np.int32), np.zeros(2, np.int32), np.zeros((1, 3, 3)), w, np.zeros(2, np.float32), rows)
