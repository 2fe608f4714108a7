"""The streaming head: a training step, or the best items, of the widest layer without an array as wide as it is.

The head walks over the outputs in panels of `room.shape[1]` units. A panel's activations become its deltas, its weights
meet both gradients and the optimizer, and the next panel takes its place: nothing of size batch x outputs, and no
gradient of size outputs x inputs, is ever stored. A room of 8 MiB stays in a GPU's cache. Which panel a unit is in, and
so every bit of the results, depends on the room's width and not on the machine. Weights lie output by output: those of
a panel are a block of memory. On a CPU, walk.py walks over smaller panels, tiles, on all cores.

A softmax needs numbers of whole rows first. With ranks that hold slices of the outputs, they are exchanged in between:
    head_sums                   largest logit and sum of exponentials of each row; see rows.softmax_rescale
    head_pull, or target_pull   sums of y dL/dy
    head_step
"""

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

from sparsenet.device import Array, Device, device_of, launch, scalar
from sparsenet.kernels.dense import column_sum
from sparsenet.kernels.loss import first_from, panel_delta
from sparsenet.kernels.output import Output, Rule
from sparsenet.kernels.rows import softmax_sums
from sparsenet.kernels.tiles import Epilogue, multiply
from sparsenet.kernels.topk import top_k
from sparsenet.kernels.update import update
from sparsenet.kernels.walk import walk_plan, walk_pull, walk_step
from sparsenet.kernels.walk_sums import walk_sums
from sparsenet.kernels.walk_top_k import top_k_plan, walk_top_k
from sparsenet.shapes import check, values_or

_FLOAT64_SUMS = ("target_pull",)  # all other kernels here compute in their arrays' type
_ONE, _NOTHING, _WORST, _NO_ITEM = np.float32(1), np.float64(0), np.float32(-np.inf), np.int32(-1)


_ROOM, _PANEL = 2**21, 128  # numbers in a GPU's room, a quarter of its cache or less; a panel is a multiple of that


def head_room(device: Device, batch: int, inputs: int, outputs: int, precision: str) -> tuple[int, ...]:
    """The shape of a room for batches of up to so many examples."""
    if device.name == "cpu":
        *_, where = walk_plan(batch, inputs, outputs, precision)
        return (where.size,)
    return batch, min(outputs, max(_PANEL, _ROOM // max(1, batch) // _PANEL * _PANEL))


def _on_cpu(*arrays: Array) -> bool:
    return device_of(*arrays).name == "cpu"


@scalar
def _same(z):
    return z


def head_step(output: Output, rule: Rule, scale: float, hidden: Array, indptr: Array, indices: Array,
              data: Array | None, largest: Array | None, total: Array | None, pull: Array | None, scalars: Array,
              w: Array, slots: Array, bias: Array, bias_gradient: Array, bias_slots: Array, dhidden: Array | None,
              losses: Array, room: Array, scratch: Array, *, key: Array | None = None,
              precision: str = "float32") -> None:
    """One training step of y = activation(hidden w' + bias) towards sparse targets t, panel by panel.

    losses = sum_u value(y, t); with delta = scale slope(y, t), for a softmax scale (slope(y, t) - y pull):
    dhidden += delta w with the weights as they were; w, bias and their slots take the rule's step with the gradients
    delta' hidden and sum_b delta.

    hidden         (batch, inputs) float32            in
    indptr         (batch + 1) int64                  in
    indices        (nonzeros) int32                   in     target units of an example, in increasing order
    data           (nonzeros) float32                 in     targets; None: all ones
    largest        (batch) float32                    in     for a softmax: from `head_sums`; else None
    total          (batch) float32 or float64         in     as largest
    pull           (batch) float64                    in     for a softmax: from `head_pull` or `target_pull`; else None
    scalars        (8) float32                        in     numbers of the rule for this step
    w              (outputs, inputs) float32          inout  on a CPU, w or slots or both may be uint16: bfloat16,
    slots          (count, outputs, inputs) float32   inout  rounded at random. slots are the optimizer's state
    bias           (outputs) float32                  inout
    bias_gradient  (outputs) float32                  inout  0 on entry and on return
    bias_slots     (count, outputs) float32           inout
    dhidden        (batch, inputs) float32            inout  None where it is not wanted
    losses         (batch) float64                    out
    room           (batch, panel) float32             -      for one panel's activations, then deltas; see `head_room`
    scratch        (most) float32                     -      for products: see tiles.multiply, as precision; a CPU needs
                                                             none
    key            (1) uint64                         in     stream of this step's rounding of uint16 arrays
    """
    size = check(hidden=(hidden, "batch inputs"), losses=(losses, "batch"), w=(w, "outputs inputs"),
                 slots=(slots, "count outputs inputs"), bias=(bias, "outputs"),
                 bias_gradient=(bias_gradient, "outputs"), bias_slots=(bias_slots, "count outputs"))
    if dhidden is not None:
        check(hidden=(hidden, "batch inputs"), dhidden=(dhidden, "batch inputs"))
    if _on_cpu(hidden, w, bias):
        if size.batch:
            walk_step(output, rule, scale, hidden, indptr, indices, data, largest, total, pull, scalars, w, slots, bias,
                      bias_slots, dhidden, losses, room, key=key, precision=precision)
        return
    check(hidden=(hidden, "batch inputs"), room=(room, "batch panel"))
    activation = output.activation if largest is None else _same
    learn = Epilogue.update(rule.rule, size.count, rule.numbers, rule.l2, rule.l1, w.dtype.type)
    for first, end, y in _panels(activation, hidden, w, bias, room, scratch, precision):
        panel_delta(output.value, output.slope, scale, first, indptr, indices, data, largest, total, pull, y, losses)
        weights = w[first:end]
        if dhidden is not None:
            multiply(Epilogue.store(accumulate=True), y, weights, None, None, dhidden, None, None, scratch,
                     precision=precision)
        m, v = [*(slots[i, first:end] for i in range(size.count)), None, None][:2]
        multiply(learn, y, hidden, None, scalars, weights, m, v, scratch, transpose_a=True, precision=precision)
        column_sum(y, bias_gradient[first:end])
    if size.batch:
        update(rule.rule, bias, bias_gradient, bias_slots, 0, 0, scalars, rule.numbers)


def head_sums(hidden: Array, w: Array, bias: Array, largest: Array, total: Array, room: Array, scratch: Array, *,
              precision: str = "float32") -> None:
    """largest[b] = max_u z[b, u], total[b] = sum_u exp(z[b, u] - largest[b]) with z = hidden w' + bias.

    largest  (batch) float32               out
    total    (batch) float32 or float64    out
    others   as for `head_step`; in
    """
    check(hidden=(hidden, "batch inputs"), w=(w, "outputs inputs"), bias=(bias, "outputs"), largest=(largest, "batch"),
          total=(total, "batch"))
    if _on_cpu(hidden, w, bias):
        if len(hidden):
            walk_sums(hidden, w, bias, largest, total, room, precision=precision)
        return
    check(hidden=(hidden, "batch inputs"), room=(room, "batch panel"))
    for first, _, z in _panels(_same, hidden, w, bias, room, scratch, precision):
        softmax_sums(z, largest, total, accumulate=first > 0)


def head_pull(slope, hidden: Array, indptr: Array, indices: Array, data: Array | None, largest: Array,
              total: Array, w: Array, bias: Array, pull: Array, room: Array, scratch: Array, *,
              precision: str = "float32") -> None:
    """pull[b] = sum_u slope(y[b, u], t[b, u]) for the softmax y of z = hidden w' + bias.

    pull    (batch) float64    out
    others  as for `head_step`; in
    """
    check(hidden=(hidden, "batch inputs"), w=(w, "outputs inputs"), bias=(bias, "outputs"), pull=(pull, "batch"))
    if _on_cpu(hidden, w, bias):
        if len(hidden):
            walk_pull(slope, hidden, indptr, indices, data, largest, total, w, bias, pull, room, precision=precision)
        return
    check(hidden=(hidden, "batch inputs"), room=(room, "batch panel"))
    for first, _, z in _panels(_same, hidden, w, bias, room, scratch, precision):
        panel_delta(slope, slope, 1.0, first, indptr, indices, data, largest, total, None, z, pull, keep=True)


def target_pull(slope, indptr: Array, data: Array | None, pull: Array) -> None:
    """pull[b] = sum of slope(1, t) over row b's targets: what `head_pull` gives where slope(y, t) does not depend on y
    and is 0 for t = 0, as for cross entropy, without its walk.

    slope   scalar function
    indptr  (batch + 1) int64     in
    data    (nonzeros) float32    in   targets; None: all ones
    pull    (batch) float64       out
    """
    size = check(pull=(pull, "batch"))
    launch(_target_pull(slope, data is not None), (size.batch,), indptr, values_or(pull, data), pull)


@cache
def _target_pull(slope, valued):
    def target_pull(b, indptr, data, pull):
        total = _NOTHING
        for k in range(indptr[b], indptr[b + 1]):
            total += slope(_ONE, data[k] if valued else _ONE)
        pull[b] = total
    return target_pull


def top_k_room(device: Device, batch: int, inputs: int, outputs: int, k: int, precision: str) -> tuple[int, ...]:
    """The shape of a room of `head_top_k` for batches of up to so many examples."""
    if device.name == "cpu":
        *_, lists = top_k_plan(batch, inputs, outputs, k, precision)
        return (lists.size,)
    rows, panel = head_room(device, batch, inputs, outputs, precision)
    return rows, -(-k // 4) * 4 + panel


def head_top_k(activation, hidden: Array, w: Array, bias: Array, indptr: Array | None, indices: Array | None,
               items: Array, values: Array, scratch_items: Array, room: Array, scratch: Array, *,
               monotonic: bool = False, precision: str = "float32") -> None:
    """items[b], values[b] = the k largest of y = activation(hidden w' + bias) in row b, as top_k: best first.

    activation     scalar function z -> y
    monotonic      whether y never falls where z rises, but for rounding: on a CPU only what may be chosen goes through
                   the activation then
    hidden         (batch, inputs) float32     in
    w              (outputs, inputs) float32   in
    bias           (outputs) float32           in
    indptr         (batch + 1) int64           in   items of a row that are not wanted, in increasing order; or None
    indices        (nonzeros) int32            in   as indptr
    items          (batch, k) int32            out  -1 where a row has fewer than k items to choose from
    values         (batch, k) float32          out  -inf there
    scratch_items  (2, batch, k) int32         -    a CPU needs none
    room           (batch, panel) float32      -    for the best so far, k rounded up to a multiple of 4, and a panel;
                                                    see `top_k_room`
    scratch        (most) float32              -    as for `head_step`

    A softmax keeps its logits' order: take the linear activation here, then rows.softmax of the values. A CPU chooses
    no item whose logit is -inf or NaN, whatever the activation makes of it.
    Raises ValueError where the room has no place for a panel.
    """
    size = check(hidden=(hidden, "batch inputs"), w=(w, "outputs inputs"), bias=(bias, "outputs"),
                 items=(items, "batch k"), values=(values, "batch k"))
    if _on_cpu(hidden, w, bias):
        if 0 not in (size.batch, size.k):
            walk_top_k(activation, hidden, w, bias, indptr, indices, items, values, room, monotonic=monotonic,
                       precision=precision)
        return
    panel = check(items=(items, "batch k"), scratch_items=(scratch_items, "two batch k"),
                  room=(room, "batch panel")).panel
    front = -(-size.k // 4) * 4
    if panel <= front:
        raise ValueError(f"room: axis 'panel' is {panel}, expected more than k rounded up to fours, {front}")
    if 0 in (size.batch, size.k):
        return
    positions, best, spare = scratch_items[0], items, scratch_items[1]
    panels = _columns(size.outputs, panel - front)
    if len(panels) % 2 == 0:
        best, spare = spare, best  # they swap after every panel but the last
    for first, end in panels:
        scores = _narrow(room, front + end - first)
        launch(_carry(first > 0), (size.batch, front), values, scores)
        multiply(Epilogue.activate(activation), hidden, w[first:end], bias[first:end], None, scores, None, None,
                 scratch, transpose_b=True, x_columns=(front, front + end - first), precision=precision)
        if indptr is not None:
            launch(_exclude, (size.batch,), indptr, indices, first, front, scores)
        top_k(scores, positions, values)
        launch(_name, (size.batch, size.k), positions, first, front, spare, best)
        best, spare = spare, best


@cache
def _carry(begun):
    """The best so far in front of the panel's scores."""
    def carry(b, j, values, scores):
        scores[b, j] = values[b, j] if begun and j < values.shape[1] else _WORST
    return carry


def _exclude(b, indptr, indices, first, front, scores):
    end = first + scores.shape[1] - front
    for k in range(first_from(indices, indptr[b], indptr[b + 1], first),
                   first_from(indices, indptr[b], indptr[b + 1], end)):
        scores[b, front + indices[k] - first] = _WORST


def _name(b, j, positions, first, front, before, best):
    """The item numbers of what was chosen among the best so far and the panel."""
    position = positions[b, j]
    if position < 0:
        best[b, j] = _NO_ITEM
    else:
        best[b, j] = before[b, position] if position < front else first + position - front


# ---- panels


def _columns(outputs: int, width: int) -> list[tuple[int, int]]:
    return [(first, min(first + width, outputs)) for first in range(0, outputs, width)]


def _narrow(room: Array, width: int) -> Array:
    """(batch, width) at the room's beginning."""
    batch, all_of_it = room.shape
    return room if width == all_of_it else room.reshape(-1)[:batch * width].reshape(batch, width)


def _panels(activation: Callable, hidden: Array, w: Array, bias: Array, room: Array, scratch: Array,
            precision: str) -> Iterator[tuple[int, int, Array]]:
    """(first, end, activations of these units) of each panel."""
    if hidden.shape[0] == 0:
        return
    if room.shape[1] == 0:
        raise ValueError(f"room: expected at least one column, got shape {tuple(room.shape)}")
    activate = Epilogue.activate(activation)
    for first, end in _columns(w.shape[0], room.shape[1]):
        y = _narrow(room, end - first)
        multiply(activate, hidden, w[first:end], bias[first:end], None, y, None, None, scratch, transpose_b=True,
                 precision=precision)
        yield first, end, y
