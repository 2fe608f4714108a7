"""Recommending against NumPy's sort, metrics of recommendations, and the popularity baseline."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsenet as sn
from sparsenet import metrics, optimizers
from sparsenet.activations import Activation
from sparsenet.data import read_recommendations
from sparsenet.layers import Dense, Input
from sparsenet.testing import assert_close
from tests.networks import ITEMS, TWO_INPUTS, USERS, T, X, small, two_ended

PROPERTY = settings(deadline=None, max_examples=100)


def copying(items=ITEMS, dtype="float32"):
    """A network whose scores are its second input: any scores can be given to it."""
    seen, scores = Input(items, sparse=True, name="seen"), Input(items, name="scores")
    network = sn.Network([seen, scores], Dense(items, name="d")(seen, scores), seed=1, device="cpu", dtype=dtype)
    network.set_weights({"d/weight0": np.zeros((items, items)), "d/weight1": np.eye(items)})
    return network


def by_sorting(scores, k, excluded):
    """(items, scores) with NumPy's stable sort: largest first, equal ones in order of their numbers."""
    scores = np.where(excluded, -np.inf, scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    best = np.take_along_axis(scores, order, axis=1)
    room = ((0, 0), (0, max(0, k - scores.shape[1])))
    return (np.pad(np.where(best > -np.inf, order, -1), room, constant_values=-1),
            np.pad(best, room, constant_values=-np.inf))


@st.composite
def cases(draw):
    users, items = draw(st.integers(1, 12)), draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = rng.normal(size=(users, items)) if draw(st.booleans()) else rng.integers(-2, 3, (users, items))
    flags = [rng.random((users, items)) < draw(st.sampled_from([0, 0.3, 1])) for _ in range(2)]
    return scores.astype(np.float32), *flags


@PROPERTY
@given(cases(), st.integers(1, 40), st.booleans(), st.booleans(), st.integers(1, 15))
def test_recommendations_are_the_best_in_order(case, k, exclude_seen, exclude_items, batch):
    """Any k, ties, users with nothing left, users who have seen nothing, any batch size."""
    scores, seen, more = case
    items, values = sn.recommend(copying(scores.shape[1]), [sp.csr_array(seen), scores], k, exclude_seen=exclude_seen,
                                 exclude_items=sp.csr_array(more) if exclude_items else None, batch=batch)
    expected_items, expected_values = by_sorting(scores, k, seen * exclude_seen | more * exclude_items)
    assert (items.dtype, values.dtype) == (np.int64, np.float32)
    np.testing.assert_array_equal(items, expected_items)
    np.testing.assert_array_equal(values, expected_values)


def test_scores_that_only_float64_tells_apart():
    scores = 1 + np.array([[0, 3, 1, 2, 5, 4]]) * 2.0**-30
    network = copying(6, "float64")
    network.set_weights({"d/weight1": np.eye(6) * 2.0**-30, "d/bias": np.ones(6)})
    items, _ = sn.recommend(network, [sp.csr_array((1, 6), dtype=bool), np.array([[0, 3, 1, 2, 5, 4]])], 6)
    np.testing.assert_array_equal(items, np.argsort(-scores, axis=1))


def test_recommendations_are_the_networks_predictions():
    network = small()
    items, values = sn.recommend(network, X, 5)
    expected_items, expected_values = by_sorting(network.predict(X), 5, X.toarray() != 0)
    np.testing.assert_array_equal(items, expected_items)
    assert_close(values, expected_values, terms=10)
    assert not (T.toarray()[np.arange(USERS)[:, None], items]).any()


def test_batches_do_not_matter():
    """One user at a time, some, or all at once; more than there are."""
    network = small()
    expected, _ = sn.recommend(network, X, 5, batch=USERS)
    for batch in (1, 7, 10**6):
        np.testing.assert_array_equal(sn.recommend(network, X, 5, batch=batch)[0], expected)


def test_users_who_chose_nothing_and_users_who_chose_all():
    chosen = np.zeros((3, ITEMS))
    chosen[1] = 1
    items, values = sn.recommend(small(), sp.csr_array(chosen), 4)
    assert (items[[0, 2]] >= 0).all()
    np.testing.assert_array_equal(items[0], items[2])
    np.testing.assert_array_equal(items[1], [-1] * 4)
    np.testing.assert_array_equal(values[1], [-np.inf] * 4)


def test_seen_and_excluded_items_are_both_left_out():
    items, _ = sn.recommend(small(), X, ITEMS, exclude_items=sp.csr_array(np.eye(USERS, ITEMS)))
    left = (X.toarray() == 0) & (np.eye(USERS, ITEMS) == 0)
    assert [set(row) - {-1} for row in items.tolist()] == [set(np.flatnonzero(row).tolist()) for row in left]


def test_explicit_zeros_are_not_seen():
    stored = sp.csr_array((np.array([0.0, 1.0]), np.array([3, 5]), np.array([0, 2])), shape=(1, ITEMS))
    items, _ = sn.recommend(small(), stored, ITEMS)
    assert 3 in items[0]
    assert 5 not in items[0]
    items, _ = sn.recommend(small(), stored, ITEMS, exclude_items=stored, exclude_seen=False)
    assert sorted(items[0]) == [-1, 0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


def test_one_of_several_outputs():
    network = two_ended()
    predicted = network.predict(TWO_INPUTS)
    for name in ("l", "r"):
        items, _ = sn.recommend(network, TWO_INPUTS, 3, output=name)
        np.testing.assert_array_equal(items, by_sorting(predicted[name], 3, X.toarray() != 0)[0])
    for wrong in (None, "left", 0):
        with pytest.raises(ValueError, match=f"output: expected one of l, r, got {wrong!r}"):
            sn.recommend(network, TWO_INPUTS, 3, output=wrong)


# ---- wide outputs: part by part


WIDE, MANY = 1500, 60
OWN = Activation("own", lambda z: z / (1 + abs(z)), lambda y: (1 - abs(y)) ** 2)


def wide(activation="sigmoid", streaming=None, loss=None, **options):
    """The same weights whatever else is said."""
    x = Input(WIDE, sparse=True)
    return sn.Network(x, Dense(WIDE, activation, name="top")(Dense(16, "tanh", name="hidden")(x)), loss, seed=4,
                      device="cpu", streaming=streaming, **options)


def chosen(users=MANY):
    return sp.random_array((users, WIDE), density=0.02, rng=5, format="csr", dtype=np.float32)


@pytest.mark.parametrize("activation", ["linear", "sigmoid", "softmax", "relu", OWN],
                         ids=lambda one: getattr(one, "name", one))
@pytest.mark.parametrize("batch", [1, 25, 1000])
def test_part_by_part_as_at_once(activation, batch):
    x = chosen()
    plain = sn.recommend(wide(activation, streaming=False), x, 20, exclude_items=sp.eye_array(MANY, WIDE))
    items, values = sn.recommend(wide(activation), x, 20, exclude_items=sp.eye_array(MANY, WIDE), batch=batch)
    np.testing.assert_array_equal(items, plain[0])
    assert_close(values, plain[1], terms=40)


@pytest.mark.parametrize("loss", [None, "cross_entropy"])
def test_nothing_is_as_wide_as_the_output(loss):
    """Neither users x items, nor batch x items."""
    network, users, batch = wide(loss=loss), 2000, 512
    x = chosen(users)
    sn.recommend(network, x[:batch], 10, batch=batch)  # compiles
    tracemalloc.start()
    try:
        sn.recommend(network, x, 10, batch=batch)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < users * WIDE * 4 / 3
    assert network.passes.nbytes < batch * WIDE * 4 / 3


def test_scored_again():
    """Scores of float32, and nearly the same items."""
    x = chosen()
    items, _ = sn.recommend(wide(), x, 20, scoring="float32")
    found, scores = sn.recommend(wide(), x, 20, scoring="bfloat16")
    shared = np.mean([len(np.intersect1d(*rows)) / 20 for rows in zip(items, found, strict=True)])
    assert shared > 0.98
    assert_close(scores, np.take_along_axis(wide().predict(x), found, axis=1), terms=40)
    assert (np.diff(scores, axis=1) <= 0).all()
    assert not (x.toarray()[np.arange(MANY)[:, None], found]).any()
    all_items, all_scores = sn.recommend(wide("softmax"), x[:3], WIDE, scoring="bfloat16")
    assert_close(np.where(all_items < 0, 0, all_scores).sum(axis=1),
                 (wide("softmax").predict(x[:3]) * (x[:3].toarray() == 0)).sum(axis=1), terms=WIDE)


def test_scoring_is_checked():
    with pytest.raises(ValueError, match="scoring: expected one of float32, bfloat16, got 'int4'"):
        sn.recommend(wide(), chosen(), scoring="int4")
    with pytest.raises(ValueError, match=r"scoring: output 'top' cannot be scored in bfloat16: streaming=False"):
        sn.recommend(wide(streaming=False), chosen(), scoring="bfloat16")


# ---- to a file


def test_to_a_file(tmp_path):
    """What would have been returned, whatever the batch."""
    network, file = small(), tmp_path / "lists.nc"
    expected = sn.recommend(network, X, 15)
    for batch in (1, 7, 100):
        assert sn.recommend(network, X, 15, batch=batch, file=file) is None
        for found, wanted in zip(read_recommendations(file), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype
    for found, wanted in zip(read_recommendations(file, slice(3, 9)), expected, strict=True):
        np.testing.assert_array_equal(found, wanted[3:9])


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "lists.nc"
    file.write_text("before")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        sn.recommend(small(), X, 3, file=tmp_path / "none" / "lists.nc")
    monkeypatch.setattr("sparsenet.recommendation.head_top_k", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sn.recommend(small(), X, 3, file=file)
    assert [path.name for path in tmp_path.iterdir()] == ["lists.nc"]
    assert file.read_text() == "before"


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_other_files_are_refused(tmp_path):
    small().save(tmp_path / "network.nc")
    with pytest.raises(ValueError, match="holds no recommendations that this version can read"):
        read_recommendations(tmp_path / "network.nc")
    with pytest.raises(FileNotFoundError):
        read_recommendations(tmp_path / "none.nc")


@pytest.mark.parametrize("k", [0, -1, 2.5, True, None, "10"])
def test_k_is_a_positive_integer(k):
    for call in (lambda: sn.recommend(small(), X, k), lambda: sn.popularity(X, X, k)):
        with pytest.raises(ValueError, match=f"k: expected a positive integer, got {k!r}"):
            call()


def test_seen_items_need_an_input_that_names_them():
    dense = Input(ITEMS)
    for network, inputs, count in (
            (sn.Network(dense, Dense(ITEMS)(dense), seed=1, device="cpu"), X.toarray(), 0),
            (sn.Network(narrow := Input(3, sparse=True), Dense(ITEMS)(narrow), seed=1, device="cpu"), X[:, :3], 0),
            (twice(), [X, X], 2)):
        with pytest.raises(ValueError, match=r"exclude_seen: needs exactly one sparse input with 12 columns, as the "
                                             rf"output has; there are {count}\. Pass exclude_seen=False"):
            sn.recommend(network, inputs, 3)
        items, _ = sn.recommend(network, inputs, 3, exclude_seen=False)
        assert (items >= 0).all()


def twice():
    a, b = Input(ITEMS, sparse=True), Input(ITEMS, sparse=True)
    return sn.Network([a, b], Dense(ITEMS)(a, b), seed=1, device="cpu")


@pytest.mark.parametrize(("items", "error", "message"), [
    (X[:5], ValueError, r"expected a sparse matrix of shape \(20, 12\), got csr_array of shape \(5, 12\)"),
    (X[:, :5], ValueError, r"expected a sparse matrix of shape \(20, 12\), got csr_array of shape \(20, 5\)"),
    (X.toarray(), ValueError, r"expected a sparse matrix of shape \(20, 12\), got ndarray of shape \(20, 12\)"),
    ([3, 4], ValueError, "got 1 axes"),
])
def test_excluded_items_that_do_not_fit(items, error, message):
    with pytest.raises(error, match=f"exclude_items: {message}"):
        sn.recommend(small(), X, 3, exclude_items=items)


# ---- metrics


NAMES = ["ndcg@5", "recall@2", "precision@3", "coverage@4", "mrr@12"]


def hidden():
    return sp.csr_array(np.random.default_rng(4).random((USERS, ITEMS)) < 0.2)


def test_evaluate_is_the_metrics_of_the_recommendations():
    network = small()
    items, _ = sn.recommend(network, X, 12)
    found = sn.evaluate(network, X, hidden(), metrics=NAMES, batch=7)
    assert found == metrics.evaluate_lists(items, hidden(), NAMES)
    assert list(found) == NAMES


def test_a_perfect_recommender():
    """Scores that are the hidden items themselves give 1."""
    wanted = hidden() > X.astype(bool)
    wanted.eliminate_zeros()
    found = sn.evaluate(copying(), [X, wanted.toarray()], wanted, metrics=["ndcg@12", "recall@12", "mrr@12"])
    assert set(found.values()) == {1.0}


@pytest.mark.parametrize(("relevant", "names", "message"), [
    (hidden()[:, :5], NAMES, r"hidden: expected a sparse matrix with 12 columns, as the output has, got csr_array of "),
    (sp.hstack([hidden(), hidden()]), NAMES, r"hidden: expected a sparse matrix with 12 columns, .* \(20, 24\)"),
    (hidden().toarray(), NAMES, r"hidden: expected a sparse matrix with 12 columns, .* ndarray of shape \(20, 12\)"),
    (hidden()[:5], NAMES, "hidden: has 5 users, but fold_in has 20"),
    (sp.csr_array((USERS, ITEMS)), NAMES, "relevant: no user has a relevant item"),
    (hidden(), [], "metrics: needs at least one name, such as 'ndcg@100'"),
    (hidden(), ["ndgc@10"], "metric: got 'ndgc@10', expected name@k"),
])
def test_evaluations_that_do_not_fit(relevant, names, message):
    with pytest.raises(ValueError, match=message):
        sn.evaluate(small(), X, relevant, metrics=names)


# ---- popularity


@PROPERTY
@given(cases(), st.integers(1, 40))
def test_popularity(case, k):
    """The most chosen items, those of fold_in left out, ties by number."""
    scores, chosen, seen = case
    counts = np.array([sum(column) for column in chosen.T.tolist()], float)
    expected, _ = by_sorting(np.broadcast_to(counts, scores.shape), k, seen)
    interactions = sp.csr_array(chosen * scores.astype(np.float64) * 2.0 + chosen * 100)  # values do not count
    items = sn.popularity(interactions, sp.csr_array(seen), k)
    assert items.dtype == np.int64
    np.testing.assert_array_equal(items, expected)


@pytest.mark.parametrize("seen", [X[:, :5], X.toarray(), np.ones((2, 5))])
def test_popularity_of_what_does_not_fit(seen):
    with pytest.raises(ValueError, match="fold_in: expected a sparse matrix with 12 columns, as interactions has"):
        sn.popularity(X, seen)


def test_trained_network_beats_popularity():
    """Users of two tastes: what everybody likes is nothing to go by."""
    rng = np.random.default_rng(0)
    taste = np.arange(200) % 2
    likes = rng.random((200, ITEMS)) < np.where((np.arange(ITEMS) % 2)[None] == taste[:, None], 0.7, 0.05)
    kept = rng.random(likes.shape) < 0.6
    fold_in, held_out = sp.csr_array(likes & kept), sp.csr_array(likes & ~kept)
    network = small()
    sn.fit(network, fold_in, fold_in, optimizer=optimizers.adam(0.02), epochs=40, batch=50)
    best = sn.evaluate(network, fold_in, held_out, metrics=["recall@3"])["recall@3"]
    baseline = sn.popularity(fold_in, fold_in, 3)
    assert best > 1.2 * metrics.evaluate_lists(baseline, held_out, ["recall@3"])["recall@3"]
