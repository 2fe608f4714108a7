"""Training as a whole: reproducible, resumable, killable, and clear about what is wrong."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
import scipy.sparse as sp

import sparsenet as sn
from sparsenet.layers import Dense, Input
from sparsenet.threads import exclusive

ITEMS = 37


def purchases(users=90, seed=0):
    """Users of three tastes, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    taste = rng.integers(0, 3, users)
    chance = np.where(np.arange(ITEMS)[None, :] % 3 == taste[:, None], 0.5, 0.05)
    return sp.csr_array(rng.random((users, ITEMS)) < chance)


def network(seed=1, **options):
    x = Input(ITEMS, sparse=True, denoising=0.2)
    h = Dense(16, "tanh", dropout=0.3)(x)
    return sn.Network(x, Dense(ITEMS, "sigmoid")(h), "cross_entropy", seed=seed, device="cpu", **options)


def fit(net, epochs=4, **options):
    x = purchases()
    arguments = {"optimizer": sn.optimizers.adam(0.01), "batch": 32, **options}
    return sn.fit(net, x, x, epochs=epochs, **arguments)


def held_out():
    x = purchases(users=30, seed=5)
    hidden = x.tocoo()
    pick = np.arange(hidden.nnz) % 4 == 0
    make = [sp.csr_array((hidden.data[k], (hidden.row[k], hidden.col[k])), shape=x.shape) for k in (~pick, pick)]
    return tuple(make)


def assert_same_bits(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


def test_the_loss_falls_and_recommendations_become_good():
    net = network()
    history = fit(net, epochs=25, validation=held_out(), metrics=("ndcg@10", "recall@5"))
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    assert history["ndcg@10"][-1] > history["ndcg@10"][0] + 0.1
    assert history["epoch"] == list(range(1, 26))
    assert set(history.to_dict()) == {"epoch", "loss", "seconds", "ndcg@10", "recall@5"}
    assert "25 epochs" in repr(history)


@pytest.mark.parametrize("options", [{}, {"validation": held_out(), "patience": 50}], ids=["plain", "with best"])
def test_same_seed_same_file(tmp_path, options):
    for name in ("a.nc", "b.nc"):
        fit(network(), checkpoint=tmp_path / name, **options)
    assert (tmp_path / "a.nc").read_bytes() == (tmp_path / "b.nc").read_bytes()
    fit(network(seed=2), checkpoint=tmp_path / "c.nc", **options)
    assert (tmp_path / "c.nc").read_bytes() != (tmp_path / "a.nc").read_bytes()


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two cores")
@pytest.mark.parametrize("optimizer", [sn.optimizers.sgd(0.1), sn.optimizers.adam(0.01)], ids=lambda o: o.name)
def test_same_bits_on_one_thread_and_two(optimizer):
    weights = []
    for threads in (1, 2):
        before = numba.get_num_threads()
        numba.set_num_threads(threads)
        try:
            net = network(deterministic=True)
            fit(net, optimizer=optimizer)
        finally:
            numba.set_num_threads(before)
        weights.append(net.weights)
    assert_same_bits(*weights)


@pytest.mark.parametrize("optimizer", [f() for f in sn.optimizers.OPTIMIZERS.values()], ids=lambda o: o.name)
@pytest.mark.parametrize("stopped_after", [1, 3])
def test_resume_gives_the_bits_of_an_uninterrupted_run(tmp_path, optimizer, stopped_after):
    whole, half, resumed = network(), network(), network()
    history = fit(whole, epochs=5, optimizer=optimizer)

    def stop(net, history):
        return len(history["epoch"]) == stopped_after

    fit(half, epochs=5, optimizer=optimizer, checkpoint=tmp_path / "c.nc", callbacks=[stop])
    again = fit(resumed, epochs=5, optimizer=optimizer, resume=tmp_path / "c.nc")
    assert_same_bits(whole.weights, resumed.weights)
    assert again["loss"] == history["loss"]
    assert resumed.step == whole.step


def test_resume_keeps_the_best_weights(tmp_path):
    options = {"validation": held_out(), "patience": 2, "optimizer": sn.optimizers.sgd(5.0), "epochs": 12}
    whole, half, resumed = network(), network(), network()
    history = fit(whole, **options)
    assert len(history["epoch"]) < 12, "the case must end by patience"
    best = int(np.argmax(history["ndcg@100"])) + 1
    fit(half, **options, checkpoint=tmp_path / "c.nc", callbacks=[lambda net, h: len(h["epoch"]) == best + 1])
    # What an interrupted run leaves is a checkpoint in the midst of training, not the one written at its end.
    middle = network()
    saved = []

    def keep(net, h):
        if len(h["epoch"]) == best + 2:
            saved.append((tmp_path / "c.nc").read_bytes())

    fit(middle, **options, checkpoint=tmp_path / "c.nc", callbacks=[keep])
    (tmp_path / "middle.nc").write_bytes(saved[0])
    again = fit(resumed, **options, resume=tmp_path / "middle.nc")
    assert_same_bits(whole.weights, resumed.weights)
    assert again["ndcg@100"] == history["ndcg@100"]


def test_a_run_that_a_callback_stopped_is_resumed_to_the_same_bits(tmp_path):
    """The file then holds the best weights for use, and beside them the last ones to go on from."""
    options = {"validation": held_out(), "patience": 8, "optimizer": sn.optimizers.adam(0.3), "epochs": 9}
    whole, half, resumed = network(), network(), network()
    history = fit(whole, **options)
    best = int(np.argmax(history["ndcg@100"])) + 1
    assert best < 7, "the case must have a best epoch before the one where it is stopped"
    fit(half, **options, checkpoint=tmp_path / "c.nc", callbacks=[lambda net, h: len(h["epoch"]) == 7])
    assert_same_bits(sn.Network.load(tmp_path / "c.nc", device="cpu").weights, half.weights)
    again = fit(resumed, **options, resume=tmp_path / "c.nc")
    assert_same_bits(whole.weights, resumed.weights)
    assert again["loss"] == history["loss"]


def test_resume_with_another_rate_keeps_the_state_and_with_another_optimizer_is_refused(tmp_path):
    fit(network(), epochs=2, checkpoint=tmp_path / "c.nc")
    net = network()
    fit(net, epochs=3, optimizer=sn.optimizers.adam(0.005), resume=tmp_path / "c.nc")
    assert {parameter.step for parameter in net.parameters.values()} == {9}
    with pytest.raises(ValueError, match="it was trained with adam, not with sgd"):
        fit(network(), epochs=3, optimizer=sn.optimizers.sgd(), resume=tmp_path / "c.nc")


def test_resume_needs_a_checkpoint_of_a_run(tmp_path):
    network().save(tmp_path / "plain.nc")
    with pytest.raises(ValueError, match="holds a network but no training"):
        fit(network(), resume=tmp_path / "plain.nc")


def test_a_function_can_validate():
    seen = []

    def validate(net):
        seen.append(net.epoch)
        return {"minus epoch": -float(net.epoch)}

    history = fit(network(), epochs=9, validation=validate, patience=2)
    assert history["minus epoch"] == [-1.0, -2.0, -3.0]
    assert seen[0] == 0, "it is tried before the first epoch, so that its errors come at once"


@pytest.mark.parametrize("validation", [(purchases(30), purchases(29)), (purchases(30)[:, :5], purchases(30))],
                         ids=["users", "items"])
def test_validation_that_does_not_fit_is_refused_before_training(validation):
    net = network()
    with pytest.raises(ValueError, match=r"hidden: has 29 users, but fold_in has 30|has 5 columns"):
        fit(net, validation=validation)
    assert net.epoch == net.step == 0


def test_networks_that_share_a_layer_train_it_in_turn():
    """Each goes on from where it was, whatever optimizer and use of the layer the other has."""
    x = Input(ITEMS, sparse=True, name="x")
    shared = Dense(8, "tanh")
    once = sn.Network(x, Dense(ITEMS, "sigmoid")(shared(x)), "cross_entropy", seed=1, device="cpu")
    other = Input(ITEMS, sparse=True, name="other")
    twice = sn.Network([x, other], Dense(ITEMS, "sigmoid")(shared(x), shared(other)), "cross_entropy", seed=2,
                       device="cpu")
    both = purchases()
    for optimizer in (sn.optimizers.adam(0.01), sn.optimizers.sgd(0.1), sn.optimizers.adam(0.01)):
        fit(once, epochs=1, optimizer=optimizer)
        history = sn.fit(twice, [both, both], both, epochs=1, optimizer=optimizer, batch=32)
        assert np.isfinite(history["loss"]).all()
    joint = sn.Network([x, other], [*once.outputs.values(), *twice.outputs.values()], "cross_entropy", seed=3,
                       device="cpu")
    assert len(joint.parameters) == len({*once.parameters.values(), *twice.parameters.values()})


def test_threads_may_share_a_network():
    net, x = network(), purchases(200)
    fit(net)
    expected = net.predict(x, batch=16)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: net.predict(x, batch=16), range(60)):
            np.testing.assert_array_equal(found, expected)


def test_buffers_do_not_grow_in_the_midst_of_a_step():
    """A thread that asks for larger buffers waits until the batch that uses them is done."""
    net = network()
    fit(net, epochs=1)
    asked = threading.Thread(target=net.passes.allocate, args=(5_000, False))
    with exclusive:
        room = net.passes._room
        asked.start()
        asked.join(0.2)
        assert net.passes._room is room
    asked.join()
    assert net.passes._room is not room


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python's own, about fork in a process with threads
def test_a_forked_child_can_predict_while_a_thread_of_its_parent_trains():
    net, x = network(), purchases(50)
    fit(net, epochs=1)
    expected = net.predict(x)
    other, stop = network(), threading.Event()
    trainer = threading.Thread(target=lambda: fit(other, epochs=10_000, callbacks=[lambda *_: stop.is_set()]))
    trainer.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if (net.predict(x) == expected).all() else 1)
            deadline = time.monotonic() + 60
            while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(child, signal.SIGKILL)
                time.sleep(0.01)
            assert done[1] == 0
    finally:
        stop.set()
        trainer.join()


def test_training_goes_on_where_it_stood():
    once, twice = network(), network()
    fit(once, epochs=6)
    fit(twice, epochs=2)
    fit(twice, epochs=4)
    assert_same_bits(once.weights, twice.weights)


KILLED = """
    import sys
    sys.path.insert(0, {tests!r})
    import test_training as t
    print("ready", flush=True)
    t.fit(t.network(), epochs=2000, checkpoint={path!r})
"""


def test_sigkill_leaves_a_whole_checkpoint(tmp_path):
    """Killed at any moment, the file is absent, or whole and resumable."""
    path = tmp_path / "c.nc"
    script = textwrap.dedent(KILLED.format(tests=os.path.dirname(__file__), path=str(path)))
    readable = 0
    for delay in (0.05, 0.31, 0.47, 0.62, 0.83):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        waited = time.monotonic() + 60
        while not path.exists() and time.monotonic() < waited:
            time.sleep(0.01)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert process.returncode == -signal.SIGKILL
        if path.exists():
            readable += 1
            restored = sn.Network.load(path, device="cpu")
            epochs = restored.epoch + 1
            resumed, whole = network(), network()
            fit(resumed, epochs=epochs, resume=path)
            fit(whole, epochs=epochs)
            assert_same_bits(whole.weights, resumed.weights)
            path.unlink()
    assert readable >= 3


def test_batches_larger_than_the_data_and_single_examples():
    large, exact = network(), network()
    fit(large, batch=10_000)
    fit(exact, batch=90)
    assert_same_bits(large.weights, exact.weights)
    fit(network(), epochs=1, batch=1)


def test_rows_without_entries():
    x = sp.csr_array((20, ITEMS), dtype=bool)
    net = network()
    history = sn.fit(net, x, x, optimizer=sn.optimizers.adam(0.01), epochs=2, batch=8)
    assert np.isfinite(history["loss"]).all()
    items, scores = sn.recommend(net, x, k=3)
    assert (items >= 0).all()
    assert np.isfinite(scores).all()


def test_callbacks_see_each_epoch_and_can_stop():
    seen = []
    history = fit(network(), epochs=9, callbacks=[lambda net, h: seen.append(net.epoch), lambda net, h: net.epoch == 3])
    assert seen == [1, 2, 3]
    assert len(history["epoch"]) == 3


def test_progress_bar_only_when_asked_or_in_a_terminal(capsys):
    fit(network(), epochs=1)
    assert capsys.readouterr().err == ""
    fit(network(), epochs=1, progress=True)
    bar = capsys.readouterr().err
    assert "loss=" in bar
    assert "examples/s" in bar


def test_history_draws_itself(tmp_path):
    history = fit(network(), epochs=3, validation=held_out())
    history.plot(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("arguments", "message"), [
    ({"epochs": 0}, "epochs: expected a positive integer, got 0"),
    ({"batch": 1.5}, "batch: expected a positive integer, got 1.5"),
    ({"patience": 3}, "patience: needs validation"),
    ({"validation": held_out()[0]}, "validation: expected a pair"),
    ({"validation": held_out(), "metrics": ("accuracy@3",)}, "ndcg"),
    ({"validation": held_out(), "metrics": ()}, "metrics: needs at least one name"),
])
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit(network(), **arguments)


def test_a_network_without_loss_is_not_trained():
    x = Input(ITEMS, sparse=True)
    with pytest.raises(ValueError, match="without a loss"):
        fit(sn.Network(x, Dense(3)(x), seed=1))


def test_examples_of_inputs_and_targets_must_match():
    with pytest.raises(ValueError, match="has 30 examples, but others have 90"):
        sn.fit(network(), purchases(), purchases(users=30), optimizer=sn.optimizers.sgd(), epochs=1)


@pytest.mark.parametrize(("loss", "activation"), [
    ("squared_error", "linear"), ("cross_entropy", "sigmoid"), ("cross_entropy", "softmax"),
    ("scaled_marginal_cross_entropy", "sigmoid"), ("scaled_marginal_cross_entropy", "softmax")])
def test_a_diverging_loss_is_an_error_and_spares_the_checkpoint(tmp_path, loss, activation):
    x = Input(ITEMS, sparse=True)
    net = sn.Network(x, Dense(ITEMS, activation)(Dense(8)(x)), loss, seed=1, device="cpu")
    fit(net, epochs=1, optimizer=sn.optimizers.sgd(1e-3), checkpoint=tmp_path / "c.nc")
    before = (tmp_path / "c.nc").read_bytes()
    with pytest.raises(FloatingPointError, match="try a smaller rate"):
        fit(net, epochs=50, optimizer=sn.optimizers.sgd(1e30), checkpoint=tmp_path / "c.nc")
    assert (tmp_path / "c.nc").read_bytes() == before
    with pytest.raises(ValueError, match="NaN or infinity"):
        net.save(tmp_path / "c.nc")
    assert (tmp_path / "c.nc").read_bytes() == before


def test_targets_that_a_loss_cannot_mean_are_refused():
    ratings = purchases().astype(np.float32) * 4
    with pytest.raises(ValueError, match=r"holds 4, but cross_entropy with sigmoid takes targets from 0 to 1"):
        sn.fit(network(), purchases(), ratings, optimizer=sn.optimizers.sgd(), epochs=1)


@pytest.mark.parametrize("other", ["seed", "shape", "foreign", "truncated", "missing"])
def test_resume_refuses_what_does_not_fit(tmp_path, other):
    path = tmp_path / "c.nc"
    fit(network(), epochs=1, checkpoint=path)
    net = network(seed=3 if other == "seed" else 1)
    if other == "shape":
        x = Input(ITEMS, sparse=True)
        net = sn.Network(x, Dense(ITEMS, "sigmoid")(Dense(9, "tanh")(x)), "cross_entropy", seed=1, device="cpu")
    elif other == "foreign":
        sn.data.write_netcdf(path, {"input": purchases()})
    elif other == "truncated":
        path.write_bytes(path.read_bytes()[:5000])
    elif other == "missing":
        path.unlink()
    with pytest.raises(FileNotFoundError if other == "missing" else ValueError, match=r"c\.nc"):
        fit(net, resume=path)


def test_an_unwritable_checkpoint_is_an_error(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        fit(network(), epochs=1, checkpoint=tmp_path / "nowhere" / "c.nc")
