"""The host's threads: Numba's pool, and BLAS inside it."""

import ctypes
import functools
import glob
import os
import sys
from contextlib import AbstractContextManager
from typing import Any

import numba
from numba import types


@functools.cache
def choose_pool() -> None:
    """Prefer TBB (1.6 us a parallel region), then workqueue (72 us); GNU OpenMP spins for milliseconds on busy cores.

    A TBB from PyPI lies in the environment's own lib folder, where the loader does not look: load it by path.
    """
    if "NUMBA_THREADING_LAYER" in os.environ or "NUMBA_THREADING_LAYER_PRIORITY" in os.environ:
        return
    numba.config.THREADING_LAYER_PRIORITY = ["tbb", "workqueue", "omp"]
    for library in glob.glob(os.path.join(sys.prefix, "lib", "libtbb.so.12")):
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)


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


def one_blas_thread() -> AbstractContextManager:
    """While it lasts, a BLAS call uses one thread: the loops around it are parallel themselves."""
    return _blas().limit(limits=1)
