"""Ranking metrics against loops over their formulas, numbers known by hand, and the baselines' own code."""

import importlib.util
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenet import metrics

DATA = Path(os.environ.get("SPARSENET_DATA", Path(__file__).parents[1] / "../shared/data"))
ROUNDING = 1e-12  # the means are float64, of at most some hundred terms in 0 … 1


# ---- the formulas, for one user: listed = the first k places, relevant = a set, -1 and repeats are misses


def hits(listed, relevant):
    return [item in relevant and item not in listed[:place] for place, item in enumerate(listed)]


def ndcg(listed, relevant):
    gain = [1 / math.log2(place + 2) for place in range(len(listed))]
    found = math.fsum(g for g, hit in zip(gain, hits(listed, relevant), strict=True) if hit)
    return found / math.fsum(gain[: len(relevant)])


def recall(listed, relevant):
    return sum(hits(listed, relevant)) / min(len(listed), len(relevant))


def precision(listed, relevant):
    return sum(hits(listed, relevant)) / len(listed)


def average_precision(listed, relevant):
    hit = hits(listed, relevant)
    total = math.fsum(sum(hit[:r]) / r for r in range(1, len(listed) + 1) if hit[r - 1])
    return total / min(len(listed), len(relevant))


def reciprocal_rank(listed, relevant):
    hit = hits(listed, relevant)
    return 1 / (hit.index(True) + 1) if any(hit) else 0.0


def hit_rate(listed, relevant):
    return float(any(hits(listed, relevant)))


ACCURACY = {
    "ndcg": ndcg,
    "recall": recall,
    "precision": precision,
    "map": average_precision,
    "mrr": reciprocal_rank,
    "hit_rate": hit_rate,
}


def over_users(formula, items, relevant, k):
    """The mean over the users with a relevant item; relevant as a dense array."""
    wanted = [set(np.flatnonzero(row).tolist()) for row in relevant]
    scores = [formula(row[:k].tolist(), want) for row, want in zip(items, wanted, strict=True) if want]
    return math.fsum(scores) / len(scores)


def gini_by_pairs(counts):
    """Half the mean absolute difference over all pairs of items, over its largest value for this total."""
    n = len(counts)
    return sum(abs(int(a) - int(b)) for a in counts for b in counts) / (2 * (n - 1) * int(sum(counts)))


# ---- cases: empty rows, missing and repeated recommendations, one item, one place; CSR as it comes


@st.composite
def cases(draw):
    """(items, relevant as CSR, relevant as dense, k) with at least one user that has a relevant item."""
    users, n_items = draw(st.integers(1, 8)), draw(st.integers(1, 12))
    length = draw(st.integers(1, 10))
    k = draw(st.integers(1, length))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    dtype = draw(st.sampled_from([np.int16, np.int32, np.int64]))
    items = rng.integers(-1, n_items, (users, length), dtype)
    dense = rng.random((users, n_items)) < draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    dense[rng.integers(users), rng.integers(n_items)] = True

    user, item = np.nonzero(dense)
    again = rng.integers(len(user), size=draw(st.integers(0, 3)))  # entries given twice
    zero_user, zero_item = (axis[:3] for axis in np.nonzero(~dense))  # explicit zeros
    rows, columns = np.r_[user, user[again], zero_user], np.r_[item, item[again], zero_item]
    values = np.r_[np.ones(len(user) + len(again)), np.zeros(len(zero_user))]
    order = rng.permutation(len(rows))
    order = order[np.argsort(rows[order], kind="stable")]  # by user, items of a user in any order
    indptr = np.r_[0, np.cumsum(np.bincount(rows, minlength=users))]
    csr = sp.csr_array((values[order], columns[order], indptr), shape=dense.shape)
    return items, csr, dense, k


@pytest.mark.parametrize("name", ACCURACY)
@settings(deadline=None)
@given(case=cases())
def test_mean_of_the_formula(name, case):
    items, relevant, dense, k = case
    metric, k = metrics.parse(f"{name}@{k}")
    got = metric(items, relevant, k)
    assert isinstance(got, float)
    assert abs(got - over_users(ACCURACY[name], items, dense, k)) <= ROUNDING


@settings(deadline=None)
@given(case=cases())
def test_arguments_are_left_as_they_were(case):
    items, relevant, _, k = case
    before = items.copy(), relevant.indptr.copy(), relevant.indices.copy(), relevant.data.copy()
    metrics.ndcg(items, relevant, k)
    after = items, relevant.indptr, relevant.indices, relevant.data
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


@settings(deadline=None)
@given(case=cases())
def test_coverage(case):
    items, _, dense, k = case
    shown = {int(item) for row in items for item in row[:k]} - {-1}
    assert metrics.coverage(items, dense.shape[1], k) == len(shown) / dense.shape[1]


@settings(deadline=None)
@given(case=cases())
def test_gini(case):
    items, _, dense, k = case
    n_items = dense.shape[1]
    listed = [int(item) for row in items for item in row[:k] if item != -1]
    if not listed:
        with pytest.raises(ValueError, match="gini needs at least one"):
            metrics.gini(items, n_items, k)
    elif n_items == 1:
        assert metrics.gini(items, n_items, k) == 0
    else:
        want = gini_by_pairs([listed.count(item) for item in range(n_items)])
        assert abs(metrics.gini(items, n_items, k) - want) <= ROUNDING


# ---- numbers known without any program


def test_worked_by_hand():
    items = np.array([[4, 0, 2, 1], [3, 1, 0, 2], [1, 2, 3, -1]])
    relevant = sp.csr_array([[1, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]])
    # User 0 finds 0 and 2 of its three in places 2 and 3, user 1 does not count, user 2 finds its one first.
    log3 = math.log2(3)
    want = {
        "ndcg@4": ((1 / log3 + 1 / 2) / (1 + 1 / log3 + 1 / 2) + 1) / 2,
        "recall@2": (1 / 2 + 1) / 2,
        "precision@4": (2 / 4 + 1 / 4) / 2,
        "map@3": ((1 / 2 + 2 / 3) / 3 + 1) / 2,
        "mrr@4": (1 / 2 + 1) / 2,
        "hit_rate@1": 1 / 2,
        "coverage@2": 5 / 6,  # items 4 0, 3 1, 1 2
        "gini@1": (1 * 1 + 3 * 1 + 5 * 1) / 3 / 5,  # counts 0 0 0 1 1 1
    }
    got = metrics.evaluate_lists(items, relevant, want)
    assert list(got) == list(want)
    assert all(abs(got[name] - want[name]) <= ROUNDING for name in want), got


def test_reciprocal_rank_of_the_textbook_example():
    """The plurals of cat, torus and virus, found third, second and first: (1/3 + 1/2 + 1) / 3 = 11/18."""
    items = np.tile([0, 1, 2], (3, 1))
    assert abs(metrics.reciprocal_rank(items, sp.csr_array(np.eye(3)[::-1]), k=3) - 11 / 18) <= ROUNDING


@pytest.mark.parametrize("name", ACCURACY)
def test_best_lists_score_one(name):
    relevant = sp.csr_array([[0, 1, 1, 1], [1, 1, 1, 0]])
    items = np.array([[3, 1], [0, 2]])
    assert metrics.evaluate_lists(items, relevant, [f"{name}@2"]) == {f"{name}@2": 1.0}


def test_gini_ends():
    assert metrics.gini(np.array([[0, 1], [2, 3]]), 4, 2) == 0
    assert metrics.gini(np.array([[2], [2], [2]]), 4, 1) == 1


def test_missing_recommendation_is_not_the_last_item_of_the_user_before():
    items, relevant = np.array([[0], [-1]]), sp.csr_array([[0, 1], [0, 1]])
    assert metrics.hit_rate(items, relevant, 1) == 0


# ---- names


@pytest.mark.parametrize(
    ("name", "function", "k"),
    [
        ("ndcg@100", metrics.ndcg, 100),
        ("recall@5", metrics.recall, 5),
        ("map@7", metrics.average_precision, 7),
    ],
)
def test_parse(name, function, k):
    assert metrics.parse(name) == (function, k)


@pytest.mark.parametrize("name", ["auc@10", "ndcg", "ndcg@", "ndcg@0", "ndcg@-1", "ndcg@1.5", "@5", "ndcg@²"])
def test_parse_names_the_known_metrics(name):
    known = "ndcg, recall, precision, map, mrr, hit_rate, coverage, gini"
    with pytest.raises(ValueError, match=re.escape(f"{name!r}, expected name@k") + ".*" + known):
        metrics.parse(name)


def test_defaults_are_the_customary_k():
    rng = np.random.default_rng(0)
    items = np.argsort(rng.random((20, 150)), axis=1)[:, :120]
    relevant = sp.csr_array(rng.random((20, 150)) < 0.3)
    named = metrics.evaluate_lists(items, relevant, ["ndcg@100", "recall@20", "precision@10"])
    defaults = [metric(items, relevant) for metric in (metrics.ndcg, metrics.recall, metrics.precision)]
    assert list(named.values()) == defaults


# ---- errors

ITEMS, RELEVANT = np.array([[0, 1], [1, 2]]), sp.csr_array([[1, 0, 0], [0, 0, 1]])


@pytest.mark.parametrize("name", ACCURACY)
@pytest.mark.parametrize(
    ("items", "relevant", "k", "error", "message"),
    [
        (ITEMS, RELEVANT, 3, ValueError, "k: got 3, expected 1 to 2"),
        (ITEMS, RELEVANT, 0, ValueError, "k: got 0, expected 1 to 2"),
        (ITEMS[:1], RELEVANT, 2, ValueError, "items: axis 'users' is 1, but relevant says 2"),
        (ITEMS[0], RELEVANT, 2, ValueError, "items: got 1 axes, expected 2"),
        (ITEMS + 1, RELEVANT, 2, ValueError, r"items: got 1 to 3, expected -1 \(none\) to 2"),
        (ITEMS - 2, RELEVANT, 2, ValueError, r"items: got -2 to 0, expected -1 \(none\) to 2"),
        (ITEMS / 1, RELEVANT, 2, TypeError, "items: got dtype float64, expected integers"),
        (ITEMS, RELEVANT.toarray(), 2, TypeError, "relevant: got ndarray, expected a SciPy CSR array"),
        (ITEMS, RELEVANT.tocsc(), 2, TypeError, "relevant: got csc_array, expected a SciPy CSR array"),
        (ITEMS, RELEVANT * 0, 2, ValueError, "relevant: no user has a relevant item"),
        (ITEMS[:0], RELEVANT[:0], 2, ValueError, "relevant: no user has a relevant item"),
    ],
)
def test_accuracy_refuses(name, items, relevant, k, error, message):
    with pytest.raises(error, match=message):
        metrics.METRICS[name](items, relevant, k)


@pytest.mark.parametrize("metric", [metrics.coverage, metrics.gini])
def test_list_metrics_refuse(metric):
    with pytest.raises(ValueError, match="n_items: got 0, expected at least 1"):
        metric(ITEMS, 0, 2)
    with pytest.raises(ValueError, match="k: got 3, expected 1 to 2"):
        metric(ITEMS, 3, 3)
    with pytest.raises(ValueError, match="items: got 0 to 2, expected -1"):
        metric(ITEMS, 2, 2)


# ---- the code that made the published baselines


@pytest.fixture(scope="module")
def protocol():
    path = DATA / "baselines" / "protocol.py"
    if not path.exists():
        pytest.skip(f"the baselines' protocol is not there: {path.name} under SPARSENET_DATA/baselines")
    spec = importlib.util.spec_from_file_location("protocol", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def best_first(scores, seen, length):
    """Top lists from dense scores without the seen items, filled up with -1."""
    scores = np.where(seen.toarray() > 0, -np.inf, scores)
    order = np.argsort(-scores, axis=1)
    items = np.where(np.isinf(np.take_along_axis(scores, order, axis=1)), -1, order)
    padding = np.full((len(items), max(0, length - items.shape[1])), -1)
    return np.hstack([items, padding])[:, :length]


def assert_as_published(protocol, scores, seen, relevant):
    want = protocol.evaluate(scores, seen, relevant)
    names = ["ndcg@100", "recall@20", "recall@50", "precision@10"]
    got = metrics.evaluate_lists(best_first(scores, seen, 100), relevant, names)
    theirs = [want[name] for name in ("ndcg100", "recall20", "recall50", "prec10")]
    assert np.abs(np.subtract(list(got.values()), theirs)).max() <= ROUNDING, (got, want)


@pytest.mark.parametrize("n_items", [20, 99, 100, 101, 400])
def test_random_scores_as_in_the_baselines(protocol, n_items):
    rng = np.random.default_rng(n_items)
    draw = rng.random((60, n_items))
    draw[:, 0] = 1  # everybody has a relevant item: the baselines' code divides by their number
    seen, relevant = sp.csr_matrix(draw < 0.3), sp.csr_matrix(draw > 0.8)
    assert_as_published(protocol, rng.standard_normal(draw.shape), seen, relevant)


def test_popularity_on_movielens_as_in_the_baselines(protocol):
    path = Path(protocol.path("ml-100k", 4, 0))
    if not path.exists():
        pytest.skip(f"the split is not there: {path.name} under SPARSENET_DATA/baselines/splits")
    data = protocol.get("ml-100k", 4, 0)
    seen, relevant = data["test"]
    popularity = np.asarray(data["X"].sum(axis=0)).ravel()
    untied = popularity + np.random.default_rng(0).random(seen.shape) / 2
    assert_as_published(protocol, untied, seen, relevant)
