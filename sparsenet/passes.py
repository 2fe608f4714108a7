"""Forward and backward passes over the nodes of a network, and the buffers they use."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsenet.device import Array, Device
from sparsenet.kernels.update import clear
from sparsenet.layers.base import Node, Signal
from sparsenet.layers.input import InputLayer
from sparsenet.losses import Loss
from sparsenet.seeds import stream_key
from sparsenet.threads import exclusive


class Passes:
    """Nodes in order, each with its buffers for one batch. Nothing is allocated in a pass."""

    def __init__(self, nodes: Sequence[Node], names: Mapping[Node, str], inputs: Mapping[str, Node],
                 outputs: Mapping[str, Node], losses: Mapping[str, Loss], device: Device, dtype: Any) -> None:
        self.nodes, self.inputs, self.outputs, self.losses = nodes, inputs, outputs, losses
        self.device, self.dtype = device, dtype
        self._names = names
        self._place = {node: i for i, node in enumerate(nodes)}
        self._consumed = {source for node in nodes for source in node.inputs}
        self._room: list[Signal] = []
        self._views: dict[int, list[Signal]] = {}
        self._batch = 0
        self._losses: Array = None

    def allocate(self, batch: int, training: bool) -> None:
        """Make the buffers for batches of up to `batch` examples; never in the midst of another thread's batch."""
        with exclusive:
            self._allocate(batch, training)

    def _allocate(self, batch: int, training: bool) -> None:
        trained = bool(self._room) and self._room[-1].delta is not None
        if batch <= self._batch and (trained or not training):
            return
        batch, training = max(batch, self._batch), training or trained
        zeros, room = self.device.zeros, []
        for node in self.nodes:
            if isinstance(node.layer, InputLayer):
                room.append(Signal(None))
                continue
            first, stop = node.layer.comm.bounds(node.units)
            shape = (batch, stop - first)
            room.append(Signal(zeros(shape, self.dtype), zeros(shape, self.dtype) if training else None,
                               zeros(batch, self.dtype), zeros(batch, self.dtype)))
        self._losses = zeros(batch, np.float64)
        self._room, self._views, self._batch = room, {}, batch  # all or nothing: memory may not suffice

    def _signals(self, batch: int) -> list[Signal]:
        if batch not in self._views:
            self._views[batch] = [Signal(*(None if a is None else a[:batch] for a in
                                           (s.y, s.delta, s.row_largest, s.row_total))) for s in self._room]
        return self._views[batch]

    def forward(self, inputs: Mapping[str, Any], batch: int,
                training: tuple[int, int] | None = None) -> dict[str, Array]:
        """Run all layers on a loaded batch; returns the outputs' arrays on the device, valid until the next call.

        training: (seed, step) of the masks of dropout and denoising; None: no masks
        """
        signals = self._signals(batch)
        for name, node in self.inputs.items():
            signals[self._place[node]].y = inputs[name]
        for node, signal in zip(self.nodes, signals, strict=True):
            signal.key = None if training is None else stream_key(training[0], self._names[node], training[1])
            node.layer.forward([signals[self._place[source]] for source in node.inputs], signal)
        return {name: signals[self._place[node]].y for name, node in self.outputs.items()}

    def loss(self, targets: Mapping[str, Any], batch: int) -> float:
        """Mean over the batch of the sum over outputs and units, of the last forward pass."""
        total = 0.0
        for name, node in self.outputs.items():
            result = self._losses[:batch]
            node.layer.output_loss(self._signals(batch)[self._place[node]], self.losses[name], targets[name], result)
            total += float(self.device.fetch(result).sum())
        return total / batch

    def backward(self, targets: Mapping[str, Any], batch: int) -> None:
        """Add the gradient of the loss of the last forward pass to the parameters' gradients."""
        signals = self._signals(batch)
        names = {node: name for name, node in self.outputs.items()}
        for node in self._consumed:
            if signals[self._place[node]].delta is not None:
                clear(signals[self._place[node]].delta)
        for node in reversed(self.nodes):
            if isinstance(node.layer, InputLayer):
                continue
            signal = signals[self._place[node]]
            if node in names:
                name = names[node]
                node.layer.output_delta(signal, self.losses[name], targets[name], 1 / batch, node in self._consumed)
            else:
                node.layer.delta(signal)
            node.layer.backward([signals[self._place[source]] for source in node.inputs], signal)
