"""JAX: whole training steps compiled by XLA."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.benchmarks.peers.task import MARGINS, Batch, Steps, Task


def steps(task: Task) -> Steps:
    """Training steps. Batches are padded to one length, so that XLA compiles once."""
    random = np.random.default_rng(1)
    dims = [task.features, *task.hidden, task.outputs]
    parameters = [(jnp.asarray(random.standard_normal((a, b), np.float32) * np.float32(a**-0.5)), jnp.zeros(b))
                  for a, b in pairwise(dims)]
    slots = {"sgd": 0, "rmsprop": 1, "adam": 2}[task.optimizer]
    state = [jax.tree.map(jnp.zeros_like, parameters) for _ in range(slots)]

    def step(parameters: Any, state: Any, number: Any, *batch: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda parameters: _loss(task, parameters, *batch))(parameters)
        return *_updated(task.optimizer, parameters, gradients, state, number), loss

    compiled = jax.jit(step, donate_argnums=(0, 1))
    batches, made = [[jnp.asarray(array) for array in _padded(task, batch)] for batch in task.batches], 0

    def again() -> None:
        nonlocal parameters, state, made
        made += 1
        parameters, state, loss = compiled(parameters, state, jnp.float32(made), *batches[made % len(batches)])
        jax.block_until_ready((parameters, loss))

    return Steps(again)


def _padded(task: Task, batch: Batch) -> list[np.ndarray]:
    """Rows, columns and values of inputs, rows and columns of targets; what fills up has a row past the last one."""
    entries = max(len(batch.indices) for batch in task.batches)
    ones = max(len(batch.columns) for batch in task.batches)
    values = np.ones(len(batch.indices), np.float32) if batch.values is None else batch.values

    def filled(array: np.ndarray, length: int, value: int) -> np.ndarray:
        return np.concatenate([array, np.full(length - len(array), value)]).astype(np.int32)

    return [filled(batch.input_rows, entries, task.batch), filled(batch.indices, entries, 0),
            np.concatenate([values, np.zeros(entries - len(values), np.float32)]),
            filled(batch.rows, ones, task.batch), filled(batch.columns, ones, 0)]


def _loss(task: Task, parameters: Any, rows: Any, columns: Any, values: Any, target_rows: Any,
          target_columns: Any) -> Any:
    def product(a: Any, b: Any) -> Any:
        if task.precision == "float32":
            return a @ b
        return jnp.matmul(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), preferred_element_type=jnp.float32)

    (weight, bias), *others = parameters
    gathered = weight[columns] * values[:, None] if task.valued else weight[columns]
    h = jax.nn.sigmoid(jax.ops.segment_sum(gathered, rows, task.batch + 1)[:-1] + bias)
    for weight, bias in others[:-1]:
        h = jax.nn.sigmoid(product(h, weight) + bias)
    z = product(h, others[-1][0]) + others[-1][1]
    if task.output == "softmax":
        chosen = jax.nn.log_softmax(z).at[target_rows, target_columns].get(mode="fill", fill_value=0)
        return -chosen.sum() / task.batch
    t = jnp.zeros_like(z).at[target_rows, target_columns].set(1, mode="drop")
    if task.loss == "margins":  # held at its margin a logit has no slope
        one, zero = (float(np.log(y / (1 - y))) for y in MARGINS)
        z = jnp.where(t > 0, jnp.minimum(z, one), jnp.maximum(z, zero))
    return (jax.nn.softplus(z) - t * z).sum() / task.batch


def _updated(name: str, parameters: Any, gradients: Any, state: Any, number: Any) -> Any:
    """(new parameters, new state)."""
    if name == "sgd":
        return jax.tree.map(lambda p, g: p - 1e-2 * g, parameters, gradients), state
    squares = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state[-1], gradients)
    if name == "rmsprop":
        return jax.tree.map(lambda p, g, v: p - 1e-3 * g / (jnp.sqrt(v) + 1e-8), parameters, gradients,
                            squares), [squares]
    squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state[1], gradients)
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state[0], gradients)
    rate = 1e-3 * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
    return jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), parameters, means,
                        squares), [means, squares]
