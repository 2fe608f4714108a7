"""The main job from end to end: data, split, training, comparison with popularity, recommendations by name, files."""

import csv
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from sparsenet.data import HeldOut, Split, online_retail, read_ratings, strong_generalization
from sparsenet.device import Device
from sparsenet.history import History
from sparsenet.initializers import log_odds
from sparsenet.layers import Dense, Input
from sparsenet.metrics import evaluate_lists
from sparsenet.network import Network
from sparsenet.optimizers import adam
from sparsenet.pictures import picture
from sparsenet.recommendation import popularity, recommend
from sparsenet.training import fit

METRICS = ("ndcg@100", "recall@20", "recall@50", "precision@10", "coverage@10")


@dataclass(frozen=True)
class Settings:
    """The network and its training. The values were chosen on the validation customers of Online Retail."""

    hidden: int = 512
    """units of the hidden layer"""
    activation: str = "tanh"
    """of the hidden layer"""
    denoising: float = 0.5
    """share of a customer's purchases hidden from the network in training"""
    dropout: float = 0.5
    """share of hidden units switched off in training"""
    rate: float = 0.003
    """Adam's first step size"""
    decay: float = 0.004
    """the step size is rate / (1 + decay (step - 1))"""
    l2: float = 0.0
    """weight decay"""
    epochs: int = 30
    """passes over the training customers, at most"""
    batch: int = 100
    """customers a step"""
    patience: int = 8
    """epochs without a better validation NDCG@100 before training stops"""


def build(train: sp.csr_array, settings: Settings, *, seed: int, device: str | Device | None = None) -> Network:
    """A denoising autoencoder: unit-length rows of items in, a probability for each item out."""
    items = train.shape[1]
    bought = Input(items, sparse=True, normalize=True, denoising=settings.denoising, name="bought")
    taste = Dense(settings.hidden, settings.activation, dropout=settings.dropout, name="taste")(bought)
    wanted = Dense(items, "sigmoid", bias=log_odds(train), name="wanted")(taste)
    return Network(bought, wanted, "cross_entropy", seed=seed, device=device)


def train(network: Network, split: Split, settings: Settings, *, progress: bool | None = None) -> History:
    """Train on the split's training customers, watching its validation customers."""
    return fit(network, split.train, split.train,
               optimizer=adam(settings.rate, decay=settings.decay, l2=settings.l2),
               epochs=settings.epochs, batch=settings.batch, patience=settings.patience,
               validation=(split.validation.fold_in, split.validation.hidden), progress=progress)


def run(*, ratings: str | Path | None = None, min_rating: float | None = None, out: str | Path = "sparsenet-demo",
        settings: Settings | None = None, seed: int = 1, device: str | None = None,
        progress: bool | None = None) -> dict[str, dict[str, float]]:
    """Run the demo, printing as it goes; returns the table of metrics on the test customers.

    ratings     a MovieLens file; default: the Online Retail purchases that ship with sparsenet
    min_rating  ratings below do not count
    out         folder for model.nc, learning_curve.png and metrics.png; made if missing

    Raises OSError and ValueError for files that cannot be read or written.
    """
    settings, started = settings or Settings(), time.perf_counter()
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    matrix, names, who = _load(ratings, min_rating)
    users, items = matrix.shape
    print(f"{users:,} {who}, {items:,} items, {matrix.nnz:,} pairs ({matrix.nnz / (users * items):.2%} of the table)")
    split = strong_generalization(matrix)
    names = names[split.items]
    network = build(split.train, settings, seed=seed, device=device)
    parts = split.train, split.validation.fold_in, split.test.fold_in
    train_users, choosing, kept = (part.shape[0] for part in parts)
    print(f"training on {train_users:,} {who}; {choosing:,} choose the best epoch, {kept:,} are kept for the test\n"
          f"(left out: {users - train_users - choosing - kept:,} {who} with fewer than 5 items, "
          f"{items - len(names):,} items that nobody in training chose)\n\n{network.summary()}\n")
    history = train(network, split, settings, progress=progress)
    best = int(np.argmax(history["ndcg@100"]))
    print(f"{len(history['epoch'])} epochs in {sum(history['seconds']):.0f} s, the best was epoch {best + 1}: "
          f"validation NDCG@100 {history['ndcg@100'][best]:.3f}\n")

    table = {
        "popularity": evaluate_lists(popularity(split.train, split.test.fold_in), split.test.hidden, METRICS),
        "sparsenet": evaluate_lists(recommend(network, split.test.fold_in, 100)[0], split.test.hidden, METRICS),
    }
    network.save(folder / "model.nc")
    history.plot(folder / "learning_curve.png")
    _picture(table, f"test {who}", folder / "metrics.png")
    print(f"test {who}: 20 % of their items hidden, to be found from the other 80 %\n{_table(table)}\n")
    print(_examples(network, split.test, names, who))
    print(f"model.nc, learning_curve.png and metrics.png are in {folder.resolve()} "
          f"({time.perf_counter() - started:.0f} s in all)")
    return table


def _load(ratings: str | Path | None, min_rating: float | None) -> tuple[sp.csr_array, np.ndarray, str]:
    """(who chose what, names of the items, what the users are called)"""
    if ratings is None:
        if min_rating is not None:
            raise ValueError("min_rating (--min-rating) is for ratings (--ratings FILE); the purchases have none")
        purchases = online_retail()
        return purchases.matrix, purchases.names, "customers"
    found = read_ratings(ratings)
    titles = _titles(Path(ratings).parent)
    return (found.interactions(min_rating),
            np.array([titles.get(str(item), f"item {item}") for item in found.items]), "users")


def _titles(folder: Path) -> dict[str, str]:
    """Titles by item id, where a MovieLens ratings file has its list of movies beside it."""
    for name, delimiter in (("u.item", "|"), ("movies.dat", "::"), ("movies.csv", ",")):
        path = folder / name
        if path.is_file():
            encoding = "utf-8" if name.endswith(".csv") else "latin-1"
            lines = path.read_text(encoding, "replace").splitlines()
            rows = csv.reader(lines) if delimiter == "," else (line.split(delimiter) for line in lines)
            return {row[0]: row[1] for row in rows if len(row) > 1}
    return {}


def _table(table: dict[str, dict[str, float]]) -> str:
    lines = [f"{'':<12}" + "".join(f"{name:>14}" for name in METRICS)]
    lines += [f"{model:<12}" + "".join(f"{row[name]:>14.3f}" for name in METRICS) for model, row in table.items()]
    return "\n".join(lines)


def _examples(network: Network, test: HeldOut, names: np.ndarray, who: str) -> str:
    """Three users with about the median number of items: what they chose, and what is recommended."""
    counts = np.diff(test.fold_in.indptr)
    typical = np.argsort(np.abs(counts - np.median(counts)), kind="stable")[:3]
    items, _ = recommend(network, test.fold_in[typical], 10)
    blocks = [f"three {who} with a typical number of items"]
    for user, ten in zip(typical, items, strict=True):
        chosen = test.fold_in.indices[test.fold_in.indptr[user]:test.fold_in.indptr[user + 1]]
        hidden = set(test.hidden.indices[test.hidden.indptr[user]:test.hidden.indptr[user + 1]])
        lines = [f"chose {len(chosen)} items, among them"]
        lines += [f"    {names[item]}" for item in chosen[:8]]
        lines += ["recommended (* = one of the hidden items)"]
        lines += [f"  {'*' if item in hidden else ' '} {names[item]}" for item in ten if item >= 0]
        blocks.append("\n".join(lines) + "\n")
    return "\n\n".join(block.rstrip() for block in blocks) + "\n"


def _picture(table: dict[str, dict[str, float]], title: str, path: Path) -> None:
    figure = picture()
    axes = figure.subplots()
    width = 0.8 / len(table)
    for i, (model, row) in enumerate(table.items()):
        bars = axes.bar(np.arange(len(METRICS)) + i * width, [row[name] for name in METRICS], width, label=model)
        axes.bar_label(bars, fmt="%.3f", fontsize=8)
    axes.set_xticks(np.arange(len(METRICS)) + width * (len(table) - 1) / 2, METRICS)
    axes.set_title(title)
    axes.legend()
    figure.savefig(path, dpi=150)
