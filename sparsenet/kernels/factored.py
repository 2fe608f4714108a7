"""Rows of a factored matrix: weights of which most rows wait for the products that they are to be multiplied by.

Row u of the weights is (w[u], bias[u]) products[epochs[u]]: a row that is seldom named is multiplied when it is, not in
every step. See sparsenet/factored.py.
"""

import numpy as np
from numba import prange

from sparsenet.device import Array, launch, run_on_host
from sparsenet.shapes import check

_NOTHING, _HALF = np.float64(0), np.float64(0.5)


def take_rows(units: Array, epochs: Array, products: Array, w: Array, bias: Array, rows: Array) -> None:
    """rows[r] = (w[u], bias[u]) products[epochs[u]] with u = units[r], in float64; host arrays.

    units     (count) int32                       in   distinct
    epochs    (outputs) int32                     in   which product a row waits for
    products  (epochs, width, width) float64      in   width = inputs + 1
    w         (outputs, inputs) float32           in
    bias      (outputs) float32                   in
    rows      (count, width) float64              out
    """
    check(units=(units, "count"), rows=(rows, "count width"), products=(products, "all width width"),
          w=(w, "outputs inputs"), bias=(bias, "outputs"), epochs=(epochs, "outputs"))
    _check_width(w, rows)
    run_on_host(_take_rows, units, epochs, products, w, bias, rows)


def _check_width(w, rows):
    if rows.shape[1] != w.shape[1] + 1:
        raise ValueError(f"rows: expected {w.shape[1] + 1} columns, one more than w has, got {rows.shape[1]}")


def _take_rows(units, epochs, products, w, bias, rows):
    for r in prange(units.shape[0]):
        u = units[r]
        product, row, last = products[epochs[u]], rows[r], w.shape[1]
        for j in range(row.shape[0]):
            row[j] = np.float64(bias[u]) * product[last, j]
        for i in range(last):
            x = np.float64(w[u, i])
            for j in range(row.shape[0]):
                row[j] += x * product[i, j]


def keep_rows(units: Array, epoch: int, epochs: Array, w: Array, bias: Array, rows: Array) -> None:
    """w[u], bias[u] = rows[r] with u = units[r], rounded to what w holds, epochs[u] = epoch; rows are what is kept.

    Arrays as for `take_rows`; epochs, w and bias are outputs, rows (count, width) float64 inout.
    """
    size = check(units=(units, "count"), rows=(rows, "count width"), w=(w, "outputs inputs"), bias=(bias, "outputs"),
                 epochs=(epochs, "outputs"))
    _check_width(w, rows)
    launch(_keep_rows, (size.count, size.width), units, epoch, epochs, w, bias, rows)


def _keep_rows(r, j, units, epoch, epochs, w, bias, rows):
    u = units[r]
    if j < w.shape[1]:
        w[u, j] = rows[r, j]
        rows[r, j] = w[u, j]
    else:
        bias[u] = rows[r, j]
        rows[r, j] = bias[u]
        epochs[u] = epoch


def factored_loss(indptr: Array, data: Array | None, hidden: Array, images: Array, aims: Array, losses: Array) -> None:
    """losses[b] = (h . Q h - 2 h . p + sum_k t_k^2) / 2, which is |W h - t|^2 / 2 for Q = W' W and p = W' t.

    indptr  (batch + 1) int64           in
    data    (nonzeros) float32          in   targets t; None: all ones
    hidden  (batch, width) float64      in   h
    images  (batch, width) float64      in   Q h
    aims    (batch, width) float64      in   p
    losses  (batch) float64             out
    """
    size = check(hidden=(hidden, "batch width"), images=(images, "batch width"), aims=(aims, "batch width"),
                 losses=(losses, "batch"))
    body = _loss_of_ones if data is None else _loss
    launch(body, (size.batch,), indptr, hidden if data is None else data, hidden, images, aims, losses)


def _loss(b, indptr, data, hidden, images, aims, losses):
    total = _NOTHING
    for k in range(indptr[b], indptr[b + 1]):
        total += np.float64(data[k]) * np.float64(data[k])
    for j in range(hidden.shape[1]):
        total += hidden[b, j] * (images[b, j] - aims[b, j] - aims[b, j])
    losses[b] = _HALF * total


def _loss_of_ones(b, indptr, data, hidden, images, aims, losses):
    total = np.float64(indptr[b + 1] - indptr[b])
    for j in range(hidden.shape[1]):
        total += hidden[b, j] * (images[b, j] - aims[b, j] - aims[b, j])
    losses[b] = _HALF * total
