"""How long a call takes on a device."""

import time
from collections.abc import Callable

from sparsenet.device import Device


def seconds_of(device: Device, call: Callable[[], None], budget: float = 0.5) -> float:
    """Median seconds of a call whose work stays on the device.

    Several calls are captured as one, so that a GPU is not kept waiting for Python; the host waits for their end.

    budget  seconds to spend after the first call, which compiles
    """
    call()
    device.wait()
    started = time.perf_counter()
    call()
    device.wait()
    once = max(time.perf_counter() - started, 1e-6)
    several = int(max(1, min(50, 0.05 * budget / once)))

    def calls() -> None:
        for _ in range(several):
            call()

    again = device.capture(calls)
    return median_seconds(again, device.wait, budget) / several


def median_seconds(call: Callable[[], object], wait: Callable[[], object], budget: float) -> float:
    """Median seconds of a call and the wait for it, for at least 3 calls and `budget` seconds."""
    times: list[float] = []
    end = time.perf_counter() + budget
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 1000):
        started = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2]
