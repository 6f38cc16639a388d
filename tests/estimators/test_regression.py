"""Regression by losses other than squares: references, scikit-learn, exposures, quantiles, intervals."""

from functools import partial

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import LinearConstraint, minimize
from scipy.stats import norm
from sklearn.base import clone
from sklearn.linear_model import GammaRegressor, PoissonRegressor
from sklearn.metrics import d2_pinball_score, d2_tweedie_score, mean_gamma_deviance, mean_pinball_loss
from sklearn.metrics import mean_poisson_deviance as sklearn_poisson_deviance
from sklearn.model_selection import ShuffleSplit

import distrff as drf
from distrff.errors import InputError
from distrff.solvers.losses import Residual
from tests.support.fits import fourier, objective, refusal, smallest_objective, stored

pytestmark = pytest.mark.usefixtures("in_this_thread")

N, D = 150, 16
LOSSES = {
    "quantile": {"quantile": 0.8},
    "huber": {"delta": 0.8},
    "epsilon_insensitive": {"epsilon": 0.3},
    "squared_epsilon_insensitive": {"epsilon": 0.3},
    "poisson": {},
    "gamma": {},
}


def regressor(loss="quantile", C=2.0, width=1.5, n_components=D, **options):
    shared = {"random_state": 0, "scale": "none", "dtype": "float64"}
    return drf.KernelRegressor(fourier(n_components, width), C, loss=loss, **shared | options)


def targets_of(loss, X, rng):
    mean = np.sin(2 * X[:, 0]) + X[:, 1] / 2
    if loss == "poisson":
        return rng.poisson(np.exp(mean)).astype(float)
    return rng.gamma(2.0, np.exp(mean)) if loss == "gamma" else 7 + 3 * mean + rng.standard_t(2, len(X))


@pytest.fixture
def rows(rng):
    return rng.uniform(-2, 2, (N, 2)), rng.integers(0, 4, N).astype(float)


def in_coded_units(fitted, X, y):
    """Features, w, f and y in the units of the objective: spreads around the median."""
    targets = fitted.model_.targets
    Z, w = fitted.features_.transform(X), fitted.coef_ / targets.scale
    b = (fitted.intercept_ - targets.shift) / targets.scale if fitted.fit_intercept else np.zeros(1)
    return Z, w, Z @ w + b, targets.encode(y)[:, 0]


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(
    ("loss", "solver"),
    [*((loss, "auto") for loss in LOSSES), ("quantile", "smoothed"), ("epsilon_insensitive", "smoothed")],
)
def test_a_fit_ends_at_the_optimum_of_its_objective(rows, rng, loss, solver, fit_intercept):
    """The reference is another solver's: BFGS of smooth losses, the dual of those with corners by SciPy."""
    X, s = rows
    y = targets_of(loss, X, rng)
    tol = 1e-3 if solver == "smoothed" else 1e-5
    options = {"fit_intercept": fit_intercept, "tol": tol, "solver": solver}
    fitted = regressor(loss, **options, **LOSSES[loss]).fit(X, y, s)
    Z, w, f, coded = in_coded_units(fitted, X, y)
    own, report = fitted._loss(), fitted.report_
    found = objective(own, 2.0, w, f, coded, s)
    assert found == pytest.approx(report["primal"], rel=1e-9)
    if own.is_smooth:
        A = Z if fit_intercept else np.column_stack([Z, np.zeros(N)])[:, :D]
        best = smallest_objective(own, 2.0, A, coded, s, gtol=1e-6).fun if fit_intercept else None
        best = without_intercept(own, Z, coded, s) if best is None else best
    else:
        best = by_the_dual(own, Z, coded, s, fit_intercept)
    assert report["status"] == "CONVERGED" and report["duality_gap"] <= tol
    assert report["dual"] <= best * (1 + 1e-6) and best * (1 - 1e-6) <= found <= best * (1 + 1.1 * tol)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.filterwarnings("ignore:the duality gap")
@pytest.mark.parametrize("options", [{"loss": "epsilon_insensitive"}, {"quantile": 0.02}], ids=str)
def test_few_rows_are_solved_to_the_last_digits(rows, rng, options, fit_intercept):
    """Also with rows that are alike, without weight or far off, and with any C."""
    X, s = rows
    X[:20], y = X[20:40], targets_of("quantile", X, rng)
    y[:5], y[5] = y[20:25], 1e6
    for C in (1e-3, 1.0, 1e4):
        model = regressor(**options, C=C, width=0.7, n_components=64, fit_intercept=fit_intercept, tol=1e-9)
        fitted = model.fit(X, y, s)
        report = fitted.report_
        assert report["solver"] == "dual" and report["status"] == "CONVERGED"
        assert 0 <= report["duality_gap"] <= 1e-9
        smoothed = drf.KernelRegressor(**fitted.get_params(deep=False) | {"solver": "smoothed", "tol": 1e-2})
        other = smoothed.fit(X, y, s).report_
        # Each bound is below the other's objective.
        assert other["dual"] <= report["primal"] * (1 + 1e-9)
        assert report["dual"] <= other["primal"] * (1 + 1e-9)


def test_folds_that_rows_are_in_unequally_often_leave_bounds_bounds(rng):
    """The fit to all rows begins at the mean of the folds' multipliers, whose sum is then not 0."""
    for seed in range(8):
        X = rng.standard_normal((200, 2))
        y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(200)
        folds = ShuffleSplit(3, test_size=0.3, random_state=seed)
        for model, Y in (
            (regressor(quantile=0.9), y),
            (drf.KernelSVC(fourier(D, 1.5), random_state=0), y > 0),
        ):
            searched = clone(model).set_params(C="cv", Cs=[0.01, 0.1], cv=folds).fit(X, Y)
            alone = clone(model).set_params(C=searched.C_, tol=1e-9).fit(X, Y)
            assert searched.report_["dual"] <= alone.report_["primal"] * (1 + 1e-8)


def test_rows_of_weight_zero_do_not_count_in_the_choice_of_a_map_either(rng):
    X = rng.standard_normal((300, 2))
    y, weights = X[:, 0] + 0.1 * X[:, 1], np.repeat([1.0, 0.0], 150)
    for loss in ("huber", "quantile", "epsilon_insensitive"):
        model = drf.KernelRegressor(drf.FourierFeatures(drf.Gaussian("auto"), 32), loss=loss, random_state=0)
        found = model.fit(X, y, weights).predict(X)
        far = model.fit(X, np.where(weights > 0, y, 1e6), weights).predict(X)
        np.testing.assert_array_equal(found, far)


def test_constants_and_tiny_targets(rows):
    X, _ = rows
    with pytest.warns(drf.errors.DataWarning, match="y is constant"):
        tube = regressor("epsilon_insensitive").fit(X, np.full(N, 3.0))
    np.testing.assert_allclose(tube.predict(X), 3.0, rtol=1e-6)
    counts = np.round(np.exp(X[:, 0])) + 1
    whole = regressor("poisson", tol=1e-6).fit(X, counts)
    tiny = regressor("poisson", C=2e12, tol=1e-6).fit(X, 1e-12 * counts)
    np.testing.assert_allclose(1e12 * tiny.predict(X), whole.predict(X), rtol=1e-6)


def without_intercept(loss, Z, y, s):
    def value(w):
        f = Z @ w
        return objective(loss, 2.0, w, f, y, s), (2.0 * s * loss.derivative(f, y)) @ Z + w

    return minimize(value, np.zeros(D), jac=True, method="BFGS", options={"gtol": 1e-6}).fun


def by_the_dual(loss, Z, y, s, fit_intercept):
    """min ½‖Zᵀa‖² − yᵀa + ε·|a| over C·s·lower ≤ a ≤ C·s·upper, Σa = 0 with an intercept, as a = p − q."""
    u, n = 2.0 * s, len(y)

    def value(pq):
        a = pq[:n] - pq[n:]
        v = Z.T @ a
        slope = Z @ v - y
        return 0.5 * v @ v - a @ y + loss.epsilon * pq.sum(), np.concatenate(
            [slope + loss.epsilon, loss.epsilon - slope]
        )

    balanced = LinearConstraint(np.concatenate([np.ones(n), -np.ones(n)])[None], 0, 0)
    found = minimize(
        value,
        np.zeros(2 * n),
        jac=True,
        method="SLSQP",
        bounds=[(0, loss.upper * one) for one in u] + [(0, -loss.lower * one) for one in u],
        constraints=[balanced] if fit_intercept else [],
        options={"maxiter": 1000, "ftol": 1e-11},
    )
    return -found.fun


@pytest.mark.parametrize(("loss", "theirs"), [("poisson", PoissonRegressor), ("gamma", GammaRegressor)])
def test_counts_and_amounts_are_those_of_scikit_learn(rows, rng, loss, theirs):
    X, s = rows
    y = targets_of(loss, X, rng)
    fitted = regressor(loss, tol=1e-9).fit(X, y, s)
    its = theirs(alpha=1 / (2.0 * s.sum()), tol=1e-10, max_iter=10_000, solver="newton-cholesky")
    Z = fitted.features_.transform(X)
    np.testing.assert_allclose(fitted.predict(X), its.fit(Z, y, s).predict(Z), rtol=1e-3)


def test_units_of_the_target_do_not_matter(rows, rng):
    X, s = rows
    y = targets_of("quantile", X, rng)
    for loss in ("quantile", "huber", "epsilon_insensitive", "squared_epsilon_insensitive"):
        # Spreads follow a power of two to the last bit, and with them all that is coded.
        one, other = (regressor(loss).fit(X, Y, s) for Y in (y, 1024 * y))
        np.testing.assert_allclose(other.predict(X), 1024 * one.predict(X), rtol=1e-12)
        assert other.report_["primal"] == one.report_["primal"]
        shifted = regressor(loss).fit(X, 1000 * y - 3, s).report_
        assert shifted["dual"] <= one.report_["primal"] * (1 + 1e-9)
        assert one.report_["dual"] <= shifted["primal"] * (1 + 1e-9)
    both = regressor("huber").fit(X, np.column_stack([y, 1024 * y]), s).predict(X)
    np.testing.assert_allclose(both[:, 1], 1024 * both[:, 0], rtol=0.01)


@pytest.mark.parametrize("loss", ["huber", "epsilon_insensitive", "squared_epsilon_insensitive"])
def test_the_report_has_the_parameters_in_units_of_the_target(rows, rng, loss):
    """With them the raw objective is σ² times the one that is reported."""
    X, s = rows
    y = targets_of(loss, X, rng)
    fitted = regressor(loss, **LOSSES[loss]).fit(X, y, s)
    raw = fitted.report_["in_units_of_y"]
    kinds = {"huber": lambda: Residual.huber(raw["delta"])}
    kinds["epsilon_insensitive"] = lambda: Residual.insensitive(raw["epsilon"])
    kinds["squared_epsilon_insensitive"] = lambda: Residual.squared_insensitive(raw["epsilon"])
    value = objective(kinds[loss](), raw["C"], fitted.coef_, fitted.predict(X), y, s)
    assert value == pytest.approx(raw["spread"] ** 2 * fitted.report_["primal"], rel=1e-6)


def test_far_targets_do_not_move_the_units(rows, rng):
    X, _ = rows
    y = targets_of("huber", X, rng)
    scale = regressor("huber").fit(X, y).model_.targets.scale
    before = regressor("huber").fit(X, y)
    y[:3] = 1e9
    fitted = regressor("huber").fit(X, y)
    assert fitted.model_.targets.scale == pytest.approx(scale, rel=0.2)
    # Three rows of 150 pull with their slopes alone, and their losses do not hide those of the others.
    moved = np.abs(fitted.predict(X) - before.predict(X))[3:]
    assert fitted.report_["status"] == "CONVERGED" and np.median(moved) < before.model_.targets.scale
    mostly_zero = np.where(np.arange(N) < 140, 0.0, np.arange(N))
    assert regressor("huber").fit(X, mostly_zero).model_.targets.scale == pytest.approx(mostly_zero.std())


def test_quantiles_share_their_sweeps_and_do_not_cross(rng):
    X = rng.uniform(-2, 2, (600, 1))
    y = np.sin(X[:, 0]) + (0.1 + np.abs(X[:, 0])) * rng.standard_normal(600)
    tau = np.array([0.1, 0.5, 0.9])
    fitted = regressor(quantile=tau.tolist(), C=1.0, width=1.0).fit(X, y)
    P = fitted.predict(X)
    assert P.shape == (600, 3) and (np.diff(P, axis=1) >= 0).all()
    # Of an optimum with an intercept the share below is τ, up to the rows at the corners and the gap.
    np.testing.assert_allclose((y[:, None] <= P).mean(axis=0), tau, atol=(D + 1) / 600)
    assert fitted.coef_.shape == (3, D) and fitted.intercept_.shape == (3,)
    one = regressor(quantile=0.9, C=1.0, width=1.0).fit(X, y)
    assert one.predict(X).shape == (600,)
    loss = [mean_pinball_loss(y, P, alpha=0.9) for P in (P[:, 2], one.predict(X))]
    assert loss[0] == pytest.approx(loss[1], rel=0.02)
    assert regressor(quantile=[0.9]).fit(X, y).predict(X).shape == (600, 1)
    far = fitted.predict(rng.uniform(-9, 9, (500, 1)))
    assert (np.diff(far, axis=1) >= 0).all()


def test_scores_are_those_of_scikit_learn(rows, rng, tmp_path):
    X, s = rows
    s = s + 0.5
    y = targets_of("quantile", X, rng)
    fitted = regressor(quantile=[0.1, 0.9]).fit(X, y, s)
    found, P = drf.evaluate(fitted, X, y, s), fitted.predict(X)
    losses = [
        mean_pinball_loss(y, p, alpha=tau, sample_weight=s) for p, tau in zip(P.T, (0.1, 0.9), strict=True)
    ]
    assert found["pinball_loss"] == pytest.approx(np.mean(losses))
    d2 = [d2_pinball_score(y, p, alpha=tau, sample_weight=s) for p, tau in zip(P.T, (0.1, 0.9), strict=True)]
    assert fitted.score(X, y, s) == found["d2"] == pytest.approx(np.mean(d2), abs=0.02)
    (band,) = found["bands"]
    inside = (y > P[:, 0]) & (y <= P[:, 1])
    assert band["coverage"] == pytest.approx(np.average(inside, weights=s))
    below, above = np.maximum(P[:, 0] - y, 0), np.maximum(y - P[:, 1], 0)
    score = P[:, 1] - P[:, 0] + 10 * (below + above)
    assert band["interval_score"] == pytest.approx(np.average(score, weights=s))
    for loss, deviance, power in (
        ("poisson", sklearn_poisson_deviance, 1),
        ("gamma", mean_gamma_deviance, 2),
    ):
        y = targets_of(loss, X, rng)
        fitted = regressor(loss).fit(X, y, s)
        found, mu = drf.evaluate(fitted, X, y, s), fitted.predict(X)
        assert found[f"{loss}_deviance"] == pytest.approx(deviance(y, mu, sample_weight=s))
        assert fitted.score(X, y, s) == pytest.approx(d2_tweedie_score(y, mu, sample_weight=s, power=power))
        again = stored(fitted, tmp_path)
        np.testing.assert_array_equal(again.predict(X), mu)
        assert drf.evaluate(again, X, y, s)["d2"] == found["d2"]


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_exposures(rows, rng, tmp_path, loss):
    X, s = rows
    s, e = s + 0.5, rng.uniform(0.1, 3, N)
    y = targets_of(loss, X, rng) * np.round(e + 0.5)
    fitted = regressor(loss).fit(X, y, s, exposure=e)
    # The objective with means e·μ, term by term.
    as_rates = regressor(loss).fit(X, y / e, s * e if loss == "poisson" else s)
    np.testing.assert_array_equal(fitted.coef_, as_rates.coef_)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(e=e)
    named = regressor(loss).fit(frame, y, s, exposure="e")
    np.testing.assert_array_equal(named.coef_, fitted.coef_)
    assert list(named.feature_names_in_) == ["a", "b"]
    frame.assign(y=y, s=s).to_parquet(tmp_path / "rows.parquet", row_group_size=40)
    dataset = drf.open_dataset(str(tmp_path / "rows.parquet"), target="y", sample_weight="s", extra=["e"])
    np.testing.assert_array_equal(regressor(loss).fit(dataset, exposure="e").coef_, fitted.coef_)
    lazy = [da.from_array(A, chunks=(k, *A.shape[1:])) for A, k in ((X, 41), (y, 70), (s, 60), (e, 33))]
    of_blocks = regressor(loss).fit(*lazy[:3], exposure=lazy[3])
    np.testing.assert_array_equal(of_blocks.coef_, fitted.coef_)
    rate = fitted.predict(X)
    np.testing.assert_array_equal(fitted.predict(X, exposure=e), rate * e)
    np.testing.assert_array_equal(named.predict(frame, exposure="e"), rate * e)
    np.testing.assert_allclose(of_blocks.predict(lazy[0], exposure=lazy[3]), rate * e, rtol=1e-9)
    score = fitted.score(X, y, s, exposure=e)
    power, weight = (1, s * e) if loss == "poisson" else (2, s)
    assert score == pytest.approx(d2_tweedie_score(y / e, rate, sample_weight=weight, power=power))
    assert regressor(loss).plan(X, y, exposure=e).n_sweeps > 0
    # The frames of rows to come have the column as well.
    np.testing.assert_array_equal(named.predict(frame), rate)
    np.testing.assert_array_equal(named.predict(frame, exposure=e), rate * e)
    with pytest.warns(drf.errors.DataWarning, match="y is taken for rates"):
        named.score(frame, y, s)
    assert named.model_.loss["exposure"] and "exposure" not in as_rates.model_.loss
    means = clone(named).fit(frame, y, s, exposure="e").calibrate(frame + 1e-9, y, s, exposure="e")
    low, high = means.predict_interval(frame, 0.8, exposure="e")
    assert (low >= 0).all() and (low <= rate * e).all() and (high >= rate * e).all()
    model = stored(named, tmp_path)
    np.testing.assert_array_equal(model.predict(frame, exposure="e"), rate * e)
    for data, options in ((frame, {}), (dataset, {"ids": {"e": e}}), (X, {"ids": {"e": e}})):
        out = str(tmp_path / "p.parquet")
        drf.write_predictions(model, data, out, exposure="e", overwrite=True, **options)
        found = pd.read_parquet(out)
        np.testing.assert_array_equal(found["e"], e)
        np.testing.assert_allclose(found["prediction"], rate * e, rtol=1e-12)
    write = partial(drf.write_predictions, out=str(tmp_path / "q.parquet"), exposure="e")
    assert "in row 3 of 'e'" in refusal(write, model, frame.assign(e=np.where(np.arange(N) == 3, 0, e)))
    assert "one of the ids" in refusal(write, model, dataset)
    assert "of counts and amounts" in refusal(write, regressor("huber").fit(X, y), frame)
    assert "no numbers" in refusal(write, model, frame.assign(e="a"))
    assert "must be numbers" in refusal(partial(model.predict, exposure=np.full(N, "2020", "M8[ns]")), X)
    for predict in (model.predict, fitted.predict):
        assert "must be as many" in refusal(partial(predict, exposure=np.ones(1)), X)
        assert "must be as many" in refusal(partial(predict, exposure=np.ones(N)), X[:1])
    assert "multiply predictions" in refusal(partial(write, method="decision_function"), model, frame)


def test_a_constant_count_and_only_zeros_have_models(rows):
    X, _ = rows
    with pytest.warns(drf.errors.DataWarning, match="y is constant"):
        np.testing.assert_allclose(regressor("poisson").fit(X, np.full(N, 3.0)).predict(X), 3.0, rtol=1e-6)
    with pytest.warns(drf.errors.DataWarning, match="y is constant"):
        assert (regressor("poisson").fit(X, np.zeros(N)).predict(X) < 0.01).all()


def test_models_of_folds_are_in_units_of_the_target(rows, rng):
    X, _ = rows
    y = 1e4 + 1e3 * targets_of("huber", X, rng)
    fitted = regressor("huber", C="cv", width=1.0).fit(X, y)
    out = drf.cross_val_predict(regressor("huber", fitted.C_, width=1.0), X, y)
    assert np.median(np.abs(out - y)) < np.median(np.abs(np.median(y) - y))
    assert fitted.report_["quality"]["rows"] == "out of fold"
    error = drf.evaluate(fitted)["mae"]
    assert error == pytest.approx(np.abs(out - y).mean(), rel=0.05)
    lower, upper = fitted.predict_interval(X, 0.8)
    assert 0.75 <= ((lower <= y) & (y <= upper)).mean() <= 0.95


def test_bands_are_made_conformal(rng, tmp_path):
    def draw(n):
        X = rng.uniform(-2, 2, (n, 1))
        return X, np.sin(X[:, 0]) + (0.1 + np.abs(X[:, 0])) * rng.standard_normal(n)

    X, y = draw(1000)
    fitted = regressor(quantile=[0.05, 0.95], C=0.1, width=1.0).fit(X, y)
    assert "held no folds out" in refusal(fitted.predict_interval, X)
    fitted.calibrate(*draw(1000))
    model = stored(fitted, tmp_path)
    X, y = draw(4000)
    for coverage in (0.8, 0.9):
        lower, upper = fitted.predict_interval(X, coverage)
        # The coverage of one calibration set varies by √(c(1 − c)/n), that of the tests by half of it.
        inside = ((lower <= y) & (y <= upper)).mean()
        assert abs(inside - coverage) < 6 * np.sqrt(coverage * (1 - coverage) / 1000)
        np.testing.assert_array_equal(model.predict_interval(X, coverage), (lower, upper))
    widths = [(upper - lower)[np.abs(X[:, 0]) < 0.3].mean(), (upper - lower)[np.abs(X[:, 0]) > 1.7].mean()]
    assert widths[1] > 2 * widths[0]
    assert "use method='quantile'" in refusal(fitted.predict_interval, X, 0.9, "constant")
    alone = regressor().fit(X, y).calibrate(*draw(100))
    assert "models of several quantiles" in refusal(alone.predict_interval, X, 0.9, "quantile")


@pytest.mark.parametrize(
    ("loss", "change", "words"),
    [
        ("poisson", lambda y: y - 1, "y must be ≥ 0 for this loss, got -1 in row"),
        ("gamma", lambda y: np.maximum(y - 1, 0), "y must be > 0 for this loss, got 0 in row"),
    ],
)
def test_targets_without_a_loss_are_refused_with_their_row(rows, rng, loss, change, words):
    y = rng.poisson(1.0, N) + 0.0
    y[7] = 0
    assert words in refusal(regressor(loss).fit, rows[0], change(y))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": "absolute"}, "loss must be"),
        ({"quantile": 1.0}, "quantile must be a number between 0 and 1"),
        ({"quantile": [0.9, 0.1]}, "quantile must be in ascending order"),
        ({"quantile": [0.1, 0.1]}, "quantile must be in ascending order"),
        ({"quantile": []}, "quantile must be"),
        ({"quantile": "median"}, "quantile must be"),
        ({"loss": "huber", "delta": 0.0}, "delta must be a positive number"),
        ({"loss": "epsilon_insensitive", "epsilon": -1.0}, "epsilon must be a number ≥ 0"),
        ({"C": np.inf}, "C must be a positive number"),
    ],
)
def test_parameters_that_are_refused(rows, options, words):
    assert words in refusal(regressor(**options).fit, rows[0], rows[1])


def test_what_is_refused_beside_them(rows, rng):
    X, s = rows
    y = rng.poisson(1.0, N) + 0.0
    assert "several quantiles are of one target" in refusal(
        regressor(quantile=[0.1, 0.9]).fit, X, np.column_stack([y, y])
    )
    with pytest.raises(InputError, match="exposures are of loss='poisson'"):
        regressor("huber").fit(X, y, exposure=s)
    with pytest.raises(InputError, match="exposures must be positive numbers, got 0 in row"):
        regressor("poisson").fit(X, y, exposure=np.zeros(N))
    with pytest.raises(InputError, match="y has 150 rows but exposure has 3"):
        regressor("poisson").fit(X, y, exposure=np.ones(3))
    with pytest.raises(InputError, match="no column 'e' of exposures"):
        regressor("poisson").fit(X, y, exposure="e")
    with pytest.raises(InputError, match="loss must be"):
        drf.KernelSVR(loss="huber").fit(X, y)
    with pytest.raises(InputError, match="exposures must be numbers"):
        regressor("poisson").fit(X, y, exposure=np.full(N, "long"))
    far = np.where(np.arange(N) == 3, 1e20, rng.standard_normal(N))
    with pytest.raises(InputError, match="times the spread of the others away"):
        regressor("huber").fit(X, far)
    with pytest.raises(InputError, match="linear models have other objectives than a KernelRegressor"):
        regressor("huber").fit(X, y).to_sklearn()
    # Three quarters of the targets are equal but for rounding, which is no spread.
    nearly = np.where(np.arange(N) % 8 > 0, 0.3 + np.spacing(0.3) * (np.arange(N) % 2), y)
    assert regressor("huber").fit(X, nearly).model_.targets.scale > 0.1


def noisy(rng, n):
    """Rows whose noise grows with |x|, and the ends of the true intervals of 90 %."""
    X = rng.uniform(-2, 2, (n, 1))
    f, sd = np.sin(2 * X[:, 0]), 0.1 + np.abs(X[:, 0])
    return X, f + sd * rng.standard_normal(n), f - 1.645 * sd, f + 1.645 * sd


def interval_score(y, lower, upper):
    return (upper - lower + 20 * (np.maximum(lower - y, 0) + np.maximum(y - upper, 0))).mean()


@pytest.mark.parametrize(
    "make",
    [
        lambda: drf.KernelRidge(fourier(64, 0.7), random_state=0),
        lambda: regressor("huber", C="cv", width=0.7, n_components=64),
        lambda: regressor(quantile=[0.05, 0.95], C=1.0, width=0.7, n_components=64),
    ],
    ids=["ridge", "huber", "band"],
)
def test_intervals_whose_width_follows_x(rng, tmp_path, make):
    X, y, _, _ = noisy(rng, 6000)  # of 2,000 there are seeds whose widths miss a tenth
    fitted = make().fit(X, y)
    if not fitted.model_.has_band:
        fitted.predict_interval(X)
        assert fitted.model_.interval_method() == "residual"
        scores = fitted.model_.intervals.scores
        assert scores["residual"] < 0.9 * scores["constant"]
    fitted.calibrate(*noisy(rng, 2000)[:2])
    X, y, *true = noisy(rng, 10_000)
    lower, upper = fitted.predict_interval(X)
    inside = (lower <= y) & (y <= upper)
    assert abs(inside.mean() - 0.9) < 6 * np.sqrt(0.09 / 2000)
    # Of each tenth of x; constant intervals have .72 and 1 there.
    tenths = np.digitize(X[:, 0], np.quantile(X[:, 0], np.linspace(0.1, 0.9, 9)))
    assert all(0.8 < inside[tenths == k].mean() < 0.97 for k in range(10))
    assert interval_score(y, lower, upper) < 1.1 * interval_score(y, *true)
    model = stored(fitted, tmp_path)
    np.testing.assert_array_equal(model.predict_interval(X), (lower, upper))
    drf.write_predictions(model, X, str(tmp_path / "out.parquet"), coverage=0.9)
    written = pd.read_parquet(tmp_path / "out.parquet")
    np.testing.assert_array_equal(written[["lower", "upper"]].to_numpy().T, (lower, upper))
    lazy = fitted.predict_interval(da.from_array(X, chunks=(3000, 1)))
    np.testing.assert_allclose(lazy[0].compute(), lower, rtol=1e-9)


def test_where_spreads_cannot_be_had(rng):
    X, y, _, _ = noisy(rng, 300)
    fitted = drf.KernelRidge(fourier(16), 1.0).fit(X, y)
    assert "there are no errors of rows that the model did not see" in refusal(
        fitted.predict_interval, X, 0.9, "residual"
    )
    fitted.calibrate(*noisy(rng, 300)[:2])
    assert "ask for it once after a fit with folds" in refusal(fitted.predict_interval, X, 0.9, "residual")
    assert fitted.model_.interval_method() == "deviation"  # what was asked for without it stays


def test_spreads_of_several_targets_groups_weights_and_stored_rows(rng, tmp_path):
    X, y, _, _ = noisy(rng, 600)
    Y, s, groups = np.column_stack([y, 100 * y + 5]), rng.integers(0, 3, 600) + 0.0, np.arange(600) // 5
    ridge = drf.KernelRidge(fourier(32, 0.7), random_state=0)
    lower, upper = ridge.fit(X, Y, s, groups=groups).predict_interval(X, 0.9, "residual")
    assert lower.shape == upper.shape == (600, 2)
    np.testing.assert_allclose((upper - lower)[:, 1], 100 * (upper - lower)[:, 0], rtol=0.01)
    frame = pd.DataFrame({"x": X[:, 0], "y": Y[:, 0], "z": Y[:, 1], "s": s, "g": groups})
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=90)
    dataset = drf.open_dataset(
        str(tmp_path / "rows.parquet"), target=["y", "z"], sample_weight="s", groups="g"
    )
    again = drf.KernelRidge(fourier(32, 0.7), random_state=0).fit(dataset)
    np.testing.assert_allclose(again.predict_interval(X, 0.9, "residual"), (lower, upper), rtol=1e-6)


def test_deviations_are_judged_as_normal_laws(rng):
    X = rng.uniform(-2, 2, (400, 2))
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(400)
    fitted = drf.KernelRidge(fourier(32), random_state=0).fit(X[:200], y[:200])
    found = drf.evaluate(fitted, X[200:], y[200:], return_std=True)
    f, sd = fitted.predict(X[200:], return_std="observation")
    assert found["negative_log_density"] == pytest.approx(-norm.logpdf(y[200:], f, sd).mean())
    # ∫ (Φ − 1[t ≥ y])² dt by the trapezoidal rule
    t = np.linspace(-6, 6, 6001)
    squares = np.square(norm.cdf(t, f[:, None], sd[:, None]) - (t >= y[200:, None]))
    assert found["crps"] == pytest.approx(np.trapezoid(squares, t, axis=1).mean(), rel=0.01)
    assert "these are its own" in refusal(lambda: drf.evaluate(fitted, return_std=True))
    assert "exposures are of models of counts" in refusal(lambda: drf.evaluate(fitted, X, y, exposure=y))


def test_spreads_are_learned_as_the_model_scales_also_where_some_rows_have_no_error(rng):
    """Of forward folds the first span has no error, and the columns drift."""
    n = 900
    t = np.linspace(0, 10, n)
    X = np.column_stack([t, rng.uniform(-1, 1, n)])
    y = X[:, 1] + (0.1 + np.abs(X[:, 1])) * rng.standard_normal(n)
    ridge = drf.KernelRidge(fourier(64, 1.0), cv=drf.ForwardFolds(n_folds=5), random_state=0)
    lower, upper = ridge.fit(X, y).predict_interval(X, 0.9, "residual")
    middle = np.abs(X[:, 1]) < 0.2
    assert (upper - lower)[~middle].mean() > 2 * (upper - lower)[middle].mean()
    spread = ridge.model_.spread
    Z = ridge.model_.transform(X).astype(float)
    np.testing.assert_allclose(ridge.model_.spreads(X), np.exp(Z @ spread[0][:, 0] + spread[1][0]), rtol=1e-6)


def test_spreads_where_the_fit_itself_has_some_of_its_folds(rng):
    X, y, _, _ = noisy(rng, 400)
    groups, s = np.arange(400) // 100, np.ones(400)
    s[100:200] = 0  # no row of the second group counts
    with pytest.warns(drf.errors.DataWarning, match="skipped among folds"):
        ridge = drf.KernelRidge(fourier(16), cv=drf.GroupFolds(n_folds=4), random_state=0).fit(
            X, y, s, groups=groups
        )
    lower, upper = ridge.predict_interval(X, 0.9, "residual")
    assert np.isfinite(lower).all() and (lower < upper).all()


def test_a_tube_as_wide_as_the_targets_and_one_quantile_of_several_targets(rows, rng):
    X, _ = rows
    y = targets_of("huber", X, rng)
    wide = drf.KernelSVR(drf.FourierFeatures(n_components=16), epsilon=1.5, random_state=0).fit(X, y)
    assert np.isfinite(wide.predict(X)).all()
    Y = np.column_stack([y, 2 * y])
    listed, alone = (regressor(quantile=tau).fit(X, Y).predict(X) for tau in ([0.3], 0.3))
    np.testing.assert_array_equal(listed, alone)


def test_targets_far_from_zero_without_an_intercept_are_searched_around_their_middle(rng):
    X = rng.uniform(-2, 2, (400, 2))
    y = 1000 + np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(400)
    features = drf.FourierFeatures(drf.Gaussian("auto"), 64, random_state=0)
    free, without = (
        drf.KernelRegressor(features, 100.0, loss="huber", fit_intercept=b, random_state=0).fit(X, y)
        for b in (True, False)
    )
    widths = [fitted.features_.kernel_.length_scale for fitted in (free, without)]
    assert 0.5 < widths[0] / widths[1] < 2


def test_lazy_exposures_are_checked_and_may_be_of_a_frame_or_a_dataset(rows, rng, tmp_path):
    import dask.dataframe as dd

    X, s = rows
    e, y = s + 0.5, rng.poisson(2.0, N) + 0.0
    fitted = regressor("poisson").fit(X, y, exposure=e)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(e=e, y=y)
    lazy = dd.from_pandas(frame, npartitions=3)
    of_frame = regressor("poisson").fit(lazy[["a", "b", "e"]], lazy["y"], exposure="e")
    np.testing.assert_allclose(of_frame.coef_, fitted.coef_, rtol=1e-6, atol=1e-9)
    frame.to_parquet(tmp_path / "rows.parquet")
    dataset = drf.open_dataset(str(tmp_path / "rows.parquet"), columns=["a", "b"], extra=["e"])
    np.testing.assert_allclose(fitted.predict(dataset, exposure="e"), fitted.predict(X) * e, rtol=1e-9)
    column = da.from_array(e[:, None], chunks=(40, 1))
    np.testing.assert_allclose(fitted.predict(X, exposure=column), fitted.predict(X) * e, rtol=1e-12)
    with pytest.raises(InputError, match="exposures must be positive numbers, got -1"):
        fitted.predict(X, exposure=da.from_array(np.where(np.arange(N) == 3, -1.0, e), chunks=50)).compute()


@pytest.mark.parametrize("loss", ["quantile", "poisson", "gamma"])
def test_scores_of_many_blocks_are_those_of_one(rng, loss):
    X = rng.uniform(-2, 2, (9000, 2))
    y = targets_of(loss, X, rng)
    fitted = regressor(loss, **({"quantile": [0.1, 0.9]} if loss == "quantile" else {})).fit(X[:500], y[:500])
    whole = drf.evaluate(fitted, X, y)
    for chunks in (700, 4000):
        parts = drf.evaluate(fitted, da.from_array(X, chunks=(chunks, 2)), da.from_array(y, chunks=chunks))
        name = fitted.model_.judge
        assert parts[name] == pytest.approx(whole[name]) and parts["d2"] == pytest.approx(whole["d2"])
    P = fitted.predict(X)
    if loss == "quantile":
        expected = np.mean([mean_pinball_loss(y, p, alpha=a) for p, a in zip(P.T, (0.1, 0.9), strict=True)])
    else:
        expected = (sklearn_poisson_deviance if loss == "poisson" else mean_gamma_deviance)(y, P)
    assert whole[fitted.model_.judge] == pytest.approx(expected)
