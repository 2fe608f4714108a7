"""CUDA threads as fibers: each has a stack of its own, and a scheduler runs those of a block in turn.

A thread that reaches a barrier notes what it waits for and switches to the scheduler; the scheduler goes on with the
others, and wakes those whose barrier is complete. Blocks run one after the other; several workers share the grid.
"""

from numba import types

from sparsenet.compiling import scalar
from sparsenet.testing.emulator.layout import (
    AT_BARRIER,
    BARRIER_ALL,
    BARRIER_COUNT,
    CONTEXT,
    CTAID,
    CURRENT,
    DEADLOCK,
    DIVERGED,
    DONE,
    EPOCH,
    ERROR,
    HOST,
    IN_WARP,
    MASK,
    NCTAID,
    NO_ERROR,
    NTID,
    READY,
    SITE,
    STATUS,
    TID,
    WARP_EPOCH,
)

_SAVED = ("rbp", "rbx", "r12", "r13", "r14", "r15")  # what a function must not change on x86-64, but for rsp
_FRAME = 8 * len(_SAVED)  # bytes on the stack of a thread that does not run

_SWITCH = "\\0A".join([*(f"pushq %{name}" for name in _SAVED), "movq %rsp, (%rdi)", "movq (%rsi), %rsp",
                       *(f"popq %{name}" for name in reversed(_SAVED)), "popq %rax", "jmpq *%rax"])
# a jump, whose goal a processor guesses well; the return that it stands for would be guessed wrong each time

SWITCH = f"""
define void @"sn.switch"(ptr %from, ptr %to) naked noinline {{
  call void asm sideeffect "{_SWITCH}", "~{{memory}}"()
  unreachable
}}
"""
"""LLVM text of sn.switch(from, to): saves the stack pointer in *from, goes on where *to was saved."""

_switch = types.ExternalFunction("sn.switch", types.void(types.intp, types.intp))


@scalar
def wake_warps(state, threads):
    """Wake the threads whose warp instruction is complete; returns whether there were any."""
    woken = False
    for thread in range(threads):
        if state[STATUS + thread] == IN_WARP:
            first = thread - thread % 32
            complete = (state[MASK + thread] >> (thread % 32)) & 1 == 1
            for lane in range(32):
                other = first + lane
                if (state[MASK + thread] >> lane) & 1 and other < threads and state[STATUS + other] != DONE:
                    complete &= (state[STATUS + other] == IN_WARP and state[SITE + other] == state[SITE + thread]
                                 and state[MASK + other] == state[MASK + thread])
            if complete:
                woken = True
                state[WARP_EPOCH + thread // 32] += 1
                mask = state[MASK + thread]
                for lane in range(32):
                    other = first + lane
                    if (mask >> lane) & 1 and other < threads and state[STATUS + other] == IN_WARP:
                        state[STATUS + other] = READY
    return woken


@scalar
def wake_block(state, threads):
    """Wake the threads at the block's barrier, all that are left being there; returns whether there were any."""
    waiting, true = 0, 0
    for thread in range(threads):
        if state[STATUS + thread] == IN_WARP:
            state[CURRENT], state[ERROR], state[ERROR + 3] = thread, DEADLOCK, state[SITE + thread]
            return False
        if state[STATUS + thread] == AT_BARRIER:
            waiting += 1
            true += state[MASK + thread] != 0
            other = thread - thread % 32
            while state[STATUS + other] != AT_BARRIER:
                other += 1
            if state[SITE + other] != state[SITE + thread]:
                state[CURRENT], state[ERROR], state[ERROR + 3] = thread, DIVERGED, state[SITE + thread]
                state[ERROR + 4] = other
                return False
    state[BARRIER_COUNT], state[BARRIER_ALL] = true, true == waiting
    for thread in range(threads):
        if state[STATUS + thread] == AT_BARRIER:
            state[STATUS + thread] = READY
    state[EPOCH] += 1
    return waiting > 0


def run_blocks(state, shared, stacks, stack_bytes, entry, fibers, first, last):
    """Run blocks first to last - 1 of the grid; stops at the first error, which state[ERROR] tells.

    state        as in layout.py
    shared       memory of the shared arrays; int64
    stacks       memory of the fibers' stacks, of stack_bytes each; int64
    entry        address of the function that a fiber begins with, and that never returns
    fibers       how many: one for each thread of a block, or one that runs them all
    """
    base = state.ctypes.data
    for block in range(first, last):
        rest = block
        for axis in range(3):
            state[CTAID + axis] = rest % state[NCTAID + axis]
            rest //= state[NCTAID + axis]
        shared[:] = -1  # as good as anything that a GPU finds there: NaN, and an index that is caught
        state[EPOCH] += 1
        for thread in range(fibers):
            top = (stack_bytes * (thread + 1)) // 8  # in words, as stacks is
            stacks[top - 2] = entry
            state[CONTEXT + thread] = stacks.ctypes.data + 8 * (top - 2) - _FRAME
            state[STATUS + thread] = READY
        waiting = True
        while waiting:
            x, y, z = 0, 0, 0
            in_warps = False
            for thread in range(fibers):
                if state[STATUS + thread] == READY:
                    state[CURRENT], state[TID], state[TID + 1], state[TID + 2] = thread, x, y, z
                    _switch(base + 8 * HOST, base + 8 * (CONTEXT + thread))
                    if state[ERROR] != NO_ERROR:
                        return
                in_warps |= state[STATUS + thread] == IN_WARP
                x += 1
                if x == state[NTID]:
                    x, y = 0, y + 1
                    if y == state[NTID + 1]:
                        y, z = 0, z + 1
            waiting = in_warps and wake_warps(state, fibers)
            if not waiting:
                waiting = wake_block(state, fibers)
                if state[ERROR] != NO_ERROR:
                    return
