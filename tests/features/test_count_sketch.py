"""CountSketch frequencies: sparse rows, and the error that the sketch is allowed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from distrff.errors import InputError
from distrff.features.count_sketch import SKETCH_COLUMNS, gaussian_sketch_error
from distrff.features.fourier import FourierFeatures
from distrff.kernels.stationary import Gaussian, Matern

N_COLUMNS = 30_000


def sparse_rows(rng, n_rows, dtype=np.float64, density=0.001):
    n = max(1, int(density * n_rows * N_COLUMNS))
    places = rng.integers(n_rows, size=n), rng.integers(N_COLUMNS, size=n)
    return sp.csr_array((rng.standard_normal(n).astype(dtype), places), shape=(n_rows, N_COLUMNS))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", [Gaussian(5.0), Gaussian(5.0) + Matern(6.0, nu=2.5)], ids=["one", "sum"])
def test_sparse_rows_give_the_values_of_dense_ones(rng, dtype, kernel):
    X = sparse_rows(rng, 30).astype(dtype)
    map_ = FourierFeatures(kernel, 32, sampling="countsketch", random_state=0).fit(X)
    Z = map_.transform(X)
    assert Z.dtype == dtype
    assert isinstance(Z, np.ndarray)
    np.testing.assert_array_equal(Z, map_.transform(X.toarray()))
    np.testing.assert_array_equal(Z, map_.transform(X.tocsc()))
    np.testing.assert_array_equal(
        Z, FourierFeatures(kernel, 32, sampling="countsketch", random_state=0).fit(X.toarray()).transform(X)
    )


def test_the_error_is_within_its_bound(rng):
    """Of distances up to 2ℓ: the bias, and the mean square that the sketch and m frequencies leave."""
    n_maps, m, seed = 200, 64, int(rng.integers(2**62))
    X = np.zeros((4, 64))
    X[1, 0], X[2, :64], X[3, :2] = 1.0, 0.25, np.sqrt(2.0)  # at distances 1, 2 and 2, few columns and many
    squares = np.square(X[1:] - X[0]).sum(axis=1)
    errors = np.empty((n_maps, 3))
    for i in range(n_maps):
        Z = FourierFeatures(Gaussian(), 2 * m, sampling="countsketch", random_state=seed + i).fit_transform(X)
        errors[i] = Z[1:] @ Z[0] - np.exp(-squares / 2)
    standard_error = errors.std(axis=0) / np.sqrt(n_maps)
    assert np.all(np.abs(errors.mean(axis=0)) <= gaussian_sketch_error(squares) + 6 * standard_error)
    mean_square = np.square(errors).mean(axis=0)
    its_error = np.square(errors).std(axis=0) / np.sqrt(n_maps)
    assert np.all(mean_square <= 1 / (2 * m) + squares**2 / (2 * SKETCH_COLUMNS) + 6 * its_error)


def test_the_sketch_keeps_squared_lengths(rng):
    """E‖Sδ‖² = ‖δ‖² and Var ‖Sδ‖² ≤ 2‖δ‖⁴/B, which the bound rests on."""
    delta = rng.standard_normal(1000)
    lengths = np.empty(400)
    for i in range(400):
        map_ = FourierFeatures(Gaussian(), 2, sampling="countsketch", random_state=int(rng.integers(2**62)))
        arrays = map_.fit(np.zeros((1, 1000))).specification_.derive_arrays()
        lengths[i] = np.square(np.bincount(arrays["buckets"], arrays["signs"] * delta)).sum() / (
            delta @ delta
        )
    deviation = np.sqrt(2 / SKETCH_COLUMNS)
    assert abs(lengths.mean() - 1) <= 6 * deviation / np.sqrt(400)
    # A variance of 400 draws is known to √(2/400) of itself, times 2 for a kurtosis of up to 9.
    assert lengths.var() <= deviation**2 * (1 + 6 * 2 * np.sqrt(2 / 400))


def test_sparse_rows_are_not_for_hadamard_products_and_need_a_width(rng):
    X = sparse_rows(rng, 5)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        FourierFeatures(Gaussian(), 8, sampling="fastfood").fit(X)
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        FourierFeatures(Gaussian("auto"), 8, sampling="countsketch").fit(X)
    with pytest.raises(InputError, match=r"X has 5 rows but y has shape \(4,\)"):
        FourierFeatures(Gaussian(), 8, sampling="countsketch").fit(X, np.zeros(4))
