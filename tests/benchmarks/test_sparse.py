"""Sparse kernels on the CPU against SciPy and PyTorch, in one run.

    pytest tests/benchmarks/test_sparse.py -m benchmark
"""

import numpy as np
import pytest
import scipy.sparse as sp

from sparsenet import optimizers
from sparsenet.kernels import batches, sparse

FEATURES, UNITS, BATCH = 26_744, 128, 256

pytestmark = pytest.mark.benchmark


@pytest.fixture(scope="module")
def problem():
    """W1's shape: MovieLens-20M's width, about 143 nonzeros a row, popular features often."""
    rng = np.random.default_rng(0)
    chance = 1 / (10 + np.arange(FEATURES))
    rows = [np.sort(rng.choice(FEATURES, 143, replace=False, p=chance / chance.sum())) for _ in range(BATCH)]
    indptr = np.arange(0, 143 * BATCH + 1, 143)
    indices = np.concatenate(rows).astype(np.int32)
    weight = rng.normal(size=(FEATURES, UNITS)).astype(np.float32)
    delta = rng.normal(size=(BATCH, UNITS)).astype(np.float32)
    return indptr, indices, weight, delta


@pytest.fixture(scope="module")
def by_feature(problem):
    indptr, indices, _, _ = problem
    features, starts = np.zeros(len(indices), np.int32), np.zeros(len(indices) + 1, np.int64)
    examples, positions, touched = np.zeros_like(indices), np.zeros_like(indices), np.zeros(1, np.int64)
    batches.transpose(indptr, indices, np.zeros(FEATURES, np.int64), features, starts, examples, positions, touched)
    return features, starts, examples, positions, touched


@pytest.mark.benchmark(group="sparse forward")
@pytest.mark.parametrize("way", ["ours", "scipy", "torch"])
def test_sparse_forward(benchmark, problem, way):
    indptr, indices, weight, _ = problem
    y = np.zeros((BATCH, UNITS), np.float32)
    if way == "scipy":
        x = sp.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(BATCH, FEATURES))
        benchmark(lambda: x @ weight)
    elif way == "torch":
        torch = pytest.importorskip("torch")
        w, i, o = torch.from_numpy(weight), torch.from_numpy(indices), torch.from_numpy(indptr[:-1].astype(np.int32))
        benchmark(lambda: torch.nn.functional.embedding_bag(i, w, o, mode="sum"))
    else:
        benchmark(sparse.sparse_forward, indptr, indices, None, weight, y)


@pytest.mark.benchmark(group="sparse gradient and SGD")
@pytest.mark.parametrize("way", ["ours", "torch"])
def test_sparse_update(benchmark, problem, by_feature, way):
    indptr, indices, weight, delta = problem
    if way == "torch":
        torch = pytest.importorskip("torch")
        bag = torch.nn.EmbeddingBag(FEATURES, UNITS, mode="sum", sparse=True, _weight=torch.from_numpy(weight.copy()))
        optimizer = torch.optim.SGD(bag.parameters(), lr=0.001)
        i, o, d = torch.from_numpy(indices), torch.from_numpy(indptr[:-1].astype(np.int32)), torch.from_numpy(delta)

        def step():
            optimizer.zero_grad()
            bag(i, o).backward(d)
            optimizer.step()

        benchmark(step)
        return
    w, slots, scratch = weight.copy(), np.zeros((0, *weight.shape), np.float32), np.zeros((64, UNITS), np.float32)
    benchmark(sparse.sparse_update, optimizers.sgd().rule, *by_feature, None, delta, w, slots, 0.0, 0.0,
              np.full(8, 0.001, np.float32), 1, scratch)
