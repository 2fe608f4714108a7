from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import strategies as st

from sparsenet import optimizers
from sparsenet.activations import tanh
from sparsenet.blocks import BLOCK, EDGE
from sparsenet.compiling import numba_cuda
from sparsenet.kernels import tiles
from sparsenet.kernels.tiles import SCRATCH, Epilogue, multiply
from sparsenet.testing import assert_close
from sparsenet.testing.arrays import HostArray
from sparsenet.testing.emulator import Emulator
from sparsenet.testing.ptx import PtxDevice
from sparsenet.testing.strategies import dense
from sparsenet.vectors import PATHS, available
from tests.kernels.test_dense import three

GPU = ["emulator", pytest.param("cuda", marks=pytest.mark.cuda)]
FORMS = [(False, False), (True, False), (False, True)]


@pytest.fixture
def scratch(device):
    """Room for two of the CPU's cores; for a few partial sums on GPUs."""
    return np.zeros(2 * BLOCK if device.name == "cpu" else 20_000, np.float32)


def uniform(*shape):
    return np.random.default_rng(sum(shape)).uniform(-4, 4, shape).astype(np.float32)


def operands(rows, inner, columns, transpose_a, transpose_b):
    return (uniform(*(inner, rows) if transpose_a else (rows, inner)),
            uniform(*(columns, inner) if transpose_b else (inner, columns)))


def magnitude(a, b, *others):
    """Of the sums that tanh gets, whose slope is 1 at most."""
    return abs(a) @ abs(b) + sum(map(abs, others))


def panel(data, width):
    """Columns of a wider array: (first, end), its width. In fours or not, as the columns."""
    step = 4 if width % 4 == 0 else 1
    before, after = (step * data.draw(st.integers(0, 2)) for _ in range(2))
    return (before, before + width), before + width + after


def test_panels_of_wide_results(prove, agree, sizes, scratch):
    @prove
    def example(data):
        rows, inner, columns = three(data, sizes)
        transpose_a, transpose_b = data.draw(st.sampled_from(FORMS))
        x_columns, width = panel(data, columns)
        a = data.draw(dense(*(inner, rows) if transpose_a else (rows, inner)))
        b = data.draw(dense(*(columns, inner) if transpose_b else (inner, columns)))
        agree(multiply, Epilogue.store(), a, b, None, None, data.draw(dense(rows, width)), None, None, scratch,
              transpose_a=transpose_a, transpose_b=transpose_b, x_columns=x_columns, outputs="x", terms=1 + inner,
              scale="sum")


@pytest.mark.parametrize("accumulate", [False, True])
def test_activation(accumulate, prove, agree, sizes, scratch):
    @prove
    def example(data):
        rows, inner, columns = three(data, sizes)
        a, b, x = (data.draw(dense(*shape)) for shape in ((rows, inner), (inner, columns), (rows, columns)))
        bias = data.draw(dense(columns))
        agree(multiply, Epilogue.activate(tanh().value, accumulate), a, b, bias, None, x, None, None, scratch,
              outputs="x", terms=2 + inner, scale=magnitude(a, b, bias, x))


@pytest.mark.parametrize("accumulate", [False, True])
def test_delta(accumulate, prove, agree, sizes, scratch):
    @prove
    def example(data):
        rows, inner, columns = three(data, sizes)
        a, b, x = (data.draw(dense(*shape)) for shape in ((rows, inner), (columns, inner), (rows, columns)))
        y = data.draw(dense(rows, columns, low=-0.5, high=0.5))
        agree(multiply, Epilogue.delta(tanh().slope, accumulate), a, b, None, None, x, y, None, scratch,
              transpose_b=True, outputs="x", terms=1 + inner, scale="sum")


RULES = [optimizers.sgd(0.1), optimizers.momentum(0.1), optimizers.adam(0.1, l2=0.1, l1=0.1)]


@pytest.mark.parametrize("optimizer", RULES, ids=lambda optimizer: optimizer.name)
def test_update_of_a_panel_of_weights(optimizer, prove, agree, sizes, scratch):
    learn = Epilogue.update(optimizer.rule, optimizer.slots, optimizer.numbers, optimizer.l2, optimizer.l1)
    numbers = np.resize(np.array(optimizer.scalars(3), np.float32), 8)

    @prove
    def example(data):
        rows, inner, columns = three(data, sizes, most=20)
        x_columns, width = panel(data, columns)
        a, b, w = (data.draw(dense(*shape, low=0.25)) for shape in ((inner, rows), (inner, columns), (rows, width)))
        slots = [data.draw(dense(rows, width, low=0.25)) for _ in range(optimizer.slots)]
        agree(multiply, learn, a, b, None, numbers, w, *[*slots, None, None][:2], scratch, transpose_a=True,
              x_columns=x_columns, outputs=" ".join("xyz"[:1 + optimizer.slots]), terms=1 + inner)


def product(agree, shape, form, precision="float32"):
    rows, inner, columns = shape
    a, b = operands(rows, inner, columns, *form)
    agree(multiply, Epilogue.store(), a, b, None, None, uniform(rows, columns), None, None, None, transpose_a=form[0],
          transpose_b=form[1], precision=precision, outputs="x", terms=1 + inner, scale="sum")


WIDE, RAGGED = (132, 36, 260), (131, 17, 130)


@pytest.mark.parametrize("device", GPU, indirect=True)
@pytest.mark.parametrize("capability", [(7, 5), (9, 0)])
@pytest.mark.parametrize(("shape", "form"), [*((WIDE, form) for form in FORMS), (RAGGED, FORMS[0]), (RAGGED, FORMS[2])])
def test_large_tiles(shape, form, capability, device, agree, monkeypatch):
    monkeypatch.setattr(tiles, "_FILL", 2)
    if device.name == "emulator":
        monkeypatch.setattr(device, "capability", capability)
    product(agree, shape, form)


@pytest.mark.parametrize("device", GPU, indirect=True)
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
@pytest.mark.parametrize(("fill", "shape", "form"), [*((2, WIDE, form) for form in FORMS), (128, WIDE, FORMS[0]),
                                                     (128, RAGGED, FORMS[1])])
def test_tensor_cores(fill, shape, form, precision, device, agree, monkeypatch):
    """With operands rounded as they round them, sums are as good as any in float32."""
    if device.capability < (8, 0):
        pytest.skip("this GPU's tensor cores do not know these precisions")
    monkeypatch.setattr(tiles, "_FILL", fill)
    product(agree, shape, form, precision)


@pytest.mark.parametrize("device", GPU, indirect=True)
@pytest.mark.parametrize("inner", [1280, 1001])
def test_long_sums_are_split(inner, device, agree, scratch, monkeypatch):
    """And end in the epilogue once, with the same bits each time."""
    a, b = operands(33, inner, 68, False, True)
    x, bias = uniform(33, 68), uniform(68)
    launched, start = [], device._start

    def noted(kernel, *rest):
        launched.append(kernel.__name__)
        start(kernel, *rest)

    monkeypatch.setattr(device, "_start", noted)
    agree(multiply, Epilogue.activate(tanh().value, True), a, b, bias, None, x, None, None, scratch, transpose_b=True,
          outputs="x", terms=2 + inner, scale=magnitude(a, b.T, bias, x))
    assert launched == ["product", "reduce"]


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("path", [path.name for path in available()])
def test_vector_paths(path, agree, scratch, monkeypatch):
    """In several blocks, whose last have few rows and columns; bfloat16 where the path has it."""
    monkeypatch.setenv("SPARSENET_VECTORS", path)
    inner = EDGE + 3
    a, b = operands(2 * EDGE + 5, inner, EDGE + 41, True, True)
    x, bias = uniform(len(a.T), len(b)), uniform(len(b))
    precision = "bfloat16" if PATHS[path].bfloat16 else "float32"
    agree(multiply, Epilogue.activate(tanh().value, True), a, b, bias, None, x, None, None, scratch, transpose_a=True,
          transpose_b=True, precision=precision, outputs="x", terms=2 + inner, scale=magnitude(a.T, b.T, bias, x))


def test_splits_fit_into_any_scratch():
    device = Emulator()
    for rows, inner, columns in [(256, 26744, 128), (1, 10**6, 1), (128, 4096, 128), (300, 10**5, 200)]:
        for room in (0, rows * columns, 5 * rows * columns, SCRATCH):
            tile, splits = tiles._plan(device, rows, inner, columns, room, np.float32, "float32", True)
            assert splits == 1 or splits * rows * columns <= room
        blocks = -(-rows // tile.edge) * -(-columns // tile.edge) * splits
        assert tiles._FILL // 2 <= blocks <= tiles._FILL


@pytest.mark.parametrize("device", ["cpu", *GPU], indirect=True)
def test_double_precision(agree):
    a, b, x = (uniform(*shape).astype(np.float64) for shape in ((33, 21), (21, 68), (33, 68)))
    agree(multiply, Epilogue.store(True), a, b, None, None, x, None, None, np.zeros(BLOCK), outputs="x", terms=22,
          scale="sum", dtype=np.float64)


@pytest.mark.parametrize("device", GPU, indirect=True)
def test_double_precision_is_never_rounded(device):
    a, b = (device.put(uniform(*shape).astype(np.float64)) for shape in ((33, 21), (21, 68)))
    exact, rounded = device.zeros((33, 68), np.float64), device.zeros((33, 68), np.float64)
    for x, precision in ((exact, "float32"), (rounded, "tf32")):
        multiply(Epilogue.store(), a, b, None, None, x, None, None, None, precision=precision)
    assert device.fetch(exact).tobytes() == device.fetch(rounded).tobytes() != bytes(8 * 33 * 68)


@pytest.mark.emulator
def test_places_beyond_32_bits():
    """The first and the last columns of 257 rows of 2**23: only what is touched takes memory."""
    device = Emulator()
    try:
        wide = np.zeros((257, 2**23), np.float32)
    except MemoryError:
        pytest.skip("this machine has no addresses for 8.6 GB")
    a, b = uniform(6, 257), uniform(257, 8)
    columns = 2**23 - 8, 2**23
    wide[:, :8] = b
    x = device.zeros((6, 8))
    tile = tiles.Tile(device.tile, 4, "float32", True, np.float32)
    product = tile.product(False, False, False, True, True, *tiles._settlers(Epilogue.store(), False, False))
    lengths = map(np.int32, (6, 8, 257, 272))
    device.run_pair(product, product, (1, 1, 1), tile.threads,
                    (device.put(a).reshape(-1), np.int32(257), HostArray(wide, device).reshape(-1), np.int32(2**23),
                     *lengths, True, *[x.reshape(-1)] * 3, 0, np.int32(8), *[x.reshape(-1)] * 2))
    assert_close(x, a.astype(np.float64) @ b, terms=257, scale=abs(a) @ abs(b))
    multiply(Epilogue.store(), device.put(a), x, None, None, HostArray(wide, device), None, None, None,
             transpose_a=True, x_columns=columns)
    assert_close(wide[:, slice(*columns)], a.T.astype(np.float64) @ x.host, terms=6, scale=abs(a.T) @ abs(x.host))


@pytest.mark.compile
def test_large_tiles_leave_registers_for_two_blocks():
    try:
        numba_cuda()
    except ImportError as missing:
        pytest.skip(str(missing))
    device = PtxDevice((9, 0))
    a = device.zeros((1024, 1024))
    multiply(Epilogue.store(), a, a, None, None, a, None, None, None)
    assert ".maxntid 256" in device.compiled[0].ptx
    assert ".minnctapersm 2" in device.compiled[0].ptx


def test_arguments_are_checked(device):
    a, b, x = device.zeros((2, 3)), device.zeros((3, 5)), device.zeros((2, 5))
    store = Epilogue.store()
    with pytest.raises(ValueError, match="b: axis 'inner' is 2, but a says 3"):
        multiply(store, a, x, None, None, x, None, None, None)
    with pytest.raises(ValueError, match=r"x_columns: expected 0 <= first <= end <= 5, got \(2, 6\)"):
        multiply(store, a, b, None, None, x, None, None, None, x_columns=(2, 6))
    with pytest.raises(ValueError, match="y: axis 'rows' is 3, but x says 2"):
        multiply(store, a, b, None, None, x, b, None, None)
    with pytest.raises(ValueError, match="bias: axis 'columns' is 3, but x says 5"):
        multiply(store, a, b, device.zeros(3), None, x, None, None, None)
    with pytest.raises(ValueError, match="numbers: axis 'most' is 3, but room says 8"):
        multiply(store, a, b, None, device.zeros(3), x, None, None, None)
    long = SimpleNamespace(shape=(2, 2**24))
    with pytest.raises(ValueError, match="x: expected less than 16777216 columns, got 16777216"):
        multiply(store, a, b, None, None, long, None, None, None, x_columns=(0, 5))
    with pytest.raises(ValueError, match="a: expected 2 axes"):
        multiply(store, device.zeros(3), b, None, None, x, None, None, None)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_a_cpu_wants_scratch(device):
    a = device.zeros((3, 3))
    with pytest.raises(ValueError, match="scratch: expected an array of at least 65536 elements on a CPU"):
        multiply(Epilogue.store(), a, a, None, None, device.zeros((3, 3)), None, None, None)
