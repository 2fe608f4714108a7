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
        """Room for `batch` examples with `nonzeros` entries in all.

        Rooms have at least one element: numba-cuda cannot slice an array of none.
        """
        self.device, self.features, self.boolean = device, features, boolean
        self.batch_size, self.capacity = batch, nonzeros
        self._host: dict[str, Any] = {
            "indptr": np.zeros(batch + 1, np.int64),
            "indices": np.zeros(max(1, nonzeros), np.int32),
            "data": np.zeros(0 if boolean else max(1, nonzeros), dtype),
        }
        self._rooms = self._host if device.name == "cpu" else {k: device.put(v) for k, v in self._host.items()}
        self._dtype = dtype
        self._noise: Array = None
        self._turned_host: dict[str, Any] = {}
        self._turned_rooms: dict[str, Array] = {}
        self._count: np.ndarray | None = None
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
                self._noise = self.device.zeros(max(1, self.capacity), self._dtype)
            self.values = self._noise[:self.indices.shape[0]]
            denoise(key, drop, self.features, self.indptr, self.indices, self.data, self.values)

    def by_feature(self, every: bool) -> tuple[Array, Array, Array, Array]:
        """(features, indptr, examples, positions) as kernels/sparse.py wants them; every: absent features too."""
        if self._turned is None or self._turned[0] != every:
            self._turned = every, self._turn(every)
        return self._turned[1]

    def _turn(self, every: bool) -> tuple[Array, Array, Array, Array]:
        nonzeros = self.indices.shape[0]
        indptr, indices = self._host["indptr"][:self.indptr.shape[0]], self._host["indices"][:nonzeros]
        examples, positions = (self._turned_room(name, self.capacity, np.int32) for name in ("examples", "positions"))
        if every:
            starts = self._turned_room("every_indptr", self.features + 1, np.int64)
            transpose_all(indptr, indices, starts, examples, positions)
            features, kind, count = self._every_feature(), "every_indptr", self.features
        else:
            distinct = min(self.capacity, self.features)
            listed = self._turned_room("features", distinct, np.int32)
            starts, touched = self._turned_room("indptr", distinct + 1, np.int64), np.zeros(1, np.int64)
            if self._count is None:
                self._count = np.zeros(self.features, np.int64)
            transpose(indptr, indices, self._count, listed, starts, examples, positions, touched)
            kind, count = "indptr", int(touched[0])
            features = self._upload_turned("features", count)
        return (features, self._upload_turned(kind, count + 1), self._upload_turned("examples", nonzeros),
                self._upload_turned("positions", nonzeros))

    def _every_feature(self) -> Array:
        if "every" not in self._turned_rooms:
            self._turned_rooms["every"] = self.device.put(np.arange(self.features, dtype=np.int32))
        return self._turned_rooms["every"]

    def _turned_room(self, name: str, length: int, dtype: Any) -> np.ndarray:
        """The host's side of a room, made when first wanted."""
        if name not in self._turned_host:
            self._turned_host[name] = np.zeros(max(1, length), dtype)
            self._turned_rooms[name] = (self._turned_host[name] if self.device.name == "cpu" else
                                        self.device.put(self._turned_host[name]))
        return self._turned_host[name]

    def _upload_turned(self, name: str, length: int) -> Array:
        return _filled(self.device, self._turned_host[name], self._turned_rooms[name], length)


def _filled(device: Device, host: np.ndarray, room: Array, length: int) -> Array:
    """The leading part of an array on a device, made equal to that of its host twin."""
    part = room[:length]
    if room is not host and length:
        device.write(part, host[:length])
    return part
