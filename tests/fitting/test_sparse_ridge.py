"""Models on random binning: light sweeps over sparse features, without a Gram of the bins."""

import dask.array as da
import numpy as np
import pytest

import distrff as drf
from distrff.engine import tasks as engine_tasks
from distrff.engine.run import Run
from distrff.errors import InputError, PlanRefused
from distrff.features import binning as occupied_bins
from distrff.fitting import cg as conjugate_plan
from distrff.fitting.cg import PRESUMED_SWEEPS_AN_ALPHA
from distrff.fitting.cost import PRESUMED_SWEEPS


def rows(rng, n=400, d=3):
    X = rng.standard_normal((n, d))
    return X, np.stack([np.sin(2 * X[:, 0]) + X[:, 1], X[:, 1] * X[:, 2]], axis=1)


def features(rng, n_bins=None):
    seed = int(rng.integers(2**32))
    return drf.RandomBinningFeatures(drf.Laplacian(2.0), 20, n_bins=n_bins, random_state=seed)


def fitted(rng, n_bins=None, **options):
    return drf.KernelRidge(
        features(rng, n_bins), **({"alpha": 0.5, "random_state": 0, "scale": "none"} | options)
    )


def by_dense_solve(Z, Y, alpha, s, *, fit_intercept):
    """The normal equations in their dual form, which has a row for each row of Z."""
    z_mean, y_mean = (s @ Z / s.sum(), s @ Y / s.sum()) if fit_intercept else (0.0, np.zeros(Y.shape[1]))
    A, B = np.sqrt(s)[:, None] * (Z - z_mean), np.sqrt(s)[:, None] * (Y - y_mean)
    W = A.T @ np.linalg.solve(A @ A.T + alpha * np.eye(len(A)), B)
    return W, y_mean - (z_mean @ W if fit_intercept else 0.0)


@pytest.mark.parametrize("n_bins", [None, 600])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_conjugate_gradients_agree_with_a_dense_solve(rng, n_bins, fit_intercept):
    """‖w − w*‖ ≤ ‖residual‖/alpha ≤ tol·‖B‖/alpha."""
    (X, Y), s = rows(rng), rng.uniform(0.1, 2, 400)
    found = fitted(rng, n_bins, tol=1e-9, fit_intercept=fit_intercept, max_sweeps=2000).fit(X, Y, s)
    assert found.report_["solver"] == "cg" and not found.report_["notes"]
    Z = found.features_.transform(X).toarray()
    W, b = by_dense_solve(Z, Y, 0.5, s, fit_intercept=fit_intercept)
    bound = 1e-9 * np.linalg.norm(Z.T @ (s[:, None] * Y)) / 0.5 + 1e-9
    assert np.linalg.norm(found.coef_.T - W) <= bound
    np.testing.assert_allclose(found.intercept_, b, atol=20 * bound)
    np.testing.assert_allclose(found.predict(X), Z @ W + b, atol=20 * bound)
    with pytest.raises(InputError, match="FourierFeatures or NystroemFeatures"):
        found.predict(X, return_std=True)


def test_a_plan_that_does_not_fit_names_n_bins(rng, monkeypatch):
    monkeypatch.setattr(engine_tasks, "MEMORY_LIMIT", 10**9)
    (X, Y), map_ = rows(rng, 50), features(rng, 50_000_000)
    for estimator in (
        drf.KernelRidge(map_, alpha=1.0, scale="none"),
        drf.KernelSVC(map_, scale="none"),
        drf.KernelSVC(map_, solver="sgd", scale="none"),
    ):
        with pytest.raises(PlanRefused, match="n_bins="):
            estimator.fit(X, Y[:, 0] > 0)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_alpha_by_folds_is_that_of_dense_solves(rng, fit_intercept):
    """The scores of all alphas tried agree with dense solves of each fold; so does the choice."""
    (X, Y), s = rows(rng, 150), rng.uniform(0.1, 2, 150)
    alphas = np.array([0.03, 0.3, 3.0, 30.0, 300.0])
    options = {"alphas": alphas, "cv": 3, "fold_by": "contiguous", "fit_intercept": fit_intercept}
    found = fitted(rng, alpha="cv", **options).fit(X, Y, s)
    tried, fold = found.cv_results_["alphas"], np.arange(150) * 3 // 150
    assert len(tried) >= 3 and set(tried) <= set(alphas)
    Z, scores = found.features_.transform(X).toarray(), []
    for alpha in tried:
        error = 0.0
        for held_out in range(3):
            t, v = fold != held_out, fold == held_out
            W, b = by_dense_solve(Z[t], Y[t], alpha, s[t], fit_intercept=fit_intercept)
            error += (s[v] @ np.square(Y[v] - Z[v] @ W - b)).sum()
        scores.append(error / s.sum() / 2)
    # Models are solved to a relative residual of 1e-2, which leaves held-out errors a few percent.
    np.testing.assert_allclose(found.cv_results_["mean_score"], scores, rtol=0.1)
    assert found.alpha_ == tried[np.argmin(found.cv_results_["mean_score"])]
    assert found.cv_results_["fold_scores"].shape == (len(tried), 3)
    assert found.cv_score_ == pytest.approx(min(found.cv_results_["mean_score"]))


def test_a_plan_counts_entries_and_the_search_for_alpha(rng):
    X, Y = rows(rng)
    search = {"alpha": "cv", "alphas": np.geomspace(1, 9, 7)}
    given = fitted(rng, keep_features=False).plan(X, Y)
    chosen = fitted(rng, keep_features=False, **search).plan(X, Y)
    assert given.size.sparse_entries == given.size.row_entries == 20
    assert chosen.seconds > 0 and "preconditioner: diagonal" in str(chosen)
    assert given.n_search_sweeps == 0
    assert chosen.n_search_sweeps == 1 + 7 * PRESUMED_SWEEPS_AN_ALPHA
    assert chosen.n_sweeps == given.n_sweeps + chosen.n_search_sweeps
    assert chosen.flops > given.flops and chosen.bytes_read > given.bytes_read
    assert "that choose alpha" in str(chosen) and "that choose alpha" not in str(given)
    assert given.n_sweeps == 1 + 1 + 1 + PRESUMED_SWEEPS  # statistics, the first grid, the others


def interrupted_in(monkeypatch, label, at):
    """Make the sweep of this label raise KeyboardInterrupt at its turn number `at`."""
    reduce, turns = Run.reduce, []

    def interrupting(self, name, *args, **kwargs):
        turns.extend([name] if name == label else [])
        if len(turns) == at:
            raise KeyboardInterrupt
        return reduce(self, name, *args, **kwargs)

    monkeypatch.setattr(Run, "reduce", interrupting)


@pytest.mark.parametrize(("label", "at"), [("right sides of folds", 1), ("held-out errors", 1)])
def test_an_interrupt_before_a_model_was_judged_says_that_there_is_none(rng, monkeypatch, label, at):
    interrupted_in(monkeypatch, label, at)
    model = fitted(rng, alpha="cv")
    with pytest.raises(KeyboardInterrupt, match="no model is kept"):
        model.fit(*rows(rng))
    assert not hasattr(model, "model_")


@pytest.mark.parametrize("in_turn", [False, True])
def test_an_interrupt_in_the_search_keeps_the_best_model_so_far(rng, monkeypatch, in_turn):
    """It is the mean of the folds' models at the alpha that these say, as a dense solve gives it."""
    (X, Y), s = rows(rng, 150), rng.uniform(0.1, 2, 150)
    if in_turn:
        monkeypatch.setattr(conjugate_plan, "_MAX_DIRECTION_NUMBERS", 1)
    options = dict(alphas=[0.3, 3.0, 30.0], cv=3, fold_by="contiguous")
    model, fold = fitted(rng, alpha="cv", **options), np.arange(150) * 3 // 150
    # The third alpha of all folds, or the second fold's first one.
    interrupted_in(monkeypatch, "held-out errors", 4 if in_turn else 3)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, s)
    report = model.report_
    assert report["status"] == "INTERRUPTED" and report["relative_residual"] is None
    assert any("mean of some folds' models" in note for note in report["notes"])
    assert not any("of its grid" in note for note in report["notes"])
    assert model.alpha_ == model.cv_results_["alphas"][np.argmin(model.cv_results_["mean_score"])]
    assert model.cv_results_["fold_scores"].shape == ((3, 1) if in_turn else (2, 3))
    Z = model.features_.transform(X).toarray()
    some = [fold != f for f in (range(1) if in_turn else range(3))]
    fitteds = [by_dense_solve(Z[t], Y[t], model.alpha_, s[t], fit_intercept=True) for t in some]
    expected = np.mean([Z @ W + b for W, b in fitteds], axis=0)
    # ‖residual‖ ≤ 1e-2·‖B‖ moves w by at most that over alpha, and values by √k(0) = 1 times it.
    bound = max(0.01 * np.linalg.norm(Z[t].T @ (s[t, None] * Y[t])) for t in some) / model.alpha_
    assert np.abs(model.predict(X) - expected).max() <= 2 * bound


def test_too_many_bins_are_refused_as_soon_as_they_are_certain(rng, monkeypatch):
    monkeypatch.setattr("distrff.fitting.cost.Plan.fits", property(lambda plan: plan.size.n_features <= 150))
    monkeypatch.setattr(occupied_bins, "_MAX_GRIDS_PER_PASS", 1)
    labels, reduce = [], Run.reduce
    monkeypatch.setattr(Run, "reduce", lambda *args, **more: labels.append(args[1]) or reduce(*args, **more))
    X = 1e4 * np.arange(50.0)[:, None]
    for kind in (fitted(rng), drf.KernelSVC(features(rng), loss="squared_hinge", scale="none")):
        labels.clear()
        with pytest.raises(PlanRefused, match=r"too many bins, 16\d at least: the plan needs .*n_bins=150"):
            kind.fit(X, np.arange(50) % 2)
        # With 150 bins in 3 of 20 grids, 17 more are certain.
        assert labels == ["column statistics", "bins of grid 1", "bins of grid 2", "bins of grid 3"]


def test_a_map_is_fitted_to_a_dataset_as_to_its_array(rng):
    X, map_ = rng.standard_normal((400, 3)), features(rng)
    by_sweep = drf.fit_features(map_, da.from_array(X, chunks=(90, 2)), scale="none")
    assert by_sweep.specification_ == map_.fit(X).specification_
    # So many columns that a segment has few rows: bins of many segments are merged.
    X = rng.integers(0, 3, (2500, 70)).astype(float) @ np.eye(70, 9000)
    map_ = drf.RandomBinningFeatures(drf.Laplacian(9000.0), 3, random_state=0)
    by_sweep = drf.fit_features(map_, X, scale="none")
    assert by_sweep.specification_ == map_.fit(X).specification_
    assert by_sweep.counts_.sum() == 3 * 2500
