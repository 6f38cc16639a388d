"""The sweep of hard-margin machines: the rows of smallest margin, with what they say of all others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.columns.row_matrices import chosen_rows, joined_rows
from distrff.columns.scaling import Scaling
from distrff.columns.targets import ClassTargets
from distrff.data.rows import RowBlock, Rows
from distrff.errors import InputError
from distrff.features.specification import MapSpecification
from distrff.objective.thin_products import values_of
from distrff.scratch import scratch
from distrff.solvers.hard_margin import CriticalRows
from distrff.sweeps.margins import map_arrays
from distrff.sweeps.reduction import Shipped


@dataclass(frozen=True, eq=False)
class SideRows:
    """Rows of one machine and one label, by ascending margin; equal margins by row number.

    Attributes
    ----------
    number : ndarray of shape (r,), int64
    X : ndarray of shape (r, d)
        As they were read.
    margin : ndarray of shape (r,), float64
    """

    number: np.ndarray
    X: np.ndarray
    margin: np.ndarray

    def merge(self, other: SideRows, n_kept: int) -> SideRows:
        """Return the rows of smallest margin of both."""
        if not len(other.number):
            return self
        number = np.concatenate([self.number, other.number])
        margin = np.concatenate([self.margin, other.margin])
        kept = np.lexsort((number, margin))[:n_kept]
        return SideRows(number[kept], joined_rows([self.X, other.X])[kept], margin[kept])


@dataclass(frozen=True, eq=False)
class SmallestMargins:
    """What a sweep found at one point of each of k machines; rows of weight 0 do not count.

    Attributes
    ----------
    sides : tuple of k pairs of SideRows
        Of the rows of label 1 and of label −1.
    n_violating : ndarray of shape (k,), int64
        Rows whose margin is below 1.
    largest_norm : float
        Of z.
    """

    sides: tuple[tuple[SideRows, SideRows], ...]
    n_violating: np.ndarray
    largest_norm: float

    def rows(self, output: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return number (r,), X (r, d), label (r,) and margin (r,) of one machine's rows, label 1 first."""
        above, below = self.sides[output]
        label = np.repeat([1.0, -1.0], [len(above.number), len(below.number)])
        return (
            np.concatenate([above.number, below.number]),
            joined_rows([above.X, below.X]),
            label,
            np.concatenate([above.margin, below.margin]),
        )

    def merge(self, other: SmallestMargins, n_kept: int) -> SmallestMargins:
        """Return what both found."""
        sides = tuple(
            (mine[0].merge(theirs[0], n_kept), mine[1].merge(theirs[1], n_kept))
            for mine, theirs in zip(self.sides, other.sides, strict=True)
        )
        norm = max(self.largest_norm, other.largest_norm)
        return SmallestMargins(sides, self.n_violating + other.n_violating, norm)


@dataclass(frozen=True)
class SmallestMarginsReduction:
    """Reduction to the `SmallestMargins` of machines whose coefficients are shipped.

    Parameters
    ----------
    specification : MapSpecification
    scaling : Scaling
    targets : ClassTargets
    dtype : {"float32", "float64"}
        Of the features and of their products.
    tile_rows : int
    outputs : tuple of int
        Which of the targets the machines are for.
    n_kept : int
        Rows to keep of each label of each machine.

    Notes
    -----
    Shipped are `coef` of shape (D, k) and `intercept` of shape (k,), with the map's arrays where they are not
    derived. A row costs 2dD + 2D(k + 1) flops and D cosines.
    """

    specification: MapSpecification
    scaling: Scaling
    targets: ClassTargets
    dtype: str
    tile_rows: int
    outputs: tuple[int, ...]
    n_kept: int

    def size_bytes(self, n_rows: int) -> int:
        row_bytes = 8 * self.specification.n_columns + 16
        return len(self.outputs) * (min(2 * self.n_kept, n_rows) * row_bytes + 8) + 8

    def zero(self) -> SmallestMargins | None:
        return None

    def finish(self, accumulator: SmallestMargins | None) -> SmallestMargins | None:
        return accumulator

    def merge(self, first: SmallestMargins | None, second: SmallestMargins | None) -> SmallestMargins | None:
        if first is None or second is None:
            return second if first is None else first
        return first.merge(second, self.n_kept)

    def update(self, found: SmallestMargins | None, rows: Rows, shipped: Shipped) -> SmallestMargins | None:
        assert shipped is not None
        dtype = np.dtype(self.dtype)
        block_map = self.specification.build(map_arrays(shipped))
        coef, intercept = shipped["coef"].astype(dtype), shipped["intercept"]
        n_rows = min(self.tile_rows, rows.stop - rows.start)
        buffer = scratch("tile", n_rows, self.specification.n_features, dtype)
        for block in rows.tiles(self.tile_rows):
            Z = buffer[: block.X.shape[0]]
            block_map.apply(self.scaling.apply(block.X, dtype), out=Z)
            F = values_of(Z, coef) + intercept
            found = self.merge(found, self._of_tile(block, Z, F, found))
        return found

    def critical_rows(self, found: SmallestMargins, position: int) -> CriticalRows:
        """Return what was found at the point of one of the outputs, with features made again here."""
        number, X, label, margin = found.rows(position)
        Z = self.specification.build().apply(self.scaling.apply(X, np.dtype(self.dtype)))
        n_violating = int(found.n_violating[position])
        return CriticalRows(number, Z.astype(np.float64), label, margin, n_violating, found.largest_norm)

    def _of_tile(
        self, block: RowBlock, Z: np.ndarray, F: np.ndarray, found: SmallestMargins | None
    ) -> SmallestMargins:
        """Return what one tile adds to what was found before it."""
        if not np.isfinite(F).all():
            raise InputError(f"the machine's values are too large for {self.dtype}; use dtype='float64'")
        Y = self.targets.encode(block.y)[:, list(self.outputs)]
        s = self.targets.row_weights(block.y, block.sample_weight)
        counts = np.ones(len(Z), dtype=bool) if s is None else s > 0
        M = Y * F
        sides = tuple(
            (
                self._side(
                    block, M[:, j], counts & (Y[:, j] > 0), None if found is None else found.sides[j][0]
                ),
                self._side(
                    block, M[:, j], counts & (Y[:, j] < 0), None if found is None else found.sides[j][1]
                ),
            )
            for j in range(M.shape[1])
        )
        squares = np.einsum("ij,ij->i", Z, Z)
        norm = float(np.sqrt(squares[counts].max(initial=0.0)))
        return SmallestMargins(sides, np.count_nonzero((M < 1) & counts[:, None], axis=0), norm)

    def _side(
        self, block: RowBlock, margin: np.ndarray, counts: np.ndarray, before: SideRows | None
    ) -> SideRows:
        """Return the rows of a tile that may be among the smallest, given the ones of earlier rows."""
        if before is not None and len(before.margin) == self.n_kept:
            counts = counts & (margin < before.margin[-1])
        rows = np.flatnonzero(counts)
        rows = rows[np.lexsort((rows, margin[rows]))[: self.n_kept]]
        return SideRows(block.start + rows.astype(np.int64), chosen_rows(block.X, rows), margin[rows])
