"""How long it takes to begin: importing, and the first batch with and without kernels on disk.

    python tests/benchmarks/startup.py [--write]

Each figure is the median of several fresh processes (the cold one: of two). --write puts the table into the README.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"

IMPORT = "import time; t = time.perf_counter(); import sparsenet; print(time.perf_counter() - t)"
FIRST_BATCH = """
import time
t = time.perf_counter()
import sparsenet as sn
from sparsenet.layers import Dense, Input
X = sn.data.online_retail().matrix
x = Input(X.shape[1], sparse=True)
net = sn.Network(x, Dense(X.shape[1], "sigmoid")(Dense(128, "sigmoid")(x)), "scaled_marginal_cross_entropy", seed=1,
                 device="cpu")
ready = time.perf_counter()
sn.fit(net, X[:256], X[:256], optimizer=sn.optimizers.adam(), epochs=1)
print(time.perf_counter() - ready)
"""


def seconds(code: str, repeats: int, cache: str) -> float:
    """Median of what a program prints, in fresh processes."""
    environment = {**os.environ, "SPARSENET_CACHE": cache}
    return statistics.median(float(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                                                  text=True, check=True).stdout) for _ in range(repeats))


def table() -> str:
    """The figures in Markdown."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        seconds(IMPORT, 1, one)
        cold = statistics.median(seconds(FIRST_BATCH, 1, cache) for cache in (one, two))
        rows = [
            ("`import sparsenet`", seconds(IMPORT, 7, one), 0.5),
            ("first batch of the demo's kind of network, kernels on disk", seconds(FIRST_BATCH, 5, one), 3),
            ("first batch, nothing compiled yet", cold, 40),
        ]
    lines = ["| | seconds | promised |", "|---|---|---|"]
    return "\n".join(lines + [f"| {name} | {value:.2f} | < {limit} |" for name, value, limit in rows])


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    text = table()
    print(text)
    if write:
        marked = re.compile(r"(<!-- startup -->\n).*?(<!-- /startup -->)", re.DOTALL)
        README.write_text(marked.sub(lambda found: f"{found[1]}{text}\n{found[2]}", README.read_text()))


if __name__ == "__main__":
    main()
