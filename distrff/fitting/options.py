"""The parameters of estimators, validated at fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone

from distrff.engine.reduction import light_segmentation_of_features
from distrff.errors import InputError, InputTypeError
from distrff.features.base import SPARSE_REMEDY, FeatureMap
from distrff.features.equispaced import EquispacedFourierFeatures
from distrff.features.search.candidates import AutoFeatures
from distrff.fitting.cost import MAX_DIRECTIONS, can_model, max_model_rows
from distrff.io.dataset import Dataset
from distrff.preprocessing.coding import ClassTargets, Targets
from distrff.preprocessing.folds import FOLD_RULES
from distrff.solvers.losses import Loss, Squared, mean_curvature
from distrff.solvers.ridge import N_DEFAULT_ALPHAS, gcv_may_overfit
from distrff.utils.random import resolve_seed
from distrff.utils.validation import check_count, float_array, is_number, one_of, positive

DTYPES = ("auto", "float32", "float64")
SCALES = ("auto", "standard", "none")
MAX_SWEEPS = 200
_MAX_FACTORS = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class FitOptions:
    """Parameters of any fit, validated as far as that is possible without data."""

    features: FeatureMap  # not fitted
    target_kind: str  # "numeric", "classes", "multilabel" or "none"
    class_weight: Any = None  # None, "balanced" or a dict
    classes: np.ndarray | None = None  # sorted labels, where later rows may have others than the first
    n_folds: int = 1  # 1 where nothing is chosen by folds
    fit_intercept: bool = True
    scale: str = "none"
    dtype: str = "auto"
    keep_features: str | bool = False
    """Whether light passes keep features in the workers' memory; "auto" for those that there is room for."""
    seed: int

    samples_gram: ClassVar[bool] = False
    """Whether the Gram of a sample is enough."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """Solvers as a plan counts them, in the order in which they are tried."""
        return ("gram",)

    @property
    def may_take_sums(self) -> bool:
        """Whether a map that chooses itself may choose equispaced features, for their sums."""
        return False

    def requested_dtype(self, n_rows: int) -> str:
        """Return the dtype of the features; "auto" follows the columns."""
        return self.dtype

    @property
    def min_alpha(self) -> float | None:
        """The smallest ridge penalty, which must exceed the rounding of the Gram; None without one."""
        return None

    @property
    def penalty(self) -> float | None:
        """The alpha of ridge that is given, or that stands for what is given; None where it is chosen."""
        return None

    def for_dataset(self, dataset: Dataset) -> Self:
        """Return the options with the map that rows like these leave to choose from."""
        if self.features is None:  # of the map only the specification is known
            return self
        features = self.features.for_rows(
            dataset.n_rows,
            dataset.n_columns,
            is_sparse=dataset.is_sparse,
            has_targets=self.target_kind != "none",
            by_sums=self.may_take_sums,
        )
        return replace(self, features=features)

    def check_dataset(self, dataset: Dataset) -> None:
        """Raise InputError, before any pass, for rows or columns that these parameters cannot fit."""

    def check_targets(self, targets: Targets) -> None:
        """Raise InputError, after the first pass, for targets that these parameters cannot fit."""

    def work(self, n_rows: int, n_features: int, n_outputs: int) -> dict[str, Any]:
        """Return the parameters of a `Size` that these options decide."""
        return {"n_folds": self.n_folds, "n_alphas": 1, "n_light_columns": n_outputs}


@dataclass(frozen=True, eq=False, kw_only=True)
class SolverOptions(FitOptions):
    """Parameters of models with a choice of solvers.

    `tol` is the relative residual of conjugate gradients, the least relative fall of an epoch of SGD, and for
    other solvers the relative duality gap, or of softmax the relative gradient.
    """

    fold_by: str  # "hash" or "contiguous"
    solver: str  # as it was given
    tol: float
    max_sweeps: int  # passes of the solver, for one value of the penalty

    @property
    def goes_on(self) -> bool:
        """Whether the solver takes a point to start from."""
        return True


NO_GCV = (
    "alpha='gcv' needs a Gram that is written out, and equispaced features have its sums alone; use "
    "alpha='cv', which is exact for them"
)


@dataclass(frozen=True, eq=False, kw_only=True)
class RidgeOptions(SolverOptions):
    """Parameters of a ridge model."""

    search: str | None  # how alpha is chosen, "cv" or "gcv"; None for a given one
    alpha: np.ndarray | None  # (1,) or (n_targets,)
    alphas: np.ndarray | None  # grid, ascending; None for the default one
    grows: bool = False  # whether later calls may bring the rows that a search needs

    @property
    def fold_rule(self) -> str:
        """How rows are assigned to folds. For "gcv" of rows that come in several calls one in five is held
        out, as a fit does of few rows: how many they will be is not known."""
        return "one held out" if self.grows and self.search == "gcv" else self.fold_by

    @property
    def goes_on(self) -> bool:
        return not isinstance(self.features, EquispacedFourierFeatures) and (
            self.must_be_cg or self.solver == "sgd"
        )

    @property
    def may_take_sums(self) -> bool:
        return self.solver == "auto" and self.search == "cv"

    @property
    def penalty(self) -> float | None:
        return None if self.alpha is None else float(self.alpha.mean())

    @property
    def candidates(self) -> tuple[str, ...]:
        """The given solver. "auto" is the Gram, or conjugate gradients where that does not fit and alpha is
        given, and always for sparse features. On equispaced features both are the Toeplitz system."""
        if isinstance(self.features, EquispacedFourierFeatures) and self.solver in ("auto", "cg"):
            return ("toeplitz",)
        if self.solver == "sgd":
            return ("sgd",)
        if self.must_be_cg:
            return ("cg",)
        return ("gram", "cg") if self.solver == "auto" and self.search is None else ("gram",)

    @property
    def min_alpha(self) -> float | None:
        # A grid is cut at the floor; only a whole one below it changes the dtype.
        if self.search is not None:
            return None if self.alphas is None else float(self.alphas.max())
        return None if self.alpha is None else float(self.alpha.min())

    def for_dataset(self, dataset: Dataset) -> Self:
        options = super().for_dataset(dataset)
        is_multilabel = self.target_kind == "classes" and dataset.n_targets > 1
        return replace(options, target_kind="multilabel") if is_multilabel else options

    def check_dataset(self, dataset: Dataset) -> None:
        if self.target_kind == "multilabel" and self.class_weight is not None:
            raise InputError(
                f"class_weight={self.class_weight!r} is for one column of class labels; several labels of a "
                f"row share its weight: give sample_weight"
            )
        if self.grows and self.target_kind == "multilabel" and self.classes is not None:
            raise InputError("classes are for one column of class labels; several labels are columns of y")
        if self.search is not None and not self.grows:
            check_rows_of_search("alpha", self.search, max(2, self.n_folds), dataset.n_rows)

    def check_targets(self, targets: Targets) -> None:
        if self.alpha is not None and len(self.alpha) not in (1, targets.n_outputs):
            raise InputError(
                f"alpha has {len(self.alpha)} values, but there are {targets.n_outputs} targets; "
                f"give one, or one each"
            )

    def work(self, n_rows: int, n_features: int, n_outputs: int) -> dict[str, Any]:
        holds_one_out = self.search == "gcv" and gcv_may_overfit(n_features, n_rows)
        n_directions = min(MAX_DIRECTIONS, n_outputs * self.n_folds)
        n_grid = N_DEFAULT_ALPHAS if self.alphas is None else len(self.alphas)
        return {
            "n_folds": 2 if holds_one_out else self.n_folds,
            "n_paths": int(holds_one_out),
            "n_alphas": 1 if self.search is None else n_grid,
            "n_factors": 0 if self.alpha is None else len(factor_levels(self.alpha)),
            "n_light_columns": n_directions if self.search == "cv" else n_outputs,
        }

    @property
    def must_be_cg(self) -> bool:
        """Whether conjugate gradients are given, or the only solver, as for sparse features."""
        return self.solver == "cg" or (self.solver == "auto" and self.features.sparse_entries > 0)


def growing_options(estimator: Any) -> RidgeOptions:
    """Parameters of a ridge estimator whose rows come in several calls, validated for that."""
    options = ridge_options(estimator)
    is_equispaced = isinstance(options.features, EquispacedFourierFeatures)
    if options.features.sparse_entries:
        raise InputError(
            "partial_fit adds Grams, and features of random binning are too many for one; use "
            "FourierFeatures, NystroemFeatures or AutoFeatures, or fit all rows at once"
        )
    if options.solver == "sgd" or (options.solver == "cg" and not is_equispaced):
        raise InputError(
            f"partial_fit adds Grams, and solver={options.solver!r} forms none; use solver='gram' or 'auto', "
            f"or fit all rows at once"
        )
    if isinstance(options.class_weight, str):
        raise InputError(
            f"class_weight={options.class_weight!r} follows from all rows, which partial_fit does not know; "
            f"give a dict of label: weight, or fit all rows at once"
        )
    if options.n_folds > 1 and options.fold_by == "contiguous":
        raise InputError(
            "fold_by='contiguous' needs the number of all rows, which partial_fit does not know; use "
            "fold_by='hash', a number for alpha, or fit all rows at once"
        )
    return replace(
        options,
        features=options.features.for_gram(),
        solver=options.solver if is_equispaced else "gram",
        n_folds=2 if options.search == "gcv" else options.n_folds,
        grows=True,
    )


def factor_levels(alpha: np.ndarray) -> np.ndarray:
    """Return the penalties that get a factor: each one, or three over their range where they are more.

    Where alpha is off by a factor a, the condition number that conjugate gradients see grows by at most a.
    """
    different = np.unique(alpha)
    if len(different) <= _MAX_FACTORS:
        return different
    return np.geomspace(different[0], different[-1], _MAX_FACTORS)


def check_rows_of_search(parameter: str, search: str, min_rows: int, n_rows: int) -> None:
    """Raise InputError for fewer rows than a search for a penalty takes."""
    if n_rows < min_rows:
        raise InputError(
            f"{parameter}={search!r} needs at least {min_rows} rows here, but there is only n_samples = "
            f"{n_rows}; give more rows{', fewer folds (cv=…)' if search == 'cv' else ''}, or a "
            f"number ({parameter}=…)"
        )


def ridge_options(estimator: Any) -> RidgeOptions:
    """Return the validated parameters of a ridge estimator.

    Raises InputError for the first parameter that no data could make right.
    """
    search, alpha, solver = None, None, estimator.solver
    if isinstance(estimator.alpha, str):
        one_of("alpha", estimator.alpha, ("cv", "gcv"))
        search = estimator.alpha
    else:
        alpha = _positive_numbers("alpha", estimator.alpha)
    one_of("solver", solver, ("auto", "gram", "cg", "sgd"))
    is_sparse = _has_sparse_features(estimator)
    is_equispaced = isinstance(estimator.features, EquispacedFourierFeatures)
    chooses = is_equispaced and solver in ("auto", "cg") and estimator.features.chooses
    if is_equispaced and search == "gcv" and solver != "gram":
        raise InputError(NO_GCV)
    if is_sparse and (solver == "gram" or search == "gcv"):
        raise InputError(
            f"{'alpha=' + repr(search) if solver != 'gram' else 'solver=' + repr(solver)} needs a Gram, and "
            f"features of random binning are too many for one; use solver='auto' or 'cg' with a number for "
            f"alpha or alpha='cv', or 'sgd' with a number, or FourierFeatures or NystroemFeatures"
        )
    has_cg_search = is_sparse or is_equispaced
    if search is not None and (solver == "sgd" or (solver == "cg" and not has_cg_search)):
        raise InputError(
            f"solver={solver!r} solves for a given alpha and needs a number, got alpha={search!r}; "
            f"give one, or choose alpha by solver={'cg' if is_sparse else 'gram'!r}"
        )
    if solver == "sgd" and alpha is not None and len(alpha) > 1:
        raise InputError(
            "solver='sgd' needs one alpha for all targets, got several; use solver='cg' or 'gram'"
        )
    return RidgeOptions(
        **_solver_options(
            estimator,
            needs_gram=not is_sparse and (solver == "gram" or search == "gcv"),
            takes_sums=solver in ("auto", "cg"),
        ),
        solver=solver,
        search=search,
        alpha=alpha,
        alphas=_ascending_grid("alphas", estimator.alphas),
        n_folds=checked_folds(estimator.cv) if search == "cv" or chooses else 1,
    )


def _has_sparse_features(estimator: Any) -> bool:
    return isinstance(estimator.features, FeatureMap) and estimator.features.sparse_entries > 0


def _check_written(features: EquispacedFourierFeatures) -> None:
    """Raise InputError for equispaced features that a model would write out, in their default number."""
    if features.n_components is None or features.chosen_kernel.has_undecided_smoothness:
        raise InputError(
            "EquispacedFourierFeatures are for ridge with solver='auto', which makes none of them; another "
            "model writes them out, for which n_components and the smoothness nu must be numbers; or use "
            "FourierFeatures"
        )


def map_options(estimator: Any, *, needs_gram: bool = False, takes_sums: bool = False) -> dict[str, Any]:
    """Return the validated parameters that every estimator has.

    With `needs_gram` a map that chooses itself does not choose sparse features. With `takes_sums` equispaced
    features are not written out.
    """
    one_of("dtype", estimator.dtype, DTYPES)
    one_of("scale", estimator.scale, SCALES)
    if isinstance(estimator.features, EquispacedFourierFeatures) and not takes_sums:
        _check_written(estimator.features)
    features = default_map() if estimator.features is None else clone(checked_map(estimator.features))
    features = features.for_gram() if needs_gram else features
    return {
        "target_kind": estimator._target_kind,
        "features": features,
        "scale": estimator.scale,
        "dtype": estimator.dtype,
        "seed": resolve_seed(estimator.random_state),
    }


def default_map() -> FeatureMap:
    """Return the map of estimators that are given none."""
    return AutoFeatures()


def _solver_options(estimator: Any, *, needs_gram: bool, takes_sums: bool = False) -> dict[str, Any]:
    """Return the validated parameters of `SolverOptions`, but for the solver."""
    one_of("fold_by", estimator.fold_by, FOLD_RULES)
    if not isinstance(estimator.fit_intercept, bool | np.bool_):
        raise InputError(f"fit_intercept must be True or False, got {estimator.fit_intercept!r}")
    positive("tol", estimator.tol)
    sweeps = estimator.max_sweeps
    check_count("max_sweeps", sweeps, or_none=True)
    return map_options(estimator, needs_gram=needs_gram, takes_sums=takes_sums) | {
        "class_weight": getattr(estimator, "class_weight", None),
        "fit_intercept": bool(estimator.fit_intercept),
        "fold_by": estimator.fold_by,
        "keep_features": _kept_features(estimator.keep_features),
        "tol": float(estimator.tol),
        "max_sweeps": MAX_SWEEPS if sweeps is None else int(sweeps),
    }


def _kept_features(value: Any) -> str | bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, str) and value == "auto":
        return value
    raise InputError(f"keep_features must be 'auto', True or False, got {value!r}")


def is_infinite(value: Any) -> bool:
    return is_number(value) and value == np.inf


def checked_map(features: Any) -> FeatureMap:
    """Return the map if a model can be fitted on its features, or raise InputError."""
    if not isinstance(features, FeatureMap):
        raise InputError(
            f"features must be a distrff feature map such as FourierFeatures(Gaussian(1.0), 1024), "
            f"got {features!r}"
        )
    features.check_parameters()
    if getattr(features, "form", None) == "complex":
        raise InputError(
            "form='complex' is for transform only; use form='cos_sin', "
            "which is the same model with real weights"
        )
    return features


def check_sparse_rows(is_sparse: bool, features: Any, scale: str) -> None:
    """Raise InputError for sparse rows where the map takes none, or scaling would write them out."""
    if not is_sparse:
        return
    if not takes_sparse_rows(features):
        raise InputTypeError(
            f"X is sparse, and {type(features).__name__} takes no sparse rows with these parameters; "
            f"{SPARSE_REMEDY}"
        )
    if scale == "standard":
        raise InputError(
            "scale='standard' subtracts means, which would write sparse rows out; use scale='auto', which "
            "divides the columns of sparse rows by their root mean squares, or scale='none'"
        )


def takes_sparse_rows(features: Any) -> bool:
    """Return whether models of this map, None for the default one, take sparse rows."""
    features = default_map() if features is None else features
    return bool(getattr(features, "takes_sparse_rows", False))


def _ascending_grid(name: str, values: Any) -> np.ndarray | None:
    return None if values is None else np.unique(_positive_numbers(name, values))


def _positive_numbers(name: str, given: Any) -> np.ndarray:
    is_scalar = is_number(given) or (isinstance(given, np.ndarray) and given.ndim == 0)
    values = [given] if is_scalar else given
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        words = " or a list of them" if name == "Cs" else ", a list of them, 'cv' or 'gcv'"
        raise InputError(f"{name} must be a positive number{words}, got {given!r}")
    try:
        array = float_array(values)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must hold numbers, got {given!r}") from error
    if not array.size:
        raise InputError(f"{name} must hold at least one number, got {given!r}")
    if array.ndim != 1 or not (np.isfinite(array) & (array > 0)).all():
        hint = "; for no penalty use a very small value, e.g. 1e-9 times the number of rows"
        hint = "" if name == "Cs" else hint
        raise InputError(f"{name} must be positive and finite, got {given!r}{hint}")
    return array


def checked_folds(cv: Any) -> int:
    """Return the number of folds, or raise InputError."""
    if not is_number(cv) or not isinstance(cv, Integral) or cv < 2:
        raise InputError(f"cv must be an integer of at least 2, the number of folds, got {cv!r}")
    return int(cv)


# The parameters of a model with a margin loss.

_PRESUMED_SWEEPS, _PRESUMED_GRID = 10, 6
_MAX_LOOKING_AHEAD = 4
_MIN_TOL_IN_FLOAT32 = 1e-4
_FEW_ROWS = 10_000
_MAX_C = 1e50
# On 4096 rows and 1024 features a search of C takes .4 of the time of light sweeps, one C .4 with five
# classes and .8 with two. Memory sets the limit: the Gram of the rows grows with their square.
_MAX_DUAL_ROWS = 2**12


@dataclass(frozen=True, eq=False, kw_only=True)
class MarginOptions(SolverOptions):
    """Parameters of a margin model."""

    C: float | None  # infinite for the hard margin, None where it is to be chosen by folds
    Cs: np.ndarray | None  # grid for that, ascending; None for the default one
    loss: Loss
    loss_name: str  # as the user named it
    softmax: bool  # whether all classes share one loss
    is_begun_from: bool = False  # whether later fits go on from the model

    samples_gram = True

    @property
    def candidates(self) -> tuple[str, ...]:
        """The given solver. "auto" has the Gram of a sample, or SGD where that does not fit in memory.
        Sparse features have light passes only, which are counted as those of conjugate gradients."""
        if self.solver == "sgd":
            return ("sgd",)
        if self.features.sparse_entries:
            return ("cg",)
        by_sgd = self.solver == "auto" and self.C is not None and not self.is_hard and not self.softmax
        return ("gram", "sgd") if by_sgd else ("gram",)

    def check_dataset(self, dataset: Dataset) -> None:
        if self.C is None:
            check_rows_of_search("C", "cv", self.n_folds, dataset.n_rows)

    def check_targets(self, targets: Targets) -> None:
        """Refuse a class of no weight: without a penalty its intercept has no optimum."""
        assert isinstance(targets, ClassTargets)
        if targets.class_weight is not None and not targets.class_weight.all():
            label = targets.classes[targets.class_weight == 0].tolist()[0]
            raise InputError(f"class_weight is 0 for the class {label!r}; leave its rows out instead")

    @property
    def direct_solver(self) -> str:
        """The solver that closes the gap of this loss."""
        return "lbfgs" if np.isfinite(self.loss.curvature) else "smoothed"

    def requested_dtype(self, n_rows: int) -> str:
        """Return the dtype of the features; "auto" follows the columns unless one of two rules decides.

        float64 for hard margins, which rounding must not violate. float32 for columns that are scaled
        before they are cast, if `tol` is far above its rounding: sweeps then take half as long. The mean of
        a scaled column is 0, or where most entries are 0 at most about its deviation. ``scale="auto"`` leaves
        few rows as they are: their sweeps are short, and in float32 the values of a row would differ with the
        rows beside it by as much as scikit-learn's checks refuse.
        """
        if self.dtype != "auto":
            return self.dtype
        if self.is_hard:
            return "float64"
        scaled = self.scale == "standard" or (self.scale == "auto" and n_rows > _FEW_ROWS)
        return "float32" if scaled and self.tol >= _MIN_TOL_IN_FLOAT32 else "auto"

    @property
    def penalty(self) -> float | None:
        # Small models have the squares κ/2·(1 − m)² in the place of the loss, with its mean curvature κ
        # between the margins. With a larger κ they do well at widths for which C is too small, and the model
        # itself then misses a rare class. For one row in a hundred, logistic models had errors of .0062 with
        # κ = 2, which is right for squares alone, and .0024 with κ = 1/4 (means of 14 searches). With noise
        # hinge models had .0178 with κ = 2 and .0166 with ½. On digits, breast_cancer, two moons and covtype
        # there was no difference beyond chance.
        if self.C is None or self.is_hard:
            return None
        return 1 / (self.C * mean_curvature(self.loss))

    @property
    def is_hard(self) -> bool:
        """Whether no row may be on the wrong side of its margin."""
        return self.C is not None and bool(np.isinf(self.C))

    def shares_loss(self, targets: Targets) -> bool:
        """Return whether all classes share one loss; two classes have one problem, hence one loss, anyway."""
        return self.softmax and targets.n_outputs > 1

    def looks_ahead(self, n_problems: int) -> bool:
        """Return whether each sweep evaluates every problem at two epsilons of its rounded hinge.

        It does for few problems: their thin products are a small part of a sweep.
        """
        return self.direct_solver == "smoothed" and n_problems <= _MAX_LOOKING_AHEAD

    def work(self, n_rows: int, n_features: int, n_outputs: int) -> dict[str, Any]:
        n_problems, entries = n_outputs * self.n_folds, self.features.sparse_entries
        n_grid = _PRESUMED_GRID if self.Cs is None else len(self.Cs)
        models = self.direct_solver == "smoothed" and can_model(n_features, entries) and not self.is_hard
        is_dual = models and self.solver == "auto" and not entries and _are_few(n_rows, n_features)
        has_hessians = self.direct_solver == "lbfgs" and not (entries or self.is_hard or self.softmax)
        return super().work(n_rows, n_features, n_outputs) | {
            "n_folds": 1,  # of the Gram, which only preconditions
            "n_problems": n_problems,
            "n_light_columns": n_problems * (2 if self.looks_ahead(n_problems) else 1),
            "n_light_sweeps": _PRESUMED_SWEEPS * (1 if self.C is not None else 1 + n_grid),
            "model_rows": max_model_rows(n_features, entries) if models else 0,
            "dual_rows": n_rows if is_dual else 0,
            "n_hessians": n_outputs if has_hessians else 0,
        }


def _are_few(n_rows: int, n_features: int) -> bool:
    """Return whether a hinge is solved on the Gram of the rows: where they are few, in one segment."""
    return n_rows <= _MAX_DUAL_ROWS and light_segmentation_of_features(n_rows, n_features, 1).n_segments == 1


def margin_options(
    estimator: Any, loss: Loss, description: str, *, hard_margin: bool = False
) -> MarginOptions:
    """Return the validated parameters of a margin model.

    `description` is how messages name the loss; `hard_margin` says whether C may be infinite.

    Raises InputError for the first parameter that no data could make right.
    """
    if is_infinite(estimator.C) and _has_sparse_features(estimator):
        raise InputError(
            f"C={estimator.C!r} needs dense features, and those of random binning are sparse; use a finite C "
            f"(solver='smoothed' for the hinge, 'lbfgs' for other losses, 'sgd' or 'auto' for any), or "
            f"FourierFeatures or NystroemFeatures"
        )
    searched = isinstance(estimator.C, str)
    if searched and estimator.C != "cv":
        raise InputError(f"C must be a positive number or 'cv', got {estimator.C!r}")
    if not searched and not (hard_margin and is_infinite(estimator.C)):
        positive("C", estimator.C)
        _check_size("C", float(estimator.C), hard_margin)
    Cs = _ascending_grid("Cs", estimator.Cs)
    for C in [] if Cs is None else (Cs[0], Cs[-1]):
        _check_size("Cs", float(C), hard_margin=False)
    return MarginOptions(
        C=None if searched else float(estimator.C),
        Cs=Cs,
        n_folds=checked_folds(estimator.cv) if searched else 1,
        loss=loss,
        loss_name=getattr(estimator, "noise", None) or estimator.loss,
        softmax=getattr(estimator, "multi_class", "ovr") == "softmax",
        is_begun_from=estimator.warm_start and not searched,
        solver=_margin_solver(estimator, loss, description),
        **_solver_options(estimator, needs_gram=is_infinite(estimator.C)),
    )


def margin_options_of_ridge(options: RidgeOptions) -> MarginOptions:
    """Return ridge of one penalty as the margin classifier of the squared loss with C = 1/(2·alpha)."""
    assert options.alpha is not None
    return MarginOptions(
        **{f.name: getattr(options, f.name) for f in fields(SolverOptions)},
        C=1 / (2 * float(options.alpha[0])),
        Cs=None,
        loss=Squared(),
        loss_name="squared",
        softmax=False,
    )


def _margin_solver(estimator: Any, loss: Loss, description: str) -> str:
    """Return the solver, if it can minimise the loss that `description` names."""
    solver = estimator.solver
    one_of("solver", solver, ("auto", "gram", "cg", "lbfgs", "smoothed", "sgd"))
    if solver == "sgd" and getattr(estimator, "multi_class", "ovr") == "softmax":
        raise InputError("solver='sgd' needs one loss a class, and multi_class='softmax' has one for all")
    if solver == "sgd" and (estimator.C == "cv" or is_infinite(estimator.C)):
        raise InputError(
            f"solver='sgd' needs a finite number for C, got C={estimator.C!r}; use solver='auto'"
        )
    fitting = "lbfgs" if np.isfinite(loss.curvature) else "smoothed"
    if solver in ("auto", "sgd", fitting):
        return solver
    needs = {
        "gram": "a squared loss, whose optimum follows from the Gram alone",
        "cg": "a squared loss, whose optimum solves linear equations",
        "lbfgs": "a loss with a continuous slope",
        "smoothed": "a loss whose slope jumps",
    }[solver]
    raise InputError(
        f"solver={solver!r} needs {needs}, which {description} is not; use solver={fitting!r} or 'auto'"
    )


def _check_size(name: str, C: float, hard_margin: bool) -> None:
    """Raise InputError for a C so large or small that C² times sums over rows overflows or vanishes."""
    if not 1 / _MAX_C <= C <= _MAX_C:
        beyond = "; C=inf is the hard margin" if hard_margin and C > 1 else ""
        raise InputError(f"{name} must be from {1 / _MAX_C:g} to {_MAX_C:g}, got {C:g}{beyond}")
