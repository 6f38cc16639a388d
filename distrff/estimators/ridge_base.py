"""What ridge machines for numbers and for classes share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distrff.data.dataset import Dataset
from distrff.diagnostics.fit_report import FitReport
from distrff.errors import InputError
from distrff.estimators.gram_context import GramContext
from distrff.estimators.gram_fit import fit_statistics
from distrff.estimators.machine import Machine
from distrff.estimators.options import FitOptions, RidgeOptions, ridge_options
from distrff.estimators.reporting import fit_report
from distrff.estimators.ridge_fit import RidgeFit
from distrff.estimators.ridge_rows import fit_ridge, presumed_ridge_plan
from distrff.features.base import FeatureMap
from distrff.model import Model
from distrff.model_store.models import save_model
from distrff.solvers.ridge_gram import posterior_of
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.execution import Workers
from distrff.sweeps.gram_statistics import GramStatistics
from distrff.sweeps.plan import Plan


class RidgeMachine(Machine):
    """Ridge on random features, from one Gram sweep; see `KernelRidge` for the parameters."""

    def __init__(
        self,
        features: FeatureMap | None = None,
        alpha: Any = 1.0,
        *,
        alphas: Any = None,
        cv: int = 5,
        fold_by: str = "hash",
        fit_intercept: bool = True,
        scale: str = "none",
        dtype: str = "auto",
        solver: str = "auto",
        tol: float = 1e-3,
        max_sweeps: int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.features = features
        self.alpha = alpha
        self.alphas = alphas
        self.cv = cv
        self.fold_by = fold_by
        self.fit_intercept = fit_intercept
        self.scale = scale
        self.dtype = dtype
        self.solver = solver
        self.tol = tol
        self.max_sweeps = max_sweeps
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the machine to rows of any storage.

        Parameters
        ----------
        X : Dataset, array-like, DataFrame, scipy sparse matrix, dask array or dask DataFrame
            Of shape (n_samples, n_columns). A `Dataset` brings its own y.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
        sample_weight : array-like of shape (n_samples,), optional

        Raises
        ------
        InputError
            For parameters or data that cannot be used.
        PlanRefused
            If it would not fit in the workers' memory; before the first task.
        KeyboardInterrupt
            In the light sweeps of ``solver="cg"`` after the best machine so far was kept, with the status
            INTERRUPTED.
        """
        options = self._options()
        dataset = self._rows_to_fit(X, y, sample_weight)
        self.__dict__.pop("_grams", None)  # frees the Gram of an earlier fit
        fit, preparation = fit_ridge(
            dataset,
            options,
            target_kind=self._target_kind,
            class_weight=getattr(self, "class_weight", None),
            planned=self._planned,
        )
        self.seed_ = options.seed
        self._keep_columns(dataset.n_columns, dataset.column_names)
        self.features_ = preparation.features
        self._keep(
            fit,
            Model(
                kind=type(self).__name__,
                specification=preparation.specification.without_arrays(),
                scaling=preparation.scaling,
                targets=fit.targets,
                coef=fit.coef,
                intercept=fit.intercept,
                dtype=fit.dtype,
                y_is_1d=dataset.y_is_1d,
                column_names=dataset.column_names,
                steps=dataset.steps,
                arrays=fit.run.map_arrays(preparation.specification),
            ),
            fit_report(self, fit, dataset=dataset, preparation=preparation),
        )
        if fit.convergence is not None:
            fit.convergence.tell()
        return self

    def fit_gram(self, statistics: GramStatistics) -> Self:
        """Fit the machine to a Gram, without any row.

        Parameters
        ----------
        statistics : GramStatistics
            Made by `distrff.gram`; ``alpha="cv"`` needs one with folds, and ``alpha="gcv"`` holds the
            first of them out where features are more than a twentieth of the rows. Without folds it warns
            there if the machine may be overfitted.
        """
        options = self._options()
        if options.solver == "cg":
            raise InputError("solver='cg' passes over rows, and a Gram has none; use solver='gram' or 'auto'")
        if getattr(self, "class_weight", None) is not None:
            raise InputError(
                "class_weight cannot be applied to a Gram, whose rows are already weighted; "
                "give sample_weight to gram(...), or fit the rows"
            )
        self.__dict__.pop("_grams", None)
        fit = fit_statistics(statistics, options, target_kind=self._target_kind)
        self.seed_ = options.seed
        self._keep_columns(statistics.specification.n_columns, None)
        self.__dict__.pop("features_", None)
        model = Model(
            kind=type(self).__name__,
            specification=statistics.specification,
            scaling=statistics.scaling,
            targets=statistics.targets,
            coef=fit.coef,
            intercept=fit.intercept,
            dtype=statistics.dtype,
            y_is_1d=statistics.y_is_1d,
        )
        self._keep(fit, model, fit_report(self, fit))
        return self

    def _presumed_plan(self, workers: Workers, dataset: Dataset, options: FitOptions) -> Plan:
        assert isinstance(options, RidgeOptions)
        return presumed_ridge_plan(workers, dataset, options, target_kind=self._target_kind)

    def _options(self) -> RidgeOptions:
        return ridge_options(self)

    def save(
        self,
        url: str,
        *,
        include_std: bool = False,
        overwrite: bool = False,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        """Write the fitted machine; `distrff.load_model` reads it back.

        Parameters
        ----------
        url : str
        include_std : bool
            Store what `return_std` needs as well, a D × D matrix.
        overwrite : bool
        storage_options : dict, optional
            For fsspec.
        """
        check_is_fitted(self, "model_")
        model = self._with_posterior() if include_std else replace(self.model_, posterior=None)
        save_model(model, url, overwrite=overwrite, storage_options=storage_options)

    def _keep(self, fit: RidgeFit, model: Model, report: FitReport) -> None:
        alpha, norms = fit.search.alpha, np.linalg.norm(fit.coef, axis=0)
        one = model.n_outputs == 1 and (model.y_is_1d or model.is_classifier)
        self.coef_ = fit.coef[:, 0] if one and not model.is_classifier else fit.coef.T
        self.intercept_ = float(fit.intercept[0]) if one and not model.is_classifier else fit.intercept
        self.alpha_ = float(alpha[0]) if len(alpha) == 1 else alpha
        self.rkhs_norm_ = float(norms[0]) if one else norms
        self.cv_score_ = fit.search.score
        self.cv_results_ = fit.search.results
        self.plan_ = fit.plan
        self.report_ = report
        self.model_ = replace(model, report=report.to_dict())
        if fit.grams is not None:
            # The Grams of folds have done their work.
            self._grams = (fit.run, replace(fit.grams, parts=[], total=fit.run.settle(fit.grams.total)))

    def _with_posterior(self) -> Model:
        """Return the model with its posterior, which is computed where the Gram is when first asked for."""
        if self.model_.posterior is not None:
            return self.model_
        kept: tuple[SweepRun, GramContext] | None = getattr(self, "_grams", None)
        if self.model_.specification.is_sparse:
            raise InputError(
                "standard deviations need a Gram of the features, and those of random binning are too many "
                "for one; use FourierFeatures or NystroemFeatures"
            )
        if kept is None and self.report_["solver"] == "cg":
            raise InputError(
                "standard deviations need the Gram of all rows, which solver='cg' does not form; "
                "fit with solver='gram'"
            )
        if kept is None:
            raise InputError(
                "the Gram that standard deviations need stayed with the fit and is not part of a pickled "
                "machine; ask for return_std once before pickling, or fit again"
            )
        run, grams = kept
        alphas = np.unique(self.alpha_)
        if len(alphas) > 1:
            raise InputError("return_std needs one alpha for all targets; fit with a single alpha")
        posterior = run.gather([run.submit(posterior_of, grams.total, float(alphas[0]), grams.problem)])[0]
        noise = posterior.noise * np.square(grams.target_scale)
        self.model_ = replace(self.model_, posterior=replace(posterior, noise=noise))
        return self.model_

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_grams"}
