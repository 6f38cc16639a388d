"""The same rows and seed give the same bits, whoever computes and however the rows are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client, LocalCluster
from scipy import sparse
from sklearn.base import clone

import distrff as drf
from distrff.estimators.fitting import plan
from distrff.estimators.fitting.plan import worker_peak_bytes

pytestmark = pytest.mark.usefixtures("small_segments")


@pytest.fixture(scope="module")
def cluster_of_one(local_cluster) -> Iterator[LocalCluster]:
    with local_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def assert_same_on_workers(cluster_of_one, cluster) -> Callable[..., None]:
    """`assert_same_on_workers(estimator, *data)`: one worker and two find what this process finds."""

    def found(estimator: Any, data: Any) -> list[Any]:
        fitted = clone(estimator).fit(*data)
        names = ("primal", "dual", "relative_gradient", "relative_residual", "margin", "n_sweeps")
        report = [fitted.report_.get(name) for name in names]
        return [fitted.coef_.tobytes(), fitted.intercept_.tobytes(), *report]

    def check(estimator: Any, *data: Any) -> None:
        with dask.config.set(scheduler="synchronous"):
            expected = found(estimator, data)
        for workers in (cluster_of_one, cluster):
            with Client(workers):
                assert found(estimator, data) == expected

    return check


def model(alpha="cv", width=2.0):
    features = drf.FourierFeatures(drf.Gaussian(width), 32)
    return drf.KernelRidge(features, alpha, scale="standard", random_state=0)


def bits(fitted):
    """Everything that a fit found, as bytes."""
    results = fitted.cv_results_
    parts = [fitted.coef_, fitted.intercept_, fitted.alpha_, *map(results.get, sorted(results))]
    return [np.asarray(part).tobytes() for part in parts] + [repr(fitted.features_.kernel_)]


def in_process(*data, **options):
    with dask.config.set(scheduler="synchronous"):
        return bits(model(**options).fit(*data))


def test_one_two_or_three_workers_or_none(rows, start_cluster):
    cases = ({"alpha": 1.0}, {"alpha": "cv"}, {"alpha": "gcv", "width": "auto"})
    expected = [in_process(*rows, **options) for options in cases]
    with dask.config.set(scheduler="threads", num_workers=3):
        assert [bits(model(**options).fit(*rows)) for options in cases] == expected
    cluster, client = start_cluster(1)
    for n_workers in (1, 2, 3):
        cluster.scale(n_workers)
        client.wait_for_workers(n_workers, timeout=60)
        fitted = [model(**options).fit(*rows) for options in cases]
        assert [each.report_["workers"] for each in fitted] == 3 * [n_workers]
        planned = [each.plan_.worker_peak_bytes for each in fitted]
        assert [each.report_["planned_peak_bytes"] for each in fitted] == planned
        assert list(map(bits, fitted)) == expected


FOURIER = drf.FourierFeatures(drf.Gaussian(2.0), 32)
BINS = drf.RandomBinningFeatures(drf.Laplacian(4.0), 10, random_state=0)


@pytest.mark.parametrize("has_factor", [True, False])
def test_conjugate_gradients_on_workers(rows, client, assert_same_on_workers, monkeypatch, has_factor):
    """With the Gram of a sample of the rows, or where none fits."""
    monkeypatch.setattr("distrff.engine.segments._MIN_SAMPLE_ROWS", 2048)
    if not has_factor:
        monkeypatch.setattr(plan, "_factor_peak_bytes", lambda _, stride, *rest: stride * 10**18)
    data = rows[0], np.column_stack([rows[1], np.cos(rows[1])]), np.abs(rows[0][:, 0])
    ridge = drf.KernelRidge(FOURIER, [0.1, 10.0], solver="cg", tol=1e-6, random_state=0)
    assert_same_on_workers(ridge, *data)
    made_of = "factor of the Gram of one row in 9" if has_factor else "diagonal"
    assert ridge.fit(*data).report_["preconditioner"] == made_of


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "estimator",
    [
        drf.KernelLikelihoodClassifier(FOURIER, noise="probit", tol=1e-11, random_state=0),
        drf.KernelLikelihoodClassifier(FOURIER, multi_class="softmax", tol=1e-2, random_state=0),
        drf.KernelSVC(FOURIER, 10.0, loss="squared_hinge", random_state=0),
        drf.KernelSVC(FOURIER, 10.0, tol=1e-4, random_state=0),
        drf.KernelSVC(FOURIER, "cv", Cs=[0.1, 1.0], cv=2, tol=1e-2, random_state=0),
        drf.KernelSVC(FOURIER, 1.0, solver="sgd", tol=1e-2, random_state=0),
        drf.KernelRidgeClassifier(FOURIER, 1.0, solver="sgd", random_state=0),
    ],
    ids=["probit", "softmax", "squared hinge", "hinge", "hinge, C by folds", "hinge by sgd", "ridge by sgd"],
)
def test_classes_on_workers(rows, assert_same_on_workers, monkeypatch, estimator):
    """Every solver: preconditioners from a sample of the rows, models of a part of them."""
    monkeypatch.setattr("distrff.engine.segments._MIN_SAMPLE_ROWS", 2048)
    is_probit = getattr(estimator, "noise", None) == "probit"  # the one that comes to Newton steps
    X, y = rows[0][:6007], np.digitize(rows[1][:6007], [-0.5] if is_probit else [-0.5, 0.5])
    data = X, y, np.abs(X[:, 0])
    assert_same_on_workers(estimator, *data)
    with dask.config.set(scheduler="synchronous"):
        assert ("Hessian" in estimator.fit(*data).report_["sweep_labels"]) == is_probit


@pytest.mark.parametrize(
    "estimator",
    [
        drf.KernelSVC(BINS, random_state=0),
        drf.KernelLikelihoodClassifier(BINS, random_state=0),
        drf.KernelLikelihoodClassifier(BINS, noise="probit", solver="sgd", random_state=0),
    ],
    ids=["hinge", "logistic", "probit by sgd"],
)
def test_sparse_features_on_workers(rows, assert_same_on_workers, monkeypatch, estimator):
    """Models of rows and metrics of sampled rows, which few rows make small."""
    monkeypatch.setattr("distrff.estimators.fitting.plan._SPARSE_ROWS", 200)
    assert_same_on_workers(estimator, rows[0][:2003], rows[1][:2003] > 0)


def test_hard_margins_on_workers(rows, assert_same_on_workers):
    X = rows[0]
    height = np.sin(X[:, 0]) + X[:, 1]
    apart = np.abs(height) > 0.3
    features = drf.FourierFeatures(drf.Gaussian(2.0), 64)
    assert_same_on_workers(drf.KernelSVC(features, np.inf, random_state=0), X[apart], height[apart] > 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_chunking(rows, client, dtype):
    X, y = rows[0].astype(dtype), rows[1]
    expected = in_process(X, y)
    for x_chunk, y_chunk in ((1000, 1000), (7777, 512), ((9, 20_000), (20_000, 9))):
        data = da.from_array(X, chunks=(x_chunk, 3)), da.from_array(y, chunks=y_chunk)
        assert bits(model().fit(*data)) == expected
    assert in_process(da.from_array(X, chunks=(5000, 1)), y) == expected
    assert in_process(np.asfortranarray(X), y) == expected


@pytest.mark.parametrize(("chunk", "shard"), [(1000, None), (4096, None), (500, 2000)])
def test_zarr_of_any_chunks(rows, client, tmp_path, chunk, shard):
    X, y = rows
    group = zarr.create_group(tmp_path / "rows.zarr")
    shards = None if shard is None else (shard, 3)
    # Filled afterwards: zarr before 3.1.3 spoils shards that it makes from data.
    group.create_array("X", shape=X.shape, dtype=X.dtype, chunks=(chunk, 3), shards=shards)[:] = X
    group.create_array("y", data=y, chunks=(3333,))
    dataset = drf.open_dataset(tmp_path / "rows.zarr")
    assert bits(model().fit(dataset)) == in_process(X, y)
    assert in_process(dataset.X, dataset.y) == in_process(X, y)


def test_frames_and_parquet(rows, client, tmp_path):
    X, y = rows
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y)
    expected = in_process(X, y)
    assert bits(model().fit(frame[["a", "b", "c"]], frame["y"])) == expected
    lazy = dd.from_pandas(frame, npartitions=7)
    assert bits(model().fit(lazy[["a", "b", "c"]], lazy["y"])) == expected
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=3001)
    assert bits(model().fit(drf.open_dataset(tmp_path / "rows.parquet", target="y"))) == expected


def test_classes_and_weights(rows, client, rng):
    X, y = rows
    labels, s = np.array(["low", "mid", "high"])[np.digitize(y, [-1, 1])], rng.uniform(0.5, 2, len(y))

    def fit(*data):
        features = drf.FourierFeatures(drf.Laplacian(2.0), 32)
        model = drf.KernelRidgeClassifier(features, "gcv", class_weight="balanced", random_state=0)
        fitted = model.fit(*data)
        return fitted.coef_.tobytes(), fitted.alpha_, list(fitted.classes_)

    with dask.config.set(scheduler="synchronous"):
        expected = fit(X, labels, s)
    assert fit(X, labels, s) == expected
    arrays = (X, labels.astype(object), s)
    lazy = [da.from_array(values, chunks=(4321, *values.shape[1:])) for values in arrays]
    assert fit(*lazy)[:2] == expected[:2]


def test_folds_that_do_not_fit_together_are_swept_apart(rows, client, monkeypatch):
    """The Grams are those of one sweep over all folds, where memory allows that."""
    X, y = rows
    together = model().fit(X, y)
    whole = together.plan_
    monkeypatch.setattr("distrff.estimators.fitting.plan._IDLE_BYTES", 0)
    few, many = (worker_peak_bytes(whole.size, folds, 1) for folds in (1, 5))
    assert few < many == whole.worker_peak_bytes
    monkeypatch.setattr(
        "distrff.estimators.fitting.plan._USABLE_SHARE", (few + many) / 2 / whole.memory_limit
    )
    apart = model().fit(X, y)
    assert (apart.plan_.folds_per_task, whole.folds_per_task) == (1, 5)
    assert apart.report_["n_sweeps"] == 6
    assert bits(apart) == bits(together)


@pytest.mark.slow
def test_processes(rows):
    X, y = rows
    with dask.config.set(scheduler="processes", num_workers=2):
        assert bits(model().fit(X, y)) == in_process(X, y)


def test_sparse_rows_and_scores(client, rng):
    n, d = 4000, 30
    X = sparse.csr_matrix(np.where(rng.random((n, d)) < 0.1, rng.standard_normal((n, d)), 0.0))
    y = np.where(np.asarray(X.sum(axis=1)).ravel() > 0, "p", "n")
    lazy = da.from_array(X, chunks=(700, d), asarray=False)
    assert sparse.issparse(lazy._meta)
    model = drf.KernelSVC(drf.FourierFeatures(drf.Gaussian(3.0), 32, random_state=0), loss="squared_hinge")
    model.fit(lazy, da.from_array(y, chunks=900))
    F, truth = model.decision_function(lazy), da.from_array(y, chunks=1100)
    area = drf.metrics.roc_auc_score(truth, F)
    counts = drf.metrics.confusion_matrix(truth, model.predict(lazy))
    # The two count rows and misses in another order of rounding.
    accuracy = drf.metrics.accuracy_score(truth, model.predict(lazy))
    assert model.score(lazy, truth) == pytest.approx(accuracy, rel=1e-12)
    with dask.config.set(scheduler="synchronous"):
        here = clone(model).fit(X, y)
        np.testing.assert_array_equal(here.coef_, model.coef_)
        assert drf.metrics.roc_auc_score(truth, F) == area
        np.testing.assert_array_equal(drf.metrics.confusion_matrix(truth, model.predict(lazy)), counts)
