"""Sampled outputs: a training step that looks at a batch's targets and at some units drawn at random, the negatives.

The batch's targets and the drawn units together are the candidates: `draw` lists them as a CSR matrix whose first row
is what was drawn, `batches.transpose` or `sorted_transpose` finds the distinct ones, and where each stands in that
list. A candidate's row of weights is copied into a small panel. From there on all sizes are those of the candidates,
whatever the number of outputs.

Drawing is stratified: draw i of n lies in the i-th of n equal parts of the distribution. A unit's expected number of
draws is n times its probability, as if draws were independent, but sums vary less, and n draws from n equally likely
units are all of them.
"""

from functools import cache

import numpy as np
from numba import prange

from sparsenet.device import Array, launch
from sparsenet.kernels.random import philox
from sparsenet.kernels.update import ROOM, regularized
from sparsenet.shapes import check

_ZERO, _ONE = np.float32(0), np.float32(1)
_WORD, _LOW, _NO_WORD = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(0)


def draw(keys: Array, negatives: int, outputs: int, starts: Array | None, indptr: Array, indices: Array,
         out_indptr: Array, out_indices: Array) -> None:
    """The batch with a first row of units that are drawn at random; draws are the same bits on every device.

    A unit u is drawn with probability (starts[u + 1] - starts[u]) / 2^32, each draw in its own part of the whole.

    keys         (1) uint64                           in   stream of this step, see seeds.stream_key
    negatives    int                                       how many to draw
    outputs      int                                       number of all units
    starts       (outputs + 1) int64                  in   from 0 to 2^32; None: all units are equally likely
    indptr       (batch + 1) int64                    in   targets
    indices      (>= nonzeros) int32                  in
    out_indptr   (batch + 2) int64                    out
    out_indices  (>= negatives + nonzeros) int32      out
    """
    check(indices=(indices, "room"), out_indices=(out_indices, "places"), out_indptr=(out_indptr, "rows"))
    launch(_draw(starts is not None), (max(out_indices.shape[0], out_indptr.shape[0]),), keys, negatives, outputs,
           indptr if starts is None else starts, indptr, indices, out_indptr, out_indices)


@cache
def _draw(listed):
    def draw(i, keys, negatives, outputs, starts, indptr, indices, out_indptr, out_indices):
        if i < negatives:
            word = philox(keys[0] & _LOW, keys[0] >> _WORD, np.uint64(i), _NO_WORD, _NO_WORD, _NO_WORD)[0]
            point = ((np.uint64(i) << _WORD) + word) // np.uint64(negatives)
            if listed:
                unit, end = 0, outputs  # starts[unit] <= point < starts[end]
                while unit + 1 < end:
                    middle = (unit + end) // 2
                    if starts[middle] <= np.int64(point):
                        unit = middle
                    else:
                        end = middle
                out_indices[i] = unit
            else:
                out_indices[i] = np.int32((point * np.uint64(outputs)) >> _WORD)
        elif i - negatives < indptr[indptr.shape[0] - 1]:
            out_indices[i] = indices[i - negatives]
        if i == 0:
            out_indptr[i] = 0
        elif i < out_indptr.shape[0]:
            out_indptr[i] = negatives + indptr[i - 1]
    return draw


def weigh(negatives: int, outputs: int, starts: Array | None, shares: Array | None, batch: int, features: Array,
          by_indptr: Array, positions: Array, touched: Array, weights: Array, own: Array, places: Array) -> None:
    """weights[r] = how often candidate r was drawn / how often it is on average, own[r] = 1 / how often it is on
    average; places[k] = r where target k is candidate r.

    With such weights, a sum over the drawn units is on average the sum over all units. `shares`: the batch's targets
    count as drawn too. That adds the number of examples that have the unit as a target to what was drawn, and
    (batch - 1) shares[u] to the average: an example's own targets are not among its negatives.

    negatives, outputs, starts  as for `draw`
    shares     (outputs) float32             in   share of all examples that have the unit as a target; None: drawn
                                                  units alone are negatives
    batch      int
    features   (>= touched) int32            in   candidates, as `transpose` lists what `draw` made
    by_indptr  (>= touched + 1) int64        in
    positions  (>= negatives + nonzeros) int32    in
    touched    (1) int64                     in   number of candidates
    weights    (candidates) float32          out  0 beyond them
    own        (candidates) float32          out  1 beyond them, and for what is never drawn
    places     (>= nonzeros) int32           out
    """
    size = check(weights=(weights, "candidates"), features=(features, "candidates"), own=(own, "candidates"))
    of_cell, others = weights.dtype.type(negatives / 2**32), weights.dtype.type(batch - 1)
    launch(_weigh(starts is not None, shares is not None), (size.candidates,), negatives, outputs, of_cell, others,
           by_indptr if starts is None else starts, weights if shares is None else shares, features, by_indptr,
           positions, touched, weights, own, places)


@cache
def _weigh(listed, in_batch):
    def weigh(r, negatives, outputs, of_cell, others, starts, shares, features, by_indptr, positions, touched,
              weights, own, places):
        drawn = 0
        average = _ZERO
        if r < touched[0]:
            f = np.int64(features[r])
            for k in range(by_indptr[r], by_indptr[r + 1]):
                place = positions[k] - negatives
                if place >= 0:
                    places[place] = r
                if place < 0 or in_batch:
                    drawn += 1
            if listed:
                cells = starts[f + 1] - starts[f]
            else:  # of the points that `draw` rounds down to f
                cells = (((f + 1) << 32) + outputs - 1) // outputs - ((f << 32) + outputs - 1) // outputs
            average = np.float32(cells) * of_cell
            if in_batch:
                average += others * shares[f]
        weights[r] = np.float32(drawn) / average if drawn > 0 else _ZERO
        own[r] = _ONE / average if average > _ZERO else _ONE
    return weigh


def target_logits(indptr: Array, places: Array, hidden: Array, panel: Array, bias: Array, logits: Array) -> None:
    """logits[k] = hidden[b] . panel[places[k]] + bias[places[k]] for the entries k of example b.

    indptr  (batch + 1) int64               in
    places  (>= nonzeros) int32             in   candidate of each entry
    hidden  (batch, inputs) float32         in
    panel   (candidates, inputs) float32    in   the candidates' weights
    bias    (candidates) float32            in
    logits  (>= nonzeros) float32           out
    """
    size = check(hidden=(hidden, "batch inputs"), panel=(panel, "candidates inputs"), bias=(bias, "candidates"))
    launch(_target_logits, (size.batch,), indptr, places, hidden, panel, bias, logits)


def _target_logits(b, indptr, places, hidden, panel, bias, logits):
    for k in range(indptr[b], indptr[b + 1]):
        z = bias[places[k]]
        for u in range(hidden.shape[1]):
            z += hidden[b, u] * panel[places[k], u]
        logits[k] = z


def target_gradient(negatives: int, by_indptr: Array, examples: Array, positions: Array, touched: Array, delta: Array,
                    hidden: Array, gradient: Array, bias_gradient: Array) -> None:
    """gradient[r] += sum over the targets k of candidate r of delta[k] hidden[example of k]; the bias' likewise.

    negatives                                   as for `weigh`
    by_indptr, examples, positions, touched     in     candidates, as `transpose` lists what `draw` made
    delta          (>= nonzeros) float32        in     deltas of targets
    hidden         (batch, inputs) float32      in
    gradient       (candidates, inputs) float32 inout
    bias_gradient  (candidates) float32         inout
    """
    size = check(hidden=(hidden, "batch inputs"), gradient=(gradient, "candidates inputs"),
                 bias_gradient=(bias_gradient, "candidates"))
    launch(_target_gradient, (size.candidates, size.inputs), negatives, by_indptr, examples, positions, touched, delta,
           hidden, gradient, bias_gradient, on_cpu=_target_gradient_on_cpu)


def _target_gradient(r, u, negatives, by_indptr, examples, positions, touched, delta, hidden, gradient, bias_gradient):
    if r < touched[0]:
        for k in range(by_indptr[r], by_indptr[r + 1]):
            if positions[k] >= negatives:
                d = delta[positions[k] - negatives]
                gradient[r, u] += d * hidden[examples[k] - 1, u]
                if u == 0:
                    bias_gradient[r] += d


def _target_gradient_on_cpu(negatives, by_indptr, examples, positions, touched, delta, hidden, gradient,
                            bias_gradient):
    # Units inside: most candidates have been drawn and are no target (10 times the speed).
    for r in prange(min(touched[0], gradient.shape[0])):
        for k in range(by_indptr[r], by_indptr[r + 1]):
            if positions[k] >= negatives:
                d, source = delta[positions[k] - negatives], hidden[examples[k] - 1]
                bias_gradient[r] += d
                for u in range(source.shape[0]):
                    gradient[r, u] += d * source[u]


def update_rows(rule, units: Array, touched: Array, gradient: Array, w: Array, slots: Array, l2: float, l1: float,
                scalars: Array, numbers: int) -> None:
    """One optimizer step on the listed rows of w: as update.update, with gradient[r] for w[units[r]], r < touched[0].

    rule, l2, l1, scalars, numbers             as for update.update
    units     (candidates) int32           in     distinct
    touched   (1) int64                    in     number of rows that are listed
    gradient  (candidates, inputs) float32 in
    w         (outputs, inputs) float32    inout
    slots     (count, outputs, inputs)     inout  the optimizer's state
    """
    size = check(units=(units, "candidates"), gradient=(gradient, "candidates inputs"), w=(w, "outputs inputs"),
                 slots=(slots, "count outputs inputs"), room=(ROOM, "most"), scalars=(scalars, "most"))
    number, kind = w.dtype.type, (rule, size.count, numbers)
    launch(_update_rows(*kind), (size.candidates, size.inputs), units, touched, gradient, w,
           slots.reshape(size.count * size.outputs, size.inputs), number(l2), number(l1), scalars,
           on_cpu=_update_rows_on_cpu(*kind))


@cache
def _update_rows(rule, count, numbers):
    def update_rows(r, u, units, touched, gradient, w, slots, l2, l1, scalars):
        if r < touched[0]:
            s = (scalars[0], scalars[1], scalars[2], scalars[3], scalars[4], scalars[5], scalars[6],
                 scalars[7])[:numbers]
            f = units[r]
            m = slots[f, u] if count > 0 else _ZERO
            v = slots[w.shape[0] + f, u] if count > 1 else _ZERO
            w[f, u], m, v = rule(w[f, u], regularized(gradient[r, u], w[f, u], l2, l1), m, v, s)
            if count > 0:
                slots[f, u] = m
            if count > 1:
                slots[w.shape[0] + f, u] = v
    return update_rows


@cache
def _update_rows_on_cpu(rule, count, numbers):
    def update_rows(units, touched, gradient, w, slots, l2, l1, scalars):
        # Rows taken out of their arrays first: then LLVM makes vectors of the loop (3 times the speed).
        s = (scalars[0], scalars[1], scalars[2], scalars[3], scalars[4], scalars[5], scalars[6], scalars[7])[:numbers]
        for r in prange(min(touched[0], units.shape[0])):
            row, change = w[units[r]], gradient[r]
            first = slots[units[r]] if count > 0 else row
            second = slots[w.shape[0] + units[r]] if count > 1 else row
            for u in range(row.shape[0]):
                m = first[u] if count > 0 else _ZERO
                v = second[u] if count > 1 else _ZERO
                row[u], m, v = rule(row[u], regularized(change[u], row[u], l2, l1), m, v, s)
                if count > 0:
                    first[u] = m
                if count > 1:
                    second[u] = v
    return update_rows
