"""Every kernel again, in float64 and plain NumPy, written from its docstring's formula. Slow on purpose.

A reference has its kernel's name and arguments, and writes into the same ones. Scalar functions (activations, losses,
optimizer rules) are called number by number.
"""

import bisect
import itertools
import math

import numpy as np


def _each(function, *arrays):
    """A function of numbers, applied to every element."""
    return np.vectorize(function, otypes=[np.float64])(*arrays) if arrays[0].size else np.zeros(arrays[0].shape)


def _values(data, indices):
    return np.ones(len(indices)) if data is None else data


def _entries(indptr):
    """(row, position) of every nonzero."""
    return [(b, k) for b in range(len(indptr) - 1) for k in range(indptr[b], indptr[b + 1])]


def _dense(shape, indptr, indices, data):
    """A target without repeated entries, as a dense array."""
    target = np.zeros(shape)
    values = _values(data, indices)
    for b, k in _entries(indptr):
        target[b, indices[k]] = values[k]
    return target


# ---- activation.py


def activate(value, bias, y):
    y[:] = _each(value, y + bias)


def hidden_delta(slope, y, delta):
    delta *= _each(slope, y)


# ---- batches.py


def gather_rows(rows, indptr, indices, data, out_indptr, out_indices, out_data):
    entries = [range(indptr[row], indptr[row + 1]) for row in rows]
    out_indptr[:] = [sum(len(entry) for entry in entries[:b]) for b in range(len(rows) + 1)]
    picked = [k for entry in entries for k in entry]
    out_indices[:len(picked)] = indices[picked]
    if len(data):
        out_data[:len(picked)] = data[picked]


def transpose(indptr, indices, count, features, out_indptr, examples, positions, touched):
    named = list(dict.fromkeys(indices[:indptr[-1]].tolist()))
    _list_by_feature(named, indptr, indices, out_indptr, examples, positions)
    features[:len(named)] = named
    touched[0] = len(named)


def transpose_all(indptr, indices, out_indptr, examples, positions):
    _list_by_feature(range(len(out_indptr) - 1), indptr, indices, out_indptr, examples, positions)


def sorted_transpose(total, indptr, indices, scratch_counts, scratch_keys, features, out_indptr, examples, positions,
                     touched):
    named = sorted(set(indices[:indptr[-1]].tolist()))
    _list_by_feature(named, indptr, indices, out_indptr, examples, positions)
    features[:len(named)] = named
    touched[0] = len(named)


def sorted_transpose_all(indptr, indices, scratch_counts, scratch_keys, out_indptr, examples, positions):
    transpose_all(indptr, indices, out_indptr, examples, positions)


def _list_by_feature(features, indptr, indices, out_indptr, examples, positions):
    entries = {feature: [] for feature in features}
    for b, k in _entries(indptr):
        entries[int(indices[k])].append((b, k))
    out_indptr[:len(entries) + 1] = np.cumsum([0] + [len(listed) for listed in entries.values()])
    for place, (b, k) in enumerate(entry for listed in entries.values() for entry in listed):
        examples[place], positions[place] = b, k


# ---- dense.py


def rounded(x, precision):
    """To 10 bits of fraction, ties away from zero, or to 7 bits, ties to even: as tensor cores want it."""
    fraction, exponent = np.frexp(x)
    if precision == "tf32":
        fraction = np.trunc(fraction * 2**11 + np.copysign(0.5, x)) / 2**11
    elif precision == "bfloat16":
        fraction = np.rint(fraction * 2**8) / 2**8
    return np.ldexp(fraction, exponent)


def _product(a, b, transpose_a, transpose_b, precision):
    a, b = rounded(a, precision), rounded(b, precision)
    return np.einsum("ik,kj->ij", a.T if transpose_a else a, b.T if transpose_b else b)


def matmul(a, b, c, *, transpose_a=False, transpose_b=False, accumulate=False, precision="float32", scratch=None):
    product = _product(a, b, transpose_a, transpose_b, precision)
    c[:] = c + product if accumulate else product


def matmul_activate(value, a, b, bias, c, *, transpose_b=False, accumulate=False, precision="float32", scratch=None):
    c[:] = _each(value, _product(a, b, False, transpose_b, precision) + bias + (c if accumulate else 0))


def column_sum(delta, gradient):
    for example in delta:
        gradient += example


# ---- dropout.py


def _kept(key, drop, index):
    return uniform_at(key, index) >= drop


def dropout(keys, drop, y, first=0, total=None):
    kept = _kept(keys[0], drop, _indices(y.shape, first, total))
    y[:] = np.where(kept, y / (1 - drop), 0)


def dropped_delta(slope, keys, drop, y, delta, first=0, total=None):
    kept = _kept(keys[0], drop, _indices(y.shape, first, total))
    delta[:] = np.where(kept, delta * _each(slope, y * (1 - drop)) / (1 - drop), 0)


def denoise(keys, drop, features, indptr, indices, data, noisy):
    values = _values(data, indices)
    for b, k in _entries(indptr):
        index = np.array([(b * int(features) + int(indices[k])) % 2**64], np.uint64)
        noisy[k] = values[k] / (1 - drop) if _kept(keys[0], drop, index)[0] else 0


# ---- exchange.py


def _pieces(batch, bounds):
    """(first unit, end, part of the buffer) of every rank."""
    return [(first, end, slice(batch * first, batch * end)) for first, end in itertools.pairwise(bounds)]


def pack(y, bounds, buffer):
    for first, end, piece in _pieces(len(y), bounds):
        buffer[piece] = y[:, first:end].ravel()


def unpack(buffer, bounds, y):
    for first, end, piece in _pieces(len(y), bounds):
        y[:, first:end] = buffer[piece].reshape(len(y), end - first)


def unpack_add(pieces, y):
    for partial in pieces:
        y += partial


# ---- head.py


def head_step(output, rule, scale, hidden, indptr, indices, data, largest, total, pull, scalars, w, slots, bias,
              bias_gradient, bias_slots, dhidden, losses, room, scratch):
    activation, value, slope, *_ = output
    rule, numbers, l2, l1, _ = rule
    delta = hidden @ w.T + bias
    if largest is None:
        delta = _each(activation, delta)
    panel_delta(value, slope, scale, 0, indptr, indices, data, largest, total, pull, delta, losses)
    if dhidden is not None:
        dhidden += delta @ w
    update(rule, w.reshape(-1), (delta.T @ hidden).reshape(-1), slots.reshape(len(slots), w.size), l2, l1, scalars,
           numbers)
    update(rule, bias, delta.sum(axis=0), bias_slots, 0, 0, scalars, numbers)


def head_sums(hidden, w, bias, largest, total, room, scratch):
    softmax_sums(hidden @ w.T + bias, largest, total)


def head_pull(slope, hidden, indptr, indices, data, largest, total, w, bias, pull, room, scratch):
    z = hidden @ w.T + bias
    panel_delta(slope, slope, 1.0, 0, indptr, indices, data, largest, total, None, z, pull, keep=True)


def walk_step(output, rule, scale, hidden, indptr, indices, data, largest, total, pull, scalars, w, slots, bias,
              bias_slots, dhidden, losses, room):
    head_step(output, rule, scale, hidden, indptr, indices, data, largest, total, pull, scalars, w, slots, bias, None,
              bias_slots, dhidden, losses, room, None)


def walk_sums(hidden, w, bias, largest, total, room):
    head_sums(hidden, w, bias, largest, total, room, None)


def walk_pull(slope, hidden, indptr, indices, data, largest, total, w, bias, pull, room):
    head_pull(slope, hidden, indptr, indices, data, largest, total, w, bias, pull, room, None)


def walk_top_k(activation, hidden, w, bias, indptr, indices, items, values, room):
    head_top_k(activation, hidden, w, bias, indptr, indices, items, values, None, room, None)


def target_pull(slope, indptr, data, pull):
    values = np.ones(indptr[-1]) if data is None else data
    for b in range(len(pull)):
        pull[b] = sum(slope(1.0, t) for t in values[indptr[b]:indptr[b + 1]])


def head_top_k(activation, hidden, w, bias, indptr, indices, items, values, scratch_items, room, scratch):
    y = _each(activation, hidden @ w.T + bias)
    if indptr is not None:
        exclude(indptr, indices, y)
    top_k(y, items, values)


# ---- idle.py


def catch_up(idle, features, touched, made, table, w, slots, seen, numbers):
    for f in () if not w.size else range(len(w)) if features is None else features[:touched[0]]:
        if seen[f] < made[0]:
            for u in range(w.shape[1]):
                m, v = [*slots[:, f, u], 0.0, 0.0][:2]
                w[f, u], m, v = idle(w[f, u], m, v, tuple(table[seen[f], :numbers]))
                slots[:, f, u] = [m, v][:len(slots)]
        seen[f] = 0 if features is None else made[0] + 1


# ---- loss.py


def loss_sum(value, y, target, out):
    out[:] = _each(value, y, target).sum(axis=1)


def sparse_loss_sum(value, y, indptr, indices, data, out):
    loss_sum(value, y, _dense(y.shape, indptr, indices, data), out)


def output_delta(slope, scale, y, target, delta, accumulate=False):
    delta[:] = (delta if accumulate else 0) + scale * _each(slope, y, target)


def sparse_output_delta(slope, scale, y, indptr, indices, data, delta, accumulate=False):
    output_delta(slope, scale, y, _dense(y.shape, indptr, indices, data), delta, accumulate)


def panel_delta(value, slope, scale, first, indptr, indices, data, largest, total, pull, y, out, keep=False):
    end = first + y.shape[1]
    target = _dense((len(y), max([end, *(indices + 1)])), indptr, indices, data)[:, first:end]
    activations = y if largest is None else np.exp(y - largest[:, None]) / total[:, None]
    out[:] = (out if first > 0 else 0) + _each(value, activations, target).sum(axis=1)
    if not keep:
        pulled = 0 if largest is None else activations * pull[:, None]
        y[:] = scale * (_each(slope, activations, target) - pulled)


# ---- random.py


def _indices(shape, first, total):
    batch, units = shape
    total = units if total is None else total
    numbers = [[(b * int(total) + int(first) + u) % 2**64 for u in range(units)] for b in range(batch)]
    return np.array(numbers, np.uint64).reshape(shape)


def philox(key, counter):
    """Philox4x32-10 as in its paper: counter (4, ...) and key (2, ...) of 32-bit words held in uint64 -> (4, ...)."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    left, key_l, right, key_r = counter[0], key[0], counter[2], key[1]
    left_xor, right_xor = counter[1], counter[3]
    for _ in range(10):
        with np.errstate(over="ignore"):
            product_l, product_r = left * np.uint64(0xD2511F53), right * np.uint64(0xCD9E8D57)
        left, left_xor, right, right_xor = ((product_r >> half) ^ left_xor ^ key_l, product_r & low,
                                            (product_l >> half) ^ right_xor ^ key_r, product_l & low)
        key_l, key_r = (key_l + np.uint64(0x9E3779B9)) & low, (key_r + np.uint64(0xBB67AE85)) & low
    return np.stack(np.broadcast_arrays(left, left_xor, right, right_xor))


def words(key, index):
    """(4, ...) random words of the numbers `index` of a stream."""
    low, half, zero = np.uint64(0xFFFFFFFF), np.uint64(32), np.zeros_like(index)
    key = np.uint64(key)
    return philox((key & low, key >> half), (index & low, index >> half, zero, zero))


def uniform_at(key, index):
    """The upper 24 of the first word's bits, as a fraction."""
    return (words(key, index)[0] >> np.uint64(8)) / 2.0**24


def box_muller(key, index):
    """(radius, cosine) of Box and Muller, u = (word 0 + 1/2) / 2^32, v = word 1 / 2^32."""
    word_0, word_1, _, _ = words(key, index)
    return np.sqrt(-2 * np.log((word_0 + 0.5) / 2.0**32)), np.cos(2 * np.pi * (word_1 / 2.0**32))


def uniform(key, out, first=0, total=None):
    out[:] = uniform_at(key, _indices(out.shape, first, total))


def normal(key, out, first=0, total=None):
    radius, cosine = box_muller(key, _indices(out.shape, first, total))
    out[:] = radius * cosine


# ---- rows.py


def row_sum(y, out):
    for b, row in enumerate(y):
        out[b] = math.fsum(row)


def row_max(y, out):
    for b, row in enumerate(y):
        out[b] = max(row, default=-math.inf)


def reduce_rows(term, combine, start, y, t, out):
    for b in range(len(y)):
        total = start
        for u in range(y.shape[1]):
            total = combine(total, term(y[b, u], t[b, u]))
        out[b] = total


def softmax_sums(y, largest, total, accumulate=False):
    for b, row in enumerate(y):
        before = [(largest[b], total[b])] if accumulate else []
        largest[b] = max([*row, *(most for most, _ in before)], default=np.finfo(np.float32).min)
        total[b] = math.fsum([*np.exp(row - largest[b]), *(old * np.exp(most - largest[b]) for most, old in before)])


def softmax_rescale(local, largest, total):
    total *= np.exp(local - largest)


def softmax(largest, total, y):
    y[:] = np.exp(y - largest[:, None]) / total[:, None]


def row_exp(largest, y):
    y[:] = np.exp(y - largest[:, None])


def row_divide(divisor, y):
    y /= divisor[:, None]


def softmax_pull(y, delta):
    delta *= y


def softmax_delta(total, y, delta):
    delta -= y * total[:, None]


# ---- sparse.py


def sparse_forward(indptr, indices, data, weight, y, accumulate=False):
    values = _values(data, indices)
    if not accumulate:
        y[:] = 0
    for b, k in _entries(indptr):
        y[b] += values[k] * weight[indices[k]]


def sparse_weight_gradient(features, indptr, examples, positions, touched, data, delta, gradient):
    values = _values(data, positions)
    for r, k in _entries(indptr[:touched[0] + 1]):
        gradient[features[r]] += values[positions[k]] * delta[examples[k]]


def sparse_update(rule, features, indptr, examples, positions, touched, data, delta, w, slots, l2, l1, scalars,
                  numbers, scratch):
    gradient = np.zeros(w.shape)
    sparse_weight_gradient(features, indptr, examples, positions, touched, data, delta, gradient)
    for feature in features[:touched[0]]:
        update(rule, w[feature], gradient[feature], slots[:, feature], l2, l1, scalars, numbers)


# ---- tiles.py


def multiply(epilogue, a, b, bias, numbers, x, y, z, scratch, *, transpose_a=False, transpose_b=False, x_columns=None,
             precision="float32"):
    function, reads, writes = epilogue
    first = x_columns[0] if x_columns else 0
    planes = {"x": x, "y": y, "z": z}
    chosen = (0.0,) * 8 if numbers is None else tuple(numbers)
    for (i, j), total in np.ndenumerate(_product(a, b, transpose_a, transpose_b, precision)):
        place = i, first + j
        old = [planes[name][place] if name in reads else 0.0 for name in "xyz"]
        new = function(total, 0.0 if bias is None else bias[j], *old, chosen)
        for name, value in zip("xyz", new, strict=True):
            if name in writes:
                planes[name][place] = value


# ---- topk.py


def exclude(indptr, indices, scores):
    for b, k in _entries(indptr):
        scores[b, indices[k]] = -math.inf


def score_items(activation, hidden, w, bias, items, values):
    for b, j in np.ndindex(items.shape):
        item = items[b, j]
        values[b, j] = activation(hidden[b] @ w[item] + bias[item]) if item >= 0 else -math.inf


def top_k(scores, items, values):
    items[:], values[:] = -1, -math.inf
    for b, row in enumerate(scores):
        candidates = [i for i, score in enumerate(row) if score > -math.inf]
        best = sorted(candidates, key=lambda i: (-row[i], i))[:items.shape[1]]
        items[b, :len(best)], values[b, :len(best)] = best, row[best]


# ---- update.py


def update(rule, w, gradient, slots, l2, l1, scalars, numbers):
    g = gradient + l2 * w + l1 * np.sign(w)
    for i in range(len(w)):
        m, v = [*slots[:, i], 0.0, 0.0][:2]
        w[i], m, v = rule(w[i], g[i], m, v, tuple(scalars[:numbers]))
        slots[:, i] = [m, v][:len(slots)]
    gradient[:] = 0


def clear(x):
    x[:] = 0


# ---- sampling.py


def _starts(outputs, starts):
    """Cells of the units; where all are equally likely, a point p belongs to unit p outputs / 2^32, rounded down."""
    return [-(-(u << 32) // outputs) for u in range(outputs + 1)] if starts is None else starts.tolist()


def draw(keys, negatives, outputs, starts, indptr, indices, out_indptr, out_indices):
    cells = _starts(outputs, starts)
    for i, word in enumerate(words(keys[0], np.arange(negatives, dtype=np.uint64))[0]):
        out_indices[i] = bisect.bisect_right(cells, ((i << 32) + int(word)) // negatives) - 1
    out_indices[negatives:negatives + indptr[-1]] = indices[:indptr[-1]]
    out_indptr[:] = [0, *(negatives + indptr)]


def weigh(negatives, outputs, starts, shares, batch, features, by_indptr, positions, touched, weights, own, places):
    cells = _starts(outputs, starts)
    weights[:], own[:] = 0, 1
    for r in range(touched[0]):
        unit, entries = features[r], positions[by_indptr[r]:by_indptr[r + 1]]
        drawn, average = sum(entries < negatives), negatives * (cells[unit + 1] - cells[unit]) / 2**32
        if shares is not None:
            drawn, average = len(entries), average + (batch - 1) * shares[unit]
        if drawn:
            weights[r] = drawn / average
        if average:
            own[r] = 1 / average
        for place in entries[entries >= negatives]:
            places[place - negatives] = r


def target_logits(indptr, places, hidden, panel, bias, logits):
    for b, k in _entries(indptr):
        logits[k] = hidden[b] @ panel[places[k]] + bias[places[k]]


def target_gradient(negatives, by_indptr, examples, positions, touched, delta, hidden, gradient, bias_gradient):
    for r in range(touched[0]):
        for k in range(by_indptr[r], by_indptr[r + 1]):
            if positions[k] >= negatives:
                gradient[r] += delta[positions[k] - negatives] * hidden[examples[k] - 1]
                bias_gradient[r] += delta[positions[k] - negatives]


def update_rows(rule, units, touched, gradient, w, slots, l2, l1, scalars, numbers):
    for r, unit in enumerate(units[:touched[0]]):
        update(rule, w[unit], gradient[r].copy(), slots[:, unit], l2, l1, scalars, numbers)


# ---- sampled_loss.py


def sampled_delta(output, softmax, scale, indptr, data, places, weights, own, bias, y, targets, losses):
    activation, value, slope = (getattr(function, "py_func", function) for function in output[:3])
    values = _values(data, targets)
    for b in range(len(losses)):
        of_row = slice(indptr[b], indptr[b + 1])
        negative = (weights[:y.shape[1]] > 0) & ~np.isin(np.arange(y.shape[1]), places[of_row])
        of_zeros, z = weights[:y.shape[1]][negative], (y[b] + bias[:y.shape[1]])[negative]
        if softmax:
            weighted = np.exp(targets[of_row]) * (1 if own is None else own[places[of_row]])
            shares = np.concatenate([weighted, of_zeros * np.exp(z)])
            shares /= shares.sum() if len(shares) else 1
            mine, others = shares[:len(weighted)], shares[len(weighted):]
            pull = sum(slope(a, t) for a, t in zip(mine, values[of_row], strict=True))
            losses[b], of_others = 0, -pull * others
        else:
            mine, others, pull = _each(activation, targets[of_row]), _each(activation, z), 0
            losses[b] = (of_zeros * _each(value, others, np.zeros_like(z))).sum()
            of_others = of_zeros * _each(slope, others, np.zeros_like(z))
        losses[b] += _each(value, mine, values[of_row]).sum()
        targets[of_row] = scale * (_each(slope, mine, values[of_row]) - mine * pull)
        y[b] = 0
        y[b, negative] = scale * of_others


# ---- factored.py


def take_rows(units, epochs, products, w, bias, rows):
    for r, unit in enumerate(units):
        rows[r] = np.append(w[unit], bias[unit]) @ products[epochs[unit]]


def keep_rows(units, epoch, epochs, w, bias, rows):
    w[units], bias[units], epochs[units] = rows[:, :-1], rows[:, -1], epoch


def factored_loss(indptr, data, hidden, images, aims, losses):
    values = _values(data, np.zeros(indptr[-1]))
    for b in range(len(losses)):
        squares = (values[indptr[b]:indptr[b + 1]]**2).sum()
        losses[b] = (hidden[b] @ images[b] - 2 * hidden[b] @ aims[b] + squares) / 2
