"""Optimizers: a scalar rule that a kernel compiles in, the number of its state slots, and its numbers for each step.

A rule takes (w, g, m, v, scalars) and returns the new (w, m, v), g the gradient of the loss (weight decay included),
m and v the state. Your own is an `Optimizer` with your own rule.

A batch of sparse examples names few features. The weights of all others have no gradient in its step, but most rules
move them, or their state, all the same. `Idle` says what many such steps come to, so that rows can wait until a batch
names them again; a rule without one visits every row in every step.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from sparsenet.compiling import check_compiles, scalar
from sparsenet.kernels.update import ROOM

_ZERO, _ONE = np.float32(0), np.float32(1)
_ALIKE = 0.01  # share of a number by which a closed form may differ from the steps: it may be an approximation

Rate = float | Callable[[int], float]


@dataclass(frozen=True)
class Idle:
    """What steps without gradient, weight decay included, do to a weight: w, m, v = rule(w, m, v, numbers).

    `numbers` say which steps: none at first, then more(numbers, scalars) for one step more.
    """

    rule: Callable
    """Scalar function (w, m, v, numbers) -> (w, m, v)"""
    none: tuple[float, ...]
    """Up to 8 numbers with which the rule changes nothing"""
    more: Callable[[Sequence[Any], tuple[float, ...]], tuple[Any, ...]]
    """(numbers, scalars of a step) -> numbers; given are float64 arrays, an element for each way of missing steps"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rule", scalar(self.rule))


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
    idle: Idle | None = field(default=None, compare=False)
    """What steps without gradient do, all at once; None: nothing is known, or `still`."""
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
            if self.idle is not None:
                self._check_idle(self.idle)

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

    def _check_idle(self, idle: Idle) -> None:
        """Compare it with three steps of the rule."""
        what = f"optimizer {self.name!r}: idle"
        if not 1 <= len(idle.none) <= len(ROOM):
            raise ValueError(f"{what}.none must be 1 to {len(ROOM)} numbers, got {len(idle.none)}")
        w, m, v = start = np.array([0.75, 0.5 * (self.slots > 0), 0.25 * (self.slots > 1)], np.float32)
        numbers: tuple[Any, ...] = tuple(np.full(1, number) for number in idle.none)
        for step in (1, 2, 3):
            scalars = self.scalars(step)
            decay = np.float32(self.l2 * w + self.l1 * np.sign(w))
            w, m, v = np.array(self.rule(w, decay, m, v, tuple(np.float32(one) for one in scalars)), np.float32)
            numbers = idle.more(numbers, scalars)
        c = tuple(np.float32(np.ravel(number)[0]) for number in numbers)
        check_compiles(idle.rule, (*start, c), f"{what}.rule")
        found = idle.rule(*start, c)
        if not all(abs(one - other) <= _ALIKE * abs(other) for one, other in zip(found, (w, m, v), strict=True)):
            raise ValueError(f"{what} turns w, m, v = {start} into {np.array(found, np.float32)} in three steps, but "
                             f"rule, without gradient, into {np.array([w, m, v])}")

    @functools.cached_property
    def numbers(self) -> int:
        """How many scalars the rule gets in each step."""
        return len(self.scalars(1))

    @property
    def visits_every_row(self) -> bool:
        """Whether rows that a batch does not touch must be updated too, for the result of a dense update."""
        return not self._rests and self.idle is None

    @property
    def catches_up(self) -> bool:
        """Whether rows that batches did not touch must be caught up before they are read."""
        return not self._rests and self.idle is not None

    @property
    def _rests(self) -> bool:
        return self.lazy or (self.still and self.l2 == 0 and self.l1 == 0)


def _make(name: str, rule: Callable, slots: int, numbers: Callable[[float, int], tuple[float, ...]], rate: Rate,
          decay: float, l2: float, l1: float, lazy: bool, still: bool = False, idle: Idle | None = None,
          **settings: float) -> Optimizer:
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
    known = idle if l1 == 0 and (l2 == 0 or name == "sgd") else None
    return Optimizer(name, rule, slots, scalars, still, l2, l1, lazy, known, numbered)


@scalar
def _sgd(w, g, m, v, s):
    return w - s[0] * g, m, v


@scalar
def _shrunk(w, m, v, c):
    return c[0] * w, m, v


def sgd(rate: Rate = 0.01, *, decay: float = 0.0, l2: float = 0.0, l1: float = 0.0, lazy: bool = False) -> Optimizer:
    """w -= rate g.

    rate: a number, or a function of the step (from 1); decay: rate / (1 + decay (step - 1)). The same for all below.
    """
    shrink = Idle(_shrunk, (1.0,), lambda c, s: (c[0] * (1 - s[0] * l2),))
    return _make("sgd", _sgd, 0, lambda a, t: (a,), rate, decay, l2, l1, lazy, still=True, idle=shrink)


@scalar
def _momentum(w, g, m, v, s):
    m = s[1] * m - s[0] * g
    return w + m, m, v


@scalar
def _coasted(w, m, v, c):
    return w + c[0] * m, c[1] * m, v


def momentum(rate: Rate = 0.01, mu: float = 0.9, *, decay: float = 0.0, l2: float = 0.0, l1: float = 0.0,
             lazy: bool = False) -> Optimizer:
    """m = mu m - rate g; w += m (Polyak 1964)."""
    coast = Idle(_coasted, (0.0, 1.0), lambda c, s: (c[0] + s[1] * c[1], s[1] * c[1]))
    return _make("momentum", _momentum, 1, lambda a, t: (a, mu), rate, decay, l2, l1, lazy, idle=coast, mu=mu)


@scalar
def _nesterov(w, g, m, v, s):
    before = m
    m = s[1] * m - s[0] * g
    return w + m + s[1] * (m - before), m, v


def nesterov(rate: Rate = 0.01, mu: float = 0.9, *, decay: float = 0.0, l2: float = 0.0, l1: float = 0.0,
             lazy: bool = False) -> Optimizer:
    """m' = mu m - rate g; w += m' + mu (m' - m) (Nesterov's momentum as in Sutskever et al. 2013, and in DSSTNE)."""
    coast = Idle(_coasted, (0.0, 1.0), lambda c, s: (c[0] + s[1] * s[1] * c[1], s[1] * c[1]))
    return _make("nesterov", _nesterov, 1, lambda a, t: (a, mu), rate, decay, l2, l1, lazy, idle=coast, mu=mu)


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


@scalar
def _faded(w, m, v, c):
    return w, c[0] * m, c[0] * v


_FADE = Idle(_faded, (1.0,), lambda c, s: (s[1] * c[0],))


def rmsprop(rate: Rate = 0.01, mu: float = 0.99, epsilon: float = 1e-8, *, decay: float = 0.0, l2: float = 0.0,
            l1: float = 0.0, lazy: bool = False) -> Optimizer:
    """m = mu m + (1 - mu) g^2; w -= rate g / (sqrt m + epsilon) (Tieleman and Hinton 2012)."""
    return _make("rmsprop", _rmsprop, 1, lambda a, t: (a, mu, 1 - mu, epsilon), rate, decay, l2, l1, lazy, idle=_FADE,
                 mu=mu, epsilon=epsilon)


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
    return _make("adadelta", _adadelta, 2, lambda a, t: (a, mu, 1 - mu, epsilon), rate, decay, l2, l1, lazy, idle=_FADE,
                 mu=mu, epsilon=epsilon)


@scalar
def _adam(w, g, m, v, s):
    m = s[1] * m + s[2] * g
    v = s[3] * v + s[4] * g * g
    return w - s[0] * m / (math.sqrt(v) * s[5] + s[6]), m, v


@scalar
def _drifted(w, m, v, c):
    return w - m * c[1] / (math.sqrt(v) + c[4] * (c[1] / c[0])), c[2] * m, c[3] * v


def _drift(c: Sequence[Any], s: tuple[float, ...]) -> tuple[Any, ...]:
    fallen, spread = s[1] * c[2], s[3] * c[3]  # of m and v
    moved = s[0] * fallen
    return c[0] + moved, c[1] + moved / (np.sqrt(spread) * s[5]), fallen, spread, s[6]


_TRACE = 1e-30  # no movement to speak of, and no 0 / 0

_DRIFT = Idle(_drifted, (_TRACE, _TRACE, 1.0, 1.0, 1.0), _drift)


def adam(rate: Rate = 0.001, mu: float = 0.9, mu1: float = 0.999, epsilon: float = 1e-8, *, decay: float = 0.0,
         l2: float = 0.0, l1: float = 0.0, lazy: bool = False) -> Optimizer:
    """m = mu m + (1 - mu) g; v = mu1 v + (1 - mu1) g^2; w -= rate m^ / (sqrt v^ + epsilon), with
    m^ = m / (1 - mu^step), v^ = v / (1 - mu1^step) (Kingma and Ba 2015). Weight decay is part of g.

    Steps without gradient move w by m times a sum of p_j / (b_j sqrt v + epsilon), where p_j and b_j are numbers of the
    steps. A row of a sparse input that missed them is caught up with P / (B sqrt v + epsilon), P = sum p_j, and
    B = P / sum (p_j / b_j): right where sqrt v^ is far from epsilon, above or below. In between it moves the row too
    far, by a share of the movement of at most min(E, E' epsilon / (B sqrt v)), E and E' the averages, weighted with
    p_j, of (1 - sqrt(B / b_j))^2 and (1 - B / b_j)^2. With the default numbers E is 0.05 at most, 0.0005 from step 100
    and 0.00002 from step 1,000 on.
    """
    return _make("adam", _adam, 2, lambda a, t: (a / (1 - mu**t), mu, 1 - mu, mu1, 1 - mu1, 1 / math.sqrt(1 - mu1**t),
                                           epsilon),
                 rate, decay, l2, l1, lazy, idle=_DRIFT, mu=mu, mu1=mu1, epsilon=epsilon)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    function.__name__: function for function in (sgd, momentum, nesterov, adagrad, rmsprop, adadelta, adam)
}
