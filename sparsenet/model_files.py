"""Networks in netCDF files, and as text."""

import json
from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np

from sparsenet import losses
from sparsenet.activations import Activation
from sparsenet.bfloat16 import finite
from sparsenet.data.arrays import as_json, read_arrays, write_arrays
from sparsenet.device import Device
from sparsenet.device import device as find_device
from sparsenet.layers.graph import describe, find, rebuild
from sparsenet.losses import Loss
from sparsenet.storage import settings_on
from sparsenet.vectors import told


def summary(network: Any) -> str:
    """A table of the layers."""
    reads = {node: ", ".join(network.names[source] for source in node.inputs) for node in network.nodes}
    first = max(16, *(len(name) + 2 for name in network.names.values()))
    second = max(24, *(len(names) + 2 for names in reads.values()))
    lines = [f"{'node':<{first}}{'reads':<{second}}{'units':>10}{'parameters':>14}  activation"]
    for node in network.nodes:
        count = sum(p.inputs * p.units for p in node.layer.parameters.values())
        activation = node.layer.activation
        kind = activation.name if activation else "sparse" if node.sparse else "dense"
        for name, output in network.outputs.items():
            if node is output and name in network.plain:
                reason = network.plain[name]
                kind += f"; plain: {reason}" if reason else "; streaming"
        lines.append(f"{network.names[node]:<{first}}{reads[node]:<{second}}{node.units:>10,}{count:>14,}  {kind}")
    total = sum(p.inputs * p.units for p in network.parameters.values())
    vectors = f", {told()}" if network.device.name == "cpu" else ""
    lines.append(f"{total:,} parameters of {network.dtype} on {network.device.name}{vectors}")
    return "\n".join([*lines, *network.storage.told(network.parameters)])


def save(network: Any, path: str | PathLike[str], training: Mapping[str, Any],
         arrays: Mapping[str, np.ndarray]) -> None:
    """See Network.save."""
    kept = {f"weight {name}": p.fetch(network.device, as_stored=True) for name, p in network.parameters.items()}
    for title, array in kept.items():
        if not finite(array):
            raise ValueError(f"save: {title} holds NaN or infinity; {path} was not written")
    kept |= {f"slots {name}": p.fetch_slots(network.device) for name, p in network.parameters.items()
             if p.slots is not None and p.slots.shape[0]}
    write_arrays(path, {
        **network.describe(), "deterministic": network.deterministic,
        "precision": network.precision.replace("cublas", "float32"),  # a file is read on any device
        "storage": network.storage.settings,
        "step": network.step, "epoch": network.epoch, "training": training,
        "parameters": {name: {"trained_with": p.trained_with, "step": p.step}
                       for name, p in network.parameters.items()},
    }, {**kept, **arrays})


def describe_network(network: Any) -> dict[str, Any]:
    """See Network.describe."""
    return json.loads(as_json({
        **describe(network.nodes, network.layer_names),
        "inputs": {name: network.nodes.index(node) for name, node in network.inputs.items()},
        "outputs": {name: network.nodes.index(node) for name, node in network.outputs.items()},
        "losses": {name: {"name": one.name, "settings": None if one.settings is None else dict(one.settings)}
                   for name, one in network.losses.items()},
        "seed": int(network.seed), "dtype": str(network.dtype),
    }))


def load(kind: Any, path: str | PathLike[str], device: str | Device | None,
         own: Mapping[str, Activation | Loss]) -> Any:
    """See Network.load."""
    description, arrays = read_arrays(path)
    try:
        nodes = rebuild(description, own)
        found = {name: find(entry, losses.LOSSES, own, "loss")
                 for name, entry in description["losses"].items()}
        inputs, outputs = ({name: nodes[i] for name, i in description[end].items()}
                           for end in ("inputs", "outputs"))
        network = kind(inputs, outputs, found or None, seed=description["seed"], device=device,
                      dtype=description["dtype"], precision=description["precision"],
                      deterministic=description["deterministic"],
                      **settings_on(find_device(device), description.get("storage", {})))
        network.restore(description, arrays)
    except (KeyError, IndexError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path}: not a network that this version can read ({error!r})") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return network


def restore(network: Any, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """See Network.restore."""
    slots = {name: arrays.get(f"slots {name}", np.zeros((0, p.inputs, p.value.size // p.inputs), network.dtype))
             for name, p in network.parameters.items()}
    states = {name: description["parameters"][name] for name in network.parameters}
    step, epoch = int(description["step"]), int(description["epoch"])
    for name, parameter in network.parameters.items():
        if slots[name].shape[1:] != (parameter.inputs, parameter.value.size // parameter.inputs):
            raise ValueError(f"optimizer state of {name!r} has shape {slots[name].shape[1:]}")
    network.put_weights({name: arrays[f"weight {name}"] for name in network.parameters}, as_stored=True)
    for name, parameter in network.parameters.items():
        parameter.put_slots(network.device, slots[name], network.storage.of_slots(parameter))
        parameter.trained_with, parameter.step = states[name]["trained_with"], int(states[name]["step"])
        parameter.prepared_by = None
    network.step, network.epoch = step, epoch
