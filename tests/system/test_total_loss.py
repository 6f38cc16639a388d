"""All workers gone at once, or the cluster restarted, in the middle of a fit: it ends with the same bits."""

import asyncio
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, wait

import distrff as drf
from distrff.engine import distributed
from distrff.engine.distributed import ClusterExecution, Pending
from distrff.engine.reduction import Reduction, Segmentation
from distrff.engine.run import Handle, Run
from distrff.engine.tasks import Lost
from distrff.errors import ClusterError
from distrff.io.arrays import as_dataset
from tests.support.commands import wait_until
from tests.support.fits import blocks_of, fourier, in_process, margin_classifier, small_ridge, within_patience

pytestmark = pytest.mark.usefixtures("small_segments")


@pytest.fixture
def large(monkeypatch) -> None:
    """Partials and arrays that are sent are values on the workers, however small they are."""
    monkeypatch.setattr(distributed, "_SMALL_BYTES", 0)
    monkeypatch.setattr(distributed, "_SMALL_ARRAYS", 0)


@pytest.fixture
def partials(request) -> str:
    """Small partials are merged by the client."""
    if request.param == "large":
        request.getfixturevalue("large")
    return request.param


def hold(block, folder, when):
    """Stop in the block that is the `when`-th to be read, until the workers are gone."""
    folder = Path(folder)
    number = len(list(folder.glob("read-*")))
    (folder / f"read-{number}-{os.getpid()}").touch()
    if number >= when and not (folder / "lost").exists():
        (folder / "reached").touch()
        deadline = time.monotonic() + 30
        while not (folder / "lost").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    return block


def kill_all(cluster: LocalCluster, client: Client) -> None:
    for pid in client.run(os.getpid).values():
        os.kill(pid, signal.SIGKILL)


def scale_down_and_up(cluster: LocalCluster, client: Client) -> None:
    n_workers = len(cluster.workers)
    cluster.scale(0)
    time.sleep(3)
    cluster.scale(n_workers)


def restart(cluster: LocalCluster, client: Client) -> None:
    client.restart()


LOSSES = {"killed": kill_all, "scaled down": scale_down_and_up, "restarted": restart}


@contextmanager
def lost_once(folder: Path, lose: Callable[[], None]):
    """Lose the workers in the body, when the rows are read that `hold` waits for."""

    def when_reached() -> None:
        wait_until((folder / "reached").exists, 60)
        threading.Timer(0.5, (folder / "lost").touch).start()  # so that no held block outlives its worker
        lose()

    thread = threading.Thread(target=when_reached)
    thread.start()
    yield
    thread.join()
    assert (folder / "lost").exists()


def disturbed(estimator, rows, folder, when, loss, cluster, client) -> Any:
    """Return the estimator, fitted while the workers are lost as the `when`-th block is read."""
    with lost_once(folder, lambda: LOSSES[loss](cluster, client)):
        return within_patience(estimator.fit, blocks_of(rows[0], hold, str(folder), when), rows[1])


FEATURES = fourier(32, random_state=None)
FITS = {
    "Gram": partial(small_ridge, "cv"),
    "conjugate gradients": partial(small_ridge, solver="cg"),
    "hinge": partial(margin_classifier, "hinge", FEATURES),
    "hinge, C by folds": partial(margin_classifier, "hinge", FEATURES, "cv"),
    "logistic": partial(margin_classifier, "logistic", FEATURES),
    "sgd": partial(margin_classifier, "hinge", FEATURES, solver="sgd"),
}
# 20 to 30 pieces are read a pass: of ridge by the Gram, the loss is in the second one.
QUICK = [("Gram", 40, "killed", 1, "small")]
CASES = [
    *product(["Gram"], [40], LOSSES, (1, 2), ("small", "large")),
    *product(list(FITS)[1:4], (15, 40, 70), LOSSES, [2], ["large"]),  # done before the hundredth
    *product(list(FITS)[4:], (15, 40, 70, 100), LOSSES, [2], ["large"]),
]


def test_tasks_that_only_the_scheduler_knows_are_forgotten(cluster, client):
    """A restarted cluster may want tasks for a client that has no futures of them."""
    key = f"distrff-stray-{uuid.uuid4().hex}"

    def want(key, client_id, dask_scheduler):
        dask_scheduler.client_desires_keys(keys=[key], client=client_id)

    with Client(cluster, set_as_default=False) as other:
        stray = other.submit(abs, 1, key=key, resources={"nowhere": 1})
        wait_until(lambda: client.run_on_scheduler(lambda dask_scheduler: key in dask_scheduler.tasks), 60)
        client.run_on_scheduler(want, key, client.id)
        ClusterExecution(client).recover(Lost("the cluster was restarted"))
        wait_until(lambda: stray.status == "cancelled", 60)
    assert not client.run_on_scheduler(lambda dask_scheduler: key in dask_scheduler.tasks)


def test_a_value_that_could_not_be_made_is_begun_again():
    outcomes = iter([ZeroDivisionError, None])

    def begin():
        if failure := next(outcomes):
            raise failure
        return 7

    handle = Handle(begin)
    with pytest.raises(ZeroDivisionError):
        handle.value()
    assert (handle.value(), handle.value()) == (7, 7)


@pytest.mark.parametrize(
    ("name", "when", "loss", "n_workers", "partials"),
    [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES],
    indirect=["partials"],
)
def test_a_fit_goes_on(rows, start_cluster, tmp_path, partials, name, when, loss, n_workers):
    X, y = rows
    y = y if name in ("Gram", "conjugate gradients") else y > 0
    expected = in_process(FITS[name](), X, y)
    cluster, client = start_cluster(n_workers)
    fitted = disturbed(FITS[name](), (X, y), tmp_path, when, loss, cluster, client)
    np.testing.assert_array_equal(fitted.coef_, expected.coef_)
    if name == "Gram":
        np.testing.assert_array_equal(fitted.alpha_, expected.alpha_)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("partials", ["small", "large"], indirect=True)
def test_a_loss_at_any_time(start_cluster, tmp_path, partials, loss, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((20_009, 3))
    y = np.sin(X[:, 0]) > rng.standard_normal(len(X))
    make = FITS["hinge" if seed % 2 else "Gram"]
    expected = in_process(make(), X, y)
    cluster, client = start_cluster(1 + seed % 3)
    fitted = disturbed(make(), (X, y), tmp_path, int(rng.integers(40)), loss, cluster, client)
    np.testing.assert_array_equal(fitted.coef_, expected.coef_)


@pytest.mark.parametrize("with_checkpoint", [pytest.param(False, marks=pytest.mark.slow), True])
def test_values_before_a_loss_are_met_again(
    rows, start_cluster, large, monkeypatch, tmp_path, with_checkpoint
):
    """A fit makes no pass again that it has the value of, and callbacks hear of each pass once."""
    X, y, seen = rows[0][:6000], rows[1][:6000] > 0, []
    monkeypatch.setattr("distrff.engine.reduction._MIN_LIGHT_ROWS", 1024)
    expected = in_process(FITS["hinge"](), X, y)
    cluster, client = start_cluster(2, processes=False)

    def lose(progress) -> None:
        seen.append((progress.sweep, progress.label))
        if progress.error is not None and progress.sweep == 4:
            cluster.scale(0)
            wait_until(lambda: not client.scheduler_info(n_workers=-1)["workers"], 60)
            cluster.scale(2)
            client.wait_for_workers(2, timeout=60)

    kept = {"checkpoint": tmp_path / "kept", "checkpoint_every": 0} if with_checkpoint else {}
    fitted = within_patience(partial(FITS["hinge"]().set_params(callbacks=[lose]).fit, X, y, **kept))
    np.testing.assert_array_equal(fitted.coef_, expected.coef_)
    assert fitted.report_["sweep_labels"] == expected.report_["sweep_labels"]
    assert len(seen) == len(set(seen)) == fitted.report_["n_sweeps"]
    assert "lost with the cluster" in dict(fitted.report_["phases"])
    notes = [note for note in fitted.report_["notes"] if "passes were read from the checkpoint" in note]
    assert len(notes) == with_checkpoint


@dataclass(frozen=True)
class SumOfRows(Reduction):
    """The sum of all rows, times what was sent; each pass over the rows leaves a file."""

    folder: str

    def size_bytes(self, n_rows):
        return 24

    def zero(self):
        return np.zeros(3)

    def update(self, total, rows, arrays):
        (Path(self.folder) / f"{rows.start}-{uuid.uuid4().hex}").touch()
        for block in rows.tiles(1000):
            total += (block.X * arrays["factors"]).sum(axis=0)
        return total


def test_values_are_made_again_from_the_rows_on(rows, start_cluster, large, tmp_path):
    """A restart between two steps takes sums, what was made of them, and what was sent."""
    _, client = start_cluster(1)
    run, cuts, factors = Run(), Segmentation(len(rows[0]), 5000, 1000), {"factors": np.array([1.0, 2.0, 3.0])}
    n_passes, seen = [], []

    def solve():
        total = run.reduce("sum", as_dataset(*rows), SumOfRows(str(tmp_path)), cuts, factors)
        doubled = run.submit(np.multiply, total, 2)
        first = run.gather([total, doubled])
        n_passes.append(len(list(tmp_path.iterdir())) / cuts.n_segments)
        seen.append(first[0].copy())
        first[0][:] = 0  # what a solver does with a value is not remembered
        if len(n_passes) == 1:
            client.restart()
        return (
            seen[0],
            run.get(run.submit(sum, [total, doubled])),
            run.total("sum", as_dataset(*rows), SumOfRows(str(tmp_path)), cuts, factors),
        )

    total, both, again = within_patience(run.surviving, solve)
    assert n_passes == [1, 1]
    assert len(list(tmp_path.iterdir())) == 3 * cuts.n_segments, "one more pass, and not one for each value"
    assert [label for label, _ in run.sweeps] == ["sum", "sum"]
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_array_equal(both, 3 * total)
    np.testing.assert_array_equal(again, total)


@pytest.mark.slow
def test_what_cannot_be_made_again(rows, start_cluster, large, monkeypatch):
    """The Gram of a model that was fitted before, and what a user persisted."""
    monkeypatch.setattr(distributed, "_LEAVING_SECONDS", 0.2)
    _, client = start_cluster(1)
    fitted = small_ridge("cv").fit(*rows)
    X = da.from_array(rows[0], chunks=(2000, 3)).persist()
    wait(X)
    client.restart()
    with pytest.raises(ClusterError, match=r"the cluster lost the Gram of this model .*; fit again"):
        fitted.predict(rows[0], return_std=True)
    assert fitted.predict(rows[0]).shape == rows[1].shape
    with pytest.raises(ClusterError, match=r"persisted blocks of a dask array.* persist the array again"):
        within_patience(small_ridge("cv").fit, X, rows[1])


def test_a_task_that_no_worker_is_given(rows, start_cluster, monkeypatch, caplog):
    """The scheduler keeps a task for a worker that never comes: it is sent again after some looks."""
    start_cluster(1, processes=False)
    caplog.set_level("WARNING")  # a local cluster silences all handlers
    send, sent = Pending.compute, []

    def send_astray(self, task, worker):
        sent.append(worker)
        if len(sent) > 1:
            return send(self, task, worker)
        return self.watch(self.client.compute(task, workers=["tcp://127.0.0.1:1"]))

    monkeypatch.setattr(Pending, "compute", send_astray)
    for name in ("_LOOK_SECONDS", "_LEAVING_SECONDS"):
        monkeypatch.setattr(f"distrff.engine.distributed.{name}", 0.2)
    fitted = within_patience(small_ridge("cv").fit, *rows)
    assert "no worker was given the tasks that are ready" in caplog.text
    np.testing.assert_array_equal(fitted.coef_, in_process(small_ridge("cv"), *rows).coef_)


def test_a_client_of_this_event_loop(rows):
    """A fit would block the loop that its client runs in; in a thread it need not."""
    model = small_ridge("cv")

    async def main():
        options = {"scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"}, "dashboard_address": None}
        async with (
            LocalCluster(n_workers=1, processes=False, asynchronous=True, **options) as cluster,
            Client(cluster, asynchronous=True),
        ):
            with pytest.raises(ClusterError, match=r"await asyncio\.to_thread\(model\.fit, X, y\)"):
                model.fit(*rows)
            return await asyncio.to_thread(model.fit, *rows)

    fitted = asyncio.run(main())
    expected = in_process(small_ridge("cv"), *rows)
    np.testing.assert_array_equal(fitted.coef_, expected.coef_)


def lazy_array(X, y):
    return da.from_array(X, chunks=(2000, 3)).map_blocks(np.negative), y


def lazy_table(X, y):
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y, "kind": np.where(X[:, 2] > 0, "u", "v")})
    return (drf.open_dataset(dd.from_pandas(frame, npartitions=10), target="y", one_hot=True),)


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [lazy_array, lazy_table])
def test_a_fit_of_the_same_rows_afterwards(rows, start_cluster, large, lazy):
    """A model that keeps a Gram keeps the tasks that made it, bound to workers that are gone."""
    cluster, client = start_cluster(2)
    data = lazy(*rows)
    fitted = small_ridge("cv").fit(*data)
    before = set(client.scheduler_info(n_workers=-1)["workers"])
    kill_all(cluster, client)
    wait_until(lambda: len(set(client.scheduler_info(n_workers=-1)["workers"]) - before) == 2, 60)
    again = within_patience(small_ridge("cv").fit, *data)
    np.testing.assert_array_equal(again.coef_, fitted.coef_)
