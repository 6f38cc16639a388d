"""Support vector models against scikit-learn on the same features, and the choice of C."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC, LinearSVC

import distrff as drf
from distrff.errors import InputError
from distrff.estimators.fitting import margins as penalty_search
from distrff.reductions.base import Folds
from distrff.solvers.losses import MARGINS, Hinge
from tests.support.fits import classes_of, fourier, in_process, objective, objective_of, refusal


def svm(C=1.0, **options):
    return drf.KernelSVC(fourier(32, random_state=None), C, **({"random_state": 0} | options))


@pytest.mark.parametrize("C", [0.1, 10.0])
def test_the_hinge_with_an_intercept_equals_svc(problem, C):
    y = classes_of(problem.y)
    fitted = svm(C, tol=1e-6).fit(problem.X, y, problem.s)
    Z = fitted.features_.transform(problem.X)
    reference = SVC(C=C, kernel="linear", tol=1e-6).fit(Z, y, problem.s)
    theirs = objective(Hinge(), C, reference.coef_, reference.decision_function(Z), 2.0 * y - 1, problem.s)
    ours = objective_of(fitted, "hinge", problem.X, 2.0 * y - 1, problem.s)
    assert abs(ours - theirs) <= 1e-6 * theirs
    assert fitted.report_["primal"] == pytest.approx(ours, rel=1e-10)
    assert fitted.report_["solver"] == "smoothed"
    np.testing.assert_allclose(fitted.decision_function(problem.X), reference.decision_function(Z), atol=0.02)


@pytest.mark.parametrize("loss", MARGINS)
@pytest.mark.parametrize("C", [0.1, 10.0])
def test_without_an_intercept_it_equals_linear_svc(problem, loss, C):
    y = classes_of(problem.y)
    fitted = svm(C, loss=loss, fit_intercept=False, tol=1e-6).fit(problem.X, y, problem.s)
    Z = fitted.features_.transform(problem.X)
    reference = LinearSVC(C=C, loss=loss, fit_intercept=False, tol=1e-10, max_iter=10**6, random_state=0).fit(
        Z, y, problem.s
    )
    theirs = objective(MARGINS[loss](), C, reference.coef_, Z @ reference.coef_[0], 2.0 * y - 1, problem.s)
    assert abs(objective_of(fitted, loss, problem.X, 2.0 * y - 1, problem.s) - theirs) <= 1e-6 * theirs


@pytest.mark.parametrize(
    ("parameters", "dtype"),
    [
        ({}, "float64"),  # the columns' own
        ({"scale": "standard"}, "float32"),
        ({"scale": "standard", "tol": 1e-5}, "float64"),
        ({"scale": "standard", "dtype": "float64"}, "float64"),
    ],
)
def test_standardised_columns_need_no_more_digits_than_the_gap(rng, parameters, dtype):
    X = 1e6 + rng.standard_normal((200, 2))  # whose digits the cast alone would lose
    y = X[:, 0] > 1e6
    fitted = drf.KernelSVC(drf.FourierFeatures(drf.Gaussian(), 32), random_state=0, **parameters).fit(X, y)
    assert fitted.report_["dtype"] == dtype
    if "scale" in parameters:
        assert fitted.score(X, y) > 0.9


# The choice of C


@pytest.mark.parametrize("loss", MARGINS)
def test_held_out_losses_are_those_of_models_that_did_not_see_the_rows(problem, loss, monkeypatch):
    build = partial(svm, loss=loss)
    monkeypatch.setattr(penalty_search, "_FOLDS_TOL", 1e-6)
    y, grid = classes_of(problem.y), [0.05, 0.5, 5.0]
    fitted = build("cv", Cs=grid, cv=3, tol=1e-6).fit(problem.X, y, problem.s)
    Z = fitted.features_.transform(problem.X)
    scores = np.empty((3, 3))
    folds = {}

    def kept(self, start, stop):
        folds["rows"] = of_rows(self, 0, 900)
        return of_rows(self, start, stop)

    of_rows = Folds.of_rows
    monkeypatch.setattr(Folds, "of_rows", kept)
    build("cv", Cs=[1.0], cv=3).fit(problem.X, y)
    for i, C in enumerate(grid):
        for fold in range(3):
            out = folds["rows"] == fold
            alone = build(C, tol=1e-6).fit(problem.X[~out], y[~out], problem.s[~out])
            f = Z[out] @ alone.coef_[0] + alone.intercept_[0]
            values = MARGINS[loss]().value(f, 2.0 * y[out] - 1)
            scores[i, fold] = np.average(values, weights=problem.s[out])
    # A gap of 1e-6 leaves ‖w − w*‖² ≤ 2e-6·P, and the loss changes by at most ‖w − w*‖ (twice that, squared).
    np.testing.assert_allclose(fitted.cv_results_["fold_scores"], scores, atol=0.03)
    assert grid[int(np.argmin(fitted.cv_results_["mean_score"]))] == fitted.C_
    assert fitted.cv_score_ == fitted.cv_results_["mean_score"].min()
    alone = build(fitted.C_, tol=1e-6).fit(problem.X, y, problem.s)
    assert fitted.report_["primal"] == pytest.approx(alone.report_["primal"], rel=3e-6)
    assert fitted.report_["C"] == fitted.C_


def test_the_search_finds_the_penalty_that_noise_asks_for(rng):
    X = rng.standard_normal((3000, 3))
    y = X[:, 0] + 1.5 * rng.standard_normal(3000) > 0
    features = drf.FourierFeatures(drf.Gaussian(0.5), 256)
    fitted = drf.KernelLikelihoodClassifier(features, "cv", random_state=0).fit(X, y)
    losses = fitted.cv_results_["mean_score"]
    assert len(losses) == 6
    assert losses.argmin() < 5
    assert losses[-1] > 1.02 * losses.min()
    assert fitted.report_["criterion"] == "held-out loss"
    many = drf.KernelLikelihoodClassifier(features, "cv", Cs=[0.1, 1.0], cv=2).fit(X, (X[:, 0] > 1) + 0 + y)
    assert many.coef_.shape == (3, 256)


def test_folds_without_weight(problem):
    y, s = classes_of(problem.y), np.zeros(900)
    s[:3] = 1.0
    with pytest.raises(InputError, match="fold"):
        svm("cv", cv=5).fit(problem.X, np.arange(900) % 2, s)
    with pytest.raises(InputError, match=r"C='cv' needs at least 5 rows here.*, fewer folds \(cv\), or"):
        svm("cv", cv=5).fit(problem.X[:4], y[:4] * 0 + [0, 1, 0, 1])


# The Gram of a sample


def test_a_sample_preconditions_like_all_rows(rng, monkeypatch):
    X = rng.standard_normal((70_000, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] > 0.3 * rng.standard_normal(70_000)
    s = rng.uniform(0, 2, 70_000)
    features = drf.FourierFeatures(drf.Gaussian(1.0), 64)
    sampled = in_process(drf.KernelSVC(features, 1.0, random_state=0), X, y, s)
    assert sampled.plan_.size.gram_stride == 4
    assert "one row in 4" in repr(sampled.report_)
    monkeypatch.setattr("distrff.estimators.fitting.context.gram_stride", lambda n, D: 1)
    full = in_process(drf.KernelSVC(features, 1.0, random_state=0), X, y, s)
    assert full.plan_.size.gram_stride == 1
    assert sampled.report_["primal"] == pytest.approx(full.report_["primal"], rel=2e-3)
    assert sampled.report_["n_sweeps"] <= 1.5 * full.report_["n_sweeps"]


def test_a_sample_that_misses_the_weight_is_not_used(rng):
    X = rng.standard_normal((40_000, 2))
    y, s = X[:, 0] > 0, np.zeros(40_000)
    s[100:150] = 1.0
    features = drf.FourierFeatures(drf.Gaussian(1.0), 16)
    svc = drf.KernelSVC(features, 1.0, random_state=0)
    fitted, few = in_process(clone(svc), X, y, s), in_process(svc, X[100:150], y[100:150])
    assert fitted.report_["primal"] == pytest.approx(few.report_["primal"], rel=2e-3)


# The hard margin


def strip(rng, n, width):
    """Rows on both sides of a curved strip that has none."""
    X = rng.standard_normal((n, 2))
    f = X[:, 0] ** 2 + X[:, 1] - 0.5
    return X[np.abs(f) > width], f[np.abs(f) > width] > 0


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("features", [drf.LinearFeatures(), drf.FourierFeatures(drf.Gaussian(1.5), 64)])
def test_the_hard_margin_is_the_largest(rng, features, fit_intercept):
    X, y = strip(rng, 400, 0.2)
    if isinstance(features, drf.LinearFeatures):
        y = X @ [1.0, -2.0] > 0
        X[y] += [0.05, -0.1]
    fitted = drf.KernelSVC(features, np.inf, fit_intercept=fit_intercept, tol=1e-6, random_state=0).fit(X, y)
    Z, signs = fitted.features_.transform(X), np.where(y, 1.0, -1.0)
    w, b = fitted.coef_[0], fitted.intercept_[0]
    assert (signs * (Z @ w + b)).min() >= 1 - 1e-9
    assert fitted.report_["smallest_margin"] >= 1 - 1e-9
    assert fitted.report_["C"] == "inf"
    assert fitted.margin_ == pytest.approx(1 / np.linalg.norm(w))
    if fit_intercept:
        reference = SVC(C=1e10, kernel="linear", tol=1e-8).fit(Z, y)
        # libsvm keeps its kernel in float32, and may stop a little outside the constraints.
        assert fitted.margin_ == pytest.approx(1 / np.linalg.norm(reference.coef_), rel=1e-4)
    else:
        assert b == 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hard_margins_of_many_classes(rng, dtype):
    X = rng.uniform(-3, 3, (600, 2))
    X = X[np.abs(X[:, 0] % 1 - 0.5) < 0.4]
    y = np.floor(X[:, 0] / 2)
    features = drf.FourierFeatures(drf.Gaussian(0.7), 256)
    fitted = drf.KernelSVC(features, np.inf, dtype=dtype, random_state=0).fit(X, y)
    assert fitted.score(X, y) == 1
    assert fitted.margin_.shape == (len(np.unique(y)),)
    # A margin is a sum of 256 products and the intercept, in the features' dtype.
    size = np.linalg.norm(fitted.coef_, axis=1).max() + np.abs(fitted.intercept_).max()
    assert fitted.report_["smallest_margin"] >= 1 - 260 * np.finfo(dtype).eps * size


def test_rows_that_are_not_separable(rng):
    X, y = strip(rng, 500, 0.1)
    wrong = y.copy()
    wrong[::50] = ~wrong[::50]
    message = refusal(svm(np.inf).fit, X, wrong)
    assert message.startswith("the classes are not separable with these features")
    assert "rows violate y·f ≥ 1" in message
    assert "use a finite C" in message
    doubled, opposite = np.vstack([X, X[3:4]]), np.append(y, ~y[3])
    # Of two equal rows with opposite labels one violates in any case.
    with pytest.raises(InputError, match="the worst with y·f = "):
        svm(np.inf).fit(doubled, opposite)
    names = np.where(wrong, "in", np.where(X[:, 0] > 0, "right", "left"))
    with pytest.raises(InputError, match=r"the class '\w+' and the rest are not separable"):
        svm(np.inf).fit(X, names)


def test_a_hard_margin_that_is_not_decided_in_time():
    X, y = strip(np.random.default_rng(0), 500, 0.1)  # the start, a ridge model, does not separate them
    with pytest.warns(ConvergenceWarning, match="after light sweep 1 the rows are neither separated"):
        fitted = svm(np.inf, max_sweeps=1).fit(X, y)
    assert fitted.report_["status"] == "NOT_DECIDED"
    json.dumps(fitted.report_.to_dict(), allow_nan=False)


def test_rows_of_no_weight_need_no_margin(rng):
    X, y = strip(rng, 500, 0.2)
    wrong, s = y.copy(), np.ones(len(y))
    wrong[:20], s[:20] = ~y[:20], 0
    fitted = svm(np.inf).fit(X, wrong, s)
    expected = svm(np.inf).fit(X[20:], y[20:])
    assert fitted.margin_ == pytest.approx(expected.margin_, rel=1e-3)
