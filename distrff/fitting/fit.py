"""One fit: what it was given, the plan of the solver that fits in memory, and what its first pass fixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from sklearn.base import clone

from distrff.engine.progress import Observer
from distrff.engine.reduction import Segmentation, light_segmentation
from distrff.engine.run import begin_run, check_reading
from distrff.engine.tasks import Workers
from distrff.errors import ColumnError, DataWarning, InputError, PlanRefused, column_called, warn
from distrff.features.base import FeatureMap, MapReduction, Sample, Split, sample_rows
from distrff.features.fitted import FittedMap, Trait
from distrff.fitting.cost import LightPasses, Plan, Size, first_that_fits, refusal, with_kept
from distrff.fitting.problem import FitContext, PreparedFit, Problem, curvature_at_mean
from distrff.fitting.result import FitResult, columns_called
from distrff.fitting.rows import (
    ColumnStatistics,
    ColumnStatisticsReduction,
    FoldCensus,
    FoldCensusReduction,
    MapSumsReduction,
    RowReduction,
)
from distrff.fitting.rows import Sample as RowSample
from distrff.io.dataset import Dataset
from distrff.io.storage import saving_buffer_bytes
from distrff.preprocessing.coding import (
    MAX_COLUMNS,
    WARPS,
    ClassTargets,
    Moments,
    MultilabelTargets,
    NumericTargets,
    Scaling,
    Targets,
    class_weights,
)
from distrff.preprocessing.folds import Folds, SomeFolds
from distrff.utils.random import child_seed, resolve_seed
from distrff.utils.text import listed

# Until the first pass has counted the classes, the plan assumes a handful.
_PRESUMED_CLASSES = 8
_SPREAD_WARNING = 100.0
_NORM_ROWS = 1024  # their mean is off by a 32nd of their standard deviation
_LARGEST_WEIGHT = 1e25  # on average: float32 holds its products with features, and those of its inverse


def begin(
    dataset: Dataset,
    problem: Problem,
    checkpoint: Any = None,
    observer: Observer | None = None,
) -> FitContext:
    """The context of a fit on the active Dask client, or dask's configured scheduler.

    `checkpoint` is the path, URL or location of its checkpoint. `observer` is told of its passes.

    Raises ClusterError if there are none, or they cannot run distrff.
    """
    run = begin_run()
    handle = dataset.rows(0, 1) if dataset.block_rows is None else None  # others would have their blocks read
    problem = problem.for_dataset(dataset)
    # What tasks load of the solver belongs to the idle memory, above which plans count.
    run.execution.measure_idle((RowReduction, type(next(usable(problem))), handle))
    if observer is not None:
        run.observer = observer
    saving_buffer = None if checkpoint is None else saving_buffer_bytes(checkpoint)
    return within_memory(FitContext(dataset, problem, run.execution, run, saving_buffer))


def within_memory(fit: FitContext) -> FitContext:
    """The fit with as many features at most as memory allows, where their number is free."""
    # The fit decides how many it takes, mostly far fewer than the limit: that a plan for so many does not fit
    # is no reason to refuse one.
    features = fit.problem.features
    if features is None or features.size_limit is None:
        return fit
    n = most = fit.outline().n_features
    # Halving misses the largest number by a factor of two at most; each try counts a whole plan.
    while n > _FEWEST_FEATURES:
        try:
            choose(fit, _presumed_outputs(fit), n)
            break
        except PlanRefused:
            n //= 2
    if n == most:
        return fit
    limited = clone(features).set_params(**{features.size_limit: n})
    return replace(fit, problem=replace(fit.problem, features=limited))


_FEWEST_FEATURES = 2**8


# The choice of a solver.


class Solver(Protocol):
    """One way to solve a problem."""

    def refuses(self, problem: Problem) -> str | None:
        """Why it does not solve the problem, with the remedy; None if it does."""

    def size(self, fit: FitContext, size: Size) -> Size:
        """The size with the numbers that this solver adds."""

    def cost(self, size: Size, workers: Workers) -> Iterator[Plan]:
        """Its plans, from the fewest reads to the least memory."""

    def light_passes(self, plan: Plan) -> LightPasses:
        """Its passes between which features may stay in memory."""

    def solve(self, fit: PreparedFit, plan: Plan) -> FitResult:
        """The model."""


# By name, since each loads what only it needs.
_SOLVERS = {
    "gram": "gram.GramRidge",
    "components": "gram.PrincipalComponents",
    "cg": "cg.ConjugateGradientRidge",
    "toeplitz": "equispaced.ToeplitzRidge",
    "margins": "margins.Margins",
    "sgd": "sgd.StochasticGradients",
}


def solver(name: str) -> Solver:
    module, kind = _SOLVERS[name].split(".")
    found: Solver = getattr(import_module(f"distrff.fitting.{module}"), kind)()
    return found


def candidates(problem: Problem) -> list[str]:
    """Names of the solvers that are tried, in this order."""
    by_itself = problem.is_ridge and problem.solver in ("auto", "cg")
    if problem.chooses_weights:
        return ["gram"]  # alone knows the Gram for all of them
    if problem.is_equispaced and (by_itself or problem.solver == "toeplitz"):
        return ["toeplitz"]  # sums of some FFTs in the place of features
    if problem.loss is None:
        return ["gram" if problem.n_components is None else "components"]
    if problem.solver == "sgd":
        return ["sgd"]
    if problem.is_ridge:
        # From one pass for the Gram follow all alphas and folds; conjugate gradients take ten passes for one,
        # but need no D × D of all rows.
        return ["gram", "cg"] if problem.solver == "auto" else [problem.solver]
    # The gap of SGD stays open, so it is for features too many for the Gram that preconditions the others.
    return ["margins", "sgd"] if problem.solver == "auto" and not problem.is_sparse else ["margins"]


def usable(problem: Problem) -> Iterator[Solver]:
    """Yields candidates that do not refuse the problem, each loaded when it is asked for.

    Raises InputError with the first refusal if all do.
    """
    if problem.chooses_weights and (
        not problem.is_ridge
        or problem.grows
        or problem.penalty.search != "cv"
        or problem.solver not in ("auto", "gram")
    ):
        from distrff.features.compose import WEIGHTS_NEED  # few fits have such a map

        raise InputError(WEIGHTS_NEED)
    # One by one: the second solver's file is loaded only where no plan of the first one fits.
    refusals = []
    for name in candidates(problem):
        one = solver(name)
        refusal = one.refuses(problem)
        if refusal is None:
            yield one
        refusals.append(refusal)
    if all(refusals):
        raise InputError(str(refusals[0]))


def solvable(problem: Problem) -> Problem:
    """The problem itself; raises InputError where no solver takes it."""
    next(usable(problem))
    return problem


def choose(
    fit: FitContext, n_outputs: int, n_features: int | None = None, *, outputs_are_presumed: bool = False
) -> tuple[Solver, Plan]:
    """The first solver with a plan that fits in the workers' memory.

    Raises PlanRefused if there is none; the message names the smallest changes with which the first would
    fit. `n_features` is None before the map is fitted; exact bins are then counted as few as they could be.
    """
    dataset, problem, outline = fit.dataset, fit.problem, fit.outline()
    size = Size(
        n_rows=dataset.n_rows,
        n_columns=dataset.n_columns,
        n_features=outline.n_features if n_features is None else n_features,
        n_outputs=n_outputs,
        n_folds=1,
        held_out=problem.folds.words if problem.folds.n_folds else "",
        n_alphas=1,
        outputs_are_presumed=outputs_are_presumed,
        # Light passes multiply in float64 whatever the features are in.
        dtype=fit.features_dtype,
        row_bytes=dataset.row_bytes,
        chunk_rows=dataset.chunk_rows,
        column_share=dataset.column_share,
        held_bytes=dataset.held_bytes,
        persisted_bytes=dataset.persisted_bytes,
        whole_rows=dataset.whole_rows,
        # Tasks in this process see arrays themselves.
        block_rows=None if dataset.block_rows == 0 and fit.workers.in_client else dataset.block_rows,
        saving_buffer=fit.saving_buffer,
        map_cost=outline.cost,
        # The census of folds counts as a pass of the map.
        n_map_passes=outline.n_passes + (problem.folds.n_folds > 0 and problem.folds.may_lack),
        sparse_entries=outline.sparse_entries,
        search_flops=outline.search_flops,
        search_bytes=outline.search_bytes,
    )
    refused = None
    for one in usable(problem):
        plan = first_that_fits(one.cost(one.size(fit, size), fit.workers))
        if plan.fits:
            return one, with_kept(plan, problem.keep_features, fit.workers, *one.light_passes(plan))
        # The remedies are for the first solver, for which the others only stand in.
        refused = refused or (plan, one)
    assert refused is not None
    plan, one = refused
    raise PlanRefused(refusal(plan, one.cost))


def expected_plan(fit: FitContext) -> Plan:
    """The plan as far as it can be counted before the first pass.

    Raises InputError for rows or columns that the parameters or the map are not for, and PlanRefused where
    the fit would not fit in the workers' memory.
    """
    dataset, problem = fit.dataset, fit.problem
    problem.check_dataset(dataset)
    check_reading(fit.workers, dataset)
    # Columns of y say how many numbers there are, but not how many classes.
    presumed = problem.target_kind == "classes"
    _, plan = choose(fit, _presumed_outputs(fit), outputs_are_presumed=presumed)
    # Only now, for it draws a small map of all columns.
    problem.features.check_columns(dataset.n_columns)
    return plan


def likely_plan(fit: FitContext) -> Plan:
    """The plan whose seconds are predicted: of as many features as the fit is likely to choose."""
    return choose(fit, _presumed_outputs(fit), fit.outline().likely_features)[1]


def _presumed_outputs(fit: FitContext) -> int:
    n_targets = fit.dataset.n_targets
    counts = {
        "numeric": n_targets * fit.problem.n_quantiles,
        "multilabel": n_targets,
        "classes": _PRESUMED_CLASSES,
        "none": 0,
    }
    return counts[fit.problem.target_kind]


def with_posterior(plan: Plan, *, each_target: bool = False) -> Plan:
    """The plan of a fit that also stores the posterior: a D × D factor or samples, for each alpha."""
    if plan.solver == "toeplitz":
        from distrff.fitting.equispaced import with_samples

        return with_samples(plan)
    # The client holds three copies: as it arrives, whole, and encoded.
    n_factors = min(plan.size.n_outputs, plan.size.n_alphas) if each_target else 1
    factors = 3 * 8 * n_factors * plan.size.n_features**2
    return replace(plan, client_peak_bytes=plan.client_peak_bytes + factors)


# The first pass, and what follows from it: scaling, coded targets, and the fitted map.


def prepare(fit: FitContext) -> PreparedFit:
    """The fit with scaling, targets and map; a map that is fitted already stays as it is.

    Raises InputError for numbers that cannot be used, or what the targets or the map cannot be made of,
    and PlanRefused as soon as it is certain that the map has too many columns.
    """
    dataset, problem, run = fit.dataset, fit.problem, fit.run
    assert run is not None
    run.begin_phase("column statistics")
    statistics = first_pass(fit)
    if statistics.survey is not None:
        problem = problem.with_folds(lambda folds: folds.decided(statistics.survey))
    fit = replace(fit, problem=problem)
    run.begin_phase("map")
    if fit.start is not None:
        scaling = fit.start.scaling
        if moving := scaling.ignored(statistics.columns):
            warn(
                f"{columns_called(moving, dataset.column_names)} had one value in all rows of the first fit "
                f"and has no effect since, but differs in these rows; fit a clone to learn from it",
                DataWarning,
            )
    else:
        scaling = Scaling() if problem.keeps_units else scaling_of(statistics, problem.scale, dataset)
        # A column that is constant in the first of several calls may vary in later ones.
        scaling = scaling if problem.grows else scaling.without_constants(statistics.columns)
    targets = _targets(statistics, problem)
    # Before the map, whose search may take minutes.
    problem.check_targets(targets)
    census = None
    if problem.folds.may_lack and not problem.grows:
        problem, census = with_usable_folds(fit, targets)
        fit = replace(fit, problem=problem)
    if fit.start is not None:
        fit.start.check(targets)
    weight = weight_of_rows(statistics, targets)
    features = problem.features
    if not hasattr(features, "specification_"):
        try:
            features = _fitted_map(fit, statistics, scaling, targets)
        except ColumnError as error:
            raise error.named(dataset.column_names) from None
    if features.n_features_in_ != dataset.n_columns:
        raise InputError(
            f"X has {dataset.n_columns} columns, but the feature map was fitted to "
            f"{features.n_features_in_}; give the columns it was fitted to, or a map that is not fitted"
        )
    # Only a map that was chosen now can say so this late.
    if Trait.OWN_UNITS in features.specification_.traits:
        scaling = Scaling()
    scaling = getattr(features, "scaling_", None) or scaling  # of a search that bent the columns
    # What follows is planned and counted for the map that was chosen, where one was.
    chosen: FeatureMap = getattr(features, "map_", features)  # type: ignore[assignment]
    fit = replace(fit, problem=replace(problem, features=chosen))
    return PreparedFit(
        **vars(fit),
        statistics=statistics,
        scaling=scaling,
        targets=targets,
        specification=features.specification_,
        features=features,
        mean_square_norm=_mean_square_norm(features.specification_, statistics, scaling),
        weight=weight,
        census=census,
    )


def with_usable_folds(fit: FitContext, targets: Targets) -> tuple[Problem, FoldCensus]:
    """The problem without folds that judge no row or have no model, and the census of the others."""
    folds, cuts = fit.problem.folds, _cuts_of_rows(fit)
    census = fit.sum("fold census", FoldCensusReduction(folds, targets, cuts.tile_rows), cuts)
    kept = usable_folds(folds, census.counts, targets)
    if len(kept) == folds.n_folds:
        return fit.problem, census
    # Rows of the others are held out by none: few fits need another pass that counts them.
    problem = fit.problem.with_folds(lambda of: SomeFolds(of, kept))
    return with_usable_folds(replace(fit, problem=problem), targets)


def usable_folds(folds: Folds, rows: np.ndarray, targets: Targets, *, above: float = 0.0) -> tuple[int, ...]:
    """The numbers of the folds that have a model and rows to judge it, with a warning on the others.

    `rows` of shape (n_sums, n_classes), or one column of all rows, are counts, or weights in which `above` is
    rounding. Raises InputError if there is no such fold.
    """
    lacks, exists = {}, folds.total @ rows > above
    for fold, coefs in enumerate(zip(folds.test, folds.train, strict=True)):
        judged, fitted = (of_sums @ rows for of_sums in coefs)
        if not judged.sum() > above:
            lacks[fold] = "it holds no row of positive weight out"
        elif not fitted.sum() > above:
            lacks[fold] = "no row is left to fit its model to"
        elif isinstance(targets, ClassTargets) and (lacking := exists & ~(fitted > above)).any():
            lacks[fold] = f"the rows of its model lack the class {targets.classes[lacking].tolist()[0]!r}"
    if not lacks:
        return tuple(range(folds.n_folds))
    alike = {why: [fold + 1 for fold in lacks if lacks[fold] == why] for why in lacks.values()}
    skipped = listed([f"fold {listed(of)} of {folds.n_folds}: {why}" for why, of in alike.items()])
    if len(lacks) == folds.n_folds:
        raise InputError(
            f"no fold of {folds.words} has a model and rows to judge it: {skipped}; give {folds.remedy}"
        )
    warn(f"skipped among folds of {folds.words}: {skipped}", DataWarning)
    return tuple(fold for fold in range(folds.n_folds) if fold not in lacks)


def weight_of_rows(statistics: ColumnStatistics, targets: Targets) -> float:
    """Σs of the rows, class weights included; raise InputError if they are too large or small."""
    # The first pass counts each label's own weight, so that class weights cost no second one.
    weight, labels = statistics.columns.weight, statistics.labels
    if isinstance(targets, ClassTargets) and targets.class_weight is not None:
        assert labels is not None
        weight = float(targets.class_weight[targets.indices(labels.labels)] @ labels.weights)
    _check_mean_weight("sample_weight times class_weight", weight / statistics.n_rows)
    return weight


def first_pass(fit: FitContext) -> ColumnStatistics:
    """The statistics of all columns, which one pass sums.

    Raises InputError for numbers that cannot be used, squares that overflow, labels that are no classes, or
    weights that are all zero.
    """
    dataset, problem = fit.dataset, fit.problem
    cuts = _cuts_of_rows(fit)
    reduction = ColumnStatisticsReduction(
        n_columns=dataset.n_columns,
        target_kind=problem.target_kind,
        n_targets=dataset.n_targets,
        tile_rows=cuts.tile_rows,
        rows_per_segment=-(-sample_rows(dataset.n_columns) // cuts.n_segments),
        seed=child_seed(problem.seed, "sample"),
        # Of few columns: their products with each other grow with the square of the columns.
        with_products=problem.target_kind == "numeric"
        and not dataset.is_sparse
        and dataset.n_columns + dataset.n_targets <= MAX_COLUMNS,
        folds=problem.held_out,
        n_rows=dataset.n_rows if dataset.n_targets else 0,
        least_target=-np.inf if problem.loss is None else problem.loss.least_target,
    )
    try:
        statistics: ColumnStatistics = fit.sum("column statistics", reduction, cuts)
    except ColumnError as error:
        raise error.named(dataset.column_names) from None
    if statistics.columns.weight <= 0:
        raise InputError("all sample weights are zero; give at least one row a positive weight")
    _check_mean_weight("sample_weight", statistics.columns.weight / statistics.n_rows)
    _check_sizes("{column} of X has", statistics.columns, dataset.column_names)
    if statistics.targets is not None:
        whose = "{column} of y has" if dataset.n_targets > 1 else "y has"
        _check_sizes(whose, statistics.targets, dataset.target_names)
    return statistics


def _cuts_of_rows(fit: FitContext) -> Segmentation:
    # Targets that may be very many are most of a row.
    n_targets = fit.dataset.n_targets if fit.problem.penalty.each_target else 0
    return light_segmentation(fit.dataset.n_rows, fit.dataset.n_columns + n_targets)


def _check_mean_weight(whose: str, mean: float) -> None:
    if not 1 / _LARGEST_WEIGHT <= mean <= _LARGEST_WEIGHT:
        raise InputError(
            f"{whose} is {mean:.3g} on average, but products of features hold weights from "
            f"{1 / _LARGEST_WEIGHT:g} to {_LARGEST_WEIGHT:g}; multiply all weights by one number, and alpha "
            f"by the same or C by its inverse, which changes no model"
        )


def _check_sizes(whose: str, moments: Moments, names: tuple[str, ...] | None) -> None:
    overflowing = np.flatnonzero(~np.isfinite(moments.deviations))
    if len(overflowing):
        message = (
            f"{whose} values so large that the sum of their squares is not finite; "
            f"divide them by a power of ten"
        )
        raise ColumnError(message, int(overflowing[0])).named(names)


def scaling_of(statistics: ColumnStatistics, scale: str, dataset: Dataset) -> Scaling:
    """The scaling, which for "auto" keeps sparse rows sparse.

    Without one it warns where the deviations of columns differ much.
    """
    if scale in WARPS:
        sample = statistics.sample()
        return Scaling.warped(scale, sample.X, sample.sample_weight, statistics.columns)
    if scale == "auto" and dataset.is_sparse:
        # Shifted columns would have no zeros any more.
        return Scaling.uncentred(statistics.columns)
    if scale != "none":
        return Scaling.standard(statistics.columns)
    names = dataset.column_names
    deviation = statistics.columns.standard_deviation()
    moving = np.flatnonzero(~statistics.columns.is_constant())
    # Constant columns matter to no kernel, whatever their rounding deviates.
    if len(moving) > 1:
        smallest, largest = moving[deviation[moving].argmin()], moving[deviation[moving].argmax()]
        if deviation[largest] > _SPREAD_WARNING * deviation[smallest]:
            smaller, larger = (
                column_called(int(j), None if names is None else names[j]) for j in (smallest, largest)
            )
            warn(
                f"{smaller} and {larger} have standard deviations {deviation[smallest]:.3g} and "
                f"{deviation[largest]:.3g}; a kernel of one length scale will hardly see the smaller one: "
                f"use scale='standard' or one length scale per column",
                DataWarning,
            )
    return Scaling()


def _targets(statistics: ColumnStatistics, problem: Problem) -> Targets:
    if problem.target_kind == "multilabel":
        assert statistics.targets is not None
        return MultilabelTargets(len(statistics.targets.mean))
    if statistics.targets is not None:
        mean, is_constant = statistics.targets.mean, statistics.targets.has_one_value()
        constant = np.flatnonzero(is_constant)
        if len(constant):
            warn(
                f"y is constant ({mean[constant[0]]:g}"
                + (f", column {constant[0]})" if len(mean) > 1 else ")")
                + "; the model will predict that constant",
                DataWarning,
            )
        units = "moments" if problem.loss is None else problem.loss.units
        if units == "own":
            return NumericTargets(np.zeros_like(mean), np.ones_like(mean))
        # Of a constant target the deviation is rounding: coded by it, the model would fit noise.
        deviation = np.where(is_constant, 0.0, statistics.targets.standard_deviation())
        if units == "moments":
            return NumericTargets.centred(mean, deviation)
        sample = statistics.sample()
        assert sample.y is not None
        coded = NumericTargets.by_spread(sample.y, sample.sample_weight, mean, deviation)
        far = (
            np.maximum(statistics.targets.max - coded.shift, coded.shift - statistics.targets.min)
            / coded.scale
        )
        if (far > _LOST_BESIDE).any():
            raise InputError(
                f"y has a target {far.max():.2g} times the spread of the others away, and sums of float64 "
                f"lose the losses of the others beside its own; leave such rows out"
            )
        # Without an intercept nothing would add the median back.
        shift = coded.shift if problem.fit_intercept else np.zeros_like(coded.shift)
        parts = (np.repeat(part, problem.n_quantiles) for part in (shift, coded.scale))
        return NumericTargets(*parts)
    labels = statistics.labels
    if labels is None:
        return NumericTargets(np.empty(0), np.empty(0))
    if problem.classes is not None:  # of partial_fit, whose later rows may bring the classes that lack here
        # The zeros are never looked at: partial_fit refuses "balanced", which alone would divide by them.
        weights = class_weights(problem.class_weight, problem.classes, np.zeros(len(problem.classes)))
        targets = ClassTargets(problem.classes, weights)
        targets.encode(labels.labels)  # raises for others
        return targets
    if len(labels.labels) < 2:
        raise InputError(
            f"y has one class only ({labels.labels.tolist()[0]!r}); "
            f"a classifier needs rows of at least two classes"
        )
    if (labels.weights <= 0).any():
        label = labels.labels[labels.weights <= 0].tolist()[0]
        raise InputError(
            f"all rows of class {label!r} have zero weight; drop them or give one a positive weight"
        )
    return ClassTargets(labels.labels, class_weights(problem.class_weight, labels.labels, labels.weights))


def _mean_square_norm(specification: FittedMap, statistics: ColumnStatistics, scaling: Scaling) -> float:
    """k(0), or the mean of ‖z(x)‖² over rows of the sample where it depends on the row."""
    if np.isfinite(specification.at_zero):
        return specification.at_zero
    sample = statistics.sample()
    s = np.ones(sample.X.shape[0]) if sample.sample_weight is None else sample.sample_weight
    # Of evenly spaced rows, as a sum over all would be another pass.
    rows = np.flatnonzero(s > 0)
    rows = rows[:: max(1, -(-len(rows) // _NORM_ROWS))]
    Z = specification.build().apply(scaling.apply(sample.X[rows], np.dtype(np.float64)))
    norm = float(s[rows] @ np.square(Z).sum(axis=1) / s[rows].sum()) if len(rows) else 0.0
    return norm if norm > 0 else 1.0


# The map: fitted on the sample of the first pass, and on the sums over all rows that it needs.


def _fitted_map(
    fit: FitContext, statistics: ColumnStatistics, scaling: Scaling, targets: Targets
) -> FeatureMap:
    """A clone of the map, fitted; its own seed wins over that of the fit."""
    features, sample = fit.problem.features, statistics.sample()
    X = scaling.apply(sample.X, np.dtype(np.float64))
    Y, s = None, sample.sample_weight
    if targets.n_outputs and sample.y is not None:
        Y, s = targets.encode(sample.y), targets.row_weights(sample.y, s)
        if fit.problem.loss is not None and fit.problem.loss.units == "spread":
            # Small models of squares would follow the far ones alone.
            counts = s is not None and s.any()  # rows of weight 0 do not
            half: dict[str, Any] = {"weights": s, "method": "inverted_cdf"} if counts else {}
            middle = np.quantile(Y, 0.5, axis=0, **half)
            Y = middle + np.clip(Y - middle, -_FAR_TARGET, _FAR_TARGET)
    # A stream of its own by name: the map is the same whatever else the fit draws.
    own = features.random_state
    seed = child_seed(fit.problem.seed, "features") if own is None else resolve_seed(own)
    penalty = fit.problem.ridge_penalty
    if penalty is not None:
        penalty /= curvature_at_mean(fit.problem, statistics)
    of_fit = Sample(
        X,
        Y,
        s,
        seed=seed,
        row_source=_RowsOfFit(fit, scaling, targets.n_outputs),
        has_classes=isinstance(targets, ClassTargets),
        column_scale=scaling.scale,
        column_shift=scaling.shift,
        column_ranges=np.stack([statistics.columns.min, statistics.columns.max]),
        column_names=fit.dataset.column_names,
        split=_split_by_folds(fit.problem.held_out, statistics.sample()),
        may_be_warped=fit.problem.scale == "auto",
        # A penalty belongs to sums over rows; the search divides its own sums by their weight.
        penalty=penalty and penalty / weight_of_rows(statistics, targets),
    )
    return clone(features).fit_sample(of_fit)


_LOST_BESIDE = 1e13  # a tenth of a spread then is below the last digit
_FAR_TARGET = 10.0  # spreads
# Of a sample that a search looks at; of few groups a third would often miss what half of them show.
_HELD_OUT_OF_SAMPLE = 1 / 3


def _split_by_folds(folds: Folds, sample: RowSample) -> Split | None:
    """Which rows of a sample a search judges and fits its models to; None for rows held out at random."""
    if folds.rows_are_exchangeable:
        return None
    is_fitted, is_judged = folds.masks(sample.keys, range(folds.n_folds))
    held_out, fitted = np.zeros(len(is_judged), bool), np.ones(len(is_judged), bool)
    # The last folds first: of spans of time their models have the most rows.
    for fold in reversed(range(folds.n_folds)):
        more, fewer = held_out | is_judged[:, fold], fitted & is_fitted[:, fold]
        if fewer.sum() >= max(1, more.sum()) and held_out.mean() < _HELD_OUT_OF_SAMPLE:
            held_out, fitted = more, fewer
    if not held_out.any():
        # Of each fold fewer rows are fitted than judged, as of a short window.
        fold = int(np.argmax(is_fitted.sum(axis=0) * is_judged.any(axis=0)))
        held_out, fitted = is_judged[:, fold], is_fitted[:, fold]
    if not (held_out.any() and fitted.any()):
        return None
    return Split(held_out, fitted & ~held_out, folds.units(sample.keys), folds.go_by_places)


@dataclass(frozen=True, eq=False)
class _RowsOfFit:
    """All rows of a fit, as a map sees them: each reduction is one pass."""

    fit: FitContext
    scaling: Scaling
    n_outputs: int
    before: FittedMap | None = None  # the map that rows go through first

    @property
    def n_rows(self) -> int:
        return self.fit.dataset.n_rows

    def after(self, step: FittedMap) -> _RowsOfFit:
        return replace(self, before=step)

    def __call__(self, reduction: MapReduction, *, min_features: int = 0) -> Any:
        fit = self.fit
        if min_features:
            self.check_size(min_features)  # refuses before another pass
        cuts = light_segmentation(self.n_rows, fit.dataset.n_columns)
        read = self.scaling, fit.features_dtype, cuts.tile_rows
        return fit.sum(reduction.label, MapSumsReduction(reduction, *read, before=self.before), cuts)

    def run_all(
        self, function: Callable[..., Any], arrays: Mapping[str, np.ndarray], calls: list[tuple]
    ) -> list[Any]:
        run = self.fit.run
        assert run is not None
        sent = run.send(dict(arrays))
        return run.map(function, [(sent, *call) for call in calls], group="search")

    def check_size(self, n_features: int) -> None:
        choose(self.fit, self.n_outputs, n_features)

    def of_map(self, features: FeatureMap) -> _RowsOfFit:
        return replace(self, fit=replace(self.fit, problem=replace(self.fit.problem, features=features)))

    def scaled(self, scaling: Scaling) -> _RowsOfFit:
        return replace(self, scaling=scaling)
