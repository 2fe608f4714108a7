"""Bias and activation, and the hidden deltas."""

from functools import cache

from sparsenet.device import Array, launch
from sparsenet.shapes import check


def activate(value, bias: Array, y: Array) -> None:
    """y = value(y + bias), in place.

    value  scalar function z -> y
    bias   (units) float32         in
    y      (batch, units) float32  inout  sums of inputs on entry, activations on return
    """
    size = check(bias=(bias, "units"), y=(y, "batch units"))
    launch(_activate(value), (size.batch, size.units), bias, y)


@cache
def _activate(value):
    def activate(b, u, bias, y):
        y[b, u] = value(y[b, u] + bias[u])
    return activate


def hidden_delta(slope, y: Array, delta: Array) -> None:
    """delta *= slope(y).

    slope  scalar function y -> f'(z), written in terms of y = f(z)
    y      (batch, units) float32  in     activations
    delta  (batch, units) float32  inout  dL/dy on entry, dL/dz on return
    """
    size = check(y=(y, "batch units"), delta=(delta, "batch units"))
    launch(_hidden_delta(slope), (size.batch, size.units), y, delta)


@cache
def _hidden_delta(slope):
    def hidden_delta(b, u, y, delta):
        delta[b, u] *= slope(y[b, u])
    return hidden_delta
