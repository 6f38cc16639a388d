"""What columns and targets bring along: scales, constants, widths, and the spread of predictions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import StandardScaler

import distrff as drf
from distrff.errors import DataWarning, InputError
from tests.support.fits import fourier, ridge


def test_standard_scale(problem):
    """The same model as on columns standardised beforehand, and rows are predicted as they are."""
    X = problem.X * [1.0, 1e-3, 1e3, 7.0] + [5.0, 0.0, -1e4, 1.0]
    scaler = StandardScaler().fit(X, sample_weight=problem.s)
    ours = ridge(scale="standard").fit(X, problem.y, problem.s)
    beforehand = ridge().fit(scaler.transform(X), problem.y, problem.s)
    # Means and deviations differ by rounding, up to 1e4·u over 1e3 here; κ = Σs.
    np.testing.assert_allclose(ours.coef_, beforehand.coef_, rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours.predict(X), beforehand.predict(scaler.transform(X)), rtol=0, atol=1e-10)


def test_scaling_is_in_float64_whatever_the_features(problem):
    """A float32 column far from zero keeps its digits: the shift acts before the cast."""
    X = np.round(problem.X * 64).astype(np.float32) / 64  # exact beside an offset of 2^16
    near, far = (
        ridge(scale="standard").fit((X + np.float32(c)).astype(np.float32), problem.y) for c in (0, 2**16)
    )
    assert near.report_["dtype"] == far.report_["dtype"] == "float32"
    # The shifted columns agree but for the rounding of means, 2^16·u64, far below that of float32.
    u32 = np.finfo(np.float32).eps / 2
    bound = 64 * u32 * len(X) * np.linalg.norm(near.coef_)  # alpha = 1: κ = n
    np.testing.assert_allclose(far.coef_, near.coef_, rtol=0, atol=bound)


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e6 / 3])
def test_constant_columns_are_divided_by_one(problem, constant):
    X = np.column_stack([problem.X, np.full(len(problem.X), constant)])
    model = drf.KernelRidge(drf.LinearFeatures(), scale="standard").fit(X, problem.y)
    scaling = model.model_.scaling
    assert (scaling.shift[-1], scaling.scale[-1]) == (constant, 1.0)
    assert model.coef_[-1] == 0


def test_columns_of_different_spread_are_pointed_out(problem):
    X = problem.X / problem.X.std(axis=0) * [1.0, 150.0, 2.0, 1.5]
    X = np.column_stack([X, np.full(len(X), 0.1)])  # constant: no spread to compare
    with pytest.warns(DataWarning, match=r"column 0 and column 1 .* use scale='standard'") as caught:
        ridge().fit(X, problem.y)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(DataWarning, match="column 'a' and column 'b' have standard deviations"):
        ridge().fit(pd.DataFrame(X, columns=list("abcde")), problem.y)


def test_columns_of_like_spread_are_not(problem, recwarn):
    X = problem.X / problem.X.std(axis=0) * [1.0, 99.0, 2.0, 1.0]
    ridge().fit(X, problem.y)
    ridge(scale="standard").fit(X * [1.0, 100.0, 1.0, 1.0], problem.y)
    assert not recwarn.list


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6 / 3, 1e15])
@pytest.mark.parametrize("alpha", [1.0, "cv", "gcv"])
def test_a_constant_target_is_fitted_with_a_warning(problem, alpha, constant):
    with pytest.warns(DataWarning, match="y is constant .*; the model will predict that constant") as caught:
        model = ridge(alpha).fit(problem.X, np.full(len(problem.X), constant), problem.s)
    assert [warning.filename for warning in caught] == [__file__]
    np.testing.assert_array_equal(model.coef_, 0)
    np.testing.assert_array_equal(model.predict(problem.X), constant)
    assert model.score(problem.X, np.full(len(problem.X), constant)) == 1
    if alpha != 1.0:
        assert model.cv_score_ == 0


def test_a_constant_target_among_others_is_named(problem):
    Y = problem.Y.copy()
    Y[:, 1] = 7
    with pytest.warns(DataWarning, match=r"y is constant \(7, column 1\)"):
        model = ridge().fit(problem.X, Y)
    alone = ridge().fit(problem.X, Y[:, 0])
    np.testing.assert_array_equal(model.predict(problem.X)[:, 1], 7)
    np.testing.assert_allclose(model.coef_[0], alone.coef_, rtol=1e-9)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_spread_of_predictions_is_the_dense_formula(problem, fit_intercept):
    X, Y, s = problem.X, problem.Y, problem.s
    alpha = 1e-4 * s.sum()
    model = ridge(alpha, fit_intercept=fit_intercept).fit(X, Y, s)
    prediction, std = model.predict(X[:50], return_std=True)
    Z, z_mean, y_mean = model.features_.transform(X), 0.0, 0.0
    if fit_intercept:
        z_mean, y_mean = np.average(Z, axis=0, weights=s), np.average(Y, axis=0, weights=s)
    G = ((Z - z_mean).T * s) @ (Z - z_mean)
    inverse = np.linalg.inv(G + alpha * np.eye(len(G)))
    residual = Y - y_mean - (Z - z_mean) @ inverse @ (Z - z_mean).T @ (s[:, None] * (Y - y_mean))
    noise = s @ residual**2 / (s.sum() - np.trace(G @ inverse) - fit_intercept)
    spread = np.einsum("ij,jk,ik->i", Z[:50] - z_mean, inverse, Z[:50] - z_mean)
    expected = np.sqrt(np.outer(spread + fit_intercept / s.sum(), noise))
    assert prediction.shape == std.shape == expected.shape
    np.testing.assert_array_equal(prediction, model.predict(X[:50]))
    np.testing.assert_allclose(std, expected, rtol=1e-9)  # κ = 1e4, a thousandfold of κ·u


def test_spread_of_predictions_of_one_target(problem):
    model = ridge().fit(problem.X, problem.y)
    _, std = model.predict(problem.X[:5], return_std=True)
    column = ridge().fit(problem.X, problem.y[:, None])
    assert std.shape == (5,)
    np.testing.assert_array_equal(column.predict(problem.X[:5], return_std=True)[1][:, 0], std)
    several = ridge(alpha=[1.0, 2.0, 3.0]).fit(problem.X, problem.Y)
    with pytest.raises(InputError, match="return_std needs one alpha for all targets"):
        several.predict(problem.X, return_std=True)


def test_spread_covers_the_truth(rng):
    """Of a function from the model itself, about two thirds of the values lie within one std."""
    X = rng.standard_normal((4000, 2))
    model = drf.KernelRidge(fourier(32), alpha=1.0)
    truth = fourier(32).fit_transform(X) @ rng.standard_normal(32)
    covered = []
    for _ in range(20):  # each fit is one draw of a few dozen nearly independent errors
        model.fit(X, truth + rng.standard_normal(len(X)))
        prediction, std = model.predict(X[:500], return_std=True)
        covered.append(np.mean(np.abs(prediction - truth[:500]) < std))
    # 0.683 for errors that are Gaussian around zero. The true weights are draws of the prior that alpha = σ²
    # stands for, so the penalty's bias is in the spread but for this one draw of the weights.
    assert abs(np.mean(covered) - 0.683) < 5 * np.std(covered, ddof=1) / np.sqrt(20) + 0.05


@pytest.mark.parametrize("kernel", [drf.Gaussian("auto"), 2.0 * drf.Laplacian("auto") + drf.Gaussian(1.0)])
def test_automatic_width_becomes_a_number(problem, kernel):
    features = drf.FourierFeatures(kernel, 64, random_state=0)
    model = drf.KernelRidge(features, random_state=0).fit(problem.X, problem.y)
    assert not model.features_.kernel_.is_auto and model.features_.kernel.is_auto
    assert model.features is features and not hasattr(features, "kernel_")
    search = model.report_["length_scale_search"]
    assert search["length_scale"] in [width for width, _ in search["tried"]]
    assert model.features_.kernel_ == kernel.with_widths(search["length_scale"])
    explicit = drf.KernelRidge(drf.FourierFeatures(model.features_.kernel_, 64, random_state=0))
    np.testing.assert_array_equal(explicit.fit(problem.X, problem.y).coef_, model.coef_)


def test_a_fitted_map_is_fitted_anew(problem):
    """Estimators fit a clone, so parameters set later count."""
    features = fourier().fit(problem.X)
    model = drf.KernelRidge(features).fit(problem.X, problem.y)
    assert model.features_ is not features
    model.set_params(features__kernel=drf.Gaussian(0.5)).fit(problem.X[:, :2], problem.y)
    assert model.features_.kernel_ == drf.Gaussian(0.5)
    assert model.features_.n_features_in_ == 2
