"""Light sweeps: the sums of one pass over the rows, for binary problems at one point each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np

from distrff.engine.reduction import Arrays
from distrff.errors import InputError
from distrff.fitting.rows import RowReduction
from distrff.io.dataset import RowBlock, Rows
from distrff.preprocessing.coding import ClassTargets
from distrff.preprocessing.folds import Folds
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
from distrff.utils.linalg import add_transposed_product, values_of, zero_sums

MAX_BLOCK_TILES, MAX_BLOCK_VALUES = 8, 15 * 2**10  # 120 KiB: from 128 arrays are fresh memory each time


class _Block(NamedTuple):
    """The rows of a few tiles, with the arguments of the losses."""

    rows: RowBlock
    labels: np.ndarray
    """The targets of the losses, an entry or a row of entries for each row."""
    weights: RowWeights
    F: np.ndarray
    """Values of the problems at their points, one column each; filled tile by tile."""
    arrays: Arrays


@dataclass(frozen=True, kw_only=True)
class LightReduction(RowReduction):
    """The base of light passes: the values F of binary problems at points, a small tile at a time.

    Subclasses define the targets of the losses (`_labels`), the weights of shape (m, r) with which the
    features of the r rows of a tile are summed (`_row_weights`), and the result from these sums, `vectors`
    of shape (m, D), and the block (`_sums`).

    Tasks are sent `coef` of shape (D, k) and `intercept` of shape (k,). Tiles are so small that their
    features stay in a cache: a pass over 200,000 rows of 20 columns then takes 0.44 s on one core, against
    0.87 s with tiles of 8192 rows.
    """

    targets: ClassTargets
    folds: Folds | None
    held_out: tuple[int | None, ...]  # the fold that each problem is judged on

    def update(self, total: Any, rows: Rows, arrays: Arrays) -> Any:
        block_map = self.block_map(arrays)
        coef, intercept = block_map.basis_coef(arrays["coef"], np.dtype(self.dtype)), arrays["intercept"]
        own: Any = None  # sums of these rows alone, over the basis of z
        for block in rows.tiles(self._block_rows(len(intercept))):
            F = np.empty((block.X.shape[0], len(intercept)))
            s = self.targets.row_weights(block.y, block.sample_weight)
            held_out = self._held_out(block.start, len(F))
            weights = RowWeights.of(s, held_out, (len(F), len(self.held_out)))
            at = _Block(block, self._labels(block), weights, F, arrays)
            vectors: np.ndarray | None = None
            for first in range(0, len(F), self.tile_rows):
                tile = slice(first, first + self.tile_rows)
                B = self.tile_of(block_map, rows, block.start + first, block.X[tile], of_basis=True)
                F[tile] = values_of(B, coef) + intercept
                row_weights = self._row_weights(at, tile)
                vectors = zero_sums(len(row_weights), B) if vectors is None else vectors
                add_transposed_product(vectors, row_weights, B)
            assert vectors is not None
            own = self.merge(own, self._sums(at, vectors))
        if own is not None and block_map.has_basis:
            own = own.of_features(block_map.feature_sums)
        return self.merge(total, own)

    def _block_rows(self, n_values: int) -> int:
        """Return the rows of a few tiles: the losses of all cost little more than those of one."""
        n_tiles = MAX_BLOCK_VALUES // (self.tile_rows * n_values)
        return self.tile_rows * max(1, min(MAX_BLOCK_TILES, n_tiles))

    @abstractmethod
    def _labels(self, block: RowBlock) -> np.ndarray: ...

    @abstractmethod
    def _row_weights(self, at: _Block, tile: slice) -> np.ndarray: ...

    @abstractmethod
    def _sums(self, at: _Block, vectors: np.ndarray) -> Any: ...

    def _held_out(self, start: int, n_rows: int) -> np.ndarray | None:
        if self.folds is None:
            return None
        # None is coded as the fold −1, which has no rows.
        members = np.array([-1 if fold is None else fold for fold in self.held_out])
        return self.folds.of_rows(start, start + n_rows)[:, None] == members


@dataclass(frozen=True, kw_only=True)
class MarginReduction(LightReduction):
    """Reduction to the `MarginSums` of k problems; `epsilon` of shape (k,) is sent as well.

    A row costs 2dD + 4Dk flops and D cosines; for many problems 6Dk.
    """

    loss: Loss
    outputs: tuple[int, ...]  # which target each problem is for

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.outputs) * (2 * self.specification.n_features + 14)

    def _labels(self, block: RowBlock) -> np.ndarray:
        return self.targets.encode(block.y)[:, list(self.outputs)]

    def _row_weights(self, at: _Block, tile: slice) -> np.ndarray:
        F, proxy = at.F[tile], self.loss.rounded(at.arrays["epsilon"])
        return sided_weights(proxy, F, at.labels[tile], at.weights.at(tile)).reshape(-1, len(F))

    def _sums(self, at: _Block, vectors: np.ndarray) -> MarginSums:
        proxy, vectors = self.loss.rounded(at.arrays["epsilon"]), vectors.reshape(at.F.shape[1], 2, -1)
        return margin_sums(self.loss, proxy, at.F, at.labels, at.weights, vectors)


@dataclass(frozen=True, kw_only=True)
class SoftmaxReduction(LightReduction):
    """Reduction to the `SoftmaxSums` of m problems of one column a class each, side by side in `coef`.

    A row costs 2dD + 4Dkm flops and D cosines.
    """

    sigma: float

    def size_bytes(self, n_rows: int) -> int:
        return 8 * len(self.held_out) * (self.specification.n_features + 1) * len(self.targets.classes)

    def _labels(self, block: RowBlock) -> np.ndarray:
        return self.targets.indices(block.y)

    def _row_weights(self, at: _Block, tile: slice) -> np.ndarray:
        F = self._by_problem(at.F[tile])
        slopes = softmax_slopes(F, at.labels[tile], at.weights.at(tile), sigma=self.sigma)
        return slopes.reshape(len(F), -1).T

    def _sums(self, at: _Block, vectors: np.ndarray) -> SoftmaxSums:
        F = self._by_problem(at.F)
        vectors = vectors.reshape(*F.shape[1:], -1)
        return softmax_sums(F, at.labels, at.weights, vectors, sigma=self.sigma)

    def _by_problem(self, F: np.ndarray) -> np.ndarray:
        return F.reshape(len(F), len(self.held_out), -1)


# The sweep of hinge problems that finds the rows at which an active-set model differs from the hinge.

_MAX_FEATURES = 4096  # with more, a Newton step of a model costs more than many sweeps
_MIN_KEPT, _MAX_KEPT, _KEPT_ENTRIES = 2**10, 2**14, 2**21
_GROWTH, _MIN_GROWN = 8, 2**14
WIDENING = 4
"""A pass for a model without a minimum keeps so many times the rows of one label, and none of the other."""


def can_model(n_features: int, sparse_entries: int) -> bool:
    """Return whether active-set models are worth their steps; with sparse features these are always cheap."""
    return sparse_entries > 0 or n_features <= _MAX_FEATURES


def rows_a_label(n_features: int, sparse_entries: int) -> int:
    """Return how many rows of each label a sweep keeps for a model.

    With dense features one for each feature, as many as can be between their bounds at an optimum, but at
    least 1024. Sparse features may be more than the rows: then as many rows as have two million entries, 1024
    to 16,384.
    """
    if sparse_entries:
        return max(_MIN_KEPT, min(_MAX_KEPT, _KEPT_ENTRIES // sparse_entries))
    return max(_MIN_KEPT, n_features)


def max_model_rows(n_features: int, sparse_entries: int) -> int:
    """Return how many rows a model may grow to.

    Eight times the rows that a sweep keeps for a label, but at least 16,384: for a rare class against the
    rest many rows may be on either side of the hinge, whatever the number of features.
    """
    return max(_MIN_GROWN, _GROWTH * rows_a_label(n_features, sparse_entries))


@dataclass(frozen=True, eq=False)
class RankedRows:
    """Rows of one problem by ascending score; equal scores by row number."""

    score: np.ndarray  # (r,), float64
    number: np.ndarray  # (r,), int64
    X: np.ndarray  # (r, d), as they were read

    def first(self, n: int) -> Self:
        """Return the first n rows."""
        return type(self)(**{f.name: getattr(self, f.name)[:n] for f in fields(self)})

    def merge(self, other: Self, n_kept: int | None) -> Self:
        """Return the first `n_kept` rows of both; None keeps all, those of `self` first."""
        joined = {f.name: joined_rows([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)}
        if n_kept is not None:
            kept = np.lexsort((joined["number"], joined["score"]))[:n_kept]
            joined = {name: values[kept] for name, values in joined.items()}
        return type(self)(**joined)


def lowest(score: np.ndarray, eligible: np.ndarray, n_kept: int) -> np.ndarray:
    """Return the numbers of the eligible rows of lowest score, ascending; equal scores by number."""
    rows = np.flatnonzero(eligible)
    return rows[np.lexsort((rows, score[rows]))[:n_kept]]


def merged_sides(first: Sequence[Any], second: Sequence[Any], n_kept: int) -> tuple[Any, ...]:
    """Return the kept rows of both, for each problem those of label 1 and those of label −1."""
    return tuple(
        (above.merge(more_above, n_kept), below.merge(more_below, n_kept))
        for (above, below), (more_above, more_below) in zip(first, second, strict=True)
    )


@dataclass(frozen=True, eq=False)
class NearestRows(RankedRows):
    """Rows near the hinge y·f = 1 of one problem.

    The score is |1 − m| without a reference, else −s·|1 − m|, minus the error of the model at the row.
    """

    label: np.ndarray  # (r,), ±1
    weight: np.ndarray  # (r,), s
    violating: np.ndarray  # (r,), whether m < 1 at the reference point


Sides = tuple[NearestRows, NearestRows]


@dataclass(frozen=True, eq=False)
class NearestSums:
    """The result of a sweep at one point of each of k problems."""

    value: np.ndarray  # (k,): Σ s·max(0, 1 − m)
    violating_weight: np.ndarray  # (k,): Σ s over the rows with m < 1
    violating_vector: np.ndarray  # (k, D + 1): Σ s·y·[z | 1] over the same rows
    held_out: np.ndarray  # (2, k): Σ s and Σ s·max(0, 1 − m) over the held-out rows
    sides: tuple[Sides, ...]  # of each problem, the rows of label 1 and of label −1

    def rows(self, problem: int) -> NearestRows:
        """Return the rows of one problem, those of label 1 first."""
        above, below = self.sides[problem]
        return above.merge(below, None)

    def of_features(self, feature_sums: Callable[[np.ndarray], np.ndarray]) -> NearestSums:
        """Return the sums over z for those over z's basis; `feature_sums` takes vectors in rows."""
        of_z = feature_sums(self.violating_vector[:, :-1])
        return replace(self, violating_vector=np.concatenate([of_z, self.violating_vector[:, -1:]], axis=1))


@dataclass(frozen=True, kw_only=True)
class NearestRowsReduction(LightReduction):
    """Reduction to the `NearestSums` of k problems.

    Without a reference the rows nearest to the hinge are kept. With one, `coef` and `intercept` have the
    columns of the k reference points after those of the k points themselves, and `known_j` holds the sorted
    numbers of the rows that problem j has already. Of the other rows those are kept that have changed sides
    of the hinge since the reference point.

    A row costs 2dD + 4Dk flops, 2Dk more with a reference, and D cosines.
    """

    outputs: tuple[int, ...]  # which target each problem is for
    n_kept: int  # rows to keep of each label of each problem
    has_reference: bool
    labels: tuple[float, ...] = ()  # the only label whose rows are kept, of each problem; 0, or (): both

    def size_bytes(self, n_rows: int) -> int:
        row_bytes = 8 * self.specification.n_columns + 33
        kept = min(2 * self.n_kept, n_rows) * row_bytes
        return len(self.outputs) * (kept + 8 * (self.specification.n_features + 5))

    def merge(self, first: NearestSums | None, second: NearestSums | None) -> NearestSums | None:
        if first is None or second is None:
            return super().merge(first, second)
        return NearestSums(
            value=first.value + second.value,
            violating_weight=first.violating_weight + second.violating_weight,
            violating_vector=first.violating_vector + second.violating_vector,
            held_out=first.held_out + second.held_out,
            sides=merged_sides(first.sides, second.sides, self.n_kept),
        )

    def _labels(self, block: RowBlock) -> np.ndarray:
        return self.targets.encode(block.y)[:, list(self.outputs)]

    def _row_weights(self, at: _Block, tile: slice) -> np.ndarray:
        Y, F = at.labels[tile], at.F[tile, : len(self.outputs)]
        return np.where(Y * F < 1, at.weights.at(tile).fitted * Y, 0.0).T

    def _sums(self, at: _Block, vectors: np.ndarray) -> NearestSums:
        k, Y, s = len(self.outputs), at.labels, at.weights.fitted
        violation = 1 - Y * at.F[:, :k]
        before = 1 - Y * at.F[:, k:] if self.has_reference else violation
        losses = np.maximum(0, violation)
        by_intercept = np.where(violation > 0, s * Y, 0.0).sum(axis=0)
        return NearestSums(
            value=weighted_sum(s, losses),
            violating_weight=np.where(violation > 0, s, 0.0).sum(axis=0),
            violating_vector=np.concatenate([vectors, by_intercept[:, None]], axis=1),
            held_out=at.weights.held_out_sums(losses),
            sides=tuple(self._kept(at, j, violation[:, j], before[:, j] > 0) for j in range(k)),
        )

    def _kept(self, at: _Block, j: int, violation: np.ndarray, was_violating: np.ndarray) -> Sides:
        """Return the rows of a block to keep for problem j, of label 1 and of label −1."""
        y, weight, known = at.labels[:, j], at.weights.fitted[:, j], at.arrays.get(f"known_{j}")
        number = at.rows.start + np.arange(len(y), dtype=np.int64)
        eligible, score = weight > 0, np.abs(violation)
        if known is not None:
            place = np.minimum(np.searchsorted(known, number), len(known) - 1)
            eligible = eligible & ((violation > 0) != was_violating) & (known[place] != number)
            score = -weight * score

        def side(is_on_it: np.ndarray) -> NearestRows:
            rows = lowest(score, eligible & is_on_it, self.n_kept)
            X = chosen_rows(at.rows.X, rows)
            return NearestRows(score[rows], number[rows], X, y[rows], weight[rows], was_violating[rows])

        label = self.labels[j] if self.labels else 0.0
        return side((y > 0) & (label >= 0)), side((y < 0) & (label <= 0))


# The sweep of hard-margin problems: the rows of smallest margin, and counts over all rows.


@dataclass(frozen=True, eq=False)
class SmallestMargins:
    """The result of a sweep at one point of each of k problems; rows of weight 0 do not count."""

    sides: tuple[tuple[RankedRows, RankedRows], ...]  # of label 1 and of label −1; the score is the margin
    n_violating: np.ndarray  # (k,), int64: rows with a margin below 1
    largest_norm: float  # max ‖z‖

    def rows(self, problem: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return number (r,), X (r, d), label (r,) and margin (r,) of one problem's rows, label 1 first."""
        above, below = self.sides[problem]
        rows, label = above.merge(below, None), np.repeat([1.0, -1.0], [len(above.number), len(below.number)])
        return rows.number, rows.X, label, rows.score


@dataclass(frozen=True, kw_only=True)
class SmallestMarginsReduction(RowReduction):
    """Reduction to the `SmallestMargins` of binary problems at points.

    Tasks are sent `coef` of shape (D, k) and `intercept` of shape (k,).

    A row costs 2dD + 2D(k + 1) flops and D cosines.
    """

    targets: ClassTargets
    outputs: tuple[int, ...]  # which of the targets the problems are for
    n_kept: int  # rows to keep of each label of each problem

    def size_bytes(self, n_rows: int) -> int:
        row_bytes = 8 * self.specification.n_columns + 16
        return len(self.outputs) * (min(2 * self.n_kept, n_rows) * row_bytes + 8) + 8

    def merge(self, first: SmallestMargins | None, second: SmallestMargins | None) -> SmallestMargins | None:
        if first is None or second is None:
            return super().merge(first, second)
        return SmallestMargins(
            sides=merged_sides(first.sides, second.sides, self.n_kept),
            n_violating=first.n_violating + second.n_violating,
            largest_norm=max(first.largest_norm, second.largest_norm),
        )

    def update(self, total: SmallestMargins | None, rows: Rows, arrays: Arrays) -> SmallestMargins | None:
        dtype, block_map = np.dtype(self.dtype), self.block_map(arrays)
        coef, intercept = arrays["coef"].astype(dtype), arrays["intercept"]
        for block in rows.tiles(self.tile_rows):
            Z = self.tile_of(block_map, rows, block.start, block.X, of_basis=False)
            F = values_of(Z, coef) + intercept
            total = self.merge(total, self._of_tile(block, Z, F, total))
        return total

    def critical_rows(self, found: SmallestMargins, position: int) -> CriticalRows:
        """Return the critical rows of one of the outputs, with their features made again here."""
        number, X, label, margin = found.rows(position)
        Z = self.specification.build().apply(self.scaled(X))
        n_violating = int(found.n_violating[position])
        return CriticalRows(number, Z.astype(np.float64), label, margin, n_violating, found.largest_norm)

    def _of_tile(
        self, block: RowBlock, Z: np.ndarray, F: np.ndarray, found: SmallestMargins | None
    ) -> SmallestMargins:
        """Return the result of one tile; `found` is that of earlier tiles."""
        if not np.isfinite(F).all():
            raise InputError(f"the problem's values are too large for {self.dtype}; use dtype='float64'")
        Y = self.targets.encode(block.y)[:, list(self.outputs)]
        s = self.targets.row_weights(block.y, block.sample_weight)
        counts = np.ones(len(Z), dtype=bool) if s is None else s > 0
        M = Y * F
        before = [(None, None)] * M.shape[1] if found is None else found.sides
        sides = tuple(
            (
                self._side(block, M[:, j], counts & (Y[:, j] > 0), above),
                self._side(block, M[:, j], counts & (Y[:, j] < 0), below),
            )
            for j, (above, below) in enumerate(before)
        )
        squares = np.einsum("ij,ij->i", Z, Z)
        norm = float(np.sqrt(squares[counts].max(initial=0.0)))
        return SmallestMargins(sides, np.count_nonzero((M < 1) & counts[:, None], axis=0), norm)

    def _side(
        self, block: RowBlock, margin: np.ndarray, counts: np.ndarray, before: RankedRows | None
    ) -> RankedRows:
        """Return the rows of a tile that may be among those of smallest margin, given earlier rows' best."""
        if before is not None and len(before.score) == self.n_kept:
            counts = counts & (margin < before.score[-1])
        rows = lowest(margin, counts, self.n_kept)
        return RankedRows(margin[rows], block.start + rows.astype(np.int64), chosen_rows(block.X, rows))
