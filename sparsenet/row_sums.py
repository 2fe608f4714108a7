"""Sums of listed rows of a matrix on a CPU, in vector registers. The matrix may be bfloat16, in uint16."""

from collections.abc import Callable
from functools import cache

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from sparsenet import bfloat16
from sparsenet.compiling import scalar
from sparsenet.vector_code import address, at, fetch, load, spread, store, widened
from sparsenet.vector_loops import prefetch
from sparsenet.vectors import chosen

_VECTORS = 8  # registers that hold a sum
_LINE = 16  # float32 numbers of a cache line


@cache
def add_rows(valued: bool, turned: bool, ahead: int) -> Callable:
    """The compiled function that adds rows, in their order, to be called in compiled code:

    add_rows(total, matrix, rows, start, end, last, data, positions)

    total += data[k] * matrix[rows[k]] for k = start, …, end - 1; without data[k] if not valued; data[positions[k]] if
    turned. Rows that far `ahead`, of entries before `last`, are fetched from memory meanwhile; 0: none are.
    """
    lanes = chosen().lanes
    wide, narrow = (_tile(vectors, lanes, valued, turned, ahead) for vectors in (_VECTORS, 1))

    @scalar
    def add_rows(total, matrix, rows, start, end, last, data, positions):
        units, u = total.shape[0], 0
        while u + _VECTORS * lanes <= units:
            wide(total, u, matrix, rows, start, end, last, data, positions)
            u += _VECTORS * lanes
        while u + lanes <= units:
            narrow(total, u, matrix, rows, start, end, last, data, positions)
            u += lanes
        if u < units:
            for k in range(start, end):
                row = matrix[rows[k]]
                for i in range(u, units):
                    number = bfloat16.widened(row[i])
                    total[i] += (data[positions[k]] if turned else data[k]) * number if valued else number
    return add_rows


@cache
def _tile(vectors, lanes, valued, turned, ahead):
    """The intrinsic for some neighbouring columns, from u on."""
    @intrinsic
    def tile(typing_context, total, u, matrix, rows, start, end, last, data, positions):
        i = types.intp
        signature = types.void(total, i, matrix, rows, i, i, i, data, positions)

        def generate(context, builder, signature, values):
            _, u, _, _, start, end, last, _, _ = values
            matrix, rows, data, positions = (context.make_array(signature.args[place])(context, builder, values[place])
                                             for place in (2, 3, 7, 8))
            width, one = cgutils.unpack_tuple(builder, matrix.shape)[1], u.type(1)
            first = address(context, builder, signature, values, 0)
            kind, kept = (ir.VectorType(data.type.pointee, lanes) for data in (first, matrix.data))

            def element(array, k):
                return builder.load(at(builder, array.data, one, k))

            def parts(k):
                row = builder.sext(element(rows, k), u.type)
                head = builder.gep(matrix.data, [builder.add(builder.mul(row, width), u)])
                return [at(builder, head, lanes, v) for v in range(vectors)]

            targets = [at(builder, first, lanes, v) for v in range(vectors)]
            sums = [cgutils.alloca_once(builder, kind) for _ in targets]  # LLVM makes registers of them
            for partial, target in zip(sums, targets, strict=True):
                builder.store(load(builder, target, kind), partial)
            with cgutils.for_range_slice(builder, start, end, one, intp=u.type) as (k, _):
                if ahead:
                    later = builder.add(k, one.type(ahead))
                    later = builder.select(builder.icmp_signed("<", later, last), later, k)
                    for part in parts(later):
                        fetch(builder, part)
                if valued:
                    place = builder.sext(element(positions, k), u.type) if turned else k
                    factor = spread(builder, element(data, place), lanes)
                for partial, part in zip(sums, parts(k), strict=True):
                    row = load(builder, part, kept)
                    row = widened(builder, row) if kept.element == ir.IntType(16) else row
                    term = builder.fmul(factor, row) if valued else row
                    builder.store(builder.fadd(builder.load(partial), term), partial)
            for partial, target in zip(sums, targets, strict=True):
                store(builder, builder.load(partial), target)
            return context.get_dummy_value()
        return signature, generate
    return tile


@scalar
def fetch_row(flat, start, length):
    """Bring numbers start to start + length - 1 of a flat array into the cache."""
    for i in range(0, length, _LINE):
        prefetch(flat, start + i)
