"""Functions drawn from the posterior: their covariance, and that each is one function everywhere."""

import os
from functools import cache

import dask.array as da
import numpy as np
import pytest
from scipy.linalg import solve_triangular

import distrff as drf
from distrff.errors import DataWarning, InputError
from distrff.utils.nufft import values_of_few

pytestmark = pytest.mark.usefixtures("in_this_thread")

MAPS = {
    "random": lambda: drf.FourierFeatures(drf.Gaussian(1.0), 32, random_state=0),
    "landmarks": lambda: drf.NystroemFeatures(drf.Gaussian(1.0), 24, random_state=0),
    "equispaced": lambda: drf.EquispacedFourierFeatures(drf.Matern(1.0, nu=1.5), 961, tol=0.1),
}


@cache
def fitted(map_name: str, n_targets: int = 0, fit_intercept: bool = True) -> drf.KernelRidge:
    """One model for all tests, which change nothing of it: a posterior takes as long as most of them."""
    rng = np.random.default_rng(int(os.environ["DISTRFF_TEST_SEED"]))
    X = rng.uniform(0, 4, (300, 2))
    noise = rng.standard_normal((300, max(1, n_targets))) * np.arange(1, 1 + max(1, n_targets))
    Y = np.sin(X.sum(axis=1))[:, None] + 0.3 * noise
    model = drf.KernelRidge(MAPS[map_name](), alpha=1e-2, fit_intercept=fit_intercept, random_state=0)
    return model.fit(X, Y if n_targets else Y[:, 0])


def places(rng: np.random.Generator, n: int = 6) -> np.ndarray:
    return rng.uniform(0.1, 3.9, (n, 2))


def assert_covariance(draws: np.ndarray, mean: np.ndarray, expected: np.ndarray) -> None:
    """Draws (p, n) of normal variables have this mean and this covariance, to six standard errors."""
    n = draws.shape[1]
    variance = np.diag(expected)
    assert np.all(np.abs(draws.mean(axis=1) - mean) <= 6 * np.sqrt(variance / n))
    D = draws - mean[:, None]
    # Of products of two normal variables the variance is s_ii·s_jj + s_ij².
    error = np.sqrt((np.outer(variance, variance) + np.square(expected)) / n)
    assert np.all(np.abs(D @ D.T / n - expected) <= 6 * error)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("map_name", ["random", "landmarks"])
def test_draws_of_dense_models_have_the_exact_covariance(map_name, fit_intercept, rng):
    model = fitted(map_name, 2, fit_intercept)
    P = places(rng)
    mean, std = model.predict(P, return_std=True)
    posterior = model.model_.posterior
    U = solve_triangular(posterior.L, (model.model_.transform(P) - posterior.z_mean).T, lower=True)
    shape = U.T @ U + posterior.intercept_variance
    draws = model.sample(P, 3000, random_state=int(rng.integers(2**31)))
    assert draws.shape == (6, 2, 3000)
    for target in (0, 1):
        covariance = posterior.noise[target] * shape
        np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std[:, target], rtol=1e-4)
        assert_covariance(draws[:, target], mean[:, target], covariance)
    # Targets vary independently.
    D = (draws - mean[..., None]) / std[..., None]
    assert np.all(np.abs(D[:, 0] @ D[:, 1].T / 3000) <= 6 / np.sqrt(3000))


def test_draws_of_equispaced_models_are_the_samples_of_their_deviations(rng):
    model = fitted("equispaced", 2)
    P = places(rng)
    mean, std = model.predict(P, return_std=True)
    draws = model.sample(P, 64, random_state=int(rng.integers(2**31)))
    posterior, lattice = model.model_.posterior, model.features_.lattice_
    pairs = np.stack([values_of_few(lattice.phases(P), C.astype(complex)) for C in posterior.C], axis=1)
    samples = np.concatenate([pairs.real, pairs.imag], axis=1)
    for target in (0, 1):
        D = draws[:, target] - mean[:, [target]]
        expected = posterior.noise[target] * samples @ samples.T
        # Stored in float32; transforms for deviations are to 1e-5.
        np.testing.assert_allclose(D @ D.T, expected, atol=1e-5 * expected.max())
        np.testing.assert_allclose(np.sqrt(np.mean(D**2, axis=1)), std[:, target], rtol=1e-3)
    # No draw has one sample for both targets.
    D = (draws - mean[..., None]) / np.sqrt(posterior.noise)[:, None]
    assert np.all(np.abs(D[:, 0] - D[:, 1]).max(axis=0) > 1e-3 * np.abs(D).max())


@pytest.mark.parametrize("n_targets", [0, 2])
@pytest.mark.parametrize("map_name", MAPS)
def test_a_draw_is_one_function_wherever_it_is_asked(map_name, n_targets, rng):
    model = fitted(map_name, n_targets)
    P, seed = places(rng, 50), int(rng.integers(2**31))
    whole = model.sample(P, 5, random_state=seed)
    assert whole.shape == (50, *([2] if n_targets else []), 5)
    same = {"rtol": 0, "atol": 1e-7 * np.abs(whole).max()}  # other blocks, other rounding
    np.testing.assert_allclose(model.sample(P[::-3], 5, random_state=seed), whole[::-3], **same)
    np.testing.assert_allclose(model.sample(P, 2, random_state=seed), whole[..., :2], **same)
    lazy = model.sample(da.from_array(P, chunks=(20, 2)), 5, random_state=seed)
    np.testing.assert_allclose(lazy.compute(), whole, **same)
    assert np.abs(model.sample(P, 5, random_state=seed + 1) - whole).max() > 1e3 * same["atol"]
    frozen = model.model_  # which has its posterior since
    np.testing.assert_array_equal(frozen.sample(P, 5, random_state=seed), whole)
    # The first seed is the default, and None is another each time.
    np.testing.assert_array_equal(model.sample(P, 5), model.sample(P, 5, random_state=0))
    assert np.any(model.sample(P, 5, random_state=None) != model.sample(P, 5, random_state=None))


def test_a_stored_model_draws_the_same_functions(rng, tmp_path):
    for map_name in MAPS:
        model = fitted(map_name)
        model.save(str(tmp_path / map_name), include_std=True)
        P = places(rng)
        stored = drf.load_model(str(tmp_path / map_name)).sample(P, 4)
        np.testing.assert_allclose(stored, model.sample(P, 4), rtol=1e-9)


def test_draws_that_cannot_be_had_are_refused(rng, tmp_path):
    model, P = fitted("equispaced"), places(rng)
    with pytest.raises(InputError, match="64 functions drawn from its posterior, and 65 were asked for"):
        model.sample(P, 65)
    for n_draws in (0, 2.5):
        with pytest.raises(InputError, match="n_draws must be a positive integer"):
            model.sample(P, n_draws)
    model.save(str(tmp_path / "model"))
    with pytest.raises(InputError, match="include_std"):
        drf.load_model(str(tmp_path / "model")).sample(P, 2)
    with pytest.warns(DataWarning, match="outside the bounds"):
        assert np.isnan(model.sample(np.array([[9.0, 9.0]]), 3)).all()
