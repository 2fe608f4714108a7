"""Ratings in delimited text, as MovieLens and most shops publish them, and one such set that ships along."""

import csv
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sparsenet.data.dataset import select_entries
from sparsenet.data.text import FLOAT32_MAX, numbered_lines

MOVIELENS = ("userId", "movieId", "rating")
DELIMITERS = ("::", "\t", ",", ";")


@dataclass(frozen=True, eq=False)
class Ratings:
    """Who rated what, and how."""

    #: (users, items) float32 CSR of ratings; a rating of 0 is stored, so that it differs from none.
    matrix: sp.csr_array
    #: (users,) id of each row, ascending; int64 if all ids are integers, else str.
    users: NDArray[Any]
    #: (items,) id of each column, ascending; int64 if all ids are integers, else str.
    items: NDArray[Any]

    def interactions(self, min_rating: float | None = None) -> sp.csr_array:
        """(users, items) bool CSR: who rated what, counting only ratings of `min_rating` or more."""
        if min_rating is None:
            kept = np.ones(self.matrix.nnz, np.bool_)
        else:
            kept = self.matrix.data >= min_rating
        chosen = select_entries(self.matrix, kept)
        chosen.data = np.ones(chosen.nnz, np.bool_)  # a stored rating of 0 is an interaction too
        return chosen


@dataclass(frozen=True, eq=False)
class Purchases:
    """Who bought what, and how much of it."""

    #: (users, items) bool CSR: whether the customer ever bought the product.
    matrix: sp.csr_array
    #: (users, items) float32 CSR with the same entries: pieces bought.
    quantity: sp.csr_array
    #: (users,) int64, customer numbers, ascending.
    users: NDArray[np.int64]
    #: (items,) str, stock codes, ascending.
    items: NDArray[np.str_]
    #: (items,) str, a description of each product.
    names: NDArray[np.str_]


def read_ratings(
    path: str | PathLike[str], min_rating: float | None = None, columns: Sequence[str] | None = None
) -> Ratings:
    """Read ratings from a delimited text file, plain or gzip: one a line, with the ids of user and item.

    path        MovieLens' u.data (TAB, no header), ratings.dat (::, no header) or ratings.csv, whose first
                three columns are user, item, rating; or, with `columns`, any file with a header line.
                The first of ::, TAB, comma and semicolon in the first line is the delimiter; fields may be
                quoted as in CSV
    min_rating  leave out lower ratings. Users and items keep their rows and columns, so that matrices with
                different limits line up
    columns     names in the header of the columns of users, items and ratings; two names: every pair counts 1

    If a user rated an item repeatedly, the last line counts. Other columns are not looked at.

    Raises ValueError, with file and line, if a field is missing, a rating is not a finite float32, or the
    file is not UTF-8; ValueError if it holds no rating, or if a header lacks a column or has names that are
    not known; OSError if it cannot be read.
    """
    user_codes: dict[str, int] = {}
    item_codes: dict[str, int] = {}
    users, items, values = array("q"), array("q"), array("d")
    for user, item, rating in _records(path, columns):
        users.append(user_codes.setdefault(user, len(user_codes)))
        items.append(item_codes.setdefault(item, len(item_codes)))
        values.append(rating)
    if not values:
        raise ValueError(f"{path}: no ratings, expected one a line")

    user_ids, user_rank = _sort_ids(list(user_codes))
    item_ids, item_rank = _sort_ids(list(item_codes))
    rows, cols = user_rank[np.asarray(users)], item_rank[np.asarray(items)]
    last = _last_of_each(rows * len(item_ids) + cols)
    stored = np.asarray(values)[last].astype(np.float32)
    matrix = sp.csr_array((stored, (rows[last], cols[last])), shape=(len(user_ids), len(item_ids)))
    if min_rating is not None:
        matrix = select_entries(matrix, matrix.data >= min_rating)
    return Ratings(matrix, user_ids, item_ids)


def online_retail() -> Purchases:
    """Purchases of 3,659 products by the 4,335 customers of a British gift wholesaler, 2010-12 to 2011-12.

    266,226 pairs. Source, licence (CC0) and what was dropped: `online_retail/README.md` beside this file;
    Chen, Sain and Guo 2012, "Data mining for the online retail industry".
    """
    from importlib.resources import as_file, files

    folder = files("sparsenet.data") / "online_retail"
    with as_file(folder / "purchases.csv.gz") as path:
        bought = read_ratings(path, columns=("customer", "product", "quantity"))
    with as_file(folder / "products.csv.gz") as path:
        name_of = dict(csv.reader(line for _, line in numbered_lines(path)))
    names = np.array([name_of[item] for item in bought.items])
    return Purchases(bought.interactions(), bought.matrix, bought.users, bought.items, names)


def _records(path: str | PathLike[str], columns: Sequence[str] | None) -> Iterator[tuple[str, str, float]]:
    """Yield user, item and rating of each line."""
    numbered = numbered_lines(path)
    number, first = next(numbered, (0, ""))
    if not first:
        return
    first = first.removeprefix("\ufeff")
    delimiter = next((mark for mark in DELIMITERS if mark in first), ",")
    try:
        fields = next(_split([first], delimiter))
    except csv.Error as error:
        raise ValueError(f"{path}:{number}: {error}") from None
    user, item, rating, has_header = _positions(f"{path}:{number}", fields, columns)

    def lines() -> Iterator[str]:
        nonlocal number  # for messages: the reader takes a line only when it needs one
        if not has_header:
            yield first
        for number, line in numbered:  # noqa: B007
            yield line

    try:
        for fields in _split(lines(), delimiter):
            try:
                value = 1.0 if rating is None else float(fields[rating])
                record = fields[user].strip(), fields[item].strip(), value
            except (ValueError, IndexError):
                record = "", "", math.nan
            if not (abs(record[2]) <= FLOAT32_MAX and record[0] and record[1]):
                wanted = f"user and item in fields {user + 1} and {item + 1}"
                if rating is not None:
                    wanted = f"user, item and a finite rating in fields {user + 1}, {item + 1} and {rating + 1}"
                raise ValueError(f"{path}:{number}: got {fields}, expected {wanted}")
            yield record
    except csv.Error as error:
        raise ValueError(f"{path}:{number}: {error}") from None


def _split(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    if len(delimiter) > 1:
        return (line.split(delimiter) for line in lines)
    return csv.reader(lines, delimiter=delimiter, strict=True)


def _positions(place: str, fields: list[str], columns: Sequence[str] | None) -> tuple[int, int, int | None, bool]:
    """Positions of user, item and, if there are any, rating; and whether the first line, in `fields`, is a header."""
    if columns is None:
        if len(fields) >= 3 and _is_number(fields[2]):
            return 0, 1, 2, False
        columns = MOVIELENS
    if len(columns) not in (2, 3):
        raise ValueError(f"columns: got {columns!r}, expected the names of users, items and, if any, ratings")
    missing = [name for name in columns if name not in fields]
    if missing:
        raise ValueError(f"{place}: the header {fields} lacks {missing}: say with columns= what is what")
    user, item, *rating = (fields.index(name) for name in columns)
    return user, item, rating[0] if rating else None, True


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _sort_ids(names: list[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The names, as int64 where all are integers, in ascending order; and the place of each among them."""
    ids = np.array(names)
    try:
        integers = np.array([int(name) for name in names], np.int64)
        if all(str(number) == name for number, name in zip(integers.tolist(), names, strict=True)):
            ids = integers  # not where 7 and 007 are two ids
    except (ValueError, OverflowError):
        pass
    order = np.argsort(ids, kind="stable")
    rank = np.empty(len(ids), np.int64)
    rank[order] = np.arange(len(ids))
    return ids[order], rank


def _last_of_each(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Position of the last occurrence of each key, in ascending order of the keys."""
    order = np.argsort(keys, kind="stable")
    ends = np.append(np.diff(keys[order]) != 0, True)
    return order[ends]
