"""The batch of sparse examples that passes through a network."""

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from sparsenet.device import Array, Device
from sparsenet.kernels.batches import gather_rows, transpose, transpose_all
from sparsenet.kernels.dropout import denoise

_NO_VALUES = np.zeros(0, np.float32)


class SparseBatch:
    """Some rows of a CSR matrix on a device, and the same by feature.

    indptr   (batch + 1) int64, indices (nonzeros) int32, data (nonzeros) or None where every entry is 1;
    values   data, or its noisy copy in training with denoising
    """

    def __init__(self, device: Device, batch: int, nonzeros: int, features: int, boolean: bool, dtype: Any) -> None:
        """Room for `batch` examples with `nonzeros` entries in all."""
        self.device, self.features, self.boolean = device, features, boolean
        self.batch_size, self.capacity = batch, nonzeros
        self._host: dict[str, Any] = {
            "indptr": np.zeros(batch + 1, np.int64),
            "indices": np.zeros(nonzeros, np.int32),
            "data": np.zeros(0 if boolean else nonzeros, dtype),
        }
        self._rooms = self._host if device.name == "cpu" else {k: device.put(v) for k, v in self._host.items()}
        self._dtype = dtype
        self._noise: Array = None
        self._turned_host: dict[str, Any] = {}
        self._turned_rooms: dict[str, Array] = {}
        self._turned: tuple[bool, tuple[Array, ...]] | None = None
        self.indptr: Array = None
        self.indices: Array = None
        self.data: Array = None
        self.values: Array = None

    def load(self, matrix: csr_array, rows: np.ndarray) -> None:
        """Take these rows of a canonical matrix. Raises ValueError where there is no room for them."""
        data = _NO_VALUES.astype(self._dtype) if self.boolean else matrix.data
        nonzeros = int((matrix.indptr[rows + 1] - matrix.indptr[rows]).sum())
        if len(rows) > self.batch_size or nonzeros > self.capacity:
            raise ValueError(f"a batch of {len(rows)} examples with {nonzeros} nonzeros does not fit into room for "
                             f"{self.batch_size} and {self.capacity}")
        host = self._host
        gather_rows(rows, matrix.indptr, matrix.indices, data, host["indptr"], host["indices"], host["data"])
        self.indptr = self._upload("indptr", len(rows) + 1)
        self.indices = self._upload("indices", nonzeros)
        self.data = None if self.boolean else self._upload("data", nonzeros)
        self.values = self.data
        self._turned = None

    def _upload(self, name: str, length: int) -> Array:
        return _filled(self.device, self._host[name], self._rooms[name], length)

    def add_noise(self, drop: float, key: np.uint64 | None) -> None:
        """Set `values`: the data with a part `drop` of the entries zeroed, the others scaled up; no key, no noise."""
        self.values = self.data
        if drop and key is not None:
            if self._noise is None:
                self._noise = self.device.zeros(self.capacity, self._dtype)
            self.values = self._noise[:self.indices.shape[0]]
            denoise(key, drop, self.features, self.indptr, self.indices, self.data, self.values)

    def by_feature(self, every: bool) -> tuple[Array, Array, Array, Array]:
        """(features, indptr, examples, positions) as kernels/sparse.py wants them; every: absent features too."""
        if self._turned is None or self._turned[0] != every:
            self._turned = every, self._turn(every)
        return self._turned[1]

    def _turn(self, every: bool) -> tuple[Array, Array, Array, Array]:
        if not self._turned_host:
            self._make_room()
        host, nonzeros = self._turned_host, self.indices.shape[0]
        indptr, indices = self._host["indptr"][:self.indptr.shape[0]], self._host["indices"][:nonzeros]
        if every:
            transpose_all(indptr, indices, host["all_indptr"], host["examples"], host["positions"])
            features = self._turned_rooms["all_features"]
            starts = self._upload_turned("all_indptr", self.features + 1)
        else:
            touched = np.zeros(1, np.int64)
            transpose(indptr, indices, host["count"], host["features"], host["indptr"], host["examples"],
                      host["positions"], touched)
            features = self._upload_turned("features", int(touched[0]))
            starts = self._upload_turned("indptr", int(touched[0]) + 1)
        return (features, starts, self._upload_turned("examples", nonzeros),
                self._upload_turned("positions", nonzeros))

    def _make_room(self) -> None:
        distinct = min(self.capacity, self.features)
        self._turned_host = {
            "count": np.zeros(self.features, np.int64),
            "features": np.zeros(distinct, np.int32),
            "indptr": np.zeros(distinct + 1, np.int64),
            "all_features": np.arange(self.features, dtype=np.int32),
            "all_indptr": np.zeros(self.features + 1, np.int64),
            "examples": np.zeros(self.capacity, np.int32),
            "positions": np.zeros(self.capacity, np.int32),
        }
        self._turned_rooms = (self._turned_host if self.device.name == "cpu" else
                              {k: self.device.put(v) for k, v in self._turned_host.items()})

    def _upload_turned(self, name: str, length: int) -> Array:
        return _filled(self.device, self._turned_host[name], self._turned_rooms[name], length)


def _filled(device: Device, host: np.ndarray, room: Array, length: int) -> Array:
    """The leading part of an array on a device, made equal to that of its host twin."""
    part = room[:length]
    if room is not host and length:
        device.write(part, host[:length])
    return part
