"""Recommendations in a netCDF file, written batch by batch.

    attribute  sparsenet_recommendations, the version of this layout: 1
    items      [users, rank] int32: numbers of the recommended items, best first; -1 where there is none
    scores     [users, rank] float32; -inf there
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike

import numpy as np

from sparsenet.data.files import create_netcdf, open_netcdf

_LAYOUT = 1


@contextmanager
def write_recommendations(path: str | PathLike[str], users: int,
                          k: int) -> Iterator[Callable[[int, np.ndarray, np.ndarray], None]]:
    """A function write(first, items, scores) for the lists (some users, k) of users first, first + 1, ….

    The file appears under its name once the block has ended without an error. Raises OSError where it cannot be
    written.
    """
    with create_netcdf(path) as file:
        file.setncattr("sparsenet_recommendations", np.int32(_LAYOUT))
        file.createDimension("users", users)
        file.createDimension("rank", k)
        variables = (file.createVariable("items", np.int32, ("users", "rank"), fill_value=-1),
                     file.createVariable("scores", np.float32, ("users", "rank"), fill_value=-np.inf))
        for variable in variables:
            variable.set_auto_maskandscale(False)

        def write(first: int, items: np.ndarray, scores: np.ndarray) -> None:
            for variable, part in zip(variables, (items, scores), strict=True):
                variable[first:first + len(part)] = part
        yield write


def read_recommendations(path: str | PathLike[str], users: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
    """(items, scores) of a file that `recommend` wrote, as it would have returned them: of all users, or of some.

    Raises FileNotFoundError, and ValueError for a file that is damaged or holds something else.
    """
    with open_netcdf(path) as file:
        layout = getattr(file, "sparsenet_recommendations", None)
        if layout != _LAYOUT or not {"items", "scores"} <= file.variables.keys():
            raise ValueError(f"{path}: holds no recommendations that this version can read")
        return np.asarray(file["items"][users], np.int64), np.asarray(file["scores"][users], np.float32)
