"""The reference workloads: networks, and examples like the data that they stand for, at full size or smaller.

W1  DSSTNE's example network: MovieLens 20M, 26,744 items -> 128 sigmoid -> 26,744 sigmoid, cross entropy
W2  DSSTNE's benchmark network: three hidden layers of 1,024
W3  extreme classification of Amazon-670K's shape: 135,909 features -> 128 -> softmax over 670,091 labels
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsenet import losses
from sparsenet.device import Device
from sparsenet.layers import Dense, Input
from sparsenet.losses import Loss
from sparsenet.network import Network


@dataclass(frozen=True)
class Workload:
    """A network and its examples."""

    name: str
    features: int
    hidden: tuple[int, ...]
    outputs: int
    per_example: int
    """Nonzeros of an input, about"""
    labels: int | None = None
    """Nonzeros of a target, about; None: the targets are the inputs"""
    output: str = "sigmoid"
    batch: int = 256
    batches: int = 20
    """In an epoch"""
    valued: bool = False
    """Inputs are numbers in (0, 1], not all ones"""

    def smaller(self, times: int) -> "Workload":
        """The same in miniature: everything divided by `times`, and not less than 1 or 4."""
        def part(number: int) -> int:
            return max(4, number // times // 4 * 4)

        return replace(self, features=part(self.features), hidden=tuple(part(units) for units in self.hidden),
                       outputs=part(self.outputs), per_example=max(1, self.per_example // times),
                       batch=part(self.batch), batches=2)

    def examples(self) -> tuple[sp.csr_array, sp.csr_array]:
        """(inputs, targets) of one epoch, drawn once."""
        return _examples(self)

    def network(self, device: str | Device | None, precision: str = "float32", *, loss: Loss | None = None,
                bias: float | np.ndarray = 0.0, **options: Any) -> Network:
        """The network, not yet trained.

        loss     default: cross entropy
        bias     of the outputs
        options  more arguments of Network
        """
        x = layer = Input(self.features, sparse=True)
        for units in self.hidden:
            layer = Dense(units, "sigmoid")(layer)
        return Network(x, Dense(self.outputs, self.output, bias=bias)(layer), loss or losses.cross_entropy(), seed=1,
                       device=device, precision=precision, **options)


WORKLOADS = {one.name: one for one in (
    Workload("W1", 26_744, (128,), 26_744, 143),
    Workload("W2", 26_744, (1024, 1024, 1024), 26_744, 143),
    Workload("W3", 135_909, (128,), 670_091, 76, labels=5, output="softmax", batches=8, valued=True),
)}


@cache
def _examples(workload: Workload) -> tuple[sp.csr_array, sp.csr_array]:
    count = workload.batch * workload.batches
    inputs = _popular(count, workload.features, workload.per_example, seed=1)
    targets = inputs if workload.labels is None else _popular(count, workload.outputs, workload.labels, seed=2)
    if workload.valued:
        values = 1 - np.random.default_rng(3).random(inputs.nnz, np.float32)
        inputs = sp.csr_array((values, inputs.indices, inputs.indptr), shape=inputs.shape)
    return inputs, targets


def _popular(examples: int, width: int, per_example: int, seed: int) -> sp.csr_array:
    """Boolean rows, lengths and popularity skewed as in MovieLens 20M: 36,000 nonzeros in 256 rows of 26,744, of 10,000
    columns; none shorter than a seventh of the mean, half of them shorter than half of it."""
    random = np.random.default_rng(seed)
    lengths = 0.14 * per_example + random.lognormal(np.log(0.336 * per_example), 1.377, examples)
    lengths = np.clip(lengths.round(), 1, max(1, 0.346 * width)).astype(np.int64)
    weights = 1 / (np.arange(width) + width / 178) ** 1.35
    chance = random.permutation(weights / weights.sum())
    matrix: Any = sp.csr_array((examples, width), dtype=bool)
    for _ in range(3):  # what was drawn twice is drawn again
        missing = lengths - np.diff(matrix.indptr)
        columns = random.choice(width, missing.sum(), p=chance)
        rows = np.repeat(np.arange(examples), missing)
        matrix += sp.csr_array((np.ones(len(rows), bool), (rows, columns)), shape=matrix.shape)
    return matrix
