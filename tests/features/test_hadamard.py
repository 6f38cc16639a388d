"""The fast Walsh-Hadamard transform against the matrix, and its transposition against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import hadamard

from distrff.features.hadamard import padded_size, scaled_transpose, signed_transform


def walsh_hadamard(tile):
    """Multiply by the Hadamard matrix in place."""
    size, n_rows = tile.shape
    signed_transform(tile.reshape(-1), tile.reshape(-1), np.arange(size), np.ones(size, tile.dtype), n_rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [8, 16, 32, 64, 128, 256, 512, 1024, 4096])
@pytest.mark.parametrize("n_rows", [16, 48])
def test_the_transform_is_the_product_with_the_matrix(rng, size, n_rows, dtype):
    A = rng.integers(-100, 101, (size, n_rows)).astype(dtype)
    expected = hadamard(size, dtype=float) @ A.astype(float)
    walsh_hadamard(A)
    np.testing.assert_array_equal(A, expected)  # whole numbers below 2²⁴: without rounding in both formats


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 7, 8, 16, 17, 33])
@pytest.mark.parametrize("m", [1, 8, 15, 16, 40])
def test_the_transposition_scales_rows_and_keeps_to_its_place(rng, n, m, dtype):
    A, factors = rng.standard_normal((n, m + 3)).astype(dtype), rng.standard_normal(n).astype(dtype)
    out = np.full((m + 1, n + 5), 7, dtype)
    scaled_transpose(A.reshape(-1), 2, m + 3, n, m, factors, out.reshape(-1), 4, n + 5)
    expected = np.full_like(out, 7)
    expected[:m, 4 : n + 4] = (factors[:, None] * A[:, 2 : m + 2]).T
    np.testing.assert_array_equal(out, expected)


def test_sizes_are_powers_of_two_from_eight_on():
    assert [padded_size(d) for d in (1, 8, 9, 16, 784, 1024, 1025)] == [8, 8, 16, 16, 1024, 1024, 2048]
