"""A Gram as a value: add sites or days, take rows away again, keep it in a file, fit machines to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distrff.columns.coding import coding_from_parts, coding_parts
from distrff.columns.scaling import Scaling
from distrff.columns.targets import NumericTargets, Targets
from distrff.errors import InputError, ModelFileError
from distrff.features.registry import specification_from_dict
from distrff.features.specification import MapSpecification
from distrff.model_store.groups import read_group, write_group
from distrff.public_names import public_name
from distrff.solvers.ridge_gram import recoded


@dataclass(frozen=True, eq=False)
class GramStatistics:
    """All that ridge needs to know of some rows.

    Parameters
    ----------
    A : ndarray of shape (n_folds, p, p), float64
        Σ s·ttᵀ over the rows t = [z | 1 | y] of each fold, p = D + 1 + k.
    n_rows : int
    specification : MapSpecification
    scaling : Scaling
    targets : Targets
    dtype : str
        Of the products that were summed.
    tile_rows : int
        Rows a product.
    y_is_1d : bool

    Notes
    -----
    `+` joins disjoint sets of rows, `−` forgets rows that are in the first set; folds are
    joined one by one, but a difference has one fold: which fold a forgotten row was in is
    not known. Both need the same map, scaling and classes, and refuse others.
    """

    A: np.ndarray
    n_rows: int
    specification: MapSpecification
    scaling: Scaling
    targets: Targets
    dtype: str
    tile_rows: int
    y_is_1d: bool

    @property
    def n_folds(self) -> int:
        return len(self.A)

    @property
    def weight(self) -> float:
        """Σs."""
        D = self.specification.n_features
        return float(self.A[:, D, D].sum())

    def __add__(self, other: GramStatistics) -> GramStatistics:
        return self._combine(other, 1)

    def __radd__(self, other: Any) -> GramStatistics:
        """Return the same Gram for 0, so that `sum` joins a list of them."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __repr__(self) -> str:
        return (
            f"<GramStatistics of {self.n_rows:,} rows: {self.specification.n_features} features, "
            f"{self.targets.n_outputs} output(s), {self.n_folds} fold(s), {self.dtype}>"
        )

    def __sub__(self, other: GramStatistics) -> GramStatistics:
        difference = self._combine(other, -1)
        if difference is NotImplemented:
            return NotImplemented
        if difference.n_rows < 0 or difference.weight < 0:
            raise InputError(
                f"cannot take {other.n_rows} rows of weight {other.weight:g} away from {self.n_rows} rows "
                f"of weight {self.weight:g}; they are not among them"
            )
        return difference

    def _combine(self, other: GramStatistics, sign: int) -> GramStatistics:
        if not isinstance(other, GramStatistics):
            return NotImplemented
        self._check_compatible(other)
        moved = other.with_targets(self.targets) if isinstance(self.targets, NumericTargets) else other
        joined = (
            self.A + moved.A if sign > 0 else self.A.sum(0, keepdims=True) - moved.A.sum(0, keepdims=True)
        )
        return replace(
            self,
            A=joined,
            n_rows=self.n_rows + sign * other.n_rows,
            dtype=self.dtype if self.dtype == other.dtype else "float32",
            tile_rows=max(self.tile_rows, other.tile_rows),
        )

    def _check_compatible(self, other: GramStatistics) -> None:
        if self.specification != other.specification:
            raise InputError(
                f"these Grams are of different maps ({_named(self)} and {_named(other)}); "
                f"make the second one with gram(..., like=the first)"
            )
        if not self.scaling.equals(other.scaling):
            raise InputError(
                "these Grams scale their columns differently; "
                "make the second one with gram(..., like=the first)"
            )
        if self.A.shape != other.A.shape:
            raise InputError(
                f"these Grams have shapes {self.A.shape} and {other.A.shape}; "
                f"they need the same number of folds, features and targets"
            )
        if not self.targets.same_kind(other.targets):
            raise InputError(
                "these Grams code their targets differently (other classes or class weights); "
                "make the second one with gram(..., like=the first)"
            )

    def with_targets(self, targets: NumericTargets) -> GramStatistics:
        """Return the same Gram with its numeric targets shifted and scaled as `targets` says.

        Exact to rounding: the coding is a linear map of the rows t.
        """
        ratio = self.targets.scale / targets.scale
        A = recoded(self.A, ratio, (self.targets.shift - targets.shift) / targets.scale)
        return replace(self, A=A, targets=targets)

    def save(
        self, url: str, *, overwrite: bool = False, storage_options: dict[str, Any] | None = None
    ) -> None:
        """Write the Gram as a Zarr group.

        Raises
        ------
        InputError
            If something is there already and `overwrite` is not given.
        """
        arrays, metadata = coding_parts(self.scaling, self.targets)
        arrays |= carried_parts(self.specification)
        metadata |= {
            "specification": self.specification.to_dict(),
            "n_rows": self.n_rows,
            "dtype": self.dtype,
            "tile_rows": self.tile_rows,
            "y_is_1d": self.y_is_1d,
        }
        write_group(
            url,
            {"A": self.A, **arrays},
            metadata,
            kind="gram",
            overwrite=overwrite,
            storage_options=storage_options,
        )

    @classmethod
    def load(cls, url: str, *, storage_options: dict[str, Any] | None = None) -> GramStatistics:
        """Read what `save` wrote.

        Raises
        ------
        ModelFileError
            If it is incomplete, altered, newer, or no Gram.
        """
        arrays, metadata = read_group(url, kind="gram", storage_options=storage_options)
        try:
            scaling, targets = coding_from_parts(arrays, metadata)
            return cls(
                A=arrays["A"],
                specification=with_carried_parts(specification_from_dict(metadata["specification"]), arrays),
                scaling=scaling,
                targets=targets,
                **{name: metadata[name] for name in ("n_rows", "dtype", "tile_rows", "y_is_1d")},
            )
        except KeyError as error:
            raise ModelFileError(f"{public_name(url)} lacks {error}; write the Gram again") from error


def carried_parts(specification: MapSpecification) -> dict[str, np.ndarray]:
    """Return the arrays of a map that come from rows, as a stored Gram names them."""
    specification.check_storable()
    if not specification.carries_arrays:
        return {}
    return {f"map_{name}": A for name, A in specification.checked_arrays().items()}


def with_carried_parts(specification: MapSpecification, arrays: Mapping[str, np.ndarray]) -> MapSpecification:
    """Return the specification with its arrays among those of a stored Gram."""
    own = {name.removeprefix("map_"): A for name, A in arrays.items() if name.startswith("map_")}
    return specification.with_arrays(own) if specification.carries_arrays else specification


def _named(statistics: GramStatistics) -> str:
    specification = statistics.specification.to_dict()
    return ", ".join(f"{key}={value}" for key, value in specification.items() if isinstance(value, str | int))
