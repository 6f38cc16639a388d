"""The trace of a binary problem while it is solved: its best point, and the certificate of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from distrff.estimators.fitting.context import PreparedFit
from distrff.estimators.fitting.options import MarginOptions
from distrff.preprocessing.targets import ClassTargets
from distrff.solvers.losses import Loss, MarginLoss
from distrff.solvers.objective import Certificate, DualBundle, Evaluation
from distrff.solvers.status import History, Status

_ROUNDING = 1e-12  # of an objective that is summed in float64


class MarginProblem(NamedTuple):
    """One binary problem: which target it is for, its C, and the fold that is held out of it."""

    output: int
    C: float
    held_out: int | None = None


@dataclass
class Trace:
    """The best point of a problem so far, and its certificate.

    Parameters
    ----------
    x : ndarray
        Where its solver starts.
    """

    x: np.ndarray
    found: np.ndarray = field(init=False)
    """The solver's best point; the best constant may be better."""
    certificate: Certificate = field(default_factory=Certificate)
    held_out: np.ndarray = field(default_factory=lambda: np.zeros(2))
    """Σ s and Σ s·ℓ over the rows that the model is judged on."""
    relative_gradient: float = np.inf
    """‖∇‖ at the best point found, of that at the first one."""
    smallest_margin: float | None = None
    """Of all rows, of a hard-margin model; None where it was not checked at its last point."""
    history: History = field(default_factory=History)
    _first_norm: float = 0.0
    _least_found: float = np.inf
    _least_constant: float = np.inf
    _bundle: DualBundle = field(default_factory=DualBundle)

    def __post_init__(self) -> None:
        self.found = self.x

    def allow(self, constant: Constant) -> None:
        """Start from the best constant, which only a better point replaces."""
        self.x, self._least_constant = constant.x, constant.primal
        self.certificate = self.certificate.improved(constant.primal, -np.inf)

    def update(self, at: Evaluation) -> None:
        """Improve the best point and the bound by an evaluation."""
        norm = float(np.linalg.norm(at.gradient))
        self._first_norm = self._first_norm or norm
        relative = norm / self._first_norm if norm else 0.0
        # Without a bound, the point of least gradient is the best of those that are equal to rounding.
        rounding = 0.0 if at.candidate is not None else _ROUNDING * abs(at.primal)
        flatter = rounding > 0 and relative < self.relative_gradient
        if at.primal < self._least_found + (rounding if flatter else -rounding):
            self.relative_gradient = relative
            self._keep(at.x, at.primal, at.held_out)
        for candidate in (at.candidate, None if at.next is None else at.next[1].candidate):
            dual = -np.inf if candidate is None else self._bundle.add(candidate)
            self.certificate = self.certificate.improved(at.primal, dual)

    def improve(self, x: np.ndarray, primal: float, dual: float, held_out: np.ndarray) -> None:
        """Improve the best point and the bound by a point and a lower bound."""
        if primal < self._least_found:
            self._keep(x, primal, held_out)
        self.certificate = self.certificate.improved(primal, dual)

    def _keep(self, x: np.ndarray, primal: float, held_out: np.ndarray) -> None:
        self.found, self._least_found = x, primal
        if primal <= self._least_constant:
            self.x, self.held_out = x, held_out

    def record(self, n_sweeps: int) -> None:
        """Add the best so far to the history."""
        self.history.record(n_sweeps, self.error, self.certificate.primal, self.certificate.dual)

    @property
    def measure(self) -> str:
        """The name of the error."""
        return "duality gap" if np.isfinite(self.certificate.dual) else "relative gradient"

    @property
    def error(self) -> float:
        """The relative duality gap, or the relative gradient where there is no bound; `tol` is for it."""
        return self.certificate.gap if np.isfinite(self.certificate.dual) else self.relative_gradient


@dataclass(frozen=True, eq=False)
class MarginSolution:
    """What the solvers of some problems found."""

    traces: Mapping[MarginProblem, Trace]
    status: Status
    n_sweeps: int
    interruption: KeyboardInterrupt | None = None


def begun(
    starts: Mapping[MarginProblem, np.ndarray], constants: Sequence[Constant] = ()
) -> dict[MarginProblem, Trace]:
    """Return the traces before the first sweep; a constant is an upper bound of its objective."""
    traces = {problem: Trace(x) for problem, x in starts.items()}
    for trace, constant in zip(traces.values(), constants, strict=bool(constants)):
        trace.allow(constant)
    return traces


# The best models without features. No fit is worse than these.


class Constant(NamedTuple):
    """A model with w = 0, as a point x, and its objective C·Σ s·ℓ."""

    x: np.ndarray
    primal: float


def best_constants(fit: PreparedFit, C: float) -> list[Constant]:
    """Return the constant of least objective of each output, or the one of all classes that share a loss.

    It follows from the summed weights of the classes, which the first pass counted.
    """
    options, targets, labels = fit.options, fit.targets, fit.statistics.labels
    assert isinstance(options, MarginOptions) and isinstance(targets, ClassTargets) and labels is not None
    weights = labels.weights if targets.class_weight is None else targets.class_weight * labels.weights
    D = fit.specification.n_features
    if options.shares_loss(targets):
        sigma = options.loss.clear_margin
        b = sigma * np.log(weights / weights.sum()) if options.fit_intercept else np.zeros(len(weights))
        X = np.zeros((D + options.fit_intercept, len(b)))
        X[D:] = b
        return [Constant(X.ravel(), C * float(weights @ (logsumexp(b / sigma) - b / sigma)))]
    above = weights[-1:] if targets.n_outputs == 1 else weights
    return [_of_one_class(s, weights.sum() - s, D, options, C) for s in above]


def _of_one_class(above: float, below: float, D: int, options: MarginOptions, C: float) -> Constant:
    loss: Loss = options.loss
    assert isinstance(loss, MarginLoss)
    b = loss.constant(above / (above + below)) if options.fit_intercept else 0.0
    f, y = np.array([b, b]), np.array([1.0, -1.0])
    x = np.zeros(D + options.fit_intercept)
    x[D:] = b
    return Constant(x, C * float(np.array([above, below]) @ loss.value(f, y)))
