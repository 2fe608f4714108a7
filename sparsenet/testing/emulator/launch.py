"""Launching kernels in the emulator, and what it says when one goes wrong."""

import functools
import inspect
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np

from sparsenet.testing.emulator import layout, program
from sparsenet.testing.emulator.checks import DYNAMIC, Memory
from sparsenet.testing.emulator.layout import ERROR


class EmulatorError(Exception):
    """A kernel did what would be an error, or undefined, on a GPU."""


class OutOfBoundsError(EmulatorError, IndexError):
    """An access outside the array, or one of 128 bits at an address that is no multiple of 16 bytes."""


class RaceError(EmulatorError):
    """Two threads touched the same shared memory between barriers, one of them writing."""


class DeadlockError(EmulatorError):
    """Threads wait for others that never come."""


class Emulated:
    """A kernel for the emulator: `kernel[grid, block](*arrays and numbers)`.

    As in Numba, [grid, block, stream, dynamic]: the stream is ignored, dynamic is bytes of dynamic shared memory.
    """

    def __init__(self, kernel: Callable, capability: tuple[int, int], fastmath: bool, races: bool) -> None:
        program.check_needs()
        self._kernel: Any = getattr(kernel, "py_func", kernel)
        self._options = capability, fastmath or getattr(kernel, "targetoptions", {}).get("fastmath", False), races
        self.name = self._kernel.__name__
        self._names = list(inspect.signature(self._kernel).parameters)
        self._workers: dict[tuple, list[program.Worker]] = {}
        self._lock = threading.Lock()  # a worker has one launch at a time

    def __getitem__(self, configuration: tuple) -> Callable[..., None]:
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise ValueError(f"{self.name}: expected [grid, block], or [grid, block, stream, bytes of dynamic shared "
                             f"memory], got {configuration!r}")
        grid, block, _, dynamic = (*configuration, None, 0)[:4] if len(configuration) < 4 else configuration
        return functools.partial(self._launch, _three(grid, "grid", (2**31 - 1, 65_535, 65_535)),
                                 _three(block, "block", (1024, 1024, 64)), int(dynamic))

    def _launch(self, grid: tuple[int, int, int], block: tuple[int, int, int], dynamic: int, *arguments: Any) -> None:
        if len(arguments) != len(self._names):
            raise TypeError(f"{self.name}: expected {len(self._names)} arguments ({', '.join(self._names)}), got "
                            f"{len(arguments)}")
        slots, arrays = _slots(self._names, arguments)
        bounds = [_ends(array) for array in arrays]
        signature = tuple(numba.typeof(argument) for argument in arguments)
        with self._lock:
            compiled = program.compiled(self._kernel, signature, *self._options)
            self._check(compiled, block, dynamic)
            blocks = math.prod(grid)
            count = min(blocks, numba.get_num_threads()) if blocks * math.prod(block) >= _WORTH_THREADS else 1
            workers = self._workers.setdefault(signature, [])
            while len(workers) < count:
                workers.append(program.Worker(compiled))
            edges = [blocks * k // count for k in range(count + 1)]

            def run(k: int) -> None:
                workers[k].run(slots, bounds, grid, block, dynamic, edges[k], edges[k + 1])
            if count == 1:
                run(0)
            else:
                with ThreadPoolExecutor(count) as pool:
                    list(pool.map(run, range(count)))
            for worker in workers[:count]:
                if worker.state[ERROR] != layout.NO_ERROR:
                    raise self._error(worker, compiled, arrays, dynamic)

    def _check(self, compiled: program.Program, block: tuple[int, int, int], dynamic: int) -> None:
        if math.prod(block) > layout.MOST_THREADS:
            raise ValueError(f"block: {math.prod(block)} threads, but a GPU has room for {layout.MOST_THREADS}")
        if compiled.static > program.MOST_STATIC:
            raise ValueError(f"{self.name}: {compiled.static} bytes of static shared arrays, but a GPU has room for "
                             f"{program.MOST_STATIC}")
        most = program.MOST_SHARED.get(self._options[0], program.LEAST_SHARED)
        if dynamic < 0 or dynamic + compiled.static > most:
            raise ValueError(f"{self.name}: {dynamic} bytes of dynamic shared memory beside {compiled.static} static "
                             f"ones, but a GPU has room for {most}")

    def _error(self, worker: program.Worker, compiled: program.Program, arrays: list[np.ndarray],
               dynamic: int) -> EmulatorError:
        state = worker.state
        kind, address, size, number, other = (int(word) for word in state[ERROR:ERROR + 5])
        thread = int(state[layout.CURRENT])
        where = f"{self.name}: block {_triple(state, layout.CTAID)}, thread {_of(thread, state)}"
        if kind == layout.DEADLOCK:
            return DeadlockError(f"{where} waits in {compiled.waits[number]} for threads of its warp that wait "
                                 "elsewhere")
        if kind == layout.DIVERGED:
            return DeadlockError(f"{where} is at another barrier than thread {_of(other, state)} of its warp")
        if kind == layout.TOO_MANY_COPIES:
            return EmulatorError(f"{where} has {layout.MOST_COPIES} asynchronous copies under way, and begins another")
        if kind == layout.TOO_LONG_COPY:
            return EmulatorError(f"{where} copies {other} elements at once, but {size // 4} are the most")
        site = compiled.sites[number]
        verb = {layout.READ: "reads", layout.WRITE: "writes"}.get(site.kind, "updates")
        if kind == layout.RACE:
            array = "shared memory"
            if site.memory is not None:
                array = _element(site.memory, address - worker.shared - site.memory.start, size, dynamic)
            return RaceError(f"{where} {verb} {array} that thread {_of(other - 1, state)} touches at the same time: no "
                             "barrier stands between")
        place = _place(site.memory, address, size, other, arrays, dynamic)
        if kind == layout.MISALIGNED:
            return OutOfBoundsError(f"{where} {verb} {place}, which is no multiple of {size} bytes in memory")
        return OutOfBoundsError(f"{where} {verb} {place}")


_WORTH_THREADS = 4096  # CUDA threads of a launch that is divided among cores


def emulate(kernel: Callable, *, capability: tuple[int, int] = (9, 0), fastmath: bool = False,
            races: bool = True) -> Emulated:
    """A CUDA kernel as it can be launched here: `emulate(kernel)[grid, block](*numpy_arrays)`.

    kernel      a Python function that uses `sparsenet.device.cuda` or `numba.cuda`, or what numba.cuda.jit made of one
    capability  compute capability of the GPU that is meant
    fastmath    as for numba.cuda.jit, whose own setting counts too
    races       watch shared memory for races

    Raises an EmulatorError where a thread leaves an array, races with another or waits in vain; ValueError for a launch
    that no GPU takes; NotImplementedError for what the emulator lacks; ImportError without numba-cuda.
    """
    return Emulated(kernel, capability, fastmath, races)


def _three(size: Any, name: str, most: tuple[int, int, int]) -> tuple[int, int, int]:
    """x, y and z of a grid or a block."""
    sizes = list(size) if isinstance(size, tuple | list) else [size]
    right = [isinstance(one, int | np.integer) and 1 <= one <= high for one, high in zip(sizes, most, strict=False)]
    if not 1 <= len(sizes) <= 3 or not all(right):
        raise ValueError(f"{name}: expected one to three sizes from 1 to {most}, got {size!r}")
    x, y, z = [*map(int, sizes), 1, 1][:3]
    return x, y, z


def _slots(names: list[str], arguments: tuple) -> tuple[np.ndarray, list[np.ndarray]]:
    """The arguments as a CUDA kernel gets them, 8 bytes each; and the arrays among them, those in tuples included."""
    slots: list[bytes] = []
    arrays: list[np.ndarray] = []

    def add(name: str, value: Any) -> None:
        if isinstance(value, np.ndarray):
            arrays.append(value)
            numbers = (0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)
            slots.extend(int(number).to_bytes(8, "little", signed=True) for number in numbers)
        elif isinstance(value, tuple):
            for k, item in enumerate(value):
                add(f"{name}[{k}]", item)
        elif isinstance(value, complex | np.complexfloating):
            slots.extend(part.tobytes().ljust(8, b"\0") for part in (np.asarray(value).real, np.asarray(value).imag))
        elif isinstance(value, bool | int | float | np.bool | np.number):
            slots.append(np.asarray(value).tobytes().ljust(8, b"\0"))
        else:
            raise NotImplementedError(f"{name}: the emulator takes NumPy arrays, numbers and tuples of these, got "
                                      f"{type(value).__name__}")

    for name, argument in zip(names, arguments, strict=True):
        add(name, argument)
    return np.frombuffer(b"".join(slots), np.int64), arrays


def _ends(array: np.ndarray) -> tuple[int, int]:
    """First address of an array, and the one after."""
    reach = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    low = array.ctypes.data
    if array.size == 0:
        return low, low
    return low + sum(min(step, 0) for step in reach), low + sum(max(step, 0) for step in reach) + array.itemsize


def _place(memory: Memory | None, address: int, size: int, low: int, arrays: list[np.ndarray], dynamic: int) -> str:
    """What lies, or would lie, at an address of an array."""
    if memory is None:
        return "outside all arrays"
    if memory.row < 0:
        return _element(memory, address - low, size, dynamic)
    given = arrays[memory.row]
    first, *others = memory.title.split(".")
    name = first + "".join(f"[{one}]" for one in others)
    element = (address - given.ctypes.data) // given.itemsize
    if given.ndim == 1 or not given.flags.c_contiguous or 0 in given.shape:
        return f"element {element} of {name}, whose shape is {given.shape}"
    index, rest = [], element
    for length in reversed(given.shape[1:]):
        index.append(rest % length)
        rest //= length
    return f"{name}[{', '.join(map(str, [rest, *reversed(index)]))}], whose shape is {given.shape}"


def _element(memory: Memory, offset: int, size: int, dynamic: int) -> str:
    """An element of an array that the kernel made."""
    if memory.root == DYNAMIC:
        return f"byte {offset} of {memory.title}, which has {dynamic}"
    item = size if memory.item == 1 else memory.item  # constant arrays are kept as bytes
    return f"element {offset // item} of {memory.title} of {memory.size // item}"


def _triple(state: np.ndarray, start: int) -> str:
    x, y, z = (int(number) for number in state[start:start + 3])
    return f"({x}, {y}, {z})"


def _of(thread: int, state: np.ndarray) -> str:
    across, down = int(state[layout.NTID]), int(state[layout.NTID + 1])
    return f"({thread % across}, {thread // across % down}, {thread // across // down})"
