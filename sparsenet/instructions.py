"""Instructions of NVIDIA's GPUs that numba.cuda has no name for, called like functions inside CUDA kernels.

Each has a twin in Python that says what it does. The simulator runs the twin of an instruction of one thread; the
emulator in sparsenet.testing runs every twin in place of the PTX. Source: NVIDIA, PTX ISA 8.5, section 9.7.

Arrays are given with a place: (array, i) means element i of the array's memory, counted from its beginning whatever
its axes; wide accesses want i, and the beginning, to be multiples of 16 bytes.
"""

import functools

import numpy as np

from sparsenet.compiling import scalar
from sparsenet.lowering import Instruction


def _flat(array):
    return array.reshape(array.size)


def _load4(array, i):
    values = _flat(array)
    return values[i], values[i + 1], values[i + 2], values[i + 3]


def _store4(array, i, a, b, c, d):
    values = _flat(array)
    values[i], values[i + 1], values[i + 2], values[i + 3] = a, b, c, d


load4 = Instruction("load4", "p", "ffff", _load4)
"""load4(array, i): elements i to i + 3 of a float32 array, in one access of 128 bits."""

store4 = Instruction("store4", "pffff", "", _store4)
"""store4(array, i, a, b, c, d): writes elements i to i + 3 of a float32 array in one access of 128 bits."""


def _copy(width, target, i, source, j, count):
    to, values = _flat(target), _flat(source)
    for k in range(width):
        to[i + k] = values[j + k] if k < count else 0


_COPY = """{{ .reg .u64 s; .reg .u32 d, n;
cvta.to.shared.u64 s, $0; cvt.u32.u64 d, s; shl.b32 n, $2, 2;
cp.async.{cache}.shared.global [d], [$1], {bytes}, n; }}"""

copy4_async = Instruction("copy4_async", "ppr", "", functools.partial(_copy, 4),
                          _COPY.format(cache="cg", bytes=16), (8, 0))
"""copy4_async(target, i, source, j, count): begins to copy elements j to j + count - 1 of a float32 array into shared
memory from element i on, count = 0 to 4, and to fill up 4 elements with zeros. See `commit_copies`."""

copy_async = Instruction("copy_async", "ppr", "", functools.partial(_copy, 1),
                         _COPY.format(cache="ca", bytes=4), (8, 0))
"""copy_async(target, i, source, j, count): as copy4_async for one element, count = 0 or 1."""

commit_copies = Instruction("commit_copies", "", "", lambda: None, "cp.async.commit_group;", (8, 0))
"""commit_copies(): the copies that this thread began since the last time are one group."""


@functools.cache
def wait_copies(groups: int) -> Instruction:
    """The instruction wait(): until no more than the last `groups` of this thread's groups are under way.

    Other threads see what was copied after the next barrier.
    """
    return Instruction(f"wait_copies_{groups}", "", "", lambda: None, f"cp.async.wait_group {groups};", (8, 0))


@scalar
def _bits(x):
    return np.float32(x).view(np.uint32)


@scalar
def _to_tf32(x):
    if x != x:
        return np.uint32(0x7FFFFFFF)
    return np.uint32((np.uint64(_bits(x)) + np.uint64(0x1000)) & np.uint64(0xFFFFE000))


@scalar
def _bf16(x):
    if x != x:
        return np.uint64(0x7FFF)
    bits = np.uint64(_bits(x))
    return (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)


@scalar
def _pack_bf16(low, high):
    return np.uint32(_bf16(low) | (_bf16(high) << np.uint64(16)))


to_tf32 = Instruction("to_tf32", "f", "r", _to_tf32, "cvt.rna.tf32.f32 $0, $1;", (8, 0))
"""to_tf32(x): the bits of x rounded to 10 bits of fraction, ties away from zero."""

pack_bf16 = Instruction("pack_bf16", "ff", "r", _pack_bf16, "cvt.rn.bf16x2.f32 $0, $2, $1;", (8, 0))
"""pack_bf16(low, high): two numbers rounded to bfloat16, ties to even, in one word."""


@scalar
def _half(word, high):
    bits = word & np.uint32(0xFFFF0000) if high else word << np.uint32(16)
    return np.uint32(bits).view(np.float32)


@scalar
def _mma_tf32(lane, given):
    """a is 16 x 8, b is 8 x 8, c is 16 x 8; lane 4 g + t holds a[g + 8 (i % 2), t + 4 (i // 2)] for i = 0 to 3,
    b[t + 4 i, g] for i = 0, 1, and c[g + 8 (i // 2), 2 t + i % 2] for i = 0 to 3."""
    values = given.view(np.float32)
    row, column = lane // 4, 2 * (lane % 4)
    c0, c1, c2, c3 = values[lane, 6], values[lane, 7], values[lane, 8], values[lane, 9]
    for k in range(8):
        above, below = values[4 * row + k % 4, k // 4 * 2], values[4 * row + k % 4, k // 4 * 2 + 1]
        left, right = values[4 * column + k % 4, 4 + k // 4], values[4 * column + 4 + k % 4, 4 + k // 4]
        c0, c1, c2, c3 = c0 + above * left, c1 + above * right, c2 + below * left, c3 + below * right
    return c0, c1, c2, c3


@scalar
def _mma_bf16(lane, given):
    """a is 16 x 16, b is 16 x 8, c is 16 x 8; words hold two columns of a, or two rows of b. Lane 4 g + t holds words
    a[g + 8 (i % 2), 2 t + 8 (i // 2)] for i = 0 to 3, b[2 t + 8 i, g] for i = 0, 1, and c as for tf32."""
    values = given.view(np.float32)
    row, column = lane // 4, 2 * (lane % 4)
    c0, c1, c2, c3 = values[lane, 6], values[lane, 7], values[lane, 8], values[lane, 9]
    for k in range(16):
        holder, part = k % 8 // 2, k // 8
        above = _half(given[4 * row + holder, 2 * part], k % 2)
        below = _half(given[4 * row + holder, 2 * part + 1], k % 2)
        left = _half(given[4 * column + holder, 4 + part], k % 2)
        right = _half(given[4 * column + 4 + holder, 4 + part], k % 2)
        c0, c1, c2, c3 = c0 + above * left, c1 + above * right, c2 + below * left, c3 + below * right
    return c0, c1, c2, c3


_MMA = "mma.sync.aligned.{}.row.col.f32.{}.f32 {{$0,$1,$2,$3}},{{$4,$5,$6,$7}},{{$8,$9}},{{$10,$11,$12,$13}};"

mma_tf32 = Instruction("mma_tf32", "rrrrrrffff", "ffff", _mma_tf32, _MMA.format("m16n8k8", "tf32.tf32"), (8, 0), True)
"""mma_tf32(a0, …, a3, b0, b1, c0, …, c3): 4 elements of c + a b, for 16 x 8 times 8 x 8, by a warp; a and b from
`to_tf32`. Which lane holds what is said in its twin."""

mma_bf16 = Instruction("mma_bf16", "rrrrrrffff", "ffff", _mma_bf16, _MMA.format("m16n8k16", "bf16.bf16"), (8, 0), True)
"""mma_bf16(a0, …, a3, b0, b1, c0, …, c3): 4 elements of c + a b, for 16 x 16 times 16 x 8, by a warp; a and b from
`pack_bf16`. Which lane holds what is said in its twin."""
