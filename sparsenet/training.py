"""Training: epochs over a data set, validation, checkpoints, resuming."""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from tqdm import tqdm

from sparsenet.data.arrays import read_arrays
from sparsenet.history import History
from sparsenet.kernels.random import uniform
from sparsenet.layers.feed import Feed
from sparsenet.metrics import parse
from sparsenet.network import Matrices, Network
from sparsenet.optimizers import Optimizer
from sparsenet.recommendation import evaluate
from sparsenet.seeds import stream_key

Callback = Callable[[Network, History], bool | None]


def fit(network: Network, inputs: Matrices, targets: Matrices, *, optimizer: Optimizer, epochs: int, batch: int = 256,
        validation: tuple[Any, Any] | None = None, metrics: Sequence[str] = ("ndcg@100",), patience: int | None = None,
        shuffle: bool = True, callbacks: Sequence[Callback] = (), checkpoint: str | PathLike[str] | None = None,
        checkpoint_every: int = 1, resume: str | PathLike[str] | None = None,
        progress: bool | None = None) -> History:
    """Train a network on examples and their targets; returns its history.

    inputs, targets   matrices with one example a row: scipy sparse (kept sparse), dense, or data.Dataset; lists or
                      dicts for networks with several inputs or outputs
    optimizer         as optimizers.adam(1e-3). A network that was trained with the same one goes on from its state.
    epochs            passes over the examples
    batch             examples a step; the last batch of an epoch may be smaller
    validation        (fold_in, hidden): two sparse matrices of held-out users; what the network recommends from
                      fold_in is compared with hidden after each epoch
    metrics           names as in metrics.parse; the first decides what is best
    patience          stop after so many epochs without a better value; the best weights are then put back
    shuffle           a new order of examples in each epoch, drawn from the network's seed
    callbacks         functions (network, history) called after each epoch; one that returns True ends training
    checkpoint        file to write every `checkpoint_every` epochs and at the end; at any moment it is whole
    resume            checkpoint to go on from: ends with the same bits as a run that was never interrupted, given the
                      same arguments. `epochs` counts those before the interruption too.
    progress          show a progress bar; default: if standard error is a terminal

    Raises ValueError for arguments that do not fit each other or the network, FloatingPointError when the loss is no
    longer finite.
    """
    _check(network, epochs, batch, validation, metrics, patience, checkpoint_every)
    feeds, wanted = bind(network, inputs, targets, batch)
    examples = next(iter(feeds.values())).matrix.shape[0]
    batch = min(batch, examples)
    network.passes.allocate(batch, training=True)
    history, best, best_weights = History(), -math.inf, None
    first = network.epoch
    if resume is not None:
        first, history, best, best_weights = _resume(network, resume)
    network.prepare(optimizer)

    def save() -> None:
        if checkpoint is not None:
            network.save(checkpoint, training={"history": _timeless(history), "first": first, "best": _finite(best)},
                         arrays={f"best {name}": array for name, array in (best_weights or {}).items()})

    last = first + epochs
    stop = patience is not None and _stale(history, metrics, patience)
    quiet = not sys.stderr.isatty() if progress is None else not progress
    with tqdm(total=epochs * examples, initial=(network.epoch - first) * examples, unit=" examples",
              disable=quiet) as bar:
        while network.epoch < last and not stop:
            bar.set_description(f"epoch {network.epoch + 1 - first}/{epochs}", refresh=False)
            started = time.perf_counter()
            loss = _epoch(network, feeds, wanted, examples, batch, shuffle, bar)
            network.epoch += 1
            seconds = time.perf_counter() - started
            measured = {} if validation is None else evaluate(network, *validation, metrics=metrics, batch=batch)
            history.append(epoch=network.epoch - first, loss=loss, seconds=seconds, **measured)
            bar.set_postfix({"loss": f"{loss:.4g}", **{name: f"{value:.3f}" for name, value in measured.items()}})
            if measured and measured[metrics[0]] > best:
                best = measured[metrics[0]]
                best_weights = network.weights if patience is not None else None
            stop = patience is not None and _stale(history, metrics, patience)
            for callback in callbacks:
                stop = bool(callback(network, history)) or stop
            if (network.epoch - first) % checkpoint_every == 0 and network.epoch < last and not stop:
                save()
    if best_weights is not None:
        network.set_weights(best_weights)
    save()
    return history


def _check(network: Network, epochs: int, batch: int, validation: Any, metrics: Sequence[str], patience: int | None,
           checkpoint_every: int) -> None:
    if not network.losses:
        raise ValueError("network: was made without a loss; Network(inputs, outputs, loss, …) can be trained")
    for name, value in (("epochs", epochs), ("batch", batch), ("checkpoint_every", checkpoint_every),
                        ("patience", 1 if patience is None else patience)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name}: expected a positive integer, got {value!r}")
    if patience is not None and validation is None:
        raise ValueError("patience: needs validation=(fold_in, hidden)")
    if validation is not None and (not isinstance(validation, tuple | list) or len(validation) != 2):
        raise ValueError(f"validation: expected a pair (fold_in, hidden), got {type(validation).__name__}")
    if validation is not None and not metrics:
        raise ValueError("metrics: needs at least one name with validation")
    for name in metrics:
        parse(name)


def bind(network: Network, inputs: Matrices, targets: Matrices,
          batch: int) -> tuple[dict[str, Feed], dict[str, Feed]]:
    """Feeds for both ends. A matrix that is input and target is loaded once."""
    feeds = network.feeds(inputs, network.inputs, "inputs", batch)
    wanted = network.feeds(targets, network.outputs, "targets", batch)
    counts = {feed.matrix.shape[0] for feed in (*feeds.values(), *wanted.values())}
    if len(counts) > 1:
        raise ValueError(f"targets: {max(counts)} and {min(counts)} examples in inputs and targets")
    for name, feed in wanted.items():
        wanted[name] = next((other for other in feeds.values() if other.same_as(feed)), feed)
    return feeds, wanted


def _epoch(network: Network, feeds: Mapping[str, Feed], wanted: Mapping[str, Feed], examples: int, batch: int,
           shuffle: bool, bar: tqdm) -> float:
    """One pass over the examples; returns their mean loss."""
    order = _order(network, examples) if shuffle else np.arange(examples)
    total = 0.0
    for start in range(0, examples, batch):
        rows = order[start:start + batch]
        loss = network.train_batch(feeds, wanted, rows)
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


def _stale(history: History, metrics: Sequence[str], patience: int) -> bool:
    values = history.get(metrics[0], [])
    return bool(values) and len(values) - 1 - int(np.argmax(values)) >= patience


def _timeless(history: History) -> dict[str, list[float]]:
    """The history without what differs from run to run: same seed, same file."""
    return {name: values for name, values in history.to_dict().items() if name != "seconds"}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _resume(network: Network, path: str | PathLike[str]) -> tuple[int, History, float, dict[str, np.ndarray] | None]:
    """Put a checkpoint's state into the network. Raises ValueError where it is another network's."""
    description, arrays = read_arrays(path)
    try:
        if description["seed"] != network.seed:
            raise ValueError(f"its seed is {description['seed']}, the network's is {network.seed}")
        training = description["training"]
        network.restore(description, arrays)
        best = {title[len("best "):]: array for title, array in arrays.items() if title.startswith("best ")}
        columns = training["history"]
        history = History({**columns, "seconds": [math.nan] * len(columns["epoch"])} if columns else {})
        return (training["first"], history, -math.inf if training["best"] is None else training["best"], best or None)
    except (KeyError, ValueError) as error:
        raise ValueError(f"resume: {path} does not fit this network: {error}") from error
