import math
from math import exp

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsenet import maths
from sparsenet.compiling import cpu_loops, scalar
from sparsenet.testing import assert_close

WIDE = 2.0**126
EDGES = np.array([0, -0.0, 1, -1, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 88.5, 88.73, -87.4, -103.5, -104.5, 0.625,
                  -0.625, np.inf, -np.inf, np.nan], np.float32)


def each(function):
    """The function at each element, in a compiled loop."""
    inlined = scalar(function)

    def body(i, x, y):
        y[i] = inlined(x[i])

    def applied(x):
        y = np.empty_like(x)
        cpu_loops(body, 1)(len(x), x, y)
        return y
    return applied


FAST = {"exp": each(lambda x: math.exp(x)), "expm1": each(lambda x: math.expm1(x)), "log": each(lambda x: math.log(x)),
        "log1p": each(lambda x: math.log1p(x)), "tanh": each(lambda x: math.tanh(x))}


def compare(name, x):
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(x.astype(np.float64))
        exact = np.where(np.abs(exact) > np.finfo(np.float32).max, np.sign(exact) * np.inf, exact)
    assert_close(FAST[name](x), exact, name=name)


@pytest.mark.parametrize("name", FAST)
def test_values(name):
    @settings(deadline=None)
    @given(st.lists(st.floats(-WIDE, WIDE, width=32) | st.floats(-90, 90, width=32), min_size=1, max_size=40))
    def example(x):
        compare(name, np.array(x, np.float32))
    example()


@pytest.mark.parametrize("name", FAST)
def test_edges(name):
    compare(name, EDGES)


@pytest.mark.parametrize("name", FAST)
def test_two_units_in_the_last_place(name):
    x = np.geomspace(1e-6, 80, 200_001).astype(np.float32)
    x = x if name.startswith("log") else np.concatenate([-x, x])
    exact = getattr(np, name)(x.astype(np.float64))
    assert (np.abs(FAST[name](x) - exact) <= 2 * np.spacing(np.abs(exact).astype(np.float32))).all()


def test_float64_keeps_its_digits():
    x = np.linspace(-3, 3, 101)
    assert_close(FAST["tanh"](x), np.tanh(x), dtype=np.float64)


def test_all_names_of_math_are_there():
    assert {name for name in vars(math) if not name.startswith("_")} <= set(vars(maths))


def test_a_function_imported_by_its_name():
    x = np.linspace(-3, 3, 1001).astype(np.float32)
    assert (each(lambda x: exp(x))(x) == FAST["exp"](x)).all()


def test_the_plain_function_is_maths_own():
    function = scalar(lambda x: math.exp(x)).py_func
    assert function(0.3) == math.exp(0.3)


@pytest.mark.skipif(numba.config.DISABLE_JIT or "avx2" not in numba.core.codegen.get_host_cpu_features(),
                    reason="looks for instructions of an x86 CPU with AVX2")
@pytest.mark.parametrize("name", FAST)
def test_a_loop_computes_vectors(name):
    function = scalar({"exp": lambda x: math.exp(x), "expm1": lambda x: math.expm1(x), "log": lambda x: math.log(x),
                       "log1p": lambda x: math.log1p(x), "tanh": lambda x: math.tanh(x)}[name])

    @numba.njit(error_model="numpy")
    def loop(x):
        for i in range(x.shape[0]):
            x[i] = function(x[i])
    loop(np.ones(4, np.float32))
    [code] = loop.inspect_asm().values()
    assert "vmulps" in code
    assert f"{name}f" not in code.replace("__", ""), "calls the C library"
