"""What an output layer computes, and how it learns, for the kernels that do both at once."""

from collections.abc import Callable
from typing import NamedTuple


class Output(NamedTuple):
    """What an output layer computes: scalar functions."""

    activation: Callable
    """z -> y; not used for a softmax"""
    value: Callable
    """(y, t) -> loss of one unit"""
    slope: Callable
    """(y, t) -> dL/dz of one unit; for a softmax y dL/dy"""
    zero_factor: Callable | None = None
    """y -> f with value(y, 0) = -ln f, 1e-12 <= f <= 1, where there is one: a CPU multiplies before it takes logarithms
    """
    quiet: float | None = None
    """z at or below which value(y, 0) and slope(y, 0) are 0, where there is one: a CPU leaves such units out"""


class Rule(NamedTuple):
    """An optimizer, as for update.update."""

    rule: Callable
    numbers: int
    """How many numbers the rule gets"""
    l2: float = 0.0
    """Of the weights, as l1; never of the bias"""
    l1: float = 0.0
    still: bool = False
    """Whether a gradient of 0, decay included, changes nothing"""
