"""What is raced against what, and the rows of the table that come of it, with their goals."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from sparsenet.bench.workloads import WORKLOADS, Workload


class Contestant(NamedTuple):
    """Who does a task, and how."""

    by: str
    variant: str = ""
    precision: str = "float32"

    @property
    def name(self) -> str:
        """In tables."""
        return " ".join(part for part in (*self[:2], self.precision.replace("float32", "")) if part)


@dataclass(frozen=True)
class Race:
    """Contestants who do the same work side by side."""

    workload: Workload
    contestants: tuple[Contestant, ...]
    kind: str = "step"
    optimizer: str = "adam"
    loss: str = "cross_entropy"


@dataclass(frozen=True)
class Row:
    """A line of the table: the fastest of sparsenet's contestants of a race beside the best of some peers."""

    title: str
    race: str
    goal: float
    """With two threads, wall time"""
    alone: float | None = None
    """With one thread, CPU time"""
    measure: str = "time"
    """"time"; "memory"; "threads": one thread's time over two threads'"""
    trick: bool = False
    """Beside those who write sparse deltas by hand; else beside the others"""

    def meets(self, contestant: str) -> bool:
        """Whether a contestant of the race counts in this row."""
        return ("trick" in contestant) == self.trick


W1, W2, W3 = WORKLOADS.values()
_LOW = "bfloat16"


def _own(*precisions: str) -> list[Contestant]:
    return [Contestant("sparsenet", precision=precision) for precision in precisions]


def _torch(*precisions: str, variants: Iterable[str] = ("compiled",)) -> list[Contestant]:
    return [Contestant("torch", variant, precision) for variant in variants for precision in precisions]


def _xla(precision: str) -> list[Contestant]:
    return [Contestant(by, precision=precision) for by in ("tensorflow", "jax")]


def _everyone(precision: str) -> tuple[Contestant, ...]:
    return (*_own(precision), *_torch(precision), *_xla(precision))


_MARGINS = (*_own("float32", _LOW), *_torch("float32", _LOW), *_xla("float32"))
_TRICK = tuple(_torch("float32", _LOW, variants=["trick"]))
_BOTH = ("eager", "compiled")

RACES: dict[str, Race] = {
    "w1-float32": Race(W1, (*_everyone("float32"), *_torch("float32", variants=["eager"]))),
    "w1-bfloat16": Race(W1, (*_everyone(_LOW), *_torch(_LOW, variants=["eager"]))),
    **{f"w1-margins-{rule}": Race(W1, _MARGINS + _TRICK, "trained", rule, "margins") for rule in ("sgd", "rmsprop")},
    "w2-float32": Race(W2, _everyone("float32")),
    "w2-bfloat16": Race(W2, _everyone(_LOW)),
    "w2-epoch": Race(W2, _MARGINS[:-1], "epoch", "rmsprop", "margins"),
    "w3-float32": Race(W3, _everyone("float32")),
    "w3-bfloat16": Race(W3, _everyone(_LOW)),
    "w3-sampled": Race(W3, (*_own("float32"), *_torch("float32", variants=["sampled"]), Contestant("tensorflow")),
                       loss="sampled"),
    **{f"input-{units}-{rule}": Race(
        replace(W1, hidden=(units,)),
        (*_own("float32"), *_torch("float32", variants=["dense", "sparse"] if rule == "sgd" else ["dense"])),
        "input", rule) for units in (128, 1024) for rule in ("sgd", "adam")},
    **{f"top-{workload.name.lower()}-{precision}": Race(
        workload, (*_own(precision), *_torch(precision, variants=_BOTH)), "best")
       for workload in (W1, W2) for precision in ("float32", _LOW)},
}

ROWS = (
    Row("W1, float32, Adam", "w1-float32", 2.0, 1.75),
    Row("W1, bfloat16, Adam", "w1-bfloat16", 2.3),
    *(row for rule, title in (("sgd", "SGD"), ("rmsprop", "RMSProp")) for row in (
        Row(f"W1, margins, after an epoch, {title}; dense peers", f"w1-margins-{rule}", 4.5),
        Row(f"W1, margins, after an epoch, {title}; sparse deltas by hand", f"w1-margins-{rule}", 4.0, trick=True))),
    Row("W2, float32, Adam", "w2-float32", 1.5),
    Row("W2, bfloat16, Adam", "w2-bfloat16", 2.0),
    Row("W2, margins, an epoch from its beginning, RMSProp", "w2-epoch", 2.5),
    Row("W3, softmax, float32, Adam", "w3-float32", 1.5),
    Row("W3, softmax, bfloat16, Adam", "w3-bfloat16", 1.9),
    Row("W3, 4,096 negatives, Adam", "w3-sampled", 2.5),
    *(Row(f"input gradient and update, {units:,} units, {title}", f"input-{units}-{rule}", goal)
      for units in (128, 1024) for rule, title, goal in (("sgd", "SGD", 6.0), ("adam", "Adam", 3.0))),
    *(Row(f"best 100 without those seen, {name}, {precision}", f"top-{name.lower()}-{precision}", goal)
      for name, goal in (("W1", 1.8), ("W2", 1.3)) for precision in ("float32", _LOW)),
    *(Row(f"{name}, float32: peak memory", f"{name.lower()}-float32", goal, measure="memory")
      for name, goal in (("W1", 0.6), ("W2", 0.65), ("W3", 0.45))),
    *(Row(f"{name}, {precision}: two threads over one", f"{name.lower()}-{precision}", 1.85, measure="threads")
      for name in ("W1", "W2") for precision in ("float32", _LOW)),
)
