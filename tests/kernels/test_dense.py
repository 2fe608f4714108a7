import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import strategies as st

from sparsenet import cublas
from sparsenet.activations import tanh
from sparsenet.blocks import EDGE
from sparsenet.kernels import dense as dense_kernels
from sparsenet.kernels.dense import column_sum, matmul, matmul_activate
from sparsenet.testing.strategies import dense
from sparsenet.vectors import available

each_form = pytest.mark.parametrize(("transpose_a", "transpose_b", "accumulate"),
                                    list(itertools.product([False, True], repeat=3)))


def compare(agree, a, b, c, transpose_a, transpose_b, accumulate):
    """c is garbage where the product is not added to it."""
    agree(matmul, a, b, c if accumulate else np.full_like(c, np.nan), transpose_a=transpose_a, transpose_b=transpose_b,
          accumulate=accumulate, terms=1 + a.shape[0 if transpose_a else 1], scale="sum")


def three(data, sizes, most=70):
    """Rows, inner, columns: all multiples of four, or none. Each mix is another kernel, which takes time to compile."""
    wide = data.draw(st.booleans())
    return [4 * -(-size // 4) if wide else size + (size > 0 and size % 4 == 0)
            for size in (min(most, data.draw(sizes(simulator=9))) for _ in range(3))]


@each_form
def test_matmul(transpose_a, transpose_b, accumulate, prove, agree, sizes):
    @prove
    def example(data):
        rows, inner, columns = three(data, sizes)
        a = data.draw(dense(inner, rows) if transpose_a else dense(rows, inner))
        b = data.draw(dense(columns, inner) if transpose_b else dense(inner, columns))
        compare(agree, a, b, data.draw(dense(rows, columns)), transpose_a, transpose_b, accumulate)


@each_form
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], indirect=True)
@pytest.mark.parametrize(("rows", "inner", "columns"), [(128, 3, 512), (129, 5, 513), (127, 1, 511), (257, 2, 1025)])
def test_matmul_at_borders_of_tiles(rows, inner, columns, transpose_a, transpose_b, accumulate, agree):
    random = np.random.default_rng(0)
    a, b, c = (random.uniform(-4, 4, shape).astype(np.float32)
               for shape in ((rows, inner), (inner, columns), (rows, columns)))
    a, b = np.ascontiguousarray(a.T if transpose_a else a), np.ascontiguousarray(b.T if transpose_b else b)
    compare(agree, a, b, c, transpose_a, transpose_b, accumulate)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], indirect=True)
def test_long_sums(agree):
    random = np.random.default_rng(0)
    a, b = (random.uniform(-4, 4, shape).astype(np.float32) for shape in ((37, 5000), (5000, 600)))
    compare(agree, a, b, np.zeros((37, 600), np.float32), False, False, False)


def test_matmul_activate(prove, agree, sizes):
    @prove
    def example(data):
        rows, inner, columns = three(data, sizes)
        a, b, c = (data.draw(dense(*shape)) for shape in ((rows, inner), (inner, columns), (rows, columns)))
        bias, turned = data.draw(dense(columns)), data.draw(st.booleans())
        scale = abs(a) @ abs(b) + abs(bias) + abs(c)  # tanh's slope is 1 at most
        agree(matmul_activate, tanh().value, a, b.T.copy() if turned else b, bias, c, transpose_b=turned,
              accumulate=data.draw(st.booleans()), terms=2 + inner, scale=scale)


LONG = 2 * EDGE + 5, 2 * EDGE + 3, 2 * EDGE + 41  # beyond the blocks of a CPU, and what they take of the inner axis


each_pair_of_layouts = pytest.mark.parametrize(("transpose_a", "transpose_b", "accumulate"), [
    (False, False, True), (False, True, False), (True, False, True), (True, True, False)])


@each_pair_of_layouts
@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("path", [path.name for path in available()])
def test_vector_paths(path, transpose_a, transpose_b, accumulate, agree, monkeypatch):
    monkeypatch.setenv("SPARSENET_VECTORS", path)
    random = np.random.default_rng(0)
    for rows, inner, columns in (LONG, (17, 33, 16), (2, 5, 3)):
        a, b, c = (random.uniform(-4, 4, shape).astype(np.float32)
                   for shape in ((rows, inner), (inner, columns), (rows, columns)))
        a, b = np.ascontiguousarray(a.T if transpose_a else a), np.ascontiguousarray(b.T if transpose_b else b)
        compare(agree, a, b, c, transpose_a, transpose_b, accumulate)


@pytest.fixture
def pairs(monkeypatch):
    """A path with dot products of bfloat16."""
    names = [path.name for path in available() if path.bfloat16]
    if not names:
        pytest.skip("this CPU has no dot products of bfloat16")
    monkeypatch.setenv("SPARSENET_VECTORS", names[0])


@pytest.mark.usefixtures("pairs")
@each_pair_of_layouts
@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_bfloat16_on_a_cpu(transpose_a, transpose_b, accumulate, prove, agree, sizes):
    """With operands rounded, sums are as good as any in float32."""
    def both(rows, inner, columns, draw):
        a = draw(inner, rows) if transpose_a else draw(rows, inner)
        b = draw(columns, inner) if transpose_b else draw(inner, columns)
        agree(matmul, a, b, draw(rows, columns), transpose_a=transpose_a, transpose_b=transpose_b,
              accumulate=accumulate, precision="bfloat16", terms=1 + inner, scale="sum")

    @prove
    def example(data):
        both(*three(data, sizes), lambda *shape: data.draw(dense(*shape)))

    random = np.random.default_rng(0)
    both(*LONG, lambda *shape: random.uniform(-4, 4, shape).astype(np.float32))


@pytest.mark.parametrize("device", ["cpu", pytest.param("simulator", marks=pytest.mark.simulator)], indirect=True)
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_precision_that_a_machine_lacks(precision, device, monkeypatch):
    """It changes no bit."""
    monkeypatch.setenv("SPARSENET_VECTORS", "generic")
    random = np.random.default_rng(0)
    a, b = (device.put(random.uniform(-4, 4, shape).astype(np.float32)) for shape in ((17, 7), (7, 19)))
    exact, rounded = device.zeros((17, 19)), device.zeros((17, 19))
    matmul(a, b, exact)
    matmul(a, b, rounded, precision=precision)
    assert device.fetch(exact).tobytes() == device.fetch(rounded).tobytes() != bytes(4 * 17 * 19)


@pytest.mark.parametrize("device", [pytest.param("simulator", marks=pytest.mark.simulator)], indirect=True)
@pytest.mark.parametrize("transpose", [False, True])
def test_matmul_in_full_tiles(transpose, full_blocks, agree):
    random = np.random.default_rng(0)
    shapes = ((18, 17), (19, 18), (17, 19)) if transpose else ((17, 18), (18, 19), (17, 19))
    a, b, c = (random.uniform(-4, 4, shape).astype(np.float32) for shape in shapes)
    compare(agree, a, b, c, transpose, transpose, transpose)


def test_column_sum(prove, agree, sizes):
    @prove
    def example(data):
        batch, units = data.draw(sizes()), data.draw(sizes())
        delta, gradient = data.draw(dense(batch, units)), data.draw(dense(units))
        agree(column_sum, delta, gradient, terms=batch + 1, scale="sum")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)], indirect=True)
@pytest.mark.parametrize("units", [255, 256, 257, 513])
def test_column_sum_at_borders_of_strips(units, agree):
    random = np.random.default_rng(0)
    delta, gradient = (random.uniform(-4, 4, shape).astype(np.float32) for shape in ((5, units), units))
    agree(column_sum, delta, gradient, terms=6, scale="sum")


def test_shapes_are_checked(device):
    a, b = device.zeros((2, 3)), device.zeros((4, 5))
    with pytest.raises(ValueError, match="b: axis 'inner' is 4, but a says 3"):
        matmul(a, b, device.zeros((2, 5)))
    with pytest.raises(ValueError, match="c: axis 'columns' is 3, but b says 4"):
        matmul(device.zeros((2, 5)), b, device.zeros((2, 3)), transpose_b=True)
    with pytest.raises(ValueError, match="gradient: axis 'units' is 2, but delta says 3"):
        column_sum(a, device.zeros(2))


def test_precision_is_checked(device):
    a = device.zeros((3, 3))
    with pytest.raises(ValueError, match="precision: expected one of float32, tf32, bfloat16, got 'fp8'"):
        matmul(a, a, device.zeros((3, 3)), precision="fp8")


class Pointer:
    """A device array as cuBLAS sees it."""

    dtype = np.dtype(np.float32)

    def __init__(self, name, *shape):
        self.device_ctypes_pointer, self.shape = name, shape


@pytest.fixture
def calls(monkeypatch):
    """What is asked of cuBLAS, whose arguments are numbers, but for those by reference."""
    calls = []

    def sgemm(handle, b, a, columns, rows, inner, alpha, *rest):
        calls.append((b, a, columns, rows, inner, alpha._obj.value,
                      *(getattr(value, "_obj", SimpleNamespace(value=value)).value for value in rest)))
        return 0

    library = SimpleNamespace(cublasCreate_v2=lambda handle: 0, cublasSgemm_v2=sgemm)
    monkeypatch.setattr(cublas, "_library", lambda: library)
    monkeypatch.setattr(dense_kernels, "device_of", lambda *arrays: SimpleNamespace(name="cuda"))
    cublas._handle.cache_clear()
    yield calls
    cublas._handle.cache_clear()


@each_form
def test_cublas_gets_transposes(transpose_a, transpose_b, accumulate, calls):
    """c (2, 3) = a (2, 5) b (5, 3); to cuBLAS, which counts along columns, c' (3, 2) = b' (3, 5) a' (5, 2)."""
    a, b = Pointer("a", *(5, 2) if transpose_a else (2, 5)), Pointer("b", *(3, 5) if transpose_b else (5, 3))
    matmul(a, b, Pointer("c", 2, 3), transpose_a=transpose_a, transpose_b=transpose_b, accumulate=accumulate,
           precision="cublas")
    assert calls == [(int(transpose_b), int(transpose_a), 3, 2, 5, 1.0, "b", 5 if transpose_b else 3, "a",
                      2 if transpose_a else 5, float(accumulate), "c", 3)]


@pytest.mark.usefixtures("calls")
def test_cublas_refuses(monkeypatch):
    library = SimpleNamespace(cublasCreate_v2=lambda handle: 1)
    monkeypatch.setattr(cublas, "_library", lambda: library)
    with pytest.raises(RuntimeError, match="cublasCreate_v2: status 1"):
        matmul(Pointer("a", 2, 2), Pointer("b", 2, 2), Pointer("c", 2, 2), precision="cublas")


def test_cublas_is_missing(monkeypatch):
    pathfinder = pytest.importorskip("cuda.pathfinder")

    def load(name):
        raise pathfinder.DynamicLibNotFoundError(name)

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", load)
    with pytest.raises(ImportError, match=r"cuBLAS cannot be loaded \(cublas\); `pip install 'sparsenet\[cublas\]'`"):
        cublas._library()


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_cublas_is_for_cuda(device):
    a = device.zeros((3, 3))
    with pytest.raises(ValueError, match="precision: 'cublas' is for float32 arrays on CUDA, got float32 on cpu"):
        matmul(a, a, device.zeros((3, 3)), precision="cublas")


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("turn", ["a", "b", "c"])
def test_views_are_refused(turn, device):
    """BLAS gets an address and a width: an array with gaps would be read as another matrix."""
    arrays = {name: np.zeros((4, 4), np.float32) for name in "abc"}
    arrays[turn] = np.zeros((4, 8), np.float32)[:, ::2]
    with pytest.raises(ValueError, match=f"{turn}: .*contiguous"):
        matmul(*arrays.values())


def test_inner_axis_of_no_length(device, agree):
    """A sum of no terms is 0, also where c held garbage."""
    compare(agree, np.zeros((3, 0), np.float32), np.zeros((0, 4), np.float32), np.zeros((3, 4), np.float32),
            False, False, False)
