"""Products with few vectors: those of BLAS, whatever the shape, the dtype and the number of zeros."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distrff.utils.products import compile_products, transposed_product, values_of

DTYPES = st.sampled_from([np.float32, np.float64])


@pytest.fixture(autouse=True, scope="module")
def compiled():
    compile_products()


def bound(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Both products err by at most n·ε·|A||B| (Higham 2002, section 3.5); the factors were rounded first."""
    n, eps = A.shape[1] + 2, np.finfo(A.dtype).eps
    return 2 * n * eps * (np.abs(A).astype(float) @ np.abs(B).astype(float)) + np.finfo(A.dtype).tiny


@given(
    r=st.integers(1, 40), D=st.integers(1, 30), k=st.integers(0, 20), dtype=DTYPES, seed=st.integers(0, 99)
)
def test_values(r, D, k, dtype, seed):
    rng = np.random.default_rng(seed)
    Z, coef = rng.standard_normal((r, D)).astype(dtype), rng.standard_normal((D, k)).astype(dtype)
    F = values_of(Z, coef)
    assert F.dtype == np.float64
    assert (np.abs(F - Z.astype(float) @ coef.astype(float)) <= bound(Z, coef)).all()


@given(
    r=st.integers(1, 40), D=st.integers(1, 30), m=st.integers(0, 20), dtype=DTYPES, seed=st.integers(0, 99)
)
def test_weighted_sums_of_rows(r, D, m, dtype, seed):
    rng = np.random.default_rng(seed)
    Z, S = rng.standard_normal((r, D)).astype(dtype), rng.standard_normal((m, r)).astype(dtype)
    S *= rng.random((m, r)) < rng.random()
    sums = transposed_product(S, Z)
    assert sums.dtype == np.float64
    assert (np.abs(sums - S.astype(float) @ Z.astype(float)) <= bound(S, Z)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_more_columns_than_a_strip(dtype, rng):
    Z, S, coef = (rng.standard_normal(shape).astype(dtype) for shape in ((19, 2500), (3, 19), (2500, 3)))
    assert (np.abs(transposed_product(S, Z) - S.astype(float) @ Z.astype(float)) <= bound(S, Z)).all()
    assert (np.abs(values_of(Z, coef) - Z.astype(float) @ coef.astype(float)) <= bound(Z, coef)).all()


@pytest.mark.parametrize("Z", [np.ones((6, 4))[:, ::2], np.ones((3, 8, 2))[:, :, 0], np.ones((4, 6)).T])
def test_any_layout(Z):
    np.testing.assert_array_equal(values_of(Z, np.ones((Z.shape[1], 1))), np.full((len(Z), 1), Z.shape[1]))
    np.testing.assert_array_equal(
        transposed_product(np.ones((1, len(Z))), Z), np.full((1, Z.shape[1]), len(Z))
    )


def test_values_that_are_not_numbers_show(rng):
    Z = rng.standard_normal((5, 3))
    Z[2, 1] = np.nan
    assert np.isnan(values_of(Z, np.ones((3, 1)))[:, 0]).tolist() == [False, False, True, False, False]
    assert np.isnan(transposed_product(np.ones((1, 5)), Z)).tolist() == [[False, True, False]]
