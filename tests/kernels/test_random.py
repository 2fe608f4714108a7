import numpy as np
import pytest
import scipy.stats
from hypothesis import strategies as st

from sparsenet.kernels.random import keeps, normal, philox, uniform, uniform_at
from sparsenet.seeds import stream_key
from sparsenet.testing import assert_close
from sparsenet.testing.strategies import keys
from tests import reference

slices = st.sampled_from([{}, {"first": 5, "total": 45}, {"first": 2**32 - 3, "total": 2**33}, {"total": 2**50 + 1}])

# Known answers of Random123, its authors' library (kat_vectors, philox4x32 with 10 rounds): counter, key, words.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [np.uint64(int(word, 16)) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox(counter, key, answer):
    assert list(philox(*words(key), *words(counter))) == words(answer)
    assert reference.philox(words(key), words(counter)).tolist() == words(answer)


def garbage(data, sizes):
    return np.full((data.draw(sizes()), data.draw(sizes())), np.nan, np.float32)


def test_uniform(device, prove, sizes):
    @prove
    def example(data):
        key, out, part = data.draw(keys()), garbage(data, sizes), data.draw(slices)
        exact, there = out.astype(np.float64), device.put(out)
        reference.uniform(key, exact, **part)
        uniform(key, there, **part)
        assert np.array_equal(device.fetch(there), exact)  # 24 bits are exact in float32


def test_normal(prove, agree, sizes):
    @prove
    def example(data):
        key, out, part = data.draw(keys()), garbage(data, sizes), data.draw(slices)
        indices = reference._indices(out.shape, part.get("first", 0), part.get("total"))
        agree(normal, key, out, scale=scale_of_normal(*reference.box_muller(key, indices)), **part)


def scale_of_normal(radius, cosine):
    """Magnitude for assert_close, which allows 9 eps of it: 2 eps for four roundings to float32, half a unit each, and
    4 units of 2^-30 = eps / 128 for the polynomials. The logarithm's is divided by the radius in its root."""
    return (abs(radius * cosine) + (radius + 1 / radius) / 64) / 4


@pytest.mark.parametrize("fill", [uniform, normal])
def test_bits_are_the_same_on_every_device(fill, device):
    here, there = np.zeros((13, 17), np.float32), device.zeros((13, 17))
    fill(np.uint64(2**64 - 3), here, 7, 100)
    fill(np.uint64(2**64 - 3), there, 7, 100)
    assert device.fetch(there).tobytes() == here.tobytes()


@pytest.mark.parametrize("fill", [uniform, normal])
def test_slices_are_parts_of_the_whole(fill, device):
    whole, part = device.zeros((4, 10)), device.zeros((4, 3))
    fill(np.uint64(9), whole)
    fill(np.uint64(9), part, first=5, total=10)
    assert np.array_equal(device.fetch(part), device.fetch(whole)[:, 5:8])


def test_keeps():
    """A mask keeps what draws a number >= drop: all at 0, none at 1."""
    key, indices = np.uint64(11), [np.uint64(i) for i in range(50)]
    assert all(keeps(key, i, np.float32(0)) for i in indices)
    assert not any(keeps(key, i, np.float32(1)) for i in indices)
    half = np.float32(0.5)
    assert [keeps(key, i, half) for i in indices] == [uniform_at(key, i) >= half for i in indices]


# ---- distributions, on 100,000 numbers; p > 0.001, and the keys are fixed


@pytest.fixture(params=range(3))
def sample(request):
    def sample(fill):
        out = np.zeros((100, 1000), np.float32)
        fill(stream_key(request.param, "test"), out)
        return out.ravel()
    return sample


def test_uniform_distribution(sample):
    numbers = sample(uniform)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert scipy.stats.kstest(numbers, "uniform").pvalue > 1e-3
    assert scipy.stats.chisquare(np.bincount((numbers * 2**12).astype(int), minlength=2**12)).pvalue > 1e-3


def test_normal_distribution(sample):
    numbers = sample(normal)
    assert abs(numbers).max() < 6.8
    assert scipy.stats.kstest(numbers, "norm").pvalue > 1e-3
    assert scipy.stats.normaltest(numbers).pvalue > 1e-3  # skewness and kurtosis


@pytest.mark.parametrize("fill", [uniform, normal])
def test_no_correlation(fill, sample):
    """Neighbours in a stream, and streams of neighbouring keys, know nothing of each other."""
    numbers, other = sample(fill), np.zeros((100, 1000), np.float32)
    fill(np.uint64(int(stream_key(0, "test")) ^ 1), other)
    for lag in (1, 2, 1000):
        assert scipy.stats.pearsonr(numbers[lag:], numbers[:-lag]).pvalue > 1e-3
    assert scipy.stats.pearsonr(numbers, other.ravel()).pvalue > 1e-3


def test_normal_is_box_mullers():
    """The integer polynomials against float64's logarithm and cosine of the same words."""
    out, key = np.zeros((1, 100_000), np.float32), np.uint64(5)
    normal(key, out)
    radius, cosine = reference.box_muller(key, np.arange(out.size, dtype=np.uint64))
    assert_close(out[0], radius * cosine, scale=scale_of_normal(radius, cosine))
