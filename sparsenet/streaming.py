"""Streaming output layers: training steps that hold neither their activations nor their gradients.

See kernels/head.py. A layer streams where its loss, both gradients and its update can be made in one walk over its
outputs; `why_not` says why another does not.
"""

from collections.abc import Collection

import numpy as np

from sparsenet.activations import Activation
from sparsenet.compiling import plain
from sparsenet.device import Array, Device
from sparsenet.kernels.head import Output, Rule, head_pull, head_room, head_step, head_sums, target_pull
from sparsenet.kernels.tiles import SCRATCH
from sparsenet.layers.base import Node, Signal
from sparsenet.layers.batch import SparseBatch
from sparsenet.layers.dense import Dense
from sparsenet.losses import LOSSES, Loss
from sparsenet.optimizers import Optimizer

_WIDE = 1024  # outputs from which on a layer streams, if it is not told


def why_not(node: Node, nodes: Collection[Node], dtype: np.dtype, streaming: bool | None) -> str | None:
    """Why an output with a loss does not stream in training; None where it does.

    nodes      of the network
    streaming  what the user said: whether outputs stream, or None
    """
    layer = node.layer
    if streaming is False:
        return "streaming=False"
    if not isinstance(layer, Dense):
        return f"a {type(layer).__name__} layer"
    if len(node.inputs) != 1:
        return f"{len(node.inputs)} inputs"
    if node.inputs[0].sparse:
        return "a sparse input"
    if any(node in other.inputs for other in nodes):
        return "read by another layer"
    if sum(other.layer is layer for other in nodes) > 1:
        return "used more than once"
    if layer.comm.size > 1:
        return "split over ranks"
    if dtype != np.float32:
        return str(dtype)
    if streaming is None and node.units < _WIDE:
        return f"fewer than {_WIDE:,} units"
    return None


class Head:
    """Training steps of one streaming output layer."""

    def __init__(self, node: Node, loss: Loss, device: Device, precision: str) -> None:
        assert isinstance(node.layer, Dense)
        self.layer, self._units, self._inputs = node.layer, node.units, node.inputs[0].units
        self._softmax = self.layer.activation.rowwise
        # Cross entropy's slope for a softmax is -t: sums over rows need no walk.
        self._plain_pull = loss.name == "cross_entropy" and loss.settings is not None
        value, slope = loss.through(self.layer.activation)
        sigmoid = not self._softmax
        self._output = Output(self.layer.activation.value, value, slope,
                              loss.zero_factor if sigmoid else None,
                              quiet_below(loss, self.layer.activation) if sigmoid else None)
        self._device, self._precision = device, "float32" if precision == "cublas" else precision
        self._room: Array = None
        self._scratch: Array = None
        self._rows: list[Array] = []
        self._rule: Rule | None = None

    def allocate(self, batch: int) -> None:
        """Make room for batches of up to `batch` examples."""
        zeros = self._device.zeros
        self._room = zeros(head_room(self._device, batch, self._inputs, self._units, self._precision))
        if self._device.name != "cpu" and self._scratch is None:
            self._scratch = zeros(SCRATCH)
        self._rows = [zeros(batch), zeros(batch), zeros(batch, np.float64)] if self._softmax else []

    @property
    def nbytes(self) -> int:
        """Bytes of the working memory."""
        arrays = [self._room, self._scratch, *self._rows]
        return sum(array.size * array.dtype.itemsize for array in arrays if array is not None)

    def prepare(self, optimizer: Optimizer) -> None:
        """Choose the optimizer of the steps to come."""
        still = optimizer.still and optimizer.l2 == 0 and optimizer.l1 == 0
        self._rule = Rule(optimizer.rule, optimizer.numbers, optimizer.l2, optimizer.l1, still)

    def step(self, source: Signal, target: SparseBatch, scale: float, scalars: Array, losses: Array,
             key: Array) -> None:
        """Write the losses, add to source.delta, update the layer.

        scale    1 / batch size for a mean over examples
        scalars  (8) the numbers of the optimizer's rule for this step
        losses   (batch) float64
        key      not used
        """
        weight, bias = self.layer.weights[0], self.layer.bias
        hidden, count, batch = source.y, weight.slots.shape[0], losses.shape[0]
        w, b = weight.value, bias.value.reshape(-1)
        room = self._room if self._device.name == "cpu" else self._room[:batch]
        largest, total, pull = [row[:batch] for row in self._rows] or (None, None, None)
        targets = target.indptr, target.indices, target.data
        if self._softmax:
            head_sums(hidden, w, b, largest, total, room, self._scratch, precision=self._precision)
            if self._plain_pull:
                target_pull(self._output.slope, target.indptr, target.data, pull)
            else:
                head_pull(self._output.slope, hidden, *targets, largest, total, w, b, pull, room, self._scratch,
                          precision=self._precision)
        assert self._rule is not None
        head_step(self._output, self._rule, scale, hidden, *targets, largest, total, pull, scalars, w, weight.slots, b,
                  bias.gradient.reshape(-1), bias.slots.reshape(count, self._units), source.delta, losses, room,
                  self._scratch, key=weight.key, precision=self._precision)


def quiet_below(loss: Loss, activation: Activation) -> float | None:
    """z at or below which an output surely has neither loss nor delta where its target is 0, or None.

    A little less than the inverse of the activation a little below loss.zero_below, so that rounding decides nothing.
    """
    if loss.zero_below is None or loss.settings is None or loss.name not in LOSSES or activation.settings is None:
        return None  # your own activation may not be monotonic
    value, below = plain(activation.value), loss.zero_below * (1 - 16 * float(np.finfo(np.float32).eps))
    low, high = -80.0, 80.0
    if not value(low) <= below < value(high):
        return None
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) <= below else (low, middle)
    return low - 1e-3 * (1 + abs(low))
