import pytest

from sparsenet.kernels.activation import activate, hidden_delta
from sparsenet.testing.strategies import dense
from tests.functions import ACTIVATIONS

each_activation = pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda activation: activation.name)


@each_activation
def test_activate(activation, prove, agree, sizes):
    @prove
    def example(data):
        batch, units = data.draw(sizes()), data.draw(sizes())
        agree(activate, activation.value, data.draw(dense(units)), data.draw(dense(batch, units)))


@each_activation
def test_hidden_delta(activation, prove, agree, sizes):
    @prove
    def example(data):
        batch, units = data.draw(sizes()), data.draw(sizes())
        agree(hidden_delta, activation.slope, data.draw(dense(batch, units)), data.draw(dense(batch, units)))


def test_shapes_are_checked(device):
    bias, y = device.zeros(3), device.zeros((2, 4))
    with pytest.raises(ValueError, match="y: axis 'units' is 4, but bias says 3"):
        activate(ACTIVATIONS[0].value, bias, y)
    with pytest.raises(ValueError, match="delta: axis 'batch' is 1, but y says 2"):
        hidden_delta(ACTIVATIONS[0].slope, y, device.zeros((1, 4)))
