"""Exact training of a linear output with squared error, in time that does not depend on the number of outputs.

With hidden layers H (batch, inputs) and sparse targets T, a step of gradient descent at rate r / batch = s takes
W (outputs, inputs) to

    W - s (H W' - T)' H = W A + s T' H    with A = I - s H' H, less r l2 on its diagonal for weight decay.

The first term changes every row alike, the second the rows of the batch's targets alone. So W is kept as V U with a
small matrix U that takes the factors A: rows of targets get s T' H U^-1, others stay as they are. Loss and gradient
need Q = W' W, which changes with A and with the rows of targets: |W h - t|^2 = h.Qh - 2 h.(W' t) + t.t, and its
gradient by h is 2 (Qh - W' t). A bias is the weight of one more input, which is always 1.

U^-1 grows as U forgets. Before digits are lost to that, an epoch ends: its U joins the products that rows of earlier
epochs wait for, and a new one begins with U = I. Rows catch up when they are named, all of them after many epochs. No
inverse of an earlier epoch is ever needed. Weights are float32, all small matrices float64; Q follows the weights as
they were rounded.

Source: Vincent, de Brebisson and Bouthillier 2015, Efficient exact gradient update for training deep networks with
very large sparse targets (arXiv:1412.7091); epochs in place of its repairs of U are ours.
"""

import numpy as np

from sparsenet.device import Array, Device
from sparsenet.kernels.dense import matmul
from sparsenet.kernels.factored import factored_loss, keep_rows, take_rows
from sparsenet.kernels.sparse import sparse_forward, sparse_weight_gradient
from sparsenet.layers.base import Node, Signal
from sparsenet.layers.batch import SparseBatch
from sparsenet.layers.dense import Dense
from sparsenet.losses import Loss
from sparsenet.optimizers import Optimizer

EPOCHS = 64
"""How many products rows can wait for"""
_LARGEST = 8.0  # an epoch ends where |U^-1| max(|U|, |I|) (Frobenius) is as many times |I|^2
_ROWS = 4096  # at a time, when all catch up


class Factored:
    """The weights w (outputs, inputs) and bias (outputs) of one layer, in training. On a CPU.

    Between `step` and `settle`, w and bias hold rows that have yet to catch up: not for others to read.
    """

    def __init__(self, w: np.ndarray, bias: np.ndarray) -> None:
        self._w, self._bias = w, bias
        self._outputs, width = len(w), w.shape[1] + 1
        self._epochs, self._epoch = np.zeros(self._outputs, np.int32), 0
        self._products = np.zeros((EPOCHS, width, width))
        self._u, self._inverse, self._q, self._a, self._room = np.zeros((5, width, width))
        self._identity = np.eye(width)
        self._waiting = False
        self._batch = self._most = 0
        self._places, self._values = np.zeros(1, np.int32), np.zeros(1)
        self.start()

    def allocate(self, batch: int, nonzeros: int) -> None:
        """Make room for batches of up to `batch` examples with up to `nonzeros` targets in all."""
        width = len(self._q)
        most = max(1, min(nonzeros, self._outputs))
        if batch > self._batch:
            self._batch = batch
            self._hidden, self._images, self._aims = np.zeros((3, batch, width))
        if most > self._most:
            self._most = most
            self._rows, self._kept, self._gradient = np.zeros((3, most, width))
            self._each = np.arange(most, dtype=np.int32)
        if nonzeros > len(self._places):
            self._places, self._values = np.zeros(nonzeros, np.int32), np.zeros(nonzeros)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays besides the weights."""
        return sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray)
                   and array is not self._w and array is not self._bias)

    def start(self) -> None:
        """Begin with the weights as they are: after others wrote them."""
        self._begin()
        self._waiting = True
        self.settle()

    def _begin(self) -> None:
        self._epoch = 0
        self._epochs[:] = 0
        self._products[0] = self._identity
        self._u[:] = self._inverse[:] = self._identity

    def settle(self) -> None:
        """Let all rows catch up: w and bias are the weights."""
        if not self._waiting:
            return
        self._end_epoch()
        self._q[:] = 0
        rows = np.zeros((min(_ROWS, self._outputs), len(self._q)))
        for first in range(0, self._outputs, _ROWS):
            units = np.arange(first, min(first + _ROWS, self._outputs), dtype=np.int32)
            some = rows[:len(units)]
            take_rows(units, self._epochs, self._products, self._w, self._bias, some)
            keep_rows(units, 0, self._epochs, self._w, self._bias, some)
            matmul(some, some, self._q, transpose_a=True, accumulate=True)
        self._begin()
        self._waiting = False

    def _end_epoch(self) -> None:
        """Rows of this epoch and of all before it are to be multiplied by U."""
        for product in self._products[:self._epoch + 1]:
            matmul(product, self._u, self._room)
            product[:] = self._room

    def step(self, rate: float, l2: float, scale: float, hidden: np.ndarray, target: SparseBatch,
             dhidden: np.ndarray | None, losses: np.ndarray) -> None:
        """losses[b] = |w h + bias - t|^2 / 2; dhidden += scale times their gradient by hidden, with the weights as they
        were; w -= rate (scale times the gradient by w + l2 w), and bias without the decay.

        hidden   (batch, inputs) float32     in
        target   the batch's targets
        dhidden  (batch, inputs) float32     inout  None where it is not wanted
        losses   (batch) float64             out
        """
        if self._epoch == EPOCHS - 1:
            self.settle()
        batch, step = len(hidden), rate * scale
        units, starts, examples, positions, touched = target.by_feature(every=False)
        count, nonzeros = int(touched[0]), int(target.indptr[batch])
        units, each = units[:count], self._each[:count]
        h, images, aims = self._hidden[:batch], self._images[:batch], self._aims[:batch]
        rows, kept, gradient = self._rows[:count], self._kept[:count], self._gradient[:count]
        h[:, :-1], h[:, -1] = hidden, 1
        values = None if target.values is None else self._values[:nonzeros]
        if values is not None:
            values[:] = target.values[:nonzeros]
        self._places[positions[:nonzeros]] = np.repeat(each, np.diff(starts[:count + 1]))

        take_rows(units, self._epochs, self._products, self._w, self._bias, kept)  # as they are in this epoch
        matmul(kept, self._u, rows)  # and as they are
        sparse_forward(target.indptr, self._places, values, rows, aims)
        matmul(h, self._q, images)
        factored_loss(target.indptr, target.data, h, images, aims, losses)
        if dhidden is not None:
            dhidden += scale * (images[:, :-1] - aims[:, :-1])

        matmul(h, h, self._a, transpose_a=True)
        self._a *= -step
        self._a[np.diag_indices_from(self._a)] += 1 - rate * l2
        self._a[-1, -1] += rate * l2
        matmul(self._u, self._a, self._room)
        self._u[:] = self._room
        matmul(rows, self._a, gradient)
        rows[:] = gradient  # as they would be without targets
        if not self._invert():
            self._next_epoch()
            kept[:] = rows
        gradient[:] = 0
        sparse_weight_gradient(each, starts, examples, positions, touched, values, h, gradient)
        gradient *= step
        matmul(gradient, self._inverse, kept, accumulate=True)
        keep_rows(units, self._epoch, self._epochs, self._w, self._bias, kept)
        self._follow(rows, kept, gradient)
        self._waiting = True

    def _invert(self) -> bool:
        """inverse = U^-1; whether that loses few digits. If not, inverse is as it was."""
        try:
            inverse = np.linalg.inv(self._u)
        except np.linalg.LinAlgError:
            return False
        size = len(inverse)
        if not np.linalg.norm(inverse) * max(np.linalg.norm(self._u), size**0.5) <= _LARGEST * size:
            return False
        self._inverse[:] = inverse
        return True

    def _next_epoch(self) -> None:
        self._end_epoch()
        self._epoch += 1
        self._products[self._epoch] = self._u[:] = self._inverse[:] = self._identity

    def _follow(self, before: np.ndarray, kept: np.ndarray, room: np.ndarray) -> None:
        """Q = A Q A, less what the named rows had in it, and what they have now."""
        matmul(self._a, self._q, self._room)
        matmul(self._room, self._a, self._q)
        matmul(kept, self._u, room)
        matmul(room, room, self._q, transpose_a=True, accumulate=True)
        matmul(before, before, self._room, transpose_a=True)
        self._q -= self._room
        self._room[:] = self._q.T
        self._q += self._room
        self._q *= 0.5


class FactoredHead:
    """Training steps of an output layer whose loss says factored=True.

    The layer's weights are in it from its first step until somebody reads them; then they catch up, and the next step
    begins with them anew.
    """

    def __init__(self, node: Node, loss: Loss, device: Device, precision: str) -> None:
        """Raises ValueError for a GPU."""
        assert isinstance(node.layer, Dense)
        if device.name != "cpu":
            raise ValueError(f"squared_error(factored=True) is for the CPU, got a network on {device.name}")
        self.layer, self._batch = node.layer, 0
        self._l2 = 0.0
        self._weights: Factored | None = None

    def allocate(self, batch: int) -> None:
        """Make room for batches of up to `batch` examples."""
        self._batch = batch

    @property
    def nbytes(self) -> int:
        """Bytes of the working memory."""
        return 0 if self._weights is None else self._weights.nbytes

    def prepare(self, optimizer: Optimizer) -> None:
        """Choose the optimizer of the steps to come. Raises ValueError for one that has no factored form."""
        if optimizer.name != "sgd" or optimizer.l1:
            raise ValueError("optimizer: squared_error(factored=True) is trained by sgd without l1, got "
                             f"{optimizer.name}{' with l1' if optimizer.l1 else ''}")
        self._l2 = optimizer.l2

    def step(self, source: Signal, target: SparseBatch, scale: float, scalars: Array, losses: Array,
             key: Array) -> None:
        """Write the losses, add to source.delta, update the layer.

        scale    1 / batch size for a mean over examples
        scalars  (8) the numbers of the optimizer's rule for this step: the first is the rate
        losses   (batch) float64
        key      not used
        """
        if self._weights is None:
            weight, bias = self.layer.weights[0], self.layer.bias
            self._weights = Factored(weight.value, bias.value.reshape(-1))
            weight.catch_up = bias.catch_up = self._release
        self._weights.allocate(self._batch, target.capacity)
        self._weights.step(float(scalars[0]), self._l2, scale, source.y, target, source.delta, losses)

    def _release(self) -> None:
        assert self._weights is not None
        self.layer.weights[0].catch_up = self.layer.bias.catch_up = None
        self._weights.settle()
        self._weights = None
