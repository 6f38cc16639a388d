"""Seconds of a fit, from the rate at which the live workers do a little of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distrff.engine.reduction import Arrays, light_segmentation
from distrff.features.equispaced import Lattice
from distrff.features.fitted import FittedMap
from distrff.fitting.cg import MAX_DIRECTIONS, ProductReduction, sample_size
from distrff.fitting.cost import PRESUMED_SWEEPS, THIN_SLOWNESS, Plan, Size
from distrff.fitting.equispaced import EPS, FoldRows, ToeplitzReduction, toeplitz_products
from distrff.fitting.gram import GramReduction, factorisation_flops
from distrff.fitting.problem import FitContext
from distrff.fitting.rows import RowReduction
from distrff.fitting.sgd import PRESUMED_PASSES
from distrff.io.dataset import Rows
from distrff.preprocessing.coding import Scaling
from distrff.preprocessing.folds import NO_FOLDS
from distrff.solvers.toeplitz import Toeplitz

_MEASURED_FLOPS = 6e10  # about a second
_WARM_ROWS = 16
_MAX_LANDMARKS = 1024  # of a map that is only timed
_MAX_CALL_ROWS = 2**18  # of a transform that is timed
_SIDE_BY_SIDE = 5  # settings that a search judges together, about
_COSINE_FLOPS = 18.0  # of the Gram's product take as long as a cosine in the compiled loop


@dataclass(frozen=True)
class _NoTargets:
    """Stands in for targets of any kind, whose values do not matter to the clock."""

    n_outputs: int

    def encode(self, y: np.ndarray) -> np.ndarray:
        return np.zeros((len(y), self.n_outputs))

    def row_weights(self, y: np.ndarray, sample_weight: np.ndarray | None) -> None:
        return None


def predicted_seconds(fit: FitContext, plan: Plan) -> float:
    """The predicted duration of the fit that `plan` counts.

    Every thread of the live workers does a piece of the Gram sweep on real rows at the same time, so that
    reading, the map, the products and the contention for memory are all in the rate. Light sweeps follow from
    it by their counts; kept features are made once. Kernels without a length scale yet are timed with 1; the
    search for it is counted. Maps with triangular factors are timed with 1024 landmarks, and the time grows
    with the flops of a row. What starting tasks takes is not counted, which shows where a fit takes a second.
    """
    size = plan.size
    if plan.solver == "cg":
        return _conjugate_seconds(fit, plan)
    if plan.solver == "toeplitz":
        return _toeplitz_seconds(fit, plan)
    if size.sparse_entries:
        # An epoch's products are about as many as those of its evaluation.
        return PRESUMED_PASSES * _light_seconds(fit, plan, size.n_outputs)
    # SGD on dense features is timed like a Gram sweep, too.
    seconds_a_row = _gram_seconds_a_row(fit, plan, size)
    light = size.n_light_sweeps * _light_work(size) * _share_left(plan, size.n_light_sweeps)
    sweeps = size.memberships / size.gram_stride + light / _gram_work(size)
    tasks = min(_n_threads(plan), size.n_folds)
    afterwards = factorisation_flops(size) / tasks + (size.search_flops + size.map_factor_flops)
    return seconds_a_row * (_rows_a_thread(plan) * sweeps + afterwards / _float64_flops_a_row(size))


def _conjugate_seconds(fit: FitContext, plan: Plan) -> float:
    """The predicted duration of the light sweeps that are presumed, after those of the factor."""
    size, k = plan.size, plan.size.n_outputs
    seconds = PRESUMED_SWEEPS * _light_seconds(fit, plan, k)
    if plan.n_search_sweeps:
        directions = min(MAX_DIRECTIONS, k * plan.folds_per_task)
        seconds += plan.n_search_sweeps * _light_seconds(fit, plan, directions)
    seconds *= _share_left(plan, PRESUMED_SWEEPS + plan.n_search_sweeps)
    if not plan.stride:
        return seconds
    sampled = sample_size(size, 1)
    by_gram = _gram_seconds_a_row(fit, plan, sampled)
    factors = plan.n_factors * size.n_features**3 / 3 / min(_n_threads(plan), plan.n_factors)
    afterwards = (
        (factors + (size.search_flops + size.map_factor_flops)) / _float64_flops_a_row(sampled) * by_gram
    )
    return seconds + _rows_a_thread(plan) * by_gram / plan.stride + afterwards


def _toeplitz_seconds(fit: FitContext, plan: Plan) -> float:
    """The predicted duration of the sums and of the products that are presumed.

    A transform of many rows and one of a single row are timed, which tells rows from the FFT of their grid,
    and a product.
    """
    assert fit.run is not None
    size, d = plan.size, plan.size.n_columns
    m = max(0, int(size.n_features ** (1 / d) - 1) // 2)
    # Any lattice costs the same, and a periodic one takes any rows.
    lattice = Lattice(d, tuple(range(d)), (m,) * d, (1.0,) * d, (0.0,) * d, (None,) * d)
    reduction = ToeplitzReduction(
        lattice=lattice,
        targets=_NoTargets(size.n_outputs),  # type: ignore[arg-type]
        folds=NO_FOLDS,
        eps=EPS,
        tile_rows=light_segmentation(size.n_rows, d).tile_rows,
        call_rows=_MAX_CALL_ROWS,
    )
    n_rows = min(size.n_rows, _MAX_CALL_ROWS)
    calls = [(reduction, fit.dataset.rows(0, 1), fit.dataset.rows(0, n_rows))] * _n_threads(plan)
    grid_seconds, row_seconds, of_product = np.median(fit.run.map(seconds_of_toeplitz, calls), axis=0)
    calls_a_task = plan.folds_per_task * max(1, plan.segment_rows // (size.n_sums * 2 * plan.tile_rows))
    rows_a_task = size.memberships * plan.segment_rows * plan.folds_per_task / size.n_sums
    # Segments are equally long, so that a last round which is not full takes as long as the others.
    rounds = -(-plan.n_segments // _n_threads(plan))
    side_by_side = min(_n_threads(plan), _SIDE_BY_SIDE if size.n_sums > 1 else 1)
    sums = rounds * (
        calls_a_task * grid_seconds + rows_a_task / n_rows * max(0.0, row_seconds - grid_seconds)
    )
    return float(sums + toeplitz_products(size) * of_product / side_by_side)


def seconds_of_toeplitz(reduction: ToeplitzReduction, one: Rows, many: Rows) -> tuple[float, float, float]:
    """The seconds of the sums of one row, of many rows, and of a product with their matrix."""
    seconds = []
    for rows in (one, many):
        started = time.perf_counter()
        found = reduction.update(None, FoldRows(rows, (0,)), {})[0]
        seconds.append(time.perf_counter() - started)
    T = Toeplitz(found.v, found.modes)
    started = time.perf_counter()
    T.product(found.b[0])
    return (*seconds, time.perf_counter() - started)  # type: ignore[return-value]


def _n_threads(plan: Plan) -> int:
    return plan.n_workers * plan.threads_per_worker


def _rows_a_thread(plan: Plan) -> int:
    rounds = -(-plan.n_segments // _n_threads(plan))
    return min(plan.size.n_rows, rounds * plan.segment_rows)


def _gram_work(size: Size) -> float:
    """The work of a row of the Gram sweep, in flops of its product."""
    # The solve against the map's factors is in float64 always.
    solve = size.triangle_numbers * 8 / size.itemsize
    return size.basis_flops + float(size.gram_size) ** 2 + solve + _COSINE_FLOPS * size.n_features


def _light_work(size: Size) -> float:
    """The work of a row of a light sweep, in the same unit."""
    return THIN_SLOWNESS * size.light_flops / size.n_rows + _COSINE_FLOPS * size.n_features


def _share_left(plan: Plan, n_sweeps: int) -> float:
    """Which part of the work of light sweeps is left where features are made once and kept.

    Bins of sparse features are not told apart from their sums: all of their work counts.
    """
    size = plan.size
    if not n_sweeps or size.sparse_entries:
        return 1.0
    making = THIN_SLOWNESS * size.basis_flops + _COSINE_FLOPS * size.n_features
    kept = plan.kept_features / size.n_rows * (n_sweeps - 1) / n_sweeps
    return 1.0 - kept * making / _light_work(size)


def _float64_flops_a_row(size: Size) -> float:
    """How many flops in float64 take as long as a row of the Gram sweep."""
    return _gram_work(size) * size.itemsize / 8


def _gram_seconds_a_row(fit: FitContext, plan: Plan, size: Size) -> float:
    specification, tried = _tried(fit, size)
    tile_rows = size.segmentation().tile_rows
    n_rows = int(min(size.n_rows, tile_rows, max(256, _MEASURED_FLOPS / tried.gram_size**2)))
    seconds = _seconds_a_row(fit, plan, GramReduction, specification, tried, n_rows, {}, tile_rows=tile_rows)
    return seconds * _gram_work(size) / _gram_work(tried)


def _light_seconds(fit: FitContext, plan: Plan, k: int) -> float:
    """The predicted duration of one light sweep for k vectors."""
    specification, tried = _tried(fit, plan.size)
    own = {"tile_rows": plan.tile_rows, "offset": None, "held_out": (None,) * k}
    point = {"coef": np.zeros((tried.n_features, k)), "intercept": np.zeros(k)}
    n_rows = int(min(plan.size.n_rows, 16 * plan.tile_rows))
    seconds_a_row = _seconds_a_row(fit, plan, ProductReduction, specification, tried, n_rows, point, **own)
    return _rows_a_thread(plan) * seconds_a_row * _light_work(plan.size) / _light_work(tried)


def _tried(fit: FitContext, size: Size) -> tuple[FittedMap, Size]:
    """A map to be timed, and its size: a small one where the factors of all landmarks take long."""
    features, d = fit.problem.features, size.n_columns
    if size.sparse_entries:
        return features.trial(d).specification_, size
    tried = features.trial(d, _MAX_LANDMARKS if size.map_cost.triangle_share else None).specification_
    return tried, replace(size, n_features=tried.n_features, map_cost=tried.cost)


def _seconds_a_row(
    fit: FitContext,
    plan: Plan,
    kind: type[RowReduction],
    specification: FittedMap,
    size: Size,
    n_rows: int,
    arrays: Arrays,
    **own: Any,
) -> float:
    """The median over all threads, which work at the same time."""
    assert fit.run is not None
    d = size.n_columns
    reduction = kind(
        specification=specification,
        # It costs its time and changes nothing; sparse rows are not shifted.
        scaling=Scaling(None if fit.dataset.is_sparse else np.zeros(d), np.ones(d)),
        targets=_NoTargets(size.n_outputs),  # type: ignore[arg-type]
        dtype=size.dtype,
        **own,
    )
    warm, timed = fit.dataset.rows(0, min(_WARM_ROWS, n_rows)), fit.dataset.rows(0, n_rows)
    calls = [(reduction, warm, timed, arrays)] * _n_threads(plan)
    return float(np.median(fit.run.map(seconds_of, calls))) / n_rows


def seconds_of(reduction: RowReduction, warm: Rows, timed: Rows, arrays: Arrays) -> float:
    """The seconds of reducing the rows, compilation and first touches not counted."""
    reduction.update(reduction.zero(), warm, arrays)
    A = reduction.zero()
    started = time.perf_counter()
    reduction.update(A, timed, arrays)
    return time.perf_counter() - started
