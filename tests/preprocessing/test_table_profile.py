"""The profile of a table is the same however its rows are cut, and the steps are what the options ask for."""

from fractions import Fraction
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrff.errors import InputError
from distrff.preprocessing.profile import (
    TableOptions,
    TableProfile,
    exact_mean,
    exact_sum,
    refuse_missing_values,
    steps_of,
)
from distrff.preprocessing.table import (
    CyclicTimeEncoder,
    HashedStep,
    NumberStep,
    OneHotEncoder,
    RawColumn,
    SecondsAndPartsStep,
    SecondsStep,
    TargetStep,
)

WORDS = ("u", "v", "w")


@pytest.fixture
def raw(rng):
    """Every kind of column, each value of few there, and a missing one where there may be."""
    n = 30
    nulls = {name: rng.random(n) < 0.3 for name in "act"}
    for mask in nulls.values():
        mask[:4] = False, False, False, True
    codes = rng.integers(0, 3, n).astype(np.int32)
    codes[:3] = 0, 1, 2
    lists = np.where(rng.random((n, 2)) < 0.1, np.nan, rng.integers(0, 9, (n, 2)))
    lists[:2] = [[1, 2], [np.nan, 3]]
    return {
        "a": RawColumn("number", rng.integers(-50, 50, n).astype("i2"), nulls["a"]),
        "l": RawColumn("number", lists),
        "c": RawColumn("text", np.where(nulls["c"], -1, codes).astype(np.int32), nulls["c"], WORDS),
        "t": RawColumn("time", rng.integers(-(10**12), 10**12, n), nulls["t"], ticks=1000),
        "z": RawColumn("null", np.zeros(n)),
        "y": RawColumn("number", rng.integers(0, 3, n).astype("i8")),
    }


def test_any_cut_gives_the_same_profile(raw, rng):
    whole = TableProfile.of(raw, 10)
    cuts = [0, *sorted(rng.choice(np.arange(1, 30), 3, replace=False).tolist()), 30]
    masks = [(np.arange(30) >= start) & (np.arange(30) < stop) for start, stop in pairwise(cuts)]
    parts = [TableProfile.of({name: c.take(mask) for name, c in raw.items()}, 10) for mask in masks]
    assert reduce(TableProfile.merge, parts) == whole  # sums of small integers are exact
    left = parts[0].merge(parts[1])
    assert left.merge(parts[2].merge(parts[3])) == whole
    assert TableProfile.empty(10).merge(whole) == whole.merge(TableProfile.empty(10)) == whole


def test_columns_of_two_kinds():
    numbers = TableProfile.of({"a": RawColumn("number", np.ones(2))}, 4)
    text = TableProfile.of({"a": RawColumn("text", np.zeros(2, np.int32), None, ("u",))}, 4)
    nothing = TableProfile.of({"a": RawColumn("null", np.zeros(2))}, 4)
    with pytest.raises(InputError, match="column 'a' holds numbers in some rows and text in others"):
        numbers.merge(text)
    assert nothing.merge(text).columns["a"].n_missing == text.merge(nothing).columns["a"].n_missing == 2
    assert nothing.merge(numbers).columns["a"].counts == (2,)
    seconds = TableProfile.of({"t": RawColumn("time", np.array([5, 9]))}, 4)  # and times of two units
    millis = TableProfile.of({"t": RawColumn("time", np.array([4500, 5001]), ticks=1000)}, 4)
    for merged in (seconds.merge(millis), millis.merge(seconds)):
        assert (merged.columns["t"].first, merged.columns["t"].ticks) == (4500, 1000)
        assert merged.columns["t"].means() == ((5 + 9 + 4 + 5) / 4,)


def steps(raw, columns, *, target=(), weight=None, **options):
    given = TableOptions(target=list(target) or None, sample_weight=weight, **options)
    profile = TableProfile.of(raw, given.max_categories)
    made, report = steps_of(profile, given, columns=columns, target=target, weight=weight)
    refuse_missing_values(made, profile, given.missing)
    return made, report


def test_a_step_a_column(raw):
    made, report = steps(raw, "alctz", target="y", one_hot=True, missing="drop", datetime="seconds")
    first = int(raw["t"].values[~raw["t"].nulls].min())
    assert made.columns == (
        NumberStep("a", "int16"),
        NumberStep("l", "float64", 2),
        OneHotEncoder("c", WORDS),
        SecondsStep("t", first, 1000),
    )
    assert (made.target, made.drops_missing) == (TargetStep(("y",), "numbers", "int64", is_1d=False), True)
    assert report["columns_dropped"] == {"z": "it has no values"}
    assert (report["columns_made"], report["categories"]) == (7, {"c": 3})
    assert report["missing"].keys() == {"a", "l", "c", "t"}


def test_fills(raw):
    made, _ = steps(raw, "act", one_hot=True, missing="mean", datetime="seconds")
    a, c, t = made.columns
    assert a == NumberStep("a", "float32", fill=(raw["a"].values[~raw["a"].nulls].mean(),))
    shares = [(raw["c"].values == i).sum() / (raw["c"].values >= 0).sum() for i in range(3)]
    np.testing.assert_allclose(c.fill, shares, rtol=1e-15)
    seen = raw["t"].values[~raw["t"].nulls]
    assert abs(t.fill - (seen.mean() - seen.min()) / 1000) < 1  # to the second
    made, _ = steps(raw, "acty", one_hot=True, missing="indicator", datetime="parts")
    assert [step.indicates for step in made.columns] == [True, True, True, False]
    assert made.columns[1].fill == (0.0,) * 3
    assert made.columns[2] == CyclicTimeEncoder("t", 0.0, True)
    made, _ = steps(raw, "ty", missing="mean", datetime="both")
    first = int(raw["t"].values[~raw["t"].nulls].min())
    assert made.columns[0] == SecondsAndPartsStep("t", first, 1000, (*[0.0] * 6, t.fill))


def test_blanks_around_words_and_the_type_of_a_category_of_numbers():
    words = RawColumn("text", np.arange(4, dtype=np.int32), words=("u", " u", "1.1", "1.10 "))
    found = TableProfile.of({"c": words}, 9).columns["c"]
    assert found.words == {"u": 2, "1.1": 1, "1.10": 1}
    numbers, truth = (
        TableProfile.of({"c": RawColumn("text", np.zeros(1, np.int32), words=words, dtype=dtype)}, 9)
        for words, dtype in ((("1",), "int8"), (("true",), "bool"))
    )
    made, _ = steps_of(numbers, TableOptions("c", one_hot=True), columns=["c"], target=["c"])
    assert made.target == TargetStep(("c",), "numbers", "int8")
    assert numbers.merge(truth).columns["c"].dtype == "int8"
    assert numbers.merge(TableProfile.of({"c": words}, 9)).columns["c"].dtype == ""


def test_columns_of_many_words_or_categories(raw, rng):
    codes = rng.permutation(8).astype(np.int32)
    halves = [
        {"c": RawColumn("text", codes[half], None, tuple("abcdefgh"))} for half in (slice(4), slice(4, 8))
    ]
    for most, expected in [(8, dict.fromkeys("abcdefgh", 1)), (7, None)]:
        first, second = (TableProfile.of(half, most) for half in halves)
        assert first.merge(second).columns["c"].words == second.merge(first).columns["c"].words == expected
    options = {"one_hot": True, "missing": "drop", "max_categories": 2}
    made, report = steps(raw, "ac", **options)
    assert [step.name for step in made.columns] == ["a"]
    assert report["columns_dropped"]["c"].startswith("it has more than 2 categories")
    made, _ = steps(raw, "ac", hash_columns=True, **options)
    assert made.columns[1] == HashedStep("c", 2, by_value=True)


def test_one_positive_label(raw):
    made, _ = steps(raw, "a", target="c", missing="drop", positive="v")
    assert made.target == TargetStep(("c",), "labels", "uint8", False, "v")
    made, _ = steps(raw, "a", target="y", missing="drop", positive=2)
    assert made.target == TargetStep(("y",), "numbers", "uint8", False, "2")
    spelt = raw | {"s": RawColumn("text", np.arange(4, dtype=np.int32) % 2, words=("1.0", "0.0"))}
    made, _ = steps(spelt, "a", target="s", missing="drop", positive=1)
    assert made.target.positive == "1.0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ["c", "c=u"], "missing": "drop", "one_hot": True}, "two columns .* named 'c=u'; rename"),
        ({"columns": "z"}, r"no column is left for X \(z: it has no values\)"),
        ({"columns": "a", "target": "l", "missing": "drop"}, "the target 'l' holds lists of 2 numbers"),
        ({"columns": "a", "target": "yc", "missing": "drop"}, "several targets must all hold numbers"),
        (
            {"columns": "a", "missing": "ignore"},
            "missing must be one of 'error', 'drop', 'mean', 'indicator'",
        ),
        (
            {"columns": "a", "datetime": "days"},
            "datetime must be None or one of 'seconds', 'parts', 'both', got",
        ),
        ({"columns": "a", "max_categories": 1}, "max_categories must be an integer of at least 2, got 1"),
        ({"columns": "a", "hash_columns": True}, "hash_columns needs one_hot=True"),
        ({"columns": "a", "positive": "u"}, "positive='u' is a label of the target; name the target as well"),
        (
            {"columns": "a", "target": "c", "missing": "drop", "positive": "x"},
            "no row of .*'x'; it holds: 'u', 'v'",
        ),
    ],
)
def test_steps_and_options_that_cannot_be_are_refused(raw, arguments, message):
    raw["c=u"] = raw["y"]
    with pytest.raises(InputError, match=message):
        steps(raw, **arguments)
    with pytest.raises(InputError, match="columns and drop were both given"):
        TableOptions(columns=["a"], drop=["b"])


UNIT = Fraction(1, 2**1074)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True)), st.integers(0, 20))
def test_any_doubles(values, cut):
    x = np.asarray(values, np.float64)
    finite = [Fraction(v) for v in values if np.isfinite(v)]
    assert exact_sum(x) * UNIT == sum(finite)
    assert exact_sum(x[:cut]) + exact_sum(x[cut:]) == exact_sum(x)
    if finite:
        assert exact_mean(exact_sum(x), len(finite)) == float(sum(finite) / len(finite))  # rounded once
    for dtype in ("?", "u1", "i4", "i8", "f2", "f4"):
        other = np.arange(100).astype(dtype)
        assert exact_sum(other) * UNIT == sum(map(Fraction, other.tolist()))
