import numpy as np
import pytest
import scipy.sparse as sp

import sparsenet as sn
from sparsenet.activations import Activation
from sparsenet.layers import Dense, Input
from sparsenet.losses import Loss
from sparsenet.testing import assert_close, assert_trained_alike

ITEMS, USERS = 300, 60
OWN_LOSS = Loss("cubed", lambda y, t: abs(y - t) ** 3, lambda y, t: 3 * (y - t) * abs(y - t))
OWN_ACTIVATION = Activation("softer", lambda z: z / (1 + abs(z)), lambda y: (1 - abs(y)) ** 2)
KINDS = [(sn.losses.cross_entropy(), "sigmoid"), (sn.losses.scaled_marginal_cross_entropy(), "sigmoid"),
         (sn.losses.cross_entropy(), "softmax"), (sn.losses.squared_error(), "softmax"), (OWN_LOSS, OWN_ACTIVATION)]
SGD = sn.optimizers.sgd(0.05, l2=1e-3)


@pytest.fixture(scope="module")
def x():
    random = np.random.default_rng(0)
    matrix = sp.random_array((USERS, ITEMS), density=0.03, rng=random, format="csr")
    matrix.data[:] = 1
    return matrix


def network(loss, activation, *, units=24, bias=-1.0, **options):
    node = Input(ITEMS, sparse=True)
    return sn.Network(node, Dense(ITEMS, activation, bias=bias)(Dense(units, "tanh")(node)), loss, seed=1, **options)


def trained(net, x, optimizer, epochs=4):
    history = sn.fit(net, x, x, optimizer=optimizer, epochs=epochs, batch=25)
    return net.weights, history["loss"]


@pytest.mark.parametrize(("loss", "activation", "optimizer"), [
    *[(*kind, SGD) for kind in KINDS], (*KINDS[0], sn.optimizers.momentum(0.01)), (*KINDS[1], sn.optimizers.adam(0.01)),
], ids=lambda part: getattr(part, "name", part))
def test_learns_what_the_plain_way_learns_in_float64(loss, activation, optimizer, x):
    plain, losses = trained(network(loss, activation, dtype="float64", device="cpu"), x, optimizer)
    streamed, found = trained(network(loss, activation, streaming=True, device="cpu"), x, optimizer)
    assert_trained_alike(streamed, plain, adaptive=optimizer.name == "adam")
    assert_close(np.array(found), np.array(losses), terms=ITEMS, name="losses")


def test_few_deltas_learn_the_same(x):
    """From a bias at which next to no zero has a delta."""
    loss, optimizer = sn.losses.scaled_marginal_cross_entropy(), SGD
    plain, _ = trained(network(loss, "sigmoid", dtype="float64", device="cpu", bias=-4.0), x, optimizer)
    streamed, _ = trained(network(loss, "sigmoid", streaming=True, device="cpu", bias=-4.0), x, optimizer)
    assert_trained_alike(streamed, plain, adaptive=False)


def test_bfloat16_follows_the_same_curve(x):
    optimizer = sn.optimizers.adam(0.01)
    curves = [trained(network("cross_entropy", "sigmoid", streaming=True, device="cpu", precision=precision), x,
                      optimizer, epochs=8)[1] for precision in ("float32", "bfloat16")]
    exact, rounded = map(np.array, curves)
    assert (abs(rounded - exact) <= 2.0**-8 * exact).all()


def test_the_same_bits_again(x):
    first, second = (trained(network("cross_entropy", "softmax", streaming=True, device="cpu"), x,
                             sn.optimizers.adam())[0] for _ in range(2))
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes()


@pytest.mark.emulator
def test_on_a_gpu_too(x):
    from sparsenet.testing.emulator import Emulator

    optimizer = sn.optimizers.adam(0.01)
    there, here = (trained(network("cross_entropy", "softmax", streaming=True, device=where), x[:10], optimizer, 1)[0]
                   for where in (Emulator(), "cpu"))
    assert_trained_alike(there, here, adaptive=True)


def test_wide_outputs_stream_by_themselves():
    node = Input(10, sparse=True)
    hidden = Dense(4)(node)
    net = sn.Network(node, [Dense(1024, "sigmoid")(hidden), Dense(1023, "sigmoid")(hidden)], "cross_entropy", seed=1)
    wide, narrow = net.summary().splitlines()[3:5]
    assert wide.endswith("sigmoid; streaming")
    assert narrow.endswith("sigmoid; plain: fewer than 1,024 units")


def two_outputs(**options):
    node = Input(10, sparse=True)
    hidden = Dense(4)(node)
    return sn.Network(node, {"a": Dense(30, "sigmoid")(hidden), "b": Dense(20, "tanh")(hidden)},
                      {"a": "cross_entropy", "b": "squared_error"}, seed=1, **options)


def test_several_outputs():
    random = np.random.default_rng(0)
    x = sp.random_array((20, 10), density=0.4, rng=random, format="csr")
    targets = {name: sp.csr_array(random.random((20, units)) < 0.2) for name, units in (("a", 30), ("b", 20))}
    plain, streamed = (two_outputs(**options) for options in (
        {"dtype": "float64", "device": "cpu"}, {"streaming": True, "device": "cpu"}))
    for net in (plain, streamed):
        sn.fit(net, x, targets, optimizer=sn.optimizers.sgd(0.1), epochs=5, batch=7)
    assert_trained_alike(streamed.weights, plain.weights, adaptive=False)


def test_dense_targets_go_the_plain_way():
    """One output streams, the other has targets that are no sparse matrix; then both stream."""
    random = np.random.default_rng(0)
    x = sp.random_array((20, 10), density=0.4, rng=random, format="csr")
    a, b = sp.csr_array(random.random((20, 30)) < 0.2), sp.csr_array(random.random((20, 20)) < 0.2)
    plain, streamed = two_outputs(dtype="float64", device="cpu"), two_outputs(streaming=True, device="cpu")
    for net in (plain, streamed):
        for target in (b.toarray(), b):
            sn.fit(net, x, {"a": a, "b": target}, optimizer=sn.optimizers.momentum(0.1), epochs=2, batch=7)
    assert_trained_alike(streamed.weights, plain.weights, adaptive=False)
    assert streamed.streamed == {"a", "b"}


@pytest.mark.parametrize(("build", "reason"), [
    (lambda node: Dense(30, "sigmoid")(node), "a sparse input"),
    (lambda node: Dense(30, "sigmoid")(Dense(4)(node), Dense(4)(node)), "2 inputs"),
], ids=["sparse", "two"])
def test_what_cannot_stream_says_why(build, reason):
    node = Input(10, sparse=True)
    with pytest.raises(ValueError, match=f"streaming: output 'dense.' cannot: {reason}"):
        sn.Network(node, build(node), "cross_entropy", seed=1, streaming=True)
    node = Input(10, sparse=True)
    assert f"; plain: {reason}" in sn.Network(node, build(node), "cross_entropy", seed=1).summary()


def test_float64_does_not_stream():
    with pytest.raises(ValueError, match="cannot: float64"):
        network("cross_entropy", "sigmoid", dtype="float64", device="cpu", streaming=True)


def test_nothing_is_as_wide_as_the_outputs():
    """But the weights and their state: the rest grows by a few numbers for each."""
    def bytes_beside_weights(items):
        x = sp.csr_array((np.ones(8, bool), np.arange(8), np.arange(9)), shape=(8, items))
        node = Input(items, sparse=True)
        net = sn.Network(node, Dense(items, "sigmoid")(Dense(16)(node)), "cross_entropy", seed=1, device="cpu")
        sn.fit(net, x, x, optimizer=sn.optimizers.adam(), epochs=1, batch=8)
        return net.nbytes - sum(3 * 4 * p.inputs * p.units for p in net.parameters.values())
    assert bytes_beside_weights(40_000) - bytes_beside_weights(20_000) < 20_000 * 40
