"""The five kernels of one formula each: Gaussian, Laplacian, Cauchy, Exponential and Matern."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.polynomial import Polynomial
from scipy.spatial.distance import cdist
from scipy.special import gammaincinv, kve, ndtri

from distrff.errors import InputError
from distrff.kernels.base import LEARNED, Kernel, MetricFactor, Streams, checked_metric
from distrff.utils.jit import compiled
from distrff.utils.validation import Widths, checked_length_scale, positive_number


@dataclass(frozen=True, repr=False)
class Stationary(Kernel):
    """A function of P·δ divided by the width, and of δ without a metric P.

    Widths may be one for each column instead; they divide the frequencies, too. Those of a metric are
    Pᵀ·ω/ℓ.
    """

    length_scale: Widths = 1.0
    metric: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length_scale", checked_length_scale(self.length_scale))
        object.__setattr__(self, "metric", checked_metric(self.metric))
        if self.metric is not None and (self.is_ard or isinstance(self.length_scale, tuple)):
            widths = "'ard'" if self.is_ard else "one width a column"
            raise InputError(
                f"a metric goes with one width, not with {widths}; give length_scale a number or 'auto', or "
                f"divide the columns of the metric by the widths"
            )

    def __repr__(self) -> str:
        shown = self.get_params(deep=False)
        metric = shown.pop("metric")
        shown |= {} if metric is None else {"metric": metric}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @abstractmethod
    def _correlation(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        """The kernel matrix of the rows' coordinates."""

    @abstractmethod
    def _unit_frequencies(self, shape: tuple[int, int], rng_of: Streams) -> np.ndarray:
        """Draw frequencies of width 1, `shape` = (n_frequencies, n_coordinates), row after row."""

    @abstractmethod
    def _unit_quantiles(self, U: np.ndarray) -> np.ndarray:
        """Frequencies of width 1 at points of the unit cube, row after row."""

    @abstractmethod
    def _unit_moment(self) -> float:
        """E ω_j² at width 1."""

    @abstractmethod
    def _width_gradient(self, U: np.ndarray, K: np.ndarray, M: np.ndarray) -> np.ndarray:
        """`width_gradient` for the rows' coordinates."""

    def width_gradient(self, X: np.ndarray, K: np.ndarray, M: np.ndarray) -> np.ndarray:
        """∂f/∂log ℓ_j = Σ_{ii'} M_{ii'}·∂k(x_i, x_i')/∂log ℓ_j for each column j, shape (d,).

        With a metric, the derivatives are those by a width for each row of P, shape (r,).

        K is the kernel matrix of the rows of X, f a function of K, and the symmetric M = ∂f/∂K. O(n²·d) time
        and a few matrices of the size of K.
        """
        return self._width_gradient(self._coordinates(X), K, M)

    @property
    def at_zero(self) -> float:
        return 1.0

    @property
    def is_auto(self) -> bool:
        return isinstance(self.length_scale, str) or self.metric == LEARNED

    @property
    def is_ard(self) -> bool:
        return self.length_scale == "ard"

    def without_metric(self) -> Kernel:
        return self if self.metric is None else self.set_params(metric=None)

    def _column_counts(self) -> set[int]:
        if isinstance(self.metric, MetricFactor):
            return {self.metric.shape[1]}
        return {len(self.length_scale)} if isinstance(self.length_scale, tuple) else set()

    def column_widths(self, n_columns: int) -> np.ndarray:
        """The width of each column; raises InputError while it is undecided, or for another number."""
        if isinstance(self.length_scale, str):
            raise InputError(f"the width of {self!r} is undecided; fit it on data or give a number")
        if isinstance(self.length_scale, tuple) and len(self.length_scale) != n_columns:
            raise InputError(f"{self!r} has {len(self.length_scale)} widths, the data {n_columns} columns")
        return np.broadcast_to(np.asarray(self.length_scale, dtype=np.float64), (n_columns,))

    def _factor(self, n_columns: int) -> np.ndarray:
        """P; raises InputError while it is undecided, or if it does not fit the columns."""
        if self.metric == LEARNED:
            raise InputError(f"the metric of {self!r} is undecided; fit it on data or give a matrix")
        P = np.asarray(self.metric)
        if P.shape[1] != n_columns:
            raise InputError(f"the metric of {self!r} has {P.shape[1]} columns, the data {n_columns}")
        return P

    def _n_coordinates(self, n_columns: int) -> int:
        return n_columns if self.metric is None else len(self._factor(n_columns))

    def _coordinates(self, X: np.ndarray) -> np.ndarray:
        """Arguments of the kernel of width 1: P·x/ℓ for each row x."""
        U = X if self.metric is None else X @ self._factor(X.shape[1]).T
        return U / self.column_widths(U.shape[1])

    def _evaluate(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        U, V = self._in_widths(X, Y)
        # Squares may overflow: the kernel is 0 there, as it should be.
        with np.errstate(over="ignore"):
            return self._correlation(U, V)

    def _in_widths(self, X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore", invalid="ignore"):
            U = self._coordinates(X)
            V = U if Y is X else self._coordinates(Y)
        if not (np.isfinite(U).all() and np.isfinite(V).all()):
            raise InputError(f"rows divided by the width of {self!r} overflow; use a larger length_scale")
        return U, V

    def frequencies(self, n_frequencies: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        shape = n_frequencies, self._n_coordinates(n_columns)
        return self._of_columns(self._unit_frequencies(shape, rng_of), n_columns)

    def _of_columns(self, W: np.ndarray, n_columns: int) -> np.ndarray:
        """Pᵀ·ω/ℓ for the rows ω of W, the frequencies of width 1, as columns."""
        W = W / self.column_widths(self._n_coordinates(n_columns))
        return (W if self.metric is None else W @ self._factor(n_columns)).T

    def n_uniforms(self, n_columns: int) -> int:
        return self._n_coordinates(n_columns)

    def quantile_frequencies(self, U: np.ndarray, n_columns: int) -> np.ndarray:
        return self._of_columns(self._unit_quantiles(U), n_columns)

    def second_moment(self, n_columns: int) -> float:
        squares = self.column_widths(self._n_coordinates(n_columns)) ** -2.0
        if self.metric is not None:
            squares = squares * np.square(self._factor(n_columns)).sum(axis=1)
        # ω is Pᵀ·u/ℓ with uncorrelated u_j, so E‖ω‖² = E u_j²·Σ_j ‖p_j‖²/ℓ_j² over the rows of P.
        return self._unit_moment() * float(np.sum(squares))

    def with_widths(self, factor: Widths) -> Kernel:
        return self.set_params(length_scale=factor) if isinstance(self.length_scale, str) else self

    def along(self, columns: Sequence[int]) -> Kernel:
        if self.metric is not None:
            return self.set_params(metric=np.asarray(self.metric)[:, list(columns)])
        if not isinstance(self.length_scale, tuple):
            return self
        return self.set_params(length_scale=tuple(self.length_scale[j] for j in columns))

    def lattice_weights(self, spacing: Sequence[float], modes: Sequence[int]) -> np.ndarray:
        if self.metric is not None:
            return self._turned_weights(spacing, modes)
        steps = np.asarray(spacing, dtype=np.float64) * self.column_widths(len(modes))
        # (h·ℓ·j)² of each column, to be broadcast against the others.
        squares = np.ix_(
            *(np.square(step * np.arange(-m, m + 1)) for step, m in zip(steps, modes, strict=True))
        )
        # k̂(ξ) = ∏ℓ·k̂₁(ℓ·ξ) for the kernel of width 1, times h for each column.
        return float(np.prod(steps)) * self._unit_density(squares)

    def _turned_weights(self, spacing: Sequence[float], modes: Sequence[int]) -> np.ndarray:
        raise InputError(
            f"equispaced frequencies take a metric of Gaussian and Matern kernels alone, got {self!r}; "
            f"project the rows"
        )

    @abstractmethod
    def _unit_density(self, squares: Sequence[np.ndarray]) -> np.ndarray:
        """k̂ of width 1 where the squared frequencies of each column are these."""


class _Spherical(Stationary):
    """A function of ‖δ‖ once its coordinates are divided by their widths, or of ‖P·δ‖ for a metric P."""

    @property
    def is_spherical(self) -> bool:
        return self.metric is None

    def _profile(self) -> float | tuple[float, ...]:
        return 1.0 if isinstance(self.length_scale, str) else self.length_scale

    def _triangle(self, n_columns: int) -> np.ndarray:
        """The square R with ‖R·δ‖ = ‖P·δ/ℓ‖; raises InputError where P loses a direction."""
        P = self._factor(n_columns)
        R: np.ndarray = np.linalg.qr(P / self.column_widths(len(P))[:, None]).R
        if R.shape != (n_columns, n_columns) or not np.diag(R).all():
            raise InputError(
                f"the metric of {self!r} loses a direction of the columns, along which its spectrum has no "
                f"density; give an invertible matrix"
            )
        return R

    def _turned_weights(self, spacing: Sequence[float], modes: Sequence[int]) -> np.ndarray:
        # k̂(ξ) = k̂₁(R⁻ᵀξ)/|det R| for the kernel of width 1.
        R = self._triangle(len(modes))
        frequencies = np.ix_(*(h * np.arange(-m, m + 1.0) for h, m in zip(spacing, modes, strict=True)))
        turned = [
            reduce(np.add, [r * xi for r, xi in zip(row, frequencies, strict=True)])
            for row in np.linalg.inv(R).T
        ]
        share = float(np.prod(spacing)) / abs(float(np.prod(np.diag(R))))
        return share * self._unit_density([np.square(eta) for eta in turned])

    def envelope(self, column: int, n_columns: int) -> Kernel:
        if self.metric is None:
            return super().envelope(column, n_columns)
        # The least ‖R·δ‖ for a given δ_j is |δ_j|/√S_jj, S = (RᵀR)⁻¹.
        width = float(np.linalg.norm(np.linalg.inv(self._triangle(n_columns))[column]))
        return self.set_params(metric=None, length_scale=width)

    def widths(self, n_columns: int) -> np.ndarray:
        if not self.is_spherical:
            raise self._no_sphere("widths")
        return self.column_widths(n_columns)

    def radii(self, n: int, n_columns: int, rng_of: Streams) -> np.ndarray:
        if not self.is_spherical:
            raise self._no_sphere("radii")
        # The norm of d standard normals is chi distributed: √(2·Gamma(d/2)).
        return np.sqrt(2.0 * rng_of("radius").standard_gamma(n_columns / 2, n)) * self._stretch(n, rng_of)

    def _unit_frequencies(self, shape: tuple[int, int], rng_of: Streams) -> np.ndarray:
        W = rng_of("normal").standard_normal(shape)
        return W * np.reshape(self._stretch(shape[0], rng_of), (-1, 1))

    def _stretch(self, n: int, rng_of: Streams) -> Any:
        """Draw the factors that make normal frequencies those of this kernel, one each or one for all."""
        return 1.0


@dataclass(frozen=True, repr=False)
class Gaussian(_Spherical):
    """k(δ) = exp(−‖δ/ℓ‖²/2), ω ~ N(0, diag(ℓ)⁻²).

    Parameters
    ----------
    length_scale : float, tuple of floats, "auto" or "ard"
        The width ℓ, or one per column; decided by the fit: "auto" is one number, "ard" one per column.
    metric : ndarray of shape (r, d), "learned" or None
        P, which makes it k(P·δ), with one width; decided by the fit: "learned". None is the identity.
    """

    @classmethod
    def from_gamma(cls, gamma: float) -> Gaussian:
        """exp(−gamma·‖δ‖²), as scikit-learn writes it: ℓ = 1/√(2·gamma).

        Raises
        ------
        InputError
            If `gamma` is not positive and finite.
        """
        return cls(math.sqrt(0.5) / math.sqrt(positive_number(gamma, "gamma")))

    def _correlation(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        return self._of_squares(cdist(X, Y, "sqeuclidean"))

    def block(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        return self._of_squares(squared_distances(*self._in_widths(X, Y)))

    def _of_squares(self, K: np.ndarray) -> np.ndarray:
        K *= -0.5
        return np.exp(K, out=K)

    def _width_gradient(self, U: np.ndarray, K: np.ndarray, M: np.ndarray) -> np.ndarray:
        # ∂k/∂log ℓ_j = k·(u_j − u′_j)².
        return square_sums(U, M * K)

    def _unit_density(self, squares: Sequence[np.ndarray]) -> np.ndarray:
        # ∫ e^(−δ²/2 − 2πiξδ) dδ = √(2π)·e^(−2π²ξ²).
        return _product([math.sqrt(2.0 * math.pi) * np.exp(-2.0 * math.pi**2 * q) for q in squares])

    def _unit_quantiles(self, U: np.ndarray) -> np.ndarray:
        return ndtri(U)

    def _unit_moment(self) -> float:
        return 1.0


@dataclass(frozen=True, repr=False)
class Laplacian(Stationary):
    """k(δ) = exp(−‖δ/ℓ‖₁), ω_j ~ Cauchy(0, 1/ℓ_j) independently.

    Parameters
    ----------
    length_scale : float, tuple of floats, "auto" or "ard"
        The width ℓ, or one per column; decided by the fit: "auto" is one number, "ard" one per column.
    metric : ndarray of shape (r, d), "learned" or None
        P, which makes it k(P·δ), with one width; decided by the fit: "learned". None is the identity.
    """

    def _correlation(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        K = cdist(X, Y, "cityblock")
        np.negative(K, out=K)
        return np.exp(K, out=K)

    def _width_gradient(self, U: np.ndarray, K: np.ndarray, M: np.ndarray) -> np.ndarray:
        # ∂k/∂log ℓ_j = k·|u_j − u′_j| does not expand into products of rows: all pairs are gone through.
        return _pair_sums(_add_absolute, U, M * K)

    def _unit_frequencies(self, shape: tuple[int, int], rng_of: Streams) -> np.ndarray:
        # By the inverse of the cdf, which is finite for every U in [0, 1); a ratio of normals is not.
        W = rng_of("uniform").random(shape)
        W -= 0.5
        W *= math.pi
        return np.tan(W, out=W)

    def _unit_density(self, squares: Sequence[np.ndarray]) -> np.ndarray:
        # ∫ e^(−|δ| − 2πiξδ) dδ = 2/(1 + 4π²ξ²).
        return _product([2.0 / (1.0 + 4.0 * math.pi**2 * q) for q in squares])

    def _unit_quantiles(self, U: np.ndarray) -> np.ndarray:
        return np.tan(np.pi * (U - 0.5))

    def _unit_moment(self) -> float:
        return math.inf


@dataclass(frozen=True, repr=False)
class Cauchy(Stationary):
    """k(δ) = ∏ 1/(1 + (δ_j/ℓ_j)²), ω_j ~ Laplace(0, 1/ℓ_j) independently.

    Parameters
    ----------
    length_scale : float, tuple of floats, "auto" or "ard"
        The width ℓ, or one per column; decided by the fit: "auto" is one number, "ard" one per column.
    metric : ndarray of shape (r, d), "learned" or None
        P, which makes it k(P·δ), with one width; decided by the fit: "learned". None is the identity.
    """

    def _correlation(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        # Column by column in two matrices: differences of all columns at once would be d matrices.
        K = np.ones((len(X), len(Y)))
        factor = np.empty_like(K)
        for x, y in zip(X.T, Y.T, strict=True):
            np.subtract.outer(x, y, out=factor)
            factor *= factor
            factor += 1.0
            K *= factor
        return np.reciprocal(K, out=K)

    def _width_gradient(self, U: np.ndarray, K: np.ndarray, M: np.ndarray) -> np.ndarray:
        # ∂k/∂log ℓ_j = k·2v²/(1 + v²) for v = u_j − u′_j, pair by pair as for the Laplacian.
        return _pair_sums(_add_rational, U, M * K)

    def _unit_frequencies(self, shape: tuple[int, int], rng_of: Streams) -> np.ndarray:
        return rng_of("laplace").laplace(size=shape)

    def _unit_density(self, squares: Sequence[np.ndarray]) -> np.ndarray:
        # ∫ e^(−2πiξδ)/(1 + δ²) dδ = π·e^(−2π|ξ|).
        return _product([math.pi * np.exp(-2.0 * math.pi * np.sqrt(q)) for q in squares])

    def _unit_quantiles(self, U: np.ndarray) -> np.ndarray:
        # The inverse of the Laplace distribution function.
        return np.where(U < 0.5, np.log(2.0 * U), -np.log(2.0 * (1.0 - U)))

    def _unit_moment(self) -> float:
        return 2.0


class _StudentT(_Spherical):
    """Frequencies of a multivariate t with 2ν degrees of freedom: g/√(u/2ν), g ~ N(0, I), u ~ χ²_{2ν}."""

    nu: float

    def _correlation(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        return matern_correlation(cdist(X, Y, "euclidean"), self.nu)

    def _width_gradient(self, U: np.ndarray, K: np.ndarray, M: np.ndarray) -> np.ndarray:
        # ∂r/∂log ℓ_j = −(u_j − u′_j)²/r, so that the slope is wanted as −k′(r)/r.
        return square_sums(U, M * matern_slope(cdist(U, U, "euclidean"), self.nu))

    def _stretch(self, n: int, rng_of: Streams) -> np.ndarray:
        # u/2 ~ Gamma(ν), which for ν < 1 may round to 0.
        half_u = np.maximum(rng_of("mixing").standard_gamma(self.nu, n), np.finfo(float).tiny)
        return np.sqrt(self.nu / half_u)

    def _unit_density(self, squares: Sequence[np.ndarray]) -> np.ndarray:
        # Rasmussen and Williams 2006, equation 4.15; by logarithms, since Γ overflows for a large ν.
        nu, half = self.nu, len(squares) / 2
        constant = 2 * half * math.log(2.0) + half * math.log(math.pi)
        constant += math.lgamma(nu + half) - math.lgamma(nu) - half * math.log(2.0 * nu)
        S = reduce(np.add, squares) * (2.0 * math.pi**2 / nu)
        return np.exp(constant - (nu + half) * np.log1p(S))

    def n_uniforms(self, n_columns: int) -> int:
        return self._n_coordinates(n_columns) + 1

    def _unit_quantiles(self, U: np.ndarray) -> np.ndarray:
        # The factor of the radius matters most and takes the first Sobol coordinate, the most even one.
        half_u = np.maximum(gammaincinv(self.nu, U[:, :1]), np.finfo(float).tiny)
        return ndtri(U[:, 1:]) * np.sqrt(self.nu / half_u)

    def _unit_moment(self) -> float:
        # E g²/(u/2ν) = 2ν·E 1/u, and E 1/u = 1/(2ν − 2) for 2ν > 2 degrees of freedom, else infinite.
        return self.nu / (self.nu - 1.0) if self.nu > 1.0 else math.inf


@dataclass(frozen=True, repr=False)
class Exponential(_StudentT):
    """k(δ) = exp(−‖δ/ℓ‖₂), the Matern kernel of ν = ½; ω is multivariate t with 1 degree of freedom.

    Parameters
    ----------
    length_scale : float, tuple of floats, "auto" or "ard"
        The width ℓ, or one per column; decided by the fit: "auto" is one number, "ard" one per column.
    metric : ndarray of shape (r, d), "learned" or None
        P, which makes it k(P·δ), with one width; decided by the fit: "learned". None is the identity.
    """

    nu = 0.5


@dataclass(frozen=True, repr=False)
class Matern(_StudentT):
    """k(δ) = 2^{1−ν}/Γ(ν)·s^ν·K_ν(s), s = √(2ν)·‖δ/ℓ‖₂; ω is multivariate t with 2ν degrees of freedom.

    Rasmussen and Williams 2006, equations 4.14 and 4.15. Functions of its space have fewer than ν
    derivatives; ν → ∞ is the Gaussian.

    Parameters
    ----------
    length_scale : float, tuple of floats, "auto" or "ard"
        The width ℓ, or one per column; decided by the fit: "auto" is one number, "ard" one per column.
    nu : float or "auto"
        The smoothness ν, at least 0.25; ½, 1½ and 2½ are fast to evaluate. "auto" is chosen by a fit of
        `EquispacedFourierFeatures`, from ½, 1½, 2½ and ∞.
    metric : ndarray of shape (r, d), "learned" or None
        P, which makes it k(P·δ), with one width; decided by the fit: "learned". None is the identity.
    """

    nu: Any = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.has_undecided_smoothness:
            object.__setattr__(self, "nu", positive_number(self.nu, "nu", minimum=0.25))

    @property
    def has_undecided_smoothness(self) -> bool:
        return isinstance(self.nu, str) and self.nu == "auto"

    @property
    def is_auto(self) -> bool:
        return super().is_auto or self.has_undecided_smoothness

    def column_widths(self, n_columns: int) -> np.ndarray:
        if self.has_undecided_smoothness:
            raise InputError(
                f"the smoothness of {self!r} is undecided; fit EquispacedFourierFeatures, or give a number"
            )
        return super().column_widths(n_columns)

    def block(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        if self.nu < 1.5:  # steep in ‖δ‖² at 0, where an error of 1e-16 would become one of 1e-8
            return self._evaluate(X, Y)
        K = squared_distances(*self._in_widths(X, Y))
        return matern_correlation(np.sqrt(K, out=K), self.nu)


def _product(factors: Sequence[np.ndarray]) -> np.ndarray:
    return reduce(np.multiply, factors)


# The Matern correlation for every smoothness.

# From this ν on, K_ν may overflow where the correlation is below 1 in float64; the uniform expansion
# with so many terms is then exact to rounding.
_LARGE_NU = 30.0
_N_TERMS = 11


def matern_correlation(R: np.ndarray, nu: float) -> np.ndarray:
    """2^{1−ν}/Γ(ν)·s^ν·K_ν(s) for s = √(2ν)·r, at distances R ≥ 0 of width 1; R is overwritten.

    Rasmussen and Williams 2006, equations 4.14 and 4.17 (ν = ½, 1½, 2½).
    """
    # At 2000 widths the value is 0 in float64 for every ν ≥ 0.25; far beyond, powers of s overflow.
    np.minimum(R, 2000.0, out=R)
    if nu >= _LARGE_NU:
        return _uniform_expansion(R, nu)
    R *= math.sqrt(2.0 * nu)
    S, decay = R, np.exp(-R)
    if nu == 0.5:
        return decay
    if nu == 1.5:
        S += 1.0
    elif nu == 2.5:
        S *= 1.0 + S / 3.0
        S += 1.0
    else:
        return _by_bessel(S, nu, decay)
    S *= decay
    return S


def matern_slope(R: np.ndarray, nu: float) -> np.ndarray:
    """−k'(r)/r of the correlation k at distances R ≥ 0 of width 1, 0 at r = 0; R is overwritten.

    By d/ds[s^ν·K_ν(s)] = −s^ν·K_{ν−1}(s) (DLMF 10.29.4) it is 2ν·2^{1−ν}/Γ(ν)·s^{ν−1}·K_{ν−1}(s): for
    ν > 1 the correlation of ν − 1 at the same s, times ν/(ν − 1).
    """
    same = R == 0.0
    if nu > 1.0:
        ratio = nu / (nu - 1.0)
        R *= math.sqrt(ratio)
        slope = matern_correlation(R, nu - 1.0)
        slope *= ratio
    else:
        S = np.minimum(R, 2000.0) * math.sqrt(2.0 * nu)
        S[same] = 1.0
        slope = kve(1.0 - nu, S) * np.exp(-S) * S ** (nu - 1.0)
        slope *= 2.0 * nu * 2.0 ** (1.0 - nu) / math.gamma(nu)
    slope[same] = 0.0
    return slope


def _by_bessel(S: np.ndarray, nu: float, decay: np.ndarray) -> np.ndarray:
    K = kve(nu, S)
    # K_ν overflows only at such small s that the correlation is 1 in float64, s = 0 included.
    near = np.isinf(K)
    K[near] = 1.0
    K *= S**nu
    K *= decay
    K *= 2.0 ** (1.0 - nu) / math.gamma(nu)
    K[near] = 1.0
    return np.minimum(K, 1.0, out=K)


def _uniform_expansion(R: np.ndarray, nu: float) -> np.ndarray:
    """The correlation from the expansion of K_ν(νz) that is uniform in z = s/ν, DLMF 10.41.4."""
    # With w = √(1 + z²) and its leading terms, s^ν·K_ν(s) is proportional to exp(−ν(w − log(1 +
    # w)))·P(1/w)/√w. Divided by its value at z = 0, where the correlation is 1, all large numbers cancel:
    # with q = w − 1 the exponent is −ν(q − log(1 + q/2)).
    Z = R * math.sqrt(2.0 / nu)
    W = np.hypot(1.0, Z)
    Q = Z * (Z / (1.0 + W))
    P = _debye_series(nu)
    return np.exp(-nu * (Q - np.log1p(0.5 * Q))) / np.sqrt(W) * (P(1.0 / W) / P(1.0))


@lru_cache(maxsize=16)
def _debye_series(nu: float) -> Polynomial:
    """Σ_k (−1)^k·U_k(p)/ν^k, the polynomials U_k by the recursion DLMF 10.41.9."""
    U = series = Polynomial([1.0])
    for k in range(1, _N_TERMS):
        U = 0.5 * Polynomial([0, 0, 1, 0, -1]) * U.deriv() + (Polynomial([1, 0, -5]) * U).integ() / 8.0
        series = series + U * (-1.0 / nu) ** k
    return series


# Squared distances by one matrix product, where that loses no digits.

# An entry of ‖x‖² + ‖y‖² − 2xᵀy is off by about 2⁻⁵³ times the size of its terms, for close rows 4‖y‖²:
# within this bound by at most 2⁻⁴⁰, a relative error of the kernel of 1e-12.
_LARGEST_SQUARE = 2.0**11


def squared_distances(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """‖x − y‖² for the rows x of X and y of Y.

    The origin is moved to the mean of Y. A row x far from all of Y loses nothing that matters: its
    error is relative to its own large distances. 2·n·m·d flops of a matrix product; if a row of Y is more
    than 45 from the mean, differences of coordinates are used instead.
    """
    origin = Y.mean(axis=0)
    V = Y - origin
    squares = np.einsum("ij,ij->i", V, V)
    if not squares.max(initial=0.0) <= _LARGEST_SQUARE:
        with np.errstate(over="ignore"):
            return cdist(X, Y, "sqeuclidean")
    U = X - origin
    with np.errstate(over="ignore"):
        own = np.einsum("ij,ij->i", U, U)
        D = np.matmul(U, V.T)
        D *= -2.0
        D += own[:, None]
    D += squares
    return np.maximum(D, 0.0, out=D)


# Sums over pairs of rows, one for each column: the terms of the gradients by the widths.


def square_sums(U: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Σ_{ii'} B_{ii'}·(u_ij − u_i'j)² of every column j, for symmetric B, by a matrix product."""
    U = U - U.mean(axis=0)  # a common offset would cost digits of the difference below
    # Σ B·(u − u′)² = 2·(Σ_i (B1)_i·u_i² − uᵀBu).
    return 2.0 * (B.sum(axis=1) @ np.square(U) - np.einsum("ij,ij->j", U, B @ U))


def _pair_sums(add: Any, U: np.ndarray, B: np.ndarray) -> np.ndarray:
    """The sums over all pairs of rows, for symmetric B; `add` adds those with i' < i."""
    sums = np.zeros(U.shape[1])
    add(np.ascontiguousarray(U), B, sums)
    return 2.0 * sums


@compiled()
def _add_absolute(U, B, sums):
    """Add B_{ii'}·|u_ij − u_i'j|."""
    for i in range(U.shape[0]):
        for k in range(i):
            b = B[i, k]
            for j in range(U.shape[1]):
                sums[j] += b * abs(U[i, j] - U[k, j])


@compiled()
def _add_rational(U, B, sums):
    """Add B_{ii'}·2v²/(1 + v²) with v = u_ij − u_i'j."""
    for i in range(U.shape[0]):
        for k in range(i):
            b = 2.0 * B[i, k]
            for j in range(U.shape[1]):
                v = U[i, j] - U[k, j]
                sums[j] += b * (1.0 - 1.0 / (1.0 + v * v))


KERNELS: dict[str, type[Stationary]] = {
    kind.__name__.lower(): kind for kind in (Gaussian, Laplacian, Cauchy, Exponential, Matern)
}
"""The kernels that a name alone gives, as on the command line."""
