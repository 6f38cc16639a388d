"""Folds that follow from columns of the rows: whole groups, cells of a map, spans of time, or any indices."""

from __future__ import annotations

import base64
import itertools
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Self

import numpy as np
import pandas as pd

from distrff.errors import InputError, ModelFileError
from distrff.preprocessing.folds import (
    MAX_FOLDS,
    NO_GROUP,
    ContiguousFolds,
    Folds,
    HashFolds,
    Keys,
    Memberships,
    RowsOfFolds,
    SomeFolds,
    check_n_folds,
    group_hashes,
    remainders,
)
from distrff.utils.random import mixed_bits, stream
from distrff.utils.text import first_repeated, listed, number_text
from distrff.utils.validation import is_finite, is_number

# Columns: among the features, by their place, or beside them, by their name.


@dataclass(frozen=True, eq=False)
class ColumnFolds(Folds):
    """Folds that follow from columns."""

    places: tuple[str | int, ...] = field(default=(), repr=False, kw_only=True)
    kinds: tuple[str, ...] = field(default=(), repr=False, kw_only=True)  # of their dtypes
    may_use_groups = False  # whether they may go by the groups though these are no column

    @property
    def columns_called(self) -> str:
        return listed([f"column {name}" if isinstance(name, int) else str(name) for name in self.names])

    def of_dataset(self, rows: RowsOfFolds) -> Self:
        places = tuple(_place(name, rows) for name in self.names)
        if (twice := first_repeated(places)) is not None:
            raise InputError(
                f"folds go by {self.columns_called}; give {self.names[places.index(twice)]!r} once"
            )
        kinds = tuple(rows.id_dtypes[at].kind if isinstance(at, str) else "f" for at in places)
        return replace(self, places=places, kinds=kinds)

    def notes(self, rows: RowsOfFolds) -> list[str]:
        named = zip(self.places, self.names or self.places, strict=True)
        kept = [repr(name) for place, name in named if isinstance(place, int) or place in rows.raw_features]
        notes = []
        if kept and not self.go_by_places:
            notes.append(
                f"the folds go by {listed(kept)}, which the model has as a feature, too: new rows have "
                f"values of it that no fit has seen; leave it out of X unless that is meant"
            )
        if rows.groups not in (None, *self.places) and not self.may_use_groups:
            notes.append(f"the groups of the rows have no effect: the folds hold out {self.words}")
        return notes

    def points(self, keys: Keys) -> np.ndarray:
        """The columns as numbers, (n_rows, n_columns)."""
        columns = zip(self.places, self.names, strict=True)
        return np.stack([_numbers(keys.column(place), name) for place, name in columns], axis=1)


@dataclass(frozen=True, eq=False)
class RoleFolds(ColumnFolds):
    """Folds of which each row enters one sum, whose rows a fold judges, is fitted to, or leaves out."""

    # (n_folds, n_sums), int8: 1, −1 and 0 for these. None until it is known.
    roles: Any = field(default=None, repr=False, kw_only=True)

    @property
    def n_sums(self) -> int:
        return len(self.roles.T)

    @property
    def is_partition(self) -> bool:
        is_square = self.n_sums == self.n_folds
        return is_square and np.array_equal(self.roles, 2 * np.eye(self.n_sums, dtype=np.int8) - 1)

    @property
    def test(self) -> np.ndarray:
        return np.equal(self.roles, 1).astype(np.int8)

    @property
    def train(self) -> np.ndarray:
        return np.equal(self.roles, -1).astype(np.int8)


def _place(name: Any, rows: RowsOfFolds) -> str | int:
    names = rows.column_names or ()
    if isinstance(name, str):
        # A column beside the features first: that it was asked for says which one is meant.
        if name in rows.id_dtypes:
            return name
        if name in names:
            return names.index(name)
        # The command line has indices as text.
        if name.isdecimal() and int(name) < rows.n_columns:
            return int(name)
        raise InputError(
            f"folds go by the column {name!r}, which these rows lack; they have "
            f"{listed([*rows.id_dtypes, *names]) or 'no names'}. Give extra=[{name!r}] to open_dataset for a "
            f"column that is no feature"
        )
    is_integer = is_number(name) and isinstance(name, Integral)
    if not (is_integer and -rows.n_columns <= int(name) < rows.n_columns):
        raise InputError(
            f"folds go by columns by name, or by their places among {rows.n_columns} features, got {name!r}"
        )
    return int(name) % rows.n_columns


def _names(given: Any) -> tuple[Any, ...]:
    """One name, or several, of columns."""
    names = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if not names:
        raise InputError("folds that go by columns need some, such as BlockFolds(['lon', 'lat'])")
    return tuple(name.item() if isinstance(name, np.generic) else name for name in names)


def _numbers(values: np.ndarray, name: Any) -> np.ndarray:
    """A column as float64 numbers; times in seconds since 1970."""
    if values.dtype.kind == "O":
        values = pd.Series(values).infer_objects().to_numpy()
        if pd.api.types.infer_dtype(values) == "datetime":  # with zones, of which there may be several
            values = pd.to_datetime(values, utc=True).tz_localize(None).to_numpy()
    if values.dtype.kind == "M":
        # Whole seconds first: a float of nanoseconds has no seconds left to divide exactly, and nanoseconds
        # of int64 end in 2262.
        whole = values.astype("M8[s]")
        numbers = whole.view(np.int64) + (values - whole) / np.timedelta64(1, "s")
    elif values.dtype.kind in "biuf":
        numbers = values.astype(np.float64)
    else:
        raise InputError(
            f"folds go by the column {name!r}, which holds {values[:1].tolist()[0]!r}; give a column of "
            f"numbers or times. {_as_times(name)}"
        )
    if n_missing := int(np.count_nonzero(~np.isfinite(numbers))):
        raise InputError(
            f"{n_missing:,} of {len(values):,} rows lack a value of {name!r}, by which folds go; drop them"
        )
    return numbers


def _as_times(name: Any) -> str:
    return f"types={{{name!r}: 'time'}} reads '2026-01-31', pandas.to_datetime other text"


def _counted(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row of values once, in lexicographic order, and the sum of its counts."""
    order = np.lexsort(values.T[::-1])
    values, counts = values[order], counts[order]
    starts = np.flatnonzero(np.r_[True, (values[1:] != values[:-1]).any(axis=1)])
    return values[starts], np.add.reduceat(counts, starts)


# Whole groups.

MAX_COUNTED = MAX_FOLDS
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
class GroupFolds(ColumnFolds):
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
    is_each: bool = field(default=False, repr=False)  # whether each group is a fold
    dealt: np.ndarray | None = field(default=None, repr=False)  # hashes of the groups, ascending
    own_fold: np.ndarray | None = field(default=None, repr=False)  # of each of these

    def __post_init__(self) -> None:
        check_n_folds(self.n_folds, 2, or_none=True)

    @property
    def names(self) -> tuple[Any, ...]:
        return () if self.by is None else (self.by,)

    @property
    def words(self) -> str:
        # Groups that came as an array are called "groups", which says nothing.
        name = self.by if self.by is not None else next(iter(self.places), "groups")
        of = "" if name == "groups" else f" of {name!r}"
        n_groups = "" if self.dealt is None else f" ({number_text(len(self.dealt))} of them)"
        return f"whole groups{of}{n_groups}"

    def of_dataset(self, rows: RowsOfFolds) -> GroupFolds:
        found = super().of_dataset(rows)
        if self.by is None:
            if rows.groups is None:
                raise InputError(
                    "GroupFolds() holds out the groups of the rows, which have none; give groups= to fit, or "
                    "to open_dataset, or GroupFolds(by='column')"
                )
            found = replace(found, places=(rows.groups,))
        return found if self.n_folds else replace(found, n_folds=_PRESUMED_GROUPS, is_each=True)

    def units(self, keys: Keys) -> np.ndarray:
        return group_hashes(keys.column(self.places[0]))

    def survey(self, keys: Keys) -> GroupCounts:
        values = keys.column(self.places[0])
        is_null = pd.isna(values)
        return GroupCounts.of(group_hashes(values[~is_null]), None, int(is_null.sum()))

    def decided(self, survey: GroupCounts) -> GroupFolds:
        n_groups = len(survey.hashes)
        n_folds = n_groups if self.is_each else self.n_folds
        if survey.n_null:
            raise InputError(f"{survey.n_null:,} rows have no group; {NO_GROUP}")
        if n_groups > MAX_COUNTED and self.is_each:
            raise InputError(f"there are more than {MAX_COUNTED:,} groups; give a number of folds, not None")
        if n_groups > MAX_COUNTED:
            return self
        if n_groups == 1:
            raise InputError("all rows are of one group, of which none can be held out; give others, or none")
        if n_groups < n_folds:
            raise InputError(
                f"there are {n_groups} groups, and each of {n_folds} folds needs one; give fewer folds: "
                f"GroupFolds(n_folds={n_groups})"
            )
        # Ties in random order, and not by value: numbers of patients or shops often are in cycles.
        order = np.lexsort((self.hashed(survey.hashes), -survey.counts))
        own_fold, sizes = np.empty(n_groups, np.int64), np.zeros(n_folds, np.int64)
        for group in order:
            own_fold[group] = fold = int(np.argmin(sizes))
            sizes[fold] += survey.counts[group]
        return replace(self, n_folds=n_folds, dealt=survey.hashes, own_fold=own_fold)

    def sums(self, keys: Keys) -> Memberships:
        hashes = self.units(keys)
        folds = remainders(self.hashed(hashes), self.n_folds)
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
        values, counts = _counted(values, counts)
        if len(values) > _MAX_KEPT:
            # Those are joined that end in the same of 2¹⁶ runs of rows. Ranks of the values that stay are
            # exact here; those that another part has between are not.
            ends = np.cumsum(counts)
            starts = np.flatnonzero(np.diff((ends - 1) // -(-ends[-1] // _MAX_KEPT), prepend=-1))
            joined = np.add.reduceat(counts, starts)
            error += int((joined - counts[starts]).max())
            values, counts = values[starts], joined
        return cls(values, counts, error)

    def merge(self, other: OrderCounts) -> OrderCounts:
        values = np.concatenate([self.values, other.values])
        return OrderCounts.of(values, np.concatenate([self.counts, other.counts]), self.error + other.error)


@dataclass(frozen=True, eq=False)
class ForwardFolds(RoleFolds):
    """What comes later: each fold is a span of time, and its model is fitted to rows before it alone.

    The rows are cut into n_folds + 1 spans of about equal numbers of rows, of which the first is held out by
    no fold. Spans begin between two values, so that rows of equal value are together.

    Parameters
    ----------
    by : str, int or sequence of these, optional
        The column of the order, of numbers or times; several are a compound order, such as year, month, day.
        By default the row number.
    n_folds : int
    gap : float, or a span such as "7d"
        Rows before the span that are no farther from it than this are left out of its model, in the column's
        units; of times a span such as "7d". Of row numbers a number of rows.
    window : float, or a span such as "7d", optional
        Of the rows before the gap a model has those at most so far back; by default all.
    """

    by: Any = None
    n_folds: int = 5
    gap: Any = 0
    window: Any = None
    edges: np.ndarray | None = field(default=None, repr=False)  # at which the sums' runs begin, ascending
    error: int = field(default=0, repr=False)  # rows by which the spans' sizes may differ from what was meant
    remedy = "a smaller gap, a larger window or fewer folds"

    def __post_init__(self) -> None:
        check_n_folds(self.n_folds)
        if not isinstance(self.by, str) and isinstance(self.by, Iterable):
            object.__setattr__(self, "by", _names(self.by))

    @property
    def names(self) -> tuple[Any, ...]:
        return () if self.by is None else _names(self.by)

    @property
    def words(self) -> str:
        order = "the rows' order" if self.by is None else self.columns_called
        gap, window = (f"{x:g}" if is_number(x) else x for x in (self.gap, self.window))
        more = "" if not self.gap else f", less a gap of {gap}"
        more += "" if self.window is None else f", at most {window} back"
        more += f"; of equal sizes to within {self.error:,} rows" if self.error else ""
        return f"spans of {order}, each held out of a model of what came before{more}"

    def of_dataset(self, rows: RowsOfFolds) -> ForwardFolds:
        if len(self.names) > 1 and (self.gap or self.window is not None):
            raise InputError(
                f"a gap or a window of several columns ({self.columns_called}) has no unit; give one column "
                f"of times"
            )
        found = super().of_dataset(rows)
        gap, _ = found._span("gap"), found._span("window")
        if self.by is not None:
            return found
        if rows.persisted_bytes:
            raise InputError(
                "forward folds take the order of the rows for that of time, and rows of a merged, shuffled "
                "or sorted dask frame may have any; name what orders them, as ForwardFolds('day') does, or "
                "give frame.persist() if their order is meant"
            )
        n, length = rows.n_rows, rows.n_rows // (self.n_folds + 1)
        if not length or n - self.n_folds * length <= gap:
            raise InputError(
                f"{n} rows are too few for {self.n_folds} forward folds with a gap of {gap:g} rows; give "
                f"fewer folds or a smaller gap"
            )
        # As scikit-learn's TimeSeriesSplit: the first span takes what does not divide.
        starts = [n - (self.n_folds - k) * length for k in range(self.n_folds)]
        return found._with_starts(np.array(starts, float)[:, None])

    def _span(self, name: str) -> float:
        """The gap or the window in the column's units; infinite without a window."""
        given = getattr(self, name)
        if given is None and name == "window":
            return np.inf
        if "M" in self.kinds and not (is_number(given) and given == 0):
            if not (span := _seconds(given)) >= 0:
                raise InputError(
                    f"{name} must be a time span such as '7d', got {given!r}; months and years have no fixed "
                    f"length"
                )
            return span
        if not is_finite(given) or given < 0:
            what = "rows" if self.by is None else f"units of {self.by!r}"
            hint = f"; spans go with times. {_as_times(self.by)}" if "O" in self.kinds else ""
            raise InputError(f"{name} must be a number of {what} of at least 0, got {given!r}{hint}")
        return float(given)

    def points(self, keys: Keys) -> np.ndarray:
        return super().points(keys) if self.places else keys.numbers.astype(np.float64)[:, None]

    def survey(self, keys: Keys) -> OrderCounts | None:
        return None if self.by is None else OrderCounts.of(self.points(keys), np.ones(len(keys), np.int64))

    def decided(self, survey: OrderCounts) -> ForwardFolds:
        before = np.cumsum(survey.counts) - survey.counts  # rows before each value
        n, n_values = int(survey.counts.sum()), len(before)
        if n_values <= self.n_folds:
            raise InputError(
                f"{self.columns_called} has {n_values} different values, and {self.n_folds} forward folds "
                f"need {self.n_folds + 1}; give fewer folds"
            )
        starts = [0]
        for later in range(self.n_folds, 0, -1):  # spans from here on
            # The value whose rank is nearest to where the span would begin if all values differed.
            misses = np.abs(before - (n - later * (n // (self.n_folds + 1))))
            least, behind = starts[-1] + 1, n_values - later + 1
            starts.append(least + int(np.argmin(misses[least:behind])))
        return replace(self, error=survey.error)._with_starts(survey.values[starts[1:]])

    def _with_starts(self, starts: np.ndarray) -> ForwardFolds:
        """The folds whose spans begin at these values, of shape (n_folds, n_columns)."""
        # What a fold judges or is fitted to are runs between edges: a gap costs one more sum a fold, a window
        # another, and the sweep nothing.
        ends = starts - self._span("gap")
        begins = ends - self._span("window")
        every = np.concatenate([starts, ends, begins])
        edges = np.unique(every[np.isfinite(every).all(axis=1)], axis=0)
        first, end, begin = (_ranks(values, edges)[:, None] for values in (starts, ends, begins))
        runs = np.arange(len(edges) + 1)
        judged = (runs >= first) & (runs < np.append(first[1:], [[len(runs)]], axis=0))
        roles = judged.astype(np.int8) - ((runs >= begin) & (runs < end))
        return replace(self, edges=edges, roles=roles)

    @property
    def n_sums(self) -> int:
        expected = self.n_folds * (1 + bool(self.gap) + (self.window is not None)) + 1
        return expected if self.roles is None else super().n_sums

    def sums(self, keys: Keys) -> Memberships:
        assert self.edges is not None
        return Memberships(len(keys), _ranks(self.points(keys), self.edges))


def _seconds(span: Any) -> float:
    """Seconds of a time span; NaN of what is none."""
    if isinstance(span, str | np.timedelta64):
        # pandas warns of "7d", whose unit will be "D" alone, knows no weeks, and takes "7" for nanoseconds.
        span = re.sub("weeks?", "W", str(span))
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
    order = np.lexsort(np.concatenate([edges, values]).T[::-1])  # of equal ones edges stay before values
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(order < len(edges))
    return ranks[len(edges) :]


# Cells of a map.

_MAX_CELLS, _MAX_WRITTEN_OUT = 2**16, 2**23
_ROWS_A_CELL = 6  # on average, so that a cell is empty by chance once in 400
_FEWEST_GAPS = 0.05  # share of cells below which a map counts as full: those at its border are cut by it
_WIDEST_GAP = 1 / 4  # half of its width, where the bounds have sides of 1
_BLOCKS = 100  # cells over the bounds, where no size is given
_LEAST_LEFT, _MOST_NEAR = 1e-9, 20_000  # rows of a model, as a share; cells within the buffer of a row
_MAX_SHIFTS = 100
_PLACES = "places to be predicted"


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
        # The finest that int64 holds; a part of one value stays at them, and makes no others coarse.
        exponents = np.frexp(np.maximum(np.abs(points).max(axis=0), 2.0**-500))[1] - 61
        cells = np.floor(np.ldexp(points, -exponents)).astype(np.int64)
        return cls._joined(exponents, cells, np.ones(len(cells), np.int64))

    @classmethod
    def _joined(cls, exponents: np.ndarray, cells: np.ndarray, counts: np.ndarray) -> Occupancy:
        # Some 2²⁰ cells over the bounds, in equal numbers a column, are enough.
        widths = np.maximum(np.ptp(cells, axis=0) - 1.0, 0.0)
        steps = np.maximum(np.frexp(widths)[1] - 20 // cells.shape[1], 0)
        found = cls(exponents + steps, *_counted(cells >> steps, counts))
        return found if len(found.cells) <= _MAX_CELLS else found.coarser(found.exponents + 1)

    def _at(self, exponents: np.ndarray) -> np.ndarray:
        return self.cells >> np.minimum(exponents - self.exponents, 63)

    def coarser(self, exponents: np.ndarray) -> Occupancy:
        """The same rows in cells of larger pitches."""
        return self._joined(exponents, self._at(exponents), self.counts)

    def of_all_rows(self) -> Occupancy:
        """Of a column of one value a cell is as large as that, since other rows may have more."""
        own = np.where(self.shape == 1, np.frexp(self.first.astype(float))[1], 0)
        return self.coarser(self.exponents + own)

    def merge(self, other: Occupancy) -> Occupancy:
        exponents = np.maximum(self.exponents, other.exponents)
        cells = np.concatenate([self._at(exponents), other._at(exponents)])
        return self._joined(exponents, cells, np.concatenate([self.counts, other.counts]))

    @property
    def pitches(self) -> np.ndarray:
        return np.ldexp(1.0, self.exponents)

    @property
    def first(self) -> np.ndarray:
        return self.cells.min(axis=0)

    @property
    def shape(self) -> np.ndarray:
        """Cells from the first to the last occupied one of each column."""
        return np.ptp(self.cells, axis=0) + 1

    @property
    def grid(self) -> np.ndarray:
        """The rows of all cells over the bounds."""
        found = np.zeros(self.shape, np.int64)
        found[tuple((self.cells - self.first).T)] = self.counts
        return found


def _gaps(occupied: np.ndarray) -> np.ndarray:
    """Whether each cell is in a gap: empty, where no ball of `_WIDEST_GAP` fits between filled cells."""
    from scipy import ndimage  # for few fits

    # Filled as the mean cell: the sparse rim of a cloud is no border of gaps, and what lies between distant
    # pieces of a map is none.
    filled, sides = occupied >= occupied[occupied > 0].mean(), 1 / np.array(occupied.shape)
    near = ndimage.distance_transform_edt(~filled, sides) <= _WIDEST_GAP
    if not near.all():
        near = ndimage.distance_transform_edt(near, sides) > _WIDEST_GAP
    return near & (occupied == 0)


def _floats(name: str, given: Any) -> np.ndarray:
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must hold numbers, of times seconds: {error}") from error


@dataclass(frozen=True, eq=False)
class BlockFolds(ColumnFolds):
    """Cells of a map: the rows of a cell are held out together, as are those of other cells of its fold.

    Parameters
    ----------
    columns : list of str or int
        Coordinates, such as lon and lat; a single one is a line.
    size : float or sequence of float, optional
        Of a cell, in the columns' units (of times seconds), or one a column; by default a hundred cells of
        equal numbers a column cover the bounds.
    n_folds : int
        A hash deals the cells, and folds that get none are left out: of 100 cells 100 folds leave some 63.
    buffer : float
        Rows of other folds that are no farther from a held-out cell (Euclidean, in the columns' units) are
        left out of its model. Less than the size of a few cells, as farther ones are of all folds.
    like : {"gaps"}, array-like of shape (m, n_columns), or mapping of column to coordinates, optional
        Rows are held out in the shape of the places where predictions are wanted: of these rows or this grid
        those in cells without rows, or all empty cells among the filled ones. Copies of the shape, shifted
        and mirrored at random, say which rows each fold holds out; they may overlap, and need not cover the
        rows. Where there are no such cells rows are held out at random.
    seed : int, optional
        By default that of the estimator.
    """

    columns: Any
    size: Any = None
    n_folds: int = 5
    buffer: float = 0.0
    like: Any = None
    seed: int | None = None
    pitches: np.ndarray | None = field(default=None, repr=False)  # of the cells, (d,)
    go_by_places: bool = field(default=True, repr=False)
    remedy = "smaller cells, a smaller buffer or other columns"

    def __post_init__(self) -> None:
        check_n_folds(self.n_folds, 2 if self.like is None else 1)
        # A list, an array and an index of names are the same rule.
        object.__setattr__(self, "columns", _names(self.columns))
        if not is_finite(self.buffer) or self.buffer < 0:
            raise InputError(f"buffer must be a number of at least 0, got {self.buffer!r}")
        if self.like is not None and self.buffer:
            raise InputError(
                "buffer goes with cells; folds like other places have their distances by themselves"
            )
        if isinstance(self.like, str) and self.like not in ("gaps", _PLACES):
            raise InputError(f"like must be 'gaps', rows or a grid, got {self.like!r}")

    @property
    def names(self) -> tuple[Any, ...]:
        return tuple(self.columns)

    @property
    def words(self) -> str:
        sizes = zip(() if self.pitches is None else self.pitches, self.kinds, strict=False)
        cells = " × ".join(f"{size:.3g}{' s' * (kind == 'M')}" for size, kind in sizes)
        near = f", less rows no farther than {self.buffer:g}" if self.buffer else ""
        return f"{cells} cells of {self.columns_called}{near}".lstrip()

    def of_dataset(self, rows: RowsOfFolds) -> BlockFolds:
        found = super().of_dataset(rows)
        sizes = _floats("size", 1.0 if self.size is None else self.size)
        if sizes.shape not in ((), (1,), (len(self.names),)) or not ((sizes > 0) & (sizes < np.inf)).all():
            raise InputError(f"size must be a positive number, or one a column, got {self.size!r}")
        own = (isinstance(at, int) or at in rows.raw_features for at in found.places)
        found = replace(found, go_by_places=all(own))
        if self.like is not None:
            return CopyFolds(**vars(found))
        return found if self.size is None else found._of_pitches(np.resize(sizes, len(self.names)))

    def survey(self, keys: Keys) -> Occupancy | None:
        return Occupancy.of(self.points(keys)) if self.pitches is None else None

    def decided(self, survey: Occupancy) -> Folds:
        survey = survey.of_all_rows()
        return self._of_pitches(survey.shape * survey.pitches / _BLOCKS ** (1 / len(self.names)))

    def _of_pitches(self, pitches: np.ndarray) -> Self:
        found = replace(self, pitches=pitches)
        with np.errstate(over="ignore"):
            n_within, n_near = (np.prod(2 * r(self.buffer / pitches) + 1) for r in (np.floor, np.ceil))
        # A row stays in the model of a fold that has none of the m cells near it: chance (1 − 1/K)^m.
        share = (1 - 1 / self.n_folds) ** n_within
        if self.buffer and (share < _LEAST_LEFT or n_near > _MOST_NEAR):
            raise InputError(
                f"buffer={self.buffer:g} reaches {n_near:.3g} cells from each row, too many for rows to be "
                f"left ({found.words}); give a smaller buffer, larger cells or fewer columns"
            )
        return found

    def _cells(self, points: np.ndarray) -> np.ndarray:
        cells = np.floor(points / self.pitches)
        if not (np.abs(cells) < 2.0**62).all():
            raise InputError(
                f"size={self.size!r} is too small for numbers of more than 2⁶² cells; give a larger one"
            )
        return cells.astype(np.int64)

    def _hashes(self, cells: np.ndarray) -> np.ndarray:
        bits = np.full(len(cells), self.seed, np.uint64)
        for column in cells.T:  # one after the other, so that cells of equal sums differ
            bits = mixed_bits(bits ^ self.hashed(column.astype(np.uint64)))
        return bits

    def _folds_of(self, cells: np.ndarray) -> np.ndarray:
        return remainders(self._hashes(cells), self.n_folds)

    def units(self, keys: Keys) -> np.ndarray:
        return self._hashes(self._cells(self.points(keys)))

    def _entered(self, points: np.ndarray) -> np.ndarray:
        """Whether points enter each sum: that of their own fold, and of rows near a cell of another."""
        assert self.pitches is not None
        cells, rows = self._cells(points), np.arange(len(points))
        own, entered = self._folds_of(cells), np.zeros((len(points), self.n_sums), bool)
        reach = np.ceil(self.buffer / self.pitches).astype(int)
        inside = points - cells * self.pitches  # from the lower corner of the own cell
        for offset in itertools.product(*(range(-r, r + 1) for r in reach)):
            step = np.array(offset)
            # The distance to the nearer side of a neighbour, and 0 along columns in which it is beside.
            to_upper, to_lower = step * self.pitches - inside, inside - (step + 1) * self.pitches
            distances = np.maximum(0.0, np.maximum(to_upper, to_lower))
            near = np.flatnonzero(np.square(distances).sum(axis=1) <= self.buffer**2)
            entered[near, self.n_folds + self._folds_of(cells[near] + step)] = True
        entered[rows, self.n_folds + own] = False  # they are held out anyway
        entered[rows, own] = True
        return entered

    def sums(self, keys: Keys) -> Memberships:
        if not self.buffer:
            return Memberships(len(keys), remainders(self.units(keys), self.n_folds))
        rows, numbers = np.nonzero(self._entered(self.points(keys)))
        return Memberships(len(keys), numbers, rows)

    @property
    def n_sums(self) -> int:
        return self.n_folds * (2 if self.buffer else 1)

    @property
    def memberships(self) -> float:
        if not self.buffer or self.pitches is None:
            return 1.0
        # Of random places: counted, since distances to corners have no short formula.
        rng = np.random.Generator(np.random.PCG64(0))
        places = rng.random((1000, len(self.names))) * 50 * self.pitches
        return float(self._entered(places).sum(axis=1).mean())

    @property
    def total(self) -> np.ndarray:
        return (np.arange(self.n_sums) < self.n_folds).astype(np.int8)

    @property
    def train(self) -> np.ndarray:
        near = np.eye(self.n_folds, self.n_sums, self.n_folds, dtype=np.int8) if self.buffer else 0
        return self.total - self.test - near


@dataclass(frozen=True, eq=False)
class CopyFolds(BlockFolds):
    """Copies of a shape: a sum for each, of the rows that it holds out, and one of all rows."""

    first_cell: np.ndarray | None = field(default=None, repr=False)  # of the grid of `held`, (d,)
    held: np.ndarray | None = field(default=None, repr=False)  # whether a fold holds a cell out, by both
    share: float = field(default=0.3, repr=False)  # of the rows that a fold holds out

    @property
    def shape(self) -> str:
        return self.like if isinstance(self.like, str) else _PLACES

    @property
    def words(self) -> str:
        return f"rows in the shape of the {self.shape} on {self.columns_called}"

    def decided(self, survey: Occupancy) -> Folds:
        survey, wanted = self._shape_in(survey.of_all_rows())
        # Places that are asked for may be few.
        least = _FEWEST_GAPS if isinstance(self.like, str) else 0
        n_wanted = np.count_nonzero(wanted)  # beside filled cells alone: pieces of a map may be far apart
        if not n_wanted or n_wanted < least * (n_wanted + len(survey.cells)) or wanted.mean() > 0.5:
            none = "there are no gaps" if least else "no place to be predicted is away from rows"
            return HashFolds(self.n_folds, self.seed, because=f"{none} on {self.columns_called}")
        assert self.seed is not None
        rows, folds = survey.grid / survey.counts.sum(), range(self.n_folds)
        copies = [_copy(wanted, rows, stream(self.seed, "copies", fold)) for fold in folds]
        return replace(
            self,
            like=self.shape,
            pitches=survey.pitches,
            first_cell=survey.first,
            held=np.stack(copies),
            share=float(np.mean([rows[copy].sum() for copy in copies])),
        )

    def _shape_in(self, survey: Occupancy) -> tuple[Occupancy, np.ndarray]:
        """Cells so coarse that their emptiness says something, and whether each over the bounds is wanted."""
        if self.size is not None:
            exponents = np.round(np.log2(_floats("size", self.size))).astype(int)
            survey = survey.coarser(np.maximum(survey.exponents, exponents))
        n_rows, n_places = survey.counts.sum(), len(survey.counts)
        if (
            n_places < _MAX_CELLS / 8
        ):  # they were never made coarser: these are all places, of counts or steps
            n_rows = n_places
        # Rows along a track have few cells within wide bounds, all of which are written out here.
        while np.prod(survey.shape.astype(float)) > _MAX_WRITTEN_OUT:
            survey = survey.coarser(survey.exponents + 1)
        while True:
            wanted = self._wanted(survey)
            # Coarser until few cells are empty by chance, and rows along tracks fill half of the bounds.
            is_coarse = n_rows >= _ROWS_A_CELL * len(survey.counts) and wanted.mean() <= 0.5
            if self.size is not None or is_coarse or max(wanted.shape) <= 2:
                return survey, wanted
            survey = survey.coarser(survey.exponents + 1)

    def _wanted(self, survey: Occupancy) -> np.ndarray:
        if isinstance(self.like, str):
            return _gaps(survey.grid)
        cells = np.floor(self._wanted_points() / survey.pitches) - survey.first
        cells = cells[((cells >= 0) & (cells < survey.shape)).all(axis=1)].astype(np.int64)
        if not len(cells):
            raise InputError(
                "none of the places of `like` is within the bounds of the rows; give others, or 'gaps'"
            )
        wanted = np.zeros(survey.shape, bool)
        wanted[tuple(cells.T)] = True
        # Beside rows a place is predicted as rows held out at random are.
        return wanted & (survey.grid == 0)

    def _wanted_points(self) -> np.ndarray:
        if isinstance(self.like, Mapping):
            if missing := [name for name in self.names if name not in self.like]:
                raise InputError(f"the grid of `like` has no coordinates of {missing[0]!r}")
            axes = [_floats("like", self.like[name]) for name in self.names]
            return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
        frame = getattr(self.like, "columns", ())
        points = _floats("like", self.like[[*self.names]] if {*self.names} <= {*frame} else self.like)
        if points.ndim != 2 or points.shape[1] != len(self.names) or not np.isfinite(points).all():
            raise InputError(
                f"like must have a finite value of each of {self.columns_called} a row, got shape "
                f"{points.shape}"
            )
        return points

    def sums(self, keys: Keys) -> Memberships:
        assert self.held is not None
        cells = self._cells(self.points(keys)) - self.first_cell
        # Rows outside of the bounds, which came later, are as those at the border.
        at = np.clip(cells, 0, np.array(self.held.shape[1:]) - 1)
        entered = np.vstack([self.held[(slice(None), *at.T)], np.ones(len(at), bool)])
        rows, numbers = np.nonzero(entered.T)
        return Memberships(len(keys), numbers, rows)

    @property
    def n_sums(self) -> int:
        return self.n_folds + 1

    @property
    def memberships(self) -> float:
        return 1 + self.share * self.n_folds

    @property
    def total(self) -> np.ndarray:
        return (np.arange(self.n_sums) == self.n_folds).astype(np.int8)


def _copy(wanted: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A shape mirrored and shifted at random, over half to twice as many of the rows as of the cells."""
    best, least = wanted, np.inf
    for _ in range(_MAX_SHIFTS):
        mirrored = np.flip(wanted, tuple(np.flatnonzero(rng.random(wanted.ndim) >= 0.5)))
        copy = np.roll(mirrored, rng.integers(0, wanted.shape), axis=tuple(range(wanted.ndim)))
        miss = abs(np.log(max(rows[copy].sum(), 1e-9) / wanted.mean()))
        if miss < least:
            best, least = copy, miss
        if least <= np.log(2):
            break
    return best


# Any folds, by the rows that each one judges and is fitted to.


def translated(cv: Any, seed: int) -> Folds:
    """The folds of ours that mean what a splitter of scikit-learn means, for rows that are not in memory.

    Raises InputError with the nearest of ours for a splitter that has none.
    """
    kind, given = type(cv).__name__, getattr(cv, "__dict__", {})
    n_folds: Any = given.get("n_splits")
    if kind == "KFold":
        drawn = given["random_state"]
        own_seed = int(drawn) if isinstance(drawn, Integral) else seed
        return HashFolds(n_folds, own_seed) if given["shuffle"] else ContiguousFolds(n_folds)
    # A shuffle deals groups at random, whatever their sizes. The second one has no number of folds.
    if kind in ("GroupKFold", "LeaveOneGroupOut") and not given.get("shuffle"):
        return GroupFolds(None, n_folds, seed)
    if kind == "TimeSeriesSplit" and given["test_size"] is None:
        return ForwardFolds(None, n_folds, given["gap"], given["max_train_size"] or None)
    nearest = {
        "GroupKFold": "it without shuffle, or GroupFolds(), which deals the largest groups first",
        "PredefinedSplit": "GroupFolds(by=...) with the column of the folds",
        "StratifiedKFold": "HashFolds(), whose folds of many rows have nearly equal shares of each class",
        "TimeSeriesSplit": "ForwardFolds()",
    }.get(kind, "GroupFolds(), BlockFolds(), ForwardFolds() or HashFolds()")
    what = "a list" if isinstance(cv, list) else kind
    raise InputError(f"{what} splits rows in memory alone, not stored or lazy ones, nor sums; use {nearest}")


@dataclass(frozen=True, eq=False)
class PatternFolds(RoleFolds):
    """Folds by a column of numbers, each of them a sum: rows of a number have the same role in all folds."""

    n_folds: int
    name: str  # what made them
    may_use_groups = True  # as splitters of scikit-learn do

    @property
    def names(self) -> tuple[str, ...]:
        return (f"rows of {self.name}",)

    @property
    def words(self) -> str:
        return f"the rows that {self.name} holds out"

    def sums(self, keys: Keys) -> Memberships:
        return Memberships(len(keys), keys.column(self.places[0]).astype(np.int64))

    @classmethod
    def of_splits(
        cls, splits: Sequence[tuple[np.ndarray, np.ndarray]], n_rows: int, name: str
    ) -> tuple[PatternFolds, np.ndarray]:
        """The folds of rows to fit and rows to judge by position, and the numbers of all rows."""
        if not splits:
            raise InputError("it yields no rows to judge")
        check_n_folds(len(splits))
        roles, rows = np.zeros((n_rows, len(splits)), np.int8), np.arange(n_rows)
        for fold, (train, test) in enumerate(splits):
            roles[train, fold] = -1
            if roles[test, fold].any():
                raise InputError("it judges rows that it is fitted to; give disjoint rows")
            roles[test, fold] = 1
            if np.count_nonzero(roles[:, fold]) < sum(len(rows[given]) for given in (train, test)):
                raise InputError("it repeats rows, which count once here; give one that draws each row once")
        patterns, numbers = np.unique(roles, axis=0, return_inverse=True)
        return cls(len(splits), name, roles=patterns.T), numbers.ravel()


# Folds in files.


def folds_from_dict(values: Mapping[str, Any]) -> Folds:
    """The folds of a file; raises ModelFileError for others."""
    kinds = _kinds(Folds)
    if values["kind"] not in kinds:
        raise ModelFileError(f"its folds are of an unknown kind: {values['kind']!r}")
    own = {name: _from_plain(value) for name, value in values.items() if name != "kind"}
    found: Folds = kinds[values["kind"]](**own)
    if not _fits_together(found):
        raise ModelFileError(f"the parts of its {values['kind']} do not fit together; it is damaged")
    return found


def _fits_together(folds: Any) -> bool:
    """Whether sums over rows can go by what a file says of folds that were decided."""
    own, n_folds, d = vars(folds), folds.n_folds, max(1, len(folds.places))
    if isinstance(folds, SomeFolds):
        is_once = isinstance(folds.whole, Folds) and not isinstance(folds.whole, SomeFolds)
        return is_once and n_folds > 0 and all(_is_count(one, folds.whole.n_folds) for one in folds.kept)
    counts = [own[name] for name in ("n_folds", "seed", "first_row", "n_rows", "error") if name in own]
    counts += [place for place in folds.places if not isinstance(place, str)]
    if not all(map(_is_count, counts)) or len(folds.names or folds.places) != len(folds.places):
        return False
    # Kind, shape (None for any length), and the least and largest of the values.
    expected: dict[str, tuple[str, tuple[int | None, ...], float, float]] = {
        "roles": ("i", (n_folds, folds.n_sums), -1, 1),
        "edges": ("f", (folds.n_sums - 1, d), -np.inf, np.inf),
        "pitches": ("f", (d,), 2.0**-1022, 2.0**1023),
        "first_cell": ("i", (d,), -(2**62), 2**62),
        "held": ("b", (n_folds, *[None] * d), 0, 1),
        "dealt": ("u", (None,), 0, np.inf),
        "own_fold": ("i", np.shape(own.get("dealt")), 0, n_folds - 1),
    }
    if own.get("dealt") is None and own.get("own_fold") is None:  # of more groups than are counted
        del expected["dealt"], expected["own_fold"]
    return is_finite(own.get("share", 0)) and all(
        _is_array(own[name], *expected[name]) for name in expected.keys() & own.keys()
    )


def _is_count(value: Any, below: float = np.inf) -> bool:
    return is_number(value) and isinstance(value, Integral) and 0 <= int(value) < below


def _is_array(A: Any, kind: str, shape: tuple[int | None, ...], least: float, most: float) -> bool:
    if not isinstance(A, np.ndarray) or A.dtype.kind != kind or A.ndim != len(shape) or not A.size:
        return False
    is_alike = all(n in (None, own) for n, own in zip(shape, A.shape, strict=True))
    return is_alike and bool(((least <= A) & (most >= A)).all())


def _kinds(of: Any) -> dict[str, Any]:
    found = {of.__name__: of}
    for kind in of.__subclasses__():
        found |= _kinds(kind)
    return found


def _from_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "kind" in value:
            return folds_from_dict(value)
        dtype, shape = np.dtype(value["dtype"]), value["shape"]
        n_bytes = dtype.itemsize * math.prod(shape)
        # No more than the shape says, as a few forged bytes may stand for gigabytes.
        data = zlib.decompressobj().decompress(base64.b64decode(value["data"]), n_bytes + 1)
        if len(data) != n_bytes:
            raise ModelFileError("an array of its folds has another length than its shape says")
        return np.frombuffer(data, dtype).reshape(shape).copy()
    return tuple(map(_from_plain, value)) if isinstance(value, list) else value
