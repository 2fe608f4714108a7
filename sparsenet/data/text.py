"""DSSTNE's text format: one sample a line, `sample<TAB>feature[,value]:feature[,value]:...`.

Samples and features are names. Their numbers, the rows and columns of the matrix, are kept beside the text in
index files of lines `name<TAB>number`, in any order.
"""

import gzip
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import scipy.sparse as sp

from sparsenet.data.dataset import canonical, scipy_csr

FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Text:
    """What a text file says: a matrix, and the names of its rows and columns."""

    #: (samples, features) CSR, bool or float32.
    matrix: sp.csr_array
    #: Name of each row.
    samples: list[str]
    #: Name of each column.
    features: list[str]
    #: How many entries were left out because their sample or feature is unknown.
    ignored: int = 0


def read_text(
    path: str | PathLike[str],
    features: Sequence[str] | None = None,
    samples: Sequence[str] | None = None,
    values: bool = False,
    unknown: str = "error",
) -> Text:
    """Read a text file, plain or gzip, or all files of a folder in the order of their names.

    features, samples  names of the columns and of the rows; None numbers them in order of first appearance,
                       as DSSTNE does
    values             False: only which features a sample has; values, often timestamps, are not looked at.
                       True: the values; each feature must have one, and a 0 stores nothing
    unknown            what becomes of names that are not in `features` or `samples`: "error" or "ignore"

    A sample on several lines is one row; it may have no feature. A feature that a sample has several times
    counts once; with values, their sum. Empty lines are skipped.

    Raises ValueError, with file and line, if the text is malformed, not UTF-8 or not whole gzip, or if a name
    is unknown; ValueError if there is no sample or no feature at all; OSError if a file cannot be read.
    """
    if unknown not in ("error", "ignore"):
        raise ValueError(f"unknown: got {unknown!r}, expected 'error' or 'ignore'")
    sample_numbers = _Numbers("sample", samples, unknown == "error")
    feature_numbers = _Numbers("feature", features, unknown == "error")
    rows, columns, data, ignored = array("q"), array("q"), array("d"), 0
    for place, sample, entries in _parse(path, values):
        row = sample_numbers.find(sample, place)
        for feature, value in entries:
            column = feature_numbers.find(feature, place) if row is not None else None
            if row is None or column is None:
                ignored += 1
                continue
            rows.append(row)
            columns.append(column)
            data.append(value)

    names = list(sample_numbers.by_name), list(feature_numbers.by_name)
    stored = np.asarray(data) if values else np.ones(len(data), np.bool_)
    coordinates = np.asarray(rows), np.asarray(columns)
    matrix = sp.coo_array((stored, coordinates), shape=(len(names[0]), len(names[1])))
    return Text(scipy_csr(cast(sp.csr_array, canonical(matrix, fspath(path)))), *names, ignored=ignored)


def write_text(path: str | PathLike[str], matrix: Any, samples: Sequence[str], features: Sequence[str]) -> None:
    """Write a matrix, one line a row; gzip if the name ends in .gz.

    A bool matrix is written as features alone, any other with values in the fewest digits that give the same
    float32 back. Of a dense matrix only the nonzeros are written.

    Raises ValueError if there is not one name for each row and column, or if names repeat, are empty or
    hold the format's own marks (TAB, line ends; in features also : and ,); and what `canonical` raises.
    """
    csr = sp.csr_array(canonical(matrix, "matrix"))
    _check_names("samples", samples, "\t\r\n", csr.shape[0])
    _check_names("features", features, "\t\r\n:,", csr.shape[1])
    with _create_text(path) as file:
        for row, sample in enumerate(samples):
            entries = slice(csr.indptr[row], csr.indptr[row + 1])
            words = [features[column] for column in csr.indices[entries]]
            if csr.dtype != np.bool_:
                words = [f"{word},{value!s}" for word, value in zip(words, csr.data[entries], strict=True)]
            file.write(f"{sample}\t{':'.join(words)}\n")


def read_index(path: str | PathLike[str]) -> list[str]:
    """The names in an index file, in the order of their numbers.

    Raises ValueError, with file and line, if a line is not `name<TAB>number` or if a name or number repeats;
    ValueError if the numbers are not 0, 1, 2, ... without a gap; OSError if the file cannot be read.
    """
    number_of: dict[str, int] = {}
    name_of: dict[int, str] = {}
    for number, line in numbered_lines(path):
        name, tab, digits = line.rpartition("\t")
        if not tab or not name or not (digits.isascii() and digits.isdigit()):
            raise ValueError(f"{path}:{number}: got {line!r}, expected a name, a TAB and a number")
        if name in number_of or int(digits) in name_of:
            raise ValueError(f"{path}:{number}: {line!r} repeats a name or a number of an earlier line")
        number_of[name], name_of[int(digits)] = int(digits), name
    missing = next((k for k in range(len(name_of)) if k not in name_of), None)
    if missing is not None:
        raise ValueError(f"{path}: number {missing} is missing, expected all of 0 to {len(name_of) - 1}")
    return [name_of[k] for k in range(len(name_of))]


def write_index(path: str | PathLike[str], names: Sequence[str]) -> None:
    """Write names with their positions as numbers; gzip if the file's name ends in .gz.

    Raises ValueError if names repeat, are empty or hold TAB or a line end.
    """
    _check_names("names", names, "\t\r\n", len(names))
    with _create_text(path) as file:
        file.writelines(f"{name}\t{number}\n" for number, name in enumerate(names))


def numbered_lines(path: str | PathLike[str]) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file, plain or gzip, without line ends, and their numbers from 1; no empty lines.

    Raises ValueError, with file and line, where the file stops being UTF-8 or gzip.
    """
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        lines = gzip.GzipFile(fileobj=file) if packed else file
        number = 0
        try:
            for number, line in enumerate(cast(Iterable[bytes], lines), 1):
                text = line.decode().rstrip("\r\n")
                if text:
                    yield number, text
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{number}: not UTF-8: {error}") from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}:{number + 1}: gzip is broken: {error}") from None


class _Numbers:
    """Numbers of names: of the given ones, or else in order of first appearance."""

    def __init__(self, kind: str, names: Sequence[str] | None, strict: bool) -> None:
        self.kind = kind
        self.strict = strict
        self.growing = names is None
        self.by_name = {name: number for number, name in enumerate(names or ())}
        if len(self.by_name) != len(names or ()):
            raise ValueError(f"{kind}s: got {len(names or ())} names of which {len(self.by_name)} differ")

    def find(self, name: str, place: str) -> int | None:
        number = self.by_name.get(name)
        if number is None and self.growing:
            number = self.by_name[name] = len(self.by_name)
        if number is None and self.strict:
            raise ValueError(f"{place}: {name!r} is not one of the {len(self.by_name)} given {self.kind}s")
        return number


def _parse(path: str | PathLike[str], values: bool) -> Iterator[tuple[str, str, list[tuple[str, float]]]]:
    """Yield, for each line, its place (file and line), its sample and its features with values."""
    for file in _files(Path(path)):
        for number, line in numbered_lines(file):
            place = f"{file}:{number}"
            sample, *rest = line.split("\t")
            if not sample or len(rest) != 1:
                raise ValueError(f"{place}: got {len(rest)} TABs, expected a sample, a TAB and its features")
            words = rest[0].split(":") if rest[0] else []
            yield place, sample, [_entry(word, values, place) for word in words]


def _entry(word: str, values: bool, place: str) -> tuple[str, float]:
    feature, _, digits = word.partition(",")
    if not feature:
        raise ValueError(f"{place}: got {word!r} between colons, expected a feature")
    if not values:
        return feature, 1.0
    try:
        value = float(digits)
    except ValueError:
        value = np.nan
    if not abs(value) <= FLOAT32_MAX:
        raise ValueError(f"{place}: got {word!r}, expected feature,value with a finite float32")
    return feature, value


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    if not files:
        raise ValueError(f"{path}: a folder without files, expected text files")
    return files


def _create_text(path: str | PathLike[str]) -> IO[str]:
    if fspath(path).endswith(".gz"):
        return cast(IO[str], gzip.open(path, "wt", encoding="utf-8", newline="\n"))
    return open(path, "w", encoding="utf-8", newline="\n")


def _check_names(argument: str, names: Sequence[str], marks: str, size: int) -> None:
    if len(names) != size:
        raise ValueError(f"{argument}: got {len(names)} names, expected {size}, one for each")
    if len(set(names)) != size:
        raise ValueError(f"{argument}: got {size} names of which only {len(set(names))} differ")
    for name in names:
        if not name or any(mark in name for mark in marks):
            raise ValueError(f"{argument}: got {name!r}, expected a name, not empty and without {marks!r}")
