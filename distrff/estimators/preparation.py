"""From the first sweep to a machine's fixed parts: scaling, coded targets, and the fitted map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from distrff.columns.moments import Moments
from distrff.columns.scaling import Scaling
from distrff.columns.targets import ClassTargets, NumericTargets, Targets, class_weights
from distrff.data.dataset import Dataset
from distrff.errors import ColumnError, DataWarning, InputError, column_called, warn
from distrff.estimators.map_fit import AskedOfDataset, fit_map
from distrff.estimators.options import FitOptions
from distrff.features.base import FeatureMap
from distrff.features.fourier import FourierBlockMap
from distrff.features.specification import MapSpecification
from distrff.ingest.column_statistics import ColumnStatistics, ColumnStatisticsReduction, sample_rows
from distrff.random_streams import child_seed
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.segments import light_segmentation

# A float32 phase of this size is wrong by up to 2⁻¹⁰ of a radian.
_LARGEST_FLOAT32_PHASE = 2.0**14
_SPREAD_WARNING = 100.0
_NORM_ROWS = 1024  # whose mean is off by a thirtieth of their spread
_LARGEST_WEIGHT = 1e25  # on average: float32 holds its products with features, and those of its inverse


@dataclass(frozen=True, eq=False)
class Preparation:
    """What is fixed before the Gram sweep.

    Parameters
    ----------
    statistics : ColumnStatistics
    scaling : Scaling
    targets : Targets
    specification : MapSpecification
        Of the fitted map.
    features : FeatureMap or None
        The fitted map itself; None where only its specification is known.
    mean_square_norm : float
        Mean of ‖z(x)‖²: k(0), or measured for maps that have none.
    weight : float
        Σs, class weights included.
    """

    statistics: ColumnStatistics
    scaling: Scaling
    targets: Targets
    specification: MapSpecification
    features: FeatureMap | None
    mean_square_norm: float
    weight: float


def first_sweep(run: SweepRun, dataset: Dataset, *, target_kind: str, seed: int) -> ColumnStatistics:
    """Return the statistics of all columns, after one pass.

    Raises
    ------
    InputError
        For numbers that cannot be used, squares that overflow, labels that are no classes, or
        weights that are all zero.
    """
    cuts = light_segmentation(dataset.n_rows, dataset.n_columns)
    reduction = ColumnStatisticsReduction(
        n_columns=dataset.n_columns,
        target_kind=target_kind,
        n_targets=dataset.n_targets,
        tile_rows=cuts.tile_rows,
        rows_per_segment=-(-sample_rows(dataset.n_columns) // cuts.n_segments),
        seed=child_seed(seed, "sample"),
    )
    try:
        handle = run.sweep("column statistics", dataset, reduction, cuts)
        statistics: ColumnStatistics = run.gather([handle])[0]
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
            f"by the same or C by its inverse, which changes no machine"
        )


def _check_sizes(whose: str, moments: Moments, names: tuple[str, ...] | None) -> None:
    overflowing = np.flatnonzero(~np.isfinite(moments.deviations))
    if len(overflowing):
        message = (
            f"{whose} values so large that the sum of their squares is not finite; "
            f"divide them by a power of ten"
        )
        raise ColumnError(message, int(overflowing[0])).named(names)


def prepare_fit(
    run: SweepRun,
    dataset: Dataset,
    options: FitOptions,
    *,
    target_kind: str,
    dtype: str,
    class_weight: Any = None,
    recount: Callable[[int, int], Any] | None = None,
) -> Preparation:
    """Return what is fixed before the Gram sweep of a fit, after the first one and what its map asks."""
    run.begin_phase("column statistics")
    statistics = first_sweep(run, dataset, target_kind=target_kind, seed=options.seed)
    run.begin_phase("map")
    return prepare(
        run,
        dataset,
        statistics,
        options.features,
        scale=options.scale,
        dtype=dtype,
        class_weight=class_weight,
        seed=options.seed,
        recount=recount,
    )


def prepare(
    run: SweepRun,
    dataset: Dataset,
    statistics: ColumnStatistics,
    features: FeatureMap,
    *,
    scale: str,
    dtype: str,
    class_weight: Any = None,
    seed: int,
    recount: Callable[[int, int], Any] | None = None,
) -> Preparation:
    """Return scaling, targets and the map that follow from the first sweep; a fitted map stays as it is.

    `recount` counts the plan for a number of outputs and of features; it is asked again as the map grows.

    Raises
    ------
    InputError
        For what the targets or the map cannot be made of.
    PlanRefused
        By `recount`, as soon as it is certain that the map has too many columns.
    """
    scaling = scaling_of(statistics, scale, dataset.column_names)
    targets = _targets(statistics, class_weight)
    weight = _total_weight(statistics, targets)
    _check_mean_weight("sample_weight times class_weight", weight / statistics.n_rows)
    fitted = features
    if not hasattr(features, "specification_"):
        again = None if recount is None else partial(recount, targets.n_outputs)
        ask = AskedOfDataset(run, dataset, scaling, dtype, again)
        looked_at = targets if targets.n_outputs else None
        try:
            fitted = fit_map(features, statistics, scaling, looked_at, seed=seed, ask=ask)
        except ColumnError as error:
            raise error.named(dataset.column_names) from None
    n_columns = len(statistics.columns.mean)
    if fitted.n_features_in_ != n_columns:
        raise InputError(
            f"X has {n_columns} columns, but the feature map was fitted to {fitted.n_features_in_}; "
            f"give the columns it was fitted to, or a map that is not fitted"
        )
    return Preparation(
        statistics=statistics,
        scaling=scaling,
        targets=targets,
        specification=fitted.specification_,
        features=fitted,
        mean_square_norm=_mean_square_norm(fitted.specification_, statistics, scaling),
        weight=weight,
    )


def scaling_of(statistics: ColumnStatistics, scale: str, names: tuple[str, ...] | None) -> Scaling:
    """Return the scaling asked for; warn where none is and the columns differ much."""
    if scale == "standard":
        return Scaling.standard(statistics.columns)
    deviation = statistics.columns.standard_deviation()
    moving = np.flatnonzero(~statistics.columns.is_constant())
    if len(moving) > 1:
        least, most = moving[deviation[moving].argmin()], moving[deviation[moving].argmax()]
        if deviation[most] > _SPREAD_WARNING * deviation[least]:
            smaller, larger = (
                column_called(int(j), None if names is None else names[j]) for j in (least, most)
            )
            warn(
                f"{smaller} and {larger} have standard deviations {deviation[least]:.3g} and "
                f"{deviation[most]:.3g}; a kernel of one width will hardly see the smaller one: "
                f"use scale='standard' or one length scale per column",
                DataWarning,
            )
    return Scaling()


def _targets(statistics: ColumnStatistics, class_weight: Any) -> Targets:
    if statistics.targets is not None:
        mean, is_constant = statistics.targets.mean, statistics.targets.has_one_value()
        constant = np.flatnonzero(is_constant)
        if len(constant):
            warn(
                f"y is constant ({mean[constant[0]]:g}"
                + (f", column {constant[0]})" if len(mean) > 1 else ")")
                + "; the machine will predict that constant",
                DataWarning,
            )
        return NumericTargets.centred(
            mean, np.where(is_constant, 0.0, statistics.targets.standard_deviation())
        )
    labels = statistics.labels
    if labels is None:
        return NumericTargets(np.empty(0), np.empty(0))
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
    return ClassTargets(labels.labels, class_weights(class_weight, labels.labels, labels.weights))


def _total_weight(statistics: ColumnStatistics, targets: Targets) -> float:
    if (
        isinstance(targets, ClassTargets)
        and targets.class_weight is not None
        and statistics.labels is not None
    ):
        return float(targets.class_weight @ statistics.labels.weights)
    return statistics.columns.weight


def _mean_square_norm(
    specification: MapSpecification, statistics: ColumnStatistics, scaling: Scaling
) -> float:
    """Return k(0), or the mean of ‖z(x)‖² over rows of the sample where it depends on the row."""
    if np.isfinite(specification.at_zero):
        return specification.at_zero
    sample = statistics.sample()
    s = np.ones(sample.X.shape[0]) if sample.sample_weight is None else sample.sample_weight
    rows = _evenly_spaced(np.flatnonzero(s > 0), _NORM_ROWS)
    Z = specification.build().apply(scaling.apply(sample.X[rows], np.dtype(np.float64)))
    norm = float(s[rows] @ np.square(Z).sum(axis=1) / s[rows].sum()) if len(rows) else 0.0
    return norm if norm > 0 else 1.0


def _evenly_spaced(rows: np.ndarray, most: int) -> np.ndarray:
    """Return at most so many of the rows, from first to last."""
    return rows[:: max(1, -(-len(rows) // most))]


def frequencies_beyond_float32(preparation: Preparation) -> int:
    """Return how many frequencies have phases on the data that float32 cannot hold well.

    A phase θ in float32 is off by about 2⁻²⁴·θ; counted are frequencies for which
    Σ_j |ω_j|·max|x_j|, or another bound of |θ| over the rows, exceeds 2¹⁴.
    """
    block_map = preparation.specification.build()
    if not isinstance(block_map, FourierBlockMap):
        return 0
    statistics, scaling = preparation.statistics, preparation.scaling
    magnitude = statistics.magnitude
    if scaling.shift is not None and scaling.scale is not None:
        magnitude = (magnitude + np.abs(scaling.shift)) / scaling.scale
    return int((block_map.projection.largest_phases(magnitude) > _LARGEST_FLOAT32_PHASE).sum())
