"""Neural networks on sparse data: sparse inputs, dense layers, very wide sparse outputs, on CPU and CUDA."""

from sparsenet import activations, data, initializers, layers, losses, metrics, optimizers, testing
from sparsenet.history import History
from sparsenet.network import Network
from sparsenet.recommendation import evaluate, popularity, recommend
from sparsenet.training import fit
from sparsenet.version import __version__

__all__ = [
    "History",
    "Network",
    "__version__",
    "activations",
    "data",
    "evaluate",
    "fit",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "optimizers",
    "popularity",
    "recommend",
    "testing",
]
