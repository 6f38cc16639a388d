"""A learned metric: the directions along which the targets vary, from the gradients of a small model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import eigh, svd

from distrff.errors import InputError
from distrff.features.base import RowsInMemory, Sample
from distrff.features.search.relevance import Effort, relevant_length_scales
from distrff.features.search.ridge import (
    ANYWHERE,
    HERE,
    MODELS,
    FourierTrialModel,
    Judged,
    Judgement,
    RidgeTrial,
    Trial,
    carried_on,
    steps_ahead,
)
from distrff.features.search.widths import PILOT_GRIDS, median_distance
from distrff.kernels.base import Kernel
from distrff.kernels.stationary import Gaussian, Matern, Stationary
from distrff.utils.process import one_blas_thread

# The average gradient outer product of a model of cosines and sines needs no row.


def gradient_outer(W: np.ndarray, coef: np.ndarray, A: np.ndarray, weight: float) -> np.ndarray:
    """Return M = Σ s ∇f ∇fᵀ/Σs, summed over the outputs, from the raw Gram A = ZᵀSZ of the rows.

    f(x) = Σ_j (w_2j·cos ω_jᵀx + w_2j+1·sin ω_jᵀx)·c has the gradient Σ_j (w_2j+1·cos − w_2j·sin)·c·ω_j.
    So with v_2j = w_2j+1 and v_2j+1 = −w_2j, and each row of Ω twice, ∇f = Ω₂ᵀ·diag(v)·z and
    M = Ω₂ᵀ·(A ∘ vvᵀ)·Ω₂/Σs. Products vvᵀ of several outputs add up before Ω is applied, and Ω₂ᵀCΩ₂ = ΩᵀC'Ω
    where C' holds the sums of the 2 × 2 blocks of C: D²·k + d·D²/2 flops. The Gram must not be centred: the
    gradient is linear in z itself, not in its deviation from the mean.

    Parameters
    ----------
    W : ndarray of shape (d, m)
        Frequencies.
    coef : ndarray of shape (2m, k)
    A : ndarray of shape (2m, 2m)
    weight : float
        Σs.
    """
    return np.asarray(W @ _between_frequencies(coef, A) @ W.T / weight)


def _between_frequencies(coef: np.ndarray, A: np.ndarray) -> np.ndarray:
    V = np.empty_like(coef, dtype=np.float64)
    V[0::2], V[1::2] = coef[1::2], -coef[0::2]
    C = A * (V @ V.T)
    C = C[0::2] + C[1::2]
    return C[:, 0::2] + C[:, 1::2]


# An eigenvalue of M below this share of the largest one is noise: with it, a direction would be seen a
# thousand times less than the first.
_NEGLIGIBLE = 1e-6


def metric_of(W: np.ndarray, coef: np.ndarray, A: np.ndarray) -> np.ndarray | None:
    """Return P with PᵀP proportional to M and tr(PᵀP) = d, one row a direction; None if M is 0.

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
    order = np.argsort(-eigenvalues, kind="stable")
    order = order[eigenvalues[order] > _NEGLIGIBLE * max(eigenvalues.max(), 0.0)]
    if not len(order) or not np.isfinite(eigenvalues).all():
        return None
    kept, Q = eigenvalues[order], Q[:, order]
    # A direction has two signs: its largest entry is made positive, on every processor alike.
    Q = Q * np.sign(Q[np.abs(Q).argmax(axis=0), np.arange(len(order))])
    return np.sqrt(kept * (d / kept.sum()))[:, None] * Q.T


# Rounds: a model, its metric, a model with that metric.

ROWS, FEATURES = 16_384, 2048
_MAX_ROUNDS = 10
# A smaller fall of the error is not worth another round.
_WORTHWHILE = 0.99
# Above it, a first model has found almost nothing, and its gradients are noise.
_NOTHING = 0.9
_PRESUMED_MODELS = 24
_LIKELIHOOD_ROWS = 2000
MIN_TRAINING = 6


@dataclass(frozen=True, eq=False)
class LearnedMetric:
    """A metric, and how it was found."""

    P: np.ndarray | None  # of shape (r, d); None where no direction was found
    width: float  # of the kernel that learned it, best for the rows of the trial
    judgement: Judgement  # by squared error, of classes as well
    rounds: list[dict[str, Any]]  # held-out error and width of each round
    flops: float


def learned_metric(
    kernel: Kernel, sample: Sample, n_components: int, *, by_bins: bool = False
) -> tuple[Kernel, dict[str, Any]]:
    """Return the kernel with a learned metric and a width that is a number, and how they were found.

    The width is that of smallest held-out error with this metric, extrapolated from two sizes of the sample
    to the rows and features of the model; a width that was given is kept. With `by_bins` small models of
    random binning judge it. Bins are boxes along the coordinates: where they do better with the diagonal of
    the metric, the kernel gets one width a column instead. Raises InputError without targets, or with too few
    rows.

    Returns
    -------
    kernel : Kernel
    search : dict
        `rule`, `length_scale`, `rounds` (held-out error and width of each), `directions` (how much of the
        squared length of gradients lies along each row of P), and `note` where no direction was found.
    """
    assert isinstance(kernel, Stationary)
    if sample.y is None:
        raise InputError(
            "metric='learned' learns directions from targets, and there are none (principal components use "
            "no y); give y, or a matrix"
        )
    trial = Trial.of(sample, "metric rows", ROWS)
    if trial.n_training < MIN_TRAINING:
        raise InputError(
            f"metric='learned' needs at least {MIN_TRAINING + 2} rows of positive weight, "
            f"got {len(trial.X)}; give more rows, or a matrix"
        )
    D = min(n_components, FEATURES)
    with one_blas_thread():  # the same metric whatever the client's threads
        learned = learn_metric(trial, kernel, D, sample.seed)
        if found_nothing(learned) and trial.X.shape[1] > 1:
            widths = column_widths(trial, Gaussian("ard"), _LIKELIHOOD_ROWS, sample.seed)
            if widths is not None:
                again = learn_metric(trial, kernel, D, sample.seed, widths)
                learned = min(learned, again, key=lambda one: one.judgement.squared_error)
        d = trial.X.shape[1]
        P = np.eye(d) if learned.P is None else learned.P
        width, scales = kernel.get_params()["length_scale"], None
        if isinstance(width, str):
            size, full = (PILOT_GRIDS, PILOT_GRIDS) if by_bins else (D, n_components)
            width, judgement = _width_for(kernel, trial.in_coordinates(P), size, full, sample, by_bins)
            if by_bins and learned.P is not None:
                by_column, other = _width_for(
                    kernel, trial.in_coordinates(scales_of(P)), size, full, sample, by_bins
                )
                if _WORTHWHILE * other.squared_error < judgement.squared_error:  # the simpler of equal ones
                    width, scales = by_column, scales_of(P)
    if scales is not None:
        width = tuple(float(f"{w:.4g}") for w in width * scales)
    search: dict[str, Any] = {
        "rule": f"gradients of a ridge on {D} features and {len(trial.X)} rows",
        "length_scale": width,
        "rounds": learned.rounds,
        **metric_shares(P),
    }
    if learned.P is None:
        search["note"] = (
            "metric='learned' found no direction that matters more than others: it is the identity"
        )
    return kernel.set_params(length_scale=width, metric=P if scales is None else None), search


def metric_shares(P: np.ndarray) -> dict[str, list[float]]:
    """Return how much of the squared length of gradients lies along each row of P, and along each column."""
    of_entries = np.square(P) / np.square(P).sum()
    return {
        "directions": of_entries.sum(axis=1).tolist(),
        "column_shares": of_entries.sum(axis=0).tolist(),
    }


# A column in whose direction nothing varies has a width of at most so many times the least one.
_SMALLEST_SHARE = 1e-3


def scales_of(P: np.ndarray) -> np.ndarray:
    """Return scales of the columns from the diagonal of a metric."""
    diagonal = np.sqrt(np.square(P).sum(axis=0))
    return np.asarray(1.0 / np.maximum(diagonal, _SMALLEST_SHARE * diagonal.max()))


def metric_flops(n_rows: int, n_columns: int, n_components: int) -> float:
    """Return about how many flops `learned_metric` takes."""
    n, D = float(min(n_rows, ROWS)), float(min(n_components, FEATURES))
    return _PRESUMED_MODELS * (n * D * (D + 2 * n_columns + 20) + 2 * D**3)


def _width_for(
    kernel: Stationary, trial: Trial, size: int, full_size: int, sample: Sample, by_bins: bool
) -> tuple[float, Judgement]:
    """Return the width for all rows and features: it goes on to fall as it does from a part of the trial."""
    unit, seed = kernel.set_params(length_scale=1.0, metric=None), sample.seed
    model = MODELS["binning" if by_bins else "fourier"]
    few = model(trial.thinned(), unit, max(2, size // 2), seed)
    before, _ = Judged(few, median_distance(unit, trial.X, seed)).search(ANYWHERE)
    last, judgement = Judged(model(trial, unit, size, seed), before).search(HERE)
    steps = steps_ahead(sample.n_weighted_rows / trial.n_training, full_size / size)
    return float(f"{carried_on(before, last, steps):.4g}"), judgement


def column_widths(
    trial: Trial,
    kernel: Stationary,
    n_rows: int,
    seed: int,
    starts: Mapping[str, Sequence[float]] | None = None,
    usual_starts: bool = True,
    *,
    quick: bool = False,
) -> np.ndarray | None:
    """Return one width a column, by the likelihood of rows that are not held out; None where it has none.

    There is no likelihood where the targets are constant in these rows, or all columns in all rows of the
    trial. A column that is constant in these alone keeps the width of the start. `starts` and `usual_starts`
    are those of `relevant_length_scales`.
    """
    training = slice(trial.n_held_out, trial.n_held_out + n_rows)
    X, Y, s = trial.X[training], trial.Y[training], trial.s[training]
    # Whether a column varies is asked of all rows of the trial, or a rare indicator would have no effect: on
    # 3,700 rows of covtype 26.3 % of the classes would be wrong, not 23.7 %.
    sample = Sample(X, Y, s, seed, RowsInMemory(trial.X, trial.s))
    effort = Effort.quick(len(X)) if quick else None
    try:
        found, _ = relevant_length_scales(
            kernel, sample, starts=starts, usual_starts=usual_starts, max_rows=n_rows, effort=effort
        )
    except InputError:
        return None
    return np.asarray(found.get_params()["length_scale"])


def learn_metric(
    trial: Trial, kernel: Stationary, n_features: int, seed: int, start: np.ndarray | None = None
) -> LearnedMetric:
    """Return the metric of recursive feature machines, learned on cosines and sines of the kernel.

    Each round fits the width and the penalty by held-out rows and takes the metric of that model's gradients
    for the next one, until the held-out error does not fall any more (Radhakrishnan, Beaglehole, Pandit and
    Belkin 2024, "Mechanism for feature learning in neural networks and backpropagation-free machine learning
    models"). `start`, of shape (d,) or (r, d), are scales of the columns or a metric for the first round.
    """
    unit = smooth(kernel)
    A: np.ndarray | None = start
    width = 0.0
    best: LearnedMetric | None = None
    rounds: list[dict[str, Any]] = []
    flops = 0.0
    by_squares = replace(trial, has_classes=False)  # a share of wrong classes is too coarse for rounds
    for turn in range(_MAX_ROUNDS):
        turned = trial.in_coordinates(A)
        if turn == 0:
            few = turned.thinned()
            width = median_distance(unit, few.X, seed)
            search = Judged(FourierTrialModel(few, unit, max(64, n_features // 4), seed), width)
            width, _ = search.search(ANYWHERE)
            flops += search.flops
        model = _BestOfWidths(turned, unit, n_features, seed)
        search = Judged(model, width)
        search.search(HERE)
        width, solution = model.width, model.best
        flops += search.flops
        judgement = by_squares.judge(solution.values)
        rounds.append({"squared_error": judgement.squared_error, "length_scale": width})
        is_last = best is not None and not _is_worthwhile(best.judgement, judgement)
        if best is None or judgement.squared_error < best.judgement.squared_error:
            best = LearnedMetric(_as_matrix(A, trial.X.shape[1]), width, judgement, rounds, flops)
        if is_last:
            break
        P = metric_of(_pulled_back(model.frequencies / width, A), solution.coef, solution.A)
        if P is None:
            break
        A = P
    assert best is not None
    return LearnedMetric(best.P, best.width, best.judgement, rounds, flops)


def metric_gains(
    trial: Trial, kernel: Stationary, n_features: int, seed: int, scales: np.ndarray
) -> tuple[bool, float]:
    """Return whether a metric does better than scales of the columns, and the flops of that.

    It is learned from these scales on, on a quarter of the rows and with half the features. Its rounds stop
    at the first that is not worthwhile: a third one says that the second, the first with a metric, was.
    """
    learned = learn_metric(trial.thinned(), kernel, max(2, n_features // 2), seed, scales)
    return len(learned.rounds) > 2, learned.flops


class _BestOfWidths(FourierTrialModel):
    """A model that keeps its solution at the width of smallest error."""

    best: RidgeTrial
    width = math.nan
    _lowest = math.inf

    def held_out_values(self, width: float) -> np.ndarray:
        solution = self.solution(width)
        (error,) = self.trial.squared_errors(solution.values[None])
        if math.isnan(self.width) or error < self._lowest:
            self.best, self.width, self._lowest = solution, width, error
        return solution.values


def _is_worthwhile(before: Judgement, after: Judgement) -> bool:
    """Return whether the squared error fell by a hundredth, and by more than the standard error.

    Without the second condition kddcup99 has four more rounds, and no candidate with their metric wins.
    """
    fall = before.squared_error - after.squared_error
    return fall > max(after.spread_from(before), (1 - _WORTHWHILE) * before.squared_error)


def found_nothing(learned: LearnedMetric) -> bool:
    """Return whether the first round's model was hardly better than a constant."""
    return learned.rounds[0]["squared_error"] > _NOTHING


def smooth(kernel: Kernel) -> Stationary:
    """Return the kernel of width 1 that learns the metric for this kernel.

    That is the kernel itself where it is Gaussian or Matérn with ν ≥ 3/2, else a Gaussian: below ν = 1, E‖ω‖²
    is infinite, and the few largest frequencies would rule M.
    """
    if isinstance(kernel, Matern) and kernel.nu >= 1.5:
        return Matern(1.0, nu=kernel.nu)
    return Gaussian(1.0)


def _pulled_back(W: np.ndarray, A: np.ndarray | None) -> np.ndarray:
    """Return the frequencies of coordinates A·x, or x / a, as frequencies of x."""
    if A is None:
        return W
    return W / A[:, None] if A.ndim == 1 else A.T @ W


def _as_matrix(A: np.ndarray | None, d: int) -> np.ndarray | None:
    if A is None or A.ndim == 2:
        return A
    P = np.diag(1.0 / A)
    return np.asarray(P * np.sqrt(d / np.square(P).sum()))
