"""A network: the nodes that layers made, in order, with their buffers on one device."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsenet import losses, optimizers
from sparsenet.activations import Activation
from sparsenet.data.arrays import read_arrays, write_arrays
from sparsenet.data.dataset import canonical
from sparsenet.device import Device, device_of
from sparsenet.device import device as find_device
from sparsenet.layers.base import Node, Parameter
from sparsenet.layers.feed import Feed
from sparsenet.layers.graph import copied, describe, find, name_nodes, ordered, rebuild
from sparsenet.layers.input import InputLayer
from sparsenet.losses import Loss
from sparsenet.optimizers import Optimizer
from sparsenet.passes import Passes
from sparsenet.seeds import stream_key

Nodes = Node | Sequence[Node] | Mapping[str, Node]
Matrices = Any  # a matrix, or a list of them, or a dict by name: as the nodes were given


class Network:
    """Layers from inputs to outputs, with a loss for each output.

    inputs, outputs  a node, a list of nodes, or a dict from names to nodes
    loss             a losses.Loss or its name; with several outputs, one for all or a list or dict like the outputs;
                     None for a network that only predicts
    seed             of initial weights, masks and the order of examples
    device           "cpu", "cuda" or "simulator"; default: "cuda" where there is a GPU
    dtype            "float32"; "float64" for gradient checks, on a CPU
    deterministic    same seed, same bits, whatever the number of threads: every kernel sums in a fixed order.
                     False allows kernels that do not; there is none yet.

    Layers keep their weights: two networks over the same layers share them. Raises ValueError where the graph is not
    closed by its inputs, names repeat, or an output has no meaning for its loss.
    """

    def __init__(self, inputs: Nodes, outputs: Nodes, loss: Any = None, *, seed: int, device: str | None = None,
                 dtype: str = "float32", deterministic: bool = True) -> None:
        self.device: Device = find_device(device)
        self.seed, self.deterministic = seed, deterministic
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64) or (self.dtype == np.float64 and self.device.name != "cpu"):
            raise ValueError(f"dtype: expected 'float32', or 'float64' on the CPU, got {dtype!r} on {self.device.name}")
        stream_key(seed, "")  # refuses what is no integer
        given_inputs, given_outputs = _listed(inputs, "inputs"), _listed(outputs, "outputs")
        self.nodes = ordered(list(given_outputs.values()), list(given_inputs.values()))
        name_nodes(self.nodes)
        self.inputs, self.outputs = _named(given_inputs), _named(given_outputs)
        for name, node in self.outputs.items():
            if isinstance(node.layer, InputLayer):
                raise ValueError(f"output {name!r}: is an Input; expected the result of another layer")
        self.losses = self._match_losses(loss)
        self.parameters = self._collect_parameters()
        self.step = 0
        """Training steps made so far"""
        self.epoch = 0
        """Training epochs made so far"""
        self.optimizer: Optimizer | None = None
        self.trained_with: dict[str, Any] | None = None
        """Description of the optimizer whose state the parameters hold"""
        self.passes = Passes(self.nodes, self.inputs, self.outputs, self.losses, self.device, self.dtype)

    # ---- declaration

    def _match_losses(self, loss: Any) -> dict[str, Loss]:
        if loss is None:
            return {}
        given = self.by_name(loss, self.outputs, "loss") if isinstance(loss, list | tuple | dict) else dict.fromkeys(
            self.outputs, loss)
        found = {name: losses.get(one) for name, one in given.items()}
        for name, node in self.outputs.items():
            if getattr(node.layer, "dropout", 0):
                raise ValueError(f"output {name!r}: a layer with dropout cannot have a loss")
            found[name].through(node.layer.activation)  # type: ignore[attr-defined]
        return found

    def _collect_parameters(self) -> dict[str, Parameter]:
        found: dict[str, Parameter] = {}
        for layer in dict.fromkeys(node.layer for node in self.nodes):
            for name, parameter in layer.parameters.items():
                parameter.name = f"{layer.name}/{name}"
                found[parameter.name] = parameter
                if parameter.value is None:
                    parameter.initialize(self.device, layer.comm, self.seed, self.dtype)
                elif device_of(parameter.value) is not self.device or parameter.value.dtype != self.dtype:
                    raise ValueError(f"{parameter.name} belongs to a network on another device or of another dtype")
        return found

    @staticmethod
    def by_name(values: Any, nodes: dict[str, Node], what: str) -> dict[str, Any]:
        """Values given as one, as a list in the nodes' order or as a dict, as a dict. Raises ValueError."""
        if isinstance(values, Mapping):
            if set(values) != set(nodes):
                raise ValueError(f"{what}: expected {', '.join(nodes)}, got {', '.join(map(str, values))}")
            return {name: values[name] for name in nodes}
        if len(nodes) == 1 and not (isinstance(values, list | tuple) and len(values) == 1):
            return {next(iter(nodes)): values}
        if not isinstance(values, list | tuple) or len(values) != len(nodes):
            raise ValueError(f"{what}: expected {len(nodes)}, for {', '.join(nodes)}, as a list or a dict")
        return dict(zip(nodes, values, strict=True))

    # ---- weights

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """Copies of all parameters as NumPy arrays, by name: weights (inputs, units), biases (units)."""
        return {name: self.device.fetch(p.value).reshape(p.value.shape if p.decays else p.value.shape[1:])
                for name, p in self.parameters.items()}

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Replace parameters by name. Raises ValueError for an unknown name, another shape, NaN or infinity."""
        checked = []
        for name, array in weights.items():
            if name not in self.parameters:
                raise ValueError(f"weights: no parameter {name!r}; there are {', '.join(self.parameters)}")
            target = self.parameters[name].value
            with np.errstate(over="ignore"):  # what does not fit into float32 is infinite, and refused
                array = np.asarray(array).astype(self.dtype)
            if array.size != np.prod(target.shape) or array.shape not in (target.shape, target.shape[1:]):
                raise ValueError(f"weights: {name!r} has shape {array.shape}, expected {tuple(target.shape)}")
            if not np.isfinite(array).all():
                raise ValueError(f"weights: {name!r} holds NaN or infinity")
            checked.append((target, array.reshape(target.shape)))
        for target, array in checked:
            self.device.write(target, array)

    # ---- data

    def feeds(self, matrices: Matrices, nodes: dict[str, Node], what: str, batch: int) -> dict[str, Feed]:
        """Room for batches of checked matrices.

        Raises ValueError where a matrix does not fit its node, or batch is no positive integer.
        """
        if isinstance(batch, bool) or not isinstance(batch, int | np.integer) or batch < 1:
            raise ValueError(f"batch: expected a positive integer, got {batch!r}")
        found: dict[str, Feed] = {}
        examples: dict[str, int] = {}
        for name, value in self.by_name(matrices, nodes, what).items():
            matrix = canonical(value, f"{what} {name!r}")
            if matrix.shape[1] != nodes[name].units:
                raise ValueError(f"{what} {name!r}: has {matrix.shape[1]} columns, but the layer {nodes[name].name!r} "
                                 f"has {nodes[name].units} units")
            layer = nodes[name].layer
            if isinstance(layer, InputLayer) and layer.sparse and not sp.issparse(matrix):
                matrix = canonical(sp.csr_array(matrix), what)
            if isinstance(layer, InputLayer) and not layer.sparse and sp.issparse(matrix):
                raise ValueError(f"{what} {name!r}: is sparse; declare its layer with Input(..., sparse=True)")
            examples[name] = matrix.shape[0]
            found[name] = Feed(matrix, self.device, self.dtype, min(batch, matrix.shape[0]),
                               length_one=isinstance(layer, InputLayer) and layer.normalize,
                               sum_one=what == "targets" and self.losses[name].normalize)
        if len(set(examples.values())) > 1:
            raise ValueError(f"{what}: different numbers of examples, "
                             + ", ".join(f"{name} has {n}" for name, n in examples.items()))
        return found

    # ---- training and prediction

    def prepare(self, optimizer: Optimizer, keep_gradients: bool = False) -> None:
        """Allocate gradients and optimizer state. The state of the same optimizer is kept, another begins anew.

        keep_gradients: also as arrays for weights of sparse inputs, whose update otherwise sums them on the way.

        Raises TypeError for what is no Optimizer.
        """
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer: expected an Optimizer, as optimizers.adam() makes one, got {optimizer!r}")
        if self.trained_with != optimizers.describe(optimizer):
            self.trained_with, self.step = optimizers.describe(optimizer), 0
        self.optimizer = optimizer
        uses = Counter(parameter for node in self.nodes for parameter in node.layer.parameters.values())
        fused = {node.layer.weight_of(i) for node in self.nodes for i, source in enumerate(node.inputs)
                 if source.sparse}
        for parameter in self.parameters.values():
            once = parameter in fused and uses[parameter] == 1
            parameter.prepare(self.device, optimizer, fused=once and not keep_gradients)

    def train_batch(self, inputs: Mapping[str, Feed], targets: Mapping[str, Feed], rows: np.ndarray) -> float:
        """One step of the optimizer that `prepare` got, on these examples; returns their mean loss before it."""
        assert self.optimizer is not None
        self.step += 1
        loaded = {feed: feed.load(rows) for feed in {*inputs.values(), *targets.values()}}
        wanted = {name: loaded[feed] for name, feed in targets.items()}
        self.passes.forward({name: loaded[feed] for name, feed in inputs.items()}, len(rows), (self.seed, self.step))
        loss = self.passes.loss(wanted, len(rows))
        self.passes.backward(wanted, len(rows))
        for parameter in self.parameters.values():
            parameter.update(self.optimizer, self.step)
        return loss

    def batches(self, inputs: Matrices, batch: int = 256) -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
        """(row numbers, outputs by name as arrays on the device) for consecutive batches of examples."""
        feeds = self.feeds(inputs, self.inputs, "inputs", batch)
        examples = next(iter(feeds.values())).matrix.shape[0]
        batch = min(batch, examples)
        self.passes.allocate(batch, training=False)
        for start in range(0, examples, batch):
            rows = np.arange(start, min(start + batch, examples))
            yield rows, self.passes.forward({name: feed.load(rows) for name, feed in feeds.items()}, len(rows))

    def predict(self, inputs: Matrices, batch: int = 256) -> Any:
        """Outputs as NumPy arrays (examples, units): one, or a dict by name where the network has several.

        For recommendations use `recommend`, which never holds examples x units.
        """
        parts: dict[str, list[np.ndarray]] = {name: [] for name in self.outputs}
        for _, outputs in self.batches(inputs, batch):
            for name, y in outputs.items():
                parts[name].append(self.device.fetch(y))
        found = {name: np.concatenate(arrays) for name, arrays in parts.items()}
        return found if len(found) > 1 else next(iter(found.values()))

    def summary(self) -> str:
        """A table of the layers."""
        first = max(16, *(len(node.name) + 2 for node in self.nodes))
        second = max(24, *(len(", ".join(i.name for i in node.inputs)) + 2 for node in self.nodes))
        lines = [f"{'node':<{first}}{'reads':<{second}}{'units':>10}{'parameters':>14}  activation"]
        for node in self.nodes:
            count = sum(p.inputs * p.units for p in node.layer.parameters.values())
            activation = getattr(node.layer, "activation", None)
            kind = activation.name if activation else "sparse" if node.sparse else "dense"
            reads = ", ".join(i.name for i in node.inputs)
            lines.append(f"{node.name:<{first}}{reads:<{second}}{node.units:>10,}{count:>14,}  {kind}")
        total = sum(p.inputs * p.units for p in self.parameters.values())
        lines.append(f"{total:,} parameters of {self.dtype} on {self.device.name}")
        return "\n".join(lines)

    # ---- files

    def save(self, path: str | PathLike[str], *, training: Mapping[str, Any] | None = None,
             arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Write a netCDF file that holds all that is needed to go on: layers, losses, weights, optimizer state, step,
        seed. The file appears whole or not at all. training, arrays: more to keep, see training.fit.

        Raises OSError where it cannot be written, ValueError for layers of your own class.
        """
        kept = {f"weight {name}": self.device.fetch(p.value) for name, p in self.parameters.items()}
        kept |= {f"slots {name}": self.device.fetch(p.slots) for name, p in self.parameters.items()
                 if p.slots is not None and p.slots.shape[0]}
        write_arrays(path, {
            **describe(self.nodes),
            "inputs": {name: self.nodes.index(node) for name, node in self.inputs.items()},
            "outputs": {name: self.nodes.index(node) for name, node in self.outputs.items()},
            "losses": {name: {"name": one.name, "settings": None if one.settings is None else dict(one.settings)}
                       for name, one in self.losses.items()},
            "seed": int(self.seed), "dtype": str(self.dtype), "deterministic": self.deterministic,
            "step": self.step, "epoch": self.epoch, "trained_with": self.trained_with, "training": training or {},
        }, {**kept, **(arrays or {})})

    @classmethod
    def load(cls, path: str | PathLike[str], *, device: str | None = None,
             own: Mapping[str, Activation | Loss] | None = None) -> "Network":
        """The network in a file. own: activations and losses that are not sparsenet's, by name.

        Raises FileNotFoundError, and ValueError for a file that holds no sparsenet network or needs `own`.
        """
        description, arrays = read_arrays(path)
        try:
            nodes = rebuild(description, own or {})
            found = {name: find(entry, losses.LOSSES, own or {}, "loss")
                     for name, entry in description["losses"].items()}
            inputs, outputs = ({name: nodes[i] for name, i in description[end].items()}
                               for end in ("inputs", "outputs"))
            network = cls(inputs, outputs, found or None, seed=description["seed"], device=device,
                          dtype=description["dtype"], deterministic=description["deterministic"])
            network.restore(description, arrays)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: not a network that this version can read ({error!r})") from error
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        return network

    def copy(self, *, dtype: str | None = None, device: str | None = None) -> "Network":
        """The same network with its own weights, on another device or of another dtype; optimizer state is left."""
        twins = copied(self.nodes)
        inputs, outputs = ({name: twins[node] for name, node in end.items()} for end in (self.inputs, self.outputs))
        twin = Network(inputs, outputs, self.losses or None, seed=self.seed, device=device or self.device.name,
                       dtype=dtype or str(self.dtype), deterministic=self.deterministic)
        twin.set_weights(self.weights)
        twin.step, twin.epoch = self.step, self.epoch
        return twin

    def restore(self, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Take over weights, optimizer state and counters of a file. Raises ValueError where they do not fit."""
        self.set_weights({name: arrays[f"weight {name}"] for name in self.parameters})
        for name, parameter in self.parameters.items():
            slots = arrays.get(f"slots {name}")
            if slots is not None and slots.shape[1:] != parameter.value.shape:
                raise ValueError(f"optimizer state of {name!r} has shape {slots.shape[1:]}")
            parameter.slots = None if slots is None else self.device.put(slots.astype(self.dtype))
            parameter.trained_with = description["trained_with"]
        self.step, self.epoch = int(description["step"]), int(description["epoch"])
        self.trained_with = description["trained_with"]


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


def _named(nodes: dict[str | int, Node]) -> dict[str, Node]:
    """Nodes by given names, else by their own."""
    return {name if isinstance(name, str) else node.name: node for name, node in nodes.items()}
