"""What the threads of a warp do together, against loops over lanes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenet.device import cuda
from sparsenet.testing import emulate

pytestmark = pytest.mark.emulator

ALL = 0xFFFFFFFF
KINDS = (np.int32, np.int64, np.float32, np.float64)


def shuffled(kind):
    """The four shuffles of one dtype, and where NumPy says that each lane's value comes from."""
    def shuffles(x, amount, by_index, up, down, xor):
        t = cuda.threadIdx.x
        by_index[t] = cuda.shfl_sync(0xFFFFFFFF, x[t], amount[t])
        up[t] = cuda.shfl_up_sync(0xFFFFFFFF, x[t], amount[t])
        down[t] = cuda.shfl_down_sync(0xFFFFFFFF, x[t], amount[t])
        xor[t] = cuda.shfl_xor_sync(0xFFFFFFFF, x[t], amount[t])
    return emulate(shuffles)


EMULATED = {kind: shuffled(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_shuffles(kind):
    @settings(max_examples=10, deadline=None)
    @given(st.integers(1, 2), st.lists(st.integers(0, 31), min_size=64, max_size=64), st.integers(0, 2**32))
    def example(warps, amounts, seed):
        rng = np.random.default_rng(seed)
        x = np.frombuffer(rng.bytes(64 * np.dtype(kind).itemsize), kind)[:32 * warps].copy()
        amount = np.array(amounts[:x.size], np.int32)
        found = np.zeros((4, x.size), kind)
        EMULATED[kind][1, x.size](x, amount, *found)
        lane, base = np.arange(x.size) % 32, np.arange(x.size) // 32 * 32
        sources = (amount, np.where(lane >= amount, lane - amount, lane),
                   np.where(lane + amount < 32, lane + amount, lane), lane ^ amount)
        for row, source in zip(found, sources, strict=True):
            assert row.tobytes() == x[base + source].tobytes()
    example()


def partial(x, total, below):
    """A sum of a last warp that is not whole, among the lanes that are there; and one whose lanes are all named."""
    t = cuda.threadIdx.x
    mask = np.uint32((1 << (cuda.blockDim.x % 32)) - 1) if t // 32 == cuda.blockDim.x // 32 else np.uint32(0xFFFFFFFF)
    width = cuda.blockDim.x % 32 if t // 32 == cuda.blockDim.x // 32 else 32
    sum_ = x[t]
    lane = t % 32
    step = 1
    while step < 32:
        other = cuda.shfl_down_sync(mask, sum_, step)
        if lane + step < width:
            sum_ += other
        step *= 2
    total[t] = cuda.shfl_sync(mask, sum_, 0)
    before = cuda.shfl_up_sync(mask, x[t], 1)
    below[t] = before if lane else -1


emulated_partial = emulate(partial)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 100))
def test_partial_warps(threads):
    x = np.arange(1, threads + 1, dtype=np.int32)
    total, below = np.zeros((2, threads), np.int32)
    emulated_partial[1, threads](x, total, below)
    assert total.tolist() == [x[t // 32 * 32:t // 32 * 32 + 32].sum() for t in range(threads)]
    assert below.tolist() == [x[t - 1] if t % 32 else -1 for t in range(threads)]


def stray(out):
    """Reads a lane that is not there, and one that its mask does not name."""
    t = cuda.threadIdx.x
    out[t, 0] = cuda.shfl_sync(0xFFFFFFFF, np.float32(t), 25)
    if t < 8:
        out[t, 1] = cuda.shfl_sync(0xFF, np.float32(t), 9)


def test_values_of_absent_lanes_are_nan():
    out = np.zeros((20, 2), np.float32)
    emulate(stray)[2, 20](out)
    assert np.isnan(out[:, 0]).all()
    assert np.isnan(out[:8, 1]).all()


def left_early(out):
    t = cuda.threadIdx.x
    if t >= 16:
        return
    out[t] = cuda.shfl_xor_sync(0xFFFFFFFF, np.float32(t), 16)


def test_values_of_lanes_that_left_are_nan():
    out = np.zeros(32, np.float32)
    emulate(left_early)[1, 32](out)
    assert np.isnan(out[:16]).all()


def votes(mask, x, every, some, same, ballot):
    t = cuda.threadIdx.x
    if (mask >> np.uint32(t)) & np.uint32(1):
        every[t] = cuda.all_sync(mask, x[t])
        some[t] = cuda.any_sync(mask, x[t])
        same[t] = cuda.eq_sync(mask, x[t])
        ballot[t] = cuda.ballot_sync(mask, x[t])


emulated_votes = emulate(votes)
masks = st.one_of(st.integers(1, ALL), st.just(ALL), st.integers(0, 31).map(lambda lane: 1 << lane))


def lanes(mask):
    return [lane for lane in range(32) if mask >> lane & 1]


@settings(max_examples=60, deadline=None)
@given(masks, st.one_of(st.just([True] * 32), st.just([False] * 32), st.lists(st.booleans(), min_size=32, max_size=32)))
def test_votes(mask, values):
    x = np.array(values)
    every, some, same = np.zeros((3, 32), bool)
    ballot = np.zeros(32, np.uint32)
    emulated_votes[1, 32](np.uint32(mask), x, every, some, same, ballot)
    among = [values[lane] for lane in lanes(mask)]
    for lane in lanes(mask):
        assert every[lane] == all(among)
        assert some[lane] == any(among)
        assert same[lane] == (len(set(among)) == 1)
        assert ballot[lane] == sum(1 << one for one in lanes(mask) if values[one])


def matches(mask, x, any_, all_, agreed):
    t = cuda.threadIdx.x
    if (mask >> np.uint32(t)) & np.uint32(1):
        any_[t] = cuda.match_any_sync(mask, x[t])
        all_[t], agreed[t] = cuda.match_all_sync(mask, x[t])


emulated_matches = emulate(matches)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float32, np.float64])
def test_matches(kind):
    @settings(max_examples=25, deadline=None)
    @given(masks, st.one_of(st.just([3] * 32), st.lists(st.integers(-2, 2), min_size=32, max_size=32)), st.booleans())
    def example(mask, values, wide):
        x = np.array(values, kind)
        if wide and x.itemsize == 8:
            x = (x.view(np.int64) << 32).view(kind)  # values that differ in their upper halves only
        any_, all_ = np.zeros((2, 32), np.uint32)
        agreed = np.zeros(32, bool)
        emulated_matches[1, 32](np.uint32(mask), x, any_, all_, agreed)
        bits = [one.tobytes() for one in x]
        one_value = len({bits[lane] for lane in lanes(mask)}) == 1
        for lane in lanes(mask):
            assert any_[lane] == sum(1 << other for other in lanes(mask) if bits[other] == bits[lane])
            assert all_[lane] == (mask if one_value else 0)
            assert agreed[lane] == one_value
    example()


def known_masks(out):
    t = cuda.threadIdx.x
    out[t, 0], out[t, 1] = cuda.activemask(), cuda.lanemask_lt()


def test_masks():
    """activemask: at least the thread itself."""
    out = np.zeros((40, 2), np.uint32)
    emulate(known_masks)[1, 40](out)
    for t in range(40):
        assert out[t, 0] >> (t % 32) & 1
        assert out[t, 1] == (1 << t % 32) - 1
