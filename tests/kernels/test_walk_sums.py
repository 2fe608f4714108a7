import numpy as np
import pytest

from sparsenet import activations, losses, optimizers
from sparsenet.kernels.walk import walk_pull
from sparsenet.kernels.walk_sums import walk_sums
from sparsenet.testing import assert_close
from tests.heads import compare, exactly, head, output_of, prove, rule_of, walked


@pytest.mark.parametrize("loss", [losses.cross_entropy(), losses.squared_error()], ids=lambda one: one.name)
def test_softmax(loss):
    optimizer, output = optimizers.sgd(0.5), output_of(loss, activations.softmax())

    @prove
    def example(sizes):
        arrays = head(sizes, optimizer)
        logits = abs(arrays["hidden"]) @ abs(arrays["w"]).T + abs(arrays["bias"])
        terms = sum(arrays["w"].shape) + len(logits)
        walk = {name: arrays[name] for name in ("hidden", "w", "bias")}
        walk |= {name: np.full(len(logits), np.nan, np.float32) for name in ("largest", "total")}
        found, exact = walked(walk_sums, (), walk), exactly(walk_sums, (), walk)
        assert_close(found["largest"], exact["largest"], terms=terms, scale=logits.max(axis=1), name="largest")
        assert_close(found["total"], exact["total"], terms=terms, scale=exact["total"] * (1 + logits.max(axis=1)),
                     name="total")
        arrays["largest"], arrays["total"] = (exact[name].astype(np.float32) for name in ("largest", "total"))
        walk = {name: arrays[name] for name in ("hidden", "indptr", "indices", "data", "largest", "total", "w", "bias")}
        walk["pull"] = np.full(len(logits), np.nan)
        found, exact = walked(walk_pull, (output.slope,), walk), exactly(walk_pull, (output.slope,), walk)
        assert_close(found["pull"], exact["pull"], terms=terms, scale=(1 + logits).sum(axis=1), name="pull")
        arrays["pull"] = exact["pull"]
        compare((output, rule_of(optimizer), 0.25), arrays)
