"""Tools for tests of kernels, layers and networks: yours as well as ours."""

from sparsenet.testing.checks import assert_close

__all__ = ["assert_close"]
