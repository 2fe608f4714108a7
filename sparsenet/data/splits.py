"""Splits of an interaction matrix into what a model learns from and what it is judged on."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sparsenet.data.dataset import canonical, scipy_csr, select_entries


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Users the model never trained on: what it is shown of them, and what it has to find."""

    #: (users, items) bool CSR, the interactions given to the model.
    fold_in: sp.csr_array
    #: (users, items) bool CSR, the interactions to predict; disjoint from `fold_in`.
    hidden: sp.csr_array
    #: (users,) row of the original matrix of each user, ascending.
    rows: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """Three groups of users over the items that the training users have."""

    #: (users, items) bool CSR, all interactions of the training users.
    train: sp.csr_array
    #: For choosing hyper-parameters.
    validation: HeldOut
    #: For the one final judgement.
    test: HeldOut
    #: (items,) column of the original matrix of each item, ascending.
    items: NDArray[np.int64]
    #: (users,) row of the original matrix of each row of `train`, ascending.
    train_rows: NDArray[np.int64]


def strong_generalization(
    matrix: Any,
    seed: int = 0,
    validation: float = 0.1,
    test: float = 0.2,
    min_items: int = 5,
    hidden: float = 0.2,
) -> Split:
    """Split by users: judge a model on users it has never seen, from a part of what they did.

    matrix      (users, items)  every nonzero is an interaction; values do not matter
    seed        same seed, same split, on every machine
    validation  share of the users held out for validation, rounded to whole users
    test        share of the users held out for the test, rounded to whole users
    min_items   users with fewer items are left out, counted before and again after the items are filtered
    hidden      share of a held-out user's items to predict, rounded down

    Items that no training user has are dropped: nothing can be learnt of them. Raises ValueError if a share
    is out of range, if a held-out user could end up with nothing to predict, or if no training user remains.

    Source: Liang et al. 2018, "Variational autoencoders for collaborative filtering". The draws are those of
    the published splits: RandomState(98765 + seed), whose stream NumPy has frozen, permutes the users, then
    picks the hidden items of each validation user, then of each test user, users in ascending order.
    """
    _check_shares(seed, validation, test, min_items, hidden)
    checked = canonical(matrix, "matrix")
    interactions = scipy_csr(checked if sp.issparse(checked) else sp.csr_array(checked)).astype(np.bool_)
    users = np.flatnonzero(np.diff(interactions.indptr) >= min_items)

    random = np.random.RandomState(98765 + seed)
    shuffled = random.permutation(users)
    test_end = round(test * len(users))
    validation_end = test_end + round(validation * len(users))
    train_rows = np.sort(shuffled[validation_end:])
    if not len(train_rows):
        raise ValueError(
            f"matrix: {len(users)} of {interactions.shape[0]} users have min_items = {min_items} or more, "
            "too few: none is left to train on"
        )

    items = np.unique(interactions[train_rows].indices).astype(np.int64)
    interactions = interactions[:, items]
    validation_part, test_part = (
        _hide(interactions, np.sort(rows), random, min_items, hidden)
        for rows in (shuffled[test_end:validation_end], shuffled[:test_end])
    )
    return Split(interactions[train_rows], validation_part, test_part, items, train_rows)


def _hide(
    interactions: sp.csr_array,
    rows: NDArray[np.int64],
    random: np.random.RandomState,
    min_items: int,
    share: float,
) -> HeldOut:
    rows = rows[np.diff(interactions.indptr)[rows] >= min_items]
    chosen = interactions[rows]
    is_hidden = np.zeros(chosen.nnz, dtype=np.bool_)
    for start, end in pairwise(chosen.indptr.tolist()):
        count = end - start
        is_hidden[start + random.choice(count, size=int(share * count), replace=False)] = True
    return HeldOut(select_entries(chosen, ~is_hidden), select_entries(chosen, is_hidden), rows)


def _check_shares(seed: int, validation: float, test: float, min_items: int, hidden: float) -> None:
    if seed < 0:
        raise ValueError(f"seed: got {seed}, expected an integer >= 0")
    for name, share in (("validation", validation), ("test", test)):
        if not 0 <= share < 1:
            raise ValueError(f"{name}: got {share}, expected a share of the users, 0 <= {name} < 1")
    if validation + test >= 1:
        raise ValueError(f"validation + test: got {validation} + {test}, expected less than 1, to train on")
    if not 0 < hidden < 1:
        raise ValueError(f"hidden: got {hidden}, expected a share of a user's items, 0 < hidden < 1")
    if int(hidden * min_items) < 1:
        raise ValueError(
            f"min_items: got {min_items}, of which a share hidden = {hidden} is less than one item to predict"
        )
