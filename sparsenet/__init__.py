"""Neural networks on sparse data: sparse inputs, dense layers, very wide sparse outputs, on CPU and CUDA."""

from sparsenet import activations, data, initializers, layers, losses, metrics, optimizers
from sparsenet.network import Network
from sparsenet.version import __version__

__all__ = [
    "Network",
    "__version__",
    "activations",
    "data",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "optimizers",
]
