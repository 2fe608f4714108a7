import numpy as np
import pytest
import scipy.stats
from hypothesis import strategies as st

from sparsenet.kernels.dropout import denoise, dropout, dropped_delta
from sparsenet.testing.strategies import csr, dense, keys
from tests import reference
from tests.functions import ACTIVATIONS

rates = st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.9])
slices = st.sampled_from([{}, {"first": 5, "total": 45}, {"first": 2**33 + 1, "total": 2**40}])


def draw_numbers(data):
    return one(data.draw(keys())), data.draw(rates)


def one(key):
    return np.array([key], np.uint64)


def test_dropout(prove, agree, sizes):
    @prove
    def example(data):
        batch, units = data.draw(sizes()), data.draw(sizes())
        agree(dropout, *draw_numbers(data), data.draw(dense(batch, units)), **data.draw(slices))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda activation: activation.name)
def test_dropped_delta(activation, prove, agree, sizes):
    @prove
    def example(data):
        batch, units = data.draw(sizes()), data.draw(sizes())
        agree(dropped_delta, activation.slope, *draw_numbers(data), data.draw(dense(batch, units)),
              data.draw(dense(batch, units)), **data.draw(slices))


@pytest.mark.parametrize("valued", [False, True])
def test_denoise(valued, prove, agree, sizes):
    @prove
    def example(data):
        batch = data.draw(csr(data.draw(sizes()), data.draw(st.integers(0, 20)), valued=valued))
        features = data.draw(st.sampled_from([batch.features, 2**31 + 11]))
        agree(denoise, *draw_numbers(data), features, batch.indptr, batch.indices, batch.data,
              np.full(len(batch.indices), np.nan, np.float32))


def test_slices_have_the_masks_of_the_whole(device):
    """A rank that holds some of the units drops the same ones as a rank that holds all."""
    key, whole = device.put(one(7)), np.ones((6, 10), np.float32)
    part = device.put(whole[:, 4:9])
    whole = device.put(whole)
    dropout(key, 0.5, whole)
    dropout(key, 0.5, part, first=4, total=10)
    assert np.array_equal(device.fetch(part), device.fetch(whole)[:, 4:9])


def test_masks_are_the_same_on_every_device(device):
    key, y = one(2**63 + 5), np.ones((9, 11), np.float32)
    here, there = y.copy(), device.put(y)
    dropout(key, 0.3, here)
    dropout(device.put(key), 0.3, there)
    assert device.fetch(there).tobytes() == here.tobytes()


def test_share_of_kept():
    """As many survive as a binomial draw of that probability would let (p > 0.001)."""
    y = np.ones((200, 500), np.float32)
    dropout(one(1), 0.3, y)
    kept = int(np.count_nonzero(y))
    assert scipy.stats.binomtest(kept, y.size, 1 - float(np.float32(0.3))).pvalue > 1e-3
    assert np.unique(y).tolist() == [0, np.float32(1) / (np.float32(1) - np.float32(0.3))]


def test_forward_and_backward_drop_the_same(device):
    key, y, delta = np.uint64(3), device.put(np.full((5, 7), 2, np.float32)), device.put(np.ones((5, 7), np.float32))
    dropout(device.put(one(key)), 0.5, y)
    dropped_delta(ACTIVATIONS[0].slope, device.put(one(key)), 0.5, y, delta)
    assert np.array_equal(device.fetch(y) == 0, device.fetch(delta) == 0)
    assert reference.uniform_at(key, np.arange(35, dtype=np.uint64)).min() < 0.5  # something was dropped
