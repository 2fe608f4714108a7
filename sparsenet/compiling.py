"""Python functions compiled: scalar functions, loops around bodies, CUDA kernels.

The only file that sets Numba's flags or imports numba.cuda.
"""

import functools
import inspect
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from types import FunctionType
from typing import Any

import numba
import numpy as np
from numba import njit, prange

from sparsenet import kernel_cache

_CPU_FLAGS = {"error_model": "numpy", "nogil": True}  # no zero-division branches; other Python threads go on


def scalar(function: Callable) -> Callable:
    """Compile a function of scalars so that kernels on every device can call it. Compiled ones keep their options.

    Raises TypeError for what is not written in Python, such as math.tanh itself.
    """
    if isinstance(function, numba.core.dispatcher.Dispatcher):
        return kernel_cache.renamed(function)
    if numba.config.DISABLE_JIT:
        return function
    if not isinstance(function, FunctionType):
        raise TypeError(f"expected a function written in Python, such as lambda z: math.tanh(z), got {function!r}")
    return njit(kernel_cache.named(function), **_CPU_FLAGS)


def plain(function: Any) -> Callable:
    """The plain Python of a scalar function."""
    return getattr(function, "py_func", function)


def check_compiles(function: Any, arguments: tuple[Any, ...], what: str) -> None:
    """Raise ValueError where Numba cannot compile a scalar function for arguments of these kinds.

    arguments  numbers, or tuples of numbers, of the kinds that kernels will pass
    """
    if numba.config.DISABLE_JIT:
        return
    try:
        function.compile(tuple(numba.typeof(argument) for argument in arguments))
    except numba.core.errors.NumbaError as error:
        reason = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ValueError(f"{what} cannot be compiled: {' '.join(reason[:3])}") from error


class _Cuda:
    """Stands for `numba.cuda` in kernel files, which thus need not import it; see `with_cuda`."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"cuda.{name} exists inside a kernel only")


cuda = _Cuda()


def _loops(body: Callable, compiled: Callable, scope: dict[str, Any], *loops: str) -> FunctionType:
    """A function of (sizes, arrays) that calls a body at every index.

    Generated with a fixed list of arguments: star-args and calls that are not inlined cost a factor of 4 to 8.
    """
    names = list(inspect.signature(body).parameters)
    axes, arrays = names[:len(loops)], names[len(loops):]
    lines = [f"def {body.__name__.strip('_')}({', '.join(['n_' + axis for axis in axes] + arrays)}):"]
    for depth, (axis, loop) in enumerate(zip(axes, loops, strict=True), start=1):
        lines.append("    " * depth + f"for {axis} in {loop.format('n_' + axis)}:")
    lines.append("    " * (len(loops) + 1) + f"compiled({', '.join(names)})")
    scope = {"compiled": compiled, "__name__": __name__, **scope}
    exec(compile("\n".join(lines), f"<loops of {body.__qualname__}>", "exec"), scope)
    return scope[body.__name__.strip("_")]


@functools.cache
def cpu_loops(body: Callable, axes: int) -> Callable:
    """The loops of a body, compiled for the CPU."""
    inlined = njit(body, inline="always", **_CPU_FLAGS)
    loops = ("prange({})", "range({})")[:axes]
    return cpu_function(_loops(body, inlined, {"prange": prange}, *loops))


@functools.cache
def cpu_function(function: Callable) -> Callable:
    """A function compiled for the CPU, its `prange` loops over all cores, kept on disk."""
    parallel = "prange" in function.__code__.co_names
    function = kernel_cache.named(function)
    return kernel_cache.attach(njit(function, parallel=parallel, **_CPU_FLAGS), f"parallel={parallel} {_CPU_FLAGS}")


@functools.cache
def cuda_loops(body: Callable, axes: int) -> Callable:
    """The grid-stride loops of a body, not yet compiled."""
    if axes == 1:
        loops = ["range(cuda.grid(1), {}, cuda.gridsize(1))"]
    else:
        loops = ["range(cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y, {}, cuda.blockDim.y * cuda.gridDim.y)",
                 "range(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, {}, cuda.blockDim.x * cuda.gridDim.x)"]
    return _loops(body, with_cuda(body), {"cuda": cuda}, *loops)


@functools.cache
def cuda_kernel(function: Callable) -> Any:
    """A CUDA kernel, compiled when it is first launched, kept on disk."""
    module = numba_cuda()
    kernel = module.jit(with_cuda(function, module.jit(device=True)))
    return kernel if numba.config.ENABLE_CUDASIM else kernel_cache.attach(kernel, f"cuda {_cuda_version()}")


def _cuda_version() -> str:
    try:
        return version("numba-cuda")
    except PackageNotFoundError:
        return numba.__version__  # numba's own numba.cuda


@functools.cache
def with_cuda(function: Callable, device_function: Callable = lambda body: body) -> FunctionType:
    """The function with numba.cuda in place of this file's `cuda`, its body made a device function."""
    scope = {name: numba_cuda() if value is cuda else value for name, value in function.__globals__.items()}
    if "compiled" in scope:
        scope["compiled"] = device_function(scope["compiled"])
    bound = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    bound.__qualname__ = function.__qualname__
    return bound


@functools.cache
def numba_cuda() -> Any:
    """The module numba.cuda, mended: every shim that numba-cuda needs is here.

    Raises ImportError, with what to install, where numba-cuda cannot load.
    """
    numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # small launches are right where the arrays are small
    if "row_stack" not in vars(np):
        np.row_stack = np.vstack  # numba-cuda 0.30 names it, NumPy 2.5 dropped it
    try:
        from numba import cuda as module
    except Exception as error:  # numba-cuda raises its own kinds where the CUDA runtime is missing
        raise ImportError(f"numba.cuda cannot be loaded ({error}); `pip install 'sparsenet[cuda]'`, or "
                          "`pip install nvidia-cuda-runtime` for the simulator only") from error
    return module


def simulator() -> tuple[Any, Any]:
    """(class of kernels, class of arrays) of Numba's CUDA simulator, which runs beside the real numba.cuda."""
    numba_cuda()
    from numba.cuda.simulator import kernel
    from numba.cuda.simulator.cudadrv import devicearray

    return kernel.FakeCUDAKernel, devicearray.FakeCUDAArray


def compile_ptx(kernel: Callable, arguments: tuple, capability: tuple[int, int]) -> str:
    """The PTX of a CUDA kernel for arguments like these, NumPy arrays in place of the GPU's; needs no GPU."""
    module = numba_cuda()
    from numba.cuda import dispatcher

    asked = dispatcher.get_current_device
    # Callees ask the driver which GPU is there: tell them.
    dispatcher.get_current_device = lambda: type("Card", (), {"compute_capability": capability, "id": 0})
    try:
        function = with_cuda(kernel, module.jit(device=True))
        ptx, _ = module.compile_ptx(function, tuple(map(numba.typeof, arguments)), cc=capability)
    finally:
        dispatcher.get_current_device = asked
    return ptx
