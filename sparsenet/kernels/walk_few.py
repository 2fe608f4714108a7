"""A tile of the CPU's streaming head with few deltas: each is added to both gradients by itself."""

from functools import cache

import numpy as np

from sparsenet.device import scalar
from sparsenet.vector_loops import above_or_nan, add_both, trailing_zeros

_ZERO, _ONE = np.float32(0), np.float32(1)
_BIT, _NO_BITS, _ALL_BITS = np.uint64(1), np.uint64(0), np.uint64(2**64 - 1)
_FEW = 6  # one delta in so many logits, or less: about where two rows of sums cost as much as their part of a product


@cache
def few_deltas(output, unit, learn, learn_bias, still, valued, weights_of):
    """(find, step_by_few).

    find         marks the logits that may have a delta where the target is 0; False where they are not few
    step_by_few  losses, gradients and the optimizer's step of the tile whose logits `find` has marked
    weights_of   see panels.Products
    """
    quiet = np.float32(output.quiet)

    @scalar
    def find(bias, first, n, batch, plan, own, room):
        most, count = n * batch // _FEW, 0
        thresholds = room.numbers[own + plan.gradient:own + plan.gradient + 64]
        parts = (batch + 63) // 64
        last = _ALL_BITS >> np.uint64(64 * parts - batch)
        for c in range(n):
            thresholds[:] = quiet - bias[first + c]
            for part in range(parts):
                marks = above_or_nan(room.numbers, own + c * plan.long + 64 * part, thresholds, 0)
                if part == parts - 1:
                    marks &= last
                room.bits[(own + plan.active) // 2 + c * parts + part] = marks
                while marks != _NO_BITS:
                    marks &= marks - _BIT
                    count += 1
            if count > most:
                return False
        return True

    @scalar
    def mark_targets(scale, indptr, indices, data, bias, first, n, batch, plan, own, gained, room):
        """Put the deltas of nonzero targets in place of their logits."""
        parts = (batch + 63) // 64
        wanted_bits = (own + plan.wanted) // 2
        room.bits[wanted_bits:wanted_bits + n * parts] = _NO_BITS
        for b in range(batch):
            k = room.places[own + plan.rows + 3 * plan.long + b]
            while k < indptr[b + 1] and indices[k] < first + n:
                c = indices[k] - first
                z = own + c * plan.long + b
                loss, delta, _ = unit(room.numbers[z] + bias[indices[k]], data[k] if valued else _ONE, scale, _ZERO,
                                      _ZERO, _ZERO)
                room.numbers[z] = delta
                room.doubles[gained + b] += np.float64(loss)
                room.bits[wanted_bits + c * parts + b // 64] |= _BIT << np.uint64(b % 64)
                k += 1
            room.places[own + plan.rows + 3 * plan.long + b] = k

    @scalar
    def step_by_few(scale, hidden, indptr, indices, data, w, slots, bias, bias_slots, first, n, s, key, plan, own,
                    sums, gained, room):
        batch, inputs = hidden.shape
        mark_targets(scale, indptr, indices, data, bias, first, n, batch, plan, own, gained, room)
        parts = (batch + 63) // 64
        start = own + plan.gradient
        examples = hidden.reshape(hidden.size)
        for c in range(n):
            room.numbers[start:start + inputs] = _ZERO
            total, weights = _ZERO, weights_of(w, first, c, plan, own, room)
            alone = still
            for part in range(parts):
                targets = room.bits[(own + plan.wanted) // 2 + c * parts + part]
                marks = room.bits[(own + plan.active) // 2 + c * parts + part] | targets
                while marks != _NO_BITS:
                    place = np.int64(trailing_zeros(marks))
                    b = 64 * part + place
                    marks &= marks - _BIT
                    delta = room.numbers[own + c * plan.long + b]
                    if (targets >> np.uint64(place)) & _BIT == _NO_BITS:
                        loss, delta, _ = unit(delta + bias[first + c], _ZERO, scale, _ZERO, _ZERO, _ZERO)
                        room.doubles[gained + b] += np.float64(loss)
                    if delta != _ZERO:
                        alone = False
                        total += delta
                        add_both(room.numbers, start, examples, b * inputs, room.numbers, sums + b * plan.wide,
                                 room.numbers, weights, delta, inputs)
            if not alone:
                learn_bias(first + c, total, bias, bias_slots, s)
                learn(first + c, room.numbers, start, w, slots, s, key)
    return find, step_by_few
