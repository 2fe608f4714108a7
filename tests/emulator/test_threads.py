"""Special registers, barriers and fences: what each thread knows, and how threads wait for each other."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenet.device import cuda
from sparsenet.testing import emulate

pytestmark = pytest.mark.emulator


def registers(out):
    """One row for each thread of the grid."""
    block = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
    thread = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    size = cuda.blockDim.x * cuda.blockDim.y * cuda.blockDim.z
    row = out[block * size + thread]
    row[0], row[1], row[2] = cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z
    row[3], row[4], row[5] = cuda.blockIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
    row[6], row[7], row[8] = cuda.blockDim.x, cuda.blockDim.y, cuda.blockDim.z
    row[9], row[10], row[11] = cuda.gridDim.x, cuda.gridDim.y, cuda.gridDim.z
    row[12], row[13], row[14] = cuda.grid(3)
    row[15], row[16], row[17] = cuda.gridsize(3)
    row[18], row[19], row[20], row[21] = cuda.grid(1), cuda.grid(2)[1], cuda.gridsize(1), cuda.gridsize(2)[1]
    row[22], row[23] = cuda.laneid, cuda.warpsize


registers_emulated = emulate(registers)
sides = st.integers(1, 5)


@settings(max_examples=20, deadline=None)
@given(st.tuples(sides, sides, sides), st.tuples(st.integers(1, 12), sides, sides))
def test_registers(grid, block):
    out = np.full((math.prod(grid) * math.prod(block), 24), -1)
    registers_emulated[grid, block](out)
    rows = []
    for bz, by, bx in product(*map(range, reversed(grid))):
        for number, (z, y, x) in enumerate(product(*map(range, reversed(block)))):
            here = [b * n + t for b, n, t in zip((bx, by, bz), block, (x, y, z), strict=True)]
            size = [g * n for g, n in zip(grid, block, strict=True)]
            rows.append([x, y, z, bx, by, bz, *block, *grid, *here, *size, here[0], here[1], size[0], size[1],
                         number % 32, 32])
    assert out.tolist() == rows


def test_sizes_may_be_numbers_or_short():
    for grid, block in ((2, 3), ((2,), (3,)), (np.int64(2), np.int32(3)), ((2, 1), (3, 1))):
        out = np.zeros((6, 24), int)
        registers_emulated[grid, block](out)
        assert out[:, 18].tolist() == [0, 1, 2, 3, 4, 5]


def test_large_grids():
    """More blocks along x than fit in 16 bits, shared by all cores."""
    def count(out):
        cuda.atomic.add(out, cuda.blockIdx.x % 7, 1)
    out = np.zeros(7, np.int64)
    emulate(count)[100_003, 2](out)
    assert out.tolist() == [2 * len(range(k, 100_003, 7)) for k in range(7)]


def reverse(x, out):
    stage = cuda.shared.array(1024, np.float32)
    t = cuda.threadIdx.x
    stage[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = stage[cuda.blockDim.x - 1 - t]


@pytest.mark.parametrize("threads", [1, 2, 31, 32, 33, 257, 1024])
def test_barrier(threads):
    x = np.arange(3 * threads, dtype=np.float32)
    out = np.empty_like(x)
    emulate(reverse)[3, threads](x, out)
    assert out.tolist() == x.reshape(3, threads)[:, ::-1].ravel().tolist()


def predicates(x, counts, every, some):
    t = cuda.threadIdx.x
    counts[t] = cuda.syncthreads_count(x[t])
    every[t] = cuda.syncthreads_and(x[t])
    some[t] = cuda.syncthreads_or(x[t])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([0, 1, -3]), min_size=1, max_size=100))
def test_barriers_with_predicates(values):
    x = np.array(values, np.int32)
    counts, every, some = np.full((3, x.size), -1, np.int32)
    emulate_predicates[1, x.size](x, counts, every, some)
    assert (counts == np.count_nonzero(x)).all()
    assert ((every != 0) == all(values)).all()
    assert ((some != 0) == any(values)).all()


emulate_predicates = emulate(predicates)


def early(x, out):
    """Threads that have left are no longer waited for."""
    t = cuda.threadIdx.x
    if t >= x.size:
        return
    out[t] = cuda.syncthreads_count(x[t])


def test_threads_that_left_are_not_waited_for():
    out = np.zeros(40, np.int32)
    emulate(early)[1, 96](np.ones(40, np.int32), out)
    assert (out == 40).all()


def different_barriers(out):
    """Warps may wait at different places of the code: the barrier counts them."""
    stage = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    stage[t] = t
    if t < 32:
        cuda.syncthreads()
        out[t] = stage[t + 32]
    else:
        cuda.syncthreads()
        out[t] = -stage[t - 32]


def test_warps_at_different_barriers():
    out = np.zeros(64, np.int32)
    emulate(different_barriers)[1, 64](out)
    assert out.tolist() == [*range(32, 64), *range(0, -32, -1)]


def many_barriers(steps, out):
    stage = cuda.shared.array(96, np.int64)
    t = cuda.threadIdx.x
    stage[t] = t
    cuda.syncthreads()
    for _ in range(steps):
        left = stage[(t + 95) % 96]
        cuda.syncthreads()
        stage[t] = left
        cuda.syncthreads()
    out[t] = stage[t]


def test_barriers_in_loops():
    out = np.zeros(96, np.int64)
    emulate(many_barriers)[1, 96](1000, out)
    assert out.tolist() == [(t - 1000) % 96 for t in range(96)]


def fences(out):
    t = cuda.threadIdx.x
    out[t] = t
    cuda.threadfence()
    cuda.threadfence_block()
    cuda.threadfence_system()
    cuda.nanosleep(np.uint32(10))
    cuda.syncwarp()
    cuda.syncwarp(0xFFFFFFFF)
    out[t] += 1


def test_fences_and_naps():
    out = np.zeros(40, np.int32)
    emulate(fences)[1, 40](out)
    assert out.tolist() == list(range(1, 41))


def halves(out):
    """Each half of a warp waits for itself alone."""
    stage = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    stage[t] = t * t
    if t < 16:
        cuda.syncwarp(0xFFFF)
        out[t] = stage[15 - t]
    else:
        cuda.syncwarp(0xFFFF0000)
        out[t] = stage[47 - t]


def test_part_of_a_warp_waits():
    out = np.zeros(32, np.int32)
    emulate(halves)[1, 32](out)
    assert out.tolist() == [(15 - t) ** 2 for t in range(16)] + [(47 - t) ** 2 for t in range(16, 32)]
