"""Losses against their published formulas, through each activation, and the refusal of wrong pairs."""

import math

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenet import activations, losses
from sparsenet.kernels.loss import loss_sum, output_delta
from sparsenet.losses import LOSSES, Loss, cross_entropy, scaled_marginal_cross_entropy, squared_error
from sparsenet.testing import assert_close, strategies

UNITS = 20


def parts(loss, activation, y, t):
    """Value and delta of every unit, as the kernels compute them in float64."""
    value, delta = loss.through(activations.get(activation))
    y, t = (np.array(x, np.float64, ndmin=2) for x in (y, t))
    values, deltas = np.zeros(y.size), np.zeros(y.shape)
    loss_sum(value, y.reshape(-1, 1), t.reshape(-1, 1), values)
    output_delta(delta, 1.0, y, t, deltas)
    return values.reshape(y.shape), deltas


@st.composite
def logits_and_targets(draw, flags=False):
    z = draw(strategies.dense(1, UNITS, dtype=np.float64))
    t = draw(strategies.dense(1, UNITS, low=0.0, high=1.0, dtype=np.float64))
    return z, (t > 0.5).astype(float) if flags else t


def near(actual, expected, name):
    assert_close(actual, expected, terms=8, scale=1 + np.abs(expected) * 100, dtype=np.float64, name=name)


SLOPES = {  # dy/dz in terms of y; constants are exact in float32
    "linear": np.ones_like,
    "sigmoid": lambda y: y * (1 - y),
    "tanh": lambda y: 1 - y * y,
    "relu": lambda y: np.where(y > 0, 1.0, 0.0),
    "elu": lambda y: np.where(y > 0, 1, y + 1),
    "softsign": lambda y: (1 - abs(y)) ** 2,
}


@pytest.mark.parametrize("activation", SLOPES)
@settings(deadline=None, max_examples=20)
@given(logits_and_targets())
def test_squared_error(activation, drawn):
    """(y - t)^2 / 2, and (y - t) f'(z)."""
    y, t = np.tanh(drawn[0]), drawn[1]
    value, delta = parts(squared_error(), activation, y, t)
    near(value, (y - t) ** 2 / 2, "value")
    near(delta, (y - t) * SLOPES[activation](y), "delta")


@settings(deadline=None, max_examples=40)
@given(logits_and_targets())
def test_cross_entropy_of_a_sigmoid(drawn):
    """ln(1 + e^z) - t z, and sigmoid(z) - t."""
    z, t = drawn
    value, delta = parts(cross_entropy(), "sigmoid", scipy.special.expit(z), t)
    near(value, np.logaddexp(0, z) - t * z, "value")
    near(delta, scipy.special.expit(z) - t, "delta")


@settings(deadline=None, max_examples=40)
@given(logits_and_targets())
def test_cross_entropy_of_a_softmax(drawn):
    """t (ln sum e^z - z); y dL/dy = -t."""
    z, t = drawn
    y = scipy.special.softmax(z)
    value, delta = parts(cross_entropy(), "softmax", y, t)
    near(value, t * (scipy.special.logsumexp(z) - z), "value")
    near(delta, -t, "delta")


@pytest.mark.parametrize("arguments", [(), (0.75, 0.25, 2.0, 0.5)])
@settings(deadline=None, max_examples=40)
@given(logits_and_targets(flags=True))
def test_scaled_marginal_cross_entropy(arguments, drawn):
    """The terms of cross entropy, each with its scale, and 0 beyond the margins."""
    z, t = drawn
    one, zero, one_scale, zero_scale = arguments or (0.9, 0.1, 1.0, 1.0)
    y = scipy.special.expit(z)
    active = np.where(t > 0, one_scale * (y < np.float32(one)), zero_scale * (y > np.float32(zero)))
    value, delta = parts(scaled_marginal_cross_entropy(*arguments), "sigmoid", y, t)
    near(value, active * (np.logaddexp(0, z) - t * z), "value")
    near(delta, active * (y - t), "delta")
    value, delta = parts(scaled_marginal_cross_entropy(*arguments), "softmax", y, t)
    near(value, active * (np.logaddexp(0, z) - t * z), "value")
    near(delta, active * np.where(t > 0, -1, y / (1 - y)), "y dL/dy")


def test_values_by_hand():
    value, delta = parts(scaled_marginal_cross_entropy(), "sigmoid", [0.5, 0.95, 0.5, 0.05], [1, 1, 0, 0])
    assert_close(value, [[math.log(2), 0, math.log(2), 0]], dtype=np.float64)
    assert_close(delta, [[-0.5, 0, 0.5, 0]], dtype=np.float64)
    value, _ = parts(cross_entropy(), "sigmoid", [0.25, 0.25, 0.25], [0, 1, 0.5])
    assert_close(value, [[math.log(4 / 3), math.log(4), math.log(4 / math.sqrt(3))]], dtype=np.float64, terms=4)


@pytest.mark.parametrize("loss", [make() for make in LOSSES.values()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_saturated_outputs_have_finite_losses(loss, activation):
    """y rounds to exactly 0 and 1; -ln y is then at most -ln 1e-12."""
    value, delta = parts(loss, activation, [0, 0, 1, 1], [0, 1, 0, 1])
    assert np.isfinite(value).all()
    assert np.isfinite(delta).all()
    assert (value >= 0).all()
    assert value.max() <= 28
    assert value[0, 0] == value[0, 3] == 0
    assert value[0, 1] > 0


def test_multinomial_loss_counts_only_its_ones():
    value, delta = parts(cross_entropy(), "softmax", [0.5, 0.25, 0.25], [1, 0, 0])
    assert_close(value, [[math.log(2), 0, 0]], dtype=np.float64)
    np.testing.assert_array_equal(delta, [[-1, 0, 0]])


# ---- what fits


@pytest.mark.parametrize("name", ["cross_entropy", "scaled_marginal_cross_entropy"])
@pytest.mark.parametrize("activation", [a for a in activations.ACTIVATIONS if a not in ("sigmoid", "softmax")])
def test_losses_of_probabilities_need_probabilities(name, activation):
    with pytest.raises(ValueError, match=f"loss '{name}' needs an output with activation sigmoid or softmax, "
                                         f"got '{activation}'"):
        losses.get(name).through(activations.get(activation))


@pytest.mark.parametrize("part", ["slope", "sigmoid_slope", "softmax_slope"])
@pytest.mark.parametrize("wrong", [lambda y, t: t - y, lambda y, t: 1.1 * (y - t), lambda y, t: float("nan")])
def test_wrong_slope_is_refused(part, wrong):
    right = {"value": lambda y, t: (y - t) ** 2 / 2, "slope": lambda y, t: y - t,
             "sigmoid_slope": lambda y, t: (y - t) * y * (1 - y), "softmax_slope": lambda y, t: (y - t) * y}
    Loss("mine", **right)
    with pytest.raises(ValueError, match=rf"loss 'mine': {part}\(0\.\d+, [01]\.0\) is .*, expected .*, as the loss"):
        Loss("mine", **{**right, part: wrong})


def test_softmax_value_needs_its_slope():
    """The default, y times `slope`, is the derivative of `value`, not of another softmax_value."""
    with pytest.raises(ValueError, match="loss 'mine': softmax_slope"):
        Loss("mine", lambda y, t: (y - t) ** 2 / 2, lambda y, t: y - t, softmax_value=lambda y, t: -t * math.log(y))


@pytest.mark.parametrize("margin", [0.0, 0.23, 0.4805, 0.48, 0.77, 1.0])
def test_margins_may_lie_anywhere(margin):
    """Also where slopes are compared with differences, which see the jump."""
    loss = scaled_marginal_cross_entropy(one_target=margin, zero_target=margin)
    assert loss.settings["one_target"] == margin


@pytest.mark.parametrize("arguments", [{"one_target": 1.5}, {"zero_target": -0.1}, {"one_target": float("nan")}])
def test_margins_are_probabilities(arguments):
    with pytest.raises(ValueError, match=r"one_target, zero_target: expected numbers in \[0, 1\], got "):
        scaled_marginal_cross_entropy(**arguments)


def test_sparsenets_names_are_taken():
    with pytest.raises(ValueError, match="loss 'squared_error': that name is sparsenet's, choose another"):
        Loss("squared_error", value=lambda y, t: y - t, slope=lambda y, t: 1.0)


@pytest.mark.parametrize("loss", [make() for make in LOSSES.values()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
@pytest.mark.parametrize("t", [0.0, 1.0])
def test_a_network_that_diverged_has_no_finite_loss(loss, activation, t):
    if (loss.name, activation, t) == ("cross_entropy", "softmax", 0.0):
        return  # whose loss is 0 whatever y
    value, delta = parts(loss, activation, [math.nan], [t])
    assert np.isnan(value).all()
    assert np.isnan(delta).all() or (loss.name, activation) != ("squared_error", "sigmoid")


def test_get_and_settings():
    assert losses.get("cross_entropy") is cross_entropy()
    mine = Loss("mine", value=lambda y, t: (y - t) ** 4, slope=lambda y, t: 4 * (y - t) ** 3)
    assert losses.get(mine) is mine
    assert mine.settings is None
    for wrong in ("mse", "", None, 3, ["cross_entropy"]):
        with pytest.raises(ValueError, match=r"loss: expected one of squared_error, .* or a Loss, got "):
            losses.get(wrong)
    for name, make in LOSSES.items():
        assert make().name == name
        assert LOSSES[name](**make().settings).settings == make().settings
