"""What a fit waits for, by rates that are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distrff.cli.bench import ClusterRates, FitLimits, WorkerRates, fit_limits
from distrff.engine.execution import PlannedWorkers
from distrff.estimators.fitting import plan as plans
from distrff.estimators.fitting.plan import Size, first_that_fits
from distrff.features.specification import product_cost

SHAPE = Size(
    n_rows=2**20,
    n_columns=10,
    n_features=1024,
    n_outputs=1,
    n_folds=5,
    n_alphas=25,
    dtype="float32",
    row_bytes=48,
    chunk_rows=4096,
    map_cost=product_cost(10),
)
CLUSTER = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": 0}


def count(size, **cluster):
    return first_that_fits([plans.count("gram", size, PlannedWorkers(**cluster))])


def count_conjugate(size, *, n_alphas, **cluster):
    size = replace(size, n_factors=n_alphas)
    return first_that_fits([plans.count("cg", size, PlannedWorkers(**cluster))])


FAST = 1e30


def rates(flops=FAST, cosines=FAST, read_rows=FAST, received_bytes=FAST, task_seconds=1e-30, n_workers=2):
    both = {"float32": flops, "float64": flops / 2}
    worker = WorkerRates(
        address="w",
        host="h",
        n_threads=1,
        blas_threads=1,
        memory_limit=0,
        flops=both,
        cosines={"float32": cosines, "float64": cosines},
        read_rows=read_rows,
        received_bytes=received_bytes if n_workers > 1 else None,
    )
    return ClusterRates((worker,) * n_workers, task_seconds, 48)


@pytest.mark.parametrize(
    ("slow", "part"),
    [
        ({"flops": 1.0}, "products"),
        ({"cosines": 1.0}, "cosines"),
        ({"read_rows": 1.0}, "reading"),
        ({"received_bytes": 1.0}, "transfers"),
        ({"task_seconds": 1.0}, "starting tasks"),
    ],
)
def test_the_slow_rate_is_found(slow, part):
    limits = fit_limits(count(SHAPE, **CLUSTER), rates(**slow))
    assert limits.part == part
    assert limits.remedy


def test_seconds_are_work_by_rate():
    limits = fit_limits(count(SHAPE, **CLUSTER), rates(cosines=1e6, read_rows=1e5, flops=1e9))
    assert limits.busy_share == 1.0
    assert limits.seconds["cosines"] == pytest.approx(2**20 * 1024 / 2e6)
    assert limits.seconds["reading"] == pytest.approx(2 * 2**20 / 2e5)  # column statistics, and the Gram
    assert limits.seconds["products"] == pytest.approx(SHAPE.gram_flops / 2e9)


def test_factorisation_of_many_features_of_few_rows():
    shape = replace(SHAPE, n_rows=20_000, n_features=8192)
    assert fit_limits(count(shape, **CLUSTER), rates(flops=1e9)).part == "factorisation"


def test_one_worker_sends_nothing():
    plan = count(SHAPE, **CLUSTER | {"n_workers": 1})
    assert fit_limits(plan, rates(flops=1e9, n_workers=1)).seconds["transfers"] == 0.0


def test_threads_without_a_segment():
    plan = count(replace(SHAPE, n_rows=40_000), **CLUSTER | {"n_workers": 8})
    assert plan.n_segments == 2
    limits = fit_limits(plan, rates(flops=1e9, n_workers=8))
    assert limits.busy_share == 1 / 4
    few = fit_limits(plan, rates(flops=1e9, n_workers=2))
    assert limits.seconds["products"] == pytest.approx(few.seconds["products"])


def test_sparse_features_have_the_seconds_of_their_plan():
    shape = replace(SHAPE, sparse_entries=100, n_folds=1, n_alphas=1)
    plan = count_conjugate(shape, n_alphas=1, **CLUSTER).with_seconds(50.0)
    limits = fit_limits(plan, rates(read_rows=1e6))
    assert limits.part == "features"
    assert limits.seconds["features"] + limits.seconds["reading"] == pytest.approx(50.0)


@pytest.mark.parametrize("part", ["products", "cosines", "features", "reading"])
def test_more_workers_help_where_there_are_segments_for_them(part):
    assert "more workers" in FitLimits({part: 1.0, "transfers": 0.5}, busy_share=1.0).remedy
    assert "more workers" not in FitLimits({part: 1.0, "transfers": 0.5}, busy_share=0.5).remedy
    assert "more workers" not in FitLimits({part: 0.1, "transfers": 0.5}, busy_share=1.0).remedy
