"""Compiled kernels on disk: named by content, never stale, never mixed, and never in the way."""

import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from sparsenet import kernel_cache
from sparsenet.device import launch, scalar
from sparsenet.kernel_cache import fingerprint, named, renamed

ROOT = Path(__file__).parents[1]

# ---- names of kernels


def doubles(x):
    return 2 * x


def trebles(x):
    return 3 * x


def with_default(k):
    def f(x, k=k, *, m=k):
        return x * k * m
    return f


def with_constant(k):
    return lambda x: x * k


def with_callee(callee):
    return lambda x: callee(x)


def with_callees(a, b, c):
    return lambda x: a(x) + 2 * b(x) + 4 * c(x)


def with_tuples(a, b):
    return lambda x: a[0] * x + b[0] + len(a)


DIFFERENT = {
    "code": (doubles, trebles),
    "closure constant": (with_constant(1), with_constant(2)),
    "type of a constant": (with_constant(np.float32(1)), with_constant(np.float64(1))),
    "sign of zero": (with_constant(0.0), with_constant(-0.0)),
    "array": (with_constant(np.array([1, 2])), with_constant(np.array([[1, 2]]))),
    "default": (with_default(1), with_default(2)),
    "callee": (with_callee(doubles), with_callee(trebles)),
    "compiled callee": (with_callee(njit(doubles)), with_callee(njit(trebles))),
    "callee's constant": (with_callee(with_constant(1)), with_callee(with_constant(2))),
    "callee's flags": (with_callee(njit(doubles)), with_callee(njit(fastmath=True)(doubles))),
    "order of callees": (with_callees(doubles, doubles, trebles), with_callees(doubles, trebles, trebles)),
    "borders of tuples": (with_tuples((1, 2), (3,)), with_tuples((1,), (2, 3))),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_content_tells_functions_apart(one, other):
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(one)
    assert named(one).__qualname__ != named(other).__qualname__


@pytest.mark.parametrize("make", [with_constant, with_default])
def test_same_content_has_the_same_name(make):
    assert fingerprint(make(3)) == fingerprint(make(3))
    assert fingerprint(make(3), "flags") != fingerprint(make(3))


def module_with(source, name="notebook"):
    module = types.ModuleType(name)
    exec(source, vars(module))
    return module


def test_a_global_function_that_changes():
    """As in a notebook, where a cell is run again."""
    notebook = module_with("def inner(x): return x + 1\ndef outer(x): return inner(x)")
    before = fingerprint(notebook.outer)
    exec("def inner(x): return x + 2", vars(notebook))
    assert fingerprint(notebook.outer) != before


def test_a_function_in_a_users_module_that_changes():
    notebook = module_with("def outer(x): return tools.shapes.inner(x)")
    notebook.tools = types.ModuleType("tools")
    notebook.tools.shapes = module_with("def inner(x): return x + 1", "tools.shapes")
    before = fingerprint(notebook.outer)
    exec("def inner(x): return x + 2", vars(notebook.tools.shapes))
    assert fingerprint(notebook.outer) != before


def test_functions_that_call_themselves():
    @scalar
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)
    assert factorial(5) == 120
    assert fingerprint(factorial.py_func)


def test_what_has_no_name_is_still_unique():
    """An object of unknown content: never kept on disk, and never taken for another."""
    one = with_constant(object())
    with pytest.raises(kernel_cache.UnnameableError):
        fingerprint(one)
    assert named(one).__qualname__ != named(one).__qualname__


def test_scalar_renames_once():
    compiled = njit(doubles)
    ours = scalar(compiled)
    assert ours is scalar(compiled)
    assert ours is scalar(ours)
    assert ours is renamed(ours)
    assert ours(4) == 8
    assert scalar(njit(fastmath=True)(doubles)).targetoptions["fastmath"] is True


def test_lambdas_and_functions_without_a_file(device):
    """What a notebook or an interactive session defines has no source file."""
    notebook = module_with("import math\ndef root(x): return math.sqrt(x)")
    for function, expected in ((lambda x: x * x, 16), (notebook.root, 2)):
        x = device.put(np.full(2, 4, np.float32))
        launch(applies(scalar(function)), (2,), x)
        assert device.fetch(x).tolist() == [expected] * 2


def applies(function):
    def body(i, x):
        x[i] = function(x[i])
    return body


# ---- kernels on disk, between processes

SETUP = """
import sys
import numpy as np
from numba import njit
from sparsenet import compiling, device
from sparsenet.device import scalar
from sparsenet.kernels.activation import _activate, activate

def constant(c, decorate=scalar):
    @decorate
    def value(z):
        for _ in range(3 + int(abs(z))):
            z = z * np.float32(0.5) + np.float32(c) if z > np.float32(2) else z + np.float32(c)
        return z
    return scalar(value)

def run(value):
    y = np.zeros((2, 2), np.float32)
    activate(value, np.zeros(2, np.float32), y)
    stats = compiling.cpu_loops(_activate(value), 2).stats
    print(float(y[0, 0]), sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def run_program(program, folder, **options):
    """What it prints, line by line, in a process of its own; no warnings, nothing on standard error."""
    environment = {**os.environ, "SPARSENET_CACHE": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-W", "error", "-c", SETUP + program], env=environment, text=True,
                          capture_output=True, check=False, **options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


COMPILED, LOADED = "0 1", "1 0"  # hits and misses


def test_the_next_process_loads_the_kernel(tmp_path):
    assert run_program("run(constant(1))", tmp_path) == [f"3.0 {COMPILED}"]
    assert run_program("run(constant(1))", tmp_path) == [f"3.0 {LOADED}"]
    assert run_program("run(constant(2))", tmp_path) == [f"4.0 {COMPILED}"]


@pytest.mark.parametrize("decorate", ["scalar", "njit"])
def test_kernels_of_different_processes_do_not_mix(decorate, tmp_path):
    """Two closures of one name: each keeps its own constant when a third process loads both."""
    one, two = (f"run(constant({c}, {decorate}))\n" for c in (1, 2))
    assert run_program(one, tmp_path) == [f"3.0 {COMPILED}"]
    assert run_program(two, tmp_path) == [f"4.0 {COMPILED}"]
    assert run_program(one + two, tmp_path) == [f"3.0 {LOADED}", f"4.0 {LOADED}"]
    assert run_program(two + one, tmp_path) == [f"4.0 {LOADED}", f"3.0 {LOADED}"]


@pytest.mark.parametrize("damage", [lambda content: content[:len(content) // 2], lambda content: b"",
                                    lambda content: bytes(len(content)),
                                    lambda content: content[:-99] + bytes([content[-99] ^ 1]) + content[-98:]],
                         ids=["half", "empty", "zeros", "one bit"])
def test_damaged_files_only_cost_a_compilation(damage, tmp_path):
    run_program("run(constant(1))", tmp_path)
    files = list(tmp_path.glob("*.kernel"))
    assert files
    for path in files:
        path.write_bytes(damage(path.read_bytes()))
    assert run_program("run(constant(1))", tmp_path) == [f"3.0 {COMPILED}"]
    assert run_program("run(constant(1))", tmp_path) == [f"3.0 {LOADED}"]  # and are mended


def test_missing_file(tmp_path):
    run_program("run(constant(1))", tmp_path)
    for path in tmp_path.glob("*.kernel"):
        path.unlink()
    assert run_program("run(constant(1))", tmp_path) == [f"3.0 {COMPILED}"]
    assert run_program("run(constant(1))", tmp_path) == [f"3.0 {LOADED}"]


def test_folder_that_cannot_be_made(tmp_path):
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    assert run_program("run(constant(1))", tmp_path / "file" / "folder") == [f"3.0 {COMPILED}"]


def test_no_room_on_the_disk(tmp_path):
    """The system stops this process from writing more than 8 KiB into a file: not enough for code."""
    resource = pytest.importorskip("resource", reason="only POSIX can limit a file's size")
    limits = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))}
    assert run_program("run(constant(1))", tmp_path, **limits) == [f"3.0 {COMPILED}"]
    assert not list(tmp_path.glob("*.kernel*"))
    assert run_program("run(constant(1))", tmp_path) == [f"3.0 {COMPILED}"]
    assert run_program("run(constant(1))", tmp_path) == [f"3.0 {LOADED}"]


def test_folder_without_the_right_to_write(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    assert run_program("run(constant(1))", tmp_path) == [f"3.0 {COMPILED}"]


def test_two_processes_at_once(tmp_path):
    environment = {**os.environ, "SPARSENET_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    both = [subprocess.Popen([sys.executable, "-c", SETUP + "run(constant(1))"], env=environment, text=True,
                             stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate()[0].split()[0] for process in both] == ["3.0", "3.0"]
    assert run_program("run(constant(1))", tmp_path) == [f"3.0 {LOADED}"]


# ---- without numba-cuda

BLOCK = """
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "numba_cuda" or name.startswith("numba.cuda"):
            raise ModuleNotFoundError(f"no {name}")

sys.meta_path.insert(0, Missing())
assert "numba.cuda" not in sys.modules
"""


def test_the_cpu_needs_no_numba_cuda(tmp_path):
    program = BLOCK + """
import sparsenet
run(constant(1))
print(device.device().name)
try:
    device.device("simulator")
except ImportError as error:
    print("pip install" in str(error))
"""
    assert run_program(program, tmp_path) == [f"3.0 {COMPILED}", "cpu", "True"]
