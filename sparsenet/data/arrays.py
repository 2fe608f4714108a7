"""Named arrays with a description, in one netCDF file: the form of model files and checkpoints."""

import hashlib
import json
from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np

from sparsenet.data.files import create_netcdf, open_netcdf
from sparsenet.version import __version__

_FORMAT = 1


def write_arrays(path: str | PathLike[str], description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays and a JSON description; the file appears whole or not at all.

    Array number i is variable array{i} with an attribute `title`; the description is the global attribute `sparsenet`.
    Raises OSError naming the path where it cannot be written.
    """
    with create_netcdf(path) as file:
        head = {"format": _FORMAT, "version": __version__, **description,
                "checksums": {title: _checksum(array) for title, array in arrays.items()}}
        file.setncattr_string("sparsenet", as_json(head))
        for i, (title, array) in enumerate(arrays.items()):
            axes = [f"array{i}_axis{axis}" for axis in range(array.ndim)]
            for axis, size in zip(axes, array.shape, strict=True):
                file.createDimension(axis, size)
            variable = file.createVariable(f"array{i}", array.dtype, axes, contiguous=array.ndim > 0)
            variable.setncattr_string("title", title)
            variable[...] = array


def as_json(description: Mapping[str, Any]) -> str:
    """The text of a description; NumPy's numbers become Python's. Raises TypeError for what JSON does not have."""
    return json.dumps(description, default=_plain)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} cannot be written to a model file")


def read_arrays(path: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(description, arrays) of a file that `write_arrays` wrote.

    Raises FileNotFoundError, and ValueError where the file is damaged, another kind, or of a later format.
    """
    with open_netcdf(path) as file:
        if "sparsenet" not in file.ncattrs():
            raise ValueError(f"{path}: holds no sparsenet network")
        try:
            description = json.loads(file.getncattr("sparsenet"))
        except ValueError as error:
            raise ValueError(f"{path}: its description is damaged ({error})") from error
        if not isinstance(description, dict) or not isinstance(description.get("format"), int):
            raise ValueError(f"{path}: its description is damaged")
        if description["format"] > _FORMAT:
            raise ValueError(f"{path}: written by sparsenet {description['version']}, which this version cannot read")
        arrays = {getattr(variable, "title", ""): np.asarray(variable[...]) for variable in file.variables.values()}
    if {title: _checksum(array) for title, array in arrays.items()} != description.get("checksums"):
        raise ValueError(f"{path}: its arrays are damaged")
    return description, arrays


def _checksum(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
