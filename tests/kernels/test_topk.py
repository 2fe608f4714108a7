import numpy as np
import pytest
from hypothesis import strategies as st

from sparsenet.device import scalar
from sparsenet.kernels import topk
from sparsenet.kernels.topk import exclude, score_items, top_k
from sparsenet.testing.strategies import csr, dense

SPECIAL = np.array([np.nan, -np.nan, -np.inf, np.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38], np.float32)


@st.composite
def scores(draw, batch, items):
    """Numbers with ties; now and then NaN, infinities, both zeros, the smallest and largest numbers."""
    values = draw(dense(batch, items))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    special = random.random((batch, items)) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    return np.where(special, random.choice(SPECIAL, (batch, items)), values)


def outputs(batch, k):
    return np.full((batch, k), -7, np.int32), np.full((batch, k), np.nan, np.float32)


def compare(agree, table, k):
    agree(top_k, table, *outputs(len(table), k), outputs="items values")


def test_top_k(prove, agree, sizes):
    @prove
    def example(data):
        batch, items = data.draw(sizes(simulator=3)), data.draw(sizes())
        compare(agree, data.draw(scores(batch, items)), data.draw(st.integers(0, items + 3)))


def test_every_k(device, agree):
    """One of each special value among ties, up to more than there are."""
    random = np.random.default_rng(1)
    table = np.array([random.permutation([*SPECIAL, 0.5, 0.5, -0.5])], np.float32)
    for k in range(1, table.shape[1] + 3, 4 if device.name == "simulator" else 1):
        compare(agree, table, k)


def test_zeros_are_equal(device):
    """-0.0 = 0.0: the first of them comes first."""
    table = device.put(np.array([[-0.0, 0.0, -0.0]], np.float32))
    items, values = (device.put(array) for array in outputs(1, 3))
    top_k(table, items, values)
    assert device.fetch(items).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], indirect=True)
@pytest.mark.parametrize("k", [1, 10, 100, 1000, 5000])
def test_many_items(k, agree):
    """Several a thread, and many ties: 5,000 items with 401 different scores."""
    table = np.random.default_rng(0).integers(-200, 200, (7, 5000)).astype(np.float32)
    compare(agree, table, k)


def test_more_than_a_block_sorts_at_once(prove, agree, sizes, monkeypatch):
    """Pieces of four are sorted, then merged: lengths on both sides of every power of two."""
    monkeypatch.setattr(topk, "_SORTED_AT_ONCE", (2, 4))

    @prove
    def example(data):
        items = data.draw(sizes(smallest=1))
        compare(agree, data.draw(scores(1, items)), data.draw(st.integers(1, items)))


@pytest.mark.parametrize("device", [pytest.param("simulator", marks=pytest.mark.simulator)], indirect=True)
@pytest.mark.parametrize("k", [1, 20, 300])
def test_full_blocks(k, full_blocks, agree):
    compare(agree, np.random.default_rng(0).integers(-99, 99, (1, 600)).astype(np.float32), k)


def test_exclude(prove, agree, sizes):
    @prove
    def example(data):
        batch = data.draw(csr(data.draw(sizes()), data.draw(sizes()), valued=False))
        agree(exclude, batch.indptr, batch.indices, data.draw(dense(batch.batch, batch.features)))


def test_excluded_are_not_chosen(device):
    indptr, indices = device.put(np.array([0, 2])), device.put(np.array([3, 1], np.int32))
    table = device.put(np.array([[1, 9, 3, 8]], np.float32))
    items, values = (device.put(array) for array in outputs(1, 3))
    exclude(indptr, indices, table)
    top_k(table, items, values)
    assert device.fetch(items).tolist() == [[2, 0, -1]]
    assert device.fetch(values).tolist() == [[3, 1, -np.inf]]


@scalar
def halved(z):
    return z / np.float32(2)


def test_score_items(prove, agree, sizes):
    @prove
    def example(data):
        batch, inputs, outputs, k = (data.draw(sizes(smallest=least, simulator=5)) for least in (0, 0, 1, 0))
        hidden, w, bias = (data.draw(dense(*shape)) for shape in ((batch, inputs), (outputs, inputs), (outputs,)))
        random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        items = random.integers(-1, outputs, (batch, k)).astype(np.int32)
        scale = np.abs(hidden) @ np.abs(w.T) + np.abs(bias)
        agree(score_items, halved, hidden, w, bias, items, np.full((batch, k), np.nan, np.float32), terms=inputs + 1,
              scale=np.take_along_axis(scale, np.maximum(items, 0), axis=1))


def test_shapes_are_checked(device):
    table, (items, values) = device.zeros((2, 5)), (device.put(array) for array in outputs(2, 3))
    with pytest.raises(ValueError, match="values: axis 'k' is 2, but items says 3"):
        top_k(table, items, device.zeros((2, 2)))
    with pytest.raises(ValueError, match="items: axis 'batch' is 2, but scores says 3"):
        top_k(device.zeros((3, 5)), items, values)
