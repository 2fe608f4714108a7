"""Networks whose weights, and whose optimizer's state, are stored in bfloat16 alone."""

import numba
import numpy as np
import pytest
import scipy.sparse as sp

import sparsenet as sn
from sparsenet.bfloat16 import SHORT, stored, unstored
from sparsenet.layers import Dense, Input, base
from sparsenet.testing import assert_close
from sparsenet.testing.emulator import Emulator

FEATURES, HIDDEN, OUTPUTS, USERS = 150, 24, 1030, 96
BOTH = {"weights": "bfloat16", "slots": "bfloat16"}
KINDS = [{"weights": "bfloat16"}, {"slots": "bfloat16"}, BOTH]
WIDE = "dense1/weight", "dense2/weight"
each_kind = pytest.mark.parametrize("storage", KINDS, ids=lambda kind: "+".join(kind))


def network(loss="cross_entropy", sparse=True, seed=3, **options):
    x = Input(FEATURES, sparse=sparse)
    y = Dense(OUTPUTS, "sigmoid")(Dense(HIDDEN, "sigmoid")(x))
    return sn.Network(x, y, loss, seed=seed, **{"device": "cpu", **options})


def some_data(seed=0):
    """(examples, targets)."""
    random = np.random.default_rng(seed)
    matrices = [sp.random_array((USERS, width), density=density, rng=random, format="csr", dtype=np.float32)
                for width, density in ((FEATURES, 0.1), (OUTPUTS, 0.01))]
    for matrix in matrices:
        matrix.data[:] = 1
    return matrices


def trained(net, optimizer=None, epochs=3, **options):
    optimizer = optimizer or sn.optimizers.adam(0.01)
    return sn.fit(net, *some_data(), optimizer=optimizer, epochs=epochs, batch=32, **options)["loss"]


def same_bits(one, other):
    for name, parameter in one.parameters.items():
        twin = other.parameters[name]
        assert parameter.value.dtype == twin.value.dtype
        assert parameter.value.tobytes() == twin.value.tobytes(), name
        assert parameter.slots.tobytes() == twin.slots.tobytes(), name


@each_kind
def test_only_the_widest_are_stored_so(storage):
    net = network(**storage)
    net.prepare(sn.optimizers.adam())
    for name, parameter in net.parameters.items():
        for what, array in (("weights", parameter.value), ("slots", parameter.slots)):
            short = name in WIDE and storage.get(what) == "bfloat16"
            assert array.dtype == (SHORT if short else np.float32), (name, what)
    assert net.weights[WIDE[0]].dtype == np.float32
    lines = net.summary().splitlines()
    assert lines[-len(storage):] == [f"{what} of {', '.join(WIDE)} in bfloat16" for what in storage]
    assert "bfloat16" not in network().summary().splitlines()[-1].split("of float32")[0]


def test_bytes():
    """Half of them, of what is stored in half."""
    def bytes_of(**storage):
        net = network(**storage)
        net.prepare(sn.optimizers.adam())
        net.passes.allocate(32, True, net.streamed)
        return net.nbytes
    wide = HIDDEN * (FEATURES + OUTPUTS)
    assert bytes_of() - bytes_of(weights="bfloat16") == 2 * wide
    assert bytes_of() - bytes_of(**BOTH) == 3 * 2 * wide


def test_it_begins_with_float32s_weights_rounded_to_nearest(monkeypatch):
    exact = network().weights
    first = network(**BOTH).weights
    monkeypatch.setattr(base, "_DRAWN", 999)  # in many parts
    again = network(**BOTH).weights
    for name, weights in exact.items():
        expected = unstored(stored(weights, SHORT)) if name in WIDE else weights
        assert first[name].tobytes() == again[name].tobytes() == expected.tobytes()


@each_kind
@pytest.mark.parametrize("optimizer", [sn.optimizers.sgd(1.0, l2=1e-3), sn.optimizers.adam(0.01)],
                         ids=lambda one: one.name)
def test_it_learns_as_float32_does(optimizer, storage):
    """The losses of ten epochs differ by less than a thousandth, and fall by far more."""
    expected, losses = trained(network(), optimizer, 10), trained(network(**storage), optimizer, 10)
    assert expected[-1] < 0.6 * expected[0]
    assert max(abs(np.array(losses) / expected - 1)) < 1e-3


def test_small_steps_are_not_lost():
    """Steps of a hundredth of a weight's last place: rounded to nearest, none would ever be made."""
    x = Input(FEATURES, sparse=True)
    net = sn.Network(x, Dense(8, "linear")(x), "squared_error", seed=1, device="cpu", **BOTH)
    net.set_weights({"dense1/weight": np.ones((FEATURES, 8), np.float32)})
    examples = sp.csr_array(np.eye(FEATURES, dtype=np.float32))
    targets = np.full((FEATURES, 8), 2, np.float32)
    net.set_weights({"dense1/bias": np.zeros(8, np.float32)})
    steps, step = 50, 2.0**-7 / 100
    sn.fit(net, examples, targets, optimizer=sn.optimizers.sgd(step * FEATURES), epochs=steps, batch=FEATURES)
    moved = net.weights["dense1/weight"] - 1
    assert set(np.unique(moved * 2**7)) >= {0, 1}
    error = 2.0**-7 * np.sqrt(0.5 * 0.5 / moved.size)
    assert abs(moved.mean() - steps * step) < 5 * error + 0.1 * steps * step  # the bias learns too


def test_threads_change_no_bit():
    nets = []
    several = numba.get_num_threads()
    for threads in (1, numba.config.NUMBA_NUM_THREADS):
        numba.set_num_threads(threads)
        nets.append(network(**BOTH))
        trained(nets[-1])
    numba.set_num_threads(several)
    same_bits(*nets)


def test_the_seed_decides_every_bit():
    nets = [network(seed=seed, **BOTH) for seed in (3, 3, 4)]
    for net in nets:
        net.set_weights(network().weights)
        trained(net, shuffle=False)
    same_bits(nets[0], nets[1])
    first, last = (net.parameters[WIDE[1]].value for net in (nets[0], nets[2]))
    assert (first != last).any()


@each_kind
def test_files_hold_every_bit(storage, tmp_path):
    net = network(**storage)
    trained(net)
    net.save(tmp_path / "net.nc")
    loaded = sn.Network.load(tmp_path / "net.nc", device="cpu")
    same_bits(net, loaded)
    assert loaded.predict(some_data()[0]).tobytes() == net.predict(some_data()[0]).tobytes()
    for one in (net, loaded):
        trained(one, epochs=2)
    same_bits(net, loaded)


def test_files_are_half_as_large(tmp_path):
    for name, storage in (("full", {}), ("half", BOTH)):
        net = network(**storage)
        trained(net, epochs=1)
        net.save(tmp_path / name)
    saved = (tmp_path / "full").stat().st_size - (tmp_path / "half").stat().st_size
    assert saved == pytest.approx(3 * 2 * HIDDEN * (FEATURES + OUTPUTS), abs=2000)


@each_kind
@pytest.mark.parametrize("optimizer", [sn.optimizers.momentum(0.1, l2=1e-3), sn.optimizers.adam(0.01)],
                         ids=lambda one: one.name)
def test_resuming_ends_with_the_same_bits(optimizer, storage, tmp_path):
    whole = network(**storage)
    trained(whole, optimizer, 4, checkpoint=tmp_path / "whole")
    trained(network(**storage), optimizer, 2, checkpoint=tmp_path / "half")
    rest = network(**storage)
    trained(rest, optimizer, 4, checkpoint=tmp_path / "rest", resume=tmp_path / "half")
    same_bits(whole, rest)


def test_a_checkpoint_goes_into_another_storage(tmp_path):
    """Of float32 into bfloat16, rounded to nearest, and back."""
    for first, then in (({}, BOTH), (BOTH, {})):
        net, other = network(**first), network(**then)
        trained(net, epochs=1, checkpoint=tmp_path / "one")
        trained(other, epochs=1, resume=tmp_path / "one")
        for name, parameter in net.parameters.items():
            expected = stored(parameter.value, other.parameters[name].value.dtype)
            assert other.parameters[name].value.tobytes() == expected.tobytes()
            assert other.parameters[name].slots.dtype == other.parameters[name].value.dtype


def test_damage_is_not_saved(tmp_path):
    net = network(**BOTH)
    net.parameters[WIDE[0]].value[3, 4] = 0x7F80
    with pytest.raises(ValueError, match="save: weight dense1/weight holds NaN or infinity"):
        net.save(tmp_path / "net.nc")


def test_predictions_are_those_of_the_same_weights_in_float32():
    short, full = network(**BOTH), network()
    trained(short)
    full.set_weights(short.weights)
    examples, _ = some_data(1)
    assert_close(short.predict(examples), full.predict(examples).astype(np.float64), terms=HIDDEN + FEATURES)
    items, _ = sn.recommend(short, examples, 10, exclude_seen=False)
    assert (items == sn.recommend(full, examples, 10, exclude_seen=False)[0]).mean() > 0.99


def test_a_copy_has_its_own_storage():
    net = network(**BOTH)
    trained(net)
    for copy, dtype in ((net.copy(), SHORT), (net.copy(dtype="float64"), np.float64),
                        (net.copy(device=Emulator()), np.float32)):
        assert copy.parameters[WIDE[0]].value.dtype == dtype
        for name, weights in net.weights.items():
            assert (copy.weights[name] == weights).all()


def test_layers_may_be_shared():
    """What another network makes of them, it reads as it is stored; training it takes one who knows how."""
    x = Input(FEATURES, sparse=True)
    hidden = Dense(HIDDEN, "sigmoid")(x)
    y = Dense(OUTPUTS, "sigmoid")(hidden)
    net = sn.Network(x, y, "cross_entropy", seed=1, device="cpu", **BOTH)
    trained(net)
    encoder, plain = (sn.Network(x, end, loss, seed=1, device="cpu", streaming=False)
                      for end, loss in ((hidden, None), (y, "cross_entropy")))
    assert encoder.predict(some_data()[0]).shape == (USERS, HIDDEN)
    with pytest.raises(ValueError, match="dense2/weight is stored in bfloat16: that is for weights of a sparse input"):
        trained(plain)
    float32 = Dense(OUTPUTS, "sigmoid")(Dense(HIDDEN)(x))
    sn.Network(x, float32, "cross_entropy", seed=1, device="cpu")
    with pytest.raises(ValueError, match="belongs to a network on another device or of another dtype"):
        sn.Network(x, float32, "cross_entropy", seed=1, device="cpu", **BOTH)


def test_what_cannot_be_is_refused():
    for what in BOTH:
        with pytest.raises(ValueError, match=f"{what}: expected 'float32' or 'bfloat16', got 'float16'"):
            network(**{what: "float16"})
        needs = f"{what}: 'bfloat16' is for float32 networks on the CPU"
        with pytest.raises(ValueError, match=f"{needs}, got float64 on cpu"):
            network(**{what: "bfloat16"}, dtype="float64")
        with pytest.raises(ValueError, match=f"{needs}, got float32 on emulator"):
            network(**{what: "bfloat16"}, device=Emulator())
        with pytest.raises(ValueError, match="'bfloat16' is for streaming outputs and sparse inputs; there is none"):
            network(sparse=False, streaming=False, **{what: "bfloat16"})
    net = network(**BOTH)
    with pytest.raises(ValueError, match="dense1/weight is stored in bfloat16"):
        net.prepare(sn.optimizers.adam(), keep_gradients=True)
    examples, targets = some_data()
    with pytest.raises(ValueError, match="dense2/weight is stored in bfloat16"):
        sn.fit(net, examples, targets.toarray(), optimizer=sn.optimizers.adam(), epochs=1)


def test_state_alone_follows_the_way_of_training():
    """Dense targets take the plain path, whose state is float32: nothing of it is lost on the way there and back."""
    net, (examples, targets) = network(slots="bfloat16"), some_data()
    adam = sn.optimizers.adam(0.01)
    kinds = []
    for given in (targets, targets.toarray(), targets):
        sn.fit(net, examples, given, optimizer=adam, epochs=1, batch=32)
        kinds.append(net.parameters[WIDE[1]].slots.dtype)
        assert net.parameters[WIDE[1]].step == 3 * len(kinds)
    assert kinds == [SHORT, np.float32, SHORT]


def test_sampled_outputs_keep_float32():
    net = network(sn.losses.sampled("cross_entropy", negatives=64), **BOTH)
    trained(net)
    assert net.parameters[WIDE[0]].value.dtype == SHORT
    assert net.parameters[WIDE[1]].value.dtype == np.float32
