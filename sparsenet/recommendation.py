"""Recommending: the best outputs for each user, and how good they are."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, overload

import numpy as np
import scipy.sparse as sp

from sparsenet.activations import Activation
from sparsenet.data.dataset import canonical
from sparsenet.data.recommendations import write_recommendations
from sparsenet.device import Array
from sparsenet.feeding import Door
from sparsenet.kernels.head import head_room, head_sums, head_top_k, top_k_room
from sparsenet.kernels.rows import softmax
from sparsenet.kernels.tiles import SCRATCH
from sparsenet.kernels.topk import exclude, score_items, top_k
from sparsenet.layers.dense import Dense
from sparsenet.layers.feed import Feed
from sparsenet.metrics import evaluate_lists, parse
from sparsenet.network import Matrices, Network
from sparsenet.progress import progress_bar
from sparsenet.streaming import why_not
from sparsenet.threads import exclusive

SCORINGS = "float32", "bfloat16"
"""What `recommend` can be told to score in"""
_CANDIDATES = 2  # times k, to be scored again
# But for rounding, which makes of softsign, near 1, more than that.
_NEVER_FALL = frozenset({"linear", "sigmoid", "tanh", "relu", "leaky_relu", "elu", "selu", "softplus", "softmax"})


@overload
def recommend(network: Network, inputs: Matrices, k: int = ..., *, exclude_seen: bool = ..., exclude_items: Any = ...,
              output: str | None = ..., batch: int = ..., progress: bool | None = ..., file: None = ...,
              scoring: str | None = ...) -> tuple[np.ndarray, np.ndarray]:
    """Returned."""


@overload
def recommend(network: Network, inputs: Matrices, k: int = ..., *, exclude_seen: bool = ..., exclude_items: Any = ...,
              output: str | None = ..., batch: int = ..., progress: bool | None = ..., file: str | PathLike[str],
              scoring: str | None = ...) -> None:
    """Written to a file."""


def recommend(network: Network, inputs: Matrices, k: int = 10, *, exclude_seen: bool = True, exclude_items: Any = None,
              output: str | None = None, batch: int = 256, progress: bool | None = None,
              file: str | PathLike[str] | None = None,
              scoring: str | None = None) -> tuple[np.ndarray, np.ndarray] | None:
    """(items, scores): for each example the k outputs with the largest activations, best first.

    inputs         as for Network.predict: for a recommender, what each user has chosen so far
    k              how many; more than there are outputs is allowed
    exclude_seen   leave out the items that the user's input names; for networks with one sparse input as wide as the
                   output
    exclude_items  (examples, outputs) scipy sparse: more items to leave out, user by user
    output         name of the output, where there are several
    batch          users at a time
    progress       show a progress bar; default: for many batches, in a terminal or a notebook
    file           write the result to this netCDF file, batch by batch, instead of returning it; it appears whole or
                   not at all. data.read_recommendations reads it
    scoring        default: in the network's precision. "float32": in that. "bfloat16": the best 2 k by scores in
                   bfloat16 are scored again, and ordered, in float32. Scores are float32's then; an item is missed
                   where its score in bfloat16 is not among the 2 k best

    items   (examples, k) int64; -1 where nothing is left to recommend
    scores  (examples, k) float32; -inf there

    Equal scores come in the order of item numbers; those of a softmax are equal where the logits are. An output that is
    a Dense layer with one dense input, and that no layer reads, is computed part by part, and no array is as wide as
    it. For others, and with Network(streaming=False), the scores of one batch are held.

    Raises ValueError for arguments that do not fit the network, OSError where the file cannot be written.
    """
    _check_k(k)
    name = _output(network, output)
    units = network.outputs[name].units
    door = Door(network.device, network.dtype, batch)
    feeds = door.inputs(inputs, network.inputs)
    examples = int(door.examples or 0)
    batch = min(batch, examples)
    unwanted = _unwanted(door, feeds, exclude_seen, exclude_items, (examples, units))
    best_of = _chosen_way(network, name, scoring, batch, k)
    few = examples <= 20 * batch
    with (_collector(file, examples, k) as (collect, result),
          progress_bar(examples, False if few and progress is None else progress, description="recommend") as bar):
        for start in range(0, examples, batch):
            rows = np.arange(start, min(start + batch, examples))
            with exclusive:
                loaded = {feed: feed.load(rows) for feed in {*feeds.values(), unwanted} if feed is not None}
                items, scores = best_of({key: loaded[feed] for key, feed in feeds.items()}, len(rows),
                                        None if unwanted is None else loaded[unwanted])
            collect(start, items, scores)
            bar.update(len(rows))
    return result


@contextmanager
def _collector(file: str | PathLike[str] | None, examples: int, k: int) -> Iterator[tuple[Callable, Any]]:
    """(collect, result): collect(first, items, scores) writes to a file, or fills the arrays of the result."""
    if file is not None:
        with write_recommendations(file, examples, k) as collect:
            yield collect, None
        return
    result = np.empty((examples, k), np.int64), np.empty((examples, k), np.float32)

    def fill(first: int, items: np.ndarray, scores: np.ndarray) -> None:
        result[0][first:first + len(items)], result[1][first:first + len(items)] = items, scores
    yield fill, result


# ---- the best of a batch


def _chosen_way(network: Network, name: str, scoring: str | None, batch: int, k: int) -> "_PartByPart | _AtOnce":
    """What finds the best of batches of up to so many examples."""
    if scoring not in (None, *SCORINGS):
        raise ValueError(f"scoring: expected one of {', '.join(SCORINGS)}, got {scoring!r}")
    assert network.dtype is not None
    reason = why_not(network.outputs[name], network.nodes, network.dtype, network.streaming is not False)
    if reason is None:
        return _PartByPart(network, name, scoring, batch, k)
    if scoring not in (None, network.precision):
        raise ValueError(f"scoring: output {name!r} cannot be scored in {scoring}: {reason}")
    return _AtOnce(network, name, batch, k)


def _left_out(network: Network, wanted: str | None) -> set[str]:
    """Names of outputs that a forward pass need not compute."""
    read = {source for node in network.nodes for source in node.inputs}
    return {name for name, node in network.outputs.items() if node not in read and name != wanted}


class _AtOnce:
    """Computes all scores of a batch, then takes the best."""

    def __init__(self, network: Network, name: str, batch: int, k: int) -> None:
        self._network, self._name, zeros = network, name, network.device.zeros
        self._left_out = _left_out(network, name)
        network.passes.allocate(batch, training=False, streamed=self._left_out)
        self._items, self._values = zeros((batch, k), np.int32), zeros((batch, k), network.dtype)

    def __call__(self, inputs: Mapping[str, Any], count: int, unwanted: Any) -> tuple[np.ndarray, np.ndarray]:
        """(items, scores) of a loaded batch."""
        y = self._network.passes.forward(inputs, count, without=self._left_out)[self._name]
        if unwanted is not None:
            exclude(unwanted.indptr, unwanted.indices, y)
        items, values, fetch = self._items[:count], self._values[:count], self._network.device.fetch
        top_k(y, items, values)
        return fetch(items), fetch(values)


class _PartByPart:
    """Takes the best while scores are computed; if they are scored again, more than k of them."""

    def __init__(self, network: Network, name: str, scoring: str | None, batch: int, k: int) -> None:
        node, self._device, zeros = network.outputs[name], network.device, network.device.zeros
        assert isinstance(node.layer, Dense)
        self._passes, self._name, self._layer = network.passes, name, node.layer
        self._left_out = _left_out(network, None)
        self._passes.allocate(batch, training=False, streamed=self._left_out)
        self._precision = scoring or ("float32" if network.precision == "cublas" else network.precision)
        self._final = "float32" if scoring else self._precision
        self._again, self._on_cpu = scoring == "bfloat16", self._device.name == "cpu"
        found = min(_CANDIDATES * k, max(k, node.units)) if self._again else k
        sizes = self._device, batch, node.inputs[0].units, node.units
        self._items, self._values = zeros((batch, found), np.int32), zeros((batch, found))
        self._best = [zeros((batch, k), np.int32), zeros((batch, k))] if self._again else []
        self._room = zeros(top_k_room(*sizes, found, self._precision))
        self._sums = [zeros(batch), zeros(batch)] if self._layer.activation.rowwise else []
        self._sums_room = zeros(head_room(*sizes, self._final)) if self._sums else None
        self._spare = None if self._on_cpu else zeros((batch, 2, found), np.int32)
        self._scratch = None if self._on_cpu else zeros(SCRATCH)

    def __call__(self, inputs: Mapping[str, Any], count: int, unwanted: Any) -> tuple[np.ndarray, np.ndarray]:
        """(items, scores) of a loaded batch."""
        self._passes.forward(inputs, count, without=self._left_out)
        [source] = self._passes.inputs_of(self._name, count)
        activation = self._layer.activation
        head = source.y, self._layer.weights[0].value, self._layer.bias.value.reshape(-1)
        items, values = self._items[:count], self._values[:count]
        spare = None if self._spare is None else self._spare[:count].reshape(2, *items.shape)
        indptr, indices = (None, None) if unwanted is None else (unwanted.indptr, unwanted.indices)
        head_top_k(activation.value, *head, indptr, indices, items, values, spare, self._of_batch(self._room, count),
                   self._scratch, monotonic=_never_falls(activation), precision=self._precision)
        found = self._device.fetch(items)
        if self._again:
            found, values = self._scored_again(head, found, items, values)
        if self._sums:
            largest, total = (row[:count] for row in self._sums)
            head_sums(*head, largest, total, self._of_batch(self._sums_room, count), self._scratch,
                      precision=self._final)
            softmax(largest, total, values)
        return found, np.where(found < 0, np.float32(-np.inf), self._device.fetch(values))

    def _of_batch(self, room: Array, count: int) -> Array:
        return room if self._on_cpu else room[:count]

    def _scored_again(self, head: tuple[Array, Array, Array], found: np.ndarray, items: Array,
                      values: Array) -> tuple[np.ndarray, Array]:
        """(items, scores) of the best of what was found."""
        found = np.sort(found, axis=1)  # so that of equal scores the first comes first
        self._device.write(items, found)
        score_items(self._layer.activation.value, *head, items, values)
        places, best = (room[:len(found)] for room in self._best)
        top_k(values, places, best)
        chosen = self._device.fetch(places)
        return np.where(chosen < 0, np.int32(-1), np.take_along_axis(found, np.maximum(chosen, 0), axis=1)), best


def _never_falls(activation: Activation) -> bool:
    """Whether y never falls where z rises: of your own one, nobody knows."""
    settings = activation.settings
    return settings is not None and activation.name in _NEVER_FALL and settings.get("alpha", 1.0) >= 0


def _check_k(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k: expected a positive integer, got {k!r}")


def _output(network: Network, output: str | None) -> str:
    if output is None and len(network.outputs) == 1:
        return next(iter(network.outputs))
    if output not in network.outputs:
        raise ValueError(f"output: expected one of {', '.join(network.outputs)}, got {output!r}")
    return output


def _unwanted(door: Door, feeds: dict[str, Feed], exclude_seen: bool, exclude_items: Any,
              shape: tuple[int, int]) -> Feed | None:
    """The feed of what each user must not be recommended, if there is anything."""
    examples, units = shape
    names = [name for name, feed in feeds.items() if feed.sparse and feed.matrix.shape[1] == units]
    if exclude_seen and len(names) != 1:
        raise ValueError(f"exclude_seen: needs exactly one sparse input with {units} columns, as the output has; "
                         f"there are {len(names)}. Pass exclude_seen=False, and exclude_items=…")
    seen = feeds[names[0]] if exclude_seen else None
    if exclude_items is None:
        return seen
    matrix = canonical(exclude_items, "exclude_items")
    if not sp.issparse(matrix) or matrix.shape != (examples, units):
        raise ValueError(f"exclude_items: expected a sparse matrix of shape {(examples, units)}, "
                         f"got {type(exclude_items).__name__} of shape {matrix.shape}")
    return door.feed(matrix if seen is None else canonical((matrix != 0) + (seen.matrix != 0), "exclude_items"))


def evaluate(network: Network, fold_in: Matrices, hidden: Any, *, metrics: Sequence[str] = ("ndcg@100",),
             exclude_seen: bool = True, output: str | None = None, batch: int = 256) -> dict[str, float]:
    """Metrics of what the network recommends from fold_in (never items of fold_in) against the hidden items.

    fold_in  (users, items) scipy sparse, or the network's inputs
    hidden   (users, items) scipy sparse: nonzero where an item was held out
    metrics  names as "ndcg@100", "recall@20", "coverage@10": see metrics.METRICS
    others   as for `recommend`

    Users without hidden items do not count. Raises ValueError where shapes or names do not fit.
    """
    if not metrics:
        raise ValueError("metrics: needs at least one name, such as 'ndcg@100'")
    relevant = canonical(hidden, "hidden")
    units = network.outputs[_output(network, output)].units
    if not sp.issparse(relevant) or relevant.shape[1] != units:
        raise ValueError(f"hidden: expected a sparse matrix with {units} columns, as the output has, "
                         f"got {type(hidden).__name__} of shape {relevant.shape}")
    if exclude_seen and fold_in is hidden:
        raise ValueError("hidden: is fold_in itself, whose items are never recommended; hold some out, as "
                         "data.strong_generalization does")
    k = min(units, max(parse(name)[1] for name in metrics))
    items, _ = recommend(network, fold_in, k, exclude_seen=exclude_seen, output=output, batch=batch)
    if relevant.shape[0] != len(items):
        raise ValueError(f"hidden: has {relevant.shape[0]} users, but fold_in has {len(items)}")
    longest = max(parse(name)[1] for name in metrics)
    if longest > k:  # there are no more outputs
        items = np.pad(items, ((0, 0), (0, longest - k)), constant_values=-1)
    return evaluate_lists(items, relevant, metrics)


def popularity(interactions: Any, fold_in: Any, k: int = 100) -> np.ndarray:
    """The baseline: for each user the k items that most users chose, items of fold_in left out; ties by item number.

    interactions  (users, items) scipy sparse: what is counted
    fold_in       (users, items) scipy sparse
    returns       (users, k) int64; -1 where nothing is left

    Raises ValueError where k is no positive integer, fold_in is dense or the widths differ.
    """
    _check_k(k)
    counted = canonical(interactions, "interactions")
    counts = np.count_nonzero(counted, axis=0) if isinstance(counted, np.ndarray) else np.bincount(
        counted.indices, minlength=counted.shape[1])
    order = np.argsort(-counts, kind="stable")
    seen = canonical(fold_in, "fold_in")
    if not sp.issparse(seen) or seen.shape[1] != len(counts):
        raise ValueError(f"fold_in: expected a sparse matrix with {len(counts)} columns, as interactions has, "
                         f"got {type(fold_in).__name__} of shape {seen.shape}")
    items = np.full((seen.shape[0], k), -1, np.int64)
    for user in range(seen.shape[0]):
        chosen = seen.indices[seen.indptr[user]:seen.indptr[user + 1]]
        head = order[:k + len(chosen)]
        left = head[~np.isin(head, chosen)][:k]
        items[user, :len(left)] = left
    return items
