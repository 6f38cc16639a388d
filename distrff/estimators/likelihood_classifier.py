"""Classification by the likelihood of noisy signs: logistic, probit, Laplace noise."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from distrff.errors import warn
from distrff.estimators.classifying_machine import ClassifyingMachine
from distrff.estimators.margin_fit import MarginFit, fit_margins, light_sweeps_presumed
from distrff.estimators.margin_reporting import margin_report
from distrff.estimators.measured_plan import predicted_seconds
from distrff.estimators.options import MarginOptions, margin_options, one_of, positive_number
from distrff.estimators.ridge_fit import presumed_plan
from distrff.estimators.run import begin_run
from distrff.features.base import FeatureMap
from distrff.losses import NOISES
from distrff.model import Model
from distrff.model_store.models import save_model
from distrff.objective import Status
from distrff.sweeps.plan import Plan


class KernelLikelihoodClassifier(ClassifyingMachine):
    """Classifier by maximum likelihood of y = sign(f(x) + noise), with a penalty on f.

    Minimises C·Σ s_i·(−log Ψ(y_i·f(x_i)/σ)) + ½‖w‖² over f(x) = ⟨w, z(x)⟩ + b, with labels coded as
    ±1 and Ψ the distribution function of the noise. One Gram sweep gives the preconditioner,
    then a few light sweeps of L-BFGS close the duality gap, which is the certificate of the
    answer. More than two classes are one against the rest each, all in the same sweeps.

    Parameters
    ----------
    features : FeatureMap, optional
        Default: `FourierFeatures()`. A clone is fitted.
    C : float
        Weight of the likelihood against the penalty. C and `sigma` are redundant: up to the
        scale of f, (C, σ) is the machine of (C/σ², 1).
    noise : {"logistic", "probit", "laplace"}
    sigma : float
        Scale of the noise.
    multi_class : {"ovr"}
    class_weight : None, "balanced" or dict of label to weight
        Multiplies the weights of the rows of each class, the same in all machines.
    fit_intercept : bool
        The intercept is not penalised.
    scale : {"none", "standard"}
    dtype : {"auto", "float32", "float64"}
        Of the features; sums are float64.
    solver : {"auto", "lbfgs"}
    tol : float
        Largest relative duality gap, (primal − dual)/max(|primal|, |dual|), of any class. Below
        about 1e-6 it takes dtype="float64".
    max_sweeps : int, optional
        Light sweeps at most; default 200.
    random_state : int or None
        None draws a seed, recorded as `seed_`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1 or n_classes, n_features)
    intercept_ : ndarray of shape (1 or n_classes,)
    rkhs_norm_ : float or ndarray of shape (n_classes,)
        ‖w‖₂, the norm of f under the approximate kernel.
    features_ : FeatureMap
        The fitted clone.
    report_ : FitReport
        With `primal`, `dual` and `duality_gap`, of the class of largest gap.
    plan_ : Plan
    n_features_in_ : int
    feature_names_in_ : ndarray of str, where columns have names
    seed_ : int

    Notes
    -----
    If `max_sweeps` or rounding end it first, a `ConvergenceWarning` says so and the best machine is
    kept; so is it when the light sweeps are interrupted. n·(2dD + D²) flops for the Gram,
    n·(2dD + 6Dk) and n·D cosines a light sweep, D³/3 for each of the few factors.
    """

    def __init__(
        self,
        features: FeatureMap | None = None,
        C: float = 1.0,
        *,
        noise: str = "logistic",
        sigma: float = 1.0,
        multi_class: str = "ovr",
        class_weight: Any = None,
        fit_intercept: bool = True,
        scale: str = "none",
        dtype: str = "auto",
        solver: str = "auto",
        tol: float = 1e-3,
        max_sweeps: int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.features = features
        self.C = C
        self.noise = noise
        self.sigma = sigma
        self.multi_class = multi_class
        self.class_weight = class_weight
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
        X : Dataset, array-like, DataFrame, dask array or dask DataFrame
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
        dataset = self._dataset(X, y, sample_weight)
        fit, preparation = fit_margins(dataset, options, class_weight=self.class_weight)
        self.seed_ = options.seed
        self._keep_columns(dataset.n_columns, dataset.column_names)
        self.features_ = preparation.features
        self.report_ = margin_report(self, fit, options, dataset=dataset, preparation=preparation)
        self._keep(
            fit,
            Model(
                kind=type(self).__name__,
                specification=preparation.specification,
                scaling=preparation.scaling,
                targets=preparation.targets,
                coef=fit.coef,
                intercept=fit.intercept,
                dtype=fit.plan.shape.dtype,
                column_names=dataset.column_names,
                arrays=preparation.specification.derive_arrays() if fit.run.frequencies_differ else None,
                likelihood={"noise": self.noise, "sigma": float(self.sigma)},
                report=self.report_.to_dict(),
            ),
        )
        if fit.interruption is not None:
            raise fit.interruption
        if fit.status is not Status.CONVERGED:
            ended = fit.n_light_sweeps >= options.max_sweeps
            remedy = "allow more by max_sweeps" if ended else "rounding ends it: use dtype='float64'"
            warn(
                f"the duality gap is {fit.worst.gap:.2g} after {fit.n_light_sweeps} light sweeps, "
                f"above tol={options.tol:g}; {remedy}, or a larger tol",
                ConvergenceWarning,
            )
        return self

    def plan(self, X: Any, y: Any = None, sample_weight: Any = None) -> Plan:
        """Return what `fit` on these rows will cost, with seconds from a short measurement.

        How many light sweeps a fit takes shows only in the fit; ten are planned for.

        Raises
        ------
        PlanRefused
            If it would not fit in the workers' memory.
        """
        options, run = self._options(), begin_run()
        dataset = self._dataset(X, y, sample_weight)
        plan = presumed_plan(run, dataset, options, target_kind="classes")
        seconds = predicted_seconds(run, dataset, options, plan)
        return light_sweeps_presumed(plan.with_seconds(seconds))

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class, of shape (n_samples, n_classes), lazily for dask arrays.

        Ψ(f/σ) for two classes; for more, those of one against the rest divided by their sum.
        """
        return self._output(X, "predict_proba")

    def save(
        self, url: str, *, overwrite: bool = False, storage_options: dict[str, Any] | None = None
    ) -> None:
        """Write the fitted machine; `distrff.load_model` reads it back."""
        check_is_fitted(self, "model_")
        save_model(self.model_, url, overwrite=overwrite, storage_options=storage_options)

    def _options(self) -> MarginOptions:
        one_of("noise", self.noise, tuple(NOISES))
        one_of("multi_class", self.multi_class, ("ovr",))
        positive_number("sigma", self.sigma)
        return margin_options(self, NOISES[self.noise](float(self.sigma)))

    def _keep(self, fit: MarginFit, model: Model) -> None:
        norms = np.linalg.norm(fit.coef, axis=0)
        self.coef_ = fit.coef.T
        self.intercept_ = fit.intercept
        self.rkhs_norm_ = float(norms[0]) if len(norms) == 1 else norms
        self.plan_ = fit.plan
        self.model_ = model
