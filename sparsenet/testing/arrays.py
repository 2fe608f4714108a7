"""What stands for an array on the GPU where there is none."""

from typing import Any

import numpy as np

from sparsenet.device import Device


class HostArray:
    """Memory of the host that counts as a device's: its own copy, with a shape, a dtype and views."""

    def __init__(self, host: np.ndarray, device: Device) -> None:
        self.host, self.device = host, device
        self.shape, self.dtype, self.ndim, self.size = host.shape, host.dtype, host.ndim, host.size

    def reshape(self, *shape: Any) -> "HostArray":
        """The same elements in another shape."""
        return HostArray(self.host.reshape(*shape), self.device)

    def view(self, dtype: Any) -> "HostArray":
        """The same bytes as another type."""
        return HostArray(self.host.view(dtype), self.device)

    def __getitem__(self, index: Any) -> "HostArray":
        return HostArray(self.host[index], self.device)

    def __len__(self) -> int:
        return len(self.host)
