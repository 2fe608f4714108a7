import numpy as np
import pytest
from hypothesis import strategies as st

from sparsenet.kernels.sparse import sparse_forward, sparse_update, sparse_weight_gradient
from sparsenet.kernels.update import update
from sparsenet.optimizers import adam
from sparsenet.testing import assert_close, strategies
from sparsenet.testing.strategies import Csr, csr, dense
from tests import reference
from tests.functions import OPTIMIZERS, scalars_of

each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
each_kind = pytest.mark.parametrize("valued", [True, False])


def by_feature(batch, every=False):
    """features, indptr, examples, positions, touched of the batch turned by feature, all features or those it names.

    Arrays are longer than what they list, as those of a GPU are.
    """
    room = len(batch.indices) + 3
    features = np.full(batch.features + 2, -7, np.int32)
    indptr, touched = np.full(batch.features + 3, -7), np.full(1, batch.features)
    examples, positions = np.full(room, -7, np.int32), np.full(room, -7, np.int32)
    if every:
        features[:batch.features] = np.arange(batch.features)
        reference.transpose_all(batch.indptr, batch.indices, indptr[:batch.features + 1], examples, positions)
    else:
        reference.transpose(batch.indptr, batch.indices, None, features, indptr, examples, positions, touched)
    return features, indptr, examples, positions, touched


@pytest.fixture
def few(device):
    """few(): lengths of an axis, for references that take their time."""
    return lambda: strategies.sizes(0, 12 if device.name == "simulator" else 40)


def most(indptr):
    return int(np.diff(indptr).max(initial=0))


def longest(listed):
    return most(listed[1][:listed[4][0] + 1])


@each_kind
@pytest.mark.parametrize("accumulate", [False, True])
def test_sparse_forward(accumulate, valued, prove, agree, few):
    @prove
    def example(data):
        batch = data.draw(csr(data.draw(few()), data.draw(few()), valued=valued))
        weight = data.draw(dense(batch.features, data.draw(few())))
        y = data.draw(dense(batch.batch, weight.shape[1])) if accumulate else np.full(
            (batch.batch, weight.shape[1]), np.nan, np.float32)
        agree(sparse_forward, batch.indptr, batch.indices, batch.data, weight, y, accumulate=accumulate,
              terms=1 + most(batch.indptr), scale="sum")


@each_kind
@pytest.mark.parametrize("every", [False, True])
def test_sparse_weight_gradient(every, valued, prove, agree, few):
    @prove
    def example(data):
        batch = data.draw(csr(data.draw(few()), data.draw(few()), valued=valued))
        listed = by_feature(batch, every)
        delta = data.draw(dense(batch.batch, data.draw(few())))
        agree(sparse_weight_gradient, *listed, batch.data, delta, data.draw(dense(batch.features, delta.shape[1])),
              terms=1 + longest(listed), scale="sum")


def draw_update(data, few, optimizer, valued):
    """Arguments of sparse_update. All sums are exact: g would else be rounded, and g / |g| makes much of little."""
    batch = data.draw(csr(data.draw(few()), data.draw(few()), valued=valued, exact=True))
    units = data.draw(few())
    decay = st.sampled_from([0.0, 0.125, 0.5])
    return (*by_feature(batch, every=data.draw(st.booleans())), batch.data,
            data.draw(dense(batch.batch, units, exact=True)), data.draw(dense(batch.features, units, exact=True)),
            data.draw(dense(optimizer.slots, batch.features, units, low=0)), data.draw(decay), data.draw(decay),
            *scalars_of(optimizer, data.draw(st.integers(1, 1000))),
            np.full((data.draw(st.integers(1, 5)), units), np.nan, np.float32))


@pytest.mark.parametrize(("optimizer", "valued"), [(optimizer, True) for optimizer in OPTIMIZERS]
                         + [(OPTIMIZERS[-1], False)], ids=lambda value: getattr(value, "name", f"valued={value}"))
def test_sparse_update(optimizer, valued, prove, agree, few):
    @prove
    def example(data):
        agree(sparse_update, optimizer.rule, *draw_update(data, few, optimizer, valued), outputs="w slots")


@each_optimizer
def test_sparse_update_is_gradient_and_update(optimizer, device, prove, few):
    """Of the rows that are listed; all others keep every bit."""
    @prove
    def example(data):
        arguments = draw_update(data, few, optimizer, True)
        put = [device.put(value) if isinstance(value, np.ndarray) else value for value in arguments]
        *listed, values, delta, w, slots, l2, l1, scalars, numbers, _ = put
        before_w, before_slots = device.fetch(w), device.fetch(slots)
        gradient, dense_w, dense_slots = device.zeros(w.shape), device.put(before_w), device.put(before_slots)
        sparse_update(optimizer.rule, *put)
        sparse_weight_gradient(*listed, values, delta, gradient)
        update(optimizer.rule, dense_w.reshape(-1), gradient.reshape(-1), dense_slots.reshape(optimizer.slots, w.size),
               l2, l1, scalars, numbers)

        listed = np.isin(np.arange(len(before_w)), arguments[0][:arguments[4][0]])
        w, slots = device.fetch(w), device.fetch(slots)
        for found, expected, before in ((w, device.fetch(dense_w), before_w),
                                        (slots, device.fetch(dense_slots), before_slots)):
            magnitude = abs(found) + abs(expected) + abs(before)
            assert_close(found[..., listed, :], expected[..., listed, :], scale=magnitude[..., listed, :])
            assert np.array_equal(found[..., ~listed, :], before[..., ~listed, :])


@each_kind
@pytest.mark.parametrize("units", [35, 132])  # more than a block is wide
def test_long_lists_and_short_ones(units, valued, device, agree):
    """Examples with hundreds of features, features that every example names, and next to them some with few entries."""
    batch, features, most_features = 300, 90, 600
    if device.name == "simulator":
        units, batch, features, most_features = units // 6, 20, 12, 19
    random = np.random.default_rng(units)
    counts = np.full(batch, 3)
    counts[::7], counts[1::50] = 0, most_features
    rows = [random.integers(0, features, count) for count in counts]
    for row in rows:
        row[:1] = 0
    indptr = np.cumsum([0] + [len(row) for row in rows])
    indices = np.concatenate(rows).astype(np.int32)
    data = random.integers(-8, 9, len(indices)).astype(np.float32) / 4 if valued else None
    entries = Csr(indptr, indices, data, features)
    weight = random.integers(-8, 9, (features, units)).astype(np.float32) / 4
    agree(sparse_forward, indptr, indices, data, weight, np.zeros((batch, units), np.float32), terms=most(indptr),
          scale="sum")
    listed, delta = by_feature(entries), random.integers(-8, 9, (batch, units)).astype(np.float32) / 4
    agree(sparse_weight_gradient, *listed, data, delta, weight, terms=longest(listed), scale="sum")


@pytest.mark.parametrize("device", [pytest.param("emulator", marks=pytest.mark.emulator),
                                    pytest.param("cuda", marks=pytest.mark.cuda)], indirect=True)
def test_more_rows_than_a_grid_is_high(device, monkeypatch):
    """A grid has up to 65,535 rows of blocks, and 2^31 - 1 columns."""
    monkeypatch.setattr(device, "threads", 2)
    rows = 65_537
    indptr, indices = np.arange(rows + 1), (np.arange(rows) % 5).astype(np.int32)
    weight, y = np.arange(5, dtype=np.float32)[:, None], device.zeros((rows, 1))
    sparse_forward(device.put(indptr), device.put(indices), None, device.put(weight), y)
    assert np.array_equal(device.fetch(y)[:, 0], indices)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_weights_of_more_than_2_to_the_31_elements(device):
    """Rows whose first element stands beyond the reach of a 32-bit number. Memory is only taken where it is written."""
    features, units = 600_000, 4_000
    try:
        weight = np.zeros((features, units), np.float32)
    except MemoryError:
        pytest.skip("the system does not promise 9.6 GB of memory")
    last = features - 1
    weight[last] = 2
    indptr, indices, y = np.array([0, 2]), np.array([last, 0], np.int32), np.zeros((1, units), np.float32)
    sparse_forward(indptr, indices, None, weight, y)
    assert np.all(y == 2)

    listed = (np.array([last], np.int32), np.array([0, 1]), np.zeros(1, np.int32), np.zeros(1, np.int32),
              np.ones(1, np.int64))
    sparse_weight_gradient(*listed, None, np.ones((1, units), np.float32), weight)
    assert np.all(weight[last] == 3)
    sparse_update(OPTIMIZERS[0].rule, *listed, None, np.ones((1, units), np.float32), weight,
                  np.zeros((0, features, units), np.float32), 0.0, 0.0, np.full(8, 2, np.float32), 1,
                  np.zeros((1, units), np.float32))
    assert np.all(weight[last] == 1)
    assert np.all(weight[:2] == 0)


def test_shapes_are_checked(device):
    indptr, indices = device.zeros(3, np.int64), device.zeros(0, np.int32)
    with pytest.raises(ValueError, match="y: axis 'units' is 5, but weight says 4"):
        sparse_forward(indptr, indices, None, device.zeros((3, 4)), device.zeros((2, 5)))
    listed = device.zeros(0, np.int32), device.zeros(1, np.int64), indices, indices, device.zeros(1, np.int64)
    with pytest.raises(ValueError, match="gradient: axis 'units' is 3, but delta says 4"):
        sparse_weight_gradient(*listed, None, device.zeros((2, 4)), device.zeros((5, 3)))
    with pytest.raises(ValueError, match="slots: axis 'features' is 4, but w says 5"):
        sparse_update(adam().rule, *listed, None, device.zeros((2, 3)), device.zeros((5, 3)), device.zeros((2, 4, 3)),
                      0.0, 0.0, device.zeros(8), 7, device.zeros((1, 3)))
