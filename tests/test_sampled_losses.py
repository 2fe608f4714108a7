"""Sampled losses: on average the exact ones, the nearer the more is drawn; and what a network makes of them."""

import numpy as np
import pytest
import scipy.sparse as sp

import sparsenet as sn
from sparsenet import losses
from sparsenet.device import device as find_device
from sparsenet.layers import Dense, Input
from sparsenet.layers.base import Signal
from sparsenet.layers.batch import SparseBatch
from sparsenet.losses import cross_entropy, sampled, squared_error
from sparsenet.sampling import Sampling
from sparsenet.testing import assert_close
from sparsenet.testing.checks import assert_trained_alike
from tests import reference

BATCH, INPUTS, OUTPUTS, EXAMPLES = 6, 3, 64, 20
RANDOM = np.random.default_rng(0)
HIDDEN = RANDOM.normal(size=(EXAMPLES, INPUTS)).astype(np.float32)
TARGETS = sp.csr_array(sp.random_array((EXAMPLES, OUTPUTS), density=0.05, rng=1) != 0)
W, BIAS = RANDOM.normal(size=(OUTPUTS, INPUTS)).astype(np.float32), RANDOM.normal(size=OUTPUTS).astype(np.float32)


class Output:
    """One output layer, its head, and steps of descent at rate 1 from the same weights."""

    def __init__(self, loss, activation, device="cpu"):
        self.device = find_device(device)
        x = Input(INPUTS)
        self.network = sn.Network(x, Dense(OUTPUTS, activation, name="out")(x), loss, seed=0, device=device)
        self.network.prepare(sn.optimizers.sgd(1.0))
        [self.head] = self.network.passes.heads.values()
        self.head.prepare(sn.optimizers.sgd(1.0))
        self.head.allocate(BATCH)
        self.scalars = self.device.put(np.ones(8, np.float32))

    def step(self, rows, key):
        """(losses, gradients by hidden, w and bias) of a step; the mean over examples."""
        layer = self.head.layer
        self.network.set_weights({"out/weight": W.T, "out/bias": BIAS})
        target = SparseBatch(self.device, BATCH, TARGETS.nnz, OUTPUTS, True, np.float32)
        target.load(TARGETS, rows)
        put, found = self.device.put, self.device.put(np.zeros(len(rows)))
        source = Signal(put(HIDDEN[rows]), put(np.zeros_like(HIDDEN[rows])))
        self.head.step(source, target, 1 / len(rows), self.scalars, found, put(np.array([key], np.uint64)))
        fetch = self.device.fetch
        return (fetch(found), fetch(source.delta), W.astype(float) - fetch(layer.weights[0].value),
                BIAS.astype(float) - fetch(layer.bias.value)[0])


def exact(kind, rows):
    """The same in float64, of all outputs."""
    h, t, w = HIDDEN[rows].astype(float), TARGETS[rows].toarray(), W.astype(float)
    z = h @ w.T + BIAS
    if kind == "softmax":
        y = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        found, delta = -(t * np.log(y)).sum(axis=1), y * t.sum(axis=1, keepdims=True) - t
    elif kind == "sigmoid":
        y = 1 / (1 + np.exp(-z))
        found, delta = -(t * np.log(y) + (1 - t) * np.log(1 - y)).sum(axis=1), y - t
    else:
        found, delta = ((z - t)**2).sum(axis=1) / 2, z - t
    delta /= len(rows)
    return found, delta @ w, delta.T @ h, delta.sum(axis=0)


ROWS = np.arange(BATCH)
SHARES = TARGETS.sum(axis=0) / EXAMPLES
KINDS = {"sigmoid": cross_entropy(), "linear": squared_error()}


def assert_mean(samples, expected):
    """Within 5 standard errors of the mean of independent samples."""
    samples = np.array(samples)
    error = samples.std(axis=0) / np.sqrt(len(samples))
    assert (abs(samples.mean(axis=0) - expected) <= 5 * error + 1e-5 * abs(expected).max()).all()
    assert error.mean() < 0.1 * abs(expected).max()


@pytest.mark.parametrize("distribution", ["uniform", "log_uniform", "popularity"])
@pytest.mark.parametrize("kind", KINDS)
def test_elementwise_losses_are_exact_on_average(kind, distribution):
    popularity = {"popularity": SHARES} if distribution == "popularity" else {}
    output = Output(sampled(KINDS[kind], 16, distribution, **popularity), kind)
    samples = [output.step(ROWS, key) for key in range(1000)]
    for part, expected in enumerate(exact(kind, ROWS)):
        assert_mean([sample[part] for sample in samples], expected)


@pytest.mark.parametrize("negatives", [0, 16])
def test_negatives_of_the_batch_are_exact_on_average(negatives):
    """Of one example, among others drawn with repetition. Nobody's targets are drawn, or not looked at."""
    output = Output(sampled(cross_entropy(), negatives, in_batch=True, popularity=TARGETS), "sigmoid")
    random = np.random.default_rng(2)
    samples = [output.step(np.append(0, random.integers(0, EXAMPLES, BATCH - 1)), key) for key in range(3000)]
    h, t = HIDDEN[0].astype(float), TARGETS[[0]].toarray()[0]
    y = 1 / (1 + np.exp(-(W.astype(float) @ h + BIAS)))
    seen = SHARES > 0 if negatives == 0 else np.ones(OUTPUTS, bool)
    assert_mean([sample[0][0] for sample in samples], -np.log(np.where(t == 1, y, 1 - y))[seen].sum())
    assert_mean([sample[1][0] for sample in samples], (y - t)[seen] @ W[seen] / BATCH)


@pytest.mark.parametrize("correct", [False, True])
def test_a_softmax_of_all_units_is_exact(correct):
    output = Output(sampled(cross_entropy(), OUTPUTS, correct_targets=correct), "softmax")
    for found, expected in zip(output.step(ROWS, 5), exact("softmax", ROWS), strict=True):
        assert_close(found, expected, terms=OUTPUTS, scale=10)


@pytest.mark.parametrize("correct", [False, True])
def test_a_softmax_is_the_nearer_the_more_is_drawn(correct):
    errors = []
    for negatives in (2, 8, 32):
        output = Output(sampled(cross_entropy(), negatives, correct_targets=correct), "softmax")
        means = [np.mean(part, axis=0) for part in zip(*(output.step(ROWS, key) for key in range(400)), strict=True)]
        errors.append([abs(mean - right).max() for mean, right in zip(means, exact("softmax", ROWS), strict=True)])
    assert (np.diff(errors, axis=0) < 0).all()
    assert (np.array(errors[2]) < 0.5 * np.array(errors[0])).all()


@pytest.mark.parametrize("correct", [False, True])
def test_the_softmax_is_that_of_corrected_logits(correct):
    """What was drawn is seen in the biases that moved; the rest is the formula, in float64."""
    negatives = 8
    output = Output(sampled(cross_entropy(), negatives, correct_targets=correct), "softmax")
    found = output.step(ROWS, 3)
    t = TARGETS[ROWS].toarray()
    drawn = [unit for unit in np.flatnonzero(found[3]) if not t[:, unit].any()]
    drawn += [unit for unit in np.flatnonzero(t.any(axis=0)) if was_drawn(unit, negatives, 3)]
    m = negatives / OUTPUTS
    part = np.where(t == 1, m if correct else 1, np.inf)
    part[:, drawn] = np.where(t[:, drawn] == 1, part[:, drawn], m)
    corrected = HIDDEN[ROWS].astype(float) @ W.T.astype(float) + BIAS - np.log(part)
    y = np.exp(corrected) / np.exp(corrected).sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        expected = -np.where(t == 1, np.log(y), 0).sum(axis=1)
    delta = (y * t.sum(axis=1, keepdims=True) - t) / BATCH
    for one, other in zip(found, (expected, delta @ W, delta.T @ HIDDEN[ROWS], delta.sum(axis=0)), strict=True):
        assert_close(one, other, terms=OUTPUTS, scale=10)


def was_drawn(unit, negatives, key):
    drawn = np.zeros(negatives, np.int32)
    reference.draw(np.array([key], np.uint64), negatives, OUTPUTS, None, np.zeros(1, int), np.zeros(0, int),
                   np.zeros(2, int), drawn)
    return unit in drawn


def test_tables_hold_the_probabilities():
    starts, _ = Sampling(5, "log_uniform", False, True).tables(1000, np.float32)
    likely = np.log((np.arange(1000) + 2) / (np.arange(1000) + 1)) / np.log(1001)
    assert_close(np.diff(starts) / 2**32, likely, scale=1)
    seen = np.array([0.0, 0.5, 0.0, 0.25])
    starts, shares = Sampling(5, "popularity", True, True, seen).tables(4, np.float32)
    assert_close(np.diff(starts) / 2**32, np.array([0.25, 0.5, 0.25, 0.25]) / 1.25, scale=1)
    assert shares.tolist() == seen.tolist()
    starts, _ = Sampling(5, "popularity", False, True, np.array([1.0, *[1e-30] * 9])).tables(10, np.float32)
    assert np.diff(starts).min() >= 1
    assert starts[0] == 0
    assert starts[-1] == 2**32


def inputs(examples=40, features=30, outputs=50):
    x = sp.random_array((examples, features), density=0.2, rng=1, format="csr", dtype=np.float32)
    return x, sp.csr_array(sp.random_array((examples, outputs), density=0.1, rng=2) != 0)


def network(loss, activation, device="cpu", features=30, outputs=50, **options):
    x = Input(features, sparse=True)
    return sn.Network(x, Dense(outputs, activation)(Dense(8, "tanh")(x)), loss, seed=3, device=device, **options)


LOSSES = {
    "softmax": (sampled(cross_entropy(normalize=True), 10), "softmax"),
    "in batch": (sampled(cross_entropy(), 0, in_batch=True, popularity=inputs()[1]), "softmax"),
    "sigmoid": (sampled("scaled_marginal_cross_entropy", 10, "log_uniform"), "sigmoid"),
    "linear": (sampled(squared_error(), 20, "popularity", in_batch=True, popularity=inputs()[1]), "linear"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_devices_train_alike(device, name):
    x, t = inputs(12)
    trained = []
    for where in ("cpu", device):
        n = network(*LOSSES[name], device=where)
        history = sn.fit(n, x, t, optimizer=sn.optimizers.momentum(0.02, l2=0.01), epochs=1, batch=5, progress=False)
        trained.append(n.weights)
        assert np.isfinite(history["loss"]).all()
    assert_trained_alike(trained[1], {name: array.astype(float) for name, array in trained[0].items()}, adaptive=False)


@pytest.mark.parametrize("name", ["softmax", "in batch"])
def test_training_learns_and_repeats_itself(name):
    x, _ = inputs(200)
    scores = x @ np.random.default_rng(4).normal(size=(30, 50))
    t = sp.csr_array(scores >= np.sort(scores, axis=1)[:, -3:-2])
    networks = [network(*LOSSES[name]) for _ in range(2)]
    for n in networks:
        sn.fit(n, x, t, optimizer=sn.optimizers.adam(0.02), epochs=30, batch=16, progress=False)
    found = [n.predict(x) for n in networks]
    assert found[0].tobytes() == found[1].tobytes()
    best = np.argmax(found[0], axis=1)
    assert t.toarray()[np.arange(200), best].mean() > 0.5  # by chance 0.06


def test_rows_that_a_step_does_not_look_at_stay():
    x, t = inputs(5)
    n = network(sampled(cross_entropy(), 5), "sigmoid")
    before = n.weights
    sn.fit(n, x, t, optimizer=sn.optimizers.adam(0.02, l2=0.1), epochs=1, batch=5, progress=False)
    moved = (n.weights["dense2/weight"] != before["dense2/weight"]).any(axis=0)
    named = np.diff(t.tocsc().indptr) > 0
    assert moved[named].all()
    assert moved.sum() <= named.sum() + 5
    assert moved.sum() < 50


def test_memory_does_not_grow_with_the_outputs():
    working = []
    for outputs in (5_000, 50_000):
        x, t = inputs()
        t = sp.csr_array((t.data, t.indices, t.indptr), shape=(t.shape[0], outputs))
        n = network(sampled(cross_entropy(), 10), "softmax", outputs=outputs)
        sn.fit(n, x, t, optimizer=sn.optimizers.sgd(0.1), epochs=1, batch=8, progress=False)
        [head] = n.passes.heads.values()
        working.append(head.nbytes)
    assert working[0] == working[1] < 20_000


def test_prediction_is_that_of_the_exact_loss():
    x, _ = inputs()
    assert (network(*LOSSES["softmax"]).predict(x) == network(cross_entropy(), "softmax").predict(x)).all()


@pytest.mark.parametrize(("arguments", "message"), [
    (("squared_error", 0), r"negatives: expected an integer of at least 1, got 0"),
    (("squared_error", 2.5), r"negatives: expected an integer of at least 1, got 2.5"),
    (("squared_error", 5, "zipf"), r"distribution: expected one of uniform, log_uniform, popularity, got 'zipf'"),
    (("squared_error", 5, "popularity"), r"popularity: needed for in_batch=True and distribution='popularity'"),
])
def test_settings_that_have_no_meaning(arguments, message):
    with pytest.raises(ValueError, match=message):
        sampled(*arguments)


def test_popularity_that_has_no_use_or_no_meaning():
    with pytest.raises(ValueError, match=r"popularity: is for in_batch=True and for distribution='popularity'"):
        sampled("squared_error", popularity=SHARES)
    with pytest.raises(ValueError, match=r"popularity: expected a sparse matrix of targets, or for each unit"):
        sampled("squared_error", in_batch=True, popularity=SHARES * 100)
    with pytest.raises(ValueError, match=r"popularity: is of 64 units, but the output has 50"):
        network(sampled("squared_error", in_batch=True, popularity=SHARES), "linear")


def test_outputs_that_cannot_be_sampled():
    x = Input(30, sparse=True)
    with pytest.raises(ValueError, match=r"a sampled loss is for a Dense layer used once, with one dense input"):
        sn.Network(x, Dense(50, "sigmoid")(x), sampled("cross_entropy", 5), seed=0, device="cpu")
    with pytest.raises(ValueError, match=r"a softmax can be sampled with cross_entropy alone"):
        network(sampled("squared_error", 5), "softmax")
    n, (matrix, targets) = network(sampled("squared_error", 5), "linear"), inputs()
    with pytest.raises(ValueError, match=r"a sampled or factored loss needs sparse ones"):
        sn.fit(n, matrix, targets.toarray(), optimizer=sn.optimizers.sgd(), epochs=1, progress=False)


def test_a_loss_keeps_what_it_was():
    loss = sampled(cross_entropy(normalize=True), 7)
    assert (loss.name, loss.normalize, loss.settings) == ("cross_entropy", True, {"normalize": True})
    assert loss.sampling == Sampling(7, "uniform", False, True)
    assert losses.get(loss) is loss
