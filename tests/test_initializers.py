"""First weights: their distributions, and that a slice of columns is a slice of the whole."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenet import initializers
from sparsenet.initializers import INITIALIZERS, Initializer
from sparsenet.seeds import stream_key
from sparsenet.testing import assert_close, strategies

INPUTS, UNITS = 150, 200
DISTRIBUTIONS = {  # of the elements of a matrix (inputs, units), for a scale
    "xavier": lambda i, o, s: scipy.stats.uniform(-s * np.sqrt(6 / (i + o)), 2 * s * np.sqrt(6 / (i + o))),
    "caffe_xavier": lambda i, o, s: scipy.stats.uniform(-s * np.sqrt(3 / o), 2 * s * np.sqrt(3 / o)),
    "gaussian": lambda i, o, s: scipy.stats.norm(0, s),
    "uniform": lambda i, o, s: scipy.stats.uniform(-s, 2 * s),
    "unit_ball": lambda i, o, s: scipy.stats.uniform(0, s),
    "selu": lambda i, o, s: scipy.stats.norm(0, s / np.sqrt(i)),
}
SCALES = {"xavier": 1.0, "caffe_xavier": 1.0, "gaussian": 0.01, "uniform": 0.01, "unit_ball": 1.0, "selu": 1.0}
KEY = stream_key(1, "layer/weight")


@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(name, scale):
    """Kolmogorov and Smirnov's distance of 30,000 numbers, and that they fill the whole range."""
    initializer = INITIALIZERS[name]() if scale is None else INITIALIZERS[name](scale)
    weights = initializer(KEY, (INPUTS, UNITS))
    assert (weights.shape, weights.dtype) == ((INPUTS, UNITS), np.float32)
    expected = DISTRIBUTIONS[name](INPUTS, UNITS, SCALES[name] if scale is None else scale)
    assert scipy.stats.kstest(weights.ravel(), expected.cdf).pvalue > 0.01
    low, high = expected.support()
    assert low <= weights.min()
    assert weights.max() <= high
    assert len(np.unique(weights)) > 0.99 * weights.size
    for axis in (0, 1):  # no row or column is like another
        assert abs(np.corrcoef(np.rollaxis(weights, axis)[:2])[0, 1]) < 0.3


@pytest.mark.parametrize("name", ["xavier", "caffe_xavier", "selu"])
def test_scale_depends_on_the_shape(name):
    for shape in ((3, 4000), (4000, 3)):
        weights = INITIALIZERS[name]()(KEY, shape)
        spread = DISTRIBUTIONS[name](*shape, 1.0).std()
        assert np.std(weights) == pytest.approx(spread, abs=0.05 * spread)


def test_constant():
    np.testing.assert_array_equal(initializers.constant(0.25)(KEY, (2, 3)), np.full((2, 3), 0.25, np.float32))
    assert not initializers.constant()(KEY, (2, 3)).any()


@pytest.mark.parametrize("name", INITIALIZERS)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_columns_do_not_depend_on_who_draws_them(name, data):
    """Ranks that hold slices of the columns hold, together, what one rank would."""
    inputs, units = data.draw(strategies.sizes(1)), data.draw(strategies.sizes(1))
    key = data.draw(strategies.keys())
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, units), max_size=4))), units]
    initializer = INITIALIZERS[name](0.75)
    slices = [initializer(key, (inputs, stop - first), first, units)
              for first, stop in itertools.pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(slices, axis=1), initializer(key, (inputs, units)))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_another_key_gives_other_weights(name):
    draw = INITIALIZERS[name]()
    one, other = (draw(stream_key(1, part), (20, 30)) for part in ("a/weight", "b/weight"))
    assert np.mean(one == other) < 0.01
    np.testing.assert_array_equal(draw(stream_key(1, "a/weight"), (20, 30)), one)


# ---- biases


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_values(data):
    units = data.draw(strategies.sizes(1))
    array = data.draw(strategies.dense(units))
    first = data.draw(st.integers(0, units - 1))
    drawn = initializers.values(array, units)
    np.testing.assert_array_equal(drawn(KEY, (1, units)), array[None])
    np.testing.assert_array_equal(drawn(KEY, (1, units - first), first, units), array[None, first:])
    np.testing.assert_array_equal(initializers.values(0.5, units)(KEY, (1, units)), np.full((1, units), 0.5))


@pytest.mark.parametrize(("value", "message"), [
    (np.zeros(3), r"bias: expected a number, or one for each of 4 units, got shape \(3,\)"),
    (np.zeros((1, 4)), r"bias: expected a number, or one for each of 4 units, got shape \(1, 4\)"),
    (np.nan, "bias: expected finite numbers, got nan"),
    ([0, 1, -np.inf, 2], "bias: expected finite numbers, got -inf"),
])
def test_refused_values(value, message):
    with pytest.raises(ValueError, match=message):
        initializers.values(value, 4)


@pytest.mark.parametrize("form", [sp.csr_array, sp.csc_array, sp.coo_array, sp.csr_matrix, np.asarray, list],
                         ids=lambda f: f.__name__)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_log_odds(form, data):
    """ln p / (1 - p), p between no example and all of them, whatever the values."""
    examples, units = data.draw(strategies.sizes(1)), data.draw(strategies.sizes(1))
    targets = data.draw(strategies.dense(examples, units))
    targets = targets * (np.abs(targets) > 2)
    count = np.array([sum(value != 0 for value in column) for column in targets.T.tolist()])
    expected = np.log((count + 0.5) / (examples - count + 0.5))
    found = initializers.log_odds(form(targets) if form is not list else targets.tolist())
    assert found.dtype == np.float32
    assert_close(found, expected, terms=8, scale=1 + np.abs(expected))


@pytest.mark.parametrize("wrong", [np.ones(3), 3.0, None, np.ones((2, 2, 2)), "abc", object()])
def test_log_odds_of_no_matrix(wrong):
    with pytest.raises(ValueError, match=r"targets: expected a matrix \(examples, units\), got "):
        initializers.log_odds(wrong)


# ---- settings


@pytest.mark.parametrize("name", INITIALIZERS)
@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf])
def test_scale_is_finite(name, scale):
    with pytest.raises(ValueError, match=f"initializer '{name}': scale must be a finite number, got {scale}"):
        INITIALIZERS[name](scale)


def test_distribution_is_known():
    with pytest.raises(ValueError, match=r"initializer 'mine': distribution must be symmetric, .*, got 'cauchy'"):
        Initializer("mine", "cauchy", lambda i, o: 1.0, {})


def test_get():
    mine = Initializer("mine", "normal", lambda i, o: 1 / i, {})
    assert initializers.get(mine) is mine
    for name, make in INITIALIZERS.items():
        assert initializers.get(name).name == name
        assert make(0.5).settings == {"scale": 0.5}
    for wrong in ("glorot", "", None, 3, ["xavier"]):
        with pytest.raises(ValueError, match=r"initializer: expected one of xavier, .* or an Initializer, got "):
            initializers.get(wrong)
