"""What travels to the workers and what stays here, fits inside of tasks, frequencies drawn once a process."""

import logging
import pickle

import dask
import dask.array as da
import joblib
import numpy as np
import pytest
from dask.utils import parse_bytes
from dask_ml.model_selection import GridSearchCV as DaskGridSearchCV
from distributed import Client
from sklearn.model_selection import GridSearchCV

import distrff as drf
from distrff.engine.reduction import OrderedMerge, n_levels
from distrff.errors import FrequencyMismatch
from distrff.features import fourier as sampling
from tests.support.commands import wait_until
from tests.support.draws import derivations
from tests.support.fits import in_process, small_ridge, within_patience

pytestmark = pytest.mark.usefixtures("small_segments")


def test_the_client_stays_here(rows, client):
    fitted = small_ridge("cv").fit(*rows)
    late = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(late.predict(rows[0]), fitted.predict(rows[0]))
    assert not [name for name, value in vars(late).items() if isinstance(value, Client)]
    _, std = fitted.predict(rows[0][:10], return_std=True)
    expected = in_process(small_ridge("cv"), *rows)
    np.testing.assert_array_equal(std, expected.predict(rows[0][:10], return_std=True)[1])
    fitted.predict_interval(rows[0][:10])  # by posteriors without each fold, one after another
    found, intervals = fitted.model_.intervals, expected._with_intervals().intervals
    assert found.floors == intervals.floors
    np.testing.assert_array_equal(found.radius(0.5, "deviation"), intervals.radius(0.5, "deviation"))


def test_nothing_is_left_on_the_cluster_but_the_gram(rows, cluster, client):
    fitted = small_ridge("cv").fit(*rows)
    gram = 8 * (32 + 1 + 1) ** 2

    def stored():
        return sum(max(state.nbytes, 0) for state in cluster.scheduler.tasks.values() if state.who_has)

    wait_until(lambda: gram <= stored() < 2 * gram)
    del fitted
    wait_until(lambda: not cluster.scheduler.tasks)


def test_large_rows_in_memory_travel_without_a_warning(rng, client, recwarn, monkeypatch):
    monkeypatch.undo()  # segments of their usual size, so that one task carries more than dask likes
    X = rng.standard_normal((2**17, 16))
    assert X.nbytes > parse_bytes(dask.config.get("distributed.admin.large-graph-warning-threshold"))
    drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(4.0), 16), 1.0).fit(X, X[:, 0])
    assert not recwarn.list


@pytest.mark.parametrize("where", ["cluster", "process"])
def test_live_partials_are_bounded(rows, request, monkeypatch, where):
    """However many segments there are, only a few partials wait for others."""
    waiting = []

    class Counting(OrderedMerge):
        def add(self, segment, partial):
            super().add(segment, partial)
            waiting.append(self.n_waiting)

    for name in ("_MIN_SEGMENT_ROWS", "_MAX_SEGMENT_ROWS"):
        monkeypatch.setattr(f"distrff.engine.reduction.{name}", 512)
    monkeypatch.setattr("distrff.engine.tasks.OrderedMerge", Counting)
    if where == "cluster":
        request.getfixturevalue("client")
    with dask.config.set({} if where == "cluster" else {"scheduler": "threads", "num_workers": 2}):
        fitted = small_ridge().fit(*rows)
    n_segments = fitted.plan_.n_segments
    assert n_segments > 30 and len(waiting) > n_segments
    # Two threads have at most two segments each under way, and each of these can hold up one partial a level.
    assert max(waiting) <= 4 * n_levels(n_segments)
    # In order, as in one process, one partial a level waits, and the batch that has just arrived.
    assert where == "cluster" or max(waiting) <= n_levels(n_segments) + 1


def search(X, y):
    return GridSearchCV(small_ridge(), {"alpha": [1e-2, 1.0]}, cv=2).fit(X, y).best_estimator_


def test_a_search_inside_a_task(rows, client, monkeypatch):
    monkeypatch.undo()  # there it is the workers who decide where to cut
    X, y = rows[0][:4000], rows[1][:4000]
    found = [client.submit(search, X, y, pure=False) for _ in range(4)]
    for future in found:
        best = future.result(timeout=60)
        assert best.report_["workers"] == best.report_["threads"] == 1
        np.testing.assert_array_equal(best.coef_, in_process(small_ridge(alpha=best.alpha), X, y).coef_)


def test_a_search_by_joblib_and_by_dask_ml(rows, client):
    X, y = rows[0][:4000], rows[1][:4000]
    grid = GridSearchCV(small_ridge(), {"alpha": [1e-2, 1.0], "scale": ["none", "standard"]}, cv=2, n_jobs=4)

    def fit():
        with joblib.parallel_config(backend="dask", client=client):
            grid.fit(X, y)

    within_patience(fit)
    expected = small_ridge(**grid.best_params_).fit(X, y)
    np.testing.assert_array_equal(grid.best_estimator_.coef_, expected.coef_)
    grid = DaskGridSearchCV(small_ridge(), {"alpha": [1e-2, 1e4]}, cv=2)
    within_patience(grid.fit, X, y)
    assert grid.best_params_ == {"alpha": 1e-2}


def test_each_worker_draws_the_frequencies_once(rows, client, rng):
    X, y = rows
    before = client.run(derivations)
    fitted = small_ridge(random_state=int(rng.integers(2**40))).fit(X, y)
    assert fitted.plan_.n_segments > 10
    after = client.run(derivations)
    assert [after[worker] - before[worker] for worker in before] == [1, 1]
    lazy = da.from_array(X, chunks=(3000, 3))
    fitted.predict(lazy).compute()
    fitted.score(lazy, y)
    fitted.fit(lazy, y)
    assert client.run(derivations) == after


def spoil_frequencies():
    """Make this process draw other frequencies, as another processor or NumPy might."""
    draw = sampling.draw_frequencies
    sampling.draw_frequencies = lambda *args, **kwargs: 1.001 * draw(*args, **kwargs)
    sampling.draw_frequencies.original = draw


def mend_frequencies():
    sampling.draw_frequencies = sampling.draw_frequencies.original


@pytest.fixture
def other_frequencies(client):
    client.run(spoil_frequencies)
    yield
    client.run(mend_frequencies)


def said(caplog):
    """What distrff logged, and nobody else."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("distrff")]


@pytest.mark.parametrize("alpha", [1.0, "cv"])
def test_frequencies_that_differ_are_sent(rows, client, other_frequencies, caplog, rng, alpha):
    X, y = rows
    seed = int(rng.integers(2**40))
    expected = in_process(small_ridge(alpha=alpha, random_state=seed), X, y)
    with dask.config.set(scheduler="synchronous"):
        score = expected.score(X, y)
    caplog.set_level(logging.WARNING, "distrff")
    fitted = small_ridge(alpha, random_state=seed).fit(X, y)
    (line,) = said(caplog)
    assert "derives other frequencies" in line and "are sent to the workers instead" in line
    np.testing.assert_array_equal(fitted.coef_, expected.coef_)
    # The model remembers it.
    lazy = da.from_array(X, chunks=(8000, 3))
    np.testing.assert_allclose(fitted.predict(lazy).compute(), expected.predict(X), rtol=0, atol=1e-10)
    assert fitted.score(lazy, y) == pytest.approx(score, rel=1e-10)
    assert said(caplog) == [line]


def test_frequencies_behind_a_metric(rows, client, caplog, rng, request):
    """Workers derive them from the seed like any others, and are sent them where they differ."""
    X, y = rows
    kernel = drf.Gaussian(2.0, metric=[[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]])

    def model(seed):
        return drf.KernelRidge(drf.FourierFeatures(kernel, 32), alpha=1.0, random_state=seed)

    first, second = (int(rng.integers(2**40)) for _ in range(2))
    before = client.run(derivations)
    fitted = model(first).fit(X, y)
    after = client.run(derivations)
    assert [after[worker] - before[worker] for worker in before] == [1, 1]
    np.testing.assert_array_equal(fitted.coef_, in_process(model(first), X, y).coef_)
    request.getfixturevalue("other_frequencies")
    caplog.set_level(logging.WARNING, "distrff")
    fitted = model(second).fit(X, y)
    (line,) = said(caplog)
    assert "are sent to the workers instead" in line
    np.testing.assert_array_equal(fitted.coef_, in_process(model(second), X, y).coef_)


def test_a_model_from_elsewhere(rows, client, other_frequencies, caplog, rng):
    """Scores send what differs; lazy predictions cannot, but never return other values."""
    X, y = rows
    fitted = in_process(small_ridge(random_state=int(rng.integers(2**40))), X, y)
    with dask.config.set(scheduler="synchronous"):
        score = fitted.score(X, y)
    caplog.set_level(logging.WARNING, "distrff")
    assert fitted.score(X, y) == pytest.approx(score, rel=1e-12)
    assert len(said(caplog)) == 1
    with pytest.raises(FrequencyMismatch):
        fitted.predict(da.from_array(X, chunks=(8000, 3))).compute()
