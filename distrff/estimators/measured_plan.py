"""Seconds of a fit, from the rate at which the live workers do a little of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from distrff.columns.scaling import Scaling
from distrff.data.dataset import Dataset
from distrff.data.rows import Rows
from distrff.estimators.options import FitOptions
from distrff.features.widths import width_flops
from distrff.sweeps.conjugate_plan import PRESUMED_SWEEPS, ConjugatePlan, sample_shape
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.gram import GramReduction
from distrff.sweeps.plan import Plan, Shape, factorisation_flops
from distrff.sweeps.reduction import Shipped
from distrff.sweeps.ridge_products import ProductReduction

_MEASURED_FLOPS = 6e10  # about a second
_WARM_ROWS = 16
# Beside a flop of the Gram's product: a cosine in the compiled loop, and a flop of a thin product.
_COSINE_FLOPS, _THIN_SLOWNESS = 18.0, 2.5


@dataclass(frozen=True)
class _NoTargets:
    """Stands in for targets of any kind, whose values do not matter to the clock."""

    n_outputs: int

    def encode(self, y: np.ndarray) -> np.ndarray:
        return np.zeros((len(y), self.n_outputs))

    def row_weights(self, y: np.ndarray, sample_weight: np.ndarray | None) -> None:
        return None


def predicted_seconds(run: SweepRun, dataset: Dataset, options: FitOptions, plan: Plan) -> float:
    """Return the predicted duration of the fit that `plan` counts.

    Every thread of the live workers does a piece of the Gram sweep on real rows at the
    same time, so that reading, the map, the products and the rivalry for memory are all
    in the rate; light sweeps follow from it by their counts. Kernels without a width yet are
    timed with width 1; the search for it is counted. What starting tasks takes is not, which
    shows where a fit takes a second.
    """
    if isinstance(plan, ConjugatePlan):
        return _conjugate_seconds(run, dataset, options, plan)
    threads = plan.n_workers * plan.threads_per_worker
    n_rows = int(min(dataset.n_rows, plan.tile_rows, max(256, _MEASURED_FLOPS / plan.shape.size**2)))
    reduction = _reduction(dataset, options, plan.shape, plan.tile_rows)
    seconds_a_row = _seconds_a_row(run, dataset, reduction, n_rows, threads)
    rows_a_thread = _rows_a_thread(dataset, plan)
    shape = plan.shape
    cosines = _COSINE_FLOPS * float(shape.n_rows) * shape.n_features
    light = shape.n_light_sweeps * (
        _THIN_SLOWNESS * shape.light_flops + shape.n_rows * shape.triangle_numbers + cosines
    )
    sweeps = 1 / shape.gram_one_in + light / (shape.gram_flops * shape.gram_one_in + cosines)
    float64_flops_a_second = plan.shape.size**2 / seconds_a_row * plan.shape.itemsize / 8
    tasks = min(threads, max(1, plan.shape.n_folds))
    afterwards = factorisation_flops(plan.shape) / tasks + _search_flops(dataset, options)
    return rows_a_thread * seconds_a_row * sweeps + afterwards / float64_flops_a_second


def _conjugate_seconds(run: SweepRun, dataset: Dataset, options: FitOptions, plan: ConjugatePlan) -> float:
    """Return the predicted duration of the light sweeps that are presumed, after those of the factor."""
    threads, shape = plan.n_workers * plan.threads_per_worker, plan.shape
    sampled = sample_shape(shape, 1)
    trial = _reduction(dataset, options, sampled, sampled.segmentation().tile_rows)
    light = ProductReduction(
        specification=trial.specification,
        scaling=trial.scaling,
        targets=trial.targets,
        offset=None,
        dtype=shape.dtype,
        tile_rows=plan.tile_rows,
        n_directions=shape.n_outputs,
    )
    point = {"coef": np.zeros((shape.n_features, shape.n_outputs)), "intercept": np.zeros(shape.n_outputs)}
    n_rows = int(min(dataset.n_rows, 16 * plan.tile_rows))
    seconds = PRESUMED_SWEEPS * _seconds_a_row(run, dataset, light, n_rows, threads, point)
    afterwards = 0.0
    if plan.one_in:
        n_rows = int(min(dataset.n_rows, trial.tile_rows, max(256, _MEASURED_FLOPS / shape.size**2)))
        by_gram = _seconds_a_row(run, dataset, trial, n_rows, threads)
        seconds += by_gram / plan.one_in
        factors = plan.n_factors * shape.n_features**3 / 3 / min(threads, plan.n_factors)
        afterwards = (factors + _search_flops(dataset, options)) * by_gram / shape.size**2
    return _rows_a_thread(dataset, plan) * seconds + afterwards


def _rows_a_thread(dataset: Dataset, plan: Plan) -> int:
    rounds = -(-plan.n_segments // (plan.n_workers * plan.threads_per_worker))
    return min(dataset.n_rows, rounds * plan.segment_rows)


def _seconds_a_row(
    run: SweepRun,
    dataset: Dataset,
    reduction: GramReduction | ProductReduction,
    n_rows: int,
    threads: int,
    shipped: Shipped = None,
) -> float:
    warm, timed = dataset.rows(0, min(_WARM_ROWS, n_rows)), dataset.rows(0, n_rows)
    calls = [(reduction, warm, timed, shipped)] * threads
    return float(np.median(run.gather(run.submit_all(seconds_of, calls)))) / n_rows


def _search_flops(dataset: Dataset, options: FitOptions) -> float:
    kernel = getattr(options.features, "kernel", None)
    n_features = options.features.n_features_for(dataset.n_columns)
    return width_flops(kernel, dataset.n_rows, dataset.n_columns, n_features)


def _reduction(dataset: Dataset, options: FitOptions, shape: Shape, tile_rows: int) -> GramReduction:
    d = dataset.n_columns
    return GramReduction(
        specification=options.features.trial(d).specification_,
        scaling=Scaling() if dataset.is_sparse else Scaling(np.zeros(d), np.ones(d)),
        targets=_NoTargets(shape.n_outputs),  # type: ignore[arg-type]
        dtype=shape.dtype,
        tile_rows=tile_rows,
    )


def seconds_of(
    reduction: GramReduction | ProductReduction, warm: Rows, timed: Rows, shipped: Shipped
) -> float:
    """Return the seconds of reducing the rows, compilation and first touches not counted."""
    reduction.update(reduction.zero(), warm, shipped)
    A = reduction.zero()
    started = time.perf_counter()
    reduction.update(A, timed, shipped)
    return time.perf_counter() - started
