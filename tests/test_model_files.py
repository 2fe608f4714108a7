"""Model files and copies: everything comes back; files that are none are refused; nothing half written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sparsenet as sn
from sparsenet import optimizers
from sparsenet.activations import Activation
from sparsenet.data.arrays import read_arrays, write_arrays
from sparsenet.layers import Dense, Input
from sparsenet.losses import Loss, cross_entropy, scaled_marginal_cross_entropy
from sparsenet.testing import assert_close
from tests.networks import (
    ALL_OPTIMIZERS,
    ITEMS,
    TWO_INPUTS,
    TWO_TARGETS,
    T,
    X,
    assert_same_bits,
    by_hand,
    small,
    state,
    train,
    two_ended,
)

# ---- files and copies


@pytest.mark.parametrize("optimizer", [None, *ALL_OPTIMIZERS], ids=lambda o: o.name if o else "untrained")
@pytest.mark.parametrize("make", [small, two_ended])
def test_a_file_holds_everything(make, optimizer, tmp_path):
    network = make()
    data = (X, T) if make is small else (TWO_INPUTS, TWO_TARGETS)
    if optimizer:
        train(network, *data, optimizer, 4)
    network.epoch = 2
    network.save(tmp_path / "a.nc")
    loaded = sn.Network.load(tmp_path / "a.nc", device="cpu")
    assert_same_bits(state(loaded), state(network))
    for name in ("seed", "step", "epoch", "dtype", "deterministic"):
        assert getattr(loaded, name) == getattr(network, name), name
    for end in ("inputs", "outputs"):
        assert list(getattr(loaded, end)) == list(getattr(network, end))
    assert {name: (loss.name, loss.settings) for name, loss in loaded.losses.items()} == {
        name: (loss.name, loss.settings) for name, loss in network.losses.items()}
    assert loaded.summary() == network.summary()
    loaded.save(tmp_path / "b.nc")
    assert (tmp_path / "b.nc").read_bytes() == (tmp_path / "a.nc").read_bytes()
    for one in (network, loaded):
        train(one, *data, optimizer or optimizers.adam(), 4)
    assert_same_bits(state(loaded), state(network))
    found = [one.predict(data[0]) for one in (loaded, network)]
    assert_same_bits(*(y if isinstance(y, dict) else {"y": y} for y in found))


def test_a_file_is_read_in_another_process(tmp_path):
    network = small()
    network.save(tmp_path / "a.nc")
    np.save(tmp_path / "x.npy", X.toarray())
    program = ("import sys, numpy, sparsenet as sn; f = sys.argv[1]; "
               "numpy.save(f + '/y.npy', sn.Network.load(f + '/a.nc', device='cpu').predict(numpy.load(f + '/x.npy')))")
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, cwd=Path(__file__).parents[1])
    assert_same_bits({"y": np.load(tmp_path / "y.npy")}, {"y": network.predict(X)})


def test_numbers_of_numpy_can_be_saved(tmp_path):
    x = Input(np.int64(ITEMS), sparse=True, denoising=np.float32(0.25))
    h = Dense(np.int32(5), sn.activations.elu(np.float32(0.5)), dropout=np.float64(0.5))(x)
    loss = scaled_marginal_cross_entropy(one_target=np.float32(0.875))
    network = sn.Network(x, Dense(np.int64(ITEMS), "sigmoid")(h), loss, seed=np.int64(3), device="cpu")
    train(network, X, T, optimizers.adam(np.float32(0.001), l2=np.float64(0.25)), 2)
    network.save(tmp_path / "a.nc")
    loaded = sn.Network.load(tmp_path / "a.nc", device="cpu")
    for one in (network, loaded):
        train(one, X, T, optimizers.adam(np.float32(0.001), l2=np.float64(0.25)), 2)
    assert loaded.step == 4
    assert_same_bits(state(loaded), state(network))


def test_numbers_of_numpy_can_be_resumed(tmp_path):
    for epochs, options in ((1, {"checkpoint": tmp_path / "a.nc"}), (2, {"resume": tmp_path / "a.nc"})):
        x = Input(np.int64(ITEMS), sparse=True)
        h = Dense(np.int32(5), sn.activations.elu(np.float32(0.5)))(x)
        network = sn.Network(x, Dense(ITEMS, "sigmoid")(h), scaled_marginal_cross_entropy(np.float32(0.875)), seed=3,
                             device="cpu")
        history = sn.fit(network, X, T, optimizer=optimizers.sgd(), epochs=epochs, **options)
    assert len(history["loss"]) == 2


def test_losses_keep_their_settings_in_a_file(tmp_path):
    losses = [scaled_marginal_cross_entropy(0.75, 0.25, 2.0, 0.5), cross_entropy(normalize=True)]
    x = Input(ITEMS, sparse=True)
    outputs = [Dense(ITEMS, "sigmoid")(x), Dense(ITEMS, "softmax")(x)]
    network = sn.Network(x, outputs, losses, seed=1, device="cpu")
    network.save(tmp_path / "a.nc")
    loaded = sn.Network.load(tmp_path / "a.nc", device="cpu")
    assert [loss.settings for loss in loaded.losses.values()] == [loss.settings for loss in losses]
    assert [loss.normalize for loss in loaded.losses.values()] == [False, True]


def own_parts():
    bent = Activation("bent", value=lambda z: z if z > 0 else 0.25 * z, slope=lambda y: 1 if y > 0 else 0.25)
    quartic = Loss("quartic", value=lambda y, t: (y - t) ** 4 / 4, slope=lambda y, t: (y - t) ** 3)
    x = Input(ITEMS, sparse=True)
    return bent, quartic, sn.Network(x, Dense(ITEMS, bent)(x), quartic, seed=1, device="cpu")


def test_own_activation_and_loss_in_a_file(tmp_path):
    bent, quartic, network = own_parts()
    network.save(tmp_path / "a.nc")
    with pytest.raises(ValueError, match=r"a\.nc: activation 'bent' is not sparsenet's: pass it, own={'bent': …}"):
        sn.Network.load(tmp_path / "a.nc", device="cpu")
    with pytest.raises(ValueError, match=r"a\.nc: loss 'quartic' is not sparsenet's: pass it, own={'quartic': …}"):
        sn.Network.load(tmp_path / "a.nc", device="cpu", own={"bent": bent})
    loaded = sn.Network.load(tmp_path / "a.nc", device="cpu", own={"bent": bent, "quartic": quartic})
    for one in (network, loaded):
        train(one, X, T, optimizers.adam(0.01), 3)
    assert_same_bits(state(loaded), state(network))


@pytest.mark.parametrize("make", [small, two_ended, lambda: own_parts()[2]], ids=["small", "two ends", "own"])
def test_a_copy_has_its_own_weights(make):
    network = make()
    network.step, network.epoch = 5, 2
    before, twin = network.weights, network.copy()
    assert_same_bits(twin.weights, before)
    assert (twin.step, twin.epoch, twin.seed) == (5, 2, network.seed)
    assert list(twin.losses.values()) == list(network.losses.values())
    data = (TWO_INPUTS, TWO_TARGETS) if make is two_ended else (X, T)
    train(twin, *data, optimizers.sgd(0.1), 2)
    assert_same_bits(network.weights, before)
    assert any((twin.weights[name] != before[name]).any() for name in before)


def test_a_copy_in_float64():
    network = small()
    twin = network.copy(dtype="float64")
    assert twin.predict(X).dtype == np.float64
    assert_close(twin.predict(X), by_hand(network, X), terms=ITEMS + 5, dtype=np.float64, scale=5.0)
    assert {w.dtype for w in twin.weights.values()} == {np.dtype(np.float64)}


# ---- files that are none


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model.nc"
    network = small()
    train(network, X, T, optimizers.adam(), 2)
    network.save(path)
    return path


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.nc"):
        sn.Network.load(tmp_path / "none.nc")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89HDF\r\n\x1a\n", b"CDF\x01" + bytes(100),
                                     np.random.default_rng(0).bytes(5000)],
                         ids=["empty", "text", "HDF5 head", "classic head", "noise"])
def test_file_of_another_kind(content, tmp_path):
    (tmp_path / "a.nc").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.nc"):
        sn.Network.load(tmp_path / "a.nc")


def test_data_file_is_no_network(tmp_path):
    sn.data.write_netcdf(tmp_path / "data.nc", {"purchases": X})
    with pytest.raises(ValueError, match=r"data\.nc: holds no sparsenet network"):
        sn.Network.load(tmp_path / "data.nc")


def test_flipped_bits_are_noticed(model_file, tmp_path):
    """No weight, and no state of an optimizer, comes back other than it was saved."""
    whole = model_file.read_bytes()
    for array in read_arrays(model_file)[1].values():
        start = whole.index(array.tobytes())
        for place in (start, start + array.nbytes // 2, start + array.nbytes - 1):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            (tmp_path / "a.nc").write_bytes(damaged)
            with pytest.raises(ValueError, match=r"a\.nc: its arrays are damaged"):
                sn.Network.load(tmp_path / "a.nc", device="cpu")


@pytest.mark.parametrize("part", np.linspace(0.02, 0.98, 13).round(2))
def test_truncated_file(part, model_file, tmp_path):
    whole = model_file.read_bytes()
    (tmp_path / "a.nc").write_bytes(whole[:int(len(whole) * part)])
    with pytest.raises(ValueError, match=r"a\.nc"):
        sn.Network.load(tmp_path / "a.nc")


def changed(model_file, path, change):
    """A copy of a model file whose description and arrays went through a function."""
    description, arrays = read_arrays(model_file)
    change(description, arrays)
    for automatic in ("format", "version"):
        description.setdefault(automatic, None)
    write_arrays(path, description, arrays)


KEYS = ["layers", "nodes", "inputs", "outputs", "losses", "seed", "dtype", "deterministic", "step", "epoch",
        "parameters"]


@pytest.mark.parametrize("key", KEYS)
def test_description_without_a_part(key, model_file, tmp_path):
    changed(model_file, tmp_path / "a.nc", lambda description, arrays: description.pop(key))
    with pytest.raises(ValueError, match=rf"a\.nc: not a network that this version can read \(KeyError\('{key}'\)\)"):
        sn.Network.load(tmp_path / "a.nc")


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", [None, 7, "x", [], {}, [3], {"a": 1}, [{}]], ids=json.dumps)
def test_description_with_a_wrong_part(key, value, model_file, tmp_path):
    """It is refused, or understood where the value has a meaning: never another kind of error."""
    changed(model_file, tmp_path / "a.nc", lambda description, arrays: description.update({key: value}))
    if (key, value) in [("seed", 7), ("step", 7), ("epoch", 7), ("losses", {})] or key == "deterministic":
        assert sn.Network.load(tmp_path / "a.nc", device="cpu").predict(X).shape == X.shape
    else:
        with pytest.raises(ValueError, match=r"a\.nc: "):
            sn.Network.load(tmp_path / "a.nc", device="cpu")


@pytest.mark.parametrize(("change", "message"), [
    (lambda d, a: a.pop("weight top/bias"), "KeyError"),
    (lambda d, a: a.update({"weight top/bias": np.zeros((1, 3))}), r"weights: 'top/bias' has shape \(1, 3\)"),
    (lambda d, a: a.update({"weight top/bias": np.full((1, ITEMS), np.nan)}), "weights: 'top/bias' holds NaN"),
    (lambda d, a: a.update({"slots top/bias": np.zeros((2, 1, 3))}), r"optimizer state of 'top/bias' has shape \(1, 3"),
    (lambda d, a: d.update(format=99), "written by sparsenet .*, which this version cannot read"),
    (lambda d, a: d["layers"][1].update(kind="Pooling"), "a layer of kind 'Pooling'; this version knows Input, Dense"),
    (lambda d, a: d["layers"][1].update(units=-1), "Dense: units must be an integer of at least 1, got -1"),
    (lambda d, a: d["layers"][1]["activation"].update(name="cube"), "activation 'cube' is not sparsenet's"),
    (lambda d, a: d["nodes"][1].update(inputs=[5]), "not a network that this version can read"),
])
def test_contradictions_in_a_file(change, message, model_file, tmp_path):
    changed(model_file, tmp_path / "a.nc", change)
    with pytest.raises(ValueError, match=rf"a\.nc: .*{message}"):
        sn.Network.load(tmp_path / "a.nc")


@pytest.mark.parametrize("text", ["", "{", "{}", "3", "[]", "null", '{"format": "a"}', '{"format": 1}'])
def test_damaged_description(text, tmp_path):
    write_arrays(tmp_path / "a.nc", {}, {})
    import netCDF4

    with netCDF4.Dataset(tmp_path / "a.nc", "a") as file:
        file.setncattr_string("sparsenet", text)
    with pytest.raises(ValueError, match=r"a\.nc: its (description is|arrays are) damaged"):
        sn.Network.load(tmp_path / "a.nc")


# ---- places that cannot be written


def test_unwritable_places(tmp_path):
    network = small()
    with pytest.raises(IsADirectoryError, match="is a folder, expected a file to write"):
        network.save(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such folder to write the file into"):
        network.save(tmp_path / "none" / "a.nc")
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="file"):
        network.save(tmp_path / "file" / "a.nc")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_network_that_diverged_is_not_saved(value, tmp_path):
    """What could not be loaded does not take the place of what can."""
    network = small()
    network.save(tmp_path / "a.nc")
    before = (tmp_path / "a.nc").read_bytes()
    network.parameters["top/weight"].value[2, 3] = value
    with pytest.raises(ValueError, match=r"save: weight top/weight holds NaN or infinity; .*a.nc was not written"):
        network.save(tmp_path / "a.nc")
    assert (tmp_path / "a.nc").read_bytes() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_folder_without_permission(tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    with pytest.raises(PermissionError, match="closed"):
        small().save(folder / "a.nc")


def test_a_file_that_cannot_be_replaced_stays(tmp_path, model_file):
    """A network that cannot be described does not harm the file that was there, and leaves nothing beside it."""
    class Mine(Dense):
        """A user's own."""

    x = Input(3)
    (tmp_path / "a.nc").write_bytes(model_file.read_bytes())
    for network, arrays, error in ((sn.Network(x, Mine(2)(x), seed=1, device="cpu"), {}, ValueError),
                                   (small(), {"best": np.array([object()])}, TypeError)):
        with pytest.raises(error, match=r"cannot be saved|object"):
            network.save(tmp_path / "a.nc", arrays=arrays)
        assert [path.name for path in tmp_path.iterdir()] == ["a.nc"]
        assert (tmp_path / "a.nc").read_bytes() == model_file.read_bytes()
