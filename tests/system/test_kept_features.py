"""Features that stay on the workers between light passes: the same bits, read once, and gone afterwards."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any
from weakref import WeakSet

import dask
import numpy as np
import pytest
import zarr

import distrff as drf
from distrff.engine import run as engine_run
from distrff.engine.run import LocalExecution
from distrff.errors import InputError, PlanRefused
from distrff.fitting import cost, sgd
from distrff.fitting.rows import CachedRows, RowKeeping
from distrff.io.arrays import as_dataset
from distrff.preprocessing.coding import Scaling
from tests.support.commands import wait_until
from tests.support.fits import blocks_of, within_patience

GAUSSIAN = drf.Gaussian(2.0)
MAPS = {
    "fourier": drf.FourierFeatures(GAUSSIAN, 32),
    "nystroem": drf.NystroemFeatures(GAUSSIAN, 24),
    "binning": drf.RandomBinningFeatures(drf.Laplacian(4.0), 8),
    "both": drf.ConcatenatedFeatures([drf.FourierFeatures(GAUSSIAN, 16), drf.NystroemFeatures(GAUSSIAN, 12)]),
}
MODELS = {
    "hinge": drf.KernelSVC,
    "squared hinge, C searched": lambda features, **options: drf.KernelSVC(
        features, "cv", Cs=[0.1, 1.0], cv=2, loss="squared_hinge", **options
    ),
    "hard margin": lambda features, **options: drf.KernelSVC(features, np.inf, **options),
    "softmax": lambda features, **options: drf.KernelLikelihoodClassifier(
        features, multi_class="softmax", **options
    ),
    "sgd": lambda features, **options: drf.KernelSVC(
        features, loss="squared_hinge", solver="sgd", **options | {"max_sweeps": 6}
    ),
    "cg": lambda features, **options: drf.KernelRidgeClassifier(features, 1.0, solver="cg", **options),
    "cg, alpha searched": lambda features, **options: drf.KernelRidgeClassifier(
        features, "cv", alphas=[0.1, 1.0, 10.0], cv=2, **options
    ),
}
CASES = [(model, "fourier") for model in MODELS if model != "cg, alpha searched"] + [
    ("hinge", "nystroem"), ("sgd", "nystroem"), ("cg", "nystroem"), ("hinge", "both"),
    ("hard margin", "nystroem"),
    ("hinge", "binning"), ("cg, alpha searched", "binning"), ("sgd", "binning"),
]  # fmt: skip

pytestmark = [
    pytest.mark.usefixtures("small_segments", "short_light_segments"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]


@pytest.fixture
def short_light_segments(monkeypatch) -> None:
    """Cut light sweeps of a few thousand rows into several segments."""
    monkeypatch.setattr("distrff.engine.reduction._MIN_LIGHT_ROWS", 256)
    monkeypatch.setattr("distrff.engine.reduction._LIGHT_PRODUCTS", 2**13)
    monkeypatch.setattr("distrff.engine.reduction._MAX_SEGMENT_ROWS", 512)


@pytest.fixture
def labelled(rng) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((4_011, 3))
    return X, (X[:, 0] + X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(len(X)) > 0).astype(int) + (
        X[:, 2] > 1
    )


def model(name: str, features: str, **options: Any) -> Any:
    return MODELS[name](MAPS[features], random_state=0, **{"max_sweeps": 12, **options})


def bits(fitted: Any) -> list[bytes]:
    return [
        fitted.coef_.tobytes(),
        np.asarray(fitted.intercept_).tobytes(),
        *map(str, fitted.report_["history"]),
    ]


@pytest.mark.parametrize(("name", "features"), CASES)
def test_what_is_kept_changes_no_bit(labelled, client, tmp_path, name, features):
    """From a store, on two workers and in this process, with all, some or nothing kept."""
    X, y = labelled
    if name == "hard margin":
        y = (X[:, 0] > 0).astype(int)
        X[:, 0] += np.where(y, 1, -1)
    group = zarr.create_group(tmp_path / "rows.zarr")
    group.create_array("X", data=X, chunks=(700, 3))
    group.create_array("y", data=y, chunks=(700,))
    data = drf.open_dataset(tmp_path / "rows.zarr")
    with dask.config.set(scheduler="synchronous"):
        expected = bits(model(name, features, keep_features=False).fit(data))
        kept = model(name, features, keep_features=True).fit(data)
    assert kept.plan_.kept_features == len(y)
    assert bits(kept) == expected
    kept = model(name, features, keep_features=True).fit(data)
    assert kept.plan_.kept_features == len(y)
    assert bits(kept) == expected


@pytest.mark.parametrize("name", ["hinge", "hard margin", "sgd"])
def test_passes_take_what_is_kept(labelled, monkeypatch, name):
    """Of a map with a basis too: its values, or its features, as the passes multiply them."""
    X, _ = labelled
    X[:, 0] += 3 * np.where(X[:, 0] > 0, 1, -1)
    taken, features_at = [], CachedRows.features_at

    def seen(*args: Any, **options: Any) -> Any:
        taken.append(features_at(*args, **options))
        return taken[-1]

    monkeypatch.setattr(CachedRows, "features_at", seen)
    with dask.config.set(scheduler="synchronous"):
        model(name, "nystroem", keep_features=True).fit(X, (X[:, 0] > 0).astype(int))
    assert taken
    assert all(features is not None for features in taken)


def test_processes_are_sent_nothing_that_is_kept(labelled):
    processes, threads = LocalExecution("processes"), LocalExecution("threads")
    assert model("hinge", "fourier").plan_for(threads, *labelled).kept_bytes > 0
    assert model("hinge", "fourier").plan_for(processes, *labelled).kept_bytes == 0
    with pytest.raises(PlanRefused, match="keep_features=True needs workers that hold what they made"):
        model("hinge", "fourier", keep_features=True).plan_for(processes, *labelled)


@pytest.mark.parametrize("room", [0.55, 0.8])
def test_as_much_is_kept_as_there_is_room_for(labelled, client, monkeypatch, room):
    """The rest is kept as rows, or read again, whichever worker takes it."""
    expected = bits(model("hinge", "fourier", keep_features=False).fit(*labelled))
    all_kept = model("hinge", "fourier", keep_features=True).fit(*labelled).plan_
    monkeypatch.setattr(cost, "_room", lambda plan, workers: room * all_kept.kept_bytes)
    fitted = model("hinge", "fourier").fit(*labelled)
    plan = fitted.plan_
    assert 0 < plan.kept_features < plan.size.n_rows
    assert plan.kept_bytes <= room * all_kept.kept_bytes
    assert f"kept between light sweeps: features of {plan.kept_features:,} rows" in repr(plan)
    assert bits(fitted) == expected
    monkeypatch.setattr(cost, "_pays", lambda size: False)
    fitted = model("hinge", "fourier").fit(*labelled)
    assert (fitted.plan_.kept_features, fitted.plan_.kept_rows > 0) == (0, True)
    assert bits(fitted) == expected


def count(block, folder):
    (Path(folder) / f"{time.time_ns()}-{os.getpid()}").touch()
    return block


def test_rows_that_are_kept_are_read_once(labelled, client, tmp_path):
    X, y = labelled
    counts, sweeps = {}, {}
    for keep in (True, False):
        folder = tmp_path / str(keep)
        folder.mkdir()
        lazy = blocks_of(X, count, str(folder))
        fitted = model("hinge", "fourier", keep_features=keep).fit(lazy, y)
        counts[keep] = len(list(folder.iterdir()))
        sweeps[keep] = fitted.report_["sweep_labels"]
    assert sweeps[True] == sweeps[False]
    n_light = sweeps[True].count("margins")
    assert n_light > 2
    others = len(sweeps[True]) - n_light
    assert counts[True] / counts[False] < 1.5 * (others + 1) / (others + n_light)


def kept_in_a_task(X: np.ndarray, y: np.ndarray) -> int:
    return model("hinge", "fourier").fit(X, y).plan_.kept_bytes


def test_a_fit_in_a_task_or_in_another_process_keeps_nothing(labelled, client, monkeypatch):
    """A search runs many at a time, and none of them knows of the others' memory."""
    assert model("hinge", "fourier").fit(*labelled).plan_.kept_bytes > 0
    assert client.submit(kept_in_a_task, *labelled).result() == 0
    assert not LocalExecution(None).is_nested
    for scheduler in ("threads", "synchronous"):  # of a search without a client
        (kept,) = dask.compute(dask.delayed(kept_in_a_task)(*labelled), scheduler=scheduler)
        assert kept == 0
    monkeypatch.setattr(engine_run, "parent_process", lambda: "another process")
    assert LocalExecution(None).is_nested


@pytest.fixture
def kept_rows(monkeypatch) -> tuple[list[int], list[int]]:
    """The rows of each segment that is kept in this process, and of all that are alive then."""
    made, alive = [], []
    values: WeakSet[CachedRows] = WeakSet()
    keep = engine_run.keep_rows

    def counted(*args: Any) -> CachedRows:
        found = keep(*args)
        values.add(found)
        made.append(found.stop - found.start)
        alive.append(sum(one.stop - one.start for one in values))
        return found

    monkeypatch.setattr(engine_run, "keep_rows", counted)
    return made, alive


def test_a_search_and_the_fit_after_it_keep_the_same(labelled, kept_rows):
    made, _ = kept_rows
    with dask.config.set(scheduler="synchronous"):
        fitted = model("cg, alpha searched", "binning", keep_features=True).fit(*labelled)
    assert "held-out errors" in fitted.report_["sweep_labels"]
    assert sum(made) == len(labelled[1])


def test_other_batches_take_the_place_of_those_that_were_kept(labelled, kept_rows, monkeypatch):
    made, alive = kept_rows
    sizes = itertools.cycle([64, 128])
    monkeypatch.setattr(sgd, "batch_rows", lambda *args: next(sizes))
    with dask.config.set(scheduler="synchronous"):
        fitted = model("sgd", "fourier", keep_features=True).fit(*labelled)
    n_epochs, n = fitted.report_["sweep_labels"].count("epoch"), len(labelled[1])
    assert n_epochs > 1
    assert sum(made) == (n_epochs + 1) * n
    # What is kept for the evaluations, for the epochs, and a segment that a local name still holds.
    assert max(alive) <= 2 * n + max(made)


class Strike:
    """A callback that kills the worker processes of these ids after a light sweep, once."""

    def __init__(self, sweep: int, pids: list[int]) -> None:
        self.sweep, self.pids = sweep, pids

    def __call__(self, progress: Any) -> None:
        if progress.sweep >= self.sweep:
            while self.pids:
                os.kill(self.pids.pop(), signal.SIGKILL)


@pytest.mark.parametrize("victims", ["one", pytest.param("all", marks=pytest.mark.slow)])
def test_what_a_killed_worker_kept_is_made_again(labelled, start_cluster, victims):
    _, client = start_cluster(2)
    expected = bits(model("squared hinge, C searched", "fourier", keep_features=False).fit(*labelled))
    pids = list(client.run(os.getpid).values())
    strike = Strike(3, pids if victims == "all" else pids[:1])
    estimator = model("squared hinge, C searched", "fourier", keep_features=True, callbacks=[strike])
    fitted = within_patience(estimator.fit, *labelled)
    assert not strike.pids or victims == "one"
    assert bits(fitted) == expected


@pytest.mark.slow
def test_workers_that_join_take_their_part(labelled, start_cluster):
    cluster, client = start_cluster(1)
    expected = bits(model("hinge", "fourier", keep_features=False).fit(*labelled))

    def scale(progress: Any) -> None:
        if progress.sweep == 2:
            cluster.scale(3)
            client.wait_for_workers(3, timeout=60)

    fitted = model("hinge", "fourier", keep_features=True, callbacks=[scale]).fit(*labelled)
    assert bits(fitted) == expected


def n_kept(dask_worker: Any) -> int:
    return sum(isinstance(value, CachedRows) for value in dask_worker.data.values())


def test_kept_rows_hold_no_more_than_themselves(rng):
    """A view of a block would keep all of it."""
    X = rng.standard_normal((100, 3))
    keeping = RowKeeping(
        specification=drf.FourierFeatures(GAUSSIAN, 8).fit(X).specification_,
        **{"scaling": Scaling(), "dtype": "float64", "tile_rows": 16, "of_basis": False},
        with_features=False,
    )
    (block,) = keeping.keep(as_dataset(X, X[:, 0]).rows(20, 50), {}).tiles(30)
    np.testing.assert_array_equal(block.X, X[20:50])
    assert [A.base.nbytes for A in (block.X, block.y)] == [block.X.nbytes, block.y.nbytes]


def test_nothing_stays_after_the_fit(labelled, client):
    seen = []

    def look(progress: Any) -> None:
        seen.append(sum(client.run(n_kept).values()))

    fitted = model("hinge", "fourier", keep_features=True, callbacks=[look]).fit(*labelled)
    assert fitted.plan_.kept_features == len(labelled[1])
    assert max(seen) > 2
    wait_until(lambda: not any(client.run(n_kept).values()))


def test_a_fit_that_fails_keeps_nothing(labelled, client):
    def fail(progress: Any) -> None:
        if progress.sweep == 2:
            raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        model("hinge", "fourier", keep_features=True, callbacks=[fail]).fit(*labelled)
    wait_until(lambda: not any(client.run(n_kept).values()))


def test_all_or_a_refusal(labelled, client, monkeypatch):
    monkeypatch.setattr(cost, "_room", lambda plan, workers: 1000.0)
    with pytest.raises(
        PlanRefused,
        match=r"keep_features=True needs .* 60% of its memory limit .*; use keep_features='auto'",
    ):
        model("hinge", "fourier", keep_features=True).fit(*labelled)
    assert model("hinge", "fourier").fit(*labelled).plan_.kept_features == 0


@pytest.mark.parametrize("wrong", ["yes", None, 1, 0.5])
def test_other_values_are_refused(labelled, wrong):
    with pytest.raises(InputError, match="keep_features must be 'auto', True or False, got"):
        model("hinge", "fourier", keep_features=wrong).fit(*labelled)


def test_direct_solutions_keep_nothing(labelled):
    fitted = drf.KernelRidge(MAPS["fourier"], 1.0, keep_features=True, random_state=0).fit(*labelled)
    assert (fitted.plan_.kept_features, fitted.plan_.kept_bytes) == (0, 0)


def test_the_plan_counts_what_is_kept(rng, start_cluster):
    """A worker's memory grows by what the plan says, and no more."""
    X = rng.standard_normal((40_000, 4)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    start_cluster(2)
    features = drf.FourierFeatures(drf.Gaussian(2.0), 512)
    fitted = drf.KernelSVC(features, loss="squared_hinge", random_state=0, keep_features=True).fit(X, y)
    report, plan = fitted.report_, fitted.plan_
    assert plan.kept_bytes >= len(X) * 512 * 4 // 2
    assert plan.kept_bytes < report["measured_peak_bytes"] <= report["planned_peak_bytes"]
