"""The posterior spread of ridge predictions: standard deviations, and functions drawn from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import cho_solve

from distrff.errors import InputError
from distrff.solvers.ridge import FoldTerms, GramProblem, RidgeSystem, cholesky_factor, training_gram
from distrff.utils.arrays import lay_out
from distrff.utils.linalg import inverse_of_triangle, solve_factor
from distrff.utils.random import child_seed, stream


@dataclass(frozen=True, eq=False)
class PosteriorFactor:
    """Factor and noise for the standard deviation of f(x).

    std² = σ̂²·‖L⁻¹(z − z̄)‖² + σ̂²/W, with L Lᵀ = G + alpha·I; without an intercept the second term is absent
    and z̄ = 0. It is the uncertainty of the coefficients alone: far from the data it is too small if there
    are few features (D ≪ n), which cannot tell these rows from others.

    Attributes
    ----------
    L : ndarray of shape (D, D)
        Lower triangular.
    z_mean : ndarray of shape (D,)
    noise : ndarray of shape (k,)
        σ̂² = RSS / (W − effective dimension), per target.
    intercept_variance : float
        1/W, or 0 without an intercept; in units of σ̂².
    effective_dimension : float
        tr G (G + alpha·I)⁻¹, plus 1 for an intercept.
    """

    L: np.ndarray
    z_mean: np.ndarray
    noise: np.ndarray
    intercept_variance: float
    effective_dimension: float
    by_transforms: ClassVar[bool] = False  # whether it takes as many rows at once as its map has room for

    def __post_init__(self) -> None:
        lay_out(self, "L", "z_mean", "noise")

    def of_unit_noise(self) -> PosteriorFactor:
        """That of noise of variance 1."""
        return replace(self, noise=np.ones_like(self.noise))

    def std(self, Z: np.ndarray) -> np.ndarray:
        """The standard deviation of f at feature rows, (r, D) → (r, k); D² flops a row."""
        # The difference is this call's own, and its transpose has contiguous columns: no second copy is made.
        U = solve_factor(self.L, (Z - self.z_mean).T, overwrite=True)
        spread = np.einsum("ij,ij->j", U, U) + self.intercept_variance
        return np.sqrt(np.outer(spread, self.noise))

    def std_at(self, ready: Any, X: np.ndarray) -> np.ndarray:
        """The standard deviation of f at rows, (r, k)."""
        return self.std(ready.apply(X).astype(np.float64))

    def draws(self, ready: Any, n_draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercepts of functions drawn around the model, (D, n·k) and (n·k,); D²·n·k flops.

        σ̂·L⁻ᵀζ for a standard normal ζ, and so of covariance σ̂²·(G + alpha·I)⁻¹; of the intercept besides
        σ̂²/W. All targets of a draw are side by side, and the first draws do not depend on how many follow.
        """
        normal = stream(seed, "draws").standard_normal((n_draws * len(self.noise), 1 + len(self.L)))
        sigma = np.sqrt(np.tile(self.noise, n_draws))
        coef = sigma * solve_factor(self.L, normal[:, 1:].T, transposed=True)
        return coef, sigma * normal[:, 0] * np.sqrt(self.intercept_variance) - self.z_mean @ coef

    def std_on_grid(self, ready: Any, axes: Sequence[np.ndarray]) -> np.ndarray | None:
        """None: a grid has no faster way than row by row."""
        return None


@dataclass(frozen=True, eq=False)
class PosteriorSamples:
    """Functions drawn from the posterior, from which standard deviations are estimated.

    std² = σ̂²·mean f_s(x)² over S samples for noise of variance 1; its relative error is about
    1/√(2S), 9 % for 64.

    Attributes
    ----------
    C : complex64 ndarray of shape (S/2, 2·m_1 + 1, …, 2·m_d + 1)
        Fourier coefficients of two samples each, as the real and imaginary part of one function.
    noise : ndarray of shape (k,)
        σ̂² = RSS / (Σs − effective dimension), per target; where that divisor is not known to be a tenth
        of Σs, (RSS + alpha·‖w‖²) / (Σs − p − 1) with p covariates of a trend and an intercept.
    effective_dimension : float
        tr A·(A + alpha·P)⁻¹, estimated by the samples.
    """

    C: np.ndarray
    noise: np.ndarray
    effective_dimension: float
    by_transforms: ClassVar[bool] = True

    def __post_init__(self) -> None:
        lay_out(self, "C", "noise")

    def of_unit_noise(self) -> PosteriorSamples:
        return replace(self, noise=np.ones_like(self.noise))

    def std_at(self, ready: Any, X: np.ndarray) -> np.ndarray:
        """The standard deviation of f at rows, (r, k); S/2 transforms."""
        return np.sqrt(np.outer(ready.mean_square(X, self.C), self.noise))

    def draws(self, ready: Any, n_draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """As those of `PosteriorFactor`: the samples, in an order by the seed, each target its own.

        Raises InputError for more draws than samples.
        """
        n_samples, n_targets = 2 * len(self.C), len(self.noise)
        if n_draws > n_samples:
            raise InputError(
                f"a model of equispaced features has {n_samples} functions drawn from its posterior, and "
                f"{n_draws} were asked for; ask for at most {n_samples}"
            )
        order = stream(seed, "draws").permutation(n_samples)
        # Another sample for each target of a draw, or targets would differ from the model in the same places.
        numbers = order[np.add.outer(np.arange(n_draws), np.arange(n_targets)).ravel() % n_samples]
        coef = ready.coef_of_functions(self.C, numbers) * np.sqrt(np.tile(self.noise, n_draws))
        return coef, np.zeros(len(numbers))

    def std_on_grid(self, ready: Any, axes: Sequence[np.ndarray]) -> np.ndarray | None:
        """`std_at` on the product grid of the columns' coordinates; None where transforms are faster."""
        squares = ready.mean_square_on_grid(axes, self.C)
        return None if squares is None else np.sqrt(np.multiply.outer(squares, self.noise))


@dataclass(frozen=True, eq=False)
class PosteriorOfEach:
    """Posteriors of targets with alphas of their own: one for each alpha, of its targets alone.

    Attributes
    ----------
    parts : tuple of PosteriorFactor, or of PosteriorSamples
    part_of : ndarray of shape (k,)
        The part of each target; it has them in this order.
    """

    parts: tuple[Any, ...]
    part_of: np.ndarray

    @classmethod
    def of(cls, posteriors: Sequence[Any], part_of: np.ndarray) -> PosteriorOfEach:
        """Of posteriors of all targets, as each alpha gives them."""
        parts = (replace(one, noise=one.noise[part_of == i]) for i, one in enumerate(posteriors))
        return cls(tuple(parts), part_of)

    @property
    def noise(self) -> np.ndarray:
        """σ̂² of each target."""
        return self._by_target([part.noise for part in self.parts])

    def _by_target(self, found: Sequence[np.ndarray]) -> np.ndarray:
        """What the parts have on their last axis, in the order of the targets."""
        of_all = np.empty((*found[0].shape[:-1], len(self.part_of)))
        for i, A in enumerate(found):
            of_all[..., self.part_of == i] = A
        return of_all

    @property
    def by_transforms(self) -> bool:
        return bool(self.parts[0].by_transforms)

    def of_unit_noise(self) -> PosteriorOfEach:
        return replace(self, parts=tuple(part.of_unit_noise() for part in self.parts))

    def std_at(self, ready: Any, X: np.ndarray) -> np.ndarray:
        """The standard deviation of f at rows, (r, k)."""
        return self._by_target([part.std_at(ready, X) for part in self.parts])

    def draws(self, ready: Any, n_draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """As those of `PosteriorFactor`; each part has a stream of its own."""
        found = [part.draws(ready, n_draws, child_seed(seed, i)) for i, part in enumerate(self.parts)]
        coef = self._by_target([w.reshape(len(w), n_draws, -1) for w, _ in found])
        intercept = self._by_target([b.reshape(n_draws, -1) for _, b in found])
        return coef.reshape(len(coef), -1), intercept.ravel()

    def std_on_grid(self, ready: Any, axes: Sequence[np.ndarray]) -> np.ndarray | None:
        """`std_at` on the product grid of the columns' coordinates; None where a part has none."""
        found = [part.std_on_grid(ready, axes) for part in self.parts]
        known = [A for A in found if A is not None]
        return self._by_target(known) if len(known) == len(found) else None


def residual_freedom(weight: float, dimension: float) -> float:
    """The divisor Σs − dimension of the noise's estimate; raises InputError unless it is positive."""
    if not weight > dimension:
        raise InputError(
            f"the noise cannot be estimated: the sample weights sum to {weight:g}, not above the model's "
            f"effective dimension {dimension:.6g}; give more rows, weights that count rows, or a larger alpha"
        )
    return weight - dimension


def posterior_factor(system: RidgeSystem, alpha: float) -> PosteriorFactor:
    """The factor for standard deviations of predictions, of the model at one alpha.

    The effective dimension is D − alpha·tr(G + alpha·I)⁻¹ = D − alpha·‖L⁻¹‖²_F. 2/3·D³ flops, and two D × D
    arrays beside the system.

    Raises
    ------
    InputError
        If G + alpha·I is not positive definite, or the weight sum does not exceed the effective
        dimension, so that the noise cannot be estimated.
    """
    unit = unit_posterior(system, alpha)
    coef, triangle = cho_solve((unit.L, True), system.B, check_finite=False), inverse_of_triangle(unit.L)
    dimension = len(coef) - alpha * float(np.linalg.norm(triangle)) ** 2 + system.fit_intercept
    noise = system.residual(coef) / residual_freedom(system.weight, dimension)
    return replace(unit, noise=noise, effective_dimension=dimension)


def unit_posterior(system: RidgeSystem, alpha: float) -> PosteriorFactor:
    """The factor for noise of variance 1, without the effective dimension; D³/3 flops."""
    L = cholesky_factor(system.G, alpha)
    intercept_variance = 1 / system.weight if system.fit_intercept else 0.0
    return PosteriorFactor(L, system.z_mean, np.ones_like(system.yy), intercept_variance, np.nan)


def posterior_of_gram(total: np.ndarray, alpha: float, problem: GramProblem) -> PosteriorFactor:
    """The factor for standard deviations of f(x), with the noise in squared coded units."""
    return posterior_factor(problem.system(total), alpha)


def posterior_without(
    total: np.ndarray, parts: list[np.ndarray], fold: FoldTerms, alpha: float, problem: GramProblem
) -> PosteriorFactor:
    """The factor of a fold's training rows for noise of variance 1; memory as of `solution_without`."""
    return unit_posterior(problem.system(training_gram(total, parts, fold, problem)), alpha)


Posterior = PosteriorFactor | PosteriorSamples | PosteriorOfEach


# As arrays, by which it is stored and sent.


def posterior_arrays(posterior: Posterior | None) -> dict[str, np.ndarray]:
    """Arrays from which `posterior_of` restores the posterior."""
    if posterior is None:
        return {}
    if isinstance(posterior, PosteriorOfEach):
        each = [posterior_arrays(part) for part in posterior.parts]
        named = {f"posterior_{i}_{name}": A for i, part in enumerate(each) for name, A in part.items()}
        return {"posterior_part_of": posterior.part_of} | named
    if isinstance(posterior, PosteriorSamples):
        return {
            "posterior_samples": np.stack([posterior.C.real, posterior.C.imag]),
            "posterior_noise": posterior.noise,
            "posterior_scalars": np.asarray([posterior.effective_dimension]),
        }
    return {
        "posterior_factor": posterior.L,
        "posterior_z_mean": posterior.z_mean,
        "posterior_noise": posterior.noise,
        "posterior_scalars": np.asarray([posterior.intercept_variance, posterior.effective_dimension]),
    }


def _with_prefix(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): A for name, A in arrays.items() if name.startswith(prefix)}


def posterior_of(arrays: Mapping[str, np.ndarray]) -> Posterior | None:
    """The posterior in the arrays of a model; None if there is none."""
    if "posterior_part_of" in arrays:
        part_of = arrays["posterior_part_of"]
        used, counts = np.unique(part_of, return_counts=True)
        n_parts = sum(name.endswith("_posterior_noise") for name in arrays)
        parts = [posterior_of(_with_prefix(arrays, f"posterior_{i}_")) for i in range(n_parts)]
        sizes = [part and len(part.noise) for part in parts]
        if not np.array_equal(used, np.arange(n_parts)) or sizes != counts.tolist():
            raise ValueError("its posteriors do not fit its targets")
        return PosteriorOfEach(tuple(parts), part_of)
    if "posterior_samples" in arrays:
        real, imaginary = arrays["posterior_samples"]
        return PosteriorSamples(
            C=real + np.complex64(1j) * imaginary,
            noise=arrays["posterior_noise"],
            effective_dimension=float(arrays["posterior_scalars"][0]),
        )
    if "posterior_factor" not in arrays:
        return None
    return PosteriorFactor(
        L=arrays["posterior_factor"],
        z_mean=arrays["posterior_z_mean"],
        noise=arrays["posterior_noise"],
        intercept_variance=float(arrays["posterior_scalars"][0]),
        effective_dimension=float(arrays["posterior_scalars"][1]),
    )
