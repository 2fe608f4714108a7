"""CUDA kernels run on the CPU, as compiled for a GPU, on a machine without one.

numba-cuda compiles a kernel to LLVM code for NVIDIA's compiler. Here that same code is made machine code of the CPU:
CUDA threads are fibers, barriers switch between them, and the GPU's own instructions are done by their twins. What it
finds that a GPU does not tell: an access outside an array, a misaligned one, a race on shared memory, a barrier that
not all threads reach, shared memory that is read before it is written (it begins as NaN), an asynchronous copy whose
end nobody waits for (nothing is copied before the wait).

What it does not find: races on global memory; one between lanes of a warp of which only others waited in syncwarp; an
index that leaves its row, but not its array. It does not fuse multiplications with additions, so that last bits may
differ from a GPU's, and it tells nothing of speed. A thread runs until it waits: one that looks again and again whether
another has written something never ends, and no signal interrupts a kernel.

It needs numba-cuda and the CUDA runtime's library, no compiler and no driver, and a processor with x86-64.
"""

from sparsenet.testing.emulator.device import Emulator
from sparsenet.testing.emulator.launch import (
    DeadlockError,
    Emulated,
    EmulatorError,
    OutOfBoundsError,
    RaceError,
    emulate,
)

__all__ = ["DeadlockError", "Emulated", "Emulator", "EmulatorError", "OutOfBoundsError", "RaceError", "emulate"]
