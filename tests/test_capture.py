"""Training steps that are captured: a replayed step is right for another batch, other keys, another step number.

Without a GPU: CUDA's kernels in the emulator and in the simulator, and a driver that only writes down what it is asked.
"""

import contextlib
import ctypes
import functools
import gc
import types

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import sparsenet as sn
from sparsenet import compiling, cublas, optimizers
from sparsenet.compiling import numba_cuda
from sparsenet.data.arrays import read_arrays
from sparsenet.device import Cuda, Device, device
from sparsenet.driver import Driver, bound, one_by_one
from sparsenet.layers import Dense, Input
from sparsenet.passes import Passes
from sparsenet.seeds import stream_key
from sparsenet.testing import assert_close, assert_trained_alike
from sparsenet.testing.emulator import Emulator
from sparsenet.training import bind
from tests.networks import (
    ITEMS,
    TWO_INPUTS,
    TWO_TARGETS,
    USERS,
    T,
    any_network,
    assert_same_bits,
    two_ended,
)


@functools.cache
def emulator():
    try:
        return Interruptible()
    except ImportError as missing:
        pytest.skip(str(missing))


class Interruptible(Emulator):
    """The user may stop it before a launch."""

    launches, stop_before = 0, None

    def _start(self, kernel, blocks, threads, args):
        self.launches += 1
        if self.launches == self.stop_before:
            raise KeyboardInterrupt
        super()._start(kernel, blocks, threads, args)


@contextlib.contextmanager
def every_step_anew():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cuda, "capture", Device.capture)
        yield


ADAM = optimizers.adam(lambda step: 0.1 / step, l2=0.01)


def numbers_of(network):
    """Weights and optimizer state."""
    return {**network.weights, **{f"{name} slots": network.device.fetch(p.slots)
                                  for name, p in network.parameters.items()}}


def prove_replays(run):
    """run() -> (losses, a network): on the emulator, the same bits whether steps are replayed or made anew."""
    losses, network = run()
    with every_step_anew():
        expected, other = run()
    assert losses == expected
    assert_same_bits(numbers_of(network), numbers_of(other))


def train(network, inputs, targets, batches, optimizer=ADAM, batch=USERS, ahead=True):
    """Losses of some batches, each loaded while the one before is computed."""
    feeds, wanted, _ = bind(network, inputs, targets, batch)
    network.prepare(optimizer)
    return [network.train_batch(feeds, wanted, rows, coming if ahead else None)
            for rows, coming in zip(batches, [*batches[1:], None], strict=True)]


def orders(batch, steps):
    """Batches of different examples, and thus of different numbers of nonzeros and touched features."""
    rng = np.random.default_rng(0)
    return [rng.permutation(USERS)[:batch] for _ in range(steps)]


def factual(dev="cpu", dtype="float32", items=ITEMS, units=5):
    """No sparse input."""
    x = Input(3)
    h = Dense(units, "tanh", dropout=0.25)(x)
    return sn.Network(x, Dense(items, "sigmoid")(h), "cross_entropy", seed=2, device=dev, dtype=dtype)


FACTS = TWO_INPUTS["facts"]


@pytest.fixture
def forwards(monkeypatch):
    """The batch sizes of all forward passes that Python goes through."""
    sizes, forward = [], Passes.forward

    def counted(self, inputs, batch, training=False, without=()):
        sizes.append(batch)
        return forward(self, inputs, batch, training, without)
    monkeypatch.setattr(Passes, "forward", counted)
    return sizes


# ---- replayed steps


@pytest.mark.emulator
@pytest.mark.parametrize("optimizer", [ADAM, optimizers.sgd(0.1), optimizers.adam(0.1, lazy=True)],
                         ids=["adam", "sgd", "lazy"])
def test_replayed_steps(optimizer, forwards):
    """Masks in two places, a layer used twice, two outputs, and batches of three sizes in turn."""
    batches = [rows[:size] for rows, size in zip(orders(7, 24), [7, 7, 7, 2, 7, 1] * 4, strict=True)]

    def run():
        network = two_ended().copy(device=emulator())
        return train(network, TWO_INPUTS, TWO_TARGETS, batches, optimizer), network

    losses, network = run()
    assert len(forwards) <= 3 * 2, "one for each size and room"
    prove_replays(run)
    exact = two_ended().copy(dtype="float64")
    assert_close(losses, train(exact, TWO_INPUTS, TWO_TARGETS, batches, optimizer), terms=100)
    assert_trained_alike(network.weights, exact.weights, adaptive=optimizer.slots > 0)


@pytest.mark.emulator
@settings(deadline=None, max_examples=8)
@given(any_network(), st.data())
def test_any_network(drawn, data):
    network, inputs, targets = drawn
    batches = [np.array(rows) for rows in data.draw(st.lists(st.lists(st.integers(0, 2), min_size=1, unique=True),
                                                             min_size=1, max_size=9))]

    def run():
        there = network.copy(device=emulator())
        return train(there, inputs, targets, batches, optimizers.momentum(0.05, l2=0.1), batch=3), there
    prove_replays(run)


@pytest.mark.emulator
def test_what_changes_from_step_to_step():
    """Keys and numbers of the rule are those of the step, on the device, in replayed steps too."""
    network = factual(emulator())
    feeds, wanted, _ = bind(network, FACTS, T, USERS)
    network.prepare(ADAM)
    for step in range(1, 7):
        network.train_batch(feeds, wanted, np.arange(USERS))
        keys, scalars = (network.device.fetch(a) for a in (network.passes._keys, network._steps._scalars))
        assert keys.tolist() == [stream_key(2, network.names[node], step) for node in network.nodes]
        assert (scalars[:, :ADAM.numbers] == np.array(ADAM.scalars(step), np.float32)).all()


@pytest.mark.simulator
def test_the_simulator_replays_too(forwards):
    batches = [np.array(rows) for rows in ([0, 1], [2, 3], [3, 0], [1, 2], [0], [3])]
    target = sp.csr_array(np.array([[1, 0, 0], [1, 1, 1], [0, 0, 0], [0, 1, 0]]) != 0)

    def weights(where, dtype="float32"):
        network = factual(where, dtype, items=3, units=2)
        train(network, FACTS[:4], target, batches, batch=2)
        return network.weights

    replayed = weights("simulator")
    assert forwards == [2, 2, 1, 1]
    assert_trained_alike(replayed, weights("cpu", "float64"), adaptive=True)


@pytest.mark.cuda
def test_a_graph_has_the_bits_of_single_launches(monkeypatch):
    """On a GPU. A driver that refuses graphs, or a numba-cuda that cannot bind launches, warns: warnings are errors."""
    try:
        gpu = device("cuda")
    except (ImportError, RuntimeError) as missing:
        pytest.skip(str(missing))
    def weights():
        network = two_ended().copy(device=gpu)
        train(network, TWO_INPUTS, TWO_TARGETS, orders(7, 20))
        return network.weights

    replayed = weights()
    with every_step_anew():
        assert_same_bits(replayed, weights())
    monkeypatch.setattr(Driver, "graph", lambda self, calls: one_by_one([(call, ()) for call in calls]))
    assert_same_bits(replayed, weights())


# ---- what ends a captured step's life


@pytest.mark.emulator
def test_other_buffers_are_captured_anew(forwards):
    """Buffers that grew, and another optimizer's state; weights that are set stay where they are."""
    def run():
        network = factual(emulator())
        feeds, wanted, _ = bind(network, FACTS, T, USERS)

        def steps(count):
            return [network.train_batch(feeds, wanted, np.arange(5) + i) for i in range(count)]

        network.prepare(ADAM)
        losses = steps(2)
        network.predict(FACTS, batch=USERS)
        losses += steps(2)
        network.prepare(optimizers.momentum(0.1))
        losses += steps(2)
        network.set_weights(factual().weights)
        return losses + steps(2), network

    run()
    assert forwards == [5, USERS, 5, 5]
    prove_replays(run)


@pytest.mark.emulator
def test_a_file_brings_other_state(tmp_path):
    """Into layers of a network that has captured steps, by way of another network that shares them."""
    def run():
        network = factual(emulator())
        feeds, wanted, _ = bind(network, FACTS, T, USERS)
        train(network, FACTS, T, orders(5, 3))
        network.save(tmp_path / "n.nc")
        losses = [network.train_batch(feeds, wanted, rows) for rows in orders(5, 3)]
        sharing = sn.Network(*network.inputs.values(), *network.outputs.values(), "cross_entropy", seed=2,
                             device=emulator())
        sharing.restore(*read_arrays(tmp_path / "n.nc"))
        return losses + [network.train_batch(feeds, wanted, rows) for rows in orders(5, 3)], network
    prove_replays(run)


@pytest.mark.emulator
def test_networks_that_share_a_layer_take_turns():
    def run():
        x = Input(3)
        h = Dense(4, "tanh")(x)
        pair = [sn.Network(x, Dense(ITEMS, "sigmoid")(h), "cross_entropy", seed=s, device=emulator()) for s in (1, 2)]
        fed = [bind(network, FACTS, T, USERS)[:2] for network in pair]
        for network in pair:
            network.prepare(ADAM)
        return [network.train_batch(*feeds, np.arange(6) + step) for step in range(4)
                for network, feeds in zip(pair, fed, strict=True)], pair[0]
    prove_replays(run)


@pytest.mark.emulator
@pytest.mark.parametrize("step", [0, 3], ids=["recorded", "replayed"])
def test_an_interrupted_step_can_be_made_again(step):
    """Interrupted before its update."""
    plain, interrupted = factual(emulator()), factual(emulator())
    train(plain, FACTS, T, orders(5, 5), optimizers.sgd(0.1))
    feeds, wanted, _ = bind(interrupted, FACTS, T, USERS)
    interrupted.prepare(optimizers.sgd(0.1))
    for i, rows in enumerate(orders(5, 5)):
        if i == step:
            emulator().stop_before = emulator().launches + 5
            with pytest.raises(KeyboardInterrupt):
                interrupted.train_batch(feeds, wanted, rows)
            interrupted.step -= 1
            interrupted.prepare(optimizers.sgd(0.1))
        interrupted.train_batch(feeds, wanted, rows)
    assert_same_bits(numbers_of(interrupted), numbers_of(plain))
    assert {p.step for p in interrupted.parameters.values()} == {5}


@pytest.mark.emulator
def test_steps_let_go_of_feeds():
    network = factual(emulator())
    sn.fit(network, FACTS, T, optimizer=ADAM, epochs=2, batch=7)
    gc.collect()
    assert network._steps._captured == {}


@pytest.mark.emulator
def test_what_is_loaded_ahead_need_not_be_used():
    """Another batch than announced, then the announced one, and one twice in a row."""
    first, second, third = orders(6, 3)

    def run(where):
        network = two_ended().copy(device=where)
        feeds, wanted, _ = bind(network, TWO_INPUTS, TWO_TARGETS, USERS)
        network.prepare(ADAM)
        losses = [network.train_batch(feeds, wanted, *rows)
                  for rows in ((first, second), (third,), (second, first), (first, first), (first,), (third, second),
                               (second,))]
        return losses, network

    prove_replays(lambda: run(emulator()))
    assert_close(run(emulator())[0], run("cpu")[0], terms=100)


# ---- steps that cannot be replayed


@pytest.mark.emulator
def test_a_step_that_goes_through_the_host_is_made_anew():
    there, seen = emulator(), []
    x = there.zeros(3)

    def fetches():
        seen.append(there.fetch(x))

    def converts():
        there.write(x, np.full(3, len(seen)))  # int64, of which no copy is kept

    for step in (fetches, converts):
        assert there.capture(step) is step


def test_the_cpu_makes_every_step_anew():
    def step():
        pass
    assert device("cpu").capture(step) is step


# ---- the driver


class Api:
    """Stands for cuda.bindings.driver: writes down what it is asked, and refuses some of it."""

    CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def __init__(self, *refused):
        self.refused, self.asked = refused, []

    def __getattr__(self, name):
        def function(*args):
            self.asked.append((name, *args))
            return (1 if name in self.refused else 0), f"result of {name}"
        return function


STREAM = types.SimpleNamespace(handle=5)


def recorded(api):
    """(operations that note their names as if asked of the driver, driver, how to bind them)."""
    def launch(name):
        raise AssertionError(f"{name} was not bound")

    def bind(name):
        return lambda: api.asked.append(name) if name not in api.refused else driver_says_no()

    def driver_says_no():
        raise RuntimeError("not now")
    on = Driver(STREAM)
    on.api = api
    return [(launch, ("first",)), (launch, ("second",))], on, {launch: bind}


def test_a_step_becomes_a_graph():
    api = Api()
    again = bound(*recorded(api))
    assert api.asked == [("cuStreamBeginCapture", 5, 2), "first", "second", ("cuStreamEndCapture", 5),
                         ("cuGraphInstantiate", "result of cuStreamEndCapture", 0),
                         ("cuGraphDestroy", "result of cuStreamEndCapture")]
    del api.asked[:]
    again()
    again()
    assert api.asked == [("cuGraphLaunch", "result of cuGraphInstantiate", 5)] * 2
    del api.asked[:], again
    gc.collect()
    assert api.asked == [("cuGraphExecDestroy", "result of cuGraphInstantiate")]


@pytest.mark.parametrize("refused", ["cuStreamBeginCapture", "second", "cuStreamEndCapture", "cuGraphInstantiate"])
def test_a_driver_that_refuses_graphs(refused):
    """Launches are made one by one, with their arguments bound; no capture is left open."""
    api = Api(refused)
    operations, on, binders = recorded(api)
    with pytest.warns(RuntimeWarning, match="no CUDA graph, kernels are launched one by one: .*"):
        again = bound(operations, on, binders)
    begun, ended = ([ask[0] for ask in api.asked if isinstance(ask, tuple)].count(name)
                    for name in ("cuStreamBeginCapture", "cuStreamEndCapture"))
    assert ended == (begun if refused != "cuStreamBeginCapture" else 0)
    api.refused = ()
    del api.asked[:]
    again()
    assert api.asked == ["first", "second"]


def test_a_launch_that_cannot_be_bound():
    seen = []
    with pytest.warns(RuntimeWarning, match="launches cannot be bound, and keep their usual cost: KeyError"):
        again = bound([(seen.append, (1,)), (seen.append, (2,))], Driver(STREAM), {})
    again()
    assert seen == [1, 2]


def test_cublas_works_on_the_drivers_stream(monkeypatch):
    """With a handle of its own, made before the capture begins."""
    asked = []
    library = types.SimpleNamespace(**{name: lambda *args, name=name: asked.append((name, *args)) for name in
                                       ("cublasCreate_v2", "cublasSetStream_v2", "cublasSgemm_v2")})
    monkeypatch.setattr(cublas, "_library", lambda: library)
    cublas._handle.cache_clear()
    try:
        array = types.SimpleNamespace(shape=(2, 2), device_ctypes_pointer="pointer")
        launch = Driver(STREAM).gemm(array, array, array, False, False, True)
        (create, _), (set_stream, handle, stream) = asked
        assert (create, set_stream, stream.value) == ("cublasCreate_v2", "cublasSetStream_v2", STREAM.handle)
        launch()
        assert asked[2][:2] == ("cublasSgemm_v2", handle)
        assert len(asked) == 3
    finally:
        cublas._handle.cache_clear()


@pytest.mark.compile
def test_arguments_are_bound(monkeypatch):
    """Those of a compiled kernel, as numba-cuda marshals them: read back from the memory that the driver is given."""
    try:
        numba_cuda()
    except ImportError as missing:
        pytest.skip(str(missing))
    from numba.cuda import codegen, dispatcher
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    card = type("Card", (), {"compute_capability": (9, 0), "id": 0})
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: card)
    monkeypatch.setattr(codegen.devices, "get_context", lambda *_: type("Context", (), {"device": card}))
    loops = compiling.cuda_loops(_scale, 1)
    kernel = compiling.cuda_kernel(loops)

    def on_gpu(host):
        memory = types.SimpleNamespace(device_ctypes_pointer=ctypes.c_void_p(host.ctypes.data), size=host.nbytes)
        return DeviceNDArray(host.shape, host.strides, host.dtype, gpu_data=memory)

    x, y = np.arange(3, dtype=np.float32), np.zeros((3, 2), np.float32)
    args = 3, on_gpu(x), True, np.uint64(2**63), np.float32(0.5), on_gpu(y)
    compiled = dispatcher._Kernel(kernel.py_func, tuple(map(kernel.typeof_pyval, args)))
    compiled._codelibrary.get_cufunc = lambda: types.SimpleNamespace(handle=77)
    kernel.overloads[tuple(map(kernel.typeof_pyval, args))] = compiled

    api = Api()
    on = Driver(STREAM)
    on.api = api
    launch = on.start(loops, 4, 32, args)
    gc.collect()
    launch()
    name, function, *numbers, addresses, extra = api.asked.pop()
    assert (name, function, numbers, extra) == ("cuLaunchKernel", 77, [4, 1, 1, 32, 1, 1, 0, 5], 0)
    word, flag, number = ctypes.c_int64, ctypes.c_bool, ctypes.c_float
    expected = [(word, 3),
                *((word, value) for value in (0, 0, 3, 4, x.ctypes.data, 3, 4)),  # two unused, size, itemsize, …
                (flag, True), (ctypes.c_uint64, 2**63), (number, 0.5),
                *((word, value) for value in (0, 0, 6, 4, y.ctypes.data, 3, 2, 8, 4))]
    places = (ctypes.c_void_p * len(expected)).from_address(addresses)
    assert [kind.from_address(place).value for place, (kind, _) in zip(places, expected, strict=True)] == [
        value for _, value in expected]


def _scale(i, x, doubled, key, factor, y):
    y[i, 0] = x[i] * factor if doubled and key > 0 else x[i]


def test_the_real_driver_has_these_functions():
    """With as many arguments as they are given here."""
    api = pytest.importorskip("cuda.bindings.driver")
    assert int(api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED) == 2
    counts = {"cuStreamBeginCapture": 2, "cuStreamEndCapture": 1, "cuGraphInstantiate": 2, "cuGraphDestroy": 1,
              "cuGraphLaunch": 2, "cuGraphExecDestroy": 1, "cuLaunchKernel": 11}
    for name, count in counts.items():
        signature = getattr(api, name).__doc__.strip().splitlines()[0]
        assert signature.startswith(f"{name}(")
        assert signature.count(",") + 1 == count
    assert Driver(STREAM).api is api
