"""Sums of listed rows, of all widths: beside tiles, and less than a vector."""

import numpy as np
import pytest

from sparsenet.compiling import cpu_function
from sparsenet.row_sums import add_rows, fetch_row
from sparsenet.testing import assert_close


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ahead", [0, 3])
@pytest.mark.parametrize(("valued", "turned"), [(False, False), (True, False), (True, True)])
def test_add_rows(valued, turned, ahead, dtype):
    add = add_rows(valued, turned, ahead)

    @cpu_function
    def added(total, matrix, rows, start, end, data, positions):
        add(total, matrix, rows, start, end, rows.shape[0], data, positions)

    random = np.random.default_rng(1)
    rows, positions = random.integers(0, 7, 20).astype(np.int32), random.permutation(20).astype(np.int32)
    data = random.normal(size=20).astype(dtype)
    for units in (1, 3, 4, 16, 35, 128, 128 + 64 + 16 + 5):
        matrix = random.normal(size=(7, units)).astype(dtype)
        for start, end in ((4, 4), (4, 5), (4, 19)):
            total, before = np.ones(units, dtype), np.ones(units, np.float64)
            added(total, matrix, rows, start, end, data, positions)
            factors = (data[positions] if turned else data if valued else np.ones(20, dtype))[start:end, None]
            terms = factors.astype(np.float64) * matrix[rows[start:end]]
            assert_close(total, before + terms.sum(0), terms=16, scale=before + abs(terms).sum(0), dtype=dtype)


def test_fetching_changes_nothing():
    flat = np.arange(100, dtype=np.float32)
    fetch_row(flat, 7, 93)
    fetch_row(flat, 100, 0)
    assert np.array_equal(flat, np.arange(100))
