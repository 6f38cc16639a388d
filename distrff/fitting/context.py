"""One fit: what it was given, the plan of the solver that fits in memory, and what its first pass fixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from distrff.engine.progress import Observer
from distrff.engine.reduction import (
    Arrays,
    Reduction,
    Segmentation,
    gram_stride,
    gram_tile_rows,
    light_segmentation,
)
from distrff.engine.run import Run, Workers, begin_run, check_reading
from distrff.engine.tasks import SegmentCache
from distrff.errors import ColumnError, DataWarning, InputError, PlanRefused, column_called, warn
from distrff.features.base import FeatureMap, MapReduction, MapSpecification, ProjectedBlockMap, sample_rows
from distrff.features.equispaced import EquispacedFourierFeatures
from distrff.features.fourier import FourierBlockMap
from distrff.fitting.cost import Plan, Size, count, first_that_fits, segments_a_worker, with_kept
from distrff.fitting.moments import (
    ColumnStatistics,
    ColumnStatisticsReduction,
    MapSumsReduction,
)
from distrff.fitting.options import FitOptions
from distrff.fitting.rows import MappedRowsReduction, RowKeeping, RowReduction
from distrff.io.dataset import Dataset
from distrff.preprocessing.coding import (
    ClassTargets,
    MultilabelTargets,
    NumericTargets,
    Scaling,
    Targets,
    class_weights,
)
from distrff.preprocessing.folds import Folds
from distrff.preprocessing.moments import MAX_COLUMNS, Moments
from distrff.solvers.ridge import noise_floor
from distrff.utils.random import child_seed, resolve_seed

# Until the first pass has counted the classes, the plan assumes a handful.
_PRESUMED_CLASSES = 8
# A float32 phase of this size is wrong by up to 2⁻¹⁰ of a radian.
_LARGEST_FLOAT32_PHASE = 2.0**14
_SPREAD_WARNING = 100.0
_NORM_ROWS = 1024  # their mean is off by a 32nd of their standard deviation
_LARGEST_WEIGHT = 1e25  # on average: float32 holds its products with features, and those of its inverse


@dataclass(frozen=True, eq=False)
class Start:
    """What a fit takes over from an earlier one, beside its map: the model in the targets' own units."""

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
    options: FitOptions
    workers: Workers
    run: Run | None = None  # None where a fit is only planned, for workers that need not exist
    saving_buffer: int | None = None  # see `saving_buffer_bytes`; None without a checkpoint
    start: Start | None = None  # of a model to go on from

    @property
    def features_dtype(self) -> str:
        """The dtype of the features."""
        if self.options.features is not None and self.options.features.keeps_units:
            return "float64"  # phases of raw columns take all digits
        return features_dtype(self.dataset, self.options.requested_dtype(self.dataset.n_rows))

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
        """Return what one pass over all rows sums up; `arrays` go to each of its tasks.

        `kept` is what stays of the rows between passes of these cuts.
        """
        assert self.run is not None
        return self.run.value(self.run.sweep(label, self.dataset, reduction, cuts, arrays, kept))

    def of_map(self) -> dict[str, Any]:
        """Return what a plan counts of the map beside its features."""
        features = self.options.features
        return {
            "map_cost": features.cost_for(self.dataset.n_columns),
            "n_map_passes": features.n_passes,
            "sparse_entries": features.sparse_entries,
            **self._of_search(features),
        }

    def _of_search(self, features: FeatureMap) -> dict[str, Any]:
        shape = self.dataset.n_rows, self.dataset.n_columns
        return {
            "search_flops": features.search_flops_for(*shape),
            "search_bytes": features.search_bytes_for(*shape),
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedFit(FitContext):
    """A fit after its first pass: all that is known before its solver begins."""

    run: Run
    statistics: ColumnStatistics
    scaling: Scaling
    targets: Targets
    specification: MapSpecification  # of the fitted map
    features: FeatureMap | None  # the fitted map itself; None where only its specification is known
    mean_square_norm: float  # mean of ‖z(x)‖²: k(0), or measured for maps that have none
    weight: float  # Σs, class weights included

    @property
    def gram_dtype(self) -> str:
        """float64 where the least alpha would drown in the rounding of float32 products."""
        dtype, min_alpha = self.features_dtype, self.options.min_alpha
        below = min_alpha is not None and min_alpha < self.noise_floor(dtype)
        return "float64" if below else dtype

    def of_map(self) -> dict[str, Any]:
        if self.features is None:
            return {"map_cost": self.specification.cost}
        # The options have the map that was chosen; the search was that of the map that chose it.
        return super().of_map() | self._of_search(self.features)

    def noise_floor(self, dtype: str) -> float:
        """Return the alpha below which a Gram of products in this dtype is noise; 0 for float64."""
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
        """Return a reduction of this fit's rows, scaled, mapped and coded, with parameters of its own."""
        return kind(specification=self.specification, scaling=self.scaling, targets=self.targets, **own)

    def mapped_rows(self, plan: Plan) -> Any:
        """Return a handle on the features of all rows, which are few, from one pass."""
        cuts = light_segmentation(self.dataset.n_rows, self.dataset.n_columns)
        reduction = self.reduction(MappedRowsReduction, dtype=plan.size.dtype, tile_rows=cuts.tile_rows)
        return self.run.sweep("mapped rows", self.dataset, reduction, cuts)

    def kept(
        self, passes: str, plan: Plan, cuts: Segmentation, *, of_basis: bool = True
    ) -> SegmentCache | None:
        """Return what is to stay of the rows between the passes of a name and these cuts; None for nothing.

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
        return self.run.kept(passes, cuts, levels)

    def frequencies_beyond_float32(self) -> int:
        """Return how many frequencies have phases on the data that float32 cannot hold well.

        A phase θ in float32 is off by about 2⁻²⁴·θ; counted are frequencies for which
        Σ_j |ω_j|·max|x_j|, or another bound of |θ| over the rows, exceeds 2¹⁴.
        """
        block_map, magnitude, scaling = self.specification.build(), self.statistics.magnitude, self.scaling
        if scaling.shift is not None:
            magnitude = magnitude + np.abs(scaling.shift)
        if scaling.scale is not None:
            magnitude = magnitude / scaling.scale
        if isinstance(block_map, ProjectedBlockMap):
            magnitude, block_map = np.abs(block_map.P) @ magnitude, block_map.inner
        if not isinstance(block_map, FourierBlockMap):
            return 0
        return int((block_map.projection.largest_phases(magnitude) > _LARGEST_FLOAT32_PHASE).sum())

    def starting_point(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return coef (D, k) and intercept (k,) to go on from, in coded units; None for a fit anew."""
        if self.start is None:
            return None
        scale = self.targets.scale
        coef = self.start.coef / scale
        if not self.options.fit_intercept:  # then solvers take back the shift of the targets
            return coef, np.zeros_like(self.start.intercept)
        return coef, (self.start.intercept - self.targets.shift) / scale

    def folds_apart(self, n_folds: int, by: str) -> Folds | None:
        """Return the folds of the fit; None where there is one, of all rows."""
        return None if n_folds == 1 else self.folds("folds", n_folds, by)

    def starting_columns(self) -> np.ndarray | None:
        """Return the point to go on from as a column for each output, the intercept last if it is fitted."""
        start = self.starting_point()
        if start is None:
            return None
        coef, intercept = start
        return np.vstack([coef, intercept]) if self.options.fit_intercept else coef

    def folds(self, purpose: str, n_folds: int, by: str) -> Folds:
        """Return an assignment of the rows to folds, drawn from the fit's seed."""
        return Folds(n_folds, child_seed(self.options.seed, purpose), by, self.dataset.n_rows)


def begin(
    dataset: Dataset,
    options: FitOptions,
    saving_buffer: int | None = None,
    observer: Observer | None = None,
) -> FitContext:
    """Return the context of a fit on the active Dask client, or dask's configured scheduler.

    `saving_buffer` is that of its checkpoint; see `saving_buffer_bytes`. `observer` is told of its passes.

    Raises ClusterError if there are none, or they cannot run distrff.
    """
    run = begin_run()
    handle = dataset.rows(0, 1) if dataset.block_rows is None else None  # others would have their blocks read
    run.execution.measure_idle((RowReduction, handle))
    if observer is not None:
        run.observer = observer
    return within_memory(FitContext(dataset, options.for_dataset(dataset), run.execution, run, saving_buffer))


def within_memory(fit: FitContext) -> FitContext:
    """Return the fit with as many equispaced features at most as memory allows, where their number is free.

    Most fits take far fewer than the default limit, so that a plan for that many is no reason to refuse one.
    """
    features, dataset = fit.options.features, fit.dataset
    if not isinstance(features, EquispacedFourierFeatures) or features.n_components is not None:
        return fit
    n = most = features.n_features_for(dataset.n_columns, dataset.n_rows)
    while n > _FEW_FEATURES:
        try:
            choose_solver(fit, _presumed_outputs(fit), n)
            break
        except PlanRefused:
            n //= 2
    if n == most:
        return fit
    return replace(fit, options=replace(fit.options, features=clone(features).set_params(n_components=n)))


_FEW_FEATURES = 2**12


# The plan.


def expected_plan(fit: FitContext) -> Plan:
    """Return the plan as far as it can be counted before the first pass.

    Raises InputError for rows or columns that the parameters or the map are not for, and PlanRefused where
    the fit would not fit in the workers' memory.
    """
    dataset, options = fit.dataset, fit.options
    options.check_dataset(dataset)
    check_reading(fit.workers, dataset)
    plan = choose_solver(fit, _presumed_outputs(fit), outputs_are_presumed=options.target_kind == "classes")
    # Only now, for it draws a small map of all columns.
    options.features.check_columns(dataset.n_columns)
    return plan


def _presumed_outputs(fit: FitContext) -> int:
    n_targets = fit.dataset.n_targets
    counts = {"numeric": n_targets, "multilabel": n_targets, "classes": _PRESUMED_CLASSES, "none": 0}
    return counts[fit.options.target_kind]


def choose_solver(
    fit: FitContext, n_outputs: int, n_features: int | None = None, *, outputs_are_presumed: bool = False
) -> Plan:
    """Return the plan of the first of the candidate solvers that fits in the workers' memory.

    Raises PlanRefused if none fits; the message names the smallest changes with which the first would.
    `n_features` is None before the map is fitted; exact bins are then counted as few as they could be.
    """
    dataset, options = fit.dataset, fit.options
    if n_features is None:
        n_features = options.features.n_features_for(dataset.n_columns, dataset.n_rows)
    size = Size(
        n_rows=dataset.n_rows,
        n_columns=dataset.n_columns,
        n_features=n_features,
        n_outputs=n_outputs,
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
        **fit.of_map(),
        **options.work(dataset.n_rows, n_features, n_outputs),
        gram_stride=gram_stride(dataset.n_rows, n_features) if options.samples_gram else 1,
    )
    of_gram = replace(size, dtype=fit.gram_dtype)
    plan = first_that_fits(
        count(solver, of_gram if solver == "gram" else size, fit.workers) for solver in options.candidates
    )
    return with_kept(plan, options.keep_features, fit.workers)


def features_dtype(dataset: Dataset, dtype: str) -> str:
    """Return the dtype given; for "auto" the one that loses nothing of the columns.

    That is float32 for float32 and integers of at most 16 bits.
    """
    if dtype != "auto":
        return dtype
    return "float32" if np.can_cast(dataset.dtype, np.float32, "safe") else "float64"


# The first pass, and what follows from it: scaling, coded targets, and the fitted map.


def prepare(fit: FitContext) -> PreparedFit:
    """Return the fit with scaling, targets and map; a map that is fitted already stays as it is.

    Raises InputError for numbers that cannot be used, or what the targets or the map cannot be made of,
    and PlanRefused as soon as it is certain that the map has too many columns.
    """
    dataset, options, run = fit.dataset, fit.options, fit.run
    assert run is not None
    run.begin_phase("column statistics")
    statistics = first_pass(fit)
    run.begin_phase("map")
    keeps_units = options.features is not None and options.features.keeps_units
    if fit.start is not None:
        scaling = fit.start.scaling
    else:
        scaling = Scaling() if keeps_units else scaling_of(statistics, options.scale, dataset)
    targets = _targets(statistics, options)
    if fit.start is not None:
        fit.start.check(targets)
    weight = weight_of_rows(statistics, targets)
    features = options.features
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
    options.check_targets(targets)
    if features.resolved.keeps_units:
        scaling = Scaling()
    # What follows is planned and counted for the map that was chosen, where one was.
    fit = replace(fit, options=replace(options, features=features.resolved))
    return PreparedFit(
        **vars(fit),
        statistics=statistics,
        scaling=scaling,
        targets=targets,
        specification=features.specification_,
        features=features,
        mean_square_norm=_mean_square_norm(features.specification_, statistics, scaling),
        weight=weight,
    )


def weight_of_rows(statistics: ColumnStatistics, targets: Targets) -> float:
    """Return Σs of the rows, class weights included; raise InputError if they are too large or small."""
    weight, labels = statistics.columns.weight, statistics.labels
    if isinstance(targets, ClassTargets) and targets.class_weight is not None:
        assert labels is not None
        weight = float(targets.class_weight[targets.indices(labels.labels)] @ labels.weights)
    _check_mean_weight("sample_weight times class_weight", weight / statistics.n_rows)
    return weight


def first_pass(fit: FitContext) -> ColumnStatistics:
    """Return the statistics of all columns, which one pass sums.

    Raises InputError for numbers that cannot be used, squares that overflow, labels that are no classes, or
    weights that are all zero.
    """
    dataset, options = fit.dataset, fit.options
    cuts = light_segmentation(dataset.n_rows, dataset.n_columns)
    reduction = ColumnStatisticsReduction(
        n_columns=dataset.n_columns,
        target_kind=options.target_kind,
        n_targets=dataset.n_targets,
        tile_rows=cuts.tile_rows,
        rows_per_segment=-(-sample_rows(dataset.n_columns) // cuts.n_segments),
        seed=child_seed(options.seed, "sample"),
        with_products=options.target_kind == "numeric"
        and not dataset.is_sparse
        and dataset.n_columns + dataset.n_targets <= MAX_COLUMNS,
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
    """Return the scaling, which for "auto" keeps sparse rows sparse.

    Without one it warns where the deviations of columns differ much.
    """
    if scale == "auto" and dataset.is_sparse:
        return Scaling.uncentred(statistics.columns)
    if scale != "none":
        return Scaling.standard(statistics.columns)
    names = dataset.column_names
    deviation = statistics.columns.standard_deviation()
    moving = np.flatnonzero(~statistics.columns.is_constant())
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


def _targets(statistics: ColumnStatistics, options: FitOptions) -> Targets:
    if options.target_kind == "multilabel":
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
        return NumericTargets.centred(
            mean, np.where(is_constant, 0.0, statistics.targets.standard_deviation())
        )
    labels = statistics.labels
    if labels is None:
        return NumericTargets(np.empty(0), np.empty(0))
    if options.classes is not None:
        weights = class_weights(options.class_weight, options.classes, np.zeros(len(options.classes)))
        targets = ClassTargets(options.classes, weights)
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
    return ClassTargets(labels.labels, class_weights(options.class_weight, labels.labels, labels.weights))


def _mean_square_norm(
    specification: MapSpecification, statistics: ColumnStatistics, scaling: Scaling
) -> float:
    """Return k(0), or the mean of ‖z(x)‖² over rows of the sample where it depends on the row."""
    if np.isfinite(specification.at_zero):
        return specification.at_zero
    sample = statistics.sample()
    s = np.ones(sample.X.shape[0]) if sample.sample_weight is None else sample.sample_weight
    rows = np.flatnonzero(s > 0)
    rows = rows[:: max(1, -(-len(rows) // _NORM_ROWS))]
    Z = specification.build().apply(scaling.apply(sample.X[rows], np.dtype(np.float64)))
    norm = float(s[rows] @ np.square(Z).sum(axis=1) / s[rows].sum()) if len(rows) else 0.0
    return norm if norm > 0 else 1.0


# The map: fitted on the sample of the first pass, and on the sums over all rows that it needs.


def _fitted_map(
    fit: FitContext, statistics: ColumnStatistics, scaling: Scaling, targets: Targets
) -> FeatureMap:
    """Return a clone of the map, fitted; its own seed wins over that of the fit."""
    features, sample = fit.options.features, statistics.sample()
    X = scaling.apply(sample.X, np.dtype(np.float64))
    Y, s = None, sample.sample_weight
    if targets.n_outputs and sample.y is not None:
        Y, s = targets.encode(sample.y), targets.row_weights(sample.y, s)
    own = features.random_state
    seed = child_seed(fit.options.seed, "features") if own is None else resolve_seed(own)
    return clone(features).fit_sample(
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
        penalty=fit.options.penalty and fit.options.penalty / weight_of_rows(statistics, targets),
    )


@dataclass(frozen=True, eq=False)
class _RowsOfFit:
    """All rows of a fit, as a map sees them: each reduction is one pass."""

    fit: FitContext
    scaling: Scaling
    n_outputs: int
    before: MapSpecification | None = None  # the map that rows go through first

    @property
    def n_rows(self) -> int:
        return self.fit.dataset.n_rows

    def after(self, step: MapSpecification) -> _RowsOfFit:
        return replace(self, before=step)

    def __call__(self, map_reduction: MapReduction, *, min_features: int = 0) -> Any:
        fit = self.fit
        if min_features:
            self.check_size(min_features)  # refuses before another pass
        cuts = light_segmentation(self.n_rows, fit.dataset.n_columns)
        read = self.scaling, fit.features_dtype, cuts.tile_rows
        reduction = MapSumsReduction(map_reduction, *read, before=self.before)
        return fit.sum(map_reduction.label, reduction, cuts)

    def run_all(
        self, function: Callable[..., Any], arrays: Mapping[str, np.ndarray], calls: list[tuple]
    ) -> list[Any]:
        run = self.fit.run
        assert run is not None
        sent = run.send(dict(arrays))
        return run.compute_all(function, [(sent, *call) for call in calls], group="search")

    def check_size(self, n_features: int) -> None:
        choose_solver(self.fit, self.n_outputs, n_features)

    def of_map(self, features: FeatureMap) -> _RowsOfFit:
        return replace(self, fit=replace(self.fit, options=replace(self.fit.options, features=features)))
