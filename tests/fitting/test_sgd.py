"""SGD against the solvers that close the gap, for every loss, and what it says of itself."""

from itertools import product

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import distrff as drf
from distrff.errors import DataWarning, InputError, PlanRefused
from distrff.fitting.sgd import _SGDOracle
from tests.support.fits import LOSSES, fourier, interrupt_after, margin_classifier

N = 6000
FEATURES = fourier(64, 1.5, random_state=None)
BINS = drf.RandomBinningFeatures(drf.Laplacian(2.0), 20, random_state=0)
HASHED = drf.RandomBinningFeatures(drf.Laplacian(2.0), 20, n_bins=200, random_state=0)
CASES = [
    *(
        (FEATURES, loss, C, fit_intercept)
        for loss in LOSSES
        for C, fit_intercept in [(0.01, True), (1.0, False)]
    ),
    *product([BINS], ["hinge", "probit"], [0.1, 1.0], [True]),
    *product([BINS], ["squared_hinge"], [0.1, 1.0], [False]),
]


@pytest.fixture
def rows(rng):
    X = rng.standard_normal((N, 3))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
    return X, f + 0.3 * rng.standard_normal(N), rng.uniform(0.5, 1.5, N)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("features", "loss", "C", "fit_intercept"), CASES, ids=str)
def test_within_one_percent_of_the_optimum(rows, features, loss, C, fit_intercept):
    n = N if features is FEATURES else 1500
    data = rows[0][:n], rows[1][:n] > 0.2, rows[2][:n]
    options = {"sigma": 0.5} if (features, loss) == (FEATURES, "probit") else {}
    options |= {"fit_intercept": fit_intercept}
    # An epoch and its evaluation are two sweeps: twenty epochs at most, of so few rows. On bins epochs gain
    # less each: one of about 25 draws stopped 14 times tol above the optimum, at the default tol 1.4 %.
    most = {"max_sweeps": 41} if features is FEATURES else {"tol": 1e-4, "max_sweeps": 400}
    fitted = margin_classifier(loss, features, C, solver="sgd", **most, **options).fit(*data)
    exact = margin_classifier(loss, features, C, **options).fit(*data)
    assert fitted.report_["primal"] <= 1.01 * exact.report_["primal"]
    assert fitted.report_["duality_gap"] >= 0
    assert fitted.report_["dual"] <= exact.report_["primal"] * (1 + 1e-6)
    assert fitted.report_["solver"] == "sgd"
    assert "epoch" in fitted.report_["sweep_labels"]
    assert "Gram" not in fitted.report_["sweep_labels"]
    assert fitted.plan_.size.n_features == fitted.coef_.size
    if features is BINS:
        assert fitted.report_["status"] in ("CONVERGED", "CONVERGED_UNCERTIFIED")


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("features", "most"), [(FEATURES, 0.02), (BINS, 0.05), (HASHED, 0.05)], ids=str)
def test_ridge(rows, features, most, fit_intercept):
    X, y, s = (A[: N if features is FEATURES else 1500] for A in rows)
    Y = np.column_stack([y, 100 + 10 * y])
    options = {"fit_intercept": fit_intercept, "random_state": 0}
    fitted = drf.KernelRidge(features, 1.0, solver="sgd", tol=1e-6, scale="none", **options).fit(X, Y, s)
    exact = drf.KernelRidge(features, 1.0, tol=1e-8, scale="none", **options).fit(X, Y, s)
    errors = fitted.predict(X) - exact.predict(X)
    assert (np.abs(errors) < most * Y.std(axis=0)).all()
    assert fitted.report_["solver"] == "sgd"
    assert fitted.report_["duality_gap"] < 1e-3
    with pytest.raises(InputError, match=r"solver='sgd' does not form|too many for one"):
        fitted.predict(X, return_std=True)


def test_sorted_rows_are_a_warning(rows):
    X, y, _ = rows
    order = np.argsort(X[:, 0])
    with pytest.warns(DataWarning, match="there is drift along the rows in y, column 0 of X"):
        drf.KernelSVC(FEATURES, 0.1, solver="sgd", random_state=0).fit(X[order], y[order] > 0)


@pytest.fixture
def few_sampled(monkeypatch):
    """The ridge model of all rows, where SGD starts on so few, would be the optimum already."""
    monkeypatch.setattr("distrff.fitting.sgd.metric_rows", lambda *_: 500)


@pytest.mark.usefixtures("few_sampled")
def test_too_few_sweeps_are_a_warning(rows):
    X, y, _ = rows
    with pytest.warns(ConvergenceWarning, match=r"still fell by more than tol=1e-09 in light sweep 3;"):
        fitted = drf.KernelSVC(FEATURES, 10.0, solver="sgd", tol=1e-9, max_sweeps=3).fit(X, y > 0)
    assert fitted.report_["status"] == "NOT_CONVERGED"
    with pytest.warns(ConvergenceWarning, match="allow more by max_sweeps"):
        drf.KernelRidge(FEATURES, 0.1, solver="sgd", tol=1e-15, max_sweeps=1).fit(X, y)


@pytest.mark.usefixtures("few_sampled")
@pytest.mark.parametrize("build", [drf.KernelSVC, drf.KernelRidge])
def test_an_interrupted_fit_keeps_the_best_model(rows, monkeypatch, build):
    data = rows[0], rows[1] > 0 if build is drf.KernelSVC else rows[1]
    interrupt_after(monkeypatch, _SGDOracle, ("epoch",), 0)
    estimator = build(FEATURES, 1.0, solver="sgd", tol=1e-15, random_state=0)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(*data)
    assert estimator.report_["status"] == "INTERRUPTED"
    assert estimator.score(*data) > 0.5


def test_auto_takes_it_where_no_gram_fits(rows, monkeypatch):
    X, y, _ = rows
    monkeypatch.setattr("distrff.fitting.cost.Plan.fits", property(lambda plan: plan.solver == "sgd"))
    fitted = drf.KernelSVC(FEATURES, 1.0, random_state=0).fit(X, y > 0)
    assert fitted.report_["solver"] == "sgd"
    assert "does not fit in the workers' memory" in repr(fitted.report_)
    for options in ({"solver": "smoothed"}, {"C": "cv"}, {"C": np.inf}):
        with pytest.raises(PlanRefused, match="the plan needs"):
            drf.KernelSVC(FEATURES, **options).fit(X, y > 0)
