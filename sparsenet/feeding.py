"""What a user passes for the ends of a network, checked and made ready to be loaded batch by batch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsenet.data.dataset import Dataset, canonical
from sparsenet.device import Device
from sparsenet.layers.base import Node
from sparsenet.layers.feed import Feed
from sparsenet.layers.input import InputLayer
from sparsenet.losses import Loss


def by_name(values: Any, nodes: Mapping[str, Node], what: str) -> dict[str, Any]:
    """Values given as one, as a list in the nodes' order or as a dict, as a dict. Raises ValueError."""
    if isinstance(values, Mapping) and not sp.issparse(values):  # SciPy's DOK matrix is a Mapping too
        if set(values) != set(nodes):
            raise ValueError(f"{what}: expected {', '.join(nodes)}, got {', '.join(map(str, values))}")
        return {name: values[name] for name in nodes}
    if len(nodes) == 1 and not (isinstance(values, list | tuple) and len(values) == 1):
        return {next(iter(nodes)): values}
    if not isinstance(values, list | tuple) or len(values) != len(nodes):
        raise ValueError(f"{what}: expected {len(nodes)}, for {', '.join(nodes)}, as a list or a dict")
    return dict(zip(nodes, values, strict=True))


class Door:
    """Makes feeds for one device. A matrix that is passed twice, as input and as target, is checked and loaded once."""

    def __init__(self, device: Device, dtype: Any, batch: int) -> None:
        """Raises ValueError unless batch is a positive integer."""
        if isinstance(batch, bool) or not isinstance(batch, int | np.integer) or batch < 1:
            raise ValueError(f"batch: expected a positive integer, got {batch!r}")
        self.device, self.dtype, self.batch = device, dtype, batch
        self.examples: int | None = None
        self._known: dict[int, tuple[Any, Any]] = {}
        self._feeds: dict[tuple[int, bool, bool], Feed] = {}

    def inputs(self, matrices: Any, nodes: Mapping[str, Node]) -> dict[str, Feed]:
        """A feed for each input. Raises ValueError where a matrix does not fit its layer."""
        found = {}
        for name, given in by_name(matrices, nodes, "inputs").items():
            layer = nodes[name].layer
            assert isinstance(layer, InputLayer)
            matrix = self._checked(given, f"inputs {name!r}", nodes[name].units)
            if layer.sparse and not sp.issparse(matrix):
                matrix = self._checked(sp.csr_array(matrix), f"inputs {name!r}", nodes[name].units)
            if sp.issparse(matrix) and not layer.sparse:
                raise ValueError(f"inputs {name!r}: is sparse; declare its layer with Input(..., sparse=True)")
            found[name] = self.feed(matrix, length_one=layer.normalize)
        return found

    def targets(self, matrices: Any, nodes: Mapping[str, Node], losses: Mapping[str, Loss]) -> dict[str, Feed]:
        """A feed for each output. Raises ValueError where a matrix does not fit its layer or its loss."""
        found: dict[str, Feed] = {}
        for name, given in by_name(matrices, nodes, "targets").items():
            matrix = self._checked(given, f"targets {name!r}", nodes[name].units)
            values = matrix if isinstance(matrix, np.ndarray) else matrix.data
            if values.size:
                nodes[name].layer.check_targets(losses[name], float(values.min()), float(values.max()),
                                                f"targets {name!r}")
            found[name] = self.feed(matrix, sum_one=losses[name].normalize)
        return found

    def _checked(self, given: Any, what: str, units: int) -> Any:
        if isinstance(given, Dataset) and given.weights is not None:
            raise ValueError(f"{what}: the data set has weights, which networks do not heed yet; pass its matrix")
        if id(given) not in self._known:
            self._known[id(given)] = given, canonical(given, what)  # given is kept, so that its id stays its own
        matrix = self._known[id(given)][1]
        if matrix.shape[1] != units:
            raise ValueError(f"{what}: has {matrix.shape[1]} columns, but the layer has {units} units")
        if self.examples is None:
            self.examples = matrix.shape[0]
        elif matrix.shape[0] != self.examples:
            raise ValueError(f"{what}: has {matrix.shape[0]} examples, but others have {self.examples}")
        return matrix

    def feed(self, matrix: Any, *, length_one: bool = False, sum_one: bool = False) -> Feed:
        """The feed of a canonical matrix; see layers.feed.Feed."""
        key = id(matrix), length_one, sum_one
        if key not in self._feeds:
            self._feeds[key] = Feed(matrix, self.device, self.dtype, min(self.batch, matrix.shape[0]),
                                    length_one=length_one, sum_one=sum_one)
        return self._feeds[key]
