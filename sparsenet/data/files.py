"""netCDF files as such: opened so that damage is told, written so that they appear whole or not at all.

The only file that imports netCDF4.
"""

import errno
import hashlib
import os
import platform
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any


@contextmanager
def open_netcdf(path: str | PathLike[str]) -> Iterator[Any]:
    """A netCDF4.Dataset to read from, which gives values as they are stored: nothing masked, nothing scaled.

    Raises FileNotFoundError or PermissionError if the file cannot be opened; ValueError if it is not netCDF-4,
    or if it turns out to be broken while it is read.
    """
    import netCDF4

    if not Path(path).is_file():
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    try:
        file = netCDF4.Dataset(path, "r")
    except PermissionError:
        raise
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{path}: not a readable netCDF file (truncated or another format): {error}") from error
    with file:
        if not file.data_model.startswith("NETCDF4"):  # where truncated, older formats read as zeros
            raise ValueError(f"{path}: got {file.data_model}, expected NETCDF4, as DSSTNE writes")
        file.set_auto_maskandscale(False)
        try:
            yield file
        except (RuntimeError, UnicodeDecodeError) as error:  # what netCDF4 raises on broken contents
            raise ValueError(f"{path}: broken netCDF file: {error}") from error


@contextmanager
def create_netcdf(path: str | PathLike[str]) -> Iterator[Any]:
    """A netCDF4.Dataset to write to, which becomes the file `path` if the block succeeds, and else vanishes.

    It is written beside its place, flushed to disk and renamed, so that at any time `path` is the old file
    or the whole new one. Raises OSError, with the path, if that is impossible, for instance on a full disk.
    """
    import netCDF4

    target = check_target(path)
    ours = f".sparsenet-{_short_hash(target.name)}-{_short_hash(platform.node())}-"
    _remove_left_behind(target.parent, ours)
    temporary = target.with_name(f"{ours}{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with netCDF4.Dataset(temporary, "x", format="NETCDF4") as file:
            yield file
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(temporary, target)
    except OSError as error:
        if error.filename != str(temporary):
            raise
        raise OSError(error.errno, f"cannot write: {error.strerror}", str(path)) from error
    except RuntimeError as error:
        if not str(error).startswith("NetCDF:"):
            raise
        raise OSError(errno.EIO, f"cannot write, is the disk full? {error}", str(path)) from error
    finally:
        temporary.unlink(missing_ok=True)


def check_target(path: str | PathLike[str]) -> Path:
    """Where a file of this path will be. Raises OSError where there is no folder for it, or no file can be there."""
    try:
        target = Path(path).resolve()
    except RuntimeError as error:
        raise OSError(errno.ELOOP, "symbolic links in a circle", str(path)) from error
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, expected a file to write", str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "is not a regular file, and would be replaced by one", str(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder to write the file into", str(path))
    return target


def _short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _remove_left_behind(folder: Path, start: str) -> None:
    """Delete what processes of this machine, killed while they wrote the same file, have left."""
    if os.name != "posix":
        return
    for path in folder.glob(f"{start}*.tmp"):
        try:
            os.kill(int(path.name.removeprefix(start).split("-")[0]), 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except (PermissionError, ValueError):
            continue
