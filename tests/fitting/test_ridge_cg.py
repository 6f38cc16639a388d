"""Ridge by conjugate gradients is the model that the Gram gives, to the accuracy that was asked for."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import distrff as drf
from distrff.errors import InputError, PlanRefused
from distrff.fitting import cost
from distrff.fitting.cg import RidgePasses
from distrff.fitting.cost import PRESUMED_SWEEPS
from distrff.fitting.gram import factor_levels
from tests.support.fits import interrupt_after

D = 32


FOURIER = drf.FourierFeatures(drf.Gaussian(2.0), D)
LANDMARKS = drf.NystroemFeatures(drf.Gaussian(2.0), D)


def model(alpha=1.0, kind=drf.KernelRidge, features=FOURIER, **options):
    return kind(features, alpha, **({"solver": "cg", "random_state": 0, "scale": "none"} | options))


@pytest.fixture(params=["all rows", "sample", "diagonal"])
def preconditioner(request, monkeypatch):
    """Each of the three there are: small problems would only ever see the first."""
    if request.param == "sample":
        monkeypatch.setattr("distrff.engine.reduction._MIN_SAMPLE_ROWS", 1)
        monkeypatch.setattr("distrff.engine.reduction._MOST_SAMPLE_PER_FEATURE", 8)
    if request.param == "diagonal":
        no_factor(monkeypatch)
    return {"sample": "factor of the Gram of one row in 4", "diagonal": "diagonal"}.get(
        request.param, "factor of the Gram of all rows"
    )


def no_factor(monkeypatch):
    monkeypatch.setattr("distrff.fitting.cg._factor_peak_bytes", lambda _, stride, *rest: stride * 10**18)


def equations(fitted, X, Y, s):
    """The normal equations (G, B) of its own features; of the coefficients, in the targets' units."""
    Z = fitted.model_.transform(X).astype(np.float64)
    Y = np.asarray(Y, dtype=float).reshape(len(X), -1)
    if fitted.fit_intercept:
        Z, Y = Z - np.average(Z, axis=0, weights=s), Y - np.average(Y, axis=0, weights=s)
    return (Z.T * s) @ Z, (Z.T * s) @ Y


def assert_solves(fitted, X, Y, s, *, tol):
    """The residual of each target is as small as asked for, and so is the distance to the Gram's model."""
    G, B = equations(fitted, X, Y, s)
    w = np.atleast_2d(fitted.coef_).T
    alpha = np.broadcast_to(fitted.alpha_, (w.shape[1],))
    residual = B - G @ w - alpha * w
    # float32 features differ by their roundoff with how many rows are multiplied at a time.
    rounding = 1e-5 if fitted.report_["dtype"] == "float32" else 1e-12
    assert (np.linalg.norm(residual, axis=0) <= (tol + rounding) * np.linalg.norm(B, axis=0)).all()
    exact = np.stack([np.linalg.solve(G + a * np.eye(D), b) for a, b in zip(alpha, B.T, strict=True)], axis=1)
    bound = (tol + rounding) * np.linalg.norm(B, axis=0) / (np.linalg.eigvalsh(G)[0] + alpha)
    assert (np.linalg.norm(w - exact, axis=0) <= 1.01 * bound).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize(("features", "tol"), [(FOURIER, 1e-3), (FOURIER, 1e-9), (LANDMARKS, 1e-6)])
def test_the_residual_is_what_was_asked_for(problem, preconditioner, fit_intercept, dtype, features, tol):
    options = {"features": features, "fit_intercept": fit_intercept, "dtype": dtype, "tol": tol}
    fitted = model([1e-2, 1.0, 100.0], **options)
    fitted.fit(problem.X, problem.Y, problem.s)
    r = fitted.report_
    assert (r["status"], r["solver"], r["preconditioner"]) == ("CONVERGED", "cg", preconditioner)
    assert 0 <= r["relative_residual"] <= r["tol"] == tol
    assert_solves(fitted, problem.X, problem.Y, problem.s, tol=tol)


def test_many_alphas_share_three_factors(problem, preconditioner):
    alpha = np.geomspace(1e-3, 1e3, 7)
    np.testing.assert_allclose(factor_levels(alpha), [1e-3, 1.0, 1e3])
    np.testing.assert_array_equal(factor_levels(np.array([2.0, 1.0, 2.0])), [1.0, 2.0])
    Y = np.column_stack([problem.Y, problem.X])
    fitted = model(alpha, tol=1e-8).fit(problem.X, Y)
    np.testing.assert_array_equal(fitted.alpha_, alpha)
    assert_solves(fitted, problem.X, Y, np.ones(900), tol=1e-8)


def test_rows_that_weigh_nothing(problem, monkeypatch):
    """Few rows have weight, and a sample has none of them."""
    monkeypatch.setattr("distrff.engine.reduction._MIN_SAMPLE_ROWS", 1)
    monkeypatch.setattr("distrff.engine.reduction._MOST_SAMPLE_PER_FEATURE", 1)
    monkeypatch.setattr("distrff.engine.reduction._LEAST_SAMPLE_PER_FEATURE", 1)
    s = np.zeros(900)
    s[:2] = 1.0
    fitted = model(0.1, tol=1e-8).fit(problem.X, problem.y, s)
    assert fitted.report_["status"] == "CONVERGED"
    assert_solves(fitted, problem.X, problem.y, s, tol=1e-8)


@pytest.mark.parametrize(("size", "dtype"), [(1e39, "float32"), (3e152, "float64")])
def test_values_that_are_too_large(problem, preconditioner, size, dtype):
    with np.errstate(all="ignore"), pytest.raises(InputError, match=r"not finite.*dtype='float64'"):
        model = drf.KernelRidge(drf.LinearFeatures(), solver="cg", scale="none", dtype=dtype, alpha=1.0)
        model.fit(size * problem.X, problem.y)


def test_too_few_sweeps_are_a_warning(problem, monkeypatch):
    no_factor(monkeypatch)
    message = r"the relative residual is .* after light sweep 2, above tol=0.001; allow more by max_sweeps"
    with pytest.warns(ConvergenceWarning, match=message):
        fitted = model(max_sweeps=2).fit(problem.X, problem.y)
    assert fitted.report_["status"] == "NOT_CONVERGED"
    assert fitted.report_["sweep_labels"] == ["column statistics", "right sides", "products"]
    G, B = equations(fitted, problem.X, problem.y, np.ones(900))
    residual = B[:, 0] - (G + np.eye(D)) @ fitted.coef_
    assert fitted.report_["relative_residual"] == pytest.approx(
        np.linalg.norm(residual) / np.linalg.norm(B), rel=1e-6
    )
    assert fitted.score(problem.X, problem.y) > 0.1


def test_rounding_ends_it_with_a_warning(problem, preconditioner):
    """Products are float64, whatever the features are: a penalty may be below rounding of float32."""
    fitted = model(1e-6, dtype="float32", tol=1e-6).fit(problem.X, problem.y)
    assert (fitted.report_["dtype"], fitted.report_["status"]) == ("float32", "CONVERGED")
    with pytest.warns(ConvergenceWarning, match="rounding ends it; use a larger tol"):
        fitted = model(1e-3, tol=1e-30).fit(problem.X, problem.y)
    assert fitted.report_["status"] == "NOT_CONVERGED"
    assert fitted.report_["relative_residual"] < 1e-10


@pytest.mark.parametrize(("name", "n_done"), [("products", 0), ("products", 2), ("right_sides", 0)])
def test_an_interrupted_fit_keeps_the_best_model(problem, monkeypatch, name, n_done):
    if name == "products":
        no_factor(monkeypatch)
    interrupt_after(monkeypatch, RidgePasses, (name,), n_done)
    estimator = model(0.1, tol=1e-9)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(problem.X, problem.y)
    assert estimator.report_["status"] == "INTERRUPTED"
    score = estimator.score(problem.X, problem.y)
    if name == "products":
        assert (score > 0.1) == (n_done > 0)
    else:  # the sample's own model is kept, whose residual is not known yet
        assert estimator.report_["relative_residual"] is None
        assert score > 0.7


# Plans, and the choice of the solver


def test_the_plan_is_that_of_the_fit(problem, preconditioner):
    counted = model().plan(problem.X, problem.y)
    assert counted.seconds > 0
    assert counted.n_sweeps == PRESUMED_SWEEPS + 1 + (preconditioner != "diagonal")
    fitted = model().fit(problem.X, problem.y)
    assert counted.to_dict() | {"seconds": None} == fitted.plan_.to_dict()


def wide(alpha, **options):
    return drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(2.0), 2048), alpha, random_state=0, **options)


def test_auto_takes_cg_where_the_gram_alone_does_not_fit(problem, monkeypatch):
    too_much = wide(1.0, solver="gram").plan(problem.X, problem.y).worker_peak_bytes
    limit = int((too_much + cost.IDLE_BYTES) / cost._USABLE_SHARE) - 2**20
    monkeypatch.setattr("distrff.engine.tasks.MEMORY_LIMIT", limit)
    assert "preconditioner: diagonal" in str(wide(30.0).plan(problem.X, problem.y))
    fitted = wide(30.0).fit(problem.X, problem.y)
    assert fitted.report_["solver"] == "cg"
    assert fitted.report_["notes"] == ["the Gram does not fit in memory: solver='cg' was used"]
    by_gram = model(solver="auto").fit(problem.X, problem.y)
    assert (by_gram.report_["solver"], by_gram.report_["status"]) == ("gram", "CONVERGED")
    assert "relative_residual" not in by_gram.report_
    for refused in (wide(30.0, solver="gram"), wide("gcv")):
        with pytest.raises(PlanRefused):
            refused.fit(problem.X, problem.y)
    monkeypatch.setattr("distrff.engine.tasks.MEMORY_LIMIT", 2**28)
    with pytest.raises(PlanRefused, match="smallest changes that fit"):
        model(solver="auto").fit(problem.X, problem.y)
