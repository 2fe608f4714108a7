"""What a training run measured, epoch by epoch."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparsenet.pictures import picture


class History(Mapping[str, list[float]]):
    """Columns by name, one value an epoch: "epoch", "loss", "seconds", and each validation metric."""

    def __init__(self, columns: Mapping[str, list[float]] | None = None) -> None:
        self._columns = {name: list(values) for name, values in (columns or {}).items()}

    def append(self, **row: float) -> None:
        """Add one epoch. Raises ValueError where the columns are not those of the epochs before."""
        if self._columns and set(row) != set(self._columns):
            raise ValueError(f"history: has columns {', '.join(self._columns)}, got {', '.join(row)}")
        for name, value in row.items():
            self._columns.setdefault(name, []).append(value)

    def __getitem__(self, name: str) -> list[float]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def to_dict(self) -> dict[str, list[float]]:
        """A copy as plain lists, fit for JSON and for pandas.DataFrame."""
        return {name: list(values) for name, values in self._columns.items()}

    def __repr__(self) -> str:
        if not self._columns:
            return "History(no epochs)"
        last = ", ".join(f"{name} {values[-1]:.4g}" for name, values in self._columns.items() if name != "epoch")
        return f"History({len(self['epoch'])} epochs; last: {last})"

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw loss and validation metrics over epochs; returns the matplotlib figure, and saves it where asked."""
        figure = picture()
        axes = figure.subplots()
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylabel("training loss")
        lines = axes.plot(self["epoch"], self["loss"], color="tab:gray", label="training loss")
        metrics = [name for name in self if name not in ("epoch", "loss", "seconds")]
        if metrics:
            right = axes.twinx()
            right.set_ylabel("validation")
            for i, name in enumerate(metrics):
                lines += right.plot(self["epoch"], self[name], color=f"C{i}", marker=".", label=name)
        axes.legend(handles=lines, loc="center right")
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure
