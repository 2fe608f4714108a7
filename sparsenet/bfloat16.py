"""bfloat16 numbers on a CPU, two in a word: what products of vectors.py are made of. Rounded to nearest, ties to even.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sparsenet.compiling import scalar
from sparsenet.vector_code import Bfloat16, address, check_flat, load, store
from sparsenet.vectors import pack

_SOME = 32  # numbers at a time: LLVM splits vectors that are too wide for the CPU
_ZERO = np.float32(0)


@scalar
def pack_along(source, start, count, words, place, end):
    """words[place + k] = numbers 2 k and 2 k + 1 of the `count` that begin at source[start]; 0 up to k = end."""
    whole = count // _SOME * _SOME
    for k in range(0, whole, _SOME):
        _pack_along(source, start + k, words, place + k // 2)
    for k in range(whole // 2, count // 2):
        words[place + k] = pack(source[start + 2 * k], source[start + 2 * k + 1])
    if count % 2:
        words[place + count // 2] = pack(source[start + count - 1], _ZERO)
    for k in range((count + 1) // 2, end):
        words[place + k] = 0


@scalar
def pack_across(upper, upper_start, lower, lower_start, count, words, place, end):
    """words[place + k] = numbers k of two rows, which begin at upper[upper_start] and lower[lower_start]; 0 from
    k = count to end."""
    whole = count // _SOME * _SOME
    for k in range(0, whole, _SOME):
        _pack_across(upper, upper_start + k, lower, lower_start + k, words, place + k)
    for k in range(whole, count):
        words[place + k] = pack(upper[upper_start + k], lower[lower_start + k])
    for k in range(count, end):
        words[place + k] = 0


def _rounded(context, builder, signature, values, place):
    """32 numbers of an array argument, as the bits of bfloat16."""
    numbers = load(builder, address(context, builder, signature, values, place), ir.VectorType(ir.FloatType(), _SOME))
    short = builder.fptrunc(numbers, ir.VectorType(Bfloat16(), _SOME))
    return builder.bitcast(short, ir.VectorType(ir.IntType(16), _SOME))


@intrinsic
def _pack_along(typing_context, source, start, words, place):
    check_flat(source, types.float32)
    check_flat(words, types.uint32)

    def generate(context, builder, signature, values):
        store(builder, _rounded(context, builder, signature, values, 0),
              address(context, builder, signature, values, 2))
        return context.get_dummy_value()
    return types.void(source, types.intp, words, types.intp), generate


@intrinsic
def _pack_across(typing_context, upper, upper_start, lower, lower_start, words, place):
    check_flat(upper, types.float32)
    check_flat(lower, types.float32)
    check_flat(words, types.uint32)
    i = types.intp

    def generate(context, builder, signature, values):
        wide = ir.VectorType(ir.IntType(32), _SOME)
        low, high = (builder.zext(_rounded(context, builder, signature, values, place), wide) for place in (0, 2))
        both = builder.or_(low, builder.shl(high, ir.Constant(wide, [16] * _SOME)))
        store(builder, both, address(context, builder, signature, values, 4))
        return context.get_dummy_value()
    return types.void(upper, i, lower, i, words, i), generate
