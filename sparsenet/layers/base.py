"""What a layer is: the contract between a layer and the network that runs it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsenet.activations import Activation
from sparsenet.bfloat16 import stored, unstored
from sparsenet.device import Array, Device
from sparsenet.initializers import Initializer
from sparsenet.kernels.sparse import sparse_update
from sparsenet.kernels.update import update
from sparsenet.layers.backlog import Backlog
from sparsenet.losses import Loss
from sparsenet.optimizers import Optimizer
from sparsenet.parallel import Solo

_CHUNKS = 64  # independent parts of a sparse update
_DRAWN = 2**20  # weights that are drawn at a time


@dataclass
class Signal:
    """What passes through one node in one batch. Arrays hold this rank's units."""

    y: Any
    """(batch, units) activations; a SparseBatch for a sparse input"""
    delta: Array | None = None
    """(batch, units) dL/dy, later dL/dz; None where no gradient is wanted"""
    row_largest: Array | None = None
    """(batch) working memory of a softmax"""
    row_total: Array | None = None
    """(batch) working memory of a softmax"""
    precision: str = "float32"
    """Of dense products, as for kernels.tiles.multiply"""
    scratch: Array | None = None
    """Working memory of dense products, the same for all nodes"""
    key: Array | None = None
    """(1) uint64, random stream of this node and step; None outside training"""
    whole: Array | None = None
    """y with the units of all ranks, once a layer that reads this node has gathered it in the forward pass"""


class Parameter:
    """A weight matrix (inputs, units) or a bias (1, units): values, gradient and optimizer state on one device.

    Arrays lie row by row of what batches name: of inputs where those are sparse; else of units (`by_unit`), so that the
    weights of an output lie side by side. Values and state may be bfloat16 alone, in arrays of uint16: see bfloat16.py.
    """

    def __init__(self, inputs: int, units: int, initializer: Initializer, bias: bool = False,
                 by_unit: bool = False) -> None:
        self.inputs, self.units, self.initializer, self.bias = inputs, units, initializer, bias
        self.by_unit = by_unit
        """Whether arrays are (units, inputs)"""
        self._value: Array = None
        self.catch_up: Callable[[], None] | None = None
        """Called before anybody reads the values, where rows wait for it or a head keeps them in another form"""
        self.gradient: Array = None
        """Sum of what backward passes added; None for a weight whose update sums it itself"""
        self.slots: Array = None
        """Optimizer state (count, …), each as the values"""
        self.trained_with: str | None = None
        """Name of the optimizer whose state it is"""
        self.step = 0
        """How many steps of that optimizer were made"""
        self.prepared_by: Any = None
        """The network that last prepared it for training: networks that share a layer may train it in turn"""
        self.key = np.zeros(1, np.uint64)
        """Random stream of this step's rounding, for bfloat16"""
        self.source: tuple[Any, Array] | None = None
        """(SparseBatch, delta) of the last backward pass, where there is no gradient array"""
        self._scratch: Array = None
        self._backlog: Backlog | None = None

    @property
    def value(self) -> Array:
        """The values."""
        if self.catch_up is not None:
            self.catch_up()
        return self._value

    @value.setter
    def value(self, values: Array) -> None:
        self._value = values

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays on the device; rows that wait go on waiting."""
        arrays = [array for array in (self._value, self.gradient, self.slots, self._scratch) if array is not None]
        waiting = 0 if self._backlog is None else self._backlog.nbytes
        return sum(array.size * array.dtype.itemsize for array in arrays) + waiting

    def initialize(self, device: Device, comm: Solo, key: np.uint64, dtype: Any) -> None:
        """Draw this rank's units."""
        first, stop = comm.bounds(self.units)
        shape = (stop - first, self.inputs) if self.by_unit else (self.inputs, stop - first)
        drawn = np.empty(shape, dtype)
        units, each = drawn if self.by_unit else drawn.T, max(1, _DRAWN // self.inputs)
        for start in range(first, stop, each):  # part by part: there may be no room for twice the whole
            end = min(start + each, stop)
            numbers = self.initializer(key, (self.inputs, end - start), start, self.units)
            units[start - first:end - first] = stored(numbers.T, dtype)
        self.value = device.put(drawn)

    def fetch(self, device: Device, as_stored: bool = False) -> np.ndarray:
        """The values on the host, (inputs, units); as_stored: bfloat16 as the uint16 that hold it."""
        values = device.fetch(self.value)
        values = values if as_stored else unstored(values)
        return values.T if self.by_unit else values

    def write(self, device: Device, values: np.ndarray) -> None:
        """Replace the values by others (inputs, units), where uint16 are bfloat16."""
        device.write(self.value, np.ascontiguousarray(stored(values.T if self.by_unit else values, self.value.dtype)))

    def fetch_slots(self, device: Device) -> np.ndarray:
        """The optimizer's state on the host, (count, inputs, units), as it is stored."""
        slots = device.fetch(self.slots)
        return slots.transpose(0, 2, 1) if self.by_unit else slots

    def put_slots(self, device: Device, slots: np.ndarray, dtype: Any) -> None:
        """Take over an optimizer's state (count, inputs, units), where uint16 are bfloat16, to be stored as dtype."""
        self.slots = device.put(stored(slots.transpose(0, 2, 1) if self.by_unit else slots, dtype))

    def prepare(self, device: Device, optimizer: Optimizer, network: Any, slots_dtype: Any, *, fused: bool = False,
                streamed: bool = False) -> None:
        """Allocate what training needs. The state of an optimizer of this name is kept, another begins anew.

        slots_dtype  of the optimizer's state
        fused        the update sums the gradient itself, of a sparse input
        streamed     a streaming head makes both, of an output's weight
        """
        shape, dtype, self.prepared_by = self.value.shape, network.dtype, network
        self._backlog = self.catch_up = None
        if self.slots is None or self.trained_with != optimizer.name or self.slots.shape[0] != optimizer.slots:
            self.slots, self.trained_with = device.zeros((optimizer.slots, *shape), slots_dtype), optimizer.name
            self.step = 0
        elif self.slots.dtype != slots_dtype:
            self.slots = device.put(stored(device.fetch(self.slots), slots_dtype))
        if streamed:
            self.gradient = None
        elif fused:
            self.gradient = None
            self._scratch = device.zeros((_CHUNKS, shape[1]), dtype)
            if optimizer.catches_up:
                self._backlog, self.catch_up = Backlog(device, optimizer, shape[0], dtype), self.settle
        else:  # anew: a step that was interrupted between backward pass and update leaves its gradient behind
            self.gradient = device.zeros(shape, dtype)

    def settle(self) -> None:
        """Catch up all rows, where they wait."""
        if self._backlog is not None:
            self._backlog.settle(self._value, self.slots, self.key)

    def begin_step(self, scalars: tuple[float, ...], key: np.uint64) -> None:
        """A step of the optimizer begins, with these numbers of its rule, and a random stream of its own."""
        if self._backlog is not None:
            self._backlog.owe(self._value, self.slots, scalars, self.key)
        self.key[0] = key

    def named_by(self, batch: Any) -> Array:
        """The values in a training step, where only the rows of features that a SparseBatch names are wanted."""
        if self._backlog is None:
            return self.value
        features, _, _, _, touched = batch.by_feature(every=False)
        self._backlog.pay(features, touched, self._value, self.slots, self.key)
        return self._value

    def update(self, optimizer: Optimizer, scalars: Array) -> None:
        """One step of the optimizer with the gradient of the last backward pass, which is used up.

        scalars  (8) the numbers of its rule for this step
        """
        l2, l1 = (0.0, 0.0) if self.bias else (optimizer.l2, optimizer.l1)
        if self.gradient is None:
            assert self.source is not None
            (batch, delta), self.source = self.source, None
            features, indptr, examples, positions, touched = batch.by_feature(every=optimizer.visits_every_row)
            sparse_update(optimizer.rule, features, indptr, examples, positions, touched, batch.values, delta,
                          self._value, self.slots, l2, l1, scalars, optimizer.numbers, self._scratch,
                          key=self.key)
        else:
            size = self.value.shape[0] * self.value.shape[1]
            update(optimizer.rule, self.value.reshape(size), self.gradient.reshape(size),
                   self.slots.reshape(optimizer.slots, size), l2, l1, scalars, optimizer.numbers)


@dataclass(eq=False, frozen=True)
class Node:
    """One use of a layer: the layer, the nodes it reads, and how many units it has over all ranks."""

    layer: "Layer"
    inputs: tuple["Node", ...]
    units: int
    sparse: bool = False


class Layer(ABC):
    """Calling a layer on nodes makes a node; a network runs its nodes.

    Backward passes add, they never assign and never clear: that makes skip connections, shared weights and a layer
    that is used twice work without further ado.
    """

    name: str | None
    activation: Activation | None = None
    comm: Solo = Solo()

    def __call__(self, *inputs: Node) -> Node:
        """Apply the layer. Raises TypeError for what is no node, ValueError where widths do not fit."""
        for node in inputs:
            if not isinstance(node, Node):
                raise TypeError(f"{type(self).__name__}: call it on layers, as in Dense(128)(x); got {node!r}")
        return Node(self, inputs, self.connect(inputs))

    @property
    def parameters(self) -> dict[str, Parameter]:
        """What the layer learns, by name within the layer."""
        return {}

    def weight_of(self, i: int) -> Parameter | None:
        """The matrix that multiplies input i, if there is one."""
        return None

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Arguments that make this layer again."""

    @abstractmethod
    def connect(self, inputs: tuple[Node, ...]) -> int:
        """Make the parameters for inputs of these widths; returns the number of units."""

    @abstractmethod
    def forward(self, inputs: Sequence[Signal], out: Signal) -> None:
        """Write out.y."""

    @abstractmethod
    def delta(self, out: Signal) -> None:
        """Turn out.delta from dL/dy into dL/dz, in place."""

    @abstractmethod
    def backward(self, inputs: Sequence[Signal], out: Signal) -> None:
        """Add to inputs[i].delta, where there is one, and to the parameters' gradients."""

    # ---- for layers that can be an output with a loss

    def check_loss(self, loss: Loss) -> None:
        """Raise ValueError where this layer cannot be an output with that loss."""
        raise ValueError(f"a layer of class {type(self).__name__} cannot have a loss")

    def check_targets(self, loss: Loss, smallest: float, largest: float, what: str) -> None:
        """Raise ValueError where targets from smallest to largest have no meaning."""
        raise NotImplementedError

    def output_loss(self, out: Signal, loss: Loss, target: Any, result: Array) -> None:
        """Write the loss of each example, summed over the units of all ranks, into result (batch) float64."""
        raise NotImplementedError

    def output_delta(self, out: Signal, loss: Loss, target: Any, scale: float, accumulate: bool) -> None:
        """Write the dL/dz of scale * loss into out.delta; where accumulate, out.delta holds dL/dy of other nodes."""
        raise NotImplementedError
