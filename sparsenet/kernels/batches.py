"""Cutting batches out of a CSR matrix, and turning them by feature. These run on the host, serially, in fixed order."""

from sparsenet.device import Array, run_on_host
from sparsenet.shapes import check


def gather_rows(rows: Array, indptr: Array, indices: Array, data: Array, out_indptr: Array, out_indices: Array,
                out_data: Array) -> None:
    """Rows `rows` of a CSR matrix, in that order, as a CSR matrix.

    rows                       (batch) int64                        in
    indptr, indices, data      CSR; data of length 0: all ones      in
    out_indptr                 (batch + 1) int64                    out
    out_indices, out_data      at least as long as the rows need    out
    """
    check(rows=(rows, "batch"))
    run_on_host(_gather_rows, rows, indptr, indices, data, out_indptr, out_indices, out_data)


def _gather_rows(rows, indptr, indices, data, out_indptr, out_indices, out_data):
    end = 0
    out_indptr[0] = 0
    for b in range(rows.shape[0]):
        for k in range(indptr[rows[b]], indptr[rows[b] + 1]):
            out_indices[end] = indices[k]
            if data.shape[0] > 0:
                out_data[end] = data[k]
            end += 1
        out_indptr[b + 1] = end


def transpose(indptr: Array, indices: Array, count: Array, features: Array, out_indptr: Array, examples: Array,
              positions: Array, touched: Array) -> None:
    """The batch by feature: entries of features[r] are out_indptr[r] to out_indptr[r + 1] of examples and positions.

    Features stand in the order in which the batch first names them, entries in the order of the batch.

    indptr, indices      CSR of the batch                                      in
    count                (all features) int64, zeros on entry and on return    -
    features             (>= distinct features) int32                          out
    out_indptr           (>= distinct features + 1) int64                      out
    examples, positions  (>= nonzeros) int32                                   out  row, and place in `indices`
    touched              (1) int64                                             out  number of distinct features
    """
    run_on_host(_transpose, indptr, indices, count, features, out_indptr, examples, positions, touched)


def _transpose(indptr, indices, count, features, out_indptr, examples, positions, touched):
    rows = indptr.shape[0] - 1
    distinct = 0
    for k in range(indptr[rows]):
        f = indices[k]
        if count[f] == 0:
            features[distinct] = f
            distinct += 1
        count[f] += 1
    out_indptr[0] = 0
    for r in range(distinct):  # from here on, count says where a feature's next entry goes
        f = features[r]
        out_indptr[r + 1] = out_indptr[r] + count[f]
        count[f] = out_indptr[r]
    for b in range(rows):
        for k in range(indptr[b], indptr[b + 1]):
            place = count[indices[k]]
            examples[place], positions[place] = b, k
            count[indices[k]] += 1
    for r in range(distinct):
        count[features[r]] = 0
    touched[0] = distinct


def transpose_all(indptr: Array, indices: Array, out_indptr: Array, examples: Array, positions: Array) -> None:
    """As `transpose`, for every feature in order, those without entries included.

    out_indptr  (all features + 1) int64  out
    """
    run_on_host(_transpose_all, indptr, indices, out_indptr, examples, positions)


def _transpose_all(indptr, indices, out_indptr, examples, positions):
    rows = indptr.shape[0] - 1
    out_indptr[:] = 0
    for k in range(indptr[rows]):
        out_indptr[indices[k] + 1] += 1
    for f in range(out_indptr.shape[0] - 1):
        out_indptr[f + 1] += out_indptr[f]
    for b in range(rows):
        for k in range(indptr[b], indptr[b + 1]):
            place = out_indptr[indices[k]]
            examples[place], positions[place] = b, k
            out_indptr[indices[k]] += 1
    for f in range(out_indptr.shape[0] - 1, 0, -1):
        out_indptr[f] = out_indptr[f - 1]
    out_indptr[0] = 0
