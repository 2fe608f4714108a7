"""Hypothesis strategies for the arguments of kernels: small, bounded, and full of awkward cases.

Values lie in [-4, 4] so that error bounds stay short. Arrays are drawn as a seed and a few properties, not number by
number: hypothesis then shrinks shapes, and a thousand elements cost no more than one.
"""

from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

LARGEST = 40  # size of an axis


class Csr(NamedTuple):
    """A sparse matrix (batch, features): row b has entries indptr[b] to indptr[b + 1] of indices and data."""

    indptr: np.ndarray
    """(batch + 1) int64"""
    indices: np.ndarray
    """(nonzeros) int32"""
    data: np.ndarray | None
    """(nonzeros) float32; None: all ones"""
    features: int
    """Number of columns."""

    @property
    def batch(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1


def sizes(smallest: int = 0, largest: int = LARGEST) -> st.SearchStrategy[int]:
    """The length of an axis."""
    return st.integers(smallest, largest)


def keys() -> st.SearchStrategy[np.uint64]:
    """Keys of random streams."""
    return st.integers(0, 2**64 - 1).map(np.uint64)


@st.composite
def dense(draw: st.DrawFn, *shape: int, low: float = -4.0, high: float = 4.0, dtype: Any = np.float32,
          exact: bool = False) -> np.ndarray:
    """An array of numbers in [low, high]: any numbers, multiples of 1/4 with many equal ones, or all the same.

    exact: multiples of 1/4 only. Sums and products of a few hundred of them are exact in float32, whatever their order.
    """
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["quarters", "any", "same"]))
    values = random.uniform(low, high, shape if kind != "same" else ())
    if exact or kind == "quarters":
        values = np.clip(np.rint(4 * values) / 4, np.ceil(4 * low) / 4, np.floor(4 * high) / 4)
    return np.ascontiguousarray(np.broadcast_to(values.astype(dtype), shape)).clip(dtype(low), dtype(high))


@st.composite
def csr(draw: st.DrawFn, batch: int, features: int, *, valued: bool | None = None, repeated: bool = True,
        ordered: bool = False, dtype: Any = np.float32, exact: bool = False, low: float = -4.0,
        high: float = 4.0) -> Csr:
    """A sparse batch with unsorted indices, empty rows, rows of every feature.

    valued: with data, or without; None: either. repeated: whether a row may name a feature more than once.
    ordered: whether a row's indices increase.
    dtype, exact, low, high: of the data, as for `dense`.
    """
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    share = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    counts = random.binomial(features, share, batch) * (random.random(batch) < draw(st.sampled_from([0.5, 1.0])))
    if repeated and draw(st.booleans()):
        rows = [random.integers(0, features, count * 2) for count in counts]
    else:
        rows = [random.permutation(features)[:count] for count in counts]
    if ordered:
        rows = [np.sort(row) for row in rows]
    indptr = np.cumsum([0] + [len(row) for row in rows], dtype=np.int64)
    indices = np.concatenate([*rows, np.empty(0)]).astype(np.int32)
    if valued is None:
        valued = draw(st.booleans())
    data = draw(dense(len(indices), dtype=dtype, exact=exact, low=low, high=high)) if valued else None
    return Csr(indptr, indices, data, features)
