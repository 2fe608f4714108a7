"""A device that compiles: the CUDA version of every kernel that is launched, for any GPU, on a machine without one."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sparsenet.compiling import compile_ptx
from sparsenet.device import Cuda
from sparsenet.testing.arrays import HostArray


class Compiled(NamedTuple):
    """What a launch became."""

    kernel: str
    """Name of its function."""
    blocks: int
    threads: int
    """In a block."""
    arguments: tuple
    """As they would reach the GPU, NumPy arrays in place of device arrays."""
    ptx: str


class PtxDevice(Cuda):
    """Compiles for the GPUs of a compute capability, (9, 0) for example, and runs nothing; `compiled` lists it all."""

    name = "ptx"

    def __init__(self, capability: tuple[int, int]) -> None:
        self.capability = capability
        self.compiled: list[Compiled] = []

    def zeros(self, shape: int | tuple[int, ...], dtype: Any = np.float32) -> HostArray:
        return HostArray(np.zeros(shape, dtype), self)

    def put(self, array: np.ndarray) -> HostArray:
        return HostArray(np.array(array, order="C"), self)

    def write(self, target: HostArray, values: np.ndarray) -> None:
        np.copyto(target.host, values)

    def fetch(self, array: HostArray) -> np.ndarray:
        return array.host.copy()

    def _start(self, kernel: Callable, blocks: Any, threads: Any, args: tuple) -> None:
        arguments = tuple(arg.host if isinstance(arg, HostArray) else arg for arg in args)
        ptx = compile_ptx(kernel, arguments, self.capability)
        self.compiled.append(Compiled(kernel.__name__, int(np.prod(blocks)), int(np.prod(threads)), arguments, ptx))
