"""DSSTNE's text format against its own files, by round trips, and against malformed lines."""

import gzip

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from sparsenet.data import read_index, read_text, write_index, write_text

TEXT = "alice\tapple,1.5:fig\nbob\t\ncarol\tfig,7:apple\n"


@pytest.fixture
def file(tmp_path):
    def write(content, name="text.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def entries(text):
    """What a Text says: {(sample, feature): value}."""
    matrix = text.matrix.tocoo()
    return {
        (text.samples[row], text.features[column]): value
        for row, column, value in zip(matrix.row, matrix.col, matrix.data, strict=True)
    }


@pytest.mark.parametrize("name", ["tiny_indicator", "tiny_analog"])
def test_names_are_numbered_as_dsstne_numbers_them(shared, name):
    text = read_text(shared(f"netcdf/dsstne_made/{name}.txt"))
    assert text.samples == read_index(shared(f"netcdf/dsstne_made/{name}_samples.idx"))
    assert text.features == read_index(shared(f"netcdf/dsstne_made/{name}_features.idx"))


def test_movielens_as_text(shared):
    text = read_text(shared("netcdf/dsstne_made/ml100k_analog.txt.gz"), values=True)
    assert text.samples == read_index(shared("netcdf/dsstne_made/ml100k_samples_analog.idx"))
    assert text.features == read_index(shared("netcdf/dsstne_made/ml100k_features_analog.idx"))
    ratings = np.loadtxt(shared("ratings/ml-100k/u.data"), dtype=int)
    assert entries(text) == {(str(user), str(item)): rating for user, item, rating, _ in ratings}


def test_a_given_numbering(shared):
    names = read_index(shared("dsstne/java_test_data/index.txt"))
    path = shared("dsstne/java_test_data/movielens_input_1024.txt.gz")
    text = read_text(path, features=names)
    assert text.matrix.shape == (1024, 26744)
    assert text.matrix.nnz == 153511
    assert text.features == names
    with gzip.open(path, "rt") as lines:
        sample, words = next(lines).rstrip("\n").split("\t")
    assert text.samples[0] == sample
    columns = text.matrix[[0]].indices
    assert {names[column] for column in columns} == {word.split(",")[0] for word in words.split(":")}


def test_features_alone_and_values(file):
    path = file(TEXT.replace("fig\n", "fig,-2\n").replace(":apple", ":apple,1e-3"))
    alone = read_text(path)
    assert alone.matrix.dtype == np.bool_
    assert (alone.samples, alone.features) == (["alice", "bob", "carol"], ["apple", "fig"])
    assert_array_equal(alone.matrix.toarray(), [[True, True], [False, False], [True, True]])
    values = read_text(path, values=True)
    assert values.matrix.dtype == np.float32
    assert_array_equal(values.matrix.toarray(), np.array([[1.5, -2], [0, 0], [1e-3, 7]], np.float32))


def test_repetitions_and_empty_lines(file):
    path = file("a\tx,1:y,2:x,4\r\n\r\nb\ty,1\r\n\na\ty,8:z,0")
    assert_array_equal(read_text(path, values=True).matrix.toarray(), [[5, 10, 0], [0, 1, 0]])
    assert_array_equal(read_text(path).matrix.toarray(), [[True, True, True], [False, True, False]])


def test_unknown_names_are_errors_or_counted(file):
    path = file(TEXT)
    with pytest.raises(ValueError, match=r"text.txt:1: 'fig' is not one of the 2 given features"):
        read_text(path, features=["pear", "apple"])
    with pytest.raises(ValueError, match=r"text.txt:2: 'bob' is not one of the 2 given samples"):
        read_text(path, samples=["carol", "alice"])

    text = read_text(path, features=["pear", "apple"], unknown="ignore")
    assert text.ignored == 2
    assert_array_equal(text.matrix.toarray(), [[False, True], [False, False], [False, True]])
    text = read_text(path, samples=["dora", "carol"], unknown="ignore")
    assert text.ignored == 2
    assert (text.samples, text.features) == (["dora", "carol"], ["fig", "apple"])
    assert_array_equal(text.matrix.toarray(), [[False, False], [True, True]])


def test_a_folder_is_read_in_the_order_of_names(file, tmp_path):
    file("b\ty\n", "2.txt")
    file(gzip.compress(b"a\tx\n"), "10.txt")
    file("not text", ".hidden")
    (tmp_path / "folder").mkdir()
    text = read_text(tmp_path)
    assert (text.samples, text.features) == (["a", "b"], ["x", "y"])
    with pytest.raises(ValueError, match="a folder without files"):
        read_text(tmp_path / "folder")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\tx\nb x\n", ":2: got 0 TABs, expected a sample, a TAB and its features"),
        ("a\tx\ty\n", ":1: got 2 TABs"),
        ("\tx\n", ":1: got 1 TABs, expected a sample"),
        ("a\tx\nb\tx::y\n", ":2: got '' between colons, expected a feature"),
        ("a\tx:\n", ":1: got '' between colons"),
        ("a\t,1\n", ":1: got ',1' between colons"),
        (b"a\tx\nb\t\xff\n", ":2: not UTF-8"),
        (gzip.compress(b"a\tx\n" * 9)[:-9], ":.*: gzip is broken"),
        ("", ": empty: 0 rows, 0 columns"),
        ("a\t\n", ": empty: 1 rows, 0 columns"),
    ],
)
def test_malformed_text(file, content, message):
    with pytest.raises(ValueError, match=r"text.txt" + message):
        read_text(file(content))


@pytest.mark.parametrize("word", ["x", "x,", "x,one", "x,1,2", "x,nan", "x,inf", "x,1e39"])
def test_malformed_values(file, word):
    with pytest.raises(ValueError, match=f":2: got '{word}', expected feature,value with a finite float32"):
        read_text(file(f"a\tx,1\nb\t{word}\n"), values=True)


def test_arguments_of_read_text(file):
    with pytest.raises(ValueError, match="unknown: got 'drop', expected 'error' or 'ignore'"):
        read_text(file(TEXT), unknown="drop")
    with pytest.raises(ValueError, match="features: got 2 names of which 1 differ"):
        read_text(file(TEXT), features=["fig", "fig"])
    with pytest.raises(FileNotFoundError):
        read_text("no such file")


def names(size, marks):
    letters = st.characters(exclude_characters=marks, exclude_categories=["Cs"])
    return st.lists(st.text(letters, min_size=1, max_size=5), min_size=size, max_size=size, unique=True)


@settings(deadline=None)
@given(st.data(), st.booleans(), st.sampled_from(["text.txt", "text.gz"]))
def test_text_round_trip(tmp_path_factory, data, boolean, name):
    shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    value = st.booleans() if boolean else st.floats(-(2.0**100), 2.0**100, width=32)
    dense = np.array(
        data.draw(st.lists(value, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])),
        np.bool_ if boolean else np.float32,
    ).reshape(shape)
    samples = data.draw(names(shape[0], "\t\r\n"))
    features = data.draw(names(shape[1], "\t\r\n:,"))
    path = tmp_path_factory.mktemp("text") / name
    write_text(path, sp.csr_array(dense), samples, features)

    text = read_text(path, features, samples, values=not boolean)
    assert text.matrix.dtype == dense.dtype
    assert_array_equal(text.matrix.toarray(), dense)
    if dense.any():
        assert read_text(path).samples == samples


def test_written_text_is_what_dsstne_reads(tmp_path):
    write_text(tmp_path / "dense.txt", [[0, 0.1], [3, 0]], ["a", "b"], ["x", "y"])
    assert (tmp_path / "dense.txt").read_bytes() == b"a\ty,0.1\nb\tx,3.0\n"
    write_text(tmp_path / "bool.txt", sp.csr_array([[True, True], [False, False]]), ["a", "b"], ["x", "y"])
    assert (tmp_path / "bool.txt").read_bytes() == b"a\tx:y\nb\t\n"


@pytest.mark.parametrize(
    ("samples", "features", "message"),
    [
        (["a"], ["x", "y"], "samples: got 1 names, expected 2"),
        (["a", "b"], ["x", "y", "z"], "features: got 3 names, expected 2"),
        (["a", "a"], ["x", "y"], "samples: got 2 names of which only 1 differ"),
        (["a", ""], ["x", "y"], "samples: got '', expected a name"),
        (["a", "b\n"], ["x", "y"], "samples: got"),
        (["a", "b"], ["x", "y:z"], "features: got 'y:z'"),
        (["a", "b"], ["x,1", "y"], "features: got 'x,1'"),
        (["a", "b"], ["x\r", "y"], "features: got"),
    ],
)
def test_names_that_cannot_be_written(tmp_path, samples, features, message):
    with pytest.raises(ValueError, match=message):
        write_text(tmp_path / "text.txt", np.ones((2, 2)), samples, features)


@settings(deadline=None)
@given(st.integers(0, 6).flatmap(lambda size: names(size, "\t\r\n")), st.randoms())
def test_index_round_trip_in_any_order(tmp_path_factory, labels, random):
    path = tmp_path_factory.mktemp("index") / "index.idx"
    write_index(path, labels)
    assert read_index(path) == labels
    lines = path.read_bytes().split(b"\n")[:-1]
    random.shuffle(lines)
    path.write_bytes(b"\n".join(lines))
    assert read_index(path) == labels


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\t0\nb 1\n", ":2: got 'b 1', expected a name, a TAB and a number"),
        ("a\t0\nb\t-1\n", r":2: got 'b\\t-1'"),
        ("\t0\n", ":1: got"),
        ("a\t1.0\n", ":1: got"),
        ("a\t0\na\t1\n", r":2: 'a\\t1' repeats a name or a number"),
        ("a\t0\nb\t0\n", r":2: 'b\\t0' repeats a name or a number"),
        ("a\t0\nb\t2\n", ": number 1 is missing, expected all of 0 to 1"),
        ("a\t1\n", ": number 0 is missing"),
    ],
)
def test_malformed_index(file, content, message):
    with pytest.raises(ValueError, match=r"text.txt" + message):
        read_index(file(content))


def test_names_of_an_index_are_checked(tmp_path):
    with pytest.raises(ValueError, match="names: got 2 names of which only 1 differ"):
        write_index(tmp_path / "index.idx", ["a", "a"])
