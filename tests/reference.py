"""Every kernel again, in float64 and plain NumPy, written from its docstring's formula. Slow on purpose.

A reference has its kernel's name and arguments, and writes into the same ones. Scalar functions (activations, losses,
optimizer rules) are called number by number.
"""

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


def _list_by_feature(features, indptr, indices, out_indptr, examples, positions):
    place, out_indptr[0] = 0, 0
    for r, feature in enumerate(features):
        for b, k in _entries(indptr):
            if indices[k] == feature:
                examples[place], positions[place] = b, k
                place += 1
        out_indptr[r + 1] = place


# ---- dense.py


def matmul(a, b, c, *, transpose_a=False, transpose_b=False, accumulate=False):
    product = np.einsum("ik,kj->ij", a.T if transpose_a else a, b.T if transpose_b else b)
    c[:] = c + product if accumulate else product


def column_sum(delta, gradient):
    for example in delta:
        gradient += example


# ---- dropout.py


def _kept(key, drop, index):
    return uniform_at(key, index) >= drop


def dropout(key, drop, y, first=0, total=None):
    kept = _kept(key, drop, _indices(y.shape, first, total))
    y[:] = np.where(kept, y / (1 - drop), 0)


def dropped_delta(slope, key, drop, y, delta, first=0, total=None):
    kept = _kept(key, drop, _indices(y.shape, first, total))
    delta[:] = np.where(kept, delta * _each(slope, y * (1 - drop)) / (1 - drop), 0)


def denoise(key, drop, features, indptr, indices, data, noisy):
    values = _values(data, indices)
    for b, k in _entries(indptr):
        index = np.array([(b * int(features) + int(indices[k])) % 2**64], np.uint64)
        noisy[k] = values[k] / (1 - drop) if _kept(key, drop, index)[0] else 0


# ---- loss.py


def loss_sum(value, y, target, out):
    out[:] = _each(value, y, target).sum(axis=1)


def sparse_loss_sum(value, y, indptr, indices, data, out):
    loss_sum(value, y, _dense(y.shape, indptr, indices, data), out)


def output_delta(slope, scale, y, target, delta, accumulate=False):
    delta[:] = (delta if accumulate else 0) + scale * _each(slope, y, target)


def sparse_output_delta(slope, scale, y, indptr, indices, data, delta, accumulate=False):
    output_delta(slope, scale, y, _dense(y.shape, indptr, indices, data), delta, accumulate)


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


def sparse_weight_gradient(features, indptr, examples, positions, data, delta, gradient):
    values = _values(data, positions)
    for r, k in _entries(indptr):
        gradient[features[r]] += values[positions[k]] * delta[examples[k]]


def sparse_update(rule, features, indptr, examples, positions, data, delta, w, slots, l2, l1, scalars, scratch):
    gradient = np.zeros(w.shape)
    sparse_weight_gradient(features, indptr, examples, positions, data, delta, gradient)
    for feature in features:
        update(rule, w[feature], gradient[feature], slots[:, feature], l2, l1, scalars)


# ---- topk.py


def exclude(indptr, indices, scores):
    for b, k in _entries(indptr):
        scores[b, indices[k]] = -math.inf


def top_k(scores, items, values, scratch):
    items[:], values[:] = -1, -math.inf
    for b, row in enumerate(scores):
        candidates = [i for i, score in enumerate(row) if score > -math.inf]
        best = sorted(candidates, key=lambda i: (-row[i], i))[:items.shape[1]]
        items[b, :len(best)], values[b, :len(best)] = best, row[best]


# ---- update.py


def update(rule, w, gradient, slots, l2, l1, scalars):
    g = gradient + l2 * w + l1 * np.sign(w)
    for i in range(len(w)):
        m, v = [*slots[:, i], 0.0, 0.0][:2]
        w[i], m, v = rule(w[i], g[i], m, v, scalars)
        slots[:, i] = [m, v][:len(slots)]
    gradient[:] = 0


def clear(x):
    x[:] = 0
