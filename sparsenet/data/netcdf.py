"""DSSTNE's netCDF data files.

A data file holds numbered data sets. The items of number n, with [dimensions] of variables:

    attributes  name n, attributes n (bits, see `Attribute`), kind n, dataType n (see `DataType`),
                dimensions n (1 to 3), width n, height n, length n (as many as there are dimensions)
    sparse      sparseStart n, sparseEnd n [rows], sparseIndex n [sparseDataDim n], and unless boolean
                sparseData n [sparseDataDim n]
    dense       data n [dataDim n]
    weighted    dataWeight n [examplesDim n]
    indexed     index n [examplesDim n]: the row of each example; there are uniqueExamplesDim n rows

and the attribute datasets, their number. Source: the public source of DSSTNE (NetCDFhelper.cpp, NNTypes.cpp).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from os import PathLike
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sparsenet.data.dataset import MAX_FEATURES, Dataset, Matrix
from sparsenet.data.files import create_netcdf, open_netcdf


class Attribute(IntFlag):
    """Bits of the attribute `attributes`. Bits that are not listed here change nothing for a reader."""

    SPARSE = 1
    BOOLEAN = 2
    INDEXED = 64
    WEIGHTED = 128


class DataType(IntEnum):
    """Values of the attribute `dataType`."""

    UINT = 0
    INT = 1
    LLINT = 2
    ULLINT = 3
    FLOAT = 4
    DOUBLE = 5
    RGB8 = 6
    RGB16 = 7
    UCHAR = 8
    CHAR = 9


def read_netcdf(path: str | PathLike[str]) -> dict[str, Dataset]:
    """Read all data sets of a DSSTNE data file, by name.

    Sparse sets become CSR, bool or float32; columns are sorted, repeated ones summed, explicit zeros dropped.
    Dense sets become (examples, width * height * length) float32 in the order of the file. Values of other
    types are rounded to float32; bytes keep their values, which DSSTNE would scale by 1/256. Dense boolean
    sets, one feature number an example, become CSR of bool. Of indexed sets the rows are repeated.

    Raises FileNotFoundError or another OSError if the file cannot be opened; ValueError, with file, data set
    and item, if it is not a netCDF file, not a data file of DSSTNE, or contradicts itself.
    """
    with open_netcdf(path) as file:
        if "datasets" not in file.ncattrs():
            raise ValueError(f"{path}: not a DSSTNE data file: it has no attribute 'datasets'")
        result: dict[str, Dataset] = {}
        for number in range(_integer(file, f"{path}", "datasets", at_least=1)):
            dataset = _Section(file, f"{path}", number).read()
            if dataset.name in result:
                raise ValueError(f"{path}: data set {number}: an earlier one is also called {dataset.name!r}")
            result[dataset.name] = dataset
    return result


def write_netcdf(
    path: str | PathLike[str], datasets: Dataset | Sequence[Dataset] | Mapping[str, Dataset | Any]
) -> None:
    """Write data sets that `read_netcdf` and DSSTNE read: one, several, or matrices by name.

    CSR of bool is written as a boolean sparse set, other CSR with its float32 values, a dense array as a
    dense set. The width is written exactly; DSSTNE's own converter rounds it up to a multiple of 128. Row
    bounds are uint32, or uint64 where there are 2^32 nonzeros or more. DSSTNE refuses a set without nonzeros.

    The file appears under its name once it is complete. Raises ValueError if there are no data sets or names
    repeat, what `canonical` raises, and OSError if the file cannot be written.
    """
    sets = _named(datasets)
    names = [dataset.name for dataset in sets]
    if not sets or len(set(names)) < len(sets):
        raise ValueError(f"datasets: got the names {names}, expected at least one and no repetition")
    with create_netcdf(path) as file:
        file.set_fill_off()  # every variable is written in full
        file.setncattr("datasets", np.uint32(len(sets)))
        for number, dataset in enumerate(sets):
            _write(file, number, dataset)


@dataclass(frozen=True)
class _Section:
    """The items of data set `number` in an open data file; whatever is wrong with one is a ValueError."""

    file: Any
    path: str
    number: int

    def read(self) -> Dataset:
        name = getattr(self.file, f"name{self.number}", None)
        if not isinstance(name, str):
            self.fail("name", "is missing or not a string")
        attributes = Attribute(self.integer("attributes"))
        examples = self.length("examplesDim")
        rows = self.length("uniqueExamplesDim", default=examples)

        sparse = Attribute.SPARSE in attributes
        matrix = self.sparse_rows(rows, attributes) if sparse else self.dense_rows(rows, attributes)
        if Attribute.INDEXED in attributes:
            matrix = matrix[self.integers("index", examples, below=rows)]
        elif rows != examples:
            self.fail("uniqueExamplesDim", f"is {rows}, but there are {examples} examples and no index")
        weights = self.values("dataWeight", examples) if Attribute.WEIGHTED in attributes else None
        try:
            return Dataset(name, matrix, weights)
        except ValueError as error:
            raise ValueError(f"{self.path}: data set {self.number}: {error}") from None

    def sparse_rows(self, rows: int, attributes: Attribute) -> sp.csr_array:
        features, nonzeros = self.features(), self.length("sparseDataDim")
        start = self.integers("sparseStart", rows, below=nonzeros + 1)
        end = self.integers("sparseEnd", rows, below=nonzeros + 1)
        backward = start > end
        if backward.any():
            row = int(backward.argmax())
            self.fail("sparseStart", f"has row {row} start at {start[row]}, after its end {end[row]}")
        indices = self.integers("sparseIndex", nonzeros, below=features)
        boolean = Attribute.BOOLEAN in attributes
        data = np.ones(nonzeros, np.bool_) if boolean else self.values("sparseData", nonzeros)

        indptr = np.concatenate(([0], np.cumsum(end - start)))
        if indptr[-1] != nonzeros or not np.array_equal(start, indptr[:-1]):  # rows overlap, or have gaps
            entries = np.arange(indptr[-1]) + np.repeat(start - indptr[:-1], end - start)
            indices, data = indices[entries], data[entries]
        return sp.csr_array((data, indices, indptr), shape=(rows, features))

    def dense_rows(self, rows: int, attributes: Attribute) -> Matrix:
        features = self.features()
        if Attribute.BOOLEAN in attributes:
            arrays = np.ones(rows, np.bool_), self.integers("data", rows, below=features), np.arange(rows + 1)
            return sp.csr_array(arrays, shape=(rows, features))
        return self.values("data", rows * features).reshape(rows, features)

    def features(self) -> int:
        """width * height * length, as many of them as the set has dimensions."""
        dimensions = self.integer("dimensions", at_least=1)
        if dimensions > 3:
            self.fail("dimensions", f"is {dimensions}, expected 1 to 3")
        features = 1
        for axis in ("width", "height", "length")[:dimensions]:
            features *= self.integer(axis, at_least=1)
        if features > MAX_FEATURES:
            self.fail("width", f"etc. make {features} features, expected at most {MAX_FEATURES}")
        return features

    def integer(self, item: str, at_least: int = 0) -> int:
        return _integer(self.file, self.path, f"{item}{self.number}", at_least)

    def length(self, item: str, default: int | None = None) -> int:
        dimension = self.file.dimensions.get(f"{item}{self.number}")
        if dimension is not None:
            return len(dimension)
        if default is None:
            self.fail(item, "is missing, expected a dimension")
        return default

    def integers(self, item: str, size: int, below: int) -> NDArray[Any]:
        """An array of numbers 0 to below - 1, as int32 where these fit, else as int64."""
        values = self.values(item, size)
        if values.dtype.kind not in "iu":
            self.fail(item, f"is {values.dtype}, expected integers")
        outside = (values < 0) | (values >= below)
        if outside.any():
            entry = int(outside.argmax())
            self.fail(item, f"holds {values[entry]} at {entry}, expected 0 to {below - 1}")
        return values.astype(np.int32 if below <= 2**31 else np.int64)

    def values(self, item: str, size: int) -> NDArray[Any]:
        """A variable with one axis, as numbers of the type they have in the file."""
        variable = self.file.variables.get(f"{item}{self.number}")
        if variable is None:
            self.fail(item, "is missing, expected a variable")
        dtype = variable.datatype if isinstance(variable.datatype, np.dtype) else None
        if dtype is None or (dtype.kind not in "iuf" and dtype != "S1"):
            self.fail(item, f"is {variable.datatype}, expected numbers")
        if variable.shape != (size,):
            self.fail(item, f"has shape {variable.shape}, expected ({size},)")
        values = variable[...]
        if dtype == "S1":
            values = values.view(np.int8)
        unsigned = self.integer("dataType") in (DataType.RGB8, DataType.RGB16, DataType.UCHAR)
        if unsigned and values.dtype.kind == "i":  # netCDF's byte and short have a sign, DSSTNE's data do not
            values = values.view(values.dtype.str.replace("i", "u"))
        return values

    def fail(self, item: str, problem: str) -> NoReturn:
        raise ValueError(f"{self.path}: data set {self.number}: {item}{self.number} {problem}")


def _integer(file: Any, path: str, name: str, at_least: int = 0) -> int:
    value = getattr(file, name, None)
    if not isinstance(value, int | np.integer) or value < at_least:
        found = "is missing" if value is None else f"is {value}"
        raise ValueError(f"{path}: attribute {name} {found}, expected an integer >= {at_least}")
    return int(value)


def _named(datasets: Dataset | Sequence[Dataset] | Mapping[str, Dataset | Any]) -> list[Dataset]:
    if isinstance(datasets, Dataset):
        return [datasets]
    if isinstance(datasets, Mapping):
        return [
            replace(matrix, name=name) if isinstance(matrix, Dataset) else Dataset(name, matrix)
            for name, matrix in datasets.items()
        ]
    for dataset in datasets:
        if not isinstance(dataset, Dataset):
            raise TypeError(f"datasets: got {type(dataset).__name__}, expected Dataset or a dict of matrices")
    return list(datasets)


def _write(file: Any, number: int, dataset: Dataset) -> None:
    def variable(item: str, dimension: str, values: NDArray[Any]) -> None:
        file.createVariable(f"{item}{number}", values.dtype, (f"{dimension}{number}",))[:] = values

    attributes = (
        Attribute.SPARSE * dataset.sparse
        | Attribute.BOOLEAN * dataset.boolean
        | Attribute.WEIGHTED * (dataset.weights is not None)
    )
    file.setncattr(f"name{number}", dataset.name)
    for item, value in {
        "attributes": attributes,
        "kind": 0,
        "dataType": DataType.UINT if dataset.boolean else DataType.FLOAT,
        "dimensions": 1,
        "width": dataset.features,
    }.items():
        file.setncattr(f"{item}{number}", np.uint32(value))
    file.createDimension(f"examplesDim{number}", dataset.examples)
    if sp.issparse(dataset.matrix):
        matrix = dataset.matrix
        bounds = matrix.indptr.astype(np.uint32 if matrix.nnz < 2**32 else np.uint64)
        file.createDimension(f"sparseDataDim{number}", matrix.nnz)
        variable("sparseStart", "examplesDim", bounds[:-1])
        variable("sparseEnd", "examplesDim", bounds[1:])
        variable("sparseIndex", "sparseDataDim", matrix.indices.astype(np.uint32))
        if not dataset.boolean:
            variable("sparseData", "sparseDataDim", matrix.data)
    else:
        file.createDimension(f"dataDim{number}", dataset.matrix.size)
        variable("data", "dataDim", dataset.matrix.ravel())
    if dataset.weights is not None:
        variable("dataWeight", "examplesDim", dataset.weights)
