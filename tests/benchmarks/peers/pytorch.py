"""PyTorch: training steps, eager or compiled, and by hand what it does not offer ready made."""

import importlib.util
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.benchmarks.peers.task import MARGINS, Batch, Steps, Task

_PEER = Path(__file__).parents[3] / "sparsenet" / "bench" / "peer.py"


def steps(task: Task) -> Steps:
    """What is timed. Variants: "eager" and "compiled" networks; "trick" for kind "trained"; "dense" and "sparse"
    gradients for kind "input"."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(1)
    if task.kind == "input":
        return Steps(_input(task))
    if task.kind == "best":
        return Steps(_best(task))
    if task.variant == "trick":
        return _trick(task)
    if task.loss == "sampled":
        return Steps(_sampled(task))
    spec = importlib.util.spec_from_file_location("peer", _PEER)  # by path: sparsenet's own memory is not PyTorch's
    assert spec is not None
    assert spec.loader is not None
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    step, _ = peer.training_steps(task, task.precision, task.variant == "compiled", task.optimizer,
                                  task.loss == "margins")
    return Steps(step)


def _tensors(batch: Batch) -> list[Any]:
    """indices, offsets, values or None, rows and columns of the targets."""
    arrays = (batch.indices.astype(np.int64), batch.indptr[:-1], batch.values, batch.rows,
              batch.columns.astype(np.int64))
    return [None if array is None else torch.from_numpy(array) for array in arrays]


def _in_turn(task: Task, step: Callable[..., object]) -> Callable[[], object]:
    """A function that takes a step with the next batch."""
    batches, made = [_tensors(batch) for batch in task.batches], 0

    def again() -> object:
        nonlocal made
        made += 1
        return step(*batches[made % len(batches)])

    return again


def _optimizer(name: str, parameters: Any) -> Any:
    return {"sgd": lambda: torch.optim.SGD(parameters, lr=1e-2),
            "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=1e-3),
            "adam": lambda: torch.optim.Adam(parameters, lr=1e-3, fused=True)}[name]()


def _input(task: Task) -> Callable[[], object]:
    """Gradient and update of an EmbeddingBag whose forward passes were made before: they do not depend on it."""
    bag = nn.EmbeddingBag(task.features, task.hidden[0], mode="sum", sparse=task.variant == "sparse")
    optimizer = _optimizer(task.optimizer, bag.parameters())
    delta = 1e-3 * torch.randn(task.batch, task.hidden[0])
    outs = [bag(indices, offsets) for indices, offsets, *_ in map(_tensors, task.batches)]
    made = 0

    def step() -> None:
        nonlocal made
        optimizer.zero_grad(set_to_none=True)
        outs[made % len(outs)].backward(delta, retain_graph=True)
        optimizer.step()
        made += 1

    return step


def _best(task: Task) -> Callable[[], object]:
    """The best items of each user, without those in his input."""
    low = task.precision == "bfloat16"
    dims = [task.features, *task.hidden, task.outputs]
    first, *rest = [torch.randn(a, b) * a**-0.5 for a, b in pairwise(dims)]
    weights = [weight.t().contiguous().to(torch.bfloat16 if low else torch.float32) for weight in rest]
    bias = torch.from_numpy(task.log_odds()).to(weights[-1].dtype)

    def scores(h: Any) -> Any:
        h = torch.sigmoid(h).to(weights[-1].dtype)
        for weight in weights[:-1]:
            h = torch.sigmoid(functional.linear(h, weight))
        return functional.linear(h, weights[-1], bias)

    scores = torch.compile(scores, dynamic=True) if task.variant == "compiled" else scores

    @torch.inference_mode()
    def step(indices: Any, offsets: Any, values: Any, rows: Any, columns: Any) -> object:
        z = scores(functional.embedding_bag(indices, first, offsets, mode="sum", per_sample_weights=values))
        z[rows, columns] = -torch.inf
        return torch.topk(z, task.best)

    return _in_turn(task, step)


def _sampled(task: Task) -> Callable[[], object]:
    """Softmax over a batch's own labels and uniform negatives; SparseAdam for the rows that it names."""
    units = task.hidden[0]
    bag = nn.EmbeddingBag(task.features, units, mode="sum", sparse=True)
    weight, bias = (nn.Embedding(task.outputs, width, sparse=True) for width in (units, 1))
    nn.init.normal_(weight.weight, std=0.05)
    nn.init.zeros_(bias.weight)
    hidden_bias = nn.Parameter(torch.zeros(units))
    tables = torch.optim.SparseAdam([*bag.parameters(), *weight.parameters(), *bias.parameters()], lr=1e-3)
    dense = torch.optim.Adam([hidden_bias], lr=1e-3)

    def step(indices: Any, offsets: Any, values: Any, rows: Any, columns: Any) -> None:
        tables.zero_grad(set_to_none=True)
        dense.zero_grad(set_to_none=True)
        drawn = torch.randint(0, task.outputs, (task.negatives,))
        candidates, places = torch.unique(torch.cat([columns, drawn]), return_inverse=True)
        h = torch.sigmoid(bag(indices, offsets, per_sample_weights=values) + hidden_bias)
        z = functional.linear(h, weight(candidates), bias(candidates).squeeze(1))
        loss = -functional.log_softmax(z, 1)[rows, places[:len(columns)]].sum() / len(h)
        loss.backward()
        tables.step()
        dense.step()

    return _in_turn(task, step)


def _trick(task: Task) -> Steps:
    """Scaled marginal cross entropy for one hidden layer as a clever user writes it: all logits, then only those units
    whose delta is not zero, as a sparse matrix. After an epoch. Targets are the inputs."""
    low, outputs, count = task.precision == "bfloat16", task.outputs, task.batch
    one, zero = (float(np.log(y / (1 - y))) for y in MARGINS)
    w1, w2 = torch.randn(task.features, task.hidden[0]) * 0.01, torch.randn(outputs, task.hidden[0]) * 0.03
    b1, b2 = torch.zeros(task.hidden[0]), torch.from_numpy(task.log_odds())
    squares = [torch.zeros_like(parameter) for parameter in (w1, w2, b1, b2)]
    active: list[int] = []

    def sparse(starts: Any, columns: Any, values: Any, shape: tuple[int, int]) -> Any:
        indptr = torch.cat([torch.zeros(1, dtype=torch.long), torch.bincount(starts, minlength=shape[0]).cumsum(0)])
        return torch.sparse_csr_tensor(indptr, columns, values, size=shape)

    def update(parameter: Any, square: Any, gradient: Any) -> None:
        if task.optimizer == "sgd":
            parameter.sub_(gradient, alpha=1e-2)
        else:
            square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
            parameter.addcdiv_(gradient, square.sqrt().add_(1e-8), value=-1e-3)

    @torch.inference_mode()
    def step(indices: Any, offsets: Any, _values: Any, rows: Any, columns: Any) -> None:
        h = torch.sigmoid(functional.embedding_bag(indices, w1, offsets, mode="sum") + b1)
        if low:
            z = functional.linear(h.bfloat16(), w2.bfloat16(), b2.bfloat16())
        else:
            z = functional.linear(h, w2, b2)
        of_ones = z[rows, columns].float()
        z[rows, columns] = -torch.inf
        zeros = (z > zero).flatten().nonzero().squeeze(1)
        ones = of_ones < one
        places = torch.cat([zeros, (rows * outputs + columns)[ones]])
        deltas = torch.cat([torch.sigmoid(z.flatten()[zeros].float()), torch.sigmoid(of_ones[ones]) - 1]) / len(h)
        order = torch.argsort(places)
        places, deltas = places[order], deltas[order]
        r, c = places // outputs, places % outputs
        active.append(len(places))
        d_h = (sparse(r, c, deltas, (len(h), outputs)) @ w2) * h * (1 - h)
        by_output = torch.argsort(c, stable=True)
        turned = sparse(c[by_output], r[by_output], deltas[by_output], (outputs, len(h)))
        d_b2 = torch.zeros(outputs).index_add_(0, c, deltas)
        update(w2, squares[1], turned @ h)
        if task.optimizer == "sgd":
            w1.index_add_(0, indices, d_h[rows], alpha=-1e-2)
        else:
            update(w1, squares[0], torch.zeros_like(w1).index_add_(0, indices, d_h[rows]))
        update(b1, squares[2], d_h.sum(0))
        update(b2, squares[3], d_b2)

    for batch in task.batches_of_epoch():
        step(*_tensors(batch))
    return Steps(_in_turn(task, step), about=lambda: {"active": active[-1] / count})

