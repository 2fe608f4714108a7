"""Benchmarks are not run by default, but must not fall behind the code: here each runs once, untimed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_benchmarks_run():
    command = [sys.executable, "-m", "pytest", "tests/benchmarks", "-m", "benchmark", "--benchmark-disable"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("script", ["quality", "startup"])
def test_scripts_tell_their_use(script):
    done = subprocess.run([sys.executable, f"tests/benchmarks/{script}.py", "--help"], cwd=ROOT, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    assert "--write" in done.stdout
