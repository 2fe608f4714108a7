"""Every kernel compiles for every generation of GPUs, in single precision, on a machine without a GPU.

Compiling proves types, memory spaces and calls, not results: those are the simulator's part, and `pytest -m cuda`'s.
"""

import importlib
import inspect
import pickle
import pkgutil
import re
from collections.abc import Iterator
from typing import NamedTuple

import numba
import numpy as np
import pytest

import sparsenet.kernels
from sparsenet import compiling, kernel_cache
from sparsenet.compiling import numba_cuda, scalar
from sparsenet.kernels import dense
from sparsenet.kernels.activation import activate, hidden_delta
from sparsenet.kernels.dense import column_sum, matmul
from sparsenet.kernels.dropout import denoise, dropout, dropped_delta
from sparsenet.kernels.loss import loss_sum, output_delta, sparse_loss_sum, sparse_output_delta
from sparsenet.kernels.random import normal, uniform
from sparsenet.kernels.rows import reduce_rows, row_divide, row_exp, row_max, row_sum, softmax_delta, softmax_pull
from sparsenet.kernels.sparse import sparse_forward, sparse_update, sparse_weight_gradient
from sparsenet.kernels.topk import exclude, top_k
from sparsenet.kernels.update import clear, update
from sparsenet.testing.ptx import PtxDevice
from tests.functions import ACTIVATIONS, OPTIMIZERS, OUTPUTS

CAPABILITIES = [(7, 5), (8, 0), (9, 0), (10, 0)]  # Turing, Ampere, Hopper, Blackwell
ON_THE_HOST = {"batches"}  # the modules whose kernels never run on a GPU


class Float(NamedTuple):
    """An array (shape) float32, made where the device is known."""

    shape: tuple[int, ...]
    dtype: type = np.float32


KEY = np.uint64(1)
UNITS, ROWS, MATRIX = Float((3,)), Float((2,)), Float((2, 3))
INDPTR, INDICES = Float((3,), np.int64), Float((4,), np.int32)
TOTALS = Float((2,), np.float64)
DATA = {"valued": Float((4,)), "boolean": None}
LISTED = (Float((2,), np.int32), INDPTR, INDICES, INDICES)
FALSE_TRUE = (False, True)


def cases() -> Iterator[tuple]:
    """(kernel, name of the variant, its arguments): every variant that a kernel compiles differently."""
    for activation in ACTIVATIONS:
        yield activate, activation.name, activation.value, UNITS, MATRIX
        yield hidden_delta, activation.name, activation.slope, MATRIX, MATRIX
        yield dropped_delta, activation.name, activation.slope, KEY, 0.5, MATRIX, MATRIX
    yield from ((kernel, "", *rest) for kernel, *rest in plain_cases())
    for a in FALSE_TRUE:
        for b in FALSE_TRUE:
            for add in FALSE_TRUE:
                shapes = Float((4, 2) if a else (2, 4)), Float((3, 4) if b else (4, 3))
                options = {"transpose_a": a, "transpose_b": b, "accumulate": add}
                yield matmul, f"{a}-{b}-{add}", *shapes, MATRIX, options
    for name, value, delta_of in OUTPUTS:
        yield loss_sum, name, value, MATRIX, MATRIX, TOTALS
        for add in FALSE_TRUE:
            yield output_delta, f"{name}-{add}", delta_of, 0.5, MATRIX, MATRIX, MATRIX, add
        for kind, data in DATA.items():
            yield sparse_loss_sum, f"{name}-{kind}", value, MATRIX, INDPTR, INDICES, data, TOTALS
            for add in FALSE_TRUE:
                yield (sparse_output_delta, f"{name}-{kind}-{add}", delta_of, 0.5, MATRIX, INDPTR, INDICES, data,
                       MATRIX, add)
    for kind, data in DATA.items():
        yield denoise, kind, KEY, 0.5, 3, INDPTR, INDICES, data, Float((4,))
        yield sparse_weight_gradient, kind, *LISTED, data, MATRIX, Float((5, 3))
        for add in FALSE_TRUE:
            yield sparse_forward, f"{kind}-{add}", INDPTR, INDICES, data, Float((5, 3)), MATRIX, add
    for optimizer in OPTIMIZERS:
        numbers = 0.5, 0.5, optimizer.scalars(1)
        yield update, optimizer.name, optimizer.rule, UNITS, UNITS, Float((optimizer.slots, 3)), *numbers
        for kind, data in DATA.items():
            yield (sparse_update, f"{optimizer.name}-{kind}", optimizer.rule, *LISTED, data, MATRIX, Float((5, 3)),
                   Float((optimizer.slots, 5, 3)), *numbers, Float((1, 3)))


def plain_cases() -> Iterator[tuple]:
    """Kernels without variants."""
    yield column_sum, MATRIX, UNITS
    yield dropout, KEY, 0.5, MATRIX
    yield uniform, KEY, MATRIX
    yield normal, KEY, MATRIX
    yield row_sum, MATRIX, ROWS
    yield row_sum, MATRIX, TOTALS
    yield row_max, MATRIX, ROWS
    yield reduce_rows, OUTPUTS[0][1], OUTPUTS[0][1], np.float64(0), MATRIX, MATRIX, TOTALS
    yield row_exp, ROWS, MATRIX
    yield row_divide, ROWS, MATRIX
    yield softmax_pull, MATRIX, MATRIX
    yield softmax_delta, ROWS, MATRIX, MATRIX
    yield exclude, INDPTR, INDICES, MATRIX
    yield top_k, MATRIX, *(Float((2, 1), kind) for kind in (np.int32, np.float32, np.int32))
    yield clear, MATRIX


def named(case) -> str:
    kernel, variant, *_ = case
    return f"{kernel.__name__}-{variant}" if variant else kernel.__name__


@pytest.fixture(scope="module")
def compiler():
    """Skips where NVIDIA's compiler is missing."""
    try:
        numba_cuda()
    except ImportError as missing:
        pytest.skip(str(missing))


@pytest.mark.compile
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("case", list(cases()), ids=named)
@pytest.mark.parametrize("capability", CAPABILITIES, ids="{0[0]}.{0[1]}".format)
def test_compiles(capability, case):
    kernel, _, *arguments = case
    options = arguments.pop() if isinstance(arguments[-1], dict) else {}
    device = PtxDevice(capability)
    kernel(*(device.zeros(*value) if isinstance(value, Float) else value for value in arguments), **options)
    assert device.compiled
    for compiled in device.compiled:
        assert f".target sm_{capability[0]}{capability[1]}" in compiled.ptx
        assert ".entry" in compiled.ptx
        if compiled.kernel not in sums_in_float64():
            assert re.search(r"\.f64\b", compiled.ptx) is None, f"{compiled.kernel} computes in double precision"


def kernel_modules() -> list:
    names = [module.name for module in pkgutil.iter_modules(sparsenet.kernels.__path__)]
    return [importlib.import_module(f"sparsenet.kernels.{name}") for name in names if name not in ON_THE_HOST]


def sums_in_float64() -> set[str]:
    """Names of launched functions that their modules declare to sum in float64."""
    return {name for module in kernel_modules() for name in vars(module).get("_FLOAT64_SUMS", ())}


def test_every_kernel_is_here():
    modules = kernel_modules()
    kernels = {function.__name__ for module in modules for name, function in inspect.getmembers(module)
               if inspect.isfunction(function) and function.__module__ == module.__name__ and name[0] != "_"}
    assert "matmul" in kernels
    assert kernels - {case[0].__name__ for case in cases()} == set()


@pytest.mark.compile
@pytest.mark.usefixtures("compiler")
def test_double_precision_is_found():
    """The check above can fail: a constant of Python's own makes a kernel compute in float64."""
    device = PtxDevice((9, 0))
    hidden_delta(careless_slope, device.zeros((2, 3)), device.zeros((2, 3)))
    assert re.search(r"\.f64\b", device.compiled[0].ptx)


@scalar
def careless_slope(y):
    return y * (1.0 - y)


@pytest.mark.compile
def test_a_cuda_kernel_can_be_kept_on_disk(monkeypatch):
    """What kernel_cache writes down of a compiled CUDA kernel makes the same kernel again."""
    monkeypatch.setattr(numba.config, "ENABLE_CUDASIM", 0)
    numba_cuda()
    from numba.cuda import codegen, dispatcher, types

    card = type("Card", (), {"compute_capability": (9, 0), "id": 0})
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: card)
    monkeypatch.setattr(codegen.devices, "get_context", lambda *_: type("Context", (), {"device": card}))
    array = types.Array(types.float32, 2, "C")
    compiled = compiling.cuda_kernel(dense._matmul_on_cuda(False, True, True, 16))
    kernel = dispatcher._Kernel(compiled.py_func, (array, array, array))
    dumped = kernel_cache.serialize.dumps(kernel_cache._reduce_cuda(kernel))
    again = kernel_cache._rebuild_cuda(None, pickle.loads(dumped))
    assert again.entry_name == kernel.entry_name
    ptx = again._codelibrary.get_asm_str(cc=(9, 0))
    assert ".entry" in ptx
    assert ptx == kernel._codelibrary.get_asm_str(cc=(9, 0))
