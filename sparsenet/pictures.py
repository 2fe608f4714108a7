"""Figures without matplotlib's global state."""

import io
from typing import Any


def picture(width: float = 7, height: float = 4) -> Any:
    """A matplotlib figure, sizes in inches, that a notebook shows when a cell ends with it."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=100)
            return buffer.getvalue()

    return Picture(figsize=(width, height), layout="constrained")
