"""Zarr groups as rows, dense and sparse: their arrays, what is read of them, and what is refused."""

import pickle
import uuid
import warnings

import fsspec
import numpy as np
import pytest
import zarr
from scipy.sparse import csr_matrix, random_array
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from distrff.errors import DataWarning, InputError
from distrff.io import zarr_rows
from distrff.io.open import open_dataset

N = 50
X = np.arange(4.0 * N, dtype="f4").reshape(N, 4)
Y = np.arange(N)
W = np.linspace(0, 1, N)


def write(path, zarr_format=3, attributes=None, **arrays):
    """A group; an array is its values, or (values, chunks) or (values, chunks, options)."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format, attributes=attributes)
    for name, given in arrays.items():
        parts = given if isinstance(given, tuple) else (given, np.maximum(given.shape, 1).tolist())
        values, chunks, options = (*parts, {})[:3]
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=chunks, **options)
        array[...] = values
    return str(path)


@pytest.fixture
def rows_zarr(tmp_path):
    return write(tmp_path / "rows.zarr", X=(X, (7, 3)), y=(Y, (20,)), sample_weight=(W, (50,)))


class Recording:
    """A Zarr array that notes what is read of it."""

    def __init__(self, array, fail=None):
        self._array = array
        self._fail = fail
        self.read = []

    def __getattr__(self, name):
        return getattr(self._array, name)

    def __getitem__(self, key):
        self.read.append((key.start, key.stop))
        if self._fail is not None:
            raise self._fail
        return self._array[key]


def test_a_chunk_is_decoded_once_and_its_borders_respected(rows_zarr, read_rows, monkeypatch):
    monkeypatch.setattr(zarr_rows, "SPAN_BYTES", 1)  # spans of one chunk or shard, as large chunks have them
    data = open_dataset(rows_zarr)
    arrays = data.reader.arrays
    arrays.update({field: Recording(array) for field, array in arrays.items()})
    x, y, w = read_rows(data.rows(10, 33), 4)
    for values, expected in zip((x, y, w), (X, Y, W), strict=True):
        np.testing.assert_array_equal(values, expected[10:33])
    assert arrays["X"].read == [(10, 14), (14, 21), (21, 28), (28, 33)]
    assert arrays["y"].read == [(10, 20), (20, 33)]
    assert arrays["sample_weight"].read == [(10, 33)]


def test_description_and_lazy_arrays_of_the_chunks_of_the_storage(tmp_path):
    path = write(tmp_path / "g", X=(X, (5, 2), {"shards": (20, 4)}), y=(Y, (30,)), sample_weight=(W, (50,)))
    data = open_dataset(path)
    assert (data.column_names, data.target_names) == (None, ("y",))
    assert (data.row_bytes, data.chunk_rows, data.source) == (4 * 4 + 8 + 8, N, path)
    assert data.X.chunks == ((20, 20, 10), (4,))
    assert data.y.chunks == ((30, 20),)
    assert isinstance(data.X._meta, np.ndarray)
    np.testing.assert_array_equal(data.X[33:41, 1].compute(scheduler="sync"), X[33:41, 1])


def test_names_and_columns(tmp_path, read_dataset):
    path = write(
        tmp_path / "g",
        attributes={"column_names": list("abcd")},
        rows=(X, (7, 3)),
        u=(Y, (9,)),
        v=(W, (9,)),
        w=(W, (5,)),
    )
    data = open_dataset(path, x_name="rows", target="v", sample_weight="w", columns=["d", 1])
    assert (data.column_names, data.target_names, data.n_columns) == (("d", "b"), ("v",), 2)
    x, y, w = read_dataset(data, 20, 6)
    np.testing.assert_array_equal(x, X[:, [3, 1]])
    np.testing.assert_array_equal(y, W)
    np.testing.assert_array_equal(w, W)
    np.testing.assert_array_equal(data.X.compute(scheduler="sync"), X[:, [3, 1]])
    assert open_dataset(path, x_name="rows", y_name="u").y_dtype == np.int64
    assert open_dataset(path, x_name="rows").y is None
    assert open_dataset(path, x_name="rows").column_names == tuple("abcd")


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:The data type")
@pytest.mark.parametrize(
    "y, dtype",
    [
        (np.zeros((N, 2), "f4"), "f4"),
        (np.array(["a", "bb"] * 25), "U2"),
        (np.array(["a", "bb"] * 25, dtype=np.dtypes.StringDType()), object),
        (Y % 2 == 0, "?"),
    ],
)
def test_targets_of_any_type(tmp_path, read_dataset, y, dtype):
    data = open_dataset(write(tmp_path / "g", X=(X, (7, 4)), y=(y, (9, *y.shape[1:]))))
    assert (data.y_dtype, data.n_targets) == (np.dtype(dtype), 2 if y.ndim == 2 else 1)
    assert data.y_is_1d == (y.ndim == 1)
    got = read_dataset(data, 20, 6)[1]
    assert got.dtype == data.y_dtype
    np.testing.assert_array_equal(got, y)


def test_format_2_and_byte_order(tmp_path, read_dataset):
    path = write(tmp_path / "g", zarr_format=2, X=(X.astype(">f4"), (7, 3)), y=(Y.astype(">i2"), (9,)))
    data = open_dataset(path)
    assert data.dtype == np.dtype("=f4")
    assert data.dtype.isnative and data.y_dtype.isnative
    x, y, _ = read_dataset(data, 20, 6)
    assert x.dtype.isnative
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)


# Errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arrays, options, phrase",
    [
        ({"Z": X, "y": Y}, {}, "has no array 'X'; its arrays are: Z, y"),
        ({"X": X}, {"target": "t"}, "has no array 't'; its arrays are: X"),
        ({"X": X}, {"y_name": "t"}, "has no array 't'"),
        ({"X": X}, {"target": "y"}, "has no array 'y'"),
        ({"X": X}, {"sample_weight": "sample_weight"}, "has no array 'sample_weight'"),
        ({"X": X}, {"target": 0}, "target of a Zarr group must be the name of an array, got 0"),
        ({"X": X}, {"columns": [4]}, "has no column 4; its 4 columns are"),
        *(({"X": X}, {"columns": [name]}, f"has no column '{name[:9]}") for name in ("a", "10", "9" * 5000)),
        ({"X": X}, {"columns": [1, -3]}, "is named twice"),
        ({"X": X, "y": Y[1:]}, {}, "X has 50 rows but y has 49"),
        ({"X": Y}, {}, "Expected 2D array, got 1D array instead"),
        ({"X": X, "sample_weight": X}, {}, "sample_weight must be 1-D"),
        ({"X": X, "y": np.zeros((N, 2, 2))}, {}, "y must have shape"),
        ({"X": np.zeros((0, 3))}, {}, r"Found array with 0 sample\(s\)"),
        ({"X": X, "attributes": {"column_names": ["a"]}}, {}, "lists 1 names but X has 4 columns"),
    ],
)
def test_unusable_groups(tmp_path, arrays, options, phrase):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dtypes that Zarr calls unstable
        path = write(tmp_path / "g", **arrays)
        with pytest.raises(InputError, match=phrase) as caught:
            open_dataset(path, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("codec", [ZstdCodec(), BloscCodec(), GzipCodec(), None])
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("change", [lambda b: b[: len(b) // 2], lambda b: b[:-1]])
def test_a_truncated_chunk_is_named(tmp_path, read_rows, codec, sharded, change):
    options = {"compressors": codec} | ({"shards": (20, 4)} if sharded else {})
    path = tmp_path / "g"
    write(path, X=(X, (10, 4), options), y=(Y, (N,)))
    chunk = path / "X" / "c" / ("1/0" if sharded else "2/0")
    chunk.write_bytes(change(chunk.read_bytes()))
    data = open_dataset(path)
    phrase = rf"{path}: rows 2\d to 29 of array 'X' cannot be decoded .* truncated or damaged"
    with pytest.raises(InputError, match=phrase) as caught:
        read_rows(data.rows(3, N), 8)
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot be decoded"):
        data.X.compute(scheduler="sync")
    np.testing.assert_array_equal(read_rows(data.rows(0, 20), 8)[0], X[:20])


def test_a_missing_chunk_is_the_fill_value_but_not_a_missing_store(tmp_path, read_rows):
    path = tmp_path / "g"
    write(path, X=(X, (10, 4)))
    (path / "X" / "c" / "2" / "0").unlink()
    with pytest.warns(DataWarning, match="'X' lacks 1 of 5 chunks, the first is 'c/2/0'; Zarr reads them as"):
        data = open_dataset(path)
    assert (read_rows(data.rows(0, N), N)[0][20:30] == 0).all()
    rows = pickle.dumps(data.rows(0, N))
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="cannot be found by this process"):
        next(iter(pickle.loads(rows).tiles(N)))


@pytest.mark.filterwarnings("ignore:.* chunks, the first is")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("sharded", [False, True])
def test_a_chunk_that_vanishes_is_no_zero(tmp_path, read_rows, zarr_format, sharded):
    if sharded and zarr_format == 2:
        return  # which has no shards
    path = tmp_path / "g"
    values = np.where(np.arange(N) < 20, 0, X[:, 0]).astype("f4")[:, None]  # Zarr writes no chunk of zeros
    write(path, zarr_format, X=(values, (10, 1), {"shards": (20, 1)} if sharded else {}))
    data = open_dataset(path)
    rows = pickle.dumps(data.rows(0, N))
    np.testing.assert_array_equal(read_rows(pickle.loads(rows), 7)[0], values)
    first = 20 if sharded else 30
    (path / "X" / {2: f"{first // 10}.0", 3: f"c/{first // (20 if sharded else 10)}/0"}[zarr_format]).unlink()
    read_rows(data.rows(0, first), 7)
    with pytest.raises(InputError, match=f"of array 'X', in rows {first} to 39, was removed after it was"):
        read_rows(pickle.loads(rows), 7)
    with pytest.raises(InputError, match="was removed after it was opened"):
        data.X.compute(scheduler="sync")


class LostConnection(Exception):
    """As the packages of object stores have them: of no common base."""


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "reset"), TimeoutError(), LostConnection("gone")]
)
def test_errors_that_may_pass_stay_retryable(rows_zarr, read_rows, error):
    data = open_dataset(rows_zarr)
    data.reader.arrays["X"] = Recording(data.reader.arrays["X"], fail=error)
    with pytest.raises(OSError) as caught:
        read_rows(data.rows(0, N), 8)
    assert not isinstance(caught.value, InputError)
    if isinstance(error, OSError):
        assert caught.value is error
    else:
        assert caught.value.__cause__ is error
        assert "LostConnection: gone" in str(caught.value)


@pytest.mark.parametrize("shards", [None, (140, 3)])
def test_an_object_store_gives_the_same_rows_as_a_folder(shards, rng, tmp_path, monkeypatch):
    X, y = rng.standard_normal((500, 3)), rng.standard_normal(500)
    name = f"memory://{uuid.uuid4().hex}"
    monkeypatch.setattr(zarr_rows, "REMOTE_SPAN_BYTES", 24 * 70)
    monkeypatch.setattr(zarr_rows, "SPAN_BYTES", 24 * 300)
    stores = {str(tmp_path / "x.zarr"): str(tmp_path / "x.zarr")}
    stores[f"{name}/x.zarr"] = zarr.storage.FsspecStore.from_url(f"{name}/x.zarr")
    found = []
    try:
        for path, store in stores.items():
            group = zarr.open_group(store, mode="w")
            stored = group.create_array("X", shape=X.shape, dtype=X.dtype, chunks=(35, 3), shards=shards)
            stored[:] = X  # `data=` loses chunks of shards in zarr 3.1.0
            group.create_array("y", data=y, chunks=(50,))
            data = open_dataset(path)
            found.append([block for a, b in ((0, 500), (33, 401)) for block in data.rows(a, b).tiles(90)])
            assert data.chunk_rows == {None: 350, (140, 3): 420}[shards] if name in path else 280
    finally:
        fsspec.filesystem("memory").rm(name, recursive=True)
    for block, other in zip(*found, strict=True):
        assert block.start == other.start
        np.testing.assert_array_equal(block.X, other.X)
        np.testing.assert_array_equal(block.y, other.y)


# Groups that hold a sparse matrix ------------------------------------------------------------

D = 40


@pytest.fixture
def sparse_rows(rng):
    return csr_matrix(random_array((N, D), density=0.1, rng=rng, dtype=np.float32))


@pytest.fixture
def csr_group(tmp_path, sparse_rows):
    write(tmp_path / "rows.zarr", y=(Y, (11,)))
    group = zarr.open_group(tmp_path / "rows.zarr")
    attributes = {"encoding-type": "csr_matrix", "shape": [N, D]}
    parts = group.create_group("X", attributes=attributes)
    for name in ("data", "indices", "indptr"):
        parts.create_array(name, data=getattr(sparse_rows, name), chunks=(7,))
    return group


def test_columns_and_damage_of_a_sparse_matrix(csr_group, sparse_rows):
    few = open_dataset(csr_group.store.root, columns=[3, -1])
    (block,) = few.rows(0, N).tiles(N)
    np.testing.assert_array_equal(block.X.toarray(), sparse_rows.toarray()[:, [3, D - 1]])
    assert few.n_columns == 2
    data = open_dataset(csr_group.store.root)
    indices, indptr = csr_group["X/indices"], csr_group["X/indptr"]
    indices[5] = D
    with pytest.raises(InputError, match=rf"rows 0 to {N - 1}: indices beyond the {D} columns"):
        list(data.rows(0, N).tiles(N))
    indptr[10:20] = indptr[10:20][::-1] + np.arange(10, 0, -1)
    with pytest.raises(InputError, match=rf"rows 0 to {N - 1}: indptr decreases"):
        list(data.rows(0, N).tiles(N))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"encoding-type": "csc_matrix"}, "encoding-type 'csc_matrix'"),
        ({"shape": None}, "shape None"),
        ({"shape": [N + 1, D]}, "do not fit its shape"),
    ],
)
def test_other_groups_are_refused(csr_group, attributes, message):
    csr_group["X"].update_attributes(attributes)
    with pytest.raises(InputError, match=message):
        open_dataset(csr_group.store.root)
