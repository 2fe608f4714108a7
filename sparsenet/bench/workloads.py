"""The reference workloads: networks, and examples like the data that they stand for, at full size or smaller.

W1  DSSTNE's example network: MovieLens 20M, 26,744 items -> 128 sigmoid -> 26,744 sigmoid, cross entropy
W2  DSSTNE's benchmark network: three hidden layers of 1,024
W3  extreme classification of Amazon-670K's shape: 135,909 features -> 128 -> softmax over 670,091 labels
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import scipy.sparse as sp

from sparsenet import losses
from sparsenet.device import Device
from sparsenet.layers import Dense, Input
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

    def network(self, device: str | Device | None, precision: str = "float32") -> Network:
        """The network, not yet trained."""
        x = layer = Input(self.features, sparse=True)
        for units in self.hidden:
            layer = Dense(units, "sigmoid")(layer)
        return Network(x, Dense(self.outputs, self.output)(layer), losses.cross_entropy(), seed=1, device=device,
                       precision=precision)


WORKLOADS = {one.name: one for one in (
    Workload("W1", 26_744, (128,), 26_744, 143),
    Workload("W2", 26_744, (1024, 1024, 1024), 26_744, 143),
    Workload("W3", 135_909, (128,), 670_091, 76, labels=5, output="softmax", batches=8),
)}


@cache
def _examples(workload: Workload) -> tuple[sp.csr_array, sp.csr_array]:
    count = workload.batch * workload.batches
    inputs = _popular(count, workload.features, workload.per_example, seed=1)
    return inputs, inputs if workload.labels is None else _popular(count, workload.outputs, workload.labels, seed=2)


def _popular(examples: int, width: int, per_example: int, seed: int) -> sp.csr_array:
    """Boolean rows, lengths and popularity skewed as in MovieLens 20M."""
    random = np.random.default_rng(seed)
    lengths = np.minimum(random.lognormal(np.log(0.55 * per_example), 1.1, examples).astype(np.int64) + 1, width)
    weights = 1 / (np.arange(width) + width / 180) ** 1.25
    columns = random.choice(width, lengths.sum(), p=random.permutation(weights / weights.sum()))
    rows = np.repeat(np.arange(examples), lengths)
    matrix = sp.csr_array((np.ones(len(rows), bool), (rows, columns)), shape=(examples, width))
    matrix.sum_duplicates()
    return matrix
