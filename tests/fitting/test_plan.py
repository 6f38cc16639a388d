"""The plan: what it counts, when it refuses, and that the changes it names do fit."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distrff.engine.reduction import gram_segmentation
from distrff.engine.tasks import Workers
from distrff.errors import PlanRefused
from distrff.features.fitted import product_cost
from distrff.fitting import cost
from distrff.fitting.cost import Size, refusal
from distrff.fitting.gram import gram_peak_bytes
from distrff.fitting.light import MarginSize
from distrff.utils.text import human_bytes
from tests.support import plans

SHAPE = Size(
    n_rows=1_000_000,
    n_columns=50,
    n_features=2048,
    n_outputs=1,
    n_folds=5,
    n_alphas=25,
    dtype="float32",
    row_bytes=208,
    chunk_rows=65_536,
    map_cost=product_cost(50),
)
CLUSTER = dict(n_workers=2, threads_per_worker=1)


MANY_OUTPUTS = replace(SHAPE, n_outputs=3, n_folds=1, n_alphas=1)
TWO_THREADS = dict(n_workers=2, threads_per_worker=2)


def count(size, solver="gram", **cluster):
    workers = Workers(**cluster)
    plan = plans.count(solver, size, workers)
    if not plan.fits:
        raise PlanRefused(refusal(plan, plans.solver_of(solver, size).cost))
    return plan


def limit_above(n_bytes):
    """The memory limit of which so many bytes are what a plan may use."""
    return int((n_bytes + cost.IDLE_BYTES) / cost._USABLE_SHARE)


def test_what_is_counted():
    counted = count(SHAPE, **CLUSTER, memory_limit=0)
    cuts = gram_segmentation(10**6, 2048, 1, np.dtype(np.float32))
    assert counted.folds_per_task == 5
    assert counted.n_sweeps == 2
    for name in ("n_segments", "segment_rows", "tile_rows"):
        assert getattr(counted, name) == getattr(cuts, name)
    assert counted.cosines == 10**6 * 2048
    assert counted.bytes_read == 2 * 10**6 * 208
    # Rows: the map's 2dD and a symmetric product of size p = D + 1 + k. Then the reductions of all folds
    # and nested sizes (8/7 of the largest), far less.
    rows = 10**6 * (2 * 50 * 2048 + 2050**2)
    assert rows < counted.flops < 1.5 * rows
    assert counted.seconds is None
    assert counted.with_seconds(3.0).seconds == 3.0
    assert replace(counted.with_seconds(3.0), seconds=None) == counted


def test_a_plan_is_strict_json_and_readable():
    counted = count(SHAPE, **CLUSTER, memory_limit=8 * 2**30).with_seconds(12.0)
    data = json.loads(json.dumps(counted.to_dict(), allow_nan=False))
    assert data["n_rows"] == 10**6
    assert data["worker_peak_bytes"] == counted.worker_peak_bytes
    assert "shape" not in data
    text = str(counted)
    assert "1,000,000 rows × 50 columns → 2048 features" in text
    assert "about 12 s" in text
    assert human_bytes(counted.worker_peak_bytes) in text
    assert repr(counted) == text
    assert "memory limit none" in str(count(SHAPE, **CLUSTER, memory_limit=0))


def test_folds_are_taken_one_at_a_time_where_they_do_not_fit_together():
    together = count(SHAPE, **CLUSTER, memory_limit=0)
    limit = limit_above(together.worker_peak_bytes) - 2**20
    apart = count(SHAPE, **CLUSTER, memory_limit=limit)
    assert apart.folds_per_task == 1
    assert apart.n_sweeps == 6
    assert apart.n_segments == 5 * together.n_segments
    assert apart.bytes_read == 3 * together.bytes_read  # six passes instead of two
    assert apart.flops == together.flops  # each pass only does the rows of its fold
    assert apart.worker_peak_bytes < together.worker_peak_bytes


def bytes_of(text):
    number, unit = text.split()
    return int(float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit])


SIZES = st.builds(
    partial(replace, SHAPE),
    n_rows=st.integers(1000, 10**9),
    n_columns=st.integers(1, 2000),
    n_features=st.integers(1, 10_000).map(lambda m: 2 * m),
    n_outputs=st.integers(1, 20),
    n_folds=st.sampled_from([1, 2, 5, 10]),
    dtype=st.sampled_from(["float32", "float64"]),
    chunk_rows=st.integers(1, 10**5),
)


@settings(max_examples=60)
@given(size=SIZES, threads=st.sampled_from([1, 2, 3, 8]), share=st.floats(0.05, 0.99))
def test_every_remedy_that_a_refusal_names_does_fit(size, threads, share):
    shape = replace(size, row_bytes=size.n_columns * 4 + 8, map_cost=product_cost(size.n_columns))
    one_at_a_time = gram_peak_bytes(shape, 1, threads)
    limit = int(share * (one_at_a_time + cost.IDLE_BYTES) / cost._USABLE_SHARE)
    cluster = dict(n_workers=2, threads_per_worker=threads, memory_limit=limit)
    with pytest.raises(PlanRefused) as caught:
        count(shape, **cluster)
    message = str(caught.value)
    assert "\n" not in message
    assert human_bytes(limit) in message
    remedies = message.split("smallest changes that fit: ")[1].split("; or ")
    assert remedies[0].startswith("a memory limit of ")
    count(shape, **cluster | {"memory_limit": bytes_of(remedies[0].removeprefix("a memory limit of "))})
    assume(len(remedies) > 1)
    for remedy in remedies[1:]:
        if remedy.startswith("smaller chunks"):
            count(shape.in_small_chunks(), **cluster)
            continue
        value = int(re.search(r"\d+", remedy)[0])
        if remedy.startswith("n_components="):
            assert value % 2 == 0
            count(replace(shape, n_features=value), **cluster)
        elif remedy.startswith("cv="):
            count(replace(shape, n_folds=value), **cluster)
        else:
            assert remedy == f"{value} thread(s) a worker"
            count(shape, **cluster | {"threads_per_worker": value})


# Conjugate gradients


def counted(size=MANY_OUTPUTS, limit=0, n_alphas=1, **cluster):
    return count(replace(size, n_factors=n_alphas), "cg", **TWO_THREADS | {"memory_limit": limit} | cluster)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (999.6, "1 kB"), (123_456, "123 kB"), (1.5e9, "1.5 GB"), (2e15, "2e+03 TB")],
)
def test_bytes_as_people_read_them(n_bytes, text):
    assert human_bytes(n_bytes) == text


# What stays between light passes.

UNITS = {"MB": 10**6, "GB": 10**9}
LIGHT = replace(
    MarginSize(**vars(SHAPE)),
    n_folds=1,
    n_alphas=1,
    n_problems=1,
    n_light_columns=1,
    n_light_sweeps=10,
    gram_stride=30,
)


@pytest.mark.parametrize("solver", ["gram", "cg", "sgd"])
@pytest.mark.parametrize("wish", ["auto", True])
def test_kept_features_are_counted_and_stay_below_the_share_at_which_dask_writes_to_disk(solver, wish):
    before = None
    for limit in (2, 4, 8, 16, 32, 64):
        workers = Workers(**CLUSTER, memory_limit=limit * 2**30)
        without = plans.count(solver, LIGHT, workers)
        needed = LIGHT.n_rows * (4 * LIGHT.n_features + LIGHT.row_bytes) // 2 * (1 + (solver == "sgd"))
        room = 0.6 * workers.memory_limit - without.worker_peak_bytes - cost.IDLE_BYTES
        if wish is True and room < needed:
            with pytest.raises(PlanRefused, match="keep_features=True needs") as refused:
                plans.kept(without, wish, workers)
            number, unit = re.search(r"a memory limit of ([\d.e+]+) (\w+)$", str(refused.value)).groups()
            enough = Workers(**CLUSTER, memory_limit=int(float(number) * UNITS[unit]))
            assert plans.kept(plans.count(solver, LIGHT, enough), wish, enough).kept_features == LIGHT.n_rows
            continue
        found = plans.kept(without, wish, workers)
        assert found.worker_peak_bytes == without.worker_peak_bytes + found.kept_bytes
        assert found.kept_bytes == 0 or found.worker_peak_bytes <= 0.6 * workers.memory_limit
        assert 0 <= found.kept_features + found.kept_rows <= LIGHT.n_rows
        assert found.flops <= without.flops
        assert found.cosines <= without.cosines
        assert before is None or found.kept_features >= before
        before = found.kept_features
    assert found.kept_features == LIGHT.n_rows
    assert f"kept between light sweeps: features of {LIGHT.n_rows:,} rows" in repr(found)
    json.dumps(found.to_dict(), allow_nan=False)


def test_nothing_is_kept_by_processes_that_would_be_sent_it():
    workers = Workers(1, 2, 64 * 2**30, in_client=True, hold_values=False)
    assert plans.kept(plans.count("gram", LIGHT, workers), "auto", workers).kept_bytes == 0
    with pytest.raises(PlanRefused, match="dask's processes send it to and fro"):
        plans.kept(plans.count("gram", LIGHT, workers), True, workers)
