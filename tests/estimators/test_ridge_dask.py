"""Dask in, lazy Dask out; fits and scores read each block once a sweep."""

from __future__ import annotations

import cloudpickle
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from distrff.errors import InputError
from distrff.estimators.ridge import KernelRidge, KernelRidgeClassifier
from distrff.features.fourier import FourierFeatures
from distrff.io.arrays import as_dataset
from distrff.kernels.stationary import Gaussian

COLUMNS = ["a", "b", "c", "d"]


def fourier(n_components=64):
    return FourierFeatures(Gaussian(2.0), n_components, random_state=0)


class CountingScheduler:
    """Dask's synchronous scheduler, which counts how often it is asked."""

    def __init__(self):
        self.n_computes = 0

    def __call__(self, graph, keys, **options):
        self.n_computes += 1
        return dask.get(graph, keys, **options)


@pytest.fixture
def scheduler():
    counting = CountingScheduler()
    with dask.config.set(scheduler=counting):
        yield counting


@pytest.fixture
def blocks_read():
    """A function that makes arrays dask arrays of three blocks, and the list of the blocks that were read."""
    read = []

    def note(block):
        read.append(len(block))
        return block

    def lazy(values):
        return da.from_array(values, chunks=(300, *values.shape[1:])).map_blocks(
            note, dtype=values.dtype, meta=np.empty((0,) * values.ndim, values.dtype)
        )

    return lazy, read


# A product of the same row has different bits in blocks of different heights: 64 terms of size up to ‖w‖/√32.
def tolerance(machine):
    return 64 * np.finfo(float).eps * max(1.0, np.abs(machine.coef_).sum())


def test_predictions_are_lazy(problem, scheduler):
    machine = KernelRidge(fourier()).fit(problem.X, problem.y)
    several = KernelRidge(fourier()).fit(problem.X, problem.Y)
    scheduler.n_computes = 0
    X = da.from_array(problem.X, chunks=(250, 2))
    one, many = machine.predict(X), several.predict(X)
    assert scheduler.n_computes == 0
    for lazy, fitted in ((one, machine), (many, several)):
        expected = fitted.predict(problem.X)
        assert isinstance(lazy, da.Array) and lazy.shape == expected.shape
        assert lazy.chunks[0] == X.chunks[0] and lazy.dtype == np.float64
        assert lazy._meta.ndim == expected.ndim and type(lazy._meta) is np.ndarray
        np.testing.assert_allclose(lazy.compute(), expected, rtol=0, atol=tolerance(fitted))
    assert scheduler.n_computes == 2


def test_spreads_are_lazy(problem, scheduler):
    machine = KernelRidge(fourier()).fit(problem.X, problem.y)
    expected = machine.predict(problem.X, return_std=True)
    scheduler.n_computes = 0
    lazy = machine.predict(da.from_array(problem.X, chunks=250), return_std=True)
    assert scheduler.n_computes == 0
    for found, wanted in zip(lazy, expected, strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found.compute(), wanted, rtol=1e-9)  # κ = n


def test_large_machines_travel_as_one_task(problem):
    """Coefficients above a megabyte are not copied into the task of every block."""
    Y = np.repeat(problem.y[:, None], 600, axis=1)
    machine = KernelRidge(fourier(256)).fit(problem.X, Y)
    lazy = machine.predict(da.from_array(problem.X, chunks=100))
    assert sum(len(cloudpickle.dumps(task)) > machine.coef_.nbytes for task in dict(lazy.dask).values()) == 1
    np.testing.assert_allclose(lazy.compute(), machine.predict(problem.X), rtol=0, atol=1e-11)


def test_classes_are_lazy(problem, scheduler):
    labels = np.array(["low", "middle", "high"])[np.digitize(problem.y, [-0.5, 0.5])]
    machine = KernelRidgeClassifier(fourier()).fit(problem.X, labels)
    two = KernelRidgeClassifier(fourier()).fit(problem.X, problem.y > 0)
    scheduler.n_computes = 0
    X = da.from_array(problem.X, chunks=250)
    lazy = [machine.predict(X), machine.decision_function(X), two.predict(X), two.decision_function(X)]
    assert scheduler.n_computes == 0
    expected = [
        machine.predict(problem.X),
        machine.decision_function(problem.X),
        two.predict(problem.X),
        two.decision_function(problem.X),
    ]
    for found, wanted in zip(lazy, expected, strict=True):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(found.compute(), wanted, rtol=0, atol=1e-11)
        else:
            np.testing.assert_array_equal(found.compute(), wanted)


def test_unknown_chunks_are_predicted_but_not_fitted(problem):
    machine = KernelRidge(fourier()).fit(problem.X, problem.y)
    X = da.from_array(problem.X, chunks=300)
    some = X[X[:, 0] > 0]
    expected = machine.predict(problem.X[problem.X[:, 0] > 0])
    np.testing.assert_allclose(machine.predict(some).compute(), expected, rtol=0, atol=tolerance(machine))
    with pytest.raises(InputError, match=r"unknown chunk sizes; call X.compute_chunk_sizes"):
        machine.fit(some, some[:, 0])


def test_frames_and_datasets_are_predicted_lazily(problem, scheduler):
    frame = pd.DataFrame(problem.X, columns=COLUMNS)
    machine = KernelRidge(fourier()).fit(dd.from_pandas(frame, npartitions=3), problem.y)
    expected = machine.predict(frame)
    for X in (dd.from_pandas(frame, npartitions=3), as_dataset(frame)):
        lazy = machine.predict(X)
        assert isinstance(lazy, da.Array) and lazy.shape == expected.shape
        np.testing.assert_allclose(lazy.compute(), expected, rtol=0, atol=tolerance(machine))
    with pytest.raises(InputError, match="feature names should match"):
        machine.predict(dd.from_pandas(frame[COLUMNS[::-1]], npartitions=2))


def test_wrong_number_of_columns(problem):
    machine = KernelRidge(fourier()).fit(problem.X, problem.y)
    with pytest.raises(InputError, match=r"X must have shape \(n_samples, 4\), got .*\(10, 3\)"):
        machine.predict(da.zeros((10, 3)))
    with pytest.raises(InputError, match="X has 3 features, but KernelRidge is expecting 4"):
        machine.score(da.zeros((10, 3)), da.zeros(10))


@pytest.mark.parametrize("alpha", [1.0, "cv"])
def test_each_block_is_read_once_a_sweep(problem, blocks_read, scheduler, alpha):
    lazy, read = blocks_read
    X = lazy(problem.X)
    machine = KernelRidge(fourier(), alpha, random_state=0).fit(X, problem.y)
    assert machine.report_["n_sweeps"] == 2
    assert machine.report_["sweep_labels"] == ["column statistics", "Gram"]
    assert read == 2 * [300, 300, 300]
    read.clear()
    machine.score(X, problem.y)
    assert read == [300, 300, 300]
    read.clear()
    machine.predict(X).compute()
    assert read == [300, 300, 300]


def test_scores_are_those_of_arrays_in_memory(problem, blocks_read):
    lazy, _ = blocks_read
    machine = KernelRidge(fourier()).fit(problem.X, problem.Y)
    inside = machine.score(problem.X, problem.Y, problem.s)
    outside = machine.score(lazy(problem.X), lazy(problem.Y), lazy(problem.s))
    assert outside == pytest.approx(inside, rel=1e-13)
    labels = np.digitize(problem.y, [-0.5, 0.5])
    classifier = KernelRidgeClassifier(fourier()).fit(problem.X, labels)
    inside = classifier.score(problem.X, labels, problem.s)
    assert classifier.score(lazy(problem.X), lazy(labels), lazy(problem.s)) == pytest.approx(
        inside, rel=1e-13
    )
    right = classifier.predict(problem.X) == labels
    assert inside == pytest.approx(np.average(right, weights=problem.s), rel=1e-13)


@pytest.mark.parametrize("local", ["synchronous", "threads"])
def test_dask_s_configured_scheduler_is_used(problem, local):
    reference = KernelRidge(fourier()).fit(problem.X, problem.y)
    with dask.config.set(scheduler=local):
        machine = KernelRidge(fourier()).fit(da.from_array(problem.X, chunks=100), problem.y)
    np.testing.assert_array_equal(machine.coef_, reference.coef_)
    assert machine.report_["threads"] == (1 if local == "synchronous" else reference.report_["threads"])
