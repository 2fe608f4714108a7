"""A whole training step of DSSTNE's example network (26,744 - 128 - 26,744) beside eager PyTorch, in one run.

    pytest tests/benchmarks/test_training.py -m benchmark
"""

import numpy as np
import pytest
import scipy.sparse as sp

import sparsenet as sn
from sparsenet.layers import Dense, Input
from sparsenet.training import bind

FEATURES, UNITS, BATCH = 26_744, 128, 256

pytestmark = pytest.mark.benchmark(group="training step, Adam")


@pytest.fixture(scope="module")
def x():
    rng = np.random.default_rng(0)
    chance = 1 / (10 + np.arange(FEATURES))
    rows = [np.sort(rng.choice(FEATURES, 143, replace=False, p=chance / chance.sum())) for _ in range(BATCH)]
    indptr = np.arange(0, 143 * BATCH + 1, 143)
    return sp.csr_array((np.ones(143 * BATCH, bool), np.concatenate(rows), indptr), shape=(BATCH, FEATURES))


def test_sparsenet(benchmark, x):
    node = Input(FEATURES, sparse=True)
    network = sn.Network(node, Dense(FEATURES, "sigmoid")(Dense(UNITS, "sigmoid")(node)), "cross_entropy", seed=1)
    feeds, wanted, _ = bind(network, x, x, BATCH)
    network.prepare(sn.optimizers.adam())
    benchmark.pedantic(network.train_batch, (feeds, wanted, np.arange(BATCH)), rounds=20, warmup_rounds=2)


def test_torch(benchmark, x):
    torch = pytest.importorskip("torch")
    bag = torch.nn.EmbeddingBag(FEATURES, UNITS, mode="sum")
    bias = torch.nn.Parameter(torch.zeros(UNITS))
    out = torch.nn.Linear(UNITS, FEATURES)
    optimizer = torch.optim.Adam([*bag.parameters(), bias, *out.parameters()], fused=True)
    indices, offsets = torch.from_numpy(x.indices.astype(np.int64)), torch.from_numpy(x.indptr[:-1].astype(np.int64))
    target = torch.from_numpy(x.toarray().astype(np.float32))

    def step():
        optimizer.zero_grad()
        logits = out(torch.sigmoid(bag(indices, offsets) + bias))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="sum") / BATCH
        loss.backward()
        optimizer.step()

    benchmark.pedantic(step, rounds=20, warmup_rounds=2)
