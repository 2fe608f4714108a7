"""Weights of sparse inputs, and their state, in bfloat16: the numbers of float32, rounded as key and place say."""

import numba
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenet.bfloat16 import SHORT, stored, unstored
from sparsenet.kernels.idle import catch_up
from sparsenet.kernels.sparse import sparse_forward, sparse_update
from sparsenet.optimizers import adam, momentum, sgd
from tests.rounding import kept

KEY = np.array([2**64 - 3], np.uint64)
STORED = [(SHORT, np.float32), (np.float32, SHORT), (SHORT, SHORT)]
SIZES = st.tuples(st.integers(0, 30), st.integers(1, 40), st.integers(1, 300), st.integers(0, 2**32 - 1))
stored_as = pytest.mark.parametrize(("optimizer", "weights", "slots"), [
    (optimizer, *dtypes) for optimizer, dtypes in zip((sgd(0.5, l2=0.1), momentum(), adam()), STORED, strict=True)
], ids=["sgd", "momentum", "adam"])


def prove(function):
    settings(max_examples=20, deadline=None)(given(SIZES)(function))()


def rows_of(sizes, valued):
    """(random, batch in CSR, values)."""
    batch, features, _, seed = sizes
    random = np.random.default_rng(seed)
    entries = sp.random_array((batch, features), density=0.2, rng=random, format="csr", dtype=np.float32)
    return random, entries, entries.data if valued else None


def numbers(random, *shape):
    """float32 numbers that bfloat16 has."""
    return unstored(stored(random.normal(size=shape).astype(np.float32), SHORT))


def learned(w, slots, weights, slots_dtype, step):
    """What a function (w, slots) makes of both, in float32 and in storage."""
    full, short = (w.copy(), slots.copy()), (stored(w, weights).copy(), stored(slots, slots_dtype).copy())
    step(*full)
    step(*short)
    return full, short


def check(before, full, short, key):
    """The rows that a step has changed are rounded at random, the others are as they were."""
    rounded = kept(*full, key)
    for was, number, halves, found in zip(before, full, rounded, short, strict=True):
        changed = was != number
        if found.dtype == SHORT:
            assert found.tobytes() == np.where(changed, halves, stored(was, SHORT)).tobytes()
        else:
            assert found.tobytes() == number.tobytes()


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("valued", [False, True])
def test_sparse_forward(valued, accumulate):
    @prove
    def example(sizes):
        random, entries, data = rows_of(sizes, valued)
        w = numbers(random, sizes[1], sizes[2])
        y = numbers(random, sizes[0], sizes[2])
        results = []
        for weight in (w, stored(w, SHORT)):
            results.append(y.copy())
            sparse_forward(entries.indptr.astype(np.int64), entries.indices.astype(np.int32), data, weight, results[-1],
                           accumulate)
        assert results[0].tobytes() == results[1].tobytes()


@stored_as
@pytest.mark.parametrize("valued", [False, True])
def test_sparse_update(valued, optimizer, weights, slots):
    scalars = np.full(8, np.nan, np.float32)
    scalars[:optimizer.numbers] = optimizer.scalars(3)

    @prove
    def example(sizes):
        batch, features, units, _ = sizes
        random, entries, data = rows_of(sizes, valued)
        turned, places = entries.tocsc(), np.arange(1, entries.nnz + 1)
        order = sp.csr_array((places, entries.indices, entries.indptr), entries.shape).tocsc().data
        touched = np.flatnonzero(np.diff(turned.indptr))
        listed = (touched.astype(np.int32), np.append(turned.indptr[touched], entries.nnz).astype(np.int64),
                  turned.indices.astype(np.int32), (order - 1).astype(np.int32), np.array([len(touched)]))
        delta, w = numbers(random, batch, units), numbers(random, features, units)
        state = abs(numbers(random, optimizer.slots, features, units))

        def step(w, slots):
            sparse_update(optimizer.rule, *listed, data, delta, w, slots, optimizer.l2, 0.0, scalars, optimizer.numbers,
                          np.zeros((4, units), np.float32), key=KEY)
        check((w, state), *learned(w, state, weights, slots, step), KEY[0])


@pytest.mark.parametrize("listed", [False, True])
@stored_as
def test_catch_up(optimizer, weights, slots, listed):
    """With the key's complement: in the same step the same rows are rounded once more."""
    idle = optimizer.idle

    @prove
    def example(sizes):
        _, features, units, seed = sizes
        random = np.random.default_rng(seed)
        made, seen = 5, random.integers(0, 7, features).astype(np.int32)
        named = random.permutation(features)[:features // 2 + 1].astype(np.int32) if listed else None
        table = np.zeros((made + 1, 8), np.float32)
        table[:, :len(idle.none)] = random.uniform(0.25, 1, (made + 1, len(idle.none)))
        w, state = numbers(random, features, units), abs(numbers(random, optimizer.slots, features, units))

        def step(w, slots):
            catch_up(idle.rule, named, np.array([features // 2 + 1]), np.array([made], np.int32), table, w, slots,
                     seen.copy(), len(idle.none), key=KEY)
        check((w, state), *learned(w, state, weights, slots, step), ~KEY[0])


def test_threads_change_no_bit():
    random, units, features = np.random.default_rng(1), 100, 500
    w, state = (stored(numbers(random, *shape), SHORT) for shape in ((features, units), (2, features, units)))
    listed = (np.arange(features, dtype=np.int32), np.arange(features + 1), np.zeros(features, np.int32),
              np.arange(features, dtype=np.int32), np.array([features]))
    found, several = [], numba.get_num_threads()
    for threads in (1, numba.config.NUMBA_NUM_THREADS):
        numba.set_num_threads(threads)
        found.append((w.copy(), abs(state)))
        sparse_update(adam().rule, *listed, None, numbers(random, 1, units) * 0 + 1, *found[-1], 0.0, 0.0,
                      np.ones(8, np.float32), adam().numbers, np.zeros((4, units), np.float32), key=KEY)
    numba.set_num_threads(several)
    assert [array.tobytes() for array in found[0]] == [array.tobytes() for array in found[1]]


def test_storage_needs_a_key():
    w, slots, few = np.zeros((3, 2), SHORT), np.zeros((0, 3, 2), np.float32), np.zeros(3, np.int32)
    with pytest.raises(ValueError, match="key: weights and slots in bfloat16 are rounded at random, and need one"):
        catch_up(sgd(l2=0.5).idle.rule, None, few, few, np.zeros((1, 8), np.float32), w, slots, few, 1)
    with pytest.raises(ValueError, match="key: weights and slots in bfloat16 are rounded at random, and need one"):
        sparse_update(sgd().rule, few, np.zeros(4, np.int64), few, few, np.array([3]), None,
                      np.zeros((1, 2), np.float32), w, slots, 0.0, 0.0, np.zeros(8, np.float32), 1,
                      np.zeros((1, 2), np.float32))
