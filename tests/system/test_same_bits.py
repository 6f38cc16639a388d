"""The same rows and seed give the same bits, whoever computes and however the rows are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client, LocalCluster

import distrff as drf
from distrff.estimators.fitting import plan
from distrff.estimators.fitting.plan import worker_peak_bytes
from tests.support.models import fourier, in_process, margin_classifier, small_ridge

pytestmark = pytest.mark.usefixtures("small_segments")


@pytest.fixture(scope="module")
def cluster_of_one(local_cluster) -> Iterator[LocalCluster]:
    with local_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def on_one_and_two_workers(cluster_of_one, cluster) -> Callable[[Callable[[], Any]], list[Any]]:
    """`on_one_and_two_workers(fitted)`: what `fitted()` returns on a cluster of one worker, and of two."""

    def found(fitted: Callable[[], Any]) -> list[Any]:
        results = []
        for workers in (cluster_of_one, cluster):
            with Client(workers):
                results.append(fitted())
        return results

    return found


def model(alpha="cv", length_scale=2.0):
    features = fourier(32, length_scale, random_state=None)
    return drf.KernelRidge(features, alpha, scale="standard", random_state=0)


def bits(fitted):
    """Everything that a fit found, as bytes."""
    results = fitted.cv_results_
    parts = [fitted.coef_, fitted.intercept_, fitted.alpha_, *map(results.get, sorted(results))]
    return [np.asarray(part).tobytes() for part in parts] + [repr(fitted.features_.kernel_)]


def bits_here(*data, **options):
    return bits(in_process(model(**options), *data))


def test_one_two_or_three_workers_or_none(rows, start_cluster):
    cases = ({"alpha": 1.0}, {"alpha": "cv"}, {"alpha": "gcv", "length_scale": "auto"})
    expected = [bits_here(*rows, **options) for options in cases]
    with dask.config.set(scheduler="threads", num_workers=3):
        assert [bits(model(**options).fit(*rows)) for options in cases] == expected
    cluster, client = start_cluster(1)
    for n_workers in (1, 2, 3):
        cluster.scale(n_workers)
        client.wait_for_workers(n_workers, timeout=60)
        fitted = [model(**options).fit(*rows) for options in cases]
        assert [found.report_["workers"] for found in fitted] == 3 * [n_workers]
        planned = [found.plan_.worker_peak_bytes for found in fitted]
        assert [found.report_["planned_peak_bytes"] for found in fitted] == planned
        assert list(map(bits, fitted)) == expected


FITS = {
    "probit": partial(margin_classifier, "probit", tol=1e-11),
    "softmax": partial(margin_classifier, "logistic", multi_class="softmax", tol=1e-2),
    "squared hinge": partial(margin_classifier, "squared_hinge", C=10.0),
    "hinge": partial(margin_classifier, "hinge", C=10.0, tol=1e-4),
    "hinge, C by folds": partial(margin_classifier, "hinge", C="cv", Cs=[0.1, 1.0], cv=2, tol=1e-2),
    "hinge by sgd": partial(margin_classifier, "hinge", solver="sgd", tol=1e-2),
    "ridge by sgd": partial(drf.KernelRidgeClassifier, alpha=1.0, solver="sgd", random_state=0),
}
SPARSE_FITS = {
    "hinge": partial(margin_classifier, "hinge"),
    "logistic": partial(margin_classifier, "logistic"),
    "probit by sgd": partial(margin_classifier, "probit", solver="sgd"),
}


def found_by(estimator, *data):
    """The bits of a fit by one of the iterative solvers, and what its report says of them."""
    report = estimator.fit(*data).report_
    names = ("primal", "dual", "relative_gradient", "relative_residual", "margin", "n_sweeps")
    numbers = [report.get(name) for name in names]
    return [estimator.coef_.tobytes(), estimator.intercept_.tobytes(), *numbers]


@pytest.fixture
def assert_same_on_workers(on_one_and_two_workers) -> Callable[[Callable[[], Any]], None]:
    """One and two workers find what this process finds."""

    def check(fitted: Callable[[], Any]) -> None:
        with dask.config.set(scheduler="synchronous"):
            expected = fitted()
        assert on_one_and_two_workers(fitted) == [expected, expected]

    return check


@pytest.mark.parametrize("has_factor", [True, False])
def test_conjugate_gradients_on_one_and_two_workers(rows, assert_same_on_workers, monkeypatch, has_factor):
    """With the Gram of a sample of the rows, or where none fits."""
    monkeypatch.setattr("distrff.engine.segments._LEAST_SAMPLE_ROWS", 2048)
    if not has_factor:
        monkeypatch.setattr(plan, "_factor_peak_bytes", lambda _, stride, *rest: stride * 10**18)
    X, Y = rows[0], np.column_stack([rows[1], np.cos(rows[1])])

    def fitted():
        estimator = small_ridge([0.1, 10.0], solver="cg", tol=1e-6)
        found = found_by(estimator, X, Y, np.abs(X[:, 0]))
        made_of = "factor of the Gram of one row in 9" if has_factor else "diagonal"
        assert estimator.report_["preconditioner"] == made_of
        return found

    assert_same_on_workers(fitted)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_classifiers_on_one_and_two_workers(rows, assert_same_on_workers, monkeypatch):
    """Every solver: preconditioners from a sample of the rows, models of a part of them."""
    monkeypatch.setattr("distrff.engine.segments._LEAST_SAMPLE_ROWS", 2048)
    X, labels = rows[0][:6007], np.digitize(rows[1][:6007], [-0.5, 0.5])

    def fitted():
        found = {}
        for name, build in FITS.items():
            estimator = build(features=fourier(32, random_state=None))
            y = labels > 0 if name == "probit" else labels
            found[name] = found_by(estimator, X, y, np.abs(X[:, 0]))
            assert ("Hessian" in estimator.report_["sweep_labels"]) == (name == "probit")
        return found

    assert_same_on_workers(fitted)


def test_sparse_features_on_one_and_two_workers(rows, assert_same_on_workers, monkeypatch):
    """Models of rows and metrics of sampled rows, which few rows make small."""
    monkeypatch.setattr("distrff.estimators.fitting.plan._SPARSE_ROWS", 200)
    X, y = rows[0][:2003], rows[1][:2003] > 0
    features = drf.RandomBinningFeatures(drf.Laplacian(4.0), 10, random_state=0)
    assert_same_on_workers(
        lambda: {name: found_by(build(features=features), X, y) for name, build in SPARSE_FITS.items()}
    )


def test_hard_margins_on_one_and_two_workers(rows, assert_same_on_workers):
    height = np.sin(rows[0][:, 0]) + rows[0][:, 1]
    apart = np.abs(height) > 0.3
    features = fourier(random_state=None)
    assert_same_on_workers(
        lambda: found_by(margin_classifier("hinge", features, np.inf), rows[0][apart], height[apart] > 0)
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_storage(rows, client, tmp_path, dtype):
    X, y = rows[0].astype(dtype), rows[1]
    expected = bits_here(X, y)
    for x_chunk, y_chunk in ((7777, 512), ((9, 20_000), (20_000, 9))):
        data = da.from_array(X, chunks=(x_chunk, 3)), da.from_array(y, chunks=y_chunk)
        assert bits(model().fit(*data)) == expected
    group = zarr.create_group(tmp_path / "rows.zarr")
    # Filled afterwards: zarr before 3.1.3 spoils shards that it makes from data.
    group.create_array("X", shape=X.shape, dtype=dtype, chunks=(500, 3), shards=(2000, 3))[:] = X
    group.create_array("y", data=y, chunks=(3333,))
    dataset = drf.open_dataset(tmp_path / "rows.zarr")
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=3001)
    for data in (dataset, drf.open_dataset(tmp_path / "rows.parquet", target="y")):
        assert bits(model().fit(data)) == expected
    for table in (frame, dd.from_pandas(frame, npartitions=7)):
        assert bits(model().fit(table[["a", "b", "c"]], table["y"])) == expected


def test_classes_and_weights(rows, client, rng):
    X, y = rows
    labels, s = np.array(["low", "mid", "high"])[np.digitize(y, [-1, 1])], rng.uniform(0.5, 2, len(y))
    features = drf.FourierFeatures(drf.Laplacian(2.0), 32)
    build = partial(drf.KernelRidgeClassifier, features, "gcv", class_weight="balanced", random_state=0)
    expected = bits(in_process(build(), X, labels, s))
    fitted = build().fit(X, labels, s)
    assert bits(fitted) == expected
    assert fitted.classes_.tolist() == ["high", "low", "mid"]
    data = (X, labels.astype(object), s)
    lazy = [da.from_array(values, chunks=(4321, *values.shape[1:])) for values in data]
    assert bits(build().fit(*lazy)) == expected


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
        assert bits(model().fit(X, y)) == bits_here(X, y)
