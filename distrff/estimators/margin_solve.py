"""Margin machines solved together: each sweep answers all that are not done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from distrff.estimators.kink_finish import finish_exactly
from distrff.estimators.margin_constants import Constant
from distrff.estimators.margin_options import MarginOptions
from distrff.estimators.margin_oracle import KinkPoint, MarginOracle, MarginProblem
from distrff.objective.certificate import Certificate
from distrff.objective.dual_bundle import DualBundle
from distrff.objective.evaluation import Evaluation, Point
from distrff.objective.history import History
from distrff.objective.solution import Status
from distrff.solvers.lockstep import in_lockstep
from distrff.solvers.margin_solvers import (
    Conversation,
    RestingConversation,
    Rests,
    solve_smooth,
    solve_smoothed,
)
from distrff.sweeps.kink_rows import KinkSums

_BENDING_A_FEATURE = 0.1
_ROUNDING = 1e-12  # of an objective that is summed in float64
# A model whose reference point is far off wastes sweeps, and so do many small steps at one width.
_POINTS_BEFORE_MODELS = 10


@dataclass
class Progress:
    """The best point of one machine so far, and how good it is known to be.

    Parameters
    ----------
    x : ndarray
        Where its solver starts.
    """

    x: np.ndarray
    found: np.ndarray = field(init=False)
    """The best point that the solver has found, which a constant may be better than."""
    certificate: Certificate = field(default_factory=Certificate)
    held_out: np.ndarray = field(default_factory=lambda: np.zeros(2))
    """Σ s and Σ s·ℓ over the rows that the machine is judged on."""
    relative_gradient: float = np.inf
    """‖∇‖ at the best point found, of that at the first one."""
    smallest_margin: float | None = None
    """Of all rows, of a hard-margin machine; None where it was not checked at its last point."""
    history: History = field(default_factory=History)
    _first_norm: float = 0.0
    _least_found: float = np.inf
    _least_constant: float = np.inf
    _bundle: DualBundle = field(default_factory=DualBundle)

    def __post_init__(self) -> None:
        self.found = self.x

    def allow(self, constant: Constant) -> None:
        """Take the best constant for what is to be beaten."""
        self.x, self._least_constant = constant.x, constant.primal
        self.certificate = self.certificate.improved(constant.primal, -np.inf)

    def see(self, at: Evaluation) -> None:
        """Take notice of an evaluation."""
        norm = float(np.linalg.norm(at.gradient))
        self._first_norm = self._first_norm or norm
        relative = norm / self._first_norm if norm else 0.0
        # Where there is no bound, of objectives that rounding makes equal the flattest point is the best.
        rounding = 0.0 if at.candidate is not None else _ROUNDING * abs(at.primal)
        flatter = rounding > 0 and relative < self.relative_gradient
        if at.primal < self._least_found + (rounding if flatter else -rounding):
            self.relative_gradient = relative
            self._keep(at.x, at.primal, at.held_out)
        for candidate in (at.candidate, None if at.next is None else at.next[1].candidate):
            dual = -np.inf if candidate is None else self._bundle.add(candidate)
            self.certificate = self.certificate.improved(at.primal, dual)

    def note(self, x: np.ndarray, primal: float, dual: float, held_out: np.ndarray) -> None:
        """Take notice of a point and a lower bound."""
        if primal < self._least_found:
            self._keep(x, primal, held_out)
        self.certificate = self.certificate.improved(primal, dual)

    def _keep(self, x: np.ndarray, primal: float, held_out: np.ndarray) -> None:
        self.found, self._least_found = x, primal
        if primal <= self._least_constant:
            self.x, self.held_out = x, held_out

    def mark(self, n_sweeps: int) -> None:
        """Take down what is known after that many sweeps."""
        self.history.note(n_sweeps, self.error, self.certificate.primal, self.certificate.dual)

    @property
    def measure(self) -> str:
        """What the error is called."""
        return "duality gap" if np.isfinite(self.certificate.dual) else "relative gradient"

    @property
    def error(self) -> float:
        """What `tol` bounds: the relative duality gap, or the relative gradient where there is no bound."""
        return self.certificate.gap if np.isfinite(self.certificate.dual) else self.relative_gradient


@dataclass(frozen=True, eq=False)
class MarginSolution:
    """Where the solvers of some machines ended.

    Attributes
    ----------
    progress : mapping of MarginProblem to Progress
    status : Status
    n_sweeps : int
    interruption : KeyboardInterrupt or None
    """

    progress: Mapping[MarginProblem, Progress]
    status: Status
    n_sweeps: int
    interruption: KeyboardInterrupt | None = None


class _OutOfSweeps(Exception):
    pass


def begun(
    starts: Mapping[MarginProblem, np.ndarray], constants: Sequence[Constant] = ()
) -> dict[MarginProblem, Progress]:
    """Return what is known before the first sweep of machines that shall be no worse than constants."""
    progress = {problem: Progress(x) for problem, x in starts.items()}
    for machine, constant in zip(progress.values(), constants, strict=bool(constants)):
        machine.allow(constant)
    return progress


def solve_margins(
    oracle: MarginOracle,
    options: MarginOptions,
    starts: Mapping[MarginProblem, np.ndarray],
    constants: Sequence[Constant] = (),
    *,
    tol: float,
) -> MarginSolution:
    """Solve each problem from its start to an error of `tol`, or as far as sweeps allow.

    `constants` are the best constants of the problems, if their machines shall be no worse.
    """
    solving = _Solving(oracle, options, begun(starts, constants), tol)
    interruption = None
    try:
        while solving.sweep():
            if solving.has_models:
                finish_exactly(oracle, solving.unfinished(), solving.kinks, solving.see, tol=tol)
    except _OutOfSweeps:
        pass
    except KeyboardInterrupt as raised:
        interruption = raised
    return MarginSolution(solving.progress, solving.status(interruption), solving.n_sweeps, interruption)


@dataclass
class _Solving:
    """The state of all solvers: what is known of each machine, and how many sweeps it took."""

    oracle: MarginOracle
    options: MarginOptions
    progress: dict[MarginProblem, Progress]
    tol: float
    n_sweeps: int = 0
    talks: dict[MarginProblem, Conversation | RestingConversation] = field(init=False)
    """The solvers that have not ended."""

    def __post_init__(self) -> None:
        self.talks = {problem: self._solver(problem) for problem in self.progress}

    @property
    def has_models(self) -> bool:
        """Whether models of few rows may end what the solvers begin."""
        return self.options.direct_solver == "smoothed" and self.oracle.can_model

    def evaluate(self, points: Mapping[MarginProblem, Point]) -> dict[MarginProblem, Evaluation]:
        """Answer the solvers."""
        self._count()
        answers = self.oracle.evaluate(points)
        for problem, at in answers.items():
            self.progress[problem].see(at)
            self.progress[problem].mark(self.n_sweeps)
        return answers

    def kinks(self, points: Mapping[MarginProblem, KinkPoint], n_kept: int) -> KinkSums:
        """Answer what models of few rows ask."""
        self._count()
        return self.oracle.kinks(points, n_kept)

    def see(
        self, problem: MarginProblem, x: np.ndarray, primal: float, dual: float, held_out: np.ndarray
    ) -> bool:
        """Take notice of a model's minimum; return whether the machine is good enough."""
        self.progress[problem].note(x, primal, dual, held_out)
        self.progress[problem].mark(self.n_sweeps)
        return self._finished(problem)

    def unfinished(self) -> dict[MarginProblem, np.ndarray]:
        """Return the best points found of the machines that are not good enough."""
        return {p: progress.found for p, progress in self.progress.items() if not self._finished(p)}

    def sweep(self) -> bool:
        """Let the solvers of all machines that are not good enough go on until they end or rest.

        Return whether there were any.
        """
        talks = {p: self.talks[p] for p in self.unfinished() if p in self.talks}
        results = in_lockstep(talks, self.evaluate)
        self.talks = {p: talk for p, talk in talks.items() if p not in results}
        return bool(talks)

    def _solver(self, problem: MarginProblem) -> Conversation | RestingConversation:
        """Return the conversation that solves a problem from its start."""
        x, oracle = self.progress[problem].found, self.oracle
        finished = partial(self._finished, problem)
        if self.options.direct_solver != "smoothed":
            alone = len(self.progress) == 1 and not self.options.softmax  # a D × D matrix for each
            hessian = partial(oracle.hessian, problem) if alone else None
            return solve_smooth(x, oracle.preconditioner, finished, hessian)
        # A model of all rows needs no good start, nor does one of sparse rows, which closes the gap in fewer
        # sweeps than smaller widths do (measured: 13 in place of 22).
        early = oracle.is_sparse or oracle.n_rows <= 2 * oracle.kept_rows
        return solve_smoothed(
            x,
            oracle.preconditioner,
            finished,
            tol=self.tol,
            least_bend=problem.C * min(1.0, _BENDING_A_FEATURE * oracle.n_features / oracle.n_rows),
            rests=Rests(_POINTS_BEFORE_MODELS, early) if self.has_models else None,
            looks_ahead=self.options.looks_ahead(len(self.progress)),
        )

    def status(self, interruption: KeyboardInterrupt | None) -> Status:
        """Return how it ended."""
        if interruption is not None:
            return Status.INTERRUPTED
        return Status.NOT_CONVERGED if self.unfinished() else Status.CONVERGED

    def _finished(self, problem: MarginProblem, at: Evaluation | None = None) -> bool:
        return self.progress[problem].error <= self.tol

    def _count(self) -> None:
        if self.n_sweeps >= self.options.max_sweeps:
            raise _OutOfSweeps
        self.n_sweeps += 1
