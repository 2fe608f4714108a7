"""Atomics on global and shared memory, by all threads of several blocks.

Whatever the order, a place's values form a chain: each value that an update saw is the first one, or what another
update made; and the last one is left over.
"""

import functools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenet.device import cuda
from sparsenet.testing import emulate

pytestmark = pytest.mark.emulator

INTEGERS = (np.int32, np.int64, np.uint32, np.uint64)
UNSIGNED = (np.uint32, np.uint64)
ALL = (*INTEGERS, np.float32, np.float64)
BINS = 5

OPERATIONS = {  # what is left of old and x
    "add": (lambda old, x: old + x, ALL),
    "sub": (lambda old, x: old - x, ALL),
    "max": (np.maximum, ALL),
    "min": (np.minimum, ALL),
    "nanmax": (np.fmax, ALL),
    "nanmin": (np.fmin, ALL),
    "and_": (np.bitwise_and, INTEGERS),
    "or_": (np.bitwise_or, INTEGERS),
    "xor": (np.bitwise_xor, INTEGERS),
    "exch": (lambda old, x: x, INTEGERS),
    "inc": (lambda old, x: old.dtype.type(0) if old >= x else old + old.dtype.type(1), UNSIGNED),
    "dec": (lambda old, x: x if old == 0 or old > x else old - old.dtype.type(1), UNSIGNED),
    "cas": (lambda old, x: x if old == old.dtype.type(2) else old, INTEGERS),
}
CASES = [(name, kind) for name, (_, kinds) in OPERATIONS.items() for kind in kinds]


SOURCE = """
def update(bins, where, x, old, shared_bins, shared_old):
    i = cuda.grid(1)
    if i < x.size:
        old[i] = cuda.atomic.NAME(bins, where[i], GIVEN)
    stage = cuda.shared.array((2, 5), kind)
    t = cuda.threadIdx.x
    if t < 5:
        stage[1, t] = shared_bins[t]
    cuda.syncthreads()
    if cuda.blockIdx.x == 0:
        for i in range(t, x.size, cuda.blockDim.x):
            shared_old[i] = cuda.atomic.NAME(stage, (1, where[i]), GIVEN)
    cuda.syncthreads()
    if cuda.blockIdx.x == 0 and t < 5:
        shared_bins[t] = stage[1, t]
"""


@functools.cache
def emulated(name, kind):
    """A kernel whose threads update bins, in global and by the first block in shared memory, and say what they saw."""
    scope = {"cuda": cuda, "kind": kind, "two": kind(2)}
    exec(SOURCE.replace("NAME", name).replace("GIVEN", "two, x[i]" if name == "cas" else "x[i]"), scope)
    return emulate(scope["update"])


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_atomics(name, kind):
    @settings(max_examples=8, deadline=None)
    @given(st.integers(0, 90), st.integers(0, 2**32), st.booleans())
    def example(updates, seed, large):
        rng = np.random.default_rng(seed)
        low = 0 if np.issubdtype(kind, np.unsignedinteger) else -4
        x, first = rng.integers(low, 5, updates).astype(kind), rng.integers(low, 5, BINS).astype(kind)
        if large:
            x = (x * (2.0**-20 if np.issubdtype(kind, np.floating) else 2**28)).astype(kind)
        where = rng.integers(0, BINS, updates)
        if name.startswith("nan") and np.issubdtype(kind, np.floating):
            x[::3] = first[0] = np.nan
        bins, shared_bins, old, shared_old = first.copy(), first.copy(), np.zeros_like(x), np.zeros_like(x)
        emulated(name, kind)[4, 33](bins, where, x, old, shared_bins, shared_old)
        check_chains(name, first, where, x, old, bins)
        check_chains(name, first, where, x, shared_old, shared_bins)
    example()


def check_chains(name, first, where, x, old, bins):
    with np.errstate(over="ignore"):
        made = np.array([OPERATIONS[name][0](one, other) for one, other in zip(old, x, strict=True)], x.dtype)
    for k in range(BINS):
        seen, left = old[where == k], made[where == k]
        assert counted([*seen, bins[k]]) == counted([*left, first[k]])


def counted(values):
    return Counter("nan" if value != value else value.tobytes() for value in values)


@pytest.mark.parametrize(("name", "reduce"), [("add", np.sum), ("max", np.max), ("min", np.min),
                                              ("xor", np.bitwise_xor.reduce)])
def test_sums_and_extremes(name, reduce):
    """Where the order does not matter, the last value is known."""
    x = np.random.default_rng(0).integers(-1000, 1000, 5000).astype(np.int32)
    bins = np.full((2, BINS), 0 if name in ("add", "xor") else x[7], np.int32)
    old = np.zeros((2, x.size), np.int32)
    emulated(name, np.int32)[80, 64](bins[0], np.zeros(x.size, int), x, old[0], bins[1], old[1])
    assert (bins[:, 0] == reduce(x)).all()


def test_compare_and_swap():
    """Who comes first takes the lock; all others see who has it."""
    def lock(taken, seen):
        seen[cuda.grid(1)] = cuda.atomic.compare_and_swap(taken, -1, cuda.grid(1))
    taken, seen = np.full(1, -1), np.zeros(5000, int)
    emulate(lock)[50, 100](taken, seen)
    winner = taken[0]
    assert seen[winner] == -1
    assert (np.delete(seen, winner) == winner).all()


def test_many_cores_lose_no_update():
    """100,000 threads and all cores add to one number."""
    def add(total, floats):
        cuda.atomic.add(total, 0, 1)
        cuda.atomic.add(floats, 0, np.float32(1))
        cuda.atomic.max(floats, 1, np.float32(cuda.grid(1)))
    total, floats = np.zeros(1, np.int64), np.zeros(2, np.float32)
    emulate(add)[1000, 100](total, floats)
    assert total[0] == 100_000
    assert floats.tolist() == [100_000, 99_999]
