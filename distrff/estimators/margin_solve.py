"""Margin machines solved together: each sweep answers all that are not done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from distrff.estimators.kink_finish import finish_exactly
from distrff.estimators.margin_options import MarginOptions
from distrff.estimators.margin_oracle import KinkPoint, MarginOracle, MarginProblem
from distrff.objective.certificate import Certificate
from distrff.objective.dual_bundle import DualBundle
from distrff.objective.evaluation import Evaluation, Point
from distrff.objective.history import History
from distrff.objective.solution import Status
from distrff.solvers.lockstep import in_lockstep
from distrff.solvers.margin_solvers import Conversation, solve_smooth, solve_smoothed
from distrff.sweeps.kink_rows import KinkSums

_BENDING_A_FEATURE = 0.1
# A model of all rows needs no good start, nor does one of sparse rows, which closes the gap in fewer sweeps
# than smaller widths do (measured: 13 in place of 22); else sweeps at one width end when they help little.
_WIDTH_OF_EARLY_MODELS = 0.3
# A model whose reference point was too far off is not grown for long: more sweeps come closer. For sparse
# features they do not, and a model grows until it has all the rows that there is room for.
_MOST_A_STAGE, _MOST_MODELS, _MOST_SPARSE_MODELS = (10, 40), (2, 8), (8, 8)


@dataclass
class Progress:
    """The best point of one machine so far, and how good it is known to be."""

    x: np.ndarray
    certificate: Certificate = field(default_factory=Certificate)
    held_out: np.ndarray = field(default_factory=lambda: np.zeros(2))
    """Σ s and Σ s·ℓ over the rows that the machine is judged on."""
    relative_gradient: float = np.inf
    """‖∇‖ at that point, of that at the first one."""
    smallest_margin: float | None = None
    """Of all rows, of a hard-margin machine; None where it was not checked at its last point."""
    history: History = field(default_factory=History)
    _first_norm: float = 0.0
    _bundle: DualBundle = field(default_factory=DualBundle)

    def see(self, at: Evaluation) -> None:
        """Take notice of an evaluation."""
        norm = float(np.linalg.norm(at.gradient))
        self._first_norm = self._first_norm or norm
        if at.primal < self.certificate.primal:
            self.relative_gradient = norm / self._first_norm if norm else 0.0
        for candidate in (at.candidate, None if at.next is None else at.next[1].candidate):
            dual = -np.inf if candidate is None else self._bundle.add(candidate)
            self.note(at.x, at.primal, dual, at.held_out)

    def note(self, x: np.ndarray, primal: float, dual: float, held_out: np.ndarray) -> None:
        """Take notice of a point and a lower bound."""
        if primal < self.certificate.primal:
            self.x, self.held_out = x, held_out
        self.certificate = self.certificate.improved(primal, dual)

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


def solve_margins(
    oracle: MarginOracle, options: MarginOptions, starts: Mapping[MarginProblem, np.ndarray], *, tol: float
) -> MarginSolution:
    """Solve each problem from its start to an error of `tol`, or as far as sweeps allow."""
    solving = _Solving(oracle, options, {problem: Progress(x) for problem, x in starts.items()}, tol)
    interruption = None
    try:
        if options.direct_solver == "smoothed" and oracle.can_model:
            models = _MOST_SPARSE_MODELS if oracle.is_sparse else _MOST_MODELS
            for most_a_stage, most_models in zip(_MOST_A_STAGE, models, strict=True):
                solving.sweep(most_a_stage)
                finish_exactly(
                    oracle, solving.unfinished(), solving.kinks, solving.see, tol=tol, most=most_models
                )
        else:
            solving.sweep()
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
        """Return the best points of the machines that are not good enough."""
        return {p: progress.x for p, progress in self.progress.items() if not self._finished(p)}

    def sweep(self, most_a_stage: int | None = None) -> None:
        """Let the solvers of all machines that are not good enough go on until they end."""
        in_lockstep({p: self._solver(p, most_a_stage) for p in self.unfinished()}, self.evaluate)

    def _solver(self, problem: MarginProblem, most_a_stage: int | None) -> Conversation:
        """Return the conversation that solves a problem from where it is."""
        x, oracle = self.progress[problem].x, self.oracle
        finished = partial(self._finished, problem)
        if self.options.direct_solver != "smoothed":
            alone = len(self.progress) == 1 and not self.options.softmax  # a D × D matrix for each
            hessian = partial(oracle.hessian, problem) if alone else None
            return solve_smooth(x, oracle.preconditioner, finished, hessian)
        whole = most_a_stage is not None and oracle.n_rows <= 2 * oracle.kept_rows
        early = whole or (oracle.is_sparse and most_a_stage == _MOST_A_STAGE[0])
        return solve_smoothed(
            x,
            oracle.preconditioner,
            finished,
            tol=self.tol,
            least_bend=problem.C * min(1.0, _BENDING_A_FEATURE * oracle.n_features / oracle.n_rows),
            last_width=_WIDTH_OF_EARLY_MODELS if early else 0.0,
            most_a_stage=most_a_stage,
            looks_ahead=self.options.looks_ahead(len(self.unfinished())),
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
