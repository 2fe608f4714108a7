"""Rows that wait: the same weights and state as if every step had visited every row."""

import numpy as np
import pytest
from hypothesis import strategies as st

from sparsenet import optimizers
from sparsenet.kernels.sparse import sparse_update
from sparsenet.layers import backlog
from sparsenet.layers.backlog import Backlog
from sparsenet.optimizers import Optimizer
from sparsenet.testing import assert_close
from tests import reference
from tests.functions import USERS_IDLE, scalars_of

USERS = Optimizer("waits", lambda w, g, m, v, s: (s[0] * w - g, m - s[1] + g, s[1] * v), slots=2,
                  scalars=lambda step: (0.875, 0.5), idle=USERS_IDLE)
FEATURES, UNITS, BLOCK = 6, 3, 4


def rate(step):
    return 0.25 / step


WAITING = [optimizers.sgd(rate, l2=0.5), optimizers.momentum(rate), optimizers.nesterov(rate, decay=0.5),
           optimizers.rmsprop(rate), optimizers.adadelta(rate), optimizers.adam(rate), USERS]


@pytest.mark.parametrize("optimizer", WAITING, ids=lambda optimizer: optimizer.name)
def test_backlog(optimizer, device, prove, monkeypatch):
    """Steps that name some rows, against a float64 update of all; gaps are longer than a block of steps, too."""
    monkeypatch.setattr(backlog, "_STEPS", BLOCK)

    @prove
    def example(data):
        some = st.lists(st.integers(0, FEATURES - 1), unique=True, max_size=2)
        steps = data.draw(st.lists(st.tuples(some, st.booleans()), min_size=1, max_size=3 * BLOCK))
        random = np.random.default_rng(data.draw(st.integers(0, 9)))
        w = random.integers(1, 9, (FEATURES, UNITS)) / 8
        slots = random.integers(1, 9, (optimizer.slots, FEATURES, UNITS)) / 8
        here = [device.put(array.astype(np.float32)) for array in (w, slots)]
        waiting = Backlog(device, optimizer, FEATURES, np.float32)
        magnitude = [abs(w), abs(slots)]
        for step, (named, read) in enumerate(steps, start=1):
            g = random.integers(1, 9, (len(named), UNITS)) / 8
            waiting.owe(*here, optimizer.scalars(step))
            update_named(device, waiting, optimizer, step, named, g, *here)
            dense_step(optimizer, step, named, g, w, slots)
            if read:
                waiting.settle(*here)
            magnitude = [np.maximum(old, abs(new)) for old, new in zip(magnitude, (w, slots), strict=True)]
        waiting.settle(*here)
        for found, exact, largest in zip(here, (w, slots), magnitude, strict=True):
            assert_close(found, exact, terms=8 * len(steps), scale=largest)


def update_named(device, waiting, optimizer, step, named, g, w, slots):
    """One example for each row that is named, its delta the gradient."""
    listed = [np.array([*named, -7], np.int32), np.arange(len(named) + 2), np.arange(len(named) + 1, dtype=np.int32),
              np.arange(len(named) + 1, dtype=np.int32), np.array([len(named)])]
    features, indptr, examples, positions, touched = map(device.put, listed)
    waiting.pay(features, touched, w, slots)
    delta = np.vstack([g, np.zeros((1, UNITS))]).astype(np.float32)
    scalars, numbers = scalars_of(optimizer, step)
    sparse_update(optimizer.rule, features, indptr, examples, positions, touched, None, device.put(delta), w, slots,
                  optimizer.l2, 0.0, device.put(scalars), numbers, device.zeros((2, UNITS)))


def dense_step(optimizer, step, named, g, w, slots):
    gradient = np.zeros(w.shape)
    gradient[named] = g
    rule = getattr(optimizer.rule, "py_func", optimizer.rule)
    reference.update(rule, w.reshape(-1), gradient.reshape(-1), slots.reshape(optimizer.slots, w.size), optimizer.l2,
                     0.0, optimizer.scalars(step), optimizer.numbers)


def test_nothing_waits_at_first(device):
    """Not a bit changes, however often it is settled."""
    optimizer = optimizers.adam()
    w, slots = device.put(np.ones((2, 3), np.float32)), device.put(np.ones((2, 2, 3), np.float32))
    waiting = Backlog(device, optimizer, 2, np.float32)
    waiting.settle(w, slots)
    assert np.all(device.fetch(w) == 1)
    waiting.owe(w, slots, optimizer.scalars(1))
    waiting.settle(w, slots)
    once = device.fetch(w)
    waiting.settle(w, slots)
    assert np.all(once < 1)
    assert np.array_equal(device.fetch(w), once)


def test_interrupted_steps(device):
    """Rows that steps named and then did not update stay as they are; all others see every step once."""
    optimizer = optimizers.momentum(0.5, mu=0.5)
    w, slots = device.zeros((2, 1)), device.put(np.ones((1, 2, 1), np.float32))
    waiting = Backlog(device, optimizer, 2, np.float32)
    first = device.put(np.zeros(1, np.int32)), device.put(np.ones(1, np.int64))
    for _ in range(3):  # row 0 is named, and never updated
        waiting.owe(w, slots, optimizer.scalars(1))
        waiting.pay(*first, w, slots)
    waiting.settle(w, slots)
    assert device.fetch(w)[1, 0] == 0.5 + 0.25 + 0.125
    assert device.fetch(w)[0, 0] == 0
