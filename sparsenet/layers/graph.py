"""The graph that calling layers on each other makes: its order, its names, and its description in a model file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from sparsenet.activations import ACTIVATIONS, Activation
from sparsenet.initializers import INITIALIZERS, Initializer
from sparsenet.layers.base import Layer, Node, Parameter
from sparsenet.layers.dense import Dense
from sparsenet.layers.input import InputLayer

LAYERS: dict[str, type[Layer]] = {"Input": InputLayer, "Dense": Dense}
"""Names in model files."""


def ordered(outputs: Sequence[Node], inputs: Sequence[Node]) -> list[Node]:
    """All nodes that the outputs need, each after its inputs.

    Raises ValueError where an input of the network is not among `inputs`, or one of those is not needed.
    """
    order: list[Node] = []
    done: set[Node] = set()
    waiting = list(reversed(outputs))
    while waiting:
        node = waiting[-1]
        missing = [source for source in node.inputs if source not in done]
        if node in done:
            waiting.pop()
        elif missing:
            waiting.extend(reversed(missing))
        else:
            done.add(node)
            order.append(waiting.pop())
    needed = {node for node in order if isinstance(node.layer, InputLayer)}
    if needed - set(inputs):
        raise ValueError(f"inputs: the outputs also need {len(needed - set(inputs))} Input that is not listed")
    if set(inputs) - needed:
        raise ValueError("inputs: an input that no output needs, or that is no Input")
    return order


def name_layers(nodes: Sequence[Node]) -> dict[Layer, str]:
    """Names of layers: those they were given, else kind and place (input1, dense1, dense2).

    Raises ValueError where two layers were given one name.
    """
    layers = list(dict.fromkeys(node.layer for node in nodes))
    taken = Counter(layer.name for layer in layers if layer.name)
    if taken and max(taken.values()) > 1:
        raise ValueError(f"name: two layers are called {taken.most_common(1)[0][0]!r}")
    names: dict[Layer, str] = {}
    for layer in layers:
        kind = _kind(layer).lower()
        free = (name for i in count(1) if (name := f"{kind}{i}") not in taken)
        names[layer] = layer.name or next(free)
        taken[names[layer]] = 1
    return names


def name_nodes(nodes: Sequence[Node], layers: Mapping[Layer, str]) -> dict[Node, str]:
    """Names of nodes: their layers', with a number from a layer's second use on (dense1, dense1.2).

    Raises ValueError where a layer was given the name of such a use.
    """
    uses: Counter[Layer] = Counter()
    names = {}
    for node in nodes:
        uses[node.layer] += 1
        names[node] = layers[node.layer] + (f".{uses[node.layer]}" if uses[node.layer] > 1 else "")
    name, times = Counter(names.values()).most_common(1)[0]
    if times > 1:
        raise ValueError(f"name: a layer is called {name!r}, as is the repeated use of another")
    return names


def _kind(layer: Layer) -> str:
    for kind, cls in LAYERS.items():
        if type(layer) is cls:
            return kind
    return type(layer).__name__


def parameter_uses(nodes: Sequence[Node]) -> Counter[Parameter]:
    """How many nodes use each parameter."""
    return Counter(parameter for node in nodes for parameter in node.layer.parameters.values())


def sparse_weights(nodes: Sequence[Node]) -> set[Parameter]:
    """Weights of sparse inputs."""
    weights = (node.layer.weight_of(i) for node in nodes for i, source in enumerate(node.inputs) if source.sparse)
    return {weight for weight in weights if weight is not None}


def describe(nodes: Sequence[Node], names: Mapping[Layer, str]) -> dict[str, Any]:
    """Layers and connections as plain dicts and lists. Raises ValueError for a kind of layer that is not in LAYERS."""
    layers = list(dict.fromkeys(node.layer for node in nodes))
    for layer in layers:
        if type(layer) not in LAYERS.values():
            raise ValueError(f"a layer of class {type(layer).__name__} cannot be saved: LAYERS does not list it")
    return {
        "layers": [{"kind": _kind(layer), **{k: _plain(v) for k, v in layer.settings().items()}, "name": names[layer]}
                   for layer in layers],
        "nodes": [{"layer": layers.index(node.layer), "inputs": [nodes.index(source) for source in node.inputs]}
                  for node in nodes],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Activation | Initializer):
        return {"name": value.name, "settings": None if value.settings is None else dict(value.settings)}
    return value


def rebuild(description: Mapping[str, Any], own: Mapping[str, Any]) -> list[Node]:
    """The nodes of a description. own: activations that are not sparsenet's, by name.

    Raises ValueError naming what is unknown.
    """
    layers = []
    for entry in description["layers"]:
        settings = dict(entry)
        kind = settings.pop("kind")
        if kind not in LAYERS:
            raise ValueError(f"a layer of kind {kind!r}; this version knows {', '.join(LAYERS)}")
        if "activation" in settings:
            settings["activation"] = find(settings["activation"], ACTIVATIONS, own, "activation")
        if "initializer" in settings:
            settings["initializer"] = find(settings["initializer"], INITIALIZERS, own, "initializer")
        layers.append(LAYERS[kind](**settings))
    nodes: list[Node] = []
    for entry in description["nodes"]:
        nodes.append(layers[entry["layer"]](*(nodes[i] for i in entry["inputs"])))
    return nodes


def copied(nodes: Sequence[Node]) -> dict[Node, Node]:
    """For each node, in order, the same node of new layers that have their own parameters."""
    layers = {layer: type(layer)(**layer.settings()) for layer in dict.fromkeys(node.layer for node in nodes)}
    twins: dict[Node, Node] = {}
    for node in nodes:
        twins[node] = layers[node.layer](*(twins[source] for source in node.inputs))
    return twins


def find(entry: Mapping[str, Any], known: Mapping[str, Any], own: Mapping[str, Any], what: str) -> Any:
    """What a {"name", "settings"} entry of a description means. Raises ValueError where the name is unknown."""
    if entry["settings"] is not None and entry["name"] in known:
        return known[entry["name"]](**entry["settings"])
    if entry["name"] not in own:
        raise ValueError(f"{what} {entry['name']!r} is not sparsenet's: pass it, own={{{entry['name']!r}: …}}")
    return own[entry["name"]]
