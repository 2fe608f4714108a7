"""DSSTNE's netCDF files: genuine ones against the text they were made from, round trips, and broken ones."""

import gzip
import subprocess
import sys

import netCDF4
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from sparsenet.data import Dataset, read_netcdf, write_netcdf
from sparsenet.data.files import create_netcdf, open_netcdf

MADE = "netcdf/dsstne_made/"
FILL = 4294967295  # netCDF's default fill value of uint32


def only(path):
    (dataset,) = read_netcdf(path).values()
    return dataset


# ---- files that DSSTNE wrote


@pytest.mark.parametrize(
    ("name", "text", "samples", "features", "rows"),
    [
        ("tiny_indicator", "tiny_indicator.txt", "tiny_indicator_samples", "tiny_indicator_features", 5),
        ("tiny_analog", "tiny_analog.txt", "tiny_analog_samples", "tiny_analog_features", 5),
        ("ml100k_gl_input", "ml100k_indicator.txt.gz", "ml100k_samples", "ml100k_features_input", 943),
        ("ml100k_gl_output", "ml100k_indicator.txt.gz", "ml100k_samples", "ml100k_features_output", 943),
        ("ml100k_analog", "ml100k_analog.txt.gz", "ml100k_samples_analog", "ml100k_features_analog", 943),
    ],
)
def test_dsstne_files_say_what_their_text_says(shared, name, text, samples, features, rows):
    def numbers(index):
        lines = shared(f"{MADE}{index}.idx").read_text().splitlines()
        return {label: int(number) for label, number in (line.split("\t") for line in lines)}

    row_of, column_of = numbers(samples), numbers(features)
    analog = "analog" in name
    expected = {}
    with gzip.open(shared(MADE + text), "rt") if text.endswith("gz") else open(shared(MADE + text)) as lines:
        for line in lines:
            sample, words = line.rstrip("\n").split("\t")
            for word in words.split(":"):
                feature, *value = word.split(",")
                place = row_of[sample], column_of[feature]
                expected[place] = np.float32(value[0]) if analog else True

    dataset = only(shared(f"{MADE}{name}.nc"))
    assert dataset.boolean is not analog
    assert dataset.features == -(-len(column_of) // 128) * 128  # DSSTNE rounds the width up
    assert dataset.examples == len(row_of) == rows
    matrix = dataset.matrix.tocoo()
    found = dict(zip(zip(matrix.row.tolist(), matrix.col.tolist(), strict=True), matrix.data, strict=True))
    assert found == expected


def test_dsstne_images(shared):
    path = shared(f"{MADE}cifar10_training_256.nc")
    images, labels = read_netcdf(path).values()
    assert (images.name, labels.name) == ("input", "output")
    with netCDF4.Dataset(path) as file:
        assert_array_equal(images.matrix, file["data0"][:].reshape(256, 3072).astype(np.float32))
        assert_array_equal(labels.matrix.indices, file["sparseIndex1"][:])
    assert not images.sparse
    assert images.matrix.max() == 255
    assert labels.boolean
    assert_array_equal(labels.matrix.indptr, np.arange(257))


@pytest.mark.parametrize("name", ["tiny_indicator", "tiny_analog"])
def test_what_is_written_is_what_dsstne_wrote(shared, tmp_path, name):
    genuine = shared(f"{MADE}{name}.nc")
    write_netcdf(tmp_path / "ours.nc", read_netcdf(genuine))
    with netCDF4.Dataset(genuine) as theirs, netCDF4.Dataset(tmp_path / "ours.nc") as ours:
        assert ours.data_model == theirs.data_model
        assert ours.ncattrs() == theirs.ncattrs()
        for attribute in theirs.ncattrs():
            assert ours.getncattr(attribute) == theirs.getncattr(attribute)
            assert type(ours.getncattr(attribute)) is type(theirs.getncattr(attribute))
        assert {key: len(dimension) for key, dimension in ours.dimensions.items()} == {
            key: len(dimension) for key, dimension in theirs.dimensions.items()
        }
        assert list(ours.variables) == list(theirs.variables)
        for key, variable in theirs.variables.items():
            assert ours[key].dtype == variable.dtype
            assert ours[key].dimensions == variable.dimensions
            assert_array_equal(ours[key][:], variable[:])


# ---- round trips


@st.composite
def datasets(draw, name):
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    kind = draw(st.sampled_from(["boolean", "sparse", "dense"]))
    value = st.booleans() if kind == "boolean" else st.just(0.0) | st.floats(-4, 4, width=32)
    values = draw(st.lists(value, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    matrix = np.array(values, np.bool_ if kind == "boolean" else np.float32).reshape(shape)
    weight = st.lists(st.floats(0, 4, width=32), min_size=shape[0], max_size=shape[0])
    weights = draw(st.none() | weight)
    return Dataset(name, matrix if kind == "dense" else sp.csr_array(matrix), weights)


def assert_same(one, other):
    assert (one.name, one.sparse, one.boolean) == (other.name, other.sparse, other.boolean)
    dense = [dataset.matrix.toarray() if dataset.sparse else dataset.matrix for dataset in (one, other)]
    assert_array_equal(*dense)
    assert (one.weights is None) == (other.weights is None)
    if one.weights is not None:
        assert_array_equal(one.weights, other.weights)


@settings(deadline=None, max_examples=50)
@given(st.tuples(datasets("input"), datasets("Ausgabe, größer")))
def test_round_trip(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("netcdf") / "data.nc"
    write_netcdf(path, written)
    read = read_netcdf(path)
    assert list(read) == [dataset.name for dataset in written]
    for dataset in written:
        assert_same(read[dataset.name], dataset)


def test_ways_to_name_what_is_written(tmp_path):
    path = tmp_path / "data.nc"
    write_netcdf(path, {"a": [[1, 2]], "b": Dataset("other", [[3.0]], [2.0])})
    assert_same(read_netcdf(path)["a"], Dataset("a", [[1, 2]]))
    assert_same(read_netcdf(path)["b"], Dataset("b", [[3.0]], [2.0]))
    write_netcdf(path, Dataset("c", [[1.0]]))
    assert list(read_netcdf(path)) == ["c"]

    with pytest.raises(ValueError, match=r"datasets: got the names \['c', 'c'\]"):
        write_netcdf(path, [Dataset("c", [[1.0]]), Dataset("c", [[2.0]])])
    with pytest.raises(ValueError, match=r"datasets: got the names \[\]"):
        write_netcdf(path, [])
    with pytest.raises(TypeError, match="datasets: got ndarray, expected Dataset or a dict of matrices"):
        write_netcdf(path, [np.ones((1, 1))])
    assert list(read_netcdf(path)) == ["c"]


# ---- files of every kind that DSSTNE may hold, made item by item

SPARSE = {
    "datasets": 1, "name0": "input", "attributes0": 1, "kind0": 0, "dataType0": 4, "dimensions0": 1, "width0": 4,
    "sparseStart0": np.array([0, 2, 2], "u4"), "sparseEnd0": np.array([2, 2, 3], "u4"),
    "sparseIndex0": np.array([3, 0, 2], "u4"), "sparseData0": np.array([0.5, 2, -1], "f4"),
}  # fmt: skip
DENSE = {
    "datasets": 1, "name0": "input", "attributes0": 0, "kind0": 0, "dataType0": 4, "dimensions0": 1, "width0": 2,
    "examplesDim0": 2, "data0": np.array([1, 2, 3, 4], "f4"),
}  # fmt: skip


@pytest.fixture
def make(tmp_path):
    """Write a data file of `items`, changed by keywords; None leaves an item out."""

    def make(items, **changes):
        items = {**items, **changes}
        if "sparseStart0" in items:
            items.setdefault("examplesDim0", 3)
            items.setdefault("sparseDataDim0", 3)
        path = tmp_path / "made.nc"
        with netCDF4.Dataset(path, "w") as file:
            for name, value in items.items():
                if isinstance(value, np.ndarray):
                    file.createDimension(f"of_{name}", len(value))
                    dtype = str if value.dtype.kind == "U" else value.dtype
                    file.createVariable(name, dtype, (f"of_{name}",))[:] = value
                elif "Dim" in name and value is not None:
                    file.createDimension(name, value)
                elif value is not None:
                    file.setncattr(name, np.uint32(value) if type(value) is int else value)
        return path

    return make


def test_sparse(make):
    dataset = only(make(SPARSE))
    assert_array_equal(dataset.matrix.toarray(), [[2, 0, 0, 0.5], [0, 0, 0, 0], [0, 0, -1, 0]])
    boolean = only(make(SPARSE, attributes0=3, dataType0=0, sparseData0=None))
    assert_array_equal(boolean.matrix.toarray(), dataset.matrix.toarray() != 0)
    assert boolean.boolean


@pytest.mark.parametrize("dtype", ["u8", "i8", "i4", "u2"])
def test_row_bounds_of_any_integer_type(make, dtype):
    changes = {name: SPARSE[name].astype(dtype) for name in ("sparseStart0", "sparseEnd0", "sparseIndex0")}
    assert_same(only(make(SPARSE, **changes)), only(make(SPARSE)))


def test_rows_that_overlap_or_leave_gaps(make):
    changes = {"sparseStart0": np.array([1, 0, 1], "u4"), "sparseEnd0": np.array([3, 2, 1], "u4")}
    dataset = only(make(SPARSE, **changes))
    assert_array_equal(dataset.matrix.toarray(), [[2, 0, -1, 0], [2, 0, 0, 0.5], [0, 0, 0, 0]])


def test_repeated_features_are_summed(make):
    dataset = only(make(SPARSE, sparseIndex0=np.array([3, 3, 2], "u4")))
    assert_array_equal(dataset.matrix.toarray()[0], [0, 0, 0, 2.5])


@pytest.mark.parametrize("dtype", ["f8", "i4", "u4", "i8", "u8", "i1", "u1", "i2"])
def test_values_of_other_types(make, dtype):
    values = np.array([1, 2, 100], dtype)
    assert only(make(SPARSE, dataType0=1, sparseData0=values)).matrix.data.tolist() == [2, 1, 100]
    assert only(make(SPARSE, dataType0=1, sparseData0=values)).matrix.dtype == np.float32


@pytest.mark.parametrize(
    ("data_type", "stored", "means"),
    [
        (6, np.array([1, -1, -128, 127], "i1"), [[1, 255], [128, 127]]),  # RGB8 in netCDF's byte
        (7, np.array([1, -1, -32768, 2], "i2"), [[1, 65535], [32768, 2]]),  # RGB16 in netCDF's short
        (8, np.array([1, 255, 128, 0], "u1"), [[1, 255], [128, 0]]),
        (8, np.array([b"\1", b"\xff", b"\x80", b"A"], "S1"), [[1, 255], [128, 65]]),
        (9, np.array([1, -1, -128, 127], "i1"), [[1, -1], [-128, 127]]),
    ],
    ids=["RGB8", "RGB16", "UCHAR", "UCHAR in char", "CHAR"],
)
def test_bytes_keep_their_values(make, data_type, stored, means):
    assert_array_equal(only(make(DENSE, dataType0=data_type, data0=stored)).matrix, np.array(means, np.float32))


def test_dimensions_are_multiplied(make):
    values = np.arange(24, dtype="f4")
    shape = {"dimensions0": 3, "width0": 3, "height0": 2, "length0": 2}
    dataset = only(make(DENSE, data0=values, **shape))
    assert_array_equal(dataset.matrix, values.reshape(2, 12))
    assert only(make(SPARSE, **shape)).features == 12


def test_dense_boolean_is_one_feature_an_example(make):
    dataset = only(make(DENSE, attributes0=2, dataType0=0, width0=3, data0=np.array([2, 0], "u4")))
    assert dataset.boolean
    assert_array_equal(dataset.matrix.toarray(), [[False, False, True], [True, False, False]])


def test_indexed_and_weighted(make):
    index = {"attributes0": 64 + 128 + 1, "uniqueExamplesDim0": 3, "examplesDim0": 4}
    changes = {"index0": np.array([2, 0, 2, 1], "u4"), "dataWeight0": np.array([1, 2, 0, 0.5], "f4")}
    rows = only(make(SPARSE)).matrix.toarray()
    dataset = only(make(SPARSE, **index, **changes))
    assert_array_equal(dataset.matrix.toarray(), rows[[2, 0, 2, 1]])
    assert_array_equal(dataset.weights, [1, 2, 0, 0.5])

    dense = only(make(DENSE, attributes0=64, index0=np.array([1, 1], "u4")))
    assert_array_equal(dense.matrix, [[3, 4], [3, 4]])


def test_values_that_netcdf_takes_for_missing_are_read(make):
    fill = netCDF4.default_fillvals["f4"]
    assert only(make(DENSE, data0=np.array([1, fill, 3, 4], "f4"))).matrix[0, 1] == np.float32(fill)
    with open_netcdf(make(SPARSE, extra=np.array([FILL, 1], "u4"))) as file:
        values = file["extra"][:]
    assert type(values) is np.ndarray
    assert values.tolist() == [FILL, 1]


# ---- files that contradict themselves


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"datasets": None}, "not a DSSTNE data file: it has no attribute 'datasets'"),
        ({"datasets": 0}, "attribute datasets is 0, expected an integer >= 1"),
        ({"datasets": "one"}, "attribute datasets is one, expected an integer >= 1"),
        ({"datasets": 2}, "data set 1: name1 is missing or not a string"),
        ({"name0": None}, "name0 is missing or not a string"),
        ({"name0": 5}, "name0 is missing or not a string"),
        ({"attributes0": None}, "attribute attributes0 is missing"),
        ({"attributes0": 1.5}, "attribute attributes0 is 1.5, expected an integer >= 0"),
        ({"dataType0": None}, "attribute dataType0 is missing"),
        ({"dimensions0": None}, "attribute dimensions0 is missing"),
        ({"dimensions0": 0}, "attribute dimensions0 is 0, expected an integer >= 1"),
        ({"dimensions0": 4}, "dimensions0 is 4, expected 1 to 3"),
        ({"dimensions0": 2}, "attribute height0 is missing"),
        ({"width0": None}, "attribute width0 is missing"),
        ({"width0": 0}, "attribute width0 is 0, expected an integer >= 1"),
        ({"width0": 2**31}, "width0 etc. make 2147483648 features"),
        ({"examplesDim0": None}, "examplesDim0 is missing, expected a dimension"),
        ({"examplesDim0": 2}, r"sparseStart0 has shape \(3,\), expected \(2,\)"),
        ({"sparseDataDim0": None}, "sparseDataDim0 is missing, expected a dimension"),
        ({"sparseDataDim0": 2}, "sparseEnd0 holds 3 at 2, expected 0 to 2"),
        ({"sparseDataDim0": 4}, r"sparseIndex0 has shape \(3,\), expected \(4,\)"),
        ({"sparseStart0": None}, "sparseStart0 is missing, expected a variable"),
        ({"sparseStart0": np.array([0, 3, 2], "u4")}, "sparseStart0 has row 1 start at 3, after its end 2"),
        ({"sparseStart0": np.array([0, -1, 2], "i4")}, "sparseStart0 holds -1 at 1, expected 0 to 3"),
        ({"sparseStart0": np.array([0, 2.0, 2], "f4")}, "sparseStart0 is float32, expected integers"),
        ({"sparseEnd0": np.array([2, 2], "u4")}, r"sparseEnd0 has shape \(2,\), expected \(3,\)"),
        ({"sparseEnd0": np.array([2, 2, 4], "u4")}, "sparseEnd0 holds 4 at 2, expected 0 to 3"),
        ({"sparseEnd0": np.array([2, 2, 2**64 - 1], "u8")}, "sparseEnd0 holds 18446744073709551615 at 2"),
        ({"sparseIndex0": np.array([3, 4, 2], "u4")}, "sparseIndex0 holds 4 at 1, expected 0 to 3"),
        ({"sparseIndex0": np.array([3, -1, 2], "i8")}, "sparseIndex0 holds -1 at 1"),
        ({"sparseIndex0": np.array(["a", "b", "c"])}, "sparseIndex0 is .*str.*, expected numbers"),
        ({"sparseData0": None}, "sparseData0 is missing, expected a variable"),
        ({"sparseData0": np.zeros(2, "f4")}, r"sparseData0 has shape \(2,\), expected \(3,\)"),
        ({"sparseData0": np.array([0, np.nan, 1], "f4")}, "input: row 0, column 0 is nan"),
        ({"sparseData0": np.array([0, 1, 1e300])}, r"input: row 2, column 2 is 1e\+300, more than"),
        ({"attributes0": 65}, "index0 is missing, expected a variable"),
        ({"attributes0": 65, "index0": np.array([0, 1, 3], "u4")}, "index0 holds 3 at 2, expected 0 to 2"),
        ({"uniqueExamplesDim0": 3, "examplesDim0": 4}, "uniqueExamplesDim0 is 3, but there are 4 examples"),
        ({"attributes0": 129}, "dataWeight0 is missing, expected a variable"),
        ({"attributes0": 129, "dataWeight0": np.array([1, 1, -1], "f4")}, "input: weights: row 2 is -1"),
    ],
)
def test_sparse_sets_that_contradict_themselves(make, changes, message):
    with pytest.raises(ValueError, match=rf"made\.nc: (data set 0: )?({message})"):
        read_netcdf(make(SPARSE, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data0": None}, "data0 is missing, expected a variable"),
        ({"data0": np.zeros(5, "f4")}, r"data0 has shape \(5,\), expected \(4,\)"),
        ({"width0": 3}, r"data0 has shape \(4,\), expected \(6,\)"),
        ({"data0": np.array([1, 2, np.inf, 4])}, "input: row 1, column 0 is inf"),
        ({"attributes0": 2}, r"data0 has shape \(4,\), expected \(2,\)"),
        ({"attributes0": 2, "data0": np.array([0, 2], "u4")}, "data0 holds 2 at 1, expected 0 to 1"),
    ],
)
def test_dense_sets_that_contradict_themselves(make, changes, message):
    with pytest.raises(ValueError, match=rf"made\.nc: (data set 0: )?({message})"):
        read_netcdf(make(DENSE, **changes))


def test_two_sets_of_one_name(make):
    second = {name.replace("0", "1"): value for name, value in DENSE.items() if name != "datasets"}
    with pytest.raises(ValueError, match=r"made\.nc: data set 1: an earlier one is also called 'input'"):
        read_netcdf(make({**DENSE, **second, "datasets": 2}))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test_gold.nc", "not a DSSTNE data file: it has no attribute 'datasets'"),
        ("netcdf_dummy_file.nc", "got NETCDF3_CLASSIC, expected NETCDF4, as DSSTNE writes"),
        ("ubyte.nc", "got NETCDF3_CLASSIC, expected NETCDF4, as DSSTNE writes"),
    ],
)
def test_netcdf_files_of_others(shared, name, message):
    with pytest.raises(ValueError, match=f"{name}: {message}"):
        read_netcdf(shared(f"netcdf/others/{name}"))


def test_other_formats(tmp_path):
    path = tmp_path / "data.nc"
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_netcdf(path)
    for content in (b"", b"sample\tfeature\n", b"\x89HDF\r\n\x1a\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"data\.nc: not a readable netCDF file"):
            read_netcdf(path)


def test_truncated_files(tmp_path, capfd):
    whole, cut = tmp_path / "whole.nc", tmp_path / "cut.nc"
    write_netcdf(whole, {"a": sp.csr_array(np.eye(30)), "b": np.ones((5, 5))})
    assert list(read_netcdf(whole)) == ["a", "b"]
    content = whole.read_bytes()
    for size in {*range(0, len(content), 97), len(content) // 2, len(content) - 1}:
        cut.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"cut\.nc: "):
            read_netcdf(cut)
    assert capfd.readouterr().err == ""


# ---- how files come into being


def test_a_failed_block_leaves_the_old_file(tmp_path):
    path = tmp_path / "data.nc"
    write_netcdf(path, {"old": [[1.0]]})
    for error in (RuntimeError("mine"), OSError("mine"), KeyboardInterrupt()):
        with pytest.raises(type(error), match=r"^(mine)?$"), create_netcdf(path) as file:  # noqa: PT012
            file.createDimension("x", 3)
            raise error
        assert [file.name for file in tmp_path.iterdir()] == ["data.nc"]
    assert list(read_netcdf(path)) == ["old"]


def test_a_file_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "data.nc"
    with create_netcdf(path) as file:
        assert not path.exists()
        file.setncattr("datasets", np.uint32(1))
    assert [file.name for file in tmp_path.iterdir()] == ["data.nc"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link.nc").symlink_to(tmp_path / "data.nc")
    write_netcdf(tmp_path / "link.nc", {"a": [[1.0]]})
    assert (tmp_path / "link.nc").is_symlink()
    assert list(read_netcdf(tmp_path / "data.nc")) == ["a"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("missing/data.nc", FileNotFoundError),
        ("file/data.nc", FileNotFoundError),
        ("folder", IsADirectoryError),
        ("n" * 300 + ".nc", OSError),
    ],
)
def test_places_that_cannot_be_written(tmp_path, name, error):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(error) as caught:
        write_netcdf(tmp_path / name, {"a": [[1.0]]})
    assert str(tmp_path / name) in str(caught.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder"]


FULL_DISK = """
import resource, signal, sys
import numpy as np
from sparsenet.data import read_netcdf, write_netcdf
path, limit = sys.argv[1], int(sys.argv[2])
write_netcdf(path, {"old": [[1.0]]})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    write_netcdf(path, {"new": np.ones((300, 400))})
except OSError as error:
    assert error.filename == path, error
    assert "cannot write" in str(error)
else:
    raise AssertionError("wrote beyond the limit")
assert list(read_netcdf(path)) == ["old"]
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on file sizes")
@pytest.mark.parametrize("limit", [100_000, 480_000])
def test_a_full_disk(tmp_path, limit):
    """A limit on file sizes stands for the full disk: the system refuses to write beyond it."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "data.nc"), str(limit)]
    subprocess.run(command, check=True, timeout=60)
    assert [file.name for file in tmp_path.iterdir()] == ["data.nc"]


def test_netcdf4_is_imported_on_first_use():
    check = "import sys, sparsenet.data; assert not {'netCDF4', 'pandas', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
