"""Vector code for CPUs: matrix products, and small loops that compilers do not see through.

A product is made of register tiles: a few rows of c, one panel wide, which stay in vector registers while the inner
axis passes by. That is LLVM code, written here as Numba intrinsics; how many numbers a vector has, and how many vectors
a tile, is the path, chosen by what the CPU knows (`chosen`, `told`). $SPARSENET_VECTORS names another.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from sparsenet.compiling import scalar
from sparsenet.threads import gemm
from sparsenet.vector_code import address, at, check_flat, dot_products, fused, load, shuffled, spread, store


class Vectors(NamedTuple):
    """One way to compute with vectors."""

    name: str
    lanes: int
    """float32 numbers of a vector"""
    rows: int
    """Rows of a register tile"""
    vectors: int
    """Vectors of each of its rows"""
    features: tuple[str, ...]
    """What the CPU must know, in LLVM's words"""
    bfloat16: bool = False
    """Whether there are dot products of bfloat16 numbers"""

    @property
    def columns(self) -> int:
        """Width of a panel: of a register tile."""
        return self.lanes * self.vectors


# From the best down. Accumulators, a row of b and a number of a fill the registers: 32, or AVX2's 16.
PATHS = {path.name: path for path in (
    Vectors("avx512_bf16", 16, 14, 2, ("avx512f", "avx512bf16"), bfloat16=True),
    Vectors("avx512", 16, 14, 2, ("avx512f",)),
    Vectors("avx2", 8, 6, 2, ("avx2", "fma")),
    Vectors("neon", 4, 6, 4, ("neon",)),
    Vectors("blas", 16, 1, 16, ()),
    Vectors("generic", 4, 6, 4, ()),
)}
"""The paths by name. "generic" is NEON's tile on any CPU, for tests; "blas" leaves products to BLAS."""

PRECISIONS = "float32", "bfloat16"
_BIT, _SIXTEEN = np.uint32(1), np.uint32(16)
_HALF, _QUIET, _HIGH = np.uint32(0x7FFF), np.uint32(0x400000), np.uint32(0xFFFF0000)  # parts of a float32's bits
_SINGLE, _NORMAL, _TRANSPOSED = ord("s"), ord("n"), ord("t")


# ---- which path


@cache
def known() -> frozenset[str]:
    """Features of the CPU that Numba compiles for, in LLVM's words."""
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    has = {word[1:] for word in features.split(",") if word.startswith("+")}
    return frozenset(has | ({"neon"} if triple.startswith(("aarch64", "arm64")) else set()))


def available() -> list[Vectors]:
    """The paths of this CPU, the best first."""
    return [path for path in PATHS.values() if known().issuperset(path.features)]


def chosen() -> Vectors:
    """The path named by $SPARSENET_VECTORS, else the best that this CPU has.

    Raises ValueError for a name that is unknown, or needs what the CPU lacks.
    """
    there, name = available(), os.environ.get("SPARSENET_VECTORS")
    if not name:
        return there[0]
    if name not in PATHS:
        raise ValueError(f"SPARSENET_VECTORS: expected one of {', '.join(PATHS)}, got {name!r}")
    if PATHS[name] not in there:
        lacking = [word for word in PATHS[name].features if word not in known()]
        raise ValueError(f"SPARSENET_VECTORS: {name!r} needs {', '.join(lacking)}, which this CPU lacks; it has "
                         f"{', '.join(path.name for path in there)}")
    return PATHS[name]


def told() -> str:
    """The chosen path, and why, in one line."""
    path = chosen()
    why = ("SPARSENET_VECTORS says so" if os.environ.get("SPARSENET_VECTORS") else
           f"this CPU has {', '.join(path.features)}" if path.features else "this CPU has no better")
    if path.name == "blas":
        return f"blas: products by BLAS ({why})"
    pairs = ", dot products of bfloat16" if path.bfloat16 else ""
    return f"{path.name}: tiles of {path.rows} x {path.columns}, {path.lanes} numbers a vector{pairs} ({why})"


# ---- products


@cache
def product(path: Vectors, precision: str = "float32") -> Callable:
    """The compiled function that multiplies flat arrays, to be called in compiled code:

    product(a, a_start, a_row, a_step, b, b_start, b_panel, b_step, c, c_start, c_row, rows, columns, inner, accumulate)

    c[c_start + i c_row + j] = sum_k a[a_start + i a_row + k a_step] b[b_start + (j // P) b_panel + k b_step + j % P]

    or += where accumulate, with P = path.columns, for i < rows, j < columns, k < inner. columns is a multiple of P:
    make room for so many in b and in each row of c; what the padding of b holds reaches the padding of c only. An
    ordinary b, row by row, has b_panel = P. Let no row of a or b begin 4 KiB after another, for the cache holds few
    such: add 16 numbers.

    float32   a, b, c are float32
    bfloat16  a and b are uint32, two numbers in each (see `pack`), the low half first; inner counts those; c is float32

    The same bits whatever rows and columns are multiplied together, but for "blas".

    Raises ValueError where the path has no such precision.
    """
    if precision not in PRECISIONS or (precision == "bfloat16" and not path.bfloat16):
        can = PRECISIONS[:1 + path.bfloat16]
        raise ValueError(f"precision: expected one of {', '.join(can)} for {path.name}, got {precision!r}")
    if path.name == "blas":
        return _product_by_blas(path.columns)
    most, width = path.rows, path.columns
    tall, low, single = (_tile(path, rows, precision == "bfloat16") for rows in (most, 4, 1))

    @scalar
    def product(a, a_start, a_row, a_step, b, b_start, b_panel, b_step, c, c_start, c_row, rows, columns, inner,
                accumulate):
        for panel in range(columns // width):
            b_place, c_place, i = b_start + panel * b_panel, c_start + panel * width, 0
            while i + most <= rows:
                tall(a, a_start + i * a_row, a_row, a_step, b, b_place, b_step, c, c_place + i * c_row, c_row, inner,
                     accumulate)
                i += most
            while i + 4 <= rows:
                low(a, a_start + i * a_row, a_row, a_step, b, b_place, b_step, c, c_place + i * c_row, c_row, inner,
                    accumulate)
                i += 4
            while i < rows:
                single(a, a_start + i * a_row, a_row, a_step, b, b_place, b_step, c, c_place + i * c_row, c_row, inner,
                       accumulate)
                i += 1
    return product


@cache
def _tile(path, height, bfloat16):
    """The intrinsic of one register tile of so many rows."""
    @intrinsic
    def tile(typing_context, a, a_start, a_row, a_step, b, b_start, b_step, c, c_start, c_row, inner, accumulate):
        operands = types.uint32 if bfloat16 else types.float32
        check_flat(a, operands)
        check_flat(b, operands)
        check_flat(c, types.float32)
        i = types.intp
        signature = types.void(a, i, i, i, b, i, i, c, i, i, i, types.boolean)

        def generate(context, builder, signature, values):
            builder.function.attributes.add("noinline")  # kernels that call products are compiled sooner
            builder.function.attributes.add("optsize")  # and nothing is won by unrolling
            a, _, a_row, a_step, b, _, b_step, c, _, c_row, inner, accumulate = values
            a, b, c = (address(context, builder, signature, values, place) for place in (0, 4, 7))
            element = ir.IntType(32) if bfloat16 else ir.FloatType()
            numbers, loaded = ir.VectorType(ir.FloatType(), path.lanes), ir.VectorType(element, path.lanes)
            multiply_add = dot_products if bfloat16 else fused
            heads = [at(builder, a, a_row, m) for m in range(height)]
            targets = [at(builder, at(builder, c, c_row, m), path.lanes, v)
                       for m in range(height) for v in range(path.vectors)]
            totals = [cgutils.alloca_once(builder, numbers) for _ in targets]  # LLVM makes registers of them
            with builder.if_else(accumulate) as (adds, begins):
                with adds:
                    for total, target in zip(totals, targets, strict=True):
                        builder.store(load(builder, target, numbers), total)
                with begins:
                    for total in totals:
                        builder.store(ir.Constant(numbers, [0.0] * path.lanes), total)
            with cgutils.for_range(builder, inner, intp=inner.type) as loop:
                row = at(builder, b, b_step, loop.index)
                row = [load(builder, at(builder, row, path.lanes, v), loaded) for v in range(path.vectors)]
                for n, total in enumerate(totals):
                    if n % path.vectors == 0:
                        head = at(builder, heads[n // path.vectors], a_step, loop.index)
                        number = spread(builder, builder.load(head), path.lanes)
                    builder.store(multiply_add(builder, number, row[n % path.vectors], builder.load(total)), total)
            for total, target in zip(totals, targets, strict=True):
                store(builder, builder.load(total), target)
            return context.get_dummy_value()
        return signature, generate
    return tile


@cache
def _product_by_blas(width):
    @scalar
    def product(a, a_start, a_row, a_step, b, b_start, b_panel, b_step, c, c_start, c_row, rows, columns, inner,
                accumulate):
        # BLAS counts along columns: to it, our arrays are their transposes, and c' = b' a'. What is no matrix to it, or
        # no transpose of one, are rows of a whose numbers lie apart.
        factors = np.ones(2, np.float32)
        factors[1] = accumulate
        along, down = a_step == 1 and a_row >= inner, a_row == 1 and a_step >= rows
        height = max(1, rows) if along or down else 1
        for panel in range(columns // width):
            for i in range(0, rows, height):
                gemm(_SINGLE, _NORMAL, _NORMAL if along else _TRANSPOSED, width, height, inner, factors.ctypes.data,
                     b.ctypes.data + 4 * (b_start + panel * b_panel), max(1, b_step),
                     a.ctypes.data + 4 * (a_start + i * a_row), max(1, a_row if along else a_step),
                     factors.ctypes.data + 4, c.ctypes.data + 4 * (c_start + i * c_row + panel * width), c_row)
    return product


# ---- numbers and loops


@scalar
def _rounded(x):
    """Bits of a float32 of which the upper half is the nearest bfloat16, ties to even; a NaN stays one."""
    bits = np.float32(x).view(np.uint32)
    return np.uint32(bits + _HALF + ((bits >> _SIXTEEN) & _BIT)) if x == x else np.uint32(bits | _QUIET)


@scalar
def pack(low, high):
    """Two float32 rounded to bfloat16 in one uint32, the first in its low half."""
    return np.uint32((_rounded(low) >> _SIXTEEN) | (_rounded(high) & _HIGH))


@cache
def turn(lanes: int) -> Callable:
    """The intrinsic that transposes a square of 32-bit numbers, of so many rows: a power of two.

    turn(source, start, row, target, t_start, t_row): target[t_start + k t_row + i] = source[start + i row + k]
    """
    @intrinsic
    def turn(typing_context, source, start, row, target, t_start, t_row):
        check_flat(source, target.dtype)
        check_flat(target, source.dtype)
        i = types.intp

        def generate(context, builder, signature, values):
            source, target = (address(context, builder, signature, values, place) for place in (0, 3))
            kind, indices = ir.VectorType(ir.IntType(32), lanes), range(lanes)
            rows = [load(builder, at(builder, source, values[2], i), kind) for i in indices]
            step = 1
            while step < lanes:  # squares of twice the size from four: two of them change places
                for i in indices:
                    if not i & step:
                        above, below = rows[i], rows[i + step]
                        rows[i] = shuffled(builder, above, below, [k + (lanes - step if k & step else 0)
                                                                   for k in indices])
                        rows[i + step] = shuffled(builder, above, below, [k + (lanes if k & step else step)
                                                                          for k in indices])
                step *= 2
            for i in indices:
                store(builder, rows[i], at(builder, target, values[5], i))
            return context.get_dummy_value()
        return types.void(source, i, i, target, i, i), generate
    return turn
