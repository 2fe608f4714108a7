"""Real data, which is not part of the repository."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """Path of a file in the folder of shared data; the test is skipped where it is missing."""
    folder = Path(os.environ.get("SPARSENET_DATA", ROOT.parent / "shared" / "data"))

    def path(name: str) -> Path:
        if not (folder / name).exists():
            pytest.skip(f"{name} is not in {folder}: set SPARSENET_DATA")
        return folder / name

    return path
