"""What every test of a kernel shares: the devices, how many examples each can afford, and the comparison."""

import inspect
import os
from collections.abc import Callable

if os.cpu_count() == 1:
    os.environ.setdefault("NUMBA_NUM_THREADS", "2")  # before Numba is imported: results must not depend on threads

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsenet.device
from sparsenet.testing import assert_close, strategies
from sparsenet.testing.emulator import Emulator
from tests import reference

EXAMPLES = {"cpu": 25, "emulator": 25, "simulator": 8, "cuda": 25}
# Of axes: longer than a block, where there are blocks.
LARGEST = {"cpu": strategies.LARGEST, "emulator": 300, "simulator": 20, "cuda": 300}


@pytest.fixture(scope="session", params=["cpu", pytest.param("emulator", marks=pytest.mark.emulator),
                                         pytest.param("simulator", marks=pytest.mark.simulator),
                                         pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    """Every device in turn. A device that this machine lacks skips its tests and says why."""
    try:
        return Emulator() if request.param == "emulator" else sparsenet.device.device(request.param)
    except (ImportError, RuntimeError) as missing:
        pytest.skip(str(missing))


@pytest.fixture
def full_blocks(device, monkeypatch):
    """Blocks of threads as large as on a GPU, in the simulator too: each of its threads is one of Python's."""
    monkeypatch.setattr(device, "threads", sparsenet.device.Cuda.threads)
    monkeypatch.setattr(device, "tile", sparsenet.device.Cuda.tile)


@pytest.fixture
def sizes(device) -> Callable[..., st.SearchStrategy[int]]:
    """sizes(smallest=0, simulator=20): lengths of an axis that suit the device."""
    def sizes(smallest: int = 0, simulator: int = LARGEST["simulator"]):
        if device.name == "emulator":  # a few longer than a block: the references take their time
            return st.one_of(*[strategies.sizes(smallest)] * 5, strategies.sizes(255, LARGEST["emulator"]))
        return strategies.sizes(smallest, min(LARGEST[device.name], simulator if device.name == "simulator" else 300))
    return sizes


@pytest.fixture
def prove(device) -> Callable:
    """Decorator: run a function of `st.data()` at once, on as many examples as the device's speed allows."""
    def prove(function: Callable, examples: int = EXAMPLES[device.name]) -> None:
        settings(max_examples=examples, deadline=None)(given(st.data())(function))()
    return prove


@pytest.fixture
def agree(device) -> Callable:
    """agree(kernel, *arguments, outputs="names of arrays"): the kernel does on the device what its reference does.

    outputs  the arrays that may change, the last one by default; all others must come back bit for bit
    terms, dtype, scale  as for assert_close. Default scale: `effects_of_rounding`; "sum": what the reference makes of
                         the arguments' magnitudes
    On a CPU, the result must have the same bits with one thread and with several.
    """
    def agree(kernel: Callable, *arguments, outputs: str = "", terms=1, scale=None, dtype=np.float32, **options):
        names = list(inspect.signature(kernel).parameters)[:len(arguments)]
        arrays = [name for name, value in zip(names, arguments, strict=True) if isinstance(value, np.ndarray)]
        changing = outputs.split() or arrays[-1:]
        found = run(device, kernel, arguments, options)
        if device.name == "cpu":
            several = numba.get_num_threads()
            numba.set_num_threads(1)
            try:
                alone = run(device, kernel, arguments, options)
            finally:
                numba.set_num_threads(several)
            for name, one, many in zip(names, alone, found, strict=True):
                if isinstance(one, np.ndarray) and name.split("_")[0] not in ("scratch", "room"):
                    assert one.tobytes() == many.tobytes(), f"{name}: threads matter"
        exact = in_float64(kernel, arguments, options, dtype)
        if scale is None:
            scales = effects_of_rounding(kernel, arguments, options, dtype, exact)
        elif isinstance(scale, str):
            magnitudes = [abs(value) if isinstance(value, np.ndarray) else value for value in arguments]
            scales = in_float64(kernel, magnitudes, options, dtype)
        else:
            scales = [scale] * len(names)
        for place, name in enumerate(names):
            if name in changing:
                assert_close(found[place], exact[place], terms=terms, scale=scales[place], dtype=dtype, name=name)
            elif name in arrays and name.split("_")[0] not in ("scratch", "room"):
                assert found[place].tobytes() == arguments[place].tobytes(), f"{name} is an input, and was changed"
    return agree


def run(device, kernel: Callable, arguments: tuple, options: dict) -> list:
    """The arguments after a call of the kernel on the device; what was given stays as it was."""
    there = [device.put(value) if isinstance(value, np.ndarray) else value for value in arguments]
    kernel(*there, **options)
    return [device.fetch(value) if isinstance(old, np.ndarray) else value
            for value, old in zip(there, arguments, strict=True)]


def in_float64(kernel: Callable, arguments: tuple, options: dict, dtype, rounding: dict[int, float] | None = None):
    """The arguments after a call of the kernel's reference; rounding: relative changes of some of them before."""
    exact = [_exact(value, dtype) for value in arguments]
    for place, change in (rounding or {}).items():
        exact[place] = exact[place] * (1 + change)
    with np.errstate(all="ignore"):
        getattr(reference, kernel.__name__)(*exact, **options)
    return exact


def _exact(value, dtype):
    if isinstance(value, np.ndarray):
        return value.astype(np.float64) if np.issubdtype(value.dtype, np.floating) else value.copy()
    if isinstance(value, float):
        return float(dtype(value))
    if isinstance(value, tuple):
        return tuple(_exact(item, dtype) for item in value)
    return getattr(value, "py_func", value)  # the plain Python of a compiled scalar function


def effects_of_rounding(kernel, arguments, options, dtype, exact) -> list:
    """For each array f, |f before| + |f after| + sum over arrays x of |x df/dx|, by differences of the reference.

    That is what one rounding in each argument, and in the step from before to after, can change.
    """
    step = 1e-6
    magnitudes = [np.nan_to_num(np.abs(before)) + np.abs(after) if isinstance(after, np.ndarray) else None
                  for before, after in zip(arguments, exact, strict=True)]
    for place, value in enumerate(arguments):
        if isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating):
            moved = in_float64(kernel, arguments, options, dtype, {place: step})
            for total, new, old in zip(magnitudes, moved, exact, strict=True):
                if total is not None and np.issubdtype(total.dtype, np.floating):
                    with np.errstate(invalid="ignore"):
                        total += np.nan_to_num(np.abs(new - old) / step, nan=0.0, posinf=0.0)
    return magnitudes
