"""Where arrays live, and how a kernel runs there.

cpu        NumPy arrays; kernels are loops compiled by Numba over all cores
cuda       Numba device arrays; the same bodies as grid-stride loops
simulator  host arrays run by Numba's CUDA simulator, thread by thread: slow, for tests and for a debugger

A kernel is plain Python. Most are one `body(b, u, *arrays)` that writes one output element, run by `launch` on the
device of its arrays. Kernels whose threads cooperate are a pair of functions, run by `launch_pair`. Scalar functions
that bodies call (activations, losses, optimizer rules) are decorated with `scalar`.

This is the only file that sets Numba's flags or imports numba.cuda.
"""

import ctypes
import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from types import FunctionType
from typing import Any

import numba
import numpy as np
from numba import njit, prange

from sparsenet import kernel_cache, threads

Array = Any  # a NumPy array, or what a device allocates: indexable, with .shape and .dtype

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


class _Cuda:
    """Stands for `numba.cuda` in kernel files, which thus need not import it; see `_with_cuda`."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"cuda.{name} exists inside a kernel only")


cuda = _Cuda()


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


def launch(body: Callable, shape: tuple[int, ...], *args: Any, on_cpu: Callable | None = None) -> None:
    """Run body(*index, *args) for every index of a one- or two-axis shape, on the device of the arrays.

    A body writes no element that another index of the first axis reads or writes.
    on_cpu: a second version, on_cpu(*args) with its own `prange`, where another order of loops is much faster there.
    Raises TypeError where the arrays live on different devices.
    """
    if 0 not in shape:
        device_of(*args).run(body, shape, args, on_cpu)


def run_on_host(function: Callable, *args: Any) -> None:
    """Run a function of host arrays, compiled like a kernel."""
    with threads.exclusive.lock:
        cpu_function(function)(*args)


def launch_pair(on_cpu: Callable, on_cuda: Callable, blocks: int | tuple[int, int], threads: int | tuple[int, int],
                *args: Any) -> None:
    """Run a kernel that is written twice: on_cpu(*args) with its own `prange`, or on_cuda on a grid of blocks."""
    device_of(*args).run_pair(on_cpu, on_cuda, blocks, threads, args)


class Device:
    """Memory of one kind, and how kernels run on it."""

    name: str
    threads: int  # in a block of a one-axis kernel
    tile: int  # edge of a block of a two-axis kernel

    def zeros(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> Array:
        """A new array of zeros."""
        return self.put(np.zeros(shape, dtype))

    def put(self, array: np.ndarray) -> Array:
        """A new array with the values of a host array."""
        raise NotImplementedError

    def write(self, target: Array, values: np.ndarray) -> None:
        """Copy host values into an array of the same shape."""
        raise NotImplementedError

    def fetch(self, array: Array) -> np.ndarray:
        """A new host array with the values of an array."""
        raise NotImplementedError

    def run(self, body: Callable, shape: tuple[int, ...], args: tuple, on_cpu: Callable | None) -> None:
        """See `launch`."""
        raise NotImplementedError

    def run_pair(self, on_cpu: Callable, on_cuda: Callable, blocks: Any, threads: Any, args: tuple) -> None:
        """See `launch_pair`."""
        raise NotImplementedError


class Cpu(Device):
    """The host's cores."""

    name = "cpu"
    threads, tile = 256, 16

    def __init__(self) -> None:
        if numba.config.DISABLE_JIT:
            raise RuntimeError("NUMBA_DISABLE_JIT is set, and nothing can run on the CPU without it; "
                               "device='simulator' runs kernels in plain Python, for a debugger")

    def zeros(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
        return np.zeros(shape, dtype)

    def put(self, array: np.ndarray) -> np.ndarray:
        return np.array(array, order="C")

    def write(self, target: np.ndarray, values: np.ndarray) -> None:
        np.copyto(target, values)

    def fetch(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def run(self, body: Callable, shape: tuple[int, ...], args: tuple, on_cpu: Callable | None) -> None:
        if on_cpu is not None:
            run_on_host(on_cpu, *args)
            return
        with threads.exclusive.lock:
            _cpu_loops(body, len(shape))(*shape, *args)

    def run_pair(self, on_cpu: Callable, on_cuda: Callable, blocks: Any, threads: Any, args: tuple) -> None:
        run_on_host(on_cpu, *args)


class Cuda(Device):
    """The current NVIDIA GPU."""

    name = "cuda"
    threads, tile = 256, 16
    max_blocks = 4096

    def __init__(self) -> None:
        self.numba_cuda = numba_cuda()
        if not self.numba_cuda.is_available():
            raise RuntimeError("device='cuda': no NVIDIA GPU or driver was found; device='cpu' runs everywhere")

    def put(self, array: np.ndarray) -> Array:
        return self.numba_cuda.to_device(np.ascontiguousarray(array))

    def write(self, target: Array, values: np.ndarray) -> None:
        target.copy_to_device(np.ascontiguousarray(values, target.dtype))

    def fetch(self, array: Array) -> np.ndarray:
        return array.copy_to_host()

    def run(self, body: Callable, shape: tuple[int, ...], args: tuple, on_cpu: Callable | None) -> None:
        wide = min(self.max_blocks, -(-shape[-1] // self.threads))
        grid = wide if len(shape) == 1 else (wide, min(self.max_blocks, shape[0]))
        self._start(cuda_loops(body, len(shape)), grid, self.threads, (*shape, *args))

    def run_pair(self, on_cpu: Callable, on_cuda: Callable, blocks: Any, threads: Any, args: tuple) -> None:
        self._start(on_cuda, blocks, threads, args)

    def _start(self, kernel: Callable, blocks: Any, threads: Any, args: tuple) -> None:
        _cuda_kernel(kernel)[blocks, threads](*args)


class Simulator(Cuda):
    """Numba's CUDA simulator: each CUDA thread a Python thread, every index checked."""

    name = "simulator"
    threads, tile = 8, 4
    max_blocks = 2

    def __init__(self) -> None:
        numba_cuda()
        from numba.cuda.simulator import kernel
        from numba.cuda.simulator.cudadrv import devicearray

        self.simulated_kernel, self.arrays = kernel.FakeCUDAKernel, devicearray

    def put(self, array: np.ndarray) -> Array:
        return self.arrays.FakeCUDAArray(np.array(array, order="C"))

    def write(self, target: Array, values: np.ndarray) -> None:
        np.copyto(target._ary, values)

    def fetch(self, array: Array) -> np.ndarray:
        return np.array(array._ary)

    def _start(self, kernel: Callable, blocks: Any, threads: Any, args: tuple) -> None:
        self.simulated_kernel(_with_cuda(kernel), device=False)[blocks, threads](*args)


@functools.cache
def device(name: str | None = None) -> Device:
    """The device called "cpu", "cuda" or "simulator"; by default "cuda" where there is a GPU, else "cpu".

    Raises ValueError for another name, RuntimeError for "cuda" without a GPU.
    """
    if name is None:
        return device("cuda" if _gpu_is_there() else "cpu")
    kinds = {kind.name: kind for kind in (Cpu, Cuda, Simulator)}
    if name not in kinds:
        raise ValueError(f"device: expected one of {', '.join(kinds)}, got {name!r}")
    return kinds[name]()


def device_of(*args: Any) -> Device:
    """The device on which all arrays among the arguments live. Raises TypeError where they differ."""
    names = {_device_name(arg) for arg in args if not isinstance(arg, int | float | tuple | np.generic)}
    if len(names) != 1:
        raise TypeError(f"a kernel's arrays must live on one device, got {', '.join(sorted(names)) or 'no array'}")
    name = names.pop()
    return name if isinstance(name, Device) else device(name)


def _device_name(array: Array) -> Any:
    if isinstance(array, np.ndarray):
        return "cpu"
    kind = type(array).__name__
    if kind == "FakeCUDAArray":
        return "simulator"
    if kind in ("DeviceNDArray", "MappedNDArray"):
        return "cuda"
    return array.device  # arrays of the devices in sparsenet.testing


def _gpu_is_there() -> bool:
    """Asks the driver's library before importing numba.cuda, which takes a second."""
    names = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        try:
            return bool(numba_cuda().is_available())
        except ImportError:
            warnings.warn("an NVIDIA driver was found, but not numba-cuda: using the CPU. "
                          "`pip install 'sparsenet[cuda]'` makes the GPU usable.", stacklevel=3)
            return False
    return False


# ---- loops around a body

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
def _cpu_loops(body: Callable, axes: int) -> Callable:
    inlined = njit(body, inline="always", **_CPU_FLAGS)
    loops = ("prange({})", "range({})")[:axes]
    return cpu_function(_loops(body, inlined, {"prange": prange}, *loops))


@functools.cache
def cpu_function(function: Callable) -> Callable:
    """A function compiled for the CPU, its `prange` loops over all cores, kept on disk."""
    threads.choose_pool()
    parallel = "prange" in function.__code__.co_names
    function = kernel_cache.named(function)
    return kernel_cache.attach(njit(function, parallel=parallel, **_CPU_FLAGS), f"parallel={parallel} {_CPU_FLAGS}")


@functools.cache
def cuda_loops(body: Callable, axes: int) -> Callable:
    """The grid-stride loops of a body, not yet compiled."""
    if axes == 1:
        loops = ["range(cuda.grid(1), {}, cuda.gridsize(1))"]
    else:
        loops = ["range(cuda.blockIdx.y, {}, cuda.gridDim.y)",
                 "range(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, {}, cuda.blockDim.x * cuda.gridDim.x)"]
    return _loops(body, _with_cuda(body), {"cuda": cuda}, *loops)


@functools.cache
def _cuda_kernel(function: Callable) -> Any:
    module = numba_cuda()
    kernel = module.jit(_with_cuda(function, module.jit(device=True)))
    return kernel if numba.config.ENABLE_CUDASIM else kernel_cache.attach(kernel, f"cuda {_cuda_version()}")


def _cuda_version() -> str:
    try:
        return version("numba-cuda")
    except PackageNotFoundError:
        return numba.__version__  # numba's own numba.cuda


@functools.cache
def _with_cuda(function: Callable, device_function: Callable = lambda body: body) -> FunctionType:
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


def compile_ptx(kernel: Callable, arguments: tuple, capability: tuple[int, int]) -> str:
    """The PTX of a CUDA kernel for arguments like these, NumPy arrays in place of the GPU's; needs no GPU."""
    module = numba_cuda()
    from numba.cuda import dispatcher

    asked = dispatcher.get_current_device
    # Callees ask the driver which GPU is there: tell them.
    dispatcher.get_current_device = lambda: type("Card", (), {"compute_capability": capability, "id": 0})
    try:
        function = _with_cuda(kernel, module.jit(device=True))
        ptx, _ = module.compile_ptx(function, tuple(map(numba.typeof, arguments)), cc=capability)
    finally:
        dispatcher.get_current_device = asked
    return ptx
