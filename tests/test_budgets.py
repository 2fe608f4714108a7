"""Every CUDA kernel's machine code is no worse than sparsenet/bench/budgets.csv says, for four generations of GPUs."""

from dataclasses import replace

import numpy as np
import pytest

import sparsenet.device
from sparsenet.bench import budgets
from sparsenet.bench.__main__ import main
from sparsenet.bench.catalogue import entries
from sparsenet.bench.entry import REFERENCE, Sizes, sparse_batch
from sparsenet.compiling import numba_cuda
from sparsenet.testing.emulator import Emulator
from sparsenet.testing.machine_code import check_tools
from tests.test_compiles_for_gpu import gpu_kernels

TINY = Sizes(batch=3, features=13, hidden=4, per_example=2, best=2, wide=8, ranks=2, panel=8)
NOT_ON_A_CPU = {"sorted_transpose", "sorted_transpose_all", "head_step", "head_sums", "head_pull",
                "head_top_k"}  # or with arrays of another shape there


@pytest.mark.compile
@pytest.mark.parametrize("capability", [pytest.param(one, marks=[] if one == (9, 0) else pytest.mark.slow)
                                        for one in budgets.CAPABILITIES], ids="{0[0]}.{0[1]}".format)
def test_machine_code_is_within_its_budget(capability):
    try:
        numba_cuda()
        check_tools()
    except ImportError as missing:
        pytest.skip(str(missing))
    worse = list(budgets.complaints(budgets.build(capability), budgets.read().of(capability)))
    assert not worse, "\n".join([*worse, budgets.REBUILD])


def test_every_kernel_has_an_entry():
    listed = list(entries())
    assert gpu_kernels() - {entry.kernel.__name__ for entry in listed} == set()
    assert len({entry.name for entry in listed}) == len(listed)


@pytest.mark.parametrize("entry", list(entries(TINY)), ids=lambda entry: entry.name)
def test_entries_run(entry):
    """With arrays of zeros and of random numbers."""
    device = Emulator() if entry.kernel.__name__ in NOT_ON_A_CPU else sparsenet.device.device("cpu")
    entry.bind(device)()
    entry.bind(device, lambda shape: np.random.default_rng(1).random(shape, np.float32))()
    assert entry.elements > 0
    assert entry.moved > 0


def test_the_sparse_batch_is_like_the_data():
    batch = sparse_batch(REFERENCE)
    nonzeros = len(batch.indices)
    assert nonzeros == batch.indptr[-1] == batch.starts[-1]
    assert abs(nonzeros / REFERENCE.batch - REFERENCE.per_example) < 15
    assert 9_000 < len(batch.features) < 12_000
    for b in range(REFERENCE.batch):
        assert np.all(np.diff(batch.indices[batch.indptr[b]:batch.indptr[b + 1]]) > 0)
    for r in (0, 1, len(batch.features) - 1):
        positions = batch.positions[batch.starts[r]:batch.starts[r + 1]]
        assert set(batch.indices[positions]) == {batch.features[r]}
        assert np.array_equal(batch.examples[batch.starts[r]:batch.starts[r + 1]],
                              np.searchsorted(batch.indptr, positions, side="right") - 1)


@pytest.mark.parametrize(("name", "bytes_each", "flops_each"), [
    ("update-adam", 32, 17),     # w, gradient, m, v, each read and written
    ("softmax_pull", 12, 1),     # y read, delta read and written
    ("matmul-forward", 4 * (1 + 128 / 26_744 + 128 / 256), 256),
    ("clear", 4, 0),
])
def test_bytes_and_flops_of_an_element(name, bytes_each, flops_each):
    [entry] = [entry for entry in entries() if entry.name == name]
    assert entry.moved == pytest.approx(bytes_each * entry.elements)
    assert entry.flops == flops_each * entry.elements


def test_the_table_survives_its_file(tmp_path):
    table = budgets.read()
    assert len(table.rows) >= len(budgets.CAPABILITIES) * len(list(entries()))
    assert len({row.key for row in table.rows}) == len(table.rows)
    budgets.write(table, tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_bytes() == budgets.FILE.read_bytes()
    assert budgets.read(tmp_path / "table.csv") == table


GOOD = budgets.read().rows[0]
BUDGET = budgets.Table("these", [GOOD._replace(code=replace(
    GOOD.code, registers=40, spills=0, local=0, shared=512, wide_loads=4, tensor=8))])


@pytest.mark.parametrize(("compilers", "change", "complaint"), [
    ("these", {}, ""),
    ("these", {"registers": 32, "wide_loads": 6}, ""),
    ("these", {"registers": 41}, "41 registers, 40 in the table"),
    ("others", {"registers": 44}, ""),
    ("others", {"registers": 45}, "45 registers, 40 in the table"),
    ("these", {"spills": 8}, "spills 8 bytes of registers"),
    ("others", {"spills": 8}, "spills 8 bytes of registers"),
    ("these", {"local": 16}, "16 bytes of local memory, 0 in the table"),
    ("these", {"shared": 1024}, "1024 bytes of shared memory, 512 in the table"),
    ("these", {"wide_loads": 3}, "3 wide loads, 4 in the table"),
    ("others", {"wide_loads": 3}, ""),
    ("others", {"wide_loads": 0}, "0 wide loads, 4 in the table"),
    ("these", {"tensor": 0}, "0 tensor, 8 in the table"),
])
def test_what_is_complained_about(compilers, change, complaint):
    [row] = BUDGET.rows
    found = budgets.Table(compilers, [row._replace(code=replace(row.code, **change))])
    said = list(budgets.complaints(found, BUDGET))
    assert said == ([f"{' '.join(row.key)}: {complaint}"] if complaint else [])


def test_rows_that_come_and_go():
    [row] = BUDGET.rows
    found = BUDGET._replace(rows=[row._replace(launch="new")])
    came, went = budgets.complaints(found, BUDGET)
    assert came.endswith("not in the table")
    assert went.startswith(" ".join(row.key))


def test_the_command(monkeypatch, capsys, tmp_path):
    """It compares, names what is worse and how to accept it, and writes."""
    table, file = budgets.read(), tmp_path / "table.csv"
    monkeypatch.setattr(budgets, "build", lambda *capabilities: table)
    assert main(["budgets"]) == 0
    assert "within their budgets" in capsys.readouterr().out
    spilled = table.rows[0]._replace(code=replace(table.rows[0].code, spills=4))
    monkeypatch.setattr(budgets, "build", lambda *capabilities: table._replace(rows=[spilled, *table.rows[1:]]))
    assert main(["budgets"]) == 1
    printed = capsys.readouterr().out
    assert "spills 4 bytes" in printed
    assert budgets.REBUILD in printed
    monkeypatch.setattr(budgets, "FILE", file)
    assert main(["budgets", "--write"]) == 0
    assert str(file) in capsys.readouterr().out
