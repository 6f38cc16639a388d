"""Passes over the features of rows: their base, rows kept in memory, and few rows' features themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from distrff.engine.reduction import Arrays, Reduction, SharedArrays
from distrff.engine.tasks import CacheForm
from distrff.features.fitted import FittedMap
from distrff.io.dataset import Rows
from distrff.preprocessing.coding import Scaling, Targets
from distrff.utils.linalg import OneHotTile
from distrff.utils.process import check_cancelled


@dataclass(frozen=True, kw_only=True)
class RowReduction(Reduction):
    """A reduction over the features of rows and their coded targets, a tile of rows at a time."""

    specification: FittedMap  # its arrays are sent once for all passes of a run, not with each task
    scaling: Scaling
    targets: Targets
    dtype: str  # of the features; sums of their products are float64
    tile_rows: int  # rows with features in memory at once

    def shared(self) -> SharedArrays:
        return self.specification

    def light(self) -> Self:
        return replace(self, specification=self.specification.without_arrays())

    def ready_map(self, arrays: Arrays) -> FittedMap:
        """The map, made from the arrays sent for it or derived here."""
        return self.specification.build_sent(arrays)

    def scaled(self, X: Any) -> Any:
        """Scaled rows in the dtype of the map."""
        return self.scaling.apply(X, np.dtype(self.dtype))

    def tile_of(self, ready: FittedMap, rows: Any, start: int, X: Any, *, of_basis: bool) -> Any:
        """The features of the tile X of some rows, which begins at row `start`, not to be written to.

        They are those that stayed from an earlier pass, or made here; with `of_basis` the values of the map's
        basis.
        """
        of_basis = of_basis or not ready.has_basis
        if isinstance(rows, CachedRows):
            found = rows.features_at(start, X.shape[0], of_basis=of_basis)
            if found is not None:
                return found
        return (ready.basis_tile if of_basis else ready.tile)(self.scaled(X))


# Rows that stay in a worker's memory from pass to pass, with their features or without them.

if TYPE_CHECKING:  # a stored model's reader, which needs no Dask, comes past here
    from distrff.io.dataset import RowBlock, Rows


class CachedRows:
    """The rows [start, stop) as they were read; `features` holds those of each of their tiles, in order.

    It is no dataclass: Dask would look for tasks in all fields of one, tile by tile.
    """

    def __init__(self, block: RowBlock, tile_rows: int, *, of_basis: bool, features: list[Any]) -> None:
        self.start, self.stop = block.start, block.start + block.X.shape[0]
        self._block, self._tile_rows = block, tile_rows
        self._of_basis, self._features = of_basis, features

    def tiles(self, n_rows: int) -> Iterator[RowBlock]:
        """Yield blocks cut at start, start + n_rows, ...; the last may be shorter. Dense ones are views."""
        for first in range(0, self.stop - self.start, n_rows):
            check_cancelled()
            part = slice(first, first + n_rows)
            given = self._block.X, self._block.y, self._block.sample_weight
            X, y, s = (None if A is None else A[part] for A in given)
            yield self._block._replace(start=self.start + first, X=X, y=y, sample_weight=s)

    def features_at(self, start: int, n_rows: int, *, of_basis: bool) -> Any:
        """Kept features of a tile; None unless these are the ones.

        They are those of the same tiles: a product of more rows or fewer may round otherwise.
        """
        tile, beyond = divmod(start - self.start, self._tile_rows)
        if beyond or of_basis != self._of_basis or tile >= len(self._features):
            return None
        found = self._features[tile]
        return found if len(found) == n_rows else None

    def __sizeof__(self) -> int:
        """The bytes of the arrays, by which Dask judges where a task should run."""
        return sum(map(_bytes_of, [*self._block[1:4], *self._features]))


def _bytes_of(values: Any) -> int:
    if isinstance(values, OneHotTile):
        return values.columns.nbytes
    arrays = (getattr(values, name, None) for name in ("data", "indices", "indptr"))
    parts = [values] if isinstance(values, np.ndarray) else list(arrays)
    return sum(A.nbytes for A in parts if isinstance(A, np.ndarray))


@dataclass(frozen=True, kw_only=True)
class RowKeeping(CacheForm):
    """Keeps decoded rows, and with `with_features` the features of their tiles, in the map's own dtype.

    `of_basis` are the values of the map's basis in their place, as light passes multiply them.
    """

    specification: FittedMap
    scaling: Scaling
    dtype: str
    tile_rows: int
    of_basis: bool
    with_features: bool = True

    def shared(self) -> SharedArrays:
        return self.specification

    def light(self) -> Self:
        return replace(self, specification=self.specification.without_arrays())

    def keep(self, rows: Rows, arrays: Arrays) -> CachedRows:
        (block,) = rows.tiles(rows.stop - rows.start)
        block = block._replace(**{name: _apart(getattr(block, name)) for name in ("X", "y", "sample_weight")})
        if not self.with_features:
            return CachedRows(block, self.tile_rows, of_basis=self.of_basis, features=[])
        ready = self.specification.build_sent(arrays)
        of_basis = self.of_basis or not ready.has_basis
        features = self._features(ready, block.X, of_basis=of_basis)
        return CachedRows(block, self.tile_rows, of_basis=of_basis, features=features)

    def _features(self, ready: FittedMap, X: Any, *, of_basis: bool) -> list[Any]:
        tile_of = ready.basis_tile if of_basis else ready.tile
        firsts = range(0, X.shape[0], self.tile_rows)
        features = []
        for first in firsts:
            check_cancelled()
            tile = self.scaling.apply(X[first : first + self.tile_rows], np.dtype(self.dtype))
            features.append(_copied(tile_of(tile)))  # a map may write its next tile where it wrote this one
        return features


def _apart(A: Any) -> Any:
    """A copy of a part of a larger array, which would stay as a whole."""
    base = A.base if isinstance(A, np.ndarray) else None
    return A.copy(order="K") if isinstance(base, np.ndarray) and base.nbytes > A.nbytes else A


def _copied(tile: Any) -> Any:
    if isinstance(tile, OneHotTile):
        return replace(tile, columns=tile.columns.copy())
    return tile.copy()


# The pass of few rows that returns their features, for what is solved on the Gram of the rows.


@dataclass(frozen=True, eq=False)
class MappedRows:
    """Features, coded targets and weights of rows, in their order."""

    Z: np.ndarray  # (n, D), in the dtype of the map
    Y: np.ndarray  # (n, k)
    s: np.ndarray  # (n,)

    def __add__(self, other: Self) -> Self:
        return type(self)(
            *(np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self))
        )


@dataclass(frozen=True, kw_only=True)
class MappedRowsReduction(RowReduction):
    """Reduction to the `MappedRows`: not a sum that is smaller than its rows, so for few of them alone."""

    def size_bytes(self, n_rows: int) -> int:
        return 8 * n_rows * (self.specification.n_features + self.targets.n_outputs + 1)

    def update(self, total: MappedRows | None, rows: Rows, arrays: Arrays) -> MappedRows | None:
        ready = self.ready_map(arrays)
        for block in rows.tiles(self.tile_rows):
            s = self.targets.row_weights(block.y, block.sample_weight)
            mapped = MappedRows(
                Z=ready.apply(self.scaled(block.X)),
                Y=self.targets.encode(block.y),
                s=np.ones(block.X.shape[0]) if s is None else s,
            )
            total = self.merge(total, mapped)
        return total
