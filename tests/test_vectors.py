import re

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit, types

from sparsenet import kernel_cache, vectors
from sparsenet.testing import assert_close
from sparsenet.testing.strategies import dense
from sparsenet.threads import exclusive
from sparsenet.vector_loops import above, above_or_nan, add_both, prefetch
from sparsenet.vectors import PATHS, available, chosen, pack, product, told

each_path = pytest.mark.parametrize("path", available(), ids=lambda path: path.name)
with_pairs = pytest.mark.parametrize("path", [pytest.param(path, id=path.name, marks=pytest.mark.skipif(
    path not in available(), reason=f"this CPU lacks {', '.join(path.features)}"))
    for path in PATHS.values() if path.bfloat16])
examples = settings(max_examples=40, deadline=None)


def rounded(x):
    """The nearest bfloat16 as float32, ties to even, by arithmetic instead of bits: 8 binary digits of each number."""
    fraction, exponent = np.frexp(x.astype(np.float64))
    with np.errstate(over="ignore"):
        return np.ldexp(np.rint(256 * fraction) / 256, exponent).astype(np.float32)


def in_pairs(x):
    """Neighbours of the last axis, bfloat16 already, in uint32 words: the first in the low half. Zero fills up."""
    x = np.concatenate([x, np.zeros((*x.shape[:-1], x.shape[-1] % 2), np.float32)], axis=-1)
    halves = np.ascontiguousarray(x).view(np.uint32) >> np.uint32(16)
    return halves[..., ::2] | halves[..., 1::2] << np.uint32(16)


def in_panels(path, b):
    """b (columns, inner) as panels (panels, inner, path.columns), with NaN where there are no columns."""
    panels = -(-len(b) // path.columns)
    filled = np.full((panels * path.columns, b.shape[1]), np.float32(np.nan).view(b.dtype), b.dtype)
    filled[:len(b)] = b
    return np.ascontiguousarray(filled.reshape(panels, path.columns, -1).transpose(0, 2, 1))


def call(path, precision, a, b, c, a_turned, accumulate):
    """c (rows, columns) after the product, given a (rows, inner) and b (columns, inner), amid numbers to be left."""
    (rows, inner), columns = a.shape, len(b)
    a, panels = np.ascontiguousarray(a.T if a_turned else a), in_panels(path, b)
    a_row, a_step = (1, rows) if a_turned else (inner, 1)
    wide = len(panels) * path.columns
    around = np.full((rows + 2, wide + 3), 7, np.float32)
    around[1:-1, :columns] = c
    with exclusive:
        product(path, precision)(a.reshape(-1), 0, a_row, a_step, panels.reshape(-1), 0, inner * path.columns,
                                 path.columns, around.reshape(-1), wide + 3, wide + 3, rows, wide, inner, accumulate)
    assert (around[[0, -1]] == 7).all()
    assert (around[:, wide:] == 7).all()
    return around[1:-1, :columns]


@each_path
@given(st.data())
@examples
def test_product(path, data):
    rows, inner, columns = (data.draw(st.integers(least, 40)) for least in (0, 0, 1))
    a, b, c = (data.draw(dense(*shape)) for shape in ((rows, inner), (columns, inner), (rows, columns)))
    accumulate = data.draw(st.booleans())
    found = call(path, "float32", a, b, c, data.draw(st.booleans()), accumulate)
    exact, scale = a.astype(np.float64) @ b.T, abs(a) @ abs(b.T)
    assert_close(found, exact + accumulate * c, terms=1 + inner, scale=scale + accumulate * abs(c))


@with_pairs
@given(st.data())
@examples
def test_product_of_pairs(path, data):
    rows, inner, columns = (data.draw(st.integers(least, 40)) for least in (0, 0, 1))
    a, b, c = (data.draw(dense(*shape)) for shape in ((rows, inner), (columns, inner), (rows, columns)))
    a, b, accumulate = rounded(a), rounded(b), data.draw(st.booleans())
    found = call(path, "bfloat16", in_pairs(a), in_pairs(b), c, data.draw(st.booleans()), accumulate)
    exact, scale = a.astype(np.float64) @ b.T, abs(a) @ abs(b.T)
    assert_close(found, exact + accumulate * c, terms=1 + inner, scale=scale + accumulate * abs(c))


@each_path
def test_a_whose_numbers_lie_apart_and_ordinary_b(path):
    random = np.random.default_rng(0)
    rows, inner, columns = 33, 9, 2 * path.columns
    a, b = (random.uniform(-4, 4, shape).astype(np.float32)
            for shape in ((rows, 2, inner, 3), (inner + 1, columns + 5)))
    c = np.zeros((rows, columns), np.float32)
    with exclusive:
        product(path)(a.reshape(-1), 2 + 3 * inner, 6 * inner, 3, b.reshape(-1), columns + 5 + 4, path.columns,
                      columns + 5, c.reshape(-1), 0, columns, rows, columns, inner, False)
    a, b = a[:, 1, :, 2].astype(np.float64), b[1:, 4:-1]
    assert_close(c, a @ b, terms=inner, scale=abs(a) @ abs(b))


@pytest.mark.parametrize("path", [path for path in available() if path.name != "blas"], ids=lambda path: path.name)
def test_what_is_multiplied_together_changes_no_bit(path):
    random = np.random.default_rng(0)
    a, b = (random.uniform(-4, 4, shape).astype(np.float32) for shape in ((37, 50), (3 * path.columns, 50)))
    nothing = np.zeros((37, len(b)), np.float32)
    whole = call(path, "float32", a, b, nothing, False, False)
    for row in range(37):
        for turned in (False, True):
            alone = call(path, "float32", a[row:], b[path.columns:], nothing[row:, path.columns:], turned, False)
            assert alone.tobytes() == whole[row:, path.columns:].tobytes()


def test_precisions_are_checked():
    with pytest.raises(ValueError, match="precision: expected one of float32 for avx2, got 'bfloat16'"):
        product(PATHS["avx2"], "bfloat16")
    with pytest.raises(ValueError, match="precision: expected one of float32, bfloat16 for avx512_bf16, got 'tf32'"):
        product(PATHS["avx512_bf16"], "tf32")


# ---- which path


def test_best_path_is_chosen(monkeypatch):
    monkeypatch.delenv("SPARSENET_VECTORS", raising=False)
    assert chosen() == available()[0]
    monkeypatch.setattr(vectors, "known", lambda: frozenset({"avx2", "fma", "avx512f"}))
    assert chosen().name == "avx512"
    assert told() == "avx512: tiles of 14 x 32, 16 numbers a vector (this CPU has avx512f)"
    monkeypatch.setattr(vectors, "known", lambda: frozenset({"avx2", "fma"}))
    assert chosen().name == "avx2"
    monkeypatch.setattr(vectors, "known", lambda: frozenset({"neon"}))
    assert chosen().name == "neon"
    monkeypatch.setattr(vectors, "known", frozenset)
    assert told() == "blas: products by BLAS (this CPU has no better)"


def test_path_by_name(monkeypatch):
    monkeypatch.setattr(vectors, "known", lambda: frozenset({"avx2", "fma", "avx512f"}))
    for name in ("avx2", "generic", "blas"):
        monkeypatch.setenv("SPARSENET_VECTORS", name)
        assert chosen().name == name
        assert told().startswith(f"{name}: ")
        assert told().endswith("(SPARSENET_VECTORS says so)")
    monkeypatch.setenv("SPARSENET_VECTORS", "sse9")
    with pytest.raises(ValueError, match=r"SPARSENET_VECTORS: expected one of avx512_bf16, .*, generic, got 'sse9'"):
        chosen()
    monkeypatch.setenv("SPARSENET_VECTORS", "avx512_bf16")
    with pytest.raises(ValueError, match="'avx512_bf16' needs avx512bf16, which this CPU lacks; it has avx512, avx2, "):
        chosen()


def test_each_path_has_a_kernel_name_of_its_own():
    names = [kernel_cache.fingerprint(product(path, precision).py_func) for path in PATHS.values()
             for precision in vectors.PRECISIONS[:1 + path.bfloat16]]
    assert len(names) == 7
    assert len(set(names)) == len(names)
    taller = PATHS["avx2"]._replace(rows=8)
    assert kernel_cache.fingerprint(product(taller).py_func) not in names
    again = product.__wrapped__(PATHS["avx2"])
    assert kernel_cache.fingerprint(again.py_func) == kernel_cache.fingerprint(product(PATHS["avx2"]).py_func)


# ---- the machine code, of this CPU and of others


FLAT = types.float32[::1]
SIGNATURE = (FLAT, *[types.intp] * 3, FLAT, *[types.intp] * 3, FLAT, *[types.intp] * 5, types.boolean)


def assembly(path, triple, cpu):
    """A product's machine code for another CPU: that of the function alone, without what Numba puts around it."""
    compiled = njit(product(path).py_func)
    compiled.compile(SIGNATURE)
    name = compiled.overloads[SIGNATURE].fndesc.mangled_name
    functions = re.compile(r"^define [^\n]*?@\"?([\w.$%-]+)\"?\([^\n]*\n.*?^}$", re.DOTALL | re.MULTILINE)
    code = functions.sub(lambda match: match.group() if match.group(1) == name else "",
                         compiled.inspect_llvm(SIGNATURE))
    code = re.sub(r'^target (triple|datalayout) = ".*"$', "", code, flags=re.MULTILINE)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    module = llvm.parse_assembly(code)
    module.triple, module.data_layout = triple, str(machine.target_data)
    return machine.emit_assembly(module)


def loops(code):
    """The instructions of each innermost loop."""
    lines = [line.strip() for line in code.splitlines()]
    labels = {line.partition(":")[0]: n for n, line in enumerate(lines) if re.match(r"[.\w]+:", line)}
    jumps = [(labels[target], n) for n, line in enumerate(lines) if re.match(r"(b[. ]|j|cb|tb)", line)
             for target in [line.split()[-1]] if labels.get(target, n) < n]
    inner = [(first, last) for first, last in jumps
             if not any(first <= other and end <= last for other, end in jumps if (other, end) != (first, last))]
    return [lines[first:last + 1] for first, last in inner]


@pytest.mark.parametrize(("name", "triple", "cpu", "fused", "stack"), [
    ("neon", "aarch64-linux-gnu", "neoverse-n1", r"fmla(\tv\d+\.4s|\.4s)", r"\bq\d+.*\[sp"),
    ("neon", "arm64-apple-darwin", "apple-m1", r"fmla(\tv\d+\.4s|\.4s)", r"\bq\d+.*\[sp"),
    ("avx2", "x86_64-linux-gnu", "haswell", r"vfmadd\d+ps\t.*%ymm", r"%ymm\d+.*\(%rsp|\(%rsp.*%ymm"),
    ("avx512", "x86_64-linux-gnu", "skylake-avx512", r"vfmadd\d+ps\t.*%zmm", r"%zmm\d+.*\(%rsp|\(%rsp.*%zmm")])
def test_tiles_stay_in_registers(name, triple, cpu, fused, stack):
    """The loop of a full tile, unrolled or not, whose fused operations are so many that no other has a multiple."""
    path = PATHS[name]
    code = assembly(path, triple, cpu)
    counted = [(loop, sum(bool(re.search(fused, line)) for line in loop)) for loop in loops(code)]
    full = [loop for loop, fused in counted if fused and fused % (path.rows * path.vectors) == 0]
    assert len(full) == 1
    assert [line for line in full[0] if re.search(stack, line)] == []
    assert ("zmm" in code) == (path.lanes == 16)


# ---- numbers and loops


def numbers_to_round():
    """All kinds: 16 bits that stay, with lower halves around the tie; and NaNs whose payload is in the lower half."""
    upper = np.random.default_rng(0).integers(0, 2**16, 2000).astype(np.uint32)
    upper = np.concatenate([upper, [0, 0x8000, 0x7F7F, 0x7F80, 0xFF80, 0x7F81, 0x7FFF, 1, 0x3F80]]).astype(np.uint32)
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (upper[:, None] << np.uint32(16) | lower).reshape(-1).view(np.float32)


@njit(error_model="numpy")
def pack_all(low, high, words):
    for i in range(words.shape[0]):
        words[i] = pack(low[i], high[i])


def test_pack():
    low = numbers_to_round()
    high = np.roll(low, 1)
    words = np.zeros(low.shape, np.uint32)
    pack_all(low, high, words)
    for numbers, half in ((low, words << np.uint32(16)), (high, words & np.uint32(0xFFFF0000))):
        found = half.view(np.float32)
        normal = np.isfinite(numbers) & (abs(numbers) >= np.finfo(np.float32).tiny)
        assert np.array_equal(found[normal], rounded(numbers[normal]))
        tiny = np.isfinite(numbers) & ~normal
        assert np.array_equal(found[tiny], np.rint(numbers[tiny] / 2.0**-133) * 2.0**-133)
        assert np.array_equal(np.isnan(found), np.isnan(numbers))
        assert np.array_equal(found[np.isinf(numbers)], numbers[np.isinf(numbers)])


def test_loops_over_pack_are_vector_code():
    pack_all.compile((FLAT, FLAT, types.uint32[::1]))
    code = pack_all.inspect_asm(pack_all.signatures[-1])
    assert re.search(r"[xyz]mm|\.4s", code)
    assert any(re.search(r"v?p(or|tern|and)|(orr|and|bsl|bif)\tv|bit\.", line) for loop in loops(code) for line in loop)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("dtype", [np.float32, np.uint32])
def test_turn(lanes, dtype):
    """A square of an array becomes one of another, and nothing around it changes."""
    source, target = np.arange(20 * 23).reshape(20, 23).astype(dtype), np.zeros((21, 18), dtype)
    turn_square = vectors.turn(lanes)

    @njit
    def turned(source, target):
        turn_square(source, 2 * 23 + 3, 23, target, 18 + 2, 18)

    turned(source.reshape(-1), target.reshape(-1))
    expected = np.zeros_like(target)
    expected[1:1 + lanes, 2:2 + lanes] = source[2:2 + lanes, 3:3 + lanes].T
    assert np.array_equal(target, expected)


@given(st.data())
@examples
def test_above(data):
    z, thresholds = (data.draw(dense(64 + start)) for start in (5, 2))
    bits = int(above_at(z, 5, thresholds, 2))
    assert [bits >> i & 1 for i in range(64)] == list(z[5:] > thresholds[2:])


@njit
def above_at(z, start, thresholds, t_start):
    return above(z, start, thresholds, t_start)


@njit
def above_or_nan_at(z, start, thresholds, t_start):
    return above_or_nan(z, start, thresholds, t_start)


@njit
def add_both_at(g, g_start, h, h_start, dh, dh_start, w, w_start, d, length):
    prefetch(h, h_start)
    add_both(g, g_start, h, h_start, dh, dh_start, w, w_start, d, length)


@given(st.data())
@examples
def test_add_both(data):
    """Nothing beyond the length changes; prefetch, of what is read here, changes nothing."""
    length, starts = data.draw(st.integers(0, 70)), [data.draw(st.integers(0, 3)) for _ in range(4)]
    g, h, dh, w = (data.draw(dense(length + 5)) for _ in range(4))
    before, d = [g.copy(), dh.copy()], data.draw(dense(1))[0]
    add_both_at(*[value for pair in zip((g, h, dh, w), starts, strict=True) for value in pair], d, length)
    g_part, h_part, dh_part, w_part = (slice(start, start + length) for start in starts)
    for found, old, part, factor in ((g, before[0], g_part, h[h_part]), (dh, before[1], dh_part, w[w_part])):
        expected, scale = old.astype(np.float64), abs(old)
        expected[part] += float(d) * factor.astype(np.float64)
        scale[part] += abs(d * factor)
        assert_close(found, expected, terms=2, scale=scale)


def test_kinds_of_arrays_are_checked():
    with pytest.raises(Exception, match="expected a flat contiguous float32 array"):
        above_at(np.zeros(64), 0, np.zeros(64, np.float32), 0)


def test_nan_is_not_above():
    z = np.full(64, np.nan, np.float32)
    z[3] = np.inf
    z[5] = -1
    assert above_at(z, 0, np.zeros(64, np.float32), 0) == 1 << 3
    assert above_or_nan_at(z, 0, np.zeros(64, np.float32), 0) == 2**64 - 1 - (1 << 5)
