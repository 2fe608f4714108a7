"""Launches: what is refused, what is lacking, threads of Python, processes, and what is kept on disk."""

import os
import threading

import numpy as np
import pytest

import sparsenet as sn
from sparsenet.compiling import numba_cuda
from sparsenet.device import cuda
from sparsenet.instructions import to_tf32
from sparsenet.lowering import Instruction
from sparsenet.testing import emulate
from sparsenet.testing.emulator import OutOfBoundsError, program

pytestmark = pytest.mark.emulator


def count(out):
    cuda.atomic.add(out, 0, 1)


emulated_count = emulate(count)


@pytest.mark.parametrize(("grid", "block"), [(1, 1024), ((1, 65_535, 1), (1, 1, 64)), (300_000, 1), (1, (1, 1024)),
                                             ((2, 3, 4), (8, 8, 16))])
def test_sizes(grid, block):
    out = np.zeros(1, np.int64)
    emulated_count[grid, block](out)
    assert out[0] == np.prod(grid) * np.prod(block)


@pytest.mark.parametrize(("grid", "block", "message"), [
    (0, 1, "grid: expected one to three sizes from 1 to"), (1, 0, "block: expected one to three sizes from 1 to"),
    (-1, 1, "grid"),
    ((1, 65_536), 1, "grid"), ((1, 1, 65_536), 1, "grid"), (2**31, 1, "grid"), (1, 1025, "block"),
    (1, (1, 1, 65), "block"), (1, (32, 33), "1056 threads, but a GPU has room for 1024"), (1, (), "block"),
    ((1, 1, 1, 1), 1, "grid"), (1.5, 1, "grid")])
def test_sizes_that_no_gpu_takes(grid, block, message):
    out = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match=message):
        emulated_count[grid, block](out)
    assert out[0] == 0


@pytest.mark.parametrize("configuration", [1, (1,), (1, 2, 3, 4, 5)])
def test_configurations(configuration):
    with pytest.raises(ValueError, match=r"count: expected \[grid, block\]"):
        emulated_count[configuration]


def static(size):
    def kernel(out):
        stage = cuda.shared.array(size, np.float32)
        stage[cuda.threadIdx.x] = 1
        out[0] = stage[cuda.threadIdx.x]
    return emulate(kernel)


def test_static_shared_memory_has_a_limit():
    static(12_288)[1, 1](np.zeros(1))
    with pytest.raises(ValueError, match="49156 bytes of static shared arrays, but a GPU has room for 49152"):
        static(12_289)[1, 1](np.zeros(1))


def dynamic(size, out):
    stage = cuda.shared.array(0, np.uint8)
    stage[size - 1] = 7
    out[0] = stage[size - 1]


@pytest.mark.parametrize(("capability", "most"), [((7, 5), 64), ((8, 0), 163), ((8, 6), 99), ((9, 0), 227)])
def test_dynamic_shared_memory_has_a_limit(capability, most):
    out, kernel = np.zeros(1), emulate(dynamic, capability=capability)
    kernel[1, 1, 0, 1024 * most](1024 * most, out)
    assert out[0] == 7
    for size in (1024 * most + 1, -1):
        with pytest.raises(ValueError, match=f"{size} bytes of dynamic shared memory .* room for {1024 * most}"):
            kernel[1, 1, 0, size](1, out)


def far_too_much(out):
    fixed = cuda.shared.array(300_000, np.uint8)
    free = cuda.shared.array(0, np.uint8)
    free[0] = fixed[0] = 1
    out[0] = free[0] + fixed[0]


def test_static_memory_leaves_none():
    with pytest.raises(ValueError, match="300000 bytes of static shared arrays"):
        emulate(far_too_much)[1, 1, 0, 1](np.zeros(1))


def test_dynamic_memory_that_a_kernel_has_no_use_for():
    emulated_count[1, 1, 0, 1000](np.zeros(1, np.int64))


def printing(x):
    t = cuda.threadIdx.x
    print("thread", t, x[t], t == 1)


def test_print(capfd):
    emulate(printing)[1, 2](np.array([0.5, -2]))
    assert capfd.readouterr().out == "thread 0 0.500000 False\nthread 1 -2.000000 True\n"


def cooperative(out):
    cuda.cg.this_grid().sync()
    out[0] = 1


FACTORIAL = """
def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)
"""


def test_what_is_lacking_is_named():
    """Never by the end of the process."""
    with pytest.raises(NotImplementedError, match="cooperative: the emulator has no cooperative groups"):
        emulate(cooperative)[1, 1](np.zeros(1))
    unknown = Instruction("unknown", "r", "r", lambda x: x, "frobnicate.b32 $0, $1;")

    def strange(out):
        out[0] = unknown(out[0])
    with pytest.raises(NotImplementedError, match="no twin for the assembly 'frobnicate"):
        emulate(strange)[1, 1](np.zeros(1, np.uint32))
    scope: dict = {}
    exec(FACTORIAL, scope)
    itself = scope["factorial"] = numba_cuda().jit(device=True)(scope["factorial"])

    def recursive(out):
        out[0] = itself(out.size)
    with pytest.raises(NotImplementedError, match="recursive: the emulator has no functions that call themselves"):
        emulate(recursive)[1, 1](np.zeros(1))


def debugged(x, out):
    out[0] = x[0] / x[1]


def test_debug_kernels():
    out = np.zeros(1)
    emulate(numba_cuda().jit(debug=True, opt=False)(debugged))[1, 1](np.array([1.0, 4]), out)
    assert out[0] == 0.25


def shared_counter(wrong, out):
    total = cuda.shared.array(1, np.int64)
    t = cuda.threadIdx.x
    if t == 0:
        total[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(total, 0, t)
    cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x + wrong] = total[0]


def test_threads_of_python():
    """Launches of one kernel, and of others, from several threads at a time."""
    kernel, results = emulate(shared_counter), []

    def work():
        for _ in range(20):
            out = np.zeros(50, np.int64)
            kernel[50, 100](0, out)
            results.append((out == 4950).all())
    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(results) == 80
    assert all(results)


def test_threads_of_python_compile():
    """Kernels that no process has seen, compiled by several threads at a time."""
    found = {}

    def work(number):
        def kernel(out):
            out[0] = number
        out = np.zeros(1)
        emulate(kernel)[1, 1](out)
        found[number] = out[0]
    numbers = np.random.default_rng().random(4).tolist()
    threads = [threading.Thread(target=work, args=(number,)) for number in numbers]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == dict(zip(numbers, numbers, strict=True))


def test_an_error_on_any_core():
    """The first block that errs is told, and all is well again."""
    kernel, out = emulate(shared_counter), np.zeros(500, np.int64)
    for _ in range(3):
        with pytest.raises(OutOfBoundsError, match=r"block \(499, 0, 0\), thread .* writes element 500 of out"):
            kernel[500, 100](1, out)
        kernel[500, 100](0, out)
        assert (out == 4950).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_processes():
    """A child launches what its parent compiled."""
    kernel, out = emulate(shared_counter), np.zeros(50, np.int64)
    kernel[50, 100](0, out)
    child = os.fork()
    if child == 0:
        out = np.zeros(50, np.int64)
        kernel[50, 100](0, out)
        os._exit(0 if (out == 4950).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def rounding(x, out):
    out[0] = to_tf32(x[0])


def test_programs_are_kept_on_disk(tmp_path, monkeypatch):
    """The same kernel is not compiled again, in this process or another; a damaged file is replaced."""
    monkeypatch.setenv("SPARSENET_CACHE", str(tmp_path))
    made = []
    compile_ = program._compile
    monkeypatch.setattr(program, "_compile", lambda *given: made.append(1) or compile_(*given))
    for expected in (1, 1):
        program.compiled.cache_clear()
        out = np.zeros(1, np.uint32)
        emulate(rounding)[1, 1](np.array([1.5], np.float32), out)
        assert out.view(np.float32)[0] == 1.5
        assert len(made) == expected
    file, = tmp_path.glob("rounding-*.emulated")
    file.write_bytes(file.read_bytes()[:-1])
    program.compiled.cache_clear()
    emulate(rounding)[1, 1](np.array([1.5], np.float32), out)
    assert len(made) == 2


def test_an_emulator_is_a_device():
    device = sn.testing.emulator.Emulator(capability=(8, 0), races=False)
    array = device.put(np.arange(3.0))
    assert device.fetch(array).tolist() == [0, 1, 2]
    assert device.capability == (8, 0)


def test_it_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(program, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="the emulator needs numba-cuda; `pip install numba-cuda"):
        program.check_needs.__wrapped__()
