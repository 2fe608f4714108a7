"""From the LLVM code that numba-cuda makes for a GPU to LLVM code of the host."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from sparsenet import instructions
from sparsenet.lowering import Instruction
from sparsenet.testing.emulator.warps import WARP

_DIALECT = [  # numba-cuda writes for the LLVM 7 of libNVVM; this is what today's LLVM calls the same things
    (re.compile(r"^(target (triple|datalayout) = |@\"?llvm\.used|!nvvm|![0-9]+ = ).*$", re.M), ""),
    (re.compile(r", ![a-z]+ ![0-9]+"), ""),
    (re.compile(r"\s+addrspace\(\d+\)\*"), "*"),
    (re.compile(r"= ((?:external |internal )?)addrspace\(\d+\) (global|constant)"), r"= \1\2"),
    (re.compile(r"@\"llvm\.nvvm\."), '@"nv.'),
]
_POINTERS = [re.compile(kind + r"\s*\*") for kind in (
    r"(?:\bi\d+|\bfloat|\bdouble|\bhalf|\bbfloat|\bvoid|\bptr)", r"\{[^{}]*\}", r"\[[^\[\]]*\]", r"<[^<>]*>",
    r"void \((?:ptr|i\d+|float|double|, )*\)")]
_ASM = re.compile(r"call ([^\n]*?) asm\s+(?:sideeffect\s+)?\"([^\"]*)\", \"[^\"]*\"\s*\((.*)\)")
_KNOWN_ASM = {"activemask.b32 $0;": "activemask", "mov.u32 $0, %lanemask_lt;": "lanemask_lt",
              "nanosleep.u32 $0;": "nanosleep", "mov.u32 $0, %dynamic_smem_size;": "dynamic_smem_size",
              "tanh.approx.f32 $0, $1;": "__nv_tanhf"}
_WAIT = re.compile(r"cp\.async\.wait_group (\d+);")
_WAITS = ("nv.barrier0", "nv.barrier0.popc", "nv.barrier0.and", "nv.barrier0.or", *WARP)
_CLEARED = re.compile(r"store (\[\d+ x (?:i8|i16|i32|i64|float|double)\]) zeroinitializer, ptr (\S+)")
_DEFINITION = re.compile(r'^define [^@]*@("[^"]*"|[\w.$]+)\(([^\n]*)\)', re.M)


class Translated(NamedTuple):
    """A kernel in the host's LLVM."""

    modules: list[str]
    kernel: str
    """Its name there, with quotes"""
    parameters: list[tuple[str, str]]
    """LLVM type and name of each parameter"""
    sites: list[str]
    """What the instructions are in which threads wait for each other; their number is passed along"""
    dynamic: bool
    """Whether it has dynamic shared memory"""


def translate(modules: list[str], capability: tuple[int, int]) -> Translated:
    """Raises NotImplementedError for assembly that has no twin, or that GPUs of this compute capability do not know."""
    sites: list[str] = []
    found = [_translate_module(text, sites, capability) for text in modules]
    dynamic = any("@sn.dynamic" in text for text in found)
    name, parameters = _DEFINITION.findall(found[0])[0]
    words = [parameter.split() for parameter in split(parameters)]
    return Translated(found, name, [(kind, title.strip('%"')) for kind, *_, title in words], sites, dynamic)


def _translate_module(text: str, sites: list[str], capability: tuple[int, int]) -> str:
    for pattern, replacement in _DIALECT:
        text = pattern.sub(replacement, text)
    before = None
    while before != text:
        before = text
        for pattern in _POINTERS:
            text = pattern.sub("ptr", text)
    text = re.sub(r"addrspacecast (\[[^\]]*\] )?ptr", "bitcast ptr", text)
    declared: set[str] = set()
    text = _ASM.sub(lambda match: _call(match, declared, capability), text)
    for name in re.findall(r"^@(\S+) = external .*\[0 x ", text, re.M):  # dynamic shared memory
        text = re.sub(rf"^@{re.escape(name)} = .*$", "", text, flags=re.M).replace(f"@{name}", "@sn.dynamic")
        declared.add("@sn.dynamic = external global i8")
    text, cleared = _CLEARED.subn(_clear, text)
    if cleared:
        declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
    lines = [_numbered(line, sites) for line in text.splitlines()]
    return "\n".join([*lines, *sorted(declared)])


def _clear(store: re.Match) -> str:
    """An array set to zero at once: LLVM takes seconds to do it element by element."""
    kind, address = store.groups()
    return f"call void @llvm.memset.p0.i64(ptr {address}, i8 0, i64 {size_of(kind)}, i1 false)"


def _call(assembly: re.Match, declared: set[str], capability: tuple[int, int]) -> str:
    """The call of a function instead of assembly."""
    result, text, arguments = assembly.groups()
    result = result.replace("void ()", "void").split(" (")[0].strip()
    text = re.sub(r"\\([0-9A-F]{2})", lambda code: chr(int(code[1], 16)), text)
    wait = _WAIT.fullmatch(text)
    if wait:
        name, arguments = "wait_copies", f"i64 {wait[1]}"
    else:
        name = _KNOWN_ASM.get(text) or _instruction(text, capability)
    kinds = ", ".join(one.strip().rsplit(" ", 1)[0] for one in split(arguments))
    if name in WARP:  # declared with the number of its site
        kinds += ", i64"
    declared.add(f'declare {result} @"{name}"({kinds})')
    return f'call {result} @"{name}"({arguments})'


def _instruction(text: str, capability: tuple[int, int]) -> str:
    for one in vars(instructions).values():
        if isinstance(one, Instruction) and one.ptx == text:
            if capability < one.capability:
                raise NotImplementedError(f"{one.name} needs a GPU of compute capability {one.capability}, this is for "
                                          f"{capability}")
            return one.name
    raise NotImplementedError(f"the emulator has no twin for the assembly {text!r}; declare it as an Instruction "
                              "(sparsenet.lowering), which has one")


def _numbered(line: str, sites: list[str]) -> str:
    """Calls of what waits get one more argument: their number."""
    match = re.search(r'@"([^"]+)"\((.*)\)\s*$', line)
    if match is None or match[1] not in _WAITS or line.startswith("define"):
        return line
    start = line[:match.start(2)] + match[2]
    comma = ", " if match[2].strip() else ""
    if line.startswith("declare"):
        return f"{start}{comma}i64)"
    sites.append(match[1].removeprefix("nv."))
    return f"{start}{comma}i64 {len(sites) - 1})"


def split(arguments: str) -> Iterator[str]:
    """Parts between commas that stand outside brackets."""
    depth, part = 0, ""
    for character in arguments:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            yield part
            part = ""
        else:
            part += character
    if part.strip():
        yield part


def size_of(kind: str) -> int:
    """Bytes of an LLVM type."""
    several = re.fullmatch(r"[<\[](\d+) x (.+)[>\]]", kind)
    if several:
        return int(several[1]) * size_of(several[2])
    if kind.startswith("{"):
        return sum(size_of(part) for part in kind.strip("{} ").split(", "))
    return {"ptr": 8, "half": 2, "bfloat": 2, "float": 4, "double": 8}.get(kind) or -(-int(kind[1:]) // 8)
