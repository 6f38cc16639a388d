"""The plan: what it counts, when it refuses, and that the changes it names do fit."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from distrff.engine.reduction import gram_segmentation, gram_stride
from distrff.engine.tasks import Workers
from distrff.errors import PlanRefused
from distrff.features.fitted import product_cost
from distrff.fitting import cost
from distrff.fitting.cost import PRESUMED_SWEEPS, Size, refusal, with_kept
from distrff.fitting.gram import gram_peak_bytes
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


def limit_for(found):
    return limit_above(found.worker_peak_bytes) + 2


def test_what_is_counted_of_conjugate_gradients():
    found = counted()
    assert (found.stride, found.n_factors) == (gram_stride(1_000_000, 2048), 1) == (61, 1)
    assert gram_stride(10_000_000, 2048) == 305  # sixteen rows a feature where light sweeps take long,
    assert gram_stride(1_000_000, 8192) == 31  # four where they do not,
    assert gram_stride(1_000_000, 64) == 61  # and never fewer than 16,384 rows
    assert gram_stride(30_000, 64) == gram_stride(10, 64) == 1
    assert found.n_sweeps == 2 + PRESUMED_SWEEPS
    light = PRESUMED_SWEEPS * 10**6 * 2048 * (2 * 50 + 4 * 3)
    sample = 10**6 / 61 * (2 * 50 * 2048 + 2052**2) + 2048**3 / 3
    assert found.flops == pytest.approx(light + sample)
    assert found.cosines == pytest.approx((PRESUMED_SWEEPS + 1 / 61) * 10**6 * 2048)
    assert found.bytes_read == found.n_sweeps * 10**6 * 208
    assert found.flops < count(MANY_OUTPUTS, **TWO_THREADS, memory_limit=0).flops
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["one_in"] == 61
    text = str(found)
    assert "preconditioner: factor of the Gram of one row in 61; 10 light sweeps presumed" in text
    assert "all rows" in str(counted(replace(MANY_OUTPUTS, n_rows=20_000)))


def test_the_factor_is_given_up_where_memory_asks_for_it():
    with_factor = counted()
    by_diagonal = counted(limit=limit_for(with_factor) - 2**20)
    assert (by_diagonal.stride, by_diagonal.n_factors) == (0, 0)
    assert by_diagonal.n_sweeps == 1 + PRESUMED_SWEEPS
    assert "preconditioner: diagonal" in str(by_diagonal)
    assert counted(limit=limit_for(with_factor)).stride == 61
    assert counted(n_alphas=3).worker_peak_bytes > with_factor.worker_peak_bytes
    # Without a factor memory is linear in the features.
    sizes = [
        replace(MANY_OUTPUTS, n_rows=10**7, chunk_rows=1000, n_features=D) for D in (20_000, 100_000, 200_000)
    ]
    few, many, more = (counted(size, limit=4 * 2**30).worker_peak_bytes for size in sizes)
    assert few < many < more < 2.1 * many
    with pytest.raises(PlanRefused):
        count(sizes[0], **TWO_THREADS, memory_limit=4 * 2**30)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (999.6, "1 kB"), (123_456, "123 kB"), (1.5e9, "1.5 GB"), (2e15, "2e+03 TB")],
)
def test_bytes_as_people_read_them(n_bytes, text):
    assert human_bytes(n_bytes) == text


@pytest.mark.parametrize("threads", [1, 2])
def test_a_hinge_goes_without_its_dual_where_that_alone_does_not_fit(threads):
    few = replace(SHAPE, n_rows=4096, n_features=1024, n_outputs=10, n_problems=10, n_light_sweeps=10)
    few = replace(few, n_folds=1, n_alphas=1, n_light_columns=10, dual_rows=4096, model_rows=4096)
    cluster = {"n_workers": 2, "threads_per_worker": threads}
    whole, without = (count(one, **cluster, memory_limit=0) for one in (few, replace(few, dual_rows=0)))
    assert whole.worker_peak_bytes > without.worker_peak_bytes
    found = count(few, **cluster, memory_limit=limit_above(without.worker_peak_bytes + 2**20))
    assert (found.solver, found.size.dual_rows) == ("gram", 0)
    found = count(few, **cluster, memory_limit=limit_above(whole.worker_peak_bytes + 2**20))
    assert found.size.dual_rows == 4096
    with pytest.raises(PlanRefused):
        count(few, **cluster, memory_limit=limit_above(without.worker_peak_bytes - 2**20))


def test_several_classes_have_hessians_where_these_are_short_and_small():
    many = replace(SHAPE, n_features=1024, n_outputs=7, n_problems=7, n_light_columns=7, n_light_sweeps=10)
    many = replace(many, n_folds=1, n_alphas=1, n_hessians=7)
    whole, without = (count(one, **CLUSTER, memory_limit=0) for one in (many, replace(many, n_hessians=0)))
    assert (whole.size.n_hessians, without.size.n_hessians) == (7, 0)
    assert whole.worker_peak_bytes > without.worker_peak_bytes
    # Whether there are any does not depend on the workers, unless nothing else fits.
    few, most = limit_above(without.worker_peak_bytes + 2**20), 2**40
    assert count(many, **CLUSTER, memory_limit=few).size.n_hessians == 0
    for cluster in (CLUSTER, TWO_THREADS, {"n_workers": 1, "threads_per_worker": 16}):
        assert count(many, **cluster, memory_limit=most).size.n_hessians == 7
    large = replace(many, n_features=2048)
    assert count(large, **CLUSTER, memory_limit=most).size.n_hessians == 0
    long = replace(many, n_rows=20_000, n_features=4096)
    assert long.hessian_sweeps > 100
    assert count(long, **CLUSTER, memory_limit=2**36).size.n_hessians == 0


# What stays between light passes.

UNITS = {"MB": 10**6, "GB": 10**9}
LIGHT = replace(
    SHAPE, n_folds=1, n_alphas=1, n_problems=1, n_light_columns=1, n_light_sweeps=10, gram_stride=30
)


@pytest.mark.parametrize("solver", ["gram", "cg", "sgd"])
@pytest.mark.parametrize("wish", ["auto", True])
def test_kept_features_are_counted_and_stay_below_the_share_at_which_dask_writes_to_disk(solver, wish):
    before = None
    for limit in (2, 4, 8, 16, 32, 64):
        workers = Workers(**CLUSTER, memory_limit=limit * 2**30)
        without = plans.count(solver, LIGHT, workers)
        needed = LIGHT.n_rows * (4 * LIGHT.n_features + LIGHT.row_bytes) // 2 * (1 + (solver == "sgd"))
        if wish is True and cost._room(without, workers) < needed:
            with pytest.raises(PlanRefused, match="keep_features=True needs") as refused:
                with_kept(without, wish, workers)
            number, unit = re.search(r"a memory limit of ([\d.e+]+) (\w+)$", str(refused.value)).groups()
            enough = Workers(**CLUSTER, memory_limit=int(float(number) * UNITS[unit]))
            assert with_kept(plans.count(solver, LIGHT, enough), wish, enough).kept_features == LIGHT.n_rows
            continue
        found = with_kept(without, wish, workers)
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


def test_nothing_is_kept_without_a_limit_a_wish_or_light_passes():
    unlimited = Workers(**CLUSTER, memory_limit=0)
    limited = Workers(**CLUSTER, memory_limit=64 * 2**30)
    assert with_kept(plans.count("gram", LIGHT, unlimited), "auto", unlimited).kept_bytes == 0
    assert with_kept(plans.count("gram", LIGHT, unlimited), True, unlimited).kept_features == LIGHT.n_rows
    assert with_kept(plans.count("gram", LIGHT, limited), False, limited).kept_bytes == 0
    assert with_kept(plans.count("gram", SHAPE, limited), True, limited).kept_bytes == 0


def test_nothing_is_kept_by_processes_that_would_be_sent_it():
    workers = Workers(1, 2, 64 * 2**30, in_client=True, hold_values=False)
    assert with_kept(plans.count("gram", LIGHT, workers), "auto", workers).kept_bytes == 0
    with pytest.raises(PlanRefused, match="dask's processes send it to and fro"):
        with_kept(plans.count("gram", LIGHT, workers), True, workers)


def test_cheap_features_are_made_again_and_their_rows_stay():
    few_columns = replace(LIGHT, n_columns=1, map_cost=product_cost(1))
    workers = Workers(**CLUSTER, memory_limit=64 * 2**30)
    found = with_kept(plans.count("gram", few_columns, workers), "auto", workers)
    assert (found.kept_features, found.kept_rows) == (0, LIGHT.n_rows)
    assert "rows without features" in repr(found)
