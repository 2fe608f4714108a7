"""Weights of a sparse input whose rows wait, where batches do not name them, until they are wanted."""

from typing import Any

import numpy as np

from sparsenet.device import Array, Device
from sparsenet.kernels.idle import catch_up
from sparsenet.kernels.update import ROOM
from sparsenet.optimizers import Optimizer

_STEPS = 256  # that a row may miss: then all are caught up


class Backlog:
    """Which steps each row has yet to see, and what they come to.

    Steps are counted from the last time that all rows were caught up. Only `owe` runs on the host alone, so that a step
    of a GPU is the same launches whatever its number: what differs is in arrays.
    """

    def __init__(self, device: Device, optimizer: Optimizer, rows: int, dtype: Any) -> None:
        assert optimizer.idle is not None
        self._device, self._idle = device, optimizer.idle
        self._made = 0
        self._owed = np.empty((len(self._idle.none), _STEPS + 1))
        """Numbers of the optimizer's `idle` for rows that last saw step 0, 1, …"""
        self._host = device.staging(1, np.int32), device.staging((_STEPS + 1, len(ROOM)), dtype)
        self._steps, self._table = device.zeros(1, np.int32), device.zeros((_STEPS + 1, len(ROOM)), dtype)
        self._seen = device.zeros(rows, np.int32)
        self._forget()

    def _forget(self) -> None:
        self._made = 0
        self._owed[:] = np.array(self._idle.none)[:, None]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(array.size * array.dtype.itemsize for array in (self._steps, self._table, self._seen))

    def owe(self, w: Array, slots: Array, scalars: tuple[float, ...], key: Array | None = None) -> None:
        """A step begins, with these numbers of the rule, which rows will have yet to see.

        key  (1) uint64, here as below, the stream of the last step's rounding: for bfloat16
        """
        if self._made == _STEPS:
            self.settle(w, slots, key)
        self._note()
        owing = self._owed[:, :self._made + 1]
        for numbers, more in zip(owing, self._idle.more(tuple(owing.copy()), scalars), strict=True):
            numbers[:] = more
        self._made += 1

    def _note(self) -> None:
        steps, table = self._host
        steps[0] = self._made
        table[:self._made + 1, :len(self._owed)] = self._owed[:, :self._made + 1].T

    def _upload(self) -> None:
        self._device.write(self._steps, self._host[0])
        self._device.write(self._table, self._host[1])

    def pay(self, features: Array, touched: Array, w: Array, slots: Array, key: Array | None = None) -> None:
        """In a step: the listed rows see all steps before it, and are about to see this one."""
        self._upload()
        catch_up(self._idle.rule, features, touched, self._steps, self._table, w, slots, self._seen, len(self._owed),
                 key=key)

    def settle(self, w: Array, slots: Array, key: Array | None = None) -> None:
        """Between steps: all rows see all steps."""
        if self._made == 0:
            return
        self._note()
        self._upload()
        catch_up(self._idle.rule, None, self._steps, self._steps, self._table, w, slots, self._seen, len(self._owed),
                 key=key)
        self._device.wait()  # the next step writes what this one reads
        self._forget()
