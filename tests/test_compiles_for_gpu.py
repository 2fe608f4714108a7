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
from sparsenet.kernels import tiles
from sparsenet.kernels.activation import activate, hidden_delta
from sparsenet.kernels.batches import sorted_transpose, sorted_transpose_all
from sparsenet.kernels.dense import column_sum, matmul, matmul_activate
from sparsenet.kernels.dropout import denoise, dropout, dropped_delta
from sparsenet.kernels.exchange import pack, unpack, unpack_add
from sparsenet.kernels.head import Output, Rule, head_pull, head_step, head_sums, head_top_k, target_pull
from sparsenet.kernels.idle import catch_up
from sparsenet.kernels.loss import loss_sum, output_delta, panel_delta, sparse_loss_sum, sparse_output_delta
from sparsenet.kernels.random import normal, uniform
from sparsenet.kernels.rows import (
    reduce_rows,
    row_divide,
    row_exp,
    row_max,
    row_sum,
    softmax,
    softmax_delta,
    softmax_pull,
    softmax_rescale,
    softmax_sums,
)
from sparsenet.kernels.sampled_loss import sampled_delta
from sparsenet.kernels.sampling import draw, target_gradient, target_logits, update_rows, weigh
from sparsenet.kernels.slabs import Tile
from sparsenet.kernels.sparse import sparse_forward, sparse_update, sparse_weight_gradient
from sparsenet.kernels.tiles import Epilogue, multiply
from sparsenet.kernels.topk import exclude, score_items, top_k
from sparsenet.kernels.update import clear, update
from sparsenet.testing.ptx import PtxDevice
from tests.functions import ACTIVATIONS, OPTIMIZERS, OUTPUTS

CAPABILITIES = [(7, 5), (8, 0), (9, 0), (10, 0)]  # Turing, Ampere, Hopper, Blackwell
ON_THE_HOST = {"gather_rows", "transpose", "transpose_all", "take_rows", "keep_rows", "factored_loss", "walk_step",
               "walk_sums", "walk_pull", "walk_top_k"}  # kernels that never run on a GPU


class Float(NamedTuple):
    """An array (shape) float32, made where the device is known."""

    shape: tuple[int, ...]
    dtype: type = np.float32


KEY, KEYS = np.uint64(1), Float((1,), np.uint64)
UNITS, ROWS, MATRIX = Float((3,)), Float((2,)), Float((2, 3))
INDPTR, INDICES = Float((3,), np.int64), Float((4,), np.int32)
TOTALS = Float((2,), np.float64)
DATA = {"valued": Float((4,)), "boolean": None}
LISTED = (Float((2,), np.int32), INDPTR, INDICES, INDICES, Float((1,), np.int64))
SORTING = Float((2, 256), np.int32), Float((2, 4), np.int32)
WIDE = Float((2, 8))
FALSE_TRUE = (False, True)


def cases() -> Iterator[tuple]:
    """(kernel, name of the variant, its arguments): every variant that a kernel compiles differently."""
    for activation in ACTIVATIONS:
        yield activate, activation.name, activation.value, UNITS, MATRIX
        yield hidden_delta, activation.name, activation.slope, MATRIX, MATRIX
        yield dropped_delta, activation.name, activation.slope, KEYS, 0.5, MATRIX, MATRIX
    yield from ((kernel, "", *rest) for kernel, *rest in plain_cases())
    for a in FALSE_TRUE:
        for b in FALSE_TRUE:
            for add in FALSE_TRUE:
                shapes = Float((4, 2) if a else (2, 4)), Float((3, 4) if b else (4, 3))
                options = {"transpose_a": a, "transpose_b": b, "accumulate": add}
                yield matmul, f"{a}-{b}-{add}", *shapes, MATRIX, options
    yield matmul_activate, "", ACTIVATIONS[0].value, Float((2, 4)), Float((4, 3)), UNITS, MATRIX
    yield from ((multiply, *rest) for rest in product_cases())
    for name, value, delta_of in OUTPUTS:
        yield loss_sum, name, value, MATRIX, MATRIX, TOTALS
        for add in FALSE_TRUE:
            yield output_delta, f"{name}-{add}", delta_of, 0.5, MATRIX, MATRIX, MATRIX, add
        for kind, data in DATA.items():
            yield sparse_loss_sum, f"{name}-{kind}", value, MATRIX, INDPTR, INDICES, data, TOTALS
            for add in FALSE_TRUE:
                yield (sparse_output_delta, f"{name}-{kind}-{add}", delta_of, 0.5, MATRIX, INDPTR, INDICES, data,
                       MATRIX, add)
        for width, panel in {"1": MATRIX, "4": WIDE}.items():
            of_rows = (ROWS, TOTALS, TOTALS) if name.endswith("softmax") else (None, None, None)
            targets = INDPTR, INDICES, DATA["valued"]
            yield panel_delta, f"{name}-{width}", value, delta_of, 0.5, 0, *targets, *of_rows, panel, TOTALS
    for width in (3, 8):
        yield from ((kernel, f"{width}", *rest) for kernel, *rest in wide_cases(Float((2, width))))
    yield from ((kernel, "", *rest) for kernel, *rest in head_cases())
    yield from sampled_cases()
    for kind, data in DATA.items():
        yield denoise, kind, KEYS, 0.5, 3, INDPTR, INDICES, data, Float((4,))
        for width, of_batch in {"1": MATRIX, "4": WIDE}.items():
            weight = Float((5, of_batch.shape[1]))
            yield sparse_weight_gradient, f"{kind}-{width}", *LISTED, data, of_batch, weight
            for add in FALSE_TRUE:
                yield sparse_forward, f"{kind}-{add}-{width}", INDPTR, INDICES, data, weight, of_batch, add
    for optimizer in OPTIMIZERS:
        numbers = 0.5, 0.5, Float((8,)), optimizer.numbers
        for size in (3, 4):
            flat, slots = Float((size,)), Float((optimizer.slots, size))
            yield update, f"{optimizer.name}-{size}", optimizer.rule, flat, flat, slots, *numbers
        for kind, data in DATA.items():
            yield (sparse_update, f"{optimizer.name}-{kind}", optimizer.rule, *LISTED, data, WIDE, Float((5, 8)),
                   Float((optimizer.slots, 5, 8)), *numbers, Float((1, 8)))
        if optimizer.idle is not None:
            for kind, features in (("listed", Float((2,), np.int32)), ("all", None)):
                yield (catch_up, f"{optimizer.name}-{kind}", optimizer.idle.rule, features, Float((1,), np.int64),
                       Float((1,), np.int32), Float((3, 8)), Float((5, 8)), Float((optimizer.slots, 5, 8)),
                       Float((5,), np.int32), len(optimizer.idle.none))
    yield (sparse_update, "sgd-1", OPTIMIZERS[0].rule, *LISTED, None, MATRIX, Float((5, 3)), Float((0, 5, 3)), 0.5, 0.5,
           Float((8,)), OPTIMIZERS[0].numbers, Float((1, 3)))


def product_cases() -> Iterator[tuple]:
    """Large tiles for each precision, small ones with each epilogue, and a long sum in parts."""
    square, sgd, adam = Float((1024, 1024)), OPTIMIZERS[0], OPTIMIZERS[-1]
    for precision in ("float32", "tf32", "bfloat16"):
        operands = Float((1024, 64)), Float((64, 1024)), None, None
        yield precision, Epilogue.store(), *operands, square, None, None, None, {"precision": precision}
    matrix, numbers = Float((4, 4)), Float((8,))
    for optimizer in (sgd, adam):
        learn = Epilogue.update(optimizer.rule, optimizer.slots, optimizer.numbers, 0.5, 0.5)
        planes = [*[matrix] * optimizer.slots, None, None][:2]
        yield optimizer.name, learn, matrix, matrix, None, numbers, matrix, *planes, None, {"transpose_a": True}
    delta = Epilogue.delta(ACTIVATIONS[0].slope, True)
    yield "delta", delta, matrix, matrix, None, None, matrix, matrix, None, None, {"transpose_b": True}
    long = Float((4, 1024)), Float((1024, 4)), None, None
    yield "split", delta, *long, matrix, matrix, None, Float((1000,)), {}


def plain_cases() -> Iterator[tuple]:
    """Kernels without variants."""
    yield column_sum, MATRIX, UNITS
    yield dropout, KEYS, 0.5, MATRIX
    yield uniform, KEY, MATRIX
    yield normal, KEY, MATRIX
    yield row_exp, ROWS, MATRIX
    yield row_divide, ROWS, MATRIX
    yield softmax_pull, MATRIX, MATRIX
    yield softmax_delta, ROWS, MATRIX, MATRIX
    yield softmax_rescale, ROWS, ROWS, ROWS
    yield exclude, INDPTR, INDICES, MATRIX
    yield clear, MATRIX
    yield sorted_transpose, 300, INDPTR, INDICES, *SORTING, INDICES, Float((5,), np.int64), INDICES, INDICES, LISTED[-1]
    yield sorted_transpose_all, INDPTR, INDICES, *SORTING, Float((301,), np.int64), INDICES, INDICES


def wide_cases(matrix: Float) -> Iterator[tuple]:
    """Kernels that read rows four numbers at a time where they can."""
    yield row_sum, matrix, ROWS
    yield row_sum, matrix, TOTALS
    yield row_max, matrix, ROWS
    yield reduce_rows, OUTPUTS[0][1], OUTPUTS[0][1], np.float64(0), matrix, matrix, TOTALS
    for add in FALSE_TRUE:
        yield softmax_sums, matrix, ROWS, TOTALS, add
    yield softmax, ROWS, ROWS, matrix
    yield from ((top_k, matrix, Float((2, k), np.int32), Float((2, k))) for k in (1, 5000))
    buffer = Float((matrix.shape[0] * matrix.shape[1],))
    yield pack, matrix, INDPTR, buffer
    yield unpack, buffer, INDPTR, matrix
    yield unpack_add, Float((3, *matrix.shape)), matrix


def head_cases() -> Iterator[tuple]:
    """The walks over panels: their own kernels, and one set of those that they share with others."""
    sgd, (_, value, slope), scratch = OPTIMIZERS[0], OUTPUTS[0], Float((128 * 128 * 128,))
    output, rule = Output(ACTIVATIONS[0].value, value, slope), Rule(sgd.rule, sgd.numbers)
    hidden, w, bias, room = MATRIX, Float((12, 3)), Float((12,)), Float((2, 8))
    targets = INDPTR, INDICES, None
    yield (head_step, output, rule, 0.5, hidden, *targets, None, None, None, Float((8,)), w, Float((0, 12, 3)), bias,
           bias, Float((0, 12)), hidden, TOTALS, room, scratch)
    yield head_sums, hidden, w, bias, ROWS, TOTALS, room, scratch
    yield head_pull, slope, hidden, *targets, ROWS, TOTALS, w, bias, TOTALS, room, scratch
    yield target_pull, slope, INDPTR, DATA["valued"], TOTALS
    best = Float((2, 2), np.int32), Float((2, 2)), Float((2, 2, 2), np.int32)
    yield head_top_k, output.activation, hidden, w, bias, INDPTR, INDICES, *best, room, scratch
    yield score_items, output.activation, hidden, w, bias, *best[:2]


def sampled_cases() -> Iterator[tuple]:
    """Drawn units: all equally likely, or not; and what is made of them."""
    candidates, places, starts = Float((4,)), Float((4,), np.int32), Float((6,), np.int64)
    for kind, cells in {"uniform": None, "listed": starts}.items():
        yield draw, kind, KEYS, 3, 5, cells, INDPTR, INDICES, Float((4,), np.int64), Float((7,), np.int32)
        for shares in (None, Float((5,))):
            yield (weigh, f"{kind}-{shares is not None}", 3, 5, cells, shares, 2, places, starts, places, LISTED[-1],
                   candidates, candidates, places)
    panel, bias = Float((4, 3)), candidates
    yield target_logits, "", INDPTR, places, MATRIX, panel, bias, candidates
    yield target_gradient, "", 3, starts, places, places, LISTED[-1], candidates, MATRIX, panel, bias
    for name, value, slope in (OUTPUTS[0], next(one for one in OUTPUTS if one[0] == "cross_entropy-softmax")):
        output, softmax = Output(ACTIVATIONS[0].value, value, slope), name.endswith("softmax")
        for kind, data in DATA.items():
            for own in (None, candidates) if softmax else (None,):
                yield (sampled_delta, f"{name}-{kind}-{own is not None}", output, softmax, 0.5, INDPTR, data, places,
                       candidates, own, bias, MATRIX, candidates, TOTALS)
    for optimizer in OPTIMIZERS:
        yield (update_rows, optimizer.name, optimizer.rule, places, LISTED[-1], panel, Float((5, 3)),
               Float((optimizer.slots, 5, 3)), 0.5, 0.5, Float((8,)), optimizer.numbers)


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
@pytest.mark.parametrize("capability", [pytest.param(one, marks=[] if one == (9, 0) else pytest.mark.slow)
                                        for one in CAPABILITIES], ids="{0[0]}.{0[1]}".format)
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
    return [importlib.import_module(f"sparsenet.kernels.{name}") for name in names]


def sums_in_float64() -> set[str]:
    """Names of launched functions that their modules declare to sum in float64."""
    return {name for module in kernel_modules() for name in vars(module).get("_FLOAT64_SUMS", ())}


def gpu_kernels() -> set[str]:
    """Names of the host functions whose kernels run on a GPU."""
    modules = kernel_modules()
    kernels = {function.__name__ for module in modules for name, function in inspect.getmembers(module)
               if inspect.isfunction(function) and function.__module__ == module.__name__ and name[0] != "_"
               and inspect.signature(function).return_annotation in (None, "None")}
    assert kernels > ON_THE_HOST
    return kernels - ON_THE_HOST


def test_every_kernel_is_here():
    assert gpu_kernels() - {case[0].__name__ for case in cases()} == set()


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
    array, place, size = types.Array(types.float32, 1, "C"), types.int64, types.int32
    product = Tile(16, 8, "tf32", True, np.float32).product(
        False, False, True, True, True, *tiles._settlers(Epilogue.store(), False, False))
    compiled = compiling.cuda_kernel(product)
    kernel = dispatcher._Kernel(compiled.py_func, (array, size, array, size, *[size] * 4, types.boolean,
                                                   array, array, array, place, size, array, array))
    dumped = kernel_cache.serialize.dumps(kernel_cache._reduce_cuda(kernel))
    again = kernel_cache._rebuild_cuda(None, pickle.loads(dumped))
    assert again.entry_name == kernel.entry_name
    ptx = again._codelibrary.get_asm_str(cc=(9, 0))
    assert ".entry" in ptx
    assert ptx == kernel._codelibrary.get_asm_str(cc=(9, 0))
