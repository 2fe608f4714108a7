"""The report of a GPU, tried without one: tiny sizes, in the emulator."""

import json
import os
import sys
import threading
import time
from _thread import interrupt_main
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from sparsenet.bench import __main__ as command
from sparsenet.bench import gpu, sections
from sparsenet.testing.emulator import Emulator
from sparsenet.version import __version__


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


@pytest.fixture
def begun(monkeypatch):
    """Sections that a report would have measured."""
    begun = []

    def run(command, seconds, log):
        begun.append(command[command.index("--section") + 1])
        return "no such thing"

    monkeypatch.setattr(gpu, "SECTIONS", {"machine": (None, 0.5), "limits": (None, 0.5)})
    monkeypatch.setattr(gpu, "_run", run)
    return begun


LIMITS = [{"limit": "copy", "rate": 2e9, "unit": "B/s"}]


def keep(folder, section, found, complete, device="cpu", small=1):
    (folder / f"{section}.json").write_text(
        json.dumps({"device": device, "small": small, "rows": found, "complete": complete}))


def test_what_is_there_is_not_measured_again(tmp_path, begun):
    keep(tmp_path, "limits", LIMITS, True)
    keep(tmp_path, "machine", [{"what": "card", "is": "H200"}], False)
    text = gpu.report("cpu", 1, 1, tmp_path).read_text()
    assert begun == ["machine"]
    assert "Not complete: no such thing" in text
    assert "| card | H200 |" in text
    assert json.loads((tmp_path / "gpu.json").read_text())["limits"] == LIMITS


@pytest.mark.parametrize("other", [{"device": "cuda"}, {"small": 400}])
def test_what_is_another_s_is_neither_kept_nor_shown(tmp_path, begun, other):
    keep(tmp_path, "limits", LIMITS, True, **other)
    keep(tmp_path, "machine", [], True)
    gpu.report("cpu", 1, 1, tmp_path)
    assert begun == ["limits"]
    assert json.loads((tmp_path / "gpu.json").read_text())["limits"] == []


def test_a_section_in_its_process(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "SECTIONS", {"machine": (None, 1.0)})
    text = gpu.report("cpu", 400, 1, tmp_path).read_text()
    assert f"| sparsenet | {__version__} |" in text
    assert "| device | cpu |" in text
    assert "Not complete" not in text
    assert json.loads((tmp_path / "machine.json").read_text())["small"] == 400


def test_a_section_that_hangs_is_ended(tmp_path):
    log = tmp_path / "log"
    started = time.perf_counter()
    assert gpu._run([sys.executable, "-c", "import time; time.sleep(60)"], 1, log) == "ended after 1 s"
    assert time.perf_counter() - started < 30
    assert gpu._run([sys.executable, "-c", "print(1); raise ValueError('no card')"], 30, log) == "ValueError: no card"
    assert log.read_text().startswith("1\n")
    assert gpu._run([sys.executable, "-c", ""], 30, log) == ""


@pytest.mark.skipif(sys.platform == "win32", reason="there, a signal of 0 ends a process")
def test_ctrl_c_ends_a_section(tmp_path):
    log = tmp_path / "log"
    timer = threading.Timer(2, interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        gpu._run([sys.executable, "-c", "import os, time; print(os.getpid()); time.sleep(60)"], 60, log)
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text()), 0)


TESTS = """
import pytest

@pytest.fixture
def broken():
    raise ValueError

@pytest.mark.{marker}
def test_good(): pass

@pytest.mark.{marker}
@pytest.mark.parametrize("a", ["x y"])
def test_bad(a): assert not a

@pytest.mark.{marker}
def test_error(broken): pass
"""


@pytest.mark.parametrize("name", ["emulator", pytest.param("cuda", marks=pytest.mark.skipif(
    find_spec("xdist") is None, reason="the same without pytest-xdist"))])
def test_failures_are_told(tmp_path, monkeypatch, name):
    monkeypatch.setattr(sections, "ROOT", tmp_path)
    file = tmp_path / "tests" / "kernels" / "test_update.py"
    file.parent.mkdir(parents=True)
    file.write_text(TESTS.format(marker=name))
    *failed, last = sections._tests(SimpleNamespace(name=name), 400, 1)
    assert {row["test"].split("::")[1]: row["result"] for row in failed} == {
        "test_bad[x y]": "failed", "test_error": "failed"}
    assert last["result"].startswith("1 failed, 1 passed")
    file.write_text(TESTS.format(marker=name).replace("def test_good(): pass", "def test_good(): assert 0"))
    with pytest.raises(RuntimeError, match="exit status 1, 2 failed"):
        list(sections._tests(SimpleNamespace(name=name), 400, 1))
    file.write_text("import nothing_of_this_name")
    with pytest.raises(RuntimeError, match=r"exit status \d, 1 error"):
        list(sections._tests(SimpleNamespace(name=name), 400, 1))


@pytest.mark.slow
@pytest.mark.emulator
def test_tests():
    [row] = sections._tests(Emulator(races=False), 400, 1)
    assert "passed" in row["result"]


def test_shares_of_the_limit():
    found = {"limits": [{"limit": "copy", "rate": 4e12}, {"limit": "float32", "rate": 5e13}],
             "kernels": [{"kernel": "clear", "seconds": 2e-6, "bytes/s": 2e12, "FLOP/s": 0.0, "rate": "float32"},
                         {"kernel": "matmul", "seconds": 1e-3, "bytes/s": 1e11, "FLOP/s": 4e13, "rate": "float32"}]}
    lines = list(gpu.tables(found, {}))
    assert "| clear | float32 | 2.0 | 2e+03 | 0 | 50% |" in lines
    assert "| matmul | float32 | 1000.0 | 100 | 40 | 80% |" in lines
    assert any("can exceed 100 %" in line for line in lines)


@pytest.mark.slow
@pytest.mark.emulator
def test_all_of_it(tmp_path):
    """Every section but the tests, which run here anyway; a real GPU takes the same path."""
    pytest.importorskip("torch")
    for section in gpu.SECTIONS.keys() - {"tests"}:
        gpu.measure(section, "emulator", 400, 0.1, tmp_path)
    assert [row for row in rows(tmp_path, "kernels") if "error" in row] == []
    assert len(rows(tmp_path, "kernels")) > 60
    assert {row["workload"] for row in rows(tmp_path, "steps") if row["by"] == "sparsenet"} == {"W1", "W2", "W3"}
    assert [row for row in rows(tmp_path, "steps") if "error" in row] == []
    assert all(row["share"] > 0 for row in rows(tmp_path, "input"))
