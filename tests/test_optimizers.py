"""Optimizers: rules on problems with known answers, schedules, and which rows they may leave out."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenet import optimizers
from sparsenet.kernels.update import update
from sparsenet.optimizers import OPTIMIZERS, Optimizer
from sparsenet.testing import assert_close, strategies

RATE = 0.125


def minimize(optimizer, w, gradient, steps):
    """Weights after each step, in float64, by the kernel."""
    w = np.array(w, np.float64, ndmin=1)
    slots, path = np.zeros((optimizer.slots, len(w))), []
    for step in range(1, steps + 1):
        g = np.array(gradient(w), np.float64, ndmin=1)
        update(optimizer.rule, w, g, slots, optimizer.l2, optimizer.l1, *scalars(optimizer, step))
        path.append(w.copy())
    return np.array(path)


def scalars(optimizer, step):
    """In float64."""
    numbers = optimizer.scalars(step)
    return np.array([*numbers, *[np.nan] * (8 - len(numbers))]), len(numbers)


# ---- rules


def test_sgd_on_a_parabola():
    """w' = w - rate w: w_t = (1 - rate)^t."""
    path = minimize(optimizers.sgd(RATE), 1.0, lambda w: w, 10)
    assert_close(path[:, 0], (1 - RATE) ** np.arange(1, 11), terms=20, dtype=np.float64)


def test_momentum_under_a_constant_force():
    """w falls by rate (1 - mu^t) / (1 - mu) in step t."""
    path = minimize(optimizers.momentum(RATE, 0.5), 0.0, lambda w: 1.0, 10)
    falls = RATE * (1 - 0.5 ** np.arange(1, 11)) / (1 - 0.5)
    assert_close(path[:, 0], -np.cumsum(falls), terms=20, dtype=np.float64)


def test_nesterov_is_momentum_looked_at_one_step_ahead():
    """Sutskever et al. 2013: v' = mu v - rate f'(w + mu v), w' = w + v'. Ours holds w + mu v."""
    gradient = lambda w: 3 * w + np.sin(w)  # noqa: E731
    path = minimize(optimizers.nesterov(RATE, 0.75), 1.0, gradient, 12)
    w, v, ahead = 1.0, 0.0, []
    for _ in range(12):
        v = 0.75 * v - RATE * gradient(w + 0.75 * v)
        w += v
        ahead.append(w + 0.75 * v)
    assert_close(path[:, 0], ahead, terms=60, scale=1.0, dtype=np.float64)


def test_adagrad_under_a_constant_force():
    """Step t is rate / sqrt t, however large the force."""
    for force in (1.0, 1000.0):
        path = minimize(optimizers.adagrad(RATE, epsilon=1e-30), 0.0, lambda w, force=force: force, 10)
        assert_close(path[:, 0], -RATE * np.cumsum(1 / np.sqrt(np.arange(1, 11))), terms=40, dtype=np.float64)


def test_rmsprop_under_a_constant_force():
    """m_t = 1 - mu^t."""
    path = minimize(optimizers.rmsprop(RATE, mu=0.75, epsilon=1e-30), 0.0, lambda w: 2.0, 10)
    steps = RATE / np.sqrt(1 - 0.75 ** np.arange(1, 11))
    assert_close(path[:, 0], -np.cumsum(steps), terms=40, dtype=np.float64)


def test_first_step_of_adadelta():
    """sqrt(epsilon / ((1 - mu) g^2 + epsilon)) g."""
    path = minimize(optimizers.adadelta(1.0, mu=0.75, epsilon=2**-10), 0.0, lambda w: 3.0, 1)
    assert_close(path[0], [-3 * math.sqrt(2**-10 / (0.25 * 9 + 2**-10))], terms=8, dtype=np.float64)


@pytest.mark.parametrize("force", [1e-3, 1.0, -50.0])
def test_adam_under_a_constant_force(force):
    """Bias correction makes m^ = g and v^ = g^2 in every step: steps of the rate, against the sign of g."""
    path = minimize(optimizers.adam(RATE, epsilon=1e-30), 0.0, lambda w: force, 10)
    # 1 - mu1 is rounded to 2^-53, 1000 times more of v^ in the first step; ten times that in the sum
    assert_close(path[:, 0], -math.copysign(RATE, force) * np.arange(1, 11), terms=10_000, dtype=np.float64)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_goes_downhill(name):
    rate = 1.0 if name == "adadelta" else 0.05
    path = minimize(OPTIMIZERS[name](rate), np.array([1.0, -2.0]), lambda w: w, 60)
    assert (np.abs(path[-1]) < np.abs([1.0, -2.0])).all()
    assert np.isfinite(path).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_still_optimizers_are_still(name, data):
    """still = True exactly where a gradient of 0 changes neither weight nor state, whatever they are."""
    optimizer = OPTIMIZERS[name](RATE)
    w = data.draw(strategies.dense(8, dtype=np.float64))
    slots = np.abs(data.draw(strategies.dense(optimizer.slots, 8, low=0.5, dtype=np.float64)))
    before = w.copy(), slots.copy()
    update(optimizer.rule, w, np.zeros(8), slots, 0.0, 0.0, *scalars(optimizer, 3))
    changed = (w != before[0]).any() or (slots != before[1]).any()
    assert changed == (not optimizer.still)


def test_decay_of_weights():
    """l2 w + l1 sign w is added to the gradient."""
    path = minimize(optimizers.sgd(0.5, l2=0.25, l1=0.125), np.array([2.0, -2.0, 0.0]), lambda w: np.ones(3), 1)
    np.testing.assert_array_equal(path[0], [2 - 0.5 * (1 + 0.5 + 0.125), -2 - 0.5 * (1 - 0.5 - 0.125), -0.5])


# ---- rates


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rate_falls_with_decay(name):
    plain, falling = OPTIMIZERS[name](RATE), OPTIMIZERS[name](RATE, decay=0.5)
    for step in (1, 2, 11):
        assert_close(falling.scalars(step)[0], plain.scalars(step)[0] / (1 + 0.5 * (step - 1)), dtype=np.float64)
        assert falling.scalars(step)[1:] == plain.scalars(step)[1:]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rate_may_be_a_function_of_the_step(name):
    steps = []
    scheduled = OPTIMIZERS[name](lambda step: steps.append(step) or RATE * step)
    for step in (1, 2, 5):
        assert scheduled.scalars(step) == OPTIMIZERS[name](RATE * step).scalars(step)
    assert steps == [1, 2, 5]


# ---- settings


@pytest.mark.parametrize(("options", "message"), [
    ({"rate": -1.0}, "rate must be a finite number >= 0, got -1.0"),
    ({"rate": math.nan}, "rate must be a finite number >= 0, got nan"),
    ({"rate": math.inf}, "rate must be a finite number >= 0, got inf"),
    ({"rate": "0.1"}, "rate must be a finite number >= 0, got '0.1'"),
    ({"rate": None}, "rate must be a finite number >= 0, got None"),
    ({"decay": -0.1}, "decay must be a finite number >= 0, got -0.1"),
    ({"l2": -0.1}, "l2 and l1 must not be negative, got -0.1, 0.0"),
    ({"l1": math.nan}, "l2 and l1 must not be negative, got 0.0, nan"),
])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_refused_settings(name, options, message):
    with pytest.raises(ValueError, match=f"{name}'?: {message}"):
        OPTIMIZERS[name](**options)


@pytest.mark.parametrize(("name", "key"), [("momentum", "mu"), ("nesterov", "mu"), ("rmsprop", "mu"),
                                           ("adadelta", "mu"), ("adam", "mu"), ("adam", "mu1")])
@pytest.mark.parametrize("value", [1.0, 1.5, 1 - 1e-9])
def test_means_forget(name, key, value):
    with pytest.raises(ValueError, match=f"{name}: {key} must be below 1 in float32, got {value}"):
        OPTIMIZERS[name](**{key: value})


@pytest.mark.parametrize("name", ["adagrad", "rmsprop", "adadelta", "adam"])
def test_epsilon_is_positive(name):
    with pytest.raises(ValueError, match=f"{name}: epsilon must be a finite number >= 0, got -1"):
        OPTIMIZERS[name](epsilon=-1.0)
    for nothing in (0.0, 1e-50):
        with pytest.raises(ValueError, match=f"{name}: epsilon must be above 0 in float32, got {nothing}"):
            OPTIMIZERS[name](epsilon=nothing)


def test_own_optimizers():
    own = Optimizer("mine", rule=lambda w, g, m, v, s: (w - s[0] * g, m, v), slots=0, scalars=lambda step: (0.5,))
    assert own.visits_every_row  # nothing is known of it
    np.testing.assert_array_equal(minimize(own, 1.0, lambda w: w, 2)[:, 0], [0.5, 0.25])
    with pytest.raises(ValueError, match="optimizer 'mine': slots must be 0, 1 or 2, got 3"):
        Optimizer("mine", rule=own.rule, slots=3, scalars=own.scalars)

    with pytest.raises(ValueError, match=r"optimizer 'mine': scalars\(step\) may be 8 numbers, not 9"):
        Optimizer("mine", rule=own.rule, slots=0, scalars=lambda step: (0.5,) * 9)
    many = Optimizer("mine", rule=lambda w, g, m, v, s: (w - s[7] * g, m, v), slots=0,
                     scalars=lambda step: (*[0.0] * 7, 0.5))
    none = Optimizer("mine", rule=lambda w, g, m, v, s: (w - g, m, v), slots=0, scalars=lambda step: ())
    np.testing.assert_array_equal(minimize(many, 1.0, lambda w: w, 2)[:, 0], [0.5, 0.25])
    np.testing.assert_array_equal(minimize(none, 1.0, lambda w: w / 2, 2)[:, 0], [0.5, 0.25])


def test_a_rule_that_cannot_be_compiled_is_refused():
    with pytest.raises(ValueError, match="optimizer 'mine': rule cannot be compiled: "):
        Optimizer("mine", rule=lambda w, g, m, v, s: (w - s["rate"] * g, m, v), slots=0, scalars=lambda step: (0.5,))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_which_optimizers_may_leave_rows_out(name):
    """Without decay only those that are still; with it none; lazy ones always."""
    make = OPTIMIZERS[name]
    assert make().visits_every_row == (name not in ("sgd", "adagrad"))
    assert make(l2=0.1).visits_every_row
    assert make(l1=0.1).visits_every_row
    assert not make(l2=0.1, l1=0.1, lazy=True).visits_every_row


def test_names():
    assert {name: make().name for name, make in OPTIMIZERS.items()} == {name: name for name in OPTIMIZERS}
