"""Stochastic gradient descent in the metric of a sample's leading eigenvectors.

The Hessian of an objective per unit of row weight, mean ℓ + (λ/2)·‖w‖², is near h·S + λ·I for the covariance
S of the features and a mean h of ℓ″. The metric keeps q eigenvectors V of S with their eigenvalues e, and
one eigenvalue ε for all other directions (Ma and Belkin 2017, "Diving into the shallows"):

    M = V·diag(h·e + λ)·Vᵀ + (h·ε + λ)·(I − V·Vᵀ).

With all D eigenvectors M is the whole matrix; a few make a metric where no D × D array fits. The eigenvectors
of sparse features are kept as combinations of the sampled rows.

From a point whose objective and gradient over all rows are known, every segment takes mini-batch steps over
its own rows (`LocalSteps`), and the next point to evaluate is the mean of their last points. Steps, batches
and metric follow from the spectrum of a sample, so there is no learning rate. Where rows are not shuffled,
local steps may increase the objective; a line search shortens the step, so that it never grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.linalg import norm
from scipy.linalg import eigh
from scipy.sparse import csr_matrix, issparse

from distrff.errors import InputError
from distrff.solvers.lbfgs import lbfgs
from distrff.solvers.objective import Evaluation, Loss
from distrff.utils.linalg import transposed_product, values_of

_ARRAYS = ("eigenvalues", "rest", "z_mean")
_MAX_BYTES = 2**26
# The smaller eigenvalues of a sample are far from those of all rows.
_ROWS_PER_DIRECTION = 4
_MIN_SHARE = 1e-12  # of the largest eigenvalue: below it, rounding


@dataclass(frozen=True, eq=False)
class SpectralMetric:
    """M for any h and λ, as a map of gradients.

    Attributes
    ----------
    directions : ndarray of shape (D, q), float32 or float64, or RowDirections
        V, the leading eigenvectors of the covariance of the features; without an intercept, of their second
        moments.
    eigenvalues : ndarray of shape (q,)
        e, descending.
    rest : float
        ε, the largest eigenvalue that is left out; the smallest kept one where none is.
    spread : float
        The sum of all eigenvalues that are left out.
    unseen : float
        The share of one row in the trace: directions with smaller eigenvalues may be those of few rows, which
        the sample has missed.
    z_mean : ndarray of shape (D,)
        Zeros without an intercept.
    """

    directions: np.ndarray | RowDirections
    eigenvalues: np.ndarray
    rest: float
    spread: float
    unseen: float
    z_mean: np.ndarray
    fit_intercept: bool

    @classmethod
    def of_rows(
        cls, Z: Any, sample_weight: np.ndarray | None, n_directions: int, *, fit_intercept: bool
    ) -> SpectralMetric:
        """The metric of the features of sampled rows, in their dtype; of sparse rows in float64.

        `Z` of shape (m, D) is an array or a scipy CSR matrix; its rows are drawn evenly over all rows. If
        m < D, at most m/4 of the `n_directions` are kept, and the eigenvectors come from the m × m products
        of rows: m²·D + 9·m³ flops, else m·D² + 9·D³.
        """
        n_rows, D = Z.shape
        s = np.ones(n_rows) if sample_weight is None else sample_weight
        weight = float(s.sum())
        if not weight > 0:
            raise InputError(
                f"the {n_rows} sampled rows have the total weight {weight:g}: give rows of positive weight"
            )
        V: np.ndarray | RowDirections
        if issparse(Z) and n_rows < D:
            q, eigenvalues, V, z_mean, norms = _of_sparse_rows(Z, s / weight, n_directions, fit_intercept)
        else:
            Z = Z.toarray() if issparse(Z) else Z
            z_mean = s @ Z / weight if fit_intercept else np.zeros(D)
            T = (Z - z_mean.astype(Z.dtype)) * np.sqrt(s / weight).astype(Z.dtype)[:, None]
            norms = np.square(T).sum(axis=1, dtype=np.float64)
            if n_rows >= D:
                q = min(n_directions, D)
                eigenvalues, U = eigh((T.T @ T).astype(np.float64), check_finite=False)
                eigenvalues, U = eigenvalues[::-1], U[:, ::-1]
            else:
                q, eigenvalues, U = _leading((T @ T.T).astype(np.float64), n_directions)
                # Eigenvectors of TᵀT from those of TTᵀ: Tᵀu·e^(−½), and `_leading` has divided by √e.
                U = T.T @ U.astype(Z.dtype)
            V = np.ascontiguousarray(U[:, :q], dtype=Z.dtype)
        trace = max(0.0, float(norms.sum()))
        spread = max(0.0, trace - float(eigenvalues[:q].sum())) if q < D else 0.0
        eigenvalues = np.maximum(eigenvalues, _MIN_SHARE * max(0.0, float(eigenvalues[0])))
        return cls(
            directions=V,
            eigenvalues=eigenvalues[:q].copy(),
            rest=float(eigenvalues[min(q, len(eigenvalues) - 1)]),
            spread=spread,
            # The mean of the squared norms, weighted by themselves: large rows matter.
            unseen=float(norms @ norms) / trace if trace > 0 else 0.0,
            z_mean=z_mean.astype(np.float64),
            fit_intercept=fit_intercept,
        )

    def dimension(self, curvature: np.ndarray, penalty: np.ndarray) -> np.ndarray:
        """d = tr(h·S·M⁻¹) for each h and λ, the effective dimension, plus 1 for an intercept.

        It is the mean of h·‖z − z̄‖²_{M⁻¹} over the rows: a batch of d rows gives one good step.
        """
        curved = self.eigenvalues[:, None] * curvature
        left = curvature * self.spread / (curvature * self.rest + penalty)
        return (curved / (curved + penalty)).sum(axis=0) + left + self.fit_intercept

    def solve(self, gradient: np.ndarray, curvature: np.ndarray, penalty: np.ndarray) -> np.ndarray:
        """M⁻¹g for gradients of shape (D + 1, k), or (D, k), and h > 0 and λ > 0 of shape (k,).

        Gradients are of the objective per unit of row weight, by w and by b. 4·D·q·k flops, in the dtype of
        the directions; 4·m·(P + q)·k for those of m rows of P entries.
        """
        by_w = gradient
        if self.fit_intercept:
            by_w = gradient[:-1] - np.outer(self.z_mean, gradient[-1])
        V = self.directions
        along = V.along(by_w) if isinstance(V, RowDirections) else V.T @ by_w.astype(V.dtype)
        elsewhere = 1 / (curvature * self.rest + penalty)
        # M⁻¹ = (I − V·Vᵀ)/(h·ε + λ) + V·diag(1/(h·e + λ))·Vᵀ: along V the second fraction replaces the first.
        shares = (1 / (self.eigenvalues[:, None] * curvature + penalty) - elsewhere) * along
        combined = V.combined(shares) if isinstance(V, RowDirections) else V @ shares.astype(V.dtype)
        W = elsewhere * by_w + combined
        if not self.fit_intercept:
            return W
        return np.vstack([W, gradient[-1] / curvature - self.z_mean @ W])

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that `from_arrays` takes in another process."""
        V = self.directions
        directions = {"directions": V} if isinstance(V, np.ndarray) else V.arrays()
        return directions | {name: np.asarray(getattr(self, name)) for name in _ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], *, fit_intercept: bool) -> SpectralMetric:
        """A metric for `solve`; `spread` and `unseen`, which are not sent, are zero."""
        # Arrays from a network may be unaligned. NumPy multiplies those without BLAS: slowly, and with other
        # bits.
        e, rest, z_mean = (np.require(arrays[name], requirements="A") for name in _ARRAYS)
        V: np.ndarray | RowDirections
        if "directions" in arrays:
            V = np.require(arrays["directions"], requirements="A")
        else:
            V = RowDirections.from_arrays(arrays, len(z_mean))
        return cls(V, e, float(rest), 0.0, 0.0, z_mean, fit_intercept)


def _of_sparse_rows(
    Z: Any, share: np.ndarray, n_directions: int, fit_intercept: bool
) -> tuple[int, np.ndarray, RowDirections, np.ndarray, np.ndarray]:
    """q, the leading eigenvalues, V, z̄ and the squared norms of the centred rows, without D × D."""
    Z = Z.astype(np.float64)
    K = (Z @ Z.T).toarray()
    root, z_mean = np.sqrt(share), np.zeros(Z.shape[1])
    if fit_intercept:
        z_mean, by_row = share @ Z, K @ share
        # ⟨z_i − z̄, z_j − z̄⟩ from the products of rows, since centred rows would not be sparse.
        K += share @ by_row - by_row[:, None] - by_row
    K *= root[:, None] * root
    q, eigenvalues, U = _leading(K, n_directions)
    B = root[:, None] * U[:, :q]
    if fit_intercept:
        # V = (Z − 1·z̄ᵀ)ᵀB = Zᵀ(B − share·1ᵀB), as z̄ = Zᵀ·share.
        B -= np.outer(share, B.sum(axis=0))
    return q, eigenvalues, RowDirections(Z, B), z_mean, K.diagonal()


def _leading(K: np.ndarray, n_directions: int) -> tuple[int, np.ndarray, np.ndarray]:
    """q, the leading q + 1 eigenvalues of the m × m products of rows, descending, and U·e^(−½)."""
    q = max(1, min(n_directions, len(K) // _ROWS_PER_DIRECTION))
    # One more than are kept: the first that is left out is ε.
    leading = [max(0, len(K) - q - 1), len(K) - 1]
    eigenvalues, U = eigh(K, subset_by_index=leading, check_finite=False)
    eigenvalues, U = eigenvalues[::-1], U[:, ::-1]
    floor = max(_MIN_SHARE * float(eigenvalues[0]), float(np.finfo(np.float64).tiny))
    return q, eigenvalues, U / np.sqrt(np.maximum(eigenvalues, floor))


def max_directions(n_features: int, dtype: np.dtype) -> int:
    """q: all D, fewer where V would be larger than 64 MiB."""
    return max(1, min(n_features, _MAX_BYTES // (n_features * np.dtype(dtype).itemsize)))


# Orthonormal directions in the space of many features, as combinations of few sparse rows.
#
# V = ZᵀB for m rows Z of P entries each and B of shape (m, q): m·P + m·q numbers in place of D·q, and
# products that cost as little. Eigenvectors of the rows' own covariance are of this form (Ma and Belkin
# 2019, "Kernel machines that adapt to GPUs for effective large batch training", keep those of a kernel so).


@dataclass(frozen=True, eq=False)
class RowDirections:
    """V = ZᵀB.

    Attributes
    ----------
    Z : scipy CSR matrix of shape (m, D)
    B : ndarray of shape (m, q)
    """

    Z: Any
    B: np.ndarray

    @property
    def row_entries(self) -> int:
        """The mean number of entries of a row."""
        return -(-self.Z.nnz // self.Z.shape[0])

    def along(self, X: np.ndarray) -> np.ndarray:
        """VᵀX: (D, k) → (q, k)."""
        return self.B.T @ (self.Z @ X)

    def combined(self, shares: np.ndarray) -> np.ndarray:
        """V times the shares: (q, k) → (D, k)."""
        return self.Z.T @ (self.B @ shares)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that `from_arrays` takes."""
        return {"indptr": self.Z.indptr, "indices": self.Z.indices, "data": self.Z.data, "B": self.B}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], n_features: int) -> RowDirections:
        """The directions of `arrays`."""
        indptr, indices, data, B = (
            np.require(arrays[name], requirements="A") for name in ("indptr", "indices", "data", "B")
        )
        return cls(csr_matrix((data, indices, indptr), shape=(len(B), n_features), copy=False), B)


# The ε of the smoothed hinge. Its optimum is about a thousandth above the hinge's own (measured: 0.06 to
# 0.11 % for λ from 1e-3 to 1e-6), and enough rows of a batch are still curved. For 4,000 rows of 25 features
# with scales that differ a thousandfold it is 0.1 to 1.4 % above, depending on the labels. With more features
# than rows most margins end within ε, and 0.1 left up to 1.2 %; hence the smaller one of sparse features.
EPSILON, SPARSE_EPSILON = 0.1, 0.03
_MIN_CURVATURE = 1e-6  # of the loss's bound
_MIN_BATCH = 256
_BATCH_BYTES = 80 * 2**20
# A solve in the metric costs as much as the products of q/2 rows; with q/4 rows it is two thirds of a step.
# With sparse features a step changes all D coefficients, which costs as much as the products of D/2 entries.
_DIRECTIONS_PER_ROW, _FEATURES_PER_ENTRY = 4, 2
_SPARSE_BYTES = 12
_MIN_STEPS = 4
_FINISHING_SWEEPS = 3
_CAUTION = 4.0  # the factor of each epoch that led too far
_MAX_TRIALS = 3
_SUFFICIENT_DECREASE = 1e-4
_SHORTEST = 1e-3
_MAX_CAUTION = 4  # up to here a step that led too far is no sign that the optimum is near


@dataclass(frozen=True, eq=False)
class Epoch:
    """The request for one pass of local steps; the response is the mean of the segments' last points.

    `curvature` is h, a mean of ℓ″ over the rows. `caution` counts the epochs that led too far: each makes
    steps shorter, most of all in directions that the sample hardly has.
    """

    start: Evaluation
    curvature: float
    caution: int


Request = np.ndarray | Epoch
SolverGenerator = Generator[Request, Any, Evaluation]


@dataclass(frozen=True, eq=False)
class SGDProblem:
    """The objective and metric that all binary problems of a fit share.

    The metric is in the coordinates of the features, `weight` is Σs over all rows, and `curvature_bound` that
    of the smooth loss.
    """

    metric: SpectralMetric
    C: float
    weight: float
    curvature_bound: float

    @property
    def penalty(self) -> float:
        """λ = 1/(C·Σs)."""
        return 1 / (self.C * self.weight)

    def damping(self, curvature: float, caution: int) -> float:
        """The λ of the metric."""
        return self.penalty + (curvature * self.metric.unseen * _CAUTION ** (caution - 1) if caution else 0.0)

    def curvature(self, at: Evaluation, caution: int) -> float:
        """h for a metric at a point: the mean of ℓ″ over the rows, or more where that is too small.

        A Newton step in the metric promises a decrease of ½·gᵀM⁻¹g, and the objective cannot fall below
        zero. Where few rows are curved so far (for the hinge none at w = 0), h is doubled until the promised
        decrease is possible.
        """
        g, bound = at.gradient, self.curvature_bound
        # Evaluations have C times the mean of ℓ″.
        h = max(at.curvature / self.C, _MIN_CURVATURE * bound)
        while h < bound and 0.5 * float(g @ self.solve(g, h, caution)) > at.value:
            h = min(2 * h, bound)
        return h

    def solve(self, gradient: np.ndarray, curvature: float, caution: int) -> np.ndarray:
        """The Newton step M⁻¹g of a gradient of the objective, or of each column of several."""
        per_weight = gradient.reshape(len(gradient), -1) / (self.C * self.weight)
        k = per_weight.shape[1]
        damping = np.full(k, self.damping(curvature, caution))
        return self.metric.solve(per_weight, np.full(k, curvature), damping).reshape(gradient.shape)

    def local_start(self, epochs: Sequence[Epoch]) -> LocalStart:
        """The start of the segments' steps for the epochs of several problems."""
        curvature = np.array([epoch.curvature for epoch in epochs])
        damping = np.array([self.damping(epoch.curvature, epoch.caution) for epoch in epochs])
        unevenness = np.array([_CAUTION**epoch.caution for epoch in epochs])
        return LocalStart(
            X=np.stack([epoch.start.x for epoch in epochs], axis=1),
            gradient=np.stack([epoch.start.gradient for epoch in epochs], axis=1) / (self.C * self.weight),
            curvature=curvature,
            damping=damping,
            dimension=self.metric.dimension(curvature, damping) * unevenness,
            penalty=self.penalty,
        )


def batch_rows(metric: SpectralMetric, start: LocalStart, segment_rows: int) -> int:
    """The rows of a batch: as many as the effective dimension, within limits.

    There are not so few rows that the solve in the metric takes more than two thirds of a step, nor so many
    that a segment has less than four steps or that their features exceed 80 MiB.
    """
    # Fewer rows than the dimension would take more and shorter steps, of r/(r + d) each, to the same point;
    # many more would be wasted on directions that are already known.
    V = metric.directions
    if isinstance(V, np.ndarray):
        row_bytes, as_costly = len(V) * V.itemsize, len(metric.eigenvalues) / _DIRECTIONS_PER_ROW
    else:
        row_bytes = _SPARSE_BYTES * V.row_entries
        as_costly = len(metric.z_mean) / (_FEATURES_PER_ENTRY * V.row_entries)
    # It is rounded to a power of two. It changes a little with every epoch, and features that stay in memory
    # are those of a batch: with other batches they are all made again.
    dimension = 2.0 ** round(math.log2(max(float(start.dimension.max()), _MIN_BATCH)))
    wanted = max(dimension, as_costly)
    return int(max(1, min(wanted, segment_rows / _MIN_STEPS, _BATCH_BYTES / row_bytes)))


def ridge_start(
    metric: SpectralMetric, moment: np.ndarray, y_mean: np.ndarray, penalty: float, curvature: float
) -> np.ndarray:
    """The ridge models of a sample in the metric, of shape (D + 1, k) or (D, k), as starting points.

    `moment` is Σ s (z − z̄)(y − ȳ)ᵀ / Σs of the sample, (D, k), uncentred without an intercept: B of a
    `RidgeSystem` over its weight. `penalty` is λ = 1/(C·Σs) of all rows, `curvature` the bound of ℓ″ (2 for a
    hinge).
    """
    k = moment.shape[1]
    if not metric.fit_intercept:
        return metric.solve(curvature * moment, np.full(k, curvature), np.full(k, penalty))
    centred = np.vstack([curvature * moment, np.zeros(k)])
    # The metric takes gradients by w and b, whose part by w − z̄·b is what is centred here.
    X = metric.solve(centred, np.full(k, curvature), np.full(k, penalty))
    X[-1] += y_mean
    return X


def sgd(start: Evaluation, problem: SGDProblem, tol: float, finished: Callable[[], bool]) -> SolverGenerator:
    """Yield points and epochs, and return the last evaluation.

    It ends when an epoch lowers the objective by a share of less than `tol`, and so do three sweeps of L-BFGS
    in the same metric from there, or when `finished` says that the point just evaluated is good enough, by
    the gap of a certificate. Evaluations are of the smooth loss: their `value`, `gradient` and `curvature`
    are used. An epoch and the evaluation of its end point are two sweeps.
    """
    at, caution = start, 0
    while not finished():
        curvature = problem.curvature(at, caution)
        mean: np.ndarray = yield Epoch(at, curvature, caution)
        found = yield from _along(at, mean - at.x)
        if finished():
            return at if found is None else found
        # The line search had to shorten the step to the mean.
        too_far = found is None or float(norm(found.x - at.x)) < 0.99 * float(norm(mean - at.x))
        caution += too_far
        if found is None:
            # An epoch that leads nowhere is followed by a Newton step in the metric, whose direction always
            # descends.
            found = yield from _along(at, -problem.solve(at.gradient, curvature, caution))
        if found is None or finished():
            return at if found is None else found
        settled = at.value - found.value <= tol * abs(at.value)
        at = found
        if settled and not (too_far and caution <= _MAX_CAUTION):
            found = yield from _finish(at, problem, caution, finished)
            if finished() or at.value - found.value <= tol * abs(at.value):
                return found
            at = found
    return at


def _along(at: Evaluation, direction: np.ndarray) -> Generator[np.ndarray, Evaluation, Evaluation | None]:
    """The first of three trial points along a direction with a sufficient decrease, or None."""
    slope, step = float(at.gradient @ direction), 1.0
    if not slope < 0:
        return None
    for _ in range(_MAX_TRIALS):
        found = yield at.x + step * direction
        if found.value < at.value + _SUFFICIENT_DECREASE * step * slope:
            return found
        # The minimum of the parabola through both values with the slope at `at`, at most half the step.
        above = found.value - at.value - slope * step
        lowest = -0.5 * slope * step**2 / above if np.isfinite(above) else 0.0
        step = min(max(lowest, _SHORTEST * step), 0.5 * step)
    return None


def _finish(
    at: Evaluation, problem: SGDProblem, caution: int, finished: Callable[[], bool]
) -> SolverGenerator:
    """Take a few sweeps of L-BFGS, and return the best evaluation."""

    def precondition(curvature: float) -> Callable[[np.ndarray], np.ndarray]:
        h = max(curvature / problem.C, _MIN_CURVATURE * problem.curvature_bound)
        return lambda gradient: problem.solve(gradient, h, caution)

    solver = lbfgs(at, precondition, lambda _: finished())
    try:
        x = next(solver)
        for _ in range(_FINISHING_SWEEPS):
            found: Evaluation = yield x
            at = min(at, found, key=lambda evaluation: evaluation.value)
            x = solver.send(found)
    except StopIteration:
        pass
    return at


# Mini-batch steps over the rows of one segment, in a metric, with the full gradient as control variate.
#
# At x the rows of a batch give g = ∇_batch(x) − ∇_batch(x₀) + ∇(x₀), where x₀ is the start of all segments
# and ∇ the gradient over all rows (Johnson and Zhang 2013, SVRG). Its error vanishes at x₀ and grows with
# the distance from it. With ∇_batch(x) alone each segment drifts to an optimum of its own, and their mean is
# not the optimum of all rows: on 200,000 rows of 2,048 features (logistic, λ = 1e-6) ten epochs ended 10 %
# above it.


@dataclass(frozen=True, eq=False)
class LocalStart:
    """Numbers that the steps of k models need on every segment, all per unit of row weight.

    Attributes
    ----------
    X : ndarray of shape (D + 1, k), or (D, k) without an intercept
        Points x₀ = [w; b].
    gradient : ndarray of the same shape
        Of mean ℓ + (λ/2)·‖w‖² over all rows.
    curvature, damping, dimension : ndarrays of shape (k,)
        h, λ and d of the metric; its λ may be larger than the objective's.
    penalty : float
        λ = 1/(C·Σs).
    """

    X: np.ndarray
    gradient: np.ndarray
    curvature: np.ndarray
    damping: np.ndarray
    dimension: np.ndarray
    penalty: float


class LocalSteps:
    """The steps of k models over one segment's rows, for a loss of finite curvature.

    Attributes
    ----------
    X : ndarray of the shape of `start.X`, float64
        The current points.
    weight : float
        Σs of the rows so far.
    """

    def __init__(self, loss: Loss, metric: SpectralMetric, start: LocalStart) -> None:
        self._loss = loss
        self._metric = metric
        self._start = start
        self.X = start.X.copy()
        self.weight = 0.0

    def step(self, Z: Any, Y: np.ndarray, sample_weight: np.ndarray | None) -> None:
        """Take one step on a batch, in 8·r·D·k flops and one solve in the metric."""
        s = np.ones(Z.shape[0]) if sample_weight is None else sample_weight
        total = float(s.sum())
        if total == 0:
            return
        self.weight += total
        share = (s / total)[:, None]
        start, k = self._start, Y.shape[1]
        moved = self.X - start.X
        # The change of f is computed apart: a small one would be lost in the float32 rounding of a large f.
        F = self._values(Z, np.hstack([start.X, moved]))
        F_start, F = F[:, :k], F[:, :k] + F[:, k:]
        slopes = share * (self._loss.derivative(F, Y) - self._loss.derivative(F_start, Y))
        gradient = transposed_product(slopes.T, Z).T
        if self._metric.fit_intercept:
            gradient = np.vstack([gradient, slopes.sum(axis=0)])
        gradient = gradient + start.gradient
        # The penalty's gradient at x₀ is in the full gradient; here is its change since.
        self._coef(gradient)[...] += start.penalty * self._coef(moved)
        direction = self._metric.solve(gradient, start.curvature, start.damping)
        along = self._values(Z, direction)
        curvature = (share * self._loss.second_derivative(F, Y) * np.square(along)).sum(axis=0)
        curvature += start.penalty * np.square(self._coef(direction)).sum(axis=0)
        slope = (gradient * direction).sum(axis=0)
        longest = np.divide(slope, curvature, out=np.zeros(k), where=curvature > 0)
        # The step −t·M⁻¹g has t = r/(r + d) for r rows (for unequal weights their effective number
        # (Σs)²/Σs²) and effective dimension d: M⁻¹ times the batch's Hessian has the mean 1, and about d/r
        # more in the direction of any one row (Ma, Bassily and Belkin 2018, "The power of interpolation").
        # Where the batch is more curved than that along the step, as it is if a few rows carry all curvature,
        # t is the batch's own Newton length.
        counted = total**2 / float(s @ s)
        self.X -= np.clip(longest, 0, counted / (counted + start.dimension)) * direction

    def _coef(self, X: np.ndarray) -> np.ndarray:
        return X[:-1] if self._metric.fit_intercept else X

    def _values(self, Z: Any, X: np.ndarray) -> np.ndarray:
        F = values_of(Z, self._coef(X))
        return F + X[-1] if self._metric.fit_intercept else F
