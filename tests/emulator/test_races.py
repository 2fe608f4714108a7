"""Races on shared memory and threads that wait in vain: what is one, what is none, and what the message says."""

import re

import numpy as np
import pytest

from sparsenet.device import cuda
from sparsenet.testing import emulate
from sparsenet.testing.emulator import DeadlockError, RaceError

pytestmark = pytest.mark.emulator


def no_barrier(x, out):
    stage = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    stage[t] = x[t]
    out[t] = stage[63 - t]


def one_element(x, out):
    stage = cuda.shared.array(4, np.float32)
    stage[2] = x[cuda.threadIdx.x]
    cuda.syncthreads()
    out[cuda.threadIdx.x] = stage[2]


def overwritten(x, out):
    """The second barrier of a loop is missing."""
    stage = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    for k in range(2):
        stage[t] = x[t] + k
        cuda.syncthreads()
        out[t] = stage[(t + 32) % 64]


def half_atomic(x, out):
    stage = cuda.shared.array(1, np.float32)
    t = cuda.threadIdx.x
    if t == 0:
        stage[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(stage, 0, x[t])
    out[t] = stage[0]


def last_one_writes(x, out):
    """Who was the last to add also writes plainly."""
    stage = cuda.shared.array(1, np.float32)
    t = cuda.threadIdx.x
    if t == 0:
        stage[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(stage, 0, x[t])
    if t == cuda.blockDim.x - 1:
        stage[0] = x[t]
    cuda.syncthreads()
    out[t] = stage[0]


def first_one_writes(x, out):
    """Who writes plainly then adds, as all others do."""
    stage = cuda.shared.array(1, np.float32)
    t = cuda.threadIdx.x
    if t == 0:
        stage[0] = 0
    cuda.atomic.add(stage, 0, x[t])
    cuda.syncthreads()
    out[t] = stage[0]


def warp_only(x, out):
    """syncwarp orders a warp, not a block."""
    stage = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    stage[t] = x[t]
    cuda.syncwarp()
    out[t] = stage[(t + 32) % 64]


def within_a_warp(x, out):
    stage = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    stage[t] = x[t]
    out[t] = stage[31 - t]


def unknown_array(x, out):
    """One of two shared arrays, by a choice at run time."""
    first = cuda.shared.array(64, np.float32)
    second = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    first[t] = second[t] = 0
    cuda.syncthreads()
    chosen = first if x[0] > 5 else second
    chosen[t] = x[t]
    out[t] = chosen[63 - t]


def halves_of_words(x, out):
    """Two threads write the same of four bytes of a word."""
    flags = cuda.shared.array(64, np.uint8)
    flags[cuda.threadIdx.x // 2] = 1
    cuda.syncthreads()
    out[cuda.threadIdx.x] = flags[cuda.threadIdx.x]


RACES = [  # kernel, threads; who does what to what, and who else
    (no_barrier, 64, "thread (32, 0, 0) writes element 32 of a shared array of 64 that thread (31, 0, 0)"),
    (one_element, 2, "thread (1, 0, 0) writes element 2 of a shared array of 4 that thread (0, 0, 0)"),
    (overwritten, 64, None),
    (half_atomic, 64, None),
    (last_one_writes, 64, "thread (63, 0, 0) writes element 0 of a shared array of 1"),
    (first_one_writes, 64, "thread (1, 0, 0) updates element 0 of a shared array of 1 that thread (0, 0, 0)"),
    (warp_only, 64, None),
    (within_a_warp, 32, None),
    (unknown_array, 64, None),
    (halves_of_words, 64, "thread (1, 0, 0) writes element 0 of a shared array of 64 that thread (0, 0, 0)"),
]


@pytest.mark.parametrize(("kernel", "threads", "what"), RACES, ids=lambda value: getattr(value, "__name__", ""))
def test_races(kernel, threads, what):
    arguments = np.ones(threads, np.float32), np.zeros(threads, np.float32)
    with pytest.raises(RaceError) as found:
        emulate(kernel)[1, threads](*arguments)
    message = str(found.value)
    assert message.startswith(f"{kernel.__name__}: block (0, 0, 0), thread (")
    assert message.endswith("touches at the same time: no barrier stands between")
    assert what is None or what in message
    emulate(kernel, races=False)[1, threads](*arguments)  # nobody watches


def only_reads(x, out):
    stage = cuda.shared.array(4, np.float32)
    t = cuda.threadIdx.x
    if t < 4:
        stage[t] = x[t]
    cuda.syncthreads()
    for k in range(4):
        out[t] += stage[k] + stage[k // 2]


def only_atomics(x, out):
    """Comparisons and exchanges too, and those that numba-cuda makes of them."""
    stage = cuda.shared.array(3, np.float32)
    whole = cuda.shared.array(2, np.int32)
    t = cuda.threadIdx.x
    if t < 3:
        stage[t] = 0
    if t < 2:
        whole[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(stage, 0, x[t])
    cuda.atomic.max(stage, 1, x[t] * t)
    cuda.atomic.sub(stage, 2, x[t])
    cuda.atomic.cas(whole, 0, 0, t)
    cuda.atomic.exch(whole, 1, t)
    cuda.syncthreads()
    out[t] = stage[0] + stage[1] + stage[2]


def warp_synchronous(x, out):
    """A warp's own corner, after syncwarp and after shuffles."""
    stage = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    base = t // 32 * 32
    stage[t] = x[t]
    cuda.syncwarp()
    a = stage[base + 31 - t % 32]
    cuda.syncwarp()
    stage[t] = a
    a += cuda.shfl_xor_sync(0xFFFFFFFF, a, 1)
    out[t] = a + stage[base + (t + 1) % 32]


def double_buffer(x, out):
    stage = cuda.shared.array((2, 64), np.float32)
    t = cuda.threadIdx.x
    stage[0, t] = x[t]
    for k in range(6):
        cuda.syncthreads()
        stage[(k + 1) % 2, t] = stage[k % 2, (t + 1) % 64]
    cuda.syncthreads()
    out[t] = stage[0, t]


def own_elements(x, out):
    """No thread touches another's, of bytes as of longer words."""
    stage = cuda.shared.array(100, np.float64)
    flags = cuda.shared.array(100, np.bool_)
    t = cuda.threadIdx.x
    for k in range(3):
        flags[t] = x[t] > k
        stage[t] = x[t] + k + flags[t]
        out[t] += stage[t]


def some_left(x, out):
    stage = cuda.shared.array(96, np.float32)
    t = cuda.threadIdx.x
    if t % 3 == 0:
        stage[t] = x[t]
        return
    stage[t] = x[t]
    cuda.syncthreads()
    out[t] = stage[t // 3 * 3]


@pytest.mark.parametrize("kernel", [only_reads, only_atomics, warp_synchronous, double_buffer, own_elements, some_left],
                         ids=lambda kernel: kernel.__name__)
def test_no_races(kernel):
    """Nor between blocks: each has shared memory of its own."""
    out = np.zeros(96 if kernel is some_left else 64, np.float32)
    emulate(kernel)[5, out.size](np.ones(out.size, np.float32), out)
    assert np.isfinite(out).all()


def diverged(x, out):
    t = cuda.threadIdx.x
    if t % 2:
        cuda.syncthreads()
        out[t] = 1
    else:
        out[t] = cuda.syncthreads_count(int(x[t]))


def barrier_and_shuffle(x, out):
    t = cuda.threadIdx.x
    if t == 5:
        cuda.syncthreads()
    out[t] = cuda.shfl_xor_sync(0xFFFFFFFF, x[t], 1)


def two_shuffles(x, out):
    t = cuda.threadIdx.x
    if t < 16:
        out[t] = cuda.shfl_xor_sync(0xFFFFFFFF, x[t], 1)
    else:
        out[t] = cuda.shfl_xor_sync(0xFFFFFFFF, x[t], 2)


def not_in_its_mask(x, out):
    cuda.syncwarp(0xFF)
    out[cuda.threadIdx.x] = x[0]


@pytest.mark.parametrize(("kernel", "message"), [
    (diverged, r"thread \(\d+, 0, 0\) is at another barrier than thread \(\d+, 0, 0\) of its warp"),
    (barrier_and_shuffle, r"thread \(0, 0, 0\) waits in shfl.sync.i32 for threads of its warp that wait elsewhere"),
    (two_shuffles, r"thread \(0, 0, 0\) waits in shfl.sync.i32 for threads of its warp that wait elsewhere"),
    (not_in_its_mask, r"thread \(8, 0, 0\) waits in bar.warp.sync for threads of its warp that wait elsewhere"),
], ids=lambda value: getattr(value, "__name__", ""))
def test_deadlocks(kernel, message):
    x, out = np.ones(64, np.float32), np.zeros(64, np.float32)
    emulated = emulate(kernel)
    for _ in range(2):
        with pytest.raises(DeadlockError, match=rf"^{re.escape(kernel.__name__)}: block \(0, 0, 0\), {message}$"):
            emulated[1, 32](x, out)
