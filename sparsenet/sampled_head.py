"""The training step of an output layer with a sampled loss: see losses.sampled."""

from typing import Any

import numpy as np

from sparsenet.device import Array, Device
from sparsenet.kernels.dense import column_sum, matmul
from sparsenet.kernels.head import Output, Rule
from sparsenet.kernels.sampled_loss import sampled_delta
from sparsenet.kernels.sampling import draw, target_gradient, target_logits, update_rows, weigh
from sparsenet.kernels.sparse import sparse_forward
from sparsenet.kernels.tiles import SCRATCH
from sparsenet.kernels.update import clear
from sparsenet.layers.base import Node, Signal
from sparsenet.layers.batch import SparseBatch
from sparsenet.layers.dense import Dense
from sparsenet.losses import Loss
from sparsenet.optimizers import Optimizer


class SampledHead:
    """Loss, both gradients and the update of one output layer, on the batch's targets and on drawn units alone.

    Memory and time are those of the candidates, the batch's targets and the drawn units. As wide as the outputs are,
    besides the weights and what belongs to them: a number each for finding what is named twice, and the distribution.
    """

    def __init__(self, node: Node, loss: Loss, device: Device, precision: str) -> None:
        assert isinstance(node.layer, Dense)
        assert loss.sampling is not None
        self.layer, self._outputs, self._inputs = node.layer, node.units, node.inputs[0].units
        self._sampling, self._softmax = loss.sampling, self.layer.activation.rowwise
        self._output = Output(self.layer.activation.value, *loss.through(self.layer.activation))
        self._device, self._dtype, self._precision = device, self.layer.bias.value.dtype, precision
        self._starts, self._shares = (None if table is None else device.put(table)
                                      for table in self._sampling.tables(self._outputs, self._dtype))
        self._scratch = None if device.name == "cpu" else device.zeros(SCRATCH)
        self._batch = self._nonzeros = 0
        self._rule: Rule | None = None

    def allocate(self, batch: int) -> None:
        """Make room for batches of up to `batch` examples."""
        self._batch, self._nonzeros = batch, 0  # how many targets they may have, `step` is told

    def _allocate(self, nonzeros: int) -> None:
        zeros, dtype, places = self._device.zeros, self._dtype, self._sampling.negatives + nonzeros
        most = max(1, min(places, self._outputs))
        self._nonzeros, self._most = nonzeros, most
        self._indptr, self._indices = zeros(self._batch + 2, np.int64), zeros(max(1, places), np.int32)
        self._candidates = SparseBatch(self._device, self._batch + 1, places, self._outputs, True, dtype)
        self._places, self._targets = zeros(nonzeros, np.int32), zeros(nonzeros, dtype)
        self._y, self._weights = zeros(self._batch * self._dense(most), dtype), zeros(most, dtype)
        self._own = zeros(most, dtype)
        self._panel, self._gradient = zeros((most, self._inputs), dtype), zeros((most, self._inputs), dtype)
        self._bias, self._bias_gradient = zeros((most, 1), dtype), zeros((most, 1), dtype)
        self._each = self._device.put(np.arange(most + 1, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of the working memory."""
        arrays = [self._starts, self._shares, self._scratch]
        if self._nonzeros:
            arrays += [self._indptr, self._indices, self._places, self._targets, self._y, self._weights, self._own,
                       self._panel, self._gradient, self._bias, self._bias_gradient, self._each]
        return sum(array.size * array.dtype.itemsize for array in arrays if array is not None)

    def _dense(self, candidates: int) -> int:
        """How many candidates, the first ones, may be negatives: on a CPU those that were drawn come first."""
        if self._device.name != "cpu" or self._sampling.in_batch:
            return candidates
        return min(self._sampling.negatives, candidates)

    def prepare(self, optimizer: Optimizer) -> None:
        """Choose the optimizer of the steps to come."""
        self._rule = Rule(optimizer.rule, optimizer.numbers, optimizer.l2, optimizer.l1)

    def step(self, source: Signal, target: SparseBatch, scale: float, scalars: Array, losses: Array,
             key: Array) -> None:
        """Write the losses, add to source.delta, update the candidates' rows of the layer, each once.

        scale    1 / batch size for a mean over examples
        scalars  (8) the numbers of the optimizer's rule for this step
        losses   (batch) float64
        key      (1) uint64, the stream of this step's draws
        """
        if max(1, target.capacity) > self._nonzeros:
            self._allocate(max(1, target.capacity))
        rule, weight, bias, hidden = self._rule, self.layer.weights[0], self.layer.bias, source.y
        assert rule is not None
        batch, negatives, outputs = losses.shape[0], self._sampling.negatives, self._outputs
        products: dict[str, Any] = {"precision": self._precision, "scratch": self._scratch}
        w, bias_column = weight.value, bias.value.reshape(outputs, 1)

        listed = self._candidates
        listed.indptr, listed.indices = self._indptr[:batch + 2], self._indices
        draw(key, negatives, outputs, self._starts, target.indptr, target.indices, listed.indptr, listed.indices)
        units, by_indptr, examples, positions, touched = listed.turn(every=False)
        used = int(touched[0]) if self._device.name == "cpu" else self._most
        dense, units, each, weights = self._dense(used), units[:used], self._each[:used + 1], self._weights[:used]
        own = self._own[:used]
        panel, gradient = self._panel[:used], self._gradient[:used]
        panel_bias, bias_gradient = self._bias[:used], self._bias_gradient[:used]
        y = self._y[:batch * dense].reshape(batch, dense)
        weigh(negatives, outputs, self._starts, self._shares, batch, units, by_indptr, positions, touched, weights, own,
              self._places)

        sparse_forward(each, units, None, w, panel)
        sparse_forward(each, units, None, bias_column, panel_bias)
        matmul(hidden, panel[:dense], y, transpose_b=True, **products)
        target_logits(target.indptr, self._places, hidden, panel, panel_bias.reshape(used), self._targets)
        sampled_delta(self._output, self._softmax, scale, target.indptr, target.data, self._places, weights,
                      own if self._sampling.correct_targets else None, panel_bias.reshape(used), y, self._targets,
                      losses)

        if source.delta is not None:
            matmul(y, panel[:dense], source.delta, accumulate=True, **products)
            sparse_forward(target.indptr, self._places, self._targets, panel, source.delta, accumulate=True)
        clear(gradient[dense:])
        clear(bias_gradient)
        matmul(y, hidden, gradient[:dense], transpose_a=True, **products)
        column_sum(y, bias_gradient.reshape(used)[:dense])
        target_gradient(negatives, by_indptr, examples, positions, touched, self._targets, hidden, gradient,
                        bias_gradient.reshape(used))
        update_rows(rule.rule, units, touched, gradient, w, weight.slots, rule.l2, rule.l1, scalars, rule.numbers)
        update_rows(rule.rule, units, touched, bias_gradient, bias_column, bias.slots.reshape(-1, outputs, 1), 0.0, 0.0,
                    scalars, rule.numbers)
