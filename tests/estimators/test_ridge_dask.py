"""Dask in, lazy Dask out; fits and scores read each block once a sweep."""

from __future__ import annotations

import cloudpickle
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import r2_score

import distrff as drf
from distrff.errors import InputError
from distrff.io.arrays import as_dataset
from tests.support.fits import blocks_of, fourier, ridge, ridge_classifier

COLUMNS = ["a", "b", "c", "d"]


@pytest.fixture
def computes():
    """What Dask's synchronous scheduler was asked for."""
    asked = []

    def get(graph, keys, **options):
        asked.append(keys)
        return dask.get(graph, keys, **options)

    with dask.config.set(scheduler=get):
        yield asked


@pytest.fixture
def blocks_read():
    """A function that makes arrays dask arrays of three blocks, and the list of the blocks that were read."""
    read = []

    def note(block):
        read.append(len(block))
        return block

    def lazy(values):
        return blocks_of(values, note, rows=300)

    return lazy, read


# A product of the same row has different bits in blocks of different heights: 64 terms of size up to ‖w‖/√32.
def tolerance(model):
    return 64 * np.finfo(float).eps * max(1.0, np.abs(model.coef_).sum())


def test_predictions_are_lazy(problem, computes):
    labels = np.array(["low", "middle", "high"])[np.digitize(problem.y, [-0.5, 0.5])]
    one, several = (ridge().fit(problem.X, y) for y in (problem.y, problem.Y))
    classes, two = (ridge_classifier().fit(problem.X, y) for y in (labels, problem.y > 0))
    methods = [
        (one.predict, 0, tolerance(one)),
        (several.predict, 0, tolerance(several)),
        (lambda X: one.predict(X, return_std=True)[0], 0, tolerance(one)),
        (lambda X: one.predict(X, return_std=True)[1], 1e-9, 0),  # κ = n
        *((method, 0, 1e-11) for method in (classes.decision_function, two.decision_function)),
        *((method, 0, 0) for method in (classes.predict, two.predict)),
    ]
    expected = [method(problem.X) for method, *_ in methods]
    X = da.from_array(problem.X, chunks=(250, 2))
    computes.clear()
    lazy = [method(X) for method, *_ in methods]
    assert not computes
    for found, wanted, (_, rtol, atol) in zip(lazy, expected, methods, strict=True):
        assert isinstance(found, da.Array) and found.chunks[0] == X.chunks[0]
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        assert found._meta.ndim == wanted.ndim and type(found._meta) is np.ndarray
        if rtol == atol == 0:
            np.testing.assert_array_equal(found.compute(), wanted)
        else:
            np.testing.assert_allclose(found.compute(), wanted, rtol=rtol, atol=atol)
    assert len(computes) == len(lazy)


def test_large_models_travel_as_one_task(problem):
    """Coefficients above a megabyte are not copied into the task of every block."""
    Y = np.repeat(problem.y[:, None], 600, axis=1)
    model = drf.KernelRidge(fourier(256)).fit(problem.X, Y)
    lazy = model.predict(da.from_array(problem.X, chunks=100))
    assert sum(len(cloudpickle.dumps(task)) > model.coef_.nbytes for task in dict(lazy.dask).values()) == 1
    np.testing.assert_allclose(lazy.compute(), model.predict(problem.X), rtol=0, atol=1e-11)


def test_unknown_chunks_are_predicted(problem):
    model = ridge().fit(problem.X, problem.y)
    X = da.from_array(problem.X, chunks=300)
    some = X[X[:, 0] > 0]
    expected = model.predict(problem.X[problem.X[:, 0] > 0])
    np.testing.assert_allclose(model.predict(some).compute(), expected, rtol=0, atol=tolerance(model))


def test_frames_and_datasets_are_predicted_lazily(problem, computes):
    frame = pd.DataFrame(problem.X, columns=COLUMNS)
    model = ridge().fit(dd.from_pandas(frame, npartitions=3), problem.y)
    expected = model.predict(frame)
    for X in (dd.from_pandas(frame, npartitions=3), as_dataset(frame)):
        lazy = model.predict(X)
        assert isinstance(lazy, da.Array) and lazy.shape == expected.shape
        np.testing.assert_allclose(lazy.compute(), expected, rtol=0, atol=tolerance(model))
    with pytest.raises(InputError, match="feature names should match"):
        model.predict(dd.from_pandas(frame[COLUMNS[::-1]], npartitions=2))


@pytest.mark.parametrize("alpha", [1.0, "cv"])
def test_each_block_is_read_once_a_sweep(problem, blocks_read, computes, alpha):
    lazy, read = blocks_read
    X = lazy(problem.X)
    model = ridge(alpha, random_state=0).fit(X, problem.y)
    assert model.report_["n_sweeps"] == 2
    assert model.report_["sweep_labels"] == ["column statistics", "Gram"]
    assert read == 2 * [300, 300, 300]
    read.clear()
    model.score(X, problem.y)
    assert read == [300, 300, 300]
    read.clear()
    model.predict(X).compute()
    assert read == [300, 300, 300]


def test_scores_are_those_of_arrays_in_memory(problem, blocks_read):
    lazy, _ = blocks_read
    model = ridge().fit(problem.X, problem.Y)
    inside = model.score(problem.X, problem.Y, problem.s)
    outside = model.score(lazy(problem.X), lazy(problem.Y), lazy(problem.s))
    assert outside == pytest.approx(inside, rel=1e-13)
    expected = r2_score(problem.Y, model.predict(problem.X), sample_weight=problem.s)
    assert inside == pytest.approx(expected, rel=1e-12)
    labels = np.digitize(problem.y, [-0.5, 0.5])
    classifier = ridge_classifier().fit(problem.X, labels)
    inside = classifier.score(problem.X, labels, problem.s)
    outside = classifier.score(lazy(problem.X), lazy(labels), lazy(problem.s))
    assert outside == pytest.approx(inside, rel=1e-13)
    right = classifier.predict(problem.X) == labels
    assert inside == pytest.approx(np.average(right, weights=problem.s), rel=1e-13)


@pytest.mark.parametrize("local", ["synchronous", "threads"])
def test_dask_s_configured_scheduler_is_used(problem, local):
    reference = ridge().fit(problem.X, problem.y)
    with dask.config.set(scheduler=local):
        model = ridge().fit(da.from_array(problem.X, chunks=100), problem.y)
    np.testing.assert_array_equal(model.coef_, reference.coef_)
    assert model.report_["threads"] == (1 if local == "synchronous" else reference.report_["threads"])
