import numpy as np
import pytest
from hypothesis import strategies as st

from sparsenet.kernels.update import clear, regularized, update
from sparsenet.testing.strategies import dense
from tests.functions import OPTIMIZERS, scalars_of

decays = st.sampled_from([0.0, 0.125, 0.5])


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
def test_update(optimizer, prove, agree, sizes):
    """w, gradient and decays are such that g is exact: g / |g| makes much of a rounding of g."""
    @prove
    def example(data):
        size = data.draw(sizes())
        agree(update, optimizer.rule, data.draw(dense(size, exact=True)), data.draw(dense(size, exact=True)),
              data.draw(dense(optimizer.slots, size, low=0)), data.draw(decays), data.draw(decays),
              *scalars_of(optimizer, data.draw(st.integers(1, 1000))), outputs="w gradient slots")


def test_the_gradient_is_cleared(device):
    w, gradient, slots = device.put(np.ones(3, np.float32)), device.put(np.ones(3, np.float32)), device.zeros((0, 3))
    update(OPTIMIZERS[0].rule, w, gradient, slots, 0.0, 0.0, device.put(np.full(8, 0.25, np.float32)), 1)
    assert device.fetch(w).tolist() == [0.75] * 3
    assert device.fetch(gradient).tolist() == [0] * 3


@pytest.mark.parametrize(("w", "g"), [(2, 1 + 0.5 * 2 + 0.25), (-2, 1 - 0.5 * 2 - 0.25), (0, 1)])
def test_regularized(w, g):
    """l1 pulls towards 0 and lets a weight of 0 rest."""
    assert regularized(*map(np.float32, (1, w, 0.5, 0.25))) == g


def test_clear(prove, agree, sizes):
    @prove
    def example(data):
        agree(clear, np.full((data.draw(sizes()), data.draw(sizes())), np.nan, np.float32))


def test_shapes_are_checked(device):
    scalars = device.zeros(8)
    with pytest.raises(ValueError, match="gradient: axis 'size' is 4, but w says 3"):
        update(OPTIMIZERS[0].rule, device.zeros(3), device.zeros(4), device.zeros((0, 3)), 0.0, 0.0, scalars, 1)
    with pytest.raises(ValueError, match="scalars: axis 'most' is 1, but room says 8"):
        update(OPTIMIZERS[0].rule, device.zeros(3), device.zeros(3), device.zeros((0, 3)), 0.0, 0.0, scalars[:1], 1)
