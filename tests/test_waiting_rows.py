"""Networks whose sparse weights wait until batches name them: the same as if every step visited every row."""

import numba
import numpy as np
import pytest
import scipy.sparse as sp

from sparsenet import optimizers
from sparsenet.layers import Dense, Input, backlog
from sparsenet.network import Network
from sparsenet.testing.checks import assert_trained_alike
from sparsenet.training import bind, fit

FEATURES, EXAMPLES, STEPS = 60, 32, 90


def rate(step):
    return 0.02 * (1 + np.sin(step)) / (1 + 0.01 * step)


OPTIMIZERS = [optimizers.sgd(rate, l2=0.02), optimizers.momentum(rate), optimizers.nesterov(rate, decay=0.01),
              optimizers.adagrad(rate), optimizers.rmsprop(rate), optimizers.adadelta(rate), optimizers.adam(rate),
              optimizers.adam(0.01, l2=0.01)]  # the last has no closed form


@pytest.fixture(scope="module")
def examples():
    """(inputs, targets): some features often, some hardly ever, some never."""
    random = np.random.default_rng(1)
    chance = 1 / (1 + np.arange(FEATURES - 10)) ** 1.5
    inputs = np.zeros((EXAMPLES, FEATURES))
    for row in inputs:
        row[random.choice(FEATURES - 10, 4, p=chance / chance.sum())] = 1
    return sp.csr_array(inputs), random.normal(size=(EXAMPLES, 3))


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr(backlog, "_STEPS", 20)


def new(dtype="float32", device="cpu"):
    x = Input(FEATURES, sparse=True)
    return Network(x, Dense(3)(Dense(8, "tanh")(x)), "squared_error", seed=3, device=device, dtype=dtype)


def train(network, examples, steps=STEPS, seed=0):
    feeds, wanted, _ = bind(network, *examples, 2)
    random = np.random.default_rng(seed)
    for _ in range(steps):
        network.train_batch(feeds, wanted, random.choice(EXAMPLES, 2, replace=False))


def dense(optimizer, examples, **options):
    """A network in float64, whose gradients are whole arrays."""
    network = new("float64")
    network.prepare(optimizer, keep_gradients=True)
    train(network, examples, **options)
    return network


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda one: f"{one.name}-{one.l2}")
def test_training(optimizer, dtype, examples):
    network = new(dtype)
    network.prepare(optimizer)
    train(network, examples)
    adaptive = optimizer.slots > 0 and optimizer.name not in ("momentum", "nesterov")
    bounded = optimizer.name == "adam" and dtype == "float64"  # its closed form is no better than float32
    assert_trained_alike(network.weights, dense(optimizer, examples).weights, adaptive=adaptive,
                         dtype="float32" if bounded else dtype)


@pytest.mark.parametrize("device", ["cpu", pytest.param("emulator", marks=pytest.mark.emulator),
                                    pytest.param("cuda", marks=pytest.mark.cuda)], indirect=True)
def test_whoever_reads_sees_every_step(device, examples, tmp_path):
    """Weights, predictions, files, copies: of the network as it is after the last step."""
    optimizer = optimizers.momentum(0.01)
    seen = dense(optimizer, examples, steps=12)
    readers = {
        "weights": lambda network: network.weights,
        "predict": lambda network: {"y": network.predict(examples[0])},
        "save": lambda network: network.save(tmp_path / "file.nc") or Network.load(tmp_path / "file.nc").weights,
        "copy": lambda network: network.copy().weights,
        "prepare": lambda network: network.prepare(optimizers.sgd(0.0)) or network.weights,
    }
    for read in readers.values():
        network = new(device=device)
        network.prepare(optimizer)
        train(network, examples, steps=12)
        assert_trained_alike(read(network), read(seen), adaptive=False)


def test_weights_that_are_set_have_missed_nothing(examples):
    network = new()
    network.prepare(optimizers.momentum(0.1))
    train(network, examples, steps=5)
    ones = {name: np.ones_like(array) for name, array in network.weights.items()}
    network.set_weights(ones)
    assert all(np.array_equal(array, ones[name]) for name, array in network.weights.items())


@pytest.mark.parametrize("optimizer", [optimizers.momentum(0.01), optimizers.adam(0.01)], ids=lambda one: one.name)
def test_resumed_training_ends_with_the_same_bits(optimizer, examples, tmp_path):
    """Checkpoints or not: all rows are caught up after each epoch."""
    options = {"optimizer": optimizer, "batch": 3, "progress": False}
    whole, first, second = new(), new(), new()
    fit(whole, *examples, epochs=4, **options)
    fit(first, *examples, epochs=2, checkpoint=tmp_path / "half.nc", **options)
    fit(second, *examples, epochs=4, resume=tmp_path / "half.nc", **options)
    for name, array in whole.weights.items():
        assert array.tobytes() == second.weights[name].tobytes()


def test_the_number_of_threads_does_not_matter(examples):
    found, several = [], numba.get_num_threads()
    for threads in (1, several):
        numba.set_num_threads(threads)
        try:
            network = new()
            network.prepare(optimizers.adam(0.01))
            train(network, examples)
            found.append(network.weights)
        finally:
            numba.set_num_threads(several)
    assert all(found[0][name].tobytes() == array.tobytes() for name, array in found[1].items())


def test_asking_for_memory_changes_nothing(examples):
    """Rows that wait go on waiting; what they need is counted."""
    asked, left = new(), new()
    for network in (asked, left):
        network.prepare(optimizers.adam(0.01))
        train(network, examples, steps=5)
    plain = new()
    plain.prepare(optimizers.adam(0.01), keep_gradients=True)
    assert asked.nbytes != plain.nbytes
    for network in (asked, left):
        train(network, examples, steps=5, seed=1)
    assert all(left.weights[name].tobytes() == array.tobytes() for name, array in asked.weights.items())
