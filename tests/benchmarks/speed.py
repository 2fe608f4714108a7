"""How fast training and prediction are on this machine's CPU, beside PyTorch, TensorFlow and JAX.

    python tests/benchmarks/speed.py --python PEERS/bin/python [--rows w1,w3-sampled] [--minutes 30] [--write]

PEERS is a virtual environment with sparsenet[peers]: pip install -e '.[peers]'. Each contestant is a process of its
own; they take turns, a few steps each, and those that wait are stopped. What was measured stays in a folder, race by
race: a later call adds to it, and the table is made of all that is there. --write puts it into the README.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.peers.machine import machine, put, readme_with  # noqa: E402
from tests.benchmarks.peers.race import Settings, run  # noqa: E402
from tests.benchmarks.peers.rows import RACES, ROWS, Race, Row  # noqa: E402

Result = dict[str, Any]
"""What race.run returns, of one race with one number of threads"""


def chosen(names: str) -> dict[str, Race]:
    """The races whose names are listed, or begin with what is. Raises ValueError for what none does."""
    found = {}
    for part in names.split(","):
        matching = {name: race for name, race in RACES.items() if name == part or name.startswith(f"{part}-")}
        if not matching:
            raise ValueError(f"rows: expected some of {', '.join(RACES)}, or what they begin with, got {part!r}")
        found |= matching
    return found


def measure(races: dict[str, Race], threads: list[int], settings: Settings) -> None:
    """Run races, leaving a file of each."""
    for name, race in races.items():
        for count in threads:
            print(f"{name}, {count} thread{'s' if count > 1 else ''}", file=sys.stderr, flush=True)
            result = run(race, count, settings)
            for contestant, one in result.items():
                print(f"  {contestant}: {_said(one)}", file=sys.stderr, flush=True)
            file = settings.out / f"speed-{name}-{count}.json"
            file.write_text(json.dumps({"machine": machine(), "small": settings.small, "batches": settings.batches,
                                        "contestants": result}, indent=1), encoding="utf-8")


def _said(one: Result) -> str:
    if "error" in one:
        return one["error"]
    more = "".join(f", {key} {value:,.0f}" for key, value in one.items()
                   if key not in ("wall", "cpu", "bytes", "steps", "versions", "batches"))
    return (f"{1e3 * one['wall']:.1f} ms wall, {1e3 * one['cpu']:.1f} ms CPU, {one['bytes'] / 1e6:.0f} MB, "
            f"{one['steps']} steps{more}")


# ---- the table


def table(results: dict[tuple[str, int], Result]) -> str:
    """Rows, and under them who was measured with what, and who is missing, in Markdown.

    results  what `measure` left, by race and number of threads
    """
    lines = ["| a batch of 256 | sparsenet | best peer | ratio | goal | one thread, CPU time | goal |",
             "|---|---|---|---|---|---|---|"]
    for row in ROWS:
        two, one = ({} if row.race not in _races(results, count) else results[row.race, count]["contestants"]
                    for count in (2, 1))
        cells = _against_itself(row, one, two) if row.measure == "threads" else _beside_peers(row, one, two)
        lines.append(f"| {row.title} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_notes(results)])


def _races(results: dict[tuple[str, int], Result], threads: int) -> set[str]:
    return {name for name, count in results if count == threads}


def _beside_peers(row: Row, one: Result, two: Result) -> list[str]:
    memory = row.measure == "memory"
    ours, peer, ratio = _best(row, two, "bytes" if memory else "wall")
    if memory:
        return [ours, peer, ratio, f"≤ {row.goal}", "", ""]
    alone = _best(row, one, "cpu")[2]
    return [ours, peer, ratio, f"{row.goal}", alone, "" if row.alone is None else f"{row.alone}"]


def _best(row: Row, result: Result, key: str) -> tuple[str, str, str]:
    """(sparsenet's best figure, the peers', their ratio); "not measured" or "not available" where there is none."""
    found = []
    for own in (True, False):
        of = {name: one for name, one in result.items()
              if name.startswith("sparsenet") == own and (own or row.meets(name))}
        able = {name: one[key] for name, one in of.items() if "error" not in one}
        found.append(min(able.items(), key=lambda pair: pair[1]) if able else
                     "not available" if of else "not measured")
    ours, peer = found
    texts = [one if isinstance(one, str) else f"{_figure(one[1], key)}{_who(one[0])}" for one in found]
    if isinstance(ours, str) or isinstance(peer, str):
        return texts[0], texts[1], next(one for one in found if isinstance(one, str))
    ratio = ours[1] / peer[1] if key == "bytes" else peer[1] / ours[1]
    return texts[0], texts[1], f"**{ratio:.2f}**"


def _figure(value: float, key: str) -> str:
    return f"{value / 1e6:,.0f} MB" if key == "bytes" else f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.2f} s"


def _who(name: str) -> str:
    """What a reader must know besides the column's title."""
    shown = name.removeprefix("sparsenet").strip()
    return f" ({shown})" if shown else ""


def _against_itself(row: Row, one: Result, two: Result) -> list[str]:
    names = [name for name in two if name.startswith("sparsenet")]
    if not names or any("wall" not in result.get(names[0], {}) for result in (one, two)):
        return ["not measured", "", "", f"{row.goal}", "", ""]
    alone, both = one[names[0]]["wall"], two[names[0]]["wall"]
    return [_figure(both, "wall"), f"{_figure(alone, 'wall')} alone", f"**{alone / both:.2f}**", f"{row.goal}", "", ""]


def _notes(results: dict[tuple[str, int], Result]) -> list[str]:
    versions: dict[str, str] = {}
    missing: dict[str, list[str]] = {}
    for (race, threads), result in results.items():
        for name, one in result["contestants"].items():
            versions |= one.get("versions", {})
            if "error" in one:
                missing.setdefault(f"{name}: {one['error']}", []).append(f"{race} ({threads})")
    epochs = {result["batches"] for result in results.values()}
    machines = sorted({result["machine"] for result in results.values()})
    by = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    lines = [f"On {', '.join(machines)}, with {by}. Two threads, wall time, unless said; medians of interleaved steps, "
             "each contestant in a process of its own; compiling is not counted. Peak memory is that of the whole "
             f"process, examples included. An epoch has {' or '.join(map(str, sorted(epochs)))} batches. SLIDE's code "
             "is not built by this benchmark."] if results else []
    for (race, threads), result in results.items():
        done = result["contestants"].get("sparsenet", {})
        if RACES[race].kind == "epoch" and "steps" in done:
            lines.append(f"- {race}, {threads} thread{'s' if threads > 1 else ''}: sparsenet's first "
                         f"{done['steps'] * done['batches']} of {result['batches']} batches; the mean, not the median")
    lines += [f"- missing: {what}, in {', '.join(where)}" for what, where in missing.items()]
    return lines


def kept(out: Path, small: int) -> dict[tuple[str, int], Result]:
    """What a folder has of races of that size, in the races' order."""
    found = {}
    for name in RACES:
        for threads in (1, 2):
            file = out / f"speed-{name}-{threads}.json"
            result = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            if result.get("small") == small:
                found[name, threads] = result
    return found


def all_figures(results: dict[tuple[str, int], Result]) -> str:
    """Every contestant's figures, as a Markdown table."""
    lines = ["| race | threads | contestant | wall, ms | CPU, ms | peak, MB | steps |", "|---|---|---|---|---|---|---|"]
    for (race, threads), result in results.items():
        for name, one in result["contestants"].items():
            figures = ["missing", "", "", ""] if "error" in one else [
                f"{1e3 * one['wall']:.2f}", f"{1e3 * one['cpu']:.2f}", f"{one['bytes'] / 1e6:.0f}", str(one["steps"])]
            lines.append(f"| {race} | {threads} | {name} | {' | '.join(figures)} |")
    return "\n".join(lines)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(RACES), metavar="NAMES",
                        help="races, or what their names begin with, divided by commas; '' for the table alone; "
                             f"default: all of {', '.join(RACES)}")
    parser.add_argument("--minutes", type=float, default=30, help="of timed steps, in all (%(default)s)")
    parser.add_argument("--threads", type=int, nargs="+", choices=(1, 2), default=(1, 2))
    parser.add_argument("--python", default=sys.executable, metavar="FILE", help="the peers' interpreter (this one)")
    parser.add_argument("--out", type=Path, default=ROOT / ".benchmarks", metavar="DIR", help="(%(default)s)")
    parser.add_argument("--batches", type=int, default=541, metavar="N", help="of an epoch (%(default)s)")
    parser.add_argument("--small", type=int, default=1, metavar="N", help="divide all sizes by N, to try it")
    parser.add_argument("--write", action="store_true", help="put the table into the README")
    options = parser.parse_args()
    try:
        if options.write:
            readme_with("speed", "")  # says at once that it cannot be written
        races = chosen(options.rows) if options.rows else {}
    except ValueError as error:
        parser.error(str(error))
    if options.write and options.small != 1:
        parser.error("--write is for the real sizes")
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    seconds = 60 * options.minutes / max(1, len(races) * len(options.threads))
    measure(races, options.threads, Settings(out, options.python, sys.executable, seconds, options.small,
                                             options.batches))
    results = kept(out, options.small)
    text = table(results)
    (out / "speed.md").write_text(f"{text}\n\n{all_figures(results)}\n", encoding="utf-8")
    print(text)
    if options.write:
        put("speed", text)


if __name__ == "__main__":
    main()
