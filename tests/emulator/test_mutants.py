"""Our own kernels with an error planted: a barrier or a wait left out, an index that is one off. Each must be found.

By the emulator's checks, or by a wrong result where they have nothing to say; and without the error nothing is found.
"""

import importlib
import itertools
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from sparsenet.testing import assert_close
from sparsenet.testing.emulator import Emulator, EmulatorError

pytestmark = pytest.mark.emulator


def mutant(name, change):
    """The module sparsenet.kernels.<name>, from changed source."""
    module = importlib.import_module(f"sparsenet.kernels.{name}")
    source = Path(module.__file__).read_text(encoding="utf-8")
    copy = ModuleType(module.__name__)
    exec(compile(change(source), module.__file__, "exec"), vars(copy))
    return copy


def without(text, number):
    """A change: the line that holds a text, the one of that number, does nothing."""
    def change(source):
        places = [match.start() for match in re.finditer(re.escape(text), source)]
        return source[:places[number]] + "None" + source[places[number] + len(text):]
    return change


def replaced(old, new):
    def change(source):
        assert source.count(old) == 1, f"{old!r} is no longer the one place that this test changes"
        return source.replace(old, new)
    return change


def sum_rows(module, device):
    """Four elements at a time, and one."""
    for units in (600, 601):
        y, out = np.random.default_rng(0).random((3, units)).astype(np.float32), device.zeros(3)
        module.row_sum(device.put(y), out)
        assert_close(out, y.sum(axis=1, dtype=float), terms=units)


def look_up(module, device):
    """Rows of several pieces, of which the last is not full."""
    rng = np.random.default_rng(0)
    lengths = np.array([0, 300, 5, 700])
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = rng.integers(0, 50, indptr[-1]).astype(np.int32)
    data, weight = (rng.random(shape).astype(np.float32) for shape in (indptr[-1], (50, 8)))
    y = device.zeros((4, 8))
    module.sparse_forward(*map(device.put, (indptr, indices, data, weight)), y)
    exact = [data[s:e].astype(float) @ weight[indices[s:e]] for s, e in itertools.pairwise(indptr)]
    assert_close(y, np.array(exact), terms=700)


def best(module, device):
    scores = np.random.default_rng(0).random((2, 500)).astype(np.float32)
    items, values = device.zeros((2, 9), np.int32), device.zeros((2, 9))
    module.top_k(device.put(scores), items, values)
    assert device.fetch(items).tolist() == np.argsort(-scores, axis=1)[:, :9].tolist()


def multiply(slabs, device):
    """Products of both ways of copying: 128 bits at a time, and one element."""
    kept = sys.modules["sparsenet.kernels.slabs"]
    sys.modules["sparsenet.kernels.slabs"] = slabs
    try:
        tiles = mutant("tiles", lambda source: source)
    finally:
        sys.modules["sparsenet.kernels.slabs"] = kept
    for shape in ((40, 100, 36), (33, 75, 35)):
        rng = np.random.default_rng(0)
        a, b = rng.random(shape[:2]).astype(np.float32), rng.random(shape[1:]).astype(np.float32)
        x = device.zeros((shape[0], shape[2]))
        tiles.multiply(tiles.Epilogue.store(), device.put(a), device.put(b), None, None, x, None, None, None)
        assert_close(x, a.astype(float) @ b, terms=shape[1])


BARRIER = "cuda.syncthreads()"
KERNELS = {"rows": sum_rows, "sparse": look_up, "topk": best, "slabs": multiply}
MUTANTS = [
    ("rows", without(BARRIER, 0)), ("rows", without(BARRIER, 1)),
    ("rows", replaced("combine(partial[thread], partial[thread + half])",
                      "combine(partial[thread], partial[thread + half + 1])")),
    ("rows", replaced("range(thread, units, threads):\n                total = combine",
                      "range(thread, units + 1, threads):\n                total = combine")),
    ("sparse", without(BARRIER, 0)), ("sparse", without(BARRIER, 1)), ("sparse", without(BARRIER, 2)),
    ("sparse", replaced("count = min(threads, end - start)", "count = threads")),
    ("sparse", replaced("for other in range(1, down):", "for other in range(1, down + 1):")),
    *[("topk", without(BARRIER, number)) for number in range(6)],
    ("topk", replaced("counts[bin + 1] if bin < 255 else 0", "counts[bin + 257]")),
    ("slabs", without(BARRIER, 0)), ("slabs", without("arrive()", 0)),
    ("slabs", replaced("top, left = cuda.blockIdx.x * edge, cuda.blockIdx.y * edge",
                       "top, left = cuda.blockIdx.x * edge + 1, cuda.blockIdx.y * edge")),
]


@pytest.mark.parametrize("name", KERNELS)
def test_as_it_is(name):
    KERNELS[name](mutant(name, lambda source: source), Emulator())


@pytest.mark.parametrize(("name", "change"), MUTANTS)
def test_planted_errors(name, change):
    module = mutant(name, change)
    with pytest.raises((EmulatorError, AssertionError)):
        KERNELS[name](module, Emulator())
