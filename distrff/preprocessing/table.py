"""The steps from the raw columns of a table to X, y and weights, which a model carries with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from distrff.errors import InputError, ModelFileError
from distrff.preprocessing.encoders import (
    CyclicTimeEncoder,
    HashedStep,
    NumberStep,
    OneHotEncoder,
    RawColumn,
    SecondsStep,
    TargetStep,
    refuse_missing,
)
from distrff.preprocessing.words import Unseen, number_in
from distrff.utils.text import listed
from distrff.utils.validation import FEW_COLUMNS

ColumnStep = NumberStep | OneHotEncoder | HashedStep | SecondsStep | CyclicTimeEncoder
_KINDS: dict[str, Any] = {
    step.kind: step for step in (NumberStep, OneHotEncoder, HashedStep, SecondsStep, CyclicTimeEncoder)
}
FIELDS = ("X", "y", "sample_weight")


@dataclass(frozen=True)
class TableSteps:
    """How each raw column becomes columns of X, y or weights; the same wherever it is applied.

    Parameters
    ----------
    weight : str or None
        The raw column of sample weights.
    drops_missing : bool
        Whether rows in which one of the raw columns has no value are left out.
    chosen : tuple of int, or None
        Positions of those columns made that X has; None for all.
    keeps_incomplete : bool
        Whether a row that lacks a value of X, where no step fills it, is kept as a row of NaN. Never stored.
    """

    columns: tuple[ColumnStep, ...]
    target: TargetStep | None = None
    weight: str | None = None
    drops_missing: bool = False
    chosen: tuple[int, ...] | None = None
    keeps_incomplete: bool = False

    def sizes_within(self, max_columns: int) -> bool:
        """Whether no step of a list or of hashed words makes more than `max_columns` columns.

        A damaged file may hold any number, and `names_out` would list that many names.
        """
        sizes = [getattr(step, size, 0) for step in self.columns for size in ("width", "n_places")]
        return all(isinstance(size, int) and 0 <= size <= max_columns for size in sizes)

    @property
    def names_out(self) -> tuple[str, ...]:
        """Names of the columns of X."""
        names = [name for step in self.columns for name in step.names_out]
        return tuple(names) if self.chosen is None else tuple(names[i] for i in self.chosen)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of X: NumPy's common type of the columns made; a float where rows may be NaN."""
        dtypes = [np.dtype(step.dtype) for step in self.columns]
        return np.result_type(*dtypes, *([np.float32] if self.keeps_incomplete else []))

    @property
    def raw_names(self) -> tuple[str, ...]:
        """Names of the raw columns that are read: of X, then of y and weights."""
        target = () if self.target is None else self.target.names
        weight = () if self.weight is None else (self.weight,)
        return tuple(dict.fromkeys([*(step.name for step in self.columns), *target, *weight]))

    @property
    def text_names(self) -> tuple[str, ...]:
        """Names of the raw columns that are read as text, and do not only hold numbers."""
        of_y = self.target.names if self.target is not None and self.target.kind == "labels" else ()
        numbers = {n for n, step in self.categories.items() if None not in map(number_in, step.categories)}
        return (*(s.name for s in self.columns if s.reads == "text" and s.name not in numbers), *of_y)

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the raw columns that leave out a row in which they have no value.

        Where the steps fill missing values these are the targets: a mean would be learnt as if it were true.
        """
        if self.drops_missing:
            return self.raw_names
        fills = all(step.fill is not None for step in self.columns)
        return self.target.names if fills and self.target is not None else ()

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of X, y and weights."""
        target = 0 if self.target is None else len(self.target.names) * np.dtype(self.target.dtype).itemsize
        return len(self.names_out) * self.dtype.itemsize + target + 8 * (self.weight is not None)

    def check_names(self, names: Iterable[str], source: str) -> None:
        """Raise InputError if a raw column is not among `names`, which may have any order."""
        names = dict.fromkeys(names)
        lacking = [name for name in self.raw_names if name not in names]
        if lacking:
            raise InputError(
                f"{source} has no column {lacking[0]!r}, which the model's steps need; "
                f"it has: {listed(names)}"
            )

    @property
    def categories(self) -> dict[str, OneHotEncoder]:
        """The steps of columns of categories, by the names of these."""
        return {step.name: step for step in self.columns if isinstance(step, OneHotEncoder)}

    @property
    def names_of_unseen(self) -> tuple[str, ...]:
        """Names of the raw columns that `unseen` reads."""
        return tuple(dict.fromkeys([*self.categories, *self.required])) if self.categories else ()

    def unseen(self, raw: Mapping[str, RawColumn]) -> dict[str, Unseen]:
        """Kept rows with categories that the fit never saw, by column with any."""
        kept = self.kept(raw)
        found = {
            name: step.unseen(raw[name] if kept is None else raw[name].take(kept))
            for name, step in self.categories.items()
        }
        return {name: unseen for name, unseen in found.items() if unseen.n_rows}

    def kept(self, raw: Mapping[str, RawColumn]) -> np.ndarray | None:
        """Mask of kept rows, of shape (r,); None for all."""
        return complete_rows([raw[name] for name in self.required])

    def apply(
        self, raw: Mapping[str, RawColumn], *, first_row: int = 0, fields: tuple[str, ...] = FIELDS
    ) -> dict[str, np.ndarray]:
        """X, y and sample_weight of the rows that are kept, by name; y and weights if there are any.

        `raw` holds at least the columns of `raw_names`, all of the same rows; in messages the first row has
        the number `first_row`. `fields` says what to make; the kept rows do not depend on it. Raises
        NonFiniteError, naming the first missing value without a fill, and InputError if the kind of a column
        has changed since its step was made.
        """
        kept = self.kept(raw)
        if kept is not None:
            raw = {name: raw[name].take(kept) for name in self.raw_names}
        made = {}
        if "X" in fields:
            made["X"] = self._rows(raw, first_row)
        if "y" in fields and self.target is not None:
            made["y"] = self.target.apply(raw, first_row)
        if "sample_weight" in fields and self.weight is not None:
            made["sample_weight"] = self._weights(raw, first_row)
        return made

    def _rows(self, raw: Mapping[str, RawColumn], first_row: int) -> np.ndarray:
        complete = None
        if self.keeps_incomplete:
            complete = complete_rows([raw[step.name] for step in self.columns if step.fill is None])
        if complete is None:
            return self._encoded(raw, first_row)
        X = np.full((len(complete), len(self.names_out)), np.nan, self.dtype)
        X[complete] = self._encoded({name: column.take(complete) for name, column in raw.items()}, first_row)
        return X

    def _encoded(self, raw: Mapping[str, RawColumn], first_row: int) -> np.ndarray:
        n_rows = len(raw[self.columns[0].name])
        widths = [len(step.names_out) for step in self.columns]
        X = np.empty((n_rows, sum(widths)), self.dtype)
        at = 0
        for step, width in zip(self.columns, widths, strict=True):
            step.encode(raw[step.name].of_kind(step.reads, step.name), X[:, at : at + width], first_row)
            at += width
        return X if self.chosen is None else X[:, self.chosen]

    def _weights(self, raw: Mapping[str, RawColumn], first_row: int) -> np.ndarray:
        assert self.weight is not None
        column = raw[self.weight].of_kind("number", self.weight)
        refuse_missing(self.weight, column.missing(), first_row)
        if column.values.ndim > 1:
            raise InputError(
                f"column {self.weight!r} holds lists, which cannot be weights; name a column of numbers"
            )
        return column.values.astype(np.float64)

    def of_columns(self, positions: Iterable[int]) -> TableSteps:
        """Steps that make some of the columns of X, in the order given."""
        before = range(len(self.names_out)) if self.chosen is None else self.chosen
        return replace(self, chosen=tuple(before[i] for i in positions))

    def for_prediction(self) -> TableSteps:
        """Steps that make X alone and leave out no row: one that the fit would drop is NaN."""
        return replace(
            self, target=None, weight=None, drops_missing=False, keeps_incomplete=self.drops_missing
        )

    def for_other_rows(self) -> TableSteps:
        """Steps for other rows than the fit's: columns of integers and booleans take fractions."""
        columns = (
            replace(step, dtype=str(np.result_type(step.dtype, np.float32)))
            if isinstance(step, NumberStep) and np.dtype(step.dtype).kind in "iub"
            else step
            for step in self.columns
        )
        return replace(self, columns=tuple(columns))

    def for_names(self, names: Iterable[str]) -> TableSteps:
        """Steps for a table of these raw columns: those for prediction if it has no target.

        A target of several columns must be there whole or not at all.
        """
        if self.target is None or not set(self.target.names).isdisjoint(names):
            return self
        return self.for_prediction()

    def to_dict(self) -> dict[str, Any]:
        """Steps as strict JSON data."""
        columns = [{"step": step.kind, **asdict(step)} for step in self.columns]
        data = asdict(self) | {"columns": columns}
        del data["keeps_incomplete"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TableSteps:
        """Steps from the result of `to_dict`.

        Raises ModelFileError for an unknown kind of step.
        """
        target = data["target"]
        return cls(
            columns=tuple(map(_step_of, data["columns"])),
            target=None if target is None else TargetStep(**_with_tuples(target)),
            weight=data["weight"],
            drops_missing=data["drops_missing"],
            chosen=None if data["chosen"] is None else tuple(data["chosen"]),
        )


def complete_rows(columns: Iterable[RawColumn]) -> np.ndarray | None:
    """Rows in which no value is missing, as a bool array of shape (r,); None for all."""
    masks = [mask for column in columns if (mask := column.missing_rows()) is not None]
    return ~np.logical_or.reduce(masks) if masks else None


def _step_of(data: Mapping[str, Any]) -> ColumnStep:
    values = dict(data)
    kind = values.pop("step")
    if kind not in _KINDS:
        raise ModelFileError(f"the step {kind!r} for columns is not known; update distrff")
    return _KINDS[kind](**_with_tuples(values))


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def names_fit(names: Any, n_columns: int) -> bool:
    """Whether column names of a file, if it has any, are one text for each column."""
    return names is None or (len(names) == n_columns and all(isinstance(name, str) for name in names))


def steps_fit(steps: TableSteps | None, n_columns: int) -> bool:
    """Whether table steps of a file, if it has any, make so many columns."""
    return steps is None or (
        steps.sizes_within(max(FEW_COLUMNS, n_columns)) and len(steps.names_out) == n_columns
    )
