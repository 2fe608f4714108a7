"""Sparse input on one thread of the CPU beside PyTorch's, taking turns, in CPU time: ratios.

    pytest tests/benchmarks/test_sparse.py -m benchmark -s

The update is the batch turned by feature, the steps that its rows missed, their gradient and the optimizer's step.
"""

import time

import numba
import numpy as np
import pytest

from sparsenet import optimizers
from sparsenet.bench.workloads import WORKLOADS
from sparsenet.device import device
from sparsenet.kernels.sparse import sparse_forward, sparse_update
from sparsenet.kernels.update import ROOM
from sparsenet.layers.backlog import Backlog
from sparsenet.layers.batch import SparseBatch

torch = pytest.importorskip("torch")

FEATURES, BATCH, ROUNDS = WORKLOADS["W1"].features, WORKLOADS["W1"].batch, 12
GOALS = {"forward": 1, "sgd": 6, "adam": 3}

pytestmark = pytest.mark.benchmark


@pytest.fixture(autouse=True)
def one_thread():
    ours, theirs = numba.get_num_threads(), torch.get_num_threads()
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    yield
    numba.set_num_threads(ours)
    torch.set_num_threads(theirs)


@pytest.fixture(scope="module")
def parts():
    """Batches like MovieLens 20M's: 36,000 nonzeros of 10,000 features."""
    x, _ = WORKLOADS["W1"].examples()
    return [x[first:first + BATCH] for first in range(0, x.shape[0] - BATCH + 1, BATCH)]


@pytest.mark.parametrize("units", [128, 1024])
@pytest.mark.parametrize("what", GOALS)
def test_beside_torch(what, units, parts):
    random = np.random.default_rng(0)
    weight = random.normal(size=(FEATURES, units)).astype(np.float32)
    delta = random.normal(0, 1e-3, (BATCH, units)).astype(np.float32)
    peers = {"forward": {"int32": (np.int32,), "int64": (np.int64,)},
             "sgd": {"sparse": (True, torch.optim.SGD, {}), "dense": (False, torch.optim.SGD, {})},
             "adam": {"fused": (False, torch.optim.Adam, {"fused": True})}}[what]
    ours, theirs = (ours_forward, torch_forward) if what == "forward" else (ours_update, torch_update)
    steps = {"sparsenet": ours(parts, weight.copy(), delta, *[] if what == "forward" else [what]),
             **{f"torch {name}": theirs(parts, weight.copy(), delta, *more) for name, more in peers.items()}}
    spent = {name: [] for name in steps}
    for turn in range(ROUNDS):
        for name, step in steps.items():
            spent[name].append(step(turn % len(parts)))
    medians = {name: 1e3 * np.median(times[2:]) for name, times in spent.items()}
    ratio = min(list(medians.values())[1:]) / medians["sparsenet"]
    told = ", ".join(f"{name} {milliseconds:.2f} ms" for name, milliseconds in medians.items())
    print(f"\n{what}, {units} units: {told}: {ratio:.2f} times as fast, goal {GOALS[what]}")
    assert ratio > (0.5 if what == "forward" else 1)


def timed(call):
    started = time.process_time()
    call()
    return time.process_time() - started


def loaded(parts):
    """Each batch in a room of its own, turned by feature once."""
    found = []
    for part in parts:
        batch = SparseBatch(device("cpu"), BATCH, part.nnz, FEATURES, True, np.float32)
        batch.load(part, np.arange(BATCH))
        batch.by_feature(every=False)
        found.append(batch)
    return found


def ours_forward(parts, weight, delta):
    batches, y = loaded(parts), np.zeros_like(delta)
    return lambda i: timed(lambda: sparse_forward(batches[i].indptr, batches[i].indices, None, weight, y))


def ours_update(parts, weight, delta, name):
    optimizer, made = optimizers.OPTIMIZERS[name](0.001), 0
    batches, slots = loaded(parts), np.zeros((optimizer.slots, *weight.shape), np.float32)
    backlog = Backlog(device("cpu"), optimizer, FEATURES, np.float32) if optimizer.catches_up else None
    scratch = np.zeros((64, weight.shape[1]), np.float32)

    def step(i):
        nonlocal made
        made += 1
        numbers = optimizer.scalars(made)
        features, indptr, examples, positions, touched = batches[i].turn(every=False)
        if backlog is not None:
            backlog.owe(weight, slots, numbers)
            backlog.pay(features, touched, weight, slots)
        sparse_update(optimizer.rule, features, indptr, examples, positions, touched, None, delta, weight, slots, 0.0,
                      0.0, np.resize(np.array(numbers, np.float32), ROOM.shape), optimizer.numbers, scratch)

    return lambda i: timed(lambda: step(i))


def listed(part, kind):
    """What an EmbeddingBag takes."""
    return torch.from_numpy(part.indices.astype(kind)), torch.from_numpy(part.indptr[:-1].astype(kind))


def torch_forward(parts, weight, delta, kind):
    bags, weight = [listed(part, kind) for part in parts], torch.from_numpy(weight)

    def forward(i):
        with torch.no_grad():
            torch.nn.functional.embedding_bag(bags[i][0], weight, bags[i][1], mode="sum")

    return lambda i: timed(lambda: forward(i))


def torch_update(parts, weight, delta, sparse, kind, options):
    bags, delta = [listed(part, np.int64) for part in parts], torch.from_numpy(delta)
    bag = torch.nn.EmbeddingBag(FEATURES, weight.shape[1], mode="sum", sparse=sparse, _weight=torch.from_numpy(weight))
    optimizer = kind(bag.parameters(), lr=0.001, **options)

    def step(y):
        optimizer.zero_grad()
        y.backward(delta)
        optimizer.step()

    def turn(i):
        y = bag(*bags[i])
        return timed(lambda: step(y))

    return turn
