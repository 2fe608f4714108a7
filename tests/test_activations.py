"""Activations against their published formulas, and the refusal of wrong pairs."""

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings

from sparsenet import activations
from sparsenet.activations import ACTIVATIONS, Activation
from sparsenet.kernels.activation import activate
from sparsenet.testing import assert_close, strategies

LAMBDA, ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717  # Klambauer et al. 2017
FORMULAS = {  # name and arguments: y of z, dy/dz of z
    ("linear",): (lambda z: z, np.ones_like),
    ("sigmoid",): (scipy.special.expit, lambda z: scipy.special.expit(z) * scipy.special.expit(-z)),
    ("tanh",): (np.tanh, lambda z: 1 / np.cosh(z) ** 2),
    ("relu",): (lambda z: np.maximum(z, 0), lambda z: np.where(z > 0, 1.0, 0.0)),
    ("leaky_relu",): (lambda z: np.where(z > 0, z, 0.01 * z), lambda z: np.where(z > 0, 1, 0.01)),
    ("leaky_relu", 0.25): (lambda z: np.where(z > 0, z, 0.25 * z), lambda z: np.where(z > 0, 1, 0.25)),
    ("elu",): (lambda z: np.where(z > 0, z, np.expm1(z)), lambda z: np.where(z > 0, 1, np.exp(z))),
    ("elu", 0.5): (lambda z: np.where(z > 0, z, 0.5 * np.expm1(z)), lambda z: np.where(z > 0, 1, 0.5 * np.exp(z))),
    ("selu",): (lambda z: LAMBDA * np.where(z > 0, z, ALPHA * np.expm1(z)),
                lambda z: LAMBDA * np.where(z > 0, 1, ALPHA * np.exp(z))),
    ("softplus",): (lambda z: np.logaddexp(0, z), scipy.special.expit),
    ("softsign",): (lambda z: z / (1 + abs(z)), lambda z: 1 / (1 + abs(z)) ** 2),
}


def made(key):
    return ACTIVATIONS[key[0]](*key[1:])


def on_array(function, z):
    """The compiled function, element by element, as a kernel runs it."""
    y = np.array(z, np.float32, ndmin=2)
    activate(function, np.zeros(y.shape[1], np.float32), y)
    return y


@pytest.mark.parametrize("key", FORMULAS, ids=str)
@settings(deadline=None, max_examples=40)
@given(z=strategies.dense(1, 40))
def test_value_and_slope(key, z):
    value, slope = FORMULAS[key]
    exact = z.astype(np.float64)
    y = value(exact)
    assert_close(on_array(made(key).value, z), y, terms=4, name="value")
    # A slope is computed from the rounded y, which has an effect where 1 - y or y + alpha is small.
    assert_close(on_array(made(key).slope, y), slope(exact), scale=1 + np.abs(y), name="slope")


def test_every_activation_has_its_formula():
    assert set(ACTIVATIONS) == {key[0] for key in FORMULAS} | {"softmax"}
    for name, make in ACTIVATIONS.items():
        assert make().name == name
        assert make() is make()  # else every network would compile its kernels anew
        assert make().rowwise == (name == "softmax")
        assert ACTIVATIONS[name](**make().settings).settings == make().settings


@pytest.mark.parametrize("key", FORMULAS, ids=str)
def test_extreme_values(key):
    """Nothing becomes NaN; what saturates does so at its limits."""
    z = np.array([[-3e38, -1e6, -200, -90, 0, 90, 200, 1e6, 3e38]], np.float32)
    with np.errstate(over="ignore"):
        expected = FORMULAS[key][0](z.astype(np.float64)).astype(np.float32)
    y = on_array(made(key).value, z)
    assert not np.isnan(y).any()
    assert_close(y, expected.astype(np.float64), name="value")
    slopes = on_array(made(key).slope, y)
    assert not np.isnan(slopes).any()
    assert (slopes >= 0).all()
    assert slopes.max() <= 1 + LAMBDA * ALPHA


@pytest.mark.parametrize(("value", "slope"), [
    (lambda z: z * z, lambda y: y),
    (lambda z: math.tanh(z), lambda y: 1 - y),
    (lambda z: math.tanh(z), lambda y: -(1 - y * y)),
    (lambda z: math.tanh(z), lambda y: 1 - math.tanh(y) ** 2),      # a function of z by mistake
    (lambda z: z, lambda y: 1.01),
    (lambda z: z, lambda y: float("nan")),
])
def test_wrong_slope_is_refused(value, slope):
    with pytest.raises(ValueError, match=r"activation 'mine': slope\(value\(-?\d\.\d\)\) is .*, but value rises by .*; "
                                         r"slope takes y = value\(z\), not z"):
        Activation("mine", value=value, slope=slope)


@pytest.mark.parametrize("function", [math.tanh, np.tanh, 3.0, "tanh"])
def test_functions_are_written_in_python(function):
    with pytest.raises(TypeError, match=r"expected a function written in Python, such as lambda z: .*, got "):
        Activation("mine", value=function, slope=lambda y: 1 - y * y)


def test_sparsenets_names_are_taken():
    with pytest.raises(ValueError, match="activation 'tanh': that name is sparsenet's, choose another"):
        Activation("tanh", value=lambda z: math.tanh(z), slope=lambda y: 1 - y * y)


def test_what_cannot_be_compiled_is_refused():
    with pytest.raises(ValueError, match="activation 'mine': value cannot be compiled: "):
        Activation("mine", value=lambda z: scipy.special.erf(z), slope=lambda y: 1.0)


def test_a_right_slope_is_not():
    mine = Activation("mine", value=lambda z: z / math.sqrt(1 + z * z), slope=lambda y: (1 - y * y) ** 1.5)
    assert (mine.name, mine.settings, mine.rowwise) == ("mine", None, False)
    with pytest.raises(FrozenInstanceError):
        mine.slope = mine.value


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"leaky_relu: slope must not be negative, got -0\.1"):
        activations.leaky_relu(-0.1)
    with pytest.raises(ValueError, match="activation 'leaky_relu': slope"):
        activations.leaky_relu(float("nan"))


def test_get():
    assert activations.get("tanh") is activations.tanh()
    mine = Activation("mine", value=lambda z: 2 * z, slope=lambda y: 2.0)
    assert activations.get(mine) is mine
    for wrong in ("TanH", "", None, 3, ["tanh"], math.tanh):
        with pytest.raises(ValueError, match=r"activation: expected one of linear, sigmoid, .* or an Activation, got "):
            activations.get(wrong)


def test_describe():
    assert activations.describe(activations.elu(0.5)) == {"name": "elu", "settings": {"alpha": 0.5}}
