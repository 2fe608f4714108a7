"""Tools for tests of kernels, layers and networks: yours as well as ours."""

from sparsenet.testing.checks import assert_close, assert_trained_alike
from sparsenet.testing.emulator import emulate
from sparsenet.testing.gradients import check_gradients

__all__ = ["assert_close", "assert_trained_alike", "check_gradients", "emulate"]
