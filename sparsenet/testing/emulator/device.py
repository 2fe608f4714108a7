"""A device whose kernels the emulator runs, for networks and for tests of kernels."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsenet.device import Cuda, Device, one_by_one, through_the_host
from sparsenet.testing.arrays import HostArray
from sparsenet.testing.emulator.launch import Emulated, emulate
from sparsenet.testing.emulator.program import check_needs


class Emulator(Cuda):
    """The CUDA kernels of everything that sparsenet does, on this computer's CPU: `Network(..., device=Emulator())`.

    capability  compute capability of the GPU that is meant: kernels choose what it has
    races       watch shared memory for races
    """

    name = "emulator"

    def __init__(self, capability: tuple[int, int] = (9, 0), races: bool = True) -> None:
        check_needs()
        self.capability, self.races = capability, races
        self._emulated = functools.cache(self._emulate)

    def put(self, array: np.ndarray) -> HostArray:
        return HostArray(np.array(array, order="C"), self)

    def fetch(self, array: HostArray) -> np.ndarray:
        through_the_host()
        return array.host.copy()

    staging, wait, _again = Device.staging, Device.wait, staticmethod(one_by_one)

    def _emulate(self, kernel: Callable) -> Emulated:
        return emulate(kernel, capability=self.capability, races=self.races)

    def _start(self, kernel: Callable, blocks: Any, threads: Any, args: tuple) -> None:
        self._emulated(kernel)[blocks, threads](*(arg.host if isinstance(arg, HostArray) else arg for arg in args))

    def _write(self, target: HostArray, values: np.ndarray) -> None:
        np.copyto(target.host, values)

    def _read(self, source: HostArray, into: np.ndarray) -> None:
        np.copyto(into, source.host)
