"""Where arrays live, how kernels are launched there, and the small files that every kernel leans on."""

import hashlib
import time
import types
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
from numba import prange
from threadpoolctl import ThreadpoolController

import sparsenet.device
from sparsenet import driver, threads
from sparsenet.device import device as device_called
from sparsenet.device import device_of, launch
from sparsenet.seeds import stream_key
from sparsenet.shapes import check
from sparsenet.testing.ptx import PtxDevice

BATCH_UNITS = np.arange(6, dtype=np.float32).reshape(2, 3)

# ---- arrays


def test_arrays_come_back_as_they_went(device):
    for array in (BATCH_UNITS, BATCH_UNITS[:, 1], np.zeros((0, 4), np.int32), np.array([True, False])):
        found = device.fetch(device.put(array))
        assert (found.dtype, found.tolist()) == (array.dtype, array.tolist())
        assert found.flags.c_contiguous


def test_put_and_fetch_copy(device):
    host = BATCH_UNITS.copy()
    there = device.put(host)
    host[:] = -1
    first = device.fetch(there)
    first[:] = -2
    assert device.fetch(there).tolist() == BATCH_UNITS.tolist()


def test_write(device):
    there = device.zeros((2, 3))
    assert device.fetch(there).tolist() == np.zeros((2, 3)).tolist()
    device.write(there, BATCH_UNITS.astype(np.float64))
    assert device.fetch(there).tolist() == BATCH_UNITS.tolist()
    assert there.dtype == np.float32


def test_staging(device):
    """Written from and read into, beside the launches too."""
    out, back, none = device.staging((2, 3)), device.staging((2, 3)), device.staging(0, np.int32)
    assert (out.dtype, none.dtype, none.size) == (np.float32, np.int32, 0)
    assert not out.any()
    assert isinstance(out, np.ndarray)
    there = device.zeros((2, 3))
    out[:] = BATCH_UNITS
    with device.ahead():
        device.write(there, out)
    device.wait()
    device.read(there, back)
    device.wait()
    assert back.tolist() == BATCH_UNITS.tolist()


def test_zeros(device):
    there = device.zeros(3, np.int64)
    assert (there.shape, there.dtype) == ((3,), np.int64)


def test_an_array_knows_its_device(device):
    there = device.put(BATCH_UNITS)
    for part in (there, there[:1], there.reshape(-1)):
        assert device_of(part, 1, 2.0, np.float32(3), (4.0,)) is device


def test_unknown_device():
    with pytest.raises(ValueError, match=r"device: expected one of cpu, cuda, simulator, got 'tpu'"):
        device_called("tpu")


def test_no_gpu(monkeypatch):
    """Where there is none, "cuda" says so and the default is the CPU."""
    monkeypatch.setattr(sparsenet.device, "gpu_is_there", lambda: False)
    assert device_called.__wrapped__().name == "cpu"
    module = types.SimpleNamespace(is_available=lambda: False)
    monkeypatch.setattr(sparsenet.device, "numba_cuda", lambda: module)
    with pytest.raises(RuntimeError, match=r"device='cuda': no NVIDIA GPU with a driver"):
        device_called.__wrapped__("cuda")


def test_driver_without_numba_cuda(monkeypatch):
    """A GPU that cannot be used is worth a warning, and the CPU is taken."""
    def missing():
        raise ImportError("none")
    monkeypatch.setattr(driver, "numba_cuda", missing)
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: None)
    with pytest.warns(UserWarning, match=r"pip install 'sparsenet\[cuda\]'"):
        assert device_called.__wrapped__().name == "cpu"


@pytest.mark.simulator
def test_launch_on_mixed_devices():
    def body(i, x, y):
        y[i] = x[i]
    here, there = np.zeros(3, np.float32), device_called("simulator").zeros(3)
    with pytest.raises(TypeError, match="a kernel's arrays must live on one device, got cpu, simulator"):
        launch(body, (3,), here, there)
    with pytest.raises(TypeError, match="got no array"):
        launch(body, (3,), 1.0, 2.0)


# ---- launching


def test_launch_over_one_and_two_axes(device):
    """Longer than a grid of the simulator, so that its loops go round."""
    def along(i, x):
        x[i] += i

    def across(b, u, x):
        x[b, u] += 100 * b + u
    line, table = device.zeros(50, np.int64), device.zeros((5, 37), np.int64)
    launch(along, (50,), line)
    launch(across, (5, 37), table)
    assert device.fetch(line).tolist() == list(range(50))
    assert device.fetch(table).tolist() == [[100 * b + u for u in range(37)] for b in range(5)]


def test_empty_axes_launch_nothing(device):
    def body(b, u, x):
        x[0, 0] = 1
    x = device.zeros((1, 1))
    launch(body, (0, 3), x)
    launch(body, (3, 0), x)
    assert device.fetch(x) == 0


def test_second_version_for_the_cpu(device):
    def body(i, x):
        x[i] = 2

    def on_cpu(x):
        for i in prange(x.shape[0]):
            x[i] = 1
    x = device.zeros(3)
    launch(body, (3,), x, on_cpu=on_cpu)
    assert device.fetch(x).tolist() == [1 if device.name == "cpu" else 2] * 3


def test_cuda_exists_in_kernels_only():
    with pytest.raises(AttributeError, match=r"cuda\.grid exists inside a kernel only"):
        sparsenet.device.cuda.grid(1)


@pytest.mark.compile
def test_ptx_device():
    def body(b, u, y):
        y[b, u] = u
    device = PtxDevice((8, 0))
    launch(body, (2, 3), device.put(BATCH_UNITS))
    (compiled,) = device.compiled
    assert compiled.kernel == "body"
    assert compiled.arguments[:2] == (2, 3)
    assert ".target sm_80" in compiled.ptx


# ---- threads, seeds, shapes


def test_pool_is_the_users_if_they_say_so(monkeypatch):
    monkeypatch.setenv("NUMBA_THREADING_LAYER", "workqueue")
    monkeypatch.setattr(numba.config, "THREADING_LAYER_PRIORITY", ["omp"])
    threads.choose_pool()
    assert numba.config.THREADING_LAYER_PRIORITY == ["omp"]


def test_pool_prefers_tbb(monkeypatch):
    monkeypatch.delenv("NUMBA_THREADING_LAYER", raising=False)
    monkeypatch.delenv("NUMBA_THREADING_LAYER_PRIORITY", raising=False)
    monkeypatch.setattr(numba.config, "THREADING_LAYER_PRIORITY", ["omp"])
    threads.choose_pool()
    assert numba.config.THREADING_LAYER_PRIORITY[0] == "tbb"


def blas_threads():
    return [pool.num_threads for pool in ThreadpoolController().select(user_api="blas").lib_controllers]


def test_exclusive_limits_blas_and_puts_it_back():
    with threads.exclusive:
        pass  # loads the BLAS that Numba calls
    before = blas_threads()
    with threads.exclusive:
        with threads.exclusive:
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


def test_exclusive_keeps_other_threads_out_and_their_limits_apart():
    before, inside, most = blas_threads(), [], []

    def enter(_):
        with threads.exclusive:
            inside.append(None)
            most.append(len(inside))
            time.sleep(0.001)
            inside.pop()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, range(40)))
    assert set(most) == {1}
    assert blas_threads() == before


def test_stream_keys():
    """By the documented recipe: BLAKE2b of "seed/name/step", 8 bytes, little-endian."""
    text = hashlib.blake2b(b"7/hidden/3", digest_size=8).digest()
    assert stream_key(7, "hidden", 3) == int.from_bytes(text, "little")
    assert stream_key(np.int64(7), "hidden", 3) == stream_key(7, "hidden", 3)
    different = {int(stream_key(*arguments)) for arguments in
                 [(7, "hidden", 3), (8, "hidden", 3), (7, "output", 3), (7, "hidden", 4), (-7, "hidden", 3),
                  (2**70, "hidden", 3)]}
    assert len(different) == 6


@pytest.mark.parametrize("seed", [None, 1.0, "1", True])
def test_seeds_are_integers(seed):
    with pytest.raises(TypeError, match="seed: expected an integer, got"):
        stream_key(seed, "hidden")


def test_check_returns_sizes():
    sizes = check(y=(BATCH_UNITS, "batch units"), bias=(np.zeros(3), "units"))
    assert (sizes.batch, sizes.units) == (2, 3)


@pytest.mark.parametrize(("arrays", "message"), [
    ({"y": (BATCH_UNITS, "batch units"), "t": (np.zeros((2, 4)), "batch units")},
     "t: axis 'units' is 4, but y says 3"),
    ({"y": (BATCH_UNITS, "batch")}, r"y: expected 1 axes \(batch\), got shape \(2, 3\)"),
    ({"y": (BATCH_UNITS, "size size")}, "y: axis 'size' is 3, but y says 2"),
])
def test_check_names_what_disagrees(arrays, message):
    with pytest.raises(ValueError, match=message):
        check(**arrays)
