"""Likelihood models against scikit-learn and generic solvers on the same features."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_ndtr
from scipy.stats import norm
from sklearn.calibration import calibration_curve
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

import distrff as drf
from distrff.errors import FrequencyMismatch, InputError
from distrff.estimators.fitting import options as margin_options
from distrff.estimators.fitting.margin_oracle import MarginOracle
from distrff.model.persistence import load_model
from distrff.reductions.margins import MarginReduction
from distrff.solvers.lbfgs import Preconditioner
from distrff.solvers.losses import NOISES


def machine(C=1.0, **options):
    return drf.KernelLikelihoodClassifier(
        drf.FourierFeatures(drf.Gaussian(2.0), 32), C, **({"random_state": 0} | options)
    )


def labels_of(problem, n_classes=2):
    edges = np.quantile(problem.y, np.linspace(0, 1, n_classes + 1)[1:-1])
    return np.searchsorted(edges, problem.y)


def objective(fitted, noise, problem, y, s, output=0):
    """The objective of one output's model, recomputed from its own features."""
    Z = fitted.features_.transform(problem.X)
    w, b = fitted.coef_[output], fitted.intercept_[output]
    loss = NOISES[noise](fitted.sigma)
    return fitted.C * (s * loss.value(Z @ w + b, y)).sum() + 0.5 * w @ w


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("C", [0.1, 10.0])
def test_equals_logistic_regression_on_its_features(problem, C, fit_intercept):
    y = labels_of(problem)
    fitted = machine(C, fit_intercept=fit_intercept, tol=1e-8).fit(problem.X, y, problem.s)
    Z = fitted.features_.transform(problem.X)
    reference = LogisticRegression(C=C, fit_intercept=fit_intercept, tol=1e-10, max_iter=10_000).fit(
        Z, y, problem.s
    )
    ours = objective(fitted, "logistic", problem, 2.0 * y - 1, problem.s)
    w, b = reference.coef_[0], reference.intercept_[0] if fit_intercept else 0.0
    theirs = C * (problem.s * NOISES["logistic"]().value(Z @ w + b, 2.0 * y - 1)).sum() + 0.5 * w @ w
    assert ours <= theirs * (1 + 1e-6)
    assert fitted.report_["primal"] == pytest.approx(ours, rel=1e-10)
    np.testing.assert_allclose(fitted.predict_proba(problem.X), reference.predict_proba(Z), atol=1e-3)


@pytest.mark.parametrize("noise", ["probit", "laplace"])
def test_equals_a_general_solver(problem, noise):
    y = labels_of(problem)
    fitted = machine(2.0, noise=noise, sigma=0.7, tol=1e-8).fit(problem.X, y, problem.s)
    Z, signs, loss = fitted.features_.transform(problem.X), 2.0 * y - 1, NOISES[noise](0.7)

    def value(x):
        f = Z @ x[:-1] + x[-1]
        slope = 2.0 * problem.s * loss.derivative(f, signs)
        return 2.0 * (problem.s * loss.value(f, signs)).sum() + 0.5 * x[:-1] @ x[:-1], np.append(
            slope @ Z + x[:-1], slope.sum()
        )

    best = minimize(value, np.zeros(33), jac=True, method="BFGS", options={"gtol": 1e-9}).fun
    assert objective(fitted, noise, problem, signs, problem.s) == pytest.approx(best, rel=1e-6)
    assert fitted.report_["dual"] <= best * (1 + 1e-9)


def test_the_probit_machine_approaches_that_of_the_exact_kernel(problem):
    """The representer theorem's f = Kα, penalty ½αᵀKα, is the limit of many features."""
    X, y = problem.X[:150], 2.0 * labels_of(problem)[:150] - 1
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


@pytest.mark.parametrize("noise", NOISES)
def test_many_classes_are_one_against_the_rest(problem, noise):
    y = labels_of(problem, 3)
    fitted = machine(noise=noise, tol=1e-6).fit(problem.X, np.array(["a", "b", "c"])[y])
    assert fitted.classes_.tolist() == ["a", "b", "c"]
    assert fitted.coef_.shape == (3, 32)
    for output in range(3):
        alone = machine(noise=noise, tol=1e-6).fit(problem.X, y == output)
        ours = objective(fitted, noise, problem, np.where(y == output, 1.0, -1.0), np.ones(900), output)
        assert ours == pytest.approx(
            objective(alone, noise, problem, np.where(y == output, 1.0, -1.0), np.ones(900)), rel=1e-5
        )
    P = fitted.predict_proba(problem.X)
    np.testing.assert_allclose(P.sum(axis=1), 1, rtol=1e-12)
    assert (fitted.classes_[P.argmax(axis=1)] == fitted.predict(problem.X)).all()


def test_probabilities_are_calibrated(rng):
    X = rng.standard_normal((6000, 2))
    p = 1 / (1 + np.exp(-3 * np.sin(X[:, 0]) - X[:, 1]))
    y = rng.random(6000) < p
    fitted = machine(1.0).fit(X[:4000], y[:4000])
    Z = fitted.features_.transform(X)
    reference = LogisticRegression(C=1.0).fit(Z[:4000], y[:4000])
    ours, theirs = fitted.predict_proba(X[4000:])[:, 1], reference.predict_proba(Z[4000:])[:, 1]
    np.testing.assert_allclose(ours, theirs, atol=0.05)
    share, told = calibration_curve(y[4000:], ours, n_bins=5, strategy="quantile")
    # Five bins of 400 rows: shares have standard errors of at most 0.025.
    assert np.abs(share - told).max() < 0.1


def test_class_weights_are_row_weights(problem):
    y = labels_of(problem, 3)
    by_class = np.array([0.5, 1.0, 3.0])
    weighted = machine(class_weight=dict(enumerate(by_class)), tol=1e-6).fit(problem.X, y)
    rows = machine(tol=1e-6).fit(problem.X, y, by_class[y])
    np.testing.assert_allclose(weighted.coef_, rows.coef_, atol=1e-8)


def test_rows_of_any_storage_give_the_same_machine(problem, tmp_path):
    y = labels_of(problem)
    with dask.config.set(scheduler="synchronous"):
        expected = machine().fit(problem.X, y)
        lazy = machine().fit(da.from_array(problem.X, chunks=(123, 4)), da.from_array(y, chunks=200))
        np.testing.assert_array_equal(lazy.coef_, expected.coef_)
        P = expected.predict_proba(da.from_array(problem.X, chunks=(123, 4)))
        assert P.chunks == ((123,) * 7 + (39,), (2,))
        np.testing.assert_allclose(P.compute(), expected.predict_proba(problem.X), rtol=1e-12)
    expected.save(str(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(
        load_model(str(tmp_path / "model.zarr")).predict_proba(problem.X), expected.predict_proba(problem.X)
    )
    with pytest.raises(InputError, match="a KernelRidge tells no probabilities"):
        drf.KernelRidge(drf.FourierFeatures(n_components=4)).fit(problem.X, problem.y).model_.predict_proba(
            problem.X
        )


def test_the_certificate_is_in_the_report(problem):
    fitted = machine().fit(problem.X, labels_of(problem))
    r = fitted.report_
    assert r["status"] == "CONVERGED"
    assert 0 <= r["duality_gap"] <= r["tol"] == 1e-3
    assert r["duality_gap"] == pytest.approx((r["primal"] - r["dual"]) / r["primal"])
    assert r["sweep_labels"][:2] == ["column statistics", "Gram"]
    assert set(r["sweep_labels"][2:]) == {"margins"}
    assert "duality gap" in repr(r)


def test_too_few_sweeps_are_a_warning(problem):
    with pytest.warns(
        ConvergenceWarning, match=r"the duality gap is .* after light sweep 1, above tol=1e-09; allow more"
    ):
        fitted = machine(100.0, max_sweeps=1, tol=1e-9).fit(problem.X, labels_of(problem))
    assert fitted.report_["status"] == "NOT_CONVERGED"
    assert fitted.predict(problem.X).shape == (900,)


def test_an_interrupted_fit_keeps_the_best_machine(problem, monkeypatch):
    evaluate, n_calls = MarginOracle.evaluate, 0

    def interrupted(self, points):
        nonlocal n_calls
        n_calls += 1
        if n_calls == 3:
            raise KeyboardInterrupt
        return evaluate(self, points)

    monkeypatch.setattr(MarginOracle, "evaluate", interrupted)
    estimator = machine(100.0, tol=1e-9)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(problem.X, labels_of(problem))
    assert estimator.report_["status"] == "INTERRUPTED"
    assert estimator.score(problem.X, labels_of(problem)) > 0.7


def test_plans_presume_light_sweeps(problem):
    plan = machine().plan(problem.X, labels_of(problem))
    assert plan.n_sweeps == 2 + margin_options._PRESUMED_SWEEPS
    assert plan.seconds > 0
    assert plan.cosines > 10 * 900 * 32


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"C": 0}, "C must be a positive number, got 0"),
        ({"C": "1"}, "C must be a positive number or 'cv', got '1'"),
        ({"C": np.inf}, "C must be a positive number, got inf"),
        ({"sigma": -1}, "sigma must be a positive number, got -1"),
        ({"noise": "cauchy"}, "noise must be one of 'logistic', 'probit', 'laplace', got 'cauchy'"),
        ({"multi_class": "all"}, "multi_class must be one of 'ovr', 'softmax', got 'all'"),
        (
            {"multi_class": "softmax", "noise": "probit"},
            "multi_class='softmax' is for noise='logistic', got noise='probit'; use 'ovr'",
        ),
        (
            {"solver": "gram"},
            "solver='gram' needs a squared loss, whose optimum follows from the Gram alone, which "
            "noise='logistic' is not; use solver='lbfgs' or 'auto'",
        ),
        ({"Cs": [1.0, -1.0]}, "Cs must be positive and finite, got [1.0, -1.0]"),
        ({"C": "cv", "cv": 1}, "cv must be an integer of at least 2, the number of folds, got 1"),
        ({"tol": 0}, "tol must be a positive number, got 0"),
    ],
)
def test_parameters_that_cannot_be_used(problem, parameters, message):
    with pytest.raises(InputError) as refused:
        machine(**parameters).fit(problem.X, labels_of(problem))
    assert str(refused.value) == message


def test_targets_that_cannot_be_used(problem):
    with pytest.raises(InputError, match="class"):
        machine().fit(problem.X, np.zeros(900))
    with pytest.raises(InputError, match="all sample weights are zero"):
        machine().fit(problem.X, labels_of(problem), np.zeros(900))
    with pytest.raises(InputError, match="NaN"):
        machine().fit(problem.X, np.where(problem.y > 0, np.nan, 1.0))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("sigma", [1e-4, 1e-2, 100.0])
def test_sigma_and_C_are_redundant(problem, noise, sigma):
    y = problem.X[:, 0] > 0
    scaled = machine(10 * sigma**2, noise=noise, sigma=sigma, tol=1e-5).fit(problem.X, y)
    unit = machine(10.0, noise=noise, tol=1e-5).fit(problem.X, y)
    assert scaled.report_["primal"] == pytest.approx(sigma**2 * unit.report_["primal"], rel=1e-4)
    np.testing.assert_allclose(scaled.predict_proba(problem.X), unit.predict_proba(problem.X), atol=0.02)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_margins_beyond_all_curvature(problem):
    """Where every row is far on its side ℓ″ is 0: the preconditioner is then the penalty alone."""
    fitted = machine(1e12, noise="probit", max_sweeps=60).fit(problem.X, problem.X[:, 0] > 0)
    assert np.isfinite(fitted.coef_).all()
    assert fitted.score(problem.X, problem.X[:, 0] > 0) > 0.95


def test_classes_of_many_curvatures_share_few_factors(rng, monkeypatch):
    X = rng.standard_normal((4000, 3))
    y = np.minimum(rng.geometric(0.5, 4000) - 1, 7)
    made = []
    of = Preconditioner.of.__func__
    monkeypatch.setattr(Preconditioner, "of", classmethod(lambda cls, *a: made.append(a[1]) or of(cls, *a)))
    with dask.config.set(scheduler="synchronous"):
        fitted = machine(10.0).fit(X, y)
    assert fitted.report_["status"] == "CONVERGED"
    assert len(made) <= 6


def test_a_class_of_no_weight_is_refused(problem):
    with pytest.raises(InputError, match="class_weight is 0 for the class 1; leave its rows out"):
        machine(class_weight={1: 0.0}).fit(problem.X, labels_of(problem, 3))


def test_frequencies_are_sent_along_to_a_worker_that_derives_others(problem, monkeypatch):
    update, n_calls = MarginReduction.update, 0

    def mismatch_once(self, sums, rows, arrays):
        nonlocal n_calls
        n_calls += 1
        if n_calls == 1:
            raise FrequencyMismatch("others")
        assert "map_W" in arrays or len(arrays) > 2
        return update(self, sums, rows, arrays)

    expected = machine().fit(problem.X, labels_of(problem))
    monkeypatch.setattr(MarginReduction, "update", mismatch_once)
    with dask.config.set(scheduler="synchronous"):
        fitted = machine().fit(problem.X, labels_of(problem))
    np.testing.assert_allclose(fitted.coef_, expected.coef_, rtol=1e-6)


# Softmax


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("C", [0.1, 10.0])
def test_softmax_equals_multinomial_regression(problem, C, fit_intercept):
    y = labels_of(problem, 4)
    fitted = machine(C, multi_class="softmax", fit_intercept=fit_intercept, tol=1e-6, dtype="float64").fit(
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


def test_softmax_of_two_classes_is_the_logistic_machine(problem):
    y = labels_of(problem)
    expected = machine(2.0).fit(problem.X, y)
    np.testing.assert_array_equal(machine(2.0, multi_class="softmax").fit(problem.X, y).coef_, expected.coef_)


def test_softmax_with_sigma_folds_and_files(problem, tmp_path):
    y = labels_of(problem, 3)
    unit = machine(10.0, multi_class="softmax", tol=1e-6).fit(problem.X, y)
    scaled = machine(10.0 * 0.1**2, multi_class="softmax", sigma=0.1, tol=1e-6).fit(problem.X, y)
    np.testing.assert_allclose(scaled.predict_proba(problem.X), unit.predict_proba(problem.X), atol=1e-3)
    unit.save(str(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(
        load_model(str(tmp_path / "model.zarr")).predict_proba(problem.X), unit.predict_proba(problem.X)
    )
    searched = machine("cv", multi_class="softmax", Cs=[0.01, 1.0], cv=3).fit(problem.X, y)
    assert searched.cv_results_["fold_scores"].shape == (2, 3)
    assert searched.C_ == 1.0
    with pytest.warns(ConvergenceWarning, match=r"the relative gradient is .* after light sweep 1"):
        machine(10.0, multi_class="softmax", max_sweeps=1).fit(problem.X, y)


@pytest.mark.parametrize("noise", list(NOISES))
def test_many_digits_may_take_the_hessian(problem, noise):
    y = labels_of(problem)
    fitted = machine(1e4, noise=noise, tol=1e-9).fit(problem.X, y, problem.s)
    assert fitted.report_["status"] == "CONVERGED"
    labels = fitted.report_["sweep_labels"]
    assert "Hessian" not in labels or labels.index("Hessian") >= 12  # after ten light sweeps
