"""Folds: which rows stand for new ones, told by sums that rows enter and combinations of these sums."""

from __future__ import annotations

import base64
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date, timedelta
from decimal import Decimal
from numbers import Real
from operator import attrgetter
from typing import Any, Protocol, Self

import numpy as np
import pandas as pd
from scipy.sparse import issparse

from distrff.errors import InputError
from distrff.utils.arrays import joined_rows
from distrff.utils.random import child_seed, row_hash
from distrff.utils.validation import check_count

FOLD_RULES = ("hash", "contiguous")
MAX_FOLDS = 10_000


def check_n_folds(n_folds: Any, minimum: int = 1, *, or_none: bool = False) -> None:
    """Raise InputError unless it is a number of folds, each of which has a coefficient of each sum."""
    check_count("n_folds", n_folds, minimum, or_none=or_none)
    if n_folds is not None and n_folds > MAX_FOLDS:
        raise InputError(f"n_folds must be at most {MAX_FOLDS:,}, got {n_folds:,}; give fewer folds")


@dataclass(frozen=True, match_args=False)  # so that members are read alone, as those of a dataset
class RowsOfFolds(Protocol):
    """What folds look at of a dataset before any row is read."""

    n_rows: int
    n_columns: int
    column_names: tuple[str, ...] | None
    groups: str | None
    persisted_bytes: int

    @property
    def id_dtypes(self) -> Mapping[str, np.dtype]: ...

    @property
    def raw_features(self) -> Sequence[str]: ...


@dataclass(frozen=True, eq=False)
class Keys:
    """What folds know of some rows: their numbers in the dataset, and their columns."""

    numbers: np.ndarray
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)  # those that are no features
    X: Any = None  # the features as they were read, dense or CSR

    def __len__(self) -> int:
        return len(self.numbers)

    def column(self, place: str | int) -> np.ndarray:
        """A column by its name, or a feature by its place."""
        if isinstance(place, str):
            return self.columns[place]
        return self.X[:, [place]].toarray()[:, 0] if issparse(self.X) else np.asarray(self.X[:, place])

    def __add__(self, other: Keys) -> Keys:
        """Those of both, one after the other."""
        columns = {name: np.concatenate([self.columns[name], other.columns[name]]) for name in self.columns}
        return Keys(np.r_[self.numbers, other.numbers], columns, joined_rows([self.X, other.X]))

    def chosen(self, rows: np.ndarray) -> Keys:
        """Those of some of the rows, by their positions."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        return Keys(self.numbers[rows], columns, None if self.X is None else self.X[rows])


@dataclass(frozen=True, eq=False)
class Memberships:
    """Pairs of a row and a number, by row: the sums that it enters, or the folds that judge it."""

    n_rows: int
    numbers: np.ndarray  # (n_pairs,), int64
    # Positions of the rows, ascending. None for one pair a row, the common case: such rows are neither copied
    # nor counted.
    rows: np.ndarray | None = None

    def of(self, number: int) -> np.ndarray:
        """Positions of the rows that have a number, ascending."""
        pairs = np.flatnonzero(self.numbers == number)
        return pairs if self.rows is None else self.rows[pairs]

    def counts(self) -> np.ndarray:
        """Pairs of each row, shape (n_rows,)."""
        if self.rows is None:
            return np.ones(self.n_rows, np.int64)
        return np.bincount(self.rows, minlength=self.n_rows)

    def shares(self) -> np.ndarray:
        """1/m for each of the m pairs of a row, shape (n_pairs,)."""
        counts = self.counts()
        return 1.0 / (counts if self.rows is None else counts[self.rows])

    def one_each(self, hashes: np.ndarray) -> np.ndarray:
        """One of the numbers of each row, which its hash chooses; -1 for a row that has none."""
        counts, found = self.counts(), np.full(self.n_rows, -1)
        at, places = np.flatnonzero(counts), np.cumsum(counts) - counts
        chosen = places[at] + (hashes[at] % counts[at].astype(np.uint64)).astype(np.int64)
        found[at] = self.numbers[chosen]
        return found

    def combined(self, coefs: np.ndarray) -> np.ndarray:
        """Σ of the coefficients of each row's numbers, (m, n_numbers) → (n_rows, m)."""
        of_pairs = coefs.T[self.numbers]
        if self.rows is None:
            return of_pairs
        found = np.zeros((self.n_rows, len(coefs)), coefs.dtype)
        # Not `+=` on an index, which counts a row that is there several times once.
        np.add.at(found, self.rows, of_pairs)
        return found


# One pass makes all sums, and its time grows with the sums that a row enters; what a fold is fitted to and
# judged on are differences of them, without another pass. Rows near a fold that its model must not see are
# one more sum a fold, which `train` subtracts and `total` leaves out; a series is a sum for each run, of
# which the model of a fold takes those before it.


class Folds(ABC):
    """Which rows are held out, and how sums over rows tell it; by default each fold has a sum of its own.

    The rule is a function of row numbers and columns, never of chunks or workers. Folds may overlap, and need
    not cover the rows. A row that no fold holds out has no out-of-fold value; of one that m folds hold out
    each counts 1/m.
    """

    n_folds: int
    may_lack: bool = True
    """Whether rows may be in no fold, a fold may have no rows or its model too few classes, but by chance."""
    seed: int | None = None
    """What draws them, where it is a field."""
    against_groups: str = ""
    """Why they do not go with groups, and what does."""
    places: tuple[str | int, ...] = ()
    """Their columns: names of those beside the features, and places of features."""
    rows_are_exchangeable = False
    """Whether new rows come as any others do, so that they are held out at random, or not at all."""
    go_by_places = False
    """Whether rows are held out where they are on a map, of whose columns the model is made as well."""
    remedy = "others"
    """What to give where no fold has a model."""

    @property
    def n_sums(self) -> int:
        return self.n_folds

    @property
    def one_in(self) -> int:
        """Each fold has about one row in so many."""
        return self.n_folds

    @property
    def total(self) -> np.ndarray:
        """Coefficients of all rows, shape (n_sums,); 0 for a sum of rows that others have as well."""
        return np.ones(self.n_sums, np.int8)

    @property
    def test(self) -> np.ndarray:
        """Coefficients of each fold's rows, shape (n_folds, n_sums)."""
        return np.eye(self.n_folds, self.n_sums, dtype=np.int8)

    @property
    def train(self) -> np.ndarray:
        """Coefficients of the rows that each fold's model is fitted to, shape (n_folds, n_sums)."""
        # The sums of a fold's training rows are the total less its own; the others added up would have other
        # bits.
        return self.total - self.test

    @property
    def is_partition(self) -> bool:
        """Whether each row enters one sum, which is its fold."""
        # Asked for each tile, so told by numbers: the coefficients are n_folds².
        return self.n_sums == self.n_folds

    @property
    def names(self) -> tuple[Any, ...]:
        """Their columns as they were given: names, or places of features."""
        return ()

    @property
    def needs_all_rows(self) -> bool:
        """Whether they follow from the number of all rows: neither a seed draws them nor columns tell."""
        return bool(self.n_folds) and self.seed is None and not self.names

    @property
    def memberships(self) -> float:
        """Sums that a row enters, on average: what a pass for all of them costs, in passes for one."""
        return 1.0

    def units(self, keys: Keys) -> np.ndarray | None:
        """Which rows are held out together, as numbers; None where each row is for itself."""
        return None

    @abstractmethod
    def sums(self, keys: Keys) -> Memberships:
        """The sums that each of some rows enters."""

    @property
    @abstractmethod
    def words(self) -> str:
        """How rows are held out, for reports: "rows at random", after "5 folds of"."""

    def of_dataset(self, rows: RowsOfFolds) -> Folds:
        """The folds with what is known before rows are read; raises InputError for columns that lack."""
        if self.against_groups and rows.groups is not None:
            raise InputError(
                f"the rows have groups, of which new rows will be others, but {self.against_groups}, or give "
                f"no groups"
            )
        return self

    def notes(self, rows: RowsOfFolds) -> list[str]:
        """What reports say of their columns, and of groups that are not theirs."""
        return []

    def survey(self, keys: Keys) -> Any:
        """What decides the folds, of some rows; ``a.merge(b)`` is that of both. None where nothing has to."""
        return None

    def decided(self, survey: Any) -> Folds:
        """The folds that follow from the survey of all rows; raises InputError where none do."""
        return self

    def after(self, n_rows: int) -> Folds:
        """The folds of rows that come after so many others, in whose numbers these are not counted."""
        return self

    def drawn_from(self, seed: int) -> Self:
        """The same folds drawn from another seed, where they are drawn."""
        is_drawn = any(one.name == "seed" for one in fields(self))  # type: ignore[arg-type]  # dataclasses all
        return replace(self, seed=seed) if is_drawn else self  # type: ignore[type-var]

    def hashed(self, numbers: np.ndarray) -> np.ndarray:
        """64 bits for each number, drawn by the seed."""
        assert self.seed is not None
        return row_hash(numbers, self.seed)

    def held_out(self, keys: Keys) -> Memberships:
        """The folds that judge each of some rows: none, one or several."""
        sums = self.sums(keys)
        if self.is_partition:
            return sums
        rows, folds = np.nonzero(sums.combined(self.test))  # by row, as memberships are
        return Memberships(len(keys), folds, rows)

    def masks(self, keys: Keys, folds: Sequence[int | None]) -> tuple[np.ndarray, np.ndarray]:
        """Whether each fold's model is fitted to some rows, and whether the fold judges them.

        Both are bool, of shape (n_rows, m). None stands for a model of all rows, which judges none.
        """
        sums, members = self.sums(keys), np.array([-1 if fold is None else fold for fold in folds], int)
        if self.is_partition:
            # One comparison serves both, and no fold is −1. By the coefficients weights of 2000 rows for 15
            # problems took 3.5 ms in place of 1.7.
            is_judged = sums.numbers[:, None] == members
            return ~is_judged, is_judged
        # The coefficients of a row add up to 0 or 1: bytes may overflow on the way.
        # A last row for None: the coefficients of the sums that a row enters add up to 1 in the total.
        train, test = np.vstack([self.train, self.total]), np.vstack([self.test, 0 * self.total])
        return sums.combined(train[members]) > 0, sums.combined(test[members]) > 0

    def to_dict(self) -> dict[str, Any]:
        """A JSON-compatible description, from which `splits.folds_from_dict` makes the folds again."""
        names = [one.name for one in fields(self)]  # type: ignore[arg-type]  # dataclasses all
        return {"kind": type(self).__name__} | {name: _plain(getattr(self, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufmM":
        data = base64.b64encode(zlib.compress(np.ascontiguousarray(value).tobytes())).decode()
        return {"dtype": value.dtype.str, "shape": list(value.shape), "data": data}
    if isinstance(value, Folds):
        return value.to_dict()
    if isinstance(value, timedelta):
        return str(pd.Timedelta(value))  # which pandas reads, unlike those of Python
    if isinstance(value, np.generic):
        return str(value) if isinstance(value, np.timedelta64) else value.item()
    if isinstance(value, str | bool | int | float | None):
        return value
    return [_plain(one) for one in value] if isinstance(value, Iterable) else str(value)


def same_rule(first: Folds, second: Folds) -> bool:
    """Whether folds hold the same rows out, so that their sums may be added."""
    if isinstance(first, HashFolds | ContiguousFolds):
        # Rows at random, and runs of rows, may be others in each part: any partition of them is as good.
        return type(first) is type(second) and first.n_folds == second.n_folds
    return first.to_dict() == second.to_dict()


def _of_whole(name: str) -> Any:
    """A member of `SomeFolds` that is the same of all the folds."""
    return property(attrgetter(f"whole.{name}"))


@dataclass(frozen=True, eq=False)
class SomeFolds(Folds):
    """Some of the folds of others: without those that have no model."""

    whole: Folds
    kept: tuple[int, ...]
    is_partition = False
    n_sums, total, memberships = map(_of_whole, ("n_sums", "total", "memberships"))
    names, places, words, remedy = map(_of_whole, ("names", "places", "words", "remedy"))
    sums, units, notes = map(_of_whole, ("sums", "units", "notes"))
    rows_are_exchangeable, go_by_places = map(_of_whole, ("rows_are_exchangeable", "go_by_places"))

    @property
    def n_folds(self) -> int:  # type: ignore[override]
        return len(self.kept)

    @property
    def test(self) -> np.ndarray:
        return self.whole.test[list(self.kept)]

    @property
    def train(self) -> np.ndarray:
        return self.whole.train[list(self.kept)]

    def of_dataset(self, rows: RowsOfFolds) -> SomeFolds:
        return replace(self, whole=self.whole.of_dataset(rows))


@dataclass(frozen=True)
class NoFolds(Folds):
    """All rows in one sum, and none held out."""

    n_folds: int = 0
    may_lack = False
    rows_are_exchangeable = True
    words = "no rows"
    n_sums = 1

    def sums(self, keys: Keys) -> Memberships:
        return Memberships(len(keys), np.zeros(len(keys), np.int64))


NO_FOLDS = NoFolds()


def remainders(hashes: np.ndarray, divisor: int) -> np.ndarray:
    """Numbers below a divisor that follow from 64 bits each, with a bias below divisor/2⁶⁴."""
    return (hashes % np.uint64(divisor)).astype(np.int64)


@dataclass(frozen=True)
class HashFolds(Folds):
    """Rows at random: by a hash of the row number, which spreads rasters and periodic orders evenly.

    Parameters
    ----------
    n_folds : int
    seed : int, optional
        By default that of the estimator draws them.
    """

    n_folds: int = 5
    seed: int | None = None
    first_row: int = 0  # number of the first row, where others came before it
    because: str = field(default="", compare=False)  # why other folds that were asked for became these
    may_lack = False
    rows_are_exchangeable = True
    against_groups = "the folds hold out rows at random; use cv=GroupFolds()"

    @property
    def words(self) -> str:
        return "rows at random" + (f", as {self.because}" if self.because else "")

    def __post_init__(self) -> None:
        check_n_folds(self.n_folds)

    def sums(self, keys: Keys) -> Memberships:
        hashes = self.hashed(keys.numbers.astype(np.uint64) + np.uint64(self.first_row))
        # Where a fold is one in more than there are sums, the last one is of all other rows.
        return Memberships(len(keys), np.minimum(remainders(hashes, self.one_in), self.n_sums - 1))

    def after(self, n_rows: int) -> HashFolds:
        return replace(self, first_row=self.first_row + n_rows)


@dataclass(frozen=True)
class AutoFolds(HashFolds):
    """Rows at random, and whole groups of rows that have groups: what a mere number of folds means."""

    is_free: bool = False  # whether a map may have folds of its own

    def of_dataset(self, rows: RowsOfFolds) -> Folds:
        return HashFolds(self.n_folds, self.seed, self.first_row)


@dataclass(frozen=True)
class OneHeldOut(HashFolds):
    """One fold, the first of five by the hash, with a sum of its own and one of all other rows."""

    # Two sums in place of five: where a single fold chooses, as for few rows by "gcv", the others' would only
    # be added up.
    n_sums = 2
    one_in = 5
    against_groups = "alpha='gcv' leaves out one row at a time; use alpha='cv'"


@dataclass(frozen=True)
class ContiguousFolds(Folds):
    """Runs of consecutive rows, for rows that resemble their neighbours, as in a raster or a time series."""

    n_folds: int = 5
    n_rows: int = 0  # of the whole dataset; 0 until it is known
    may_lack = False
    words = "runs of consecutive rows"
    against_groups = "the folds hold out runs of consecutive rows; use cv=GroupFolds()"

    def __post_init__(self) -> None:
        check_n_folds(self.n_folds)

    def of_dataset(self, rows: RowsOfFolds) -> ContiguousFolds:
        super().of_dataset(rows)
        return replace(self, n_rows=rows.n_rows)

    def sums(self, keys: Keys) -> Memberships:
        # ⌊i·K/n⌋: runs of equal length to one row, whatever n and K. Of 64 bits unsigned, as the product may
        # have more than 63.
        scaled = keys.numbers.astype(np.uint64) * np.uint64(self.n_folds)
        return Memberships(len(keys), (scaled // np.uint64(self.n_rows)).astype(np.int64))


NO_GROUP = "drop them, or give each a group of its own"


def group_hashes(values: Any) -> np.ndarray:
    """64 bits for each value of a column of groups, shape (n,), uint64; equal values have equal bits.

    Numbers are equal whatever their type, times whatever their unit or zone, text whatever its length.

    Raises InputError for null values, which it counts.
    """
    values = np.asarray(values)
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "backslashreplace")
    if n_null := int(np.count_nonzero(pd.isna(values))):
        raise InputError(f"{n_null:,} rows or more have no group; {NO_GROUP}")
    if values.dtype.kind in "OU":
        try:
            own, unique = pd.factorize(values)
        except TypeError as error:
            raise InputError(f"groups must be numbers, text or times, got {values[0]!r}") from error
        if len(unique) < len(values):  # text of few groups is hashed once each: a millionth of a second a row
            return group_hashes(unique)[own]
    if values.dtype.kind not in "mMfbiu":
        # As objects, since pandas hashes arrays of fixed length by these.
        found = pd.util.hash_array(np.array([str(value) for value in values], dtype=object))
        # Value by value: an array of them would have a type that hangs on the others of the block.
        is_number = np.array([isinstance(value, _NUMBERS) for value in values], bool)
        bits = np.array([_bits(value) for value in values[is_number]], np.uint64)
        found[is_number] = row_hash(bits, 0)
        return found
    if values.dtype.kind in "mM":
        values = values.astype(f"{values.dtype.kind}8[ns]").view(np.int64)
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
        is_far = ~((values >= -(2.0**63)) & (values < 2.0**64))
        is_whole = (values == np.floor(values)) & ~is_far
        integers = np.where(is_whole, values - 2.0**64 * (values >= 2.0**63), 0).astype(np.int64)
        # The bits of a fraction are as those of some large integer, which no column has beside it.
        bits = np.where(is_whole, integers, values.view(np.int64))
        bits[is_far] = [hash(value) for value in values[is_far].tolist()]
        values = bits
    return row_hash(values.astype(np.uint64), 0)


_NUMBERS = (Real, Decimal, np.bool_, date, timedelta, np.datetime64)  # np.timedelta64 is a Real


def _bits(value: Any) -> int:
    """The bits of a number or a time, as `group_hashes` takes them from an array."""
    if isinstance(value, date | timedelta):
        value = (pd.Timestamp if isinstance(value, date) else pd.Timedelta)(value).to_numpy()
    if isinstance(value, np.datetime64 | np.timedelta64):
        value = value.astype(f"{value.dtype.kind}8[ns]").view(np.int64)
    number = value.item() if isinstance(value, np.generic) else value
    if not -(2**63) <= number < 2**64:
        return hash(number) % 2**64  # Python's, which is the same for equal numbers of any type
    whole = int(number)
    return whole % 2**64 if whole == number else int(np.float64(number).view(np.uint64))


def folds_by(rule: str, n_folds: int, seed: int) -> Folds:
    """The folds of a rule of `FOLD_RULES`, drawn from the seed of a fit; none for a single fold."""
    if n_folds < 2:
        return NO_FOLDS
    return ContiguousFolds(n_folds) if rule == "contiguous" else AutoFolds(n_folds, child_seed(seed, "folds"))
