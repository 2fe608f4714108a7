"""Small networks and their data, for tests of the whole."""

import numpy as np
import scipy.sparse as sp
from hypothesis import strategies as st

import sparsenet as sn
from sparsenet import optimizers
from sparsenet.layers import Dense, Input
from sparsenet.training import bind

ITEMS, USERS = 12, 20
X = sp.csr_array(sp.random_array((USERS, ITEMS), density=0.3, rng=0, dtype=np.float32))
T = sp.csr_array(X != 0)
ALL_OPTIMIZERS = [make() for make in optimizers.OPTIMIZERS.values()]


def small(seed=1, device="cpu", loss="cross_entropy", **options):
    x = Input(ITEMS, sparse=True)
    h = Dense(5, "tanh", name="hidden")(x)
    return sn.Network(x, Dense(ITEMS, "sigmoid", name="top")(h), loss, seed=seed, device=device, **options)


def by_hand(network, x):
    """What `small` predicts, in float64."""
    w = {name: array.astype(np.float64) for name, array in network.weights.items()}
    hidden = np.tanh(x.toarray().astype(np.float64) @ w["hidden/weight"] + w["hidden/bias"])
    return 1 / (1 + np.exp(-(hidden @ w["top/weight"] + w["top/bias"])))


def two_ended(loss=("squared_error", "cross_entropy")):
    """Two inputs, two outputs, a layer used twice, masks in training, all with names."""
    a, b = Input(ITEMS, sparse=True, denoising=0.25), Input(3)
    shared = Dense(4, "tanh", dropout=0.25, name="shared")
    h = Dense(4, "relu")(a, b)
    left, right = Dense(ITEMS, "elu", name="left")(shared(shared(h))), Dense(ITEMS, "softmax", name="right")(h)
    return sn.Network({"choices": a, "facts": b}, {"l": left, "r": right}, list(loss), seed=3, device="cpu")


TWO_INPUTS = {"choices": X, "facts": np.random.default_rng(1).normal(size=(USERS, 3)).astype(np.float32)}
TWO_TARGETS = {"l": T, "r": T}


def train(network, inputs, targets, optimizer, steps, batch=7):
    """Some steps on consecutive batches; returns their losses."""
    feeds, wanted, _ = bind(network, inputs, targets, batch)
    network.prepare(optimizer)
    starts = (np.arange(steps) + network.step) * batch % USERS
    return [network.train_batch(feeds, wanted, np.arange(start, min(start + batch, USERS))) for start in starts]


def assert_same_bits(a, b):
    """Arrays by name."""
    assert a.keys() == b.keys()
    for name in a:
        assert (a[name].dtype, a[name].shape, a[name].tobytes()) == (b[name].dtype, b[name].shape, b[name].tobytes())


def state(network):
    """All that training changes."""
    slots = {f"slots {name}": p.slots for name, p in network.parameters.items() if p.slots is not None and p.slots.size}
    return {**network.weights, **slots}


@st.composite
def any_network(draw, dtype="float32"):
    """(network, inputs, targets): up to 7 uses of up to 4 layers, each reading whichever earlier nodes fit, with smooth
    activations.
    """
    smooth = st.sampled_from(["linear", "tanh", "sigmoid", "softmax", "softplus"])
    inputs = [Input(width, sparse=draw(st.booleans())) for width in draw(st.lists(st.integers(1, 4), min_size=1,
                                                                               max_size=3))]
    nodes, layers = list(inputs), []
    for _ in range(draw(st.integers(1, 7))):
        if layers and draw(st.booleans()):
            layer, widths = draw(st.sampled_from(layers))
            fitting = [[node for node in nodes if node.units == width] for width in widths]
            nodes.append(layer(*(draw(st.sampled_from(some)) for some in fitting)))
        elif len(layers) < 4:
            read = draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=3))
            layers.append((Dense(draw(st.integers(1, 4)), draw(smooth)), [node.units for node in read]))
            nodes.append(layers[-1][0](*read))
    made = nodes[len(inputs):]
    outputs = [made[-1], *draw(st.lists(st.sampled_from(made), max_size=2))]
    outputs = list(dict.fromkeys(outputs))
    used, waiting = set(), list(outputs)
    while waiting:
        node = waiting.pop()
        used.add(node)
        waiting.extend(node.inputs)
    inputs = [node for node in inputs if node in used]
    network = sn.Network(inputs, outputs, ["squared_error"] * len(outputs), seed=draw(st.integers(0, 99)), device="cpu",
                         dtype=dtype)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    given = [(rng.random((3, node.units)) < 0.6) * rng.normal(size=(3, node.units)) for node in inputs]
    given = [sp.csr_array(x) if node.sparse else x for x, node in zip(given, inputs, strict=True)]
    return network, given, [rng.normal(size=(3, node.units)) for node in outputs]
