"""The host's threads: Numba's pool, and BLAS inside it."""

import ctypes
import functools
import glob
import os
import sys
import threading
from typing import Any

import numba
from numba import types


def choose_pool() -> None:
    """Prefer TBB (1.6 us a parallel region), then workqueue (72 us); GNU OpenMP spins for milliseconds on busy cores.

    A TBB from PyPI lies in the environment's own lib folder, where the loader does not look: load it by path. Called on
    import, for Numba settles its pool at the first numba.set_num_threads or parallel loop, whosever it is.
    """
    for library in glob.glob(os.path.join(sys.prefix, "lib", "libtbb.so.12")):
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    if "NUMBA_THREADING_LAYER" not in os.environ and "NUMBA_THREADING_LAYER_PRIORITY" not in os.environ:
        numba.config.THREADING_LAYER_PRIORITY = ["tbb", "workqueue", "omp"]


choose_pool()

# BLAS as Numba links it: gemm(kind, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc), column-major,
# letters and addresses as integers.
gemm = types.ExternalFunction("numba_xxgemm", types.intc(
    types.char, types.char, types.char, types.intp, types.intp, types.intp, types.uintp, types.uintp, types.intp,
    types.uintp, types.intp, types.uintp, types.uintp, types.intp))


@functools.cache
def _blas() -> Any:
    import scipy.linalg.cython_blas  # noqa: F401  so that its threads can be limited
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def threads_now() -> int:
    """How many threads a parallel loop has now: numba.set_num_threads says so."""
    return int(numba.get_num_threads())


def most_threads() -> int:
    """How many of them a parallel loop may ever have."""
    return int(numba.config.NUMBA_NUM_THREADS)


class _Exclusive:
    """The one who runs kernels; see `exclusive`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._depth = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        self.lock.acquire()
        if self._depth == 0:
            self._limit = _blas().limit(limits=1)
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._limit.restore_original_limits()
        self.lock.release()


exclusive = _Exclusive()
"""`with exclusive:` no other Python thread runs kernels, and a BLAS call uses one thread.

Numba's workqueue pool must not be entered twice at once, a network's buffers serve one batch at a time, and BLAS is
called from loops that are parallel themselves. Taken once for a whole pass it costs nothing in its kernels.
"""

if sys.platform != "win32":  # a child of fork must not inherit the lock from a thread that it does not have
    os.register_at_fork(before=exclusive.lock.acquire, after_in_parent=exclusive.lock.release,
                        after_in_child=exclusive.lock.release)
