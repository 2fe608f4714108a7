"""Optimizers: a scalar rule that a kernel compiles in, the number of its state slots, and its numbers for each step.

A rule takes (w, g, m, v, scalars) and returns the new (w, m, v), g the gradient of the loss (weight decay included),
m and v the state. Your own is an `Optimizer` with your own rule.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real

import numpy as np

from sparsenet.compiling import check_compiles, scalar
from sparsenet.kernels.update import ROOM

_ZERO, _ONE = np.float32(0), np.float32(1)

Rate = float | Callable[[int], float]


@dataclass(frozen=True)
class Optimizer:
    """One step on a weight w: w, m, v = rule(w, g, m, v, scalars(step))."""

    name: str
    rule: Callable = field(compare=False)
    """(w, g, m, v, scalars) -> (w, m, v)"""
    slots: int
    """Number of state arrays: 0, 1 (m) or 2 (m and v)."""
    scalars: Callable[[int], tuple[float, ...]] = field(compare=False)
    """Step, counted from 1 -> the rule's numbers, rate included: up to 8, as many in every step."""
    still: bool = False
    """Whether a gradient of 0 changes nothing: rows without gradient then need no visit."""
    l2: float = 0.0
    """Weight decay: l2 w is added to the gradient of weights, never of biases."""
    l1: float = 0.0
    """l1 sign(w) is added to the gradient of weights, never of biases."""
    lazy: bool = False
    """Leave rows of sparse-input weights alone in steps whose batch does not name them, state and decay included."""
    settings: Mapping[str, float | str] = field(default_factory=dict)
    """The other numbers it was made with, to tell optimizers apart."""

    def __post_init__(self) -> None:
        if self.slots not in (0, 1, 2):
            raise ValueError(f"optimizer {self.name!r}: slots must be 0, 1 or 2, got {self.slots}")
        if not (self.l2 >= 0 and self.l1 >= 0):
            raise ValueError(f"optimizer {self.name!r}: l2 and l1 must not be negative, got {self.l2}, {self.l1}")
        object.__setattr__(self, "rule", scalar(self.rule))
        if not self.settings:  # not made by this module
            self._check_rule()

    def _check_rule(self) -> None:
        numbers = self.scalars(1)
        if not isinstance(numbers, tuple):
            raise ValueError(f"optimizer {self.name!r}: scalars(step) must be a tuple of numbers, got {numbers!r}")
        if len(numbers) > len(ROOM):
            raise ValueError(f"optimizer {self.name!r}: scalars(step) may be {len(ROOM)} numbers, not {len(numbers)}")
        scalars = tuple(np.float32(number) for number in numbers)
        check_compiles(self.rule, (_ONE, _ONE, _ONE, _ONE, scalars), f"optimizer {self.name!r}: rule")
        result = self.rule(_ONE, _ONE, _ZERO, _ZERO, scalars)
        if not isinstance(result, tuple) or len(result) != 3:
            raise ValueError(f"optimizer {self.name!r}: rule must return (w, m, v), got {result!r}")
        for slot, (letter, value) in enumerate(zip("mv", result[1:], strict=True)):
            if slot >= self.slots and value != 0:
                raise ValueError(f"optimizer {self.name!r}: rule changes {letter}, but there are {self.slots} slots")

    @functools.cached_property
    def numbers(self) -> int:
        """How many scalars the rule gets in each step."""
        return len(self.scalars(1))

    @property
    def visits_every_row(self) -> bool:
        """Whether rows that a batch does not touch must be updated too, for the result of a dense update."""
        return not self.lazy and not (self.still and self.l2 == 0 and self.l1 == 0)


def _make(name: str, rule: Callable, slots: int, numbers: Callable[[float, int], tuple[float, ...]], rate: Rate,
          decay: float, l2: float, l1: float, lazy: bool, still: bool = False, **settings: float) -> Optimizer:
    for key, value in {"decay": decay, **settings, **({} if callable(rate) else {"rate": rate})}.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"{name}: {key} must be a finite number >= 0, got {value!r}")
        if key in ("mu", "mu1") and np.float32(value) >= 1:
            raise ValueError(f"{name}: {key} must be below 1 in float32, got {value!r}")
        if key == "epsilon" and not np.float32(value) > 0:
            raise ValueError(f"{name}: epsilon must be above 0 in float32, got {value!r}")

    def scalars(step: int) -> tuple[float, ...]:
        alpha = rate(step) if callable(rate) else rate
        return numbers(alpha / (1 + decay * (step - 1)), step)

    numbered = {"rate": "schedule" if callable(rate) else rate, "decay": decay, **settings}
    return Optimizer(name, rule, slots, scalars, still, l2, l1, lazy, numbered)


@scalar
def _sgd(w, g, m, v, s):
    return w - s[0] * g, m, v


def sgd(rate: Rate = 0.01, *, decay: float = 0.0, l2: float = 0.0, l1: float = 0.0, lazy: bool = False) -> Optimizer:
    """w -= rate g.

    rate: a number, or a function of the step (from 1); decay: rate / (1 + decay (step - 1)). The same for all below.
    """
    return _make("sgd", _sgd, 0, lambda a, t: (a,), rate, decay, l2, l1, lazy, still=True)


@scalar
def _momentum(w, g, m, v, s):
    m = s[1] * m - s[0] * g
    return w + m, m, v


def momentum(rate: Rate = 0.01, mu: float = 0.9, *, decay: float = 0.0, l2: float = 0.0, l1: float = 0.0,
             lazy: bool = False) -> Optimizer:
    """m = mu m - rate g; w += m (Polyak 1964)."""
    return _make("momentum", _momentum, 1, lambda a, t: (a, mu), rate, decay, l2, l1, lazy, mu=mu)


@scalar
def _nesterov(w, g, m, v, s):
    before = m
    m = s[1] * m - s[0] * g
    return w + m + s[1] * (m - before), m, v


def nesterov(rate: Rate = 0.01, mu: float = 0.9, *, decay: float = 0.0, l2: float = 0.0, l1: float = 0.0,
             lazy: bool = False) -> Optimizer:
    """m' = mu m - rate g; w += m' + mu (m' - m) (Nesterov's momentum as in Sutskever et al. 2013, and in DSSTNE)."""
    return _make("nesterov", _nesterov, 1, lambda a, t: (a, mu), rate, decay, l2, l1, lazy, mu=mu)


@scalar
def _adagrad(w, g, m, v, s):
    m += g * g
    return w - s[0] * g / (math.sqrt(m) + s[1]), m, v


def adagrad(rate: Rate = 0.01, epsilon: float = 1e-10, *, decay: float = 0.0, l2: float = 0.0, l1: float = 0.0,
            lazy: bool = False) -> Optimizer:
    """m += g^2; w -= rate g / (sqrt m + epsilon) (Duchi et al. 2011)."""
    return _make("adagrad", _adagrad, 1, lambda a, t: (a, epsilon), rate, decay, l2, l1, lazy, still=True,
                 epsilon=epsilon)


@scalar
def _rmsprop(w, g, m, v, s):
    m = s[1] * m + s[2] * g * g
    return w - s[0] * g / (math.sqrt(m) + s[3]), m, v


def rmsprop(rate: Rate = 0.01, mu: float = 0.99, epsilon: float = 1e-8, *, decay: float = 0.0, l2: float = 0.0,
            l1: float = 0.0, lazy: bool = False) -> Optimizer:
    """m = mu m + (1 - mu) g^2; w -= rate g / (sqrt m + epsilon) (Tieleman and Hinton 2012)."""
    return _make("rmsprop", _rmsprop, 1, lambda a, t: (a, mu, 1 - mu, epsilon), rate, decay, l2, l1, lazy, mu=mu,
                 epsilon=epsilon)


@scalar
def _adadelta(w, g, m, v, s):
    m = s[1] * m + s[2] * g * g
    step = math.sqrt(v + s[3]) / math.sqrt(m + s[3]) * g
    v = s[1] * v + s[2] * step * step
    return w - s[0] * step, m, v


def adadelta(rate: Rate = 1.0, mu: float = 0.9, epsilon: float = 1e-6, *, decay: float = 0.0, l2: float = 0.0,
             l1: float = 0.0, lazy: bool = False) -> Optimizer:
    """m = mu m + (1 - mu) g^2; d = sqrt((v + epsilon) / (m + epsilon)) g; v = mu v + (1 - mu) d^2; w -= rate d
    (Zeiler 2012).
    """
    return _make("adadelta", _adadelta, 2, lambda a, t: (a, mu, 1 - mu, epsilon), rate, decay, l2, l1, lazy, mu=mu,
                 epsilon=epsilon)


@scalar
def _adam(w, g, m, v, s):
    m = s[1] * m + s[2] * g
    v = s[3] * v + s[4] * g * g
    return w - s[0] * m / (math.sqrt(v) * s[5] + s[6]), m, v


def adam(rate: Rate = 0.001, mu: float = 0.9, mu1: float = 0.999, epsilon: float = 1e-8, *, decay: float = 0.0,
         l2: float = 0.0, l1: float = 0.0, lazy: bool = False) -> Optimizer:
    """m = mu m + (1 - mu) g; v = mu1 v + (1 - mu1) g^2; w -= rate m^ / (sqrt v^ + epsilon), with
    m^ = m / (1 - mu^step), v^ = v / (1 - mu1^step) (Kingma and Ba 2015). Weight decay is part of g.
    """
    return _make("adam", _adam, 2, lambda a, t: (a / (1 - mu**t), mu, 1 - mu, mu1, 1 - mu1, 1 / math.sqrt(1 - mu1**t),
                                           epsilon),
                 rate, decay, l2, l1, lazy, mu=mu, mu1=mu1, epsilon=epsilon)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    function.__name__: function for function in (sgd, momentum, nesterov, adagrad, rmsprop, adadelta, adam)
}
