"""What every classifier of a margin loss does, and the likelihood models against scikit-learn."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

import distrff as drf
from distrff.errors import InputError
from distrff.estimators.fitting import options as margin_options
from distrff.estimators.fitting.margin_oracle import MarginOracle
from distrff.reductions.margins import MarginReduction
from distrff.solvers.lbfgs import Preconditioner
from distrff.solvers.losses import NOISES, Logistic
from tests.support.fits import (
    LOSSES,
    classes_of,
    fourier,
    in_process,
    interrupt_after,
    margin_classifier,
    mismatch_once,
    objective,
    objective_of,
    refusal,
    smallest_objective,
    stored,
)


def classifier(name, C=1.0, **options):
    return margin_classifier(name, fourier(32, random_state=None), C, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [("squared_hinge", {}), ("probit", {"sigma": 0.7}), ("laplace", {"sigma": 0.7})],
)
def test_smooth_losses_equal_a_general_solver(problem, name, options):
    y, s = classes_of(problem.y), problem.s
    fitted = classifier(name, 3.0, tol=1e-8, **options).fit(problem.X, y, s)
    signs, loss = 2.0 * y - 1, LOSSES[name](*options.values())
    best = smallest_objective(loss, 3.0, fitted.features_.transform(problem.X), signs, s, gtol=1e-9).fun
    assert objective_of(fitted, name, problem.X, signs, s) == pytest.approx(best, rel=1e-6)
    assert fitted.report_["dual"] <= best * (1 + 1e-9)
    assert fitted.report_["solver"] == "lbfgs"


@pytest.mark.parametrize("name", LOSSES)
def test_many_classes_are_one_against_the_rest(problem, name):
    X, y, s = problem.X, classes_of(problem.y, 3), np.ones(900)
    tol, rel = (1e-5, 3e-5) if "hinge" in name else (1e-6, 1e-5)
    fitted = classifier(name, tol=tol).fit(X, np.array(["a", "b", "c"])[y])
    assert fitted.classes_.tolist() == ["a", "b", "c"]
    assert fitted.coef_.shape == (3, 32)
    for output in range(3):
        alone = classifier(name, tol=tol).fit(X, y == output)
        signs = np.where(y == output, 1.0, -1.0)
        ours = objective_of(fitted, name, X, signs, s, output)
        assert ours == pytest.approx(objective_of(alone, name, X, signs, s), rel=rel)
    F = fitted.decision_function(X)
    if "hinge" not in name:
        F = fitted.predict_proba(X)
        np.testing.assert_allclose(F.sum(axis=1), 1, rtol=1e-12)
    assert (fitted.classes_[F.argmax(axis=1)] == fitted.predict(X)).all()


@pytest.mark.parametrize(("name", "tol"), [("hinge", 1e-3), ("logistic", 1e-6)])
def test_class_weights_are_row_weights(problem, name, tol):
    y = classes_of(problem.y, 3)
    by_class = np.array([0.5, 1.0, 3.0])
    weighted = classifier(name, class_weight=dict(enumerate(by_class)), tol=tol).fit(problem.X, y)
    rows = classifier(name, tol=tol).fit(problem.X, y, by_class[y])
    np.testing.assert_allclose(weighted.coef_, rows.coef_, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hinge", {"max_sweeps": 2}, r"after light sweep 2, above tol=0.001; allow more"),
        (
            "logistic",
            {"max_sweeps": 1, "tol": 1e-9},
            r"the duality gap is .* after light sweep 1, above tol=1e-09; allow more",
        ),
    ],
)
def test_too_few_sweeps_are_a_warning(problem, name, options, message):
    with pytest.warns(ConvergenceWarning, match=message):
        fitted = classifier(name, 100.0, **options).fit(problem.X, classes_of(problem.y))
    assert fitted.report_["status"] == "NOT_CONVERGED"
    assert fitted.predict(problem.X).shape == (900,)


@pytest.mark.parametrize(
    ("name", "C", "n_calls"), [("hinge", 100.0, 1), ("logistic", 100.0, 2), ("hinge", "cv", 8)]
)
def test_an_interrupted_fit_keeps_the_best_model(problem, monkeypatch, name, C, n_calls):
    interrupt_after(monkeypatch, MarginOracle, ("evaluate", "nearest_rows"), n_calls)
    options = {"Cs": [0.1, 1.0, 10.0, 100.0]} if C == "cv" else {"tol": 1e-9}
    estimator = classifier(name, C, **options)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(problem.X, classes_of(problem.y))
    assert estimator.report_["status"] == "INTERRUPTED"
    # A search ended where it was interrupted, not at the end of the grid.
    assert not any("of its grid" in note for note in estimator.report_["notes"])
    assert estimator.score(problem.X, classes_of(problem.y)) > 0.7


def test_frequencies_are_sent_to_a_worker_that_derives_others(problem, monkeypatch):
    data = problem.X, classes_of(problem.y)
    expected = classifier("logistic").fit(*data)
    mismatch_once(monkeypatch, MarginReduction)
    fitted = in_process(classifier("logistic"), *data)
    np.testing.assert_allclose(fitted.coef_, expected.coef_, rtol=1e-6)


def test_storage_of_rows_and_of_the_model(problem, tmp_path):
    y = classes_of(problem.y)
    X = da.from_array(problem.X, chunks=(123, 4))
    expected = in_process(classifier("logistic"), problem.X, y)
    lazy = in_process(classifier("logistic"), X, da.from_array(y, chunks=200))
    np.testing.assert_array_equal(lazy.coef_, expected.coef_)
    P = expected.predict_proba(X)
    assert P.chunks == ((123,) * 7 + (39,), (2,))
    np.testing.assert_allclose(P.compute(scheduler="sync"), expected.predict_proba(problem.X), rtol=1e-12)
    np.testing.assert_array_equal(
        stored(expected, tmp_path).predict_proba(problem.X), expected.predict_proba(problem.X)
    )


def test_models_without_probabilities(problem):
    assert not hasattr(classifier("hinge"), "predict_proba")
    for estimator, y in ((classifier("hinge"), problem.y > 0), (drf.KernelRidge(fourier(4)), problem.y)):
        model = estimator.fit(problem.X, y).model_
        with pytest.raises(InputError, match=f"a {type(estimator).__name__} has no probabilities"):
            model.predict_proba(problem.X)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("hinge", {"loss": "log"}, "loss must be one of 'hinge', 'squared_hinge', got 'log'"),
        (
            "hinge",
            {"solver": "lbfgs"},
            "solver='lbfgs' needs a loss with a continuous slope, which loss='hinge' is not; "
            "use solver='smoothed' or 'auto'",
        ),
        (
            "squared_hinge",
            {"solver": "smoothed"},
            "solver='smoothed' needs a loss whose slope jumps, which loss='squared_hinge' is not; "
            "use solver='lbfgs' or 'auto'",
        ),
        ("hinge", {"C": -1.0}, "C must be a positive number, got -1.0"),
        ("hinge", {"tol": "x"}, "tol must be a positive number, got 'x'"),
        ("hinge", {"max_sweeps": "a"}, "max_sweeps must be a positive integer or None, got 'a'"),
        ("logistic", {"C": 0}, "C must be a positive number, got 0"),
        ("logistic", {"C": "1"}, "C must be a positive number or 'cv', got '1'"),
        ("logistic", {"C": np.inf}, "C must be a positive number, got inf"),
        ("logistic", {"sigma": -1}, "sigma must be a positive number, got -1"),
        ("cauchy", {}, "noise must be one of 'logistic', 'probit', 'laplace', got 'cauchy'"),
        ("logistic", {"multi_class": "all"}, "multi_class must be one of 'ovr', 'softmax', got 'all'"),
        (
            "probit",
            {"multi_class": "softmax"},
            "multi_class='softmax' is for noise='logistic', got noise='probit'; use 'ovr'",
        ),
        (
            "logistic",
            {"solver": "gram"},
            "solver='gram' needs a squared loss, whose optimum follows from the Gram alone, which "
            "noise='logistic' is not; use solver='lbfgs' or 'auto'",
        ),
        ("logistic", {"Cs": [1.0, -1.0]}, "Cs must be positive and finite, got [1.0, -1.0]"),
        (
            "logistic",
            {"C": "cv", "cv": 1},
            "cv must be an integer of at least 2, the number of folds, got 1",
        ),
        ("logistic", {"tol": 0}, "tol must be a positive number, got 0"),
    ],
)
def test_parameters_that_cannot_be_used(problem, name, parameters, message):
    assert refusal(classifier(name, **parameters).fit, problem.X, classes_of(problem.y)) == message


def test_targets_that_cannot_be_used(problem):
    y = classes_of(problem.y, 3)
    for refused, message in (
        ((np.zeros(900),), "class"),
        ((y, np.zeros(900)), "all sample weights are zero"),
        ((np.where(problem.y > 0, np.nan, 1.0),), "NaN"),
    ):
        assert message in refusal(classifier("logistic").fit, problem.X, *refused)
    message = refusal(classifier("logistic", class_weight={1: 0.0}).fit, problem.X, y)
    assert "class_weight is 0 for the class 1; leave its rows out" in message


# Likelihood models against scikit-learn on the same features


def likelihood(C=1.0, **options):
    features = fourier(32, random_state=None)
    return drf.KernelLikelihoodClassifier(features, C, **({"random_state": 0} | options))


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("C", [0.1, 10.0])
def test_equals_logistic_regression_on_its_features(problem, C, fit_intercept):
    y = classes_of(problem.y)
    fitted = likelihood(C, fit_intercept=fit_intercept, tol=1e-8).fit(problem.X, y, problem.s)
    Z = fitted.features_.transform(problem.X)
    reference = LogisticRegression(C=C, fit_intercept=fit_intercept, tol=1e-10, max_iter=10_000).fit(
        Z, y, problem.s
    )
    ours = objective_of(fitted, "logistic", problem.X, 2.0 * y - 1, problem.s)
    F = reference.decision_function(Z)
    theirs = objective(Logistic(), C, reference.coef_, F, 2.0 * y - 1, problem.s)
    assert ours <= theirs * (1 + 1e-6)
    assert fitted.report_["primal"] == pytest.approx(ours, rel=1e-10)
    np.testing.assert_allclose(fitted.predict_proba(problem.X), reference.predict_proba(Z), atol=1e-3)


def test_the_certificate_is_in_the_report(problem):
    fitted = likelihood().fit(problem.X, classes_of(problem.y))
    r = fitted.report_
    assert r["status"] == "CONVERGED"
    assert 0 <= r["duality_gap"] <= r["tol"] == 1e-3
    assert r["duality_gap"] == pytest.approx((r["primal"] - r["dual"]) / r["primal"])
    assert r["sweep_labels"][:2] == ["column statistics", "Gram"]
    assert set(r["sweep_labels"][2:]) == {"margins"}
    assert "duality gap" in repr(r)


def test_plans_presume_light_sweeps(problem):
    plan = likelihood().plan(problem.X, classes_of(problem.y))
    assert plan.n_sweeps == 2 + margin_options._PRESUMED_SWEEPS
    assert plan.seconds > 0
    assert plan.cosines > 10 * 900 * 32


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("sigma", [1e-4, 1e-2, 100.0])
def test_sigma_and_C_are_redundant(problem, noise, sigma):
    y = problem.X[:, 0] > 0
    scaled = likelihood(10 * sigma**2, noise=noise, sigma=sigma, tol=1e-5).fit(problem.X, y)
    unit = likelihood(10.0, noise=noise, tol=1e-5).fit(problem.X, y)
    assert scaled.report_["primal"] == pytest.approx(sigma**2 * unit.report_["primal"], rel=1e-4)
    np.testing.assert_allclose(scaled.predict_proba(problem.X), unit.predict_proba(problem.X), atol=0.02)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_margins_beyond_all_curvature(problem):
    """Where every row is far on its side ℓ″ is 0: the preconditioner is then the penalty alone."""
    fitted = likelihood(1e12, noise="probit", max_sweeps=60).fit(problem.X, problem.X[:, 0] > 0)
    assert np.isfinite(fitted.coef_).all()
    assert fitted.score(problem.X, problem.X[:, 0] > 0) > 0.95


def test_classes_of_many_curvatures_share_few_factors(rng, monkeypatch):
    X = rng.standard_normal((4000, 3))
    y = np.minimum(rng.geometric(0.5, 4000) - 1, 7)
    made = []
    of = Preconditioner.of.__func__
    monkeypatch.setattr(Preconditioner, "of", classmethod(lambda cls, *a: made.append(a[1]) or of(cls, *a)))
    fitted = in_process(likelihood(10.0), X, y)
    assert fitted.report_["status"] == "CONVERGED"
    assert len(made) <= 6


# Softmax


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("C", [0.1, 10.0])
def test_softmax_equals_multinomial_regression(problem, C, fit_intercept):
    y = classes_of(problem.y, 4)
    fitted = likelihood(C, multi_class="softmax", fit_intercept=fit_intercept, tol=1e-6, dtype="float64").fit(
        problem.X, y, problem.s
    )
    Z = fitted.features_.transform(problem.X)
    reference = LogisticRegression(C=C, fit_intercept=fit_intercept, tol=1e-10, max_iter=10_000).fit(
        Z, y, problem.s
    )

    def value(P, W):
        return -C * (problem.s * np.log(P[np.arange(900), y])).sum() + 0.5 * np.vdot(W, W)

    theirs = value(reference.predict_proba(Z), reference.coef_)
    ours = value(fitted.predict_proba(problem.X), fitted.coef_)
    assert abs(ours - theirs) <= 1e-6 * theirs
    assert fitted.report_["primal"] == pytest.approx(ours, rel=1e-9)
    assert fitted.report_["duality_gap"] is None
    assert fitted.report_["relative_gradient"] <= 1e-6
    assert "relative gradient" in repr(fitted.report_)
    np.testing.assert_allclose(fitted.predict_proba(problem.X), reference.predict_proba(Z), atol=1e-4)


def test_softmax_of_two_classes_is_the_logistic_likelihood(problem):
    y = classes_of(problem.y)
    expected = likelihood(2.0).fit(problem.X, y)
    np.testing.assert_array_equal(
        likelihood(2.0, multi_class="softmax").fit(problem.X, y).coef_, expected.coef_
    )


def test_softmax_with_sigma_folds_and_files(problem, tmp_path):
    y = classes_of(problem.y, 3)
    unit = likelihood(10.0, multi_class="softmax", tol=1e-6).fit(problem.X, y)
    scaled = likelihood(10.0 * 0.1**2, multi_class="softmax", sigma=0.1, tol=1e-6).fit(problem.X, y)
    np.testing.assert_allclose(scaled.predict_proba(problem.X), unit.predict_proba(problem.X), atol=1e-3)
    P = unit.predict_proba(problem.X)
    np.testing.assert_array_equal(stored(unit, tmp_path).predict_proba(problem.X), P)
    searched = likelihood("cv", multi_class="softmax", Cs=[0.01, 1.0], cv=3).fit(problem.X, y)
    assert searched.cv_results_["fold_scores"].shape == (2, 3)
    assert searched.C_ == 1.0
    # Two classes have a dual bound, more have none.
    for labels, measure in ((y, "relative gradient"), (y > 0, "duality gap")):
        with pytest.warns(ConvergenceWarning, match=f"the {measure} is .* after light sweep 1"):
            likelihood(1e4, multi_class="softmax", max_sweeps=1).fit(problem.X, labels)


@pytest.mark.parametrize("noise", list(NOISES))
def test_many_digits_may_take_the_hessian(problem, noise):
    y = classes_of(problem.y)
    fitted = likelihood(1e4, noise=noise, tol=1e-9).fit(problem.X, y, problem.s)
    assert fitted.report_["status"] == "CONVERGED"
    labels = fitted.report_["sweep_labels"]
    assert "Hessian" not in labels or labels.index("Hessian") >= 12  # after ten light sweeps
