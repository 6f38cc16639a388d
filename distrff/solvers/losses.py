"""Losses of one row: value, derivative, bound on the curvature, conjugate; pointwise, no data.

A loss ℓ(f, y) is convex in f, at least 0, and takes arrays that broadcast. Its conjugate is

    ℓ*(−a, y) = sup_f −a·f − ℓ(f, y),

finite for a in the range of −ℓ′(·, y) and its closure, and at most 0 at a = 0. Sweeps and solvers know no
more of a loss than `Loss` says: another loss is another class here. The margin losses have labels y = ±1 and
are φ(y·f) for a falling φ; then a = y·α with α ≥ 0, and ℓ*(−a, y) = φ*(−α).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, expit, log_ndtr, xlog1py, xlogy

from distrff.solvers.objective import Loss
from distrff.utils.validation import positive

_ROOT_TWO = np.sqrt(2.0)
_ROOT_TWO_OVER_PI = np.sqrt(2 / np.pi)
_NEWTON_STEPS = 12
_FAR = 1e3  # clear margins; the share of a best constant beyond underflows to 0

Function = Callable[..., np.ndarray]


class MarginLoss(Loss):
    """φ(y·f/σ); subclasses state φ, with labels y = ±1, for σ = 1.

    φ_σ(m) = φ(m/σ) has the slope φ′(m/σ)/σ and the conjugate φ*(−σα).
    """

    middle: ClassVar[float] = 1.0
    sigma: float = 1.0
    _phi_curvature: ClassVar[float]  # the bound of φ″
    _max_alpha: ClassVar[float] = np.inf  # the largest α with a finite φ*(−α)
    _phi: ClassVar[Function]  # φ(t)
    _slope: ClassVar[Function]  # −φ′(t) ≥ 0
    _phi_second: ClassVar[Function]  # φ″(t) ≥ 0
    _dual: ClassVar[Function]  # φ*(−α) for 0 ≤ α ≤ _max_alpha

    @property
    def clear_margin(self) -> float:
        return self.sigma

    @property
    def curvature(self) -> Any:
        return self._phi_curvature / self.sigma**2

    def _margin(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        m = y * f
        return m if self.sigma == 1 else m / self.sigma  # a division of every row by 1 costs a pass

    def value(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self._phi(self._margin(f, y))

    def derivative(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        slope = self._slope(self._margin(f, y))
        return -y * (slope if self.sigma == 1 else slope / self.sigma)

    def second_derivative(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        second = self._phi_second(self._margin(f, y))
        return second if self.sigma == 1 else second / self.sigma**2

    def conjugate(self, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        alpha = y * a
        inside = (alpha >= 0) & (alpha <= self._max_alpha / self.sigma)
        # Clipped, for outside its domain the formula may not be a number.
        return np.where(inside, self._dual(np.clip(alpha * self.sigma, 0, self._max_alpha)), np.inf)

    def free_side(self, y: np.ndarray) -> np.ndarray:
        return y

    @property
    def value_at_zero(self) -> np.ndarray:
        return self._phi(np.zeros(1))

    def constant(self, share: float) -> float:
        """The constant f of smallest loss if rows of y = 1 have the share `share` of the weight."""
        y, parts = np.array([1.0, -1.0]), np.array([share, 1 - share])
        size = self.clear_margin
        # The slope of the loss by a constant, which rises; y² is 1 and gives both labels the same f.
        return size * brentq(lambda t: parts @ self.derivative(size * t * y**2, y), -_FAR, _FAR)


@dataclass(frozen=True)
class Hinge(MarginLoss):
    """max(0, 1 − m), the soft margin; φ*(−α) = −α on [0, 1]."""

    is_hinge: ClassVar[bool] = True
    _phi_curvature: ClassVar[float] = np.inf
    _max_alpha: ClassVar[float] = 1.0

    def rounded(self, epsilon: Any) -> Loss:
        return SmoothedHinge(epsilon)

    def constant(self, share: float) -> float:
        return 1.0 if share > 0.5 else -1.0

    def dual_box(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        return np.minimum(y, 0), np.maximum(y, 0), 0.0

    def _phi(self, m: np.ndarray) -> np.ndarray:
        return np.maximum(0, 1 - m)

    def _slope(self, m: np.ndarray) -> np.ndarray:
        return (m < 1).astype(np.result_type(m, np.float32))

    def _phi_second(self, m: np.ndarray) -> np.ndarray:
        return np.zeros_like(m)

    def _dual(self, alpha: np.ndarray) -> np.ndarray:
        return -alpha


@dataclass(frozen=True)
class SmoothedHinge(MarginLoss):
    """The hinge with its corner rounded for 1 − ε < m < 1, below the hinge by at most ε/2.

    φ(m) = g·(1 − m) − ε·g²/2 with g = clip((1 − m)/ε, 0, 1), which is −φ′(m) and, being in
    [0, 1], a dual candidate for the hinge itself; φ*(−α) = −α + ε·α²/2 on [0, 1].

    Parameters
    ----------
    epsilon : float or ndarray of shape (k,)
        ε > 0, one for each problem.
    """

    epsilon: Any
    _max_alpha: ClassVar[float] = 1.0

    @property
    def curvature(self) -> Any:
        return 1 / self.epsilon

    def _phi(self, m: np.ndarray) -> np.ndarray:
        g = self._slope(m)
        return g * (1 - m - self.epsilon / 2 * g)

    def _slope(self, m: np.ndarray) -> np.ndarray:
        return np.clip((1 - m) / self.epsilon, 0, 1)

    def _phi_second(self, m: np.ndarray) -> np.ndarray:
        return np.where((m < 1) & (m > 1 - self.epsilon), 1 / self.epsilon, 0.0)

    def _dual(self, alpha: np.ndarray) -> np.ndarray:
        return alpha * (self.epsilon / 2 * alpha - 1)


@dataclass(frozen=True)
class SquaredHinge(MarginLoss):
    """max(0, 1 − m)²; φ*(−α) = −α + α²/4 for α ≥ 0."""

    _phi_curvature: ClassVar[float] = 2.0

    def _phi(self, m: np.ndarray) -> np.ndarray:
        return np.square(np.maximum(0, 1 - m))

    def _slope(self, m: np.ndarray) -> np.ndarray:
        return 2 * np.maximum(0, 1 - m)

    def _phi_second(self, m: np.ndarray) -> np.ndarray:
        return np.where(m < 1, 2.0, 0.0)

    def _dual(self, alpha: np.ndarray) -> np.ndarray:
        return alpha * (alpha / 4 - 1)


@dataclass(frozen=True)
class _Likelihood(MarginLoss):
    """−log Ψ(m/σ): the label is the sign of f plus noise with the distribution function Ψ and scale σ."""

    sigma: float = 1.0
    _max_alpha: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        positive("sigma", self.sigma)

    def probability(self, f: np.ndarray) -> np.ndarray:
        """Ψ(f/σ), the probability of the label +1."""
        return np.exp(-self._phi(f / self.sigma))


@dataclass(frozen=True)
class Logistic(_Likelihood):
    """log(1 + e^(−t)), t = m/σ; φ*(−p) = p·log p + (1 − p)·log(1 − p)."""

    _phi_curvature: ClassVar[float] = 0.25

    def _phi(self, t: np.ndarray) -> np.ndarray:
        return np.logaddexp(0, -t)

    def _slope(self, t: np.ndarray) -> np.ndarray:
        return expit(-t)

    def _phi_second(self, t: np.ndarray) -> np.ndarray:
        return expit(t) * expit(-t)

    def _dual(self, p: np.ndarray) -> np.ndarray:
        return xlogy(p, p) + xlog1py(1 - p, -p)


@dataclass(frozen=True)
class Laplace(_Likelihood):
    """−log Ψ for Laplace noise: log 2 − t for t < 0, −log(1 − e^(−t)/2) above.

    φ*(−p) = p·log(2p/(1 + p)) − log(1 + p).
    """

    _phi_curvature: ClassVar[float] = 2.0

    def _phi(self, t: np.ndarray) -> np.ndarray:
        # Both branches of `where` are computed: without the maximum e^(−t) would overflow in the one not
        # taken.
        return np.where(t < 0, np.log(2) - t, -np.log1p(-0.5 * np.exp(-np.maximum(t, 0))))

    def _slope(self, t: np.ndarray) -> np.ndarray:
        half = 0.5 * np.exp(-np.maximum(t, 0))
        return half / (1 - half)

    def _phi_second(self, t: np.ndarray) -> np.ndarray:
        half = 0.5 * np.exp(-np.maximum(t, 0))
        return np.where(t < 0, 0.0, half / np.square(1 - half))

    def _dual(self, p: np.ndarray) -> np.ndarray:
        return xlogy(p, 2 * p / (1 + p)) - np.log1p(p)


@dataclass(frozen=True)
class Probit(_Likelihood):
    """−log Φ(t) for Gaussian noise; its slope is the inverse Mills ratio.

    Its conjugate has no closed form and is computed by Newton's method.
    """

    _phi_curvature: ClassVar[float] = 1.0
    _max_alpha: ClassVar[float] = np.inf

    def _phi(self, t: np.ndarray) -> np.ndarray:
        return -log_ndtr(t)

    def _slope(self, t: np.ndarray) -> np.ndarray:
        # Not density by distribution function, which both vanish in float64 below t = −38.
        return _ROOT_TWO_OVER_PI / erfcx(-t / _ROOT_TWO)

    def _phi_second(self, t: np.ndarray) -> np.ndarray:
        slope = self._slope(t)
        # Below −10³ the sum loses its digits, and the curvature is 1 − 1/t² + ….
        return np.where(t < -1e3, 1.0, slope * (t + slope))

    def _dual(self, p: np.ndarray) -> np.ndarray:
        """−p·t − φ(t) at the t of slope p, by Newton's method on the concave log of the slope."""
        p = np.asarray(p, dtype=np.float64)
        target = np.log(np.where(p > 0, p, 1.0))
        # The slope falls as e^(−t²/2) on the right, and grows as −t on the left.
        t = np.where(target < 0, np.sqrt(np.maximum(-2 * target, 0)), -np.exp(target))
        for _ in range(_NEWTON_STEPS):
            below = np.log(self._slope(np.minimum(t, 0)))
            # On the right log density − log Φ: erfcx of a far negative number overflows.
            above = np.log(_ROOT_TWO_OVER_PI / 2) - 0.5 * np.square(t) + self._phi(np.maximum(t, 0))
            log_slope = np.where(t > 0, above, below)
            # The derivative of log slope is −(t + slope).
            t = t + (log_slope - target) / (t + np.exp(log_slope))
        return np.where(p > 0, -p * t - self._phi(t), 0.0)


# Losses of numbers.

_FAR_OFF = 10.0  # spreads


@dataclass(frozen=True)
class Residual(Loss):
    """sup a·r − ε|a| − h·a²/2 over lower ≤ a ≤ upper, of the residual r = y − f.

    The a that attains it is −ℓ′, and ℓ*(−a) = ε|a| + h·a²/2 − a·y within these bounds. Named ones:

    * ε-insensitive, max(0, |r| − ε): bounds ∓1, h = 0; its square: no bounds, h = ½;
    * Huber, r²/2 up to |r| = δ and linear beyond: bounds ∓δ, ε = 0, h = 1;
    * quantile, max(τ·r, (τ − 1)·r): bounds τ − 1 and τ, ε = h = 0.

    Parameters
    ----------
    lower, upper : float or ndarray of shape (k,)
    epsilon, h : float
        Both ≥ 0; ℓ′ jumps where h = 0. `h` may be of shape (k,).
    """

    lower: Any
    upper: Any
    epsilon: float = 0.0
    h: Any = 0.0
    units: ClassVar[str] = "spread"

    @classmethod
    def insensitive(cls, epsilon: float) -> Residual:
        return cls(-1.0, 1.0, epsilon)

    @classmethod
    def squared_insensitive(cls, epsilon: float) -> Residual:
        return cls(-np.inf, np.inf, epsilon, 0.5)

    @classmethod
    def huber(cls, delta: float) -> Residual:
        return cls(-delta, delta, h=1.0)

    @classmethod
    def quantile(cls, tau: Any) -> Residual:
        return cls(tau - 1.0, tau)

    @property
    def mean_curvature(self) -> float:
        c = self.epsilon + self.clear_margin  # within the tube there is none
        at_ends = self.derivative(np.array([[-c], [c]]), np.zeros((2, 1)))
        return float(np.mean(at_ends[1] - at_ends[0]) / (2 * c))

    @property
    def far_value(self) -> Any:
        return np.maximum(
            *(self.value(f, np.zeros(1)) for f in (np.full(1, -_FAR_OFF), np.full(1, _FAR_OFF)))
        )

    @property
    def curvature(self) -> Any:
        return 1 / self.h if np.ndim(self.h) or self.h > 0 else np.inf

    def of_outputs(self, outputs: Sequence[int]) -> Residual:
        if not np.ndim(self.upper):
            return self
        return replace(self, lower=self.lower[list(outputs)], upper=self.upper[list(outputs)])

    def in_units(self, C: float, spread: np.ndarray) -> dict[str, np.ndarray]:
        """C, ε and δ of the same model of targets in their own units, of which `spread` are one."""
        # C·Σ ℓ(r/σ) + ½‖w/σ‖² is 1/σ² of that of r and w with C, or with σ·C where ℓ grows as r does.
        found = {"spread": spread, "C": C * (spread if self._has_corner else np.ones_like(spread))}
        if self.epsilon:
            found["epsilon"] = self.epsilon * spread
        if self.h and np.isfinite(self.upper):
            found["delta"] = self.upper * spread
        return found

    def dual_box(self, y: np.ndarray) -> tuple[Any, Any, float]:
        return self.lower, self.upper, self.epsilon

    def rounded(self, epsilon: Any) -> Residual:
        return self if self.is_smooth else replace(self, h=epsilon)

    def value(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        r = y - f
        a = self._slope(r)
        found = a * r
        if self.epsilon:
            found -= self.epsilon * np.abs(a)
        return found if self._has_corner else found - 0.5 * self.h * np.square(a)

    def derivative(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        return -self._slope(y - f)

    def second_derivative(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        r = y - f
        if self._has_corner:
            return np.zeros_like(r)
        a = self._slope(r)
        curved = (a > self.lower) & (a < self.upper)
        return np.where(curved & (a != 0) if self.epsilon else curved, 1 / self.h, 0.0)

    def conjugate(self, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        inside = (a >= self.lower) & (a <= self.upper)
        found = self.epsilon * np.abs(a) - a * y
        return np.where(inside, found if self._has_corner else found + 0.5 * self.h * np.square(a), np.inf)

    @property
    def _has_corner(self) -> bool:
        return not np.ndim(self.h) and self.h == 0

    def _slope(self, r: np.ndarray) -> np.ndarray:
        """The a that attains the supremum."""
        beyond = r - np.clip(r, -self.epsilon, self.epsilon) if self.epsilon else r
        if self._has_corner:
            return np.where(beyond > 0, self.upper, np.where(beyond < 0, self.lower, 0.0))
        return np.clip(beyond / self.h, self.lower, self.upper)


class HalfDeviance(Loss):
    """Half the unit deviance of μ = e^f: 0 at μ = y, and linear in f beyond |f| = 100.

    The dual is scaled towards 0 to balance an intercept, for which a loss must not be negative: without the
    terms of y alone the certificate would be false.
    """

    units: ClassVar[str] = "own"
    negligible: ClassVar[float] = 1e-9
    is_smooth: ClassVar[bool] = True

    @property
    def mean_curvature(self) -> float:
        return 1.0  # around f = ln y of the mean


_LARGEST_EXPONENT = 100.0  # e^100 and its squares, summed over rows, are finite


@dataclass(frozen=True)
class Poisson(HalfDeviance):
    """μ − y + y·ln(y/μ), μ = e^f; ℓ*(−a) = u·ln u − u + y − y·ln y with u = y − a ≥ 0."""

    value_at_zero: Any = 1.0
    least_target: ClassVar[float] = 0.0

    def negligible_beside(self, mean: float) -> float:
        return self.negligible * (mean or 1.0)  # as the loss grows with μ and y

    def value(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        return _exponential(f) - y + xlogy(y, y) - y * f

    def derivative(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.exp(np.minimum(f, _LARGEST_EXPONENT)) - y

    def second_derivative(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.exp(np.minimum(f, _LARGEST_EXPONENT)) + np.zeros_like(y)

    def conjugate(self, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        u = y - a
        return np.where(u >= 0, xlogy(u, np.maximum(u, 0)) - u + y - xlogy(y, y), np.inf)

    def free_side(self, y: np.ndarray) -> np.ndarray:
        return np.where(y == 0, -1.0, 0.0)


@dataclass(frozen=True)
class Gamma(HalfDeviance):
    """y/μ − 1 − ln(y/μ), μ = e^f, y > 0; ℓ*(−a) = v·ln v − a − a·ln y with v = 1 + a ≥ 0."""

    least_target: ClassVar[float] = np.finfo(float).tiny

    def value(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        t = np.log(y) - f
        return _exponential(t) - 1 - t

    def derivative(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        return 1 - np.exp(np.minimum(np.log(y) - f, _LARGEST_EXPONENT))

    def second_derivative(self, f: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.exp(np.minimum(np.log(y) - f, _LARGEST_EXPONENT))

    def conjugate(self, a: np.ndarray, y: np.ndarray) -> np.ndarray:
        v = 1 + a
        return np.where(v >= 0, xlogy(v, np.maximum(v, 0)) - a - a * np.log(y), np.inf)


def _exponential(t: np.ndarray) -> np.ndarray:
    """e^t, continued by its tangent beyond the largest exponent: still convex, and never infinite."""
    within = np.minimum(t, _LARGEST_EXPONENT)
    return np.exp(within) * (1 + (t - within))


NOISES = {"logistic": Logistic, "probit": Probit, "laplace": Laplace}
LOSSES = (
    "quantile", "huber", "epsilon_insensitive", "squared_epsilon_insensitive", "poisson", "gamma",
)  # fmt: skip
"""Those of numbers, by the names that estimators have for them."""


def losses_of_rows(loss: Mapping[str, Any], F: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Pinball losses of quantiles, or unit deviances, of values F (n, k) of f and targets."""
    if loss["loss"] == "quantile":
        return Residual.quantile(np.array(loss["quantile"])).value(F, Y)
    return 2 * (Poisson() if loss["loss"] == "poisson" else Gamma()).value(F, Y)


MARGINS = {"hinge": Hinge, "squared_hinge": SquaredHinge}
