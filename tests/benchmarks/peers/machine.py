"""The machine that measures, and the README that tells it."""

import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path

README = Path(__file__).parents[3] / "README.md"


def machine() -> str:
    """Model of the CPU, what of its vectors matters, and how many of its cores this process may use."""
    told = _read("/proc/cpuinfo")
    model = re.search(r"model name\s*: (.*)", told)
    flags = [name for flag, name in (("avx2", "AVX2"), ("avx512f", "AVX-512"), ("avx512_bf16", "AVX-512 BF16"))
             if re.search(rf"\b{flag}\b", told)]
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    name = model[1] if model else platform.processor() or platform.machine()
    return f"{cores} cores of {name}{f' ({flags[-1]})' if flags else ''}"


def free_memory() -> int:
    """Bytes that processes may still take; 0 where the system does not say."""
    found = re.search(r"MemAvailable:\s*(\d+)", _read("/proc/meminfo"))
    return 1024 * int(found[1]) if found else 0


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8")
    return ""


def readme_with(name: str, text: str) -> str:
    """The README with text between the marks of a name. Raises ValueError where there are none."""
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    new, count = marked.subn(lambda found: f"{found[1]}{text}\n{found[2]}", README.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"README.md: expected one <!-- {name} --> and one <!-- /{name} -->, found {count} pairs")
    return new


def put(name: str, text: str) -> None:
    """Put text into the README between the marks of a name. Raises ValueError where there are none."""
    README.write_text(readme_with(name, text), encoding="utf-8")
