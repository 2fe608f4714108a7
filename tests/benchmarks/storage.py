"""Weights, and the optimizer's state, in bfloat16 alone: how well networks learn, and what memory a wide one needs.

    python tests/benchmarks/storage.py [--epochs 40] [--wide 4000000] [--write]

First, NDCG@100 on MovieLens-1M's validation users after each epoch, three seeds for each storage, on the split and in
the manner of quality.py. Then the peak memory of a training step of a network with 128 hidden units and so many million
outputs, each storage in a process of its own. --write puts both into the README, and the curves beside this file.
The data is where SPARSENET_DATA says (default ../shared/data).
"""

import argparse
import resource
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import sparsenet as sn  # noqa: E402
from sparsenet.data import Split  # noqa: E402
from sparsenet.layers import Dense, Input  # noqa: E402
from sparsenet.pictures import picture  # noqa: E402
from tests.benchmarks.peers.machine import machine, put  # noqa: E402
from tests.benchmarks.quality import movielens  # noqa: E402

PICTURE = Path(__file__).with_name("storage.png")
STORAGE: dict[str, dict[str, str]] = {
    "float32": {},
    "bfloat16 weights": {"weights": "bfloat16"},
    "bfloat16 weights and state": {"weights": "bfloat16", "slots": "bfloat16"},
}
SEEDS = 1, 2, 3
HIDDEN, BATCH, LABELS, FEATURES = 128, 256, 5, 1000  # of the wide network


def network_of(split: Split, storage: dict[str, str], seed: int) -> sn.Network:
    """quality.py's autoencoder of 200 units."""
    items = split.train.shape[1]
    seen = Input(items, sparse=True, normalize=True, denoising=0.5)
    hidden = Dense(200, "tanh", dropout=0.3)(seen)
    wanted = Dense(items, "sigmoid", bias=sn.initializers.log_odds(split.train))(hidden)
    return sn.Network(seen, wanted, "cross_entropy", seed=seed, device="cpu", **storage)


def curve(split: Split, storage: dict[str, str], seed: int, epochs: int) -> tuple[list[float], int]:
    """(validation NDCG@100 after each epoch, bytes of parameters and state)."""
    network = network_of(split, storage, seed)
    validation = split.validation.fold_in, split.validation.hidden
    history = sn.fit(network, split.train, split.train, optimizer=sn.optimizers.adam(0.002), epochs=epochs, batch=100,
                     validation=validation, progress=False)
    arrays = [array for one in network.parameters.values() for array in (one.value, one.slots)]
    return history["ndcg@100"], sum(array.nbytes for array in arrays)


def learning(epochs: int) -> tuple[str, Any]:
    """(table in Markdown, figure)."""
    split = movielens("ml-1m", 0, 0)
    figure = picture(7, 4)
    axes = figure.subplots()
    axes.set(xlabel="epoch", ylabel="NDCG@100, validation users", title="MovieLens-1M, mean and range of three seeds")
    lines = ["| stored as | best NDCG@100 of each seed | mean | from float32's mean, in standard errors | "
             "farthest apart at any epoch | parameters and state, MB |", "|---|---|---|---|---|---|"]
    best: dict[str, list[float]] = {}
    means: dict[str, np.ndarray] = {}
    for name, storage in STORAGE.items():
        found = [curve(split, storage, seed, epochs) for seed in SEEDS]
        curves = np.array([one for one, _ in found])
        best[name], means[name] = curves.max(axis=1).tolist(), curves.mean(axis=0)
        axes.plot(np.arange(1, epochs + 1), means[name], label=name)
        axes.fill_between(np.arange(1, epochs + 1), curves.min(axis=0), curves.max(axis=0), alpha=0.2)
        error = (sum(statistics.variance(one) for one in (best[name], best["float32"])) / len(SEEDS)) ** 0.5
        away = statistics.mean(best[name]) - statistics.mean(best["float32"])
        apart = abs(means[name] - means["float32"]).max()
        compared = [f"{away / error:+.1f}", f"{apart:.4f}"] if storage else ["", ""]
        each, mean = ", ".join(f"{one:.4f}" for one in best[name]), f"{statistics.mean(best[name]):.4f}"
        lines.append(f"| {' | '.join([name, each, mean, *compared, f'{found[0][1] / 1e6:.1f}'])} |")
        print(lines[-1], file=sys.stderr, flush=True)
    axes.legend()
    axes.grid(alpha=0.3)
    return "\n".join(lines), figure


def memory_of_a_step(outputs: int, storage: dict[str, str]) -> int:
    """Bytes that the process has held at most after two steps. Meant for a process of its own."""
    random = np.random.default_rng(1)

    def ones(columns: int, each: int) -> sp.csr_array:
        rows = np.sort(random.integers(0, columns, (2 * BATCH, each)), axis=1)
        matrix = sp.csr_array((np.ones(rows.size, np.float32), rows.ravel(), np.arange(2 * BATCH + 1) * each),
                              shape=(2 * BATCH, columns))
        matrix.sum_duplicates()
        return (matrix > 0).astype(np.float32)

    examples, targets = ones(FEATURES, 20), ones(outputs, LABELS)
    x = Input(FEATURES, sparse=True)
    y = Dense(outputs, "sigmoid")(Dense(HIDDEN, "sigmoid")(x))
    network = sn.Network(x, y, "cross_entropy", seed=1, device="cpu", **storage)
    sn.fit(network, examples, targets, optimizer=sn.optimizers.adam(), epochs=1, batch=BATCH, progress=False)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def wide(outputs: int) -> str:
    """A table in Markdown."""
    lines = [f"| {outputs:,} outputs, {HIDDEN} hidden units | peak memory of training, MB |", "|---|---|"]
    for name, storage in STORAGE.items():
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            most = process.submit(memory_of_a_step, outputs, storage).result()
        lines.append(f"| {name} | {most / 1e6:,.0f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40, help="(%(default)s; 0: no learning)")
    parser.add_argument("--wide", type=int, default=4_000_000, metavar="OUTPUTS", help="(%(default)s; 0: none)")
    parser.add_argument("--write", action="store_true", help="put tables and picture into the repository")
    options = parser.parse_args()
    if options.write and not (options.epochs and options.wide):
        parser.error("--write is for both tables")
    parts = []
    if options.epochs:
        table, figure = learning(options.epochs)
        parts.append(table)
    if options.wide:
        parts.append(wide(options.wide))
    text = "\n\n".join([*parts, f"Adam, {options.epochs} epochs, on {machine()}."])
    print(text)
    if options.write:
        figure.savefig(PICTURE, dpi=80)
        put("storage", text)


if __name__ == "__main__":
    main()
