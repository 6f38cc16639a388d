"""Light sweeps of margin losses: traces of problems, the sums of a pass, and the responses made of them."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Self
from weakref import WeakValueDictionary

import numpy as np
from scipy.special import logsumexp

from distrff.engine.reduction import (
    Arrays,
    Segmentation,
    gram_stride,
    joined,
    light_segmentation_of_features,
    margin_tile_rows,
    sparse_segmentation,
)
from distrff.engine.run import Run
from distrff.errors import InputError
from distrff.features.fitted import FittedMap
from distrff.fitting.cg import MomentsReduction
from distrff.fitting.cost import MAX_BLOCK_VALUES, SLACK_BYTES, Plan, Size, light_peak_bytes
from distrff.fitting.gram import CurvatureGramReduction, Grams, factor_gram, sample_of
from distrff.fitting.problem import PreparedFit
from distrff.fitting.result import coef_and_intercept
from distrff.fitting.rows import MappedRows, RowReduction
from distrff.io.dataset import RowBlock, Rows
from distrff.preprocessing.coding import ClassTargets, Scaling, Targets
from distrff.preprocessing.folds import Folds
from distrff.solvers.dual import DualPoint, DualRows, ascend_pairs
from distrff.solvers.hard_margin import CriticalRows
from distrff.solvers.lbfgs import (
    POINTS_A_HESSIAN,
    DiagonalPreconditioner,
    Hessian,
    Precondition,
    Preconditioner,
)
from distrff.solvers.losses import MarginLoss
from distrff.solvers.objective import (
    Certificate,
    DualBundle,
    Evaluation,
    History,
    Loss,
    MarginSums,
    Point,
    RowWeights,
    SoftmaxSums,
    Status,
    margin_sums,
    sided_weights,
    softmax_slopes,
    softmax_sums,
    weighted_sum,
)
from distrff.solvers.ridge import (
    NOT_FINITE,
    GramProblem,
    RidgeEquations,
    RidgeMoments,
    total_gram,
)
from distrff.utils.arrays import chosen_rows, joined_rows
from distrff.utils.linalg import values_of

_OBJECTIVE_ROUNDING = 1e-12  # of an objective that is summed in float64


# The trace of a binary problem while it is solved: its best point, and the certificate of that.


class MarginProblem(NamedTuple):
    """One binary problem: which target it is for, its C, and the fold that is held out of it."""

    output: int
    C: float
    held_out: int | None = None


@dataclass
class Trace:
    """The best point of a problem so far, and its certificate."""

    x: np.ndarray  # at first where its solver starts
    found: np.ndarray = field(init=False)  # the solver's best point; a constant may be better
    certificate: Certificate = field(default_factory=Certificate)
    # Σ s and Σ s·ℓ over the rows that the model is judged on.
    held_out: np.ndarray = field(default_factory=lambda: np.zeros(2))
    relative_gradient: float = np.inf  # ‖∇‖ at the best point found, of that at the first one
    smallest_margin: float | None = None  # of a hard-margin model; None where its last point was not checked
    history: History = field(default_factory=History)
    _first_norm: float = 0.0
    _found_primal: float = np.inf
    _found_dual: float = -np.inf  # the bound by the candidate of that point alone
    _constant_primal: float = np.inf
    _bundle: DualBundle = field(default_factory=DualBundle)

    def __post_init__(self) -> None:
        self.found = self.x

    def allow(self, constant: Constant) -> None:
        """Start from the best constant; only a better point replaces it."""
        self.x, self._constant_primal = constant.x, constant.primal
        self.certificate = self.certificate.improved(constant.primal, -np.inf)

    def update(self, at: Evaluation) -> None:
        """Improve the best point and the bound by an evaluation."""
        norm = float(np.linalg.norm(at.gradient))
        # Of the first point whose gradient is not zero.
        self._first_norm = self._first_norm or norm
        relative = norm / self._first_norm if norm else 0.0
        # Without a bound, of points with equal objective up to rounding the one of least gradient is best.
        rounding = 0.0 if at.candidate is not None else _OBJECTIVE_ROUNDING * abs(at.primal)
        flatter = rounding > 0 and relative < self.relative_gradient
        if at.primal < self._found_primal + (rounding if flatter else -rounding):
            self.relative_gradient = relative
            self._keep(at.x, at.primal, at.dual, at.held_out)
        self.certificate = replace(self.certificate, scale=at.scale, near=min(at.near, self.certificate.near))
        # The objective is that of the loss itself whatever the ε, so candidates of both ε bound the same
        # minimum.
        for candidate in (at.candidate, None if at.next is None else at.next[1].candidate):
            dual = -np.inf if candidate is None else self._bundle.add(candidate)
            self.certificate = self.certificate.improved(at.primal, dual)

    def improve(
        self, x: np.ndarray, primal: float, dual: float, held_out: np.ndarray, near: float = np.inf
    ) -> None:
        """Improve the best point and the bound by a point and a lower bound."""
        if primal < self._found_primal:
            self._keep(x, primal, dual, held_out)
        self.certificate = replace(self.certificate, near=min(near, self.certificate.near))
        self.certificate = self.certificate.improved(primal, dual)

    def _keep(self, x: np.ndarray, primal: float, dual: float, held_out: np.ndarray) -> None:
        self.found, self._found_primal, self._found_dual = x, primal, dual
        if primal <= self._constant_primal:
            self.x, self.held_out = x, held_out

    def record(self, n_sweeps: int) -> None:
        """Add the best so far to the history."""
        self.history.record(n_sweeps, self.error, self.certificate.primal, self.certificate.dual)

    @property
    def measure(self) -> str:
        """The name of the error."""
        return "duality gap" if np.isfinite(self.certificate.dual) else "relative gradient"

    @property
    def error(self) -> float:
        """The relative duality gap, or the relative gradient where there is no bound; `tol` is for it."""
        return self.certificate.gap if np.isfinite(self.certificate.dual) else self.relative_gradient

    @property
    def error_alone(self) -> float:
        """The same from what one pass at the best point gives, without the bounds of earlier points."""
        alone = replace(self.certificate, primal=self._found_primal, dual=self._found_dual)
        return alone.gap if np.isfinite(alone.dual) else self.error


@dataclass(frozen=True, eq=False)
class MarginSolution:
    """Solutions of several problems with a margin loss."""

    traces: Mapping[MarginProblem, Trace]
    status: Status
    n_sweeps: int
    interruption: KeyboardInterrupt | None = None


def begun(
    starts: Mapping[MarginProblem, np.ndarray], constants: Sequence[Constant] = ()
) -> dict[MarginProblem, Trace]:
    """The traces before the first sweep; a constant is an upper bound of its objective."""
    traces = {problem: Trace(x) for problem, x in starts.items()}
    for trace, constant in zip(traces.values(), constants, strict=bool(constants)):
        trace.allow(constant)
    return traces


# The best constant models. No fit is worse than these.


class Constant(NamedTuple):
    """A model with w = 0, as a point x, and its objective C·Σ s·ℓ."""

    x: np.ndarray
    primal: float


def best_constants(fit: PreparedFit, C: float) -> list[Constant]:
    """The constant of least objective for each output, or one for all classes that share a loss; of classes.

    It follows from the summed weights of the classes, which the first pass counted.
    """
    problem, targets, labels = fit.problem, fit.targets, fit.statistics.labels
    if not isinstance(targets, ClassTargets):
        return []
    assert labels is not None
    weights = labels.weights if targets.class_weight is None else targets.class_weight * labels.weights
    D = fit.specification.n_features
    if problem.shares_loss(targets):
        sigma = problem.margin_loss.clear_margin
        # At w = 0 the loss is least where the probabilities are the classes' shares: e^(b_c/σ) in proportion
        # to them.
        b = sigma * np.log(weights / weights.sum()) if problem.fit_intercept else np.zeros(len(weights))
        X = np.zeros((D + problem.fit_intercept, len(b)))
        X[D:] = b
        return [Constant(X.ravel(), C * float(weights @ (logsumexp(b / sigma) - b / sigma)))]
    loss, total = problem.margin_loss, weights.sum()
    assert isinstance(loss, MarginLoss)
    constants = []
    # Of two classes there is one problem, whose label +1 is the last class.
    for above in weights[-1:] if targets.n_outputs == 1 else weights:
        below = total - above
        b = loss.constant(above / (above + below)) if problem.fit_intercept else 0.0
        f, y = np.array([b, b]), np.array([1.0, -1.0])
        x = np.zeros(D + problem.fit_intercept)
        x[D:] = b
        constants.append(Constant(x, C * float(np.array([above, below]) @ loss.value(f, y))))
    return constants


# The sums of a pass.


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

    Subclasses define the weights of shape (m, r) with which the features of the r rows of a tile are summed
    (`_row_weights`), and the result from these sums, `vectors` of shape (m, D), and the block (`_sums`).

    Tasks are sent `coef` of shape (D, k) and `intercept` of shape (k,).
    """

    folds: Folds | None
    held_out: tuple[int | None, ...]  # the fold that each problem is judged on; None: fitted to all rows
    outputs: tuple[int, ...] = ()  # which target each problem is for

    def update(self, total: Any, rows: Rows, arrays: Arrays) -> Any:
        ready = self.ready_map(arrays)
        coef, n_values = ready.basis_coef(arrays["coef"], np.dtype(self.dtype)), len(arrays["intercept"])
        own: Any = None  # sums of these rows alone, over the basis of z
        for block in rows.tiles(self._block_rows(n_values)):
            F = np.empty((block.X.shape[0], n_values))
            s = self.targets.row_weights(block.y, block.sample_weight)
            weights = self._weights(block, s)
            at = _Block(block, self._labels(block), weights, F, arrays)
            vectors: np.ndarray | None = None
            # Tiles are so small that their features stay in a cache (see `_CACHED_TILE_BYTES`).
            for first in range(0, len(F), self.tile_rows):
                tile = slice(first, first + self.tile_rows)
                slopes = partial(self._slopes, at, tile)
                X = block.X[tile]
                vectors = self.light_tile(ready, rows, block.start + first, X, coef, slopes, vectors)
            assert vectors is not None
            own = self.merge(own, self._sums(at, vectors))
        # Sums are linear, so the basis becomes features once for all these rows: a solve a vector, not one a
        # row.
        if own is not None and ready.has_basis:
            own = own.of_features(ready.feature_sums)
        return self.merge(total, own)

    def _block_rows(self, n_values: int) -> int:
        """The rows of a few tiles: the losses of all cost little more than those of one."""
        n_tiles = MAX_BLOCK_VALUES // (self.tile_rows * n_values)
        return self.tile_rows * max(1, min(MAX_BLOCK_TILES, n_tiles))

    def _slopes(self, at: _Block, tile: slice, values: np.ndarray) -> np.ndarray:
        at.F[tile] = values + at.arrays["intercept"]
        return self._row_weights(at, tile)

    def _labels(self, block: RowBlock) -> np.ndarray:
        """The targets of the losses."""
        return self.targets.encode(block.y)[:, list(self.outputs)]

    @abstractmethod
    def _row_weights(self, at: _Block, tile: slice) -> np.ndarray: ...

    @abstractmethod
    def _sums(self, at: _Block, vectors: np.ndarray) -> Any: ...

    def _weights(self, block: RowBlock, s: np.ndarray | None) -> RowWeights:
        n, masks = block.X.shape[0], None
        if self.folds is not None:
            masks = self.folds.masks(block.keys, self.held_out)
        return RowWeights.of(s, (n, len(self.held_out)), masks)


@dataclass(frozen=True, kw_only=True)
class MarginReduction(LightReduction):
    """Reduction to the `MarginSums` of k problems; `epsilon` of shape (k,) is sent as well.

    A row costs 2dD + 4Dk flops and D cosines; for many problems 6Dk.
    """

    loss: Loss

    def size_bytes(self, n_rows: int) -> int:
        # Two sided vectors, and the 15 other numbers of `MarginSums`.
        return 8 * len(self.outputs) * (2 * self.specification.n_features + 15)

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

    targets: ClassTargets
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


@dataclass(frozen=True, eq=False)
class RankedRows:
    """Rows of one problem by ascending score; equal scores by row number."""

    score: np.ndarray  # (r,), float64
    number: np.ndarray  # (r,), int64
    X: np.ndarray  # (r, d), as they were read

    def first(self, n: int) -> Self:
        """The first n rows."""
        return type(self)(**{f.name: getattr(self, f.name)[:n] for f in fields(self)})

    def merge(self, other: Self, n_kept: int | None) -> Self:
        """The first `n_kept` rows of both; None keeps all, those of `self` first."""
        joined = {f.name: joined_rows([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)}
        if n_kept is not None:
            # Ties go by row number, so that the kept rows do not depend on the order of merges.
            kept = np.lexsort((joined["number"], joined["score"]))[:n_kept]
            joined = {name: values[kept] for name, values in joined.items()}
        return type(self)(**joined)


def lowest(score: np.ndarray, eligible: np.ndarray, n_kept: int) -> np.ndarray:
    """The numbers of the eligible rows of lowest score, ascending; equal scores by number."""
    rows = np.flatnonzero(eligible)
    return rows[np.lexsort((rows, score[rows]))[:n_kept]]


def merged_sides(first: Sequence[Any], second: Sequence[Any], n_kept: int) -> tuple[Any, ...]:
    """The kept rows of both, for each problem those of label 1 and those of label −1."""
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
        """The rows of one problem, those of label 1 first."""
        above, below = self.sides[problem]
        return above.merge(below, None)

    def of_features(self, feature_sums: Callable[[np.ndarray], np.ndarray]) -> NearestSums:
        """The sums over z for those over z's basis; `feature_sums` takes vectors in rows."""
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

    n_kept: int  # rows to keep of each label of each problem
    has_reference: bool
    labels: tuple[float, ...] = ()  # the only label whose rows are kept, of each problem; 0, or (): both

    def size_bytes(self, n_rows: int) -> int:
        # Score, number, label and weight of 8 bytes, and a bool.
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
        """The rows of a block to keep for problem j, of label 1 and of label −1."""
        y, weight, known = at.labels[:, j], at.weights.fitted[:, j], at.arrays.get(f"known_{j}")
        number = at.rows.start + np.arange(len(y), dtype=np.int64)
        eligible, score = weight > 0, np.abs(violation)
        if known is not None:
            # `searchsorted` places numbers beyond the last known row behind it.
            place = np.minimum(np.searchsorted(known, number), len(known) - 1)
            eligible = eligible & ((violation > 0) != was_violating) & (known[place] != number)
            # The most wrong first: the model is linear at these rows, and off by s·|1 − m|.
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
        """Number (r,), X (r, d), label (r,) and margin (r,) of one problem's rows, label 1 first."""
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
        dtype, ready = np.dtype(self.dtype), self.ready_map(arrays)
        # Of features themselves, not of a basis: the norms of z are wanted too.
        coef, intercept = arrays["coef"].astype(dtype), arrays["intercept"]
        for block in rows.tiles(self.tile_rows):
            Z = self.tile_of(ready, rows, block.start, block.X, of_basis=False)
            F = values_of(Z, coef) + intercept
            total = self.merge(total, self._of_tile(block, Z, F, total))
        return total

    def critical_rows(self, found: SmallestMargins, position: int) -> CriticalRows:
        """The critical rows of one of the outputs, with their features made again here."""
        number, X, label, margin = found.rows(position)
        # A sweep returns rows as they were read, d numbers each in place of D.
        Z = self.specification.build().apply(self.scaled(X))
        n_violating = int(found.n_violating[position])
        return CriticalRows(number, Z.astype(np.float64), label, margin, n_violating, found.largest_norm)

    def _of_tile(
        self, block: RowBlock, Z: np.ndarray, F: np.ndarray, found: SmallestMargins | None
    ) -> SmallestMargins:
        """The result of one tile; `found` is that of earlier tiles."""
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
        """The rows of a tile that may be among those of smallest margin, given earlier rows' best."""
        if before is not None and len(before.score) == self.n_kept:
            # Not ≤: of equal margins the earlier row stays, as a merge by row number would have it.
            counts = counts & (margin < before.score[-1])
        rows = lowest(margin, counts, self.n_kept)
        return RankedRows(margin[rows], block.start + rows.astype(np.int64), chosen_rows(block.X, rows))


class _Solved(NamedTuple):
    """A gradient, and what a factor made of it."""

    factor: Factor
    gradient: np.ndarray
    result: np.ndarray


@dataclass(frozen=True, eq=False)
class Factor:
    """A preconditioner that stays on the worker that has the Gram."""

    run: Run
    handle: Any

    def solve(self, gradient: np.ndarray) -> np.ndarray:
        """M⁻¹g for each column of g."""
        return self.run.compute(Preconditioner.apply, self.handle, gradient)


_MAX_FACTORS = 3
_MIN_CURVATURE = 1e-100
_LIGHT_SWEEPS = 4.0  # that the products of a Hessian may take


class HingePoint(NamedTuple):
    """A point of a hinge problem, with its model's reference point and sorted row numbers."""

    x: np.ndarray
    reference: np.ndarray | None = None
    known: np.ndarray | None = None
    label: float = 0.0  # the only one whose rows are asked for; 0 for both


@dataclass(frozen=True)
class FeaturesOf:
    """Rows as they were read ↦ their features, as passes compute them."""

    specification: FittedMap
    scaling: Scaling
    dtype: str

    def __call__(self, X: np.ndarray, sent: list[Arrays]) -> np.ndarray:
        ready = self.specification.build_sent(joined(sent))
        return ready.apply(self.scaling.apply(X, np.dtype(self.dtype)))


class MarginOracle:
    """Evaluates problems by passes over the rows, and applies preconditioners on the worker with the Gram.

    `grams` is None where no preconditioner is needed, or for the diagonal one of sparse features.
    """

    def __init__(self, fit: PreparedFit, plan: Plan, grams: Grams | None = None) -> None:
        problem = fit.problem
        self.run, self.problem = fit.run, problem
        self._fit, self._plan = fit, plan
        self.n_rows = fit.dataset.n_rows
        self.n_features = fit.specification.n_features
        self.fit_intercept = problem.fit_intercept
        self._grams = grams
        self.folds = problem.folds
        self._moments: RidgeMoments | None = None
        has_dual = MarginSize.of(plan).dual_rows and plan.solver == "gram"
        self.ascent = DualAscent(fit, plan, self.folds) if has_dual else None
        # A factor is D × D on its worker: it goes when the last problem that took it takes another.
        self._factors: WeakValueDictionary[float, Factor] = WeakValueDictionary()
        self._factor_of: dict[MarginProblem, Factor] = {}  # the one that each problem took last
        self._solved: dict[MarginProblem, _Solved] = {}
        self._by_hessian: set[MarginProblem] = set()  # which take no factor of the Gram
        entries = plan.size.sparse_entries
        self.is_sparse = entries > 0
        self.can_model = can_model(self.n_features, entries)
        self.rows_a_label = rows_a_label(self.n_features, entries)
        self.max_model_rows = max_model_rows(self.n_features, entries)
        self._cuts = margin_cuts(plan.size)
        # A hard margin looks at the features themselves.
        self._kept = fit.kept("light", plan, self._cuts, of_basis=not problem.is_hard)
        self._shared: dict[str, Any] = {"dtype": plan.size.dtype, "tile_rows": self._cuts.tile_rows}

    def evaluate(self, points: Mapping[MarginProblem, Point]) -> dict[MarginProblem, Evaluation]:
        """Each problem's objective and gradient at its point, and more; one pass over the rows."""
        # A second ε is one more column of the same pass, which makes the features once.
        requests = [(p, point.x, epsilon) for p, point in points.items() for epsilon in point.epsilons]
        problems = tuple(problem for problem, _, _ in requests)
        reduction = self._fit.reduction(
            self._kind, **self._shared, **self._held_out(problems), **self._of_loss(problems)
        )
        X = np.concatenate([self.columns(x) for _, x, _ in requests], axis=1)
        sent = self._point(X) | {"epsilon": np.array([epsilon for _, _, epsilon in requests])}
        sums = self._fit.sum("margins", reduction, self._cuts, sent, self._kept)
        responses: dict[MarginProblem, Evaluation] = {}
        for i, (problem, x, epsilon) in enumerate(requests):
            at = self._evaluation(problem.C, sums, i, x)
            responses[problem] = (
                replace(responses[problem], next=(epsilon, at)) if problem in responses else at
            )
        self._solve_ahead(responses)
        return responses

    def nearest_rows(self, points: Mapping[MarginProblem, HingePoint], n_kept: int) -> NearestSums:
        """Each problem's sums at its point, with `n_kept` rows a label; one pass over the rows."""
        problems, columns = tuple(points), [point.x for point in points.values()]
        references = [point.reference for point in points.values() if point.reference is not None]
        X = np.stack([*columns, *references], axis=1)
        reduction = self._fit.reduction(
            NearestRowsReduction,
            **self._shared,
            **self._held_out(problems),
            outputs=tuple(problem.output for problem in problems),
            n_kept=n_kept,
            labels=tuple(point.label for point in points.values()),
            has_reference=bool(references),
        )
        known = {f"known_{j}": p.known for j, p in enumerate(points.values()) if p.known is not None}
        return self._fit.sum("margins", reduction, self._cuts, self._point(X) | known, self._kept)

    def smallest_margins(
        self, points: Mapping[MarginProblem, np.ndarray], n_kept: int
    ) -> dict[MarginProblem, CriticalRows]:
        """The rows of smallest margin at one point of each problem, `n_kept` of each label."""
        outputs = tuple(problem.output for problem in points)
        reduction: SmallestMarginsReduction = self._fit.reduction(
            SmallestMarginsReduction, **self._shared, outputs=outputs, n_kept=n_kept
        )
        sent = self._point(np.stack(list(points.values()), axis=1))
        found = self._fit.sum("margins", reduction, self._cuts, sent, self._kept)
        return {problem: reduction.critical_rows(found, j) for j, problem in enumerate(points)}

    def _held_out(self, problems: tuple[MarginProblem, ...]) -> dict[str, Any]:
        held_out = tuple(problem.held_out for problem in problems)
        return {"folds": self.folds if any(f is not None for f in held_out) else None, "held_out": held_out}

    def _point(self, X: np.ndarray) -> dict[str, np.ndarray]:
        coef, intercept = coef_and_intercept(X, fit_intercept=self.fit_intercept)
        return {"coef": coef, "intercept": intercept}

    @property
    def targets(self) -> Targets:
        return self._fit.targets

    @property
    def features_of(self) -> FeaturesOf:
        """The map from rows that a pass returned to their features."""
        return FeaturesOf(self._fit.specification.without_arrays(), self._fit.scaling, self._shared["dtype"])

    @property
    def sent_map(self) -> list[Any]:
        """Handles on the map's arrays, for tasks."""
        return self.run.share(self._fit.specification)

    # What differs where all classes share one loss.

    _kind: type[LightReduction] = MarginReduction

    def _of_loss(self, problems: tuple[MarginProblem, ...]) -> dict[str, Any]:
        outputs = tuple(problem.output for problem in problems)
        return {"loss": self.problem.margin_loss.of_outputs(outputs), "outputs": outputs}

    def _evaluation(self, C: float, sums: Any, i: int, x: np.ndarray) -> Evaluation:
        moments, loss = self._fit.statistics.targets, self.problem.margin_loss
        mean = 1.0 if moments is None else float(moments.mean.mean())
        negligible = loss.negligible_beside(mean)
        return Evaluation.of(C, sums, i, x, fit_intercept=self.fit_intercept, negligible=negligible)

    def columns(self, x: np.ndarray) -> np.ndarray:
        """A point as columns, one an output of the problem."""
        return x[:, None]

    def preconditioner(self, problem: MarginProblem, curvature: float) -> Precondition:
        """g ↦ (h · Gram + I)⁻¹g of a problem's gradients, for a power of four h near the curvature.

        Problems of similar curvature share a factor, freed when its last problem needs another. Of three
        factors the nearest is used.
        """
        self._by_hessian.discard(problem)
        if self._grams is None and self.ascent is not None:  # the dual leaves little to do
            self._grams = factor_gram(self._fit, self._plan)
        if self._grams is None:
            diagonal = self._diagonal(curvature)
            return lambda gradient: self._by_columns(diagonal.apply, gradient)
        # Where the curvature is so large that I would be lost in the Gram's rounding, it is the inverse at
        # the largest safe curvature, times the ratio of the two.
        max_curvature = 1 / self._grams.noise_floor()
        factor = self._factor_of[problem] = self._factor(min(curvature, max_curvature))
        ratio = min(1.0, max_curvature / curvature) if curvature > 0 else 1.0
        return lambda gradient: self._applied(problem, factor, gradient) * ratio

    def _factor(self, curvature: float) -> Factor:
        """The factor of a power of four near the curvature, one of three at most."""
        assert self._grams is not None
        level = float(np.floor(np.log2(max(_MIN_CURVATURE, curvature)) / 2))
        if level not in self._factors and len(self._factors) >= _MAX_FACTORS:
            level = min(self._factors, key=lambda other: abs(other - level))
        factor = self._factors.get(level)
        if factor is None:
            handle = self.run.submit(preconditioner_of, self._grams.total, 4.0**level, self._grams.system)
            factor = self._factors[level] = Factor(self.run, handle)
        return factor

    def _solve_ahead(self, responses: Mapping[MarginProblem, Evaluation]) -> None:
        """Apply to the gradients of a pass the factors that their problems take, in one task a factor."""
        # A task for each of ten classes took as long as a sweep of features that are kept. A trial point of a
        # line search that is rejected has one for nothing. A smooth loss takes its first factor at the
        # curvature of its first point.
        before, self._solved, self._factor_of = self._factor_of, {}, {}
        if self._grams is None or len(responses) == 1:
            self._factor_of = {p: factor for p, factor in before.items() if p in responses}
            return
        is_smooth, max_curvature = self.problem.smooth_solver == "lbfgs", 1 / self._grams.noise_floor()
        for problem, at in responses.items():
            if problem in self._by_hessian:
                continue
            if problem in before:
                self._factor_of[problem] = before[problem]
            elif is_smooth:
                self._factor_of[problem] = self._factor(min(at.curvature, max_curvature))
        for factor in dict.fromkeys(self._factor_of.values()):
            theirs = [p for p, own in self._factor_of.items() if own is factor]
            found = self._by_columns(factor.solve, np.stack([responses[p].gradient for p in theirs], axis=1))
            for i, problem in enumerate(theirs):
                # A view would keep the solutions of all problems.
                self._solved[problem] = _Solved(factor, responses[problem].gradient, found[:, i].copy())

    def _applied(self, problem: MarginProblem, factor: Factor, gradient: np.ndarray) -> np.ndarray:
        ready = self._solved.get(problem)
        # By identity: the solver asks for the very gradient that it was sent, or for another one.
        if ready is not None and ready.gradient is gradient and ready.factor is factor:
            return ready.result
        return self._by_columns(factor.solve, gradient)

    def _by_columns(self, solve: Precondition, gradients: np.ndarray) -> np.ndarray:
        """M⁻¹g of a gradient, or of several in columns, as one solve for all their columns."""
        members = gradients[:, None] if gradients.ndim == 1 else gradients
        found = solve(np.concatenate([self.columns(g) for g in members.T], axis=1))
        solved = [part.ravel() for part in np.split(found, members.shape[1], axis=1)]
        return solved[0] if gradients.ndim == 1 else np.stack(solved, axis=1)

    def _diagonal(self, curvature: float) -> DiagonalPreconditioner:
        """The same for the Gram's diagonal; the first call takes a sweep."""
        if self._moments is None:
            reduction = self._fit.reduction(MomentsReduction, **self._shared, offset=None, held_out=(None,))
            k = self._fit.targets.n_outputs
            # Of the sums only Σ s·z² and Σ s·z are taken, which no model enters.
            zero = {"coef": np.zeros((self.n_features, k)), "intercept": np.zeros(k)}
            (self._moments,) = self._fit.sum("diagonal", reduction, self._cuts, zero, self._kept)
        assert self._moments is not None
        equations = RidgeEquations.of(self._moments, fit_intercept=self.fit_intercept)
        return DiagonalPreconditioner(
            max(_MIN_CURVATURE, curvature),
            equations.z_mean,
            self._moments.weight,
            self.fit_intercept,
            equations.G_diagonal,
        )

    def hessian_after(self, n_problems: int) -> int | None:
        """After how many points so many problems take Hessians; None if the plan has none for them."""
        size = MarginSize.of(self._plan)
        if self._grams is None or n_problems > size.n_hessians:
            return None
        # By then the light sweeps of several took about twice as long as the pass for their Hessians does,
        # and most fits have ended. On seven classes of covtype (40,000 rows, D = 1024) and C = 1, light
        # sweeps alone took 3.3 s; with Hessians after half as many points it was 4.5 s. At C = 100 the fit
        # took 7 s with Hessians; without them, the gap was still open after 18 s. One problem takes its
        # Hessian after nine points: its sweeps are as long as those of several where features are not kept.
        waits = math.ceil(2 * size.hessian_sweeps) if n_problems > 1 else 0
        return max(POINTS_A_HESSIAN, waits)

    def hessians(self, points: Mapping[MarginProblem, Evaluation]) -> dict[MarginProblem, Hessian | None]:
        """Each problem's Hessian at a point, from a stride of rows that leaves enough curved ones.

        None where no row has a curved loss. Problems of one stride take one sweep.
        """
        found, few = dict.fromkeys(points, None), self._few_curved()
        by_stride: dict[int, list[MarginProblem]] = {}
        for problem, at in points.items():
            if at.n_curved:
                by_stride.setdefault(gram_stride(at.n_curved, self.n_features, few), []).append(problem)
        for stride, problems in by_stride.items():
            self._by_hessian.update(problems)
            found |= {
                problem: Hessian(factor.solve, is_light=points[problem].n_curved <= few)
                for problem, factor in self._curved({p: points[p].x for p in problems}, stride).items()
            }
        return found

    def _few_curved(self) -> int:
        """The curved rows whose products take no longer than four light sweeps."""
        size = MarginSize.of(self._plan)
        if size.n_hessians == 1:
            return int(_LIGHT_SWEEPS * size.light_flops / size.hessian_size**2)
        # Of several problems: sweeps of kept features, less what making the features again takes.
        left = _LIGHT_SWEEPS * size.kept_sweep_flops - size.n_rows * size.basis_flops
        return max(0, int(left / size.n_hessians / size.hessian_size**2))

    def _curved(self, points: Mapping[MarginProblem, np.ndarray], stride: int) -> dict[MarginProblem, Factor]:
        """The factors of the problems' Hessians, of one row in `stride`; one sweep."""
        assert self._grams is not None
        grams, cuts = self._grams, replace(self._plan.size, gram_stride=stride).segmentation()
        # All problems together gather as many rows as a Gram's tile has, for products of 512 at least.
        tile_rows = max(MIN_GATHERED_ROWS, min(cuts.tile_rows, self._plan.tile_rows) // len(points))
        reduction = self._fit.reduction(
            CurvatureGramReduction,
            dtype=self._plan.size.dtype,
            tile_rows=tile_rows,
            light_rows=self._cuts.tile_rows,
            folds=sample_of(self._fit, stride),
            **self._of_loss(tuple(points)),
        )
        sent = self._point(np.stack(list(points.values()), axis=1))
        handle = self.run.reduce("Hessian", self._fit.dataset, reduction, cuts, sent)
        factors = {}
        for position, problem in enumerate(points):
            # Each sampled row stands for `stride` of them.
            curvature = stride * min(problem.C, 1 / grams.noise_floor())
            factor = self.run.submit(hessian_factor, handle, position, curvature, grams.system)
            factors[problem] = Factor(self.run, factor)
        return factors


class SoftmaxOracle(MarginOracle):
    """The same where all classes share one loss; a point has shape (D + 1, k) or (D, k), flattened."""

    _kind = SoftmaxReduction

    def _of_loss(self, problems: tuple[MarginProblem, ...]) -> dict[str, Any]:
        return {"sigma": self.problem.margin_loss.clear_margin}

    def _evaluation(self, C: float, sums: Any, i: int, x: np.ndarray) -> Evaluation:
        return Evaluation.of_softmax(C, sums, i, x, fit_intercept=self.fit_intercept)

    def columns(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, self._fit.targets.n_outputs)


def hessian_factor(
    packed: np.ndarray, position: int, curvature: float, problem: GramProblem
) -> Preconditioner:
    """The inverse of one of several Hessians, whose sums are packed triangles."""
    # Rows of a Hessian are [z | 1], without targets.
    of_features = replace(problem, n_targets=0, offset=None)
    total = total_gram([packed[position : position + 1]], np.ones(1), of_features)
    return preconditioner_of(total, curvature, of_features)


def preconditioner_of(total: np.ndarray, curvature: float, problem: GramProblem) -> Preconditioner:
    """The preconditioner that a Gram gives: of rows alike, or weighted by their curvature."""
    return Preconditioner.of(problem.system(total), curvature)


# Few rows: ascent in their multipliers, on the Gram of the rows.


_PROBLEMS_A_TASK = 8


def _masks_of(mapped: MappedRows, folds: Folds) -> tuple[np.ndarray, np.ndarray]:
    """Whether the model of each fold is fitted to each row, and whether the fold judges it."""
    return folds.masks(mapped.keys, range(folds.n_folds))


class DualAscent:
    """The problems of a fit on the Gram of its rows, each going on from what it reached before."""

    def __init__(self, fit: PreparedFit, plan: Plan, folds: Folds) -> None:
        self._run, self._fit_intercept = fit.run, fit.problem.fit_intercept
        self._loss = fit.problem.margin_loss
        mapped = fit.mapped_rows(plan)
        self._rows = fit.run.submit(dual_rows, mapped)
        self._n_rows = fit.dataset.n_rows
        self._is_fitted, self._is_judged = fit.run.compute(_masks_of, mapped, folds)
        # By output and held-out fold: C and the multipliers.
        self._reached: dict[tuple[int, int | None], tuple[float, np.ndarray]] = {}

    def ascend(self, problems: Mapping[MarginProblem, Any], tol: float) -> dict[MarginProblem, DualPoint]:
        """Each problem's point after as many steps as rows, fewer where its gap is closed.

        They count as a pass of light sweeps, and read no row.
        """
        started, calls, order = time.perf_counter(), [], []
        # Problems of one fold share their masks, and a task's products K·α are one matrix product.
        for held_out, group in groupby(problems, key=lambda problem: problem.held_out):
            members = list(group)
            masks = None
            if held_out is not None:
                masks = self._is_fitted[:, held_out], self._is_judged[:, held_out]
            for first in range(0, len(members), _PROBLEMS_A_TASK):
                some = members[first : first + _PROBLEMS_A_TASK]
                outputs, C = [problem.output for problem in some], [problem.C for problem in some]
                A, loss = np.stack([self._start(problem) for problem in some]), self._loss.of_outputs(outputs)
                calls.append((self._rows, loss, outputs, C, masks, A, self._fit_intercept, tol))
                order += some
        found = [at for some in self._run.map(ascend_pairs, calls, group="margins") for at in some]
        self._run.sweeps.append(("margins", time.perf_counter() - started))
        points = dict(zip(order, found, strict=True))
        for problem, at in points.items():
            self._reached[problem.output, problem.held_out] = problem.C, at.a
        return points

    def _start(self, problem: MarginProblem) -> np.ndarray:
        """Multipliers to go on from: of the last C, or for the fit to all rows the mean of the folds."""
        # In proportion to C, so that rows at their bounds stay there.
        key = problem.output, problem.held_out
        if key in self._reached:
            C, a = self._reached[key]
            return a * (problem.C / C)
        folds = [at for (output, _), at in self._reached.items() if output == problem.output]
        if problem.held_out is not None or not folds:
            return np.zeros(self._n_rows)
        # A row's multiplier is 0 in the folds whose models are not fitted to it.
        n_fitted = np.maximum(1, self._is_fitted.sum(axis=1))
        return np.sum([a * (problem.C / C) for C, a in folds], axis=0) / n_fitted


def dual_rows(mapped: MappedRows) -> DualRows:
    """The rows with their Gram."""
    Z = mapped.Z.astype(np.float64, copy=False)
    # An overflow is told in words below.
    with np.errstate(over="ignore", invalid="ignore"):
        K = Z @ Z.T
    if not np.isfinite(K).all():
        raise InputError(NOT_FINITE)
    return DualRows(Z, K, mapped.Y, mapped.s)


# What the passes of margin losses take.

MAX_BLOCK_TILES = 8
MIN_GATHERED_ROWS = 512  # of a product of a Hessian, of each that a sweep sums
_KEPT_SWEEP_FLOPS = 30.0  # a row, feature and output
_KEPT_BYTES = 33  # of a row's numbers beside X
_ENTRY_BYTES = 12  # of a sparse number in float64


@dataclass(frozen=True)
class MarginSize(Size):
    """The size of a fit whose passes are those of margin losses."""

    n_problems: int = 0  # that a pass serves; 0 for ridge by SGD
    model_rows: int = 0  # rows in an active-set model, whose features are held at once
    n_hessians: int = 0  # of a smooth loss, one an output, that a sweep sums together; 0 for none
    dual_rows: int = 0  # all rows, where a loss with corners is solved on their Gram; 0 where it is not

    @classmethod
    def of(cls, plan: Plan) -> MarginSize:
        """The size of a plan that was counted with one."""
        assert isinstance(plan.size, cls)
        return plan.size

    @property
    def kept_sweep_flops(self) -> float:
        """Flops of a square product that take about as long as a light sweep of one problem an output."""
        # Features are kept, so the sweep is bound by memory and by losses: 0.1 s for 40,000 rows, D = 1024
        # and seven outputs, and 0.09 s for 20,000, 2048 and ten, where products had 50 to 100 Gflop/s.
        return _KEPT_SWEEP_FLOPS * self.n_rows * self.n_features * self.n_outputs

    @property
    def hessian_size(self) -> int:
        """Columns of the rows [z | 1] that a Hessian sums."""
        return self.n_features + 1

    @property
    def hessian_sweeps(self) -> float:
        """Light sweeps of kept features that take as long as the Hessians of all outputs, from a sample."""
        D = self.n_features
        sample = self.n_rows / gram_stride(self.n_rows, D)
        each = sample * (self.hessian_size**2 + self.triangle_numbers) + 2 / 3 * float(D) ** 3
        return (self.n_rows * self.basis_flops + self.n_outputs * each) / self.kept_sweep_flops


def margin_cuts(size: Size) -> Segmentation:
    """The cuts of a light sweep of margin problems."""
    if size.sparse_entries:
        return sparse_segmentation(size.n_rows, size.sparse_entries)
    tile_rows = margin_tile_rows(size.n_features, np.dtype(size.dtype), size.map_cost.min_tile_rows)
    return light_segmentation_of_features(size.n_rows, size.n_features, tile_rows)


def margin_peak_bytes(size: MarginSize, k: int, threads: int) -> int:
    """The largest resident set above idle in a light sweep of k vectors.

    Sums of hinge problems hold rows for their models, as they are stored.
    """
    s, kept = size, 0.0
    if s.model_rows:
        n_kept = min(WIDENING * rows_a_label(s.n_features, s.sparse_entries), s.n_rows)
        # A pass that widens a model keeps the most: `WIDENING` times the rows of one label.
        kept = n_kept * _kept_row_bytes(s) * s.n_problems
    return light_peak_bytes(s, k, threads, margin_cuts(s), MAX_BLOCK_TILES, kept)


def _kept_row_bytes(size: Size) -> int:
    return size.row_bytes + _KEPT_BYTES


def model_peak_bytes(size: MarginSize, threads: int) -> int:
    """The largest resident set above idle in solving models, one a thread; others wait with their rows."""
    s = size
    n_rows = min(s.model_rows, s.n_rows)
    if not n_rows:
        return 0
    if s.sparse_entries:
        # As they are made, signed, squared, and while their formats change.
        features = n_rows * s.row_entries * (s.itemsize + 4 + 4 * _ENTRY_BYTES) + 8 * 8 * s.n_features
    else:
        # As they are made, signed, and of the rows in a Newton step, beside the step's matrices.
        features = n_rows * s.n_features * (s.itemsize + 2 * 8) + 6 * 8 * s.gram_size**2
    tasks = min(threads, s.n_problems)
    rows = n_rows * _kept_row_bytes(s) * (s.n_problems + tasks)
    return int(tasks * features + rows + s.map_bytes + SLACK_BYTES)


# Models of few rows.

_MAX_MODEL_FEATURES = 4096  # with more, a Newton step of a model costs more than many sweeps
_MIN_LABEL_ROWS, _MAX_LABEL_ROWS, _LABEL_ENTRIES = 2**10, 2**14, 2**21
_GROWTH, _MIN_GROWN = 8, 2**14
WIDENING = 4
"""A pass for a model without a minimum keeps so many times the rows of one label, and none of the other."""


def can_model(n_features: int, sparse_entries: int) -> bool:
    """Whether active-set models are worth their steps; with sparse features these are always cheap."""
    return sparse_entries > 0 or n_features <= _MAX_MODEL_FEATURES


def rows_a_label(n_features: int, sparse_entries: int) -> int:
    """How many rows of each label a sweep keeps for a model."""
    if sparse_entries:
        # They may be more than the rows: as many rows as have two million entries.
        return max(_MIN_LABEL_ROWS, min(_MAX_LABEL_ROWS, _LABEL_ENTRIES // sparse_entries))
    # As many rows as features can be between their bounds at an optimum.
    return max(_MIN_LABEL_ROWS, n_features)


def max_model_rows(n_features: int, sparse_entries: int) -> int:
    """How many rows a model may grow to."""
    # For a rare class against the rest many rows may be on either side of the hinge, whatever the number of
    # features: hence a least number.
    return max(_MIN_GROWN, _GROWTH * rows_a_label(n_features, sparse_entries))
