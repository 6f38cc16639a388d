"""Arrow columns of every type as plain values, with and without nulls, sliced or not."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from distrff.errors import InputError
from distrff.io.arrays import raw_column, raw_columns, raw_kind

DAY = datetime.date(1970, 1, 3)
MOMENT = datetime.datetime(1970, 1, 1, 0, 0, 2)
BERLIN = pa.timestamp("ms", tz="Europe/Berlin")


def values_of(column):
    """What a column holds, as a list with None where it is missing."""
    missing, flat = column.missing_rows(), column.values
    gone = np.zeros(len(column), bool) if missing is None else missing
    if column.kind == "null":
        return [None] * len(column)
    if column.kind == "text":
        return [None if m else column.words[code] for code, m in zip(flat, gone, strict=True)]
    scale = column.ticks if column.kind == "time" else 1
    return [None if m else (v / scale).tolist() for v, m in zip(flat, gone, strict=True)]


CASES = [
    ("number", pa.int8(), [1, None, 3], [1, None, 3]),
    ("number", pa.uint64(), [1, None, 3], [1, None, 3]),
    ("number", pa.float32(), [1.5, None, float("nan")], [1.5, None, None]),
    ("number", pa.bool_(), [True, None, False], [1, None, 0]),
    ("number", pa.decimal128(9, 2), [Decimal("1.25"), None], [1.25, None]),
    ("clock", pa.time32("ms"), [datetime.time(1, 0, 1), None], [3601, None]),
    ("clock", pa.time64("ns"), [datetime.time(0, 0, 1), None], [1, None]),
    ("clock", pa.duration("us"), [datetime.timedelta(seconds=2), None], [2, None]),
    ("number", pa.list_(pa.int32(), 2), [[1, 2], None, [None, 4]], [[1, 2], None, None]),
    ("number", pa.list_(pa.float64(), 2), [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
    ("text", pa.string(), ["u", None, "ü", "u"], ["u", None, "ü", "u"]),
    ("text", pa.large_string(), ["u", None, ""], ["u", None, ""]),
    ("text", pa.dictionary(pa.int8(), pa.string()), ["u", None, "v"], ["u", None, "v"]),
    ("text", pa.dictionary(pa.int16(), pa.int64()), [7, None, 8], ["7", None, "8"]),
    ("time", pa.date32(), [DAY, None], [2 * 86400, None]),
    ("time", pa.date64(), [DAY, None], [2 * 86400, None]),
    ("time", pa.timestamp("s"), [MOMENT, None], [2, None]),
    ("time", pa.timestamp("ns"), [MOMENT, None], [2, None]),
    ("time", BERLIN, [MOMENT.replace(tzinfo=datetime.UTC), None], [2, None]),
    ("null", pa.null(), [None, None], [None, None]),
]


@pytest.mark.parametrize(("kind", "column_type", "given", "expected"), CASES, ids=lambda v: str(v)[:24])
def test_values_of_every_type(kind, column_type, given, expected):
    assert raw_kind(column_type) == kind
    for column, wanted in [
        (pa.array(given, column_type), expected),
        (pa.array(given, column_type)[1:], expected[1:]),
        (pa.array([v for v in given if v is not None] * 2, column_type), None),
    ]:
        found = raw_column(column, "a")
        assert (found.kind, len(found)) == (kind, len(column))
        if wanted is not None:
            assert values_of(found) == wanted
        else:
            assert found.nulls is None or column_type == pa.list_(pa.int32(), 2)


def test_numbers_keep_their_type_and_are_not_copied():
    for dtype in ("i2", "f4", "u1"):
        values = np.arange(5).astype(dtype)
        found = raw_column(pa.array(values), "a").values
        assert found.dtype == values.dtype
        assert np.shares_memory(found, values)
    assert raw_column(pa.array([1, None], pa.int16()), "a").values.dtype == np.int16
    assert raw_column(pa.array([True, None]), "a").values.dtype == bool


def test_columns_by_name_words_that_are_null_and_types_without_a_step():
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["u", None]))
    batch = pa.RecordBatch.from_pydict({"b": [1, 2, 3], "a": column})
    found = raw_columns(batch, ["a"])
    assert list(found) == ["a"]
    assert values_of(found["a"]) == ["u", None, None]
    with pytest.raises(InputError, match="there is no column 'c' among b, a"):
        raw_columns(batch, ["c"])
    pair = pa.list_(pa.string(), 2)
    for other in (pa.list_(pa.string()), pa.struct([("x", pa.int8())]), pa.binary(), pair):
        assert raw_kind(other) is None
        with pytest.raises(
            InputError, match=r"column 'a' has the type .*which cannot be encoded; convert it"
        ):
            raw_column(pa.nulls(2, other), "a")


def test_decimals_are_the_nearest_floats():
    spelt = ["0.7", "19.99", "2.675", "-0.1", "100"]
    column = pa.array([Decimal(word) for word in spelt], pa.decimal128(9, 3))
    assert raw_column(column, "d").values.tolist() == [float(word) for word in spelt]
