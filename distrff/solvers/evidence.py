"""The marginal likelihood of a spectrum, from sums alone, and the climb to the best of a family of spectra.

With noise of variance σ² and coefficients of variance σ²·w_j (alpha is 1, and w the spectrum in its units),
rows y are normal with the covariance σ²(I + Z·diag(w)·Z*). Maximised over σ²,

    −2·log L = n·log J + log det M + const,   J = min over f of Σ s(y − f)² + Σ|f_j|²/w_j,   M = √w·T·√w + I

(Rasmussen and Williams 2006, section 5.4.1, by the determinant lemma). J costs one solution. The determinant
is that of the preconditioner times one that the Lanczos process estimates for a few random vectors (Ubaru,
Chen and Saad 2017, SIAM J. Matrix Anal. Appl. 38), the same for all spectra that are compared. Its slope by
log w_j is γ_j − n·|c_j|²/J, where γ_j = 1 − (M⁻¹)_jj is the share of a mode that rows decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from distrff.solvers.toeplitz import Ending, ToeplitzProblem, ToeplitzSums, central_part
from distrff.utils.random import stream

_FEWEST_PROBES, _MOST_PROBES, _PROBED_MODES = 2, 16, 2**14  # few modes leave a determinant more open
_PROBE_TOL, _ENDING = 0.01, Ending(1e-4, 300)


@dataclass(frozen=True, eq=False)
class Evidence:
    """−2·log L of a spectrum, and on the half of the lattice that is kept its slope by log w, and n·γ².

    Parameters
    ----------
    value : float
    slope : ndarray
    information : ndarray
        The curvature by log w that a mode of known coefficients would have, times the square of its share.
    functions : list of complex ndarray
        f_j of each target.
    """

    value: float
    slope: np.ndarray
    information: np.ndarray
    functions: list[np.ndarray]


_LEFT_OUT = 0.1  # of Σs·Σw, about what modes left out would change in −2·log L


def evidence(
    sums: ToeplitzSums,
    weights: np.ndarray,
    fit_intercept: bool,
    n_rows: float,
    seed: int,
    functions: Sequence[np.ndarray] = (),
) -> Evidence:
    """The likelihood of a spectrum for `n_rows` independent errors; solutions start from some functions."""
    modes = _modes_that_matter(weights, sums)
    problem = ToeplitzProblem(sums.central(modes), central_part(weights, modes).copy(), fit_intercept)
    found = _of_problem(problem, n_rows, seed, [central_part(f, modes) for f in functions])
    return replace(
        found,
        slope=_on_lattice(found.slope, weights.shape, modes),
        information=_on_lattice(found.information, weights.shape, modes),
        functions=[_on_lattice(f, weights.shape, modes) for f in found.functions],
    )


def _modes_that_matter(weights: np.ndarray, sums: ToeplitzSums) -> tuple[int, ...]:
    """The central part beyond which no row decides a mode: of smooth kernels few are left."""
    modes, least = sums.modes, weights.sum() - _LEFT_OUT / sums.weight
    while max(modes) > 1:
        fewer = tuple(-(-m // 2) for m in modes)
        if central_part(weights, fewer).sum() < least:
            break
        modes = fewer
    return modes


def _on_lattice(part: np.ndarray, shape: tuple[int, ...], modes: tuple[int, ...]) -> np.ndarray:
    whole = np.zeros(shape, part.dtype)
    central_part(whole, modes)[...] = part
    return whole


def _of_problem(
    problem: ToeplitzProblem, n_rows: float, seed: int, functions: Sequence[np.ndarray]
) -> Evidence:
    k, shape = len(problem.sums.b), problem.weights.shape
    value, explained, found = 0.0, np.zeros(shape), list[np.ndarray]()
    for target in range(k):
        start = problem.coefficients(functions[target]) if functions else None
        one = problem.solve(target, 1.0, _ENDING, start)
        J = max(one.objective, np.finfo(float).tiny)
        value += n_rows * math.log(J)
        explained += np.square(np.abs(one.c)) * (n_rows / J)
        found.append(problem.functions(one.c))
    variance = np.zeros(shape)
    log_determinant = problem.preconditioner(1.0).log_determinant
    n_probes = int(np.clip(_PROBED_MODES // variance.size, _FEWEST_PROBES, _MOST_PROBES))
    for probe in range(n_probes):
        z = problem.normal(stream(seed, "probe", probe))
        root = problem.root_inverse(z, 1.0, _PROBE_TOL)
        log_determinant += root.log / n_probes
        variance += np.square(np.abs(root.x)) / n_probes
    # Of a mode whose conjugate is left out both parts are kept.
    n_parts = np.full(shape, 2.0)
    n_parts[..., 0] = 1.0
    decided, slope = n_parts - variance, k * (n_parts - variance) - explained
    share = np.clip(decided / n_parts, 0.0, 1.0)
    information = k * n_parts * np.square(share)
    if problem.fit_intercept:
        slope[problem.zero] = information[problem.zero] = 0.0
    return Evidence(value + k * log_determinant, slope, information, found)


class Family(Protocol):
    """Spectra by some parameters."""

    def log_weights(self, theta: np.ndarray) -> np.ndarray:
        """log w, in units of alpha, on the half of the lattice that is kept."""

    def within(self, theta: np.ndarray) -> np.ndarray:
        """The nearest parameters that are allowed."""


@dataclass(frozen=True, eq=False)
class Climbed:
    """The parameters that were reached, −2·log L there, and how often it was computed."""

    theta: np.ndarray
    value: float
    n_evaluations: int


_DIFFERENCE = 0.02  # of a parameter, which are logarithms; kernels round theirs to four digits
_DAMPING, _LEAST_DAMPING, _FARTHEST = 0.03, 1e-3, 1.5
_MAX_TRIALS, _MAX_ROUNDS, _FIRST_ROUNDS = 3, 15, 4
_TOL, _LEAST_GAIN = 2e-5, 1.0  # of −2·log L, a row and in all


def climb(
    family: Family,
    sums: ToeplitzSums,
    theta: np.ndarray,
    n_rows: float,
    *,
    fit_intercept: bool,
    seed: int,
    free: np.ndarray | None = None,
    to_beat: float = math.inf,
) -> Climbed:
    """Move the free parameters up the likelihood by damped Gauss-Newton steps.

    It ends where they gain little, or where −2·log L is not below `to_beat` after the first few.

    Modes are nearly independent, so that D·diag(n·γ²)·Dᵀ, D = ∂log w/∂θ, is nearly the expected curvature: a
    dozen evaluations do where simplex searches take a hundred. Steps are damped as by Levenberg and
    Marquardt (Nocedal and Wright 2006, section 10.3).
    """

    def judged(theta: np.ndarray, functions: Sequence[np.ndarray]) -> Evidence:
        weights = np.exp(family.log_weights(theta))
        return evidence(sums, weights, fit_intercept, n_rows, seed, functions)

    theta = family.within(theta)
    is_free = np.ones(len(theta), bool) if free is None else free
    best, damping, n_evaluations = judged(theta, ()), _DAMPING, 1
    for n_rounds in range(1, _MAX_ROUNDS + 1):
        D = _slopes(family, theta)
        gradient = D @ best.slope.ravel()
        moves = is_free & _can_move(family, theta, gradient)
        H = (D * best.information.ravel()) @ D.T
        gain = 0.0
        for _ in range(_MAX_TRIALS):
            step = np.zeros(len(theta))
            damped = H + damping * np.diag(np.diag(H) + 1e-6 * np.trace(H) + 1e-300)
            step[moves] = -np.linalg.solve(damped[np.ix_(moves, moves)], gradient[moves])
            new = family.within(theta + step * min(1.0, _FARTHEST / max(np.abs(step).max(), 1e-300)))
            if not (new != theta).any():
                break
            found, n_evaluations = judged(new, best.functions), n_evaluations + 1
            gain = best.value - found.value
            if gain > 0:
                theta, best, damping = new, found, max(damping / 4, _LEAST_DAMPING)
                break
            damping = 8 * max(damping, 0.01)
        is_behind = n_rounds >= _FIRST_ROUNDS and best.value > to_beat
        if is_behind or not gain > max(_LEAST_GAIN, _TOL * n_rows):
            break
    return Climbed(theta, best.value, n_evaluations)


def _slopes(family: Family, theta: np.ndarray) -> np.ndarray:
    """∂log w/∂θ by central differences, (n_parameters, n_modes kept)."""
    steps = _DIFFERENCE * np.eye(len(theta))
    differences = [family.log_weights(theta + step) - family.log_weights(theta - step) for step in steps]
    return np.stack([one.ravel() for one in differences]) / (2 * _DIFFERENCE)


def _can_move(family: Family, theta: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Whether each parameter may go down the gradient, and is not at the end of what is allowed."""
    steps = -_DIFFERENCE * np.sign(gradient) * np.eye(len(theta))
    moved = [family.within(theta + step)[i] - theta[i] for i, step in enumerate(steps)]
    return np.abs(moved) > _DIFFERENCE / 2
