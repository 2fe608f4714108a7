"""Backward passes against central differences in float64: every activation, every loss, every way to connect layers."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings

import sparsenet as sn
import sparsenet.layers.dense
from sparsenet import activations, losses
from sparsenet.device import scalar
from sparsenet.layers import Dense, Input
from sparsenet.losses import Loss, cross_entropy, scaled_marginal_cross_entropy, squared_error
from sparsenet.testing import check_gradients
from tests.functions import USERS_ACTIVATION, USERS_LOSS
from tests.networks import any_network

EXAMPLES, FEATURES, UNITS = 6, 12, 9
VALUED = sp.random_array((EXAMPLES, FEATURES), density=0.4, rng=1, format="csr")
FLAGS = sp.csr_array(sp.random_array((EXAMPLES, FEATURES), density=0.4, rng=2) != 0)
NUMBERS = np.random.default_rng(3).normal(size=(EXAMPLES, 4))
CHOSEN = sp.csr_array(sp.random_array((EXAMPLES, UNITS), density=0.3, rng=4) != 0)
TARGETS = {
    "dense": np.random.default_rng(5).uniform(size=(EXAMPLES, UNITS)),
    "dense flags": CHOSEN.toarray(),
    "sparse flags": CHOSEN,
    "sparse values": sp.random_array((EXAMPLES, UNITS), density=0.3, rng=6, format="csr"),
}

EVERY_ACTIVATION = [*(make() for make in activations.ACTIVATIONS.values()), activations.leaky_relu(0.3),
                    activations.elu(0.7), USERS_ACTIVATION]
MEANINGS = [  # (activation, loss): every pair that `through` lets pass, with other settings than the defaults too
    *((activation, squared_error()) for activation in EVERY_ACTIVATION),
    *((activations.get(name), loss) for name in ("sigmoid", "softmax")
      for loss in (cross_entropy(), cross_entropy(normalize=True), scaled_marginal_cross_entropy(),
                   scaled_marginal_cross_entropy(0.7, 0.05, 0.5, 2.0))),
    *((activations.get(name), USERS_LOSS) for name in ("linear", "sigmoid", "softmax")),
]


def named(value):
    return f"{value.name}{''.join(f' {x}' for x in (value.settings or {}).values())}"


def slopes_of(activation, loss):
    """A hidden layer with the activation between layers that any gradient has to pass."""
    x = Input(FEATURES, sparse=True, normalize=True)
    h = Dense(5, activation, bias=0.3)(Dense(6, "tanh")(x))
    return sn.Network(x, Dense(UNITS, activation, bias=np.linspace(-1, 1, UNITS))(h), loss, seed=11, device="cpu")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("activation", "loss"), MEANINGS, ids=named)
def test_every_activation_with_every_loss(activation, loss, target):
    errors = check_gradients(slopes_of(activation, loss), VALUED, TARGETS[target])
    assert errors.keys() == {f"dense{i}/{part}" for i in (1, 2, 3) for part in ("weight", "bias")}
    assert max(errors.values()) <= 1e-6


@pytest.mark.parametrize("activation", [a for a in EVERY_ACTIVATION if not a.rowwise], ids=named)
def test_dropout_and_denoising(activation):
    x, d = Input(FEATURES, sparse=True, denoising=0.3), Input(FEATURES, sparse=True, denoising=0.2)
    h = Dense(6, activation, dropout=0.4)(x, d)
    y = Dense(UNITS, "sigmoid")(Dense(7, "tanh", dropout=0.3)(h))
    network = sn.Network([x, d], y, "cross_entropy", seed=2, device="cpu")
    check_gradients(network, [VALUED, FLAGS], CHOSEN, training=True)


def deep():
    """Three inputs, a layer used twice, outputs that are read on, a skip connection, two readers of one layer."""
    x, flags, numbers = Input(FEATURES, sparse=True), Input(FEATURES, sparse=True), Input(4)
    h = Dense(5, "tanh")(x, numbers, flags)
    twice = Dense(5, "sigmoid")
    mid = Dense(UNITS, "softmax")(twice(twice(h)))
    top = Dense(UNITS, "sigmoid")(mid, x, h)
    inputs = {"values": x, "flags": flags, "numbers": numbers}
    return sn.Network(inputs, {"mid": mid, "top": top}, {"mid": "cross_entropy", "top": "squared_error"}, seed=4,
                      device="cpu")


DEEP_DATA = {"values": VALUED, "flags": FLAGS, "numbers": NUMBERS}, {"mid": CHOSEN, "top": TARGETS["dense"]}


def test_many_inputs_shared_layers_and_outputs_that_are_read_on():
    errors = check_gradients(deep(), *DEEP_DATA)
    assert len(errors) == 4 + 2 + 2 + 4


@pytest.mark.parametrize("loss", ["squared_error", "cross_entropy", "scaled_marginal_cross_entropy"])
@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
@pytest.mark.parametrize("target", ["dense", "sparse flags"])
def test_output_that_another_output_reads(activation, loss, target):
    x = Input(FEATURES, sparse=True)
    first = Dense(UNITS, activation, bias=0.1)(x)
    second = Dense(UNITS, "sigmoid")(first)
    network = sn.Network(x, [first, second], [loss, "squared_error"], seed=3, device="cpu")
    check_gradients(network, VALUED, [TARGETS[target], TARGETS["dense"]])


def test_one_layer_on_sparse_and_on_dense_input():
    x, d = Input(FEATURES, sparse=True), Input(FEATURES)
    layer = Dense(FEATURES, "tanh")
    y = Dense(UNITS, "sigmoid")(layer(x), layer(d), layer(layer(x)))
    network = sn.Network([x, d], y, "cross_entropy", seed=6, device="cpu")
    check_gradients(network, [FLAGS, VALUED.toarray()], CHOSEN)


def test_one_input_read_twice_by_one_layer():
    x = Input(FEATURES, sparse=True)
    network = sn.Network(x, Dense(UNITS, "tanh")(x, x), "squared_error", seed=6, device="cpu")
    check_gradients(network, VALUED, CHOSEN)


@settings(deadline=None, max_examples=40)
@given(any_network())
def test_any_graph(drawn):
    check_gradients(*drawn)


# ---- the check itself


def broken_activation():
    broken = activations.Activation("broken", value=lambda z: np.tanh(z), slope=lambda y: 1 - y * y)
    object.__setattr__(broken, "slope", scalar(lambda y: 1 - y * y * 0.999))  # past the door
    return broken


def test_a_wrong_slope_of_an_activation_is_noticed():
    network = slopes_of(broken_activation(), squared_error())
    with pytest.raises(AssertionError, match=r"dense\d/(weight|bias)\[\d+\]: gradient is .*, central difference"):
        check_gradients(network, VALUED, CHOSEN)


@pytest.mark.parametrize(("part", "activation"), [("slope", "tanh"), ("sigmoid_slope", "sigmoid"),
                                                  ("softmax_slope", "softmax")])
def test_a_wrong_slope_of_a_loss_is_noticed(part, activation):
    loss = Loss("broken", value=lambda y, t: (y - t) ** 2, slope=lambda y, t: 2 * (y - t))
    object.__setattr__(loss, part, scalar(lambda y, t: (y - t) * 1.999))
    with pytest.raises(AssertionError, match="central difference"):
        check_gradients(slopes_of(activations.get(activation), loss), VALUED, CHOSEN)


def ignores_accumulate(kernel):
    return lambda *arrays, accumulate=False, **options: kernel(*arrays, **options)


PLANTED = {  # mistakes in the backward pass, by the kernel that is called
    "a skip connection overwrites": ("matmul", ignores_accumulate),
    "the bias is forgotten": ("column_sum", lambda kernel: lambda *arrays: None),
    "softmax keeps its first half only": ("softmax_delta", lambda kernel: lambda *arrays: None),
    "values of the sparse input are ignored": ("sparse_weight_gradient",
                                               lambda kernel: lambda f, i, e, p, t, data, d, g:
                                               kernel(f, i, e, p, t, None, d, g)),
    "the mean over the batch is a sum": ("output_delta", lambda kernel: lambda slope, scale, *rest:
                                         kernel(slope, 1.0, *rest)),
    "the same with sparse targets": ("sparse_output_delta", lambda kernel: lambda slope, scale, *rest:
                                     kernel(slope, 1.0, *rest)),
    "the hidden slope is forgotten": ("hidden_delta", lambda kernel: lambda *arrays: None),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_mistake_in_the_backward_pass_is_noticed(mistake, monkeypatch):
    name, plant = PLANTED[mistake]
    check_gradients(deep(), *DEEP_DATA)
    monkeypatch.setattr(sparsenet.layers.dense, name, plant(getattr(sparsenet.layers.dense, name)))
    with pytest.raises(AssertionError, match="central difference"):
        check_gradients(deep(), *DEEP_DATA)


def test_a_forgotten_mask_is_noticed(monkeypatch):
    x = Input(FEATURES, sparse=True)
    network = sn.Network(x, Dense(UNITS)(Dense(20, "tanh", dropout=0.3)(x)), "squared_error", seed=2, device="cpu")
    check_gradients(network, VALUED, CHOSEN, training=True)
    monkeypatch.setattr(sparsenet.layers.dense, "dropped_delta",
                        lambda slope, key, drop, y, delta, *_: sparsenet.layers.dense.hidden_delta(slope, y, delta))
    check_gradients(network, VALUED, CHOSEN)
    with pytest.raises(AssertionError, match="central difference"):
        check_gradients(network, VALUED, CHOSEN, training=True)


def test_the_network_is_left_alone():
    network = deep()
    before, network.step = network.weights, 3
    check_gradients(network, *DEEP_DATA, training=True)
    assert network.step == 3
    assert network.optimizer is None
    for name, array in network.weights.items():
        np.testing.assert_array_equal(array, before[name])


def test_a_sample_reaches_both_ends_and_the_tolerance_counts():
    network = slopes_of(activations.tanh(), squared_error())
    some, every = (check_gradients(network, VALUED, CHOSEN, sample=n) for n in (2, None))
    assert some.keys() == every.keys()
    assert all(some[name] <= every[name] for name in every)
    with pytest.raises(AssertionError, match="central difference"):
        check_gradients(network, VALUED, CHOSEN, tolerance=0.0)


def test_losses_that_may_not_stand_on_an_activation_are_those_left_out():
    """MEANINGS is the whole of what sparsenet allows."""
    allowed = {(activation.name, loss.name) for activation in EVERY_ACTIVATION
               for loss in (make() for make in losses.LOSSES.values())
               if loss.outputs is None or activation.name in loss.outputs}
    assert allowed <= {(activation.name, loss.name) for activation, loss in MEANINGS}
