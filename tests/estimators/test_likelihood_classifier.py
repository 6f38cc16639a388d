"""Likelihood models against scikit-learn and generic solvers on the same features."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_ndtr
from scipy.stats import norm
from sklearn.calibration import calibration_curve
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

import distrff as drf
from distrff.estimators.fitting import options as margin_options
from distrff.solvers.lbfgs import Preconditioner
from distrff.solvers.losses import NOISES, Logistic
from tests.support.fits import classes_of, fourier, in_process, objective, objective_of, stored


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


def test_the_probit_model_approaches_that_of_the_exact_kernel(problem):
    """The representer theorem's f = Kα, penalty ½αᵀKα, is the limit of many features."""
    X, y = problem.X[:150], 2.0 * classes_of(problem.y)[:150] - 1
    K = drf.Gaussian(2.0)(X, X)

    def value(a):
        f = K @ a
        slope = -y * np.exp(norm.logpdf(y * f) - log_ndtr(y * f))
        return -log_ndtr(y * f).sum() + 0.5 * a @ f, K @ (slope + a)

    exact = K @ minimize(value, np.zeros(150), jac=True, method="BFGS", options={"gtol": 1e-7}).x
    errors = []
    for n_components in (64, 4096):
        features = drf.FourierFeatures(drf.Gaussian(2.0), n_components, random_state=1)
        fitted = drf.KernelLikelihoodClassifier(features, noise="probit", fit_intercept=False, tol=1e-6).fit(
            X, y
        )
        errors.append(np.sqrt(np.mean((fitted.decision_function(X) - exact) ** 2)))
    # 64 times the features are 8 times less error, give or take what two draws differ.
    assert errors[1] < errors[0] / 3
    assert errors[1] < 0.1 * np.std(exact)


def test_probabilities_are_calibrated(rng):
    X = rng.standard_normal((6000, 2))
    p = 1 / (1 + np.exp(-3 * np.sin(X[:, 0]) - X[:, 1]))
    y = rng.random(6000) < p
    fitted = likelihood(1.0).fit(X[:4000], y[:4000])
    Z = fitted.features_.transform(X)
    reference = LogisticRegression(C=1.0).fit(Z[:4000], y[:4000])
    ours, theirs = fitted.predict_proba(X[4000:])[:, 1], reference.predict_proba(Z[4000:])[:, 1]
    np.testing.assert_allclose(ours, theirs, atol=0.05)
    share, told = calibration_curve(y[4000:], ours, n_bins=5, strategy="quantile")
    # Five bins of 400 rows: shares have standard errors of at most 0.025.
    assert np.abs(share - told).max() < 0.1


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
    with pytest.warns(ConvergenceWarning, match=r"the relative gradient is .* after light sweep 1"):
        likelihood(10.0, multi_class="softmax", max_sweeps=1).fit(problem.X, y)


@pytest.mark.parametrize("noise", list(NOISES))
def test_many_digits_may_take_the_hessian(problem, noise):
    y = classes_of(problem.y)
    fitted = likelihood(1e4, noise=noise, tol=1e-9).fit(problem.X, y, problem.s)
    assert fitted.report_["status"] == "CONVERGED"
    labels = fitted.report_["sweep_labels"]
    assert "Hessian" not in labels or labels.index("Hessian") >= 12  # after ten light sweeps
