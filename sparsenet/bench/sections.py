"""The sections of a GPU's report: what the card is and reaches, its tests, every kernel, and training.

A section is a function (device, small, minutes) that yields rows, each as soon as it is measured: what came before the
end of its time is kept. All sizes are divided by `small`.
"""

import functools
import gc
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sparsenet.bench import peer
from sparsenet.bench.catalogue import entries
from sparsenet.bench.entry import REFERENCE, Entry, Sizes
from sparsenet.bench.timing import median_seconds, seconds_of
from sparsenet.bench.workloads import WORKLOADS, Workload
from sparsenet.device import Cuda, Device
from sparsenet.kernels.sparse import sparse_forward
from sparsenet.kernels.tiles import PRECISIONS
from sparsenet.kernels.update import ROOM
from sparsenet.network import Network
from sparsenet.optimizers import adam
from sparsenet.training import bind, fit
from sparsenet.version import __version__

Rows = Iterator[dict[str, Any]]

ROOT = Path(__file__).resolve().parents[2]
"""Of the checkout: where the tests are"""
_FAILURE = re.compile(r"^(.+::.+) (?:FAILED|ERROR) +\[ *\d+%\]$|^\[gw\d+\] \[ *\d+%\] (?:FAILED|ERROR) (.+::.+)$")


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
    """Tests that fail, as they fail, then pytest's last line. All that pytest prints goes to stdout."""
    marker = "cuda" if on.name == "cuda" else "emulator"
    chosen = "tests" if small == 1 else "tests/kernels/test_update.py"
    workers = ["-p", "xdist", "-n", "4"] if on.name == "cuda" and find_spec("xdist") else []  # they share the GPU
    command = [sys.executable, "-m", "pytest", "-v", "-rN", "--tb=short", "-m", marker, "-p", "no:cacheprovider"]
    last = ""
    with subprocess.Popen([*command, *workers, chosen], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            failure = _FAILURE.match(line.strip())
            if failure:
                yield {"test": failure[1] or failure[2], "result": "failed"}
            last = line.strip("=\n ") or last
    yield {"test": f"pytest -m {marker}", "result": last}
    if process.returncode not in (0, 1) or not re.search(r"\b\d+ passed", last):
        raise RuntimeError(f"pytest -m {marker}: exit status {process.returncode}, {last}")


def _ceilings(on: Device, small: int, minutes: float) -> Rows:
    """What the card reaches in the simplest programs: PyTorch's copy and its matrix products."""
    import torch

    place = "cuda" if on.name == "cuda" else "cpu"
    wait = torch.cuda.synchronize if place == "cuda" else lambda: None
    budget = min(0.5, 15 * minutes)
    source = torch.ones((2**28 if place == "cuda" else 2**22) // small, device=place)
    target = torch.empty_like(source)
    spent = median_seconds(lambda: target.copy_(source), wait, budget)
    yield {"limit": "copy", "rate": 8 * source.numel() / spent, "unit": "B/s"}
    edge = max(64, (8192 if place == "cuda" else 1024) // small)
    for precision in PRECISIONS:
        torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
        a = torch.randn(edge, edge, device=place, dtype=torch.bfloat16 if precision == "bfloat16" else torch.float32)
        spent = median_seconds(functools.partial(torch.mm, a, a), wait, budget)
        yield {"limit": precision, "rate": 2 * edge**3 / spent, "unit": "FLOP/s"}


def _kernels(on: Device, small: int, minutes: float) -> Rows:
    sizes = REFERENCE if small == 1 else Sizes(batch=8, features=40, hidden=12, per_example=4, best=4, wide=16,
                                               ranks=2, panel=16)
    every, random = list(entries(sizes)), np.random.default_rng(1)
    budget = min(0.5, 30 * minutes / len(every))

    def measured(entry: Entry) -> dict[str, Any]:
        spent = seconds_of(on, entry.bind(on, lambda shape: random.random(shape, np.float32)), budget)
        return {"seconds": spent, "bytes/s": entry.moved / spent, "FLOP/s": entry.flops / spent, "rate": entry.rate}

    yield from ({"kernel": entry.name, **_tried(measured, entry)} for entry in every)


def _tried(measured: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """What was measured, or what went wrong: the other rows are still worth their time."""
    try:
        return measured(*arguments)
    except Exception as error:
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}


def _steps(on: Device, small: int, minutes: float) -> Rows:
    """Training steps: all of sparsenet's, then PyTorch's, whose allocator keeps the memory that it once had."""
    cases = [(workload, precision) for workload in _workloads(small) for precision in PRECISIONS]
    kinds = (False, True) if small == 1 else (False,)
    budget = 30 * minutes / (len(cases) * (1 + len(kinds)))  # half of the time: the other half is for compilers
    for workload, precision in cases:
        yield {"workload": workload.name, "by": "sparsenet", "precision": precision,
               **_tried(_own_steps, on, workload, precision, budget)}
    for compiled in kinds:
        for workload, precision in cases:
            yield {"workload": workload.name, "by": f"PyTorch{', compiled' * compiled}", "precision": precision,
                   **_tried(_peer_steps, workload, precision, compiled, budget)}


def _own_steps(on: Device, workload: Workload, precision: str, budget: float) -> dict[str, Any]:
    before = _taken(on)
    network = workload.network(on, precision)
    row = {"examples/s": workload.batch * workload.batches / _epoch_seconds(network, workload, budget),
           "planned bytes": network.nbytes}
    after = _taken(on)
    return row if before is None or after is None else {**row, "used bytes": after - before}


def _taken(on: Device) -> int | None:
    """Bytes that are taken of a card's memory at this moment, by whatever process; of no other device."""
    if not isinstance(on, Cuda) or on.name != "cuda":
        return None
    gc.collect()
    context = on.numba_cuda.current_context()
    context.deallocations.clear()  # arrays that are gone, and whose memory numba-cuda has not given back yet
    free, total = context.get_memory_info()
    return total - free


def _epoch_seconds(network: Network, workload: Workload, budget: float) -> float:
    """Median of an epoch: of 3 to 50 after the first, which compiles."""
    x, t = workload.examples()
    end = time.perf_counter() + budget
    history = fit(network, x, t, optimizer=adam(), epochs=51, batch=workload.batch, progress=False,
                  callbacks=[lambda _, so_far: len(so_far["seconds"]) > 3 and time.perf_counter() > end])
    return statistics.median(history["seconds"][1:])


def _peer_steps(workload: Workload, precision: str, compiled: bool, budget: float) -> dict[str, Any]:
    step, wait = peer.training_steps(workload, precision, compiled)

    def epoch() -> None:
        for _ in range(workload.batches):
            step()

    epoch()
    wait()
    return {"examples/s": workload.batch * workload.batches / median_seconds(epoch, wait, budget)}


def _input_share(on: Device, small: int, minutes: float) -> Rows:
    """The sparse input layer's part of a step: its product, turning the batch by feature, gradient and update."""
    workloads = _workloads(small)
    budget = 15 * minutes / len(workloads)
    for workload in workloads:
        network = workload.network(on)
        step = _epoch_seconds(network, workload, budget) / workload.batches
        spent = seconds_of(on, _input_layer(network, workload), budget)
        yield {"workload": workload.name, "step": step, "input layer": spent, "share": spent / step}


def _input_layer(network: Network, workload: Workload) -> Callable[[], None]:
    """What a step does for the weights of the sparse input of a network that was trained."""
    on, optimizer = network.device, adam()
    feeds, _, _ = bind(network, *workload.examples(), workload.batch)
    batch: Any = next(iter(feeds.values())).load(np.arange(workload.batch))
    weight = next(iter(network.parameters.values()))
    y, delta = (on.zeros((workload.batch, workload.hidden[0])) for _ in range(2))
    scalars = on.put(np.resize(np.array(optimizer.scalars(1), np.float32), ROOM.shape))
    batch.by_feature(every=optimizer.visits_every_row)  # so that `update` finds it, and each call turns it once

    def call() -> None:
        sparse_forward(batch.indptr, batch.indices, batch.values, weight.value, y)
        batch.turn(every=optimizer.visits_every_row)
        weight.source = batch, delta
        weight.update(optimizer, scalars)

    return call


def _workloads(small: int) -> list[Workload]:
    return [one if small == 1 else one.smaller(small) for one in WORKLOADS.values()]


SECTIONS: dict[str, tuple[Callable[[Device, int, float], Rows], float]] = {
    "machine": (_machine, 0.05), "limits": (_ceilings, 0.1), "tests": (_tests, 0.35), "kernels": (_kernels, 0.15),
    "steps": (_steps, 0.3), "input": (_input_share, 0.05)}
"""What is measured, and its share of the time."""
