"""The kernel of a map with gaps: by the likelihood of all rows, from their sums; folds judge the last two.

Held-out errors of one gap say little about the next, and their least over many kernels is partly luck. The
likelihood of the rows is smooth in widths, directions, smoothness, shares and alpha, and its slope is known:
some dozen evaluations find all of them together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from distrff.engine.run import Run
from distrff.features.equispaced import Lattice, scaled_widths
from distrff.kernels.base import Kernel, Sum
from distrff.kernels.stationary import Gaussian, Matern
from distrff.solvers.toeplitz import Climbed, ToeplitzSums, climb, half_of

_ROUGHEST, _SMOOTHEST = 0.25, 10.0  # ν; from the last one on Gaussian, which differs by less than data tell
_FEWEST_LOG, _MOST_LOG = -300.0, 300.0
_MOST_AROUND, _SHRINK = 0.25, 0.01  # of k(0) a period away, and by how much a log width is lowered for it


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Kernels with free parameters on a lattice, as one vector of logarithms and shears.

    A term has log widths (one a column, or one factor), for a turned one the entries of T above the diagonal
    in P = (I + T)·diag(1/ℓ), log ν where that is free, and log(share/alpha).

    Parameters
    ----------
    kernel : Kernel
        From which widths are counted.
    lattice : Lattice
    n_terms : int
        Kernels of the sum.
    is_turned : bool
        Whether it is Matern with a metric, else the given kernel with other widths.
    n_widths : int
        Free widths or factors of a term; 0 where they are given.
    is_smoothness_free : bool
    alpha : float or None
        Where it is given, shares add up to 1/alpha.
    largest : float
        w in units of alpha, beyond which rounding of the sums may show; see `Sums.noise_floor`.
    """

    kernel: Kernel
    lattice: Lattice
    n_terms: int
    is_turned: bool
    n_widths: int
    is_smoothness_free: bool
    alpha: float | None
    largest: float

    @property
    def n_shears(self) -> int:
        return self.n_widths * (self.n_widths - 1) // 2 if self.is_turned else 0

    @property
    def size(self) -> int:
        """Parameters of a term."""
        return self.n_widths + self.n_shears + self.is_smoothness_free + 1

    def terms(self, theta: np.ndarray) -> np.ndarray:
        """The parameters of each term, a view of theta."""
        return theta.reshape(self.n_terms, self.size)

    def first(self, nu: float, factor: float) -> np.ndarray:
        """The parameters of one term of the kernel with its widths times a factor."""
        widths = np.full(self.n_widths, math.log(factor))
        smoothness = [math.log(nu)] * self.is_smoothness_free
        share = -math.log(self.alpha or _ALPHA)
        return np.array([*widths, *[0.0] * self.n_shears, *smoothness, share])

    def starts(self) -> list[np.ndarray]:
        """Where one term begins."""
        return [self.first(nu, factor) for nu, factor in _STARTS]

    def with_short_range(self, theta: np.ndarray) -> tuple[Spectrum, np.ndarray]:
        """A family of one term more, which begins with a share of the first and shorter widths."""
        long, short = theta.copy(), theta.copy()
        short[: self.n_widths] -= math.log(_SHORTER)
        short[-2] = 0.0
        long[-1] += math.log(1.0 - _SHORT_SHARE)
        short[-1] += math.log(_SHORT_SHARE)
        return replace(self, n_terms=2), np.concatenate([short, long])

    def alpha_of(self, theta: np.ndarray) -> float:
        """The penalty for a kernel of k(0) = 1."""
        return 1.0 / float(np.exp(self.terms(theta)[:, -1]).sum())

    def kernel_of(self, theta: np.ndarray) -> Kernel:
        """The kernel, its shares adding up to that of the given one."""
        shares = np.exp(self.terms(theta)[:, -1]) * self.alpha_of(theta)
        kernels = [self._term(one) for one in self.terms(theta)]
        if len(kernels) == 1:
            return kernels[0]
        short, long = (float(f"{share:.4g}") * one for share, one in zip(shares, kernels, strict=True))
        return Sum(short, long)

    def _term(self, theta: np.ndarray) -> Kernel:
        widths, shears = theta[: self.n_widths], theta[self.n_widths : self.n_widths + self.n_shears]
        nu = float(f"{math.exp(theta[-2]):.4g}") if self.is_smoothness_free else 0.0
        if not self.is_turned:
            factors = np.exp(widths) if len(widths) > 1 else math.exp(widths[0]) if len(widths) else 1.0
            kernel = scaled_widths(self.kernel, factors)
            return of_smoothness(kernel, nu) if nu else kernel
        P = [[float(f"{p:.4g}") for p in row] for row in self._metric(widths, shears)]
        return of_smoothness(Matern(1.0, metric=P), nu)

    def _metric(self, widths: np.ndarray, shears: np.ndarray) -> np.ndarray:
        T = np.eye(self.n_widths)
        T[np.triu_indices(self.n_widths, 1)] = shears
        return T * np.exp(-widths) / self.kernel.widths(self.n_widths)

    def log_weights(self, theta: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            logs = [
                np.log(half_of(self.lattice.weights(self._term(one)))) + one[-1] for one in self.terms(theta)
            ]
        return np.clip(np.logaddexp.reduce(logs, axis=0), _FEWEST_LOG, _MOST_LOG)

    def within(self, theta: np.ndarray) -> np.ndarray:
        found = self.terms(theta.copy())
        for one in found:
            if self.is_smoothness_free:
                one[-2] = np.clip(one[-2], math.log(_ROUGHEST), math.log(_SMOOTHEST))
            while self.n_widths and self._reaches_around(self._term(one)):
                one[: self.n_widths] -= _SHRINK
        flat = found.ravel()
        if self.alpha is not None:
            found[:, -1] += math.log(self.alpha_of(flat) / self.alpha)
        else:
            excess = float(self.log_weights(flat).max()) - math.log(self.largest)
            found[:, -1] -= max(0.0, excess)
        return flat

    def _reaches_around(self, kernel: Kernel) -> bool:
        """Whether rows at one side of the box would be neighbours of those at the other, a period further."""
        lattice, at = self.lattice, np.zeros((1, 1))
        for j, h in zip(lattice.columns, lattice.spacing, strict=True):
            if lattice.bounds[j] is not None:
                around = np.full((1, 1), 1.0 / h - lattice.width(j))
                k = kernel.envelope(j, lattice.n_columns)(around, at)[0, 0]
                if k > _MOST_AROUND * kernel.at_zero:
                    return True
        return False


def of_smoothness(kernel: Kernel, nu: float) -> Kernel:
    """The Matérn kernel of these widths and metric, or from ν = 10 on the Gaussian one."""
    own = {name: kernel.get_params(deep=False)[name] for name in ("length_scale", "metric")}
    return Gaussian(**own) if nu >= _SMOOTHEST else Matern(nu=max(nu, _ROUGHEST), **own)


_ROWS_A_MODE = 4


def effective_rows(n_rows: int, lattice: Lattice) -> int:
    """How many independent errors rows are taken to have: at most four a mode.

    What more rows tell apart is shorter than all modes. The model takes that for noise, and it is not
    independent from row to row: on a tile of terrain (1.07 million rows, 40,000 modes) the error in discs cut
    out was 29.7 m with all rows counted, and 23.2 to 23.6 with one to four a mode.
    """
    return min(n_rows, _ROWS_A_MODE * lattice.n_modes)


# The search.

_FIRST_MODES, _SEARCH_MODES, LAST_MODES = 2**14, 2**16, 2**18
_STARTS = ((1.0, 1.0), (0.5, 6.0))  # ν, and the pilot's widths times this
_ALPHA, _SHORT_SHARE, _SHORTER = 0.05, 0.3, 6.0
# Of −2·log L a row, for a second term, beside Schwarz's criterion (1978): smaller gains moved errors in gaps
# by under 1 %, and a second kernel takes a quarter of the seconds of a fit.
_LEAST_GAIN = 0.01


@dataclass(frozen=True, eq=False)
class Likely:
    """The most likely kernel of a family, k(0) as of the given one, with its alpha and −2·log L."""

    spectrum: Spectrum
    found: Climbed

    @property
    def kernel(self) -> Kernel:
        return self.spectrum.kernel_of(self.found.theta)

    @property
    def alpha(self) -> float:
        return self.spectrum.alpha_of(self.found.theta)

    def on(self, lattice: Lattice) -> Begun:
        """A climb of alpha alone on another lattice."""
        return Begun(replace(self.spectrum, lattice=lattice), self.found.theta, alpha_alone=True)

    def report(self) -> dict[str, Any]:
        """As strict JSON data."""
        return {
            "kernel": repr(self.kernel),
            "alpha": self.alpha,
            "minus_two_log_likelihood": self.found.value,
            "evaluations": self.found.n_evaluations,
        }


class Begun(NamedTuple):
    """A climb to be: where it begins, whether alpha alone is free, and what it must soon be better than."""

    spectrum: Spectrum
    theta: np.ndarray
    alpha_alone: bool = False
    to_beat: float = math.inf


def likeliest(
    run: Run,
    total: Any,
    spectrum: Spectrum,
    *,
    n_rows: int,
    offset: np.ndarray | None,
    fit_intercept: bool,
    seed: int,
) -> list[Likely]:
    """The most likely kernel of one term, and that of two where the rows ask for a second one.

    `total` is a handle on the sums of all rows. One term begins on a quarter of the modes, and goes on with
    up to 65,536; then the shares alone, and so alpha, with up to 262,144.
    """

    def climbed_from(*begun: Begun) -> list[Likely]:
        lattices = [one.spectrum.lattice for one in begun]
        parts = [run.submit(ToeplitzSums.part, total, lattice.modes, offset) for lattice in lattices]
        calls = [
            (part, one, effective_rows(n_rows, lattice), fit_intercept, seed)
            for part, one, lattice in zip(parts, begun, lattices, strict=True)
        ]
        found = run.map(climbed, calls)
        return [Likely(one.spectrum, climb) for one, climb in zip(begun, found, strict=True)]

    def told(part: int) -> None:
        run.observer.between_passes(f"kernel and alpha by the likelihood of the rows, part {part} of 3")

    whole = spectrum.lattice
    first = whole.part(min(_FIRST_MODES, whole.n_modes // 4))
    middle, last = whole.part(_SEARCH_MODES), whole.part(LAST_MODES)
    coarse = replace(spectrum, lattice=first)
    told(1)
    starts = climbed_from(*(Begun(coarse, theta) for theta in coarse.starts()))
    theta = min(starts, key=lambda one: one.found.value).found.theta
    told(2)
    (one,) = climbed_from(Begun(replace(spectrum, lattice=middle), theta))
    goes_on = last.n_modes > middle.n_modes and spectrum.alpha is None
    of_one = [one.on(last)] if goes_on else []
    pair = one.spectrum.with_short_range(one.found.theta) if spectrum.is_turned else None
    of_two = [] if pair is None else [Begun(*pair, to_beat=one.found.value)]
    if of_one or of_two:
        told(3)
    # At the same time, as one climb keeps one thread busy.
    found = climbed_from(*of_one, *of_two)
    likely = found[: len(of_one)] or [one]
    for two in found[len(of_one) :]:
        rows = effective_rows(n_rows, middle)
        if one.found.value - two.found.value > _LEAST_GAIN * rows + spectrum.size * math.log(rows):
            likely += climbed_from(two.on(last)) if goes_on else [two]
    return [replace(one, spectrum=replace(one.spectrum, lattice=whole)) for one in likely]


def climbed(sums: ToeplitzSums, begun: Begun, n_rows: int, fit_intercept: bool, seed: int) -> Climbed:
    """The most likely parameters near these; all shares move together where alpha alone is free."""
    spectrum, theta, alpha_alone, to_beat = begun
    free = None
    if alpha_alone:
        free = np.zeros_like(theta, dtype=bool)
        spectrum.terms(free)[:, -1] = True
    return climb(
        spectrum, sums, theta, n_rows, fit_intercept=fit_intercept, seed=seed, free=free, to_beat=to_beat
    )
