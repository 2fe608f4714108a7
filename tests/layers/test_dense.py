"""The fully connected layer against NumPy in float64."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsenet as sn
from sparsenet import activations, initializers
from sparsenet.feeding import Door
from sparsenet.layers import Dense, Input
from sparsenet.layers.base import Signal
from sparsenet.losses import squared_error
from sparsenet.seeds import stream_key
from sparsenet.testing import assert_close, strategies
from tests import reference

PROPERTY = settings(deadline=None, max_examples=40)


def one_layer(*inputs, seed=1, **settings):
    layer = Dense(**{"units": 5, **settings})
    return sn.Network(list(inputs), layer(*inputs), seed=seed, device="cpu"), layer


def feed(network, matrix):
    return Door(network.device, network.dtype, matrix.shape[0]).inputs(matrix, network.inputs)["input1"]


# ---- declaring


@pytest.mark.parametrize(("settings", "message"), [
    ({"units": 0}, "Dense: units must be an integer of at least 1, got 0"),
    ({"units": 2.5}, "Dense: units must be an integer of at least 1, got 2.5"),
    ({"units": True}, "Dense: units must be an integer of at least 1, got True"),
    ({"units": "5"}, "Dense: units must be an integer of at least 1, got '5'"),
    ({"units": 5, "dropout": 1.0}, r"Dense: dropout must be in \[0, 1\), got 1.0"),
    ({"units": 5, "dropout": -0.1}, r"Dense: dropout must be in \[0, 1\), got -0.1"),
    ({"units": 5, "dropout": float("nan")}, r"Dense: dropout must be in \[0, 1\), got nan"),
    ({"units": 5, "dropout": 0.5, "activation": "softmax"}, "Dense: dropout after a softmax has no use"),
    ({"units": 5, "activation": "rellu"}, "activation: expected one of linear, .* or an Activation, got 'rellu'"),
    ({"units": 5, "activation": ["relu"]}, "activation: expected one of linear, .* or an Activation, got "),
    ({"units": 5, "initializer": "zavier"}, "initializer: expected one of xavier, .* or an Initializer, got 'zavier'"),
    ({"units": 5, "bias": np.zeros(4)}, r"bias: expected a number, or one for each of 5 units, got shape \(4,\)"),
    ({"units": 5, "bias": np.zeros((1, 5))}, r"bias: expected a number, .* got shape \(1, 5\)"),
    ({"units": 5, "bias": np.nan}, "bias: expected finite numbers, got nan"),
    ({"units": 5, "bias": [0, 1, np.inf, 3, 4]}, "bias: expected finite numbers, got inf"),
])
def test_refused_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Dense(**settings)


def test_refused_inputs():
    x = Input(4)
    with pytest.raises(TypeError, match="Dense: needs at least one input"):
        Dense(3)()
    for wrong in (np.zeros((2, 4)), Dense(3), None, [x]):
        with pytest.raises(TypeError, match=r"Dense: call it on layers, as in Dense\(128\)\(x\); got "):
            Dense(3)(wrong)
    layer = Dense(3, name="shared")
    layer(x)
    for others in ((Input(5),), (x, x)):
        with pytest.raises(ValueError, match=r"Dense 'shared': was called on inputs of widths \[4\] before, now \["):
            layer(*others)


def test_a_layer_makes_itself_again():
    layer = Dense(3, "elu", dropout=0.25, initializer=initializers.gaussian(0.5), name="hidden")
    assert Dense(**layer.settings()).settings() == layer.settings()
    assert layer.settings()["initializer"].settings == {"scale": 0.5}


def test_parameters_have_names_and_shapes():
    a, b = Input(4), Input(6, sparse=True)
    one, two = Dense(3), Dense(2)
    one(a)
    two(a, b)
    assert {n: (p.inputs, p.units) for n, p in one.parameters.items()} == {"weight": (4, 3), "bias": (1, 3)}
    assert {n: (p.inputs, p.units) for n, p in two.parameters.items()} == {
        "weight0": (4, 2), "weight1": (6, 2), "bias": (1, 2)}
    assert two.weight_of(1) is two.parameters["weight1"]
    assert [p.bias for p in two.parameters.values()] == [False, False, True]


def test_first_values_are_the_initializers():
    x = Input(6)
    bias = np.arange(5, dtype=np.float32)
    network, _ = one_layer(x, initializer=initializers.gaussian(0.5), bias=bias, name="d", seed=9)
    np.testing.assert_array_equal(network.weights["d/bias"], bias)
    drawn = initializers.gaussian(0.5)(stream_key(9, "d/weight"), (6, 5))
    np.testing.assert_array_equal(network.weights["d/weight"], drawn)
    network, _ = one_layer(Input(6), bias=0.25)
    np.testing.assert_array_equal(network.weights["dense1/bias"], np.full(5, 0.25))


# ---- forward


@PROPERTY
@given(st.data())
def test_sums_of_products(data):
    """y = sum_i x_i W_i + bias for any mixture of dense and sparse inputs."""
    batch, units = data.draw(strategies.sizes(1)), data.draw(strategies.sizes(1))
    kinds = data.draw(st.lists(st.sampled_from(["dense", "numbers", "flags"]), min_size=1, max_size=3))
    nodes, matrices, weights = [], [], {}
    z, magnitude, terms = np.zeros((batch, units)), np.zeros((batch, units)), 1
    for i, kind in enumerate(kinds):
        features = data.draw(strategies.sizes(1))
        nodes.append(Input(features, sparse=kind != "dense"))
        x = data.draw(strategies.dense(batch, features))
        if kind == "flags":
            x = (x > 1).astype(np.float32)
        matrices.append(x if kind == "dense" else sp.csr_array(x if kind == "numbers" else x != 0))
        w = data.draw(strategies.dense(features, units))
        weights[f"d/weight{i}" if len(kinds) > 1 else "d/weight"] = w
        z += x.astype(np.float64) @ w
        magnitude += np.abs(x).astype(np.float64) @ np.abs(w)
        terms += features
    weights["d/bias"] = data.draw(strategies.dense(units))
    network, _ = one_layer(*nodes, units=units, name="d")
    network.set_weights(weights)
    assert_close(network.predict(matrices), z + weights["d/bias"], terms=terms,
                 scale=magnitude + np.abs(weights["d/bias"]), name="y")


@PROPERTY
@given(st.data())
def test_softmax(data):
    """exp z / sum exp z: rows sum to 1, also for logits whose exponential overflows."""
    batch, units = data.draw(strategies.sizes(1)), data.draw(strategies.sizes(1))
    z = data.draw(strategies.dense(batch, units)) * np.float32(data.draw(st.sampled_from([1, 100, 1e6])))
    network, _ = one_layer(Input(units), units=units, activation="softmax", name="d")
    network.set_weights({"d/weight": np.eye(units)})
    y = network.predict(z)
    powers = np.exp(z.astype(np.float64) - z.max(1, keepdims=True).astype(np.float64))
    # z - max z is exact to one rounding, by which exp's argument, and so its result, may be off
    condition = 1 + np.abs(z.astype(np.float64) - z.max(1, keepdims=True))
    assert_close(y, powers / powers.sum(1, keepdims=True), terms=units, scale=condition * powers + 1e-30, name="y")
    assert_close(y.sum(1), np.ones(batch), terms=2 * units)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu"])
@pytest.mark.parametrize("drop", [0.0, 0.25, 0.5])
def test_dropout(activation, drop):
    """In training the units of the reference's mask are 0, the others larger; when predicting nothing happens."""
    network, _ = one_layer(Input(8), units=30, activation=activation, dropout=drop, name="d", bias=1.0, seed=4)
    x = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    plain = network.predict(x)
    loaded = {"input1": feed(network, x).load(np.arange(20))}
    network.passes.draw(4, 7)
    trained = network.passes.forward(loaded, 20, training=True)["d"].copy()
    expected = plain.astype(np.float64)
    reference.dropout([int(stream_key(4, "d", 7))], drop, expected)
    assert_close(trained, expected, name="y")
    assert np.mean(expected == 0) == pytest.approx(drop + (1 - drop) * np.mean(plain == 0), abs=0.06)
    np.testing.assert_array_equal(network.predict(x), plain)
    network.passes.draw(4, 8)
    again = network.passes.forward(loaded, 20, training=True)["d"]
    assert bool(drop) == bool((again != trained).any())


# ---- sharing


def test_a_layer_used_twice_has_one_set_of_weights():
    x = Input(5)
    layer = Dense(5, "tanh", name="d")
    network = sn.Network(x, layer(layer(x)), seed=1, device="cpu")
    assert set(network.parameters) == {"d/weight", "d/bias"}
    w, b = (network.weights[f"d/{part}"].astype(np.float64) for part in ("weight", "bias"))
    given = np.random.default_rng(0).uniform(-1, 1, (6, 5)).astype(np.float32)
    expected = np.tanh(np.tanh(given @ w + b) @ w + b)
    assert_close(network.predict(given), expected, terms=12, scale=2 + np.abs(expected))


# ---- deltas


def layer_and_signal(units, activation, batch=4, seed=0):
    layer, rng = Dense(units, activation), np.random.default_rng(seed)
    y = rng.uniform(0.1, 0.9, (batch, units)).astype(np.float32)
    if activation == "softmax":
        y /= y.sum(1, keepdims=True)
    return layer, Signal(y, rng.normal(size=y.shape).astype(np.float32), *np.zeros((2, batch), np.float32))


@pytest.mark.parametrize("activation", ["linear", "sigmoid", "tanh", "softmax"])
def test_delta_multiplies_by_the_jacobian(activation):
    layer, signal = layer_and_signal(7, activation)
    y, before = signal.y.astype(np.float64), signal.delta.astype(np.float64)
    jacobian = {"linear": lambda row: np.eye(7), "sigmoid": lambda row: np.diag(row * (1 - row)),
                "tanh": lambda row: np.diag(1 - row**2), "softmax": lambda row: np.diag(row) - np.outer(row, row)}
    layer.delta(signal)
    expected = np.stack([jacobian[activation](row) @ delta for row, delta in zip(y, before, strict=True)])
    assert_close(signal.delta, expected, terms=8, scale=1 + np.abs(before))


@pytest.mark.parametrize("activation", ["linear", "sigmoid", "softmax"])
def test_output_delta_adds_to_what_other_nodes_left(activation):
    """With accumulate, dL/dz of the readers of an output and of its own loss are summed."""
    target = np.random.default_rng(5).uniform(size=(4, 7)).astype(np.float32)
    deltas = {}
    for accumulate in (False, True):
        layer, signal = layer_and_signal(7, activation)
        layer.output_delta(signal, squared_error(), target, 0.25, accumulate)
        deltas[accumulate] = signal.delta.astype(np.float64)
    layer, signal = layer_and_signal(7, activation)
    layer.delta(signal)
    assert_close(deltas[True], deltas[False] + signal.delta, terms=8, scale=1 + np.abs(deltas[True]))


@pytest.mark.parametrize("sparse", [True, False])
def test_backward_adds(sparse):
    """Gradients of weights, of the bias and of dense inputs are added to what is there."""
    x = Input(6, sparse=sparse)
    network, layer = one_layer(x, units=5, name="d")
    given = np.random.default_rng(1).integers(-2, 3, (4, 6)).astype(np.float32)
    network.prepare(sn.optimizers.sgd(), keep_gradients=True)
    loaded = feed(network, sp.csr_array(given) if sparse else given).load(np.arange(4))
    delta = np.random.default_rng(2).integers(-2, 3, (4, 5)).astype(np.float32)
    source = Signal(loaded, None if sparse else np.ones((4, 6), np.float32), whole=loaded)
    if sparse:
        loaded.add_noise(0.0, None)
    for _ in range(2):
        layer.backward([source], Signal(np.zeros((4, 5), np.float32), delta))
    gradient, weight = layer.weights[0].gradient, layer.weights[0].value
    if not sparse:  # which lie unit by unit
        gradient, weight = gradient.T, weight.T
    np.testing.assert_array_equal(gradient, 2 * given.T @ delta)
    np.testing.assert_array_equal(layer.bias.gradient, 2 * delta.sum(0, keepdims=True))
    if not sparse:
        assert_close(source.delta, 1 + 2 * (delta.astype(np.float64) @ weight.T), terms=11,
                     scale=1 + 2 * np.abs(delta).astype(np.float64) @ np.abs(weight.T))


def test_own_activation():
    bent = activations.Activation("bent", lambda z: z if z > 0 else 0.25 * z, lambda y: 1 if y > 0 else 0.25)
    network, _ = one_layer(Input(3), units=3, activation=bent, name="d")
    network.set_weights({"d/weight": np.eye(3)})
    np.testing.assert_array_equal(network.predict(np.array([[-4.0, 0, 4]])), [[-1, 0, 4]])
