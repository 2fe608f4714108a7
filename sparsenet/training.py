"""Training: epochs over a data set, validation, checkpoints, resuming."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np

from sparsenet.data.arrays import read_arrays
from sparsenet.data.files import check_target
from sparsenet.feeding import Door
from sparsenet.history import History
from sparsenet.kernels.random import uniform
from sparsenet.layers.feed import Feed
from sparsenet.network import Matrices, Network
from sparsenet.optimizers import Optimizer
from sparsenet.progress import Bar, progress_bar
from sparsenet.recommendation import evaluate
from sparsenet.seeds import stream_key

Callback = Callable[[Network, History], bool | None]
Validation = Callable[[Network], dict[str, float]]


def fit(network: Network, inputs: Matrices, targets: Matrices, *, optimizer: Optimizer, epochs: int, batch: int = 256,
        validation: tuple[Any, Any] | Validation | None = None, metrics: Sequence[str] = ("ndcg@100",),
        patience: int | None = None, shuffle: bool = True, callbacks: Sequence[Callback] = (),
        checkpoint: str | PathLike[str] | None = None, checkpoint_every: int = 1,
        resume: str | PathLike[str] | None = None, progress: bool | None = None) -> History:
    """Train a network on examples and their targets; returns its history.

    inputs, targets   matrices with one example a row: scipy sparse (kept sparse), dense, or data.Dataset; lists or
                      dicts for networks with several inputs or outputs
    optimizer         as optimizers.adam(1e-3). A network that was trained with the same one goes on from its state.
    epochs            passes over the examples
    batch             examples a step; the last batch of an epoch may be smaller
    validation        (fold_in, hidden): two sparse matrices of held-out users; after each epoch what the network
                      recommends from fold_in is compared with hidden. Or a function of the network that returns
                      numbers by name, of which the first decides what is best, the larger the better
    metrics           names as in metrics.parse, for a pair; the first decides what is best
    patience          stop after so many epochs without a better value; the best weights are then put back
    shuffle           a new order of examples in each epoch, drawn from the network's seed
    callbacks         functions (network, history) called after each epoch; one that returns True ends training
    checkpoint        file to write every `checkpoint_every` epochs and at the end; at any moment it is whole
    resume            checkpoint to go on from: ends with the same bits as a run that was never interrupted, given the
                      same arguments. `epochs` counts those before the interruption too. Another rate, decay or l2 is
                      taken from there on. There must be such a file: `resume=path if path.exists() else None`
    progress          show a progress bar; default: in a terminal or a notebook

    Raises ValueError for arguments that do not fit each other or the network; FloatingPointError when the loss is no
    longer finite: the network's weights are spoilt then, the last checkpoint is not.
    """
    _check(network, epochs, batch, patience, validation, checkpoint_every)
    if checkpoint is not None:
        check_target(checkpoint)
    validate = _validator(validation, metrics, batch)
    feeds, wanted, examples = bind(network, inputs, targets, batch)
    batch = min(batch, examples)
    run = _Run(first=network.epoch) if resume is None else _resume(network, optimizer, resume)
    network.prepare(optimizer, dense_targets=[name for name, feed in wanted.items() if not feed.sparse])
    network.passes.allocate(batch, True, network.streamed)
    if validate is not None:
        validate(network)  # says at once what is wrong with it

    def save(last: Mapping[str, np.ndarray] | None = None) -> None:
        if checkpoint is not None:
            network.save(checkpoint, training=run.description(), arrays={
                **{f"best {name}": array for name, array in (run.best_weights or {}).items()},
                **{f"last {name}": array for name, array in (last or {}).items()}})

    end = run.first + epochs
    stop = patience is not None and run.stale(patience)
    with progress_bar(epochs * examples, progress, initial=(network.epoch - run.first) * examples) as bar:
        while network.epoch < end and not stop:
            bar.set_description(f"epoch {network.epoch + 1 - run.first}/{epochs}", refresh=False)
            started = time.perf_counter()
            loss = _epoch(network, feeds, wanted, examples, batch, shuffle, bar)
            network.settle()
            network.epoch += 1
            seconds = time.perf_counter() - started
            measured = {} if validate is None else validate(network)
            run.record(network, loss, seconds, measured, keep_best=patience is not None)
            bar.set_postfix({"loss": f"{loss:.4g}", **{name: f"{value:.3f}" for name, value in measured.items()}})
            stop = patience is not None and run.stale(patience)
            for callback in callbacks:
                stop = bool(callback(network, run.history)) or stop
            if (network.epoch - run.first) % checkpoint_every == 0 and network.epoch < end and not stop:
                save()
    last = None
    if run.best_weights is not None:
        last = network.weights  # what a later resume goes on from
        network.set_weights(run.best_weights)
    save(last)
    return run.history


@dataclass
class _Run:
    """What a run knows besides the network's own state."""

    first: int
    """The network's epoch when it began"""
    history: History = field(default_factory=History)
    best: float = -math.inf
    best_weights: dict[str, np.ndarray] | None = None

    def record(self, network: Network, loss: float, seconds: float, measured: Mapping[str, float],
               keep_best: bool) -> None:
        """Note an epoch; the first metric decides what is best."""
        self.history.append(epoch=network.epoch - self.first, loss=loss, seconds=seconds, **measured)
        value = next(iter(measured.values()), -math.inf)
        if value > self.best:
            self.best = value
            self.best_weights = network.weights if keep_best else None

    def stale(self, patience: int) -> bool:
        """Whether the best epoch is `patience` epochs ago."""
        metric = next((name for name in self.history if name not in ("epoch", "loss", "seconds")), None)
        values = [] if metric is None else self.history[metric]
        return bool(values) and len(values) - 1 - int(np.argmax(values)) >= patience

    def description(self) -> dict[str, Any]:
        """For a checkpoint: without the seconds, which differ from run to run: same seed, same file."""
        columns = {name: values for name, values in self.history.to_dict().items() if name != "seconds"}
        return {"history": columns, "first": self.first, "best": self.best if math.isfinite(self.best) else None}


def _check(network: Network, epochs: int, batch: int, patience: int | None, validation: Any,
           checkpoint_every: int) -> None:
    if not network.losses:
        raise ValueError("network: was made without a loss; Network(inputs, outputs, loss, …) can be trained")
    for name, value in (("epochs", epochs), ("batch", batch), ("checkpoint_every", checkpoint_every),
                        ("patience", 1 if patience is None else patience)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name}: expected a positive integer, got {value!r}")
    if patience is not None and validation is None:
        raise ValueError("patience: needs validation")


def _validator(validation: Any, metrics: Sequence[str], batch: int) -> Callable[[Network], dict[str, float]] | None:
    """A function of the network that measures it."""
    if validation is None or callable(validation):
        return validation
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise ValueError(f"validation: expected a pair (fold_in, hidden), or a function of the network, "
                         f"got {type(validation).__name__}")
    fold_in, hidden = validation
    return lambda network: evaluate(network, fold_in, hidden, metrics=metrics, batch=batch)


def bind(network: Network, inputs: Matrices, targets: Matrices,
         batch: int) -> tuple[dict[str, Feed], dict[str, Feed], int]:
    """(feeds of inputs, feeds of targets, number of examples). A matrix that is both is loaded once."""
    door = Door(network.device, network.dtype, batch)
    feeds = door.inputs(inputs, network.inputs)
    wanted = door.targets(targets, network.outputs, network.losses)
    return feeds, wanted, int(door.examples or 0)


def _epoch(network: Network, feeds: Mapping[str, Feed], wanted: Mapping[str, Feed], examples: int, batch: int,
           shuffle: bool, bar: Bar) -> float:
    """One pass over the examples; returns their mean loss."""
    order = _order(network, examples) if shuffle else np.arange(examples)
    total = 0.0
    coming = order[:batch]
    for start in range(0, examples, batch):
        rows, coming = coming, order[start + batch:start + 2 * batch]
        loss = network.train_batch(feeds, wanted, rows, coming if len(coming) else None)
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {network.step}: try a smaller rate")
        total += loss * len(rows)
        bar.update(len(rows))
    return total / examples


def _order(network: Network, examples: int) -> np.ndarray:
    """A permutation: examples sorted by random numbers of this epoch."""
    numbers = np.zeros((1, examples), np.float32)
    uniform(stream_key(network.seed, "order of examples", network.epoch), numbers)
    return np.argsort(numbers[0], kind="stable")


def _resume(network: Network, optimizer: Optimizer, path: str | PathLike[str]) -> _Run:
    """Put a checkpoint's state into the network. Raises ValueError where it is another network's, or another run's."""
    description, arrays = read_arrays(path)
    try:
        training = description["training"]
        if "history" not in training:
            raise ValueError("it holds a network but no training; fit(checkpoint=…) writes files that do")
        own = network.describe()
        for place, theirs, ours in _differences({key: description[key] for key in own}, own):
            raise ValueError(f"{place} is {theirs!r} in the file, but {ours!r} here")
        used = {state["trained_with"] for state in description["parameters"].values()}
        if used != {optimizer.name}:
            raise ValueError(f"it was trained with {', '.join(map(str, used))}, not with {optimizer.name}")
        columns = training["history"]
        run = _Run(training["first"], best=-math.inf if training["best"] is None else training["best"],
                   history=History({**columns, "seconds": [math.nan] * len(columns["epoch"])} if columns else {}),
                   best_weights=_titled("best ", arrays) or None)
        last = {f"weight {name}": array for name, array in _titled("last ", arrays).items()}
        network.restore(description, {**arrays, **last})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"resume: {path} does not fit: {error}") from error
    return run


def _differences(file: Any, network: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(where, the file's value, the network's) of what differs between two descriptions."""
    if isinstance(file, dict) and isinstance(network, dict) and file.keys() == network.keys():
        for key in file:
            yield from _differences(file[key], network[key], f"{place}.{key}" if place else key)
    elif isinstance(file, list) and isinstance(network, list) and len(file) == len(network):
        for i, (theirs, ours) in enumerate(zip(file, network, strict=True)):
            name = ours.get("name", i) if isinstance(ours, dict) else i
            yield from _differences(theirs, ours, f"{place}[{name}]")
    elif file != network:
        yield place, file, network


def _titled(start: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {title[len(start):]: array for title, array in arrays.items() if title.startswith(start)}
