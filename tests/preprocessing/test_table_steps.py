"""Steps: what becomes of each kind of raw column, of missing values, and of columns of another kind."""

import datetime
import json
import math
from decimal import Decimal

import numpy as np
import pytest

from distrff.errors import InputError, ModelFileError, NonFiniteError
from distrff.preprocessing.table import (
    CyclicTimeEncoder,
    HashedStep,
    NumberStep,
    OneHotEncoder,
    RawColumn,
    SecondsAndPartsStep,
    SecondsStep,
    TableSteps,
    TargetStep,
    hashed_place,
)
from distrff.preprocessing.words import Vocabulary, word_of

NAN = float("nan")


def numbers(values, dtype="f8", nulls=None):
    return RawColumn("number", np.asarray(values, dtype), None if nulls is None else np.asarray(nulls, bool))


def text(words):
    known = tuple(sorted({w for w in words if w is not None}))
    codes = np.asarray([-1 if w is None else known.index(w) for w in words], np.int32)
    return RawColumn("text", codes, codes < 0 if (codes < 0).any() else None, known)


def times(values, ticks=1, nulls=None):
    mask = None if nulls is None else np.asarray(nulls, bool)
    return RawColumn("time", np.asarray(values, np.int64), mask, ticks=ticks)


def encoded(step, column, first_row=0):
    made = TableSteps((step,)).apply({step.name: column}, first_row=first_row)
    assert len(made["X"]) == len(column)
    assert made["X"].dtype == np.dtype(step.dtype)
    return made["X"]


SPELT = ["1", None, "2.5", " -3e2", ".5", "TRUE", "false"]
LARGE = str(2**53 + 1)


@pytest.mark.parametrize(
    ("step", "column", "X"),
    [
        (NumberStep("a", "int16"), numbers([1, 2], "i2"), [[1], [2]]),
        (NumberStep("a", "int8"), numbers([1.0, -128.0]), [[1], [-128]]),
        (NumberStep("a", "float32", 2), numbers([[1, 2], [3, 4]], "f4"), [[1, 2], [3, 4]]),
        # NaN where no fill is: the sweep that reads the rows names it, as it does for arrays.
        (NumberStep("a", "float64"), numbers([NAN]), [[NAN]]),
        (
            NumberStep("a", "float64", 2, (5.0, 6.0), indicates=True),
            numbers([[1, NAN], [7, 4]], nulls=[[0, 0], [1, 0]]),
            [[1, 6, 1], [5, 4, 1]],
        ),
        (NumberStep("a", "float64", fill=(-1.0,)), text(SPELT), np.c_[[1, -1, 2.5, -300, 0.5, 1, 0]]),
        (NumberStep("a", "int64"), text([LARGE, "1"]), [[2**53 + 1], [1]]),
        *(
            (NumberStep("a", "float64", fill=(2.0,)), column, [[2], [2]])
            for column in (numbers([NAN] * 2), text([None] * 2), RawColumn("null", np.zeros(2)))
        ),
    ],
)
def test_numbers_keep_their_type_and_are_read_from_text(step, column, X):
    np.testing.assert_array_equal(encoded(step, column), X)
    assert NumberStep("a", "float32", 2).names_out == ("a_0", "a_1")
    with pytest.raises(NonFiniteError, match="column 'a' has no value in row 11; drop or fill"):
        encoded(NumberStep("a", "int32"), numbers([1, 2], "i4", [0, 1]), first_row=10)


@pytest.mark.parametrize(
    ("step", "column", "message"),
    [
        *(
            (NumberStep("a", "int8"), numbers([1.0, value]), f"column 'a' holds {value}, but it held int8")
            for value in (0.5, 128.0)
        ),
        (NumberStep("a", "bool"), numbers([0, 2], "i8"), "column 'a' holds 2, but it held bool"),
        (NumberStep("a", "float64"), text(["u"]), "column 'a' holds 'u', but it held numbers"),
        (NumberStep("a", "float64"), text(["1", "02139"]), "column 'a' holds '02139', but it held numbers"),
        (OneHotEncoder("c", ("u",)), numbers([[1, 2]]), "column 'c' holds numbers, but it held text"),
        (NumberStep("a", "float64"), numbers([[1, 2]]), "column 'a' holds 2 numbers a row, but it held 1"),
    ],
)
def test_columns_that_a_step_cannot_hold(step, column, message):
    with pytest.raises(InputError, match=message):
        encoded(step, column)


def test_categories_and_their_place_for_others():
    step = OneHotEncoder("c", ("u", "v"))
    np.testing.assert_array_equal(encoded(step, text(["v", "new", "u"])), [[0, 1], [0, 0], [1, 0]])
    assert step.names_out == ("c=u", "c=v")
    with pytest.raises(NonFiniteError, match="column 'c' has no value in row 1"):
        encoded(step, text(["u", None]))
    shares = OneHotEncoder("c", ("u", "v"), fill=(0.75, 0.25))
    np.testing.assert_array_equal(encoded(shares, text([None, "u"])), [[0.75, 0.25], [1, 0]])
    # Whole numbers are their digits.
    digits = OneHotEncoder("c", ("-3", "12"), fill=(0.0, 0.0))
    column = numbers([12, -3, 5, 0], "i8", [0, 0, 0, 1])
    np.testing.assert_array_equal(encoded(digits, column), [[0, 1], [1, 0], [0, 0], [0, 0]])
    marked = OneHotEncoder("c", ("u", "v"), fill=(0.0, 0.0), indicates=True)
    np.testing.assert_array_equal(encoded(marked, text([None, "u"])), [[0, 0, 1], [1, 0, 0]])


def test_seconds_since_the_origin_keep_nanoseconds():
    origin = 1_600_000_000_000_000_001  # ns
    step = SecondsStep("t", origin, 10**9)
    X = encoded(step, times([origin, origin + 5, origin + 3 * 10**9], 10**9))
    np.testing.assert_allclose(X[:, 0], [0, 5e-9, 3], rtol=1e-6)
    coarse = encoded(SecondsStep("t", 86_400, 1), times([86_400_500], 1000))  # another unit than the origin's
    assert coarse == [[0.5]]
    words = ["1970-01-02", None, "1970-01-01T00:00:02.5Z", "1970-01-01 01:00:00.0000009+01:00"]
    spelt = text(["not a time", *words]).take(np.arange(5) > 0)  # as a category that no row has
    made = encoded(SecondsStep("t", 0, 1, fill=-1.0), spelt.of_kind("time", "t"))
    np.testing.assert_array_equal(made[:, 0], [86_400, -1, 2.5, 0])
    for word in ("tomorrow", "NaT", "2020-13-01", ""):
        with pytest.raises(InputError, match=f"column 't' holds '{word}', but it held times at the fit"):
            text(["1970-01-02", word]).of_kind("time", "t")
    filled = encoded(SecondsStep("t", 0, 1, fill=9.0, indicates=True), times([4, 0], nulls=[0, 1]))
    np.testing.assert_array_equal(filled, [[4, 0], [9, 1]])


def test_hashed_words_have_the_same_place_everywhere_and_as_in_earlier_versions():
    words = [f"word {i}" for i in range(40)]
    X = encoded(HashedStep("c", 7), text(words))
    assert X.argmax(axis=1).tolist() == [hashed_place(word, 7) for word in words]
    assert (X.sum(axis=1) == 1).all()
    assert hashed_place("distrff", 1000) == 88  # of the hash function's own definition, for other programs
    filled = HashedStep("c", 7, fill=(0.0,) * 7)
    np.testing.assert_array_equal(encoded(filled, text([None])), np.zeros((1, 7)))
    floats, truth = (
        RawColumn("text", np.asarray([0, 1], np.int32), words=found, dtype=dtype)
        for found, dtype in ((("1", "2.5"), "float64"), (("true", "false"), "bool"))
    )
    data = TableSteps((HashedStep("c", 97),)).to_dict()
    del data["columns"][0]["by_value"]
    stored, by_value = TableSteps.from_dict(data).columns[0], HashedStep("c", 97, by_value=True)
    for step, column, hashed in (
        (stored, floats, ("1.0", "2.5")),
        (stored, truth, ("True", "False")),
        (stored, text([" u", "u"]), (" u", "u")),
        (by_value, text([" u", "u"]), ("u", "u")),
        (by_value, floats, ("1", "2.5")),
        (by_value, numbers([1, 2.5]), ("1", "2.5")),
    ):
        assert encoded(step, column).argmax(axis=1).tolist() == [hashed_place(w, 97) for w in hashed]


@pytest.mark.parametrize("ticks", [1, 10**3, 10**6, 10**9])
def test_parts_are_those_of_the_calendar(rng, ticks):
    seconds = rng.integers(-3 * 10**9, 6 * 10**9, size=50)  # 1874 to 2160
    X = encoded(CyclicTimeEncoder("t"), times(seconds * ticks, ticks))
    for row, second in zip(X, seconds.tolist(), strict=True):
        t = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=second)
        begin, end = datetime.datetime(t.year, 1, 1), datetime.datetime(t.year + 1, 1, 1)
        shares = ((t - begin) / (end - begin), t.weekday() / 7, t.hour / 24)
        waves = [wave(2 * math.pi * share) for share in shares for wave in (math.sin, math.cos)]
        np.testing.assert_allclose(row, waves, atol=1e-12)
    assert CyclicTimeEncoder("t").names_out[:3] == ("t_year_sin", "t_year_cos", "t_weekday_sin")
    both = SecondsAndPartsStep("t", 7 * ticks, ticks)
    np.testing.assert_array_equal(encoded(both, times(seconds * ticks, ticks)), np.c_[X, seconds - 7])
    assert both.names_out == (*CyclicTimeEncoder("t").names_out, "t")


FILLED = (
    NumberStep("a", "float64", fill=(1 / 3,), indicates=True),
    OneHotEncoder("c", ("ü", "v"), (0.25, 0.75)),
    HashedStep("h", 3, (0.0,) * 3),
    SecondsStep("t", -5, 10**9, 0.5),
    CyclicTimeEncoder("p", 0.0, True),
    SecondsAndPartsStep("b", 3, 1000, (0.0,) * 6 + (2.5,), True),
)


def words_of(column):
    found = column.of_kind("text", "a")
    return [found.words[code] if code >= 0 else None for code in found.values.tolist()]


def test_a_value_has_one_word_in_any_type():
    large = 2**53 + 1
    for dtype in ("i8", "u8"):
        assert words_of(numbers([large, 0, 1], dtype, [0, 1, 0])) == [str(large), None, "1"]
    for dtype in ("f4", "f8"):
        assert words_of(numbers([0.1, -0.0, NAN, -12, 1e-5], dtype)) == ["0.1", "0", None, "-12", "1e-05"]
    assert words_of(numbers([2.0**60, 1e300])) == [str(2**60), "1e+300"]
    assert words_of(numbers([1, 0], "?")) == ["true", "false"]
    assert words_of(times([0, 86_400_500, 43_200_000], 1000)) == [
        "1970-01-01",
        "1970-01-02 00:00:00.5",
        "1970-01-01 12:00:00",
    ]
    for value in (Decimal("1.50"), Decimal("-3E+2"), Decimal("7.000")):
        assert Decimal(word_of(value)) == value
    assert [word_of(Decimal(v)) for v in ("1.50", "-3E+2")] == ["1.5", "-300"]


@pytest.mark.parametrize(
    ("of_fit", "later", "places"),
    [
        (("1.0", "2.0"), ("1", "2", " 1 ", "1.00", "3", "01", "1e0", "+1"), (0, 1, 0, 0, -1, -1, -1, -1)),
        (("02139", "2140"), ("2139", "02139", "2140", "02140"), (-1, 0, 1, -1)),
        (("1.1", "1.10"), ("1.1", "1.10 ", "1.100"), (0, 1, -1)),  # versions
        (("True", "False"), ("true", "TRUE", "1", "0.0", "2"), (0, 0, 0, 1, -1)),
        (("0", "1"), ("true", "False", "yes"), (1, 0, -1)),
        (("0", "1", "2"), ("true",), (-1,)),  # no truth values
        (("true", "1"), ("true", "1", "TRUE"), (0, 1, -1)),
        ((" u", "u", "v "), ("u", " u", "u ", "v", "V"), (1, 0, 1, 2, -1)),
        (("2020-01-01 00:00:00", "x"), ("2020-01-01", "2020-01-01T00:00Z", "2020"), (0, 0, -1)),
        ((str(2**53), str(2**53 + 1)), (str(2**53 + 1), f"{2**53}.0", "9007199254740993.0"), (1, 0, 1)),
    ],
)
def test_words_are_found_again_in_other_spellings_but_never_merged(of_fit, later, places):
    assert tuple(Vocabulary(of_fit).find_all(later)) == places
    step = OneHotEncoder("c", of_fit)
    X = encoded(step, text(later))
    np.testing.assert_array_equal(X, np.asarray(places)[:, None] == np.arange(len(of_fit)))
    missing = RawColumn("text", np.asarray([-1], np.int32), np.ones(1, bool), later)
    assert step.unseen(missing).n_rows == 0
    assert step.unseen(text(later)).n_rows == places.count(-1)


def y_of(target, **raw):
    steps = TableSteps((NumberStep("x", "float64"),), target)
    return steps.apply({"x": numbers(np.zeros(len(next(iter(raw.values()))))), **raw}, first_row=5)["y"]


@pytest.mark.parametrize(
    ("target", "raw", "y"),
    [
        (TargetStep(("y",), "numbers", "int8"), {"y": numbers([1, 2], "i1")}, np.int8([1, 2])),
        (
            TargetStep(("a", "b"), "numbers", "float64", is_1d=False),
            {"a": numbers([1, 2]), "b": numbers([3, 4])},
            np.array([[1.0, 3], [2, 4]]),
        ),
        (TargetStep(("y",), "labels", "object"), {"y": text(["u", "v"])}, np.array(["u", "v"], object)),
    ],
)
def test_targets(target, raw, y):
    found = y_of(target, **raw)
    np.testing.assert_array_equal(found, y)
    assert found.dtype == y.dtype
    with pytest.raises(NonFiniteError, match="column 'y' has no value in row 6"):
        y_of(TargetStep(("y",), "labels", "object"), y=text(["u", None]))


@pytest.mark.parametrize(
    ("positive", "column"),
    [
        ("u", text(["u", "v", "u", "new"])),
        ("2", numbers([2, 1, 2, 3], "i4")),
        ("2e0", numbers([2, 1, 2, 3], "u1")),
        ("True", numbers([1, 0, 1, 0], "?")),
        ("TRUE", numbers([1, 0, 1, 0], "i1")),
        ("0.1", numbers([0.1, 0, 0.1, 0], "f4")),
        (str(2**53 + 1), numbers([2**53 + 1, 2**53, 2**53 + 1, 0], "u8")),
        ("1.1", text(["1.1", "1.10", " 1.1", "2"])),
        ("true", text(["True", "False", "TRUE", "no"])),
    ],
)
def test_one_label_against_all_others(positive, column):
    kind = "labels" if column.kind == "text" else "numbers"
    y = y_of(TargetStep(("y",), kind, "uint8", positive=positive), y=column)
    np.testing.assert_array_equal(y, np.asarray([1, 0, 1, 0], np.uint8))
    assert y.dtype == np.uint8


RAW = {
    "a": numbers([1, NAN, 3, 4]),
    "c": text(["u", "v", None, "u"]),
    "w": numbers([1, 2, 3, 4], "i4"),
    "y": text(["p", "q", "p", None]),
    "other": text([None] * 4),
}
STEPS = TableSteps(
    (OneHotEncoder("c", ("u", "v")), NumberStep("a", "float64")),
    TargetStep(("y",), "labels", "object"),
    "w",
    drops_missing=True,
)


def test_rows_to_predict_are_all_kept_and_nan_where_the_fit_would_drop_them():
    steps = STEPS.for_prediction()
    assert (steps.raw_names, steps.required, steps.dtype) == (("c", "a"), (), np.float64)
    a, nan = RAW["a"], np.nan
    incomplete = np.isnan(np.where(a.missing(), nan, a.values))
    expected = np.array([[1, 0, 1], [0, 1, a.values[1]], [nan] * 3, [1, 0, a.values[3]]])
    expected[incomplete] = nan
    np.testing.assert_array_equal(steps.apply(RAW)["X"], expected)
    only_bytes = TableSteps((OneHotEncoder("c", ("u", "v")),), drops_missing=True).for_prediction()
    np.testing.assert_array_equal(only_bytes.apply(RAW)["X"], [[1, 0], [0, 1], [nan, nan], [1, 0]])
    assert STEPS.for_names(["c", "a", "w"]) == steps
    assert STEPS.for_names(["c", "a", "w", "y"]) == STEPS


def test_steps_are_values_that_json_keeps():
    target = TargetStep(("y",), "labels", "uint8", positive="yes")
    others = NumberStep("l", "float64", 2, (0.1, 1 / 3), True), HashedStep("g", 2)
    every = TableSteps((*FILLED, *others), target, "w", True, (1, 0))
    text = json.dumps(every.to_dict(), allow_nan=False)
    assert TableSteps.from_dict(json.loads(text)) == every
    assert TableSteps.from_dict(json.loads(json.dumps(STEPS.to_dict()))) == STEPS != every
    later = every.to_dict() | {"columns": [{"step": "embedding", "name": "a"}]}
    with pytest.raises(ModelFileError, match="the step 'embedding' for columns is not known; update distrff"):
        TableSteps.from_dict(later)
