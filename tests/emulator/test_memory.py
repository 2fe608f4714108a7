"""Arrays and arguments: shared, local and constant memory, and everything that a kernel can be given."""

from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparsenet.compiling import numba_cuda
from sparsenet.device import cuda, part, scalar
from sparsenet.testing import emulate

pytestmark = pytest.mark.emulator

KINDS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64",
         "complex64", "complex128")


def copy(x, y):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j]


emulated_copy = emulate(copy)


@pytest.mark.parametrize("kind", KINDS)
def test_array_dtypes(kind):
    x = (np.arange(-6, 6).reshape(3, 4) * 1.5).astype(kind)
    y = np.zeros_like(x)
    emulated_copy[1, 1](x, y)
    assert y.tobytes() == x.tobytes()


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.int32, hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6)), st.data())
def test_array_layouts(base, data):
    """Steps of any sign, transposed, with and without elements; of an array that may not be written."""
    x = base[::data.draw(st.sampled_from([1, 2, -1, -2])), ::data.draw(st.sampled_from([1, 3, -1]))]
    if data.draw(st.booleans()):
        x = x.T
    if data.draw(st.booleans()):
        x = np.asfortranarray(x)
    x.flags.writeable = data.draw(st.booleans())
    y = np.full(x.shape[::-1], 7, np.int32).T
    emulated_copy[1, 1](x, y)
    assert (y == x).all()


def three_axes(x, scalar_array, out):
    out[0] = scalar_array[()]
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            for k in range(x.shape[2]):
                out[0] += x[i, j, k] * (100 * i + 10 * j + k)
    out[1] = x.ndim
    out[2] = x.size


def test_axes():
    x = np.random.default_rng(0).integers(-9, 9, (3, 4, 5)).astype(np.int64)
    out = np.zeros(3, np.int64)
    emulate(three_axes)[1, 1](x, np.array(1000), out)
    i, j, k = np.indices(x.shape)
    assert out.tolist() == [1000 + (x * (100 * i + 10 * j + k)).sum(), 3, 60]


NUMBERS = [np.bool(True), np.int8(-3), np.uint8(250), np.int16(-300), np.uint16(60_000), np.int32(-70_000),
           np.uint32(4_000_000_000), np.int64(-2**40), np.uint64(2**63), np.float32(0.1), np.float64(0.1), True, -5,
           0.1, np.complex64(1 - 2j), np.complex128(3 + 0.1j), 2j]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{type(number).__name__}")
def test_numbers(number):
    def store(before, value, after, out):
        out[0], out[1], out[2] = before, value, after
    out = np.zeros(3, np.asarray(number).dtype if np.asarray(number).dtype.kind == "c" else np.float64)
    emulate(store)[1, 1](1, number, 2, out)
    assert out.tolist() == [1, out.dtype.type(number), 2]


Pair = namedtuple("Pair", "left right")


def tuples(numbers, arrays, pair, nested, out):
    out[0] = numbers[0] + numbers[1] * 10 + numbers[2] * 100
    for array in arrays:
        out[1] += array[1]
    out[2] = pair.left[0] - pair.right
    out[3] = nested[0] + nested[1][0][2] + nested[1][1]


def test_tuples():
    out = np.zeros(4)
    x, y = np.arange(3.0), np.arange(10.0, 13.0)
    emulate(tuples)[1, 1]((1, np.float32(2), np.uint8(3)), (x, y), Pair(y, 4), (1, (x, np.int8(-7))), out)
    assert out.tolist() == [321, 12, 6, -4]


def words(define, null, void, ptr, i32, ret, undef, x, y, z, a, b, c):
    """More arrays than fit in registers, called as LLVM calls other things."""
    i = cuda.threadIdx.x
    c[i] = (define[i] + null[i] + void[i] + ptr[i] + i32[i] + ret[i] + undef[i] + x[i] + y[i] + z[i] + a[i] + b[i])


def test_many_arrays_with_awkward_names():
    arrays = [np.full(4, 10.0**k) for k in range(12)]
    out = np.zeros(4)
    emulate(words)[1, 4](*arrays, out)
    assert (out == sum(10.0**k for k in range(12))).all()


def static(x, out):
    """Several shared arrays, of one and two axes and of different dtypes, at once."""
    first = cuda.shared.array(32, np.float32)
    second = cuda.shared.array((4, 8), np.int64)
    third = cuda.shared.array(32, np.uint8)
    t = cuda.threadIdx.x
    first[t], second[t // 8, t % 8], third[t] = x[t], -t, 255 - t
    cuda.syncthreads()
    other = 31 - t
    out[t, 0], out[t, 1], out[t, 2] = first[other], second[other // 8, other % 8], third[other]


def test_static_shared_arrays():
    x, out = np.random.default_rng(0).random(32).astype(np.float32), np.zeros((32, 3))
    emulate(static)[1, 32](x, out)
    assert out.tolist() == [[x[31 - t], t - 31, 255 - (31 - t)] for t in range(32)]


def dynamic(count, out):
    """Three views of the dynamic shared memory, one behind another."""
    doubles = cuda.shared.array(0, np.float64)[:count]
    integers = cuda.shared.array(0, np.int32)[2 * count:3 * count]
    small = cuda.shared.array(0, np.int8)[12 * count:13 * count]
    t = cuda.threadIdx.x
    doubles[t], integers[t], small[t] = t / 2, t * 1000, -t
    cuda.syncthreads()
    other = count - 1 - t
    out[t] = doubles[other] + integers[other] + small[other]


@pytest.mark.parametrize("count", [1, 33, 100])
def test_dynamic_shared_memory(count):
    out = np.zeros(count)
    emulate(dynamic)[1, count, 0, 13 * count](count, out)
    assert out.tolist() == [(count - 1 - t) * (0.5 + 1000 - 1) for t in range(count)]


def both(out):
    fixed = cuda.shared.array(8, np.int32)
    free = cuda.shared.array(0, np.int32)
    t = cuda.threadIdx.x
    fixed[t], free[t] = t, 10 * t
    cuda.syncthreads()
    out[t] = fixed[7 - t] + free[7 - t]


def test_static_beside_dynamic():
    out = np.zeros(8, np.int32)
    emulate(both)[1, 8, 0, 32](out)
    assert out.tolist() == [11 * (7 - t) for t in range(8)]


TABLE = np.array([[2.5, -1], [7, 3]], np.float32)
OTHER = np.arange(4, dtype=np.float32).reshape(2, 2)


def constants(which, out):
    t = cuda.threadIdx.x
    table = cuda.const.array_like(TABLE)
    out[t, 0] = table[t, 1 - t]
    chosen = table if which[t] else cuda.const.array_like(OTHER)
    out[t, 1] = chosen[1, t]


def test_constant_arrays():
    """One, and one of two by a choice that is made later."""
    out = np.zeros((2, 2), np.float32)
    emulate(constants)[1, 2](np.array([0, 1]), out)
    assert out.tolist() == [[-1, 2], [7, 3]]


def private(x, out):
    """Each thread's own array, some larger than a stack would be by itself."""
    own = cuda.local.array((2, 6000), np.int64)
    t = cuda.threadIdx.x
    for i in range(6000):
        own[i % 2, i] = x[i] * t
    cuda.syncthreads()
    total = 0
    for i in range(6000):
        total += own[i % 2, i]
    out[t] = total


def test_local_arrays():
    x, out = np.arange(6000), np.zeros(40, np.int64)
    emulate(private)[2, 40](x, out)
    assert out.tolist() == [x.sum() * t for t in range(40)]


@part
def twice(x, i):
    return doubled(x[i] + cuda.threadIdx.y)


@scalar
def doubled(value):
    return 2 * value


def test_functions_of_other_modules():
    """Parts, scalar functions and numba.cuda's own device functions."""
    module = numba_cuda()

    @module.jit(device=True)
    def negated(x, i):
        if x[i] < 0:
            return -x[i]
        return x[i] + module.laneid

    def outer(x, out):
        i = cuda.threadIdx.x
        out[i] = twice(x, i) + negated(x, i)
    x, out = np.arange(-4.0, 4), np.zeros(8)
    emulate(outer)[1, 8](x, out)
    assert out.tolist() == [2 * v + (-v if v < 0 else v + i) for i, v in enumerate(x)]


def test_what_numba_compiled():
    """A kernel of numba.cuda.jit, with its fastmath."""
    kernel = numba_cuda().jit(fastmath=True)(copy)
    x, y = np.arange(6.0).reshape(2, 3), np.zeros((2, 3))
    emulate(kernel)[1, 1](x, y)
    assert (y == x).all()


@pytest.mark.parametrize(("wrong", "kind"), [("text", "str"), (None, "NoneType"), ([1.0], "list"), ({}, "dict")])
def test_other_arguments(wrong, kind):
    with pytest.raises(NotImplementedError, match=f"^x: .*got {kind}$"):
        emulated_copy[1, 1](wrong, np.zeros((2, 2)))


def test_number_of_arguments():
    with pytest.raises(TypeError, match=r"copy: expected 2 arguments \(x, y\), got 1"):
        emulated_copy[1, 1](np.zeros((2, 2)))
