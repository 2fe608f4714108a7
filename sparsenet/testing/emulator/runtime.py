"""What every kernel is linked with: the state that it shares with the scheduler, waiting, failing."""

from sparsenet.testing.emulator.layout import (
    ABANDONED,
    CONTEXT,
    COPY,
    CURRENT,
    ERROR,
    HOST,
    MASK,
    MOST_COPIES,
    MOST_THREADS,
    SITE,
    SIZE,
    STATUS,
    WORDS,
)


def place(offset: int) -> str:
    """LLVM's word for the address of a number of the shared state."""
    return f"getelementptr (i64, ptr @sn.state, i64 {offset})"


RUNTIME = f"""
@sn.state = global [{SIZE} x i64] zeroinitializer, align 64
@sn.given = global [{MOST_THREADS * WORDS} x i32] zeroinitializer, align 64
declare void @sn.switch(ptr, ptr)
define void @sn.wait(i64 %status, i64 %mask, i64 %site) noinline {{
  %t = load i64, ptr {place(CURRENT)}
  %sp = getelementptr i64, ptr {place(STATUS)}, i64 %t
  store i64 %status, ptr %sp
  %mp = getelementptr i64, ptr {place(MASK)}, i64 %t
  store i64 %mask, ptr %mp
  %ip = getelementptr i64, ptr {place(SITE)}, i64 %t
  store i64 %site, ptr %ip
  %cp = getelementptr i64, ptr {place(CONTEXT)}, i64 %t
  call void @sn.switch(ptr %cp, ptr {place(HOST)})
  ret void
}}
define void @sn.fail(i64 %kind, i64 %address, i64 %bytes, i64 %site, i64 %other) noinline cold {{
  store i64 %kind, ptr {place(ERROR)}
  store i64 %address, ptr {place(ERROR + 1)}
  store i64 %bytes, ptr {place(ERROR + 2)}
  store i64 %site, ptr {place(ERROR + 3)}
  store i64 %other, ptr {place(ERROR + 4)}
  call void @sn.switch(ptr {place(ABANDONED)}, ptr {place(HOST)})
  unreachable
}}
define void @sn.leave(i64 %t) {{
  %queued = getelementptr i64, ptr @sn.queued, i64 %t
  store i64 0, ptr %queued
  %given = getelementptr [{WORDS} x i32], ptr @sn.given, i64 %t
  call void @llvm.memset.p0.i64(ptr %given, i8 -1, i64 {4 * WORDS}, i1 false)
  ret void
}}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
@sn.groups = global [{MOST_THREADS} x i64] zeroinitializer
@sn.queued = global [{MOST_THREADS} x i64] zeroinitializer
@sn.copies = global [{MOST_THREADS * MOST_COPIES * COPY} x i64] zeroinitializer
"""
"""What every kernel is linked with."""

PREAMBLE = f"""
@sn.state = external global [{SIZE} x i64]
@sn.given = external global [{MOST_THREADS * WORDS} x i32]
@sn.groups = external global [{MOST_THREADS} x i64]
@sn.queued = external global [{MOST_THREADS} x i64]
@sn.copies = external global [{MOST_THREADS * MOST_COPIES * COPY} x i64]
declare void @sn.wait(i64, i64, i64)
declare void @sn.fail(i64, i64, i64, i64, i64)
"""
"""Declares it."""
