"""From a matrix of all examples to batches on a device."""

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
        self._room: Any
        if self.sparse:
            boolean = self.matrix.dtype == bool or bool((self.matrix.data == 1).all())
            longest = np.sort(np.diff(self.matrix.indptr))[-batch:]
            self._room = SparseBatch(device, batch, int(longest.sum()), self.matrix.shape[1], boolean, dtype)
        else:
            self._room = device.zeros((batch, self.matrix.shape[1]), dtype)
            self._host = self._room if device.name == "cpu" else np.zeros(self._room.shape, dtype)

    def load(self, rows: np.ndarray) -> SparseBatch | Array:
        """These rows, in this order, on the device."""
        if self.sparse:
            self._room.load(self.matrix, rows)
            return self._room
        part, host = self._room[:len(rows)], self._host[:len(rows)]
        np.take(self.matrix, rows, axis=0, out=host)
        if self.device.name != "cpu":
            self.device.write(part, host)
        return part


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
