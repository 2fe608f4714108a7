"""Walks of the streaming head over random outputs, and their references."""

import numba
import numpy as np
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenet.kernels.output import Output, Rule
from sparsenet.kernels.walk import walk_plan, walk_step
from sparsenet.streaming import quiet_below
from sparsenet.testing import assert_close
from tests.conftest import in_float64

BFLOAT16 = 2.0**-8 / np.finfo(np.float32).eps  # how many times larger its rounding is
SIZES = st.tuples(st.integers(1, 140), st.integers(1, 70), st.integers(1, 600), st.integers(0, 2**32 - 1))


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


def walked(kernel, functions, arrays, precision="float32", threads=None, **options):
    """Arrays by name after a call."""
    batch, inputs = arrays["hidden"].shape
    *_, plan = walk_plan(batch, inputs, len(arrays["w"]), precision)
    copies = {name: None if array is None else array.copy() for name, array in arrays.items()}
    several = numba.get_num_threads()
    numba.set_num_threads(threads or several)
    try:
        kernel(*functions, *copies.values(), np.full(plan.size, np.nan, np.float32), precision=precision,
               **options)
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
    still = optimizer.still and optimizer.l2 == optimizer.l1 == 0
    return Rule(optimizer.rule, optimizer.numbers, optimizer.l2, optimizer.l1, still)
