"""Training compared with PyTorch's automatic differentiation and its optimizers, in float64, for 20 steps.

Both start from the same weights and see the same batches. PyTorch has the sparse matrices as dense ones, so that every
optimizer there visits every row of every weight in every step: so must ours, also for features that no batch names.
"""

import functools

import numpy as np
import pytest
import scipy.sparse as sp

import sparsenet as sn
from sparsenet import optimizers
from sparsenet.layers import Dense, Input
from sparsenet.losses import cross_entropy, scaled_marginal_cross_entropy, squared_error
from sparsenet.testing.checks import assert_trained_alike
from sparsenet.training import bind

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

EXAMPLES, BATCH, EPOCHS, OUTPUTS = 24, 7, 5, 11  # batches of 7, 7, 7 and 3 examples: 20 steps
FEATURES = {"valued": 30, "boolean": 40, "dense": 6}
ONE_TARGET, ZERO_TARGET, ONE_SCALE, ZERO_SCALE = 0.625, 0.375, 0.75, 1.25  # all exact in float32

NETWORKS = {  # name: inputs, hidden layers, whether inputs are divided by their length
    "sparse values": (["valued"], [(8, "sigmoid")], False),
    "sparse flags": (["boolean"], [(7, "relu")], False),
    "dense": (["dense"], [(6, "tanh")], False),
    "three inputs, two layers": (["boolean", "dense", "valued"], [(8, "relu"), (5, "tanh")], False),
    "normalized, two layers": (["valued"], [(6, "tanh"), (7, "sigmoid")], True),
}
LOSSES = {
    "squared error": (squared_error(), "linear"),
    "cross entropy of sigmoid": (cross_entropy(), "sigmoid"),
    "cross entropy of softmax": (cross_entropy(), "softmax"),
    "normalized cross entropy of softmax": (cross_entropy(normalize=True), "softmax"),
    "scaled marginal cross entropy": (scaled_marginal_cross_entropy(ONE_TARGET, ZERO_TARGET, ONE_SCALE, ZERO_SCALE),
                                      "sigmoid"),
}
OPTIMIZERS = {
    "sgd": (functools.partial(optimizers.sgd, 0.05), functools.partial(torch.optim.SGD, lr=0.05)),
    "momentum": (functools.partial(optimizers.momentum, 0.03, 0.8),
                 functools.partial(torch.optim.SGD, lr=0.03, momentum=0.8)),
    "nesterov": (functools.partial(optimizers.nesterov, 0.03, 0.8),
                 functools.partial(torch.optim.SGD, lr=0.03, momentum=0.8, nesterov=True)),
    "adagrad": (functools.partial(optimizers.adagrad, 0.05, decay=0.1),
                functools.partial(torch.optim.Adagrad, lr=0.05, lr_decay=0.1)),
    "rmsprop": (functools.partial(optimizers.rmsprop, 0.005), functools.partial(torch.optim.RMSprop, lr=0.005)),
    "adadelta": (functools.partial(optimizers.adadelta, 1.5), functools.partial(torch.optim.Adadelta, lr=1.5)),
    "adam": (functools.partial(optimizers.adam, 0.01), functools.partial(torch.optim.Adam, lr=0.01)),
}
ADAPTIVE = {"adagrad", "rmsprop", "adadelta", "adam"}
L2 = 0.0625


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def matrix(kind):
    """Examples of one kind: some features in every example, some in none, some examples without features."""
    rng = np.random.default_rng(len(kind))
    if kind == "dense":
        return rng.normal(size=(EXAMPLES, FEATURES[kind])).astype(np.float32)
    chance = np.linspace(0.7, -0.2, FEATURES[kind])  # the last fifth never occurs
    dense = (rng.random((EXAMPLES, FEATURES[kind])) < chance) * rng.normal(size=(EXAMPLES, FEATURES[kind]))
    dense[[4, 20]] = 0
    return sp.csr_array(dense != 0) if kind == "boolean" else sp.csr_array(dense.astype(np.float32))


@functools.cache
def target(valued, dense):
    rng = np.random.default_rng(9)
    found = (rng.random((EXAMPLES, OUTPUTS)) < 0.3) * (rng.normal(size=(EXAMPLES, OUTPUTS)) if valued else 1.0)
    found[5] = 0
    found = found.astype(np.float32)
    return found if dense else sp.csr_array(found) if valued else sp.csr_array(found != 0)


def build(name, loss, dtype="float32"):
    kinds, hidden, normalize = NETWORKS[name]
    loss, activation = LOSSES[loss]
    inputs = [Input(FEATURES[kind], sparse=kind != "dense", normalize=normalize) for kind in kinds]
    h, rng = inputs, np.random.default_rng(3)
    for units, hidden_activation in hidden:
        h = [Dense(units, hidden_activation, bias=rng.normal(size=units))(*h)]
    y = Dense(OUTPUTS, activation, bias=rng.normal(size=OUTPUTS))(*h)
    return sn.Network(inputs, y, loss, seed=10, device="cpu", dtype=dtype)


def examples(name, loss):
    kinds = NETWORKS[name][0]
    return [matrix(kind) for kind in kinds], target(valued=loss == "squared error", dense=kinds == ["dense"])


def batches(shuffled):
    rng = np.random.default_rng(8)
    for _ in range(EPOCHS):
        order = rng.permutation(EXAMPLES) if shuffled else np.arange(EXAMPLES)
        yield from np.split(order, range(BATCH, EXAMPLES, BATCH))


def train(network, name, loss, optimizer):
    """Our run, batch by batch."""
    feeds, wanted, _ = bind(network, *examples(name, loss), BATCH)
    network.prepare(optimizer)
    for rows in batches(shuffled=True):
        network.train_batch(feeds, wanted, rows)
    return network.weights


def train_torch(weights, name, loss, optimizer, l2=0.0, l1=0.0, shuffled=True):
    """PyTorch's run from the same weights. Returns its weights, and how near a unit came to a kink or margin."""
    weights = {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in weights.items()}
    decaying = [w for name, w in weights.items() if "weight" in name]
    steps = optimizer([{"params": decaying, "weight_decay": l2},
                       {"params": [w for name, w in weights.items() if "bias" in name]}])
    inputs, wanted = examples(name, loss)
    inputs, wanted = [as_tensor(x) for x in inputs], as_tensor(wanted)
    if NETWORKS[name][2]:
        inputs = [x / x.norm(dim=1, keepdim=True).clamp(min=1e-30) for x in inputs]
    if LOSSES[loss][0].normalize:
        wanted = wanted / (wanted != 0).sum(1, keepdim=True).clamp(min=1)
    nearest = []
    for rows in batches(shuffled):
        steps.zero_grad()
        h = [x[rows] for x in inputs]
        for i, (_, activation) in enumerate(NETWORKS[name][1], start=1):
            z = combined(weights, f"dense{i}", h)
            if activation == "relu":
                nearest.append(z.detach().abs().min())
            h = [getattr(torch, activation)(z)]
        z = combined(weights, f"dense{len(NETWORKS[name][1]) + 1}", h)
        each = loss_per_unit(loss, z, wanted[rows])
        if loss == "scaled marginal cross entropy":
            nearest += [(torch.sigmoid(z.detach()) - margin).abs().min() for margin in (ONE_TARGET, ZERO_TARGET)]
        total = each.sum(1).mean() + l1 * sum(w.abs().sum() for w in decaying)
        total.backward()
        steps.step()
    return {name: w.detach().numpy() for name, w in weights.items()}, float(min(nearest, default=1.0))


def as_tensor(matrix):
    return torch.tensor((matrix.toarray() if sp.issparse(matrix) else matrix).astype(np.float64))


def combined(weights, layer, inputs):
    names = [f"{layer}/weight"] if len(inputs) == 1 else [f"{layer}/weight{i}" for i in range(len(inputs))]
    return sum(x @ weights[name] for name, x in zip(names, inputs, strict=True)) + weights[f"{layer}/bias"]


def loss_per_unit(loss, z, t):
    if loss == "squared error":
        return (z - t) ** 2 / 2
    if "softmax" in loss:
        return -t * torch.log_softmax(z, 1)
    if loss == "cross entropy of sigmoid":
        return torch.nn.functional.binary_cross_entropy_with_logits(z, t, reduction="none")
    y, log, log_not = torch.sigmoid(z), torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)
    return torch.where(t > 0, -ONE_SCALE * log * (y < ONE_TARGET), -ZERO_SCALE * log_not * (y > ZERO_TARGET))


def compare(name, loss, optimizer, dtype="float32", **options):
    ours, theirs = OPTIMIZERS[optimizer]
    network = build(name, loss, dtype)
    start = network.weights
    lazy = {"lazy": options.pop("lazy")} if "lazy" in options else {}
    expected, nearest = train_torch(start, name, loss, theirs, **options)
    assert nearest > 1e-6, "a unit comes so near to a kink that rounding decides: choose other seeds"
    assert max(np.abs(expected[key] - start[key]).max() for key in start) > 0.02, "too little happens to be compared"
    actual = train(network, name, loss, ours(**options, **lazy))
    assert_trained_alike(actual, expected, adaptive=optimizer in ADAPTIVE, dtype=dtype)


def test_the_examples_hold_what_they_should():
    valued, boolean = matrix("valued"), matrix("boolean")
    assert valued.dtype == np.float32
    assert boolean.dtype == bool
    for x in (valued, boolean):
        assert (np.diff(x.indptr) == 0).sum() == 2
        assert (x.toarray() == 0).all(axis=0).sum() >= FEATURES["valued"] // 5
    in_batches = [set(boolean[rows].indices.tolist()) for rows in batches(shuffled=True)]
    assert len(in_batches) == 20
    assert all(seen < set(boolean.indices.tolist()) for seen in in_batches)
    assert EXAMPLES % BATCH


@pytest.mark.parametrize("l2", [0.0, L2], ids=["plain", "l2"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", NETWORKS)
def test_training(name, loss, optimizer, l2):
    compare(name, loss, optimizer, l2=l2)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["sparse values", "three inputs, two layers"])
def test_training_in_float64(name, optimizer):
    compare(name, "cross entropy of sigmoid", optimizer, dtype="float64", l2=L2)


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov"])
def test_l1(optimizer):
    compare("three inputs, two layers", "squared error", optimizer, dtype="float64", l1=L2)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_leaving_absent_features_alone_is_noticed(optimizer):
    """The comparison can fail: a lazy optimizer is none of PyTorch's."""
    with pytest.raises(AssertionError, match=r"dense1/weight: differs by .* of the largest parameter"):
        compare("sparse flags", "cross entropy of sigmoid", optimizer, lazy=True)


@pytest.mark.parametrize("name", NETWORKS)
def test_fit(name):
    """The same through the front door, from one epoch to the next."""
    network, (inputs, wanted) = build(name, "cross entropy of softmax"), examples(name, "cross entropy of softmax")
    expected, _ = train_torch(network.weights, name, "cross entropy of softmax", OPTIMIZERS["adam"][1], shuffled=False)
    for epochs in (2, EPOCHS - 2):
        sn.fit(network, inputs, wanted, optimizer=optimizers.adam(0.01), epochs=epochs, batch=BATCH, shuffle=False)
    assert_trained_alike(network.weights, expected, adaptive=True)
