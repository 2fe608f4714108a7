"""sparsenet, as a user runs it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

import sparsenet as sn
from sparsenet.bench.workloads import Workload
from sparsenet.kernels.update import ROOM
from sparsenet.layers import Dense, Input
from sparsenet.training import bind
from tests.benchmarks.peers.task import Csr, Steps, Task, read


def steps(task: Task) -> Steps:
    """What is timed."""
    if task.kind == "input":
        return Steps(_input(task))
    if task.kind == "best":
        return Steps(_best(task))
    if task.kind == "epoch":
        return _pieces_of_an_epoch(task)
    network = _network(task)
    if task.kind == "trained":
        sn.fit(network, *_matrices(*read(task.epoch)), optimizer=_optimizer(task), epochs=1, batch=task.batch,
               progress=False)
    return Steps(_training_step(task, network))


def _network(task: Task) -> sn.Network:
    workload = Workload(task.name, task.features, task.hidden, task.outputs, per_example=1, output=task.output)
    loss = {"cross_entropy": sn.losses.cross_entropy, "margins": sn.losses.scaled_marginal_cross_entropy,
            "sampled": lambda: sn.losses.sampled(sn.losses.cross_entropy(), negatives=task.negatives)}[task.loss]()
    bias = 0.0 if task.kind == "step" else task.log_odds()
    storage = {} if task.weights == "float32" else {"weights": task.weights}
    return workload.network("cpu", task.precision, loss=loss, bias=bias, **storage)


def _optimizer(task: Task) -> Any:
    rates = {"sgd": 1e-2, "rmsprop": 1e-3, "adam": 1e-3}
    return sn.optimizers.OPTIMIZERS[task.optimizer](rates[task.optimizer])


def _matrices(inputs: Csr, targets: Csr) -> tuple[sp.csr_array, sp.csr_array]:
    """The same object twice where the targets are the inputs."""
    x = _matrix(inputs)
    return x, x if targets is inputs else _matrix(targets)


def _matrix(csr: Csr) -> sp.csr_array:
    data = np.ones(len(csr.indices), bool) if csr.data is None else csr.data
    return sp.csr_array((data, csr.indices, csr.indptr), shape=csr.shape)


def _training_step(task: Task, network: sn.Network) -> Callable[[], object]:
    feeds, wanted, examples = bind(network, *_matrices(*task.examples()), task.batch)
    network.prepare(_optimizer(task))
    made = 0

    def step() -> None:
        nonlocal made
        first = made * task.batch % examples
        network.train_batch(feeds, wanted, np.arange(first, first + task.batch))
        made += 1

    return step


def _pieces_of_an_epoch(task: Task) -> Steps:
    """Each step fits the next piece of a whole epoch, from its beginning."""
    x, t = _matrices(*read(task.epoch))
    network, optimizer = _network(task), _optimizer(task)
    sn.fit(_network(task), x[:task.batch], t[:task.batch], optimizer=optimizer, epochs=1, progress=False)  # compiles
    batches = max(1, x.shape[0] // task.batch // task.pieces)
    piece, made = batches * task.batch, 0

    def step() -> None:
        nonlocal made
        first = made * piece % (x.shape[0] - piece + 1)
        part = x[first:first + piece]
        sn.fit(network, part, part if t is x else t[first:first + piece], optimizer=optimizer, epochs=1,
               batch=task.batch, progress=False)
        made += 1

    return Steps(step, batches, warm=0)


def _input(task: Task) -> Callable[[], object]:
    """The batch turned by feature, gradient and update of the first weights, with the steps that its rows missed."""
    x = Input(task.features, sparse=True)
    network = sn.Network(x, Dense(task.hidden[0])(x), "squared_error", seed=1, device="cpu")
    optimizer, device = _optimizer(task), network.device
    network.prepare(optimizer)
    weight: Any = next(iter(network.parameters.values()))
    matrix, every = _matrix(task.examples()[0]), optimizer.visits_every_row
    batches: list[Any] = []
    for first in range(0, matrix.shape[0], task.batch):
        part = matrix[first:first + task.batch]
        feeds, _, _ = bind(network, part, np.zeros((task.batch, task.hidden[0]), np.float32), task.batch)
        batches += [feed.load(np.arange(task.batch)) for feed in feeds.values()]
        batches[-1].by_feature(every=every)  # so that `update` finds it, and each step turns it once
    delta = device.put(np.random.default_rng(1).normal(0, 1e-3, (task.batch, task.hidden[0])).astype(np.float32))
    made = 0

    def step() -> None:
        nonlocal made
        batch = batches[made % len(batches)]
        made += 1
        numbers = optimizer.scalars(made)
        scalars = device.put(np.resize(np.array(numbers, np.float32), ROOM.shape))
        weight.begin_step(numbers, np.uint64(0))
        batch.turn(every=every)
        weight.named_by(batch)  # catches up rows that the batches before did not name
        weight.source = batch, delta
        weight.update(optimizer, scalars)

    return step


def _best(task: Task) -> Callable[[], object]:
    network = _network(task)
    matrix = _matrix(task.examples()[0])
    users = [matrix[first:first + task.batch] for first in range(0, matrix.shape[0], task.batch)]
    scoring = {} if task.precision == "float32" else {"scoring": task.precision}
    made = 0

    def step() -> object:
        nonlocal made
        made += 1
        return sn.recommend(network, users[made % len(users)], k=task.best, batch=task.batch, progress=False, **scoring)

    return step
