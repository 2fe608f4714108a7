"""The streaming head's walk on a CPU, at sizes that are many tiles: test_head.py has the small ones, on all devices."""

import inspect
from itertools import product

import numba
import numpy as np
import pytest

from sparsenet import activations, losses, optimizers
from sparsenet.activations import Activation
from sparsenet.kernels.walk import walk_step
from sparsenet.losses import Loss
from sparsenet.vectors import available
from tests import reference
from tests.heads import BFLOAT16, compare, head, output_of, prove, rule_of, walked

SOFTER = Activation("softer", lambda z: z / (1 + abs(z)), lambda y: (1 - abs(y)) ** 2)
CUBED = Loss("cubed", lambda y, t: abs(y - t) ** 3, lambda y, t: 3 * (y - t) * abs(y - t))
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


@pytest.mark.parametrize("path", [path.name for path in available()])
def test_on_every_path_of_vectors(path, monkeypatch):
    monkeypatch.setenv("SPARSENET_VECTORS", path)
    optimizer = optimizers.sgd(0.5)
    output = output_of(losses.scaled_marginal_cross_entropy(), activations.sigmoid())
    for sizes, bias in (((1, 1, 1, 0), 0.0), ((70, 41, 300, 1), 0.0), ((33, 20, 150, 2), -4.0)):
        compare((output, rule_of(optimizer), 0.25), head(sizes, optimizer, bias))


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
