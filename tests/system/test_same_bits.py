"""The same rows and seed give the same bits, whoever computes and however the rows are stored."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from threadpoolctl import threadpool_limits

import distrff as drf
from distrff.fitting.gram import gram_peak_bytes
from distrff.preprocessing.splits import BlockFolds, ForwardFolds, GroupFolds

pytestmark = pytest.mark.usefixtures("small_segments")


@pytest.fixture
def rows(rows) -> tuple[np.ndarray, np.ndarray]:
    """The first six segments and a part: more would only repeat them."""
    return rows[0][:6_011], rows[1][:6_011]


@pytest.fixture(scope="module")
def cluster_of_three(local_cluster) -> Iterator[LocalCluster]:
    """Three workers that are threads; the session's cluster has two processes."""
    with local_cluster(3, processes=False) as cluster:
        yield cluster


@pytest.fixture
def assert_same_on_workers(cluster_of_three, cluster) -> Callable[..., Any]:
    """`assert_same_on_workers(estimator, *data)`: two workers and three find what this process finds."""

    def found(estimator: Any, data: Any) -> list[Any]:
        fitted = estimator.fit(*data)
        names = ("primal", "dual", "relative_gradient", "relative_residual", "margin", "n_sweeps")
        report = [fitted.report_.get(name) for name in names]
        errors = [one["error"] for one in fitted.report_.get("candidates") or ()]
        return [fitted.coef_.tobytes(), np.asarray(fitted.intercept_).tobytes(), *report, *errors]

    def check(estimator: Any, *data: Any) -> Any:
        with dask.config.set(scheduler="synchronous"):
            expected = found(clone(estimator), data)
        fitted = clone(estimator)
        for workers in (cluster_of_three, cluster):
            # Workers in this process have its threads of BLAS: more than one are outside the promise.
            with threadpool_limits(1, user_api="blas"), Client(workers):
                assert found(fitted, data) == expected
        return fitted

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


@pytest.mark.slow
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
METRIC = [[1.0, -0.5, 0.0], [0.0, 0.5, 2.0]]
own = {"random_state": 0, "scale": "none"}
svc, likelihood = partial(drf.KernelSVC, **own), partial(drf.KernelLikelihoodClassifier, **own)
ridge, classifier = partial(drf.KernelRidge, **own), partial(drf.KernelRidgeClassifier, **own)
# The estimator, what its target is, and a pass that it is here to make.
FITS: dict[str, tuple[Any, str, str]] = {
    "cg": (ridge(FOURIER, [0.1, 10.0], solver="cg", tol=1e-6), "two numbers", "Gram"),
    "cg without a factor": (ridge(FOURIER, [1.0, 10.0], solver="cg", tol=1e-2), "two numbers", "products"),
    "probit": (likelihood(FOURIER, noise="probit", tol=1e-11), "two", "Hessian"),
    "logistic": (likelihood(FOURIER, 30.0, tol=1e-9), "three", "Hessian"),
    "softmax": (likelihood(FOURIER, multi_class="softmax", tol=0.1), "three", "margins"),
    "squared hinge": (svc(FOURIER, 10.0, loss="squared_hinge"), "three", "margins"),
    "hinge": (svc(FOURIER, tol=3e-2), "three", "margins"),
    "C by folds": (svc(FOURIER, "cv", Cs=[0.1, 1.0], cv=2, tol=5e-2), "three", "margins"),
    "hard margin": (svc(drf.FourierFeatures(drf.Gaussian(2.0), 64), np.inf), "apart", "margins"),
    "hinge by sgd": (svc(FOURIER, 1.0, solver="sgd", tol=1e-2), "three", "epoch"),
    "ridge by sgd": (classifier(FOURIER, 1.0, solver="sgd"), "three", "margins"),
    "labels": (classifier(FOURIER, "gcv", class_weight="balanced"), "words", "Gram"),
    "bins": (ridge(BINS, 1.0, tol=0.3), "number", "products"),
    "bins, hinge": (svc(BINS), "two", "margins"),
    "bins, logistic": (likelihood(BINS), "two", "margins"),
    "bins, probit by sgd": (likelihood(BINS, 1.0, noise="probit", solver="sgd"), "two", "epoch"),
    "metric": (ridge(drf.FourierFeatures(drf.Gaussian("auto", metric=METRIC), 32), "cv"), "number", "Gram"),
    "metric, learned": (ridge(drf.FourierFeatures(drf.Gaussian(metric="learned"), 32)), "number", "Gram"),
    "metric, hinge": (svc(drf.FourierFeatures(drf.Matern(metric=METRIC), 32)), "two", "margins"),
    "metric, landmarks": (
        ridge(drf.NystroemFeatures(drf.Laplacian(2.0, metric=METRIC), 32, landmarks="leverage")),
        "number",
        "landmarks by leverage",
    ),
    "metric, bins": (
        ridge(drf.RandomBinningFeatures(drf.Laplacian(2.0, metric=METRIC), 8), tol=0.3),
        "number",
        "held-out errors",
    ),
    "automatic": (ridge(drf.AutoFeatures(32), 1.0), "number", "Gram"),
    "spans": (ridge(FOURIER, cv=ForwardFolds(0, gap=0.1, window=2.0)), "number", "fold census"),
}  # fmt: skip
NIGHTLY = (
    *("cg", "cg without a factor", "probit", "logistic", "squared hinge"),
    *("C by folds", "hinge by sgd", "automatic"),
)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in NIGHTLY)) for n in FITS])
def test_every_fit_on_workers(rows, assert_same_on_workers, monkeypatch, name):
    """Preconditioners from a sample of the rows, metrics of sampled rows, models of a part of them."""
    monkeypatch.setattr("distrff.engine.reduction._MIN_SAMPLE_ROWS", 640)
    monkeypatch.setattr("distrff.fitting.sgd._SPARSE_ROWS", 200)
    if name == "cg without a factor":
        monkeypatch.setattr("distrff.fitting.cg._factor_peak_bytes", lambda _, stride, *rest: stride * 10**18)
    estimator, kind, made = FITS[name]
    n = 2003 if name.startswith(("bins", "metric")) else 600 if name == "automatic" else len(rows[0])
    X, y = rows[0][:n], rows[1][:n]  # few, where a fit of them takes long
    height = np.sin(X[:, 0]) + X[:, 1]
    y = {
        "number": y, "two numbers": np.column_stack([y, np.cos(y)]), "two": y > -0.5, "apart": height > 0,
        "three": np.digitize(y, [-0.5, 0.5]), "words": np.array(["low", "mid"], object)[(y > 0).astype(int)],
    }[kind]  # fmt: skip
    data = X, y, np.abs(X[:, 0])
    if kind == "apart":
        data = tuple(A[np.abs(height) > 0.3] for A in data[:2])
    if kind == "words":  # in blocks
        data = tuple(da.from_array(A, chunks=(1321, *A.shape[1:])) for A in data)
    fitted = assert_same_on_workers(estimator, *data)
    assert made in fitted.report_["sweep_labels"], fitted.report_["sweep_labels"]


def test_any_storage_on_workers(rows, client, tmp_path):
    for dtype in (np.float32, np.float64):
        X, y = rows[0].astype(dtype), rows[1]
        expected = in_process(X, y)
        for x_chunk, y_chunk in ((1000, 1000), (2777, 512), ((9, 6_002), (6_002, 9))):
            data = da.from_array(X, chunks=(x_chunk, 3)), da.from_array(y, chunks=y_chunk)
            assert bits(model().fit(*data)) == expected
    for chunk, shards in ((1000, None), (4096, None), (500, (2000, 3))):
        dataset = stored(tmp_path / f"{chunk}.zarr", X, y, (chunk, 3), shards, 3333)
        assert bits(model().fit(dataset)) == in_process(dataset.X, dataset.y) == expected
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y)
    for table in (frame, dd.from_pandas(frame, npartitions=7)):
        assert bits(model().fit(table[["a", "b", "c"]], table["y"])) == expected
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=3001)
    assert bits(model().fit(drf.open_dataset(tmp_path / "rows.parquet", target="y"))) == expected


def test_folds_that_do_not_fit_together_are_swept_apart(rows, client, monkeypatch):
    """The Grams are those of one sweep over all folds, where memory allows that."""
    X, y = rows
    together = model().fit(X, y)
    whole = together.plan_
    monkeypatch.setattr("distrff.fitting.cost.IDLE_BYTES", 0)
    sent = whole.size.sent_bytes(whole.n_workers)
    few, many = (gram_peak_bytes(whole.size, folds, 1) + sent for folds in (1, 5))
    assert few < many == whole.worker_peak_bytes
    monkeypatch.setattr("distrff.fitting.cost._USABLE_SHARE", (few + many) / 2 / whole.memory_limit)
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
    model = drf.KernelSVC(
        drf.FourierFeatures(drf.Gaussian(3.0), 32, random_state=0), loss="squared_hinge", scale="none"
    )
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


# In this process: chunks of any sizes


SETTINGS = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def many_cuts(small_segments, monkeypatch):
    """Segments and tiles of a few hundred rows, so that chunks straddle all of them."""
    for name, rows in (("_MIN_SEGMENT_ROWS", 128), ("_LIGHT_SEGMENT_ROWS", 400), ("_MAX_TILE_ROWS", 512)):
        monkeypatch.setattr(f"distrff.engine.reduction.{name}", rows)


@cache
def few_rows(dtype):
    """X, y and weights, the same in every test: all of it is about how they are cut."""
    rng = np.random.default_rng(8)
    X = (rng.standard_normal((1503, 3)) * [1, 100, 0.01] + [0, 1e4, 0]).astype(dtype)
    y = np.sin(X[:, 0]) + 0.01 * X[:, 1] + 0.1 * rng.standard_normal(1503)
    return X, y, rng.exponential(size=1503)


def stored(path, X, y, chunks, shards, chunk_of_y, **others):
    """The rows as a Zarr group."""
    group = zarr.create_group(path)
    # Filled afterwards: zarr before 3.1.3 spoils shards that it makes from data.
    group.create_array("X", shape=X.shape, dtype=X.dtype, chunks=chunks, shards=shards)[:] = X
    group.create_array("y", data=y, chunks=(chunk_of_y,))
    for name, values in others.items():
        group.create_array(name, data=values, chunks=chunks[:1])
    return drf.open_dataset(path)


def bits_of(data, y=None, s=None, *, kind="ridge"):
    """Everything that rows decide: the Gram of folds, or a model that was chosen by them."""
    width = "auto" if kind == "auto" else 2.0
    features = drf.FourierFeatures(drf.Matern(width), 16)
    if kind == "gram":
        found = drf.gram(data, features, y, s, cv=3, scale="standard", random_state=1)
        parts = found.A, found.scaling.arrays()["column_scale"], found.targets.shift
        return [part.tobytes() for part in parts]
    options = dict(cv=FOLDS.get(kind, 3), scale="standard", random_state=1)
    model = drf.KernelRidge(features, "cv", **options).fit(data, y, s)
    return model.coef_.tobytes(), model.intercept_, model.alpha_, repr(model.features_.kernel_)


@cache
def expected(dtype, kind):
    with dask.config.set(scheduler="synchronous"):
        return bits_of(*few_rows(dtype), kind=kind)


def chunks_of(n, largest_number=9):
    """Sizes that add to n: a few cuts anywhere, one row apart if need be."""
    cuts = st.lists(st.integers(1, n - 1), max_size=largest_number, unique=True)
    return cuts.map(lambda ends: tuple(int(size) for size in np.diff([0, *sorted(ends), n])))


SCHEDULERS = st.sampled_from(["synchronous", "threads"])
DTYPES = st.sampled_from(["float32", "float64"])
FOLDS = {
    "groups": GroupFolds(0),
    "cells": BlockFolds([0, 2], n_folds=3, buffer=0.002),
    "gaps": BlockFolds([0, 1], like="gaps"),
    "spans": ForwardFolds(0, gap=0.1, window=2.0),
}
KINDS = st.sampled_from(["gram", "ridge", "auto", *FOLDS])


@pytest.mark.usefixtures("many_cuts")
@SETTINGS
@given(
    of_X=chunks_of(1503),
    of_y=chunks_of(1503),
    of_s=chunks_of(1503),
    of_columns=st.sampled_from([(3,), (1, 2), (1, 1, 1)]),
    scheduler=SCHEDULERS,
    dtype=DTYPES,
    kind=KINDS,
)
def test_dask_arrays_of_any_chunks(of_X, of_y, of_s, of_columns, scheduler, dtype, kind):
    X, y, s = few_rows(dtype)
    chunks = (of_X, of_columns), (of_y,), (of_s,)
    lazy = [da.from_array(values, chunks=sizes) for values, sizes in zip((X, y, s), chunks, strict=True)]
    with dask.config.set(scheduler=scheduler, num_workers=3):
        assert bits_of(*lazy, kind=kind) == expected(dtype, kind)


@pytest.mark.usefixtures("many_cuts")
@SETTINGS
@given(
    chunk_of_X=st.integers(60, 1553),
    columns=st.integers(1, 3),
    chunk_of_y=st.integers(60, 1553),
    per_shard=st.sampled_from([None, 1, 3]),
    scheduler=SCHEDULERS,
    dtype=DTYPES,
    kind=KINDS,
)
def test_zarr_arrays_of_any_chunks(
    tmp_path_factory, chunk_of_X, columns, chunk_of_y, per_shard, scheduler, dtype, kind
):
    X, y, s = few_rows(dtype)
    shards = None if per_shard is None else (per_shard * chunk_of_X, columns)
    path = tmp_path_factory.mktemp("any") / "rows.zarr"
    dataset = stored(path, X, y, (chunk_of_X, columns), shards, chunk_of_y, sample_weight=s)
    with dask.config.set(scheduler=scheduler, num_workers=3):
        assert bits_of(dataset, kind=kind) == expected(dtype, kind)


@pytest.mark.usefixtures("many_cuts")
@SETTINGS
@given(
    of_X=chunks_of(1503),
    of_y=chunks_of(1503),
    scheduler=SCHEDULERS,
    fold_by=st.sampled_from(["hash", "contiguous"]),
)
def test_classes_of_any_chunks(of_X, of_y, scheduler, fold_by):
    X, y, s = few_rows("float32")
    labels = np.array(["low", "middle", "high"])[np.digitize(y, [99, 101])]

    def bits(*data):
        features = drf.FourierFeatures(drf.Laplacian(1.0), 16)
        options = dict(cv=3, fold_by=fold_by, scale="standard", class_weight="balanced", random_state=2)
        model = drf.KernelRidgeClassifier(features, "cv", **options).fit(*data)
        return model.coef_.tobytes(), model.intercept_.tobytes(), model.alpha_, model.classes_.tolist()

    with dask.config.set(scheduler="synchronous"):
        whole = bits(X, labels, s)
    lazy = da.from_array(X, chunks=(of_X, 3)), *(da.from_array(v, chunks=(of_y,)) for v in (labels, s))
    with dask.config.set(scheduler=scheduler, num_workers=2):
        assert bits(*lazy) == whole
