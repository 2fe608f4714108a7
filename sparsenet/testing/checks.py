"""The one place of tolerances: how far a result of rounded arithmetic may lie from the exact one."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsenet.device import device_of

ROUNDINGS = 8  # of one term: products, a quotient, library functions (CUDA's are right to 4 units in the last place)


def assert_close(actual: Any, expected: Any, *, terms: int = 1, dtype: Any = np.float32, scale: Any = None,
                 name: str = "result") -> None:
    """Assert |actual - expected| <= eps (terms + 8) scale + terms tiny, element by element.

    A sum of n numbers, added in any order in a type of precision eps, is off by less than n eps times the sum of
    their magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 4.2); 8 stands for the
    roundings that made each term, and tiny, the smallest normal number, for results that underflow.

    actual    array of any device, or number    what was computed
    expected  array or number                   the exact value, in float64
    terms     how many numbers were summed
    dtype     the type in which they were summed; for integer and boolean results only equality is close
    scale     array or number                   the sum of their magnitudes; default: |expected|, the magnitude of the
                                                sum, which is less where terms cancel
    name      what the message calls it

    Infinities and NaN must stand in the same places. Raises AssertionError naming the worst element.
    """
    actual, expected = _on_host(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        raise AssertionError(f"{name}: expected shape {expected.shape}, got {actual.shape}")
    if np.issubdtype(expected.dtype, np.inexact) or np.issubdtype(actual.dtype, np.inexact):
        precision = np.finfo(dtype)
        magnitude = np.broadcast_to(np.abs(expected if scale is None else scale), expected.shape).astype(np.float64)
        allowed = np.float64(precision.eps) * (terms + ROUNDINGS) * magnitude + terms * np.float64(precision.tiny)
        sum_of = f"{terms} term{'s' * (terms != 1)} of {np.dtype(dtype).name}"
    else:
        magnitude, allowed, sum_of = np.zeros(expected.shape), np.zeros(expected.shape), "integers"
    with np.errstate(invalid="ignore"):
        error = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    error = np.where(same, 0, np.where(np.isfinite(error), error, np.inf))
    wrong = ~same & ~(np.isfinite(error) & (error <= allowed))
    if not wrong.any():
        return
    excess = np.where(wrong, error / np.maximum(allowed, np.finfo(np.float64).tiny), 0)
    worst = np.unravel_index(np.argmax(excess), expected.shape)
    place = f"[{', '.join(map(str, worst))}]" if worst else ""
    raise AssertionError(
        f"{name}{place}: got {actual[worst]!r}, expected {expected[worst]!r}; they differ by {error[worst]:.3g}, "
        f"allowed {allowed[worst]:.3g} ({sum_of}, magnitude {magnitude[worst]:.3g}). "
        f"{np.count_nonzero(wrong)} of {expected.size} elements differ.")


def _on_host(value: Any) -> np.ndarray:
    if isinstance(value, int | float | list | tuple | np.generic | np.ndarray):
        return np.asarray(value)
    return device_of(value).fetch(value)


TRAINED_ALIKE = {np.dtype(np.float32): 1e-5, np.dtype(np.float64): 1e-12}  # shares of the largest parameter
ADAPTIVE = 10  # times that where steps are divided by the size of the gradient: rounding of small ones is magnified


def assert_trained_alike(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], *, adaptive: bool,
                         dtype: Any = np.float32) -> float:
    """Assert that two runs of a few dozen steps ended with the same parameters; returns the largest difference.

    actual    parameters by name, trained in dtype
    expected  the same, trained in float64
    adaptive  whether the optimizer divides by the size of the gradient (adagrad, rmsprop, adadelta, adam)

    Differences are shares of the largest |expected| of the whole network. Raises AssertionError naming the parameter.
    """
    if actual.keys() != expected.keys():
        raise AssertionError(f"expected parameters {', '.join(expected)}, got {', '.join(actual)}")
    largest = max(float(np.abs(array).max()) for array in expected.values())
    allowed = TRAINED_ALIKE[np.dtype(dtype)] * (ADAPTIVE if adaptive else 1)
    worst = 0.0
    for name, array in expected.items():
        if actual[name].shape != array.shape:
            raise AssertionError(f"{name}: expected shape {array.shape}, got {actual[name].shape}")
        share = float(np.abs(actual[name].astype(np.float64) - array).max()) / largest
        if not share <= allowed:
            raise AssertionError(f"{name}: differs by {share:.3g} of the largest parameter, allowed {allowed:.3g}")
        worst = max(worst, share)
    return worst
