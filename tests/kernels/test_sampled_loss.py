import numpy as np
import pytest
from hypothesis import strategies as st

from sparsenet import activations, losses
from sparsenet.kernels.head import Output
from sparsenet.kernels.sampled_loss import sampled_delta
from sparsenet.testing.strategies import csr, dense
from tests.functions import USERS_ACTIVATION, USERS_LOSS


def output_of(loss, activation):
    return Output(activation.value, *loss.through(activation))


OUTPUTS = {f"{loss.name}-{activation.name}": output_of(loss, activation) for loss, activation in (
    (losses.cross_entropy(), activations.sigmoid()),
    (losses.scaled_marginal_cross_entropy(), activations.sigmoid()),
    (losses.squared_error(), activations.linear()),
    (USERS_LOSS, USERS_ACTIVATION),
)}


def arguments(data, sizes):
    """(indptr, data, places, weights, own, bias, y, targets, losses)."""
    batch, listed = data.draw(sizes(simulator=4)), data.draw(sizes(1))
    dense_part = data.draw(st.one_of(st.just(listed), st.integers(0, listed)))
    indptr, places, values, _ = data.draw(csr(batch, listed, repeated=False, low=0, high=1))
    weights = np.where(np.arange(listed) < dense_part, data.draw(dense(listed, low=0)), 0).astype(np.float32)
    own = data.draw(st.one_of(st.none(), dense(listed, low=0.25)))
    return (indptr, values, places, weights, own, data.draw(dense(listed)), data.draw(dense(batch, dense_part)),
            data.draw(dense(len(places))), np.full(batch, np.nan))


@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
def test_sampled_delta(output, prove, agree, sizes):
    @prove
    def example(data):
        given = arguments(data, sizes)
        agree(sampled_delta, output, False, data.draw(st.sampled_from([1.0, 0.25])), *given,
              outputs="y targets losses", terms=given[3].size + 1)


def test_sampled_delta_of_a_softmax(prove, agree, sizes):
    output = output_of(losses.cross_entropy(), activations.softmax())

    @prove
    def example(data):
        given = arguments(data, sizes)
        agree(sampled_delta, output, True, data.draw(st.sampled_from([1.0, 0.25])), *given,
              outputs="y targets losses", terms=given[3].size + 1)


def test_an_infinite_zero_that_was_not_drawn_is_not_looked_at(device):
    """A candidate that is a target of another example alone, and whose zero would have an infinite loss."""
    given = (np.array([0, 1, 1]), None, np.array([1], np.int32), np.array([1, 0], np.float32), None,
             np.zeros(2, np.float32), np.full((2, 2), 1e30, np.float32), np.zeros(1, np.float32), np.zeros(2))
    given[6][:, 0] = 1
    there = [None if array is None else device.put(array) for array in given]
    sampled_delta(OUTPUTS["squared_error-linear"], False, 1.0, *there)
    *_, y, _, found = (None if array is None else device.fetch(array) for array in there)
    assert y.tolist() == [[1, 0], [1, 0]]
    assert found.tolist() == [1, 0.5]
