import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from sparsenet.bfloat16 import (
    SHORT,
    finite,
    pack_across,
    pack_along,
    random_bits,
    row_key,
    shortened,
    stored,
    unstored,
    widened,
)
from sparsenet.testing import assert_close
from tests.rounding import random_words

ALL = np.arange(2**16, dtype=np.uint16)  # every bfloat16
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, 1e-40, -1e-45, 3e38, 1.0, -2.5], np.float32)
BITS = np.array([0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0xFFFF0000, 0xFFFFFFFF], np.uint32)


@njit
def widen_all(kept, out):
    for i in range(kept.shape[0]):
        out[i] = widened(kept[i])


@njit
def shorten_all(numbers, bits, out):
    for i in range(numbers.shape[0]):
        for j in range(bits.shape[0]):
            out[i, j] = shortened(numbers[i], out[i, j], bits[j])


@njit
def draw_all(key, swapped, out):
    for row in range(out.shape[0]):
        low, high = row_key(key, row)
        for column in range(out.shape[1]):
            out[row, column] = random_bits(high, low, column) if swapped else random_bits(low, high, column)


def as_float32(halves):
    """By memory: the upper halves of little-endian float32."""
    return np.stack([np.zeros_like(halves), halves], axis=-1).reshape(-1).view("<f4").reshape(halves.shape)


def drawn(key, shape, swapped=False):
    out = np.zeros(shape, np.uint32)
    draw_all(np.uint64(key), swapped, out)
    return out


def shortened_all(numbers, bits):
    out = np.zeros((len(numbers), len(bits)), SHORT)
    shorten_all(np.asarray(numbers, np.float32), np.asarray(bits, np.uint32), out)
    return out


def neighbours(numbers):
    """The bfloat16 towards zero, and the next one away from it."""
    toward = (np.asarray(numbers, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return toward, toward + np.uint16(1)


def test_all_numbers_come_back():
    exact = as_float32(ALL)
    assert unstored(ALL).tobytes() == exact.tobytes()
    out = np.zeros(len(ALL), np.float32)
    widen_all(ALL, out)
    assert out.tobytes() == exact.tobytes()
    some = np.linspace(-1, 1, 7, dtype=np.float32)
    assert unstored(some) is some
    widen_all(some, out[:7])
    assert out[:7].tobytes() == some.tobytes()


def test_arrays_are_rounded_to_nearest():
    """As arithmetic has it: 8 binary digits, ties to even. In parts, whatever the layout."""
    numbers = np.random.default_rng(0).normal(size=(1000, 700)).astype(np.float32)
    numbers[:3, :3] = [[1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8], [1 + 2.0**-9, 3.4e38, 0.0], [-0.0, 1.0, np.inf]]
    fraction, exponent = np.frexp(numbers.astype(np.float64))
    with np.errstate(over="ignore"):
        nearest = np.ldexp(np.rint(256 * fraction) / 256, exponent).astype(np.float32)
    for array, expected in ((numbers, nearest), (numbers.T, nearest.T), (numbers[::3], nearest[::3])):
        assert stored(array, SHORT).dtype == SHORT
        assert unstored(stored(array, SHORT)).tobytes() == np.ascontiguousarray(expected).tobytes()
    assert stored(numbers, np.float64).dtype == np.float64
    halves = stored(numbers, SHORT)
    assert stored(halves, SHORT).tobytes() == halves.tobytes()
    assert stored(halves, np.float32).tobytes() == nearest.tobytes()


def test_nan_stays_nan():
    signalling = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000], np.uint32).view(np.float32)
    assert np.isnan(unstored(stored(signalling, SHORT))).all()
    assert np.isnan(unstored(shortened_all(signalling, BITS))).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_finite(bad):
    numbers = np.ones((3, 4), np.float32)
    numbers[1, 2] = 3e38
    assert finite(numbers)
    assert finite(stored(numbers, SHORT))
    numbers[2, 3] = bad
    assert not finite(numbers)
    assert not finite(stored(numbers, SHORT))


def test_what_bfloat16_has_stays_whatever_the_bits():
    numbers = as_float32(ALL)
    numbers = numbers[~np.isnan(numbers)]
    found = unstored(shortened_all(numbers, BITS))
    assert found.tobytes() == np.repeat(numbers, len(BITS)).tobytes()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_only_neighbours_come_out_and_the_mean_is_exact(numbers):
    """Over all values of the lower half of the bits; the upper half has no say."""
    numbers = np.array([*numbers, *SPECIAL], np.float32)
    numbers = numbers[abs(numbers) < 3e38]  # beyond them the neighbour may be infinity
    halves = shortened_all(numbers, np.arange(2**16, dtype=np.uint32) | np.uint32(0xABCD0000))
    toward, away = neighbours(numbers)
    assert ((halves == toward[:, None]) | (halves == away[:, None])).all()
    mean = unstored(halves).astype(np.float64).mean(axis=1)
    assert_close(mean, numbers.astype(np.float64), terms=2**16, dtype=np.float64, name="mean")


def test_float32_is_left_alone():
    out = np.zeros((len(SPECIAL), 1), np.float32)
    shorten_all(SPECIAL, BITS[-1:], out)
    assert out.tobytes() == SPECIAL.tobytes()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(1, 30), st.integers(1, 50))
def test_bits_are_those_of_the_reference(key, rows, columns):
    for swapped in (False, True):
        assert (drawn(key, (rows, columns), swapped) == random_words(key, rows, columns, swapped)).all()


def test_rounding_is_right_on_average():
    """Over rows, over columns and over keys: within 5 standard errors of the number itself."""
    number = np.float32(1 + 2.0**-7 * 0.3)
    for bits in (drawn(7, (1, 100_000)), drawn(7, (100_000, 1)),
                 np.array([random_words(key, 1, 1) for key in range(20_000)], np.uint32)):
        for half in (bits, bits >> np.uint32(16)):
            ups = shortened_all([number], half.reshape(-1))[0] != shortened_all([number], [0])[0, 0]
            error = np.sqrt(0.3 * 0.7 / ups.size)
            assert abs(ups.mean() - 0.3) < 5 * error + 2.0**-16


def test_bits_are_independent():
    """Each bit is set half of the time, whatever any other bit of the same place says, of its neighbours or of another
    key: correlations within 5 standard errors."""
    first, others = drawn(1, (300, 300)), [drawn(2, (300, 300)), drawn(1, (300, 300), swapped=True)]
    others += [np.roll(first, 1, axis) for axis in (0, 1)]
    def spins(words):
        return np.unpackbits(words.reshape(-1, 1).view(np.uint8), axis=1).astype(np.float64) * 2 - 1
    spins_of_first = spins(first)
    size = len(spins_of_first)
    assert (abs(spins_of_first.mean(axis=0)) < 5 / np.sqrt(size)).all()
    own = spins_of_first.T @ spins_of_first / size - np.eye(32)
    assert (abs(own) < 5 / np.sqrt(size)).all()
    for other in others:
        assert (abs(spins_of_first.T @ spins(other) / size) < 5 / np.sqrt(size)).all()


@pytest.mark.parametrize("count", [0, 1, 2, 5, 31, 32, 33, 64, 97])
def test_pairs_of_stored_numbers_are_the_memory_itself(count):
    random = np.random.default_rng(count)
    upper, lower = random.integers(0, 0x7F00, (2, count + 3)).astype(SHORT)
    end = count + 4
    words = np.full(end + 2, 7, np.uint32)
    njit(lambda source, words: pack_along(source, 3, count, words, 1, end))(upper, words)
    assert (words[1:1 + end].view(SHORT)[:count] == upper[3:]).all()
    assert not words[1:1 + end].view(SHORT)[count:].any()
    words[:] = 7
    njit(lambda one, two, words: pack_across(one, 3, two, 2, count, words, 1, end))(upper, lower, words)
    assert (words[1:1 + count] == upper[3:] | lower[2:2 + count].astype(np.uint32) << 16).all()
    assert not words[1 + count:1 + end].any()
    assert words[0] == words[-1] == 7
