"""Ratings files: the MovieLens layouts against np.loadtxt, headers, repetitions, and malformed lines."""

import csv
import gzip
import io

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from sparsenet.data import Ratings, online_retail, read_ratings

RECORDS = [(10, 7, 5.0), (2, 7, 3.5), (10, 30, 1.0)]
LAYOUTS = {
    "u.data": "{}\t{}\t{}\t881250949",
    "ratings.dat": "{}::{}::{}::978300760",
    "ratings.csv": "{},{},{},1112486027",
}


@pytest.fixture
def file(tmp_path):
    def write(content, name="ratings.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def entries(ratings):
    """{(user, item): rating}, explicit zeros included."""
    matrix = ratings.matrix.tocoo()
    return {
        (ratings.users[row], ratings.items[column]): value
        for row, column, value in zip(matrix.row, matrix.col, matrix.data, strict=True)
    }


def test_movielens_100k(shared):
    path = shared("ratings/ml-100k/u.data")
    ratings = read_ratings(path)
    expected = np.loadtxt(path, dtype=int)
    assert ratings.matrix.dtype == np.float32
    assert_array_equal(ratings.users, np.arange(1, 944))
    assert_array_equal(ratings.items, np.arange(1, 1683))
    assert entries(ratings) == {(user, item): rating for user, item, rating, _ in expected}
    liked = ratings.interactions(4)
    assert liked.dtype == np.bool_
    assert liked.nnz == (expected[:, 2] >= 4).sum() == 55375
    assert_array_equal(liked.toarray(), ratings.matrix.toarray() >= 4)
    assert_array_equal(read_ratings(path, min_rating=4).matrix.toarray() > 0, liked.toarray())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_movielens_layouts(file, layout, end, packed):
    lines = [LAYOUTS[layout].format(*record) for record in RECORDS]
    if layout == "ratings.csv":
        lines.insert(0, "userId,movieId,rating,timestamp")
    content = (end.join(lines) + end).encode()
    ratings = read_ratings(file(gzip.compress(content) if packed else content))
    assert ratings.users.dtype == ratings.items.dtype == np.int64
    assert_array_equal(ratings.users, [2, 10])
    assert_array_equal(ratings.items, [7, 30])
    assert_array_equal(ratings.matrix.toarray(), np.array([[3.5, 0], [5, 1]], np.float32))


def test_named_columns_in_any_place(file):
    path = file('\ufeffwhen;stars;who;"what"\n1;2;ann;"b;1"\n\n2;4.5;bob;"a ""1"""\n')
    ratings = read_ratings(path, columns=("who", "what", "stars"))
    assert ratings.users.tolist() == ["ann", "bob"]
    assert ratings.items.tolist() == ['a "1"', "b;1"]
    assert_array_equal(ratings.matrix.toarray(), [[0, 2], [4.5, 0]])


def test_the_last_of_repeated_ratings_counts(file):
    ratings = read_ratings(file("1\t1\t5\n1\t2\t4\n1\t1\t2\n2\t1\t1\n"))
    assert_array_equal(ratings.matrix.toarray(), [[2, 4], [1, 0]])
    assert read_ratings(file("1\t1\t5\n1\t1\t2\n"), min_rating=3).matrix.nnz == 0


def test_a_rating_of_zero_is_a_rating(file):
    ratings = read_ratings(file("1\t1\t0\n1\t2\t4\n2\t1\t3\n"))
    assert ratings.matrix.nnz == 3
    assert_array_equal(ratings.interactions().toarray(), [[True, True], [True, False]])
    assert_array_equal(ratings.interactions(1).toarray(), [[False, True], [True, False]])


def test_a_limit_keeps_users_and_items_in_place(file):
    path = file("1\t1\t5\n2\t1\t1\n2\t9\t1\n")
    ratings = read_ratings(path, min_rating=3)
    assert_array_equal(ratings.users, [1, 2])
    assert_array_equal(ratings.items, [1, 9])
    assert_array_equal(ratings.matrix.toarray(), [[5, 0], [0, 0]])


@pytest.mark.parametrize("ids", [["7", "007"], ["1", "x"], ["1", "99999999999999999999"], ["1", "+2"], ["1", "1.0"]])
def test_ids_that_are_not_all_integers_stay_text(file, ids):
    ratings = read_ratings(file("".join(f"{name}\t1\t3\n" for name in ids)))
    assert ratings.users.tolist() == sorted(ids)
    assert ratings.items.tolist() == [1]


@settings(deadline=None)
@given(
    records=st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters="\r\n\0\x1f", exclude_categories=["Cs"]), max_size=4)
            .map(str.strip)
            .filter(bool),
            st.integers(-5, 5),
            st.floats(-100, 100, width=32),
        ),
        min_size=1,
        max_size=20,
    ),
    delimiter=st.sampled_from(",;\t"),
)
def test_what_csv_writes(tmp_path_factory, records, delimiter):
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter)
    writer.writerow(["rating", "user", "item"])
    writer.writerows((rating, user, item) for user, item, rating in records)
    path = tmp_path_factory.mktemp("ratings") / "ratings.csv"
    path.write_bytes(buffer.getvalue().encode())

    ratings = read_ratings(path, columns=("user", "item", "rating"))
    expected = {(user, item): np.float32(rating) for user, item, rating in records}  # the last one counts
    assert entries(Ratings(ratings.matrix, ratings.users.astype(str), ratings.items)) == expected
    assert ratings.items.tolist() == sorted({item for _, item in expected})
    integers = ratings.users.dtype == np.int64
    users = {user for user, _ in expected}
    assert ratings.users.tolist() == (sorted(map(int, users)) if integers else sorted(users))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", ": no ratings, expected one a line"),
        ("1,,3\n", r":1: got \['1', '', '3'\], expected user, item and a finite rating"),
        ('"1,2,3', ":1: "),
        ("userId,movieId,rating\n", ": no ratings"),
        ("user,item,rating\n1,2,3\n", r":1: the header \['user', 'item', 'rating'\] lacks \['userId', 'movieId'\]"),
        ("1,2\n", ":1: the header"),
        ("1\t2\t3\n1\t2\n", r":2: got \['1', '2'\], expected user, item and a finite rating in fields 1, 2 and 3"),
        ("1\t2\t3\n\n1\t2\tgood\n", r":3: got \['1', '2', 'good'\]"),
        ("1::2::3\n1::2::nan\n", ":2: got"),
        ("1,2,3\n1,2,inf\n", ":2: got"),
        ("1,2,3\n1,2,1e39\n", ":2: got"),
        ('1,2,3\n1,"2,3\n1,2,3\n', ":3: unexpected end of data"),
        (b"1,2,3\n1,\xe9,3\n", ":2: not UTF-8"),
        (gzip.compress(b"1,2,3\n" * 9)[:-9], ":.*: gzip is broken"),
    ],
)
def test_malformed_ratings(file, content, message):
    with pytest.raises(ValueError, match=r"ratings.csv" + message):
        read_ratings(file(content))


def test_columns_are_checked(file):
    path = file("user,item,stars\n1,2,3\n")
    with pytest.raises(ValueError, match=r"ratings.csv:1: the header .* lacks \['rating'\]"):
        read_ratings(path, columns=("user", "item", "rating"))
    with pytest.raises(ValueError, match=r"columns: got \('user',\), expected the names of users, items and"):
        read_ratings(path, columns=("user",))
    with pytest.raises(FileNotFoundError):
        read_ratings("no such file")


def test_online_retail():
    retail = online_retail()
    assert retail.matrix.shape == (4335, 3659)
    assert retail.matrix.nnz == 266226
    assert retail.matrix.dtype == np.bool_
    assert (np.diff(retail.users) > 0).all()
    assert (retail.items[1:] > retail.items[:-1]).all()
    assert np.median(np.diff(retail.matrix.indptr)) == 35  # published beside the data
    assert_array_equal(retail.quantity.indices, retail.matrix.indices)
    assert_array_equal(retail.quantity.indptr, retail.matrix.indptr)

    def bought(user, item):
        return retail.quantity[np.flatnonzero(retail.users == user)[0], np.flatnonzero(retail.items == item)[0]]

    assert bought(12346, "23166") == 74215  # first and second line of the file
    assert bought(12347, "16008") == 24
    assert bought(12346, "16008") == 0
    assert retail.names[retail.items == "21228"] == 'POCKET MIRROR "GLAMOROUS"'
    assert isinstance(retail.matrix, sp.csr_array)


def test_pairs_without_ratings(tmp_path):
    path = tmp_path / "clicks.csv"
    path.write_text("day,user,item\n1,b,7\n2,a,9\n3,b,7\n")
    found = read_ratings(path, columns=("user", "item"))
    assert found.users.tolist() == ["a", "b"]
    assert found.items.tolist() == [7, 9]
    assert found.matrix.toarray().tolist() == [[0, 1], [1, 0]]
    path.write_text("day,user,item\n1,b,\n")
    with pytest.raises(ValueError, match=r"csv:2: got \['1', 'b', ''\], expected user and item in fields 2 and 3"):
        read_ratings(path, columns=("user", "item"))
