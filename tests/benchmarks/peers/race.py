"""Running a race: a process for each contestant, who take turns; whoever does not run is stopped, so that no thread of
his waits on a core that another is timed on."""

import json
import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from sparsenet.bench.workloads import Workload
from tests.benchmarks.peers.rows import Contestant, Race
from tests.benchmarks.peers.task import Task, write

ROOT = Path(__file__).parents[3]
_TURN = 1.0
"""Seconds of timed steps in a turn, about"""
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_STOP, _GO = getattr(signal, "SIGSTOP", None), getattr(signal, "SIGCONT", None)


@dataclass(frozen=True)
class Settings:
    """How a race is run."""

    out: Path
    """Folder of examples, caches and logs"""
    python: str
    """Interpreter of the peers"""
    own: str
    """Interpreter of sparsenet"""
    seconds: float
    """For the timed turns of all contestants"""
    small: int = 1
    """Divide all sizes by it"""
    batches: int = 541
    """Of an epoch: MovieLens 20M's examples"""
    patience: float = 900
    """Seconds that a contestant may take to get ready: to compile, and to train for an epoch where that is wanted"""


class Process:
    """One contestant's process. Once ready it is stopped but for its turns."""

    def __init__(self, command: list[str], task: Task, threads: int, settings: Settings, log: IO[str]) -> None:
        environment = {**os.environ, **dict.fromkeys(_POOLS, str(threads)), "CUDA_VISIBLE_DEVICES": "",
                       "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3",
                       "TORCHINDUCTOR_CACHE_DIR": str(settings.out / "inductor")}
        self._process = subprocess.Popen([*command, str(threads)], cwd=ROOT, env=environment, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1)
        self.id = self._process.pid
        self.ready = self._ask(json.dumps(asdict(task)), settings.patience)
        self._pause()

    def take_turn(self, steps: int, patience: float) -> dict[str, Any]:
        """Make so many steps; {"wall": seconds of each, "cpu": the same, "bytes": peak memory, …} or {"error": …}."""
        if _GO is not None:
            self._process.send_signal(_GO)
        try:
            return self._ask(str(steps), patience)
        finally:
            self._pause()

    def _pause(self) -> None:
        if _STOP is not None and self._process.poll() is None:
            self._process.send_signal(_STOP)

    def _ask(self, line: str, patience: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = threading.Timer(patience, self._process.kill)
        limit.start()
        try:
            self._process.stdin.write(line + "\n")
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            limit.cancel()
        if answer:
            return json.loads(answer)
        self._process.wait(10)
        return {"error": f"its process ended with status {self._process.returncode}, after at most {patience:.0f} s"}

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def started(contestant: Contestant, task: Task, threads: int, settings: Settings) -> Iterator[Process]:
    """A contestant's process, ended with the block."""
    own = contestant.by == "sparsenet"
    command = [settings.own if own else settings.python, "-m", "tests.benchmarks.peers.serve"]
    name = f"{task.name}-{task.kind}-{contestant.name}-{threads}".replace(" ", "-")
    with (settings.out / f"{name}.log").open("w", encoding="utf-8") as log:
        process = Process(command, task, threads, settings, log)
        try:
            yield process
        finally:
            process.end()


def run(race: Race, threads: int, settings: Settings) -> dict[str, dict[str, Any]]:
    """Race all contestants; by name, {"wall": median seconds of a batch, "cpu": the same, "bytes": peak memory,
    "steps": how many were timed, "versions": …} or {"error": why there are none}.

    A turn begins with a step that is not timed: it brings weights back into the caches. An epoch's pieces differ from
    each other: of them, and of what runs beside them, it is the mean.
    """
    found: dict[str, dict[str, Any]] = {}
    times: dict[str, tuple[list[float], list[float]]] = {}
    with ExitStack() as stack:
        running: dict[str, Process] = {}
        for contestant in race.contestants:
            task = _task(race, contestant, settings)
            process = stack.enter_context(started(contestant, task, threads, settings))
            found[contestant.name] = process.ready
            if "error" not in process.ready:
                running[contestant.name], times[contestant.name] = process, ([], [])
        end = time.perf_counter() + settings.seconds
        whole = {one.name for one in race.contestants if race.kind == "epoch" and one.by == "sparsenet"}
        turns, counts = 0, dict.fromkeys(running, 1)
        while running and (turns < 2 or time.perf_counter() < end):
            for name, process in list(running.items()):
                untimed = name not in whole
                answer = process.take_turn(counts[name] + untimed, settings.patience)
                if "error" in answer:
                    found[name] = answer
                    del running[name], times[name]
                    continue
                fresh = [answer.pop(clock)[untimed:] for clock in ("wall", "cpu")]
                if untimed:
                    counts[name] = max(1, min(50, int(_TURN / max(fresh[0]))))
                for kept, new in zip(times[name], fresh, strict=True):
                    kept.extend(new)
                found[name] |= answer
            turns += 1
            if any(len(times[name][0]) == _pieces(settings) for name in running if name in whole):
                break
    average = statistics.fmean if race.kind == "epoch" else statistics.median
    for name, clocks in times.items():
        wall, cpu = (average(clock) / found[name]["batches"] for clock in clocks)
        found[name] |= {"wall": wall, "cpu": cpu, "steps": len(clocks[0])}
    return found


def _pieces(settings: Settings) -> int:
    return min(20, settings.batches)


def _task(race: Race, contestant: Contestant, settings: Settings) -> Task:
    workload = race.workload if settings.small == 1 else race.workload.smaller(settings.small)
    whole = replace(workload, batches=settings.batches)
    return Task(
        kind=race.kind, name=workload.name, features=workload.features, hidden=workload.hidden,
        outputs=workload.outputs, output=workload.output, batch=workload.batch, valued=workload.valued,
        data=str(examples(workload, settings.out)), epoch=str(examples(whole, settings.out))
        if race.kind in ("trained", "epoch") else "", by=contestant.by, variant=contestant.variant,
        precision=contestant.precision, optimizer=race.optimizer, loss=race.loss, small=settings.small,
        pieces=_pieces(settings))


def examples(workload: Workload, out: Path) -> Path:
    """The file of a workload's examples, written where there is none."""
    parts: Iterable[Any] = (workload.features, workload.per_example, workload.batch, workload.batches)
    name = "-".join(map(str, parts if workload.labels is None else (*parts, workload.outputs, workload.labels)))
    file = out / f"examples-{name}.npz"
    if not file.exists():
        inputs, targets = workload.examples()
        fresh = file.with_suffix(".new")
        write(fresh, inputs, None if targets is inputs else targets)
        fresh.replace(file)
    return file
