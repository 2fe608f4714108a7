"""Quality on held-out users, beside the baselines that other tools reached on the same splits.

    python tests/benchmarks/quality.py [--only ml-100k-4] [--write]

For each data set and split seed every candidate below is trained, the one with the best validation NDCG@100 is chosen,
and only that one meets the test users. Prints a table in Markdown; --write puts it into quality.md and the README.
The data is where SPARSENET_DATA says (default ../shared/data).
"""

import argparse
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import sparsenet as sn
from sparsenet import demo
from sparsenet.data import HeldOut, Split

DATA = Path(os.environ.get("SPARSENET_DATA", "../shared/data"))
HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
METRICS = ("ndcg@100", "recall@20", "recall@50", "precision@10")

FIRST = demo.Settings(hidden=200, dropout=0.3, rate=0.002, decay=0.0, epochs=150, batch=64, patience=20)
SMALL = {
    "200 units": FIRST,
    "400 units, dropout 0.5": replace(FIRST, hidden=400, dropout=0.5),
    "denoising 0.3": replace(FIRST, denoising=0.3),
    "relu": replace(FIRST, activation="relu"),
}
LARGE = {name: replace(settings, batch=100, epochs=60, patience=8) for name, settings in SMALL.items()}
LONG = replace(demo.Settings(), epochs=80, patience=15)
SHOP = {
    "the demo's, longer": LONG,
    "denoising 0.3": replace(LONG, denoising=0.3),
    "denoising 0.3, rate constant": replace(LONG, denoising=0.3, decay=0.0),
    "800 units": replace(LONG, hidden=800),
    "256 units, rate 0.005, dropout 0.3": replace(LONG, hidden=256, rate=0.005, dropout=0.3),
}


def movielens(name: str, threshold: int, seed: int) -> Split:
    """A split that the baselines used."""
    file = np.load(DATA / "baselines" / "splits" / f"{name}_thr{threshold}_seed{seed}.npz")
    items = len(file["item_ids"])

    def matrix(pairs: np.ndarray, users: np.ndarray) -> sp.csr_array:
        rows = np.searchsorted(users, pairs[:, 0])
        return sp.csr_array((np.ones(len(pairs), bool), (rows, pairs[:, 1])), shape=(len(users), items))

    def held_out(part: str) -> HeldOut:
        users = np.unique(file[f"{part}_tr"][:, 0])
        return HeldOut(matrix(file[f"{part}_tr"], users), matrix(file[f"{part}_te"], users), users)

    users = np.unique(file["train"][:, 0])
    return Split(matrix(file["train"], users), held_out("val"), held_out("test"), file["item_ids"], users)


SETS = {
    "online-retail": (SHOP, [lambda: sn.data.strong_generalization(sn.data.online_retail().matrix)], None),
    "ml-100k-0": (SMALL, [lambda s=s: movielens("ml-100k", 0, s) for s in range(3)], "ml-100k, all ratings"),
    "ml-100k-4": (SMALL, [lambda s=s: movielens("ml-100k", 4, s) for s in range(3)], "ml-100k, ratings >= 4"),
    "ml-1m-0": (LARGE, [lambda: movielens("ml-1m", 0, 0)], "ml-1m, all ratings"),
    "ml-1m-4": (LARGE, [lambda: movielens("ml-1m", 4, 0)], "ml-1m, ratings >= 4"),
}


def best_of(candidates: dict[str, demo.Settings], split: Split) -> tuple[str, float, dict[str, float]]:
    """(name, validation NDCG@100, test metrics) of the candidate that is best on the validation users."""
    found: tuple[str, float, sn.Network] | None = None
    for name, settings in candidates.items():
        started = time.perf_counter()
        network = demo.build(split.train, settings, seed=1)
        history = demo.train(network, split, settings)
        value = max(history["ndcg@100"])
        seconds = time.perf_counter() - started
        print(f"  {name}: validation {value:.4f}, {len(history['epoch'])} epochs, {seconds:.0f} s", file=sys.stderr)
        if found is None or value > found[1]:
            found = name, value, network
    assert found is not None
    test = sn.evaluate(found[2], split.test.fold_in, split.test.hidden, metrics=METRICS)
    return found[0], found[1], test


def baselines(title: str | None) -> list[str]:
    """The rows that other tools reached, as their table gives them."""
    if title is None:
        text = (DATA / "ratings" / "online-retail" / "README.md").read_text()
        table = text[text.index("| popularity"):].split("\n\n")[0]
        return [re.sub(r" \([^|]*\)", "", line) + " |" for line in table.splitlines()]
    text = (DATA / "baselines" / "TABLE.md").read_text()
    section = re.search(rf"### {re.escape(title)}.*?\n\n(.*?)\n\n", text + "\n\n", re.DOTALL)
    assert section is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section[1].splitlines()[2:]]
    means = [[re.sub(r"^0", "", cell.split(" ")[0]) for cell in row[2:6]] for row in rows]
    return [f"| {row[0]} | {' | '.join(mean)} | |" for row, mean in zip(rows, means, strict=True)]


def table(name: str) -> str:
    """One data set's rows in Markdown."""
    candidates, splits, title = SETS[name]
    results = []
    for i, make in enumerate(splits):
        print(f"{name}, split {i}", file=sys.stderr)
        results.append(best_of(candidates, make()))
    means = [np.mean([test[metric] for _, _, test in results]) for metric in METRICS]
    chosen = ", ".join(dict.fromkeys(choice for choice, _, _ in results))
    head = f"{title or 'Online Retail'}, {len(splits)} split{'s' if len(splits) > 1 else ''}"
    return "\n".join([
        f"| {head} | NDCG@100 | Recall@20 | Recall@50 | Precision@10 | chosen on validation |",
        "|---|---|---|---|---|---|",
        f"| **sparsenet** | {' | '.join(f'**{mean:.3f}**'.replace('0.', '.') for mean in means)} | {chosen} |",
        *baselines(title),
    ])


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SETS, action="append")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.only and options.write:
        parser.error("--write is for the whole table")
    text = "\n\n".join(table(name) for name in options.only or SETS)
    print(text)
    if options.write:
        (HERE / "quality.md").write_text(text + "\n")
        readme = README.read_text()
        marked = re.compile(r"(<!-- quality -->\n).*?(<!-- /quality -->)", re.DOTALL)
        README.write_text(marked.sub(lambda found: f"{found[1]}{text}\n{found[2]}", readme))


if __name__ == "__main__":
    main()
