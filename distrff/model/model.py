"""The frozen model: all that prediction needs, as NumPy arrays; it predicts without a cluster."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import issparse, vstack

from distrff.errors import InputError, InputTypeError, NonFiniteError
from distrff.features.fitted import FittedMap, Trait, exact_digest, named_to_send, sent_arrays
from distrff.model.intervals import INTERVAL_METHODS, Intervals, class_scores
from distrff.preprocessing.coding import (
    ClassTargets,
    MultilabelTargets,
    NumericTargets,
    Scaling,
    Targets,
    coding_parts,
)
from distrff.preprocessing.folds import Folds, Keys, Memberships
from distrff.preprocessing.table import TableSteps
from distrff.utils.arrays import chosen_rows, dense_rows, lay_out
from distrff.utils.random import resolve_seed
from distrff.utils.text import html_card, kernel_text, listed, number_text
from distrff.utils.validation import check_count, one_of

if TYPE_CHECKING:
    from distrff.solvers.posterior import Posterior

_STRIP_BYTES = 2**25  # size of the strips of Z in a prediction
OUTSIDE = ("nan", "error")
JUDGES = {"quantile": "pinball_loss", "poisson": "poisson_deviance", "gamma": "gamma_deviance"}
"""What models of these losses are judged by; those of others by squares."""
_LARGEST_LOG = 300.0  # far from the rows a spread may be anything, but never 0 nor infinite
_BY_BAND = "method='quantile'"
STD_OF = ("f", "observation")


def std_of(return_std: Any) -> str:
    """Whose deviation `return_std` asks for: True is that of f."""
    if isinstance(return_std, str):
        one_of("return_std", return_std, STD_OF)
        return return_std
    return "f"


_RATES = ("poisson", "gamma")  # losses of f that is the logarithm of a mean


@dataclass(frozen=True, eq=False)
class Model:
    """A fitted model f(x) = ⟨w, z(x)⟩ + b as plain arrays.

    Parameters
    ----------
    kind : str
        The estimator that made it, e.g. "KernelRidge".
    specification : FittedMap
    scaling : Scaling
    targets : Targets
    coef : ndarray of shape (n_features, n_outputs), float64
        In the targets' own units.
    intercept : ndarray of shape (n_outputs,), float64
    dtype : {"float32", "float64"}
        Dtype of the features.
    y_is_1d : bool
        Whether predictions of one output are one-dimensional.
    column_names : tuple of str or None
    posterior : PosteriorFactor, PosteriorSamples, PosteriorOfEach or None
        For standard deviations, if these can be predicted.
    likelihood : mapping with `noise`, `sigma` and `multi_class`, or None
        Of a model that predicts probabilities.
    loss : mapping with `loss` and, of quantiles, their list `quantile`, or None
        Of a model of numbers by another loss than squares.
    arrays : mapping of str to ndarray, or None
        The map's arrays, if they come from a file or workers derive others than the client; None if they
        follow from the seed.
    report : dict
        How the model was fitted; strict JSON.
    steps : TableSteps or None
        Encodes the raw columns of a table, like the fitted one, as the columns of X and y.
    intervals : Intervals or None
        For `predict_interval` or `predict_set`, if the model was calibrated or has errors out of fold.
    skips_missing : bool
        Whether a row that holds NaN has NaN for a result, as of models whose fit dropped such rows; others
        refuse it.
    fold_models : FoldModels or None
        The models that judge rows of the fit, where these are judged; in no file.
    spread : pair of ndarrays of shape (n_features, n_outputs) and (n_outputs,), or None
        Coefficients and intercepts of a model of log |y − f|, on the same features: for intervals whose width
        follows x.

    Notes
    -----
    Rows are NumPy arrays or scipy sparse matrices of the columns of X. Or they are a pandas, polars or dask
    DataFrame, a pyarrow Table or an xarray Dataset: of a model with `steps` with the raw columns that these
    encode, all found by their names, with the target or without. Results are NumPy arrays, and lazy dask
    arrays for dask DataFrames and arrays.
    """

    kind: str
    specification: FittedMap
    scaling: Scaling
    targets: Targets
    coef: np.ndarray
    intercept: np.ndarray
    dtype: str
    y_is_1d: bool = True
    column_names: tuple[str, ...] | None = None
    posterior: Posterior | None = None
    likelihood: Mapping[str, Any] | None = None
    loss: Mapping[str, Any] | None = None
    arrays: Mapping[str, np.ndarray] | None = None
    report: dict[str, Any] = field(default_factory=dict)
    steps: TableSteps | None = None
    intervals: Intervals | None = None
    skips_missing: bool = False
    fold_models: FoldModels | None = None
    spread: tuple[np.ndarray, np.ndarray] | None = None

    def __post_init__(self) -> None:
        lay_out(self, "coef", "intercept")
        if self.steps is not None and self.steps.drops_missing:
            object.__setattr__(self, "skips_missing", True)  # and so in tasks, which are sent no steps

    @property
    def is_classifier(self) -> bool:
        """Whether each row has one of several classes."""
        return isinstance(self.targets, ClassTargets)

    @property
    def is_multilabel(self) -> bool:
        """Whether each row has any number of several labels."""
        return isinstance(self.targets, MultilabelTargets)

    @property
    def measure(self) -> str:
        """The name of the model's score."""
        if self.is_classifier or self.is_multilabel:
            return "accuracy"
        return "d2" if self.judge else "r2"

    @property
    def judge(self) -> str | None:
        """The name of the loss that judges predictions of numbers in the place of squares."""
        return None if self.loss is None else JUDGES.get(self.loss["loss"])

    @property
    def n_columns(self) -> int:
        return self.specification.n_columns

    @property
    def n_outputs(self) -> int:
        return self.coef.shape[1]

    @property
    def n_scores(self) -> int:
        """Number of radii of its intervals: one a target, or one for all classes."""
        return 1 if self.is_classifier or self.has_band else self.n_outputs

    @property
    def digest(self) -> str:
        """A hash of everything on which predictions depend; equal for a model and its stored copy."""
        # Neither report, steps, posterior nor intervals: they change no prediction, and `write_predictions`
        # goes on with what an earlier copy of the model wrote.
        arrays, metadata = coding_parts(self.scaling, self.targets)
        arrays |= {"coef": self.coef, "intercept": self.intercept}
        likelihood = None if self.likelihood is None else dict(self.likelihood)
        rest = [metadata, self.kind, self.dtype, self.y_is_1d, likelihood, self.specification.digest]
        if self.loss is not None:
            rest.append(dict(self.loss))
        # The map by its digest: its arrays can be a hundred megabytes.
        text = json.dumps([rest, exact_digest(arrays)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def decision(self, X: Any) -> Any:
        """f(X) of shape (n_rows, n_outputs), float64; X may be a scipy sparse matrix for some maps.

        Costs n·d·D multiply-adds and n·D cosines, in strips of at most 32 MB of features; of equispaced
        features, which are not made, a non-uniform FFT of up to four million rows at once.
        """
        return self._answer(X, "decision")

    def _decision(self, X: Any) -> np.ndarray:
        F = np.empty((X.shape[0], self.n_outputs))
        ready = self.specification.build(self.arrays)
        # Once for all strips: a Nyström map solves for the coefficients here, D² flops an output.
        coef = ready.values_coef(self.coef, np.dtype(self.dtype))
        for rows, strip in self._strips(X, self.specification.rows_at_once):
            F[rows] = ready.values(strip, coef, self.n_outputs)
        # Added in float64, after the products: a large intercept costs features of float32 no digits.
        return F + self.intercept

    def __repr__(self) -> str:
        return (
            f"<Model {self.kind}: {self.n_columns} columns → {self.specification.n_features} features → "
            f"{self.n_outputs} output(s)>"
        )

    def _repr_html_(self) -> str:
        shown = {
            "map": getattr(self.specification, "inner", self.specification).kind,
            "columns": _counted(self.column_names or (), self.n_columns),
            "features": number_text(self.specification.n_features),
            "outputs": number_text(self.n_outputs),
            "products in": self.dtype,
            "columns scaled": "no" if self.scaling.scale is None else "yes",
            "standard deviations": "no" if self.posterior is None else "yes",
            "intervals": "no" if self.intervals is None else str(self.intervals),
        }
        if isinstance(self.targets, ClassTargets):
            labels = self.targets.classes.tolist()
            shown["classes"] = _counted(labels, len(labels))
        if self.steps is not None:
            raw = self.steps.for_prediction().raw_names
            shown["raw columns"] = _counted(raw, len(raw))
        if self.report.get("kernel"):
            shown["kernel"] = kernel_text(self.report["kernel"])
        if "status" in self.report:
            shown["ended"] = self.report["status"].lower().replace("_", " ")
            shown["rows fitted"] = number_text(self.report["n_samples"])
        if self.report.get("source"):
            shown["rows from"] = self.report["source"]
        if self.report.get("cv_score") is not None:
            shown[self.report["criterion"]] = number_text(self.report["cv_score"])
        return html_card(f"Frozen {self.kind}", shown.items())

    def outside(self, X: np.ndarray) -> np.ndarray:
        """Rows outside the bounds of the model, bool of shape (n_rows,); most models have none."""
        complete, outside = self.complete_rows(X), self.specification.outside(X)
        return outside if complete is None else outside & complete

    def complete_rows(self, X: Any) -> np.ndarray | None:
        """Rows that hold no NaN, bool of shape (n_rows,); None for all, or where the model refuses NaN."""
        if not self.skips_missing or issparse(X) or X.dtype.kind != "f":
            return None
        complete = ~np.isnan(X).any(axis=1)
        return None if complete.all() else complete

    def _answer(self, X: Any, method: str, **options: str) -> Any:
        """A method's result for rows of any storage, lazily for those that are not in memory."""
        if isinstance(X, np.ndarray) or issparse(X):
            return self.of_block(X, method, **options)
        from distrff.model.rows import answer  # Dask, which a process that serves arrays does without

        return answer(self, X, method, **options)

    def of_block(self, X: Any, method: str, **options: str) -> Any:
        """A method's result for rows in memory.

        Where the model skips rows with NaN, their numbers are NaN and their labels of text None.
        """
        X, compute = self._checked(X), _METHODS[method]
        complete = self.complete_rows(X)
        if complete is None:
            return compute(self, X, **options)
        # NaN is a missing value here, and infinity still an error.
        if np.isinf(X).any():
            _check_finite(np.where(np.isnan(X), 0, X), 0)  # names the row by its number among all
        return _with_missing(compute(self, X[complete], **options), complete)

    def predict(self, X: Any, return_std: Any = False, *, outside: str = "nan", exposure: Any = None) -> Any:
        """Predicted targets, of shape (n_rows,) or (n_rows, n_outputs), or labels.

        Several labels of a row are 0 or 1 each, of shape (n_rows, n_outputs).

        With `return_std`, a pair of predictions and their standard deviations; see `std`. Outside the
        bounds of the model predictions are NaN, or with outside="error" refused by an InputError, as labels
        always are. If the fit dropped rows with missing values, such rows have NaN, labels of text None;
        labels that are numbers are refused by an InputError. With `exposure` they are means, not rates; see
        `KernelRegressor.predict`.
        """
        one_of("outside", outside, OUTSIDE)
        if self.kind == "KernelPCA":
            raise InputError("principal components have no predictions; take the coordinates by transform")
        if return_std:
            return self.predict(X, outside=outside), self.std(X, of=std_of(return_std))
        if exposure is not None:
            self.check_has_rates()
            from distrff.io.open import times_exposure, without_exposure  # with the readers of all storages

            X, e = without_exposure(X, exposure)
            return times_exposure(self.predict(X, outside=outside), e)
        return self._answer(X, "predict", outside=outside)

    def _predict(self, X: Any, outside: str) -> np.ndarray:
        # Labels have no value that says "none", so they are refused whatever `outside` says.
        if outside == "error" or not isinstance(self.targets, NumericTargets):
            self._check_inside(X)
        return self._predicted(self._decision(X))

    def _predicted(self, F: np.ndarray) -> np.ndarray:
        if not isinstance(self.targets, NumericTargets):
            labels = self.targets.decode(F)
            # Objects even where no row lacks a value: the dtype must not depend on the rows.
            return labels.astype(object) if self.skips_missing and labels.dtype.kind == "U" else labels
        F = self.of_link(F)
        return F[:, 0] if self.y_is_1d else F

    def losses(self, F: np.ndarray, Y: np.ndarray) -> np.ndarray:
        """Losses of values of f and targets of the same shape, by which the model is judged.

        Raises InputError for targets that counts or amounts cannot be.
        """
        if self.loss is None or not self.judge:
            return np.square(self.of_link(F) - Y)
        if not self.quantiles and ((Y < 0).any() or (self.loss["loss"] == "gamma" and not (Y > 0).all())):
            bound = "≥" if self.loss["loss"] == "poisson" else ">"
            raise InputError(f"targets of this model are {bound} 0, got {Y.min():g}; leave such rows out")
        from distrff.solvers.losses import losses_of_rows  # as above

        return losses_of_rows(self.loss, self.of_link(F) if self.quantiles else F, Y)

    def of_link(self, F: np.ndarray) -> np.ndarray:
        """Predictions from values of f: its exponential where f is a logarithm, quantiles in their order."""
        if self.loss is None:
            return F
        if self.is_rate:
            with np.errstate(over="ignore"):  # infinite where a model extrapolates so far
                return np.exp(F)
        return np.sort(F, axis=-1) if self.has_band else F

    def values(self, X: Any) -> np.ndarray:
        """Predictions of numbers for rows in memory, or decision values, of shape (n_rows, n_outputs)."""
        return self.of_link(self.decision(X))

    @property
    def is_rate(self) -> bool:
        """Whether f is the logarithm of a mean."""
        return self.loss is not None and self.loss["loss"] in ("poisson", "gamma")

    @property
    def quantiles(self) -> Sequence[float]:
        """Which quantiles of the target it predicts; () where it predicts others."""
        return () if self.loss is None else self.loss.get("quantile", ())

    @property
    def n_targets(self) -> int:
        """Columns of y."""
        return 1 if self.is_classifier or self.has_band else self.n_outputs

    @property
    def has_band(self) -> bool:
        """Whether it predicts several quantiles of one target."""
        return len(self.quantiles) > 1

    def predict_proba(self, X: Any) -> Any:
        """Probability of each class, of shape (n_rows, n_classes)."""
        self.check_has_probabilities()
        return self._answer(X, "predict_proba")

    def check_has_rates(self) -> None:
        """Raise InputError unless predictions are rates, of one unit of exposure."""
        if self.loss is None or self.loss["loss"] not in _RATES:
            raise InputError(
                "exposures are of counts and amounts: of models of the Poisson or the gamma loss"
            )

    def _predict_proba(self, X: Any) -> np.ndarray:
        return self.probabilities(self._decision(X))

    def check_has_probabilities(self) -> None:
        """Raise InputError unless the model has probabilities."""
        if self.likelihood is None:
            raise InputError(f"a {self.kind} has no probabilities; fit a KernelLikelihoodClassifier")

    def probabilities(self, F: np.ndarray) -> np.ndarray:
        """Probability of each class, (n_rows, n_classes), from decision values."""
        self.check_has_probabilities()
        assert self.likelihood is not None
        from distrff.solvers.losses import NOISES  # which ridge does without

        loss = NOISES[self.likelihood["noise"]](self.likelihood["sigma"])
        if self.n_outputs == 1:
            # Not 1 − p, which loses all digits of a small p: every Ψ here is symmetric, so Ψ(−f) is the other
            # class.
            return np.column_stack([loss.probability(-F[:, 0]), loss.probability(F[:, 0])])
        softmax = self.likelihood.get("multi_class") == "softmax"
        # Normalised in logarithms: of rows far from all classes each p underflows to 0, and 0/0 would be NaN.
        minus_log = -F / loss.clear_margin if softmax else loss.value(F, np.ones_like(F))
        P = np.exp(minus_log.min(axis=1, keepdims=True) - minus_log)
        return P / P.sum(axis=1, keepdims=True)

    def predict_interval(self, X: Any, coverage: float = 0.9, method: str = "auto") -> tuple[Any, Any]:
        """Lower and upper ends of intervals for new targets, each of the shape of `predict`.

        By "constant" f(X) ± r, with r the ⌈(n+1)·coverage⌉-th smallest |y − f(x)| of n rows, target by
        target; by "deviation" f(X) ± r·u(X), with u = √(a + std²/σ̂²) and r likewise of |y − f(x)|/u(x).
        Of a model of several quantiles there is "quantile" alone: from the first − r to the last + r, with r
        the likewise smallest distance of y outside these two, negative within (Romano, Patterson and Candès
        2019, "Conformalized quantile regression").
        By "residual" likewise with u(x) the exponential of a model of log |y − f|, if the estimator was asked
        for it. "auto" is the one of least interval score on the rows of the fit, where these were compared,
        else "deviation" where the model has such scores and standard deviations, which are stored where
        `include_std` asks for them. What is guaranteed after `distrff.calibrate`, and that nothing is
        without, see `KernelRidge.predict_interval`. Rows outside the bounds of the model have NaN; with too
        few rows or groups for the coverage the ends are infinite, with a DataWarning.

        Raises InputError for a model without intervals, or of classes, which have prediction sets, and for
        "deviation" where it lacks standard deviations or such scores.
        """
        intervals, method = self.checked_intervals("predict_interval"), self.interval_method(method)
        radius, floors = intervals.radius(coverage, method), intervals.floors
        return self.ends_of_intervals(X, self.predict(X), method, radius, floors)

    def interval_method(self, method: str = "auto") -> str:
        """How intervals are made, where `method` may be "auto"."""
        one_of("method", method, INTERVAL_METHODS)
        if self.has_band != (method == "quantile") and not (self.has_band and method == "auto"):
            if self.has_band:
                raise InputError(f"a model of several quantiles has intervals of these alone; use {_BY_BAND}")
            if method == "quantile":
                raise InputError(f"{_BY_BAND} is of models of several quantiles, and this one has none")
        if self.has_band:
            return "quantile"
        intervals = self.checked_intervals("predict_interval")
        has_scores, has_spread = bool(intervals.scaled), bool(intervals.residual) and self.spread is not None
        if method == "auto":
            # Where they were compared the best, else the one that takes account of the most.
            usable = {"deviation": has_scores and self.posterior is not None, "residual": has_spread}
            found = [one for one, can_be in (usable | {"constant": True}).items() if can_be]
            known = intervals.scores or dict.fromkeys(found, 0.0)
            return min(found, key=lambda one: known.get(one, np.inf))
        if method == "residual" and not has_spread:
            raise InputError(
                "the intervals of this model have no scores by the spread at x; ask the estimator for "
                "method='residual' once, and calibrate and save it after that"
            )
        if method == "deviation" and self.check_has_std() and not has_scores:
            raise InputError(
                "the intervals of this model have no scores in standard deviations; calibrate it again, or "
                "take method='constant'"
            )
        return method

    def ends_of_intervals(
        self, X: Any, prediction: Any, method: str, radius: Any, floors: tuple[float, ...]
    ) -> Any:
        """Ends of intervals around the predictions of rows, for radii and floors of `Intervals`."""
        if self.has_band:
            low, high = prediction[:, 0], prediction[:, -1]
            # A band that covers too much is narrowed, and where it is narrower than that to its middle.
            middle = (low + high) / 2
            return np.minimum(low - radius[0], middle), np.maximum(high + radius[0], middle)
        flat = prediction.ndim == 1
        half: Any = radius[0] if flat else np.asarray(radius)
        if method == "residual":
            half = half * self.spreads(X)
        elif method == "deviation":
            half = half * np.sqrt(self.relative_variance(X) + (floors[0] if flat else np.asarray(floors)))
        low = prediction - half
        if self.loss is not None and self.loss["loss"] in _RATES:  # which are not negative
            low = np.maximum(low, 0)
        return low, prediction + half

    def predict_set(self, X: Any, coverage: float = 0.9) -> Any:
        """Classes in each row's prediction set, bool of shape (n_rows, n_classes).

        Columns are in the order of the classes. A class is in the set if its score is at most the
        ⌈(n+1)·coverage⌉-th smallest score of the n rows' own classes; the score is 1 − p of a
        model with probabilities, else minus the margin. A set may be empty, or hold all classes; that of a
        row that lacks a value, where the fit dropped such rows, is empty. For what is guaranteed see
        `KernelSVC.predict_set`.

        Raises InputError for a model without intervals, or of numbers, or rows outside the bounds of the
        model.
        """
        return self.class_scores(X) <= self.checked_intervals("predict_set").radius(coverage)[0]

    def class_scores(self, X: Any) -> Any:
        """Misfit of each class to each row, shape (n_rows, n_classes); see `predict_set`.

        Raises InputError for rows outside the bounds of the model.
        """
        return self._answer(X, "class_scores")

    def _class_scores(self, X: Any) -> np.ndarray:
        self._check_inside(X)
        F = self._decision(X)
        return class_scores(F, None if self.likelihood is None else self.probabilities(F))

    def check_intervals_belong(self, method: str | None = None) -> None:
        """Raise InputError where "predict_interval", "predict_set", or either is not for such models."""
        if self.kind == "KernelPCA":
            raise InputError("principal components have no predictions, and so no intervals")
        if self.is_multilabel:
            raise InputError(
                "a model of several labels of a row has neither intervals nor prediction sets; fit one "
                "classifier a label for these"
            )
        own = "predict_set" if self.is_classifier else "predict_interval"
        if method not in (None, own):
            what = "classes" if self.is_classifier else "numbers"
            raise InputError(f"a {self.kind} predicts {what}; use {own} instead of {method}")

    def checked_intervals(self, method: str | None = None) -> Intervals:
        """Intervals for "predict_interval", "predict_set" or either; raises InputError if there are none."""
        self.check_intervals_belong(method)
        if self.intervals is None:
            raise InputError(
                "this model has no intervals; calibrate it on rows that the fit did not see, by "
                "distrff.calibrate(model, X, y) or distrff calibrate"
            )
        return self.intervals

    def judged(self, keys: Keys) -> tuple[Memberships, np.ndarray]:
        """The folds that judge some rows, and f(X) by each, of shape (n_pairs, n_outputs).

        Without folds this model judges all rows. Costs as much as `decision` of each row for each of its
        folds.
        """
        if self.fold_models is None:
            return Memberships(len(keys), np.zeros(len(keys), np.int64)), self.decision(keys.X)
        judges = self.fold_models.folds.held_out(keys)
        F = np.empty((len(judges.numbers), self.n_outputs))
        for fold in np.unique(judges.numbers):
            own = self.fold_models.of(self, fold).decision(chosen_rows(keys.X, judges.of(fold)))
            F[judges.numbers == fold] = own
        return judges, F

    def out_of_fold(self, keys: Keys, method: str) -> np.ndarray:
        """Results of "decision", "predict" or "predict_proba" by the models that did not see the rows.

        Of several folds the mean of f counts. A row that no fold holds out has NaN; labels are refused by an
        InputError.
        """
        (judges, values), F = self.judged(keys), np.zeros((len(keys), self.n_outputs))
        rows = np.arange(len(keys)) if judges.rows is None else judges.rows
        np.add.at(F, rows, values * judges.shares()[:, None])
        is_judged = judges.counts() > 0
        F[~is_judged] = np.nan
        if method != "predict":
            return F if method == "decision" else self.probabilities(F)
        if not isinstance(self.targets, NumericTargets):
            self._check_inside(keys.X)
            if not is_judged.all():
                raise InputError(
                    f"{np.count_nonzero(~is_judged)} of {len(F)} rows are held out by no fold, and labels "
                    f"have no NaN; take the values of decision_function"
                )
        return self._predicted(F)

    def light(self) -> Model:
        """The model without arrays that are sent to tasks apart, and without those of other methods."""
        # Reports and steps may have megabytes, and no task looks at them.
        none: dict[str, Any] = {"arrays": None, "posterior": None, "steps": None, "intervals": None}
        # What is left of the folds' models is the rule of the folds: some bytes.
        folds = self.fold_models and replace(
            self.fold_models, coef=np.empty((0, 0, 0)), intercept=np.empty((0, 0))
        )
        return replace(self, **none, report={}, fold_models=folds)

    def for_tasks(self, *, with_std: bool = False) -> tuple[Model, dict[str, np.ndarray]]:
        """The light model, and the arrays to send to each worker once, of which `restored` makes it whole.

        Workers derive the map's arrays of a model that was just fitted, as in the fit. `with_std` adds the
        posterior, of D² numbers.
        """
        posterior = {}
        if with_std:
            from distrff.solvers.posterior import posterior_arrays  # which few models have

            posterior = posterior_arrays(self.posterior)
        folds = self.fold_models
        of_folds = {} if folds is None else {"fold_coef": folds.coef, "fold_intercept": folds.intercept}
        return self.light(), named_to_send(self.arrays or {}) | posterior | of_folds

    def restored(self, arrays: Mapping[str, np.ndarray]) -> Model:
        """The model in a task, with the arrays that were sent."""
        folds = self.fold_models and replace(
            self.fold_models, coef=arrays["fold_coef"], intercept=arrays["fold_intercept"]
        )
        from distrff.solvers.posterior import posterior_of  # as above

        own = sent_arrays(arrays) or None
        return replace(self, arrays=own, posterior=posterior_of(arrays), fold_models=folds)

    def transform(self, X: Any) -> Any:
        """Z, the features of the scaled rows, of shape (n_rows, n_features) in the model's dtype.

        A scipy CSR matrix if the map is sparse. A model of principal components returns the rows' coordinates
        along these instead, of shape (n_rows, n_outputs) in float64.
        """
        if self.kind == "KernelPCA":
            return self.decision(X)
        return self._answer(X, "transform")

    def _transform(self, X: Any) -> Any:
        ready = self.specification.build(self.arrays)
        if Trait.SPARSE in self.specification.traits:
            # How many entries rows have is known only once they are made.
            return vstack([ready.apply(strip) for _, strip in self._strips(X)], format="csr")
        Z = np.empty((X.shape[0], self.specification.n_features), self.dtype)
        for rows, strip in self._strips(X):
            Z[rows] = ready.apply(strip)
        return Z

    def _check_inside(self, X: Any) -> None:
        if issparse(X):
            return  # maps with bounds take no sparse rows
        outside = self.outside(np.asarray(X))
        if outside.any():
            first = int(np.argmax(outside))
            raise InputError(
                f"{np.count_nonzero(outside)} of {len(outside)} rows are outside the bounds of the model, "
                f"the first is row {first}: {np.asarray(X)[first].tolist()}; drop these rows, or fit with "
                f"wider bounds"
            )

    def std(self, X: Any, of: str = "f") -> Any:
        """Standard deviation, of the shape of `predict`.

        of="f" is that of f(X); of="observation" that of a new observation of weight 1,
        √(std² + σ̂²) with the estimate σ̂² of the noise.
        """
        # Before anything lazy is made: its tasks would raise only when somebody computes them.
        one_of("of", of, STD_OF)
        self.check_has_std()
        return self._answer(X, "std", of=of)

    def sample(self, X: Any, n_draws: int = 1, *, random_state: int | None = 0) -> Any:
        """Functions drawn from the posterior at rows; see `KernelRidge.sample`."""
        F = self.drawn(n_draws, random_state).decision(X)
        if self.y_is_1d:
            return F
        return np.stack([F[:, j :: self.n_outputs] for j in range(self.n_outputs)], axis=1)

    def drawn(self, n_draws: int, random_state: int | None) -> Model:
        """A model whose outputs are drawn functions, all targets of a draw side by side."""
        check_count("n_draws", n_draws)
        seed, ready = resolve_seed(random_state), self.specification.build(self.arrays)
        coef, intercept = self.check_has_std().draws(ready, n_draws, seed)
        coef += np.tile(self.coef, n_draws)
        # Without what belongs to the model that was fitted.
        rest: dict[str, Any] = {"posterior": None, "intervals": None, "fold_models": None}
        return replace(self, coef=coef, intercept=intercept + np.tile(self.intercept, n_draws), **rest)

    def _std(self, X: Any, of: str) -> np.ndarray:
        posterior = self.check_has_std()
        S = np.empty((X.shape[0], self.n_outputs))
        ready = self.specification.build(self.arrays)
        n_rows = self.specification.rows_at_once if posterior.by_transforms else 0
        for rows, strip in self._strips(X, n_rows):
            S[rows] = posterior.std_at(ready, strip)
        return self.finished_std(S, of)

    def finished_std(self, S: np.ndarray, of: str) -> np.ndarray:
        """Deviations of f or of an observation, from those of f with one axis of targets."""
        if of == "observation":
            # Var(y) = Var f + σ²: the noise of a new row is independent of the rows of the fit.
            S = np.sqrt(np.square(S) + self.check_has_std().noise)
        return S[..., 0] if self.y_is_1d else S

    def spreads(self, X: Any) -> Any:
        """exp of the model of log |y − f|, of the shape of `predict`."""
        assert self.spread is not None
        coef, intercept = self.spread
        rest: dict[str, Any] = {"posterior": None, "intervals": None, "fold_models": None, "spread": None}
        logs = replace(self, coef=coef, intercept=intercept, loss=None, **rest).predict(X)
        return np.exp(np.clip(logs, -_LARGEST_LOG, _LARGEST_LOG))

    def relative_variance(self, X: Any) -> Any:
        """std²/σ̂², of the shape of `predict`."""
        return np.square(replace(self, posterior=self.check_has_std().of_unit_noise()).std(X))

    def check_has_std(self) -> Posterior:
        """The posterior; raises InputError for a model without standard deviations."""
        if self.posterior is not None:
            return self.posterior
        if self.kind.startswith("KernelRidge"):
            raise InputError(
                "this model was saved without its posterior; fit again, and save it with include_std=True"
            )
        raise InputError(f"a {self.kind} has no standard deviations; ridge models have")

    def _strips(self, X: np.ndarray, n_rows: int = 0) -> Iterator[tuple[slice, np.ndarray]]:
        """Slices of so many rows, and the scaled rows; 0 is as many as have features of 32 MB."""
        itemsize = np.dtype(self.dtype).itemsize
        n_rows = n_rows or max(16, _STRIP_BYTES // (self.specification.row_entries * itemsize))
        for start in range(0, X.shape[0], n_rows):
            rows = slice(start, min(start + n_rows, X.shape[0]))
            # Strip by strip, while the rows are in the cache for the map anyway.
            _check_finite(X[rows], start)
            yield rows, self.scaling.apply(X[rows], np.dtype(self.dtype))

    def _checked(self, X: Any) -> Any:
        if not issparse(X):
            X = np.asarray(X)
            if X.dtype.kind == "O":  # of numbers, which a fit takes as well
                # Frames of mixed columns come as objects.
                # What is no number stays an object, and is refused below by its dtype.
                with suppress(TypeError, ValueError):
                    X = X.astype(np.float64)
        else:
            self.specification.check_takes_sparse("give dense rows")
            X = X.tocsr()
        if X.dtype.kind not in "biuf":
            raise InputTypeError(f"X must hold numbers, got dtype {X.dtype}; encode or drop such columns")
        if X.ndim != 2 or X.shape[1] != self.n_columns:
            raise InputError(f"X must have shape (n_samples, {self.n_columns}), got {X.shape}")
        return X


_METHODS: dict[str, Callable[..., Any]] = {
    "predict": Model._predict,
    "decision": Model._decision,
    "predict_proba": Model._predict_proba,
    "class_scores": Model._class_scores,
    "std": Model._std,
    "transform": Model._transform,
}
"""Results by the names of their methods, of rows in memory that are checked and hold no NaN."""


def _counted(names: Sequence[Any], n: int) -> str:
    return f"{number_text(n)}: {listed(names)}" if names else number_text(n)


def _check_finite(X: Any, start: int) -> None:
    if X.dtype.kind == "f" and not np.isfinite(X.data if issparse(X) else X).all():
        # Entries of CSR know no place at once; writing out one strip that is refused anyway is cheap.
        row, column = np.argwhere(~np.isfinite(dense_rows(X)))[0]
        raise NonFiniteError(
            f"X contains NaN or infinity in row {start + row}, column {column}; drop or fill such rows"
        )


def _with_missing(found: np.ndarray, complete: np.ndarray) -> np.ndarray:
    """Results of the complete rows, with missing ones between them."""
    if issparse(found):
        raise InputError(
            "some rows lack a value, and features of random binning, which are sparse, have none to say "
            "so; drop these rows"
        )
    if found.dtype.kind not in "fO":  # of a block of a dask array, so without numbers of rows
        raise InputError(
            f"some rows lack a value, and labels of {found.dtype} have no missing value; drop these "
            f"rows, or write their results to Parquet, where they are null"
        )
    missing = None if found.dtype == object else np.nan
    results = np.full((len(complete), *found.shape[1:]), missing, found.dtype)
    results[complete] = found
    return results


# Models that left out one fold of the rows each: predictions of rows by a model that did not see them.


@dataclass(frozen=True, eq=False)
class FoldModels:
    """The coefficients, on the map of the final model, of the models that did not see one of the folds each.

    Map, widths, scaling and penalty are those of the final model, which all rows chose: only the
    coefficients did not see a fold. Cross-validation of the penalty has the same models.
    """

    folds: Folds
    coef: np.ndarray  # (n_folds, n_features, n_outputs), in the targets' own units
    intercept: np.ndarray  # (n_folds, n_outputs)

    def of(self, model: Model, fold: int) -> Model:
        """The model that did not see a fold."""
        return replace(model, coef=self.coef[fold], intercept=self.intercept[fold])
