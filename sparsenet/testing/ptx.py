"""A device that compiles: the CUDA version of every kernel that is launched, for any GPU, on a machine without one."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sparsenet.compiling import compile_ptx, cuda_loops
from sparsenet.device import Cuda, Device


class Compiled(NamedTuple):
    """What a launch became."""

    kernel: str
    """Name of its function."""
    arguments: tuple
    """As they would reach the GPU, NumPy arrays in place of device arrays."""
    ptx: str


class PtxArray:
    """Stands for an array on the GPU: it has a shape, a dtype and views, and kernels never write to it."""

    def __init__(self, host: np.ndarray, device: "PtxDevice") -> None:
        self.host, self.device = host, device
        self.shape, self.dtype, self.ndim, self.size = host.shape, host.dtype, host.ndim, host.size

    def reshape(self, *shape: Any) -> "PtxArray":
        """The same elements in another shape."""
        return PtxArray(self.host.reshape(*shape), self.device)

    def view(self, dtype: Any) -> "PtxArray":
        """The same bytes as another type."""
        return PtxArray(self.host.view(dtype), self.device)

    def __getitem__(self, index: Any) -> "PtxArray":
        return PtxArray(self.host[index], self.device)

    def __len__(self) -> int:
        return len(self.host)


class PtxDevice(Device):
    """Compiles for the GPUs of a compute capability, (9, 0) for example, and runs nothing; `compiled` lists it all."""

    name = "ptx"
    threads, tile = Cuda.threads, Cuda.tile

    def __init__(self, capability: tuple[int, int]) -> None:
        self.capability = capability
        self.compiled: list[Compiled] = []

    def put(self, array: np.ndarray) -> PtxArray:
        return PtxArray(np.array(array, order="C"), self)

    def write(self, target: PtxArray, values: np.ndarray) -> None:
        np.copyto(target.host, values)

    def fetch(self, array: PtxArray) -> np.ndarray:
        return array.host.copy()

    def run(self, body: Callable, shape: tuple[int, ...], args: tuple, on_cpu: Callable | None) -> None:
        self._compile(cuda_loops(body, len(shape)), (*shape, *args))

    def run_pair(self, on_cpu: Callable, on_cuda: Callable, blocks: Any, threads: Any, args: tuple) -> None:
        self._compile(on_cuda, args)

    def _compile(self, kernel: Callable, args: tuple) -> None:
        arguments = tuple(arg.host if isinstance(arg, PtxArray) else arg for arg in args)
        self.compiled.append(Compiled(kernel.__name__, arguments, compile_ptx(kernel, arguments, self.capability)))
