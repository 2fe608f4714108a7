"""The assembler's report and the disassembly are read rightly: kernels made to be bad, and their better twins."""

import numpy as np
import pytest

from sparsenet.compiling import compile_ptx, numba_cuda
from sparsenet.device import cuda
from sparsenet.instructions import copy4_async, load4, mma_tf32, store4
from sparsenet.testing import machine_code as module
from sparsenet.testing.machine_code import assembler_version, check_tools, machine_code

pytestmark = pytest.mark.compile
ARRAY = np.zeros(64, np.float32)
HELD, WORDS = 40, 128


@pytest.fixture(scope="module", autouse=True)
def _tools():
    try:
        numba_cuda()
        check_tools()
    except ImportError as missing:
        pytest.skip(str(missing))


def held_sums(x, y):
    sums, i = cuda.local.array(HELD, np.float32), cuda.grid(1)
    for k in range(HELD):
        sums[k] = x[i + k]
    for start in range(i, x.shape[0]):
        for k in range(HELD):
            sums[k] += x[start + k]
    for k in range(HELD):
        y[i + k] = sums[k]


def chosen(x, y):
    kept, i = cuda.local.array(HELD, np.float32), cuda.grid(1)
    for k in range(x.shape[0]):
        kept[np.int32(x[k])] = x[i + k]
    y[i] = kept[np.int32(x[i])]


def one_by_one(x, y):
    i = 4 * cuda.grid(1)
    a, b, c, d = x[i], x[i + 1], x[i + 2], x[i + 3]
    y[i], y[i + 1], y[i + 2], y[i + 3] = a, b, c, d


def four_at_once(x, y):
    i = 4 * cuda.grid(1)
    a, b, c, d = load4(x, i)
    store4(y, i, a, b, c, d)


def through_shared(x, y):
    tile = cuda.shared.array(WORDS, np.float32, alignment=16)
    i = 4 * cuda.threadIdx.x
    copy4_async(tile, i, x, i, np.uint32(4))
    cuda.syncthreads()
    a, b, c, d = load4(tile, i)
    store4(tile, i, b, a, d, c)
    cuda.syncthreads()
    y[i] = tile[i ^ 16]


def small_product(x, y):
    bits = np.uint32(cuda.threadIdx.x)
    a, b, c, d = mma_tf32(bits, bits, bits, bits, bits, bits, x[0], x[1], x[2], x[3])
    y[0] = a + b + c + d


def code(kernel, capability=(9, 0), **options):
    return machine_code(compile_ptx(kernel, (ARRAY, ARRAY), capability), **options)


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0), (10, 0)])
def test_spills(capability):
    free, pressed = code(held_sums, capability), code(held_sums, capability, max_registers=32)
    assert free.registers > HELD
    assert free.spills == free.local == 0
    assert pressed.registers <= 32
    assert pressed.spills > 0
    assert pressed.local > 0
    assert pressed.instructions > free.instructions


def test_an_array_that_found_no_place_in_registers():
    assert code(chosen).local >= 4 * HELD
    assert code(chosen).spills == 0


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0), (10, 0)])
def test_wide_accesses(capability):
    narrow, wide = code(one_by_one, capability), code(four_at_once, capability)
    assert (narrow.wide_loads, narrow.wide_stores) == (0, 0)
    assert (wide.wide_loads, wide.wide_stores) == (1, 1)
    assert wide.instructions < narrow.instructions
    assert wide.architecture == f"sm_{capability[0]}{capability[1]}"
    assert "LDG.E" in narrow.text


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
def test_shared_memory_and_tensor_cores(capability):
    shared, product = code(through_shared, capability), code(small_product, capability)
    assert shared.shared == 4 * WORDS
    assert (shared.asynchronous, shared.wide_shared_loads, shared.wide_shared_stores) == (1, 1, 1)
    assert (shared.wide_loads, shared.wide_stores, shared.tensor) == (0, 0, 0)
    assert product.tensor >= 1
    assert product.asynchronous == product.shared == 0


def test_what_is_not_ptx():
    with pytest.raises(ValueError, match="expected PTX"):
        machine_code("int main() {}")
    with pytest.raises(ValueError, match="ptxas: "):
        machine_code(".version 8.0\n.target sm_90\nnonsense")


def test_a_missing_tool_is_named(monkeypatch):
    assert assembler_version().count(".") == 2
    monkeypatch.setitem(module.TOOLS, "ptxas", "a-package-that-nobody-installed")
    monkeypatch.setattr(module.shutil, "which", lambda tool: None)
    module._path.cache_clear()
    try:
        with pytest.raises(ImportError, match="ptxas was not found; `pip install a-package"):
            check_tools()
    finally:
        module._path.cache_clear()
