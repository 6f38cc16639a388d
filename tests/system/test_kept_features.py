"""Features that stay on the workers between light passes: the same bits, read once, and gone afterwards."""

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr

import distrff as drf
from distrff.engine import tasks as engine_tasks
from distrff.engine.tasks import LocalExecution
from distrff.errors import InputError, PlanRefused
from distrff.fitting import cost
from distrff.fitting.rows import CachedRows
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
    "squared hinge, C searched": partial(drf.KernelSVC, C="cv", Cs=[0.1, 1.0], cv=2, loss="squared_hinge"),
    "hard margin": partial(drf.KernelSVC, C=np.inf),
    "softmax": partial(drf.KernelLikelihoodClassifier, multi_class="softmax"),
    "sgd": partial(drf.KernelSVC, loss="squared_hinge", solver="sgd"),
    "cg": partial(drf.KernelRidgeClassifier, alpha=1.0, solver="cg"),
    "cg, alpha searched": partial(drf.KernelRidgeClassifier, alpha="cv", alphas=[0.1, 1.0, 10.0], cv=2),
}
CASES = [(model, "fourier") for model in MODELS if model != "cg, alpha searched"] + [
    ("hinge", "nystroem"), ("sgd", "nystroem"), ("cg", "nystroem"), ("hinge", "both"),
    ("hard margin", "nystroem"),
    ("hinge", "binning"), ("cg, alpha searched", "binning"), ("sgd", "binning"),
]  # fmt: skip
ON_WORKERS = (("hinge", "nystroem"), ("cg, alpha searched", "binning"))

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
    X = rng.standard_normal((1_811, 3))
    two = (X[:, 0] + X[:, 1] * X[:, 2] + 0.3 * rng.standard_normal(len(X)) > 0).astype(int)
    return X, two + (X[:, 2] > 1)


def model(name: str, features: str = "fourier", **options: Any) -> Any:
    sweeps = 6 if name == "sgd" else 12
    return MODELS[name](features=MAPS[features], random_state=0, **{"max_sweeps": sweeps, **options})


def bits(fitted: Any) -> list[Any]:
    return [
        fitted.coef_.tobytes(),
        np.asarray(fitted.intercept_).tobytes(),
        *map(str, fitted.report_["history"]),
    ]


@pytest.mark.parametrize(("name", "features"), CASES)
def test_what_is_kept_changes_no_bit(labelled, request, tmp_path, name, features):
    """From a store, in this process and on two workers."""
    X, y = labelled
    if name == "hard margin":
        y = (X[:, 0] > 0).astype(int)
        X[:, 0] += np.where(y, 1, -1)
    group = zarr.create_group(tmp_path / "rows.zarr")
    group.create_array("X", data=X, chunks=(700, 3))
    group.create_array("y", data=y, chunks=(700,))
    data = drf.open_dataset(tmp_path / "rows.zarr")

    def fit(keep: bool) -> Any:
        return model(name, features, keep_features=keep).fit(data)

    with dask.config.set(scheduler="synchronous"):
        expected, found = bits(fit(False)), [fit(True)]
    if (name, features) in ON_WORKERS:
        request.getfixturevalue("client")
        found.append(fit(True))
    for kept in found:
        assert kept.plan_.kept_features == len(y)
        assert bits(kept) == expected


def test_who_keeps_nothing(labelled, client, monkeypatch):
    """Processes are sent nothing; a search runs many fits in tasks, none of which knows of the others."""
    processes, threads = LocalExecution("processes"), LocalExecution("threads")
    assert model("hinge").plan_for(threads, *labelled).kept_bytes > 0
    assert model("hinge").plan_for(processes, *labelled).kept_bytes == 0
    with pytest.raises(PlanRefused, match="keep_features=True needs workers that hold what they made"):
        model("hinge", keep_features=True).plan_for(processes, *labelled)
    assert client.submit(kept_in_a_task, *labelled).result() == 0
    for scheduler in ("threads", "synchronous"):  # of a search without a client
        (kept,) = dask.compute(dask.delayed(kept_in_a_task)(*labelled), scheduler=scheduler)
        assert kept == 0
    monkeypatch.setattr(engine_tasks, "parent_process", lambda: "another process")
    assert LocalExecution(None).is_nested
    direct = drf.KernelRidge(MAPS["fourier"], 1.0, keep_features=True, random_state=0).fit(*labelled)
    assert (direct.plan_.kept_features, direct.plan_.kept_bytes) == (0, 0)


def kept_in_a_task(X: np.ndarray, y: np.ndarray) -> int:
    return model("hinge").fit(X, y).plan_.kept_bytes


def test_as_much_is_kept_as_there_is_room_for(labelled, client, monkeypatch):
    """The rest is kept as rows, or read again, whichever worker takes it."""
    labelled = [np.concatenate([A, A]) for A in labelled]  # of so many rows a share is some whole segments
    fit = partial(model, "hinge", max_sweeps=6)
    expected = bits(fit(keep_features=False).fit(*labelled))
    all_kept = fit(keep_features=True).fit(*labelled).plan_
    for room in (0.55, 0.8):
        monkeypatch.setattr(cost, "_room", lambda plan, share, room=room: room * all_kept.kept_bytes)
        fitted = fit().fit(*labelled)
        plan = fitted.plan_
        assert 0 < plan.kept_features < plan.size.n_rows
        assert plan.kept_bytes <= room * all_kept.kept_bytes
        assert f"kept between light sweeps: features of {plan.kept_features:,} rows" in repr(plan)
        assert bits(fitted) == expected
    monkeypatch.setattr(cost, "_pays", lambda size: False)
    fitted = fit().fit(*labelled)
    assert (fitted.plan_.kept_features, fitted.plan_.kept_rows > 0) == (0, True)
    assert bits(fitted) == expected
    monkeypatch.setattr(cost, "_room", lambda plan, workers: 1000.0)
    told = r"keep_features=True needs .* 60% of its memory limit .*; use keep_features='auto'"
    with pytest.raises(PlanRefused, match=told):
        fit(keep_features=True).fit(*labelled)
    assert fit().fit(*labelled).plan_.kept_features == 0


def count(block, folder):
    (Path(folder) / f"{time.time_ns()}-{os.getpid()}").touch()
    return block


def n_kept(dask_worker: Any) -> int:
    return sum(isinstance(value, CachedRows) for value in dask_worker.data.values())


def test_rows_that_are_kept_are_read_once_and_nothing_stays(labelled, client, tmp_path):
    """A search and the fit after it keep the same."""
    counts, sweeps, seen = {}, {}, []

    def look(progress: Any) -> None:
        seen.append(sum(client.run(n_kept).values()))

    for keep in (True, False):
        folder = tmp_path / str(keep)
        folder.mkdir()
        lazy = blocks_of(labelled[0], count, str(folder), rows=500)
        fitted = model("hinge", keep_features=keep, callbacks=[look]).fit(lazy, labelled[1])
        counts[keep], sweeps[keep] = len(list(folder.iterdir())), fitted.report_["sweep_labels"]
        assert bool(max(seen)) == keep
        seen.clear()
        wait_until(lambda: not any(client.run(n_kept).values()))
    assert sweeps[True] == sweeps[False]
    n_light = sweeps[True].count("margins")
    assert n_light > 2
    others = len(sweeps[True]) - n_light
    assert counts[True] / counts[False] < 1.5 * (others + 1) / (others + n_light)


def test_a_fit_that_fails_keeps_nothing(labelled, client):
    def fail(progress: Any) -> None:
        if progress.sweep == 2:
            raise RuntimeError("stop here")

    with pytest.raises(RuntimeError, match="stop here"):
        model("hinge", keep_features=True, callbacks=[fail]).fit(*labelled)
    wait_until(lambda: not any(client.run(n_kept).values()))


class Strike:
    """A callback that kills the worker processes of these ids after a light sweep, once."""

    def __init__(self, sweep: int, pids: list[int]) -> None:
        self.sweep, self.pids = sweep, pids

    def __call__(self, progress: Any) -> None:
        if progress.sweep >= self.sweep:
            while self.pids:
                os.kill(self.pids.pop(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("victims", ["one", "all"])
def test_what_a_killed_worker_kept_is_made_again(labelled, start_cluster, victims):
    _, client = start_cluster(2)
    expected = bits(model("squared hinge, C searched", keep_features=False).fit(*labelled))
    pids = list(client.run(os.getpid).values())
    strike = Strike(3, pids if victims == "all" else pids[:1])
    estimator = model("squared hinge, C searched", keep_features=True, callbacks=[strike])
    fitted = within_patience(estimator.fit, *labelled)
    assert not strike.pids or victims == "one"
    assert bits(fitted) == expected


@pytest.mark.slow
def test_workers_that_join_take_their_part(labelled, start_cluster):
    cluster, client = start_cluster(1)
    expected = bits(model("hinge", keep_features=False).fit(*labelled))

    def scale(progress: Any) -> None:
        if progress.sweep == 2:
            cluster.scale(3)
            client.wait_for_workers(3, timeout=60)

    assert bits(model("hinge", keep_features=True, callbacks=[scale]).fit(*labelled)) == expected


@pytest.mark.parametrize("wrong", ["yes", None, 1, 0.5])
def test_other_values_are_refused(labelled, wrong):
    with pytest.raises(InputError, match="keep_features must be 'auto', True or False, got"):
        model("hinge", keep_features=wrong).fit(*labelled)


@pytest.mark.slow
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
