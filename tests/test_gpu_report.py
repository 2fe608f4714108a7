"""The report of a GPU, tried without one: tiny sizes, in the emulator."""

import json
import sys
import time

import pytest

from sparsenet.bench import __main__ as command
from sparsenet.bench import gpu


def rows(folder, section):
    found = json.loads((folder / f"{section}.json").read_text())
    assert found["complete"]
    return found["rows"]


@pytest.mark.emulator
def test_a_section(tmp_path):
    assert command.main(["gpu", "--section", "machine", "--device", "emulator", "--out", str(tmp_path)]) == 0
    found = {row["what"]: row["is"] for row in rows(tmp_path, "machine")}
    assert found["device"] == "emulator"
    assert found["python"] == sys.version.split()[0]


def test_what_is_there_is_not_measured_again(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(gpu, "SECTIONS", {"machine": (None, 0.5), "limits": (None, 0.5)})
    monkeypatch.setattr(gpu, "_run", lambda command, seconds: begun.append(command) or "no such thing")
    limits = [{"limit": "copy", "rate": 2e9, "unit": "B/s"}]
    (tmp_path / "limits.json").write_text(json.dumps({"rows": limits, "complete": True}))
    (tmp_path / "machine.json").write_text(json.dumps({"rows": [{"what": "card", "is": "H200"}], "complete": False}))
    text = gpu.report("cpu", 1, 1, tmp_path).read_text()
    assert [call[call.index("--section") + 1] for call in begun] == ["machine"]
    assert "Not complete: no such thing" in text
    assert "| card | H200 |" in text
    assert json.loads((tmp_path / "gpu.json").read_text())["limits"] == limits


def test_a_section_that_hangs_is_ended():
    started = time.perf_counter()
    assert gpu._run([sys.executable, "-c", "import time; time.sleep(60)"], 1) == "ended after 1 s"
    assert time.perf_counter() - started < 30
    assert gpu._run([sys.executable, "-c", "raise ValueError('no card')"], 30) == "ValueError: no card"
    assert gpu._run([sys.executable, "-c", ""], 30) == ""


def test_shares_of_the_limit():
    found = {"limits": [{"limit": "copy", "rate": 4e12}, {"limit": "fp32", "rate": 5e13}],
             "kernels": [{"kernel": "clear", "seconds": 2e-6, "bytes/s": 2e12, "FLOP/s": 0.0, "rate": "fp32"},
                         {"kernel": "matmul", "seconds": 1e-3, "bytes/s": 1e11, "FLOP/s": 4e13, "rate": "fp32"}]}
    lines = list(gpu.tables(found, {}))
    assert "| clear | fp32 | 2.0 | 2e+03 | 0 | 50% |" in lines
    assert "| matmul | fp32 | 1000.0 | 100 | 40 | 80% |" in lines


@pytest.mark.slow
@pytest.mark.emulator
def test_all_of_it(tmp_path):
    """Every section but the tests, which run here anyway; a real GPU takes the same path."""
    pytest.importorskip("torch")
    for section in gpu.SECTIONS.keys() - {"tests"}:
        gpu.measure(section, "emulator", 400, 1, tmp_path)
    assert [row for row in rows(tmp_path, "kernels") if "error" in row] == []
    assert len(rows(tmp_path, "kernels")) > 60
    assert {row["workload"] for row in rows(tmp_path, "steps") if row["by"] == "sparsenet"} == {"W1", "W2", "W3"}
    assert [row for row in rows(tmp_path, "steps") if "error" in row] == []
    assert all(row["share"] > 0 for row in rows(tmp_path, "input"))
