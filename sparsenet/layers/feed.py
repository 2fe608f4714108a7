"""From a matrix of all examples to batches on a device."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsenet.device import Array, Device
from sparsenet.layers.batch import SparseBatch


class Feed:
    """A canonical matrix (see data.canonical), and room on a device for a batch of its rows.

    length_one  divide each row by its Euclidean length
    sum_one     divide each row by the number of its nonzeros
    """

    def __init__(self, matrix: Any, device: Device, dtype: Any, batch: int, *, length_one: bool = False,
                 sum_one: bool = False) -> None:
        self.matrix: Any = _scaled(matrix, dtype, length_one, sum_one)
        self.sparse = sp.issparse(self.matrix)
        self.device = device
        features = self.matrix.shape[1]
        if self.sparse:
            boolean = self.matrix.dtype == bool or bool((self.matrix.data == 1).all())
            longest = np.sort(np.diff(self.matrix.indptr))[-batch:]
            self._new_room: Callable = partial(SparseBatch, device, batch, int(longest.sum()), features, boolean, dtype)
        else:
            self._new_room = partial(_DenseBatch, device, batch, features, dtype)
        self._rooms: list[Any] = [self._new_room()]
        self._ahead: np.ndarray | None = None

    def load(self, rows: np.ndarray) -> SparseBatch | Array:
        """These rows, in this order, on the device; the same object for every batch of a size in the same room."""
        ahead, self._ahead = self._ahead, None
        if rows is ahead:
            self._rooms.reverse()
        else:
            self._rooms[0].load(self.matrix, rows)
        return self._rooms[0] if self.sparse else self._rooms[0].part

    def load_ahead(self, rows: np.ndarray) -> None:
        """Have these rows copied to the device while it computes, for the next `load` of this very array.

        Does nothing where copies do not run beside kernels. Call Device.wait before that `load`.
        """
        if not self.device.copies_beside_kernels:
            return
        if len(self._rooms) == 1:
            self._rooms.append(self._new_room())
        with self.device.ahead():
            self._rooms[1].load(self.matrix, rows)
        self._ahead = rows


class _DenseBatch:
    """Some rows of a dense matrix on a device."""

    def __init__(self, device: Device, batch: int, features: int, dtype: Any) -> None:
        self._device = device
        self._host = device.staging((batch, features), dtype)
        self._room = self._host if device.name == "cpu" else device.zeros((batch, features), dtype)
        self._parts: dict[int, Array] = {}
        self.part: Array = None

    def load(self, matrix: np.ndarray, rows: np.ndarray) -> None:
        if len(rows) not in self._parts:
            self._parts[len(rows)] = self._room[:len(rows)]
        self.part, host = self._parts[len(rows)], self._host[:len(rows)]
        np.take(matrix, rows, axis=0, out=host)
        if self._device.name != "cpu":
            self._device.write(self.part, host)


def _scaled(matrix: Any, dtype: Any, length_one: bool, sum_one: bool) -> Any:
    sparse = bool(sp.issparse(matrix))
    if not (length_one or sum_one):
        if not sparse:
            return matrix.astype(dtype, copy=False)
        return matrix if matrix.dtype == bool else _with_values(matrix, matrix.data, dtype)
    values = (matrix.data if sparse else matrix).astype(np.float64)
    if not sparse:
        size = np.sqrt((values**2).sum(1)) if length_one else np.count_nonzero(values, axis=1)
        return (values / np.maximum(size, np.finfo(float).tiny)[:, None]).astype(dtype)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    size = np.bincount(rows, values**2 if length_one else values != 0, minlength=matrix.shape[0])
    return _with_values(matrix, values / (np.sqrt(size) if length_one else size)[rows], dtype)


def _with_values(matrix: Any, values: np.ndarray, dtype: Any) -> Any:
    result = sp.csr_array(matrix.shape, dtype=dtype)
    result.data, result.indices, result.indptr = values.astype(dtype, copy=False), matrix.indices, matrix.indptr
    return result
