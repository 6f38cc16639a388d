"""Lower triangles of symmetric matrices and back, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from distrff.solvers.ridge import pack, packed_length, unpack


@pytest.mark.parametrize("size", [1, 2, 3, 10, 67])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matrices_come_back(rng, size, dtype):
    B = rng.standard_normal((3, size, size)).astype(dtype)
    A = B + B.transpose(0, 2, 1)
    packed = pack(A)
    assert packed.shape == (3, packed_length(size))
    assert packed.dtype == dtype
    for triangle, matrix in zip(packed, A, strict=True):
        np.testing.assert_array_equal(unpack(triangle), matrix)


def test_the_order_is_row_by_row():
    A = np.array([[[1.0, 2.0, 4.0], [2.0, 3.0, 5.0], [4.0, 5.0, 6.0]]])
    np.testing.assert_array_equal(pack(A), [[1, 2, 3, 4, 5, 6]])


def test_sums_of_packed_matrices_are_packed_sums(rng):
    B = rng.standard_normal((2, 1, 9, 9))
    first, second = B + B.transpose(0, 1, 3, 2)
    np.testing.assert_array_equal(pack(first) + pack(second), pack(first + second))
