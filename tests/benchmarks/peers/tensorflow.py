"""TensorFlow: whole training steps compiled by XLA, and its own sampled softmax."""

import os
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from tests.benchmarks.peers.task import MARGINS, Steps, Task


def steps(task: Task) -> Steps:
    """Training steps. Batches are padded to one length, so that XLA compiles once."""
    tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["OMP_NUM_THREADS"]))
    tf.config.threading.set_inter_op_parallelism_threads(1)
    network = _Network(task)
    sampled = task.loss == "sampled"
    step = tf.function(network.sampled_step if sampled else network.step, jit_compile=not sampled)
    batches, made = [[tf.constant(array) for array in _padded(task, batch)] for batch in task.batches], 0

    def again() -> object:
        nonlocal made
        made += 1
        return step(*batches[made % len(batches)]).numpy()

    return Steps(again)


def _padded(task: Task, batch: Any) -> list[np.ndarray]:
    """Rows, columns and values of inputs and targets; entries that fill up belong to a row past the last one.

    Of a sampled loss, the targets are as many labels for each example as the mean has: TensorFlow wants one number.
    """
    entries = max(len(batch.indices) for batch in task.batches)
    ones = max(len(batch.columns) for batch in task.batches)
    values = np.ones(len(batch.indices), np.float32) if batch.values is None else batch.values
    found = [_filled(batch.input_rows, entries, task.batch), _filled(batch.indices.astype(np.int64), entries, 0),
             _filled(values, entries, 0)]
    if task.loss != "sampled":
        return [*found, _filled(batch.rows, ones, task.batch), _filled(batch.columns.astype(np.int64), ones, 0)]
    each = max(1, round(len(batch.columns) / task.batch))
    starts = np.searchsorted(batch.rows, np.arange(task.batch))
    labels = batch.columns[(starts[:, None] + np.arange(each)) % len(batch.columns)]
    return [*found, labels.astype(np.int64)]


def _filled(array: np.ndarray, length: int, value: float) -> np.ndarray:
    return np.concatenate([array, np.full(length - len(array), value, array.dtype)])


class _Network:
    """Parameters, optimizer and steps."""

    def __init__(self, task: Task) -> None:
        self.task = task
        dims = [task.features, *task.hidden, task.outputs]
        random = np.random.default_rng(1)
        weights = [random.standard_normal((a, b), np.float32) * np.float32(a**-0.5) for a, b in pairwise(dims)]
        if task.loss == "sampled":
            weights[-1] = weights[-1].T
        self.layers = [(tf.Variable(weight), tf.Variable(tf.zeros(b)))
                       for weight, b in zip(weights, dims[1:], strict=True)]
        self.parameters = [parameter for layer in self.layers for parameter in layer]
        self.optimizer = {"adam": tf.keras.optimizers.Adam, "sgd": tf.keras.optimizers.SGD,
                          "rmsprop": tf.keras.optimizers.RMSprop}[task.optimizer](1e-3)
        self.optimizer.build(self.parameters)

    def hidden(self, rows: Any, columns: Any, values: Any) -> Any:
        weight, bias = self.layers[0]
        gathered = tf.gather(weight, columns)
        if self.task.valued:
            gathered *= values[:, None]
        h = tf.sigmoid(tf.math.unsorted_segment_sum(gathered, rows, self.task.batch + 1)[:-1] + bias)
        for weight, bias in self.layers[1:-1]:
            h = tf.sigmoid(self.product(h, weight) + bias)
        return h

    def product(self, a: Any, b: Any) -> Any:
        if self.task.precision == "float32":
            return a @ b
        return tf.cast(tf.cast(a, tf.bfloat16) @ tf.cast(b, tf.bfloat16), tf.float32)

    def step(self, rows: Any, columns: Any, values: Any, target_rows: Any, target_columns: Any) -> Any:
        task, places = self.task, tf.stack([target_rows, target_columns], 1)
        with tf.GradientTape() as tape:
            weight, bias = self.layers[-1]
            z = self.product(self.hidden(rows, columns, values), weight) + bias
            if task.output == "softmax":
                inside = tf.cast(target_rows < task.batch, tf.float32)
                chosen = tf.gather_nd(tf.nn.log_softmax(z), tf.minimum(places, [[task.batch - 1, task.outputs]]))
                loss = -tf.reduce_sum(chosen * inside) / task.batch
            else:
                ones = tf.ones(tf.shape(target_rows)[0])
                t = tf.tensor_scatter_nd_max(tf.zeros((task.batch + 1, task.outputs)), places, ones)[:-1]
                if task.loss == "margins":  # held at its margin a logit has no slope
                    one, zero = (float(np.log(y / (1 - y))) for y in MARGINS)
                    z = tf.where(t > 0, tf.minimum(z, one), tf.maximum(z, zero))
                loss = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(t, z)) / task.batch
        return self.updated(tape, loss)

    def sampled_step(self, rows: Any, columns: Any, values: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sampled_softmax_loss(
                *self.layers[-1], labels, self.hidden(rows, columns, values), self.task.negatives, self.task.outputs,
                num_true=labels.shape[1]))
        return self.updated(tape, loss)

    def updated(self, tape: Any, loss: Any) -> Any:
        gradients = tape.gradient(loss, self.parameters)
        self.optimizer.apply_gradients(zip(gradients, self.parameters, strict=True))
        return loss
