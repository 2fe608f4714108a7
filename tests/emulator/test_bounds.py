"""Accesses outside of arrays, each found where it happens, with kernel, block, thread, array and index."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenet.device import cuda, part
from sparsenet.instructions import commit_copies, copy4_async, copy_async, load4, store4
from sparsenet.testing import emulate
from sparsenet.testing.emulator import OutOfBoundsError

pytestmark = pytest.mark.emulator


def raises(message):
    return pytest.raises(OutOfBoundsError, match="^" + re.escape(message) + "$")


def reading(x, index, out):
    out[cuda.threadIdx.x] = x[index[cuda.threadIdx.x]]


def writing(x, index, out):
    x[index[cuda.threadIdx.x]] = 1


def updating(x, index, out):
    cuda.atomic.add(x, index[cuda.threadIdx.x], 1)


EMULATED = {kernel.__name__: emulate(kernel) for kernel in (reading, writing, updating)}
VERBS = {"reading": "reads", "writing": "writes", "updating": "updates"}


@pytest.mark.parametrize("name", EMULATED)
def test_any_index(name):
    """x is the middle of a larger allocation: what lies beside it is out of bounds too."""
    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.integers(-25, 25), min_size=1, max_size=5), st.integers(0, 9))
    def example(indices, size):
        memory = np.zeros(100, np.int32)
        x, out = memory[40:40 + size], np.zeros(5, np.int32)
        wrong = [(t, i if i >= 0 else i + size) for t, i in enumerate(indices) if not -size <= i < size]
        launch = EMULATED[name][1, len(indices)]
        if not wrong:
            launch(x, np.array(indices), out)
            return
        thread, element = wrong[0]
        with raises(f"{name}: block (0, 0, 0), thread ({thread}, 0, 0) {VERBS[name]} element {element} of x, whose "
                    f"shape is ({size},)"):
            launch(x, np.array(indices), out)
        assert memory[:40].sum() == memory[40 + size:].sum() == 0
        launch(np.zeros(25, np.int32), np.zeros(len(indices), int), out)  # all is well again
    example()


def corner(x, i, j):
    if cuda.grid(2) == (5, 2):
        x[i, j] = 1


@pytest.mark.parametrize(("index", "place"), [((3, 0), "[3, 0]"), ((2, 4), "[3, 0]"), ((5, 3), "[5, 3]"),
                                              ((-4, 0), "[-1, 0]")])
def test_two_axes(index, place):
    """Of a matrix in C's order the message tells the index of the element that the address means."""
    with raises(f"corner: block (1, 1, 0), thread (1, 0, 0) writes x{place}, whose shape is (3, 4)"):
        emulate(corner)[(2, 2), (4, 2)](np.zeros((3, 4)), *index)


@pytest.mark.parametrize("kind", ["strided", "fortran", "backwards"])
def test_views(kind):
    """Arrays with steps have the bounds of their first and last elements."""
    base = np.zeros((9, 9))
    x = {"strided": base[2:7:2, 1:8:3], "fortran": np.asfortranarray(base[:3, :3]),
         "backwards": base[6:1:-2, 7:0:-3]}[kind]
    emulate(corner)[(2, 2), (4, 2)](x, 2, 2)
    for index in ((0, 3), (5, 2), (-4, 0)) if kind == "fortran" else ((3, 0), (2, 3), (-4, 0)):
        with pytest.raises(OutOfBoundsError, match=r"element -?\d+ of x, whose shape is \(3, 3\)"):
            emulate(corner)[(2, 2), (4, 2)](x, *index)
    assert np.count_nonzero(base) <= 1


@part
def helper(arrays, k, i):
    return arrays[k][i]


def through(arrays, out):
    out[0] = helper(arrays, 1, 7) + helper(arrays, 0, 3)


def test_tuples_and_helpers():
    x, y = np.zeros(9), np.zeros(4)
    emulate(through)[1, 1]((y, x), np.zeros(1))
    with raises("through: block (0, 0, 0), thread (0, 0, 0) reads element 7 of arrays[1], whose shape is (4,)"):
        emulate(through)[1, 1]((x, y), np.zeros(1))


def chosen(x, y, which, i, out):
    array = x if which else y
    out[0] = array[i]


def test_an_array_chosen_by_a_condition():
    """Which one it is cannot be said, but that the element is in neither."""
    x, y = np.zeros(4), np.zeros(4)
    emulate(chosen)[1, 1](x, y, 1, 3, np.zeros(1))
    with raises("chosen: block (0, 0, 0), thread (0, 0, 0) reads outside all arrays"):
        emulate(chosen)[1, 1](x, y, 1, 10**6, np.zeros(1))


def own(shared, local, i, out):
    """Arguments may be called what the messages call memory."""
    kept = cuda.local.array(5, np.int16)
    stage = cuda.shared.array((2, 6), np.float64)
    other = cuda.shared.array(100, np.int32)
    table = cuda.const.array_like(TABLE)
    t = cuda.threadIdx.x
    for k in range(5):
        kept[k] = k + out.size
    stage[t % 2, t // 2], other[t] = t, t
    cuda.syncthreads()
    out[0] = kept[i[0]] + stage[i[1], i[2]] + other[i[3]] + table[i[4]] + shared[i[5]] + local[i[6]]


TABLE = np.arange(3.0)


@pytest.mark.parametrize(("place", "index", "what"), [
    (0, 5, "element 5 of a local array of 5"), (0, -6, "element -1 of a local array of 5"),
    (1, 2, "element 12 of a shared array of 12"), (2, 40, "element 40 of a shared array of 12"),
    (3, 100, "element 100 of a shared array of 100"), (3, -101, "element -1 of a shared array of 100"),
    (4, 3, "element 3 of a constant array of 3"), (5, 2, "element 2 of shared, whose shape is (2,)"),
    (6, 2, "element 2 of local, whose shape is (2,)")])
def test_arrays_of_the_kernel(place, index, what):
    indices = np.zeros(7, int)
    emulate(own)[1, 12](np.zeros(2), np.zeros(2), indices, np.zeros(1))
    indices[place] = index
    with raises(f"own: block (0, 0, 0), thread (0, 0, 0) reads {what}"):
        emulate(own)[1, 12](np.zeros(2), np.zeros(2), indices, np.zeros(1))


def free(i):
    stage = cuda.shared.array(0, np.float32)
    stage[i] = 1


@pytest.mark.parametrize("index", [-17, 16, 5000])
def test_dynamic_shared_memory(index):
    emulate(free)[1, 1, 0, 64](15)
    place = 4 * (index if index > 0 else index + 16)
    with raises(f"free: block (0, 0, 0), thread (0, 0, 0) writes byte {place} of the dynamic shared memory, which "
                "has 64"):
        emulate(free)[1, 1, 0, 64](index)


def wide_load(x, i, out):
    a, b, c, d = load4(x, i)
    out[0] = a + b + c + d


def wide_store(x, i, out):
    store4(x, i, out[0], np.float32(1), np.float32(2), np.float32(3))


def copied(x, i, count):
    stage = cuda.shared.array(8, np.float32, alignment=16)
    copy4_async(stage, 4, x, i, count)
    commit_copies()


def aimed(x, i, single):
    stage = cuda.shared.array(8, np.float32, alignment=16)
    if single:
        copy_async(stage, i, x, 0, 1)
    else:
        copy4_async(stage, i, x, 0, 4)


def aligned(size):
    """float32 zeros that begin at a multiple of 16 bytes."""
    memory = np.zeros(size + 4, np.float32)
    return memory[-memory.ctypes.data // 4 % 4:][:size]


@pytest.mark.parametrize(("kernel", "verb"), [(wide_load, "reads"), (wide_store, "writes")])
def test_wide_accesses(kernel, verb):
    x, out = aligned(10), np.zeros(1, np.float32)
    emulate(kernel)[1, 1](x, 4, out)
    for i, what in ((8, "x, whose shape is (10,)"), (-4, "x, whose shape is (10,)"),
                    (5, "x, whose shape is (10,), which is no multiple of 16 bytes in memory")):
        with raises(f"{kernel.__name__}: block (0, 0, 0), thread (0, 0, 0) {verb} element {i} of {what}"):
            emulate(kernel)[1, 1](x, i, out)


def test_asynchronous_copies():
    x = aligned(10)
    emulate(copied)[1, 1](x, 8, 2)
    emulate(copied)[1, 1](x, 800, 0)  # nothing is read
    for i, count in ((8, 3), (-4, 1), (12, 1)):
        with raises(f"copied: block (0, 0, 0), thread (0, 0, 0) reads element {i} of x, whose shape is (10,)"):
            emulate(copied)[1, 1](x, i, count)
    with raises("copied: block (0, 0, 0), thread (0, 0, 0) reads element 2 of x, whose shape is (10,), which is no "
                "multiple of 16 bytes in memory"):
        emulate(copied)[1, 1](x, 2, 4)
    emulate(aimed)[1, 1](x, 7, True)
    for i, single in ((8, True), (-1, True), (8, False)):
        with raises(f"aimed: block (0, 0, 0), thread (0, 0, 0) writes element {i} of a shared array of 8"):
            emulate(aimed)[1, 1](x, i, single)


def careless(out):
    """Shared arrays are aligned no better than they ask for."""
    stage = cuda.shared.array(8, np.float32)
    store4(stage, 0, out[0], out[0], out[0], out[0])


def test_shared_arrays_need_an_alignment():
    with pytest.raises(OutOfBoundsError, match="element 0 of a shared array of 8, which is no multiple of 16 bytes"):
        emulate(careless)[1, 1](np.zeros(1, np.float32))


def uninitialised(x, out):
    stage = cuda.shared.array(8, np.float32)
    if x[0]:
        stage[cuda.threadIdx.x] = 1
    cuda.syncthreads()
    out[cuda.grid(1)] = stage[cuda.threadIdx.x]
    stage[cuda.threadIdx.x] = 2


def test_shared_memory_begins_as_nan():
    """In each block, whatever the one before left."""
    out = np.zeros(24, np.float32)
    kernel = emulate(uninitialised)
    kernel[3, 8](np.ones(1), out)
    assert (out == 1).all()
    kernel[3, 8](np.zeros(1), out)
    assert np.isnan(out).all()
