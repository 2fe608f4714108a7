import numpy as np
import pytest
import scipy.special
from hypothesis import strategies as st

from sparsenet.device import scalar
from sparsenet.kernels.rows import (
    reduce_rows,
    row_divide,
    row_exp,
    row_max,
    row_sum,
    softmax,
    softmax_delta,
    softmax_pull,
    softmax_rescale,
    softmax_sums,
)
from sparsenet.testing import assert_close
from sparsenet.testing.strategies import dense

FEW = {"simulator": 4}  # rows: each is a block of threads


def draw(data, sizes, smallest=0):
    """A table; its rows' length is a multiple of four, which is read four at a time, as often as not."""
    units = data.draw(sizes(smallest))
    return data.draw(dense(data.draw(sizes(**FEW)), max(4, units // 4 * 4) if data.draw(st.booleans()) else units))


def test_row_sum(prove, agree, sizes):
    """In float64, though y is float32."""
    @prove
    def example(data):
        y = draw(data, sizes)
        agree(row_sum, y, np.full(len(y), np.nan), terms=y.shape[1], scale="sum", dtype=np.float64)


def test_row_sum_into_float32(prove, agree, sizes):
    @prove
    def example(data):
        y = draw(data, sizes)
        agree(row_sum, y, np.full(len(y), np.nan, np.float32), scale="sum")


def test_row_max(device, prove, sizes):
    @prove
    def example(data):
        y = draw(data, sizes)
        out = device.put(np.full(len(y), np.nan, np.float32))
        row_max(device.put(y), out)
        assert device.fetch(out).tolist() == [max(row, default=-np.inf) for row in y.tolist()]


@scalar
def product(y, t):
    return y * t


@scalar
def add(x, y):
    return x + y


def test_reduce_rows(prove, agree, sizes):
    @prove
    def example(data):
        y = draw(data, sizes)
        t = data.draw(dense(*y.shape))
        agree(reduce_rows, product, add, np.float64(0), y, t, np.full(len(y), np.nan), terms=y.shape[1],
              scale=abs(y * t).sum(axis=1))


def test_long_sums_are_float64(device):
    """2^18 times 0.1 in float32: the exact sum, where a float32 sum would be off by a part in a thousand."""
    y, out = device.put(np.full((2, 2**18), 0.1, np.float32)), device.zeros(2, np.float64)
    if device.name == "simulator":
        y = device.put(np.full((2, 2**11), 0.1, np.float32))
    row_sum(y, out)
    assert_close(out, np.full(2, float(np.float32(0.1)) * y.shape[1]), terms=y.shape[1], dtype=np.float64)


@pytest.mark.parametrize("device", [pytest.param("simulator", marks=pytest.mark.simulator)], indirect=True)
def test_full_blocks(full_blocks, agree):
    y = np.random.default_rng(0).uniform(-4, 4, (2, 300)).astype(np.float32)
    agree(row_sum, y, np.full(2, np.nan), terms=300, scale="sum", dtype=np.float64)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax_sums(accumulate, dtype, prove, agree, sizes):
    @prove
    def example(data):
        y = draw(data, sizes)
        largest = data.draw(dense(len(y)))
        total = data.draw(dense(len(y), low=0.5)).astype(dtype)
        agree(softmax_sums, y, largest, total, accumulate=accumulate, outputs="largest total", terms=y.shape[1] + 1)


@pytest.mark.parametrize("device", [pytest.param("simulator", marks=pytest.mark.simulator)], indirect=True)
def test_softmax_sums_of_full_blocks(full_blocks, agree):
    y = np.random.default_rng(0).uniform(-4, 4, (2, 600)).astype(np.float32)
    agree(softmax_sums, y, *np.zeros((2, 2), np.float32), outputs="largest total", terms=600)


def test_softmax_sums_far_from_zero(device):
    """Logits whose exponentials float32 cannot hold."""
    y = device.put(np.array([[-3e38, 1e4, -1e4, 1e4], [-np.inf, -200, -200, -np.inf]], np.float32))
    largest, total = device.zeros(2), device.zeros(2)
    softmax_sums(y, largest, total)
    softmax(largest, total, y)
    assert device.fetch(largest).tolist() == [1e4, -200]
    assert device.fetch(y).tolist() == [[0, 0.5, 0, 0.5], [0, 0.5, 0.5, 0]]


def test_softmax_rescale(prove, agree, sizes):
    @prove
    def example(data):
        local, more, total = (data.draw(dense(batch, low=0)) for batch in [data.draw(sizes(**FEW))] * 3)
        agree(softmax_rescale, local, local + more, total)


def test_slices_make_a_row(device):
    """The numbers of two ranks' slices, brought together as ranks do: the whole row's."""
    z = np.random.default_rng(0).uniform(-4, 4, (3, 9)).astype(np.float32)
    slices = []
    for part in (z[:, :4], z[:, 4:]):
        local, total = device.zeros(3), device.zeros(3)
        softmax_sums(device.put(part), local, total)
        softmax_rescale(local, device.put(z.max(axis=1)), total)
        slices.append(device.fetch(total))
    exact = np.exp(z.astype(np.float64) - z.max(axis=1, keepdims=True)).sum(axis=1)
    assert_close(slices[0] + slices[1], exact, terms=9, scale=exact * 9)  # |z - max z| <= 8 is the exponent's error


def test_softmax(prove, agree, sizes):
    @prove
    def example(data):
        y = draw(data, sizes, smallest=1)
        agree(softmax, y.max(axis=1), data.draw(dense(len(y), low=0.5)), y)


def test_row_exp(prove, agree, sizes):
    @prove
    def example(data):
        y = draw(data, sizes, smallest=1)
        agree(row_exp, y.max(axis=1), y)


def test_row_divide(prove, agree, sizes):
    @prove
    def example(data):
        y = draw(data, sizes)
        agree(row_divide, data.draw(dense(len(y), low=0.5)), y)


def test_softmax_pull(prove, agree, sizes):
    @prove
    def example(data):
        y = draw(data, sizes)
        agree(softmax_pull, y, data.draw(dense(*y.shape)))


def test_softmax_delta(prove, agree, sizes):
    @prove
    def example(data):
        y = draw(data, sizes)
        agree(softmax_delta, data.draw(dense(len(y))), y, data.draw(dense(*y.shape)))


def test_they_make_a_softmax(device, prove, sizes):
    """Forward as scipy.special.softmax, backward as the product with its Jacobian, diag(y) - y y'."""
    @prove
    def example(data):
        z = draw(data, sizes, smallest=1)
        dy = data.draw(dense(*z.shape))
        y, delta, numbers, total = device.put(z), device.put(dy), device.zeros(len(z)), device.zeros(len(z))
        softmax_sums(y, numbers, total)
        softmax(numbers, total, y)
        exact = scipy.special.softmax(z.astype(np.float64), axis=1)
        assert_close(y, exact, terms=z.shape[1], scale=exact * 9)  # |z - max z| <= 8 is the exponent's error

        softmax_pull(y, delta)
        row_sum(delta, numbers)
        softmax_delta(numbers, y, delta)
        jacobians = np.einsum("bu,uv->buv", exact, np.eye(z.shape[1])) - np.einsum("bu,bv->buv", exact, exact)
        assert_close(delta, np.einsum("buv,bv->bu", jacobians, dy), terms=z.shape[1],
                     scale=exact * (abs(dy) + (exact * abs(dy)).sum(axis=1, keepdims=True)) * 9)


def test_shapes_are_checked(device):
    y = device.zeros((2, 3))
    with pytest.raises(ValueError, match="out: axis 'batch' is 3, but y says 2"):
        row_sum(y, device.zeros(3))
    with pytest.raises(ValueError, match="y: axis 'batch' is 2, but divisor says 3"):
        row_divide(device.zeros(3), y)
    with pytest.raises(ValueError, match="t: axis 'units' is 2, but y says 3"):
        reduce_rows(product, add, np.float64(0), y, device.zeros((2, 2)), device.zeros(2))
