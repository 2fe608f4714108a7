"""Input layers: where examples enter a network."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsenet.layers.base import Layer, Node, Signal


def Input(features: int, *, sparse: bool = False, normalize: bool = False, denoising: float = 0.0,  # noqa: N802
          name: str | None = None) -> Node:
    """Where examples of a given width enter a network.

    features   number of columns
    sparse     examples are rows of a scipy sparse matrix, and stay sparse
    normalize  divide each example by its Euclidean length, before any noise
    denoising  probability with which, in training, each nonzero of a sparse input is dropped; the others are
               multiplied by 1 / (1 - denoising)

    Raises ValueError for values out of range.
    """
    return InputLayer(features, sparse, normalize, denoising, name)()


class InputLayer(Layer):
    """The layer behind `Input`."""

    def __init__(self, features: int, sparse: bool = False, normalize: bool = False, denoising: float = 0.0,
                 name: str | None = None) -> None:
        if isinstance(features, bool) or not isinstance(features, int | np.integer) or features < 1:
            raise ValueError(f"Input: features must be an integer of at least 1, got {features!r}")
        if not 0 <= denoising < 1:
            raise ValueError(f"Input: denoising must be in [0, 1), got {denoising}")
        if denoising and not sparse:
            raise ValueError("Input: denoising is for sparse inputs; use dropout of a Dense layer")
        self.features, self.sparse, self.normalize = features, sparse, normalize
        self.denoising, self.name = denoising, name

    def settings(self) -> dict[str, Any]:
        return {"features": self.features, "sparse": self.sparse, "normalize": self.normalize,
                "denoising": self.denoising, "name": self.name}

    def __call__(self, *inputs: Node) -> Node:
        return Node(self, (), self.connect(inputs), self.sparse)

    def connect(self, inputs: tuple[Node, ...]) -> int:
        if inputs:
            raise TypeError("Input: takes no inputs")
        return self.features

    def forward(self, inputs: Sequence[Signal], out: Signal) -> None:
        if self.sparse:
            out.y.add_noise(self.denoising, out.key)

    def delta(self, out: Signal) -> None:
        raise TypeError("an input has no delta")

    def backward(self, inputs: Sequence[Signal], out: Signal) -> None:
        pass
