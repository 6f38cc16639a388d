"""Covariates beside a lattice of frequencies: which columns they are, and how they enter a map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import index
from typing import Any, Self

import numpy as np

from distrff.errors import InputError, ModelFileError, column_called
from distrff.features.base import Sample
from distrff.utils.validation import is_number


@dataclass(frozen=True)
class Trend:
    """The columns of a lattice, and those of the covariates u = (x − centre)/scale, by their numbers.

    A column may be both: a trend along a coordinate.
    """

    places: tuple[int, ...]
    columns: tuple[int, ...]
    centre: tuple[float, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers, sizes = (*self.centre, *self.scale), {*map(len, (self.columns, self.centre, self.scale))}
        is_valid = self.places and sizes == {len(self.columns)} and all(map(is_number, numbers))
        if not is_valid or min((*self.places, *self.columns)) < 0 or not np.isfinite(numbers).all():
            raise ModelFileError("a stored trend is damaged; write the model again")

    @classmethod
    def of(cls, sample: Sample, places: Sequence[int], columns: Sequence[int]) -> Self:
        """The trend in these columns, scaled to mean 0 and deviation 1; raises InputError for a constant."""
        U, s = sample.X[:, list(columns)].astype(np.float64), sample.weights
        centre = s @ U / s.sum()
        scale = np.sqrt(s @ np.square(U - centre) / s.sum())
        # Rounding leaves a constant column some deviation. A trial has one row, which says nothing.
        is_constant = scale <= 1e-12 * np.abs(centre) if len(U) > 1 else np.zeros(len(scale), dtype=bool)
        for j, mean in zip(np.array(columns)[is_constant].tolist(), centre[is_constant], strict=True):
            name = None if sample.column_names is None else sample.column_names[j]
            raise InputError(
                f"{column_called(j, name)} has one value, {mean:g}, in all rows, and can be no covariate; "
                f"leave it out"
            )
        scale = np.where(scale > 0, scale, 1.0)
        return cls(tuple(places), tuple(columns), tuple(centre.tolist()), tuple(scale.tolist()))

    def covariates(self, X: np.ndarray) -> np.ndarray:
        """U of rows along the last axis, float64 of shape (…, p)."""
        return (X[..., list(self.columns)].astype(np.float64) - np.array(self.centre)) / np.array(self.scale)

    def placed(self, X: np.ndarray) -> np.ndarray:
        """The columns of the lattice."""
        return X[..., list(self.places)]

    def placed_sample(self, sample: Sample) -> Sample:
        """The sample with the columns of the lattice, and targets less their trend by least squares."""
        y, names, ranges = sample.y, sample.column_names, sample.column_ranges
        if y is not None and not sample.has_classes:
            U, root = self.covariates(sample.X), np.sqrt(sample.weights)[:, None]
            Y = np.asarray(y, dtype=np.float64).reshape(len(U), -1)
            line = np.linalg.lstsq(root * np.insert(U, 0, 1.0, axis=1), root * Y, rcond=None)[0]
            y = (Y - U @ line[1:]).reshape(np.shape(y))
        return replace(
            sample,
            X=self.placed(sample.X),
            y=y,
            column_names=None if names is None else tuple(names[j] for j in self.places),
            column_ranges=None if ranges is None else self.placed(ranges),
        )

    def to_dict(self) -> dict[str, Any]:
        return {name: list(values) for name, values in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The trend that `to_dict` wrote; raises ModelFileError for anything else."""
        try:
            places, columns = (tuple(map(index, data[name])) for name in ("places", "columns"))
            return cls(places, columns, tuple(data["centre"]), tuple(data["scale"]))
        except (TypeError, KeyError) as error:
            raise ModelFileError(f"a stored trend is damaged ({error!r})") from error
