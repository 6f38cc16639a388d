"""Folds that follow from columns of the rows: whole groups, cells of a map, spans of time, or any indices."""

from __future__ import annotations

import base64
import itertools
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd

from distrff.errors import InputError, ModelFileError
from distrff.preprocessing.folds import (
    NO_GROUP,
    ContiguousFolds,
    Folds,
    HashFolds,
    Keys,
    Memberships,
    NoFolds,
    OneHeldOut,
    RowsOfFolds,
    group_hashes,
)
from distrff.utils.random import mixed_bits, row_hash, stream
from distrff.utils.text import listed, number_text
from distrff.utils.validation import check_count, is_finite, is_number

# Where the columns of folds are: among the features, by their place, or beside them, by their name.


def _place(name: Any, rows: RowsOfFolds) -> str | int:
    names = rows.column_names
    if isinstance(name, str):
        # A column beside the features first: that it was asked for says which one is meant.
        if name in rows.id_dtypes:
            return name
        if names is not None and name in names:
            return names.index(name)
        # The command line has indices as text.
        if name.isdecimal() and int(name) < rows.n_columns:
            return int(name)
        beside = [*rows.id_dtypes, *(names or ())]
        raise InputError(
            f"folds go by the column {name!r}, which these rows lack; they have "
            f"{listed(beside) or 'no names'}. Give extra=[{name!r}] to open_dataset for a column that is no "
            f"feature"
        )
    if (
        not is_number(name)
        or not isinstance(name, Integral)
        or not -rows.n_columns <= int(name) < rows.n_columns
    ):
        raise InputError(
            f"folds go by columns by name, or by their places among {rows.n_columns} features, got {name!r}"
        )
    return int(name) % rows.n_columns


def _as_times(name: Any) -> str:
    return f"types={{{name!r}: 'time'}} reads dates that are text"


def _names(given: Any) -> tuple[Any, ...]:
    """One name, or several, of columns."""
    is_one = isinstance(given, str) or not isinstance(given, Iterable)
    names = (given,) if is_one else tuple(given)
    if not names:
        raise InputError("folds that go by columns need some, such as BlockFolds(['lon', 'lat'])")
    return names


def _numbers(keys: Keys, place: str | int, name: Any) -> np.ndarray:
    """A column as float64 numbers; times in seconds since 1970."""
    values = keys.column(place)
    if values.dtype.kind == "O":
        values = pd.Series(values).infer_objects().to_numpy()
    if values.dtype.kind == "M":
        missing = np.isnat(values)
        # As integers first: a float of nanoseconds has no seconds left to divide exactly.
        whole, rest = np.divmod(values.astype("M8[ns]").view(np.int64), 10**9)
        numbers = whole + rest / 1e9
    elif values.dtype.kind in "biuf":
        numbers = values.astype(np.float64)
        missing = ~np.isfinite(numbers)
    else:
        raise InputError(
            f"folds go by the column {name!r}, which holds {values[:1].tolist()[0]!r}; give a column of "
            f"numbers or times; {_as_times(name)}"
        )
    if n_missing := int(np.count_nonzero(missing)):
        raise InputError(
            f"{n_missing:,} of {len(values):,} rows lack a value of {name!r}, by which folds go; drop them"
        )
    return numbers


def _points(folds: Folds, keys: Keys) -> np.ndarray:
    """The columns of the folds as numbers, (n_rows, n_columns)."""
    columns = zip(folds.places, folds.names, strict=True)
    return np.stack([_numbers(keys, place, name) for place, name in columns], axis=1)


def _is_time(place: str | int, rows: RowsOfFolds) -> bool:
    return isinstance(place, str) and rows.id_dtypes[place].kind == "M"


# Whole groups.

MAX_COUNTED = 10_000
_PRESUMED_GROUPS = 10  # of which each is a fold, until they are counted


@dataclass(frozen=True, eq=False)
class GroupCounts:
    """Rows of each group by its hash, ascending; of more than `MAX_COUNTED` groups their first ones."""

    hashes: np.ndarray
    counts: np.ndarray
    n_null: int  # rows without a group

    @classmethod
    def of(cls, hashes: np.ndarray, counts: np.ndarray | None, n_null: int) -> GroupCounts:
        # One more than are counted says that there are more; so many groups cost no more than ten.
        hashes, own = np.unique(hashes, return_inverse=True)
        counts = np.bincount(own, counts, len(hashes)).astype(np.int64)
        return cls(hashes[: MAX_COUNTED + 1], counts[: MAX_COUNTED + 1], n_null)

    def merge(self, other: GroupCounts) -> GroupCounts:
        hashes = np.concatenate([self.hashes, other.hashes])
        counts = np.concatenate([self.counts, other.counts])
        return GroupCounts.of(hashes, counts, self.n_null + other.n_null)


@dataclass(frozen=True, eq=False)
class GroupFolds(Folds):
    """Whole groups: all rows of a person, place or batch are held out together.

    Up to 10,000 groups are dealt, the largest first, each to the fold that has the fewest rows; of more a
    hash of the value decides. So does it for groups that come later.

    Parameters
    ----------
    by : str or int, optional
        The column of the groups; by default the rows' own: ``fit(X, y, groups=...)``, or
        ``open_dataset(..., groups=...)``.
    n_folds : int or None
        None for as many as there are groups, each of them a fold.
    seed : int, optional
        Of the order of groups of equal size, and of the hash; by default that of the estimator.
    """

    by: str | int | None = None
    n_folds: Any = 5
    seed: int | None = None
    places: tuple[str | int, ...] = field(default=(), repr=False)
    is_each: bool = field(default=False, repr=False)  # whether each group is a fold
    dealt: np.ndarray | None = field(default=None, repr=False)  # hashes of the groups, ascending
    own_fold: np.ndarray | None = field(default=None, repr=False)  # of each of these
    needs_all_rows = False
    is_drawn = True

    def __post_init__(self) -> None:
        check_count("n_folds", self.n_folds, 2, or_none=True)

    @property
    def names(self) -> tuple[Any, ...]:  # type: ignore[override]
        return () if self.by is None else (self.by,)

    @property
    def words(self) -> str:
        # Groups that came as an array are called "groups", which says nothing.
        name = self.by if self.by is not None else next(iter(self.places), "groups")
        of = "" if name == "groups" else f" of {name!r}"
        if self.dealt is None:
            return f"whole groups{of}"
        return f"whole groups{of} ({number_text(len(self.dealt))} of them)"

    def of_dataset(self, rows: RowsOfFolds) -> GroupFolds:
        own = self
        if self.n_folds is None:
            own = replace(self, n_folds=_PRESUMED_GROUPS, is_each=True)
        if self.by is not None:
            return replace(own, places=(_place(self.by, rows),))
        if rows.groups is None:
            raise InputError(
                "GroupFolds() holds out the groups of the rows, which have none; give groups= to fit, or to "
                "open_dataset, or GroupFolds(by='column')"
            )
        return replace(own, places=(rows.groups,))

    def _hashes(self, keys: Keys) -> np.ndarray:
        return group_hashes(keys.column(self.places[0]))

    def units(self, keys: Keys) -> np.ndarray:
        return self._hashes(keys)

    def survey(self, keys: Keys) -> GroupCounts:
        values = keys.column(self.places[0])
        is_null = pd.isna(values)
        return GroupCounts.of(group_hashes(values[~is_null]), None, int(is_null.sum()))

    def decided(self, survey: GroupCounts) -> GroupFolds:
        if survey.n_null:
            raise InputError(f"{survey.n_null:,} rows have no group; {NO_GROUP}")
        if len(survey.hashes) > MAX_COUNTED:
            if self.is_each:
                raise InputError(
                    f"there are more than {MAX_COUNTED:,} groups; give a number of folds, not None"
                )
            return self
        if self.is_each:
            return replace(self, n_folds=len(survey.hashes), is_each=False).decided(survey)
        if len(survey.hashes) < self.n_folds:
            n_groups = len(survey.hashes)
            raise InputError(
                f"there are {n_groups} groups, and each of {self.n_folds} folds needs one; give fewer folds: "
                f"GroupFolds(n_folds={n_groups})"
                if n_groups > 1
                else "all rows are of one group, of which none can be held out; give others, or none"
            )
        assert self.seed is not None
        # Ties in random order, and not by value: numbers of patients or shops often are in cycles.
        order = np.lexsort((row_hash(survey.hashes, self.seed), -survey.counts))
        own_fold, sizes = np.empty(len(order), np.int64), np.zeros(self.n_folds, np.int64)
        for group in order:
            own_fold[group] = fold = int(np.argmin(sizes))
            sizes[fold] += survey.counts[group]
        return replace(self, dealt=survey.hashes, own_fold=own_fold)

    def sums(self, keys: Keys) -> Memberships:
        hashes = self._hashes(keys)
        assert self.seed is not None
        folds = (row_hash(hashes, self.seed) % np.uint64(self.n_folds)).astype(np.int64)
        if self.dealt is not None and self.own_fold is not None:
            at = np.minimum(np.searchsorted(self.dealt, hashes), len(self.dealt) - 1)
            folds = np.where(self.dealt[at] == hashes, self.own_fold[at], folds)
        return Memberships(len(keys), folds)


# Spans of time, or of any order.

_MAX_KEPT = 2**16


@dataclass(frozen=True, eq=False)
class OrderCounts:
    """Rows by value in ascending order, several columns as a compound one.

    Beyond 2¹⁶ values neighbours are counted together: an entry has the rows from its value up to the next
    one, so the rank of a value is known to within `error` rows.
    """

    values: np.ndarray  # (m, n_columns)
    counts: np.ndarray  # (m,)
    error: int = 0

    @classmethod
    def of(cls, values: np.ndarray, counts: np.ndarray, error: int = 0) -> OrderCounts:
        order = np.lexsort(values.T[::-1])
        values, counts = values[order], counts[order]
        is_first = np.r_[True, (values[1:] != values[:-1]).any(axis=1)]
        starts = np.flatnonzero(is_first)
        counts = np.add.reduceat(counts, starts)
        if len(starts) > _MAX_KEPT:
            # Ranks of the values that stay are exact here; those that another part has between are not.
            pairs = np.arange(0, len(starts), 2)
            starts, counts = starts[pairs], np.add.reduceat(counts, pairs)
            error += int(counts.max())
        return cls(values[starts], counts, error)

    def merge(self, other: OrderCounts) -> OrderCounts:
        values = np.concatenate([self.values, other.values])
        return OrderCounts.of(values, np.concatenate([self.counts, other.counts]), self.error + other.error)


@dataclass(frozen=True, eq=False)
class ForwardFolds(Folds):
    """What comes later: each fold is a span of time, and its model is fitted to rows before it alone.

    The rows are cut into n_folds + 1 spans of about equal numbers of rows, of which the first is held out by
    no fold. Spans begin between two values, so that rows of equal value are together.

    Parameters
    ----------
    by : str, int or sequence of these, optional
        The column of the order, of numbers or times; several are a compound order, such as year, month, day.
        By default the row number.
    n_folds : int
    gap : number or time span
        Rows nearer than this before the span are left out of its model, in the column's units; of times a
        span such as "7d". Of row numbers a number of rows.
    window : number or time span, optional
        Of the rows before the gap a model has those at most so far back; by default all.
    """

    by: Any = None
    n_folds: int = 5
    gap: Any = 0
    window: Any = None
    places: tuple[str | int, ...] = field(default=(), repr=False)
    is_time: bool = field(default=False, repr=False)
    # Where the runs begin that sums are of, ascending; and the runs that folds judge and are fitted to.
    edges: np.ndarray | None = field(default=None, repr=False)
    test_runs: np.ndarray | None = field(default=None, repr=False)  # (n_folds, 2): first, behind the last
    train_runs: np.ndarray | None = field(default=None, repr=False)
    error: int = field(default=0, repr=False)  # rows by which the spans' sizes may differ from what was meant

    def __post_init__(self) -> None:
        check_count("n_folds", self.n_folds)

    @property
    def names(self) -> tuple[Any, ...]:  # type: ignore[override]
        return () if self.by is None else _names(self.by)

    @property
    def needs_all_rows(self) -> bool:  # type: ignore[override]
        return self.by is None

    @property
    def words(self) -> str:
        order = "the rows' order" if self.by is None else listed([*map(str, self.names)])
        gap, window = (f"{x:g}" if is_number(x) else x for x in (self.gap, self.window))
        more = "" if not self.gap else f", less a gap of {gap}"
        more += "" if self.window is None else f", at most {window} back"
        more += f"; of equal sizes to within {self.error:,} rows" if self.error else ""
        return f"spans of {order}, each held out of a model of what came before{more}"

    @property
    def n_sums(self) -> int:
        if self.edges is not None:
            return len(self.edges) + 1
        return self.n_folds * (1 + bool(self.gap) + (self.window is not None)) + 1

    @property
    def test(self) -> np.ndarray:
        return _runs(self.test_runs, self.n_folds, self.n_sums)

    @property
    def train(self) -> np.ndarray:
        return _runs(self.train_runs, self.n_folds, self.n_sums)

    def of_dataset(self, rows: RowsOfFolds) -> ForwardFolds:
        places = tuple(_place(name, rows) for name in self.names)
        is_time = any(_is_time(place, rows) for place in places)
        if len(places) > 1 and (self.gap or self.window is not None):
            raise InputError(
                f"a gap or a window of several columns ({listed([*map(str, self.names)])}) has no unit; "
                f"give one column of times"
            )
        found = replace(self, places=places, is_time=is_time)
        gap, window = found._span("gap", self.gap), found._span("window", self.window)
        if places:
            return found
        n, length = rows.n_rows, rows.n_rows // (self.n_folds + 1)
        if not length or n - self.n_folds * length <= gap:
            raise InputError(
                f"{n} rows are too few for {self.n_folds} forward folds with a gap of {gap:g} rows; give "
                f"fewer folds or a smaller gap"
            )
        # As scikit-learn's TimeSeriesSplit: the first span takes what does not divide.
        starts = [n - (self.n_folds - k) * length for k in range(self.n_folds)]
        return found._with_starts(np.array(starts, float)[:, None], gap, window)

    def _span(self, name: str, given: Any) -> float:
        """A gap or window in the column's units; infinite for None."""
        if given is None and name == "window":
            return np.inf
        if self.is_time and not (is_number(given) and given == 0):
            if not (span := _seconds(given)) >= 0:
                raise InputError(f"{name} must be a time span such as '7d', got {given!r}")
            return span
        if not is_finite(given) or given < 0:
            what = "rows" if self.by is None else f"units of {self.by!r}"
            hint = f"; {_as_times(self.by)}" if self.by and isinstance(given, str) else ""
            raise InputError(f"{name} must be a number of {what} of at least 0, got {given!r}{hint}")
        return float(given)

    def _values(self, keys: Keys) -> np.ndarray:
        return _points(self, keys) if self.places else keys.numbers.astype(np.float64)[:, None]

    def survey(self, keys: Keys) -> OrderCounts | None:
        if self.by is None:
            return None
        values = self._values(keys)
        return OrderCounts.of(values, np.ones(len(values), np.int64))

    def decided(self, survey: OrderCounts | None) -> ForwardFolds:
        if survey is None:
            return self
        n, length = int(survey.counts.sum()), int(survey.counts.sum()) // (self.n_folds + 1)
        before = np.cumsum(survey.counts) - survey.counts  # rows before each value
        starts: list[int] = []
        for fold in range(self.n_folds):
            least = starts[-1] + 1 if starts else 1
            most = len(before) - (self.n_folds - fold)
            if least > most:
                raise InputError(
                    f"{listed([*map(str, self.names)])} has {len(before)} different values, and "
                    f"{self.n_folds} forward folds need {self.n_folds + 1}; give fewer folds"
                )
            # The value whose rank is nearest to where the span would begin if all values differed.
            wanted = np.abs(before[least : most + 1] - (n - (self.n_folds - fold) * length))
            starts.append(least + int(np.argmin(wanted)))
        found = replace(self, error=survey.error)
        spans = found._span("gap", self.gap), found._span("window", self.window)
        return found._with_starts(survey.values[starts], *spans)

    def _with_starts(self, starts: np.ndarray, gap: float, window: float) -> ForwardFolds:
        """The folds whose spans begin at these values, of shape (n_folds, n_columns)."""
        # Each row enters one sum, of the run between two edges, and what a fold judges or is fitted to is a
        # row of runs: a gap costs one more sum a fold, a window another, and the sweep nothing.
        ends, begins = starts - gap, starts - gap - window
        every = np.concatenate([starts, ends, begins] if starts.shape[1] == 1 else [starts])
        edges = np.unique(every[np.isfinite(every).all(axis=1)], axis=0)

        def at(values: np.ndarray) -> np.ndarray:
            return _ranks(values, edges)

        behind = np.r_[at(starts)[1:], len(edges) + 1]
        test_runs = np.stack([at(starts), behind], axis=1)
        is_compound = starts.shape[1] > 1
        train_runs = np.stack(
            [0 * behind if is_compound else at(begins), at(starts if is_compound else ends)], axis=1
        )
        return replace(self, edges=edges, test_runs=test_runs, train_runs=train_runs)

    def sums(self, keys: Keys) -> Memberships:
        assert self.edges is not None
        return Memberships(len(keys), _ranks(self._values(keys), self.edges))


def _seconds(span: Any) -> float:
    """Seconds of a time span; NaN of what is none."""
    if isinstance(span, str):
        # pandas warns of "7d", whose unit will be "D" alone, and takes "7" for nanoseconds.
        span = re.sub(r"(?<![A-Za-z])[dwH](?![A-Za-z])", lambda unit: unit[0].swapcase(), span)
    if is_number(span) or (isinstance(span, str) and not re.search("[A-Za-z]", span)):
        return np.nan
    try:
        return float(pd.Timedelta(span).total_seconds())
    except (TypeError, ValueError):
        return np.nan


def _ranks(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """How many edges, ascending, are at or before each value; several columns are in lexicographic order."""
    if values.shape[1] == 1:
        return np.searchsorted(edges[:, 0], values[:, 0], side="right")
    ranks = np.zeros(len(values), np.int64)
    for edge in edges:  # a few a fold
        is_behind, is_equal = np.zeros(len(values), bool), np.ones(len(values), bool)
        for column, at in zip(values.T, edge, strict=True):
            is_behind |= is_equal & (column > at)
            is_equal &= column == at
        ranks += is_behind | is_equal
    return ranks


def _runs(runs: np.ndarray | None, n_folds: int, n_sums: int) -> np.ndarray:
    """Coefficients 1 of the sums of each run, shape (n_folds, n_sums); zeros before they are known."""
    if runs is None:
        return np.zeros((n_folds, n_sums), np.int8)
    numbers = np.arange(n_sums)
    return ((numbers >= runs[:, :1]) & (numbers < runs[:, 1:])).astype(np.int8)


# Cells of a map.

_MAX_CELLS, _MAX_COUNTED_CELLS = 2**16, 2**23
_ROWS_A_CELL = 6  # on average, so that a cell is empty by chance once in 400
_FEWEST_GAPS = 0.05  # share of cells below which a map counts as full: those at its border are cut by it
_FULL_BESIDE = 1 / 3  # of the mean rows of a cell
_BLOCKS = 100  # cells over the bounds, where no size is given
_MAX_SHIFTS = 100
_PLACES = "the places to be predicted"


@dataclass(frozen=True, eq=False)
class Occupancy:
    """Rows by cell of a grid whose pitches are powers of two, coarser the more cells are occupied.

    So bounds need not be known before the pass, and cells of parts join.
    """

    exponents: np.ndarray  # (d,): the pitch of a column is 2 to this
    cells: np.ndarray  # (m, d), int64
    counts: np.ndarray  # (m,)

    @classmethod
    def of(cls, points: np.ndarray) -> Occupancy:
        extents = np.ptp(points, axis=0)
        # At first some 2²⁰ cells, which are counted without sorting; of one value a cell has its size.
        extents = np.where(extents > 0, extents, np.maximum(np.abs(points).max(axis=0), 2.0**-500))
        exponents = np.frexp(extents)[1] - 20 // points.shape[1]
        cells = np.floor(np.ldexp(points, -exponents)).astype(np.int64)
        return cls._joined(exponents, cells, np.ones(len(cells), np.int64))

    @classmethod
    def _joined(cls, exponents: np.ndarray, cells: np.ndarray, counts: np.ndarray) -> Occupancy:
        first = cells.min(axis=0)
        spans = np.ptp(cells, axis=0).astype(float) + 1
        if spans.prod() <= _MAX_COUNTED_CELLS:
            shape = tuple(spans.astype(int))
            all_counts = np.bincount(np.ravel_multi_index(tuple((cells - first).T), shape), counts)
            occupied = np.flatnonzero(all_counts)
            unique, sums = np.stack(np.unravel_index(occupied, shape), axis=1) + first, all_counts[occupied]
        else:
            unique, own = np.unique(cells, axis=0, return_inverse=True)
            sums = np.bincount(own.ravel(), counts)
        found = cls(exponents, unique, sums.astype(np.int64))
        return found if len(unique) <= _MAX_CELLS else found.coarser(exponents + 1)

    def coarser(self, exponents: np.ndarray) -> Occupancy:
        """The same rows in cells of larger pitches."""
        return self._joined(exponents, self.cells >> np.minimum(exponents - self.exponents, 63), self.counts)

    def merge(self, other: Occupancy) -> Occupancy:
        exponents = np.maximum(self.exponents, other.exponents)
        one, two = self.coarser(exponents), other.coarser(exponents)
        exponents = np.maximum(one.exponents, two.exponents)
        one, two = one.coarser(exponents), two.coarser(exponents)
        cells, counts = np.concatenate([one.cells, two.cells]), np.concatenate([one.counts, two.counts])
        return self._joined(exponents, cells, counts)

    @property
    def pitches(self) -> np.ndarray:
        return np.ldexp(1.0, self.exponents)

    @property
    def extents(self) -> np.ndarray:
        """From the first to the last occupied cell of each column."""
        return (np.ptp(self.cells, axis=0) + 1) * self.pitches


def _gaps(occupied: np.ndarray) -> np.ndarray:
    """Whether each cell is in a gap: empty, and not beside sparse rows as at the rim of a cloud."""
    from scipy import ndimage  # for few fits

    regions, n_regions = ndimage.label(occupied == 0, np.ones([3] * occupied.ndim))
    beside = np.where(occupied > 0, ndimage.grey_dilation(regions, 3), 0)
    n_beside, n_rows = (np.bincount(beside.ravel(), A, n_regions + 1)[1:] for A in (None, occupied.ravel()))
    counts = n_rows / np.maximum(1, n_beside)
    # The border of a gap cuts cells in half; of a normal cloud cells beside the empty ones have a fifth.
    is_gap = np.append(False, counts >= _FULL_BESIDE * occupied[occupied > 0].mean())
    return is_gap[regions]


def _floats(name: str, given: Any) -> np.ndarray:
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must hold numbers: {error}") from error


@dataclass(frozen=True, eq=False)
class BlockFolds(Folds):
    """Cells of a map: the rows of a cell are held out together, as are those of other cells of its fold.

    Parameters
    ----------
    columns : sequence of str or int
        Coordinates, such as ``["lon", "lat"]``; a single one is a line.
    size : number or sequence of numbers, optional
        Of a cell, in the columns' units, or one a column. By default a hundred cells of equal numbers a
        column cover the bounds.
    n_folds : int
    buffer : number
        Rows of other folds that are no farther from a held-out cell (Euclidean, in the columns' units) are
        left out of its model.
    like : {"gaps"}, array-like of shape (m, n_columns), or mapping of column to coordinates, optional
        Rows are held out in the shape of the places where predictions are wanted: these rows, a grid, or the
        empty cells within the bounds. Copies of the shape, shifted and mirrored at random, say which rows
        each fold holds out; they may overlap, and need not cover the rows. Where there are no gaps rows are
        held out at random.
    seed : int, optional
        By default that of the estimator.

    Notes
    -----
    A fold of ``like`` should have about as many rows as lie in a shape of its size: copies that cover less
    than half or more than twice that share are drawn again.
    """

    columns: Any
    size: Any = None
    n_folds: int = 5
    buffer: float = 0.0
    like: Any = None
    seed: int | None = None
    places: tuple[str | int, ...] = field(default=(), repr=False)
    pitches: np.ndarray | None = field(default=None, repr=False)  # of the cells, (d,)
    first_cell: np.ndarray | None = field(default=None, repr=False)  # of the grid of `held`, (d,)
    held: np.ndarray | None = field(default=None, repr=False)  # by cell the folds that hold it out, as bits
    share: float = field(default=0.3, repr=False)  # of the rows that such a fold holds out
    needs_all_rows = False
    is_drawn = True

    def __post_init__(self) -> None:
        check_count("n_folds", self.n_folds)
        if self.n_folds > 64:
            raise InputError(f"n_folds must be at most 64, got {self.n_folds}")
        if not is_number(self.buffer) or not 0 <= self.buffer < np.inf:
            raise InputError(f"buffer must be a number of at least 0, got {self.buffer!r}")
        if self.like is not None and self.buffer:
            raise InputError(
                "buffer goes with cells; folds like other places have their distances by themselves"
            )
        if isinstance(self.like, str) and self.like not in ("gaps", _PLACES):
            raise InputError(f"like must be 'gaps', rows or a grid, got {self.like!r}")

    @property
    def names(self) -> tuple[Any, ...]:  # type: ignore[override]
        return _names(self.columns)

    @property
    def words(self) -> str:
        names = listed([f"column {name}" if isinstance(name, int) else name for name in self.names])
        if self.like is not None:
            shape = "the gaps" if isinstance(self.like, str) and self.like == "gaps" else _PLACES
            return f"rows in the shape of {shape} on {names}"
        cells = "" if self.pitches is None else " × ".join(f"{pitch:.3g}" for pitch in self.pitches) + " "
        near = f", less rows nearer than {self.buffer:g}" if self.buffer else ""
        return f"{cells}cells of {names}{near}"

    def of_dataset(self, rows: RowsOfFolds) -> BlockFolds:
        found = replace(self, places=tuple(_place(name, rows) for name in self.names))
        if self.size is None:
            return found
        sizes = np.atleast_1d(_floats("size", self.size))
        if sizes.shape not in ((1,), (len(self.names),)) or not (np.isfinite(sizes) & (sizes > 0)).all():
            raise InputError(f"size must be a positive number, or one a column, got {self.size!r}")
        return found if self.like is not None else replace(found, pitches=np.resize(sizes, len(self.names)))

    def survey(self, keys: Keys) -> Occupancy | None:
        return Occupancy.of(_points(self, keys)) if self.pitches is None else None

    def decided(self, survey: Occupancy | None) -> Folds:
        if survey is None:
            return self
        if self.like is not None:
            return self._like(survey)
        pitches = survey.extents / _BLOCKS ** (1 / len(self.names))
        return replace(self, pitches=pitches)

    # Cells by a hash.

    def _cells(self, points: np.ndarray) -> np.ndarray:
        assert self.pitches is not None
        cells = np.floor(points / self.pitches)
        if not (np.abs(cells) < 2.0**62).all():
            raise InputError(
                f"size={self.size!r} is too small for numbers of more than 2⁶² cells; give a larger one"
            )
        return cells.astype(np.int64)

    def _hashes(self, cells: np.ndarray) -> np.ndarray:
        assert self.seed is not None
        bits = np.full(len(cells), self.seed, np.uint64)
        for column in cells.T:  # one after the other, so that cells of equal sums differ
            bits = mixed_bits(bits ^ row_hash(column.astype(np.uint64), self.seed))
        return bits

    def _folds_of(self, cells: np.ndarray) -> np.ndarray:
        return (self._hashes(cells) % np.uint64(self.n_folds)).astype(np.int64)

    def units(self, keys: Keys) -> np.ndarray:
        return self._hashes(self._cells(_points(self, keys)))

    def sums(self, keys: Keys) -> Memberships:
        points = _points(self, keys)
        if self.held is not None:
            bits = self._held_by(points)
            is_held = (bits[:, None] >> np.arange(self.n_folds, dtype=np.uint64)) & np.uint64(1)
            entered = np.concatenate([np.ones((len(bits), 1), bool), is_held.astype(bool)], axis=1)
            rows, numbers = np.nonzero(entered)
            return Memberships(len(keys), numbers, rows)
        own = self._folds_of(self._cells(points))
        if not self.buffer:
            return Memberships(len(keys), own)
        near = np.zeros((len(points), 2 * self.n_folds), bool)
        near[:, self.n_folds :] = self._near(points)
        near[np.arange(len(own)), self.n_folds + own] = False  # they are held out anyway
        near[np.arange(len(own)), own] = True
        rows, numbers = np.nonzero(near)
        return Memberships(len(keys), numbers, rows)

    def _near(self, points: np.ndarray) -> np.ndarray:
        """Whether a cell of each fold is no farther than the buffer, bool (n_rows, n_folds)."""
        assert self.pitches is not None
        cells, found = self._cells(points), np.zeros((len(points), self.n_folds), bool)
        reach = np.ceil(self.buffer / self.pitches).astype(int)
        inside = points - cells * self.pitches  # from the lower corner of the own cell
        for offset in itertools.product(*(range(-r, r + 1) for r in reach)):
            step = np.array(offset)
            # The distance to the nearer side of a neighbour, and 0 along columns in which it is beside.
            to_upper, to_lower = step * self.pitches - inside, inside - (step + 1) * self.pitches
            distances = np.maximum(0.0, np.maximum(to_upper, to_lower))
            rows = np.flatnonzero(np.square(distances).sum(axis=1) <= self.buffer**2)
            found[rows, self._folds_of(cells[rows] + step)] = True
        return found

    # Copies of a shape.

    def _like(self, survey: Occupancy) -> Folds:
        shape = self._shape_of(survey)
        assert self.seed is not None
        if shape is None:
            return HashFolds(self.n_folds, self.seed)
        wanted, occupied, first, exponents = shape
        share, counts = wanted.mean(), occupied / occupied.sum()
        held, shares = np.zeros(wanted.shape, np.uint64), []
        for fold in range(self.n_folds):
            rng = stream(self.seed, "copies", fold)
            drawn = []
            for _ in range(_MAX_SHIFTS):
                copy = wanted[
                    tuple(slice(None, None, 1 if up else -1) for up in rng.random(wanted.ndim) < 0.5)
                ]
                copy = np.roll(copy, rng.integers(0, wanted.shape), axis=tuple(range(wanted.ndim)))
                drawn.append((abs(np.log(max(counts[copy].sum(), 1e-9) / share)), copy))
                if drawn[-1][0] <= np.log(2):
                    break
            _, copy = min(drawn, key=lambda pair: pair[0])
            held |= copy.astype(np.uint64) << np.uint64(fold)
            shares.append(float(counts[copy].sum()))
        return replace(
            self,
            like=self.like if isinstance(self.like, str) else _PLACES,
            pitches=np.ldexp(1.0, exponents),
            first_cell=first,
            held=held,
            share=float(np.mean(shares)),
        )

    def _shape_of(self, survey: Occupancy) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
        """Whether each cell over the bounds is wanted, its rows, the first cell and the pitches' exponents.

        None where no cell is.
        """
        if self.size is not None:
            sizes = np.broadcast_to(np.asarray(self.size, dtype=np.float64), len(self.names))
            survey = survey.coarser(np.maximum(survey.exponents, np.round(np.log2(sizes)).astype(int)))
        # Rows along a track have few cells within wide bounds, all of which are written out here.
        while np.prod(np.ptp(survey.cells, axis=0) + 1.0) > _MAX_COUNTED_CELLS:
            survey = survey.coarser(survey.exponents + 1)
        while True:
            first = survey.cells.min(axis=0)
            occupied = np.zeros(np.ptp(survey.cells, axis=0) + 1, np.int64)
            occupied[tuple((survey.cells - first).T)] = survey.counts
            wanted = self._wanted(survey, first, occupied)
            # Coarser until few cells are empty by chance, and rows along tracks fill half of the bounds.
            is_coarse = survey.counts.sum() >= _ROWS_A_CELL * len(survey.counts) and wanted.mean() <= 0.5
            if self.size is not None or is_coarse or max(occupied.shape) <= 2:
                break
            survey = survey.coarser(survey.exponents + 1)
        if wanted.mean() < _FEWEST_GAPS or wanted.mean() > 0.5:
            return None
        return wanted, occupied, first, survey.exponents

    def _wanted(self, survey: Occupancy, first: np.ndarray, occupied: np.ndarray) -> np.ndarray:
        if isinstance(self.like, str):
            return _gaps(occupied)
        cells = np.floor(self._wanted_points() / survey.pitches).astype(np.int64) - first
        cells = np.unique(cells[((cells >= 0) & (cells < occupied.shape)).all(axis=1)], axis=0)
        if not len(cells):
            raise InputError(
                "none of the places of `like` is within the bounds of the rows; give others, or 'gaps'"
            )
        wanted = np.zeros(occupied.shape, bool)
        wanted[tuple(cells.T)] = True
        return wanted

    def _wanted_points(self) -> np.ndarray:
        if isinstance(self.like, Mapping):
            if missing := [name for name in self.names if name not in self.like]:
                raise InputError(f"the grid of `like` has no coordinates of {missing[0]!r}")
            axes = [_floats("like", self.like[name]) for name in self.names]
            return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
        points = _floats("like", self.like)
        if points.ndim != 2 or points.shape[1] != len(self.names) or not np.isfinite(points).all():
            raise InputError(
                f"like must have a finite value of each of {listed([*map(str, self.names)])} a row, got "
                f"shape {points.shape}"
            )
        return points

    def _held_by(self, points: np.ndarray) -> np.ndarray:
        assert self.held is not None and self.first_cell is not None
        cells = self._cells(points) - self.first_cell
        # Rows outside of the bounds, which came later, are as those at the border.
        return self.held[tuple(np.clip(cells, 0, np.array(self.held.shape) - 1).T)]

    @property
    def n_sums(self) -> int:
        if self.like is not None:
            return self.n_folds + 1
        return self.n_folds * (2 if self.buffer else 1)

    @property
    def memberships(self) -> float:  # type: ignore[override]
        if self.like is not None:
            return 1 + self.share * self.n_folds
        if not self.buffer or self.pitches is None:
            return 1.0
        # Folds near a place, of random ones: counted, since distances to corners have no short formula.
        own = replace(self, seed=0) if self.seed is None else self
        places = np.random.Generator(np.random.PCG64(0)).random((1000, len(self.names))) * 50 * self.pitches
        near = own._near(places)
        near[np.arange(len(places)), own._folds_of(own._cells(places))] = False
        return 1.0 + float(near.sum(axis=1).mean())

    @property
    def total(self) -> np.ndarray:
        if self.like is not None:
            return np.eye(1, self.n_sums, dtype=np.int8)[0]
        return np.repeat(np.array([1, 0], np.int8), [self.n_folds, self.n_sums - self.n_folds])

    @property
    def test(self) -> np.ndarray:
        return np.eye(self.n_folds, self.n_sums, int(self.like is not None), dtype=np.int8)

    @property
    def train(self) -> np.ndarray:
        near = np.eye(self.n_folds, self.n_sums, self.n_folds, dtype=np.int8) if self.buffer else 0
        return self.total - self.test - near


# Any folds, by the rows that each one judges and is fitted to.


def translated(cv: Any, seed: int) -> Folds:
    """The folds of ours that mean what a splitter of scikit-learn means, for rows that are not in memory.

    Raises InputError with the nearest of ours for a splitter that has none.
    """
    kind = type(cv).__name__
    given: Any = getattr(cv, "__dict__", {})
    n_folds = given.get("n_splits")
    if kind == "KFold" and not given["shuffle"]:
        return ContiguousFolds(n_folds)
    if kind == "KFold":
        drawn = given["random_state"]
        return HashFolds(n_folds, int(drawn) if isinstance(drawn, Integral) else seed)
    if kind == "GroupKFold":
        return GroupFolds(None, n_folds, seed)
    if kind == "LeaveOneGroupOut":
        return GroupFolds(None, None, seed)
    if kind == "TimeSeriesSplit" and given["test_size"] is None:
        return ForwardFolds(None, n_folds, given["gap"], given["max_train_size"] or None)
    nearest = {
        "PredefinedSplit": "GroupFolds(by=...) with the column of the folds",
        "StratifiedKFold": "HashFolds(), whose folds of many rows have nearly equal shares of each class",
        "TimeSeriesSplit": "ForwardFolds()",
    }.get(kind, "GroupFolds(), BlockFolds(), ForwardFolds() or HashFolds()")
    kind = "a list" if isinstance(cv, list) else kind
    raise InputError(f"{kind} splits rows in memory alone, not stored or lazy ones, nor sums; use {nearest}")


@dataclass(frozen=True, eq=False, kw_only=True)
class PatternFolds(Folds):
    """Folds by a column that says by a number which folds judge a row, and which are fitted to it.

    Rows of one number are one sum.
    """

    places: tuple[str | int, ...]
    judged: np.ndarray  # (n_folds, n_numbers), bool
    fitted: np.ndarray
    name: str  # what made them

    @property
    def n_folds(self) -> int:  # type: ignore[override]
        return len(self.judged)

    @property
    def n_sums(self) -> int:
        return self.judged.shape[1]

    @property
    def words(self) -> str:
        return f"the rows that {self.name} holds out"

    @property
    def test(self) -> np.ndarray:
        return self.judged.astype(np.int8)

    @property
    def train(self) -> np.ndarray:
        return self.fitted.astype(np.int8)

    def sums(self, keys: Keys) -> Memberships:
        return Memberships(len(keys), keys.column(self.places[0]).astype(np.int64))

    @classmethod
    def of_splits(
        cls, splits: Sequence[tuple[np.ndarray, np.ndarray]], n_rows: int, column: str, name: str
    ) -> tuple[PatternFolds, np.ndarray]:
        """The folds of rows to fit and rows to judge by position, and the numbers of all rows."""
        # Two bits a fold. Rows of equal bits are alike to all folds, however these overlap.
        if not splits:
            raise InputError("it yields no rows to judge")
        table = np.zeros((n_rows, 2, len(splits)), bool)
        for fold, (train, test) in enumerate(splits):
            table[train, 0, fold] = True
            table[test, 1, fold] = True
        if (table[:, 0] & table[:, 1]).any():
            raise InputError("it judges rows that it is fitted to; give disjoint rows")
        packed = np.packbits(table.reshape(n_rows, -1), axis=1)
        _, first, numbers = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        fitted, judged = table[first].transpose(1, 2, 0)
        folds = cls(places=(column,), judged=judged, fitted=fitted, name=name)
        return folds, numbers.ravel()


@dataclass(frozen=True, eq=False)
class SomeFolds(Folds):
    """Some of the folds of others: without those that have no model."""

    whole: Folds
    kept: tuple[int, ...]

    @property
    def places(self) -> tuple[str | int, ...]:  # type: ignore[override]
        return self.whole.places

    @property
    def n_folds(self) -> int:  # type: ignore[override]
        return len(self.kept)

    @property
    def n_sums(self) -> int:
        return self.whole.n_sums

    @property
    def memberships(self) -> float:  # type: ignore[override]
        return self.whole.memberships

    @property
    def words(self) -> str:
        return self.whole.words

    @property
    def total(self) -> np.ndarray:
        return self.whole.total

    @property
    def test(self) -> np.ndarray:
        return self.whole.test[list(self.kept)]

    @property
    def train(self) -> np.ndarray:
        return self.whole.train[list(self.kept)]

    def units(self, keys: Keys) -> np.ndarray | None:
        return self.whole.units(keys)

    def sums(self, keys: Keys) -> Memberships:
        return self.whole.sums(keys)

    def of_dataset(self, rows: RowsOfFolds) -> SomeFolds:
        return replace(self, whole=self.whole.of_dataset(rows))

    def after(self, n_rows: int) -> SomeFolds:
        return replace(self, whole=self.whole.after(n_rows))


# Folds in files.


def folds_to_dict(folds: Folds) -> dict[str, Any]:
    """A JSON-compatible description, from which `folds_from_dict` makes the folds again."""
    return {"kind": type(folds).__name__} | {
        one.name: _to_plain(getattr(folds, one.name))
        for one in fields(folds)  # type: ignore[arg-type]  # all kinds are dataclasses
    }


def folds_from_dict(values: Mapping[str, Any]) -> Folds:
    """The folds of a file; raises ModelFileError for others."""
    kinds = (
        NoFolds,
        HashFolds,
        OneHeldOut,
        ContiguousFolds,
        GroupFolds,
        ForwardFolds,
        BlockFolds,
        PatternFolds,
    )
    by_name: dict[str, Any] = {kind.__name__: kind for kind in (*kinds, SomeFolds)}
    if values.get("kind") not in by_name:
        raise ModelFileError(f"its folds are of an unknown kind: {values.get('kind')!r}")
    own = {name: _from_plain(value) for name, value in values.items() if name != "kind"}
    found: Folds = by_name[values["kind"]](**own)
    return found


def _to_plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        data = base64.b64encode(zlib.compress(np.ascontiguousarray(value).tobytes())).decode()
        return {"dtype": value.dtype.str, "shape": list(value.shape), "data": data}
    if isinstance(value, Folds):
        return folds_to_dict(value)
    if isinstance(value, list | tuple):
        return [_to_plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, str | bool | int | float | None) else str(value)


def _from_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "kind" in value:
            return folds_from_dict(value)
        data = zlib.decompress(base64.b64decode(value["data"]))
        return np.frombuffer(data, np.dtype(value["dtype"])).reshape(value["shape"]).copy()
    return tuple(map(_from_plain, value)) if isinstance(value, list) else value


# What differs between parts of one dataset, or means nothing for sums.
_OF_PARTS = ("first_row", "n_rows", "seed")


def same_rule(first: Folds, second: Folds) -> bool:
    """Whether folds hold the same rows out, so that their sums may be added.

    Rows at random, and runs of rows, may be others in each part: any partition of the rows is as good.
    """
    one, two = (folds_to_dict(folds) for folds in (first, second))
    if isinstance(first, HashFolds | ContiguousFolds):
        one, two = ({k: v for k, v in values.items() if k not in _OF_PARTS} for values in (one, two))
    return one == two
