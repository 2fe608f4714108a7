"""Splits against the published ones, pair by pair, and against what a split must be."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from sparsenet.data import online_retail, read_ratings, strong_generalization

PARTS = ("train", "validation.fold_in", "validation.hidden", "test.fold_in", "test.hidden")


def pairs(split, part, original_rows=True):
    """(pairs, 2): user and column of each interaction, in order."""
    group, _, field = part.partition(".")
    held_out = getattr(split, group)
    matrix = getattr(held_out, field) if field else held_out
    rows, columns = matrix.nonzero()
    if original_rows:
        rows = (held_out.rows if field else split.train_rows)[rows]
    return np.stack((rows, columns), axis=1)


def test_online_retail_split_is_the_published_one(shared):
    published = np.load(shared("ratings/online-retail/split_seed0.npz"))
    split = strong_generalization(online_retail().matrix)
    assert_array_equal(split.items, published["items"])
    for part, name in zip(PARTS, ("train", "val_in", "val_out", "test_in", "test_out"), strict=True):
        assert_array_equal(pairs(split, part, original_rows=False), published[name], err_msg=name)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("min_rating", [0, 4])
def test_movielens_100k_splits_are_the_published_ones(shared, min_rating, seed):
    ratings = read_ratings(shared("ratings/ml-100k/u.data"))
    published = np.load(shared(f"baselines/splits/ml-100k_thr{min_rating}_seed{seed}.npz"))
    split = strong_generalization(ratings.interactions(min_rating), seed)
    assert_array_equal(ratings.items[split.items] - 1, published["item_ids"])
    for part, name in zip(PARTS, ("train", "val_tr", "val_te", "test_tr", "test_te"), strict=True):
        assert_array_equal(pairs(split, part), published[name], err_msg=name)


@pytest.mark.parametrize("min_rating", [0, 4])
def test_movielens_1m_splits_are_the_published_ones(shared, min_rating):
    stored = np.load(shared("ratings/ml-1m/rating_matrix.npz"))
    ratings = stored["rating_matrix"].copy()
    users, items, values = stored["validation_matrix"].T
    ratings[users, items] = values
    published = np.load(shared(f"baselines/splits/ml-1m_thr{min_rating}_seed0.npz"))
    split = strong_generalization(sp.csr_array(ratings * (ratings >= min_rating)))
    assert_array_equal(split.items, published["item_ids"])
    for part, name in zip(PARTS, ("train", "val_tr", "val_te", "test_tr", "test_te"), strict=True):
        assert_array_equal(pairs(split, part), published[name], err_msg=name)


@st.composite
def interaction_matrices(draw):
    shape = draw(st.tuples(st.integers(4, 40), st.integers(1, 30)))
    density = draw(st.floats(0.05, 0.9))
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).random(shape) < density


@settings(deadline=None)
@given(
    matrix=interaction_matrices(),
    seed=st.integers(0, 1000),
    validation=st.sampled_from([0, 0.1, 0.3]),
    test=st.sampled_from([0, 0.2, 0.5]),
    hidden_and_least=st.sampled_from([(0.2, 5), (0.5, 2), (0.5, 6), (0.9, 2)]),
)
def test_what_a_split_is(matrix, seed, validation, test, hidden_and_least):
    hidden, min_items = hidden_and_least
    counts = matrix.sum(axis=1)
    users = np.flatnonzero(counts >= min_items)
    n_test, n_validation = round(test * len(users)), round(validation * len(users))
    assume(n_test + n_validation < len(users))
    split = strong_generalization(matrix, seed, validation, test, min_items, hidden)

    assert_array_equal(split.train.toarray(), matrix[np.ix_(split.train_rows, split.items)])
    assert_array_equal(split.items, np.flatnonzero(matrix[split.train_rows].any(axis=0)))
    assert len(split.train_rows) == len(users) - n_test - n_validation
    assert_array_equal(split.train_rows, np.sort(split.train_rows))

    seen = list(split.train_rows)
    for part, most in ((split.validation, n_validation), (split.test, n_test)):
        there = matrix[np.ix_(part.rows, split.items)]
        shown, asked = part.fold_in.toarray(), part.hidden.toarray()
        assert shown.dtype == asked.dtype == np.bool_
        assert_array_equal(shown | asked, there)
        assert not (shown & asked).any()
        assert_array_equal(asked.sum(axis=1), (hidden * there.sum(axis=1)).astype(int))
        assert (there.sum(axis=1) >= min_items).all()
        assert len(part.rows) <= most
        assert_array_equal(part.rows, np.sort(part.rows))
        seen.extend(part.rows)
    assert len(set(seen)) == len(seen)
    # a user in no part was held out, but kept too few items
    lost = np.setdiff1d(users, seen)
    assert (matrix[np.ix_(lost, split.items)].sum(axis=1) < min_items).all()


def test_seeds_and_values():
    matrix = np.random.default_rng(0).random((200, 50)) < 0.4
    first, again = strong_generalization(matrix, seed=3), strong_generalization(matrix, seed=3)
    weighted = strong_generalization(sp.csc_array(matrix * 2.5), seed=3)
    for part in PARTS:
        assert_array_equal(pairs(first, part), pairs(again, part))
        assert_array_equal(pairs(first, part), pairs(weighted, part))
    assert not np.array_equal(first.train_rows, strong_generalization(matrix, seed=4).train_rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "seed: got -1"),
        ({"test": 1.0}, "test: got 1.0, expected a share"),
        ({"validation": -0.1}, "validation: got -0.1, expected a share"),
        ({"validation": 0.5, "test": 0.5}, r"validation \+ test: got 0.5 \+ 0.5"),
        ({"hidden": 0}, "hidden: got 0"),
        ({"hidden": 1.0}, "hidden: got 1.0"),
        ({"min_items": 4}, "min_items: got 4, of which a share hidden = 0.2 is less than one item"),
        ({"min_items": 11}, "matrix: 0 of 4 users have min_items = 11 or more"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        strong_generalization(np.ones((4, 10)), **arguments)
