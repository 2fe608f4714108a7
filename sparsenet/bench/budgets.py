"""The table of every CUDA kernel's machine code, for each generation of GPUs: built, kept as a file, compared.

`python -m sparsenet.bench budgets --write` builds budgets.csv anew. A launch of the catalogue and an architecture make
one row. The file's first line says which compilers made it.
"""

import csv
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from sparsenet.bench.catalogue import entries
from sparsenet.testing.machine_code import MachineCode, assembler_version, check_tools, machine_codes
from sparsenet.testing.ptx import Compiled, PtxDevice

FILE = Path(__file__).with_name("budgets.csv")
CAPABILITIES = ((7, 5), (8, 0), (9, 0), (10, 0))  # Turing, Ampere, Hopper, Blackwell
REBUILD = "if that is meant: python -m sparsenet.bench budgets --write"
_KEPT = ("wide_loads", "wide_stores", "wide_shared_loads", "wide_shared_stores", "tensor", "asynchronous")
_CODE = [field.name for field in fields(MachineCode) if field.name != "text"]
_SHARES = 4  # in which the catalogue is compiled, for each generation
_TOLERANCE = 4  # registers more, where other compilers made the table


class Row(NamedTuple):
    """A launch's machine code."""

    entry: str
    """Its name in the catalogue."""
    launch: str
    """Name of the function that became a CUDA kernel."""
    blocks: int
    threads: int
    """In a block."""
    code: MachineCode

    @property
    def key(self) -> tuple[str, str, str]:
        """What no other row has."""
        return self.entry, self.launch, self.code.architecture


class Table(NamedTuple):
    """All rows, and what made them."""

    compilers: str
    rows: list[Row]

    def of(self, *capabilities: tuple[int, int]) -> "Table":
        """The rows of some generations of GPUs."""
        wanted = {f"sm_{major}{minor}" for major, minor in capabilities}
        return Table(self.compilers, [row for row in self.rows if row.code.architecture in wanted])


def build(*capabilities: tuple[int, int]) -> Table:
    """The table of the kernels as they are, for some generations of GPUs, by as many processes as there are cores.

    Raises ImportError where NVIDIA's compiler, assembler or disassembler is missing.
    """
    check_tools()
    jobs = [(first, capability) for capability in capabilities for first in range(_SHARES)]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as processes:  # Numba's threads survive no fork
        rows = [row for found in processes.map(_rows, *zip(*jobs, strict=True)) for row in found]
    places = {entry.name: place for place, entry in enumerate(entries())}
    return Table(compilers(), sorted(rows, key=lambda row: places[row.entry]))


def _rows(first: int, capability: tuple[int, int]) -> list[Row]:
    """Those of one of `_SHARES` equal shares of the catalogue."""
    launches: list[tuple[str, str, int, int]] = []
    ptx: list[str] = []
    for entry in list(entries())[first::_SHARES]:
        device = PtxDevice(capability)
        try:
            entry.bind(device)()
        except Exception as error:
            error.add_note(f"while compiling {entry.name} for compute capability {capability}")
            raise
        compiled: dict[str, Compiled] = {}
        for launch in device.compiled:
            compiled.setdefault(launch.ptx, launch)  # the first of those of the same code
        for name, launch in zip(_distinct([each.kernel for each in compiled.values()]), compiled.values(), strict=True):
            launches.append((entry.name, name, launch.blocks, launch.threads))
            ptx.append(launch.ptx)
    return [Row(*launch, replace(code, text="")) for launch, code in zip(launches, machine_codes(ptx), strict=True)]


def _distinct(names: list[str]) -> Iterator[str]:
    for place, name in enumerate(names):
        before = names[:place].count(name)
        yield f"{name}-{before + 1}" if before else name


def compilers() -> str:
    """Names and versions of what turns Python into machine code here."""
    def version(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "from elsewhere"

    packages = [f"{package} {version(package)}" for package in ("numba", "numba-cuda", "nvidia-nvvm")]
    return ", ".join([*packages, f"ptxas {assembler_version()}"])


def write(table: Table, path: Path) -> None:
    """Write a table as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(f"# {table.compilers}\n")
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["entry", "launch", "blocks", "threads", *_CODE])
        for row in table.rows:
            lines.writerow([*row[:4], *(getattr(row.code, name) for name in _CODE)])


def read(path: Path = FILE) -> Table:
    """Read what `write` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        made_by = file.readline().removeprefix("# ").strip()
        rows = []
        for line in csv.DictReader(file):
            numbers = {name: int(line[name]) for name in _CODE if name != "architecture"}
            code = MachineCode(architecture=line["architecture"], text="", **numbers)
            rows.append(Row(line["entry"], line["launch"], int(line["blocks"]), int(line["threads"]), code))
    return Table(made_by, rows)


def complaints(found: Table, table: Table) -> Iterator[str]:
    """In words, what is worse in `found` than in the table, and which rows only one of them has.

    A spill is always wrong. A table by other compilers binds less: a few registers more, and fewer of a kind of
    instruction as long as some are left, are let pass.
    """
    alike = found.compilers == table.compilers
    known, seen = {row.key: row.code for row in table.rows}, {row.key for row in found.rows}
    for row in found.rows:
        what = " ".join(row.key)
        if row.code.spills:
            yield f"{what}: spills {row.code.spills} bytes of registers"
        if row.threads * -(-row.code.registers // 8) * 8 > 65_536:
            yield f"{what}: {row.code.registers} registers for each of {row.threads} threads, of 65,536"
        if row.key not in known:
            yield f"{what}: not in the table"
        else:
            yield from (f"{what}: {change}" for change in _worse(row.code, known[row.key], alike))
    yield from (f"{' '.join(key)}: in the table, but in no entry of the catalogue" for key in known if key not in seen)


def _worse(code: MachineCode, budget: MachineCode, alike: bool) -> Iterable[str]:
    if code.registers > budget.registers + (0 if alike else _TOLERANCE):
        yield f"{code.registers} registers, {budget.registers} in the table"
    for name in ("local", "shared"):
        if getattr(code, name) > getattr(budget, name):
            yield f"{getattr(code, name)} bytes of {name} memory, {getattr(budget, name)} in the table"
    for name in _KEPT:
        count, before = getattr(code, name), getattr(budget, name)
        if count < (before if alike else min(before, 1)):
            yield f"{count} {name.replace('_', ' ')}, {before} in the table"
