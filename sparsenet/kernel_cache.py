"""Compiled CPU kernels on disk, named by their content.

Numba's own cache names a function by its file and time stamp: it never finds a kernel that a factory made, and it
keeps a stale one when a function that the kernel calls has changed. Here the name is a hash of everything that the
compiled code depends on: the byte code of the kernel, of every function it calls, and each constant they refer to.

The folder is $SPARSENET_CACHE, else the user's cache folder; an unwritable folder means no cache, never an error.
"""

import contextlib
import functools
import hashlib
import os
import sys
import uuid
import weakref
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba.core import caching
from numba.misc.appdirs import user_cache_dir

_LIBRARIES = {"numba", "numpy", "math", "builtins", "llvmlite"}  # their versions are part of every name
_NAMED: "weakref.WeakSet[FunctionType]" = weakref.WeakSet()  # what `named` made


class UnnameableError(Exception):
    """A kernel refers to something whose content cannot be told."""


def folder() -> str:
    """Where compiled kernels are kept."""
    return os.environ.get("SPARSENET_CACHE") or user_cache_dir("sparsenet", appauthor=False)


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

    flags: compiler settings, part of the name.
    """
    try:
        os.makedirs(folder(), exist_ok=True)
        name = fingerprint(dispatcher.py_func, flags)
    except (OSError, UnnameableError):
        return dispatcher
    dispatcher._cache = _ContentCache(dispatcher.py_func, name)
    return dispatcher


def fingerprint(function: FunctionType, flags: str = "") -> str:
    """Hash of the function's content, its callees' and its constants' included. Raises UnnameableError."""
    digest = hashlib.sha256(f"{sys.version} numba {numba.__version__} numpy {np.__version__} {flags}".encode())
    for part in _describe(function, {}):
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:32]


def _describe(value: Any, seen: dict[int, int]) -> Iterator[str | bytes]:
    if isinstance(value, numba.core.dispatcher.Dispatcher):
        yield repr(sorted(value.targetoptions.items()))
        value = value.py_func
    value = getattr(value, "_defn", value)  # a Numba intrinsic
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
    elif isinstance(value, numba.types.ExternalFunction):
        yield f"{value.symbol} {value.sig}"
    elif isinstance(value, numba.types.Type):
        yield repr(value)
    elif isinstance(value, ModuleType):
        yield value.__name__
    elif isinstance(value, type) or (callable(value) and _root(value) in _LIBRARIES):
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


class _Place(caching._CacheLocator):
    """A cache entry's place: our folder, the kernel's content as its version."""

    def __init__(self, py_func: FunctionType, name: str) -> None:
        self._py_file, self._name = py_func.__code__.co_filename, name

    def get_cache_path(self) -> str:
        return folder()

    def get_source_stamp(self) -> str:
        return self._name

    def get_disambiguator(self) -> str:
        return self._name

    @classmethod
    def from_function(cls, py_func: FunctionType, py_file: str) -> None:
        return None


class _Serializer(caching.CompileResultCacheImpl):
    def __init__(self, py_func: FunctionType, name: str) -> None:
        self._locator = _Place(py_func, name)
        self._lineno = py_func.__code__.co_firstlineno
        self._filename_base = self.get_filename_base(py_func.__name__, "")


class _ContentCache(caching.FunctionCache):
    def __init__(self, py_func: FunctionType, name: str) -> None:
        self._name = repr(py_func)
        self._py_func = py_func
        self._impl = _Serializer(py_func, name)
        self._cache_path = folder()
        self._cache_file = caching.IndexDataCacheFile(self._cache_path, self._impl.filename_base, name)
        self.enable()

    def _index_key(self, sig: Any, codegen: Any) -> tuple:
        return sig, codegen.magic_tuple()  # the content is in the file's name

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super()._load_overload(sig, target_context)
        except Exception:  # a damaged file (killed while the disk was full, say) only costs a compilation
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def _save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):  # no room, no right: no cache
            super()._save_overload(sig, data)
