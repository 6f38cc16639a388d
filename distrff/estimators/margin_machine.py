"""What machines with a margin loss share: fitting, planning, saving."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from distrff.data.dataset import Dataset
from distrff.errors import warn
from distrff.estimators.classifying_machine import ClassifyingMachine
from distrff.estimators.margin_fit import MarginFit, fit_margins, presumed_margin_plan
from distrff.estimators.margin_options import MarginOptions
from distrff.estimators.margin_reporting import margin_report
from distrff.estimators.options import FitOptions
from distrff.model import Model
from distrff.model_store.models import save_model
from distrff.objective import Status
from distrff.sweeps.execution import Workers
from distrff.sweeps.plan import Plan

_ROUNDING = {"float32": 1e-6, "float64": 1e-12}  # errors that more sweeps do not reach below
_LARGEST_TOL = 0.1


class MarginMachine(ClassifyingMachine):
    """A classifier that minimises C·Σ s·ℓ + ½‖w‖² for a loss ℓ of the margin."""

    _likelihood: dict[str, Any] | None = None
    _target_kind = "classes"

    def _options(self) -> MarginOptions:
        """Return the validated parameters."""
        raise NotImplementedError

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the machine to rows of any storage.

        Parameters
        ----------
        X : Dataset, array-like, DataFrame, scipy sparse matrix, dask array or dask DataFrame
            Of shape (n_samples, n_columns). A `Dataset` brings its own y.
        y : array-like of shape (n_samples,)
            Labels of any type that sorts.
        sample_weight : array-like of shape (n_samples,), optional

        Raises
        ------
        InputError
            For parameters or data that cannot be used.
        PlanRefused
            If it would not fit in the workers' memory: before the first task, or once many
            classes are counted.
        KeyboardInterrupt
            In the light sweeps after the best machine so far was kept, with the status INTERRUPTED.
        """
        options = self._options()
        dataset = self._rows_to_fit(X, y, sample_weight)
        for stale in ("cv_score_", "cv_results_"):
            self.__dict__.pop(stale, None)
        fit, preparation = fit_margins(
            dataset, options, class_weight=self.class_weight, planned=self._planned
        )
        self.seed_ = options.seed
        self._keep_columns(dataset.n_columns, dataset.column_names)
        self.features_ = preparation.features
        self.report_ = margin_report(self, fit, options, dataset=dataset, preparation=preparation)
        self._keep(
            fit,
            Model(
                kind=type(self).__name__,
                specification=preparation.specification.without_arrays(),
                scaling=preparation.scaling,
                targets=preparation.targets,
                coef=fit.coef,
                intercept=fit.intercept,
                dtype=fit.plan.shape.dtype,
                column_names=dataset.column_names,
                steps=dataset.steps,
                arrays=fit.run.map_arrays(preparation.specification),
                likelihood=self._likelihood,
                report=self.report_.to_dict(),
            ),
        )
        if fit.interruption is not None:
            raise fit.interruption
        if fit.status not in (Status.CONVERGED, Status.CONVERGED_UNCERTIFIED):
            warn(_shortfall(fit, options), ConvergenceWarning)
        return self

    def _presumed_plan(self, workers: Workers, dataset: Dataset, options: FitOptions) -> Plan:
        assert isinstance(options, MarginOptions)
        return presumed_margin_plan(workers, dataset, options)

    def save(
        self, url: str, *, overwrite: bool = False, storage_options: dict[str, Any] | None = None
    ) -> None:
        """Write the fitted machine; `distrff.load_model` reads it back."""
        check_is_fitted(self, "model_")
        save_model(self.model_, url, overwrite=overwrite, storage_options=storage_options)

    def _keep(self, fit: MarginFit, model: Model) -> None:
        norms = np.linalg.norm(fit.coef, axis=0)
        self.coef_ = fit.coef.T
        self.intercept_ = fit.intercept
        self.rkhs_norm_ = float(norms[0]) if len(norms) == 1 else norms
        self.C_ = fit.C
        self.__dict__.pop("margin_", None)
        if fit.is_hard:
            self.margin_ = 1 / self.rkhs_norm_
        if fit.search is not None:
            self.cv_score_ = float(fit.search.mean_scores.min(initial=np.inf))
            self.cv_results_ = {
                "C": fit.search.grid,
                "mean_score": fit.search.mean_scores,
                "fold_scores": fit.search.fold_scores,
            }
        self.plan_ = fit.plan
        self.model_ = model


def _shortfall(fit: MarginFit, options: MarginOptions) -> str:
    """Return the warning of a fit that stopped above its tolerance."""
    if fit.status is Status.NOT_DECIDED:
        return (
            f"after light sweep {fit.n_light_sweeps} the rows are neither separated, with a margin known to "
            f"{options.tol:g}, nor shown to be not separable; allow more by max_sweeps, or use a finite C"
        )
    if fit.solver == "sgd":
        return (
            f"the objective still fell by more than tol={options.tol:g} in light sweep "
            f"{fit.n_light_sweeps}; allow more by max_sweeps, or a larger tol"
        )
    name = "relative gradient" if options.softmax else "duality gap"
    return (
        f"the {name} is {fit.worst.error:.2g} after light sweep {fit.n_light_sweeps}, "
        f"above tol={options.tol:g}; {remedy(fit, options)}"
    )


def remedy(fit: MarginFit, options: MarginOptions) -> str:
    """Return what would have helped: other numbers, or more sweeps."""
    error, dtype = fit.worst.error, fit.plan.shape.dtype
    most = {name: 1 / (float(np.finfo(name).eps) * fit.size) for name in ("float32", "float64")}
    if most["float64"] < fit.C:
        return f"beside C={fit.C:g} the penalty is lost to rounding: use a C below {most['float64']:.1g}"
    least = float(np.finfo("float64").eps) / fit.size
    if least > fit.C:
        return f"beside the penalty C={fit.C:g} is lost to rounding: use a C above {least:.1g}"
    ended = fit.n_light_sweeps >= options.max_sweeps
    rounded = not ended or most[dtype] < fit.C or error < _ROUNDING[dtype]
    larger = ", or a larger tol" if error < _LARGEST_TOL else ""
    if not rounded:
        return f"allow more by max_sweeps{larger}"
    if dtype == "float32":
        return f"rounding ends it: use dtype='float64'{larger}"
    return "rounding ends it: use a larger tol" if larger else "rounding ends it: use a smaller C"
