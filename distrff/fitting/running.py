"""Sums of rows without a solution: Grams as values, and those of rows that come in several calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distrff.engine.progress import Observer
from distrff.errors import InputError
from distrff.features.base import FeatureMap
from distrff.features.equispaced import EquispacedFourierFeatures, EquispacedMap
from distrff.fitting.equispaced import ToeplitzStatistics, fit_toeplitz_statistics, summed
from distrff.fitting.fit import (
    begin,
    choose,
    expected_plan,
    first_pass,
    prepare,
    usable_folds,
    weight_of_rows,
)
from distrff.fitting.gram import fit_statistics, gram_passes
from distrff.fitting.problem import PreparedFit, Problem
from distrff.fitting.result import FitResult, notes_on_rows, of_folds, of_map
from distrff.fitting.rows import ColumnStatistics
from distrff.fitting.sums import WEIGHT_ROUNDING, GramStatistics, check_same_table
from distrff.io.dataset import Dataset
from distrff.preprocessing.coding import ClassTargets
from distrff.preprocessing.folds import Folds, OneHeldOut, SomeFolds
from distrff.solvers.ridge import unpack

Statistics = GramStatistics | ToeplitzStatistics


def sums_of(fit: PreparedFit, like: Statistics | None = None) -> Statistics:
    """The sums of a fit's rows, as its folds take them.

    Of equispaced features that no Gram was planned for, those of the Toeplitz matrix; their kernel before a
    choice is that of `like`.
    """
    _, plan = choose(fit, fit.targets.n_outputs, fit.specification.n_features)
    dataset = fit.dataset
    known: dict[str, Any] = {
        "n_rows": dataset.n_rows,
        "specification": fit.specification,
        "scaling": fit.scaling,
        "targets": fit.targets,
        "y_is_1d": dataset.y_is_1d,
        "column_names": dataset.column_names,
        "steps": dataset.steps,
        "folds": fit.problem.folds,
    }
    if plan.solver == "toeplitz":
        features = fit.features
        assert isinstance(features, EquispacedFourierFeatures)
        assert isinstance(fit.specification, EquispacedMap)
        own = features.chosen_kernel, features.tol
        kernel, tol = (like.kernel, like.tol) if isinstance(like, ToeplitzStatistics) else own
        parts = tuple(fit.run.surviving(lambda: fit.run.gather(summed(fit, plan).parts)))
        return ToeplitzStatistics(parts=parts, kernel=kernel, tol=tol, **known)
    grams = fit.run.surviving(lambda: fit.run.gather(gram_passes(fit, plan, fit.problem.folds)))
    A = np.stack([unpack(triangle) for part in grams for triangle in part])
    return GramStatistics(A=A, dtype=plan.size.dtype, tile_rows=plan.tile_rows, **known)


def prepared_like(
    dataset: Dataset, like: Statistics, folds: Folds, *, seed: int, observer: Observer | None = None
) -> PreparedFit:
    """A fit of other rows with map, scaling and targets of sums, after its first pass.

    Raises InputError for rows of other columns or targets, or outside the bounds of equispaced features.
    """
    check_same_table(like, dataset)
    if dataset.n_columns != like.specification.n_columns:
        raise InputError(
            f"X has {dataset.n_columns} columns, but the rows that were summed before have "
            f"{like.specification.n_columns}"
        )
    if dataset.is_sparse and not like.specification.takes_sparse_rows:
        raise InputError(
            f"the data is sparse, and the {like.specification.kind} features of the Gram are not for it"
        )
    n_targets = 1 if isinstance(like.targets, ClassTargets) else like.targets.n_outputs
    if dataset.n_targets != n_targets:
        raise InputError(
            f"y has {dataset.n_targets} column(s), but the rows that were summed before have {n_targets}"
        )
    problem = Problem(
        # Of a Gram only the specification of its map is known.
        features=getattr(like, "features", None),  # type: ignore[arg-type]
        solver=like.kind,
        target_kind=like.targets.kind,
        folds=folds,
        dtype=like.dtype,
        seed=seed,
    )
    fit = begin(dataset, problem, observer=observer)
    statistics = first_pass(fit)
    if isinstance(like.targets, ClassTargets):
        assert statistics.labels is not None
        like.targets.encode(statistics.labels.labels)  # raises for labels of none
    if isinstance(like, ToeplitzStatistics):
        _check_bounds(dataset, statistics, like)
    return PreparedFit(
        **vars(fit),
        statistics=statistics,
        scaling=like.scaling,
        targets=like.targets,
        specification=like.specification,
        features=problem.features,
        # Only the grid of a penalty and its noise floor take it, and sums choose no penalty.
        mean_square_norm=1.0,
        weight=weight_of_rows(statistics, like.targets),
    )


def _check_bounds(dataset: Dataset, statistics: ColumnStatistics, like: ToeplitzStatistics) -> None:
    ends = np.stack([statistics.columns.min, statistics.columns.max])
    if like.specification.lattice.outside(ends).any():
        raise InputError(
            f"{dataset.source} has columns from {ends[0].tolist()} to {ends[1].tolist()}, outside the "
            f"bounds of the sums to be like, {list(like.specification.lattice.bounds)}; make those wider"
        )


def solved(sums: Statistics, problem: Problem) -> FitResult:
    """The ridge model of sums in the client's memory.

    Raises InputError for sums that the problem cannot be solved by.
    """
    solve: Any = fit_statistics if isinstance(sums, GramStatistics) else fit_toeplitz_statistics
    if problem.penalty.search == "cv" and sums.folds is not None and sums.folds.may_lack:
        s, sy, _ = sums.moments
        rows, rounding = s[:, None], WEIGHT_ROUNDING * sums.weight
        if isinstance(sums.targets, ClassTargets):  # coded as ±1, two classes in one column
            rows = (rows + sy * ([-1, 1] if sy.shape[1] == 1 else 1)) / 2
        kept = usable_folds(sums.folds, rows, sums.targets, above=rounding)
        if len(kept) < sums.folds.n_folds:
            sums = replace(sums, folds=SomeFolds(sums.folds, kept))
    result: FitResult = solve(sums, problem)
    if problem.penalty.search is None or sums.folds is None:
        return result
    return replace(result, entries={**result.entries, **of_folds(sums.folds)})


# Rows that come in several calls.


@dataclass(frozen=True, eq=False, kw_only=True)
class RunningSums:
    """Sums of all calls of `partial_fit` so far. They hold no row and no handle, and can be pickled."""

    sums: Statistics
    columns: ColumnStatistics  # without a sample
    features: FeatureMap
    problem: Problem  # of the first call, with those of now by which a model is solved
    sources: tuple[str, ...]  # of the rows, each once
    n_calls: int = 1
    notes: tuple[str, ...] = ()
    sweeps: tuple[tuple[str, float], ...] = ()
    seconds: float = 0.0
    workers: tuple[int, int] = (1, 1)  # and threads, of the last call

    @classmethod
    def first(cls, dataset: Dataset, problem: Problem, observer: Observer) -> RunningSums:
        """The sums of the first rows, from which map, scaling and targets follow."""
        fit = begin(dataset, problem, observer=observer)
        expected_plan(fit)  # refuses before the first task
        assert fit.run is not None
        prepared = fit.run.surviving(lambda: prepare(fit))
        sums = sums_of(prepared)
        observer.passes(prepared.run.sweeps)
        assert prepared.features is not None
        return cls(
            sums=sums,
            # The sample was for the map, which is fitted; a value that holds rows would be pickled with them.
            columns=prepared.statistics.without_rows(),
            features=prepared.features,
            problem=problem,
            sources=(dataset.source,),
            notes=tuple(notes_on_rows(prepared, sums.dtype)),
            sweeps=tuple(prepared.run.sweeps),
            seconds=prepared.run.seconds,
            workers=_workers(prepared),
        )

    def with_rows(self, dataset: Dataset, observer: Observer) -> RunningSums:
        """The sums with those of more rows, whose numbers go on from the ones before."""
        assert self.sums.folds is not None
        folds = self.sums.folds.after(self.sums.n_rows)
        fit = prepared_like(dataset, self.sums, folds, seed=self.problem.seed, observer=observer)
        sums = self.sums + sums_of(fit, self.sums)  # both are of one kind
        observer.passes(fit.run.sweeps)
        # Of the map the fit of later rows knows the specification alone, without its report.
        notes = notes_on_rows(replace(fit, features=self.features), self.sums.dtype)
        return replace(
            self,
            sums=sums,
            columns=self.columns.merge(fit.statistics.without_rows()),
            sources=tuple(dict.fromkeys((*self.sources, dataset.source))),
            n_calls=self.n_calls + 1,
            notes=tuple(dict.fromkeys((*self.notes, *notes))),
            sweeps=(*self.sweeps, *fit.run.sweeps),
            seconds=self.seconds + fit.run.seconds,
            workers=_workers(fit),
        )

    def solved(self, problem: Problem) -> FitResult:
        """The model of all rows so far.

        Raises InputError for too few rows or classes, or a search whose folds the calls did not sum.
        """
        labels = self.columns.labels
        if labels is not None and len(labels.labels) < 2:
            raise InputError(
                f"all rows so far are of the class {labels.labels.tolist()[0]!r}; a classifier needs "
                f"rows of at least two classes"
            )
        search, folds = problem.penalty.search, self.sums.by_folds
        # "cv" sums what its folds take, "gcv" one held-out fold: neither search can use the other's sums.
        has_folds = folds.n_folds > 0 and isinstance(folds, OneHeldOut) == (search == "gcv")
        if search is not None and not has_folds:
            raise InputError(
                f"alpha={search!r} needs folds that the first call of partial_fit did not "
                f"sum, as alpha was another then; give the number that alpha was, or begin again with all "
                f"rows"
            )
        if search is not None:
            problem.check_rows_of_search(self.sums.n_rows)
        result = solved(self.sums, problem)
        features = result.features or self.features
        entries = {
            **of_map(features),
            "source": f"{self.n_calls} calls of partial_fit: {', '.join(self.sources)}",
            "column_names": self.sums.column_names,
            **result.entries,
        }
        result.run.follow(self.sweeps, self.seconds)
        notes = [*self.notes, *result.notes]
        return replace(result, features=features, entries=entries, notes=notes, workers=self.workers)


def _workers(fit: PreparedFit) -> tuple[int, int]:
    return fit.run.execution.n_workers, fit.run.execution.n_threads
