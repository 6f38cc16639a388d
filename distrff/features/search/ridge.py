"""Small ridges that stand for large models: held-out errors of a kernel's map at any width."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import eigh_tridiagonal

from distrff.errors import PenaltyTooSmall
from distrff.features.base import RowsInMemory
from distrff.features.binning import BinIds, Grids, occupied_bins
from distrff.features.equispaced import Box, Lattice
from distrff.features.fourier import draw_frequencies
from distrff.features.search.sample import FARTHEST, HeldOutError, SearchSample, descend
from distrff.features.trigonometry import paired_cos_sin
from distrff.kernels.base import Kernel, Widths
from distrff.solvers.ridge import noise_floor, path_ridge, ridge_system, solve_ridge
from distrff.solvers.toeplitz import Ending, SumsOfRows, ToeplitzProblem, half_of, whole_of
from distrff.utils.linalg import OneHotTile, factor, solve_factor
from distrff.utils.nufft import values_at
from distrff.utils.random import child_seed

FEATURES = 1024
"""Features of a small dense model, at most; a metric is learned on twice as many."""
GRIDS = 64
"""Grids of a small model of random binning, at most."""


class SmallRidge(ABC):
    """Ridge on the training rows of a sample, for any widths of a kernel that has undecided ones.

    The penalty is that of the sample, or the one of smallest held-out error.
    """

    description: str
    """What it is, for reports."""

    def __init__(self, sample: SearchSample, kernel: Kernel) -> None:
        self.sample, self.kernel = sample, kernel
        self.flops = 0.0  # of all that was judged
        self.alpha = _ALPHA  # where the search for a penalty begins

    @abstractmethod
    def values(self, kernel: Kernel) -> np.ndarray:
        """Values on the held-out rows, (n_held_out, k); NaN where there is no model."""

    @abstractmethod
    def flops_of_one(self) -> float:
        """About the flops of one width."""

    def judge(self, width: Widths) -> HeldOutError:
        """Errors on the held-out rows with this width, or one width a column."""
        self.flops += self.flops_of_one()
        return self.sample.judge(self.values(self.kernel.with_widths(width)))

    def out_of_fold(self, kernel: Kernel, n_folds: int) -> np.ndarray:
        """Values on all rows, (n, k), each by a model that did not see it."""
        F = np.empty_like(self.sample.Y)
        for fold in self.sample.folds(n_folds):
            F[fold] = self.of_rows(self.sample.holding_out(fold)).values(kernel)
        self.flops += n_folds * self.flops_of_one()
        return F

    @abstractmethod
    def of_rows(self, sample: SearchSample) -> SmallRidge:
        """The same model of other rows."""

    def error(self, width: Widths) -> float:
        """Squared error on the held-out rows; smoother in the width than a share of rows."""
        return self.judge(width).squared_error


# A smaller change of an error on some thousand rows is noise; where the error is flat, as for a linear
# function, a walk to ever longer widths would take most of the search.
LEAST_GAIN = 0.003


def best_width(
    model: SmallRidge, first: float, start: Iterable[int] = (0,), *, farthest: int = FARTHEST
) -> tuple[float, HeldOutError]:
    """The width of smallest squared error, from a first one on, and the error of the half octave beside."""
    found: dict[int, HeldOutError] = {}

    def error(place: int) -> float:
        found[place] = model.judge(first * 2.0 ** (place / 2))
        return found[place].squared_error

    # Shorter widths come first: more rows and features nearly always ask for them. The parabola at the end
    # places the width between half octaves; it is not judged again.
    line = descend(error, start, (-1, 1), farthest=farthest, least_gain=LEAST_GAIN)
    return first * 2.0 ** (line.minimum / 2), found[line.best]


# Penalties are for a row's weight and k(0); the first is the rounding noise of float32 sums.
_MIN_ALPHA, _MAX_ALPHA, _ALPHA = 3e-9, 1e2, 1e-4
_TILE_ROWS = 1024  # that float32 products are presumed to sum
_NEAR = np.arange(-2, 3)  # half decades solved together: after a reduction one takes nearly as long as five
_PRESUMED_SOLVES = 6  # Cholesky factors that take as long as the reduction


class DenseRidge(SmallRidge):
    """Ridge on dense features, from the Gram of float32 rows, or their products if they are fewer."""

    def __init__(self, sample: SearchSample, kernel: Kernel, n_features: int) -> None:
        super().__init__(sample, kernel)
        self.n_features = n_features
        self.description = f"a ridge on {n_features} features"
        self.alpha = _ALPHA if sample.penalty is None else max(sample.penalty, _MIN_ALPHA)
        n_rows, single = max(_TILE_ROWS, sample.n_training), np.dtype(np.float32)
        floor = noise_floor(
            1.0, n_rows, tile_rows=_TILE_ROWS, n_features=n_features, at_zero=1.0, dtype=single
        )
        self._min_alpha = max(_MIN_ALPHA, floor)

    @abstractmethod
    def features(self, kernel: Kernel) -> np.ndarray:
        """Features of all rows, float32 of shape (n, D)."""

    def values(self, kernel: Kernel) -> np.ndarray:
        return self.fitted(kernel).values

    def fitted(self, kernel: Kernel) -> FittedRidge:
        """The ridge of smallest squared error on the held-out rows."""
        sample, is_given = self.sample, self.sample.penalty is not None
        rows = _CentredRows.of(sample, self.features(kernel))
        # A reduction to a tridiagonal matrix, of 4/3·D³ flops, serves all penalties, which are sought in
        # decades, then in half decades, from the one that was best for the width before.
        path, B = path_ridge(rows.products()), rows.right_hand_sides()
        # A given penalty is for a unit of weight, as the model has it; one that is sought is a share of Σ
        # s‖z‖², which is Σs·k(0) as measured.
        unit = rows.weight if is_given else max(rows.size, 1e-300)
        near = _NEAR[2:3] if is_given else _NEAR
        found: dict[int, tuple[float, np.ndarray, np.ndarray]] = {}

        def error(half_decades: int) -> float:
            if half_decades not in found:
                new = [at for at in (half_decades + near).tolist() if at not in found]
                X = path.solve(B, self.alpha * 10.0 ** (np.array(new) / 2) * unit)
                F = rows.values(X)
                found.update(zip(new, zip(sample.squared_errors(F), X, F, strict=True), strict=True))
            inside = is_given or self._min_alpha <= self.alpha * 10.0 ** (half_decades / 2) <= _MAX_ALPHA
            return found[half_decades][0] if inside or not half_decades else math.inf

        # The penalty that was best for another width may be too small for this one.
        while error(0) == math.inf and self.alpha * 10.0 <= _MAX_ALPHA:
            self.alpha *= 10.0
            found.clear()
        best = descend(error, (0,), () if is_given else (2, -2, 1, -1)).best
        self.alpha *= 10.0 ** (best / 2)
        _, x, F = found[best]
        # Zeros are the constant: a width whose every solution overflows is judged as no better than that.
        return FittedRidge(F if np.isfinite(F).all() else np.zeros_like(F), x, rows)

    def of_rows(self, sample: SearchSample) -> DenseRidge:
        return type(self)(sample, self.kernel, self.n_features)

    def out_of_fold(self, kernel: Kernel, n_folds: int) -> np.ndarray:
        """As in the base class; the folds share features, their Grams and the best penalty of all."""
        sample = replace(self.sample, n_held_out=0)
        model, folds = self.of_rows(sample), sample.folds(n_folds)
        Z, k = model.features(kernel), sample.Y.shape[1]
        parts = [_sums_of(Z[fold], sample.s[fold], sample.Y[fold]) for fold in folds]
        total = sum(parts[1:], parts[0])
        systems = [ridge_system(total - part, k, fit_intercept=True) for part in parts]
        D = Z.shape[1]
        unit = total[D, D] if sample.penalty is not None else np.trace(total[:D, :D])
        unit *= 1 - 1 / len(folds)
        self.flops += model.flops_of_one()

        def values(half_decades: int) -> np.ndarray:
            alpha = self.alpha * 10.0 ** (half_decades / 2) * unit
            self.flops += len(folds) * D**3 / 3
            F = np.empty_like(sample.Y)
            for fold, system in zip(folds, systems, strict=True):
                try:
                    coef, intercept = solve_ridge(system, alpha)
                except PenaltyTooSmall:  # it is below the rounding of float32 sums
                    return np.full_like(F, np.nan)
                F[fold] = Z[fold] @ coef.astype(np.float32) + intercept
            return F

        found: dict[int, np.ndarray] = {}
        all_judged = replace(sample, n_held_out=len(sample.Y))

        def error(half_decades: int) -> float:
            alpha = self.alpha * 10.0 ** (half_decades / 2)
            if half_decades and not self._min_alpha <= alpha <= _MAX_ALPHA:
                return math.inf
            found[half_decades] = values(half_decades)
            return float(all_judged.squared_errors(found[half_decades][None])[0])

        steps: tuple[int, ...] = () if sample.penalty is not None else (1, -1)
        while error(0) == math.inf and steps and self.alpha * 10.0 <= _MAX_ALPHA:
            self.alpha *= 10.0
        return found[descend(error, (0,), steps).best]

    def flops_of_one(self) -> float:
        n, D = float(len(self.sample.Y)), self.n_features
        least = float(min(D, self.sample.n_training))
        return self._feature_flops() + n * D * least + _PRESUMED_SOLVES * least**3 / 3

    @abstractmethod
    def _feature_flops(self) -> float:
        """Flops of the features of all rows."""


def _sums_of(Z: np.ndarray, s: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The Gram of rows [z | 1 | y], from products in float32."""
    t = np.concatenate([Z, np.ones((len(Z), 1), np.float32), Y.astype(np.float32)], axis=1)
    t *= np.sqrt(s).astype(np.float32)[:, None]
    return (t.T @ t).astype(np.float64)


@dataclass(frozen=True, eq=False)
class _CentredRows:
    """Features of held-out rows less the mean of the training rows, and C = S^½(Z − z̄) of these."""

    held_out: np.ndarray
    C: np.ndarray
    R: np.ndarray  # S^½(Y − ȳ)
    mean: np.ndarray
    y_mean: np.ndarray
    weight: float
    size: float  # Σ s‖z‖²

    @classmethod
    def of(cls, sample: SearchSample, Z: np.ndarray) -> _CentredRows:
        """Centre features Z in float32, in their own memory."""
        held_out, C = Z[: sample.n_held_out], Z[sample.n_held_out :]
        s, Y = sample.s[sample.n_held_out :], sample.Y[sample.n_held_out :]
        weight, root = float(s.sum()), np.sqrt(s)[:, None]
        y_mean = s @ Y / weight
        in_float32 = root.astype(np.float32)
        C *= in_float32
        mean = (in_float32[:, 0] @ C).astype(np.float64) / weight
        size = float(np.vdot(C, C))
        # S^½(Z − z̄): the intercept is free in the model, and centring takes it out of the system.
        C -= in_float32 * mean.astype(np.float32)
        held_out -= mean.astype(np.float32)
        return cls(held_out, C, root * (Y - y_mean), mean, y_mean, weight, size)

    @property
    def has_few(self) -> bool:
        """Whether the training rows are fewer than the features.

        Then U of (CCᵀ + alpha·I) U = R takes the place of the coefficients W = CᵀU.
        """
        return len(self.C) < self.C.shape[1]

    def products(self) -> np.ndarray:
        # The products run at float32's rate; what is lost is below `_min_alpha`, the least penalty that is
        # tried.
        return (self.C @ self.C.T if self.has_few else self.C.T @ self.C).astype(np.float64)

    def right_hand_sides(self) -> np.ndarray:
        return self.R if self.has_few else (self.C.T @ self.R.astype(np.float32)).astype(np.float64)

    def values(self, X: np.ndarray) -> np.ndarray:
        """Values on the held-out rows for m solutions, (m, size, k) → (m, n_held_out, k)."""
        m, size, k = X.shape
        # One product for all penalties and targets.
        flat = X.transpose(1, 0, 2).reshape(size, m * k)
        basis = self._across if self.has_few else self.held_out
        # Solutions of too small a penalty may overflow; their errors are then infinite, and they are not
        # chosen.
        with np.errstate(invalid="ignore", over="ignore"):
            F = (basis @ flat.astype(np.float32)).astype(np.float64)
        return F.reshape(-1, m, k).transpose(1, 0, 2) + self.y_mean

    @cached_property
    def _across(self) -> np.ndarray:
        return self.held_out @ self.C.T


@dataclass(frozen=True, eq=False)
class FittedRidge:
    """A ridge with its values on held-out rows, and the sums that gradients follow from."""

    values: np.ndarray
    _solution: np.ndarray
    _rows: _CentredRows

    @property
    def coef(self) -> np.ndarray:
        """Coefficients, (D, k)."""
        rows = self._rows
        return rows.C.T.astype(np.float64) @ self._solution if rows.has_few else self._solution

    @property
    def A(self) -> np.ndarray:
        """The raw Gram ZᵀSZ of the training rows."""
        rows = self._rows
        # Σ s·z·zᵀ = Σ s(z − z̄)(z − z̄)ᵀ + Σs·z̄·z̄ᵀ; gradients take the raw Gram.
        return (rows.C.T @ rows.C).astype(np.float64) + rows.weight * np.outer(rows.mean, rows.mean)


class FourierRidge(DenseRidge):
    """Ridge on cosines and sines of iid frequencies, the same standard ones for every width."""

    def __init__(self, sample: SearchSample, kernel: Kernel, n_features: int) -> None:
        super().__init__(sample, kernel, max(2, n_features // 2 * 2))

    def frequencies(self, kernel: Kernel) -> np.ndarray:
        # The same draw for every width: errors then differ by the width, and not by chance.
        seed, d = child_seed(self.sample.seed, "length scale pilot"), self.sample.X.shape[1]
        return draw_frequencies(kernel, self.n_features // 2, d, sampling="iid", seed=seed)

    def features(self, kernel: Kernel) -> np.ndarray:
        # Multiplied in float64: large phases of short widths would lose their digits in float32.
        phases = (self.sample.X @ self.frequencies(kernel)).astype(np.float32)
        Z = np.empty((len(phases), self.n_features), np.float32)
        paired_cos_sin(phases, Z, math.sqrt(2.0 / self.n_features))
        return Z

    def _feature_flops(self) -> float:
        n, d = self.sample.X.shape
        return n * self.n_features * (d + 20.0)  # phases, and cosines, which count as some flops each


_JITTER = 1e-9
_STRIP_ROWS = 1024  # their kernel values take some megabytes


class NystroemRidge(DenseRidge):
    """Ridge on the kernel's values with landmarks among the training rows."""

    def __init__(self, sample: SearchSample, kernel: Kernel, n_features: int) -> None:
        super().__init__(sample, kernel, min(n_features, sample.n_training))

    def features(self, kernel: Kernel) -> np.ndarray:
        X, n_held_out = self.sample.X, self.sample.n_held_out
        L = X[n_held_out : n_held_out + self.n_features]  # the rows are in random order
        K = kernel.block(L, L)
        K[np.diag_indices_from(K)] += _JITTER * len(K)  # repeated rows make it singular
        root = factor(K)
        Z = np.empty((len(X), self.n_features), np.float32)
        for start in range(0, len(X), _STRIP_ROWS):
            strip = slice(start, start + _STRIP_ROWS)
            Z[strip] = solve_factor(root, kernel.block(X[strip], L).T, overwrite=True).T
        return Z

    def _feature_flops(self) -> float:
        n, d, M = float(len(self.sample.X)), self.sample.X.shape[1], self.n_features
        return n * M * (2 * d + 30) + 2 * n * M**2 + M**3 / 3  # the solve is in float64, at half the rate


# Stopping after so many steps acts as a penalty itself: smaller alphas then all give the same model.
_LANCZOS_STEPS = 16
_BINNED_ALPHAS = np.logspace(-7, 0, 15)  # for each unit of weight
_LEAST_ERROR = 1e-4  # of the variance
_PRESUMED_OUTPUTS = 8
_LOOK_UP_FLOPS = 10.0  # flops of a matrix product that take as long as the look-up of a bin


class BinnedRidge(SmallRidge):
    """Ridge on the bins of a few grids, in its dual form.

    S are the weights of the training rows, and K holds for each pair of them its share of common bins. The
    model is f(x) = Σ_i k(x, x_i)·s_i^½·u_i with (S^½KS^½ + alpha·I)u = b = S^½y. All alphas have the same
    Krylov space. The Lanczos process gives an orthonormal basis V of it, in which S^½KS^½ is a tridiagonal T:
    u = V(T + alpha·I)⁻¹Vᵀb (Golub and Van Loan, Matrix Computations, 4th edition, section 10.1).

    n·P look-ups, then at most 16 products of 4·n·P·k flops.
    """

    def __init__(self, sample: SearchSample, kernel: Kernel, n_grids: int) -> None:
        super().__init__(sample, kernel)
        self._n_grids = min(n_grids, GRIDS)
        self.description = f"a ridge on the bins of {self._n_grids} grids"
        self._alphas = _BINNED_ALPHAS if sample.penalty is None else np.array([sample.penalty])

    def of_rows(self, sample: SearchSample) -> SmallRidge:
        return BinnedRidge(sample, self.kernel, self._n_grids)

    def error(self, width: Widths) -> float:
        """Squared error on the held-out rows; 0 where it is below a ten-thousandth of the variance.

        Kinds of rows that lie apart are told apart by any wide kernel: its error still falls where these
        grids cut just once between the kinds, and the map's own might not at all. A search that begins with
        short widths ends at the first without an error.
        """
        error = super().error(width)
        return 0.0 if error <= _LEAST_ERROR else error

    def values(self, kernel: Kernel) -> np.ndarray:
        sample, training = self.sample, slice(self.sample.n_held_out, None)
        Z, root = self._bins(kernel), np.sqrt(sample.s[training])[:, None]
        F = self._by_alpha(Z, root * sample.Y[training], root)
        return F[sample.squared_errors(F).argmin()]

    def _bins(self, kernel: Kernel) -> OneHotTile:
        X, seed = self.sample.X, child_seed(self.sample.seed, "length scale pilot")
        grids = Grids.draw(kernel, self._n_grids, X.shape[1], seed)
        bins = occupied_bins(grids, RowsInMemory(X, None))
        ids = BinIds(bins["keys"], bins["ends"]).find(grids.keys(X))
        return OneHotTile(ids, float(np.sqrt(1.0 / self._n_grids)), len(bins["keys"]))

    def _by_alpha(self, Z: OneHotTile, B: np.ndarray, root: np.ndarray) -> np.ndarray:
        """Values on the held-out rows for every alpha, (n_alphas, n_held_out, k); `root` is S^½."""
        n_held_out, (n_train, k) = self.sample.n_held_out, B.shape
        train = Z[np.arange(n_held_out, len(Z))]
        size = np.linalg.norm(B, axis=0)
        v, before, beta = B / np.where(size > 0, size, 1.0), np.zeros_like(B), np.zeros(k)
        diagonal, off_diagonal, values = [], [], []
        for _ in range(min(_LANCZOS_STEPS, n_train)):
            coef = np.zeros((Z.n_features, k))
            # K·v = Z(Zᵀv): n·P entries, where K itself would have n².
            train.add_transposed_product(coef.T, (root * v).T)
            F = Z.values(coef)
            # The held-out values of each basis vector come from the same product; every alpha combines them.
            values.append(F[:n_held_out])
            w = root * F[n_held_out:] - beta * before
            diagonal.append(np.einsum("ij,ij->j", w, v))
            w -= diagonal[-1] * v
            beta = np.linalg.norm(w, axis=0)
            off_diagonal.append(beta)
            # A residual of 0 ends the Krylov space: further vectors are zeros, and add nothing.
            v, before = w / np.where(beta > 0, beta, 1.0), v
        found = np.empty((len(self._alphas), n_held_out, k))
        alphas = np.square(root).sum() * self._alphas
        for j in range(k):
            eigenvalues, Q = eigh_tridiagonal([a[j] for a in diagonal], [b[j] for b in off_diagonal[:-1]])
            # Vᵀb is ‖b‖ times the first unit vector; T = QΛQᵀ.
            shrunk = (size[j] * Q[0])[:, None] / (np.maximum(eigenvalues, 0)[:, None] + alphas)
            found[:, :, j] = (np.stack([F[:, j] for F in values], axis=1) @ (Q @ shrunk)).T
        return found

    def flops_of_one(self) -> float:
        n, d = self.sample.X.shape
        return binned_flops(n, d, self._n_grids)


def dense_flops(n_rows: int, n_features: int) -> float:
    """About the flops of one width of `FourierRidge` on that many rows."""
    D = float(min(n_features, FEATURES))
    least = min(D, n_rows)
    return n_rows * D * least + _PRESUMED_SOLVES * least**3 / 3


def binned_flops(n_rows: int, n_columns: int, n_grids: int) -> float:
    """About the flops of one width of `BinnedRidge`, for a handful of outputs."""
    of_row = 3 * n_columns + 4 * _PRESUMED_OUTPUTS * _LANCZOS_STEPS
    return _LOOK_UP_FLOPS * n_rows * min(n_grids, GRIDS) * of_row


_KERNEL_TOL = 1e-3
_ENDING = Ending(3e-3, 200)  # of objectives that are only compared
_EPS = 1e-8
_PRESUMED_PRODUCTS = 60  # of a width


class EquispacedRidge(SmallRidge):
    """Ridge on equispaced features, which are the kernel itself however many rows there are.

    One set of sums serves every width and penalty. A width that the lattice around the first one does not
    resolve has no model.
    """

    def __init__(self, sample: SearchSample, kernel: Kernel, n_modes: int) -> None:
        super().__init__(sample, kernel)
        self._n_modes = n_modes
        self.alpha = _ALPHA if sample.penalty is None else max(sample.penalty, _MIN_ALPHA)
        self._lattice: Lattice | None = None

    def values(self, kernel: Kernel) -> np.ndarray:
        sample = self.sample
        if self._lattice is None:
            self._begin(kernel)
        assert self._lattice is not None
        # Where the modes do not suffice for the first width itself, widths resolved as well as that one
        # count.
        tol = max(_KERNEL_TOL, self._lattice.error(self._first) * (1 + 1e-9))
        lattice = self._lattice.resolving(kernel, tol)
        if lattice is None:
            return np.full((sample.n_held_out, sample.Y.shape[1]), np.nan)
        weights = half_of(lattice.weights(kernel)).copy()
        problem = ToeplitzProblem(self._sums.central(lattice.modes), weights, fit_intercept=True)
        found: dict[int, np.ndarray] = {}

        def error(half_decades: int) -> float:
            alpha = self.alpha * 10.0 ** (half_decades / 2)
            if half_decades and not _MIN_ALPHA <= alpha <= _MAX_ALPHA:
                return math.inf
            found[half_decades] = self._values_at(problem, alpha)
            return sample.judge(found[half_decades]).squared_error

        best = descend(error, (0,), (2, -2, 1, -1) if sample.penalty is None else ()).best
        self.alpha *= 10.0 ** (best / 2)
        return found[best]

    def of_rows(self, sample: SearchSample) -> SmallRidge:
        return EquispacedRidge(sample, self.kernel, self._n_modes)

    def _begin(self, kernel: Kernel) -> None:
        """Make the lattice around the first width, and the sums of the training rows."""
        sample, held_out = self.sample, self.sample.n_held_out
        # Held-out rows as well: transforms take no place outside of the box.
        low, high = sample.X.min(axis=0), sample.X.max(axis=0)
        box = Box(tuple(zip(low.tolist(), high.tolist(), strict=True)), (None,) * len(low))
        self._lattice, self._first = box.lattice_for_search(
            kernel, _KERNEL_TOL, self._n_modes, sample.n_training
        )
        phases = self._lattice.phases(sample.X)
        self._points = [x[:held_out] for x in phases]
        of_rows = SumsOfRows(self._lattice.modes, sample.Y.shape[1], _EPS)
        self._sums = of_rows.sums([x[held_out:] for x in phases], sample.Y[held_out:], sample.s[held_out:])

    def _values_at(self, problem: ToeplitzProblem, alpha: float) -> np.ndarray:
        F = np.empty((self.sample.n_held_out, self.sample.Y.shape[1]))
        for target in range(F.shape[1]):
            found = problem.solve(target, alpha * self._sums.weight, _ENDING)
            F[:, target] = values_at(self._points, whole_of(problem.functions(found.c)), _EPS).real
        return F

    def flops_of_one(self) -> float:
        N = 2.0 ** self.sample.X.shape[1] * self._n_modes
        return _PRESUMED_PRODUCTS * 10.0 * N * math.log2(N) * self.sample.Y.shape[1]


MODELS: dict[str, Callable[[SearchSample, Kernel, int], SmallRidge]] = {
    "fourier": FourierRidge,
    "nystroem": NystroemRidge,
    "binning": BinnedRidge,
    "equispaced": EquispacedRidge,
}
"""Small models by the kind of map that they stand for."""
