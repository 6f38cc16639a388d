"""The problem of a fit: the parameters of an estimator, checked before any row is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self, cast

import numpy as np
from sklearn.base import clone

from distrff.engine.reduction import Arrays, Reduction, Segmentation, gram_tile_rows, light_segmentation
from distrff.engine.run import Run
from distrff.engine.tasks import SegmentCache, Workers
from distrff.errors import InputError, InputTypeError
from distrff.features.base import SPARSE_REMEDY, FeatureMap
from distrff.features.fitted import FittedMap, MapOutline, Trait
from distrff.fitting.cost import Plan, segments_a_worker
from distrff.fitting.rows import ColumnStatistics, FoldCensus, MappedRowsReduction, RowKeeping, RowReduction
from distrff.io.arrays import with_columns
from distrff.io.dataset import Dataset
from distrff.preprocessing.coding import WARPS, ClassTargets, Scaling, Targets
from distrff.preprocessing.folds import (
    FOLD_RULES,
    NO_FOLDS,
    AutoFolds,
    ContiguousFolds,
    Folds,
    HashFolds,
    NoFolds,
    OneHeldOut,
    RowsOfFolds,
    folds_by,
)
from distrff.solvers.objective import Loss, Squared
from distrff.solvers.ridge import noise_floor
from distrff.utils.random import child_seed, resolve_seed
from distrff.utils.text import in_one_line
from distrff.utils.validation import check_count, float_array, is_number, one_of, positive

DTYPES = ("auto", "float32", "float64")
SCALES = ("auto", "standard", *sorted(WARPS), "none")
MAX_SWEEPS = 200
# More than a thousand times 2⁻²⁴, by which float32 rounds.
_MIN_TOL_IN_FLOAT32 = 1e-4
_FEW_ROWS = 10_000
_N_FOLDS = 5  # of cv="auto"
# Of fewer rows a map has too few cells for kernels to be told apart in its gaps. Of a field along tracks 43 %
# (1,500 rows), 82 % (6,000) and 93 % (12,000) of the cells were within two standard deviations of the truth;
# by rows at random 91, 96 and 92 %.
_MIN_ROWS_OF_MAP = 10_000
# C² times sums over rows must stay below the largest float64, 1e308, and its inverse above the smallest.
_MAX_C = 1e50
_RIDGE_SOLVERS = ("auto", "gram", "cg", "sgd")
_MARGIN_SOLVERS = ("auto", "gram", "cg", "lbfgs", "smoothed", "sgd")


@dataclass(frozen=True, eq=False)
class PenaltyChoice:
    """The best penalty of a grid by held-out errors, or the best of each target.

    Attributes
    ----------
    index : int, or ndarray of shape (k,)
        Its position in the grid.
    penalty : float, or ndarray of shape (k,)
    score : float
        Its weighted mean error, averaged over targets.
    scores : ndarray of shape (m,) or (m, k)
        The same for the whole grid; NaN for a penalty without a usable model.
    fold_scores : ndarray of shape (m, n_folds) or (m, n_folds, k)
        The same of each fold.
    """

    index: Any
    penalty: Any
    score: float
    scores: np.ndarray
    fold_scores: np.ndarray


@dataclass(frozen=True, eq=False)
class Penalty:
    """alpha of ridge or C of a margin loss: given, or chosen from a grid.

    `value` is of shape (1,), or of alpha (n_targets,). `grid` ascends; None is the default one of the solver.
    """

    value: np.ndarray | None
    grid: np.ndarray | None = None
    search: str | None = None  # "cv" or "gcv"; None where it is given
    each_target: bool = False  # whether each target has the best for itself

    def choose(self, grid: np.ndarray, errors: np.ndarray, weights: np.ndarray) -> PenaltyChoice:
        """The penalty of smallest error, shared by all targets, or with `each_target` that of each.

        The score of a penalty is Σ_folds errors / Σ_folds weights, averaged over the targets. Of equal scores
        the largest penalty wins; one with NaN in any fold or target never does. With `each_target` nothing
        is averaged over the targets but the score of the choice.

        Parameters
        ----------
        grid : ndarray of shape (m,)
            Ascending, for `each_target`.
        errors : ndarray of shape (n_folds, m, k)
            Held-out sums of squares, or of losses, of each target. GCV errors count as one fold of weight 1.
        weights : ndarray of shape (n_folds,)
            Of the held-out rows.
        """
        none_usable = InputError(
            f"none of the {len(grid)} alphas up to {np.max(grid):g} gives a usable model; "
            "give larger alphas, or use dtype='float64'"
        )
        with np.errstate(divide="ignore", invalid="ignore"):  # a fold may have no weight
            if self.each_target:
                by_target = np.sum(errors, axis=0) / np.sum(weights)
                of_folds = errors.transpose(1, 0, 2) / weights[:, None]
                ranked = np.where(np.isfinite(by_target), by_target, np.inf)[::-1]
                if np.isinf(ranked).all(axis=0).any():
                    raise none_usable
                best = len(grid) - 1 - ranked.argmin(axis=0)
                score = by_target[best, np.arange(len(best))].mean()
                return PenaltyChoice(best, grid[best], float(score), by_target, of_folds)
            fold_scores = errors.mean(axis=2).T / weights
        scores = np.sum(errors, axis=0).mean(axis=1) / np.sum(weights)
        usable = np.flatnonzero(np.isfinite(scores))
        if not len(usable):
            raise none_usable
        # lexsort orders by its last key first: the score, then falling penalty, as the simpler of equal
        # models is taken.
        index = int(usable[np.lexsort((-grid[usable], scores[usable]))[0]])
        return PenaltyChoice(index, float(grid[index]), float(scores[index]), scores, fold_scores)

    @property
    def number(self) -> float:
        """The value given for all targets."""
        assert self.value is not None
        return float(self.value[0])


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """The parameters of a fit, validated as far as that is possible without rows.

    `loss` is None where only sums of the features are wanted, `Squared` for ridge, else a margin loss.
    `tol` is the relative residual of conjugate gradients, the least relative fall of an epoch of SGD, and for
    other solvers the relative duality gap, or of softmax the relative gradient.
    """

    features: FeatureMap  # not fitted
    target_kind: str  # "numeric", "classes", "multilabel" or "none"
    seed: int
    loss: Loss | None = None
    loss_name: str = "squared"
    softmax: bool = False  # whether all classes share one loss
    n_quantiles: int = 1  # of one target, each an output
    penalty: Penalty = Penalty(None)
    folds: Folds = NO_FOLDS  # by which the penalty, or a kernel, is chosen
    held_out: Folds = NO_FOLDS  # the same, also where sums take no folds: by which a sample is split
    fit_intercept: bool = True
    class_weight: Any = None  # None, "balanced" or a dict
    classes: np.ndarray | None = None  # sorted labels, where later rows may have others than the first
    scale: str = "none"
    dtype: str = "auto"
    keep_features: str | bool = False
    """Whether light passes keep features in the workers' memory; "auto" for those that there is room for."""
    solver: str = "gram"  # as it was given
    tol: float = 1e-3
    max_sweeps: int = MAX_SWEEPS  # passes of the solver, for one value of the penalty
    n_components: int | None = None  # principal components that are wanted
    grows: bool = False  # whether rows come in several calls; how many, the first cannot tell
    is_begun_from: bool = False  # whether later fits go on from the model

    @property
    def is_ridge(self) -> bool:
        return isinstance(self.loss, Squared)

    @property
    def chooses_weights(self) -> bool:
        """Whether the fit also chooses the weights of the parts of its map."""
        return self.features is not None and self.features.chooses_weights

    @property
    def is_equispaced(self) -> bool:
        return self.features is not None and Trait.SUMS in self.features.traits

    @property
    def keeps_units(self) -> bool:
        """Whether the map takes columns as they are, unscaled."""
        return self.features is not None and Trait.OWN_UNITS in self.features.traits

    @property
    def is_sparse(self) -> bool:
        """Whether features are sparse, too many for a Gram."""
        return self.features is not None and Trait.SPARSE in self.features.traits

    @property
    def is_hard(self) -> bool:
        """Whether no row may be on the wrong side of its margin."""
        return not self.is_ridge and self.penalty.value is not None and bool(np.isinf(self.penalty.number))

    @property
    def C(self) -> float:
        """The weight of the losses against ½‖w‖², of ridge 1/(2·alpha)."""
        return 1 / (2 * self.penalty.number) if self.is_ridge else self.penalty.number

    @property
    def margin_loss(self) -> Loss:
        assert self.loss is not None
        return self.loss

    @property
    def smooth_solver(self) -> str:
        """The solver that closes the gap of a margin loss: by its own slopes, or by rounded hinges."""
        return "lbfgs" if self.margin_loss.is_smooth else "smoothed"

    @property
    def goes_on(self) -> bool:
        """Whether the solver takes a point to start from."""
        if not self.is_ridge:
            return self.loss is not None
        has_passes = self.solver in ("cg", "sgd") or (self.solver == "auto" and self.is_sparse)
        return has_passes and not self.is_equispaced

    @property
    def min_alpha(self) -> float | None:
        """The smallest ridge penalty, which must exceed the rounding of the Gram; None without one."""
        if not self.is_ridge:
            return None
        # A grid is cut at the floor; only a whole one below it changes the dtype.
        if self.penalty.search is not None:
            # The default grid is cut at the floor wherever that lies, so it never asks for float64.
            return None if self.penalty.grid is None else float(self.penalty.grid.max())
        return None if self.penalty.value is None else float(self.penalty.value.min())

    @property
    def ridge_penalty(self) -> float | None:
        """The alpha of ridge that is given, or that stands for the C given; None where it is chosen."""
        # Small models have the squares κ/2·(1 − m)² in the place of the loss, with its mean curvature κ
        # between the margins. With a larger κ they do well at widths for which C is too small, and the model
        # itself then misses a rare class. For one row in a hundred, logistic models had errors of .0062 with
        # κ = 2, which is right for squares alone, and .0024 with κ = 1/4 (means of 14 searches). With noise
        # hinge models had .0178 with κ = 2 and .0166 with ½. On digits, breast_cancer, two moons and covtype
        # there was no difference beyond chance.
        if self.penalty.value is None or self.is_hard:
            return None
        return (
            float(self.penalty.value.mean())
            if self.is_ridge
            else 1 / (self.C * self.margin_loss.mean_curvature)
        )

    def shares_loss(self, targets: Targets) -> bool:
        """Whether all classes share one loss; two classes have one problem, hence one loss, anyway."""
        return self.softmax and targets.n_outputs > 1

    def requested_dtype(self, n_rows: int) -> str:
        """The dtype of the features; "auto" follows the columns unless one of two rules decides."""
        if self.dtype != "auto" or self.loss is None or self.is_ridge:
            return self.dtype
        if self.is_hard:  # no rounding may violate a margin
            return "float64"
        # float32 halves the time of a sweep, and loses little of columns that are scaled before they are
        # cast: their mean is 0, or where most entries are 0 at most about their deviation. Few rows stay as
        # they are: their sweeps are short, and in float32 the values of a row would differ with the rows
        # beside it by as much as scikit-learn's checks refuse.
        scaled = self.scale in ("standard", *WARPS) or (self.scale == "auto" and n_rows > _FEW_ROWS)
        return "float32" if scaled and self.tol >= _MIN_TOL_IN_FLOAT32 else "auto"

    def seeded(self, seed: int) -> Self:
        """The problem as if this had been its seed from the start."""
        # Folds are drawn where parameters are checked, before a checkpoint tells the seed of the start.
        # Those that were given with a seed of their own stay.
        own, new = child_seed(self.seed, "folds"), child_seed(seed, "folds")
        return self.with_folds(lambda folds: folds.drawn_from(new) if folds.seed == own else folds, seed=seed)

    def with_folds(self, change: Callable[[Folds], Folds], **changes: Any) -> Self:
        """The problem with other folds."""
        held_out = change(self.held_out)
        folds = held_out if self.folds is self.held_out else change(self.folds)
        return replace(self, folds=folds, held_out=held_out, **changes)

    def for_dataset(self, dataset: Dataset) -> Self:
        """The problem with the map that rows like these leave to choose from."""
        if self.features is None:  # of the map only the specification is known
            return self.with_folds(lambda folds: self._folds_for(folds, dataset))
        # Sums of equispaced features serve ridge alone; their widths are chosen by folds, which a map that
        # chooses itself has only where alpha is chosen by them.
        may_take_sums = self.is_ridge and self.solver == "auto" and self.penalty.search == "cv"
        may_take_sums = may_take_sums and not self.penalty.each_target
        features: Any = self.features
        if Trait.CHOOSES in features.traits:
            features = features.for_rows(
                dataset.n_rows,
                dataset.n_columns,
                is_sparse=dataset.is_sparse,
                has_targets=self.target_kind != "none",
                by_sums=may_take_sums and not self.grows,
            )
        # Ridge takes several columns of labels as so many targets of one Gram.
        has_labels = self.is_ridge and self.target_kind == "classes" and dataset.n_targets > 1
        own = replace(self, features=features, target_kind="multilabel" if has_labels else self.target_kind)
        return own.with_folds(lambda folds: own._folds_for(folds, dataset))

    def _folds_for(self, folds: Folds, dataset: Dataset) -> Folds:
        """The folds that these rows have; of a mere number, whole groups where there are some."""
        if isinstance(folds, AutoFolds):
            n, names, features = dataset.n_columns, dataset.column_names, cast("Any", self.features)
            places = features.places(n, names)[0] if self.is_equispaced else []
            if features is not None and Trait.CHOOSES in features.traits and features.tries_equispaced:
                places = list(range(n))
            is_map = folds.is_free and len(places) in (2, 3) and dataset.n_rows >= _MIN_ROWS_OF_MAP
            if dataset.groups is not None or is_map:
                from distrff.preprocessing.splits import BlockFolds, GroupFolds  # few fits need them

                # On a map predictions are wanted where rows are missing, farther than rows at random are.
                how: dict[str, Any] = {"n_folds": folds.n_folds, "seed": folds.seed}
                columns = [(names or range(n))[j] for j in places]
                of_groups = dataset.groups is not None
                folds = GroupFolds(None, **how) if of_groups else BlockFolds(columns, like="gaps", **how)
        return folds.of_dataset(dataset)

    def check_dataset(self, dataset: Dataset) -> None:
        """Raise InputError, before any pass, for rows or columns that these parameters cannot fit."""
        if self.n_components is not None:
            n_features = self.features.outline(dataset.n_columns, dataset.n_rows).n_features
            if self.n_components > n_features:
                raise InputError(
                    f"n_components={self.n_components}, but the map has {n_features} features; "
                    f"ask for fewer components, or for more features"
                )
        if self.n_quantiles > 1 and dataset.n_targets > 1:
            raise InputError(
                f"several quantiles are of one target, and y has {dataset.n_targets} columns; fit a model a "
                f"target, or one quantile of all"
            )
        if self.target_kind == "multilabel" and self.class_weight is not None:
            raise InputError(
                f"class_weight={self.class_weight!r} is for one column of class labels; several labels of a "
                f"row share its weight: give sample_weight"
            )
        if self.grows:  # the first call may have fewer rows than folds, and later rows may suffice
            if self.target_kind == "multilabel" and self.classes is not None:
                raise InputError(
                    "classes are for one column of class labels; several labels are columns of y"
                )
        else:
            self.check_rows_of_search(dataset.n_rows)

    def check_rows_of_search(self, n_rows: int) -> None:
        """Raise InputError for fewer rows than a search for the penalty takes."""
        search, name = self.penalty.search, "alpha" if self.is_ridge else "C"
        # Folds by columns say themselves which of them lack rows.
        min_rows = 2 if self.folds.may_lack else max(2, self.folds.n_folds)
        if search is not None and n_rows < min_rows:
            raise InputError(
                f"{name}={search!r} needs at least {min_rows} rows here, but there is only n_samples = "
                f"{n_rows}; give more rows{', fewer folds (cv=…)' if search == 'cv' else ''}, or a "
                f"number ({name}=…)"
            )

    def check_targets(self, targets: Targets) -> None:
        """Raise InputError, after the first pass, for targets that these parameters cannot fit."""
        alpha = self.penalty.value
        if self.is_ridge and alpha is not None and len(alpha) not in (1, targets.n_outputs):
            raise InputError(
                f"alpha has {len(alpha)} values, but there are {targets.n_outputs} targets; "
                f"give one, or one each"
            )
        if self.loss is None or self.is_ridge or not isinstance(targets, ClassTargets):
            return
        # A class of no weight: without a penalty its intercept has no optimum.
        if targets.class_weight is not None and not targets.class_weight.all():
            label = targets.classes[targets.class_weight == 0].tolist()[0]
            raise InputError(f"class_weight is 0 for the class {label!r}; leave its rows out instead")


# The parameters of estimators.


def ridge_problem(estimator: Any) -> Problem:
    """The validated parameters of a ridge estimator; raises InputError for the first that is wrong."""
    search, alpha, solver = None, None, estimator.solver
    if isinstance(estimator.alpha, str):
        one_of("alpha", estimator.alpha, ("cv", "gcv"))
        search = estimator.alpha
    else:
        alpha = _positive_numbers("alpha", estimator.alpha)
    each_target = getattr(estimator, "alpha_per_target", False)
    if not isinstance(each_target, bool | np.bool_):
        raise InputError(f"alpha_per_target must be True or False, got {each_target!r}")
    if each_target and search != "cv":
        raise InputError(
            f"alpha_per_target=True chooses the alpha of each target by held-out folds, got "
            f"alpha={in_one_line(repr(estimator.alpha))}; use alpha='cv', or alpha_per_target=False"
        )
    one_of("solver", solver, _RIDGE_SOLVERS)
    shared = _solved(estimator, needs_gram=solver == "gram" or search == "gcv" or bool(each_target))
    features = shared["features"]
    # Widths of equispaced features are chosen by held-out error, so they take folds though alpha is given.
    is_chosen = Trait.SUMS in features.traits and solver in ("auto", "cg")
    folds: Folds = NO_FOLDS
    if search == "cv" or (is_chosen and features.chooses):
        folds = shared["held_out"]
    elif search == "gcv":  # for maps with which it may overfit
        folds = OneHeldOut(1, child_seed(shared["seed"], "folds"))
    return Problem(
        **shared,
        loss=Squared(),
        penalty=Penalty(alpha, _ascending_grid("alphas", estimator.alphas), search, bool(each_target)),
        solver=solver,
        folds=folds,
    )


def margin_problem(estimator: Any, loss: Loss, *, hard_margin: bool = False, n_quantiles: int = 1) -> Problem:
    """The validated parameters of a margin model; `hard_margin` says whether C may be infinite.

    Raises InputError for the first parameter that no data could make right.
    """
    searched = isinstance(estimator.C, str)
    if searched and estimator.C != "cv":
        raise InputError(f"C must be a positive number or 'cv', got {estimator.C!r}")
    is_hard = is_number(estimator.C) and np.inf == estimator.C
    if not searched and not (hard_margin and is_hard):
        positive("C", estimator.C)
        _check_size("C", float(estimator.C), hard_margin)
    Cs = _ascending_grid("Cs", estimator.Cs)
    for C in [] if Cs is None else (Cs[0], Cs[-1]):
        _check_size("Cs", float(C), hard_margin=False)
    one_of("solver", estimator.solver, _MARGIN_SOLVERS)
    # Of numbers by losses with corners: random binning, whose sweeps have no good preconditioner, left a gap
    # of .014 after 200 of them (40,000 flights, three quantiles).
    has_corners = loss.units == "spread" and not loss.is_smooth
    shared = _solved(estimator, needs_gram=is_hard or has_corners, is_margin=True)
    return Problem(
        **shared,
        loss=loss,
        loss_name=getattr(estimator, "noise", None) or estimator.loss,
        softmax=getattr(estimator, "multi_class", "ovr") == "softmax",
        n_quantiles=n_quantiles,
        penalty=Penalty(None, Cs, "cv") if searched else Penalty(np.array([float(estimator.C)]), Cs),
        folds=shared["held_out"] if searched else NO_FOLDS,
        solver=estimator.solver,
        # A search begins without the earlier model, which saw all folds.
        is_begun_from=estimator.warm_start and not searched,
    )


def growing_problem(estimator: Any) -> Problem:
    """The parameters of a ridge estimator, validated for rows that come in several calls."""
    problem = ridge_problem(estimator)
    if problem.is_sparse:
        raise InputError(
            "partial_fit adds Grams, and features of random binning are too many for one; use "
            "FourierFeatures, NystroemFeatures or AutoFeatures, or fit all rows at once"
        )
    if problem.solver == "sgd" or (problem.solver == "cg" and not problem.is_equispaced):
        raise InputError(
            f"partial_fit adds Grams, and solver={problem.solver!r} forms none; use solver='gram' or 'auto', "
            f"or fit all rows at once"
        )
    if isinstance(problem.class_weight, str):
        raise InputError(
            f"class_weight={problem.class_weight!r} follows from all rows, which partial_fit does not know; "
            f"give a dict of label: weight, or fit all rows at once"
        )
    if problem.folds.needs_all_rows:
        is_rule = isinstance(estimator.cv, Integral | str)
        asked = "fold_by='contiguous'" if is_rule else f"cv={in_one_line(repr(estimator.cv))}"
        raise InputError(
            f"{asked} needs the number of all rows, which partial_fit does not know; use fold_by='hash', a "
            f"number for alpha, or fit all rows at once"
        )
    return replace(
        problem,
        features=map_for_gram(problem.features),
        solver=problem.solver if problem.is_equispaced else "gram",
        grows=True,
    )


def map_parameters(estimator: Any, *, needs_gram: bool = False) -> dict[str, Any]:
    """The validated parameters that every estimator has.

    With `needs_gram` a map that chooses itself does not choose sparse features.
    """
    one_of("dtype", estimator.dtype, DTYPES)
    one_of("scale", estimator.scale, SCALES)
    features = default_map() if estimator.features is None else clone(checked_map(estimator.features))
    return {
        "target_kind": estimator._target_kind,
        "features": map_for_gram(features) if needs_gram else features,
        "scale": estimator.scale,
        "dtype": estimator.dtype,
        "seed": resolve_seed(estimator.random_state),
    }


def map_for_gram(features: Any) -> FeatureMap:
    """The map, which chooses among dense features alone if it chooses."""
    found: FeatureMap = features.for_gram() if Trait.CHOOSES in features.traits else features
    return found


def default_map() -> FeatureMap:
    """The map of estimators that are given none."""
    from distrff.features.search.candidates import AutoFeatures  # with all maps: few fits need them

    return AutoFeatures()


def _solved(estimator: Any, *, needs_gram: bool, is_margin: bool = False) -> dict[str, Any]:
    """The validated parameters that all models with a choice of solvers share."""
    if not isinstance(estimator.fit_intercept, bool | np.bool_):
        raise InputError(f"fit_intercept must be True or False, got {estimator.fit_intercept!r}")
    positive("tol", estimator.tol)
    sweeps, kept = estimator.max_sweeps, estimator.keep_features
    check_count("max_sweeps", sweeps, or_none=True)
    if not isinstance(kept, bool | np.bool_) and not (isinstance(kept, str) and kept == "auto"):
        raise InputError(f"keep_features must be 'auto', True or False, got {kept!r}")
    shared = map_parameters(estimator, needs_gram=needs_gram)
    if is_margin and Trait.CHOOSES in shared["features"].traits and shared["features"].maps is None:
        # The sweeps of a margin loss have no good preconditioner on bins: of KDD 99 (395,000 rows) a search
        # that took them left a gap of .018 after 200 sweeps, where dense features took 26.
        shared["features"].set_params(maps=("fourier", "nystroem"))
    return shared | {
        "held_out": checked_folds(estimator.cv, estimator.fold_by, shared["seed"]),
        "class_weight": getattr(estimator, "class_weight", None),
        "fit_intercept": bool(estimator.fit_intercept),
        "keep_features": kept if isinstance(kept, str) else bool(kept),
        "tol": float(estimator.tol),
        "max_sweeps": MAX_SWEEPS if sweeps is None else int(sweeps),
    }


def checked_map(features: Any) -> FeatureMap:
    """The map, if a model can be fitted on its features; else raises InputError."""
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
    if scale in ("standard", "quantile"):
        why = "subtracts means" if scale == "standard" else "takes ranks"
        raise InputError(
            f"scale={scale!r} {why}, which would write sparse rows out; use scale='auto', which "
            f"divides the columns of sparse rows by their root mean squares, scale='log' or scale='none'"
        )


def takes_sparse_rows(features: Any) -> bool:
    """Whether models of this map, None for the default one, take sparse rows."""
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


def checked_folds(cv: Any, fold_by: str, seed: int) -> Folds:
    """The folds of `cv` and `fold_by`; raises InputError for a wrong number of them."""
    one_of("fold_by", fold_by, FOLD_RULES)
    is_auto, drawn = isinstance(cv, str) and cv == "auto", child_seed(seed, "folds")
    if isinstance(cv, Folds):
        check_count("seed", cv.seed, 0, or_none=True)
        if fold_by != "hash":
            raise InputError(f"fold_by={fold_by!r} goes with a number of folds, got cv={cv!r}; leave it out")
        if isinstance(cv, HashFolds | ContiguousFolds):
            check_count("n_folds", cv.n_folds, 2)
        return cv.drawn_from(drawn) if cv.seed is None else cv
    if isinstance(cv, list | tuple) or (hasattr(cv, "split") and hasattr(cv, "get_n_splits")):
        return AnySplitter(splitter=list(cv) if isinstance(cv, tuple) else cv, seed=drawn)
    if not is_auto and (not is_number(cv) or not isinstance(cv, Integral) or cv < 2):
        others = "" if is_number(cv) else ", 'auto', folds such as GroupFolds() or a splitter of scikit-learn"
        raise InputError(f"cv must be an integer of at least 2, the number of folds{others}, got {cv!r}")
    folds = folds_by(fold_by, _N_FOLDS if is_auto else int(cv), seed)
    return replace(folds, is_free=is_auto) if isinstance(folds, AutoFolds) else folds


def _check_size(name: str, C: float, hard_margin: bool) -> None:
    """Raise InputError for a C so large or small that C² times sums over rows overflows or vanishes."""
    if not 1 / _MAX_C <= C <= _MAX_C:
        beyond = "; C=inf is the hard margin" if hard_margin and C > 1 else ""
        raise InputError(f"{name} must be from {1 / _MAX_C:g} to {_MAX_C:g}, got {C:g}{beyond}")


@dataclass(frozen=True)
class AnySplitter(NoFolds):
    """The folds of a splitter of scikit-learn, or of a list of splits, until the rows are known."""

    splitter: Any = None
    seed: int = 0

    @property
    def by_rule(self) -> Folds:
        """The folds of ours that mean the same whatever the rows; raises InputError where none do."""
        from distrff.preprocessing.splits import translated  # as above

        return translated(self.splitter, self.seed)

    @property
    def needs_all_rows(self) -> bool:
        return self.by_rule.needs_all_rows

    def of_dataset(self, rows: RowsOfFolds) -> Folds:
        return self.by_rule.of_dataset(rows)

    def split(self, dataset: Dataset) -> tuple[Dataset, Folds]:
        """Rows in memory with the column of a number for each set of splits that has a row; folds by it."""
        from distrff.preprocessing.splits import PatternFolds  # as above

        (block,) = dataset.rows(0, dataset.n_rows).tiles(dataset.n_rows)
        groups, is_list = block.ids.get(dataset.groups or ""), isinstance(self.splitter, list)
        name = "a list of splits" if is_list else type(self.splitter).__name__
        try:
            splits = self.splitter if is_list else list(self.splitter.split(block.X, block.y, groups))
            folds, numbers = PatternFolds.of_splits(splits, dataset.n_rows, name)
        except (TypeError, ValueError, IndexError) as error:
            raise InputError(f"cv={name} cannot split these rows: {error}") from error
        return with_columns(dataset, {folds.names[0]: numbers}), folds


# A fit of the problem to rows: before its first pass, and after it.


@dataclass(frozen=True, eq=False)
class WarmStart:
    """State that a fit takes over from an earlier one: the model in the targets' own units, not its map."""

    scaling: Scaling
    targets: Targets
    coef: np.ndarray  # (D, k)
    intercept: np.ndarray  # (k,)

    def check(self, targets: Targets) -> None:
        """Raise InputError for other classes, or another number of targets, than those of the model."""
        if self.targets.same_targets(targets):
            return
        if isinstance(self.targets, ClassTargets) and isinstance(targets, ClassTargets):
            raise InputError(
                f"warm_start=True goes on with the classes {self.targets.classes.tolist()[:20]}, but y has "
                f"{targets.classes.tolist()[:20]}; use warm_start=False"
            )
        raise InputError(
            f"warm_start=True goes on with {self.targets.n_outputs} {self.targets.kind} target(s), but y has "
            f"{targets.n_outputs} {targets.kind} one(s); use warm_start=False"
        )


@dataclass(frozen=True, eq=False)
class FitContext:
    """A fit before its first pass."""

    dataset: Dataset
    problem: Problem
    workers: Workers
    run: Run | None = None  # None where a fit is only planned, for workers that need not exist
    saving_buffer: int | None = None  # see `saving_buffer_bytes`; None without a checkpoint
    start: WarmStart | None = None  # of a model to go on from

    @property
    def features_dtype(self) -> str:
        """The dtype of the features."""
        if self.problem.keeps_units:
            return "float64"  # phases of raw columns take all digits
        return features_dtype(self.dataset, self.problem.requested_dtype(self.dataset.n_rows))

    @property
    def gram_dtype(self) -> str:
        """The dtype of the products of a Gram."""
        return self.features_dtype

    def sum(
        self,
        label: str,
        reduction: Reduction,
        cuts: Segmentation,
        arrays: Arrays | None = None,
        kept: SegmentCache | None = None,
    ) -> Any:
        """The sum of one pass over all rows; `arrays` go to each of its tasks.

        `kept` is what stays of the rows between passes of these cuts.
        """
        assert self.run is not None
        return self.run.total(label, self.dataset, reduction, cuts, arrays, kept)

    def outline(self) -> MapOutline:
        """The numbers of the map that plans go by."""
        return self.problem.features.outline(self.dataset.n_columns, self.dataset.n_rows)


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedFit(FitContext):
    """A fit after its first pass: all that is known before its solver begins."""

    run: Run
    statistics: ColumnStatistics
    scaling: Scaling
    targets: Targets
    specification: FittedMap  # of the fitted map
    features: FeatureMap | None  # the fitted map itself; None where only its specification is known
    mean_square_norm: float  # mean of ‖z(x)‖²: k(0), or measured for maps that have none
    weight: float  # Σs, class weights included
    census: FoldCensus | None = None  # of folds that need not judge each row once

    @property
    def gram_dtype(self) -> str:
        """float64 where the least alpha would drown in the rounding of float32 products."""
        dtype, min_alpha = self.features_dtype, self.problem.min_alpha
        below = min_alpha is not None and min_alpha < self.noise_floor(dtype)
        return "float64" if below else dtype

    def outline(self) -> MapOutline:
        if self.features is None:
            return MapOutline(self.specification.n_features, self.specification.cost)
        # The problem has the map that was chosen; the search was that of the map that chose it.
        search = self.features.outline(self.dataset.n_columns, self.dataset.n_rows)
        return replace(super().outline(), search_flops=search.search_flops, search_bytes=search.search_bytes)

    def noise_floor(self, dtype: str) -> float:
        """The alpha below which a Gram of products in this dtype is noise; 0 for float64."""
        D, k = self.specification.n_features, self.targets.n_outputs
        if dtype == "float64":
            return 0.0
        return noise_floor(
            self.weight,
            self.dataset.n_rows,
            tile_rows=gram_tile_rows(D, k, np.dtype(dtype)),
            n_features=D,
            at_zero=self.mean_square_norm,
            dtype=np.dtype(dtype),
        )

    def reduction(self, kind: type[RowReduction], **own: Any) -> Any:
        """A reduction of this fit's rows, scaled, mapped and coded, with parameters of its own."""
        return kind(specification=self.specification, scaling=self.scaling, targets=self.targets, **own)

    def mapped_rows(self, plan: Plan) -> Any:
        """A handle on the features of all rows, which are few, from one pass."""
        cuts = light_segmentation(self.dataset.n_rows, self.dataset.n_columns)
        reduction = self.reduction(MappedRowsReduction, dtype=plan.size.dtype, tile_rows=cuts.tile_rows)
        return self.run.reduce("mapped rows", self.dataset, reduction, cuts)

    def kept(
        self, passes: str, plan: Plan, cuts: Segmentation, *, of_basis: bool = True
    ) -> SegmentCache | None:
        """A cache of rows for the passes of a name and these cuts; None where nothing stays.

        `of_basis` says whether the passes multiply the values of the map's basis, or its features.
        """
        if not plan.kept_features and not plan.kept_rows:
            return None
        keeping = RowKeeping(
            specification=self.specification,
            scaling=self.scaling,
            dtype=plan.size.dtype,
            tile_rows=cuts.tile_rows,
            of_basis=of_basis,
        )
        n_features, n_rows = (
            segments_a_worker(n, cuts, plan.n_workers) for n in (plan.kept_features, plan.kept_rows)
        )
        levels = [(keeping, n_features), (replace(keeping, with_features=False), n_rows)]
        return self.run.cache(passes, cuts, levels)

    def frequencies_beyond_float32(self) -> int:
        """How many frequencies have phases on the data that float32 cannot hold well.

        A phase θ in float32 is off by about 2⁻²⁴·θ; counted are frequencies for which
        Σ_j |ω_j|·max|x_j|, or another bound of |θ| over the rows, exceeds 2¹⁴.
        """
        magnitude, scaling = self.statistics.magnitude, self.scaling
        if scaling.warp is not None:  # whatever the rows, it leaves some deviations
            return self.specification.build().n_phases_beyond(
                _LARGEST_FLOAT32_PHASE, np.full(len(magnitude), _MOST_DEVIATIONS)
            )
        if scaling.shift is not None:
            magnitude = magnitude + np.abs(scaling.shift)
        if scaling.scale is not None:
            magnitude = magnitude / scaling.scale
        return self.specification.build().n_phases_beyond(_LARGEST_FLOAT32_PHASE, magnitude)

    def starting_point(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Coef (D, k) and intercept (k,) to go on from, in coded units; None for a fit anew."""
        if self.start is None:
            return None
        scale = self.targets.scale
        coef = self.start.coef / scale
        if not self.problem.fit_intercept:  # then solvers take back the shift of the targets
            return coef, np.zeros_like(self.start.intercept)
        return coef, (self.start.intercept - self.targets.shift) / scale

    def starting_columns(self) -> np.ndarray | None:
        """The point to go on from as a column for each output, the intercept last if it is fitted."""
        start = self.starting_point()
        if start is None:
            return None
        coef, intercept = start
        return np.vstack([coef, intercept]) if self.problem.fit_intercept else coef


_LEAST_MEAN = 1e-30  # where all counts are 0


def mean_targets(statistics: ColumnStatistics) -> np.ndarray:
    """The means of targets that are counts or amounts, positive."""
    assert statistics.targets is not None
    return np.maximum(statistics.targets.mean, _LEAST_MEAN)


def curvature_at_mean(problem: Problem, statistics: ColumnStatistics) -> float:
    """ℓ″ of rows at the targets' means where f is a logarithm; else 1, as of margins and spreads.

    With it a penalty on f is one on y = μ̄·f of squares: near its mean C·ℓ″/2·(f − f̂)² + ½‖w‖² is, up to a
    factor, (y − ŷ)² + ‖μ̄w‖²/(C·ℓ″).
    """
    if problem.is_ridge or problem.loss is None or problem.loss.units != "own":
        return 1.0
    means = mean_targets(statistics)
    return float(problem.loss.second_derivative(np.log(means), means).mean())


def features_dtype(dataset: Dataset, dtype: str) -> str:
    """The dtype given; for "auto" the one that loses nothing of the columns.

    That is float32 for float32 and integers of at most 16 bits.
    """
    if dtype != "auto":
        return dtype
    return "float32" if np.can_cast(dataset.dtype, np.float32, "safe") else "float64"


# A float32 phase of this size is wrong by up to 2⁻¹⁰ of a radian.
_LARGEST_FLOAT32_PHASE = 2.0**14
_MOST_DEVIATIONS = 16.0
