"""What the threads of a warp do together, in Python.

An operation is a function of (lane, given): given[l] holds the uint32 arguments of lane l. Each lane calls it when all
lanes of the mask have come. The mask is the first argument, or all lanes.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from sparsenet.compiling import host_llvm, scalar
from sparsenet.instructions import mma_bf16, mma_tf32
from sparsenet.testing.emulator.layout import CURRENT, IN_WARP, WORDS
from sparsenet.testing.emulator.runtime import place

_ALL = 0xFFFFFFFF
_ONE, _NONE = np.uint32(1), np.uint32(0)
_UNDEFINED = np.uint32(_ALL)  # NaN, as what threads leave that are no more: what nobody should use
LETTERS = {"r": "i32", "f": "float"}
"""LLVM's types for those of `sparsenet.lowering.Instruction`."""


@scalar
def _shuffle(lane, given):
    """PTX ISA, shfl.sync: modes up, down, xor and index of NVVM's numbering 1, 2, 3, 0."""
    mode, offset, clamp = given[lane, 1], np.int64(given[lane, 3]), np.int64(given[lane, 4])
    segment = (clamp >> 8) & 31
    lowest = lane & segment
    highest = lowest | (clamp & 31 & ~segment)
    if mode == 1:
        source, inside = lane - offset, lane - offset >= highest
    elif mode == 2:
        source, inside = lane + offset, lane + offset <= highest
    elif mode == 3:
        source, inside = lane ^ offset, (lane ^ offset) <= highest
    else:
        source = lowest | (offset & 31 & ~segment)
        inside = source <= highest
    if not inside:
        source = lane
    mask, value = given[lane, 0], given[source & 31, 2]
    if not (mask >> np.uint32(source & 31)) & _ONE:
        value = _UNDEFINED
    return value, np.uint32(inside)


@scalar
def _vote(lane, given):
    """PTX ISA, vote.sync: modes all, any, uniform and ballot are 0, 1, 2, 3; the ballot is the first result."""
    mask, mode, ballot = given[lane, 0], given[lane, 1], _NONE
    for other in range(32):
        if (mask >> np.uint32(other)) & _ONE and given[other, 2] & _ONE:
            ballot |= _ONE << np.uint32(other)
    some, every = ballot != 0, ballot == mask
    answer = some if mode == 1 else (every or not some if mode == 2 else every)
    return ballot, np.uint32(answer)


@scalar
def _match_any(lane, given):
    """PTX ISA, match.any.sync: lanes of the mask whose value, of one or two words, is this lane's."""
    mask, found = given[lane, 0], _NONE
    for other in range(32):
        same = given[other, 1] == given[lane, 1] and given[other, 2] == given[lane, 2]
        if (mask >> np.uint32(other)) & _ONE and same:
            found |= _ONE << np.uint32(other)
    return found


@scalar
def _match_all(lane, given):
    """PTX ISA, match.all.sync: the mask if all its lanes have one value, else 0; and whether they have."""
    same = _match_any(lane, given) == given[lane, 0]
    return given[lane, 0] if same else _NONE, np.uint32(same)


class _Together(NamedTuple):
    """A warp operation: its function, LLVM types of arguments and results, whether the first argument is the mask."""

    twin: Callable | None
    arguments: str
    results: str
    masked: bool = True


_PAIR = "{i32, i1}"
WARP = {
    "nv.shfl.sync.i32": _Together(_shuffle, "i32 i32 i32 i32 i32", _PAIR),
    "nv.vote.sync": _Together(_vote, "i32 i32 i1", _PAIR),
    "nv.match.any.sync.i32": _Together(_match_any, "i32 i32", "i32"),
    "nv.match.any.sync.i64": _Together(_match_any, "i32 i64", "i32"),
    "nv.match.all.sync.i32": _Together(_match_all, "i32 i32", _PAIR),
    "nv.match.all.sync.i64": _Together(_match_all, "i32 i64", _PAIR),
    "nv.bar.warp.sync": _Together(None, "i32", "void"),
    **{one.name: _Together(one.twin, " ".join(LETTERS[c] for c in one.arguments),
                           "{float, float, float, float}", masked=False) for one in (mma_tf32, mma_bf16)},
}


def warp(name: str) -> Iterator[str]:
    """Definition of a warp operation: leave the arguments, wait for the others, compute, wait until they have too."""
    together = WARP[name]
    kinds = together.arguments.split()
    lines = [f"define {together.results} @\"{name}\"({', '.join(f'{k} %x{i}' for i, k in enumerate(kinds))}, "
             "i64 %site) alwaysinline {",
             f"  %current = load i64, ptr {place(CURRENT)}",
             "  %lane = and i64 %current, 31", "  %warp = lshr i64 %current, 5",
             f"  %given = getelementptr [{32 * WORDS} x i32], ptr @sn.given, i64 %warp",
             f"  %mine = getelementptr [{WORDS} x i32], ptr %given, i64 %lane"]
    word = 0
    for i, kind in enumerate(kinds):
        value = f"%x{i}"
        if kind == "i1":
            lines.append(f"  %z{i} = zext i1 {value} to i32")
            kind, value = "i32", f"%z{i}"
        lines += [f"  %p{i} = getelementptr i32, ptr %mine, i64 {word}", f"  store {kind} {value}, ptr %p{i}, align 4"]
        word += 2 if kind == "i64" else 1
    lines += [f"  %last = getelementptr i32, ptr %mine, i64 {word}", "  store i32 0, ptr %last"]
    wait = f"  call void @sn.wait(i64 {IN_WARP}, i64 {'%mask' if together.masked else _ALL}, i64 %site)"
    if together.masked:
        lines.append("  %mask = zext i32 %x0 to i64")
    lines.append(wait)
    if together.twin is None:
        yield "\n".join([*lines, "  ret void", "}"])
        return
    results = re.findall(r"i32|i1|float", together.results)
    letters = ["float" if kind == "float" else "i32" for kind in results]
    returns = ["float32" if kind == "float" else "uint32" for kind in results]
    made = returns[0] if len(results) == 1 else f"UniTuple({returns[0]}, {len(results)})"
    function, text = host_llvm(together.twin, f"{made}(int64, uint32[:, ::1])")
    yield text
    size, row, rows = len(results), 4 * WORDS, 32
    lines.insert(0, f'declare i32 @"{function}"(ptr, ptr, i64, ptr, ptr, i64, i64, ptr, i64, i64, i64, i64)')
    lines += [f"  %made = alloca [{size} x {letters[0]}]", "  %error = alloca ptr",
              f'  call i32 @"{function}"(ptr %made, ptr %error, i64 %lane, ptr null, ptr null, i64 {rows * WORDS}, '
              f"i64 4, ptr %given, i64 {rows}, i64 {WORDS}, i64 {row}, i64 4)", wait]
    for i, kind in enumerate(results):
        lines += [f"  %m{i} = getelementptr {letters[i]}, ptr %made, i64 {i}",
                  f"  %v{i} = load {letters[i]}, ptr %m{i}"]
        if kind == "i1":
            lines.append(f"  %w{i} = trunc i32 %v{i} to i1")
    names = [f"{kind} %{'w' if kind == 'i1' else 'v'}{i}" for i, kind in enumerate(results)]
    if len(results) == 1:
        lines.append(f"  ret {names[0]}")
    else:
        for i, one in enumerate(names):
            before = f"%r{i - 1}" if i else "undef"
            lines.append(f"  %r{i} = insertvalue {together.results} {before}, {one}, {i}")
        lines.append(f"  ret {together.results} %r{len(names) - 1}")
    yield "\n".join([*lines, "}"])
