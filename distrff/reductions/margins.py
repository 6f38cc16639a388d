"""Light sweeps: what one pass over the rows tells of problems at one point each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from distrff.engine.reduction import Arrays
from distrff.errors import InputError
from distrff.io.rows import RowBlock, Rows
from distrff.preprocessing.targets import ClassTargets
from distrff.reductions.base import Folds, RowReduction
from distrff.solvers.hard_margin import CriticalRows
from distrff.solvers.losses import Loss
from distrff.solvers.objective import (
    MarginSums,
    RowWeights,
    SoftmaxSums,
    margin_sums,
    sided_weights,
    softmax_slopes,
    softmax_sums,
    weighted_sum,
)
from distrff.utils.arrays import chosen_rows, joined_rows
from distrff.utils.jit import scratch
from distrff.utils.products import add_transposed_product, values_of, zero_sums

_MOST_BLOCK_TILES, _MOST_BLOCK_VALUES = 8, 15 * 2**10  # 120 KiB: from 128 arrays are fresh memory each time


@dataclass(frozen=True, kw_only=True)
class LightReduction(RowReduction):
    """What light passes share: the values F of binary problems at points, a small tile at a time.

    Tasks are sent `coef` of shape (D, k) and `intercept` of shape (k,).

    Parameters
    ----------
    dtype : {"float32", "float64"}
        Of the features and of their products; sums of products are float64.
    tile_rows : int
        Small enough that a tile of Z stays in a cache.
    folds : Folds or None
    held_out : tuple of (int or None)
        The fold that each problem is judged on.
    """

    targets: ClassTargets
    folds: Folds | None
    held_out: tuple[int | None, ...]

    def update(self, total: Any, rows: Rows, arrays: Arrays) -> Any:
        block_map = self.block_map(arrays)
        coef, intercept = block_map.basis_coef(arrays["coef"], np.dtype(self.dtype)), arrays["intercept"]
        own: Any = None  # sums of these rows alone, over the basis of z
        for block in rows.tiles(self._block_rows(len(intercept))):
            labels, F = self._labels(block), np.empty((block.X.shape[0], len(intercept)))
            s = self.targets.row_weights(block.y, block.sample_weight)
            held_out = self._held_out(block.start, len(F))
            weights = RowWeights.of(s, held_out, (len(F), len(self.held_out)))
            vectors: np.ndarray | None = None
            for first in range(0, len(F), self.tile_rows):
                tile = slice(first, first + self.tile_rows)
                B = block_map.basis_tile(self.scaled(block.X[tile]))
                F[tile] = values_of(B, coef) + intercept
                row_weights = self._row_weights(F[tile], labels[tile], weights.at(tile), arrays)
                vectors = zero_sums(len(row_weights), B) if vectors is None else vectors
                add_transposed_product(vectors, row_weights, B)
            assert vectors is not None
            own = self.merge(own, self._sums(F, labels, weights, vectors, block, arrays))
        if own is not None and block_map.has_basis:
            own = own.of_features(block_map.feature_sums)
        return self.merge(total, own)

    def _block_rows(self, n_values: int) -> int:
        """Return the rows of a few tiles: what is done once for all of them costs as much as for one."""
        n_tiles = _MOST_BLOCK_VALUES // (self.tile_rows * n_values)
        return self.tile_rows * max(1, min(_MOST_BLOCK_TILES, n_tiles))

    def _labels(self, block: RowBlock) -> np.ndarray:
        """Return what the losses take for targets, an entry a row."""
        raise NotImplementedError

    def _row_weights(
        self, F: np.ndarray, labels: np.ndarray, weights: RowWeights, arrays: Arrays
    ) -> np.ndarray:
        """Return the weights, of shape (m, r), with which the features of r rows are to be summed."""
        raise NotImplementedError

    def _sums(
        self,
        F: np.ndarray,
        labels: np.ndarray,
        weights: RowWeights,
        vectors: np.ndarray,
        block: RowBlock,
        arrays: Arrays,
    ) -> Any:
        """Return the sums over the rows of a block; `vectors` are those of features, of shape (m, D)."""
        raise NotImplementedError

    def _held_out(self, start: int, n_rows: int) -> np.ndarray | None:
        if self.folds is None:
            return None
        # No row is in the fold −1, which stands for None.
        members = np.array([-1 if fold is None else fold for fold in self.held_out])
        return self.folds.of_rows(start, start + n_rows)[:, None] == members


@dataclass(frozen=True, kw_only=True)
class MarginReduction(LightReduction):
    """Reduction to the `MarginSums` of k problems; `width` of shape (k,) is sent as well.

    Parameters
    ----------
    loss : Loss
    outputs : tuple of int
        Which target each machine is for.

    Notes
    -----
    A row costs 2dD + 4Dk flops and D cosines; for many problems 6Dk.
    """

    loss: Loss
    outputs: tuple[int, ...]

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.outputs) * (2 * self.specification.n_features + 10)

    def _labels(self, block: RowBlock) -> np.ndarray:
        return self.targets.encode(block.y)[:, list(self.outputs)]

    def _row_weights(
        self, F: np.ndarray, labels: np.ndarray, weights: RowWeights, arrays: Arrays
    ) -> np.ndarray:
        return sided_weights(self.loss.rounded(arrays["width"]), F, labels, weights).reshape(-1, len(F))

    def _sums(
        self,
        F: np.ndarray,
        labels: np.ndarray,
        weights: RowWeights,
        vectors: np.ndarray,
        block: RowBlock,
        arrays: Arrays,
    ) -> MarginSums:
        proxy = self.loss.rounded(arrays["width"])
        return margin_sums(self.loss, proxy, F, labels, weights, vectors.reshape(F.shape[1], 2, -1))


@dataclass(frozen=True, kw_only=True)
class SoftmaxReduction(LightReduction):
    """Reduction to the `SoftmaxSums` of m problems of one column a class each, side by side in `coef`.

    Parameters
    ----------
    sigma : float

    Notes
    -----
    A row costs 2dD + 4Dkm flops and D cosines.
    """

    sigma: float

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.held_out) * (self.specification.n_features + 1) * len(self.targets.classes)

    def _labels(self, block: RowBlock) -> np.ndarray:
        return self.targets.indices(block.y)

    def _row_weights(
        self, F: np.ndarray, labels: np.ndarray, weights: RowWeights, arrays: Arrays
    ) -> np.ndarray:
        slopes = softmax_slopes(self._by_machine(F), labels, weights, sigma=self.sigma)
        return slopes.reshape(len(F), -1).T

    def _sums(
        self,
        F: np.ndarray,
        labels: np.ndarray,
        weights: RowWeights,
        vectors: np.ndarray,
        block: RowBlock,
        arrays: Arrays,
    ) -> SoftmaxSums:
        by_machine = self._by_machine(F)
        vectors = vectors.reshape(*by_machine.shape[1:], -1)
        return softmax_sums(by_machine, labels, weights, vectors, sigma=self.sigma)

    def _by_machine(self, F: np.ndarray) -> np.ndarray:
        return F.reshape(len(F), len(self.held_out), -1)


# The sweep of hinge problems that looks for the rows on which a problem of few rows and the hinge differ.

_MOST_FEATURES = 4096  # beyond, a Newton step of a model costs more than many sweeps
_LEAST_KEPT, _MOST_KEPT, _KEPT_ENTRIES = 2**10, 2**14, 2**21
_GROWTH, _LEAST_GROWN = 8, 2**14


def can_model(n_features: int, sparse_entries: int) -> bool:
    """Return whether models of few rows are worth their steps, which for sparse features cost rows alone."""
    return sparse_entries > 0 or n_features <= _MOST_FEATURES


def kept_rows(n_features: int, sparse_entries: int) -> int:
    """Return how many rows of each label a sweep keeps for a model.

    Of dense features a row a feature, as many as can be between their bounds at an optimum, and 1024 at
    least. Sparse ones have more features than rows: as many as have two million entries, 1024 to 16,384.
    """
    if sparse_entries:
        return max(_LEAST_KEPT, min(_MOST_KEPT, _KEPT_ENTRIES // sparse_entries))
    return max(_LEAST_KEPT, n_features)


def most_model_rows(n_features: int, sparse_entries: int) -> int:
    """Return how many rows a model may grow to.

    Eight times what a sweep keeps of a label, and 16,384 at least: of a rare class against the rest, the rows
    that may be on either side of the kink are many whatever the number of features is.
    """
    return max(_LEAST_GROWN, _GROWTH * kept_rows(n_features, sparse_entries))


@dataclass(frozen=True, eq=False)
class NearestRows:
    """Rows of one problem by ascending score; equal scores by row number.

    Attributes
    ----------
    score : ndarray of shape (r,)
        |1 − m| of a first look, then −s·|1 − m|, the error of the problem, negative.
    number : ndarray of shape (r,), int64
    X : ndarray of shape (r, d)
        As they were read.
    label, weight : ndarrays of shape (r,)
        ±1, and s.
    short : boolean ndarray of shape (r,)
        Whether m < 1 at the reference point.
    """

    score: np.ndarray
    number: np.ndarray
    X: np.ndarray
    label: np.ndarray
    weight: np.ndarray
    violating: np.ndarray

    def first(self, n: int) -> NearestRows:
        """Return the first n rows."""
        return NearestRows(**{f.name: getattr(self, f.name)[:n] for f in fields(self)})

    def merge(self, other: NearestRows, n_kept: int | None) -> NearestRows:
        """Return the first rows of both; all of them in the order given if `n_kept` is None."""
        joined = {f.name: joined_rows([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)}
        if n_kept is None:
            return NearestRows(**joined)
        kept = np.lexsort((joined["number"], joined["score"]))[:n_kept]
        return NearestRows(**{name: values[kept] for name, values in joined.items()})


@dataclass(frozen=True, eq=False)
class NearestSums:
    """What a sweep found at one point of each of k problems.

    Attributes
    ----------
    value : ndarray of shape (k,)
        Σ s·max(0, 1 − m).
    violating_weight : ndarray of shape (k,)
        Σ s over the rows with m < 1.
    violating_vector : ndarray of shape (k, D + 1)
        Σ s·y·[z | 1] over the same.
    held_out : ndarray of shape (2, k)
        Σ s and Σ s·max(0, 1 − m) over the rows that are held out.
    sides : tuple of k pairs of NearestRows
        Of the rows of label 1 and of label −1.
    """

    value: np.ndarray
    violating_weight: np.ndarray
    violating_vector: np.ndarray
    held_out: np.ndarray
    sides: tuple[tuple[NearestRows, NearestRows], ...]

    def rows(self, machine: int) -> NearestRows:
        """Return the rows of one problem, those of label 1 first."""
        above, below = self.sides[machine]
        return above.merge(below, None)

    def of_features(self, feature_sums: Callable[[np.ndarray], np.ndarray]) -> NearestSums:
        """Return the sums over z for those over z's basis; `feature_sums` takes vectors in rows."""
        of_z = feature_sums(self.violating_vector[:, :-1])
        return replace(self, violating_vector=np.concatenate([of_z, self.violating_vector[:, -1:]], axis=1))

    def merge(self, other: NearestSums, n_kept: int) -> NearestSums:
        """Return what both found."""
        sides = tuple(
            (mine[0].merge(theirs[0], n_kept), mine[1].merge(theirs[1], n_kept))
            for mine, theirs in zip(self.sides, other.sides, strict=True)
        )
        sums = {
            f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "sides"
        }
        return NearestSums(**sums, sides=sides)


@dataclass(frozen=True, kw_only=True)
class NearestRowsReduction(LightReduction):
    """Reduction to the `NearestSums` of k problems.

    Without a reference the rows nearest to the kink are kept. With one, `coef` and `intercept` have the
    columns of the k reference points after those of the k points themselves, `known_j` holds the sorted row
    numbers of problem j's rows, and of the others those are kept that are on another side of the kink than
    at the reference point.

    Parameters
    ----------
    outputs : tuple of int
        Which target each machine is for.
    n_kept : int
        Rows to keep of each label of each machine.
    has_reference : bool

    Notes
    -----
    A row costs 2dD + 4Dk flops, 2Dk more with a reference, and D cosines.
    """

    outputs: tuple[int, ...]
    n_kept: int
    has_reference: bool

    def size_bytes(self, n_rows: int) -> int:
        row_bytes = 8 * self.specification.n_columns + 33
        kept = min(2 * self.n_kept, n_rows) * row_bytes
        return len(self.outputs) * (kept + 8 * (self.specification.n_features + 5))

    def merge(self, first: NearestSums | None, second: NearestSums | None) -> NearestSums | None:
        if first is None or second is None:
            return super().merge(first, second)
        return first.merge(second, self.n_kept)

    def _labels(self, block: RowBlock) -> np.ndarray:
        return self.targets.encode(block.y)[:, list(self.outputs)]

    def _row_weights(
        self, F: np.ndarray, labels: np.ndarray, weights: RowWeights, arrays: Arrays
    ) -> np.ndarray:
        violating = labels * F[:, : len(self.outputs)] < 1
        return np.where(violating, weights.fitted * labels, 0.0).T

    def _sums(
        self,
        F: np.ndarray,
        labels: np.ndarray,
        weights: RowWeights,
        vectors: np.ndarray,
        block: RowBlock,
        arrays: Arrays,
    ) -> NearestSums:
        k, Y, s = len(self.outputs), labels, weights.fitted
        violating = 1 - Y * F[:, :k]
        before = 1 - Y * F[:, k:] if self.has_reference else violating
        losses = np.maximum(0, violating)
        by_intercept = np.where(violating > 0, s * Y, 0.0).sum(axis=0)
        return NearestSums(
            value=weighted_sum(s, losses),
            violating_weight=np.where(violating > 0, s, 0.0).sum(axis=0),
            violating_vector=np.concatenate([vectors, by_intercept[:, None]], axis=1),
            held_out=weights.judged(losses),
            sides=tuple(
                self._kept(
                    block, Y[:, j], violating[:, j], before[:, j] > 0, s[:, j], arrays.get(f"known_{j}")
                )
                for j in range(k)
            ),
        )

    def _kept(
        self,
        block: RowBlock,
        y: np.ndarray,
        violating: np.ndarray,
        was_violating: np.ndarray,
        weight: np.ndarray,
        known: np.ndarray | None,
    ) -> tuple[NearestRows, NearestRows]:
        """Return the rows of one problem that a tile offers, of label 1 and of label −1."""
        number = block.start + np.arange(len(y), dtype=np.int64)
        eligible, score = weight > 0, np.abs(violating)
        if known is not None:
            place = np.minimum(np.searchsorted(known, number), len(known) - 1)
            eligible = eligible & ((violating > 0) != was_violating) & (known[place] != number)
            score = -weight * score

        def side(rows: np.ndarray) -> NearestRows:
            rows = rows[np.lexsort((rows, score[rows]))[: self.n_kept]]
            X = chosen_rows(block.X, rows)
            return NearestRows(score[rows], number[rows], X, y[rows], weight[rows], was_violating[rows])

        return side(np.flatnonzero(eligible & (y > 0))), side(np.flatnonzero(eligible & (y < 0)))


# The sweep of hard-margin problems: the rows of smallest margin, with what they say of all others.


@dataclass(frozen=True, eq=False)
class SideRows:
    """Rows of one problem and one label, by ascending margin; equal margins by row number.

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
    """What a sweep found at one point of each of k problems; rows of weight 0 do not count.

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
        """Return number (r,), X (r, d), label (r,) and margin (r,) of one problem's rows, label 1 first."""
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


@dataclass(frozen=True, kw_only=True)
class SmallestMarginsReduction(RowReduction):
    """Reduction to the `SmallestMargins` of binary problems at points.

    Tasks are sent `coef` of shape (D, k) and `intercept` of shape (k,).

    Parameters
    ----------
    dtype : {"float32", "float64"}
        Of the features and of their products.
    outputs : tuple of int
        Which of the targets the problems are for.
    n_kept : int
        Rows to keep of each label of each problem.

    Notes
    -----
    A row costs 2dD + 2D(k + 1) flops and D cosines.
    """

    targets: ClassTargets
    outputs: tuple[int, ...]
    n_kept: int

    def size_bytes(self, n_rows: int) -> int:
        row_bytes = 8 * self.specification.n_columns + 16
        return len(self.outputs) * (min(2 * self.n_kept, n_rows) * row_bytes + 8) + 8

    def merge(self, first: SmallestMargins | None, second: SmallestMargins | None) -> SmallestMargins | None:
        if first is None or second is None:
            return super().merge(first, second)
        return first.merge(second, self.n_kept)

    def update(self, total: SmallestMargins | None, rows: Rows, arrays: Arrays) -> SmallestMargins | None:
        dtype, block_map = np.dtype(self.dtype), self.block_map(arrays)
        coef, intercept = arrays["coef"].astype(dtype), arrays["intercept"]
        n_rows = min(self.tile_rows, rows.stop - rows.start)
        buffer = scratch("tile", n_rows, self.specification.n_features, dtype)
        for block in rows.tiles(self.tile_rows):
            Z = buffer[: block.X.shape[0]]
            block_map.apply(self.scaled(block.X), out=Z)
            F = values_of(Z, coef) + intercept
            total = self.merge(total, self._of_tile(block, Z, F, total))
        return total

    def critical_rows(self, found: SmallestMargins, position: int) -> CriticalRows:
        """Return what was found at the point of one of the outputs, with features made again here."""
        number, X, label, margin = found.rows(position)
        Z = self.specification.build().apply(self.scaled(X))
        n_violating = int(found.n_violating[position])
        return CriticalRows(number, Z.astype(np.float64), label, margin, n_violating, found.largest_norm)

    def _of_tile(
        self, block: RowBlock, Z: np.ndarray, F: np.ndarray, found: SmallestMargins | None
    ) -> SmallestMargins:
        """Return what one tile adds to what was found before it."""
        if not np.isfinite(F).all():
            raise InputError(f"the problem's values are too large for {self.dtype}; use dtype='float64'")
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
