"""`distrff bench` on the session's cluster of two workers."""

from __future__ import annotations

import pytest

from distrff.cli import bench as cluster_rates


@pytest.fixture(autouse=True)
def short(monkeypatch):
    for name, value in {"_ARITHMETIC_SECONDS": 0.01, "_READING_SECONDS": 0.02, "_MOST_BYTES": 2**22}.items():
        monkeypatch.setattr(cluster_rates, name, value)


FIT = ("--n-components", 64, "--length-scale", 2, "--alpha", 1)


def test_rates_of_a_cluster(distrff):
    found = distrff("bench", "--json").json
    assert len(found["workers"]) == found["n_threads"] == 2
    for worker in found["workers"]:
        assert worker["address"].startswith("tcp://")
        assert worker["flops"]["float32"] > 0
        assert worker["cosines"]["float64"] > 0
        assert worker["received_bytes"] > 0
        assert worker["read_rows"] is None
    assert 0 < found["task_seconds"] < 60
    assert "fit" not in found


def test_what_limits_a_fit(distrff, rows):
    fit = distrff("bench", rows.zarr, *FIT, "--json").json["fit"]
    assert fit["limited_by"] == max(fit["seconds"], key=fit["seconds"].get)
    assert all(seconds >= 0 for seconds in fit["seconds"].values())
    assert fit["seconds"]["reading"] > 0
    assert fit["planned_seconds"] > 0


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--model", "svc", "--target", "flag", "--n-components", 32, "--length-scale", 2), {"products"}),
        (("--target", "y", "--features", "binning", "--n-grids", 8, "--alpha", 1), {"features"}),
        (("--target", "y", "--solver", "sgd", "--alpha", 1, "--length-scale", 2), {"products", "cosines"}),
    ],
    ids=["svc", "binning", "sgd"],
)
def test_every_kind_of_plan(distrff, rows, words, parts):
    fit = distrff("bench", rows.parquet, "--columns", "a,b,c", *words, "--json").json["fit"]
    assert parts <= fit["seconds"].keys()
    assert all(0 <= seconds < 1e4 for seconds in fit["seconds"].values())


def test_for_people(distrff, rows):
    done = distrff("bench", rows.parquet, "--target", "y", "--columns", "a,b,c", *FIT)
    assert done.code == 0, done
    assert done.told == ["defaults used: --scale standard"]
    lines = done.stdout.splitlines()
    assert lines[0].split() == [
        "worker", "threads", "BLAS", "memory", "float32", "float64", "cosines", "reading", "receiving",
    ]  # fmt: skip
    assert sum(line.startswith("tcp://") for line in lines) == 2
    assert lines[-1].startswith("limited by ")
    assert any("does not cross a network" in line for line in lines)


def test_a_fit_that_would_not_fit(distrff, rows):
    done = distrff("bench", rows.zarr, "--n-components", 200_000, "--length-scale", 2, "--json")
    assert (done.code, done.stdout) == (4, "")
    assert "smallest changes that fit" in done.told[-1]


def test_options_of_a_fit_without_rows(distrff):
    done = distrff("bench", "--target", "y")
    assert (done.code, done.stdout) == (2, "")
    assert "--target goes with DATA" in done.stderr


def test_workers_that_do_not_finish(distrff, monkeypatch):
    monkeypatch.setattr(cluster_rates, "_PATIENCE_SECONDS", 1e-4)
    done = distrff("bench")
    assert (done.code, done.stdout) == (2, "")
    assert "did not finish (arithmetic)" in done.stderr
    assert done.stderr.count("\n") == 1
