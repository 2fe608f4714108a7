"""The same network, trained on every device, ends with the same weights and the same recommendations."""

import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

import sparsenet as sn
from sparsenet import demo
from sparsenet import device as devices
from sparsenet.layers import Dense, Input
from sparsenet.testing import assert_trained_alike
from sparsenet.testing.emulator import Emulator


def network(device, items, hidden, dtype="float32"):
    """Masks in both places where there are any, and a softmax, whose rows are reduced."""
    x = Input(items, sparse=True, denoising=0.3)
    h = Dense(hidden, "tanh", dropout=0.3)(x)
    return sn.Network(x, Dense(items, "softmax")(h), "cross_entropy", seed=3, device=device, dtype=dtype)


def trained(device, users, items, hidden, epochs, batch, dtype="float32"):
    x = sp.random_array((users, items), density=0.2, rng=1, format="csr") != 0
    net = network(device, items, hidden, dtype)
    sn.fit(net, x, x, optimizer=sn.optimizers.adam(0.01), epochs=epochs, batch=batch)
    return net, x


@pytest.mark.simulator
def test_simulator_and_cpu():
    size = {"users": 6, "items": 9, "hidden": 4, "epochs": 1, "batch": 4}
    exact, x = trained("cpu", **size, dtype="float64")
    simulated, _ = trained("simulator", **size)
    assert_trained_alike(simulated.weights, exact.weights, adaptive=True)
    np.testing.assert_array_equal(sn.recommend(simulated, x[:2], k=4)[0], sn.recommend(exact, x[:2], k=4)[0])


@pytest.mark.emulator
def test_the_demos_network_through_the_emulator():
    """An epoch of the demo, all its customers and products, by the machine code that numba-cuda compiles for a GPU."""
    split = sn.data.strong_generalization(sn.data.online_retail().matrix)
    settings = replace(demo.Settings(), epochs=1)
    exact = demo.build(split.train, settings, seed=1, device="cpu").copy(dtype="float64")
    emulated = demo.build(split.train, settings, seed=1, device=Emulator(races=False))
    for network in (exact, emulated):
        demo.train(network, split, settings)
    assert emulated.step == exact.step == 29
    assert_trained_alike(emulated.weights, exact.weights, adaptive=True)


@pytest.mark.cuda
def test_cuda_and_cpu_after_50_steps():
    try:
        devices.device("cuda")
    except (ImportError, RuntimeError) as missing:
        pytest.skip(str(missing))
    size = {"users": 500, "items": 300, "hidden": 64, "epochs": 10, "batch": 100}
    exact, _ = trained("cpu", **size, dtype="float64")
    for device in ("cpu", "cuda"):
        found, _ = trained(device, **size)
        assert found.step == 50
        assert_trained_alike(found.weights, exact.weights, adaptive=True)


WHOLE_PROCESS = """
    import sys
    sys.path.insert(0, {root!r})
    import numpy as np
    from sparsenet import device
    from tests.test_devices_agree import trained
    device.Cuda.threads, device.Cuda.tile, device.Cuda.max_blocks = 8, 4, 2
    device._device_name = lambda array: "cpu" if isinstance(array, np.ndarray) else "cuda"
    net, _ = trained("cuda", 4, 7, 3, 1, 4)
    np.savez({path!r}, **net.weights)
"""


@pytest.mark.simulator
def test_the_cuda_device_itself(tmp_path):
    """Class Cuda over a numba.cuda that is the simulator: its copies, slices and launches are the ones a GPU gets."""
    path = tmp_path / "weights.npz"
    script = textwrap.dedent(WHOLE_PROCESS.format(root=os.path.dirname(os.path.dirname(__file__)), path=str(path)))
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"})
    exact, _ = trained("cpu", 4, 7, 3, 1, 4, dtype="float64")
    with np.load(path) as weights:
        assert_trained_alike({name: weights[name] for name in weights.files}, exact.weights, adaptive=True)
