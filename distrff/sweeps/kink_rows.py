"""The sweep of hinge machines that looks for the rows on which a model of few rows and the hinge differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from distrff.columns.row_matrices import chosen_rows, joined_rows
from distrff.data.rows import RowBlock
from distrff.objective.row_weights import RowWeights, weighted_sum
from distrff.sweeps.margins import LightReduction

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
class KinkRows:
    """Rows of one machine by ascending score; equal scores by row number.

    Attributes
    ----------
    score : ndarray of shape (r,)
        |1 − m| of a first look, then −s·|1 − m|, the error of the model, negative.
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
    short: np.ndarray

    def first(self, n: int) -> KinkRows:
        """Return the first n rows."""
        return KinkRows(**{f.name: getattr(self, f.name)[:n] for f in fields(self)})

    def merge(self, other: KinkRows, n_kept: int | None) -> KinkRows:
        """Return the first rows of both; all of them in the order given if `n_kept` is None."""
        joined = {f.name: joined_rows([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)}
        if n_kept is None:
            return KinkRows(**joined)
        kept = np.lexsort((joined["number"], joined["score"]))[:n_kept]
        return KinkRows(**{name: values[kept] for name, values in joined.items()})


@dataclass(frozen=True, eq=False)
class KinkSums:
    """What a sweep found at one point of each of k machines.

    Attributes
    ----------
    value : ndarray of shape (k,)
        Σ s·max(0, 1 − m).
    short_weight : ndarray of shape (k,)
        Σ s over the rows with m < 1.
    short_vector : ndarray of shape (k, D + 1)
        Σ s·y·[z | 1] over the same.
    held_out : ndarray of shape (2, k)
        Σ s and Σ s·max(0, 1 − m) over the rows that are held out.
    sides : tuple of k pairs of KinkRows
        Of the rows of label 1 and of label −1.
    """

    value: np.ndarray
    short_weight: np.ndarray
    short_vector: np.ndarray
    held_out: np.ndarray
    sides: tuple[tuple[KinkRows, KinkRows], ...]

    def rows(self, machine: int) -> KinkRows:
        """Return the rows of one machine, those of label 1 first."""
        above, below = self.sides[machine]
        return above.merge(below, None)

    def of_features(self, feature_sums: Callable[[np.ndarray], np.ndarray]) -> KinkSums:
        """Return the sums over z for those over z's basis; `feature_sums` takes vectors in rows."""
        of_z = feature_sums(self.short_vector[:, :-1])
        return replace(self, short_vector=np.concatenate([of_z, self.short_vector[:, -1:]], axis=1))

    def merge(self, other: KinkSums, n_kept: int) -> KinkSums:
        """Return what both found."""
        sides = tuple(
            (mine[0].merge(theirs[0], n_kept), mine[1].merge(theirs[1], n_kept))
            for mine, theirs in zip(self.sides, other.sides, strict=True)
        )
        sums = {
            f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "sides"
        }
        return KinkSums(**sums, sides=sides)


@dataclass(frozen=True)
class KinkReduction(LightReduction):
    """Reduction to the `KinkSums` of k machines.

    Without a reference the rows nearest to the kink are kept. With one, `coef` and `intercept` have the
    columns of the k reference points after those of the k points themselves, `known_j` holds the sorted row
    numbers of machine j's model, and of the others those are kept that are on another side of the kink than
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

    def merge(self, first: KinkSums | None, second: KinkSums | None) -> KinkSums | None:
        if first is None or second is None:
            return second if first is None else first
        return first.merge(second, self.n_kept)

    def _labels(self, block: RowBlock) -> np.ndarray:
        return self.targets.encode(block.y)[:, list(self.outputs)]

    def _pulls(
        self, F: np.ndarray, labels: np.ndarray, weights: RowWeights, shipped: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        short = labels * F[:, : len(self.outputs)] < 1
        return np.where(short, weights.fitted * labels, 0.0).T

    def _sums(
        self,
        F: np.ndarray,
        labels: np.ndarray,
        weights: RowWeights,
        vectors: np.ndarray,
        block: RowBlock,
        shipped: Mapping[str, np.ndarray],
    ) -> KinkSums:
        k, Y, s = len(self.outputs), labels, weights.fitted
        short = 1 - Y * F[:, :k]
        before = 1 - Y * F[:, k:] if self.has_reference else short
        losses = np.maximum(0, short)
        by_intercept = np.where(short > 0, s * Y, 0.0).sum(axis=0)
        return KinkSums(
            value=weighted_sum(s, losses),
            short_weight=np.where(short > 0, s, 0.0).sum(axis=0),
            short_vector=np.concatenate([vectors, by_intercept[:, None]], axis=1),
            held_out=weights.judged(losses),
            sides=tuple(
                self._kept(block, Y[:, j], short[:, j], before[:, j] > 0, s[:, j], shipped.get(f"known_{j}"))
                for j in range(k)
            ),
        )

    def _kept(
        self,
        block: RowBlock,
        y: np.ndarray,
        short: np.ndarray,
        was_short: np.ndarray,
        weight: np.ndarray,
        known: np.ndarray | None,
    ) -> tuple[KinkRows, KinkRows]:
        """Return the rows of one machine that a tile offers, of label 1 and of label −1."""
        number = block.start + np.arange(len(y), dtype=np.int64)
        eligible, score = weight > 0, np.abs(short)
        if known is not None:
            place = np.minimum(np.searchsorted(known, number), len(known) - 1)
            eligible = eligible & ((short > 0) != was_short) & (known[place] != number)
            score = -weight * score

        def side(rows: np.ndarray) -> KinkRows:
            rows = rows[np.lexsort((rows, score[rows]))[: self.n_kept]]
            X = chosen_rows(block.X, rows)
            return KinkRows(score[rows], number[rows], X, y[rows], weight[rows], was_short[rows])

        return side(np.flatnonzero(eligible & (y > 0))), side(np.flatnonzero(eligible & (y < 0)))
