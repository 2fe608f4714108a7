"""NVIDIA's own matrix product, to compare ours with; never used unless asked for.

The only file that loads cuBLAS. It has not run on a GPU yet: tests replace the library.
Source: NVIDIA, cuBLAS library, "cublas<t>gemm".
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

_NORMAL, _TRANSPOSED = 0, 1


@functools.cache
def _library() -> Any:
    """Raises ImportError where there is none."""
    try:
        from cuda import pathfinder

        return ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cublas").abs_path)
    except (ImportError, RuntimeError, OSError) as error:
        raise ImportError(f"cuBLAS cannot be loaded ({error}); `pip install 'sparsenet[cublas]'`") from error


@functools.cache
def _handle(stream: int = 0) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _ask("cublasCreate_v2", ctypes.byref(handle))
    if stream:
        _ask("cublasSetStream_v2", handle, ctypes.c_void_p(stream))
    return handle


def _ask(function: str, *args: Any) -> None:
    status = getattr(_library(), function)(*args)
    if status:
        raise RuntimeError(f"{function}: status {status}")


def gemm_on(stream: int) -> Callable[..., None]:
    """`gemm` on a stream, made ready: amid the capture of a graph nothing can be."""
    _handle(stream)
    return functools.partial(gemm, stream=stream)


def gemm(a: Any, b: Any, c: Any, transpose_a: bool, transpose_b: bool, accumulate: bool, stream: int = 0) -> None:
    """c = op(a) @ op(b), or += where accumulate, for C-contiguous float32 arrays of numba.cuda, on its default stream.

    Raises ImportError where cuBLAS is missing, RuntimeError where it refuses.
    """
    rows, columns = c.shape
    inner = a.shape[0 if transpose_a else 1]
    factors = ctypes.c_float(1), ctypes.c_float(accumulate)
    # cuBLAS counts along columns: to it, our arrays are their transposes, and c' = b' a'.
    _ask("cublasSgemm_v2", _handle(stream), _TRANSPOSED if transpose_b else _NORMAL,
         _TRANSPOSED if transpose_a else _NORMAL, columns, rows, inner, ctypes.byref(factors[0]),
         b.device_ctypes_pointer, max(1, b.shape[1]), a.device_ctypes_pointer, max(1, a.shape[1]),
         ctypes.byref(factors[1]), c.device_ctypes_pointer, columns)
