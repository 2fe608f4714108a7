"""The scalar functions that kernels are tested with: all that sparsenet ships, and one of a user's own of each kind."""

import math

import numpy as np

from sparsenet import activations, losses, optimizers
from sparsenet.activations import Activation
from sparsenet.losses import Loss
from sparsenet.optimizers import Idle, Optimizer

ONE = np.float32(1)

USERS_ACTIVATION = Activation("arsinh", value=lambda z: math.asinh(z), slope=lambda y: ONE / math.cosh(y))
USERS_LOSS = Loss("cauchy", value=lambda y, t: math.log1p((y - t) * (y - t)),
                  slope=lambda y, t: (y - t + y - t) / (ONE + (y - t) * (y - t)))


def _bounded(w, g, m, v, s):
    m = max(m, abs(g))
    return w - s[0] * g / (ONE + m), m, v


USERS_OPTIMIZER = Optimizer("bounded", _bounded, slots=1, scalars=lambda step: (0.5 / step,))
USERS_IDLE = Idle(lambda w, m, v, c: (c[0] * w, m - c[1], c[2] * v), (1.0, 0.0, 1.0),
                  lambda c, s: (c[0] * s[0], c[1] + s[1], c[2] * s[1]))

ACTIVATIONS = [a for a in [make() for make in activations.ACTIVATIONS.values()] if not a.rowwise] + [USERS_ACTIVATION]
OPTIMIZERS = [make() for make in optimizers.OPTIMIZERS.values()] + [USERS_OPTIMIZER]


def _outputs():
    for loss in [make() for make in losses.LOSSES.values()]:
        for activation in loss.outputs or ("linear", "softmax"):
            yield f"{loss.name}-{activation}", *loss.through(activations.get(activation))
    yield f"{USERS_LOSS.name}-{USERS_ACTIVATION.name}", *USERS_LOSS.through(USERS_ACTIVATION)


def scalars_of(optimizer, step):
    """(array with room for all that a rule may have, how many there are): arguments of kernels."""
    scalars = np.full(8, np.nan, np.float32)
    scalars[:optimizer.numbers] = optimizer.scalars(step)
    return scalars, optimizer.numbers


OUTPUTS = list(_outputs())  # (names of loss and activation, loss, its delta)
