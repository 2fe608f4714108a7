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
    """Those that are still; lazy ones always. Others catch up, but for weight decay that has no closed form."""
    make = OPTIMIZERS[name]
    still = name in ("sgd", "adagrad")
    assert (make().visits_every_row, make().catches_up) == (False, not still)
    assert (make(l2=0.1).visits_every_row, make(l2=0.1).catches_up) == (name != "sgd", name == "sgd")
    assert (make(l1=0.1).visits_every_row, make(l1=0.1).catches_up) == (True, False)
    lazy = make(l2=0.1, l1=0.1, lazy=True)
    assert (lazy.visits_every_row, lazy.catches_up) == (False, False)


# ---- steps without gradient


def idle_steps(optimizer, first, count):
    """Numbers of `idle` for steps first, …, first + count - 1."""
    numbers = tuple(np.full(1, number) for number in optimizer.idle.none)
    for step in range(first, first + count):
        numbers = optimizer.idle.more(numbers, optimizer.scalars(step))
    return tuple(float(np.ravel(number)[0]) for number in numbers)


def rate(step):
    return RATE * (1 + math.sin(step)) / step


WAITING = [optimizers.sgd(rate, l2=0.25), optimizers.momentum(rate), optimizers.nesterov(rate, 0.5, decay=0.1),
           optimizers.rmsprop(rate), optimizers.adadelta(rate), optimizers.adam(rate), optimizers.adam(epsilon=0.5)]


@pytest.mark.parametrize("optimizer", WAITING, ids=lambda optimizer: optimizer.name)
@settings(deadline=None, max_examples=50)
@given(first=st.integers(1, 2000), count=st.integers(0, 300), w=strategies.dense(1, dtype=np.float64),
       m=strategies.dense(1, low=0, dtype=np.float64), v=strategies.dense(1, low=0, dtype=np.float64))
def test_idle_is_many_steps_without_gradient(optimizer, first, count, w, m, v):
    slots = np.array([m, v])[:optimizer.slots]
    start = w.copy(), *np.vstack([slots, np.zeros((2 - optimizer.slots, 1))])[:, 0]
    for step in range(first, first + count):
        update(optimizer.rule, w, np.zeros(1), slots, optimizer.l2, 0.0, *scalars(optimizer, step))
    found = optimizer.idle.rule(float(start[0][0]), *start[1:], idle_steps(optimizer, first, count))
    moved = abs(w[0] - start[0][0])
    if optimizer.name == "adam":
        assert moved - 1e-12 <= abs(found[0] - start[0][0])
        most = bound_of_adam(optimizer, first, count, v[0]) * abs(found[0] - start[0][0])
        assert abs(found[0] - w[0]) <= most + 1e-12
    else:
        assert_close(found[0], w[0], terms=2 * count, scale=abs(start[0][0]) + abs(start[1]), dtype=np.float64)
    assert_close(found[1:1 + optimizer.slots], slots[:, 0], terms=count, dtype=np.float64)


def bound_of_adam(optimizer, first, count, v):
    """That of its docstring, for a row that missed these steps."""
    p, b = [0.0], [1.0]
    for j in range(1, count + 1):
        a, mu, _, mu1, _, correction, epsilon = optimizer.scalars(first + j - 1)
        p.append(a * mu**j)
        b.append(math.sqrt(mu1**j) * correction)
    p, b = np.array(p), np.array(b)
    if p.sum() == 0:
        return 0
    middle = p.sum() / (p / b).sum()
    near, far = (np.average((1 - (middle / b) ** power) ** 2, weights=p) for power in (0.5, 1))
    return min(near, far * epsilon / (middle * math.sqrt(v)) if v > 0 else near)


@pytest.mark.parametrize(("first", "most"), [(2, 0.05), (101, 0.0005), (1001, 0.00002)])
def test_bound_of_adam(first, most):
    """The figures of its docstring."""
    bounds = [bound_of_adam(optimizers.adam(), first, count, 0.0) for count in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
    assert most / 4 < max(bounds) <= most


def test_own_idle():
    rule = lambda w, g, m, v, s: (s[0] * (w - g), m, v)  # noqa: E731
    shrink = optimizers.Idle(lambda w, m, v, c: (c[0] * w, m, v), (1.0,), lambda c, s: (c[0] * s[0],))
    own = Optimizer("mine", rule, slots=0, scalars=lambda step: (1 - 1 / (step + 1),), idle=shrink)
    assert own.catches_up
    assert not own.visits_every_row
    assert own.idle.rule(8.0, 0.0, 0.0, idle_steps(own, 1, 3)) == (2.0, 0.0, 0.0)

    with pytest.raises(ValueError, match=r"optimizer 'mine': idle turns w, m, v = \[0.75 0.   0.  \] into "):
        Optimizer("mine", rule, slots=0, scalars=lambda step: (0.5,), l2=0.125, idle=shrink)
    for none in ((), (1.0,) * 9):
        with pytest.raises(ValueError, match=f"optimizer 'mine': idle.none must be 1 to 8 numbers, got {len(none)}"):
            Optimizer("mine", rule, slots=0, scalars=own.scalars, idle=optimizers.Idle(shrink.rule, none, shrink.more))
    wrong = optimizers.Idle(lambda w, m, v, c: (c["shrink"] * w, m, v), (1.0,), shrink.more)
    with pytest.raises(ValueError, match=r"optimizer 'mine': idle\.rule cannot be compiled"):
        Optimizer("mine", rule, slots=0, scalars=own.scalars, idle=wrong)


def test_names():
    assert {name: make().name for name, make in OPTIMIZERS.items()} == {name: name for name in OPTIMIZERS}
