"""What weights and the optimizer's state are stored in: float32, or bfloat16 alone, see bfloat16.py."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from sparsenet.bfloat16 import SHORT
from sparsenet.device import Device
from sparsenet.layers.base import Node, Parameter
from sparsenet.layers.graph import parameter_uses, sparse_weights


def settings_on(device: Device, settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of a storage that a device has: float32 alone, but for the CPU. Numbers in bfloat16 are float32 too."""
    return dict(settings) if device.name == "cpu" else {}


class Storage:
    """dtypes of the parameters of one network.

    Only the widest are ever stored in bfloat16: weights of streaming outputs, and of sparse inputs if used once. Their
    steps are made row by row, so that no array of float32 stands beside them.
    """

    def __init__(self, weights: str, slots: str, dtype: Any, device: Device) -> None:
        """Raises ValueError for what is not known, and for bfloat16 where there is no code for it."""
        self.settings = {"weights": weights, "slots": slots}
        """Arguments that make it again"""
        self._dtype, self._short = dtype, frozenset[Parameter]()
        for what, kept in self.settings.items():
            if kept not in ("float32", "bfloat16"):
                raise ValueError(f"{what}: expected 'float32' or 'bfloat16', got {kept!r}")
            if kept == "bfloat16" and (device.name != "cpu" or dtype != np.float32):
                raise ValueError(f"{what}: 'bfloat16' is for float32 networks on the CPU, got {dtype} on {device.name}")

    def choose(self, nodes: Sequence[Node], streaming: Collection[Node]) -> None:
        """Find the parameters that bfloat16 is for. Raises ValueError where it is wanted and there is none."""
        if "bfloat16" not in self.settings.values():
            return
        uses = parameter_uses(nodes)
        once = {weight for weight in sparse_weights(nodes) if uses[weight] == 1}
        self._short = frozenset(once | {node.layer.parameters["weight"] for node in streaming})
        if not self._short:
            raise ValueError("weights, slots: 'bfloat16' is for streaming outputs and sparse inputs; there is none")

    def of_weights(self, parameter: Parameter) -> np.dtype:
        """dtype of a parameter's values."""
        return self._of("weights", parameter)

    def of_slots(self, parameter: Parameter) -> np.dtype:
        """dtype of the optimizer's state of a parameter."""
        return self._of("slots", parameter)

    def _of(self, what: str, parameter: Parameter) -> np.dtype:
        return SHORT if self.settings[what] == "bfloat16" and parameter in self._short else np.dtype(self._dtype)

    def fits(self, parameter: Parameter) -> bool:
        """Whether a network of this storage can have a parameter as it is: others may share it."""
        known, wanted = parameter.value.dtype, self.of_weights(parameter)
        return known == wanted or (known == SHORT and wanted == np.float32)

    def told(self, names: Mapping[str, Parameter]) -> list[str]:
        """A line on each kind of array that is bfloat16."""
        short = ", ".join(name for name, parameter in names.items() if parameter in self._short)
        return [f"{what} of {short} in bfloat16" for what, kept in self.settings.items() if kept == "bfloat16"]
