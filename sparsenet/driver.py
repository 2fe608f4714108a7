"""What a captured step needs of the CUDA driver: launches whose arguments are bound once, and graphs of them.

The only file that imports cuda.bindings. Nothing here has run on a GPU yet: tests bind the arguments of compiled
kernels, and capture, over stand-ins for the driver that write down what they are asked.
"""

import ctypes
import functools
import sys
import warnings
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparsenet import cublas
from sparsenet.compiling import cuda_kernel, numba_cuda

Operation = tuple[Callable, tuple]
"""A method of a device, and its arguments"""


@dataclass
class Recording:
    """What a step did on a device, in order."""

    operations: list[Operation] = field(default_factory=list)
    on_host: bool = False
    """Whether it went through the host on its way, which no recording can do again"""


_recording: ContextVar[Recording | None] = ContextVar("recording", default=None)  # each thread's own


def record(step: Callable[[], None]) -> Recording:
    """Run a step and tell what it did."""
    recording = Recording()
    token = _recording.set(recording)
    try:
        step()
    finally:
        _recording.reset(token)
    return recording


def note(operation: Callable, *args: Any) -> None:
    """Do an operation, which belongs to the step that is being recorded, if there is one."""
    operation(*args)
    recording = _recording.get()
    if recording is not None:
        recording.operations.append((operation, args))


def through_the_host() -> None:
    """Say that a step that is being recorded goes through the host."""
    recording = _recording.get()
    if recording is not None:
        recording.on_host = True


def one_by_one(operations: list[Operation]) -> Callable[[], None]:
    """The operations again, as they are."""
    def replay() -> None:
        for operation, args in operations:
            operation(*args)
    return replay


def bound(operations: list[Operation], driver: "Driver", binders: dict[Callable, Callable]) -> Callable[[], None]:
    """The operations again as one graph, else with their arguments bound once, else as they are.

    binders  for each operation what binds it: binders[operation](*args) is a call that needs no arguments any more
    """
    try:
        calls = [binders[operation](*args) for operation, args in operations]
    except Exception as error:  # a numba-cuda of another shape
        warnings.warn(f"launches cannot be bound, and keep their usual cost: {error!r}", RuntimeWarning, stacklevel=2)
        return one_by_one(operations)
    try:
        return driver.graph(calls)
    except Exception as error:  # a driver, or another user of it, that does not allow graphs
        warnings.warn(f"no CUDA graph, kernels are launched one by one: {error!r}", RuntimeWarning, stacklevel=2)
        return one_by_one([(call, ()) for call in calls])


def gpu_is_there() -> bool:
    """Whether there is a GPU to use. Asks the driver's library before importing numba.cuda, which takes a second."""
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


class Driver:
    """A stream, and what runs on it.

    stream  a stream of numba.cuda: it takes turns with the default stream
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    @functools.cached_property
    def api(self) -> Any:
        """The functions of the driver."""
        from cuda.bindings import driver

        return driver

    def _ask(self, function: str, *args: Any) -> Any:
        """Call one. Raises RuntimeError where it refuses."""
        status, *results = getattr(self.api, function)(*args)
        if int(status):
            raise RuntimeError(f"{function}: {getattr(status, 'name', status)}")
        return results[0] if results else None

    def start(self, kernel: Callable, blocks: Any, threads: Any, args: tuple) -> Callable[[], None]:
        """The launch of a kernel that was launched with such arguments before."""
        dispatcher = cuda_kernel(kernel)
        grid = dispatcher[blocks, threads]
        compiled = dispatcher.overloads[tuple(dispatcher.typeof_pyval(arg) for arg in args)]
        values: list[Any] = []
        for kind, value in zip(compiled.argument_types, args, strict=True):
            compiled._prepare_args(kind, value, 0, [], values)
        boxes = [_box(value) for value in values]
        addresses = (ctypes.c_void_p * len(boxes))(*map(ctypes.addressof, boxes))
        function = int(compiled._codelibrary.get_cufunc().handle)
        launch = (function, *grid.griddim, *grid.blockdim, grid.sharedmem, int(self.stream.handle),
                  ctypes.addressof(addresses), 0)

        def call(kept: Any = (args, boxes, addresses)) -> None:
            self._ask("cuLaunchKernel", *launch)
        return call

    def write(self, target: Any, values: np.ndarray) -> Callable[[], None]:
        """The copy of host memory to the GPU."""
        return lambda: target.copy_to_device(values, stream=self.stream)

    def read(self, source: Any, into: np.ndarray) -> Callable[[], None]:
        """The copy of the GPU's memory to the host."""
        return lambda: source.copy_to_host(into, stream=self.stream)

    def gemm(self, *args: Any) -> Callable[[], None]:
        """A product by cuBLAS."""
        return functools.partial(cublas.gemm_on(int(self.stream.handle)), *args)

    def graph(self, calls: list[Callable[[], None]]) -> Callable[[], None]:
        """One launch of all that the calls put on the stream. Raises RuntimeError where the driver refuses."""
        stream = int(self.stream.handle)
        # Relaxed: a garbage collection amid the capture may free memory.
        self._ask("cuStreamBeginCapture", stream, self.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        try:
            for call in calls:
                call()
        finally:
            graph = self._ask("cuStreamEndCapture", stream)
        try:
            executable = self._ask("cuGraphInstantiate", graph, 0)
        finally:
            self._ask("cuGraphDestroy", graph)

        def launch(kept: Any = calls) -> None:
            self._ask("cuGraphLaunch", executable, stream)
        weakref.finalize(launch, self.api.cuGraphExecDestroy, executable).atexit = False  # the driver goes first
        return launch


def _box(value: Any) -> Any:
    """A kernel's argument in memory: numba-cuda makes boxes of all but truth values, sizes and addresses."""
    if isinstance(value, bool | np.bool_):
        return ctypes.c_bool(value)
    return ctypes.c_int64(int(value)) if isinstance(value, int | np.integer) else value
