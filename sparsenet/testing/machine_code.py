"""What NVIDIA's assembler makes of a kernel: registers, spills, memory, instructions. Needs no GPU.

    device = PtxDevice((9, 0))
    matmul(device.zeros((256, 128)), device.zeros((128, 512)), device.zeros((256, 512)))
    machine_code(device.compiled[0].ptx).registers
"""

import functools
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

TOOLS = {"ptxas": "nvidia-cuda-nvcc", "nvdisasm": "nvidia-cuda-nvdisasm"}  # and the packages that bring them
_WIDE = r"\.(?:\w+\.)*128\b"
_COUNTED = {
    "wide_loads": rf"\bLDG{_WIDE}",
    "wide_stores": rf"\bSTG{_WIDE}",
    "wide_shared_loads": rf"\bLDS{_WIDE}",
    "wide_shared_stores": rf"\bSTS{_WIDE}",
    "tensor": r"\bHMMA\b",
    "asynchronous": r"\bLDGSTS\b",
}
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?!NOP)(\S.*?) *;", re.MULTILINE)


@dataclass(frozen=True)
class MachineCode:
    """A kernel as one generation of GPUs executes it, functions that it calls included."""

    architecture: str
    """"sm_90" for example"""
    registers: int
    """Of a thread."""
    spills: int
    """Bytes a thread writes to memory and reads back because its registers do not suffice."""
    local: int
    """Bytes of a thread's own memory: spilled registers, and arrays that found no place in registers."""
    shared: int
    """Static bytes of a block."""
    wide_loads: int
    """LDG.128: 16 bytes a thread from global memory."""
    wide_stores: int
    """STG.128"""
    wide_shared_loads: int
    """LDS.128"""
    wide_shared_stores: int
    """STS.128"""
    tensor: int
    """HMMA: products of small matrices on the tensor cores."""
    asynchronous: int
    """LDGSTS: from global to shared memory without a register between (cp.async)."""
    instructions: int
    """All of them but padding."""
    text: str = field(repr=False, compare=False)
    """The instructions, a line each."""


def machine_code(ptx: str, *, max_registers: int | None = None) -> MachineCode:
    """Assemble a kernel's PTX for the architecture that it names, at ptxas -O3.

    max_registers  of a thread; more are spilled
    Raises ImportError where the assembler or the disassembler is missing, ValueError where it refuses the PTX.
    """
    return machine_codes([ptx], max_registers=max_registers)[0]


def machine_codes(ptx: Sequence[str], *, max_registers: int | None = None) -> list[MachineCode]:
    """As `machine_code`, for several kernels of one architecture: much of the disassembler's time is its start."""
    with tempfile.TemporaryDirectory() as folder:
        assembled = [_assemble(text, Path(folder), max_registers) for text in ptx]
        architectures = {architecture for architecture, _, _ in assembled}
        if len(architectures) != 1:
            raise ValueError(f"ptx: expected kernels of one architecture, got {sorted(architectures)}")
        [architecture] = architectures
        code = Path(folder, "code")
        code.write_bytes(b"".join(binary for _, _, binary in assembled))
        listing = _run("nvdisasm", "--binary", architecture.replace("sm_", "SM"), str(code))
    lines, end, found = _INSTRUCTION.findall(listing), 0, []
    for _, report, binary in assembled:
        begin, end = end, end + len(binary)
        instructions = [text for address, text in lines if begin <= int(address, 16) < end]
        found.append(MachineCode(
            architecture=architecture,
            registers=max(_numbers(r"Used (\d+) registers", report)),
            spills=sum(_numbers(r"(\d+) bytes spill (?:stores|loads)", report)),
            local=sum(_numbers(r"(\d+) bytes stack frame", report)),
            shared=max(_numbers(r"(\d+) bytes smem", report), default=0),
            instructions=len(instructions), text="\n".join(instructions),
            **{name: sum(bool(re.search(pattern, text)) for text in instructions)
               for name, pattern in _COUNTED.items()}))
    return found


def _assemble(ptx: str, folder: Path, max_registers: int | None) -> tuple[str, str, bytes]:
    """(architecture, ptxas' report, instructions)."""
    target = re.search(r"^\.target (sm_\w+)", ptx, re.MULTILINE)
    if target is None:
        raise ValueError(f"ptx: expected PTX, which names its target, got {ptx[:40]!r}")
    limit = [] if max_registers is None else [f"-maxrregcount={max_registers}"]
    source, binary = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(ptx)
    report = _run("ptxas", "-v", "-O3", f"-arch={target[1]}", *limit, str(source), "-o", str(binary))
    return target[1], report, _sections(binary.read_bytes(), b".text.")


def _sections(elf: bytes, prefix: bytes) -> bytes:
    """The contents of the sections of an ELF file whose names begin so."""
    table, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]  # name, …, place, length
    return b"".join(elf[place:place + length] for name, _, _, _, place, length in headers
                    if elf.startswith(prefix, headers[names][4] + name))


def _numbers(pattern: str, report: str) -> list[int]:
    return [int(number) for number in re.findall(pattern, report)]


def assembler_version() -> str:
    """Of ptxas, "13.0.88" for example. Raises ImportError where it is missing."""
    return re.findall(r"V(\d[\d.]*)", _run("ptxas", "--version"))[-1]


def check_tools() -> None:
    """Raise ImportError, with what to install, where the assembler or the disassembler is missing."""
    for tool in TOOLS:
        _path(tool)


def _run(tool: str, *arguments: str) -> str:
    done = subprocess.run([_path(tool), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{tool}: {(done.stderr or done.stdout).strip()}")
    return done.stdout + done.stderr


@functools.cache
def _path(tool: str) -> str:
    """Where a tool is: in the wheel that brings it, or on the PATH."""
    try:
        files = metadata.files(TOOLS[tool]) or []
    except metadata.PackageNotFoundError:
        files = []
    found = next((str(file.locate()) for file in files if file.stem == tool), shutil.which(tool))
    if found is None:
        raise ImportError(f"{tool} was not found; `pip install {' '.join(TOOLS.values())}` brings it, of the same "
                          "CUDA version as nvidia-nvvm")
    return found
