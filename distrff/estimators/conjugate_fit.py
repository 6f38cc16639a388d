"""Ridge by conjugate gradients: light sweeps until the residual is small, each for all targets."""

from __future__ import annotations

import numpy as np

from distrff.data.dataset import Dataset
from distrff.estimators.alpha_search import AlphaSearch
from distrff.estimators.conjugate_search import ConjugateChoice, ConjugateSearch
from distrff.estimators.convergence import Convergence
from distrff.estimators.options import RidgeOptions
from distrff.estimators.preparation import Preparation
from distrff.estimators.ridge_fit import RidgeFit, problem_of
from distrff.estimators.ridge_oracle import RidgeOracle
from distrff.estimators.ridge_preconditioner import (
    DiagonalPreconditioner,
    RidgePreconditioner,
    sample_preconditioner,
)
from distrff.objective import Status
from distrff.objective.history import History
from distrff.objective.ridge_moments import RidgeEquations
from distrff.solvers.conjugate_gradients import Answer, ConjugateGradients
from distrff.solvers.lockstep import in_lockstep
from distrff.solvers.ridge_gram import RidgeMachine
from distrff.sweeps.conjugate_plan import ConjugatePlan
from distrff.sweeps.engine import SweepRun


class _OutOfSweeps(Exception):
    pass


class _Solution:
    """The machines of all outputs so far, in coded units, and how good they are known to be."""

    def __init__(self, coef: np.ndarray, intercept: np.ndarray, alpha: np.ndarray, tol: float) -> None:
        self._alpha = alpha
        self._tol = tol
        self.start = (coef, intercept)
        self._equations: RidgeEquations | None = None
        self.systems: dict[int, ConjugateGradients] = {}
        self.history = History()

    def begin(self, equations: RidgeEquations) -> None:
        """Take the equations; start at zero instead where that is nearer."""
        self._equations = equations
        sizes = np.linalg.norm(equations.B, axis=0)
        coef = self.start[0]
        residual = equations.descent - self._alpha * coef
        near = np.linalg.norm(residual, axis=0) < sizes
        coef, residual = np.where(near, coef, 0.0), np.where(near, residual, equations.B)
        self.systems = {
            j: ConjugateGradients(coef[:, j], residual[:, j], bound=self._tol * size)
            for j, size in enumerate(sizes.tolist())
        }

    @property
    def is_converged(self) -> bool:
        return all(system.is_converged for system in self.systems.values())

    @property
    def relative_residual(self) -> float:
        """That of the output where it is largest; NaN before the first sweep."""
        if self._equations is None:
            return float("nan")
        sizes = np.linalg.norm(self._equations.B, axis=0)
        errors = np.array([system.error for system in self.systems.values()])
        return float(np.max(errors / np.where(sizes > 0, sizes, 1.0)))

    def mark(self, n_sweeps: int) -> None:
        """Take down the residual after that many sweeps."""
        self.history.note(n_sweeps, self.relative_residual)

    def machine(self) -> RidgeMachine:
        """Return the machines of all outputs."""
        if self._equations is None:
            unknown = np.full(len(self._alpha), np.nan)
            return RidgeMachine(*self.start, unknown, unknown)
        coef, residual = (
            np.stack([getattr(system, name) for system in self.systems.values()], axis=1)
            for name in ("x", "residual")
        )
        squared_error = self._equations.squared_error(coef, residual, self._alpha)
        return RidgeMachine(coef, self._equations.intercept(coef), squared_error, self._equations.yy)


def fit_by_conjugate_gradients(
    run: SweepRun,
    dataset: Dataset,
    options: RidgeOptions,
    preparation: Preparation,
    plan: ConjugatePlan,
    notes: list[str],
) -> RidgeFit:
    """Return the fit for given penalties, or that of least held-out error, which sparse features allow.

    The Gram of a sample is all that is ever of size D².

    Raises
    ------
    InputError
        For values whose sums are not finite.
    """
    problem = problem_of(preparation, dataset, options)
    if options.alpha is None:
        run.begin_phase("choice of alpha")
    choice = (
        ConjugateSearch(run, dataset, preparation, plan, options, problem).choose()
        if options.alpha is None
        else ConjugateChoice(
            AlphaSearch(options.alpha, None, "none, as alpha was given"),
            np.zeros((problem.sizes[-1], problem.n_targets)),
            np.zeros(problem.n_targets),
        )
    )
    alpha = np.broadcast_to(choice.search.alpha, (problem.n_targets,))
    start, preconditioner = (choice.coef, choice.intercept), None
    if plan.one_in:
        run.begin_phase("preconditioner")
        preconditioner = sample_preconditioner(run, dataset, preparation, plan, options, alpha)
        start = preconditioner.machine()
    run.begin_phase("light sweeps")
    oracle = RidgeOracle(run, dataset, preparation, plan, problem)
    solution = _Solution(*start, alpha, options.tol)
    if choice.interruption is None:
        status, interruption = _solve(oracle, solution, preconditioner, alpha, options.max_sweeps)
    else:
        status, interruption = Status.INTERRUPTED, choice.interruption
        notes = [
            *notes,
            "interrupted in the search for alpha: the machine is the mean of some folds' machines",
        ]
    convergence = Convergence(
        status=status,
        solver="cg",
        measure="relative residual",
        error=solution.relative_residual,
        tol=options.tol,
        n_sweeps=oracle.n_sweeps,
        max_sweeps=options.max_sweeps,
        preconditioner=plan.preconditioner,
        history=solution.history,
        interruption=interruption,
    )
    return RidgeFit(
        run=run,
        plan=plan,
        problem=problem,
        dtype=plan.shape.dtype,
        grams=None,
        search=choice.search,
        machine=solution.machine(),
        targets=preparation.targets,
        notes=notes + choice.search.notes,
        convergence=convergence,
    )


def _solve(
    oracle: RidgeOracle,
    solution: _Solution,
    preconditioner: RidgePreconditioner | None,
    alpha: np.ndarray,
    max_sweeps: int,
) -> tuple[Status, KeyboardInterrupt | None]:
    """Advance the solution until it converges or may not go on."""
    try:
        equations = oracle.right_sides(*solution.start)
        solution.begin(equations)
        M = DiagonalPreconditioner(equations.G_diagonal, alpha) if preconditioner is None else preconditioner

        def answer(residuals: dict[int, np.ndarray]) -> dict[int, Answer]:
            solution.mark(oracle.n_sweeps)
            if oracle.n_sweeps >= max_sweeps:
                raise _OutOfSweeps
            solved = M.solve(residuals)
            products = oracle.products(solved, equations.z_mean)
            return {j: (v, products[j] + alpha[j] * v) for j, v in solved.items()}

        in_lockstep({j: system.solve() for j, system in solution.systems.items()}, answer)
        solution.mark(oracle.n_sweeps)
    except _OutOfSweeps:
        pass
    except KeyboardInterrupt as interruption:
        return Status.INTERRUPTED, interruption
    return Status.CONVERGED if solution.is_converged else Status.NOT_CONVERGED, None
