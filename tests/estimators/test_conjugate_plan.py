"""The plan of conjugate gradients: what it counts, what it falls back to, when it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from distrff.engine.execution import PlannedWorkers
from distrff.engine.segments import gram_stride
from distrff.errors import PlanRefused
from distrff.estimators.fitting import plan
from distrff.estimators.fitting.plan import PRESUMED_SWEEPS, Size, first_that_fits
from distrff.features.specification import product_cost

SHAPE = Size(
    n_rows=1_000_000,
    n_columns=50,
    n_features=2048,
    n_outputs=3,
    n_folds=1,
    n_alphas=1,
    dtype="float32",
    row_bytes=208,
    chunk_rows=65_536,
    map_cost=product_cost(50),
)
CLUSTER = dict(n_workers=2, threads_per_worker=2)


def count(size, **cluster):
    return first_that_fits([plan.count("gram", size, PlannedWorkers(**cluster))])


def count_conjugate(size, *, n_alphas, **cluster):
    size = replace(size, n_factors=n_alphas)
    return first_that_fits([plan.count("cg", size, PlannedWorkers(**cluster))])


def counted(shape=SHAPE, limit=0, n_alphas=1, **cluster):
    return count_conjugate(shape, n_alphas=n_alphas, memory_limit=limit, **CLUSTER | cluster)


def limit_for(found):
    return int((found.worker_peak_bytes + plan._IDLE_BYTES) / plan._USABLE_SHARE) + 2


def test_a_sample_has_sixteen_rows_a_feature():
    assert gram_stride(1_000_000, 2048) == 30
    assert gram_stride(1_000_000, 64) == 61  # and never fewer than 16,384 rows
    assert gram_stride(30_000, 64) == 1
    assert gram_stride(10, 64) == 1


def test_what_is_counted():
    found = counted()
    assert (found.stride, found.n_factors) == (30, 1)
    assert found.n_sweeps == 2 + PRESUMED_SWEEPS
    light = PRESUMED_SWEEPS * 10**6 * 2048 * (2 * 50 + 4 * 3)
    sample = 10**6 / 30 * (2 * 50 * 2048 + 2052**2) + 2048**3 / 3
    assert found.flops == pytest.approx(light + sample)
    assert found.cosines == pytest.approx((PRESUMED_SWEEPS + 1 / 30) * 10**6 * 2048)
    assert found.bytes_read == found.n_sweeps * 10**6 * 208
    assert found.flops < count(SHAPE, **CLUSTER, memory_limit=0).flops
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["one_in"] == 30
    text = str(found)
    assert "preconditioner: factor of the Gram of one row in 30; 10 light sweeps presumed" in text
    assert "all rows" in str(counted(replace(SHAPE, n_rows=20_000)))


def test_the_factor_is_given_up_where_memory_asks_for_it():
    with_factor = counted()
    by_diagonal = counted(limit=limit_for(with_factor) - 2**20)
    assert (by_diagonal.stride, by_diagonal.n_factors) == (0, 0)
    assert by_diagonal.n_sweeps == 1 + PRESUMED_SWEEPS
    assert "preconditioner: diagonal" in str(by_diagonal)
    assert counted(limit=limit_for(with_factor)).stride == 30
    assert counted(n_alphas=3).worker_peak_bytes > with_factor.worker_peak_bytes


def test_without_a_factor_memory_is_linear_in_the_features():
    small = replace(SHAPE, n_rows=10**7, chunk_rows=1000)
    few, many, more = (
        counted(replace(small, n_features=D), limit=4 * 2**30).worker_peak_bytes
        for D in (20_000, 100_000, 200_000)
    )
    assert few < many < more < 2.1 * many
    with pytest.raises(PlanRefused):
        count(replace(small, n_features=20_000), **CLUSTER, memory_limit=4 * 2**30)


def test_every_remedy_that_a_refusal_names_does_fit():
    wide = replace(SHAPE, n_features=10**5, n_rows=10**5, chunk_rows=1000)
    limit = limit_for(counted(wide, limit=2**36)) * 3 // 4
    with pytest.raises(PlanRefused) as caught:
        counted(wide, limit)
    features, threads = (
        int(re.search(pattern, str(caught.value))[1]) for pattern in (r"n_components=(\d+)", r"(\d+) thread")
    )
    counted(replace(wide, n_features=features), limit)
    counted(wide, limit, threads_per_worker=threads)
    with pytest.raises(PlanRefused):
        counted(replace(wide, n_features=features + 2), limit)
