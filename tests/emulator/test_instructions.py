"""The instructions of sparsenet.instructions, by what the PTX ISA says of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.errors import TypingError

from sparsenet.device import cuda
from sparsenet.instructions import (
    commit_copies,
    copy4_async,
    copy_async,
    load4,
    mma_bf16,
    mma_tf32,
    pack_bf16,
    store4,
    to_tf32,
    wait_copies,
)
from sparsenet.testing import assert_close, emulate
from sparsenet.testing.emulator import EmulatorError

pytestmark = pytest.mark.emulator

wait_none, wait_one, wait_two = wait_copies(0), wait_copies(1), wait_copies(2)


def wide(x, y, constants):
    stage = cuda.shared.array(64, np.float32, alignment=16)
    t = cuda.threadIdx.x
    a, b, c, d = load4(x, 4 * t)
    store4(stage, 4 * t, d, c, b, a)
    store4(constants, 4 * t, np.float32(1), np.float32(2), np.float32(3), np.float32(4))
    cuda.syncthreads()
    e, f, g, h = load4(stage, 60 - 4 * t)
    store4(y, 4 * t, e, f, g, h)


def test_wide_accesses():
    """Also of arrays of two axes, and of constants."""
    x, y, constants = np.arange(64, dtype=np.float32), np.zeros((4, 16), np.float32), np.zeros(64, np.float32)
    emulate(wide)[1, 16](x, y, constants)
    assert y.ravel().tolist() == x[::-1].tolist()
    assert constants.tolist() == [1, 2, 3, 4] * 16


def copies(x, counts, early, waited, beside):
    """Two groups: what is there before a wait, after a wait for the first, after all."""
    stage = cuda.shared.array(256, np.float32, alignment=16)
    t = cuda.threadIdx.x
    for i in range(4):
        stage[4 * t + i] = -1
        stage[128 + 4 * t + i] = -2
    cuda.syncthreads()
    copy4_async(stage, 4 * t, x, 4 * t, counts[t])
    commit_copies()
    for i in range(4):
        copy_async(stage, 128 + 4 * t + i, x, 4 * t + i, i % 2)
    commit_copies()
    for i in range(4):
        early[4 * t + i] = stage[4 * t + i]
    wait_one()
    for i in range(4):
        waited[4 * t + i] = stage[4 * t + i]
        early[128 + 4 * t + i] = stage[128 + 4 * t + i]
    wait_none()
    cuda.syncthreads()
    for i in range(4):
        beside[4 * t + i] = stage[128 + (4 * t + i + 4) % 128]


emulated_copies = emulate(copies)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=32, max_size=32))
def test_asynchronous_copies(counts):
    """Nothing is there before the wait; then, what was counted, and zeros."""
    x = np.arange(1, 129, dtype=np.float32)
    early, waited, beside = np.zeros(256, np.float32), np.zeros(128, np.float32), np.zeros(128, np.float32)
    emulated_copies[1, 32](x, np.array(counts, np.uint32), early, waited, beside)
    assert early.tolist() == [-1] * 128 + [-2] * 128
    assert waited.tolist() == [v if k % 4 < counts[k // 4] else 0 for k, v in enumerate(x)]
    assert beside.tolist() == [v if k % 2 else 0 for k, v in enumerate(np.roll(x, -4))]


def pipeline(x, out, stages, steps, waits):
    """Three groups are under way at a time."""
    stage = cuda.shared.array((4, 32), np.float32)
    t = cuda.threadIdx.x
    for k in range(3):
        copy_async(stage, 32 * k + t, x, 32 * k + t, 1)
        commit_copies()
    for k in range(steps):
        if waits:
            wait_two()
        cuda.syncthreads()
        out[k, t] = stage[k % 4, 31 - t]
        ahead = k + 3
        copy_async(stage, 32 * (ahead % 4) + t, x, 32 * ahead + t if ahead < steps else 0, 1 if ahead < steps else 0)
        commit_copies()


def test_several_groups_under_way():
    x = np.random.default_rng(0).random((9, 32)).astype(np.float32)
    out = np.zeros_like(x)
    kernel = emulate(pipeline)
    kernel[2, 32](x, out, 0, 9, True)
    assert (out == x[:, ::-1]).all()
    kernel[1, 32](x, out, 0, 9, False)
    assert np.isnan(out).all(), "a forgotten wait is seen"
    kernel[1, 32](x, out, 0, 9, True)
    assert (out == x[:, ::-1]).all(), "what was under way is forgotten with its thread"


def late_wait(x, out):
    """Waits after the barrier, so that others may read while the copy is under way."""
    stage = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    copy_async(stage, t, x, t, 1)
    commit_copies()
    cuda.syncthreads()
    wait_none()
    out[t] = stage[63 - t]


def test_a_wait_after_the_barrier_is_a_race():
    with pytest.raises(EmulatorError, match="no barrier stands between"):
        emulate(late_wait)[1, 64](np.ones(64, np.float32), np.zeros(64, np.float32))


def too_much(x, count, times):
    stage = cuda.shared.array(4, np.float32, alignment=16)
    for _ in range(times):
        copy4_async(stage, 0, x, 0, count)


def test_copies_have_limits():
    x = np.ones(8, np.float32)
    with pytest.raises(EmulatorError, match="copies 5 elements at once, but 4 are the most"):
        emulate(too_much)[1, 1](x, 5, 1)
    with pytest.raises(EmulatorError, match="64 asynchronous copies under way, and begins another"):
        emulate(too_much)[1, 1](x, 4, 65)
    emulate(too_much)[1, 1](x, 4, 64)


def rounded(x, y, tf32, bf16):
    i = cuda.grid(1)
    if i < x.size:
        tf32[i] = to_tf32(x[i])
        bf16[i] = pack_bf16(x[i], y[i])


emulated_rounded = emulate(rounded)
any_float = st.floats(width=32, allow_nan=False)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(any_float, any_float), min_size=1, max_size=50))
def test_rounding(pairs):
    """To 10 and 7 bits of fraction, by whole numbers: ties away from zero, ties to even."""
    x, y = np.array(pairs, np.float32).T.copy()
    tf32, bf16 = np.zeros((2, x.size), np.uint32)
    emulated_rounded[1, x.size](x, y, tf32, bf16)
    for k in range(x.size):
        assert tf32[k] & 0xFFFFE000 == nearest(x[k], 13, even=False)
        assert bf16[k] == nearest(x[k], 16, even=True) >> 16 | nearest(y[k], 16, even=True)


def nearest(x, dropped, even):
    """The bits of x without the lowest few, rounded."""
    bits = int(np.float32(x).view(np.uint32))
    low, unit = bits % (1 << dropped), 1 << dropped
    up = low > unit // 2 or (low == unit // 2 and (not even or bits // unit % 2 == 1))
    return bits - low + unit * up


def test_rounding_of_nan_and_infinity():
    """PTX ISA: the NaN of bfloat16 is 0x7FFF; an infinity stays what it is; numbers beyond the largest become one."""
    x = np.array([np.nan, -np.nan, np.inf, -np.inf, 3.4028235e38, -3.4028235e38], np.float32)
    payload = np.array([0x7FFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    x = np.concatenate([x, payload])
    tf32, bf16 = np.zeros((2, x.size), np.uint32)
    emulated_rounded[1, x.size](x, x[::-1].copy(), tf32, bf16)
    low, high = bf16 & 0xFFFF, bf16[::-1] >> 16
    for halves in (low, high):
        assert halves.tolist() == [0x7FFF, 0x7FFF, 0x7F80, 0xFF80, 0x7F80, 0xFF80, 0x7FFF, 0x7FFF]
    values = tf32.view(np.float32)
    assert np.isnan(values[[0, 1, 6, 7]]).all()
    assert values[2:6].tolist() == [np.inf, -np.inf, np.inf, -np.inf]


def product_tf32(a, b, c, d):
    lane = cuda.laneid
    g, t = lane // 4, lane % 4
    a0, a1, a2, a3 = to_tf32(a[g, t]), to_tf32(a[g + 8, t]), to_tf32(a[g, t + 4]), to_tf32(a[g + 8, t + 4])
    b0, b1 = to_tf32(b[t, g]), to_tf32(b[t + 4, g])
    d[g, 2 * t], d[g, 2 * t + 1], d[g + 8, 2 * t], d[g + 8, 2 * t + 1] = mma_tf32(
        a0, a1, a2, a3, b0, b1, c[g, 2 * t], c[g, 2 * t + 1], c[g + 8, 2 * t], c[g + 8, 2 * t + 1])


def product_bf16(a, b, c, d):
    lane = cuda.laneid
    g, t = lane // 4, 2 * (lane % 4)
    a0, a1 = pack_bf16(a[g, t], a[g, t + 1]), pack_bf16(a[g + 8, t], a[g + 8, t + 1])
    a2, a3 = pack_bf16(a[g, t + 8], a[g, t + 9]), pack_bf16(a[g + 8, t + 8], a[g + 8, t + 9])
    b0, b1 = pack_bf16(b[t, g], b[t + 1, g]), pack_bf16(b[t + 8, g], b[t + 9, g])
    d[g, t], d[g, t + 1], d[g + 8, t], d[g + 8, t + 1] = mma_bf16(
        a0, a1, a2, a3, b0, b1, c[g, t], c[g, t + 1], c[g + 8, t], c[g + 8, t + 1])


@pytest.mark.parametrize(("kernel", "inner", "dropped"), [(product_tf32, 8, 13), (product_bf16, 16, 16)])
def test_products_of_matrices(kernel, inner, dropped):
    """The layouts are those of the PTX ISA, section 9.7.14.5, written out once more in the kernels here."""
    emulated = emulate(kernel)

    @settings(max_examples=20, deadline=None)
    @given(st.integers(0, 2**32))
    def example(seed):
        rng = np.random.default_rng(seed)
        a, b, c = (rng.normal(size=shape).astype(np.float32) for shape in ((16, inner), (inner, 8), (16, 8)))
        d = np.full((16, 8), np.nan, np.float32)
        emulated[1, 32](a, b, c, d)
        a, b = (np.array([nearest(x, dropped, dropped == 16) for x in m.ravel()], np.uint32).view(np.float32)
                .reshape(m.shape).astype(float) for m in (a, b))
        assert_close(d, a @ b + c, terms=inner + 1, scale=abs(a) @ abs(b) + abs(c))
    example()


@pytest.mark.parametrize("array", [np.zeros(8), np.zeros((4, 8), np.float32)[:, ::2], np.zeros(8, np.int32)],
                         ids=["float64", "strided", "int32"])
def test_wide_accesses_want_float32_rows(array):
    with pytest.raises(TypingError, match="load4: expected a C-contiguous float32 array"):
        emulate(_loads)[1, 1](array)


def _loads(array):
    a, b, c, d = load4(array, 4)
    store4(array, 0, a, b, c, d)


def test_a_gpu_that_does_not_know_an_instruction():
    with pytest.raises(NotImplementedError, match=r"to_tf32 needs a GPU of compute capability \(8, 0\)"):
        emulate(_rounds, capability=(7, 5))[1, 1](np.zeros(1, np.uint32), np.zeros(1, np.float32))


def _rounds(out, x):
    out[0] = to_tf32(x[0])
