"""Loss functions of one output unit and its target, to be summed over units and averaged over examples.

The derivative that a network needs is dL/dz, through the output's activation. For a sigmoid or softmax output the
product of the two slopes cancels; a loss gives those forms itself where the product would lose digits.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from sparsenet.activations import Activation
from sparsenet.compiling import check_compiles, plain, scalar
from sparsenet.sampling import Sampling

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_TINY = np.float32(1e-12)  # DSSTNE's MIN_ERROR: the logarithm of a saturated unit stays finite


@dataclass(frozen=True)
class Loss:
    """Scalar functions of an activation y and its target t. Raises ValueError where a slope is not its value's
    derivative."""

    name: str
    value: Callable
    """(y, t) -> loss"""
    slope: Callable
    """(y, t) -> d loss / dy"""
    sigmoid_slope: Callable | None = None
    """(y, t) -> d loss / dz for y = sigmoid(z); default: slope y (1 - y)"""
    softmax_value: Callable | None = None
    """(y, t) -> loss of a softmax output, where it differs from value"""
    softmax_slope: Callable | None = None
    """(y, t) -> y d softmax_value / dy; default: y slope"""
    outputs: tuple[str, ...] | None = None
    """Names of the activations it is meant for; None: any"""
    targets: tuple[float, float] | None = None
    """Smallest and largest target that have a meaning; None: any. A softmax output takes any that are not negative."""
    zero_factor: Callable | None = None
    """y -> f with value(y, 0) = -ln f, 1e-12 <= f <= 1, where there is one: then a CPU takes few logarithms"""
    zero_below: float | None = None
    """y up to which value(y, 0) and slope(y, 0) are 0, where there is one: then a CPU leaves out what has no delta"""
    normalize: bool = False
    """Divide each example's targets by the number of its nonzero targets."""
    sampling: Sampling | None = None
    """Which zeros a training step looks at; None: all. See `sampled`"""
    factored: bool = False
    """Whether a training step is to take time that does not depend on the number of outputs. See `squared_error`"""
    settings: Mapping[str, float] | None = None
    """Arguments of the function in this module that makes it; None: not one of this module's."""

    def __post_init__(self) -> None:
        if self.settings is None and self.name in LOSSES:
            raise ValueError(f"loss {self.name!r}: that name is sparsenet's, choose another")
        for part in ("value", "slope", "sigmoid_slope", "softmax_value", "softmax_slope", "zero_factor"):
            function = getattr(self, part)
            if function is not None:
                object.__setattr__(self, part, scalar(function))
                if self.settings is None:
                    check_compiles(getattr(self, part), (_ONE,) if part == "zero_factor" else (_ONE, _ONE),
                                   f"loss {self.name!r}: {part}")
        self._check("slope", self.value, self.slope, lambda y: 1.0)
        if self.sigmoid_slope is not None:
            self._check("sigmoid_slope", self.value, self.sigmoid_slope, lambda y: y * (1 - y))
        if self.softmax_slope is not None or self.softmax_value is not None:
            self._check("softmax_slope", self.softmax_value or self.value,
                        self.softmax_slope or _times_y(self.slope), lambda y: y)

    def _check(self, part: str, value: Any, slope: Any, factor: Callable[[float], float]) -> None:
        """Compare slope(y, t) with factor(y) d value / dy at a few points."""
        value, slope, step = plain(value), plain(slope), 1e-3
        for y in np.array([0.23, 0.48, 0.77]):
            for t in np.array([0.0, 1.0]):
                low, here, high = (float(value(y + side, t)) for side in (-step, 0, step))
                # One side is enough: a margin may lie just here.
                measured = [factor(y) * rise / step for rise in ((high - low) / 2, high - here, here - low)]
                claimed = float(slope(y, t))
                if not any(abs(one - claimed) <= 3e-3 * (1 + abs(one)) for one in measured):
                    raise ValueError(f"loss {self.name!r}: {part}({y}, {t}) is {claimed:.6g}, expected "
                                     f"{measured[0]:.6g}, as the loss rises there")

    def check_targets(self, activation: Activation, smallest: float, largest: float, what: str) -> None:
        """Raise ValueError where targets from smallest to largest have no meaning for an output's activation."""
        if self.targets is None:
            return
        low, high = (0.0, math.inf) if activation.rowwise else self.targets
        if smallest < low or largest > high:
            raise ValueError(f"{what}: holds {smallest if smallest < low else largest:g}, but {self.name} with "
                             f"{activation.name} takes targets from {low:g} to {high:g}; X > 0 makes a matrix of "
                             "zeros and ones, and squared_error takes any number")

    def through(self, activation: Activation) -> tuple[Callable, Callable]:
        """(value, delta): the loss of an output with that activation, and its derivative by z (for softmax: y dL/dy).

        Raises ValueError where the loss has no meaning for the activation.
        """
        if self.outputs is not None and activation.name not in self.outputs:
            raise ValueError(f"loss {self.name!r} needs an output with activation {' or '.join(self.outputs)}, "
                             f"got {activation.name!r}")
        if self.factored and activation.name != "linear":
            raise ValueError(f"loss {self.name!r}: factored=True needs an output with activation 'linear', got "
                             f"{activation.name!r}")
        if activation.rowwise:
            if self.sampling is not None and self.name != "cross_entropy":
                raise ValueError(f"loss {self.name!r}: a softmax can be sampled with cross_entropy alone, of "
                                 "which zeros have no part")
            return self.softmax_value or self.value, self.softmax_slope or _times_y(self.slope)
        if activation.name == "sigmoid" and self.sigmoid_slope is not None:
            return self.value, self.sigmoid_slope
        return self.value, _product(self.slope, activation.slope)


@cache
def _product(loss_slope, activation_slope):
    @scalar
    def delta(y, t):
        return loss_slope(y, t) * activation_slope(y)
    return delta


@cache
def _times_y(loss_slope):
    @scalar
    def delta(y, t):
        return y * loss_slope(y, t)
    return delta


@cache
def squared_error(factored: bool = False) -> Loss:
    """(y - t)^2 / 2 (DSSTNE: L2).

    factored: the same, of a linear output with sparse targets trained by `sgd` without l1, on a CPU, in a time that
    depends on the batch's targets and not on the number of outputs: for outputs in the hundred thousands. Weights catch
    up when they are read. Source: Vincent, de Brebisson and Bouthillier 2015 (arXiv:1412.7091).
    """
    return Loss("squared_error", lambda y, t: _HALF * (y - t) * (y - t), lambda y, t: y - t, factored=factored,
                settings={"factored": True} if factored else {})


@scalar
def _positive(y):
    return _TINY if y < _TINY else y  # NaN passes: a network that diverged must not look well


@scalar
def _minus_log(y):
    return -math.log(_positive(y))


@cache
def cross_entropy(normalize: bool = False) -> Loss:
    """Sigmoid output: -t ln y - (1 - t) ln(1 - y). Softmax output: -t ln y (multinomial).

    normalize: divide each example's targets by the number of its nonzero targets, as DSSTNE does for softmax; without
    it the softmax loss is that of Liang et al. 2018, as many times larger.
    """
    def value(y, t):
        if t == _ZERO:
            return _minus_log(_ONE - y)
        if t == _ONE:
            return _minus_log(y)
        return t * _minus_log(y) + (_ONE - t) * _minus_log(_ONE - y)

    return Loss(
        "cross_entropy",
        value=value,
        slope=lambda y, t: (y - t) / _positive(y * (_ONE - y)),
        sigmoid_slope=lambda y, t: y - t,
        softmax_value=lambda y, t: t * _minus_log(y) if t != _ZERO else _ZERO,
        softmax_slope=lambda y, t: -t,
        outputs=("sigmoid", "softmax"),
        targets=(0.0, 1.0),
        zero_factor=lambda y: _positive(_ONE - y),
        normalize=normalize,
        settings={"normalize": normalize},
    )


@cache
def scaled_marginal_cross_entropy(one_target: float = 0.9, zero_target: float = 0.1, one_scale: float = 1.0,
                                  zero_scale: float = 1.0) -> Loss:
    """-one_scale ln y where t > 0 and y < one_target; -zero_scale ln(1 - y) where t = 0 and y > zero_target; else 0.

    Units beyond their margin are left alone: after a while most deltas of a wide output are exactly zero. Any t > 0
    counts as a one. Source: DSSTNE, ScaledMarginalCrossEntropy, with its defaults.
    """
    if not 0 <= zero_target <= 1 or not 0 <= one_target <= 1:
        raise ValueError(f"one_target, zero_target: expected numbers in [0, 1], got {one_target}, {zero_target}")
    one, zero, one_weight, zero_weight = (np.float32(x) for x in (one_target, zero_target, one_scale, zero_scale))

    def value(y, t):
        if t > _ZERO:
            return _ZERO if y >= one else one_weight * _minus_log(y)
        return _ZERO if y <= zero else zero_weight * _minus_log(_ONE - y)

    def slope(y, t):
        if t > _ZERO:
            return _ZERO if y >= one else -one_weight / _positive(y)
        return _ZERO if y <= zero else zero_weight / _positive(_ONE - y)

    def sigmoid_slope(y, t):
        if t > _ZERO:
            return _ZERO if y >= one else one_weight * (y - _ONE)
        return _ZERO if y <= zero else zero_weight * y

    def softmax_slope(y, t):
        if t > _ZERO:
            return _ZERO if y >= one else -one_weight
        return _ZERO if y <= zero else zero_weight * y / _positive(_ONE - y)

    return Loss("scaled_marginal_cross_entropy", value, slope, sigmoid_slope=sigmoid_slope,
                softmax_slope=softmax_slope, outputs=("sigmoid", "softmax"), zero_below=zero_target,
                zero_factor=(lambda y: _ONE if y <= zero else _positive(_ONE - y)) if zero_scale == 1 else None,
                settings={"one_target": one_target, "zero_target": zero_target, "one_scale": one_scale,
                          "zero_scale": zero_scale})


LOSSES: dict[str, Callable[..., Loss]] = {
    function.__name__: function for function in (squared_error, cross_entropy, scaled_marginal_cross_entropy)
}


def get(loss: str | Loss) -> Loss:
    """The loss of that name, with its defaults, or the given one. Raises ValueError naming the known ones."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str) or loss not in LOSSES:
        raise ValueError(f"loss: expected one of {', '.join(LOSSES)} or a Loss, got {loss!r}")
    return LOSSES[loss]()


def sampled(loss: str | Loss, negatives: int = 4096, distribution: str = "uniform", *, in_batch: bool = False,
            popularity: Any = None, correct_targets: bool = True) -> Loss:
    """A loss of which a training step computes all targets, but of the zeros only some that it draws, the negatives.

    For outputs so wide that even a streaming step takes too long. Time and memory are those of the batch's targets and
    the negatives. Prediction is not affected.

    loss             one of this module, by name too, or your own
    negatives        how many units are drawn in a step, for all examples together: in order, one from each of as many
                     equal parts of the distribution
    distribution     "uniform": all units are as likely; "log_uniform": unit i with probability
                     log((i + 2) / (i + 1)) / log(units + 1), for units in order of falling popularity; "popularity":
                     in proportion to it, units never seen as the rarest
    in_batch         the targets of the batch's other examples are negatives too
    popularity       for "popularity" and for in_batch: the sparse matrix of targets, or for each unit the share of the
                     examples that have it as a target
    correct_targets  of a softmax, see below

    Sigmoid, linear and your own outputs: a zero counts n / m times where it was drawn n times and is drawn m times on
    average, so that losses and gradients are on average the exact ones. For in_batch the average is that of shuffled
    batches.

    A softmax with cross_entropy: sampled softmax. The logarithm of m / n is taken from the logit of each negative, and
    log m from those of an example's targets, though they are always there: its optimum is that of the exact loss,
    whatever the number of negatives (as TensorFlow's sampled_softmax_loss; Jean et al. 2015; for in_batch Yi et al.
    2019). correct_targets=False leaves targets as they are: then the sum of exponentials is on average the exact one,
    loss and gradient are nearer to those of the exact loss, and vary more. Either is exact where all units are drawn,
    and the nearer the more are.

    Only rows of weights that a step looks at are updated, each once, decay and the optimizer's state included, as with
    lazy optimizers.

    Raises ValueError for numbers out of range, or where popularity is missing or has no use.
    """
    return replace(get(loss), sampling=Sampling(negatives, distribution, in_batch, correct_targets, popularity))
