"""Weights and slots of the walk in bfloat16."""

import numba
import numpy as np
import pytest

from sparsenet import activations, losses, optimizers
from sparsenet.bfloat16 import SHORT, stored, unstored
from sparsenet.kernels.walk import walk_pull, walk_step
from sparsenet.kernels.walk_sums import walk_sums
from sparsenet.testing import assert_close
from tests.heads import BFLOAT16, exactly, head, output_of, prove, rule_of, scales, walked
from tests.rounding import kept

KEY = np.array([2**63 + 5], np.uint64)
STORED = [(SHORT, np.float32), (np.float32, SHORT), (SHORT, SHORT)]
FEW = losses.scaled_marginal_cross_entropy()


def in_storage(arrays, weights, slots):
    """(arrays with numbers that bfloat16 has, the same in storage)."""
    numbers = {"w": unstored(stored(arrays["w"], SHORT)), "slots": unstored(stored(arrays["slots"], SHORT))}
    return arrays | numbers, arrays | {"w": stored(numbers["w"], weights), "slots": stored(numbers["slots"], slots)}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("optimizer", "weights", "slots"), [
    (optimizers.sgd(0.5, l2=0.1), SHORT, np.float32), (optimizers.momentum(), np.float32, SHORT),
    (optimizers.adam(), SHORT, SHORT)], ids=["sgd", "momentum", "adam"])
def test_storage_is_the_only_difference(optimizer, weights, slots, precision):
    """A step in storage is the step in float32, rounded as its key and the place say, bit for bit. With all deltas, and
    with few."""
    functions = output_of(FEW, activations.sigmoid()), rule_of(optimizer), 0.25

    @prove
    def example(sizes):
        arrays = head(sizes, optimizer, -5.0 if sizes[-1] % 2 else 0.0)
        arrays["w"] /= 4
        full, short = in_storage(arrays, weights, slots)
        expected, found = (walked(walk_step, functions, one, precision, key=KEY) for one in (full, short))
        rounded = kept(expected["w"], expected["slots"], KEY[0])
        for name, dtype, halves in zip(("w", "slots"), (weights, slots), rounded, strict=True):
            expected[name] = halves if dtype == SHORT else expected[name]
        for name, array in expected.items():
            assert array is None or found[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_steps_in_storage(precision):
    """Beside float64: what float32 may be off by, and one place of bfloat16."""
    optimizer, slack = optimizers.adam(), 1 if precision == "float32" else BFLOAT16
    functions = output_of(losses.cross_entropy(), activations.sigmoid()), rule_of(optimizer), 0.25

    @prove
    def example(sizes):
        full, short = in_storage(head(sizes, optimizer), SHORT, SHORT)
        found, exact = walked(walk_step, functions, short, precision, key=KEY), exactly(walk_step, functions, full)
        terms = sum(full["w"].shape) + len(full["hidden"])
        for name, scale in scales(full, exact, slack).items():
            place = 2 * BFLOAT16 * abs(exact[name]) if found[name].dtype == SHORT else 0
            assert_close(unstored(found[name]), exact[name], terms=terms, scale=scale + place, name=name)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_sums_of_storage(precision):
    output = output_of(losses.squared_error(), activations.softmax())

    @prove
    def example(sizes):
        full, short = in_storage(head(sizes, optimizers.sgd()), SHORT, SHORT)
        sums = []
        for arrays in (full, short):
            walk = {name: arrays[name] for name in ("hidden", "w", "bias")}
            walk |= {name: np.full(len(walk["hidden"]), np.nan, np.float32) for name in ("largest", "total")}
            first = walked(walk_sums, (), walk, precision)
            walk = {name: arrays[name] for name in ("hidden", "indptr", "indices", "data")}
            walk |= {name: first[name] for name in ("largest", "total", "w", "bias")}
            pull = walked(walk_pull, (output.slope,), walk | {"pull": np.full(len(walk["hidden"]), np.nan)}, precision)
            sums.append([one.tobytes() for one in (first["largest"], first["total"], pull["pull"])])
        assert sums[0] == sums[1]


def test_threads_change_no_bit_of_storage():
    optimizer, output = optimizers.adam(), output_of(FEW, activations.sigmoid())
    _, arrays = in_storage(head((65, 33, 5000, 5), optimizer, bias=-1.5), SHORT, SHORT)
    alone, several = (walked(walk_step, (output, rule_of(optimizer), 1.0), arrays, threads=threads, key=KEY)
                      for threads in (1, numba.config.NUMBA_NUM_THREADS))
    for name, array in alone.items():
        assert array is None or array.tobytes() == several[name].tobytes(), name


def test_storage_needs_a_key():
    optimizer = optimizers.adam()
    for weights, slots in STORED:
        _, arrays = in_storage(head((3, 4, 5, 1), optimizer), weights, slots)
        with pytest.raises(ValueError, match="key: weights and slots in bfloat16 are rounded at random, and need one"):
            walked(walk_step, (output_of(FEW, activations.sigmoid()), rule_of(optimizer), 1.0), arrays)
