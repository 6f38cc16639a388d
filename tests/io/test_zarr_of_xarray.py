"""Zarr groups that xarray wrote: decoded by their CF attributes as by xarray, and read as tables."""

import warnings

import dask
import numpy as np
import pandas as pd
import pytest
import xarray
import zarr

from distrff.errors import DataWarning, InputError, NonFiniteError
from distrff.io.open import open_dataset
from distrff.io.zarr_rows import ZarrReader, coding_of

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:The data type")

N = 12
WHOLE = np.arange(-4, 8)


@pytest.fixture(autouse=True)
def synchronous():
    with dask.config.set(scheduler="sync"):
        yield


def stored(path, values, attributes, zarr_format=3, fill_value=0):
    """An array with attributes, as some writer left them, in a group that xarray can open."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    names = {"dimension_names": ("row",)} if zarr_format == 3 else {}
    dims = {} if zarr_format == 3 else {"_ARRAY_DIMENSIONS": ["row"]}
    z = group.create_array(
        "v", shape=values.shape, dtype=values.dtype, chunks=(5,), fill_value=fill_value, **names
    )
    z[:] = values
    z.attrs.update(attributes | dims)
    return z


def by_xarray(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return xarray.open_zarr(path, consolidated=False)["v"].values


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "values, attributes",
    [
        (WHOLE.astype("i2"), {"scale_factor": 0.01, "add_offset": 15.0}),
        (WHOLE.astype("i2"), {"scale_factor": 0.1}),
        (WHOLE.astype("i2"), {"add_offset": 1.5}),
        (WHOLE.astype("i2"), {"scale_factor": 2}),
        (WHOLE.astype("i4"), {"scale_factor": 0.5, "missing_value": 3}),
        (WHOLE.astype("i2"), {"missing_value": 3}),
        (WHOLE.astype("i4"), {"missing_value": [3, 5]}),
        (WHOLE.astype("i8"), {"missing_value": -4}),
        (WHOLE.astype("u1"), {"valid_range": [0, 3], "flag_values": [1, 2], "flag_meanings": "a b"}),
        (WHOLE.astype("f4"), {"missing_value": 3.0}),
        (WHOLE.astype("f4"), {"scale_factor": 0.1, "missing_value": 3.0}),
        (WHOLE.astype("f8"), {"scale_factor": 0.1}),
        (WHOLE.astype("i1"), {"_Unsigned": "true", "scale_factor": 0.5}),
        (WHOLE.astype("u1"), {"_Unsigned": "false"}),
        ((WHOLE > 0).astype("i1"), {"dtype": "bool"}),
        (WHOLE.astype("i4"), {"units": "days since 2000-01-01"}),
        (WHOLE.astype("i4"), {"units": "hours since 2000-1-1 06:30", "missing_value": 3}),
        (WHOLE / 4, {"units": "seconds since 1970-01-01T00:00:00Z", "calendar": "proleptic_gregorian"}),
        (WHOLE.astype("i2"), {"units": "minutes since 1990-01-01 00:00:00", "scale_factor": 0.5}),
        (WHOLE.astype("i8"), {"units": "nanoseconds since 1970-01-01"}),
        (np.where(WHOLE == 3, np.nan, WHOLE), {"units": "days since 1700-05-05", "calendar": "standard"}),
        (WHOLE.astype("i8"), {"units": "hours", "dtype": "timedelta64[ns]"}),
        (WHOLE.astype("f4"), {"units": "metres", "long_name": "depth"}),
    ],
)
def test_values_are_those_of_xarray(tmp_path, values, attributes, zarr_format):
    fill_value = None if zarr_format == 2 else 0
    z = stored(tmp_path / "g", values, attributes, zarr_format, fill_value)
    (span,) = ZarrReader({"v": z}, "g").spans("v", 0, N)
    expected = by_xarray(tmp_path / "g")
    if expected.dtype.kind in "mM":  # xarray's nanoseconds end in 2262
        assert span["v"].dtype.kind == expected.dtype.kind
    else:
        assert span["v"].dtype == expected.dtype
    np.testing.assert_array_equal(span["v"], expected)


def test_where_each_format_keeps_the_value_of_missing_ones(tmp_path):
    floats = xarray.Dataset({"v": ("row", WHOLE.astype("f4"), {})})
    for form in (2, 3):
        floats.to_zarr(tmp_path / f"{form}", zarr_format=form, encoding={"v": {"_FillValue": 3.0}})
        z = zarr.open_group(tmp_path / f"{form}")["v"]
        assert coding_of(z).missing == (3.0,)
        np.testing.assert_array_equal(coding_of(z).decode(z[:]), by_xarray(tmp_path / f"{form}"))
        floats.to_zarr(tmp_path / f"n{form}", zarr_format=form)  # NaN
        assert coding_of(zarr.open_group(tmp_path / f"n{form}")["v"]) is None
    assert coding_of(stored(tmp_path / "a", WHOLE, {}, 2, 0)).missing == (0,)  # as xarray reads it
    assert coding_of(stored(tmp_path / "b", WHOLE, {}, 3, 0)) is None
    plain = zarr.open_group(tmp_path / "c", mode="w", zarr_format=2)
    assert coding_of(plain.create_array("v", data=WHOLE)) is None


@pytest.mark.parametrize(
    "values, attributes, phrase",
    [
        (WHOLE, {"units": "days since 2000-01-01", "calendar": "noleap"}, "the noleap calendar"),
        (WHOLE, {"units": "days since 0001-01-01"}, "the standard calendar, whose days are not those"),
        (WHOLE, {"units": "months since 2000-01-01"}, "counts time in 'months since"),
        (WHOLE, {"units": "days since 2000-13-01"}, "its CF attributes cannot be read"),
        (WHOLE, {"scale_factor": [1.0, 2.0]}, "its CF attributes cannot be read"),
        (WHOLE, {"scale_factor": "a tenth"}, "its CF attributes cannot be read"),
    ],
)
def test_attributes_that_are_refused(tmp_path, values, attributes, phrase):
    with pytest.raises(InputError, match=f"array 'v'.* ?{phrase}") as caught:
        coding_of(stored(tmp_path / "g", values, attributes))
    assert "\n" not in str(caught.value)


def test_times_beyond_all_clocks_and_units_that_are_no_times(tmp_path):
    z = stored(tmp_path / "g", np.full(N, 1e30), {"units": "days since 2000-01-01"})
    with pytest.raises(InputError, match="array 'v' holds times that are too far from its epoch"):
        coding_of(z).decode(z[:])
    assert coding_of(stored(tmp_path / "h", WHOLE, {"units": "days since the last visit"})) is None


# Groups with an array X.

PACKED = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 15.0, "_FillValue": -32768}


def packed_group(path, rng, gaps=(), **coords):
    X = np.round(rng.normal(15, 8, (N, 3)), 2)
    X[list(gaps), 1] = np.nan
    data = xarray.Dataset(
        {"X": (("row", "band"), X), "y": ("row", X[:, 0])},
        coords={"band": ["red", "green", "blue"], **coords},
    )
    data.to_zarr(path, encoding={"X": PACKED | {"chunks": (5, 3)}}, zarr_format=int(rng.choice([2, 3])))
    return xarray.open_zarr(path)


def test_packed_rows_and_the_names_of_their_columns(tmp_path, rng, read_dataset):
    expected = packed_group(tmp_path / "g", rng)
    data = open_dataset(tmp_path / "g")
    assert (data.dtype, data.column_names, data.steps) == (np.float64, ("red", "green", "blue"), None)
    assert data.row_bytes == 3 * 8 + 8
    np.testing.assert_array_equal(data.X.compute(), expected["X"].values)
    np.testing.assert_array_equal(read_dataset(data, 7, 3)[0], expected["X"].values)
    few = open_dataset(tmp_path / "g", columns=["blue", 0])
    np.testing.assert_array_equal(read_dataset(few, 7, 3)[0], expected["X"].values[:, [2, 0]])
    assert few.column_names == ("blue", "red")


def test_gaps_of_packed_rows_are_missing_values(tmp_path, rng, read_dataset):
    expected = packed_group(tmp_path / "g", rng, gaps=(2, 9))
    X = expected["X"].values
    with pytest.raises(NonFiniteError, match=f"column 'green' has no value in 2 of {N} rows; give missing="):
        open_dataset(tmp_path / "g")
    filled = open_dataset(tmp_path / "g", missing="mean")
    frame = pd.DataFrame(X, columns=["red", "green", "blue"])
    assert filled.column_names == tuple(frame)
    got, y, _ = read_dataset(filled, 7, 3)
    np.testing.assert_allclose(got, frame.fillna(frame.mean()))
    np.testing.assert_array_equal(y, expected["y"].values)
    np.testing.assert_array_equal(read_dataset(open_dataset(frame, steps=filled.steps), 7, 3)[0], got)
    kept = open_dataset(tmp_path / "g", missing="drop", columns=["green"])
    np.testing.assert_array_equal(read_dataset(kept, 7, 3)[0], frame[["green"]].dropna())
    again = open_dataset(tmp_path / "g", steps=filled.steps)
    np.testing.assert_array_equal(read_dataset(again, 7, 3)[0], got)
    packed_group(tmp_path / "h", rng, red=("band", [1, 2, 3])).close()
    assert open_dataset(tmp_path / "h").column_names == ("red", "green", "blue")


def test_ids_of_a_group(tmp_path, rng):
    days = pd.date_range("2020", periods=N)
    packed_group(tmp_path / "g", rng, day=("row", days))
    data = open_dataset(tmp_path / "g", ids=["day", "y"])
    ids = next(data.rows(0, N).tiles(N)).ids
    np.testing.assert_array_equal(ids["day"], days.to_numpy())


@pytest.mark.parametrize("with_steps", [False, True])
def test_groups_of_a_matrix_of_which_rows_are_left_out(tmp_path, rng, with_steps):
    who = np.arange(N).astype(str).astype(object)
    packed_group(tmp_path / "g", rng, gaps=(2, 9), who=("row", who), blue=("row", np.arange(N)))
    beside = {"groups": "who", "extra": "y"}
    data = open_dataset(tmp_path / "g", missing="drop", columns=["green"], **beside)
    if with_steps:
        data = open_dataset(tmp_path / "g", steps=data.steps, **beside)
    (block,) = data.rows(0, N - 2).tiles(N)
    assert (data.column_names, data.groups) == (("green",), "who")
    assert block.ids["who"].tolist() == [str(i) for i in range(N) if i not in (2, 9)]
    np.testing.assert_array_equal(block.ids["y"], block.y)
    with pytest.raises(InputError, match=r"a column of X has the name of .* or an array beside X; rename it"):
        open_dataset(tmp_path / "g", missing="drop", groups="blue")


# Groups of one array a column.


@pytest.fixture
def columns():
    rng = np.random.default_rng(5)
    return xarray.Dataset(
        {
            "a": ("row", rng.normal(size=N)),
            "k": ("row", rng.integers(0, 9, N).astype("i2")),
            "word": ("row", rng.choice(["u", "v"], N).astype(object)),
            "day": ("row", pd.date_range("2020", periods=N)),
            "pair": (("row", "two"), rng.normal(size=(N, 2)).astype("f4")),
            "y": ("row", rng.normal(size=N)),
            "elsewhere": ("two", [1.0, 2.0]),
        },
        coords={"row": np.arange(N), "lat": ("row", np.linspace(40, 50, N))},
    )


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_group_of_columns_is_the_table_of_its_dataset(tmp_path, columns, zarr_format):
    encoding = {"a": {"chunks": (5,)}, "k": {"_FillValue": 3}}
    columns.to_zarr(tmp_path / "g", encoding=encoding, zarr_format=zarr_format)
    again = xarray.open_zarr(tmp_path / "g").load()
    common = {"sample_dim": "row", "missing": "indicator", "one_hot": True, "datetime": "seconds"}
    for chosen in ({}, {"target": "y", "columns": ["lat", "a", "day"]}, {"target": "lat", "drop": ["k"]}):
        options = common | chosen
        data, expected = open_dataset(tmp_path / "g", **options), open_dataset(again, **options)
        assert sorted(data.column_names) == sorted(expected.column_names)
        X = data.X.compute()[:, [data.column_names.index(name) for name in expected.column_names]]
        np.testing.assert_array_equal(X, expected.X.compute())
        if chosen:
            np.testing.assert_array_equal(data.y.compute(), expected.y.compute())
        later = open_dataset(tmp_path / "g", steps=data.steps.for_prediction())
        np.testing.assert_array_equal(later.X.compute(), data.X.compute())
    ids = next(open_dataset(tmp_path / "g", ids="lat", **common).rows(0, N).tiles(N)).ids
    np.testing.assert_array_equal(ids["lat"], columns["lat"].values)


def test_groups_that_are_no_table(tmp_path, columns):
    columns.to_zarr(tmp_path / "g")
    with pytest.raises(
        InputError,
        match=r"has no array 'X'; its arrays are: a, .*; sample_dim makes them a table, one of row, two",
    ):
        open_dataset(tmp_path / "g")
    with pytest.raises(InputError, match=r"no array of .* has the first dimension 'time'; the arrays have"):
        open_dataset(tmp_path / "g", sample_dim="time")


def test_arrays_whose_rows_are_not_first_are_named(tmp_path, rng):
    values = {"a": ("time", rng.normal(size=N)), "b": (("lev", "time"), rng.normal(size=(2, N)))}
    xarray.Dataset(values).to_zarr(tmp_path / "g")
    with pytest.warns(DataWarning, match="left out: b"):
        data = open_dataset(tmp_path / "g", sample_dim="time", missing="mean")
    assert data.column_names == ("a",)
    assert data.table_report["columns_dropped"]["b"].startswith("time is not its first dimension")
    steps = open_dataset(xarray.open_zarr(tmp_path / "g"), sample_dim="time", missing="mean").steps
    with pytest.raises(InputError, match=r"array 'b' of .* cannot be read: time is not its first dimension"):
        open_dataset(tmp_path / "g", steps=steps, sample_dim="time")
