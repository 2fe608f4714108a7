"""Words of LLVM's language that vector code is made of: each appends instructions to a builder's block."""

from llvmlite import ir
from numba.core import cgutils
from numba.core.errors import TypingError


def check_flat(kind, dtype):
    """Raise TypingError where an argument's type is no flat array of that dtype."""
    if (getattr(kind, "ndim", None), getattr(kind, "layout", None), getattr(kind, "dtype", None)) != (1, "C", dtype):
        raise TypingError(f"expected a flat contiguous {dtype} array, got {kind}")


def address(context, builder, signature, values, place):
    """Of the element that an argument, an array, and the next one, a place in it, mean."""
    array = context.make_array(signature.args[place])(context, builder, values[place])
    return builder.gep(array.data, [values[place + 1]])


def at(builder, address, step, count):
    """So many steps of so many elements further on."""
    step, count = (ir.IntType(64)(value) if isinstance(value, int) else value for value in (step, count))
    return builder.gep(address, [builder.mul(step, count)])


def load(builder, address, kind):
    """A vector from any address that a number may have."""
    align = 2 if kind.element == ir.IntType(16) else 4
    return builder.load(builder.bitcast(address, kind.as_pointer()), align=align)


def store(builder, vector, address):
    """A vector to any address that a number may have."""
    builder.store(vector, builder.bitcast(address, vector.type.as_pointer()), align=4)


def fetch(builder, address):
    """Bring what lies there, and beside it, into the second cache."""
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.bitcast(address, byte), word(0), word(2), word(1)])  # to read, second cache, data


def widened(builder, halves):
    """A vector of float32 numbers, given their upper halves: bfloat16."""
    words = ir.VectorType(ir.IntType(32), halves.type.count)
    upper = builder.shl(builder.zext(halves, words), ir.Constant(words, [16] * words.count))
    return builder.bitcast(upper, ir.VectorType(ir.FloatType(), words.count))


def spread(builder, number, lanes):
    """A vector of a number everywhere."""
    nothing = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    return shuffled(builder, builder.insert_element(nothing, number, ir.IntType(32)(0)), nothing, [0] * lanes)


def shuffled(builder, first, second, places):
    """The elements at these places of the first vector, followed by the second."""
    kind = ir.VectorType(ir.IntType(32), len(places))
    return builder.shuffle_vector(first, second, ir.Constant(kind, places))


def fused(builder, x, y, total):
    """total + x y, rounded once where the CPU can."""
    kind = total.type
    name = f"llvm.fmuladd.v{kind.count}f32"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
    return builder.call(function, [x, y, total])


def dot_products(builder, x, y, total):
    """total + the dot products of pairs of bfloat16 numbers."""
    pairs = ir.VectorType(Bfloat16(), 2 * total.type.count)
    kind = ir.FunctionType(total.type, [total.type, pairs, pairs])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(function, [total, builder.bitcast(x, pairs), builder.bitcast(y, pairs)])


class Bfloat16(ir.Type):
    """LLVM's type, which llvmlite has no name for."""

    content = "bfloat"  # for kernel_cache

    def __str__(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, Bfloat16)

    def __hash__(self):
        return hash("bfloat")
