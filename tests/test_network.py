"""A network as a whole: its declaration, its weights, its predictions, and what training leaves in it."""


import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsenet as sn
from sparsenet import optimizers
from sparsenet.layers import Dense, Input
from sparsenet.losses import cross_entropy
from sparsenet.testing import assert_close, assert_trained_alike
from sparsenet.training import bind
from tests.networks import (
    ALL_OPTIMIZERS,
    ITEMS,
    TWO_INPUTS,
    TWO_TARGETS,
    USERS,
    T,
    X,
    any_network,
    assert_same_bits,
    by_hand,
    small,
    state,
    train,
    two_ended,
)

# ---- declaring


@pytest.mark.parametrize("seed", [1.0, "1", None, True])
def test_seed_is_an_integer(seed):
    with pytest.raises(TypeError, match="seed: expected an integer, got "):
        small(seed=seed)


@pytest.mark.parametrize(("options", "message"), [
    ({"device": "gpu"}, "device: expected one of cpu, cuda, simulator, got 'gpu'"),
    ({"dtype": "float16"}, "dtype: expected 'float32', or 'float64' on the CPU, got 'float16' on cpu"),
    ({"dtype": None}, "dtype: expected 'float32', or 'float64' on the CPU, got None on cpu"),
    ({"dtype": "int32"}, "dtype: expected 'float32', or 'float64' on the CPU, got 'int32' on cpu"),
])
def test_unknown_device_and_type(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_ends_are_nodes():
    x = Input(3)
    y = Dense(2)(x)
    for inputs, outputs, what in ((x, Dense(2), "outputs"), (3, y, "inputs"), (x, [], "outputs"), (x, {}, "outputs"),
                                  (x, [y, "y"], "outputs"), (np.ones(3), y, "inputs")):
        with pytest.raises(TypeError, match=f"{what}: expected a layer's result, a list or a dict of them, got "):
            sn.Network(inputs, outputs, seed=1)
    with pytest.raises(ValueError, match="outputs: the same node twice"):
        sn.Network(x, [y, y], seed=1)
    with pytest.raises(ValueError, match="inputs: the same node twice"):
        sn.Network({"a": x, "b": x}, y, seed=1)
    with pytest.raises(ValueError, match="inputs: the outputs also need 1 Input that is not listed"):
        sn.Network(x, Dense(2)(x, Input(4)), seed=1)
    with pytest.raises(ValueError, match="output 'input1': is an Input; expected the result of another layer"):
        sn.Network(x, [x, y], seed=1)


@pytest.mark.parametrize(("loss", "message"), [
    ("l2", "loss: expected one of squared_error, .* or a Loss, got 'l2'"),
    (7, "loss: expected one of squared_error, .* or a Loss, got 7"),
    (["squared_error"], "loss: expected 2, for l, r, as a list or a dict"),
    ({"l": "squared_error"}, "loss: expected l, r, got l"),
    ({"l": "squared_error", "right": "cross_entropy"}, "loss: expected l, r, got l, right"),
    (["cross_entropy"] * 2, "loss 'cross_entropy' needs an output with activation sigmoid or softmax, got 'elu'"),
    (["squared_error", None], "loss: expected one of squared_error, .* or a Loss, got None"),
])
def test_losses_that_do_not_fit(loss, message):
    x = Input(3)
    left, right = Dense(2, "elu")(x), Dense(2, "softmax")(x)
    with pytest.raises(ValueError, match=message):
        sn.Network(x, {"l": left, "r": right}, loss, seed=1)


def test_a_layer_with_dropout_has_no_loss():
    x = Input(3)
    y = Dense(2, dropout=0.5)(x)
    with pytest.raises(ValueError, match="output 'dense1': a layer with dropout cannot have a loss"):
        sn.Network(x, y, "squared_error", seed=1)
    assert sn.Network(x, y, seed=1, device="cpu").predict(np.ones((1, 3))).shape == (1, 2)


def test_one_loss_for_all_outputs_or_one_each():
    x = Input(3)
    outputs = {"a": Dense(2, "sigmoid")(x), "b": Dense(2, "softmax")(x)}
    for loss, expected in (("cross_entropy", ["cross_entropy"] * 2), (["squared_error", "cross_entropy"],
                                                                      ["squared_error", "cross_entropy"]),
                           ({"b": "squared_error", "a": cross_entropy()}, ["cross_entropy", "squared_error"])):
        network = sn.Network(x, outputs, loss, seed=1, device="cpu")
        assert [network.losses[name].name for name in ("a", "b")] == expected


# ---- weights


def test_weights_are_copies_by_name():
    network = small()
    weights = network.weights
    assert {name: w.shape for name, w in weights.items()} == {
        "hidden/weight": (ITEMS, 5), "hidden/bias": (5,), "top/weight": (5, ITEMS), "top/bias": (ITEMS,)}
    weights["hidden/weight"][:] = 0
    assert network.weights["hidden/weight"].all()
    assert_same_bits(small().weights, network.weights)
    assert (small(seed=2).weights["hidden/weight"] != network.weights["hidden/weight"]).any()


def test_set_weights():
    network, other = small(), small(seed=2)
    network.set_weights(other.weights)
    assert_same_bits(network.weights, other.weights)
    network.set_weights({"top/bias": np.arange(ITEMS).tolist()})
    np.testing.assert_array_equal(network.weights["top/bias"], np.arange(ITEMS))
    np.testing.assert_array_equal(network.weights["top/weight"], other.weights["top/weight"])


@pytest.mark.parametrize(("name", "value", "message"), [
    ("dense9/weight", np.zeros((5, 5)), "weights: no parameter 'dense9/weight'; there are hidden/weight, hidden/bias"),
    ("hidden/weight", np.zeros((5, ITEMS)), r"weights: 'hidden/weight' has shape \(5, 12\), expected \(12, 5\)"),
    ("hidden/bias", np.zeros(4), r"weights: 'hidden/bias' has shape \(4,\), expected \(1, 5\)"),
    ("hidden/bias", 0.0, r"weights: 'hidden/bias' has shape \(\), expected \(1, 5\)"),
    ("hidden/bias", [0, 0, np.nan, 0, 0], "weights: 'hidden/bias' holds NaN or infinity"),
    ("hidden/bias", np.ones(5, complex), "weights: 'hidden/bias' is complex"),
    ("hidden/bias", np.full(5, 1e300), "weights: 'hidden/bias' holds NaN or infinity"),
])
def test_weights_that_do_not_fit(name, value, message):
    """Nothing is changed, not even by the parameters that fit."""
    network = small()
    before = network.weights
    with pytest.raises(ValueError, match=message):
        network.set_weights({"top/bias": np.ones(ITEMS), name: value})
    assert_same_bits(network.weights, before)


def test_summary_counts_every_weight_once():
    network = two_ended()
    lines = network.summary().splitlines()
    assert lines[0].split() == ["node", "reads", "units", "parameters", "activation"]
    assert [line.split()[0] for line in lines[1:-1]] == ["input1", "input2", "dense1", "shared", "shared.2", "left",
                                                         "right"]
    assert lines[-1].startswith(f"{sum(w.size for w in network.weights.values()):,} parameters of float32 on cpu")
    again = next(line for line in lines if line.startswith("shared.2"))
    assert again.split() == ["shared.2", "shared", "4", "20", "tanh"]


def test_summary_keeps_long_names_apart():
    x = Input(3, name="an input with quite a long name")
    y = Dense(2, name="a layer whose name is longer still than that")(x)
    line = sn.Network(x, y, seed=1, device="cpu").summary().splitlines()[2]
    assert line.startswith("a layer whose name is longer still than that  an input with quite a long name  ")


# ---- prediction


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3 * USERS))
def test_predictions_in_batches(batch):
    """Every batch size gives the formula's values, in the examples' order."""
    network = small()
    y = network.predict(X, batch=batch)
    assert (y.shape, y.dtype) == ((USERS, ITEMS), np.float32)
    assert_close(y, by_hand(network, X), terms=ITEMS + 5, scale=5.0)


@pytest.mark.parametrize("form", [dict, lambda d: list(d.values()), lambda d: tuple(d.values()),
                                  lambda d: dict(reversed(d.items()))], ids=["dict", "list", "tuple", "reversed dict"])
def test_inputs_by_name_or_in_order(form):
    network = two_ended()
    found = network.predict(form(TWO_INPUTS))
    assert list(found) == ["l", "r"]
    assert_same_bits(found, two_ended().predict(TWO_INPUTS))


@pytest.mark.parametrize(("inputs", "message"), [
    (X, "inputs: expected 2, for choices, facts, as a list or a dict"),
    ([X], "inputs: expected 2, for choices, facts, as a list or a dict"),
    ({"choices": X}, "inputs: expected choices, facts, got choices"),
    ([X, np.ones((USERS, 4))], "inputs 'facts': has 4 columns, but the layer has 3 units"),
    ([X, np.ones((USERS - 1, 3))], "inputs 'facts': has 19 examples, but others have 20"),
    ([X, sp.csr_array(np.ones((USERS, 3)))], r"inputs 'facts': is sparse; declare its layer with Input\(..., sparse=T"),
])
def test_inputs_that_do_not_fit(inputs, message):
    with pytest.raises(ValueError, match=message):
        two_ended().predict(inputs)


@pytest.mark.parametrize("batch", [0, -1, 2.5, True, None])
def test_batch_is_a_positive_integer(batch):
    calls = (lambda n: n.predict(X, batch=batch), lambda n: sn.recommend(n, X, 3, batch=batch),
             lambda n: sn.fit(n, X, T, optimizer=optimizers.sgd(), epochs=1, batch=batch))
    for call in calls:
        with pytest.raises(ValueError, match=f"batch: expected a positive integer, got {batch}"):
            call(small())


# ---- training state


@pytest.mark.parametrize("optimizer", [optimizers.adam, optimizers.adam(), "adam"], ids=["function", "Adam", "name"])
def test_optimizer_is_one(optimizer):
    network = small()
    if isinstance(optimizer, optimizers.Optimizer):
        network.prepare(optimizer)
        return
    with pytest.raises(TypeError, match=r"optimizer: expected an Optimizer, as optimizers.adam\(\) makes one, got "):
        network.prepare(optimizer)


def test_state_of_the_same_optimizer_is_kept():
    at_once, in_parts = small(), small()
    train(at_once, X, T, optimizers.adam(0.01), 6)
    for steps in (2, 3, 1):
        train(in_parts, X, T, optimizers.adam(0.01), steps)
    assert in_parts.step == 6
    assert_same_bits(state(in_parts), state(at_once))


def test_state_is_kept_when_the_rate_is_changed():
    """As a schedule would have it."""
    by_hand, scheduled = small(), small()
    for rate, steps in ((0.01, 3), (0.001, 2)):
        train(by_hand, X, T, optimizers.adam(rate), steps)
    train(scheduled, X, T, optimizers.adam(lambda step: 0.01 if step <= 3 else 0.001), 5)
    assert_same_bits(state(by_hand), state(scheduled))


@pytest.mark.parametrize("other", [o for o in ALL_OPTIMIZERS if o.name != "adam"], ids=lambda o: o.name)
def test_another_optimizer_begins_anew(other):
    network = small()
    train(network, X, T, optimizers.adam(0.01), 3)
    fresh = small()
    fresh.set_weights(network.weights)
    assert np.any(network.parameters["hidden/weight"].slots)
    fresh.step = network.step  # which counts on
    for one in (network, fresh):
        train(one, X, T, other, 2)
    assert {p.step for p in network.parameters.values()} == {2}
    assert_same_bits(state(network), state(fresh))


def test_predicting_larger_batches_does_not_disturb_training():
    plain, disturbed = small(), small()
    train(plain, X, T, optimizers.adam(), 6, batch=5)
    feeds, wanted, _ = bind(disturbed, X, T, 5)
    disturbed.prepare(optimizers.adam())
    for step in range(6):
        disturbed.train_batch(feeds, wanted, np.arange(step * 5 % USERS, step * 5 % USERS + 5))
        disturbed.predict(X, batch=USERS - step)
        sn.recommend(disturbed, X, 3, batch=step + 1)
    assert_same_bits(state(disturbed), state(plain))


def test_an_interrupted_step_leaves_no_gradient_behind():
    """As when the user stops a notebook between backward pass and update, and trains again."""
    plain, interrupted = two_ended(), two_ended()
    feeds, wanted, _ = bind(interrupted, TWO_INPUTS, TWO_TARGETS, 7)
    interrupted.passes.allocate(7, training=True)
    interrupted.prepare(optimizers.sgd())
    rows = np.arange(7)
    interrupted.passes.draw(3, 1)
    interrupted.passes.forward({name: feed.load(rows) for name, feed in feeds.items()}, 7, training=True)
    interrupted.passes.backward({name: feed.load(rows) for name, feed in wanted.items()}, 7)
    for network in (plain, interrupted):
        train(network, TWO_INPUTS, TWO_TARGETS, optimizers.sgd(), 4)
    assert_same_bits(state(interrupted), state(plain))


@pytest.mark.parametrize("optimizer", ALL_OPTIMIZERS, ids=lambda o: o.name)
def test_lazy_optimizers_leave_absent_features_alone(optimizer):
    """Weights and state; features of the batch move as ever, and so does the rest of the network."""
    name = optimizer.name
    lazy, exact = (optimizers.OPTIMIZERS[name](0.1, l2=0.1, lazy=lazy) for lazy in (True, False))
    once, other = small(), small()
    for network, steps in ((once, lazy), (other, exact)):
        train(network, X, T, steps, 1, batch=3)
    touched = np.unique(X[:3].indices)
    absent = np.setdiff1d(np.arange(ITEMS), touched)
    assert len(touched)
    assert len(absent)
    first = small().weights["hidden/weight"]
    np.testing.assert_array_equal(once.weights["hidden/weight"][absent], first[absent])
    assert (other.weights["hidden/weight"][absent] != first[absent]).all()
    assert_same_bits({"w": once.weights["hidden/weight"][touched]}, {"w": other.weights["hidden/weight"][touched]})
    assert_same_bits({"w": once.weights["top/weight"]}, {"w": other.weights["top/weight"]})
    assert not once.parameters["hidden/weight"].slots[:, absent].any()
    assert other.parameters["hidden/weight"].slots[:, absent].any() or not optimizer.slots


def test_lazy_optimizers_need_weights_that_are_used_once():
    """A weight that is used twice has a gradient array, which does not tell what a batch named."""
    x = Input(ITEMS, sparse=True)
    layer = Dense(ITEMS, "tanh", name="twice")
    network = sn.Network(x, layer(layer(x)), "squared_error", seed=1, device="cpu")
    network.prepare(optimizers.adam())
    with pytest.raises(ValueError, match="optimizer: lazy=True is for weights of a sparse input that are used once; "
                                         "twice/weight is used 2 times"):
        network.prepare(optimizers.adam(lazy=True))


def test_training_needs_an_optimizer():
    network = small()
    feeds, wanted, _ = bind(network, X, T, 7)
    with pytest.raises(ValueError, match=r"train_batch: call prepare\(optimizer\) first"):
        network.train_batch(feeds, wanted, np.arange(7))


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_optimizers_that_may_skip_absent_features_change_nothing_there(name):
    network = small()
    train(network, X, T, optimizers.OPTIMIZERS[name](0.1), 1, batch=3)
    absent = np.setdiff1d(np.arange(ITEMS), X[:3].indices)
    np.testing.assert_array_equal(network.weights["hidden/weight"][absent], small().weights["hidden/weight"][absent])


@settings(deadline=None, max_examples=40)
@given(any_network("float64"))
def test_gradients_that_are_stored_and_that_are_summed_in_the_update(drawn):
    """Any graph trains alike whether or not the weights of sparse inputs keep a gradient array (as check_gradients has
    it); a layer that is used twice, once on a sparse input, must keep one.
    """
    network, inputs, targets = drawn
    stored = network.copy()
    for one in (network, stored):
        feeds, wanted, _ = bind(one, inputs, targets, 3)
        one.prepare(optimizers.momentum(0.05, l2=0.1), keep_gradients=one is stored)
        for rows in (np.arange(3), np.arange(2), np.array([2, 0])):
            one.train_batch(feeds, wanted, rows)
    assert_trained_alike(network.weights, stored.weights, adaptive=False, dtype=np.float64)


def test_own_optimizer():
    """Sign descent with the step as rate: two steps, by hand."""
    own = optimizers.Optimizer("sign", rule=lambda w, g, m, v, s: (w - s[0] * np.sign(g), m, v), slots=0,
                               scalars=lambda step: (0.25 * step,))
    x = Input(1)
    network = sn.Network(x, Dense(1, initializer="constant")(x), "squared_error", seed=1, device="cpu")
    feeds, wanted, _ = bind(network, np.array([[1.0]]), np.array([[8.0]]), 1)
    network.prepare(own)
    losses = [network.train_batch(feeds, wanted, np.array([0])) for _ in range(2)]
    assert losses == [32.0, (8 - 0.5) ** 2 / 2]
    assert {name: w.item() for name, w in network.weights.items()} == {"dense1/weight": 0.75, "dense1/bias": 0.75}


def test_a_matrix_that_is_input_and_target_is_scaled_for_each():
    """The input by its length, the target by its number of entries or not at all."""
    for normalize, loss in ((True, "squared_error"), (False, cross_entropy(normalize=True)),
                            (True, cross_entropy(normalize=True))):
        x = Input(ITEMS, sparse=True, normalize=normalize)
        network = sn.Network(x, Dense(ITEMS, "softmax")(x), loss, seed=1, device="cpu")
        apart = network.copy()
        for one, target in ((network, T), (apart, T.copy())):
            sn.fit(one, T, target, optimizer=optimizers.sgd(0.1), epochs=1)
        assert_same_bits(network.weights, apart.weights)


# ---- layers that networks share


def test_networks_over_the_same_layers_share_weights():
    x = Input(ITEMS, sparse=True)
    h = Dense(5, "tanh", name="hidden")(x)
    y = Dense(ITEMS, "sigmoid", name="top")(h)
    whole, encoder = sn.Network(x, y, "cross_entropy", seed=1, device="cpu"), sn.Network(x, h, seed=2, device="cpu")
    assert_same_bits(whole.weights, small().weights)
    train(whole, X, T, optimizers.adam(0.01), 5)
    w = {name: array.astype(np.float64) for name, array in whole.weights.items()}
    assert set(encoder.weights) == {"hidden/weight", "hidden/bias"}
    assert_same_bits(encoder.weights, {name: whole.weights[name] for name in encoder.weights})
    expected = np.tanh(X.toarray().astype(np.float64) @ w["hidden/weight"] + w["hidden/bias"])
    assert_close(encoder.predict(X), expected, terms=ITEMS, scale=4.0)


def test_networks_that_share_a_layer_may_use_different_optimizers():
    """RMSProp never sees momentum's state, which is negative where its own is a mean of squares."""
    x = Input(ITEMS, sparse=True)
    h = Dense(5, "tanh")(x)
    one, two = (sn.Network(x, Dense(ITEMS, "sigmoid")(h), "cross_entropy", seed=s, device="cpu") for s in (1, 2))
    for _ in range(3):
        assert np.isfinite(train(one, X, T, optimizers.rmsprop(0.01), 3)).all()
        assert np.isfinite(train(two, X, T, optimizers.momentum(0.01), 3)).all()
    assert all(np.isfinite(w).all() for w in (one.weights | two.weights).values())


def test_networks_that_share_a_layer_may_take_turns_batch_by_batch():
    """One stores the gradient of the shared weights, since it uses them twice; the other sums it in the update."""
    def make():
        x = Input(ITEMS, sparse=True)
        layer = Dense(ITEMS, "tanh")
        return [sn.Network(x, y, "squared_error", seed=1, device="cpu") for y in (layer(layer(x)), layer(x))]

    in_turn, one_by_one = make(), make()
    prepared = []
    for network in in_turn:
        feeds, wanted, _ = bind(network, X, T, 7)
        network.prepare(optimizers.momentum(0.05))
        prepared.append((feeds, wanted))
    for step in range(4):
        rows = np.arange(7) + step
        for network, (feeds, wanted) in zip(in_turn, prepared, strict=True):
            network.train_batch(feeds, wanted, rows)
        for network in one_by_one:
            network.prepare(optimizers.momentum(0.05))
            network.train_batch(*bind(network, X, T, 7)[:2], rows)
    assert_same_bits(state(in_turn[0]), state(one_by_one[0]))


def test_a_shared_layer_has_one_device_and_type():
    x = Input(ITEMS, sparse=True)
    h = Dense(5, name="hidden")(x)
    sn.Network(x, h, seed=1, device="cpu")
    with pytest.raises(ValueError, match="hidden/weight belongs to a network on another device or of another dtype"):
        sn.Network(x, h, seed=1, device="cpu", dtype="float64")


def test_a_matrix_that_is_input_and_target_is_loaded_once():
    """Also with noise on the input: the target is the clean matrix."""
    x = Input(ITEMS, sparse=True, denoising=0.5)
    network = sn.Network(x, Dense(ITEMS, "sigmoid")(Dense(4)(x)), "cross_entropy", seed=1, device="cpu")
    feeds, wanted, _ = bind(network, T, T, 7)
    assert feeds["input1"] is wanted["dense2"]
    apart = network.copy()
    losses = [sn.fit(one, T, target, optimizer=optimizers.adam(), epochs=2, batch=7)["loss"]
              for one, target in ((network, T), (apart, T.copy()))]
    assert losses[0] == losses[1]
    assert_same_bits(network.weights, apart.weights)
