"""How a training step grows: its time and memory against the number of outputs, and against nonzeros in a row.

    python tests/benchmarks/growth.py [--optimizer adam] [--precision bfloat16] [--weights bfloat16] [--write]

128 hidden units, batches of 256. Each point is a process of its own, and its memory the most that it ever held,
examples included. What does not fit into the machine's memory is told, not shown. --write puts the table into the
README, and the picture beside this file.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from sparsenet.bench.workloads import Workload  # noqa: E402
from sparsenet.pictures import picture  # noqa: E402
from tests.benchmarks.peers.machine import free_memory, machine, put, readme_with  # noqa: E402
from tests.benchmarks.peers.race import Settings, examples, started  # noqa: E402
from tests.benchmarks.peers.rows import Contestant  # noqa: E402
from tests.benchmarks.peers.task import Task  # noqa: E402

PICTURE = Path(__file__).with_name("growth.png")
OUTPUTS = (10_000, 30_000, 100_000, 300_000, 1_000_000, 2_000_000, 4_000_000)
NONZEROS = (10, 30, 100, 300, 1_000, 3_000)
_SHARE = 0.9  # of the memory that is free, for one process
Point = dict[str, Any]
"""{"x": …, "seconds": …, "bytes": …} or {"x": …, "error": …}"""


def against_outputs(outputs: int, output: str) -> Workload:
    """Few ones in a very wide target, as in extreme classification."""
    return Workload("growth", 26_744, (128,), outputs, 143, labels=5, output=output, batches=4)


def against_nonzeros(nonzeros: int, output: str) -> Workload:
    """W1 with longer or shorter rows, which are its targets too."""
    return Workload("growth", 26_744, (128,), 26_744, nonzeros, output=output, batches=4)


def point(x: int, workload: Workload, options: argparse.Namespace) -> Point:
    """Measure one workload in a process of its own."""
    settings = Settings(options.out, sys.executable, sys.executable, seconds=0)
    contestant = Contestant("sparsenet", precision=options.precision)
    task = Task(kind="step", name=f"growth-{workload.outputs}-{workload.per_example}", features=workload.features,
                hidden=workload.hidden, outputs=workload.outputs, output=workload.output, batch=workload.batch,
                data=str(examples(workload, options.out)), epoch="", by="sparsenet", variant="",
                precision=options.precision, optimizer=options.optimizer, weights=options.weights,
                most_memory=int(_SHARE * free_memory()))
    with started(contestant, task, options.threads, settings) as process:
        found = process.ready
        if "error" not in found:
            found = process.take_turn(options.steps, settings.patience)
    if "error" in found:
        return {"x": x, "error": found["error"]}
    return {"x": x, "seconds": statistics.median(found["wall"]), "bytes": found["bytes"]}


def table(title: str, points: Sequence[Point]) -> str:
    """Points in Markdown."""
    lines = [f"| {title} | a step, ms | peak memory, MB |", "|---|---|---|"]
    for one in points:
        figures = ["not available", one["error"]] if "error" in one else [f"{1e3 * one['seconds']:,.1f}",
                                                                         f"{one['bytes'] / 1e6:,.0f}"]
        lines.append(f"| {one['x']:,} | {' | '.join(figures)} |")
    return "\n".join(lines)


def draw(series: dict[str, list[Point]], title: str) -> Any:
    """A figure: time and memory, of each series, on logarithmic axes, with a dotted line of slope one through the last
    point: what grows in proportion runs along it."""
    figure = picture(8, 5.5)
    figure.suptitle(title, fontsize="medium")
    for row, (name, points) in zip(figure.subplots(2, len(series), squeeze=False).T, series.items(), strict=True):
        known = [one for one in points if "error" not in one]
        for axes, key, label, unit in zip(row, ("seconds", "bytes"), ("ms a step", "MB at most"), (1e3, 1e-6),
                                          strict=True):
            axes.set(xscale="log", yscale="log", xlabel=name, ylabel=label)
            axes.grid(alpha=0.3)
            if known:
                xs, ys = [one["x"] for one in known], [unit * one[key] for one in known]
                axes.plot(xs, ys, "o-")
                axes.plot(xs, [ys[-1] * x / xs[-1] for x in xs], ":", color="gray")
                axes.set_ylim(bottom=0.7 * min(ys), top=1.4 * max(ys))
    return figure


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizer", choices=("sgd", "rmsprop", "adam"), default="adam")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--weights", choices=("float32", "bfloat16"), default="float32", help="what they are stored in")
    parser.add_argument("--output", choices=("sigmoid", "softmax"), default="sigmoid", help="activation (%(default)s)")
    parser.add_argument("--outputs", type=int, nargs="*", default=OUTPUTS, metavar="N")
    parser.add_argument("--nonzeros", type=int, nargs="*", default=NONZEROS, metavar="N")
    parser.add_argument("--steps", type=int, default=4, help="timed at each point (%(default)s)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / ".benchmarks", metavar="DIR", help="(%(default)s)")
    parser.add_argument("--write", action="store_true", help="put table and picture into the repository")
    options = parser.parse_args()
    if options.write:
        readme_with("growth", "")  # says at once that it cannot be written
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    series: dict[str, list[Point]] = {}
    for title, sizes, make in (("outputs", options.outputs, against_outputs),
                               ("nonzeros in a row", options.nonzeros, against_nonzeros)):
        if sizes:
            series[title] = []
            for size in sizes:
                series[title].append(point(size, make(size, options.output), options))
                print(title, series[title][-1], file=sys.stderr, flush=True)
    about = (f"{options.optimizer}, {options.precision}, weights in {options.weights}, {options.output} outputs, "
             f"{options.threads} thread{'s' if options.threads > 1 else ''}, {machine()}")
    text = "\n\n".join([*(table(title, points) for title, points in series.items()), f"A step of {about}."])
    (options.out / "growth.json").write_text(json.dumps({"about": about, "series": series}, indent=1), encoding="utf-8")
    draw(series, about).savefig(options.out / PICTURE.name, dpi=80)
    print(text)
    if options.write:
        PICTURE.write_bytes((options.out / PICTURE.name).read_bytes())
        put("growth", text)


if __name__ == "__main__":
    main()
