"""A kernel's machine code for the host, and the memory that it runs in."""

import contextlib
import ctypes
import functools
import hashlib
import os
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from sparsenet import compiling, instructions, kernel_cache, lowering
from sparsenet.compiling import cpu_function, cuda_llvm, numba_cuda, with_cuda
from sparsenet.testing.emulator import checks, intrinsics, libdevice, runtime, watch
from sparsenet.testing.emulator.fibers import SWITCH, run_blocks
from sparsenet.testing.emulator.layout import (
    ABANDONED,
    ARGUMENTS,
    CURRENT,
    DONE,
    DYNAMIC_BYTES,
    ERROR,
    HOST,
    MOST_THREADS,
    NCTAID,
    NO_ERROR,
    NTID,
    SHADOW,
    SIZE,
    STACK,
    STATUS,
    TID,
    WORDS,
)
from sparsenet.testing.emulator.runtime import place
from sparsenet.testing.emulator.translate import translate

MOST_STATIC = 49_152  # bytes of static shared arrays
MOST_SHARED = {(7, 5): 65_536, (8, 0): 166_912, (8, 7): 166_912, (9, 0): 232_448, (10, 0): 232_448, (10, 3): 232_448}
"""Bytes of shared memory that a block may have, by compute capability; where not listed, LEAST_SHARED. Source: NVIDIA,
CUDA C++ Programming Guide, technical specifications."""
LEAST_SHARED = 101_376


@dataclass(frozen=True)
class Program:
    """What is kept of a compiled kernel, on disk too."""

    machine_code: bytes
    waits: list[str]
    """Instructions in which threads wait, by number"""
    sites: list[checks.Site]
    """Checked accesses, by number"""
    arrays: int
    """Arguments that are arrays"""
    rows: int
    """Of the table of bounds"""
    static: int
    """Bytes of static shared arrays"""
    room: int
    """Where dynamic shared memory begins"""
    most_dynamic: int
    """Bytes of dynamic shared memory that a launch may ask for"""
    stack: int
    """Bytes of a thread's stack"""
    grain: int
    """Bytes of shared memory that are watched as one; 0: not watched"""
    fibers: bool
    """Whether its threads wait for each other"""


def _new_machine() -> Any:
    """A description of this computer; an engine takes one for its own, and ends it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    target = llvm.Target.from_default_triple()
    if not target.triple.startswith("x86_64"):
        raise NotImplementedError(f"the emulator switches threads with instructions of x86-64; this is {target.triple}")
    return target.create_target_machine(opt=2, jit=True, cpu=llvm.get_host_cpu_name(),
                                        features=llvm.get_host_cpu_features().flatten())


_machine = functools.cache(_new_machine)


def _parsed(text: str) -> Any:
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = _machine().triple, str(_machine().target_data)
    return module


def _optimized(module: Any, level: int) -> Any:
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(_machine(), options)
    builder.getModulePassManager().run(module, builder)
    return module


def _linked(texts: list[str], keep: str, inline: bool = False) -> Any:
    """One module of several, in which all functions but one can be left out, or put in place of their calls."""
    module = _parsed(texts[0])
    for text in texts[1:]:
        module.link_in(_parsed(text))
    for function in module.functions:
        if not function.is_declaration and function.name != keep:
            function.linkage = "internal"
            if inline:
                function.add_function_attribute("alwaysinline")
    return module


def _check_complete(module: Any, kernel: str) -> None:
    """Raise NotImplementedError for calls of what is nowhere defined: to load them would end the process."""
    for function in module.functions:
        name = function.name
        known = name.startswith("llvm.") or name == "sn.switch" or llvm.address_of_symbol(name) is not None
        if function.is_declaration and not known:
            raise NotImplementedError(f"{kernel}: the emulator has no {_LACKS.get(name, name)}")


_LACKS = {"cudaCGGetIntrinsicHandle": "cooperative groups", "cudaCGSynchronize": "cooperative groups"}


@functools.cache
def check_needs() -> None:
    """Raise ImportError where numba-cuda is missing, NotImplementedError on a processor that is not x86-64."""
    if find_spec("numba_cuda") is None:
        raise ImportError("the emulator needs numba-cuda; `pip install numba-cuda nvidia-cuda-runtime`")
    numba_cuda()
    _machine()


@functools.lru_cache(maxsize=512)
def compiled(kernel: Callable, signature: tuple, capability: tuple[int, int], fastmath: bool, races: bool) -> Program:
    """The program of a kernel, from disk if it was ever made."""
    function = with_cuda(kernel, compiled=True)
    flags = f"emulator {_own_code()} {signature!r} {capability} {fastmath} {races} {_machine().triple} "
    try:
        name = kernel_cache.fingerprint(function, flags + llvm.get_host_cpu_name())
    except kernel_cache.UnnameableError:
        return _compile(function, signature, capability, fastmath, races)
    file = os.path.join(kernel_cache.folder(), f"{kernel.__name__}-{name}.emulated")
    kept = kernel_cache.read(file)
    if kept is not None:
        return pickle.loads(kept)
    program = _compile(function, signature, capability, fastmath, races)
    kernel_cache.write(file, pickle.dumps(program))
    return program


@functools.cache
def _own_code() -> str:
    """A hash of the emulator itself, and of what it gets its LLVM code from."""
    folder = os.path.dirname(__file__)
    files = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".py")]
    digest = hashlib.sha256(version("numba-cuda").encode())
    for path in [*files, compiling.__file__, instructions.__file__, lowering.__file__]:
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def _compile(function: Callable, signature: tuple, capability: tuple[int, int], fastmath: bool, races: bool) -> Program:
    translated = translate(cuda_llvm(function, signature, capability, fastmath), capability)
    name = translated.kernel.strip('"')
    early = intrinsics.definitions(translated.modules, intrinsics.EARLY) + libdevice.definitions(translated.modules)
    module = _optimized(_linked([*translated.modules, *early], name, inline=True), 2)
    if any(not one.is_declaration and one.name != name for one in module.functions):
        raise NotImplementedError(f"{function.__name__}: the emulator has no functions that call themselves")
    arrays = [title.removesuffix(".4") for kind, title in translated.parameters
              if kind == "ptr" and title.endswith(".4")]
    checked = checks.checked(str(module), arrays, races)
    late = intrinsics.definitions([checked.text], intrinsics.LATE)
    fibers = any("call void @sn.wait" in text for text in late)
    room = -(-checked.room // 16) * 16
    free = max(0, MOST_SHARED.get(capability, LEAST_SHARED) - checked.static)
    most_dynamic = free if translated.dynamic else 0
    own = "\n".join([re.sub(r"^@sn\.\w+ = .*external .*$", "", checked.text, flags=re.M), runtime.PREAMBLE,
                     watch.PREAMBLE, watch.table(len(arrays), checked.constants),
                     f"@sn.shared = global [{room + most_dynamic + 16} x i8] zeroinitializer, align 64",
                     f"@sn.dynamic = alias i8, ptr getelementptr (i8, ptr @sn.shared, i64 {room})"])
    watched = watch.definitions(len(arrays), len(checked.constants), -(-(room + most_dynamic) // checked.grain),
                                checked.grain, races)
    entry = _entry(name, [kind for kind, _ in translated.parameters], fibers, "_async(" in checked.text)
    module = _optimized(_linked([own, *late, *watched, runtime.RUNTIME, entry], "sn.entry"), 2)
    _check_complete(module, function.__name__)
    return Program(_machine().emit_object(module), translated.sites, checked.sites, len(arrays),
                   len(arrays) + 2 + len(checked.constants), checked.static, room, most_dynamic,
                   STACK + -(-checked.local // 16) * 16, checked.grain if races else 0, fibers)


def _entry(kernel: str, kinds: list[str], fibers: bool, copies: bool) -> str:
    """LLVM code of the function with which a fiber begins: one thread of the block, or all of them in turn."""
    loads = "\n".join(f"  %s{i} = getelementptr i64, ptr %given, i64 {i}\n  %x{i} = load {kind}, ptr %s{i}"
                      for i, kind in enumerate(kinds))
    call = f'call void @"{kernel}"({", ".join(f"{kind} %x{i}" for i, kind in enumerate(kinds))})'
    if fibers or copies:
        call += "\n  call void @sn.leave(i64 %t)"
    begin = f"""
@sn.state = external global [{SIZE} x i64]
declare void @sn.leave(i64)
declare void @"{kernel}"({", ".join(kinds)})
declare void @sn.switch(ptr, ptr)
define void @sn.entry() {{
entry:
  %given = load ptr, ptr {place(ARGUMENTS)}
{loads}
"""
    if fibers:
        return begin + f"""  %t = load i64, ptr {place(CURRENT)}
  {call}
  %status = getelementptr i64, ptr {place(STATUS)}, i64 %t
  store i64 {DONE}, ptr %status
  call void @sn.switch(ptr {place(ABANDONED)}, ptr {place(HOST)})
  unreachable
}}"""
    return begin + f"""  %nx = load i64, ptr {place(NTID)}
  %ny = load i64, ptr {place(NTID + 1)}
  %nz = load i64, ptr {place(NTID + 2)}
  %nxy = mul i64 %nx, %ny
  %n = mul i64 %nxy, %nz
  br label %next
next:
  %t = phi i64 [0, %entry], [%t1, %next]
  %x = urem i64 %t, %nx
  %q = udiv i64 %t, %nx
  %y = urem i64 %q, %ny
  %z = udiv i64 %q, %ny
  store i64 %t, ptr {place(CURRENT)}
  store i64 %x, ptr {place(TID)}
  store i64 %y, ptr {place(TID + 1)}
  store i64 %z, ptr {place(TID + 2)}
  {call}
  %t1 = add i64 %t, 1
  %more = icmp ult i64 %t1, %n
  br i1 %more, label %next, label %end
end:
  store i64 {DONE}, ptr {place(STATUS)}
  call void @sn.switch(ptr {place(ABANDONED)}, ptr {place(HOST)})
  unreachable
}}"""


@functools.cache
def _scheduler() -> Callable:
    """`run_blocks`, compiled; loads the instructions that switch between stacks."""
    _machine()
    engine = llvm.create_mcjit_compiler(_parsed(SWITCH), _new_machine())
    engine.finalize_object()
    _ENGINES.append(engine)
    llvm.add_symbol("sn.switch", engine.get_function_address("sn.switch"))
    return cpu_function(run_blocks)


_ENGINES: list[Any] = []  # whose code lives as long as the process


class Worker:
    """A program loaded into memory, with shared memory of its own."""

    def __init__(self, program: Program) -> None:
        self._run, self._program = _scheduler(), program
        self._engine = llvm.create_mcjit_compiler(_parsed(""), _new_machine())
        self._engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(program.machine_code))
        self._engine.finalize_object()
        self._entry = self._engine.get_function_address("sn.entry")
        self.state = self._words("sn.state", SIZE)
        self._bounds = self._words("sn.bounds", 2 * program.rows).reshape(program.rows, 2)
        self._given = self._words("sn.given", MOST_THREADS * WORDS // 2)
        self._shared = self._words("sn.shared", -(-(program.room + program.most_dynamic) // 8))
        if program.grain:
            self._shadow = np.zeros((-(-self._shared.nbytes // program.grain), watch.KEPT), np.int64)
            self.state[SHADOW] = self._shadow.ctypes.data

    def _words(self, name: str, count: int) -> np.ndarray:
        """The module's global of that name, as int64."""
        address = self._engine.get_global_value_address(name)
        return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(address))

    def run(self, slots: np.ndarray, bounds: list[tuple[int, int]], grid: tuple[int, int, int],
            block: tuple[int, int, int], dynamic: int, first: int, last: int) -> None:
        """Run blocks first to last - 1; state[ERROR] tells how it ended.

        slots    the arguments, 8 bytes each
        bounds   first address of each array, and the one after
        dynamic  bytes of dynamic shared memory
        """
        program, state = self._program, self.state
        shared = self._shared[:-(-(program.room + dynamic) // 8)]
        fibers = block[0] * block[1] * block[2] if program.fibers else 1
        with _borrowed(fibers * program.stack // 8) as stacks:
            self._bounds[:program.arrays + 2] = [*bounds, _ends(shared), _ends(stacks)]
            state[NTID:NTID + 3], state[NCTAID:NCTAID + 3] = block, grid
            state[ARGUMENTS], state[DYNAMIC_BYTES], state[ERROR] = slots.ctypes.data, dynamic, NO_ERROR
            self._given[:] = -1
            self._run(state, shared, stacks, program.stack, self._entry, fibers, first, last)

    @property
    def shared(self) -> int:
        """Address of the block's shared memory."""
        return self._shared.ctypes.data


def _ends(array: np.ndarray) -> tuple[int, int]:
    return array.ctypes.data, array.ctypes.data + array.nbytes


@contextlib.contextmanager
def _borrowed(words: int) -> Iterator[np.ndarray]:
    """Memory for stacks; the next to ask gets it again."""
    stacks = _STACKS.pop() if _STACKS else np.empty(0, np.int64)
    if stacks.size < words:
        stacks = np.empty(words, np.int64)
    try:
        yield stacks
    finally:
        _STACKS.append(stacks)


_STACKS: list[np.ndarray] = []
