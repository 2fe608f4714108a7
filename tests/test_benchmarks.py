"""Benchmarks are not run by default, but must not fall behind the code: here each runs once, or in miniature."""

import argparse
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from sparsenet.bench.workloads import WORKLOADS
from tests.benchmarks import growth, speed
from tests.benchmarks.peers import machine, race, task
from tests.benchmarks.peers.rows import RACES, ROWS, Contestant

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_benchmarks_run():
    command = [sys.executable, "-m", "pytest", "tests/benchmarks", "-m", "benchmark", "--benchmark-disable"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("script", ["quality", "startup", "speed", "growth"])
def test_scripts_tell_their_use(script):
    done = subprocess.run([sys.executable, f"tests/benchmarks/{script}.py", "--help"], cwd=ROOT, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    assert "--write" in done.stdout


@pytest.fixture
def settings(tmp_path):
    return race.Settings(tmp_path, sys.executable, sys.executable, seconds=0.1, small=200, batches=4, patience=120)


def test_examples_are_like_those_measured():
    """MovieLens 20M's shape: 36,000 nonzeros in a batch, of 10,000 items."""
    x, targets = WORKLOADS["W1"].examples()
    assert targets is x
    batches = [x[first:first + 256] for first in range(0, x.shape[0], 256)]
    assert np.mean([batch.nnz for batch in batches]) == pytest.approx(36_000, rel=0.05)
    assert np.mean([len(np.unique(batch.indices)) for batch in batches]) == pytest.approx(10_000, rel=0.05)


def test_examples_in_a_file(tmp_path):
    workload = WORKLOADS["W3"].smaller(200)
    inputs, targets = workload.examples()
    batches = list(_task(race.examples(workload, tmp_path), workload).batches)
    assert len(batches) == workload.batches
    np.testing.assert_array_equal(np.concatenate([batch.values for batch in batches]), inputs.data)
    np.testing.assert_array_equal(np.concatenate([batch.indices for batch in batches]), inputs.indices)
    rows, columns = targets[workload.batch:].nonzero()
    np.testing.assert_array_equal(batches[1].rows, rows)
    np.testing.assert_array_equal(batches[1].columns, columns)


def _task(file, workload, **more):
    return task.Task(**{
        "kind": "step", "name": workload.name, "features": workload.features, "hidden": workload.hidden,
        "outputs": workload.outputs, "output": workload.output, "batch": workload.batch, "data": str(file), "epoch": "",
        "by": "sparsenet", "variant": "", "valued": workload.valued, **more})


@pytest.mark.parametrize("name", ["w1-float32", "w2-epoch", "input-128-adam", "top-w1-float32",
                                  pytest.param("w3-float32", marks=pytest.mark.slow)])
def test_sparsenet_alone(settings, name):
    small = replace(RACES[name], contestants=(Contestant("sparsenet"),))
    [found] = race.run(small, 1, settings).values()
    assert "error" not in found
    assert 0 < found["wall"] < 10
    assert found["cpu"] > 0
    assert found["steps"] >= 2
    assert found["versions"]["sparsenet"]


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize(("name", "variant"), [
    ("w1-float32", "eager"), ("w1-margins-rmsprop", "trick"), ("input-128-sgd", "sparse"),
    *(pytest.param(*one, marks=pytest.mark.slow) for one in (
        ("w1-bfloat16", "compiled"), ("w3-sampled", "sampled"), ("top-w1-bfloat16", "eager")))])
def test_torch_beside_what_fails(settings, name, variant):
    precision = "bfloat16" if name.endswith("bfloat16") else "float32"
    wrong = Contestant("sparsenet", precision="float31")
    both = replace(RACES[name], contestants=(wrong, Contestant("torch", variant, precision)))
    first, second = race.run(both, 1, settings).values()
    assert "error" not in second
    assert second["wall"] > 0
    if name != "input-128-sgd":  # whose kernels know no precision
        assert "float31" in first["error"]


@pytest.mark.skipif(sys.platform != "linux", reason="a process's state is told in Linux's way")
def test_who_waits_is_stopped(settings):
    workload = WORKLOADS["W1"].smaller(200)
    one = _task(race.examples(workload, settings.out), workload)
    with race.started(Contestant("sparsenet"), one, 1, settings) as process:
        assert "error" not in process.ready
        assert len(process.take_turn(3, 60)["wall"]) == 3
        while not re.search(r"State:\s*T", Path(f"/proc/{process.id}/status").read_text()):
            time.sleep(0.01)  # the signal is on its way


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere they may be left behind")
def test_nobody_outlives_the_driver(settings):
    workload = WORKLOADS["W1"].smaller(200)
    one = _task(race.examples(workload, settings.out), workload)
    driver = ("import os, pathlib, sys\n"
              "from tests.benchmarks.peers import race, task\n"
              f"process = race.Process([sys.executable, '-m', 'tests.benchmarks.peers.serve'], task.{one!r}, 1,\n"
              f"    race.Settings(pathlib.Path({str(settings.out)!r}), '', '', 0), sys.stderr)\n"
              "print(process.id, 'error' in process.ready, flush=True)\n"
              "os._exit(0)")
    done = subprocess.run([sys.executable, "-c", driver], cwd=ROOT, capture_output=True, text=True, check=True)
    number, failed = done.stdout.split()
    assert failed == "False", done.stderr
    end = time.perf_counter() + 10
    while Path(f"/proc/{number}").exists() and "Z" not in Path(f"/proc/{number}/stat").read_text().split()[2]:
        assert time.perf_counter() < end
        time.sleep(0.05)


def test_who_hangs_or_dies_is_told(settings):
    workload = WORKLOADS["W1"].smaller(200)
    one = _task(race.examples(workload, settings.out), workload)
    late = race.Process([sys.executable, "-c", "import time; time.sleep(60)"], one, 1, replace(settings, patience=1),
                        sys.stderr)
    late.end()
    assert "after at most 1 s" in late.ready["error"]
    dead = race.Process([sys.executable, "-c", "raise SystemExit(3)"], one, 1, settings, sys.stderr)
    dead.end()
    assert "status 3" in dead.ready["error"]


FIGURES = {"cpu": 0.1, "bytes": 1e8, "steps": 5, "batches": 1, "versions": {"thing": "1.0"}}


def test_the_table():
    result = {"machine": "an abacus", "small": 1, "batches": 541, "contestants": {
        "sparsenet": {**FIGURES, "wall": 0.02}, "torch compiled": {**FIGURES, "wall": 0.05, "bytes": 4e8},
        "jax": {"error": "ModuleNotFoundError: No module named 'jax'"}}}
    alone = json.loads(json.dumps(result))
    alone["contestants"]["sparsenet"] |= {"cpu": 0.04, "wall": 0.04}
    text = speed.table({("w1-float32", 2): result, ("w1-float32", 1): alone})
    assert "| W1, float32, Adam | 20 ms | 50 ms (torch compiled) | **2.50** | 2.0 | **2.50** | 1.75 |" in text
    assert "| W1, float32: peak memory | 100 MB | 400 MB (torch compiled) | **0.25** | ≤ 0.6 |" in text
    assert "| W1, float32: two threads over one | 20 ms | 40 ms alone | **2.00** | 1.85 |" in text
    assert "| W2, float32, Adam | not measured | not measured | not measured | 1.5 |" in text
    assert "missing: jax: ModuleNotFoundError: No module named 'jax', in w1-float32 (2), w1-float32 (1)" in text
    assert "an abacus" in text
    assert "thing 1.0" in text


def test_every_row_has_its_race():
    for row in ROWS:
        names = [one.name for one in RACES[row.race].contestants]
        assert any(name.startswith("sparsenet") for name in names)
        assert [name for name in names if not name.startswith("sparsenet") and row.meets(name)]


def test_races_are_chosen_by_name():
    assert list(speed.chosen("w3,input-128-sgd")) == ["w3-float32", "w3-bfloat16", "w3-sampled", "input-128-sgd"]
    with pytest.raises(ValueError, match="w9"):
        speed.chosen("w1,w9")


def test_the_readme_needs_its_marks(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "README", tmp_path / "README.md")
    machine.README.write_text("a\n<!-- speed -->\nold\n<!-- /speed -->\nb\n")
    machine.put("speed", r"| \1 |")
    assert machine.README.read_text() == "a\n<!-- speed -->\n| \\1 |\n<!-- /speed -->\nb\n"
    with pytest.raises(ValueError, match="growth"):
        machine.put("growth", "")


def test_growth(tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "free_memory", lambda: 0)
    options = argparse.Namespace(out=tmp_path, precision="float32", weights="float32", optimizer="sgd", threads=1,
                                 steps=2)
    workload = replace(WORKLOADS["W1"].smaller(200), labels=2)
    good = growth.point(workload.outputs, workload, options)
    assert good["seconds"] > 0
    options.precision = "float31"
    bad = growth.point(9, workload, options)
    assert "float31" in bad["error"]
    text = growth.table("outputs", [good, bad])
    assert f"| {workload.outputs:,} |" in text
    assert "| 9 | not available |" in text
    growth.draw({"outputs": [good, bad], "nonzeros": []}, "two").savefig(tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    growth.draw({"outputs": [good]}, "one")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_memory_that_there_is_not(settings):
    workload = WORKLOADS["W1"].smaller(200)
    wide = replace(workload, hidden=(128,), labels=1, outputs=3_000_000, batches=1)
    one = _task(race.examples(wide, settings.out), wide, most_memory=1_000_000_000)
    with race.started(Contestant("sparsenet"), one, 1, settings) as process:
        assert "MemoryError" in process.ready["error"]
