"""What workers do for a fit: how often they draw, what they are sent, and what is left when they die."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from dask.utils import parse_bytes
from distributed import Client

import distrff as drf
from distrff.errors import ClusterError, InputError
from distrff.features import fourier
from distrff.features.specification import derivations_in_this_process
from distrff.sweeps import cluster_execution, execution
from distrff.sweeps.merge_order import OrderedMerge, chains, n_waiting_sums

pytestmark = pytest.mark.usefixtures("small_segments")


def machine(alpha=1.0, n_components=32, **options):
    features = drf.FourierFeatures(drf.Gaussian(2.0), n_components)
    return drf.KernelRidge(features, alpha, **({"random_state": 0} | options))


def in_process(*data, **options):
    with dask.config.set(scheduler="synchronous"):
        return machine(**options).fit(*data)


def blocks_of(X, function, *arguments, rows=2000):
    """X as a dask array whose blocks pass through `function(block, *arguments)`, in the tasks that read them."""
    lazy = da.from_array(X, chunks=(rows, X.shape[1]))
    return lazy.map_blocks(function, *arguments, dtype=X.dtype, meta=np.empty((0, 0), X.dtype))


# Frequencies --------------------------------------------------------------------------------


def test_each_worker_draws_the_frequencies_once(rows, client, rng):
    X, y = rows
    before = client.run(derivations_in_this_process)
    fitted = machine(random_state=int(rng.integers(2**40))).fit(X, y)
    assert fitted.plan_.n_segments > 10
    after = client.run(derivations_in_this_process)
    assert [after[worker] - before[worker] for worker in before] == [1, 1]
    lazy = da.from_array(X, chunks=(3000, 3))
    fitted.predict(lazy).compute()
    fitted.score(lazy, y)
    fitted.fit(lazy, y)
    assert client.run(derivations_in_this_process) == after


def spoil_frequencies():
    """Make this process draw other frequencies, as another processor or NumPy might."""
    draw = fourier.draw_frequencies
    fourier.draw_frequencies = lambda *args, **kwargs: 1.001 * draw(*args, **kwargs)
    fourier.draw_frequencies.original = draw


def mend_frequencies():
    fourier.draw_frequencies = fourier.draw_frequencies.original


@pytest.fixture
def other_frequencies(client):
    client.run(spoil_frequencies)
    yield
    client.run(mend_frequencies)


@pytest.mark.parametrize("alpha", [1.0, "cv"])
def test_frequencies_that_differ_are_shipped(rows, client, other_frequencies, caplog, rng, alpha):
    X, y = rows
    seed = int(rng.integers(2**40))
    expected = in_process(X, y, alpha=alpha, random_state=seed)
    with caplog.at_level(logging.WARNING, "distrff"):
        fitted = machine(alpha, random_state=seed).fit(X, y)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("distrff")]
    assert len(lines) == 1
    assert "derives other frequencies" in lines[0] and "are sent to the workers instead" in lines[0]
    np.testing.assert_array_equal(fitted.coef_, expected.coef_)
    # The machine knows from now on.
    lazy = da.from_array(X, chunks=(8000, 3))
    np.testing.assert_allclose(fitted.predict(lazy).compute(), expected.predict(X), rtol=0, atol=1e-10)
    assert fitted.score(lazy, y) == pytest.approx(expected.score(X, y), rel=1e-10)
    assert len(caplog.records) == 1


def test_a_score_of_frequencies_that_differ(rows, client, other_frequencies, caplog, rng):
    X, y = rows
    fitted = in_process(X, y, random_state=int(rng.integers(2**40)))
    expected = fitted.score(X[:2000], y[:2000])
    with dask.config.set(scheduler="synchronous"):
        assert fitted.score(X[:2000], y[:2000]) == pytest.approx(expected, rel=1e-12)


# Death --------------------------------------------------------------------------------------


def kill_once(block, folder, when, pids):
    """Kill a worker process, once, in the second pass over the rows: this one, or another that holds sums."""
    folder = Path(folder)
    try:
        number = len(list(folder.glob("read-*")))
        (folder / f"read-{number}-{os.getpid()}").touch()
        if number < when:
            return block
        (folder / "killed").touch(exist_ok=False)
    except FileExistsError:
        return block
    others = [pid for pid in pids if pid != os.getpid()]
    os.kill(others[0] if others else os.getpid(), signal.SIGKILL)
    return block


@pytest.mark.parametrize("alpha", [1.0, "cv"])
@pytest.mark.parametrize("victim", ["the reader", "the other"])
def test_a_worker_killed_during_the_sweep_changes_no_bit(rows, start_cluster, tmp_path, alpha, victim):
    X, y = rows
    expected = in_process(X, y, alpha=alpha)
    _, client = start_cluster(2)
    pids = list(client.run(os.getpid).values()) if victim == "the other" else []
    n_blocks = -(-len(X) // 2000)
    # Every block is read at least once in the first pass, so this is well inside of the second.
    lazy = blocks_of(X, kill_once, str(tmp_path), 3 * n_blocks, pids)
    fitted = machine(alpha).fit(lazy, y)
    assert (tmp_path / "killed").exists()
    np.testing.assert_array_equal(fitted.coef_, expected.coef_)
    np.testing.assert_array_equal(fitted.intercept_, expected.intercept_)


def die(block, marker):
    if Path(marker).exists():
        os._exit(1)
    return block


def test_workers_that_die_again_and_again_are_an_error(rows, start_cluster, tmp_path):
    cluster, client = start_cluster(1)
    cluster.scheduler.allowed_failures = 0
    (tmp_path / "deadly").touch()
    lazy = blocks_of(rows[0], die, str(tmp_path / "deadly"))
    with pytest.raises(
        ClusterError, match=r"workers died repeatedly on the same task .* memory limit is too small"
    ):
        machine().fit(lazy, rows[1])
    (tmp_path / "deadly").unlink()
    client.wait_for_workers(1, timeout=60)
    np.testing.assert_array_equal(machine().fit(lazy, rows[1]).coef_, in_process(*rows).coef_)


def test_a_cluster_without_workers(rows, start_cluster):
    start_cluster(0)
    with pytest.raises(ClusterError, match="the cluster has no workers; add some"):
        machine().fit(*rows)


def test_a_cluster_that_is_gone(rows, start_cluster):
    cluster, client = start_cluster(1)
    fitted = machine().fit(*rows)
    client.close()
    cluster.close()
    assert fitted.predict(rows[0]).shape == rows[1].shape
    with pytest.raises(ClusterError, match="the cluster .* is gone.*fit again"):
        fitted.predict(rows[0], return_std=True)


# Interruption -------------------------------------------------------------------------------


def linger(block, marker):
    Path(marker).touch()
    time.sleep(0.2)
    return block


def test_ctrl_c_cancels_the_tasks(rows, cluster, client, tmp_path, wait_until):
    marker = tmp_path / "started"

    def interrupt():
        wait_until(marker.exists)
        os.kill(os.getpid(), signal.SIGINT)

    lazy = blocks_of(rows[0], linger, str(marker), rows=1000)
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            machine().fit(lazy, rows[1])
    finally:
        interrupting.join()
    wait_until(lambda: not any(client.processing().values()), 5)
    wait_until(lambda: not cluster.scheduler.tasks, 5)


def test_an_error_cancels_the_tasks(rows, cluster, client, tmp_path, wait_until):
    X = rows[0].copy()
    X[1234, 2] = np.nan
    lazy = blocks_of(X, linger, str(tmp_path / "started"), rows=1000)
    with pytest.raises(InputError, match="X contains NaN in row 1234, column 2"):
        machine().fit(lazy, rows[1])
    wait_until(lambda: not cluster.scheduler.tasks, 5)


# What travels, what stays -------------------------------------------------------------------


def test_the_client_stays_here(rows, client):
    fitted = machine("cv").fit(*rows)
    late = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(late.predict(rows[0]), fitted.predict(rows[0]))
    assert not [name for name, value in vars(late).items() if isinstance(value, Client)]
    _, std = fitted.predict(rows[0][:10], return_std=True)
    np.testing.assert_array_equal(
        std, in_process(*rows, alpha="cv").predict(rows[0][:10], return_std=True)[1]
    )


def test_nothing_is_left_on_the_cluster_but_the_gram(rows, cluster, client, wait_until):
    fitted = machine("cv").fit(*rows)
    p = 32 + 1 + 1
    wait_until(lambda: sum(state.nbytes or 0 for state in cluster.scheduler.tasks.values()) < 16 * 8 * p * p)
    del fitted
    wait_until(lambda: not cluster.scheduler.tasks)


def test_large_rows_in_memory_travel_without_a_warning(rng, client, recwarn, monkeypatch):
    monkeypatch.undo()  # segments of their usual size, so that one task carries more than dask likes
    X = rng.standard_normal((2**17, 16))
    assert X.nbytes > parse_bytes(dask.config.get("distributed.admin.large-graph-warning-threshold"))
    drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(4.0), 16)).fit(X, X[:, 0])
    assert not recwarn.list


@pytest.mark.parametrize("where", ["cluster", "process"])
def test_live_sums_are_bounded(rows, request, monkeypatch, where):
    """Beside the chains under way, only the sums that wait for a neighbour are alive."""
    most = {}

    class Counting(OrderedMerge):
        def add(self, index, total):
            super().add(index, total)
            most[len(self._level_sizes)] = max(most.get(len(self._level_sizes), 0), self.n_waiting)

    monkeypatch.setattr("distrff.sweeps.segments._GRAM_SEGMENT_ROWS", 512)
    n_threads = 2
    if where == "cluster":
        request.getfixturevalue("client")
        monkeypatch.setattr(cluster_execution, "OrderedMerge", Counting)
        fitted = machine().fit(*rows)
    else:
        monkeypatch.setattr(execution, "OrderedMerge", Counting)
        with dask.config.set(scheduler="threads", num_workers=n_threads):
            fitted = machine().fit(*rows)
    n_segments = fitted.plan_.n_segments
    levels = n_waiting_sums(n_segments)
    assert len(chains(n_segments)) == 16 and levels == 4
    # In order, one sum a level waits; each of the few chains under way can hold up another of each level.
    assert 1 < max(most.values()) <= levels * (n_threads + 1)


# Fits inside tasks --------------------------------------------------------------------------


def search(X, y):
    from sklearn.model_selection import GridSearchCV

    return GridSearchCV(machine(), {"alpha": [1e-2, 1.0]}, cv=2).fit(X, y).best_estimator_


def test_a_search_inside_a_task(rows, client):
    X, y = rows[0][:4000], rows[1][:4000]
    found = [client.submit(search, X, y, pure=False) for _ in range(4)]
    for future in found:
        best = future.result(timeout=60)
        assert best.report_["workers"] == best.report_["threads"] == 1
        np.testing.assert_array_equal(best.coef_, in_process(X, y, alpha=best.alpha).coef_)


def test_a_search_by_joblib(rows, client):
    joblib = pytest.importorskip("joblib")
    from sklearn.model_selection import GridSearchCV

    X, y = rows[0][:4000], rows[1][:4000]
    grid = GridSearchCV(machine(), {"alpha": [1e-2, 1.0], "scale": ["none", "standard"]}, cv=2, n_jobs=4)

    def fit():
        with joblib.parallel_config(backend="dask", client=client):
            grid.fit(X, y)

    assert finishes(fit)
    np.testing.assert_array_equal(grid.best_estimator_.coef_, machine(**grid.best_params_).fit(X, y).coef_)


def test_a_search_by_dask_ml(rows, client):
    from dask_ml.model_selection import GridSearchCV

    X, y = rows[0][:4000], rows[1][:4000]
    grid = GridSearchCV(machine(), {"alpha": [1e-2, 1e4]}, cv=2)
    assert finishes(lambda: grid.fit(X, y))
    assert grid.best_params_ == {"alpha": 1e-2}


def finishes(function, seconds=60):
    """Whether a call returns in time; its exception is raised here."""
    done = []

    def call():
        try:
            done.append(function())
        except BaseException as error:
            done.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if done and isinstance(done[0], BaseException):
        raise done[0]
    return bool(done)
