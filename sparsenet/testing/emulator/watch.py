"""What the checks of memory accesses call: is it inside its array, is it aligned, does another thread touch it too?"""

from collections.abc import Iterator

from sparsenet.compiling import host_llvm, scalar
from sparsenet.testing.emulator.layout import (
    ATOMIC,
    CURRENT,
    EPOCH,
    MISALIGNED,
    OUT_OF_BOUNDS,
    RACE,
    READ,
    SHADOW,
    SIZE,
    WARP_EPOCH,
)
from sparsenet.testing.emulator.runtime import place

KEPT = 16  # numbers that are kept of a watched piece of shared memory

PREAMBLE = """
declare void @sn.align(i64, i64, i64, i64)
declare void @sn.inside(i64, i64, i64, i64, i64)
declare void @sn.search(i64, i64, i64, i64)
declare void @sn.touch(i64, i64, i64, i64)
"""
"""Declares it."""


@scalar
def _search(bounds, address, size):
    """Number of the array in which these bytes lie, or -1. bounds (arrays, 2): first address, and the one after."""
    for k in range(bounds.shape[0]):
        if bounds[k, 0] <= address and address + size <= bounds[k, 1]:
            return k
    return -1


@scalar
def _touch(state, shadow, first, last, kind):
    """Watch an access to pieces of shared memory; returns 1 + a thread that touches one at the same time, or 0.

    Two accesses of different threads are at the same time unless a barrier stands between them: the block's, or, in one
    warp, the warp's. One of them writes, and they are not both atomic: a race.

    shadow  (pieces, 16): thread + 1, block's epoch, warp's epoch, atomic?; of the last two threads that wrote, and of
            the last two that read
    """
    thread = state[CURRENT]
    epoch, warp_epoch = state[EPOCH], state[WARP_EPOCH + thread // 32]
    for piece in range(first, last + 1):
        for slot in range(0, 16 if kind != READ else 8, 4):
            other = shadow[piece, slot] - 1
            if other >= 0 and other != thread and shadow[piece, slot + 1] == epoch:
                ordered = other // 32 == thread // 32 and shadow[piece, slot + 2] != warp_epoch
                if not ordered and not (kind == ATOMIC and shadow[piece, slot + 3] == 1):
                    return other + 1
        slot, atomic = 8 if kind == READ else 0, kind == ATOMIC
        if shadow[piece, slot] != thread + 1:
            for k in range(4):
                shadow[piece, slot + 4 + k] = shadow[piece, slot + k]
        elif shadow[piece, slot + 1] == epoch and shadow[piece, slot + 2] == warp_epoch:
            atomic = atomic and shadow[piece, slot + 3] == 1  # what this thread wrote before was not
        shadow[piece, slot], shadow[piece, slot + 1] = thread + 1, epoch
        shadow[piece, slot + 2], shadow[piece, slot + 3] = warp_epoch, atomic
    return 0


def _array(name: str, *shape: str | int) -> str:
    """The arguments by which Numba passes a C-contiguous array of int64."""
    strides = [8 * (shape[1] if len(shape) == 2 and axis == 0 else 1) for axis in range(len(shape))]
    numbers = [f"i64 {n}" for n in (*shape, *strides)]
    return f"ptr null, ptr null, i64 0, i64 8, ptr {name}, {', '.join(numbers)}"


def _kinds(axes: int) -> str:
    return ", ".join(["ptr, ptr, i64, i64, ptr", *["i64"] * (2 * axes)])


def table(arguments: int, constants: dict[str, int]) -> str:
    """Definition of @sn.bounds: the first address and the one after of the arguments, of shared memory, of the threads'
    stacks, and of constant arrays, which are given with their bytes."""
    numbers = ["i64 0"] * (2 * (arguments + 2))
    for name, size in constants.items():
        numbers += [f"i64 ptrtoint (ptr {name} to i64)",
                    f"i64 ptrtoint (ptr getelementptr (i8, ptr {name}, i64 {size}) to i64)"]
    return f"@sn.bounds = global [{len(numbers)} x i64] [{', '.join(numbers)}]"


def definitions(arguments: int, constants: int, pieces: int, grain: int, races: bool) -> Iterator[str]:
    """Modules that define what the checks call, and what the twins of asynchronous copies do.

    arguments, constants  how many of these have rows in @sn.bounds
    pieces, grain         of shared memory, dynamic included: how many are watched, bytes of each
    """
    search, text = host_llvm(_search, "int64(int64[:, ::1], int64, int64)")
    yield text
    rows = arguments + 2 + constants
    yield f"""
@sn.bounds = external global [{2 * rows} x i64]
declare void @sn.fail(i64, i64, i64, i64, i64)
declare void @sn.touch(i64, i64, i64, i64)
declare i32 @"{search}"(ptr, ptr, {_kinds(2)}, i64, i64)
define void @sn.align(i64 %at, i64 %align, i64 %low, i64 %site) alwaysinline {{
  %mask = sub i64 %align, 1
  %rest = and i64 %at, %mask
  %ok = icmp eq i64 %rest, 0
  br i1 %ok, label %good, label %bad
bad:
  call void @sn.fail(i64 {MISALIGNED}, i64 %at, i64 %align, i64 %site, i64 %low)
  unreachable
good:
  ret void
}}
define void @sn.inside(i64 %at, i64 %size, i64 %low, i64 %high, i64 %site) alwaysinline {{
  %end = add i64 %at, %size
  %after = icmp uge i64 %at, %low
  %before = icmp ule i64 %end, %high
  %none = icmp eq i64 %size, 0
  %within = and i1 %after, %before
  %ok = or i1 %within, %none
  br i1 %ok, label %good, label %bad
bad:
  call void @sn.fail(i64 {OUT_OF_BOUNDS}, i64 %at, i64 %size, i64 %site, i64 %low)
  unreachable
good:
  ret void
}}
define void @sn.search(i64 %at, i64 %size, i64 %kind, i64 %site) {{
  %made = alloca i64
  %error = alloca ptr
  %none = icmp eq i64 %size, 0
  br i1 %none, label %good, label %look
look:
  call i32 @"{search}"(ptr %made, ptr %error, {_array('@sn.bounds', rows, 2)},
                       i64 %at, i64 %size)
  %k = load i64, ptr %made
  %bad = icmp slt i64 %k, 0
  br i1 %bad, label %wrong, label %found
wrong:
  call void @sn.fail(i64 {OUT_OF_BOUNDS}, i64 %at, i64 %size, i64 %site, i64 0)
  unreachable
found:
  %shared = icmp eq i64 %k, {arguments}
  br i1 %shared, label %watch, label %good
watch:
  call void @sn.touch(i64 %at, i64 %size, i64 %kind, i64 %site)
  br label %good
good:
  ret void
}}"""
    if not races:
        yield "define void @sn.touch(i64 %at, i64 %size, i64 %kind, i64 %site) alwaysinline {\n  ret void\n}"
        return
    touch, text = host_llvm(_touch, "int64(int64[::1], int64[:, ::1], int64, int64, int64)")
    yield text
    yield f"""
@sn.state = external global [{SIZE} x i64]
@sn.bounds = external global [{2 * rows} x i64]
declare void @sn.fail(i64, i64, i64, i64, i64)
declare i32 @"{touch}"(ptr, ptr, {_kinds(1)}, {_kinds(2)}, i64, i64, i64)
define void @sn.touch(i64 %at, i64 %size, i64 %kind, i64 %site) {{
  %made = alloca i64
  %error = alloca ptr
  %low = load i64, ptr getelementptr (i64, ptr @sn.bounds, i64 {2 * arguments})
  %shadow = load ptr, ptr {place(SHADOW)}
  %from = sub i64 %at, %low
  %end = add i64 %from, %size
  %to = sub i64 %end, 1
  %first = udiv i64 %from, {grain}
  %last = udiv i64 %to, {grain}
  call i32 @"{touch}"(ptr %made, ptr %error, {_array('@sn.state', SIZE)},
                      {_array('%shadow', pieces, KEPT)}, i64 %first, i64 %last, i64 %kind)
  %other = load i64, ptr %made
  %clean = icmp eq i64 %other, 0
  br i1 %clean, label %good, label %bad
bad:
  call void @sn.fail(i64 {RACE}, i64 %at, i64 %size, i64 %site, i64 %other)
  unreachable
good:
  ret void
}}"""
