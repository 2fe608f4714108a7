"""One contestant's process: reads a task from its first line of input, then makes as many steps as each line says.

    python -m tests.benchmarks.peers.serve THREADS

Answers are lines of JSON: once what it is (or what went wrong), then the seconds of each step, wall and CPU. It may use
as many cores as threads: TensorFlow's and JAX's pools have no other limit that binds all of them.
"""

import ctypes
import gc
import importlib
import importlib.metadata
import json
import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from tests.benchmarks.peers.task import Task

MODULES = {"sparsenet": "ours", "torch": "pytorch", "tensorflow": "tensorflow", "jax": "jax"}
PACKAGES = {"sparsenet": ("sparsenet", "numba"), "torch": ("torch",), "tensorflow": ("tensorflow", "tensorflow-cpu"),
            "jax": ("jax", "jaxlib")}


def main() -> None:
    """See the module's docstring."""
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # what libraries print is no answer
        end_with_parent()
        use_cores(int(sys.argv[1]))
        task = Task(**json.loads(sys.stdin.readline()))
        try:
            if task.most_memory:
                limit_memory(task.most_memory)
            made = importlib.import_module(f"tests.benchmarks.peers.{MODULES[task.by]}").steps(task)
            for _ in range(made.warm):
                made.step()
        except Exception as error:
            answers.write(json.dumps({"error": " ".join(f"{type(error).__name__}: {error}".split())[:400]}) + "\n")
            return
        answers.write(json.dumps({"versions": versions(task.by), "batches": made.batches}) + "\n")
        for line in sys.stdin:
            answers.write(json.dumps({**timed(made.step, int(line)), "bytes": peak(), **made.about()}) + "\n")


def end_with_parent() -> None:
    """Have the system kill this process when the one that started it ends: stopped, it would not see the end of its
    input."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def use_cores(count: int) -> None:
    """Let this process run on so many of the cores that it may run on."""
    with suppress(AttributeError):  # no such call on macOS or Windows
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def limit_memory(size: int) -> None:
    """Let allocations fail beyond so many bytes, before the system looks for a process to kill."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def timed(step: Any, count: int) -> dict[str, list[float]]:
    """Seconds of each of so many steps."""
    walls, cpus = [], []
    gc.collect()
    for _ in range(count):
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {"wall": walls, "cpu": cpus}


def peak() -> int:
    """Most bytes of memory that this process ever held at once; 0 where the system does not say.

    Not ru_maxrss: a process inherits that of its parent.
    """
    with suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM"):
                return 1024 * int(line.split()[1])
    return 0


def versions(by: str) -> dict[str, str]:
    """Of a contestant's packages, as far as they are installed."""
    found = {}
    for package in PACKAGES[by]:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


if __name__ == "__main__":
    main()
