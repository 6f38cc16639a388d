"""Datasets of arrays and frames in memory, and what these become."""

import pickle

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

from distrff.errors import DataWarning, InputError, InputTypeError
from distrff.estimators.base import open_rows
from distrff.io.arrays import as_dataset, block_of, targets_of, weights_of, with_columns


@pytest.fixture
def Xyw():
    rng = np.random.default_rng(0)
    return rng.normal(size=(101, 3)).astype("f4"), rng.integers(0, 5, 101), rng.random(101)


def test_description(Xyw):
    data = as_dataset(*Xyw)
    assert (data.n_rows, data.n_columns, data.dtype, data.y_dtype) == (101, 3, np.float32, np.int64)
    assert (data.n_targets, data.y_is_1d, data.has_weights) == (1, True, True)
    assert (data.column_names, data.target_names, data.table_report) == (None, None, None)
    assert data.row_bytes == 3 * 4 + 8 + 8
    assert data.source == "NumPy array"
    assert "101 rows x 3 columns of float32" in repr(data)
    assert as_dataset(data) is data
    alone = as_dataset(Xyw[0])
    assert (alone.n_targets, alone.y_dtype, alone.y, alone.sample_weight) == (0, None, None, None)
    assert next(alone.rows(0, 5).tiles(5))[2:4] == (None, None)
    X = np.zeros((100_000, 10))
    rows = as_dataset(X).rows(5000, 5100)
    assert len(pickle.dumps(rows)) < 100 * 10 * 8 + 2000  # they take only themselves along
    assert np.shares_memory(next(rows.tiles(100)).X, X)


def test_frames(read_dataset):
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3, 4]}, index=[7, 3])
    data = as_dataset(frame, pd.Series(["u", "v"], name="kind", index=[0, 1]))
    assert (data.column_names, data.target_names, data.source) == (("a", "b"), ("kind",), "pandas DataFrame")
    X, y, _ = read_dataset(data, 1, 1)
    np.testing.assert_array_equal(X, [[1, 3], [2, 4]])
    assert y.tolist() == ["u", "v"]  # by position, as scikit-learn takes them


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["a", "a"], "two columns named 'a'; rename one"),
        ([0, 0], "two columns named 0; rename one"),
        (["a", 0], r"must all be strings, or none, got 0 of type int beside strings; .*astype\(str\)"),
        ([1, "1"], "got 1 of type int beside strings"),
    ],
)
def test_names_that_predictions_could_not_find(names, told):
    frame = pd.DataFrame(np.zeros((4, 2)), columns=names)
    for values in (frame, dd.from_pandas(frame, npartitions=1)):
        with pytest.raises(InputError, match=told):
            as_dataset(values, np.zeros(4))


@pytest.mark.parametrize("names", [[0, 1], [1.5, 2.5], [("a", 1), ("a", 2)]])
def test_names_that_are_no_strings_are_none(names):
    frame = pd.DataFrame(np.zeros((4, 2)), columns=names)
    assert as_dataset(frame).column_names is None


def test_a_matrix_is_refused_as_by_scikit_learn(Xyw):
    X, y, _ = Xyw
    with pytest.raises(InputTypeError, match=r"X is an np.matrix.*np.asarray\(X\)"):
        as_dataset(np.matrix(X), y)
    with pytest.raises(InputTypeError, match=r"y is an np.matrix"):
        as_dataset(X, np.matrix(y).T)


def test_what_does_not_go_together(Xyw):
    X, y, w = Xyw
    with pytest.raises(InputError, match="X has 101 rows but y has 100"):
        as_dataset(X, y[1:])
    with pytest.raises(InputError, match="X has 101 rows but sample_weight has 99"):
        as_dataset(X, y, w[2:])
    for bounds in ((-1, 3), (3, 3), (0, 102)):
        with pytest.raises(InputError, match="outside of"):
            as_dataset(X).rows(*bounds)
    with pytest.raises(InputError, match="its own y"):
        as_dataset(as_dataset(X), y)
    with pytest.raises(InputTypeError, match="dask Bag"):
        as_dataset(db.from_sequence([[1.0]]))


SUBJECT = pd.Series(list("uvvwuw"), name="subject")
WORDS = pd.DataFrame({"a": np.arange(6.0), "word": list("xyxyxy")})
NUMBERS = np.arange(12.0).reshape(6, 2)


def kind_of(values):
    return f"{type(values).__module__.split('.')[0]} {type(values).__name__}"


@pytest.mark.parametrize(
    "groups",
    [
        SUBJECT.tolist(), SUBJECT.to_numpy(), SUBJECT, SUBJECT.astype("category"), pl.Series([*SUBJECT]),
        dd.from_pandas(SUBJECT, npartitions=2), da.from_array(SUBJECT.to_numpy(object), chunks=4),
        SUBJECT.to_frame(), dd.from_pandas(SUBJECT.to_frame(), npartitions=2),
    ],
    ids=kind_of,
)  # fmt: skip
@pytest.mark.parametrize(
    "X", [NUMBERS, da.from_array(NUMBERS, chunks=3), WORDS, dd.from_pandas(WORDS, npartitions=3)], ids=kind_of
)
def test_groups_in_memory_or_lazy_beside_rows_of_either(X, groups):
    with dask.config.set(scheduler="sync"):
        data = open_rows(X, groups=groups)
        blocks = dask.delayed(lambda rows: list(rows.tiles(2)))(data.rows(1, 6)).compute()
    assert (data.groups, data.ids) == ("groups", ())
    assert np.concatenate([block.ids["groups"] for block in blocks]).tolist() == SUBJECT.tolist()[1:]


def test_groups_that_do_not_go_with_the_rows():
    X, labels = pd.DataFrame({"a": np.arange(6.0)}, index=list("abcdef")), list("fedcba")
    with pytest.raises(InputError, match=r"^groups has 5 rows but X has 6"):
        open_rows(X, groups=SUBJECT[:5].tolist())
    with pytest.raises(InputError, match=r"sample_weight .* groups of rows are given by name: groups="):
        open_rows(X, None, SUBJECT)
    with pytest.raises(InputError, match="groups has 2 columns; give one"):
        open_rows(X, groups=np.zeros((6, 2)))
    with pytest.raises(InputError, match=r"groups cannot be used, .* complex"):
        open_rows(X, groups=np.zeros(6, complex))
    with pytest.raises(InputError, match="a Dataset carries its own y, sample_weight and groups; name them"):
        open_rows(as_dataset(X), groups=SUBJECT)
    with pytest.warns(DataWarning, match="X and groups have the same index labels in other orders"):
        open_rows(X, groups=pd.Series(range(6), index=labels))
    more = with_columns(open_rows(X, groups=SUBJECT.tolist()), {"day": np.arange(6)})
    (block,) = more.rows(2, 4).tiles(2)
    assert (block.ids["groups"].tolist(), block.ids["day"].tolist()) == (["v", "w"], [2, 3])


FRAME = pd.DataFrame({"a": np.ones(3, "f4"), "b": np.arange(3, dtype="i8"), "c": [True, False, True]})
HOLES = pd.arrays.SparseArray([0.0, 1.0, 0.0])
SPARSE = (sparse.csr_matrix, sparse.csc_array, sparse.coo_array)
NULLABLE = {"Int8": "f4", "Int64": "f8", "Float32": "f4", "boolean": "f4", "int16[pyarrow]": "f4"}


@pytest.mark.parametrize(
    ("X", "dtype", "values", "names"),
    [
        *((np.ones((3, 2), t), t, np.ones((3, 2)), None) for t in ("f2", "f4", "i1", "u4", "i8", "?")),
        (np.ones((3, 2), np.longdouble), "f8", np.ones((3, 2)), None),
        (np.ones((3, 2), ">f4"), "=f4", np.ones((3, 2)), None),
        ([[1, 2], [3, 4]], np.asarray([1]).dtype, [[1, 2], [3, 4]], None),
        (np.array([[1, "2.5"], [None, 3]], dtype=object), "f8", [[1, 2.5], [np.nan, 3]], None),
        (FRAME, "f8", [[1, 0, 1], [1, 1, 0], [1, 2, 1]], ("a", "b", "c")),
        (FRAME[["a", "c"]], "f4", [[1, 1], [1, 0], [1, 1]], ("a", "c")),
        (FRAME[["a"]].rename(columns={"a": 0}), "f4", np.ones((3, 1)), None),
        (FRAME[["a"]].assign(b=HOLES), "f8", [[1, 0], [1, 1], [1, 0]], ("a", "b")),
        *(
            (pd.DataFrame({"a": pd.array([1, None, 0], kind), "b": np.zeros(3, "f4")}), dtype,
             [[1, 0], [np.nan, 0], [0, 0]], ("a", "b"))
            for kind, dtype in NULLABLE.items()
        ),
        *((make(np.eye(3, dtype="f4")), "f4", np.eye(3), None) for make in SPARSE),
    ],
)  # fmt: skip
def test_types_that_are_converted(X, dtype, values, names):
    found, its_names = block_of(X)
    assert (found.dtype, its_names) == (np.dtype(dtype), names)
    assert sparse.issparse(found) == (type(X) in SPARSE)
    np.testing.assert_array_equal(found.toarray() if sparse.issparse(found) else found, values)
    if isinstance(X, np.ndarray):
        assert np.shares_memory(found, X) == (found.dtype == X.dtype)
    if sparse.issparse(X):
        assert found.format == "csr"
    if isinstance(X, pd.DataFrame):
        assert block_of(X.dropna())[0].dtype == found.dtype


@pytest.mark.parametrize(
    "X, phrase",
    [
        (None, "X is None"),
        (np.array([[{"foo": "bar"}]]), "argument must be .* string.* number"),
        (np.ma.masked_less(np.eye(2), 0.5), "masked"),
        (np.zeros(3), r"Expected 2D array, got 1D array instead: .* Reshape your data"),
        (pd.Series([1.0, 2.0]), "Expected 2D array, got 1D array instead"),
        (np.zeros((2, 2, 2)), "Expected 2D array, got 3D array"),
        (np.float64(1), "Expected 2D array"),
        (np.zeros((0, 3)), r"Found array with 0 sample\(s\) \(shape=\(0, 3\)\)"),
        (np.zeros((12, 0)), r"0 feature\(s\) \(shape=\(\d*, 0\)\) while a minimum of \d* is required."),
        (pd.DataFrame({"a": []}), r"0 sample\(s\)"),
        (pd.DataFrame(index=[1, 2]), r"0 feature\(s\)"),
        (np.ones((2, 2), complex), "Complex data not supported"),
        (pd.DataFrame({"a": [1j]}), "Complex data not supported"),
        ([["a", "b"]], "must hold numbers"),
        (np.array([["a"]], dtype=object), "could not convert string to float"),
        (np.zeros((2, 2), "M8[s]"), "must hold numbers"),
        ([[1, 2], [3]], "cannot be converted to an array"),
        (sparse.csr_matrix(1j * np.eye(2)), "Complex data not supported"),
        (sparse.csr_matrix((0, 2)), "0 sample"),
        (
            pd.DataFrame({"a": [1], "b": ["x"]}),
            "column 'b' of X has dtype .*convert it to numbers or drop it",
        ),
        (pd.DataFrame({"c": pd.Categorical([1, 2])}), "column 'c' of X has dtype category"),
        (pd.DataFrame({"t": pd.to_datetime(["2020-01-01"])}), "column 't' of X has dtype datetime64"),
    ],
)
def test_unusable_matrices(X, phrase):
    with pytest.raises(InputError, match=phrase) as caught:
        block_of(X)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, InputTypeError) == phrase.startswith(("X is", "argument", "masked"))


@pytest.mark.parametrize(
    "y, dtype, names",
    [
        ([1, 2, 3], "i8", None),
        (["a", "b", "cc"], "U2", None),
        (pd.Series([1.5, 2.5], name="price"), "f8", ("price",)),
        (pd.Series(["a", None], name="kind"), object, ("kind",)),
        (pd.Series(pd.Categorical(["u", "v"])), object, None),
        (pd.Series([1, 2], dtype="Int64"), "i8", None),
        (pd.Series([1, None], dtype="Int64"), "f8", None),
        (pd.Series([True, False], dtype="boolean"), "?", None),
        (pd.DataFrame({"u": [1, 2], "v": [0.5, 1]}), "f8", ("u", "v")),
        (pd.DataFrame({"u": [1, 2], "v": ["a", "b"]}), object, ("u", "v")),
        (np.array([1, 2], ">i2"), "i2", None),
        (np.array(["a", "b"], dtype=np.dtypes.StringDType()), object, None),
    ],
)
def test_targets(y, dtype, names):
    values, got = targets_of(y)
    assert values.dtype == np.dtype(dtype)
    assert got == names
    assert values.shape == np.shape(y)


def test_weights_and_unusable_targets():
    assert weights_of([1, 2]).dtype == np.float64
    np.testing.assert_array_equal(weights_of(pd.Series([1, None], dtype="Int64")), [1, np.nan])
    for weights in (np.ones((3, 1)), ["a", "b"], np.array([1j]), 2.0):
        with pytest.raises(InputError):
            weights_of(weights)
    for y in (np.zeros((2, 2, 2)), np.zeros((2, 0)), 3.0, np.array([1j]), sparse.eye(2)):
        with pytest.raises(InputError):
            targets_of(y)


@pytest.mark.parametrize("dtype", ["Int64", "UInt64", "int64[pyarrow]", "boolean"])
def test_labels_of_nullable_types_keep_type_and_digits_in_frames_and_in_dask(dtype):
    large = [2**53, 2**53 + 1, 2**53 + 4] * 2
    labels = pd.Series(np.asarray(large) % 2 == 0 if dtype == "boolean" else large, dtype=dtype, name="l")
    X, expected = np.zeros((6, 1)), labels.to_numpy(dtype=labels.dtype.numpy_dtype)
    lazy = dd.from_pandas(labels.to_frame(), npartitions=2)
    for y in (labels, labels.to_frame(), lazy["l"], lazy):
        found = as_dataset(dd.from_pandas(pd.DataFrame(X), npartitions=2) if y is lazy else X, y)
        values = found.y.compute(scheduler="sync").ravel()
        assert values.dtype == found.y_dtype == expected.dtype
        assert values.tolist() == expected.tolist()


def test_labels_with_gaps_in_dask_are_floats():
    labels = dd.from_pandas(pd.DataFrame({"l": pd.array([1, None, 3, 4], dtype="Int64")}), npartitions=2)
    values = as_dataset(np.zeros((4, 1)), labels["l"]).y.compute(scheduler="sync")
    np.testing.assert_array_equal(values, [1.0, np.nan, 3.0, 4.0])
