"""Products of dense matrices with what becomes of each element: it is stored, added, activated, an optimizer's step.

On CUDA each block of threads makes one tile of the product, see slabs.py; on a CPU, each core one, see blocks.py.
"""

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numba import prange

from sparsenet.blocks import BLOCK, block, edge
from sparsenet.device import Array, Device, cuda, device_of, launch, part, run_on_host, scalar
from sparsenet.instructions import load4, store4
from sparsenet.kernels.slabs import Tile
from sparsenet.kernels.update import ROOM, regularized
from sparsenet.shapes import begin_at_16, check, check_memory, in_fours
from sparsenet.threads import exclusive

PRECISIONS = "float32", "tf32", "bfloat16"
SCRATCH = 128 * 128 * 128
"""Elements of a scratch array that suffices for products of any shapes."""

_ZERO = np.float32(0)
_NOTHING = _ZERO, _ZERO, _ZERO, _ZERO
_FILL = 128  # blocks, one for each multiprocessor of a large GPU
_MOST_COLUMNS = 2**31 // 128  # places within a tile are counted in 32 bits
_LEAST = 128  # elements of the inner axis for one of its parts


class Epilogue(NamedTuple):
    """What becomes of the elements of a product: x, y, z = function(total, bias, x, y, z, numbers) at each place.

    Yours is Epilogue(scalar(function), reads, writes), made once: kernels are compiled for each object.
    """

    function: Callable
    """Scalar function: (total, bias of the column, x, y, z, tuple of 8 numbers) -> (x, y, z); what is not there is 0"""
    reads: str = ""
    """Letters of the arrays that it wants to know"""
    writes: str = "x"
    """Letters of the arrays that it changes"""

    @staticmethod
    @cache
    def store(accumulate: bool = False) -> "Epilogue":
        """x = total; += where accumulate."""
        if accumulate:
            return Epilogue(scalar(lambda total, bias, x, y, z, numbers: (x + total, y, z)), "x")
        return Epilogue(scalar(lambda total, bias, x, y, z, numbers: (total, y, z)))

    @staticmethod
    @cache
    def activate(value: Callable, accumulate: bool = False) -> "Epilogue":
        """x = value(total + bias), or value(x + total + bias)."""
        if accumulate:
            return Epilogue(scalar(lambda total, bias, x, y, z, numbers: (value(x + total + bias), y, z)), "x")
        return Epilogue(scalar(lambda total, bias, x, y, z, numbers: (value(total + bias), y, z)))

    @staticmethod
    @cache
    def delta(slope: Callable, accumulate: bool = False) -> "Epilogue":
        """x = total * slope(y), or (x + total) * slope(y): dL/dz of a layer whose activations are y."""
        if accumulate:
            return Epilogue(scalar(lambda total, bias, x, y, z, numbers: ((x + total) * slope(y), y, z)), "xy")
        return Epilogue(scalar(lambda total, bias, x, y, z, numbers: (total * slope(y), y, z)), "y")

    @staticmethod
    @cache
    def update(rule: Callable, slots: int, numbers: int, l2: float, l1: float, dtype: type = np.float32) -> "Epilogue":
        """An optimizer's step on the weights x whose gradient is the product; y and z are the first and second slot.

        x, y, z = rule(x, total + l2 x + l1 sign(x), y, z, the first so many numbers), as in update.update; for arrays
        of that dtype.
        """
        decay, pull, used = dtype(l2), dtype(l1), numbers

        @scalar
        def step(total, bias, x, y, z, numbers):
            return rule(x, regularized(total, x, decay, pull), y, z, numbers[:used])
        return Epilogue(step, "xyz"[:1 + slots], "xyz"[:1 + slots])


def multiply(epilogue: Epilogue, a: Array, b: Array, bias: Array | None, numbers: Array | None, x: Array,
             y: Array | None, z: Array | None, scratch: Array | None, *, transpose_a: bool = False,
             transpose_b: bool = False, x_columns: tuple[int, int] | None = None, precision: str = "float32") -> None:
    """x, y, z = epilogue.function(total, bias, x, y, z, numbers) for each element total of op(a) @ op(b).

    op is the transpose where asked for. Of wider x, y and z, columns x_columns = (first, end) take part.

    a        (rows, inner) or its transpose float32      in
    b        (inner, columns) or its transpose float32   in
    bias     (columns) float32, or None                  in
    numbers  (8) float32, or None                        in     numbers of the epilogue for this launch
    x        (rows, columns or more) float32             inout  as the epilogue says
    y, z     as x, all in one shape, or None             inout
    scratch  (most) float32, or None                     -      for partial sums where the inner axis is long and the
                                                                product small: SCRATCH is always enough; on a CPU,
                                                                BLOCK for each core

    precision: "float32" is float32 throughout. "tf32" and "bfloat16" round the operands, to 10 and 7 bits of fraction,
    and sum in float32: on the tensor cores of GPUs of compute capability 8.0 or more, "bfloat16" also on CPUs with such
    dot products. Elsewhere, and for float64 arrays, they are "float32". The same bits each time: how sums are split
    depends on shapes and the scratch's size only.

    Raises ValueError where shapes disagree.
    """
    others = {name: array for name, array in (("y", y), ("z", z)) if array is not None}
    whole = check(x=(x, "rows width"), **{name: (array, "rows width") for name, array in others.items()})
    first, end = x_columns or (0, whole.width)
    if not 0 <= first <= end <= whole.width:
        raise ValueError(f"x_columns: expected 0 <= first <= end <= {whole.width}, got {x_columns}")
    target = SimpleNamespace(shape=(whole.rows, end - first))
    size = check(a=(a, "inner rows" if transpose_a else "rows inner"),
                 b=(b, "columns inner" if transpose_b else "inner columns"), x=(target, "rows columns"))
    for name, array in {"a": a, "b": b, "x": x}.items():
        if array.shape[1] >= _MOST_COLUMNS:
            raise ValueError(f"{name}: expected less than {_MOST_COLUMNS} columns, got {array.shape[1]}")
    if bias is not None:
        check(x=(target, "rows columns"), bias=(bias, "columns"))
    if numbers is not None:
        check(room=(ROOM, "most"), numbers=(numbers, "most"))
    if precision not in PRECISIONS:
        raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)}, got {precision!r}")
    if 0 in (size.rows, size.columns):
        return
    flat = x.reshape(-1)
    operands = a.reshape(-1), np.int32(a.shape[1]), b.reshape(-1), np.int32(b.shape[1])
    planes = flat, *(others[name].reshape(-1) if name in others else flat for name in "yz")
    extras = flat if bias is None else bias, flat if numbers is None else numbers
    settled = epilogue, bias is not None, numbers is not None
    device = device_of(a, b, *planes, *extras)
    if device.name == "cpu":
        if scratch is None or scratch.size < BLOCK:
            raise ValueError(f"scratch: expected an array of at least {BLOCK} elements on a CPU")
        check_memory(a=a, b=b, x=x, **others, scratch=scratch)
        with exclusive:
            make = block(x.dtype, precision, transpose_a, transpose_b, size.rows, size.columns)
            run_on_host(_multiply_on_cpu(make, transpose_a, transpose_b, *settled), *operands, size.rows, size.columns,
                        size.inner, *planes, first, whole.width, *extras, scratch.reshape(-1))
        return
    for name, array in {"a": a, "b": b, **others}.items():
        if array.dtype != x.dtype:
            raise ValueError(f"{name}: dtype is {array.dtype}, but x says {x.dtype}")
    wide_a, wide_b = in_fours(a), in_fours(b)
    room, sums = (0, flat) if scratch is None else (scratch.size, scratch.reshape(-1))
    tile, splits = _plan(device, size.rows, size.inner, size.columns, room, x.dtype.type, precision, wide_a and wide_b)
    chunk = tile.depth * -(-size.inner // (tile.depth * splits))
    down, across = -(-size.rows // tile.edge), -(-size.columns // tile.edge)
    # Neighbouring blocks share the slabs of the longer axis in the GPU's cache; but only x has room for any number.
    rows_first = (down <= across) == (max(down, across) < 65_536)
    blocks = *((down, across) if rows_first else (across, down)), splits
    width, rows, columns, *rest = map(np.int32, (whole.width, size.rows, size.columns, size.inner, chunk))
    results = *planes, first, width, *extras

    def start(wide: bool, settled: tuple, *results: Any) -> None:
        kernel = tile.product(transpose_a, transpose_b, wide_a, wide_b, wide, *_settlers(*settled))
        device.run_pair(kernel, kernel, blocks, tile.threads, (*operands, rows, columns, *rest, rows_first, *results))

    if splits == 1:
        start(in_fours(x, *others.values()) and first % 4 == size.columns % 4 == 0, settled, *results)
    else:
        start(x.dtype == np.float32 and begin_at_16(sums) and size.columns % 4 == 0, (Epilogue.store(), False, False),
              sums, sums, sums, 0, columns, sums, sums)
        launch(_reduce(*settled), (size.rows, size.columns), sums, splits, rows, columns, *results)


def _plan(device: Device, rows: int, inner: int, columns: int, room: int, dtype: type, precision: str,
          wide: bool) -> tuple[Tile, int]:
    """The tile, and in how many the inner axis is split: enough blocks to fill a GPU, where there are as many."""
    modern = device.capability >= (8, 0) and dtype is np.float32
    precision = precision if modern else "float32"
    for each in (8, 4):
        tile = Tile(device.tile, each, precision, modern, dtype)
        tiles = -(-rows // tile.edge) * -(-columns // tile.edge)
        splits = max(1, min(_FILL // tiles, inner // _LEAST, room // (rows * columns)))
        # Accesses of single elements would need too many registers in a large tile.
        if wide and tiles * splits >= _FILL // 2:
            break
    return tile, splits


# ---- on a CPU


@cache
def _multiply_on_cpu(block, transpose_a, transpose_b, epilogue, biased, numbered):
    settle, chosen = scalar(_settle(epilogue, biased)), scalar(_chosen(numbered))

    def multiply(a, a_width, b, b_width, rows, columns, inner, x, y, z, start, width, bias, numbers, scratch):
        side = edge(rows, columns)
        across = (columns + side - 1) // side
        tiles = across * ((rows + side - 1) // side)
        chunks = scratch.size // BLOCK
        for chunk in prange(chunks):
            totals, s = scratch[chunk * BLOCK:(chunk + 1) * BLOCK], chosen(numbers)
            for tile in range(chunk, tiles, chunks):
                top, left = tile // across * side, tile % across * side
                height, breadth = min(side, rows - top), min(side, columns - left)
                block(a, top if transpose_a else top * a_width, a_width,
                      b, left * b_width if transpose_b else left, b_width,
                      height, inner, breadth, totals, 0, breadth, False)
                for i in range(height):
                    for j in range(breadth):
                        place = start + (top + i) * width + left + j
                        settle(totals[i * breadth + j], place, left + j, x, y, z, bias, s)
    return multiply


# ---- what becomes of the totals


@cache
def _settlers(epilogue, biased, numbered):
    """What `Tile.product` calls: parts that read the numbers, and settle the total at one place, or at four."""
    return part(_chosen(numbered)), part(_settle(epilogue, biased)), _settle_four(epilogue, biased)


@cache
def _chosen(numbered):
    if not numbered:
        return lambda numbers: (_ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, _ZERO)
    return lambda numbers: (numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6],
                            numbers[7])


@cache
def _settle(epilogue, biased):
    function = epilogue.function
    read_x, read_y, read_z = (letter in epilogue.reads for letter in "xyz")
    write_x, write_y, write_z = (letter in epilogue.writes for letter in "xyz")

    def settle(total, place, column, x, y, z, bias, numbers):
        u, v, w = function(total, bias[column] if biased else _ZERO, x[place] if read_x else _ZERO,
                           y[place] if read_y else _ZERO, z[place] if read_z else _ZERO, numbers)
        if write_x:
            x[place] = u
        if write_y:
            y[place] = v
        if write_z:
            z[place] = w
    return settle


@cache
def _settle_four(epilogue, biased):
    function = epilogue.function
    read_x, read_y, read_z = (letter in epilogue.reads for letter in "xyz")
    write_x, write_y, write_z = (letter in epilogue.writes for letter in "xyz")

    @part
    def settle_four(totals, n, place, column, x, y, z, bias, numbers):
        xs = load4(x, place) if read_x else _NOTHING
        ys = load4(y, place) if read_y else _NOTHING
        zs = load4(z, place) if read_z else _NOTHING
        u = cuda.local.array(4, np.float32)
        v = cuda.local.array(4, np.float32)
        w = cuda.local.array(4, np.float32)
        for j in range(4):
            u[j], v[j], w[j] = function(totals[n + j], bias[column + j] if biased else _ZERO, xs[j], ys[j], zs[j],
                                        numbers)
        if write_x:
            store4(x, place, u[0], u[1], u[2], u[3])
        if write_y:
            store4(y, place, v[0], v[1], v[2], v[3])
        if write_z:
            store4(z, place, w[0], w[1], w[2], w[3])
    return settle_four


@cache
def _reduce(epilogue, biased, numbered):
    chosen, settle, _ = _settlers(epilogue, biased, numbered)

    def reduce(row, column, scratch, splits, rows, columns, x, y, z, start, width, bias, numbers):
        total = _ZERO
        for split in range(splits):  # in a fixed order
            total += scratch[(split * rows + row) * columns + column]
        settle(total, start + row * width + column, column, x, y, z, bias, chosen(numbers))
    return reduce
