"""Fully connected layer."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsenet import activations, initializers
from sparsenet.activations import Activation
from sparsenet.bfloat16 import SHORT, unstored
from sparsenet.device import Array
from sparsenet.initializers import Initializer
from sparsenet.kernels.activation import activate, hidden_delta
from sparsenet.kernels.dense import column_sum, matmul, matmul_activate
from sparsenet.kernels.dropout import dropout, dropped_delta
from sparsenet.kernels.loss import loss_sum, output_delta, sparse_loss_sum, sparse_output_delta
from sparsenet.kernels.rows import row_divide, row_exp, row_max, row_sum, softmax_delta, softmax_pull
from sparsenet.kernels.sparse import sparse_forward, sparse_weight_gradient
from sparsenet.layers.base import Layer, Node, Parameter, Signal
from sparsenet.layers.batch import SparseBatch
from sparsenet.losses import Loss

_PART = 8192  # units at a time


class Dense(Layer):
    """y = activation(sum_i x_i W_i + bias), for one or more inputs x_i, sparse or dense.

    units        number of outputs
    activation   a name of activations.ACTIVATIONS, or an Activation
    dropout      probability with which, in training, each unit is set to 0; the others are multiplied by
                 1 / (1 - dropout)
    initializer  of the weights: a name of initializers.INITIALIZERS, or an Initializer
    bias         initial value of every bias, or of each; initializers.log_odds gives good ones for a wide output
    name         default: given by the network

    W_i is (inputs, units) float32, split over ranks by units. Raises ValueError for values out of range.
    """

    activation: Activation

    def __init__(self, units: int, activation: str | Activation = "linear", *, dropout: float = 0.0,
                 initializer: str | Initializer = "xavier", bias: float | np.ndarray = 0.0,
                 name: str | None = None) -> None:
        if isinstance(units, bool) or not isinstance(units, int | np.integer) or units < 1:
            raise ValueError(f"Dense: units must be an integer of at least 1, got {units!r}")
        if not 0 <= dropout < 1:
            raise ValueError(f"Dense: dropout must be in [0, 1), got {dropout}")
        self.units, self.activation, self.dropout = units, activations.get(activation), dropout
        self.initializer, self.name = initializers.get(initializer), name
        if self.activation.rowwise and dropout:
            raise ValueError("Dense: dropout after a softmax has no use")
        self.weights: list[Parameter] = []
        self.bias = Parameter(1, units, initializers.values(bias, units), bias=True)

    def settings(self) -> dict[str, Any]:
        return {"units": self.units, "activation": self.activation, "dropout": self.dropout,
                "initializer": self.initializer, "name": self.name}

    @property
    def parameters(self) -> dict[str, Parameter]:
        many = len(self.weights) > 1
        names = [f"weight{i}" if many else "weight" for i in range(len(self.weights))]
        return {**dict(zip(names, self.weights, strict=True)), "bias": self.bias}

    def weight_of(self, i: int) -> Parameter:
        return self.weights[i]

    def connect(self, inputs: tuple[Node, ...]) -> int:
        if not inputs:
            raise TypeError("Dense: needs at least one input")
        widths = [node.units for node in inputs]
        if not self.weights:
            self.weights = [Parameter(node.units, self.units, self.initializer, by_unit=not node.sparse)
                            for node in inputs]
        known = [weight.inputs for weight in self.weights]
        if widths != known:
            raise ValueError(f"Dense{f' {self.name!r}' if self.name else ''}: was called on inputs of widths {known} "
                             f"before, now {widths}")
        for node, weight in zip(inputs, self.weights, strict=True):
            if node.sparse and weight.by_unit:
                if weight.value is not None:
                    raise ValueError("Dense: belongs to a network with a dense input, and now gets a sparse one in its "
                                     "place; call it on the sparse one before you make networks of it")
                weight.by_unit = False
        return self.units

    def forward(self, inputs: Sequence[Signal], out: Signal) -> None:
        bias, last = self.bias.value.reshape(-1), len(inputs) - 1
        for i, (source, weight) in enumerate(zip(inputs, self.weights, strict=True)):
            x = source.y
            if isinstance(x, SparseBatch):
                values = weight.value if out.key is None else weight.named_by(x)
                sparse_forward(x.indptr, x.indices, x.values, values, out.y, accumulate=i > 0)
                if i == last:
                    activate(self.activation.value, bias, out.y)
                continue
            source.whole = self.comm.gather(x)
            if weight.value.dtype == SHORT:
                self._forward_in_parts(source.whole, weight.value, bias, out)
            elif i == last:
                matmul_activate(self.activation.value, source.whole, weight.value, bias, out.y,
                                transpose_b=weight.by_unit, accumulate=i > 0, precision=out.precision,
                                scratch=out.scratch)
            else:
                matmul(source.whole, weight.value, out.y, transpose_b=weight.by_unit, accumulate=i > 0,
                       precision=out.precision, scratch=out.scratch)
        if self.activation.rowwise:
            row_max(out.y, out.row_largest)
            self.comm.all_reduce_max(out.row_largest)
            row_exp(out.row_largest, out.y)
            row_sum(out.y, out.row_total)
            self.comm.all_reduce_sum(out.row_total)
            row_divide(out.row_total, out.y)
        elif self.dropout and out.key is not None:
            dropout(out.key, self.dropout, out.y, self.comm.bounds(self.units)[0], self.units)

    def _forward_in_parts(self, x: Array, w: Array, bias: Array, out: Signal) -> None:
        """matmul_activate with weights of an output in bfloat16: some at a time become float32."""
        for first in range(0, len(w), _PART):
            some, of_some = unstored(w[first:first + _PART]), bias[first:first + _PART]
            y = np.empty((len(x), len(some)), np.float32)
            matmul_activate(self.activation.value, x, some, of_some, y, transpose_b=True, precision=out.precision,
                            scratch=out.scratch)
            out.y[:, first:first + _PART] = y

    def delta(self, out: Signal) -> None:
        if self.activation.rowwise:
            softmax_pull(out.y, out.delta)
            self._finish_softmax(out)
        elif self.dropout and out.key is not None:
            dropped_delta(self.activation.slope, out.key, self.dropout, out.y, out.delta,
                          self.comm.bounds(self.units)[0], self.units)
        else:
            hidden_delta(self.activation.slope, out.y, out.delta)

    def _finish_softmax(self, out: Signal) -> None:
        row_sum(out.delta, out.row_total)
        self.comm.all_reduce_sum(out.row_total)
        softmax_delta(out.row_total, out.y, out.delta)

    def check_loss(self, loss: Loss) -> None:
        loss.through(self.activation)
        if self.dropout:
            raise ValueError("a layer with dropout cannot have a loss")

    def check_targets(self, loss: Loss, smallest: float, largest: float, what: str) -> None:
        loss.check_targets(self.activation, smallest, largest, what)

    def output_loss(self, out: Signal, loss: Loss, target: Any, result: Array) -> None:
        value, _ = loss.through(self.activation)
        if isinstance(target, SparseBatch):
            sparse_loss_sum(value, out.y, target.indptr, target.indices, target.data, result)
        else:
            loss_sum(value, out.y, target, result)
        self.comm.all_reduce_sum(result)

    def output_delta(self, out: Signal, loss: Loss, target: Any, scale: float, accumulate: bool) -> None:
        _, slope = loss.through(self.activation)
        if accumulate and self.activation.rowwise:
            softmax_pull(out.y, out.delta)
        elif accumulate:
            self.delta(out)
        if isinstance(target, SparseBatch):
            sparse_output_delta(slope, scale, out.y, target.indptr, target.indices, target.data, out.delta, accumulate)
        else:
            output_delta(slope, scale, out.y, target, out.delta, accumulate)
        if self.activation.rowwise:
            self._finish_softmax(out)

    def backward(self, inputs: Sequence[Signal], out: Signal) -> None:
        column_sum(out.delta, self.bias.gradient.reshape(-1))
        for source, weight in zip(inputs, self.weights, strict=True):
            x = source.y
            if isinstance(x, SparseBatch):
                if weight.gradient is None:
                    weight.source = x, out.delta
                else:
                    sparse_weight_gradient(*x.by_feature(every=False), x.values, out.delta, weight.gradient)
                continue
            left, right = (out.delta, source.whole) if weight.by_unit else (source.whole, out.delta)
            matmul(left, right, weight.gradient, transpose_a=True, accumulate=True, precision=out.precision,
                   scratch=out.scratch)
            if source.delta is not None:
                partial = self.comm.spread(source.delta)
                matmul(out.delta, weight.value, partial, transpose_b=not weight.by_unit, accumulate=True,
                       precision=out.precision, scratch=out.scratch)
                self.comm.reduce_scatter(partial, source.delta)
