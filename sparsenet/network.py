"""A network: the nodes that layers made, in order, with their buffers on one device."""

from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from sparsenet import losses, model_files
from sparsenet.activations import Activation
from sparsenet.bfloat16 import SHORT, finite
from sparsenet.device import Device, device_of
from sparsenet.device import device as find_device
from sparsenet.feeding import Door, by_name
from sparsenet.heads import head_of, needs_head, why_plain
from sparsenet.kernels.tiles import PRECISIONS
from sparsenet.layers.base import Node, Parameter
from sparsenet.layers.feed import Feed
from sparsenet.layers.graph import (
    copied,
    name_layers,
    name_nodes,
    ordered,
    parameter_uses,
    sparse_weights,
)
from sparsenet.layers.input import InputLayer
from sparsenet.losses import Loss
from sparsenet.optimizers import Optimizer
from sparsenet.passes import Passes, Step
from sparsenet.seeds import stream_key
from sparsenet.storage import Storage, settings_on
from sparsenet.threads import exclusive

Nodes = Node | Sequence[Node] | Mapping[str, Node]
Matrices = Any  # a matrix, or a list of them, or a dict by name: as the nodes were given


class Network:
    """Layers from inputs to outputs, with a loss for each output.

    inputs, outputs  a node, a list of nodes, or a dict from names to nodes
    loss             a losses.Loss or its name; with several outputs, one for all or a list or dict like the outputs;
                     None for a network that only predicts
    seed             of initial weights, masks and the order of examples
    device           "cpu", "cuda", "simulator" or a Device; default: "cuda" where there is a GPU
    dtype            "float32"; "float64" for gradient checks, on a CPU
    precision        of dense products: "float32"; "bfloat16" rounds their operands where a processor gains by it (CPUs
                     with AVX-512 BF16, GPUs of compute capability 8.0 or more) and sums in float32; "tf32" is for such
                     GPUs too; elsewhere both are "float32". "cublas" is NVIDIA's, to compare with
    weights          "bfloat16": on a CPU, weights of streaming outputs and of sparse inputs are stored in 16 bits each,
                     rounded at random in every step so that small steps are not lost; all others in float32
    slots            "bfloat16": so is the optimizer's state of these weights
    streaming        True: train wide outputs without arrays as wide as they are; an error where it cannot be.
                     Default: those of 1,024 units and more that can. False: never. See `summary`
    deterministic    same seed, same bits, whatever the number of threads: every kernel sums in a fixed order.
                     False allows kernels that do not; there is none yet.

    Layers keep their weights: two networks over the same layers share them. Raises ValueError where the graph is not
    closed by its inputs, names repeat, or an output has no meaning for its loss.
    """

    def __init__(self, inputs: Nodes, outputs: Nodes, loss: Any = None, *, seed: int,
                 device: str | Device | None = None, dtype: str = "float32", precision: str = "float32",
                 weights: str = "float32", slots: str = "float32", streaming: bool | None = None,
                 deterministic: bool = True) -> None:
        self.device: Device = find_device(device)
        self.seed, self.deterministic, self.precision, self.streaming = seed, deterministic, precision, streaming
        if precision not in (*PRECISIONS, *(["cublas"] if self.device.name == "cuda" else [])):
            raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)}, or 'cublas' on CUDA, "
                             f"got {precision!r} on {self.device.name}")
        known = {"float32": np.float32} | ({"float64": np.float64} if self.device.name == "cpu" else {})
        self.dtype = next((np.dtype(one) for name, one in known.items() if dtype in (name, one)), None)
        if self.dtype is None:
            raise ValueError(f"dtype: expected 'float32', or 'float64' on the CPU, got {dtype!r} on {self.device.name}")
        self.storage = Storage(weights, slots, self.dtype, self.device)
        stream_key(seed, "")  # refuses what is no integer
        given_inputs, given_outputs = _listed(inputs, "inputs"), _listed(outputs, "outputs")
        self.nodes = ordered(list(given_outputs.values()), list(given_inputs.values()))
        self.layer_names = name_layers(self.nodes)
        self.names = name_nodes(self.nodes, self.layer_names)
        self.inputs, self.outputs = ({name if isinstance(name, str) else self.names[node]: node
                                      for name, node in given.items()} for given in (given_inputs, given_outputs))
        for name, node in self.outputs.items():
            if isinstance(node.layer, InputLayer):
                raise ValueError(f"output {name!r}: is an Input; expected the result of another layer")
        self.losses = self._match_losses(loss)
        self.plain = {name: why_plain(node, self.losses[name], self.nodes, self.dtype, streaming)
                      for name, node in self.outputs.items() if name in self.losses}
        """Of outputs with a loss, by name: why they do not stream; None where they do"""
        for name, reason in self.plain.items():
            if reason and streaming:
                raise ValueError(f"streaming: output {name!r} cannot: {reason}")
        self.storage.choose(self.nodes, [self.outputs[name] for name, reason in self.plain.items()
                                         if reason is None and not needs_head(self.losses[name])])
        self.parameters = self._collect_parameters()
        self.step = 0
        """Training steps made so far"""
        self.epoch = 0
        """Training epochs made so far"""
        self.optimizer: Optimizer | None = None
        heads = {name: head_of(self.outputs[name], self.losses[name], self.device, precision)
                 for name, reason in self.plain.items() if reason is None}
        self.passes = Passes(self.nodes, self.names, self.inputs, self.outputs, self.losses, heads, self.device,
                             self.dtype, precision)
        self._steps: Step | None = None
        self.streamed: frozenset[str] = frozenset()
        """Names of outputs that stream in training, since `prepare`"""

    # ---- declaration

    def _match_losses(self, loss: Any) -> dict[str, Loss]:
        if loss is None:
            return {}
        given = by_name(loss, self.outputs, "loss") if isinstance(loss, list | tuple | dict) else dict.fromkeys(
            self.outputs, loss)
        found = {name: losses.get(one) for name, one in given.items()}
        for name, node in self.outputs.items():
            try:
                node.layer.check_loss(found[name])
            except ValueError as error:
                raise ValueError(f"output {name!r}: {error}") from error
        return found

    def _collect_parameters(self) -> dict[str, Parameter]:
        found: dict[str, Parameter] = {}
        for layer in dict.fromkeys(node.layer for node in self.nodes):
            for name, parameter in layer.parameters.items():
                title = f"{self.layer_names[layer]}/{name}"
                found[title] = parameter
                if parameter.value is None:
                    parameter.initialize(self.device, layer.comm, stream_key(self.seed, title),
                                         self.storage.of_weights(parameter))
                elif device_of(parameter.value) is not self.device or not self.storage.fits(parameter):
                    raise ValueError(f"{title} belongs to a network on another device or of another dtype; "
                                     "network.copy(device=…, dtype=…) makes one with its own weights")
        return found

    # ---- weights

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Copies of all parameters as NumPy arrays, by name: weights (inputs, units), biases (units)."""
        return {name: p.fetch(self.device).reshape(-1) if p.bias else np.ascontiguousarray(p.fetch(self.device))
                for name, p in self.parameters.items()}

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Replace parameters by name. Raises ValueError for an unknown name, another shape, NaN or infinity."""
        self.put_weights(weights, as_stored=False)

    def put_weights(self, weights: Mapping[str, np.ndarray], as_stored: bool) -> None:
        """As set_weights; as_stored: uint16 are bfloat16."""
        checked = []
        for name, array in weights.items():
            if name not in self.parameters:
                raise ValueError(f"weights: no parameter {name!r}; there are {', '.join(self.parameters)}")
            target = self.parameters[name]
            shape = target.inputs, target.value.size // target.inputs
            if np.iscomplexobj(array):
                raise ValueError(f"weights: {name!r} is complex")
            if not as_stored or array.dtype != SHORT:
                with np.errstate(over="ignore"):  # what does not fit into float32 is infinite, and refused
                    array = np.asarray(array).astype(self.dtype)
            if array.shape != shape and not (target.bias and array.shape == shape[1:]):
                raise ValueError(f"weights: {name!r} has shape {array.shape}, expected {shape}")
            if not finite(array):
                raise ValueError(f"weights: {name!r} holds NaN or infinity")
            checked.append((target, array.reshape(shape)))
        for target, array in checked:
            target.write(self.device, array)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays on the device: parameters, gradients, optimizer state, buffers of the passes."""
        return sum(parameter.nbytes for parameter in self.parameters.values()) + self.passes.nbytes

    # ---- training and prediction

    def prepare(self, optimizer: Optimizer, *, keep_gradients: bool = False,
                dense_targets: Collection[str] = ()) -> None:
        """Allocate gradients and optimizer state. The state of an optimizer of this name is kept, another begins anew.

        keep_gradients  as arrays for all weights, those of sparse inputs and of streaming outputs too, which otherwise
                        need none
        dense_targets   names of outputs that cannot stream, as their targets are not sparse

        Raises TypeError for what is no Optimizer, ValueError for a lazy one where it cannot be.
        """
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer: expected an Optimizer, as optimizers.adam() makes one, got {optimizer!r}")
        sparse, uses = sparse_weights(self.nodes), parameter_uses(self.nodes)
        for name, parameter in self.parameters.items():
            if optimizer.lazy and parameter in sparse and uses[parameter] > 1:
                raise ValueError(f"optimizer: lazy=True is for weights of a sparse input that are used once; "
                                 f"{name} is used {uses[parameter]} times")
        for name in dense_targets:
            if needs_head(self.losses[name]):
                raise ValueError(f"targets {name!r}: a sampled or factored loss needs sparse ones")
        heads = self.passes.heads
        self.streamed = frozenset() if keep_gradients else frozenset(heads) - frozenset(dense_targets)
        streamed = {heads[name].layer.weights[0] for name in self.streamed}
        fused = set() if keep_gradients else {weight for weight in sparse if uses[weight] == 1}
        for name, parameter in self.parameters.items():
            if parameter.value.dtype == SHORT and parameter not in fused | streamed:
                raise ValueError(f"{name} is stored in bfloat16: that is for weights of a sparse input, used once, and "
                                 "of streaming outputs with sparse targets, without keep_gradients")
            slots = self.storage.of_slots(parameter) if parameter in fused | streamed else self.dtype
            parameter.prepare(self.device, optimizer, self, slots, fused=parameter in fused,
                              streamed=parameter in streamed)
        if self._steps is not None:
            self._steps.forget()  # they used gradients and state of before
        self._steps = Step(self.passes, self.parameters, optimizer, self.seed, self.streamed)
        self.optimizer = optimizer

    def train_batch(self, inputs: Mapping[str, Feed], targets: Mapping[str, Feed], rows: np.ndarray,
                    coming: np.ndarray | None = None) -> float:
        """One step of the optimizer that `prepare` got, on these examples; returns their mean loss before it.

        inputs, targets  feeds by name, see feeding.Door
        rows             (batch) int64, numbers of examples
        coming           the `rows` of the next call: a GPU loads them while it computes

        Raises ValueError before `prepare`.
        """
        if self.optimizer is None:
            raise ValueError("train_batch: call prepare(optimizer) first")
        if any(parameter.prepared_by is not self for parameter in self.parameters.values()):
            self.prepare(self.optimizer)  # another network trained a shared layer meanwhile
        dense = {name for name in self.streamed if not targets[name].sparse}
        if dense:
            self.prepare(self.optimizer, dense_targets=dense | (frozenset(self.passes.heads) - self.streamed))
        self.passes.allocate(len(rows), True, self.streamed)
        self.step += 1
        with exclusive if self.device.name == "cpu" else exclusive.lock:  # a GPU has no use for BLAS
            assert self._steps is not None
            return self._steps.run(inputs, targets, rows, self.step, coming)

    def settle(self) -> None:
        """Catch up the weights of sparse inputs that batches have not named of late, as reading them does.

        That rounds otherwise than if they had waited: `fit` does it after each epoch, so that all runs do.
        """
        for parameter in self.parameters.values():
            parameter.settle()

    def predict(self, inputs: Matrices, batch: int = 256) -> Any:
        """Outputs as NumPy arrays (examples, units): one, or a dict by name where the network has several.

        For recommendations use `recommend`, which never holds examples x units.
        """
        door = Door(self.device, self.dtype, batch)
        feeds = door.inputs(inputs, self.inputs)
        examples = int(door.examples or 0)
        found = {name: np.empty((examples, node.units), self.dtype) for name, node in self.outputs.items()}
        self.passes.allocate(min(batch, examples), training=False)
        for start in range(0, examples, batch):
            rows = np.arange(start, min(start + batch, examples))
            with exclusive:
                outputs = self.passes.forward({name: feed.load(rows) for name, feed in feeds.items()}, len(rows))
                for name, y in outputs.items():
                    found[name][rows] = self.device.fetch(y)
        return found if len(found) > 1 else next(iter(found.values()))

    def summary(self) -> str:
        """A table of the layers, which of them stream in training and why others do not."""
        return model_files.summary(self)

    # ---- files

    def save(self, path: str | PathLike[str], *, training: Mapping[str, Any] | None = None,
             arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Write a netCDF file that holds all that is needed to go on: layers, losses, weights, optimizer state, step,
        seed. The file appears whole or not at all. training, arrays: more to keep, see training.fit.

        Raises OSError where it cannot be written; ValueError for layers of your own class, and for weights that hold
        NaN or infinity: the file that was there stays.
        """
        model_files.save(self, path, training or {}, arrays or {})

    def describe(self) -> dict[str, Any]:
        """What the network computes, as a file has it: layers, connections, losses, seed and dtype."""
        return model_files.describe_network(self)

    @classmethod
    def load(cls, path: str | PathLike[str], *, device: str | Device | None = None,
             own: Mapping[str, Activation | Loss] | None = None) -> "Network":
        """The network in a file. own: activations and losses that are not sparsenet's, by name.

        Raises FileNotFoundError, and ValueError for a file that holds no sparsenet network or needs `own`.
        """
        return model_files.load(cls, path, device, own or {})

    def copy(self, *, dtype: str | None = None, device: str | Device | None = None) -> "Network":
        """The same network with its own weights, on another device or of another dtype; optimizer state is left."""
        twins = copied(self.nodes)
        inputs, outputs = ({name: twins[node] for name, node in end.items()} for end in (self.inputs, self.outputs))
        twin = Network(inputs, outputs, self.losses or None, seed=self.seed, device=device or self.device,
                       dtype=dtype or str(self.dtype), precision=self.precision,
                       streaming=None if dtype else self.streaming, deterministic=self.deterministic,
                       **({} if dtype else settings_on(find_device(device or self.device), self.storage.settings)))
        twin.set_weights(self.weights)
        twin.step, twin.epoch = self.step, self.epoch
        return twin

    def restore(self, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Take over weights, optimizer state and counters of a file. Raises ValueError where they do not fit."""
        model_files.restore(self, description, arrays)


def _listed(nodes: Nodes, what: str) -> dict[str | int, Node]:
    """Nodes by their given names, or by number."""
    found: dict[str | int, Any] = {}
    if isinstance(nodes, Mapping):
        found.update(nodes)
    else:
        found.update(enumerate(nodes if isinstance(nodes, list | tuple) else [nodes]))
    if not found or not all(isinstance(node, Node) for node in found.values()):
        raise TypeError(f"{what}: expected a layer's result, a list or a dict of them, got {nodes!r}")
    if len(set(found.values())) < len(found):
        raise ValueError(f"{what}: the same node twice")
    return found
