"""One table in every storage: what a column may hold, and how each storage writes and opens the table."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import xarray as xr
import zarr
from dask.utils import natural_sort_key
from hypothesis import strategies as st
from pyarrow import csv
from sklearn.datasets import dump_svmlight_file

import distrff as drf
from distrff.io.convert.convert import convert_like
from distrff.io.convert.dialect import Dialect

N_ROWS = 12
WIDTH = 3  # of lists
TARGET_NAMES = ("label", "other")  # "label" as the target of libsvm files


# What a column may hold.


@dataclass(frozen=True)
class Kind:
    """Columns of an Arrow type, of at most `n_values` different values; with `has_gaps` some are missing."""

    type: pa.DataType
    values: st.SearchStrategy[Any]
    has_gaps: bool = False
    n_values: int = N_ROWS

    @property
    def is_category(self) -> bool:
        return pa.types.is_dictionary(self.type)

    @property
    def value_type(self) -> pa.DataType:
        """The type of the values, which categories have as well."""
        return self.type.value_type if self.is_category else self.type

    def columns(self, min_values: int = 1) -> st.SearchStrategy[list[Any]]:
        """Columns in which each value that was drawn occurs, or is missing, and one is there."""
        values = st.lists(self.values, min_size=min_values, max_size=self.n_values, unique=True)
        gaps = st.sets(st.integers(1, N_ROWS - 1)) if self.has_gaps else st.just(set())
        rows = values.flatmap(lambda v: st.permutations((v * N_ROWS)[:N_ROWS]))
        return st.builds(lambda v, gaps: [None if i in gaps else v[i] for i in range(N_ROWS)], rows, gaps)

    def array(self, values: list[Any]) -> pa.Array:
        """The values of a column."""
        made = pa.array(values, self.value_type)
        return made.dictionary_encode() if self.is_category else made


def category_of(values: pa.DataType) -> pa.DataType:
    return pa.dictionary(pa.int32(), values)


WORDS = st.sampled_from(
    ["u", "v w", "Zürich", "中", "a,b", "c;d", 'say "so"', "it's", "-", "x=1", "50%", "a/b", "#1", "e5",
     " u", "v w ", "two\nlines", "tab\there", "true story", "😀", "1 2", "[x]", "None", "inf", "TRUE", "U"]
)  # fmt: skip
LABELS = WORDS.filter(lambda word: word == word.strip())
CODES = st.sampled_from(
    ["02139", "2139", "1", "1.0", "1e3", "1000", "01", "+1", "-0", "0", "true", "True", "false", "2020-01-01",
     "9007199254740993", "9007199254740992", "0x10", "1_000", "1,5", "V27", "12:30"]
)  # fmt: skip
FLOATS = st.one_of(st.integers(-400, 400).map(lambda i: i / 4), st.just(-0.0))
QUARTERS = st.one_of(st.integers(-400, -1), st.integers(1, 400)).map(lambda i: i / 4)
BIG = st.one_of(st.integers(-3, 3), st.sampled_from([2**53, 2**53 + 1, 2**53 + 2, -(2**62) - 1]))
DAYS = st.dates(dt.date(1950, 1, 1), dt.date(2090, 1, 1))
TIMES = st.datetimes(dt.datetime(1950, 1, 1), dt.datetime(2090, 1, 1)).map(lambda t: t.replace(microsecond=0))

KINDS: dict[str, Kind] = {
    "integers": Kind(pa.int64(), st.integers(-99, 99)),
    "large integers": Kind(pa.int64(), BIG),
    "short integers": Kind(pa.int16(), st.integers(-99, 99)),
    "integers with gaps": Kind(pa.int64(), st.integers(-99, 99), True),
    "floats": Kind(pa.float64(), FLOATS),
    "floats with gaps": Kind(pa.float64(), FLOATS, True),
    "single floats": Kind(pa.float32(), FLOATS, True),
    "bools": Kind(pa.bool_(), st.booleans()),
    "bools with gaps": Kind(pa.bool_(), st.booleans(), True),
    "decimals": Kind(pa.decimal128(9, 2), st.integers(-9999, 9999).map(lambda i: Decimal(i) / 4), True),
    "text": Kind(pa.string(), WORDS, n_values=3),
    "text with gaps": Kind(pa.string(), WORDS, True, 3),
    "codes": Kind(pa.string(), CODES, n_values=4),
    "text, some empty": Kind(pa.string(), st.sampled_from(["", " ", "u", "v"]), n_values=3),
    "text like gaps": Kind(pa.string(), st.sampled_from(["NA", "nan", "null", "?", "u"]), True, 3),
    "category of text": Kind(category_of(pa.string()), WORDS, True, 3),
    "category of integers": Kind(category_of(pa.int64()), BIG, n_values=4),
    "category of integers with gaps": Kind(category_of(pa.int64()), st.integers(-12, 12), True, 4),
    "category of floats": Kind(category_of(pa.float64()), FLOATS.map(lambda x: x + 0.0), True, 3),
    "category of bools": Kind(category_of(pa.bool_()), st.booleans(), n_values=2),
    "category of bools with gaps": Kind(category_of(pa.bool_()), st.booleans(), True, 2),
    "dates": Kind(pa.date32(), DAYS, True),
    "times": Kind(pa.timestamp("us"), TIMES, True),
    "zoned times": Kind(
        pa.timestamp("us", "Europe/Berlin"), TIMES.map(lambda t: t.replace(tzinfo=dt.UTC)), True
    ),
    "times of day": Kind(pa.time64("us"), TIMES.map(dt.datetime.time), True),
    "durations": Kind(
        pa.duration("us"), st.integers(-(10**6), 10**6).map(lambda s: dt.timedelta(seconds=s)), True
    ),
    # Libsvm leaves out zeros, and the last column if it is empty.
    "lists": Kind(pa.list_(pa.float64()), st.tuples(*[QUARTERS] * WIDTH)),
}
TARGETS: dict[str, Kind] = {
    "numbers": Kind(pa.float64(), FLOATS),
    "several numbers": Kind(pa.float64(), FLOATS),
    "integers as numbers": Kind(pa.int64(), st.integers(-99, 99)),
    "decimals as numbers": Kind(pa.decimal128(9, 2), st.integers(-9999, 9999).map(lambda i: Decimal(i) / 4)),
    "integers as classes": Kind(pa.int64(), BIG, n_values=3),
    "bools as classes": Kind(pa.bool_(), st.booleans(), n_values=2),
    "text as classes": Kind(pa.string(), LABELS, n_values=3),
    "codes as classes": Kind(pa.string(), CODES, n_values=3),
    "category of text as classes": Kind(category_of(pa.string()), LABELS, n_values=3),
    "category of integers as classes": Kind(category_of(pa.int64()), BIG, n_values=3),
    "category of bools as classes": Kind(category_of(pa.bool_()), st.booleans(), n_values=2),
}


NAMES = ["a", "b c", "d,e", "f;g", 'h"i', "naïve", "k.l", "m=n", "o%20", "sum", "row", "T"]


@dataclass(frozen=True)
class Drawn:
    """A table, with the kind of each column; the last ones are the targets."""

    table: pa.Table
    kinds: dict[str, str]

    @property
    def names(self) -> list[str]:
        """Of the columns of X."""
        return [name for name in self.kinds if name not in TARGET_NAMES]

    @property
    def targets(self) -> list[str]:
        return [name for name in TARGET_NAMES if name in self.kinds]

    @property
    def is_classifier(self) -> bool:
        return self.kinds[TARGET_NAMES[0]].endswith("classes")

    @property
    def words(self) -> list[str]:
        """The columns that hold words: text, and all categories of X."""
        kinds = {name: (KINDS | TARGETS)[kind] for name, kind in self.kinds.items()}
        texts = [name for name, kind in kinds.items() if kind.value_type == pa.string()]
        return texts + [name for name in self.names if kinds[name].is_category and name not in texts]

    def of_kinds(self, kinds: frozenset[str]) -> Drawn:
        """The columns of some kinds, in their order."""
        kept = {name: kind for name, kind in self.kinds.items() if kind in kinds}
        return Drawn(self.table.select(list(kept)), kept)


@st.composite
def tables(draw: Any, kinds: frozenset[str]) -> Drawn:
    """Tables of columns of some kinds, with a target of one of them that is not the same in all rows."""
    of_X = draw(st.lists(st.sampled_from(sorted(kinds & KINDS.keys())), min_size=1, max_size=6, unique=True))
    names = draw(st.permutations(NAMES))[: len(of_X)]
    names = ["x" if kind == "lists" else name for name, kind in zip(names, of_X, strict=True)]
    of_y = draw(st.sampled_from(sorted(kinds & TARGETS.keys())))
    targets = dict.fromkeys(TARGET_NAMES if of_y == "several numbers" else TARGET_NAMES[:1], of_y)
    arrays = {
        name: KINDS[kind].array(draw(KINDS[kind].columns())) for name, kind in zip(names, of_X, strict=True)
    }
    for name in targets:
        arrays[name] = TARGETS[of_y].array(draw(TARGETS[of_y].columns(min_values=2)))
    return Drawn(pa.table(arrays), dict(zip(names, of_X, strict=True)) | targets)


# How a table is stored.


def cast(table: pa.Table, as_type: Callable[[pa.DataType], pa.DataType]) -> pa.Table:
    """The table with the columns of each type as another one."""
    return pa.table({f.name: table[f.name].cast(as_type(f.type)) for f in table.schema})


def plain(table: pa.Table) -> pa.Table:
    """The table with categories as their values."""
    return cast(table, lambda t: t.value_type if pa.types.is_dictionary(t) else t)


def without_decimals(table: pa.Table) -> pa.Table:
    return cast(table, lambda t: pa.float64() if pa.types.is_decimal(t) else t)


def numpy_columns(table: pa.Table) -> dict[str, np.ndarray]:
    """The columns as arrays; times in UTC, decimals and booleans with gaps as floats, lists as matrices."""
    made = {}
    for name, column in zip(table.column_names, without_decimals(plain(table)).columns, strict=True):
        if pa.types.is_list(column.type):
            made[name] = np.stack(column.to_numpy())
        elif pa.types.is_boolean(column.type) and column.null_count:
            made[name] = column.cast(pa.uint8()).to_numpy()
        else:
            made[name] = column.to_numpy()
    return made


def as_xarray(table: pa.Table, _: Path) -> xr.Dataset:
    columns = numpy_columns(table)
    return xr.Dataset({n: (("row", f"entry of {n}")[: v.ndim], v) for n, v in columns.items()})


def as_dask(table: pa.Table, _: Path) -> dd.DataFrame:
    """Three partitions, with dates, decimals and lists as objects, of which dask would make text."""
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_pandas(table.to_pandas(), npartitions=3, sort=False)


def as_packed_zarr(table: pa.Table, path: Path) -> str:
    """What xarray writes; floats as 16-bit integers of quarters."""
    packed = {"dtype": "int16", "scale_factor": 0.25, "add_offset": 3.0, "_FillValue": -32768}
    data = as_xarray(table, path)
    encoding = {name: packed for name in data.data_vars if data[name].dtype.kind == "f"}
    data.to_zarr(f"{path}.zarr", encoding=encoding, zarr_format=2)
    return f"{path}.zarr"


def as_plain_zarr(table: pa.Table, path: Path) -> str:
    """X, and y where there are targets."""
    columns = numpy_columns(table)
    targets = [columns.pop(name) for name in TARGET_NAMES if name in columns]
    group = zarr.open_group(f"{path}.zarr", mode="w")
    group.create_array("X", data=np.stack(list(columns.values()), axis=1).astype(float))
    group.attrs["column_names"] = list(columns)
    if targets:
        group.create_array("y", data=targets[0] if len(targets) == 1 else np.stack(targets, axis=1))
    return f"{path}.zarr"


def as_comma_csv(table: pa.Table, path: Path) -> str:
    """What pyarrow writes: all words in quotes."""
    csv.write_csv(plain(table), f"{path}.csv")
    return f"{path}.csv"


def as_semicolon_csv(table: pa.Table, path: Path) -> str:
    """What pandas writes for a European spreadsheet; of Decimal it would not write the comma."""
    frame = without_decimals(plain(table)).to_pandas()
    frame.to_csv(f"{path}.csv", sep=";", decimal=",", index=False)
    return f"{path}.csv"


def as_parquet(table: pa.Table, path: Path) -> str:
    pq.write_table(table, f"{path}.parquet")
    return f"{path}.parquet"


def as_hive(table: pa.Table, path: Path) -> str:
    """A folder for each value of the first column of integers or text, with a file of its rows.

    A name with = or % is no key, since pyarrow writes it as it is, and reads another one.
    """
    types = {f.name: f.type for f in table.schema if f.name not in TARGET_NAMES and not {*f.name} & {*"=%"}}
    keys = [n for n, kind in types.items() if pa.types.is_integer(kind) or pa.types.is_string(kind)]
    table = table.append_column(ROW, pa.array(range(N_ROWS)))
    table = table.append_column("even", pa.array([i % 2 for i in range(N_ROWS)]))
    pq.write_to_dataset(table, str(path), partition_cols=[*keys, "even"][:1], basename_template="{i}.parquet")
    return str(path)


ROW = "row number"


def rows_of_hive(path: str) -> list[int]:
    """The numbers of the rows in the order of the files."""
    files = sorted(map(str, Path(path).rglob("*.parquet")), key=natural_sort_key)
    return [i for file in files for i in pq.ParquetFile(file).read([ROW])[ROW].to_pylist()]


def as_many_writers(table: pa.Table, path: Path) -> str:
    """Files without rows or types, of other types in another order, of dictionaries, of the table's types."""
    path.mkdir()
    empty = pa.table({name: pa.array([], pa.float64()) for name in table.column_names})
    other = {name: other_type(table[name].slice(0, 4)) for name in reversed(table.column_names)}
    encoded = cast(table.slice(4, 4), lambda t: category_of(t) if pa.types.is_string(t) else t)
    for number, part in enumerate((empty, pa.table(other), encoded, table.slice(8))):
        pq.write_table(part, path / f"{number}.parquet")
    return str(path)


def other_type(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """A column as another writer has it: of another width or unit, or without a type if it has no values."""
    if column.null_count == len(column):
        return pa.nulls(len(column))
    try:
        return column.cast(OTHER_TYPES.get(column.type, column.type))
    except pa.ArrowInvalid:  # integers that need 64 bits
        return column


OTHER_TYPES = {
    pa.int64(): pa.int32(),
    pa.string(): pa.large_string(),
    pa.timestamp("us"): pa.timestamp("ns"),
    pa.list_(pa.float64()): pa.large_list(pa.float64()),
    category_of(pa.string()): pa.string(),
}


def as_libsvm(table: pa.Table, path: Path) -> str:
    """The one list x, and a target, or 0 if the table has none that libsvm holds."""
    columns = numpy_columns(table)
    y = columns.get(TARGET_NAMES[0], np.zeros(N_ROWS))
    dump_svmlight_file(columns["x"], y, f"{path}.svm", zero_based=False)
    return f"{path}.svm"


# How a storage is opened, by the rules of a fit or the steps of a model; `folder` is for what is converted.


def open_stored(source: Any, folder: Path, **options: Any) -> drf.Dataset:
    return drf.open_dataset(source, **options)


def open_text(source: str, folder: Path, *, steps: Any = None, **options: Any) -> drf.Dataset:
    path = tempfile.mkdtemp(dir=folder) + "/rows.zarr"
    if steps is None:
        drf.convert(source, path, **options)
    else:
        convert_like(source, path, steps, dialect=Dialect(**options))
    return drf.open_dataset(path)


def open_libsvm(source: str, folder: Path, *, steps: Any = None, **_: Any) -> drf.Dataset:
    """Which has no names but those of the list of all columns."""
    return open_text(source, folder, steps=steps)


def open_plain_zarr(
    source: str, folder: Path, *, steps: Any = None, columns: Any = None, **_: Any
) -> drf.Dataset:
    """Whose X is what the steps of numbers without gaps make."""
    return drf.open_dataset(source, columns=list(columns or steps.names_out))


@dataclass(frozen=True)
class Storage:
    """How a table is written and opened, which kinds of columns it can hold, and the order of its rows."""

    holds: frozenset[str]
    write: Callable[[pa.Table, Path], Any]
    open: Callable[..., drf.Dataset] = open_stored
    options: Mapping[str, Any] = field(default_factory=dict)
    rows: Callable[[Any], list[int]] = lambda _: list(range(N_ROWS))


# A storage leaves out kinds whose values it lacks, such as the zones of times, or takes for others: in text
# an empty field and NA are missing values.
ALL = frozenset([*KINDS, *TARGETS])
ARRAYS = ALL - {"zoned times", "times of day", "category of bools with gaps"}
TEXT = ALL - {"lists", "durations", "times of day", "text like gaps", "text, some empty"}
NUMBERS = frozenset(
    {"integers", "large integers", "short integers", "floats", "bools", "numbers", "several numbers"}
    | {"integers as numbers", "decimals as numbers", "integers as classes", "bools as classes"}
)
STORAGES: dict[str, Storage] = {
    "pandas": Storage(ALL, lambda table, _: table.to_pandas()),
    "pandas, nullable": Storage(ALL, lambda table, _: table.to_pandas().convert_dtypes()),
    "pandas, Arrow": Storage(ALL, lambda table, _: table.to_pandas(types_mapper=pd.ArrowDtype)),
    "polars": Storage(ALL, lambda table, _: pl.from_arrow(table)),
    "pyarrow": Storage(ALL, lambda table, _: table),
    "dask": Storage(ALL, as_dask),
    "xarray": Storage(ARRAYS, as_xarray, options={"sample_dim": "row"}),
    "comma CSV": Storage(TEXT, as_comma_csv, open_text),
    "semicolon CSV": Storage(
        TEXT - {"category of floats", "category of integers with gaps"},  # whose words have a comma
        as_semicolon_csv,
        open_text,
        {"delimiter": ";", "decimal": ","},
    ),
    "Parquet": Storage(ALL, as_parquet),
    "hive Parquet": Storage(ALL, as_hive, rows=rows_of_hive),
    "Parquet of many writers": Storage(ALL, as_many_writers),
    "packed Zarr": Storage(
        ARRAYS - {"text with gaps", "text like gaps", "category of text"},
        as_packed_zarr,
        options={"sample_dim": "row"},
    ),
    "plain Zarr": Storage(NUMBERS, as_plain_zarr, open_plain_zarr),
    "libsvm": Storage(frozenset(["lists", "numbers", "integers as numbers"]), as_libsvm, open_libsvm),
}
