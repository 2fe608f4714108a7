import itertools

import numpy as np
import pytest
from hypothesis import strategies as st

from sparsenet.kernels.loss import loss_sum, output_delta, sparse_loss_sum, sparse_output_delta
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
