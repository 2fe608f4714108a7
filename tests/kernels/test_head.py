import inspect

import numpy as np
import pytest
from hypothesis import strategies as st

from sparsenet import activations, losses
from sparsenet.device import scalar
from sparsenet.kernels import tiles
from sparsenet.kernels.head import (
    Output,
    Rule,
    head_pull,
    head_room,
    head_step,
    head_sums,
    head_top_k,
    target_pull,
    top_k_room,
)
from sparsenet.testing import assert_close
from sparsenet.testing.strategies import csr, dense
from tests.conftest import in_float64, run

EXAMPLES = {"cpu": 15, "emulator": 12, "simulator": 2, "cuda": 25}  # a network's worth of kernels each
SCALARS = np.array([0.5, 0.25, *[np.nan] * 6], np.float32)


@pytest.fixture
def prove(device, prove):
    """As everywhere, on fewer examples."""
    return lambda function: prove(function, EXAMPLES[device.name])


@scalar
def two_slots(w, g, m, v, s):
    m, v = m + g, v - s[0] * g
    return w - s[1] * m, m, v


@scalar
def descent(w, g, m, v, s):
    return w - s[0] * g, m, v


def output_of(loss, activation):
    activation = activations.get(activation)
    return Output(activation.value, *losses.get(loss).through(activation))


def lengths(data, device):
    """(batch, inputs, outputs, panel): all in fours, or all odd, of several panels or one."""
    large = 2 if device.name == "simulator" else 5
    batch = data.draw(st.integers(1, 3 * large))
    if data.draw(st.booleans()):
        return batch, *(4 * data.draw(st.integers(1, most)) for most in (large // 2, 2 * large, large))
    return batch, *(2 * data.draw(st.integers(0, most)) + 1 for most in (large, 3 * large, 2 * large))


def room_of(device, batch, inputs, outputs, panel):
    """Panels of that width, but for a CPU, which has its own."""
    shape = head_room(device, batch, inputs, outputs, "float32") if device.name == "cpu" else (batch, panel)
    return np.full(shape, np.nan, np.float32)


def head(device, data, batch, inputs, outputs, panel, count=0, valued=None, low=-2.0, high=2.0):
    """A head's arrays by name: multiples of 1/4, so that sums of their products are exact in float32."""
    def quarters(*shape):
        return data.draw(dense(*shape, low=-2, high=2, exact=True))
    targets = csr(batch, outputs, valued=valued, repeated=False, ordered=True, exact=True, low=low, high=high)
    indptr, indices, values, _ = data.draw(targets)
    return {"hidden": quarters(batch, inputs), "indptr": indptr, "indices": indices, "data": values, "largest": None,
            "total": None, "pull": None, "scalars": SCALARS, "w": quarters(outputs, inputs),
            "slots": quarters(count, outputs, inputs), "bias": quarters(outputs),
            "bias_gradient": np.zeros(outputs, np.float32), "bias_slots": quarters(count, outputs),
            "dhidden": quarters(batch, inputs), "losses": np.full(batch, np.nan),
            "room": room_of(device, batch, inputs, outputs, panel), "scratch": np.zeros(2 * tiles.BLOCK, np.float32)}


def test_head_step_is_exact(device, prove, agree):
    """A linear head, squared error and a rule with two slots, in numbers that float32 holds."""
    rule, output = Rule(two_slots, 2, 0.5, 0.25), output_of("squared_error", "linear")

    @prove
    def example(data):
        arrays = head(device, data, *lengths(data, device), count=2)
        outputs = ["w", "slots", "bias", "bias_gradient", "bias_slots", "losses", "dhidden"]
        if data.draw(st.booleans()):
            arrays[outputs.pop()] = None
        agree(head_step, output, rule, 0.5, *arrays.values(), outputs=" ".join(outputs), scale=0)


def magnitudes(arrays, logits, scale):
    """Scales of the results of a step of descent whose deltas are off by as much as its logits."""
    hidden, w = abs(arrays["hidden"]), abs(arrays["w"])
    deltas = scale * (1 + logits)
    return {"w": w + deltas.T @ hidden, "bias": abs(arrays["bias"]) + deltas.sum(axis=0),
            "dhidden": abs(arrays["dhidden"]) + deltas @ w, "losses": (1 + logits).sum(axis=1), "bias_gradient": 0}


def size_of_logits(arrays):
    return abs(arrays["hidden"]) @ abs(arrays["w"].T) + abs(arrays["bias"])


def test_head_step_of_a_sigmoid(device, prove):
    rule, output = Rule(descent, 1), output_of("cross_entropy", "sigmoid")

    @prove
    def example(data):
        arrays = head(device, data, *lengths(data, device), low=0, high=1)
        compare(device, head_step, (output, rule, 0.5), arrays, magnitudes(arrays, size_of_logits(arrays), 0.5))


def compare(device, kernel, functions, arrays, scales):
    names = [*inspect.signature(kernel).parameters][:len(functions)] + list(arrays)
    arguments = *functions, *arrays.values()
    found, exact = run(device, kernel, arguments, {}), in_float64(kernel, arguments, {}, np.float32)
    terms = sum(arrays["w"].shape) + len(arrays["hidden"])
    for name, mine, reference in zip(names, found, exact, strict=True):
        if name in scales:
            assert_close(mine, reference, terms=terms, scale=scales[name], name=name)
        elif isinstance(mine, np.ndarray) and name not in ("room", "scratch"):
            assert mine.tobytes() == arrays[name].tobytes(), f"{name} is an input, and was changed"


def softmax_head(device, data, output):
    """(arrays, bounds of what their logits are off by): the walks that a softmax begins with, compared as well."""
    arrays = head(device, data, *lengths(data, device), low=0, high=1)
    logits = size_of_logits(arrays).max(axis=1)
    batch = len(logits)
    walk = {name: arrays[name] for name in ("hidden", "w", "bias")}
    walk |= {"largest": np.full(batch, np.nan, np.float32), "total": np.full(batch, np.nan, np.float32),
             "room": arrays["room"], "scratch": arrays["scratch"]}
    outputs = len(arrays["w"])
    compare(device, head_sums, (), walk, {"largest": logits, "total": outputs * (1 + logits)})
    _, _, _, largest, total, _, _ = in_float64(head_sums, tuple(walk.values()), {}, np.float32)
    arrays["largest"], arrays["total"] = largest.astype(np.float32), total.astype(np.float32)
    names = ("hidden", "indptr", "indices", "data", "largest", "total", "w", "bias")
    walk = {name: arrays[name] for name in names}
    walk |= {"pull": np.full(batch, np.nan), "room": arrays["room"], "scratch": arrays["scratch"]}
    compare(device, head_pull, (output.slope,), walk, {"pull": outputs * (1 + logits)})
    arrays["pull"] = in_float64(head_pull, (output.slope, *walk.values()), {}, np.float32)[9]
    return arrays, logits[:, None] * np.ones(outputs)


@pytest.mark.parametrize("loss", ["squared_error", "cross_entropy"])
def test_head_step_of_a_softmax(loss, device, prove):
    rule, output = Rule(descent, 1), output_of(loss, "softmax")

    @prove
    def example(data):
        arrays, logits = softmax_head(device, data, output)
        steps = 1 + abs(arrays["pull"])[:, None]
        compare(device, head_step, (output, rule, 0.5), arrays, magnitudes(arrays, logits * steps, 0.5))


def test_target_pull(prove, agree, sizes):
    """Cross entropy's slope is -t, whatever y: what the walk gives, without it."""
    slope = output_of("cross_entropy", "softmax").slope

    @prove
    def example(data):
        batch = data.draw(csr(data.draw(sizes()), data.draw(sizes()), low=0))
        pull = np.full(batch.batch, np.nan)
        agree(target_pull, slope, batch.indptr, batch.data, pull, terms=batch.features, scale="sum", dtype=np.float64)


@scalar
def halved(z):
    return z / np.float32(2)


def test_head_top_k(device, prove, agree):
    @prove
    def example(data):
        batch, inputs, outputs, panel = lengths(data, device)
        k = data.draw(st.integers(0, outputs + 2))
        arrays = head(device, data, batch, inputs, outputs, -(-k // 4) * 4 + panel)
        if device.name == "cpu":
            arrays["room"] = np.full(top_k_room(device, batch, inputs, outputs, k, "float32"), np.nan, np.float32)
        seen = data.draw(st.sampled_from([(arrays["indptr"], arrays["indices"]), (None, None)]))
        best = np.full((batch, k), -7, np.int32), np.full((batch, k), np.nan, np.float32)
        agree(head_top_k, halved, arrays["hidden"], arrays["w"], arrays["bias"], *seen, *best,
              np.zeros((2, batch, k), np.int32), arrays["room"], arrays["scratch"], outputs="items values", scale=0)


def test_nothing_is_allocated(device, monkeypatch):
    """All that a step needs is given: one panel is as wide as the activations ever get."""
    random = np.random.default_rng(0)
    batch, inputs, outputs, panel = 3, 4, 40, 8
    arrays = [random.normal(size=shape).astype(np.float32) for shape in ((batch, inputs), (outputs, inputs), outputs)]
    hidden, w, bias, room, scratch = map(device.put, [*arrays, room_of(device, batch, inputs, outputs, panel),
                                                      np.zeros(tiles.BLOCK, np.float32)])
    indptr, indices = device.put(np.array([0, 1, 1, 2])), device.put(np.array([39, 0], np.int32))
    scalars, dhidden, losses = device.put(SCALARS), device.zeros((batch, inputs)), device.zeros(batch, np.float64)
    slots, bias_slots, gradient = device.zeros((0, outputs, inputs)), device.zeros((0, outputs)), device.zeros(outputs)
    for name in ("zeros", "put", "staging"):
        monkeypatch.setattr(device, name, None)
    head_step(output_of("cross_entropy", "sigmoid"), Rule(descent, 1), 1.0, hidden, indptr, indices, None, None, None,
              None, scalars, w, slots, bias, gradient, bias_slots, dhidden, losses, room, scratch)
    assert np.isfinite(device.fetch(losses)).all()


def test_rooms_are_checked(device):
    if device.name == "cpu":
        pytest.skip("has rooms of another kind: see test_walk.py and test_walk_top_k.py")
    items, values, scratch = device.zeros((2, 5), np.int32), device.zeros((2, 5)), device.zeros(tiles.BLOCK)
    hidden, w, bias = device.zeros((2, 3)), device.zeros((9, 3)), device.zeros(9)
    with pytest.raises(ValueError, match="room: axis 'panel' is 8, expected more than k rounded up to fours, 8"):
        head_top_k(halved, hidden, w, bias, None, None, items, values, device.zeros((2, 2, 5), np.int32),
                   device.zeros((2, 8)), scratch)
    with pytest.raises(ValueError, match="room: axis 'batch' is 3, but hidden says 2"):
        head_sums(hidden, w, bias, device.zeros(2), device.zeros(2), device.zeros((3, 8)), scratch)
    with pytest.raises(ValueError, match="room: expected at least one column"):
        head_sums(hidden, w, bias, device.zeros(2), device.zeros(2), device.zeros((2, 0)), scratch)
