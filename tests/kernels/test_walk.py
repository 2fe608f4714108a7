"""The streaming head's walk on a CPU, at sizes that are many tiles: test_head.py has the small ones, on all devices."""

import inspect
from itertools import product

import numba
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenet import activations, losses, optimizers
from sparsenet.activations import Activation
from sparsenet.kernels.output import Output, Rule
from sparsenet.kernels.walk import walk_plan, walk_pull, walk_step
from sparsenet.kernels.walk_sums import walk_sums
from sparsenet.losses import Loss
from sparsenet.streaming import quiet_below
from sparsenet.testing import assert_close
from tests import reference
from tests.conftest import in_float64

BFLOAT16 = 2.0**-8 / np.finfo(np.float32).eps  # how many times larger its rounding is
SIZES = st.tuples(st.integers(1, 140), st.integers(1, 70), st.integers(1, 600), st.integers(0, 2**32 - 1))
SOFTER = Activation("softer", lambda z: z / (1 + abs(z)), lambda y: (1 - abs(y)) ** 2)
CUBED = Loss("cubed", lambda y, t: abs(y - t) ** 3, lambda y, t: 3 * (y - t) * abs(y - t))


def prove(function):
    settings(max_examples=15, deadline=None)(given(SIZES)(function))()


def output_of(loss, activation):
    return Output(activation.value, *loss.through(activation),
                  *(() if activation.rowwise else (loss.zero_factor, quiet_below(loss, activation))))


def head(sizes, optimizer, bias=0.0):
    """The arguments of walk_step by name, from `hidden` on."""
    batch, inputs, outputs, seed = sizes
    random = np.random.default_rng(seed)
    targets = sp.random_array((batch, outputs), density=min(1, 3 / outputs), rng=random, format="csr")
    targets.sort_indices()
    scalars = np.full(8, np.nan, np.float32)
    scalars[:optimizer.numbers] = optimizer.scalars(3)
    count = optimizer.slots

    def some(*shape):
        return random.normal(size=shape).astype(np.float32)
    return {"hidden": some(batch, inputs), "indptr": targets.indptr.astype(np.int64),
            "indices": targets.indices.astype(np.int32), "data": None, "largest": None, "total": None, "pull": None,
            "scalars": scalars, "w": some(outputs, inputs) / 4, "slots": abs(some(count, outputs, inputs)),
            "bias": some(outputs) / 4 + np.float32(bias), "bias_slots": abs(some(count, outputs)),
            "dhidden": some(batch, inputs), "losses": np.full(batch, np.nan)}


def walked(kernel, functions, arrays, precision="float32", threads=None):
    """Arrays by name after a call."""
    batch, inputs = arrays["hidden"].shape
    *_, plan = walk_plan(batch, inputs, len(arrays["w"]), precision)
    copies = {name: None if array is None else array.copy() for name, array in arrays.items()}
    several = numba.get_num_threads()
    numba.set_num_threads(threads or several)
    try:
        kernel(*functions, *copies.values(), np.full(plan.size, np.nan, np.float32), precision=precision)
    finally:
        numba.set_num_threads(several)
    return copies


def exactly(kernel, functions, arrays):
    arguments = *functions, *arrays.values(), None
    found = in_float64(kernel, arguments, {}, np.float32)[len(functions):]
    return dict(zip(arrays, found, strict=False))


def scales(arrays, found, slack=1.0):
    """What a rounding of the logits can change: see test_head.py."""
    hidden, w = abs(arrays["hidden"]), abs(arrays["w"])
    logits = hidden @ w.T + abs(arrays["bias"])
    deltas = (1 + logits) * (1 if arrays["pull"] is None else 1 + abs(arrays["pull"])[:, None])
    gradients = deltas.T @ hidden
    return {"dhidden": slack * (abs(arrays["dhidden"]) + deltas @ w), "losses": slack * deltas.sum(axis=1),
            "w": slack * (w + gradients), "bias": slack * (1 + deltas.sum(axis=0)),
            "slots": slack * (abs(found["slots"]) + gradients + gradients**2),
            "bias_slots": slack * (abs(found["bias_slots"]) + (1 + deltas.sum(axis=0))**2)}


def compare(functions, arrays, precision="float32", slack=1.0):
    found, exact = walked(walk_step, functions, arrays, precision), exactly(walk_step, functions, arrays)
    terms = sum(arrays["w"].shape) + len(arrays["hidden"])
    for name, scale in scales(arrays, exact, slack).items():
        assert_close(found[name], exact[name], terms=terms, scale=scale, name=name)
    for name in ("hidden", "indices", "scalars"):
        assert found[name].tobytes() == arrays[name].tobytes(), f"{name} was changed"
    return found


def rule_of(optimizer):
    return Rule(optimizer.rule, optimizer.numbers, optimizer.l2, optimizer.l1)


CASES = [(loss(), activation()) for loss, activation in product(
    (losses.cross_entropy, losses.scaled_marginal_cross_entropy), (activations.sigmoid,))] + [
    (losses.squared_error(), activations.tanh()), (CUBED, SOFTER)]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("loss", "activation"), CASES, ids=lambda part: part.name)
def test_steps(loss, activation, precision):
    optimizer = optimizers.sgd(0.5, l2=0.1, l1=0.01)

    @prove
    def example(sizes):
        compare((output_of(loss, activation), rule_of(optimizer), 0.25), head(sizes, optimizer), precision,
                slack=1 if precision == "float32" else BFLOAT16)


@pytest.mark.parametrize("optimizer", [optimizers.momentum(), optimizers.rmsprop(), optimizers.adam()],
                         ids=lambda one: one.name)
def test_slots(optimizer):
    output = output_of(losses.cross_entropy(), activations.sigmoid())

    @prove
    def example(sizes):
        compare((output, rule_of(optimizer), 0.25), head(sizes, optimizer))


@pytest.mark.parametrize("loss", [losses.cross_entropy(), losses.squared_error()], ids=lambda one: one.name)
def test_softmax(loss):
    optimizer, output = optimizers.sgd(0.5), output_of(loss, activations.softmax())

    @prove
    def example(sizes):
        arrays = head(sizes, optimizer)
        logits = abs(arrays["hidden"]) @ abs(arrays["w"]).T + abs(arrays["bias"])
        terms = sum(arrays["w"].shape) + len(logits)
        walk = {name: arrays[name] for name in ("hidden", "w", "bias")}
        walk |= {name: np.full(len(logits), np.nan, np.float32) for name in ("largest", "total")}
        found, exact = walked(walk_sums, (), walk), exactly(walk_sums, (), walk)
        assert_close(found["largest"], exact["largest"], terms=terms, scale=logits.max(axis=1), name="largest")
        assert_close(found["total"], exact["total"], terms=terms, scale=exact["total"] * (1 + logits.max(axis=1)),
                     name="total")
        arrays["largest"], arrays["total"] = (exact[name].astype(np.float32) for name in ("largest", "total"))
        walk = {name: arrays[name] for name in ("hidden", "indptr", "indices", "data", "largest", "total", "w", "bias")}
        walk["pull"] = np.full(len(logits), np.nan)
        found, exact = walked(walk_pull, (output.slope,), walk), exactly(walk_pull, (output.slope,), walk)
        assert_close(found["pull"], exact["pull"], terms=terms, scale=(1 + logits).sum(axis=1), name="pull")
        arrays["pull"] = exact["pull"]
        compare((output, rule_of(optimizer), 0.25), arrays)


@pytest.mark.parametrize("valued", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
def test_targets_have_values_and_the_hidden_gradient_may_be_left_out(valued, wanted):
    optimizer, output = optimizers.sgd(0.5), output_of(losses.squared_error(), activations.linear())
    arrays = head((33, 20, 300, 7), optimizer)
    if valued:
        arrays["data"] = np.random.default_rng(1).normal(size=len(arrays["indices"])).astype(np.float32)
    full = compare((output, rule_of(optimizer), 0.25), arrays)
    if not wanted:
        arrays["dhidden"] = None
        less = walked(walk_step, (output, rule_of(optimizer), 0.25), arrays)
        assert less["w"].tobytes() == full["w"].tobytes()


@pytest.mark.parametrize("bias", [-6.0, -3.0, -2.2, 0.0])
@pytest.mark.parametrize("optimizer", [optimizers.sgd(0.5), optimizers.adam()], ids=lambda one: one.name)
def test_few_deltas_are_the_same_deltas(optimizer, bias):
    """Beyond the margin nothing is learned on either way, bit for bit; what is learned is the same but for rounding."""
    activation, loss = activations.sigmoid(), losses.scaled_marginal_cross_entropy()
    output = output_of(loss, activation)
    assert output.quiet == pytest.approx(np.log(0.1 / 0.9), abs=0.01)

    @prove
    def example(sizes):
        arrays, rule = head(sizes, optimizer, bias), rule_of(optimizer)
        arrays["w"] /= 4
        few = compare((output, rule, 0.25), arrays)
        all_of_them = compare((output._replace(quiet=None), rule, 0.25), arrays)
        for name in ("w", "bias"):
            learned = [(one[name] != arrays[name]) for one in (few, all_of_them)]
            if optimizer.name == "sgd":
                np.testing.assert_array_equal(*learned)


def test_a_tile_with_few_deltas_is_not_multiplied(monkeypatch):
    """Of NaN in the hidden layer only the logits know, unless a delta carries it further."""
    optimizer = optimizers.sgd(0.5)
    output = output_of(losses.scaled_marginal_cross_entropy(), activations.sigmoid())
    arrays = head((40, 20, 300, 3), optimizer, bias=-30.0)
    arrays["indptr"][:] = 0
    found = walked(walk_step, (output, rule_of(optimizer), 1.0), arrays)
    for name in ("w", "bias", "dhidden"):
        assert found[name].tobytes() == arrays[name].tobytes()
    assert (found["losses"] == 0).all()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_threads_change_no_bit(precision):
    optimizer = optimizers.adam()
    output = output_of(losses.scaled_marginal_cross_entropy(), activations.sigmoid())
    arrays = head((65, 33, 5000, 5), optimizer, bias=-1.5)
    alone, several = (walked(walk_step, (output, rule_of(optimizer), 1.0), arrays, precision, threads)
                      for threads in (1, numba.config.NUMBA_NUM_THREADS))
    for name, array in alone.items():
        assert array is None or array.tobytes() == several[name].tobytes(), name


def test_a_diverged_network_shows_it():
    optimizer = optimizers.sgd(0.5)
    for loss in (losses.cross_entropy(), losses.scaled_marginal_cross_entropy()):
        arrays = head((10, 5, 300, 3), optimizer)
        arrays["w"][200] = np.nan
        found = walked(walk_step, (output_of(loss, activations.sigmoid()), rule_of(optimizer), 1.0), arrays)
        assert np.isnan(found["losses"]).all(), loss.name


def test_the_room_is_checked():
    optimizer = optimizers.sgd()
    arrays = head((3, 4, 5, 1), optimizer)
    with pytest.raises(ValueError, match=r"room: expected at least \d+ float32 numbers on one axis"):
        walk_step(output_of(CUBED, SOFTER), rule_of(optimizer), 1.0, *arrays.values(), np.zeros(7, np.float32))


def test_twins_are_those_of_the_head():
    mine, theirs = (inspect.signature(twin).parameters for twin in (reference.walk_step, reference.head_step))
    assert list(mine) == [name for name in theirs if name not in ("bias_gradient", "scratch")]
