"""House rules that a program can check (CONTRIBUTING.md says them in prose).

A rule is a function of a file's place and its syntax tree that yields (line, complaint). Every rule is also
shown a few lines that break it and a few that keep it.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, TESTS = ROOT / "sparsenet", ROOT / "tests"

# From the ground up: a module imports from lower floors, and from its own package. "" is the package itself,
# whose __init__ lists public names of everything below it.
FLOORS = (
    {"kernel_cache", "threads", "version", "pictures", "progress", "lowering", "cublas", "maths", "vector_code"},
    {"compiling"},
    {"driver", "vectors", "vector_loops"},
    {"bfloat16"},
    {"device", "shapes", "seeds", "instructions", "blocks", "row_sums"},
    {"kernels"},
    {"activations", "sampling"},
    {"parallel", "losses", "optimizers", "initializers", "metrics", "history"},
    {"layers", "data"},
    {"storage", "streaming", "sampled_head", "factored", "feeding"},
    {"heads"},
    {"passes", "model_files"},
    {"network"},
    {"recommendation", "importers", "planner"},
    {"training"},
    {"demo", "testing"},
    {"bench"},
    {""},
    {"cli"},
    {"__main__"},
)
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
LAZY = ("netCDF4", "mpi4py", "matplotlib", "numba.cuda", "cuda.bindings")  # slow to import, or not installed everywhere
ONLY_IN = {"mpi4py": ("parallel.py",), "netCDF4": ("data/files.py",), "numba.cuda": ("compiling.py",),
           "cuda.bindings": ("driver.py",)}
FOLDERS = {"sparsenet", "tests", "notebooks"}
MOST_LINES = 330

Complaints = Iterator[tuple[int, str]]


# ---- reading files


def python_files(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.py"))
    assert files, f"no Python files in {folder.relative_to(ROOT)}/"
    return files


def kernel_files() -> list[Path]:
    return [path for path in python_files(PACKAGE / "kernels") if path.name != "__init__.py"]


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run while the file is imported: no functions' bodies, nothing for type checkers only."""
    for child in ast.iter_child_nodes(node):
        for_types = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        if not for_types and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from statements(child)


def imports(place: PurePosixPath, nodes: Iterator[ast.AST]) -> Complaints:
    """(line, dotted name) of what is imported; `from a import b` and its relative forms give "a.b"."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ("sparsenet", *place.parent.parts)
            package = above[: len(above) + 1 - node.level] if node.level else ()
            module = [*package, node.module] if node.module else package
            yield from ((node.lineno, ".".join([*module, alias.name])) for alias in node.names)


def belongs(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def public(tree: ast.Module, *kinds: type) -> list:
    return [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def host_functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """A kernel file's public functions, without those that run inside kernels, cached makers of such, and what tells
    sizes from sizes."""
    functions = public(tree, ast.FunctionDef)
    return [f for f in functions if not {"scalar", "part", "cache"} & {ast.unparse(mark) for mark in f.decorator_list}
            and not of_sizes_alone(f)]


def of_sizes_alone(function: ast.FunctionDef) -> bool:
    annotations = [argument.annotation for argument in function.args.args]
    return bool(annotations) and all(one is not None and ast.unparse(one) in ("int", "str", "Device")
                                     for one in annotations)


# ---- the rules


def imports_point_down(place: PurePosixPath, tree: ast.Module) -> Complaints:
    own = place.parts[0].removesuffix(".py")
    if own == "__init__":
        return
    if own not in FLOOR:
        yield 1, f"{own} stands on no floor: give it one in {Path(__file__).name}"
        return
    for line, name in imports(place, ast.walk(tree)):
        root, target = [*name.split("."), ""][:2]
        target = target if target in FLOOR else ""
        if root == "sparsenet" and target != own and FLOOR[target] >= FLOOR[own]:
            yield line, f"{own} may not import {name}, which stands no lower"


def slow_imports_wait(place: PurePosixPath, tree: ast.Module) -> Complaints:
    for line, name in imports(place, statements(tree)):
        if any(belongs(name, package) for package in LAZY):
            yield line, f"import {name} inside the function that needs it"


def one_file_owns_a_package(place: PurePosixPath, tree: ast.Module) -> Complaints:
    for line, name in imports(place, ast.walk(tree)):
        for package, owners in ONLY_IN.items():
            if belongs(name, package) and str(place) not in owners:
                yield line, f"only {' and '.join(owners)} may import {package}"


def device_owns_numba(place: PurePosixPath, tree: ast.Module) -> Complaints:
    in_kernel = place.parts[0] == "kernels"
    for line, name in imports(place, ast.walk(tree)):
        owners = ("compiling.py", "device.py", "kernel_cache.py", "lowering.py", "threads.py", "vector_code.py",
                  "vectors.py", "vector_loops.py", "row_sums.py", "bfloat16.py", "maths.py")
        emulator = place.parts[:2] == ("testing", "emulator")
        allowed = str(place) in owners or emulator or (in_kernel and name in ("numba.prange", "numba.get_thread_id"))
        if name.split(".")[0] in ("numba", "numba_cuda") and not allowed:
            yield line, f"{name}: numba is imported by device.py; kernels may take prange, get_thread_id"


def no_hasattr(place: PurePosixPath, tree: ast.Module) -> Complaints:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "hasattr":
            yield node.lineno, "hasattr: say in the type what a thing has"


def no_numba_cache(place: PurePosixPath, tree: ast.Module) -> Complaints:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "cache" and ast.unparse(node.value) == "True":
            yield node.value.lineno, "cache=True goes stale: kernel_cache.py keeps kernels by content"


def public_things_are_documented(place: PurePosixPath, tree: ast.Module) -> Complaints:
    for node in public(tree, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        if not ast.get_docstring(node):
            yield node.lineno, f"{node.name} has no docstring"


def kernels_return_nothing(place: PurePosixPath, tree: ast.Module) -> Complaints:
    for function in host_functions(tree) if place.parts[0] == "kernels" else []:
        if function.returns is None or ast.unparse(function.returns) != "None":
            yield function.lineno, f"{function.name}: kernels write into their arguments, annotate -> None"


def tolerances_are_not_typed(place: PurePosixPath, tree: ast.Module) -> Complaints:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword | ast.arg) and node.arg in ("rtol", "atol"):
            yield node.lineno, f"{node.arg}: sparsenet.testing.checks knows the tolerance"


SOURCE_RULES = (
    imports_point_down,
    slow_imports_wait,
    one_file_owns_a_package,
    device_owns_numba,
    no_hasattr,
    no_numba_cache,
    public_things_are_documented,
    kernels_return_nothing,
)


def broken(rule, folder: Path) -> list[str]:
    found = []
    for path in python_files(folder):
        place = PurePosixPath(path.relative_to(folder).as_posix())
        found += [f"{path.relative_to(ROOT)}:{line}: {what}" for line, what in rule(place, parse(path))]
    return found


@pytest.mark.parametrize("rule", SOURCE_RULES)
def test_sources(rule):
    assert broken(rule, PACKAGE) == []


def test_tolerances_in_tests():
    assert broken(tolerances_are_not_typed, TESTS) == []


BREAKS = [
    (imports_point_down, "kernels/dense.py", "from sparsenet.network import Network"),
    (imports_point_down, "kernels/dense.py", "def f():\n    from ..losses import Loss"),
    (imports_point_down, "losses.py", "import sparsenet.optimizers"),
    (imports_point_down, "layers/dense.py", "from sparsenet import Network"),
    (imports_point_down, "network.py", "import sparsenet"),
    (imports_point_down, "network.py", "from . import testing"),
    (imports_point_down, "misplaced.py", "x = 1"),
    (slow_imports_wait, "training.py", "import matplotlib.pyplot as plt"),
    (slow_imports_wait, "parallel.py", "try:\n    from mpi4py import MPI\nexcept ImportError:\n    pass"),
    (slow_imports_wait, "device.py", "from numba import cuda"),
    (slow_imports_wait, "device.py", "class A:\n    import numba.cuda.simulator"),
    (one_file_owns_a_package, "network.py", "def f():\n    import netCDF4"),
    (one_file_owns_a_package, "cli.py", "def f():\n    from mpi4py import MPI"),
    (one_file_owns_a_package, "kernels/topk.py", "def f():\n    from numba import cuda"),
    (device_owns_numba, "kernels/topk.py", "from numba import njit"),
    (device_owns_numba, "training.py", "from numba import prange"),
    (device_owns_numba, "training.py", "import numba_cuda"),
    (no_hasattr, "network.py", "x = hasattr(y, 'z')"),
    (no_numba_cache, "kernels/topk.py", "@njit(parallel=True, cache=True)\ndef f(): pass"),
    (public_things_are_documented, "losses.py", "def f(): pass"),
    (public_things_are_documented, "losses.py", "class A:\n    x = 1"),
    (kernels_return_nothing, "kernels/dense.py", "def matmul(a, b, c): 'c = a b'"),
    (kernels_return_nothing, "kernels/dense.py", "def matmul(a, b) -> Array: 'a b'"),
    (tolerances_are_not_typed, "test_loss.py", "assert_allclose(a, b, rtol=1)"),
    (tolerances_are_not_typed, "test_loss.py", "def close(a, b, atol=1): pass"),
]
KEEPS = [
    (imports_point_down, "kernels/dense.py", "from sparsenet.device import launch\nfrom .rows import total"),
    (imports_point_down, "layers/dense.py", "from sparsenet.layers.base import Layer\nimport numpy.testing"),
    (imports_point_down, "cli.py", "from sparsenet import Network\nfrom sparsenet import demo"),
    (imports_point_down, "__init__.py", "from sparsenet.training import fit"),
    (slow_imports_wait, "parallel.py", "if TYPE_CHECKING:\n    from mpi4py import MPI\nimport tqdm, numba"),
    (slow_imports_wait, "device.py", "def f():\n    from numba import cuda"),
    (one_file_owns_a_package, "data/files.py", "def f():\n    import netCDF4"),
    (device_owns_numba, "device.py", "import numba"),
    (device_owns_numba, "kernels/topk.py", "from numba import prange"),
    (no_numba_cache, "device.py", "f(cache=False)"),
    (public_things_are_documented, "losses.py", "def _f(): pass\ndef g():\n    'What it does.'"),
    (kernels_return_nothing, "kernels/random.py", "@scalar\ndef uniform(key): 'In [0, 1).'\ndef _f(): pass"),
    (kernels_return_nothing, "losses.py", "def value(y): 'y'"),
    (kernels_return_nothing, "kernels/head.py", "def room(batch: int, precision: str) -> int: 'Its size.'"),
]


@pytest.mark.parametrize(("rule", "place", "source"), BREAKS)
def test_rule_finds(rule, place, source):
    assert list(rule(PurePosixPath(place), ast.parse(source)))


@pytest.mark.parametrize(("rule", "place", "source"), KEEPS)
def test_rule_lets_pass(rule, place, source):
    assert list(rule(PurePosixPath(place), ast.parse(source))) == []


# ---- rules about files


def test_files_are_short():
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in python_files(PACKAGE)}
    assert {str(path.relative_to(ROOT)): n for path, n in lines.items() if n > MOST_LINES} == {}


def test_nothing_is_put_off():
    later = re.compile(r"\b(TO" r"DO|FIX" r"ME)\b")
    files = python_files(PACKAGE) + python_files(TESTS)
    found = [path for path in files if later.search(path.read_text(encoding="utf-8"))]
    assert [str(path.relative_to(ROOT)) for path in found] == []


def test_every_kernel_file_has_its_tests():
    names = [path.name for path in kernel_files() if host_functions(parse(path))]
    assert names
    assert [name for name in names if not (TESTS / "kernels" / f"test_{name}").exists()] == []


def test_every_kernel_has_its_reference():
    kernels = {function.name for path in kernel_files() for function in host_functions(parse(path))}
    assert kernels
    references = {function.name for function in public(parse(TESTS / "reference.py"), ast.FunctionDef)}
    assert kernels - references == set()


def test_top_level_folders():
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    folders = {line.split("/")[0] for line in listed.stdout.splitlines() if "/" in line}
    assert folders >= {"sparsenet", "tests"}
    assert {name for name in folders if not name.startswith(".")} - FOLDERS == set()


def test_import_is_light():
    program = "import sys, sparsenet; print(sparsenet.__file__, *sys.modules, sep='\\n')"
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    file, *modules = run.stdout.splitlines()
    assert Path(file) == PACKAGE / "__init__.py"
    assert [name for name in modules if name in LAZY] == []
