"""Progress bars: seen in terminals and notebooks, quiet elsewhere."""

import sys
from typing import Any

Bar = Any  # a tqdm.tqdm


def progress_bar(total: int, show: bool | None, *, initial: int = 0, description: str = "") -> Bar:
    """A bar that counts examples. show: None: in a terminal or a notebook."""
    from tqdm import tqdm

    return tqdm(total=total, initial=initial, unit=" examples", desc=description, disable=not (
        _somebody_looks() if show is None else show))


def _somebody_looks() -> bool:
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
        if type(shell).__name__ == "ZMQInteractiveShell":  # a notebook's
            return True
    return sys.stderr is not None and sys.stderr.isatty()
