"""Margin machines on random binning: light sweeps, a diagonal preconditioner, certified as ever."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from scipy.optimize import minimize

import distrff as drf
from distrff.errors import InputError, PlanRefused
from distrff.losses import Logistic


def features(rng, n_bins=None):
    return drf.RandomBinningFeatures(
        drf.Laplacian(2.0), 20, n_bins=n_bins, random_state=int(rng.integers(2**32))
    )


def rows(rng, n=300):
    X = rng.standard_normal((n, 3))
    return X, np.where(X[:, 0] * X[:, 1] + 0.3 * rng.standard_normal(n) > 0, "same", "other")


@pytest.mark.parametrize("n_bins", [None, 400])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("loss", "tol"), [("hinge", 2e-2), ("squared_hinge", 1e-4)])
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


def test_a_dataset_gives_the_machine_of_the_array_and_is_stored(rng, tmp_path):
    X, y = rows(rng)
    machine = drf.KernelSVC(features(rng), loss="squared_hinge", random_state=0)
    found = machine.fit(X, y)
    lazy = drf.KernelSVC(**machine.get_params(deep=False)).fit(
        da.from_array(X, chunks=(90, 2)), da.from_array(y, chunks=70)
    )
    np.testing.assert_array_equal(lazy.coef_, found.coef_)
    found.save(str(tmp_path / "model.zarr"))
    stored = drf.load_model(str(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(stored.decision(X).ravel(), found.decision_function(X))


@pytest.mark.parametrize("options", [dict(solver="sgd"), dict(C=np.inf)])
def test_what_needs_dense_features_is_refused(rng, options):
    with pytest.raises(InputError, match="FourierFeatures or NystroemFeatures"):
        drf.KernelSVC(features(rng), **options).fit(*rows(rng, 20))


def test_a_plan_that_does_not_fit_names_n_bins(rng):
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=None, memory_limit="1GB") as cluster,
        Client(cluster),
        pytest.raises(PlanRefused, match="n_bins="),
    ):
        drf.KernelSVC(features(rng, 50_000_000)).fit(*rows(rng, 20))
