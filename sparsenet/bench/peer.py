"""The same training steps in PyTorch: an EmbeddingBag for the sparse input, its own products, fused Adam.

The losses are computed from logits as a careful user would: no dense copy of the targets.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsenet.bench.workloads import Workload


def training_steps(workload: Workload, precision: str, compiled: bool) -> tuple[Callable[[], None], Callable[[], None]]:
    """(a function that makes one step on the next batch, a function that waits for all steps made).

    precision  "float32"; "tf32" for products; "bfloat16": autocast of the forward pass
    compiled   torch.compile for the network and its loss

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

        def forward(self, indices: Any, offsets: Any) -> Any:
            y = torch.sigmoid(self.bag(indices, offsets) + self.bias)
            for layer in self.layers[:-1]:
                y = torch.sigmoid(layer(y))
            return self.layers[-1](y)

    def loss(logits: Any, rows: Any, columns: Any) -> Any:
        logits = logits.float()
        chosen = logits[rows, columns].sum()
        if workload.output == "softmax":
            weights = torch.bincount(rows, minlength=len(logits))
            return ((logits.logsumexp(1) * weights).sum() - chosen) / len(logits)
        return (functional.softplus(logits).sum() - chosen) / len(logits)

    peer = Peer().to(place)
    optimizer = torch.optim.Adam(peer.parameters(), lr=1e-3, fused=True)
    batches = [tuple(torch.as_tensor(array, device=place) for array in batch) for batch in _batches(workload)]

    def objective(indices: Any, offsets: Any, rows: Any, columns: Any) -> Any:
        with torch.autocast(place.type, torch.bfloat16, enabled=precision == "bfloat16"):
            logits = peer(indices, offsets)
        return loss(logits, rows, columns)

    objective = torch.compile(objective, dynamic=True) if compiled else objective
    made = 0

    def step() -> None:
        nonlocal made
        optimizer.zero_grad(set_to_none=True)
        objective(*batches[made % len(batches)]).backward()
        optimizer.step()
        made += 1

    return step, torch.cuda.synchronize if place.type == "cuda" else lambda: None


def _batches(workload: Workload) -> list[tuple[Any, ...]]:
    """(indices, offsets of the inputs; rows, columns of the targets) of each batch."""
    inputs, targets = workload.examples()
    found: list[tuple[Any, ...]] = []
    for start in range(0, inputs.shape[0], workload.batch):
        x, t = inputs[start:start + workload.batch], targets[start:start + workload.batch].tocoo()
        found.append((x.indices.astype(np.int64), x.indptr[:-1].astype(np.int64), t.coords[0].astype(np.int64),
                      t.coords[1].astype(np.int64)))
    return found
