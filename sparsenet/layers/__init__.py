"""Layers: declare a network by calling them on each other."""

from sparsenet.layers.base import Layer, Node, Parameter
from sparsenet.layers.dense import Dense
from sparsenet.layers.input import Input

__all__ = ["Dense", "Input", "Layer", "Node", "Parameter"]
