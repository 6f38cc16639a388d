"""Margin models on random binning: light sweeps, a diagonal preconditioner, certified as ever."""

from __future__ import annotations

import numpy as np
import pytest

import distrff as drf
from distrff.solvers.losses import Logistic
from tests.support.fits import objective_of, smallest_objective


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
def test_the_gap_of_support_vector_models_is_closed(rng, n_bins, fit_intercept, loss, tol):
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


def test_logistic_models_agree_with_a_dense_solve(rng):
    """Strong convexity: ½‖w − w*‖² ≤ the certified gap of the objective."""
    X, y = rows(rng)
    found = drf.KernelLikelihoodClassifier(features(rng), C=2.0, tol=1e-6, random_state=0).fit(X, y)
    Z, t = found.features_.transform(X).toarray(), np.where(y == found.classes_[1], 1.0, -1.0)
    best = smallest_objective(Logistic(), 2.0, Z, t, 1.0, maxiter=2000, gtol=1e-7)
    assert objective_of(found, "logistic", X, t, 1.0) <= best.fun * (1 + 1e-5)
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
    monkeypatch.setattr("distrff.reductions.margins._MIN_KEPT", 40)
    monkeypatch.setattr("distrff.reductions.margins._KEPT_ENTRIES", 800)
    X, y = rows(rng, 600)
    binned = features(rng).fit(X)
    found = drf.KernelSVC(binned, 5.0, random_state=0).fit(X, y)
    assert found.report_["status"] == "CONVERGED"
    monkeypatch.undo()
    whole = drf.KernelSVC(binned, 5.0, tol=1e-4, random_state=0).fit(X, y)
    assert whole.report_["dual"] <= found.report_["primal"] * (1 + 1e-9)
    assert found.report_["primal"] <= whole.report_["primal"] * (1 + 1.1e-3)
