"""Seconds of a fit, from the rate at which the live workers do a little of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from distrff.engine.reduction import Arrays
from distrff.engine.run import Run
from distrff.estimators.fitting.options import FitOptions
from distrff.estimators.fitting.plan import (
    MOST_DIRECTIONS,
    PRESUMED_PASSES,
    PRESUMED_SWEEPS,
    THIN_SLOWNESS,
    Plan,
    Size,
    factorisation_flops,
    sample_size,
)
from distrff.features.specification import MapSpecification
from distrff.io.dataset import Dataset
from distrff.io.rows import Rows
from distrff.preprocessing.scaling import Scaling
from distrff.reductions.gram import GramReduction
from distrff.reductions.ridge import ProductReduction

_MEASURED_FLOPS = 6e10  # about a second
_WARM_ROWS = 16
_MOST_LANDMARKS = 1024  # of a map that is only timed
_COSINE_FLOPS = 18.0  # of the Gram's product take as long as a cosine in the compiled loop


@dataclass(frozen=True)
class _NoTargets:
    """Stands in for targets of any kind, whose values do not matter to the clock."""

    n_outputs: int

    def encode(self, y: np.ndarray) -> np.ndarray:
        return np.zeros((len(y), self.n_outputs))

    def row_weights(self, y: np.ndarray, sample_weight: np.ndarray | None) -> None:
        return None


def predicted_seconds(run: Run, dataset: Dataset, options: FitOptions, plan: Plan) -> float:
    """Return the predicted duration of the fit that `plan` counts.

    Every thread of the live workers does a piece of the Gram sweep on real rows at the
    same time, so that reading, the map, the products and the rivalry for memory are all
    in the rate; light sweeps follow from it by their counts. Kernels without a width yet are
    timed with width 1; the search for it is counted. Maps with triangular factors are timed with 1024
    landmarks, and the time grows with the flops of a row. What starting tasks takes is not, which
    shows where a fit takes a second.
    """
    if plan.solver == "cg":
        return _conjugate_seconds(run, dataset, options, plan)
    if plan.size.sparse_entries:
        # An epoch's products are about as many as those of its evaluation.
        return PRESUMED_PASSES * _light_seconds(run, dataset, options, plan, plan.size.n_outputs)
    threads, shape = plan.n_workers * plan.threads_per_worker, plan.size
    seconds_a_row = _gram_seconds_a_row(run, dataset, options, shape, threads)
    rows_a_thread = _rows_a_thread(dataset, plan)
    sweeps = 1 / shape.gram_stride + shape.n_light_sweeps * _light_work(shape) / _gram_work(shape)
    tasks = min(threads, max(1, shape.n_paths or shape.n_folds))
    afterwards = factorisation_flops(shape) / tasks + _search_flops(dataset, options) + shape.map_factor_flops
    return rows_a_thread * seconds_a_row * sweeps + afterwards * _seconds_a_float64_flop(shape, seconds_a_row)


def _conjugate_seconds(run: Run, dataset: Dataset, options: FitOptions, plan: Plan) -> float:
    """Return the predicted duration of the light sweeps that are presumed, after those of the factor."""
    k = plan.size.n_outputs
    seconds = PRESUMED_SWEEPS * _light_seconds(run, dataset, options, plan, k)
    if plan.n_search_sweeps:
        directions = min(MOST_DIRECTIONS, k * plan.folds_per_task)
        seconds += plan.n_search_sweeps * _light_seconds(run, dataset, options, plan, directions)
    if not plan.stride:
        return seconds
    threads, shape = plan.n_workers * plan.threads_per_worker, plan.size
    sampled = sample_size(shape, 1)
    by_gram = _gram_seconds_a_row(run, dataset, options, sampled, threads)
    factors = plan.n_factors * shape.n_features**3 / 3 / min(threads, plan.n_factors)
    flops = factors + _search_flops(dataset, options) + shape.map_factor_flops
    afterwards = flops * _seconds_a_float64_flop(sampled, by_gram)
    return seconds + _rows_a_thread(dataset, plan) * by_gram / plan.stride + afterwards


def _light_seconds(run: Run, dataset: Dataset, options: FitOptions, plan: Plan, k: int) -> float:
    """Return the predicted duration of one light sweep for k vectors."""
    return _rows_a_thread(dataset, plan) * _product_seconds_a_row(run, dataset, options, plan, k)


def _gram_work(shape: Size) -> float:
    """Return the work of a row of the Gram sweep, in flops of its product."""
    # The solve against the map's factors is in float64 always.
    solve = shape.triangle_numbers * 8 / shape.itemsize
    return shape.basis_flops + float(shape.gram_size) ** 2 + solve + _COSINE_FLOPS * shape.n_features


def _light_work(shape: Size) -> float:
    """Return the work of a row of a light sweep, in the same unit."""
    return THIN_SLOWNESS * shape.light_flops / shape.n_rows + _COSINE_FLOPS * shape.n_features


def _seconds_a_float64_flop(shape: Size, seconds_a_row: float) -> float:
    return seconds_a_row / _gram_work(shape) * 8 / shape.itemsize


def _gram_seconds_a_row(run: Run, dataset: Dataset, options: FitOptions, shape: Size, threads: int) -> float:
    specification, tried = _tried(dataset, options, shape)
    tile_rows = shape.segmentation().tile_rows
    reduction = _reduction(dataset, specification, tried, tile_rows)
    n_rows = int(min(dataset.n_rows, tile_rows, max(256, _MEASURED_FLOPS / tried.gram_size**2)))
    seconds = _seconds_a_row(run, dataset, reduction, n_rows, threads)
    return seconds * _gram_work(shape) / _gram_work(tried)


def _product_seconds_a_row(run: Run, dataset: Dataset, options: FitOptions, plan: Plan, k: int) -> float:
    threads = plan.n_workers * plan.threads_per_worker
    specification, tried = _tried(dataset, options, plan.size)
    reduction = ProductReduction(
        specification=specification,
        scaling=_no_scaling(dataset),
        targets=_NoTargets(tried.n_outputs),  # type: ignore[arg-type]
        offset=None,
        dtype=tried.dtype,
        tile_rows=plan.tile_rows,
        held_out=(None,) * k,
    )
    point = {"coef": np.zeros((tried.n_features, k)), "intercept": np.zeros(k)}
    n_rows = int(min(dataset.n_rows, 16 * plan.tile_rows))
    seconds = _seconds_a_row(run, dataset, reduction, n_rows, threads, point)
    return seconds * _light_work(plan.size) / _light_work(tried)


def _tried(dataset: Dataset, options: FitOptions, shape: Size) -> tuple[MapSpecification, Size]:
    """Return a map to be timed, and its shape: a small one where the factors of all landmarks take long."""
    features, d = options.features, dataset.n_columns
    if not features.cost_for(d).triangle_share:
        return features.trial(d).specification_, shape
    trial = features.trial(d, n_components=_MOST_LANDMARKS)
    tried = replace(shape, n_features=trial.specification_.n_features, map_cost=trial.cost_for(d))
    return trial.specification_, tried


def _rows_a_thread(dataset: Dataset, plan: Plan) -> int:
    rounds = -(-plan.n_segments // (plan.n_workers * plan.threads_per_worker))
    return min(dataset.n_rows, rounds * plan.segment_rows)


def _seconds_a_row(
    run: Run,
    dataset: Dataset,
    reduction: GramReduction | ProductReduction,
    n_rows: int,
    threads: int,
    arrays: Arrays | None = None,
) -> float:
    warm, timed = dataset.rows(0, min(_WARM_ROWS, n_rows)), dataset.rows(0, n_rows)
    calls = [(reduction, warm, timed, arrays or {})] * threads
    return float(np.median(run.gather(run.submit_all(seconds_of, calls)))) / n_rows


def _search_flops(dataset: Dataset, options: FitOptions) -> float:
    return options.features.search_flops_for(dataset.n_rows, dataset.n_columns)


def _reduction(
    dataset: Dataset, specification: MapSpecification, shape: Size, tile_rows: int
) -> GramReduction:
    return GramReduction(
        specification=specification,
        scaling=_no_scaling(dataset),
        targets=_NoTargets(shape.n_outputs),  # type: ignore[arg-type]
        dtype=shape.dtype,
        tile_rows=tile_rows,
    )


def _no_scaling(dataset: Dataset) -> Scaling:
    """Return a scaling that costs its time and changes nothing; sparse rows have none."""
    return (
        Scaling() if dataset.is_sparse else Scaling(np.zeros(dataset.n_columns), np.ones(dataset.n_columns))
    )


def seconds_of(reduction: GramReduction | ProductReduction, warm: Rows, timed: Rows, arrays: Arrays) -> float:
    """Return the seconds of reducing the rows, compilation and first touches not counted."""
    reduction.update(reduction.zero(), warm, arrays)
    A = reduction.zero()
    started = time.perf_counter()
    reduction.update(A, timed, arrays)
    return time.perf_counter() - started
