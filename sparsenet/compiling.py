"""Python functions compiled: scalar functions, loops around bodies, CUDA kernels.

The only file that sets Numba's flags or imports numba.cuda.
"""

import contextlib
import dis
import functools
import inspect
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import CellType, FunctionType
from typing import Any

import numba
import numpy as np
from numba import njit, prange

from sparsenet import kernel_cache, maths
from sparsenet.lowering import Instruction, lowered

_CPU_FLAGS = {"error_model": "numpy", "nogil": True}  # no zero-division branches; other Python threads go on


def scalar(function: Callable) -> Callable:
    """Compile a function of scalars so that kernels on every device can call it. Compiled ones keep their options.

    Its math.exp and the like are those of `maths`, which a CPU computes for many numbers at once.

    Raises TypeError for what is not written in Python, such as math.tanh itself.
    """
    if isinstance(function, numba.core.dispatcher.Dispatcher):
        return kernel_cache.renamed(function)
    if numba.config.DISABLE_JIT:
        return function
    if not isinstance(function, FunctionType):
        raise TypeError(f"expected a function written in Python, such as lambda z: math.tanh(z), got {function!r}")
    # What has no loop becomes part of its callers' loops, however long it is: else those are not vectorised.
    return njit(kernel_cache.named(_with_maths(function)), forceinline=not _loops_itself(function), **_CPU_FLAGS)


def _loops_itself(function: FunctionType) -> bool:
    return any(instruction.opname.startswith(("FOR_ITER", "JUMP_BACKWARD"))
               for instruction in dis.get_instructions(function))


def summing(function: Callable) -> Callable:
    """As `scalar`, for sums that may be made in any order, many at once: it is the same order each time."""
    return njit(kernel_cache.named(function), fastmath={"reassoc", "nsz"}, **_CPU_FLAGS)


_MEANT = {id(math): maths, **{id(getattr(math, fast.__name__)): fast for fast in maths.FAST}}


def _with_maths(function: FunctionType) -> FunctionType:
    """The function with `maths` in place of `math`."""
    scope, used = function.__globals__, function.__code__.co_names
    meant = {name: _MEANT[id(scope[name])] for name in used if id(scope.get(name)) in _MEANT}
    needed = meant and {fast.__name__ for fast in maths.FAST}.intersection(used)
    return rebound(function, {**scope, **meant}, function.__closure__) if needed else function


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


@dataclass(frozen=True)
class Part:
    """A function that CUDA kernels call, itself written with `cuda` and instructions; see `part`."""

    function: Callable


def part(function: Callable) -> Any:
    """Decorator of a function that is a part of CUDA kernels, and of nothing else."""
    return Part(function)


def _loops(body: Callable, compiled: Any, scope: dict[str, Any], *loops: str) -> FunctionType:
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
    return _loops(body, Part(body), {"cuda": cuda}, *loops)


@functools.cache
def cuda_kernel(function: Callable) -> Any:
    """A CUDA kernel, compiled when it is first launched, kept on disk."""
    module = numba_cuda()
    if numba.config.ENABLE_CUDASIM:
        return module.jit(with_cuda(function))
    bounds = launch_bounds(function)
    kernel = module.jit(with_cuda(function, compiled=True), launch_bounds=bounds)
    return kernel_cache.attach(kernel, f"cuda {_cuda_version()} {bounds}")


def launch_bounds(function: Callable) -> tuple[int, int] | None:
    """(most threads of a block, blocks that a multiprocessor should have room for), which bounds a thread's registers.

    A kernel that wants them has an attribute of that name.
    """
    return vars(function).get("launch_bounds")


def _cuda_version() -> str:
    try:
        return version("numba-cuda")
    except PackageNotFoundError:
        return numba.__version__  # numba's own numba.cuda


@functools.cache
def with_cuda(function: Callable, compiled: bool = False) -> FunctionType:
    """The function with numba.cuda in place of this file's `cuda`, in the parts that it calls too.

    compiled: for the compiler, which wants parts and instructions prepared; the simulator runs them as they are
    """
    def meant(value: Any) -> Any:
        if value is cuda:
            return numba_cuda()
        if isinstance(value, Part):
            inner = with_cuda(value.function, compiled)
            return numba_cuda().jit(inner, device=True) if compiled else simulator()[0](inner, device=True)
        return _intrinsic(value) if compiled and isinstance(value, Instruction) else value

    used = function.__code__.co_names  # a file's parts may name each other
    scope = {name: meant(value) if name in used else value for name, value in function.__globals__.items()}
    return rebound(function, scope, tuple(CellType(meant(cell.cell_contents)) for cell in function.__closure__ or ()))


def rebound(function: Any, scope: dict[str, Any], closure: tuple[CellType, ...] | None) -> FunctionType:
    """The function with other globals and another closure."""
    bound = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, closure)
    bound.__qualname__, bound.__module__, bound.__doc__ = function.__qualname__, function.__module__, function.__doc__
    bound.__kwdefaults__ = function.__kwdefaults__
    return bound


def _intrinsic(instruction: Instruction) -> Any:
    numba_cuda()
    from numba.cuda.extending import intrinsic
    from numba.cuda.np.arrayobj import make_array

    return lowered(instruction, intrinsic, make_array)


@functools.cache
def numba_cuda() -> Any:
    """The module numba.cuda, mended: every shim that numba-cuda needs is here.

    Raises ImportError, with what to install, where numba-cuda cannot load.
    """
    numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # small launches are right where the arrays are small
    if "row_stack" not in vars(np):
        np.row_stack = np.vstack  # numba-cuda 0.30 names it, NumPy 2.5 dropped it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it makes a timedelta without a unit, says NumPy 2.5
            from numba import cuda as module
    except Exception as error:  # numba-cuda raises its own kinds where the CUDA runtime is missing
        raise ImportError(f"numba.cuda cannot be loaded ({error}); `pip install 'sparsenet[cuda]'`, or "
                          "`pip install nvidia-cuda-runtime` for the simulator only") from error
    if numba.config.ENABLE_CUDASIM:
        _mend_simulator()
    else:
        _teach_maths()
    return module


def _teach_maths() -> None:
    """On CUDA, the functions of `maths` are NVIDIA's."""
    from numba.cuda.extending import overload

    for fast in maths.FAST:
        overload(fast)(_of_math(getattr(math, fast.__name__)))


def _of_math(original: Callable) -> Callable:
    return lambda x: lambda x: original(x)


def _mend_simulator() -> None:
    """Let its shared arrays have an alignment, which it refuses. As before, each line of a kernel has one array."""
    from numba.cuda.simulator import kernelapi

    def array(self: Any, shape: int, dtype: Any, alignment: int | None = None) -> np.ndarray:
        caller = sys._getframe(1)
        return self._allocations.setdefault((caller.f_code.co_filename, caller.f_lineno), np.empty(shape, dtype))

    kernelapi.FakeCUDAShared.array = array


def simulator() -> tuple[Any, Any]:
    """(class of kernels, class of arrays) of Numba's CUDA simulator, which runs beside the real numba.cuda."""
    numba_cuda()
    _mend_simulator()
    from numba.cuda.simulator import kernel
    from numba.cuda.simulator.cudadrv import devicearray

    return kernel.FakeCUDAKernel, devicearray.FakeCUDAArray


_answers = threading.RLock()  # one thread at a time may answer


@contextlib.contextmanager
def _without_gpu(capability: tuple[int, int]) -> Iterator[None]:
    """Compiling asks the driver which GPU is there, and libNVVM which LLVM it speaks: answer for them."""
    numba_cuda()
    from numba.cuda import dispatcher
    from numba.cuda.cudadrv import nvvm

    card = type("Card", (), {"compute_capability": capability, "id": 0})
    with _answers:
        asked, version = dispatcher.get_current_device, nvvm.NVVM.get_ir_version
        dispatcher.get_current_device = lambda: card
        nvvm.NVVM.get_ir_version = lambda library: (2, 0, 3, 2)
        try:
            yield
        finally:
            dispatcher.get_current_device, nvvm.NVVM.get_ir_version = asked, version


def compile_ptx(kernel: Callable, arguments: tuple, capability: tuple[int, int]) -> str:
    """The PTX of a CUDA kernel for arguments like these, NumPy arrays in place of the GPU's; needs no GPU."""
    return _ptx(kernel, tuple(map(numba.typeof, arguments)), capability)


@functools.cache
def _ptx(kernel: Callable, signature: tuple, capability: tuple[int, int]) -> str:
    with _without_gpu(capability):
        ptx, _ = numba_cuda().compile_ptx(with_cuda(kernel, compiled=True), signature, cc=capability,
                                          launch_bounds=launch_bounds(kernel))
    return ptx


def cuda_llvm(kernel: Callable, signature: tuple, capability: tuple[int, int], fastmath: bool = False) -> list[str]:
    """The LLVM code that numba-cuda hands to NVIDIA's compiler for a CUDA kernel; needs neither that nor a GPU.

    kernel     a function that `with_cuda` prepared
    signature  Numba's types of its arguments
    """
    with _without_gpu(capability):
        from numba.cuda import compiler
        from numba.cuda.cudadrv import nvvm

        library, _ = compiler._compile_pyfunc_with_fixup(
            kernel, signature, device=False, abi="numba", cc=capability, lto=False,
            debug=None, lineinfo=False, fastmath=fastmath, opt=None, abi_info=None, forceinline=False,
            launch_bounds=None)
        return [nvvm.llvm_replace(text) for text in library.llvm_strs]


@functools.cache
def host_llvm(function: Callable, signature: str) -> tuple[str, str]:
    """(name, LLVM code) of a function compiled for the CPU, for a signature such as "float32(int64, uint32[::1])".

    The name is that of a function of (where to put the result, an unused address, arguments …) as Numba calls it.
    """
    dispatcher = njit(kernel_cache.named(plain(function)), no_cpython_wrapper=True, no_cfunc_wrapper=True, **_CPU_FLAGS)
    arguments, result = numba.core.sigutils.normalize_signature(signature)
    dispatcher.compile(result(*arguments))
    return dispatcher.overloads[arguments].fndesc.mangled_name, dispatcher.inspect_llvm(arguments)
