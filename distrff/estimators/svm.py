"""Models of convex losses by light sweeps: of labels, and of numbers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from dask.utils import is_dataframe_like

from distrff.errors import DataWarning, InputError, warn
from distrff.estimators.base import KernelClassifier, KernelEstimator, NumberEstimator, SolverParameters
from distrff.fitting.cost import Plan
from distrff.fitting.fit import solvable
from distrff.fitting.problem import Problem, margin_problem
from distrff.fitting.result import FitResult
from distrff.io.dataset import Dataset
from distrff.model.model import Model
from distrff.solvers.losses import LOSSES, MARGINS, NOISES, Gamma, Poisson, Residual
from distrff.solvers.objective import Loss
from distrff.utils.validation import float_array, is_number, one_of, positive

# The base of models of a convex loss, and of classifiers among them.


@dataclass(eq=False, repr=False)
class LossParameters(SolverParameters):
    """Parameters of all models of a convex loss; see `KernelSVC`."""

    C: Any = 1.0
    _: KW_ONLY
    Cs: Any = None


class LossEstimator(LossParameters, KernelEstimator):
    """A model that minimises C·Σ s·ℓ + ½‖w‖² for a convex loss ℓ."""

    _forgotten = ("cv_score_", "cv_results_", "margin_")

    def _keep(self, result: FitResult, model: Model) -> None:
        search, flat = result.search, model.y_is_1d and not model.is_classifier
        self.coef_ = result.coef[:, 0] if flat else result.coef.T
        self.intercept_ = float(result.intercept[0]) if flat else result.intercept
        self.rkhs_norm_ = result.entries["rkhs_norm"]
        self.C_ = search.C
        if np.isinf(search.C):
            # The rows nearest to f = 0 have |f| = 1, and f changes by ‖w‖ a unit of distance.
            self.margin_ = 1 / self.rkhs_norm_
        if search.grid is not None:
            # A search that was interrupted before its first value has judged none.
            self.cv_score_ = float(search.mean_scores.min(initial=np.inf))
            self.cv_results_ = {
                "C": search.grid,
                "mean_score": search.mean_scores,
                "fold_scores": search.fold_scores,
            }


@dataclass(eq=False, repr=False)
class MarginParameters(LossParameters):
    """Parameters of all classifiers with a margin loss; see `KernelSVC`."""

    _: KW_ONLY
    class_weight: Any = None


class MarginClassifier(MarginParameters, KernelClassifier, LossEstimator):
    """A classifier by a loss of the margin."""

    _likelihood: dict[str, Any] | None = None
    _target_kind = "classes"

    def _of_model(self, dataset: Dataset) -> dict[str, Any]:
        return {"likelihood": self._likelihood}


@dataclass(eq=False, repr=False)
class KernelSVC(MarginClassifier):
    """Support vector machine on random features.

    Minimises C·Σ s_i·max(0, 1 − y_i·f(x_i)) + ½‖w‖², or with the square of the maximum, over
    f(x) = ⟨w, z(x)⟩ + b, with labels coded as ±1. One Gram sweep gives the preconditioner; then light
    sweeps of L-BFGS close the duality gap, which certifies the model: directly for the
    squared hinge; for the hinge through hinges that are rounded over smaller and smaller intervals,
    and then a model that is exact for the rows near y·f = 1. More than two classes are one against
    the rest each, all in the same sweeps. See `KernelRidge` for `cv`, `fold_by`, `scale`, `keep_features`,
    `random_state`, `warm_start` and `callbacks`.

    Parameters
    ----------
    features : FeatureMap, optional
        Default: `AutoFeatures()`, which chooses map, kernel and widths. A clone is fitted.
    C : float or "cv"
        Weight of the losses against the penalty, from 1e-50 to 1e50; "cv" takes the value of least held-out
        loss. Infinite for the model of maximum margin 1/‖w‖, of which no row may have y·f < 1.
    loss : {"hinge", "squared_hinge"}
    Cs : sequence of float, optional
        Grid for "cv"; default: λ = 1/(C·Σs·mean‖z‖²) from 1e-1 to 1e-6, a value a decade, up to three decades
        more beyond an end that is the best, and one value half a decade beside the best. The models of folds
        are solved to a gap of `tol`, at least 1e-2.
    class_weight : None, "balanced" or dict of label to weight
        Multiplies the weights of the rows of each class, the same in all models.
    fit_intercept : bool
        The intercept is not penalised.
    dtype : {"auto", "float32", "float64"}
        Of the features; sums are float64. "auto" is float32 for columns that are so, or scaled with a
        `tol` of 1e-4 or more, by ``scale="auto"`` for more than 10,000 rows; else float64, as for the hard
        margin.
    solver : {"auto", "smoothed", "lbfgs", "sgd"}
        "smoothed" is for the hinge, "lbfgs" for the squared hinge. "sgd" needs no Gram and rows in no
        order. "auto" is the one that closes the gap, or "sgd" where its Gram does not fit in the
        workers' memory. For the hinge on at most 4,096 rows of at most 4,096 dense features it solves the
        dual on their n × n Gram.
    tol : float
        Largest relative duality gap, (primal − dual)/max(|primal|, |dual|), of any class. Below
        about 1e-6 it takes dtype="float64". For "sgd", the least relative fall of the objective.
    max_sweeps : int, optional
        Light sweeps at most, for each C; default 200.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    C_ : float
        As given or chosen.
    cv_score_, cv_results_ : float and dict, with C="cv"
        Mean loss of held-out rows: the least, and of each C and fold.
    coef_ : ndarray of shape (1 or n_classes, n_features)
    intercept_ : ndarray of shape (1 or n_classes,)
    margin_ : float or ndarray of shape (n_classes,), with C=inf
        1/‖w‖, the distance in feature space from f = 0 to the nearest rows.
    rkhs_norm_ : float or ndarray of shape (n_classes,)
        ‖w‖₂, the norm of f under the approximate kernel.
    report_ : FitReport
        With `primal`, `dual` and `duality_gap`, of the class of largest gap.
    n_iter_ : int
        Light sweeps, or passes of SGD, of the fit to all rows.
    features_, plan_, model_, n_features_in_, feature_names_in_, seed_
        As those of `KernelRidge`.

    Notes
    -----
    If `max_sweeps` or rounding end it first, a `ConvergenceWarning` says so and the best model is
    kept, as it is when the light sweeps are interrupted. No model's objective is above that of the best
    constant, w = 0. n·(2dD + D²) flops for the Gram,
    n·(2dD + 6Dk) and n·D cosines a light sweep, D³/3 for each factor. Where ten light sweeps, or as many as
    take twice as long as the Hessians of several classes, were not enough for a smooth loss, or the first
    step shows that the sample misses rows, another pass makes the Hessians of all classes. They are of all
    rows, and made again for each step, where the products of rows with a curved loss take no longer than four
    light sweeps; else of a sample, at most ten times. Several classes take none where it would last as long
    as forty light sweeps, or where their Hessians are more than 128 MiB.
    """

    _: KW_ONLY
    loss: str = "hinge"

    def _problem(self) -> Problem:
        one_of("loss", self.loss, MARGINS)
        # Only the hinge and its square have a hard margin: a likelihood falls for ever, and has no end at
        # C=inf.
        return solvable(margin_problem(self, MARGINS[self.loss](), hard_margin=True))


# Classification by the likelihood of noisy signs: logistic, probit, Laplace noise.


@dataclass(eq=False, repr=False)
class KernelLikelihoodClassifier(MarginClassifier):
    """Classifier by maximum likelihood of y = sign(f(x) + noise), with a penalty on f.

    Minimises C·Σ s_i·(−log Ψ(y_i·f(x_i)/σ)) + ½‖w‖² over f(x) = ⟨w, z(x)⟩ + b, with labels coded as
    ±1 and Ψ the distribution function of the noise. By default C is chosen by the held-out log loss: one
    that is too small leaves probabilities too near to ½ (on `spambase` C = 1 has a log loss of .160 in place
    of .110). One Gram sweep gives the preconditioner, then light sweeps of L-BFGS, for each C in all folds,
    close the duality gap, which certifies the model. More than two classes are one against the rest each,
    all in the same sweeps. See `KernelSVC` for the cost, and for the parameters not listed here.

    Parameters
    ----------
    C : float or "cv", default="cv"
        Weight of the likelihood against the penalty, from 1e-50 to 1e50, or the value of least held-out
        loss. C and `sigma` are redundant: up to the scale of f, (C, σ) is the model of (C/σ², 1).
    noise : {"logistic", "probit", "laplace"}
        Distribution of what blurs the sign of f.
    sigma : float
        Scale of the noise.
    multi_class : {"ovr", "softmax"}
        One model a class against the rest, or for logistic noise the loss log Σ_j exp(f_j/σ) − f_c/σ
        of a row of class c, shared by all; of two classes there is one model in any case.
    solver : {"auto", "lbfgs", "sgd"}
        "sgd" needs no Gram and rows in no order, and C as a number; it is not for softmax. "auto" is "lbfgs",
        or with such a C "sgd" where the Gram does not fit in the workers' memory.
    tol : float
        As of `KernelSVC`; for softmax ‖∇‖ relative to its norm at zero.

    Attributes
    ----------
    classes_, C_, cv_score_, cv_results_, coef_, intercept_, rkhs_norm_, features_, report_, plan_, n_iter_
        As those of `KernelSVC`.
    n_features_in_, feature_names_in_, seed_
    """

    C: Any = "cv"
    _: KW_ONLY
    noise: str = "logistic"
    sigma: float = 1.0
    multi_class: str = "ovr"

    def predict_proba(self, X: Any) -> Any:
        """Probability of each class, of shape (n_samples, n_classes), lazily for dask arrays.

        Ψ(f/σ) for two classes; for more, those of one against the rest divided by their sum, or softmax.
        """
        return self._answer(X, "predict_proba")

    def _problem(self) -> Problem:
        one_of("noise", self.noise, NOISES)
        one_of("multi_class", self.multi_class, ("ovr", "softmax"))
        if self.multi_class == "softmax" and self.noise != "logistic":
            raise InputError(
                f"multi_class='softmax' is for noise='logistic', got noise={self.noise!r}; "
                f"use multi_class='ovr'"
            )
        positive("sigma", self.sigma)
        return solvable(margin_problem(self, NOISES[self.noise](float(self.sigma))))

    @property
    def _likelihood(self) -> dict[str, Any]:  # type: ignore[override]
        return {"noise": self.noise, "sigma": float(self.sigma), "multi_class": self.multi_class}


# Regression by losses other than squares.


class LossRegressor(NumberEstimator, LossEstimator):
    """A regressor by a loss of numbers, in units of the targets' spread."""

    loss: str

    def _problem(self) -> Problem:
        return solvable(margin_problem(self, self._loss(), n_quantiles=len(self._quantiles or [0])))

    def predict(self, X: Any, *, outside: str = "nan") -> Any:
        """Predictions, lazily for dask arrays; see `KernelRidge.predict` for X and `outside`.

        Of shape (n_samples,), (n_samples, n_targets) or (n_samples, n_quantiles).
        """
        return self._answer(X, "predict", outside=outside)

    def predict_interval(self, X: Any, coverage: float = 0.9, method: str = "auto") -> tuple[Any, Any]:
        """Lower and upper ends of intervals for new targets, lazily for dask arrays.

        f(x) ± r, where r is the ⌈(n + 1)·coverage⌉-th smallest |y − f(x)| of n rows, target by target; of
        several quantiles from the first − r to the last + r, with r likewise of the distances of y outside
        these two, negative within (Romano, Patterson and Candès 2019, "Conformalized quantile regression"):
        their widths follow x. Which rows these are and what is guaranteed, see
        `KernelRidge.predict_interval`.

        Parameters
        ----------
        X : array-like, DataFrame, Dataset or dask array of shape (n_samples, n_columns)
        coverage : float
            In (0, 1): the share of new rows that should lie within. It may be another than that of the
            quantiles, but is best near it.
        method : {"auto", "constant", "residual", "quantile"}
            "quantile" is for several quantiles, which have no other; "constant" and "residual" are as for
            `KernelRidge.predict_interval`, and "auto" is the better one.

        Returns
        -------
        lower, upper : ndarray or dask array of shape (n_samples,) or (n_samples, n_targets)

        Raises
        ------
        InputError
            Without calibration, for a fit without folds (``C="cv"`` has some), or whose rows are not at hand.
        """
        one_of("method", method, ("auto", "constant", "residual", "quantile"))
        self._with_intervals("predict_interval", how=method)
        return self._answer(X, "predict_interval", coverage, method)

    def _loss(self) -> Loss:
        raise NotImplementedError

    @property
    def _quantiles(self) -> list[float] | None:
        return None

    def _of_model(self, dataset: Dataset) -> dict[str, Any]:
        return {"y_is_1d": dataset.y_is_1d, "loss": {"loss": self.loss}}


@dataclass(eq=False, repr=False)
class KernelSVR(LossRegressor, LossEstimator):
    """Support vector regression on random features.

    Minimises C·Σ s_i·max(0, |r_i| − epsilon) + ½‖w‖², or with the square of the maximum, over
    f(x) = ⟨w, z(x)⟩ + b, of the residuals r = y − f(x) in units of the targets' spread σ: the interquartile
    range over 1.349, of a target at a time. So the same C and epsilon do for targets in any unit, and the
    report has them in raw ones. See `KernelSVC` for the solver, its cost, and the parameters not listed here,
    and `KernelRegressor` for other losses.

    Parameters
    ----------
    C : float or "cv"
        As for `KernelSVC`.
    loss : {"epsilon_insensitive", "squared_epsilon_insensitive"}
    epsilon : float
        Half the width of the tube in which errors cost nothing, in units of σ.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
    intercept_ : float or ndarray of shape (n_targets,)
    C_, cv_score_, cv_results_, rkhs_norm_, features_, report_, plan_, n_iter_, model_
        As those of `KernelSVC`.
    n_features_in_, feature_names_in_, seed_
    """

    _: KW_ONLY
    loss: str = "epsilon_insensitive"
    epsilon: float = 0.1

    def _loss(self) -> Loss:
        one_of("loss", self.loss, ("epsilon_insensitive", "squared_epsilon_insensitive"))
        return _insensitive(self.loss, self.epsilon)


def _insensitive(loss: str, epsilon: Any) -> Residual:
    if not is_number(epsilon) or not 0 <= epsilon < np.inf:
        raise InputError(f"epsilon must be a number ≥ 0, got {epsilon!r}")
    kind = Residual.insensitive if loss == "epsilon_insensitive" else Residual.squared_insensitive
    return kind(float(epsilon))


@dataclass(eq=False, repr=False)
class KernelRegressor(LossRegressor, LossEstimator):
    """Quantiles, robust regression, counts and amounts on random features.

    Minimises C·Σ s_i·ℓ(y_i, f(x_i)) + ½‖w‖² over f(x) = ⟨w, z(x)⟩ + b. The first four losses are of
    r = (y − f)/σ, with σ the targets' spread, the interquartile range over 1.349, of a target at a time: so
    the same C, epsilon and delta do for targets in any unit, and the report has them in raw ones. The last
    two are half the unit deviances of the mean μ = e^f, as scikit-learn's `PoissonRegressor` and
    `GammaRegressor` have them, with alpha = 1/(C·Σs). See `KernelSVC` for the solver, its cost, and the
    parameters not listed here.

    Parameters
    ----------
    C : float or "cv"
        Weight of the losses against the penalty, from 1e-50 to 1e50; "cv" takes the value of least held-out
        loss.
    loss : {"quantile", "huber", "epsilon_insensitive", "squared_epsilon_insensitive", "poisson", "gamma"}
        max(τ·r, (τ − 1)·r), whose best f is the τ-quantile of y; r²/2, beyond |r| = delta linear;
        max(0, |r| − epsilon) and its square; μ − y + y·ln(y/μ) for counts and rates, y ≥ 0;
        y/μ − 1 − ln(y/μ) for positive amounts.
    quantile : float or sequence of float
        τ of "quantile", in (0, 1). Several are fitted in the same sweeps to one target; predictions are then
        (n_samples, n_quantiles), each row in order: they are sorted, which brings them nearer to the true
        quantiles (Chernozhukov, Fernández-Val and Galichon 2010, Econometrica 78, proposition 4).
    epsilon : float
        Half the width of the tube in which errors cost nothing, in units of σ.
    delta : float
        Where "huber" becomes linear, in units of σ.
    solver : {"auto", "smoothed", "lbfgs", "sgd"}
        "smoothed" is for "quantile" and "epsilon_insensitive", "lbfgs" for the others. "sgd" needs no Gram
        and rows in no order. "auto" is the one that closes the gap, or "sgd" where its Gram does not fit in
        the workers' memory.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_outputs, n_features)
    intercept_ : float or ndarray of shape (n_outputs,)
    C_, cv_score_, cv_results_, rkhs_norm_, features_, report_, plan_, n_iter_, model_
        As those of `KernelSVC`.
    n_features_in_, feature_names_in_, seed_
    """

    _: KW_ONLY
    loss: str = "quantile"
    quantile: Any = 0.5
    epsilon: float = 0.1
    delta: float = 1.35

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, exposure: Any = None, **options: Any
    ) -> Self:
        """Fit the model to rows of any storage; see `KernelRidge.fit` for all but `exposure`.

        Parameters
        ----------
        exposure : array-like of shape (n_samples,) or str, optional
            Of "poisson" and "gamma": the time, area or number of units that y of each row is counted over,
            positive. Then e^f is the rate, the mean of y for an exposure of 1. Or the name of its column: of
            a frame X, which is no feature then, or beside the X of a `Dataset` (``extra=`` of
            `open_dataset`).

        Notes
        -----
        With exposures e the model is that of y/e; of "poisson" with weights s·e, of which deviance and
        objective are the same.
        """
        rows = self._rates(X, y, sample_weight, exposure)
        # Later frames have the column of that name too, and it is no feature.
        self._exposure = exposure if isinstance(exposure, str | None) else ""
        return super().fit(*rows, **options)

    def plan(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, exposure: Any = None, **options: Any
    ) -> Plan:
        """Plan of a `fit` to these rows; see `KernelRidge.plan`."""
        return super().plan(*self._rates(X, y, sample_weight, exposure), **options)

    def predict(self, X: Any, *, exposure: Any = None, outside: str = "nan") -> Any:
        """Predictions, lazily for dask arrays; see `KernelRidge.predict` for X and `outside`.

        Of shape (n_samples,), (n_samples, n_targets) or (n_samples, n_quantiles). Of a fit with exposures
        they are rates, or with `exposure`, given as for `fit`, means.
        """
        X, e = self._with_exposure(X, exposure)
        return self._means(super().predict(X, outside=outside), e)

    def predict_interval(
        self, X: Any, coverage: float = 0.9, method: str = "auto", *, exposure: Any = None
    ) -> tuple[Any, Any]:
        """Ends of intervals; see `KernelSVR.predict_interval`, and `predict` for `exposure`.

        Those of means are the ends for rates, times the exposures: rows of small exposures vary more.
        """
        X, e = self._with_exposure(X, exposure)
        low, high = super().predict_interval(X, coverage, method)
        return self._means(low, e), self._means(high, e)

    def calibrate(
        self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None, *, exposure: Any = None
    ) -> Self:
        """Take intervals from rows that the fit did not see; see `KernelSVR.calibrate` and `fit`."""
        return super().calibrate(*self._to_judge(X, y, sample_weight, exposure), groups)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, exposure: Any = None) -> float:
        """D² of quantiles, counts and amounts, the share of the loss of the best constant that is explained,
        averaged over outputs; R² of other losses."""
        return super().score(*self._to_judge(X, y, sample_weight, exposure))

    def _to_judge(self, X: Any, y: Any, sample_weight: Any, exposure: Any) -> tuple[Any, Any, Any]:
        if exposure is None and getattr(self, "_exposure", None) is not None:
            warn("the fit had exposures, and these rows have none: y is taken for rates", DataWarning)
        return self._rates(X, y, sample_weight, exposure)

    def _with_exposure(self, X: Any, exposure: Any) -> tuple[Any, Any]:
        """X without the column of exposures, and these, or None."""
        if exposure is None:
            return X, None
        self._check_exposure()
        from distrff.io.open import without_exposure  # with the readers of all storages

        return without_exposure(X, exposure)

    @staticmethod
    def _means(rates: Any, exposure: Any) -> Any:
        if exposure is None:
            return rates
        from distrff.io.open import times_exposure  # as above

        return times_exposure(rates, exposure)

    def _rows_to_predict(self, X: Any) -> Any:
        return super()._rows_to_predict(self._without_its_column(X))

    def _rows_to_judge(self, X: Any, y: Any, sample_weight: Any, groups: Any = None) -> Dataset:
        return super()._rows_to_judge(self._without_its_column(X), y, sample_weight, groups)

    def _without_its_column(self, X: Any) -> Any:
        """X without the column of exposures of the fit, which scikit-learn refuses as an unseen feature."""
        name = getattr(self, "_exposure", None)
        return X.drop(columns=[name]) if name and is_dataframe_like(X) and name in X.columns else X

    def _rates(self, X: Any, y: Any, sample_weight: Any, exposure: Any) -> tuple[Any, Any, Any]:
        if exposure is None:
            return X, y, sample_weight
        self._check_exposure()
        from distrff.io.open import exposed  # as above

        return exposed(X, y, sample_weight, exposure, weighted=self.loss == "poisson")

    def _check_exposure(self) -> None:
        if self.loss not in ("poisson", "gamma"):
            raise InputError(
                f"exposures are of loss='poisson' and loss='gamma', got loss={self.loss!r}; leave them out"
            )

    def _loss(self) -> Loss:
        one_of("loss", self.loss, LOSSES)
        # All are checked, also those that this loss does not take.
        positive("delta", self.delta)
        tube, tau = _insensitive(self.loss, self.epsilon), _shares(self.quantile)
        found: dict[str, Loss] = {
            "quantile": Residual.quantile(float(tau[0]) if np.size(tau) == 1 and np.ndim(tau) else tau),
            "huber": Residual.huber(float(self.delta)),
            "poisson": Poisson(),
            "gamma": Gamma(),
        }
        return found.get(self.loss, tube)

    @property
    def _quantiles(self) -> list[float] | None:
        if self.loss != "quantile" or not np.ndim(self.quantile):
            return None
        return np.asarray(self.quantile, dtype=np.float64).tolist()

    def _of_model(self, dataset: Dataset) -> dict[str, Any]:
        loss: dict[str, Any] = {"loss": self.loss}
        if self.loss == "quantile":
            loss["quantile"] = np.ravel(np.asarray(self.quantile, dtype=np.float64)).tolist()
        if dataset.reader.has_rates or getattr(self, "_exposure", None) is not None:
            loss["exposure"] = True
        return {"y_is_1d": dataset.y_is_1d and self._quantiles is None, "loss": loss}


def _shares(quantile: Any) -> Any:
    """The τ of one quantile, or an array of several; raises InputError for what is none."""
    if is_number(quantile) and 0 < quantile < 1:
        return float(quantile)
    try:
        found = float_array(quantile)
    except (TypeError, ValueError, OverflowError):
        found = np.empty(0)
    if found.ndim != 1 or not found.size or not ((found > 0) & (found < 1)).all():
        raise InputError(f"quantile must be a number between 0 and 1, or a list of them, got {quantile!r}")
    if len(np.unique(found)) < len(found) or (np.diff(found) < 0).any():
        raise InputError(f"quantile must be in ascending order, each once, got {quantile!r}")
    return found
