"""The batch of sparse examples that passes through a network."""

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from sparsenet.device import Array, Device
from sparsenet.kernels.batches import gather_rows, sorted_transpose, sorted_transpose_all, transpose, transpose_all
from sparsenet.kernels.dropout import denoise

_NO_VALUES = np.zeros(0, np.float32)
_TILES = 256  # parts of a batch that a GPU sorts side by side


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
            "indptr": device.staging(batch + 1, np.int64),
            "indices": device.staging(max(1, nonzeros), np.int32),
            "data": device.staging(0 if boolean else max(1, nonzeros), dtype),
        }
        self._rooms = self._host if device.name == "cpu" else {k: device.put(v) for k, v in self._host.items()}
        self._dtype = dtype
        self._noise: Array = None
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
        if self.device.name != "cpu":  # whole rooms, so that a step's launches do not differ from batch to batch
            self.indices, self.data = self._rooms["indices"], None if self.boolean else self._rooms["data"]
        self.values = self.data
        self._turned = None

    def _upload(self, name: str, length: int) -> Array:
        """The leading part of a room, made equal to that of its host twin."""
        part, host = self._rooms[name][:length], self._host[name]
        if self._rooms is not self._host and length:
            self.device.write(part, host[:length])
        return part

    def add_noise(self, drop: float, key: Array | None) -> None:
        """Set `values`: the data with a part `drop` of the entries zeroed, the others scaled up; no key, no noise."""
        self.values = self.data
        if drop and key is not None:
            if self._noise is None:
                self._noise = self.device.zeros(max(1, self.capacity), self._dtype)
            self.values = self._noise[:self.indices.shape[0]]
            denoise(key, drop, self.features, self.indptr, self.indices, self.data, self.values)

    def by_feature(self, every: bool) -> tuple[Array, Array, Array, Array, Array]:
        """(features, indptr, examples, positions, touched) as kernels/sparse.py wants them; every: absent features too.

        Made on the device, in rooms that are the same for every batch; `touched` and `indptr` say what is valid.
        """
        if self._turned is None or self._turned[0] != every:
            self._turned = every, self.turn(every)
        return self._turned[1]

    def turn(self, every: bool) -> tuple[Array, Array, Array, Array, Array]:
        """As `by_feature`, made anew."""
        return self._turn_all() if every else self._turn()

    def _turn(self) -> tuple[Array, Array, Array, Array, Array]:
        distinct = max(1, min(self.capacity, self.features))
        listed = (self._room("features", distinct, np.int32), self._room("indptr", distinct + 1, np.int64),
                  *self._entries(), self._room("touched", 1, np.int64))
        if self.device.name == "cpu":
            transpose(self.indptr, self.indices, self._room("count", self.features, np.int64), *listed)
        else:
            sorted_transpose(self.features, self.indptr, self.indices, *self._sorting(), *listed)
        return listed

    def _turn_all(self) -> tuple[Array, Array, Array, Array, Array]:
        starts, entries = self._room("every_indptr", self.features + 1, np.int64), self._entries()
        if self.device.name == "cpu":
            transpose_all(self.indptr, self.indices, starts, *entries)
        else:
            sorted_transpose_all(self.indptr, self.indices, *self._sorting(), starts, *entries)
        if "every" not in self._turned_rooms:
            self._turned_rooms["every"] = self.device.put(np.arange(self.features, dtype=np.int32))
            self._turned_rooms["every_touched"] = self.device.put(np.full(1, self.features, np.int64))
        return self._turned_rooms["every"], starts, *entries, self._turned_rooms["every_touched"]

    def _entries(self) -> tuple[Array, Array]:
        """examples and positions."""
        return (self._room("examples", max(1, self.capacity), np.int32),
                self._room("positions", max(1, self.capacity), np.int32))

    def _sorting(self) -> tuple[Array, Array]:
        """counts and keys of a GPU's sort."""
        digits = self.device.threads
        tiles = max(1, min(_TILES, -(-self.capacity // digits)))
        return self._room("counts", (tiles, digits), np.int32), self._room("keys", (2, max(1, self.capacity)), np.int32)

    def _room(self, name: str, shape: int | tuple[int, int], dtype: Any) -> Array:
        """An array on the device, made when first wanted."""
        if name not in self._turned_rooms:
            self._turned_rooms[name] = self.device.zeros(shape, dtype)
        return self._turned_rooms[name]
