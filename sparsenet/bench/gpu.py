"""The report of a GPU: do the kernels' tests pass on it, how close to its limits are they, and how fast is training?

    python -m sparsenet.bench gpu --minutes 5

Each section is a process of its own, which is ended when its time is over, and leaves a JSON file; what is there
already is not measured again. gpu.md puts all of them into tables. Nothing is needed beyond sparsenet[cuda] and its
test tools, and PyTorch to compare with.
"""

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sparsenet.bench import peer
from sparsenet.bench.catalogue import REFERENCE, Sizes, entries
from sparsenet.bench.timing import median_seconds, seconds_of
from sparsenet.bench.workloads import WORKLOADS, Workload
from sparsenet.device import Cuda, Device, device
from sparsenet.kernels.sparse import sparse_forward, sparse_update
from sparsenet.kernels.tiles import PRECISIONS
from sparsenet.kernels.update import ROOM
from sparsenet.network import Network
from sparsenet.optimizers import adam
from sparsenet.testing.emulator import Emulator
from sparsenet.training import bind, fit
from sparsenet.version import __version__

Rows = Iterator[dict[str, Any]]

_ROOT = Path(__file__).resolve().parents[2]


def _machine(on: Device, small: int, minutes: float) -> Rows:
    found: dict[str, str] = {"sparsenet": __version__, "device": on.name, "python": sys.version.split()[0]}
    for package in ("numba", "numba_cuda", "numpy", "torch"):
        try:
            found[package] = __import__(package).__version__
        except ImportError:
            found[package] = "missing"
    if isinstance(on, Cuda) and on.name == "cuda":
        card = on.numba_cuda.get_current_device()
        name = card.name.decode() if isinstance(card.name, bytes) else str(card.name)
        found |= {"card": name, "capability": ".".join(map(str, on.capability)),
                  "multiprocessors": str(card.MULTIPROCESSOR_COUNT)}
    yield from ({"what": what, "is": value} for what, value in found.items())


def _tests(on: Device, small: int, minutes: float) -> Rows:
    marker = "cuda" if on.name == "cuda" else "emulator"
    chosen = ["tests"] if small == 1 else ["tests/kernels/test_update.py"]
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", marker, "-p", "no:cacheprovider", *chosen],
                         cwd=_ROOT, capture_output=True, text=True, check=False)
    lines = [line for line in run.stdout.splitlines() if line.strip()]
    yield {"test": f"pytest -m {marker}", "result": lines[-1].strip("= ") if lines else run.stderr[-300:]}
    yield from ({"test": line.split(" - ")[0], "result": "failed"} for line in lines if line.startswith("FAILED"))


def _ceilings(on: Device, small: int, minutes: float) -> Rows:
    """What the card reaches in the simplest programs: PyTorch's copy and its matrix products."""
    import torch

    place = "cuda" if on.name == "cuda" else "cpu"
    wait = torch.cuda.synchronize if place == "cuda" else lambda: None
    source = torch.ones((2**28 if place == "cuda" else 2**22) // small, device=place)
    target = torch.empty_like(source)
    spent = median_seconds(lambda: target.copy_(source), wait, 0.5)
    yield {"limit": "copy", "rate": 8 * source.numel() / spent, "unit": "B/s"}
    edge = max(64, (8192 if place == "cuda" else 1024) // small)
    for precision in PRECISIONS:
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
        a = torch.randn(edge, edge, device=place, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
        spent = median_seconds(functools.partial(torch.mm, a, a), wait, 0.5)
        yield {"limit": precision, "rate": 2 * edge**3 / spent, "unit": "FLOP/s"}


def _kernels(on: Device, small: int, minutes: float) -> Rows:
    sizes = REFERENCE if small == 1 else Sizes(batch=8, features=40, hidden=12, per_example=4, best=4, wide=16,
                                               ranks=2, panel=16)
    every = list(entries(sizes))
    for entry in every:
        try:
            spent = seconds_of(on, entry.bind(on), min(0.5, 30 * minutes / len(every)))
        except Exception as error:  # the others are still worth measuring
            yield {"kernel": entry.name, "error": f"{type(error).__name__}: {error}"[:300]}
            continue
        yield {"kernel": entry.name, "seconds": spent, "bytes/s": entry.moved / spent, "FLOP/s": entry.flops / spent,
               "rate": entry.rate}


def _steps(on: Device, small: int, minutes: float) -> Rows:
    """Training steps, sparsenet's and PyTorch's."""
    for workload in _workloads(small):
        x, t = workload.examples()
        for precision in PRECISIONS:
            network = workload.network(on, precision)
            fit(network, x, t, optimizer=adam(), epochs=1, batch=workload.batch, progress=False)
            history = fit(network, x, t, optimizer=adam(), epochs=3, batch=workload.batch, progress=False)
            yield {"workload": workload.name, "by": "sparsenet", "precision": precision,
                   "examples/s": x.shape[0] / min(history["seconds"]), **_memory(on, network)}
            del network
        for precision in PRECISIONS:
            for compiled in (False, True) if small == 1 else (False,):
                yield {"workload": workload.name, "by": f"PyTorch{', compiled' * compiled}", "precision": precision,
                       **_peer(workload, precision, compiled)}


def _peer(workload: Workload, precision: str, compiled: bool) -> dict[str, Any]:
    try:
        step, wait = peer.training_steps(workload, precision, compiled)
        for _ in range(3):
            step()
        wait()

        def epoch() -> None:
            for _ in range(workload.batches):
                step()

        spent = median_seconds(epoch, wait, 1.0)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return {"examples/s": workload.batch * workload.batches / spent}


def _input_share(on: Device, small: int, minutes: float) -> Rows:
    """The sparse input layer's part of a step: its product, turning the batch by feature, gradient and update."""
    for workload in _workloads(small):
        x, t = workload.examples()
        network = workload.network(on)
        history = fit(network, x, t, optimizer=adam(), epochs=3, batch=workload.batch, progress=False)
        step = min(history["seconds"]) / workload.batches
        spent = seconds_of(on, _input_layer(network, bind(network, x, t, workload.batch)[0], workload), 0.5)
        yield {"workload": workload.name, "step": step, "input layer": spent, "share": spent / step}


def _input_layer(network: Network, feeds: dict[str, Any], workload: Workload) -> Callable[[], None]:
    """What a step does for the weights of the sparse input."""
    on, optimizer = network.device, adam()
    batch = next(iter(feeds.values())).load(np.arange(workload.batch))
    weight = next(iter(network.parameters.values()))
    y, delta = (on.zeros((workload.batch, workload.hidden[0])) for _ in range(2))
    scalars = on.put(np.resize(np.array(optimizer.scalars(1), np.float32), ROOM.shape))
    scratch = on.zeros((64, workload.hidden[0]))

    def call() -> None:
        sparse_forward(batch.indptr, batch.indices, batch.values, weight.value, y)
        features, indptr, examples, positions, touched = batch.turn(every=optimizer.visits_every_row)
        sparse_update(optimizer.rule, features, indptr, examples, positions, touched, batch.values, delta,
                      weight.value, weight.slots, 0.0, 0.0, scalars, optimizer.numbers, scratch)

    return call


def _memory(on: Device, network: Network) -> dict[str, Any]:
    """Bytes that are taken on the card, and those that the network's arrays need."""
    if not isinstance(on, Cuda) or on.name != "cuda":
        return {"planned bytes": network.nbytes}
    free, total = on.numba_cuda.current_context().get_memory_info()
    return {"planned bytes": network.nbytes, "used bytes": total - free}


def _workloads(small: int) -> list[Workload]:
    return [one if small == 1 else one.smaller(small) for one in WORKLOADS.values()]


SECTIONS: dict[str, tuple[Callable[[Device, int, float], Rows], float]] = {
    "machine": (_machine, 0.05), "limits": (_ceilings, 0.1), "tests": (_tests, 0.35), "kernels": (_kernels, 0.15),
    "steps": (_steps, 0.3), "input": (_input_share, 0.05)}
"""What is measured, and its share of the time."""


def measure(section: str, name: str, small: int, minutes: float, out: Path) -> None:
    """Measure one section in this process, writing its rows as they come.

    name   "cuda", "cpu", "simulator" or "emulator"
    small  1, or by how much all sizes are divided
    """
    on = Emulator(races=False) if name == "emulator" else device(name)
    rows: list[dict[str, Any]] = []
    for row in SECTIONS[section][0](on, small, minutes):
        rows.append(row)
        _write(out / f"{section}.json", {"rows": rows, "complete": False})
    _write(out / f"{section}.json", {"rows": rows, "complete": True})


def report(name: str, small: int, minutes: float, out: Path) -> Path:
    """Measure all sections that `out` does not have yet, each in a process with its share of the time; returns the
    file of tables. A section that fails or takes too long says so in the tables, with what it had measured by then."""
    out.mkdir(parents=True, exist_ok=True)
    notes: dict[str, str] = {}
    for section, (_, share) in SECTIONS.items():
        if _read(out / f"{section}.json").get("complete"):
            continue
        seconds = 60 * minutes * share
        print(f"{section}: up to {seconds:.0f} s", flush=True)
        command = [sys.executable, "-m", "sparsenet.bench", "gpu", "--section", section, "--device", name,
                   "--small", str(small), "--minutes", str(minutes * share), "--out", str(out)]
        notes[section] = _run(command, seconds + 30)
    file = out / "gpu.md"
    found = {section: _read(out / f"{section}.json").get("rows", []) for section in SECTIONS}
    _write(out / "gpu.json", found)
    file.write_text("\n".join(tables(found, notes)), encoding="utf-8")
    return file


def _run(command: list[str], seconds: float) -> str:
    """Run a process and all that it starts, for so long; returns what went wrong, or ""."""
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          start_new_session=True, env={**os.environ, "PYTHONPATH": str(_ROOT)}) as process:
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"ended after {seconds:.0f} s"
    last = [line for line in errors.splitlines() if line.strip()]
    return "" if process.returncode == 0 else last[-1] if last else f"exit status {process.returncode}"


def tables(found: dict[str, list[dict[str, Any]]], notes: dict[str, str]) -> Iterator[str]:
    """The report in Markdown, line by line."""
    limits = {row["limit"]: row["rate"] for row in found["limits"]}
    yield "# sparsenet on this GPU"
    for section, rows in found.items():
        yield f"\n## {section}\n"
        if notes.get(section):
            yield f"Not complete: {notes[section]}\n"
        if rows:
            shown = [_shown(row, limits) for row in rows]
            columns = list(dict.fromkeys(key for row in shown for key in row))
            yield "| " + " | ".join(columns) + " |"
            yield "|---" * len(columns) + "|"
            yield from ("| " + " | ".join(str(row.get(column, "")) for column in columns) + " |" for row in shown)


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
