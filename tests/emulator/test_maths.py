"""math, cuda.libdevice and the functions of bits, against Python's own mathematics.

Each case is an expression as the kernel has it, and what it means in Python; many share a kernel, for compiling takes
longer than running.
"""

import math
import struct

import numpy as np
import pytest
import scipy.special

from sparsenet.device import cuda
from sparsenet.testing import assert_close, emulate

pytestmark = pytest.mark.emulator

UNARY = ("acos(x)", "acosh(x + one)", "asin(x)", "asinh(x)", "atan(x)", "atanh(x)", "ceil(x)", "cos(x)", "cosh(x)",
         "degrees(x)", "erf(x)", "erfc(x)", "exp(x)", "exp2(x)", "expm1(x)", "fabs(-x)", "floor(-x)", "gamma(x)",
         "lgamma(x)", "log(x)", "log10(x)", "log1p(x)", "log2(x)", "radians(x)", "sin(x)", "sinh(x)", "sqrt(x)",
         "tan(x)", "tanh(x)", "trunc(-x)")
CASES = [(f"math.{one}", f"math.{one}") for one in UNARY] + [
    (text, text) for text in (
        "math.atan2(-x, y)", "math.copysign(x, -y)", "math.fmod(y, x)", "math.hypot(x, y)", "math.pow(x, y)",
        "x ** y", "x ** 3", "math.ldexp(x, 5)", "math.frexp(x)[0]", "math.frexp(-y)[1]", "math.modf(y)[0]",
        "math.modf(-y)[1]", "abs(-x)", "min(x, y)", "max(x, y)", "round(y)", "y // x", "y % x")]
LIBDEVICE = [  # with F at the end of the name for float32
    ("cbrtF(y)", "math.cbrt(y)"), ("rcbrtF(y)", "1 / math.cbrt(y)"), ("rsqrtF(x)", "1 / math.sqrt(x)"),
    ("exp10F(x)", "10 ** x"), ("fdimF(x, y)", "max(x - y, 0)"), ("fmaF(x, y, x)", "x * y + x"),
    ("fmaxF(x, y)", "max(x, y)"), ("fminF(x, y)", "min(x, y)"), ("ilogbF(y)", "math.floor(math.log2(y))"),
    ("logbF(x)", "math.floor(math.log2(x))"), ("j0F(y)", "special.j0(y)"), ("j1F(y)", "special.j1(y)"),
    ("jnF(2, y)", "special.jv(2, y)"), ("y0F(y)", "special.y0(y)"), ("y1F(y)", "special.y1(y)"),
    ("ynF(2, y)", "special.yn(2, y)"), ("llrintF(y)", "round(y)"), ("llroundF(y)", "math.floor(y + 0.5)"),
    ("powiF(y, 3)", "y ** 3"), ("remainderF(y, x)", "math.remainder(y, x)"), ("rintF(y)", "round(y)"),
    ("roundF(-y)", "-math.floor(y + 0.5)"), ("nearbyintF(y)", "round(y)"), ("scalbnF(x, -3)", "x / 8"),
    ("tgammaF(y)", "math.gamma(y)"), ("sincosF(x)[0]", "math.sin(x)"), ("sincosF(x)[1]", "math.cos(x)"),
    ("modfF(y)[0]", "math.modf(y)[0]"), ("remquoF(y, x)[0]", "math.remainder(y, x)")]
FLOATS_ONLY = [
    ("saturatef(y)", "min(y, 1)"), ("saturatef(-y)", "0"), ("fast_expf(x)", "math.exp(x)"),
    ("fast_exp10f(x)", "10 ** x"), ("fast_logf(y)", "math.log(y)"), ("fast_log2f(y)", "math.log2(y)"),
    ("fast_log10f(y)", "math.log10(y)"), ("fast_sinf(x)", "math.sin(x)"), ("fast_cosf(x)", "math.cos(x)"),
    ("fast_tanf(x)", "math.tan(x)"), ("fast_powf(x, y)", "x ** y"), ("fast_fdividef(x, y)", "x / y"),
    ("fast_sincosf(x)[1]", "math.cos(x)"), ("fadd_rn(x, y)", "x + y"), ("fsub_rn(x, y)", "x - y"),
    ("fmul_rn(x, y)", "x * y"), ("fdiv_rn(x, y)", "x / y"), ("frcp_rn(y)", "1 / y"), ("fsqrt_rn(x)", "math.sqrt(x)"),
    ("fmaf_rn(x, y, x)", "x * y + x"), ("float2int_rn(y)", "round(y)"), ("float2int_rz(-y)", "-math.floor(y)"),
    ("float2int_rd(-y)", "math.floor(-y)"), ("float2int_ru(y)", "math.ceil(y)"), ("float2uint_rz(-y)", "0"),
    ("float2int_rz(x * 1e12)", "2**31 - 1"), ("float2ll_rn(y * 1e6)", "round(y * 1e6)"),
    ("float_as_int(x)", "struct.unpack('i', struct.pack('f', x))[0]"), ("signbitf(-x)", "1"),
    ("isnanf(x / (x - x) * 0)", "1"), ("isinff(x / (x - x))", "1"), ("finitef(x)", "1"), ("nextafterf(x, 2 * x)", "x")]
DOUBLES_ONLY = [
    ("dadd_rn(x, y)", "x + y"), ("dmul_rn(x, y)", "x * y"), ("ddiv_rn(x, y)", "x / y"), ("drcp_rn(y)", "1 / y"),
    ("dsqrt_rn(x)", "math.sqrt(x)"), ("fma_rn(x, y, x)", "x * y + x"), ("double2int_rz(y)", "math.floor(y)"),
    ("double2float_rn(x)", "np.float32(x)"), ("double2ll_ru(y * 1e12)", "math.ceil(y * 1e12)"),
    ("double_as_longlong(x) >> 32", "struct.unpack('q', struct.pack('d', x))[0] >> 32"),
    ("longlong_as_double(cuda.libdevice.double_as_longlong(x))", "x"), ("signbitd(-x)", "1"), ("isfinited(x)", "1"),
    ("isnand(x)", "0"), ("isinfd(x)", "0")]


def cases(kind):
    single = kind is np.float32
    own = FLOATS_ONLY if single else DOUBLES_ONLY
    shared = [(text.replace("F(", "f(" if single else "("), meaning) for text, meaning in LIBDEVICE]
    return CASES + [(f"cuda.libdevice.{text}", meaning) for text, meaning in shared + own]


def kernel_of(expressions, arguments, scope):
    """out[i, k] = expression k of the arguments' elements i."""
    names = arguments.split()
    lines = [f"def several({', '.join(f'all_{name}' for name in names)}, out):", "    i = cuda.grid(1)"]
    lines += [f"    {name} = all_{name}[i]" for name in names]
    lines += [f"    out[i, {k}] = {text}" for k, text in enumerate(expressions)]
    scope = {"cuda": cuda, "math": math, **scope}
    exec("\n".join(lines), scope)
    return scope["several"]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_functions_of_numbers(kind):
    texts = cases(kind)
    kernel = kernel_of([text for text, _ in texts], "x y", {"one": kind(1)})
    x = np.linspace(0.05, 0.95, 13).astype(kind)
    y = (np.random.default_rng(0).permutation(13) * 0.37 + 1.2).astype(kind)
    out = np.zeros((13, len(texts)))
    emulate(kernel)[1, 13](x, y, out)
    scope = {"math": math, "special": scipy.special, "struct": struct, "np": np, "one": 1.0}
    for k, (text, meaning) in enumerate(texts):
        expected = [float(eval(meaning, scope, {"x": float(a), "y": float(b)})) for a, b in zip(x, y, strict=True)]
        scale = np.abs(expected) + 30 * y  # of remainders, and of functions near their zeros
        assert_close(out[:, k], np.array(expected), terms=8, dtype=kind, scale=scale, name=text)


@pytest.mark.parametrize("fastmath", [False, True])
def test_accuracy(fastmath):
    """What the kernels use most, over all magnitudes: right to a few units in the last place."""
    texts = ["math.exp(x)", "math.exp(-x)", "math.sqrt(x)", "math.log(x)", "math.tanh(x)", "x / (x + one)", "one / x"]
    x = np.logspace(-30, 1.9, 500).astype(np.float32)
    out = np.zeros((500, len(texts)), np.float32)
    emulate(kernel_of(texts, "x", {"one": np.float32(1)}), fastmath=fastmath)[5, 100](x, out)
    for k, text in enumerate(texts):
        expected = [eval(text, {"math": math, "x": float(a), "one": 1.0}) for a in x]
        assert_close(out[:, k], np.array(expected), name=text)


def test_special_values():
    texts = ["math.exp(x)", "math.log(x)", "math.sqrt(x)", "math.tanh(x)", "math.isnan(x)", "math.isinf(x)",
             "math.isfinite(x)", "max(x, one)", "x / (x - x)"]
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, -1, 1e-45, 3e38], np.float32)
    out = np.zeros((x.size, len(texts)))
    emulate(kernel_of(texts, "x", {"one": np.float32(1)}))[1, x.size](x, out)
    with np.errstate(all="ignore"):
        wide = [np.exp(x), np.log(x), np.sqrt(x), np.tanh(x), np.isnan(x), np.isinf(x), np.isfinite(x), None,
                x / (x - x)]
    for k, expected in enumerate(wide):
        if expected is not None:
            assert_close(out[:, k], expected.astype(np.float64), terms=8, name=texts[k])
    assert out[2, 7] == np.inf


INTEGERS = [
    ("cuda.popc(a)", lambda a, b, bits: (a % 2**bits).bit_count()),
    ("cuda.clz(a)", lambda a, b, bits: bits - (a % 2**bits).bit_length()),
    ("cuda.ffs(a)", lambda a, b, bits: (a & -a).bit_length()),
    ("cuda.selp(a > b, a, b)", lambda a, b, bits: max(a, b)),
    ("min(a, b)", lambda a, b, bits: min(a, b)),
    ("a // b", lambda a, b, bits: a // b),
    ("a % b", lambda a, b, bits: a % b),
    ("abs(a)", lambda a, b, bits: abs(a)),
]
WORDS = [
    ("cuda.libdevice.mulhi(a, b)", lambda a, b: a * b >> 32), ("cuda.libdevice.hadd(a, b)", lambda a, b: a + b >> 1),
    ("cuda.libdevice.rhadd(a, b)", lambda a, b: a + b + 1 >> 1), ("cuda.libdevice.abs(a)", lambda a, b: abs(a)),
    ("cuda.libdevice.max(a, b)", max), ("cuda.libdevice.min(a, b)", min),
    ("cuda.libdevice.sad(a, b, 5)", lambda a, b: signed(abs(a - b) + 5)),
    ("cuda.libdevice.umin(a, b)", lambda a, b: signed(min(a % 2**32, b % 2**32))),
    ("cuda.libdevice.umulhi(a, b)", lambda a, b: signed((a % 2**32) * (b % 2**32) >> 32)),
    ("cuda.libdevice.brev(a)", lambda a, b: signed(int(f"{a % 2**32:032b}"[::-1], 2))),
    ("cuda.libdevice.popc(a)", lambda a, b: (a % 2**32).bit_count()),
    ("cuda.libdevice.clz(a)", lambda a, b: 32 - (a % 2**32).bit_length()),
    ("cuda.libdevice.ffs(a)", lambda a, b: (a & -a).bit_length()),
    ("cuda.libdevice.mul24(a % 1000, b % 1000)", lambda a, b: (a % 1000) * (b % 1000)),
    ("cuda.libdevice.int2float_rn(a)", lambda a, b: float(np.float32(a))),
    ("cuda.libdevice.float_as_int(cuda.libdevice.int_as_float(a % 1000))", lambda a, b: a % 1000),
]


def signed(word):
    return (word + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_functions_of_integers(kind):
    bits = 8 * np.dtype(kind).itemsize
    texts = INTEGERS + [(text, lambda a, b, bits, f=f: f(a, b)) for text, f in WORDS if bits == 32]
    top = np.iinfo(kind).max
    a = np.array([0, 1, -1, 5, -6, 1000, -1000, top // 3, top, -top], kind)
    b = np.array([3, -1, 7, -2, 4, -33, 2**20, 5, -top, 9], kind)
    out = np.zeros((a.size, len(texts)))
    emulate(kernel_of([text for text, _ in texts], "a b", {}))[1, a.size](a, b, out)
    for k, (text, meaning) in enumerate(texts):
        expected = [float(meaning(int(i), int(j), bits)) for i, j in zip(a, b, strict=True)]
        assert out[:, k].tolist() == expected, text


def test_bits_reversed_and_roots():
    texts = ["cuda.brev(a)", "cuda.cbrt(x)", "cuda.fma(x, x, x)"]
    a, x = np.array([1, 2, 2**31 + 5], np.uint32), np.array([0.5, 8, 3], np.float32)
    out = np.zeros((3, 3))
    emulate(kernel_of(texts, "a x", {}))[1, 3](a, x, out)
    assert out[:, 0].tolist() == [2**31, 2**30, 1 + (5 << 29)]
    assert_close(out[:, 1], np.cbrt(x.astype(float)))
    assert_close(out[:, 2], x.astype(float)**2 + x)


def test_a_function_that_is_missing_is_named():
    kernel = kernel_of(["cuda.libdevice.normcdfinvf(x)"], "x", {})
    with pytest.raises(NotImplementedError, match="libdevice's normcdfinvf"):
        emulate(kernel)[1, 1](np.ones(1, np.float32), np.ones((1, 1)))
