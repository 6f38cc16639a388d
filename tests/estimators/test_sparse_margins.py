"""Margin models on random binning: light sweeps, a diagonal preconditioner, certified as ever."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from scipy.optimize import minimize

import distrff as drf
from distrff.errors import InputError, PlanRefused
from distrff.solvers.losses import Logistic


def features(rng, n_bins=None):
    return drf.RandomBinningFeatures(
        drf.Laplacian(2.0), 20, n_bins=n_bins, random_state=int(rng.integers(2**32))
    )


def rows(rng, n=300):
    X = rng.standard_normal((n, 3))
    return X, np.where(X[:, 0] * X[:, 1] + 0.3 * rng.standard_normal(n) > 0, "same", "other")


@pytest.mark.parametrize("n_bins", [None, 400])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("loss", "tol"), [("hinge", 1e-3), ("squared_hinge", 1e-4)])
def test_the_gap_of_support_vector_machines_is_closed(rng, n_bins, fit_intercept, loss, tol):
    (X, y), s = rows(rng), rng.uniform(0.2, 2, 300)
    found = drf.KernelSVC(
        features(rng, n_bins), loss=loss, tol=tol, fit_intercept=fit_intercept, random_state=0
    )
    found.fit(X, y, s)
    assert found.report_["status"] == "CONVERGED"
    assert found.report_["duality_gap"] <= tol
    w = found.coef_.ravel()
    F = found.features_.transform(X) @ w + found.intercept_
    slack = np.maximum(0, 1 - np.where(y == found.classes_[1], F, -F)) ** (1 if loss == "hinge" else 2)
    assert found.report_["primal"] == pytest.approx(s @ slack + w @ w / 2, rel=1e-6)


def test_logistic_machines_agree_with_a_dense_solve(rng):
    """Strong convexity: ½‖w − w*‖² ≤ the certified gap of the objective."""
    X, y = rows(rng)
    found = drf.KernelLikelihoodClassifier(features(rng), C=2.0, tol=1e-6, random_state=0).fit(X, y)
    Z, t = found.features_.transform(X).toarray(), np.where(y == found.classes_[1], 1.0, -1.0)
    loss = Logistic(1.0)

    def objective(x):
        F = Z @ x[:-1] + x[-1]
        slopes = 2.0 * loss.derivative(F, t)
        return 2.0 * loss.value(F, t).sum() + x[:-1] @ x[:-1] / 2, np.append(
            Z.T @ slopes + x[:-1], slopes.sum()
        )

    best = minimize(objective, np.zeros(Z.shape[1] + 1), jac=True, options={"maxiter": 2000, "gtol": 1e-7})
    mine = objective(np.append(found.coef_.ravel(), found.intercept_))[0]
    assert mine <= best.fun * (1 + 1e-5)
    assert np.linalg.norm(found.coef_.ravel() - best.x[:-1]) <= 2 * np.sqrt(2 * 1e-5 * best.fun)


def test_many_classes_and_C_by_folds(rng):
    X, _ = rows(rng)
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
    found = drf.KernelLikelihoodClassifier(features(rng), C="cv", Cs=[0.1, 10.0], cv=3).fit(X, y)
    assert found.C_ in (0.1, 10.0)
    assert found.score(X, y) > 0.6
    softmax = drf.KernelLikelihoodClassifier(features(rng), multi_class="softmax").fit(X, y)
    assert softmax.score(X, y) > 0.6
    assert softmax.predict_proba(X).shape == (300, 3)




def test_models_of_few_rows_end_the_hinge(rng, monkeypatch):
    """Of so few that they must grow."""
    monkeypatch.setattr("distrff.reductions.margins._LEAST_KEPT", 40)
    monkeypatch.setattr("distrff.reductions.margins._KEPT_ENTRIES", 800)
    X, y = rows(rng, 600)
    binned = features(rng).fit(X)
    found = drf.KernelSVC(binned, 5.0, random_state=0).fit(X, y)
    assert found.report_["status"] == "CONVERGED"
    monkeypatch.undo()
    whole = drf.KernelSVC(binned, 5.0, tol=1e-4, random_state=0).fit(X, y)
    assert whole.report_["dual"] <= found.report_["primal"] * (1 + 1e-9)
    assert found.report_["primal"] <= whole.report_["primal"] * (1 + 1.1e-3)


SGD_MACHINES = [
    (drf.KernelSVC, {}),
    (drf.KernelSVC, {"loss": "squared_hinge", "fit_intercept": False}),
    (drf.KernelLikelihoodClassifier, {"noise": "probit"}),
]


@pytest.mark.parametrize("C", [0.1, 1.0])
@pytest.mark.parametrize(("kind", "options"), SGD_MACHINES)
def test_sgd_comes_within_one_percent(rng, kind, options, C):
    X, y = rows(rng, 1500)
    s = rng.uniform(0.5, 1.5, len(X))
    binned = features(rng).fit(X)
    fitted = kind(binned, C, solver="sgd", random_state=0, **options).fit(X, y, s)
    exact = kind(binned, C, random_state=0, **options).fit(X, y, s)
    assert fitted.report_["solver"] == "sgd"
    assert fitted.report_["status"] in ("CONVERGED", "CONVERGED_UNCERTIFIED")
    assert fitted.report_["primal"] <= 1.01 * exact.report_["primal"]
    assert fitted.report_["duality_gap"] >= 0
    assert fitted.report_["dual"] <= exact.report_["primal"] * (1 + 1e-6)


@pytest.mark.parametrize("n_bins", [None, 200])
def test_ridge_by_sgd(rng, n_bins):
    X = rng.standard_normal((1500, 3))
    Y = np.column_stack([X[:, 0] * X[:, 1], 100 + X[:, 2]]) + 0.3 * rng.standard_normal((1500, 2))
    binned = features(rng, n_bins).fit(X)
    fitted = drf.KernelRidge(binned, 1.0, solver="sgd", tol=1e-6, random_state=0).fit(X, Y)
    exact = drf.KernelRidge(binned, 1.0, tol=1e-8, random_state=0).fit(X, Y)
    assert (np.abs(fitted.predict(X) - exact.predict(X)) < 0.05 * Y.std(axis=0)).all()
    assert fitted.report_["solver"] == "sgd"


def test_sgd_is_planned_and_gives_the_same_machine_for_any_chunks(rng):
    X, y = rows(rng, 700)
    machine = drf.KernelSVC(features(rng), 0.1, solver="sgd", random_state=0)
    plan = machine.plan(X, y)
    assert "SGD" in str(plan)
    assert plan.seconds > 0
    with dask.config.set(scheduler="synchronous"):
        found = machine.fit(X, y)
        lazy = drf.KernelSVC(**machine.get_params(deep=False)).fit(
            da.from_array(X, chunks=(90, 2)), da.from_array(y, chunks=70)
        )
    assert found.plan_.size.n_features == found.coef_.size
    np.testing.assert_array_equal(lazy.coef_, found.coef_)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda f: drf.KernelSVC(f, C=np.inf), "needs dense features.*'smoothed' for the hinge"),
        (lambda f: drf.KernelRidge(f, solver="gram"), "needs a Gram.*'auto' or 'cg'.*or 'sgd' with a number"),
        (lambda f: drf.KernelRidge(f, alpha="cv", solver="sgd"), "choose alpha by solver='cg'"),
    ],
)
def test_what_needs_dense_features_is_refused(rng, build, message):
    X, y = rows(rng, 20)
    with pytest.raises(InputError, match=message):
        build(features(rng)).fit(X, y == "same")


@pytest.mark.parametrize("solver", ["auto", "sgd"])
def test_a_plan_that_does_not_fit_names_n_bins(rng, solver):
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=None, memory_limit="1GB") as cluster,
        Client(cluster),
        pytest.raises(PlanRefused, match="n_bins="),
    ):
        drf.KernelSVC(features(rng, 50_000_000), solver=solver).fit(*rows(rng, 20))
