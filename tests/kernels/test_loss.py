import itertools

import numpy as np
import pytest
from hypothesis import strategies as st

from sparsenet import activations
from sparsenet.kernels.loss import loss_sum, output_delta, panel_delta, sparse_loss_sum, sparse_output_delta
from sparsenet.losses import squared_error
from sparsenet.testing.strategies import csr, dense
from tests.functions import OUTPUTS


def outputs(**forms):
    """Every loss and output with every form."""
    cases = list(itertools.product(OUTPUTS, itertools.product(*forms.values())))
    names = ["-".join([name, *map("{}={}".format, forms, form)]) for (name, *_), form in cases]
    return pytest.mark.parametrize(("value", "delta_of", *forms),
                                   [(*functions, *form) for (_, *functions), form in cases], ids=names)


scales = st.sampled_from([1.0, 0.25, 1 / 3])


def magnitude(value, y, target):
    """Sum over an example's units of |loss| and of what one rounding in y or in the target changes."""
    with np.errstate(all="ignore"):
        def at(y, t):
            return np.vectorize(value.py_func, otypes=[float])(y, t) if y.size else y
        y, target, step = y.astype(np.float64), target.astype(np.float64), 1e-6
        exact = at(y, target)
        moved = abs(at(y * (1 + step), target) - exact) + abs(at(y, target * (1 + step)) - exact)
        return (abs(exact) + moved / step).sum(axis=1)


def draw_outputs(data, sizes):
    """(batch, units) activations of a sigmoid or softmax, exact zeros and ones included."""
    return data.draw(dense(data.draw(sizes(simulator=5)), data.draw(sizes()), low=0, high=1))


def draw_targets(data, y, valued, ordered=False):
    return data.draw(csr(*y.shape, valued=valued, repeated=False, ordered=ordered, low=0, high=1))


def toarray(targets, shape):
    array = np.zeros(shape, np.float32)
    rows = np.repeat(np.arange(targets.batch), np.diff(targets.indptr))
    array[rows, targets.indices] = 1 if targets.data is None else targets.data
    return array


@outputs()
def test_loss_sum(value, delta_of, prove, agree, sizes):
    @prove
    def example(data):
        y = draw_outputs(data, sizes)
        target = data.draw(dense(*y.shape, low=0, high=1))
        agree(loss_sum, value, y, target, np.full(len(y), np.nan), scale=magnitude(value, y, target))


@outputs(valued=[True, False])
def test_sparse_loss_sum(value, delta_of, valued, prove, agree, sizes):
    @prove
    def example(data):
        y = draw_outputs(data, sizes)
        targets = draw_targets(data, y, valued)
        scale = magnitude(value, y, toarray(targets, y.shape)) + magnitude(value, y, np.zeros_like(y))
        agree(sparse_loss_sum, value, y, targets.indptr, targets.indices, targets.data, np.full(len(y), np.nan),
              scale=scale)


@outputs(accumulate=[False, True])
def test_output_delta(value, delta_of, accumulate, prove, agree, sizes):
    @prove
    def example(data):
        y = draw_outputs(data, sizes)
        target, before = data.draw(dense(*y.shape, low=0, high=1)), data.draw(dense(*y.shape))
        agree(output_delta, delta_of, data.draw(scales), y, target, before if accumulate else np.full_like(y, np.nan),
              accumulate=accumulate)


@outputs(valued=[True, False], accumulate=[False, True])
def test_sparse_output_delta(value, delta_of, valued, accumulate, prove, agree, sizes):
    @prove
    def example(data):
        y = draw_outputs(data, sizes)
        targets, before = draw_targets(data, y, valued, ordered=accumulate), data.draw(dense(*y.shape))
        agree(sparse_output_delta, delta_of, data.draw(scales), y, targets.indptr, targets.indices, targets.data,
              before if accumulate else np.full_like(y, np.nan), accumulate=accumulate)


def draw_panel(data, sizes, valued, low=0, high=1):
    """(y, indptr, indices, data), first unit: a panel, and targets that reach beyond it on both sides."""
    units, before, after = data.draw(sizes()), data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))
    units = units // 4 * 4 if data.draw(st.booleans()) else units
    y = data.draw(dense(data.draw(sizes(simulator=5)), units, low=low, high=high))
    targets = draw_targets(data, np.empty((len(y), before + units + after)), valued, ordered=True)
    return y, targets[:3], before


@outputs()
def test_panel_delta(value, delta_of, prove, agree, sizes):
    @prove
    def example(data):
        y, targets, first = draw_panel(data, sizes, valued=False)
        out = data.draw(dense(len(y), low=0)).astype(np.float64)
        agree(panel_delta, value, delta_of, data.draw(scales), first, *targets, None, None, None, y, out,
              outputs="y out", terms=y.shape[1])


def test_panel_delta_of_a_softmax(prove, agree, sizes):
    value, slope = squared_error().through(activations.get("softmax"))

    @prove
    def example(data):
        keep = data.draw(st.booleans())
        z, targets, first = draw_panel(data, sizes, True, -4, 4)
        largest, total = np.full(len(z), 4, np.float32), data.draw(dense(len(z), low=1))
        pull, out = (data.draw(dense(len(z))).astype(np.float64) for _ in range(2))
        agree(panel_delta, value, slope, 0.25, first, *targets, largest, total, None if keep else pull, z, out,
              keep=keep, outputs="y out", terms=z.shape[1])


def test_long_rows_with_targets_in_every_segment(device, agree):
    """More than a block of threads lays out at once."""
    random = np.random.default_rng(0)
    units = 100 if device.name == "simulator" else 2600
    indices = np.sort(random.choice(units + 8, units // 3, replace=False)).astype(np.int32)
    y = random.integers(-8, 9, (1, units)).astype(np.float32) / 8
    value, slope = squared_error().through(activations.get("linear"))
    for width in (units, units - 1):  # in fours, and one by one
        agree(panel_delta, value, slope, 1.0, 4, np.array([0, len(indices)]), indices, None, None, None, None,
              y[:, :width].copy(), np.zeros(1), outputs="y out", terms=units)


def test_a_softmax_needs_its_numbers(device):
    value, slope = OUTPUTS[0][1:]
    y, numbers, out = device.zeros((2, 3)), device.zeros(2), device.zeros(2, np.float64)
    targets = device.zeros(3, np.int64), device.zeros(1, np.int32), None
    with pytest.raises(ValueError, match="pull: expected an array of 2, as a softmax needs it, got None"):
        panel_delta(value, slope, 1.0, 0, *targets, numbers, numbers, None, y, out)
    with pytest.raises(ValueError, match="total: axis 'batch' is 3, but y says 2"):
        panel_delta(value, slope, 1.0, 0, *targets, numbers, device.zeros(3), None, y, out, keep=True)
