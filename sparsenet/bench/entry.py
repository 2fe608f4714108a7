"""What an entry of the catalogue is made of: sizes, arrays that wait for a device, and a batch like real ones."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sparsenet.device import Device


class Sizes(NamedTuple):
    """Of a network features -> hidden -> features, and its batches."""

    batch: int
    features: int
    hidden: int
    per_example: int
    """Nonzeros of an example, about."""
    best: int
    """Items to recommend."""
    wide: int
    """Units of two hidden layers of which one follows the other."""
    ranks: int
    """That hold slices of the output."""
    panel: int
    """Output units at a time of the streaming head."""


REFERENCE = Sizes(batch=256, features=26_744, hidden=128, per_example=143, best=100, wide=1024, ranks=4,
                  panel=8192)


class Zeros(NamedTuple):
    """An array to be made where the device is known."""

    shape: tuple[int, ...]
    dtype: type = np.float32


@dataclass(frozen=True)
class Entry:
    """One call of a host function of sparsenet.kernels; it may launch several CUDA kernels."""

    kernel: Callable
    variant: str
    """What tells its entry from the kernel's others; may be empty."""
    arguments: tuple
    """`Zeros`, host arrays, and what is no array."""
    elements: int
    """Numbers that are the result."""
    moved: int
    """Bytes to and from the GPU's memory, at the least."""
    flops: int
    options: dict[str, Any] = field(default_factory=dict)
    rate: str = "float32"
    """Which of a card's rates limits the FLOPs: "float32", "tf32" or "bfloat16"."""

    @property
    def name(self) -> str:
        """Of kernel and variant, "matmul-forward" for example."""
        return f"{self.kernel.__name__}-{self.variant}" if self.variant else self.kernel.__name__

    def bind(self, device: Device, values: Callable[[tuple[int, ...]], np.ndarray] | None = None) -> Callable[[], None]:
        """A function that makes the call, with arrays made now; values: shape -> what float32 `Zeros` hold instead."""
        def made(argument: Any) -> Any:
            if isinstance(argument, Zeros):
                if values is None or argument.dtype is not np.float32:
                    return device.zeros(*argument)
                argument = values(argument.shape)
            return device.put(argument) if isinstance(argument, np.ndarray) else argument

        arguments = [made(argument) for argument in self.arguments]
        options = {name: made(option) for name, option in self.options.items()}
        return lambda: self.kernel(*arguments, **options)


class Sparse(NamedTuple):
    """A batch by example and by feature, as the kernels take it."""

    indptr: np.ndarray
    indices: np.ndarray
    features: np.ndarray
    starts: np.ndarray
    examples: np.ndarray
    positions: np.ndarray


@cache
def sparse_batch(sizes: Sizes) -> Sparse:
    """A batch with lengths and popularities like those of MovieLens 20M: skewed both."""
    random = np.random.default_rng(0)
    lengths = random.lognormal(np.log(0.55 * sizes.per_example), 1.2, sizes.batch).astype(np.int64) + 1
    weights = 1 / (np.arange(sizes.features) + sizes.features / 180) ** 1.25
    popular = random.permutation(weights / weights.sum())
    drawn = random.choice(sizes.features, lengths.sum(), p=popular)
    entries = np.unique(np.repeat(np.arange(sizes.batch), lengths) * sizes.features + drawn)
    examples, indices = np.divmod(entries, sizes.features)
    positions = np.argsort(indices, kind="stable")
    features, counts = np.unique(indices, return_counts=True)
    return Sparse(
        np.searchsorted(examples, np.arange(sizes.batch + 1)), indices.astype(np.int32), features.astype(np.int32),
        np.concatenate([[0], np.cumsum(counts)]), examples[positions].astype(np.int32), positions.astype(np.int32))
