"""What a network does with bad input, and with the same input in other words."""


import numpy as np
import pytest
import scipy.sparse as sp

import sparsenet as sn
from sparsenet import optimizers
from sparsenet.layers import Dense, Input
from sparsenet.testing import assert_close
from tests.networks import (
    ALL_OPTIMIZERS,
    ITEMS,
    TWO_INPUTS,
    USERS,
    T,
    X,
    assert_same_bits,
    by_hand,
    small,
    two_ended,
)

# ---- what comes in


def bad_sparse(indices=(1, 2), indptr=(0, 1, 2), values=(1.0, 1.0)):
    """SciPy does not check what is put in afterwards."""
    matrix = sp.csr_array((2, ITEMS), dtype=np.float32)
    matrix.data, matrix.indices, matrix.indptr = np.array(values, np.float32), np.array(indices), np.array(indptr)
    return matrix


def predict(matrix):
    return small().predict(matrix)


def recommend(matrix):
    return sn.recommend(small(), matrix, 3)


def fit_inputs(matrix):
    targets = sp.csr_array((max(1, matrix.shape[0]), ITEMS), dtype=bool)
    return sn.fit(small(), matrix, targets, optimizer=optimizers.sgd(), epochs=1)


def fit_targets(matrix):
    inputs = sp.csr_array((max(1, matrix.shape[0]), ITEMS), dtype=bool)
    return sn.fit(small(), inputs, matrix, optimizer=optimizers.sgd(), epochs=1)


BAD = {
    "no rows": (sp.csr_array((0, ITEMS), dtype=np.float32), ValueError, "empty: 0 rows, 12 columns"),
    "no rows, dense": (np.ones((0, ITEMS)), ValueError, "empty: 0 rows, 12 columns"),
    "one axis": (np.ones(ITEMS), ValueError, "got 1 axes"),
    "too narrow": (X[:, :ITEMS - 1], ValueError, "has 11 columns, but the layer has 12 units"),
    "too wide, dense": (np.ones((2, ITEMS + 1)), ValueError, "has 13 columns, but the layer has 12 units"),
    "index too large": (bad_sparse(indices=(1, ITEMS)), ValueError, "row 1 holds column index 12, expected 0 to 11"),
    "index negative": (bad_sparse(indices=(-1, 2)), ValueError, "row 0 holds column index -1, expected 0 to 11"),
    "rows fall": (bad_sparse(indptr=(0, 3, 2)), ValueError, "row 1 goes from 3 back to 2: indptr falls"),
    "NaN": (bad_sparse(values=(1, np.nan)), ValueError, "row 1, column 2 is nan, expected a finite number"),
    "infinity": (bad_sparse(values=(np.inf, 1)), ValueError, "row 0, column 1 is inf, expected a finite number"),
    "NaN, dense": (np.where(np.eye(ITEMS) > 0, np.nan, 1), ValueError, "row 0, column 0 is nan"),
    "too large": (np.full((2, ITEMS), 1e300), ValueError, r"row 0, column 0 is 1e\+300, more than float32 can hold"),
    "complex": (np.ones((2, ITEMS), complex), TypeError, "got values of type complex128"),
    "text": (np.full((2, ITEMS), "a"), TypeError, "got values of type <U1"),
    "objects": (np.full((2, ITEMS), None), TypeError, "got values of type object"),
    "masked": (np.ma.masked_array(np.ones((2, ITEMS)), np.eye(2, ITEMS)), TypeError, "got a masked array"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("door", [predict, recommend, fit_inputs, fit_targets])
def test_bad_matrix_is_refused_at_every_door(door, bad):
    matrix, error, message = BAD[bad]
    name = "targets 'top'" if door is fit_targets else "inputs 'input1'"
    with pytest.raises(error, match=f"{name}: {message}"):
        door(matrix)


def unsorted(dtype=np.float32, index=np.int32):
    """Made anew each time: SciPy's conversions sort in place, and share arrays."""
    return sp.csr_array((np.array([3, 1, 2, 5], dtype), np.array([7, 2, 7, 0], index), np.array([0, 3, 4], index)),
                        shape=(2, ITEMS))


SAME = {  # the same examples in other words
    "floats": sp.csr_array(np.array([[0, 0, 1.0, 0, 0, 0, 0, 5, 0, 0, 0, 0], [5] + 11 * [0]], np.float32)),
    "unsorted and repeated": unsorted(),
    "float64": unsorted(np.float64),
    "integers": unsorted(np.int16),
    "COO": unsorted().tocoo(),
    "CSC": unsorted().tocsc(),
    "LIL": unsorted().tolil(),
    "DOK": unsorted().todok(),
    "matrix": sp.csr_matrix(unsorted()),
    "long indices": unsorted(index=np.int64),
    "dense": unsorted().toarray(),
    "nested lists": unsorted().toarray().tolist(),
    "not contiguous": np.asfortranarray(unsorted().toarray()),
    "data set": sn.data.Dataset("named", unsorted()),
}


@pytest.mark.parametrize("form", SAME)
def test_forms_of_one_matrix(form):
    """All give the same bits, as inputs and as targets, and stay as they were."""
    before = SAME[form].copy() if sp.issparse(SAME[form]) else None
    expected, network = small(loss="squared_error"), small(loss="squared_error")
    assert_same_bits({"y": network.predict(SAME[form])}, {"y": expected.predict(SAME["floats"])})
    for one, matrix in ((network, SAME[form]), (expected, SAME["floats"])):
        sn.fit(one, matrix, matrix, optimizer=optimizers.adam(), epochs=2, shuffle=False)
    assert_same_bits(network.weights, expected.weights)
    if before is not None:
        assert (before != SAME[form]).nnz == 0
        assert before.dtype == SAME[form].dtype


@pytest.mark.parametrize(("loss", "activation", "value", "span"), [
    ("cross_entropy", "sigmoid", 5.0, "from 0 to 1"),
    ("cross_entropy", "sigmoid", -0.5, "from 0 to 1"),
    ("cross_entropy", "softmax", -0.5, "from 0 to inf"),
])
@pytest.mark.parametrize("form", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_targets_without_a_meaning(loss, activation, value, span, form):
    """A rating of 5 is no probability: cross entropy has no minimum there."""
    x = Input(ITEMS, sparse=True)
    network = sn.Network(x, Dense(ITEMS, activation, name="top")(x), loss, seed=1, device="cpu")
    targets = np.eye(USERS, ITEMS)
    targets[3, 2] = value
    with pytest.raises(ValueError, match=f"targets 'top': holds {value:g}, but {loss} with {activation} takes targets "
                                         f"{span}"):
        sn.fit(network, X, form(targets), optimizer=optimizers.sgd(), epochs=1)


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
def test_targets_with_a_meaning(loss):
    """Counts for a multinomial loss, any number for squared error."""
    x = Input(ITEMS, sparse=True)
    network = sn.Network(x, Dense(ITEMS, "softmax")(x), loss, seed=1, device="cpu")
    targets = np.full((USERS, ITEMS), 3.0 if loss == "cross_entropy" else -3.0)
    assert np.isfinite(sn.fit(network, X, targets, optimizer=optimizers.sgd(), epochs=1)["loss"]).all()


def test_weights_of_examples_are_not_passed_over():
    weighted = sn.data.Dataset("named", X, np.ones(USERS))
    with pytest.raises(ValueError, match="inputs 'input1': the data set has weights, which networks do not heed yet"):
        small().predict(weighted)


@pytest.mark.parametrize("optimizer", ALL_OPTIMIZERS, ids=lambda o: o.name)
@pytest.mark.parametrize("dtype", [bool, np.float32])
def test_examples_without_entries(optimizer, dtype):
    """Nothing but biases reaches the output; nothing but biases, and the second layer, learns."""
    nothing = sp.csr_array((USERS, ITEMS), dtype=dtype)
    network = small()
    network.set_weights({"hidden/bias": np.linspace(-1, 1, 5)})
    before = network.weights
    assert_close(network.predict(nothing), by_hand(network, nothing), terms=6, scale=5.0)
    history = sn.fit(network, nothing, nothing, optimizer=optimizer, epochs=3, batch=6)
    assert np.isfinite(history["loss"]).all()
    assert history["loss"][-1] < history["loss"][0]
    np.testing.assert_array_equal(network.weights["hidden/weight"], before["hidden/weight"])
    assert (network.weights["top/bias"] != before["top/bias"]).all()


def test_batch_larger_than_the_data():
    networks = small(), small()
    for network, batch in zip(networks, (USERS, 1000), strict=True):
        sn.fit(network, X, T, optimizer=optimizers.adam(), epochs=2, batch=batch)
    assert_same_bits(networks[0].weights, networks[1].weights)
    assert_same_bits({"y": networks[0].predict(X, batch=USERS)}, {"y": networks[1].predict(X, batch=10**9)})


def test_different_numbers_of_examples_and_targets():
    with pytest.raises(ValueError, match="targets 'top': has 19 examples, but others have 20"):
        sn.fit(small(), X, T[:-1], optimizer=optimizers.sgd(), epochs=1)
    with pytest.raises(ValueError, match="targets 'r': has 19 examples, but others have 20"):
        sn.fit(two_ended(), TWO_INPUTS, [T, T[:-1]], optimizer=optimizers.sgd(), epochs=1)
