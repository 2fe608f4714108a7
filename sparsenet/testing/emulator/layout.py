"""The memory that a kernel's machine code and the scheduler share: one array of int64 in the kernel's own module.

LLVM text and Python both take the places of things from here.
"""

MOST_THREADS = 1024  # of a block

TID, CTAID, NTID, NCTAID = 0, 3, 6, 9  # x, y, z each: the special registers
CURRENT = 12  # number of the thread that runs, x fastest
HOST = 13  # the scheduler's own stack pointer
ARGUMENTS = 14  # address of the kernel's arguments, 8 bytes each
DYNAMIC_BYTES = 15  # of dynamic shared memory
SHADOW = 16  # address of what the watch over shared memory keeps
ABANDONED = 17  # stack pointer of a thread that is left for good
ERROR = 18  # kind of error (0: none), address, bytes, site, other thread
EPOCH = 24  # counts the barriers passed, over all blocks
BARRIER_COUNT = 25  # of the last barrier's predicates: how many true
BARRIER_ALL = 26  # whether all were
WARP_EPOCH = 32  # for each of 32 warps, counts its own barriers
CONTEXT = 64  # stack pointer of each thread
STATUS = CONTEXT + MOST_THREADS
MASK = STATUS + MOST_THREADS  # lanes that a waiting thread waits for; the predicate of one at a barrier
SITE = MASK + MOST_THREADS  # which instruction of the kernel it waits in
SIZE = SITE + MOST_THREADS

READY, AT_BARRIER, IN_WARP, DONE = range(4)

NO_ERROR, OUT_OF_BOUNDS, RACE, DEADLOCK, DIVERGED, MISALIGNED, TOO_MANY_COPIES, TOO_LONG_COPY = range(8)
READ, WRITE, ATOMIC = range(3)

STACK = 1 << 14  # bytes of a thread's stack, besides its local arrays
WORDS = 16  # the most arguments of a warp instruction
MOST_COPIES = 64  # asynchronous copies that a thread may have under way
COPY = 5  # what is known of one: target, source, bytes (low half: to copy, high half: to fill), group, site
