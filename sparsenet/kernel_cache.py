"""Compiled kernels on disk, named by their content.

Numba's own cache names a function by its file and time stamp: it never finds a kernel that a factory made, and it
keeps a stale one when a function that the kernel calls has changed. Here the name is a hash of everything that the
compiled code depends on: the byte code of the kernel, of every function it calls, and each constant they refer to.

The folder is $SPARSENET_CACHE, else the user's cache folder; an unwritable folder means no cache, never an error.
Nothing in it is ever needed: delete it to save room.
"""

import contextlib
import enum
import functools
import hashlib
import os
import pickle
import sys
import uuid
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import caching, compiler, serialize
from numba.misc.appdirs import user_cache_dir

_LIBRARIES = {"numba", "numpy", "math", "builtins", "llvmlite"}  # their versions are part of every name
_VERSIONS = f"numba {numba.__version__} llvmlite {llvmlite.__version__} numpy {np.__version__}"
_NAMED: "weakref.WeakSet[FunctionType]" = weakref.WeakSet()  # what `named` made


class UnnameableError(Exception):
    """A kernel refers to something whose content cannot be told."""


def folder() -> str:
    """Where compiled kernels are kept."""
    return os.environ.get("SPARSENET_CACHE") or user_cache_dir("sparsenet", appauthor=False)


def read(file: str) -> bytes | None:
    """What `write` put into a file; None where there is none, or a damaged one."""
    try:
        with open(file, "rb") as opened:
            checksum, data = opened.read(32), opened.read()
    except OSError:
        return None
    return data if checksum == hashlib.sha256(data).digest() else None


def write(file: str, data: bytes) -> None:
    """Write a file that appears whole or not at all; no room or no right means no file, never an error."""
    temporary = f"{file}-{uuid.uuid4().hex}"
    with contextlib.suppress(OSError):
        os.makedirs(folder(), exist_ok=True)
        try:
            with open(temporary, "wb") as written:
                written.write(hashlib.sha256(data).digest() + data)
            os.replace(temporary, file)
        except OSError:
            os.unlink(temporary)
            raise


def named(function: Any) -> FunctionType:
    """A copy of the function whose qualified name holds its content.

    Machine code from different processes meets in this one, and the linker tells functions apart by name: two
    factories' closures of one name would be taken for each other.
    """
    try:
        suffix = fingerprint(function)
    except UnnameableError:
        suffix = uuid.uuid4().hex
    copy = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__,
                        function.__closure__)
    copy.__module__, copy.__doc__, copy.__kwdefaults__ = function.__module__, function.__doc__, function.__kwdefaults__
    copy.__qualname__ = f"{function.__qualname__}_{suffix}"
    _NAMED.add(copy)
    return copy


@functools.cache
def renamed(dispatcher: Any) -> Any:
    """A function that its author compiled, under a name that holds its content; one that has such a name as it is."""
    function = dispatcher.py_func
    return dispatcher if function in _NAMED else numba.jit(named(function), **dispatcher.targetoptions)


def attach(dispatcher: Any, flags: str) -> Any:
    """Let a Numba dispatcher load its machine code from disk, and save what it compiles; returns the dispatcher.

    dispatcher  numba.njit's or numba.cuda.jit's
    flags       compiler settings, part of the name
    """
    on_cpu = isinstance(dispatcher, numba.core.dispatcher.Dispatcher)
    both = (_reduce_cpu, _rebuild_cpu) if on_cpu else (_reduce_cuda, _rebuild_cuda)
    dispatcher._cache = _Files(dispatcher.py_func, flags, *both)
    return dispatcher


def fingerprint(function: FunctionType, flags: str = "") -> str:
    """Hash of the function's content, its callees' and its constants' included. Raises UnnameableError."""
    digest = hashlib.sha256(f"{sys.version} {_VERSIONS} {flags}".encode())
    for part in _describe(function, {}):
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:32]


def _describe(value: Any, seen: dict[int, int]) -> Iterator[str | bytes]:
    if isinstance(value, numba.core.dispatcher.Dispatcher):
        yield repr(sorted(value.targetoptions.items()))
    value = getattr(value, "py_func", value)  # a dispatcher, numba.cuda's too
    value = getattr(value, "_defn", value)  # a Numba intrinsic
    value = getattr(value, "content", value)  # of an instruction, see lowering.py
    if isinstance(value, FunctionType):
        if id(value) in seen:
            yield f"function {seen[id(value)]}"
        else:
            seen[id(value)] = len(seen)
            yield from _describe_code(value.__code__)
            yield from _describe((value.__defaults__, *(value.__kwdefaults__ or {}).items()), seen)
            for refers_to in _references(value):
                yield from _describe(refers_to, seen)
    elif isinstance(value, np.generic | np.ndarray):
        yield f"{value.dtype} {value.shape}"
        yield value.tobytes()
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield f"{type(value).__name__} {value!r}"
    elif isinstance(value, tuple | frozenset):
        yield f"{type(value).__name__} of {len(value)}"
        for item in value:
            yield from _describe(item, seen)
    elif isinstance(value, CodeType):
        yield from _describe_code(value)
    elif isinstance(value, numba.types.ExternalFunction):
        yield f"{value.symbol} {value.sig}"
    elif isinstance(value, numba.types.Type):
        yield repr(value)
    elif isinstance(value, ModuleType):
        yield value.__name__
    elif isinstance(value, enum.Enum):
        yield from _describe((str(value), value.value), seen)
    elif isinstance(value, enum.EnumMeta):
        yield from _describe(tuple(value.__members__.values()), seen)
    elif callable(value) and _root(value) in _LIBRARIES:
        yield f"{value.__module__}.{value.__qualname__}"
    else:
        raise UnnameableError(repr(value))


def _root(value: Any) -> str:
    return (getattr(value, "__module__", None) or "").partition(".")[0]


def _describe_code(code: CodeType) -> Iterator[str | bytes]:
    yield code.co_code
    yield f"{code.co_names} {code.co_varnames} {code.co_freevars} {code.co_argcount}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _describe_code(constant)
        else:
            yield repr(constant)


def _references(function: FunctionType) -> Iterator[Any]:
    """What the names in a function's code mean: closure cells, globals, and attributes of our own modules."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield cell.cell_contents
        except ValueError as error:
            raise UnnameableError(f"{name} has no value yet") from error
    names = _names(function.__code__)
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    for value in found:
        yield value
        if isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in _LIBRARIES:
            attributes = [vars(value)[name] for name in names if name in vars(value)]
            found += [new for new in attributes if not any(new is known for known in found)]


def _names(code: CodeType) -> list[str]:
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return list(dict.fromkeys([*code.co_names, *inner]))


class _Files(caching._Cache):
    """Numba's side of the cache: one file for each signature and machine, which holds its own checksum.

    A file that is damaged, or made by another Numba, only costs a compilation, whose result replaces it.
    """

    def __init__(self, function: FunctionType, flags: str, reduce: Callable[[Any], Any],
                 rebuild: Callable[[Any, Any], Any]) -> None:
        self._function, self._flags, self._reduce, self._rebuild = function, flags, reduce, rebuild
        self._files: dict[str, str] = {}

    @property
    def cache_path(self) -> str:
        return folder()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        try:  # the content as it is now, which is what will be compiled
            name = fingerprint(self._function, f"{self._flags} {sig!r} {target_context.codegen().magic_tuple()}")
            os.makedirs(folder(), exist_ok=True)
        except (OSError, UnnameableError):
            self._files.pop(repr(sig), None)
            return None
        self._files[repr(sig)] = os.path.join(folder(), f"{self._function.__name__}-{name}.kernel")
        try:
            data = read(self._files[repr(sig)])
            return None if data is None else self._rebuild(target_context, pickle.loads(data))
        except Exception:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        if repr(sig) not in self._files:
            return
        try:
            dumped = serialize.dumps(self._reduce(data))
        except Exception:  # what Numba cannot write down is compiled in every process
            return
        write(self._files[repr(sig)], dumped)

    def enable(self) -> None:
        pass

    def disable(self) -> None:
        pass

    def flush(self) -> None:
        pass


def _reduce_cpu(result: Any) -> Any:
    if result.library.has_dynamic_globals or result.lifted:
        raise ValueError("holds addresses of this process")
    return result._reduce()


def _rebuild_cpu(target_context: Any, payload: Any) -> Any:
    return compiler.CompileResult._rebuild(target_context, *payload)


def _reduce_cuda(kernel: Any) -> Any:
    return type(kernel), kernel._reduce_states()


def _rebuild_cuda(target_context: Any, payload: Any) -> Any:
    kind, states = payload
    return kind._rebuild(**states)
