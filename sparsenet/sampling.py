"""How a sampled loss chooses its negatives: the settings behind losses.sampled."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

DISTRIBUTIONS = "uniform", "log_uniform", "popularity"
_WHOLE = 2**32  # cells that the outputs share


@dataclass(frozen=True)
class Sampling:
    """Which units a sampled loss looks at besides a batch's targets. Raises ValueError for what has no meaning."""

    negatives: int
    """How many units are drawn in each step, for all examples of the batch together"""
    distribution: str
    """"uniform", "log_uniform" or "popularity\""""
    in_batch: bool
    """Whether the batch's targets are negatives of its other examples too"""
    correct_targets: bool
    """Whether a softmax weighs targets as if they were drawn too"""
    popularity: Any = field(default=None, compare=False)
    """Share of the examples that have a unit as a target, (outputs) numbers in [0, 1]"""

    def __post_init__(self) -> None:
        negatives = self.negatives
        least = 0 if self.in_batch else 1
        if isinstance(negatives, bool) or not isinstance(negatives, int | np.integer) or not least <= negatives < 2**31:
            raise ValueError(f"negatives: expected an integer of at least {least}, got {negatives!r}")
        if self.distribution not in DISTRIBUTIONS:
            raise ValueError(f"distribution: expected one of {', '.join(DISTRIBUTIONS)}, got {self.distribution!r}")
        needs = self.in_batch or self.distribution == "popularity"
        if needs and self.popularity is None:
            raise ValueError("popularity: needed for in_batch=True and distribution='popularity'; pass the targets, "
                             "or the share of the examples that have each unit as a target")
        if not needs and self.popularity is not None:
            raise ValueError("popularity: is for in_batch=True and for distribution='popularity'")
        if needs:
            object.__setattr__(self, "popularity", _shares(self.popularity))

    def check_outputs(self, outputs: int) -> None:
        """Raise ValueError where a layer of so many units cannot be sampled so."""
        if self.popularity is not None and len(self.popularity) != outputs:
            raise ValueError(f"popularity: is of {len(self.popularity)} units, but the output has {outputs}")

    def tables(self, outputs: int, dtype: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
        """(starts, shares) as kernels.sampling wants them."""
        self.check_outputs(outputs)
        shares = self.popularity.astype(dtype) if self.in_batch else None
        if self.distribution == "uniform":
            return None, shares
        if self.distribution == "log_uniform":
            rank = np.arange(outputs)
            likely = np.log1p(1 / (rank + 1.0))
        else:
            seen = self.popularity[self.popularity > 0]
            likely = np.maximum(self.popularity, seen.min() if seen.size else 1.0)
        upto = np.concatenate([[0.0], np.cumsum(likely)])
        starts = np.arange(outputs + 1) + (upto / upto[-1] * (_WHOLE - outputs)).astype(np.int64)
        starts[-1] = _WHOLE
        return starts, shares


def _shares(popularity: Any) -> np.ndarray:
    """Of a matrix of targets, or as they are given. Raises ValueError for what are no shares."""
    if sp.issparse(popularity):
        matrix = sp.csr_array(popularity)  # type: ignore[call-overload]
        return np.bincount(matrix.indices[matrix.data != 0], minlength=matrix.shape[1]) / max(1, matrix.shape[0])
    shares = np.asarray(popularity, np.float64)
    if shares.ndim != 1 or not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError("popularity: expected a sparse matrix of targets, or for each unit the share of the examples "
                         "that have it as a target, a number in [0, 1]")
    return shares
