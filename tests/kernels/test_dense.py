import itertools

import numpy as np
import pytest

from sparsenet.kernels.dense import column_sum, matmul
from sparsenet.testing.strategies import dense

each_form = pytest.mark.parametrize(("transpose_a", "transpose_b", "accumulate"),
                                    list(itertools.product([False, True], repeat=3)))


def compare(agree, a, b, c, transpose_a, transpose_b, accumulate):
    """c is garbage where the product is not added to it."""
    agree(matmul, a, b, c if accumulate else np.full_like(c, np.nan), transpose_a=transpose_a, transpose_b=transpose_b,
          accumulate=accumulate, terms=1 + a.shape[0 if transpose_a else 1], scale="sum")


@each_form
def test_matmul(transpose_a, transpose_b, accumulate, prove, agree, sizes):
    @prove
    def example(data):
        rows, inner, columns = (data.draw(sizes(simulator=9)) for _ in range(3))
        a = data.draw(dense(inner, rows) if transpose_a else dense(rows, inner))
        b = data.draw(dense(columns, inner) if transpose_b else dense(inner, columns))
        compare(agree, a, b, data.draw(dense(rows, columns)), transpose_a, transpose_b, accumulate)


@each_form
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], indirect=True)
@pytest.mark.parametrize(("rows", "inner", "columns"), [(128, 3, 512), (129, 5, 513), (127, 1, 511), (257, 2, 1025)])
def test_matmul_at_borders_of_tiles(rows, inner, columns, transpose_a, transpose_b, accumulate, agree):
    random = np.random.default_rng(0)
    a, b, c = (random.uniform(-4, 4, shape).astype(np.float32)
               for shape in ((rows, inner), (inner, columns), (rows, columns)))
    a, b = np.ascontiguousarray(a.T if transpose_a else a), np.ascontiguousarray(b.T if transpose_b else b)
    compare(agree, a, b, c, transpose_a, transpose_b, accumulate)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], indirect=True)
def test_long_sums(agree):
    random = np.random.default_rng(0)
    a, b = (random.uniform(-4, 4, shape).astype(np.float32) for shape in ((37, 5000), (5000, 600)))
    compare(agree, a, b, np.zeros((37, 600), np.float32), False, False, False)


@pytest.mark.parametrize("device", [pytest.param("simulator", marks=pytest.mark.simulator)], indirect=True)
@pytest.mark.parametrize("transpose", [False, True])
def test_matmul_in_full_tiles(transpose, full_blocks, agree):
    random = np.random.default_rng(0)
    shapes = ((18, 17), (19, 18), (17, 19)) if transpose else ((17, 18), (18, 19), (17, 19))
    a, b, c = (random.uniform(-4, 4, shape).astype(np.float32) for shape in shapes)
    compare(agree, a, b, c, transpose, transpose, transpose)


def test_column_sum(prove, agree, sizes):
    @prove
    def example(data):
        batch, units = data.draw(sizes()), data.draw(sizes())
        delta, gradient = data.draw(dense(batch, units)), data.draw(dense(units))
        agree(column_sum, delta, gradient, terms=batch + 1, scale="sum")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], indirect=True)
@pytest.mark.parametrize("units", [255, 256, 257, 513])
def test_column_sum_at_borders_of_strips(units, agree):
    random = np.random.default_rng(0)
    delta, gradient = (random.uniform(-4, 4, shape).astype(np.float32) for shape in ((5, units), units))
    agree(column_sum, delta, gradient, terms=6, scale="sum")


def test_shapes_are_checked(device):
    a, b = device.zeros((2, 3)), device.zeros((4, 5))
    with pytest.raises(ValueError, match="b: axis 'inner' is 4, but a says 3"):
        matmul(a, b, device.zeros((2, 5)))
    with pytest.raises(ValueError, match="c: axis 'columns' is 3, but b says 4"):
        matmul(device.zeros((2, 5)), b, device.zeros((2, 3)), transpose_b=True)
    with pytest.raises(ValueError, match="gradient: axis 'units' is 2, but delta says 3"):
        column_sum(a, device.zeros(2))


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("turn", ["a", "b", "c"])
def test_views_are_refused(turn, device):
    """BLAS gets an address and a width: an array with gaps would be read as another matrix."""
    arrays = {name: np.zeros((4, 4), np.float32) for name in "abc"}
    arrays[turn] = np.zeros((4, 8), np.float32)[:, ::2]
    with pytest.raises(ValueError, match=f"{turn}: .*contiguous"):
        matmul(*arrays.values())


def test_inner_axis_of_no_length(device, agree):
    """A sum of no terms is 0, also where c held garbage."""
    compare(agree, np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32), np.zeros((3, 4), np.float32),
            False, False, False)
