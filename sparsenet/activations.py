"""Activation functions: pairs of scalar functions that kernels compile in.

A slope is written in terms of y = f(z), which is what a network keeps. Your own is one line:
`Activation("softsign", value=lambda z: z / (1 + abs(z)), slope=lambda y: (1 - abs(y)) ** 2)`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sparsenet.compiling import check_compiles, plain, scalar

_ZERO, _ONE = np.float32(0), np.float32(1)


@dataclass(frozen=True)
class Activation:
    """y = value(z), dy/dz = slope(y). Raises ValueError where slope is not the derivative of value."""

    name: str
    value: Callable
    """z -> y"""
    slope: Callable
    """y -> dy/dz"""
    settings: Mapping[str, float] | None = None
    """Arguments of the function in this module that makes it; None: not one of this module's."""
    rowwise: bool = False
    """Softmax: y depends on every unit of the example."""

    def __post_init__(self) -> None:
        own = self.settings is None
        if own and self.name in ACTIVATIONS:
            raise ValueError(f"activation {self.name!r}: that name is sparsenet's, choose another")
        for part in ("value", "slope"):
            function = scalar(getattr(self, part))
            object.__setattr__(self, part, function)
            if own:
                check_compiles(function, (_ONE,), f"activation {self.name!r}: {part}")
        if self.rowwise:
            return
        value, slope = (plain(function) for function in (self.value, self.slope))
        for z in np.array([-1.7, -0.6, 0.4, 1.3]):
            step = 1e-3
            measured = (float(value(z + step)) - float(value(z - step))) / (2 * step)
            claimed = float(slope(np.float64(value(z))))
            if not abs(measured - claimed) <= 2e-3 * (1 + abs(measured)):
                raise ValueError(f"activation {self.name!r}: slope(value({z})) is {claimed:.6g}, but value rises by "
                                 f"{measured:.6g} there; slope takes y = value(z), not z")


@cache
def linear() -> Activation:
    """y = z."""
    return Activation("linear", lambda z: z, lambda y: _ONE, {})


@cache
def sigmoid() -> Activation:
    """y = 1 / (1 + exp(-z))."""
    return Activation("sigmoid", lambda z: _ONE / (_ONE + math.exp(-z)), lambda y: y * (_ONE - y), {})


@cache
def tanh() -> Activation:
    """y = tanh z."""
    return Activation("tanh", lambda z: math.tanh(z), lambda y: _ONE - y * y, {})


@cache
def relu() -> Activation:
    """y = max(z, 0)."""
    return Activation("relu", lambda z: z if z > _ZERO else _ZERO, lambda y: _ONE if y > _ZERO else _ZERO, {})


@cache
def leaky_relu(slope: float = 0.01) -> Activation:
    """y = z where z > 0, else slope z; slope >= 0."""
    if slope < 0:
        raise ValueError(f"leaky_relu: slope must not be negative, got {slope}")
    a = np.float32(slope)
    return Activation("leaky_relu", lambda z: z if z > _ZERO else a * z, lambda y: _ONE if y > _ZERO else a,
                      {"slope": slope})


@cache
def elu(alpha: float = 1.0) -> Activation:
    """y = z where z > 0, else alpha (exp z - 1); Clevert et al. 2016."""
    a = np.float32(alpha)
    return Activation("elu", lambda z: z if z > _ZERO else a * math.expm1(z),
                      lambda y: _ONE if y > _ZERO else y + a, {"alpha": alpha})


@cache
def selu() -> Activation:
    """y = lambda (z where z > 0, else alpha (exp z - 1)) with Klambauer et al.'s constants (2017)."""
    s, a = np.float32(1.0507009873554805), np.float32(1.0507009873554805 * 1.6732632423543772)
    return Activation("selu", lambda z: s * z if z > _ZERO else a * math.expm1(z),
                      lambda y: s if y > _ZERO else y + a, {})


@cache
def softplus() -> Activation:
    """y = ln(1 + exp z)."""
    return Activation("softplus", lambda z: (z if z > _ZERO else _ZERO) + math.log1p(math.exp(-abs(z))),
                      lambda y: -math.expm1(-y), {})


@cache
def softsign() -> Activation:
    """y = z / (1 + |z|)."""
    return Activation("softsign", lambda z: z / (_ONE + abs(z)), lambda y: (_ONE - abs(y)) * (_ONE - abs(y)), {})


@cache
def softmax() -> Activation:
    """y_u = exp z_u / sum over the example's units of exp z."""
    return Activation("softmax", lambda z: z, lambda y: _ONE, {}, rowwise=True)


ACTIVATIONS: dict[str, Callable[..., Activation]] = {
    function.__name__: function
    for function in (linear, sigmoid, tanh, relu, leaky_relu, elu, selu, softplus, softsign, softmax)
}


def get(activation: str | Activation) -> Activation:
    """The activation of that name, or the given one. Raises ValueError naming the known ones."""
    if isinstance(activation, Activation):
        return activation
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"activation: expected one of {', '.join(ACTIVATIONS)} or an Activation, got {activation!r}")
    return ACTIVATIONS[activation]()


def describe(activation: Activation) -> dict[str, Any]:
    """Name and settings, for a model file."""
    return {"name": activation.name, "settings": activation.settings}
