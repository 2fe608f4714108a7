"""Ranking metrics of top-k recommendation lists: how well they hit, and how varied they are.

Accuracy metrics take `items`, the lists, and `relevant`, what should have been found:

    items     (users, length)  integer           item numbers, best first; -1 = no recommendation
    relevant  (users, items)   SciPy CSR, any dtype   a nonzero = this item is relevant for this user

and return the mean over the users that have at least one relevant item. Notation below, per user:

    hit(r) = 1 if the item at place r (1 = best) is relevant, else 0;  n = number of relevant items

An item listed twice counts once, at its first place; a -1 is a miss wherever it stands. Nothing of
size users x items is ever made: the lists are sorted and the nonzeros of `relevant` looked up in them.

Every accuracy metric raises TypeError if `relevant` is not CSR or `items` does not hold integers, and
ValueError if `items` is not 2-D, if the two disagree in the number of users, if an item number lies outside
the catalogue, if k is below 1 or above the length of the lists, or if no user has a relevant item.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Lists = NDArray[np.integer[Any]]
Relevant = sp.csr_array | sp.csr_matrix


def ndcg(items: Lists, relevant: Relevant, k: int = 100) -> float:
    """Normalised discounted cumulative gain, DCG@k / ideal DCG@k, with binary gain.

    DCG@k = sum over r <= k of hit(r) / log2(r + 1);  ideal DCG@k = sum over r <= min(k, n) of 1 / log2(r + 1)

    Source: Järvelin and Kekäläinen 2002; truncated and averaged as in Liang et al. 2018, "Variational
    autoencoders for collaborative filtering".
    """
    hits = _find_hits(items, relevant, k)
    discount = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discount)[np.minimum(hits.n_relevant, k) - 1]
    return _mean(hits.sum_per_user(discount[hits.place]) / ideal)


def recall(items: Lists, relevant: Relevant, k: int = 20) -> float:
    """Share of what could be found in k places: sum over r <= k of hit(r) / min(k, n).

    Source: Liang et al. 2018. (Classic recall divides by n, so that no list of k < n items reaches 1.)
    """
    hits = _find_hits(items, relevant, k)
    return _mean(hits.sum_per_user() / np.minimum(hits.n_relevant, k))


def precision(items: Lists, relevant: Relevant, k: int = 10) -> float:
    """Share of the k places that hit: sum over r <= k of hit(r) / k, also for lists with fewer items than k.

    Source: Herlocker et al. 2004, "Evaluating collaborative filtering recommender systems".
    """
    hits = _find_hits(items, relevant, k)
    return _mean(hits.sum_per_user() / k)


def average_precision(items: Lists, relevant: Relevant, k: int = 10) -> float:
    """Mean average precision, MAP@k: sum over r <= k of hit(r) * precision@r / min(k, n).

    Source: McFee et al. 2012, "The Million Song Dataset Challenge" (there k = 500).
    """
    hits = _find_hits(items, relevant, k)
    # Ordered by user and place: how many hits a user has so far = index - index of the user's first hit + 1.
    found = np.arange(len(hits.user)) - np.searchsorted(hits.user, hits.user) + 1
    return _mean(hits.sum_per_user(found / (hits.place + 1)) / np.minimum(hits.n_relevant, k))


def reciprocal_rank(items: Lists, relevant: Relevant, k: int = 10) -> float:
    """Mean reciprocal rank, MRR@k: 1 / (place of the first hit), 0 if none of the first k places hits.

    Source: Voorhees 1999, "The TREC-8 question answering track report".
    """
    hits = _find_hits(items, relevant, k)
    _, first = np.unique(hits.user, return_index=True)
    return float(np.sum(1 / (hits.place[first] + 1)) / len(hits.n_relevant))


def hit_rate(items: Lists, relevant: Relevant, k: int = 10) -> float:
    """Share of users with a hit: 1 if any of the first k places hits, else 0.

    Source: Deshpande and Karypis 2004, "Item-based top-N recommendation algorithms".
    """
    hits = _find_hits(items, relevant, k)
    return len(np.unique(hits.user)) / len(hits.n_relevant)


def coverage(items: Lists, n_items: int, k: int = 10) -> float:
    """Share of the catalogue that is shown: (number of items among anybody's first k places) / n_items.

    items (users, length) integer as above; n_items: size of the catalogue. Raises as above for items and k,
    and ValueError if n_items is below 1.
    Source: Ge, Delgado-Battenfeld and Jannach 2010, "Beyond accuracy" (catalogue coverage).
    """
    return int(np.count_nonzero(_counts(items, n_items, k))) / n_items


def gini(items: Lists, n_items: int, k: int = 10) -> float:
    """Concentration of the first k places on few items: 0 = all equally often, 1 = always the same one.

    G = sum over j = 1 … n_items of (2j - n_items - 1) p(j) / (n_items - 1),
    p(1) <= p(2) <= … = each item's share of all recommendations; 0 for a catalogue of one item.

    items (users, length) integer as above; n_items: size of the catalogue. Raises as above for items and k,
    and ValueError if n_items is below 1 or nothing is recommended.
    Source: Shani and Gunawardana 2011, "Evaluating recommendation systems".
    """
    counts = np.sort(_counts(items, n_items, k))
    total = counts.sum()
    if total == 0:
        raise ValueError(f"items: no recommendation in the first {k} places, but gini needs at least one")
    weights = 2 * np.arange(1, n_items + 1) - n_items - 1
    return float(weights @ counts / (total * max(n_items - 1, 1)))


def _coverage_of_columns(items: Lists, relevant: Relevant, k: int) -> float:
    return coverage(items, relevant.shape[1], k)


def _gini_of_columns(items: Lists, relevant: Relevant, k: int) -> float:
    return gini(items, relevant.shape[1], k)


# What can be asked for by name. Every function is called (items, relevant, k); those on lists alone take the
# size of the catalogue from relevant.
METRICS: dict[str, Callable[[Lists, Relevant, int], float]] = {
    "ndcg": ndcg,
    "recall": recall,
    "precision": precision,
    "map": average_precision,
    "mrr": reciprocal_rank,
    "hit_rate": hit_rate,
    "coverage": _coverage_of_columns,
    "gini": _gini_of_columns,
}


def parse(name: str) -> tuple[Callable[[Lists, Relevant, int], float], int]:
    """The function, to be called (items, relevant, k), and k of a name such as "ndcg@100".

    Raises ValueError, naming the known metrics, if the part before the @ is none of them or k is not a
    whole number of at least 1.
    """
    metric, _, k = name.partition("@")
    if metric not in METRICS or not (k.isascii() and k.isdigit()) or int(k) < 1:
        known = ", ".join(METRICS)
        raise ValueError(f"metric: got {name!r}, expected name@k such as 'ndcg@100'; the names are {known}")
    return METRICS[metric], int(k)


def evaluate_lists(items: Lists, relevant: Relevant, names: Iterable[str]) -> dict[str, float]:
    """Several metrics of the same lists: {"ndcg@100": …, "coverage@10": …} in the order of `names`.

    The catalogue of "coverage" and "gini" is the columns of `relevant`, and they count every user's list.
    Raises what `parse` and the metrics raise; all names are read before the first metric is computed.
    """
    asked = {name: parse(name) for name in names}
    return {name: metric(items, relevant, k) for name, (metric, k) in asked.items()}


class _Hits(NamedTuple):
    """Relevant items found in the lists, ordered by user and place; users without relevant items left out."""

    user: NDArray[np.int64]  # (hits,) whose, in 0 … number of users with a relevant item - 1
    place: NDArray[np.int64]  # (hits,) where in the list, 0 = best
    n_relevant: NDArray[np.int64]  # (users with a relevant item,) how many, found or not

    def sum_per_user(self, gain: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Sum of the hits' gains (None: of ones) for each user that has a relevant item."""
        return np.bincount(self.user, gain, minlength=len(self.n_relevant)).astype(np.float64)


def _find_hits(items: Lists, relevant: Relevant, k: int) -> _Hits:
    if not (sp.issparse(relevant) and relevant.format == "csr"):
        raise TypeError(f"relevant: got {type(relevant).__name__}, expected a SciPy CSR array")
    n_users, n_items = relevant.shape
    top = _top(items, n_items, k)
    if len(top) != n_users:
        raise ValueError(f"items: axis 'users' is {len(top)}, but relevant says {n_users}")
    if not relevant.has_canonical_format:  # repeated entries would count twice in n_relevant
        relevant = relevant.copy()
        relevant.sum_duplicates()
    user = np.repeat(np.arange(n_users), np.diff(relevant.indptr))
    nonzero = relevant.data != 0
    user, item = user[nonzero], relevant.indices[nonzero].astype(np.int64)
    n_relevant = np.bincount(user, minlength=n_users)
    scored = n_relevant > 0
    if not scored.any():
        raise ValueError("relevant: no user has a relevant item, but the mean needs at least one")

    # One int64 per place with the digits (user, item + 1, place): sorting each row sorts the whole. The + 1
    # keeps a -1 apart from the last item of the user before.
    row = (n_items + 1) * k
    user = (np.cumsum(scored) - 1)[user]
    keys = np.arange(np.count_nonzero(scored))[:, None] * row + (top[scored] + 1) * k + np.arange(k)
    keys = np.sort(keys, axis=1).ravel()
    wanted = user * row + (item + 1) * k
    found = keys[np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)]
    hit = (found >= wanted) & (found < wanted + k)
    where = np.sort(user[hit] * k + found[hit] % k)
    return _Hits(where // k, where % k, n_relevant[scored])


def _top(items: Lists, n_items: int, k: int) -> NDArray[np.int64]:
    """The first k places as (users, k) int64, checked."""
    items = np.asarray(items)
    if not np.issubdtype(items.dtype, np.integer):
        raise TypeError(f"items: got dtype {items.dtype}, expected integers")
    if items.ndim != 2:
        raise ValueError(f"items: got {items.ndim} axes, expected 2 (users, length)")
    if not 1 <= k <= items.shape[1]:
        raise ValueError(f"k: got {k}, expected 1 to {items.shape[1]}, the length of the lists in items")
    top = items[:, :k].astype(np.int64)
    if top.size and not -1 <= top.min() <= top.max() < n_items:
        raise ValueError(f"items: got {top.min()} to {top.max()}, expected -1 (none) to {n_items - 1}")
    return top


def _counts(items: Lists, n_items: int, k: int) -> NDArray[np.int64]:
    """(items,) how often each item stands in anybody's first k places."""
    if n_items < 1:
        raise ValueError(f"n_items: got {n_items}, expected at least 1")
    top = _top(items, n_items, k)
    return np.bincount(top[top >= 0], minlength=n_items)


def _mean(per_user: NDArray[np.float64]) -> float:
    return float(np.mean(per_user))
