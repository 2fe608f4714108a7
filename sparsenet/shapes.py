"""Agreement of array shapes, checked on the host before a kernel is launched."""

from types import SimpleNamespace
from typing import Any


def check(**specs: tuple[Any, str]) -> SimpleNamespace:
    """check(y=(y, "batch units"), bias=(bias, "units")) -> sizes with .batch and .units

    Every array must have as many axes as its words, and a word must mean the same size everywhere.

    Raises ValueError naming both arrays where they disagree.
    """
    sizes: dict[str, int] = {}
    owner: dict[str, str] = {}
    for name, (array, words) in specs.items():
        axes = words.split()
        if len(array.shape) != len(axes):
            raise ValueError(f"{name}: expected {len(axes)} axes ({words}), got shape {tuple(array.shape)}")
        for axis, size in zip(axes, array.shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                raise ValueError(f"{name}: axis '{axis}' is {size}, but {owner[axis]} says {sizes[axis]}")
            owner.setdefault(axis, name)
    return SimpleNamespace(**sizes)


def values_or(other: Any, data: Any) -> Any:
    """The values of a sparse matrix; None where all are ones: then another array fills their place among the arguments
    of a kernel that does not read it."""
    return other.reshape(-1) if data is None else data
