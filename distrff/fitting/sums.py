"""Sums of rows as values: add those of sites or days, subtract rows, keep them in a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from distrff.errors import InputError, ModelFileError, column_called
from distrff.features.fitted import FittedMap, Trait, map_from_dict, named_to_send, sent_arrays
from distrff.io.storage import contents_of, read_group, refuse_others, write_group
from distrff.model.persistence import COLUMN_CHECKS
from distrff.preprocessing.coding import (
    Moments,
    NumericTargets,
    Scaling,
    Targets,
    coding_from_parts,
    coding_parts,
)
from distrff.preprocessing.folds import Folds, HashFolds, same_rule
from distrff.preprocessing.splits import folds_from_dict
from distrff.preprocessing.table import TableSteps, refuse_other_steps
from distrff.solvers.ridge import combined, recoded
from distrff.utils.arrays import in_one_layout
from distrff.utils.text import in_one_line, listed
from distrff.utils.validation import check_count, one_of

LIKE_THE_FIRST = "make the second one like the first (`like` of gram, --like of distrff gram)"
"""The remedy for sums that cannot be added."""
WEIGHT_ROUNDING = 1e-8
"""Of sums of weights, which may come from transforms."""


class OfTable(Protocol):
    """Sums or rows that know the columns of a table."""

    @property
    def column_names(self) -> tuple[str, ...] | None: ...

    @property
    def steps(self) -> TableSteps | None: ...


def check_same_table(first: OfTable, second: OfTable) -> None:
    """Raise InputError where both know their columns, or the steps that made them, and these differ."""
    # First, as it names the raw column.
    remedy = "open the table with the steps of the first dataset"
    refuse_other_steps(first.steps, second.steps, "the table", remedy)
    names, others = first.column_names, second.column_names
    if names is not None and others is not None and names != others:
        raise InputError(
            f"The feature names should match those of the first rows: got the columns {listed(others)}, "
            f"expected {listed(names)} in this order"
        )


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class RowSums(ABC):
    """The sums over some rows that ridge needs, with what made the features and targets of the rows."""

    n_rows: int
    specification: FittedMap
    scaling: Scaling
    targets: Targets
    y_is_1d: bool
    column_names: tuple[str, ...] | None = None
    steps: TableSteps | None = None
    folds: Folds | None = None  # by which rows were summed; None of a difference or an earlier file

    kind: ClassVar[str]
    """Of its file."""
    own_arrays: ClassVar[tuple[str, ...]]
    """Names of the sums in a file."""
    words: ClassVar[tuple[str, str, str]]
    """How messages begin on these sums, on the first of two and on both."""

    @property
    def n_columns(self) -> int:
        return self.specification.n_columns

    @property
    @abstractmethod
    def n_sums(self) -> int: ...

    @property
    @abstractmethod
    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Σs, Σs·y and Σs·y² of each sum: (n_sums,), and twice (n_sums, k), of coded targets."""

    @property
    def weight(self) -> float:
        """Σs of all rows."""
        return float((self.by_folds.total * self.moments[0]).sum())

    def judged(self, targets: Moments, folds: Folds) -> Moments:
        """Moments of numeric targets in which a row counts once for each of the folds that judges it.

        `targets` are those of all rows, and the result where each row is judged once.
        """
        judges = folds.test.sum(axis=0, dtype=float)
        if np.array_equal(judges, folds.total):
            return targets
        s, sy, syy = (judges @ of_sums for of_sums in self.moments)
        squares = np.square(self.targets.scale) * np.maximum(syy - sy**2 / s, 0.0)
        return replace(targets, weight=float(s), squares=squares, small=np.zeros(len(squares), bool))

    @property
    def by_folds(self) -> Folds:
        """The folds by these sums: of an unknown rule one a sum."""
        return HashFolds(self.n_sums) if self.folds is None else self.folds

    @property
    def n_folds(self) -> int:
        """1 where no rows are held out."""
        return max(1, self.by_folds.n_folds)

    @abstractmethod
    def _check_map(self, other: Self) -> None:
        """Raise InputError for sums of another map."""

    @abstractmethod
    def _recoded(self, ratio: np.ndarray, offset: np.ndarray) -> Self:
        """The sums for the coded targets ratio·y + offset."""

    def with_targets(self, targets: NumericTargets) -> Self:
        """The same sums with their numeric targets shifted and scaled as in `targets`.

        It is exact up to rounding: the coding is a linear map of the rows.
        """
        # Both codings are (y − shift)/scale, so the new target is ratio·old + offset.
        ratio = self.targets.scale / targets.scale
        offset = (self.targets.shift - targets.shift) / targets.scale
        return replace(self._recoded(ratio, offset), targets=targets)

    def _of_one_kind(self, other: Self) -> Self:
        """The other sums with targets coded as these; raises InputError where they cannot be combined."""
        self._check_map(other)
        are_numbers = self.targets.kind == other.targets.kind == "numeric"
        if are_numbers and self.targets.n_outputs != other.targets.n_outputs:
            raise InputError(
                f"{self.words[2]} have {self.targets.n_outputs} and {other.targets.n_outputs} targets; "
                f"{LIKE_THE_FIRST}"
            )
        if not self.targets.same_kind(other.targets):
            raise InputError(
                f"{self.words[2]} code their targets differently (other classes or class weights); "
                f"{LIKE_THE_FIRST}"
            )
        check_same_table(self, other)
        if self.folds is not None and other.folds is not None and not same_rule(self.folds, other.folds):
            first, second = (f"{one.n_folds} fold(s) of {one.words}" for one in (self.folds, other.folds))
            raise InputError(
                f"{self.words[2]} hold out other rows ({first}, and {second}), or the same by another "
                f"dealing; {LIKE_THE_FIRST}"
            )
        return other.with_targets(self.targets) if isinstance(self.targets, NumericTargets) else other

    @abstractmethod
    def _joined(self, other: Self) -> Self:
        """The sums of both, fold by fold; the rows are counted later."""

    @abstractmethod
    def _rest(self, other: Self) -> Self:
        """The sums without the other ones, in one fold."""

    def __add__(self, other: Any) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        coded = self._of_one_kind(other)
        if other.n_sums != self.n_sums:
            raise InputError(f"{self.words[2]} have {self.n_sums} and {other.n_sums} folds; {LIKE_THE_FIRST}")
        return replace(self._joined(coded), n_rows=self.n_rows + other.n_rows)

    def __radd__(self, other: Any) -> Self:
        """The same sums for 0, so that `sum` joins a list of them."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: Any) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        coded = self._of_one_kind(other)
        if other.n_rows > self.n_rows or other.weight > self.weight * (1 + WEIGHT_ROUNDING):
            raise InputError(
                f"cannot subtract {other.n_rows} rows of weight {other.weight:g} from {self.n_rows} rows "
                f"of weight {self.weight:g}; subtract rows that {self.words[1]}"
            )
        return replace(self._rest(coded), n_rows=self.n_rows - other.n_rows)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.n_rows:,} rows: {self.specification.n_features} features, "
            f"{self.targets.n_outputs} output(s), {self.n_folds} fold(s)>"
        )

    def check_for(self, target_kind: str) -> None:
        """Raise InputError unless models for "numeric" or "classes" can be fitted."""
        this = self.words[0]
        has_classes = self.targets.kind != "numeric"
        if has_classes != (target_kind == "classes"):
            raise InputError(
                f"{this} class labels as targets; use KernelRidgeClassifier"
                if has_classes
                else f"{this} numbers as targets; use KernelRidge, or targets='classes' in gram"
            )
        if self.n_rows < 1 or not self.weight > 0:
            raise InputError(f"{this} {self.n_rows} rows of weight {self.weight:g}; add rows before fitting")

    @abstractmethod
    def _parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and strict JSON of a file."""

    @classmethod
    @abstractmethod
    def _from_parts(
        cls,
        arrays: Mapping[str, np.ndarray],
        metadata: Mapping[str, Any],
        specification: FittedMap,
        targets: Targets,
    ) -> dict[str, Any]:
        """The fields that only this kind has; raises ModelFileError if the parts do not fit together."""

    def save(
        self, url: str, *, overwrite: bool = False, storage_options: dict[str, Any] | None = None
    ) -> None:
        """Write the sums as a Zarr group.

        Raises
        ------
        InputError
            If something is there already and `overwrite` is not given.
        """
        self.specification.check_storable()
        arrays, metadata = coding_parts(self.scaling, self.targets)
        own_arrays, own = self._parts()
        metadata |= {
            "specification": self.specification.to_dict(),
            "y_is_1d": self.y_is_1d,
            "column_names": None if self.column_names is None else list(self.column_names),
            "steps": None if self.steps is None else self.steps.to_dict(),
            "folds": None if self.folds is None else self.folds.to_dict(),
        }
        write_group(
            url,
            own_arrays | arrays,
            metadata | own,
            kind=self.kind,
            overwrite=overwrite,
            storage_options=storage_options,
        )

    @classmethod
    def load(cls, url: str, *, storage_options: dict[str, Any] | None = None) -> Self:
        """Read what `save` wrote.

        Raises
        ------
        ModelFileError
            If it is incomplete, altered, newer, or something else.
        """
        return cls.of_group(url, *read_group(url, kind=cls.kind, storage_options=storage_options))

    @classmethod
    def of_group(cls, url: str, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Self:
        """The sums of a group read from `url`; raises ModelFileError if its parts do not fit together.

        Arrays of a map that follow from its seed are not derived.
        """
        with contents_of(url, cls.kind):
            scaling, targets = coding_from_parts(arrays, metadata)
            specification = map_from_dict(metadata["specification"])
            of_map = sent_arrays(arrays) if Trait.FROM_ROWS in specification.traits else {}
            refuse_others(
                arrays, {*cls.own_arrays, *coding_parts(scaling, targets)[0], *named_to_send(of_map)}
            )
            own = cls._from_parts(arrays, metadata, specification, targets)
            # Files of earlier versions have neither these nor names.
            steps, folds = metadata.get("steps"), metadata.get("folds")
            shared = {
                "scaling": scaling,
                "targets": targets,
                "y_is_1d": metadata["y_is_1d"],
                "column_names": metadata.get("column_names"),
                "steps": None if steps is None else TableSteps.from_dict(steps),
                "folds": None if folds is None else folds_from_dict(folds),
            }
            found = cls(**{"specification": specification} | shared | own)
            # Before anything is derived from the sizes in the file, which may be forged.
            found._check_parts(sum(A.size for A in arrays.values()))
            if of_map:
                # The digest in the file may belong to other arrays, as in a model.
                specification = specification.with_arrays(of_map).digested(of_map)
                _check_map(specification, of_map)
            names = found.column_names
            return replace(
                found, specification=specification, column_names=None if names is None else tuple(names)
            )

    def _check_parts(self, n_stored: int) -> None:
        """Raise ModelFileError unless map, coding and columns fit together.

        The number of features is one that the sums have, of `n_stored` numbers in all.
        """
        specification = self.specification
        if not specification.has_columns_within(n_stored):
            raise ModelFileError(
                "its number of columns is not a positive integer, or too large for what is stored"
            )
        check_count("the number of features", specification.n_features)
        if not self.targets.fits(self.targets.n_outputs):
            raise ModelFileError("its targets do not fit together")
        if self.folds is not None and self.folds.n_sums != self.n_sums:
            raise ModelFileError(f"its folds have {self.folds.n_sums} sums, and there are {self.n_sums}")
        if not isinstance(self.y_is_1d, bool):
            raise ModelFileError("it does not tell whether targets have one dimension")
        for wrong, holds in COLUMN_CHECKS.items():
            if not holds(self):
                raise ModelFileError(wrong)
        # These use the kernel and all sizes, as a fit would.
        _ = hash(specification), specification.cost, specification.at_zero


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class GramStatistics(RowSums):
    """The sums over some rows that ridge needs.

    Parameters
    ----------
    A : ndarray of shape (n_sums, p, p), float64
        Σ s·ttᵀ over the rows t = [z | 1 | y] of each sum that the folds take, p = D + 1 + k.
    specification, scaling, targets
        What made the features and the coded targets of the rows.
    dtype : str
        Of the products that were summed.
    tile_rows : int
        Rows a product.
    folds : Folds or None
        By which rows were summed; None of a difference, or of files of earlier versions.
    steps : TableSteps or None
        What made X, y and weights from the raw columns of a table; models of the sums take raw rows by it.

    Notes
    -----
    `+` joins disjoint sets of rows, fold by fold. `−` subtracts rows of the first set; a
    difference has one fold, as the fold of a subtracted row is not known. Both need the
    same map, scaling and classes, and refuse others.
    """

    A: np.ndarray
    dtype: str
    tile_rows: int

    kind: ClassVar[str] = "gram"
    own_arrays: ClassVar[tuple[str, ...]] = ("A",)
    words: ClassVar[tuple[str, str, str]] = "this Gram has", "the first Gram holds", "these Grams"

    @property
    def n_sums(self) -> int:
        return len(self.A)

    @property
    def whole(self) -> np.ndarray:
        """The Gram of all rows, (p, p)."""
        return combined([self.A], self.by_folds.total)

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        D = self.specification.n_features
        return self.A[:, D, D], self.A[:, D, D + 1 :], np.diagonal(self.A, 0, 1, 2)[:, D + 1 :]

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.dtype}>"

    def _check_map(self, other: GramStatistics) -> None:
        if self.specification != other.specification:
            differing = _differing(self, other)
            raise InputError(f"these Grams are of different maps ({differing}); {LIKE_THE_FIRST}")
        if not self.scaling.equals(other.scaling):
            raise InputError(
                f"these Grams scale their columns differently{_scaled(self, other)}; {LIKE_THE_FIRST}"
            )

    def _recoded(self, ratio: np.ndarray, offset: np.ndarray) -> GramStatistics:
        return replace(self, A=recoded(self.A, ratio, offset))

    def _joined(self, other: GramStatistics) -> GramStatistics:
        return self._combined(other, self.A + other.A)

    def _rest(self, other: GramStatistics) -> GramStatistics:
        # The difference of two sums, and not of folds: nobody knows in which fold the forgotten rows were.
        return replace(self._combined(other, (self.whole - other.whole)[None]), folds=None)

    def _combined(self, other: GramStatistics, A: np.ndarray) -> GramStatistics:
        # The sum has the rounding of its coarser part: float32, and the products of more rows.
        dtype = self.dtype if self.dtype == other.dtype else "float32"
        return replace(self, A=A, dtype=dtype, tile_rows=max(self.tile_rows, other.tile_rows))

    def _parts(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        has_arrays = Trait.FROM_ROWS in self.specification.traits
        arrays = {"A": self.A, **self.specification.arrays_to_send(derived=has_arrays)}
        return arrays, {"n_rows": self.n_rows, "dtype": self.dtype, "tile_rows": self.tile_rows}

    @classmethod
    def _from_parts(
        cls,
        arrays: Mapping[str, np.ndarray],
        metadata: Mapping[str, Any],
        specification: FittedMap,
        targets: Targets,
    ) -> dict[str, Any]:
        fields = {name: metadata[name] for name in ("n_rows", "dtype", "tile_rows")}
        check_count("n_rows", fields["n_rows"], 0)
        check_count("tile_rows", fields["tile_rows"])
        one_of("dtype", fields["dtype"], ("float32", "float64"))
        A, p = arrays["A"], specification.n_features + 1 + targets.n_outputs
        if A.dtype != np.float64 or A.ndim != 3 or not len(A) or A.shape[1:] != (p, p):
            raise ModelFileError(f"its sums are {A.dtype} of shape {A.shape}, not of (folds, {p}, {p})")
        return fields | {"A": A}


def _check_map(specification: FittedMap, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ModelFileError unless these arrays make the map."""
    with np.errstate(all="ignore"):
        ready = specification.ready({name: in_one_layout(A) for name, A in arrays.items()})
        b = ready.basis(specification.example)  # of landmarks without their factor
    if ready.n_features != specification.n_features or b.shape != (1, ready.n_basis):
        raise ModelFileError("the arrays of its map do not fit its sizes")


def _differing(first: GramStatistics, second: GramStatistics) -> str:
    """The parameters in which two maps differ, with both values."""
    one, other = first.specification.to_dict(), second.specification.to_dict()
    # A digest says no more than that arrays differ.
    names = [name for name in {**one, **other} if name != "digest" and one.get(name) != other.get(name)]
    found = [f"{name}: {one.get(name)} and {other.get(name)}" for name in names]
    return in_one_line("; ".join(found)) or "their frequencies or landmarks"


def _scaled(first: GramStatistics, second: GramStatistics) -> str:
    """The first column that is scaled otherwise, with both ways."""
    for name, words in (("shift", "by a shift of"), ("scale", "by a scale of")):
        one, other = getattr(first.scaling, name), getattr(second.scaling, name)
        if (one is None) != (other is None):
            return f": one has a {name} and the other none"
        if one is not None and (j := np.flatnonzero(one != other)).size:
            names = first.column_names
            called = column_called(int(j[0]), None if names is None else names[j[0]])
            return f": {called} {words} {one[j[0]]:.6g} and of {other[j[0]]:.6g}"
    return ""
