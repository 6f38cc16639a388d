"""Small models that stand for large ones: what a kernel's map gives on held-out rows of a sample."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from scipy.linalg import LinAlgError, cho_solve

from distrff.features.base import Sample
from distrff.features.equispaced import Box, Lattice
from distrff.features.search.widths import (
    MAX_OUTPUTS,
    BinningPilot,
    PilotRows,
    SplitRows,
    binning_pilot_flops,
    coded_targets,
)
from distrff.features.trigonometry import paired_cos_sin
from distrff.kernels.base import Kernel
from distrff.preprocessing.moments import EQUAL_TO_ROUNDING
from distrff.solvers.ridge import noise_floor, path_ridge
from distrff.solvers.toeplitz import SumsOfRows, ToeplitzProblem, half_of, whole_of
from distrff.utils.linalg import factor, solve_factor
from distrff.utils.nufft import values_at
from distrff.utils.random import child_seed, streams_under

# The rows that small models are judged on.

_HELD_OUT_SHARE, _SHARE_OF_FEW = 4, 3
_ENOUGH_HELD_OUT = 2000  # of fewer rows than four times as many a third is held out
_ARRAYS = ("X", "Y", "s", "mean", "deviation")


@dataclass(frozen=True, eq=False)
class Trial(SplitRows):
    """Rows with what they are judged by: a mean squared error of 1 is that of a constant.

    For classes the columns of Y stand for ±1, and `mean` and `deviation` lead back to these.
    """

    mean: np.ndarray
    deviation: np.ndarray
    has_classes: bool
    penalty: float | None = None  # for each unit of weight; None where small models choose it

    @classmethod
    def of(cls, sample: Sample, name: str, max_rows: int) -> Self:
        """Return at most `max_rows` rows of positive weight of the sample, some of them to be held out."""
        rows = sample.shuffled_rows(name)[:max_rows]
        share = _HELD_OUT_SHARE if len(rows) >= _HELD_OUT_SHARE * _ENOUGH_HELD_OUT else _SHARE_OF_FEW
        X, Y = np.asarray(sample.X[rows], dtype=np.float64), coded_targets(sample.y)[rows]
        s = sample.weights[rows]
        mean = np.average(Y, axis=0, weights=s)
        deviation = np.sqrt(np.average(np.square(Y - mean), axis=0, weights=s))
        deviation = np.where(deviation > EQUAL_TO_ROUNDING * np.abs(mean), deviation, 1.0)
        return cls(
            X - np.average(X, axis=0, weights=s),
            (Y - mean) / deviation,
            s / s.mean(),
            max(1, len(rows) // share),
            mean,
            deviation,
            # Of more classes than are coded, a row of another one has no decision value.
            sample.has_classes and Y.shape[1] < MAX_OUTPUTS,
            sample.penalty,
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the trial as arrays, to be sent to tasks."""
        counts = np.array([self.n_held_out, self.has_classes], dtype=np.int64)
        penalty = np.array(math.nan if self.penalty is None else self.penalty)
        return {name: getattr(self, name) for name in _ARRAYS} | {"counts": counts, "penalty": penalty}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the trial of `arrays()`; others among them do not matter."""
        n_held_out, has_classes = arrays["counts"].tolist()
        own, penalty = {name: arrays[name] for name in _ARRAYS}, float(arrays["penalty"])
        return cls(
            **own,
            n_held_out=n_held_out,
            has_classes=bool(has_classes),
            penalty=None if math.isnan(penalty) else penalty,
        )

    def in_coordinates(self, A: np.ndarray | None) -> Self:
        """Return the rows A·x, or x / a for a vector of scales a; as they are for None."""
        if A is None:
            return self
        return replace(self, X=self.X / A if A.ndim == 1 else self.X @ A.T)

    def judge(self, F: np.ndarray) -> Judgement:
        """Return the errors of values F on the held-out rows."""
        held_out = slice(self.n_held_out)
        Y, s = self.Y[held_out], self.s[held_out]
        if not np.isfinite(F).all():
            return Judgement.useless(self.has_classes)
        losses, shares = np.square(Y - F).mean(axis=1), s / s.sum()
        error = float(shares @ losses)
        if not self.has_classes:
            return Judgement(error, None, shares, losses)
        wrong = (self._classes(F) != self._classes(Y)).astype(np.float64)
        return Judgement(error, float(shares @ wrong), shares, wrong)

    def squared_errors(self, F: np.ndarray) -> np.ndarray:
        """Return the squared errors of `judge` alone, for m models at once: F is (m, n_held_out, k)."""
        held_out = slice(self.n_held_out)
        s, squares = self.s[held_out], np.square(self.Y[held_out] - F).mean(axis=2)
        errors = squares @ s / s.sum()
        return np.where(np.isfinite(errors), errors, math.inf)

    def _classes(self, F: np.ndarray) -> np.ndarray:
        F = F * self.deviation + self.mean
        return F[:, 0] > 0 if F.shape[1] == 1 else F.argmax(axis=1)


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a model gave on held-out rows.

    Parameters
    ----------
    squared_error : float
        Mean over rows and targets; 1 is that of a constant.
    misclassified : float or None
        Share of the rows of classes; None for numbers.
    shares, losses : ndarrays of shape (n_held_out,)
        For each held-out row its share of the weight, and what is judged by: 1 for a wrong class, else its
        squared error.
    """

    squared_error: float
    misclassified: float | None
    shares: np.ndarray
    losses: np.ndarray

    @property
    def criterion(self) -> float:
        """What an estimator of this kind wants to be small."""
        return self.squared_error if self.misclassified is None else self.misclassified

    @property
    def spread(self) -> float:
        """Standard error of the criterion."""
        return float(np.linalg.norm(self.shares * (self.losses - self.criterion)))

    def spread_from(self, other: Self) -> float:
        """Return the standard error of the difference between two models judged on the same rows.

        It is often much smaller than either one's spread, since both fail in the same rows.
        """
        difference = self.losses - other.losses
        return float(np.linalg.norm(self.shares * (difference - self.shares @ difference)))

    @classmethod
    def useless(cls, has_classes: bool) -> Self:
        """Return what stands for a model that could not be fitted."""
        return cls(math.inf, math.inf if has_classes else None, np.zeros(0), np.zeros(0))


# Models on one set of rows, fitted with one width after another.


class TrialModel(ABC):
    """A small model on the rows of a trial; its kernel has one width for all coordinates."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    @abstractmethod
    def held_out_values(self, width: float) -> np.ndarray:
        """Return the values on the held-out rows, (n_held_out, k), with the penalty of smallest error."""

    @abstractmethod
    def flops(self) -> float:
        """Return about how many flops one width takes."""

    def judge(self, width: float) -> Judgement:
        """Return the errors on the held-out rows."""
        return self.trial.judge(self.held_out_values(width))


_MIN_ALPHA, _MAX_ALPHA = 3e-9, 1e2  # of a row's weight and k(0); the first is noise of float32 sums
_ALPHA = 1e-4
_PRESUMED_SOLVES = 6
_TILE_ROWS = 1024  # that float32 products are presumed to sum
# Half decades that are solved together: after a reduction one solution takes nearly as long as five.
_NEAR, _HERE = np.arange(-2, 3), np.arange(1)
_MAX_PATH = 2**10  # beyond, half of the reduction is bound by memory; see `path_ridge`


class DenseTrialModel(TrialModel):
    """Ridge on dense features, from the Gram of float32 rows, or their products if they are fewer.

    A penalty that is not given is sought in decades and then in half decades from the one that was best
    before. Up to 1024 features, or rows if these are fewer, one reduction to a tridiagonal matrix, of 4/3·D³
    flops, serves them all; beyond, and for a given penalty, each has a Cholesky factor of D³/3.
    """

    n_features: int

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial)
        self._alpha = _ALPHA if trial.penalty is None else max(trial.penalty, _MIN_ALPHA)

    @property
    def _min_alpha(self) -> float:
        """The least penalty of the search, for a row's weight and k(0): about that of the model itself.

        Below it a model has the rounding noise of float32 sums.
        """
        n_rows, single = max(_TILE_ROWS, self.trial.n_training), np.dtype(np.float32)
        floor = noise_floor(
            1.0, n_rows, tile_rows=_TILE_ROWS, n_features=self.n_features, at_zero=1.0, dtype=single
        )
        return max(_MIN_ALPHA, floor)

    @abstractmethod
    def features(self, width: float) -> np.ndarray:
        """Return the rows of features, float32 of shape (n, D)."""

    def held_out_values(self, width: float) -> np.ndarray:
        return self.solution(width).values

    def solution(self, width: float) -> RidgeTrial:
        """Return the ridge of smallest squared error on the held-out rows."""
        trial = self.trial
        rows = _TrialRows.of(trial, self.features(width))
        unit = rows.weight if trial.penalty is not None else max(rows.size, 1e-300)
        by_path = trial.penalty is None and min(rows.C.shape) <= _MAX_PATH
        solve, near = rows.solver(by_path=by_path), _NEAR if by_path else _HERE
        found: dict[int, tuple[float, np.ndarray, np.ndarray]] = {}

        def error_at(half_decades: int) -> float:
            if half_decades not in found:
                new = [at for at in (half_decades + near).tolist() if at not in found]
                X = solve(self._alpha * 10.0 ** (np.array(new) / 2) * unit)
                F = rows.values(X)
                found.update(zip(new, zip(trial.squared_errors(F), X, F, strict=True), strict=True))
            return found[half_decades][0]

        def is_inside(half_decades: int) -> bool:
            return self._min_alpha <= self._alpha * 10.0 ** (half_decades / 2) <= _MAX_ALPHA

        # The penalty that was best for another width may be too small for this one.
        while error_at(0) == math.inf and is_inside(2):
            self._alpha *= 10.0
            found.clear()
        best = walk(error_at, (2, -2, 1, -1) if trial.penalty is None else (), is_inside)
        self._alpha *= 10.0 ** (best / 2)
        _, x, F = found[best]
        if not np.isfinite(F).all():
            F = np.zeros_like(F)
        return RidgeTrial(F, x, rows)

    def flops(self) -> float:
        n, D = float(len(self.trial.X)), self.n_features
        least = float(min(D, self.trial.n_training))
        return self._feature_flops() + n * D * least + _PRESUMED_SOLVES * least**3 / 3

    @abstractmethod
    def _feature_flops(self) -> float:
        """Return the flops of the features of all rows."""


@dataclass(frozen=True, eq=False)
class _TrialRows:
    """Features of the rows of a trial: of held-out ones, less the mean, and C = S^½(Z − z̄) of the others."""

    held_out: np.ndarray
    C: np.ndarray
    R: np.ndarray  # S^½(Y − ȳ)
    mean: np.ndarray
    y_mean: np.ndarray
    weight: float
    size: float  # Σ s‖z‖²

    @classmethod
    def of(cls, trial: Trial, Z: np.ndarray) -> Self:
        """Return the rows of features Z in float32, which are overwritten."""
        held_out, C = Z[: trial.n_held_out], Z[trial.n_held_out :]
        s, Y = trial.s[trial.n_held_out :], trial.Y[trial.n_held_out :]
        weight, root = float(s.sum()), np.sqrt(s)[:, None]
        y_mean = s @ Y / weight
        in_float32 = root.astype(np.float32)
        C *= in_float32
        mean = (in_float32[:, 0] @ C).astype(np.float64) / weight
        size = float(np.vdot(C, C))
        C -= in_float32 * mean.astype(np.float32)
        held_out -= mean.astype(np.float32)
        return cls(held_out, C, root * (Y - y_mean), mean, y_mean, weight, size)

    @property
    def has_few(self) -> bool:
        """Whether there are fewer rows to fit than features."""
        return len(self.C) < self.C.shape[1]

    def solver(self, *, by_path: bool) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function from penalties to solutions, (m, D, k), or those of few rows, (m, n, k).

        They are coefficients W of (CᵀC + alpha·I) W = CᵀR, or U of (CCᵀ + alpha·I) U = R with W = CᵀU. They
        are not finite where rounding keeps the matrix from being positive definite.
        """
        if self.has_few:
            G, B = self.C @ self.C.T, self.R
        else:
            G, B = self.C.T @ self.C, self.C.T @ self.R.astype(np.float32)
        G, B = G.astype(np.float64), B.astype(np.float64)
        if by_path:
            path = path_ridge(G)
            return lambda alphas: path.solve(B, alphas)
        return lambda alphas: np.stack([_ridge_coef(G, B, alpha) for alpha in alphas])

    def values(self, X: np.ndarray) -> np.ndarray:
        """Return the values on the held-out rows for each solution, (m, n_held_out, k)."""
        m, size, k = X.shape
        flat = X.transpose(1, 0, 2).reshape(size, m * k)
        basis = self._across if self.has_few else self.held_out
        with np.errstate(invalid="ignore", over="ignore"):
            F = (basis @ flat.astype(np.float32)).astype(np.float64)
        return F.reshape(-1, m, k).transpose(1, 0, 2) + self.y_mean

    @cached_property
    def _across(self) -> np.ndarray:
        return self.held_out @ self.C.T


@dataclass(frozen=True, eq=False)
class RidgeTrial:
    """A ridge with its values on held-out rows."""

    values: np.ndarray
    _solution: np.ndarray
    _rows: _TrialRows

    @property
    def coef(self) -> np.ndarray:
        """The coefficients, (D, k)."""
        rows = self._rows
        return rows.C.T.astype(np.float64) @ self._solution if rows.has_few else self._solution

    @property
    def A(self) -> np.ndarray:
        """The raw Gram ZᵀSZ of the rows that are not held out."""
        rows = self._rows
        return (rows.C.T @ rows.C).astype(np.float64) + rows.weight * np.outer(rows.mean, rows.mean)

    @property
    def weight(self) -> float:
        """Σs of these rows."""
        return self._rows.weight


def _ridge_coef(G: np.ndarray, B: np.ndarray, alpha: float) -> np.ndarray:
    """Return (G + alpha·I)⁻¹B; infinite where rounding keeps G from being positive definite."""
    H = np.array(G, order="F")
    H[np.diag_indices_from(H)] += alpha
    try:
        L = factor(H, overwrite=True)
    except LinAlgError:
        return np.full_like(B, np.inf)
    return np.asarray(cho_solve((L, True), B, check_finite=False))


class FourierTrialModel(DenseTrialModel):
    """Ridge on cosines and sines, the same standard frequencies for every width."""

    def __init__(self, trial: Trial, kernel: Kernel, n_features: int, seed: int) -> None:
        super().__init__(trial)
        self.n_features = max(2, n_features // 2 * 2)
        streams = streams_under(child_seed(seed, "trial"), "frequencies")
        self.frequencies = kernel.frequencies(self.n_features // 2, trial.X.shape[1], streams)
        self._phases = (trial.X @ self.frequencies).astype(np.float32)

    def features(self, width: float) -> np.ndarray:
        Z = np.empty((len(self._phases), self.n_features), np.float32)
        paired_cos_sin(self._phases / np.float32(width), Z, math.sqrt(2.0 / self.n_features))
        return Z

    def _feature_flops(self) -> float:
        n, d = self.trial.X.shape
        return n * self.n_features * (d + 20.0)  # phases, and cosines, which count as some flops each


_JITTER = 1e-9
_STRIP_ROWS = 1024  # their kernel values take some megabytes


class NystroemTrialModel(DenseTrialModel):
    """Ridge on the kernel's values with landmarks among the rows that are not held out."""

    def __init__(self, trial: Trial, kernel: Kernel, n_features: int, seed: int) -> None:
        super().__init__(trial)
        self._kernel = kernel
        self.n_features = min(n_features, trial.n_training)
        chosen = trial.n_held_out + np.arange(self.n_features)  # the rows are in random order
        self._landmarks = trial.X[chosen]

    def features(self, width: float) -> np.ndarray:
        X, L = self.trial.X / width, self._landmarks / width
        K = self._kernel.block(L, L)
        K[np.diag_indices_from(K)] += _JITTER * len(K)  # repeated rows make it singular
        root = factor(K)
        Z = np.empty((len(X), self.n_features), np.float32)
        for start in range(0, len(X), _STRIP_ROWS):
            strip = slice(start, start + _STRIP_ROWS)
            K = self._kernel.block(X[strip], L)
            Z[strip] = solve_factor(root, K.T, overwrite=True).T
        return Z

    def _feature_flops(self) -> float:
        n, d, M = float(len(self.trial.X)), self.trial.X.shape[1], self.n_features
        return n * M * (2 * d + 30) + 2 * n * M**2 + M**3 / 3  # the solve is in float64, at half the rate


class BinningTrialModel(TrialModel):
    """Ridge on the bins of a few grids."""

    def __init__(self, trial: Trial, kernel: Kernel, n_grids: int, seed: int) -> None:
        super().__init__(trial)
        self._kernel, self._n_grids = kernel, n_grids
        self._rows = PilotRows(trial.X, trial.Y, trial.s, trial.n_held_out, seed)

    def held_out_values(self, width: float) -> np.ndarray:
        rows = replace(self._rows, X=self._rows.X / width)
        pilot = BinningPilot(rows, n_grids=self._n_grids, penalty=self.trial.penalty)
        return pilot.held_out_values(self._kernel)

    def flops(self) -> float:
        # A look-up of a bin is counted as ten flops of a matrix product.
        return 10.0 * binning_pilot_flops(len(self.trial.X), self.trial.X.shape[1], self._n_grids)


_TOL = 1e-3  # of the kernel
_FIRST_TOL, _STEPS = 3e-3, 200  # of objectives that are only compared


class EquispacedTrialModel(TrialModel):
    """Ridge on equispaced features, which are the kernel itself however many rows there are.

    One set of sums serves every width and penalty. A width that the lattice around the first one does not
    resolve has no model.
    """

    def __init__(self, trial: Trial, kernel: Kernel, n_modes: int, seed: int) -> None:
        super().__init__(trial)
        self._kernel, self._n_modes = kernel, n_modes
        self._alpha = _ALPHA if trial.penalty is None else max(trial.penalty, _MIN_ALPHA)
        self._lattice: Lattice | None = None

    def held_out_values(self, width: float) -> np.ndarray:
        trial = self.trial
        kernel = self._kernel.set_params(length_scale=float(f"{width:.4g}"))
        if self._lattice is None:
            self._begin(kernel)
        assert self._lattice is not None
        lattice = self._lattice.resolving(kernel, max(_TOL, self._lattice.error(self._first) * (1 + 1e-9)))
        none = np.full((trial.n_held_out, trial.Y.shape[1]), np.nan)
        if lattice is None:
            return none
        problem = ToeplitzProblem(
            self._sums.central(lattice.modes), half_of(lattice.weights(kernel)).copy(), fit_intercept=True
        )
        found: dict[int, np.ndarray] = {}

        def error_at(half_decades: int) -> float:
            if half_decades not in found:
                found[half_decades] = self._values(problem, lattice, self._alpha * 10.0 ** (half_decades / 2))
            return trial.judge(found[half_decades]).squared_error

        def is_inside(half_decades: int) -> bool:
            return _MIN_ALPHA <= self._alpha * 10.0 ** (half_decades / 2) <= _MAX_ALPHA

        best = walk(error_at, (2, -2, 1, -1) if trial.penalty is None else (), is_inside)
        error_at(best)
        self._alpha *= 10.0 ** (best / 2)
        return found[best]

    def _begin(self, kernel: Kernel) -> None:
        """Make the lattice around the first width, and the sums of the rows that are not held out."""
        trial = self.trial
        low, high = trial.X.min(axis=0), trial.X.max(axis=0)
        box = Box(tuple(zip(low.tolist(), high.tolist(), strict=True)), (None,) * len(low))
        self._lattice, self._first = box.lattice_for_search(kernel, _TOL, self._n_modes, trial.n_training)
        held_out = slice(trial.n_held_out)
        phases = self._lattice.phases(trial.X)
        self._points = [x[held_out] for x in phases]
        rest = slice(trial.n_held_out, None)
        of_rows = SumsOfRows(self._lattice.modes, trial.Y.shape[1], _EPS)
        self._sums = of_rows.sums([x[rest] for x in phases], trial.Y[rest], trial.s[rest])

    def _values(self, problem: ToeplitzProblem, lattice: Lattice, alpha: float) -> np.ndarray:
        F = np.empty((self.trial.n_held_out, self.trial.Y.shape[1]))
        for target in range(F.shape[1]):
            found = problem.solve(
                target, alpha * self._sums.weight, tol=1.0, objective_tol=_FIRST_TOL, max_steps=_STEPS
            )
            F[:, target] = values_at(self._points, whole_of(problem.functions(found.c)), _EPS).real
        return F

    def flops(self) -> float:
        N = 2.0 ** self.trial.X.shape[1] * self._n_modes
        return _PRESUMED_PRODUCTS * 10.0 * N * math.log2(N) * self.trial.Y.shape[1]


_EPS = 1e-8
_PRESUMED_PRODUCTS = 60  # of a width


# A map with a kernel.

MODELS: dict[str, Callable[[Trial, Kernel, int, int], TrialModel]] = {
    "fourier": FourierTrialModel,
    "nystroem": NystroemTrialModel,
    "binning": BinningTrialModel,
    "equispaced": EquispacedTrialModel,
}


class Judged:
    """The errors of a small model at every width, in half octaves around a first one.

    The widths are multiples of 2^½ of `start`, which makes those of different runs comparable.
    """

    def __init__(self, model: TrialModel, start: float) -> None:
        self._model, self._start = model, start
        self._found: dict[int, Judgement] = {}

    def width(self, half_octaves: float) -> float:
        """Return the width that many half octaves from the first."""
        return self._start * 2.0 ** (half_octaves / 2)

    def judgement(self, half_octaves: int) -> Judgement:
        """Return what the model gives on the held-out rows."""
        if half_octaves not in self._found:
            self._found[half_octaves] = self._model.judge(self.width(half_octaves))
        return self._found[half_octaves]

    def squared_error(self, half_octaves: int) -> float:
        """Return the squared error, which is smoother in the width than a share of rows."""
        return self.judgement(half_octaves).squared_error

    def search(self, grid: Iterable[int]) -> tuple[float, Judgement]:
        """Return the width of smallest squared error, between the steps by a parabola, and its judgement.

        The search walks from the best place of the grid.
        """
        best = walk(
            self.squared_error, (1, -1), lambda at: abs(at) <= _FARTHEST, min(grid, key=self.squared_error)
        )
        return self.width(best + self._offset(best)), self.judgement(best)

    def _offset(self, best: int) -> float:
        """Return where the parabola through the errors at `best` and its neighbours is smallest."""
        sides = [self._found[at].squared_error for at in (best - 1, best + 1) if at in self._found]
        if len(sides) < 2:
            return 0.0
        below, above = (side - self._found[best].squared_error for side in sides)
        return 0.5 * (below - above) / (below + above) if 0 < below + above < math.inf else 0.0

    @property
    def flops(self) -> float:
        """Flops of all that was judged."""
        return len(self._found) * self._model.flops()


_FARTHEST = 12  # half octaves from the first width, at each stage

# Where a search begins, in half octaves from the first width. Where few rows show a rough function, the error
# of a guess may be flat, and its only valley far away. A valley of shorter widths may open, too, once more
# rows and features resolve it.
ANYWHERE = range(-10, 5, 2)
HERE = (0,)
HERE_OR_SHORTER = (0, -4)
# Few features make widths long, and a lattice of few modes has no room for the longest.
SHORTER = (0, -2, -4, -6)


def walk(
    error: Callable[[int], float], steps: tuple[int, ...], is_inside: Callable[[int], bool], start: int = 0
) -> int:
    """Return where the error is smallest, walking by each of the steps in turn while it falls."""
    best = start
    for step in steps:
        while is_inside(best + step) and error(best + step) < error(best):
            best += step
    return best


# From the sample to all rows: what fell from one stage to the next goes on falling.

_MAX_STEPS_AHEAD = 2.0


def steps_ahead(row_ratio: float, size_ratio: float) -> float:
    """Return by how many stages, each of four times the rows and twice the features, a model is ahead.

    It is at most 2: a fall that was seen once says little about more.
    """
    steps = (math.log(max(row_ratio, 1e-300)) / math.log(4.0) + math.log2(max(size_ratio, 1e-300))) / 2
    return min(max(steps, 0.0), _MAX_STEPS_AHEAD)


def carried_on(before: float, last: float, steps: float) -> float:
    """Return what a number is after more stages if it falls on as it did, at most to a half in each."""
    fall = min(max(last / before, 0.5), 1.0) if 0 < before < math.inf else 1.0
    return float(last * fall**steps)
