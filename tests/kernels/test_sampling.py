import numpy as np
import pytest
from hypothesis import strategies as st

from sparsenet.kernels.sampling import draw, target_gradient, target_logits, update_rows, weigh
from sparsenet.testing.strategies import csr, dense, keys
from tests import reference
from tests.conftest import run
from tests.functions import OPTIMIZERS, scalars_of


def cells(data, outputs):
    """Beginnings of units' parts of the 2^32 cells, some of them tiny; or None."""
    if data.draw(st.booleans()):
        return None
    inner = data.draw(st.lists(st.integers(1, 2**32 - 1), min_size=outputs - 1, max_size=outputs - 1, unique=True))
    return np.array([0, *sorted(inner), 2**32])


def batch_of(data, sizes):
    """(negatives, outputs, starts, key, targets in CSR): a batch, and what to draw beside it."""
    outputs, negatives = data.draw(sizes(1)), data.draw(sizes())
    targets = data.draw(csr(data.draw(sizes(simulator=5)), outputs, repeated=False, ordered=True))
    return negatives, outputs, cells(data, outputs), np.array([data.draw(keys())]), targets


def test_draw(prove, agree, sizes):
    @prove
    def example(data):
        negatives, outputs, starts, key, targets = batch_of(data, sizes)
        room = negatives + len(targets.indices) + data.draw(st.integers(0, 2))
        agree(draw, key, negatives, outputs, starts, targets.indptr, targets.indices,
              np.full(targets.batch + 2, -1), np.full(room, -1, np.int32), outputs="out_indptr out_indices")


def candidates(data, sizes):
    """((negatives, outputs, starts, targets), features, by_indptr, examples, positions, touched): all candidates.
    """
    negatives, outputs, starts, key, targets = batch_of(data, sizes)
    total = negatives + len(targets.indices)
    indptr, indices = np.zeros(targets.batch + 2, np.int64), np.zeros(total, np.int32)
    reference.draw(key, negatives, outputs, starts, targets.indptr, targets.indices, indptr, indices)
    most = max(1, min(total, outputs))
    listed = (np.zeros(most, np.int32), np.zeros(most + 1, np.int64), *(np.zeros(total, np.int32) for _ in range(2)),
              np.zeros(1, np.int64))
    reference.transpose(indptr, indices, np.zeros(outputs, np.int64), *listed)
    return (negatives, outputs, starts, targets), *listed


def test_weigh(prove, agree, sizes):
    @prove
    def example(data):
        (negatives, outputs, starts, targets), features, by_indptr, _, positions, touched = candidates(data, sizes)
        shares = data.draw(st.one_of(st.none(), dense(outputs, low=0.25, high=1)))
        agree(weigh, negatives, outputs, starts, shares, targets.batch, features, by_indptr, positions, touched,
              *np.full((2, len(features)), np.nan, np.float32), np.full(len(targets.indices), -1, np.int32),
              outputs="weights own places")


@pytest.mark.parametrize("listed", [False, True])
def test_draws_are_of_their_probabilities(device, listed):
    """Summed over many keys; and a draw for each of equally likely units is a draw of each."""
    outputs, negatives, steps = 8, 5, 400
    starts = np.array([0, 1, 2**20, 2**29, 2**30, 2**31, 2**31 + 2**30, 2**32 - 2**29, 2**32]) if listed else None
    likely = np.diff(starts) / 2**32 if listed else np.full(outputs, 1 / outputs)
    nothing = np.zeros(1, np.int64), np.zeros(1, np.int32)
    counts = np.zeros(outputs)
    for step in range(steps if device.name == "cpu" else 20):
        key = np.array([step], np.uint64)
        *_, drawn = run(device, draw, (key, negatives, outputs, starts, *nothing, np.zeros(2, np.int64),
                                       np.zeros(negatives, np.int32)), {})
        assert (np.diff(drawn) >= 0).all()
        counts += np.bincount(drawn, minlength=outputs)
    if device.name == "cpu":
        deviation = np.sqrt(steps * negatives * likely)
        assert (abs(counts - steps * negatives * likely) <= 5 * deviation + 1).all()
    if not listed:
        *_, drawn = run(device, draw, (key, outputs, outputs, None, *nothing, np.zeros(2, np.int64),
                                       np.zeros(outputs, np.int32)), {})
        assert drawn.tolist() == list(range(outputs))


def test_target_logits(prove, agree, sizes):
    @prove
    def example(data):
        batch, inputs, listed = data.draw(sizes(simulator=5)), data.draw(sizes(1, simulator=6)), data.draw(sizes(1))
        indptr, places, _, _ = data.draw(csr(batch, listed))
        agree(target_logits, indptr, places, data.draw(dense(batch, inputs)), data.draw(dense(listed, inputs)),
              data.draw(dense(listed)), np.full(len(places), np.nan, np.float32), terms=inputs + 1,
              scale=16 * inputs + 4)


def test_target_gradient(prove, agree, sizes):
    @prove
    def example(data):
        (negatives, _, _, targets), features, by_indptr, examples, positions, touched = candidates(data, sizes)
        inputs = data.draw(sizes(1, simulator=6))
        agree(target_gradient, negatives, by_indptr, examples, positions, touched,
              data.draw(dense(len(targets.indices))), data.draw(dense(targets.batch, inputs)),
              data.draw(dense(len(features), inputs)), data.draw(dense(len(features))),
              outputs="gradient bias_gradient", terms=targets.batch + 1, scale="sum")


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
def test_update_rows(optimizer, prove, agree, sizes):
    @prove
    def example(data):
        outputs, inputs = data.draw(sizes(1)), data.draw(sizes(1, simulator=6))
        units = np.array(data.draw(st.permutations(range(outputs))), np.int32)[:data.draw(st.integers(1, outputs))]
        w, slots = data.draw(dense(outputs, inputs)), data.draw(dense(optimizer.slots, outputs, inputs, low=0))
        agree(update_rows, optimizer.rule, units, np.array([data.draw(st.integers(0, len(units)))]),
              data.draw(dense(len(units), inputs)), w, slots, 0.5, 0.25, *scalars_of(optimizer, step=2),
              outputs="w slots")
