"""Recommending: the best outputs for each user, and how good they are."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from sparsenet.data.dataset import canonical
from sparsenet.feeding import Door
from sparsenet.kernels.topk import exclude, top_k
from sparsenet.layers.feed import Feed
from sparsenet.metrics import evaluate_lists, parse
from sparsenet.network import Matrices, Network
from sparsenet.progress import progress_bar
from sparsenet.threads import exclusive


def recommend(network: Network, inputs: Matrices, k: int = 10, *, exclude_seen: bool = True, exclude_items: Any = None,
              output: str | None = None, batch: int = 256,
              progress: bool | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(items, scores): for each example the k outputs with the largest activations, best first.

    inputs         as for Network.predict: for a recommender, what each user has chosen so far
    k              how many; more than there are outputs is allowed
    exclude_seen   leave out the items that the user's input names; for networks with one sparse input as wide as the
                   output
    exclude_items  (examples, outputs) scipy sparse: more items to leave out, user by user
    output         name of the output, where there are several
    batch          users at a time; scores of one batch, never of all users, are held
    progress       show a progress bar; default: for many batches, in a terminal or a notebook

    items   (examples, k) int64; -1 where nothing is left to recommend
    scores  (examples, k) float32; -inf there

    Raises ValueError for arguments that do not fit the network.
    """
    _check_k(k)
    name = _output(network, output)
    units = network.outputs[name].units
    door = Door(network.device, network.dtype, batch)
    feeds = door.inputs(inputs, network.inputs)
    examples = int(door.examples or 0)
    batch = min(batch, examples)
    hidden = _excluded(door, feeds, exclude_seen, exclude_items, (examples, units))
    device = network.device
    network.passes.allocate(batch, training=False)
    items, scores = np.empty((examples, k), np.int64), np.empty((examples, k), np.float32)
    rooms = [device.zeros((batch, k), dtype) for dtype in (np.int32, network.dtype)]
    few = examples <= 20 * batch
    with progress_bar(examples, False if few and progress is None else progress, description="recommend") as bar:
        for start in range(0, examples, batch):
            rows = np.arange(start, min(start + batch, examples))
            with exclusive:
                loaded = {feed: feed.load(rows) for feed in {*feeds.values(), *hidden}}
                y = network.passes.forward({key: loaded[feed] for key, feed in feeds.items()}, len(rows))[name]
                for feed in hidden:
                    exclude(loaded[feed].indptr, loaded[feed].indices, y)
                found, values = (room[:len(rows)] for room in rooms)
                top_k(y, found, values)
                items[rows], scores[rows] = device.fetch(found), device.fetch(values)
            bar.update(len(rows))
    return items, scores


def _check_k(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise ValueError(f"k: expected a positive integer, got {k!r}")


def _output(network: Network, output: str | None) -> str:
    if output is None and len(network.outputs) == 1:
        return next(iter(network.outputs))
    if output not in network.outputs:
        raise ValueError(f"output: expected one of {', '.join(network.outputs)}, got {output!r}")
    return output


def _excluded(door: Door, feeds: dict[str, Feed], exclude_seen: bool, exclude_items: Any,
              shape: tuple[int, int]) -> list[Feed]:
    """Feeds of what each user must not be recommended."""
    examples, units = shape
    found = []
    if exclude_seen:
        names = [name for name, feed in feeds.items() if feed.sparse and feed.matrix.shape[1] == units]
        if len(names) != 1:
            raise ValueError(f"exclude_seen: needs exactly one sparse input with {units} columns, as the output has; "
                             f"there are {len(names)}. Pass exclude_seen=False, and exclude_items=…")
        found.append(feeds[names[0]])
    if exclude_items is not None:
        matrix = canonical(exclude_items, "exclude_items")
        if not sp.issparse(matrix) or matrix.shape != (examples, units):
            raise ValueError(f"exclude_items: expected a sparse matrix of shape {(examples, units)}, "
                             f"got {type(exclude_items).__name__} of shape {matrix.shape}")
        found.append(door.feed(matrix))
    return found


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
