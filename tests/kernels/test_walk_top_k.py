"""The walk for the best items on a CPU, at sizes that are many tiles and many cuts: test_head.py has the small ones."""

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from sparsenet import activations
from sparsenet.device import scalar
from sparsenet.kernels.walk_top_k import top_k_plan, walk_top_k
from sparsenet.testing import assert_close
from sparsenet.testing.strategies import csr, dense
from sparsenet.vector_loops import above_sum
from sparsenet.vectors import chosen
from tests.conftest import in_float64

FEW, MANY = np.float32(-1), np.float32(1)
BFLOAT16 = 2.0**-8 / np.finfo(np.float32).eps  # how many times larger its rounding is


@scalar
def clipped(z):
    return MANY if z > MANY else (z if z > FEW else FEW)


@scalar
def hill(z):
    return -z if z > FEW else z


RISING = {"linear": activations.linear().value, "relu": activations.relu().value, "clipped": clipped}
CASES = [(name, function, monotonic) for monotonic, functions in ((True, RISING), (False, RISING | {"hill": hill}))
         for name, function in functions.items()]


def best(activation, arrays, k, threads=None, **options):
    """(items, values) that the walk finds."""
    hidden, w = arrays[:2]
    *_, lists = top_k_plan(*hidden.shape, len(w), k, options.get("precision", "float32"))
    found = np.full((len(hidden), k), -7, np.int32), np.full((len(hidden), k), np.nan, np.float32)
    several = numba.get_num_threads()
    numba.set_num_threads(threads or several)
    try:
        walk_top_k(activation, *arrays, *found, np.full(lists.size, np.nan, np.float32), **options)
    finally:
        numba.set_num_threads(several)
    return found


def exactly(activation, arrays, k):
    batch = len(arrays[0])
    arguments = activation, *arrays, np.zeros((batch, k), np.int32), np.zeros((batch, k), np.float32), None
    return in_float64(walk_top_k, arguments, {}, np.float32)[6:8]


def unwanted(draw, batch, outputs):
    if draw(st.booleans()):
        return None, None
    seen = draw(csr(batch, outputs, valued=False, repeated=False, ordered=True))
    return seen.indptr, seen.indices


@pytest.mark.parametrize(("activation", "monotonic"), [one[1:] for one in CASES],
                         ids=[f"{name}-{monotonic}" for name, _, monotonic in CASES])
def test_exact_in_numbers_that_float32_holds(activation, monotonic):
    """Ties everywhere, and plateaus where logits differ and scores do not; infinities and NaN among the biases."""
    special = [np.inf] if activation not in (RISING["linear"], hill) else [np.inf, -np.inf, np.nan]

    @settings(max_examples=12, deadline=None)
    @given(st.data())
    def example(data):
        batch, inputs = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 20))
        outputs, k = data.draw(st.integers(1, 500)), data.draw(st.integers(0, 90))
        hidden, w, bias = (data.draw(dense(*shape, low=-2, high=2, exact=True))
                           for shape in ((batch, inputs), (outputs, inputs), (outputs,)))
        bias[data.draw(st.lists(st.integers(0, outputs - 1), max_size=3))] = data.draw(st.sampled_from(special))
        arrays = hidden, w, bias, *unwanted(data.draw, batch, outputs)
        expected = exactly(activation, arrays, k)
        for threads in (1, None):
            for found, exact in zip(best(activation, arrays, k, threads, monotonic=monotonic), expected, strict=True):
                np.testing.assert_array_equal(found, exact)
    example()


def test_more_than_there_are():
    """Every item that is wanted, in order, and nothing else."""
    random = np.random.default_rng(0)
    arrays = [random.integers(-3, 4, shape).astype(np.float32) for shape in ((3, 4), (300, 4), (300,))]
    seen = np.array([0, 2, 2, 300]), np.array([0, 299, *range(298)], np.int32)
    for k in (299, 300, 301, 1000):
        found, exact = (which(clipped, (*arrays, *seen), k) for which in (best, exactly))
        np.testing.assert_array_equal(found[0], exact[0])
        np.testing.assert_array_equal(found[1], exact[1])


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.skipif(
    not chosen().bfloat16, reason="this CPU has no dot products of bfloat16"))])
@pytest.mark.parametrize("order", ["random", "rising", "falling"])
def test_any_numbers(order, precision):
    """Scores are those of their items, and no item that is left out has a better one, but for rounding."""
    random = np.random.default_rng(1)
    batch, inputs, outputs, k = 67, 33, 3001, 50
    hidden, w = (random.normal(size=shape).astype(np.float32) for shape in ((batch, inputs), (outputs, inputs)))
    bias = {"random": random.normal(size=outputs), "rising": np.linspace(-9, 9, outputs),
            "falling": np.linspace(9, -9, outputs)}[order].astype(np.float32)
    sigmoid = activations.sigmoid().value
    items, values = best(sigmoid, (hidden, w, bias, None, None), k, monotonic=True, precision=precision)
    y = 1 / (1 + np.exp(-(hidden.astype(np.float64) @ w.T.astype(np.float64) + bias)))
    scale = (1 + abs(hidden) @ abs(w.T) + abs(bias)).max(axis=1, keepdims=True) * (BFLOAT16 if precision != "float32"
                                                                                   else 1)
    assert_close(values, np.take_along_axis(y, items.astype(int), axis=1), terms=inputs, scale=scale)
    assert_close(values, -np.sort(-y, axis=1)[:, :k], terms=inputs, scale=scale)
    assert all(len(set(row)) == k for row in items.tolist())
    assert (np.diff(values, axis=1) <= 0).all()


@pytest.mark.parametrize("name", sorted(set(activations.ACTIVATIONS) - {"softsign", "softmax"}))
def test_activations_never_fall_by_more_than_the_slack(name):
    """What the walk relies on, for neighbouring numbers in many places."""
    value = activations.get(name).value
    places = np.concatenate([np.linspace(-20, 20, 20_001), np.geomspace(1e-8, 1, 500), -np.geomspace(1e-8, 1, 500)])
    for z in places.astype(np.float32):
        lower = np.float32(z - np.float32(2.0**-20) * (1 + abs(z)))
        assert value(lower) <= value(z)


def test_the_room_is_checked():
    arrays = np.zeros((3, 4), np.float32), np.zeros((5, 4), np.float32), np.zeros(5, np.float32), None, None
    with pytest.raises(ValueError, match=r"room: expected at least \d+ float32 numbers on one axis"):
        walk_top_k(clipped, *arrays, np.zeros((3, 2), np.int32), np.zeros((3, 2), np.float32), np.zeros(7, np.float32))


def test_sums_above():
    random = np.random.default_rng(0)
    z, bounds = (random.choice([0.5, 1, -2, np.nan, np.inf, -np.inf], 90).astype(np.float32) for _ in range(2))
    bits = compared(z, 7, np.float32(0.5), bounds, 20)
    assert [bits >> i & 1 for i in range(64)] == list(z[7:71] + np.float32(0.5) > bounds[20:84])


@njit
def compared(z, start, number, bounds, b_start):
    return above_sum(z, start, number, bounds, b_start)
