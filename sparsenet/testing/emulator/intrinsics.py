"""What the GPU's own operations do, as definitions that are linked to a kernel's LLVM code.

Names are those of NVVM's intrinsics with "nv." for "llvm.nvvm.", and of `sparsenet.instructions`.
"""

import re
from collections.abc import Callable, Iterator

from sparsenet.compiling import host_llvm
from sparsenet.instructions import pack_bf16, to_tf32
from sparsenet.lowering import Instruction
from sparsenet.testing.emulator.layout import (
    AT_BARRIER,
    BARRIER_ALL,
    BARRIER_COUNT,
    COPY,
    CTAID,
    CURRENT,
    DYNAMIC_BYTES,
    MOST_COPIES,
    NCTAID,
    NTID,
    TID,
    TOO_LONG_COPY,
    TOO_MANY_COPIES,
    WRITE,
)
from sparsenet.testing.emulator.runtime import PREAMBLE, place
from sparsenet.testing.emulator.warps import LETTERS, WARP, warp


def _text_of(text: str) -> Callable[[str], Iterator[str]]:
    return lambda name: iter([text])


def _number_twin(instruction: Instruction) -> Callable[[str], Iterator[str]]:
    """By the Python twin of an instruction of numbers."""
    def define(name: str) -> Iterator[str]:
        letters = {"f": "float32", "r": "uint32"}
        signature = f"{letters[instruction.results]}({', '.join(letters[c] for c in instruction.arguments)})"
        function, text = host_llvm(instruction.twin, signature)
        yield text
        kinds = [LETTERS[c] for c in instruction.arguments]
        given = ", ".join(f"{kind} %x{i}" for i, kind in enumerate(kinds))
        result = LETTERS[instruction.results]
        yield f"""
declare i32 @"{function}"(ptr, ptr, {', '.join(kinds)})
define {result} @{name}({given}) alwaysinline {{
  %made = alloca {result}
  %error = alloca ptr
  call i32 @"{function}"(ptr %made, ptr %error, {given})
  %value = load {result}, ptr %made
  ret {result} %value
}}"""
    return define


def _register(offset: int) -> Callable[[str], Iterator[str]]:
    return lambda name: iter([f"""
define i32 @"{name}"() alwaysinline {{
  %v = load i64, ptr {place(offset)}
  %n = trunc i64 %v to i32
  ret i32 %n
}}"""])


_REGISTERS = {f"nv.read.ptx.sreg.{name}.{axis}": offset + i
              for name, offset in (("tid", TID), ("ctaid", CTAID), ("ntid", NTID), ("nctaid", NCTAID))
              for i, axis in enumerate("xyz")} | {"dynamic_smem_size": DYNAMIC_BYTES}

_COPY_BYTES = {"copy4_async": 16, "copy_async": 4}

_EARLY = {
    **{f"nv.atomic.load.{name}": f"""
define {kind} @"nv.atomic.load.{name}"(ptr %p, {kind} %v) alwaysinline {{
  %old = atomicrmw {operation} ptr %p, {kind} %v monotonic
  ret {kind} %old
}}""" for name, kind, operation in (
        ("add.f32.p0f32", "float", "fadd"), ("add.f64.p0f64", "double", "fadd"),
        ("inc.32.p0i32", "i32", "uinc_wrap"), ("dec.32.p0i32", "i32", "udec_wrap"))},
    **{name: f'define void @"{name}"() alwaysinline {{\n  fence seq_cst\n  ret void\n}}'
       for name in ("nv.membar.cta", "nv.membar.gl", "nv.membar.sys")},
    "nv.read.ptx.sreg.laneid": f"""
define i32 @"nv.read.ptx.sreg.laneid"() alwaysinline {{
  %v = load i64, ptr {place(CURRENT)}
  %n = trunc i64 %v to i32
  %lane = and i32 %n, 31
  ret i32 %lane
}}""",
    "nv.read.ptx.sreg.warpsize": 'define i32 @"nv.read.ptx.sreg.warpsize"() alwaysinline {\n  ret i32 32\n}',
    "lanemask_lt": f"""
define i32 @lanemask_lt() alwaysinline {{
  %v = load i64, ptr {place(CURRENT)}
  %n = trunc i64 %v to i32
  %lane = and i32 %n, 31
  %bit = shl i32 1, %lane
  %mask = sub i32 %bit, 1
  ret i32 %mask
}}""",
    "activemask": f"""
define i32 @activemask() alwaysinline {{
  %v = load i64, ptr {place(CURRENT)}
  %n = trunc i64 %v to i32
  %lane = and i32 %n, 31
  %bit = shl i32 1, %lane
  ret i32 %bit
}}""",  # itself alone: the least that a GPU may say
    "nanosleep": "define void @nanosleep(i32 %n) alwaysinline {\n  ret void\n}",
}

_LATE = {
    "nv.barrier0": f"""
define void @"nv.barrier0"(i64 %site) alwaysinline {{
  call void @sn.wait(i64 {AT_BARRIER}, i64 0, i64 %site)
  ret void
}}""",
    **{f"nv.barrier0.{name}": f"""
define i32 @"nv.barrier0.{name}"(i32 %p, i64 %site) alwaysinline {{
  %wide = zext i32 %p to i64
  call void @sn.wait(i64 {AT_BARRIER}, i64 %wide, i64 %site)
  %v = load i64, ptr {place(offset)}
  %b = icmp ne i64 %v, 0
  %n = zext i1 %b to i32
  ret i32 %n
}}""" for name, offset in (("and", BARRIER_ALL), ("or", BARRIER_COUNT))},
    "nv.barrier0.popc": f"""
define i32 @"nv.barrier0.popc"(i32 %p, i64 %site) alwaysinline {{
  %wide = zext i32 %p to i64
  call void @sn.wait(i64 {AT_BARRIER}, i64 %wide, i64 %site)
  %v = load i64, ptr {place(BARRIER_COUNT)}
  %n = trunc i64 %v to i32
  ret i32 %n
}}""",
    "commit_copies": f"""
define void @commit_copies() alwaysinline {{
  %t = load i64, ptr {place(CURRENT)}
  %p = getelementptr i64, ptr @sn.groups, i64 %t
  %g = load i64, ptr %p
  %n = add i64 %g, 1
  store i64 %n, ptr %p
  ret void
}}""",
    "wait_copies": f"""
define void @wait_copies(i64 %left) {{
entry:
  %t = load i64, ptr {place(CURRENT)}
  %gp = getelementptr i64, ptr @sn.groups, i64 %t
  %g = load i64, ptr %gp
  %limit = sub i64 %g, %left
  %queue = getelementptr [{MOST_COPIES} x [{COPY} x i64]], ptr @sn.copies, i64 %t
  %np = getelementptr i64, ptr @sn.queued, i64 %t
  %n = load i64, ptr %np
  br label %next
next:
  %i = phi i64 [0, %entry], [%i1, %turn]
  %kept = phi i64 [0, %entry], [%kept1, %turn]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %look, label %end
look:
  %e = getelementptr [{COPY} x i64], ptr %queue, i64 %i
  %entryv = load [{COPY} x i64], ptr %e
  %group = extractvalue [{COPY} x i64] %entryv, 3
  %due = icmp slt i64 %group, %limit
  br i1 %due, label %copy, label %keep
copy:
  %d = extractvalue [{COPY} x i64] %entryv, 0
  %s = extractvalue [{COPY} x i64] %entryv, 1
  %b = extractvalue [{COPY} x i64] %entryv, 2
  %whole = lshr i64 %b, 32
  %part = and i64 %b, 4294967295
  %site = extractvalue [{COPY} x i64] %entryv, 4
  %dp = inttoptr i64 %d to ptr
  %sp = inttoptr i64 %s to ptr
  call void @sn.touch(i64 %d, i64 %whole, i64 {WRITE}, i64 %site)
  call void @llvm.memset.p0.i64(ptr %dp, i8 0, i64 %whole, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %dp, ptr %sp, i64 %part, i1 false)
  br label %turn
keep:
  %k = getelementptr [{COPY} x i64], ptr %queue, i64 %kept
  store [{COPY} x i64] %entryv, ptr %k
  %kept0 = add i64 %kept, 1
  br label %turn
turn:
  %kept1 = phi i64 [%kept, %copy], [%kept0, %keep]
  %i1 = add i64 %i, 1
  br label %next
end:
  store i64 %kept, ptr %np
  ret void
}}
declare void @sn.touch(i64, i64, i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)""",
    **{name: f"""
define void @{name}(i64 %d, i64 %s, i32 %count, i64 %site) {{
  %t = load i64, ptr {place(CURRENT)}
  %gp = getelementptr i64, ptr @sn.groups, i64 %t
  %g = load i64, ptr %gp
  %queue = getelementptr [{MOST_COPIES} x [{COPY} x i64]], ptr @sn.copies, i64 %t
  %np = getelementptr i64, ptr @sn.queued, i64 %t
  %n = load i64, ptr %np
  %full = icmp uge i64 %n, {MOST_COPIES}
  %long = icmp ugt i32 %count, {size // 4}
  %bad = or i1 %full, %long
  br i1 %bad, label %fail, label %ok
fail:
  %kind = select i1 %full, i64 {TOO_MANY_COPIES}, i64 {TOO_LONG_COPY}
  %given = zext i32 %count to i64
  call void @sn.fail(i64 %kind, i64 %d, i64 {size}, i64 %site, i64 %given)
  unreachable
ok:
  %bytes32 = shl i32 %count, 2
  %bytes64 = zext i32 %bytes32 to i64
  %bytes = or i64 %bytes64, {size << 32}
  %v0 = insertvalue [{COPY} x i64] undef, i64 %d, 0
  %v1 = insertvalue [{COPY} x i64] %v0, i64 %s, 1
  %v2 = insertvalue [{COPY} x i64] %v1, i64 %bytes, 2
  %v3 = insertvalue [{COPY} x i64] %v2, i64 %g, 3
  %v4 = insertvalue [{COPY} x i64] %v3, i64 %site, 4
  %e = getelementptr [{COPY} x i64], ptr %queue, i64 %n
  store [{COPY} x i64] %v4, ptr %e
  %n1 = add i64 %n, 1
  store i64 %n1, ptr %np
  ret void
}}""" for name, size in _COPY_BYTES.items()},
}

EARLY = {name: _text_of(text) for name, text in _EARLY.items()} | {
    name: _register(offset) for name, offset in _REGISTERS.items()} | {
    "to_tf32": _number_twin(to_tf32), "pack_bf16": _number_twin(pack_bf16)}
"""Operations that the optimizer may look into before accesses are checked: name -> function of it to LLVM modules."""

# print: C's va_list of x86-64 as it is when all registers are used up; CUDA lays the arguments out as the stack would
_LATE["vprintf"] = """
declare i32 @vdprintf(i32, ptr, ptr)
define i32 @vprintf(ptr %text, ptr %given) {
  %list = alloca {i32, i32, ptr, ptr}
  store {i32, i32, ptr, ptr} {i32 48, i32 304, ptr null, ptr null}, ptr %list
  %place = getelementptr {i32, i32, ptr, ptr}, ptr %list, i64 0, i32 2
  store ptr %given, ptr %place
  %n = call i32 @vdprintf(i32 1, ptr %text, ptr %list)
  ret i32 %n
}"""

LATE = {name: _text_of(text) for name, text in _LATE.items()} | dict.fromkeys(WARP, warp)
"""Operations that switch to other threads, or copy unseen by the checks."""

_DECLARED = re.compile(r'^declare [^@]*@"?([\w.]+)"?\(', re.M)


def definitions(texts: list[str], table: dict[str, Callable[[str], Iterator[str]]]) -> list[str]:
    """Modules that define what the texts declare, as far as the table has it."""
    names = {name for text in texts for name in _DECLARED.findall(text)}
    return [module if module.startswith("; ModuleID") else PREAMBLE + module
            for name in sorted(names & table.keys()) for module in table[name](name)]
