"""What a contestant is asked to do, and its examples. Imports NumPy alone: what else a process holds is its own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

NEGATIVES = 4096
"""Of a sampled softmax"""
BEST = 100
"""Items that are recommended to a user"""
MARGINS = 0.9, 0.1
"""Of the scaled marginal cross entropy: ones and zeros beyond them are left alone"""


class Csr(NamedTuple):
    """A sparse matrix."""

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray | None
    """None: all ones"""
    shape: tuple[int, int]


class Batch(NamedTuple):
    """Some examples: inputs as CSR, and the places of the ones in their targets."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray | None
    rows: np.ndarray
    columns: np.ndarray

    @property
    def input_rows(self) -> np.ndarray:
        """The row of each entry of the inputs."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))


class Steps(NamedTuple):
    """What a contestant made of a task."""

    step: Callable[[], object]
    """Does the next piece of work; all of it is done when it returns"""
    batches: int = 1
    """In a piece"""
    warm: int = 3
    """Pieces before the first timed one: compilers run in them"""
    about: Callable[[], dict[str, float]] = dict
    """More to tell at the end, by name"""


@dataclass(frozen=True)
class Task:
    """A workload (see sparsenet.bench.workloads), and what to do with it; made of JSON."""

    kind: str
    """"step": one training step; "trained": the same after an epoch; "epoch": pieces of an epoch; "input": gradient and
    update of the input's weights; "best": the best outputs of a batch of users"""
    name: str
    features: int
    hidden: tuple[int, ...]
    outputs: int
    output: str
    batch: int
    data: str
    """File of the batches that steps are timed with"""
    epoch: str
    """File of a whole epoch, "" where none is wanted"""
    by: str
    variant: str
    precision: str = "float32"
    optimizer: str = "adam"
    loss: str = "cross_entropy"
    """"cross_entropy", "margins" or "sampled\""""
    valued: bool = False
    small: int = 1
    """By how much sizes were divided"""
    pieces: int = 20
    """In which an epoch is made"""
    weights: str = "float32"
    """What sparsenet stores weights in"""
    most_memory: int = 0
    """Bytes that the process may take; 0: any number"""

    def examples(self) -> tuple[Csr, Csr]:
        """(inputs, targets)."""
        return read(self.data)

    @cached_property
    def batches(self) -> list[Batch]:
        """The batches that steps are timed with."""
        return list(self.batches_of(*self.examples()))

    def batches_of_epoch(self) -> Iterator[Batch]:
        """All batches of the epoch, one after the other."""
        return self.batches_of(*read(self.epoch))

    def batches_of(self, inputs: Csr, targets: Csr) -> Iterator[Batch]:
        """Batches of examples in their order."""
        for first in range(0, inputs.shape[0], self.batch):
            (x, indptr), (t, starts) = (_part(matrix, first, self.batch) for matrix in (inputs, targets))
            values = None if inputs.data is None else inputs.data[x]
            yield Batch(indptr, inputs.indices[x], values, np.repeat(np.arange(len(starts) - 1), np.diff(starts)),
                        targets.indices[t])

    def log_odds(self) -> np.ndarray:
        """ln(p / (1 - p)) of each output's popularity p: where its bias begins."""
        _, targets = read(self.epoch or self.data)
        p = (np.bincount(targets.indices, minlength=self.outputs) + 0.5) / (targets.shape[0] + 1)
        return np.log(p / (1 - p)).astype(np.float32)

    @property
    def negatives(self) -> int:
        """Of a sampled softmax."""
        return max(4, NEGATIVES // self.small)

    @property
    def best(self) -> int:
        """How many items are recommended."""
        return max(4, BEST // self.small)


def write(path: Path, inputs: "Csr", targets: "Csr | None") -> None:
    """Write examples; targets: None where they are the inputs."""
    arrays = {}
    for name, matrix in (("inputs", inputs), ("targets", targets)):
        if matrix is not None:
            arrays |= {f"{name} indptr": matrix.indptr.astype(np.int64),
                       f"{name} indices": matrix.indices.astype(np.int32), f"{name} shape": np.array(matrix.shape)}
            if matrix.data is not None and matrix.data.dtype != bool:
                arrays[f"{name} data"] = matrix.data
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read(path: str) -> tuple[Csr, Csr]:
    """(inputs, targets) of a file, the same where it has only inputs."""
    with np.load(path) as file:
        found = [Csr(file[f"{name} indptr"], file[f"{name} indices"],
                     file.get(f"{name} data"),
                     (int(file[f"{name} shape"][0]), int(file[f"{name} shape"][1])))
                 for name in ("inputs", "targets") if f"{name} indptr" in file]
    return found[0], found[-1]


def _part(matrix: Csr, first: int, count: int) -> tuple[slice, np.ndarray]:
    """(where the entries of some rows stand, their row pointers)."""
    indptr = matrix.indptr[first:first + count + 1]
    return slice(indptr[0], indptr[-1]), indptr - indptr[0]
