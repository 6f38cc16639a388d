"""`distrff bench`: rates of the session's two workers, and what a fit waits for by rates that are made up."""

from dataclasses import replace

import pytest

from distrff.cli import plan as bench
from distrff.cli.plan import fit_limits
from distrff.engine.tasks import Workers
from distrff.features.fitted import product_cost
from distrff.fitting.cost import Size
from tests.support.plans import count


@pytest.fixture(autouse=True)
def short(monkeypatch):
    for name, value in {"_ARITHMETIC_SECONDS": 0.01, "_READING_SECONDS": 0.02, "_SENT_BYTES": 2**22}.items():
        monkeypatch.setattr(bench, name, value)


FIT = ("--n-components", 64, "--length-scale", 2, "--alpha", 1)


def test_rates_of_a_cluster(distrff):
    found = distrff("bench", "--json").json
    assert len(found["workers"]) == found["n_threads"] == 2
    for worker in found["workers"]:
        rates = [*worker["flops"].values(), *worker["cosines"].values(), worker["received_bytes"]]
        assert len(rates) == 5 and min(rates) > 0
        assert worker["blas_threads"] >= 1 and worker["read_rows"] is None
    assert 0 < found["task_seconds"] < 60
    assert "fit" not in found


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--target", "y", *FIT), {"reading", "products"}),
        (("--target", "y", "--features", "binning", "--n-grids", 8, "--alpha", 1), {"features"}),
        (("--target", "y", "--solver", "sgd", "--alpha", 1, "--length-scale", 2), {"products", "cosines"}),
    ],
    ids=["gram", "binning", "sgd"],
)
def test_what_limits_a_fit(distrff, rows, words, parts):
    fit = distrff("bench", rows.parquet, "--columns", "a,b,c", *words, "--json").json["fit"]
    assert parts <= fit["seconds"].keys()
    assert all(0 <= seconds < 1e4 for seconds in fit["seconds"].values())
    assert fit["limited_by"] == max(fit["seconds"], key=fit["seconds"].get)
    assert fit["seconds"].get("reading", 1) > 0
    assert fit["planned_seconds"] > 0


def test_for_people(distrff, rows):
    done = distrff("bench", rows.parquet, "--target", "y", "--columns", "a,b,c", *FIT)
    assert done.code == 0, done
    assert done.told == ["defaults used: --scale auto"]
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        "worker", "threads", "BLAS", "memory", "float32", "float64", "cosines", "reading", "receiving",
    ]  # fmt: skip
    assert sum(line.startswith("tcp://") for line in lines) == 2
    assert lines[-1].startswith("limited by ")
    assert any("does not cross a network" in line for line in lines)


def test_what_is_refused(distrff, rows, monkeypatch):
    words = ("bench", rows.zarr, "--n-components", 200_000, "--length-scale", 2, "--json")
    assert "smallest changes that fit" in distrff.refused(*words, code=4)
    monkeypatch.setattr(bench, "_PATIENCE_SECONDS", 1e-4)
    (line,) = distrff.refused("bench").splitlines()
    assert "did not finish (arithmetic)" in line


SHAPE = Size(
    **{"n_rows": 2**20, "n_columns": 10, "n_features": 1024, "n_outputs": 1, "n_folds": 5, "n_alphas": 25},
    **{"dtype": "float32", "row_bytes": 48, "chunk_rows": 4096, "map_cost": product_cost(10)},
)
CLUSTER = {"n_workers": 2, "threads_per_worker": 1, "memory_limit": 0}


def gram_plan(size, **cluster):
    return count("gram", size, Workers(**CLUSTER | cluster))


FAST = 1e30


def rates(flops=FAST, cosines=FAST, read_rows=FAST, received_bytes=FAST, task_seconds=1e-30, n_workers=2):
    worker = {
        "flops": {"float32": flops, "float64": flops / 2},
        "cosines": {"float32": cosines, "float64": cosines},
        "read_rows": read_rows,
        "received_bytes": received_bytes if n_workers > 1 else None,
    }
    return {"workers": [worker] * n_workers, "n_threads": n_workers, "task_seconds": task_seconds}


FEW_SEGMENTS = replace(SHAPE, n_rows=40_000)


@pytest.mark.parametrize(
    ("slow", "part", "workers_help"),
    [
        ("flops", "products", True),
        ("cosines", "cosines", True),
        ("read_rows", "reading", True),
        ("received_bytes", "transfers", False),
        ("task_seconds", "starting tasks", None),
    ],
)
def test_the_slow_rate_is_found(slow, part, workers_help):
    """More workers help where there are segments for them."""
    limits = fit_limits(gram_plan(SHAPE), rates(**{slow: 1.0}))
    assert limits["limited_by"] == part
    assert limits["remedy"]
    if workers_help is not None:
        assert ("more workers" in limits["remedy"]) == workers_help
        few = fit_limits(gram_plan(FEW_SEGMENTS, n_workers=8), rates(**{slow: 1.0}, n_workers=8))
        assert "more workers" not in few["remedy"]


def test_seconds_are_work_by_rate():
    limits = fit_limits(gram_plan(SHAPE), rates(cosines=1e6, read_rows=1e5, flops=1e9))
    assert limits["busy_share"] == 1.0
    assert limits["seconds"]["cosines"] == pytest.approx(2**20 * 1024 / 2e6)
    assert limits["seconds"]["reading"] == pytest.approx(2 * 2**20 / 2e5)  # column statistics, and the Gram
    assert limits["seconds"]["products"] == pytest.approx(SHAPE.gram_flops / 2e9)
    alone = fit_limits(gram_plan(SHAPE, n_workers=1), rates(flops=1e9, n_workers=1))
    assert alone["seconds"]["transfers"] == 0.0
    wide = gram_plan(replace(SHAPE, n_rows=20_000, n_features=8192))
    assert fit_limits(wide, rates(flops=1e9))["limited_by"] == "factorisation"
    plan = gram_plan(FEW_SEGMENTS, n_workers=8)  # of which some have no segment
    assert plan.n_segments == 2
    eight, two = (fit_limits(plan, rates(flops=1e9, n_workers=n)) for n in (8, 2))
    assert eight["busy_share"] == 1 / 4
    assert eight["seconds"]["products"] == pytest.approx(two["seconds"]["products"])


def test_sparse_features_have_the_seconds_of_their_plan():
    shape = replace(SHAPE, sparse_entries=100, n_folds=1, n_alphas=1)
    plan = count("cg", shape, Workers(**CLUSTER)).with_seconds(50.0)
    limits = fit_limits(plan, rates(read_rows=1e6))
    assert limits["limited_by"] == "features"
    assert "fewer grids" in limits["remedy"]
    assert limits["seconds"]["features"] + limits["seconds"]["reading"] == pytest.approx(50.0)
