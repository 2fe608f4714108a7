"""The graph of layers: order, names, description, copies."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsenet as sn
from sparsenet import activations, initializers
from sparsenet.layers import Dense, Input
from sparsenet.layers.base import Layer
from sparsenet.layers.graph import copied, describe, name_layers, name_nodes, ordered, rebuild

BENT = activations.Activation("bent", value=lambda z: z if z > 0 else 0.25 * z, slope=lambda y: 1 if y > 0 else 0.25)


@st.composite
def graphs(draw):
    """(inputs, outputs): nodes of width 3 that read any earlier ones; layers are used again."""
    inputs = [Input(3, sparse=draw(st.booleans())) for _ in range(draw(st.integers(1, 3)))]
    nodes, layers = list(inputs), []
    for _ in range(draw(st.integers(1, 8))):
        if layers and draw(st.booleans()):
            layer, count = draw(st.sampled_from(layers))
        else:
            layer, count = Dense(3, draw(st.sampled_from(["relu", "tanh"]))), draw(st.integers(1, 3))
            layers.append((layer, count))
        nodes.append(layer(*(draw(st.sampled_from(nodes)) for _ in range(count))))
    outputs = draw(st.lists(st.sampled_from(nodes[len(inputs):]), min_size=1, max_size=3, unique_by=id))
    return [node for node in inputs if node in reachable(outputs)], outputs


def described(nodes):
    return describe(nodes, name_layers(nodes))


def reachable(outputs):
    found, waiting = set(), list(outputs)
    while waiting:
        node = waiting.pop()
        found.add(node)
        waiting.extend(node.inputs)
    return found


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_each_node_comes_once_and_after_what_it_reads(graph):
    inputs, outputs = graph
    order = ordered(outputs, inputs)
    assert set(order) == reachable(outputs)
    assert len(order) == len(set(order))
    for i, node in enumerate(order):
        assert all(order.index(source) < i for source in node.inputs)


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_a_description_survives_json(graph):
    """Kinds, settings, connections and which nodes share a layer are what they were."""
    inputs, outputs = graph
    nodes = ordered(outputs, inputs)
    description = json.loads(json.dumps(described(nodes)))
    again = rebuild(description, {})
    assert_same_graph(nodes, again)
    assert described(again) == description


@settings(deadline=None, max_examples=60)
@given(graphs())
def test_a_copy_is_the_same_graph_with_other_layers(graph):
    inputs, outputs = graph
    nodes = ordered(outputs, inputs)
    twins = copied(nodes)
    assert list(twins) == nodes
    assert_same_graph(nodes, list(twins.values()))
    assert not {node.layer for node in nodes} & {twin.layer for twin in twins.values()}


def assert_same_graph(nodes, again):
    assert len(nodes) == len(again)
    for node, twin in zip(nodes, again, strict=True):
        assert type(node.layer) is type(twin.layer)
        assert (node.units, node.sparse) == (twin.units, twin.sparse)
        assert [nodes.index(source) for source in node.inputs] == [again.index(source) for source in twin.inputs]
        assert [n.layer is node.layer for n in nodes] == [t.layer is twin.layer for t in again]
        if isinstance(node.layer, Dense):
            assert node.layer.activation is twin.layer.activation


def test_a_long_chain_is_no_recursion():
    h = x = Input(1)
    layer = Dense(1)
    for _ in range(5000):
        h = layer(h)
    assert len(ordered([h], [x])) == 5001


def test_inputs_that_do_not_fit_the_outputs():
    x, other = Input(3), Input(3)
    h = Dense(3)(x)
    with pytest.raises(ValueError, match="inputs: the outputs also need 1 Input that is not listed"):
        ordered([Dense(2)(h, other)], [x])
    with pytest.raises(ValueError, match="inputs: an input that no output needs, or that is no Input"):
        ordered([h], [x, other])
    with pytest.raises(ValueError, match="inputs: an input that no output needs, or that is no Input"):
        ordered([Dense(2)(h)], [x, h])


# ---- names


def names(outputs, inputs):
    nodes = ordered(outputs, inputs)
    found = name_nodes(nodes, name_layers(nodes))
    return [found[node] for node in nodes]


def test_names_count_by_kind_and_by_use():
    x, other = Input(3), Input(3, name="other")
    shared = Dense(3)
    y = Dense(3, name="top")(shared(shared(x)), Dense(3)(other))
    assert names([y], [x, other]) == ["input1", "dense1", "dense1.2", "other", "dense2", "top"]


def test_given_names_are_not_given_again():
    x = Input(3, name="dense1")
    assert names([Dense(3)(Dense(3)(x))], [x]) == ["dense1", "dense2", "dense3"]


def test_names_are_the_networks_own():
    """A layer that was given no name has one by its place in each network, whatever it is in others."""
    x = Input(3)
    h, other = Dense(3)(x), Dense(3)(x)
    y = Dense(3)(h)
    assert names([y], [x]) == ["input1", "dense1", "dense2"]
    assert names([other], [x]) == ["input1", "dense1"]
    assert names([Dense(3)(other, y)], [x]) == ["input1", "dense1", "dense2", "dense3", "dense4"]
    assert h.layer.name is None


def test_one_name_for_two():
    x = Input(3)
    with pytest.raises(ValueError, match="name: two layers are called 'a'"):
        names([Dense(3, name="a")(Dense(3, name="a")(x))], [x])
    again = Dense(3, name="a")
    with pytest.raises(ValueError, match=r"name: a layer is called 'a\.2', as is the repeated use of another"):
        names([Dense(3, name="a.2")(again(again(x)))], [x])


# ---- descriptions


def test_settings_of_every_kind_survive():
    x = Input(3, sparse=True, normalize=True, denoising=0.25, name="in")
    h = Dense(4, activations.elu(0.5), dropout=0.5, initializer=initializers.gaussian(0.125), name="out")(x)
    twin = rebuild(json.loads(json.dumps(described([x, h]))), {})[1]
    assert twin.inputs[0].layer.settings() == x.layer.settings()
    assert (twin.layer.activation.name, twin.layer.activation.settings) == ("elu", {"alpha": 0.5})
    assert (twin.layer.dropout, twin.layer.name, twin.units) == (0.5, "out", 4)
    assert twin.layer.initializer.settings == {"scale": 0.125}


def test_what_is_not_sparsenets_must_be_passed():
    x = Input(3)
    own = initializers.Initializer("mine", "constant", lambda i, o: 2.0, {})
    description = described([x, Dense(2, BENT, initializer=own)(x)])
    with pytest.raises(ValueError, match=r"activation 'bent' is not sparsenet's: pass it, own={'bent': …}"):
        rebuild(description, {})
    with pytest.raises(ValueError, match=r"initializer 'mine' is not sparsenet's: pass it, own={'mine': …}"):
        rebuild(description, {"bent": BENT})
    layer = rebuild(description, {"bent": BENT, "mine": own})[1].layer
    assert layer.activation is BENT
    assert layer.initializer is own


def test_layers_of_unknown_kind():
    class Mine(Dense):
        """A user's own."""

    x = Input(3)
    with pytest.raises(ValueError, match="a layer of class Mine cannot be saved: LAYERS does not list it"):
        described([x, Mine(2)(x)])
    description = described([x, Dense(2)(x)])
    description["layers"][1]["kind"] = "Convolution"
    with pytest.raises(ValueError, match="a layer of kind 'Convolution'; this version knows Input, Dense"):
        rebuild(description, {})


def test_a_layer_of_a_users_class_can_be_copied():
    class Mine(Dense):
        """A user's own."""

    x = Input(3)
    network = sn.Network(x, Mine(2, BENT)(x), seed=1, device="cpu")
    twin = network.copy()
    assert type(twin.nodes[1].layer) is Mine
    given = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(twin.predict(given), network.predict(given))


def test_a_layer_says_what_it_must_define():
    with pytest.raises(TypeError, match="abstract"):
        Layer()
