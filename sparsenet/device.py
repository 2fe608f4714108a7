"""Where arrays live, and how a kernel runs there.

cpu        NumPy arrays; kernels are loops compiled by Numba over all cores
cuda       Numba device arrays; the same bodies as grid-stride loops
simulator  host arrays run by Numba's CUDA simulator, thread by thread: slow, for tests and for a debugger

A kernel is plain Python. Most are one `body(b, u, *arrays)` that writes one output element, run by `launch` on the
device of its arrays. Kernels whose threads cooperate are a pair of functions, run by `launch_pair`. Scalar functions
that bodies call (activations, losses, optimizer rules) are decorated with `scalar`; `cuda` stands for numba.cuda in
kernel files.

A training step is the same launches and copies again and again: `Device.capture` runs it once and makes them one call.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import numba
import numpy as np

from sparsenet import cublas, threads
from sparsenet.compiling import (
    cpu_function,
    cpu_loops,
    cuda,
    cuda_kernel,
    cuda_loops,
    numba_cuda,
    part,
    scalar,
    simulator,
    with_cuda,
)
from sparsenet.driver import Driver, bound, gpu_is_there, note, one_by_one, record, through_the_host

__all__ = ["Array", "Cpu", "Cuda", "Device", "Simulator", "cuda", "device", "device_of", "launch", "launch_pair",
           "part", "run_on_host", "scalar"]

Array = Any  # a NumPy array, or what a device allocates: indexable, with .shape and .dtype

_ahead: ContextVar[bool] = ContextVar("ahead", default=False)  # each thread's own


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
    through_the_host()
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
    max_blocks: int  # along an axis of a grid whose threads have several elements
    capability = (7, 5)  # compute capability: what kernels may use
    copies_beside_kernels = False

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

    def staging(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
        """Host memory of zeros from which, and to which, copies are fast."""
        return np.zeros(shape, dtype)

    def read(self, source: Array, into: np.ndarray) -> None:
        """Copy an array into staging memory of the same shape and dtype, which holds it after the next `wait`."""
        raise NotImplementedError

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        """Run a step; returns what does the same launches, writes and reads again: on the same arrays, which hold other
        numbers then. What else the step does, Python objects that it changes included, is not done again.
        """
        step()
        return step

    def ahead(self) -> contextlib.AbstractContextManager:
        """`with device.ahead():` writes run beside the launches before them; `wait` before the next launch."""
        return contextlib.nullcontext()

    def wait(self) -> None:
        """Wait until all launches and copies are done."""

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
    max_blocks = 4096

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

    def read(self, source: np.ndarray, into: np.ndarray) -> None:
        np.copyto(into, source)

    def run(self, body: Callable, shape: tuple[int, ...], args: tuple, on_cpu: Callable | None) -> None:
        if on_cpu is not None:
            run_on_host(on_cpu, *args)
            return
        with threads.exclusive.lock:
            cpu_loops(body, len(shape))(*shape, *args)

    def run_pair(self, on_cpu: Callable, on_cuda: Callable, blocks: Any, threads: Any, args: tuple) -> None:
        run_on_host(on_cpu, *args)


class Cuda(Device):
    """The current NVIDIA GPU.

    A captured step is one CUDA graph. A subclass has its own `_start`, `_write` and `_read`, which steps are made of,
    and its own `_again`.
    """

    name = "cuda"
    threads, tile = 256, 16
    max_blocks = 4096
    copies_beside_kernels = True

    def __init__(self) -> None:
        self.numba_cuda = numba_cuda()
        if not self.numba_cuda.is_available():
            raise RuntimeError("device='cuda': no NVIDIA GPU with a driver for this CUDA was found (CUDA 13 needs "
                               "driver 580 or later); device='cpu' runs everywhere")
        self.capability = tuple(self.numba_cuda.get_current_device().compute_capability)
        self.driver = Driver(self.numba_cuda.stream())
        self._copies = self.numba_cuda.stream()

    def put(self, array: np.ndarray) -> Array:
        return self.numba_cuda.to_device(np.ascontiguousarray(array))

    def write(self, target: Array, values: np.ndarray) -> None:
        contiguous = np.ascontiguousarray(values, target.dtype)
        if contiguous is not values:
            through_the_host()
        note(self._write, target, contiguous)

    def fetch(self, array: Array) -> np.ndarray:
        through_the_host()
        return array.copy_to_host()

    def staging(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
        if 0 in np.atleast_1d(shape):
            return np.zeros(shape, dtype)  # no memory can be pinned
        array = self.numba_cuda.pinned_array(shape, dtype)
        array.fill(0)
        return array

    def read(self, source: Array, into: np.ndarray) -> None:
        note(self._read, source, into)

    def wait(self) -> None:
        self.numba_cuda.synchronize()

    @contextlib.contextmanager
    def ahead(self) -> Iterator[None]:
        token = _ahead.set(True)
        try:
            yield
        finally:
            _ahead.reset(token)

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        recording = record(step)
        return step if recording.on_host else self._again(recording.operations)

    def _again(self, operations: list[tuple[Callable, tuple]]) -> Callable[[], None]:
        """What does recorded operations again."""
        on = self.driver
        return bound(operations, on, {self._start: on.start, self._write: on.write, self._read: on.read,
                                      cublas.gemm: on.gemm})

    def run(self, body: Callable, shape: tuple[int, ...], args: tuple, on_cpu: Callable | None) -> None:
        if len(shape) == 1:  # small blocks where there is little to do: every multiprocessor should get some
            block = min(self.threads, max(32, -(-shape[0] // 4096) * 32))
            note(self._start, cuda_loops(body, 1), self._blocks(shape[0], block), block, (*shape, *args))
        else:
            across = min(self.threads, 1 << (shape[1] - 1).bit_length())
            down = self.threads // across
            grid = self._blocks(shape[1], across), self._blocks(shape[0], down)
            note(self._start, cuda_loops(body, 2), grid, (across, down), (*shape, *args))

    def _blocks(self, size: int, edge: int) -> int:
        return min(self.max_blocks, -(-size // edge))

    def run_pair(self, on_cpu: Callable, on_cuda: Callable, blocks: Any, threads: Any, args: tuple) -> None:
        note(self._start, on_cuda, blocks, threads, args)

    def _start(self, kernel: Callable, blocks: Any, threads: Any, args: tuple) -> None:
        cuda_kernel(kernel)[blocks, threads](*args)

    def _write(self, target: Array, values: np.ndarray) -> None:
        target.copy_to_device(values, stream=self._copies if _ahead.get() else 0)

    def _read(self, source: Array, into: np.ndarray) -> None:
        source.copy_to_host(into)


class Simulator(Cuda):
    """Numba's CUDA simulator: each CUDA thread a Python thread, every index checked."""

    name = "simulator"
    threads, tile = 8, 4
    max_blocks = 2

    def __init__(self) -> None:
        self.kernel_class, self.array_class = simulator()

    def put(self, array: np.ndarray) -> Array:
        return self.array_class(np.array(array, order="C"))

    def fetch(self, array: Array) -> np.ndarray:
        through_the_host()
        return np.array(array._ary)

    staging, wait, _again = Device.staging, Device.wait, staticmethod(one_by_one)

    def _start(self, kernel: Callable, blocks: Any, threads: Any, args: tuple) -> None:
        self.kernel_class(with_cuda(kernel), device=False)[blocks, threads](*args)

    def _write(self, target: Array, values: np.ndarray) -> None:
        np.copyto(target._ary, values)

    def _read(self, source: Array, into: np.ndarray) -> None:
        np.copyto(into, source._ary)


@functools.cache
def device(name: "str | Device | None" = None) -> Device:
    """The device called "cpu", "cuda" or "simulator"; None: "cuda" where there is a GPU, else "cpu"; a device as it is.

    Raises ValueError for another name, RuntimeError for "cuda" without a GPU.
    """
    if isinstance(name, Device):
        return name
    if name is None:
        return device("cuda" if gpu_is_there() else "cpu")
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
