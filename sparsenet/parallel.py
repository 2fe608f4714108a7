"""Communicators: how the ranks of a job exchange what each holds a slice of.

A layer is written for slices: this rank's units of every activation, its columns of every weight matrix. On one rank
a slice is the whole and every exchange is nothing.
"""

from sparsenet.device import Array


class Solo:
    """One rank. Each exchange stands beside its conjugate, which the backward pass uses."""

    rank = 0
    size = 1

    def bounds(self, units: int) -> tuple[int, int]:
        """First unit of this rank's slice, and the one after its last."""
        return 0, units

    def gather(self, local: Array) -> Array:
        """(batch, local units) of every rank -> (batch, units)."""
        return local

    def spread(self, local: Array) -> Array:
        """Conjugate of gather, first half: an array (batch, units) for this rank's part of the sum."""
        return local

    def reduce_scatter(self, partial: Array, local: Array) -> None:
        """Conjugate of gather, second half: local += this rank's slice of the sum of all ranks' partial arrays."""

    def all_reduce_sum(self, array: Array) -> None:
        """array = its sum over ranks."""

    def all_reduce_max(self, array: Array) -> None:
        """array = its largest values over ranks."""
