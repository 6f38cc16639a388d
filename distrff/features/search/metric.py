"""A learned metric: the directions along which the targets vary, from the gradients of a small ridge."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import eigh, svd

from distrff.errors import InputError
from distrff.features.base import RowsInMemory, Sample
from distrff.features.search.ridge import FEATURES, GRIDS, MODELS, FittedRidge, FourierRidge, best_width
from distrff.features.search.sample import THINNING, HeldOutError, SearchSample, descend, median_distance
from distrff.features.search.widths import LikelihoodBudget, relevant_length_scales
from distrff.kernels.base import Kernel
from distrff.kernels.stationary import Gaussian, Matern, Stationary
from distrff.utils.process import one_blas_thread

# The average gradient outer product of a model of cosines and sines needs no row.


def gradient_outer(W: np.ndarray, coef: np.ndarray, A: np.ndarray, weight: float) -> np.ndarray:
    """M = Σ s ∇f ∇fᵀ/Σs, summed over the outputs, from the raw Gram A = ZᵀSZ of the rows.

    f(x) = Σ_j (w_2j·cos ω_jᵀx + w_2j+1·sin ω_jᵀx)·c has the gradient Σ_j (w_2j+1·cos − w_2j·sin)·c·ω_j.
    So with v_2j = w_2j+1 and v_2j+1 = −w_2j, and each row of Ω twice, ∇f = Ω₂ᵀ·diag(v)·z and
    M = Ω₂ᵀ·(A ∘ vvᵀ)·Ω₂/Σs. Products vvᵀ of several outputs add up before Ω is applied, and Ω₂ᵀCΩ₂ = ΩᵀC'Ω
    where C' holds the sums of the 2 × 2 blocks of C: D²·k + d·D²/2 flops. The Gram must not be centred: the
    gradient is linear in z itself, not in its deviation from the mean. Frequencies W are of shape (d, m),
    coef (2m, k), A (2m, 2m), and `weight` is Σs.
    """
    return np.asarray(W @ _between_frequencies(coef, A) @ W.T / weight)


def _between_frequencies(coef: np.ndarray, A: np.ndarray) -> np.ndarray:
    V = np.empty_like(coef, dtype=np.float64)
    # d/dx of w_c·cos ωx + w_s·sin ωx is (w_s·cos ωx − w_c·sin ωx)·ω.
    V[0::2], V[1::2] = coef[1::2], -coef[0::2]
    C = A * (V @ V.T)
    C = C[0::2] + C[1::2]
    return C[:, 0::2] + C[:, 1::2]


# An eigenvalue of M below this share of the largest one is noise: with it, a direction would be seen a
# thousand times less than the first.
_NEGLIGIBLE = 1e-6


def metric_of(W: np.ndarray, coef: np.ndarray, A: np.ndarray) -> np.ndarray | None:
    """P with PᵀP proportional to M and tr(PᵀP) = d, one row a direction; None if M is 0.

    P = diag(√λ)·Qᵀ differs from M^½ by a rotation, which no Euclidean distance sees; its rows are the
    directions, the most important first. For more columns than features it comes from the factor of rank D.
    """
    d, m = W.shape
    C = _between_frequencies(coef, A)
    if d <= 2 * m:
        eigenvalues, Q = eigh(W @ C @ W.T)
    else:
        # C = LLᵀ and WL = QSVᵀ: M = Q S² Qᵀ.
        of_C, B = eigh(C)
        Q, S, _ = svd(W @ (B * np.sqrt(np.maximum(of_C, 0.0))), full_matrices=False)
        eigenvalues = np.square(S)
    # Stable, so that directions of equal weight come in one order everywhere.
    order = np.argsort(-eigenvalues, kind="stable")
    order = order[eigenvalues[order] > _NEGLIGIBLE * max(eigenvalues.max(), 0.0)]
    if not len(order) or not np.isfinite(eigenvalues).all():
        return None
    kept, Q = eigenvalues[order], Q[:, order]
    # A direction has two signs: its largest entry is made positive, on every processor alike.
    Q = Q * np.sign(Q[np.abs(Q).argmax(axis=0), np.arange(len(order))])
    # tr(PᵀP) = d, as of the identity: widths then mean the same before and after.
    return np.sqrt(kept * (d / kept.sum()))[:, None] * Q.T


# Rounds: a model, its metric, a model with that metric.

_MAX_FEATURES = 2 * FEATURES
_MAX_ROUNDS = 10
# A smaller fall of the error is not worth another round.
_WORTHWHILE = 0.99
# Above it, a first model has found almost nothing, and its gradients are noise.
_NOTHING = 0.9
_PRESUMED_MODELS = 24
_LIKELIHOOD_ROWS = 2000
_MIN_TRAINING = 6
ANYWHERE = range(-10, 5, 2)
"""Half octaves from the median distance, where a search begins: the error there may be flat, and its only
valley far away."""


@dataclass(frozen=True, eq=False)
class LearnedMetric:
    """A metric, and how it was found."""

    P: np.ndarray | None  # of shape (r, d); None where no direction was found
    squared_error: float
    rounds: list[dict[str, Any]]  # held-out error and width of each round
    flops: float

    @property
    def found_nothing(self) -> bool:
        """Whether the first round is little better than the mean, and another start is worth a try."""
        return bool(self.rounds[0]["squared_error"] > _NOTHING)

    def or_better(self, other: LearnedMetric) -> LearnedMetric:
        """The one of smaller error, with the flops of both."""
        better = min(self, other, key=lambda one: one.squared_error)
        return replace(better, flops=self.flops + other.flops)


def learned_metric(
    kernel: Kernel, sample: Sample, n_components: int, *, by_bins: bool = False
) -> tuple[Kernel, dict[str, Any]]:
    """The kernel with a learned metric and a width that is a number, and how they were found.

    The width is that of smallest held-out error with this metric, extrapolated from two sizes of the sample
    to the rows and features of the model; a width that was given is kept. With `by_bins` small models of
    random binning judge it. Bins are boxes along the coordinates: where they do better with the diagonal of
    the metric, the kernel gets one width a column instead. The report holds `rule`, `length_scale`, `rounds`
    (held-out error and width of each), `metric_shares`, and `note` where no direction was found. Raises
    InputError without targets, or with too few rows.
    """
    assert isinstance(kernel, Stationary)
    if sample.y is None:
        raise InputError(
            "metric='learned' learns directions from targets, and there are none (principal components use "
            "no y); give y, or a matrix"
        )
    rows = SearchSample.of(sample)
    if rows.n_training < _MIN_TRAINING:
        raise InputError(
            f"metric='learned' needs at least {_MIN_TRAINING + 2} rows of positive weight, "
            f"got {len(rows.Y)}; give more rows, or a matrix"
        )
    D, d = min(n_components, _MAX_FEATURES), rows.X.shape[1]
    with one_blas_thread():  # the same metric whatever the client's threads
        learned = learn_metric(rows, kernel, D)
        # A single column has no direction to find.
        start = column_widths(rows, _LIKELIHOOD_ROWS) if learned.found_nothing and d > 1 else None
        if start is not None:
            learned = learned.or_better(learn_metric(rows, kernel, D, start))
        A, width = learned.P, kernel.get_params()["length_scale"]
        if isinstance(width, str):
            kind, size, full = ("binning", GRIDS, GRIDS) if by_bins else ("fourier", D, n_components)
            more = sample.n_weighted_rows / rows.n_training * full / size
            width, error = _width_for(kernel, rows.in_coordinates(A), kind, size, more)
            if by_bins and A is not None:
                scales = scales_of(A)
                by_column, other = _width_for(kernel, rows.in_coordinates(scales), kind, size, more)
                # Widths are simpler, and taken within a standard error.
                if other.criterion - error.criterion <= other.spread_from(error):
                    A, width = None, tuple(float(f"{w:.4g}") for w in by_column * scales)
    P = np.eye(d) if learned.P is None else learned.P
    search: dict[str, Any] = {
        "rule": f"gradients of a ridge on {D} features and {len(rows.Y)} rows",
        "length_scale": width,
        "rounds": learned.rounds,
        **metric_shares(P),
    }
    if learned.P is None:
        search["note"] = (
            "metric='learned' found no direction that matters more than others: it is the identity"
        )
    is_by_column = A is None and learned.P is not None
    return kernel.set_params(length_scale=width, metric=None if is_by_column else P), search


def metric_shares(P: np.ndarray) -> dict[str, list[float]]:
    """How much of the squared length of gradients lies along each row of P, and along each column."""
    of_entries = np.square(P) / np.square(P).sum()
    return {
        "directions": of_entries.sum(axis=1).tolist(),
        "column_shares": of_entries.sum(axis=0).tolist(),
    }


# A column in whose direction nothing varies has a width of at most so many times the least one.
_SMALLEST_SHARE = 1e-3


def scales_of(P: np.ndarray) -> np.ndarray:
    """Scales of the columns from the diagonal of a metric."""
    diagonal = np.sqrt(np.square(P).sum(axis=0))
    return np.asarray(1.0 / np.maximum(diagonal, _SMALLEST_SHARE * diagonal.max()))


def metric_flops(n_rows: int, n_columns: int, n_components: int) -> float:
    """About the flops of `learned_metric`."""
    n, D = float(n_rows), float(min(n_components, _MAX_FEATURES))
    return _PRESUMED_MODELS * (n * D * (D + 2 * n_columns + 20) + 2 * D**3)


def _width_for(
    kernel: Stationary, rows: SearchSample, kind: str, size: int, more: float
) -> tuple[float, HeldOutError]:
    """The width for `more` times the rows and features, and the error on the sample."""
    free = kernel.set_params(length_scale="auto", metric=None)
    # A quarter of the rows and half of the features: the first of the two sizes from which the width is
    # extrapolated, and cheap enough to look anywhere.
    few = MODELS[kind](rows.thinned(), free, max(2, size // 2))
    before, _ = best_width(few, median_distance(free, rows.X, rows.seed), ANYWHERE)
    last, error = best_width(MODELS[kind](rows, free, size), before)
    return float(f"{extrapolated(before, last, 2 * THINNING, more):.4g}"), error


def column_widths(rows: SearchSample, n_rows: int) -> np.ndarray | None:
    """One width a column, by the likelihood of training rows; None where it has none.

    There is no likelihood where the targets are constant in these rows, or all columns in all rows of the
    sample. A column that is constant in these alone keeps the width of the start.
    """
    some = slice(rows.n_held_out, rows.n_held_out + n_rows)
    # Whether a column varies is asked of all rows of the sample, or a rare indicator would have no effect: on
    # 3,700 rows of covtype 26.3 % of the classes would be wrong, not 23.7 %.
    sample = Sample(rows.X[some], rows.Y[some], rows.s[some], rows.seed, RowsInMemory(rows.X, rows.s))
    # One likelihood for the kernels of all candidates, and so of a smoothness amid theirs: a Gaussian process
    # cannot be rough, and explains roughness by noise, a Laplacian one cannot be smooth. Test errors with
    # widths of the Gaussian, Laplacian and this kernel: cpu_act 2.50, 2.22, 2.22, rings .115, .119, .117,
    # friedman1 1.017, 1.029, 1.029, concrete .36, .35, .30.
    kernel = Matern("ard", nu=1.5)
    try:
        found, _ = relevant_length_scales(kernel, sample, budget=LikelihoodBudget.quick(n_rows))
    # Constant targets or columns are no error here: the search goes on without these widths.
    except InputError:
        return None
    return np.asarray(found.get_params()["length_scale"])


def learn_metric(
    rows: SearchSample, kernel: Stationary, n_features: int, A: np.ndarray | None = None
) -> LearnedMetric:
    """The metric of recursive feature machines, learned on cosines and sines of the kernel.

    Each round fits the width and the penalty by held-out rows and takes the metric of that model's gradients
    for the next one, until the held-out error does not fall any more (Radhakrishnan, Beaglehole, Pandit and
    Belkin 2024, "Mechanism for feature learning in neural networks and backpropagation-free machine learning
    models"). It begins with coordinates A, scales of the columns of shape (d,); None is the columns.
    """
    rows = replace(rows, has_classes=False, penalty=None)  # a share of wrong classes is too coarse for rounds
    free = _smooth(kernel)
    few = rows.in_coordinates(A).thinned()
    # The first width is looked for on a small model, as the error may be flat around the median distance.
    first = FourierRidge(few, free, max(64, n_features // 4))
    width, _ = best_width(first, median_distance(free, few.X, rows.seed), ANYWHERE)
    flops, rounds, best, P = first.flops, list[dict[str, Any]](), None, None
    for _ in range(_MAX_ROUNDS):
        model = FourierRidge(rows.in_coordinates(A), free, n_features)
        width, solution = _best_ridge(model, width)
        flops += model.flops
        error = rows.judge(solution.values)
        rounds.append({"squared_error": error.squared_error, "length_scale": width})
        # Without the standard error kddcup99 has four more rounds, and no candidate with their metric wins.
        fall = 0.0 if best is None else best.squared_error - error.squared_error
        is_last = best is not None and fall <= max(
            error.spread_from(best), (1 - _WORTHWHILE) * best.squared_error
        )
        if best is None or fall > 0:
            best, P = error, _as_matrix(A, rows.X.shape[1])
        # Gradients are taken for x itself, so that each metric replaces the last instead of multiplying it.
        W = _pulled_back(model.frequencies(free.with_widths(width)), A)
        A = None if is_last else metric_of(W, solution.coef, solution.A)
        if A is None:
            break
    assert best is not None
    return LearnedMetric(P, best.squared_error, rounds, flops)


def _best_ridge(model: FourierRidge, first: float) -> tuple[float, FittedRidge]:
    """The width of smallest squared error, by half octaves from a first one, and its model."""
    best: dict[int, FittedRidge] = {}  # only the best one so far: each holds its rows of features
    least = np.inf

    def error(place: int) -> float:
        nonlocal least
        # Counted here, as `judge`, which counts, is not called.
        model.flops += model.flops_of_one()
        fitted = model.fitted(model.kernel.with_widths(first * 2.0 ** (place / 2)))
        found = model.sample.judge(fitted.values).squared_error
        if found < least or not best:
            best.clear()
            best[place], least = fitted, found
        return found

    # With tr(PᵀP) = d distances keep their size, so the walk begins at the last round's width.
    place = descend(error, (0,), (1, -1)).best
    return first * 2.0 ** (place / 2), best[place]


def _smooth(kernel: Kernel) -> Stationary:
    """The kernel of undecided width that learns the metric for this kernel.

    That is the kernel itself where it is Gaussian or Matérn with ν ≥ 3/2, else a Gaussian: below ν = 1, E‖ω‖²
    is infinite, and the few largest frequencies would rule M.
    """
    if isinstance(kernel, Matern) and kernel.nu >= 1.5:
        return Matern("auto", nu=kernel.nu)
    return Gaussian("auto")


def _pulled_back(W: np.ndarray, A: np.ndarray | None) -> np.ndarray:
    """The frequencies of coordinates A·x, or x / a, as frequencies of x."""
    if A is None:
        return W
    # ωᵀ(Ax) = (Aᵀω)ᵀx.
    return W / A[:, None] if A.ndim == 1 else A.T @ W


def _as_matrix(A: np.ndarray | None, d: int) -> np.ndarray | None:
    if A is None or A.ndim == 2:
        return A
    P = np.diag(1.0 / A)
    return np.asarray(P * np.sqrt(d / np.square(P).sum()))


# From the sample to all rows: a number that fell from one size of the sample to the next goes on falling.


def extrapolated(before: float, last: float, growth: float, ahead: float) -> float:
    """A number at `ahead` times a size, if it falls on as it did while the size grew by `growth`.

    Sizes are rows times features. It falls at most once more as far, and to a half: a fall that was seen once
    says little about more.
    """
    # A power law in the size: equal factors of the size give equal factors of the number.
    steps = min(1.0, math.log(max(ahead, 1.0)) / math.log(growth)) if growth > 1 else 0.0
    fall = min(max(last / before, 0.5), 1.0) if 0 < before < math.inf else 1.0
    return float(last * fall**steps)
