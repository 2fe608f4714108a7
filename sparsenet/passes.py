"""Forward and backward passes over the nodes of a network, the buffers they use, and training steps made of them."""

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparsenet.device import Array, Device
from sparsenet.heads import AnyHead
from sparsenet.kernels.tiles import SCRATCH
from sparsenet.kernels.update import ROOM, clear
from sparsenet.layers.base import Node, Parameter, Signal
from sparsenet.layers.feed import Feed
from sparsenet.layers.input import InputLayer
from sparsenet.losses import Loss
from sparsenet.optimizers import Optimizer
from sparsenet.seeds import stream_key
from sparsenet.threads import exclusive


class Passes:
    """Nodes in order, each with its buffers for one batch. Nothing is allocated in a pass."""

    def __init__(self, nodes: Sequence[Node], names: Mapping[Node, str], inputs: Mapping[str, Node],
                 outputs: Mapping[str, Node], losses: Mapping[str, Loss], heads: Mapping[str, AnyHead], device: Device,
                 dtype: Any, precision: str) -> None:
        self.nodes, self.inputs, self.outputs, self.losses = nodes, inputs, outputs, losses
        self.heads = heads
        """Of outputs that can stream, by name"""
        self.device, self.dtype = device, dtype
        self._names = names
        self._place = {node: i for i, node in enumerate(nodes)}
        self._consumed = {source for node in nodes for source in node.inputs}
        self._room: list[Signal] = []
        self._views: dict[int, list[Signal]] = {}
        self._batch, self._trained, self._streamed = 0, False, frozenset(outputs)
        self._losses: Array = None
        self._losses_read: np.ndarray = np.zeros(0)
        self._drawn, self._keys = device.staging(len(nodes), np.uint64), device.zeros(len(nodes), np.uint64)
        self._key_of = [self._keys[i:i + 1] for i in range(len(nodes))]
        # A CPU's products are BLAS's, which has working memory of its own.
        self._products = precision, None if device.name == "cpu" else device.zeros(SCRATCH, dtype)

    def allocate(self, batch: int, training: bool, streamed: Collection[str] = ()) -> None:
        """Make the buffers for batches of up to `batch` examples; never in the midst of another thread's batch.

        streamed  names of outputs that need none of their own: they stream, or nobody asks for them
        """
        with exclusive:
            self._allocate(batch, training, self._streamed & frozenset(streamed))

    def _allocate(self, batch: int, training: bool, streamed: frozenset[str]) -> None:
        if batch <= self._batch and (self._trained or not training) and streamed == self._streamed:
            return
        batch, training = max(batch, self._batch), training or self._trained
        zeros, room = self.device.zeros, []
        without = {self.outputs[name] for name in streamed}
        for node in self.nodes:
            if isinstance(node.layer, InputLayer) or node in without:
                room.append(Signal(None))
                continue
            first, stop = node.layer.comm.bounds(node.units)
            shape = (batch, stop - first)
            room.append(Signal(zeros(shape, self.dtype), zeros(shape, self.dtype) if training else None,
                               zeros(batch, self.dtype), zeros(batch, self.dtype), *self._products))
        losses = zeros((len(self.outputs), batch), np.float64)
        read = self.device.staging((len(self.outputs), batch), np.float64)
        for head in self.heads.values() if training else ():
            head.allocate(batch)
        self._room, self._views, self._batch = room, {}, batch  # all or nothing: memory may not suffice
        self._losses, self._losses_read = losses, read
        self._trained, self._streamed = training, streamed

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        arrays = [self._products[1], *(array for s in self._room for array in (s.y, s.delta))]
        own = sum(array.size * array.dtype.itemsize for array in arrays if array is not None)
        return own + sum(head.nbytes for head in self.heads.values())

    @property
    def buffers(self) -> object:
        """Another object whenever the buffers are others."""
        return self._room

    def _signals(self, batch: int) -> list[Signal]:
        if batch not in self._views:
            self._views[batch] = [_leading(signal, batch) for signal in self._room]
        return self._views[batch]

    def draw(self, seed: int, step: int) -> None:
        """Choose the masks of dropout and denoising of a step, for the forward passes to come."""
        self._drawn[:] = [stream_key(seed, self._names[node], step) for node in self.nodes]

    def forward(self, inputs: Mapping[str, Any], batch: int, training: bool = False,
                without: Collection[str] = ()) -> dict[str, Array]:
        """Run all layers on a loaded batch; returns the outputs' arrays on the device, valid until the next call.

        training  with the masks of the last `draw`
        without   names of outputs that are left out
        """
        signals = self._signals(batch)
        if training:
            self.device.write(self._keys, self._drawn)
        for name, node in self.inputs.items():
            signals[self._place[node]].y = inputs[name]
        left_out = {self.outputs[name] for name in without}
        for node, signal, key in zip(self.nodes, signals, self._key_of, strict=True):
            signal.key = key if training else None
            if node not in left_out:
                node.layer.forward([signals[self._place[source]] for source in node.inputs], signal)
        return {name: signals[self._place[node]].y for name, node in self.outputs.items() if node not in left_out}

    def inputs_of(self, output: str, batch: int) -> list[Signal]:
        """What an output's layer reads, of the last forward pass."""
        signals = self._signals(batch)
        return [signals[self._place[source]] for source in self.outputs[output].inputs]

    def loss(self, targets: Mapping[str, Any], batch: int, without: Collection[str] = ()) -> None:
        """Compute the losses of the last forward pass, but those of streamed outputs; see `mean_loss`."""
        for i, (name, node) in enumerate(self.outputs.items()):
            if name not in without:
                node.layer.output_loss(self._signals(batch)[self._place[node]], self.losses[name], targets[name],
                                       self._losses[i, :batch])
        self.device.read(self._losses, self._losses_read)

    def mean_loss(self, batch: int) -> float:
        """Mean over the batch of the sum over outputs and units, of the last `loss`, after Device.wait."""
        return sum(float(losses[:batch].sum()) for losses in self._losses_read) / batch

    def backward(self, targets: Mapping[str, Any], batch: int, streamed: Mapping[str, Array] | None = None) -> None:
        """Add the gradient of the loss of the last forward pass to the parameters' gradients.

        streamed  for outputs that stream, the numbers of the optimizer's step: they make theirs at once
        """
        signals = self._signals(batch)
        names = {node: name for name, node in self.outputs.items()}
        for node in self._consumed:
            if signals[self._place[node]].delta is not None:
                clear(signals[self._place[node]].delta)
        for node in reversed(self.nodes):
            if isinstance(node.layer, InputLayer):
                continue
            signal, name = signals[self._place[node]], names.get(node)
            if name is not None and streamed and name in streamed:
                [source] = self.inputs_of(name, batch)
                self.heads[name].step(source, targets[name], 1 / batch, streamed[name],
                                      self._losses[list(self.outputs).index(name), :batch], signal.key)
                continue
            if name is not None:
                node.layer.output_delta(signal, self.losses[name], targets[name], 1 / batch, node in self._consumed)
            else:
                node.layer.delta(signal)
            node.layer.backward([signals[self._place[source]] for source in node.inputs], signal)


def _leading(signal: Signal, batch: int) -> Signal:
    """The rows of the first examples."""
    arrays = {name: getattr(signal, name) for name in ("y", "delta", "row_largest", "row_total")}
    return replace(signal, **{name: array[:batch] for name, array in arrays.items() if array is not None})


_MOST_CAPTURED = 16  # steps, each for a size of batch and rooms


class Step:
    """Training steps with one optimizer, each a single call of the device once it has been made before.

    streamed: names of outputs that stream. These make their loss, gradients and update at once.

    On a GPU no launch of a step differs from the one before, only what is in the arrays does. What changes from step to
    step, besides the batch, is written to two of them at its beginning: random keys, and the numbers of the optimizer's
    rule.
    """

    def __init__(self, passes: Passes, parameters: Mapping[str, Parameter], optimizer: Optimizer, seed: int,
                 streamed: Collection[str]) -> None:
        self._passes, self._device, self._seed = passes, passes.device, seed
        self._streamed = {name: passes.heads[name].layer.weights[0] for name in streamed}
        for name in streamed:
            passes.heads[name].prepare(optimizer)
        self._names, self._parameters, self._optimizer = list(parameters), list(parameters.values()), optimizer
        shape = len(parameters), len(ROOM)
        self._numbers = self._device.staging(shape, passes.dtype)
        self._scalars = self._device.zeros(shape, passes.dtype)
        self._scalars_of = [self._scalars[i] for i in range(len(parameters))]
        self._captured: dict[tuple[int, ...], Callable[[], None]] = {}
        self._buffers: object = None

    def forget(self) -> None:
        """Let go of the arrays of all steps made so far."""
        self._captured.clear()

    def run(self, inputs: Mapping[str, Feed], targets: Mapping[str, Feed], rows: np.ndarray, number: int,
            coming: np.ndarray | None) -> float:
        """Train on some examples; returns their mean loss before it.

        number  of the step, from 1, for its random keys
        coming  examples of the step after it, which are loaded while a GPU computes
        """
        feeds = {*inputs.values(), *targets.values()}
        try:
            loaded = {feed: feed.load(rows) for feed in feeds}
            self._passes.draw(self._seed, number)
            for name, numbers, parameter in zip(self._names, self._numbers, self._parameters, strict=True):
                scalars = self._optimizer.scalars(parameter.step + 1)
                numbers[:self._optimizer.numbers] = scalars
                parameter.begin_step(scalars, stream_key(self._seed, name, number))
            self._launch({name: loaded[feed] for name, feed in inputs.items()},
                         {name: loaded[feed] for name, feed in targets.items()}, len(rows), feeds)
            for parameter in self._parameters:
                parameter.step += 1
            if coming is not None:
                for feed in feeds:
                    feed.load_ahead(coming)
        finally:
            self._device.wait()  # even if the user interrupts: the next step writes what this one reads
        return self._passes.mean_loss(len(rows))

    def _launch(self, given: dict[str, Any], wanted: dict[str, Any], batch: int, feeds: set[Feed]) -> None:
        if self._buffers is not self._passes.buffers:
            self.forget()
            self._buffers = self._passes.buffers
        key = batch, *map(id, given.values()), *map(id, wanted.values())
        again = self._captured.get(key)
        if again is not None:
            again()
            return
        if len(self._captured) == _MOST_CAPTURED:
            self.forget()
        self._captured[key] = self._device.capture(lambda: self._compute(given, wanted, batch))
        for feed in feeds:
            weakref.finalize(feed, self.forget).atexit = False  # it owns what is given and wanted

    def _compute(self, given: dict[str, Any], wanted: dict[str, Any], batch: int) -> None:
        self._device.write(self._scalars, self._numbers)
        scalars = dict(zip(self._parameters, self._scalars_of, strict=True))
        updated = {p for name in self._streamed for p in self._passes.heads[name].layer.parameters.values()}
        self._passes.forward(given, batch, True, self._streamed)
        self._passes.backward(wanted, batch, {name: scalars[weight] for name, weight in self._streamed.items()})
        for parameter in self._parameters:
            if parameter not in updated:
                parameter.update(self._optimizer, scalars[parameter])
        self._passes.loss(wanted, batch, self._streamed)
