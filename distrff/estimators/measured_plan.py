"""Seconds of a fit, from the rate at which the live workers do a little of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from distrff.columns.scaling import Scaling
from distrff.data.dataset import Dataset
from distrff.data.rows import Rows
from distrff.estimators.options import FitOptions
from distrff.estimators.preparation import trial_map
from distrff.features.length_scale import search_flops
from distrff.sweeps.engine import SweepRun
from distrff.sweeps.gram import GramReduction
from distrff.sweeps.plan import Plan, factorisation_flops

_MEASURED_FLOPS = 6e10  # about a second
_WARM_ROWS = 16
# Beside a flop of the Gram's product: a cosine in the compiled loop, and a flop of a thin product.
_COSINE_FLOPS, _THIN_SLOWNESS = 90.0, 2.5


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
    threads = plan.n_workers * plan.threads_per_worker
    n_rows = int(min(dataset.n_rows, plan.tile_rows, max(256, _MEASURED_FLOPS / plan.shape.size**2)))
    warm, timed = dataset.rows(0, min(_WARM_ROWS, n_rows)), dataset.rows(0, n_rows)
    calls = [(_reduction(dataset, options, plan), warm, timed)] * threads
    seconds_a_row = float(np.median(run.gather(run.submit_all(seconds_of, calls)))) / n_rows
    rounds = -(-plan.n_segments // threads)
    rows_a_thread = min(dataset.n_rows, rounds * plan.segment_rows)
    shape = plan.shape
    cosines = _COSINE_FLOPS * float(shape.n_rows) * shape.n_features
    light = shape.n_light_sweeps * (_THIN_SLOWNESS * shape.light_flops + cosines)
    sweeps = 1 / shape.gram_one_in + light / (shape.gram_flops * shape.gram_one_in + cosines)
    float64_flops_a_second = plan.shape.size**2 / seconds_a_row * plan.shape.itemsize / 8
    tasks = min(threads, max(1, plan.shape.n_folds))
    afterwards = factorisation_flops(plan.shape) / tasks + _search_flops(dataset, options)
    return rows_a_thread * seconds_a_row * sweeps + afterwards / float64_flops_a_second


def _search_flops(dataset: Dataset, options: FitOptions) -> float:
    kernel = getattr(options.features, "kernel", None)
    if kernel is None or not kernel.is_auto:
        return 0.0
    return search_flops(dataset.n_rows, options.features.n_features_for(dataset.n_columns))


def _reduction(dataset: Dataset, options: FitOptions, plan: Plan) -> GramReduction:
    d = dataset.n_columns
    return GramReduction(
        specification=trial_map(options.features, d).specification_,
        scaling=Scaling(np.zeros(d), np.ones(d)),
        targets=_NoTargets(plan.shape.n_outputs),  # type: ignore[arg-type]
        dtype=plan.shape.dtype,
        tile_rows=plan.tile_rows,
    )


def seconds_of(reduction: GramReduction, warm: Rows, timed: Rows) -> float:
    """Return the seconds of reducing the rows, compilation and first touches not counted."""
    reduction.update(reduction.zero(), warm, None)
    A = reduction.zero()
    started = time.perf_counter()
    reduction.update(A, timed, None)
    return time.perf_counter() - started
