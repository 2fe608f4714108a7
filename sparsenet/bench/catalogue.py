"""Every CUDA kernel with arguments of one size, and what it must move and compute: the list behind `budgets`.

The reference size is that of DSSTNE's MovieLens network (26,744 -> 128 -> 26,744, batches of 256), whose sparse batch
is drawn to be like the data: about 143 nonzeros an example, some features far more frequent than others.

Bytes are those that no way of computing can avoid: each array read or written once, of sparse inputs' weights only the
rows that the batch names. FLOPs are floating-point operations of the formula: a sum, a product, a quotient, a root, an
exponential, a logarithm each count one; comparisons, integers and random bits none.
"""

from collections.abc import Iterator

import numpy as np

from sparsenet import activations, losses, optimizers
from sparsenet.bench.entry import REFERENCE, Entry, Sizes, Sparse, Zeros, sparse_batch
from sparsenet.device import Cuda
from sparsenet.kernels.activation import activate, hidden_delta
from sparsenet.kernels.batches import sorted_transpose, sorted_transpose_all
from sparsenet.kernels.dense import column_sum, matmul, matmul_activate
from sparsenet.kernels.dropout import denoise, dropout, dropped_delta
from sparsenet.kernels.exchange import pack, unpack, unpack_add
from sparsenet.kernels.head import Output, Rule, head_pull, head_step, head_sums, head_top_k, target_pull
from sparsenet.kernels.idle import catch_up
from sparsenet.kernels.loss import loss_sum, output_delta, panel_delta, sparse_loss_sum, sparse_output_delta
from sparsenet.kernels.random import normal, uniform
from sparsenet.kernels.rows import (
    add,
    reduce_rows,
    row_divide,
    row_exp,
    row_max,
    row_sum,
    softmax,
    softmax_delta,
    softmax_pull,
    softmax_rescale,
    softmax_sums,
)
from sparsenet.kernels.sampled_loss import sampled_delta
from sparsenet.kernels.sampling import draw, target_gradient, target_logits, update_rows, weigh
from sparsenet.kernels.sparse import sparse_forward, sparse_update, sparse_weight_gradient
from sparsenet.kernels.tiles import PRECISIONS, SCRATCH, Epilogue, multiply
from sparsenet.kernels.topk import exclude, score_items, top_k
from sparsenet.kernels.update import ROOM, clear, update
from sparsenet.optimizers import Optimizer

_KEY, _KEYS = np.uint64(1), Zeros((1,), np.uint64)
_TILES = 256  # at most, of a transpose; as in layers.batch
_NEGATIVES = 4096  # that a sampled loss draws
_DECAY, _SGD, _MOMENTUM, _ADAM = 4, 2, 4, 13  # FLOPs of an element's step, by `regularized` and by rules
_DRIFT = 7  # of what Adam does without gradient


def entries(sizes: Sizes = REFERENCE) -> Iterator[Entry]:
    """The catalogue at a size."""
    for part in (_pointwise, _products, _fused_products, _transposes, _sparse, _losses, _head, _sampled, _rows,
                 _recommendation, _updates, _exchanges):
        yield from part(sizes, sparse_batch(sizes))


def _pointwise(s: Sizes, batch: Sparse) -> Iterator[Entry]:
    sigmoid, elements, nonzeros = activations.sigmoid(), s.batch * s.hidden, len(batch.indices)
    hidden, bias = Zeros((s.batch, s.hidden)), Zeros((s.hidden,))
    weights = s.features * s.hidden
    yield Entry(activate, "sigmoid", (sigmoid.value, bias, hidden), elements, 8 * elements + 4 * s.hidden, 4 * elements)
    yield Entry(hidden_delta, "sigmoid", (sigmoid.slope, hidden, hidden), elements, 12 * elements, 3 * elements)
    yield Entry(dropout, "", (_KEYS, 0.5, hidden), elements, 8 * elements, elements)
    yield Entry(dropped_delta, "sigmoid", (sigmoid.slope, _KEYS, 0.5, hidden, hidden), elements, 12 * elements,
                5 * elements)
    csr, pointers = (batch.indptr, batch.indices), 8 * s.batch + 8
    yield Entry(denoise, "boolean", (_KEYS, 0.5, s.features, *csr, None, Zeros((nonzeros,))), nonzeros,
                pointers + 8 * nonzeros, nonzeros)
    yield Entry(denoise, "valued", (_KEYS, 0.5, s.features, *csr, Zeros((nonzeros,)), Zeros((nonzeros,))), nonzeros,
                pointers + 12 * nonzeros, nonzeros)
    yield Entry(uniform, "", (_KEY, Zeros((s.features, s.hidden))), weights, 4 * weights, weights)
    yield Entry(normal, "", (_KEY, Zeros((s.features, s.hidden))), weights, 4 * weights, 5 * weights)


def _products(s: Sizes, batch: Sparse) -> Iterator[Entry]:
    hidden, weight, output = Zeros((s.batch, s.hidden)), Zeros((s.hidden, s.features)), Zeros((s.batch, s.features))
    flops = 2 * s.batch * s.hidden * s.features
    h, w, o = (int(np.prod(x.shape)) for x in (hidden, weight, output))
    scratch = {"scratch": Zeros((SCRATCH,))}
    yield Entry(matmul, "forward", (hidden, weight, output), o, 4 * (h + w + o), flops, scratch)
    yield Entry(matmul, "weights", (hidden, output, weight), w, 4 * (h + o + 2 * w), flops,
                {"transpose_a": True, "accumulate": True, **scratch})
    yield Entry(matmul, "deltas", (output, weight, hidden), h, 4 * (o + w + 2 * h), flops,
                {"transpose_b": True, "accumulate": True, **scratch})
    yield Entry(matmul_activate, "sigmoid",
                (activations.sigmoid().value, hidden, weight, Zeros((s.features,)), output), o,
                4 * (h + w + o + s.features), flops + 4 * o, scratch)
    yield Entry(column_sum, "", (output, Zeros((s.features,))), s.features, 4 * o + 8 * s.features, o)


def _fused_products(s: Sizes, batch: Sparse) -> Iterator[Entry]:
    sigmoid, adam, scratch = activations.sigmoid(), optimizers.adam(), Zeros((SCRATCH,))
    activated, with_slope = Epilogue.activate(sigmoid.value), Epilogue.delta(sigmoid.slope)
    updated = Epilogue.update(adam.rule, adam.slots, adam.numbers, 0.0, 0.0)
    for rate in PRECISIONS:
        # Many tiles; few and a long inner axis, which is split; few.
        for place, inputs, units in (("", s.hidden, s.features), ("wide-", s.wide, s.wide),
                                     ("narrow-", s.hidden, s.hidden)):
            x, weight, y = Zeros((s.batch, inputs)), Zeros((inputs, units)), Zeros((s.batch, units))
            after = s.batch * units
            yield Entry(multiply, f"forward-{place}{rate}",
                        (activated, x, weight, Zeros((units,)), None, y, None, None, scratch), after,
                        4 * (s.batch * inputs + inputs * units + after + units), (2 * inputs + 4) * after,
                        {"precision": rate}, rate)
        x, weight, y = Zeros((s.batch, s.hidden)), Zeros((s.hidden, s.features)), Zeros((s.batch, s.features))
        before, weights, after = s.batch * s.hidden, s.hidden * s.features, s.batch * s.features
        yield Entry(multiply, f"deltas-{rate}", (with_slope, y, weight, None, None, x, x, None, scratch), before,
                    4 * (after + weights + 2 * before), (2 * s.features + 3) * before,
                    {"transpose_b": True, "precision": rate}, rate)
        yield Entry(multiply, f"update-{rate}",
                    (updated, x, y, None, _numbers(adam), weight, weight, weight, scratch), weights,
                    4 * (before + after + 6 * weights), (2 * s.batch + _ADAM + _DECAY) * weights,
                    {"transpose_a": True, "precision": rate}, rate)


def _transposes(s: Sizes, batch: Sparse) -> Iterator[Entry]:
    nonzeros, distinct, digits = len(batch.indices), len(batch.features), Cuda.threads
    counts = Zeros((min(_TILES, -(-nonzeros // digits)), digits), np.int32)
    listed, keys = Zeros((nonzeros,), np.int32), Zeros((2, nonzeros), np.int32)
    moved, csr = 8 * s.batch + 12 * nonzeros, (batch.indptr, batch.indices)
    yield Entry(sorted_transpose, "",
                (s.features, *csr, counts, keys, Zeros((distinct,), np.int32), Zeros((distinct + 1,), np.int64), listed,
                 listed, Zeros((1,), np.int64)), nonzeros, moved + 12 * distinct, 0)
    yield Entry(sorted_transpose_all, "", (*csr, counts, keys, Zeros((s.features + 1,), np.int64), listed, listed),
                nonzeros, moved + 8 * s.features, 0)


def _sparse(s: Sizes, batch: Sparse) -> Iterator[Entry]:
    hidden, weight = Zeros((s.batch, s.hidden)), Zeros((s.features, s.hidden))
    nonzeros, touched, results = len(batch.indices), len(batch.features) * s.hidden, s.batch * s.hidden
    adam = optimizers.adam()
    slots, scratch = Zeros((adam.slots, *weight.shape)), Zeros((1, s.hidden))
    for kind, data in (("boolean", None), ("valued", Zeros((nonzeros,)))):
        valued = int(data is not None)
        by_example = 8 * s.batch + 4 * nonzeros * (1 + valued)
        by_feature = 12 * len(batch.features) + 4 * nonzeros * (1 + 2 * valued)
        flops = nonzeros * s.hidden * (1 + valued)
        yield Entry(sparse_forward, kind, (batch.indptr, batch.indices, data, weight, hidden), results,
                    by_example + 4 * (touched + results), flops)
        by = *batch[2:], np.array([len(batch.features)]), data, hidden
        yield Entry(sparse_weight_gradient, kind, (*by, weight), touched, by_feature + 4 * (results + 2 * touched),
                    flops)
        yield Entry(sparse_update, f"adam-{kind}",
                    (adam.rule, *by, weight, slots, 0.0, 0.0, _numbers(adam), adam.numbers, scratch), touched,
                    by_feature + 4 * (results + 6 * touched), flops + (_ADAM + _DECAY) * touched)


def _losses(s: Sizes, batch: Sparse) -> Iterator[Entry]:
    value, slope = losses.cross_entropy().through(activations.sigmoid())
    output, totals = Zeros((s.batch, s.features)), Zeros((s.batch,), np.float64)
    elements, nonzeros = s.batch * s.features, len(batch.indices)
    yield Entry(loss_sum, "", (value, output, output, totals), s.batch, 8 * elements + 8 * s.batch,
                3 * elements)
    yield Entry(output_delta, "", (slope, 0.5, output, output, output), elements, 12 * elements,
                2 * elements)
    for kind, data in (("boolean", None), ("valued", Zeros((nonzeros,)))):
        target = batch.indptr, batch.indices, data
        pointers = 8 * s.batch + (4 if data is None else 8) * nonzeros
        yield Entry(sparse_loss_sum, kind, (value, output, *target, totals), s.batch,
                    4 * elements + pointers + 8 * s.batch, 3 * elements)
        for added in (False, True):
            yield Entry(sparse_output_delta, f"{kind}{'-added' * added}",
                        (slope, 0.5, output, *target, output), elements, (12 if added else 8) * elements + pointers,
                        (3 if added else 2) * elements, {"accumulate": added})


def _head(s: Sizes, batch: Sparse) -> Iterator[Entry]:
    sigmoid, adam, nonzeros = activations.sigmoid(), optimizers.adam(), len(batch.indices)
    value, slope = losses.cross_entropy().through(sigmoid)
    softmax_value, softmax_slope = losses.cross_entropy().through(activations.softmax())
    hidden, weight, bias = Zeros((s.batch, s.hidden)), Zeros((s.features, s.hidden)), Zeros((s.features,))
    row, totals, room = Zeros((s.batch,)), Zeros((s.batch,), np.float64), Zeros((s.batch, s.panel))
    working = room, Zeros((SCRATCH,))
    h, w, o, p = s.batch * s.hidden, s.hidden * s.features, s.batch * s.features, s.batch * s.panel
    target, pointers = (batch.indptr, batch.indices, None), 8 * s.batch + 4 * nonzeros
    read = 4 * (h + w + s.features)
    yield Entry(panel_delta, "sigmoid", (value, slope, 0.5, 0, *target, None, None, None, room, totals), p,
                8 * p + pointers, 6 * p)
    yield Entry(panel_delta, "softmax",
                (softmax_value, softmax_slope, 0.5, 0, *target, row, row, totals, room, totals), p, 8 * p + pointers,
                9 * p)
    yield Entry(head_step, "adam",
                (Output(sigmoid.value, value, slope), Rule(adam.rule, adam.numbers), 0.5, hidden, *target, None, None,
                 None, _numbers(adam), weight, Zeros((adam.slots, *weight.shape)), bias, bias,
                 Zeros((adam.slots, *bias.shape)), hidden, totals, *working), w,
                4 * (3 * h + 6 * w + 6 * s.features) + pointers, 6 * h * s.features + 11 * o + (_ADAM + _DECAY) * w)
    yield Entry(head_sums, "", (hidden, weight, bias, row, row, *working), s.batch, read + 8 * s.batch,
                2 * h * s.features + 4 * o)
    yield Entry(head_pull, "", (softmax_slope, hidden, *target, row, row, weight, bias, totals, *working), s.batch,
                read + pointers + 16 * s.batch, 2 * h * s.features + 6 * o)
    yield Entry(target_pull, "", (softmax_slope, batch.indptr, Zeros((nonzeros,)), totals), s.batch,
                16 * s.batch + 4 * nonzeros, nonzeros)
    items = Zeros((s.batch, s.best), np.int32)
    yield Entry(head_top_k, "sigmoid",
                (sigmoid.value, hidden, weight, bias, *target[:2], items, Zeros((s.batch, s.best)),
                 Zeros((2, s.batch, s.best), np.int32), *working), s.batch * s.best,
                read + pointers + 8 * s.batch * s.best, 2 * h * s.features + 4 * o)


def _sampled(s: Sizes, batch: Sparse) -> Iterator[Entry]:
    nonzeros, drawn = len(batch.indices), min(_NEGATIVES, s.features)
    entries = np.concatenate([np.arange(drawn, dtype=np.int64) * s.features // drawn, batch.indices])
    units, counts = np.unique(entries, return_counts=True)
    positions = np.argsort(entries, kind="stable").astype(np.int32)
    examples = np.searchsorted(batch.indptr, positions - drawn, side="right").astype(np.int32)
    starts, touched = np.concatenate([[0], np.cumsum(counts)]), np.array([len(units)])
    c, targets, hidden = len(units), Zeros((nonzeros,)), Zeros((s.batch, s.hidden))
    column, panel, places = Zeros((c,)), Zeros((c, s.hidden)), np.zeros(nonzeros, np.int32)
    pointers, listed = 8 * s.batch + 4 * nonzeros, 12 * c + 4 * (drawn + nonzeros)
    units = units.astype(np.int32)
    yield Entry(draw, "uniform", (_KEYS, drawn, s.features, None, batch.indptr, batch.indices,
                                  Zeros((s.batch + 2,), np.int64), Zeros((drawn + nonzeros,), np.int32)),
                drawn + nonzeros, 2 * pointers + 4 * drawn, 0)
    yield Entry(weigh, "uniform", (drawn, s.features, None, None, s.batch, units, starts, positions, touched, column,
                                   column, Zeros((nonzeros,), np.int32)), c, listed + 8 * c + 4 * nonzeros, 3 * c)
    yield Entry(target_logits, "", (batch.indptr, places, hidden, panel, column, targets), nonzeros,
                pointers + 4 * (s.batch * s.hidden + c * s.hidden + c + nonzeros), 2 * nonzeros * s.hidden)
    for name, loss in (("sigmoid", activations.sigmoid()), ("softmax", activations.softmax())):
        output, softmax = Output(loss.value, *losses.cross_entropy().through(loss)), name == "softmax"
        yield Entry(sampled_delta, name,
                    (output, softmax, 0.5, batch.indptr, None, places, column, column if softmax else None, column,
                     Zeros((s.batch, c)), targets, Zeros((s.batch,), np.float64)), s.batch * c,
                    8 * s.batch * c + pointers + 8 * c + 8 * nonzeros + 8 * s.batch, 9 * s.batch * c)
    yield Entry(target_gradient, "", (drawn, starts, examples, positions, touched, targets, hidden, panel, column),
                c * s.hidden, listed + 4 * (drawn + 2 * nonzeros + s.batch * s.hidden + 2 * c * s.hidden + 2 * c),
                2 * nonzeros * s.hidden)
    adam = optimizers.adam()
    yield Entry(update_rows, "adam",
                (adam.rule, units, touched, panel, Zeros((s.features, s.hidden)),
                 Zeros((adam.slots, s.features, s.hidden)), 0.0, 0.0, _numbers(adam), adam.numbers), c * s.hidden,
                4 * c * (1 + 7 * s.hidden), (_ADAM + _DECAY) * c * s.hidden)


def _rows(s: Sizes, batch: Sparse) -> Iterator[Entry]:
    output, row, elements = Zeros((s.batch, s.features)), Zeros((s.batch,)), s.batch * s.features
    value, _ = losses.squared_error().through(activations.linear())
    for reduce in (row_sum, row_max):
        yield Entry(reduce, "", (output, row), s.batch, 4 * (elements + s.batch), elements)
    yield Entry(reduce_rows, "squared_error", (value, add, np.float64(0), output, output, row), s.batch,
                8 * elements + 4 * s.batch, 4 * elements)
    yield Entry(softmax_sums, "", (output, row, row), s.batch, 4 * elements + 8 * s.batch, 3 * elements)
    yield Entry(softmax_rescale, "", (row, row, row), s.batch, 16 * s.batch, 3 * s.batch)
    yield Entry(softmax, "", (row, row, output), elements, 8 * elements + 8 * s.batch, 3 * elements)
    for kernel, flops in ((row_exp, 2), (row_divide, 1)):
        yield Entry(kernel, "", (row, output), elements, 8 * elements + 4 * s.batch, flops * elements)
    yield Entry(softmax_pull, "", (output, output), elements, 12 * elements, elements)
    yield Entry(softmax_delta, "", (row, output, output), elements, 12 * elements + 4 * s.batch, 2 * elements)


def _recommendation(s: Sizes, batch: Sparse) -> Iterator[Entry]:
    scores, elements, nonzeros = Zeros((s.batch, s.features)), s.batch * s.features, len(batch.indices)
    best = s.batch * s.best
    yield Entry(exclude, "", (batch.indptr, batch.indices, scores), nonzeros, 8 * s.batch + 8 * nonzeros, 0)
    items = Zeros((s.batch, s.best), np.int32)
    yield Entry(top_k, "", (scores, items, Zeros((s.batch, s.best))), best, 4 * elements + 8 * best, 0)
    hidden, weight = Zeros((s.batch, s.hidden)), Zeros((s.features, s.hidden))
    yield Entry(score_items, "sigmoid", (activations.sigmoid().value, hidden, weight, Zeros((s.features,)), items,
                                         Zeros((s.batch, s.best))), best,
                4 * s.hidden * (best + s.batch) + 12 * best, 2 * s.hidden * best)


def _updates(s: Sizes, batch: Sparse) -> Iterator[Entry]:
    elements = s.features * s.hidden
    for optimizer, flops in ((optimizers.sgd(), _SGD), (optimizers.momentum(), _MOMENTUM), (optimizers.adam(), _ADAM)):
        state = Zeros((elements,)), Zeros((elements,)), Zeros((optimizer.slots, elements))
        yield Entry(update, optimizer.name,
                    (optimizer.rule, *state, 0.0, 0.0, _numbers(optimizer), optimizer.numbers),
                    elements, (16 + 8 * optimizer.slots) * elements, (flops + _DECAY) * elements)
    adam, weight = optimizers.adam(), (s.features, s.hidden)
    assert adam.idle is not None
    one = np.ones(1, np.int32)  # step missed, by all rows
    yield Entry(catch_up, "adam",
                (adam.idle.rule, None, one, one, Zeros((2, len(ROOM))), Zeros(weight), Zeros((adam.slots, *weight)),
                 Zeros((s.features,), np.int32), len(adam.idle.none)),
                elements, (8 + 8 * adam.slots) * elements + 8 * s.features, _DRIFT * elements)
    yield Entry(clear, "", (Zeros((s.batch, s.features)),), s.batch * s.features, 4 * s.batch * s.features, 0)


def _exchanges(s: Sizes, batch: Sparse) -> Iterator[Entry]:
    output, sent, elements = Zeros((s.batch, s.features)), Zeros((s.batch * s.features,)), s.batch * s.features
    bounds, own = np.linspace(0, s.features, s.ranks + 1).astype(np.int64), s.features // s.ranks
    yield Entry(pack, "", (output, bounds, sent), elements, 8 * elements, 0)
    yield Entry(unpack, "", (sent, bounds, output), elements, 8 * elements, 0)
    yield Entry(unpack_add, "", (Zeros((s.ranks, s.batch, own)), Zeros((s.batch, own))), s.batch * own,
                4 * (s.ranks + 2) * s.batch * own, s.ranks * s.batch * own)


def _numbers(optimizer: Optimizer) -> np.ndarray:
    """Those of its rule's first step, with whatever after them."""
    return np.resize(np.array(optimizer.scalars(1), np.float32), ROOM.shape)
