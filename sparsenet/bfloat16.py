"""bfloat16 numbers on a CPU, the upper halves of float32: two in a word, for products of vectors.py, and as uint16, in
arrays that keep them.

Products round to nearest, ties to even. What is kept is rounded at random, up with the probability that makes it right
on average: steps smaller than a number's last place are not lost, they are made now and then (Gupta, Agrawal,
Gopalakrishnan and Narayanan 2015, arXiv:1502.02551; of bfloat16 alone: Zamirai, Zhang, Aberger and De Sa 2020,
arXiv:2010.06192). The random bits are a pure function of a key and the number's place in its array.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sparsenet.compiling import scalar
from sparsenet.vector_code import Bfloat16, address, check_flat, load, store
from sparsenet.vectors import pack

SHORT = np.dtype(np.uint16)
"""dtype of arrays that keep bfloat16"""

_SOME = 32  # numbers at a time: LLVM splits vectors that are too wide for the CPU
_AT_ONCE = 2**18  # numbers of an array that are rounded at a time
_LARGE = np.uint16(0x7F80)  # exponent of infinities and NaN
_ZERO = np.float32(0)
_SIXTEEN, _UPPER = np.uint32(16), np.uint64(32)
# Steps and multipliers that mix bits: SplitMix64 (Steele, Lea and Flood 2014) and MurmurHash3's last lines (Appleby).
_ROW_STEP, _ROW_1, _ROW_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_STEP, _MIX_1, _MIX_2 = np.uint32(0x9E3779B9), np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_ONE, _BY_27, _BY_30, _BY_31 = np.uint64(1), np.uint64(27), np.uint64(30), np.uint64(31)
_BY_13 = np.uint32(13)


# ---- whole arrays


def stored(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Numbers, of which uint16 are bfloat16, as an array of that dtype keeps them; to nearest, ties to even."""
    if np.dtype(dtype) != SHORT or values.dtype == SHORT:
        return (values if np.dtype(dtype) == SHORT else unstored(values)).astype(dtype, copy=False)
    short = np.empty(values.shape, SHORT)
    rows = max(1, _AT_ONCE * len(values) // max(1, values.size))
    for i in range(0, len(values), rows):  # a whole array may leave no room for another one
        bits = np.array(values[i:i + rows], np.float32, order="C").view(np.uint32)
        with np.errstate(over="ignore"):
            nearest = bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))
        short[i:i + rows] = np.where(np.isnan(values[i:i + rows]), bits | np.uint32(0x400000), nearest) >> 16
    return short


def unstored(array: np.ndarray) -> np.ndarray:
    """The numbers that an array keeps: bfloat16 as float32, others as they are."""
    if array.dtype != SHORT:
        return array
    bits = array.astype(np.uint32, order="C")
    bits <<= 16
    return bits.view(np.float32)


def finite(array: np.ndarray) -> bool:
    """Whether there is no NaN or infinity among the numbers that an array keeps."""
    if array.dtype == SHORT:
        return bool(((array & _LARGE) != _LARGE).all())
    return bool(np.isfinite(array).all())


def key_for(key: Any, filler: Any, *arrays: Any) -> Any:
    """The key of a step's rounding if one of the arrays keeps bfloat16; else what fills its place among arguments.

    Raises ValueError where there is none.
    """
    if all(array.dtype != SHORT for array in arrays):
        return filler
    if key is None:
        raise ValueError("key: weights and slots in bfloat16 are rounded at random, and need one")
    return key


# ---- in kernels: numbers of arrays, of float32 or bfloat16


@scalar
def row_key(key, row):
    """Two words, for `random_bits`, of a row of an array; key: 64 bits."""
    x = key + (np.uint64(row) + _ONE) * _ROW_STEP
    x = (x ^ (x >> _BY_30)) * _ROW_1
    x = (x ^ (x >> _BY_27)) * _ROW_2
    x = x ^ (x >> _BY_31)
    return np.uint32(x), np.uint32(x >> _UPPER)


@scalar
def random_bits(low, high, column):
    """32 random bits of a column of a row that has this key; (high, low) gives others."""
    x = np.uint32(low + np.uint32(np.uint32(column) * _STEP))
    x = np.uint32(np.uint32(x ^ (x >> _SIXTEEN)) * _MIX_1)
    x = np.uint32(np.uint32(x ^ high ^ (x >> _BY_13)) * _MIX_2)
    return np.uint32(x ^ (x >> _SIXTEEN))


@intrinsic
def widened(typing_context, kept):
    """A number from an array: of bfloat16 as float32, others as they are."""
    if kept != types.uint16:
        return kept(kept), lambda context, builder, signature, values: values[0]

    def generate(context, builder, signature, values):
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(values[0], word), word(16)), ir.FloatType())
    return types.float32(kept), generate


@intrinsic
def shortened(typing_context, number, like, bits):
    """A number for an array that has `like` in it: of bfloat16 rounded at random, by the lower half of a uint32.

    Both neighbours in bfloat16 may come out, each the more often the nearer it is; what bfloat16 has, infinities and
    NaN included, stays.
    """
    if like != types.uint16:
        return number(number, like, bits), lambda context, builder, signature, values: values[0]

    def generate(context, builder, signature, values):
        (number, _, bits), word = values, ir.IntType(32)
        exact = builder.bitcast(number, word)
        moved = builder.add(exact, builder.and_(bits, word(0xFFFF)))
        quiet = builder.or_(exact, word(0x400000))
        chosen = builder.select(builder.fcmp_unordered("uno", number, number), quiet, moved)
        return builder.trunc(builder.lshr(chosen, word(16)), ir.IntType(16))
    return types.uint16(types.float32, like, types.uint32), generate


# ---- two in a word


@scalar
def pack_along(source, start, count, words, place, end):
    """words[place + k] = numbers 2 k and 2 k + 1 of the `count` that begin at source[start]; 0 up to k = end."""
    whole = count // _SOME * _SOME
    for k in range(0, whole, _SOME):
        _pack_along(source, start + k, words, place + k // 2)
    for k in range(whole // 2, count // 2):
        words[place + k] = pack(widened(source[start + 2 * k]), widened(source[start + 2 * k + 1]))
    if count % 2:
        words[place + count // 2] = pack(widened(source[start + count - 1]), _ZERO)
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
        words[place + k] = pack(widened(upper[upper_start + k]), widened(lower[lower_start + k]))
    for k in range(count, end):
        words[place + k] = 0


def _check_numbers(array):
    """Of a flat array of float32 or bfloat16."""
    check_flat(array, types.uint16 if getattr(array, "dtype", None) == types.uint16 else types.float32)


def _halves(context, builder, signature, values, place):
    """32 numbers of an array argument, as the bits of bfloat16."""
    there, halves = address(context, builder, signature, values, place), ir.VectorType(ir.IntType(16), _SOME)
    if signature.args[place].dtype == types.uint16:
        return load(builder, there, halves)
    numbers = load(builder, there, ir.VectorType(ir.FloatType(), _SOME))
    return builder.bitcast(builder.fptrunc(numbers, ir.VectorType(Bfloat16(), _SOME)), halves)


@intrinsic
def _pack_along(typing_context, source, start, words, place):
    _check_numbers(source)
    check_flat(words, types.uint32)

    def generate(context, builder, signature, values):
        store(builder, _halves(context, builder, signature, values, 0),
              address(context, builder, signature, values, 2))
        return context.get_dummy_value()
    return types.void(source, types.intp, words, types.intp), generate


@intrinsic
def _pack_across(typing_context, upper, upper_start, lower, lower_start, words, place):
    _check_numbers(upper)
    _check_numbers(lower)
    check_flat(words, types.uint32)
    i = types.intp

    def generate(context, builder, signature, values):
        wide = ir.VectorType(ir.IntType(32), _SOME)
        low, high = (builder.zext(_halves(context, builder, signature, values, place), wide) for place in (0, 2))
        both = builder.or_(low, builder.shl(high, ir.Constant(wide, [16] * _SOME)))
        store(builder, both, address(context, builder, signature, values, 4))
        return context.get_dummy_value()
    return types.void(upper, i, lower, i, words, i), generate
