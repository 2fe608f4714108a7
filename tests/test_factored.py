"""Squared error in time that does not depend on the number of outputs: the same training as with all of them."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsenet as sn
from sparsenet import factored
from sparsenet.device import device
from sparsenet.factored import Factored
from sparsenet.layers import Dense, Input
from sparsenet.layers.batch import SparseBatch
from sparsenet.losses import squared_error
from sparsenet.testing import assert_close
from sparsenet.testing.checks import assert_trained_alike
from tests.test_sampled_losses import inputs, network


def train(random, outputs, width, batch, steps, rate, l2, density, boolean):
    """Steps, each beside the plain computation in float64; then the weights."""
    weights = random.normal(size=(outputs, width + 1)).astype(np.float32)
    w, bias, plain = weights[:, :-1].copy(), weights[:, -1].copy(), weights.astype(float)
    head, losses, decay = Factored(w, bias), np.full(batch, np.nan), np.append(np.full(width, l2), 0)
    values = None if boolean else random.normal
    for _ in range(steps):
        t = sp.random_array((batch, outputs), density=density, rng=random, format="csr", data_sampler=values)
        t.data = np.ones_like(t.data) if boolean else t.data.astype(np.float32)
        target = SparseBatch(device("cpu"), batch, t.nnz, outputs, boolean, np.float32)
        target.load(t.astype(np.float32), np.arange(batch))
        hidden, dhidden = random.normal(size=(batch, width)).astype(np.float32), np.ones((batch, width), np.float32)
        head.allocate(batch, t.nnz)
        head.step(rate, l2, 1 / batch, hidden, target, dhidden, losses)
        h = np.append(hidden.astype(float), np.ones((batch, 1)), axis=1)
        error = h @ plain.T - t.toarray()
        size = (abs(h) @ abs(plain.T) + abs(t.toarray()))
        assert_close(losses, (error**2).sum(axis=1) / 2, terms=steps, scale=(size**2).sum(axis=1), name="losses")
        assert_close(dhidden, 1 + (error @ plain)[:, :-1] / batch, terms=steps,
                     scale=1 + (size @ abs(plain))[:, :-1] / batch, name="dhidden")
        plain -= rate * (error.T @ h / batch + decay * plain)
    head.settle()
    scale = abs(plain).max()
    assert_close(w, plain[:, :-1], terms=steps, scale=scale, name="w")
    assert_close(bias, plain[:, -1], terms=steps, scale=scale, name="bias")
    return head


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_few_steps_are_those_of_all_outputs(data):
    draw = data.draw
    train(np.random.default_rng(draw(st.integers(0, 2**32 - 1))), draw(st.integers(1, 30)), draw(st.integers(1, 6)),
          draw(st.integers(1, 8)), draw(st.integers(1, 6)), draw(st.sampled_from([0.01, 0.1])),
          draw(st.sampled_from([0.0, 0.5])), draw(st.sampled_from([0.0, 0.1, 0.7])), draw(st.booleans()))


@pytest.mark.parametrize("epochs", [3, factored.EPOCHS])
def test_many_steps_lose_no_digits(epochs, monkeypatch):
    """Through many epochs, whose products all rows have to catch up with in the one case, few in the other."""
    monkeypatch.setattr(factored, "EPOCHS", epochs)
    ends = []
    monkeypatch.setattr(Factored, "_next_epoch",
                        lambda self, before=Factored._next_epoch: (ends.append(1), before(self)))
    train(np.random.default_rng(1), 120, 5, 8, 1200, 0.1, 0.01, 0.02, True)
    assert len(ends) > 10


def test_a_step_too_large_to_be_inverted():
    """rate |h|^2 = 1: what the weights knew in that direction is forgotten at once."""
    w, bias = np.full((3, 1), 2, np.float32), np.zeros(3, np.float32)
    head, target = Factored(w, bias), SparseBatch(device("cpu"), 1, 1, 3, True, np.float32)
    target.load(sp.csr_array(np.array([[0, 1, 0]], bool)), np.arange(1))
    head.allocate(1, 1)
    losses = np.zeros(1)
    head.step(0.5, 0.0, 1.0, np.ones((1, 1), np.float32), target, None, losses)
    head.settle()
    assert losses.tolist() == [(4 + 1 + 4) / 2]
    assert w[:, 0].tolist() == [1, 1.5, 1]
    assert bias.tolist() == [-1, -0.5, -1]


def test_a_network_trains_as_on_the_plain_path():
    """Weights are read in the midst, by prediction and by a file's writer, and written from outside."""
    x, t = inputs()
    trained = []
    for loss in (squared_error(), squared_error(factored=True)):
        n = network(loss, "linear")
        for _ in range(3):
            sn.fit(n, x, t, optimizer=sn.optimizers.sgd(0.05, l2=0.01, decay=0.01), epochs=4, batch=16, progress=False)
            n.predict(x)
            n.set_weights({"dense2/bias": n.weights["dense2/bias"] + 0.25})
        trained.append(n.weights)
    assert_trained_alike(trained[1], {name: array.astype(float) for name, array in trained[0].items()}, adaptive=False)


def test_another_network_reads_weights_that_have_caught_up():
    x, t = inputs()
    n = network(squared_error(factored=True), "linear")
    other = sn.Network(n.inputs, n.outputs, seed=0, device="cpu")
    sn.fit(n, x, t, optimizer=sn.optimizers.sgd(0.05), epochs=2, batch=16, progress=False)
    assert other.predict(x).tobytes() == n.predict(x).tobytes()


def test_a_file_keeps_the_form(tmp_path):
    x, t = inputs()
    n = network(squared_error(factored=True), "linear")
    sn.fit(n, x, t, optimizer=sn.optimizers.sgd(0.05), epochs=2, batch=16, progress=False)
    n.save(tmp_path / "network.nc")
    loaded = sn.Network.load(tmp_path / "network.nc", device="cpu")
    assert loaded.losses["dense2"].factored
    assert loaded.predict(x).tobytes() == n.predict(x).tobytes()


def test_what_has_no_factored_form():
    x, t = inputs()
    with pytest.raises(ValueError, match=r"factored=True needs an output with activation 'linear', got 'sigmoid'"):
        network(squared_error(factored=True), "sigmoid")
    n = network(squared_error(factored=True), "linear")
    for optimizer, name in ((sn.optimizers.adam(), "adam"), (sn.optimizers.sgd(l1=0.1), "sgd with l1")):
        with pytest.raises(ValueError, match=rf"factored=True\) is trained by sgd without l1, got {name}"):
            sn.fit(n, x, t, optimizer=optimizer, epochs=1, progress=False)
    source = Input(30, sparse=True)
    with pytest.raises(ValueError, match=r"a factored loss is for a Dense layer used once, with one dense input"):
        sn.Network(source, Dense(50)(source), squared_error(factored=True), seed=0, device="cpu")


@pytest.mark.simulator
def test_a_gpu_has_no_factored_form():
    with pytest.raises(ValueError, match=r"squared_error\(factored=True\) is for the CPU, got a network on simulator"):
        network(squared_error(factored=True), "linear", device="simulator")
