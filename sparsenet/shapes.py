"""Agreement of array shapes, checked on the host before a kernel is launched."""

from types import SimpleNamespace
from typing import Any

import numpy as np


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


def in_fours(*arrays: Any) -> bool:
    """Whether a GPU can read the rows of all arrays in accesses of 128 bits: multiples of four float32 numbers."""
    return begin_at_16(*arrays) and all(array.dtype == np.float32 and array.shape[array.ndim - 1] % 4 == 0
                                        for array in arrays)


def begin_at_16(*arrays: Any) -> bool:
    """Whether arrays on a GPU begin at multiples of 16 bytes, as all do that a device allocates; views need not."""
    addresses = [getattr(array, "device_ctypes_pointer", None) for array in arrays]
    return all(address is None or (address.value or 0) % 16 == 0 for address in addresses)


def check_memory(**arrays: Any) -> None:
    """Of host arrays that BLAS will read and write, which knows an address and a width and nothing else.

    Raises ValueError naming the array that is not C-contiguous, or differs from the first in its dtype.
    """
    first, *_ = arrays
    for name, array in arrays.items():
        if not array.flags.c_contiguous:
            raise ValueError(f"{name}: expected a C-contiguous array, got shape {array.shape}, strides {array.strides}")
        if array.dtype != arrays[first].dtype:
            raise ValueError(f"{name}: dtype is {array.dtype}, but {first} says {arrays[first].dtype}")


def values_or(other: Any, data: Any) -> Any:
    """The values of a sparse matrix; None where all are ones: then another array fills their place among the arguments
    of a kernel that does not read it."""
    return other.reshape(-1) if data is None else data
