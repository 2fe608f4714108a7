"""The door: every matrix that enters sparsenet passes `canonical`; a `Dataset` names one that has.

SciPy does not look at index arrays it is given, and compiled kernels trust them: one bad column number reads
or writes foreign memory. So they are checked here, once, in time linear in the number of stored entries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Matrix = sp.csr_array | NDArray[np.float32]

MAX_FEATURES = 2**31 - 1  # column indices are int32


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named matrix with one example a row, and how much each example counts.

    The matrix is brought into canonical form (see `canonical`), except that a sparse one keeps index arrays
    of one type, so that all of SciPy works on it. Raises what `canonical` raises, and ValueError if the name
    is empty or the weights are not one finite number >= 0 for each example.
    """

    #: What messages and files call it.
    name: str
    #: (examples, features): CSR of bool or float32, or a C-contiguous float32 array.
    matrix: Matrix
    #: (examples,) float32, or None if every example counts 1.
    weights: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or "\0" in self.name:
            raise ValueError(f"name: got {self.name!r}, expected a string that is not empty and holds no NUL")
        matrix = canonical(self.matrix, self.name)
        object.__setattr__(self, "matrix", scipy_csr(matrix) if sp.issparse(matrix) else matrix)
        if self.weights is not None:
            object.__setattr__(self, "weights", self._check_weights(self.weights))

    def _check_weights(self, weights: Any) -> NDArray[np.float32]:
        weights = np.asarray(weights)
        if weights.shape != (self.examples,) or weights.dtype.kind not in "biuf":
            raise ValueError(
                f"{self.name}: weights: got {weights.dtype} of shape {weights.shape}, expected one number "
                f"for each of the {self.examples} examples"
            )
        with np.errstate(over="ignore"):
            result = np.ascontiguousarray(weights, dtype=np.float32)
        bad = ~(np.isfinite(result) & (result >= 0))
        if bad.any():
            row = int(bad.argmax())
            raise ValueError(f"{self.name}: weights: row {row} is {weights[row]}, expected finite and >= 0")
        return result

    @property
    def shape(self) -> tuple[int, int]:
        """(examples, features)."""
        return self.examples, self.features

    @property
    def examples(self) -> int:
        """Number of rows."""
        return int(self.matrix.shape[0])

    @property
    def features(self) -> int:
        """Number of columns."""
        return int(self.matrix.shape[1])

    @property
    def sparse(self) -> bool:
        """True if the matrix is CSR."""
        return bool(sp.issparse(self.matrix))

    @property
    def boolean(self) -> bool:
        """True if the matrix says only which features an example has, not how much of them."""
        return self.matrix.dtype == np.bool_


def canonical(matrix: Any, name: str = "X") -> Matrix:
    """`matrix` in the one form that kernels take; `name` is what errors call it.

    Any SciPy sparse matrix becomes a csr_array:

        data     (nonzeros,)      bool or float32, finite; no explicit zeros
        indices  (nonzeros,)      int32, strictly increasing within a row: duplicates are summed (bool: or-ed)
        indptr   (examples + 1,)  int64

    Anything else with two axes becomes a C-contiguous float32 array (examples, features). Of a Dataset its
    matrix is taken. Integers and float64 are rounded to float32. Nothing of the caller's is modified, and an
    array is copied only where it must change; a matrix in canonical form is returned as it is.

    The two index types differ because a batch may hold more than 2^31 nonzeros of fewer columns. SciPy
    multiplies and slices such a matrix, but refuses its `tocoo` and `nonzero`: there use `scipy_csr(matrix)`.

    Raises TypeError if the type is not real numbers or bool, or if values are masked; ValueError if it does
    not have two axes, has no rows, no columns or more than 2^31 - 1 columns, holds NaN, infinity or a value
    that overflows float32, or if the index arrays of a sparse matrix contradict themselves or its shape.
    """
    if isinstance(matrix, Dataset):
        matrix = matrix.matrix
    return _sparse(matrix, name) if sp.issparse(matrix) else _dense(matrix, name)


def scipy_csr(matrix: sp.csr_array) -> sp.csr_array:
    """`matrix` with index arrays of one type, as all of SciPy needs it; shares the other arrays."""
    return sp.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)


def select_entries(matrix: sp.csr_array, kept: NDArray[np.bool_]) -> sp.csr_array:
    """The stored entries of a CSR matrix where `kept` (nonzeros,) is true, in a matrix of the same shape."""
    kept_before = np.concatenate(([0], np.cumsum(kept)))
    arrays = (matrix.data[kept], matrix.indices[kept], kept_before[matrix.indptr])
    return sp.csr_array(arrays, shape=matrix.shape)


def _dense(matrix: Any, name: str) -> NDArray[np.float32]:
    if isinstance(matrix, np.ma.MaskedArray):
        raise TypeError(f"{name}: got a masked array, expected plain numbers: fill its masked values first")
    try:
        values = np.asarray(matrix)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{name}: not a matrix: {error}") from None
    _check_type(values.dtype, name)
    _check_shape(values.shape, name)
    return _float32(values, name, lambda entry: divmod(entry, values.shape[1]))


def _sparse(matrix: Any, name: str) -> sp.csr_array:
    _check_type(matrix.dtype, name)
    _check_shape(matrix.shape, name)
    summed = _type_of_sums(matrix.dtype)
    csr = matrix
    if matrix.format != "csr":
        _check_indices(matrix, name)
        csr = matrix.astype(summed).tocsr()
    _check_compressed(name, csr, csr.shape, ("row", "column"))

    data, indices, indptr = csr.data.astype(summed, copy=False), csr.indices, csr.indptr
    if not (_increasing(indices, indptr) and data.all()):
        clean = sp.csr_array((data, indices, indptr), shape=csr.shape, copy=True)
        clean.sum_duplicates()
        clean.eliminate_zeros()
        data, indices, indptr = clean.data, clean.indices, clean.indptr

    def where(entry: int) -> tuple[int, int]:
        return int(np.searchsorted(indptr, entry, side="right")) - 1, int(indices[entry])

    result = sp.csr_array(csr.shape, dtype=np.bool_ if summed == np.bool_ else np.float32)
    result.data = np.ascontiguousarray(data) if summed == np.bool_ else _float32(data, name, where)
    result.indices = np.ascontiguousarray(indices, dtype=np.int32)
    result.indptr = np.ascontiguousarray(indptr, dtype=np.int64)
    same = all(getattr(result, a) is getattr(matrix, a, None) for a in ("data", "indices", "indptr"))
    return matrix if same and isinstance(matrix, sp.csr_array) else result


def _type_of_sums(dtype: np.dtype) -> np.dtype:
    """The type in which duplicates are summed: small integers would wrap, wide floats lose digits."""
    if dtype.kind == "b" or (dtype.kind == "f" and dtype.itemsize >= 4):
        return dtype.newbyteorder("=")
    return np.dtype(np.float32)


def _float32(values: NDArray[Any], name: str, where: Callable[[int], tuple[int, int]]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # reported below, with its place
        result = np.ascontiguousarray(values, dtype=np.float32)
    finite = np.isfinite(result)
    if not finite.all():
        entry = int(finite.argmin())
        row, column = where(entry)
        value = values.flat[entry]
        problem = "more than float32 can hold" if np.isfinite(value) else "expected a finite number"
        raise ValueError(f"{name}: row {row}, column {column} is {value}, {problem}")
    return result


def _check_type(dtype: np.dtype, name: str) -> None:
    if dtype.kind not in "biuf":
        raise TypeError(f"{name}: got values of type {dtype}, expected bool, integers or real floats")


def _check_shape(shape: tuple[int, ...], name: str) -> None:
    if len(shape) != 2:
        raise ValueError(f"{name}: got {len(shape)} axes, shape {shape}, expected 2 (examples, features)")
    if 0 in shape:
        raise ValueError(f"{name}: empty: {shape[0]} rows, {shape[1]} columns, expected at least one of each")
    if shape[1] > MAX_FEATURES:
        raise ValueError(f"{name}: got {shape[1]} columns, expected at most {MAX_FEATURES} (int32 indices)")


def _check_indices(matrix: Any, name: str) -> None:
    """Check the index arrays that SciPy's conversion to CSR would follow unchecked."""
    rows, columns = matrix.shape
    if matrix.format == "csc":
        _check_compressed(name, matrix, (columns, rows), ("column", "row"))
    elif matrix.format == "bsr":
        height, width = matrix.data.shape[1:]
        _check_compressed(name, matrix, (rows // height, columns // width), ("block row", "block column"))
    elif matrix.format == "coo":
        for axis, index, size in (("row", matrix.row, rows), ("column", matrix.col, columns)):
            if len(index) != len(matrix.data):
                raise ValueError(f"{name}: got {len(index)} {axis} indices of {len(matrix.data)} values")
            entry = _first_outside(index, size)
            if entry is not None:
                raise ValueError(f"{name}: entry {entry} has {axis} {index[entry]}, expected 0 to {size - 1}")


def _check_compressed(name: str, matrix: Any, shape: tuple[int, int], axes: tuple[str, str]) -> None:
    """Check that `indptr` cuts `indices` into shape[0] runs, and that each index lies below shape[1]."""
    indptr, indices = np.asarray(matrix.indptr), np.asarray(matrix.indices)
    if indptr.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        raise TypeError(f"{name}: got indptr {indptr.dtype} and indices {indices.dtype}, expected integers")
    if indptr.shape != (shape[0] + 1,):
        raise ValueError(f"{name}: indptr has shape {indptr.shape}, expected ({shape[0] + 1},)")
    if indices.shape != (len(matrix.data),):
        raise ValueError(f"{name}: got indices of shape {indices.shape} for {len(matrix.data)} values")
    if indptr[0] != 0 or indptr[-1] != len(indices):
        raise ValueError(f"{name}: indptr goes from {indptr[0]} to {indptr[-1]}, expected 0 to {len(indices)} nonzeros")
    falls = indptr[1:] < indptr[:-1]
    if falls.any():
        line = int(falls.argmax())
        raise ValueError(f"{name}: {axes[0]} {line} goes from {indptr[line]} back to {indptr[line + 1]}: indptr falls")
    entry = _first_outside(indices, shape[1])
    if entry is not None:
        line = int(np.searchsorted(indptr, entry, side="right")) - 1
        raise ValueError(
            f"{name}: {axes[0]} {line} holds {axes[1]} index {indices[entry]}, expected 0 to {shape[1] - 1}"
        )


def _first_outside(index: NDArray[Any], size: int) -> int | None:
    """Position of the first index below 0 or not below `size`."""
    if not len(index) or (index.min() >= 0 and index.max() < size):
        return None
    return int(((index < 0) | (index >= size)).argmax())


def _increasing(indices: NDArray[Any], indptr: NDArray[Any]) -> bool:
    """Whether the indices of each row strictly increase. (SciPy's own flag is cached and may be stale.)"""
    rises = indices[1:] > indices[:-1]
    borders = indptr[1:-1]
    rises[borders[(borders > 0) & (borders < len(indices))] - 1] = True
    return bool(rises.all())
