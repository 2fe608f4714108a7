import pytest

from sparsenet.compiling import numba_cuda


@pytest.fixture(autouse=True, scope="session")
def _numba_cuda():
    """Skips where the emulator's tests cannot run, and says why."""
    try:
        numba_cuda()
    except ImportError as missing:
        pytest.skip(str(missing))
