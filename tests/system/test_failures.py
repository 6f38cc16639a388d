"""Workers that die, clusters that are gone, fits that are interrupted: the same bits, or one clear error."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client, LocalCluster, get_worker

import distrff as drf
from distrff.engine.cluster import connect
from distrff.errors import ClusterError, InputError
from tests.support.commands import wait_until
from tests.support.fits import blocks_of, in_process, small_ridge, within_patience

pytestmark = pytest.mark.usefixtures("small_segments")


@pytest.fixture(scope="module")
def mortal_cluster(local_cluster) -> Iterator[LocalCluster]:
    """Two workers that may be killed; their nannies start them again."""
    with local_cluster(2) as cluster:
        yield cluster


@pytest.fixture
def mortal(mortal_cluster) -> Iterator[Client]:
    with Client(mortal_cluster) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


def strike_once(block, folder, when, pids, blow=signal.SIGKILL):
    """Kill or stop a worker process, once, as the `when`-th piece is read: this one, or one that has sums."""
    folder = Path(folder)
    try:
        number = len(list(folder.glob("read-*")))
        (folder / f"read-{number}-{os.getpid()}").touch()
        if number < when:
            return block
        (folder / "struck").touch(exist_ok=False)
    except FileExistsError:
        return block
    others = [pid for pid in pids if pid != os.getpid()]
    os.kill(others[0] if others else os.getpid(), blow)
    return block


@pytest.mark.parametrize(
    ("alpha", "victim"), [("cv", "the reader"), pytest.param(1.0, "the other", marks=pytest.mark.slow)]
)
def test_a_worker_killed_during_the_sweep_changes_no_bit(rows, mortal, tmp_path, alpha, victim):
    X, y = rows
    expected = in_process(small_ridge(alpha=alpha), X, y)
    pids = list(mortal.run(os.getpid).values()) if victim == "the other" else []
    # 10 segments and 11 blocks are 20 pieces to read in the first pass; 20 segments are 30 in the second.
    lazy = blocks_of(X, strike_once, str(tmp_path), 34, pids)
    fitted = small_ridge(alpha).fit(lazy, y)
    assert (tmp_path / "struck").exists()
    np.testing.assert_array_equal(fitted.coef_, expected.coef_)
    np.testing.assert_array_equal(fitted.intercept_, expected.intercept_)


@pytest.mark.slow
@pytest.mark.parametrize("sums", ["on workers", "in the client"])
def test_a_worker_that_hangs_changes_no_bit(rows, rng, monkeypatch, tmp_path, sums):
    """The scheduler gives it up, here after five seconds, its least; its tasks and sums are made elsewhere.

    The worker stops itself: on a loaded machine, another one may have been given up before.
    """
    if sums == "on workers":
        monkeypatch.setattr("distrff.engine.distributed._SMALL_BYTES", 0)
    expected = in_process(small_ridge("cv"), *rows)
    with dask.config.set({"distributed.scheduler.worker-ttl": "1s"}), connect(n_workers=2):
        when = int(rng.integers(2, 45))  # of the 50 pieces of both passes
        lazy = blocks_of(rows[0], strike_once, str(tmp_path), when, [], signal.SIGSTOP)
        fitted = within_patience(small_ridge("cv").fit, lazy, rows[1])
    assert (tmp_path / "struck").exists()
    np.testing.assert_array_equal(fitted.coef_, expected.coef_)


def slowly(block):
    time.sleep(0.05)
    return block


@pytest.mark.slow
@pytest.mark.parametrize("how", ["adapt", "scale"])
def test_workers_that_come_and_go_all_the_time(rows, rng, start_cluster, monkeypatch, how):
    """They are retired with what they have, and closed, while others are started, until the fit ends."""
    monkeypatch.setattr("distrff.engine.distributed._SMALL_BYTES", 0)
    expected = in_process(small_ridge("cv"), *rows)
    cluster, client = start_cluster(2)
    over, seen = threading.Event(), set()

    def change():
        while not over.wait(0.5):
            seen.update(client.scheduler_info(n_workers=-1)["workers"])
            n = int(rng.integers(1, 4))
            if how == "scale":
                cluster.scale(n)
            else:
                cluster.adapt(minimum=n, maximum=n, interval="100ms", wait_count=1)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        lazy = blocks_of(rows[0], slowly, rows=500)
        while len(seen) < 4:
            fitted = within_patience(small_ridge("cv").fit, lazy, rows[1])
            np.testing.assert_array_equal(fitted.coef_, expected.coef_)
    finally:
        over.set()
        changing.join()


def die(block, marker):
    if Path(marker).exists():
        os._exit(1)
    return block


@pytest.mark.slow
def test_workers_that_die_again_and_again_are_an_error(rows, mortal, monkeypatch, tmp_path):
    monkeypatch.setattr(mortal.cluster.scheduler, "allowed_failures", 0)
    (tmp_path / "deadly").touch()
    lazy = blocks_of(rows[0], die, str(tmp_path / "deadly"))
    told = r"workers died repeatedly on the same task .* memory limit is too small"
    with pytest.raises(ClusterError, match=told):
        small_ridge().fit(lazy, rows[1])
    (tmp_path / "deadly").unlink()
    mortal.wait_for_workers(1, timeout=60)
    fitted = small_ridge().fit(lazy, rows[1])
    np.testing.assert_array_equal(fitted.coef_, in_process(small_ridge(), *rows).coef_)


def pause(block):
    """Let the worker believe that its memory is full."""
    get_worker().memory_manager.memory_pause_fraction = 1e-9
    return block


def test_a_cluster_whose_workers_are_paused_or_none(rows, start_cluster, monkeypatch):
    start_cluster(0, processes=False)
    with pytest.raises(ClusterError, match="the cluster has no workers; add some"):
        small_ridge().fit(*rows)
    start_cluster(1, processes=False)
    monkeypatch.setattr("distrff.engine.distributed._LOOK_SECONDS", 0.1)
    monkeypatch.setattr("distrff.engine.distributed._NO_WORKERS_SECONDS", 1.0)
    with pytest.raises(ClusterError, match=r"all 1 worker\(s\) of the cluster have been paused for 1 s"):
        small_ridge().fit(blocks_of(rows[0], pause), rows[1])


def wait_for_another(block, folder):
    """Note who reads, and read on when another worker has come."""
    (Path(folder) / f"reader-{os.getpid()}").touch()
    deadline = time.monotonic() + 60
    while not (Path(folder) / "came").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.02)
    return block


@pytest.mark.slow
def test_a_worker_that_comes_later_takes_its_part(rows, start_cluster, tmp_path):
    cluster, client = start_cluster(1)

    def add_worker():
        wait_until(lambda: list(tmp_path.glob("reader-*")))
        cluster.scale(2)
        client.wait_for_workers(2, timeout=60)
        (tmp_path / "came").touch()

    adding = threading.Thread(target=add_worker)
    adding.start()
    lazy = blocks_of(rows[0], wait_for_another, str(tmp_path), rows=1000)
    fitted = small_ridge().fit(lazy, rows[1])
    adding.join()
    assert len(list(tmp_path.glob("reader-*"))) == 2
    np.testing.assert_array_equal(fitted.coef_, in_process(small_ridge(), *rows).coef_)


def test_a_cluster_that_is_gone(rows, local_cluster):
    with local_cluster(1, processes=False) as cluster, Client(cluster):
        fitted = small_ridge().fit(*rows)
    assert fitted.predict(rows[0]).shape == rows[1].shape
    with pytest.raises(
        ClusterError, match=r"scheduler is out of reach \(the connection to it is closed\); .* fit again"
    ):
        fitted.predict(rows[0], return_std=True)


def linger(block, marker):
    Path(marker).touch()
    time.sleep(0.2)
    return block


@pytest.mark.parametrize("kind", ["zarr", "parquet"])
def test_rows_that_workers_do_not_see(rows, client, tmp_path, kind):
    """Workers elsewhere, for which the client's folder is none; what they raise must travel to the client."""
    X, y = rows
    path = tmp_path / f"rows.{kind}"
    if kind == "zarr":
        group = zarr.create_group(path)
        group.create_array("X", data=X, chunks=(2000, X.shape[1]))
        group.create_array("y", data=y)
    else:
        pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y).to_parquet(path)
    dataset = drf.open_dataset(path, target="y" if kind == "parquet" else None)
    path.rename(tmp_path / "elsewhere")
    told = r"cannot be found by this process.* folder that all of them share"
    with pytest.raises(InputError, match=told):
        small_ridge().fit(dataset)


def test_ctrl_c_cancels_the_tasks(rows, cluster, client, tmp_path):
    marker = tmp_path / "started"

    def interrupt():
        wait_until(marker.exists)
        os.kill(os.getpid(), signal.SIGINT)

    lazy = blocks_of(rows[0], linger, str(marker), rows=1000)
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            small_ridge().fit(lazy, rows[1])
    finally:
        interrupting.join()
    wait_until(lambda: not any(client.processing().values()), 5)
    wait_until(lambda: not cluster.scheduler.tasks, 5)


def test_an_error_cancels_the_tasks(rows, cluster, client, tmp_path):
    X = rows[0].copy()
    X[1234, 2] = np.nan
    lazy = blocks_of(X, linger, str(tmp_path / "started"), rows=1000)
    with pytest.raises(InputError, match="X contains NaN in row 1234, column 2"):
        small_ridge().fit(lazy, rows[1])
    wait_until(lambda: not cluster.scheduler.tasks, 5)
