"""Checks of memory accesses, put into a kernel's optimized LLVM code before each load, store and atomic.

Where an address stands for an element of an argument, of a shared or of a local array, LLVM's code says which, and that
array's bounds are the ones that count: an index that strays into a neighbour is found. An address of unknown origin
must lie in some array.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from sparsenet.testing.emulator.layout import ATOMIC, DYNAMIC_BYTES, READ, WRITE
from sparsenet.testing.emulator.runtime import place
from sparsenet.testing.emulator.translate import size_of, split

_NAME = r'[%@](?:"[^"]*"|[\w.$-]+)'
_TYPE = r"(?:<[^<>]*>|\[[^\[\]]*\]|\{[^{}]*\}|\w+)"
_OPERAND = rf"(?:{_NAME}|[\w ]+\((?:[^()]|\([^()]*\))*\))"
_LOAD = re.compile(rf"%\S+ = load (volatile )?({_TYPE}), ptr ({_OPERAND}), align (\d+)")
_STORE = re.compile(rf"store (?:volatile )?({_TYPE}) .*?, ptr ({_OPERAND}), align (\d+)")
_ATOMIC = re.compile(rf"(?:%\S+ = )?(?:atomicrmw \w+|cmpxchg)(?: volatile)? ptr ({_OPERAND}), ({_TYPE}) ")
_BLOCK = re.compile(r"(?:tail )?call void @llvm\.mem(set|cpy|move)\.[\w.]+\((.*)\)")
_VALUE = re.compile(rf"(?:getelementptr .*|{_NAME}|\w+)$")  # of an operand, without kind and attributes
_COPY = re.compile(r"(?:tail )?call void @copy(4?)_async\((.*)\)")
_ACCESS = re.compile(r"(?:%\S+ = )?(?:load|store|atomicrmw|cmpxchg|.*call .*(?:@llvm\.mem|@copy4?_async))\b")
_DERIVED = re.compile(r"(%\S+) = (getelementptr|bitcast|ptrtoint|inttoptr|add|or|freeze)\b(.*)")
_LOCAL = re.compile(rf"(%\S+) = alloca ({_TYPE})")
_GLOBAL = re.compile(r'@("[^"]*"|[\w.$-]+) = [\w() ]*(?:global|constant) (\[.*?\]) (\w*).*?(?:align (\d+))?$')
_KERNEL = re.compile(r"define void (@\S+?)\((.*)\)[^)]*\{$")  # without attributes: the checks make them untrue

DYNAMIC = "@sn.dynamic"
"""Dynamic shared memory"""


class Memory(NamedTuple):
    """An array that a kernel knows."""

    title: str
    """Name of an argument, or "a shared array" and the like"""
    root: str
    """LLVM's name of it"""
    row: int = -1
    """Of an argument: place in the table of bounds"""
    size: int = 0
    """Of any other: bytes"""
    item: int = 1
    """Bytes of an element"""
    start: int = 0
    """Of a shared array: place in the block's shared memory"""

    @property
    def shared(self) -> bool:
        """Whether a block's threads share it."""
        return "shared" in self.title.split(" ")[1:]


class Access(NamedTuple):
    """What an instruction reads or writes."""

    kind: int
    address: str
    """LLVM operand, with its type"""
    size: str
    """Bytes: a number, or LLVM operand of type i64"""
    align: int


class Site(NamedTuple):
    """A checked access: what it does, and with which array, if that is known."""

    kind: int
    memory: Memory | None


class Checked(NamedTuple):
    """A kernel whose accesses are checked."""

    text: str
    sites: list[Site]
    """Accesses; their number is passed along"""
    constants: dict[str, int]
    """Bytes of constant arrays, by LLVM's names"""
    static: int
    """Bytes of static shared arrays"""
    room: int
    """What these take up, with a gap before each"""
    local: int
    """Bytes of a thread's local arrays"""
    grain: int
    """Bytes of shared memory that are watched as one: those of the smallest access"""


def checked(text: str, arrays: list[str], races: bool) -> Checked:
    """Put the checks into a module with one function, the kernel.

    arrays  names of the arguments that are arrays; their bounds stand in @sn.bounds, two numbers each
    races   whether accesses of shared memory are watched

    Raises NotImplementedError for an access that this cannot read.
    """
    memories = {f"%{name}.4": Memory(name, f"%{name}.4", row=k) for k, name in enumerate(arrays)}
    memories[DYNAMIC] = Memory("the dynamic shared memory", DYNAMIC)
    static, room, grain = 0, 0, 16
    sites: list[Site] = []
    lines: list[str] = []
    origin: dict[str, str] = {}
    for line in text.splitlines():
        instruction = line.strip()
        if (found := _GLOBAL.match(line)) and not found[1].startswith("sn."):
            align = int(found[4] or 16)
            if found[3] == "undef":
                room += -room % (2 * align) + align  # aligned no better than was asked for: what needs more is found
                lines.append(f"@{found[1]} = alias {found[2]}, ptr getelementptr (i8, ptr @sn.shared, i64 {room})")
                memories[f"@{found[1]}"] = _array("a shared array", f"@{found[1]}", found[2], room)
                static, room = static + size_of(found[2]), room + size_of(found[2])
                continue
            memories[f"@{found[1]}"] = _array("a constant array", f"@{found[1]}", found[2])
        elif kernel := _KERNEL.match(line):
            given = [one.split() for one in split(kernel[2])]
            line = f"define void {kernel[1]}({', '.join(f'{kind} {name}' for kind, *_, name in given)}) {{"
        elif local := _LOCAL.match(instruction):
            memories[local[1]] = _array("a local array", local[1], local[2])
        elif derived := _DERIVED.match(instruction):
            bases = [origin.get(name, name) for name in re.findall(_NAME, derived[3])]
            known = bases[:1] if derived[2] == "getelementptr" else [base for base in bases if base in memories]
            origin[derived[1]] = next(iter([*known, *bases]), "")
        for access in _accesses(instruction):
            name = re.search(_NAME, access.address)
            root = origin.get(name[0], name[0]) if name else ""
            memory = memories.get(root)
            if memory is None and root.startswith("@sn."):
                continue  # the emulator's own
            if memory is None or memory.shared:
                grain = min(grain, int(access.size) if access.size.isdigit() else 1)
            lines += _check(len(sites), access, memory, races)
            sites.append(Site(access.kind, memory))
        if _COPY.match(instruction):  # its target will be written later: watched once more
            line = f"{line[:-1]}, i64 {len(sites) - 2})"
        lines.append(line)
    constants = {memory.root: memory.size for memory in memories.values() if memory.title == "a constant array"}
    locals_ = sum(memory.size for memory in memories.values() if memory.title == "a local array")
    return Checked("\n".join(lines), sites, constants, static, room, locals_, grain)


def _array(title: str, root: str, kind: str, start: int = 0) -> Memory:
    several = re.fullmatch(r"\[\d+ x (.+)\]", kind)
    return Memory(title, root, size=size_of(kind), item=size_of(several[1] if several else kind), start=start)


def _accesses(instruction: str) -> Iterator[Access]:
    if match := _LOAD.match(instruction):
        kind = ATOMIC if match[1] else READ  # the first step of an update that numba-cuda makes of a comparison
        yield Access(kind, f"ptr {match[3]}", str(size_of(match[2])), int(match[4]))
    elif match := _STORE.match(instruction):
        yield Access(WRITE, f"ptr {match[2]}", str(size_of(match[1])), int(match[3]))
    elif match := _ATOMIC.match(instruction):
        yield Access(ATOMIC, f"ptr {match[1]}", str(size_of(match[2])), size_of(match[2]))
    elif match := _BLOCK.match(instruction):
        target, source, size, _ = (_VALUE.findall(one)[0] for one in split(match[2]))
        yield Access(WRITE, f"ptr {target}", size, 1)
        if match[1] != "set":
            yield Access(READ, f"ptr {source}", size, 1)
    elif match := _COPY.match(instruction):
        target, source, count = (one.strip() for one in split(match[2]))
        width = 16 if match[1] else 4
        yield Access(WRITE, target, str(width), width)
        yield Access(READ, source, count, width)  # a count of float32 numbers
    elif _ACCESS.match(instruction) and not instruction.startswith("declare"):
        raise NotImplementedError(f"the emulator cannot check the memory access {instruction}")


def _check(site: int, access: Access, memory: Memory | None, races: bool) -> Iterator[str]:
    """The LLVM code of one check."""
    at, size = f"%sn.{site}", access.size
    kind, value = access.address.split(" ", 1)
    yield f"  {at} = ptrtoint ptr {value} to i64" if kind == "ptr" else f"  {at} = add i64 {value}, 0"
    if size.startswith("i32 "):
        yield f"  {at}.count = zext {size} to i64"
        yield f"  {at}.size = shl i64 {at}.count, 2"
        size = f"{at}.size"
    low = "0" if memory is None else f"{at}.low"
    aligned = f"  call void @sn.align(i64 {at}, i64 {access.align}, i64 {low}, i64 {site})"
    if memory is None:
        yield aligned
        yield f"  call void @sn.search(i64 {at}, i64 {size}, i64 {access.kind}, i64 {site})"
        return
    if memory.row >= 0:
        yield f"  {at}.low = load i64, ptr getelementptr (i64, ptr @sn.bounds, i64 {2 * memory.row})"
        yield f"  {at}.high = load i64, ptr getelementptr (i64, ptr @sn.bounds, i64 {2 * memory.row + 1})"
    else:
        yield f"  {at}.low = ptrtoint ptr {memory.root} to i64"
        if memory.root == DYNAMIC:
            yield f"  {at}.length = load i64, ptr {place(DYNAMIC_BYTES)}"
        yield f"  {at}.high = add i64 {at}.low, {f'{at}.length' if memory.root == DYNAMIC else memory.size}"
    if access.align > 1:
        yield aligned
    yield f"  call void @sn.inside(i64 {at}, i64 {size}, i64 {at}.low, i64 {at}.high, i64 {site})"
    if races and memory.shared:
        yield f"  call void @sn.touch(i64 {at}, i64 {size}, i64 {access.kind}, i64 {site})"
