"""A scikit-learn estimator like any other: clones, pickles, searches, names of columns, seeds."""

from __future__ import annotations

import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score

import distrff as drf
from distrff.errors import InputError
from tests.support.fits import fourier, ridge

COLUMNS = ["a", "b", "c", "d"]


def test_seeds(problem):
    """The map's own seed wins, then the estimator's; without either one is drawn and kept."""

    def fit(of_map, of_estimator, alpha=1.0, **options):
        features = fourier(random_state=of_map, **options)
        return drf.KernelRidge(features, alpha, random_state=of_estimator).fit(problem.X, problem.y)

    first, second = fit(None, None), fit(None, None)
    assert first.seed_ != second.seed_ and first.random_state is None
    assert first.report_["seed"] == first.seed_
    np.testing.assert_array_equal(fit(None, first.seed_).coef_, first.coef_)
    one, other = fit(5, 0), fit(5, 1)
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert one.features_.seed_ == 5
    one, other = (fit(None, 7, "cv", length_scale="auto") for _ in range(2))
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert one.features_.kernel_ == other.features_.kernel_


def test_clone_is_unfitted_and_apart(problem):
    model = ridge(alpha="cv", alphas=[1.0, 2.0], random_state=1).fit(problem.X, problem.y)
    copy = clone(model)
    assert not hasattr(copy, "model_") and copy.features is not model.features
    assert repr(copy) == repr(model)
    copy.set_params(features__kernel__length_scale=9.0, features__n_components=2)
    assert model.features.kernel == drf.Gaussian(2.0) and model.features.n_components == 64
    with pytest.raises(NotFittedError):
        copy.predict(problem.X)


def test_pickle(problem):
    model = ridge().fit(problem.X, problem.y)
    late = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(late.predict(problem.X), model.predict(problem.X))
    assert dict(late.report_) == dict(model.report_)
    with pytest.raises(InputError, match="ask for return_std once before pickling"):
        late.predict(problem.X, return_std=True)
    _, std = model.predict(problem.X, return_std=True)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(problem.X, return_std=True)[1], std)


def test_set_output_changes_nothing(problem):
    plain = ridge().fit(problem.X, problem.y)
    with config_context(transform_output="pandas"):
        model = drf.KernelRidge(fourier().set_output(transform="pandas")).fit(problem.X, problem.y)
        prediction = model.predict(problem.X)
    assert type(prediction) is np.ndarray
    np.testing.assert_array_equal(prediction, plain.predict(problem.X))


def test_frames_and_their_names(problem):
    frame = pd.DataFrame(problem.X, columns=COLUMNS)
    model = ridge().fit(frame, pd.Series(problem.y))
    plain = ridge().fit(problem.X, problem.y)
    np.testing.assert_array_equal(model.feature_names_in_, COLUMNS)
    np.testing.assert_array_equal(model.predict(frame), plain.predict(problem.X))
    assert model.score(frame, problem.y) == plain.score(problem.X, problem.y)
    for wrong in (frame[COLUMNS[::-1]], frame.rename(columns={"a": "z"})):
        with pytest.raises(ValueError, match="feature names should match"):
            model.predict(wrong)
        with pytest.raises(InputError, match=r"feature names should match.*expected a, b, c, d in this"):
            model.score(wrong, problem.y)
    model.fit(problem.X, problem.y)
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize("columns", [3, 5])
def test_wrong_number_of_columns(problem, columns):
    model = ridge().fit(problem.X, problem.y)
    X = np.zeros((10, columns))
    message = f"X has {columns} features, but KernelRidge is expecting 4 features as input"
    with pytest.raises(ValueError, match=message):
        model.predict(X)
    for rows in (X, da.from_array(X)):
        with pytest.raises(InputError, match=message):
            model.score(rows, np.zeros(10))
    with pytest.raises(InputError, match=rf"X must have shape \(n_samples, 4\), got .*\(10, {columns}\)"):
        model.predict(da.from_array(X))


def test_rows_of_nan_are_not_predicted(problem):
    model = ridge().fit(problem.X, problem.y)
    with pytest.raises(ValueError, match="NaN"):
        model.predict(np.full((2, 4), np.nan))


def test_score_is_r2_weighted_and_averaged(problem):
    model = ridge().fit(problem.X, problem.Y)
    ours = model.score(problem.X, problem.Y, problem.s)
    expected = r2_score(problem.Y, model.predict(problem.X), sample_weight=problem.s)
    assert ours == pytest.approx(expected, rel=1e-12)


def test_numbers_as_objects_and_booleans_are_targets(problem):
    y = (problem.y > 0).astype(int)
    reference = ridge().fit(problem.X, y)
    for same in (y.astype(bool), y.astype(object), y.tolist()):
        np.testing.assert_array_equal(ridge().fit(problem.X, same).coef_, reference.coef_)


def test_a_failed_fit_leaves_the_model_as_it_was(problem):
    model = drf.KernelRidge(fourier(random_state=None)).fit(problem.X, problem.y)
    expected, seed = model.predict(problem.X), model.seed_
    with pytest.raises(InputError):
        model.fit(np.full_like(problem.X, np.nan), problem.y)
    np.testing.assert_array_equal(model.predict(problem.X), expected)
    assert model.seed_ == seed


@pytest.mark.parametrize("alpha", [1.0, "cv"])
def test_plan_is_that_of_the_fit(problem, alpha):
    model = drf.KernelRidge(fourier(length_scale="auto"), alpha)
    plan = model.plan(problem.X, problem.y)
    assert plan.seconds > 0 and not hasattr(model, "model_")
    fitted = model.fit(problem.X, problem.y)
    assert plan == fitted.plan_
    assert plan.n_sweeps == fitted.report_["n_sweeps"] == 2
    # Without a cluster one process is the worker and the client.
    assert fitted.report_["planned_peak_bytes"] == plan.worker_peak_bytes + plan.client_peak_bytes
