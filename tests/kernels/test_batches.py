import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import strategies as st

from sparsenet.kernels.batches import gather_rows, transpose, transpose_all
from sparsenet.testing.strategies import csr

pytestmark = pytest.mark.parametrize("device", ["cpu"], indirect=True)  # these kernels run on the host only


def test_gather_rows(prove, agree, sizes):
    @prove
    def example(data):
        matrix = data.draw(csr(data.draw(sizes(1)), data.draw(sizes())))
        rows = np.array(data.draw(st.lists(st.integers(0, matrix.batch - 1), max_size=40)), np.int64)
        needed = int(np.diff(matrix.indptr)[rows].sum()) + data.draw(st.integers(0, 3))
        values = np.zeros(0, np.float32) if matrix.data is None else matrix.data
        agree(gather_rows, rows, matrix.indptr, matrix.indices, values, np.full(len(rows) + 1, -7),
              np.full(needed, -7, np.int32), np.full(needed, np.nan, np.float32),
              outputs="out_indptr out_indices out_data")


def _garbage(length, dtype=np.int32):
    return np.full(length, -7, dtype)


def test_transpose(prove, agree, sizes):
    @prove
    def example(data):
        matrix = data.draw(csr(data.draw(sizes()), data.draw(sizes())))
        nonzeros, distinct = len(matrix.indices), len(set(matrix.indices.tolist()))
        agree(transpose, matrix.indptr, matrix.indices, np.zeros(matrix.features, np.int64), _garbage(distinct),
              _garbage(distinct + 1, np.int64), _garbage(nonzeros), _garbage(nonzeros), _garbage(1, np.int64),
              outputs="count features out_indptr examples positions touched")


def test_transpose_all(prove, agree, sizes):
    @prove
    def example(data):
        matrix = data.draw(csr(data.draw(sizes()), data.draw(sizes())))
        nonzeros = len(matrix.indices)
        agree(transpose_all, matrix.indptr, matrix.indices, _garbage(matrix.features + 1, np.int64),
              _garbage(nonzeros), _garbage(nonzeros), outputs="out_indptr examples positions")


def test_transpose_is_scipys(prove, sizes):
    @prove
    def example(data):
        matrix = data.draw(csr(data.draw(sizes(1)), data.draw(sizes(1)), valued=True, exact=True))
        nonzeros, shape = len(matrix.indices), (matrix.batch, matrix.features)
        indptr, examples = np.zeros(matrix.features + 1, np.int64), np.zeros(nonzeros, np.int32)
        positions = np.zeros(nonzeros, np.int32)
        transpose_all(matrix.indptr, matrix.indices, indptr, examples, positions)
        by_feature = sp.csc_matrix((matrix.data[positions], examples, indptr), shape=shape)
        by_example = sp.csr_matrix((matrix.data, matrix.indices, matrix.indptr), shape=shape)
        assert np.array_equal(by_feature.toarray(), by_example.toarray())
