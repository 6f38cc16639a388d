"""A scikit-learn estimator like any other: clones, pickles, searches, names of columns, seeds."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from distrff.errors import InputError
from distrff.estimators.ridge import KernelRidge
from distrff.features.fourier import FourierFeatures
from distrff.kernels.stationary import Gaussian

COLUMNS = ["a", "b", "c", "d"]


def fourier(n_components=64, width=2.0, **options):
    return FourierFeatures(Gaussian(width), n_components, **({"random_state": 0} | options))


def test_no_seed_is_fresh_entropy_that_is_kept(problem):
    first, second = (KernelRidge(fourier(random_state=None)).fit(problem.X, problem.y) for _ in range(2))
    assert first.seed_ != second.seed_ and first.random_state is None
    assert first.report_["seed"] == first.seed_
    again = KernelRidge(fourier(random_state=None), random_state=first.seed_).fit(problem.X, problem.y)
    np.testing.assert_array_equal(again.coef_, first.coef_)


def test_the_map_s_own_seed_wins(problem):
    one, other = (
        KernelRidge(fourier(random_state=5), random_state=seed).fit(problem.X, problem.y) for seed in (0, 1)
    )
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert one.features_.seed_ == 5


def test_the_seed_rules_everything(problem):
    features = FourierFeatures(Gaussian("auto"), 64)
    one, other = (KernelRidge(features, "cv", random_state=7).fit(problem.X, problem.y) for _ in range(2))
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert one.features_.kernel_ == other.features_.kernel_


def test_clone_is_unfitted_and_apart(problem):
    machine = KernelRidge(fourier(), alpha="cv", alphas=[1.0, 2.0], random_state=1).fit(problem.X, problem.y)
    copy = clone(machine)
    assert not hasattr(copy, "model_") and copy.features is not machine.features
    assert repr(copy) == repr(machine)
    copy.set_params(features__kernel__length_scale=9.0, features__n_components=2)
    assert machine.features.kernel == Gaussian(2.0) and machine.features.n_components == 64
    with pytest.raises(NotFittedError):
        copy.predict(problem.X)


def test_pickle(problem):
    machine = KernelRidge(fourier()).fit(problem.X, problem.y)
    late = pickle.loads(pickle.dumps(machine))
    np.testing.assert_array_equal(late.predict(problem.X), machine.predict(problem.X))
    assert dict(late.report_) == dict(machine.report_)
    with pytest.raises(InputError, match="ask for return_std once before pickling"):
        late.predict(problem.X, return_std=True)
    _, std = machine.predict(problem.X, return_std=True)
    again = pickle.loads(pickle.dumps(machine))
    np.testing.assert_array_equal(again.predict(problem.X, return_std=True)[1], std)


def test_grid_search_over_alpha_and_width(problem):
    grid = {"alpha": [1e-2, 1e4], "features__kernel__length_scale": [0.01, 2.0]}
    machine = KernelRidge(fourier(128, width=1.0))
    search = GridSearchCV(machine, grid, cv=3).fit(problem.X, problem.y)
    # Of an absurd penalty, an absurd width and a sensible pair, the pair wins by far.
    assert search.best_params_ == {"alpha": 1e-2, "features__kernel__length_scale": 2.0}
    assert search.best_estimator_.features_.kernel_ == Gaussian(2.0)
    assert machine.features.kernel == Gaussian(1.0)
    refitted = KernelRidge(fourier(128), alpha=1e-2).fit(problem.X, problem.y)
    np.testing.assert_array_equal(search.best_estimator_.coef_, refitted.coef_)


def test_pipeline_and_scores(problem):
    pipeline = make_pipeline(StandardScaler(), KernelRidge(fourier()))
    assert cross_val_score(pipeline, problem.X, problem.y, cv=3).min() > 0.5


def test_set_output_changes_nothing(problem):
    plain = KernelRidge(fourier()).fit(problem.X, problem.y)
    with config_context(transform_output="pandas"):
        machine = KernelRidge(fourier().set_output(transform="pandas")).fit(problem.X, problem.y)
        prediction = machine.predict(problem.X)
    assert type(prediction) is np.ndarray
    np.testing.assert_array_equal(prediction, plain.predict(problem.X))


def test_frames_and_their_names(problem):
    frame = pd.DataFrame(problem.X, columns=COLUMNS)
    machine = KernelRidge(fourier()).fit(frame, pd.Series(problem.y))
    plain = KernelRidge(fourier()).fit(problem.X, problem.y)
    np.testing.assert_array_equal(machine.feature_names_in_, COLUMNS)
    np.testing.assert_array_equal(machine.predict(frame), plain.predict(problem.X))
    assert machine.score(frame, problem.y) == plain.score(problem.X, problem.y)
    for wrong in (frame[COLUMNS[::-1]], frame.rename(columns={"a": "z"})):
        with pytest.raises(ValueError, match="feature names should match"):
            machine.predict(wrong)
        with pytest.raises(InputError, match=r"feature names should match.*expected a, b, c, d in this"):
            machine.score(wrong, problem.y)
    machine.fit(problem.X, problem.y)
    assert not hasattr(machine, "feature_names_in_")


@pytest.mark.parametrize("columns", [3, 5])
def test_wrong_number_of_columns(problem, columns):
    machine = KernelRidge(fourier()).fit(problem.X, problem.y)
    X = np.zeros((10, columns))
    message = f"X has {columns} features, but KernelRidge is expecting 4 features as input"
    with pytest.raises(ValueError, match=message):
        machine.predict(X)
    with pytest.raises(InputError, match=message):
        machine.score(X, np.zeros(10))


def test_rows_of_nan_are_not_predicted(problem):
    machine = KernelRidge(fourier()).fit(problem.X, problem.y)
    with pytest.raises(ValueError, match="NaN"):
        machine.predict(np.full((2, 4), np.nan))


def test_score_is_r2_weighted_and_averaged(problem):
    machine = KernelRidge(fourier()).fit(problem.X, problem.Y)
    ours = machine.score(problem.X, problem.Y, problem.s)
    expected = r2_score(problem.Y, machine.predict(problem.X), sample_weight=problem.s)
    assert ours == pytest.approx(expected, rel=1e-12)


def test_numbers_as_objects_and_booleans_are_targets(problem):
    y = (problem.y > 0).astype(int)
    reference = KernelRidge(fourier()).fit(problem.X, y)
    for same in (y.astype(bool), y.astype(object), y.tolist()):
        np.testing.assert_array_equal(KernelRidge(fourier()).fit(problem.X, same).coef_, reference.coef_)


def test_a_failed_fit_leaves_the_machine_as_it_was(problem):
    machine = KernelRidge(fourier(random_state=None)).fit(problem.X, problem.y)
    expected, seed = machine.predict(problem.X), machine.seed_
    with pytest.raises(InputError):
        machine.fit(np.full_like(problem.X, np.nan), problem.y)
    np.testing.assert_array_equal(machine.predict(problem.X), expected)
    assert machine.seed_ == seed


@pytest.mark.parametrize("alpha", [1.0, "cv"])
def test_plan_is_that_of_the_fit(problem, alpha):
    machine = KernelRidge(fourier(width="auto"), alpha)
    plan = machine.plan(problem.X, problem.y)
    assert plan.seconds > 0 and not hasattr(machine, "model_")
    fitted = machine.fit(problem.X, problem.y)
    assert plan == fitted.plan_
    assert plan.n_sweeps == fitted.report_["n_sweeps"] == 2
    # Without a cluster one process is the worker and the client.
    assert fitted.report_["planned_peak_bytes"] == plan.worker_peak_bytes + plan.client_peak_bytes
