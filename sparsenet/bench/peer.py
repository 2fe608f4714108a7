"""The same training steps in PyTorch: an EmbeddingBag for the sparse input, its own products and optimizers.

The losses are computed from logits as a careful user would: no dense copy of the targets. Nothing of sparsenet is
imported, so that a process that measures PyTorch's memory can run this file alone.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sparsenet.bench.workloads import Workload

_ONE, _ZERO = math.log(0.9 / 0.1), math.log(0.1 / 0.9)  # logits of the margins 0.9 and 0.1


def training_steps(workload: "Workload", precision: str, compiled: bool, optimizer: str = "adam",
                   margins: bool = False) -> tuple[Callable[[], None], Callable[[], None]]:
    """(a function that makes one step on the next batch, a function that waits for all steps made).

    precision  "float32"; "tf32" for products; "bfloat16": autocast of the forward pass
    compiled   torch.compile for the network and its loss
    optimizer  "adam", "rmsprop" or "sgd"
    margins    scaled marginal cross entropy with its defaults in place of cross entropy, for sigmoid outputs; but for a
               constant, with the same gradients

    Raises ImportError where PyTorch is missing.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    torch.manual_seed(1)
    place = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    class Peer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            first, *rest = workload.hidden
            self.bag = nn.EmbeddingBag(workload.features, first, mode="sum")
            self.bias = nn.Parameter(torch.zeros(first))
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in
                                        zip(workload.hidden, [*rest, workload.outputs], strict=True))

        def forward(self, indices: Any, offsets: Any, values: Any) -> Any:
            y = torch.sigmoid(self.bag(indices, offsets, per_sample_weights=values) + self.bias)
            for layer in self.layers[:-1]:
                y = torch.sigmoid(layer(y))
            return self.layers[-1](y)

    def loss(logits: Any, ones: Any, rows: Any, columns: Any) -> Any:
        logits = logits.float()
        chosen = logits[rows, columns]
        if workload.output == "softmax":
            return ((logits.logsumexp(1) * ones).sum() - chosen.sum()) / len(logits)
        if not margins:
            return (functional.softplus(logits).sum() - chosen.sum()) / len(logits)
        # Held at the margin the loss has no slope: the same gradients, and half the time of a comparison.
        as_ones = functional.softplus(-chosen.clamp(max=_ONE))
        return (as_zeros(logits).sum() + (as_ones - as_zeros(chosen)).sum()) / len(logits)

    def as_zeros(logits: Any) -> Any:
        return functional.softplus(logits.clamp(min=_ZERO))

    peer = Peer().to(place)
    rule = {"adam": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
            "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
            "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, fused=True)}[optimizer](peer.parameters())
    batches = [tuple(None if array is None else torch.as_tensor(array, device=place) for array in batch)
               for batch in _batches(workload)]

    def objective(indices: Any, offsets: Any, values: Any, ones: Any, rows: Any, columns: Any) -> Any:
        with torch.autocast(place.type, torch.bfloat16, enabled=precision == "bfloat16"):
            logits = peer(indices, offsets, values)
        return loss(logits, ones, rows, columns)

    update: Any = rule.step
    if compiled:
        objective = torch.compile(objective, dynamic=True)
        if optimizer == "rmsprop":  # the others are fused as they are
            update = torch.compile(update)
    made = 0

    def step() -> None:
        nonlocal made
        rule.zero_grad(set_to_none=True)
        objective(*batches[made % len(batches)]).backward()
        update()
        made += 1

    return step, torch.cuda.synchronize if place.type == "cuda" else lambda: None


def _batches(workload: "Workload") -> list[tuple[Any, ...]]:
    """(indices, offsets, values or None of the inputs; number of ones in each target, their rows and columns) of each
    batch."""
    inputs, targets = workload.examples()
    found: list[tuple[Any, ...]] = []
    for first in range(0, inputs.shape[0], workload.batch):
        (x, offsets), (t, starts) = (_part(matrix, first, workload.batch) for matrix in (inputs, targets))
        values = inputs.data[x] if workload.valued else None
        ones = np.diff(starts)
        found.append((inputs.indices[x].astype(np.int64), offsets[:-1], values, ones,
                      np.repeat(np.arange(len(ones)), ones), targets.indices[t].astype(np.int64)))
    return found


def _part(matrix: Any, first: int, count: int) -> tuple[slice, np.ndarray]:
    """(where the entries of some rows stand, their row pointers)."""
    indptr = matrix.indptr[first:first + count + 1].astype(np.int64)
    return slice(indptr[0], indptr[-1]), indptr - indptr[0]
