"""Folds by columns: whole groups, cells of a map, spans of time, and those of scikit-learn's splitters."""

import base64
import json
import tracemalloc
import zlib
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.model_selection as sklearn_folds
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from distrff.errors import InputError, ModelFileError
from distrff.io.storage import contents_of
from distrff.preprocessing import splits
from distrff.preprocessing.folds import (
    NO_FOLDS,
    ContiguousFolds,
    Folds,
    HashFolds,
    Keys,
    OneHeldOut,
    SomeFolds,
    same_rule,
)
from distrff.preprocessing.splits import (
    BlockFolds,
    CopyFolds,
    ForwardFolds,
    GroupFolds,
    Occupancy,
    OrderCounts,
    PatternFolds,
    folds_from_dict,
    translated,
)
from tests.support.fits import refusal

seeds = st.integers(0, 2**32)


def keys_of(X: Any = None, **columns: Any) -> Keys:
    """All rows of some columns."""
    columns = {name: np.asarray(values) for name, values in columns.items()}
    n = X.shape[0] if X is not None else len(next(iter(columns.values())))
    return Keys(np.arange(n), columns, X)


def of_rows(folds: Folds, keys: Keys, **of_dataset: Any) -> Folds:
    """The folds with what they know of a dataset of these rows before any is read."""
    known = {
        "n_rows": len(keys),
        "n_columns": 0 if keys.X is None else keys.X.shape[1],
        "column_names": None,
        "id_dtypes": {name: values.dtype for name, values in keys.columns.items()},
        "groups": "groups" if "groups" in keys.columns else None,
        "persisted_bytes": 0,
        "raw_features": (),
    }
    return folds.drawn_from(7).of_dataset(SimpleNamespace(**known | of_dataset))


def decided(folds: Folds, keys: Keys, rng: np.random.Generator | None = None, **of_dataset: Any) -> Folds:
    """The folds of these rows; with `rng` from surveys of random runs of them, merged in their order."""
    folds = of_rows(folds, keys, **of_dataset)
    cuts = [] if rng is None else np.unique(rng.integers(1, len(keys), 4))
    first, *others = (folds.survey(keys.chosen(run)) for run in np.split(np.arange(len(keys)), cuts))
    for other in others:
        first = first and first.merge(other)
    return folds if first is None else folds.decided(first)


def masks(folds: Folds, keys: Keys) -> tuple[np.ndarray, np.ndarray]:
    return folds.masks(keys, range(folds.n_folds))


# Whole groups.


@given(seed=seeds, n_groups=st.integers(5, 60))
def test_groups_are_dealt_whole_and_the_largest_first(seed: int, n_groups: int) -> None:
    """Sizes are those of `GroupKFold`, and folds the same for any order, chunks and type of the values."""
    rng = np.random.default_rng(seed)
    groups = np.r_[np.arange(n_groups), rng.integers(0, n_groups, 300) // rng.integers(1, 5)] - 3
    keys = keys_of(groups=groups)
    own = decided(GroupFolds(), keys, rng).held_out(keys).numbers
    assert len(set(zip(groups, own, strict=True))) == n_groups
    theirs = sklearn_folds.GroupKFold(5).split(groups, groups=groups)
    assert sorted(np.bincount(own)) == sorted(len(test) for _, test in theirs)
    order = rng.permutation(len(groups))
    for values in (groups.astype(np.float32), groups.astype(object), groups.astype(np.int16)):
        others = keys_of(groups=values[order])
        folds = decided(GroupFolds(), others, rng)
        np.testing.assert_array_equal(folds.held_out(others).numbers, own[order])
    shown = folds.words
    assert shown == f"whole groups ({n_groups} of them)"


@pytest.mark.parametrize("make", [str, lambda x: f"é{x}".encode(), lambda x: np.datetime64(x, "D")])
def test_groups_may_be_text_and_times(rng: np.random.Generator, make: Any) -> None:
    groups = np.array([make(int(g)) for g in rng.integers(0, 30, 200)])
    keys = keys_of(groups=groups)
    own = decided(GroupFolds(), keys).held_out(keys).numbers
    assert len(set(zip(groups.tolist(), own, strict=True))) == len(set(groups.tolist()))
    assert np.ptp(np.bincount(own)) < 30


def test_many_groups_and_new_ones_have_the_fold_of_a_hash(rng: np.random.Generator) -> None:
    keys = keys_of(groups=rng.permutation(np.repeat(np.arange(splits.MAX_COUNTED + 1), 2)))
    many = decided(GroupFolds(), keys, rng)
    assert isinstance(many, GroupFolds) and many.dealt is None and many.words == "whole groups"
    own = many.held_out(keys).numbers
    assert len(set(zip(keys.columns["groups"], own, strict=True))) == splits.MAX_COUNTED + 1
    assert np.bincount(own).min() > 0.9 * len(keys) / 5
    few = keys.chosen(keys.columns["groups"] < 5)
    dealt = decided(GroupFolds(), few)
    assert sorted(np.bincount(dealt.held_out(few).numbers)) == [2] * 5
    new = keys.chosen(keys.columns["groups"] >= 5)
    np.testing.assert_array_equal(dealt.held_out(new).numbers, many.held_out(new).numbers)
    assert "more than 10,000 groups; give a number of folds" in refusal(
        decided, GroupFolds(n_folds=None), keys
    )


def test_each_group_may_be_a_fold_and_there_may_be_too_few(rng: np.random.Generator) -> None:
    keys = keys_of(shop=rng.permutation(np.repeat([3, 9, 27], 5)))
    folds = decided(GroupFolds("shop", None), keys)
    assert folds.n_folds == folds.n_sums == 3
    own = folds.held_out(keys).numbers
    assert len(set(zip(keys.columns["shop"], own, strict=True))) == len(set(own)) == 3
    assert "there are 3 groups, and each of 5 folds needs one; give fewer folds: GroupFolds(n_folds=3)" in (
        refusal(decided, GroupFolds("shop"), keys)
    )


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.0, np.nan, 2.0, np.nan]),
        np.array(["a", None, "b", pd.NA], dtype=object),
        np.array(["2026-01-01", "NaT", "2026-01-02", "NaT"], "M8[s]"),
    ],
)
def test_rows_without_a_group_are_counted(values: np.ndarray) -> None:
    assert "2 rows have no group" in refusal(decided, GroupFolds(n_folds=2), keys_of(groups=values))


# Columns.


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["lon", "height"], "go by the column 'height', which these rows lack; they have day, lon, lat"),
        (["lon", 2], "places among 2 features, got 2"),
        (["lon", 1.0], "places among 2 features, got 1.0"),
        (["lon", "day"], "'day', which holds 'mon'; give a column of numbers or times. types={'day'"),
        (["lon", 0], "folds go by lon, column 0; give 'lon' once"),
    ],
)
def test_columns_that_cannot_be_folds_are_refused(names: list[Any], words: str) -> None:
    keys = keys_of(np.ones((4, 2)), day=["mon", "tue", "wed", "thu"])
    for folds in (BlockFolds(names, n_folds=2), ForwardFolds(names, 2)):
        assert words in refusal(lambda folds: decided(folds, keys, column_names=("lon", "lat")), folds)


@pytest.mark.parametrize(
    "values",
    [np.array(["2026-01-01", "NaT", "2026-01-03", "NaT"], "M8[s]"), np.array([1, np.nan, 3, np.inf])],
)
def test_rows_without_a_time_or_place_are_counted(values: np.ndarray) -> None:
    for folds in (ForwardFolds("t", 2), BlockFolds("t", n_folds=2)):
        assert "2 of 4 rows lack a value of 't'" in refusal(decided, folds, keys_of(t=values))


# Cells of a map.


@pytest.mark.parametrize("buffer", [0.0, 0.4, 1.7])
@pytest.mark.parametrize("size", [1.0, (0.5,), (1.5, 0.7), (0.9, 2.0, 1.1)])
def test_cells_and_their_buffer_are_those_of_all_distances(
    rng: np.random.Generator, size: Any, buffer: float
) -> None:
    """Each point against all cells that are near enough: by the fold of a point in the middle of the cell."""
    d = max(2, np.size(size)) if np.size(size) > 1 else 2
    points, sizes = rng.uniform(-2.5, 2.5, (60, d)), np.resize(size, d)
    folds = decided(BlockFolds(range(d), size, 4, buffer), keys_of(points))
    least, most = (np.floor((sign * (2.5 + buffer)) / sizes).astype(int) for sign in (-1, 1))
    cells = np.array([*product(*(range(a, b + 1) for a, b in zip(least, most, strict=True)))])
    fold_of_cell = folds.held_out(keys_of((cells + 0.5) * sizes)).numbers
    own = (np.floor(points / sizes)[:, None] == cells).all(axis=2).argmax(axis=1)
    apart = np.maximum(0, np.maximum(cells * sizes - points[:, None], points[:, None] - (cells + 1) * sizes))
    is_near = np.linalg.norm(apart, axis=2) <= buffer
    fitted, judged = masks(folds, keys_of(points))
    for fold in range(4):
        is_own = fold_of_cell[own] == fold
        np.testing.assert_array_equal(judged[:, fold], is_own)
        is_left_out = is_own | (is_near & (fold_of_cell == fold)).any(axis=1) & (buffer > 0)
        np.testing.assert_array_equal(fitted[:, fold], ~is_left_out)


def test_columns_of_cells_may_be_named_numbered_sparse_or_beside_features(
    rng: np.random.Generator,
) -> None:
    X = np.round(rng.normal(size=(200, 3)), 2)
    names = ("a", "lon", "lat")

    def fitted(columns: Any, X: Any = X, **beside: Any) -> np.ndarray:
        keys = keys_of(X, **beside)
        return masks(decided(BlockFolds(columns, 0.5, 3, 0.2), keys, column_names=names), keys)[0]

    expected = fitted(["lon", "lat"])
    for columns in ([1, 2], [-2, -1], (1, "lat"), np.array([1, 2])):
        np.testing.assert_array_equal(fitted(columns), expected)
    np.testing.assert_array_equal(fitted([1, 2], csr_matrix(X)), expected)
    beside = {"u": X[:, 1], "v": X[:, 2].astype(object), "lat": X[:, 2]}
    np.testing.assert_array_equal(fitted(["u", "v"], **beside), expected)
    # A column beside the features wins over a feature of its name.
    np.testing.assert_array_equal(fitted(["lon", "lat"], **beside | {"lon": X[:, 1]}), expected)
    np.testing.assert_array_equal(fitted([1], **beside), fitted("lon"))


def test_without_a_size_a_hundred_cells_cover_the_bounds(rng: np.random.Generator) -> None:
    X = rng.uniform([-5, 100], [5, 103], (3000, 2))
    folds = decided(BlockFolds([0, 1]), keys_of(X), rng)
    assert isinstance(folds, BlockFolds) and folds.pitches is not None
    np.testing.assert_allclose(folds.pitches, [1.0, 0.3], rtol=0.15)
    same = decided(BlockFolds([0, 1]), keys_of(X[::-1]))
    np.testing.assert_array_equal(same.held_out(keys_of(X)).numbers, folds.held_out(keys_of(X)).numbers)
    assert folds.words.endswith("cells of column 0, column 1")
    days = keys_of(day=np.datetime64("2026-01-01", "D") + np.arange(9))
    assert decided(BlockFolds("day", 86_400, 2), days).words == "8.64e+04 s cells of day"


@pytest.mark.parametrize(("size", "buffer"), [(1.0, 0.3), ((2.0, 0.5), 0.6), (1.0, 0.0)])
def test_sums_that_a_row_enters_are_estimated(rng: np.random.Generator, size: Any, buffer: float) -> None:
    X = rng.uniform(-30, 30, (4000, 2))
    folds = decided(BlockFolds([0, 1], size, 5, buffer), keys_of(X))
    assert folds.memberships == pytest.approx(folds.sums(keys_of(X)).counts().mean(), rel=0.1)


def with_hole(rng: np.random.Generator) -> np.ndarray:
    """Points of a square without a rectangle in it."""
    X = rng.uniform(-1, 1, (20_000, 2))
    return X[~((X[:, 0] > -0.6) & (X[:, 0] < 0.2) & (X[:, 1] > 0.1) & (X[:, 1] < 0.7))]


AXIS = {"x": np.linspace(-0.55, 0.15, 30), "y": np.linspace(0.15, 0.65, 30)}
PLACES = np.stack(np.meshgrid(*AXIS.values(), indexing="ij"), axis=-1).reshape(-1, 2)


@pytest.mark.parametrize("like", ["gaps", PLACES, AXIS], ids=["gaps", "rows", "grid"])
def test_folds_have_the_shape_of_the_places_to_be_predicted(rng: np.random.Generator, like: Any) -> None:
    """Each fold is a copy of the hole, shifted around the border and mirrored."""
    X = with_hole(rng)
    keys = keys_of(x=X[:, 0], y=X[:, 1])
    folds = decided(BlockFolds(["x", "y"], like=like), keys, rng)
    assert isinstance(folds, CopyFolds) and folds.held is not None and folds.pitches is not None
    areas = []
    for fold in range(5):
        held = folds.held[fold]
        areas.append(held.sum() * folds.pitches.prod())
        # Along each axis the copy is a run, perhaps over the border.
        for axis, length in ((1, 0.8), (0, 0.6)):
            along = held.any(axis=axis)
            assert np.count_nonzero(along != np.roll(along, 1)) == 2
            assert along.sum() * folds.pitches[1 - axis] == pytest.approx(length, abs=0.3)
    assert np.ptp(areas) == 0
    fitted, judged = masks(folds, keys)
    np.testing.assert_array_equal(fitted, ~judged)
    assert folds.share == pytest.approx(judged.mean(), rel=1e-9)
    assert folds.memberships == pytest.approx(folds.sums(keys).counts().mean(), rel=1e-9)
    assert (judged.mean(axis=0) > 0.05).all() and (judged.mean(axis=0) < 0.35).all()
    others: Any = decided(BlockFolds(["x", "y"], like=like), keys_of(x=X[::-1, 0], y=X[::-1, 1]), rng)
    np.testing.assert_array_equal(others.held, folds.held)


@pytest.mark.parametrize("n_last", [1, 300])
def test_parts_of_one_value_make_no_cells_of_others_coarser(rng: np.random.Generator, n_last: int) -> None:
    X = np.array([300.0, 4e6]) + with_hole(rng)
    X[-300:, 1] = X[-1, 1]
    whole = Occupancy.of(X)
    for part in (X[-n_last:], X[:1]):
        np.testing.assert_array_equal(whole.merge(Occupancy.of(part)).exponents, whole.exponents)
    # Each part has one value of a column, as have rows in the order of it.
    lines = np.stack(np.meshgrid(rng.normal(size=400), rng.normal(size=50), indexing="ij"), axis=-1)
    first, *others = map(Occupancy.of, lines)
    for other in others:
        first = first.merge(other)
    whole = Occupancy.of(lines.reshape(-1, 2))
    assert (np.abs(first.exponents - whole.exponents) <= 1).all()
    assert first.counts.sum() == whole.counts.sum() == 20_000


@pytest.mark.parametrize("values", [[0.0], [-7.0], [2e9], [1.0, 1 + 2**-52], [0.0, 1e-300], [1e-9, 1e9]])
@pytest.mark.parametrize("like", [None, "gaps"])
def test_cells_of_columns_of_few_values(rng: np.random.Generator, values: list[float], like: Any) -> None:
    X = np.c_[rng.choice(values, 2000), rng.uniform(size=2000)]
    folds: Any = decided(BlockFolds([0, 1], like=like), keys_of(X), rng)
    assert (masks(folds, keys_of(X))[1].sum(axis=1) == 1).all()
    if like is None:
        assert (folds.pitches > 0).all()
        assert (np.abs(X[:, 0] / folds.pitches[0]) < 2**61).all()


def test_a_map_without_gaps_has_rows_held_out_at_random(rng: np.random.Generator) -> None:
    X = rng.uniform(-1, 1, (5000, 2))
    for like, size in (("gaps", None), ("gaps", 0.2), (X[:9], None)):
        full = decided(BlockFolds([0, 1], like=like, size=size), keys_of(X), rng)
        assert full == HashFolds(5, 7)
        assert full.words.startswith("rows at random, as ")


def test_gaps_lie_between_filled_cells_in_reach(rng: np.random.Generator) -> None:
    """Neither what is around a cloud, nor far pieces of a map, nor counts."""
    n = 20_000
    far = rng.uniform(0, 1, (n, 2)) * 0.1 + rng.integers(0, 2, n)[:, None] * [0.9, 0.5]
    counts = rng.poisson(5, (n, 2)).astype(float)
    for X in (rng.normal(size=(n, 2)), np.sort(rng.uniform(size=(n, 2)), axis=1), far, counts):
        assert decided(BlockFolds([0, 1], like="gaps"), keys_of(X), rng) == HashFolds(5, 7)
    centres = rng.uniform(0, 1, (60, 2))
    clusters = centres[rng.integers(0, 60, n)] + 0.03 * rng.normal(size=(n, 2))
    pieces = far[np.hypot(*(far - 0.05).T) > 0.03]  # a hole in one of two pieces, an eighth of both
    for X in (clusters, pieces):
        assert isinstance(decided(BlockFolds([0, 1], like="gaps"), keys_of(X), rng), CopyFolds)


def test_few_places_are_held_out_by_the_names_of_a_frame(rng: np.random.Generator) -> None:
    X = with_hole(rng)
    keys = keys_of(x=X[:, 0], y=X[:, 1])
    frame = pd.DataFrame({"y": [0.4], "x": [-0.2]})
    folds, same = (decided(BlockFolds(["x", "y"], like=one), keys, rng) for one in (frame, [[-0.2, 0.4]]))
    assert isinstance(folds, CopyFolds) and isinstance(same, CopyFolds) and folds.held is not None
    np.testing.assert_array_equal(folds.held, same.held)
    assert (folds.held.reshape(5, -1).sum(axis=1) == 1).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BlockFolds([]), "folds that go by columns need some"),
        (lambda: BlockFolds([0, 1], size=0), "size must be a positive number"),
        (lambda: BlockFolds([0, 1], size=[1, 2, 3]), "size must be a positive number, or one a column"),
        (lambda: BlockFolds([0, 1], buffer=-1), "buffer must be a number of at least 0, got -1"),
        (lambda: BlockFolds([0, 1], buffer=np.inf), "buffer must be a number"),
        (lambda: BlockFolds([0, 1], buffer=1, like="gaps"), "buffer goes with cells"),
        (lambda: BlockFolds([0, 1], like="holes"), "like must be 'gaps', rows or a grid, got 'holes'"),
        (
            lambda: BlockFolds([0, 1], like=np.ones((3, 3))),
            "like must have a finite value of each of column 0",
        ),
        (
            lambda: BlockFolds([0, 1], like=[[50.0, 50.0]]),
            "none of the places of `like` is within the bounds",
        ),
        (lambda: BlockFolds([0, 1], like={0: [1.0]}), "the grid of `like` has no coordinates of 1"),
        (lambda: BlockFolds([0, 1], n_folds=1), "n_folds must be an integer of at least 2"),
        (lambda: BlockFolds("day", "3d"), "size must hold numbers, of times seconds"),
        (lambda: GroupFolds(n_folds=1), "n_folds must be an integer of at least 2"),
        (GroupFolds, "which have none; give groups= to fit"),
        (lambda: ForwardFolds(0, 0), "n_folds must be a positive integer"),
        (lambda: ForwardFolds(None, 200), "100 rows are too few for 200 forward folds"),
        (lambda: ForwardFolds(None, 3, gap=25), "too few for 3 forward folds with a gap of 25 rows"),
        (
            lambda: ForwardFolds([0, 1], gap=1),
            "a gap or a window of several columns (column 0, column 1) has no",
        ),
        (
            lambda: ForwardFolds(0, gap="7d"),
            "gap must be a number of units of 0 of at least 0, got '7d'",
        ),
        (
            lambda: ForwardFolds("text", gap="7d"),
            "got '7d'; spans go with times. types={'text': 'time'} reads",
        ),
        (lambda: ForwardFolds(0, window=-1), "window must be a number of units of 0"),
        (lambda: ForwardFolds("day", gap=7), "gap must be a time span such as '7d', got 7"),
        (lambda: ForwardFolds("day", gap="7"), "gap must be a time span such as '7d', got '7'"),
        (lambda: ForwardFolds("day", gap=[7]), "gap must be a time span such as '7d', got [7]"),
        (lambda: ForwardFolds(0, gap=10**400), "gap must be a number of units of 0"),
        (lambda: ForwardFolds("day", gap="-7d"), "gap must be a time span such as '7d', got '-7d'"),
        (lambda: ForwardFolds("day", gap="long"), "gap must be a time span such as '7d', got 'long'"),
        (lambda: ForwardFolds("day", gap="1 month"), "got '1 month'; months and years have no fixed length"),
        (lambda: ForwardFolds("day", gap=np.timedelta64(1, "M")), "months and years have no fixed length"),
        (lambda: ForwardFolds("day", gap=np.timedelta64(7)), "gap must be a time span such as '7d'"),
        (lambda: ForwardFolds("two"), "two has 2 different values, and 5 forward folds need 6"),
    ],
)
def test_folds_that_mean_nothing_are_refused(rng: np.random.Generator, make: Any, words: str) -> None:
    day = np.datetime64("2026-01-01", "D") + np.arange(100)
    keys = keys_of(rng.normal(size=(100, 2)), day=day, two=np.arange(100) % 2, text=day.astype(object))
    assert words in refusal(lambda: decided(make(), keys))


# Spans of time.


@given(
    n_rows=st.integers(2, 200),
    n_folds=st.integers(2, 9),
    gap=st.integers(0, 12),
    window=st.none() | st.integers(1, 40),
)
def test_spans_of_rows_are_those_of_time_series_split(
    n_rows: int, n_folds: int, gap: int, window: int | None
) -> None:
    keys = Keys(np.arange(n_rows))
    theirs = sklearn_folds.TimeSeriesSplit(n_folds, gap=gap, max_train_size=window)
    try:
        expected = [*theirs.split(np.empty((n_rows, 1)))]
    except ValueError:
        with pytest.raises(InputError, match="too few"):
            of_rows(ForwardFolds(None, n_folds, gap, window), keys)
        return
    for folds in (ForwardFolds(None, n_folds, gap, window), translated(theirs, 0)):
        for own, rows in zip(masks(of_rows(folds, keys), keys), zip(*expected, strict=True), strict=True):
            for fold in range(n_folds):
                np.testing.assert_array_equal(np.flatnonzero(own[:, fold]), rows[fold])


@given(
    seed=seeds,
    n_values=st.integers(6, 80),
    gap=st.integers(0, 20),
    window=st.none() | st.integers(1, 30),
    unit=st.sampled_from(["", "ns", "s", "D"]),
)
def test_spans_of_a_column_see_nothing_after_them(
    seed: int, n_values: int, gap: int, window: int | None, unit: str
) -> None:
    """Times of days: the same folds in each unit. Rows of a value stay together, and spans are quantiles."""
    rng = np.random.default_rng(seed)
    t = rng.permutation(np.r_[np.arange(n_values), rng.integers(0, n_values, 200)])
    column, spans = t, (gap, window)
    if unit:
        column = (np.datetime64("2026-01-01", "D") + t).astype(f"M8[{unit}]")
        spans = (np.timedelta64(gap, "D"), None if window is None else f"{window}d")
    keys = keys_of(t=column)
    folds = decided(ForwardFolds("t", 5, *spans), keys, rng)
    fitted, judged = masks(folds, keys)
    starts = [t[judged[:, fold]].min() for fold in range(5)]
    for fold, start in enumerate(starts):
        behind = starts[fold + 1] if fold < 4 else np.inf
        np.testing.assert_array_equal(judged[:, fold], (t >= start) & (t < behind))
        first = -np.inf if window is None else start - gap - window
        np.testing.assert_array_equal(fitted[:, fold], (t < start - gap) & (t >= first))
    # No other value would be nearer to the rank at which the span should begin.
    length, n_before = len(t) // 6, np.array([np.sum(t < value) for value in range(n_values)])
    wanted = len(t) - (5 - np.arange(5)) * length
    at_start = np.abs(n_before[starts] - wanted)
    assert (at_start <= np.bincount(t).max()).all() or n_values < 12
    assert isinstance(folds, ForwardFolds) and folds.error == 0


@pytest.mark.parametrize("unit", ["D", "s", "us"])
def test_times_that_nanoseconds_do_not_hold_are_in_order(unit: str) -> None:
    t = np.array(["0001-01-01", "1969-12-31", "2026-01-31", "9999-12-31"], f"M8[{unit}]")
    expected = t.astype("M8[s]").astype(float)
    np.testing.assert_array_equal(splits._numbers(t, "t"), expected)
    keys = keys_of(t=np.repeat(t, 30))
    fitted, judged = masks(decided(ForwardFolds("t", 3), keys), keys)
    for fold in range(3):
        assert keys.columns["t"][fitted[:, fold]].max() < keys.columns["t"][judged[:, fold]].min()
    nano = np.array(["1969-12-31T23:59:59.999999999", "1970-01-01T00:00:00.000000001"], "M8[ns]")
    np.testing.assert_array_equal(splits._numbers(nano, "t"), [-1 + 0.999999999, 1e-9])


@pytest.mark.parametrize("zones", [["UTC"], ["Asia/Tokyo"], ["+01:00", "+02:00"]])
def test_times_of_any_zones_are_in_order(zones: list[str]) -> None:
    t = pd.date_range("2026-01-31", periods=60, freq="h", tz="UTC")
    column = np.array([time.tz_convert(zones[i % len(zones)]) for i, time in enumerate(t)], dtype=object)
    expected = t.tz_localize(None).to_numpy().astype("M8[s]").astype(float)
    np.testing.assert_array_equal(splits._numbers(column, "t"), expected)


def test_several_columns_are_a_compound_order(rng: np.random.Generator) -> None:
    day = rng.permutation(np.repeat(np.arange(400), 2))
    dates = np.datetime64("2024-11-20", "D") + day
    parts = pd.DatetimeIndex(dates)
    keys = keys_of(t=day, year=parts.year, month=parts.month, day=parts.day)
    expected = masks(decided(ForwardFolds("t"), keys), keys)
    found = masks(decided(ForwardFolds(["year", "month", "day"]), keys, rng), keys)
    np.testing.assert_array_equal(found, expected)


def test_ranks_of_many_values_are_known_to_within_the_stated_error(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "_MAX_KEPT", 512)
    t = np.round(rng.gamma(1.0, 300.0, 10_000), 2)
    t[: len(t) // 3].sort()
    folds = of_rows(ForwardFolds("t"), keys_of(t=t))
    parts = [folds.survey(keys_of(t=part)) for part in np.array_split(t, 32)]
    while len(parts) > 1:  # as the engine merges them
        parts = [first.merge(second) for first, second in zip(parts[::2], parts[1::2], strict=True)]
    (survey,) = parts
    assert len(survey.values) <= 512 and survey.counts.sum() == len(t)
    ranks = np.cumsum(survey.counts) - survey.counts
    true = np.searchsorted(np.sort(t), survey.values[:, 0])
    assert 0 < np.abs(ranks - true).max() <= survey.error < len(t) / 5
    folds = folds.decided(survey)
    assert f"of equal sizes to within {survey.error:,} rows" in folds.words
    n_judged = masks(folds, keys_of(t=t))[1].sum(axis=0)
    assert np.abs(n_judged - len(t) / 6).max() <= 2 * (survey.error + survey.counts.max())


@pytest.mark.parametrize("n_rows", [1100, 5000])
def test_a_part_of_more_values_than_are_kept(monkeypatch: pytest.MonkeyPatch, n_rows: int) -> None:
    monkeypatch.setattr(splits, "_MAX_KEPT", 512)
    t = np.r_[np.zeros(n_rows // 2), np.arange(n_rows // 2) + 1.0]
    survey = OrderCounts.of(t[:, None], np.ones(n_rows, np.int64))
    assert 180 <= len(survey.values) <= 512 and survey.counts.sum() == n_rows
    assert survey.error <= n_rows / 512  # the rows of the value 0 are together anyway


def test_folds_say_whether_new_rows_come_as_any_others() -> None:
    alike = [HashFolds(3, 0), OneHeldOut(1, 0), NO_FOLDS]
    others = [GroupFolds(), BlockFolds([0]), ForwardFolds(), ContiguousFolds(3)]
    for every in (alike + others, [SomeFolds(folds, (0,)) for folds in alike + others]):
        assert [folds for folds in every if folds.rows_are_exchangeable] == every[: len(alike)]


# Splitters of scikit-learn.


@pytest.mark.parametrize(
    ("splitter", "kind"),
    [
        (sklearn_folds.KFold(4), "ContiguousFolds"),
        (sklearn_folds.KFold(4, shuffle=True, random_state=3), "HashFolds"),
        (sklearn_folds.GroupKFold(4), "GroupFolds"),
        (sklearn_folds.LeaveOneGroupOut(), "GroupFolds"),
        (sklearn_folds.TimeSeriesSplit(4), "ForwardFolds"),
    ],
)
def test_splitters_are_translated_where_the_meaning_is_the_same(splitter: Any, kind: str) -> None:
    folds = translated(splitter, 11)
    assert type(folds).__name__ == kind
    assert folds.n_folds in (4, None)
    if kind == "HashFolds":
        assert folds.seed == 3


@pytest.mark.parametrize(
    ("splitter", "nearest"),
    [
        (sklearn_folds.GroupKFold(shuffle=True, random_state=0), "it without shuffle, or GroupFolds()"),
        (sklearn_folds.PredefinedSplit([0, 1]), "GroupFolds(by=...)"),
        (sklearn_folds.StratifiedKFold(), "HashFolds()"),
        (sklearn_folds.TimeSeriesSplit(test_size=3), "ForwardFolds()"),
        (sklearn_folds.ShuffleSplit(), "GroupFolds(), BlockFolds(), ForwardFolds() or HashFolds()"),
        (sklearn_folds.StratifiedGroupKFold(), "GroupFolds()"),
        (sklearn_folds.LeavePGroupsOut(2), "GroupFolds()"),
    ],
)
def test_other_splitters_name_the_nearest_of_ours(splitter: Any, nearest: str) -> None:
    message = refusal(translated, splitter, 0)
    assert message.startswith(type(splitter).__name__)
    assert nearest in message


@given(seed=seeds, n_folds=st.integers(1, 20))
def test_any_disjoint_rows_to_fit_and_to_judge_are_folds(seed: int, n_folds: int) -> None:
    rng = np.random.default_rng(seed)
    roles = rng.integers(0, 3, (50, n_folds))  # fitted, judged, neither
    given_rows = [(np.flatnonzero(r == 0), np.flatnonzero(r == 1)) for r in roles.T]
    folds, numbers = PatternFolds.of_splits(given_rows, 50, "mine")
    keys = keys_of(**{folds.names[0]: numbers})
    fitted, judged = masks(of_rows(folds, keys), keys)
    np.testing.assert_array_equal(fitted, roles == 0)
    np.testing.assert_array_equal(judged, roles == 1)


@pytest.mark.parametrize(
    "folds",
    [
        HashFolds(3, 0),
        OneHeldOut(1, 0),
        NO_FOLDS,
        SomeFolds(HashFolds(3, 0), (0, 2)),
        GroupFolds(n_folds=3),
        BlockFolds([0], 1.0, 3),
        BlockFolds([0], 1.0, 3, buffer=0.1),
        PatternFolds(2, "KFold", roles=np.array([[1, -1], [-1, 1]], np.int8)),
        PatternFolds(2, "list", roles=np.array([[1, 0], [-1, 1]], np.int8)),
        PatternFolds(1, "list", roles=np.array([[-1, 1]], np.int8)),
    ],
    ids=str,
)
def test_a_partition_is_told_without_its_coefficients(folds: Folds) -> None:
    own = np.eye(folds.n_folds, folds.n_sums)
    alike = np.array_equal(folds.test, own) and np.array_equal(folds.train, 1 - own) and folds.total.all()
    assert folds.is_partition == (alike and folds.n_folds == folds.n_sums)


@pytest.mark.parametrize(
    "make", [HashFolds, ContiguousFolds, GroupFolds, ForwardFolds, partial(BlockFolds, [0])], ids=str
)
def test_more_folds_than_can_be_told_apart_are_refused(make: Any) -> None:
    assert make(n_folds=10_000).n_folds == 10_000
    with pytest.raises(InputError, match="n_folds must be at most 10,000, got 10,001; give fewer folds"):
        make(n_folds=10_001)


@pytest.mark.parametrize("rows", [([0, 0, 1], [2]), ([0, 1], [2, 2]), ([0, 1, -4], [2])])
def test_a_row_twice_is_refused(rows: Any) -> None:
    splits_of = [([0], [1]), tuple(map(np.array, rows))]
    assert "repeats rows, which count once here" in refusal(PatternFolds.of_splits, splits_of, 4, "mine")


# Folds in files.


def test_folds_come_back_from_files_and_tell_others_apart(rng: np.random.Generator) -> None:
    X = with_hole(rng)[:3000]
    day = np.datetime64("2026-01-01", "D") + rng.integers(0, 90, len(X))
    keys = keys_of(X, groups=rng.integers(0, 30, len(X)), t=rng.normal(size=len(X)), day=day)
    kinds = [
        GroupFolds(),
        GroupFolds(n_folds=3),
        BlockFolds(range(2), 0.3, buffer=0.1),
        BlockFolds([0, 1], like="gaps"),
        BlockFolds([0, 1], like=PLACES),
        ForwardFolds("t", gap=0.1, window=1.0),
        ForwardFolds(["t", 0]),
        ForwardFolds("day", gap=pd.Timedelta("2h"), window=np.timedelta64(4, "W")),
    ]
    made = [decided(folds, keys) for folds in kinds]
    made.append(SomeFolds(made[0], (1, 3)))
    for folds in made:
        again = folds_from_dict(json.loads(json.dumps(folds.to_dict())))
        np.testing.assert_array_equal(masks(again, keys), masks(folds, keys))
        np.testing.assert_array_equal(again.sums(keys).numbers, folds.sums(keys).numbers)
        assert (again.words, again.names) == (folds.words, folds.names)
        assert [same_rule(again, other) for other in made] == [folds is other for other in made]


@pytest.mark.parametrize("given", [["a", "b"], pd.Index(["a", "b"]).to_numpy(object), np.array(["a", "b"])])
@pytest.mark.parametrize("kind", [BlockFolds, ForwardFolds])
def test_columns_may_come_in_any_sequence(kind: Any, given: Any) -> None:
    folds, expected = kind(given), kind(("a", "b"))
    assert same_rule(folds, expected) and folds.names == ("a", "b")
    assert json.loads(json.dumps(folds.to_dict())) == expected.to_dict()


def test_an_array_of_a_file_is_no_longer_than_it_says() -> None:
    stored = PatternFolds(1, "mine", places=("x",), roles=np.array([[1, -1]], np.int8)).to_dict()
    bomb = base64.b64encode(zlib.compress(bytes(2**26))).decode()
    tracemalloc.start()
    assert "another length" in refusal(folds_from_dict, stored | {"roles": stored["roles"] | {"data": bomb}})
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("folds", "changes"),
    [
        (HashFolds(), {"seed": 1.5}),
        (HashFolds(), {"seed": None}),
        (HashFolds(), {"first_row": -1}),
        (SomeFolds(HashFolds(3), (0, 2)), {"kept": [0, 3]}),
        (SomeFolds(HashFolds(3), (0, 2)), {"whole": SomeFolds(HashFolds(3, 0), (0, 2)).to_dict()}),
        (SomeFolds(HashFolds(3), (0, 2)), {"whole": "HashFolds"}),
        (GroupFolds("shop"), {"own_fold": np.arange(30)}),
        (GroupFolds("shop"), {"own_fold": np.arange(3)}),
        (GroupFolds("shop"), {"dealt": None}),
        (GroupFolds("shop"), {"places": [-1]}),
        (ForwardFolds("t"), {"roles": np.ones((5, 3), np.int8)}),
        (ForwardFolds("t"), {"roles": np.full((5, 6), 2, np.int8)}),
        (ForwardFolds("t"), {"edges": np.full((5, 1), np.nan)}),
        (ForwardFolds("t"), {"places": ["t", "t"]}),
        (BlockFolds(["t"], 0.5), {"pitches": np.zeros(1)}),
        (BlockFolds(["t"], 0.5), {"pitches": [1.0]}),
        (BlockFolds(["t"], 0.5), {"n_folds": 3.0}),
        (BlockFolds([0, 1], like="gaps"), {"held": np.ones((4, 9, 9), bool)}),
        (BlockFolds([0, 1], like="gaps"), {"first_cell": np.zeros(3, int)}),
        (BlockFolds([0, 1], like="gaps"), {"share": "half"}),
    ],
    ids=str,
)
def test_folds_of_damaged_files_are_refused(rng: np.random.Generator, folds: Any, changes: Any) -> None:
    X = with_hole(rng)[:3000]
    keys = keys_of(X, shop=np.arange(len(X)) % 30, t=rng.normal(size=len(X)))
    whole = decided(folds.whole, keys) if isinstance(folds, SomeFolds) else None
    stored = decided(folds, keys).to_dict() if whole is None else replace(folds, whole=whole).to_dict()
    assert folds_from_dict(stored).n_folds
    arrays = PatternFolds(1, "arrays", roles=None)
    plain = {name: replace(arrays, roles=value).to_dict()["roles"] for name, value in changes.items()}
    with pytest.raises(ModelFileError), contents_of("file", "gram"):
        folds_from_dict(stored | {n: c if isinstance(c, dict) else plain[n] for n, c in changes.items()})
