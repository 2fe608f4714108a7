"""The streaming head on a CPU: one walk over tiles of outputs. See head.py for what it is, panels.py for the tiles.

Logits of a tile become deltas output by output, with the whole batch side by side: activations and losses are loops
over rows of numbers, of which LLVM makes vectors. Every target is taken for 0 first; then the nonzeros are put right.

Where a loss has no delta for most zeros, as beyond a margin, the logits tell which they are (`Output.quiet`). A tile
with few others is done one delta at a time, and neither gradient is a product of matrices then.

Weights and the optimizer's slots may be bfloat16 alone, uint16 arrays: a row is read as float32, and rounded at random
when it is written, with bits that the step's key and the place in the array decide. See bfloat16.py.
"""

import math
from functools import cache

import numpy as np
from numba import get_thread_id, prange

from sparsenet.bfloat16 import key_for, random_bits, row_key, shortened, widened
from sparsenet.compiling import summing
from sparsenet.device import Array, run_on_host, scalar
from sparsenet.kernels.loss import first_from
from sparsenet.kernels.output import Output, Rule
from sparsenet.kernels.panels import Plan, Room, plan, products
from sparsenet.kernels.update import ROOM, regularized
from sparsenet.kernels.walk_few import few_deltas
from sparsenet.shapes import check_memory, values_or
from sparsenet.vectors import Vectors, chosen

_FLOAT64_SUMS = ("walk_step", "walk_pull")
_ZERO, _ONE, _NOTHING = np.float32(0), np.float32(1), np.float64(0)
_HALF, _NO_KEY = np.uint32(16), np.zeros(1, np.uint64)
_FACTORS = 3  # of 1e-12 or more have a product that float32 holds
_first_from = scalar(first_from.function)


def walk_plan(batch: int, inputs: int, outputs: int, precision: str) -> tuple[Vectors, str, Plan]:
    """(path of vectors, precision that it has, plan) of a walk on this CPU; its room has plan.size numbers."""
    path = chosen()
    precision = precision if precision == "bfloat16" and path.bfloat16 else "float32"
    return path, precision, plan(batch, inputs, outputs, path, precision)


def walk_step(output: Output, rule: Rule, scale: float, hidden: Array, indptr: Array, indices: Array,
              data: Array | None, largest: Array | None, total: Array | None, pull: Array | None, scalars: Array,
              w: Array, slots: Array, bias: Array, bias_slots: Array, dhidden: Array | None, losses: Array, room: Array,
              *, key: Array | None = None, precision: str = "float32") -> None:
    """head.head_step on a CPU: arguments as there, but for the room, (size) float32 as `walk_plan` says."""
    path, precision, where = walk_plan(hidden.shape[0], hidden.shape[1], w.shape[0], precision)
    softmax, number = largest is not None, hidden.dtype.type
    check_memory(hidden=hidden, bias=bias, bias_slots=bias_slots, room=room)
    check_memory(w=w)
    check_memory(slots=slots)
    keys = key_for(key, _NO_KEY, w, slots)
    step = _step(output, rule, slots.shape[0], data is not None, softmax, dhidden is not None, path, precision)
    run_on_host(step, hidden, indptr, indices, values_or(hidden, data), largest if softmax else hidden.reshape(-1),
                total if softmax else losses, pull if softmax else losses, w, bias, Room.of(room, where.size), where,
                number(scale), scalars, keys, slots, bias_slots, hidden if dhidden is None else dhidden, losses)


def walk_pull(slope, hidden: Array, indptr: Array, indices: Array, data: Array | None, largest: Array, total: Array,
              w: Array, bias: Array, pull: Array, room: Array, *, precision: str = "float32") -> None:
    """head.head_pull on a CPU: arguments as there, but for the room, as for `walk_step`."""
    path, precision, where = walk_plan(hidden.shape[0], hidden.shape[1], w.shape[0], precision)
    check_memory(hidden=hidden, bias=bias, room=room)
    check_memory(w=w)
    sums = _step(Output(slope, slope, slope), None, 0, data is not None, True, False, path, precision)
    run_on_host(sums, hidden, indptr, indices, values_or(hidden, data), largest, total, pull, w, bias,
                Room.of(room, where.size), where, hidden.dtype.type(0), ROOM, _NO_KEY, w, bias, hidden, pull)


@cache
def _step(output, rule, count, valued, softmax, wanted, path, precision):
    pack_hidden, load, weights_of, logits, prepare, to_hidden, to_weights = products(path, precision)
    begin, save, correct = _targets(output, valued, softmax)
    zeros, settle_losses = _zeros(output, softmax)
    learns = rule is not None
    learn, learn_bias = (_learn(rule, count), _learn_bias(rule, count)) if learns else (_sum, _sum)
    gather = _gather(wanted)
    sparse = output.quiet is not None and not softmax
    if sparse:
        find, step_by_few = few_deltas(output, _unit(output, False), learn, learn_bias, rule.still, valued, weights_of)

    def walk_step(hidden, indptr, indices, data, largest, total, pull, w, bias, room, plan, scale, scalars, keys,
                  slots, bias_slots, dhidden, losses):
        batch, inputs = hidden.shape
        outputs = w.shape[0]
        tiles = (outputs + plan.tile - 1) // plan.tile
        s = (scalars[0], scalars[1], scalars[2], scalars[3], scalars[4], scalars[5], scalars[6], scalars[7])
        key = keys[0]
        pack_hidden(hidden, plan, room)
        for chunk in prange(plan.chunks):
            own = plan.threads + get_thread_id() * plan.thread
            sums, gained = plan.sums + chunk * batch * plan.wide, plan.losses // 2 + chunk * batch
            start, end = tiles * chunk // plan.chunks, tiles * (chunk + 1) // plan.chunks
            begin(start * plan.tile, indptr, indices, total, pull, plan, own, sums, gained, room)
            for tile in range(start, end):
                first = tile * plan.tile
                n = min(plan.tile, outputs - first)
                load(w, first, n, plan, own, room)
                logits(batch, inputs, n, plan, own, room)
                if sparse and find(bias, first, n, batch, plan, own, room):
                    step_by_few(scale, hidden, indptr, indices, data, w, slots, bias, bias_slots, first, n, s, key,
                                plan, own, sums, gained, room)
                    continue
                save(indptr, indices, first, n, batch, plan, own, room)
                zeros(scale, bias, first, n, largest, batch, plan, own, room)
                settle_losses(gained, batch, plan, own, room)
                correct(scale, indptr, indices, data, bias, first, n, largest, batch, plan, own, gained, room)
                if not learns:
                    continue
                prepare(batch, n, plan, own, room)
                if wanted:
                    to_hidden(batch, inputs, n, plan, own, sums, room)
                to_weights(batch, inputs, n, plan, own, room)
                for c in range(n):
                    learn_bias(first + c, _sum(room.numbers, own + c * plan.long, batch), bias, bias_slots, s)
                    learn(first + c, room.numbers, own + plan.gradient + c * plan.wide, w, slots, s, key)
        for b in prange(batch):
            losses[b] = gather(b, dhidden, plan, room)
    return walk_step


@cache
def _gather(wanted):
    @scalar
    def gather(b, dhidden, plan, room):
        """Add what the chunks have for a row, in their order; returns its loss."""
        batch, inputs = dhidden.shape
        lost = _NOTHING
        for chunk in range(plan.chunks):
            lost += room.doubles[plan.losses // 2 + chunk * batch + b]
            if wanted:
                sums = plan.sums + (chunk * batch + b) * plan.wide
                row, part = dhidden[b], room.numbers[sums:sums + inputs]
                for k in range(inputs):
                    row[k] += part[k]
        return lost
    return gather


@cache
def _unit(output, softmax):
    """(loss, delta, loss if the target were 0) of a logit; for a softmax its largest, share and pull are a row's."""
    activation, value, slope = output.activation, output.value, output.slope

    @scalar
    def unit(z, t, scale, largest, share, pull):
        if softmax:
            y = share * math.exp(z - largest)
            return value(y, t), scale * (slope(y, t) - y * pull), value(y, _ZERO)
        y = activation(z)
        return value(y, t), scale * slope(y, t), value(y, _ZERO)
    return unit


@cache
def _zeros(output, softmax):
    """(zeros, settle_losses): deltas of a tile as if every target were 0, and the losses of each row's."""
    activation, slope, factor, unit = output.activation, output.slope, output.zero_factor, _unit(output, softmax)
    multiplied = factor is not None and not softmax

    @scalar
    def zeros(scale, bias, first, n, largest, batch, plan, own, room):
        rows, numbers = own + plan.rows, room.numbers
        loss, factors = numbers[rows:rows + batch], numbers[rows + plan.long:rows + plan.long + batch]
        share, pull = factors, numbers[rows + 2 * plan.long:rows + 2 * plan.long + batch]
        for c in range(n):
            start = own + c * plan.long
            z, of_unit = numbers[start:start + batch], bias[first + c]
            if multiplied:  # a logarithm costs more than all the rest: take those of products
                if c % _FACTORS == 0:
                    factors[:] = _ONE
                for b in range(batch):
                    y = activation(z[b] + of_unit)
                    z[b] = scale * slope(y, _ZERO)
                    factors[b] *= factor(y)
                if c % _FACTORS == _FACTORS - 1 or c == n - 1:
                    for b in range(batch):
                        loss[b] -= math.log(factors[b])
            elif softmax:
                for b in range(batch):
                    one, z[b], _ = unit(z[b] + of_unit, _ZERO, scale, largest[b], share[b], pull[b])
                    loss[b] += one
            else:
                for b in range(batch):
                    one, z[b], _ = unit(z[b] + of_unit, _ZERO, scale, _ZERO, _ZERO, _ZERO)
                    loss[b] += one

    @scalar
    def settle_losses(gained, batch, plan, own, room):
        rows = own + plan.rows
        loss = room.numbers[rows:rows + batch]
        for b in range(batch):
            room.doubles[gained + b] += np.float64(loss[b])
            loss[b] = _ZERO
    return zeros, settle_losses


@cache
def _targets(output, valued, softmax):
    """(begin, save, correct): nonzero targets, which rows list in the order of their outputs."""
    unit = _unit(output, softmax)

    @scalar
    def begin(first, indptr, indices, total, pull, plan, own, sums, gained, room):
        batch, rows = indptr.shape[0] - 1, own + plan.rows
        room.numbers[sums:sums + batch * plan.wide] = _ZERO
        room.doubles[gained:gained + batch] = _NOTHING
        room.numbers[rows:rows + batch] = _ZERO
        for b in range(batch):
            room.places[rows + 3 * plan.long + b] = _first_from(indices, indptr[b], indptr[b + 1], first)
            if softmax:
                room.numbers[rows + plan.long + b] = 1 / total[b]
                room.numbers[rows + 2 * plan.long + b] = pull[b]

    @scalar
    def save(indptr, indices, first, n, batch, plan, own, room):
        """Their logits, which deltas are about to replace."""
        saved = own + plan.saved
        for b in range(batch):
            k = room.places[own + plan.rows + 3 * plan.long + b]
            while k < indptr[b + 1] and indices[k] < first + n:
                room.numbers[saved] = room.numbers[own + (indices[k] - first) * plan.long + b]
                saved, k = saved + 1, k + 1

    @scalar
    def correct(scale, indptr, indices, data, bias, first, n, largest, batch, plan, own, gained, room):
        saved, rows = own + plan.saved, own + plan.rows
        for b in range(batch):
            most, share, pull = _ZERO, _ZERO, _ZERO
            if softmax:
                most, share = largest[b], room.numbers[rows + plan.long + b]
                pull = room.numbers[rows + 2 * plan.long + b]
            k = room.places[rows + 3 * plan.long + b]
            while k < indptr[b + 1] and indices[k] < first + n:
                z = room.numbers[saved] + bias[indices[k]]
                loss, delta, of_zero = unit(z, data[k] if valued else _ONE, scale, most, share, pull)
                room.doubles[gained + b] += np.float64(loss) - np.float64(of_zero)
                room.numbers[own + (indices[k] - first) * plan.long + b] = delta
                saved, k = saved + 1, k + 1
            room.places[rows + 3 * plan.long + b] = k
    return begin, save, correct


@summing
def _sum(numbers, start, count):
    row, total = numbers[start:start + count], _ZERO
    for b in range(row.shape[0]):
        total += row[b]
    return total


@cache
def _learn(rule, count):
    """The rule on the weights of one output."""
    step, used, decays = rule.rule, rule.numbers, rule.l2 != 0 or rule.l1 != 0
    l2, l1 = np.float32(rule.l2), np.float32(rule.l1)

    @scalar
    def learn(unit, numbers, start, w, slots, s, key):
        row, (low, high) = w[unit], row_key(key, unit)
        gradient = numbers[start:start + row.shape[0]]
        m = slots[0, unit] if count > 0 else row
        v = slots[1, unit] if count > 1 else row
        for k in range(row.shape[0]):
            weight, bits, more = widened(row[k]), random_bits(low, high, k), random_bits(high, low, k)
            g = regularized(gradient[k], weight, l2, l1) if decays else gradient[k]
            weight, first, second = step(weight, g, widened(m[k]) if count > 0 else _ZERO,
                                         widened(v[k]) if count > 1 else _ZERO, s[:used])
            if count > 0:
                m[k] = shortened(first, m[k], more)
            if count > 1:
                v[k] = shortened(second, v[k], more >> _HALF)
            row[k] = shortened(weight, row[k], bits)
    return learn


@cache
def _learn_bias(rule, count):
    step, numbers = rule.rule, rule.numbers

    @scalar
    def learn_bias(unit, gradient, bias, slots, s):
        m = slots[0, unit] if count > 0 else _ZERO
        v = slots[1, unit] if count > 1 else _ZERO
        bias[unit], m, v = step(bias[unit], gradient, m, v, s[:numbers])
        if count > 0:
            slots[0, unit] = m
        if count > 1:
            slots[1, unit] = v
    return learn_bias
