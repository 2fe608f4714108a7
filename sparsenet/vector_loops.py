"""Small loops in vector code that compilers do not see through, for any CPU: LLVM splits what is too wide for it."""

from llvmlite import ir
from numba import types
from numba.cpython.unsafe.numbers import trailing_zeros
from numba.extending import intrinsic

from sparsenet.compiling import scalar
from sparsenet.vector_code import address, check_flat, fetch, fused, load, spread, store

__all__ = ["above", "above_or_nan", "above_sum", "add_both", "prefetch", "trailing_zeros"]

_SOME = 16  # numbers of a vector


def _compare(nan):
    """The intrinsic that compares 64 numbers of flat float32 arrays; nan: what it says of NaN."""
    @intrinsic
    def compare(typing_context, z, start, thresholds, t_start):
        check_flat(z, types.float32)
        check_flat(thresholds, types.float32)

        def generate(context, builder, signature, values):
            numbers = ir.VectorType(ir.FloatType(), 64)
            left, right = (load(builder, address(context, builder, signature, values, place), numbers)
                           for place in (0, 2))
            larger = (builder.fcmp_unordered if nan else builder.fcmp_ordered)(">", left, right)
            return builder.bitcast(larger, ir.IntType(64))
        return types.uint64(z, types.intp, thresholds, types.intp), generate
    return compare


above = _compare(False)
"""above(z, start, thresholds, t_start): bit i of a uint64 says z[start + i] > thresholds[t_start + i], for i < 64."""

above_or_nan = _compare(True)
"""As above, but the bit of a NaN is set too."""


@intrinsic
def above_sum(typing_context, z, start, number, bounds, b_start):
    """As above, of z[start + i] + number."""
    check_flat(z, types.float32)
    check_flat(bounds, types.float32)

    def generate(context, builder, signature, values):
        numbers = ir.VectorType(ir.FloatType(), 64)
        left, right = (load(builder, address(context, builder, signature, values, place), numbers) for place in (0, 3))
        total = builder.fadd(left, spread(builder, values[2], 64))
        return builder.bitcast(builder.fcmp_ordered(">", total, right), ir.IntType(64))
    return types.uint64(z, types.intp, types.float32, bounds, types.intp), generate


@scalar
def add_both(g, g_start, h, h_start, dh, dh_start, w, w_start, d, length):
    """g += d h and dh += d w, so many numbers of each from their starts on: flat float32 arrays, none in another."""
    whole = length // _SOME * _SOME
    for i in range(0, whole, _SOME):
        _add_both_vectors(g, g_start + i, h, h_start + i, dh, dh_start + i, w, w_start + i, d)
    for i in range(whole, length):
        g[g_start + i] += d * h[h_start + i]
        dh[dh_start + i] += d * w[w_start + i]


@intrinsic
def _add_both_vectors(typing_context, g, g_start, h, h_start, dh, dh_start, w, w_start, d):
    for array in (g, h, dh, w):
        check_flat(array, types.float32)
    i = types.intp

    def generate(context, builder, signature, values):
        numbers = ir.VectorType(ir.FloatType(), _SOME)
        places = [address(context, builder, signature, values, place) for place in (0, 2, 4, 6)]
        g, h, dh, w = (load(builder, place, numbers) for place in places)
        factor = spread(builder, values[8], _SOME)
        store(builder, fused(builder, factor, h, g), places[0])
        store(builder, fused(builder, factor, w, dh), places[2])
        return context.get_dummy_value()
    return types.void(g, i, h, i, dh, i, w, i, types.float32), generate


@intrinsic
def prefetch(typing_context, array, place):
    """Bring array[place] of a flat array, and what lies beside it, into the cache for reading."""
    def generate(context, builder, signature, values):
        fetch(builder, address(context, builder, signature, values, 0))
        return context.get_dummy_value()
    return types.void(array, types.intp), generate
