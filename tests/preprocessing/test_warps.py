"""Columns that are bent before they are scaled: by logarithms of both signs, or by normal scores of ranks."""

import shutil

import numpy as np
import pytest
from scipy.sparse import csr_matrix, issparse
from scipy.stats import norm

import distrff as drf
from distrff.errors import InputError
from distrff.preprocessing.coding import NO_EFFECT, WARPS, Moments, NormalScores, Scaling, SignedLog

DOUBLE = np.dtype(np.float64)


@pytest.fixture
def rows(rng):
    """Columns with a heavy tail, of both signs, of few values, of two, and of one."""
    n = 400
    heavy = np.exp(2 * rng.standard_normal(n))
    signed = rng.standard_cauchy(n)
    counts = rng.poisson(1.0, n).astype(float)
    flags = (rng.uniform(size=n) < 0.3).astype(float)
    return np.c_[heavy, signed, counts, flags, np.full(n, 7.0)]


def scaling_of(name, X):
    moments = Moments.of(X, None)
    return Scaling.warped(name, X, None, moments).without_constants(moments)


@pytest.mark.parametrize("name", WARPS)
def test_order_stays_and_columns_are_standard(name, rows, rng):
    scaling = scaling_of(name, rows)
    scaled = scaling.apply(rows, DOUBLE)
    np.testing.assert_allclose(scaled[:, :4].mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled[:, :4].std(axis=0), 1, rtol=1e-12)
    for x, z in zip(rows.T, scaled.T, strict=True):
        assert (np.diff(z[np.argsort(x, kind="stable")]) >= 0).all()
    # Other rows keep the order as well, inside and outside of what the fit saw.
    other = np.sort(rng.uniform(-50, 50, (100, 5)), axis=0)
    assert (np.diff(scaling.apply(other, DOUBLE), axis=0) >= 0).all()


@pytest.mark.parametrize("name", WARPS)
def test_two_values_are_scaled_as_without_a_warp(name, rows):
    plain = Scaling.standard(Moments.of(rows, None)).apply(rows, DOUBLE)
    np.testing.assert_allclose(scaling_of(name, rows).apply(rows, DOUBLE)[:, 3], plain[:, 3], atol=1e-12)


@pytest.mark.parametrize("name", WARPS)
def test_a_constant_column_has_no_effect_in_any_row(name, rows):
    scaling = scaling_of(name, rows)
    assert scaling.scale[4] == NO_EFFECT and scaling.ignored() == [4]
    rows[0, 4] = 1e6
    assert abs(scaling.apply(rows, DOUBLE)[0, 4]) < 1e-100


def test_ranks_of_a_normal_column_are_its_scores(rng):
    x = np.sort(rng.standard_normal((5000, 1)), axis=0)
    scores = x.copy()
    NormalScores.of(x).bend(scores)
    shares = (np.arange(5000) + 0.5) / 5000
    exact = norm.ppf(shares)
    # A score lies between those of the next two of 129 knots.
    np.testing.assert_allclose(scores[:, 0], exact, atol=2 * exact[-1] / 128 + 1e-9)
    assert scores[0, 0] == pytest.approx(exact[0]) and scores[-1, 0] == pytest.approx(exact[-1])


def test_logarithms_of_both_signs():
    x = np.array([[-3.0], [0.0], [1.0], [2.0], [9.0]])  # the median is 1, the other distances 4, 1, 1 and 8
    bent = x.copy()
    SignedLog.of(x).bend(bent)
    np.testing.assert_allclose(bent[:, 0], [-np.log(2.6), -np.log(1.4), 0, np.log(1.4), np.log(4.2)])


@pytest.mark.parametrize("name", WARPS)
def test_what_is_not_finite_stays_so(name, rows):
    scaling = scaling_of(name, rows)
    rows[0, 0], rows[1, 1] = np.inf, np.nan
    scaled = scaling.apply(rows, DOUBLE)
    assert scaled[0, 0] == np.inf and np.isnan(scaled[1, 1])


def test_sparse_rows_keep_their_zeros(rng):
    X = csr_matrix(np.where(rng.uniform(size=(300, 6)) < 0.2, rng.standard_cauchy((300, 6)), 0.0))
    scaling = scaling_of("log", X)
    scaled = scaling.apply(X, DOUBLE)
    assert issparse(scaled) and scaling.shift is None
    assert (scaled.toarray()[X.toarray() == 0] == 0).all()
    np.testing.assert_allclose(np.sqrt(np.mean(scaled.toarray() ** 2, axis=0)), 1, rtol=1e-12)


def test_ranks_of_sparse_rows_are_refused(rng):
    X, y = csr_matrix(rng.standard_normal((50, 3))), rng.standard_normal(50)
    with pytest.raises(InputError, match=r"scale='quantile' takes ranks.*scale='log'"):
        drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(1.0), 32), scale="quantile").fit(X, y)


@pytest.mark.parametrize("name", WARPS)
def test_a_model_predicts_as_one_of_bent_columns(name, rows, rng, tmp_path):
    X, y = rows[:, :4], np.sin(np.log(rows[:, 0])) + 0.1 * rng.standard_normal(len(rows))
    features = drf.NystroemFeatures(drf.Gaussian(2.0), 64)
    model = drf.KernelRidge(features, scale=name, random_state=0).fit(X, y)
    bent = scaling_of(name, X).apply(X, DOUBLE)
    other = drf.KernelRidge(features, scale="none", random_state=0).fit(bent, y)
    np.testing.assert_allclose(model.predict(X), other.predict(bent), rtol=1e-6, atol=1e-6)
    model.save(str(tmp_path / "m.zarr"))
    again = drf.load_model(str(tmp_path / "m.zarr"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    with pytest.raises(InputError, match="no part for columns by their logarithms or ranks"):
        model.to_sklearn()


def test_blocks_of_any_size_are_scaled_alike(rows):
    scaling = scaling_of("quantile", rows)
    whole = scaling.apply(rows, DOUBLE)
    parts = np.concatenate([scaling.apply(rows[i : i + 7], DOUBLE) for i in range(0, len(rows), 7)])
    np.testing.assert_array_equal(parts, whole)


def hidden_and_heavy(n, rng):
    """Normal columns, the same as log-normal ones, cubes and counts, and a target of the hidden ones."""
    Z = rng.standard_normal((n, 40))
    X = Z.copy()
    X[:, :14] = np.exp(1.5 * Z[:, :14])
    X[:, 14:27] **= 3
    X[:, 27:] = np.rint(100 * np.exp(Z[:, 27:]))
    y = np.sin(Z[:, 0]) + Z[:, 1] * np.tanh(Z[:, 14]) + np.tanh(Z[:, 27]) + np.cos(Z[:, 28]) + 0.3 * Z[:, 2]
    return Z, X, y + 0.1 * rng.standard_normal(n)


@pytest.mark.slow
def test_heavy_tails_cost_a_default_fit_little(rng):
    Z, X, y = hidden_and_heavy(7000, rng)
    errors = {}
    for name, columns in (("hidden", Z), ("heavy", X)):
        model = drf.KernelRidge(random_state=0).fit(columns[:4000], y[:4000])
        errors[name] = np.sqrt(np.mean((model.predict(columns[4000:]) - y[4000:]) ** 2))
    assert errors["heavy"] <= 1.1 * errors["hidden"]


@pytest.mark.parametrize("name", WARPS)
def test_a_stored_model_with_half_of_a_function_is_refused(name, rows, tmp_path):
    path = tmp_path / "m.zarr"
    drf.KernelRidge(drf.FourierFeatures(drf.Gaussian(1.0), 16), scale=name).fit(rows, rows[:, 0]).save(
        str(path)
    )
    half = {"log": "column_unit", "quantile": "column_scores"}[name]
    (found,) = path.rglob(half)
    shutil.rmtree(found)
    with pytest.raises(InputError, match=half):
        drf.load_model(str(path))
