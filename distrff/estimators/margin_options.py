"""The parameters of machines with a margin loss, validated at fit."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from distrff.errors import InputError
from distrff.estimators.options import (
    FitOptions,
    RidgeOptions,
    ascending_grid,
    checked_folds,
    is_infinite,
    one_of,
    positive_number,
    shared_options,
)
from distrff.features.base import FeatureMap
from distrff.losses import Loss, Squared
from distrff.sweeps.folds import FOLD_RULES
from distrff.sweeps.kink_rows import can_model, most_model_rows

SOLVERS = ("auto", "gram", "cg", "lbfgs", "smoothed", "sgd")
_PRESUMED_SWEEPS, _PRESUMED_GRID = 10, 6
_MOST_LOOKING_AHEAD = 4
_LEAST_TOL_IN_FLOAT32 = 1e-4
_MOST_C = 1e50


@dataclass(frozen=True, eq=False, kw_only=True)
class MarginOptions(FitOptions):
    """Parameters of a margin machine.

    Parameters
    ----------
    C : float or None
        Infinite for the hard margin, None where it is to be chosen by folds.
    Cs : ndarray or None
        Grid for that, ascending; None for the default one.
    cv : int
        Number of folds.
    fold_by : {"hash", "contiguous"}
    loss : Loss
    softmax : bool
        Whether all classes share one loss.
    solver : {"auto", "lbfgs", "smoothed", "sgd"}
        "auto" is `direct_solver`, and where its plan is refused for memory, "sgd".
    tol : float
        Relative duality gap; for softmax relative gradient; for sgd the least relative fall of an epoch.
    max_sweeps : int
        Passes of the solver for one value of C.
    """

    C: float | None
    Cs: np.ndarray | None
    cv: int
    fold_by: str
    loss: Loss
    softmax: bool
    solver: str
    tol: float
    max_sweeps: int

    samples_gram = True

    @property
    def direct_solver(self) -> str:
        """The solver that closes the gap of this loss."""
        return "lbfgs" if np.isfinite(self.loss.curvature) else "smoothed"

    @property
    def dtype_asked(self) -> str:
        """The dtype, where "auto" need not look at the columns.

        float64 for hard margins, which rounding must not violate. float32 for columns that are standardised
        before they are cast, if the gap may be far above its rounding: sweeps then take half as long.
        """
        if self.dtype != "auto":
            return self.dtype
        if self.is_hard:
            return "float64"
        return "float32" if self.scale == "standard" and self.tol >= _LEAST_TOL_IN_FLOAT32 else "auto"

    @property
    def is_hard(self) -> bool:
        """Whether no row may be on the wrong side of its margin."""
        return self.C is not None and bool(np.isinf(self.C))

    def model_rows(self, n_features: int) -> int:
        entries = self.features.sparse_entries
        models = self.direct_solver == "smoothed" and can_model(n_features, entries)
        return most_model_rows(n_features, entries) if models and not self.is_hard else 0

    @property
    def n_cv_folds(self) -> int:
        return self.cv if self.C is None else 1

    def looks_ahead(self, n_machines: int) -> bool:
        """Whether each sweep answers every machine at two widths of its rounded hinge.

        For few machines, whose thin products are a small part of a sweep.
        """
        return self.direct_solver == "smoothed" and n_machines <= _MOST_LOOKING_AHEAD

    def n_light_columns(self, n_outputs: int) -> int:
        n_machines = n_outputs * self.n_cv_folds
        return n_machines * (2 if self.looks_ahead(n_machines) else 1)

    @property
    def n_light_sweeps(self) -> int:  # type: ignore[override]
        grid = _PRESUMED_GRID if self.Cs is None else len(self.Cs)
        return _PRESUMED_SWEEPS * (1 if self.C is not None else 1 + grid)


def margin_options(
    estimator: Any, loss: Loss, description: str, *, hard_margin: bool = False
) -> MarginOptions:
    """Return the validated parameters of a margin machine whose loss the user named as in `description`.

    `hard_margin` says whether C may be infinite.

    Raises
    ------
    InputError
        For the first parameter that no data could make right.
    """
    one_of("fold_by", estimator.fold_by, FOLD_RULES)
    if isinstance(estimator.features, FeatureMap) and estimator.features.sparse_entries:
        _check_for_sparse(estimator)
    searched = isinstance(estimator.C, str) and estimator.C == "cv"
    if isinstance(estimator.C, str) and not searched:
        raise InputError(f"C must be a positive number or 'cv', got {estimator.C!r}")
    if not searched and not (hard_margin and is_infinite(estimator.C)):
        positive_number("C", estimator.C)
        _check_size("C", float(estimator.C), hard_margin)
    Cs = None if estimator.Cs is None else ascending_grid("Cs", estimator.Cs)
    for C in [] if Cs is None else (Cs[0], Cs[-1]):
        _check_size("Cs", float(C), hard_margin=False)
    return MarginOptions(
        C=None if searched else float(estimator.C),
        Cs=Cs,
        cv=checked_folds(estimator.cv) if searched else 1,
        fold_by=estimator.fold_by,
        loss=loss,
        softmax=getattr(estimator, "multi_class", "ovr") == "softmax",
        solver=margin_solver(estimator, loss, description),
        **shared_options(estimator),
    )


def margin_options_of_ridge(options: RidgeOptions) -> MarginOptions:
    """Return ridge of one penalty as the margin machine of the squared loss with C = 1/(2·alpha)."""
    assert options.alpha is not None
    shared = {f.name: getattr(options, f.name) for f in fields(FitOptions)}
    return MarginOptions(
        **shared,
        C=1 / (2 * float(options.alpha[0])),
        Cs=None,
        cv=1,
        fold_by=options.fold_by,
        loss=Squared(),
        softmax=False,
        solver="sgd",
        tol=options.tol,
        max_sweeps=options.max_sweeps,
    )


def margin_solver(estimator: Any, loss: Loss, description: str) -> str:
    """Return the solver that was asked for, if it can minimise the loss that `description` names.

    Raises
    ------
    InputError
        For a solver that cannot minimise the loss.
    """
    solver = estimator.solver
    one_of("solver", solver, SOLVERS)
    if solver == "sgd":
        _check_sgd(estimator)
    fitting = "lbfgs" if np.isfinite(loss.curvature) else "smoothed"
    if solver in ("auto", "sgd", fitting):
        return solver
    needs = {
        "gram": "a squared loss, whose optimum follows from the Gram alone",
        "cg": "a squared loss, whose optimum solves linear equations",
        "lbfgs": "a loss with a continuous slope",
        "smoothed": "a loss with a kink to round",
    }[solver]
    raise InputError(
        f"solver={solver!r} needs {needs}, which {description} is not; use solver={fitting!r} or 'auto'"
    )


def _check_size(name: str, C: float, hard_margin: bool) -> None:
    """Raise InputError for a C whose square, times sums over rows, would be no number."""
    if not 1 / _MOST_C <= C <= _MOST_C:
        beyond = "; C=inf is the hard margin" if hard_margin and C > 1 else ""
        raise InputError(f"{name} must be from {1 / _MOST_C:g} to {_MOST_C:g}, got {C:g}{beyond}")


def _check_for_sparse(estimator: Any) -> None:
    """Raise InputError for what keeps features of rows as an array, which those of random binning are not."""
    if is_infinite(estimator.C):
        raise InputError(
            f"C={estimator.C!r} needs dense features, and those of random binning are sparse; use a finite C "
            f"(solver='smoothed' for the hinge, 'lbfgs' for other losses, 'sgd' or 'auto' for any), or "
            f"FourierFeatures or NystroemFeatures"
        )


def _check_sgd(estimator: Any) -> None:
    if getattr(estimator, "multi_class", "ovr") == "softmax":
        raise InputError("solver='sgd' needs one loss a class, and multi_class='softmax' has one for all")
    if estimator.C == "cv" or is_infinite(estimator.C):
        raise InputError(
            f"solver='sgd' needs a finite number for C, got C={estimator.C!r}; use solver='auto'"
        )
