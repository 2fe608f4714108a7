"""The report of a GPU: do the kernels' tests pass on it, how close to its limits are they, and how fast is training?

    python -m sparsenet.bench gpu --minutes 5

Each section is a process of its own, which is ended when its time is over, and leaves a JSON file and a log; what is
there already, of the same device and size, is not measured again. gpu.md puts all of them into tables. Nothing is
needed beyond sparsenet[cuda] and its test tools, and PyTorch to compare with.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparsenet.bench.sections import ROOT, SECTIONS
from sparsenet.device import device
from sparsenet.testing.emulator import Emulator

_ABOUT = {
    "kernels": "Arrays are the same in every call: those that are smaller than the card's L2 cache stay there, so that "
               "a share of the limit can exceed 100 %.",
    "steps": "Used bytes: how much more of the card's memory is taken after training than before the network was made: "
             "its arrays, and CUDA's own for the kernels and graphs that it was the first to use."}


def measure(section: str, name: str, small: int, minutes: float, out: Path) -> None:
    """Measure one section in this process, writing its rows as they come.

    name   "cuda", "cpu", "simulator" or "emulator"
    small  1, or by how much all sizes are divided
    """
    on = Emulator(races=False) if name == "emulator" else device(name)
    found: dict[str, Any] = {"device": name, "small": small, "rows": [], "complete": False}
    for row in SECTIONS[section][0](on, small, minutes):
        found["rows"].append(row)
        _write(out / f"{section}.json", found)
    _write(out / f"{section}.json", {**found, "complete": True})


def report(name: str, small: int, minutes: float, out: Path) -> Path:
    """Measure all sections that `out` does not have yet for this device and size, each in a process with its share of
    the time; returns the file of tables. A section that fails or takes too long says so in the tables, with what it had
    measured by then."""
    def kept(section: str) -> dict[str, Any]:
        found = _read(out / f"{section}.json")
        return found if (found.get("device"), found.get("small")) == (name, small) else {}

    out.mkdir(parents=True, exist_ok=True)
    notes: dict[str, str] = {}
    for section, (_, share) in SECTIONS.items():
        if kept(section).get("complete"):
            continue
        seconds = 60 * minutes * share
        print(f"{section}: up to {seconds:.0f} s", flush=True)
        command = [sys.executable, "-m", "sparsenet.bench", "gpu", "--section", section, "--device", name,
                   "--small", str(small), "--minutes", str(minutes * share), "--out", str(out)]
        notes[section] = _run(command, seconds + 30, out / f"{section}.log")
    file = out / "gpu.md"
    found = {section: kept(section).get("rows", []) for section in SECTIONS}
    _write(out / "gpu.json", found)
    file.write_text("\n".join(tables(found, notes)), encoding="utf-8")
    return file


def _run(command: list[str], seconds: float, log: Path) -> str:
    """Run a process and all that it starts, for so long; what they print is the log. Returns what went wrong, or ""."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with log.open("w", encoding="utf-8") as output, subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True, env=environment) as process:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"ended after {seconds:.0f} s"
        except BaseException:  # Ctrl-C does not reach a session of its own
            _end(process)
            raise
    printed = log.read_text(encoding="utf-8", errors="replace").splitlines()
    last = [line for line in printed if line.strip()]
    return "" if process.returncode == 0 else last[-1] if last else f"exit status {process.returncode}"


def _end(process: subprocess.Popen) -> None:
    """End a process; where there are sessions, all of its own."""
    if sys.platform == "win32":
        process.kill()
    else:
        with suppress(ProcessLookupError):  # it ended by itself
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tables(found: dict[str, list[dict[str, Any]]], notes: dict[str, str]) -> Iterator[str]:
    """The report in Markdown, line by line."""
    limits = {row["limit"]: row["rate"] for row in found.get("limits", [])}
    yield "# sparsenet on this GPU"
    for section, rows in found.items():
        yield f"\n## {section}\n"
        if notes.get(section):
            yield f"Not complete: {notes[section]}\n"
        if section in _ABOUT:
            yield f"{_ABOUT[section]}\n"
        if rows:
            shown = [_shown(row, limits) for row in rows]
            columns = list(dict.fromkeys(key for row in shown for key in row))
            yield "| " + " | ".join(columns) + " |"
            yield "|---" * len(columns) + "|"
            cells = ([str(row.get(column, "")).replace("|", "\\|") for column in columns] for row in shown)
            yield from ("| " + " | ".join(row) + " |" for row in cells)


def _shown(row: dict[str, Any], limits: dict[str, float]) -> dict[str, Any]:
    """A row with numbers that people read, and shares of what the card can do."""
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
    if "seconds" in row:
        shares = [row[what] / limits[limit] for what, limit in (("bytes/s", "copy"), ("FLOP/s", row["rate"]))
                  if limits.get(limit)]
        shown |= {"microseconds": f"{1e6 * row['seconds']:.1f}", "GB/s": f"{row['bytes/s'] / 1e9:.3g}",
                  "TFLOP/s": f"{row['FLOP/s'] / 1e12:.3g}", "of the limit": f"{max(shares, default=0):.0%}"}
        for key in ("seconds", "bytes/s", "FLOP/s"):
            shown.pop(key)
    if "share" in row:
        shown["share"] = f"{row['share']:.1%}"
    return shown


def _write(file: Path, value: Any) -> None:
    temporary = file.with_suffix(".part")
    temporary.write_text(json.dumps(value, indent=1), encoding="utf-8")
    temporary.replace(file)


def _read(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
