"""Gradients compared with finite differences."""

import numpy as np

from sparsenet.network import Matrices, Network
from sparsenet.optimizers import sgd
from sparsenet.training import bind


def check_gradients(network: Network, inputs: Matrices, targets: Matrices, *, training: bool = False,
                    step: float = 1e-5, sample: int | None = 200, tolerance: float = 1e-6) -> dict[str, float]:
    """Largest error of each parameter's gradient against central differences in float64, by parameter name.

    The error of an element is |analytic - measured| / max(1, |analytic|), where
    measured = (loss(w + step) - loss(w - step)) / (2 step). The network itself is not changed: a float64 copy on the
    CPU is.

    inputs, targets  a small batch
    training         with dropout and denoising; their masks stay as they are while a weight moves
    sample           how many elements of each parameter, evenly spread: two of three among those with a gradient (a
                     batch touches few rows of a sparse input's weights), one among all; None: all
    tolerance        AssertionError naming the worst element where the error is larger

    A loss with a margin or an activation with a kink may be measured across it: choose other weights then.
    """
    copy = network.copy(dtype="float64", device="cpu")
    feeds, wanted, examples = bind(copy, inputs, targets, batch=2**31)
    rows = np.arange(examples)
    copy.passes.allocate(len(rows), training=True)
    copy.prepare(sgd(), keep_gradients=True)
    loaded = {name: feed.load(rows) for name, feed in feeds.items()}
    aims = {name: feed.load(rows) for name, feed in wanted.items()}
    copy.passes.draw(copy.seed, copy.step)

    def loss() -> float:
        copy.passes.forward(loaded, len(rows), training)
        copy.passes.loss(aims, len(rows))
        copy.device.wait()
        return copy.passes.mean_loss(len(rows))

    loss()
    copy.passes.backward(aims, len(rows))
    errors = {}
    for name, parameter in copy.parameters.items():
        values, gradient = parameter.value.reshape(-1), parameter.gradient.reshape(-1)
        picked = _picked(gradient, values.size if sample is None else sample)
        worst = 0.0
        for i in picked:
            before = values[i]
            measured = 0.0
            for side in (1, -1):
                values[i] = before + side * step
                measured += side * loss() / (2 * step)
            values[i] = before
            error = abs(gradient[i] - measured) / max(1.0, abs(gradient[i]))
            worst = max(worst, error)
            if not error <= tolerance:
                raise AssertionError(f"{name}[{i}]: gradient is {gradient[i]:.9g}, central difference {measured:.9g}")
        errors[name] = float(worst)
    return errors


def _picked(gradient: np.ndarray, sample: int) -> np.ndarray:
    """Numbers of elements to look at."""
    touched = np.flatnonzero(gradient)
    every = np.arange(gradient.size)
    if sample >= gradient.size:
        return every
    some = [spread[np.linspace(0, len(spread) - 1, count).astype(int)] for spread, count in
            ((touched, min(len(touched), -(-2 * sample // 3))), (every, -(-sample // 3))) if len(spread)]
    return np.unique(np.concatenate(some))
