"""Support vector machines against scikit-learn on the same features, and the choice of C."""

from __future__ import annotations

import json

import dask
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC, LinearSVC

import distrff as drf
from distrff.errors import InputError
from distrff.estimators.fitting import gram as factor_gram
from distrff.estimators.fitting import margins as penalty_search
from distrff.estimators.fitting.margin_oracle import MarginOracle
from distrff.reductions.base import Folds
from distrff.solvers.losses import MARGINS


def machine(C=1.0, **options):
    return drf.KernelSVC(drf.FourierFeatures(drf.Gaussian(2.0), 32), C, **({"random_state": 0} | options))


def labels_of(problem, n_classes=2):
    edges = np.quantile(problem.y, np.linspace(0, 1, n_classes + 1)[1:-1])
    return np.searchsorted(edges, problem.y)


def objective(loss, C, w, b, Z, y, s):
    return C * (s * MARGINS[loss]().value(Z @ w + b, y)).sum() + 0.5 * w @ w


def own_objective(fitted, X, y, s, output=0):
    Z = fitted.features_.transform(X)
    return objective(fitted.loss, fitted.C_, fitted.coef_[output], fitted.intercept_[output], Z, y, s)


@pytest.mark.parametrize("C", [0.1, 10.0])
def test_the_hinge_with_an_intercept_equals_svc(problem, C):
    y = labels_of(problem)
    fitted = machine(C, tol=1e-6).fit(problem.X, y, problem.s)
    Z = fitted.features_.transform(problem.X)
    reference = SVC(C=C, kernel="linear", tol=1e-6).fit(Z, y, problem.s)
    theirs = objective("hinge", C, reference.coef_[0], reference.intercept_[0], Z, 2.0 * y - 1, problem.s)
    ours = own_objective(fitted, problem.X, 2.0 * y - 1, problem.s)
    assert abs(ours - theirs) <= 1e-6 * theirs
    assert fitted.report_["primal"] == pytest.approx(ours, rel=1e-10)
    assert fitted.report_["solver"] == "smoothed"
    np.testing.assert_allclose(fitted.decision_function(problem.X), reference.decision_function(Z), atol=0.02)


@pytest.mark.parametrize("loss", MARGINS)
@pytest.mark.parametrize("C", [0.1, 10.0])
def test_without_an_intercept_it_equals_linear_svc(problem, loss, C):
    y = labels_of(problem)
    fitted = machine(C, loss=loss, fit_intercept=False, tol=1e-6).fit(problem.X, y, problem.s)
    Z = fitted.features_.transform(problem.X)
    reference = LinearSVC(C=C, loss=loss, fit_intercept=False, tol=1e-10, max_iter=10**6, random_state=0).fit(
        Z, y, problem.s
    )
    theirs = objective(loss, C, reference.coef_[0], 0.0, Z, 2.0 * y - 1, problem.s)
    assert abs(own_objective(fitted, problem.X, 2.0 * y - 1, problem.s) - theirs) <= 1e-6 * theirs


def test_the_squared_hinge_with_an_intercept_equals_a_general_solver(problem):
    y = labels_of(problem)
    fitted = machine(3.0, loss="squared_hinge", tol=1e-8).fit(problem.X, y)
    Z, signs = fitted.features_.transform(problem.X), 2.0 * y - 1

    def value(x):
        short = np.maximum(0, 1 - signs * (Z @ x[:-1] + x[-1]))
        slope = -6.0 * short * signs
        return 3.0 * short @ short + 0.5 * x[:-1] @ x[:-1], np.append(slope @ Z + x[:-1], slope.sum())

    best = minimize(value, np.zeros(33), jac=True, method="BFGS", options={"gtol": 1e-9}).fun
    assert own_objective(fitted, problem.X, signs, np.ones(900)) == pytest.approx(best, rel=1e-6)
    assert fitted.report_["dual"] <= best * (1 + 1e-9)
    assert fitted.report_["solver"] == "lbfgs"


@pytest.mark.parametrize("loss", MARGINS)
def test_many_classes_are_one_against_the_rest(problem, loss):
    y = labels_of(problem, 3)
    fitted = machine(loss=loss, tol=1e-5).fit(problem.X, np.array(["a", "b", "c"])[y])
    assert fitted.coef_.shape == (3, 32)
    for output in range(3):
        alone = machine(loss=loss, tol=1e-5).fit(problem.X, y == output)
        signs = np.where(y == output, 1.0, -1.0)
        ours = own_objective(fitted, problem.X, signs, np.ones(900), output)
        assert ours == pytest.approx(own_objective(alone, problem.X, signs, np.ones(900)), rel=3e-5)
    best = fitted.decision_function(problem.X).argmax(axis=1)
    assert (fitted.classes_[best] == fitted.predict(problem.X)).all()


def test_class_weights_are_row_weights(problem):
    y = labels_of(problem, 3)
    by_class = np.array([0.5, 1.0, 3.0])
    weighted = machine(class_weight=dict(enumerate(by_class))).fit(problem.X, y)
    rows = machine().fit(problem.X, y, by_class[y])
    np.testing.assert_allclose(weighted.coef_, rows.coef_, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_weights_and_C_are_redundant(problem, scale):
    y = labels_of(problem)
    expected = machine(1.0, tol=1e-5).fit(problem.X, y, problem.s)
    other = machine(1 / scale, tol=1e-5).fit(problem.X, y, scale * problem.s)
    assert other.report_["primal"] == pytest.approx(expected.report_["primal"], rel=3e-5)


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


def test_too_few_sweeps_are_a_warning(problem):
    with pytest.warns(ConvergenceWarning, match=r"after light sweep 2, above tol=0.001; allow more"):
        fitted = machine(100.0, max_sweeps=2).fit(problem.X, labels_of(problem))
    assert fitted.report_["status"] == "NOT_CONVERGED"


def test_an_interrupted_fit_keeps_the_best_machine(problem, monkeypatch):
    interrupt_after(monkeypatch, 1)
    estimator = machine(100.0, tol=1e-9)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(problem.X, labels_of(problem))
    assert estimator.report_["status"] == "INTERRUPTED"
    assert estimator.score(problem.X, labels_of(problem)) > 0.7


def interrupt_after(monkeypatch, n_calls):
    """Raise KeyboardInterrupt in the light sweep after so many."""
    calls = []

    def interrupted(sweep):
        def counted(*args):
            calls.append(args)
            if len(calls) > n_calls:
                raise KeyboardInterrupt
            return sweep(*args)

        return counted

    for name in ("evaluate", "nearest_rows"):
        monkeypatch.setattr(MarginOracle, name, interrupted(getattr(MarginOracle, name)))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"loss": "log"}, "loss must be one of 'hinge', 'squared_hinge', got 'log'"),
        (
            {"solver": "lbfgs"},
            "solver='lbfgs' needs a loss with a continuous slope, which loss='hinge' is not; "
            "use solver='smoothed' or 'auto'",
        ),
        (
            {"loss": "squared_hinge", "solver": "smoothed"},
            "solver='smoothed' needs a loss whose slope jumps, which loss='squared_hinge' is not; "
            "use solver='lbfgs' or 'auto'",
        ),
        ({"C": -1.0}, "C must be a positive number, got -1.0"),
        ({"tol": "x"}, "tol must be a positive number, got 'x'"),
        ({"max_sweeps": "a"}, "max_sweeps must be a positive integer or None, got 'a'"),
    ],
)
def test_parameters_that_cannot_be_used(problem, parameters, message):
    with pytest.raises(InputError) as refused:
        machine(**parameters).fit(problem.X, labels_of(problem))
    assert str(refused.value) == message


def test_it_tells_no_probabilities(problem):
    assert not hasattr(machine(), "predict_proba")
    fitted = machine().fit(problem.X, labels_of(problem))
    with pytest.raises(InputError, match="a KernelSVC tells no probabilities"):
        fitted.model_.predict_proba(problem.X)


# The choice of C


@pytest.mark.parametrize(
    ("build", "loss"),
    [
        (machine, "hinge"),
        (lambda C, **o: machine(C, loss="squared_hinge", **o), "squared_hinge"),
    ],
)
def test_held_out_losses_are_those_of_machines_that_did_not_see_the_rows(problem, build, loss, monkeypatch):
    monkeypatch.setattr(penalty_search, "_FOLDS_TOL", 1e-6)
    y, grid = labels_of(problem), [0.05, 0.5, 5.0]
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


def test_an_interrupted_search_keeps_the_machine_so_far(problem, monkeypatch):
    interrupt_after(monkeypatch, 8)
    estimator = machine("cv", Cs=[0.1, 1.0, 10.0, 100.0])
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(problem.X, labels_of(problem))
    assert estimator.report_["status"] == "INTERRUPTED"
    # It ended where it was interrupted, not at the end of the grid.
    assert not any("of its grid" in note for note in estimator.report_["notes"])
    assert estimator.score(problem.X, labels_of(problem)) > 0.7


def test_folds_without_weight(problem):
    y, s = labels_of(problem), np.zeros(900)
    s[:3] = 1.0
    with pytest.raises(InputError, match="fold"):
        machine("cv", cv=5).fit(problem.X, np.arange(900) % 2, s)
    with pytest.raises(InputError, match=r"C='cv' needs at least 5 rows here.*, fewer folds \(cv\), or"):
        machine("cv", cv=5).fit(problem.X[:4], y[:4] * 0 + [0, 1, 0, 1])


# The Gram of a sample


def test_a_sample_preconditions_like_all_rows(rng, monkeypatch):
    X = rng.standard_normal((70_000, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] > 0.3 * rng.standard_normal(70_000)
    s = rng.uniform(0, 2, 70_000)
    features = drf.FourierFeatures(drf.Gaussian(1.0), 64)
    with dask.config.set(scheduler="synchronous"):
        sampled = drf.KernelSVC(features, 1.0, random_state=0).fit(X, y, s)
        assert sampled.plan_.size.gram_stride == 4
        assert "one row in 4" in repr(sampled.report_)
        monkeypatch.setattr("distrff.estimators.fitting.context.gram_stride", lambda n, D: 1)
        full = drf.KernelSVC(features, 1.0, random_state=0).fit(X, y, s)
    assert full.plan_.size.gram_stride == 1
    assert sampled.report_["primal"] == pytest.approx(full.report_["primal"], rel=2e-3)
    assert sampled.report_["n_sweeps"] <= 1.5 * full.report_["n_sweeps"]


def test_a_sample_that_misses_the_weight_is_not_used(rng):
    X = rng.standard_normal((40_000, 2))
    y, s = X[:, 0] > 0, np.zeros(40_000)
    s[100:150] = 1.0
    features = drf.FourierFeatures(drf.Gaussian(1.0), 16)
    with dask.config.set(scheduler="synchronous"):
        fitted = drf.KernelSVC(features, 1.0, random_state=0).fit(X, y, s)
        few = drf.KernelSVC(features, 1.0, random_state=0).fit(X[100:150], y[100:150])
    assert fitted.report_["primal"] == pytest.approx(few.report_["primal"], rel=2e-3)


def test_the_weight_of_a_gram():
    A = np.diag([1.0, 2.0, 7.0, 4.0])
    assert factor_gram.weight_of(A, 1) == 7.0
    np.testing.assert_array_equal(factor_gram.scaled(A, 2.0), 2 * A)


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


def test_hard_margins_of_many_classes(rng):
    X = rng.uniform(-3, 3, (600, 2))
    X = X[np.abs(X[:, 0] % 1 - 0.5) < 0.4]
    y = np.floor(X[:, 0] / 2)
    fitted = drf.KernelSVC(drf.FourierFeatures(drf.Gaussian(0.7), 256), np.inf, random_state=0).fit(X, y)
    assert fitted.score(X, y) == 1
    assert fitted.margin_.shape == (len(np.unique(y)),)


def test_rows_that_are_not_separable(rng):
    X, y = strip(rng, 500, 0.1)
    wrong = y.copy()
    wrong[::50] = ~wrong[::50]
    with pytest.raises(InputError) as refused:
        machine(np.inf).fit(X, wrong)
    message = str(refused.value)
    assert message.startswith("the classes are not separable with these features")
    assert "rows violate y·f ≥ 1" in message
    assert "use a finite C" in message
    doubled, opposite = np.vstack([X, X[3:4]]), np.append(y, ~y[3])
    # Of two equal rows with opposite labels one violates in any case.
    with pytest.raises(InputError, match="the worst with y·f = "):
        machine(np.inf).fit(doubled, opposite)
    names = np.where(wrong, "in", np.where(X[:, 0] > 0, "right", "left"))
    with pytest.raises(InputError, match=r"the class '\w+' and the rest are not separable"):
        machine(np.inf).fit(X, names)


def test_a_hard_margin_that_is_not_decided_in_time():
    X, y = strip(np.random.default_rng(0), 500, 0.1)  # the start, a ridge model, does not separate them
    with pytest.warns(ConvergenceWarning, match="after light sweep 1 the rows are neither separated"):
        fitted = machine(np.inf, max_sweeps=1).fit(X, y)
    assert fitted.report_["status"] == "NOT_DECIDED"
    json.dumps(fitted.report_.to_dict(), allow_nan=False)


def test_rows_of_no_weight_need_no_margin(rng):
    X, y = strip(rng, 500, 0.2)
    wrong, s = y.copy(), np.ones(len(y))
    wrong[:20], s[:20] = ~y[:20], 0
    fitted = machine(np.inf).fit(X, wrong, s)
    expected = machine(np.inf).fit(X[20:], y[20:])
    assert fitted.margin_ == pytest.approx(expected.margin_, rel=1e-3)
