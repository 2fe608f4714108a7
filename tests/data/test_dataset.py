"""The door against float64 loops over coordinates, and against everything that must not pass it."""

import copy

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from sparsenet.data import Dataset, canonical
from sparsenet.data.dataset import scipy_csr, select_entries

FORMATS = ("csr", "csc", "coo", "bsr", "lil", "dok", "dia")
VALUES = {  # exact in float32, and so are their sums
    "?": st.booleans(),
    "i1": st.integers(-128, 127),
    "u8": st.integers(0, 1000),
    "f4": st.sampled_from([0.0, -0.0, 1.0, 0.5, -1.0]),
    "f8": st.sampled_from([0.0, 2.0, -0.25]),
    ">f8": st.sampled_from([0.0, 3.0]),
}


@st.composite
def coordinates(draw):
    """Shape, rows, columns and values, in any order, with repetitions and zeros."""
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    dtype = draw(st.sampled_from(sorted(VALUES)))
    entry = st.tuples(st.integers(0, shape[0] - 1), st.integers(0, shape[1] - 1), VALUES[dtype])
    entries = draw(st.lists(entry, max_size=20))
    rows, columns, values = zip(*entries, strict=True) if entries else ((), (), ())
    return shape, np.array(rows, int), np.array(columns, int), np.array(values, dtype)


def dense_sum(shape, rows, columns, values):
    """What the coordinates mean: repetitions summed, or or-ed."""
    result = np.zeros(shape, bool if values.dtype == bool else np.float64)
    for row, column, value in zip(rows, columns, values, strict=True):
        result[row, column] = result[row, column] + value
    return result


def unsorted_csr(shape, rows, columns, values):
    """CSR that keeps repetitions and the order within a row."""
    order = np.argsort(rows, kind="stable")
    indptr = np.searchsorted(rows[order], np.arange(shape[0] + 1))
    return sp.csr_array((values[order], columns[order], indptr), shape=shape)


def assert_canonical(matrix, expected):
    assert isinstance(matrix, sp.csr_array)
    assert matrix.indptr.dtype == np.int64
    assert matrix.indices.dtype == np.int32
    assert matrix.dtype == (np.bool_ if expected.dtype == bool else np.float32)
    rows, columns = np.nonzero(expected)  # row by row, columns ascending
    assert_array_equal(matrix.indptr, np.searchsorted(rows, np.arange(len(expected) + 1)))
    assert_array_equal(matrix.indices, columns)
    assert_array_equal(matrix.data, expected[rows, columns])


@settings(deadline=None)
@given(coordinates())
def test_csr_is_sorted_summed_and_rid_of_zeros(parts):
    matrix = unsorted_csr(*parts)
    before = copy.deepcopy([matrix.data, matrix.indices, matrix.indptr])
    assert_canonical(canonical(matrix), dense_sum(*parts))
    for array, old in zip((matrix.data, matrix.indices, matrix.indptr), before, strict=True):
        assert array.dtype == old.dtype
        assert_array_equal(array, old)


@settings(deadline=None)
@given(coordinates(), st.sampled_from(FORMATS), st.booleans())
def test_every_scipy_format(parts, form, is_array):
    shape, rows, columns, values = parts
    kind = getattr(sp, f"{form}_{'array' if is_array else 'matrix'}")
    expected = dense_sum(shape, rows, columns, values.astype(values.dtype.newbyteorder("=")))
    held = expected if expected.dtype == bool else expected.astype(np.float32)
    assert_canonical(canonical(kind(held)), expected)


@settings(deadline=None)
@given(coordinates())
def test_repeated_coordinates(parts):
    shape, rows, columns, values = parts
    assume(values.dtype.isnative)  # this constructor takes no other
    matrix = sp.coo_array((values, (rows, columns)), shape=shape)
    assert_canonical(canonical(matrix), dense_sum(*parts))


def test_rows_and_matrices_without_entries():
    assert_canonical(canonical(sp.csr_array((3, 2), dtype=np.float32)), np.zeros((3, 2)))
    assert_canonical(canonical(sp.csr_array([[0, 0, 0], [0, 0, 7]])), np.array([[0, 0, 0], [0, 0, 7.0]]))


def test_small_integers_do_not_wrap():
    matrix = sp.coo_array((np.array([100, 100], np.int8), ([0, 0], [1, 1])), shape=(1, 2))
    assert_canonical(canonical(matrix), np.array([[0.0, 200.0]]))


def test_doubles_are_summed_before_they_are_rounded():
    values = np.array([2.0**30, 1.0, -(2.0**30)])
    matrix = sp.coo_array((values, ([0, 0, 0], [0, 0, 0])), shape=(1, 1))
    assert_canonical(canonical(matrix), np.array([[1.0]]))


def test_a_canonical_matrix_is_returned_as_it_is():
    matrix = canonical(sp.csr_array(np.eye(3, dtype=np.float32)))
    assert canonical(matrix) is matrix
    dense = np.ones((2, 3), np.float32)
    assert canonical(dense) is dense


def test_arrays_are_copied_only_where_they_change():
    matrix = sp.csr_array(np.float32([[0, 0], [0, 1], [0, 0], [1, 1], [1, 0], [0, 0]]))  # its indptr is int32
    result = canonical(matrix)
    assert result.data is matrix.data
    assert result.indices is matrix.indices
    assert result.indptr.dtype == np.int64
    assert matrix.indptr.dtype == np.int32


def test_scipys_stale_flags_are_not_trusted():
    matrix = sp.csr_array(np.ones((1, 3), np.float32))
    assert matrix.has_canonical_format  # cached from here on
    matrix.indices = np.array([2, 0, 2], np.int32)
    assert_canonical(canonical(matrix), np.array([[1.0, 0.0, 2.0]]))


def test_scipy_csr_serves_what_mixed_index_types_do_not():
    matrix = canonical(sp.csr_array([[0, 2.0], [3.0, 0]]))
    rows, columns = scipy_csr(matrix).nonzero()
    assert_array_equal(rows, [0, 1])
    assert_array_equal(columns, [1, 0])
    assert np.shares_memory(scipy_csr(matrix).data, matrix.data)


@settings(deadline=None)
@given(coordinates(), st.data())
def test_select_entries(parts, data):
    matrix = unsorted_csr(*parts)
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=matrix.nnz, max_size=matrix.nnz)), bool)
    result = select_entries(matrix, kept)
    order = np.argsort(parts[1], kind="stable")
    expected = unsorted_csr(parts[0], *(part[order][kept] for part in parts[1:]))
    assert result.shape == matrix.shape
    for name in ("data", "indices", "indptr"):
        assert_array_equal(getattr(result, name), getattr(expected, name))


@pytest.mark.parametrize(
    "matrix",
    [
        [[1, 2, 3], [4, 5, 6]],
        np.array([[1, 2, 3], [4, 5, 6]], np.int64),
        np.array([[1, 2, 3], [4, 5, 6]], np.float16),
        np.array([[1, 2, 3], [4, 5, 6]], ">f4"),
        np.asfortranarray(np.array([[1, 2, 3], [4, 5, 6]], np.float32)),
        np.array([[1, 9, 2, 9, 3], [4, 9, 5, 9, 6]], np.float64)[:, ::2],
    ],
    ids=["lists", "int64", "float16", "big-endian", "fortran", "strided"],
)
def test_dense(matrix):
    result = canonical(matrix)
    assert type(result) is np.ndarray
    assert result.dtype == np.float32
    assert result.dtype.isnative
    assert result.flags.c_contiguous
    assert_array_equal(result, [[1, 2, 3], [4, 5, 6]])


def test_dense_bool_becomes_numbers():
    assert_array_equal(canonical(np.array([[True, False]])), np.array([[1, 0]], np.float32))


def csr(data=(1.0, 2.0), indices=(0, 1), indptr=(0, 1, 2), shape=(2, 3)):
    """CSR whose arrays SciPy has not seen."""
    matrix = sp.csr_array(shape, dtype=np.float64)
    matrix.data, matrix.indices, matrix.indptr = (np.array(part) for part in (data, indices, indptr))
    return matrix


def with_parts(matrix, **parts):
    for name, value in parts.items():
        setattr(matrix, name, np.array(value))
    return matrix


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros(3), r"X: got 1 axes, shape \(3,\), expected 2"),
        (np.zeros((1, 1, 1)), "X: got 3 axes"),
        (7, "X: got 0 axes"),
        ([[1, 2], [3]], "X: not a matrix"),
        (np.zeros((0, 3)), "X: empty: 0 rows, 3 columns"),
        (sp.csr_array((2, 0)), "X: empty: 2 rows, 0 columns"),
        (sp.coo_array((1, 2**31)), "X: got 2147483648 columns, expected at most 2147483647"),
        (np.array([[1, 2], [3, np.nan]]), "X: row 1, column 1 is nan, expected a finite"),
        (np.array([[1, -np.inf]], np.float32), "X: row 0, column 1 is -inf, expected a finite"),
        (np.array([[1, 1e39]]), r"X: row 0, column 1 is 1e\+39, more than float32"),
        (sp.csr_array([[0, 0, 0], [0, 1, np.nan]]), "X: row 1, column 2 is nan"),
        (sp.csr_array([[0], [1e200]]), r"X: row 1, column 0 is 1e\+200, more than float32"),
        (csr(indices=(0, 3)), "X: row 1 holds column index 3, expected 0 to 2"),
        (csr(indices=(-1, 1)), "X: row 0 holds column index -1, expected 0 to 2"),
        (csr(indptr=(0, 0, 2), indices=(0, 2**40)), "X: row 1 holds column index 1099511627776"),
        (csr(indptr=(0, 2)), r"X: indptr has shape \(2,\), expected \(3,\)"),
        (csr(indptr=(0, 1, 3)), "X: indptr goes from 0 to 3, expected 0 to 2 nonzeros"),
        (csr(indptr=(0, 1, 1)), "X: indptr goes from 0 to 1, expected 0 to 2 nonzeros"),
        (csr(indptr=(1, 1, 2)), "X: indptr goes from 1 to 2"),
        (csr(indptr=(0, 3, 1, 2), shape=(3, 3)), "X: row 1 goes from 3 back to 1"),
        (csr(data=(1.0,)), r"X: got indices of shape \(2,\) for 1 values"),
        (with_parts(sp.csc_array(np.eye(2)), indices=[0, 2]), "X: column 1 holds row index 2, expected 0 to 1"),
        (with_parts(sp.csc_array(np.eye(2)), indptr=[0, 9, 2]), "X: column 1 goes from 9 back to 2"),
        (with_parts(sp.bsr_array(np.eye(4), blocksize=(2, 2)), indices=[0, 5]), "X: block row 1 holds block column"),
        (with_parts(sp.coo_array(np.eye(2)), row=[0, -7]), "X: entry 1 has row -7, expected 0 to 1"),
        (with_parts(sp.coo_array(np.eye(2)), col=[2, 0]), "X: entry 0 has column 2, expected 0 to 1"),
        (with_parts(sp.coo_array(np.eye(2)), data=[1.0]), "X: got 2 row indices of 1 values"),
    ],
)
def test_what_may_not_pass(matrix, message):
    with pytest.raises(ValueError, match=message):
        canonical(matrix)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.array([[1j]]), "X: got values of type complex128"),
        (np.array([["a"]]), "X: got values of type <U1"),
        (np.array([[None]]), "X: got values of type object"),
        (sp.csr_array([[1j]]), "X: got values of type complex128"),
        (np.ma.masked_array([[1.0, 2.0]], [[True, False]]), "X: got a masked array"),
        (csr(indices=(0.0, 1.0)), "X: got indptr int64 and indices float64, expected integers"),
    ],
)
def test_what_is_no_number(matrix, message):
    with pytest.raises(TypeError, match=message):
        canonical(matrix)


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"^target: empty"):
        canonical(np.zeros((0, 1)), name="target")


def test_dataset():
    sparse = Dataset("input", sp.coo_matrix(np.array([[True, False, True], [False, False, False]])))
    assert (sparse.examples, sparse.features, sparse.sparse, sparse.boolean) == (2, 3, True, True)
    assert sparse.matrix.indptr.dtype == sparse.matrix.indices.dtype  # all of SciPy works
    assert_canonical(canonical(sparse), np.array([[True, False, True], [False, False, False]]))

    dense = Dataset("output", [[1, 2]], weights=[0.5])
    assert (dense.examples, dense.features, dense.sparse, dense.boolean) == (1, 2, False, False)
    assert canonical(dense) is dense.matrix
    assert dense.weights is not None
    assert dense.weights.dtype == np.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", np.ones((1, 1))), "name: got '', expected a string"),
        (("a\0b", np.ones((1, 1))), "name: got"),
        ((5, np.ones((1, 1))), "name: got 5, expected a string"),
        (("input", np.ones(3)), "input: got 1 axes"),
        (("input", np.ones((2, 1)), [1.0]), r"input: weights: got float64 of shape \(1,\), expected one number"),
        (("input", np.ones((2, 1)), ["a", "b"]), "input: weights: got <U1"),
        (("input", np.ones((2, 1)), [1.0, -1.0]), "input: weights: row 1 is -1.0, expected finite and >= 0"),
        (("input", np.ones((2, 1)), [np.nan, 1.0]), "input: weights: row 0 is nan"),
        (("input", np.ones((2, 1)), [0.0, 1e39]), r"input: weights: row 1 is 1e\+39"),
    ],
)
def test_dataset_checks(arguments, message):
    with pytest.raises(ValueError, match=message):
        Dataset(*arguments)
