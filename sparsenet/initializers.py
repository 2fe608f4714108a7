"""Initial weights: a distribution and its scale, drawn from the counter-based generator.

The numbers of a weight depend on the seed, the parameter's name and the place in the whole matrix: they are the same on
every device and for any number of ranks.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsenet.kernels import random


@dataclass(frozen=True)
class Initializer:
    """weights = scale(inputs, outputs) * x, with x drawn from a distribution of unit scale.

    Raises ValueError for a distribution that is not listed and for settings that are no finite numbers.
    """

    name: str
    distribution: str
    """"symmetric": U(-1, 1); "uniform": U(0, 1); "normal": N(0, 1); "constant": 1"""
    scale: Callable[[int, int], float]
    """(number of inputs, number of outputs) of the whole matrix -> factor"""
    settings: Mapping[str, float]
    base: np.ndarray | None = field(default=None, compare=False, repr=False)
    """One number for each output, which every row begins with in place of the distribution"""

    def __post_init__(self) -> None:
        if self.distribution not in ("symmetric", "uniform", "normal", "constant"):
            raise ValueError(f"initializer {self.name!r}: distribution must be symmetric, uniform, normal or constant, "
                             f"got {self.distribution!r}")
        for key, value in self.settings.items():
            if not math.isfinite(value):
                raise ValueError(f"initializer {self.name!r}: {key} must be a finite number, got {value!r}")

    def __call__(self, key: np.uint64, shape: tuple[int, int], first: int = 0, total: int | None = None) -> np.ndarray:
        """Columns first, first + 1, … of a float32 matrix that has `total` columns in all (default: those of shape)."""
        total = shape[1] if total is None else total
        x = np.ones(shape, np.float32)
        if self.base is not None:
            x[:] = self.base[first:first + shape[1]]
        if self.distribution == "normal":
            random.normal(key, x, first, total)
        elif self.distribution != "constant":
            random.uniform(key, x, first, total)
            if self.distribution == "symmetric":
                x += x - np.float32(1)  # exact: x is a multiple of 2^-24
        x *= np.float32(self.scale(shape[0], total))
        return x


def xavier(scale: float = 1.0) -> Initializer:
    """U(-r, r), r = scale sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010; DSSTNE's is half as wide)."""
    return Initializer("xavier", "symmetric", lambda i, o: scale * np.sqrt(6 / (i + o)), {"scale": scale})


def caffe_xavier(scale: float = 1.0) -> Initializer:
    """U(-r, r), r = scale sqrt(3 / outputs) (DSSTNE, CaffeXavier)."""
    return Initializer("caffe_xavier", "symmetric", lambda i, o: scale * np.sqrt(3 / o), {"scale": scale})


def gaussian(scale: float = 0.01) -> Initializer:
    """N(0, scale^2)."""
    return Initializer("gaussian", "normal", lambda i, o: scale, {"scale": scale})


def uniform(scale: float = 0.01) -> Initializer:
    """U(-scale, scale)."""
    return Initializer("uniform", "symmetric", lambda i, o: scale, {"scale": scale})


def unit_ball(scale: float = 1.0) -> Initializer:
    """U(0, scale) (DSSTNE, UnitBall)."""
    return Initializer("unit_ball", "uniform", lambda i, o: scale, {"scale": scale})


def selu(scale: float = 1.0) -> Initializer:
    """N(0, scale^2 / inputs) (Klambauer et al. 2017)."""
    return Initializer("selu", "normal", lambda i, o: scale / np.sqrt(i), {"scale": scale})


def constant(scale: float = 0.0) -> Initializer:
    """Every weight = scale."""
    return Initializer("constant", "constant", lambda i, o: scale, {"scale": scale})


def values(value: float | np.ndarray, units: int) -> Initializer:
    """A bias: every unit = value, or unit u = value[u]. Raises ValueError where the length is not that of the units."""
    given = np.asarray(value, np.float32)
    if given.shape not in ((), (units,)):
        raise ValueError(f"bias: expected a number, or one for each of {units} units, got shape {given.shape}")
    if not np.isfinite(given).all():
        raise ValueError(f"bias: expected finite numbers, got {given[~np.isfinite(given)][0]}")
    return Initializer("values", "constant", lambda i, o: 1.0, {}, np.broadcast_to(given, units))


def log_odds(targets: Any) -> np.ndarray:
    """ln(p / (1 - p)) of each column, p = (its nonzeros + 1/2) / (rows + 1): the bias with which a sigmoid output
    begins at the popularity of each item, which saves it several epochs.

    targets  (examples, units) scipy sparse or dense

    Raises ValueError where targets are no matrix.
    """
    targets = targets if sp.issparse(targets) else np.asarray(targets)
    if targets.ndim != 2 or targets.dtype == object:
        raise ValueError(f"targets: expected a matrix (examples, units), got {targets.dtype} of shape {targets.shape}")
    counts = np.asarray((targets != 0).sum(axis=0), np.float64).reshape(-1)
    p = (counts + 0.5) / (targets.shape[0] + 1)
    return np.log(p / (1 - p)).astype(np.float32)


INITIALIZERS: dict[str, Callable[..., Initializer]] = {
    function.__name__: function
    for function in (xavier, caffe_xavier, gaussian, uniform, unit_ball, selu, constant)
}


def get(initializer: str | Initializer) -> Initializer:
    """The initializer of that name, or the given one. Raises ValueError naming the known ones."""
    if isinstance(initializer, Initializer):
        return initializer
    if not isinstance(initializer, str) or initializer not in INITIALIZERS:
        raise ValueError(f"initializer: expected one of {', '.join(INITIALIZERS)} or an Initializer, "
                         f"got {initializer!r}")
    return INITIALIZERS[initializer]()
